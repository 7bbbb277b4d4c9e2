"""Agents that postroom runs, and the state of messages in their runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from postroom.contracts.errors import StoreError
from postroom.contracts.people import ChatAddress
from postroom.contracts.project_log import EventKind
from postroom.contracts.runs import OnTimeout, RunRecord
from postroom.contracts.timeline import Outcome
from postroom.contracts.waking import AskedQuestion, KeptRunner, MessageRun, RunnerSource
from postroom.stores.changes import WAKES
from postroom.stores.codec import record
from postroom.stores.mail.event_recorder import EventRecorder
from postroom.stores.runs import rows
from postroom.stores.runs.dispatches import put_place
from postroom.stores.sql_transaction import SqlTransaction

LONGEST_ERROR = 2_000
"""Maximum number of characters of an attempt's error; the run and its dispatch have the full text."""
_COLUMNS = tuple(field.name for field in fields(MessageRun))


class WakingReads:
    """Reads runners, active runs, their questions, and the runs of messages."""

    _tx: SqlTransaction

    def runner(self, agent_id: int) -> KeptRunner | None:
        """Return the runner of an agent; None if postroom does not run it."""
        row = self._tx.one("mail.runner", {"agent_id": agent_id})
        return record(KeptRunner, row) if row else None

    def runners(self, *, limit: int, after: int = 0) -> list[KeptRunner]:
        """Return runners by agent id, after id `after`."""
        found = self._tx.all("mail.runners", {"after": after, "limit": limit})
        return [record(KeptRunner, row) for row in found]

    def with_runner(self, agent_ids: Sequence[int]) -> dict[int, int]:
        """Return the agents among these with a runner or a chat address, and the time of its declaration."""
        return dict(map(tuple, self._tx.all("mail.with_runner", {"ids": agent_ids})))

    def working_on(self, agent_ids: Sequence[int], project_id: int, thread_id: str) -> set[int]:
        """Return the agents among these with an active run that has a message of this thread."""
        values = {"ids": agent_ids, "project_id": project_id, "thread_id": thread_id}
        return {row[0] for row in self._tx.all("mail.working_on", values)}

    def waiting_runs(self, thread_ids: Sequence[str]) -> dict[str, RunRecord]:
        """Return the waiting runs of these threads, by thread, without runs that are active again."""
        found = map(rows.run, self._tx.all("mail.waiting_runs", {"thread_ids": thread_ids}))
        return {run.thread_id: run for run in found}

    def message_runs(self, message_ids: Sequence[int]) -> dict[int, dict[int, MessageRun]]:
        """Return the state of each message in runs, by recipient; every message has an entry."""
        found: dict[int, dict[int, MessageRun]] = {message_id: {} for message_id in message_ids}
        for row in self._tx.all("mail.message_runs", {"ids": message_ids}):
            one = MessageRun(**dict(zip(_COLUMNS, row, strict=True)))
            found[one.message_id][one.agent_id] = one
        return found

    def unwoken(self, *, after: tuple[int, int], limit: int) -> list[tuple[int, int]]:
        """Return messages with recipients that they have yet to wake, in order, after `after`.

        Recipients are active and have a runner or a chat; the message is not read, recalled or announced, and
        no run had it.
        """
        values = {"message_id": after[0], "agent_id": after[1], "limit": limit}
        return [(row[0], row[1]) for row in self._tx.all("mail.unwoken", values)]

    def unwoken_count(self, agent_id: int) -> int:
        """Return the number of messages that `unwoken` would return for an agent with a runner."""
        row = self._tx.one("mail.unwoken_count", {"agent_id": agent_id})
        return row[0] if row else 0

    def questions(self, run_id: str) -> list[AskedQuestion]:
        """Return the questions of an active run asked by `ask`, in their order."""
        return [
            AskedQuestion(id=row[0], text=row[1], timeout_ms=row[2], on_timeout=OnTimeout(row[3]))
            for row in self._tx.all("mail.questions", {"run_id": run_id})
        ]

    def has_asked(self, run_id: str, question_id: str) -> bool:
        """Return whether a question of a run is valid: asked in this attempt, open, or answered.

        An attempt that is cut off or fails loses its questions.
        """
        if any(one.id == question_id for one in self.questions(run_id)):
            return True
        row = self._tx.one("threads.run", {"run_id": run_id})
        run = None if row is None else rows.run(row)
        if run is None:
            return False
        tickets = run.waiting.tickets if run.waiting is not None else ()
        stands = {one.tool_call_id for one in (*tickets, *(told.ticket for told in run.answered))}
        return question_id in stands

    def answering_run(self, message_id: int) -> str | None:
        """Return the run whose result a message reports; None for a message that somebody wrote."""
        row = self._tx.one("mail.answering_run", {"message_id": message_id})
        return row[0] if row else None

    def answers_among(self, run_id: str, message_ids: Sequence[int]) -> set[int]:
        """Return the messages among these that report the end of a run."""
        asked = {"run_id": run_id, "message_ids": message_ids}
        return {row[0] for row in self._tx.all("mail.answers_among", asked)}

    def tells_last(self, message_id: int) -> bool:
        """Return whether a message reports a run and no later message does."""
        return self._tx.one("mail.tells_last", {"message_id": message_id}) is not None

    def chat_address(self, agent_id: int) -> ChatAddress | None:
        """Return the chat address of a person."""
        row = self._tx.one("mail.chat_address", {"agent_id": agent_id})
        return ChatAddress(platform=row[0], chat_id=row[1]) if row else None

    def reached_at(self, address: ChatAddress) -> list[int]:
        """Return the ids of the people with this chat address."""
        values = {"platform": address.platform, "chat_id": address.chat_id}
        return [row[0] for row in self._tx.all("mail.reached_at", values)]


class WakingWrites(WakingReads):
    """Writes runners, active runs, their questions, and the runs of messages."""

    _events: EventRecorder
    _tell: Callable[..., None]

    def wake_later(self) -> None:
        """Send a hint after the commit that a message may have to wake a recipient."""
        self._tell(WAKES)

    def put_place(self, thread_id: str, place: str) -> None:
        """Set where runs of a thread may execute, '' for anywhere."""
        put_place(self._tx, thread_id, place)

    def put_runs_at_once(self, agent_id: int, runs_at_once: int) -> None:
        """Set how many runs of an agent may execute at once, each of another mail thread."""
        self._tx.run("mail.put_runs_at_once", {"agent_id": agent_id, "runs_at_once": runs_at_once})

    def put_runner(
        self, agent_id: int, runner: str, *, declared_by: RunnerSource, now: int, claims_tasks: bool = False
    ) -> None:
        """Set or replace the runner of an agent; with `claims_tasks`, the server claims tasks for it."""
        values = {"agent_id": agent_id, "runner": runner, "declared_by": declared_by, "now": now}
        self._tx.run("mail.put_runner", {**values, "claims_tasks": claims_tasks})
        self._events.of_agent("agent.runner_set", agent_id, now)
        self.wake_later()

    def drop_runner(self, agent_id: int, *, now: int) -> bool:
        """Remove the runner of an agent; return False if it had none."""
        known = self._tx.changed("mail.drop_runner", {"agent_id": agent_id}) > 0
        if known:
            self._events.of_agent("agent.runner_dropped", agent_id, now)
        return known

    def put_chat_address(self, agent_id: int, address: ChatAddress, *, now: int) -> None:
        """Set the only chat address of a person."""
        values = {"agent_id": agent_id, "platform": address.platform, "chat_id": address.chat_id, "now": now}
        self._tx.run("mail.put_chat_address", values)
        self._events.of_agent("agent.runner_set", agent_id, now)
        self.wake_later()

    def drop_chat_address(self, agent_id: int, *, now: int) -> bool:
        """Remove the chat address of a person; return False if there was none."""
        known = self._tx.changed("mail.drop_chat_address", {"agent_id": agent_id}) > 0
        if known:
            self._events.of_agent("agent.runner_dropped", agent_id, now)
        return known

    def put_message_run(self, message_run: MessageRun) -> None:
        """Store or replace the state of a message in a run.

        Raises:
            StoreError: The agent is not a recipient of the message.
        """
        values = {name: getattr(message_run, name) for name in _COLUMNS}
        kind = self._events.kind_of(message_run.message_id, message_run.agent_id)
        if kind is None:
            raise StoreError(
                f"agent {message_run.agent_id} did not receive message {message_run.message_id}",
                value=message_run.message_id,
            )
        self._tx.run("mail.put_message_run", values)
        self._events.of_message_run(message_run, kind)

    def begin_run(self, run_id: str, agent_id: int, now: int, *, answered: Sequence[str] = ()) -> None:
        """Record that a run of an agent is active; a repeated start removes its questions.

        If the run was recorded as active already, that attempt was cut off by a lost server or lease.
        `answered` are the questions whose answers it continues with.
        """
        values = {"run_id": run_id, "agent_id": agent_id, "now": now}
        if not self._tx.changed(
            "mail.begin_run", values
        ):  # its lease or its server ended while it was active
            former = self._tx.one("mail.end_run", {"run_id": run_id})
            self._events.of_run("run.cut_off", run_id, agent_id if former is None else former[0], now)
            self._end_attempt(run_id, "cut_off", now)
            self._tx.run("mail.begin_run", values)
        self._tx.run("timeline.end_wait", values)
        self._tx.run("timeline.begin_attempt", values)
        self._events.run_began(run_id, agent_id, now, answered)

    def ask(self, run_id: str, agent_id: int, question: AskedQuestion, now: int) -> bool:
        """Store a question of an active run; a repeated call changes nothing.

        Return False if the agent has no such active run.
        """
        values = {
            "run_id": run_id,
            "agent_id": agent_id,
            "question_id": question.id,
            "text": question.text,
            "now": now,
            "timeout_ms": question.timeout_ms,
            "on_timeout": question.on_timeout.value,
        }
        if self._tx.changed("mail.ask", values):
            self._events.of_run("question.asked", run_id, agent_id, now, question.id)
        return self._tx.one("mail.is_active", values) is not None

    def end_run(
        self,
        run_id: str,
        *,
        now: int,
        failed: bool = False,
        cancelled: bool = False,
        error: str = "",
        waits_for: Mapping[str, int] | None = None,
    ) -> bool:
        """Record that a run is no longer active; do nothing if it is not active.

        Return whether a task that was claimed in the run is still held.

        A `cancelled` run has not completed its work; `error` is stored with the attempt. `waits_for` is given
        for a run that waits: its questions, each with the time of asking. Questions asked since its start,
        but not by `ask`, are recorded too.
        """
        told = {one.id for one in self.questions(run_id)} if waits_for else ()
        ended_run = self._tx.one("mail.end_run", {"run_id": run_id})
        if ended_run is None:
            return False
        agent_id, began_at, holds_tasks = ended_run
        for question_id, asked_at in (waits_for or {}).items():
            if asked_at >= began_at and question_id not in told:
                self._events.of_run("question.asked", run_id, agent_id, now, question_id)
        ended: EventKind = "run.ended" if waits_for is None else "run.waiting"
        self._events.of_run("run.failed" if failed else ended, run_id, agent_id, now)
        well: Outcome = "done" if waits_for is None else "waiting"
        self._end_attempt(run_id, "cancelled" if cancelled else "failed" if failed else well, now, error)
        return bool(holds_tasks)

    def drop_attempts(self, run_ids: Sequence[str]) -> None:
        """Delete the attempts of deleted runs."""
        self._tx.run("timeline.drop_attempts", {"run_ids": run_ids})

    def withdraw_questions(
        self, run_id: str, agent_id: int, question_ids: Sequence[str], *, now: int
    ) -> None:
        """Record that a waiting run was ended, so that its questions cannot be answered."""
        for question_id in question_ids:
            self._events.of_run("question.withdrawn", run_id, agent_id, now, question_id)
        self._events.of_run("run.failed", run_id, agent_id, now)
        self._tx.run("timeline.end_wait", {"run_id": run_id, "now": now})

    def note_answer(self, message_id: int, run_id: str) -> None:
        """Record that a message reports the end of a run; an existing record stays."""
        self._tx.run("mail.note_answer", {"message_id": message_id, "run_id": run_id})

    def _end_attempt(self, run_id: str, outcome: Outcome, now: int, error: str = "") -> None:
        values = {"run_id": run_id, "outcome": outcome, "now": now, "error": error[:LONGEST_ERROR]}
        self._tx.run("timeline.end_attempt", values)
