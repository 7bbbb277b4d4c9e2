"""Schedules: work that is submitted repeatedly, at the times of a cron expression or an interval.

    due ─▶ one change: still due? ─▶ submitted, and the next instant stored ─▶ due again at that instant
                                 └─▶ skipped: too late, or its last run is still open

Each time at which a schedule is due is a *tick*. The transaction that submits work for a tick also advances
the schedule. Therefore each tick is submitted only once, regardless of the number of workers. After the clock
is set back, an interval or an hourly cron expression continues according to the new time.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.contracts.messages import Json

SCHEDULES: Final = "schedules"
"""The topic of notifications that a schedule may be due earlier than expected."""


class Missed(StrEnum):
    """The treatment of ticks that were missed because no worker was running."""

    SKIP = "skip"
    """They are skipped, and the schedule continues with the next tick."""
    ONCE = "once"
    """They are replaced by a single submission."""
    ALL = "all"
    """Each of them is submitted, but only the newest up to a maximum."""


class Overlap(StrEnum):
    """The treatment of a tick while the previous submission is still open."""

    QUEUE = "queue"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A stored schedule, with a cron expression or an interval."""

    schedule_id: str
    kind: str
    """The kind of submission: `run` or `mail`. Names are unique within a kind."""
    name: str
    cron: str | None
    every_ms: int | None
    zone: str
    """The time zone of the cron expression."""
    payload: dict[str, Json]
    """The submission, in the format that its kind defines."""
    missed: Missed
    overlap: Overlap
    jitter_ms: int
    """Maximum random delay of a tick in milliseconds, chosen again for each tick."""
    created_at: int
    starts_at: int
    """The time from which the interval is counted."""
    tick_at: int
    """The next tick."""
    next_at: int | None
    """The time of the next submission; None while the schedule is paused."""
    submitted: int = 0
    """Number of submissions."""
    passed_over: int = 0
    """Number of ticks that were skipped because they were too late, or because the last run was still open.
    """
    last_at: int | None = None
    last_id: str | None = None
    """The id of the last submitted run or message."""
    last_error: str | None = None
    """The error at the last tick; None if its work was submitted."""

    @property
    def is_paused(self) -> bool:
        """Whether the schedule is paused, so that nothing is submitted until it is resumed."""
        return self.next_at is None

    @property
    def lock(self) -> str:
        """The name of its lock."""
        return schedule_lock(self.kind, self.name)


def schedule_lock(kind: str, name: str) -> str:
    """Return the name of the lock on a schedule."""
    return f"schedule:{kind}:{name}"
