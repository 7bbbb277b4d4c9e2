"""Quiet hours begin and end at minutes of the day, over midnight and over changes of the clock."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from postroom.contracts.errors import ConfigError
from postroom.gateway.quiet import QuietHours
from table_rows import each_row

BERLIN = ZoneInfo("Europe/Berlin")


def left(quiet: str, day: int, hour: int, minute: int = 0, *, month: int = 6) -> float:
    moment = datetime(2026, month, day, hour, minute, tzinfo=BERLIN)
    return QuietHours.parse(quiet).left_ms(int(moment.timestamp() * 1_000)) / 3_600_000


def test_they_go_over_midnight_and_end_at_their_minute() -> None:
    night = "22:00-07:00 Europe/Berlin"
    assert left(night, 1, 21, 59) == 0
    assert left(night, 1, 22) == 9
    assert left(night, 2, 6, 30) == 0.5
    assert left(night, 2, 7) == 0
    assert left("12:30-14:00 Europe/Berlin", 1, 12, 30) == 1.5
    assert left("12:30-14:00 Europe/Berlin", 1, 14) == 0


def test_they_end_by_the_wall_clock_when_that_changes() -> None:
    assert left("22:00-07:00 Europe/Berlin", 24, 23, month=10) == 9  # an hour comes twice
    assert left("22:00-07:00 Europe/Berlin", 28, 23, month=3) == 7


def test_in_the_zone_of_the_server_they_need_no_name() -> None:
    now = datetime.now().astimezone().replace(hour=23, minute=0, second=0, microsecond=0)
    assert QuietHours.parse("22:00-23:30").left_ms(int(now.timestamp() * 1_000)) == 1_800_000


@each_row(
    "text",
    ["", "22-7", "24:00-07:00", "22:60-07:00", "07:00-07:00", "22:00-07:00 Mars/Base", "22:00-07:00 ../etc"],
)
def test_what_are_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a valid period of quiet hours"):
        QuietHours.parse(text)
