"""A gateway over a store: SQLite, on which every change is run twice, and PostgreSQL where a test asks for it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from conformance.run_backends import Place, Prepared
from gateway_room import Room
from postroom.testing import ManualClock
from store_kinds import refuse_missing


@pytest.fixture
def prepared_stores(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Prepared]:
    """Empty stores on SQLite, or of the kind that `gateway_room.both_engines` gives."""
    kind = getattr(request, "param", "sqlite")
    refuse_missing(kind)
    dsn = request.getfixturevalue("postgres_dsn") if kind == "postgres" else ""
    prepared = Place(kind, tmp_path, dsn).prepared(clock)
    yield prepared
    prepared.close()


@pytest_asyncio.fixture
async def room(prepared_stores: Prepared, clock: ManualClock) -> AsyncIterator[Room]:
    made = Room(stores=prepared_stores.held.chat, runs=prepared_stores.held.runs, clock=clock)
    yield made
    await made.close()
