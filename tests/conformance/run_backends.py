"""Run stores of every kind, opened for a test and closed after it; import the fixtures with their test."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from postroom.contracts.clock import Clock
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.runs.ports import RunStores
from postroom.stores.stores import Stores
from postroom.testing import ManualClock
from sqlite_files import open_new
from store_kinds import KINDS, SCHEMA, checked, empty, refuse_missing

_FILES = count(1)


@dataclass(frozen=True)
class Place:
    """Opens stores of one kind repeatedly, empty each time.

    They are opened and closed outside of the event loop.
    """

    backend: str
    folder: Path
    dsn: str = ""

    def prepared(self, clock: Clock, *, is_checked: bool = True) -> "Prepared":
        """Return stores to be used; call it outside of the event loop.

        Their changes are checked against the rules of changes, if the test asks for it.
        """
        if self.backend == "sqlite":
            path = self.folder / f"postroom-{next(_FILES)}.db"
            held = open_new(path, clock)
            if is_checked:
                checked(held.store)
            return Prepared(held)
        stored = PostgresStore.open(self.dsn, schema=SCHEMA, clock=clock)
        empty(self.dsn)
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


@pytest.fixture(params=KINDS)
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
