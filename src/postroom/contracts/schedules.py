"""Schedules, which submit work repeatedly at the times of a cron expression or an interval.

    due ─▶ one change: still due? ─▶ submitted, and the next instant stored ─▶ due again at that instant
                                 └─▶ skipped: too late, or its last run is still open

Each time at which a schedule is due is a *tick*. The transaction that submits the work of a tick also
advances the schedule. Therefore each tick is submitted only once, no matter how many workers there are. After
the clock is set back, an interval or an hourly cron expression follows the new time.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.contracts.messages import Json

SCHEDULES: Final = "schedules"
"""The topic under which listeners are notified that a schedule may be due earlier than before."""


class Missed(StrEnum):
    """The policy for ticks that were missed because no worker was running."""

    SKIP = "skip"
    """Missed ticks are skipped, and the schedule continues with the next tick."""
    ONCE = "once"
    """A single submission replaces all missed ticks."""
    ALL = "all"
    """Each missed tick is submitted, but only the newest ticks, up to a maximum."""


class Overlap(StrEnum):
    """The policy for a tick while the previous submission is still open."""

    QUEUE = "queue"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A stored schedule with a cron expression or an interval."""

    schedule_id: str
    kind: str
    """The kind of work that is submitted: `run` or `mail`. Names of schedules are unique within a kind."""
    name: str
    cron: str | None
    every_ms: int | None
    zone: str
    """The time zone of the cron expression."""
    payload: dict[str, Json]
    """The work to submit, in a format that depends on the kind."""
    missed: Missed
    overlap: Overlap
    jitter_ms: int
    """Maximum random delay of a tick in milliseconds; the delay differs from tick to tick."""
    created_at: int
    starts_at: int
    """The time at which the interval starts."""
    tick_at: int
    """The next tick."""
    next_at: int | None
    """The time of the next submission, or None while the schedule is paused."""
    submitted: int = 0
    """Number of submissions."""
    passed_over: int = 0
    """Number of ticks that were skipped because they were late, or because the last run was still open."""
    last_at: int | None = None
    last_id: str | None = None
    """The id of the run or message that was submitted last."""
    last_error: str | None = None
    """The error of the last tick, or None if its work was submitted."""

    @property
    def is_paused(self) -> bool:
        """Whether the schedule is paused."""
        return self.next_at is None

    @property
    def lock(self) -> str:
        """The name of the lock on the schedule."""
        return schedule_lock(self.kind, self.name)


def schedule_lock(kind: str, name: str) -> str:
    """Return the name of the lock on a schedule."""
    return f"schedule:{kind}:{name}"
