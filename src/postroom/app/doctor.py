"""The checks of `postroom doctor`: store, archive, backups, runs, agents, channels and machine."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroom.app.archive_check import ArchiveCheck
from postroom.app.backups import told_of_backups
from postroom.app.check_results import (
    CheckResult,
    backed_up_elsewhere,
    broken,
    most_descriptors,
    open_descriptors,
    span,
    told_of_descriptors,
    told_of_disk,
    told_of_messages,
)
from postroom.app.logs import log_failure
from postroom.app.privacy import told_of_folders
from postroom.app.repairs import Repair, plan_index_repair, plan_record_repair
from postroom.app.store_identity import Kept, refuse_wrong
from postroom.contracts import progress
from postroom.contracts.clock import iso, milliseconds
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import (
    InvalidRunner,
    MissingExtra,
    PostroomError,
    RunFailure,
    StoreError,
    WrongStore,
)
from postroom.contracts.mail import Project
from postroom.contracts.messages import Json
from postroom.contracts.push import is_permitted
from postroom.contracts.runners import read_runner
from postroom.dispatch.inspection import WhyNot
from postroom.gateway.platforms.base import AdapterState
from postroom.http_api.readiness import CheckState
from postroom.mail.outgoing import ARCHIVE
from postroom.services.runners import DeclaredRunner, declared_runners
from postroom.services.runs import retried
from postroom.stores.mail.access import MailReads
from postroom.stores.mail.store import MailStore
from postroom.stores.postgres.errors import BACKUP_OF_POSTGRES
from postroom.stores.sqlite import sqlite_release
from postroom.stores.store import Transaction

if TYPE_CHECKING:
    from postroom.app.gateway_service import GatewayService
    from postroom.app.wiring import Application

PAGE: Final = 500
_SHOWN_RECORDS: Final = 5
MAX_UNTAKEN: Final = timedelta(minutes=5)
"""The maximum time that a run waits in the queue if nothing blocks it."""
_MAX_UNEXECUTED: Final = timedelta(seconds=10)
"""The time after which this server must have released the claim on a run that it does not execute."""

Look = Callable[[], Awaitable[list[CheckResult]]]


class Doctor:
    """Checks every part of a server, without repairing anything.

    The only program that the checks start is Git.
    """

    def __init__(
        self, application: "Application", chats: "GatewayService | None", *, full: bool = False
    ) -> None:
        self._full = full
        self._application = application
        self._chats = chats
        self.repairs: list[Repair] = []
        """The repairs of the faults that were found."""

    async def findings(self) -> list[CheckResult]:
        """Return the results of all checks; a check that raises an error counts as a failed check."""
        looks: dict[str, Look] = {
            "store writes": self._store_writes,
            "store reads": self._store_reads,
            "records": self._records,
            "messages": self._messages,
            "database": self._release,
            "git": self._git,
            **({"archive": self._archives} if self._application.settings.archive_enabled else {}),
            "backups": self._backups,
            "runs": self._runs,
            "outbox": self._outbox,
            "runner": self._runners,
            "push": self._push,
            "log": self._log,
            "folders": self._folders,
            "disk": self._disk,
            "descriptors": self._descriptors,
            **({} if self._chats is None else {"channel": self._channels}),
        }
        reported, seen = set[str](), list[CheckResult]()
        for done, (part, look) in enumerate(looks.items()):
            progress.tell(f"checking {part}: parts", done, len(looks))
            seen += await _seen(part, look, reported)
        return seen

    async def _store_writes(self) -> list[CheckResult]:
        await self._application.store.probe()
        return [CheckResult(part="store writes", state="ok", detail="a test row was written and read back")]

    async def _store_reads(self) -> list[CheckResult]:
        store = self._application.store
        is_file = not self._application.settings.database_url
        if faults := await store.check():
            if indexes := await store.indexes_that_lack_rows():
                self.repairs.append(plan_index_repair(store, indexes))
            return [
                CheckResult(
                    part="store reads",
                    state="failed",
                    detail="; ".join(faults[:5]),
                    remedy="stop the server and run `postroom restore`" if is_file else BACKUP_OF_POSTGRES,
                    facts={"faults": len(faults)},
                )
            ]
        return [CheckResult(part="store reads", state="ok", detail="every table and index is readable")]

    async def _records(self) -> list[CheckResult]:
        store = self._application.store.store
        rows = await store.unreadable(PAGE)
        if not rows:
            return [CheckResult(part="records", state="ok", detail="this release can read every record")]
        shown = "; ".join(f"{row.kind} {row.id}: {row.reason}" for row in rows[:_SHOWN_RECORDS])
        self.repairs.append(plan_record_repair(store, len(rows)))
        return [
            CheckResult(
                part="records",
                state="failed",
                detail=f"this release cannot read {len(rows)} records and skips them: {shown}",
                remedy=(
                    "run the newest release that used this database, then `postroom doctor --repair`; "
                    "restore a damaged record from the last backup"
                ),
                facts={"records": len(rows)},
            )
        ]

    async def _messages(self) -> list[CheckResult]:
        return [told_of_messages(await damaged_messages(self._application.store))]

    async def _log(self) -> list[CheckResult]:
        failure = log_failure()
        if failure is None:
            return [CheckResult(part="log", state="ok", detail="the last log line was written")]
        return [
            CheckResult(
                part="log",
                state="failed",
                detail=f"the last log line was not written: {failure.strerror}",
                remedy="free space on the disk to which the server's standard error goes",
            )
        ]

    async def _archives(self) -> list[CheckResult]:
        application = self._application

        def find_writer(tx: Transaction) -> str:
            leases = (
                lease for lease in tx.leases.listed() if lease.name == ARCHIVE and lease.until > tx.now()
            )
            return next((lease.holder for lease in leases), "")

        if not application.archive.serves("") and (writer := await application.store.store.read(find_writer)):
            return [CheckResult(part="archive", state="ok", detail=f"the server {writer} writes the archive")]
        identity = await asyncio.to_thread(
            Kept.of, application.settings
        )  # read the marks first, so that the store can only be newer
        refuse_wrong(await application.store.identity(identity.projects), identity, application.settings)
        check = ArchiveCheck(application.store, application.archive, application.clock, full=self._full)
        try:
            return [await check.of(project) for project in await application.store.read(all_projects)]
        finally:
            self.repairs += check.repairs

    async def _release(self) -> list[CheckResult]:
        store = self._application.store
        return [_release(store.release, checks_pages=store.checks_pages)]

    async def _git(self) -> list[CheckResult]:
        return [await asyncio.to_thread(_git_found)]

    async def _backups(self) -> list[CheckResult]:
        if self._application.settings.database_url:
            return [backed_up_elsewhere()]
        return [told_of_backups(await self._application.backups.check_backups(full=self._full))]

    async def _runs(self) -> list[CheckResult]:
        counts = await self._application.runs.counts()
        text = ", ".join(f"{counts.get(status, 0)} {status.label}" for status in RunDispatchStatus)
        state: CheckState = "ok"
        # Write a note about the run that has waited longest, and a remedy if nothing blocks it.
        runs, now = self._application.runs, self._application.clock.now()
        longest = await runs.longest_waiting(now)
        if longest is None:
            longest_waiting = "; no run is due and waiting", ""
        else:
            why = await runs.mailbox.why_not(longest.dispatch_id)
            waited = now - longest.due_since
            detail = f"; the longest waiting run is {longest.run_id}, for {span(waited)}: {why.text}"
            if longest.attempt_count or longest.interruption_count:
                detail += (
                    f" (failed attempts: {longest.attempt_count}, interruptions because its server ended "
                    f"or the run lost its lease: {longest.interruption_count})"
                )
            if not runs.mailbox.lifecycle_is_running():
                longest_waiting = (
                    detail,
                    "no worker claims runs: read in the log why it ended, and start the server again",
                )
            else:
                is_stuck = why.why is WhyNot.ABOUT_TO_START and waited > milliseconds(MAX_UNTAKEN)
                longest_waiting = (
                    detail,
                    "no limit delays this run: read the log, and start the server again" if is_stuck else "",
                )
        waits, remedy = longest_waiting
        if remedy:
            state = "failed"
        # Count the runs that this server claimed more than 10 s ago, and does not execute.
        before = self._application.clock.now() - milliseconds(_MAX_UNEXECUTED)
        rows = await self._application.runs.mailbox.unexecuted_claims()
        idle_claims = [row.run_id for row in rows if row.claimed_at is not None and row.claimed_at < before]
        if left := idle_claims:
            text += f"; claimed by this server but not executed: {', '.join(left[:20])}"
            state, remedy = "failed", "search the log for `claims.not_looked_at`, and start the server again"
        dead = counts.get(RunDispatchStatus.DEAD_LETTER, 0)
        untold = await self._application.runs.untold_dead_letters()
        if dead > untold:
            text += f", of which {dead - untold} belong to chats, where the reason was shown"
        if untold:
            state, remedy = "failed", f"list the {dead} dead letters and their reasons: `postroom runs dead`"
        facts = {status.label: counts.get(status, 0) for status in RunDispatchStatus}
        again = await runs.stores.store.read(retried)
        return [
            CheckResult(part="runs", state=state, detail=text + waits, remedy=remedy, facts=facts),
            *([_retried(again)] if again else ()),
        ]

    async def _outbox(self) -> list[CheckResult]:
        backlogs = await self._application.backlogs()
        detail = "; ".join(
            f"{kind}: {backlog.waiting} waiting, {backlog.dead} dead letters"
            for kind, backlog in sorted(backlogs.items())
        )
        is_dead = any(backlog.dead for backlog in backlogs.values())
        remedy = "list the undelivered messages and their reasons: `postroom gateway dead`" if is_dead else ""
        facts = {kind: backlog.dead for kind, backlog in backlogs.items()}
        state: CheckState = "failed" if is_dead else "ok"
        return [CheckResult(part="outbox", state=state, detail=detail, remedy=remedy, facts=facts)]

    async def _runners(self) -> list[CheckResult]:
        runners = await self._application.store.read(declared_runners)
        if not runners:
            return [CheckResult(part="runner", state="ok", detail="no agent has a runner")]

        def check(declared: DeclaredRunner) -> CheckResult:
            name = f"{declared.agent.name}@{declared.project.slug}"
            try:
                result = self._application.executors.looked_at(read_runner(declared.runner))
            except (RunFailure, InvalidRunner, MissingExtra) as error:
                return broken("runner", error, about=name)
            return CheckResult(part="runner", about=name, state="ok", detail=result)

        return await asyncio.to_thread(lambda: [check(declared) for declared in runners])

    async def _push(self) -> list[CheckResult]:
        subscriptions = await self._application.store.store.read(lambda tx: tx.push.subscriptions())
        permitted = self._application.settings.push_services
        barred = [
            subscription
            for subscription in subscriptions
            if not is_permitted(subscription.endpoint, permitted)
        ]
        refused = [
            subscription
            for subscription in subscriptions
            if subscription.error and subscription not in barred
        ]
        detail = (
            f"browsers that get notifications: {len(subscriptions)}"
            if subscriptions
            else "no browser gets notifications"
        )
        remedy = ""
        if refused:
            detail += (
                f"; browsers that did not get the last notification: {len(refused)}, {refused[-1].error}"
            )
            remedy = "check that this machine can reach the push service, and check the setting push_contact"
        if barred:
            detail += f"; browsers whose push service is not in push_services: {len(barred)}"
            remedy = (
                "add the push services to the setting push_services, or turn notifications off and on again"
            )
        state: CheckState = "failed" if remedy else "ok"
        facts = {"subscriptions": len(subscriptions), "refused": len(refused), "barred": len(barred)}
        return [CheckResult(part="push", state=state, detail=detail, remedy=remedy, facts=facts)]

    async def _channels(self) -> list[CheckResult]:
        if self._application.gateway is None:
            return []
        chats, now = self._application.gateway, self._application.clock.now()
        results = [_channel(name, liveness, now) for name, liveness in chats.gateway.liveness().items()]
        for what, remedy in await chats.missing():
            results.append(
                CheckResult(part="channel", about="rules", state="failed", detail=what, remedy=remedy)
            )
        return results

    async def _folders(self) -> list[CheckResult]:
        return [await asyncio.to_thread(told_of_folders, self._application.settings)]

    async def _disk(self) -> list[CheckResult]:
        return [await asyncio.to_thread(told_of_disk, self._application.settings.growing)]

    async def _descriptors(self) -> list[CheckResult]:
        used, most = await asyncio.to_thread(open_descriptors), most_descriptors()
        return [told_of_descriptors(used, most)]


async def _seen(part: str, look: Look, told: set[str]) -> list[CheckResult]:
    try:
        return await look()
    except StoreError as error:
        is_known = error.message in told
        told.add(error.message)
        is_failure = part.startswith("store") or isinstance(error, WrongStore)
        why = "the store cannot be read, as reported above" if is_known else error.message
        if is_failure and not is_known:
            return [broken(part, error)]
        return [
            CheckResult(
                part=part,
                state="failed" if is_failure else "unknown",
                detail=f"not checked: {why}",
                remedy="" if is_known else error.remedy,
                facts={"code": error.code},
            )
        ]
    except PostroomError as error:
        return [broken(part, error)]


async def damaged_messages(store: MailStore) -> list[int]:
    """Return the ids of the messages whose texts do not match the stored checksums."""
    damaged, after, count = list[int](), 0, 0
    while True:

        def look(tx: MailReads, after: int = after) -> tuple[list[int], int | None]:
            return tx.damaged_messages(after=after, limit=PAGE)

        numbers, last = await store.read(look)
        damaged += numbers
        if last is None:
            return damaged
        after, count = last, count + 1
        progress.tell("verifying the checksums of messages: messages", count * PAGE)


def all_projects(tx: MailReads) -> list[Project]:
    """Return all projects in the database."""
    projects: list[Project] = []
    while page := tx.projects(limit=PAGE, after=projects[-1].id if projects else 0):
        projects += page
    return projects


def _release(told: str, *, checks_pages: bool) -> CheckResult:
    if not told.startswith("SQLite "):
        if checks_pages:
            return CheckResult(part="database", state="ok", detail=f"{told}, with page checksums")
        return CheckResult(
            part="database",
            state="unknown",
            detail=f"{told}, without page checksums: damaged pages may go unnoticed",
            remedy="ask the administrator of the PostgreSQL server to enable data_checksums (pg_checksums)",
        )
    release, is_safe = sqlite_release()
    if is_safe:
        return CheckResult(part="sqlite", state="ok", detail=f"SQLite {release}")
    return CheckResult(
        part="sqlite",
        state="ok",
        detail=(
            f"SQLite {release} has the WAL-reset defect, which cannot damage this database, because only "
            "the writer checkpoints"
        ),
        remedy="use SQLite 3.51.3 or newer if your system offers it",
    )


def _git_found() -> CheckResult:
    if shutil.which("git"):
        return CheckResult(part="git", state="ok", detail="Git is installed")
    detail = "Git is not installed; mail works, but the archive is not written"
    return CheckResult(part="git", state="failed", detail=detail, remedy="install Git")


def _retried(found: Mapping[str, Json]) -> CheckResult:
    when = f"is at {found['until']}" if found["until"] else "is active"
    return CheckResult(
        part="retries",
        state="failed",
        detail=f"runs that failed and are retried: {found['runs']}; the newest error is of {found['agent']}, "
        f"whose next attempt {when}: {found['error']}",
        remedy=f"correct the cause, then retry at once: `postroom runs hasten {found['run_id']}`",
        facts={"runs": found["runs"]},
    )


def _channel(name: str, told: dict[str, object], now: int) -> CheckResult:
    inbound, since = told["inbound_at"], told["since"]
    state = f"{told['state']} since {iso(since)}" if isinstance(since, int) else str(told["state"])
    last = "no message has been received yet"
    if isinstance(inbound, int):
        last = f"last contact {span(now - inbound)} ago ({iso(inbound)})"
    why = f", {told['error_code']}: {told['error']}" if told["error_code"] else ""
    detail = f"{state}{why}; {last}"
    facts = {"platform": name, "is": told["state"], "code": told["error_code"]}
    if told["state"] in (AdapterState.CONNECTED, AdapterState.ELSEWHERE):
        return CheckResult(part="channel", about=name, state="ok", detail=detail, facts=facts)
    is_on_its_way = told["state"] in (AdapterState.CONNECTING, AdapterState.RECONNECTING)
    remedy = (
        "check the settings of this channel with `postroom gateway config check`, and read the "
        "failed attempts in the log"
    )
    if told["state"] == AdapterState.DEGRADED:
        remedy = (
            "`postroom gateway dead` lists the updates that could not be processed; `postroom "
            "gateway reconnect` clears the warning"
        )
    return CheckResult(
        part="channel",
        about=name,
        state="unknown" if is_on_its_way else "failed",
        detail=detail,
        facts=facts,
        remedy=remedy,
    )
