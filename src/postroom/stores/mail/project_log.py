"""The logs of projects; what is told in them is decided by the event recorder."""

from collections.abc import Sequence
from typing import cast

from typing_extensions import override

from postroom.contracts.events import CanonicalEvent, EventScope
from postroom.contracts.project_log import EventKind, Happening, LogBounds, ProjectEvent, ProjectLogWrites
from postroom.stores.mail.part import Part


class ProjectLog(Part, ProjectLogWrites):
    """Entries of the logs, and who may read of which message."""

    @override
    def project_events(
        self, project_id: int, *, after: int, limit: int, kinds: Sequence[EventKind] = ()
    ) -> list[ProjectEvent]:
        scope = EventScope.project(project_id).key
        found = self._log.of_scope(scope, after=after, limit=limit, kinds=kinds)
        return [_entry(project_id, seq, event) for seq, event in found]

    @override
    def log_bounds(self, project_id: int) -> LogBounds:
        oldest, newest = self._log.bounds(EventScope.project(project_id).key)
        return LogBounds(oldest=oldest - 1, newest=newest)

    @override
    def messages_of(self, agent_id: int, message_ids: Sequence[int]) -> tuple[set[int], set[int]]:
        values = {"agent_id": agent_id, "ids": message_ids}
        written, received = self._tx.ask(
            ("project_log.messages_written", values), ("project_log.messages_received", values)
        )
        return {row[0] for row in written}, {row[0] for row in received}

    @override
    def trim_log(self, project_id: int, *, keep: int, limit: int) -> int:
        self._events.lock([project_id])
        return self._log.trim(EventScope.project(project_id).key, keep=keep, limit=limit)


def _entry(project_id: int, seq: int, event: CanonicalEvent) -> ProjectEvent:
    told = event.payload
    happening = Happening(
        kind=cast("EventKind", event.event_kind),
        at=event.created_at,
        agent_id=told["agent_id"],
        message_id=told["message_id"],
        reservation_id=told["reservation_id"],
        run_id=told["run_id"],
        detail=told["detail"],
    )
    return ProjectEvent(project_id=project_id, seq=seq, happening=happening)
