"""Leases that are renewed while a run is at work, and the numbers that tell how long things took."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from conformance.promises.run_given import ended
from dispatch.conftest import Room
from dispatch_room import (
    Blocking,
    Counting,
    dispatch_in,
    dispatch_that,
    done,
    eventually,
    rate_limited,
    unauthorized,
)
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import AgentEvent, EventSink, ToolCallDone, ToolCallResumed
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import InvalidArgument
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.records import replace
from postroom.contracts.runs import RunWaitingState, TerminationReason, WaitingReason
from postroom.contracts.tools import Suspension, ToolCallOutcome, ToolResult
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.sinks import SuspensionAwareSink
from postroom.testing import ManualClock
from table_rows import each_row

OPERATIONS = "postroom_mailbox_operations_total"


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []

    async def emit(self, event: AgentEvent) -> None:
        self.events.append(event)


class Taking(Counting):
    """Takes two seconds for a run."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        self._clock.advance(timedelta(seconds=2))
        return await super().execute(activation, sink)


async def test_suspension_aware_sink_sets_flag_on_suspended_tool_call() -> None:
    inner = Recorder()
    sink = SuspensionAwareSink(inner)
    assert not sink.suspended
    succeeded = ToolCallDone(
        id="c1",
        message_id="m1",
        result=ToolResult.success("echo", "ok"),
        outcome=ToolCallOutcome.SUCCEEDED,
    )
    await sink.emit(succeeded)
    assert not sink.suspended
    suspended = ToolCallDone(
        id="c2",
        message_id="m2",
        result=ToolResult.suspended("approve", Suspension(id="ask-c2", action="approve")),
        outcome=ToolCallOutcome.SUSPENDED,
    )
    await sink.emit(suspended)
    assert sink.suspended
    resumed = ToolCallResumed(target_id="c2", result={"approved": True})
    await sink.emit(resumed)
    assert not sink.suspended
    assert inner.events == [succeeded, suspended, resumed]


async def test_mailbox_execution_records_dispatch_latency_metrics(room: Room) -> None:
    """An operator counts what was enqueued and claimed, though that was one transaction."""
    mailbox = room.mailbox(Taking(room.clock))
    submitted = await mailbox.submit_background(RunActivation.new("thread-metrics", ["go"]))
    await dispatch_in(room.stores, submitted.dispatch_id, RunDispatchStatus.ACKED)
    await mailbox.settled()

    def value(name: str, **labels: Any) -> float:
        return mailbox.metrics.value(f"postroom_{name}", **labels)

    for waited in ("enqueue", "eligible", "claim"):
        assert value(f"mailbox_dispatch_{waited}_to_start_seconds_count") == 1
        assert value(f"mailbox_dispatch_{waited}_to_start_seconds_sum") == 0
    for took in ("mailbox_dispatch_enqueue_to_complete", "mailbox_dispatch_runtime", "run_duration"):
        assert value(f"{took}_seconds_count", outcome="completed") == 1
        assert value(f"{took}_seconds_sum", outcome="completed") == 2
    assert value("runs_total", outcome="completed") == 1
    for operation in ("enqueue", "claim", "ack"):
        assert value("mailbox_operations_total", operation=operation, result="ok") == 1
    assert value("mailbox_operation_duration_seconds_count", operation="ack", result="ok") == 1
    await mailbox.run_sweep()
    depths = {status: value("mailbox_dispatch_depth", status=status.label) for status in RunDispatchStatus}
    assert depths == {status: float(status is RunDispatchStatus.ACKED) for status in RunDispatchStatus}


class Asking(Counting):
    """Ends by asking a person."""

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        waiting = RunWaitingState(reason=WaitingReason.USER_INPUT, message="May I?")
        return replace(done(activation), termination=TerminationReason.suspended(), waiting=waiting)


def runs_that_ended(mailbox: Mailbox) -> dict[str, float]:
    """Return how many runs were counted, by how they ended."""
    outcomes = ("completed", "permanent_error", "transient_error", "dead_letter", "cancelled", "superseded")
    counts = {one: mailbox.metrics.value("postroom_runs_total", outcome=one) for one in outcomes}
    return {one: count for one, count in counts.items() if count}


@pytest.mark.parametrize(
    ("executor", "attempts", "counted"),
    [
        (Counting, 5, {"completed": 1}),
        (unauthorized, 5, {"permanent_error": 1}),
        (rate_limited, 1, {"dead_letter": 1}),
        (rate_limited, 5, {}),
    ],
)
async def test_a_run_counts_once_when_it_has_ended(
    room: Room, executor: Callable[[], RunDispatchExecutor], attempts: int, counted: dict[str, float]
) -> None:
    mailbox = room.mailbox(executor(), config=MailboxConfig(default_max_attempts=attempts))
    await mailbox.submit_background(RunActivation.new("thread-counts", ["go"]))
    await mailbox.settled()
    assert runs_that_ended(mailbox) == counted


async def test_a_run_that_waits_counts_when_it_has_ended(room: Room) -> None:
    mailbox = room.mailbox(Asking())
    submitted = await mailbox.submit_background(RunActivation.new("thread-waits", ["go"]))
    await mailbox.settled()
    assert runs_that_ended(mailbox) == {}
    assert await mailbox.cancel(submitted.run_id)
    assert runs_that_ended(mailbox) == {"cancelled": 1}


@each_row(
    "name, labels, said",
    [
        ("nope", {}, "no number of a mailbox is called 'nope'"),
        ("postroom_runs", {"outcome": "completed"}, "no number of a mailbox is called 'postroom_runs'"),
        ("postroom_runs_total", {}, "postroom_runs_total has other labels"),
        ("postroom_runs_total", {"status": "x"}, "its labels: outcome"),
        ("postroom_active_runs", {"outcome": "x"}, "its labels: none"),
    ],
)
async def test_a_number_that_does_not_exist_is_not_read_as_zero(
    room: Room, name: str, labels: dict[str, str], said: str
) -> None:
    metrics = room.mailbox(Counting()).metrics
    with pytest.raises(InvalidArgument) as caught:
        metrics.value(name, **labels)
    assert said in caught.value.describe() or said in caught.value.remedy


async def test_the_labels_of_a_number_are_named_in_any_order(room: Room) -> None:
    metrics = room.mailbox(Counting()).metrics
    metrics.happened("enqueue")
    assert metrics.value(OPERATIONS, result="ok", operation="enqueue") == 1


async def renewed(mailbox: Mailbox, times: int) -> None:
    """Return when the lease was renewed so often; its keeper sleeps again then."""

    async def look() -> bool:
        return mailbox.metrics.value(OPERATIONS, operation="lease_renewal", result="ok") == times

    await eventually(look)


async def test_mailbox_lease_renewal_is_wired_and_prevents_reclaim(room: Room) -> None:
    executor = Blocking()
    config = MailboxConfig(lease_ms=80_000, lease_renewal_interval=timedelta(seconds=20))
    mailbox = room.mailbox(executor, consumer_id="lease-metrics-consumer", config=config)
    submitted = await mailbox.submit_background(RunActivation.new("thread-lease-renewal", ["go"]))
    async with asyncio.timeout(60):
        await executor.started.get()
    first = await dispatch_in(room.stores, submitted.dispatch_id, RunDispatchStatus.CLAIMED)
    assert first.lease_until == room.clock.now() + 80_000

    for times in range(1, 11):  # two and a half leases
        room.clock.advance(timedelta(seconds=20))
        await renewed(mailbox, times)
        until = room.clock.now() + 80_000
        row = await dispatch_that(room.stores, submitted.dispatch_id, lambda row: row.lease_until is not None)
        assert row.lease_until == until
    assert room.clock.now() > first.lease_until
    assert await room.stores.dispatches.reclaim_expired_leases(limit=10) == ()

    executor.release.set()
    await mailbox.settled()
    ended = await dispatch_in(room.stores, submitted.dispatch_id, RunDispatchStatus.ACKED)
    assert ended.attempt_count == 0
    assert executor.run_count == 1
    assert mailbox.metrics.value(OPERATIONS, operation="lease_renewal", result="ok") == 10


async def test_what_ended_well_is_counted_to_a_bound_and_what_failed_to_the_last(room, monkeypatch):
    """What has ended stays for days; a sweep that counted all of it took longer every day."""
    monkeypatch.setattr("postroom.stores.runs.dispatches.MOST_COUNTED", 2)
    for status in (RunDispatchStatus.ACKED, RunDispatchStatus.CANCELLED, RunDispatchStatus.DEAD_LETTER):
        for number in range(3):
            await ended(room.stores, f"{status.value}-{number}", status)
    counts = await room.stores.dispatches.count_by_status()
    assert [counts[status] for status in RunDispatchStatus] == [0, 0, 2, 2, 0, 3]
