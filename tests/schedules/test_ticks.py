"""When schedules are due: cron lines in their zones, clock changes, missed ticks, and refusals."""

from collections.abc import Callable
from datetime import datetime
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from postroom.contracts.errors import InvalidSchedule
from postroom.contracts.schedules import Missed, Overlap, Schedule
from postroom.schedules.ticks import MAX_MISSED, _before, due_at, next_tick, planned, refuse_unfit
from table_rows import each_row

HOUR = 3_600_000
DAY = 24 * HOUR
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)
    return int(moment.timestamp() * 1000)


def schedule(**given: Any) -> Schedule:
    fields: dict[str, Any] = {
        "schedule_id": "s1",
        "kind": "run",
        "name": "nightly",
        "cron": None,
        "every_ms": None,
        "zone": "Europe/Berlin",
        "payload": {},
        "missed": Missed.ONCE,
        "overlap": Overlap.QUEUE,
        "jitter_ms": 0,
        "created_at": at("2026-01-01T00:00"),
        "starts_at": at("2026-01-01T00:00"),
        "tick_at": 0,
        "next_at": 0,
    } | given
    return Schedule(**fields)


def ticks(line: str, after: int, count: int) -> list[int]:
    found = [after]
    for _ in range(count):
        found.append(next_tick(schedule(cron=line), found[-1]))
    return found[1:]


@each_row(
    "line, after, expected",
    [
        ("0 9 * * MON", "2026-11-23T08:59:59.999", ["2026-11-23T09:00", "2026-11-30T09:00"]),
        ("0 9 * * MON", "2026-11-23T09:00", ["2026-11-30T09:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 12 L * *", "2026-02-01T00:00", ["2026-02-28T12:00"]),
    ],
)
def test_a_cron_line_is_read_in_its_zone(line: str, after: str, expected: list[str]) -> None:
    assert ticks(line, at(after), len(expected)) == [at(one) for one in expected]


@each_row(
    "line, after, expected",
    [
        # 29 March 2026: clocks go from 02:00 to 03:00. 25 October: from 03:00 back to 02:00.
        ("30 2 * * *", at("2026-03-28T12:00"), [at("2026-03-29T03:00"), at("2026-03-30T02:30")]),
        ("0,30 2 * * *", at("2026-03-28T12:00"), [at("2026-03-29T03:00"), at("2026-03-30T02:00")]),
        ("30 2 * * *", at("2026-10-24T12:00"), [at("2026-10-25T02:30"), at("2026-10-26T02:30")]),
        ("45 2 * * *", at("2026-10-25T02:15", fold=1), [at("2026-10-26T02:45")]),
        ("0 * * * *", at("2026-10-25T01:30"), [at("2026-10-25T02:00"), at("2026-10-25T02:00", fold=1)]),
        ("0 * * * *", at("2026-03-29T01:30"), [at("2026-03-29T03:00"), at("2026-03-29T04:00")]),
    ],
)
def test_a_local_time_that_is_left_out_or_comes_twice_is_one_tick(
    line: str, after: int, expected: list[int]
) -> None:
    assert ticks(line, after, len(expected)) == expected


def test_an_interval_keeps_its_step_whatever_clocks_do() -> None:
    every = schedule(every_ms=HOUR, starts_at=1_000)
    assert next_tick(every, 0) == 1_000 + HOUR
    assert next_tick(every, 1_000 + HOUR) == 1_000 + 2 * HOUR
    assert next_tick(every, 1_000 + 10 * HOUR + 1) == 1_000 + 11 * HOUR


@each_row(
    "missed, late, expected",
    [
        # Whether it is submitted, which tick, and which is next: in hours behind the one that is due.
        (Missed.ONCE, 0, (True, 0, 1)),
        (Missed.ONCE, 4 * HOUR + 5, (True, 0, 5)),
        (Missed.SKIP, 0, (True, 0, 1)),
        (Missed.SKIP, 60_000, (True, 0, 1)),
        (Missed.SKIP, 60_001, (False, 0, 1)),
        (Missed.SKIP, 4 * HOUR + 5, (False, 0, 5)),
        (Missed.ALL, 4 * HOUR + 5, (True, 0, 1)),
        (Missed.ALL, (MAX_MISSED - 1) * HOUR, (True, 0, 1)),
        (Missed.ALL, MAX_MISSED * HOUR, (True, 1, 2)),
        (Missed.ALL, 10 * MAX_MISSED * HOUR, (True, 9 * MAX_MISSED + 1, 9 * MAX_MISSED + 2)),
    ],
)
@pytest.mark.parametrize("line", [None, "0 * * * *"])
def test_what_becomes_of_missed_ticks_is_the_policys_choice(
    line: str | None, missed: Missed, late: int, expected: tuple[bool, int, int]
) -> None:
    due = at("2026-06-01T10:00")
    kept = {"cron": line, "every_ms": None if line else HOUR, "starts_at": due - HOUR}
    plan = planned(schedule(**kept, missed=missed, tick_at=due, next_at=due), due + late)
    found = plan.submits, (plan.tick - due) / HOUR, (plan.then - due) / HOUR
    assert found == expected


@pytest.mark.parametrize("line", ["30 2 * * *", "0,30 2 * * *", "0 * * * *", "15 1,2,3 * * *"])
@pytest.mark.parametrize("start", ["2026-03-28T12:00", "2026-10-24T12:00"])
def test_missed_ticks_are_made_up_for_over_a_clock_change_each_once(line: str, start: str) -> None:
    begun, now = at(start), at(start) + 2 * DAY
    one = schedule(cron=line, missed=Missed.ALL)
    made, tick = [], next_tick(one, begun)
    while tick <= now:
        plan = planned(schedule(cron=line, missed=Missed.ALL, tick_at=tick, next_at=tick), now)
        made.append(plan.tick)
        tick = plan.then
    assert made == list(islice((one for one in ticks(line, begun, 100) if one <= now), 100))


def test_a_tick_has_one_jitter_and_others_have_others() -> None:
    one = schedule(every_ms=HOUR, jitter_ms=60_000)
    delays = {due_at(one, tick) - tick for tick in range(0, 100 * HOUR, HOUR)}
    assert due_at(one, HOUR) == due_at(one, HOUR)
    assert len(delays) > 90
    assert all(0 <= delay <= 60_000 for delay in delays)
    assert due_at(schedule(every_ms=HOUR), HOUR) == HOUR


@each_row(
    "given, why",
    [
        ({"cron": "0 0 31 2 *"}, "not a valid cron expression"),
        ({"cron": "0 0 31 2,4 *"}, "not a valid cron expression"),
        ({"cron": "0 0 * 2 1#5", "created_at": at("2026-01-01T00:00"), "jitter_ms": -1}, "jitter"),
        ({"cron": "* * */20 * 1L"}, "never fires"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 0 9 * * MON"}, "five fields"),
        ({"cron": "@daily"}, "five fields"),
        ({"cron": ""}, "five fields"),
        ({"cron": "0 9 * * LL"}, "cron expression"),
        ({"cron": "0 9 */LW * *"}, "cron expression"),
        ({"cron": "0 9 * * *", "zone": "Europe/Atlantis"}, "unknown time zone"),
        ({"cron": "0 9 * * *", "zone": "../../etc/passwd"}, "unknown time zone"),
        ({"cron": "0 9 * * *", "zone": ""}, "unknown time zone"),
        ({"cron": "0 9 * * *", "zone": "Europe"}, "unknown time zone"),
        ({"cron": "0 9 * * *", "zone": "a\0b"}, "unknown time zone"),
        ({}, "either a cron expression or an interval"),
        ({"cron": "0 9 * * *", "every_ms": HOUR}, "either a cron expression or an interval"),
        ({"every_ms": 0}, "`every` must be from 1s to 3660d"),
        ({"every_ms": 999}, "`every` must be from 1s to 3660d"),
        ({"every_ms": -HOUR}, "`every` must be from 1s to 3660d"),
        ({"every_ms": 10**15}, "`every` must be from 1s to 3660d"),
        ({"every_ms": HOUR, "jitter_ms": HOUR}, "less than 1h, the shortest time"),
        ({"cron": "0 9,10 * * *", "jitter_ms": HOUR}, "less than 1h, the shortest time"),
    ],
)
def test_what_cannot_be_kept_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        refuse_unfit(schedule(**given))


@each_row("given", [{"cron": "0 9 * * MON-FRI"}, {"every_ms": 1_000}, {"cron": "0 0 29 2 *", "zone": "UTC"}])
def test_what_can_be_kept_is(given: dict[str, Any]) -> None:
    refuse_unfit(schedule(**given))


def test_a_line_in_a_zone_far_away_is_a_tick_of_that_zone() -> None:
    tokyo = schedule(cron="0 9 * * *", zone="Asia/Tokyo")
    assert next_tick(tokyo, at("2026-11-23T00:00")) == at("2026-11-23T09:00", ZoneInfo("Asia/Tokyo"))


def test_an_instant_between_seconds_is_behind_the_second() -> None:
    nine = at("2026-11-23T09:00")
    daily = schedule(cron="0 9 * * *")
    assert next_tick(daily, nine - 1) == nine
    assert next_tick(daily, nine + 1) == nine + DAY


@pytest.mark.parametrize(
    ("zone", "line", "fits", "start"),
    [
        (
            "Pacific/Chatham",
            "*/5 3 * * *",
            lambda at: at.hour == 3 and at.minute % 5 == 0,
            "2026-04-04T10:00",
        ),
        (
            "America/Nuuk",
            "*/10 * * * SAT",
            lambda at: at.weekday() == 5 and at.minute % 10 == 0,
            "2026-03-27T20:00",
        ),
        (
            "Australia/Lord_Howe",
            "*/2 9-21 * * *",
            lambda at: 9 <= at.hour <= 21 and at.minute % 2 == 0,
            "2026-10-03T00:00",
        ),
        ("Asia/Beirut", "*/30 * * * *", lambda at: at.minute % 30 == 0, "2026-10-24T12:00"),
    ],
)
def test_odd_changes_of_clocks_are_passed_in_both_directions(
    zone: str, line: str, fits: Callable[[datetime], bool], start: str
) -> None:
    first = int(datetime.fromisoformat(f"{start}+00:00").timestamp())
    minutes = range(first + 60, first + 3 * 86_400, 60)
    expected = [at * 1000 for at in minutes if fits(datetime.fromtimestamp(at, tz=ZoneInfo(zone)))]
    one = schedule(cron=line, zone=zone)
    ahead, tick = [], first * 1000
    while (tick := next_tick(one, tick)) < minutes.stop * 1000:
        ahead.append(tick)
    assert ahead == expected
    back = list(takewhile(lambda at: at > first * 1000, _before(one, minutes[-1] * 1000)))
    assert back == expected[::-1]
