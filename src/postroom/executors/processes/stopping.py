"""Requests to end a program; the first reason counts."""

import asyncio
from enum import StrEnum


class StopReason(StrEnum):
    """Why a program is ended from outside."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    IDLE = "idle"
    FLOODED = "flooded"
    BROKEN = "broken"
    """Reading its output failed."""
    DONE = "done"
    """Its work is done and it is not needed any more."""


class Stop:
    """A request to end a program; after `settle` requests are too late."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._is_settled = False
        self._late: StopReason | None = None
        self.reason: StopReason | None = None

    @property
    def is_ending(self) -> bool:
        """Whether it was asked to end, or ends by itself."""
        return self._is_settled or self.reason is not None

    def ask(self, reason: StopReason) -> bool:
        """Ask it to end; False when it is ending by itself."""
        if self._is_settled:
            self._late = self._late or reason
            return False
        if self.reason is None:
            self.reason = reason
            self._asked.set()
        return True

    def settle(self) -> None:
        """Make every later request too late."""
        self._is_settled = True

    def open(self) -> None:
        """Continue with another program; a request that was too late applies to it."""
        self._is_settled = False
        if self._late is not None:
            self.ask(self._late)

    async def asked(self) -> None:
        """Wait until it is asked to end."""
        await self._asked.wait()
