"""Runners, and what they made of letters, on SQLite."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import fields

from postroom.contracts.waking import AskedQuestion, Handling, KeptRunner, RunnerSource
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


class SqliteWakingWrites(SqliteWakingReads):
    """Changes over the writer's connection."""

    def put_runner(self, agent_id: int, runner: str, *, declared_by: RunnerSource, now: int) -> None:
        """Say, or say anew, how an agent is run."""
        self._connection.execute(SQL["put_runner"], (agent_id, runner, declared_by, now))

    def drop_runner(self, agent_id: int) -> bool:
        """Have an agent run no more; False when it was not."""
        return self._connection.execute(SQL["drop_runner"], (agent_id,)).rowcount > 0

    def put_handling(self, handling: Handling) -> None:
        """Store or replace what a run makes of a letter."""
        self._connection.execute(SQL["put_handling"], {name: getattr(handling, name) for name in _COLUMNS})

    def begin_sitting(self, run_id: str, agent_id: int, now: int) -> None:
        """Record that a run of an agent is at work; begun anew, it has asked nothing."""
        self._connection.execute(SQL["begin_sitting"], (run_id, agent_id, now))
        self._connection.execute(SQL["drop_questions"], (run_id,))

    def ask(self, run_id: str, agent_id: int, question: AskedQuestion, now: int) -> bool:
        """Keep a question of a run at work; False when the agent has no such run at work."""
        self._connection.execute(SQL["ask"], (run_id, agent_id, question.id, question.text, now))
        return self._connection.execute(SQL["sits"], (run_id, agent_id)).fetchone() is not None

    def end_sitting(self, run_id: str) -> list[AskedQuestion]:
        """Record that a run is not at work any more and return what it asked, in the order of asking."""
        rows = self._connection.execute(SQL["questions"], (run_id,)).fetchall()
        self._connection.execute(SQL["end_sitting"], (run_id,))
        return [AskedQuestion(id=row[0], text=row[1]) for row in rows]

    def note_answer(self, message_id: int, run_id: str) -> None:
        """Record that a letter tells the end of a run; the first record stands."""
        self._connection.execute(SQL["note_answer"], (message_id, run_id))


def _runner(row: tuple[int, str, RunnerSource, int]) -> KeptRunner:
    return KeptRunner(agent_id=row[0], runner=row[1], declared_by=row[2], updated_at=row[3])
