"""Logs whether a database can be reached, in one place for all its sessions."""

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
    """Records each attempt to connect to a database, and logs when the result changes.

    While the database cannot be reached, the error is logged again every minute.
    """

    def __init__(self, elapsed: Callable[[], int] = elapsed_ms) -> None:
        """Create the record; `elapsed` returns a monotonic time in milliseconds."""
        self._elapsed = elapsed
        self._gate = threading.Lock()
        self._lost_at: int | None = None
        self._told_at = 0
        self._tries = 0
        """The number of attempts since the connection was lost."""

    def lost(self, error: PostroomError) -> None:
        """Record that the database could not be reached, and mark `error` as logged."""
        fields = {"code": error.code, "reason": error.message, "remedy": error.remedy}
        with self._gate:
            now = self._elapsed()
            self._tries += 1
            if self._lost_at is None:
                self._lost_at = self._told_at = now
                _LOG.warning("store.lost", **fields)
            elif now - self._told_at >= milliseconds(TOLD_AGAIN):
                self._told_at = now
                lost_for = (now - self._lost_at) // 1_000
                _LOG.warning("store.still_lost", **fields, lost_for_s=lost_for, tries=self._tries)
        # marked only now, because otherwise this line itself would count as a repetition
        error.is_told = True

    def found(self) -> None:
        """Record that the database was reached."""
        # The usual case, without a lock, because a loss at this moment is logged afterwards.
        if self._lost_at is None:
            return
        with self._gate:
            lost_at, self._lost_at = self._lost_at, None
            tries, self._tries = self._tries, 0
            if lost_at is not None:
                _LOG.info("store.back", lost_for_s=(self._elapsed() - lost_at) / 1_000, tries=tries)
