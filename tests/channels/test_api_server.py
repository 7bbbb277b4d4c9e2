"""The OpenAI protocol: what a request becomes, how answers are waited for, streamed and kept."""

import asyncio
import base64
import json
import logging
from datetime import timedelta

import openai
import pytest
from openai import AsyncOpenAI
from starlette.types import ASGIApp

from channels.fetching import fetched
from channels.http_room import FakeGateway, calling, served, unavailable, until
from platform_tables import table_of
from postroom.app.gateway_wiring import open_paths
from postroom.app.operations import ALL_OPERATIONS
from postroom.contracts.errors import ConfigError, InvalidArgument, ServerUnavailable, TooLarge
from postroom.gateway.drafts import grows_from, settled
from postroom.gateway.events import Attachment, Button, Card, MessageEvent, MessageType, SendErrorKind
from postroom.gateway.platforms import api_server as api_server_file
from postroom.gateway.platforms.api_server import (
    LARGEST_BODY,
    ApiServerAdapter,
    ApiServerOptions,
    Exchanges,
    encode_response_id,
)
from postroom.gateway.platforms.http_adapter import Refused
from postroom.http_api.guard import Credentials, Guard, GuardRules
from postroom.http_api.permissions import table
from postroom.http_api.routes import application
from postroom.services.login_codes import EndedSessions, Sessions
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from table_rows import each_row

KEY = "sk-of-the-harbour-1"
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20


@pytest.fixture
async def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
async def adapter(clock: ManualClock, gateway: FakeGateway):
    made = ApiServerAdapter(table_of(ApiServerOptions, api_key=KEY), clock=clock, timer=clock)
    made.set_message_handler(gateway)
    await made.connect()
    yield made
    await made.disconnect()
    assert len(made._tasks) == 0
    assert made._exchanges.waiting == 0


@pytest.fixture
async def client(adapter):
    async with calling(adapter) as made:
        made.headers["Authorization"] = f"Bearer {KEY}"
        yield made


def echoing(adapter: ApiServerAdapter):
    """Answer each message at once, with its own words."""

    async def reply(event: MessageEvent) -> None:
        told = {"answers": [event.message_id], "final": True}
        await adapter.send(event.source.chat_id, f"You said: {event.text}", event.message_id, told)

    return reply


def said(text: str, **more) -> dict:
    return {"model": "postroom", "messages": [{"role": "user", "content": text}], **more}


def events_of(body: str) -> list[dict]:
    """Read server-sent events as a client does."""
    found = [line.removeprefix("data: ") for line in body.split("\n") if line.startswith("data: ")]
    return [json.loads(one) for one in found if one != "[DONE]"]


async def test_a_completion_is_the_answer_to_the_last_message_of_the_user(
    adapter, gateway, client, clock
) -> None:
    gateway.reply = echoing(adapter)
    messages = [
        {"role": "system", "content": "Be short"},
        {"role": "user", "content": "An old message"},
        {"role": "assistant", "content": "An old answer"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Is the"}, {"type": "text", "text": "light on?"}],
        },
    ]
    body = {"model": "postroom", "messages": messages, "temperature": 1, "conversation": "harbour"}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    told = answer.json()
    assert told["object"] == "chat.completion"
    assert told["model"] == "postroom"
    assert told["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "You said: Is the\nlight on?", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert told["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    (event,) = gateway.accepted
    assert event.source.to_dict() == {
        "platform": "api_server",
        "chat_id": "harbour",
        "chat_type": "dm",
        "user_id": "api",
        "user_name": "API",
        "account": "default",
    }
    assert answer.headers["x-postroom-session"] == "harbour"
    assert answer.headers["idempotency-key"] == event.message_id
    assert adapter.liveness.outbound_at == clock.now()


async def test_drafts_become_pieces_that_only_ever_grow(adapter, gateway, client) -> None:
    async def reply(event: MessageEvent) -> None:
        chat, told = event.source.chat_id, {"answers": [event.message_id]}
        draft = await adapter.send(chat, "Look:\n```py\na = 1\n```", None, told)
        await adapter.edit_message(chat, draft.message_id, "Look:\n```py\na = 1\nb = 2\n```", told)
        await adapter.send(chat, "Look:\n```py\na = 1\nb = 2\n```\nDone.", None, {**told, "final": True})

    gateway.reply = reply
    answer = await client.post("/v1/chat/completions", json=said("x", stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")
    pieces = events_of(answer.text)
    assert {one["object"] for one in pieces} == {"chat.completion.chunk"}
    assert pieces[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(one["choices"][0]["delta"].get("content", "") for one in pieces)
    assert text == "Look:\n```py\na = 1\nb = 2\n```\nDone."
    assert pieces[-1]["choices"][0]["finish_reason"] == "stop"
    assert pieces[-1]["usage"]["total_tokens"] == 0


async def test_an_answer_that_another_server_gave_is_found_in_the_store(
    adapter, gateway, client, clock
) -> None:
    """Also where a draft was shown here, and while the store does not answer for a moment."""
    adapter.is_shared = True

    async def reply(event: MessageEvent) -> None:
        if event.text == "drafted":
            told = {"answers": [event.message_id]}
            await adapter.send(event.source.chat_id, "Half", None, told)

    gateway.reply = reply
    for number, text in enumerate(("plain", "drafted"), start=1):
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=said(text)))
        await gateway.inbound(number)
        await until(lambda: clock.sleeping >= 3)
        gateway.failure = unavailable()
        clock.advance(timedelta(seconds=1))
        await until(lambda: clock.sleeping >= 3)
        gateway.failure = None
        gateway.answers[text] = "Half and whole."
        clock.advance(timedelta(seconds=1))
        answer = await asked
        assert answer.json()["choices"][0]["message"]["content"] == "Half and whole."


async def test_a_stream_is_read_as_it_grows_through_a_real_server(adapter, gateway, clock) -> None:
    async with asyncio.timeout(60), served(adapter) as client:
        headers = {"Authorization": f"Bearer {KEY}", "X-Postroom-Session": "pier", "Idempotency-Key": "k"}
        body = said("Go on", stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()

            async def piece() -> str:
                async for line in lines:
                    if line:
                        return line
                return ""

            async def content() -> str:
                return json.loads((await piece()).removeprefix("data: "))["choices"][0]["delta"].get(
                    "content"
                )

            assert await content() == ""
            draft = await adapter.send("pier", "One", None, {"answers": ["k"]})
            assert await content() == "One"
            clock.set(clock.now() + 15_000)
            assert await piece() == ": waiting"
            await adapter.edit_message("pier", draft.message_id, "One two", {"answers": ["k"]})
            assert await content() == " two"
            await adapter.send("elsewhere", "Of another session", None, {"answers": ["k"], "final": True})
            await adapter.send("pier", "One two three", None, {"answers": ["k"], "final": True})
            assert await content() == " three"
            assert '"finish_reason": "stop"' in await piece()
            assert await piece() == "data: [DONE]"


async def test_a_run_that_somebody_else_still_waits_for_goes_on(adapter, gateway) -> None:
    async with asyncio.timeout(60), served(adapter) as client:
        headers = {"Authorization": f"Bearer {KEY}", "X-Postroom-Session": "pier", "Idempotency-Key": "k"}
        asked = [
            asyncio.create_task(client.post("/v1/chat/completions", json=said("x"), headers=headers))
            for _ in range(2)
        ]
        await gateway.inbound(2)
        asked[0].cancel()
        await until(lambda: adapter._exchanges.waiting == 1)
        await adapter.send("pier", "Done", None, {"answers": ["k"], "final": True})
        assert (await asked[1]).json()["choices"][0]["message"]["content"] == "Done"
    assert gateway.cancelled == []


async def test_requests_that_end_with_the_server_cancel_no_run(adapter, gateway) -> None:
    async with asyncio.timeout(60), served(adapter) as client:
        headers = {"Authorization": f"Bearer {KEY}"}
        asked = [
            asyncio.create_task(
                client.post("/v1/chat/completions", json=said("x", stream=stream), headers=headers)
            )
            for stream in (True, False)
        ]
        await gateway.inbound(2)
        await adapter.disconnect()
        await asyncio.wait(asked)
    assert gateway.cancelled == []


async def test_one_key_is_one_message_and_one_answer(adapter, gateway, client) -> None:
    headers = {"Idempotency-Key": "order-7"}
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        asked = [
            group.create_task(client.post("/v1/chat/completions", json=said("x"), headers=headers))
            for _ in range(3)
        ]
        first = (await gateway.inbound(3))[0]
        await adapter.send(first.source.chat_id, "One", None, {"answers": ["order-7"], "final": True})
    assert {(one.source.chat_id, one.message_id) for one in gateway.accepted} == {
        (first.source.chat_id, "order-7")
    }
    assert {one.result().json()["choices"][0]["message"]["content"] for one in asked} == {"One"}
    later = await client.post("/v1/chat/completions", json=said("x"), headers=headers)
    assert later.json()["choices"][0]["message"]["content"] == "One"
    other = await client.post("/v1/chat/completions", json=said("y"), headers=headers)
    assert (other.status_code, other.json()["error"]["type"]) == (409, "idempotency_error")
    assert len(gateway.accepted) == 3


async def test_a_request_that_waits_too_long_is_told_how_to_ask_again(
    adapter, gateway, client, clock
) -> None:
    async with asyncio.timeout(60):
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=said("x")))
        (event,) = await gateway.inbound(1)
        await until(lambda: clock.sleeping == 2)
        clock.set(clock.now() + 600_000)
        answer = await asked
        key = answer.headers["idempotency-key"]
        assert (answer.status_code, key) == (504, event.message_id)
        assert key in answer.json()["error"]["message"]
        again = asyncio.create_task(
            client.post("/v1/chat/completions", json=said("x"), headers={"Idempotency-Key": key})
        )
        await gateway.inbound(2)
        await adapter.send(event.source.chat_id, "At last", None, {"answers": [key], "final": True})
        assert (await again).json()["choices"][0]["message"]["content"] == "At last"
    assert len({(one.source.chat_id, one.message_id) for one in gateway.accepted}) == 1


async def test_a_stream_that_waits_too_long_ends_with_an_error(adapter, gateway, client, clock) -> None:
    async with asyncio.timeout(60):
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=said("x", stream=True)))
        await gateway.inbound(1)
        await until(lambda: clock.sleeping == 2)
        clock.set(clock.now() + 600_000)
        answer = await asked
    assert "[DONE]" not in answer.text
    assert events_of(answer.text)[-1]["error"]["code"] == "timeout"


async def test_stopping_lets_those_who_wait_ask_again(adapter, gateway, client) -> None:
    async with asyncio.timeout(60):
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=said("x")))
        streamed = asyncio.create_task(client.post("/v1/responses", json={"input": "x", "stream": True}))
        await gateway.inbound(2)
        await adapter.disconnect()
        answer = await asked
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert events_of((await streamed).text)[-1]["code"] == "stopping"
        assert (await client.post("/v1/chat/completions", json=said("x"))).status_code == 503


@pytest.mark.parametrize("forgets", [False, True])
async def test_the_hundredth_equal_request_looks_up_no_more_than_the_tenth(
    adapter, gateway, client, monkeypatch, forgets
) -> None:
    """In memory, and where the store must be asked because the memory is full."""
    if forgets:
        monkeypatch.setattr(api_server_file, "MAX_EXCHANGES", 2)
    gateway.reply = echoing(adapter)
    looks, found = [], gateway.look_up

    async def look_up(source, message_id):
        looks.append(message_id)
        return await found(source, message_id)

    gateway.look_up = look_up
    counts = []
    for _ in range(100):
        before = len(looks)
        assert (await client.post("/v1/chat/completions", json=said("ping"))).status_code == 200
        counts.append(len(looks) - before)
    assert len({one.message_id for one in gateway.accepted}) == 100
    assert max(counts) <= 20
    assert counts[99] <= counts[9]


async def test_equal_requests_of_a_server_that_has_begun_anew_are_told_apart(
    adapter, gateway, client, clock
) -> None:
    gateway.reply = echoing(adapter)
    for _ in range(30):
        await client.post("/v1/chat/completions", json=said("ping"))
    clock.set(clock.now() + 1)
    other = ApiServerAdapter(table_of(ApiServerOptions, api_key=KEY), clock=clock, timer=clock)
    other.set_message_handler(gateway)
    await other.connect()
    gateway.reply, gateway.answers = echoing(other), {"ping": "You said: ping"}
    async with calling(other) as again:
        again.headers["Authorization"] = f"Bearer {KEY}"
        for _ in range(20):
            assert (await again.post("/v1/chat/completions", json=said("ping"))).status_code == 200
    await other.disconnect()
    new = {one.message_id for one in gateway.accepted[30:]} - {
        one.message_id for one in gateway.accepted[:30]
    }
    assert len(new) == 14  # six of them were given answers of the server before


async def test_only_so_many_may_wait(adapter, gateway, client, monkeypatch) -> None:
    monkeypatch.setattr(api_server_file, "MAX_WAITING", 2)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(client.post("/v1/chat/completions", json=said("x")))
        for event in await gateway.inbound(2):
            assert event.message_id
        refused = await client.post("/v1/chat/completions", json=said("x"))
        for event in gateway.accepted:
            await adapter.send(
                event.source.chat_id, "y", None, {"answers": [event.message_id], "final": True}
            )
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
    assert refused.headers["retry-after"]
    assert len(gateway.accepted) == 2


async def test_what_is_not_kept_is_not_answered_and_may_be_asked_again_otherwise(
    adapter, gateway, client
) -> None:
    gateway.failure = unavailable()
    headers = {"Idempotency-Key": "k"}
    refused = await client.post("/v1/chat/completions", json=said("x", stream=True), headers=headers)
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "server_error")
    gateway.failure = InvalidArgument("no")
    assert (await client.post("/v1/chat/completions", json=said("x"), headers=headers)).status_code == 400
    gateway.failure, gateway.reply = None, echoing(adapter)
    assert (await client.post("/v1/chat/completions", json=said("y"), headers=headers)).status_code == 200


async def test_without_the_key_nothing_is_told(adapter, gateway) -> None:
    paths = ("POST /v1/chat/completions", "POST /v1/responses", "GET /v1/responses/x")
    shown = (None, "Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer \xe9")
    asked = [(path, key) for path in (*paths, "DELETE /v1/responses/x", "GET /v1/models") for key in shown]
    async with calling(adapter) as client:
        for path, key in asked:
            headers = [] if key is None else [(b"authorization", key.encode())]
            answer = await client.request(*path.split(), headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), path
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert (gateway.accepted, adapter.liveness.refused) == ([], len(asked))


def parts(*told) -> dict:
    return {"messages": [{"role": "user", "content": list(told)}]}


WRONG = {
    "no messages": {},
    "messages are none": {"messages": "x"},
    "a message is none": {"messages": ["x"]},
    "nothing of the user": {"messages": [{"role": "system", "content": "x"}]},
    "blank": said(" \n"),
    "no content": {"messages": [{"role": "user"}]},
    "two choices": said("x", n=2),
    "stream is a word": said("x", stream="yes"),
    "conversation is a number": said("x", conversation=7),
    "conversation is two lines": said("x", conversation="a\nb"),
    "conversation exceed": said("x", conversation="x" * 201),
    "a part of the type text exceed": said("x" * 65_537),
    "too many parts": parts(*[{"type": "text", "text": "x"}] * 1_001),
    "an unknown part": parts({"type": "input_audio", "input_audio": {}}),
    "a part is none": parts("x"),
    "a text is none": parts({"type": "text", "text": 7}),
    "an image elsewhere": parts({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}),
    "an image is none": parts({"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}),
    "an image of another kind": parts(
        {"type": "image_url", "image_url": {"url": "data:text/html;base64,eA=="}}
    ),
    "an image is cut": parts({"type": "image_url", "image_url": {"url": "data:image/png;base64,eA"}}),
    "an image exceed": parts(
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_400_000}}
    ),
}


async def test_a_request_that_is_wrong_is_refused_in_openais_form(adapter, gateway, client, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    for name, body in WRONG.items():
        answer = await client.post("/v1/chat/completions", json=body)
        error = answer.json()["error"]
        told = (answer.status_code, error["type"], bool(error["message"]))
        assert told == (400, "invalid_request_error", True), name
        assert KEY not in answer.text
    assert (gateway.accepted, adapter.liveness.refused) == ([], len(WRONG))
    assert KEY not in caplog.text


@each_row(
    "content, headers, status",
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b"x" * 10_000_001, {}, 413),
        (b'{"messages":[{"role":"user","content":"x"}]}', {"Idempotency-Key": "a b"}, 400),
        (b'{"messages":[{"role":"user","content":"x"}]}', {"Idempotency-Key": "x" * 201}, 400),
        (b'{"messages":[{"role":"user","content":"x"}]}', {"X-Postroom-Session": "x" * 201}, 400),
    ],
)
async def test_a_body_or_header_that_cannot_be_read_is_refused(
    adapter, gateway, client, content, headers, status
) -> None:
    sent = {"Content-Type": "application/json", **headers}
    answer = await client.post("/v1/chat/completions", content=content, headers=sent)
    assert (answer.status_code, gateway.accepted) == (status, [])
    assert answer.json()["error"]["code"]


async def test_a_body_over_the_limit_is_an_error_object_that_a_plain_client_can_read(
    adapter, gateway
) -> None:
    """A client that only writes first and reads then; the guard refuses before the adapter sees anything."""
    clock = adapter._clock
    credentials = Credentials(
        is_operator=lambda _: False,
        sessions=Sessions(b"k" * 32, clock, EndedSessions(SqliteStore.in_memory(clock))),
    )
    rules = GuardRules(channels=open_paths([adapter]))
    large = b"x" * (LARGEST_BODY + 1)
    ways = {
        f"Content-Length: {len(large)}": large,
        "Transfer-Encoding: chunked": b"%x\r\n%b\r\n0\r\n\r\n" % (len(large), large),
    }
    async with (
        asyncio.timeout(60),
        served(adapter, door=lambda app: Guard(app, rules, credentials)) as client,
    ):
        for announced, body in ways.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
                f"Content-Type: application/json\r\nConnection: close\r\n{announced}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            told = await reader.read()
            writer.close()
            status, _, answer = told.partition(b"\r\n")
            assert b" 413 " in status + b" "
            error = json.loads(answer[answer.index(b'{"error"') : answer.rindex(b"}") + 1])["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "too_large")
            assert str(LARGEST_BODY) in error["message"]
    assert gateway.accepted == []


async def test_unknown_paths_and_wrong_methods_are_errors_that_openais_sdk_reads(adapter, gateway) -> None:
    clock = adapter._clock
    credentials = Credentials(
        is_operator=lambda _: False,
        sessions=Sessions(b"k" * 32, clock, EndedSessions(SqliteStore.in_memory(clock))),
    )
    rules = GuardRules(channels=open_paths([adapter]))

    def door(_: ASGIApp) -> ASGIApp:
        routes = list(adapter.routes())
        return Guard(
            application(routes, permissions=table(ALL_OPERATIONS, channels=routes)), rules, credentials
        )

    asked = [
        ("POST", "/embeddings", 404, "not_found"),
        ("GET", "/chat", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("GET", "/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/responses", 405, "method_not_allowed"),
        ("POST", "/models", 405, "method_not_allowed"),
    ]
    async with asyncio.timeout(60), served(adapter, door=door) as client:
        base = f"{str(client.base_url).rstrip('/')}/v1"
        async with AsyncOpenAI(api_key=KEY, base_url=base, max_retries=0) as sdk:
            with pytest.raises(openai.NotFoundError) as unknown:
                await sdk.embeddings.create(model="postroom", input="x")
            assert (unknown.value.code, unknown.value.type) == ("not_found", "invalid_request_error")
            for known in ("POST /v1/embeddings", "/v1/chat/completions", "/v1/responses", "/v1/models"):
                assert known in unknown.value.body["message"]
            for method, path, status, code in asked:
                with pytest.raises(openai.APIStatusError) as refused:
                    await getattr(sdk, method.lower())(path, cast_to=object)
                assert (refused.value.status_code, refused.value.code) == (status, code), path
                assert refused.value.body["message"]
                assert status != 405 or refused.value.response.headers["allow"]
    assert gateway.accepted == []


async def test_an_image_that_came_along_can_be_fetched(adapter, gateway, client) -> None:
    gateway.reply = echoing(adapter)
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    image = {"type": "image_url", "image_url": {"url": url}}
    assert (await client.post("/v1/chat/completions", json=parts(image))).status_code == 200
    response = {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}
    assert (await client.post("/v1/responses", json=response)).status_code == 200
    for event in gateway.accepted:
        (attachment,) = event.media
        assert (event.message_type, attachment.mime, attachment.size) == (
            MessageType.PHOTO,
            "image/png",
            len(PNG),
        )
        assert await fetched(adapter, attachment, max_bytes=len(PNG)) == PNG
        with pytest.raises(TooLarge):
            await fetched(adapter, attachment, max_bytes=len(PNG) - 1)
    with pytest.raises(ServerUnavailable):
        await fetched(adapter, Attachment(kind=MessageType.PHOTO, ref="https://example.org/"), max_bytes=9)


async def test_a_file_that_came_along_can_be_fetched(adapter, gateway, client) -> None:
    gateway.reply = echoing(adapter)
    url = "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.7").decode()
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": url}}
    assert (await client.post("/v1/chat/completions", json=parts(part))).status_code == 200
    told = {"type": "input_file", "filename": "a.pdf", "file_data": url}
    response = {"input": [{"role": "user", "content": [told]}]}
    assert (await client.post("/v1/responses", json=response)).status_code == 200
    for event in gateway.accepted:
        (attachment,) = event.media
        assert (attachment.kind, attachment.name, attachment.mime) == (
            MessageType.DOCUMENT,
            "a.pdf",
            "application/pdf",
        )
        assert await fetched(adapter, attachment, max_bytes=8) == b"%PDF-1.7"
    for wrong in ({"file_id": "f"}, {"file_data": "https://example.org/a.pdf"}, {"file_data": "data:x,y"}):
        refused = await client.post("/v1/chat/completions", json=parts({"type": "file", "file": wrong}))
        assert refused.status_code == 400


async def test_text_comes_without_what_no_store_can_hold(adapter, gateway, client) -> None:
    gateway.reply = echoing(adapter)
    body = b'{"messages":[{"role":"user","content":"a\\u0000b\\u0007c"}]}'
    answer = await client.post(
        "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.json()["choices"][0]["message"]["content"] == "You said: abc"


# Responses.


async def test_responses_go_on_by_id_or_by_conversation(adapter, gateway, client) -> None:
    gateway.reply = echoing(adapter)
    first = (await client.post("/v1/responses", json={"input": "a"})).json()
    second = {"input": "b", "previous_response_id": first["id"]}
    assert (await client.post("/v1/responses", json=second)).json()["previous_response_id"] == first["id"]
    named = (await client.post("/v1/responses", json={"input": "c", "conversation": {"id": "pier"}})).json()
    await client.post("/v1/responses", json={"input": "d", "conversation": "pier"})
    chats = [one.source.chat_id for one in gateway.accepted]
    assert (chats[0] == chats[1], chats[2:]) == (True, ["pier", "pier"])
    assert named["conversation"] == {"id": "pier"}


@each_row(
    "body",
    [
        {"input": "x", "previous_response_id": "resp_" + "0" * 48},
        {"input": "x", "previous_response_id": 7},
        {"input": "x", "previous_response_id": "resp_1", "conversation": "pier"},
        {"input": "x", "background": True, "store": False},
        {"input": "x", "background": "yes"},
        {"input": 7},
        {"input": [{"role": "assistant", "content": "x"}]},
        {},
    ],
)
async def test_a_response_that_cannot_be_is_refused(adapter, gateway, client, body) -> None:
    answer = await client.post("/v1/responses", json=body)
    assert (answer.status_code, gateway.accepted) == (400, [])


async def test_a_response_is_of_one_session_only(adapter, gateway, client) -> None:
    gateway.reply = echoing(adapter)
    first = (await client.post("/v1/responses", json={"input": "a"})).json()
    body = {"input": "b", "previous_response_id": first["id"]}
    answer = await client.post("/v1/responses", json=body, headers={"X-Postroom-Session": "pier"})
    assert answer.status_code == 400


async def test_a_response_that_nobody_waits_for_any_more_gets_its_answer(
    adapter, gateway, client, clock
) -> None:
    async with asyncio.timeout(60):
        asked = asyncio.create_task(client.post("/v1/responses", json={"input": "x", "conversation": "pier"}))
        (event,) = await gateway.inbound(1)
        await until(lambda: clock.sleeping == 2)
        response_id = encode_response_id("pier", event.message_id)
        assert (await client.get(f"/v1/responses/{response_id}")).json()["status"] == "in_progress"
        clock.set(clock.now() + 600_000)
        assert (await asked).status_code == 504
        await adapter.send("pier", "Late", None, {"answers": [event.message_id], "final": True})
        found = (await client.get(f"/v1/responses/{response_id}")).json()
    assert (found["status"], found["output"][0]["content"][0]["text"]) == ("completed", "Late")


async def test_a_streamed_response_tells_each_step(adapter, gateway, client) -> None:
    async def reply(event: MessageEvent) -> None:
        told = {"answers": [event.message_id]}
        await adapter.send(event.source.chat_id, "One", None, told)
        await adapter.send(event.source.chat_id, "One two", None, {**told, "final": True})

    gateway.reply = reply
    answer = await client.post("/v1/responses", json={"input": "x", "stream": True})
    events = events_of(answer.text)
    kinds = [one["type"] for one in events]
    assert kinds == [line[7:] for line in answer.text.split("\n") if line.startswith("event: ")]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert "".join(one["delta"] for one in events if one["type"].endswith("delta")) == "One two"
    completed = events[-1]["response"]
    path = f"/v1/responses/{completed['id']}"
    assert (await client.get(path)).json() == completed
    gone = {"id": completed["id"], "object": "response", "deleted": True}
    assert (await client.delete(path)).json() == gone
    assert [(await client.get(path)).status_code, (await client.delete(path)).status_code] == [404, 404]


QUESTION = Card(
    text="It is old.\n\nDelete it?",
    buttons=(Button(label="Approve", value="approve 4f2a1c"), Button(label="Deny", value="deny 4f2a1c")),
)
ASKED = "It is old.\n\nDelete it?\n\nApprove: /approve 4f2a1c\nDeny: /deny 4f2a1c"


def asking(adapter: ApiServerAdapter, asked: asyncio.Event, free: asyncio.Event):
    """Show a draft, ask a question, and answer after `free`."""

    async def reply(event: MessageEvent) -> None:
        chat, told = event.source.chat_id, {"answers": [event.message_id]}
        await adapter.send(chat, "It is", None, told)
        await adapter.send_card(chat, QUESTION, {"read": [event.message_id], "final": True})
        await adapter.send_card(chat, QUESTION, {"read": [event.message_id], "final": True})
        asked.set()
        await free.wait()
        draft = await adapter.send(chat, "It is", None, told)
        await adapter.edit_message(chat, draft.message_id, "It is gone.", {**told, "final": True})

    return reply


@each_row("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_stream_shows_the_question_of_the_agent_before_its_answer(
    adapter, gateway, client, path
) -> None:
    free = asyncio.Event()
    free.set()
    gateway.reply = asking(adapter, asyncio.Event(), free)
    body = said("x", stream=True) if "chat" in path else {"input": "x", "stream": True}
    answer = await client.post(path, json=body)
    told = [
        one["delta"] if "response" in path else one["choices"][0]["delta"].get("content") or ""
        for one in events_of(answer.text)
        if "chat" in path or one["type"].endswith("text.delta")
    ]
    assert "".join(told) == f"{ASKED}\n\nIt is gone."


async def test_a_background_response_that_asks_shows_the_question_until_its_answer(
    adapter, gateway, client
) -> None:
    asked, free = asyncio.Event(), asyncio.Event()
    tasks = []

    async def begin(event: MessageEvent) -> None:
        tasks.append(asyncio.create_task(asking(adapter, asked, free)(event)))

    gateway.reply = begin
    path = (
        "/v1/responses/"
        + (await client.post("/v1/responses", json={"input": "x", "background": True})).json()["id"]
    )
    async with asyncio.timeout(60):
        await asked.wait()
        waits = (await client.get(path)).json()
        free.set()
        await asyncio.gather(*tasks)
    done = (await client.get(path)).json()
    assert [(one["status"], one["output"][0]["content"][0]["text"]) for one in (waits, done)] == [
        ("in_progress", ASKED),
        ("completed", "It is gone."),
    ]


# Answers as they come.


async def test_what_nobody_waits_for_is_taken(adapter) -> None:
    assert (await adapter.send("pier", "Good morning")).success
    assert (await adapter.send("pier", "Good morning", None, {"answers": ["k"], "final": True})).success
    assert (await adapter.edit_message("pier", "msg_1", "x")).error_kind is SendErrorKind.NOT_FOUND


@each_row(
    "draft, sure",
    [
        ("One ", "One"),
        ("```py\na = 1\n```", "```py\na = 1"),
        ("```\n```", "```"),
        ("a\n~~~~", "a"),
        ("a ```", "a ```"),
        ("", ""),
    ],
)
def test_a_draft_is_sure_up_to_the_fence_that_was_closed_for_it(draft, sure) -> None:
    assert settled(draft) == sure
    assert grows_from(draft, f"{sure} and more")


async def test_parts_that_are_no_drafts_stay_and_a_final_is_final() -> None:
    exchanges = Exchanges()
    wait = exchanges.ask("pier", "k", "f")
    read = []

    async def reading() -> None:
        read.extend([one async for one in wait.deltas()])

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(reading())
        for text, final in (
            ("First part.", False),
            ("Second", False),
            ("Second part.", True),
            ("Again", True),
        ):
            exchanges.answered("pier", ["k"], text, text, final=final)
            await asyncio.sleep(0)
    assert wait.exchange.text == "First part.\n\nSecond part."
    assert "".join(read) == wait.exchange.text


async def test_a_draft_is_edited_in_its_own_session_only(adapter) -> None:
    draft = await adapter.send("pier", "One", None, {"answers": ["k"]})
    elsewhere = await adapter.edit_message("quay", draft.message_id, "Two")
    assert elsewhere.error_kind is SendErrorKind.NOT_FOUND
    assert adapter._exchanges.find("pier", "k").text == "One"


async def test_a_draft_that_is_no_beginning_of_the_answer_is_followed_by_all_of_it() -> None:
    exchanges = Exchanges()
    wait = exchanges.ask("pier", "k", "f")
    exchanges.answered("pier", ["k"], "p", "Perhaps", final=False)
    deltas = wait.deltas()
    assert await anext(deltas) == "Perhaps"
    exchanges.edited("pier", [], "p", "No", final=True)
    assert [one async for one in deltas] == ["\n\nNo"]


def test_messages_are_forgotten_oldest_first_but_those_that_are_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(api_server_file, "MAX_EXCHANGES", 3)
    exchanges = Exchanges()
    waiting = exchanges.ask("pier", "first", "f")
    for number in range(5):
        exchanges.answered("pier", [str(number)], "p", "x", final=True)
    assert exchanges.find("pier", "first") is waiting.exchange
    assert exchanges.find("pier", "0") is None
    assert exchanges.find("pier", "4") is not None
    exchanges.leave(waiting)
    exchanges.leave(waiting)
    assert exchanges.waiting == 0
    with pytest.raises(Refused):
        exchanges.ask("pier", "first", "other")


# Settings.


@each_row(
    "key, extra",
    [
        (None, {}),
        ("short", {}),
        (KEY, {"colour": "red"}),
        (KEY, {"timeout_s": 0}),
        (KEY, {"timeout_s": "10"}),
        (KEY, {"timeout_s": True}),
        (KEY, {"timeout_s": float("nan")}),
        (KEY, {"max_image_bytes": 5_000_001}),
        (KEY, {"model": ""}),
        (KEY, {"model": 7}),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(key, extra) -> None:
    with pytest.raises(ConfigError) as refused:
        ApiServerAdapter(table_of(ApiServerOptions, api_key=key, **extra))
    assert refused.value.remedy
    assert key is None or key not in str(refused.value.as_dict()) or key == "short"
