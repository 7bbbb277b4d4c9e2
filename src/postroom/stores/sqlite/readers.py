"""A small pool of reading threads; each has its own connection, and one consistent view per call."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from postroom.contracts.errors import StoreFull
from postroom.stores.pending_changes import LookingThreads
from postroom.stores.sqlite.connection import connect, connect_unshared, translated
from postroom.stores.sqlite.own_files import OwnFiles

T = TypeVar("T")


class Readers:
    """Runs reads off the event loop, each in a read transaction."""

    def __init__(self, path: Path, *, count: int = 2, files: OwnFiles | None = None) -> None:
        """With `files`, no connection is opened after others have changed them."""
        self._path = path
        self._files = files
        self._own = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._threads = LookingThreads(count)

    async def submit(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Run `look` in one consistent view and return its answer.

        Raises:
            StoreUnavailable: The store is closed, or did not answer in time.
        """
        return await self._threads.submit(partial(self._run, look))

    async def submit_free(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` outside of a transaction, for copies that must not block the writer.

        Raises:
            StoreUnavailable: The store is closed, or did not answer in time.
        """
        return await self._threads.submit(lambda: self._run_free(work))

    def begin(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run `work` outside of a transaction without waiting for it; a failure is logged.

        Raises:
            StoreUnavailable: The store is closed.
        """
        self._threads.begin(lambda: self._run_free(work))

    def close(self) -> None:
        """Finish active reads and close every connection; a repeated call has no effect."""
        self._threads.close()
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _run(self, look: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with translated():
                return _looked(self._connection(), look)
        except StoreFull:
            # On a full disk no reader can join the log. No process writes then, so the file is read alone, by
            # a new connection for each read, which sees later writes once there is space.
            with translated(), closing(connect_unshared(self._path)) as connection:
                return _looked(connection, look)

    def _run_free(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with translated():
            return work(self._connection())

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            if self._files is not None:
                self._files.refuse_changed()
            connection = connect(self._path, read_only=True)
            self._own.connection = connection
            self._connections.append(connection)
        return connection


def _looked(connection: sqlite3.Connection, look: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN")
    try:
        return look(connection)
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
