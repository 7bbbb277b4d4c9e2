"""Dispatch signals: each leads to a try, and is answered so that no queued dispatch is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from dispatch_reading import ms, row_of, run_of, with_queue
from dispatch_room import (
    Blocking,
    Counting,
    dispatch_in,
    enqueue_prepared_dispatch,
    eventually,
)
from postroom.contracts.clock import Clock
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import InvalidSubmission, PostroomError, StoreUnavailable
from postroom.contracts.runs import RunStatus
from postroom.contracts.signals import DispatchSignal
from postroom.dispatch.mailbox import Mailbox
from postroom.testing.run_faults import failing


@dataclass
class SignalQueue:
    """A work queue of signals, in order; it counts deliveries, as engines do, and remembers each answer."""

    clock: Clock
    acked: list[str] = field(default_factory=list)
    nacked: list[tuple[str, int]] = field(default_factory=list)
    pulls_to_fail: int = 0
    failed_pulls: int = 0
    _waiting: list[tuple[int, int, RunDispatch, int]] = field(default_factory=list)
    _order: "count[int]" = field(default_factory=count)

    def push(self, row: RunDispatch, *, deliveries: int = 0, delay_ms: int = 0) -> None:
        self._waiting.append((self.clock.now() + delay_ms, next(self._order), row, deliveries))

    async def pull(self, limit: int, *, wait_ms: int) -> tuple[DispatchSignal, ...]:
        if self.failed_pulls < self.pulls_to_fail:
            self.failed_pulls += 1
            raise StoreUnavailable("the queue of signals is away")
        until = self.clock.now() + wait_ms
        while not (due := self._due()) and self.clock.now() < until:
            await asyncio.sleep(0)
        taken = due[:limit]
        for one in taken:
            self._waiting.remove(one)
        return tuple(
            DispatchSignal(
                thread_id=row.thread_id,
                dispatch_id=row.dispatch_id,
                receipt=Receipt(self, row, deliveries + 1),
            )
            for _, _, row, deliveries in taken
        )

    def _due(self) -> list[tuple[int, int, RunDispatch, int]]:
        return sorted((one for one in self._waiting if one[0] <= self.clock.now()), key=lambda one: one[:2])

    def __len__(self) -> int:
        return len(self._waiting)


@dataclass
class Receipt:
    """Answers the queue once."""

    queue: SignalQueue
    row: RunDispatch
    redelivery_attempts: int | None
    answered: bool = False

    async def ack(self) -> None:
        self._answer()
        self.queue.acked.append(self.row.dispatch_id)

    async def nack(self, delay_ms: int = 0) -> None:
        self._answer()
        self.queue.nacked.append((self.row.dispatch_id, delay_ms))
        self.queue.push(self.row, deliveries=self.redelivery_attempts or 0, delay_ms=delay_ms)

    def _answer(self) -> None:
        assert not self.answered, "a signal is answered once"
        self.answered = True


class SignallingDispatches:
    """A queue of dispatches that puts a signal out for each that is enqueued."""

    storage_identity = None

    def __init__(self, dispatches: Any, signals: SignalQueue) -> None:
        self._dispatches = dispatches
        self._signals = signals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatches, name)

    async def enqueue(self, dispatch: RunDispatch, *, now: int | None = None) -> RunDispatch:
        stored: RunDispatch = await self._dispatches.enqueue(dispatch, now=now)
        self._signals.push(stored)
        return stored


@dataclass(frozen=True)
class Signalled:
    """A mailbox that is told of work by signals alone."""

    mailbox: Mailbox
    stores: Any
    signals: SignalQueue

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve signals as long as the block lasts."""
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(self.mailbox.run_dispatch_signal_loop())
            try:
                yield
            finally:
                serving.cancel()

    async def answered(self, holds: Callable[[SignalQueue], bool]) -> None:
        """Return when the answers so far are as expected."""

        async def look() -> bool:
            return holds(self.signals)

        await eventually(look)

    def signalled(self, event: str) -> float:
        return self.mailbox.metrics.value("postroom_mailbox_dispatch_signal_total", event=event)


def signalled(room, executor: Any, *, dispatches: Any = None) -> Signalled:
    signals = SignalQueue(room.clock)
    stores = with_queue(room.stores, SignallingDispatches(dispatches or room.stores.dispatches, signals))
    mailbox = room.mailbox(executor, stores=stores, signals=signals, consumer_id="signal-consumer")
    return Signalled(mailbox, stores, signals)


async def test_dispatch_signal_loop_claims_and_executes_queued_dispatch(room):
    executor = Counting()
    told = signalled(room, executor)
    queued = await enqueue_prepared_dispatch(told.mailbox, told.stores, "thread-signal-loop", "wake")
    assert executor.run_count == 0

    async with told.listening():
        acked = await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.ACKED)
        await told.answered(lambda signals: bool(signals.acked))
        await told.mailbox.settled()
    assert acked.run_response == "ok"
    assert [activation.trace.dispatch_id for activation in executor.activations] == [queued.dispatch_id]
    assert (told.signals.acked, told.signals.nacked) == ([queued.dispatch_id], [])
    assert len(told.signals) == 0
    assert [told.signalled(event) for event in ("pulled", "ack", "nack", "redelivery")] == [1, 1, 0, 0]


async def test_dispatch_signal_loop_nacks_and_redelivers_after_claim_error(room):
    executor = Counting()
    told = signalled(room, executor, dispatches=failing(room.stores.dispatches, before={"claim": [True]}))
    queued = await enqueue_prepared_dispatch(told.mailbox, told.stores, "thread-signal-redeliver", "wake")

    async with told.listening():
        acked = await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.ACKED)
        await told.answered(lambda signals: bool(signals.acked))
        await told.mailbox.settled()
    assert acked.attempt_count == 0, "a claim that failed is no attempt"
    assert executor.run_count == 1
    assert (told.signals.acked, told.signals.nacked) == ([queued.dispatch_id], [(queued.dispatch_id, 0)])
    assert [told.signalled(event) for event in ("pulled", "ack", "nack", "redelivery")] == [2, 1, 1, 1]


async def test_dispatch_signal_loop_nacks_when_signal_is_blocked_by_active_claim(room):
    executor = Counting()
    told = signalled(room, executor)
    thread_id = "thread-signal-blocked"
    active = await enqueue_prepared_dispatch(told.mailbox, told.stores, thread_id, "active")
    claimed = await room.stores.dispatches.claim(thread_id, "remote-owner", lease_ms=30_000)
    assert claimed is not None
    queued = await enqueue_prepared_dispatch(told.mailbox, told.stores, thread_id, "queued")

    async with told.listening():
        await told.answered(lambda signals: len(signals.nacked) == 1)
        assert (await row_of(room.stores, queued.dispatch_id)).status is RunDispatchStatus.QUEUED
        room.clock.advance(ms(500))
        await told.answered(lambda signals: len(signals.nacked) == 2)
        assert (await row_of(room.stores, queued.dispatch_id)).status is RunDispatchStatus.QUEUED
        assert executor.run_count == 0

        await room.stores.dispatches.ack(claimed.claim_proof)
        room.clock.advance(ms(1_000))
        acked = await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.ACKED)
        await told.answered(lambda signals: len(signals.acked) == 2)
        await told.mailbox.settled()
    assert acked.run_response == "ok"
    assert told.signals.nacked == [(queued.dispatch_id, 500), (queued.dispatch_id, 1_000)]
    assert told.signals.acked == [active.dispatch_id, queued.dispatch_id]
    assert [activation.trace.dispatch_id for activation in executor.activations] == [queued.dispatch_id]
    assert len(told.signals) == 0
    assert [told.signalled(event) for event in ("ack", "delayed_nack", "redelivery")] == [2, 2, 2]


async def test_dispatch_signal_busy_ack_still_runs_queued_dispatch_after_current_finishes(
    room,
):
    executor = Blocking()
    told = signalled(room, executor)
    thread_id = "thread-signal-busy"
    first = await enqueue_prepared_dispatch(told.mailbox, told.stores, thread_id, "first")
    room.clock.advance(ms(1))
    second = await enqueue_prepared_dispatch(told.mailbox, told.stores, thread_id, "second")

    async with told.listening():
        assert (await executor.started.get()).trace.dispatch_id == first.dispatch_id
        await told.answered(lambda signals: len(signals.acked) == 2)
        assert (await row_of(room.stores, first.dispatch_id)).status is RunDispatchStatus.CLAIMED
        assert (await row_of(room.stores, second.dispatch_id)).status is RunDispatchStatus.QUEUED
        assert executor.started.empty()

        executor.release.set()
        assert (await executor.started.get()).trace.dispatch_id == second.dispatch_id
        await told.mailbox.settled()
    for queued in (first, second):
        row = await row_of(room.stores, queued.dispatch_id)
        assert (row.status, row.run_status) == (RunDispatchStatus.ACKED, RunStatus.DONE)
    assert sorted(told.signals.acked) == sorted([first.dispatch_id, second.dispatch_id])
    assert told.signals.nacked == []
    assert len(told.signals) == 0


# Beyond the seed.


@pytest.mark.parametrize("delay_ms", [0, 60_000])
async def test_a_signal_is_acked_when_its_dispatch_has_ended_or_is_not_due_yet(room, delay_ms: int):
    """What is due later is found by the poll for due work; what has ended needs nobody."""
    told = signalled(room, Counting())
    queued = await enqueue_prepared_dispatch(
        told.mailbox, told.stores, "thread-later", "go", available_at=room.clock.now() + delay_ms
    )
    if not delay_ms:
        assert await told.mailbox.cancel(queued.dispatch_id)
    async with told.listening():
        await told.answered(lambda signals: bool(signals.acked))
    assert (told.signals.acked, told.signals.nacked) == ([queued.dispatch_id], [])
    assert (await run_of(room.stores, queued.run_id)).status is (
        RunStatus.CREATED if delay_ms else RunStatus.DONE
    )
    if delay_ms:
        room.clock.advance(ms(delay_ms))
        assert await told.mailbox.poll() == 1
        await told.mailbox.settled()
        assert (await row_of(room.stores, queued.dispatch_id)).status is RunDispatchStatus.ACKED


async def test_a_signal_whose_dispatch_cannot_be_looked_up_comes_again(room):
    executor = Counting()
    told = signalled(
        room, executor, dispatches=failing(room.stores.dispatches, before={"load_dispatch": [True]})
    )
    thread_id = "thread-not-looked-up"
    queued = await enqueue_prepared_dispatch(told.mailbox, told.stores, thread_id, "go")
    claimed = await room.stores.dispatches.claim(thread_id, "remote-owner", lease_ms=30_000)
    assert claimed is not None
    async with told.listening():
        await told.answered(lambda signals: bool(signals.acked))
    assert told.signals.nacked == [(queued.dispatch_id, 0)]
    assert told.signals.acked == [queued.dispatch_id]
    assert executor.run_count == 0


async def test_a_queue_of_signals_that_fails_is_asked_again_after_a_pause(room):
    executor = Counting()
    told = signalled(room, executor)
    told.signals.pulls_to_fail = 2
    queued = await enqueue_prepared_dispatch(told.mailbox, told.stores, "thread-pull-fails", "go")
    async with told.listening():
        for failures in (1, 2):
            await told.answered(lambda signals, failed=failures: signals.failed_pulls == failed)
            await eventually(lambda: truth(room.clock.sleeping == 1))
            assert executor.run_count == 0
            room.clock.advance(ms(250))
        await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.ACKED)
        await told.answered(lambda signals: bool(signals.acked))
        await told.mailbox.settled()
    assert told.signals.acked == [queued.dispatch_id]


async def truth(value: bool) -> bool:
    return value


async def test_a_mailbox_without_signals_refuses_to_serve_them(memory_room):
    mailbox = memory_room.mailbox(Counting())
    with pytest.raises(InvalidSubmission, match="no dispatch signals") as refused:
        await mailbox.run_dispatch_signal_loop()
    assert isinstance(refused.value, PostroomError)
