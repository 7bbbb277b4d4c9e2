"""Wakes those who wait for a change. A ring is a hint: who wakes looks for itself."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TOGETHER = 0.05
"""Seconds that a waiter lets pass after a ring: a burst of changes is one look."""


class ChangeNotifier:
    """Rings for everybody who waits at that moment; once stopped, nobody waits any more."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self.is_stopped = False

    def ring(self) -> None:
        """Wake everybody who waits."""
        self._next.set()
        if not self.is_stopped:
            self._next = asyncio.Event()

    def stop(self) -> None:
        """Wake everybody, and let nobody wait from now on; harmless when done twice."""
        self.is_stopped = True
        self._next.set()

    def next_ring(self) -> asyncio.Event:
        """Return what is set at the next ring: take it before looking, so that no change is missed."""
        return self._next

    async def awaited(
        self, look: Callable[[], Awaitable[T]], is_news: Callable[[T], bool], *, until: float
    ) -> T:
        """Look now and after each ring; return what was seen when it is news, or last of all.

        The last look is that before `until`, an instant of the event loop, or before it is stopped.
        """
        while True:
            rung = self.next_ring()
            found = await look()
            if is_news(found) or self.is_stopped:
                return found
            try:
                async with asyncio.timeout_at(until):
                    await rung.wait()
                    if not self.is_stopped:
                        await asyncio.sleep(TOGETHER)
            except TimeoutError:
                return found
