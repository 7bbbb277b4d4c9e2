"""Look-ups by time, for the picture of a project."""

from collections.abc import Sequence

from typing_extensions import override

from postroom.contracts.mail import Reservation
from postroom.contracts.timeline import Attempt, AttemptGroup, Span, TimelineReads, Written
from postroom.stores.codec import record
from postroom.stores.sql_transaction import SqlTransaction


class Timeline(TimelineReads):
    """Attempts, messages and reservations within a span."""

    _tx: SqlTransaction

    @override
    def attempts_of_runs(self, run_ids: Sequence[str]) -> list[Attempt]:
        return self._attempts("attempts_of_runs", run_ids=run_ids)

    @override
    def attempt_count(self, agent_ids: Sequence[int], span: Span) -> tuple[int, int]:
        count, agents = self._tx.all("timeline.attempt_count", {"agent_ids": agent_ids, **_span(span)})[0]
        return count, agents

    @override
    def attempt_groups(self, agent_ids: Sequence[int], span: Span, *, step: int) -> list[AttemptGroup]:
        values = {"agent_ids": agent_ids, **_span(span), "step": max(step, 1)}
        return [record(AttemptGroup, row) for row in self._tx.all("timeline.attempt_groups", values)]

    @override
    def attempts_alone(self, agent_ids: Sequence[int], span: Span, *, limit: int) -> list[Attempt]:
        return self._attempts("attempts_alone", agent_ids=agent_ids, **_span(span), limit=limit)[::-1]

    @override
    def attempts_before(self, agent_ids: Sequence[int], begin: int) -> list[Attempt]:
        return self._attempts("attempts_before", agent_ids=agent_ids, begin=begin)

    @override
    def written(
        self, project_id: int, span: Span, *, limit: int, thread_id: str = "", agent_id: int | None = None
    ) -> list[Written]:
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

    @override
    def written_into(self, project_id: int, span: Span, *, to: int, limit: int) -> list[Written]:
        values = {"project_id": project_id, **_span(span), "to": to, "limit": limit}
        return self._written("written_into", values)[::-1]

    @override
    def written_count(self, project_id: int, span: Span, *, most: int, to: int | None = None) -> int:
        values = {"project_id": project_id, **_span(span), "most": most}
        if to is None:
            return int(self._tx.all("timeline.written_count", values)[0][0])
        return int(self._tx.all("timeline.written_into_count", values | {"to": to})[0][0])

    @override
    def took_part(self, project_id: int, span: Span, *, newest: int) -> list[int]:
        values = {"project_id": project_id, **_span(span), "newest": newest}
        return [row[0] for row in self._tx.all("timeline.took_part", values)]

    @override
    def written_counts(self, project_id: int, span: Span, *, parts: int, most: int) -> list[int]:
        values = {"project_id": project_id, **_span(span), "parts": parts, "most": most}
        return [row[1] for row in self._tx.all("timeline.written_counts", values)]

    @override
    def reservations_in(self, project_id: int, span: Span, *, since: int, limit: int) -> list[Reservation]:
        values = {"project_id": project_id, **_span(span), "since": since, "limit": limit}
        return [record(Reservation, row) for row in self._tx.all("timeline.reservations_in", values)][::-1]

    @override
    def begin_of(self, project_id: int) -> int | None:
        row = self._tx.one("timeline.begin_of", {"project_id": project_id})
        return row[0] if row else None

    def _attempts(self, statement: str, /, **values: object) -> list[Attempt]:
        return [record(Attempt, row) for row in self._tx.all(f"timeline.{statement}", values)]

    def _written(self, statement: str, values: dict[str, object]) -> list[Written]:
        return [record(Written, row) for row in self._tx.all(f"timeline.{statement}", values)]


def _span(span: Span) -> dict[str, object]:
    return {"begin": span.begin, "end": span.end}
