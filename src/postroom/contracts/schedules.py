"""Schedules: work that is submitted repeatedly, at the instants of a cron line or an interval.

    due ─▶ one change: still due? ─▶ submitted, and the next instant stored ─▶ due again at that instant
                                 └─▶ skipped: too late, or its last run is still open

An instant of a schedule is a *tick*. The transaction that submits for a tick also advances the schedule, so
that a tick is submitted once, whatever the number of workers. After the clock is set back, an interval or an
hourly line continues by the new clock.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.contracts.messages import Json

SCHEDULES: Final = "schedules"
"""The topic of hints that a schedule may be due earlier than expected."""


class Missed(StrEnum):
    """The treatment of ticks that no worker was there for."""

    SKIP = "skip"
    """None is submitted; the schedule continues with the next tick."""
    ONCE = "once"
    """One submission replaces them all."""
    ALL = "all"
    """Each is submitted, up to a maximum of the newest ones."""


class Overlap(StrEnum):
    """The treatment of a tick while the previous submission is still open."""

    QUEUE = "queue"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A stored schedule, with a cron line or an interval."""

    schedule_id: str
    kind: str
    """The kind of submission: `run` or `mail`. Names are unique within a kind."""
    name: str
    cron: str | None
    every_ms: int | None
    zone: str
    """The time zone in which the cron line is read."""
    payload: dict[str, Json]
    """The submission, in the format of its kind."""
    missed: Missed
    overlap: Overlap
    jitter_ms: int
    """Maximum delay of a tick in milliseconds; each tick gets another."""
    created_at: int
    starts_at: int
    """The start of the interval."""
    tick_at: int
    """The next tick."""
    next_at: int | None
    """The time of its submission; None while the schedule is paused."""
    submitted: int = 0
    """Number of submissions."""
    passed_over: int = 0
    """Number of skipped ticks: too late, or the last run was still open."""
    last_at: int | None = None
    last_id: str | None = None
    """The last submission: a run or a message."""
    last_error: str | None = None
    """The error of the last tick; None if it was submitted."""

    @property
    def is_paused(self) -> bool:
        """Whether it is paused, so that nothing is submitted until it is resumed."""
        return self.next_at is None

    @property
    def lock(self) -> str:
        """The name of its lock."""
        return schedule_lock(self.kind, self.name)


def schedule_lock(kind: str, name: str) -> str:
    """Return the name of the lock on a schedule."""
    return f"schedule:{kind}:{name}"
