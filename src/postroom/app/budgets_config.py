"""The budgets of the configuration file: `[[budgets]]`, what a conversation, an agent, or all may use up."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from postroom.app.config import duration_of, tables_of
from postroom.contracts.budgets import Budget, BudgetScope, BudgetWindow, same_limits
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import ConfigError

TABLE: Final = "budgets"
_PER: Final = {
    "conversation": BudgetScope.THREAD,
    "agent": BudgetScope.AGENT,
    "all": BudgetScope.ALL,
}
_WINDOWS: Final = {one.value: one for one in BudgetWindow}
_LIMITS: Final = ("runs", "work", "tokens", "cost")
_NAMES: Final = {"wall_ms": "work", "cost_micros": "cost"}
_MOST: Final = 10**15
_MICROS: Final = 1_000_000


def load_budgets(environment: Mapping[str, str]) -> tuple[Budget, ...]:
    """Return the budgets that the configuration file sets; none without a file.

    Raises:
        ConfigError: one of them cannot be what it says.
    """
    file, told = tables_of(environment, TABLE)
    found = tuple(_budget(file, number, one) for number, one in enumerate(told, start=1))
    for name in same_limits(found):
        raise ConfigError(
            f"{file} [[{TABLE}]]: two set {_NAMES.get(name, name)} for the same runs and the same time",
            remedy="leave one of them out",
        )
    return found


def _budget(file: Path, number: int, told: Mapping[str, Any]) -> Budget:
    try:
        return _read(told)
    except ConfigError as error:
        raise ConfigError(
            f"{file} [[{TABLE}]] number {number}: {error.message}", value=error.value, remedy=error.remedy
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{file} [[{TABLE}]] number {number}: {error}",
            remedy='write per = "conversation", "agent" or "all", and runs, work = "8h", tokens or cost',
        ) from error


def _read(told: Mapping[str, Any]) -> Budget:
    if unknown := sorted(told.keys() - {"per", "window", "zone", *_LIMITS}):
        raise ValueError(f"{unknown[0]} is not known")
    per = _PER.get(told["per"]) if isinstance(told.get("per"), str) else None
    if per is None:
        raise ValueError("per says neither conversation, agent nor all")
    if not any(name in told for name in _LIMITS):
        raise ValueError("it has no limit")
    window = told.get("window")
    if window is not None and not (isinstance(window, str) and window in _WINDOWS):
        raise ValueError("window says neither hour, day nor month")
    zone = told.get("zone")
    if zone is not None and (window is None or not isinstance(zone, str)):
        raise ValueError("zone is the name of a time zone, beside a window")
    return Budget(
        per=per,
        window=None if window is None else _WINDOWS[window],
        zone=zone or "UTC",
        runs=_count(told, "runs"),
        wall_ms=None if "work" not in told else milliseconds(_work(told["work"])),
        tokens=_count(told, "tokens"),
        cost_micros=None if "cost" not in told else _micros(told["cost"]),
    )


def _count(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 < value <= _MOST):
        raise ValueError(f"{name} is no number above 0")
    return value


def _work(value: object) -> timedelta:
    if not isinstance(value, str):
        raise ValueError("work is no text such as 8h")  # noqa: TRY004 - told like the other faults
    return duration_of(value)


def _micros(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST / _MICROS:
        raise ValueError("cost is no number above 0")
    return round(value * _MICROS)
