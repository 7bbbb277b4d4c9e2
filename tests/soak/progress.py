"""Reports the progress of a storm repeatedly, and what it waits for."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from soak.callers import Asked, Caller

EVERY = 10.0
"""Seconds between two lines."""


class Progress:
    """A line at each stage, and one every ten seconds within it."""

    def __init__(self, tell: Callable[[str], None], every: float = EVERY) -> None:
        self._tell, self._every = tell, every
        self._began = time.monotonic()
        self._stage = "beginning"
        self.callers: Sequence[Caller] = ()
        self.faults: object = "no faults yet"

    @asynccontextmanager
    async def shown(self) -> AsyncIterator["Progress"]:
        """Print it during the block."""
        showing = asyncio.create_task(self._show())
        try:
            yield self
        finally:
            showing.cancel()
            await asyncio.wait([showing])

    def stage(self, name: str) -> None:
        """Print what the storm waits for from now on."""
        self._stage = name
        self._tell(str(self))

    def __str__(self) -> str:
        asked = [one for caller in self.callers for one in caller.asked]
        return f"{time.monotonic() - self._began:6.0f} s, {self._stage}: {self.faults}; {counts(asked, time.monotonic())}"

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            self._tell(str(self))


def counts(asked: Sequence[Asked], now: float) -> str:
    """Print the numbers of asked, accepted and answered questions, and the channels that owe answers."""
    is_open = [one for one in asked if not one.is_over]
    text = (
        f"{len(asked):,} asked, {sum(one.is_accepted for one in asked):,} accepted, "
        f"{len(asked) - len(is_open):,} answered"
    )
    if not is_open:
        return text
    by_channel = Counter(one.channel for one in is_open)
    owed = ", ".join(f"{number} by {channel}" for channel, number in sorted(by_channel.items()))
    oldest = min(is_open, key=lambda one: one.asked_at)
    return f"{text}; open: {owed}; the oldest is {oldest.nonce}, {now - oldest.asked_at:.0f} s"
