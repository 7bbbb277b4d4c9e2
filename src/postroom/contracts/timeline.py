"""Data for the timeline of a project: events within a span of time, read by indexes of time.

All instants are milliseconds since the epoch; a span includes its start and excludes its end.
"""

from dataclasses import dataclass
from typing import Literal

from postroom.contracts.records import Record

Outcome = Literal["", "done", "failed", "cancelled", "waiting", "cut_off"]
"""The end of an attempt; "" while it is active. An attempt that was cut off lost its server or its lease."""


class Attempt(Record, frozen=True, kw_only=True):
    """One execution of an agent's run: an attempt, or with the outcome `cut_off` an interruption."""

    id: int
    run_id: str
    agent_id: int
    queued_at: int
    """The start of its wait."""
    began_at: int
    ended_at: int | None = None
    outcome: Outcome = ""
    waited_until: int | None = None
    """The time when a run that waited for a person was resumed, or its questions were withdrawn."""
    error: str = ""


class AttemptGroup(Record, frozen=True, kw_only=True):
    """Successful attempts of one agent that started close together; a single attempt is a group, too."""

    agent_id: int
    count: int
    first_id: int
    """The id of the attempt that started first."""
    run_id: str
    """The run of one of the attempts."""
    queued_at: int
    """The start of the first attempt's wait."""
    began_at: int
    ended_at: int
    is_cancelled: bool
    """Whether at least one attempt was cancelled."""


class Written(Record, frozen=True, kw_only=True):
    """A message, without its text."""

    id: int
    project_id: int
    sender_id: int
    sender_name: str
    thread_id: str
    subject: str
    importance: str
    created_at: int
    recalled_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span from one instant up to another."""

    begin: int
    end: int
