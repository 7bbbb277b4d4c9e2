"""Whether a database can be reached, as the log tells it: by one voice for all sessions."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from postroom.contracts.clock import elapsed_ms, milliseconds
from postroom.contracts.errors import PostroomError
from postroom.log import get_logger

_LOG = get_logger(__name__)

TOLD_AGAIN: Final = timedelta(minutes=1)


class Reach:
    """Told of each attempt to connect, by every thread that makes one; tells what is new of it.

    A server tries some times a second, and each part that works in rounds would say what it met: the error is
    marked as told, so that the log leaves out who only repeats it.
    """

    def __init__(self, elapsed: Callable[[], int] = elapsed_ms) -> None:
        """`elapsed` is a clock that only goes forward, in milliseconds."""
        self._elapsed = elapsed
        self._gate = threading.Lock()
        self._lost_at: int | None = None
        self._told_at = 0
        self._tries = 0
        """How often it was tried since it was lost."""

    def lost(self, error: PostroomError) -> None:
        """Take note that the database could not be reached."""
        told = {"code": error.code, "reason": error.message, "remedy": error.remedy}
        with self._gate:
            now = self._elapsed()
            self._tries += 1
            if self._lost_at is None:
                self._lost_at = self._told_at = now
                _LOG.warning("store.lost", **told)
            elif now - self._told_at >= milliseconds(TOLD_AGAIN):
                self._told_at = now
                lost_for = (now - self._lost_at) // 1_000
                _LOG.warning("store.still_lost", **told, lost_for_s=lost_for, tries=self._tries)
        error.is_told = True  # now, or its own line would be one that repeats it

    def found(self) -> None:
        """Take note that a session was opened."""
        if self._lost_at is None:  # mostly; without the gate, for a loss of just now is told behind this
            return
        with self._gate:
            lost_at, self._lost_at = self._lost_at, None
            tries, self._tries = self._tries, 0
            if lost_at is not None:
                _LOG.info("store.back", lost_for_s=(self._elapsed() - lost_at) / 1_000, tries=tries)
