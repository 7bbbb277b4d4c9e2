"""Callers of the API that hang up: the model's call is closed, unless the run was requested in the background.

The model's endpoint is a server on a real socket that begins an answer and never ends it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from openai.types.responses import Response

from channels.http_room import until
from chats.test_openai_sdk import ADA, CONFIG, KEY, Harbour, harbour
from gateway_room import Room, all_answered
from postroom.contracts.errors import StoreUnavailable
from postroom.contracts.messages import STOPPED_MARK
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus
from postroom.gateway.config import BusyConfig, BusyPolicy
from postroom.runtime import AgentRuntime, AgentSpec, FixedResolver, OpenAICompatibleModel, ResolvedAgent
from runtime.endpoint import END, SILENCE, FakeEndpoint, chunk, refusal

ENDLESS = [chunk(content="It begins, and it has more than 24 characters, "), SILENCE]
SHORT = [chunk(content="All of it."), chunk("stop"), END]


@asynccontextmanager
async def endless(room: Room, *answers: Any, **more: Any) -> AsyncIterator[tuple[Harbour, FakeEndpoint]]:
    """Open a gateway whose agent asks a real endpoint, which gives these answers."""
    async with FakeEndpoint().serving() as endpoint:
        endpoint.answers = list(answers)
        model = await asyncio.to_thread(OpenAICompatibleModel, endpoint.url, "sk-of-the-provider")
        agent = ResolvedAgent(spec=AgentSpec(model="m"), model=model)
        runtime = AgentRuntime(FixedResolver(agent), clock=room.clock, timer=room.clock)
        try:
            async with harbour(room, agent=runtime, **more) as it:
                yield it, endpoint
        finally:
            await model.close()


async def ended(room: Room, runs: int = 1) -> list[str]:
    """Return why each run has ended, once this many runs have ended."""
    async with asyncio.timeout(60):
        while True:
            found = await room.runs.threads.list_runs(RunQuery(statuses=(RunStatus.DONE,)))
            if len(found) >= runs:
                return [str(one.termination and one.termination.type) for one in found]
            await asyncio.sleep(0)


def raw_request(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: room.test\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


CHAT = {"messages": [{"role": "user", "content": "Begin"}]}
RESPONSE = {"input": "Begin"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE)])
async def test_a_socket_that_is_closed_closes_the_call_of_the_model(room, path, body, stream) -> None:
    async with endless(room, ENDLESS) as (it, endpoint):
        address = urlsplit(str(it.sdk.base_url))
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(raw_request(path, {**body, "stream": stream}))
        if stream:
            await reader.readuntil(b"It begins")
        await endpoint.asked(1)
        writer.close()
        await endpoint.hung_up(1)
        assert await ended(room) == ["cancelled"]
        await until(lambda: it.adapter._exchanges.waiting == 0)


async def test_the_stop_of_a_client_of_the_sdk_closes_the_call_of_the_model(room) -> None:
    async with endless(room, ENDLESS, SHORT) as (it, endpoint):
        stream = await it.chat("Begin", stream=True, extra_body=ADA)
        async for piece in stream:
            if piece.choices[0].delta.content:
                break
        await stream.close()
        await endpoint.hung_up(1)
        assert await ended(room) == ["cancelled"]
        assert (await it.chat("Go on", extra_body=ADA)).choices[0].message.content == "All of it."
        told = [(one["role"], one["content"]) for one in endpoint.bodies[1]["messages"]]
        assert [role for role, _ in told] == ["user", "assistant", "user"]
        assert "It begins" in str(told[1])
        assert str(told[1][1]).endswith(f"\n\n{STOPPED_MARK}")


async def test_a_client_whose_own_time_is_up_has_its_run_cancelled_and_its_retry_answered(room) -> None:
    async with endless(room, ENDLESS, SHORT) as (it, endpoint):
        impatient = it.sdk.with_options(timeout=0.5, max_retries=0)
        told: dict[str, Any] = {"model": "postroom", "messages": CHAT["messages"]}
        with pytest.raises(openai.APITimeoutError):
            await impatient.chat.completions.create(**told)
        await endpoint.hung_up(1)
        retry = {"x-stainless-retry-count": "1"}
        answer = await it.sdk.chat.completions.create(**told, extra_headers=retry)
        assert answer.choices[0].message.content == "All of it."
        assert sorted(await ended(room, 2)) == ["cancelled", "natural_end"]


async def test_a_message_that_waits_is_taken_back_when_its_caller_hangs_up(room) -> None:
    async with endless(room, ENDLESS) as (it, endpoint):
        first = asyncio.create_task(it.chat("one", extra_body=ADA))
        await endpoint.asked(1)
        second = asyncio.create_task(it.chat("two", extra_body=ADA))
        await until(lambda: it.adapter._exchanges.waiting == 2)
        second.cancel()
        async with asyncio.timeout(60):
            while (await room.statuses()).get("retracted") != 1:
                await asyncio.sleep(0)
        assert endpoint.hang_ups == 0
        first.cancel()
        await endpoint.hung_up(1)
        await asyncio.wait([first, second])
        await all_answered(room, it.gateway, 2)
        assert len(endpoint.bodies) == 1


async def test_a_run_that_reads_two_requests_ends_when_both_callers_have_hung_up(room) -> None:
    config = replace(CONFIG, busy=BusyConfig(mode=BusyPolicy.COLLECT))
    async with endless(room, ENDLESS, ENDLESS, config=config) as (it, endpoint):
        head = asyncio.create_task(it.chat("zero", extra_body=ADA))
        await endpoint.asked(1)
        both = [asyncio.create_task(it.chat(text, extra_body=ADA)) for text in ("one", "two")]
        await until(lambda: it.adapter._exchanges.waiting == 3)
        await handed_over(room, 3)
        head.cancel()
        await endpoint.asked(2)
        assert "one" in str(endpoint.bodies[1])
        assert "two" in str(endpoint.bodies[1])
        both[0].cancel()
        await until(lambda: it.adapter._exchanges.waiting == 1)
        await until(lambda: not any("hung up" in task.get_name() for task in asyncio.all_tasks()))
        assert endpoint.hang_ups == 1
        both[1].cancel()
        await endpoint.hung_up(2)
        await asyncio.wait([head, *both])


async def handed_over(room: Room, messages: int) -> None:
    """Return once this many messages are on their threads."""
    async with asyncio.timeout(60):
        while (await room.statuses()).get("handed_over") != messages:
            await asyncio.sleep(0)


async def test_a_background_response_is_answered_at_once_and_goes_on_until_it_is_cancelled(room) -> None:
    async with endless(room, ENDLESS, SHORT) as (it, endpoint):
        asked: dict[str, Any] = {"model": "postroom", "input": "Begin", "background": True}
        begun = await it.sdk.responses.create(**asked)
        assert (begun.status, begun.background, begun.output_text) == ("queued", True, "")
        await endpoint.asked(1)
        assert (await it.sdk.responses.retrieve(begun.id)).status == "in_progress"
        assert endpoint.hang_ups == 0
        assert (await it.sdk.responses.cancel(begun.id)).status == "cancelled"
        await endpoint.hung_up(1)
        assert (await it.sdk.responses.retrieve(begun.id)).status == "cancelled"
        assert (await it.sdk.responses.cancel(begun.id)).status == "cancelled"
        assert await ended(room) == ["cancelled"]
        other = await it.sdk.responses.create(**asked)
        assert other.id != begun.id
        await ended(room, 2)
        async with asyncio.timeout(60):
            while (found := await it.sdk.responses.retrieve(other.id)).status == "in_progress":
                await asyncio.sleep(0)
        assert (found.status, found.output_text) == ("completed", "All of it.")
        assert (await it.sdk.responses.cancel(other.id)).status == "completed"
        await all_answered(room, it.gateway, 2)
    async with harbour(room) as it:
        assert (await it.sdk.responses.retrieve(begun.id)).status == "cancelled"
        assert (await it.sdk.responses.retrieve(other.id)).output_text == "All of it."


async def test_a_cancel_that_was_stored_for_the_message_only_is_completed_by_its_repetition(room) -> None:
    async with endless(room, ENDLESS) as (it, endpoint):
        begun = await it.sdk.responses.create(model="postroom", input="Begin", background=True)
        await endpoint.asked(1)
        [(_, run_queue)] = room.opened
        cancel = run_queue.cancel

        async def refused(run_id):
            run_queue.cancel = cancel
            raise StoreUnavailable("the connection broke")

        run_queue.cancel = refused
        with pytest.raises(openai.InternalServerError):
            await it.sdk.with_options(max_retries=0).responses.cancel(begun.id)
        assert (await it.sdk.responses.cancel(begun.id)).status == "cancelled"
        await endpoint.hung_up(1)
        assert await ended(room) == ["cancelled"]


async def test_a_background_stream_is_resumed_where_its_reader_hung_up(room) -> None:
    go_on = asyncio.Event()
    pieces = [
        chunk(content="One two, which is enough to be shown, "),
        go_on,
        chunk(content="three."),
        chunk("stop"),
        END,
    ]
    async with endless(room, pieces) as (it, _):
        stream = await it.sdk.responses.create(model="postroom", input="x", background=True, stream=True)
        text, seen, name = "", -1, ""
        async for event in stream:
            seen = event.sequence_number
            if event.type == "response.created":
                name = event.response.id
            if event.type == "response.output_text.delta":
                text += event.delta
                break
        await stream.close()
        await until(lambda: it.adapter._exchanges.waiting == 0)
        resumed = await it.sdk.responses.retrieve(name, stream=True, starting_after=seen)
        go_on.set()
        numbers = [seen]
        async for event in resumed:
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
        assert (text, event.type) == ("One two, which is enough to be shown, three.", "response.completed")
        assert event.response.output_text == text
        assert numbers == sorted(set(numbers))
        whole = [one async for one in await it.sdk.responses.retrieve(name, stream=True)]
        assert "".join(one.delta for one in whole if one.type.endswith("text.delta")) == text
        assert whole[-1].sequence_number == numbers[-1]
        with pytest.raises(openai.BadRequestError, match="starting_after"):
            await it.sdk.responses.retrieve(name, stream=True, starting_after=-7)


async def test_a_caller_gets_a_plain_reason_and_the_operator_gets_the_words_of_the_provider(
    room, caplog
) -> None:
    words = "organisation org-Acme has no access"
    denied = refusal(403, {"error": {"message": words}})
    async with endless(room, denied, denied, denied) as (it, _):
        with pytest.raises(openai.InternalServerError) as raised:
            await it.chat("Hello")
        assert raised.value.code == "model_refused_our_key"
        stream = await it.sdk.responses.create(model="postroom", input="x", stream=True)
        events = [one async for one in stream]
        told = f"{raised.value} {events[-1].response.error.message}"
        assert "Acme" not in told
        assert "rejected the server's API key" in told
        runs = await room.runs.threads.list_runs(RunQuery(statuses=(RunStatus.DONE,)))
        assert all(words in (run.error or "") for run in runs)
        assert any(run.run_id in told for run in runs)
        assert words in caplog.text


@pytest.mark.parametrize("way", ["a field", "tags"])
async def test_a_chat_completion_carries_the_reasoning_streamed_or_not(room: Room, way: str) -> None:
    thought = "The north light is broken."
    thinks = (
        [chunk(reasoning_content=thought)]
        if way == "a field"
        else [chunk(content=f"<think>{thought}"), chunk(content="</think>\n")]
    )
    answer = [*thinks, chunk(content="The south light."), chunk("stop"), END]
    async with endless(room, answer, answer) as (it, _):
        whole = (await it.chat("Which light?")).choices[0].message
        assert (whole.content, whole.reasoning_content) == ("The south light.", thought)
        stream = await it.chat("Which one?", stream=True)
        deltas = [one.choices[0].delta async for one in stream if one.choices]
        assert "".join(one.content or "" for one in deltas) == "The south light."
        assert "".join(getattr(one, "reasoning_content", None) or "" for one in deltas) == thought


async def test_a_response_carries_the_reasoning_as_an_item_streamed_or_not(room: Room) -> None:
    thought, text = "The north light is broken.", "The south light."
    answer = [
        chunk(reasoning_content=thought[:10]),
        chunk(reasoning_content=thought[10:]),
        chunk(content=text),
        chunk("stop"),
        END,
    ]
    again = [chunk(content="As before."), chunk("stop"), END]
    async with endless(room, answer, answer, answer, again) as (it, endpoint):
        whole = await it.sdk.responses.create(model="postroom", input="Which light?")
        async with it.sdk.responses.stream(model="postroom", input="Which one?") as stream:
            events = [event async for event in stream]
            streamed = await stream.get_final_response()
        for response in (whole, streamed):
            Response.model_validate(response.to_dict())  # the SDK itself checks no types
            [reasoning, message] = response.output
            assert (reasoning.type, reasoning.content[0].text) == ("reasoning", thought)
            assert (message.type, response.output_text) == ("message", text)
        deltas = [event for event in events if event.type == "response.reasoning_text.delta"]
        assert "".join(event.delta for event in deltas) == thought
        added = [event for event in events if event.type == "response.output_item.added"]
        assert [(one.output_index, one.item.type) for one in added] == [(0, "reasoning"), (1, "message")]
        begun = await it.sdk.responses.create(model="postroom", input="x", background=True, stream=True)
        kinds = {event.type async for event in begun}
        assert "response.reasoning_text.delta" not in kinds
        told = [{"role": "user", "content": "Which light?"}, *whole.output]
        told.append({"role": "user", "content": "Sure?"})
        assert (await it.sdk.responses.create(model="postroom", input=told)).output_text == "As before."
        assert thought not in str(endpoint.bodies[-1])


async def test_text_before_a_closing_tag_that_nothing_opened_is_reasoning(room: Room) -> None:
    said = [
        chunk(content="Okay, the light.\n</th"),
        chunk(content="ink>\n\nThe south light."),
        chunk("stop"),
        END,
    ]
    quoted = [chunk(content="The tag `</think>` ends it."), chunk("stop"), END]
    async with endless(room, said, quoted, said) as (it, _):
        whole = (await it.chat("Which light?")).choices[0].message
        assert (whole.content, whole.reasoning_content) == ("The south light.", "Okay, the light.")
        assert (await it.chat("Which tag?")).choices[0].message.content == "The tag `</think>` ends it."
        stream = await it.chat("Which one?", stream=True)
        deltas = [one.choices[0].delta async for one in stream if one.choices]
        assert "".join(one.content or "" for one in deltas) == "The south light."
        assert "".join(getattr(one, "reasoning_content", None) or "" for one in deltas) == "Okay, the light."
