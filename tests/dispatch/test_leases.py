"""A lease is kept while its run is at work; a lost one stops the work, whatever the executor does."""

import asyncio
import dataclasses
from collections import Counter
from datetime import timedelta

from dispatch_room import (
    Blocking,
    Counting,
    Deaf,
    RunActivation,
    dispatch_in,
    dispatch_that,
    done,
    eventually,
)
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import CommitUnknown, Overloaded, StaleClaim
from postroom.contracts.events import EventScope
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import RunStatus
from postroom.dispatch.config import MailboxConfig
from postroom.testing.faults import writes, writes_that
from postroom.testing.run_faults import failing_changes

SHORT = MailboxConfig(
    lease_ms=10_000, lease_renewal_interval=timedelta(seconds=2), lease_retry_ms=500, stop_wait_ms=1_000
)


class Stubborn(Deaf):
    """Does not stop when it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.release = asyncio.Event()

    async def execute(self, activation, sink):
        self.started.set()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue
        return done(activation)


async def let_time_pass(room, seconds: float, step_ms: int = 500) -> None:
    """Move the clock on in small steps and let everybody who sleeps by it look around."""
    for _ in range(int(seconds * 1000 / step_ms)):
        room.clock.advance(timedelta(milliseconds=step_ms))
        for _ in range(20):
            await asyncio.sleep(0)


async def test_renewal_is_tried_again_when_the_store_fails_and_the_run_goes_on(room):
    calls: Counter[str] = Counter()
    refused = failing_changes(room.stores, before={"renew_leases": writes(1, 2)}, counts=calls)
    executor = Blocking()
    mailbox = room.mailbox(executor, stores=refused, config=SHORT)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.get()
    first = (await room.stores.dispatches.load_dispatch(result.dispatch_id)).lease_until

    async def renewed():
        if room.clock.sleeping:  # or the lease would end while the store is slow
            room.clock.advance(timedelta(milliseconds=250))
        row = await room.stores.dispatches.load_dispatch(result.dispatch_id)
        return row.lease_until > first or None

    await eventually(renewed)
    assert calls["renew_leases"] >= 3
    executor.release.set()
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)


async def test_a_lease_that_cannot_be_renewed_stops_the_run_before_another_may_begin_it(room):
    refused = failing_changes(room.stores, before={"renew_leases": writes_that(lambda number: True)})
    executor = Blocking()
    mailbox = room.mailbox(executor, stores=refused, config=SHORT)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.get()
    row = await room.stores.dispatches.load_dispatch(result.dispatch_id)

    async def stopped():
        if room.clock.sleeping and room.clock.now() < row.lease_until:
            room.clock.advance(timedelta(milliseconds=250))
        return mailbox.metrics.value("postroom_active_runs") == 0 or None

    await eventually(stopped)
    await mailbox.settled()  # or it would claim the run again itself
    assert room.clock.now() <= row.lease_until
    assert mailbox.metrics.value("postroom_mailbox_leases_lost_total") == 1
    assert (
        await room.stores.dispatches.load_dispatch(result.dispatch_id)
    ).status is RunDispatchStatus.CLAIMED
    room.clock.set(row.lease_until + 1)
    heir = Counting()
    other = room.mailbox(heir, consumer_id="heir")
    await other.run_sweep()
    ended = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert (heir.run_count, ended.attempt_count, ended.interruption_count) == (1, 0, 1)


async def test_a_run_whose_claim_was_taken_away_writes_nothing_more(room):
    executor = Blocking()
    refused = []

    class Writes(Blocking):
        async def execute(self, activation, sink):
            result = await super().execute(activation, sink)
            try:
                await activation.control.coordinator.commit(ThreadCommit(thread_id=activation.thread_id))
            except StaleClaim as error:
                refused.append(error)
                raise
            return result

    executor = Writes()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.get()
    await room.stores.dispatches.interrupt("t")
    executor.release.set()
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.SUPERSEDED)
    await mailbox.settled()
    assert len(refused) == 1
    assert row.run_status is None
    run = await room.stores.threads.load_run(result.run_id)
    assert (run.status, run.termination.type) == (RunStatus.DONE, "cancelled")
    assert [message.text() for message in await room.stores.threads.load_messages("t")] == ["go"]


async def test_an_executor_that_ignores_its_cancellation_is_left_behind_and_holds_nothing_up(room):
    executor = Stubborn()
    mailbox = room.mailbox(executor, config=SHORT)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await asyncio.wait_for(executor.started.wait(), 5)
    await room.stores.dispatches.interrupt("t")

    async def left():
        room.clock.advance(timedelta(milliseconds=250))
        return mailbox.metrics.value("postroom_mailbox_runs_abandoned_total") or None

    assert await eventually(left) == 1
    await mailbox.settled()
    assert (
        await room.stores.dispatches.load_dispatch(result.dispatch_id)
    ).status is RunDispatchStatus.SUPERSEDED
    heir = room.mailbox(Counting(), consumer_id="heir")
    again = await heir.submit_background(RunActivation.new("t", ["go on"]))
    await dispatch_in(room.stores, again.dispatch_id, RunDispatchStatus.ACKED)
    executor.release.set()


async def test_a_suspended_run_has_the_longer_lease(room):
    from postroom.contracts.agent_events import ToolCallDone
    from postroom.contracts.tools import ToolCallOutcome, ToolResult, ToolStatus

    class Suspends(Blocking):
        async def execute(self, activation, sink):
            result = ToolResult(tool_name="approve", status=ToolStatus.PENDING)
            await sink.emit(
                ToolCallDone(id="c", message_id="m", result=result, outcome=ToolCallOutcome.SUSPENDED)
            )
            return await super().execute(activation, sink)

    executor = Suspends()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.get()

    def is_long(row):
        room.clock.advance(timedelta(milliseconds=250))
        return row.lease_until is not None and row.lease_until - row.updated_at == 600_000

    await dispatch_that(room.stores, result.dispatch_id, is_long)
    executor.release.set()
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)


async def test_a_clock_that_jumps_ahead_does_not_stop_a_run_whose_lease_can_be_renewed(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, config=SHORT)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.get()
    room.clock.advance(timedelta(hours=5))
    await dispatch_that(
        room.stores, result.dispatch_id, lambda row: (row.lease_until or 0) > room.clock.now()
    )
    executor.release.set()
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)


async def test_a_process_that_stood_still_takes_no_step_before_it_knows_that_its_claim_holds(room):
    went_on = asyncio.Event()
    woken = asyncio.Event()

    class Waiting(Blocking):
        async def execute(self, activation, sink):
            self.started.put_nowait(activation)
            await woken.wait()
            went_on.set()
            return done(activation)

    executor = Waiting()
    mailbox = room.mailbox(executor, config=SHORT)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.get()
    await room.stores.dispatches.interrupt("t")
    room.clock.advance(timedelta(hours=1))
    woken.set()  # what it waited for came meanwhile
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.SUPERSEDED)
    await mailbox.settled()
    assert not went_on.is_set()


async def test_a_mailbox_that_closes_gives_back_what_ignores_its_end_and_waits_no_longer_than_was_set(room):
    executor = Stubborn()
    mailbox = room.mailbox(executor, config=SHORT)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await asyncio.wait_for(executor.started.wait(), 5)
    closing = asyncio.ensure_future(mailbox.aclose(timedelta(0)))

    async def closed():
        room.clock.advance(timedelta(milliseconds=250))
        return closing.done() or None

    assert await eventually(closed)
    row = await room.stores.dispatches.load_dispatch(result.dispatch_id)
    assert (row.status, row.attempt_count) == (RunDispatchStatus.QUEUED, 0)
    heir = room.mailbox(Counting(), consumer_id="heir")
    await heir.poll()
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    executor.release.set()


async def test_a_run_that_takes_longer_than_a_run_may_is_stopped_for_good(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_run_ms=2_000))
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.get()
    room.clock.advance(timedelta(milliseconds=1_999))
    await mailbox.poll()
    assert (
        await room.stores.dispatches.load_dispatch(result.dispatch_id)
    ).status is RunDispatchStatus.CLAIMED
    room.clock.advance(timedelta(milliseconds=1))
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    assert "was not done after 2000 ms" in row.last_error
    run = await room.stores.threads.load_run(result.run_id)
    assert (run.status, run.termination.type) == (RunStatus.DONE, "error")


class Endless(Blocking):
    async def execute(self, activation, sink):
        self.started.put_nowait(activation)
        await asyncio.Event().wait()


async def test_a_run_that_follows_another_has_no_more_time_than_that(room):
    executor = Endless()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_run_ms=2_000))
    for _ in range(3):
        result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
        await executor.started.get()
        room.clock.advance(timedelta(milliseconds=2_000))
        await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)


async def test_a_claim_is_renewed_before_it_ends_however_long_the_interval(room):
    executor = Blocking()
    config = MailboxConfig(lease_ms=60_000, lease_renewal_interval=timedelta(minutes=5))
    mailbox = room.mailbox(executor, config=config)
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.get()
    for _ in range(4):
        before = (await room.stores.dispatches.load_dispatch(result.dispatch_id)).lease_until
        room.clock.advance(timedelta(seconds=40))

        async def renewed(before=before):
            row = await room.stores.dispatches.load_dispatch(result.dispatch_id)
            return row.lease_until > before

        await eventually(renewed)
    assert await room.stores.dispatches.reclaim_expired_leases(limit=10) == ()
    executor.release.set()


async def test_a_run_that_takes_too_long_and_ignores_its_end_is_left_behind_and_given_up(room):
    executor = Stubborn()
    mailbox = room.mailbox(executor, config=dataclasses.replace(SHORT, max_run_ms=500))
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await asyncio.wait_for(executor.started.wait(), 5)

    async def given_up():
        room.clock.advance(timedelta(milliseconds=250))
        row = await room.stores.dispatches.load_dispatch(result.dispatch_id)
        return row if row.status is RunDispatchStatus.DEAD_LETTER else None

    assert "was not done after 500 ms" in (await eventually(given_up)).last_error
    executor.release.set()


async def test_why_an_execution_failed_is_logged_and_kept_with_the_place_where_it_was_raised(room, caplog):
    class Failing(Blocking):
        async def execute(self, activation, sink):
            raise ZeroDivisionError("no boats")

    mailbox = room.mailbox(Failing())
    submitted = RunActivation.new("t", ["go"]).delivered(max_attempts=1)
    result = await mailbox.submit_background(submitted)
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    page = await room.stores.events.list(EventScope.run(result.run_id))
    [failed] = [event for event in page.events if event.event_kind == "RunAttemptFailed"]
    assert failed.payload["attempt"] == 1
    assert failed.payload["error"] == "ZeroDivisionError: no boats"
    assert 'raise ZeroDivisionError("no boats")' in failed.payload["traceback"]
    assert any("run.attempt_failed" in record.getMessage() for record in caplog.records)


async def test_the_cause_of_each_failed_attempt_is_kept_with_its_place_and_logged_in_one_short_line(
    room, caplog
):
    class Failing(Blocking):
        async def execute(self, activation, sink):
            cause = ConnectionError(f"no route, time {self.run_count}")
            raise Overloaded("the provider is away") from cause

    mailbox = room.mailbox(Failing(), config=MailboxConfig(default_retry_delay_ms=0))
    submitted = RunActivation.new("t", ["go"]).delivered(max_attempts=3)
    result = await mailbox.submit_background(submitted)
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    page = await room.stores.events.list(EventScope.run(result.run_id))
    failed = [event.payload for event in page.events if event.event_kind == "RunAttemptFailed"]
    assert [one["attempt"] for one in failed] == [1, 2, 3]
    for number, one in enumerate(failed, start=1):
        assert f"ConnectionError: no route, time {number}" in one["traceback"]
    told = [one.getMessage() for one in caplog.records if "run.attempt_failed" in one.getMessage()]
    assert len(told) == 3
    assert all("provider is away" in line and len(line) < 300 for line in told)


async def test_a_failure_of_ours_that_says_more_of_another_is_told_without_a_place_in_our_code(room):
    """Such as a program's exit, with advice about it."""

    class Failing(Blocking):
        async def execute(self, activation, sink):
            raise Overloaded("the provider is away: try another") from Overloaded("the provider is away")

    mailbox = room.mailbox(Failing())
    submitted = RunActivation.new("t", ["go"]).delivered(max_attempts=1)
    result = await mailbox.submit_background(submitted)
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    page = await room.stores.events.list(EventScope.run(result.run_id))
    [failed] = [event.payload for event in page.events if event.event_kind == "RunAttemptFailed"]
    assert failed.keys() == {"attempt", "error"}


async def test_a_store_that_was_away_while_a_run_asked_it_is_told_without_a_place_in_our_code(room):
    class Failing(Blocking):
        async def execute(self, activation, sink):
            raise CommitUnknown("the connection broke") from ConnectionError("closed")

    mailbox = room.mailbox(Failing())
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]).delivered(max_attempts=1))
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    page = await room.stores.events.list(EventScope.run(result.run_id))
    [failed] = [event.payload for event in page.events if event.event_kind == "RunAttemptFailed"]
    assert failed == {"attempt": 1, "error": "store error: the connection broke"}
