"""Limits of concurrent runs and of starts in a period, for all workers of one database."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeVar

from postroom.contracts.errors import ConfigError

E = TypeVar("E", bound=StrEnum)
LIMITS: Final = "limits"
"""Lock of each change that counts before it claims, so that no two changes use the same free slot."""


def chosen(kind: type[E], given: str, what: str) -> E:
    """Return the member of an enum by its name.

    Raises:
        ConfigError: The enum has no such member.
    """
    try:
        return kind(given)
    except ValueError as error:
        raise ConfigError(
            f"{what} must be one of {', '.join(one.value for one in kind)}", value=repr(given)[:80]
        ) from error


def refuse_no_number(what: str, given: object, *, least: int) -> None:
    """Refuse a value that is not an integer of at least `least`.

    Raises:
        ConfigError: The value is not such an integer.
    """
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ConfigError(f"{what} must be an integer of at least {least}", value=repr(given)[:80])


class LimitScope(StrEnum):
    """The runs that a limit counts together."""

    ALL = "all"
    TENANT = "tenant"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit for all runs, or for the runs of each tenant or key.

    Every worker of a database must have the same.

    `at_once` counts claimed runs. `starts` counts executions, retries included: at most that many start in
    any span of `period`. A tenant limit ignores runs without a tenant, a key limit runs without a key. A run
    that a caller waits for (`submit`) counts, and starts even if a limit is reached.

    Raises:
        ConfigError: The limit is empty, a number is less than 1, or `starts` comes without `period`.
    """

    per: LimitScope
    at_once: int | None = None
    starts: int | None = None
    period: timedelta | None = None

    def __post_init__(self) -> None:
        """Refuse an empty limit; the scope may be given by name."""
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
        """Return the scope that counts a run; None if the limit does not count it."""
        name = {LimitScope.ALL: "*", LimitScope.TENANT: tenant, LimitScope.KEY: key}[self.per]
        return f"{self.per}:{name}" if name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A limit or budget that prevents a start, with its scope and, if known, the time when it ends."""

    scope: str
    text: str
    until: int | None = None
