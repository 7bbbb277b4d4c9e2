"""The examination of a running house: the store, the archive, Git, and what `examination` looks at."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from postroom.app.check_results import CheckResult, broken
from postroom.app.health_checks import HealthChecks
from postroom.app.wiring import Application
from postroom.contracts.errors import ArchiveUnavailable, PostroomError, StoreError
from postroom.contracts.mail import Project
from postroom.contracts.store import MailReads
from postroom.mail.archive import layout
from postroom.mail.outgoing import ARCHIVE
from postroom.stores.sqlite import sqlite_release

if TYPE_CHECKING:
    from postroom.app.gateway_service import GatewayService

PAGE = 500


class Doctor:
    """Looks at every part of a house; nothing is mended, and no program is started but Git."""

    def __init__(self, house: Application, chats: "GatewayService | None") -> None:
        self._house = house
        self._rest = HealthChecks(house, chats)

    async def findings(self) -> list[CheckResult]:
        """Return what was found, part by part; one that cannot be looked at is told and ends nothing."""
        found = [
            *await _seen("store writes", self._store_writes),
            *await _seen("store reads", self._store_reads),
            _release(self._house.store.release),
            await asyncio.to_thread(_git_found),
        ]
        if self._house.settings.archive_enabled:
            found += await _seen("archive", self._archives)
        for part, look in self._rest.looks().items():
            found += await _seen(part, look)
        return found

    async def _store_writes(self) -> list[CheckResult]:
        await self._house.store.probe()
        return [CheckResult(part="store writes", state="ok", detail="a probe row was written and read back")]

    async def _store_reads(self) -> list[CheckResult]:
        if faults := await self._house.store.check():
            return [
                CheckResult(
                    part="store reads",
                    state="failed",
                    detail="; ".join(faults[:5]),
                    remedy="stop the server, `postroom restore`",
                    facts={"faults": len(faults)},
                )
            ]
        return [CheckResult(part="store reads", state="ok", detail="every table and index was read")]

    async def _archives(self) -> list[CheckResult]:
        return [await self._archive(project) for project in await self._house.store.read(all_projects)]

    async def _archive(self, project: Project) -> CheckResult:
        """Compare the messages of a project with those of its archive."""
        house = self._house

        def found(state: str, detail: str, remedy: str = "") -> CheckResult:
            return CheckResult(
                part="archive",
                about=project.slug,
                state="ok" if state == "ok" else "failed",
                detail=detail,
                remedy=remedy,
            )

        try:
            stored, waiting = await house.store.read(
                lambda tx: (_message_ids(tx, project), tx.outbox.open(ARCHIVE, limit=100_000))
            )
            faults, written = await asyncio.to_thread(self._archived, project.slug)
        except ArchiveUnavailable as error:
            return broken("archive", error, about=project.slug)
        if faults:
            return found("failed", "; ".join(faults[:5]), "move it away and run `postroom doctor` again")
        if unknown := written - stored:
            return found(
                "failed",
                f"{len(unknown)} messages are not in the database: it is older than the archive",
                "after restoring a backup, move the repository away and run `postroom rebuild archive`",
            )
        on_their_way = {row.payload["record"] for row in waiting}
        missing = [number for number in stored - written if f"message:{number}" not in on_their_way]
        if missing:
            remedy = f"run `postroom rebuild archive {project.slug}`"
            return found("failed", f"{len(missing)} messages are missing", remedy)
        return found("ok", f"{len(written)} messages, {len(stored - written)} on their way")

    def _archived(self, slug: str) -> tuple[list[str], set[int]]:
        repository = self._house.archive.repository(slug)
        ids = (layout.message_id_of(path) for path in repository.paths("messages/"))
        return repository.check(), {number for number in ids if number is not None}


async def _seen(part: str, look: Callable[[], Awaitable[list[CheckResult]]]) -> list[CheckResult]:
    """Look at a part. A store that fails is found at the store's own parts; the others are unknown then."""
    try:
        return await look()
    except StoreError as error:
        if part.startswith("store"):
            return [broken(part, error)]
        detail = f"it could not be seen: {error.message}"
        facts = {"code": error.code}
        return [CheckResult(part=part, state="unknown", detail=detail, remedy=error.remedy, facts=facts)]
    except PostroomError as error:
        return [broken(part, error)]


def all_projects(tx: MailReads) -> list[Project]:
    """Return every project."""
    found: list[Project] = []
    while page := tx.projects(limit=PAGE, after=found[-1].id if found else 0):
        found += page
    return found


def _message_ids(tx: MailReads, project: Project) -> set[int]:
    ids: set[int] = set()
    after = 0
    while page := tx.project_messages(project.id, limit=PAGE, after=after):
        ids.update(one.id for one in page)
        after = page[-1].id
    return ids


def _release(told: str) -> CheckResult:
    if not told.startswith("SQLite "):
        return CheckResult(part="database", state="ok", detail=told)
    release, is_safe = sqlite_release()
    if is_safe:
        return CheckResult(part="sqlite", state="ok", detail=f"SQLite {release}")
    return CheckResult(
        part="sqlite",
        state="ok",
        detail=f"SQLite {release} has the WAL-reset defect; only our writer checkpoints, so it cannot strike",
        remedy="use SQLite 3.51.3 or newer when your system offers it",
    )


def _git_found() -> CheckResult:
    if shutil.which("git"):
        return CheckResult(part="git", state="ok", detail="git was found")
    detail = "git was not found; mail works, the archive waits"
    return CheckResult(part="git", state="failed", detail=detail, remedy="install git")
