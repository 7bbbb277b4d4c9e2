"""A lease is kept during its run, a lost lease stops the work, failures are reported, and metrics give durations."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from conformance.promises.run_given import ended
from dispatch_room import (
    ACKED,
    CANCELLED,
    CLAIMED,
    DEAD,
    ENDED_BY_CANCEL,
    QUEUED,
    SUPERSEDED,
    Blocking,
    Counting,
    Deaf,
    ask,
    done,
    eventually,
    operations,
    rate_limited,
    unauthorized,
    until,
)
from postroom.contracts import errors
from postroom.contracts.agent_events import ToolCallDone, ToolCallResumed
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.events import EventScope
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import RunStatus, RunWaitingState, TerminationReason, WaitingReason
from postroom.contracts.tools import Suspension, ToolCallOutcome, ToolResult, ToolStatus
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.sinks import EventStream, ReconnectableEventSink
from postroom.testing.faults import writes
from postroom.testing.run_faults import failing_changes

SHORT = MailboxConfig(
    lease_ms=10_000, lease_renewal_interval=timedelta(seconds=2), lease_retry_ms=500, stop_wait_ms=1_000
)


class Stubborn(Blocking):
    """Does not stop when it is cancelled."""

    async def execute(self, activation, sink):
        self.started.put_nowait(activation)
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue
        return done(activation)


async def at_work(room, executor, config=None, **settings):
    """Return a mailbox with an active run, and its submission."""
    mailbox = room.mailbox(executor, config=config, **settings)
    result = await mailbox.submit_background(ask())
    async with asyncio.timeout(60):
        await executor.started.get()
    return mailbox, result


async def as_time_goes(room, look):
    """Advance the time until the condition is met."""

    async def passing():
        room.passes(milliseconds=250)
        return await look()

    return await eventually(passing)


async def test_renewal_is_tried_again_when_the_store_fails_and_the_run_goes_on(room):
    calls, executor = Counter(), Blocking()
    refused = failing_changes(room.stores, before={"renew_leases": writes(1, 2)}, counts=calls)
    _, result = await at_work(room, executor, SHORT, stores=refused)
    first = (await room.row(result)).lease_until

    async def renewed():
        if room.clock.sleeping:  # or the lease would end while the store is slow
            room.passes(milliseconds=250)
        return (await room.row(result)).lease_until > first

    await eventually(renewed)
    assert calls["renew_leases"] >= 3
    executor.release.set()
    await room.acked(result)


async def test_a_run_whose_claim_was_taken_away_writes_nothing_more(room):
    class Writes(Blocking):
        async def execute(self, activation, sink):
            await super().execute(activation, sink)
            with pytest.raises(errors.StaleClaim) as refused:
                await activation.control.coordinator.commit(ThreadCommit(thread_id="t"))
            self.refused = refused.value
            raise self.refused

    executor = Writes()
    mailbox, result = await at_work(room, executor)
    await room.stores.dispatches.interrupt("t")
    executor.release.set()
    row = await room.comes_to(SUPERSEDED, result)
    await mailbox.settled()
    assert executor.refused
    run = await room.run(result)
    assert ((run.status, run.termination), row.run_status) == (ENDED_BY_CANCEL, None)
    assert await room.texts() == ["go"]


async def test_an_executor_that_ignores_its_cancellation_is_left_behind_and_holds_nothing_up(room):
    executor = Stubborn()
    mailbox, result = await at_work(room, executor, SHORT)
    await room.stores.dispatches.interrupt("t")

    async def left():
        return mailbox.metrics.value("postroom_mailbox_runs_abandoned_total")

    assert await as_time_goes(room, left) == 1
    await mailbox.settled()
    assert (await room.row(result)).status is SUPERSEDED
    heir = room.mailbox(Counting(), consumer_id="heir")
    await room.acked(await heir.submit_background(ask("t", "go on")))
    executor.release.set()


async def test_a_suspended_run_has_the_longer_lease(room):
    class Suspends(Blocking):
        async def execute(self, activation, sink):
            result = ToolResult(tool_name="approve", status=ToolStatus.PENDING)
            asks = ToolCallDone(id="c", message_id="m", result=result, outcome=ToolCallOutcome.SUSPENDED)
            await sink.emit(asks)
            return await super().execute(activation, sink)

    executor = Suspends()
    _, result = await at_work(room, executor)

    async def is_long():
        row = await room.row(result)
        return row.lease_until - row.updated_at == 600_000

    await as_time_goes(room, is_long)
    executor.release.set()
    await room.acked(result)


async def test_a_mailbox_that_closes_gives_back_what_ignores_its_end_and_waits_no_longer_than_was_set(room):
    executor = Stubborn()
    mailbox, result = await at_work(room, executor, SHORT)
    async with asyncio.TaskGroup() as group:
        closing = group.create_task(mailbox.aclose(timedelta(0)))

        async def closed():
            return closing.done()

        await as_time_goes(room, closed)
    row = await room.row(result)
    assert (row.status, row.attempt_count) == (QUEUED, 0)
    await room.mailbox(Counting(), consumer_id="heir").poll()
    await room.acked(result)
    executor.release.set()


async def test_a_run_that_takes_longer_than_a_run_may_is_stopped_for_good_and_so_are_those_behind_it(room):
    class Endless(Blocking):
        async def execute(self, activation, sink):
            self.started.put_nowait(activation)
            await asyncio.Event().wait()

    executor = Endless()
    mailbox, result = await at_work(room, executor, MailboxConfig(max_run_ms=2_000))
    for _ in range(3):
        room.passes(milliseconds=1_999)
        await mailbox.poll()
        assert (await room.row(result)).status is CLAIMED
        room.passes(milliseconds=1)
        assert "was not done after 2000 ms" in (await room.given_up(result)).last_error
        await mailbox.settled()
        run = await room.run(result)
        assert (run.status, run.termination.type) == (RunStatus.DONE, "error")
        result = await mailbox.submit_background(ask())
        await executor.started.get()


async def test_a_run_that_takes_too_long_and_ignores_its_end_is_left_behind_and_given_up(room):
    executor = Stubborn()
    _, result = await at_work(room, executor, replace(SHORT, max_run_ms=500))

    async def given_up():
        row = await room.row(result)
        return row if row.status is DEAD else None

    assert "was not done after 500 ms" in (await as_time_goes(room, given_up)).last_error
    executor.release.set()


async def test_a_claim_is_renewed_before_it_ends_however_long_the_interval(room):
    executor = Blocking()
    config = MailboxConfig(lease_ms=60_000, lease_renewal_interval=timedelta(minutes=5))
    _, result = await at_work(room, executor, config)
    for _ in range(4):
        before = (await room.row(result)).lease_until
        await until(lambda: room.clock.sleeping == 1)  # the renewal before has ended
        room.passes(seconds=40)
        await room.until(result, lambda row, before=before: row.lease_until > before)
    assert await room.stores.dispatches.reclaim_expired_leases(limit=10) == ()
    executor.release.set()


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        (MailboxConfig(lease_ms=80_000, lease_renewal_interval=timedelta(seconds=20)), 20),
        (MailboxConfig(lease_ms=5_000), 3),
    ],
    ids=["long", "shorter than the interval"],
)
async def test_mailbox_lease_renewal_is_wired_and_prevents_reclaim(room, config, seconds):
    executor, lease_ms = Blocking(), config.lease_ms
    mailbox, result = await at_work(room, executor, config)
    first = await room.row(result)
    assert (first.status, first.lease_until) == (CLAIMED, room.clock.now() + lease_ms)
    for times in range(1, 11):  # at least two and a half leases
        room.passes(seconds=seconds)
        await until(lambda times=times: operations(mailbox, "lease_renewal") == times)
        assert (await room.row(result)).lease_until == room.clock.now() + lease_ms
    assert room.clock.now() > first.lease_until
    assert await room.stores.dispatches.reclaim_expired_leases(limit=10) == ()
    executor.release.set()
    await mailbox.settled()
    row = await room.row(result)
    assert (row.status, row.attempt_count, executor.run_count) == (ACKED, 0, 1)
    assert operations(mailbox, "lease_renewal") == 10


async def test_suspension_aware_sink_sets_flag_on_suspended_tool_call():
    def call(result, outcome):
        return ToolCallDone(id="c", message_id="m", result=result, outcome=outcome)

    stream = EventStream()
    sink = ReconnectableEventSink(stream)
    assert not sink.suspended
    approval = ToolResult.suspended("approve", Suspension(id="ask-c2", action="approve"))
    events = (
        (call(ToolResult.success("echo", "ok"), ToolCallOutcome.SUCCEEDED), False),
        (call(approval, ToolCallOutcome.SUSPENDED), True),
        (ToolCallResumed(target_id="c2", result={"approved": True}), False),
    )
    for event, is_suspended in events:
        await sink.emit(event)
        assert sink.suspended is is_suspended
    sink.close()
    assert [event async for event in stream] == [event for event, _ in events]


# Why an execution failed.


async def failures_of(room, failure, attempts=1):
    """Return the stored data of each attempt of a run that fails in this way."""

    class Failing(Deaf):
        async def execute(self, activation, sink):
            failure(self.run_count)

    mailbox = room.mailbox(Failing(), config=MailboxConfig(default_retry_delay_ms=0))
    result = await mailbox.submit_background(ask(max_attempts=attempts))
    await room.given_up(result)
    page = await room.stores.events.list(EventScope.run(result.run_id))
    return [event.payload for event in page.events if event.event_kind == "RunAttemptFailed"]


async def test_the_cause_of_each_failed_attempt_is_kept_with_its_place_and_logged_in_one_short_line(
    room, caplog
):
    def away(number):
        raise errors.Overloaded("the provider is away") from ConnectionError(f"no route, time {number}")

    failed = await failures_of(room, away, attempts=3)
    assert [one["attempt"] for one in failed] == [1, 2, 3]
    for number, one in enumerate(failed, start=1):
        assert f"ConnectionError: no route, time {number}" in one["traceback"]
    told = [one.getMessage() for one in caplog.records if "run.attempt_failed" in one.getMessage()]
    assert len(told) == 3
    assert all("provider is away" in line and len(line) < 300 for line in told)

    def defect(number):
        raise ZeroDivisionError("no boats")

    [failed] = await failures_of(room, defect)
    assert failed["error"] == "ZeroDivisionError: no boats"
    assert 'raise ZeroDivisionError("no boats")' in failed["traceback"]


async def test_a_failure_of_ours_over_another_or_over_a_store_away_is_told_without_a_place_in_our_code(room):
    """Such as a program's exit, with advice about it."""

    def advised(number):
        raise errors.Overloaded("away: try another") from errors.Overloaded("away")

    def store_away(number):
        raise errors.CommitUnknown("the connection broke") from ConnectionError("closed")

    [failed] = await failures_of(room, advised)
    assert failed.keys() == {"attempt", "error"}
    [failed] = await failures_of(room, store_away)
    assert failed == {"attempt": 1, "error": "store error: the connection broke"}


# Numbers.


class Taking(Deaf):
    """Takes two seconds for a run."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    async def execute(self, activation, sink):
        self._clock.advance(timedelta(seconds=2))
        return done(activation)


async def test_mailbox_execution_records_dispatch_latency_metrics(room):
    """An operator counts enqueues and claims, although both were one transaction."""
    mailbox = room.mailbox(Taking(room.clock))
    await mailbox.submit_background(ask())
    await mailbox.settled()

    def value(name, **labels):
        return mailbox.metrics.value(f"postroom_{name}", **labels)

    for waited in ("enqueue", "eligible", "claim"):
        name = f"mailbox_dispatch_{waited}_to_start_seconds"
        assert (value(f"{name}_count"), value(f"{name}_sum")) == (1, 0)
    for took in ("mailbox_dispatch_enqueue_to_complete", "mailbox_dispatch_runtime", "run_duration"):
        counted = [value(f"{took}_seconds_{what}", outcome="completed") for what in ("count", "sum")]
        assert counted == [1, 2]
    assert value("runs_total", outcome="completed") == 1
    assert [operations(mailbox, one) for one in ("enqueue", "claim", "ack")] == [1, 1, 1]
    assert value("mailbox_operation_duration_seconds_count", result="ok", operation="ack") == 1
    await mailbox.run_sweep()
    depths = {status: value("mailbox_dispatch_depth", status=status.label) for status in RunDispatchStatus}
    assert depths == {status: float(status is ACKED) for status in RunDispatchStatus}


class Asking(Deaf):
    """Ends by asking a person."""

    async def execute(self, activation, sink):
        waiting = RunWaitingState(reason=WaitingReason.USER_INPUT, message="May I?")
        return replace(done(activation), termination=TerminationReason.suspended(), waiting=waiting)


def runs_that_ended(mailbox):
    """Return how many runs were counted, by how they ended."""
    outcomes = ("completed", "permanent_error", "transient_error", "dead_letter", "cancelled", "superseded")
    counts = {one: mailbox.metrics.value("postroom_runs_total", outcome=one) for one in outcomes}
    return {one: count for one, count in counts.items() if count}


async def test_a_run_counts_once_when_it_has_ended(room):
    for executor, attempts, counted in (
        (Counting(), 5, {"completed": 1}),
        (unauthorized(), 5, {"permanent_error": 1}),
        (rate_limited(), 1, {"dead_letter": 1}),
        (rate_limited(), 5, {}),
        (Asking(), 5, {}),
    ):
        mailbox = room.mailbox(executor, config=MailboxConfig(default_max_attempts=attempts))
        submitted = await mailbox.submit_background(ask(f"{type(executor)}-{attempts}"))
        await mailbox.settled()
        assert runs_that_ended(mailbox) == counted
    assert await mailbox.cancel(submitted.run_id)
    assert runs_that_ended(mailbox) == {"cancelled": 1}


def test_a_number_that_does_not_exist_is_not_read_as_zero(room):
    metrics = room.mailbox(Counting()).metrics
    for name, labels, said in (
        ("nope", {}, "a mailbox has no metric 'nope'"),
        ("postroom_runs", {"outcome": "completed"}, "a mailbox has no metric 'postroom_runs'"),
        ("postroom_runs_total", {}, "postroom_runs_total does not have these labels"),
        ("postroom_runs_total", {"status": "x"}, "its labels: outcome"),
        ("postroom_active_runs", {"outcome": "x"}, "its labels: none"),
    ):
        with pytest.raises(errors.InvalidArgument) as caught:
            metrics.value(name, **labels)
        assert said in caught.value.describe() + caught.value.remedy


async def test_what_ended_well_is_counted_to_a_bound_and_what_failed_to_the_last(room, monkeypatch):
    """Ended rows stay for days; a sweep that counted all of them took longer every day."""
    monkeypatch.setattr("postroom.stores.runs.dispatches.MAX_COUNTED", 2)
    for status in (ACKED, CANCELLED, DEAD):
        for number in range(3):
            await ended(room.stores, f"{status.value}-{number}", status)
    counts = await room.stores.dispatches.count_by_status()
    assert [counts[status] for status in RunDispatchStatus] == [0, 0, 2, 2, 0, 3]
