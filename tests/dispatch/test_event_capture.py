"""The entries of the event log: by the mailbox, by executions through their commits, and again after a lost write."""

import asyncio

import pytest

from dispatch_room import (
    DEAD,
    CommittingEmitting,
    CoordinatorAware,
    Counting,
    ImmediateLocalCancel,
    Longest,
    Noop,
    Raising,
    ask,
    done,
    enqueue_prepared_dispatch,
    events_of,
    kinds_of,
    listening,
    make_resume,
    make_run,
    missing_agent,
    only,
    read_to_end,
    sample_dispatch,
    seed_messages,
    storage_failing,
    waiting_run,
)
from postroom.contracts import errors
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import RunFinish, TextDelta, ToolCallReady
from postroom.contracts.events import EventScope, RuntimeEventDurability
from postroom.contracts.live import LiveCommandKind
from postroom.contracts.messages import Message, SeqRange
from postroom.contracts.runs import RunMessageInput, RunStatus, TerminationKind
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.control import live_target
from postroom.dispatch.events import CheckpointRepairTask, StoreEventPublisher
from postroom.dispatch.sinks import WRITER as RUNTIME
from postroom.dispatch.sinks import EventStream, ReconnectableEventSink
from postroom.testing.run_faults import failing_changes, with_parts

COMPACTED = RuntimeEventDurability.COMPACTED
ACCEPTED = ["MessageCommitted", "ThreadMessagesCheckpointed"]
A_SUCCESS = [*ACCEPTED, "RunQueued", "RunSubmitted", "RunStarted", "ToolCallReady", "RunFinished"]


def telling(room, executor, **settings):
    """Return a mailbox that tells the log of the room."""
    return room.mailbox(
        executor, **{"publisher": StoreEventPublisher(room.stores.events), "origin": "server"} | settings
    )


def capturing(room, executor=None, **settings):
    """Return a mailbox that captures what its executions tell."""
    mailbox = room.mailbox(executor or CommittingEmitting(room.stores.coordinator), **settings)
    return mailbox.with_runtime_event_capture(COMPACTED, "server")


def told(event, *names):
    """Return whose event it is, and these parts of it."""
    return (event.run_id, event.correlation_id, *(event.payload[name] for name in names))


# Commands to runs, and work that comes again.


async def test_runtime_event_capture_records_run_interrupted_on_thread_interrupt(room):
    mailbox = telling(room, ImmediateLocalCancel())
    active = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "active")
    assert await room.stores.dispatches.claim_dispatch(active.dispatch_id, "consumer", lease_ms=30_000)
    assert (await mailbox.interrupt("t")).active_dispatch.dispatch_id == active.dispatch_id
    event = only(await events_of(room.stores, "t"), "RunInterrupted")
    ids = (active.run_id, active.dispatch_id, active.dispatch_id)
    assert told(event, "dispatch_id", "status") == (*ids, "claimed")
    assert event.origin == "server"


async def test_runtime_event_capture_records_mailbox_decision_received(room):
    run = waiting_run("r", "t")
    await room.place(run)
    mailbox = telling(room, Noop())
    async with listening(room.live, live_target(run)) as heard:
        assert await mailbox.send_decision_live("t", "tool-1", make_resume()) is True
        assert [command.kind for command in heard] == [LiveCommandKind.DECISION]
    received, resolved = await events_of(room.stores, "t")
    assert [received.event_kind, resolved.event_kind] == ["MailboxDecisionReceived", "ToolPermissionResolved"]
    for event in (received, resolved):
        names = ("tool_call_id", "decision_id", "delivery_path")
        assert told(event, *names) == ("r", "d1", "tool-1", "d1", "remote_live")
    assert (received.payload["action"], received.payload["result"]) == ("resume", {"approved": True})
    assert resolved.payload["approved"] is True


RESCHEDULED = ("dispatch_id", "status", "reason", "attempt_count", "available_at")


async def test_runtime_event_capture_records_run_rescheduled_on_retry_backoff(room):
    config = MailboxConfig()
    mailbox = telling(room, storage_failing(), config=config, random=Longest())
    submitted = await mailbox.submit_background(ask())
    queued = await room.failed(mailbox, submitted)
    event = only(await events_of(room.stores, "t"), "RunRescheduled")
    ids = (submitted.run_id, submitted.dispatch_id, submitted.dispatch_id)
    assert told(event, *RESCHEDULED) == (*ids, "queued", "retry_backoff", 1, queued.available_at)
    assert queued.available_at == room.clock.now() + config.default_retry_delay_ms


async def test_runtime_event_capture_records_run_rescheduled_on_expired_lease_reclaim(room):
    mailbox = telling(room, Counting())
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "reclaim")
    assert await room.stores.dispatches.claim("t", "stale-consumer", lease_ms=100)
    room.passes(milliseconds=101)
    await mailbox.run_sweep()
    event = only(await events_of(room.stores, "t"), "RunRescheduled")
    ids = (queued.run_id, queued.dispatch_id, queued.dispatch_id)
    now = room.clock.now()
    assert told(event, *RESCHEDULED) == (*ids, "queued", "expired_lease_reclaimed", 1, now)


# What executions tell.


async def test_runtime_event_capture_disabled_clears_prior_capture_and_skips_origin_validation(room):
    mailbox = capturing(room)
    assert mailbox.runtime_event_capture is not None
    mailbox.with_runtime_event_capture(RuntimeEventDurability.DISABLED, "")
    assert mailbox.runtime_event_capture is None


async def test_runtime_event_capture_compacted_persists_committed_events_and_keeps_live_deltas(room):
    mailbox = capturing(room, publisher=StoreEventPublisher(room.stores.events), origin="server")
    result, stream = await mailbox.submit(ask())
    deltas = [event.delta for event in await read_to_end(stream) if isinstance(event, TextDelta)]
    assert deltas == ["live only"]
    await mailbox.settled()
    events = await events_of(room.stores, "t")
    assert [event.event_kind for event in events] == A_SUCCESS
    assert {(event.thread_id, event.run_id) for event in events} == {("t", result.run_id)}
    correlated = [result.run_id] * 2 + [result.dispatch_id] * 5
    assert [event.correlation_id for event in events] == correlated


async def test_the_end_of_an_execution_that_told_none_is_kept_and_told_once(room):
    class Silent(CommittingEmitting):
        async def execute(self, activation, sink):
            return done(activation)

    mailbox = capturing(room, Silent(room.stores.coordinator))
    _, stream = await mailbox.submit(ask())
    assert [event.event_type for event in await read_to_end(stream)] == ["run_finish"]
    await mailbox.settled()
    assert await kinds_of(room.stores, "t") == ["RunFinished"]


async def test_runtime_event_capture_maps_continue_run_start_to_run_resumed(room):
    await room.place(waiting_run("r", "t"))
    mailbox = capturing(room)
    result, _ = await mailbox.submit(RunActivation.new("t", ["continue"], continue_run_id="r"))
    assert result.run_id == "r"
    await mailbox.settled()
    assert await kinds_of(room.stores, "t") == ["RunResumed", "ToolCallReady", "RunFinished"]


async def test_runtime_event_capture_live_forwarding_is_not_gated_by_staging(room):
    reached, release = asyncio.Event(), asyncio.Event()

    class HoldingEvents:
        storage_identity = room.stores.coordinator.storage_identity

        async def commit(self, commit, *, now=None):
            if any(draft.options.writer_id == RUNTIME for draft in commit.events):
                reached.set()
                await release.wait()
            return await room.stores.coordinator.commit(commit, now=now)

    mailbox = capturing(room, stores=with_parts(room.stores, coordinator=HoldingEvents()))
    result, stream = await mailbox.submit(ask())
    async with asyncio.timeout(60):
        events = [await stream.next() for _ in range(4)]
        await reached.wait()
    kinds = ["run_start", "text_delta", "tool_call_ready", "run_finish"]
    assert [event.event_type for event in events] == kinds
    assert await room.stores.events.count(EventScope.run(result.run_id)) == 0
    release.set()
    await mailbox.settled()
    assert await read_to_end(stream) == []
    assert await kinds_of(room.stores, "t") == ["RunStarted", "ToolCallReady", "RunFinished"]


async def test_wrap_dispatch_with_buffer_stages_into_buffer_not_writer(room):
    mailbox = capturing(room)
    dispatch = sample_dispatch("t", "r", "d", now=room.clock.now())
    stream, buffer = EventStream(), []
    sink = mailbox.wrap_dispatch_runtime_event_sink(ReconnectableEventSink(stream), dispatch, buffer)
    event = ToolCallReady(id="c1", name="search", arguments={"q": "x"})
    await sink.emit(event)
    (draft,) = buffer
    assert (len(buffer), draft.event_kind, draft.correlation_id) == (1, "ToolCallReady", "d")
    assert (draft.scope_id("thread"), draft.scope_id("run")) == ("t", "r")
    assert await room.stores.events.count(EventScope.run("r")) == 0
    assert await stream.next() == event


def assert_capture_refused(mailbox, needs):
    with pytest.raises(errors.InvalidSubmission) as raised:
        mailbox.with_runtime_event_capture(COMPACTED, "test")
    told = f"validation error: runtime event capture requires an executor with {needs}"
    assert raised.value.describe() == told
    assert mailbox.runtime_event_capture is None


async def test_runtime_event_capture_requires_commit_coordinator(room):
    assert_capture_refused(room.mailbox(Noop()), "CommitCoordinator")


async def test_runtime_event_capture_requires_staged_commit_coordinator(room):
    assert_capture_refused(room.mailbox(CoordinatorAware()), "StagedCommitCoordinator")


# The life of a dispatch.


@pytest.mark.parametrize("shares", [False, True], ids=["after the commit", "in the commit"])
async def test_runtime_event_capture_records_mailbox_dispatch_lifecycle_events(room, shares):
    place = room.stores.coordinator.storage_identity if shares else None
    publisher = StoreEventPublisher(room.stores.events, storage_identity=place)
    mailbox = capturing(room, publisher=publisher, origin="server")
    result, stream = await mailbox.submit(ask())
    assert isinstance((await read_to_end(stream))[-1], RunFinish)
    await mailbox.settled()
    events = await events_of(room.stores, "t")
    assert [event.event_kind for event in events] == A_SUCCESS
    committed = only(events, "MessageCommitted").payload
    assert (committed["message_seq"], committed["message_kind"]) == (1, "user_input")
    for kind in ("RunQueued", "RunSubmitted"):
        ids = (result.run_id, result.dispatch_id, result.dispatch_id)
        assert told(only(events, kind), "dispatch_id") == ids


async def test_runtime_event_capture_persists_server_authored_terminal_errors(room):
    mailbox = telling(room, missing_agent())
    result, stream = await mailbox.submit(ask())
    (finish,) = await read_to_end(stream)
    assert isinstance(finish, RunFinish)
    assert finish.termination.type is TerminationKind.ERROR
    await mailbox.settled()
    events = await events_of(room.stores, "t")
    assert [event.event_kind for event in events] == [*ACCEPTED, "RunQueued", "RunSubmitted", "RunErrored"]
    assert events[-1].correlation_id == result.dispatch_id
    assert "synthetic-missing-agent" in events[-1].payload["error"]


async def test_advisory_server_event_publish_failure_does_not_block_live_terminal_event(room):
    class Failing:
        storage_identity, refused = None, ()

        async def publish(self, draft):
            self.refused += (draft.event_kind,)
            raise errors.StoreUnavailable("synthetic event log failure")

    log = Failing()
    mailbox = telling(room, missing_agent(), publisher=log)
    result, stream = await mailbox.submit(ask())
    async with asyncio.timeout(60):
        first = await stream.next()
    assert isinstance(first, RunFinish)
    assert first.run_id == result.run_id
    await mailbox.settled()
    assert "RunErrored" in log.refused
    missed = CheckpointRepairTask(thread_id="t", run_id=result.run_id, first_seq=1, last_seq=1)
    assert list(mailbox.events.repairs) == [missed]
    assert await events_of(room.stores, "t") == ()
    assert (await room.row(result)).status is DEAD


async def test_a_failure_that_is_tried_again_tells_no_end_and_the_reader_stays(room):
    """Clients must not see a failure and then a history without it."""

    class LimitedOnce(Raising):
        async def execute(self, activation, sink):
            return await super().execute(activation, sink) if self.run_count == 1 else done(activation)

    mailbox = room.mailbox(LimitedOnce(errors.RateLimited("slow down")))
    _, stream = await mailbox.submit(ask())
    await mailbox.settled()
    room.passes(minutes=1)
    await mailbox.poll()
    retrying, finish = await read_to_end(stream)
    assert (retrying.event_type, retrying.attempt) == ("run_retrying", 1)
    assert (finish.event_type, finish.termination.type) == ("run_finish", "natural_end")


# Submissions that could not be queued.


async def failed_submission(room, request):
    """Submit while the first dispatch cannot be stored; return the events of the thread."""
    stores = failing_changes(room.stores, before={"submit": [True]})
    with pytest.raises(errors.StoreUnavailable, match="injected submit failure"):
        await telling(room, Noop(), stores=stores).submit_background(request)
    events = await events_of(room.stores, "t")
    assert (events[-1].payload["thread_id"], events[-1].payload["reason"]) == ("t", "enqueue_failed")
    assert "injected submit failure" in events[-1].payload["error"]
    return events


async def test_runtime_event_capture_records_mailbox_submit_failed_on_enqueue_error(room):
    (failed,) = await failed_submission(room, ask())
    assert failed.event_kind == "MailboxSubmitFailed"
    assert await room.stores.threads.latest_run("t") is None, "run and dispatch are one commit"
    assert failed.payload["run_id"] == failed.run_id is not None
    assert failed.correlation_id == failed.payload["dispatch_id"]


async def test_runtime_event_capture_records_mailbox_resume_failed_on_enqueue_error(room):
    await room.place(waiting_run("r", "t"))
    decisions = [("tool-1", make_resume())]
    events = await failed_submission(
        room, RunActivation.new("t", [], continue_run_id="r", decisions=decisions)
    )
    assert [event.event_kind for event in events] == ["MailboxSubmitFailed", "MailboxResumeFailed"]
    assert events[-1].run_id == "r"
    (decision,) = events[-1].payload["decisions"]
    assert (decision["tool_call_id"], decision["decision_id"]) == ("tool-1", "d1")
    assert (decision["action"], decision["result"]) == ("resume", {"approved": True})


# Telling again.


async def one_untold_message(room):
    """Store a run that has ended, with a message that the log was not told of; return the task that tells it."""
    asked = RunMessageInput(thread_id="t", range=SeqRange(from_seq=1, to_seq=1), trigger_message_ids=("m1",))
    await seed_messages(
        room.stores, make_run("r", "t", RunStatus.DONE, input=asked), Message.user("hi", id="m1")
    )
    return CheckpointRepairTask(thread_id="t", run_id="r", first_seq=1, last_seq=1)


async def test_recover_repairs_thread_message_checkpoint_events_from_committed_log(room):
    await one_untold_message(room)
    mailbox = telling(room, Noop())
    assert await mailbox.repair_thread_message_checkpoint_events() == 1
    first = await events_of(room.stores, "t")
    assert [event.event_kind for event in first] == ACCEPTED
    assert first[0].payload["message_id"] == "m1"
    assert {event.run_id for event in first} == {"r"}
    assert await mailbox.repair_thread_message_checkpoint_events() == 1
    assert await events_of(room.stores, "t") == first


async def test_maintenance_drain_republishes_enqueued_checkpoint_repair(room):
    task, seen = await one_untold_message(room), []
    mailbox = telling(room, Noop())
    for _ in range(2):
        mailbox.events.repair_later(task)
        await mailbox.run_sweep()
        assert list(mailbox.events.repairs) == []
        seen.append(await events_of(room.stores, "t"))
    assert [event.event_kind for event in seen[0]] == ACCEPTED
    assert seen[1] == seen[0]


async def test_maintenance_drain_requeues_checkpoint_repair_when_messages_missing(room):
    mailbox = telling(room, Noop())
    task = CheckpointRepairTask(thread_id="t", run_id="run-missing", first_seq=1, last_seq=1)
    mailbox.events.repair_later(task)
    await mailbox.run_sweep()
    assert await events_of(room.stores, "t") == ()
    assert list(mailbox.events.repairs) == [task]


async def test_checkpoint_event_recording_rejects_out_of_range_message_seq(room):
    mailbox = telling(room, Noop())
    with pytest.raises(errors.InternalError):
        await mailbox.checkpoint_repair.record("t", "run-range", [Message.user("hi", id="msg-1")], 1, 2)
    assert await events_of(room.stores, "t") == ()


async def test_one_run_that_cannot_be_told_of_does_not_keep_the_others_from_recovery(room):
    lost = RunMessageInput(thread_id="broken", trigger_message_ids=("gone-1", "gone-2"))
    await room.place(make_run("a-broken", "broken", RunStatus.RUNNING, input=lost))
    result = await telling(room, Counting()).submit_background(ask("fine", delay_ms=10))
    room.passes(milliseconds=10)
    await telling(room, Counting(), consumer_id="heir").start_lifecycle_ready()
    await room.acked(result)
