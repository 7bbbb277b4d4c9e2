"""Brings what is derived from messages (the search index and the threads) up to date, many at a time."""

import sqlite3
from typing import Final

from postroom.stores.sqlite.sql_transaction import SqliteTransaction

STEP: Final = 1_500
"""Most messages of one transaction, within which no caller is answered: some 40 ms when a former process
left many, a few otherwise. More than are written between two steps under load, so that the gap stays
bounded."""


def update_indexes(connection: sqlite3.Connection) -> bool:
    """Take the next messages in, within the open transaction; return whether some are left."""
    tx = SqliteTransaction(connection)
    [[newest]] = tx.all("mail.index_step", {"limit": STEP})
    if newest is None:
        return False
    for statement in ("mail.index_search", "mail.index_threads", "mail.indexed"):
        tx.run(statement, {"newest": newest})
    return is_behind(connection)


def is_behind(connection: sqlite3.Connection) -> bool:
    """Return whether some message is not taken in yet."""
    [[behind]] = SqliteTransaction(connection).all("mail.index_is_behind")
    return bool(behind)
