"""What the picture of a project is drawn from: what happened within a span of time, by indexes of time.

All instants are milliseconds since the epoch; a span has its beginning and not its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from postroom.contracts.mail import Reservation
from postroom.contracts.records import Record

Outcome = Literal["", "done", "failed", "cancelled", "waiting", "cut_off"]
"""How an attempt ended; "" while it is at work. One that is cut off lost its server or its lease."""


class Attempt(Record, frozen=True, kw_only=True):
    """One execution of an agent's run."""

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


class TimelineReads(Protocol):
    """Look-ups by time."""

    def attempts_of_runs(self, run_ids: Sequence[str]) -> list[Attempt]:
        """Return the attempts of runs, in order; of each before attempts were kept, one."""
        ...

    def attempt_count(self, agent_ids: Sequence[int], span: Span) -> tuple[int, int]:
        """Return how many attempts of agents began in a span, and of how many agents they are."""
        ...

    def attempt_groups(self, agent_ids: Sequence[int], span: Span, *, step: int) -> list[AttemptGroup]:
        """Return the attempts of agents that began in a span and ended well or were cancelled.

        Those of an agent that began within the same `step` milliseconds are one group, by agent and time.
        """
        ...

    def attempts_alone(self, agent_ids: Sequence[int], span: Span, *, limit: int) -> list[Attempt]:
        """Return the attempts that began in a span and are at work, wait, or failed; the newest ones."""
        ...

    def attempts_before(self, agent_ids: Sequence[int], begin: int) -> list[Attempt]:
        """Return the last attempt of each agent that began before an instant: no other reaches beyond it."""
        ...

    def written(
        self, project_id: int, span: Span, *, limit: int, thread_id: str = "", agent_id: int | None = None
    ) -> list[Written]:
        """Return messages of a project, the newest ones, in order; of a thread, or from and to an agent."""
        ...

    def written_into(self, project_id: int, span: Span, *, to: int, limit: int) -> list[Written]:
        """Return messages of a project that agents of another were openly sent, the newest ones, in order."""
        ...

    def written_count(self, project_id: int, span: Span, *, most: int, to: int | None = None) -> int:
        """Return how many messages a project wrote, up to `most`; or of those to agents of another."""
        ...

    def took_part(self, project_id: int, span: Span, *, newest: int) -> list[int]:
        """Return who wrote the newest messages of a project, and whom they were openly sent to, by id."""
        ...

    def written_counts(self, project_id: int, span: Span, *, parts: int, most: int) -> list[int]:
        """Return how many messages a project wrote in each of so many equal parts of a span.

        A part with more than `most` has `most`.
        """
        ...

    def reservations_in(self, project_id: int, span: Span, *, since: int, limit: int) -> list[Reservation]:
        """Return reservations that were held in a span and made after `since`, the newest ones, in order."""
        ...

    def begin_of(self, project_id: int) -> int | None:
        """Return when a project's first message was written; None when it has none."""
        ...
