"""Run stores on PostgreSQL for a test, and a second session for changes that no store would make."""

import asyncio
from collections.abc import Sequence
from typing import Any

from postroom.contracts.clock import Clock
from postroom.stores.postgres.connection import Address, Connection
from postroom.stores.postgres.engine import PostgresEngine
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.runs.ports import RunStores


class OpenedRuns(RunStores):
    """Run stores of one schema, as one process sees it; opened and closed outside of the event loop."""

    def __init__(self, kept: PostgresStore) -> None:
        super().__init__(kept.store)
        self.kept = kept

    @classmethod
    async def open(cls, dsn: str, *, schema: str = "postroom", clock: Clock | None = None) -> "OpenedRuns":
        return cls(await asyncio.to_thread(PostgresStore.open, dsn, schema=schema, clock=clock, readers=2))

    @property
    def engine(self) -> PostgresEngine:
        assert isinstance(self.kept.store.engine, PostgresEngine)
        return self.kept.store.engine

    async def listening(self) -> None:
        """Return when other processes are heard."""
        assert await asyncio.to_thread(self.engine.notifications.is_listening.wait, 20)

    async def close(self) -> None:
        await asyncio.to_thread(self.kept.close)


class Session:
    """A session of the same schema."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, dsn: str, schema: str) -> "Session":
        return cls(await asyncio.to_thread(Connection, Address(dsn=dsn, schema=schema)))

    async def rows(self, statement: str, *values: object) -> list[Sequence[Any]]:
        def asked() -> list[Sequence[Any]]:
            answer = self._connection.send(statement, values)
            self._connection.wait()
            return answer.rows

        return await asyncio.to_thread(asked)

    async def run(self, statement: str) -> None:
        await asyncio.to_thread(self._connection.run_script, statement)

    async def end(self) -> None:
        await asyncio.to_thread(self._connection.close)
