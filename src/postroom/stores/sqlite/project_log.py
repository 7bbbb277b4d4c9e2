"""The logs of projects, over one connection; what is told in them is decided in `stores.telling`."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from postroom.contracts.project_log import EventKind, Happening, LogBounds, ProjectEvent
from postroom.stores.codec import encode
from postroom.stores.sqlite.statements import load_statements
from postroom.stores.telling import EventRecorder

SQL = load_statements("project_log")


class SqliteLogReads:
    """Look-ups over one connection."""

    _connection: sqlite3.Connection

    def project_events(
        self, project_id: int, *, after: int, limit: int, kinds: Sequence[EventKind] = ()
    ) -> list[ProjectEvent]:
        """Return entries after a sequence number, oldest first; those of some kinds, or of all."""
        values = {
            "project_id": project_id,
            "after": after,
            "kinds": json.dumps(list(kinds)) if kinds else None,
            "limit": limit,
        }
        found = self._connection.execute(SQL["project_events"], values)
        return [_event(project_id, row) for row in found]

    def log_bounds(self, project_id: int) -> LogBounds:
        """Return what a project's log holds."""
        oldest, newest = self._connection.execute(SQL["log_bounds"], (project_id,)).fetchone()
        return LogBounds(oldest=oldest, newest=newest)

    def messages_of(self, agent_id: int, message_ids: Sequence[int]) -> tuple[set[int], set[int]]:
        """Return which of these letters the agent wrote, and which of them came to it."""
        values = (agent_id, json.dumps(list(message_ids)))
        written = self._connection.execute(SQL["letters_written"], values).fetchall()
        received = self._connection.execute(SQL["letters_received"], values).fetchall()
        return {row[0] for row in written}, {row[0] for row in received}


class SqliteLogWrites(SqliteLogReads, EventRecorder):
    """Entries that changes write, over the writer's connection."""

    def trim_log(self, project_id: int, *, keep: int, limit: int) -> int:
        """Forget the oldest entries beyond the newest `keep`, at most `limit`; return how many."""
        return self._connection.execute(SQL["trim_log"], (project_id, max(keep, 1), limit)).rowcount

    def _record(self, project_id: int, happening: Happening) -> None:
        self._connection.execute(SQL["record"], (project_id, *_columns(happening)))

    def _record_of_agents(self, happening: Happening, *, other_id: int | None = None) -> None:
        self._connection.execute(SQL["record_of_agents"], (other_id, *_columns(happening)))

    def _projects_reached(self, message_id: int) -> Sequence[tuple[int, bool]]:
        found = self._connection.execute(SQL["projects_reached"], (message_id,)).fetchall()
        return [(project_id, bool(is_hidden)) for project_id, is_hidden in found]


def _columns(told: Happening) -> tuple[object, ...]:
    detail = encode(told.detail) if told.detail else "{}"
    return (told.at, told.kind, told.agent_id, told.message_id, told.reservation_id, told.run_id, detail)


def _event(project_id: int, row: tuple[Any, ...]) -> ProjectEvent:
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
