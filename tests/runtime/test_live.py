"""Messages, hints, decisions and cancels that reach a run during its execution."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroom.contracts.errors import RateLimited, StoreUnavailable
from postroom.contracts.inference import InferenceResult
from postroom.contracts.live import (
    LiveCommandKind,
    LiveDeliveryOutcome,
    LiveRunCommand,
    LiveRunTarget,
)
from postroom.contracts.messages import Boundary, DeliveryMode, Message, Role
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.contracts.tools import ToolCallResume
from postroom.runtime import function_tool
from postroom.stores.live import LocalLiveChannels
from runtime.room import Room, bounded, call, calls, until
from table_rows import each_row


class Blocking:
    """A tool that waits until it is released."""

    def __init__(self) -> None:
        self.started, self.release = asyncio.Event(), asyncio.Event()
        self.cancelled = False

        @function_tool()
        async def block() -> dict[str, bool]:
            self.started.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return {"released": True}

        self.tool = block


@asynccontextmanager
async def blocked(room: Room, tool: Blocking) -> AsyncIterator["asyncio.Task[Any]"]:
    async with room.executing() as run:
        await bounded(tool.started.wait())
        yield run


def a_room(tool: Blocking, *script: Any, **options: Any) -> Room:
    first = calls(call("block"), text="start tool")
    spec = {"tool_timeout_ms": None}
    return Room(script=[first, *script], tools=[tool.tool], spec=spec, options=options)


@each_row("id", ["r1", "t1", "d1"])
@each_row("pending", [True, False])
async def test_a_message_is_read_at_the_next_step_and_kept_once(id: str, pending: bool) -> None:
    tool = Blocking()
    room = a_room(tool, InferenceResult.text("saw it"))
    if pending:
        room.with_pending()
    async with blocked(room, tool) as run:
        assert room.runtime.send_messages(id, [Message.user("live steer", id="live")])
        assert room.runtime.send_messages(id, [Message.user("live steer", id="live")])  # came twice
        tool.release.set()
        assert (await bounded(run)).response == "saw it"
    assert ("user", "live steer") in room.asked(2)
    assert len(room.model.requests) == 2
    assert (await room.texts()).count(("user", "live steer")) == 1
    assert [role for role, _ in await room.texts()] == ["user", "assistant", "tool", "user", "assistant"]


@each_row("pending", [True, False])
async def test_a_message_that_comes_with_the_answer_is_answered_and_no_answer_is_lost(pending: bool) -> None:
    room = Room(script=[InferenceResult.text("first"), InferenceResult.text("second")])
    if pending:
        room.with_pending()
    plain = room.sink.emit

    async def emit(event: Any) -> None:
        await plain(event)
        if event.event_type == "step_end" and len(room.model.requests) == 1:
            assert room.runtime.send_messages("r1", [Message.user("and this?")])

    room.sink.emit = emit
    assert (await room.execute()).response == "first\n\nsecond"
    assert [text for _, text in await room.texts()] == ["go", "first", "and this?", "second"]


async def test_what_cannot_be_appended_is_not_taken() -> None:
    tool = Blocking()
    room = a_room(tool)
    async with blocked(room, tool) as run:
        assert not room.runtime.send_messages("r1", [Message(role=Role.TOOL)])
        tool.release.set()
        await bounded(run)


async def test_nobody_listens_where_nothing_runs() -> None:
    room = Room()
    decision = ToolCallResume(decision_id="d")
    runtime = room.runtime
    assert not runtime.cancel("r1")
    assert not runtime.send_messages("r1", [Message.user("x")])
    assert not runtime.send_decision("r1", "c1", decision)
    assert not runtime.wake_pending_boundary("r1")
    assert not await runtime.cancel_and_wait_by_thread("t1")


@each_row("id", ["r1", "t1", "d1"])
async def test_a_cancelled_run_ends_and_says_what_it_had_begun(id: str) -> None:
    tool = Blocking()
    room = a_room(tool)
    async with blocked(room, tool) as run:
        assert room.runtime.cancel(id)
        result = await bounded(run)
    assert result.termination == TerminationReason.cancelled()
    assert tool.cancelled
    record = await room.run()
    assert (record.status, record.termination) == (RunStatus.DONE, TerminationReason.cancelled())
    assert record.steps == 1
    texts = await room.texts()
    assert texts[1] == ("assistant", "start tool")
    assert "the tool may have been executed" in texts[2][1]
    assert room.sink.kinds()[-1] == "run_finish"


async def test_a_run_that_is_ending_cannot_be_cancelled_any_more() -> None:
    room = Room()
    commit, answers = room.stores.coordinator.commit, []

    class Asking:
        async def commit(self, change: Any, *, now: int | None = None) -> Any:
            if change.run.status is RunStatus.DONE:
                answers.append(room.runtime.cancel("r1"))
                answers.append(room.runtime.send_messages("r1", [Message.user("late")]))
            return await commit(change)

    room.coordinator = Asking()
    result = await room.execute(replace(await room.prepared(), control=room.again().control))
    assert (answers, result.termination.type) == ([False, False], "natural_end")


async def test_a_model_that_thinks_is_cut_off_by_a_cancel() -> None:
    thinking = asyncio.Event()
    room = Room()

    async def stream(request: object) -> AsyncIterator[Any]:
        thinking.set()
        await asyncio.Event().wait()
        yield request

    room.model.stream = stream
    async with room.executing() as run:
        await bounded(thinking.wait())
        assert await bounded(room.runtime.cancel_and_wait_by_thread("t1"))
        assert run.done()
        assert (await run).termination == TerminationReason.cancelled()
    assert await room.texts() == [("user", "go")]


async def test_waiting_for_a_run_to_end_is_bounded() -> None:
    release, stubborn = asyncio.Event(), asyncio.Event()

    @function_tool()
    async def holds_on() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stubborn.set()
            await release.wait()

    room = Room(script=[calls(call("holds_on"))], tools=[holds_on], spec={"tool_timeout_ms": None})
    async with room.executing() as run:
        await until(lambda: "tool_call_ready" in room.sink.kinds())
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(room.runtime.cancel_and_wait_by_thread("t1"))
            await bounded(stubborn.wait())
            await until(lambda: room.clock.sleeping == 1)
            room.clock.set(room.clock.now() + 5_000)
        assert asked.result() is False
        release.set()
        assert (await bounded(run)).termination == TerminationReason.cancelled()


@each_row("pending", [True, False])
async def test_a_cancel_loses_no_message_that_was_accepted(pending: bool) -> None:
    tool = Blocking()
    room = a_room(tool)
    if pending:
        room.with_pending()
    async with blocked(room, tool) as run:
        assert room.runtime.send_messages("r1", [Message.user("read me")])
        room.runtime.cancel("r1")
        await bounded(run)
    waiting = [one.message.text() for one in await room.stores.threads.pending_messages("t1")]
    committed = [text for _, text in await room.texts()]
    assert (waiting if pending else committed).count("read me") == 1


@each_row("pending", [True, False])
async def test_a_failure_loses_no_message_that_was_accepted(pending: bool) -> None:
    room = Room()
    if pending:
        room.with_pending()

    async def stream(request: object) -> AsyncIterator[Any]:
        assert room.runtime.send_messages("r1", [Message.user("read me")])
        raise RateLimited("slow")
        yield request

    room.model.stream = stream
    with pytest.raises(RateLimited):
        await room.execute()
    waiting = [one.message.text() for one in await room.stores.threads.pending_messages("t1")]
    committed = [text for _, text in await room.texts()]
    assert (waiting if pending else committed).count("read me") == 1
    assert (await room.run()).status is RunStatus.RUNNING


async def test_a_worker_that_leaves_loses_no_message_that_was_accepted() -> None:
    tool = Blocking()
    room = a_room(tool).with_pending()
    async with blocked(room, tool) as run:
        assert room.runtime.send_messages("r1", [Message.user("read me")])
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await bounded(run)
    assert [one.message.text() for one in await room.stores.threads.pending_messages("t1")] == ["read me"]
    assert (room.runtime.executing, (await room.run()).status) == (0, RunStatus.RUNNING)
    assert (await room.execute(room.again(attempt=2))).response == "done"
    assert room.asked(2) == [("user", "go"), ("user", "read me")]


@each_row("busy", ["tool", "store"])
async def test_a_worker_that_leaves_does_not_end_the_run_though_it_asks_it_to_stop(busy: str) -> None:
    tool, committing = Blocking(), asyncio.Event()
    room = a_room(tool)

    class Slow:
        async def commit(self, change: Any, *, now: int | None = None) -> Any:
            committing.set()
            await asyncio.Event().wait()

    activation = await room.prepared()
    if busy == "store":
        room.coordinator = Slow()
        activation = replace(activation, control=room.again().control)
    async with room.executing(activation) as run:
        await bounded((committing if busy == "store" else tool.started).wait())
        assert room.runtime.cancel("d1")
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await bounded(run)
    assert (await room.run()).is_open
    assert room.runtime.executing == 0


async def test_messages_that_wait_are_read_at_their_boundary() -> None:
    tool = Blocking()
    room = a_room(tool, InferenceResult.text("first"), InferenceResult.text("second")).with_pending()
    threads = room.stores.threads
    await threads.append_pending("t1", [Message.user("new", id="p3")], DeliveryMode())
    async with blocked(room, tool) as run:
        end = DeliveryMode(boundary=Boundary.ON_NATURAL_END)
        await threads.append_pending("t1", [Message.user("last", id="p2")], end)
        step = DeliveryMode(boundary=Boundary.NEXT_STEP)
        await threads.append_pending("t1", [Message.user("soon", id="p1")], step)
        assert room.runtime.wake_pending_boundary("r1")
        tool.release.set()
        await bounded(run)
    assert [text for role, text in room.asked(2) if role == "user"] == ["go", "soon"]
    assert [text for role, text in room.asked(3) if role == "user"] == ["go", "soon", "last"]
    assert [one.message.text() for one in await threads.pending_messages("t1")] == ["new"]


async def test_a_hint_that_comes_while_the_run_ends_is_not_lost() -> None:
    room = Room(script=[InferenceResult.text("first"), InferenceResult.text("second")]).with_pending()
    threads, freeze = room.stores.threads, room.pending.freeze
    mode = DeliveryMode(boundary=Boundary.NEXT_STEP)
    hinted: list[bool] = []

    async def late(boundary: Boundary) -> tuple[Message, ...]:
        came = await freeze(boundary)
        if boundary is Boundary.ON_NATURAL_END and not hinted:
            hinted.append(True)
            await threads.append_pending("t1", [Message.user("late", id="p1")], mode)
            assert room.runtime.wake_pending_boundary("r1")
        return came

    room.pending.freeze = late
    assert (await room.execute()).response == "first\n\nsecond"
    assert await threads.pending_messages("t1") == ()


async def test_a_run_without_a_pending_zone_takes_no_hint() -> None:
    tool = Blocking()
    room = a_room(tool)
    async with blocked(room, tool) as run:
        assert not room.runtime.wake_pending_boundary("r1")
        tool.release.set()
        await bounded(run)


async def test_commands_from_elsewhere_reach_the_run() -> None:
    tool = Blocking()
    room = a_room(tool, InferenceResult.text("saw it")).with_pending()
    channels = LocalLiveChannels(room.clock)
    room.runtime = room.another_runtime(live=channels)
    target = LiveRunTarget(thread_id="t1")
    asked = [
        (LiveRunCommand(kind=LiveCommandKind.MESSAGES, messages=(Message.user("from afar"),)), "delivered"),
        (LiveRunCommand(kind=LiveCommandKind.PENDING_BOUNDARY_WAKE), "delivered"),
        (
            LiveRunCommand(
                kind=LiveCommandKind.DECISION, decisions=(("c9", ToolCallResume(decision_id="d")),)
            ),
            "no_subscriber",
        ),
    ]
    assert await bounded(channels.deliver(target, asked[0][0])) is LiveDeliveryOutcome.NO_SUBSCRIBER
    async with blocked(room, tool) as run:
        for command, outcome in asked:
            assert await bounded(channels.deliver(target, command)) == outcome
        tool.release.set()
        await bounded(run)
    assert ("user", "from afar") in room.asked(2)
    assert await bounded(channels.deliver(target, asked[0][0])) is LiveDeliveryOutcome.NO_SUBSCRIBER


async def test_a_cancel_from_elsewhere_ends_the_run() -> None:
    tool = Blocking()
    room = a_room(tool)
    channels = LocalLiveChannels(room.clock)
    room.runtime = room.another_runtime(live=channels)
    async with blocked(room, tool) as run:
        command = LiveRunCommand(kind=LiveCommandKind.CANCEL)
        target = LiveRunTarget(thread_id="t1", run_id="r1", dispatch_id="d1")
        assert await bounded(channels.deliver(target, command)) is LiveDeliveryOutcome.DELIVERED
        assert (await bounded(run)).termination == TerminationReason.cancelled()


async def test_a_run_goes_on_when_nobody_can_listen_for_it() -> None:
    class Broken:
        async def open(self, target: LiveRunTarget) -> Any:
            raise StoreUnavailable("no channel")

    room = Room()
    room.runtime = room.another_runtime(live=Broken())
    assert (await room.execute()).response == "done"
