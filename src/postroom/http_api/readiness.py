"""The looks behind `/readyz`: can a write be made, does the archive keep up, does the loop run freely."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import PostroomError
from postroom.contracts.outbox import Backlog
from postroom.http_api.lag import LagMeter
from postroom.http_api.operations import Check, CheckState, Readiness
from postroom.log import get_logger

PATIENCE: Final = timedelta(seconds=2)
"""How long a look may take; a write that takes longer is a failed one."""
OLDEST_BACKLOG: Final = timedelta(minutes=15)
LONGEST_LAG: Final = timedelta(seconds=2)
FRESH: Final = timedelta(seconds=1)

_LOG = get_logger(__name__)


async def store_check(probe: Callable[[], Awaitable[None]], *, patience: timedelta = PATIENCE) -> Check:
    """Write and read back one row."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(patience.total_seconds()):
            await probe()
    except TimeoutError:
        return Check(name="store", state="failed", facts={"code": "store_unavailable"})
    except PostroomError as error:
        _LOG.warning("ready.store_failed", code=error.code, reason=error.message)
        return Check(name="store", state="failed", facts={"code": error.code})
    return Check(name="store", state="ok", facts={"took_ms": round((time.monotonic() - started) * 1000)})


async def archive_check(
    backlog: Callable[[], Awaitable[Backlog]], now: int, *, patience: timedelta = PATIENCE
) -> Check:
    """Look how much waits for the archive, and since when; mail goes on without it."""
    try:
        async with asyncio.timeout(patience.total_seconds()):
            found = await backlog()
    except TimeoutError:
        return Check(name="archive", state="unknown", required=False, facts={"code": "store_unavailable"})
    except PostroomError as error:
        return Check(name="archive", state="unknown", required=False, facts={"code": error.code})
    age = 0 if found.oldest_at is None else max(0, now - found.oldest_at)
    return Check(
        name="archive",
        state="failed" if age > milliseconds(OLDEST_BACKLOG) else "ok",
        required=False,
        facts={"waiting": found.waiting, "oldest_ms": age},
    )


def channels_check(states: Sequence[str], *, is_running: bool) -> Check:
    """Look how many of the chat channels are connected; everything else goes on without them."""
    connected = sum(state == "connected" for state in states)
    state: CheckState = "ok" if connected == len(states) else "failed"
    return Check(
        name="channels",
        state=state if is_running else "unknown",
        required=False,
        facts={"connected": connected, "of": len(states)},
    )


def backups_check(*, age_ms: int | None, code: str | None, is_on: bool, is_overdue: bool) -> Check:
    """Look how old the newest backup is and how the last try went; nothing else waits for one."""
    state: CheckState = "ok" if is_on and age_ms is not None else "unknown"
    return Check(
        name="backups",
        state="failed" if code or is_overdue else state,
        required=False,
        facts={"age_ms": age_ms, **({} if code is None else {"code": code})},
    )


def log_check(failure: OSError | None) -> Check:
    """Look whether the last line of the log was written; everything else goes on without it."""
    return Check(
        name="log",
        state="ok" if failure is None else "failed",
        required=False,
        facts={} if failure is None else {"code": "log_not_written"},
    )


def loop_check(meter: LagMeter, now: int) -> Check:
    """Look how late the event loop was in the last ten seconds."""
    lag = meter.worst(now)
    if lag is None:
        return Check(name="event_loop", state="unknown", facts={"lag_ms": None})
    return Check(
        name="event_loop", state="failed" if lag > milliseconds(LONGEST_LAG) else "ok", facts={"lag_ms": lag}
    )


class FreshReadiness:
    """Asks at most once a second, however many ask it: the route is open to all, and a look writes."""

    def __init__(self, look: Callable[[], Awaitable[Readiness]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._last: Readiness | None = None
        self._looked_at = 0

    async def __call__(self) -> Readiness:
        """Return what the last look within a second found, or look."""
        async with self._one_at_a_time:  # held while looking, so that all who wait share its answer
            age = self._clock.now() - self._looked_at
            if self._last is None or not 0 <= age < milliseconds(FRESH):
                self._last = await self._look()
                self._looked_at = self._clock.now()
            return self._last
