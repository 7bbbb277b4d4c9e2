"""The OpenAI SDK against our API: what it is answered, what it raises, and what it asks again."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from channels.http_room import served, until
from dispatch_room import Deaf, done
from gateway_room import Agent, Room, all_answered
from postroom.contracts.errors import (
    ContentFiltered,
    ContextOverflow,
    ExecutorFailed,
    InferenceTimeout,
    InvalidArgument,
    NoModelEndpoint,
    ProviderFailed,
    RateLimited,
    StreamInterrupted,
    Unauthorized,
)
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.inference import InferenceResult, InferenceTextDelta, StopReason
from postroom.contracts.messages import ContentBlock, Role
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadQuery
from postroom.contracts.runs import (
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    Usage,
    WaitingReason,
)
from postroom.executors.requests import build_prompt
from postroom.gateway import wording
from postroom.gateway.config import BusyConfig, BusyPolicy, GatewayConfig
from postroom.gateway.gateway import Gateway
from postroom.gateway.platforms.api_server import ApiServerAdapter, ApiServerOptions, build_failure
from postroom.gateway.session import Platform
from postroom.runtime import (
    AgentRuntime,
    AgentSpec,
    FixedResolver,
    ResolvedAgent,
    ScriptedModel,
    function_tool,
)
from runtime.room import call, calls

KEY = "sk-of-the-harbour-1"
ADA = {"conversation": "ada"}
CONFIG = GatewayConfig(platforms={Platform.API_SERVER: ApiServerOptions(api_key=KEY)})
TOOL = {
    "type": "function",
    "function": {
        "name": "tide",
        "description": "How high the water is",
        "parameters": {"type": "object", "properties": {"port": {"type": "string"}}},
    },
}
FLAT_TOOL = {"type": "function", **TOOL["function"]}


class Held(ScriptedModel):
    """A scripted model that can be held before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()
        self.waiting = False

    async def stream(self, request):
        asked = super().stream(request)
        pieces = [piece async for piece in asked] if self.free.is_set() else None
        if pieces is None:
            self.waiting = True
            await self.free.wait()
            pieces = [piece async for piece in asked]
        for piece in pieces:
            yield piece


@dataclass
class Harbour:
    """A gateway with the API before it, a scripted model, and the SDK."""

    room: Room
    model: Held
    gateway: Gateway
    adapter: ApiServerAdapter
    sdk: AsyncOpenAI

    @property
    def asked(self) -> list[Any]:
        return self.model.requests

    def shown(self, request: int = -1) -> list[tuple[str, str]]:
        """The part of the conversation that the model received."""
        return [(str(one.role), one.text()) for one in self.asked[request].messages if one.text()]

    async def chat(self, *messages: Any, **more: Any) -> Any:
        told = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
        return await self.sdk.chat.completions.create(model="postroom", messages=told, **more)


@asynccontextmanager
async def harbour(
    room: Room,
    *,
    config: GatewayConfig = CONFIG,
    tools: Any = (),
    system: str = "",
    agent: Any = None,
    model: Held | None = None,
) -> AsyncIterator[Harbour]:
    """Open a gateway; while it is open, time passes."""
    model = model or Held()
    spec = AgentSpec(model="m", system_prompt=system, tool_timeout_ms=None)
    runtime = AgentRuntime(
        FixedResolver(ResolvedAgent(spec=spec, model=model, tools=tuple(tools))),
        clock=room.clock,
        timer=room.clock,
    )
    adapter = ApiServerAdapter(config.platforms[Platform.API_SERVER], clock=room.clock, timer=room.clock)
    gateway, _ = await room.open(agent or runtime, config=config, channel=adapter)
    hurried = room.hurry(gateway)

    async def hurry() -> None:
        [(_, mailbox)] = room.opened
        while True:
            if hurried():
                await mailbox.poll()
            await asyncio.sleep(0)

    passing = asyncio.create_task(hurry())
    try:
        async with asyncio.timeout(90), served(adapter) as client:
            base = f"{str(client.base_url).rstrip('/')}/v1"
            async with AsyncOpenAI(api_key=KEY, base_url=base, max_retries=2) as sdk:
                yield Harbour(room, model, gateway, adapter, sdk)
    finally:
        passing.cancel()
        await asyncio.wait([passing])
        await room.close()


def said(text: str, read: int = 0, written: int = 0) -> InferenceResult:
    used = Usage(input_tokens=read, output_tokens=written)
    return replace(InferenceResult.text(text), usage=used)


async def test_a_chat_without_a_session_is_what_the_client_says_it_is(room) -> None:
    async with harbour(room, system="You keep the harbour.") as it:
        it.model.add(said("Blue.", 12, 3))
        answer = await it.chat(
            {"role": "system", "content": "Be brief."},
            "My favourite colour is blue",
            {"role": "assistant", "content": "Noted."},
            "Which is it?",
            temperature=0.2,
            max_tokens=50,
        )
        assert answer.choices[0].message.content == "Blue."
        assert (answer.choices[0].finish_reason, answer.usage.total_tokens) == ("stop", 15)
        assert it.shown() == [
            ("user", "My favourite colour is blue"),
            ("assistant", "Noted."),
            ("user", "Which is it?"),
        ]
        asked = it.asked[0]
        assert asked.system == "You keep the harbour.\n\nBe brief."
        assert (asked.overrides.temperature, asked.overrides.max_tokens) == (0.2, 50)
        await it.chat("Another")
        assert it.shown() == [("user", "Another")]


async def test_in_a_session_the_conversation_is_ours(room) -> None:
    async with harbour(room) as it:
        it.model.add(said("one"), said("two"))
        await it.chat("first", extra_body=ADA)
        await it.chat("made up", {"role": "assistant", "content": "made up"}, "second", extra_body=ADA)
        assert it.shown() == [("user", "first"), ("assistant", "one"), ("user", "second")]


async def cut_off(it: Harbour, words: str) -> None:
    """Ask in each of the four ways: each response marks the answer `and the` as incomplete."""
    pieces = [one async for one in await it.chat(words, stream=True)]
    text = "".join(one.choices[0].delta.content or "" for one in pieces)
    assert (text, pieces[-1].choices[0].finish_reason) == ("and the", "length")
    async with it.sdk.responses.stream(model="postroom", input=words) as events:
        kinds = [event.type async for event in events]
    assert kinds[-1] == "response.incomplete"
    [choice] = (await it.chat(f"{words} again")).choices
    assert (choice.message.content, choice.finish_reason) == ("and the", "length")
    answer = await it.sdk.responses.create(model="postroom", input=f"{words} again")
    assert (answer.status, answer.output_text) == ("incomplete", "and the")
    assert answer.incomplete_details.reason == "max_output_tokens"


async def test_an_answer_that_a_limit_cut_off_is_no_whole_one(room) -> None:
    agent, limits = Agent(), ["wall_timeout", "max_rounds", "token_budget"]

    async def act(activation: Any, sink: Any) -> AgentRunResult:
        stopped = TerminationReason(type=TerminationKind.STOPPED, value=limits[0])
        return AgentRunResult(run_id=activation.run_id, response="and the", termination=stopped)

    agent.act = act
    async with harbour(room, agent=agent) as it:
        while limits:
            await cut_off(it, limits[0])
            limits.pop(0)
    async with harbour(room) as it:
        it.model.add(*[replace(said("and the"), stop_reason=StopReason.MAX_TOKENS)] * 4, InferenceResult())
        await cut_off(it, "the model's")
        assert len(it.asked) == 4
        [choice] = (await it.chat("Say nothing")).choices
        assert (choice.message.content, choice.finish_reason) == ("", "stop")


async def test_questions_are_shown_where_the_answer_is_waited_for_and_each_is_shown_once(room) -> None:
    agent, told = Agent(), set()
    tickets = [
        RunWaitingTicket(ticket_id=one, tool_call_id=one, tool_name="ask", reason=f"Delete {one}?")
        for one in ("aaaaaa", "bbbbbb")
    ]

    async def act(activation: Any, sink: Any) -> AgentRunResult:
        told.update(call for call, _ in activation.decisions)
        if left := tuple(one for one in tickets if one.tool_call_id not in told):
            return AgentRunResult(
                run_id=activation.run_id,
                response="They are old.",
                termination=TerminationReason.suspended(),
                waiting=RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=left),
            )
        return AgentRunResult(run_id=activation.run_id, response="Both are gone.")

    agent.act = act
    async with harbour(room, agent=agent) as it:
        text, open_ones = "", ["bbbbbb", "aaaaaa"]
        async for piece in await it.chat("Tidy up", stream=True, extra_body=ADA):
            text += piece.choices[0].delta.content or ""
            if open_ones and all(f"/approve {one}" in text for one in open_ones):
                for number in open_ones:
                    await it.chat(f"/approve {number}", extra_body=ADA)
                    await until(lambda number=number: number in told)
                open_ones = []
    asked = [f"Delete {one}?\n\nApprove: /approve {one}\nDeny: /deny {one}" for one in ("aaaaaa", "bbbbbb")]
    assert text == "\n\n".join(["They are old.", *asked, "Both are gone."])


async def test_a_background_response_still_shows_its_questions_after_a_restart(room) -> None:
    agent, free = Agent(), asyncio.Event()
    tickets = tuple(
        RunWaitingTicket(ticket_id=one, tool_call_id=one, tool_name="ask", reason=f"Delete {one}?")
        for one in ("aaaaaa", "bbbbbb")
    )

    async def act(activation: Any, sink: Any) -> AgentRunResult:
        if activation.decisions:
            await free.wait()
            return AgentRunResult(run_id=activation.run_id, response="Done.")
        return AgentRunResult(
            run_id=activation.run_id,
            response="They are old.",
            termination=TerminationReason.suspended(),
            waiting=RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=tickets),
        )

    async def shown(it: Any) -> str:
        found = await it.sdk.responses.retrieve(begun.id)
        assert found.status == "in_progress"
        return found.output_text

    agent.act = act
    async with harbour(room, agent=agent) as it:
        begun = await it.sdk.responses.create(model="postroom", input="Tidy up", background=True)
        async with asyncio.timeout(60):
            while "/approve bbbbbb" not in await shown(it):
                await asyncio.sleep(0)
        before = await shown(it)
    async with harbour(room, agent=agent) as it:
        assert await shown(it) == before
        assert (await it.sdk.responses.cancel(begun.id)).output_text == before


async def test_two_chats_of_one_user_stay_two_conversations(room) -> None:
    async with harbour(room) as it:
        it.model.add(said("Noted."), said("I do not know."), said("You are Eve."))
        await it.chat("My name is Bob", user="64f0c0ffee")
        await it.chat("What is my name?", user="64f0c0ffee")
        assert it.shown() == [("user", "What is my name?")]
        await it.chat(
            "My name is Eve", {"role": "assistant", "content": "Hi"}, "Who am I?", user="64f0c0ffee"
        )
        assert it.shown() == [("user", "My name is Eve"), ("assistant", "Hi"), ("user", "Who am I?")]
        answer = await it.sdk.responses.create(model="postroom", input="And now?", user="64f0c0ffee")
        assert it.shown() == [("user", "And now?")]
        assert answer.conversation is None


async def test_nothing_is_kept_for_later_where_only_requests_are_answered(room) -> None:
    async with harbour(room) as it:
        for command in ("/remind 10m Lock the door.", "/every 1d Say what is new."):
            answer = await it.chat(command, extra_body=ADA)
            assert answer.choices[0].message.content == wording.ANSWERS_ONLY


async def test_a_stream_is_read_by_the_sdk(room) -> None:
    async with harbour(room) as it:
        it.model.add(said("Good morning", 5, 2))
        text, usage = "", None
        async for piece in await it.chat("Hello", stream=True, stream_options={"include_usage": True}):
            text += (piece.choices[0].delta.content or "") if piece.choices else ""
            usage = piece.usage or usage
        assert (text, usage.total_tokens) == ("Good morning", 7)
        it.model.add(said("Good evening"))
        async with it.sdk.responses.stream(model="postroom", input="Hello") as stream:
            kinds = [event.type async for event in stream]
            assert (await stream.get_final_response()).output_text == "Good evening"
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_callers_tools_are_called_by_the_caller(room, stream) -> None:
    async with harbour(room) as it:
        it.model.add(calls(call("tide", "c1", port="Hull"), call("tide", "c2", port="Ayr")), said("High."))
        asked = [{"role": "user", "content": "How high?"}]
        told = {"model": "postroom", "messages": asked, "tools": [TOOL], "tool_choice": "auto"}
        if stream:
            async with it.sdk.chat.completions.stream(**told) as pieces:
                answer = await pieces.get_final_completion()
        else:
            answer = await it.sdk.chat.completions.create(**told)
        choice = answer.choices[0]
        found = [
            (one.id, one.function.name, json.loads(one.function.arguments))
            for one in choice.message.tool_calls
        ]
        assert choice.finish_reason == "tool_calls"
        assert found == [("c1", "tide", {"port": "Hull"}), ("c2", "tide", {"port": "Ayr"})]
        assert [one.name for one in it.asked[0].tools] == ["tide"]
        assert it.asked[0].overrides.more == {"tool_choice": "auto"}
        results = [
            {"role": "tool", "tool_call_id": "c1", "content": "3 m"},
            {"role": "tool", "tool_call_id": "c2", "content": "1 m"},
        ]
        shown = choice.message.model_dump(exclude_none=True)
        again = await it.chat(*asked, shown, *results, tools=[TOOL])
        assert again.choices[0].message.content == "High."
        assert it.shown() == [("user", "How high?"), ("tool", "3 m"), ("tool", "1 m")]
        assert [len(one.tool_calls) for one in it.asked[1].messages if one.role is Role.ASSISTANT] == [2]


async def test_tools_in_responses_go_on_by_the_response(room) -> None:
    async with harbour(room) as it:
        it.model.add(calls(call("tide", "c1", port="Hull"), text="I look."), said("High."))
        first = await it.sdk.responses.create(model="postroom", input="How high?", tools=[FLAT_TOOL])
        assert [one.type for one in first.output] == ["message", "function_call"]
        asked = first.output[1]
        assert (asked.call_id, asked.name, json.loads(asked.arguments)) == ("c1", "tide", {"port": "Hull"})
        result = {"type": "function_call_output", "call_id": "c1", "output": "3 m"}
        second = await it.sdk.responses.create(
            model="postroom", input=[result], previous_response_id=first.id, tools=[FLAT_TOOL]
        )
        assert second.output_text == "High."
        assert it.shown() == [("user", "How high?"), ("assistant", "I look."), ("tool", "3 m")]
        it.model.add(calls(call("tide", "c9")))
        async with it.sdk.responses.stream(model="postroom", input="Again", tools=[FLAT_TOOL]) as stream:
            kinds = [event.type async for event in stream]
            assert (await stream.get_final_response()).output[0].call_id == "c9"
        assert "response.function_call_arguments.done" in kinds


async def test_a_result_that_the_models_last_word_does_not_ask_for_is_refused(room) -> None:
    async with harbour(room) as it:

        async def ask(asked: Any) -> str:
            made = await it.sdk.responses.create(
                model="postroom", input=asked, tools=[FLAT_TOOL], conversation="conv1"
            )
            return made.output_text

        def result(call_id: str, output: str) -> list[dict[str, str]]:
            return [{"type": "function_call_output", "call_id": call_id, "output": output}]

        it.model.add(calls(call("tide", "c1"), call("tide", "c2")), said("Forgotten."))
        await ask("How high?")
        await ask("Forget it")
        with pytest.raises(openai.BadRequestError, match="the result belongs to no tool call 'c1'"):
            await ask(result("c1", "3 m"))
        it.model.add(calls(call("tide", "c3")), said("High."), said("As before."))
        await ask("Again")
        assert await ask(result("c3", "4 m")) == "High."
        for late in (result("c3", "5 m"), result("never", "6 m")):
            with pytest.raises(openai.BadRequestError, match="send it directly after its call"):
                await ask(late)
        assert await ask("And now?") == "As before."
        assert [one for one in it.shown() if one[0] == "tool"] == [("tool", "4 m")]


async def test_our_own_tools_are_used_beside_the_callers(room) -> None:
    @function_tool()
    async def wind() -> str:
        """Describe the wind."""
        return "calm"

    async with harbour(room, tools=[wind]) as it:
        it.model.add(calls(call("wind", "w"), call("tide", "t")), said("Both."))
        first = await it.chat("?", tools=[TOOL], extra_body=ADA)
        assert [one.id for one in first.choices[0].message.tool_calls] == ["t"]
        second = await it.chat(
            {"role": "tool", "tool_call_id": "t", "content": "low"}, tools=[TOOL], extra_body=ADA
        )
        assert second.choices[0].message.content == "Both."
        assert it.shown() == [("user", "?"), ("tool", "calm"), ("tool", "low")]


class Boat(BaseModel):
    name: str
    masts: int


async def test_structured_output_is_parsed_by_the_sdk(room) -> None:
    async with harbour(room) as it:
        it.model.add(said('{"name": "Ada", "masts": 2}'), said('{"name": "Bea", "masts": 3}'))
        chat = await it.sdk.chat.completions.parse(
            model="postroom", messages=[{"role": "user", "content": "A boat"}], response_format=Boat
        )
        assert chat.choices[0].message.parsed == Boat(name="Ada", masts=2)
        response = await it.sdk.responses.parse(model="postroom", input="A boat", text_format=Boat)
        assert response.output_parsed == Boat(name="Bea", masts=3)
        for asked in it.asked:
            form = asked.overrides.more["response_format"]
            assert (form["type"], form["json_schema"]["name"]) == ("json_schema", "Boat")


# What it raises.

FAILURES = {
    "provider": (ProviderFailed("no"), openai.InternalServerError, 502, "model_failed"),
    "rate": (RateLimited("slowly"), openai.InternalServerError, 503, "model_rate_limited"),
    "time": (InferenceTimeout("late"), openai.InternalServerError, 504, "model_timeout"),
    "key": (Unauthorized("no"), openai.InternalServerError, 502, "model_refused_our_key"),
    "window": (ContextOverflow("too long"), openai.BadRequestError, 400, "context_length_exceeded"),
    "words": (ExecutorFailed("rate limited: no"), openai.InternalServerError, 500, "agent_failed"),
    "defect": (RuntimeError("a defect"), openai.InternalServerError, 500, "agent_failed"),
}


async def test_a_failure_of_the_agent_is_an_error_and_is_not_done_again(room) -> None:
    async with harbour(room) as it:
        for name, (failure, kind, status, code) in FAILURES.items():
            before = len(it.asked)
            it.model.add(*[failure] * 5)
            with pytest.raises(kind) as raised:
                await it.chat(name)
            assert (raised.value.status_code, raised.value.code) == (status, code), name
            tries = len(it.asked) - before
            assert tries <= 5
            it.model._script.clear()
            assert (await it.chat(name)).choices[0].message.content == "done"
            assert len(it.asked) == before + tries + 1


async def test_a_web_page_in_place_of_an_answer_has_the_caller_look_at_the_address(room) -> None:
    async with harbour(room) as it:
        it.model.add(NoModelEndpoint("the model's endpoint answered 200 with a web page: <html>"))
        with pytest.raises(openai.InternalServerError, match="a web page or other unexpected data") as raised:
            await it.chat("Hello")
        assert (raised.value.status_code, raised.value.code) == (502, "model_endpoint_missing")
        assert len(it.asked) == 1


async def test_a_program_says_what_it_likes_and_the_code_of_its_failure_decides(room) -> None:
    """The words that begin an answer or a failure's text are those of the program."""

    class Program(Deaf):
        async def execute(self, activation, sink):
            words = build_prompt(activation)
            if words == "fail":
                reason = TerminationReason.error("refused: by a program")
                return AgentRunResult(run_id=activation.run_id, termination=reason)
            if words == "refuse":
                reason = TerminationReason.error("in other words", ContentFiltered.code)
                return AgentRunResult(run_id=activation.run_id, termination=reason)
            return done(activation, "rate limited: no, this is the answer")

    async with harbour(room, agent=Program()) as it:
        answer = await it.chat("x")
        assert answer.choices[0].message.content == "rate limited: no, this is the answer"
        with pytest.raises(openai.InternalServerError) as failed:
            await it.chat("fail")
        assert (failed.value.status_code, failed.value.code) == (500, "agent_failed")
        with pytest.raises(openai.BadRequestError) as refused:
            await it.chat("refuse")
        assert refused.value.code == "content_filter"


async def test_a_failure_in_a_stream_is_what_the_sdk_expects(room) -> None:
    async with harbour(room) as it:
        it.model.add(*[Unauthorized("no")] * 3)
        with pytest.raises(openai.APIError) as raised:
            async for _ in await it.chat("Hello", stream=True):
                pass
        assert raised.value.code == "model_refused_our_key"
        events = [
            one async for one in await it.sdk.responses.create(model="postroom", input="x", stream=True)
        ]
        assert events[-1].type == "response.failed"
        failed = events[-1].response
        assert (failed.status, failed.error.code) == ("failed", "server_error")
        assert (await it.sdk.responses.retrieve(failed.id)).status == "failed"


HALF = "The light in the north is broken, so take the "


class Breaking(Held):
    """Sends a part of its first answers, and breaks off when its caller has read that part."""

    def __init__(self, cuts: int) -> None:
        super().__init__()
        self.cuts = cuts
        self.was_read = asyncio.Event()

    async def stream(self, request):
        if self.cuts:
            self.cuts -= 1
            yield InferenceTextDelta(delta=HALF)
            await self.was_read.wait()
            raise StreamInterrupted("the stream broke off")
        async for piece in super().stream(request):
            yield piece


async def read(model: Breaking, stream: Any, into: list[str]) -> None:
    """Read a stream of chat to its end."""
    async for one in stream:
        into.append(one.choices[0].delta.content or "")
        if into[-1]:
            model.was_read.set()


CUTS = pytest.mark.parametrize("cuts", [1, 3], ids=["the step asks again", "the run is tried again"])


@CUTS
async def test_a_stream_that_broke_off_goes_on_in_the_same_words(room, cuts) -> None:
    model, got = Breaking(cuts), list[str]()
    async with harbour(room, model=model) as it:
        model.add(said(f"{HALF}south one."))
        await read(model, await it.chat("Which light?", stream=True), got)
    assert "".join(got) == f"{HALF}south one."


@CUTS
async def test_a_stream_that_broke_off_ends_with_an_error_if_the_next_try_says_other_words(
    room, cuts
) -> None:
    """A caller must not get half of one answer and all of another."""
    model, got, whole = Breaking(cuts), list[str](), "Steer for the south light."
    async with harbour(room, model=model) as it:
        model.add(said(whole), said(whole))
        stream = await it.chat("Which light?", stream=True, extra_body=ADA)
        with pytest.raises(openai.APIError, match="Idempotency-Key") as raised:
            await read(model, stream, got)
        assert raised.value.code == "model_broke_off"
        assert "".join(got) == HALF.rstrip()
        key = raised.value.message.partition("Idempotency-Key: ")[2].split()[0]
        again = await it.chat("Which light?", extra_body=ADA, extra_headers={"Idempotency-Key": key})
        assert again.choices[0].message.content == whole
        model.cuts, model.was_read, events = cuts, asyncio.Event(), list[Any]()
        async for event in await it.sdk.responses.create(model="postroom", input="x", stream=True):
            events.append(event)
            if event.type == "response.output_text.delta":
                model.was_read.set()
        assert events[-1].type == "response.failed"
        assert whole not in "".join(getattr(one, "delta", "") for one in events)
        assert (await it.sdk.responses.retrieve(events[-1].response.id)).output_text == whole


async def test_what_is_wrong_with_a_request_is_said_by_name(room) -> None:
    async with harbour(room) as it:
        with pytest.raises(openai.NotFoundError) as unknown:
            await it.sdk.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.AuthenticationError):
            await it.sdk.with_options(api_key="sk-of-somebody-else").models.list()
        wrong = {"tool_choice": 7, "response_format": "x", "max_tokens": -1, "stop": {}, "metadata": 5}
        absent = {"n": 2, "logprobs": True, "functions": [{"name": "x"}]}
        for more in ({name: one} for name, one in (wrong | absent).items()):
            with pytest.raises(openai.BadRequestError) as refused:
                await it.chat("x", **more)
            assert refused.value.param == next(iter(more))
        with pytest.raises(openai.BadRequestError) as refused:
            await it.sdk.responses.create(model="postroom", input="x", tools=[{"type": "web_search"}])
        assert refused.value.param == "tools[0]"
        choice = {"type": "function", "function": {"name": "gone"}}
        for tools in ({}, {"tools": [TOOL]}):
            with pytest.raises(openai.BadRequestError) as refused:
                await it.chat("x", tool_choice=choice, **tools)
            assert (refused.value.param, "'gone'" in refused.value.message) == ("tool_choice", True)
        with pytest.raises(openai.BadRequestError) as refused:
            await it.sdk.responses.create(
                model="postroom", input="x", tool_choice={"type": "function", "name": "gone"}
            )
        assert refused.value.param == "tool_choice"
        assert (await it.sdk.models.retrieve("postroom")).id == "postroom"
        with pytest.raises(openai.NotFoundError):
            await it.sdk.models.retrieve("openai/gpt-9")
        assert it.asked == []


WRONG_CHAT = {
    **dict.fromkeys(
        ("temperature", "top_p", "presence_penalty", "frequency_penalty"), ("hot", 9, -9, True, [])
    ),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), ("many", 0, 1.5, True, 10**12)),
    **dict.fromkeys(("stream", "store", "parallel_tool_calls"), ("yes", 1)),
    **dict.fromkeys(("reasoning_effort", "verbosity", "user", "service_tier", "prompt_cache_key"), (7, {})),
    "model": (7,),
    "n": (0, 2, "1", True),
    "seed": ("x", 1.5, 2**70),
    "stop": (7, {}, [1], ["a", "b", "c", "d", "e"]),
    "logit_bias": ([], {"5": "x"}, {"5": 101}),
    "tool_choice": (7, "perhaps"),
    "response_format": ("json", {"type": "yaml"}),
    "stream_options": ("x", []),
    "metadata": ([], {"a": 1}, {str(one): "x" for one in range(17)}),
    "tools": ("x", {}),
}
"""Values that no chat completion can have, by the field that has them."""
WRONG_RESPONSE = {
    **{
        name: WRONG_CHAT[name]
        for name in ("temperature", "top_p", "tool_choice", "metadata", "store", "model")
    },
    **dict.fromkeys(("instructions", "previous_response_id"), (7, {})),
    **dict.fromkeys(("text", "reasoning"), ("x", 7)),
    "max_output_tokens": WRONG_CHAT["max_tokens"],
    "background": ("yes",),
    "include": ("x", [1]),
    "truncation": ("perhaps",),
    "conversation": (7, "a\nb"),
    "input": (7, {}),
}


async def test_each_field_with_a_wrong_value_is_refused_by_name_and_in_plain_words(room) -> None:
    async with harbour(room) as it:
        chat, respond = it.sdk.chat.completions.create, it.sdk.responses.create
        for asking, wrong in ((partial(chat, messages=[]), WRONG_CHAT), (respond, WRONG_RESPONSE)):
            whole = {"model": "postroom", "input": "x", "messages": [{"role": "user", "content": "x"}]}
            whole.pop("messages" if asking is respond else "input")
            for name, value in ((name, one) for name, values in wrong.items() for one in values):
                with pytest.raises(openai.BadRequestError) as refused:
                    await asking(model="postroom", extra_body={**whole, name: value})
                error = refused.value
                assert (error.param, error.code, error.type) == (
                    name,
                    "invalid_value",
                    "invalid_request_error",
                )
                told = error.body["message"]
                for word in ("Expected", "object of type", "$.", "int64", "float"):  # of a validator
                    assert word not in told
        for more, param in (
            ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
            (
                {"tools": [{**TOOL, "function": {**TOOL["function"], "description": 7}}]},
                "tools[0].description",
            ),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await it.chat("x", extra_body=more)
            assert refused.value.param == param
        for more, param in (
            ({"text": {"format": "json"}}, "text.format"),
            ({"reasoning": {"effort": 7}}, "reasoning.effort"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await respond(model="postroom", input="x", extra_body=more)
            assert refused.value.param == param
        with pytest.raises(openai.BadRequestError, match='must be a number from 0 to 2, not "hot"'):
            await it.chat("x", extra_body={"temperature": "hot"})
        for header in ("Idempotency-Key", "X-Postroom-Session"):
            with pytest.raises(openai.BadRequestError) as refused:
                await it.chat("x", extra_headers={header: "x" * 201})
            assert refused.value.param == header
        assert it.asked == []
        await it.chat("x", temperature=1, top_p=0.5, max_completion_tokens=9, stop=["a"], seed=-1)
        assert it.asked[0].overrides.temperature == 1.0


async def test_a_session_that_refuses_while_busy_says_so(room) -> None:
    config = replace(CONFIG, busy=BusyConfig(mode=BusyPolicy.REJECT))
    async with harbour(room, config=config) as it:
        it.model.free.clear()
        first = asyncio.create_task(it.chat("one", extra_body=ADA))
        await until(lambda: it.model.waiting)
        with pytest.raises(openai.RateLimitError) as refused:
            await it.sdk.with_options(max_retries=0).chat.completions.create(
                model="postroom", messages=[{"role": "user", "content": "two"}], extra_body=ADA
            )
        assert refused.value.code == "busy"
        it.model.free.set()
        assert (await first).choices[0].message.content == "done"


async def test_a_parameter_that_there_is_not_is_refused_by_name_and_one_without_effect_is_taken(room) -> None:
    harmless = {"metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k", "store": False}
    async with harbour(room) as it:
        for name, value in (
            *(("top_k", 4), ("web_search_options", {}), ("modalities", ["audio"])),
            *(("functions", []), ("function_call", "none")),
        ):
            for more in ({}, {"stream": True}):
                with pytest.raises(openai.BadRequestError) as refused:
                    await it.chat("x", extra_body={name: value, **more})
                assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")
        with pytest.raises(openai.BadRequestError) as refused:
            await it.sdk.responses.create(model="postroom", input="x", extra_body={"top_k": 4})
        assert refused.value.param == "top_k"
        await it.chat("x", extra_body={**harmless, "modalities": ["text"], "top_k": None, "logprobs": False})
        more = {**harmless, "include": ["reasoning.encrypted_content"], "truncation": "auto"}
        await it.sdk.responses.create(model="postroom", input="x", extra_body=more)


async def test_an_agent_that_is_a_program_refuses_tools_by_name(room) -> None:
    class Program(Deaf):
        async def execute(self, activation, sink):
            return done(activation, build_prompt(activation))

    async with harbour(room, agent=Program()) as it:
        for more in ({"tools": [TOOL]}, {"response_format": {"type": "json_object"}}):
            with pytest.raises(openai.BadRequestError) as refused:
                await it.chat("x", **more)
            assert (refused.value.param, refused.value.code) == (next(iter(more)), "unsupported_parameter")
        told = await it.chat(
            {"role": "system", "content": "Be brief."}, "a", {"role": "assistant", "content": "b"}, "c"
        )
        text = told.choices[0].message.content
        assert text.startswith("Be brief.")
        assert text.endswith("user: a\n\nassistant: b\n\nc")


# What it asks again.


IMPATIENT = replace(CONFIG, platforms={Platform.API_SERVER: ApiServerOptions(api_key=KEY, timeout_s=1)})
"""The server answers 504 after a second, and the run continues."""


async def test_a_time_out_of_the_server_and_its_retry_are_one_turn(room) -> None:
    async with harbour(room, config=IMPATIENT) as it:
        it.model.free.clear()
        patient = it.sdk.with_options(max_retries=50)
        asking = asyncio.create_task(
            patient.chat.completions.create(model="postroom", messages=[{"role": "user", "content": "x"}])
        )
        await until(lambda: it.adapter._exchanges.waiting == 1)
        await until(lambda: it.adapter._exchanges.waiting == 0)
        await until(lambda: it.adapter._exchanges.waiting == 1)
        it.model.free.set()
        assert (await asking).choices[0].message.content == "done"
        assert len(it.asked) == 1
        # Who asks the same again on purpose has a turn of their own, side by side too.
        await asyncio.gather(it.chat("x"), it.chat("x"))
        assert len(it.asked) == 3


async def test_a_form_there_is_not_and_a_result_of_no_call_are_refused(room) -> None:
    async with harbour(room) as it:
        with pytest.raises(openai.BadRequestError) as refused:
            await it.chat("x", response_format={"type": "yaml"})
        assert refused.value.param == "response_format"
        with pytest.raises(openai.BadRequestError) as refused:
            await it.sdk.responses.create(model="postroom", input="x", text={"format": {"type": "yaml"}})
        assert refused.value.param == "text"
        result = {"role": "tool", "tool_call_id": "nobody", "content": "3 m"}
        with pytest.raises(openai.BadRequestError) as refused:
            await it.chat("x", result)
        assert refused.value.param == "messages"
        await it.chat("x", response_format={"type": "json_object"})
        assert len(it.asked) == 1


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_retry_after_a_restart_is_the_same_turn(room, keyed) -> None:
    more = {"extra_headers": {"Idempotency-Key": "order-7"}} if keyed else {}
    async with harbour(room, config=IMPATIENT) as it:
        it.model.add(said("Once."))
        it.model.free.clear()
        with pytest.raises(openai.InternalServerError, match="no answer within 1 seconds"):
            await it.sdk.with_options(max_retries=0).chat.completions.create(
                model="postroom", messages=[{"role": "user", "content": "x"}], **more
            )
        it.model.free.set()
        await all_answered(room, it.gateway, 1)
    async with harbour(room) as it:
        assert (await it.chat("x", **more)).choices[0].message.content == "Once."
        assert it.asked == []
        if keyed:
            with pytest.raises(openai.ConflictError):
                await it.sdk.with_options(max_retries=0).chat.completions.create(
                    model="postroom", messages=[{"role": "user", "content": "y"}], **more
                )


KEYED = {"Idempotency-Key": "order-7"}


@pytest.mark.parametrize("headers", [{}, KEYED, {"x-stainless-retry-count": "1"}])
async def test_a_request_whose_run_failed_has_no_answer_and_runs_anew_also_after_a_restart(
    room, headers
) -> None:
    async with harbour(room) as it:
        for tries in (1, 2):
            it.model.add(*[Unauthorized("no")] * 5)
            with pytest.raises(openai.InternalServerError, match="key"):
                await it.chat("x", extra_headers=headers)
            it.model._script.clear()
            assert len(it.asked) == tries
    async with harbour(room) as it:
        if headers is KEYED:
            with pytest.raises(openai.ConflictError, match="another message"):
                await it.sdk.with_options(max_retries=0).chat.completions.create(
                    model="postroom", messages=[{"role": "user", "content": "y"}], extra_headers=headers
                )
        answer = await it.chat("x", extra_headers=headers)
        assert (answer.choices[0].message.content, len(it.asked)) == ("done", 1)
        if headers:
            assert (await it.chat("x", extra_headers=headers)).id == answer.id
            assert len(it.asked) == 1


async def test_a_request_that_counts_itself_as_a_retry_gets_the_answer_that_went_out(room) -> None:
    async with harbour(room) as it:
        first, second = await it.chat("x"), await it.chat("x")
        retry = {"x-stainless-retry-count": "1"}
        assert (await it.chat("x", extra_headers=retry)).id == second.id != first.id
        assert len(it.asked) == 2
    async with harbour(room) as it:
        assert (await it.chat("x", extra_headers=retry)).choices[0].message.content == "done"
        assert it.asked == []


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_request_repeated_after_its_recovered_run_has_ended_is_the_same_turn(room, keyed) -> None:
    more = {"extra_headers": {"Idempotency-Key": "order-7"}} if keyed else {}
    held, agent = Agent(), Agent()
    held.free.clear()
    async with harbour(room, agent=held, config=replace(IMPATIENT, drain=timedelta(0))) as it:
        with pytest.raises(openai.InternalServerError, match="no answer within 1 seconds"):
            await it.sdk.with_options(max_retries=0).chat.completions.create(
                model="postroom", messages=[{"role": "user", "content": "x"}], **more
            )
        await until(held.began(1))
    async with harbour(room, agent=agent) as it:  # the run is taken up, and ends before its caller asks again
        await all_answered(room, it.gateway, 1)
        again = await it.chat("x", **more)
        assert (again.choices[0].message.content, len(agent.read)) == ("re: x", 1)
        assert ((await it.chat("x", **more)).id == again.id) is keyed
        assert len(agent.read) == (1 if keyed else 2)


async def test_the_same_words_twice_in_a_session_are_two_turns_also_after_a_restart(room) -> None:
    """A session's request without history has no position, so its words cannot identify a repeat."""
    asked = {"extra_headers": {"X-Postroom-Session": "ada"}}
    async with harbour(room, config=IMPATIENT) as it:
        it.model.add(said("Shall I sail?"), said("Shall I sail to Hull?"))
        await it.chat("Sail", **asked)
        await it.chat("yes", **asked)
        it.model.free.clear()
        with pytest.raises(openai.InternalServerError, match="no answer within 1 seconds"):
            await it.sdk.with_options(max_retries=0).chat.completions.create(
                model="postroom", messages=[{"role": "user", "content": "no"}], **asked
            )
        it.model.free.set()
        await all_answered(room, it.gateway, 3)
        assert (await it.chat("no", **asked)).choices[0].message.content == "done"
        assert len(it.asked) == 4
    async with harbour(room) as it:
        again = await it.chat("yes", **asked)
        assert [text for role, text in it.shown() if role == "user"] == ["Sail", "yes", "no", "no", "yes"]
        retry = {"x-stainless-retry-count": "1", **asked["extra_headers"]}
        assert (await it.chat("yes", extra_headers=retry)).id == again.id
    async with harbour(room) as it:  # the retry is of the newest, whose answer may not have arrived
        assert (await it.chat("yes", extra_headers=retry)).id == again.id
        assert it.asked == []


async def test_a_request_of_a_session_that_brings_its_history_is_known_by_its_position(room) -> None:
    history = [
        {"role": "user", "content": "Sail"},
        {"role": "assistant", "content": "Shall I?"},
        {"role": "user", "content": "yes"},
    ]
    longer = [*history, {"role": "assistant", "content": "To Hull?"}, {"role": "user", "content": "yes"}]
    async with harbour(room) as it:
        await it.chat(*history, extra_body=ADA)
    async with harbour(room) as it:
        await it.chat(*history, extra_body=ADA)
        assert it.asked == []
        await it.chat(*longer, extra_body=ADA)
        assert len(it.asked) == 1


async def test_responses_are_known_after_a_restart(room) -> None:
    async with harbour(room) as it:
        it.model.add(said("one"))
        first = await it.sdk.responses.create(model="postroom", input="first", metadata={"a": "b"})
        hidden = await it.sdk.responses.create(model="postroom", input="second", store=False)
        for number in range(3):
            await it.sdk.responses.create(model="postroom", input=f"more {number}")
    async with harbour(room) as it:
        found = await it.sdk.responses.retrieve(first.id)
        assert (found.output_text, found.metadata, found.status) == ("one", {"a": "b"}, "completed")
        with pytest.raises(openai.NotFoundError):
            await it.sdk.responses.retrieve(hidden.id)
        await it.sdk.responses.create(model="postroom", input="second", previous_response_id=first.id)
        assert it.shown() == [("user", "first"), ("assistant", "one"), ("user", "second")]
        await it.sdk.responses.delete(first.id)
    async with harbour(room) as it:
        with pytest.raises(openai.NotFoundError):
            await it.sdk.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError) as refused:
            await it.sdk.responses.create(model="postroom", input="x", previous_response_id=first.id)
        assert refused.value.code == "previous_response_not_found"


THOUGHT = "Hull or Ayr? The tide decides."


async def test_an_answer_that_is_fetched_after_a_restart_has_its_reasoning(room) -> None:
    more: Any = {"model": "postroom", "input": "Where to?", "extra_headers": KEYED}
    thinks = InferenceResult(
        content=(ContentBlock(type="thinking", text=THOUGHT), ContentBlock(text="Hull."))
    )

    def parts(answer: Any) -> list[tuple[str, str]]:
        return [(one.type, one.content[0].text) for one in answer.output]

    async with harbour(room) as it:
        it.model.add(thinks, thinks)
        asked = await it.sdk.responses.create(**more)
        await it.chat("Where to?")
        before = parts(asked)
    assert before == [("reasoning", THOUGHT), ("message", "Hull.")]
    async with harbour(room) as it:
        assert parts(await it.sdk.responses.retrieve(asked.id)) == before
        assert parts(await it.sdk.responses.create(**more)) == before
        again = {"x-stainless-retry-count": "1"}
        assert (await it.chat("Where to?", extra_headers=again)).choices[
            0
        ].message.reasoning_content == THOUGHT
        pieces = [one async for one in await it.chat("Where to?", stream=True, extra_headers=again)]
        deltas = [one.choices[0].delta for one in pieces]
        assert "".join(getattr(one, "reasoning_content", "") or "" for one in deltas) == THOUGHT
        assert "".join(one.content or "" for one in deltas) == "Hull."
        assert it.asked == []


async def test_a_command_that_is_repeated_after_a_restart_has_its_answer_and_is_not_done_again(room) -> None:
    more: Any = {"extra_body": ADA, "extra_headers": KEYED}
    async with harbour(room) as it:
        await it.chat("Sail", extra_body=ADA)
        await it.chat("Moor", extra_body=ADA)
        first = (await it.chat("/undo", **more)).choices[0].message.content
        assert (await it.chat("/undo", **more)).choices[0].message.content == first
    async with harbour(room) as it:
        assert (await it.chat("/undo", **more)).choices[0].message.content == first
        await it.chat("And now?", extra_body=ADA)
        assert [text for role, text in it.shown() if role == "user"] == ["Sail", "And now?"]


@pytest.mark.long
async def test_an_old_request_has_its_answer_however_many_came_after_it(room) -> None:
    async with harbour(room, agent=Agent()) as it:
        await it.chat("first", extra_body=ADA, extra_headers=KEYED)
        for number in range(201):
            await it.chat(f"later {number}", extra_body=ADA)
    async with harbour(room, agent=(agent := Agent())) as it:
        again = await it.chat("first", extra_body=ADA, extra_headers=KEYED)
        assert (again.choices[0].message.content, agent.read) == ("re: first", [])


# Who speaks into a run.


async def test_the_request_that_steered_gets_the_answer_that_covers_it(room) -> None:
    config = replace(CONFIG, busy=BusyConfig(mode=BusyPolicy.STEER))
    begun, go_on = asyncio.Event(), asyncio.Event()

    @function_tool()
    async def look() -> str:
        """Look."""
        begun.set()
        await go_on.wait()
        return "seen"

    async with harbour(room, config=config, tools=[look]) as it:
        it.model.add(calls(call("look"), text="I look."), said("To both."))
        first = asyncio.create_task(it.chat("one", extra_body=ADA))
        await begun.wait()
        second = asyncio.create_task(it.chat("two", extra_body=ADA))
        await until(lambda: it.adapter._exchanges.waiting == 2)
        await waiting_is(room, 1)
        go_on.set()
        answers = {(await one).choices[0].message.content for one in (first, second)}
        assert answers == {"To both."}
        assert len(it.asked) == 2


async def test_no_finished_answer_is_lost_when_somebody_speaks_into_the_end_of_a_run(room) -> None:
    config = replace(CONFIG, busy=BusyConfig(mode=BusyPolicy.STEER))
    async with harbour(room, config=config) as it:
        it.model.add(said("To one."), said("To two."))
        it.model.free.clear()
        first = asyncio.create_task(it.chat("one", extra_body=ADA, stream=False))
        await until(lambda: it.model.waiting)
        second = asyncio.create_task(it.chat("two", extra_body=ADA))
        await waiting_is(room, 1)
        it.model.free.set()
        answers = [(await one).choices[0].message.content for one in (first, second)]
        assert answers == ["To one.\n\nTo two."] * 2
        assert len(it.asked) == 2


async def waiting_is(room: Room, number: int) -> None:
    """Return when this many messages wait to be read."""
    while True:
        threads = await room.runs.threads.list_threads(ThreadQuery(id_prefix="chat/"))
        waiting = [one for thread in threads for one in await room.runs.threads.pending_messages(thread.id)]
        if len(waiting) == number:
            return
        await asyncio.sleep(0)


def test_the_code_decides_the_status_and_not_the_words() -> None:
    told = build_failure("`tools` are not for it", InvalidArgument.code)
    assert (told.status, told.param) == (400, "tools")
    assert build_failure("whatever it was", RateLimited.code).status == 503
    assert build_failure(RateLimited("slowly").describe()).status == 500
    assert build_failure("refused: it was", "no_code_of_ours").status == 500
