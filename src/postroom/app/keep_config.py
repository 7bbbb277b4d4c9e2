"""The rules of the configuration file on how long messages are kept: `[[keep]]`."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from postroom.app.config import tables_of
from postroom.contracts.errors import ConfigError
from postroom.contracts.retention import KeepRule

TABLE: Final = "keep"
_TEXTS: Final = ("project", "topic", "thread")
_MOST_DAYS: Final = 36_500


def load_keep_rules(environment: Mapping[str, str]) -> tuple[KeepRule, ...]:
    """Return the rules that the configuration file has, in order; none without a file.

    Raises:
        ConfigError: one of them cannot be what it says.
    """
    file, told = tables_of(environment, TABLE)
    return tuple(_rule(file, number, one) for number, one in enumerate(told, start=1))


def _rule(file: Path, number: int, told: Mapping[str, Any]) -> KeepRule:
    try:
        return _read(told)
    except ValueError as error:
        raise ConfigError(
            f"{file} [[{TABLE}]] number {number}: {error}",
            remedy="write days = 90, or hold = true; and project, topic or thread for what the rule is about",
        ) from error


def _read(told: Mapping[str, Any]) -> KeepRule:
    if unknown := sorted(told.keys() - {*_TEXTS, "days", "unread_stays", "hold"}):
        raise ValueError(f"{unknown[0]} is not known")
    for name in _TEXTS:
        if name in told and not (isinstance(told[name], str) and told[name].strip()):
            raise ValueError(f"{name} is no text")
    for name in ("unread_stays", "hold"):
        if not isinstance(told.get(name, True), bool):
            raise ValueError(f"{name} is neither true nor false")  # noqa: TRY004 - told like the other faults
    days, holds = told.get("days"), told.get("hold", False)
    if holds and (days is not None or "unread_stays" in told):
        raise ValueError("what is held is kept for ever: days and unread_stays say nothing beside it")
    if not holds and (isinstance(days, bool) or not isinstance(days, int) or not 0 < days <= _MOST_DAYS):
        raise ValueError(f"days is no number of days from 1 to {_MOST_DAYS}")
    return KeepRule(
        project=told.get("project"),
        topic=told.get("topic"),
        thread=told.get("thread"),
        keep=None if holds else timedelta(days=days or 0),
        unread_stays=told.get("unread_stays", True),
    )
