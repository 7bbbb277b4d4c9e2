"""What the picture of a project is drawn from: what happened within a span of time, by indexes of time.

All instants are milliseconds since the epoch; a span has its beginning and not its end.
"""

from dataclasses import dataclass
from typing import Literal

from postroom.contracts.records import Record

Outcome = Literal["", "done", "failed", "cancelled", "waiting", "cut_off"]
"""How an attempt ended; "" while it is at work. One that is cut off lost its server or its lease."""


class Attempt(Record, frozen=True, kw_only=True):
    """One execution of an agent's run: an attempt, or with the outcome `cut_off` an interruption."""

    id: int
    run_id: str
    agent_id: int
    queued_at: int
    """Since when it waited to begin."""
    began_at: int
    ended_at: int | None = None
    outcome: Outcome = ""
    waited_until: int | None = None
    """When a run that waited for a person went on, or its questions were withdrawn."""
    error: str = ""


class AttemptGroup(Record, frozen=True, kw_only=True):
    """Attempts of one agent that ended well and began close together; one alone is a group, too."""

    agent_id: int
    count: int
    first_id: int
    """The id of the attempt among them that began first."""
    run_id: str
    """The run of one of them."""
    queued_at: int
    """Since when the first of them waited to begin."""
    began_at: int
    ended_at: int
    is_cancelled: bool
    """Whether one of them was cancelled."""


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
    """From one instant up to another."""

    begin: int
    end: int
