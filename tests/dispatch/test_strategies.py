"""What a submission does when its thread is busy is its own choice."""

import asyncio
from datetime import timedelta

import pytest

from dispatch_room import (
    Blocking,
    Counting,
    Deaf,
    Noop,
    RunActivation,
    dispatch_in,
    done,
    enqueue_prepared_dispatch,
)
from postroom.contracts.activation import BusyPolicy
from postroom.contracts.dispatch import OPEN, RunDispatchStatus
from postroom.contracts.errors import ActiveRunConflict, InvalidSubmission, SubmissionRejected
from postroom.contracts.runs import RunStatus
from postroom.dispatch.config import MailboxConfig

IMPATIENT = MailboxConfig(cancel_wait_ms=100, cancel_poll_ms=25)


async def test_queue_executes_in_the_order_of_arrival(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    results = [await mailbox.submit_background(RunActivation.new("t", [str(n)])) for n in range(5)]
    for result in results:
        await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert [one.messages[0].text() for one in executor.activations] == list("01234")


async def test_reject_accepts_exactly_one_of_many_at_once(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    accepted, rejected = [], []

    async def submit(number: int) -> None:
        try:
            request = RunActivation.new("t", [str(number)])
            accepted.append(await mailbox.submit_background(request, strategy=BusyPolicy.REJECT))
        except SubmissionRejected as error:
            rejected.append(error)

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(submit(number))
    assert (len(accepted), len(rejected)) == (1, 19)
    assert len(await room.stores.threads.load_messages("t")) == 1
    executor.release.set()
    await dispatch_in(room.stores, accepted[0].dispatch_id, RunDispatchStatus.ACKED)


async def test_collect_joins_the_run_that_waits(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.submit_background(RunActivation.new("t", ["busy"]))
    await executor.started.get()
    results = [
        await mailbox.submit_background(RunActivation.new("t", [word]), strategy=BusyPolicy.COLLECT)
        for word in ("one", "two", "three")
    ]
    assert len({result.dispatch_id for result in results}) == 1
    assert [result.joined for result in results] == [False, True, True]
    executor.release.set()
    await dispatch_in(room.stores, results[0].dispatch_id, RunDispatchStatus.ACKED)
    assert [m.text() for m in executor.activations[1].messages] == ["one", "two", "three"]
    assert executor.run_count == 2


async def test_interrupt_in_the_background_supersedes_what_waits_and_stops_what_runs(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    running = await mailbox.submit_background(RunActivation.new("t", ["running"]))
    await executor.started.get()
    waiting = await mailbox.submit_background(RunActivation.new("t", ["waiting"]))
    newest = await mailbox.submit_background(
        RunActivation.new("t", ["newest"]), strategy=BusyPolicy.INTERRUPT
    )
    await dispatch_in(room.stores, newest.dispatch_id, RunDispatchStatus.ACKED)
    for result in (running, waiting):
        await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.SUPERSEDED)
        run = await room.stores.threads.load_run(result.run_id)
        assert (run.status, run.termination.type) == (RunStatus.DONE, "cancelled")


async def test_rollback_hides_what_was_asked_and_said_before(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.submit_background(RunActivation.new("t", ["a mistake"]))
    await executor.started.get()
    newest = await mailbox.submit_background(
        RunActivation.new("t", ["as meant"]), strategy=BusyPolicy.ROLLBACK
    )
    await dispatch_in(room.stores, newest.dispatch_id, RunDispatchStatus.ACKED)
    control = executor.activations[1].control
    seen = [m.text() for m in await room.stores.threads.load_messages("t") if control.shows(m)]
    assert seen[0] == "as meant"
    assert "a mistake" not in seen


async def test_a_foreground_submission_that_is_refused_changes_nothing(room):
    """The active run, elsewhere, does not give way: what waits is still queued, in the same epoch."""
    mailbox = room.mailbox(Noop(), config=IMPATIENT)
    active = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "active")
    claimed = await room.stores.dispatches.claim("t", "elsewhere", lease_ms=60_000)
    assert claimed.dispatch_id == active.dispatch_id
    waiting = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "waiting")
    before = await everything(room, "t")
    with pytest.raises(ActiveRunConflict):
        await mailbox.submit(RunActivation.new("t", ["newest"]))
    assert await everything(room, "t") == before
    assert (
        await room.stores.dispatches.load_dispatch(waiting.dispatch_id)
    ).status is RunDispatchStatus.QUEUED


async def everything(room, thread_id: str):
    stores = room.stores
    rows = await stores.dispatches.list_dispatches(thread_id)
    runs = [await stores.threads.load_run(row.run_id) for row in rows]
    return (
        rows,
        runs,
        await stores.threads.load_messages(thread_id),
        await stores.threads.load_thread(thread_id),
        await stores.dispatches.current_dispatch_epoch(thread_id),
    )


async def test_newest_of_many_foreground_submissions_wins_and_each_is_answered(room):
    class Slow(Deaf):
        async def execute(self, activation, sink):
            await asyncio.Event().wait()
            return done(activation)

    mailbox = room.mailbox(Slow())
    outcomes = []

    async def submit(number: int) -> None:
        try:
            result, _ = await mailbox.submit(RunActivation.new("t", [str(number)]))
            outcomes.append(result.run_id)
        except ActiveRunConflict:
            outcomes.append(None)

    async def tick() -> None:
        while len(outcomes) < 8:
            room.clock.advance(timedelta(milliseconds=25))
            await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(tick())
        for number in range(8):
            group.create_task(submit(number))
    accepted = [run_id for run_id in outcomes if run_id]
    claimed = await room.stores.dispatches.claimed_dispatch("t")
    assert len(outcomes) == 8
    assert accepted
    assert claimed.run_id == accepted[-1]
    assert len(await mailbox.list_dispatches("t", OPEN)) == 1


async def test_a_queued_submission_can_be_read_along(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.submit_background(RunActivation.new("t", ["first"]))
    await executor.started.get()
    result, events = await mailbox.submit(RunActivation.new("t", ["second"]), strategy=BusyPolicy.QUEUE)
    assert result.status == "queued"
    executor.release.set()
    told = [event async for event in events]
    assert [event.event_type for event in told] == ["run_finish"]
    assert told[0].run_id == result.run_id


async def test_streaming_submissions_cannot_join_others(room):
    mailbox = room.mailbox(Noop())
    for strategy in (BusyPolicy.STEER, BusyPolicy.COLLECT):
        with pytest.raises(InvalidSubmission):
            await mailbox.submit(RunActivation.new("t", ["hi"]), strategy=strategy)
    assert await mailbox.list_dispatches("t") == ()


async def test_priority_goes_before_age(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.submit_background(RunActivation.new("t", ["busy"]))
    await executor.started.get()
    room.clock.advance(timedelta(milliseconds=1))
    low = await mailbox.submit_background(RunActivation.new("t", ["low"]))
    room.clock.advance(timedelta(milliseconds=1))
    high = await mailbox.submit_background(RunActivation.new("t", ["high"]).delivered(priority=1))
    executor.release.set()
    for result in (low, high):
        await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert [one.messages[0].text() for one in executor.activations] == ["busy", "high", "low"]


async def test_order_on_a_thread_does_not_hang_on_the_clocks_of_those_who_submit(room):
    """A process whose clock is behind submits after one whose clock is ahead."""
    mailbox = room.mailbox(Noop(), config=MailboxConfig(max_concurrent_runs=0))
    names = []
    for minutes in (0, -5, 3, -3):
        room.clock.advance(timedelta(minutes=minutes))
        for _ in range(3):
            result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
            names.append(result.dispatch_id)
    rows = await mailbox.list_dispatches("t")
    assert [row.dispatch_id for row in rows] == names
