"""Steering the run at work, here or elsewhere, and the durable way where nobody takes the message."""

import asyncio

import pytest

from dispatch.conftest import Room
from dispatch_live import drop, listening
from dispatch_room import (
    Counting,
    Noop,
    WakeRecording,
    enqueue_prepared_dispatch,
    make_resume,
    make_run,
    waiting_run,
)
from dispatch_runtime import calls, runtime_of
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.inference import InferenceResult
from postroom.contracts.live import LiveCommandKind
from postroom.contracts.messages import Boundary, Role, Visibility
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.control import live_target
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.sinks import ReconnectableEventSink
from postroom.dispatch.submission import MailboxDispatchStatus
from postroom.runtime import ScriptedModel, function_tool

ON = MailboxConfig(pending_zone=True)
OFF = MailboxConfig(pending_zone=False)
both_ways = pytest.mark.parametrize("config", [OFF, ON], ids=["direct", "pending zone"])


def asked(thread_id: str, text: str) -> RunActivation:
    return RunActivation.new(thread_id, [text], agent_id="agent")


async def texts_of(room: Room, thread_id: str) -> list[str]:
    return [message.text() for message in await room.stores.threads.load_messages(thread_id) or ()]


async def waiting_texts(room: Room, thread_id: str) -> list[str]:
    return [entry.message.text() for entry in await room.stores.threads.pending_messages(thread_id)]


async def only_dispatch(room: Room, thread_id: str) -> RunDispatch:
    (row,) = await room.stores.dispatches.list_dispatches(thread_id)
    return row


async def running_elsewhere(room: Room, run_id: str, thread_id: str) -> RunRecord:
    """Return a run that executes in another process."""
    run = make_run(run_id, thread_id, RunStatus.RUNNING, steps=2)
    await room.stores.threads.create_run(run)
    return run


def works_here(mailbox: Mailbox, thread_id: str, *, run_id: str, dispatch_id: str) -> None:
    """Let the thread's worker say that it runs this."""
    worker = mailbox.get_or_create_worker(thread_id)
    worker.begin(dispatch_id, run_id, "", ReconnectableEventSink())


# A run of this process.


@both_ways
async def test_live_then_queue_steers_active_run_without_new_dispatch(
    room: Room, config: MailboxConfig
) -> None:
    thread_id = "thread-live-steer"
    started, release = asyncio.Event(), asyncio.Event()

    @function_tool()
    async def block() -> dict[str, bool]:
        """Wait until released."""
        started.set()
        await release.wait()
        return {"released": True}

    model = ScriptedModel([calls("block", "block-1", text="start tool"), InferenceResult.text("saw it")])
    async with runtime_of(room, model, block) as runtime:
        mailbox = room.mailbox(runtime, config=config)
        first = await mailbox.submit_background(asked(thread_id, "start"))
        async with asyncio.timeout(60):
            await started.wait()
        steered = await mailbox.submit_live_then_queue(asked(thread_id, "live steer"))
        assert steered.status is MailboxDispatchStatus.RUNNING
        assert (steered.run_id, steered.dispatch_id) == (first.run_id, first.dispatch_id)
        release.set()
        await mailbox.settled()
    run = await room.stores.threads.latest_run(thread_id)
    assert run is not None
    assert (run.run_id, run.status) == (first.run_id, RunStatus.DONE)
    assert len(model.requests) == 2
    seen = [message for message in model.requests[1].messages if message.text() == "live steer"]
    assert [(one.role, one.visibility) for one in seen] == [(Role.USER, Visibility.ALL)]
    assert (await texts_of(room, thread_id)).count("live steer") == 1
    assert await waiting_texts(room, thread_id) == []
    assert (await only_dispatch(room, thread_id)).dispatch_id == first.dispatch_id


@both_ways
async def test_live_then_queue_falls_back_to_durable_dispatch_when_receiver_unavailable(
    room: Room, config: MailboxConfig
) -> None:
    thread_id = "thread-live-fallback"
    mailbox = room.mailbox(Noop(), config=config)
    active = await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "active")
    claimed = await room.stores.dispatches.claim_dispatch(
        active.dispatch_id, "test-consumer", lease_ms=30_000
    )
    assert claimed is not None
    works_here(mailbox, thread_id, run_id=active.run_id, dispatch_id=active.dispatch_id)
    result = await mailbox.submit_live_then_queue(asked(thread_id, "fallback"))
    assert result.status is MailboxDispatchStatus.QUEUED
    assert result.dispatch_id != active.dispatch_id
    assert result.run_id != active.run_id
    assert await texts_of(room, thread_id) == ["active", "fallback"]
    assert await waiting_texts(room, thread_id) == []
    queued = await room.stores.dispatches.list_dispatches(thread_id, (RunDispatchStatus.QUEUED,))
    assert [row.dispatch_id for row in queued] == [result.dispatch_id]


async def test_live_then_queue_wakes_local_active_pending_run(room: Room) -> None:
    thread_id, run_id, executor = "thread-local-pending-wake", "run-local-pending-wake", WakeRecording()
    mailbox = room.mailbox(executor, config=ON)
    works_here(mailbox, thread_id, run_id=run_id, dispatch_id="dispatch-local-pending-wake")
    result = await mailbox.submit_live_then_queue(asked(thread_id, "pending-live"), run_id)
    assert result.status is MailboxDispatchStatus.RUNNING
    assert (result.run_id, result.dispatch_id) == (run_id, "dispatch-local-pending-wake")
    assert executor.wakes == [run_id]
    (entry,) = await room.stores.threads.pending_messages(thread_id)
    assert entry.message.text() == "pending-live"
    assert (entry.mode.boundary, entry.mode.target_run_id) == (Boundary.NEXT_STEP, run_id)
    assert await room.stores.dispatches.list_dispatches(thread_id) == ()


# A run of another process.


async def test_live_then_queue_publishes_for_remote_active_run(room: Room) -> None:
    thread_id = "thread-remote"
    run = await running_elsewhere(room, "run-remote", thread_id)
    mailbox = room.mailbox(Noop(), config=OFF)
    async with listening(room.live, live_target(run)) as heard:
        result = await mailbox.submit_live_then_queue(asked(thread_id, "steer-remote"))
        assert result.status is MailboxDispatchStatus.RUNNING
        assert result.run_id == "run-remote"
        (command,) = heard
    assert command.kind is LiveCommandKind.MESSAGES
    assert [message.text() for message in command.messages] == ["steer-remote"]
    assert await room.stores.dispatches.list_dispatches(thread_id) == ()


async def test_live_then_queue_wakes_remote_active_pending_run(room: Room) -> None:
    thread_id = "thread-remote-pending-wake"
    run = await running_elsewhere(room, "run-remote-pending-wake", thread_id)
    mailbox = room.mailbox(Noop(), config=ON)
    async with listening(room.live, live_target(run)) as heard:
        result = await mailbox.submit_live_then_queue(asked(thread_id, "remote-pending"), run.run_id)
        assert result.status is MailboxDispatchStatus.RUNNING
        assert result.run_id == run.run_id
        assert [command.kind for command in heard] == [LiveCommandKind.PENDING_BOUNDARY_WAKE]
    assert await waiting_texts(room, thread_id) == ["remote-pending"]
    assert await room.stores.dispatches.list_dispatches(thread_id) == ()


@both_ways
async def test_live_then_queue_falls_back_when_subscriber_drops_receipt(
    room: Room, config: MailboxConfig
) -> None:
    thread_id = "thread-dropped-receipt"
    run = await running_elsewhere(room, "run-dropped", thread_id)
    executor = Counting()
    mailbox = room.mailbox(executor, config=config)
    async with listening(room.live, live_target(run), drop) as heard:
        result = await mailbox.submit_live_then_queue(asked(thread_id, "hello?"))
        assert len(heard) == 1
    assert result.dispatch_id == (await only_dispatch(room, thread_id)).dispatch_id
    await mailbox.settled()
    assert [activation.run_id for activation in executor.activations] == [result.run_id]
    assert (await texts_of(room, thread_id)).count("hello?") == 1
    assert await waiting_texts(room, thread_id) == []


async def test_live_then_queue_is_at_least_once_when_ack_lost(room: Room) -> None:
    thread_id = "thread-ack-lost"
    run = await running_elsewhere(room, "run-ack-lost", thread_id)
    mailbox = room.mailbox(Counting(), config=OFF)
    async with listening(room.live, live_target(run), drop) as heard:
        result = await mailbox.submit_live_then_queue(asked(thread_id, "steer-payload"))
        taken = [message for command in heard for message in command.messages]
    assert [message.text() for message in taken] == ["steer-payload"]
    assert result.run_id != run.run_id
    assert result.dispatch_id == (await only_dispatch(room, thread_id)).dispatch_id
    (queued,) = await room.stores.threads.load_message_records(thread_id, [taken[0].id or ""])
    assert queued.message == taken[0]  # the same id both times: a receiver can tell


async def test_live_then_queue_rejects_remote_mismatched_expected_run_id(room: Room) -> None:
    thread_id = "thread-mismatch"
    run = await running_elsewhere(room, "run-actual", thread_id)
    mailbox = room.mailbox(Counting(), config=OFF)
    async with listening(room.live, live_target(run)) as heard:
        result = await mailbox.submit_live_then_queue(asked(thread_id, "wrong-run"), "run-stale")
        assert heard == []
    assert result.run_id not in ("run-actual", "run-stale")
    assert (await only_dispatch(room, thread_id)).run_id == result.run_id


async def test_live_then_queue_falls_back_to_queue_when_no_remote_subscriber(room: Room) -> None:
    thread_id = "thread-no-subscriber"
    run = await running_elsewhere(room, "run-no-listener", thread_id)
    mailbox = room.mailbox(Counting(), config=OFF)
    result = await mailbox.submit_live_then_queue(asked(thread_id, "hello?"))
    row = await only_dispatch(room, thread_id)
    assert (row.dispatch_id, row.run_id) == (result.dispatch_id, result.run_id)
    assert row.run_id != run.run_id
    assert (await texts_of(room, thread_id)).count("hello?") == 1


async def test_send_decision_live_delivers_to_remote_waiting_run(room: Room) -> None:
    thread_id = "thread-remote-decision"
    run = waiting_run("run-remote-decision", thread_id)
    await room.stores.threads.create_run(run)
    mailbox = room.mailbox(Noop())
    async with listening(room.live, live_target(run)) as heard:
        assert await mailbox.send_decision_live(thread_id, "tool-1", make_resume()) is True
        (command,) = heard
    assert command.kind is LiveCommandKind.DECISION
    assert command.decisions == (("tool-1", make_resume()),)
    assert await mailbox.send_decision_live(thread_id, "tool-1", make_resume()) is False
