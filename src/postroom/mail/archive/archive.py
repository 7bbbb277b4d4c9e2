"""The archive of an installation: one Git repository a project, written in batches by the relay.

The database is the truth and the archive an export: replayable, idempotent by id, never in the way of
mail. What waits for it stays in the outbox, whose relay hands it over in batches.
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
"""Commits to one repository between two looks at whether it wants repacking."""


_OF_MOVED: Final = ("slug", "human_key", "merged_into")


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """In whose name the archive is committed."""

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
        """`batch` is how many records one commit holds at most.

        `may_write` says whether this server writes the archive now.
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
        """By id, of the projects that were written; a project never gets another slug."""
        self._views: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By slug: held from a view of a project until it is written: none is written after a newer one."""

    def repository(self, slug: str) -> ArchiveRepository:
        """Open a project's repository; it is made when it is missing.

        Raises:
            ArchiveUnavailable: Git is missing or the folder cannot be written.
        """
        return ArchiveRepository.open(
            self.root / f"{slug}.git",
            author_name=self._author.name,
            author_email=self._author.email,
            timeout=self._timeout,
        )

    def serves(self, target: str) -> bool:
        """Every project has its repository here, and one server writes them all."""
        return self._may_write()

    async def perform(self, rows: Sequence[OutboxMessage]) -> Performed:
        """Write the records of a project as one commit. Written again they are the same files: no change.

        Raises:
            ArchiveUnavailable: nothing was written; the rows wait on.
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
        """Take all out of the repository of a project that is another one's now, and say whose."""
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
        """Write records, named `<kind>:<id>`, and remove files, as one view of the store has them."""

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
            if not may_write():  # it stood still: what it has seen may be old
                raise ArchiveUnavailable("another server writes the archive now", value=slug)
            if batch is not None:  # else the project is another one's now
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
        """Have the archive say that it has this entry of a project's log, before it is written.

        Raises:
            ArchiveUnavailable: it cannot be said; the batch is written again later.
        """
        try:
            with self._marking:
                raise_mark(self.root, slug, newest_entry)
        except OSError as error:
            raise ArchiveUnavailable(
                f"the archive's mark cannot be written: {error}", value=str(self.root)
            ) from error

    async def rebuild(self, project: Project, *, page: int = 200) -> int:
        """Write everything the database holds of a project; return how many records that was.

        What is there already is left as it is, so it may be run again at any time.

        Raises:
            ArchiveUnavailable: some was written; run it again.
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
        """Move a project's repository aside, under this name, and write another from the database.

        Raises:
            ArchiveUnavailable: it cannot be moved, or not all was written; run `rebuild` then.
        """
        place = self.root / f"{project.slug}.git"
        try:
            await asyncio.to_thread(place.rename, self.root / aside)
        except OSError as error:
            raise ArchiveUnavailable(f"{place} cannot be moved: {error}", value=str(place)) from error
        return await self.rebuild(project)

    async def lost_head(self, project: Project) -> bool:
        """Return whether a project's repository is all there but for its HEAD."""
        return await asyncio.to_thread(head_is_lost, self.root / f"{project.slug}.git")

    async def write_head(self, project: Project) -> None:
        """Write the HEAD of a project's repository again.

        Raises:
            ArchiveUnavailable: it cannot be written.
        """
        await asyncio.to_thread(write_head, self.root / f"{project.slug}.git")

    async def differing(self, project: Project, *, page: int = 200) -> list[str]:
        """Return the files of the archive that tell otherwise than the database.

        What still waits for the archive is left out.
        What changes meanwhile is looked at twice.

        Raises:
            ArchiveUnavailable: the archive cannot be read.
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
    """Gather those of the records that do not wait for the archive."""
    rows = tx.outbox.open(ARCHIVE, limit=100_000)
    waiting = {record for row in rows for record in records_of(row.payload)}
    batch = gather(tx, project, [one for one in records if one not in waiting])
    if any(row.target == str(project.id) for row in rows):  # whatever is written brings it along
        batch.files.pop(layout.PROJECT_FILE, None)
    return batch


def _place(repository: ArchiveRepository, message: Message) -> str:
    """Return where a recalled message lies: its path was made of a subject that is erased."""
    return next(_places(repository, [(message.id, message.created_at)]), layout.message_path(message))


def _places(repository: ArchiveRepository, messages: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield where messages lie, each given with the instant at which it was sent."""
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
