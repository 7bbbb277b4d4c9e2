"""The operator's administration of the server: status, checks, repairs, backups, projects and tokens."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import generate_latest

from postroom.app.backups import stamp
from postroom.app.check_results import most_descriptors, open_descriptors
from postroom.app.doctor import Doctor, all_projects
from postroom.app.logs import log_failure
from postroom.app.metrics import ServerState
from postroom.app.repairs import perform_repairs
from postroom.app.support import (
    as_json,
    common_documents,
    outline_documents,
    told_findings,
    told_runners,
)
from postroom.app.tokens import new_agent_token
from postroom.contracts import progress
from postroom.contracts.clock import iso
from postroom.contracts.errors import InvalidPath, StateError, StoreError
from postroom.contracts.leases import SERVER, servers
from postroom.contracts.mail import Project
from postroom.contracts.messages import Json
from postroom.http_api.readiness import (
    Check,
    LagMeter,
    Readiness,
    archive_check,
    backups_check,
    log_check,
    loop_check,
    store_check,
)
from postroom.mail.context import token_hash
from postroom.mail.git_identity import is_folder, read_folder
from postroom.mail.merging import MergePlan, merge, plan_merge
from postroom.mail.names import shown
from postroom.mail.outgoing import ARCHIVE
from postroom.mail.projects import PEOPLE_KEY, checked_path, find_project
from postroom.mail.repositories import move_project
from postroom.services.administration import (
    BackupView,
    ChecksView,
    ClusterView,
    MergeView,
    ProjectPath,
    PruneView,
    RepairsView,
    ServerHealth,
    StatusView,
)
from postroom.services.runners import declared_runners
from postroom.stores.mail.access import MailWrites
from postroom.stores.postgres.errors import no_backup
from postroom.version import __version__

if TYPE_CHECKING:
    from postroom.app.gateway_service import GatewayService
    from postroom.app.wiring import Application


class AdminService:
    """Implements the HTTP routes for the operator of one server."""

    def __init__(
        self,
        application: "Application",
        meter: LagMeter,
        *,
        started_at: int,
        chats: "GatewayService | None" = None,
    ) -> None:
        self._application = application
        self._meter = meter
        self._started_at = started_at
        self.chats = chats
        """The service of the gateway, or None if there is no gateway."""
        self.is_stopping = False
        """Whether the server is stopping, and therefore not ready."""

    async def status(self) -> StatusView:
        """Return the state of the server: version, address, database, archive, and number of records."""
        application = self._application
        counts = await application.store.read(lambda tx: tx.counts())
        backlogs = await application.backlogs()
        backlog = backlogs[ARCHIVE]
        return {
            "version": __version__,
            "pid": os.getpid(),
            "url": application.address,
            "started_at": iso(self._started_at),
            "database": application.settings.shown_database,
            "archive": str(application.settings.storage_root)
            if application.settings.archive_enabled
            else None,
            "environment": application.settings.environment,
            "identity": "verified" if application.settings.verified else "asserted",
            "profile": application.settings.profile,
            "records": counts,
            "archive_backlog": {
                "waiting": backlog.waiting,
                "oldest_at": None if backlog.oldest_at is None else iso(backlog.oldest_at),
            },
            "outbox": {
                kind: {"waiting": backlog.waiting, "dead": backlog.dead} for kind, backlog in backlogs.items()
            },
        }

    async def cluster(self) -> ClusterView:
        """Return the servers that share the database, and the exclusive tasks of each server."""
        application = self._application
        leases, now = await application.store.store.read(lambda tx: (tx.leases.listed(), tx.now()))
        return {
            "servers": [
                {
                    "name": lease.holder,
                    "is_this": lease.holder == application.leases.holder,
                    "address": lease.about.get("address"),
                    "host": lease.about.get("host"),
                    "pid": lease.about.get("pid"),
                    "version": lease.about.get("version"),
                    "places": lease.about.get("places"),
                    "since": iso(lease.since),
                }
                for lease in servers(leases, now)
            ],
            "work": [
                {
                    "work": lease.name,
                    "is_held": lease.until > now,
                    "server": lease.holder,
                    "since": iso(lease.since),
                    "until": iso(lease.until),
                    "changes_of_hands": lease.fence - 1,
                }
                for lease in leases
                if not lease.name.startswith(SERVER)
            ],
        }

    async def projects(self) -> Sequence[ProjectPath]:
        """Return the slug and the path of every project."""
        projects = await self._application.store.read(all_projects)
        return [{"slug": project.slug, "human_key": project.human_key} for project in projects]

    async def move_project(self, project: str, folder: str) -> ProjectPath:
        """Change the folder of a project. The path of the former folder still identifies the project.

        Raises:
            UnknownProject, InvalidPath: There is no such project, or no such folder.
            StateError: The folder belongs to another project.
        """
        read = await asyncio.to_thread(read_folder, checked_path(folder))
        home = read.lasting
        if not await asyncio.to_thread(is_folder, home):
            raise InvalidPath(
                f"there is no folder {shown(home)} on the server's machine",
                value=folder,
                remedy="pass the project's new folder",
            )

        def change(tx: MailWrites) -> Project:
            known_project = find_project(tx, project)
            if known_project.human_key == PEOPLE_KEY:
                raise StateError(
                    "this project is the mailbox of a person, so it has no folder",
                    value=project,
                    remedy="choose a project of agents",
                )
            holder = tx.project(home)
            if holder is not None and holder.id != known_project.id:
                raise StateError(
                    f"{shown(home)} is the folder of another project, {holder.slug}",
                    value=folder,
                    remedy=f"to merge the two projects, begin with `postroom projects merge {holder.slug} "
                    f"{known_project.slug} --dry-run`",
                )
            move_project(tx, known_project, home)
            if read.identity:
                tx.set_git_identity(known_project.id, read.identity)
            return find_project(tx, known_project.slug)

        moved = await self._application.store.write(change)
        return {"slug": moved.slug, "human_key": moved.human_key}

    async def merge_projects(
        self, source: str, target: str, *, renames: Mapping[str, str], rename_equal: bool, dry_run: bool
    ) -> MergeView:
        """Merge the project `source` into the project `target`, or only count the changes in a dry run.

        `renames` maps the names of agents in `source` to new names. If `rename_equal`, agents whose names
        exist in both projects get generated names.

        Raises:
            UnknownProject, InvalidArgument: The arguments do not name two different projects.
            InvalidName: A new name is invalid or reserved.
            StateError: The projects cannot be merged. Nothing was changed.
        """
        application = self._application
        if dry_run:
            plan = await application.store.read(
                lambda tx: plan_merge(tx, source, target, renames=renames, rename_equal=rename_equal)
            )
        else:
            watcher = progress.here()

            def change(tx: MailWrites) -> MergePlan:
                with progress.watched(watcher):
                    return merge(tx, source, target, renames=renames, rename_equal=rename_equal)

            plan = await application.store.write(change)
        return {
            "dry_run": dry_run,
            "from": {"slug": plan.source.slug, "human_key": plan.source.human_key},
            "into": {"slug": plan.target.slug, "human_key": plan.target.human_key},
            "agents": plan.size.agents,
            "messages": plan.size.messages,
            "reservations": plan.size.reservations,
            "tokens": plan.size.tokens,
            "renamed": {agent.name: name for agent, name in plan.renames},
            "threads_joined": list(plan.threads),
            "conflicts": [
                [
                    {"agent": side.holder, "pattern": side.pattern}
                    for side in (conflict.first, conflict.second)
                ]
                for conflict in plan.conflicts
            ],
            "refusals": list(plan.refusals),
        }

    async def ready(self) -> Readiness:
        """Check every part that the server needs, and return the results."""
        application = self._application
        now = application.clock.now()
        checks = [
            await store_check(application.store.probe),
            await archive_check(lambda: application.store.read(lambda tx: tx.outbox.backlog(ARCHIVE)), now),
            loop_check(self._meter, now),
        ]
        try:
            state = await application.backups.state()
        except StoreError as error:
            checks.append(Check(name="backups", state="unknown", required=False, facts={"code": error.code}))
        else:
            check = backups_check(
                age_ms=state.age_ms,
                code=None if state.failure is None else state.failure.code,
                is_on=bool(state.interval_ms),
                is_overdue=state.is_overdue,
            )
            checks.append(check)
        checks.append(log_check(log_failure()))
        if self.is_stopping:
            checks.append(Check(name="stopping", state="failed"))
        if self.chats is not None:
            checks.append(self.chats.check())
        return Readiness(checks=tuple(checks))

    async def health(self) -> ServerHealth:
        """Return the readiness of the server and the state of the gateway."""
        gateway: dict[str, Json] = {"state": "off"} if self.chats is None else await self.chats.health()
        return {**(await self.ready()).as_dict(), "gateway": gateway}

    async def doctor(self, *, full: bool = False) -> ChecksView:
        """Check the whole installation: store, archive, backups, runs, agents, channels and machine.

        The checks read the whole store, which may take minutes. If `full` is True, every record is compared
        with the archive.
        """
        results = await Doctor(self._application, self.chats, full=full).findings()
        return {
            "ok": all(result.state != "failed" for result in results),
            "checks": [result.as_dict() for result in results],
        }

    async def repair(self, *, full: bool, dry_run: bool) -> RepairsView:
        """Make all repairs that lose no data, or only list these repairs in a dry run."""
        doctor = Doctor(self._application, self.chats, full=full)
        await doctor.findings()
        done = await perform_repairs(doctor.repairs, dry_run=dry_run)
        return {**await self.doctor(full=full), "dry_run": dry_run, "repairs": done}

    async def support_bundle(self) -> Mapping[str, str]:
        """Return the files of a support bundle, as texts keyed by file name.

        The files of a support bundle contain no messages, names, paths or tokens.
        """
        application = self._application
        results = await Doctor(application, self.chats).findings()
        await self.refresh_metrics()
        kept_runners = await application.store.read(declared_runners)
        return {
            **await asyncio.to_thread(common_documents, application.settings),
            **outline_documents(await application.store.outline()),
            "doctor.json": as_json(told_findings(results)),
            "runners.json": as_json(told_runners([runner.runner for runner in kept_runners])),
            "metrics.txt": generate_latest(application.metrics.registry).decode(),
        }

    async def back_up(self, target: Path | None) -> BackupView:
        """Write a complete and verified copy of the database to `target`, or to the backup folder.

        Raises:
            InvalidPath: The target exists or cannot be written.
            StoreError: The copy failed. No partial file remains.
        """
        application = self._application
        if application.settings.database_url:
            raise no_backup()
        if target is None:
            made = await application.backups.make(f"postroom-{stamp(application.clock.now())}")
            return {"path": str(made.path), "bytes": made.size}
        chosen = target
        if chosen.exists():
            raise InvalidPath(
                f"{chosen} exists already", value=str(chosen), remedy="choose another file name"
            )
        try:
            chosen.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidPath(
                f"cannot create {chosen.parent}: {error.strerror}",
                value=str(chosen),
                remedy="choose another folder",
            ) from error
        await application.store.back_up(chosen)
        return {"path": str(chosen), "bytes": chosen.stat().st_size}

    async def prune(self, *, dry_run: bool) -> PruneView:
        """Delete the messages that no retention rule keeps, or only count the messages in a dry run.

        Raises:
            UnknownProject: A `[[keep]]` rule with `hold` names an unknown project. Nothing was deleted.
        """
        retention = self._application.retention
        previews = await retention.preview()
        if not dry_run:
            await retention.messages()
        return {
            "dry_run": dry_run,
            "rules": retention.rules,
            "projects": [
                {"project": preview.project, "counts": dict(preview.counts)} for preview in previews
            ],
        }

    async def issue_agent_token(self, project: str, agent: str) -> str:
        """Issue a new token for an agent, and revoke the agent's old token.

        The server stores only a hash of the new token.

        Raises:
            UnknownProject, UnknownAgent: There is no such project or agent.
        """
        token = new_agent_token()
        await self._application.mail.issue_token(project, agent, token_hash(token))
        return token

    async def revoke_agent_token(self, project: str, agent: str) -> bool:
        """Revoke the token of an agent, and return True.

        Raises:
            UnknownProject, UnknownAgent: There is no such project or agent.
        """
        await self._application.mail.issue_token(project, agent, None)
        return True

    async def rebuild_archive(self, project: str | None) -> Mapping[str, int]:
        """Write the records of one or all projects to the archive, without deleting existing records.

        Raises:
            UnknownProject: There is no such project.
            ArchiveUnavailable: Git failed.
        """
        if project is not None:
            chosen = [await self._application.store.read(lambda tx: find_project(tx, project))]
        else:
            chosen = await self._application.store.read(all_projects)
        return {project.slug: await self._application.archive.rebuild(project) for project in chosen}

    async def refresh_metrics(self) -> None:
        """Update the values of all gauge metrics."""
        counts = await self._application.store.read(lambda tx: tx.counts())
        application, now = self._application, self._application.clock.now()
        unread, with_runner = counts.pop("unread"), counts.pop("runners")
        backlogs = await application.backlogs()
        application.metrics.show_state(backlogs, counts, (self._meter.worst(now) or 0) / 1000)
        dispatches, waiting = await application.runs.counts(), await application.runs.longest_waiting(now)
        application.runs.mailbox.metrics.show_depths(dispatches)
        application.metrics.show_server(
            ServerState(
                dead_letters=await application.runs.untold_dead_letters(),
                oldest_waiting_ms=0 if waiting is None else now - waiting.due_since,
                with_runner=with_runner,
                executing=application.executors.executing,
                unread=unread,
                backup_age_ms=(await application.backups.state()).age_ms,
                descriptors=await asyncio.to_thread(open_descriptors),
                most_descriptors=most_descriptors(),
            )
        )
        if self.chats is not None:
            await self.chats.refresh_metrics()
