"""The stores for runs of one file, and the same steps for a change that writes mail as well."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from postroom.contracts.clock import Clock
from postroom.contracts.dispatch import Interrupt, RunDispatch
from postroom.contracts.errors import StaleClaim
from postroom.contracts.events import CanonicalEvent, CanonicalEventDraft
from postroom.contracts.messages import DeliveryMode, Message, PendingMessage
from postroom.contracts.outbox import OutboxDraft, OutboxMessage
from postroom.contracts.run_stores import Committed, SubmissionFacts, ThreadCommit
from postroom.contracts.runs import RunRecord, Thread
from postroom.stores.sqlite.runs import commits, events, outbox, queue, thread_steps
from postroom.stores.sqlite.runs.commits import SqliteCommitCoordinator
from postroom.stores.sqlite.runs.desk import Desk, SqliteWakeups
from postroom.stores.sqlite.runs.dispatches import SqliteDispatchStore
from postroom.stores.sqlite.runs.events import SqliteEventStore
from postroom.stores.sqlite.runs.outbox import SqliteOutboxStore
from postroom.stores.sqlite.runs.threads import SqliteThreadStore


class SqliteRunStores:
    """The stores for runs in the file that holds the mail. For one event loop."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._dispatches = SqliteDispatchStore(desk)
        self._threads = SqliteThreadStore(desk)
        self._events = SqliteEventStore(desk)
        self._outbox = SqliteOutboxStore(desk)
        self._coordinator = SqliteCommitCoordinator(desk)
        self._wakeups = SqliteWakeups(desk)

    @property
    def storage_identity(self) -> str | None:
        """Names the file; all parts have the same name."""
        return self._desk.identity

    @property
    def clock(self) -> Clock:
        """The clock that the stores go by."""
        return self._desk.clock

    @property
    def dispatches(self) -> SqliteDispatchStore:
        """The queue."""
        return self._dispatches

    @property
    def threads(self) -> SqliteThreadStore:
        """Threads, runs and messages."""
        return self._threads

    @property
    def events(self) -> SqliteEventStore:
        """The log."""
        return self._events

    @property
    def outbox(self) -> SqliteOutboxStore:
        """Effects that wait."""
        return self._outbox

    @property
    def coordinator(self) -> SqliteCommitCoordinator:
        """Writes over all of them in one transaction."""
        return self._coordinator

    @property
    def wakeups(self) -> SqliteWakeups:
        """Hints that there may be work."""
        return self._wakeups


class SqliteRunWrites:
    """Runs over the connection of a change that writes other things too; all of it stands or falls together.

    Each method promises what the port's does, and undoes what it wrote itself when it raises.
    """

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self.scopes: set[str] = set()
        """Those that events were added to."""

    def commit(self, step: ThreadCommit) -> Committed:
        """Write a step of a thread; see `CommitCoordinator.commit`."""
        written = commits.Written.of(step)
        with self._whole() as db:
            done = commits.write(db, written, self._now)
            if isinstance(done, StaleClaim):
                raise done
        self._note(done.events)
        return done

    def enqueue(self, dispatch: RunDispatch) -> RunDispatch:
        """Store a queued dispatch; see `DispatchStore.enqueue`."""
        with self._whole() as db:
            return queue.enqueue(db, dispatch)

    def interrupt(self, thread_id: str) -> Interrupt:
        """Raise the thread's epoch and supersede all that is queued; see `DispatchStore.interrupt`."""
        with self._whole() as db:
            return queue.interrupt(db, thread_id, self._now)

    def append_pending(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode
    ) -> tuple[PendingMessage, ...]:
        """Add messages behind those that wait; see `ThreadStore.append_pending`."""
        with self._whole() as db:
            return thread_steps.append_pending(db, thread_id, messages, mode, self._now)

    def append_event(self, draft: CanonicalEventDraft) -> CanonicalEvent:
        """Add an event to the end of its scopes; see `EventStore.append`."""
        with self._whole() as db:
            (event,) = events.append(db, (events.Written.of(draft),), self._now)
        self._note((event,))
        return event

    def enqueue_effect(self, draft: OutboxDraft) -> OutboxMessage:
        """Store an effect; see `OutboxStore.enqueue`."""
        with self._whole() as db:
            (stored,) = outbox.enqueue(db, (outbox.Written.of(draft),), self._now)
        return stored

    def submission_facts(self, thread_id: str, run_id: str | None = None) -> SubmissionFacts:
        """Return what a submission to the thread is decided on."""
        return thread_steps.submission_facts(self._connection, thread_id, run_id)

    def load_thread(self, thread_id: str) -> Thread | None:
        """Return one thread."""
        return thread_steps.load_thread(self._connection, thread_id)

    def load_run(self, run_id: str) -> RunRecord | None:
        """Return one run."""
        return thread_steps.load_run(self._connection, run_id)

    def _note(self, added: Sequence[CanonicalEvent]) -> None:
        for event in added:
            self.scopes.update(event.sequences)

    @contextmanager
    def _whole(self) -> Iterator[sqlite3.Connection]:
        """Undo what the block wrote when it raises, for a change that catches what is raised and goes on."""
        self._connection.execute("SAVEPOINT step")
        try:
            yield self._connection
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO step")
                self._connection.execute("RELEASE step")
            raise
        self._connection.execute("RELEASE step")
