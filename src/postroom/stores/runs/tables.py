"""What an open transaction does with runs: `tx.runs`, beside `tx.events` and `tx.outbox`.

A change locks first what it decides on (`thread_lock`, and the `locks` of commits, events and effects), all
in one call; the instant is read after that, when it is first needed.
"""

from collections.abc import Callable, Sequence
from typing import Self

from typing_extensions import override

from postroom.contracts import run_tables
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import ForeignThread, StaleClaim, UnknownDispatch
from postroom.contracts.messages import DeliveryMode, Message, PendingMessage
from postroom.contracts.run_stores import Committed, ThreadCommit
from postroom.contracts.runs import RunRecord, Thread
from postroom.stores.codec import encode
from postroom.stores.events import EventTables, appending
from postroom.stores.outbox import OutboxTables, storing
from postroom.stores.runs.asking import Found, asked, dispatch_look, queue_look, run_look, thread_look
from postroom.stores.runs.commits import (
    WrittenCommit,
    commit_looks,
    left,
    lost,
    thread_after,
    thread_before,
)
from postroom.stores.runs.deliveries import delivered
from postroom.stores.runs.dispatches import Dispatches
from postroom.stores.runs.messages import Messages, message_values
from postroom.stores.runs.threads import Threads
from postroom.stores.sql_transaction import SqlTransaction


class RunTables(run_tables.RunTables):
    """Dispatches, threads and messages in one open transaction, and the steps that write to all of them."""

    def __init__(
        self,
        sql: SqlTransaction,
        now: Callable[[], int],
        tell: Callable[..., None],
        new_id: Callable[[], str],
    ) -> None:
        self._sql = sql
        self._now = now
        self._tell = tell
        self._new_id = new_id
        self._dispatches = Dispatches(sql, now, tell, new_id)
        self._threads = Threads(sql, now)
        self._messages = Messages(sql, now)

    @property
    @override
    def dispatches(self) -> Dispatches:
        return self._dispatches

    @property
    @override
    def threads(self) -> Threads:
        return self._threads

    @property
    @override
    def messages(self) -> Messages:
        return self._messages

    @override
    def at(self, now: int) -> Self:
        return type(self)(self._sql, lambda: now, self._tell, self._new_id)

    @override
    def owned_run(self, dispatch: RunDispatch) -> RunRecord | None:
        looks = thread_look(dispatch.thread_id) | dispatch_look(dispatch.dispatch_id)
        asked(self._sql, run_look(dispatch.run_id) | queue_look(dispatch.thread_id) | looks)
        return self._threads.load_run(dispatch.run_id)

    @override
    def begin(self, dispatch: RunDispatch, run: RunRecord | None) -> None:
        if run is not None:
            thread = self._threads.load(run.thread_id)
            if thread is not None:
                self._threads.move(thread.after(run))
            self._threads.put_run(run, encode(run))
        self._dispatches.put(dispatch)

    @override
    def commit(self, step: ThreadCommit) -> Committed | StaleClaim:
        written, now = WrittenCommit.of(step, self._new_id), self._now()
        step.refuse_unclaimed_move()
        found = asked(self._sql, commit_looks(written, now))
        owned = self._owned(written, found)
        if isinstance(owned, StaleClaim):
            return owned
        before = thread_before(step, found, now)
        after = thread_after(before, step, found, now)
        moved = step.moved(owned, now=now) if owned and step.moves_owned else None
        brought = delivered(step, step.delivery, found, now, self._new_id) if step.delivery else None
        appended = appending(written.events, found, now) if written.events else None
        stored = storing(written.effects, found, now) if written.effects else None
        queued, waiting = left(step, found)
        # All is decided; from here on everything is written.
        self._write_thread(written, before, after, found, now)
        if moved is not None:
            self.dispatches.put(moved)
        if brought is not None:
            brought.write(self.dispatches)
        if appended is not None:
            EventTables(self._sql, self._now, self._tell, self._new_id).write(appended)
        if stored is not None:
            OutboxTables(self._sql, self._now, self._tell, self._new_id).write(stored)
        return Committed(
            message_count=after.message_count,
            dispatch=brought.dispatch if brought else moved,
            claimed=brought.claimed if brought else None,
            interrupt=brought.interrupt if brought else None,
            leaves_queued=queued,
            leaves_waiting=waiting,
            events=() if appended is None else appended.events,
            outbox=() if stored is None else stored.effects,
        )

    @override
    def append_waiting(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode
    ) -> tuple[PendingMessage, ...]:
        added = self.messages.append_waiting(thread_id, messages, mode)
        self.threads.made(thread_id)
        return added

    def _owned(self, written: WrittenCommit, found: Found) -> RunDispatch | StaleClaim | None:
        """Return the dispatch that the writer owns, if it claims to own one, or why it does not."""
        claim = written.step.claim
        if claim is None:
            return None
        try:
            owned = self.dispatches.proved(claim, next(iter(found["dispatch", claim.dispatch_id]), None))
        except UnknownDispatch as error:
            return lost(error)
        thread_id = written.step.thread_id
        if isinstance(owned, RunDispatch) and owned.thread_id != thread_id:
            raise ForeignThread(f"the claim is one of thread {owned.thread_id!r}", value=thread_id)
        return owned

    def _write_thread(
        self, written: WrittenCommit, before: Thread, after: Thread, found: Found, now: int
    ) -> None:
        step = written.step
        if not found["thread", step.thread_id]:
            self.threads.put(after)
        elif after is not before:
            self.threads.move(after)
        said = enumerate(written.messages, start=before.message_count + 1)
        if values := [message_values(after.id, seq, one, body, now) for seq, (one, body) in said]:
            self._sql.run_many("threads.append_message", values)
        if step.consumes:
            self.messages.take(after.id, step.consumes)
        if step.run is not None:
            self.threads.put_run(step.run, written.run)
        if written.state is not None:
            self.threads.put_state(after.id, written.state)
        if step.spends:
            self.threads.spend(step.spends)
