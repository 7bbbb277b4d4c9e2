"""Durations as people write them: `90s`, `7d`, or ISO 8601 (`P7D`)."""

import re
from datetime import timedelta
from typing import Final

LONGEST: Final = timedelta(days=36_500)
_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_WRITTEN: Final = re.compile(r"([0-9]{1,12})\s*(ms|s|m|h|d|w)")
_ISO: Final = re.compile(
    r"P(?=.)(?:(?P<d365>[0-9]{1,9})Y)?(?:(?P<d30>[0-9]{1,9})M)?(?:(?P<w>[0-9]{1,9})W)?(?:(?P<d>[0-9]{1,9})D)?"
    r"(?:T(?=.)(?:(?P<h>[0-9]{1,9})H)?(?:(?P<m>[0-9]{1,9})M)?(?:(?P<s>[0-9]{1,9}(?:\.[0-9]{1,6})?)S)?)?"
)
_ISO_UNITS: Final = {**_UNITS, "d365": timedelta(days=365), "d30": timedelta(days=30)}


def duration_of(value: object) -> timedelta:
    """Return the duration that a text with a unit means; a bare number is refused.

    Raises:
        ValueError: The value is not such a text, or the duration is 0 or longer than 36,500 days.
    """
    found = value if isinstance(value, timedelta) else _parsed(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("write a duration with its unit, such as 90s, 500ms, 1h, 7d or P7D")
    if not timedelta(0) < found <= LONGEST:
        raise ValueError("write a duration of more than nothing and of at most 36500d")
    return found


def _parsed(text: str) -> timedelta | None:
    text = text.strip()
    try:
        if found := _WRITTEN.fullmatch(text):
            return int(found[1]) * _UNITS[found[2]]
        if found := _ISO.fullmatch(text.upper()):
            parts = ((float(count), _ISO_UNITS[unit]) for unit, count in found.groupdict().items() if count)
            return sum((count * unit for count, unit in parts), timedelta(0))
    except OverflowError:
        return timedelta.max
    return None


def duration_text(value: timedelta) -> str:
    """Return a duration in the notation of settings, in the largest unit that divides it; `0` for none."""
    milliseconds = value // timedelta(milliseconds=1)
    if not milliseconds:
        return "0"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
