"""How late the event loop is: the one number that shows that something blocks every caller at once."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from postroom.contracts.clock import Clock, milliseconds

EVERY: Final = timedelta(milliseconds=250)
FIRST: Final = timedelta(milliseconds=10)
"""The first measurement comes sooner: until there is one, the server does not call itself ready."""
WINDOW: Final = timedelta(seconds=10)


class LagMeter:
    """Keeps the lags of the last ten seconds."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._seen: deque[tuple[int, int]] = deque(maxlen=2 * WINDOW // EVERY)

    def note(self, lag: int, now: int) -> None:
        """Keep one measurement, in milliseconds."""
        self._seen.append((now, max(0, lag)))

    def worst(self, now: int) -> int | None:
        """Return the longest lag of the last ten seconds in milliseconds; None when nothing was measured."""
        since = now - milliseconds(WINDOW)
        return max((lag for at, lag in self._seen if since < at <= now), default=None)

    def stop(self) -> None:
        """End the measuring; harmless before it began and twice."""
        self._stopping.set()

    async def wait(self, duration: timedelta) -> bool:
        """Return whether the meter was stopped within this time."""
        try:
            async with asyncio.timeout(duration.total_seconds()):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True


async def measure_lag(
    meter: LagMeter, clock: Clock, *, every: timedelta = EVERY, seconds: Callable[[], float] = time.monotonic
) -> None:
    """Measure four times a second until the meter is stopped or the task cancelled.

    `seconds` is a clock that only goes forward: the wall clock would show a lag whenever it is set.
    """
    pause = min(FIRST, every)
    due = seconds() + pause.total_seconds()
    while not await meter.wait(pause):
        woke = seconds()
        meter.note(round((woke - due) * 1000), clock.now())
        pause = every
        due = woke + pause.total_seconds()
