"""The run-first write: what a prepared run looks like before anything delivers it."""

from typing import Any

from dispatch.conftest import Room
from dispatch_room import Noop, make_run, seed_messages
from postroom.contracts.activation import RunActivation
from postroom.contracts.messages import Message, SeqRange
from postroom.contracts.runs import PersistedState, RunRecord, RunStatus


async def stored_run(room: Room, run_id: str) -> RunRecord:
    run = await room.stores.threads.load_run(run_id)
    assert run is not None
    return run


async def test_prepare_run_for_dispatch_precreates_created_run_and_thread_projection(room: Room) -> None:
    mailbox = room.mailbox(Noop())
    message = Message.user("plan this", id="message-created")
    request = RunActivation.new("thread-created", [message], agent_id="agent-created").traced(
        transport_request_id="transport-created"
    )
    prepared = await mailbox.prepare_run_for_dispatch(request)
    assert prepared.run_id
    assert prepared.activation.hints.run_id == prepared.run_id

    run = await stored_run(room, prepared.run_id)
    assert (run.status, run.agent_id) == (RunStatus.CREATED, "agent-created")
    assert run.activation is not None
    assert run.activation.trigger_message_ids == ("message-created",)
    assert run.activation.trace.transport_request_id == "transport-created"
    assert run.input is not None
    assert run.input.thread_id == "thread-created"
    assert run.input.range == SeqRange(from_seq=1, to_seq=1)
    assert run.input.trigger_message_ids == ("message-created",)
    assert await room.stores.threads.load_messages("thread-created") == (message,)

    thread = await room.stores.threads.load_thread("thread-created")
    assert thread is not None
    assert thread.open_run_id == thread.latest_run_id == prepared.run_id
    assert thread.active_run_id is None
    assert run.dispatch_id == prepared.dispatch_id != prepared.run_id
    assert await room.stores.dispatches.list_dispatches("thread-created") == ()


async def test_prepare_run_for_dispatch_inherits_previous_runtime_state(room: Room) -> None:
    extensions: dict[str, Any] = {"remote": {"context_id": "remote-ctx-1"}}
    previous = make_run(
        "run-prev",
        "thread-state",
        RunStatus.DONE,
        agent_id="agent-prev",
        state=PersistedState(revision=7, extensions=extensions),
    )
    await seed_messages(room.stores, previous, Message.user("first"))
    mailbox = room.mailbox(Noop())
    request = RunActivation.new("thread-state", [Message.user("second", id="message-second")])
    prepared = await mailbox.prepare_run_for_dispatch(request)

    run = await stored_run(room, prepared.run_id)
    assert run.run_id != "run-prev"
    assert (run.status, run.agent_id) == (RunStatus.CREATED, "agent-prev")
    assert run.input is not None
    assert run.input.range == SeqRange(from_seq=1, to_seq=2)
    assert run.input.trigger_message_ids == ("message-second",)
    assert run.state == PersistedState(revision=7, extensions=extensions)
    assert await stored_run(room, "run-prev") == previous
