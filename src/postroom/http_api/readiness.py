"""The checks of `/readyz`, and the measurement of the lag of the event loop."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, TypedDict

from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import PostroomError
from postroom.contracts.outbox import Backlog
from postroom.log import get_logger

_LOG = get_logger(__name__)
CheckState = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of checking one part of a server.

    `state` is `unknown` if the part could not be checked.
    """

    name: str
    state: CheckState
    required: bool = True
    """Whether the server cannot work without this part."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Numbers and codes, without paths or names, because anybody may read the facts."""


class ReadinessView(TypedDict):
    """The readiness of a server as JSON data; `checks` contains the results of all checks."""

    status: Literal["ready", "not_ready"]
    checks: dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The results of all readiness checks."""

    checks: tuple[Check, ...]

    @property
    def is_ready(self) -> bool:
        """Whether every required check has succeeded."""
        return all(check.state == "ok" for check in self.checks if check.required)

    def as_dict(self) -> ReadinessView:
        """Return the readiness as JSON data."""
        return {
            "status": "ready" if self.is_ready else "not_ready",
            "checks": {check.name: {"state": check.state, **check.facts} for check in self.checks},
        }


EVERY: Final = timedelta(milliseconds=250)
FIRST: Final = timedelta(milliseconds=10)
"""The delay before the first measurement.

The delay is short, because the server is not ready without a measurement.
"""
WINDOW: Final = timedelta(seconds=10)


class LagMeter:
    """Records how late the event loop ran during the last ten seconds."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._seen: deque[tuple[int, int]] = deque(maxlen=2 * WINDOW // EVERY)

    def note(self, lag: int, now: int) -> None:
        """Record a measured lag in milliseconds."""
        self._seen.append((now, max(0, lag)))

    def worst(self, now: int) -> int | None:
        """Return the longest lag of the last ten seconds in milliseconds, or None if no lag was measured."""
        since = now - milliseconds(WINDOW)
        return max((lag for at, lag in self._seen if since < at <= now), default=None)

    def stop(self) -> None:
        """Stop the measurement of the lag."""
        self._stopping.set()

    async def wait(self, duration: timedelta) -> bool:
        """Wait for a duration; return True if the meter was stopped."""
        try:
            async with asyncio.timeout(duration.total_seconds()):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True


async def measure_lag(
    meter: LagMeter, clock: Clock, *, every: timedelta = EVERY, seconds: Callable[[], float] = time.monotonic
) -> None:
    """Measure the lag of the event loop four times a second, until the meter is stopped.

    `seconds` is a monotonic clock.
    """
    pause = min(FIRST, every)
    due = seconds() + pause.total_seconds()
    while not await meter.wait(pause):
        woke = seconds()
        meter.note(round((woke - due) * 1000), clock.now())
        pause = every
        due = woke + pause.total_seconds()


PATIENCE: Final = timedelta(seconds=2)
"""The time limit of a check. For example, a write that takes longer counts as failed."""
OLDEST_BACKLOG: Final = timedelta(minutes=15)
MAX_LAG: Final = timedelta(seconds=2)
FRESH: Final = timedelta(seconds=1)


async def store_check(probe: Callable[[], Awaitable[None]], *, patience: timedelta = PATIENCE) -> Check:
    """Check the store by writing and reading a row."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(patience.total_seconds()):
            await probe()
    except TimeoutError:
        return Check(name="store", state="failed", facts={"code": "store_unavailable"})
    except PostroomError as error:
        _LOG.warning("ready.store_failed", code=error.code, reason=error.message, remedy=error.remedy)
        lacking = {"lacking": error.details["lacking"]} if "lacking" in error.details else {}
        return Check(name="store", state="failed", facts={"code": error.code, **lacking})
    return Check(name="store", state="ok", facts={"took_ms": round((time.monotonic() - started) * 1000)})


async def archive_check(
    backlog: Callable[[], Awaitable[Backlog]], now: int, *, patience: timedelta = PATIENCE
) -> Check:
    """Check the size and age of the archive's backlog; a failure does not make the server unready."""
    try:
        async with asyncio.timeout(patience.total_seconds()):
            value = await backlog()
    except TimeoutError:
        return Check(name="archive", state="unknown", required=False, facts={"code": "store_unavailable"})
    except PostroomError as error:
        return Check(name="archive", state="unknown", required=False, facts={"code": error.code})
    age = 0 if value.oldest_at is None else max(0, now - value.oldest_at)
    return Check(
        name="archive",
        state="failed" if age > milliseconds(OLDEST_BACKLOG) else "ok",
        required=False,
        facts={"waiting": value.waiting, "oldest_ms": age},
    )


def channels_check(states: Sequence[str], *, is_running: bool, is_served: bool) -> Check:
    """Check how many chat channels are connected.

    After the gateway has started, a failure does not make the server unready.
    """
    connected = sum(state == "connected" for state in states)
    state: CheckState = "ok" if connected == len(states) else "failed"
    return Check(
        name="channels",
        state=state if is_running else "unknown",
        required=not is_running and not is_served,
        facts={"connected": connected, "of": len(states)},
    )


def backups_check(*, age_ms: int | None, code: str | None, is_on: bool, is_overdue: bool) -> Check:
    """Check the age of the newest backup; a failure does not make the server unready."""
    state: CheckState = "ok" if is_on and age_ms is not None else "unknown"
    return Check(
        name="backups",
        state="failed" if code or is_overdue else state,
        required=False,
        facts={"age_ms": age_ms, **({} if code is None else {"code": code})},
    )


def log_check(failure: OSError | None) -> Check:
    """Check that the log can be written; a failure does not make the server unready."""
    return Check(
        name="log",
        state="ok" if failure is None else "failed",
        required=False,
        facts={} if failure is None else {"code": "log_not_written"},
    )


def loop_check(meter: LagMeter, now: int) -> Check:
    """Check the lag of the event loop in the last ten seconds."""
    lag = meter.worst(now)
    if lag is None:
        return Check(name="event_loop", state="unknown", facts={"lag_ms": None})
    return Check(
        name="event_loop", state="failed" if lag > milliseconds(MAX_LAG) else "ok", facts={"lag_ms": lag}
    )


class FreshReadiness:
    """Runs the readiness checks at most once a second."""

    def __init__(self, look: Callable[[], Awaitable[Readiness]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._last: Readiness | None = None
        self._looked_at = 0

    async def __call__(self) -> Readiness:
        """Return the last result, or run the checks again if the result is older than a second."""
        async with self._one_at_a_time:  # waiting callers share the result
            age = self._clock.now() - self._looked_at
            if self._last is None or not 0 <= age < milliseconds(FRESH):
                self._last = await self._look()
                self._looked_at = self._clock.now()
            return self._last
