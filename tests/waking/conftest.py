"""Rooms over stores of both kinds."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from postroom.stores.mail.store import MailStore
from postroom.stores.runs.ports import RunStores
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from store_kinds import checked, opened, refuse_missing
from waking_room import Room


@pytest.fixture
def stores(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock):
    """Stores in memory, or of the kind that `waking_room.both_engines` gives."""
    if (kind := getattr(request, "param", None)) is None:
        held = SqliteStore.in_memory(clock)
        checked(held.store)
        yield held, held.runs
        held.close()
        return
    refuse_missing(kind)
    with opened(kind, tmp_path, lambda: request.getfixturevalue("postgres_dsn"), clock) as store:
        yield MailStore(store), RunStores(store)


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[Room]:
    mail, runs = stores
    made = Room(store=mail, runs=runs, clock=clock)
    yield made
    await made.close()
