"""Adds many new runs in one transaction: reads all data, decides about each run, and then writes all.

look ──▶ all threads, and what is known of runs and dispatches ─▶ at once
state ─▶ a thread as it is with the runs that were added to it ─▶ without a look
add ───▶ kept
write ─▶ all rows of a statement together, those of a thread once
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.messages import Message, refuse_broken_delta
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadState
from postroom.contracts.runs import RunRecord, RunStatus, Thread
from postroom.stores.changes import WORK
from postroom.stores.codec import decode
from postroom.stores.runs import rows
from postroom.stores.runs.dispatches import state_look
from postroom.stores.runs.threads import new_thread
from postroom.stores.sql_transaction import Look, Tables, Values

_NEW: Final = ThreadState(thread=None)
_KEPT: Final = ("threads.append_message", "threads.add_run", "dispatches.enqueue")
"""The statements in the order of their execution, after the threads were written."""


@dataclass(slots=True)
class _Line:
    """The state of one thread, with the runs that were added to it."""

    state: ThreadState
    messages: set[str] = field(default_factory=set)
    """The ids of the messages that were added."""
    moved: Thread | None = None
    """The thread as it will be written."""


class Together(Tables):
    """Adds many new runs in one transaction.

    The transaction must hold the locks of the threads.
    """

    def look(
        self,
        messages: Mapping[str, Collection[str]],
        run_ids: Collection[str],
        dispatch_ids: Collection[str],
        at_most: int,
    ) -> Self:
        """Read the stored data on which the new runs depend, and return this object."""
        self._messages = {thread_id: tuple(ids) for thread_id, ids in messages.items()}
        self._at_most = at_most
        self._kept: dict[str, list[Values]] = {statement: [] for statement in _KEPT}
        stored, runs = self._sql.ask(
            ("threads.threads_with_rows", {"thread_ids": tuple(messages)}),
            ("threads.threads_of_runs", {"run_ids": tuple(run_ids)}),
        )
        self.runs = {run_id: thread_id for run_id, thread_id, _ in runs}
        self.messages = {
            run_id: decode(Message, body, where="body") for run_id, _, body in runs if body is not None
        }
        self._new = set(messages).difference(row[0] for row in stored)
        # A thread without a row may be in the queue, if its dispatch was stored alone.
        ids = {"thread_ids": self._new, "run_ids": run_ids, "dispatch_ids": dispatch_ids}
        self._taken = {row[0] for row in self._sql.all("dispatches.ids_in_queue", ids)}
        used = [thread_id for thread_id in messages if thread_id not in self._new or thread_id in self._taken]
        self._asked(map(self._look, used))
        self._lines = {thread_id: _Line(_NEW) for thread_id in self._new - self._taken}
        self._lines.update((thread_id, line) for thread_id in used if (line := self._line(thread_id)))
        return self

    def state(
        self, thread_id: str, run_id: str, dispatch_id: str, messages: Sequence[Message]
    ) -> ThreadState | None:
        """Return the state of a thread, including the runs that were already added.

        Return None if an id is already used, or if messages or runs wait on the thread. After None, the
        caller must read the thread separately.
        """
        if run_id in self.runs or not self._taken.isdisjoint((run_id, dispatch_id)):
            return None
        line = self._lines.get(thread_id) or self._line(thread_id)
        if line is None or any(message.id in line.messages for message in messages):
            return None
        self._lines[thread_id] = line
        return line.state

    def add(self, run: RunRecord, messages: Sequence[Message], dispatch: RunDispatch) -> RunDispatch:
        """Add a run to its thread, and return its dispatch; `write` writes all added runs."""
        thread_id, now = run.thread_id, self._now()
        line = self._lines[thread_id]
        before = line.state.thread or new_thread(thread_id, now)
        after = before.with_messages(len(messages), now=now).after(run)
        stored = dispatch.prepared_for_enqueue(epoch=line.state.epoch)
        line.messages.update(refuse_broken_delta(messages))
        line.state = replace(line.state, thread=after, queued=line.state.queued + 1)
        line.moved = after
        self._taken.update((run.run_id, dispatch.dispatch_id))
        row_values = rows.message_values(thread_id, messages, before.message_count + 1, now, run)
        for values, more in zip(
            self._kept.values(),
            (row_values, [rows.run_values(run)], [rows.dispatch_values(stored)]),
            strict=True,
        ):
            values += more
        self.runs[run.run_id] = thread_id
        self.messages.update((run.run_id, message) for message in messages if message.id == run.run_id)
        return stored

    def write(self, looked_at_alone: str | None = None) -> None:
        """Write the runs that were added, and forget the state of the thread `looked_at_alone`."""
        threads: dict[bool, list[Values]] = {True: [], False: []}
        for thread_id, line in self._lines.items():
            if line.moved is not None:
                threads[thread_id in self._new].append(rows.thread_values(line.moved))
                self._new.discard(thread_id)
                line.moved = None
        if any(threads.values()):
            self._sql.run_many("threads.put_thread", threads[True])
            self._sql.run_many("threads.move_thread", threads[False])
            for statement, values in self._kept.items():
                self._sql.run_many(statement, values)
                self._kept[statement] = []
            self._tell(WORK)
        if looked_at_alone is not None:
            self._lines.pop(looked_at_alone, None)

    def _look(self, thread_id: str) -> Look:
        ids = self._messages[thread_id]
        return state_look(thread_id, message_ids=ids, at_most=self._at_most, is_submission=True)

    def _line(self, thread_id: str) -> _Line | None:
        """Return the state of a thread from the rows that were read, or None if more data is needed."""
        look = self._look(thread_id)
        state = rows.thread_state(self._asked([look])[look[0], *look[1].values()][0])
        runs = (state.open_run, state.latest_run)
        if state.waiting or any(run is not None and run.status is RunStatus.WAITING for run in runs):
            return None
        return None if state.known_message is not None else _Line(state)
