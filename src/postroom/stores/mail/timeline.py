"""Reads by time, for the timeline of a project."""

from collections.abc import Sequence

from postroom.contracts.mail import Reservation
from postroom.contracts.timeline import Attempt, AttemptGroup, Span, Written
from postroom.stores.codec import record
from postroom.stores.sql_transaction import SqlTransaction


class TimelineReads:
    """Reads attempts, messages and reservations by time."""

    _tx: SqlTransaction

    def attempts_of_runs(self, run_ids: Sequence[str]) -> list[Attempt]:
        """Return the attempts of runs, in order; for a run that is older than the record of attempts, one."""
        return self._attempts("attempts_of_runs", run_ids=run_ids)

    def attempt_count(self, agent_ids: Sequence[int], span: Span) -> tuple[int, int]:
        """Return the number of attempts that started in a span, and the number of their agents."""
        count, agents = self._tx.all("timeline.attempt_count", {"agent_ids": agent_ids, **_span(span)})[0]
        return count, agents

    def attempt_groups(self, agent_ids: Sequence[int], span: Span, *, step: int) -> list[AttemptGroup]:
        """Return the attempts of agents that started in a span and succeeded or were cancelled, in groups.

        Attempts of an agent that started within the same `step` milliseconds are one group, by agent and
        time.
        """
        values = {"agent_ids": agent_ids, **_span(span), "step": max(step, 1)}
        return [record(AttemptGroup, row) for row in self._tx.all("timeline.attempt_groups", values)]

    def attempts_alone(self, agent_ids: Sequence[int], span: Span, *, limit: int) -> list[Attempt]:
        """Return the newest attempts that started in a span and are active, wait, or failed."""
        return self._attempts("attempts_alone", agent_ids=agent_ids, **_span(span), limit=limit)[::-1]

    def attempts_before(self, agent_ids: Sequence[int], begin: int) -> list[Attempt]:
        """Return the last attempt of each agent that started before an instant.

        No earlier one reaches past it.
        """
        return self._attempts("attempts_before", agent_ids=agent_ids, begin=begin)

    def written(
        self, project_id: int, span: Span, *, limit: int, thread_id: str = "", agent_id: int | None = None
    ) -> list[Written]:
        """Return the newest messages of a project, in order; of a thread, or from and to an agent."""
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
        """Filter messages by thread, and by sender or recipient."""
        if agent_id is not None:
            rows = self._tx.all(
                "timeline.openly_to", {"agent_id": agent_id, "ids": [one.id for one in found]}
            )
            to = {row[0] for row in rows}
            found = [one for one in found if one.sender_id == agent_id or one.id in to]
        return [one for one in found if thread_id in ("", one.thread_id)]

    def written_into(self, project_id: int, span: Span, *, to: int, limit: int) -> list[Written]:
        """Return the newest messages of a project to agents of another, in order, without hidden copies."""
        values = {"project_id": project_id, **_span(span), "to": to, "limit": limit}
        return self._written("written_into", values)[::-1]

    def written_count(self, project_id: int, span: Span, *, most: int, to: int | None = None) -> int:
        """Return the number of a project's messages, up to `most`.

        With `to`, only those to another project.
        """
        values = {"project_id": project_id, **_span(span), "most": most}
        if to is None:
            return int(self._tx.all("timeline.written_count", values)[0][0])
        return int(self._tx.all("timeline.written_into_count", values | {"to": to})[0][0])

    def took_part(self, project_id: int, span: Span, *, newest: int) -> list[int]:
        """Return the ids of senders and visible recipients of the newest messages of a project."""
        values = {"project_id": project_id, **_span(span), "newest": newest}
        return [row[0] for row in self._tx.all("timeline.took_part", values)]

    def written_counts(self, project_id: int, span: Span, *, parts: int, most: int) -> list[int]:
        """Return a project's number of messages in each of `parts` equal parts of a span, at most `most`."""
        values = {"project_id": project_id, **_span(span), "parts": parts, "most": most}
        return [row[1] for row in self._tx.all("timeline.written_counts", values)]

    def reservations_in(self, project_id: int, span: Span, *, since: int, limit: int) -> list[Reservation]:
        """Return the newest reservations that were held in a span and made after `since`, in order."""
        values = {"project_id": project_id, **_span(span), "since": since, "limit": limit}
        return [record(Reservation, row) for row in self._tx.all("timeline.reservations_in", values)][::-1]

    def begin_of(self, project_id: int) -> int | None:
        """Return the time of a project's first message; None if it has none."""
        row = self._tx.one("timeline.begin_of", {"project_id": project_id})
        return row[0] if row else None

    def _attempts(self, statement: str, /, **values: object) -> list[Attempt]:
        return [record(Attempt, row) for row in self._tx.all(f"timeline.{statement}", values)]

    def _written(self, statement: str, values: dict[str, object]) -> list[Written]:
        return [record(Written, row) for row in self._tx.all(f"timeline.{statement}", values)]


def _span(span: Span) -> dict[str, object]:
    return {"begin": span.begin, "end": span.end}
