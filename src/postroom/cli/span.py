"""Formats durations with a few characters."""

from typing import Final

from postroom.contracts.clock import from_iso

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def since(moment: str | None, now: int) -> str:
    """Return the time since `moment` as text, such as 3m, or "-" if `moment` is None.

    `moment` is an ISO 8601 time.
    """
    if not moment:
        return "-"
    seconds = max(now - from_iso(moment), 0) // 1000
    size, unit = next((item for item in _UNITS if seconds >= item[0]), _UNITS[-1])
    return f"{seconds // size}{unit}"
