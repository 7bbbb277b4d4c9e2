"""Brings what is derived from messages (the search index and the threads) up to date, many at a time."""

import sqlite3

from postroom.stores.sqlite.statements import STATEMENTS as SQL

STEP = 1_500
"""Most messages of one transaction, within which no caller is answered: some 40 ms when a former process
left many, a few otherwise. More than are written between two steps under load, so that the gap stays
bounded."""


def update_indexes(connection: sqlite3.Connection) -> bool:
    """Take the next messages in, within the open transaction; return whether some are left."""
    newest = connection.execute(SQL["settling_step"], (STEP,)).fetchone()[0]
    if newest is None:
        return False
    connection.execute(SQL["settle_search"], (newest,))
    connection.execute(SQL["settle_threads"], (newest,))
    connection.execute(SQL["settled"], (newest,))
    return is_behind(connection)


def is_behind(connection: sqlite3.Connection) -> bool:
    """Return whether some message is not taken in yet."""
    return bool(connection.execute(SQL["unsettled"]).fetchone()[0])
