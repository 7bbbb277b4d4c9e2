"""Compares the messages of a project with its archive, while a server may change both.

The archive is written later than the database, and both cannot be read at the same instant. Therefore, the
database is read before and after the archive. A difference is a failure only if both reads show it.
"""

import asyncio
from dataclasses import dataclass
from functools import partial

from postroom.app.check_results import CheckResult, broken
from postroom.app.repairs import Repair, another_archive, plan_gap_repair, plan_head_repair
from postroom.contracts.clock import Clock
from postroom.contracts.errors import ArchiveUnavailable
from postroom.contracts.mail import Project
from postroom.mail.archive import layout
from postroom.mail.archive.archive import Archive
from postroom.mail.outgoing import ARCHIVE, list_deleted_ids, list_records
from postroom.stores.mail.access import MailReads
from postroom.stores.stores import Stores

PAGE = 500
"""The number of messages that one read of the database fetches."""


@dataclass(frozen=True, slots=True)
class _Known:
    stored: set[int]
    coming: set[int]
    """The messages that must still be written to the archive."""
    going: set[int]
    """The deleted messages that must still be removed from the archive."""


@dataclass(slots=True)
class _Difference:
    unknown: set[int]
    """The messages in the archive that have never been in the database."""
    missing: set[int]
    """The messages in the database that are not in the archive and do not wait to be written to it."""

    def __bool__(self) -> bool:
        return bool(self.unknown or self.missing)


class ArchiveCheck:
    """Compares the archives of projects with the database, one project at a time."""

    def __init__(self, store: Stores, archive: Archive, clock: Clock, *, full: bool) -> None:
        self._store, self._archive, self._clock = store, archive, clock
        self._full = full
        self.repairs: list[Repair] = []
        """The repairs of the faults that were found."""

    async def of(self, project: Project) -> CheckResult:
        """Compare the archive of a project with the database.

        Raises:
            StoreError: The database cannot be read.
        """
        archive, value = self._archive, partial(_found, project.slug)
        try:
            archive_state = await self._list_known(project)
            faults, written = await asyncio.to_thread(self._list_archived, project.slug)
            differs = await self._find_lasting_differences(project, archive_state, written)
        except ArchiveUnavailable as error:
            if await archive.lost_head(project):
                self.repairs.append(plan_head_repair(archive, project))
            return broken("archive", error, about=project.slug)
        if faults:
            # if the database has lost records, the archive may contain the only copy
            if not differs.unknown:
                now = self._clock.now()
                self.repairs.append(another_archive(archive, project, now))
            return value(
                "failed",
                "; ".join(faults[:5]),
                "move the archive to another folder and run `postroom doctor` again",
            )
        if differs.unknown:
            return value(
                "failed",
                f"{len(differs.unknown)} messages of the archive are missing from the database, which is "
                "older than the archive",
                "if you have restored a backup, move the repository to another folder and run `postroom "
                "rebuild archive`",
            )
        if differs.missing:
            count = len(differs.missing)
            self.repairs.append(plan_gap_repair(archive, project, count))
            remedy = f"run `postroom rebuild archive {project.slug}`"
            return value("failed", f"{count} messages are missing from the archive", remedy)
        if self._full and (differing := await archive.differing(project)):
            return value(
                "failed",
                f"{len(differing)} files differ from the database: {', '.join(differing[:5])}",
                "compare them with `git show main:<file>`; if the archive is right, run `postroom "
                f"restore`; if the database is right, `postroom rebuild archive {project.slug}`",
            )
        # Count the messages in the archive, and those that wait to be written or deleted.
        leaving = len(archive_state.going & written)
        coming = len(archive_state.stored & archive_state.coming - written)
        text = f"{len(written) - leaving} messages in the archive, {coming} still to be written"
        return value("ok", f"{text}, {leaving} still to be deleted" if leaving else text)

    async def _find_lasting_differences(
        self, project: Project, known: _Known, written: set[int]
    ) -> _Difference:
        differs = _Difference(
            unknown=written - known.stored - known.going, missing=known.stored - written - known.coming
        )
        if not differs:
            return differs
        again = await self._list_known(project)
        differs.unknown -= again.stored | again.going
        differs.missing &= again.stored - again.coming
        if differs:
            written = await asyncio.to_thread(self._list_written, project.slug)
            differs.unknown &= written
            differs.missing -= written
        return differs

    async def _list_known(self, project: Project) -> _Known:
        return await self._store.read(partial(_list_known, project=project))

    def _list_archived(self, slug: str) -> tuple[list[str], set[int]]:
        return self._archive.repository(slug).check(), self._list_written(slug)

    def _list_written(self, slug: str) -> set[int]:
        paths = self._archive.repository(slug).paths("messages/")
        return {number for number in map(layout.parse_message_path, paths) if number is not None}


def _list_known(tx: MailReads, *, project: Project) -> _Known:
    stored, after = set[int](), 0
    while page := tx.project_messages(project.id, limit=PAGE, after=after):
        stored.update(message.id for message in page)
        after = page[-1].id
    archive_state = _Known(stored=stored, coming=set(), going=set())
    for row in tx.outbox.open(ARCHIVE, limit=100_000):
        coming = (record.partition(":") for record in list_records(row.payload))
        archive_state.coming.update(int(number) for kind, _, number in coming if kind == "message")
        archive_state.going.update(list_deleted_ids(row.payload))
    return archive_state


def _found(slug: str, state: str, detail: str, remedy: str = "") -> CheckResult:
    is_well = state == "ok"
    return CheckResult(
        part="archive", about=slug, state="ok" if is_well else "failed", detail=detail, remedy=remedy
    )
