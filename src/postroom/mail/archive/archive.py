"""The archive of an installation: one Git repository for each project, which the relay writes in batches.

The database is authoritative, and the archive is an export. A record can be written repeatedly, because its
id identifies it. The archive never delays mail: records that wait to be archived are in the outbox, whose
relay writes them in batches.

The mark file, a small file next to the repositories, records the id of the store and the newest log entries
that the archive contains. At startup, a server compares the mark with the database. The server does not start
if the database is another or an older one, because such a database could assign record numbers that the
archive already contains. Each archived change adds an entry to the log of its project, and entry numbers only
grow. If the newest number in the database is smaller than the one in the mark, the database is older than the
archive.
"""

import asyncio
import hashlib
import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from postroom.contracts import progress
from postroom.contracts.clock import Clock
from postroom.contracts.errors import ArchiveUnavailable, ConfigError, why_unreadable
from postroom.contracts.mail import Message, Project, is_content_of, is_damaged
from postroom.contracts.messages import Json
from postroom.contracts.outbox import OutboxMessage
from postroom.log import get_logger
from postroom.mail.archive import layout
from postroom.mail.archive.repository import ArchiveRepository, head_is_lost, write_head
from postroom.mail.outgoing import ARCHIVE, DELETION, MOVED, list_records
from postroom.relay import Performed
from postroom.stores.mail.access import MailReads
from postroom.stores.mail.store import MailStore


@dataclass(slots=True, kw_only=True)
class Batch:
    """The contents of one commit in the archive of a project."""

    project: Project
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    recalled: list[tuple[Message, bytes]] = field(default_factory=list)
    """Messages whose text was deleted, with their new files. The old file names contain the subjects."""
    deleted: list[tuple[int, int]] = field(default_factory=list)
    """Deleted messages, each with its id and the time when it was sent.

    The time determines the folder of the file of the message.
    """
    removed: list[str] = field(default_factory=list)
    """Other files to remove."""
    newest_entry: int = 0
    """The number of the newest entry in the project's log when the batch was read."""

    @property
    def subject(self) -> str:
        """The subject line of the commit that writes the batch."""
        if not self.messages:
            gone = len(self.deleted)
            return f"mail: {gone} deleted" if gone else "mail: agents and reservations"
        noun = "message" if len(self.messages) == 1 else "messages"
        return f"mail: {len(self.messages)} {noun}, {self.messages[0].subject}"


def gather(tx: MailReads, project: Project, records: Sequence[str]) -> Batch:
    """Return a batch with the archive files of the given records.

    Each record is named `<kind>:<id>`.
    """
    batch = Batch(project=project)
    batch.files[layout.PROJECT_FILE] = layout.project_file(project)
    wanted: dict[str, list[int]] = {"agent": [], "message": [], "reservation": []}
    for record in records:
        kind, _, number = record.partition(":")
        wanted[kind].append(int(number))
    if wanted["agent"]:
        for agent in tx.agents_by_id(wanted["agent"]).values():
            batch.files[layout.agent_path(agent.name)] = layout.agent_file(agent)
    for reservation_id in dict.fromkeys(wanted["reservation"]):
        if reservation := tx.reservation(reservation_id):
            batch.files[layout.reservation_path(reservation.id)] = layout.reservation_file(reservation)
    ids = sorted(set(wanted["message"]))
    if not ids:
        return batch
    messages, recipients, attachments = tx.messages(ids), tx.recipients(ids), tx.attachments(ids)
    for message in messages.values():
        content = layout.message_file(message, project, recipients[message.id], attachments[message.id])
        if message.recalled_at is not None:
            batch.recalled.append((message, content))
            continue
        if is_damaged(message):  # the archive may still contain the original text
            continue
        batch.messages.append(message)
        batch.files[layout.message_path(message)] = content
        for attachment in attachments[message.id]:
            for sha256 in filter(None, (attachment.sha256, attachment.preview_sha256)):
                if (blob := tx.blob(sha256)) is not None and is_content_of(sha256, blob):
                    batch.files[layout.attachment_path(sha256)] = blob
    _gather_threads(tx, batch, [message.thread_id for message in messages.values()])
    return batch


def gather_deletions(tx: MailReads, batch: Batch, deletions: Sequence[Mapping[str, Any]]) -> None:
    """Add the deletions of messages to a batch.

    Attachments that remaining messages use stay in the archive.
    """
    project_id = batch.project.id
    for deletion in deletions:
        batch.deleted += [(number, sent_at) for number, sent_at in deletion["messages"]]
        _gather_threads(tx, batch, deletion["threads"])
        kept_values = tx.attached_in(project_id, deletion["contents"])
        batch.removed += [
            layout.attachment_path(content) for content in deletion["contents"] if content not in kept_values
        ]


def _gather_threads(tx: MailReads, batch: Batch, thread_ids: Sequence[str]) -> None:
    for thread_id in dict.fromkeys(thread_ids):
        newest = tx.thread_tail(batch.project.id, thread_id, limit=layout.DIGEST_MESSAGES)
        if not newest:
            batch.removed.append(layout.thread_path(thread_id))
            continue
        left_out = 0
        if len(newest) == layout.DIGEST_MESSAGES:
            left_out = tx.thread_size(batch.project.id, thread_id) - len(newest)
        batch.files[layout.thread_path(thread_id)] = layout.thread_file(thread_id, newest, left_out)


def differing_files(batch: Batch, blobs: Mapping[str, str], repository: ArchiveRepository) -> list[str]:
    """Return the paths of a batch's files that are missing or different in the archive.

    `blobs` maps the paths in the archive to Git hashes. Blocks.

    Raises:
        ArchiveUnavailable: A file cannot be read.
    """
    files = [(path, content) for path, content in batch.files.items() if not path.startswith("threads/")]
    for message, content in batch.recalled:
        folder = f"{layout.message_folder(message.created_at)}/{message.id}-"
        files.append((next((path for path in blobs if path.startswith(folder)), folder), content))
    return [path for path, content in files if not _is_same(path, content, blobs.get(path), repository)]


def _is_same(path: str, content: bytes, blob: str | None, repository: ArchiveRepository) -> bool:
    if blob is None:
        return False
    kind = "sha1" if len(blob) == 40 else "sha256"
    if hashlib.new(kind, b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest() == blob:
        return True
    data = repository.read(path)
    if data is None or path.startswith("attachments/"):
        return False
    try:
        ours, theirs = _profile_fields(path, content), _profile_fields(path, data)
    except ValueError:
        return False
    if path.startswith("reservations/") and theirs.get("expires_at", "") <= ours["expires_at"]:
        del ours["expires_at"]  # every call of the agent extends this time, which is not archived then
    return all(theirs[name] == value for name, value in ours.items() if name in theirs)


def _profile_fields(path: str, content: bytes) -> dict[str, Any]:
    if not path.endswith(".md"):
        return dict(json.loads(content))
    head, body = layout.read_message_file(content)
    return {**head, "": body}


NAME: Final = "store.json"
_READ_BEFORE: Final = "newest_message"
"""A field that the previous release needs at its start. The value is always 0, without a meaning."""
_LARGEST: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMark:
    """The identity of a store: the store's id, and the newest log entry of each project."""

    store_id: str
    logs: Mapping[str, int] = field(default_factory=dict)
    database: str = ""
    """The location of the database, or "" in the mark file of an archive."""


def read_mark(folder: Path) -> StoreMark | None:
    """Return the mark in the mark file of a folder, or None if the folder has no mark file.

    Raises:
        ConfigError: The mark file is invalid.
    """
    file = folder / NAME
    try:
        with file.open("rb") as opened:
            document = json.loads(opened.read(_LARGEST))
        return StoreMark(
            store_id=str(document["store_id"]),
            logs={str(slug): int(newest) for slug, newest in dict(document.get("logs", {})).items()},
            database=str(document["database"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{file} is not a valid store marker for this folder: {why_unreadable(error)}",
            value=str(file),
            remedy="restore the file from a copy, or remove it: the next start writes a new one",
        ) from error


def write_mark(folder: Path, mark: StoreMark) -> None:
    """Write the mark file of a folder atomically.

    Raises:
        OSError: The folder cannot be created or written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f".{NAME}.{os.getpid()}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123 - its mode
            json.dump({**asdict(mark), _READ_BEFORE: 0}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / NAME)
    finally:
        draft.unlink(missing_ok=True)


def repositories(folder: Path) -> list[str]:
    """Return the slugs of the repositories in an archive folder."""
    return sorted(path.stem for path in folder.glob("*.git"))


_LOG = get_logger(__name__)

TIDY_EVERY = 50
"""The number of commits to a repository after which it is checked whether the repository needs a repack."""


_OF_MOVED: Final = ("slug", "human_key", "merged_into")


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """The author of the commits in the archive."""

    name: str
    email: str


class Archive:
    """Writes the records of projects into Git repositories under `root`."""

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
        """Set the folder, the store and the author of the archive.

        `batch` is the maximum number of records in a commit. `may_write` returns whether this server may
        write the archive now.
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
        """The slugs of the projects written so far, keyed by id. The slug of a project never changes."""
        self._repositories: dict[str, ArchiveRepository] = {}
        """The open repositories, keyed by slug."""
        self._views: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """The lock of each repository, keyed by slug.

        A lock is held from the time when a project is read until it is written, so that an older state never
        overwrites a newer one.
        """

    def repository(self, slug: str) -> ArchiveRepository:
        """Open the repository of a project, and create a missing repository.

        Raises:
            ArchiveUnavailable: Git is missing, or the folder is not writable.
        """
        known_repository = self._repositories.get(slug)
        if known_repository is None or not known_repository.is_made:
            known_repository = self._repositories[slug] = ArchiveRepository.open(
                self.root / f"{slug}.git",
                author_name=self._author.name,
                author_email=self._author.email,
                timeout=self._timeout,
            )
        return known_repository

    def serves(self, target: str) -> bool:
        """Return whether this server may write the archive now."""
        return self._may_write()

    async def perform(self, rows: Sequence[OutboxMessage]) -> Performed:
        """Write the records of a project in one commit.

        Repeated writes of a record are safe.

        Raises:
            ArchiveUnavailable: No record was written. The rows stay in the outbox.
        """
        project_id = int(rows[0].target)
        if project_id not in self._slugs:
            project = await self._store.read(lambda tx: tx.project_by_id(project_id))
            if project is not None:
                self._slugs[project_id] = project.slug
        payloads = [row.payload for row in rows]
        deletions = [payload for payload in payloads if payload["record"] == DELETION]
        records = [record for payload in payloads for record in list_records(payload)]
        if project_id in self._slugs and (records or deletions):
            await self._write(project_id, records, deletions, may_write=self._may_write)
        for former in payloads:
            if former["record"] != MOVED:
                continue
            by_name = {name: str(former[name]) for name in _OF_MOVED}
            async with self._views[by_name["slug"]]:
                await asyncio.to_thread(self._empty, **by_name)
        return Performed()

    def _empty(self, slug: str, human_key: str, merged_into: str) -> None:
        repository = self.repository(slug)
        removed = [path for path in repository.paths() if path != layout.PROJECT_FILE]
        data = layout.moved_project_file(slug, human_key, merged_into)
        subject = f"mail: this project is {merged_into} now"
        repository.write({layout.PROJECT_FILE: data}, removed=removed, subject=subject, now=self._clock.now())

    async def _write(
        self,
        project_id: int,
        records: Sequence[str],
        deletions: Sequence[dict[str, Json]] = (),
        *,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        def look(tx: MailReads) -> Batch | None:
            project = tx.project_by_id(project_id)
            if project is None:
                return None
            batch = gather(tx, project, records)
            if deletions:
                gather_deletions(tx, batch, deletions)
            batch.newest_entry = tx.newest_entry(project_id)
            return batch

        slug = self._slugs[project_id]
        async with self._views[slug]:
            batch = await self._store.read(look)
            if not may_write():  # the server stalled, so the state that it has read may be old
                raise ArchiveUnavailable("another server writes the archive", value=slug)
            if batch is not None:  # otherwise, the project has been merged into another one
                await asyncio.to_thread(self._commit, batch)

    def _commit(self, batch: Batch) -> None:
        slug, newest = batch.project.slug, batch.newest_entry
        repository = self.repository(slug)
        for message, content in batch.recalled:
            path = next(_places(repository, [(message.id, message.created_at)]), layout.message_path(message))
            batch.files[path] = content
        try:
            with self._marking:  # write the mark before the commit, so that it is never behind the archive
                mark = read_mark(self.root)
                if mark is not None and mark.logs.get(slug, 0) < newest:
                    write_mark(self.root, replace(mark, logs={**mark.logs, slug: newest}))
        except OSError as error:
            raise ArchiveUnavailable(
                f"the archive's store marker cannot be written: {error}", value=str(self.root)
            ) from error
        repository.write(
            batch.files,
            removed=[*batch.removed, *(_places(repository, batch.deleted) if batch.deleted else ())],
            subject=batch.subject,
            trailers=[("Message-Id", str(message.id)) for message in batch.messages],
            now=self._clock.now(),
        )
        count = self._commits[batch.project.id] = self._commits.get(batch.project.id, 0) + 1
        if count % TIDY_EVERY == 0:
            repository.tidy(self._clock.now())

    async def rebuild(self, project: Project, *, page: int = 200) -> int:
        """Write all records of a project to its repository, and return the number of records.

        The call may be repeated at any time.

        Raises:
            ArchiveUnavailable: Only some records were written. Call this again.
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
        """Rename the repository of a project to `aside`, and write a new repository from the database.

        Raises:
            ArchiveUnavailable: The repository cannot be renamed, or only some records were written. If only
                some were written, call `rebuild`.
        """
        place = self.root / f"{project.slug}.git"
        try:
            await asyncio.to_thread(place.rename, self.root / aside)
        except OSError as error:
            raise ArchiveUnavailable(f"{place} cannot be moved: {error}", value=str(place)) from error
        return await self.rebuild(project)

    async def lost_head(self, project: Project) -> bool:
        """Return whether the repository of a project has a missing or damaged HEAD."""
        return await asyncio.to_thread(head_is_lost, self.root / f"{project.slug}.git")

    async def write_head(self, project: Project) -> None:
        """Restore the HEAD of the repository of a project.

        Raises:
            ArchiveUnavailable: HEAD cannot be written.
        """
        await asyncio.to_thread(write_head, self.root / f"{project.slug}.git")

    async def differing(self, project: Project, *, page: int = 200) -> list[str]:
        """Return the paths of archive files that differ from the database.

        Records that wait to be archived are not compared.

        Raises:
            ArchiveUnavailable: The archive cannot be read.
        """
        repository = await asyncio.to_thread(self.repository, project.slug)
        suspects: list[str] = []
        for kind in ("agent", "message", "reservation"):
            last = 0
            while ids := await self._ids(project, kind, last, page):
                suspects += [f"{kind}:{number}" for number in ids]
                last = ids[-1]
        texts: list[str] = []
        for _ in range(2):
            blobs = await asyncio.to_thread(repository.blobs)
            pages = [suspects[at : at + page] for at in range(0, len(suspects), page)]
            total, suspects, texts = len(suspects), [], []
            for at, records in enumerate(pages):
                batch = await self._store.read(partial(_settled_batch, project=project, records=records))
                if paths := await asyncio.to_thread(differing_files, batch, blobs, repository):
                    suspects += records
                    texts += paths
                done = at * page + len(records)
                _LOG.info("archive.compared", project=project.slug, records=done)
                progress.tell(f"comparing {project.slug} with its archive: records", done, total)
        return sorted(set(texts))

    async def _ids(self, project: Project, kind: str, after: int, limit: int) -> list[int]:
        return await self._store.read(lambda tx: _ids(tx, project, kind, after, limit))


def _settled_batch(tx: MailReads, *, project: Project, records: Sequence[str]) -> Batch:
    rows = tx.outbox.open(ARCHIVE, limit=100_000)
    waiting = {record for row in rows for record in list_records(row.payload)}
    batch = gather(tx, project, [record for record in records if record not in waiting])
    if any(row.target == str(project.id) for row in rows):  # every write contains the file of the project
        batch.files.pop(layout.PROJECT_FILE, None)
    return batch


def _places(repository: ArchiveRepository, messages: Sequence[tuple[int, int]]) -> Iterator[str]:
    ids = {number for number, _ in messages}
    for folder in sorted({layout.message_folder(sent_at) for _, sent_at in messages}):
        yield from (path for path in repository.paths(f"{folder}/") if layout.parse_message_path(path) in ids)


def _ids(tx: MailReads, project: Project, kind: str, after: int, limit: int) -> list[int]:
    match kind:
        case "agent":
            return [
                agent.id for agent in tx.agents(project.id, include_retired=True, limit=limit, after=after)
            ]
        case "message":
            return [message.id for message in tx.project_messages(project.id, limit=limit, after=after)]
        case _:
            return [reservation.id for reservation in tx.reservations(project.id, limit=limit, after=after)]
