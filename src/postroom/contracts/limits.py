"""How many runs may execute at once, and how many may begin in a time: in all workers of one database."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeVar

from postroom.contracts.errors import ConfigError

E = TypeVar("E", bound=StrEnum)
LIMITS: Final = "limits"
"""Locked by each change that counts before it claims: two never count the same room."""


def chosen(kind: type[E], given: str, what: str) -> E:
    """Return one of the names of a kind.

    Raises:
        ConfigError: it is none of them.
    """
    try:
        return kind(given)
    except ValueError as error:
        raise ConfigError(
            f"{what} must be one of {', '.join(one.value for one in kind)}", value=repr(given)[:80]
        ) from error


def refuse_no_number(what: str, given: object, *, least: int) -> None:
    """Refuse what is no whole number from `least` up.

    Raises:
        ConfigError: as said.
    """
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ConfigError(f"{what} must be an integer of at least {least}", value=repr(given)[:80])


class LimitScope(StrEnum):
    """Which runs a limit counts together."""

    ALL = "all"
    TENANT = "tenant"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many runs of all, of each tenant or of each key; every worker of a database is to have the same.

    `at_once` counts what is claimed. `starts` counts executions, also those that are tried again: in any span
    of `period` no more begin. A run without a tenant, or without a key, is not counted by such a limit. A run
    that somebody waits for (`submit`) counts, and begins also where a limit is reached.

    Raises:
        ConfigError: it limits nothing, a number is less than 1, or `starts` comes without `period`.
    """

    per: LimitScope
    at_once: int | None = None
    starts: int | None = None
    period: timedelta | None = None

    def __post_init__(self) -> None:
        """Refuse what limits nothing; a kind may be given by its name."""
        object.__setattr__(self, "per", chosen(LimitScope, self.per, "`per` of a limit"))
        for name in ("at_once", "starts"):
            if (number := getattr(self, name)) is not None:
                refuse_no_number(f"`{name}` of a limit", number, least=1)
        if self.period is not None and not isinstance(self.period, timedelta):
            raise ConfigError("`period` of a limit must be a timedelta", value=repr(self.period)[:80])
        problem = None
        if self.at_once is None and self.starts is None:
            problem = "a limit needs `at_once`, or `starts` and `period`"
        elif (self.starts is None) != (self.period is None):
            problem = "`starts` and `period` of a limit must be given together"
        elif self.period is not None and self.period < timedelta(milliseconds=1):
            problem = "`period` of a limit must be at least 1 millisecond"
        if problem is not None:
            raise ConfigError(problem, value=str(self))

    def scope(self, tenant: str, key: str) -> str | None:
        """Return what a run is counted in; None when it is not counted."""
        name = {LimitScope.ALL: "*", LimitScope.TENANT: tenant, LimitScope.KEY: key}[self.per]
        return f"{self.per}:{name}" if name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a limit or a budget keeps from beginning, in which scope, and until when, where that is known."""

    scope: str
    text: str
    until: int | None = None
