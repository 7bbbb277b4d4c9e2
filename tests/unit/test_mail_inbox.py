"""The inbox: its order and filters, cursors that neither skip nor repeat, marks of which the first stands."""

import itertools
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from mail_room import SHORE, Room, room_in_memory
from postroom.contracts.clock import from_iso, iso
from postroom.contracts.errors import CursorAhead, CursorExpired, InvalidArgument, UnknownMessage
from postroom.stores.sqlite import SqliteStore
from table_rows import each_row

room = room_in_memory


async def test_messages_come_newest_first_and_after_a_cursor_oldest_first(room: Room) -> None:
    await room.open()
    assert await room.inbox("Ben") == []
    nothing = await room.call("fetch_inbox_events", agent_name="Ben")
    assert nothing == {"events": [], "next": 0, "newest": 0, "oldest": 0}
    sent = [await room.send("Ada", "Ben") for _ in range(5)]
    inbox = await room.inbox("Ben")
    assert [(one["id"], one["body_md"]) for one in inbox] == [(number, "A body") for number in sent[::-1]]
    events = (await room.call("fetch_inbox_events", agent_name="Ben"))["events"]
    for one in (*events, *await room.inbox("Ben", include_bodies=False)):
        assert "body_md" not in one
    assert [one["id"] for one in await room.inbox("Ben", limit=2)] == sent[:2:-1]
    assert [one["id"] for one in await room.inbox("Ben", after=0, limit=2)] == sent[:2]
    assert [one["seq"] for one in await room.inbox("Ben", after=2)] == [3, 4, 5]
    assert await room.inbox("Ben", after=5) == []
    assert [one["seq"] for one in await room.inbox("Ben", before=4, limit=2)] == [3, 2]
    assert await room.inbox("Ben", before=1) == []
    error = await room.refused(InvalidArgument, "fetch_inbox", agent_name="Ben", after=1, before=3)
    assert "either after or before" in error.message


async def test_filters_hold_together(room: Room) -> None:
    await room.open()
    ids = {}
    for importance in ("low", "normal", "high", "urgent"):
        for read in (False, True):
            message = await room.send("Ada", "Ben", importance=importance)
            ids[importance, read] = message
            if read:
                await room.call("mark_message_read", agent_name="Ben", message_id=message)
            room.clock.advance(timedelta(seconds=1))
    unread = {one["id"] for one in await room.inbox("Ben", unread_only=True)}
    assert unread == {message for (_, read), message in ids.items() if not read}
    urgent = {one["id"] for one in await room.inbox("Ben", urgent_only=True)}
    assert urgent == {message for (importance, _), message in ids.items() if importance in ("high", "urgent")}
    both = await room.inbox("Ben", urgent_only=True, unread_only=True, after=0)
    assert [one["id"] for one in both] == [ids["high", False], ids["urgent", False]]
    assert [one["id"] for one in await room.inbox("Ben", urgent_only=True, unread_only=True, limit=1)] == [
        ids["urgent", False]
    ]


async def test_since_is_kept_to_the_millisecond_in_every_zone(room: Room) -> None:
    await room.open()
    await room.send("Ada", "Ben")
    room.clock.advance(timedelta(milliseconds=1))
    second = await room.send("Ada", "Ben")
    here = iso(room.clock.now())
    assert from_iso(here) == room.clock.now()
    for since in (here, here.replace("Z", "+00:00"), here.removesuffix("Z"), here.replace("T", " ")):
        assert [one["id"] for one in await room.inbox("Ben", since=since)] == [second]
    room.clock.advance(timedelta(milliseconds=1))
    assert await room.inbox("Ben", since=iso(room.clock.now())) == []


PAST = {
    **dict.fromkeys(("2h", "2 hours", "2 hours ago", "last 2 hours", "the past 2 hours", "PT2H"), "10:00"),
    **dict.fromkeys(("-2h", "-PT2H", "now-2h", "120 min", "2 hrs ago", "in the last 2 hours"), "10:00"),
    **dict.fromkeys(("an hour ago", "last hour", "1 hour ago", "60m ago", "One hour ago"), "11:00"),
    "1 hour and 30 minutes ago": "10:30",
    "today": "00:00",
    "today 9:05": "09:05",
    "yesterday": "-1 00:00",
    "Yesterday at 14:00": "-1 14:00",
    "1 day": "-1 12:00",
    "P1D": "-1 12:00",
    "2026/11/28": "-1 00:00",
    "Sun, 29 Nov 2026 10:00:00 +0000": "10:00",
    "1795946400": "10:00",
    "1795946400000": "10:00",
}
NOT_PAST = (
    "last week",
    "1 month ago",
    "tomorrow",
    "in 2 hours",
    "monday",
    "11/12/2026",
    "12:00",
    "2",
    "soon",
)


async def test_since_takes_times_as_people_write_them_and_refuses_what_would_be_a_guess(room: Room) -> None:
    room.clock.set(from_iso("2026-11-27T00:00:00Z"))
    await room.open()
    sent = {}
    for text in sorted(set(PAST.values()) | {"12:00"}, key=lambda one: (not one.startswith("-1"), one)):
        day, time = ("28", text[3:]) if text.startswith("-1") else ("29", text)
        at = from_iso(f"2026-11-{day}T{time}:00Z")
        room.clock.set(at - 1)
        await room.send("Ada", "Ben")
        room.clock.set(at + 1)
        sent[text] = await room.send("Ada", "Ben")
    room.clock.set(from_iso("2026-11-29T12:00:00Z"))
    for since, text in PAST.items():
        found = [one["id"] for one in await room.inbox("Ben", since=since, limit=100)]
        assert min(found) == sent[text], since
    for since in NOT_PAST:
        with pytest.raises(InvalidArgument) as refused:
            await room.inbox("Ben", since=since)
        assert "1 hour ago" in (refused.value.remedy or "")


async def test_a_cursor_beyond_the_newest_message_or_before_what_was_purged_is_refused(room: Room) -> None:
    await room.open()
    for _ in range(4):
        await room.send("Ada", "Ben")
    for operation in ("fetch_inbox_events", "fetch_inbox"):
        error = await room.refused(CursorAhead, operation, agent_name="Ben", after=5)
        assert error.details == {"oldest": 0, "newest": 4}
        assert "continue after 4:" in error.remedy
    assert await room.inbox("Ben", after=4) == []
    assert (await room.call("fetch_inbox_events", agent_name="Ben", after=4))["events"] == []
    await _purge(room, 2)
    for after in (0, 1):
        expired = await room.refused(CursorExpired, "fetch_inbox_events", agent_name="Ben", after=after)
        assert expired.details == {"oldest": 2, "newest": 4}
    kept = await room.call("fetch_inbox_events", agent_name="Ben", after=2)
    assert [one["seq"] for one in kept["events"]] == [3, 4]


async def _purge(room: Room, floor: int) -> None:
    """Purge the oldest entries of Ben's inbox, which no operation does yet."""
    assert isinstance(room.store, SqliteStore)
    await room.store.store.engine.write(
        lambda sql: sql.connection.execute(
            "UPDATE agents SET inbox_floor = :floor, inbox_seq = :floor WHERE name = 'Ben'", {"floor": floor}
        )
    )


async def test_the_first_mark_stands_whichever_way_the_clock_moves(room: Room) -> None:
    await room.open()
    for name in ("mark_message_read", "acknowledge_message"):
        message = await room.send("Ada", "Ben")
        first = await room.call(name, agent_name="Ben", message_id=message)
        assert (first["read"], first["read_at"]) == (True, iso(room.clock.now()))
        for step in (timedelta(hours=1), timedelta(hours=-2)):
            room.clock.advance(step)
            assert await room.call(name, agent_name="Ben", message_id=message) == first
        assert (await room.inbox("Ben"))[0]["read_at"] == first["read_at"]
    own = {"agent_name": "Ben", "message_id": await room.send("Ada", "Ben")}
    read = (await room.call("mark_message_read", **own))["read_at"]
    room.clock.advance(timedelta(minutes=1))
    acked = await room.call("acknowledge_message", **own)
    at = {"acknowledged": True, "acknowledged_at": iso(room.clock.now()), "read": True, "read_at": read}
    assert acked == {"message_id": own["message_id"], **at}
    room.clock.advance(timedelta(minutes=1))
    assert (await room.call("mark_message_read", **own))["read_at"] == read


async def test_marks_are_each_readers_own(room: Room) -> None:
    await room.open()
    message = await room.send("Ada", "Ben", cc=["Cyd"])
    await room.call("acknowledge_message", agent_name="Ben", message_id=message)
    assert (await room.inbox("Cyd"))[0]["read_at"] is None
    room.clock.advance(timedelta(minutes=1))
    await room.call("mark_message_read", agent_name="Cyd", message_id=message)
    entries = [(await room.inbox(name))[0] for name in ("Ben", "Cyd")]
    assert entries[0]["read_at"] != entries[1]["read_at"]
    assert entries[1]["acked_at"] is None
    for name in ("mark_message_read", "acknowledge_message"):
        await room.refused(UnknownMessage, name, agent_name="Ada", message_id=message)


async def test_a_message_from_abroad_is_read_where_it_arrived(room: Room) -> None:
    await room.open()
    await room.open("Eve", "Flo", project=SHORE)
    message = await room.send("Ada", "Eve@projects-shore")
    own: dict[str, Any] = {"project_key": SHORE, "agent_name": "Eve"}
    shown = await room.call("get_message", **own, message_id=message)
    assert (shown["from"], shown["to"]) == ("Ada@projects-harbor", ["Eve"])
    await room.call("acknowledge_message", **own, message_id=message)
    status = await room.call("delivery_status", agent_name="Ada", message_id=message)
    assert [(one["name"], one["state"]) for one in status["recipients"]] == [
        ("Eve@projects-shore", "acknowledged")
    ]
    for name in ("get_message", "delivery_status"):
        await room.refused(UnknownMessage, name, project_key=SHORE, agent_name="Flo", message_id=message)
    assert (await room.call("get_message", agent_name="Cyd", message_id=message))["body_md"] == "A body"


MB = '2026-11-28 ERROR x=1 y="2"\n' * 38_000


def in_bytes(answer: object) -> int:
    return len(json.dumps(answer, ensure_ascii=False).encode())


async def test_large_messages_are_cut_and_small_ones_beside_them_are_whole(room: Room) -> None:
    await room.open()
    large = [await room.send("Ada", "Ben", body_md=MB) for _ in range(3)]
    small = await room.send("Ada", "Ben", body_md="stop")
    inbox = await room.inbox("Ben")
    assert in_bytes(inbox) < 50_000
    assert [one["id"] for one in inbox] == [small, *reversed(large)]
    assert inbox[0]["body_md"] == "stop"
    assert "truncated" not in inbox[0]
    for message in inbox[1:]:
        assert message["truncated"] is True
        assert MB.startswith(message["body_md"])
        assert len(message["body_md"]) > 5_000
        assert message["characters_left"] == len(MB) - len(message["body_md"])
    thread = await room.call("fetch_thread", thread_id=f"msg-{large[0]}")
    assert in_bytes(thread) < 50_000
    assert thread["messages"][0]["truncated"] is True


@each_row("body", [MB, '"\\\n' * 50_000, "日本語🚀" * 20_000, "\x01" * 60_000, "x" * 40_000])
@each_row("tool", ["get_message", "fetch_inbox"])
async def test_a_large_message_is_read_in_parts_by_its_id(room: Room, body: str, tool: str) -> None:
    await room.open()
    message = await room.send("Ada", "Ben", body_md=body)
    found, offset, parts = "", 0, 0
    while True:
        answer = await room.call(tool, agent_name="Ben", message_id=message, offset=offset)
        part = answer if tool == "get_message" else answer[0]
        assert in_bytes(answer) < 41_000
        assert part["body_md"]
        found, parts = found + part["body_md"], parts + 1
        if "truncated" not in part:
            break
        assert part["characters_left"] == len(body) - len(found)
        offset = part["next_offset"]
    assert found == body
    assert parts > 1
    past = await room.call("get_message", agent_name="Ben", message_id=message, offset=len(body) + 5)
    assert past["body_md"] == ""
    assert "truncated" not in past


async def all_parts(room: Room, start: int | None = None, **more: Any) -> list[list[dict[str, Any]]]:
    """Read Ben's inbox to its end: newest first, or after `start` oldest first."""
    cursor = "before" if start is None else "after"
    parts = [await room.inbox("Ben", limit=1000, after=start, **more)]
    while "more" in parts[-1][-1]:
        parts.append(await room.inbox("Ben", limit=1000, **{cursor: parts[-1][-1]["seq"]}, **more))
    return parts


async def test_messages_of_any_size_come_in_answers_of_limited_size(room: Room) -> None:
    await room.open()
    sent = [await room.send("Ada", "Ben", body_md="ä" * (size * 40)) for size in range(150)]
    for start, unread_only in itertools.product((None, 0), (False, True)):
        parts = await all_parts(room, start, unread_only=unread_only)
        assert len(parts) > 1
        assert all(len(msgspec.json.encode(part)) <= 40_000 for part in parts)
        inbox = [one for part in parts for one in part]
        assert [one["id"] for one in inbox] == (sent[::-1] if start is None else sent)
        assert all("more" not in one for part in parts for one in part[:-1])
        for one in inbox:
            size = sent.index(one["id"]) * 40
            assert len(one["body_md"]) + one.get("characters_left", 0) == size
            assert len(one["body_md"]) >= min(size, 500)


async def test_short_messages_are_whole_in_each_list_and_read_on_from_its_last_message(room: Room) -> None:
    await room.open()
    one_more = {"subject": "x" * 200, "body_md": "y" * 300}
    first = await room.send("Ada", "Ben", **one_more)
    thread = f"msg-{first}"
    sent = [first, *[await room.send("Ada", "Ben", thread_id=thread, **one_more) for _ in range(299)]]
    parts = await all_parts(room)
    assert [one["id"] for part in parts for one in part] == sent[::-1]
    assert min(map(len, parts[:-1])) > 40
    for listed in ("fetch_thread", "fetch_inbox_events"):
        found, after, answers = [], 0, 0
        while after is not None and len(found) < len(sent):
            named = {"agent_name": "Ben"} if listed == "fetch_inbox_events" else {"thread_id": thread}
            answer = await room.call(listed, after=after, limit=1000, **named)
            rows = answer["events" if listed == "fetch_inbox_events" else "messages"]
            assert len(msgspec.json.encode(rows)) <= 40_000
            assert all(one.get("body_md", one_more["body_md"]) == one_more["body_md"] for one in rows)
            found += [one["id"] for one in rows]
            after, answers = answer["next"], answers + 1
        assert found == sent
        assert answers > 1
    session = await room.call("start_session", program="p", model="m", name="Ben", inbox_limit=100)
    assert session["unread"] == 300
    assert len(msgspec.json.encode(session["inbox"])) <= 40_000


async def test_lists_name_some_of_many_recipients_and_a_message_names_all_of_them(room: Room) -> None:
    names = [f"worker-{number:03}" for number in range(150)]
    await room.open("Ada", *names)
    for _ in range(20):
        newest = await room.send("Ada", broadcast=True, body_md="short news")
    inbox = await room.inbox(names[70])
    assert len(inbox) == 20
    assert {one["body_md"] for one in inbox} == {"short news"}
    assert {(len(one["to"]), one["recipients_left"]) for one in inbox} == {(20, 130)}
    assert len(msgspec.json.encode(inbox)) <= 40_000
    for whole in (
        await room.call("get_message", agent_name=names[70], message_id=newest),
        *await room.inbox(names[70], message_id=newest),
    ):
        assert sorted(whole["to"]) == names
        assert "recipients_left" not in whole


async def test_several_messages_are_acknowledged_in_one_call_or_none_of_them(room: Room) -> None:
    await room.open()
    first, second = await room.send("Ada", "Ben"), await room.send("Ada", "Ben")
    for_cyd = await room.send("Ada", "Cyd")
    assert [one["id"] for one in await room.inbox("Ben", message_id=first)] == [first]
    for name, message in (("Cyd", first), ("Ada", first), ("Ben", for_cyd)):
        error = await room.refused(UnknownMessage, "fetch_inbox", agent_name=name, message_id=message)
        assert name in error.message
    await room.refused(UnknownMessage, "acknowledge_message", agent_name="Ben", message_ids=[first, for_cyd])
    assert len(await room.call("fetch_inbox", agent_name="Ben", unread_only=True)) == 2
    done = await room.call("acknowledge_message", agent_name="Ben", message_ids=[first, second])
    assert [(one["message_id"], one["acknowledged"]) for one in done["messages"]] == [
        (first, True),
        (second, True),
    ]
    assert await room.call("fetch_inbox", agent_name="Ben", unread_only=True) == []
    for given in ({}, {"message_ids": []}, {"message_id": first, "message_ids": [second]}):
        await room.refused(InvalidArgument, "acknowledge_message", agent_name="Ben", **given)
