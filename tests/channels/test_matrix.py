"""The Matrix adapter, against a fake homeserver on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nio import Api

from channels.chat_listener import Listener, eventually
from channels.fake_matrix import BOT, TOKEN, FakeMatrix, Fault
from channels.fetching import fetched, sending
from platform_tables import table_of
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.errors import ConfigError, ServerUnavailable, StoreUnavailable, TooLarge
from postroom.gateway.events import Attachment, MessageType, SendErrorKind
from postroom.gateway.platforms import matrix as wire
from postroom.gateway.platforms.base import AdapterState
from postroom.gateway.platforms.matrix import MatrixAdapter, MatrixOptions
from postroom.gateway.session import Platform
from postroom.testing import ManualClock
from table_rows import each_row

ROOM, DM = "!group:fake", "!direct:fake"
ANN = "@ann:fake"
SUMMARY = {"m.joined_member_count": 5, "m.invited_member_count": 0}
PAIR = {"m.joined_member_count": 2, "m.invited_member_count": 0}


@pytest.fixture
async def fake() -> AsyncIterator[FakeMatrix]:
    async with FakeMatrix() as server:
        server.first = {"rooms": {"join": {ROOM: {"summary": SUMMARY}, DM: {"summary": PAIR}}}}
        yield server


@pytest.fixture
def listener() -> Listener:
    return Listener()


def made(fake: FakeMatrix, clock: ManualClock, **words: Any) -> MatrixAdapter:
    extra = {"base_url": fake.url, **words.pop("extra", {})}
    allow = {ANN: PersonRole.MEMBER}
    config = MatrixOptions(token=words.pop("token", TOKEN), allow=allow, **extra)
    return MatrixAdapter(config, clock=clock, timer=clock)


@pytest.fixture
async def adapter(fake: FakeMatrix, clock: ManualClock, listener: Listener) -> AsyncIterator[MatrixAdapter]:
    found = made(fake, clock)
    found.set_message_handler(listener)
    await found.connect()
    yield found
    await found.disconnect()


def text(event_id: str, body: str = "hello", sender: str = ANN, **content: Any) -> dict[str, Any]:
    kind = content.pop("type", "m.room.message")
    return {
        "type": kind,
        "event_id": event_id,
        "sender": sender,
        "origin_server_ts": 1_700_000_000_000,
        "content": {"msgtype": "m.text", "body": body, **content},
    }


def bare(kind: str, content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": kind, "event_id": "$bare", "sender": ANN, "content": content, **more}


async def passing(clock: ManualClock, holds: Any) -> None:
    """Advance through pauses until a condition holds."""
    async with asyncio.timeout(60):
        while not holds():
            clock.advance(timedelta(minutes=1))
            await asyncio.sleep(0)


# What comes in.


async def test_a_message_of_a_direct_chat_is_understood(fake, adapter, listener) -> None:
    await fake.push(DM, text("$1", "hello there"))
    await eventually(lambda: listener.inbound)
    inbound = listener.inbound[0]
    assert (inbound.text, inbound.message_id, inbound.timestamp) == ("hello there", "$1", 1_700_000_000_000)
    assert (inbound.source.platform, inbound.source.chat_type, inbound.source.chat_id) == (
        Platform.MATRIX,
        "dm",
        DM,
    )
    assert (inbound.source.user_id, inbound.source.account, inbound.addressed) == (ANN, BOT, True)
    assert (adapter.account, adapter.lock_identity()) == (BOT, TOKEN)
    assert adapter.liveness.state is AdapterState.CONNECTED
    assert adapter.liveness.inbound_at is not None
    assert adapter.liveness.outbound_at is None


async def test_what_was_said_before_the_first_round_is_history(fake, clock, listener) -> None:
    fake.first["rooms"]["join"][DM]["timeline"] = {"events": [text("$old", "old")]}
    adapter = made(fake, clock)
    adapter.set_message_handler(listener)
    await adapter.connect()
    await fake.push(DM, text("$new", "new"))
    await eventually(lambda: listener.inbound)
    await adapter.disconnect()
    assert listener.texts == ["new"]


async def test_a_batch_that_fails_in_its_middle_comes_again_whole(fake, adapter, listener, clock) -> None:
    accept = listener.accept

    async def second_fails(event):
        if event.text == "two" and listener.refused == 0:
            listener.failures = [StoreUnavailable("away")]
        await accept(event)

    listener.accept = second_fails
    await fake.push(DM, text("$1", "one"), text("$2", "two"))
    await eventually(lambda: listener.refused)
    await passing(clock, lambda: len(listener.inbound) == 3)
    assert listener.texts == ["one", "one", "two"]


@each_row(
    "event",
    [
        "no object",
        {"type": "m.room.message"},
        bare("m.room.message", {"msgtype": "m.text"}),
        {**text("$1"), "event_id": 7},
        {**text("$1"), "event_id": "no sigil"},
        {**text("$1"), "event_id": "$" + "x" * 300},
        {**text("$1"), "sender": None},
        {**text("$1"), "sender": "@a\n:b"},
        text("$1", body=7),  # type: ignore[arg-type]
        text("$1", msgtype="m.image"),
        text("$1", msgtype="m.image", url="https://elsewhere.example/x.png"),
        text("$1", **{"m.relates_to": {"rel_type": "m.thread", "event_id": 7}}),
        text("$1", **{"m.relates_to": {"rel_type": "m.replace", "event_id": "$0"}}),
        bare("m.room.redaction", {}),
    ],
)
async def test_a_malformed_event_is_counted_and_does_not_block(fake, adapter, listener, event) -> None:
    refused, known = adapter.liveness.refused, len(listener.texts)
    await fake.push(DM, event, text(f"${known}after", "after"))
    await eventually(lambda: len(listener.texts) > known)
    assert listener.texts[known:] == ["after"]
    assert adapter.liveness.refused == refused + 1


NAMES = st.sampled_from(
    [
        *("msgtype", "body", "formatted_body", "url", "info", "size", "mimetype", "filename", "m.relates_to"),
        *("rel_type", "event_id", "m.in_reply_to", "m.new_content", "m.mentions", "user_ids", "displayname"),
        *("redacts", "membership", "unsigned", "prev_content", "name", "m.joined_member_count"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["@ann:fake", "$1", BOT, "m.replace", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)
TYPES = st.sampled_from(["m.room.message", "m.sticker", "m.room.redaction", "m.room.member", "m.room.name"])


@given(
    st.fixed_dictionaries(
        {"type": TYPES | VALUES, "content": VALUES},
        optional={
            "sender": VALUES,
            "event_id": VALUES,
            "state_key": VALUES,
            "origin_server_ts": VALUES,
            "unsigned": VALUES,
        },
    )
)
def test_no_event_breaks_the_reader(event) -> None:
    room, me = wire.Room(room_id=ROOM), wire.Ourselves(user_id=BOT, name="Postbot")
    room.learn(event)
    room.count(event["content"])
    wire.after_our_invitation([event], me)
    wire.inviter([event], me)
    wire.parse_quote(event)
    wire.all_older([event], 0)
    try:
        heard = wire.understood({"sender": ANN, "event_id": "$1", **event}, room, me)
    except wire.Malformed:
        return
    if heard is not None:
        assert json.dumps(heard.event.to_body(), ensure_ascii=False).encode("utf-8")


async def test_malformed_batches_do_not_end_receiving(fake, adapter, listener) -> None:
    await fake.push_batch({"join": {DM: {"timeline": {"events": 7}, "state": [], "summary": 3}}})
    await fake.push_batch({"invite": {"!x:fake": {"invite_state": {"events": ["?", {}]}}}})
    await fake.push(DM, text("$1"))
    await eventually(lambda: listener.inbound)
    assert adapter.liveness.state is AdapterState.CONNECTED


async def test_our_own_messages_and_notices_are_passed_over(fake, adapter, listener) -> None:
    own, notice = text("$1", sender=BOT), text("$2", msgtype="m.notice")
    gone = {**text("$3"), "content": {}}
    await fake.push(DM, own, notice, gone, bare("m.reaction", {}), text("$4", "x"))
    await eventually(lambda: listener.inbound)
    assert listener.texts == ["x"]
    assert adapter.liveness.refused == 0


async def test_an_edit_of_somebody_elses_message_is_refused(fake, adapter, listener) -> None:
    new = {"msgtype": "m.text", "body": "pay him"}
    forged = text(
        "$2",
        sender="@eve:fake",
        **{"m.new_content": new, "m.relates_to": {"rel_type": "m.replace", "event_id": "$1"}},
    )
    await fake.push(ROOM, text("$1", "pay her"), forged, text("$3", "after"))
    await eventually(lambda: len(listener.inbound) == 2)
    assert listener.edits == []
    assert adapter.liveness.refused == 1


async def test_a_redaction_takes_a_message_back(fake, adapter, listener) -> None:
    newer, older = bare("m.room.redaction", {"redacts": "$1"}), bare("m.room.redaction", {}, redacts="$2")
    await fake.push(DM, text("$1"), newer, text("$2"), older)
    await eventually(lambda: len(listener.withdrawn) == 2)
    assert [(source.chat_id, gone) for source, gone in listener.withdrawn] == [(DM, "$1"), (DM, "$2")]


async def test_a_thread_is_told_and_its_fallback_is_no_answer(fake, adapter, listener) -> None:
    relation = {
        "rel_type": "m.thread",
        "event_id": "$root",
        "is_falling_back": True,
        "m.in_reply_to": {"event_id": "$last"},
    }
    await fake.push(ROOM, text("$1", **{"m.relates_to": relation}))
    await eventually(lambda: listener.inbound)
    inbound = listener.inbound[0]
    assert (inbound.source.thread_id, inbound.source.chat_type) == ("$root", "group")
    assert inbound.reply_to_message_id is None


MENTIONS = (
    ("hello all", {}, "hello all", False),
    ("Postbot: do it", {}, "do it", True),
    ("postbot, do it", {}, "do it", True),
    ("the postbot is nice", {}, "the postbot is nice", False),
    (f"{BOT} do it", {}, "do it", True),
    ("Postbot do it", {"m.mentions": {"user_ids": [BOT]}}, "do it", True),
    ("Postbot: do it", {"m.mentions": {"user_ids": ["@x:y"]}}, "Postbot: do it", False),
    ("please ask Postbot", {"m.mentions": {"user_ids": [BOT]}}, "please ask Postbot", True),
    (
        "Botty: do it",
        {"formatted_body": f'<a href="https://matrix.to/#/{BOT}">Botty</a>: do it'},
        "do it",
        True,
    ),
    ("Postbot: !status now", {"m.mentions": {"user_ids": [BOT]}}, "/status now", True),
    ("Postbots are many", {"m.mentions": {"user_ids": [BOT]}}, "Postbots are many", True),
    ("x", {"m.mentions": {"user_ids": 7}}, "x", False),
)


async def test_mentions_in_groups(fake, adapter, listener) -> None:
    said = [text(f"${number}", body, **content) for number, (body, content, *_) in enumerate(MENTIONS)]
    await fake.push(ROOM, *said)
    await eventually(lambda: len(listener.inbound) == len(MENTIONS))
    for one, (body, content, *expected) in zip(listener.inbound, MENTIONS, strict=True):
        assert [one.text, one.addressed] == expected, (body, content)


async def test_commands_begin_with_a_slash(fake, adapter, listener) -> None:
    typed = {"/new": "/new", "!new x": "/new x", "! wow": "! wow"}
    await fake.push(DM, *(text(f"${number}", body) for number, body in enumerate(typed)))
    await eventually(lambda: len(listener.inbound) == len(typed))
    assert listener.texts == [*typed.values()]
    kinds = [one.message_type for one in listener.inbound]
    assert kinds == [MessageType.COMMAND, MessageType.COMMAND, MessageType.TEXT]


async def test_a_place_has_its_position_whether_it_is_sent_or_answered(fake, adapter, listener) -> None:
    place = {"msgtype": "m.location", "geo_uri": "geo:51.5008,-0.1247;u=35"}
    fake.events["$pier"] = text("$pier", "The pier", **place)
    relation = {"m.in_reply_to": {"event_id": "$pier"}}
    await fake.push(DM, text("$1", "The pier", **place), text("$2", "yes", **{"m.relates_to": relation}))
    await eventually(lambda: len(listener.inbound) == 2)
    sent, answer = listener.inbound
    assert (sent.text, answer.reply_to_text) == ("Location: The pier (51.5008, -0.1247)",) * 2


async def test_an_answer_to_us_is_addressed_and_knows_what_it_answers(fake, adapter, listener) -> None:
    fake.events["$ours"] = text("$ours", "what I said", sender=BOT)
    relation = {"m.in_reply_to": {"event_id": "$ours"}}
    old_client = f"> <{BOT}> what I said\n> and more\n\nyes"
    await fake.push(
        ROOM,
        text("$1", "yes", **{"m.relates_to": relation}),
        text("$2", old_client, **{"m.relates_to": relation}),
        text("$3", "no", **{"m.relates_to": {"m.in_reply_to": {"event_id": "$gone"}}}),
    )
    await eventually(lambda: len(listener.inbound) == 3)
    new, old, other = listener.inbound
    assert (new.text, new.addressed, new.reply_to_text) == ("yes", True, "what I said")
    # The homeserver knows what was said: whoever answers can write any quotation above it.
    assert (old.text, old.addressed, old.reply_to_text) == ("yes", True, "what I said")
    assert (other.addressed, other.reply_to_text, other.reply_to_message_id) == (False, None, "$gone")


async def test_a_look_up_that_fails_for_ever_does_not_stop_the_others(fake, adapter, listener, clock) -> None:
    fake.faults = [Fault("/event/", 500, times=100)]
    await fake.push(ROOM, text("$1", "yes", **{"m.relates_to": {"m.in_reply_to": {"event_id": "$sick"}}}))
    await eventually(lambda: clock.sleeping)
    assert listener.inbound == []
    await passing(clock, lambda: listener.inbound)
    assert (listener.texts, len(fake.requests("/event/"))) == (["yes"], 6)


async def test_members_are_counted_where_the_server_does_not_tell(fake, adapter, listener) -> None:
    fake.members = {"!two:fake": 2, "!many:fake": 9}
    await fake.push("!two:fake", text("$1"))
    await fake.push("!many:fake", text("$2"))
    await eventually(lambda: len(listener.inbound) == 2)
    assert [inbound.source.chat_type for inbound in listener.inbound if inbound.source] == ["dm", "group"]


async def test_names_of_rooms_and_people_are_shown(fake, adapter, listener) -> None:
    name = bare("m.room.name", {"name": "The\nroom"}, state_key="")
    member = bare("m.room.member", {"membership": "join", "displayname": "Ann"}, state_key=ANN)
    await fake.push(ROOM, text("$1"), state={"events": [name, member, "?"]})
    await eventually(lambda: listener.inbound)
    source = listener.inbound[0].source
    assert (source.chat_name, source.user_name) == ("The room", "Ann")


async def test_an_encrypted_room_is_told_once_and_nothing_else_is_said_there(fake, adapter, listener) -> None:
    secret = {**text("$1"), "type": "m.room.encrypted"}
    await fake.push(DM, secret, {**secret, "event_id": "$2"})
    await fake.push(DM, {**secret, "event_id": "$3"})
    await fake.push(ROOM, text("$4"))
    await eventually(lambda: listener.inbound)
    assert [one["msgtype"] for one in fake.said] == ["m.notice"]
    assert "encrypted" in fake.said[0]["body"]
    result = await adapter.send(DM, "hello")
    assert result.error_kind is SendErrorKind.FORBIDDEN
    assert len(fake.said) == 1


async def test_files_come_in_as_references(fake, adapter, listener) -> None:
    image = text(
        "$1",
        "a caption",
        msgtype="m.image",
        filename="../../etc/passwd",
        url="mxc://fake/abc",
        info={"mimetype": "image/png", "size": 3},
    )
    voice = text("$2", "voice", msgtype="m.audio", url="mxc://fake/v", **{"org.matrix.msc3245.voice": {}})
    sticker = text("$3", "smile", type="m.sticker", url="mxc://fake/s")
    await fake.push(DM, image, voice, sticker)
    await eventually(lambda: len(listener.inbound) == 3)
    kinds = [inbound.message_type for inbound in listener.inbound]
    assert kinds == [MessageType.PHOTO, MessageType.VOICE, MessageType.STICKER]
    assert listener.texts == ["a caption", "", ""]
    assert listener.inbound[0].media == (
        Attachment(
            kind=MessageType.PHOTO, ref="mxc://fake/abc", mime="image/png", name="../../etc/passwd", size=3
        ),
    )


# Invitations.


def invitation(sender: str) -> dict[str, Any]:
    member = {
        "type": "m.room.member",
        "state_key": BOT,
        "sender": sender,
        "content": {"membership": "invite"},
    }
    return {"invite_state": {"events": [member]}}


async def test_only_invitations_of_allowed_people_are_accepted(fake, adapter) -> None:
    await fake.push_batch({"invite": {"!eve:fake": invitation("@eve:fake"), "!ann:fake": invitation(ANN)}})
    await eventually(lambda: fake.requests("/join/"))
    await eventually(lambda: len(fake.requests("/sync")) == 3)
    assert [one.path for one in fake.requests("/join/")] == ["/_matrix/client/v3/join/!ann:fake"]


async def test_joining_is_tried_again_while_messages_come(fake, adapter, listener, clock) -> None:
    fake.faults = [Fault("/join/", 502), Fault("/join/")]
    await fake.push_batch({"invite": {"!ann:fake": invitation(ANN)}})
    await fake.push(DM, text("$1"))
    await eventually(lambda: listener.inbound)
    await passing(clock, lambda: len(fake.requests("/join/")) == 3)


async def test_what_was_said_since_our_invitation_is_heard_and_nothing_older(fake, adapter, listener) -> None:
    def member(membership: str, before: str) -> dict[str, Any]:
        unsigned = {"prev_content": {"membership": before}}
        return bare("m.room.member", {"membership": membership}, state_key=BOT, unsigned=unsigned)

    await fake.push(
        "!new:fake",
        text("$1", "history"),
        member("invite", "leave"),
        text("$2", "hello bot"),
        member("join", "invite"),
        text("$3", "are you there"),
        timeline={"limited": True, "prev_batch": "p1"},
    )
    await eventually(lambda: len(listener.inbound) == 2)
    assert listener.texts == ["hello bot", "are you there"]
    assert fake.requests("/messages") == []


async def test_a_gap_in_a_room_is_filled_in_order(fake, adapter, listener, clock) -> None:
    now = {"origin_server_ts": clock.now()}
    fake.pages = {
        "p3": {"chunk": [{**text("$4", "4"), **now}, {**text("$3", "3"), **now}], "end": "p2"},
        "p2": {"chunk": [{**text("$2", "2"), **now}], "end": "p1"},
        "p1": {"chunk": [{**text("$0", "of old"), "origin_server_ts": 1}], "end": "p0"},
    }
    await fake.push(DM, text("$5", "5"), timeline={"limited": True, "prev_batch": "p3"})
    await eventually(lambda: len(listener.inbound) == 4)
    assert listener.texts == ["2", "3", "4", "5"]
    assert {one.query["to"] for one in fake.requests("/messages")} == {"s0"}


# The place in the stream, and connections.


async def test_the_place_outlives_the_process(fake, clock, listener, tmp_path) -> None:
    file = tmp_path / "state" / "matrix.json"
    for body in ("first", "second"):
        adapter = made(fake, clock, extra={"sync_file": str(file)})
        adapter.set_message_handler(listener)
        await adapter.connect()
        await fake.push(DM, text(f"${body}", body))
        await eventually(lambda body=body: body in listener.texts)
        await eventually(lambda: json.loads(file.read_text())["since"] == f"s{len(fake.batches)}")
        await adapter.disconnect()
        await fake.push(DM, text(f"$after-{body}", f"after {body}"))
    assert listener.texts == ["first", "after first", "second"]
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in file.parent.iterdir()] == ["matrix.json"]


@each_row("kept", ["", "[]", '{"user_id": 1}', '{"user_id": "@a:b", "since": 3, "at": 0}'])
async def test_a_spoilt_file_is_told_and_nothing_is_skipped(fake, clock, tmp_path, kept) -> None:
    file = tmp_path / "matrix.json"
    file.write_text(kept)
    adapter = made(fake, clock, extra={"sync_file": str(file)})
    with pytest.raises(ConfigError) as caught:
        await adapter.connect()
    assert "remove the file" in caught.value.remedy
    assert fake.requests("/sync") == []


async def test_nothing_is_said_before_it_is_known_which_rooms_are_encrypted(fake, clock, tmp_path) -> None:
    file = tmp_path / "matrix.json"
    file.write_text(json.dumps({"user_id": BOT, "since": "s0", "at": 0, "told": []}))
    encryption = {"type": "m.room.encryption", "content": {"algorithm": "x"}}
    fake.first["rooms"]["join"][DM]["state"] = {"events": [encryption]}
    fake.faults = [Fault("/sync", 503)]
    adapter = made(fake, clock, extra={"sync_file": str(file)})
    await adapter.connect()
    assert (await adapter.send(DM, "x")).error_kind is SendErrorKind.TRANSIENT
    await passing(clock, lambda: len(fake.requests("/sync")) == 3)
    assert (await adapter.send(DM, "x")).error_kind is SendErrorKind.FORBIDDEN
    assert (await adapter.send(ROOM, "x")).success
    await adapter.disconnect()
    full = [one.query.get("full_state") for one in fake.requests("/sync")]
    assert (full, fake.said[0]["body"]) == (["true", "true", None], "x")


async def test_another_users_place_is_none(fake, clock, tmp_path) -> None:
    file = tmp_path / "matrix.json"
    file.write_text(json.dumps({"user_id": "@x:y", "since": "s9", "at": 0, "told": []}))
    adapter = made(fake, clock, extra={"sync_file": str(file)})
    await adapter.connect()
    await adapter.disconnect()
    assert "since" not in fake.requests("/sync")[0].query


@each_row("name", ["blocked/x.json", "."])
async def test_a_file_that_cannot_be_written_is_told_at_once(fake, clock, tmp_path, name) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    adapter = made(fake, clock, extra={"sync_file": str(tmp_path / name)})
    with pytest.raises(ConfigError):
        await adapter.connect()


async def test_a_disk_that_fills_up_later_does_not_stop_receiving(
    fake, clock, listener, tmp_path, caplog
) -> None:
    file = tmp_path / "matrix.json"
    adapter = made(fake, clock, extra={"sync_file": str(file)})
    adapter.set_message_handler(listener)
    await adapter.connect()
    file.unlink()
    file.mkdir()
    await fake.push(DM, text("$1"))
    await eventually(lambda: len(fake.requests("/sync")) == 3)
    await adapter.disconnect()
    assert listener.texts == ["hello"]
    assert "matrix.place_not_kept" in caplog.text


async def test_the_server_says_how_long_to_wait(fake, adapter, clock) -> None:
    await eventually(lambda: len(fake.requests("/sync")) == 2)
    fake.faults = [Fault("/sync", 429, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 90_000})]
    await fake.push(DM, text("$0"))
    await eventually(lambda: clock.sleeping)
    clock.advance(timedelta(seconds=89))
    for _ in range(20):
        await asyncio.sleep(0)
    assert clock.sleeping == 1
    clock.advance(timedelta(seconds=1))
    await eventually(lambda: len(fake.requests("/sync")) == 4)


async def test_a_token_that_is_revoked_ends_receiving(fake, adapter) -> None:
    await eventually(lambda: len(fake.requests("/sync")) == 2)
    fake.token = "another"
    await fake.push(DM, text("$0"))
    await eventually(lambda: adapter.liveness.state is AdapterState.FAILED)
    assert (adapter.liveness.error_code, adapter.liveness.retryable) == ("unauthorized", False)
    await eventually(lambda: len(adapter._tasks) == 0)


async def test_another_users_token_is_refused(fake, clock) -> None:
    adapter = made(fake, clock, extra={"user_id": "@other:fake"})
    with pytest.raises(ConfigError, match="belongs to @bot:fake"):
        await adapter.connect()


@each_row(
    "extra",
    [
        {"base_url": "ftp://x"},
        {"base_url": "https://user:password@x"},
        {"base_url": "http://x:notaport"},
        {"base_url": None},
        {"password": "x"},
        {"poll_ms": "soon"},
        {"poll_ms": 5},
        {"sync_file": 7},
    ],
)
def test_wrong_settings_are_named(extra) -> None:
    with pytest.raises(ConfigError) as caught:
        MatrixAdapter(table_of(MatrixOptions, token=TOKEN, **{"base_url": "https://x", **extra}))
    assert caught.value.remedy
    assert "password@" not in str(caught.value.as_dict())


def test_a_token_is_needed() -> None:
    for token in (None, "", "a\nb"):
        with pytest.raises(ConfigError):
            MatrixAdapter(MatrixOptions(token=token, base_url="https://x"))


# What goes out.


async def test_an_answer_goes_out_with_markup_and_plain(fake, adapter) -> None:
    result = await adapter.send(DM, "**bold** <script>alert(1)</script> [x](javascript:alert(1))", "$q")
    assert result.success
    assert result.message_id == "$sent0"
    content = fake.said[0]
    assert content["body"].startswith("**bold** <script>")
    assert content["format"] == "org.matrix.custom.html"
    assert "<strong>bold</strong>" in content["formatted_body"]
    assert "<script" not in content["formatted_body"]
    assert 'href="javascript' not in content["formatted_body"]
    assert content["m.relates_to"] == {"m.in_reply_to": {"event_id": "$q"}}
    assert content["m.mentions"] == {}
    assert adapter.liveness.outbound_at is not None


async def test_plain_words_need_no_markup(fake, adapter) -> None:
    await adapter.send(DM, "just words")
    assert fake.said == [{"msgtype": "m.text", "body": "just words", "m.mentions": {}}]


async def test_an_answer_goes_to_its_thread(fake, adapter) -> None:
    await adapter.send(ROOM, "x", None, {"thread_id": "$root"})
    await adapter.send(ROOM, "y", "$line", {"thread_id": "$root"})
    first, second = (one["m.relates_to"] for one in fake.said)
    assert (first["rel_type"], first["event_id"], first["is_falling_back"]) == ("m.thread", "$root", True)
    assert (second["m.in_reply_to"], second["is_falling_back"]) == ({"event_id": "$line"}, False)


async def test_refused_markup_goes_out_as_plain_text(fake, adapter) -> None:
    fake.faults = [Fault("/send/", 400, {"errcode": "M_BAD_JSON"})]
    assert (await adapter.send(DM, "**bold**")).success
    assert fake.said == [{"msgtype": "m.text", "body": "**bold**", "m.mentions": {}}]


@each_row(
    "status, errcode, kind",
    [
        (429, "M_LIMIT_EXCEEDED", SendErrorKind.RATE_LIMITED),
        (403, "M_FORBIDDEN", SendErrorKind.FORBIDDEN),
        (404, "M_NOT_FOUND", SendErrorKind.NOT_FOUND),
        (413, "M_TOO_LARGE", SendErrorKind.TOO_LONG),
        (400, "M_BAD_JSON", SendErrorKind.BAD_FORMAT),
        (500, "M_UNKNOWN", SendErrorKind.TRANSIENT),
        (503, "", SendErrorKind.TRANSIENT),
        (504, "", SendErrorKind.UNKNOWN),
        (401, "M_UNKNOWN_TOKEN", SendErrorKind.FORBIDDEN),
    ],
)
async def test_refusals_are_told_apart(fake, clock, status, errcode, kind) -> None:
    adapter = made(fake, clock)
    await adapter.connect()
    fake.faults = [Fault("/send/", status, {"errcode": errcode, "retry_after_ms": 1234}, times=2)]
    result = await adapter.send(DM, "x")
    assert (result.success, result.error_kind) == (False, kind)
    if kind is SendErrorKind.RATE_LIMITED:
        assert result.retry_after_ms == 1234
    assert (adapter.liveness.state is AdapterState.FAILED) is (status == 401)
    fake.faults = []
    await adapter.disconnect()


async def test_the_waiting_time_may_stand_in_a_header(fake, adapter) -> None:
    fake.faults = [Fault("/send/", 429, headers={"Retry-After": "7"})]
    assert (await adapter.send(DM, "x")).retry_after_ms == 7_000


async def test_a_server_that_is_gone_has_taken_nothing(fake, adapter) -> None:
    await fake.__aexit__()
    assert (await adapter.send(DM, "x")).error_kind is SendErrorKind.TRANSIENT


async def test_what_is_too_long_is_refused_before_it_is_sent(fake, adapter) -> None:
    assert (await adapter.send(DM, "é" * 8_001)).error_kind is SendErrorKind.TOO_LONG
    assert fake.said == []
    assert (await adapter.send(DM, "<&>" * 5_333)).success
    assert len(json.dumps(fake.said[0])) < 65_000


async def test_taking_back_is_a_redaction(fake, adapter) -> None:
    assert (await adapter.delete_message(DM, "$9")).success
    assert "/redact/$9/" in fake.requests("/redact/")[0].path


async def test_a_message_is_marked_by_an_annotation_that_is_redacted_again(fake, adapter) -> None:
    marked = await adapter.react(DM, "$9")
    assert marked.success
    assert fake.said == [{"m.relates_to": {"rel_type": "m.annotation", "event_id": "$9", "key": "👀"}}]
    assert "/send/m.reaction/" in fake.requests("/send/")[0].path
    assert (await adapter.react(DM, "$9", takes_back=marked.message_id)).success
    assert f"/redact/{marked.message_id}/" in fake.requests("/redact/")[0].path


async def test_typing_is_shown_and_its_failure_is_none(fake, adapter) -> None:
    await adapter.send_typing(DM)
    fake.faults = [Fault("/typing/", 500)]
    await adapter.send_typing(DM)
    assert fake.requests("/typing/")[0].body == {"typing": True, "timeout": 10_000}
    fake.faults = [Fault("/typing/", 429, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 5_000})]
    for _ in range(3):
        await adapter.send_typing(DM)
    assert len(fake.requests("/typing/")) == 3
    assert (await adapter.send(DM, "the answer, which need not wait")).success


async def test_a_file_is_uploaded_and_shown(fake, adapter) -> None:
    photo = Attachment(kind=MessageType.PHOTO, ref="", mime="image/png", name="a\r\nb.png")
    assert (await adapter.send_media(DM, photo, sending(b"png"), "look", {"thread_id": "$t"})).success
    content = fake.said[0]
    assert (content["msgtype"], content["url"]) == ("m.image", "mxc://fake/uploaded")
    assert (content["body"], content["filename"]) == ("look", "a b.png")
    fake.faults = [Fault("/upload", 413)]
    assert (await adapter.send_media(DM, photo, sending(b"png"))).error_kind is SendErrorKind.TOO_LONG
    fake.faults = [Fault("/upload")]
    assert (await adapter.send_media(DM, photo, sending(b"png"))).error_kind is SendErrorKind.TRANSIENT


async def test_a_file_is_fetched_within_its_bound(fake, adapter) -> None:
    fake.files = {"abc": b"x" * 1000}
    found = Attachment(kind=MessageType.DOCUMENT, ref="mxc://elsewhere/abc")
    assert await fetched(adapter, found, max_bytes=1000) == b"x" * 1000
    with pytest.raises(TooLarge):
        await fetched(adapter, found, max_bytes=999)
    with pytest.raises(ServerUnavailable):
        await fetched(adapter, Attachment(kind=MessageType.DOCUMENT, ref="mxc://fake/gone"), max_bytes=9)


@each_row("ref", ["https://x/y", "mxc://a/../b", "mxc://a/..", "mxc://a/b?c", "", "mxc://a"])
async def test_only_files_of_matrix_are_fetched(fake, adapter, ref) -> None:
    with pytest.raises(ServerUnavailable):
        await fetched(adapter, Attachment(kind=MessageType.DOCUMENT, ref=ref), max_bytes=10)
    assert fake.requests("/download") == []


async def test_no_other_host_is_ever_asked(fake, adapter) -> None:
    async with FakeMatrix() as other:
        fake.redirect_files_to = f"{other.url}/stolen"
        with pytest.raises(ServerUnavailable):
            await fetched(adapter, Attachment(kind=MessageType.DOCUMENT, ref="mxc://fake/abc"), max_bytes=10)
        assert other.asked == []


async def test_requests_are_those_that_the_library_makes(fake, adapter) -> None:
    found = Attachment(kind=MessageType.DOCUMENT, ref="mxc://fake/abc")
    fake.files = {"abc": b"x"}
    await adapter.send(DM, "x", None, {"dedupe_key": "k"})
    await adapter.delete_message(DM, "$9")
    await adapter.send_typing(DM)
    await adapter.send_media(DM, found, sending(b"x"))
    await fetched(adapter, found, max_bytes=9)
    mine = [(one.method, one.path) for one in fake.asked if not one.path.endswith("/sync")]
    sent, redacted = (list(fake.sent)[number].partition("/")[2] for number in (0, 1))
    theirs = [
        Api.whoami("t"),
        Api.profile_get_displayname(BOT),
        Api.room_send("t", DM, "m.room.message", {}, sent),
        Api.room_redact("t", DM, "$9", redacted),
        Api.room_typing("t", DM, BOT),
        Api.upload("t"),
    ]
    assert mine[:6] == [(one[0], unquote(urlsplit(one[1]).path)) for one in theirs]
    library = Api.download("fake", "abc", access_token="t")
    assert mine[-1] == (library[0], urlsplit(library[1]).path)
    assert Api.joined_members("t", DM)[1].startswith(wire.build_path("rooms", DM, "joined_members"))
    assert Api.room_get_event("t", DM, "$1")[1].startswith(wire.build_path("rooms", DM, "event", "$1"))
    assert Api.room_messages("t", DM)[1].startswith(wire.build_path("rooms", DM, "messages"))
    assert Api.join("t", DM)[1].startswith(wire.build_path("join", DM))
    assert Api.sync("t")[1].startswith(wire.build_path("sync"))


async def test_ids_cannot_leave_their_place_in_a_path(fake, adapter) -> None:
    await adapter.send("!../../admin?x=1#", "x")
    path = fake.asked[-1].path
    assert path.startswith(
        "/_matrix/client/v3/rooms/!../../admin?x=1#/send/"
    )  # one part, decoded by the fake
