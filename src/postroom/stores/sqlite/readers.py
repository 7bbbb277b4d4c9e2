"""A small pool of threads that read: each has a connection of its own and sees one consistent view a call."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from postroom.contracts.errors import StoreFull
from postroom.stores.pending_changes import LookingThreads
from postroom.stores.sqlite.connection import connect, connect_unshared, translated
from postroom.stores.sqlite.own_files import OwnFiles

T = TypeVar("T")


class Readers:
    """Runs look-ups off the event loop, each in a read transaction."""

    def __init__(self, path: Path, *, count: int = 2, files: OwnFiles | None = None) -> None:
        """Where there are `files`, no connection is opened once they were changed by others."""
        self._path = path
        self._files = files
        self._own = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._threads = LookingThreads(count)

    async def submit(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Run `look` in one consistent view and return its answer.

        Raises:
            StoreUnavailable: closed, or not answering in time.
        """
        return await self._threads.submit(lambda: self._run(look))

    async def submit_free(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` outside of a transaction, for copies that must let the writer go on.

        Raises:
            StoreUnavailable: closed, or not answering in time.
        """
        return await self._threads.submit(lambda: self._run_free(work))

    def begin(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Have `work` done outside of a transaction, and wait for nothing; that it fails is logged.

        Raises:
            StoreUnavailable: closed.
        """
        self._threads.begin(lambda: self._run_free(work))

    def close(self) -> None:
        """Finish what runs and close every connection; harmless when done twice."""
        self._threads.close()
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _run(self, look: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with translated():
                return _looked(self._connection(), look)
        except StoreFull:
            # On a full disk not even a reader can join in. Nobody writes then: the file is read by itself, by
            # a connection for this look alone, so that the next sees what was written once there is room.
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
