"""What is kept of a request with its run, and what comes back of it."""

import json

import pytest

from dispatch.conftest import Room
from dispatch_room import AgentUnknown, Counting
from dispatch_waiting import settled
from postroom.contracts.activation import (
    AdapterKind,
    InferenceOverride,
    RunActivation,
    RunActivationSnapshot,
    RunMode,
    RunOptions,
    RunOrigin,
    RunRequestOrigin,
)
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import StoreCorrupt, UnknownThread
from postroom.contracts.messages import Json, Message
from postroom.contracts.runs import RunRecord, Thread
from postroom.contracts.tools import ToolCallResume, ToolDescriptor
from postroom.dispatch.worker import rebuild
from postroom.stores.codec import decode, encode
from postroom.stores.memory import MemoryRunStores
from table_rows import each_row

HI = Message.user("hi", id="message-1")
TOOL = ToolDescriptor(id="ft1", name="FT1", description="desc")


async def prepared_run(room: Room, request: RunActivation) -> RunRecord:
    """Prepare a request and return its run as it is stored."""
    prepared = await room.mailbox(AgentUnknown()).prepare_run_for_dispatch(request)
    run = await room.stores.threads.load_run(prepared.run_id)
    assert run is not None
    assert run.activation is not None
    return run


def stored(request: RunActivation) -> str:
    """Return the run of a request as it is stored."""
    kept = request.snapshot(trigger_message_ids=(), covered=None)
    return encode(RunRecord(run_id="r1", thread_id=request.thread_id, resolution_id="p1", activation=kept))


async def stored_and_read(request: RunActivation) -> RunActivation:
    """Return a request as its executor gets it, from the stored run alone."""
    run = decode(RunRecord, stored(request), where="body")
    dispatch = RunDispatch.queued("d1", run.thread_id, run.run_id, created_at=0)
    return await rebuild(MemoryRunStores().threads, dispatch, run, instance_id="i1")


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


async def test_run_request_extras_serde_roundtrip() -> None:
    request = RunActivation(
        thread_id="t1",
        options=RunOptions(frontend_tools=(TOOL,), overrides=InferenceOverride(temperature=0.25)),
    ).traced(run_mode=RunMode.SCHEDULED, adapter=AdapterKind.ACP)
    parsed = await stored_and_read(request)
    assert (parsed.options, parsed.decisions) == (request.options, ())
    assert (parsed.trace.run_mode, parsed.trace.adapter) == (RunMode.SCHEDULED, AdapterKind.ACP)


def test_run_request_extras_empty_returns_none() -> None:
    run = decode(RunRecord, stored(RunActivation.new("t1", ["hi"])), where="body")
    assert run.activation == RunActivationSnapshot(thread_id="t1")


async def test_run_request_extras_apply_to_request() -> None:
    request = (
        RunActivation(thread_id="t1", options=RunOptions(frontend_tools=(TOOL,)))
        .traced(
            parent_thread_id="parent-thread", transport_request_id="transport-1", adapter=AdapterKind.AG_UI
        )
        .continuing("r1")
    )
    applied = await stored_and_read(request)
    assert applied.options.frontend_tools == (TOOL,)
    assert (applied.hints.run_id, applied.hints.dispatch_id) == ("r1", "d1")
    assert applied.continue_run_id == "r1"
    assert applied.trace.parent_thread_id == "parent-thread"
    assert applied.trace.transport_request_id == "transport-1"
    assert applied.trace.run_mode is RunMode.RESUME
    assert applied.trace.adapter is AdapterKind.AG_UI


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


@each_row(
    "corrupt",
    [
        {"options": {"overrides": "not-an-object"}, "seeded_decisions": 42},
        {"options": {"overrides": "not-an-object"}},
        {"seeded_decisions": 42},
        {"seeded_decisions": [["call-1"]]},
        {"options": {"frontend_tools": [{"id": "ft1"}]}},
        {"trace": {"run_mode": "sideways"}},
        {"trace": {"adapter": None}},
        {"thread_id": " "},
        {"trace": None},
    ],
)
def test_run_request_extras_corrupt_json_returns_error(corrupt: dict[str, Json]) -> None:
    body = json.loads(stored(RunActivation.new("t1", ["hi"])))
    body["activation"].update(corrupt)
    with pytest.raises(StoreCorrupt):
        decode(RunRecord, json.dumps(body), where="body")


async def test_build_dispatch_extras_roundtrip_with_decisions() -> None:
    decisions = (("call-1", ToolCallResume(decision_id="d-1", result={"approved": True})),)
    request = RunActivation.new("thread-dec", ["hi"], agent_id="a1", decisions=decisions)
    assert (await stored_and_read(request)).decisions == decisions
