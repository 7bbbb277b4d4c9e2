"""Wakes those who wait for a change. A ring is a hint: who wakes looks for itself."""

import asyncio


class Bell:
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
