"""The budgets of the configuration file: `[[budgets]]`, what runs of a conversation, or all, may use up."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from postroom.app.config import duration_of, tables_of
from postroom.contracts.budgets import Budget, BudgetScope
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import ConfigError

TABLE: Final = "budgets"
_PER: Final = {"conversation": BudgetScope.THREAD, "all": BudgetScope.ALL}
_LIMITS: Final = ("runs", "work", "tokens", "cost")
_MOST: Final = 10**15
_MICROS: Final = 1_000_000


def load_budgets(environment: Mapping[str, str]) -> tuple[Budget, ...]:
    """Return the budgets that the configuration file sets; none without a file.

    Raises:
        ConfigError: one of them cannot be what it says.
    """
    file, told = tables_of(environment, TABLE)
    found = tuple(_budget(file, number, one) for number, one in enumerate(told, start=1))
    if len({one.per for one in found}) < len(found):
        raise ConfigError(f"{file} [[{TABLE}]]: two are of the same", remedy="put their limits into one")
    return found


def _budget(file: Path, number: int, told: Mapping[str, Any]) -> Budget:
    try:
        return _read(told)
    except ValueError as error:
        raise ConfigError(
            f"{file} [[{TABLE}]] number {number}: {error}",
            remedy='write per = "conversation" or "all", and runs, work = "8h", tokens or cost',
        ) from error


def _read(told: Mapping[str, Any]) -> Budget:
    if unknown := sorted(told.keys() - {"per", *_LIMITS}):
        raise ValueError(f"{unknown[0]} is not known")
    per = _PER.get(told["per"]) if isinstance(told.get("per"), str) else None
    if per is None:
        raise ValueError("per says neither conversation nor all")
    if not any(name in told for name in _LIMITS):
        raise ValueError("it has no limit")
    return Budget(
        per=per,
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
