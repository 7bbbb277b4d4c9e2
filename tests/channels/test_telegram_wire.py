"""How Telegram's updates, answers and marks are read and written: tables, and what holds for any text."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.fake_telegram import (
    ADA,
    BOT_ID,
    GROUP,
    OURSELVES,
    PRIVATE,
    USERNAME,
    message,
    shown_text,
    update,
)
from platform_tables import table_of
from postroom.contracts.errors import ConfigError, InvalidArgument
from postroom.gateway.events import ButtonPress, MessageEvent, MessageType, SendErrorKind
from postroom.gateway.platforms.safe_text import replace_unstorable
from postroom.gateway.platforms.telegram import (
    Me,
    TelegramOptions,
    markdown_v2,
    place,
    read_answer,
    read_update,
)
from postroom.gateway.session import build_session_key
from table_rows import each_row

ME = Me(bot_id=BOT_ID, username=USERNAME)
CHANNEL = {"id": -100300, "type": "channel", "title": "News"}
BOT = {"id": 5, "is_bot": True, "first_name": "Other", "username": "OtherBot"}


def inbound(**told: Any) -> MessageEvent:
    """The event of a message; arguments change a plain message in the group."""
    found = read_update(update(1, message=message(9, **{"chat": GROUP, **told})), ME)
    assert isinstance(found, MessageEvent)
    return found


def mention(offset: int, length: int, **more: Any) -> dict[str, Any]:
    return {"type": "mention", "offset": offset, "length": length, **more}


# Updates.


def test_a_direct_message_is_read_whole() -> None:
    event = inbound(text="hello", chat=PRIVATE)
    assert (event.text, event.message_type, event.message_id) == ("hello", MessageType.TEXT, "9")
    assert event.timestamp == 1_700_000_000_000
    assert event.addressed
    source = event.source
    assert source.to_dict() == {
        "platform": "telegram",
        "chat_id": "77",
        "chat_name": "Ada L",
        "chat_type": "dm",
        "user_id": "77",
        "user_name": "Ada L",
        "account": str(BOT_ID),
    }
    assert build_session_key(source) == "agent:main:telegram:dm:77"
    again = MessageEvent.from_body(json.loads(json.dumps(event.to_body())))
    assert again.to_body() == event.to_body()


@each_row(
    "text, entities, reads, addressed",
    [
        ("hello", [], "hello", False),
        (f"@{USERNAME} hello", [mention(0, 12)], "hello", True),
        (f"hey @{USERNAME} do it", [mention(4, 12)], "hey do it", True),
        (f"do it @{USERNAME.upper()}", [mention(6, 12)], "do it", True),
        (f"😀 @{USERNAME} 😀", [mention(3, 12)], "😀 😀", True),
        (f"@{USERNAME} @{USERNAME} twice", [mention(0, 12), mention(13, 12), mention(0, 12)], "twice", True),
        (f"@{USERNAME}", [], f"@{USERNAME}", False),
        ("@SomebodyElse hi", [mention(0, 13)], "@SomebodyElse hi", False),
        ("Post do", [mention(0, 4, type="text_mention", user=OURSELVES)], "do", True),
        ("Ada do", [mention(0, 3, type="text_mention", user=ADA)], "Ada do", False),
        (
            "hello",
            [mention(0, 999), mention(-1, 2), mention(0, 0), {"type": "mention"}, "x", None],
            "hello",
            False,
        ),
        ("hello", [mention(True, 2), mention(0, 2.5), mention("0", "2")], "hello", False),
        (f"@{USERNAME} /stop now", [mention(0, 12)], "/stop now", True),
        ("/stop now", [], "/stop now", True),
        (f"/stop@{USERNAME} now", [], "/stop now", True),
        (f"/stop@{USERNAME.lower()}", [], "/stop", True),
        ("/etc/passwd", [], "/etc/passwd", False),
    ],
)
def test_who_a_message_of_a_group_is_meant_for(text, entities, reads, addressed) -> None:
    event = inbound(text=text, entities=entities)
    assert (event.text, event.addressed) == (reads, addressed)
    assert event.message_type is (MessageType.COMMAND if event.is_command() else MessageType.TEXT)


def test_a_command_for_another_bot_is_passed_over_in_groups() -> None:
    assert read_update(update(1, message=message(9, "/stop@OtherBot", chat=GROUP)), ME) is None
    assert inbound(text="/stop@OtherBot", chat=PRIVATE).get_command() == "stop"


def test_an_answer_to_us_is_meant_for_us() -> None:
    ours = {**message(3, "earlier", chat=GROUP), "from": OURSELVES}
    event = inbound(text="yes", reply_to_message=ours)
    assert (event.addressed, event.reply_to_message_id, event.reply_to_text) == (True, "3", "earlier")
    quoted = inbound(text="yes", reply_to_message=ours, quote={"text": "earl"})
    assert quoted.reply_to_text == "earl"
    other = inbound(text="yes", reply_to_message=message(3, None, caption="a picture", chat=GROUP))
    assert (other.addressed, other.reply_to_text) == (False, "a picture")


@each_row("origin, author", [
        ({"forward_origin": {"type": "user", "sender_user": {"id": 5, "first_name": "Mallory"}}}, "Mallory"),
        ({"forward_origin": {"type": "hidden_user", "sender_user_name": "Mallory"}}, "Mallory"),
        ({"forward_origin": {"type": "channel", "chat": {"id": -5, "title": "News"}}}, "News"),
        ({"forward_date": 1, "forward_from": {"id": 5, "first_name": "Mallory"}}, "Mallory"),
        ({"forward_date": 1}, None),
        ({}, "Ada"),
    ])  # fmt: skip
def test_an_answer_to_a_forward_names_the_author_of_the_words(origin, author) -> None:
    ada = {"id": 7, "is_bot": False, "first_name": "Ada"}
    answered = {**message(3, "stranger words", chat=GROUP), "from": ada, **origin}
    event = inbound(text="do so", reply_to_message=answered)
    assert (event.reply_to_text, event.reply_to_author) == ("stranger words", author)


def test_a_topic_is_a_thread_and_its_beginning_is_not_answered() -> None:
    root = message(4, None, chat=GROUP, forum_topic_created={"name": "Plans"})
    event = inbound(
        text="hi", message_thread_id=4, is_topic_message=True, reply_to_message={**root, "from": OURSELVES}
    )
    assert (event.source.thread_id, event.source.chat_topic, event.source.chat_type) == (
        "4",
        "Plans",
        "group",
    )
    assert (event.reply_to_message_id, event.addressed) == (None, False)
    assert place("-100200", {"thread_id": event.source.thread_id}) == {
        "chat_id": -100200,
        "message_thread_id": 4,
    }


def test_a_chain_of_answers_is_no_topic() -> None:
    event = inbound(text="hi", message_thread_id=4, reply_to_message=message(4, "before", chat=GROUP))
    assert event.source.thread_id is None
    assert event.reply_to_message_id == "4"


def test_who_speaks_for_a_chat_has_the_chats_id() -> None:
    anonymous = {"id": 1_087_968_824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}
    event = inbound(text="hi", sender_chat=GROUP, **{"from": anonymous})
    assert (event.source.user_id, event.source.user_name, event.source.is_bot) == ("-100200", "Team", False)


def test_a_channel_is_a_channel() -> None:
    post = {
        name: one
        for name, one in message(9, "news", chat=CHANNEL, sender_chat=CHANNEL).items()
        if name != "from"
    }
    found = read_update(update(1, channel_post=post), ME)
    assert isinstance(found, MessageEvent)
    assert (found.source.chat_type, found.source.user_id) == ("channel", "-100300")
    assert not found.addressed
    assert isinstance(read_update(update(1, edited_channel_post=post), ME), MessageEvent)


def test_other_bots_are_marked_as_bots() -> None:
    event = inbound(text="hi", **{"from": BOT})
    assert event.source.is_bot


@each_row(
    "told",
    [
        {"message": {**message(1, "our own"), "from": OURSELVES}},
        {"message": message(1, None, new_chat_members=[ADA])},
        {"message": message(1, None, pinned_message=message(2, "x"))},
        {"my_chat_member": {}},
        {"poll": {"id": "1"}},
        {"edited_message": message(1, None, location={"latitude": 1, "longitude": 2, "live_period": 60})},
        {"edited_message": message(1, None, location={"latitude": 1, "longitude": 2})},
        {"callback_query": {"id": "1", "from": ADA, "inline_message_id": "x", "data": "y"}},
        {"callback_query": {"id": "1", "from": ADA, "message": message(1), "game_short_name": "y"}},
    ],
)
def test_what_nobody_said_to_us_is_passed_over(told) -> None:
    assert read_update(update(1, **told), ME) is None


FILE = {"file_id": "F", "file_size": 9}
SIZES = [
    {"file_id": "large", "width": 90, "height": 90, "file_size": 5_000},
    {"file_id": "small", "width": 9, "height": 9},
]


@each_row(
    "told, kind, ref, mime",
    [
        ({"photo": SIZES}, MessageType.PHOTO, "large", "image/jpeg"),
        ({"voice": FILE}, MessageType.VOICE, "F", "audio/ogg"),
        ({"audio": {**FILE, "mime_type": "audio/mpeg"}}, MessageType.AUDIO, "F", "audio/mpeg"),
        ({"video": FILE}, MessageType.VIDEO, "F", None),
        ({"video_note": FILE}, MessageType.VIDEO, "F", "video/mp4"),
        ({"animation": FILE, "document": {"file_id": "D"}}, MessageType.VIDEO, "F", "video/mp4"),
        ({"document": {**FILE, "mime_type": "text/plain"}}, MessageType.DOCUMENT, "F", "text/plain"),
        ({"sticker": {**FILE, "emoji": "👍"}}, MessageType.STICKER, "F", "image/webp"),
        ({"sticker": {**FILE, "is_animated": True}}, MessageType.STICKER, "F", "application/x-tgsticker"),
        ({"sticker": {**FILE, "is_video": True}}, MessageType.STICKER, "F", "video/webm"),
    ],
)
def test_files_are_read_by_their_kind(told, kind, ref, mime) -> None:
    event = inbound(chat=PRIVATE, **told)
    (file,) = event.media
    assert (event.message_type, file.kind, file.ref, file.mime) == (kind, kind, ref, mime)


def test_a_hostile_file_name_stays_data() -> None:
    name = "../../etc/passwd\0\ud83d"
    (file,) = inbound(document={**FILE, "file_name": name}).media
    assert (file.name, file.size) == ("../../etc/passwd\ufffd\ufffd", 9)


def test_each_item_of_an_album_is_a_message_of_its_own() -> None:
    first = inbound(
        photo=SIZES, caption=f"@{USERNAME} look", caption_entities=[mention(0, 12)], media_group_id="A1"
    )
    assert (first.text, first.addressed, first.metadata) == ("look", True, {"media_group_id": "A1"})
    second = inbound(photo=SIZES, media_group_id="A1")
    assert (second.text, second.metadata) == ("", {"media_group_id": "A1"})


@each_row(
    "told, kind, text",
    [
        ({"sticker": {**FILE, "emoji": "👍"}}, MessageType.STICKER, "👍"),
        (
            {"location": {"latitude": 52.5, "longitude": 13}},
            MessageType.LOCATION,
            "Location: 52.500000, 13.000000",
        ),
        (
            {
                "venue": {"location": {"latitude": 1, "longitude": 2}, "title": "Inn", "address": "Road 1"},
                "location": {"latitude": 1, "longitude": 2},
            },
            MessageType.LOCATION,
            "Location: Inn, Road 1 (1.000000, 2.000000)",
        ),
        (
            {"location": {"latitude": 52.5, "longitude": 13, "live_period": 900}},
            MessageType.LOCATION,
            "Location when its live sharing began: 52.500000, 13.000000",
        ),
        (
            {
                "poll": {
                    "question": "Hull?",
                    "type": "quiz",
                    "is_closed": True,
                    "options": [{"text": "yes", "voter_count": 1}, {"text": "no", "voter_count": 2}],
                }
            },
            MessageType.TEXT,
            "Closed quiz: Hull?\n- yes (1 vote)\n- no (2 votes)",
        ),
        ({"contact": {"phone_number": "1"}}, MessageType.TEXT, "Contact: 1"),
        ({"dice": {"emoji": "🎲", "value": 4}}, MessageType.TEXT, "Dice 🎲: 4"),
        ({"paid_media": {}}, MessageType.TEXT, ""),
    ],
)
def test_what_is_no_text_is_told_as_text(told, kind, text) -> None:
    event = inbound(chat=PRIVATE, **told)
    assert (event.message_type, event.text) == (kind, text)


@each_row(
    "told",
    [
        [],
        "x",
        None,
        {"message": message(1, "no number")},
        {"update_id": True, "message": message(1, "x")},
        update(1, message=[]),
        update(1, message={}),
        update(1, message={**message(1, "x"), "message_id": "1"}),
        update(1, message={**message(1, "x"), "chat": {"id": 1, "type": "secret"}}),
        update(1, message={**message(1, "x"), "chat": {"id": 1, "type": ["private"]}}),
        update(1, callback_query={"data": "x", "message": message(1), "from": ADA}),
        update(1, callback_query={"id": "1", "data": "x", "message": message(1)}),
        update(1, callback_query="x"),
    ],
)
def test_what_cannot_be_read_is_refused(told) -> None:
    with pytest.raises(InvalidArgument):
        read_update(told, ME)


@each_row(
    "name, part",
    [
        ("photo", []),
        ("photo", ["x"]),
        ("document", {"file_id": ""}),
        ("voice", "x"),
        ("location", {"latitude": float("nan"), "longitude": 1}),
        ("location", {"latitude": 10**400, "longitude": 1}),
        ("location", {}),
        ("venue", {"title": "x"}),
    ],
)
def test_a_part_in_an_unknown_form_is_named_and_the_words_are_read(name, part) -> None:
    event = inbound(chat=PRIVATE, caption="see", **{name: part})
    assert (event.text, event.media, event.unread) == ("see", (), (f"a {name}",))
    answering = inbound(chat=PRIVATE, text="why?", reply_to_message=message(3, None, **{name: part}))
    assert (answering.text, answering.unread) == (
        "why?",
        (f"a {name} of the message that this message answers",),
    )


PARTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["private", "mention"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "id", "type", "from", "chat", "text", "entities", "offset", "length", "user", "photo", "file_id", "venue",
        "location", "latitude", "longitude", "message_id", "reply_to_message", "sticker", "quote", "date", "data",
        "message", "sender_chat", "is_topic_message", "message_thread_id", "forum_topic_created", "title",
    ]), inner, max_size=6),
    max_leaves=20,
)  # fmt: skip


@given(told=PARTS, name=st.sampled_from(["message", "edited_message", "callback_query"]), extra=PARTS)
def test_anything_is_read_passed_over_or_refused(told, name, extra) -> None:
    for part in (
        told,
        {**message(1, "x"), **(told if isinstance(told, dict) else {"text": told, "quote": extra})},
    ):
        try:
            found = read_update({"update_id": 1, name: part}, ME)
        except InvalidArgument:
            continue
        assert found is None or isinstance(found, MessageEvent | ButtonPress)
        if isinstance(found, MessageEvent):
            body = json.dumps(found.to_body(), allow_nan=False, ensure_ascii=False).encode()
            assert b"\\u0000" not in body


@given(text=st.text(st.characters(exclude_categories=[])))
def test_text_without_unstorable_characters_can_be_kept_everywhere_and_counts_the_same(text) -> None:
    whole = replace_unstorable(text)
    assert "\0" not in whole
    assert len(whole.encode("utf-16-le")) == len(text.encode("utf-16-le", "surrogatepass"))


# Answers.


@each_row(
    "status, body, kind",
    [
        (200, {"ok": True, "result": 1}, None),
        (200, {"ok": True}, None),
        (200, {"ok": False}, SendErrorKind.UNKNOWN),
        (200, [], SendErrorKind.UNKNOWN),
        (201, {"ok": True}, SendErrorKind.UNKNOWN),
        (400, {"ok": False, "description": "Bad Request: MESSAGE_TOO_LONG"}, SendErrorKind.TOO_LONG),
        (400, {"ok": False, "description": "Bad Request: CHAT_WRITE_FORBIDDEN"}, SendErrorKind.FORBIDDEN),
        (400, {"ok": False, "description": "Bad Request: TOPIC_CLOSED"}, SendErrorKind.FORBIDDEN),
        (400, {"ok": False, "description": ["odd"]}, SendErrorKind.BAD_FORMAT),
        (404, {"ok": False, "description": "Not Found"}, SendErrorKind.NOT_FOUND),
        (409, {"ok": False, "description": "Conflict"}, SendErrorKind.TRANSIENT),
        (420, {"ok": False, "description": "Flood"}, SendErrorKind.BAD_FORMAT),
    ],
)
def test_answers_are_read(status, body, kind) -> None:
    assert read_answer(status, json.dumps(body).encode()).kind is kind


@each_row("wait", ["7", True, -1, 10**9, None, [], float("nan")])
def test_a_pause_that_is_none_is_not_kept(wait) -> None:
    body = json.dumps({"ok": False, "parameters": {"retry_after": wait}}).encode()
    answer = read_answer(429, body)
    assert (answer.kind, answer.retry_after_ms) == (SendErrorKind.RATE_LIMITED, None)


def test_only_telegram_itself_says_that_a_token_is_not_valid() -> None:
    assert read_answer(401, b'{"ok": false}').is_unauthorized
    assert not read_answer(401, b"<html>").is_unauthorized
    assert not read_answer(409, b"<html>").is_conflict
    assert not read_answer(404, b"[" * 100_000).is_unauthorized


# Settings.


def test_settings_that_are_not_named_have_their_defaults() -> None:
    options = table_of(TelegramOptions)
    assert options == TelegramOptions()
    assert options.base_url == "https://api.telegram.org"


def test_an_address_that_holds_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError) as caught:
        table_of(TelegramOptions, base_url="http://me:hush-hush@127.0.0.1")
    assert "hush-hush" not in str(caught.value.as_dict())


# Marks.


@each_row(
    "markdown, marked",
    [
        ("a.b!", r"a\.b\!"),
        ("**b** *i* ~~s~~ `c`", "*b* _i_ ~s~ `c`"),
        ("***both***", "_*both*_"),
        ("*a*_b_", "_a_**_b_"),
        ("*a**b*", r"_a\*\*b_"),
        ("**a *b* c**", "*a _b_ c*"),
        ("**a **b** c**", "*a b c*"),
        ("# Title **x**\ntext", "*Title x*\ntext"),
        ("- a\n- b\n  - c", "• a\n• b\n  • c"),
        ("2. a\n3. b", "2\\. a\n3\\. b"),
        ("> a\n> b", ">a\n>b"),
        ("> a\n\nb", ">a\n\nb"),
        ("> > deep", ">deep"),
        ("- > in a list", r"• \> in a list"),
        ("> ```\n> x`y\n> ```", ">`x\\`y`"),
        ("```py\na = `1`\\\n```", "```py\na = \\`1\\`\\\\\n```"),
        ("```c++ extra\nx\n```", "```c++\nx\n```"),
        ("```\nnever closed", "```\nnever closed\n```"),
        ("[a](http://x/y)", "[a](http://x/y)"),
        ("[a](http://x/(y))", "[a](http://x/(y\\))"),
        ("[a](docs/b.md)", r"a \(docs/b\.md\)"),
        ("[a](javascript:alert(1))", r"\[a\]\(javascript:alert\(1\)\)"),
        ("![alt](http://x/p.png)", "[alt](http://x/p.png)"),
        ("<http://x.y>", r"[http://x\.y](http://x.y)"),
        ("<b>x</b> &lt;", r"<b\>x</b\> <"),
        ("a\nb\\\nc", "a\nb\nc"),
        ("|a|b|\n|-|-|\n|1|2|", "```\n|a|b|\n|-|-|\n|1|2|\n```"),
        ("a\n\n---\n\nb", "a\n\n———\n\nb"),
        ("a\r\nb", "a\nb"),
        ("[a][1]\n\n[1]: http://x", r"\[a\]\[1\]" + "\n\n" + r"\[1\]: http://x"),
    ],
)
def test_markdown_is_written_in_telegrams_dialect(markdown, marked) -> None:
    assert markdown_v2(markdown) == marked
    shown_text(marked)


@each_row("text", ["", " \n", "```\n```", "> " * 100 + "x", "> \n> "])
def test_what_would_show_nothing_or_lose_something_is_left_as_it_is(text) -> None:
    assert markdown_v2(text) is None


PIECES = st.lists(
    st.sampled_from([
        "*", "**", "_", "__", "~~", "`", "``", "```", "\n", "\n\n", "> ", "- ", "1. ", "# ", "[", "](", ")", "!",
        "http://x.y", "|", "|-|-|\n", "\\", "  ", "    ", "a", "b c", "é", "😀", "<", ">", "&amp;", "\0", ".", "---",
    ]),
    max_size=40,
).map("".join)  # fmt: skip


@given(text=PIECES)
def test_telegram_can_read_whatever_is_written_and_no_word_is_lost(text) -> None:
    marked = markdown_v2(text)
    if marked is not None:
        shown = shown_text(marked)
        for word in ("a", "é", "😀"):
            assert shown.count(word) >= len(
                re.findall(word, re.sub(r"&amp;|http://x\.y|!\[|\[|```.*", "", text))
            )
