"""Whether there is room for what is written: there is none from a refused write until room is found."""

from typing import Final

from postroom.contracts.errors import StoreFull
from postroom.log import get_logger

_LOG = get_logger(__name__)
LEAST: Final = 300_000
"""Bytes that are looked for first: a long message and its indexes, and what many of usual length take."""
MOST: Final = 1 << 24
"""Bytes that a look takes at most; it gives them back."""


class Room:
    """Remembers that a write was refused. Small ones may fit all the while, and say nothing of larger ones.

    How large it was, nobody tells. Where one is refused after as much as was looked for was there, twice as
    much is looked for from then on: so what is told changes a few times at most, and then stays.
    """

    def __init__(self) -> None:
        self.wanted = 0
        """Bytes that must be there before writing is called well again; 0 when no write was refused."""
        self._next = LEAST
        self._was_missing = False

    def refused(self, error: StoreFull) -> None:
        """Note that a write was refused. Only the first one since room was found is logged."""
        if not self.wanted:
            self.wanted, self._was_missing = self._next, False
            _LOG.warning("store.full", reason=error.describe())

    def missing(self) -> None:
        """As much as is wanted was looked for and was not there."""
        self._was_missing = True

    def found(self, size: int) -> None:
        """A look found so many bytes; nothing changes when more are wanted by now."""
        if not self.wanted or size < self.wanted:
            return
        if not self._was_missing:  # the write that was refused is larger
            self._next = min(2 * self.wanted, MOST)
        self.wanted = 0
