"""The archive of an installation: one Git repository per project, written in batches by the relay.

The database is the original and the archive an export: replayable, idempotent by id, and never a delay for
mail. Records that wait for it stay in the outbox, whose relay delivers them in batches.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from postroom.contracts import progress
from postroom.contracts.clock import Clock
from postroom.contracts.errors import ArchiveUnavailable
from postroom.contracts.mail import Message, Project
from postroom.contracts.messages import Json
from postroom.contracts.outbox import OutboxMessage
from postroom.log import get_logger
from postroom.mail.archive import layout
from postroom.mail.archive.batch import Batch, gather, gather_deletions
from postroom.mail.archive.comparing import differing_files
from postroom.mail.archive.git import head_is_lost, write_head
from postroom.mail.archive.mark import raise_mark
from postroom.mail.archive.repository import ArchiveRepository
from postroom.mail.outgoing import ARCHIVE, DELETION, MOVED, records_of
from postroom.relay import Performed
from postroom.stores.mail.access import MailReads
from postroom.stores.mail.store import MailStore

_LOG = get_logger(__name__)

TIDY_EVERY = 50
"""Commits to one repository between two checks for a repack."""


_OF_MOVED: Final = ("slug", "human_key", "merged_into")


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """The author of the archive's commits."""

    name: str
    email: str


class Archive:
    """Writes projects' records into their repositories under `root`; the handler of their effects."""

    lease = timedelta(minutes=5)
    together = True
    retries = (timedelta(seconds=1), timedelta(seconds=60))

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        root: Path,
        store: MailStore,
        clock: Clock,
        author: Author,
        *,
        timeout: timedelta = timedelta(seconds=60),
        batch: int = 200,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`batch` is the maximum number of records in one commit.

        `may_write` returns whether this server writes the archive now.
        """
        self.root = root
        self.at_once = batch
        self._store = store
        self._clock = clock
        self._author = author
        self._timeout = timeout
        self._may_write = may_write
        self._commits: dict[int, int] = {}
        self._marking = threading.Lock()
        self._slugs: dict[int, str] = {}
        """Slugs of the written projects by id; a project's slug never changes."""
        self._views: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Locks by slug, each held from the read of a project to the write, so that no older view is written
        last."""

    def repository(self, slug: str) -> ArchiveRepository:
        """Open a project's repository, and create it if it is missing.

        Raises:
            ArchiveUnavailable: Git is missing or the folder is not writable.
        """
        return ArchiveRepository.open(
            self.root / f"{slug}.git",
            author_name=self._author.name,
            author_email=self._author.email,
            timeout=self._timeout,
        )

    def serves(self, target: str) -> bool:
        """Return True: every project has its repository here, and one server writes them all."""
        return self._may_write()

    async def perform(self, rows: Sequence[OutboxMessage]) -> Performed:
        """Write the records of a project as one commit.

        A repeated write has the same files and changes nothing.

        Raises:
            ArchiveUnavailable: Nothing was written; the rows stay in the backlog.
        """
        project_id = int(rows[0].target)
        if project_id not in self._slugs:
            project = await self._store.read(lambda tx: tx.project_by_id(project_id))
            if project is not None:
                self._slugs[project_id] = project.slug
        payloads = [row.payload for row in rows]
        deletions = [one for one in payloads if one["record"] == DELETION]
        records = [record for one in payloads for record in records_of(one)]
        if project_id in self._slugs and (records or deletions):
            await self._write(project_id, records, deletions, may_write=self._may_write)
        for former in (one for one in payloads if one["record"] == MOVED):
            told = {name: str(former[name]) for name in _OF_MOVED}
            async with self._views[told["slug"]]:
                await asyncio.to_thread(self._empty, **told)
        return Performed()

    def _empty(self, slug: str, human_key: str, merged_into: str) -> None:
        """Remove all files from the repository of a merged project, and record the project it became."""
        repository = self.repository(slug)
        removed = [path for path in repository.paths() if path != layout.PROJECT_FILE]
        told = layout.moved_project_file(slug, human_key, merged_into)
        subject = f"mail: this project is {merged_into} now"
        repository.write({layout.PROJECT_FILE: told}, removed=removed, subject=subject, now=self._clock.now())

    async def _write(
        self,
        project_id: int,
        records: Sequence[str],
        deletions: Sequence[dict[str, Json]] = (),
        *,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """Write records, named `<kind>:<id>`, and remove files, in one view of the store."""

        def look(tx: MailReads) -> Batch | None:
            project = tx.project_by_id(project_id)
            if project is None:
                return None
            batch = gather(tx, project, records)
            gather_deletions(tx, batch, deletions)
            batch.newest_entry = tx.newest_entry(project_id)
            return batch

        slug = self._slugs[project_id]
        async with self._views[slug]:
            batch = await self._store.read(look)
            if not may_write():  # the server stalled, so its view may be old
                raise ArchiveUnavailable("another server writes the archive now", value=slug)
            if batch is not None:  # else the project was merged into another
                await asyncio.to_thread(self._commit, batch)

    def _commit(self, batch: Batch) -> None:
        repository = self.repository(batch.project.slug)
        for message, content in batch.recalled:
            batch.files[_place(repository, message)] = content
        self._reaches(batch.project.slug, batch.newest_entry)
        repository.write(
            batch.files,
            removed=[*batch.removed, *_places(repository, batch.deleted)],
            subject=batch.subject,
            trailers=batch.trailers,
            now=self._clock.now(),
        )
        count = self._commits[batch.project.id] = self._commits.get(batch.project.id, 0) + 1
        if count % TIDY_EVERY == 0:
            repository.tidy(self._clock.now())

    def _reaches(self, slug: str, newest_entry: int) -> None:
        """Record in the archive's mark, before the write, that it reaches this entry of a project's log.

        Raises:
            ArchiveUnavailable: The mark cannot be written; the batch is retried later.
        """
        try:
            with self._marking:
                raise_mark(self.root, slug, newest_entry)
        except OSError as error:
            raise ArchiveUnavailable(
                f"the archive's mark cannot be written: {error}", value=str(self.root)
            ) from error

    async def rebuild(self, project: Project, *, page: int = 200) -> int:
        """Write all records of a project; return their number.

        Existing files stay unchanged, so it can be repeated at any time.

        Raises:
            ArchiveUnavailable: Only some records were written; run it again.
        """
        self._slugs[project.id] = project.slug
        size = await self._store.read(lambda tx: tx.project_size(project.id))
        written, there = 0, size.agents + size.messages + size.reservations
        for kind in ("agent", "message", "reservation"):
            after = 0
            while ids := await self._ids(project, kind, after, page):
                await self._write(project.id, [f"{kind}:{number}" for number in ids])
                written += len(ids)
                after = ids[-1]
                progress.tell(f"writing the archive of {project.slug}: records", written, max(there, written))
        return written

    async def replace(self, project: Project, aside: str) -> int:
        """Rename a project's repository to this name, and write a new repository from the database.

        Raises:
            ArchiveUnavailable: It cannot be renamed, or not all records were written; then run `rebuild`.
        """
        place = self.root / f"{project.slug}.git"
        try:
            await asyncio.to_thread(place.rename, self.root / aside)
        except OSError as error:
            raise ArchiveUnavailable(f"{place} cannot be moved: {error}", value=str(place)) from error
        return await self.rebuild(project)

    async def lost_head(self, project: Project) -> bool:
        """Return whether a project's repository lacks only its HEAD."""
        return await asyncio.to_thread(head_is_lost, self.root / f"{project.slug}.git")

    async def write_head(self, project: Project) -> None:
        """Write the HEAD of a project's repository again.

        Raises:
            ArchiveUnavailable: It cannot be written.
        """
        await asyncio.to_thread(write_head, self.root / f"{project.slug}.git")

    async def differing(self, project: Project, *, page: int = 200) -> list[str]:
        """Return the files of the archive that differ from the database.

        Records that still wait for the archive are skipped. Records that change during the comparison are
        compared again.

        Raises:
            ArchiveUnavailable: The archive cannot be read.
        """
        repository = await asyncio.to_thread(self.repository, project.slug)
        suspects = [
            f"{kind}:{number}"
            for kind in ("agent", "message", "reservation")
            for number in await self._all_ids(project, kind, page)
        ]
        found: list[str] = []
        for _ in range(2):
            blobs = await asyncio.to_thread(repository.blobs)
            pages = [suspects[at : at + page] for at in range(0, len(suspects), page)]
            total, suspects, found = len(suspects), [], []
            for at, records in enumerate(pages):
                batch = await self._store.read(partial(_settled_batch, project=project, records=records))
                if paths := await asyncio.to_thread(differing_files, batch, blobs, repository):
                    suspects += records
                    found += paths
                done = at * page + len(records)
                _LOG.info("archive.compared", project=project.slug, records=done)
                progress.tell(f"comparing {project.slug} with its archive: records", done, total)
        return sorted(set(found))

    async def _all_ids(self, project: Project, kind: str, page: int) -> list[int]:
        found: list[int] = []
        while ids := await self._ids(project, kind, found[-1] if found else 0, page):
            found += ids
        return found

    async def _ids(self, project: Project, kind: str, after: int, limit: int) -> list[int]:
        return await self._store.read(lambda tx: _ids(tx, project, kind, after, limit))


def _settled_batch(tx: MailReads, *, project: Project, records: Sequence[str]) -> Batch:
    """Collect the files of the records that do not wait for the archive."""
    rows = tx.outbox.open(ARCHIVE, limit=100_000)
    waiting = {record for row in rows for record in records_of(row.payload)}
    batch = gather(tx, project, [one for one in records if one not in waiting])
    if any(row.target == str(project.id) for row in rows):  # every write includes it
        batch.files.pop(layout.PROJECT_FILE, None)
    return batch


def _place(repository: ArchiveRepository, message: Message) -> str:
    """Return the path of a recalled message's file, which was made from the deleted subject."""
    return next(_places(repository, [(message.id, message.created_at)]), layout.message_path(message))


def _places(repository: ArchiveRepository, messages: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the paths of messages, each given with its time of sending."""
    ids = {number for number, _ in messages}
    for folder in sorted({layout.message_folder(sent_at) for _, sent_at in messages}):
        yield from (path for path in repository.paths(f"{folder}/") if layout.message_id_of(path) in ids)


def _ids(tx: MailReads, project: Project, kind: str, after: int, limit: int) -> list[int]:
    match kind:
        case "agent":
            return [one.id for one in tx.agents(project.id, include_retired=True, limit=limit, after=after)]
        case "message":
            return [one.id for one in tx.project_messages(project.id, limit=limit, after=after)]
        case _:
            return [one.id for one in tx.reservations(project.id, limit=limit, after=after)]
