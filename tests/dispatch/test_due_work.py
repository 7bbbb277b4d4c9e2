"""Work starts when it is due, without anybody's help: delayed, tried again, or left behind by a crash."""

from datetime import timedelta

from dispatch_room import (
    AgentRunResult,
    Counting,
    EventSink,
    Raising,
    RunActivation,
    dispatch_in,
    dispatch_that,
    done,
    prepare_queued_dispatch,
)
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import RateLimited


class FailsOnce(Raising):
    """Is limited once, then works."""

    def __init__(self) -> None:
        super().__init__(RateLimited("slow down", retry_after_ms=7_000))

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        return await super().execute(activation, sink) if self.run_count == 1 else done(activation)


async def test_a_delayed_dispatch_starts_at_its_instant_and_not_before(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    request = RunActivation.new("later", ["do it later"]).delivered(delay_ms=60_000)
    result = await mailbox.submit_background(request)
    assert result.status == "queued"
    room.clock.advance(timedelta(milliseconds=59_999))
    assert await mailbox.poll() == 0
    room.clock.advance(timedelta(milliseconds=1))
    assert await mailbox.poll() == 1
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert executor.run_count == 1


async def test_the_lifecycle_polls_by_itself(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    await mailbox.start_lifecycle_ready()
    request = RunActivation.new("later", ["do it later"]).delivered(delay_ms=60_000)
    result = await mailbox.submit_background(request)
    room.clock.advance(timedelta(seconds=60))
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert row.attempt_count == 0


async def test_a_failed_run_is_executed_again_after_the_delay_that_was_asked_for(room):
    executor = FailsOnce()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("limited", ["go"]))
    row = await dispatch_that(room.stores, result.dispatch_id, lambda row: row.attempt_count == 1)
    await mailbox.settled()
    assert row.available_at == row.updated_at + 7_000
    assert await mailbox.poll() == 0
    room.clock.advance(timedelta(milliseconds=7_000))
    assert await mailbox.poll() == 1
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert (executor.run_count, row.attempt_count) == (2, 1)
    assert [one.attempt for one in executor.activations] == [1, 2]


async def test_what_another_mailbox_has_queued_is_found(room):
    busy = room.mailbox(Counting(), consumer_id="a")
    executor = Counting()
    other = room.mailbox(executor, consumer_id="b")
    queued = await prepare_queued_dispatch(busy, "elsewhere", "hi")
    await room.stores.dispatches.enqueue(queued.dispatch)
    assert await other.poll() == 1
    row = await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.ACKED)
    assert executor.run_count == 1
    assert row.run_response == "ok"


async def test_a_deadline_that_has_passed_makes_a_dead_letter_and_executes_nothing(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    now = room.clock.now()
    request = RunActivation.new("late", ["too late"]).delivered(delay_ms=1_000, deadline_at=now + 1_500)
    result = await mailbox.submit_background(request)
    room.clock.advance(timedelta(milliseconds=1_501))
    assert await mailbox.poll() == 1
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    assert "deadline" in (row.last_error or "")
    assert executor.run_count == 0
    await mailbox.settled()
    run = await room.stores.threads.load_run(result.run_id)
    assert run.status == "done"


async def test_a_clock_that_jumps_back_delays_and_loses_nothing(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    room.clock.advance(timedelta(hours=-1))
    result = await mailbox.submit_background(RunActivation.new("back", ["go"]))
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    await mailbox.settled()
    room.clock.advance(timedelta(hours=2))
    again = await mailbox.submit_background(RunActivation.new("back", ["go on"]))
    room.clock.advance(timedelta(hours=-2))
    await dispatch_in(room.stores, again.dispatch_id, RunDispatchStatus.ACKED)
    assert executor.run_count == 2
