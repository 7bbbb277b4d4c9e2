"""The logs of projects; what is told in them is decided by the event recorder."""

import json
from collections.abc import Sequence

from typing_extensions import override

from postroom.contracts.project_log import EventKind, Happening, LogBounds, ProjectEvent, ProjectLogWrites
from postroom.stores.mail import rows
from postroom.stores.mail.part import Part
from postroom.stores.sql_transaction import Row


class ProjectLog(Part, ProjectLogWrites):
    """Entries of the logs, and who may read of which message."""

    @override
    def project_events(
        self, project_id: int, *, after: int, limit: int, kinds: Sequence[EventKind] = ()
    ) -> list[ProjectEvent]:
        values = {
            "project_id": project_id,
            "after": after,
            "kinds": kinds,
            "any_kind": not kinds,
            "limit": limit,
        }
        return [_event(project_id, row) for row in self._tx.all("project_log.project_events", values)]

    @override
    def log_bounds(self, project_id: int) -> LogBounds:
        row = rows.written(self._tx.one("project_log.log_bounds", {"project_id": project_id}))
        return LogBounds(oldest=row[0], newest=row[1])

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
        values = {"project_id": project_id, "keep": max(keep, 1), "limit": limit}
        return self._tx.changed("project_log.trim_log", values)


def _event(project_id: int, row: Row) -> ProjectEvent:
    seq, at, kind, agent_id, message_id, reservation_id, run_id, detail = row
    happening = Happening(
        kind=kind,
        at=at,
        agent_id=agent_id,
        message_id=message_id,
        reservation_id=reservation_id,
        run_id=run_id,
        detail=json.loads(detail),
    )
    return ProjectEvent(project_id=project_id, seq=seq, happening=happening)
