"""Clocks, timers and durations; every time in postroom is an integer in milliseconds since the epoch."""

import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from math import isnan
from random import Random
from typing import Final, Protocol

from postroom.contracts.errors import InvalidArgument

SET_BACK_MS: Final = 2_000
"""The smallest jump back, in milliseconds, with which the clock counts as set back."""
Ids = Callable[[], str]
"""A function that returns a new identifier with 36 characters."""
Duration = timedelta | float
"""A duration that a caller passes: a timedelta, or a number of seconds."""
_TAIL_BITS: Final = 74


class Clock(Protocol):
    """Provides the current time."""

    def now(self) -> int:
        """Return the current time in milliseconds since 1970."""
        ...


class Timer(Protocol):
    """Waits for a period of time."""

    async def sleep(self, milliseconds: int) -> None:
        """Wait for the given number of milliseconds."""
        ...


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> int:
        """Return the current time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Return a monotonic time in milliseconds.

    On systems with `CLOCK_BOOTTIME`, the time includes periods in which the machine was asleep.
    """
    boot: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.monotonic_ns() if boot is None else time.clock_gettime_ns(boot)) // 1_000_000


class ClockWatch:
    """Detects that the wall clock was set back, by comparing the wall clock with a monotonic clock."""

    def __init__(self) -> None:
        self._ahead: int | None = None

    def set_back_ms(self, now: int) -> int | None:
        """Return how many milliseconds the clock was set back since `remember`, or 0.

        Return None if `remember` was never called.
        """
        if self._ahead is None:
            return None
        back = self._ahead - (now - elapsed_ms())
        return back if back >= SET_BACK_MS else 0

    def remember(self, now: int) -> None:
        """Start a new measurement from the current time."""
        self._ahead = now - elapsed_ms()


def seconds_of(given: object, name: str) -> float:
    """Return a duration in seconds. `name` is the name of the argument in error messages.

    Raises:
        InvalidArgument: The argument is neither a timedelta nor a number of seconds.
    """
    if isinstance(given, timedelta):
        return given.total_seconds()
    if isinstance(given, int | float) and not isinstance(given, bool):
        with suppress(OverflowError):  # an integer may be too large for a float
            if not isnan(seconds := float(given)):
                return seconds
    raise InvalidArgument(
        f"{name} must be a number of seconds or a timedelta, not {type(given).__name__}",
        value=repr(given)[:80],
        remedy="pass a number such as 30, or timedelta(seconds=30)",
    )


def given_duration(given: object, name: str) -> timedelta:
    """Return a duration as a timedelta. `name` is the name of the argument in error messages.

    Raises:
        InvalidArgument: The argument is neither a timedelta nor a number of seconds, or is too long.
    """
    if isinstance(given, timedelta):
        return given
    try:
        return timedelta(seconds=seconds_of(given, name))
    except OverflowError as error:
        raise InvalidArgument(
            f"{name} is too long: {given} seconds", value=repr(given)[:80], remedy="use a shorter duration"
        ) from error


def milliseconds(duration: Duration) -> int:
    """Return a duration in whole milliseconds."""
    if not isinstance(duration, timedelta):
        duration = given_duration(duration, "a duration")
    return duration // timedelta(milliseconds=1)


def iso(instant: int) -> str:
    """Format a time as ISO 8601 in UTC with milliseconds."""
    return f"{_iso_second(instant // 1000)}.{instant % 1000:03d}Z"


@lru_cache(maxsize=1_024)
def _iso_second(second: int) -> str:
    return datetime.fromtimestamp(second, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")


def from_iso(text: str) -> int:
    """Parse an ISO 8601 date and time. A text without a time zone is interpreted as UTC.

    Raises:
        ValueError: `text` is not a date and time, or is outside the years 1 to 9999.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (moment - epoch) // timedelta(milliseconds=1)


def time_ordered_ids(clock: Clock, random: Random) -> Ids:
    """Return a function that generates version 7 UUIDs (RFC 9562), which sort by creation time.

    The UUIDs keep increasing after the clock was set back.
    """
    last_at, last_tail = 0, 0

    def make() -> str:
        nonlocal last_at, last_tail
        now = clock.now()
        if now > last_at:
            last_at, last_tail = now, random.getrandbits(_TAIL_BITS - 1)
        else:
            last_tail += random.getrandbits(32) + 1
        bits = (last_at & (1 << 48) - 1) << 80 | 0x7 << 76 | (last_tail >> 62 & 0xFFF) << 64
        digits = f"{bits | 0b10 << 62 | last_tail & (1 << 62) - 1:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    return make


def every(interval: int) -> str:
    """Return an interval as a text such as `every day` or `every 90 minutes`."""
    for unit, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")):
        if interval % unit == 0:
            return f"every {name}" if interval == unit else f"every {interval // unit} {name}s"
    return f"every {interval} ms"


MAX_INTERVAL: Final = timedelta(days=3660)
"""The longest time between two messages of a schedule."""
MAX_DURATION: Final = timedelta(days=36_500)
_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART: Final = re.compile(
    r"([0-9]{1,100}(?:\.[0-9]{1,6})?|(?:an?|one)(?= )) ?"
    r"(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|wks?|weeks?)(?![a-z])"
)
_WRITTEN: Final = re.compile(rf"{_PART.pattern}(?:(?:,? ?(?:and )?){_PART.pattern}){{0,3}}")
"""Matches a duration as people write it: `90s`, `1h30m`, `2 hours`, `1 day and 12 hours`."""
_ISO: Final = re.compile(
    r"P(?=.)(?:(?P<d365>[0-9]{1,9})Y)?(?:(?P<d30>[0-9]{1,9})M)?(?:(?P<w>[0-9]{1,9})W)?(?:(?P<d>[0-9]{1,9})D)?"
    r"(?:T(?=.)(?:(?P<h>[0-9]{1,9})H)?(?:(?P<m>[0-9]{1,9})M)?(?:(?P<s>[0-9]{1,9}(?:\.[0-9]{1,6})?)S)?)?"
)
_ISO_UNITS: Final = {**_UNITS, "d365": timedelta(days=365), "d30": timedelta(days=30)}
DURATIONS: Final = "90s, 30m, 1h30m, 2 hours, 7d or P7D"
"""Examples of durations for error messages."""


def duration_of(value: object) -> timedelta:
    """Parse a duration with a unit, such as `90s`.

    Raises:
        ValueError: The value is not a text with a unit, or the duration is 0 or longer than 36,500 days.
    """
    duration = parse_duration(value) if isinstance(value, str) else None
    duration = value if isinstance(value, timedelta) else duration
    if duration is None:
        raise ValueError(f"write a duration with its unit, such as {DURATIONS}")
    if not timedelta(0) < duration <= MAX_DURATION:
        raise ValueError("write a duration greater than 0 and of at most 36500d")
    return duration


def parse_duration(text: str) -> timedelta | None:
    """Parse a duration in English units or ISO 8601; return None for an invalid text.

    Months (30 days) and years (365 days) are accepted only in ISO 8601.
    """
    text = text.strip()
    if match := _ISO.fullmatch(text.upper()):
        return _sum((_ISO_UNITS[unit], count) for unit, count in match.groupdict().items() if count)
    match = _WRITTEN.fullmatch(" ".join(text.lower().split()))
    return None if match is None else _parse_words(match)


def leading_duration(text: str) -> tuple[timedelta | None, str]:
    """Return the duration at the beginning of a text, and the rest of the text.

    If the text does not begin with a duration, return None and the whole text.
    """
    match = _WRITTEN.match(text.lower()) if text[:1].isdecimal() else None
    end = 0 if match is None else match.end()
    if match is None or not (end == len(text) or text[end].isspace()):
        return None, text
    return _parse_words(match), text[end:].strip()


def _parse_words(found: re.Match[str]) -> timedelta | None:
    parts = [
        ("ms" if unit.startswith(("ms", "mil")) else unit[0], "1" if count[0] in "ao" else count)
        for count, unit in _PART.findall(found[0])
    ]
    is_clear = len({unit for unit, _ in parts}) == len(parts)
    return _sum((_UNITS[unit], count) for unit, count in parts) if is_clear else None


def _sum(parts: Iterable[tuple[timedelta, str]]) -> timedelta:
    try:
        counted = (unit * (float(count) if "." in count else int(count)) for unit, count in parts)
        return sum(counted, timedelta(0))
    except OverflowError:
        return timedelta.max


TIMES: Final = "2026-11-21, 2026-11-21T09:30:00Z, yesterday, 2h or 1 hour ago"
"""Examples of times for error messages."""
_AGO: Final = re.compile(
    r"(?:now ?)?- ?(?P<minus>[^ -].*)|(?P<ago>.+) (?:ago|before now)"
    r"|(?:(?:in|within|over|during) )?(?:the )?(?:last|past) (?P<last>.+)"
)
_DAY: Final = re.compile(r"(today|yesterday)(?:(?:,| at)? ([0-2]?[0-9]:[0-5][0-9]))?")
_FULL_UNIT: Final = re.compile(r"(?:minute|hour|day)\Z")
"""Matches the units that may stand without a number. `week` is not included, because `last week` may be the
last seven days or the week before this one.
"""


def past_of(text: str, now: int) -> int:
    """Parse a time in the past, and return the time in milliseconds since 1970.

    The text may be ISO 8601, RFC 2822, seconds or milliseconds since 1970, `now`, `today`, `yesterday`, or a
    duration before `now`. A text without a time zone is interpreted as UTC.

    Raises:
        ValueError: The text is none of these, or the time is outside the years 1 to 9999.
    """
    words = " ".join(text.strip().split())
    lower = words.lower()
    if lower == "now":
        return now
    if day := _DAY.fullmatch(lower):
        date = datetime.fromtimestamp(now / 1000, tz=UTC).date() - timedelta(days=day[1] == "yesterday")
        return from_iso(f"{date.isoformat()}T{(day[2] or '0:00').rjust(5, '0')}")
    ago = _AGO.fullmatch(lower)
    span = lower if ago is None else ago["minus"] or ago["ago"] or ago["last"]
    if ago is not None and ago["last"] and _FULL_UNIT.match(span):
        span = f"1 {span}"
    if (back := parse_duration(span)) is not None:
        return now - milliseconds(back)
    if ago is not None:
        raise ValueError(f"{text!r} is not a time")
    if words.isdecimal() and len(words) in (10, 13):
        return int(words) * (1 if len(words) == 13 else 1_000)
    if match := re.fullmatch(r"(\d{4})/(\d{1,2})/(\d{1,2})", words):
        return from_iso(f"{match[1]}-{int(match[2]):02}-{int(match[3]):02}")
    if words[:1].isalpha() or re.match(r"\d{1,2} [A-Za-z]", words):
        return from_iso(parsedate_to_datetime(words).isoformat())
    return from_iso(words)


def duration_text(value: timedelta) -> str:
    """Format a duration as text, such as `90s`."""
    milliseconds = value // timedelta(milliseconds=1)
    if not milliseconds:
        return "0"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
