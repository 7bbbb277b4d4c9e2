"""The rounds of a mailbox: started once, stopped for good, never by letting go; a hint of the store makes them look."""

import asyncio
import gc
from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from dispatch_room import (
    ACKED,
    PATIENCE,
    QUEUED,
    AgentUnknown,
    Blocking,
    Counting,
    asked_for,
    enqueue_prepared_dispatch,
    ms,
    turns,
    until,
)
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import LifecycleBusy, StoreError, StoreUnavailable
from postroom.contracts.limits import Limit, LimitScope
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus
from postroom.dispatch.config import MailboxConfig, MailboxLifecycleConfig, StartupRecoveryConfig
from postroom.stores.changes import WORK
from postroom.testing.run_faults import failing, failing_changes, with_parts

TICK = ms(10)
GC_EACH_TICK = MailboxConfig(gc_interval=TICK, sweep_interval=timedelta(seconds=60))
HOUR = timedelta(hours=1)
QUIET = MailboxConfig(poll_interval=HOUR, sweep_interval=HOUR, gc_interval=HOUR)
"""No round starts by itself: each discovery comes from a hint or a retry."""


def attempts(max_attempts, **settings):
    """Return a start with this many attempts to recover, one right after the other."""
    recovery = StartupRecoveryConfig(max_attempts=max_attempts, retry_delay=timedelta(0))
    return MailboxLifecycleConfig(startup_recovery=recovery, **settings)


def watched(room, failures=0):
    """Return a mailbox whose first recoveries fail this often, and their number: each looks once for ended runs."""
    counts, look = Counter(), "unreconciled_dispatches"
    flaky = failing(
        room.stores.dispatches,
        before={look: [True] * failures},
        counts=counts,
        error=lambda method: StoreUnavailable("injected startup recovery failure"),
    )
    mailbox = room.mailbox(AgentUnknown(), stores=with_parts(room.stores, dispatches=flaky))
    return mailbox, lambda: counts[look]


class HeldPurge:
    """A queue whose removal of old rows can be held in the middle, and is not broken off when it is stubborn."""

    storage_identity = None

    def __init__(self, dispatches):
        self._dispatches = dispatches
        self.entered, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.stubborn = False

    def __getattr__(self, name):
        return getattr(self._dispatches, name)

    async def purge_terminal(self, **bounds):
        self.entered.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            if self.stubborn:
                await self.gate.wait()
            raise
        return await self._dispatches.purge_terminal(**bounds)


def called_each_tick(room, **settings):
    """Return a mailbox with rounds that call back on each tick, their handle, and the instants of the calls."""
    calls = []
    mailbox = room.mailbox(AgentUnknown(), config=GC_EACH_TICK, **settings)
    config = MailboxLifecycleConfig(maintenance_callback=lambda: calls.append(room.clock.now()))
    return mailbox, mailbox.start_lifecycle(config), calls


async def test_start_lifecycle_ready_fails_when_startup_recovery_fails(room):
    mailbox, recoveries = watched(room, failures=1)
    with pytest.raises(StoreError, match="injected startup recovery failure"):
        await mailbox.start_lifecycle_ready(attempts(1))
    assert not mailbox.lifecycle_is_running()
    assert recoveries() == 1
    await turns()
    assert room.clock.sleeping == 0, "no round may be left that waits for its time"
    handle = await mailbox.start_lifecycle_ready(attempts(1))
    assert handle.is_running
    await handle.shutdown()


async def test_start_lifecycle_ready_retries_startup_recovery_until_ready(room):
    mailbox, recoveries = watched(room, failures=1)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "recover")
    handle = await mailbox.start_lifecycle_ready(attempts(2))
    assert recoveries() == 2
    assert "'agent' is not registered" in (await room.given_up(queued)).last_error
    await handle.shutdown()
    assert not handle.is_running
    assert not mailbox.lifecycle_is_running()


async def all_started(start):
    """Start the rounds many times at once; return the handles."""
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        starters = [group.create_task(start()) for _ in range(32)]
    handles = [starter.result() for starter in starters]
    assert all(handle.is_running for handle in handles)
    return handles


async def test_start_lifecycle_ready_serializes_concurrent_recovery(room):
    mailbox, recoveries = watched(room)
    handles = await all_started(mailbox.start_lifecycle_ready)
    assert recoveries() == 1
    await handles[0].shutdown()
    assert not any(handle.is_running for handle in handles)


async def test_concurrent_start_lifecycle_is_idempotent(room):
    mailbox, recoveries = watched(room)

    async def start():
        await asyncio.sleep(0)
        return mailbox.start_lifecycle()

    handles = await all_started(start)
    await until(recoveries)
    await turns()
    assert recoveries() == 1
    await handles[0].shutdown()
    assert not any(handle.is_running for handle in handles)


async def test_start_lifecycle_does_not_bypass_ready_transition(room):
    mailbox, recoveries = watched(room)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        ready = group.create_task(mailbox.start_lifecycle_ready(attempts(1, startup_delay=ms(75))))
        await until(lambda: room.clock.sleeping == 1)
        with pytest.raises(LifecycleBusy, match="already being started or closed"):
            mailbox.start_lifecycle()
        room.passes(milliseconds=74)
        await turns()
        assert (recoveries(), mailbox.lifecycle_is_running()) == (0, False)
        room.passes(milliseconds=1)
    await turns()
    assert recoveries() == 1
    assert mailbox.start_lifecycle().is_running, "what runs already is no transition"
    await ready.result().shutdown()
    assert not mailbox.lifecycle_is_running()


async def test_start_lifecycle_is_idempotent_and_drop_does_not_abort_recovery(room):
    mailbox, recoveries = watched(room)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "recover")
    handle, duplicate = (
        mailbox.start_lifecycle(MailboxLifecycleConfig(startup_delay=TICK)),
        mailbox.start_lifecycle(),
    )
    assert handle.is_running
    assert duplicate.is_running
    del handle, duplicate
    gc.collect()
    await turns()
    assert recoveries() == 0, "recovery waits for its delay"
    room.clock.advance(TICK)
    await until(lambda: recoveries() == 1)
    await room.given_up(queued)
    later = mailbox.start_lifecycle()
    await turns()
    assert recoveries() == 1, "the rounds that are made already were meant"
    await later.shutdown()
    assert not later.is_running


async def test_start_lifecycle_explicit_abort_allows_restart(room):
    mailbox = room.mailbox(AgentUnknown())
    for ends_at_once in (False, True, False):
        handle = mailbox.start_lifecycle()
        assert handle.is_running
        if ends_at_once:
            handle.abort()
        else:
            await handle.shutdown()
        assert not handle.is_running


async def test_shutdown_ends_a_recovery_that_has_not_begun(room):
    mailbox, recoveries = watched(room)
    handle = mailbox.start_lifecycle(MailboxLifecycleConfig(startup_delay=timedelta(seconds=5)))
    await turns()
    await handle.shutdown()
    room.passes(seconds=5)
    await turns()
    assert recoveries() == 0, "after shutdown nothing of the lifecycle runs"


async def test_start_lifecycle_is_refused_while_it_is_being_stopped(room):
    held = HeldPurge(room.stores.dispatches)
    mailbox, handle, _ = called_each_tick(room, stores=with_parts(room.stores, dispatches=held))
    await turns()
    held.gate.clear()
    held.stubborn = True
    room.clock.advance(TICK)
    await until(held.entered.is_set)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        stopping = group.create_task(handle.shutdown())
        await turns()
        try:
            assert not stopping.done(), "a round is still being made"
            with pytest.raises(LifecycleBusy):
                mailbox.start_lifecycle()
        finally:
            held.gate.set()
    assert not handle.is_running


async def test_maintenance_callback_runs_on_gc_tick(room):
    _, handle, calls = called_each_tick(room)
    await turns()
    began = room.clock.now()
    room.clock.advance(TICK - ms(1))
    await turns()
    assert calls == [], "the first tick is one interval after the start"
    for number, span in enumerate((ms(1), TICK), start=1):
        room.clock.advance(span)
        await until(lambda number=number: len(calls) == number)
    assert calls == [began + 10, began + 20]
    await handle.shutdown()


async def test_a_sweep_that_fails_is_repeated_after_the_pause_of_a_poll_until_it_succeeds(room):
    sweeps, executor = Counter(), Counting()
    failed = failing_changes(room.stores, before={"reclaim": [True] * 3}, counts=sweeps)
    often = MailboxConfig(sweep_interval=HOUR, poll_interval=timedelta(seconds=1), gc_interval=HOUR)
    mailbox = room.mailbox(executor, stores=failed, config=often)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "x")
    await room.stores.dispatches.claim("t", "crashed-consumer", lease_ms=1_000)
    handle = await mailbox.start_lifecycle_ready()
    await turns()
    for number, pause in enumerate((HOUR, *3 * [timedelta(seconds=1)]), start=1):
        room.clock.advance(pause - ms(1))
        await turns()
        assert sweeps["reclaim"] == number - 1, "the store is asked only once after each pause"
        room.clock.advance(ms(1))
        await until(lambda number=number: sweeps["reclaim"] == number)
    assert (await room.acked(queued)).attempt_count == 1
    assert executor.run_count == 1
    await handle.shutdown()


async def test_start_lifecycle_handle_drop_keeps_lifecycle_running(room):
    mailbox, handle, calls = called_each_tick(room)
    assert handle.is_running
    del handle
    gc.collect()
    await turns()
    assert mailbox.lifecycle_is_running()
    room.clock.advance(TICK)
    await until(lambda: len(calls) == 1)
    again = mailbox.start_lifecycle()
    assert again.is_running
    await again.shutdown()
    assert not mailbox.lifecycle_is_running()


async def test_lifecycle_shutdown_waits_for_maintenance_to_quiesce(room):
    """Not between two rounds only: a round that is being made when it comes is ended as well."""
    held = HeldPurge(room.stores.dispatches)
    _, handle, calls = called_each_tick(room, stores=with_parts(room.stores, dispatches=held))
    await turns()
    room.clock.advance(TICK)
    await until(lambda: len(calls) == 1)
    held.gate.clear()
    held.entered.clear()
    room.clock.advance(TICK)
    await until(held.entered.is_set)
    async with asyncio.timeout(PATIENCE):
        await handle.shutdown()
    assert not handle.is_running
    held.gate.set()
    for _ in range(4):
        room.clock.advance(TICK)
        await turns()
    assert len(calls) == 1, "after shutdown the callback is not called"


# A signal that work waits is the store's hint; the rounds look at once, and again until it has been begun.


class Waits:
    """The hints of stores, with the longest requested waits; they end by the clock of the test."""

    def __init__(self, wakeups, clock):
        self._wakeups, self._clock, self.asked = wakeups, clock, []

    async def wait(self, at_most):
        timeout_ms = milliseconds(at_most)
        waits = (self._wakeups.wait(timedelta(hours=1)), self._clock.sleep(timeout_ms))
        ends = [asyncio.ensure_future(one) for one in waits]
        await asyncio.sleep(0)  # both wait by now
        self.asked.append(timeout_ms)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()


class Hinted:
    """A mailbox that learns of work by hints alone."""

    def __init__(self, room, executor, stores=None, config=QUIET):
        self.waits = Waits(room.stores.wakeups, room.clock)
        self.stores = room.stores
        stores = with_parts(stores or room.stores, wakeups=self.waits)
        self.mailbox = room.mailbox(executor, stores=stores, config=config)

    async def queued(self, text):
        return await enqueue_prepared_dispatch(self.mailbox, self.stores, "t", text)

    async def waited(self, times):
        """Return when the rounds wait for a hint for the given number of times."""
        await until(lambda: len(self.waits.asked) >= times)

    @asynccontextmanager
    async def listening(self):
        """Make the rounds as long as the block lasts, from the first time they wait for a hint."""
        handle = await self.mailbox.start_lifecycle_ready()
        try:
            await self.waited(1)
            yield
            await self.mailbox.settled()
        finally:
            await handle.shutdown()


async def test_dispatch_signal_loop_claims_and_executes_queued_dispatch(room):
    executor = Counting()
    told = Hinted(room, executor)
    async with told.listening():
        queued = await told.queued("wake")
        assert (await room.acked(queued)).run_response == "ok"
    assert asked_for(executor) == [queued.dispatch_id]


async def test_dispatch_signal_loop_nacks_and_redelivers_after_claim_error(room):
    claims, executor = Counter(), Counting()
    failing_once = failing_changes(room.stores, before={"claim": [True]}, counts=claims)
    told = Hinted(room, executor, stores=failing_once)

    def is_acked(row):
        if claims["claim"] == 1:  # it failed, and the rounds wait for as long as they do without a hint
            room.clock.advance(HOUR)
        return row.status is ACKED

    async with told.listening():
        acked = await room.until(await told.queued("wake"), is_acked)
    assert acked.attempt_count == 0, "a claim that failed is no attempt"
    assert executor.run_count == 1
    assert claims["claim"] >= 2


async def test_dispatch_signal_loop_nacks_when_signal_is_blocked_by_active_claim(room):
    executor = Counting()
    told = Hinted(room, executor)
    await told.queued("active")
    claimed = await room.stores.dispatches.claim("t", "remote-owner", lease_ms=7_200_000)
    async with told.listening():
        before = len(told.waits.asked)
        queued = await told.queued("queued")
        await told.waited(before + 1)
        assert ((await room.row(queued)).status, executor.run_count) == (QUEUED, 0)
        await room.stores.dispatches.ack(claimed.claim_proof)
        room.clock.advance(HOUR)
        assert (await room.acked(queued)).run_response == "ok"
    assert asked_for(executor) == [queued.dispatch_id]


async def test_dispatch_signal_busy_ack_still_runs_queued_dispatch_after_current_finishes(room):
    executor, changes = Blocking(), Counter()
    told = Hinted(room, executor, stores=failing_changes(room.stores, counts=changes))
    async with told.listening():
        first = await told.queued("first")
        assert (await executor.started.get()).trace.dispatch_id == first.dispatch_id
        room.passes(milliseconds=1)
        second = await told.queued("second")
        assert (await room.row(second)).status is QUEUED
        assert executor.started.empty()
        executor.release.set()
        assert (await executor.started.get()).trace.dispatch_id == second.dispatch_id
        await told.mailbox.settled()
    for queued in (first, second):
        row = await room.row(queued)
        assert (row.status, row.run_status) == (ACKED, RunStatus.DONE)
    assert not changes["release"], (
        "the second was claimed, and then found by the poll as a claim without a run"
    )


async def test_work_that_cannot_be_claimed_is_tried_later_and_later(room):
    """Each round in which nothing could be started waits longer than the one before, but at most 1.5 s."""
    failed = failing_changes(room.stores, before={"claim": [True] * 4})
    told = Hinted(room, Counting(), stores=failed, config=replace(QUIET, poll_interval=ms(100)))
    queued = await told.queued("go")
    async with told.listening():
        for number, pause in enumerate((500, 1_000, 1_500, 1_500), start=1):
            await told.waited(number)
            room.passes(milliseconds=pause)
        await room.acked(queued)
    assert told.waits.asked[:4] == [500, 1_000, 1_500, 1_500]


async def test_an_end_behind_which_nothing_is_queued_wakes_nobody_unless_limits_hold_others_back(room):
    for limits, is_told in (((), False), ((Limit(per=LimitScope.ALL, at_once=3),), True)):
        executor = Blocking()
        mailbox = room.mailbox(executor, config=replace(QUIET, limits=limits))
        queued = await enqueue_prepared_dispatch(mailbox, room.stores, f"t-{is_told}", "go")
        await mailbox.poll()
        await executor.started.get()
        with room.stores.store.changes.listen(WORK) as news:
            executor.release.set()
            await room.acked(queued)
            await mailbox.settled()
            assert await news.wait(timedelta(0)) is is_told
