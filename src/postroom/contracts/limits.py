"""Limits on concurrent runs and on starts in a period, for all workers of a database, and budgets for runs.

The store of runs counts the spending of a budget at the start and the end of each run. A budget may have a
time window. Spending counts until the window ends, and the next window starts at zero.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import cache, lru_cache
from typing import Final, TypeVar
from zoneinfo import ZoneInfo

from postroom.contracts.clock import Duration, given_duration, milliseconds
from postroom.contracts.errors import ConfigError, InvalidArgument
from postroom.contracts.records import Record

E = TypeVar("E", bound=StrEnum)
LIMITS: Final = "limits"
"""The lock for changes that count runs before they claim one, so that two changes cannot take the same slot.
"""


def chosen(kind: type[E], given: str, what: str) -> E:
    """Return the member of an enum with a given value.

    Raises:
        ConfigError: The enum has no such member.
    """
    try:
        return kind(given)
    except ValueError as error:
        raise ConfigError(
            f"{what} must be one of {', '.join(item.value for item in kind)}", value=repr(given)[:80]
        ) from error


def refuse_no_number(what: str, given: object, *, least: int) -> None:
    """Raise an error unless a setting is an integer of at least `least`.

    Raises:
        ConfigError: The value is not an integer, or is too small.
    """
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ConfigError(f"{what} must be an integer of at least {least}", value=repr(given)[:80])


class LimitScope(StrEnum):
    """The group of runs that a limit counts together."""

    ALL = "all"
    TENANT = "tenant"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit for all runs, or for the runs of each tenant or key.

    All workers of a database must have the same limits.

    `at_once` is the maximum number of claimed runs. `starts` is the maximum number of executions, including
    retries, that start within any `period`. A limit for each tenant or key ignores runs without a tenant or
    key. A run whose caller waits for the result is counted, but starts even at the limit.

    Raises:
        ConfigError: The limit is empty, a number is less than 1, or `starts` is given without `period`.
    """

    per: LimitScope
    at_once: int | None = None
    starts: int | None = None
    period: Duration | None = None

    def __post_init__(self) -> None:
        """Validate the limit, and convert the scope's name to a `LimitScope`."""
        object.__setattr__(self, "per", chosen(LimitScope, self.per, "`per` of a limit"))
        for name in ("at_once", "starts"):
            if (number := getattr(self, name)) is not None:
                refuse_no_number(f"`{name}` of a limit", number, least=1)
        if self.period is not None:
            try:
                object.__setattr__(self, "period", given_duration(self.period, "`period` of a limit"))
            except InvalidArgument as error:
                raise ConfigError(error.message, value=error.value, remedy=error.remedy) from error
        problem = None
        if self.at_once is None and self.starts is None:
            problem = "a limit needs `at_once`, or `starts` and `period`"
        elif (self.starts is None) != (self.period is None):
            problem = "`starts` and `period` of a limit must be given together"
        elif self.period is not None and milliseconds(self.period) < 1:
            problem = "`period` of a limit must be at least 1 millisecond"
        if problem is not None:
            raise ConfigError(problem, value=str(self))

    def scope(self, tenant: str, key: str) -> str | None:
        """Return the scope in which the limit counts a run, or None if the limit does not apply."""
        name = {LimitScope.ALL: "*", LimitScope.TENANT: tenant, LimitScope.KEY: key}[self.per]
        return f"{self.per}:{name}" if name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A limit or budget that prevents a run from starting."""

    scope: str
    text: str
    until: int | None = None


BUDGET_TOOL: Final = "budget"
"""The tool name of a question that asks whether runs may continue after their budget is used up."""
_HOUR: Final = timedelta(hours=1)
_MAX_MONTH: Final = timedelta(days=31)
_MEASURES: Final = ("runs", "wall_ms", "tokens", "cost_micros")


class BudgetScope(StrEnum):
    """The group of runs that a budget counts together."""

    THREAD = "thread"
    TENANT = "tenant"
    KEY = "key"
    """Runs with the same `limit_key`."""
    AGENT = "agent"
    ALL = "all"


class BudgetWindow(StrEnum):
    """The length of a budget's time window."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class Spending(Record, frozen=True, kw_only=True):
    """The amounts that a scope has spent.

    `cost_micros` is in millionths of a US dollar. An extension of a budget is stored as a negative amount.
    """

    scope: str
    runs: int = 0
    wall_ms: int = 0
    tokens: int = 0
    cost_micros: int = 0
    until: int | None = None
    """The end of the scope's window, or None if it has no window."""
    asked_by: str = ""
    """The run that asks a person to extend the budget, on behalf of the scope. Set only in stored rows."""
    is_refused: bool = False
    """Whether a person has refused to extend the budget. Set only in stored rows."""

    def plus(self, more: "Spending") -> "Spending":
        """Return the sum of two spendings."""
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
    """Limits for the runs of each thread, tenant, key or agent, or for all runs together.

    A budget is checked before a run starts, and never stops an active run. The number of runs is counted at
    the start of a run. Time, tokens and cost are counted at the end of a run. `zone` is the time zone in
    which hours, days and months begin. A budget for each tenant or key ignores runs without a tenant or key.
    All workers of a database must have the same budgets.

    Raises:
        ConfigError: The budget limits nothing, a limit is negative, or the zone is unknown.
    """

    per: BudgetScope
    window: BudgetWindow | None = None
    zone: str = "UTC"
    runs: int | None = None
    wall_ms: int | None = None
    tokens: int | None = None
    cost_micros: int | None = None

    def __post_init__(self) -> None:
        """Validate the budget, and convert the names of a scope and a window to enum members."""
        object.__setattr__(self, "per", chosen(BudgetScope, self.per, "`per` of a budget"))
        if self.window is not None:
            object.__setattr__(self, "window", chosen(BudgetWindow, self.window, "`window` of a budget"))
        limits = self.limits
        if not limits:
            raise ConfigError(
                "a budget needs at least one limit",
                value=str(self.per),
                remedy=f"set {', '.join(_MEASURES[:-1])} or {_MEASURES[-1]}",
            )
        for name, limit in limits.items():
            refuse_no_number(f"`{name}` of a budget", limit, least=0)
        try:
            _zone(self.zone)
        except (KeyError, OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the budget's time zone is unknown: {self.zone!r}",
                value=str(self.zone),
                remedy='write a time zone such as "Europe/Berlin" or "UTC"',
            ) from error

    @property
    def limits(self) -> dict[str, int]:
        """The limits of the budget, keyed by the name of the measure."""
        by_name = {name: getattr(self, name) for name in _MEASURES}
        return {name: limit for name, limit in by_name.items() if limit is not None}

    def account(self, ids: Mapping[BudgetScope, str], now: int) -> Spending | None:
        """Return an empty account for the scope in which the budget counts a run.

        Return None if the budget does not apply to the run. `ids` contains the thread, tenant, limit key and
        agent of the run.
        """
        if not ids[self.per]:
            return None
        scope = f"{self.per}:{ids[self.per]}"
        if self.window is None:
            return Spending(scope=scope)
        begins, until = find_window(self.window, self.zone, now)
        return Spending(scope=f"{scope}/{self.window}/{begins}", until=until)

    def spent_up(self, spent: Spending) -> str | None:
        """Return the first measure that has reached the budget's limit, or None."""
        reached = (name for name, limit in self.limits.items() if getattr(spent, name) >= limit)
        return next(reached, None)


def find_window(window: BudgetWindow, zone: str, now: int) -> tuple[str, int]:
    """Return the name and the end of the budget window that contains a time."""
    return _window(window, zone, now // 60_000)


@lru_cache(maxsize=64)
def _window(window: BudgetWindow, zone: str, minute: int) -> tuple[str, int]:
    local = datetime.fromtimestamp(minute * 60, _zone(zone))
    if window is BudgetWindow.HOUR:
        begins = local.replace(minute=0, second=0)
        ends, name = begins.astimezone(UTC) + _HOUR, f"{begins:%Y-%m-%dT%H:%M}"
    else:
        first = local.date() if window is BudgetWindow.DAY else local.date().replace(day=1)
        following = first + timedelta(days=1)
        if window is BudgetWindow.MONTH:
            following = (first + _MAX_MONTH).replace(day=1)
        begins, ends = _midnight(first, zone), _midnight(following, zone)
        name = f"{first:%Y-%m-%d}" if window is BudgetWindow.DAY else f"{first:%Y-%m}"
    if begins.utcoffset():  # the same hour occurs twice when clocks are set back
        name += begins.isoformat()[-len("+00:00") :]
    return name, int(ends.timestamp()) * 1_000


def same_limits(budgets: tuple[Budget, ...]) -> Iterator[str]:
    """Yield each measure that several budgets limit for the same runs and period."""
    seen = set[tuple[str, ...]]()
    for budget in budgets:
        for name in budget.limits:
            limited = (name, budget.per.value, budget.window or "", budget.zone if budget.window else "")
            if limited in seen:
                yield name
            seen.add(limited)


def _midnight(day: date, zone: str) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=_zone(zone))


@cache
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)
