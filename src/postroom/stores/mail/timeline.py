"""Look-ups by time, for the picture of a project."""

from collections.abc import Sequence

from postroom.contracts.mail import Reservation
from postroom.contracts.timeline import Attempt, AttemptGroup, Span, Written
from postroom.stores.codec import record
from postroom.stores.sql_transaction import SqlTransaction


class TimelineReads:
    """Reads attempts, messages and reservations by time."""

    _tx: SqlTransaction

    def attempts_of_runs(self, run_ids: Sequence[str]) -> list[Attempt]:
        """Return the attempts of runs, in order; of each before attempts were kept, one."""
        return self._attempts("attempts_of_runs", run_ids=run_ids)

    def attempt_count(self, agent_ids: Sequence[int], span: Span) -> tuple[int, int]:
        """Return how many attempts of agents began in a span, and of how many agents they are."""
        count, agents = self._tx.all("timeline.attempt_count", {"agent_ids": agent_ids, **_span(span)})[0]
        return count, agents

    def attempt_groups(self, agent_ids: Sequence[int], span: Span, *, step: int) -> list[AttemptGroup]:
        """Return the attempts of agents that began in a span and ended well or were cancelled.

        Those of an agent that began within the same `step` milliseconds are one group, by agent and time.
        """
        values = {"agent_ids": agent_ids, **_span(span), "step": max(step, 1)}
        return [record(AttemptGroup, row) for row in self._tx.all("timeline.attempt_groups", values)]

    def attempts_alone(self, agent_ids: Sequence[int], span: Span, *, limit: int) -> list[Attempt]:
        """Return the attempts that began in a span and are at work, wait, or failed; the newest ones."""
        return self._attempts("attempts_alone", agent_ids=agent_ids, **_span(span), limit=limit)[::-1]

    def attempts_before(self, agent_ids: Sequence[int], begin: int) -> list[Attempt]:
        """Return the last attempt of each agent that began before an instant: no other reaches beyond it."""
        return self._attempts("attempts_before", agent_ids=agent_ids, begin=begin)

    def written(
        self, project_id: int, span: Span, *, limit: int, thread_id: str = "", agent_id: int | None = None
    ) -> list[Written]:
        """Return messages of a project, the newest ones, in order; of a thread, or from and to an agent."""
        values = {"project_id": project_id, **_span(span), "limit": limit}
        found = self._written("written", values)
        if len(found) < limit:  # the index by time has found all of the span; below, other indexes are better
            found = self._among(found, thread_id, agent_id)
        elif agent_id is not None:
            mine = values | {"agent_id": agent_id}
            both = (*self._written("written_by", mine), *self._written("written_to", mine))
            found = [
                one for one in {one.id: one for one in both}.values() if thread_id in ("", one.thread_id)
            ]
        elif thread_id:
            found = self._written("written_on_thread", values | {"thread_id": thread_id})
        return sorted(found, key=lambda one: (one.created_at, one.id))[-limit:]

    def _among(self, found: Sequence[Written], thread_id: str, agent_id: int | None) -> list[Written]:
        """Return those of some messages that are on a thread, and from or to an agent."""
        if agent_id is not None:
            rows = self._tx.all(
                "timeline.openly_to", {"agent_id": agent_id, "ids": [one.id for one in found]}
            )
            to = {row[0] for row in rows}
            found = [one for one in found if one.sender_id == agent_id or one.id in to]
        return [one for one in found if thread_id in ("", one.thread_id)]

    def written_into(self, project_id: int, span: Span, *, to: int, limit: int) -> list[Written]:
        """Return messages of a project that agents of another were openly sent, the newest ones, in order."""
        values = {"project_id": project_id, **_span(span), "to": to, "limit": limit}
        return self._written("written_into", values)[::-1]

    def written_count(self, project_id: int, span: Span, *, most: int, to: int | None = None) -> int:
        """Return how many messages a project wrote, up to `most`; or of those to agents of another."""
        values = {"project_id": project_id, **_span(span), "most": most}
        if to is None:
            return int(self._tx.all("timeline.written_count", values)[0][0])
        return int(self._tx.all("timeline.written_into_count", values | {"to": to})[0][0])

    def took_part(self, project_id: int, span: Span, *, newest: int) -> list[int]:
        """Return who wrote the newest messages of a project, and whom they were openly sent to, by id."""
        values = {"project_id": project_id, **_span(span), "newest": newest}
        return [row[0] for row in self._tx.all("timeline.took_part", values)]

    def written_counts(self, project_id: int, span: Span, *, parts: int, most: int) -> list[int]:
        """Return how many messages a project wrote in each of so many equal parts of a span.

        A part with more than `most` has `most`.
        """
        values = {"project_id": project_id, **_span(span), "parts": parts, "most": most}
        return [row[1] for row in self._tx.all("timeline.written_counts", values)]

    def reservations_in(self, project_id: int, span: Span, *, since: int, limit: int) -> list[Reservation]:
        """Return reservations that were held in a span and made after `since`, the newest ones, in order."""
        values = {"project_id": project_id, **_span(span), "since": since, "limit": limit}
        return [record(Reservation, row) for row in self._tx.all("timeline.reservations_in", values)][::-1]

    def begin_of(self, project_id: int) -> int | None:
        """Return when a project's first message was written; None when it has none."""
        row = self._tx.one("timeline.begin_of", {"project_id": project_id})
        return row[0] if row else None

    def _attempts(self, statement: str, /, **values: object) -> list[Attempt]:
        return [record(Attempt, row) for row in self._tx.all(f"timeline.{statement}", values)]

    def _written(self, statement: str, values: dict[str, object]) -> list[Written]:
        return [record(Written, row) for row in self._tx.all(f"timeline.{statement}", values)]


def _span(span: Span) -> dict[str, object]:
    return {"begin": span.begin, "end": span.end}
