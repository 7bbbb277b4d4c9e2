"""The loop: steps, tools, checkpoints, bounds, and how a run ends."""

import asyncio

import pytest

from postroom.contracts import errors
from postroom.contracts.activation import InferenceOverride, Recovery, RunOptions
from postroom.contracts.agent_events import (
    InferenceComplete,
    RunFinish,
    RunStart,
    StreamReset,
    TextDelta,
    ToolCallDone,
)
from postroom.contracts.inference import InferenceResult, InferenceTextDelta, StopReason
from postroom.contracts.messages import STOPPED_MARK, Message
from postroom.contracts.records import replace
from postroom.contracts.runs import PersistedState, RunStatus, TerminationKind, TerminationReason, Usage
from postroom.contracts.tools import ToolCallOutcome, ToolResult
from postroom.runtime import AgentRuntime, MapResolver, ToolContext, function_tool
from runtime.room import Recorder, Room, bounded, call, calls, until
from table_rows import each_row

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@function_tool(NUMBER)
async def double(n: int) -> dict[str, int]:
    """Double a number."""
    return {"doubled": 2 * n}


async def test_a_plain_answer_ends_the_run() -> None:
    room = Room(script=[replace(InferenceResult.text("hello"), usage=Usage(input_tokens=5, output_tokens=2))])
    result = await room.execute()
    record = await room.run()
    assert (result.response, result.termination, result.steps) == (
        "hello",
        TerminationReason.natural_end(),
        1,
    )
    assert result.usage.input_tokens == record.usage.input_tokens == 5
    assert (record.status, record.final_output, record.steps) == (RunStatus.DONE, "hello", 1)
    assert record.finished_at == room.clock.now()
    assert record.started_at == room.clock.now()
    assert record.resolution_id == "pin"
    assert record.input is not None
    assert await room.texts() == [("user", "go"), ("assistant", "hello")]
    messages = await room.stores.threads.load_messages("t1")
    assert messages is not None
    assert record.output_message_ids == (messages[1].id,)
    assert messages[1].metadata is not None
    assert messages[1].metadata.run_id == "r1"
    assert room.sink.kinds() == [
        "run_start", "step_start", "text_delta", "inference_complete", "step_end", "run_finish",
    ]  # fmt: skip
    finish = room.sink.of(RunFinish)[0]
    assert finish.result == {"response": "hello", "status": "done", "status_reason": None}
    assert room.sink.of(RunStart)[0].identity.dispatch_id == "d1"
    thread = await room.stores.threads.load_thread("t1")
    assert thread is not None
    assert (thread.active_run_id, thread.open_run_id, thread.latest_run_id) == (None, None, "r1")
    assert room.runtime.executing == 0


async def test_tools_run_and_their_answers_go_back_to_the_model() -> None:
    script = [
        calls(call("double", "a", n=2), call("double", "b", n=3), text="let me see"),
        InferenceResult.text("10"),
    ]
    room = Room(script=script, tools=[double])
    result = await room.execute()
    assert result.steps == 2
    assert room.asked(2) == [
        *(("user", "go"), ("assistant", "let me see"), ("tool", '{"doubled":4}'), ("tool", '{"doubled":6}')),
    ]
    assert await room.texts() == [*room.asked(2), ("assistant", "10")]
    assert [one.tool_call_id for one in room.model.requests[1].messages[2:]] == ["a", "b"]
    assert [done.outcome for done in room.sink.of(ToolCallDone)] == [ToolCallOutcome.SUCCEEDED] * 2
    record = await room.run()
    assert len(record.output_message_ids) == 4
    stored = await room.stores.threads.load_messages("t1")
    assert [one.metadata.step_index for one in stored[1:]] == [1, 1, 1, 2]
    assert {done.message_id for done in room.sink.of(ToolCallDone)} == {stored[2].id, stored[3].id}


async def test_the_request_carries_the_agents_rules_and_what_the_submission_asks() -> None:
    room = Room(tools=[double], spec={"overrides": InferenceOverride(temperature=0.5, max_tokens=10)})
    activation = await room.prepared()
    wish = InferenceOverride(upstream_model="other", temperature=0.0)
    await room.execute(replace(activation, options=RunOptions(overrides=wish)))
    request = room.model.requests[0]
    assert (request.model, request.system, [tool.name for tool in request.tools]) == ("m", "sys", ["double"])
    assert request.overrides == InferenceOverride(upstream_model="other", temperature=0.0, max_tokens=10)


@each_row(
    "asked, said",
    [
        (call("double"), "arguments must have n"),
        (call("double", n="two"), "arguments.n must be of type integer"),
        (replace(call("double"), arguments="{broken"), "arguments must be of type object"),
        (call("unknown"), "there is no tool 'unknown'; tools: double"),
    ],
)
async def test_a_call_that_cannot_be_made_is_told_to_the_model(asked: object, said: str) -> None:
    room = Room(script=[calls(asked)], tools=[double])
    await room.execute()
    assert said in room.asked(2)[-1][1]
    assert (await room.run()).status is RunStatus.DONE


async def test_a_tool_that_fails_is_told_to_the_model() -> None:
    @function_tool()
    async def breaks() -> None:
        raise KeyError("shelf")

    @function_tool()
    async def refuses() -> None:
        raise errors.InvalidArgument("no such shelf")

    @function_tool()
    async def answers_nothing_sendable() -> object:
        return {"when": object()}

    @function_tool()
    async def gives_up() -> None:
        raise asyncio.CancelledError

    @function_tool()
    async def waits_in_vain() -> None:
        raise TimeoutError("the other side was silent")

    tools = [breaks, refuses, answers_nothing_sendable, gives_up, waits_in_vain]
    asked = [call(tool.descriptor.name, f"c{at}") for at, tool in enumerate(tools)]
    room = Room(script=[calls(*asked)], tools=tools)
    await room.execute()
    told = [text for role, text in room.asked(2) if role == "tool"]
    assert told[0] == """{"error":"KeyError: 'shelf'"}"""
    assert told[1] == '{"error":"validation error: no such shelf"}'
    assert "is not JSON" in told[2]
    assert told[3] == '{"error":"the tool was cancelled"}'
    assert told[4] == '{"error":"TimeoutError: the other side was silent"}'
    done = room.sink.of(ToolCallDone)
    assert [one.outcome for one in done] == [ToolCallOutcome.FAILED] * 5
    assert done[4].result.metadata == {}


async def test_a_tool_that_takes_too_long_is_cancelled() -> None:
    ended = []

    @function_tool()
    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    room = Room(script=[calls(call("hangs"))], tools=[hangs], spec={"tool_timeout_ms": 500})
    async with room.executing() as run:
        await until(lambda: room.clock.sleeping == 1)
        room.clock.set(room.clock.now() + 500)
        await bounded(run)
    done = room.sink.of(ToolCallDone)[0]
    assert done.result.metadata == {"timed_out": True}
    assert ended == [True]
    assert "within 500 ms" in room.asked(2)[-1][1]


async def test_arguments_are_an_object_also_where_the_schema_does_not_say_so() -> None:
    @function_tool({"properties": {}})
    async def any_of_them(**given: object) -> object:
        return given

    odd = replace(call("any_of_them"), arguments="{broken")
    room = Room(script=[calls(odd, call("any_of_them", "c2", x=1))], tools=[any_of_them])
    await room.execute()
    told = [text for role, text in room.asked(2) if role == "tool"]
    assert told == ['{"error":"arguments must be of type object; the tool was not called"}', '{"x":1}']


async def test_calls_run_side_by_side_or_in_turn() -> None:
    together = []
    for spec in ({}, {"parallel_tools": True}, {"parallel_tools": False}):
        running: list[int] = []
        most: list[int] = []

        @function_tool()
        async def counts(running: list[int] = running, most: list[int] = most) -> None:
            running.append(1)
            most.append(len(running))
            await asyncio.sleep(0)
            running.pop()

        asked = [call("counts", f"c{at}") for at in range(3)]
        room = Room(script=[calls(*asked)], tools=[counts], spec=spec)
        await room.execute()
        together.append(max(most))
    assert together == [3, 3, 1]


async def test_a_tool_knows_its_call_and_shows_its_work() -> None:
    seen: list[ToolContext] = []

    @function_tool()
    async def shows(context: ToolContext) -> ToolResult:
        seen.append(context)
        await context.show("half")
        return ToolResult.success("shows", "whole")

    room = Room(script=[calls(call("shows"))], tools=[shows])
    await room.execute()
    assert (seen[0].identity.run_id, seen[0].call_id, seen[0].decision) == ("r1", "c1", None)
    assert "tool_call_stream_delta" in room.sink.kinds()
    assert room.asked(2)[-1] == ("tool", "whole")


async def test_calls_without_or_with_one_id_get_their_own() -> None:
    room = Room(
        script=[calls(call("double", "x", n=1), call("double", "x", n=2), call("double", " ", n=3))],
        tools=[double],
    )
    await room.execute()
    asked = room.model.requests[1].messages[1].tool_calls
    assert len({one.id for one in asked}) == 3
    assert [text for role, text in room.asked(2) if role == "tool"] == [
        '{"doubled":2}',
        '{"doubled":4}',
        '{"doubled":6}',
    ]


async def test_rounds_are_bounded() -> None:
    room = Room(script=[calls(call("double", n=1))] * 9, tools=[double], spec={"max_rounds": 2})
    result = await room.execute()
    assert result.termination == TerminationReason(type=TerminationKind.STOPPED, value="max_rounds")
    assert len(room.model.requests) == 2
    record = await room.run()
    assert (record.status, record.steps, record.error) == (RunStatus.DONE, 2, None)


@each_row("asked, cost", [(None, 5 * 0.5 + 2 * 4), ("large", 5 * 2), ("unknown", 0)])
async def test_an_answer_costs_the_price_of_the_model_that_gave_it(asked: str | None, cost: float) -> None:
    prices = {"m": (0.5, 4.0), "large": (2.0, 0.0)}
    overrides = InferenceOverride(upstream_model=asked) if asked else None
    room = Room(
        script=[replace(InferenceResult.text("hello"), usage=Usage(input_tokens=5, output_tokens=2))],
        spec={"prices": prices, "overrides": overrides, "model": "m"},
    )
    await room.execute()
    assert (await room.run()).usage.cost_micros == round(cost)


async def test_tokens_are_bounded_over_all_executions() -> None:
    used = Usage(input_tokens=60, output_tokens=40)
    room = Room(
        script=[calls(call("double", n=1), usage=used)] * 9, tools=[double], spec={"token_budget": 150}
    )
    result = await room.execute()
    assert result.termination.value == "token_budget"
    assert len(room.model.requests) == 2
    assert (await room.run()).usage.input_tokens == 120


async def test_the_wall_clock_ends_a_run_that_hangs() -> None:
    @function_tool()
    async def hangs() -> None:
        await asyncio.Event().wait()

    room = Room(
        script=[calls(call("hangs"), text="wait")],
        tools=[hangs],
        spec={"wall_timeout_ms": 1_000, "tool_timeout_ms": None},
    )
    async with room.executing() as run:
        await until(lambda: room.clock.sleeping == 1 and "tool_call_ready" in room.sink.kinds())
        room.clock.set(room.clock.now() + 1_000)
        result = await bounded(run)
    assert result.termination == TerminationReason(type=TerminationKind.STOPPED, value="wall_timeout")
    assert (await room.run()).usage.wall_ms == 1_000


async def test_a_model_that_fails_fails_the_execution_and_leaves_the_run_to_be_tried_again() -> None:
    room = Room(
        script=[calls(call("double", n=1)), errors.RateLimited("slow down", retry_after_ms=900)],
        tools=[double],
    )
    with pytest.raises(errors.RateLimited) as caught:
        await room.execute()
    assert caught.value.retry_after_ms == 900
    record = await room.run()
    assert (record.status, record.steps) == (RunStatus.RUNNING, 1)
    assert room.runtime.executing == 0
    room.model.add(InferenceResult.text("there"))
    result = await room.execute(room.again(attempt=2))
    assert result.response == "there"
    assert [role for role, _ in await room.texts()] == ["user", "assistant", "tool", "assistant"]
    assert (await room.run()).steps == 2


async def test_a_cut_off_answer_is_asked_for_again() -> None:
    cut = [InferenceTextDelta(delta="hal"), errors.StreamInterrupted("cut")]
    room = Room(script=[cut, [InferenceTextDelta(delta="ha")], InferenceResult.text("whole")])
    result = await room.execute()
    assert result.response == "whole"
    assert [reset.reason for reset in room.sink.of(StreamReset)] == [
        "cut",
        "the model's answer ended before it was complete",
    ]
    assert [piece.delta for piece in room.sink.of(TextDelta)] == ["hal", "ha", "whole"]
    assert await room.texts() == [("user", "go"), ("assistant", "whole")]


async def test_a_stop_keeps_the_answer_as_far_as_it_came_and_the_model_is_told_of_it() -> None:
    room = Room()
    said = asyncio.Event()

    async def endless(request: object) -> object:
        room.model.requests.append(request)
        yield InferenceTextDelta(delta="half an ")
        yield InferenceTextDelta(delta="answer ")
        said.set()
        await asyncio.Event().wait()

    scripted, room.model.stream = room.model.stream, endless
    async with room.executing() as run:
        await bounded(said.wait())
        assert room.runtime.cancel(room.run_id)
        result = await bounded(run)
    assert result.termination == TerminationReason.cancelled()
    assert result.response == (await room.run()).final_output == "half an answer"
    assert await room.texts() == [("user", "go"), ("assistant", "half an answer")]
    room.run_id, room.model.stream = "r2", scripted
    await room.execute(await room.prepared("go on"))
    half = f"half an answer\n\n{STOPPED_MARK}"
    assert room.asked(2) == [("user", "go"), ("assistant", half), ("user", "go on")]
    assert await room.texts() == [
        ("user", "go"),
        ("assistant", "half an answer"),
        ("user", "go on"),
        ("assistant", (await room.run()).final_output),
    ]


async def test_a_stop_in_the_second_try_keeps_what_the_second_try_said() -> None:
    room = Room()
    said, tries = asyncio.Event(), []

    async def broken(request: object) -> object:
        tries.append(request)
        yield InferenceTextDelta(delta=f"try {len(tries)}")
        if len(tries) == 1:
            raise errors.StreamInterrupted("cut")
        said.set()
        await asyncio.Event().wait()

    room.model.stream = broken
    async with room.executing() as run:
        await bounded(said.wait())
        room.runtime.cancel(room.run_id)
        assert (await bounded(run)).response == "try 2"


async def test_an_answer_that_the_limit_of_tokens_cuts_off_says_so() -> None:
    cut = replace(InferenceResult.text("and then"), stop_reason=StopReason.MAX_TOKENS)
    room = Room(script=[cut])
    result = await room.execute()
    assert result.termination == (await room.run()).termination == TerminationReason.cut_off()
    assert result.response == "and then"


async def test_an_answer_that_is_always_cut_off_fails_the_execution() -> None:
    room = Room(script=[errors.StreamInterrupted("cut")] * 3)
    with pytest.raises(errors.StreamInterrupted):
        await room.execute()
    assert len(room.model.requests) == 3
    assert await room.texts() == [("user", "go")]


async def test_a_run_that_answered_before_the_crash_does_not_ask_again() -> None:
    room = Room(script=[InferenceResult.text("once")])
    activation = await room.prepared()
    room.coordinator = Crashing(room.stores.coordinator, at=3)
    with pytest.raises(ProcessDied):
        await room.execute(replace(activation, control=room.again().control))
    assert (await room.run()).status is RunStatus.RUNNING
    room.coordinator = room.stores.coordinator
    result = await room.execute(room.again(attempt=2))
    assert result.response == "once"
    assert len(room.model.requests) == 1
    assert (await room.run()).final_output == "once"


async def test_a_run_that_begins_again_does_not_see_what_it_said_before() -> None:
    room = Room(
        script=[calls(call("double", n=1), text="first try"), errors.RateLimited("slow")], tools=[double]
    )
    with pytest.raises(errors.RateLimited):
        await room.execute()
    room.model.add(calls(call("double", n=2), text="second try"), errors.RateLimited("slow"))
    with pytest.raises(errors.RateLimited):
        await room.execute(room.again(recovery=Recovery.RESTART, attempt=2))
    assert room.asked(3) == [("user", "go")]
    assert [text for _, text in room.asked(4)] == ["go", "second try", '{"doubled":4}']
    await room.execute(room.again(attempt=3))
    assert room.asked(5) == room.asked(4)
    assert "first try" in [text for _, text in await room.texts()]
    assert (await room.run()).state == PersistedState(revision=2)


async def test_the_same_thread_does_not_run_twice() -> None:
    room, release = Room(), asyncio.Event()

    @function_tool()
    async def waits() -> None:
        await release.wait()

    room = Room(script=[calls(call("waits"))], tools=[waits])
    async with room.executing() as run:
        await until(lambda: "tool_call_ready" in room.sink.kinds())
        with pytest.raises(errors.ThreadAlreadyRunning):
            await bounded(room.runtime.run(room.again(), Recorder()))
        release.set()
        assert (await bounded(run)).response == "done"


async def test_a_run_that_is_done_is_told_again_and_not_executed_again() -> None:
    room = Room(script=[InferenceResult.text("hello")])
    first = await room.execute()
    again = Recorder()
    second = await bounded(room.runtime.run(room.again(attempt=2), again))
    assert (second.response, second.termination) == (first.response, first.termination)
    assert again.kinds() == ["run_finish"]
    assert len(room.model.requests) == 1
    with pytest.raises(errors.InvalidResume):
        await bounded(room.runtime.run(room.again(), again))


async def test_what_cannot_be_executed_is_refused() -> None:
    room = Room()
    runtime = AgentRuntime(MapResolver({}), clock=room.clock, timer=room.clock)
    activation = await room.prepared()
    with pytest.raises(errors.AgentNotFound, match="agent"):
        await bounded(runtime.run(activation, room.sink))
    with pytest.raises(errors.InvalidActivation):
        await bounded(runtime.run(replace(activation, control=None), room.sink))
    with pytest.raises(errors.ForeignThread):
        await bounded(room.runtime.run(replace(activation, thread_id="t2"), room.sink))
    assert runtime.executing == room.runtime.executing == 0


async def test_without_a_mailbox_it_keeps_its_own_run() -> None:
    room = Room(script=[InferenceResult.text("hello")])
    runtime = room.another_runtime(threads=room.stores.threads, coordinator=room.stores.coordinator)
    activation = replace(room.again(), control=None, messages=(Message.user("hi", id="u1"),), thread_id="new")
    result = await bounded(runtime.run(activation.hinted(run_id=None), room.sink))
    record = await room.stores.threads.load_run(result.run_id)
    assert record is not None
    assert (record.status, record.thread_id, record.agent_id) == (RunStatus.DONE, "new", "agent")
    stored = await room.stores.threads.load_messages("new")
    assert [one.text() for one in stored or ()] == ["hi", "hello"]
    assert runtime.has_commit_coordinator()
    assert runtime.stages_events()
    assert runtime.commit_coordinator() is room.stores.coordinator
    assert runtime.recovery(activation) is Recovery.RESUME


async def test_a_stale_worker_ends_at_once_and_writes_nothing() -> None:
    room = Room(script=[calls(call("double", n=1), text="late")], tools=[double])
    activation = await room.prepared()
    room.coordinator = Refusing(room.stores.coordinator, errors.StaleClaim("lost"), after=1)
    with pytest.raises(errors.StaleClaim):
        await room.execute(replace(activation, control=room.again().control))
    assert await room.texts() == [("user", "go")]
    assert len(room.model.requests) == 1


async def test_a_tool_that_finds_the_claim_lost_ends_the_run() -> None:
    @function_tool()
    async def stale() -> None:
        raise errors.StaleClaim("lost")

    room = Room(script=[calls(call("stale"))], tools=[stale])
    with pytest.raises(errors.StaleClaim):
        await room.execute()
    assert room.sink.of(ToolCallDone) == []


async def test_the_model_call_is_timed() -> None:
    room = Room()
    moved = room.model.stream

    async def slow(request: object) -> object:
        room.clock.set(room.clock.now() + 40)
        async for piece in moved(request):
            yield piece

    room.model.stream = slow
    await room.execute()
    assert [one.duration_ms for one in room.sink.of(InferenceComplete)] == [40]


class ProcessDied(BaseException):
    """Calls after this do not count."""


class Crashing:
    """A coordinator in a process that dies before a commit."""

    def __init__(self, real: object, *, at: int) -> None:
        self._real, self._at, self._commits = real, at, 0

    async def commit(self, commit: object, *, now: int | None = None) -> object:
        self._commits += 1
        if self._commits >= self._at:
            raise ProcessDied
        return await self._real.commit(commit)


class Refusing:
    """A coordinator that refuses every commit after the first ones."""

    def __init__(self, real: object, error: Exception, *, after: int) -> None:
        self._real, self._error, self._left = real, error, after

    async def commit(self, commit: object, *, now: int | None = None) -> object:
        if self._left <= 0:
            raise self._error
        self._left -= 1
        return await self._real.commit(commit)
