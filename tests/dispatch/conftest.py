"""Mailboxes over stores, moved by a common clock, closed when the test ends."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from conformance import run_backends
from dispatch_room import Message, RunDispatch, RunDispatchStatus, RunRecord, dispatch_in, dispatch_that
from postroom.contracts.executor import RunDispatchExecutor
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.live import LocalLiveChannels
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock
from store_kinds import KINDS, refuse_missing

prepared_stores = run_backends.prepared_stores
run_stores = run_backends.run_stores
both_engines = pytest.mark.parametrize("run_place", KINDS, indirect=True)
"""For a test whose outcome locks, types or isolation decide; the others run on SQLite."""


@pytest.fixture
def run_place(request: pytest.FixtureRequest, tmp_path: Path) -> run_backends.Place:
    """Where stores can be opened: on SQLite, or on each engine in turn (`both_engines`)."""
    kind = getattr(request, "param", "sqlite")
    refuse_missing(kind)
    return run_backends.Place(
        kind, tmp_path, request.getfixturevalue("postgres_dsn") if kind == "postgres" else ""
    )


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

    def passes(self, **span: float) -> None:
        """Advance the time by this much."""
        self.clock.advance(timedelta(**span))

    async def row(self, of: Any) -> RunDispatch:
        """Return the dispatch with this id, or that of a submission."""
        row = await self.stores.dispatches.load_dispatch(getattr(of, "dispatch_id", of))
        assert row is not None
        return row

    async def run(self, of: Any) -> RunRecord:
        """Return the run with this id, or that of a submission."""
        run = await self.stores.threads.load_run(getattr(of, "run_id", of))
        assert run is not None
        return run

    async def texts(self, thread_id: str = "t") -> list[str]:
        """Return what a thread's committed messages say, in order."""
        return [message.text() for message in await self.stores.threads.load_messages(thread_id) or ()]

    async def rows(self, thread_id: str = "t") -> dict[str, RunDispatch]:
        """Return all dispatches of a thread by id."""
        return {
            row.dispatch_id: row for row in await self.stores.dispatches.list_dispatches(thread_id, limit=200)
        }

    async def until(self, of: Any, holds: Callable[[RunDispatch], bool]) -> RunDispatch:
        """Return a dispatch as soon as the condition holds for it."""
        return await dispatch_that(self.stores, getattr(of, "dispatch_id", of), holds)

    async def comes_to(self, status: RunDispatchStatus, *of: Any) -> RunDispatch:
        """Return the last of these dispatches as soon as all have this status."""
        for one in of:
            row = await dispatch_in(self.stores, getattr(one, "dispatch_id", one), status)
        return row

    async def acked(self, *of: Any) -> RunDispatch:
        """Return the last of these dispatches as soon as all are acknowledged."""
        return await self.comes_to(RunDispatchStatus.ACKED, *of)

    async def given_up(self, of: Any) -> RunDispatch:
        """Return a dispatch as soon as it is a dead letter."""
        return await self.comes_to(RunDispatchStatus.DEAD_LETTER, of)

    async def failed(self, mailbox: Mailbox, of: Any, times: int = 1) -> RunDispatch:
        """Return a dispatch when this many of its attempts have failed and its mailbox is idle."""
        row = await dispatch_that(self.stores, of.dispatch_id, lambda row: row.attempt_count == times)
        await mailbox.settled()
        return row

    async def place(self, *runs: RunRecord) -> None:
        """Store runs."""
        for run in runs:
            await self.stores.threads.create_run(run)

    async def waits(self, thread_id: str, mode: Any, *words: str) -> None:
        """Store messages that wait on a thread, each with its text as its id, as after the death of a process."""
        messages = [Message.user(word, id=word) for word in words]
        await self.stores.threads.append_pending(thread_id, messages, mode)


@pytest_asyncio.fixture
async def room(run_stores: RunStores, clock: ManualClock) -> AsyncIterator[Room]:
    """A room over empty stores."""
    made = Room(stores=run_stores, clock=clock, live=LocalLiveChannels(timer=clock))
    yield made
    await made.close()
