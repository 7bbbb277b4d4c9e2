"""Quiet hours: the daily period in which a chat gets no unsolicited messages from agents."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from postroom.contracts.errors import ConfigError

_WRITTEN = re.compile(r"(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)(?:\s+(\S{1,64}))?")
_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A daily period in which a chat gets no unsolicited messages.

    `begin` and `end` are minutes after midnight. The period spans midnight if `end` is earlier than `begin`.
    If `zone` is None, the times are in the local time zone.
    """

    begin: int
    end: int
    zone: ZoneInfo | None = None

    @classmethod
    def parse(cls, text: str) -> "QuietHours":
        """Parse quiet hours such as `22:00-07:00` or `22:00-07:00 Europe/Berlin`.

        Raises:
            ConfigError: The text is not a valid period.
        """
        match = _WRITTEN.fullmatch(text.strip())
        minutes = [int(match[hour]) * 60 + int(match[hour + 1]) for hour in (1, 3)] if match else []
        is_time = match is not None and all(int(match[place]) < 60 for place in (2, 4))
        if match is None or not is_time or max(minutes) >= _DAY or minutes[0] == minutes[1]:
            raise _unreadable(text)
        try:
            zone = None if match[5] is None else ZoneInfo(match[5])
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise _unreadable(text) from error
        return cls(minutes[0], minutes[1], zone)

    def left_ms(self, now: int) -> int:
        """Return the milliseconds until the quiet hours end, or 0 outside of quiet hours."""
        moment = datetime.fromtimestamp(now / 1_000, self.zone)
        minute = moment.hour * 60 + moment.minute
        if (minute - self.begin) % _DAY >= (self.end - self.begin) % _DAY:
            return 0
        end = moment.replace(hour=self.end // 60, minute=self.end % 60, second=0, microsecond=0)
        if end <= moment:
            end += timedelta(days=1)
        return max(int(end.timestamp() * 1_000) - now, 1)

    def __str__(self) -> str:
        """Return the quiet hours in the form that `parse` accepts."""
        times = (f"{minute // 60:02}:{minute % 60:02}" for minute in (self.begin, self.end))
        return "-".join(times) + (f" {self.zone.key}" if self.zone else "")


def _unreadable(text: str) -> ConfigError:
    return ConfigError(
        f"{text[:80]!r} is not a valid period of quiet hours",
        value=text[:80],
        remedy="write 22:00-07:00, followed by a time zone if it differs from the server's: Europe/Berlin",
    )
