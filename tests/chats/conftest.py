"""A gateway over stores of every kind."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from conformance import run_backends
from gateway_room import Room
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock

postgres_dsn = run_backends.postgres_dsn
run_place = run_backends.run_place


@pytest.fixture
def gateway_stores(run_place, clock):
    """Stores of runs and chats in one place, of each kind in turn."""
    if run_place.backend == "sqlite":
        held = SqliteStore.open(run_place.folder / "gateway.db", clock=clock, purpose="test")
        yield held.runs, held.chat
        held.close()
    else:  # memory and PostgreSQL are opened inside of the loop
        yield run_place.prepared(clock), None


@pytest_asyncio.fixture
async def room(gateway_stores, clock: ManualClock) -> AsyncIterator[Room]:
    """A room over stores of each kind in turn."""
    runs, chat = gateway_stores
    if chat is None:
        async with runs.opened() as stores:
            made = Room(stores=stores.chat, runs=stores, clock=clock)
            yield made
            await made.close()
        return
    made = Room(stores=chat, runs=runs, clock=clock)
    yield made
    await made.close()
