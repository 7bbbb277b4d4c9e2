"""What the event log is told: by the mailbox, by executions through their commits, and again when it missed it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random

import pytest

from dispatch.conftest import Room
from dispatch_live import listening
from dispatch_room import (
    CommittingEmitting,
    CoordinatorAware,
    Counting,
    ImmediateLocalCancel,
    Noop,
    dispatch_that,
    enqueue_prepared_dispatch,
    events_of,
    kinds_of,
    make_resume,
    make_run,
    missing_agent,
    sample_dispatch,
    seed_messages,
    storage_failing,
    waiting_run,
)
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import AgentEvent, RunFinish, TextDelta, ToolCallReady
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import InternalError, InvalidSubmission, StoreUnavailable
from postroom.contracts.events import (
    CanonicalEvent,
    CanonicalEventDraft,
    EventScope,
    RuntimeEventDurability,
)
from postroom.contracts.live import LiveCommandKind
from postroom.contracts.messages import Message, SeqRange
from postroom.contracts.run_stores import CommitCoordinator, Committed, ThreadCommit
from postroom.contracts.runs import RunMessageInput, RunRecord, RunStatus, TerminationKind
from postroom.dispatch.capture import WRITER as RUNTIME
from postroom.dispatch.capture import EventBuffer
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.control import live_target
from postroom.dispatch.events import CheckpointRepairTask, ServerEventPublisher, StoreEventPublisher
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.sinks import EventStream, ReconnectableEventSink
from postroom.stores.runs.ports import RunStores
from postroom.testing.faults import writes
from postroom.testing.run_faults import failing_changes, with_parts

COMPACTED = RuntimeEventDurability.COMPACTED
ACCEPTED = ["MessageCommitted", "ThreadMessagesCheckpointed"]
A_SUCCESS = [*ACCEPTED, "RunQueued", "RunSubmitted", "RunStarted", "ToolCallReady", "RunFinished"]


class NoJitter(Random):
    """Takes the longest delay there may be."""

    def randint(self, a: int, b: int) -> int:
        return b


class Failing:
    """A publisher whose log is out of order."""

    storage_identity = None

    def __init__(self) -> None:
        self.refused: list[str] = []

    async def publish(self, draft: CanonicalEventDraft) -> None:
        self.refused.append(draft.event_kind)
        raise StoreUnavailable("synthetic event log failure")


class HoldingEvents:
    """A coordinator that holds each commit with events of an execution until it is released."""

    def __init__(self, inner: CommitCoordinator) -> None:
        self._inner = inner
        self.storage_identity = inner.storage_identity
        self.reached, self.release = asyncio.Event(), asyncio.Event()

    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        if any(draft.options.writer_id == RUNTIME for draft in commit.events):
            self.reached.set()
            await self.release.wait()
        return await self._inner.commit(commit, now=now)


def publisher(room: Room) -> ServerEventPublisher:
    return StoreEventPublisher(room.stores.events)


def asked(thread_id: str, text: str = "hi", agent_id: str = "agent-1") -> RunActivation:
    return RunActivation.new(thread_id, [text], agent_id=agent_id)


def committing(room: Room) -> CommittingEmitting:
    return CommittingEmitting(room.stores.coordinator)


def failing_enqueue(stores: RunStores) -> RunStores:
    """Return stores that fail when the first dispatch is to be stored."""
    return failing_changes(stores, before={"submit": writes(1)})


async def read_to_end(stream: EventStream) -> list[AgentEvent]:
    async with asyncio.timeout(60):
        return [event async for event in stream]


def only(events: Sequence[CanonicalEvent], kind: str) -> CanonicalEvent:
    """Return the one event of this kind."""
    (event,) = [event for event in events if event.event_kind == kind]
    return event


# Commands to runs.


async def test_runtime_event_capture_records_run_interrupted_on_thread_interrupt(room: Room) -> None:
    thread_id = "thread-interrupt-event"
    mailbox = room.mailbox(ImmediateLocalCancel(), publisher=publisher(room), origin="server")
    active = await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "active")
    claimed = await room.stores.dispatches.claim_dispatch(
        active.dispatch_id, "interrupt-consumer", lease_ms=30_000
    )
    assert claimed is not None
    done = await mailbox.interrupt(thread_id)
    assert done.active_dispatch is not None
    assert done.active_dispatch.dispatch_id == active.dispatch_id
    event = only(await events_of(room.stores, thread_id), "RunInterrupted")
    assert (event.run_id, event.correlation_id) == (active.run_id, active.dispatch_id)
    assert event.payload["dispatch_id"] == active.dispatch_id
    assert event.payload["status"] == "claimed"
    assert event.origin == "server"


async def test_runtime_event_capture_records_mailbox_decision_received(room: Room) -> None:
    thread_id = "thread-decision-event"
    run = waiting_run("run-decision-event", thread_id)
    await room.stores.threads.create_run(run)
    mailbox = room.mailbox(Noop(), publisher=publisher(room), origin="server")
    async with listening(room.live, live_target(run)) as heard:
        assert await mailbox.send_decision_live(thread_id, "tool-1", make_resume()) is True
        assert [command.kind for command in heard] == [LiveCommandKind.DECISION]
    events = await events_of(room.stores, thread_id)
    assert [event.event_kind for event in events] == ["MailboxDecisionReceived", "ToolPermissionResolved"]
    for event in events:
        assert (event.run_id, event.correlation_id) == ("run-decision-event", "d1")
        assert event.payload["tool_call_id"] == "tool-1"
        assert event.payload["decision_id"] == "d1"
        assert event.payload["delivery_path"] == "remote_live"
    received, resolved = events
    assert received.payload["action"] == "resume"
    assert received.payload["result"] == {"approved": True}
    assert resolved.payload["approved"] is True


# Work that comes again.


async def test_runtime_event_capture_records_run_rescheduled_on_retry_backoff(room: Room) -> None:
    thread_id, config = "thread-reschedule-retry", MailboxConfig()
    mailbox = room.mailbox(
        storage_failing(), publisher=publisher(room), origin="server", config=config, random=NoJitter(0)
    )
    submitted = await mailbox.submit_background(asked(thread_id, "retry", "agent"))
    queued = await dispatch_that(
        room.stores,
        submitted.dispatch_id,
        lambda row: row.status is RunDispatchStatus.QUEUED and row.attempt_count == 1,
    )
    await mailbox.settled()
    event = only(await events_of(room.stores, thread_id), "RunRescheduled")
    assert (event.run_id, event.correlation_id) == (submitted.run_id, submitted.dispatch_id)
    assert event.payload["dispatch_id"] == submitted.dispatch_id
    assert event.payload["status"] == "queued"
    assert event.payload["reason"] == "retry_backoff"
    assert event.payload["attempt_count"] == 1
    assert event.payload["available_at"] == queued.available_at
    assert queued.available_at == room.clock.now() + config.default_retry_delay_ms


async def test_runtime_event_capture_records_run_rescheduled_on_expired_lease_reclaim(room: Room) -> None:
    thread_id = "thread-reschedule-reclaim"
    mailbox = room.mailbox(Counting(), publisher=publisher(room), origin="server")
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "reclaim")
    claimed = await room.stores.dispatches.claim(thread_id, "stale-consumer", lease_ms=100)
    assert claimed is not None
    room.clock.advance(timedelta(milliseconds=101))
    await mailbox.run_sweep()
    event = only(await events_of(room.stores, thread_id), "RunRescheduled")
    assert event.payload["dispatch_id"] == queued.dispatch_id
    assert event.payload["status"] == "queued"
    assert event.payload["reason"] == "expired_lease_reclaimed"
    assert event.payload["attempt_count"] == 1
    assert event.payload["available_at"] == room.clock.now()
    assert (event.run_id, event.correlation_id) == (queued.run_id, queued.dispatch_id)


# What executions tell.


async def test_runtime_event_capture_disabled_clears_prior_capture_and_skips_origin_validation(
    memory_room: Room,
) -> None:
    mailbox = memory_room.mailbox(committing(memory_room))
    mailbox.with_runtime_event_capture(COMPACTED, "server")
    assert mailbox.runtime_event_capture is not None
    mailbox.with_runtime_event_capture(RuntimeEventDurability.DISABLED, "")
    assert mailbox.runtime_event_capture is None


async def test_runtime_event_capture_compacted_persists_committed_events_and_keeps_live_deltas(
    room: Room,
) -> None:
    thread_id = "thread-events"
    mailbox = room.mailbox(committing(room), publisher=publisher(room), origin="server")
    mailbox.with_runtime_event_capture(COMPACTED, "server")
    result, stream = await mailbox.submit(asked(thread_id))
    told = await read_to_end(stream)
    assert [event.delta for event in told if isinstance(event, TextDelta)] == ["live only"]
    await mailbox.settled()
    events = await events_of(room.stores, thread_id)
    assert [event.event_kind for event in events] == A_SUCCESS
    assert {(event.thread_id, event.run_id) for event in events} == {(thread_id, result.run_id)}
    assert {event.correlation_id for event in events[:2]} == {result.run_id}
    assert {event.correlation_id for event in events[2:]} == {result.dispatch_id}


async def test_the_end_of_an_execution_that_told_none_is_kept_and_told_once(room: Room) -> None:
    class Silent(Counting):
        def has_commit_coordinator(self) -> bool:
            return True

        def commit_coordinator(self) -> CommitCoordinator | None:
            return room.stores.coordinator

    mailbox = room.mailbox(Silent()).with_runtime_event_capture(COMPACTED, "server")
    _, stream = await mailbox.submit(asked("thread-silent"))
    told = await read_to_end(stream)
    await mailbox.settled()
    assert [event.event_type for event in told] == ["run_finish"]
    assert await kinds_of(room.stores, "thread-silent") == ["RunFinished"]


async def test_runtime_event_capture_maps_continue_run_start_to_run_resumed(room: Room) -> None:
    thread_id = "thread-resume"
    await room.stores.threads.create_run(waiting_run("run-resume", thread_id, agent_id="agent-1"))
    mailbox = room.mailbox(committing(room)).with_runtime_event_capture(COMPACTED, "server")
    request = RunActivation.new(thread_id, ["continue"], agent_id="agent-1", continue_run_id="run-resume")
    result, _ = await mailbox.submit(request)
    assert result.run_id == "run-resume"
    await mailbox.settled()
    assert await kinds_of(room.stores, thread_id) == ["RunResumed", "ToolCallReady", "RunFinished"]


async def test_runtime_event_capture_live_forwarding_is_not_gated_by_staging(room: Room) -> None:
    thread_id = "thread-event-fail"
    held = HoldingEvents(room.stores.coordinator)
    mailbox = room.mailbox(committing(room), stores=with_parts(room.stores, coordinator=held))
    mailbox.with_runtime_event_capture(COMPACTED, "server")
    result, stream = await mailbox.submit(asked(thread_id))
    async with asyncio.timeout(60):
        told = [await stream.next() for _ in range(4)]
        await held.reached.wait()
    kinds = ["run_start", "text_delta", "tool_call_ready", "run_finish"]
    assert [event.event_type for event in told if event is not None] == kinds
    assert await room.stores.events.count(EventScope.run(result.run_id)) == 0
    held.release.set()
    await mailbox.settled()
    assert await read_to_end(stream) == []
    assert await kinds_of(room.stores, thread_id) == ["RunStarted", "ToolCallReady", "RunFinished"]


async def test_wrap_dispatch_with_buffer_stages_into_buffer_not_writer(room: Room) -> None:
    mailbox = room.mailbox(committing(room)).with_runtime_event_capture(COMPACTED, "test")
    dispatch = sample_dispatch("t-buf", "r-buf", "d-buf", now=room.clock.now())
    stream, buffer = EventStream(), EventBuffer()
    sink = mailbox.wrap_dispatch_runtime_event_sink(ReconnectableEventSink(stream), dispatch, buffer)
    event = ToolCallReady(id="c1", name="search", arguments={"q": "x"})
    await sink.emit(event)
    assert len(buffer) == 1
    (draft,) = buffer.drafts
    assert (draft.event_kind, draft.correlation_id) == ("ToolCallReady", "d-buf")
    assert (draft.scope_id("thread"), draft.scope_id("run")) == ("t-buf", "r-buf")
    assert await room.stores.events.count(EventScope.run("r-buf")) == 0
    assert await stream.next() == event


async def test_runtime_event_capture_requires_commit_coordinator(memory_room: Room) -> None:
    mailbox = memory_room.mailbox(Noop())
    with pytest.raises(InvalidSubmission) as raised:
        mailbox.with_runtime_event_capture(COMPACTED, "test")
    assert raised.value.describe() == (
        "validation error: runtime event capture requires an executor with CommitCoordinator"
    )
    assert mailbox.runtime_event_capture is None


async def test_runtime_event_capture_requires_staged_commit_coordinator(memory_room: Room) -> None:
    mailbox = memory_room.mailbox(CoordinatorAware())
    with pytest.raises(InvalidSubmission) as raised:
        mailbox.with_runtime_event_capture(COMPACTED, "test")
    assert raised.value.describe() == (
        "validation error: runtime event capture requires an executor with StagedCommitCoordinator"
    )
    assert mailbox.runtime_event_capture is None


# The life of a dispatch.


@pytest.mark.parametrize("shares", [False, True], ids=["after the commit", "in the commit"])
async def test_runtime_event_capture_records_mailbox_dispatch_lifecycle_events(
    room: Room, shares: bool
) -> None:
    thread_id = "thread-mailbox-events"
    place = room.stores.coordinator.storage_identity if shares else None
    told = StoreEventPublisher(room.stores.events, storage_identity=place)
    mailbox = room.mailbox(committing(room), publisher=told, origin="server")
    mailbox.with_runtime_event_capture(COMPACTED, "server")
    result, stream = await mailbox.submit(asked(thread_id))
    assert isinstance((await read_to_end(stream))[-1], RunFinish)
    await mailbox.settled()
    events = await events_of(room.stores, thread_id)
    assert [event.event_kind for event in events] == A_SUCCESS
    committed = only(events, "MessageCommitted")
    assert committed.payload["message_seq"] == 1
    assert committed.payload["message_kind"] == "user_input"
    for kind in ("RunQueued", "RunSubmitted"):
        event = only(events, kind)
        assert event.payload["dispatch_id"] == result.dispatch_id
        assert event.correlation_id == result.dispatch_id


async def test_runtime_event_capture_persists_server_authored_terminal_errors(room: Room) -> None:
    thread_id = "thread-server-error"
    mailbox = room.mailbox(missing_agent(), publisher=publisher(room), origin="server")
    result, stream = await mailbox.submit(asked(thread_id))
    (finish,) = await read_to_end(stream)
    assert isinstance(finish, RunFinish)
    assert finish.termination.type is TerminationKind.ERROR
    await mailbox.settled()
    events = await events_of(room.stores, thread_id)
    assert [event.event_kind for event in events] == [*ACCEPTED, "RunQueued", "RunSubmitted", "RunErrored"]
    errored = events[-1]
    assert errored.correlation_id == result.dispatch_id
    assert "synthetic-missing-agent" in errored.payload["error"]


async def test_advisory_server_event_publish_failure_does_not_block_live_terminal_event(room: Room) -> None:
    log = Failing()
    mailbox = room.mailbox(missing_agent(), publisher=log, origin="server")
    result, stream = await mailbox.submit(asked("thread-server-error-fail"))
    async with asyncio.timeout(60):
        first = await stream.next()
    assert isinstance(first, RunFinish)
    assert first.run_id == result.run_id
    await mailbox.settled()
    assert "RunErrored" in log.refused
    missed = CheckpointRepairTask(thread_id=result.thread_id, run_id=result.run_id, first_seq=1, last_seq=1)
    assert list(mailbox.events.repairs) == [missed]
    assert await events_of(room.stores, "thread-server-error-fail") == ()
    row = await room.stores.dispatches.load_dispatch(result.dispatch_id)
    assert row is not None
    assert row.status is RunDispatchStatus.DEAD_LETTER


# Submissions that could not be queued.


async def test_runtime_event_capture_records_mailbox_submit_failed_on_enqueue_error(room: Room) -> None:
    thread_id = "thread-submit-failed"
    mailbox = room.mailbox(
        Noop(), stores=failing_enqueue(room.stores), publisher=publisher(room), origin="server"
    )
    with pytest.raises(StoreUnavailable, match="injected submit failure"):
        await mailbox.submit_background(asked(thread_id))
    events = await events_of(room.stores, thread_id)
    (failed,) = events
    assert failed.event_kind == "MailboxSubmitFailed"
    assert await room.stores.threads.latest_run(thread_id) is None, "run and dispatch are one commit"
    assert failed.run_id is not None
    assert failed.payload["run_id"] == failed.run_id
    assert failed.correlation_id == failed.payload["dispatch_id"]
    assert failed.payload["thread_id"] == thread_id
    assert failed.payload["reason"] == "enqueue_failed"
    assert "injected submit failure" in failed.payload["error"]


async def test_runtime_event_capture_records_mailbox_resume_failed_on_enqueue_error(room: Room) -> None:
    thread_id = "thread-resume-failed"
    await room.stores.threads.create_run(waiting_run("run-resume-failed", thread_id, agent_id="agent-1"))
    mailbox = room.mailbox(
        Noop(), stores=failing_enqueue(room.stores), publisher=publisher(room), origin="server"
    )
    request = RunActivation.new(
        thread_id,
        [],
        agent_id="agent-1",
        continue_run_id="run-resume-failed",
        decisions=[("tool-1", make_resume())],
    )
    with pytest.raises(StoreUnavailable, match="injected submit failure"):
        await mailbox.submit_background(request)
    events = await events_of(room.stores, thread_id)
    assert [event.event_kind for event in events] == ["MailboxSubmitFailed", "MailboxResumeFailed"]
    failed = events[-1]
    assert failed.run_id == "run-resume-failed"
    assert failed.payload["thread_id"] == thread_id
    assert failed.payload["reason"] == "enqueue_failed"
    assert "injected submit failure" in failed.payload["error"]
    (decision,) = failed.payload["decisions"]
    assert (decision["tool_call_id"], decision["decision_id"]) == ("tool-1", "d1")
    assert (decision["action"], decision["result"]) == ("resume", {"approved": True})


# Telling again.


def done_run_with_input(run_id: str, thread_id: str, message_id: str) -> RunRecord:
    run_input = RunMessageInput(
        thread_id=thread_id, range=SeqRange(from_seq=1, to_seq=1), trigger_message_ids=(message_id,)
    )
    return make_run(run_id, thread_id, RunStatus.DONE, input=run_input)


def telling(room: Room) -> Mailbox:
    return room.mailbox(Noop(), publisher=publisher(room), origin="server")


async def test_recover_repairs_thread_message_checkpoint_events_from_committed_log(room: Room) -> None:
    thread_id = "thread-repair-events"
    run = done_run_with_input("run-repair-events", thread_id, "message-repair-1")
    await seed_messages(room.stores, run, Message.user("hi", id="message-repair-1"))
    mailbox = telling(room)
    assert await mailbox.repair_thread_message_checkpoint_events() == 1
    first = await events_of(room.stores, thread_id)
    assert [event.event_kind for event in first] == ACCEPTED
    assert first[0].payload["message_id"] == "message-repair-1"
    assert {event.run_id for event in first} == {"run-repair-events"}
    assert await mailbox.repair_thread_message_checkpoint_events() == 1
    assert await events_of(room.stores, thread_id) == first


async def test_maintenance_drain_republishes_enqueued_checkpoint_repair(room: Room) -> None:
    thread_id = "thread-drain"
    run = done_run_with_input("run-drain", thread_id, "msg-drain-1")
    await seed_messages(room.stores, run, Message.user("hi", id="msg-drain-1"))
    mailbox = telling(room)
    task = CheckpointRepairTask(thread_id=thread_id, run_id="run-drain", first_seq=1, last_seq=1)
    mailbox.events.repair_later(task)
    await mailbox.run_sweep()
    first = await events_of(room.stores, thread_id)
    assert [event.event_kind for event in first] == ACCEPTED
    assert list(mailbox.events.repairs) == []
    mailbox.events.repair_later(task)
    await mailbox.run_sweep()
    assert await events_of(room.stores, thread_id) == first
    assert list(mailbox.events.repairs) == []


async def test_maintenance_drain_requeues_checkpoint_repair_when_messages_missing(room: Room) -> None:
    mailbox = telling(room)
    task = CheckpointRepairTask(thread_id="thread-missing", run_id="run-missing", first_seq=1, last_seq=1)
    mailbox.events.repair_later(task)
    await mailbox.run_sweep()
    assert await events_of(room.stores, "thread-missing") == ()
    assert list(mailbox.events.repairs) == [task]


async def test_checkpoint_event_recording_rejects_out_of_range_message_seq(room: Room) -> None:
    mailbox = telling(room)
    message = Message.user("hi", id="msg-1")
    with pytest.raises(InternalError):
        await mailbox.checkpoint_repair.record("thread-range", "run-range", [message], 1, 2)
    assert await events_of(room.stores, "thread-range") == ()
