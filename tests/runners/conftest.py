"""A room on one SQLite file, as a server has it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from runners.fake_remote import FakeRemote
from runners.room import RunnerRoom
from runtime.endpoint import FakeEndpoint
from sqlite_files import open_new


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    held = open_new(tmp_path / "postroom.db", clock)
    yield held
    held.close()


@pytest_asyncio.fixture
async def room(store: SqliteStore, clock: ManualClock) -> AsyncIterator[RunnerRoom]:
    made = RunnerRoom(store=store, runs=store.runs, clock=clock)
    yield made
    await made.end()


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[FakeEndpoint]:
    async with FakeEndpoint().serving() as serving:
        yield serving


@pytest_asyncio.fixture
async def remote() -> AsyncIterator[FakeRemote]:
    async with FakeRemote().serving() as serving:
        yield serving
