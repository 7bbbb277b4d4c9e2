"""The Discord adapter against a fake of its wire: stored messages, sent messages, and faults in between."""

import asyncio
import inspect
import json
import logging
import threading
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from channels.chat_listener import Listener, eventually
from channels.fake_discord import ALICE, BOB, DIRECT, GUILD, ME, PERSONS, ROOM, THREAD, TOKEN, FakeDiscord
from channels.fetching import fetched, sending
from machine import PATIENCE
from platform_tables import table_of
from postroom.contracts.errors import (
    ConfigError,
    CredentialRefused,
    ServerUnavailable,
    StoreUnavailable,
    TooLarge,
)
from postroom.gateway.events import (
    Attachment,
    Button,
    Card,
    MessageEvent,
    MessageType,
    SendErrorKind,
)
from postroom.gateway.platforms import discord as wire
from postroom.gateway.platforms import discord_library
from postroom.gateway.platforms.base import AdapterState, pause_ms
from postroom.gateway.platforms.discord import DiscordAdapter, DiscordOptions, bot_token
from postroom.gateway.session import Platform, SessionSource
from postroom.testing import ManualClock
from table_rows import each_row

MINUTE = timedelta(seconds=61)


@pytest.fixture
async def fake() -> AsyncIterator[FakeDiscord]:
    async with FakeDiscord.serving() as served:
        yield served


@pytest.fixture
def inbox() -> Listener:
    return Listener(note="approved by Alice")


def made(
    fake: FakeDiscord, inbox: Listener, clock: ManualClock, *, token: str = TOKEN, **extra: Any
) -> DiscordAdapter:
    config = table_of(DiscordOptions, token=token, **{"base_url": fake.url, "cdn_url": fake.cdn, **extra})
    adapter = DiscordAdapter(config, clock=clock, timer=clock)
    adapter.set_message_handler(inbox)
    return adapter


@asynccontextmanager
async def connected(
    fake: FakeDiscord, inbox: Listener, clock: ManualClock, **extra: Any
) -> AsyncIterator[DiscordAdapter]:
    adapter = made(fake, inbox, clock, **extra)
    async with asyncio.timeout(60):
        await adapter.connect()
    try:
        yield adapter
    finally:
        async with asyncio.timeout(60):
            await adapter.disconnect()


@pytest.fixture
async def adapter(fake: FakeDiscord, inbox: Listener, clock: ManualClock) -> AsyncIterator[DiscordAdapter]:
    async with connected(fake, inbox, clock) as made_one:
        yield made_one


def place(chat_id: str) -> SessionSource:
    return SessionSource(platform=Platform.DISCORD, chat_id=chat_id)


def beating() -> int:
    """How many of the library's threads beat for a connection."""
    return sum("keep-alive" in one.name for one in threading.enumerate())


async def let_pass(clock: ManualClock) -> None:
    """Wait until the adapter pauses, and let the pause be over."""
    await eventually(lambda: clock.sleeping)
    clock.advance(MINUTE)


# What is read of a message.


def message(**more: Any) -> dict[str, Any]:
    return {
        "id": "1100000000004194304",
        "channel_id": DIRECT,
        "author": PERSONS[ALICE],
        "content": "hello",
    } | more


DM, IN_ROOM = wire.Channel(chat_type="dm"), wire.Channel(chat_type="channel", name="room", guild=GUILD)
IN_THREAD = wire.Channel(chat_type="thread", name="side", parent=ROOM, guild=GUILD)
OURS = wire.Me(user_id=ME)


def test_a_direct_message_belongs_to_its_chat() -> None:
    event = build_event(message(), DM)
    assert (event.text, event.message_id, event.addressed) == ("hello", "1100000000004194304", True)
    assert event.timestamp == 1_682_330_837_012
    assert event.source.to_dict() == {
        "platform": "discord",
        "chat_id": DIRECT,
        "chat_type": "dm",
        "user_id": ALICE,
        "user_name": "Alice A.",
        "account": ME,
    }


@each_row(
    "more, text, addressed",
    [
        ({}, "hello", False),
        ({"content": f"<@{ME}> do it", "mentions": [PERSONS[ME]]}, "do it", True),
        ({"content": f"do it <@!{ME}> now", "mentions": [PERSONS[ME]]}, "do it now", True),
        ({"content": f"<@{BOB}> do it", "mentions": [PERSONS[BOB]]}, f"<@{BOB}> do it", False),
        ({"referenced_message": {"author": PERSONS[ME], "content": "why?"}}, "hello", True),
        ({"referenced_message": {"author": PERSONS[BOB], "content": "why?"}}, "hello", False),
        ({"referenced_message": None}, "hello", False),
        ({"content": "@everyone look", "mention_everyone": True}, "@everyone look", False),
    ],
)
def test_a_message_in_a_channel_is_for_us_when_it_names_or_answers_us(more, text, addressed) -> None:
    event = build_event(message(channel_id=ROOM, guild_id=GUILD, **more), IN_ROOM)
    assert (event.text, event.addressed) == (text, addressed)
    assert event.metadata == {"guild_id": GUILD}


def test_an_answer_names_what_it_answers() -> None:
    told = message(
        message_reference={"type": 0, "message_id": "77"},
        referenced_message={"author": PERSONS[BOB], "content": "why?"},
    )
    event = build_event(told, DM)
    assert (event.reply_to_message_id, event.reply_to_text) == ("77", "why?")


def test_an_answer_to_a_forward_does_not_name_who_forwarded_it() -> None:
    forward = {"message_snapshots": [{"message": {"content": "stranger words"}}], "content": ""}
    told = message(
        message_reference={"type": 0, "message_id": "77"},
        referenced_message={"author": PERSONS[BOB], **forward},
    )
    event = build_event(told, DM)
    assert (event.reply_to_text, event.reply_to_author) == ("stranger words", None)


def test_a_thread_stands_beside_the_channel_that_it_belongs_to() -> None:
    source = build_event(message(channel_id=THREAD, guild_id=GUILD), IN_THREAD).source
    assert (source.chat_type, source.chat_id, source.thread_id) == ("thread", ROOM, THREAD)


@each_row(
    "more, text",
    [
        ({"content": "", "sticker_items": [{"name": "wave", "id": "5"}]}, ":wave:"),
        ({"content": "half \ud800 pair and \0 nothing"}, "half \ufffd pair and \ufffd nothing"),
        ({"content": "\u202egnp.exe `rm -rf /` <script>"}, "\u202egnp.exe `rm -rf /` <script>"),
        ({"content": "x" * 4_000}, "x" * 4_000),
    ],
)
def test_words_are_kept_as_they_are_where_they_can_be_kept(more, text) -> None:
    assert build_event(message(**more), DM).text == text


@each_row(
    "mime, flags, kind",
    [
        ("image/png", 0, MessageType.PHOTO),
        ("video/mp4", 0, MessageType.VIDEO),
        ("audio/ogg", 0, MessageType.AUDIO),
        ("audio/ogg", 1 << 13, MessageType.VOICE),
        ("application/pdf", 0, MessageType.DOCUMENT),
        (None, 0, MessageType.DOCUMENT),
    ],
)
def test_a_file_is_of_the_kind_that_its_type_says(mime, flags, kind) -> None:
    name = "../../etc/passwd\r\nX-Evil: 1"
    url = "https://cdn.discordapp.com/attachments/1/2/a"
    one = {"id": "5", "url": url, "filename": name, "size": 12, "content_type": mime}
    event = build_event(message(attachments=[one], flags=flags, content=""), DM)
    assert event.media == (Attachment(kind=kind, ref=url, mime=mime, name=name, size=12),)
    assert event.message_type is kind


def test_a_written_command_is_one_and_a_webhook_is_a_bot() -> None:
    event = build_event(message(content="/stop now", webhook_id="9"), DM)
    assert (event.message_type, event.get_command(), event.get_command_args()) == (
        MessageType.COMMAND,
        "stop",
        "now",
    )
    assert event.source.is_bot


def test_what_is_kept_of_a_message_can_be_read_back() -> None:
    event = build_event(message(channel_id=THREAD, guild_id=GUILD), IN_THREAD)
    again = MessageEvent.from_body(json.loads(json.dumps(event.to_body())))
    assert again.to_body() == event.to_body()


@each_row(
    "told",
    [
        None,
        [],
        "text",
        {},
        message(id=5),
        message(id="1" * 21),
        message(id="٣"),
        message(author="alice"),
        message(author={"id": None}),
        message(channel_id=None),
        message(content=["hello"]),
        message(mentions={"id": ME}),
        message(mentions=["x"]),
        message(attachments=[{"id": "5"}]),
        message(guild_id=7),
        message(message_snapshots=[{}], content=""),
    ],
)
def test_a_malformed_message_is_unreadable_and_nothing_else(told) -> None:
    with pytest.raises(wire.Unreadable) as refused:
        read(told)
    assert "hello" not in str(refused.value)


def read(told: object) -> MessageEvent | None:
    message = wire.read(told, wire.Message)
    return wire.build_event(message, IN_ROOM, OURS) if message.is_for(OURS) else None


def build_event(told: object, channel: wire.Channel) -> MessageEvent:
    return wire.build_event(wire.read(told, wire.Message), channel, OURS)


def test_types_that_cannot_be_hashed_are_read_too() -> None:
    assert read(message(type=[])) is None
    assert wire.parse_channel({"id": "5", "type": {}}).chat_type == "channel"


# What is said.


@each_row(
    "text, shown",
    [
        ("**bold** and `code`", "**bold** and `code`"),
        ("# one\n### three\n#### four ##", "# one\n### three\n**four**"),
        ("![cat](https://x.example/c.png)", "[cat](https://x.example/c.png)"),
        ("![](https://x.example/c.png)", "https://x.example/c.png"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\nafter", "```\n| a | b |\n|---|---|\n| 1 | 2 |\n```\nafter"),
        ("```md\n#### four\n| a |\n|---|\n```", "```md\n#### four\n| a |\n|---|\n```"),
        ("```open\n#### four", "```open\n#### four"),
        ("say `#### x` so", "say `#### x` so"),
        ("#### four #\nx", "**four**\nx"),
    ],
)
def test_markdown_is_shown_as_discord_knows_it(text, shown) -> None:
    assert wire.convert_markdown(text, 2_000) == shown


def test_what_would_become_too_long_stays_as_it_was() -> None:
    table = "| a |\n|---|\n| 1 |"
    assert wire.convert_markdown(table, len(table) + 3) == table


@each_row(
    "name, kept",
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\x\\y.txt", "y.txt"),
        ('a"; filename="b\r\nX: 1', "a__ filename__b__X_ 1"),
        ("...", "file"),
        (None, "file"),
        ("ü" * 300, "_" * 100),
    ],
)
def test_a_file_name_may_stand_in_a_header(name, kept) -> None:
    assert wire.file_name(name) == kept


@each_row(
    "extra",
    [
        {"webhook": 1},
        {"base_url": "http://discord.example"},
        {"base_url": 5},
        {"base_url": "https://user:secret@discord.example"},
        {"cdn_url": "ftp://cdn"},
        {"backfill": "yes"},
        {"backfill_limit": 0},
        {"backfill_limit": 1.5},
        {"max_held": True},
        {"timeout_seconds": 0},
        {"timeout_seconds": "30"},
        {"channels": "3001"},
        {"channels": [3001]},
    ],
)
def test_a_malformed_setting_is_refused_by_name(extra) -> None:
    with pytest.raises(ConfigError) as refused:
        table_of(DiscordOptions, token=TOKEN, **extra)
    assert next(iter(extra)) in refused.value.message
    assert "secret" not in refused.value.message
    assert refused.value.remedy


def test_settings_are_read() -> None:
    extra = {"channels": ["3001"], "base_url": "https://x.example/api", "timeout_seconds": 0.5}
    options = table_of(DiscordOptions, **extra)
    assert (options.channels, options.base_url, options.timeout_seconds) == (
        ("3001",),
        "https://x.example/api",
        0.5,
    )


@each_row("token", [None, "", "  ", "two words", "line\nbreak", "ümlaut"])
async def test_a_missing_token_is_a_matter_of_settings(token) -> None:
    with pytest.raises(ConfigError) as refused:
        await DiscordAdapter(DiscordOptions(token=token)).connect()
    assert "token" in refused.value.message
    assert bot_token(f" Bot {TOKEN}\n") == TOKEN


def test_pauses_grow_to_a_minute_and_are_not_all_the_same() -> None:
    assert [250 <= pause_ms(0) <= 500, 30_000 <= pause_ms(99) <= 60_000] == [True, True]
    assert len({pause_ms(99) for _ in range(50)}) > 1
    assert pause_ms(0, least=90_000) == 90_000


# The library's undocumented side.


async def test_the_library_has_not_moved_what_we_hold_it_by(fake) -> None:
    discord_library.load()
    import discord
    from discord import gateway, http

    assert discord.version_info[:2] == (2, 7), (
        "look through discord_library before another version is allowed"
    )
    discord_library.direct(fake.url)
    assert http.Route("GET", "/x/{channel_id}", channel_id="../a b").url == f"{fake.url}/x/..%2Fa%20b"
    known = inspect.signature(gateway.DiscordWebSocket.from_client).parameters
    assert {"initial", "gateway", "session", "sequence", "resume"} <= known.keys()
    source = inspect.getsource(gateway.DiscordWebSocket)
    for used in ("_discord_parsers[event]", "session_id = data", "sequence = seq", "gateway = yarl.URL(data"):
        assert f"self.{used}" in source
    assert "raise ReconnectWebSocket(self.shard_id, resume=False)" in source
    assert {"form", "kwargs"} <= inspect.signature(http.HTTPClient.request).parameters.keys()


# Receiving.


async def test_a_message_that_is_said_is_handed_over(adapter, fake, inbox, clock) -> None:
    assert (adapter.account, adapter.lock_identity()) == (ME, TOKEN)
    assert adapter.liveness.state is AdapterState.CONNECTED
    intents = fake.identified[0]["intents"]
    assert intents == (1 << 0) | (1 << 9) | (1 << 12) | (1 << 15)
    await fake.say("hello")
    await fake.say(f"<@{ME}> there", channel=THREAD, mentions=[PERSONS[ME]])
    await eventually(lambda: len(inbox.once) == 2)
    assert inbox.once == ["hello", "there"]
    source = inbox.inbound[1].source
    assert (source.chat_id, source.thread_id, source.chat_name) == (ROOM, THREAD, "side")
    assert adapter.liveness.inbound_at == clock.now()
    assert adapter.liveness.outbound_at is None


async def test_our_own_messages_and_notices_are_passed_over(adapter, fake, inbox) -> None:
    await fake.say("from us", author=ME)
    await fake.say("", type=7)
    await fake.say("hello")
    await eventually(lambda: inbox.inbound)
    assert inbox.once == ["hello"]
    assert adapter.liveness.refused == 0


async def test_a_channel_is_asked_for_once_and_again_when_it_changed(adapter, fake, inbox) -> None:
    await fake.say("one", channel=ROOM)
    await fake.say("two", channel=ROOM)
    await eventually(lambda: len(inbox.once) == 2)
    fake.channels[ROOM]["name"] = "renamed"
    await fake.tell("CHANNEL_UPDATE", fake.channels[ROOM])
    await fake.say("three", channel=ROOM)
    await eventually(lambda: len(inbox.once) == 3)
    names = [one.source.chat_name for one in inbox.inbound if one.source is not None]
    assert names == ["room", "room", "renamed"]
    assert len(fake.calls("GET", f"/channels/{ROOM}")) == 2


async def test_a_channel_that_may_not_be_seen_is_a_channel_without_a_name(adapter, fake, inbox) -> None:
    fake.play("GET", f"/channels/{ROOM}", status=403, body={"message": "Missing Access", "code": 50001})
    await fake.say("one", channel=ROOM)
    await eventually(lambda: inbox.inbound)
    source = inbox.inbound[0].source
    assert (source.chat_type, source.chat_id, source.chat_name) == ("channel", ROOM, None)


async def test_a_message_waits_while_its_channel_cannot_be_looked_up(adapter, fake, inbox, clock) -> None:
    fake.play("GET", f"/channels/{THREAD}", status=503, body={})
    await fake.say("one", channel=THREAD)
    await fake.say("two")
    await let_pass(clock)
    await eventually(lambda: len(inbox.once) == 2)
    assert inbox.once == ["one", "two"]


async def test_when_too_many_are_held_the_connection_is_closed_and_a_resume_brings_the_rest(
    fake, inbox, clock
) -> None:
    inbox.down = True
    async with connected(fake, inbox, clock, max_held=3) as adapter:
        for number in range(8):
            await fake.say(str(number))
        await eventually(lambda: fake.goodbyes == [4000])
        await eventually(lambda: adapter.liveness.state is AdapterState.RECONNECTING)
        assert (await adapter.send(DIRECT, "what is said goes on")).success
        assert fake.resumed == []
        inbox.down = False
        await let_pass(clock)
        await eventually(lambda: len(inbox.once) == 8)
        assert inbox.once == [str(number) for number in range(8)]
        assert [len(fake.identified), fake.resumed[0]["seq"]] == [1, 4]
        await eventually(lambda: adapter.liveness.state is AdapterState.CONNECTED)


async def test_when_the_session_is_over_by_then_the_rest_is_asked_for(fake, inbox, clock) -> None:
    async with connected(fake, inbox, clock, max_held=2):
        await fake.say("0")
        await eventually(lambda: inbox.inbound)
        inbox.down, fake.refuse_resume = True, True
        for number in range(1, 6):
            await fake.say(str(number))
        await eventually(lambda: fake.goodbyes == [4000])
        inbox.down = False
        await let_pass(clock)
        await let_pass(clock)
        await eventually(lambda: len(inbox.once) == 6)
        assert inbox.once == [str(number) for number in range(6)]
        assert len(fake.identified) == 2


@each_row(
    "name, data",
    [
        ("MESSAGE_CREATE", {"content": "marked-words"}),
        ("MESSAGE_CREATE", ["marked-words"]),
        (
            "MESSAGE_CREATE",
            {"id": "5", "channel_id": DIRECT, "author": {"id": ALICE}, "content": {"a": "marked-words"}},
        ),
        ("MESSAGE_UPDATE", "marked-words"),
        ("MESSAGE_DELETE", {"id": {}, "channel_id": DIRECT}),
        ("MESSAGE_DELETE_BULK", {"ids": "marked-words", "channel_id": DIRECT}),
        ("INTERACTION_CREATE", {"id": "5", "data": "marked-words"}),
        ("INTERACTION_CREATE", {"id": "5", "token": "x", "channel_id": DIRECT, "type": 3, "data": {}}),
    ],
)
async def test_a_malformed_update_is_counted_and_stops_nothing(
    fake, inbox, clock, caplog, name, data
) -> None:
    caplog.set_level(logging.DEBUG)
    async with connected(fake, inbox, clock) as adapter:
        inbox.inbound.clear()
        await fake.tell(name, data)
        await fake.say("good")
        await eventually(lambda: inbox.inbound)
        assert (inbox.once, adapter.liveness.refused) == (["good"], 1)
    assert "marked-words" not in caplog.text
    assert "channel.refused" in caplog.text


@each_row("raw", ["{not json", "[]", '"text"', '{"op": 10, "d": null}', '{"op": 0, "t": "READY", "d": 5}'])
async def test_a_frame_that_the_library_cannot_read_costs_one_resume(adapter, fake, inbox, raw) -> None:
    times = adapter.liveness.refused + 1
    await fake.write(raw)
    await fake.say("good")
    await eventually(lambda: len(inbox.once) == times)
    assert (inbox.once, adapter.liveness.refused) == (["good"] * times, times)
    assert [len(fake.identified), len(fake.resumed)] == [1, times]
    await eventually(lambda: beating() == 1)


async def test_a_gateway_that_takes_no_connection_is_asked_again_to_resume(
    adapter, fake, inbox, clock
) -> None:
    fake.deaf = 2
    fake.cut()
    await fake.say("meanwhile")
    await let_pass(clock)
    await let_pass(clock)
    await eventually(lambda: inbox.inbound)
    assert [len(fake.identified), len(fake.resumed), fake.deaf] == [1, 1, 0]
    assert adapter.liveness.refused == 0


async def test_an_update_of_a_kind_that_is_new_is_passed_over(adapter, fake, inbox) -> None:
    await fake.tell("GUILD_CREATE", {"anything": 1})
    await fake.tell("SOMETHING_NEW", None)
    await fake.order(99)
    await fake.say("good")
    await eventually(lambda: inbox.inbound)
    assert (inbox.once, adapter.liveness.refused) == (["good"], 0)


async def test_edits_are_told_and_previews_of_links_are_not(adapter, fake, inbox, clock) -> None:
    told = await fake.say("hello")
    await fake.tell("MESSAGE_UPDATE", told | {"embeds": [{}]})
    await fake.tell("MESSAGE_UPDATE", {"id": told["id"], "channel_id": DIRECT, "embeds": []})
    await eventually(lambda: inbox.inbound)
    inbox.failures.append(StoreUnavailable("down"))
    await fake.tell(
        "MESSAGE_UPDATE", told | {"content": "hello all", "edited_timestamp": "2026-11-21T18:01:00Z"}
    )
    await let_pass(clock)
    await eventually(lambda: inbox.edits)
    assert [(one.text, one.message_id) for one in inbox.edits] == [("hello all", told["id"])]


async def test_deletions_are_told_one_by_one(adapter, fake, inbox) -> None:
    await fake.tell("MESSAGE_DELETE", {"id": "51", "channel_id": DIRECT})
    await fake.tell("MESSAGE_DELETE_BULK", {"ids": ["52", "53"], "channel_id": THREAD, "guild_id": GUILD})
    await eventually(lambda: len(inbox.withdrawn) == 3)
    assert [message_id for _, message_id in inbox.withdrawn] == ["51", "52", "53"]
    source = inbox.withdrawn[2][0]
    assert (source.chat_id, source.thread_id, source.chat_type) == (ROOM, THREAD, "thread")


async def test_a_pressed_button_is_told_and_answered_for_the_one_who_pressed(
    adapter, fake, inbox, caplog
) -> None:
    caplog.set_level(logging.DEBUG)
    token = await fake.press("approve:7", "61", channel=ROOM, author=BOB)
    await eventually(lambda: any("callback" in one.path for one in fake.seen))
    press = inbox.presses[0]
    assert (press.value, press.message_id, press.source.user_id) == ("approve:7", "61", BOB)
    assert press.source.chat_id == ROOM
    answer = fake.calls("POST", f"/interactions/{press.press_id}/{token}/callback")[0]
    assert answer.body["type"] == 4
    assert answer.body["data"]["content"] == "approved by Alice"
    assert answer.body["data"]["flags"] == 64
    assert token not in caplog.text


async def test_a_press_is_taken_though_its_note_comes_too_late(adapter, fake, inbox) -> None:
    interaction = str(int(fake.new_id()) + (1 << 22))
    token = f"aT0ken-{interaction}"
    late = {"message": "Unknown interaction", "code": 10062}
    fake.play("POST", f"/interactions/{interaction}/{token}/callback", status=404, body=late)
    assert await fake.press("approve:7", "61") == token
    await fake.say("after")
    await eventually(lambda: inbox.inbound)
    assert (len(inbox.presses), adapter.liveness.refused, len(fake.plays)) == (1, 0, 0)


async def test_a_slash_command_is_a_message_with_a_slash(fake, inbox, clock) -> None:
    options = [{"name": "how", "type": 1, "options": [{"name": "n", "type": 4, "value": 3}]}]
    told = {"id": fake.new_id(), "type": 2, "token": "t0", "channel_id": ROOM, "guild_id": GUILD}
    told |= {"member": {"user": PERSONS[BOB], "nick": "Bobby"}, "data": {"name": "queue", "options": options}}
    async with connected(fake, inbox, clock):
        await fake.tell("INTERACTION_CREATE", told)
        await eventually(lambda: any("callback" in one.path for one in fake.seen))
        event = inbox.inbound[0]
        assert (event.text, event.message_type, event.addressed) == (
            "/queue how 3",
            MessageType.COMMAND,
            True,
        )
        assert (event.source.user_id, event.source.user_name) == (BOB, "Bobby")


# Cuts.


async def test_after_a_new_session_what_was_missed_is_asked_for_in_order(fake, inbox, clock) -> None:
    fake.refuse_resume = True
    async with connected(fake, inbox, clock) as adapter:
        await fake.say("one")
        await fake.say("uno", channel=THREAD)
        await eventually(lambda: len(inbox.once) == 2)
        fake.cut()
        missed = [fake.message(f"two {number}") for number in range(3)]
        fake.message("dos", channel=THREAD, mentions=[PERSONS[ME]])
        fake.message("ours", author=ME)
        await let_pass(clock)
        await eventually(lambda: "dos" in inbox.once)
        await fake.say("live")
        await eventually(lambda: "live" in inbox.once)
        assert inbox.once == ["one", "uno", "two 0", "two 1", "two 2", "dos", "live"]
        assert inbox.inbound[2].message_id == missed[0]["id"]
        dos = inbox.inbound[5]
        assert (dos.source.thread_id, dos.metadata, dos.addressed) == (THREAD, {"guild_id": GUILD}, True)
        assert adapter.liveness.state is AdapterState.CONNECTED


async def test_a_new_session_waits_as_long_as_discord_wants_between_two(fake, inbox, clock) -> None:
    fake.refuse_resume = True
    async with connected(fake, inbox, clock):
        fake.cut()
        await eventually(lambda: clock.sleeping)
        clock.advance(timedelta(milliseconds=4_999))
        assert clock.sleeping == 1
        clock.advance(timedelta(milliseconds=1))
        await eventually(lambda: len(fake.identified) == 2)


async def test_what_is_asked_for_is_bounded_and_paged(fake, inbox, clock, caplog) -> None:
    async with connected(fake, inbox, clock, backfill_limit=120) as adapter:
        await fake.say("first")
        await eventually(lambda: inbox.inbound)
        for number in range(130):
            fake.message(str(number))
        await adapter.disconnect()
        await adapter.connect(is_reconnect=True)
        await eventually(lambda: "discord.backfill_cut" in caplog.text)
        assert inbox.once == ["first", *map(str, range(120))]
        assert [one.query["limit"] for one in fake.calls("GET", f"/channels/{DIRECT}/messages")] == [
            "100",
            "20",
        ]


async def test_what_is_asked_for_is_asked_again_from_where_it_failed(adapter, fake, inbox, clock) -> None:
    await fake.say("first")
    await eventually(lambda: inbox.inbound)
    fake.message("second")
    await adapter.disconnect()
    fake.play("GET", f"/channels/{DIRECT}/messages", status=503, body={})
    inbox.failures.append(StoreUnavailable("down"))
    await adapter.connect(is_reconnect=True)
    await let_pass(clock)
    await let_pass(clock)
    await eventually(lambda: len(inbox.once) == 2)
    assert inbox.once == ["first", "second"]


async def test_a_channel_that_is_gone_is_not_asked_again(adapter, fake, inbox) -> None:
    await fake.say("first", channel=ROOM)
    await fake.say("direct")
    await eventually(lambda: len(inbox.once) == 2)
    del fake.channels[ROOM]
    fake.message("second")
    for number in range(2):
        await adapter.disconnect()
        await adapter.connect(is_reconnect=True)
        await fake.say(f"live {number}")
        await eventually(lambda text=f"live {number}": text in inbox.once)
    assert len(fake.calls("GET", f"/channels/{ROOM}/messages")) == 1
    assert inbox.once == ["first", "direct", "second", "live 0", "live 1"]


async def test_a_channel_that_was_crowded_out_is_not_read_from_its_beginning(
    fake, inbox, clock, monkeypatch
) -> None:
    monkeypatch.setattr("postroom.gateway.platforms.discord.MAX_MARKS", 2)
    fake.message("years ago")
    async with connected(fake, inbox, clock, max_held=9) as adapter:
        await fake.say("one")
        await fake.say("two", channel=ROOM)
        await eventually(lambda: len(inbox.once) == 2)
        fake.message("three", channel=ROOM)
        fake.channels["3009"] = fake.channels[ROOM] | {"id": "3009"}
        adapter.remember(place("3009"), fake.new_id())
        await adapter.disconnect()
        await adapter.connect(is_reconnect=True)
        await eventually(lambda: "three" in inbox.once)
        await fake.say("live")
        await eventually(lambda: "live" in inbox.once)
        assert inbox.once == ["one", "two", "three", "live"]


async def test_nothing_is_asked_for_when_that_is_switched_off(fake, inbox, clock) -> None:
    async with connected(fake, inbox, clock, backfill=False, channels=[ROOM]) as adapter:
        await fake.say("first")
        await eventually(lambda: inbox.inbound)
        fake.message("missed")
        await adapter.disconnect()
        await adapter.connect(is_reconnect=True)
        await fake.say("live")
        await eventually(lambda: len(inbox.once) == 2)
        assert inbox.once == ["first", "live"]
        assert [one for one in fake.seen if one.path.endswith("/messages")] == []


async def test_at_the_start_the_named_channels_are_looked_through_and_what_is_remembered(
    fake, inbox, clock
) -> None:
    long_ago = fake.message("long ago", channel=ROOM)
    fake._ids += 7_200_000 << 22
    fake.message("lately", channel=ROOM)
    known = fake.message("known")
    fake.message("unknown")
    clock.set(wire.read_time_from_id(known["id"]) + 60_000)
    adapter = made(fake, inbox, clock, channels=[ROOM])
    adapter.remember(place(DIRECT), known["id"])
    adapter.remember(place("not an id"), "5")
    async with asyncio.timeout(60):
        await adapter.connect()
        await eventually(lambda: len(inbox.once) == 2)
        await adapter.disconnect()
    assert sorted(inbox.once) == ["lately", "unknown"]
    assert long_ago["id"] not in [one.message_id for one in inbox.inbound]


async def test_resumes_that_fail_again_and_again_end_in_a_new_session(fake, inbox, clock) -> None:
    fake.silent_resume = True
    async with connected(fake, inbox, clock) as adapter:
        fake.cut()
        for _ in range(5):
            await let_pass(clock)
        await eventually(lambda: len(fake.identified) == 2)
        assert len(fake.resumed) == 5
        await eventually(lambda: adapter.liveness.state is AdapterState.CONNECTED)


@each_row(
    "code, error, words", [(4004, "unauthorized", "Reset Token"), (4014, "missing_intent", "Message Content")]
)
async def test_what_a_person_must_mend_ends_receiving(fake, inbox, clock, code, error, words) -> None:
    async with connected(fake, inbox, clock) as adapter:
        known = len(fake.identified) + len(fake.resumed)
        await fake.close(code)
        await eventually(lambda: adapter.liveness.state is AdapterState.FAILED)
        assert (adapter.liveness.error_code, adapter.liveness.retryable) == (error, code != 4004)
        assert words in (adapter.liveness.error or "")
        assert len(fake.identified) + len(fake.resumed) == known


@each_row(
    "code, words",
    [
        (4004, "token"),
        (4014, "`Message Content`"),
        (4011, "guilds"),
        (4012, "version"),
        (4013, "intents as invalid"),
    ],
)
async def test_what_discord_refuses_at_the_start_is_a_matter_of_settings(
    fake, inbox, clock, code, words
) -> None:
    fake.close_identify = code
    adapter = made(fake, inbox, clock)
    async with asyncio.timeout(60):
        with pytest.raises(ConfigError) as refused:
            await adapter.connect()
    assert words in refused.value.message
    assert refused.value.remedy
    assert isinstance(refused.value, CredentialRefused) is (code == 4004)
    assert adapter.liveness.state is AdapterState.FAILED
    assert len(adapter._tasks) == 0


def test_the_missing_intent_is_named_with_the_place_where_it_is_switched_on() -> None:
    refused = DiscordAdapter(DiscordOptions(token=TOKEN))._refused(4014)
    assert "https://discord.com/developers/applications" in refused.remedy
    assert "Message Content Intent" in refused.remedy


async def test_no_session_is_begun_when_none_is_left(fake, inbox, clock) -> None:
    fake.starts_left = 0
    async with asyncio.timeout(60):
        with pytest.raises(ServerUnavailable):
            await made(fake, inbox, clock).connect()
    assert fake.identified == []


async def test_a_later_session_waits_until_one_is_left(fake, inbox, clock) -> None:
    fake.refuse_resume = True
    async with connected(fake, inbox, clock):
        fake.starts_left = 0
        fake.cut()
        await let_pass(clock)
        await eventually(lambda: clock.sleeping)
        clock.advance(timedelta(milliseconds=89_999))
        fake.starts_left = 1
        assert clock.sleeping == 1
        clock.advance(timedelta(milliseconds=1))
        await eventually(lambda: len(fake.identified) == 2)


async def test_heartbeats_that_are_answered_show_that_it_lives(adapter, fake, clock) -> None:
    assert fake.heartbeats == 1
    clock.advance(MINUTE)
    await fake.order(11)
    await eventually(lambda: adapter.liveness.inbound_at == clock.now())


# The end.


async def test_disconnecting_leaves_nothing_behind_and_may_be_done_twice(fake, inbox, clock) -> None:
    before, threads = asyncio.all_tasks(), threading.active_count()
    adapter = made(fake, inbox, clock)
    await adapter.disconnect()
    async with asyncio.timeout(60):
        await adapter.connect()
        await adapter.disconnect()
        await adapter.disconnect()
    await eventually(lambda: fake.goodbyes == [1000])
    await eventually(lambda: asyncio.all_tasks() <= before)
    await eventually(lambda: beating() == 0)
    assert threading.active_count() <= threads + 1
    assert adapter.liveness.state is AdapterState.STOPPED
    result = await adapter.send(DIRECT, "hello")
    assert result.error_kind is SendErrorKind.TRANSIENT


async def test_what_was_received_is_kept_before_it_ends(fake, inbox, clock) -> None:
    gate = inbox.gate = asyncio.Event()
    async with connected(fake, inbox, clock) as adapter, asyncio.TaskGroup() as group:
        for number in range(20):
            adapter._on_update("MESSAGE_CREATE", fake.message(str(number)))
        ending = group.create_task(adapter.disconnect())
        await eventually(lambda: fake.goodbyes == [1000])
        gate.set()
        await eventually(ending.done)
        assert len(inbox.inbound) == 20


async def test_what_cannot_be_kept_does_not_hold_the_end_and_comes_later(fake, inbox, clock) -> None:
    inbox.down = True
    async with connected(fake, inbox, clock) as adapter:
        await fake.say("one")
        await eventually(lambda: clock.sleeping)
        async with asyncio.timeout(PATIENCE):
            await adapter.disconnect()
        inbox.down = False
        await adapter.connect(is_reconnect=True)
        await eventually(lambda: inbox.inbound)
        assert inbox.once[0] == "one"


# Sending.


async def test_what_is_said_is_shown_and_wakes_nobody_it_does_not_name(adapter, fake, clock) -> None:
    result = await adapter.send(ROOM, "#### Result\n@everyone", "77", {"thread_id": THREAD})
    assert result.success
    said = fake.said[0]
    assert result.message_id == said["id"]
    assert (said["content"], said["channel_id"]) == ("**Result**\n@everyone", THREAD)
    assert said["message_reference"] == {"message_id": "77", "fail_if_not_exists": False}
    assert said["allowed_mentions"] == {"parse": ["users"], "replied_user": False}
    assert adapter.liveness.outbound_at == clock.now()


async def test_an_answer_that_does_not_come_leaves_it_open(adapter, fake) -> None:
    adapter._bot._timeout = 0.2
    fake.play("POST", f"/channels/{DIRECT}/messages", hang=True)
    result = await adapter.send(DIRECT, "hello")
    assert result.error_kind is SendErrorKind.UNKNOWN


FEWER = {"content": {"_errors": [{"code": "X", "message": "Must be 2000 or fewer in length."}]}}


@each_row(
    "play, kind, wait",
    [
        ({"status": 429, "body": {"retry_after": 31.5, "global": False}}, SendErrorKind.RATE_LIMITED, 31_500),
        (
            {"status": 429, "body": "banned", "headers": {"Retry-After": "60"}},
            SendErrorKind.RATE_LIMITED,
            60_000,
        ),
        ({"status": 429, "body": "banned"}, SendErrorKind.RATE_LIMITED, None),
        (
            {"status": 403, "body": {"message": "Cannot send to this user", "code": 50007}},
            SendErrorKind.FORBIDDEN,
            None,
        ),
        (
            {"status": 404, "body": {"message": "Unknown Channel", "code": 10003}},
            SendErrorKind.NOT_FOUND,
            None,
        ),
        ({"status": 503, "body": {}}, SendErrorKind.TRANSIENT, None),
        (
            {"status": 400, "body": {"message": "Invalid Form Body", "code": 50035, "errors": FEWER}},
            SendErrorKind.TOO_LONG,
            None,
        ),
        ({"status": 413, "body": {"message": "Too large", "code": 40005}}, SendErrorKind.TOO_LONG, None),
        (
            {"status": 400, "body": {"message": "Invalid Form Body", "code": 50035}},
            SendErrorKind.BAD_FORMAT,
            None,
        ),
    ],
)
async def test_a_refusal_is_told_with_its_kind(adapter, fake, clock, play, kind, wait) -> None:
    fake.play("POST", f"/channels/{DIRECT}/messages", **play)
    said = len(fake.said)
    result = await adapter.send(DIRECT, "hello")
    assert (result.error_kind, result.retry_after_ms) == (kind, wait)
    assert len(fake.said) == said
    if kind is SendErrorKind.RATE_LIMITED:
        asked = len(fake.seen)
        assert (await adapter.send(DIRECT, "too soon")).retry_after_ms
        assert len(fake.seen) == asked
        clock.advance(timedelta(minutes=1))
    assert (await adapter.send(DIRECT, "hello")).success


async def test_a_short_rate_limit_is_waited_out_and_the_message_is_said_once(adapter, fake) -> None:
    fake.play(
        "POST", f"/channels/{DIRECT}/messages", status=429, body={"retry_after": 0.001, "global": False}
    )
    assert (await adapter.send(DIRECT, "hello")).success
    assert len(fake.said) == 1


async def test_a_failure_in_between_is_repeated_harmlessly_and_then_left_open(
    fake, inbox, clock, monkeypatch
) -> None:
    async def at_once(_seconds: float) -> None:
        return

    discord_library.load()
    known = {
        name: getattr(asyncio, name) for name in ("Event", "TimeoutError", "get_running_loop", "Lock", "wait")
    }
    monkeypatch.setattr("discord.http.asyncio", types.SimpleNamespace(**known, sleep=at_once))
    async with connected(fake, inbox, clock) as adapter:
        for _ in range(5):
            fake.play("POST", f"/channels/{DIRECT}/messages", status=504, body={})
        result = await adapter.send(DIRECT, "hello")
        assert result.error_kind is SendErrorKind.UNKNOWN
        nonces = {one.body["nonce"] for one in fake.calls("POST", f"/channels/{DIRECT}/messages")}
        assert len(nonces) == 1


async def test_a_discord_that_takes_no_connection_has_not_taken_the_message(adapter) -> None:
    discord_library.direct("http://127.0.0.1:9/api/v10")
    result = await adapter.send(DIRECT, "hello")
    assert result.error_kind is SendErrorKind.TRANSIENT


async def test_a_token_that_was_taken_back_ends_it(adapter, fake) -> None:
    fake.play(
        "POST",
        f"/channels/{DIRECT}/messages",
        status=401,
        body={"message": "401: Unauthorized", "code": 0},
    )
    result = await adapter.send(DIRECT, "hello")
    assert result.error_kind is SendErrorKind.FORBIDDEN
    assert (adapter.liveness.state, adapter.liveness.retryable) == (AdapterState.FAILED, False)


@each_row(
    "chat, text, kind",
    [
        (DIRECT, "x" * 2_001, SendErrorKind.TOO_LONG),
        (DIRECT, " \n", SendErrorKind.BAD_FORMAT),
        ("../../users/@me", "hello", SendErrorKind.NOT_FOUND),
        ("", "hello", SendErrorKind.NOT_FOUND),
        ("4999", "hello", SendErrorKind.NOT_FOUND),
    ],
)
async def test_what_can_never_be_said_is_refused(adapter, fake, chat, text, kind) -> None:
    assert (await adapter.send(chat, text)).error_kind is kind
    assert fake.said == []


async def test_typing_that_is_too_frequent_keeps_no_answer_waiting(adapter, fake) -> None:
    told = {"retry_after": 31.5, "global": False}
    fake.play("POST", f"/channels/{DIRECT}/typing", status=429, body=told)
    for _ in range(3):
        await adapter.send_typing(DIRECT)
    assert len(fake.calls("POST", f"/channels/{DIRECT}/typing")) == 1
    assert (await adapter.send(DIRECT, "the answer, which need not wait")).success


async def test_messages_are_edited_deleted_and_announced(adapter, fake) -> None:
    assert (await adapter.edit_message(DIRECT, "71", "#### new")).message_id == "71"
    assert (await adapter.delete_message(ROOM, "72", {"thread_id": THREAD})).success
    await adapter.send_typing(DIRECT)
    await adapter.send_typing("4999")
    assert fake.calls("PATCH", f"/channels/{DIRECT}/messages/71")[0].body["content"] == "**new**"
    assert len(fake.calls("DELETE", f"/channels/{THREAD}/messages/72")) == 1
    assert len(fake.calls("POST", f"/channels/{DIRECT}/typing")) == 1
    assert (await adapter.edit_message(DIRECT, "../5", "x")).error_kind is SendErrorKind.NOT_FOUND


async def test_a_message_is_marked_as_seen_until_the_mark_is_taken_back(adapter, fake) -> None:
    marked = await adapter.react(ROOM, "71", {"thread_id": THREAD})
    assert marked.success
    assert (await adapter.react(ROOM, "71", {"thread_id": THREAD}, takes_back=marked.message_id)).success
    path = f"/channels/{THREAD}/messages/71/reactions/👀/@me"
    assert [len(fake.calls(method, path)) for method in ("PUT", "DELETE")] == [1, 1]
    assert (await adapter.react(ROOM, "../5")).error_kind is SendErrorKind.NOT_FOUND


async def test_a_card_has_buttons_until_it_is_answered(fake, inbox, clock) -> None:
    card = Card(text="May I?", buttons=tuple(Button(label=f"{n}" * 80, value=f"v{n}") for n in range(7)))
    async with connected(fake, inbox, clock) as adapter:
        sent = await adapter.send_card(DIRECT, card)
        rows = fake.said[0]["components"]
        assert [len(row["components"]) for row in rows] == [5, 2]
        assert rows[1]["components"][0] == {"type": 2, "style": 2, "label": "5" * 80, "custom_id": "v5"}
        assert sent.message_id is not None
        await adapter.update_card(DIRECT, sent.message_id, card.answered("yes, by Alice"))
        shown = fake.calls("PATCH", f"/channels/{DIRECT}/messages/{sent.message_id}")[0].body
        assert (shown["content"], shown["components"]) == ("May I?\n\nyes, by Alice", [])
        many = Card(text="Which?", buttons=tuple(Button(label=str(n), value=f"v{n}") for n in range(26)))
        assert (await adapter.send_card(DIRECT, many)).success
        assert "25: /v25" in fake.said[1]["content"]
        alike = Card(
            text="Which?", buttons=tuple(Button(label=f"{'l' * 80}{n}", value=f"v{n}") for n in range(2))
        )
        assert (await adapter.send_card(DIRECT, alike)).success
        assert f"{'l' * 80}1: /v1" in fake.said[2]["content"], "labels that were cut would look the same"
        assert (await adapter.send_card(DIRECT, Card(text="x" * 2_001))).error_kind is SendErrorKind.TOO_LONG


async def test_a_file_is_sent_under_a_harmless_name(fake, inbox, clock) -> None:
    hostile = Attachment(
        kind=MessageType.DOCUMENT, ref="x", mime="text/plain\r\nX: 1", name='../a";b\r\nX: 1.txt'
    )
    async with connected(fake, inbox, clock) as adapter:
        result = await adapter.send_media(
            DIRECT, hostile, sending(b"words \xff"), "look", {"dedupe_key": "k"}
        )
        assert result.success
        seen = fake.calls("POST", f"/channels/{DIRECT}/messages")[0]
        assert seen.file == ("a__b__X_ 1.txt", "application/octet-stream", b"words \xff")
        assert (seen.body["content"], seen.body["nonce"]) == ("look", wire.make_nonce("k"))
        assert (
            await adapter.send_media(DIRECT, hostile, sending(b"x"), "y" * 2_001)
        ).error_kind is SendErrorKind.TOO_LONG


async def test_a_file_is_fetched_from_discord_only_and_no_more_than_may_be(fake, inbox, clock) -> None:
    fake.files["/attachments/a.txt"] = b"x" * 1_000

    def at(ref: str, size: int | None = None) -> Attachment:
        return Attachment(kind=MessageType.DOCUMENT, ref=ref, size=size)

    async with connected(fake, inbox, clock) as adapter:
        there = f"{fake.cdn}/attachments/a.txt?ex=1"
        assert await fetched(adapter, at(there, 1_000), max_bytes=1_000) == b"x" * 1_000
        assert "Authorization" not in fake.calls("GET", "/attachments/a.txt")[0].headers
        with pytest.raises(TooLarge):
            await fetched(adapter, at(there), max_bytes=999)
        with pytest.raises(TooLarge):
            await fetched(adapter, at(there, 1_001), max_bytes=1_000)
        with pytest.raises(ServerUnavailable):
            await fetched(adapter, at(f"{fake.cdn}/attachments/gone.txt"), max_bytes=10)
        fake.moved["/attachments/moved.txt"] = "/attachments/a.txt"
        with pytest.raises(ServerUnavailable):
            await fetched(adapter, at(f"{fake.cdn}/attachments/moved.txt"), max_bytes=1_000)
        assert fake.seen[-1].path == "/attachments/moved.txt"
        asked = len(fake.seen)
        foreign = (
            "http://169.254.169.254/latest",
            f"{fake.cdn}@evil.example/a",
            "file:///etc/passwd",
            "http://[",
            "",
        )
        elsewhere = fake.cdn.replace("127.0.0.1", "localhost") + "/attachments/a.txt"
        for ref in (elsewhere, *foreign, fake.cdn.replace("http", "https") + "/attachments/a.txt"):
            with pytest.raises(ServerUnavailable):
                await fetched(adapter, at(ref), max_bytes=1_000)
        assert len(fake.seen) == asked
    with pytest.raises(ServerUnavailable):
        await fetched(adapter, at(there), max_bytes=1_000)
