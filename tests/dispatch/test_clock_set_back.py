"""A clock that is set back or forward: short waits stay short, and a run that executes is not begun twice."""

from datetime import timedelta

from dispatch_room import Blocking, Counting, RunActivation, dispatch_in, eventually
from postroom.contracts.dispatch import RunDispatchStatus

TWO_HOURS = timedelta(hours=2)


async def test_a_delay_stays_as_long_as_it_is_when_the_clock_is_set_back(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    short = await mailbox.submit_background(RunActivation.new("a", ["go"]).delivered(delay_ms=5_000))
    await mailbox.poll()
    room.clock.advance(-TWO_HOURS)
    for _ in range(2):
        await mailbox.poll()
        await mailbox.settled()
    assert executor.run_count == 0, "5 s have not passed"
    later = await mailbox.submit_background(RunActivation.new("b", ["go"]).delivered(delay_ms=9_000))
    room.clock.advance(timedelta(milliseconds=5_000))
    await mailbox.poll()
    await dispatch_in(room.stores, short.dispatch_id, RunDispatchStatus.ACKED)
    assert (await room.stores.dispatches.load_dispatch(later.dispatch_id)).status is RunDispatchStatus.QUEUED


async def test_two_workers_correct_a_delay_once(room):
    mailboxes = [room.mailbox(Counting(), consumer_id=name) for name in ("one", "two")]
    sent = await mailboxes[0].submit_background(RunActivation.new("a", ["go"]).delivered(delay_ms=60_000))
    for mailbox in mailboxes:
        await mailbox.poll()
    room.clock.advance(-TWO_HOURS)
    for mailbox in mailboxes:
        await mailbox.poll()
    due_at = (await room.stores.dispatches.load_dispatch(sent.dispatch_id)).available_at
    assert abs(due_at - room.clock.now() - 60_000) < 30_000, "a real clock measures how far it was set back"


async def test_the_lease_of_a_dead_worker_ends_in_its_time_when_the_clock_is_set_back(room):
    mailbox = room.mailbox(Counting())
    other = room.mailbox(Blocking(), consumer_id="other")
    held = await other.submit_background(RunActivation.new("b", ["go"]))
    await eventually(lambda: _claimed(room, held.dispatch_id))
    await other.abandon()
    await mailbox.poll()
    room.clock.advance(-TWO_HOURS)
    await mailbox.poll()
    room.clock.advance(timedelta(minutes=1))
    await mailbox.run_sweep()
    await dispatch_in(room.stores, held.dispatch_id, RunDispatchStatus.ACKED)


async def test_a_run_that_executes_here_is_not_taken_back_when_the_clock_is_set_forward(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    sent = await mailbox.submit_background(RunActivation.new("a", ["go"]))
    await executor.started.get()
    room.clock.advance(TWO_HOURS)
    await mailbox.run_sweep()
    row = await room.stores.dispatches.load_dispatch(sent.dispatch_id)
    assert (row.attempt_count, row.interruption_count, row.status) == (0, 0, RunDispatchStatus.CLAIMED)
    executor.release.set()
    await dispatch_in(room.stores, sent.dispatch_id, RunDispatchStatus.ACKED)
    assert executor.started.empty()


async def _claimed(room, dispatch_id: str):
    row = await room.stores.dispatches.load_dispatch(dispatch_id)
    return row.status is RunDispatchStatus.CLAIMED or None
