"""What runs may use up, and what they have: counted where runs are kept, as each begins and ends.

A budget may have a window: what was used up in it counts until it ends, and the next one begins with nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import cache, lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from postroom.contracts.errors import ConfigError
from postroom.contracts.limits import chosen, refuse_no_number
from postroom.contracts.records import Record

BUDGET_TOOL: Final = "budget"
"""What asks whether runs may go on where their budget is used up: the name of the tool in such a question."""
_HOUR: Final = timedelta(hours=1)
_LONGEST_MONTH: Final = timedelta(days=31)
_MEASURES: Final = ("runs", "wall_ms", "tokens", "cost_micros")


class BudgetScope(StrEnum):
    """Which runs a budget counts together."""

    THREAD = "thread"
    TENANT = "tenant"
    KEY = "key"
    """Those with the same `limit_key`."""
    AGENT = "agent"
    ALL = "all"


class BudgetWindow(StrEnum):
    """For how long a budget lasts, by the calendar of its zone."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class Spending(Record, frozen=True, kw_only=True):
    """What the runs of a scope used up; `cost_micros` in millionths of a US dollar. Negative: a grant."""

    scope: str
    runs: int = 0
    wall_ms: int = 0
    tokens: int = 0
    cost_micros: int = 0
    until: int | None = None
    """When the window of the scope ends; None: it has none."""
    asked_by: str = ""
    """The run that asks, for all of the scope, whether they may use as much again; as it is stored."""
    is_refused: bool = False
    """Whether a person has said no to that; as it is stored."""

    def plus(self, more: "Spending") -> "Spending":
        """Return what the scope has used up with `more`."""
        return Spending(
            scope=self.scope,
            until=self.until,
            asked_by=self.asked_by,
            is_refused=self.is_refused,
            runs=self.runs + more.runs,
            wall_ms=self.wall_ms + more.wall_ms,
            tokens=self.tokens + more.tokens,
            cost_micros=self.cost_micros + more.cost_micros,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much the runs of each thread, tenant, key, agent, or of all together may use up; None is no limit.

    It is looked at when a run is about to start: one that is at work is never cut off by it. Runs count when
    they start, everything else when they end, in the window of that instant. `zone` names the time zone by
    which hours, days and months begin. A run without a tenant, or without a key, is not counted by such a
    budget. Every worker of a database is to have the same budgets.

    Raises:
        ConfigError: it limits nothing, a limit is negative, or the zone is not known.
    """

    per: BudgetScope
    window: BudgetWindow | None = None
    zone: str = "UTC"
    runs: int | None = None
    wall_ms: int | None = None
    tokens: int | None = None
    cost_micros: int | None = None

    def __post_init__(self) -> None:
        """Refuse what limits nothing; a kind may be given by its name."""
        object.__setattr__(self, "per", chosen(BudgetScope, self.per, "`per` of a budget"))
        if self.window is not None:
            object.__setattr__(self, "window", chosen(BudgetWindow, self.window, "`window` of a budget"))
        limits = self.limits
        if not limits:
            raise ConfigError(
                "a budget needs at least one limit", value=str(self.per), remedy=f"set {_listed()}"
            )
        for name, limit in limits.items():
            refuse_no_number(f"`{name}` of a budget", limit, least=0)
        try:
            _zone(self.zone)
        except (KeyError, OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the time zone of a budget is unknown: {self.zone!r}",
                value=str(self.zone),
                remedy='write a time zone such as "Europe/Berlin" or "UTC"',
            ) from error

    @property
    def limits(self) -> dict[str, int]:
        """What is limited, and to how much."""
        found = {name: getattr(self, name) for name in _MEASURES}
        return {name: limit for name, limit in found.items() if limit is not None}

    def account(self, ids: Mapping[BudgetScope, str], now: int) -> Spending | None:
        """Return the scope that counts a run with these ids now, with nothing spent; None: none does."""
        if not ids[self.per]:
            return None
        scope = f"{self.per}:{ids[self.per]}"
        if self.window is None:
            return Spending(scope=scope)
        begins, until = window_of(self.window, self.zone, now)
        return Spending(scope=f"{scope}/{self.window}/{begins}", until=until)

    def spent_up(self, spent: Spending) -> str | None:
        """Return which limit is reached: `runs`, `wall_ms`, `tokens` or `cost_micros`; None when none is."""
        reached = (name for name, limit in self.limits.items() if getattr(spent, name) >= limit)
        return next(reached, None)


def window_of(window: BudgetWindow, zone: str, now: int) -> tuple[str, int]:
    """Return the name of the window that holds an instant, and the instant at which the window ends."""
    return _window_of(window, zone, now // 60_000)


@lru_cache(maxsize=64)
def _window_of(window: BudgetWindow, zone: str, minute: int) -> tuple[str, int]:
    """Return the same for a minute since the epoch: windows begin and end with minutes."""
    local = datetime.fromtimestamp(minute * 60, _zone(zone))
    if window is BudgetWindow.HOUR:
        begins = local.replace(minute=0, second=0)
        ends, name = begins.astimezone(UTC) + _HOUR, f"{begins:%Y-%m-%dT%H:%M}"
    else:
        first = local.date() if window is BudgetWindow.DAY else local.date().replace(day=1)
        following = first + timedelta(days=1)
        if window is BudgetWindow.MONTH:
            following = (first + _LONGEST_MONTH).replace(day=1)
        begins, ends = _midnight(first, zone), _midnight(following, zone)
        name = f"{first:%Y-%m-%d}" if window is BudgetWindow.DAY else f"{first:%Y-%m}"
    if begins.utcoffset():  # the same hour comes twice when clocks are put back
        name += begins.isoformat()[-len("+00:00") :]
    return name, int(ends.timestamp()) * 1_000


def same_limits(budgets: tuple[Budget, ...]) -> Iterator[str]:
    """Return what two of these budgets limit both, for the same runs and the same time."""
    seen = set[tuple[str, ...]]()
    for one in budgets:
        for name in one.limits:
            limited = (name, one.per.value, one.window or "", one.zone if one.window else "")
            if limited in seen:
                yield name
            seen.add(limited)


def _midnight(day: date, zone: str) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=_zone(zone))


@cache
def _zone(name: str) -> tzinfo:
    """Return a time zone; it is kept, for to read it blocks."""
    return UTC if name == "UTC" else ZoneInfo(name)


def _listed() -> str:
    return f"{', '.join(_MEASURES[:-1])} or {_MEASURES[-1]}"
