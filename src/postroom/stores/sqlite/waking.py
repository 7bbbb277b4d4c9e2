"""Runners, and what they made of letters, on SQLite."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import fields

from postroom.contracts.runs import OnTimeout
from postroom.contracts.waking import AskedQuestion, Handling, KeptRunner, RunnerSource
from postroom.stores.sqlite.project_log import SqliteLogWrites
from postroom.stores.sqlite.statements import STATEMENTS as SQL

_COLUMNS = tuple(field.name for field in fields(Handling))


class SqliteWakingReads:
    """Look-ups over one connection."""

    _connection: sqlite3.Connection

    def runner(self, agent_id: int) -> KeptRunner | None:
        """Return how an agent is run; None when it is not run by postroom."""
        row = self._connection.execute(SQL["runner"], (agent_id,)).fetchone()
        return _runner(row) if row else None

    def runners(self, *, limit: int, after: int = 0) -> list[KeptRunner]:
        """Return runners by agent id, those after `after`."""
        return [_runner(row) for row in self._connection.execute(SQL["runners"], (after, limit))]

    def with_runner(self, agent_ids: Sequence[int]) -> dict[int, int]:
        """Return which of these agents have a runner, and when it was declared."""
        asked = json.dumps(list(agent_ids))
        return dict(self._connection.execute(SQL["with_runner"], (asked,)).fetchall())

    def working_on(self, agent_ids: Sequence[int], project_id: int, thread_id: str) -> set[int]:
        """Return which of these agents have a run at work that has a letter of this thread in its hands."""
        asked = json.dumps(list(agent_ids)), project_id, thread_id
        return {row[0] for row in self._connection.execute(SQL["working_on"], asked)}

    def handlings(self, message_ids: Sequence[int]) -> dict[int, dict[int, Handling]]:
        """Return what runs made of each message, by recipient; every message is there."""
        found: dict[int, dict[int, Handling]] = {message_id: {} for message_id in message_ids}
        for row in self._connection.execute(SQL["handlings"], (json.dumps(list(message_ids)),)):
            one = Handling(**dict(zip(_COLUMNS, row, strict=True)))
            found[one.message_id][one.agent_id] = one
        return found

    def answering_run(self, message_id: int) -> str | None:
        """Return the run whose end a letter tells; None for one that somebody wrote."""
        row = self._connection.execute(SQL["answering_run"], (message_id,)).fetchone()
        return row[0] if row else None


class SqliteWakingWrites(SqliteWakingReads, SqliteLogWrites):
    """Changes over the writer's connection."""

    def put_runner(self, agent_id: int, runner: str, *, declared_by: RunnerSource, now: int) -> None:
        """Say, or say anew, how an agent is run."""
        self._connection.execute(SQL["put_runner"], (agent_id, runner, declared_by, now))
        self._tell_of_agent("agent.runner_set", agent_id, now)

    def drop_runner(self, agent_id: int, *, now: int) -> bool:
        """Have an agent run no more; False when it was not."""
        known = self._connection.execute(SQL["drop_runner"], (agent_id,)).rowcount > 0
        if known:
            self._tell_of_agent("agent.runner_dropped", agent_id, now)
        return known

    def put_handling(self, handling: Handling) -> None:
        """Store or replace what a run makes of a letter."""
        self._connection.execute(SQL["put_handling"], {name: getattr(handling, name) for name in _COLUMNS})
        key = (handling.message_id, handling.agent_id)
        self._tell_handling(handling, self._connection.execute(SQL["recipient_kind"], key).fetchone()[0])

    def begin_sitting(self, run_id: str, agent_id: int, now: int, *, answered: Sequence[str] = ()) -> None:
        """Record that a run of an agent is at work; begun anew, it has asked nothing."""
        former = self._connection.execute(SQL["end_sitting"], (run_id,)).fetchone()
        if former is not None:
            self._tell_cut_off(run_id, former[0], now)
        self._connection.execute(SQL["begin_sitting"], (run_id, agent_id, now))
        self._tell_begun(run_id, agent_id, now, answered)

    def ask(self, run_id: str, agent_id: int, question: AskedQuestion, now: int) -> bool:
        """Keep a question of a run at work; False when the agent has no such run at work."""
        told = question.id, question.text, now, question.patience, question.on_timeout.value
        asked = self._connection.execute(SQL["ask"], (run_id, agent_id, *told))
        if asked.rowcount > 0:
            self._tell_run("pause.asked", run_id, agent_id, now, question.id)
        return self._connection.execute(SQL["sits"], (run_id, agent_id)).fetchone() is not None

    def end_sitting(
        self, run_id: str, *, now: int, failed: bool = False, waits_for: Sequence[str] | None = None
    ) -> list[AskedQuestion]:
        """Record that a run is not at work any more and return what it asked, in the order of asking.

        `waits_for` is given where the run itself keeps questions: those of them that are new, for the log.
        """
        rows = self._connection.execute(SQL["questions"], (run_id,)).fetchall()
        sat = self._connection.execute(SQL["end_sitting"], (run_id,)).fetchone()
        if sat is not None:
            self._tell_ended(run_id, sat[0], now, waits_for, asks=bool(rows), failed=failed)
        return [
            AskedQuestion(id=row[0], text=row[1], patience=row[2], on_timeout=OnTimeout(row[3]))
            for row in rows
        ]

    def note_answer(self, message_id: int, run_id: str) -> None:
        """Record that a letter tells the end of a run; the first record stands."""
        self._connection.execute(SQL["note_answer"], (message_id, run_id))


def _runner(row: tuple[int, str, RunnerSource, int]) -> KeptRunner:
    return KeptRunner(agent_id=row[0], runner=row[1], declared_by=row[2], updated_at=row[3])
