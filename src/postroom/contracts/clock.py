"""Time as a value: every instant in postroom is an integer of milliseconds since the epoch."""

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol


class Clock(Protocol):
    """Tells the present instant; tests pass one they can move."""

    def now(self) -> int:
        """Return the present instant in milliseconds since the epoch."""
        ...


class Timer(Protocol):
    """Lets time pass; tests pass one whose time they move."""

    async def sleep(self, milliseconds: int) -> None:
        """Return when so much time has passed."""
        ...


class SystemClock:
    """The wall clock of this process."""

    def now(self) -> int:
        """Return the present instant in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


def milliseconds(duration: timedelta) -> int:
    """Return a duration in whole milliseconds."""
    return duration // timedelta(milliseconds=1)


def iso(instant: int) -> str:
    """Render an instant as ISO 8601 in UTC with milliseconds, for JSON, pages and files."""
    return f"{_iso_second(instant // 1000)}.{instant % 1000:03d}Z"


@lru_cache(maxsize=1_024)
def _iso_second(second: int) -> str:
    """Render a second; a burst of messages names the same one again and again."""
    return datetime.fromtimestamp(second, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")


def from_iso(text: str) -> int:
    """Read an ISO 8601 moment (UTC when it names no zone) as an instant.

    Raises:
        ValueError: `text` is no such moment, or lies outside the years 1 to 9999.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (moment - epoch) // timedelta(milliseconds=1)
