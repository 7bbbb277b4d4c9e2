"""An event loop for tests that leaves the processor to others while a test only looks whether something is so.

Many tests wait with `while not condition(): await asyncio.sleep(0)`, for what they wait for tells nobody. Such a
loop holds the interpreter's lock, and the thread of the store that it waits for gets it every 5 ms only.
"""

import asyncio
import selectors
import time
from typing import Any

SPINS = 10
"""Rounds without input from outside, after which the loop counts as waiting."""
PAUSE = 0.001
"""Seconds for which such a round lets others work; what comes from outside ends it at once."""
MOMENT = 0.005
"""Seconds between two polls of a store: a poll in each round passes the interpreter's lock back and forth with the reading
thread, and the writing thread does not get it for minutes on a busy machine.
"""


class PatientSelector(selectors.DefaultSelector):
    """Pauses where the loop goes round and nothing happens."""

    def __init__(self) -> None:
        super().__init__()
        self._spins = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        is_spinning = timeout is not None and timeout <= 0
        self._spins = self._spins + 1 if is_spinning else 0
        found = super().select(PAUSE if self._spins > SPINS else timeout)
        if found:
            self._spins = 0
        return found


def patient_loop() -> asyncio.AbstractEventLoop:
    """Return a loop for one test."""
    return asyncio.SelectorEventLoop(PatientSelector())


async def a_moment() -> None:
    """Return a little later, so that others work between two polls of a store."""
    until = time.monotonic() + MOMENT
    while time.monotonic() < until:
        await asyncio.sleep(0)
