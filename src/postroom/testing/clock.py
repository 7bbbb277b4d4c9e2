"""A manual clock for tests, so that no test waits for real time to pass."""

import asyncio
import heapq
from itertools import count

from postroom.contracts.clock import Duration, milliseconds


class ManualClock:
    """A clock that only a test moves; each move wakes the tasks whose sleep has ended."""

    def __init__(self, start: int = 1_700_000_000_000) -> None:
        self._now = start
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> int:
        """Return the current time of the clock in milliseconds since the epoch."""
        return self._now

    async def sleep(self, milliseconds: int) -> None:
        """Wait until the clock has been moved forward by `milliseconds`."""
        if milliseconds <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + milliseconds, next(self._order), wake))
        await wake

    @property
    def sleeping(self) -> int:
        """The number of tasks that are sleeping on this clock."""
        return sum(not wake.done() for _, _, wake in self._sleepers)

    def advance(self, duration: Duration) -> None:
        """Move the clock by a number of seconds or a timedelta; a negative duration sets the clock back."""
        self.set(self._now + milliseconds(duration))

    def set(self, instant: int) -> None:
        """Set the clock to a time in milliseconds since the epoch."""
        self._now = instant
        while self._sleepers and self._sleepers[0][0] <= instant:
            wake = heapq.heappop(self._sleepers)[2]
            if not wake.done():
                wake.set_result(None)
