"""A clock that a test moves; nothing in a test waits for time to pass."""

from datetime import timedelta

from postroom.contracts.clock import milliseconds


class ManualClock:
    """Tells the instant it was set to, until it is moved."""

    def __init__(self, start: int = 1_700_000_000_000) -> None:
        self._now = start

    def now(self) -> int:
        """Return the present instant in milliseconds since the epoch."""
        return self._now

    def advance(self, duration: timedelta) -> None:
        """Let time pass; a negative duration turns the clock back, as machines do."""
        self._now += milliseconds(duration)

    def set(self, instant: int) -> None:
        """Make an instant, in milliseconds since the epoch, the present one."""
        self._now = instant
