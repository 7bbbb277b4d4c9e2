"""Keeps the logs of projects at a bounded length: the oldest entries go, a few in one transaction.

due ──▶ each project that has too many ──▶ a step, and another, until it has as many as are kept
"""

from datetime import timedelta
from typing import Final

from postroom.app.config import Settings
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.clock import Timer, milliseconds
from postroom.contracts.errors import StoreError
from postroom.contracts.store import MailReads, MailStore
from postroom.log import get_logger

INTERVAL: Final = timedelta(minutes=1)
STEP: Final = 500
"""Entries that one transaction forgets: some milliseconds, within which no caller is answered."""
_PAGE: Final = 500
_LOG = get_logger(__name__)


class LogTrimming:
    """Trims in the background for as long as it is started."""

    def __init__(self, settings: Settings, store: MailStore, *, timer: Timer | None = None) -> None:
        self._keep = settings.event_keep
        self._store = store
        self._timer = timer or SystemTimer()
        self._tasks = Tasks("log trimming")

    def start(self) -> None:
        """Begin to look at the logs, the first time after a minute."""
        self._tasks.start(self._serve(), name="timer")

    async def stop(self) -> None:
        """End it; what is left is trimmed another time."""
        await self._tasks.close()

    async def round(self) -> int:
        """Trim every log that is too long; return how many entries went.

        Raises:
            StoreError: the store failed; what went stays gone.
        """
        gone, after = 0, 0
        while page := await self._store.read(lambda tx, after=after: self._lengths(tx, after)):  # type: ignore[misc]
            for project_id, beyond in page:
                gone += await self._trim(project_id, beyond)
            after = page[-1][0]
        return gone

    def _lengths(self, tx: MailReads, after: int) -> list[tuple[int, int]]:
        """Return for some projects how many entries they have beyond those that are kept."""
        bounds = [(one.id, tx.log_bounds(one.id)) for one in tx.projects(limit=_PAGE, after=after)]
        return [(number, one.newest - one.oldest - self._keep) for number, one in bounds]

    async def _trim(self, project_id: int, beyond: int) -> int:
        gone = 0
        while gone < beyond:
            step = await self._store.write(lambda tx: tx.trim_log(project_id, keep=self._keep, limit=STEP))
            gone += step
            if not step:
                break
        return gone

    async def _serve(self) -> None:
        while True:
            await self._timer.sleep(milliseconds(INTERVAL))
            try:
                if gone := await self.round():
                    _LOG.info("events.trimmed", entries=gone)
            except StoreError as error:
                _LOG.warning("events.not_trimmed", code=error.code, reason=error.message)
