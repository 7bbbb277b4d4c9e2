"""Rooms over stores of both kinds."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from store_kinds import checked
from waking_room import Room


@pytest.fixture
def stores(clock: ManualClock):
    held = SqliteStore.in_memory(clock)
    checked(held.store)
    yield held, held.runs
    held.close()


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[Room]:
    mail, runs = stores
    made = Room(store=mail, runs=runs, clock=clock)
    yield made
    await made.close()
