"""Leases that are renewed while a run is at work, and the numbers that tell how long things took."""

import asyncio
from datetime import timedelta
from typing import Any

from dispatch.conftest import Room
from dispatch_room import Blocking, Counting, dispatch_in, dispatch_that, eventually
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import AgentEvent, EventSink, ToolCallDone, ToolCallResumed
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.tools import Suspension, ToolCallOutcome, ToolResult
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.sinks import SuspensionAwareSink
from postroom.testing import ManualClock

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


async def renewed(mailbox: Mailbox, times: int) -> None:
    """Return when the lease was renewed so often; its keeper sleeps again then."""

    async def look() -> bool:
        return mailbox.metrics.value(OPERATIONS, operation="lease_renewal", result="ok") == times

    await eventually(look)


async def test_mailbox_lease_renewal_is_wired_and_prevents_reclaim(room: Room) -> None:
    executor = Blocking()
    config = MailboxConfig(lease_ms=80, lease_renewal_interval=timedelta(milliseconds=20))
    mailbox = room.mailbox(executor, consumer_id="lease-metrics-consumer", config=config)
    submitted = await mailbox.submit_background(RunActivation.new("thread-lease-renewal", ["go"]))
    async with asyncio.timeout(5):
        await executor.started.get()
    first = await dispatch_in(room.stores, submitted.dispatch_id, RunDispatchStatus.CLAIMED)
    assert first.lease_until == room.clock.now() + 80

    for times in range(1, 11):  # two and a half leases
        room.clock.advance(timedelta(milliseconds=20))
        await renewed(mailbox, times)
        until = room.clock.now() + 80
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
