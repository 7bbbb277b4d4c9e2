"""The relay: performs the archive's outbox rows at least once, in batches, with patience when Git fails.

wait for a hint or the poll ──▶ take a batch ──▶ per project: commit, finish ──▶ again while rows wait
                                    └─ Git failed: rows stay, that project rests 1 s, 2 s, … 60 s
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import structlog

from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import ArchiveUnavailable, StoreError
from postroom.contracts.mail import Backlog, OutboxRow
from postroom.contracts.store import MailStore
from postroom.mail.archive.archive import Archive
from postroom.mail.outgoing import ARCHIVE

_LOG = structlog.get_logger(__name__)

POLL = timedelta(seconds=5)
GATHERING = timedelta(milliseconds=100)
"""How long a hint waits for company, so that a burst becomes one commit."""
LONGEST_REST = timedelta(seconds=60)
LOOK_AHEAD = 4
"""Batches looked at in one go, so that one project at rest does not hide the rows of the others."""


class ArchiveRelay:
    """One consumer of the archive topic; run one in the process that owns the store."""

    def __init__(self, archive: Archive, store: MailStore, clock: Clock, *, batch: int = 200) -> None:
        self._archive = archive
        self._store = store
        self._clock = clock
        self._batch = batch
        self._hint = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failures: dict[int, int] = {}
        self._rests_until: dict[int, int] = {}

    def wake(self) -> None:
        """Hint that there is work; losing a hint costs one poll."""
        self._hint.set()

    def stop(self) -> None:
        """Let `serve` end after the batch it is at; safe before it began, and twice."""
        self._stopping.set()
        self._hint.set()

    async def backlog(self) -> Backlog:
        """Return how much waits, and since when."""
        return await self._store.read(lambda tx: tx.backlog(ARCHIVE))

    async def serve(self) -> None:
        """Perform rows until stopped; failures of Git or the store are logged and tried again."""
        while not self._stopping.is_set():
            self._hint.clear()
            try:
                done = await self.drain_once()
            except StoreError as error:
                _LOG.warning("archive.store_failed", code=error.code, reason=error.message)
                done = 0
            if not done:
                await self._wait(self._hint, POLL)
            await self._wait(self._stopping, GATHERING)

    async def drain(self) -> int:
        """Perform every row that waits and is not at rest; return how many."""
        total = 0
        while done := await self.drain_once():
            total += done
        return total

    async def drain_once(self) -> int:
        """Perform one batch and return how many rows it finished."""
        limit = self._batch * LOOK_AHEAD
        rows = await self._store.read(lambda tx: tx.outbox(ARCHIVE, limit=limit))
        done = 0
        for project_id, mine in self._by_project(rows).items():
            done += await self._perform(project_id, mine[: self._batch])
        return done

    def _by_project(self, rows: Sequence[OutboxRow]) -> dict[int, list[OutboxRow]]:
        now = self._clock.now()
        found: dict[int, list[OutboxRow]] = {}
        for row in rows:
            if self._rests_until.get(row.project_id, 0) <= now:
                found.setdefault(row.project_id, []).append(row)
        return found

    async def _perform(self, project_id: int, rows: Sequence[OutboxRow]) -> int:
        ids = [row.id for row in rows]
        project = await self._store.read(lambda tx: tx.project_by_id(project_id))
        if project is None:
            await self._store.write(lambda tx: tx.finish_outbox(ids))
            return len(rows)
        try:
            await self._archive.write_rows(project, rows)
        except StoreError:
            raise  # the store failed, not this batch
        except ArchiveUnavailable as error:
            _LOG.warning("archive.failed", project=project.slug, rows=len(rows), reason=error.message)
            return await self._put_off(project_id, ids, error.message[:500])
        except Exception as error:  # the edge around one batch: mail goes on whatever the archive meets
            _LOG.exception("archive.crashed", project=project.slug, rows=len(rows))
            reason = f"{type(error).__name__} inside postroom; its log has the cause"
            return await self._put_off(project_id, ids, reason)
        self._failures.pop(project_id, None)
        self._rests_until.pop(project_id, None)
        return len(rows)

    async def _put_off(self, project_id: int, row_ids: Sequence[int], reason: str) -> int:
        """Let a project's rows wait, with the reason on them; return that none was finished."""
        self._rest(project_id)
        await self._store.write(lambda tx: tx.fail_outbox(row_ids, reason))
        return 0

    def _rest(self, project_id: int) -> None:
        failures = self._failures[project_id] = self._failures.get(project_id, 0) + 1
        pause = min(timedelta(seconds=1) * 2 ** min(failures - 1, 10), LONGEST_REST)
        self._rests_until[project_id] = self._clock.now() + milliseconds(pause)

    async def _wait(self, event: asyncio.Event, limit: timedelta) -> None:
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await event.wait()
        except TimeoutError:
            return
