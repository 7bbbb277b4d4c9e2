"""Cancelling by the id of a dispatch, a run or a thread, at every moment: what was cancelled never executes again."""

import asyncio
from datetime import timedelta

import pytest

from dispatch_room import Blocking, Counting, Deaf, Raising, dispatch_in
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import Overloaded
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.runs import (
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.embedded.effects import Ends

IDS = ("dispatch_id", "run_id", "thread_id")


def later(request: RunActivation) -> RunActivation:
    return request.delivered(delay_ms=60_000)


async def ended_as_cancelled(room, result):
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.CANCELLED)
    run = await room.stores.threads.load_run(result.run_id)
    assert (run.status, run.termination.type) == (RunStatus.DONE, TerminationKind.CANCELLED)
    return row


@pytest.mark.parametrize("by", IDS)
async def test_what_is_queued_is_cancelled_by_any_of_its_ids_and_never_executes(room, by):
    executor = Counting()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(later(RunActivation.new("t", ["go"])))
    assert await mailbox.cancel(getattr(result, by))
    await ended_as_cancelled(room, result)
    room.clock.advance(timedelta(hours=1))
    assert await mailbox.poll() == 0
    assert executor.run_count == 0
    assert not await mailbox.cancel(getattr(result, by))


@pytest.mark.parametrize("by", IDS)
async def test_what_waits_for_its_next_attempt_is_cancelled_by_any_of_its_ids(room, by):
    executor = Raising(Overloaded("busy", retry_after_ms=60_000))
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await mailbox.settled()
    assert (await room.stores.dispatches.load_dispatch(result.dispatch_id)).attempt_count == 1
    assert await mailbox.cancel(getattr(result, by))
    await ended_as_cancelled(room, result)
    room.clock.advance(timedelta(hours=1))
    assert await mailbox.poll() == 0
    assert executor.run_count == 1


@pytest.mark.parametrize("by", ["dispatch_id", "run_id"])
async def test_what_is_queued_behind_another_run_is_cancelled_and_that_one_goes_on(room, by):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(RunActivation.new("t", ["first"]))
    await executor.started.get()
    second = await mailbox.submit_background(RunActivation.new("t", ["second"]))
    assert await mailbox.cancel(getattr(second, by))
    await ended_as_cancelled(room, second)
    executor.release.set()
    await mailbox.settled()
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    run = await room.stores.threads.load_run(first.run_id)
    assert run.termination.type is TerminationKind.NATURAL_END
    assert executor.run_count == 1


class Obeying(Deaf):
    """Ends when it is told to, with a failure that would be tried again."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.told = asyncio.Event()

    async def execute(self, activation, sink):
        self.started.set()
        await self.told.wait()
        raise Overloaded("ended in the middle of a call")

    def cancel(self, id):
        self.told.set()
        return True


async def test_a_run_that_fails_as_it_is_cancelled_is_not_tried_again(room):
    executor = Obeying()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.wait()
    assert await mailbox.cancel(result.run_id)
    await mailbox.settled()
    run = await room.stores.threads.load_run(result.run_id)
    assert (run.status, run.termination.type) == (RunStatus.DONE, TerminationKind.CANCELLED)
    assert executor.run_count == 1


class Asking(Deaf):
    """Asks a person."""

    async def execute(self, activation, sink):
        ticket = RunWaitingTicket(ticket_id="c1", tool_call_id="c1", reason="May I?")
        waiting = RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,))
        suspended = TerminationReason(type=TerminationKind.SUSPENDED)
        return AgentRunResult(run_id=activation.run_id, termination=suspended, waiting=waiting)


class CancellingEffects(Ends):
    """Cancels a run as its failure is written."""

    def put_back(self, tx, row):
        self.mailbox.workers.stop(row.run_id)


async def test_a_run_that_is_cancelled_while_its_failure_is_written_does_not_come_again(room):
    executor, effects = Raising(Overloaded("busy", retry_after_ms=60_000)), CancellingEffects()
    mailbox = effects.mailbox = room.mailbox(executor, effects=effects)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await mailbox.settled()
    await ended_as_cancelled(room, result)
    room.clock.advance(timedelta(hours=1))
    assert await mailbox.poll() == 0
    assert executor.run_count == 1


@pytest.mark.parametrize("by", IDS)
async def test_a_run_that_asks_is_cancelled_by_any_of_its_ids(room, by):
    executor = Asking()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await mailbox.settled()
    assert (await room.stores.threads.load_run(result.run_id)).status is RunStatus.WAITING
    assert await mailbox.cancel(getattr(result, by))
    run = await room.stores.threads.load_run(result.run_id)
    assert (run.status, run.termination.type) == (RunStatus.DONE, TerminationKind.CANCELLED)
    assert not await mailbox.cancel(getattr(result, by))
