"""A gateway over stores of every kind."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from conformance import run_backends
from gateway_room import Room
from postroom.testing import ManualClock

run_place = run_backends.run_place


@pytest.fixture
def prepared_stores(run_place: run_backends.Place, clock: ManualClock) -> Iterator[run_backends.Prepared]:
    """Stores of each kind; on SQLite every change is run twice."""
    prepared = run_place.prepared(clock)
    yield prepared
    prepared.close()


@pytest_asyncio.fixture
async def room(prepared_stores: run_backends.Prepared, clock: ManualClock) -> AsyncIterator[Room]:
    """A room over stores of each kind in turn."""
    made = Room(stores=prepared_stores.held.chat, runs=prepared_stores.held.runs, clock=clock)
    yield made
    await made.close()
