"""The looks of `postroom doctor` beside store and archive: backups, runs, agents, channels, the machine."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroom.app.backups import BackupState
from postroom.app.check_results import CheckResult, backed_up_elsewhere, broken, span
from postroom.app.machine import most_descriptors, open_descriptors, told_of_descriptors, told_of_disk
from postroom.app.run_service import waits_since
from postroom.app.wiring import Application
from postroom.contracts.clock import iso, milliseconds
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import InvalidRunner, RunFailure
from postroom.contracts.store import MailReads
from postroom.dispatch.inspection import WhyNot
from postroom.gateway.platforms.base import AdapterState
from postroom.http_api.operations import CheckState
from postroom.mail.waking.runners import read_runner

if TYPE_CHECKING:
    from postroom.app.gateway_service import GatewayService

PAGE: Final = 500
LONGEST_UNTAKEN: Final = timedelta(minutes=5)
"""How long a run may wait that nothing holds back."""

Look = Callable[[], Awaitable[list[CheckResult]]]


class HealthChecks:
    """Looks at the parts of one house that work in the background."""

    def __init__(self, house: Application, chats: "GatewayService | None") -> None:
        self._house = house
        self._chats = chats

    def looks(self) -> dict[str, Look]:
        """Return what can be looked at, by part."""
        looks: dict[str, Look] = {
            "backups": self._backups,
            "runs": self._runs,
            "outbox": self._outbox,
            "runner": self._runners,
            "orphans": self._orphans,
            "disk": self._disk,
            "descriptors": self._descriptors,
        }
        return looks if self._chats is None else {**looks, "channel": self._channels}

    async def _backups(self) -> list[CheckResult]:
        if self._house.settings.database_url:
            return [backed_up_elsewhere()]
        return [told_of_backups(await self._house.backups.state())]

    async def _runs(self) -> list[CheckResult]:
        """Look at the queue: what is given up needs somebody, and what nothing holds back must not wait."""
        counts = await self._house.runs.counts()
        told = ", ".join(f"{counts.get(one, 0)} {one.label}" for one in RunDispatchStatus)
        state: CheckState = "ok"
        waits, remedy = await self._longest_waiting()
        if remedy:
            state = "failed"
        if dead := counts.get(RunDispatchStatus.DEAD_LETTER, 0):
            state, remedy = "failed", f"`postroom runs dead` shows the {dead} that were given up, and why"
        facts = {one.label: counts.get(one, 0) for one in RunDispatchStatus}
        return [CheckResult(part="runs", state=state, detail=told + waits, remedy=remedy, facts=facts)]

    async def _outbox(self) -> list[CheckResult]:
        """Look at the effects outside the database: what was given up needs somebody."""
        backlogs = await self._house.backlogs()
        told = "; ".join(
            f"{kind}: {one.waiting} waiting, {one.dead} given up" for kind, one in sorted(backlogs.items())
        )
        is_dead = any(one.dead for one in backlogs.values())
        remedy = "`postroom gateway dead` shows what no chat took, and why" if is_dead else ""
        facts = {kind: one.dead for kind, one in backlogs.items()}
        state: CheckState = "failed" if is_dead else "ok"
        return [CheckResult(part="outbox", state=state, detail=told, remedy=remedy, facts=facts)]

    async def _longest_waiting(self) -> tuple[str, str]:
        """Return what is to be said of the run that waits longest, and a remedy where it should not wait."""
        runs, now = self._house.runs, self._house.clock.now()
        longest = await runs.longest_waiting(now)
        if longest is None:
            return "; none waits that is due", ""
        why = await runs.mailbox.why_not(longest.dispatch_id)
        waited = now - waits_since(longest)
        told = f"; run {longest.run_id} has waited longest, for {span(waited)}: {why.text}"
        if not runs.mailbox.lifecycle_is_running():
            return told, "nothing takes runs up: see the log for why it ended, and start the server again"
        is_stuck = why.why is WhyNot.ABOUT_TO_START and waited > milliseconds(LONGEST_UNTAKEN)
        return told, "nothing holds it back: see the log, and start the server again" if is_stuck else ""

    async def _runners(self) -> list[CheckResult]:
        """Look at each runner by what it would start; nothing is started."""
        kept = await self._house.store.read(kept_runners)
        if not kept:
            return [CheckResult(part="runner", state="ok", detail="no agent is run by the server")]
        return await asyncio.to_thread(lambda: [self._runner(name, text) for name, text in kept])

    def _runner(self, name: str, kept: str) -> CheckResult:
        try:
            told = self._house.agents.executors.looked_at(read_runner(kept))
        except (RunFailure, InvalidRunner) as error:
            return broken("runner", error, about=name)
        return CheckResult(part="runner", about=name, state="ok", detail=told)

    async def _orphans(self) -> list[CheckResult]:
        found = await self._house.agents.executors.orphans()
        if found:
            pids = ", ".join(str(pid) for pid in found[:20])
            detail = f"{len(found)} processes of runs that a former server began are still there: {pids}"
            remedy = "start the server again, which ends them, or end them yourself"
            facts = {"processes": len(found)}
            return [CheckResult(part="orphans", state="failed", detail=detail, remedy=remedy, facts=facts)]
        return [CheckResult(part="orphans", state="ok", detail="no program outlived its server")]

    async def _channels(self) -> list[CheckResult]:
        if self._house.gateway is None:
            return []
        now = self._house.clock.now()
        return [_channel(name, told, now) for name, told in self._house.gateway.gateway.liveness().items()]

    async def _disk(self) -> list[CheckResult]:
        return [await asyncio.to_thread(told_of_disk, self._house.settings.growing)]

    async def _descriptors(self) -> list[CheckResult]:
        used, most = await asyncio.to_thread(open_descriptors), most_descriptors()
        return [told_of_descriptors(used, most)]


def told_of_backups(found: BackupState) -> CheckResult:
    """Return how it stands with backups."""
    state, detail, remedy = _backups_in_words(found)
    facts = {
        "interval_ms": found.interval_ms,
        "age_ms": found.age_ms,
        "tries_failed": found.tries,
        "code": None if found.failure is None else found.failure.code,
    }
    return CheckResult(part="backups", state=state, detail=detail, remedy=remedy, facts=facts)


def _backups_in_words(found: BackupState) -> tuple[CheckState, str, str]:
    """Return the state, what it is, and what to do about it."""
    newest = "there is none"
    if found.newest is not None and found.age_ms is not None:
        newest = f"the newest, {found.newest.path.name}, is {span(found.age_ms)} old"
    if found.failure is not None:
        detail = f"the last {found.tries} tries failed: {found.failure.message}; {newest}"
        return "failed", detail, found.failure.remedy
    if found.is_overdue:
        return "failed", newest, "see the log for why none was made, or run `postroom backup`"
    if not found.interval_ms:
        remedy = "set backup_interval, or have a timer of your own run `postroom backup`"
        return "unknown", f"the timer is off; {newest}", remedy
    if found.newest is None:
        detail = f"{newest} yet; the server makes the first a minute after its start"
        return "unknown", detail, "wait, or run `postroom backup`"
    return "ok", newest, ""


def _channel(name: str, told: dict[str, object], now: int) -> CheckResult:
    inbound = told["inbound_at"]
    last = "nothing has come in yet"
    if isinstance(inbound, int):
        last = f"its receiving side last answered {span(now - inbound)} ago ({iso(inbound)})"
    why = f", {told['error_code']}: {told['error']}" if told["error_code"] else ""
    detail = f"{told['state']}{why}; {last}"
    facts = {"platform": name, "is": told["state"], "code": told["error_code"]}
    if told["state"] == AdapterState.CONNECTED:
        return CheckResult(part="channel", about=name, state="ok", detail=detail, facts=facts)
    is_on_its_way = told["state"] in (AdapterState.CONNECTING, AdapterState.RECONNECTING)
    return CheckResult(
        part="channel",
        about=name,
        state="unknown" if is_on_its_way else "failed",
        detail=detail,
        facts=facts,
        remedy="`postroom gateway config check` reads how it is set up; the log tells each try",
    )


def kept_runners(tx: MailReads) -> list[tuple[str, str]]:
    """Return every agent's runner by whose it is: `name@project`."""
    found: list[tuple[str, str]] = []
    after = 0
    while page := tx.runners(limit=PAGE, after=after):
        after = page[-1].agent_id
        agents = tx.agents_by_id([one.agent_id for one in page])
        for one in page:
            agent = agents[one.agent_id]
            home = tx.project_by_id(agent.project_id)
            found.append((f"{agent.name}@{'?' if home is None else home.slug}", one.runner))
    return found
