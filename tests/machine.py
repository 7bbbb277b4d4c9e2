"""Bounds of waiting, in seconds of a machine with nothing else to do: on a busy one each lasts longer.

A bound ends a test that hangs. It must not end a test whose programs get only a part of a core.
"""

import os
import time
from pathlib import Path

PATIENCE = float(os.environ.get("POSTROOM_PATIENCE", "90"))
"""Seconds after which a test that waits for a condition fails: longer than any busy machine needs, shorter than a test may last."""
LOOK = 1.0
"""Seconds between two checks of the machine's load."""
LONGEST = 8
"""How many times as long a bound lasts at most."""


def share() -> float:
    """Return which part of a core each program gets at this moment: 1 if no program waits for a core."""
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return min(1.0, (os.cpu_count() or 1) / max(running, 1))


class Bound:
    """So many seconds from now on, each of which lasts as long as the machine takes for a second of work."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds
        self._looked = self._began = time.monotonic()

    def wait(self) -> float:
        """Return for how many seconds to wait until the next look; 0 when the bound has passed."""
        now = time.monotonic()
        self._left -= (now - self._looked) * share()
        self._looked = now
        is_over = self._left <= 0 or now - self._began > LONGEST * self.seconds
        return 0.0 if is_over else min(LOOK, max(self._left, 0.01))

    def has_passed(self) -> bool:
        """Return whether the machine has given that much time."""
        return not self.wait()
