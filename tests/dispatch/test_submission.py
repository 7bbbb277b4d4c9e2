"""Accepting work in the foreground and behind others; cancel and interrupt of what was accepted."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from dispatch.conftest import Room
from dispatch_live import as_time_passes, claimed_elsewhere, drop, listening
from dispatch_room import (
    AgentUnknown,
    Blocking,
    Counting,
    ImmediateLocalCancel,
    Noop,
    Queued,
    enqueue_prepared_dispatch,
    events_of,
    kinds_of,
    sample_dispatch,
)
from postroom.contracts.activation import AdapterKind, RunActivation, RunMode
from postroom.contracts.agent_events import AgentEvent, RunFinish
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import ActiveRunConflict
from postroom.contracts.events import CanonicalEvent
from postroom.contracts.live import LiveCommandKind, LiveRunCommand
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunRecord, RunStatus, TerminationKind, TerminationReason
from postroom.dispatch.config import ACTIVE_RUN_CONFLICT_MESSAGE, MailboxConfig
from postroom.dispatch.control import live_target
from postroom.dispatch.events import StoreEventPublisher
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.sinks import EventStream
from postroom.dispatch.submission import MailboxDispatchStatus
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock
from postroom.testing.run_faults import failing_changes

WAITS = MailboxConfig(cancel_wait_ms=250, cancel_poll_ms=25)
PATIENT = MailboxConfig(cancel_wait_ms=10**9, cancel_poll_ms=25)


def asked(thread_id: str, *messages: str, agent_id: str | None = "agent") -> RunActivation:
    return RunActivation.new(thread_id, messages, agent_id=agent_id)


async def row_of(stores: RunStores, dispatch_id: str) -> RunDispatch:
    row = await stores.dispatches.load_dispatch(dispatch_id)
    assert row is not None
    return row


async def run_of(stores: RunStores, run_id: str) -> RunRecord:
    run = await stores.threads.load_run(run_id)
    assert run is not None
    return run


async def texts_of(stores: RunStores, thread_id: str) -> list[str]:
    return [message.text() for message in await stores.threads.load_messages(thread_id) or ()]


async def read_to_end(stream: EventStream) -> list[AgentEvent]:
    async with asyncio.timeout(60):
        return [event async for event in stream]


def only(events: Sequence[CanonicalEvent], kind: str) -> CanonicalEvent:
    """Return the one event of this kind."""
    (event,) = [event for event in events if event.event_kind == kind]
    return event


async def assert_cancelled(stores: RunStores, run_id: str, dispatch_id: str) -> None:
    run = await run_of(stores, run_id)
    assert run.status is RunStatus.DONE
    assert run.termination == TerminationReason.cancelled()
    assert run.dispatch_id == dispatch_id


async def active_elsewhere(room: Room, mailbox: Mailbox, thread_id: str) -> tuple[Queued, RunDispatch]:
    """Return a run that another worker has claimed, with its only message "active"."""
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "active")
    return queued, await claimed_elsewhere(room.stores, queued.dispatch_id)


async def assert_only_active_is_there(room: Room, thread_id: str, active: Queued) -> None:
    """Nothing of the refused submission was written, and nothing that was there has changed."""
    assert await texts_of(room.stores, thread_id) == ["active"]
    rows = await room.stores.dispatches.list_dispatches(thread_id)
    assert [(row.dispatch_id, row.status) for row in rows] == [
        (active.dispatch_id, RunDispatchStatus.CLAIMED)
    ]
    runs = await room.stores.threads.list_runs(RunQuery(thread_id=thread_id))
    assert [run.run_id for run in runs] == [active.run_id]
    assert await room.stores.dispatches.current_dispatch_epoch(thread_id) == 0
    assert await room.stores.threads.pending_messages(thread_id) == ()


# Behind the others.


async def test_submit_background_enqueues_dispatch(room: Room) -> None:
    mailbox = room.mailbox(AgentUnknown())
    result = await mailbox.submit_background(asked("thread-1", "hello", agent_id="agent-1"))
    assert result.thread_id == "thread-1"
    assert result.dispatch_id
    assert result.run_id
    assert result.dispatch_id != result.run_id
    (row,) = await room.stores.dispatches.list_dispatches("thread-1")
    assert (row.dispatch_id, row.run_id) == (result.dispatch_id, result.run_id)
    assert (await run_of(room.stores, result.run_id)).dispatch_id == result.dispatch_id


async def test_submit_background_delivers_scheduled_policy_context(room: Room) -> None:
    executor = Counting()
    mailbox = room.mailbox(executor, consumer_id="recording-consumer")
    request = asked("thread-policy-bg", "hello", agent_id="agent-1").traced(adapter=AdapterKind.ACP)
    result = await mailbox.submit_background(request)
    await mailbox.settled()
    (activation,) = executor.activations
    assert activation.trace.run_mode is RunMode.SCHEDULED
    assert activation.trace.adapter is AdapterKind.ACP
    assert activation.trace.dispatch_id == result.dispatch_id
    assert activation.trace.session_id
    row = await row_of(room.stores, result.dispatch_id)
    assert row.dispatch_instance_id == activation.trace.session_id


async def test_list_dispatches_returns_entries(room: Room) -> None:
    executor = Blocking()
    mailbox = room.mailbox(executor)
    results = []
    for number in range(3):
        results.append(
            await mailbox.submit_background(asked("thread-list", "msg", agent_id=f"agent-{number}"))
        )
        room.clock.advance(timedelta(milliseconds=1))
    async with asyncio.timeout(60):
        await executor.started.get()
    rows = await mailbox.list_dispatches("thread-list")
    assert [(row.dispatch_id, row.run_id) for row in rows] == [
        (result.dispatch_id, result.run_id) for result in results
    ]
    assert [row.status for row in rows] == [
        RunDispatchStatus.CLAIMED,
        RunDispatchStatus.QUEUED,
        RunDispatchStatus.QUEUED,
    ]
    runs = [await run_of(room.stores, result.run_id) for result in results]
    assert [run.agent_id for run in runs] == ["agent-0", "agent-1", "agent-2"]
    executor.release.set()
    await mailbox.settled()
    rows = await mailbox.list_dispatches("thread-list", (RunDispatchStatus.ACKED,))
    assert [row.dispatch_id for row in rows] == [result.dispatch_id for result in results]


async def test_submit_background_returns_correct_status(room: Room) -> None:
    executor = Blocking()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(asked("thread-status", "a", agent_id="agent-1"))
    second = await mailbox.submit_background(asked("thread-status", "b", agent_id="agent-1"))
    assert first.status is MailboxDispatchStatus.RUNNING
    assert second.status is MailboxDispatchStatus.QUEUED
    assert first.run_id != second.run_id
    executor.release.set()
    await mailbox.settled()
    assert [activation.run_id for activation in executor.activations] == [first.run_id, second.run_id]


# Cancel and interrupt.


async def test_cancel_queued_dispatch_works(room: Room) -> None:
    mailbox = room.mailbox(Noop(), publisher=StoreEventPublisher(room.stores.events), origin="server")
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-cancel", "hello")
    assert await mailbox.cancel(queued.dispatch_id) is True
    assert (await row_of(room.stores, queued.dispatch_id)).status is RunDispatchStatus.CANCELLED
    await assert_cancelled(room.stores, queued.run_id, queued.dispatch_id)
    event = only(await events_of(room.stores, "thread-cancel"), "RunCancelled")
    assert event.payload["dispatch_id"] == queued.dispatch_id
    assert event.payload["status"] == "cancelled"
    assert event.correlation_id == queued.dispatch_id
    operations = "postroom_mailbox_operations_total"
    assert mailbox.metrics.value(operations, operation="mark_run_cancelled", result="ok") == 1
    assert mailbox.metrics.value("postroom_runs_total", outcome="cancelled") == 1


async def test_interrupt_bumps_dispatch_epoch(room: Room) -> None:
    mailbox = room.mailbox(AgentUnknown())
    await mailbox.submit_background(asked("thread-int", "a", agent_id="agent-1"))
    first = await mailbox.interrupt("thread-int")
    assert first.new_dispatch_epoch == 1
    assert await room.stores.dispatches.current_dispatch_epoch("thread-int") == 1
    assert (await mailbox.interrupt("thread-int")).new_dispatch_epoch == 2


async def test_interrupt_marks_superseded_queued_runs_cancelled(room: Room) -> None:
    mailbox = room.mailbox(Noop())
    thread_id = "thread-int-runs"
    first = await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "first")
    second = await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "second")
    done = await mailbox.interrupt(thread_id)
    assert done.superseded_count == 2
    superseded = {row.dispatch_id for row in done.superseded_dispatches}
    assert superseded == {first.dispatch_id, second.dispatch_id}
    assert done.active_dispatch is None
    for queued in (first, second):
        assert (await row_of(room.stores, queued.dispatch_id)).status is RunDispatchStatus.SUPERSEDED
        await assert_cancelled(room.stores, queued.run_id, queued.dispatch_id)
    operations = "postroom_mailbox_operations_total"
    assert mailbox.metrics.value(operations, operation="mark_run_superseded", result="ok") == 2
    assert mailbox.metrics.value("postroom_runs_total", outcome="superseded") == 2


# Newest wins.


async def test_submit_returns_event_channel(room: Room) -> None:
    mailbox = room.mailbox(AgentUnknown())
    result, stream = await mailbox.submit(asked("thread-stream", "hi", agent_id="agent-1"))
    assert result.thread_id == "thread-stream"
    assert result.dispatch_id
    assert result.status is MailboxDispatchStatus.RUNNING
    (finish,) = await read_to_end(stream)
    assert isinstance(finish, RunFinish)
    assert finish.run_id == result.run_id
    assert finish.termination.type is TerminationKind.ERROR


async def test_foreground_submit_marks_prior_queued_run_cancelled(room: Room) -> None:
    executor = Counting()
    mailbox = room.mailbox(executor, consumer_id="foreground-consumer")
    thread_id = "thread-submit-supersede"
    old = await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "old")
    result, _ = await mailbox.submit(asked(thread_id, "new"))
    assert (await row_of(room.stores, old.dispatch_id)).status is RunDispatchStatus.SUPERSEDED
    await assert_cancelled(room.stores, old.run_id, old.dispatch_id)
    await mailbox.settled()
    assert (await row_of(room.stores, result.dispatch_id)).status is RunDispatchStatus.ACKED
    assert [activation.run_id for activation in executor.activations] == [result.run_id]


async def test_submit_inline_claim_empty_cancels_precreated_run(room: Room) -> None:
    """A foreground submission that cannot be claimed leaves no run of its own behind, and no dispatch."""
    thread_id = "thread-inline-empty"
    changes: Counter[str] = Counter()

    async def another_is_faster(change: str) -> None:
        if change == "submit" and changes["submit"] == 1:
            other = sample_dispatch(thread_id, "run-other", "dispatch-other", now=room.clock.now())
            await room.stores.dispatches.enqueue(other)
            await claimed_elsewhere(room.stores, other.dispatch_id)

    stores = failing_changes(room.stores, counts=changes, begins=another_is_faster)
    mailbox = room.mailbox(Noop(), stores=stores, consumer_id="inline-empty-consumer")
    with pytest.raises(ActiveRunConflict) as raised:
        await mailbox.submit(asked(thread_id, "go"))
    assert raised.value.message == ACTIVE_RUN_CONFLICT_MESSAGE
    assert changes["submit"] == 1
    (row,) = await room.stores.dispatches.list_dispatches(thread_id)
    assert (row.dispatch_id, row.status) == ("dispatch-other", RunDispatchStatus.CLAIMED)
    assert await room.stores.threads.latest_run(thread_id) is None
    assert not await texts_of(room.stores, thread_id)


async def test_foreground_submit_sends_live_cancel_for_remote_active_dispatch(
    room: Room,
) -> None:
    mailbox = room.mailbox(
        Counting(),
        consumer_id="foreground-consumer",
        publisher=StoreEventPublisher(room.stores.events),
        origin="server",
    )
    thread_id = "thread-remote-foreground"
    active, claimed = await active_elsewhere(room, mailbox, thread_id)

    async def released(command: LiveRunCommand) -> bool:
        await room.stores.dispatches.ack(claimed.claim_proof)
        return True

    async with listening(room.live, live_target(active.dispatch), released) as heard:
        result, _ = await mailbox.submit(asked(thread_id, "replacement"))
        assert [command.kind for command in heard] == [LiveCommandKind.CANCEL]
    assert result.status is MailboxDispatchStatus.RUNNING
    assert result.dispatch_id != active.dispatch_id
    assert (await row_of(room.stores, active.dispatch_id)).status is RunDispatchStatus.ACKED
    interrupted = only(await events_of(room.stores, thread_id), "RunInterrupted")
    assert interrupted.payload["dispatch_id"] == active.dispatch_id
    assert interrupted.correlation_id == active.dispatch_id
    await mailbox.settled()
    assert (await row_of(room.stores, result.dispatch_id)).status is RunDispatchStatus.ACKED


async def test_foreground_submit_does_not_prepare_replacement_when_remote_cancel_times_out(
    room: Room,
) -> None:
    executor, timer = Counting(), ManualClock()
    mailbox = room.mailbox(
        executor,
        consumer_id="foreground-consumer",
        config=WAITS,
        timer=timer,
        publisher=StoreEventPublisher(room.stores.events),
        origin="server",
    )
    thread_id = "thread-remote-cancel-timeout"
    active, _ = await active_elsewhere(room, mailbox, thread_id)
    async with listening(room.live, live_target(active.dispatch)) as heard:
        with pytest.raises(ActiveRunConflict) as raised:
            await as_time_passes(timer, mailbox.submit(asked(thread_id, "replacement")))
        assert [command.kind for command in heard] == [LiveCommandKind.CANCEL]
    assert raised.value.message == ACTIVE_RUN_CONFLICT_MESSAGE
    await assert_only_active_is_there(room, thread_id, active)
    assert executor.run_count == 0
    timeout = only(await events_of(room.stores, thread_id), "MailboxTimeout")
    assert timeout.payload["reason"] == "remote_cancel_release_wait"


async def test_foreground_submit_does_not_prepare_replacement_when_local_cancel_times_out(
    room: Room,
) -> None:
    timer = ManualClock()
    mailbox = room.mailbox(
        ImmediateLocalCancel(),
        consumer_id="foreground-consumer",
        config=WAITS,
        timer=timer,
        publisher=StoreEventPublisher(room.stores.events),
        origin="server",
    )
    thread_id = "thread-local-cancel-timeout"
    active, _ = await active_elsewhere(room, mailbox, thread_id)
    with pytest.raises(ActiveRunConflict) as raised:
        await as_time_passes(timer, mailbox.submit(asked(thread_id, "replacement")))
    assert raised.value.message == ACTIVE_RUN_CONFLICT_MESSAGE
    await assert_only_active_is_there(room, thread_id, active)
    event = only(await events_of(room.stores, thread_id), "MailboxTimeout")
    assert event.payload["dispatch_id"] == active.dispatch_id
    assert event.payload["reason"] == "local_cancel_release_wait"
    assert event.payload["timeout_ms"] == WAITS.cancel_wait_ms
    assert "RunInterrupted" not in await kinds_of(room.stores, thread_id)


async def test_foreground_submit_waits_for_local_cancelled_dispatch_to_release_claim(
    room: Room,
) -> None:
    timer = ManualClock()
    mailbox = room.mailbox(
        ImmediateLocalCancel(),
        consumer_id="foreground-consumer",
        config=WAITS,
        timer=timer,
    )
    thread_id = "thread-local-cancel-claim-window"
    active, _ = await active_elsewhere(room, mailbox, thread_id)
    began = timer.now()
    with pytest.raises(ActiveRunConflict) as raised:
        await as_time_passes(timer, mailbox.submit(asked(thread_id, "replacement")))
    assert raised.value.message == ACTIVE_RUN_CONFLICT_MESSAGE
    assert timer.now() - began >= WAITS.cancel_wait_ms
    await assert_only_active_is_there(room, thread_id, active)


async def test_submit_inline_claim_fails_when_thread_already_claimed(room: Room) -> None:
    executor, timer = Blocking(), ManualClock()
    mailbox = room.mailbox(executor, config=PATIENT, timer=timer)
    first, _ = await mailbox.submit(asked("thread-clash", "first", agent_id="agent-1"))
    async with asyncio.timeout(60):
        await executor.started.get()
    second, _ = await as_time_passes(
        timer, mailbox.submit(asked("thread-clash", "second", agent_id="agent-1"))
    )
    taken = (RunDispatchStatus.CLAIMED, RunDispatchStatus.ACKED)  # what is soon done may have ended by now
    rows = await room.stores.dispatches.list_dispatches("thread-clash", taken)
    assert [row.dispatch_id for row in rows if row.dispatch_id != first.dispatch_id] == [second.dispatch_id]
    assert RunDispatchStatus.CLAIMED not in {
        row.status for row in rows if row.dispatch_id == first.dispatch_id
    }
    await mailbox.settled()
    await assert_cancelled(room.stores, first.run_id, first.dispatch_id)
    assert (await run_of(room.stores, second.run_id)).termination == TerminationReason.natural_end()

    thread_id = "thread-clash-elsewhere"
    active, _ = await active_elsewhere(room, mailbox, thread_id)
    async with listening(room.live, live_target(active.dispatch), drop):
        with pytest.raises(ActiveRunConflict) as raised:
            await mailbox.submit(asked(thread_id, "second"))
    assert raised.value.message == ACTIVE_RUN_CONFLICT_MESSAGE
    await assert_only_active_is_there(room, thread_id, active)
