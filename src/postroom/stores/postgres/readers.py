"""A small pool of reading threads; each has its own connection, and one consistent view per call."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

from postroom.contracts.errors import StoreUnavailable
from postroom.stores.pending_changes import LookingThreads
from postroom.stores.postgres.connection import Address, Connection
from postroom.stores.postgres.errors import ConnectionLost, Contended, unreachable
from postroom.stores.postgres.sql_transaction import PostgresTransaction

T = TypeVar("T")

TRIES: Final = 3
"""Number of attempts of a read whose connection was lost; a read changes nothing."""
_END_WITHIN: Final = timedelta(seconds=5)
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Readers:
    """Runs reads off the event loop, each in a read transaction."""

    def __init__(self, address: Address, *, count: int) -> None:
        self._address = address
        self._own = threading.local()
        self._connections: set[Connection] = set()
        self._threads = LookingThreads(count)

    async def submit(self, look: Callable[[PostgresTransaction], T]) -> T:
        """Run `look` in one consistent view and return its answer.

        Raises:
            StoreUnavailable: The store is closed, or did not answer in time.
        """
        return await self._threads.submit(lambda: self._run(look))

    def close(self) -> None:
        """Finish active reads and close every connection; a read that takes too long is cut off."""
        alarm = threading.Timer(_END_WITHIN.total_seconds(), self._cut_all)
        alarm.start()
        self._threads.close()
        alarm.cancel()
        while self._connections:
            self._connections.pop().close()

    def _run(self, look: Callable[[PostgresTransaction], T]) -> T:
        for _ in range(TRIES):
            connection = self._connection()
            try:
                return self._looked(connection, look)
            except ConnectionLost as error:
                self._own.connection = None
                self._connections.discard(connection)
                connection.close()
                failure = unreachable(error)
                failure.__cause__ = error
        raise failure

    def _looked(self, connection: Connection, look: Callable[[PostgresTransaction], T]) -> T:
        transaction = PostgresTransaction(connection)
        connection.begin(_BEGIN)
        try:
            found = look(transaction)
            transaction.refuse_failed()
        except ConnectionLost:
            raise
        except Contended as error:
            connection.undo()
            raise StoreUnavailable(f"PostgreSQL cancelled the read: {error}") from error
        except BaseException:
            connection.undo()
            raise
        connection.send("COMMIT")
        connection.flush()  # no need to wait for the end of a read
        return found

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = Connection(self._address)
            self._connections.add(connection)
        return connection

    def _cut_all(self) -> None:
        for connection in tuple(self._connections):
            connection.cut()
