"""The server as its operator sees it: status, readiness, examination, backup, tokens, rebuilding."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from postroom.app.backups import stamp
from postroom.app.tokens import new_agent_token
from postroom.app.wiring import House
from postroom.contracts.clock import iso
from postroom.contracts.errors import ArchiveUnavailable, InvalidPath, PostroomError, StoreError
from postroom.contracts.mail import Project
from postroom.contracts.store import MailReads
from postroom.http_api.lag import LagMeter
from postroom.http_api.operations import Check, Readiness
from postroom.http_api.readiness import archive_check, backups_check, loop_check, store_check
from postroom.mail.archive import layout
from postroom.mail.desk import token_hash
from postroom.mail.outgoing import ARCHIVE
from postroom.mail.projects import find_project
from postroom.stores.sqlite import sqlite_release
from postroom.version import __version__

if TYPE_CHECKING:
    from postroom.app.gateway_operator import GatewayOperator

PAGE = 500


class Operator:
    """Answers the operator's routes for one house."""

    def __init__(self, house: House, meter: LagMeter, *, started_at: int) -> None:
        self._house = house
        self._meter = meter
        self._started_at = started_at
        self.url = ""
        self.chats: GatewayOperator | None = None
        """Answers for the gateway, where there is one."""

    async def status(self) -> Mapping[str, object]:
        """Return what runs, where its data is and how much there is."""
        house = self._house
        counts, backlog = await house.store.read(lambda tx: (tx.counts(), tx.backlog(ARCHIVE)))
        return {
            "version": __version__,
            "pid": os.getpid(),
            "url": self.url,
            "started_at": iso(self._started_at),
            "database": str(house.store.path),
            "archive": str(house.settings.storage_root) if house.settings.archive_enabled else None,
            "environment": house.settings.environment,
            "identity": "verified" if house.settings.verified else "asserted",
            "profile": house.settings.profile,
            "records": counts,
            "archive_backlog": {
                "waiting": backlog.waiting,
                "oldest_at": None if backlog.oldest_at is None else iso(backlog.oldest_at),
            },
        }

    async def ready(self) -> Readiness:
        """Look at every part the server needs."""
        house = self._house
        now = house.clock.now()
        return Readiness(
            checks=(
                await store_check(house.store.probe),
                await archive_check(lambda: house.store.read(lambda tx: tx.backlog(ARCHIVE)), now),
                loop_check(self._meter, now),
                await self._backups(),
                *([] if self.chats is None else [self.chats.check()]),
            )
        )

    async def _backups(self) -> Check:
        try:
            found = await self._house.backups.state()
        except StoreError as error:
            return Check(name="backups", state="unknown", required=False, facts={"code": error.code})
        return backups_check(
            age_ms=found.age_ms,
            code=None if found.failure is None else found.failure.code,
            is_on=bool(found.interval_ms),
            is_overdue=found.is_overdue,
        )

    async def doctor(self) -> Mapping[str, object]:
        """Examine the store by a write probe and a read of every table and index, and the archive by Git."""
        checks = [
            await self._store_writes(),
            await self._store_reads(),
            _sqlite_release(),
            _git_found(),
        ]
        if self._house.settings.archive_enabled:
            checks += [await self._archive(project) for project in await self._projects()]
        return {"ok": all(check["state"] == "ok" for check in checks), "checks": checks}

    async def _store_writes(self) -> dict[str, object]:
        try:
            await self._house.store.probe()
        except PostroomError as error:
            return _found("store writes", "failed", error.message, error.remedy)
        return _found("store writes", "ok", "a probe row was written and read back")

    async def _store_reads(self) -> dict[str, object]:
        try:
            faults = await self._house.store.check()
        except StoreError as error:
            return _found("store reads", "failed", error.message, error.remedy)
        if faults:
            return _found(
                "store reads", "failed", "; ".join(faults[:5]), "stop the server, `postroom restore`"
            )
        return _found("store reads", "ok", "every table and index was read")

    async def _archive(self, project: Project) -> dict[str, object]:
        """Compare the letters of a project with those of its archive."""
        name = f"archive {project.slug}"
        house = self._house
        try:
            stored, waiting = await house.store.read(
                lambda tx: (_message_ids(tx, project), {row.key for row in tx.outbox(ARCHIVE, limit=100_000)})
            )
            faults, written = await asyncio.to_thread(self._archived, project.slug)
        except ArchiveUnavailable as error:
            return _found(name, "failed", error.message, error.remedy)
        if faults:
            return _found(
                name, "failed", "; ".join(faults[:5]), "move it away and run `postroom doctor` again"
            )
        if unknown := written - stored:
            return _found(
                name,
                "failed",
                f"{len(unknown)} letters are not in the database: it is older than the archive",
                "after restoring a backup, move the repository away and run `postroom rebuild archive`",
            )
        missing = [number for number in stored - written if f"message:{number}" not in waiting]
        if missing:
            return _found(
                name,
                "failed",
                f"{len(missing)} letters are missing",
                f"run `postroom rebuild archive {project.slug}`",
            )
        return _found(name, "ok", f"{len(written)} letters, {len(stored - written)} on their way")

    def _archived(self, slug: str) -> tuple[list[str], set[int]]:
        repository = self._house.archive.repository(slug)
        ids = (layout.message_id_of(path) for path in repository.paths("messages/"))
        return repository.check(), {number for number in ids if number is not None}

    async def back_up(self, target: Path | None) -> Mapping[str, object]:
        """Write a whole, verified copy of the database."""
        house = self._house
        chosen = target or house.backups.folder / f"postroom-{stamp(house.clock.now())}.db"
        if chosen.exists():
            raise InvalidPath(
                f"{chosen} exists", value=str(chosen), remedy="name a file that is not there yet"
            )
        try:
            chosen.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidPath(
                f"{chosen.parent} cannot be made: {error.strerror}",
                value=str(chosen),
                remedy="name another place",
            ) from error
        await house.store.back_up(chosen)
        return {"path": str(chosen), "bytes": chosen.stat().st_size}

    async def issue_agent_token(self, project: str, agent: str) -> str:
        """Give an agent a new token, which is shown this once."""
        token = new_agent_token()
        await self._house.mail.issue_token(project, agent, token_hash(token))
        return token

    async def revoke_agent_token(self, project: str, agent: str) -> None:
        """End an agent's token."""
        await self._house.mail.issue_token(project, agent, None)

    async def rebuild_archive(self, project: str | None) -> Mapping[str, object]:
        """Write what the database holds into the archive; what is there already stays."""
        if project is not None:
            chosen = [await self._house.store.read(lambda tx: find_project(tx, project))]
        else:
            chosen = await self._projects()
        return {one.slug: await self._house.archive.rebuild(one) for one in chosen}

    async def refresh_metrics(self) -> None:
        """Read what the gauges show."""
        counts, backlog = await self._house.store.read(lambda tx: (tx.counts(), tx.backlog(ARCHIVE)))
        lag = self._meter.worst(self._house.clock.now())
        self._house.metrics.show_state(backlog, counts, (lag or 0) / 1000)
        if self.chats is not None:
            await self.chats.refresh_metrics()

    async def _projects(self) -> list[Project]:
        return await self._house.store.read(_all_projects)


def _all_projects(tx: MailReads) -> list[Project]:
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


def _found(name: str, state: str, detail: str, remedy: str = "") -> dict[str, object]:
    return {"name": name, "state": state, "detail": detail, "remedy": remedy}


def _sqlite_release() -> dict[str, object]:
    release, is_safe = sqlite_release()
    if is_safe:
        return _found("sqlite", "ok", f"SQLite {release}")
    return _found(
        "sqlite",
        "ok",
        f"SQLite {release} has the WAL-reset defect; only our writer checkpoints, so it cannot strike",
        "use SQLite 3.51.3 or newer when your system offers it",
    )


def _git_found() -> dict[str, object]:
    if shutil.which("git"):
        return _found("git", "ok", "git was found")
    return _found("git", "failed", "git was not found; mail works, the archive waits", "install git")
