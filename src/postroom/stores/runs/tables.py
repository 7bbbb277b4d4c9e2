"""The runs in a transaction: `tx.runs`, beside `tx.events` and `tx.outbox`.

A change first locks everything on which its decision depends, in one call (`thread_lock`, and the `locks` of
commits, events and effects). The time is read after that, when it is first needed. A step of a thread sends
all its queries at once, then decides, and then writes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    ActiveRunConflict,
    DuplicateRecord,
    ForeignThread,
    IllegalTransition,
    InvalidRecord,
    QueueFull,
    StaleClaim,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.messages import DeliveryMode, Message, PendingMessage, refuse_broken_delta
from postroom.contracts.records import replace
from postroom.contracts.run_stores import Beginning, Committed, ThreadCommit, ThreadState
from postroom.contracts.runs import LEGAL_MOVES, RunRecord, RunStatus, Thread
from postroom.stores.codec import encode, is_answer, with_answer
from postroom.stores.events import WrittenEvent, appending, event_looks
from postroom.stores.outbox import effect_looks
from postroom.stores.runs import rows
from postroom.stores.runs.dispatches import Dispatches, refuse_taken, state_look
from postroom.stores.runs.messages import Messages, refuse_changed
from postroom.stores.runs.threads import Threads, no_parent, own_ancestor
from postroom.stores.runs.together import Together
from postroom.stores.sql_transaction import Found, Look, Tables, asked

if TYPE_CHECKING:
    from postroom.stores.store import Transaction


class RunTables(Tables):
    """The rows of dispatches, threads and messages in one transaction."""

    dispatches: Dispatches
    threads: Threads
    messages: Messages

    def __init__(self, tx: "Transaction") -> None:
        super().__init__(tx)
        self._tx = tx
        self.dispatches = Dispatches(tx)
        self.threads = Threads(tx)
        self.messages = Messages(tx)

    def together(
        self,
        messages: Mapping[str, Collection[str]],
        run_ids: Collection[str],
        dispatch_ids: Collection[str],
        at_most: int,
    ) -> Together:
        """Read all data on which many new runs depend, and return an object that adds the runs.

        `messages` contains the ids of new messages, keyed by thread. Queued dispatches of a thread are
        counted up to `at_most`.
        """
        return Together(self._tx).look(messages, run_ids, dispatch_ids, at_most)

    def state(self, look: Look, *others: Look) -> ThreadState:
        """Return the result of a query that `state_look` returned.

        The results of the queries `others` are read and cached.
        """
        result = asked(self._sql, (look, *others))
        return rows.thread_state(result[look[0], *look[1].values()][0])

    def begin(self, dispatch: RunDispatch, run: RunRecord | None) -> None:
        """Store a claimed dispatch and, if given, its run, which starts with the claim."""
        if run is not None:
            thread = self.threads.load(run.thread_id)
            if thread is not None:
                self.threads.move(thread.after(run))
            self.threads.put_run(run)
        self.dispatches.put(dispatch)

    def commit(
        self, step: ThreadCommit, following: Beginning | None = None, *, state: ThreadState | None = None
    ) -> Committed | StaleClaim:
        """Write a step of a thread, or return StaleClaim without writing if the claim of the step was lost.

        `following` is a dispatch, with its run, that starts in the same transaction. `state` is the state of
        the thread if this transaction has already read the thread.

        Raises:
            PostroomError: As for `CommitCoordinator.commit`; the change must be rolled back.
        """
        now = self._now()
        message_ids = refuse_broken_delta(step.messages) if step.messages and not step.are_new else ()
        answer = with_answer(step.run or step.ended_before)
        drafts = _Drafts(self._tx, step, answer) if step.events or step.outbox else None
        looks = [] if drafts is None else drafts.looks
        looks = looks if step.joins is None and not step.consumes else further_looks(step, looks)
        if state is None:
            state = self.state(commit_look(step, message_ids), *looks)
        found_rows = asked(self._sql, looks) if looks else {}
        moved: RunDispatch | None = None
        if step.claim is not None:
            if state.owned is None:
                lost = f"the claim was lost: no dispatch {step.claim.dispatch_id!r}"
                return StaleClaim(lost, value=step.claim.dispatch_id)
            is_foreign = state.owned.thread_id != step.thread_id
            owned = self.dispatches.proved(step.claim, state.owned, 0 if is_foreign else state.epoch)
            if isinstance(owned, StaleClaim):
                return owned
            if is_foreign:
                raise ForeignThread(f"the claim belongs to thread {owned.thread_id!r}", value=step.thread_id)
            if step.begins is not None:
                owned = moved = owned.record_dispatch_start(step.begins, now=now)
            if step.ends is not None:
                moved = owned.record_run_result(step.ends, now=now).acked(now=now)
        before = thread_before(step, state, found_rows, now)
        if step.queues is not None:
            moved = as_queued(step, step.queues, state, now, self._new_id)
        if drafts is not None:
            drafts.decide(found_rows, now)
        next_dispatch, next_run = following or (None, None)
        after = before.with_messages(len(step.messages), now=now)
        for run in filter(None, (step.run, next_run)):
            after = after.after(run)
        # All decisions are made. From here on, everything is written.
        if state.thread is None:
            self._sql.run("threads.put_thread", rows.thread_values(after))
        elif after is not before:
            self._sql.run("threads.move_thread", rows.thread_values(after))
        if step.run is not None:
            is_known = state.run is not None
            self._sql.run("threads.put_run" if is_known else "threads.add_run", rows.run_values(step.run))
            is_left = step.run.status is RunStatus.DONE and bool(step.run.answered)
            if step.run.holds_others or is_left or (state.run is not None and state.run.holds_others):
                self.threads.put_questions(step.run)
        if next_run is not None:
            self._sql.run("threads.put_run", rows.run_values(next_run))
        if step.messages:
            values = rows.message_values(after.id, step.messages, before.message_count + 1, now, step.run)
            self._sql.run_many("threads.append_message", values)
        if step.answer is not None and answer is not None and is_answer(step.answer, answer):
            self.messages.refer(after.id, step.answer, answer)
        if step.consumes:
            self.messages.take(after.id, step.consumes)
        if step.summary is not None:
            self.messages.put_summary(after.id, step.summary)
        if step.thread_state is not None:
            self.threads.put_state(after.id, encode(step.thread_state))
        if step.spends and (drafts is None or not drafts.were_stored):
            self.threads.spend(step.spends)
        queued, waiting = (0, 0) if step.ends is None else (state.queued, state.waiting)
        if moved is not None and step.queues is not None:
            self.dispatches.insert(moved)
        elif moved is not None:
            self.dispatches.put(moved, is_last=step.ends is not None and not queued, answer=answer)
        if next_dispatch is not None:
            self.dispatches.put(next_dispatch)
        done = Committed(
            message_count=after.message_count,
            dispatch=moved,
            leaves_queued=queued > 0,
            leaves_waiting=waiting > len(set(step.consumes)),
        )
        return done if drafts is None else drafts.written(done)

    def append_waiting(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode
    ) -> tuple[PendingMessage, ...]:
        """Append pending messages to a thread, which is created if it does not exist.

        Raises:
            InvalidRecord, DuplicateRecord: As for `ThreadStore.append_pending`.
        """
        added = self.messages.append_waiting(thread_id, messages, mode)
        self.threads.made(thread_id)
        return added

    def put_waiting(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, at_most: int | None
    ) -> None:
        """Append pending messages to a thread without reading the messages that are already pending.

        Raises:
            InvalidRecord, DuplicateRecord: As for `append_waiting`.
            QueueFull: More than `at_most` messages would be pending on the thread.
        """
        self.messages.put_waiting(thread_id, messages, mode, at_most)
        self.threads.made(thread_id)


class _Drafts:
    """The events and effects of a commit."""

    def __init__(self, tx: "Transaction", step: ThreadCommit, answer: RunRecord | None) -> None:
        self._tables = tx.events, tx.outbox
        self._events = tuple(WrittenEvent.of(draft, tx.new_id, answer) for draft in step.events)
        self._effects = tx.outbox.written(step.outbox)
        self.looks = event_looks(self._events) + effect_looks(self._effects)
        """The queries that `decide` needs for these events and effects."""

    def decide(self, found: Found, now: int) -> None:
        """Determine which events and effects are new.

        Raises:
            IdempotencyConflict, VersionConflict: As for `EventTables.append` and `OutboxTables.enqueue`.
        """
        self._all, self._new = appending(self._events, found, now)
        self._outbox, self._new_effects = self._tables[1].decided(self._effects, found, now)

    @property
    def were_stored(self) -> bool:
        """Whether the commit has events, and all of them were already stored."""
        return bool(self._events) and not self._new

    def written(self, done: Committed) -> Committed:
        """Write the events and effects that are not stored yet.

        The returned commit contains these, and the events and effects that were already stored.
        """
        events, outbox = self._tables
        events.write(self._new)
        outbox.write(self._new_effects)
        return replace(done, events=self._all, outbox=self._outbox)


def commit_look(step: ThreadCommit, message_ids: tuple[str, ...]) -> Look:
    """Return the query for the state of the thread that a commit depends on."""
    new, run = step.queues, step.run or step.ended_before
    return state_look(
        step.thread_id,
        run_id="" if run is None else run.run_id,
        owned="" if step.claim is None else step.claim.dispatch_id,
        parent=step.parent_thread_id or "",
        adds=("", None, "") if new is None else (new.dispatch_id, new.dedupe_key, new.run_id),
        message_ids=message_ids,
        at_most=step.queue_cap or 1,
        waiting=len(step.consumes) + 1 if step.ends is not None else 1,
    )


def further_looks(step: ThreadCommit, looks: list[Look]) -> list[Look]:
    """Return the queries that a commit needs in addition to `commit_look`.

    `looks` contains the queries for the events and effects of the commit.
    """
    if step.joins is not None:
        looks = [*looks, ("dispatches.dispatch", {"dispatch_id": step.joins})]
    if step.consumes:
        ids = tuple([pending_version.pending_id for pending_version in step.consumes])
        parameters = {"thread_id": step.thread_id, "pending_ids": ids}
        looks = [*looks, ("threads.pending_versions", parameters)]
    return looks


def thread_before(step: ThreadCommit, state: ThreadState, found: Found, now: int) -> Thread:
    """Return the stored thread of a commit, or a new thread.

    Raises:
        PostroomError: As for `CommitCoordinator.commit`.
    """
    thread_id, parent, known_thread, run = step.thread_id, step.parent_thread_id, state.thread, step.run
    count, stored_run = state.message_count, state.run
    if step.begins is not None or step.ends is not None:
        if step.claim is not None and step.queues is not None:
            raise InvalidRecord("a commit that starts or ends one execution cannot queue another")
        begins_its = step.queues is not None and step.claimed_by is not None
        if step.claim is None and (step.ends is not None or not begins_its):
            raise InvalidRecord("a commit that starts or ends an execution must name its claim")
    if known_thread is None and step.claim is not None:  # a commit without a claim creates the thread
        raise UnknownThread(f"thread {thread_id!r} no longer exists", value=thread_id)
    if found:
        refuse_others_first(step, found)
    if run is not None:
        if run.thread_id != thread_id:
            raise ForeignThread(f"run {run.run_id!r} belongs to thread {run.thread_id!r}", value=run.run_id)
        if step.replaces is not None and stored_run != step.replaces:
            raise VersionConflict(f"run {run.run_id!r} has changed", value=run.run_id)
        if stored_run is not None and stored_run.thread_id != thread_id:
            raise IllegalTransition("a run cannot change its thread", value=run.run_id)
        if stored_run is not None and run.status not in LEGAL_MOVES[stored_run.status]:
            text = f"a run with the status {stored_run.status} cannot get the status {run.status}"
            raise IllegalTransition(text, value=run.run_id)
    if step.expected_message_count not in (None, count):
        raise VersionConflict(
            f"thread {thread_id!r} has {count} messages, not {step.expected_message_count}",
            value=thread_id,
            details={"expected": step.expected_message_count, "actual": count},
        )
    if step.messages and not step.are_new and (twice := state.known_message) is not None:
        raise DuplicateRecord(f"message {twice!r} is already committed", value=twice)
    if known_thread is not None:
        return known_thread
    if parent == thread_id:
        raise own_ancestor(thread_id)
    if parent is not None and not state.has_parent:
        raise no_parent(parent)
    return Thread(id=thread_id, parent_thread_id=parent, created_at=now, updated_at=now)


def refuse_others_first(step: ThreadCommit, found: Found) -> None:
    """Check that the dispatch and the pending messages of a commit have not changed.

    Raises:
        VersionConflict: The dispatch or a message has changed.
    """
    thread_id, joins = step.thread_id, step.joins
    if joins is not None:
        row = found["dispatches.dispatch", joins]
        joined = rows.dispatch(row[0]) if row else None
        queued = joined is not None and joined.status is RunDispatchStatus.QUEUED
        if joined is None or not queued or joined.thread_id != thread_id:
            raise VersionConflict(f"dispatch {joins!r} is no longer queued", value=joins)
    if step.consumes:
        ids = tuple([pending_version.pending_id for pending_version in step.consumes])
        refuse_changed(found["threads.pending_versions", thread_id, ids], step.consumes)


def as_queued(
    step: ThreadCommit, dispatch: RunDispatch, state: ThreadState, now: int, new_id: Callable[[], str]
) -> RunDispatch:
    """Return the dispatch of a commit as it will be stored: queued, or claimed and started.

    Raises:
        InvalidRecord, DuplicateRecord, DedupeKeyInUse, RunNotOpen, QueueFull, ActiveRunConflict,
            ForeignThread: As for `CommitCoordinator.commit`.
    """
    asks, cap, thread_id = step.claimed_by, step.queue_cap, step.thread_id
    if dispatch.thread_id != thread_id:
        raise ForeignThread(f"the dispatch belongs to thread {dispatch.thread_id!r}", value=dispatch.run_id)
    if asks is not None and state.held_by not in (None, dispatch.run_id):
        raise ActiveRunConflict(
            f"run {state.held_by!r} of thread {thread_id!r} waits for an answer, and later runs of the "
            f"thread wait for that run",
            value=thread_id,
            remedy="answer the question, or cancel that run",
        )
    if asks is not None and state.claimed is not None:
        raise ActiveRunConflict(
            f"thread {thread_id!r} has an active run: dispatch {state.claimed!r} is claimed",
            value=thread_id,
            details={"dispatch_id": state.claimed},
        )
    stored = dispatch.prepared_for_enqueue(epoch=state.epoch)
    if state.taken:
        refuse_taken(dispatch, state.taken)
    if cap is not None and state.queued >= cap:
        raise QueueFull(f"thread {thread_id!r} already has {cap} queued dispatches", value=thread_id)
    if asks is None:
        return stored
    return stored.claim(
        token=new_id(), consumer=asks.consumer, lease_ms=asks.lease_ms, now=now, begins=step.begins
    )
