"""A signal that work waits is the store's hint; the rounds look at once, and again until it has been begun."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from dispatch_reading import ms, row_of
from dispatch_room import (
    Blocking,
    Counting,
    RunActivation,
    dispatch_in,
    dispatch_that,
    enqueue_prepared_dispatch,
    eventually,
)
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.limits import Limit, LimitScope
from postroom.contracts.runs import RunStatus
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.changes import WORK
from postroom.stores.runs.ports import RunStores, Wakeups
from postroom.testing import ManualClock
from postroom.testing.run_faults import failing_changes, with_parts

HOUR = timedelta(hours=1)
QUIET = MailboxConfig(poll_interval=HOUR, sweep_interval=HOUR, gc_interval=HOUR)
"""No round comes by itself: what is found was hinted at, or tried again."""


class Waits:
    """The hints of stores, with the longest waits that were asked for; they end by the clock of the test."""

    def __init__(self, wakeups: Wakeups, clock: ManualClock) -> None:
        self._wakeups = wakeups
        self._clock = clock
        self.asked: list[int] = []

    async def wait(self, timeout_ms: int) -> None:
        ends = [
            asyncio.ensure_future(self._wakeups.wait(3_600_000)),
            asyncio.ensure_future(self._clock.sleep(timeout_ms)),
        ]
        await asyncio.sleep(0)  # both wait by now
        self.asked.append(timeout_ms)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()


@dataclass(frozen=True)
class Hinted:
    """A mailbox that learns of work by hints alone."""

    mailbox: Mailbox
    waits: Waits

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Make the rounds as long as the block lasts, from the first time they wait for a hint."""
        handle = await self.mailbox.start_lifecycle_ready()
        try:
            await self.waited(1)
            yield
            await self.mailbox.settled()
        finally:
            await handle.shutdown()

    async def waited(self, times: int) -> None:
        """Return when the rounds wait for a hint for so many times."""

        async def look() -> bool:
            return len(self.waits.asked) >= times

        await eventually(look)


def hinted(room, executor: Any, *, stores: RunStores | None = None) -> Hinted:
    waits = Waits(room.stores.wakeups, room.clock)
    stores = with_parts(stores or room.stores, wakeups=waits)
    mailbox = room.mailbox(executor, stores=stores, consumer_id="hinted-consumer", config=QUIET)
    return Hinted(mailbox, waits)


async def test_dispatch_signal_loop_claims_and_executes_queued_dispatch(room):
    executor = Counting()
    told = hinted(room, executor)
    async with told.listening():
        queued = await enqueue_prepared_dispatch(told.mailbox, room.stores, "thread-signal-loop", "wake")
        acked = await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.ACKED)
    assert acked.run_response == "ok"
    assert [activation.trace.dispatch_id for activation in executor.activations] == [queued.dispatch_id]


async def test_dispatch_signal_loop_nacks_and_redelivers_after_claim_error(room):
    claims: Counter[str] = Counter()
    executor = Counting()
    failing_once = failing_changes(room.stores, before={"claim": [True]}, counts=claims)
    told = hinted(room, executor, stores=failing_once)

    def is_acked(row: RunDispatch) -> bool:
        if claims["claim"] == 1:  # it failed, and the rounds wait for as long as they do without a hint
            room.clock.advance(HOUR)
        return row.status is RunDispatchStatus.ACKED

    async with told.listening():
        queued = await enqueue_prepared_dispatch(told.mailbox, room.stores, "thread-signal-redeliver", "wake")
        acked = await dispatch_that(room.stores, queued.dispatch_id, is_acked)
    assert acked.attempt_count == 0, "a claim that failed is no attempt"
    assert executor.run_count == 1
    assert claims["claim"] >= 2


async def test_dispatch_signal_loop_nacks_when_signal_is_blocked_by_active_claim(room):
    executor = Counting()
    told = hinted(room, executor)
    thread_id = "thread-signal-blocked"
    await enqueue_prepared_dispatch(told.mailbox, room.stores, thread_id, "active")
    claimed = await room.stores.dispatches.claim(thread_id, "remote-owner", lease_ms=7_200_000)
    assert claimed is not None
    async with told.listening():
        before = len(told.waits.asked)
        queued = await enqueue_prepared_dispatch(told.mailbox, room.stores, thread_id, "queued")
        await told.waited(before + 1)
        assert (await row_of(room.stores, queued.dispatch_id)).status is RunDispatchStatus.QUEUED
        assert executor.run_count == 0

        await room.stores.dispatches.ack(claimed.claim_proof)
        room.clock.advance(HOUR)
        acked = await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.ACKED)
    assert acked.run_response == "ok"
    assert [activation.trace.dispatch_id for activation in executor.activations] == [queued.dispatch_id]


async def test_dispatch_signal_busy_ack_still_runs_queued_dispatch_after_current_finishes(
    room,
):
    executor = Blocking()
    told = hinted(room, executor)
    thread_id = "thread-signal-busy"
    async with told.listening():
        first = await enqueue_prepared_dispatch(told.mailbox, room.stores, thread_id, "first")
        assert (await executor.started.get()).trace.dispatch_id == first.dispatch_id
        room.clock.advance(ms(1))
        second = await enqueue_prepared_dispatch(told.mailbox, room.stores, thread_id, "second")
        assert (await row_of(room.stores, second.dispatch_id)).status is RunDispatchStatus.QUEUED
        assert executor.started.empty()

        executor.release.set()
        assert (await executor.started.get()).trace.dispatch_id == second.dispatch_id
        await told.mailbox.settled()
    for queued in (first, second):
        row = await row_of(room.stores, queued.dispatch_id)
        assert (row.status, row.run_status) == (RunDispatchStatus.ACKED, RunStatus.DONE)


# Beyond the seed.


async def test_work_that_cannot_be_claimed_is_tried_later_and_later(room):
    """Each round in which nothing could be started waits for longer than the one before."""
    quick = MailboxConfig(poll_interval=ms(100), sweep_interval=HOUR, gc_interval=HOUR)
    waits = Waits(room.stores.wakeups, room.clock)
    failed = failing_changes(room.stores, before={"claim": [True] * 3})
    stores = with_parts(failed, wakeups=waits)
    mailbox = room.mailbox(Counting(), stores=stores, config=quick)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-later-and-later", "go")
    handle = await mailbox.start_lifecycle_ready()
    told = Hinted(mailbox, waits)
    for round_number, pause in enumerate((500, 1_000, 2_000), start=1):
        await told.waited(round_number)
        room.clock.advance(ms(pause))
    await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.ACKED)
    await mailbox.settled()
    await handle.shutdown()
    assert waits.asked[:3] == [500, 1_000, 2_000]


async def test_an_end_behind_which_nothing_is_queued_wakes_nobody_unless_limits_hold_others_back(room):
    for limits, is_told in (((), False), ((Limit(per=LimitScope.ALL, at_once=3),), True)):
        executor = Blocking()
        mailbox = room.mailbox(executor, config=replace(QUIET, limits=limits))
        handle = await mailbox.submit_background(RunActivation.new(f"t-{is_told}", ["go"]))
        await executor.started.get()
        with room.stores.store.changes.listen(WORK) as news:
            executor.release.set()
            await dispatch_in(room.stores, handle.dispatch_id, RunDispatchStatus.ACKED)
            await mailbox.settled()  # on PostgreSQL the end is seen before its writer has told of it
            assert await news.wait(timedelta(0)) is is_told
