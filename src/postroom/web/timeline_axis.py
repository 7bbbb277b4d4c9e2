"""Maps times to positions in a picture, in percent of its width, and finds the ticks of the axis.

Ticks are at round UTC times, because no hour occurs twice in UTC.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final

from postroom.contracts.mail import Span

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
PRESETS: Final[Mapping[str, int]] = {
    "2s": 2 * SECOND,
    "1m": MINUTE,
    "15m": 15 * MINUTE,
    "1h": HOUR,
    "8h": 8 * HOUR,
}
"""The lengths of spans, keyed by their names in an address."""
MIN_SPAN: Final = 200
MAX_SPAN: Final = 50 * 365 * DAY
_STEPS: Final = (
    *(10, 20, 50, 100, 200, 500),
    *(item * SECOND for item in (1, 2, 5, 10, 15, 30)),
    *(item * MINUTE for item in (1, 2, 5, 10, 15, 30)),
    *(item * HOUR for item in (1, 2, 3, 6, 12)),
    *(item * DAY for item in (1, 2, 7, 14, 30, 91, 182, 365, 1825)),
)
_MAX_TICKS: Final = 9


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps a time span to positions from 0 to 100 percent."""

    span: Span

    @property
    def length(self) -> int:
        """The length of the span, in milliseconds."""
        return self.span.end - self.span.begin

    def at(self, instant: int) -> float:
        """Return the position of a time in percent, between 0 and 100."""
        inside = min(max(instant, self.span.begin), self.span.end)
        return round((inside - self.span.begin) * 100 / self.length, 3)

    def ticks(self, zone: tzinfo = UTC) -> Iterator[tuple[int, float, str]]:
        """Yield round times with their positions and labels."""
        step = next((number for number in _STEPS if self.length / number <= _MAX_TICKS), _STEPS[-1])
        instant = -(-self.span.begin // step) * step
        while instant < self.span.end:
            yield instant, self.at(instant), clock(instant, step, zone)
            instant += step


def clock(instant: int, step: int, zone: tzinfo) -> str:
    """Return a time as text, with the precision that the distance between two ticks requires."""
    moment = datetime.fromtimestamp(instant / 1000, tz=zone)
    if step >= DAY:
        return f"{moment.day} {moment:%b}"
    if step >= MINUTE:
        return f"{moment:%H:%M}"
    if step >= SECOND:
        return f"{moment:%H:%M:%S}"
    return f"{moment:%S}.{instant % 1000:03d}"


def spelled(span: Span, zone: tzinfo = UTC) -> str:
    """Return a time span as text in a time zone."""
    step = SECOND if span.end - span.begin >= 10 * SECOND else 1
    first, last = (datetime.fromtimestamp(at / 1000, tz=zone) for at in (span.begin, span.end))

    def time(moment: datetime) -> str:
        precise = f".{moment.microsecond // 1000:03d}" if step == 1 else ""
        return f"{moment:%H:%M:%S}{precise}" if span.end - span.begin < HOUR else f"{moment:%H:%M}"

    name = " UTC" if zone is UTC else ""
    day = f"{last:%a} {last.day} {last:%b}"
    if first.date() == last.date():
        return f"{day}, {time(first)} – {time(last)}{name}"
    return f"{first:%a} {first.day} {first:%b}, {time(first)} – {day}, {time(last)}{name}"


def lasts(length: int) -> str:
    """Return a duration as text in a suitable unit."""
    for unit, name in ((DAY, "days"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s")):
        if length >= unit:
            amount = length / unit
            return f"{amount:.0f} {name}" if amount >= 10 or amount == int(amount) else f"{amount:.1f} {name}"
    return f"{length} ms"
