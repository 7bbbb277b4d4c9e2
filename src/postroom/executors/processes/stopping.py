"""Why a program is ended from outside; the first reason given counts."""

import asyncio
from enum import StrEnum


class StopReason(StrEnum):
    """Why."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    IDLE = "idle"
    FLOODED = "flooded"
    BROKEN = "broken"
    """What reads its output failed."""
    DONE = "done"
    """Everything was said: it is not needed any more."""


class Stop:
    """A request that a program end; after `settle` it comes too late."""

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
        """Ask it to end; False when it ends by itself already."""
        if self._is_settled:
            self._late = self._late or reason
            return False
        if self.reason is None:
            self.reason = reason
            self._asked.set()
        return True

    def settle(self) -> None:
        """Have every later request come too late."""
        self._is_settled = True

    def open(self) -> None:
        """Go on with another program; what was asked for too late counts for that one."""
        self._is_settled = False
        if self._late is not None:
            self.ask(self._late)

    async def asked(self) -> None:
        """Return when it is to end."""
        await self._asked.wait()
