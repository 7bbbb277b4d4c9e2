"""Describes the health of the server for people, from the checks of `/readyz` and the queue."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from postroom.app.wiring import Application
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import StoreFull
from postroom.contracts.limits import BudgetScope
from postroom.contracts.work import HealthFact
from postroom.http_api.readiness import Check, Readiness
from postroom.web.wording import lasting

_MICROS: Final = 1_000_000
_ORDER: Final = ("failed", "unknown", "ok")


class ServerHealth:
    """A callable that returns facts for people about the health of the server."""

    def __init__(
        self, application: Application, ready: Callable[[], Awaitable[Readiness]], *, started_at: int
    ) -> None:
        self._application = application
        self._ready = ready
        self._started_at = started_at

    async def __call__(self) -> Sequence[HealthFact]:
        """Return facts about the health of the server, problems first.

        Raises:
            StoreError: The queue could not be read.
        """
        application, readiness = self._application, await self._ready()
        now, counts = application.clock.now(), await application.runs.counts()
        up = lasting(self._started_at, now)
        queued, taken = counts[RunDispatchStatus.QUEUED], counts[RunDispatchStatus.CLAIMED]
        slots = application.runs.slots
        facts = [
            HealthFact(name="server", state="ok", text=f"Server ready, up {up}")
            if readiness.is_ready
            else HealthFact(name="server", state="failed", text=f"Server not ready, up {up}"),
            *(
                HealthFact(name=check.name, state=check.state, text=text)
                for check in readiness.checks
                if (text := _TEXTS[check.name](check))
            ),
            HealthFact(
                name="slots", state="ok" if taken < slots else "failed", text=f"slots {taken} of {slots}"
            ),
            HealthFact(name="queue", state="ok", text=f"{queued} run{'' if queued == 1 else 's'} queued"),
        ]
        budgets = [budget for budget in application.runs.budgets if budget.per is BudgetScope.ALL]
        scopes = {
            spending.scope: budget
            for budget in budgets
            if (spending := budget.account(_ALL, now)) is not None
        }
        spent = await application.runs.stores.store.read(lambda tx: tx.runs.threads.spending(list(scopes)))
        for scope, budget in scopes.items():
            account, when = spent[scope], "" if budget.window is None else f"this {budget.window} "
            for name, limit in budget.limits.items():
                used = getattr(account, name)
                match name:
                    case "cost_micros":
                        text = f"{used / _MICROS:.2f} of {limit / _MICROS:.2f} USD"
                    case "wall_ms":
                        text = f"{lasting(0, used)} of {lasting(0, limit)} of work"
                    case _:
                        text = f"{used} of {limit} {name}"
                facts.append(
                    HealthFact(
                        name="spending", state="failed" if used >= limit else "ok", text=f"{when}{text}"
                    )
                )
        return sorted(facts, key=lambda one: _ORDER.index(one.state))


def _store(check: Check) -> str:
    if check.state == "ok":
        return f"store {check.facts['took_ms']} ms"
    if "lacking" in check.facts:
        return "the database user lacks rights: the log and `postroom doctor` list them"
    is_full = check.facts.get("code") == StoreFull.code
    return "the disk is full: nothing can be stored" if is_full else "the store does not answer"


def _archive(check: Check) -> str:
    if check.state == "unknown":
        return "archive state unknown"
    waiting = check.facts["waiting"]
    return "archive up to date" if not waiting else f"{waiting} records are not yet in the archive"


def _loop(check: Check) -> str:
    return (
        ""
        if check.state == "ok"
        else (f"the server is slow: its event loop was blocked for {check.facts['lag_ms']} ms")
    )


def _backups(check: Check) -> str:
    age = check.facts.get("age_ms")
    if check.facts.get("code"):
        return "the last backup failed"
    return "no backup yet" if not isinstance(age, int) else f"backup {lasting(0, age)} old"


def _log(check: Check) -> str:
    return "" if check.state == "ok" else "the log cannot be written"


def _channels(check: Check) -> str:
    return f"chats {check.facts['connected']} of {check.facts['of']} connected"


_TEXTS: Final = {
    "store": _store,
    "archive": _archive,
    "event_loop": _loop,
    "backups": _backups,
    "log": _log,
    "channels": _channels,
}


_ALL: Final = {**dict.fromkeys(BudgetScope, ""), BudgetScope.ALL: "*"}
