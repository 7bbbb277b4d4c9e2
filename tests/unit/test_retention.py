"""Messages, answers and runs are deleted when their time has passed, and nothing else: in steps, despite failures in
between.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from machine import PATIENCE
from mail_room import HARBOR, SHORE, Room, room_in_memory
from postroom.app.config import Settings
from postroom.app.retention import Retention
from postroom.contracts.errors import CursorExpired, StoreUnavailable, UnknownMessage, UnknownProject
from postroom.contracts.mail import KeepRule
from postroom.mail import retention as rules_of_mail
from postroom.testing.faults import LosingStore, RefusingStore, writes

room = room_in_memory
MONTH = KeepRule(keep=timedelta(days=30))


class AtOnce:
    """A timer that never waits, and lets others have their turn."""

    async def sleep(self, milliseconds: int) -> None:
        await asyncio.sleep(0)


def retention(room: Room, path: Path, *rules: KeepRule, store: Any = None) -> Retention:
    return Retention(Settings(data_dir=path), store or room.store, rules, timer=AtOnce())


async def read_by(room: Room, name: str, *numbers: int) -> None:
    for number in numbers:
        await room.call("mark_message_read", agent_name=name, message_id=number)


async def left(room: Room, project: int = 1) -> list[int]:
    await room.store.settle()
    return [one.id for one in await room.store.read(lambda tx: tx.project_messages(project, limit=999))]


async def old_mail(room: Room, count: int = 4) -> list[int]:
    """Messages of 31 days ago, all of them read."""
    await room.open()
    numbers = [await room.send("Ada", "Ben") for _ in range(count)]
    await read_by(room, "Ben", *numbers)
    await room.store.settle()
    room.clock.advance(timedelta(days=31))
    return numbers


async def test_what_is_old_and_read_goes_and_a_trial_only_counts(room: Room, tmp_path: Path) -> None:
    numbers = await old_mail(room)
    young = await room.send("Ada", "Ben")
    assert await retention(room, tmp_path).messages() == 0, "without a rule nothing goes"
    unread = retention(room, tmp_path, MONTH)
    [trial] = await unread.preview()
    assert (trial.project, dict(trial.counts)) == ("projects-harbor", {"goes": 4, "young": 1})
    assert await left(room) == [*numbers, young]
    assert await unread.messages() == 4
    assert await left(room) == [young]
    assert await unread.messages() == 0


async def test_what_somebody_has_yet_to_read_or_acknowledge_stays_unless_the_rule_says_otherwise(
    room: Room, tmp_path: Path
) -> None:
    await room.open()
    unread = await room.send("Ada", "Ben", "Cyd")
    await read_by(room, "Ben", unread)
    unacknowledged = await room.send("Ada", "Ben", ack_required=True)
    await read_by(room, "Ben", unacknowledged)
    acknowledged = await room.send("Ada", "Ben", ack_required=True)
    await room.call("acknowledge_message", agent_name="Ben", message_id=acknowledged)
    await room.store.settle()
    room.clock.advance(timedelta(days=31))
    assert await retention(room, tmp_path, MONTH).messages() == 1
    assert await left(room) == [unread, unacknowledged]
    await room.call("retire_agent", agent_name="Cyd")
    assert await retention(room, tmp_path, MONTH).messages() == 1  # nobody is left who would read it
    assert await left(room) == [unacknowledged]
    all_of_it = KeepRule(keep=timedelta(days=30), unread_stays=False)
    assert await retention(room, tmp_path, all_of_it).messages() == 1


async def test_what_is_held_stays_wherever_the_rule_stands(room: Room, tmp_path: Path) -> None:
    await room.open()
    await room.open("Eve", "Flo", project=SHORE)
    kept = await room.send("Ada", "Ben", thread_id="case-7")
    topic = await room.send("Ada", "Ben", topic="audit")
    there = await room.call(
        "send_message", project_key=SHORE, sender_name="Eve", to=["Flo"], subject="s", body_md="b"
    )
    goes = await room.send("Ada", "Ben")
    await read_by(room, "Ben", kept, topic, goes)
    number = there["deliveries"][0]["payload"]["id"]
    await room.call("mark_message_read", project_key=SHORE, agent_name="Flo", message_id=number)
    await room.store.settle()
    room.clock.advance(timedelta(days=31))
    holds = [KeepRule(thread="case-7"), KeepRule(topic="audit"), KeepRule(project=SHORE)]
    assert await retention(room, tmp_path, MONTH, *holds).messages() == 1
    assert await left(room) == [kept, topic]
    assert await left(room, 2) == [number]


async def test_the_first_rule_that_fits_decides(room: Room, tmp_path: Path) -> None:
    await old_mail(room)
    year = KeepRule(project=HARBOR, keep=timedelta(days=365))
    assert await retention(room, tmp_path, year, MONTH).messages() == 0
    assert (
        await retention(room, tmp_path, KeepRule(project="gone", keep=timedelta(days=1)), year).messages()
        == 0
    )
    assert await retention(room, tmp_path, MONTH, year).messages() == 4


async def test_a_hold_on_a_project_that_is_not_there_stops_all_deleting(room: Room, tmp_path: Path) -> None:
    numbers = await old_mail(room)
    mistyped = retention(room, tmp_path, MONTH, KeepRule(project="/projects/harbour"))
    with pytest.raises(UnknownProject):
        await mistyped.messages()
    with pytest.raises(UnknownProject):
        await mistyped.preview()
    assert await left(room) == numbers


async def test_a_message_that_goes_unread_while_it_is_looked_at_stays(room: Room, tmp_path: Path) -> None:
    numbers = await old_mail(room, 1)
    [ben] = await room.store.read(lambda tx: tx.agents_named(1, ["Ben"]))
    rules = await room.store.read(lambda tx: rules_of_mail.rules_of_projects(tx, [MONTH], [1]))
    await room.store.write(lambda tx: tx.insert_recipient(numbers[0], tx.agents_named(1, ["Cyd"])[0], "cc"))
    gone = await room.store.write(
        lambda tx: rules_of_mail.delete_some(tx, project_id=1, ids=numbers, rules=rules[1])
    )
    assert (gone, await left(room)) == (0, numbers)
    assert ben.inbox_floor == 0


async def test_a_kill_or_a_lost_answer_between_steps_loses_nothing_and_deletes_nothing_twice(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.app.retention.MESSAGES", 3)
    numbers = await old_mail(room, 10)
    young = await room.send("Ada", "Ben")
    for faulty in (RefusingStore, LosingStore):
        with pytest.raises(StoreUnavailable):
            await retention(room, tmp_path, MONTH, store=faulty(room.store, writes(2))).messages()
    assert await left(room) == [*numbers[9:], young]
    assert await retention(room, tmp_path, MONTH).messages() == 1
    told = await room.call("fetch_events", after=0, kinds=["message.deleted"])
    assert (
        sorted(int(number) for one in told["events"] for number in str(one["detail"]["ids"]).split())
        == numbers
    )


async def test_readers_and_writers_go_on_meanwhile(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.app.retention.MESSAGES", 2)
    numbers = await old_mail(room, 20)
    seen: list[Sequence[int]] = []

    async def reads() -> None:
        for _ in range(20):
            entries = await room.inbox("Ben", limit=50)
            seen.append([one["id"] for one in entries])

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(retention(room, tmp_path, MONTH).messages())
        group.create_task(reads())
        sent = [group.create_task(room.send("Cyd", "Ben")) for _ in range(10)]
    new = sorted(one.result() for one in sent)
    assert new[0] > numbers[-1]
    assert await left(room) == new
    assert [one["id"] for one in await room.inbox("Ben", limit=50)] == new[::-1]
    assert all(ids == sorted(ids, reverse=True) for ids in seen)


async def test_a_reader_whose_cursor_lies_behind_is_told_and_one_that_is_ahead_misses_nothing(
    room: Room, tmp_path: Path
) -> None:
    await old_mail(room, 3)
    await room.send("Ada", "Ben")
    await retention(room, tmp_path, MONTH).messages()
    error = await room.refused(CursorExpired, "fetch_inbox_events", agent_name="Ben", after=2)
    assert "fetch_inbox" in error.remedy
    found = await room.call("fetch_inbox_events", agent_name="Ben", after=3)
    assert [one["seq"] for one in found["events"]] == [4]


async def test_a_thread_whose_beginning_is_gone_goes_on_and_its_text_is_found_no_more(
    room: Room, tmp_path: Path
) -> None:
    await room.open()
    first = await room.send("Ada", "Ben", subject="Zebra", body_md="crossing", thread_id="t")
    await read_by(room, "Ben", first)
    await room.store.settle()
    room.clock.advance(timedelta(days=31))
    answer = await room.call("reply_message", sender_name="Ben", message_id=first, body_md="Yes")
    number = answer["deliveries"][0]["payload"]["id"]
    await retention(room, tmp_path, MONTH).messages()
    await room.refused(UnknownMessage, "get_message", agent_name="Ben", message_id=first)
    await room.refused(UnknownMessage, "reply_message", sender_name="Ben", message_id=first, body_md="b")
    again = await room.call("reply_message", sender_name="Ada", message_id=number, body_md="Good")
    assert again["deliveries"][0]["payload"]["thread_id"] == "t"
    assert (await room.call("search_messages", query="crossing"))["hits"] == []
    thread = await room.store.read(lambda tx: tx.thread(1, "t", limit=9))
    assert [one.reply_to for one in thread] == [first, number]


async def test_answers_to_keyed_calls_are_forgotten_after_their_time_and_no_earlier(
    room: Room, tmp_path: Path
) -> None:
    await room.open()
    message = {"sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"}
    first = await room.call("send_message", **message, idempotency_key="old")
    room.clock.advance(timedelta(days=7))
    assert await retention(room, tmp_path).answers() == 0
    assert await room.call("send_message", **message, idempotency_key="old") == first
    room.clock.advance(timedelta(milliseconds=1))
    assert await retention(room, tmp_path).answers() == 1
    assert await room.call("send_message", **message, idempotency_key="old") != first
