"""Telegram's adapter against a fake Bot API on real sockets."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from channels.chat_listener import Listener, eventually
from channels.fake_telegram import (
    BOT_ID,
    CUT,
    LOST,
    OURSELVES,
    SILENCE,
    TOKEN,
    TORN,
    FakeTelegram,
    Hurried,
    Raw,
    Refusal,
    message,
    update,
)
from channels.fetching import fetched, sending
from channels.http_room import endless, status_of
from platform_tables import table_of
from postroom.contracts.errors import (
    ConfigError,
    InvalidRecord,
    ServerUnavailable,
    StoreUnavailable,
    TooLarge,
)
from postroom.gateway.events import (
    Attachment,
    Button,
    Card,
    MessageType,
    SendErrorKind,
)
from postroom.gateway.platforms import telegram as telegram_module
from postroom.gateway.platforms.base import AdapterState
from postroom.gateway.platforms.telegram import (
    LARGEST_UPDATE,
    LOOK_EVERY_MS,
    SECRET_HEADER,
    WEBHOOK_PATH,
    TelegramAdapter,
    TelegramOptions,
    markdown_v2,
)
from postroom.gateway.session import Platform
from postroom.testing import ManualClock
from table_rows import each_row

SECRET = "the-webhooks_secret"
HOOK = "https://chat.example.org/channels/telegram"
CHAT = "77"


async def pause_over(clock: ManualClock) -> None:
    """Wait until a task pauses, and let that pause pass."""
    await eventually(lambda: clock.sleeping)
    clock.advance(timedelta(seconds=60))


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram().serving() as server:
        yield server


@pytest.fixture
def kept() -> Listener:
    return Listener()


def made(
    fake: FakeTelegram, clock: ManualClock, *, token: str | None = TOKEN, **extra: Any
) -> TelegramAdapter:
    secret = SECRET if "webhook_url" in extra else None
    config = TelegramOptions(token=token, api_key=secret, **{"base_url": fake.url, **extra})
    return Hurried(config, clock=clock, timer=clock)


@asynccontextmanager
async def connected(adapter: TelegramAdapter, kept: Listener) -> AsyncIterator[TelegramAdapter]:
    adapter.set_message_handler(kept)
    async with asyncio.timeout(60):
        await adapter.connect()
        try:
            yield adapter
        finally:
            await adapter.disconnect()


@pytest.fixture
async def adapter(fake: FakeTelegram, kept: Listener, clock: ManualClock) -> AsyncIterator[TelegramAdapter]:
    async with connected(made(fake, clock), kept) as one:
        yield one


# Its life.


async def test_connecting_tells_who_the_bot_is(fake, adapter) -> None:
    assert adapter.account == str(BOT_ID)
    assert adapter.liveness.state is AdapterState.CONNECTED
    assert adapter.platform is Platform.TELEGRAM
    assert adapter.lock_identity() == TOKEN
    assert adapter.routes() == ()
    await eventually(lambda: fake.sent("getUpdates"))
    asked = fake.sent("getUpdates")[0]
    assert set(asked["allowed_updates"]) >= {"message", "edited_message", "callback_query"}
    assert "offset" not in asked


@each_row("token", [None, "", "nonsense", "1:a/../b", "12:abc\n"])
async def test_without_a_token_that_is_one_it_does_not_connect(fake, clock, token) -> None:
    with pytest.raises(ConfigError, match="Telegram") as caught:
        await made(fake, clock, token=token).connect()
    assert "BotFather" in caught.value.remedy
    assert not token or token not in str(caught.value.as_dict())
    assert fake.paths == []


@each_row("status", [401, 404])
async def test_a_token_that_is_refused_is_a_fault_of_the_configuration(fake, clock, status) -> None:
    fake.faults["getMe"].append(Refusal(status, "Unauthorized"))
    adapter = made(fake, clock)
    with pytest.raises(ConfigError, match="token is not valid: Unauthorized"):
        await adapter.connect()
    assert adapter.liveness.state is AdapterState.STOPPED
    await adapter.disconnect()


async def test_a_webhook_of_somebody_else_is_named_and_taken_away_only_when_that_is_wanted(
    fake, kept, clock
) -> None:
    fake.webhook = {"url": "https://other.example.org"}
    with pytest.raises(ConfigError, match="a webhook is set for this bot") as caught:
        await made(fake, clock).connect()
    assert "delete_webhook" in caught.value.remedy
    assert fake.webhook
    async with connected(made(fake, clock, delete_webhook=True), kept):
        assert fake.sent("deleteWebhook") == [{"drop_pending_updates": False}]


@each_row("fault", [CUT, LOST, TORN, Raw(502, b"Bad Gateway"), Raw(200, b"<html>"), Raw(404, b"no")])
async def test_a_server_that_cannot_be_asked_is_to_be_tried_again(fake, clock, fault) -> None:
    fake.faults["getMe"].append(fault)
    with pytest.raises(ServerUnavailable) as caught:
        await made(fake, clock).connect()
    assert TOKEN not in str(caught.value.as_dict())


async def test_a_proxy_that_the_environment_names_is_not_given_the_token(
    fake, kept, clock, monkeypatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with connected(made(fake, clock), kept) as adapter:
        assert (await adapter.send(CHAT, "hello")).success


async def test_what_is_no_bot_api_is_named(fake, clock) -> None:
    fake.faults["getMe"].append(Raw(200, b'{"ok": true, "result": {"id": "x"}}'))
    with pytest.raises(ConfigError, match="not the URL of a Bot API"):
        await made(fake, clock).connect()


@each_row(
    "extra",
    [
        {"base_ulr": "http://127.0.0.1"},
        {"base_url": "ftp://127.0.0.1"},
        {"base_url": "http://[::1"},
        {"base_url": 7},
        {"poll_seconds": 0},
        {"poll_seconds": True},
        {"timeout_ms": "30"},
        {"delete_webhook": "yes"},
        {"webhook_url": "chat.example.org"},
    ],
)
def test_a_wrong_setting_is_named_when_it_is_made(extra) -> None:
    with pytest.raises(ConfigError, match=next(iter(extra))) as caught:
        table_of(TelegramOptions, token=TOKEN, **extra)
    assert caught.value.remedy


@each_row("secret", [None, "", "two words", "x" * 257, "naïve"])
def test_a_webhook_without_a_secret_is_refused(secret) -> None:
    with pytest.raises(ConfigError, match="secret") as caught:
        TelegramOptions(token=TOKEN, api_key=secret, webhook_url=HOOK)
    assert "webhook_secret_env" in caught.value.remedy


async def test_disconnecting_while_a_message_is_being_kept_ends_within_a_bound_and_acknowledges_nothing(
    fake, kept, clock
) -> None:
    kept.gate = asyncio.Event()
    async with connected(made(fake, clock), kept) as adapter:
        fake.feed(update(1))
        await eventually(lambda: kept.asked)
        await adapter.disconnect()
        assert fake.acknowledged == []
        assert len(adapter._tasks) == 0
        kept.gate = None
        await adapter.connect()
        await eventually(lambda: fake.acknowledged == [1])
        assert kept.texts == ["message 1"]


# What comes in, by polls.


async def test_the_menu_of_the_bot_shows_the_commands(fake, kept, clock) -> None:
    adapter = made(fake, clock)
    adapter.commands = [("start", "show a greeting"), ("help", "list the commands")]
    async with connected(adapter, kept):
        await eventually(lambda: fake.sent("setMyCommands"))
    [told] = fake.sent("setMyCommands")
    assert told["commands"] == [
        {"command": "start", "description": "show a greeting"},
        {"command": "help", "description": "list the commands"},
    ]


ODD = (
    {"text": 7},
    {"text": None, "caption": ["hello"]},
    {"entities": {"0": {}}},
    {"from": "Ann"},
    {"sender_chat": 7},
    {"forward_origin": "Eve"},
    {"reply_to_message": 51},
    {"date": "today"},
    {"chat": [2]},
)


async def test_a_field_of_another_type_makes_the_update_a_dead_letter(fake, kept, adapter) -> None:
    dead: list[tuple[str, ...]] = []

    async def keep_dead(*told: str) -> None:
        dead.append(told)

    adapter.keep_dead = keep_dead
    fake.feed(*(update(n, message={**message(n, "hush-hush"), **odd}) for n, odd in enumerate(ODD)))
    fake.feed(update(len(ODD)))
    await eventually(lambda: fake.acknowledged == [*range(len(ODD) + 1)])
    assert kept.texts == [f"message {len(ODD)}"]
    assert [json.loads(raw)["update_id"] for _, _, raw, _ in dead] == [*range(len(ODD))]
    assert all(why.startswith("an invalid update: ") for *_, why in dead)


async def test_malformed_updates_are_counted_passed_over_and_never_shown(fake, kept, adapter, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    fake.feed(
        update(1, message="hush-hush"),
        update(2, message={"text": "hush-hush"}),
        update(3, message={**message(3, "hush-hush"), "chat": {"id": "x", "type": "private"}}),
        "hush-hush",
        update(4, callback_query={"data": "hush-hush", "message": message(3)}),
        update(5, message=message(5, photo=[{"file_id": ["hush-hush"]}])),
        update(6),
    )
    await eventually(lambda: fake.acknowledged == [1, 2, 3, 4, 5, 6])
    assert [(one.text, one.unread) for one in kept.inbound] == [("", ("a photo",)), ("message 6", ())]
    assert adapter.liveness.refused == 5
    assert "hush-hush" not in caplog.text


async def test_updates_without_numbers_do_not_make_it_poll_without_a_pause(
    fake, kept, clock, adapter
) -> None:
    fake.feed("nonsense")
    await eventually(lambda: clock.sleeping)
    polls = len(fake.sent("getUpdates"))
    fake.updates = [update(1)]
    await pause_over(clock)
    await eventually(lambda: fake.acknowledged == [1])
    assert polls <= 2
    assert kept.texts == ["message 1"]


async def test_a_poll_that_does_not_wait_is_not_repeated_without_a_pause(fake, kept, clock) -> None:
    fake.faults["getUpdates"].extend([Raw(200, b'{"ok": true, "result": []}')] * 2)
    async with connected(made(fake, clock), kept) as adapter:
        for polls in (1, 2):
            await eventually(lambda: clock.sleeping)
            assert len(fake.sent("getUpdates")) == polls
            assert adapter.liveness.state is AdapterState.CONNECTED
            await pause_over(clock)
        fake.feed(update(1))
        await eventually(lambda: fake.acknowledged == [1])


def pressed(update_id: int, **more: Any) -> dict[str, Any]:
    card = {**message(9, "Go on?"), "from": OURSELVES}
    query = {"id": "p-1", "from": message(1)["from"], "message": card, "data": "approve:7", **more}
    return update(update_id, callback_query=query)


async def test_a_pressed_button_is_handed_over_and_its_note_is_shown(fake, kept, adapter) -> None:
    kept.note = "😀" * 150
    fake.feed(pressed(1))
    await eventually(lambda: fake.sent("answerCallbackQuery"))
    assert fake.sent("answerCallbackQuery") == [{"callback_query_id": "p-1", "text": "😀" * 100}]
    await eventually(lambda: fake.acknowledged == [1])
    (press,) = kept.presses
    assert (press.value, press.message_id, press.press_id) == ("approve:7", "9", "p-1")
    assert (press.source.user_id, press.source.chat_id, press.source.account) == ("77", "77", str(BOT_ID))


@pytest.mark.parametrize("missing", ["store", "handler"])
async def test_telegram_sends_a_press_again_until_it_is_taken(fake, clock, missing: str) -> None:
    kept, adapter = Listener(down=missing == "store"), made(fake, clock)
    if missing == "store":
        adapter.set_message_handler(kept)
    await adapter.connect()
    try:
        fake.feed(pressed(1))
        for is_last in (False, False, True):
            await eventually(lambda: clock.sleeping)
            assert (fake.acknowledged, kept.presses, fake.sent("answerCallbackQuery")) == ([], [], [])
            if is_last:
                kept.down = False
                adapter.set_message_handler(kept)
            await pause_over(clock)
        await eventually(lambda: fake.acknowledged and fake.sent("answerCallbackQuery"))
    finally:
        await adapter.disconnect()
    assert (fake.acknowledged, len(kept.presses), len(fake.sent("answerCallbackQuery"))) == ([1], 1, 1)


async def test_a_note_that_is_refused_harms_nothing(fake, kept, adapter) -> None:
    fake.faults["answerCallbackQuery"].append(Refusal(400, "Bad Request: query is too old"))
    fake.feed(pressed(1), update(2))
    await eventually(lambda: fake.acknowledged == [1, 2])
    assert kept.texts == ["message 2"]
    assert adapter.liveness.state is AdapterState.CONNECTED


@each_row("fault", [CUT, LOST, TORN, Raw(502, b"Bad Gateway"), Raw(200, b"[[["), Raw(200, b'{"ok":true}')])
async def test_a_poll_that_fails_is_repeated_after_a_pause_and_loses_nothing(
    fake, kept, clock, fault
) -> None:
    number = len(fake.acknowledged) + 1
    fake.feed(update(number))
    fake.faults["getUpdates"].append(fault)
    async with connected(made(fake, clock), kept) as adapter:
        await eventually(lambda: clock.sleeping)
        assert adapter.liveness.state is AdapterState.RECONNECTING
        assert adapter.liveness.error_code == "unreachable"
        await pause_over(clock)
        await eventually(lambda: number in fake.acknowledged)
        assert kept.texts == [f"message {one}" for one in range(1, number + 1)]
        assert adapter.liveness.state is AdapterState.CONNECTED
        assert adapter.liveness.error is None


async def test_the_pause_that_telegram_asks_for_is_kept(fake, kept, clock) -> None:
    fake.feed(update(1))
    fake.faults["getUpdates"].append(Refusal(429, "Too Many Requests: retry after 90", {"retry_after": 90}))
    async with connected(made(fake, clock), kept):
        await eventually(lambda: clock.sleeping)
        clock.advance(timedelta(seconds=89))
        assert clock.sleeping == 1
        clock.advance(timedelta(seconds=1))
        await eventually(lambda: fake.acknowledged == [1])
        assert kept.texts == ["message 1"]


async def test_another_that_polls_for_a_moment_is_told_of_and_waited_out(fake, kept, clock, adapter) -> None:
    await eventually(lambda: fake._poll is not None)
    async with httpx2.AsyncClient(trust_env=False) as other:
        task = asyncio.ensure_future(other.post(f"{fake.url}/bot{TOKEN}/getUpdates", json={}))
        await eventually(lambda: adapter.liveness.state is AdapterState.RECONNECTING)
        fake.feed(update(1))
        await task
    assert adapter.liveness.error_code == "conflict"
    assert "stop that program" in (adapter.liveness.error or "")
    assert adapter.liveness.since == clock.now()
    assert kept.inbound == []
    await pause_over(clock)
    await eventually(lambda: kept.inbound)
    assert adapter.liveness.state is AdapterState.CONNECTED
    assert adapter.liveness.error is None
    assert adapter.liveness.since == clock.now()


async def test_a_group_that_became_a_supergroup_is_followed(fake, kept, clock, adapter) -> None:
    old, new = {"id": -500, "type": "group", "title": "Team"}, {"id": -100500, "type": "supergroup"}
    kept.failures = [StoreUnavailable("not now")]
    fake.feed(
        update(1, message=message(1, chat=old, migrate_to_chat_id=-100500)),
        update(2, message=message(1, chat=new, migrate_from_chat_id=-500)),
    )
    await eventually(lambda: kept.asked == 1)
    assert fake.acknowledged == []
    assert (await adapter.send("-500", "hello")).success
    assert fake.sent("sendMessage")[-1]["chat_id"] == -100500
    await pause_over(clock)
    await eventually(lambda: fake.acknowledged == [1, 2])
    assert kept.moves == [("-500", "-100500")] * 2
    assert kept.inbound == []


async def test_what_is_sent_to_a_group_that_moved_while_nobody_listened_follows_it(
    fake, kept, adapter
) -> None:
    words = "Bad Request: group chat was upgraded to a supergroup chat"
    fake.faults["sendMessage"].append(Refusal(400, words, {"migrate_to_chat_id": -100500}))
    assert (await adapter.send("-500", "hello")).success
    assert [one["chat_id"] for one in fake.sent("sendMessage")] == [-500, -100500]
    await eventually(lambda: kept.moves == [("-500", "-100500")])


async def test_a_token_that_is_taken_away_ends_it(fake, kept, clock) -> None:
    fake.faults["getUpdates"].append(Refusal(401, "Unauthorized"))
    async with connected(made(fake, clock), kept) as adapter:
        await eventually(lambda: adapter.liveness.state is AdapterState.FAILED)
        assert adapter.liveness.error_code == "unauthorized"
        assert "BotFather" in (adapter.liveness.error or "")
        assert not adapter.liveness.retryable
        await adapter.disconnect()
        assert adapter.liveness.state is AdapterState.FAILED


async def test_receiving_and_sending_are_measured_apart(fake, kept, clock, adapter) -> None:
    began = clock.now()
    assert (adapter.liveness.inbound_at, adapter.liveness.outbound_at) == (began, None)
    clock.advance(timedelta(seconds=5))
    await adapter.send(CHAT, "hello")
    assert (adapter.liveness.inbound_at, adapter.liveness.outbound_at) == (began, began + 5_000)
    clock.advance(timedelta(seconds=5))
    fake.feed(update(1))
    await eventually(lambda: kept.inbound)
    assert (adapter.liveness.inbound_at, adapter.liveness.outbound_at) == (began + 10_000, began + 5_000)


# What comes in, by a webhook.


@asynccontextmanager
async def hooked(
    fake: FakeTelegram, kept: Listener, clock: ManualClock
) -> AsyncIterator[tuple[TelegramAdapter, Callable[..., Any]]]:
    async with connected(made(fake, clock, webhook_url=HOOK), kept) as adapter:
        app = Starlette(routes=list(adapter.routes()))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:

            async def deliver(told: Any, secret: str | None = SECRET, **more: Any) -> int:
                headers = {} if secret is None else {SECRET_HEADER: secret}
                body = {"content": told} if isinstance(told, bytes) else {"json": told}
                return (await client.post(WEBHOOK_PATH, headers=headers, **body, **more)).status_code

            yield adapter, deliver


async def test_the_webhook_is_set_with_its_secret(fake, kept, clock) -> None:
    async with hooked(fake, kept, clock) as (adapter, _):
        assert fake.webhook["url"] == HOOK
        assert fake.webhook["secret_token"] == SECRET
        assert "edited_message" in fake.webhook["allowed_updates"]
        assert fake.sent("getUpdates") == []
        assert adapter.lock_identity() is None
    assert fake.webhook["url"] == HOOK


async def test_a_webhook_answers_200_only_when_the_message_is_kept(fake, kept, clock) -> None:
    async with hooked(fake, kept, clock) as (adapter, deliver):
        kept.failures = [StoreUnavailable("away"), RuntimeError("a bug")]
        assert await deliver(update(1)) == 503
        assert await deliver(update(1)) == 503
        assert kept.texts == []
        assert adapter.liveness.error_code == "receive_failed"
        assert await deliver(update(1)) == 200
        assert await deliver(update(1)) == 200
        assert kept.texts == ["message 1", "message 1"]
        assert adapter.liveness.error_code is None
        assert adapter.liveness.refused == 0


@each_row("secret", [None, "", "wrong", SECRET + "x", "ünïcode"])
async def test_a_webhook_without_the_secret_is_refused_counted_and_not_read(
    fake, kept, clock, secret, caplog
) -> None:
    async with hooked(fake, kept, clock) as (adapter, deliver):
        heard = adapter.liveness.inbound_at
        clock.advance(timedelta(seconds=1))
        given = None if secret is None else secret.encode()
        assert await deliver(b'{"text": "hush-hush"}', given) == 401
        assert adapter.liveness.refused == 1
        assert adapter.liveness.inbound_at == heard
        assert kept.inbound == []
        assert "hush-hush" not in caplog.text


async def test_a_refused_or_malformed_update_of_a_webhook_is_acknowledged_and_counted(
    fake, kept, clock
) -> None:
    async with hooked(fake, kept, clock) as (adapter, deliver):
        kept.failures = [InvalidRecord("no")]
        for told in (update(1), b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null", {"update_id": "x"}):
            assert await deliver(told) == 200
        assert adapter.liveness.refused == 7
        assert kept.inbound == []


async def test_a_body_that_is_too_large_is_refused_without_reading_more(fake, kept, clock) -> None:
    pieces: list[int] = []
    async with hooked(fake, kept, clock) as (adapter, deliver):
        assert await deliver(b" " * (LARGEST_UPDATE + 1)) == 413
        assert await status_of(adapter, WEBHOOK_PATH, endless(pieces), **{SECRET_HEADER: SECRET}) == 413
        assert len(pieces) == LARGEST_UPDATE // 65_536 + 1
        assert adapter.liveness.refused == 2
        assert kept.inbound == []


async def test_a_sender_that_leaves_in_the_middle_is_told_nothing_and_nothing_is_kept(
    fake, kept, clock
) -> None:
    told = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    async with hooked(fake, kept, clock) as (adapter, _):
        assert await status_of(adapter, WEBHOOK_PATH, iter(told), **{SECRET_HEADER: SECRET}) == 408
        assert kept.inbound == []


async def test_a_webhook_that_is_not_connected_takes_nothing(fake, kept, clock) -> None:
    async with hooked(fake, kept, clock) as (adapter, deliver):
        kept.gate = asyncio.Event()
        waiting = asyncio.ensure_future(deliver(update(1)))
        await eventually(lambda: kept.asked)
        await adapter.disconnect()
        assert await waiting == 503
        assert await deliver(update(1)) == 503
        assert kept.inbound == []


async def test_edits_and_presses_come_by_the_webhook_too(fake, kept, clock) -> None:
    async with hooked(fake, kept, clock) as (_, deliver):
        assert await deliver(update(1)) == 200
        assert await deliver(update(2, edited_message=message(1, "changed"))) == 200
        assert await deliver(pressed(3)) == 200
        await eventually(lambda: fake.sent("answerCallbackQuery"))
        assert (kept.texts, [one.text for one in kept.edits]) == (["message 1"], ["changed"])
        assert [one.value for one in kept.presses] == ["approve:7"]


async def test_a_webhook_that_telegram_refuses_is_a_fault_of_the_configuration(fake, clock) -> None:
    fake.faults["setWebhook"].append(Refusal(400, "Bad Request: bad webhook: HTTPS url must be provided"))
    with pytest.raises(ConfigError, match="HTTPS url must be provided"):
        await made(fake, clock, webhook_url="http://plain.example.org").connect()


async def test_a_webhook_is_looked_after(fake, kept, clock) -> None:
    look = timedelta(milliseconds=LOOK_EVERY_MS)
    async with hooked(fake, kept, clock) as (adapter, _):
        fake.faults["getWebhookInfo"].append(CUT)
        await eventually(lambda: clock.sleeping)
        clock.advance(look)
        await eventually(lambda: adapter.liveness.state is AdapterState.RECONNECTING)
        await eventually(lambda: clock.sleeping)
        clock.advance(look)
        await eventually(lambda: adapter.liveness.state is AdapterState.CONNECTED)
        assert adapter.liveness.inbound_at == clock.now()
        fake.webhook["url"] = "https://other.example.org"
        await eventually(lambda: clock.sleeping)
        clock.advance(look)
        await eventually(lambda: adapter.liveness.state is AdapterState.FAILED)
        assert adapter.liveness.error_code == "conflict"


# What goes out.


async def test_markdown_goes_out_in_telegrams_dialect(fake, adapter) -> None:
    result = await adapter.send(CHAT, "**bold** 1.5 `a_b`", reply_to="12")
    assert result.success
    (shown,) = fake.messages.values()
    assert result.message_id == str(next(iter(fake.messages)))
    assert shown == {
        "chat_id": 77,
        "text": "*bold* 1\\.5 `a_b`",
        "parse_mode": "MarkdownV2",
        "reply_parameters": {"message_id": 12, "allow_sending_without_reply": True},
    }


@each_row(
    "metadata, topic",
    [(None, None), ({"thread_id": "42"}, 42), ({"thread_id": "1"}, None), ({"thread_id": "x"}, None)],
)
async def test_an_answer_goes_into_its_topic(fake, adapter, metadata, topic) -> None:
    assert (await adapter.send("-100200", "hi", metadata=metadata)).success
    assert fake.sent("sendMessage")[-1].get("message_thread_id") == topic


async def test_where_marks_are_refused_the_same_goes_out_plain(fake, adapter) -> None:
    fake.faults["sendMessage"].append(
        Refusal(400, "Bad Request: can't parse entities: no end at byte offset 3")
    )
    result = await adapter.send(CHAT, "**bold**")
    assert result.success
    (shown,) = fake.messages.values()
    assert shown == {"chat_id": 77, "text": "**bold**"}


async def test_long_text_is_counted_in_utf16(fake, adapter) -> None:
    assert (await adapter.send(CHAT, "😀" * 2_048)).success
    result = await adapter.send(CHAT, "😀" * 2_048 + ".")
    assert result.error_kind is SendErrorKind.TOO_LONG
    assert len(fake.calls) == len([one for one in fake.calls if one.method != "sendMessage"]) + 1


async def test_a_text_that_formatting_makes_too_long_goes_out_plain(fake, adapter) -> None:
    text = "- a\n" + "b\n" * 2_046
    assert len(text) == 4_096
    assert (await adapter.send(CHAT, text)).success
    assert [one.get("parse_mode") for one in fake.sent("sendMessage")] == ["MarkdownV2", None]


async def test_a_long_text_is_formatted_off_the_event_loop(adapter, monkeypatch) -> None:
    threads: list[int] = []

    def noted(text: str) -> str | None:
        threads.append(threading.get_ident())
        return markdown_v2(text)

    monkeypatch.setattr(telegram_module, "markdown_v2", noted)
    for length in (telegram_module.SHORT_TEXT, telegram_module.SHORT_TEXT + 1):
        assert (await adapter.send(CHAT, "[" * length)).success
    here = threading.get_ident()
    assert [one == here for one in threads] == [True, False]


HOSTILE = [
    "_*[]()~`>#+-=|{}.!\\",
    "half \ud83d of a pair",
    "nul \0 and \x1b[31m",
    "*a**b*_c__d_ ***e*** ~~f~~g~~",
    "```\nnever closed",
    "> quote **bold\n> `code` ends not",
    "[x](javascript:alert(1)) [y](http://a/)b) ![z](tg://user?id=1)",
    "> " * 200 + "deep",
    "- " * 60 + "deep",
    "[" * 2_000,
    "&#0; &lt;b&gt; <script>alert(1)</script>",
    "a" * 4_096,
    "\u202egnp.exe \u200d\ufe0f",
]


@each_row("text", HOSTILE)
async def test_hostile_text_is_said_at_the_first_attempt(fake, adapter, text) -> None:
    before = len(fake.sent("sendMessage"))
    assert (await adapter.send(CHAT, text)).success
    assert len(fake.sent("sendMessage")) == before + 1


REFUSALS = [
    (Refusal(429, "Too Many Requests: retry after 7", {"retry_after": 7}), SendErrorKind.RATE_LIMITED, 7_000),
    (Refusal(429, "Too Many Requests"), SendErrorKind.RATE_LIMITED, None),
    (Refusal(403, "Forbidden: bot was blocked by the user"), SendErrorKind.FORBIDDEN, None),
    (Refusal(401, "Unauthorized"), SendErrorKind.FORBIDDEN, None),
    (Refusal(400, "Bad Request: not enough rights to send text messages"), SendErrorKind.FORBIDDEN, None),
    (Refusal(400, "Bad Request: chat not found"), SendErrorKind.NOT_FOUND, None),
    (Refusal(400, "Bad Request: message thread not found"), SendErrorKind.NOT_FOUND, None),
    (
        Refusal(400, "Bad Request: group chat was upgraded to a supergroup chat"),
        SendErrorKind.NOT_FOUND,
        None,
    ),
    (Refusal(500, "Internal Server Error"), SendErrorKind.TRANSIENT, None),
    (Raw(503, b"busy"), SendErrorKind.TRANSIENT, None),
    (Raw(302, b"", "Location: http://127.0.0.1:9/\r\n"), SendErrorKind.TRANSIENT, None),
    (Raw(502, b"Bad Gateway"), SendErrorKind.UNKNOWN, None),
    (Refusal(502, "Bad Gateway"), SendErrorKind.UNKNOWN, None),
    (Raw(504, b'{"ok": false, "description": "Gateway Timeout"}'), SendErrorKind.UNKNOWN, None),
    (Raw(500, b"<html>"), SendErrorKind.UNKNOWN, None),
    (Raw(200, b"<html>"), SendErrorKind.UNKNOWN, None),
    (LOST, SendErrorKind.UNKNOWN, None),
    (TORN, SendErrorKind.UNKNOWN, None),
]


@each_row("fault, kind, wait", REFUSALS)
async def test_each_refusal_is_told_by_its_kind_after_one_attempt(
    fake, kept, clock, fault, kind, wait
) -> None:
    before = len(fake.sent("sendMessage"))
    async with connected(made(fake, clock), kept) as adapter:
        fake.faults["sendMessage"].append(fault)
        result = await adapter.send(CHAT, "hello")
        assert (result.success, result.error_kind, result.retry_after_ms) == (False, kind, wait)
        assert result.error
        assert TOKEN not in repr(result)
        assert len(fake.sent("sendMessage")) == before + 1
        assert adapter.liveness.outbound_at is None


@each_row(
    "description, kind",
    [("message is too long", SendErrorKind.TOO_LONG), ("BUTTON_DATA_INVALID", SendErrorKind.BAD_FORMAT)],
)
async def test_what_is_refused_plain_too_is_told_by_its_kind(fake, adapter, description, kind) -> None:
    fake.faults["sendMessage"].extend([Refusal(400, f"Bad Request: {description}")] * 2)
    assert (await adapter.send(CHAT, "hello")).error_kind is kind


async def test_silence_after_a_request_leaves_its_end_unknown(fake, kept, clock) -> None:
    async with connected(made(fake, clock, timeout_ms=300), kept) as adapter:
        fake.faults["sendMessage"].append(SILENCE)
        result = await adapter.send(CHAT, "hello")
        assert result.error_kind is SendErrorKind.UNKNOWN
        assert result.error == "Telegram's answer was lost: read timeout"


async def test_a_connection_that_is_refused_may_be_tried_again(fake, kept, clock) -> None:
    async with connected(made(fake, clock), kept) as adapter:
        assert adapter._api is not None
        adapter._api._base = "http://127.0.0.1:9"
        assert (await adapter.send(CHAT, "hello")).error_kind is SendErrorKind.TRANSIENT


async def test_edits_replace_and_one_that_changes_nothing_is_a_success(fake, adapter) -> None:
    first = await adapter.send(CHAT, "one")
    assert first.message_id is not None
    for _ in range(2):
        result = await adapter.edit_message(CHAT, first.message_id, "**two**")
        assert (result.success, result.message_id) == (True, first.message_id)
    assert fake.messages[int(first.message_id)]["text"] == "*two*"
    assert len(fake.sent("editMessageText")) == 2
    assert (await adapter.edit_message(CHAT, "9999", "x")).error_kind is SendErrorKind.NOT_FOUND
    assert (await adapter.edit_message(CHAT, "abc", "x")).error_kind is SendErrorKind.BAD_FORMAT
    assert (await adapter.edit_message(CHAT, "1", "x" * 4_097)).error_kind is SendErrorKind.TOO_LONG


async def test_what_was_said_is_taken_back(fake, adapter) -> None:
    first = await adapter.send(CHAT, "one")
    assert first.message_id is not None
    assert (await adapter.delete_message(CHAT, first.message_id)).success
    assert fake.messages == {}
    assert (await adapter.delete_message(CHAT, first.message_id)).error_kind is SendErrorKind.NOT_FOUND
    assert (await adapter.delete_message(CHAT, "abc")).error_kind is SendErrorKind.BAD_FORMAT


async def test_typing_is_shown_and_rests_when_telegram_asks_for_it(fake, clock, adapter) -> None:
    fake.faults["sendChatAction"].extend([CUT, Refusal(429, "Too Many Requests", {"retry_after": 5})])
    for _ in range(4):
        await adapter.send_typing(CHAT, {"thread_id": "4"})
    assert fake.sent("sendChatAction") == [{"chat_id": 77, "message_thread_id": 4, "action": "typing"}] * 2
    assert (await adapter.send(CHAT, "the answer, which need not wait")).success
    clock.advance(timedelta(seconds=5))
    await adapter.send_typing(CHAT)
    assert len(fake.sent("sendChatAction")) == 3


async def test_a_message_is_marked_as_seen_until_the_mark_is_taken_back(fake, adapter) -> None:
    group = "-100200"
    marked = await adapter.react(group, "5", {"thread_id": "4"})
    assert marked.success
    assert (await adapter.react(group, "5", takes_back=marked.message_id or "5")).success
    assert fake.sent("setMessageReaction") == [
        {"chat_id": -100200, "message_id": 5, "reaction": [{"type": "emoji", "emoji": "👀"}]},
        {"chat_id": -100200, "message_id": 5, "reaction": []},
    ]
    assert (await adapter.react(group, "abc")).error_kind is SendErrorKind.BAD_FORMAT
    fake.faults["setMessageReaction"].append(Refusal(400, "Bad Request: REACTION_INVALID"))
    assert (await adapter.react(group, "6")).error_kind is SendErrorKind.BAD_FORMAT


async def test_a_reaction_that_telegram_refuses_for_its_rate_holds_up_no_answer(fake, kept, clock) -> None:
    fake.faults["setMessageReaction"].append(Refusal(429, "Too Many Requests", {"retry_after": 60}))
    paced = TelegramAdapter(made(fake, clock).config, clock=clock, timer=clock)
    async with connected(paced, kept) as adapter:
        for _ in range(3):
            assert (await adapter.react(CHAT, "5")).error_kind is SendErrorKind.RATE_LIMITED
        assert len(fake.sent("setMessageReaction")) == 1
        assert (await adapter.send(CHAT, "the answer")).success


async def test_reactions_give_way_to_answers(fake, kept, clock) -> None:
    paced = TelegramAdapter(made(fake, clock).config, clock=clock, timer=clock)
    async with connected(paced, kept) as adapter:
        marks = [await adapter.react(CHAT, str(number)) for number in range(1, 11)]
        shown = [mark for mark in marks if mark.success]
        assert 0 < len(shown) < 10
        assert len(fake.sent("setMessageReaction")) == len(shown)
        assert (await adapter.send(CHAT, "the answer")).success


async def test_a_card_has_buttons_and_loses_them_when_it_has_its_answer(fake, adapter) -> None:
    card = Card(text="Go on?", buttons=(Button(label="Yes", value="yes:1"), Button(label="No", value="no:1")))
    sent = await adapter.send_card(CHAT, card, {"thread_id": "3"})
    assert sent.message_id is not None
    shown = fake.messages[int(sent.message_id)]
    assert shown["message_thread_id"] == 3
    assert shown["reply_markup"]["inline_keyboard"] == [
        [{"text": "Yes", "callback_data": "yes:1"}],
        [{"text": "No", "callback_data": "no:1"}],
    ]
    assert (await adapter.update_card(CHAT, sent.message_id, card.answered("Ada: yes"))).success
    shown = fake.messages[int(sent.message_id)]
    assert shown["reply_markup"] == {"inline_keyboard": []}
    assert shown["text"] == "Go on?\n\nAda: yes"


@each_row("values", [["x" * 65], ["é" * 33], [f"answer {number}" for number in range(101)]])
async def test_buttons_that_cannot_be_carried_are_listed_in_the_text(fake, adapter, values) -> None:
    card = Card(text="Go on?", buttons=tuple(Button(label="Yes", value=value) for value in values))
    sent = await adapter.send_card(CHAT, card)
    shown = fake.messages[int(sent.message_id or 0)]
    assert shown["text"] == "\n".join(["Go on?\n", *(f"Yes: /{value}" for value in values)])
    assert not shown.get("reply_markup", {}).get("inline_keyboard")
    assert (await adapter.update_card(CHAT, "1", card)).error_kind is SendErrorKind.BAD_FORMAT


@each_row(
    "kind, method, name",
    [
        (MessageType.PHOTO, "sendPhoto", "photo"),
        (MessageType.VOICE, "sendVoice", "voice"),
        (MessageType.AUDIO, "sendAudio", "audio"),
        (MessageType.VIDEO, "sendVideo", "video"),
        (MessageType.STICKER, "sendSticker", "sticker"),
        (MessageType.DOCUMENT, "sendDocument", "document"),
    ],
)
async def test_files_are_sent_by_their_kind(fake, adapter, kind, method, name) -> None:
    file = Attachment(kind=kind, ref="", mime="image/png", name="a b.png")
    assert (await adapter.send_media(CHAT, file, sending(b"\x00\xff"), metadata={"thread_id": "5"})).success
    call = [one for one in fake.calls if one.files][-1]
    assert call.method == method
    assert call.files == {name: ("a b.png", "image/png", b"\x00\xff")}
    assert call.fields == {"chat_id": 77, "message_thread_id": 5}


async def test_a_caption_is_formatted_and_bounded_and_falls_back(fake, adapter) -> None:
    file = Attachment(kind=MessageType.STICKER, ref="")
    fake.faults["sendDocument"].append(Refusal(400, "Bad Request: can't parse entities"))
    assert (await adapter.send_media(CHAT, file, sending(b"x"), "**look**")).success
    assert [one["caption"] for one in fake.sent("sendDocument")] == ["*look*", "**look**"]
    result = await adapter.send_media(CHAT, file, sending(b"x"), "x" * 1_025)
    assert result.error_kind is SendErrorKind.TOO_LONG


async def test_a_hostile_name_or_type_of_a_file_is_data(fake, adapter) -> None:
    name = '../../etc/"passwd\r\nX-Evil: 1\0.txt'
    file = Attachment(kind=MessageType.DOCUMENT, ref="", mime="text/html\r\nX-Evil: 1", name=name)
    assert (await adapter.send_media(CHAT, file, sending(b"x"))).success
    call = next(one for one in fake.calls if one.files)
    ((shown, mime, content),) = call.files.values()
    assert (mime, content) == ("application/octet-stream", b"x")
    assert shown is not None
    assert "\n" not in shown


async def test_a_file_that_is_too_large_for_telegram_is_told_so(fake, adapter) -> None:
    fake.faults["sendDocument"].append(Raw(413, b"<html>Request Entity Too Large"))
    file = Attachment(kind=MessageType.DOCUMENT, ref="")
    assert (await adapter.send_media(CHAT, file, sending(b"x"))).error_kind is SendErrorKind.TOO_LONG


# Files that came in.


def of(ref: str, size: int | None = None) -> Attachment:
    return Attachment(kind=MessageType.DOCUMENT, ref=ref, size=size)


async def test_a_file_over_the_bound_is_not_read(fake, adapter) -> None:
    fake.files["f1"] = {"file_id": "f1", "file_path": "documents/f"}
    fake.contents["documents/f"] = b"x" * 100_000
    fake.faults["getFile"].extend([None, Refusal(400, "Bad Request: file is too big")])
    for attachment in (of("f1"), of("f1"), of("f1", size=11)):
        with pytest.raises(TooLarge):
            await fetched(adapter, attachment, max_bytes=10)
    assert len(fake.sent("getFile")) == 2
    fake.unmeasured.add(f"/file/bot{TOKEN}/documents/f")
    with pytest.raises(TooLarge):
        await fetched(adapter, of("f1"), max_bytes=99_999)
    assert await fetched(adapter, of("f1"), max_bytes=100_000) == b"x" * 100_000


@each_row(
    "path",
    [
        "../../bot1:x/getMe",
        "/etc/passwd",
        "http://127.0.0.1:9/evil",
        "//127.0.0.1:9/x",
        "a/../b",
        "a\r\nb",
        "",
        7,
        None,
    ],
)
async def test_a_path_that_leads_elsewhere_is_not_followed(fake, adapter, path) -> None:
    fake.files["f1"] = {"file_id": "f1", "file_path": path}
    with pytest.raises(ServerUnavailable):
        await fetched(adapter, of("f1"), max_bytes=10)
    assert [one for one in fake.paths if one.startswith("/file/")] == []


async def test_a_file_that_cannot_be_had_is_told_and_no_other_host_is_asked(fake, adapter) -> None:
    fake.files["moved"] = {"file_id": "moved", "file_path": "moved/f"}
    fake.contents["moved/f"] = "elsewhere"  # type: ignore[assignment]
    fake.files["gone"] = {"file_id": "gone", "file_path": "gone/f"}
    for ref, why in (
        ("moved", "Telegram's file server answered with status 302"),
        ("gone", "Telegram's file server answered with status 404"),
        ("never", "Telegram rejected a call: .*invalid file_id"),
    ):
        with pytest.raises(ServerUnavailable, match=why):
            await fetched(adapter, of(ref), max_bytes=10)
