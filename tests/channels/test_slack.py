"""The Slack adapter, against a fake Slack on loopback and requests that the test signs."""

import asyncio
import contextlib
import gc
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from channels.chat_listener import Listener, eventually
from channels.fake_slack import (
    ANN,
    APP_TOKEN,
    BEN,
    BOT,
    BOT_ID,
    BOT_TOKEN,
    CHANNEL,
    DM,
    SECRET,
    TEAM,
    TICKET,
    FakeSlack,
    Fault,
    callback,
    envelope,
    form,
    inbound,
    message,
    pressed,
    signed,
    slash,
)
from channels.fetching import fetched, sending
from channels.http_room import endless, status_of
from platform_tables import table_of
from postroom.contracts.errors import (
    ConfigError,
    InvalidArgument,
    ServerUnavailable,
    StoreUnavailable,
    TooLarge,
)
from postroom.gateway.capabilities import RateLimits
from postroom.gateway.events import (
    Attachment,
    Button,
    Card,
    MessageEvent,
    MessageType,
    SendErrorKind,
    SendResult,
)
from postroom.gateway.platforms import slack_library
from postroom.gateway.platforms.base import AdapterState
from postroom.gateway.platforms.slack import (
    Bot,
    Edit,
    Malformed,
    NewMessage,
    Rules,
    SlackAdapter,
    SlackOptions,
    from_slack,
    read,
    to_mrkdwn,
)
from postroom.gateway.session import Platform, SessionSource, build_session_key
from postroom.testing import ManualClock
from table_rows import each_row

ROOT = "1700000001.000001"


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        yield server


@pytest.fixture
def gateway() -> Listener:
    return Listener()


class Hurried(SlackAdapter):
    """One that says things as fast as the tests like."""

    capabilities = replace(SlackAdapter.capabilities, rates=RateLimits())


def made(fake: FakeSlack | None, clock: ManualClock, **words: Any) -> SlackAdapter:
    base = {} if fake is None else {"base_url": fake.url}
    given = {"token": BOT_TOKEN, "api_key": APP_TOKEN, **base, **words}
    return Hurried(table_of(SlackOptions, **given), clock=clock, timer=clock)


@asynccontextmanager
async def connected(adapter: SlackAdapter, gateway: Listener | None = None) -> AsyncIterator[SlackAdapter]:
    if gateway is not None:
        adapter.set_message_handler(gateway)
    async with asyncio.timeout(60):
        await adapter.connect()
    yield adapter
    async with asyncio.timeout(60):
        await adapter.disconnect()


@pytest.fixture
async def adapter(fake: FakeSlack, clock: ManualClock, gateway: Listener) -> AsyncIterator[SlackAdapter]:
    """A bot in Socket Mode that also has a signing secret."""
    found = made(fake, clock, signing_secret=SECRET)
    async with connected(found, gateway):
        await eventually(lambda: clock.sleeping == 1)  # until its next heartbeat
        yield found


def door(adapter: SlackAdapter) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=Starlette(routes=list(adapter.routes())))
    return httpx2.AsyncClient(transport=transport, base_url="http://gateway")


async def knock(adapter: SlackAdapter, body: bytes, headers: dict[str, str], **words: str) -> httpx2.Response:
    kind = {"Content-Type": words.get("kind", "application/json")}
    async with asyncio.timeout(60), door(adapter) as client:
        return await client.post("/slack", content=body, headers={**kind, **headers})


# Connecting.


async def test_the_account_is_team_and_bot_and_receiving_begins(adapter, fake) -> None:
    assert adapter.account == f"{TEAM}-{BOT}"
    assert adapter.liveness.state is AdapterState.CONNECTED
    assert len(fake.live) == 1
    assert adapter.lock_identity() == APP_TOKEN


@each_row(
    "scopes, named",
    [("im:history,commands", "chat:write"), ("", "chat:write"), ("chat:write,files:read", "im:history")],
)
async def test_a_missing_scope_is_named_with_its_remedy(fake, clock, scopes, named) -> None:
    fake.scopes = scopes
    adapter = made(fake, clock)
    with pytest.raises(ConfigError, match=named) as caught:
        await adapter.connect()
    assert named in caught.value.remedy
    assert adapter.liveness.state is AdapterState.STOPPED


async def test_a_message_is_marked_as_seen_until_the_mark_is_taken_back(adapter, fake) -> None:
    marked = await adapter.react("C1", ROOT)
    assert marked.success
    assert (await adapter.react("C1", ROOT, takes_back=ROOT)).success
    wanted = {"channel": "C1", "timestamp": ROOT, "name": "eyes"}
    assert [(call.method, call.body) for call in fake.calls if "reactions" in call.method] == [
        ("reactions.add", wanted),
        ("reactions.remove", wanted),
    ]
    assert (await adapter.react("C1", "a command")).error_kind is SendErrorKind.NOT_FOUND
    fake.will("reactions.add", Fault(body={"ok": False, "error": "already_reacted"}))
    assert (await adapter.react("C1", ROOT)).success


async def test_a_bot_without_the_scope_for_reactions_marks_nothing(fake, clock) -> None:
    for told in (None, "chat:write,im:history,files:read,files:write"):
        fake.scopes = told
        adapter = made(fake, clock)
        await adapter.connect()
        assert adapter.may_react is (told is None)
        fake.will(
            "reactions.add", Fault(body={"ok": False, "error": "missing_scope", "needed": "reactions:write"})
        )
        assert (await adapter.react("C1", ROOT)).error_kind is SendErrorKind.FORBIDDEN
        assert not adapter.may_react
        await adapter.disconnect()


@each_row(
    "method, body, wanted, named",
    [
        ("auth.test", {"ok": False, "error": "invalid_auth"}, ConfigError, "bot token"),
        ("auth.test", {"ok": False, "error": "account_inactive"}, ConfigError, "bot token"),
        ("auth.test", {"ok": False, "error": "internal_error"}, ServerUnavailable, "internal_error"),
        ("auth.test", {"ok": True, "user_id": ""}, ServerUnavailable, "the bot's user id"),
        ("apps.connections.open", {"ok": False, "error": "invalid_auth"}, ConfigError, "app token"),
        (
            "apps.connections.open",
            {"ok": False, "error": "missing_scope", "needed": "connections:write"},
            ConfigError,
            "connections:write",
        ),
        (
            "apps.connections.open",
            {"ok": True, "url": "wss://evil.example/"},
            ServerUnavailable,
            "does not belong to Slack",
        ),
        ("apps.connections.open", b"<html>", ServerUnavailable, "answer_lost"),
    ],
)
async def test_what_stops_a_connect_is_said(fake, clock, method, body, wanted, named) -> None:
    fake.will(method, Fault(body=body))
    adapter = made(fake, clock)
    with pytest.raises(wanted, match=named):
        await adapter.connect()
    assert adapter.liveness.state is AdapterState.STOPPED


async def test_a_rate_limit_at_connect_is_to_be_tried_again(fake, clock) -> None:
    fake.will("auth.test", Fault(429, {}, {"Retry-After": "7"}))
    with pytest.raises(ServerUnavailable) as caught:
        await made(fake, clock).connect()
    assert caught.value.details["retry_after_ms"] == 7_000


@each_row(
    "hello, wanted",
    [
        ({"type": "disconnect", "reason": "link_disabled"}, ConfigError),
        ({"type": "disconnect", "reason": "too_many_websockets"}, ServerUnavailable),
        ("not json", ServerUnavailable),
    ],
)
async def test_a_socket_without_a_hello_is_no_connection(fake, clock, hello, wanted) -> None:
    fake.hello = hello
    with pytest.raises(wanted):
        await made(fake, clock).connect()
    await eventually(lambda: not fake.live)


@each_row(
    "words",
    [
        {"token": None},
        {"token": " "},
        {"token": APP_TOKEN},
        {"api_key": BOT_TOKEN},
        {"api_key": None},
        {"colour": "red"},
        {"base_url": "http://slack.com/api"},
        {"base_url": "ftp://slack.com"},
        {"base_url": "https://[bad"},
        {"signing_secret": ""},
        {"command": "postroom"},
        {"reply_in_threads": "yes"},
        {"timeout_ms": 0},
        {"timeout_ms": True},
        {"proxy": 7},
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(clock, words) -> None:
    with pytest.raises(ConfigError) as caught:
        made(None, clock, **words)
    assert caught.value.remedy
    assert "very-secret" not in f"{caught.value} {caught.value.value}"


async def test_certificates_are_checked_and_the_proxy_is_used_where_slack_is_far(clock) -> None:
    config = SlackOptions(token=BOT_TOKEN, api_key=APP_TOKEN, proxy="http://proxy.example:3128")
    api = await asyncio.to_thread(config.api, BOT_TOKEN)
    tls = api.network.tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (api.network.base_url, api.network.proxy) == ("https://slack.com/api", "http://proxy.example:3128")
    await api.close()


# Socket Mode.


async def test_a_direct_message_is_read_whole(adapter, fake, gateway) -> None:
    await fake.wires[0].say(inbound("e1", "hi"))
    await eventually(lambda: fake.acked == ["e1"])
    (got,) = gateway.inbound
    assert (got.text, got.message_id, got.timestamp) == ("hi", "1700000001.000100", 1_700_000_001_000)
    assert got.source == SessionSource(
        platform=Platform.SLACK, chat_id=DM, chat_type="dm", user_id=ANN, account=f"{TEAM}-{BOT}"
    )
    assert got.addressed


@each_row(
    "frame",
    [
        "not json",
        "[]",
        "[" * 100_000,
        b"\x00\xff",
        {"type": "events_api", "payload": {}},
        envelope("bad", None),
        envelope("bad", {}),
        envelope("bad", {"event": "text"}),
        envelope("bad", callback(message(ts="x"))),
        envelope("bad", callback(message(ts=None))),
        envelope("bad", callback(message(user=None))),
        envelope("bad", callback(message(user={"id": ANN}))),
        envelope("bad", callback(message(channel=""))),
        envelope("bad", callback(message(channel=7))),
        envelope("bad", callback(message(text=["x"]))),
        envelope("bad", callback(message(thread_ts={"a": 1}))),
        envelope("bad", callback({"type": "message", "subtype": "message_changed", "channel": DM})),
        envelope("bad", callback({"type": "message", "subtype": "message_deleted", "channel": DM})),
        envelope("bad", {"command": "stop"}, "slash_commands"),
        envelope("bad", slash(trigger_id=""), "slash_commands"),
        envelope("bad", {**pressed(), "actions": 7}, "interactive"),
        envelope("bad", {**pressed(), "channel": None}, "interactive"),
        envelope("bad", {**pressed(), "container": {}}, "interactive"),
        envelope("bad", pressed(value=""), "interactive"),
    ],
)
async def test_what_cannot_be_read_is_counted_acked_and_passed_over(adapter, fake, gateway, frame) -> None:
    refused, known, acked = adapter.liveness.refused, len(gateway.texts), len(fake.acked)
    await fake.wires[0].say(frame)
    await fake.wires[0].say(inbound("good"))
    await eventually(lambda: "good" in fake.acked[acked:])
    has_id = isinstance(frame, dict) and "envelope_id" in frame
    assert fake.acked[acked:] == (["bad", "good"] if has_id else ["good"])
    assert adapter.liveness.refused == refused + 1
    assert gateway.texts[known:] == ["hello"]


NOT_SAID = (
    callback(message(user=BOT)),
    callback(message(subtype="bot_message", user=None, bot_id=BOT_ID)),
    callback(message(subtype="channel_join")),
    callback(message(subtype="message_replied")),
    callback({"type": "reaction_added", "user": ANN}),
    callback({"type": "message", "subtype": ["x"]}),
)


async def test_our_own_messages_and_what_is_no_message_are_passed_over(adapter, fake, gateway) -> None:
    for number, payload in enumerate(NOT_SAID):
        await fake.wires[0].say(envelope(f"e{number}", payload))
    await fake.wires[0].say(envelope("new", {}, "new_thing"))
    await fake.wires[0].say({"type": "hello"})
    await eventually(lambda: len(fake.acked) == len(NOT_SAID) + 1)
    assert (gateway.happened, adapter.liveness.refused) == ([], 0)


async def test_when_slack_asks_us_to_move_the_next_connection_stands_before_the_old_is_left(
    adapter, fake, gateway, clock
) -> None:
    old = fake.wires[0]
    await old.say(inbound("e0", "zero"))
    await eventually(lambda: fake.acked == ["e0"])
    await old.say({"type": "disconnect", "reason": "refresh_requested", "debug_info": {}})
    await eventually(lambda: len(fake.wires) == 2)
    assert not old.closed
    await old.say(inbound("e1", "one"))
    await eventually(lambda: old.acked == ["e0", "e1"])
    await fake.wires[1].say(inbound("e2", "two"))
    await eventually(lambda: fake.wires[1].acked == ["e2"])
    assert gateway.texts == ["zero", "one", "two"]
    assert adapter.liveness.state is AdapterState.CONNECTED
    clock.advance(timedelta(milliseconds=slack_library.LEAVE_MS))
    await eventually(lambda: old.closed)
    assert len(fake.live) == 1


async def test_messages_on_the_old_connection_go_before_those_on_the_next(adapter, fake, gateway) -> None:
    old = fake.wires[0]
    await old.say(inbound("e0", "zero"))
    await eventually(lambda: fake.acked == ["e0"])
    gateway.gate = asyncio.Event()
    for number in range(1, 6):
        await old.say(inbound(f"e{number}", str(number)))
    await old.say({"type": "disconnect", "reason": "warning"})
    await eventually(lambda: len(fake.wires) == 2)
    await fake.wires[1].say(inbound("e6", "6"))
    await (await fake.wires[1].peer.ping())
    gateway.gate.set()
    await eventually(lambda: fake.wires[1].acked == ["e6"])
    assert gateway.texts == ["zero", "1", "2", "3", "4", "5", "6"]


async def test_a_cut_is_mended_after_pauses_that_grow(adapter, fake, gateway, clock) -> None:
    failing = Fault(body={"ok": False, "error": "service_unavailable"})
    fake.will("apps.connections.open", failing, failing)

    def opened() -> int:
        return len(fake.called("apps.connections.open"))

    fake.wires[0].cut()
    for tries, pause in enumerate((500, 1_000, 2_000), 1):
        # One sleeps for the next try, and one for the heartbeat of the connection that is gone.
        await eventually(lambda tries=tries: opened() == tries and clock.sleeping == 2)
        clock.advance(timedelta(milliseconds=pause // 2 - 1))
        assert clock.sleeping == 2
        clock.advance(timedelta(milliseconds=pause // 2 + 1))
        await eventually(lambda tries=tries: opened() == tries + 1)
    await eventually(lambda: adapter.liveness.state is AdapterState.CONNECTED)
    await fake.live[0].say(inbound("e1", "back"))
    await eventually(lambda: gateway.texts == ["back"])


async def test_after_a_connection_that_carried_something_pauses_are_short_again(adapter, fake, clock) -> None:
    for number in range(4):
        if number == 3:
            await fake.live[0].say(inbound("e1"))
            await eventually(lambda: fake.acked == ["e1"])
        fake.live[0].cut()
        await eventually(lambda: adapter.liveness.state is AdapterState.RECONNECTING)
        clock.advance(timedelta(seconds=0.5 if number == 3 else 3))
        await eventually(lambda: adapter.liveness.state is AdapterState.CONNECTED and fake.live)
        assert adapter.liveness.error is None


async def test_slack_that_asks_us_to_move_again_and_again_makes_no_storm(adapter, fake, clock) -> None:
    await fake.wires[0].say({"type": "disconnect", "reason": "refresh_requested"})
    await eventually(lambda: clock.sleeping == 2)
    assert len(fake.wires) == 1
    clock.advance(timedelta(seconds=0.5))
    await eventually(lambda: len(fake.wires) == 2)


async def test_the_wait_that_slack_asks_for_is_kept(adapter, fake, clock) -> None:
    fake.will("apps.connections.open", Fault(429, {"ok": False}, {"Retry-After": "40"}))
    fake.wires[0].cut()
    await eventually(lambda: adapter.liveness.state is AdapterState.RECONNECTING)
    assert adapter.liveness.error == "the connection to Slack was lost"
    clock.advance(timedelta(seconds=1))
    await eventually(lambda: len(fake.called("apps.connections.open")) == 2 and clock.sleeping == 2)
    assert "Slack cannot be reached" in str(adapter.liveness.error)
    clock.advance(timedelta(seconds=13))
    assert clock.sleeping == 2
    clock.advance(timedelta(seconds=27))
    await eventually(lambda: adapter.liveness.state is AdapterState.CONNECTED)


async def test_a_connection_that_says_nothing_is_left(adapter, fake, clock, monkeypatch) -> None:
    monkeypatch.setattr(slack_library, "CLOSE_S", 0.05)
    fake.wires[0].cut()
    await eventually(lambda: adapter.liveness.state is AdapterState.RECONNECTING)
    clock.advance(timedelta(seconds=1))
    await eventually(lambda: fake.live)
    wire = fake.live[0]
    await eventually(lambda: adapter.liveness.state is AdapterState.CONNECTED)
    wire.fall_silent()
    for _ in range(2):
        clock.advance(timedelta(milliseconds=slack_library.HEARTBEAT_MS))
        await asyncio.sleep(0)
    await eventually(lambda: adapter.liveness.state is AdapterState.RECONNECTING)


async def test_answered_pings_show_that_receiving_lives(adapter, fake, clock) -> None:
    clock.advance(timedelta(milliseconds=slack_library.HEARTBEAT_MS))
    await eventually(lambda: adapter.liveness.inbound_at == clock.now())
    assert adapter.liveness.outbound_at is None


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"ok": False, "error": "token_revoked"}, "credentials_refused"),
        ({"ok": False, "error": "missing_scope", "needed": "connections:write"}, "refused"),
    ],
)
async def test_an_app_token_that_is_refused_later_ends_receiving(adapter, fake, clock, answer, code) -> None:
    fake.will("apps.connections.open", Fault(body=answer))
    fake.wires[0].cut()
    await eventually(lambda: adapter.liveness.state is AdapterState.RECONNECTING)
    clock.advance(timedelta(seconds=1))
    await eventually(lambda: adapter.liveness.state is AdapterState.FAILED)
    assert (adapter.liveness.error_code, adapter.liveness.retryable) == (code, code == "refused")


async def test_socket_mode_that_is_switched_off_ends_receiving(adapter, fake) -> None:
    await fake.wires[0].say({"type": "disconnect", "reason": "link_disabled"})
    await eventually(lambda: adapter.liveness.state is AdapterState.FAILED)
    assert adapter.liveness.error_code == "socket_mode_disabled"
    await eventually(lambda: not fake.live)


async def test_too_many_sockets_are_waited_out(adapter, fake, clock) -> None:
    await fake.wires[0].say({"type": "disconnect", "reason": "too_many_websockets"})
    await eventually(lambda: adapter.liveness.state is AdapterState.RECONNECTING)
    assert len(fake.wires) == 1
    clock.advance(timedelta(seconds=1))
    await eventually(lambda: adapter.liveness.state is AdapterState.CONNECTED)
    assert len(fake.live) == 1


# What a message is.


async def received(fake: FakeSlack, gateway: Listener, *events: dict[str, Any]) -> list[MessageEvent]:
    for number, event in enumerate(events):
        await fake.wires[0].say(envelope(f"e{number}", callback(event)))
    await eventually(lambda: len(fake.acked) == len(events))
    return gateway.inbound


PLACES = (
    (message("plain"), "dm", None, True, "plain"),
    (message("x", thread_ts=ROOT), "dm", ROOT, True, "x"),
    (message("x", channel="X0ODD", channel_type="im"), "dm", None, True, "x"),
    (message("plain", channel=CHANNEL), "channel", None, False, "plain"),
    (message(f"<@{BOT}> do it", channel=CHANNEL), "channel", None, True, "do it"),
    (message(f"<@{BOT}|bot>: do it", channel=CHANNEL), "channel", None, True, "do it"),
    (message(f"ask <@{BOT}> to", channel=CHANNEL), "channel", None, True, "ask to"),
    (message(f"<@{BEN}> hi", channel=CHANNEL), "channel", None, False, f"@{BEN} hi"),
    (message("x", channel=CHANNEL, thread_ts=ROOT), "thread", ROOT, False, "x"),
    (message("x", channel=CHANNEL, thread_ts=ROOT, parent_user_id=BOT), "thread", ROOT, True, "x"),
    (
        message("x", channel=CHANNEL, thread_ts=ROOT, subtype="thread_broadcast"),
        "thread",
        ROOT,
        False,
        "x",
    ),
    (message("x", ts=ROOT, channel=CHANNEL, thread_ts=ROOT), "channel", None, False, "x"),
    (message("x", channel="G0PRIVATE", channel_type="mpim"), "channel", None, False, "x"),
    (message(f"<@{BOT}> /stop now", channel=CHANNEL), "channel", None, True, "/stop now"),
    (message(None), "dm", None, True, ""),
)


async def test_where_a_message_stands_and_whom_it_is_for(adapter, fake, gateway) -> None:
    got = await received(fake, gateway, *(event for event, *_ in PLACES))
    for one, (event, chat_type, thread, addressed, text) in zip(got, PLACES, strict=True):
        told = (one.source.chat_type, one.source.thread_id, one.addressed, one.text, one.reply_to_message_id)
        assert told == (chat_type, thread, addressed, text, thread), event
        assert one.source.user_id == ANN


async def test_a_mention_and_its_event_are_one_message_of_one_session(adapter, fake, gateway) -> None:
    words = {"channel": "G0MANY", "text": f"<@{BOT}> hi"}
    mention = {**message(**words), "type": "app_mention"}
    del mention["channel_type"]
    first, second = await received(fake, gateway, message(**words, channel_type="mpim"), mention)
    assert (first.message_id, first.text, first.addressed) == (
        second.message_id,
        second.text,
        second.addressed,
    )
    assert build_session_key(first.source) == build_session_key(second.source)


async def test_other_bots_are_told_apart(adapter, fake, gateway) -> None:
    (got,) = await received(fake, gateway, message(subtype="bot_message", user=None, bot_id="B0OTHER"))
    assert (got.source.user_id, got.source.is_bot) == ("B0OTHER", True)


async def test_with_threads_each_message_in_a_channel_begins_one(fake, clock, gateway) -> None:
    adapter = made(fake, clock, reply_in_threads=True)
    adapter.set_message_handler(gateway)
    await adapter.connect()
    first, reply, direct = await received(
        fake,
        gateway,
        message("a", ts=ROOT, channel=CHANNEL),
        message("b", channel=CHANNEL, thread_ts=ROOT),
        message("c"),
    )
    assert build_session_key(first.source) == build_session_key(reply.source)
    assert direct.source.thread_id is None
    await adapter.send(CHANNEL, "x", ROOT)
    await adapter.send(DM, "x", ROOT)
    assert [call.body.get("thread_ts") for call in fake.called("chat.postMessage")] == [ROOT, None]
    await adapter.disconnect()


async def test_files_are_named_by_their_address_and_a_hostile_name_is_only_data(
    adapter, fake, gateway
) -> None:
    kinds = {"image/png": "photo", "video/mp4": "video", "audio/mpeg": "audio", "application/pdf": "document"}
    files: list[dict[str, Any]] = [
        {"id": "F1", "name": "../../etc/passwd", "mimetype": mime, "size": 3, "url_private": f"{fake.url}/f"}
        for mime in kinds
    ]
    voice = {**files[2], "subtype": "slack_audio", "url_private_download": f"{fake.url}/d"}
    gone = {"id": "F9", "mode": "tombstone", "url_private": "x"}
    (got,) = await received(
        fake, gateway, message("", subtype="file_share", files=[*files, voice, gone, {"id": "F2"}])
    )
    assert [one.kind.value for one in got.media] == [*kinds.values(), "voice"]
    assert got.message_type is MessageType.PHOTO
    assert got.media[0] == Attachment(
        kind=MessageType.PHOTO, ref=f"{fake.url}/f", mime="image/png", name="../../etc/passwd", size=3
    )
    assert got.media[-1].ref == f"{fake.url}/d"
    assert MessageEvent.from_body(json.loads(json.dumps(got.to_body()))).media == got.media


async def test_a_file_in_an_unknown_form_is_named_and_the_words_are_read(adapter, fake, gateway) -> None:
    odd: tuple[Any, ...] = ("all", [7], [{"mode": "tombstone"}], [{"url_private": ["x"]}])
    got = await received(fake, gateway, *(message("look", files=files) for files in odd))
    told = [(one.text, one.media, one.unread) for one in got]
    assert told == [("look", (), ("a file that Slack does not provide",))] * len(odd)


def change(text: str, before: str = "old", **words: Any) -> dict[str, Any]:
    inner = {"type": "message", "user": ANN, "text": text, "ts": ROOT, **words}
    return {
        "type": "message",
        "subtype": "message_changed",
        "channel": CHANNEL,
        "channel_type": "channel",
        "ts": "1700000009.000900",
        "message": {**inner, "edited": {"user": ANN, "ts": "1700000009.000000"}},
        "previous_message": {"type": "message", "user": ANN, "text": before, "ts": ROOT},
    }


async def test_an_edit_is_told_with_the_messages_own_id(adapter, fake, gateway) -> None:
    await received(fake, gateway, change(f"<@{BOT}> new", thread_ts="1700000000.000001"))
    (got,) = gateway.edits
    assert (got.text, got.message_id, got.addressed) == ("new", ROOT, True)
    assert (got.source.user_id, got.source.thread_id) == (ANN, "1700000000.000001")
    assert gateway.inbound == []


async def test_unfurled_links_and_our_own_edits_are_no_edits(adapter, fake, gateway) -> None:
    ours = (change("x", user=BOT), change("x", bot_id=BOT_ID), change("x", subtype="channel_topic"))
    await received(fake, gateway, change("same", "same"), *ours)
    assert (gateway.happened, adapter.liveness.refused) == ([], 0)


async def test_a_deletion_is_told_also_of_a_threads_first_message(adapter, fake, gateway) -> None:
    plain = {
        "type": "message",
        "subtype": "message_deleted",
        "channel": CHANNEL,
        "channel_type": "channel",
        "ts": "1700000009.000900",
        "deleted_ts": ROOT,
        "previous_message": {
            "type": "message",
            "user": ANN,
            "text": "x",
            "ts": ROOT,
            "thread_ts": "1700000000.1",
        },
    }
    own = {**plain, "previous_message": {"user": BOT, "ts": ROOT}}
    unknown = {name: value for name, value in plain.items() if name != "previous_message"}
    tombstone = change("This message was deleted.", subtype="tombstone", user="USLACKBOT", thread_ts=ROOT)
    await received(fake, gateway, plain, own, unknown, tombstone)
    told = [(source.user_id, source.thread_id, gone) for source, gone in gateway.withdrawn]
    assert told == [(ANN, "1700000000.1", ROOT), (None, None, ROOT), (ANN, None, ROOT)]


@each_row(
    "command, text, said",
    [
        ("/stop", "", "/stop"),
        ("/queue", "do &lt;this&gt; next", "/queue do <this> next"),
        ("/postroom", "stop", "/stop"),
        ("/postroom", "/status now", "/status now"),
        ("/postroom", "", "/help"),
    ],
)
async def test_slash_commands_become_commands(adapter, fake, gateway, command, text, said) -> None:
    known = len(fake.acked)
    await fake.wires[0].say(envelope("e1", slash(command, text), "slash_commands"))
    await eventually(lambda: len(fake.acked) > known)
    got = gateway.inbound[-1]
    assert (got.text, got.message_type, got.addressed) == (said, MessageType.COMMAND, True)
    assert got.message_id == "command:13345.738.8088"
    assert got.source == SessionSource(
        platform=Platform.SLACK,
        chat_id=CHANNEL,
        chat_name="general",
        chat_type="channel",
        user_id=ANN,
        user_name="ann",
        account=adapter.account,
    )


async def test_a_pressed_button_is_told_and_its_note_is_shown_to_whoever_pressed(
    adapter, fake, gateway
) -> None:
    gateway.note = "Approved <you>"
    payload = pressed()
    payload["message"]["thread_ts"] = ROOT
    await fake.wires[0].say(envelope("e1", payload, "interactive"))
    await eventually(lambda: fake.called("chat.postEphemeral"))
    assert fake.acked == ["e1"]
    (got,) = gateway.presses
    assert (got.value, got.message_id, got.press_id) == ("approve-1", "1700000002.000200", "99.88.77")
    assert (got.source.user_id, got.source.chat_type, got.source.thread_id) == (ANN, "thread", ROOT)
    assert not got.source.is_bot
    (shown,) = fake.called("chat.postEphemeral")
    assert shown.body == {"channel": CHANNEL, "user": ANN, "text": "Approved &lt;you&gt;", "thread_ts": ROOT}


async def test_presses_that_are_not_on_our_cards_are_passed_over(adapter, fake, gateway) -> None:
    await fake.wires[0].say(envelope("e1", pressed(action_id="other"), "interactive"))
    await fake.wires[0].say(envelope("e2", {"type": "view_submission"}, "interactive"))
    await eventually(lambda: fake.acked == ["e1", "e2"])
    assert gateway.happened == []


async def test_a_note_that_cannot_be_shown_does_no_harm(adapter, fake, gateway) -> None:
    gateway.note = "done"
    fake.will("chat.postEphemeral", Fault(body={"ok": False, "error": "user_not_in_channel"}))
    await fake.wires[0].say(envelope("e1", pressed(), "interactive"))
    await eventually(lambda: fake.called("chat.postEphemeral"))
    await fake.wires[0].say(inbound("e2"))
    await eventually(lambda: fake.acked == ["e1", "e2"])


# What goes out.


async def test_what_is_said_is_mrkdwn_in_its_thread_without_calling_anybody_out(adapter, fake, clock) -> None:
    told = {"thread_id": ROOT, "dedupe_key": "reply-1"}
    result = await adapter.send(CHANNEL, "**bold** [x](https://a.b/?q=1&r=2) <!channel> `a<b`", "1.2", told)
    assert result == SendResult.sent("1700000000.000001")
    (call,) = fake.called("chat.postMessage")
    assert call.body["text"] == "*bold* <https://a.b/?q=1&amp;r=2|x> &lt;!channel&gt; `a&lt;b`"
    assert (call.body["thread_ts"], call.body["channel"]) == (ROOT, CHANNEL)
    assert (call.body["unfurl_links"], call.body["unfurl_media"]) == (False, False)
    assert adapter.liveness.outbound_at == clock.now()


@each_row("reply_to", [None, ROOT, "command:1.2"])
async def test_an_answer_begins_no_thread_by_itself(adapter, fake, reply_to) -> None:
    await adapter.send(CHANNEL, "x", reply_to, {"thread_id": None})
    assert "thread_ts" not in fake.called("chat.postMessage")[-1].body


async def test_a_time_out_is_unknown(fake, clock) -> None:
    adapter = made(fake, clock, timeout_ms=60)
    await adapter.connect()
    fake.will("chat.postMessage", Fault(silent=True))
    assert (await adapter.send(CHANNEL, "x")).error_kind is SendErrorKind.UNKNOWN
    await adapter.disconnect()


@each_row(
    "fault, kind, wait",
    [
        (Fault(429, {"ok": False}, {"Retry-After": "30"}), SendErrorKind.RATE_LIMITED, 30_000),
        (Fault(429, b"", {"Retry-After": "soon"}), SendErrorKind.RATE_LIMITED, None),
        (
            Fault(200, {"ok": False, "error": "ratelimited"}, {"Retry-After": "2"}),
            SendErrorKind.RATE_LIMITED,
            2_000,
        ),
        (Fault(503, b"away"), SendErrorKind.TRANSIENT, None),
        (Fault(500, b"oops"), SendErrorKind.UNKNOWN, None),
        (Fault(504, b""), SendErrorKind.UNKNOWN, None),
        (Fault(200, b"<html>"), SendErrorKind.UNKNOWN, None),
        (Fault(200, b"x" * 5_000_000), SendErrorKind.UNKNOWN, None),
        (Fault(404, b"no"), SendErrorKind.FORBIDDEN, None),
        (Fault(302, b"", {"Location": "http://127.0.0.1:9/"}), SendErrorKind.UNKNOWN, None),
        (Fault(body={"ok": False, "error": "internal_error"}), SendErrorKind.UNKNOWN, None),
        (Fault(body={"ok": False, "error": "not_in_channel"}), SendErrorKind.FORBIDDEN, None),
        (Fault(body={"ok": False, "error": "is_archived"}), SendErrorKind.FORBIDDEN, None),
        (Fault(body={"ok": False, "error": "never_heard_of"}), SendErrorKind.FORBIDDEN, None),
        (Fault(body={"ok": False, "error": "channel_not_found"}), SendErrorKind.NOT_FOUND, None),
        (Fault(body={"ok": False, "error": "msg_too_long"}), SendErrorKind.TOO_LONG, None),
        (Fault(body={"ok": False, "error": "no_text"}), SendErrorKind.BAD_FORMAT, None),
        (Fault(body={"ok": False, "error": ["x"]}), SendErrorKind.FORBIDDEN, None),
        (Fault(body={"ok": "yes"}), SendErrorKind.UNKNOWN, None),
    ],
)
async def test_each_refusal_has_its_kind(fake, clock, fault, kind, wait) -> None:
    async with connected(made(fake, clock)) as adapter:
        fake.will("chat.postMessage", fault)
        result = await adapter.send(CHANNEL, "x")
        assert (result.success, result.error_kind, result.retry_after_ms) == (False, kind, wait)
        assert adapter.liveness.outbound_at is None
        assert adapter.liveness.state is AdapterState.CONNECTED


async def test_a_missing_scope_is_named_in_the_result(adapter, fake) -> None:
    fake.will("chat.postMessage", Fault(body={"ok": False, "error": "missing_scope", "needed": "chat:write"}))
    result = await adapter.send(CHANNEL, "x")
    assert result.error_kind is SendErrorKind.FORBIDDEN
    assert "chat:write" in (result.error or "")


async def test_a_bot_token_that_is_refused_later_ends_receiving(adapter, fake) -> None:
    fake.will("chat.postMessage", Fault(body={"ok": False, "error": "token_revoked"}))
    result = await adapter.send(CHANNEL, "x")
    assert result.error_kind is SendErrorKind.FORBIDDEN
    assert (adapter.liveness.state, adapter.liveness.error_code) == (AdapterState.FAILED, "token_refused")
    await eventually(lambda: not fake.live)


async def test_when_the_marks_are_refused_the_same_is_said_plainly(adapter, fake) -> None:
    fake.will("chat.postMessage", Fault(body={"ok": False, "error": "invalid_arguments"}))
    assert (await adapter.send(CHANNEL, "**a** <b>")).success
    first, second = fake.called("chat.postMessage")
    assert first.body["text"] == "*a* &lt;b&gt;"
    assert (second.body["text"], second.body["mrkdwn"]) == ("**a** &lt;b&gt;", False)


async def test_a_long_text_goes_whole_or_not_at_all(adapter, fake) -> None:
    limit = adapter.capabilities.limit
    assert (await adapter.send(CHANNEL, "a\ud800" * (limit // 2))).success
    (call,) = fake.called("chat.postMessage")
    assert call.body["text"] == "a?" * (limit // 2)
    assert (await adapter.send(CHANNEL, "&" * limit)).error_kind is SendErrorKind.TOO_LONG
    assert len(fake.posted) == 1


async def test_what_was_said_is_edited_and_taken_back(adapter, fake) -> None:
    sent = await adapter.send(CHANNEL, "one")
    assert sent.message_id is not None
    assert await adapter.edit_message(CHANNEL, sent.message_id, "**two**") == SendResult.sent(sent.message_id)
    assert fake.posted[sent.message_id]["text"] == "*two*"
    assert (await adapter.delete_message(CHANNEL, sent.message_id)).success
    assert fake.posted == {}
    gone = await adapter.delete_message(CHANNEL, sent.message_id)
    assert gone.error_kind is SendErrorKind.NOT_FOUND
    missing = await adapter.edit_message(CHANNEL, sent.message_id, "x")
    assert missing.error_kind is SendErrorKind.NOT_FOUND


async def test_an_edit_whose_marks_are_refused_is_plain(adapter, fake) -> None:
    sent = await adapter.send(CHANNEL, "one")
    fake.will("chat.update", Fault(body={"ok": False, "error": "invalid_blocks"}))
    assert (await adapter.edit_message(CHANNEL, sent.message_id or "", "**two**")).success
    assert fake.called("chat.update")[1].body["text"] == "**two**"


async def test_an_edit_that_is_longer_than_slacks_text_goes_into_blocks_with_its_fences(
    adapter, fake
) -> None:
    sent = await adapter.send(CHANNEL, "one")
    code = "```py\n" + "x = 1\n" * 1_000 + "```"
    assert (await adapter.edit_message(CHANNEL, sent.message_id or "", f"**look**\n\n{code}")).success
    (body,) = (call.body for call in fake.called("chat.update"))
    assert len(body["text"].encode()) <= 4_000
    texts = [block["text"]["text"] for block in body["blocks"]]
    assert texts[0].startswith("*look*")
    assert all(len(text) <= 3_000 and text.count("```") % 2 == 0 for text in texts)
    assert sum(text.count("x = 1") for text in texts) == 1_000
    assert all(block["expand"] for block in body["blocks"])


async def test_an_edit_that_fits_into_no_blocks_is_too_long(adapter, fake) -> None:
    sent = await adapter.send(CHANNEL, "one")
    result = await adapter.edit_message(CHANNEL, sent.message_id or "", "word " * 3_000)
    assert result.error_kind is SendErrorKind.TOO_LONG
    blank = await adapter.edit_message(CHANNEL, sent.message_id or "", " \n")
    assert blank.error_kind is SendErrorKind.BAD_FORMAT
    assert fake.called("chat.update") == []


CARD = Card(
    text="May I **delete** <it>?", buttons=(Button(label="Yes", value="ok-1"), Button(label="", value="no-1"))
)


async def test_a_card_has_buttons_until_it_is_answered(adapter, fake) -> None:
    sent = await adapter.send_card(CHANNEL, CARD, {"thread_id": ROOT, "dedupe_key": "card-1"})
    assert sent.message_id is not None
    body = fake.posted[sent.message_id]
    assert (body["thread_ts"], body["text"]) == (ROOT, "May I *delete* &lt;it&gt;?")
    section, actions = body["blocks"]
    assert section == {"type": "section", "expand": True, "text": {"type": "mrkdwn", "text": body["text"]}}
    assert [(one["value"], one["text"]["text"]) for one in actions["elements"]] == [
        ("ok-1", "Yes"),
        ("no-1", "…"),
    ]
    assert len({one["action_id"] for one in actions["elements"]}) == 2
    assert (await adapter.update_card(CHANNEL, sent.message_id, CARD.answered("Ann said yes"))).success
    assert [block["type"] for block in fake.posted[sent.message_id]["blocks"]] == ["section"]
    assert fake.posted[sent.message_id]["text"].endswith("Ann said yes")


async def test_a_large_card_is_cut_into_sections_and_rows(adapter, fake) -> None:
    buttons = tuple(Button(label="l" * 75, value=f"v{number}") for number in range(30))
    sent = await adapter.send_card(CHANNEL, Card(text="&" * 2_000 + "\n" + "b" * 100, buttons=buttons))
    blocks = fake.posted[sent.message_id or ""]["blocks"]
    texts = [block["text"]["text"] for block in blocks if block["type"] == "section"]
    assert "".join(texts).replace("\n", "") == "&amp;" * 2_000 + "b" * 100
    assert all(len(text) <= 3_000 and not text.startswith("amp;") for text in texts)
    assert [len(block["elements"]) for block in blocks if block["type"] == "actions"] == [25, 5]
    assert len(blocks[-1]["elements"][0]["text"]["text"]) == 75
    alike = (Button(label=f"{'l' * 75}{number}", value=f"v{number}") for number in range(2))
    sent = await adapter.send_card(CHANNEL, Card(text="Which?", buttons=tuple(alike)))
    shown = fake.posted[sent.message_id or ""]
    assert f"{'l' * 75}1: /v1" in str(shown), "labels that were cut would look the same"
    assert "actions" not in str(shown)


async def test_where_buttons_are_refused_the_text_says_what_to_answer(adapter, fake) -> None:
    fake.will("chat.postMessage", Fault(body={"ok": False, "error": "invalid_blocks"}))
    assert (await adapter.send_card(CHANNEL, CARD)).success
    assert "Yes: /ok-1" in fake.called("chat.postMessage")[1].body["text"]
    sent = await adapter.send(CHANNEL, "x")
    fake.will("chat.update", Fault(body={"ok": False, "error": "invalid_blocks_format"}))
    assert (await adapter.update_card(CHANNEL, sent.message_id or "", CARD)).success


# Files.

PHOTO = Attachment(kind=MessageType.PHOTO, ref="", mime="image/png", name="a.png")


def at(fake: FakeSlack, path: str) -> Attachment:
    return Attachment(kind=MessageType.PHOTO, ref=f"http://127.0.0.1:{fake.port}{path}", mime="image/png")


async def test_a_file_is_fetched_with_the_bots_token(adapter, fake) -> None:
    fake.files["/files/a"] = Fault(200, b"12345", {"Content-Type": "image/png"})
    assert await fetched(adapter, at(fake, "/files/a"), max_bytes=5) == b"12345"
    assert fake.calls[-1].headers["authorization"] == f"Bearer {BOT_TOKEN}"


@each_row(
    "ref",
    [
        "http://127.0.0.1:9/files/a",
        "http://localhost/files/a",
        "https://evil.example/a",
        "file:///etc/passwd",
        "http://[bad",
        "http://127.0.0.1:bad/",
        "",
    ],
)
async def test_a_file_that_does_not_lie_with_slack_is_not_touched(adapter, fake, ref) -> None:
    before = len(fake.calls)
    with pytest.raises(InvalidArgument):
        await fetched(adapter, Attachment(kind=MessageType.PHOTO, ref=ref), max_bytes=5)
    assert len(fake.calls) == before


@each_row(
    "url, own",
    [
        ("https://files.slack.com/files-pri/T-F/a.png", True),
        ("https://slack.com/x", True),
        ("https://SLACK.com:443/x", True),
        ("wss://wss-primary.slack.com/link/?ticket=1", True),
        ("http://files.slack.com/x", False),
        ("https://files.slack.com:8443/x", False),
        ("https://notslack.com/x", False),
        ("https://slack.com.evil.example/x", False),
        ("https://slack.com@evil.example/x", False),
        ("https://user@files.slack.com/x", False),
        ("https://evil.example\\.slack.com/x", False),
        ("https://evil.example#.slack.com/x", False),
        ("https://files.slack.com/a b", False),
        ("https://files.slack.com/\n", False),
        ("javascript:alert(1)", False),
    ],
)
def test_which_addresses_are_slacks_own(url, own) -> None:
    from postroom.gateway.platforms.slack_library import is_of_platform

    assert is_of_platform(url, "https://slack.com/api") is own


@each_row("headers", [{}, {"Content-Length": "6"}])
async def test_a_file_that_is_too_large_is_not_read_further(adapter, fake, headers) -> None:
    fake.files["/files/a"] = Fault(200, b"123456", {"Content-Type": "image/png", **headers})
    with pytest.raises(TooLarge):
        await fetched(adapter, at(fake, "/files/a"), max_bytes=5)


@each_row(
    "answer",
    [
        Fault(302, b"", {"Location": "https://evil.example/"}),
        Fault(403, b""),
        Fault(200, b"<html>log in", {"Content-Type": "text/html; charset=utf-8"}),
    ],
)
async def test_a_file_that_slack_does_not_give_says_what_may_be_missing(adapter, fake, answer) -> None:
    fake.files["/files/a"] = answer
    with pytest.raises(ServerUnavailable) as caught:
        await fetched(adapter, at(fake, "/files/a"), max_bytes=5_000)
    assert "files:read" in caught.value.remedy


async def test_a_file_cannot_be_fetched_when_the_answer_is_cut_or_nobody_is_connected(adapter, fake) -> None:
    fake.will("/files/a", Fault(lost=True))
    with pytest.raises(ServerUnavailable) as caught:
        await fetched(adapter, at(fake, "/files/a"), max_bytes=5)
    assert caught.value.__cause__ is None
    await adapter.disconnect()
    with pytest.raises(ServerUnavailable):
        await fetched(adapter, at(fake, "/files/a"), max_bytes=5)


async def test_a_file_is_sent_into_its_thread(adapter, fake) -> None:
    result = await adapter.send_media(CHANNEL, PHOTO, sending(b"\x89PNG"), "**look**", {"thread_id": ROOT})
    assert result == SendResult.sent()
    (asked,) = fake.called("files.getUploadURLExternal")
    assert asked.body == {"filename": "a.png", "length": "4"}
    (put,) = fake.called("/upload/one")
    assert put.raw == b"\x89PNG"
    assert "authorization" not in put.headers
    (completed,) = fake.called("files.completeUploadExternal")
    assert completed.body == {
        "files": [{"id": "F0NEW", "title": "a.png"}],
        "channel_id": CHANNEL,
        "thread_ts": ROOT,
        "initial_comment": "*look*",
    }


@each_row(
    "method, fault, kind",
    [
        ("files.getUploadURLExternal", Fault(lost=True), SendErrorKind.TRANSIENT),
        (
            "files.getUploadURLExternal",
            Fault(body={"ok": False, "error": "missing_scope"}),
            SendErrorKind.FORBIDDEN,
        ),
        (
            "files.getUploadURLExternal",
            Fault(body={"ok": True, "upload_url": "https://evil.example/", "file_id": "F"}),
            SendErrorKind.FORBIDDEN,
        ),
        ("/upload/one", Fault(lost=True), SendErrorKind.TRANSIENT),
        ("/upload/one", Fault(500, b""), SendErrorKind.TRANSIENT),
        ("/upload/one", Fault(413, b""), SendErrorKind.FORBIDDEN),
        ("files.completeUploadExternal", Fault(lost=True), SendErrorKind.UNKNOWN),
    ],
)
async def test_a_file_that_was_not_sent_says_whether_somebody_may_have_it(
    adapter, fake, method, fault, kind
) -> None:
    fake.will(method, fault)
    assert (await adapter.send_media(CHANNEL, PHOTO, sending(b"x"))).error_kind is kind


# Signed requests.


async def test_slacks_challenge_is_answered(adapter, clock) -> None:
    body = json.dumps({"type": "url_verification", "challenge": "3eZbrw1a", "token": "legacy"}).encode()
    response = await knock(adapter, body, signed(body, clock.now()))
    assert (response.status_code, response.text) == (200, "3eZbrw1a")


async def test_signed_events_commands_and_presses_are_taken_before_they_are_answered(
    adapter, clock, gateway
) -> None:
    kind = "application/x-www-form-urlencoded"
    event = json.dumps(callback(message("one"))).encode()
    assert (await knock(adapter, event, signed(event, clock.now()))).status_code == 200
    command = form(slash("/stop", "now"))
    assert (await knock(adapter, command, signed(command, clock.now()), kind=kind)).status_code == 200
    press = form({"payload": json.dumps(pressed())})
    answer = await knock(adapter, press, signed(press, clock.now()), kind=f"{kind}; charset=utf-8")
    assert (answer.status_code, answer.content) == (200, b"")
    assert gateway.texts == ["one", "/stop now"]
    assert [one.value for one in gateway.presses] == ["approve-1"]


async def test_a_request_that_was_not_kept_is_answered_so_that_slack_sends_it_again(
    adapter, clock, gateway
) -> None:
    body = json.dumps(callback(message("one"))).encode()
    gateway.failures = [StoreUnavailable("away"), RuntimeError("a defect")]
    statuses = [(await knock(adapter, body, signed(body, clock.now()))).status_code for _ in range(3)]
    assert statuses == [503, 503, 200]
    assert gateway.texts == ["one"]


async def test_requests_are_taken_one_after_another_in_the_order_they_came(adapter, clock, gateway) -> None:
    gate = gateway.gate = asyncio.Event()
    bodies = [json.dumps(callback(message(str(number)))).encode() for number in range(3)]
    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(knock(adapter, body, signed(body, clock.now())))
            for _ in range(50):
                await asyncio.sleep(0)
            gateway.gate = None  # the first is held up, and those that follow would not be
        assert gateway.texts == []
        gate.set()
    assert gateway.texts == ["0", "1", "2"]


BODY = json.dumps(callback(message("one"))).encode()


@each_row(
    "tampered",
    [
        lambda headers: {},
        lambda headers: {**headers, "X-Slack-Signature": "v0=00"},
        lambda headers: {**headers, "X-Slack-Signature": ""},
        lambda headers: {**headers, "X-Slack-Signature": headers["X-Slack-Signature"][3:]},
        lambda headers: {**headers, "X-Slack-Request-Timestamp": ""},
        lambda headers: {**headers, "X-Slack-Request-Timestamp": "1e9"},
        lambda headers: {**headers, "X-Slack-Request-Timestamp": "-1"},
        lambda headers: {**headers, "X-Slack-Request-Timestamp": "9" * 400},
        lambda headers: {**headers, "X-Slack-Request-Timestamp": "1700000001"},
        lambda headers: signed(BODY + b" ", 1_700_000_000_000),
        lambda headers: signed(BODY, 1_700_000_000_000, "another"),
        lambda headers: signed(BODY, 1_700_000_000_000 - 301_000),
        lambda headers: signed(BODY, 1_700_000_000_000 + 301_000),
    ],
)
async def test_what_slack_did_not_sign_or_signed_long_ago_is_refused(
    adapter, gateway, caplog, tampered
) -> None:
    caplog.set_level(logging.DEBUG)
    refused = adapter.liveness.refused
    response = await knock(adapter, BODY, tampered(signed(BODY, 1_700_000_000_000)))
    assert (response.status_code, response.content) == (401, b"")
    assert adapter.liveness.refused == refused + 1
    assert gateway.happened == []
    assert "Ev0" not in caplog.text


async def test_a_replay_within_five_minutes_is_handed_over_again_for_the_journal_to_pass_over(
    adapter, clock, gateway
) -> None:
    headers = signed(BODY, clock.now())
    clock.advance(timedelta(seconds=300))
    assert (await knock(adapter, BODY, headers)).status_code == 200
    clock.advance(timedelta(seconds=1))
    assert (await knock(adapter, BODY, headers)).status_code == 401
    assert gateway.texts == ["one"]


@each_row(
    "body, kind",
    [
        (b"not json", "application/json"),
        (b"[]", "application/json"),
        (b"\xff", "application/x-www-form-urlencoded"),
        (b"&".join([b"a=1"] * 200), "application/x-www-form-urlencoded"),
        (b"payload=no", "application/x-www-form-urlencoded"),
        (b"ssl=1", "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
    ],
)
async def test_signed_requests_that_cannot_be_read_are_counted_and_answered(
    adapter, clock, gateway, body, kind
) -> None:
    refused = adapter.liveness.refused
    response = await knock(adapter, body, signed(body, clock.now()), kind=kind)
    assert response.status_code == 200
    assert (adapter.liveness.refused, gateway.happened) == (refused + 1, [])


async def test_a_body_over_a_megabyte_is_refused_without_reading_more(adapter, clock) -> None:
    pieces: list[int] = []
    assert (await knock(adapter, b"x" * (1024 * 1024 + 1), {})).status_code == 413
    assert await status_of(adapter, "/slack", endless(pieces)) == 413
    assert len(pieces) == 17
    assert await status_of(adapter, "/slack", endless(pieces), content_length="1048577") == 413
    assert (len(pieces), adapter.liveness.refused) == (17, 3)


async def test_without_an_app_token_slack_comes_to_us(fake, clock, gateway) -> None:
    adapter = made(fake, clock, api_key=None, signing_secret=SECRET)
    adapter.set_message_handler(gateway)
    assert adapter.lock_identity() is None
    assert (await knock(adapter, BODY, signed(BODY, clock.now()))).status_code == 503
    await adapter.connect()
    assert (await knock(adapter, BODY, signed(BODY, clock.now()))).status_code == 200
    assert fake.wires == []
    gateway.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        late = group.create_task(knock(adapter, BODY, signed(BODY, clock.now())))
        for _ in range(20):
            await asyncio.sleep(0)
        await adapter.disconnect()
    assert late.result().status_code == 503
    assert (await knock(adapter, BODY, signed(BODY, clock.now()))).status_code == 503
    assert gateway.texts == ["one"]


def test_without_a_signing_secret_there_is_no_door(clock) -> None:
    assert made(None, clock).routes() == ()


# The dialect, and what may come over the wire.


@each_row(
    "markdown, shown",
    [
        ("plain & <b>", "plain &amp; &lt;b&gt;"),
        ("**b** __b__ *i* _i_ ***bi*** ~~s~~", "*b* *b* _i_ _i_ *_bi_* ~s~"),
        ("**a *b* c**", "*a _b_ c*"),
        ("`**a** <b>` ``x`y``", "`**a** &lt;b&gt;` `x\u02cby`"),
        ("[a | **b**](https://x/?a=1&b=|2)", "<https://x/?a=1&amp;b=%7C2|a | b>"),
        (
            "![alt](https://x/a.png) <https://x> https://x/__a__*b*",
            "<https://x/a.png|alt> <https://x> https://x/__a__*b*",
        ),
        ('[w](https://en.x/a_(b)) [t](https://x "title")', "<https://en.x/a_(b)|w> <https://x|t>"),
        ("[x](javascript:alert(1)) [y](file:///etc)", "[x](javascript:alert(1)) [y](file:///etc)"),
        ("# One **two** ##\n### C#", "*One two*\n*C#*"),
        ("- a\n  * b\n+ c\n1. d", "• a\n  • b\n• c\n1. d"),
        ("> quoted *x*\n---", "> quoted _x_\n───"),
        ("```py\nif a < b: **c**\n```\nafter", "```\nif a &lt; b: **c**\n```\nafter"),
        ("~~~\nopen", "```\nopen\n```"),
        ("~~~ my own words\nx\n~~~", "```\nmy own words\nx\n```"),
        ("```one line``` **b**", "`one line` *b*"),
        ("````\n```\n````", "```\n`\u200b`\u200b`\n```"),
        ("| a | b |\n|---|:-:|\n| 1 | <2> |\nend", "```\n| a | b |\n|---|:-:|\n| 1 | &lt;2&gt; |\n```\nend"),
        ("2 * 3 * 4, a_b_c, f(*args)", "2 * 3 * 4, a_b_c, f(*args)"),
        ("<!channel> <@U1> <#C1|x> @here", "&lt;!channel&gt; &lt;@U1&gt; &lt;#C1|x&gt; @here"),
        ("**open *and `never", "**open *and `never"),
        ("\ue0010\ue002\ue000", "0"),
    ],
)
def test_markdown_becomes_mrkdwn(markdown, shown) -> None:
    assert to_mrkdwn(markdown) == shown


MARKS = st.sampled_from(
    [
        *'*_~`[]()<>!&|#-> \n\\"aé@:/',
        "https://x",
        "```",
        "~~~",
        "**",
        "](",
        "|-|",
        "\ue000",
        "\ue001",
        "\ue002",
    ]
)


@given(st.lists(MARKS, max_size=60).map("".join))
def test_nothing_that_is_said_calls_anybody_out_or_hides_a_word(markdown) -> None:
    shown = to_mrkdwn(markdown)
    left = re.sub(r"<(?:https?://|mailto:|tel:)[^<>|]+(?:\|[^<>]+)?>", "", shown)
    assert "<" not in left
    assert re.sub(r"^> |\n> ", "", left).count(">") == 0
    assert not re.search("[\ue000-\ue002]", shown)
    assert shown.count("é") == markdown.count("é")


@each_row(
    "typed, read_as",
    [
        ("<https://x.y|x.y> <http://x.y/|x.y> <https://x.y>", "x.y x.y https://x.y"),
        ("<https://x.y/a?b=1&amp;c=2|here> <mailto:a@b|a@b> <tel:1>", "[here](https://x.y/a?b=1&c=2) a@b 1"),
        ("<@U1> <@U1|ann> <#C1> <#C1|general>", "@U1 @ann #C1 #general"),
        (
            "<!here> <!channel|channel> <!subteam^S1|@team> <!subteam^S1> <!date^1^{date}|today>",
            "@here channel @team @subteam today",
        ),
        ("&lt;b&gt; &amp;lt; &copy; &amp;amp;", "<b> &lt; &copy; &amp;"),
        ("1 < 2 > 0 <> *as typed*", "1 < 2 > 0 <> *as typed*"),
    ],
)
def test_what_was_typed_is_read_as_words(typed, read_as) -> None:
    assert from_slack(typed) == read_as


SAMPLES: list[tuple[str, dict[str, Any]]] = [
    (
        "events_api",
        callback(message("x", thread_ts=ROOT, files=[{"url_private": "u", "mimetype": "image/png"}])),
    ),
    ("events_api", callback(change("x"))),
    ("events_api", callback(change("x", subtype="tombstone"))),
    ("slash_commands", dict(slash())),
    ("interactive", pressed()),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


def places(value: object, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [way] if way else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*found, *(place for name, one in inner for place in places(one, (*way, name)))]


@given(st.data())
def test_whatever_comes_is_understood_or_malformed_and_nothing_else(data) -> None:
    kind, sample = data.draw(st.sampled_from(SAMPLES))
    payload = json.loads(json.dumps(sample))
    *way, last = data.draw(st.sampled_from(places(payload)))
    spot = payload
    for name in way:
        spot = spot[name]
    spot[last] = data.draw(JSON)
    with contextlib.suppress(Malformed):
        update = read(kind, payload, Bot(team_id=TEAM, user_id=BOT, bot_id=BOT_ID), Rules())
        if isinstance(update, NewMessage | Edit):
            assert json.dumps(update.event.to_body()).encode()
            assert update.event.message_id


# Secrets.


async def test_the_ticket_of_a_socket_and_the_signing_secret_are_shown_nowhere(
    fake, clock, gateway, caplog
) -> None:
    caplog.set_level(logging.DEBUG)
    async with connected(made(fake, clock, signing_secret=SECRET), gateway) as adapter:
        await knock(adapter, BODY, {})
        fake.wires[0].cut()
        await eventually(lambda: adapter.liveness.state is AdapterState.RECONNECTING)
        fake.socket_url = f"ws://127.0.0.1:9/link/?ticket={TICKET}"
        clock.advance(timedelta(seconds=1))
        await eventually(lambda: "slack.unreachable" in caplog.text)
    with pytest.raises(ServerUnavailable) as caught:
        await adapter.connect()
    gc.collect()
    shown = f"{caplog.text} {adapter!r} {vars(adapter)} {caught.value!r} {caught.value.as_dict()}"
    for secret in (BOT_TOKEN, APP_TOKEN, SECRET, TICKET):
        assert secret not in shown
