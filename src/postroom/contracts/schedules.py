"""Schedules: work that is submitted again and again, at the instants that a cron line or an interval names.

    due ─▶ one change: still due? ─▶ submitted, and the next instant written ─▶ due again, then
                         └─▶ passed over: too late, or its last run is still open

An instant that a schedule names is a *tick*. Whoever submits for it moves the schedule on in the same
transaction: a tick is submitted once, however many workers look. After the clock is set back, an interval or
a line for each hour goes on by the new clock.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroom.contracts.messages import Json

SCHEDULES: Final = "schedules"
"""The topic on which hints come that a schedule may be due earlier than was thought."""


class Missed(StrEnum):
    """What becomes of ticks that nobody was there for."""

    SKIP = "skip"
    """None is submitted; the next is in its turn."""
    ONCE = "once"
    """One submission stands for all."""
    ALL = "all"
    """Each is submitted, of many the last ones."""


class Overlap(StrEnum):
    """What becomes of a tick while what was submitted last is still open."""

    QUEUE = "queue"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One schedule as it is stored. It has a cron line, or an interval."""

    schedule_id: str
    kind: str
    """What is submitted: `run` or `mail`. Names are unique in a kind."""
    name: str
    cron: str | None
    every_ms: int | None
    zone: str
    """The time zone in which the cron line is read."""
    payload: dict[str, Json]
    """What is submitted, as its kind reads it."""
    missed: Missed
    overlap: Overlap
    jitter_ms: int
    """A tick is submitted up to so much later, each by another span."""
    created_at: int
    starts_at: int
    """From when an interval is counted."""
    tick_at: int
    """The tick that is next."""
    next_at: int | None
    """When that is submitted; None while the schedule is paused."""
    submitted: int = 0
    """How often something was submitted."""
    passed_over: int = 0
    """How often ticks were passed over: too late, or the last run was still open."""
    last_at: int | None = None
    last_id: str | None = None
    """What was submitted last: a run, or a message."""
    last_error: str | None = None
    """Why the last tick could not be submitted; None when it was."""

    @property
    def is_paused(self) -> bool:
        """Whether nothing is submitted until it is resumed."""
        return self.next_at is None

    @property
    def lock(self) -> str:
        """What a change of this schedule locks."""
        return schedule_lock(self.kind, self.name)


def schedule_lock(kind: str, name: str) -> str:
    """Return the name by which a schedule is locked."""
    return f"schedule:{kind}:{name}"
