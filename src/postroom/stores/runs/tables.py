"""The runs in an open transaction: `tx.runs`, next to `tx.events` and `tx.outbox`.

A change first locks everything that it decides on (`thread_lock`, and the `locks` of commits, events and
effects), in one call; the instant is read after that, at its first use. A step of a thread makes all its
queries at once, then decides, then writes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import Claim, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    ActiveRunConflict,
    DuplicateRecord,
    ForeignThread,
    QueueFull,
    StaleClaim,
    UnknownDispatch,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.live import LiveRunCommand
from postroom.contracts.messages import DeliveryMode, Message, PendingMessage, refuse_broken_delta
from postroom.contracts.records import replace
from postroom.contracts.run_stores import Beginning, Committed, Delivery, ThreadCommit
from postroom.contracts.runs import RunRecord, Thread
from postroom.stores.answers import Answer
from postroom.stores.codec import encode
from postroom.stores.events import EventTables, WrittenEvent, appending, event_looks
from postroom.stores.outbox import OutboxTables, effect_looks
from postroom.stores.runs import rows
from postroom.stores.runs.dispatches import Dispatches, due_look, refuse_taken, state_look
from postroom.stores.runs.messages import Messages, refuse_changed
from postroom.stores.runs.rows import ThreadState
from postroom.stores.runs.threads import Threads, new_thread, no_parent, own_ancestor
from postroom.stores.runs.together import Together
from postroom.stores.sql_transaction import Found, Look, Row, SqlTransaction, Tables


class RunTables(Tables):
    """Dispatches, threads and messages in one open transaction, and the steps that write to all of them."""

    dispatches: Dispatches
    threads: Threads
    messages: Messages

    def __init__(
        self,
        sql: SqlTransaction,
        now: Callable[[], int],
        tell: Callable[..., None],
        new_id: Callable[[], str],
        outbox: OutboxTables | None = None,
    ) -> None:
        super().__init__(sql, now, tell, new_id)
        self._outbox = outbox or OutboxTables(sql, now, tell, new_id)
        self.dispatches = Dispatches(sql, now, tell, new_id)
        self.threads = Threads(sql, now, tell, new_id)
        self.messages = Messages(sql, now, tell, new_id)

    def together(
        self,
        messages: Mapping[str, Collection[str]],
        run_ids: Collection[str],
        dispatch_ids: Collection[str],
        at_most: int,
    ) -> Together:
        """Read at once the facts on which new runs are decided: threads, with the ids of their new messages.

        Queued dispatches of a thread are counted up to `at_most`.
        """
        together = Together(self._sql, self._now, self._tell, self._new_id)
        return together.look(messages, run_ids, dispatch_ids, at_most)

    def owned_run(
        self, dispatch: RunDispatch, now: int | None = None
    ) -> tuple[RunRecord | None, list[LiveRunCommand]]:
        """Return the run of a claimed dispatch, and the commands to it during its execution.

        All facts that decide the end of the run are read with it: with `now`, also the dispatch that is due
        next.
        """
        state_of = state_look(dispatch.thread_id, run_id=dispatch.run_id, owned=dispatch.dispatch_id)
        looks = [state_of]
        if now is not None:
            looks.append(due_look(dispatch.thread_id, now, dispatch))
        state = rows.thread_state(self._asked(looks)[state_of[0], *state_of[1].values()][0])
        if not state.has_commands:
            return state.run, []
        commands = self.dispatches.commands((dispatch.dispatch_id,))
        return state.run, [command for _, command in commands]

    def begin(self, dispatch: RunDispatch, run: RunRecord | None) -> None:
        """Store a dispatch that this change claims, and its run if the run starts with it."""
        if run is not None:
            thread = self.threads.load(run.thread_id)
            if thread is not None:
                self.threads.move(thread.after(run))
            self.threads.put_run(run)
        self.dispatches.put(dispatch)

    def commit(self, step: ThreadCommit, following: Beginning | None = None) -> Committed | StaleClaim:
        """Write a step of a thread; if its claim was lost, it is refused before anything else is written.

        The dispatch `following` the ended one is stored in the same step, as `begin` does.

        Raises:
            PostroomError: As for `CommitCoordinator.commit`; the change must be rolled back.
        """
        step.refuse_unclaimed_move()
        now, thread_id, delivery = self._now(), step.thread_id, step.delivery
        message_ids = refuse_broken_delta(step.messages) if step.messages and not step.are_new else ()
        answer = Answer.of(step.run or step.ended_before)
        drafts = self._drafts(step, answer) if step.events or step.outbox else None
        looks = commit_looks(step, message_ids)
        found = self._asked(looks if drafts is None else looks + drafts.looks)
        state = rows.thread_state(found[looks[0][0], *looks[0][1].values()][0])
        moved = None
        if step.claim is not None:
            owned = self._owned(step.claim, thread_id, state.owned)
            if isinstance(owned, StaleClaim):
                return owned
            moved = step.moved(owned, now=now)
        before = thread_before(step, message_ids, state, found, now)
        refuse_unwritable_run(step, before, state.run)
        if delivery is not None:
            moved = delivered(step, delivery, state, now, self._new_id)
        if drafts is not None:
            drafts.decide(found, now)
        # All is decided; from here on everything is written.
        next_dispatch, next_run = following or (None, None)
        runs = [run for run in (step.run, next_run) if run is not None]
        thread = before.with_messages(len(step.messages), now=now)
        for run in runs:
            thread = thread.after(run)
        self._write_thread(step, before, thread, runs, answer, is_new=state.thread is None)
        if step.spends and (drafts is None or not drafts.were_stored):
            self.threads.spend(step.spends)
        queued, waiting = (0, 0) if step.ends is None else (state.queued, state.waiting)
        if moved is not None and delivery is not None:
            self.dispatches.insert(moved)
        elif moved is not None:
            is_last = step.ends is not None and not queued
            self.dispatches.put(moved, is_last=is_last, answer=answer)
        if next_dispatch is not None:
            self.dispatches.put(next_dispatch)
        done = Committed(
            message_count=thread.message_count,
            dispatch=moved,
            leaves_queued=queued > 0,
            leaves_waiting=waiting > len(set(step.consumes)),
        )
        return done if drafts is None else drafts.written(done)

    def append_waiting(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode
    ) -> tuple[PendingMessage, ...]:
        """Append pending messages; a missing thread is created.

        Raises:
            InvalidRecord, DuplicateRecord: As for `ThreadStore.append_pending`.
        """
        added = self.messages.append_waiting(thread_id, messages, mode)
        self.threads.made(thread_id)
        return added

    def put_waiting(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, at_most: int | None
    ) -> None:
        """Append pending messages as `append_waiting` does, at a cost independent of those that wait.

        Raises:
            InvalidRecord, DuplicateRecord: As for `append_waiting`.
            QueueFull: The thread would have more than `at_most` pending messages.
        """
        self.messages.put_waiting(thread_id, messages, mode, at_most)
        self.threads.made(thread_id)

    def _drafts(self, step: ThreadCommit, answer: Answer | None) -> "_Drafts":
        events = EventTables(self._sql, self._now, self._tell, self._new_id)
        return _Drafts(events, self._outbox, step, answer, self._new_id)

    def _owned(self, claim: Claim, thread_id: str, row: Row | None) -> RunDispatch | StaleClaim:
        """Return the dispatch that the writer owns, or the reason why it does not."""
        try:
            owned = self.dispatches.proved(claim, row)
        except UnknownDispatch as error:
            return StaleClaim(f"the claim was lost: {error.message}", value=error.value)
        if isinstance(owned, RunDispatch) and owned.thread_id != thread_id:
            raise ForeignThread(f"the claim belongs to thread {owned.thread_id!r}", value=thread_id)
        return owned

    def _write_thread(
        self,
        step: ThreadCommit,
        before: Thread,
        after: Thread,
        runs: Sequence[RunRecord],
        answer: Answer | None,
        *,
        is_new: bool,
    ) -> None:
        """Write the thread, messages, run and the records that depend on them."""
        if is_new:
            self.threads.put(after)
        elif after is not before:
            self.threads.move(after)
        if step.messages:
            self.messages.append(after.id, step.messages, before.message_count + 1, step.run)
        if step.answer is not None and answer is not None and answer.is_told_by(step.answer):
            self.messages.refer(after.id, step.answer, answer)
        if step.consumes:
            self.messages.take(after.id, step.consumes)
        if step.summary is not None:
            self.messages.put_summary(after.id, step.summary)
        for run in runs:
            self.threads.put_run(run)
        if step.thread_state is not None:
            self.threads.put_state(after.id, encode(step.thread_state))


class _Drafts:
    """The events and effects of a commit."""

    def __init__(
        self,
        events: EventTables,
        outbox: OutboxTables,
        step: ThreadCommit,
        answer: Answer | None,
        new_id: Callable[[], str],
    ) -> None:
        self._tables = events, outbox
        self._events = tuple(WrittenEvent.of(draft, new_id, answer) for draft in step.events)
        self._effects = outbox.written(step.outbox)
        self.looks = event_looks(self._events) + effect_looks(self._effects)
        """The queries that decide about them."""

    def decide(self, found: Found, now: int) -> None:
        """Decide which of them are new.

        Raises:
            IdempotencyConflict, VersionConflict: As for `EventTables.append` and `OutboxTables.enqueue`.
        """
        self._all, self._new = appending(self._events, found, now)
        self._outbox, self._new_effects = self._tables[1].decided(self._effects, found, now)

    @property
    def were_stored(self) -> bool:
        """Whether all events, at least one, were stored before.

        The commit repeats one whose reply was lost.
        """
        return bool(self._events) and not self._new

    def written(self, done: Committed) -> Committed:
        """Write the new ones, and return the commit with all of them."""
        events, outbox = self._tables
        events.write(self._new)
        outbox.write(self._new_effects)
        return replace(done, events=self._all, outbox=self._outbox)


def likely_looks(request: RunActivation, run_id: str, dispatch_id: str, at_most: int) -> list[Look]:
    """Return the queries for the commit of a request that creates this run and dispatch."""
    thread_id, parent = request.thread_id, request.trace.parent_thread_id or ""
    adds = dispatch_id, request.delivery.dedupe_key, run_id
    looks = [state_look(thread_id, run_id=run_id, parent=parent, adds=adds, at_most=at_most)]
    if message_ids := tuple(message.id for message in request.messages if message.id):
        looks.append(("threads.committed", {"thread_id": thread_id, "message_ids": message_ids}))
    return looks


def commit_looks(step: ThreadCommit, message_ids: tuple[str, ...]) -> list[Look]:
    """Return the queries for a commit, except for its events and effects; the first is for the state."""
    thread_id, delivery, run = step.thread_id, step.delivery, step.run or step.ended_before
    new = None if delivery is None else delivery.dispatch
    looks = [
        state_look(
            thread_id,
            run_id="" if run is None else run.run_id,
            owned="" if step.claim is None else step.claim.dispatch_id,
            parent=step.parent_thread_id or "",
            adds=("", None, "") if new is None else (new.dispatch_id, new.dedupe_key, new.run_id),
            at_most=1 if delivery is None else delivery.queue_cap or 1,
            waiting=len(step.consumes) + 1 if step.ends is not None else 1,
        )
    ]
    if step.joins is not None:
        looks.append(("dispatches.dispatch", {"dispatch_id": step.joins}))
    if step.consumes:
        ids = tuple(one.pending_id for one in step.consumes)
        looks.append(("threads.pending_versions", {"thread_id": thread_id, "pending_ids": ids}))
    if message_ids:
        looks.append(("threads.committed", {"thread_id": thread_id, "message_ids": message_ids}))
    return looks


def thread_before(
    step: ThreadCommit, message_ids: tuple[str, ...], state: ThreadState, found: Found, now: int
) -> Thread:
    """Return the thread before the commit, or a new one; refuse an invalid commit.

    Raises:
        VersionConflict, InvalidRecord, DuplicateRecord, UnknownThread: As for `CommitCoordinator.commit`.
    """
    thread_id, parent = step.thread_id, step.parent_thread_id
    known = state.thread
    if known is None and step.claim is not None:  # a commit that nobody owns makes the thread
        raise UnknownThread(f"thread {thread_id!r} no longer exists", value=thread_id)
    if step.joins is not None:
        _refuse_not_joined(step, step.joins, found)
    if step.consumes:
        ids = tuple(one.pending_id for one in step.consumes)
        refuse_changed(found["threads.pending_versions", thread_id, ids], step.consumes)
    count = known.message_count if known else 0
    if step.expected_message_count not in (None, count):
        raise VersionConflict(
            f"thread {thread_id!r} has {count} messages, not {step.expected_message_count}",
            value=thread_id,
            details={"expected": step.expected_message_count, "actual": count},
        )
    if message_ids:
        for [twice] in found["threads.committed", thread_id, message_ids]:
            raise DuplicateRecord(f"message {twice!r} is committed already", value=twice)
    if known is not None:
        return known
    if parent == thread_id:
        raise own_ancestor(thread_id)
    if parent is not None and not state.has_parent:
        raise no_parent(parent)
    return new_thread(thread_id, now, parent)


def _refuse_not_joined(step: ThreadCommit, joins: str, found: Found) -> None:
    row = found["dispatches.dispatch", joins]
    joined = rows.dispatch(row[0]) if row else None
    queued = joined is not None and joined.status is RunDispatchStatus.QUEUED
    if joined is None or not queued or joined.thread_id != step.thread_id:
        raise VersionConflict(f"dispatch {joins!r} is no longer queued", value=joins)


def refuse_unwritable_run(step: ThreadCommit, thread: Thread, before: RunRecord | None) -> None:
    """Refuse to write the run of a commit over the stored run if it must not follow it.

    Raises:
        ForeignThread: The run belongs to another thread.
        IllegalTransition: The state machine has no arrow from the stored state.
        VersionConflict: The run has changed since it was read.
    """
    run = step.run
    if run is None:
        return
    if run.thread_id != thread.id:
        raise ForeignThread(f"run {run.run_id!r} belongs to thread {run.thread_id!r}", value=run.run_id)
    if step.replaces is not None and before != step.replaces:
        raise VersionConflict(f"run {run.run_id!r} has changed", value=run.run_id)
    run.refuse_illegal_move(before)


def delivered(
    step: ThreadCommit, delivery: Delivery, state: ThreadState, now: int, new_id: Callable[[], str]
) -> RunDispatch:
    """Return the dispatch of a commit in its stored form: queued, or claimed and started.

    Raises:
        InvalidRecord, DuplicateRecord, DedupeKeyInUse, RunNotOpen, QueueFull, ActiveRunConflict,
            ForeignThread: As for `CommitCoordinator.commit`.
    """
    asked, asks, cap, thread_id = delivery.dispatch, delivery.claim, delivery.queue_cap, step.thread_id
    if asked.thread_id != thread_id:
        raise ForeignThread(f"the dispatch is of thread {asked.thread_id!r}", value=asked.run_id)
    if asks is not None and state.held_by not in (None, asked.run_id):
        raise ActiveRunConflict(
            f"run {state.held_by!r} of thread {thread_id!r} waits for an answer, and others behind it",
            value=thread_id,
            remedy="answer the question, or cancel that run",
        )
    if asks is not None and state.claimed is not None:
        raise ActiveRunConflict(
            f"thread {thread_id!r} has an active run: dispatch {state.claimed!r} is claimed",
            value=thread_id,
            details={"dispatch_id": state.claimed},
        )
    stored = asked.prepared_for_enqueue(epoch=state.epoch)
    if state.taken:
        refuse_taken(asked, state.taken)
    if cap is not None and state.queued >= cap:
        raise QueueFull(f"thread {thread_id!r} already has {cap} queued dispatches", value=thread_id)
    if asks is None:
        return stored
    claimed = stored.claim(token=new_id(), consumer=asks.consumer, lease_ms=asks.lease_ms, now=now)
    return claimed if step.begins is None else claimed.record_dispatch_start(step.begins, now=now)
