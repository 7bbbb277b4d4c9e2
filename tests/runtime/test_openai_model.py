"""The OpenAI-compatible model against a server on real sockets with scripted answers."""

import asyncio
import builtins
import gc
import importlib
import json
import logging
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import postroom.runtime.openai_endpoint  # noqa: F401 - loaded before a test's time runs
from machine import PATIENCE
from postroom.contracts import errors
from postroom.contracts.activation import InferenceOverride
from postroom.contracts.clock import SystemClock
from postroom.contracts.files import ChatFile
from postroom.contracts.inference import (
    InferenceReasoningDelta,
    InferenceRequest,
    InferenceResult,
    InferenceTextDelta,
    InferenceToolCallDelta,
    InferenceToolCallStart,
    StopReason,
)
from postroom.contracts.messages import ContentBlock, Message, Role, ToolCall
from postroom.contracts.records import replace
from postroom.contracts.retrying import retry_after_ms
from postroom.contracts.runs import Usage
from postroom.contracts.tools import ToolDescriptor
from postroom.extras import install_command
from postroom.runtime import OpenAICompatibleModel, function_tool
from postroom.runtime.openai import OpenAISpeaker, OpenAITranscriber
from postroom.runtime.openai_wire import request_body
from postroom.testing import ManualClock
from runtime.endpoint import CUT, END, HEAD, SILENCE, FakeEndpoint, chunk, fragment, refusal
from runtime.room import Room, bounded
from table_rows import each_row

KEY = "sk-very-secret"
ASKED = InferenceRequest(model="m", messages=(Message.user("hi"),))


async def answered(*answers: Any, request: InferenceRequest = ASKED, **options: Any) -> list[Any]:
    """The pieces that the model makes of the server's answer; it is made where reading files blocks nobody."""
    async with FakeEndpoint().serving() as server:
        server.answers = list(answers)
        model = await asyncio.to_thread(OpenAICompatibleModel, server.url, KEY, **options)
        try:
            return [piece async for piece in model.stream(request)]
        finally:
            await model.close()


async def test_text_and_reasoning_come_piece_by_piece_and_whole() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    told = [chunk(role="assistant", content=""), chunk(reasoning_content="hm"), chunk(content="Hel")]
    told += [
        chunk(content="lo"),
        chunk("stop"),
        f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n",
        END,
    ]
    pieces = await bounded(answered(told))
    hello = [InferenceTextDelta(delta="Hel"), InferenceTextDelta(delta="lo")]
    assert pieces[:3] == [InferenceReasoningDelta(delta="hm"), *hello]
    result = pieces[3].result
    assert [(one.type, one.text) for one in result.content] == [("thinking", "hm"), ("text", "Hello")]
    assert result.usage == Usage(input_tokens=7, output_tokens=3)


async def test_events_and_characters_may_be_cut_anywhere() -> None:
    lines = ": a comment\n\n" + chunk(content="é\u2028 🎈") + chunk("stop") + END
    data = lines.replace("\n", "\r\n").encode()
    whole = {"choices": [{"delta": {"content": "a\u2028b\x85c"}, "finish_reason": "stop"}]}
    halves = [
        r'data: {"choices":[{"delta":{"content":"x\ud83c"}}]}' + "\n\n",
        r'data: {"choices":[{"delta":{"content":"\udf88y"}}]}' + "\n\n",
    ]
    for told, text in (
        ([data[at : at + 1] for at in range(len(data))], "é\u2028 🎈"),
        ([f"data:{json.dumps(whole, ensure_ascii=False)}\n"], "a\u2028b\x85c"),
        ([*halves, chunk("stop"), END], "x🎈y"),
        ([halves[0], chunk("stop"), END], "x\ufffd"),
    ):
        pieces = await bounded(answered(told))
        assert pieces[-1].result.content == (ContentBlock(text=text),)


async def test_tool_calls_are_put_together_from_fragments() -> None:
    pieces = await bounded(
        answered(
            [
                *(fragment(0, "a", "look", '{"pa'), fragment(0, None, None, 'th": "x"}')),
                *(fragment(1, "b", "list"), chunk("tool_calls"), END),
            ]
        )
    )
    assert pieces[:3] == [
        InferenceToolCallStart(id="a", name="look"),
        InferenceToolCallDelta(id="a", args_delta='{"pa'),
        InferenceToolCallDelta(id="a", args_delta='th": "x"}'),
    ]
    result = pieces[-1].result
    assert result.tool_calls == (
        ToolCall(id="a", name="look", arguments={"path": "x"}),
        ToolCall(id="b", name="list", arguments={}),
    )
    assert result.stop_reason is StopReason.TOOL_USE


@each_row(
    "said",
    [
        [fragment(0, "a", "f", "{}"), fragment(0, "b", "g", "{}")],
        [fragment(None, "a", "f", "{}"), fragment(None, "b", "g", "{}")],
        [fragment(None, "a", "f", "{"), fragment(None, None, None, "}"), fragment(None, "b", "g", "{}")],
        [fragment(0, "a", "f", "{"), fragment(1, "b", "g", "{}"), fragment(0, "a", None, "}")],
    ],
)
async def test_endpoints_that_number_fragments_in_their_own_way_are_understood(said: list[str]) -> None:
    pieces = await bounded(answered([*said, chunk("tool_calls"), END]))
    told = [(one.id, one.name, one.arguments) for one in pieces[-1].result.tool_calls]
    assert told == [("a", "f", {}), ("b", "g", {})]
    [*_, last] = await bounded(answered([fragment(0, "a", "f", '{"x": '), chunk("length"), END]))
    assert last.result.tool_calls[0].arguments == '{"x": ', "what is no JSON is for the check to refuse"
    assert last.result.stop_reason is StopReason.MAX_TOKENS


HALF = chunk(content="half an ans")


@each_row(
    "told",
    [
        *([HALF], [HALF, CUT], [HALF, "data: {}\n\n"], [HALF, chunk(content="data: [DONE]\n\n")]),
        *([END], [chunk(content="<think>hm"), END]),
    ],
)
async def test_a_stream_without_an_end_of_the_answer_is_never_a_whole_one(told: list[Any]) -> None:
    with pytest.raises(errors.StreamInterrupted):
        await bounded(answered(told))


@each_row(
    "end", [[END], ["data:[DONE]"], [*END], [END, ": more\n\n", CUT], [chunk("stop")], [chunk("stop"), CUT]]
)
async def test_done_or_a_reason_to_stop_ends_the_answer(end: list[Any]) -> None:
    pieces = await bounded(answered([chunk(content="whole"), *end]))
    assert pieces[-1].result == InferenceResult.text("whole")
    pieces = await bounded(answered([fragment(0, "a", "f", "{}"), END]))
    assert pieces[-1].result.stop_reason is StopReason.TOOL_USE
    assert pieces[-1].result.tool_calls == (ToolCall(id="a", name="f", arguments={}),)


async def test_a_whole_completion_in_place_of_a_stream_is_the_answer() -> None:
    function = {"name": "f", "arguments": '{"x": 1}'}
    message = {"role": "assistant", "content": "Hello", "tool_calls": [{"id": "a", "function": function}]}
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    whole = {"object": "chat.completion", "choices": [{"index": 0, "message": message}], "usage": usage}
    body = json.dumps(whole, indent=1)
    pieces = await bounded(answered(refusal(200, body, Content_Type="application/json")))
    assert pieces[0] == InferenceTextDelta(delta="Hello")
    assert pieces[-1].result == InferenceResult(
        content=(ContentBlock(text="Hello"),),
        tool_calls=(ToolCall(id="a", name="f", arguments={"x": 1}),),
        stop_reason=StopReason.TOOL_USE,
        usage=Usage(input_tokens=7, output_tokens=3),
    )


async def test_an_endpoint_that_falls_silent_is_given_up() -> None:
    with pytest.raises(errors.InferenceTimeout):
        await bounded(answered([chunk(content="wait"), SILENCE], silence_ms=50))


@each_row("pieces, thought, text", [
        (["<think>a wolf", " or a dog</think>\n\nA dog."], "a wolf or a dog", "A dog."),
        (["\n<th", "ink>hm</thi", "nk>", "Yes."], "hm", "Yes."),
        (["<", "b>bold</b>"], "", "<b>bold</b>"),
        (["say <think>no</think>"], "", "say <think>no</think>"),
        (["<thin"], "", "<thin"),
        (["<think>never ends</th"], "never ends</th", ""),
        (["<think>a < b</", "think>3"], "a < b", "3"),
        (["", "<think>hm", "</think>", "\n", "\nYes.\n"], "hm", "Yes.\n"),
        ([{"reasoning_content": "hm"}, "\n\n", " Yes.", "\n\nNo."], "hm", "Yes.\n\nNo."),
        ([{"reasoning_content": "hm"}, "\n\nYes."], "hm", "Yes."),
        ([{"reasoning_content": "hm"}, "\n\n"], "hm", ""),
        (["\n\n    code"], "", "\n\n    code"),
    ])  # fmt: skip
async def test_reasoning_and_the_blank_lines_after_it_are_not_the_answer(
    pieces: list[str | dict[str, str]], thought: str, text: str
) -> None:
    told = [chunk(**one) if isinstance(one, dict) else chunk(content=one) for one in pieces]
    found = await bounded(answered([*told, chunk("stop"), END]))
    shown = "".join(one.delta for one in found if isinstance(one, InferenceTextDelta))
    result = found[-1].result
    said = {block.type: block.text for block in result.content}
    assert (said.get("thinking", ""), said.get("text", "")) == (thought, text)
    assert text.startswith(shown)


LONE = [chunk(content=one) for one in ("a `</think>`", " wolf\n</th", "ink>", "\n", "\nA ", "dog.")]


@each_row("models", [("QwQ-32B",), ("Qwen/Qwen3-4B-Thinking-2507",), ("deepseek-r1:8b",), ("m", "m")])
async def test_no_reasoning_is_shown_as_text_if_the_models_name_or_an_earlier_answer_shows_its_tags(
    models: tuple[str, ...],
) -> None:
    async with FakeEndpoint().serving() as server:
        server.answers = [[*LONE, chunk("stop"), END] for _ in models]
        model = await asyncio.to_thread(OpenAICompatibleModel, server.url, KEY)
        for name in models:
            pieces = [one async for one in model.stream(replace(ASKED, model=name))]
        await model.close()
    assert pieces[:-1] == [
        InferenceReasoningDelta(delta="a `</think>` wolf"),
        InferenceTextDelta(delta="A "),
        InferenceTextDelta(delta="dog."),
    ]
    said = {block.type: block.text for block in pieces[-1].result.content}
    assert said == {"thinking": "a `</think>` wolf", "text": "A dog."}


async def test_a_model_that_puts_its_reasoning_elsewhere_is_not_held_up() -> None:
    text = [chunk(content="A "), chunk(content="dog."), chunk("stop"), END]
    shown = [InferenceTextDelta(delta="A "), InferenceTextDelta(delta="dog.")]
    async with FakeEndpoint().serving() as server:
        server.answers = [[chunk(reasoning_content="hm"), *text], text, text]
        model = await asyncio.to_thread(OpenAICompatibleModel, server.url, KEY)
        asked = replace(ASKED, model="some-thinking-model")
        assert [one async for one in model.stream(asked)][1:-1] == shown
        assert [one async for one in model.stream(asked)][:-1] == shown
        other = [one async for one in model.stream(replace(ASKED, model="qwq"))]
        assert other[0].result == InferenceResult.text("A dog.")  # type: ignore[union-attr]
        await model.close()


@each_row("answer, kind", [
        (refusal(400, {"error": {"message": "bad"}}), errors.RequestRefused),
        (refusal(400, {"error": {"message": "long", "code": "context_length_exceeded"}}), errors.ContextOverflow),
        (refusal(400, {"error": {"message": "no", "code": "content_filter"}}), errors.ContentFiltered),
        (refusal(401), errors.Unauthorized),
        (refusal(402, "pay"), errors.Unauthorized),
        (refusal(404, {"error": {"message": "gone"}}), errors.ModelNotFound),
        (refusal(413), errors.ContextOverflow),
        (refusal(302, "", Location="http://127.0.0.1:1/"), errors.ProviderFailed),
        (refusal(405), errors.ProviderFailed),
        (refusal(415), errors.RequestRefused),  # a picture, say: it is asked again without
        (refusal(422), errors.RequestRefused),
        (refusal(429, {"error": {"code": "insufficient_quota"}}), errors.Unauthorized),
        (refusal(429, {"error": "slow"}), errors.RateLimited),
        (refusal(500, "<html>"), errors.ProviderFailed),
        (refusal(502, "[" * 5_000), errors.ProviderFailed),
        (refusal(503), errors.Overloaded),
        (refusal(504), errors.InferenceTimeout),
        (refusal(529, {"type": "error", "error": {"type": "overloaded_error"}}), errors.Overloaded),
        (refusal(200, {"choices": []}, Content_Type="application/json"), errors.NoModelEndpoint),
        (refusal(200, {"error": "no such path"}, Content_Type="application/json"), errors.NoModelEndpoint),
        (refusal(200, {"error": {"message": "burst", "code": 429}}, Content_Type="application/json"), errors.RateLimited),
        (refusal(200, "{garbage", Content_Type="application/json; charset=utf-8"), errors.NoModelEndpoint),
        (refusal(200, "<html>", Content_Type="text/html"), errors.NoModelEndpoint),
        ([chunk("content_filter"), END], errors.ContentFiltered),
        (['data: {"error": {"message": "burst", "code": 429}}\n\n'], errors.RateLimited),
        (['data: {"error": "odd"}\n\n'], errors.ProviderFailed),
        (["data: {broken\n\n"], errors.ProviderFailed),
        (["data: [1]\n\n"], errors.ProviderFailed),
        (['data: {"choices": [{"delta": {"content": 7}}]}\n\n'], errors.ProviderFailed),
        ([b"data: " + b"x" * 9_000_000], errors.ProviderFailed),
        (b"no HTTP at all\r\n\r\n", errors.ProviderFailed),
        (HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + b"3\r\nxyz\r\n0\r\n\r\n", errors.StreamInterrupted),
    ])  # fmt: skip
async def test_failures_are_told_by_kind(answer: Any, kind: type[errors.InferenceError]) -> None:
    with pytest.raises(errors.InferenceError) as caught:
        await bounded(answered(answer))
    assert type(caught.value) is kind


def test_an_answer_that_breaks_off_leaves_nothing_of_the_client_to_the_garbage_collector() -> None:
    left: list[str] = []

    async def asked() -> None:
        finish = sys.get_asyncgen_hooks().finalizer
        assert finish is not None

        def found(generator: Any) -> None:
            left.append(generator.__qualname__)
            finish(generator)

        sys.set_asyncgen_hooks(finalizer=found)
        with suppress(errors.ProviderFailed):
            await bounded(asyncio.create_task(answered(["data: {broken\n\n"])))
        gc.collect()  # the failure of a task holds its frames, and these hold the failure

    asyncio.run(asked())
    assert left
    assert not [name for name in left if name.startswith("AsyncResponseStream")]


async def test_how_long_to_wait_is_told() -> None:
    with pytest.raises(errors.RateLimited) as caught:
        await bounded(answered(refusal(429, "", Retry_After="1.5")))
    assert caught.value.retry_after_ms == 1_500
    clock = ManualClock()
    date = "Tue, 14 Nov 2023 22:13:30 GMT"
    assert retry_after_ms({"retry-after": date}, now=clock.now()) == 10_000
    assert retry_after_ms({"retry-after": date}, now=clock.now() + 60_000) == 0
    assert retry_after_ms({"retry-after-ms": "20", "retry-after": "9"}, now=0) == 20
    assert [retry_after_ms({"retry-after": odd}, now=0) for odd in ("", "soon", "nan", "-3")] == [
        *(None, None, None, 0),
    ]
    assert retry_after_ms({"retry-after": "inf"}, now=0) == 24 * 60 * 60 * 1000


async def test_an_endpoint_that_is_not_there_may_come_back() -> None:
    async with FakeEndpoint().serving() as server:
        url = server.url
    model = await asyncio.to_thread(OpenAICompatibleModel, url)
    with pytest.raises(errors.ProviderFailed, match="cannot be reached"):
        await bounded(anext(model.stream(ASKED)))
    await model.close()


@each_row("url", ["gopher://x/v1", "", "http://", "http://x\x00y"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(errors.ConfigError):
        OpenAICompatibleModel(url)


async def test_the_key_is_sent_and_shown_nowhere() -> None:
    async with FakeEndpoint().serving() as server:
        server.answers = [refusal(401, {"error": {"message": f"Incorrect API key: {KEY}"}})]
        model = await asyncio.to_thread(OpenAICompatibleModel, server.url, KEY)
        with pytest.raises(errors.Unauthorized) as caught:
            await bounded(anext(model.stream(ASKED)))
        assert f"authorization: bearer {KEY}" in server.heads[0].lower()
        for shown in (
            *(repr(model), str(caught.value), repr(caught.value), json.dumps(caught.value.as_dict())),
            repr(vars(model)),
        ):
            assert KEY not in shown
        assert "***" in str(caught.value)
        await model.close()


async def test_what_is_asked_is_the_whole_conversation() -> None:
    tool = ToolDescriptor(id="look", name="look", description="Look", parameters={"type": "object"})
    picture = ContentBlock(type="image", data={"url": "https://x/y.png"})
    request = InferenceRequest(
        model="m",
        system="be brief",
        messages=(
            Message.user("hi"),
            Message(role=Role.USER, content=(ContentBlock(text="see"), picture)),
            Message.assistant("", tool_calls=[ToolCall(id="a", name="look", arguments={"p": 1})]),
            Message.tool("a", "seen"),
            Message.assistant(""),
            Message.assistant("well \ud800"),
        ),
        tools=(tool,),
        overrides=InferenceOverride(
            upstream_model="big", temperature=0.0, max_tokens=9, reasoning_effort="low"
        ),
    )
    async with FakeEndpoint().serving() as server:
        server.answers = [[chunk("stop"), END]]
        model = await asyncio.to_thread(OpenAICompatibleModel, f"{server.url}/")
        assert model.name == "openai"
        pieces = [piece async for piece in model.stream(request)]
        await model.close()
    assert pieces[-1].result.content == ()
    assert server.heads[0].startswith("POST /v1/chat/completions ")
    assert "authorization" not in server.heads[0].lower()
    assert server.bodies[0] == {
        "model": "big",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"p": 1}'}}]},
            {"role": "tool", "tool_call_id": "a", "content": "seen"},
            {"role": "assistant", "content": "well \ufffd"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "look", "description": "Look", "parameters": {"type": "object"}}}],
        "temperature": 0.0,
        "max_tokens": 9,
        "reasoning_effort": "low",
    }  # fmt: skip
    assert "max_completion_tokens" in request_body(request, token_limit_field="max_completion_tokens")


TURNS: list[tuple[str, tuple[Message, ...], list[tuple[str, Any]]]] = [
    ("an empty answer", (Message.user("a"), Message.assistant(""), Message.user("b")), [("user", "a\n\nb")]),
    (
        "a message that was sent again",
        (Message.user("x"), Message.user("a"), Message.user("a")),
        [("user", "x\n\na")],
    ),
    (
        "two answers",
        (Message.user("a"), Message.assistant("b"), Message.assistant("b"), Message.user("c")),
        [("user", "a"), ("assistant", "b\n\nb"), ("user", "c")],
    ),
    (
        "a call without an answer behind it",
        (
            Message.user("a"),
            Message.assistant("", tool_calls=[ToolCall(id="t", name="look", arguments={})]),
            Message.tool("t", "seen"),
            Message.user("b"),
        ),
        [("user", "a"), ("assistant", None), ("tool", "seen"), ("assistant", "(no answer)"), ("user", "b")],
    ),
]


@each_row("case, messages, sent", TURNS)
def test_user_and_assistant_take_turns_in_what_is_sent(case: str, messages: Any, sent: Any) -> None:
    body: Any = request_body(replace(ASKED, messages=messages), token_limit_field="max_tokens")
    assert [(one["role"], one["content"]) for one in body["messages"]] == sent


async def test_a_run_behind_an_endpoint_survives_a_cut() -> None:
    @function_tool({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]})
    async def look(path: str) -> str:
        return f"nothing at {path}"

    async with FakeEndpoint().serving() as server:
        server.answers = [
            [chunk(content="let me"), CUT],
            [fragment(0, "a", "look", '{"path": "x"}'), chunk("tool_calls"), END],
            [chunk(content="empty"), chunk("stop"), END],
        ]
        room = Room(tools=[look])
        model = await asyncio.to_thread(OpenAICompatibleModel, server.url, KEY)
        room.agent = replace(room.agent, model=model)
        room.runtime = room.another_runtime()
        result = await room.execute()
        await model.close()
    assert (result.response, result.steps) == ("empty", 2)
    assert server.bodies[2]["messages"][-1] == {
        "role": "tool",
        "tool_call_id": "a",
        "content": "nothing at x",
    }
    assert "stream_reset" in room.sink.kinds()


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "openai":
            raise ImportError("no", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "postroom.runtime.openai_endpoint", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(errors.MissingExtra, match="openai") as caught:
        OpenAICompatibleModel("http://127.0.0.1:1")
    assert caught.value.remedy == install_command("openai")
    monkeypatch.undo()
    importlib.import_module("postroom.runtime.openai_endpoint")


async def test_what_another_choice_says_is_not_the_answer() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}
    with pytest.raises(errors.StreamInterrupted):
        await bounded(answered([f"data: {json.dumps(other)}\n\n", END]))


async def test_the_environment_of_the_process_adds_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, KEY)
    async with FakeEndpoint().serving() as server:
        server.answers = [[chunk("stop"), END]]
        model = await asyncio.to_thread(OpenAICompatibleModel, server.url)
        assert [piece async for piece in model.stream(ASKED)]
        await model.close()
    assert KEY not in server.heads[0]


async def test_the_key_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(errors.Unauthorized):
        await bounded(answered(refusal(401, {"error": {"message": f"Incorrect API key: {KEY}"}})))
    assert caplog.records
    assert KEY not in caplog.text


async def test_a_refusal_without_end_is_read_to_its_limit_only() -> None:
    head = b"HTTP/1.1 500 X\r\nContent-Length: 900000000\r\n\r\n"
    with pytest.raises(errors.ProviderFailed, match="answered 500: aaa"):
        await bounded(answered(head + b"a" * 200_000))


async def test_a_text_is_spoken_by_an_endpoint() -> None:
    asked: list[bytes] = []
    away = b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    sound = (
        b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: 6\r\nConnection: close\r\n\r\nID3"
    )
    refused = b'{"error": {"message": "no voice, key-of-speech"}}'
    head = b"HTTP/1.1 400 No\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(refused)
    answers = [away, sound + b"\n\n\0", head + refused, sound, *[away] * 3, b""]
    kinds = [
        (errors.RequestRefused, "answered 400"),
        (errors.ProviderFailed, "closed the connection"),
        (errors.Overloaded, "answered 503"),
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length:")[2].split()[0])
        asked.append(head.encode() + await reader.readexactly(length))
        writer.write(answers[len(asked) - 1])
        if answers[len(asked) - 1]:
            writer.close()
        held.append(writer)

    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    made = await asyncio.to_thread(
        OpenAISpeaker,
        url,
        "key-of-speech",
        model="mouth",
        voice="nova",
        silence_ms=1_000,
        clock=SystemClock(),
    )
    # The first request is sent again, and the sound is passed on byte for byte.
    assert b"".join([piece async for piece in made.speak("hello", "mp3")]) == b"ID3\n\n\0"
    assert asked[0].startswith(b"POST /v1/audio/speech ")
    told = {"input": "hello", "model": "mouth", "voice": "nova", "response_format": "mp3"}
    assert json.loads(asked[0].partition(b"\r\n\r\n")[2]) == told
    for kind, words in kinds:
        with pytest.raises(kind, match=f"^the speech endpoint {words}") as caught:
            [piece async for piece in made.speak("hello", "mp3")]
        assert "key-of-speech" not in str(caught.value)
    answers += [b""] * 2
    with pytest.raises(errors.InferenceTimeout, match=r"^the speech endpoint did not answer in time"):
        [piece async for piece in made.speak("hello", "mp3")]
    assert len(asked) == len(answers)
    await made.close()
    for writer in held:
        writer.close()
    server.close()


async def test_speech_is_written_down_by_an_endpoint(tmp_path) -> None:
    path = tmp_path / "a.ogg"
    path.write_bytes(b"OggS")
    file = ChatFile(
        thread_id="t", message_id="m", position=1, name="a.ogg", media_type="audio/ogg", size=4, sha256="5"
    )
    asked: list[bytes] = []
    away = b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n"
    answers = [
        away,  # it passes
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{"text":"hello"}',
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        *[away] * 3,
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].split()[0])
        asked.append(head.encode() + await reader.readexactly(length))
        writer.write(answers[len(asked) - 1])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    made = await asyncio.to_thread(
        OpenAITranscriber, url, "key", model="ears", silence_ms=5_000, clock=SystemClock()
    )
    assert await made.transcribe(path, file) == "hello"
    assert asked[0].startswith(b"post /v1/audio/transcriptions ")
    assert b'filename="a.ogg"' in asked[0]
    assert b"ears" in asked[0]
    for kind in (errors.ProviderFailed, errors.Overloaded):
        with pytest.raises(kind, match=r"^the transcription endpoint "):
            await made.transcribe(path, file)
    assert len(asked) == len(answers)
    await made.close()
    server.close()


async def test_an_endpoint_whose_certificate_nobody_vouches_for_hears_nothing(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    words = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
    ]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(
        subprocess.run, [*words, *files], check=True, capture_output=True, timeout=PATIENCE
    )
    context, heard = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), list[bytes]()
    context.load_cert_chain(certificate, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    (tmp_path / "a.ogg").write_bytes(b"OggS")
    sent = ChatFile(
        thread_id="t", message_id="m", position=1, name="a.ogg", media_type="audio/ogg", size=4, sha256="5"
    )
    model = await asyncio.to_thread(OpenAICompatibleModel, url, KEY)
    ears = await asyncio.to_thread(
        OpenAITranscriber, url, KEY, model="ears", silence_ms=5_000, clock=SystemClock()
    )
    with pytest.raises(errors.InferenceError):
        _ = [piece async for piece in model.stream(ASKED)]
    with pytest.raises(errors.InferenceError):
        await ears.transcribe(tmp_path / "a.ogg", sent)
    assert heard == []
    await model.close()
    await ears.close()
    server.close()
