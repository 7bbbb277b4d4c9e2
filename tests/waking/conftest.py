"""Rooms over stores of both kinds."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from store_kinds import checked
from waking_room import Room


@pytest.fixture(params=["memory", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock):
    if request.param == "memory":
        held = SqliteStore.in_memory(clock)
        checked(held.store)
        yield held, held.runs
        return
    held = SqliteStore.open(tmp_path / "postroom.db", clock=clock, purpose="test")
    yield held, held.runs
    held.close()


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[Room]:
    mail, runs = stores
    made = Room(store=mail, runs=runs, clock=clock)
    yield made
    await made.close()
