"""Reads facts about database files that no server has open."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from postroom.stores import outline
from postroom.stores.mail.check_values import damaged_messages
from postroom.stores.outline import Outline, StoreIdentity, read_identity
from postroom.stores.sqlite.connection import SqliteTransaction, connect, translated

T = TypeVar("T")
_PAGE: Final = 500


def read_outline(connection: sqlite3.Connection) -> Outline:
    """Return a description of a database without its data."""
    return outline.read_outline(
        SqliteTransaction(connection), lambda text: int(connection.execute(text).fetchone()[0])
    )


def look_into_file(file: Path, look: Callable[[sqlite3.Connection], T]) -> T:
    """Read a database file that no server uses, and return the result of `look`; the call blocks.

    Raises:
        StoreError: The file cannot be read.
    """
    with translated():
        connection = connect(file, read_only=True)
        try:
            return look(connection)
        finally:
            connection.close()


def outline_of_file(file: Path) -> Outline:
    """Return a description of a database file that no server uses; the call blocks.

    Raises:
        StoreError: The file cannot be read.
    """
    return look_into_file(file, read_outline)


def damaged_messages_of_file(file: Path) -> list[int] | None:
    """Return the ids of damaged messages, or None if the database has no check values; the call blocks.

    Raises:
        StoreError: The file cannot be read.
    """

    def look(connection: sqlite3.Connection) -> list[int] | None:
        columns = connection.execute("SELECT name FROM pragma_table_info('messages')")
        if ("check_value",) not in map(tuple, columns):
            return None
        damaged = list[int]()
        last: int | None = 0
        while last is not None:
            numbers, last = damaged_messages(SqliteTransaction(connection), after=last, limit=_PAGE)
            damaged += numbers
        return damaged

    return look_into_file(file, look)


def identity_of_file(file: Path, slugs: Sequence[str]) -> StoreIdentity | None:
    """Return the identity of a store, or None if the schema of the file is too old; the call blocks.

    Raises:
        StoreError: The file cannot be read.
    """

    def look(connection: sqlite3.Connection) -> StoreIdentity | None:
        is_told = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'store_identity'").fetchone()
        return read_identity(SqliteTransaction(connection), slugs) if is_told else None

    return look_into_file(file, look)
