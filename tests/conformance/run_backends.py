"""Run stores of every kind, opened for a test and closed after it; import the fixtures with their test.

A backend that is not there is a skip with its reason, and a failure where `CI` is set.
"""

import importlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio

from postroom.contracts.clock import Clock
from postroom.contracts.run_stores import RunStores
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.stores.store import Stores
from postroom.testing import ManualClock
from store_kinds import checked

BACKENDS = ("sqlite", "postgres")
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
    if find_spec("psycopg") is None:
        return "psycopg is not installed"
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
        _forget(dsn)


def _emptied(dsn: str) -> None:
    """Leave no row in the schema, which costs less than a new one."""
    with psycopg.connect(dsn, autocommit=True) as session:
        tables = session.execute(
            "SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables"
            " WHERE schemaname = %s AND tablename <> %s",
            (SCHEMA, LEDGER),
        ).fetchall()
        session.execute(f"TRUNCATE {', '.join(name for [name] in tables)} CASCADE")


def _forget(dsn: str) -> None:
    """Remove the schema; the server may be one that stays."""
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


@dataclass(frozen=True)
class Place:
    """Where stores of one kind can be opened again and again, empty each time.

    They are opened and closed outside of the event loop.
    """

    backend: str
    folder: Path
    dsn: str = ""

    def prepared(self, clock: Clock, *, is_checked: bool = True) -> "Prepared":
        """Return stores to be used; call it outside of the event loop.

        Their changes are checked against the rules of changes, where that is wanted.
        """
        if self.backend == "sqlite":
            path = self.folder / f"postroom-{next(_FILES)}.db"
            held = SqliteStore.open(path, clock=clock, purpose=PURPOSE)
            if is_checked:
                checked(held.store)
            return Prepared(held)
        stored = PostgresStore.open(self.dsn, schema=SCHEMA, clock=clock)
        _emptied(self.dsn)
        if is_checked:
            checked(stored.store)
        return Prepared(stored)


@dataclass(frozen=True)
class Prepared:
    """Stores that are open."""

    held: Stores

    def close(self) -> None:
        self.held.close()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[RunStores]:
        """Give the stores, for as long as the block lasts."""
        yield self.held.runs


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
