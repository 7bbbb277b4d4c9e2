"""The outline of a database in SQLite, of a server or of a file that no server uses."""

import sqlite3
from pathlib import Path

from postroom.contracts.transactions import Outline
from postroom.stores import outline
from postroom.stores.sqlite.connection import connect, translated
from postroom.stores.sqlite.sql_transaction import SqliteTransaction


def outline_of(connection: sqlite3.Connection) -> Outline:
    """Look at a database."""
    return outline.outline_of(
        SqliteTransaction(connection), lambda text: int(connection.execute(text).fetchone()[0])
    )


def outline_of_file(file: Path) -> Outline:
    """Look at a database that no server uses. Blocks.

    Raises:
        StoreError: it cannot be read.
    """
    with translated():
        connection = connect(file, read_only=True)
        try:
            return outline_of(connection)
        finally:
            connection.close()
