"""Calls that wait for a decision: the run is released, and resumes when it was made, once."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from postroom.contracts.activation import RunOptions
from postroom.contracts.agent_events import (
    RunFinish,
    RunStart,
    ToolCallCancel,
    ToolCallDone,
    ToolCallResumed,
)
from postroom.contracts.errors import RateLimited
from postroom.contracts.inference import InferenceResult
from postroom.contracts.messages import Boundary, Message
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus, RunWaitingState, TerminationReason, WaitingReason
from postroom.contracts.tools import (
    ResumeDecisionAction,
    Suspension,
    ToolCallOutcome,
    ToolCallResume,
    ToolCallResumeMode,
    ToolDescriptor,
    ToolResult,
)
from postroom.runtime import FunctionTool, ToolContext, function_tool
from runtime.room import Recorder, Room, bounded, call, calls, until
from table_rows import each_row

PATH = {"type": "object", "properties": {"path": {"type": "string"}}}


def decision(result: Any = None, *, id: str = "d1", **fields: Any) -> ToolCallResume:
    return ToolCallResume(decision_id=id, result={"approved": True} if result is None else result, **fields)


def deleting() -> tuple[FunctionTool, list[str]]:
    deleted: list[str] = []

    @function_tool(PATH, needs_approval=True)
    async def delete(path: str) -> dict[str, str]:
        """Delete a file."""
        deleted.append(path)
        return {"deleted": path}

    return delete, deleted


async def test_a_call_that_needs_approval_releases_the_run_until_it_has_it() -> None:
    delete, deleted = deleting()
    room = Room(script=[calls(call("delete", path="a.txt"), text="I will")], tools=[delete])
    result = await room.execute()
    record = await room.run()
    assert result.termination == TerminationReason.suspended()
    assert result.waiting == record.waiting
    assert (record.status, record.waiting.reason) == (RunStatus.WAITING, WaitingReason.TOOL_PERMISSION)
    ticket = record.waiting.tickets[0]
    assert (ticket.tool_call_id, ticket.tool_name, ticket.arguments) == ("c1", "delete", {"path": "a.txt"})
    assert (record.waiting.since_dispatch_id, record.finished_at) == ("d1", None)
    assert [done.outcome for done in room.sink.of(ToolCallDone)] == [ToolCallOutcome.SUSPENDED]
    assert room.sink.of(RunFinish)[0].termination == TerminationReason.suspended()
    assert (room.runtime.executing, deleted) == (0, [])

    room.sink = Recorder()
    room.runtime = room.another_runtime()
    result = await room.execute(room.again(("c1", decision())))
    assert (result.response, result.termination.type) == ("done", "natural_end")
    assert deleted == ["a.txt"]
    assert room.sink.of(ToolCallResumed)[0].target_id == "c1"
    assert room.sink.kinds().index("run_start") < room.sink.kinds().index("tool_call_resumed")
    assert room.asked(2)[-1] == ("tool", '{"deleted":"a.txt"}')
    done = await room.run()
    assert (done.status, done.waiting, done.steps) == (RunStatus.DONE, None, 2)


@each_row(
    "no",
    [
        decision({"approved": False}, reason="not now"),
        decision(action=ResumeDecisionAction.CANCEL, reason="not now"),
    ],
)
async def test_a_no_is_told_to_the_model_and_the_call_is_not_made(no: ToolCallResume) -> None:
    delete, deleted = deleting()
    room = Room(script=[calls(call("delete", path="a.txt"))], tools=[delete])
    await room.execute()
    await room.execute(room.again(("c1", no)))
    assert deleted == []
    assert room.asked(2)[-1] == ("tool", '{"error":"the call was rejected: not now"}')
    assert room.sink.of(ToolCallDone)[-1].result.metadata == {"rejected": True}


async def test_a_decision_counts_once() -> None:
    delete, deleted = deleting()
    room = Room(script=[calls(call("delete", path="a.txt")), RateLimited("slow")], tools=[delete])
    await room.execute()
    yes = ("c1", decision())
    with pytest.raises(RateLimited):
        await room.execute(room.again(yes))
    assert (await room.run()).status is RunStatus.RUNNING
    result = await room.execute(room.again(yes, attempt=2))
    assert (result.response, deleted) == ("done", ["a.txt"])
    assert [role for role, _ in await room.texts()].count("tool") == 1


async def test_a_crash_before_the_call_was_made_loses_neither_question_nor_decision() -> None:
    delete, deleted = deleting()
    room = Room(script=[calls(call("delete", path="a.txt"))], tools=[delete])
    await room.execute()
    room.coordinator = FailingAfter(room.stores.coordinator, commits=1)
    with pytest.raises(ConnectionError):
        await room.execute(room.again(("c1", decision())))
    assert ((await room.run()).status, deleted) == (RunStatus.RUNNING, ["a.txt"])
    room.coordinator = room.stores.coordinator
    await room.execute(room.again(("c1", decision()), attempt=2))
    assert deleted == ["a.txt", "a.txt"]  # at least once: the answer of the first call was never committed
    assert (await room.run()).status is RunStatus.DONE


async def test_of_several_questions_the_run_waits_for_all() -> None:
    delete, deleted = deleting()
    asked = [call("delete", id, path=id) for id in ("a", "b")]
    room = Room(script=[calls(*asked)], tools=[delete])
    await room.execute()
    result = await room.execute(room.again(("a", decision())))
    assert result.termination == TerminationReason.suspended()
    assert [ticket.tool_call_id for ticket in (await room.run()).waiting.tickets] == ["b"]
    assert (deleted, len(room.model.requests)) == (["a"], 1)
    await room.execute(room.again(("b", decision(id="d2"))))
    assert deleted == ["a", "b"]
    assert [one.tool_call_id for one in room.model.requests[1].messages[2:]] == ["a", "b"]


async def test_a_decision_may_name_the_ticket() -> None:
    delete, deleted = deleting()
    room = Room(script=[calls(call("delete", path="a.txt"))], tools=[delete])
    await room.execute()
    ticket = (await room.run()).waiting.tickets[0]
    await room.execute(room.again((ticket.ticket_id, decision())))
    assert deleted == ["a.txt"]


async def test_a_decision_about_something_else_leaves_the_question_open() -> None:
    delete, deleted = deleting()
    room = Room(script=[calls(call("delete", path="a.txt"))], tools=[delete])
    await room.execute()
    result = await room.execute(room.again(("c9", decision())))
    assert (result.termination.type, deleted) == ("suspended", [])
    assert (await room.run()).waiting.tickets[0].tool_call_id == "c1"


async def test_new_input_goes_before_an_open_question() -> None:
    delete, deleted = deleting()
    room = Room(script=[calls(call("delete", path="a.txt"))], tools=[delete])
    await room.execute()
    await room.say("leave it")
    result = await room.execute(room.again())
    assert (result.response, deleted) == ("done", [])
    assert room.asked(2) == [("user", "go"), ("user", "leave it")]
    assert room.sink.of(ToolCallCancel)[0].id == "c1"
    record = await room.run()
    assert (record.status, record.waiting) == (RunStatus.DONE, None)


async def test_what_the_server_says_does_not_answer_a_question() -> None:
    delete, _ = deleting()
    room = Room(script=[calls(call("delete", path="a.txt"))], tools=[delete]).with_pending()
    await room.execute()
    activation = room.again()
    told = Message.internal("a task has ended", id="i1")
    await room.pending.stage(Boundary.NEXT_STEP, [told])
    result = await room.execute(activation)
    assert result.termination == TerminationReason.suspended()
    assert ("user", "a task has ended") in await room.texts()
    assert len(room.model.requests) == 1


async def test_a_frontend_tool_is_answered_by_the_other_side() -> None:
    picking = ToolDescriptor(id="pick", name="pick_color", description="Ask the user", parameters=PATH)
    room = Room(script=[calls(call("pick_color", path="x"))])
    activation = replace(await room.prepared(), options=RunOptions(frontend_tools=(picking,)))
    result = await room.execute(activation)
    assert [tool.name for tool in room.model.requests[0].tools] == ["pick_color"]
    assert result.waiting.reason is WaitingReason.USER_INPUT
    assert result.waiting.tickets[0].resume_mode is ToolCallResumeMode.USE_DECISION_AS_TOOL_RESULT
    await room.execute(room.again(("c1", decision({"color": "red"}))))
    assert room.asked(2)[-1] == ("tool", '{"color":"red"}')


def judging() -> tuple[FunctionTool, list[ToolContext]]:
    seen: list[ToolContext] = []

    @function_tool()
    async def judge(context: ToolContext) -> ToolResult:
        seen.append(context)
        if context.decision is None:
            question = Suspension(id="q1", action="judge")
            mode = ToolCallResumeMode.PASS_DECISION_TO_TOOL
            return ToolResult.suspended("judge", question, resume_mode=mode)
        return ToolResult.success("judge", {"heard": context.decision.result})

    return judge, seen


async def test_a_decision_can_be_the_tools_to_judge() -> None:
    judge, seen = judging()
    room = Room(script=[calls(call("judge"))], tools=[judge])
    await room.execute()
    await room.execute(room.again(("q1", decision({"approved": False}))))
    assert seen[1].decision.result == {"approved": False}
    assert room.asked(2)[-1] == ("tool", '{"heard":{"approved":false}}')


async def test_a_call_may_ask_again() -> None:
    @function_tool()
    async def asks(context: ToolContext) -> ToolResult:
        if context.decision is None or context.decision.decision_id != "d2":
            return ToolResult.suspended("asks", Suspension(id="q1", action="ask"))
        return ToolResult.success("asks", "ok")

    room = Room(script=[calls(call("asks"))], tools=[asks])
    await room.execute()
    assert (await room.execute(room.again(("c1", decision())))).termination.type == "suspended"
    assert (await room.execute(room.again(("c1", decision(id="d2"))))).termination.type == "natural_end"


async def test_other_calls_of_the_step_are_done_meanwhile() -> None:
    delete, _ = deleting()

    @function_tool()
    async def looks() -> str:
        return "seen"

    room = Room(script=[calls(call("delete", "a", path="a"), call("looks", "b"))], tools=[delete, looks])
    await room.execute()
    assert ("tool", "seen") in await room.texts()
    await room.execute(room.again(("a", decision())))
    assert [one.tool_call_id for one in room.model.requests[1].messages[2:]] == ["a", "b"]


async def test_a_decision_that_came_while_the_call_ran_is_used_at_once() -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    @function_tool()
    async def slow(context: ToolContext) -> ToolResult:
        asked.set()
        await release.wait()
        if context.decision is None:
            return ToolResult.suspended("slow", Suspension(id="q1", action="ask"))
        return ToolResult.success("slow", "allowed")

    room = Room(script=[calls(call("slow"))], tools=[slow])
    async with room.executing() as run:
        await bounded(asked.wait())
        assert not room.runtime.send_decision("r1", "c9", decision())
        assert room.runtime.send_decision("d1", "c1", decision())
        release.set()
        result = await bounded(run)
    assert result.termination.type == "natural_end"
    assert room.asked(2)[-1] == ("tool", "allowed")
    assert len(room.sink.of(RunStart)) == 1


async def test_a_decision_for_a_call_that_did_not_ask_is_dropped() -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    @function_tool()
    async def slow() -> str:
        asked.set()
        await release.wait()
        return "ok"

    room = Room(script=[calls(call("slow"))], tools=[slow])
    async with room.executing() as run:
        await bounded(asked.wait())
        assert room.runtime.send_decision("t1", "c1", decision())
        release.set()
        assert (await bounded(run)).response == "done"
    assert room.sink.of(ToolCallResumed) == []


async def held(room: Room, answer: Callable[[], object]) -> Any:
    """Execute until the run waits in memory, then do something."""
    async with room.executing() as run:
        await until(lambda: room.clock.sleeping == 1)
        answer()
        return await bounded(run)


async def test_a_held_run_goes_on_in_place() -> None:
    delete, deleted = deleting()
    room = Room(
        script=[calls(call("delete", path="a"))],
        tools=[delete],
        options={"hold_ms": 2_000},
        spec={"tool_timeout_ms": None},
    )
    result = await held(room, lambda: room.runtime.send_decision("r1", "c1", decision()))
    assert (result.termination.type, deleted) == ("natural_end", ["a"])
    assert len(room.sink.of(RunStart)) == len(room.sink.of(RunFinish)) == 1
    assert (await room.run()).steps == 2


async def test_a_call_is_made_only_once_the_run_stands_as_running_again() -> None:
    seen: list[tuple[RunStatus, int]] = []

    @function_tool()
    async def asks(context: ToolContext) -> ToolResult:
        if context.decision is None:
            return ToolResult.suspended("asks", Suspension(id="q1", action="ask"))
        record = await room.run()
        seen.append((record.status, len(record.state.extensions["postroom.runtime"]["tickets"])))
        return ToolResult.success("asks", "ok")

    options = {"hold_ms": 2_000}
    room = Room(script=[calls(call("asks"))], tools=[asks], options=options, spec={"tool_timeout_ms": None})
    await held(room, lambda: room.runtime.send_decision("r1", "c1", decision()))
    assert seen == [(RunStatus.RUNNING, 1)]


async def test_a_held_run_is_released_when_nobody_answers() -> None:
    delete, deleted = deleting()
    room = Room(
        script=[calls(call("delete", path="a"))],
        tools=[delete],
        options={"hold_ms": 2_000},
        spec={"tool_timeout_ms": None},
    )
    result = await held(room, lambda: room.clock.set(room.clock.now() + 2_000))
    assert (result.termination.type, deleted) == ("suspended", [])
    assert not room.runtime.send_decision("r1", "c1", decision())


async def test_a_held_run_reads_new_input_or_ends_when_cancelled() -> None:
    for ask, kind in ((True, "natural_end"), (False, "cancelled")):
        delete, _ = deleting()
        room = Room(
            script=[calls(call("delete", path="a"))],
            tools=[delete],
            options={"hold_ms": 2_000},
            spec={"tool_timeout_ms": None},
        )
        said = [Message.user("stop that")]
        do = room.runtime.send_messages if ask else lambda id, _, room=room: room.runtime.cancel(id)
        result = await held(room, lambda do=do, said=said: do("r1", said))
        assert result.termination.type == kind
        record = await room.run()
        assert (record.status, record.waiting) == (RunStatus.DONE, None)
        assert (("user", "stop that") in await room.texts()) is ask


async def test_a_run_that_waits_for_input_goes_on_with_what_was_said() -> None:
    room = Room(script=[InferenceResult.text("reactivated")])
    activation = await room.prepared()
    run = await room.run()
    waiting = replace(run, status=RunStatus.WAITING, waiting=RunWaitingState(reason=WaitingReason.USER_INPUT))
    await room.say("poke", run=waiting)
    result = await room.execute(activation)
    assert result.response == "reactivated"
    assert (await room.run()).status is RunStatus.DONE


async def test_pending_input_for_a_resume_is_read_then() -> None:
    delete, _ = deleting()
    room = Room(script=[calls(call("delete", path="a"))], tools=[delete]).with_pending()
    await room.execute()
    await room.pending.stage(Boundary.RESUME_INPUT, [Message.user("rather not", id="p1")])
    await room.execute(room.again())
    assert room.asked(2) == [("user", "go"), ("user", "rather not")]


class FailingAfter:
    """A coordinator whose connection breaks after the first commits."""

    def __init__(self, real: Any, *, commits: int) -> None:
        self._real, self._left = real, commits

    async def commit(self, commit: Any, *, now: int | None = None) -> Any:
        if self._left <= 0:
            raise ConnectionError("gone")
        self._left -= 1
        return await self._real.commit(commit)
