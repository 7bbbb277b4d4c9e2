"""A database in memory, for simulations, that executes changes immediately on the calling thread."""

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from postroom.stores.sqlite.connection import SqliteTransaction, store_error
from postroom.stores.sqlite.engine import new_in_memory

T = TypeVar("T")


class InlineDatabase:
    """Executes each change immediately.

    All changes since `begin` are one SQLite transaction, and can be undone.
    """

    def __init__(self) -> None:
        self._connection = new_in_memory()

    def begin(self) -> None:
        """Begin a transaction, which `keep` or `undo` ends."""
        self._connection.execute("BEGIN")

    def keep(self) -> None:
        """Keep all changes since `begin`."""
        self._connection.execute("COMMIT")

    def undo(self) -> None:
        """Undo all changes since `begin`, so that the next simulation starts with the same rows."""
        self._connection.execute("ROLLBACK")

    def rows(self, statement: str, values: tuple[object, ...] = ()) -> list[Any]:
        """Return the rows of a query that is used only by simulations."""
        return self._connection.execute(statement, values).fetchall()

    def read(self, look: Callable[[SqliteTransaction], T]) -> T:
        """Run a read.

        Raises:
            StoreError: The database refused the read.
        """
        try:
            return look(SqliteTransaction(self._connection))
        except sqlite3.Error as error:
            raise store_error(error) from error

    def write(
        self, change: Callable[[SqliteTransaction], T], *, runs: int = 1, keeps: bool = True
    ) -> tuple[T, bool]:
        """Run a change `runs` times; return its result, and whether it wrote rows.

        Keep the writes of the last run or, if `keeps` is False, undo them, which simulates a failed commit.

        Raises:
            StoreError: The database refused the change; none of its writes are kept.
        """
        connection = self._connection
        before = connection.total_changes
        for left in range(runs - 1, -1, -1):
            connection.execute("SAVEPOINT change")
            try:
                done = change(SqliteTransaction(connection))
                if left or not keeps:
                    connection.execute("ROLLBACK TO change")
            except BaseException as error:
                connection.execute("ROLLBACK TO change")
                if isinstance(error, sqlite3.Error):
                    raise store_error(error) from error
                raise
            finally:
                connection.execute("RELEASE change")
        return done, keeps and connection.total_changes != before
