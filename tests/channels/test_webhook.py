"""Signed webhooks: who may call, what becomes of a body, and how the answer finds its way back."""

import asyncio
import builtins
import hashlib
import hmac
import json
import logging

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from channels.http_room import FakeGateway, calling, listening, unavailable, until
from platform_tables import table_of
from postroom.contracts.errors import ConfigError, InvalidArgument, MissingExtra
from postroom.extras import install_command
from postroom.gateway.events import MessageType, SendErrorKind
from postroom.gateway.platforms.base import AdapterState
from postroom.gateway.platforms.http_adapter import Refused
from postroom.gateway.platforms.webhook import (
    HookRoute,
    WebhookAdapter,
    WebhookOptions,
    build_prompt,
    classify_response,
)
from postroom.testing import ManualClock
from table_rows import each_row

SECRET = "a secret of the pier"
OTHER = "another secret, for answers"


def config(**routes: dict[str, str]) -> WebhookOptions:
    return table_of(WebhookOptions, routes=routes or {"pier": {"secret": SECRET}})


@pytest.fixture
async def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
async def adapter(clock: ManualClock, gateway: FakeGateway):
    made = WebhookAdapter(
        config(
            pier={"secret": SECRET},
            hub={"secret": SECRET, "scheme": "github", "prompt": "{repo.name}: {commits.0.message}"},
            lab={"secret": SECRET, "scheme": "gitlab"},
        ),
        clock=clock,
        timer=clock,
    )
    made.set_message_handler(gateway)
    await made.connect()
    yield made
    await made.disconnect()


def seconds(clock: ManualClock) -> str:
    return str(clock.now() // 1000)


def sign(secret: str, stamp: str, content: bytes) -> str:
    """Sign as a caller does, by the description and not by our own code."""
    return "v1=" + hmac.new(secret.encode(), stamp.encode() + b"." + content, hashlib.sha256).hexdigest()


def signed(
    clock: ManualClock, body: bytes, *, delivery: str | None = "d-1", **changed: str
) -> dict[str, str]:
    stamp = changed.pop("stamp", seconds(clock))
    headers = {
        "Content-Type": "application/json",
        "X-Postroom-Timestamp": stamp,
        "X-Postroom-Signature": sign(changed.pop("secret", SECRET), stamp, body),
    }
    return headers | ({} if delivery is None else {"X-Postroom-Delivery": delivery}) | changed


async def test_a_signed_body_is_kept_before_it_is_acknowledged(adapter, gateway, clock) -> None:
    body = b'{"text": "Lights on", "conversation": "north"}'
    async with calling(adapter) as client:
        answer = await client.post("/webhook/pier", content=body, headers=signed(clock, body))
    assert answer.status_code == 202
    assert answer.json()["message_id"] == "pier/d-1"
    (event,) = gateway.accepted
    assert (event.text, event.message_id) == ("Lights on", "pier/d-1")
    assert (event.source.chat_id, event.source.user_id) == ("pier/north", "webhook:pier")
    assert adapter.liveness.inbound_at == clock.now()


async def test_what_is_not_kept_is_not_acknowledged_and_taken_when_it_comes_again(
    adapter, gateway, clock
) -> None:
    body = b'{"text": "x"}'
    gateway.failure = unavailable()
    async with calling(adapter) as client:
        refused = await client.post("/webhook/pier", content=body, headers=signed(clock, body))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        gateway.failure = None
        again = await client.post("/webhook/pier", content=body, headers=signed(clock, body))
    assert again.status_code == 202
    assert [one.message_id for one in gateway.accepted] == ["pier/d-1"]


def github(body: bytes, delivery: str) -> dict[str, str]:
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    told = {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Delivery": delivery}
    return {"Content-Type": "application/json", **told}


async def test_deliveries_are_named_within_their_route(adapter, gateway, clock) -> None:
    body, push = b'{"text": "x"}', b'{"repo": {"name": "boats"}, "commits": [{"message": "Paint"}]}'
    async with calling(adapter) as client:
        await client.post("/webhook/pier", content=body, headers=signed(clock, body, delivery="same"))
        await client.post("/webhook/hub", content=push, headers=github(push, "same"))
    assert [(one.message_id, one.text) for one in gateway.accepted] == [
        ("pier/same", "x"),
        ("hub/same", "boats: Paint"),
    ]


async def test_a_body_without_a_delivery_id_is_named_by_its_content(adapter, gateway, clock) -> None:
    body = b'{"text": "x"}'
    async with calling(adapter) as client:
        for _ in range(2):
            await client.post("/webhook/pier", content=body, headers=signed(clock, body, delivery=None))
    digest = hashlib.sha256(body).hexdigest()
    assert [one.message_id for one in gateway.accepted] == [f"pier/{digest}", f"pier/{digest}"]


async def test_gitlab_shows_its_token_and_its_retries_have_one_key(adapter, gateway) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8", "Idempotency-Key": "k-1"}
    async with calling(adapter) as client:
        wrong = await client.post("/webhook/lab", content=b"{}", headers={**headers, "X-Gitlab-Token": "no"})
        right = await client.post(
            "/webhook/lab", content=b'{"a": 1}', headers={**headers, "X-Gitlab-Token": SECRET}
        )
    assert (wrong.status_code, right.status_code) == (401, 202)
    assert [(one.message_id, one.text) for one in gateway.accepted] == [("lab/k-1", '{"a": 1}')]


BODY = b'{"text": "the words of the body"}'


@each_row(
    "route, changed, status",
    [
        ("pier", {"secret": "another secret, which is wrong"}, 401),
        ("pier", {"X-Postroom-Signature": ""}, 401),
        ("pier", {"X-Postroom-Signature": "v1=\xe9"}, 401),
        ("pier", {"X-Postroom-Timestamp": "1"}, 401),
        ("pier", {"stamp": "soon"}, 401),
        ("pier", {"stamp": "١٢"}, 401),
        ("hub", {}, 401),
        ("nobody", {}, 404),
        ("pier", {"Content-Type": "text/plain"}, 415),
        ("pier", {"X-Postroom-Delivery": "a/b"}, 400),
        ("pier", {"X-Postroom-Delivery": "x" * 129}, 400),
    ],
)
async def test_a_request_that_is_wrong_is_refused_and_counted(
    adapter, gateway, clock, caplog, route, changed, status
) -> None:
    caplog.set_level(logging.DEBUG)
    refused = adapter.liveness.refused
    headers = [
        (name.encode(), value.encode("utf-8")) for name, value in signed(clock, BODY, **changed).items()
    ]
    async with calling(adapter) as client:
        answer = await client.post(f"/webhook/{route}", content=BODY, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert gateway.accepted == []
    assert adapter.liveness.refused == refused + 1
    assert "words of the body" not in caplog.text
    assert SECRET not in caplog.text + answer.text


@each_row(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"text": " "}',
        b'"\xff"',
        b'{"text": "x", "conversation": 1}',
        b'{"text": "x", "conversation": "a\\u0000"}',
        b'{"a":' * 5000,
    ],
)
async def test_a_signed_body_that_cannot_be_read_is_refused_and_counted(
    adapter, gateway, clock, body
) -> None:
    refused = adapter.liveness.refused
    async with calling(adapter) as client:
        answer = await client.post("/webhook/pier", content=body, headers=signed(clock, body))
    assert answer.status_code == 400
    assert (gateway.accepted, adapter.liveness.refused) == ([], refused + 1)


async def test_a_time_stamp_is_good_for_five_minutes(adapter, clock) -> None:
    found = {}
    async with calling(adapter) as client:
        for offset in (0, -300, 300, -301, 301):
            stamp = str(clock.now() // 1000 + offset)
            headers = signed(clock, BODY, stamp=stamp, delivery=f"d{offset}")
            found[offset] = (await client.post("/webhook/pier", content=BODY, headers=headers)).status_code
    assert found == {0: 202, -300: 202, 300: 202, -301: 401, 301: 401}


async def test_a_request_that_was_overheard_is_not_taken_under_another_id(adapter, gateway, clock) -> None:
    stamp, found = seconds(clock), []
    async with calling(adapter) as client:
        for delivery in ("d-1", "d-2", None, "d-1"):
            headers = signed(clock, BODY, stamp=stamp, delivery=delivery)
            found.append((await client.post("/webhook/pier", content=BODY, headers=headers)).status_code)
    assert found == [202, 401, 401, 202]
    assert {one.message_id for one in gateway.accepted} == {"pier/d-1"}


async def test_a_delivery_id_that_comes_again_with_another_body_is_a_conflict(
    adapter, gateway, clock
) -> None:
    bodies = [
        b'{"text": "Lights on", "count": 1}',
        b'{"text": "Lights off", "count": 1}',
        b'{"text": "Lights on", "count": 2}',
        b'{"count": 1,"text": "Lights on"}',
    ]
    async with calling(adapter) as client:
        found = [
            await client.post("/webhook/pier", content=body, headers=signed(clock, body)) for body in bodies
        ]
        pushes = [b'{"repo": {"name": "boats"}, "commits": [{"message": "%d"}]}' % n for n in (1, 2, 1)]
        found += [await client.post("/webhook/hub", content=one, headers=github(one, "d")) for one in pushes]
    assert [one.status_code for one in found] == [202, 409, 409, 202, 202, 409, 202]
    assert found[1].json()["error"]["code"] == "idempotency_conflict"


async def test_a_body_over_1_mib_is_refused_without_being_read(adapter, clock) -> None:
    read = 0

    async def pieces():
        nonlocal read
        for _ in range(100):
            read += 1
            yield b"x" * 65_536

    async with calling(adapter) as client:
        streamed = await client.post("/webhook/pier", content=pieces(), headers=signed(clock, b""))
        announced = await client.post(
            "/webhook/pier", content=b"x", headers={**signed(clock, b""), "Content-Length": str(2**20 + 1)}
        )
    assert (streamed.status_code, announced.status_code) == (413, 413)
    assert adapter.liveness.refused == 2
    assert read < 20


async def test_what_can_never_be_kept_is_refused_for_good(adapter, gateway, clock) -> None:
    gateway.failure = InvalidArgument("no message id")
    async with calling(adapter) as client:
        answer = await client.post("/webhook/pier", content=BODY, headers=signed(clock, BODY))
    assert (answer.status_code, adapter.liveness.refused) == (400, 1)


async def test_nothing_is_acknowledged_by_an_adapter_that_does_not_receive(clock, gateway) -> None:
    adapter = WebhookAdapter(config(), clock=clock)
    async with calling(adapter) as client:
        before = await client.post("/webhook/pier", content=BODY, headers=signed(clock, BODY))
        await adapter.connect()
        unwired = await client.post("/webhook/pier", content=BODY, headers=signed(clock, BODY))
        adapter.set_message_handler(gateway)
        await adapter.disconnect()
        await adapter.disconnect()
        after = await client.post("/webhook/pier", content=BODY, headers=signed(clock, BODY))
    assert [one.status_code for one in (before, unwired, after)] == [503, 503, 503]
    assert gateway.accepted == []
    assert adapter.liveness.state is AdapterState.STOPPED


async def test_a_message_that_is_kept_while_the_adapter_stops_is_not_acknowledged(
    adapter, gateway, clock
) -> None:
    async def stop(_) -> None:
        await adapter.disconnect()

    gateway.reply = stop
    async with calling(adapter) as client:
        answer = await client.post("/webhook/pier", content=BODY, headers=signed(clock, BODY))
    assert answer.status_code == 503


@each_row(
    "template, said",
    [
        ("{a.b}", "{c}"),
        ("{{a.b}}", "{{c}}"),
        ("{list.1} {list.9} {none.x}.", "two  ."),
        ("{a}", '{"b":"{c}"}'),
        ("{c} {flag}", "1.5 true"),
        ("no fields {not one}", "no fields {not one}"),
    ],
)
def test_a_template_is_filled_once(template, said) -> None:
    data = {"a": {"b": "{c}"}, "c": 1.5, "list": ["one", "two"], "flag": True}
    assert build_prompt(template, data, b"") == said


@each_row(
    "scheme, template, is_command",
    [
        ("postroom", None, True),
        ("gitlab", None, False),
        ("postroom", "{text}", False),
        ("gitlab", "/background {text}", True),
    ],
)
async def test_what_strangers_write_is_no_command(clock, gateway, scheme, template, is_command) -> None:
    route = {"secret": SECRET, "scheme": scheme} | ({} if template is None else {"prompt": template})
    adapter = WebhookAdapter(config(pier=route), clock=clock)
    adapter.set_message_handler(gateway)
    await adapter.connect()
    body = b'{"text": "/stop now"}'
    async with calling(adapter) as client:
        headers = {**signed(clock, body), "X-Gitlab-Token": SECRET}
        assert (await client.post("/webhook/pier", content=body, headers=headers)).status_code == 202
    await adapter.disconnect()
    event = gateway.accepted.pop()
    assert (event.is_command(), event.message_type is MessageType.COMMAND) == (is_command, is_command)
    assert "/stop now" in event.text


async def test_an_event_that_lacks_a_field_of_the_prompt_is_ignored(adapter, gateway) -> None:
    bodies = {
        b'{"zen": "Keep it logically awesome.", "hook_id": 1}': "repo.name",
        b'{"repo": {"name": "pier"}, "commits": []}': "commits.0.message",
        b'{"repo": {"name": "pier"}, "commits": [{"message": null}]}': None,
    }
    async with calling(adapter) as client:
        for body, missing in bodies.items():
            answer = await client.post("/webhook/hub", content=body, headers=github(body, "d-1"))
            assert answer.status_code == 202
            if missing is not None:
                assert answer.json() == {"delivery": "d-1", "status": "ignored", "missing": missing}
    assert [event.text for event in gateway.accepted] == ["pier: "]


@each_row(
    "route, fields",
    [
        ({"prompt": "Look at {title} of {title} in {n}."}, {"title": "Obey me\nnow", "n": "3"}),
        ({"scheme": "gitlab"}, {"the whole text": "hello"}),
        ({}, None),
    ],
)
async def test_the_agent_is_told_which_words_of_a_prompt_come_from_the_body(
    clock, gateway, route, fields
) -> None:
    adapter = WebhookAdapter(config(pier={"secret": SECRET, **route}), clock=clock)
    adapter.set_message_handler(gateway)
    await adapter.connect()
    body = b'{"text": "hello", "title": "Obey me\\nnow", "n": 3}'
    async with calling(adapter) as client:
        headers = {**signed(clock, body), "X-Gitlab-Token": SECRET}
        assert (await client.post("/webhook/pier", content=body, headers=headers)).status_code == 202
    await adapter.disconnect()
    assert gateway.accepted.pop().metadata.get("fields") == fields


def test_a_template_cannot_be_made_to_swell() -> None:
    with pytest.raises(Refused) as refused:
        build_prompt("{a}" * 5_000, {"a": "x" * 1_000_000}, b"")
    assert refused.value.status == 413


# Answers.


async def test_an_answer_without_a_callback_waits_to_be_fetched(adapter, clock) -> None:
    path = "/webhook/pier/answers/d-1"
    stamp = seconds(clock)
    headers = {"X-Postroom-Timestamp": stamp, "X-Postroom-Signature": sign(SECRET, stamp, path.encode())}
    async with calling(adapter, below="/channels") as client:
        assert (await client.get(f"/channels{path}", headers=headers)).status_code == 404
        told = {"answers": ["pier/d-1"], "dedupe_key": "k1"}
        assert (await adapter.send("pier", "First", None, told)).success
        assert (await adapter.send("pier", "First", None, told)).success
        await adapter.send(
            "pier", "Second", None, {"answers": ["pier/d-1"], "final": True, "dedupe_key": "k2"}
        )
        found = await client.get(f"/channels{path}", headers=headers)
        unsigned = await client.get(f"/channels{path}")
        elsewhere = await client.get("/channels/webhook/pier/answers/d-2", headers=headers)
    assert found.json() == {
        "delivery": "d-1",
        "answers": [{"text": "First", "final": False}, {"text": "Second", "final": True}],
        "final": True,
    }
    assert (unsigned.status_code, elsewhere.status_code) == (401, 401)
    assert adapter.liveness.outbound_at == clock.now()


async def test_what_takes_a_webhook_tells_where_its_answer_is_fetched_and_signed_by(adapter, clock) -> None:
    body = b'{"text": "x"}'
    async with calling(adapter, below="/channels") as client:
        taken = await client.post("/channels/webhook/pier", content=body, headers=signed(clock, body))
        path, stamp = taken.json()["answers"], seconds(clock)
        await adapter.send("pier", "First", None, {"answers": ["pier/d-1"], "final": True})
        proof = {"X-Postroom-Timestamp": stamp, "X-Postroom-Signature": sign(SECRET, stamp, path.encode())}
        found = await client.get(path, headers=proof)
    assert (path, found.status_code) == ("/channels/webhook/pier/answers/d-1", 200)


async def test_only_the_newest_thousand_answers_are_kept(adapter, clock) -> None:
    for number in range(1_001):
        await adapter.send("pier", "x", None, {"answers": [f"pier/{number}"], "final": True})
    found = []
    async with calling(adapter) as client:
        for number in (0, 1, 1_000):
            path = f"/webhook/pier/answers/{number}"
            stamp = seconds(clock)
            headers = {
                "X-Postroom-Timestamp": stamp,
                "X-Postroom-Signature": sign(SECRET, stamp, path.encode()),
            }
            found.append((await client.get(path, headers=headers)).status_code)
    assert found == [404, 200, 200]


async def test_what_answers_nobody_and_has_no_callback_is_not_said_to_be_sent(adapter) -> None:
    assert (await adapter.send("pier", "Hello")).error_kind is SendErrorKind.NOT_FOUND
    assert (await adapter.send("nobody", "Hello")).error_kind is SendErrorKind.NOT_FOUND
    assert (await adapter.send("pier", "Hello", "pier/d-1")).success


class FakeReceiver:
    """A fake receiver of answers: records them, and responds as the test says."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        self.headers: dict[str, str] = {}

    async def take(self, request: Request) -> Response:
        self.posts.append((dict(request.headers), await request.body()))
        return Response(status_code=self.status, headers=self.headers)


@pytest.fixture
async def receiver():
    fake = FakeReceiver()
    app = Starlette(routes=[Route("/answers", fake.take, methods=["POST"])])
    with listening() as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]))
            await until(lambda: server.started)
            fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}/answers"
            yield fake
            server.should_exit = True


async def calling_back(url: str, clock: ManualClock, **more: str) -> WebhookAdapter:
    route = {"secret": SECRET, "callback_url": url, "callback_secret": OTHER, **more}
    adapter = WebhookAdapter(config(pier=route), clock=clock)
    adapter.set_message_handler(FakeGateway())
    await adapter.connect()
    return adapter


async def test_a_callback_gets_the_answer_signed_and_under_one_key(receiver, clock) -> None:
    adapter = await calling_back(receiver.url, clock)
    for _ in range(2):
        told = {"answers": ["pier/d-1"], "final": True, "dedupe_key": "row-7"}
        assert (await adapter.send("pier/north", "Done", None, told)).success
    await adapter.disconnect()
    assert len(receiver.posts) == 2
    headers, body = receiver.posts[0]
    assert {one["x-postroom-delivery"] for one, _ in receiver.posts} == {"row-7"}
    assert headers["x-postroom-signature"] == sign(OTHER, headers["x-postroom-timestamp"], body)
    assert json.loads(body) == {
        "route": "pier",
        "conversation": "north",
        "deliveries": ["d-1"],
        "text": "Done",
        "final": True,
    }


@each_row(
    "status, headers, kind, wait",
    [
        (400, {}, SendErrorKind.BAD_FORMAT, None),
        (401, {}, SendErrorKind.FORBIDDEN, None),
        (403, {}, SendErrorKind.FORBIDDEN, None),
        (404, {}, SendErrorKind.NOT_FOUND, None),
        (307, {"Location": "http://127.0.0.1:1/else"}, SendErrorKind.NOT_FOUND, None),
        (413, {}, SendErrorKind.TOO_LONG, None),
        (429, {"Retry-After": "7"}, SendErrorKind.RATE_LIMITED, 7_000),
        (503, {"Retry-After": "soon"}, SendErrorKind.TRANSIENT, None),
        (500, {}, SendErrorKind.UNKNOWN, None),
        (504, {}, SendErrorKind.UNKNOWN, None),
    ],
)
async def test_what_the_callback_answers_says_what_follows(
    receiver, clock, status, headers, kind, wait
) -> None:
    receiver.status, receiver.headers, known = status, headers, len(receiver.posts)
    adapter = await calling_back(receiver.url, clock)
    result = await adapter.send("pier", "Done", None, {"final": True})
    await adapter.disconnect()
    assert (result.success, result.error_kind, result.retry_after_ms) == (False, kind, wait)
    assert len(receiver.posts) == known + 1
    assert receiver.url not in (result.error or "")


async def test_a_callback_that_is_not_there_has_not_taken_it(clock) -> None:
    with listening() as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/answers"
    adapter = await calling_back(url, clock)
    result = await adapter.send("pier", "Done")
    await adapter.disconnect()
    assert result.error_kind is SendErrorKind.TRANSIENT
    assert (await adapter.send("pier", "Done")).error_kind is SendErrorKind.TRANSIENT


async def test_a_callback_that_hangs_up_in_the_middle_may_have_taken_it(clock) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        adapter = await calling_back(f"http://127.0.0.1:{port}/answers", clock)
        result = await adapter.send("pier", "Done")
        await adapter.disconnect()
    assert result.error_kind is SendErrorKind.UNKNOWN


def test_a_wait_is_read_as_seconds_or_as_a_date() -> None:
    now = 1_700_000_000_000
    assert classify_response(429, "Tue, 14 Nov 2023 22:13:25 GMT", now=now).retry_after_ms == 5_000
    assert classify_response(429, "Tue, 14 Nov 2023 22:13:15 GMT", now=now).retry_after_ms == 0
    assert classify_response(429, "99999999", now=now).retry_after_ms == 3_600_000
    assert classify_response(429, "-1", now=now).retry_after_ms is None


# Settings.


@each_row(
    "extra",
    [
        {},
        {"routes": {}},
        {"routes": []},
        {"routes": {"a b": {"secret": SECRET}}},
        {"routes": {"pier": {}}},
        {"routes": {"pier": {"secret": "short"}}},
        {"routes": {"pier": {"secret": SECRET, "scheme": "md5"}}},
        {"routes": {"pier": {"secret": SECRET, "colour": "red"}}},
        {"routes": {"pier": {"secret": SECRET, "prompt": 1}}},
        {"routes": {"pier": {"secret": SECRET}}, "colour": "red"},
        {"routes": {"pier": {"secret": SECRET}}, "callback_timeout_s": 0},
        {"routes": {"pier": {"secret": SECRET}}, "callback_timeout_s": True},
        *(
            {"routes": {"pier": {"secret": SECRET, "callback_url": url}}}
            for url in (
                "http://example.org/x",
                "http://127.0.0.1.example.org/",
                "ftp://127.0.0.1/",
                "https://me:word@example.org/",
                "https://",
                "https://[::1/",
                "file:///etc/passwd",
                "https://example.org/ x",
                "https://example.org/#x",
            )
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(extra) -> None:
    with pytest.raises(ConfigError) as refused:
        table_of(WebhookOptions, **extra)
    assert refused.value.remedy
    assert SECRET not in str(refused.value.as_dict())


def test_secrets_are_not_shown() -> None:
    route = HookRoute(name="pier", secret=SECRET, callback_url="https://example.org/?key=hidden")
    assert SECRET not in repr(route)
    assert "hidden" not in repr(route)


async def test_a_callback_without_an_http_client_names_the_extra(monkeypatch, clock) -> None:
    real = builtins.__import__

    def without(name: str, *rest, **more):
        if name == "httpx2":
            raise ImportError("no httpx2", name="httpx2")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    adapter = WebhookAdapter(
        config(pier={"secret": SECRET, "callback_url": "https://example.org/"}), clock=clock
    )
    with pytest.raises(MissingExtra) as missing:
        await adapter.connect()
    assert missing.value.remedy == await asyncio.to_thread(install_command, "openai")
    plain = WebhookAdapter(config(), clock=clock)
    await plain.connect()
    assert plain.liveness.state is AdapterState.CONNECTED
    await plain.disconnect()
