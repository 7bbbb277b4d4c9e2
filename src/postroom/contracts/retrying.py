"""The delay before a retry, as another server requests it in response headers."""

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

MAX_WAIT_MS = 24 * 60 * 60 * 1000


def retry_after_ms(headers: Mapping[str, str], *, now: int) -> int | None:
    """Return the retry delay that HTTP response headers request, in milliseconds, or None."""
    for name, unit in (("retry-after-ms", 1), ("retry-after", 1_000)):
        try:
            number = float(headers.get(name) or "nan")
        except ValueError:
            continue
        if not math.isnan(number):
            return _clamp_wait(number * unit)
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return _clamp_wait(zoned.timestamp() * 1_000 - now)
    except (ValueError, OverflowError):
        return None


def _clamp_wait(milliseconds: float) -> int:
    return int(min(max(milliseconds, 0), MAX_WAIT_MS))
