"""Messages of people on a schedule: by the ordinary operation, once a tick, their readers woken."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from dispatch import conftest as rooms
from postroom.contracts.errors import (
    InvalidRecipients,
    InvalidSchedule,
    TooLarge,
    UnknownAgent,
    UnknownProject,
    UnknownSchedule,
)
from postroom.mail.context import Caller
from postroom.services.people import PeopleService
from postroom.services.schedules import MailSchedules, ScheduledMessage
from postroom.testing import ManualClock
from waking.test_people import FakeChatOutbox
from waking_room import PROJECT, Room

run_place, prepared_stores, both_engines = rooms.run_place, rooms.prepared_stores, rooms.both_engines
HOUR = timedelta(hours=1)
SLUG = "projects-shop"


class ScheduleRoom(Room):
    """A mail room with schedules, and Ana, who sends."""

    def desk(self, waker: Any = None) -> MailSchedules:
        return MailSchedules(self.mail, self.runs.store, waker or self.waker)

    async def add(self, name: str = "standup", **given: Any) -> Any:
        message = {"sender": "Ana", "to": ["Bo"], "subject": "Plan", "body": "What is planned?"}
        said = {key: given.pop(key) for key in [*message, "project", "catch_up"] if key in given}
        asked: dict[str, Any] = {
            "cron": None,
            "every": None if "cron" in given else HOUR,
            "zone": "Europe/Berlin",
            "missed": "once",
            "overlap": "queue",
            "jitter": timedelta(0),
            "replaces": False,
        }
        made = ScheduledMessage(**({"project": PROJECT} | message | said))
        return await self.desk().add(name, made, **(asked | given))

    async def all_due(self) -> None:
        while await self.desk().kept.submit_due():
            pass


@pytest_asyncio.fixture
async def room(prepared_stores: Any, clock: ManualClock) -> AsyncIterator[ScheduleRoom]:
    held = prepared_stores.held
    made = ScheduleRoom(store=held, runs=held.runs, clock=clock)
    await made.people("Bo", "Cy", runners=("Bo",))
    await PeopleService(made.mail, lambda _: False).add("Ana", None)
    yield made
    await made.close()


@both_engines
async def test_a_message_is_sent_at_each_tick_and_wakes_its_reader(room):
    added = await room.add()
    assert (added["project"], added["from"], added["to"], added["state"]) == (SLUG, "Ana", ["Bo"], "active")
    for count in (1, 2):
        room.clock.advance(HOUR)
        await room.all_due()
        await room.turn()
        assert await room.texts("Bo") == [("human:Ana", "What is planned?")] * count
        assert len(room.agents.prompts) == count
    shown = await room.desk().named("standup")
    assert (shown["sent"], shown["last_message"]) == (2, (await room.inbox("Bo"))[-1]["id"])


@both_engines
async def test_two_servers_send_one_message_a_tick(room):
    await room.add("a")
    await room.add("b", to=["Cy"])
    other, waker = room.opened("other")
    room.clock.advance(HOUR)
    desks = (room.desk(), room.desk(waker), room.desk(), room.desk(waker))
    await asyncio.gather(*(desk.kept.submit_due() for desk in desks))
    await room.all_due()
    assert len(await room.texts("Bo")) == len(await room.texts("Cy")) == 1
    await other.aclose(timedelta(0))


async def test_what_could_not_be_sent_is_refused_and_sent_to_nobody(room):
    for given, error in (
        ({"project": "/nowhere"}, UnknownProject),
        ({"sender": "Nobody"}, UnknownAgent),
        ({"to": ["Nobody"]}, UnknownAgent),
        ({"to": []}, InvalidRecipients),
        ({"subject": "x" * 10_000}, TooLarge),
        ({"sender": "", "to": ["Bo"]}, UnknownAgent),
        ({"cron": "0 0 31 2 *"}, InvalidSchedule),
        ({"missed": "some"}, InvalidSchedule),
    ):
        with pytest.raises(error):
            await room.add(**given)
    assert await room.desk().listed() == []
    assert await room.texts("Bo") == []


async def test_a_reader_who_is_gone_is_told_with_the_schedule_and_stops_no_other(room):
    await room.add("a", to=["Cy"])
    await room.add("b")
    gone = {"project_key": PROJECT, "agent_name": "Cy"}
    await room.mail.call("retire_agent", gone)
    room.clock.advance(HOUR)
    await room.all_due()
    assert len(await room.texts("Bo")) == 1
    shown = await room.desk().named("a")
    assert shown["sent"] == 0
    assert "Cy" in shown["last_error"]
    await room.mail.call("unretire_agent", gone)
    assert await room.desk().trigger("a") == (await room.inbox("Cy"))[0]["id"]
    assert (await room.desk().named("a"))["last_error"] is None


async def test_no_second_message_is_sent_while_the_first_is_unread(room):
    await room.add(to=["Cy"], overlap="skip")
    for _ in range(3):
        room.clock.advance(HOUR)
        await room.all_due()
    [first] = await room.inbox("Cy")
    read = {"project_key": PROJECT, "agent_name": "Cy", "message_id": first["id"]}
    await room.mail.call("mark_message_read", read)
    room.clock.advance(HOUR)
    await room.all_due()
    assert len(await room.inbox("Cy")) == 2
    shown = await room.desk().named("standup")
    assert (shown["sent"], shown["passed_over"]) == (2, 2)


async def test_schedules_are_listed_by_project_paused_and_removed(room):
    desk = room.desk()
    await room.add()
    assert [one["name"] for one in await desk.listed(SLUG)] == ["standup"]
    assert await desk.listed("other") == []
    with pytest.raises(UnknownSchedule):
        await desk.named("standup", "other")
    assert (await desk.pause("standup"))["state"] == "paused"
    room.clock.advance(3 * HOUR)
    await room.all_due()
    assert (await desk.resume("standup"))["state"] == "active"
    assert await desk.remove("standup")
    room.clock.advance(3 * HOUR)
    await room.all_due()
    assert await room.texts("Bo") == []


async def test_a_person_is_reached_in_a_chat_once_a_tick(room):
    chats = FakeChatOutbox()
    room.waker = room.waker_of(room.mailbox, chats)
    await PeopleService(room.mail, chats.reaches).add("Ben", "telegram/77")
    await room.add("by name", to=["human:Ben"])
    await room.add("by chat", to=["chat:telegram/77"])
    room.clock.advance(HOUR)
    await room.all_due()
    said = [(place, "What is planned?" in text) for _, place, text in chats.carried]
    assert said == [("telegram/77", True)] * 2


@both_engines
async def test_a_message_with_a_summary_covers_the_time_since_the_last_one(room):
    added = await room.add("nine", to=["human:Ana"], body="Good morning.", catch_up=True)
    assert added["catch_up"] is True
    assert (await room.add("nine", to=["human:Ana"], body="Good morning.", catch_up=True)) == added
    for subject in ("Lights", "Lamps"):
        await room.send("Bo", "Cy", subject=subject, thread_id=subject)
        room.clock.advance(HOUR)
        await room.all_due()
    room.clock.advance(HOUR)
    await room.all_due()
    asked = {"project_key": "postroom-people", "agent_name": "Ana", "after": 0}
    inbox = await room.mail.call("fetch_inbox", asked, caller=Caller(postroom=True, operator=True))
    first, second, third = [one["body_md"] for one in inbox]
    assert first.startswith("Good morning.\n\nSince ")
    assert ('- Bo wrote a message about "Lights" (thread "Lights").' in first, "Lamps" in first) == (
        True,
        False,
    )
    assert ("Lights" in second, 'about "Lamps"' in second) == (False, True)
    assert "Since" in third
    assert "Threads" not in third
