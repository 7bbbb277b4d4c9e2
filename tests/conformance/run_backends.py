"""Run stores of every kind, opened for a test and closed after it; import the fixtures with their test.

A backend that is not there is a skip with its reason, and a failure where `CI` is set.
"""

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from postroom.contracts.clock import Clock
from postroom.contracts.run_stores import RunStores
from postroom.stores.memory import MemoryRunStores
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock

BACKENDS = ("memory", "sqlite", "postgres")
PURPOSE = "test"
SCHEMA = f"test_{uuid4().hex}"
LEDGER = "schema_migrations"
_FILES = count(1)


def missing(backend: str) -> str | None:
    """Say why there are no stores of this kind, or None."""
    if backend == "sqlite" and not hasattr(SqliteStore, "runs"):
        return "SqliteStore has no runs"
    if backend != "postgres":
        return None
    if find_spec("asyncpg") is None:
        return "asyncpg is not installed"
    if not hasattr(importlib.import_module("postroom.stores.postgres"), "PostgresRunStores"):
        return "postroom.stores.postgres has no PostgresRunStores"
    reason: str | None = importlib.import_module("postgres_server").missing_postgres()
    return reason


def refuse_missing(backend: str) -> None:
    """End the test when there are no stores of this kind."""
    if reason := missing(backend):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """A server for all tests of this process."""
    with importlib.import_module("postgres_server").running_postgres() as dsn:
        quick = f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20synchronous_commit%3Doff"
        yield quick  # what a power cut would lose is no promise of this suite, and a sync takes most of its time
        asyncio.run(_forget(dsn))


async def _emptied(dsn: str) -> None:
    """Leave no row in the schema, which costs less than a new one."""
    session = await importlib.import_module("asyncpg").connect(dsn)
    try:
        tables = await session.fetch(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = $1 AND tablename <> $2",
            SCHEMA,
            LEDGER,
        )
        await session.execute(";".join(f"DELETE FROM {name}" for [name] in tables))
    finally:
        await session.close()


async def _forget(dsn: str) -> None:
    """Remove the schema; the server may be one that stays."""
    session = await importlib.import_module("asyncpg").connect(dsn)
    try:
        await session.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    finally:
        await session.close()


@dataclass(frozen=True)
class Place:
    """Where stores of one kind can be opened again and again, empty each time.

    What is on disk is opened and closed outside of the event loop, what is behind a connection inside.
    """

    backend: str
    folder: Path
    dsn: str = ""

    def prepared(self, clock: Clock) -> "Prepared":
        """Return stores to be used; call it outside of the event loop."""
        if self.backend == "memory":
            return Prepared(stores=MemoryRunStores(clock))
        if self.backend == "sqlite":
            path = self.folder / f"postroom-{next(_FILES)}.db"
            held = SqliteStore.open(path, clock=clock, purpose=PURPOSE)
            return Prepared(stores=held.runs, close=held.close)
        kind: Any = importlib.import_module("postroom.stores.postgres").PostgresRunStores

        async def connect() -> Any:
            stores = await kind.open(self.dsn, schema=SCHEMA, clock=clock)
            await _emptied(self.dsn)
            return stores

        return Prepared(connect=connect)


@dataclass(frozen=True)
class Prepared:
    """Stores that are open, or can be once a loop runs."""

    stores: RunStores | None = None
    close: Callable[[], None] = lambda: None
    connect: Callable[[], Awaitable[Any]] | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[RunStores]:
        """Give the stores, for as long as the block lasts."""
        if self.connect is None:
            assert self.stores is not None
            yield self.stores
            return
        stores = await self.connect()
        try:
            yield stores
        finally:
            await stores.close()


@pytest.fixture(params=BACKENDS)
def run_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where stores can be opened; a test that uses it runs once for every kind."""
    refuse_missing(request.param)
    dsn = request.getfixturevalue("postgres_dsn") if request.param == "postgres" else ""
    return Place(request.param, tmp_path, dsn)


@pytest.fixture
def prepared_stores(run_place: Place, clock: ManualClock) -> Iterator[Prepared]:
    prepared = run_place.prepared(clock)
    yield prepared
    prepared.close()


@pytest_asyncio.fixture
async def run_stores(prepared_stores: Prepared) -> AsyncIterator[RunStores]:
    """Empty stores that go by `clock`."""
    async with prepared_stores.opened() as stores:
        yield stores
