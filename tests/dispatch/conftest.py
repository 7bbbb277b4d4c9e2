"""Mailboxes over stores of every kind, moved by one clock, closed when the test ends."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pytest_asyncio

from conformance import run_backends
from postroom.contracts.executor import RunDispatchExecutor
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.live import LocalLiveChannels
from postroom.stores.memory import MemoryRunStores
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

run_place = run_backends.run_place
prepared_stores = run_backends.prepared_stores
run_stores = run_backends.run_stores


@dataclass
class Room:
    """Stores, a clock, live channels, and the mailboxes that a test opens over them."""

    stores: RunStores
    clock: ManualClock
    live: LocalLiveChannels
    opened: list[Mailbox] = field(default_factory=list)

    def mailbox(self, executor: RunDispatchExecutor, *, stores: Any = None, **settings: Any) -> Mailbox:
        """Return a mailbox whose rounds are not started; it is closed after the test."""
        given: dict[str, Any] = {
            "consumer_id": "test-consumer",
            "live": self.live,
            "timer": self.clock,
            "random": Random(len(self.opened)),
        }
        mailbox = Mailbox(executor, stores or self.stores, **(given | settings))
        self.opened.append(mailbox)
        return mailbox

    async def close(self) -> None:
        for mailbox in self.opened:
            await mailbox.aclose(timedelta(0))


@pytest_asyncio.fixture
async def room(run_stores: RunStores, clock: ManualClock) -> AsyncIterator[Room]:
    """A room over stores of each kind in turn."""
    made = Room(stores=run_stores, clock=clock, live=LocalLiveChannels(timer=clock))
    yield made
    await made.close()


@pytest_asyncio.fixture
async def memory_room(clock: ManualClock) -> AsyncIterator[Room]:
    """A room over memory, for what touches no store."""
    made = Room(stores=MemoryRunStores(clock), clock=clock, live=LocalLiveChannels(timer=clock))
    yield made
    await made.close()
