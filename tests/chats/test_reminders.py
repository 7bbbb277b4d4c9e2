"""Reminders in a chat come when they are due, once, and only as long as their author may write."""

import re
from datetime import UTC, datetime, timedelta

from gateway_room import CONFIG, Agent, all_answered, settled
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.reminders import CHAT, MAX_SCHEDULES, next_time
from postroom.gateway.session import Platform


async def later(room, gateway, span: timedelta) -> int:
    """Advance the time, and submit due work; return the number of submissions."""
    room.clock.advance(span)
    return await gateway._reminders.kept.submit_due()


async def test_a_reminder_comes_once_over_a_restart(room) -> None:
    agent, gateway, channel = await room.with_agent()
    await channel.say("/remind 10m Lock   the door.")
    await all_answered(room, gateway, 1)
    await room.close()
    gateway, channel = await room.open(agent)
    await channel.say("/every")
    await all_answered(room, gateway, 2)
    listed = re.compile(r"1\. in 10m, next Tue 2023-11-14 22:2\d UTC: Lock   the door\.")
    await settled(lambda: any(map(listed.fullmatch, channel.texts())), room.hurry(gateway))
    await later(room, gateway, timedelta(minutes=11))
    await settled(lambda: "Reminder: Lock   the door." in channel.texts(), room.hurry(gateway))
    assert await later(room, gateway, timedelta(hours=1)) == 0
    assert channel.texts().count("Reminder: Lock   the door.") == 1
    assert await gateway._reminders.kept.listed(CHAT) == []
    assert agent.read == []


async def test_a_span_is_written_in_words_or_in_short(room) -> None:
    _, gateway, channel = await room.with_agent()
    for words in ("10m A", "10 minutes B", "in 10 min C", "1h30m D", "1 hour 30 minutes E"):
        await channel.say(f"/remind {words}")
    await channel.say("/every 2 hours F")
    await all_answered(room, gateway, 6)
    listed = await gateway._reminders.kept.listed(CHAT)
    assert {one.payload["text"]: one.every_ms // 60_000 for one in listed} == {
        **dict.fromkeys("ABC", 10),
        **dict.fromkeys("DE", 90),
        "F": 120,
    }


async def test_reminders_that_were_due_while_no_server_ran_come_in_order(room) -> None:
    gateway, channel = await room.open(Agent())
    spans = range(20, 0, -1)
    for number, minutes in enumerate(spans, start=1):
        await channel.say(f"/remind {minutes}m number {minutes}")
        await all_answered(room, gateway, number)
    await room.close()
    gateway, channel = await room.open(Agent())
    await later(room, gateway, timedelta(hours=1))
    wanted = [f"Reminder: number {minutes}" for minutes in sorted(spans)]

    def reminded() -> list[str]:
        return [text for text in channel.texts() if text.startswith("Reminder: ")]

    await settled(lambda: len(reminded()) == len(wanted), room.hurry(gateway))
    assert reminded() == wanted


async def test_words_come_to_the_agent_again_and_again_until_they_are_removed(room) -> None:
    agent, gateway, channel = await room.with_agent()
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    await channel.say("/every 1d Say what is new.")
    await all_answered(room, gateway, 2)
    for times in (1, 2):
        await later(room, gateway, timedelta(days=1, seconds=1))
        await settled(
            lambda times=times: channel.texts().count("re: Say what is new.") == times, room.hurry(gateway)
        )
    assert len({one.thread_id for one in agent.activations}) == 1
    await channel.say("/every stop 1")
    await all_answered(room, gateway, 3)
    await settled(lambda: "Removed: every 1d: Say what is new." in channel.texts(), room.hurry(gateway))
    assert await later(room, gateway, timedelta(days=2)) == 0


def at(year: int, month: int, day: int, hour: int) -> int:
    """Return an hour in UTC as milliseconds since the epoch."""
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp() * 1_000)


async def test_words_come_at_a_time_of_day_in_a_zone_also_when_the_clocks_change(room) -> None:
    """The room begins on Tuesday, 14 November 2023; clocks in New York are set ahead on 10 March 2024."""
    gateway, channel = await room.open(Agent())
    await channel.say("/every day at 9:00 America/New_York Say what is new.")
    await all_answered(room, gateway, 1)
    kept = "Saved: every day at 9:00 America/New_York; next Wed 2023-11-15 09:00 EST."
    await settled(lambda: channel.texts() == [kept], room.hurry(gateway))
    moments = (at(2023, 11, 15, 14), at(2024, 3, 9, 14), at(2024, 3, 10, 13), at(2024, 3, 11, 13))
    for times, moment in enumerate(moments, start=1):
        room.clock.set(moment)
        await gateway._reminders.kept.submit_due()  # the gateway may have done it by itself
        await settled(
            lambda times=times: channel.texts().count("re: Say what is new.") == times, room.hurry(gateway)
        )
        assert await gateway._reminders.kept.submit_due() == 0
    await channel.say("/every")
    await settled(lambda: channel.texts()[-1].startswith("1. every"), room.hurry(gateway))
    assert channel.texts()[-1] == (
        "1. every day at 9:00 America/New_York, next Tue 2024-03-12 09:00 EDT: Say what is new."
    )
    assert channel.texts().count("re: Say what is new.") == len(moments)


NEXT_TIMES = (
    ("mon,wed at 18:30", ["Wed 2023-11-15 18:30 UTC", "Mon 2023-11-20 18:30 UTC"]),
    ("weekdays at 6pm", ["Wed 2023-11-15 18:00 UTC", "Thu 2023-11-16 18:00 UTC"]),
    ("weekend at 0:05", ["Sat 2023-11-18 00:05 UTC", "Sun 2023-11-19 00:05 UTC"]),
    ("Friday-Monday AT 12am", ["Fri 2023-11-17 00:00 UTC", "Sat 2023-11-18 00:00 UTC"]),
    ("sun at 8.15 asia/tokyo", ["Sun 2023-11-19 08:15 JST", "Sun 2023-11-26 08:15 JST"]),
    ("day at 9:00 utc", ["Wed 2023-11-15 09:00 UTC", "Thu 2023-11-16 09:00 UTC"]),
    ("day at 9:00 AMERICA/NEW_YORK", ["Wed 2023-11-15 09:00 EST", "Thu 2023-11-16 09:00 EST"]),
    ("1d", ["Wed 2023-11-15 22:13 UTC", "Thu 2023-11-16 22:13 UTC"]),
    ("sun at 8.15 Asia/Tokyo", ["Sun 2023-11-19 08:15 JST", "Sun 2023-11-26 08:15 JST"]),
)


async def test_days_are_named_as_people_name_them(room) -> None:
    gateway, channel = await room.open(Agent())
    for number, (words, (first, _)) in enumerate(NEXT_TIMES, 1):
        await channel.say(f"/every {words} Look at {number}.")
        await all_answered(room, gateway, number)
        await settled(lambda number=number: len(channel.texts()) == number, room.hurry(gateway))
        assert channel.texts()[-1].endswith(f"; next {first}."), words
    kept_now = await gateway._reminders.kept.listed(CHAT)
    for kept in sorted(kept_now, key=lambda one: one.next_at):
        [said] = [
            pair for number, pair in enumerate(NEXT_TIMES, 1) if kept.payload["text"] == f"Look at {number}."
        ]
        room.clock.set(max(room.clock.now(), kept.next_at))
        await gateway._reminders.kept.submit_due()
        [again] = [one for one in await gateway._reminders.kept.listed(CHAT) if one.payload == kept.payload]
        assert next_time(again) == said[1][1], said


async def test_words_with_a_slash_are_no_zone(room) -> None:
    gateway, channel = await room.open(Agent())
    await channel.say("/every day at 9:00 tea/coffee for all")
    await all_answered(room, gateway, 1)
    [kept] = await gateway._reminders.kept.listed(CHAT)
    assert (kept.zone, kept.payload["text"]) == ("UTC", "tea/coffee for all")


async def test_a_time_without_a_zone_is_in_the_zone_of_the_quiet_hours_of_the_chat(room) -> None:
    gateway, channel = await room.open(Agent())
    await channel.say("/set quiet 22:00-07:00 Asia/Tokyo")
    await channel.say("/every day at 9:00 Look.")
    await all_answered(room, gateway, 2)
    await settled(
        lambda: any("every day at 9:00 Asia/Tokyo" in one for one in channel.texts()), room.hurry(gateway)
    )


NO_TIMES = (
    ("day at 25:00 x", "Not saved: '25:00' is not a time of day; write 9:00, 18:30 or 6pm."),
    ("day at 9 x", "Not saved: '9' is not a time of day; write 9:00, 18:30 or 6pm."),
    ("day at 13pm x", "Not saved: '13pm' is not a time of day; write 9:00, 18:30 or 6pm."),
    ("someday at 9:00 x", wording.no_day("someday")),
    ("mon,monkey at 9:00 x", wording.no_day("monkey")),
    (
        "day at 9:00 Europe/Atlantis x",
        "Not saved: unknown time zone 'Europe/Atlantis'; use a name such as Europe/Berlin, "
        "America/New_York or UTC.",
    ),
    (
        "day at 9:00 europe/atlantis x",
        "Not saved: unknown time zone 'europe/atlantis'; use a name such as Europe/Berlin, "
        "America/New_York or UTC.",
    ),
    ("day at 9:00", wording.WHEN_AND_WHAT),
    ("day 9:00 x", wording.WHEN_AND_WHAT),
    ("10s x", wording.WHEN_AND_WHAT),
)


async def test_a_time_or_a_span_that_is_none_is_refused_in_one_sentence(room) -> None:
    gateway, channel = await room.open(Agent())
    reminders = ("", " soon x", " 10m", " 0m x", " 367d x", " 99999999d x")
    rows = [(f"/every {words}", told) for words, told in NO_TIMES]
    rows += [(f"/remind{words}", wording.WHEN_AND_WHAT) for words in reminders]
    for number, (words, told) in enumerate(rows, 1):
        await channel.say(words)
        await all_answered(room, gateway, number)
        await settled(lambda number=number: len(channel.texts()) == number, room.hurry(gateway))
        assert channel.texts()[-1] == told, words
    assert await gateway._reminders.kept.listed(CHAT) == []


async def test_words_for_the_agent_bring_what_the_chat_asks_of_it_as_messages_do(room) -> None:
    agent, gateway, channel = await room.with_agent()
    for number, words in enumerate(
        ("/every 1d Say what is new.", "/set model small", "/set instructions Rhyme.", "hello"), start=1
    ):
        await channel.say(words)
        await all_answered(room, gateway, number)
    await later(room, gateway, timedelta(days=1, seconds=1))
    await settled(agent.began(2), room.hurry(gateway))
    by_hand, by_schedule = (one.messages[-1].content[0].data["caller"] for one in agent.activations)
    assert by_hand == by_schedule
    assert by_schedule["instructions"] == "Rhyme."


async def test_who_may_not_write_any_more_is_not_served(room) -> None:
    agent, telegram = Agent(), CONFIG.platforms[Platform.TELEGRAM]
    gateway, channel = await room.open(agent)
    await channel.say("/every 1h delete everything", user="u2")
    await channel.say("/remind 1h boo", user="u2", chat="b")
    await all_answered(room, gateway, 2)
    await room.close()
    only = replace(telegram, allow={"u1": PersonRole.OWNER, "u2": PersonRole.VIEWER})
    gateway, channel = await room.open(agent, config=replace(CONFIG, platforms={Platform.TELEGRAM: only}))
    await later(room, gateway, timedelta(hours=2))
    assert await gateway._reminders.kept.listed(CHAT) == []
    assert agent.read == []
    assert not [text for text in channel.texts("b") if text.startswith("Reminder")]


async def test_no_more_than_so_many_stand_in_one_session_and_others_have_their_own(room) -> None:
    gateway, channel = await room.open(Agent())
    for number in range(MAX_SCHEDULES + 1):
        await channel.say(f"/remind 1h {number}")
        await settled(lambda: not gateway.intake.tasks)
    await channel.say("/every", chat="b")
    await all_answered(room, gateway, MAX_SCHEDULES + 2)
    refused = wording.too_many_schedules(MAX_SCHEDULES)
    await settled(lambda: channel.texts().count(refused) == 1, room.hurry(gateway))
    await settled(lambda: channel.texts("b") == ["No schedules or reminders."], room.hurry(gateway))
