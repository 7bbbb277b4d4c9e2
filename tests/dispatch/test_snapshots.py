"""What is kept of a request with its run, and the older form in which callers may have stored it."""

import json

import pytest

from dispatch.conftest import Room
from dispatch_room import AgentUnknown, Counting
from dispatch_waiting import settled
from postroom.contracts.activation import (
    AdapterKind,
    InferenceOverride,
    RunActivation,
    RunMode,
    RunOptions,
    RunOrigin,
    RunRequestOrigin,
)
from postroom.contracts.errors import InvalidRecord, UnknownThread
from postroom.contracts.messages import Json, Message
from postroom.contracts.runs import RunRecord, Thread
from postroom.contracts.tools import ToolCallResume, ToolDescriptor
from postroom.dispatch.legacy_extras import LegacyRunSnapshotExtras

HI = Message.user("hi", id="message-1")
TOOL = ToolDescriptor(id="ft1", name="FT1", description="desc")


async def prepared_run(room: Room, request: RunActivation) -> RunRecord:
    """Prepare a request and return its run as it is stored."""
    prepared = await room.mailbox(AgentUnknown()).prepare_run_for_dispatch(request)
    run = await room.stores.threads.load_run(prepared.run_id)
    assert run is not None
    assert run.activation is not None
    return run


def stored_and_read(extras: LegacyRunSnapshotExtras) -> LegacyRunSnapshotExtras:
    """Return extras as they come back from JSON."""
    return LegacyRunSnapshotExtras.from_value(json.loads(json.dumps(extras.to_value())))


async def test_prepare_run_preserves_request_extras_on_run_snapshot(room: Room) -> None:
    options = RunOptions(overrides=InferenceOverride(temperature=0.25, max_tokens=7), frontend_tools=(TOOL,))
    request = RunActivation(
        thread_id="thread-ext",
        messages=(HI,),
        agent_id="a1",
        options=options,
    )
    run = await prepared_run(room, request)
    assert run.activation is not None
    assert run.activation.options == options
    assert [tool.id for tool in run.activation.options.frontend_tools] == ["ft1"]
    assert run.agent_id == "a1"
    assert not hasattr(run, "request"), "the older form is read, and not written with new runs"


def test_run_request_extras_serde_roundtrip() -> None:
    extras = LegacyRunSnapshotExtras(
        frontend_tools=(TOOL,), run_mode=RunMode.SCHEDULED, adapter=AdapterKind.ACP
    )
    parsed = stored_and_read(extras)
    assert parsed == extras
    assert [tool.id for tool in parsed.frontend_tools] == ["ft1"]
    assert (parsed.decisions, parsed.overrides) == ((), None)
    assert (parsed.run_mode, parsed.adapter) == (RunMode.SCHEDULED, AdapterKind.ACP)


def test_run_request_extras_empty_returns_none() -> None:
    extras = LegacyRunSnapshotExtras(run_mode=RunMode.FOREGROUND, adapter=AdapterKind.INTERNAL)
    assert extras.to_value() is None
    assert LegacyRunSnapshotExtras.from_request(RunActivation.new("t1", ["hi"])).to_value() is None


def test_run_request_extras_apply_to_request() -> None:
    extras = LegacyRunSnapshotExtras(
        frontend_tools=(TOOL,),
        run_id_hint="run-1",
        dispatch_id_hint="dispatch-1",
        parent_thread_id="parent-thread",
        transport_request_id="transport-1",
        run_mode=RunMode.RESUME,
        adapter=AdapterKind.AG_UI,
    )
    request = RunActivation.new("t1", ["hi"])
    applied = extras.apply_to(request)
    assert applied.options.frontend_tools == (TOOL,)
    assert (applied.hints.run_id, applied.hints.dispatch_id) == ("run-1", "dispatch-1")
    assert applied.trace.parent_thread_id == "parent-thread"
    assert applied.trace.transport_request_id == "transport-1"
    assert applied.trace.run_mode is RunMode.RESUME
    assert applied.trace.adapter is AdapterKind.AG_UI
    assert (applied.thread_id, applied.messages) == (request.thread_id, request.messages)
    assert LegacyRunSnapshotExtras.from_request(applied) == extras


async def test_prepare_run_round_trips_parent_thread_id(room: Room) -> None:
    request = RunActivation.new("thread-child", [HI], agent_id="agent").traced(
        parent_thread_id="thread-parent"
    )
    mailbox = room.mailbox(AgentUnknown())
    with pytest.raises(UnknownThread):
        await mailbox.prepare_run_for_dispatch(request)
    assert await room.stores.threads.load_thread("thread-child") is None

    await room.stores.threads.save_thread(Thread(id="thread-parent"))
    run = await prepared_run(room, request)
    assert run.activation is not None
    assert run.activation.trace.parent_thread_id == "thread-parent"
    child = await room.stores.threads.load_thread("thread-child")
    assert child is not None
    assert child.parent_thread_id == "thread-parent"


async def test_prepare_run_preserves_origin_metadata(room: Room) -> None:
    request = RunActivation.new("thread-meta", [HI], agent_id="a1").traced(
        origin=RunRequestOrigin.A2A.inside, parent_run_id="parent-run-1"
    )
    run = await prepared_run(room, request)
    assert run.activation is not None
    assert RunRequestOrigin.of(run.activation.trace.origin) is RunRequestOrigin.A2A
    assert run.activation.trace.origin is RunOrigin.SUBAGENT
    assert run.parent_run_id == "parent-run-1"


async def test_prepare_run_defaults_origin_to_user(room: Room) -> None:
    run = await prepared_run(room, RunActivation.new("thread-default", [HI]))
    assert run.activation is not None
    assert RunRequestOrigin.of(run.activation.trace.origin) is RunRequestOrigin.USER
    assert run.parent_run_id is None
    assert run.activation.trace.parent_run_id is None


async def test_prepare_run_origin_a2a_roundtrip(room: Room) -> None:
    """The origin comes back to the executor that runs it, from the stored run alone."""
    executor = Counting()
    mailbox = room.mailbox(executor)
    request = RunActivation.new("thread-a2a", ["hi"]).traced(
        origin=RunRequestOrigin.A2A.inside, parent_run_id="parent-123"
    )
    submitted = await mailbox.submit_background(request)
    await settled(mailbox)
    run = await room.stores.threads.load_run(submitted.run_id)
    assert run is not None
    assert run.activation is not None
    assert RunRequestOrigin.of(run.activation.trace.origin) is RunRequestOrigin.A2A
    assert run.parent_run_id == "parent-123"
    [executed] = executor.activations
    assert RunRequestOrigin.of(executed.trace.origin) is RunRequestOrigin.A2A
    assert executed.trace.parent_run_id == "parent-123"


@pytest.mark.parametrize(
    "corrupt",
    [
        {"overrides": "not-an-object", "decisions": 42},
        {"overrides": "not-an-object"},
        {"decisions": 42},
        {"decisions": [["call-1"]]},
        {"frontend_tools": [{"id": "ft1"}]},
        {"run_mode": "sideways"},
        {"adapter": None},
        [],
        "text",
        None,
    ],
    ids=repr,
)
def test_run_request_extras_corrupt_json_returns_error(corrupt: Json) -> None:
    with pytest.raises(InvalidRecord):
        LegacyRunSnapshotExtras.from_value(corrupt)


def test_build_dispatch_extras_roundtrip_with_decisions() -> None:
    decisions = (("call-1", ToolCallResume(decision_id="d-1", result={"approved": True})),)
    request = RunActivation.new("thread-dec", ["hi"], agent_id="a1", decisions=decisions)
    extras = LegacyRunSnapshotExtras.from_request(request)
    assert extras.decisions == decisions
    assert stored_and_read(extras) == extras
    assert stored_and_read(extras).apply_to(RunActivation.new("thread-dec", ["hi"])).decisions == decisions
