"""Disk space for writes: it counts as missing from a refused write until enough is found."""

from typing import Final

from postroom.contracts.errors import StoreFull
from postroom.log import get_logger

_LOG = get_logger(__name__)
LEAST: Final = 300_000
"""Bytes to check first: enough for a long message and its indexes, or many usual messages."""
MOST: Final = 1 << 24
"""Maximum number of bytes that a check allocates; it frees them again."""


class Room:
    """Remembers a refused write. Small writes that succeed in between do not prove that a large one fits.

    The size of the refused write is unknown. If a write is refused although the check had succeeded, later
    checks ask for twice as much, so the reported state changes a few times at most and then stays.
    """

    def __init__(self) -> None:
        self.wanted = 0
        """Number of bytes that must be available before writes count as possible; 0 if no write was
        refused."""
        self._next = LEAST
        self._was_missing = False

    def refused(self, error: StoreFull) -> None:
        """Record a refused write. Only the first one since space was found is logged."""
        if not self.wanted:
            self.wanted, self._was_missing = self._next, False
            _LOG.warning("store.full", reason=error.describe())

    def missing(self) -> None:
        """Record that a check did not find the wanted bytes."""
        self._was_missing = True

    def found(self, size: int) -> None:
        """Record that a check found `size` bytes; no effect if more are required now."""
        if not self.wanted or size < self.wanted:
            return
        if not self._was_missing:  # the write that was refused is larger
            self._next = min(2 * self.wanted, MOST)
        self.wanted = 0
