"""The ports of runs on a store; each method is one read or change, and takes the locks that it needs.

The ports do not depend on the engine. Each method is one atomic step and takes plain values. A caller that
lost the result can repeat the call.

Methods that need the time accept `now`, in milliseconds since the epoch; by default they use the store's own
clock, which on PostgreSQL is the database's. If an object does not exist, a read returns None and a command
raises an error.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Final, Literal, TypeVar

from typing_extensions import override

from postroom.contracts.dispatch import Claim, Interrupt, RunDispatch, RunDispatchResult, RunDispatchStatus
from postroom.contracts.errors import StaleClaim, UnknownDispatch
from postroom.contracts.events import CanonicalEvent, CanonicalEventDraft, EventPage, EventScope
from postroom.contracts.limits import Spending
from postroom.contracts.messages import (
    DeliveryMode,
    Json,
    Message,
    MessageRecord,
    PendingMessage,
    PendingVersion,
)
from postroom.contracts.outbox import (
    NackOutcome,
    OutboxDraft,
    OutboxMessage,
    OutboxStatus,
    line_lock,
)
from postroom.contracts.records import replace
from postroom.contracts.run_stores import (
    FAMILIES,
    MAX_PAGE,
    ClaimRequest,
    CommitCoordinator,
    Committed,
    MessageQuery,
    Places,
    RunQuery,
    ThreadCommit,
    ThreadQuery,
    ThreadState,
    thread_lock,
)
from postroom.contracts.runs import Conversation, RunRecord, Thread, build_conversation
from postroom.stores.changes import WORK
from postroom.stores.runs.dispatches import state_look
from postroom.stores.runs.tables import RunTables
from postroom.stores.store import SqlStore, Transaction

T = TypeVar("T")

LOOK_AGAIN_AFTER: Final = timedelta(seconds=10)
"""The interval at which a waiting reader checks for events, because a notification may be lost."""


class _Port:
    def __init__(self, store: SqlStore) -> None:
        self._store = store

    @property
    def storage_identity(self) -> str | None:
        """The name of the database."""
        return self._store.identity


class _RunPort(_Port):
    async def _look(self, look: Callable[[RunTables], T], *, now: int | None = None) -> T:
        return await self._store.read(lambda tx: look(_at(tx, now).runs))

    async def _change(
        self,
        thread_id: str,
        change: Callable[[RunTables], T | StaleClaim],
        *,
        now: int | None = None,
    ) -> T:
        """Write in a transaction that locks a thread."""

        def locked(tx: Transaction) -> T | StaleClaim:
            tx.lock(thread_lock(thread_id))
            return change(_at(tx, now).runs)

        return await self._store.write(locked, key=thread_id)

    async def _change_dispatch(
        self, dispatch_id: str, change: Callable[[RunTables], T | StaleClaim], *, now: int | None = None
    ) -> T:
        """Write to a dispatch in a transaction that locks the thread of the dispatch."""
        thread_id = await self._look(lambda runs: runs.dispatches.thread_of(dispatch_id))
        if thread_id is None:  # the dispatch was deleted, or never existed
            return await self._store.write(lambda tx: change(_at(tx, now).runs))
        return await self._change(thread_id, change, now=now)


class DispatchStore(_RunPort):
    """The queue of dispatches; at most one dispatch of a thread is claimed at a time."""

    async def enqueue(self, dispatch: RunDispatch, *, now: int | None = None) -> RunDispatch:
        """Store a queued dispatch with the current epoch of its thread; return the stored record.

        Raises:
            InvalidRecord: The dispatch is not Queued.
            DuplicateRecord: A dispatch with this id exists, in any state; it is unchanged.
            DedupeKeyInUse: An open dispatch of the thread already has this dedupe key.
            RunNotOpen: The run already has an open dispatch.
        """
        return await self._change(dispatch.thread_id, lambda runs: runs.dispatches.enqueue(dispatch), now=now)

    async def claim(
        self, thread_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        """Claim the next due dispatch of a thread, or return None if no dispatch is due.

        The result is None while another dispatch of the thread is claimed. Due dispatches are claimed in the
        order of priority, age and id. Queued dispatches of an older epoch become superseded. Each claim has a
        new token.
        """
        asks = ClaimRequest(consumer=consumer, lease_ms=lease_ms)
        return await self._change(thread_id, lambda runs: runs.dispatches.claim(thread_id, asks), now=now)

    async def claim_dispatch(
        self, dispatch_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        """Claim a queued dispatch, even if it is not due.

        Return None if the dispatch is not queued or has an old epoch. Return None if another dispatch of the
        thread is claimed.
        """
        asks = ClaimRequest(consumer=consumer, lease_ms=lease_ms)
        return await self._change_dispatch(
            dispatch_id, lambda runs: runs.dispatches.claim_dispatch(dispatch_id, asks), now=now
        )

    async def record_dispatch_start(
        self, claim: Claim, instance_id: str, *, now: int | None = None
    ) -> RunDispatch:
        """Record that the execution of a claimed dispatch has started.

        Raises:
            StaleClaim: The claim was lost. A row whose epoch is older than the thread's becomes Superseded.
            UnknownDispatch: No dispatch has this id.
        """
        return await self._move(claim, lambda row, at: row.record_dispatch_start(instance_id, now=at), now)

    async def record_run_result(
        self, claim: Claim, result: RunDispatchResult, *, now: int | None = None
    ) -> RunDispatch:
        """Record the result of an execution; the dispatch stays claimed.

        Raises:
            InvalidRecord: The result belongs to another run. StaleClaim, UnknownDispatch: As for
                `record_dispatch_start`.
        """
        return await self._move(claim, lambda row, at: row.record_run_result(result, now=at), now)

    async def ack(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        """Record that a claimed dispatch is finished.

        Raises:
            StaleClaim, UnknownDispatch: As for `record_dispatch_start`.
        """
        return await self._move(claim, lambda row, at: row.acked(now=at), now)

    async def nack(
        self, claim: Claim, *, error: str, delay_ms: int = 0, now: int | None = None
    ) -> RunDispatch:
        """Requeue a claimed dispatch; after the last attempt, make the dispatch a dead letter.

        A requeued dispatch is due after `delay_ms`.

        Raises:
            StaleClaim, UnknownDispatch: As for `record_dispatch_start`.
        """
        return await self._move(
            claim, lambda row, at: row.nacked(error=error, delay_ms=delay_ms, now=at), now
        )

    async def release(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        """Requeue a claimed dispatch, due at once, without counting an attempt.

        Raises:
            StaleClaim, UnknownDispatch: As for `record_dispatch_start`.
        """
        return await self._move(claim, lambda row, at: row.released(now=at), now)

    async def dead_letter(self, claim: Claim, *, error: str, now: int | None = None) -> RunDispatch:
        """Make a claimed dispatch a dead letter.

        Raises:
            StaleClaim, UnknownDispatch: As for `record_dispatch_start`.
        """
        return await self._move(claim, lambda row, at: row.dead_lettered(error=error, now=at), now)

    async def extend_lease(self, claim: Claim, *, extension_ms: int, now: int | None = None) -> bool:
        """Extend a claim to `now + extension_ms`; return False if the claim was lost.

        A dispatch of an older epoch becomes superseded.
        """
        try:
            await self._move(claim, lambda row, at: row.extend_lease(extension_ms=extension_ms, now=at), now)
        except (StaleClaim, UnknownDispatch):
            return False
        return True

    async def _move(
        self, claim: Claim, move: Callable[[RunDispatch, int], RunDispatch], now: int | None
    ) -> RunDispatch:
        return await self._change_dispatch(
            claim.dispatch_id, lambda runs: runs.dispatches.move_owned(claim, move), now=now
        )

    async def cancel(self, dispatch_id: str, *, now: int | None = None) -> RunDispatch | None:
        """Cancel a dispatch, or return None if the dispatch is not queued."""
        return await self._change_dispatch(
            dispatch_id, lambda runs: runs.dispatches.cancel(dispatch_id), now=now
        )

    async def interrupt(self, thread_id: str, *, now: int | None = None) -> Interrupt:
        """Increase the epoch of a thread and supersede its queued dispatches.

        The claim of an active dispatch becomes stale.
        """
        return await self._change(thread_id, lambda runs: runs.dispatches.interrupt(thread_id), now=now)

    async def current_dispatch_epoch(self, thread_id: str) -> int:
        """Return the epoch of a thread, which starts at 0 and never decreases."""
        return await self._look(lambda runs: runs.dispatches.epoch(thread_id))

    async def supersede_claimed(
        self, claim: Claim, *, reason: str, now: int | None = None
    ) -> RunDispatch | None:
        """Supersede the dispatch of a claim, or return None if the dispatch is no longer claimed.

        Raises:
            StaleClaim: Another owner has claimed the dispatch.
        """
        return await self._change_dispatch(
            claim.dispatch_id,
            lambda runs: runs.dispatches.supersede_claimed(claim, reason),
            now=now,
        )

    async def reclaim_expired_leases(
        self, *, limit: int = 100, now: int | None = None
    ) -> tuple[RunDispatch, ...]:
        """Release up to `limit` dispatches whose lease expired before `now`, and return them.

        A released dispatch is requeued, or becomes a dead letter after its last attempt. Each dispatch is
        returned to only one caller. Dispatches of an older epoch become superseded and are not returned.
        """
        taken: list[RunDispatch] = []
        while (left := limit - len(taken)) > 0:
            overdue = await self._look(lambda runs: runs.dispatches.overdue(left), now=now)
            for dispatch in overdue:
                back = await self._change(
                    dispatch.thread_id,
                    lambda runs: runs.dispatches.reclaim(dispatch.dispatch_id),  # noqa: B023 - awaited at once
                    now=now,
                )
                taken += [back] if back else []
            if len(overdue) < left:
                break
        return tuple(taken)

    async def load_dispatch(self, dispatch_id: str) -> RunDispatch | None:
        """Return the dispatch with this id, or None."""
        return await self._look(lambda runs: runs.dispatches.load(dispatch_id))

    async def list_dispatches(
        self,
        thread_id: str,
        statuses: Collection[RunDispatchStatus] | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[RunDispatch, ...]:
        """Return the dispatches of a thread, ordered by priority, then by age, then by id."""
        chosen = frozenset(RunDispatchStatus if statuses is None else statuses)
        return await self._look(
            lambda runs: runs.dispatches.of_thread(thread_id, chosen, limit=page(limit), offset=offset)
        )

    async def claimed_dispatch(self, thread_id: str) -> RunDispatch | None:
        """Return the claimed dispatch of a thread, or None."""
        return await self._look(lambda runs: runs.dispatches.claimed(thread_id))

    async def list_by_status(
        self,
        status: RunDispatchStatus,
        *,
        limit: int = 100,
        after: tuple[int, str] | None = None,
        thread_prefix: str = "",
    ) -> tuple[RunDispatch, ...]:
        """Return dispatches with a status after the position `after`, ordered by last change, then by id.

        A position is a pair of `updated_at` and id. Only dispatches of threads whose ids begin with
        `thread_prefix` are returned.
        """
        return await self._look(
            lambda runs: runs.dispatches.by_status(
                status, limit=page(limit), after=after, thread_prefix=thread_prefix
            )
        )

    async def unreconciled_dispatches(self, *, limit: int = 100) -> tuple[RunDispatch, ...]:
        """Return up to `limit` ended dispatches whose runs were not updated yet, oldest first."""
        return await self._look(lambda runs: runs.dispatches.unreconciled(page(limit)))

    async def mark_reconciled(self, dispatch_ids: Sequence[str]) -> None:
        """Record that the runs of ended dispatches were updated; a second call has no effect."""
        if named := tuple(dispatch_ids):
            await self._store.write(lambda tx: tx.runs.dispatches.mark_reconciled(named))

    async def due_thread_ids(self, *, limit: int = 100, now: int | None = None) -> tuple[str, ...]:
        """Return up to `limit` threads with a due dispatch but no claimed one, most urgent first."""
        due = await self._look(lambda runs: runs.dispatches.due_threads(page(limit)), now=now)
        return tuple(dispatch.thread_id for dispatch in due)

    async def next_due_at(self, places: Places = None) -> int | None:
        """Return when the next dispatch is due: 0 for now, None for never.

        Threads with a claimed dispatch are skipped. Only threads that may run at one of `places` are
        searched.
        """
        return await self._look(lambda runs: runs.dispatches.next_due_at(places))

    async def queued_thread_ids(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        """Return threads with queued dispatches, ordered by id, from the first id after `after`."""
        return await self._look(lambda runs: runs.dispatches.queued_threads(page(limit), after))

    async def count_queued(self, thread_id: str, *, at_most: int) -> int:
        """Return the number of a thread's queued dispatches, at most `at_most`."""
        return await self._look(lambda runs: runs.dispatches.count_queued(thread_id, at_most))

    async def count_by_status(self) -> dict[RunDispatchStatus, int]:
        """Return the number of dispatches per status, as `Dispatches.count_by_status` describes."""
        return await self._look(lambda runs: runs.dispatches.count_by_status())

    async def hasten(self, dispatch_id: str) -> RunDispatch | None:
        """Make a delayed dispatch due at once; return None for any other dispatch."""
        return await self._change_dispatch(dispatch_id, lambda runs: runs.dispatches.hasten(dispatch_id))

    async def discard(self, dispatch_id: str) -> RunDispatch | None:
        """Delete a dead letter; return None for any other dispatch."""
        return await self._change_dispatch(dispatch_id, lambda runs: runs.dispatches.discard(dispatch_id))

    async def purge_terminal(self, *, older_than: int, dead_letters_older_than: int | None = None) -> int:
        """Delete ended dispatches that were last changed before `older_than`; return the number deleted.

        Dead letters have their own limit `dead_letters_older_than`, if given. A dispatch whose run was not
        updated yet is kept. The epochs of threads are kept.
        """
        removed = 0  # in several changes, so that a large purge does not delay others
        while gone := await self._store.write(
            lambda tx: tx.runs.dispatches.purge_some(older_than, dead_letters_older_than)
        ):
            removed += gone
        return removed


class ThreadStore(_RunPort):
    """The store of threads, of runs, and of committed and pending messages."""

    async def submission_state(self, thread_id: str, run_id: str | None = None) -> ThreadState:
        """Return the state on which a submission to a thread depends, with all pending messages."""

        def look(runs: RunTables) -> ThreadState:
            state = runs.state(state_look(thread_id, run_id=run_id or "", is_submission=True))
            if state.waiting:
                state = replace(state, waiting=0, pending=runs.messages.waiting(thread_id))
            return state

        return await self._look(look)

    async def load_thread(self, thread_id: str) -> Thread | None:
        """Return the thread with this id, or None."""
        return await self._look(lambda runs: runs.threads.load(thread_id))

    async def save_thread(self, thread: Thread) -> None:
        """Store a thread; its `message_count` is ignored.

        Raises:
            UnknownThread: The thread's parent does not exist.
            InvalidRecord: The thread would be its own ancestor.
        """

        def saved(tx: Transaction) -> None:
            named = (thread.id, thread.parent_thread_id)
            tx.lock(FAMILIES, *(thread_lock(thread_id) for thread_id in named if thread_id is not None))
            tx.runs.threads.save(thread)

        await self._store.write(saved, key=thread.id)

    async def delete_thread(
        self, thread_id: str, *, children: Literal["detach", "reject", "cascade"] = "detach"
    ) -> bool:
        # Read its descendants first, so that one call locks all of them.
        """Delete a thread with its messages and runs; return False if the thread does not exist.

        Raises:
            InvalidRecord: The thread has children, and `children` is "reject".
        """
        below = await self._look(lambda runs: runs.threads.below(thread_id))

        def deleted(tx: Transaction) -> bool:
            tx.lock(FAMILIES, thread_lock(thread_id), *map(thread_lock, below))
            return tx.runs.threads.delete(thread_id, children)

        return await self._store.write(deleted, key=thread_id)

    async def list_threads(self, query: ThreadQuery) -> tuple[Thread, ...]:
        """Return the threads that match a query, ordered by id."""
        return await self._look(lambda runs: runs.threads.list(query, page(query.limit)))

    async def create_run(self, run: RunRecord) -> None:
        """Store a new run, and update the run ids of its thread.

        Raises:
            DuplicateRecord: A run with this id exists.
        """
        await self._change(run.thread_id, lambda runs: runs.threads.create_run(run))

    async def load_run(self, run_id: str) -> RunRecord | None:
        """Return the run with this id, or None."""
        return await self._look(lambda runs: runs.threads.load_run(run_id))

    async def latest_run(self, thread_id: str) -> RunRecord | None:
        """Return the run of a thread with the newest `updated_at`; on a tie, with the newest `created_at`."""
        return next(iter(await self.latest_runs(thread_id, limit=1)), None)

    async def latest_runs(self, thread_id: str, *, limit: int = MAX_PAGE) -> tuple[RunRecord, ...]:
        """Return the newest runs of a thread, ordered by `updated_at`, then by `created_at`."""
        return await self._look(lambda runs: runs.threads.latest_runs(thread_id, page(limit)))

    async def list_runs(self, query: RunQuery) -> tuple[RunRecord, ...]:
        """Return the runs that match a query, ordered by id."""
        return await self._look(lambda runs: runs.threads.list_runs(query, page(query.limit)))

    async def asked_since(
        self, at: int, run_id: str
    ) -> tuple[tuple[RunRecord, ...], dict[tuple[str, str], int]]:
        """Return up to 50 waiting runs after a position, and the ends of snoozes of the runs' questions.

        Runs are ordered by their last change. Snoozes are keyed by run id and call id.
        """

        def look(tx: Transaction) -> tuple[tuple[RunRecord, ...], dict[tuple[str, str], int]]:
            runs = tx.runs.threads.asked_since(at, run_id, 50)
            return runs, tx.mail.snoozed([run.run_id for run in runs], tx.now()) if runs else {}

        return await self._store.read(look)

    async def load_messages(self, thread_id: str) -> tuple[Message, ...] | None:
        """Return all committed messages of a thread in order, or None if the thread is unknown."""

        def look(runs: RunTables) -> tuple[Message, ...] | None:
            messages = runs.messages.all(thread_id)
            return messages if messages or runs.threads.load(thread_id) else None

        return await self._look(look)

    async def conversation(self, thread_id: str, run_id: str) -> tuple[Message, ...]:
        """Return the committed messages that a run of the thread sees, as `build_conversation` describes."""

        def look(runs: RunTables) -> tuple[Message, ...]:
            seen = build_conversation(run_id, runs.messages.all(thread_id), runs.threads.turns(thread_id))
            return seen.messages

        return await self._look(look)

    async def recent_conversation(
        self,
        thread_id: str,
        run_id: str,
        *,
        hidden_runs: Collection[str] = (),
        hidden_message_ids: Collection[str] = (),
    ) -> Conversation:
        """Return a thread as a run sees it: the newest valid summary, and the messages after the summary.

        A summary is invalid if it covers hidden or rolled-back content. The arguments `hidden_runs` and
        `hidden_message_ids` name hidden content.
        """

        def look(runs: RunTables) -> Conversation:
            hidden = frozenset(hidden_runs)
            hidden_ids = frozenset(hidden_message_ids)
            newest = summary = runs.messages.summary(thread_id)
            turns = runs.threads.turns(thread_id, 0 if summary is None else summary.since)
            gone = hidden.union(*(turn.takes_back for turn in turns))
            if summary is not None and (gone or hidden_ids):
                excluded = hidden_ids.union(*(turn.asked for turn in runs.threads.turns_named(sorted(gone))))
                broken = runs.messages.find_first_summary(thread_id, sorted(gone), sorted(excluded))
                if broken is not None:
                    summary = runs.messages.summary(thread_id, broken)
                    turns = runs.threads.turns(thread_id, 0 if summary is None else summary.since)
            after = None if summary is newest else 0 if summary is None else summary.number
            messages = runs.messages.unsummarized(thread_id, after)
            if newest is not None:
                own = {id for turn in turns if turn.run_id == run_id for id in turn.asked}
                ids = {message.id for message in messages}
                missing = sorted({id for turn in turns for id in turn.asked if id not in ids})
                again = runs.messages.passed_over(thread_id, missing, sorted(own - ids)) if missing else ()
                messages = (*again, *messages)
            seen = build_conversation(run_id, messages, turns)
            return Conversation(messages=seen.messages, summary=summary, hidden=seen.hidden, turns=seen.turns)

        return await self._look(look)

    async def load_message_records(
        self, thread_id: str, message_ids: Sequence[str]
    ) -> tuple[MessageRecord, ...]:
        """Return the committed messages with these ids, in the order of the thread; skip unknown ids."""
        named = tuple(message_ids)
        return await self._look(lambda runs: runs.messages.named(thread_id, named))

    async def list_message_records(self, thread_id: str, query: MessageQuery) -> tuple[MessageRecord, ...]:
        """Return the committed messages of a thread that match a query, ordered by `seq`."""
        return await self._look(lambda runs: runs.messages.list(thread_id, query, page(query.limit)))

    async def delete_messages(self, thread_id: str) -> int:
        """Delete the committed messages of a thread, and return the number deleted.

        New messages continue the numbering.
        """
        return await self._change(thread_id, lambda runs: runs.messages.delete(thread_id))

    async def load_thread_state(self, thread_id: str) -> dict[str, Json] | None:
        """Return the state that executors have stored for a thread, or None."""
        return await self._look(lambda runs: runs.threads.state(thread_id))

    async def spending(self, scopes: Sequence[str]) -> dict[str, Spending]:
        """Return the spending of each scope; a scope without spending has zeros."""
        named = tuple(scopes)
        return await self._look(lambda runs: runs.threads.spending(named))

    async def pending_messages(self, thread_id: str) -> tuple[PendingMessage, ...]:
        """Return the pending messages of a thread in order."""
        return await self._look(lambda runs: runs.messages.waiting(thread_id))

    async def threads_with_pending(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        """Return threads with pending messages, ordered by id, from the first id after `after`."""
        return await self._look(lambda runs: runs.messages.threads_with_waiting(page(limit), after))

    async def append_pending(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, *, now: int | None = None
    ) -> tuple[PendingMessage, ...]:
        """Append pending messages to a thread, and return them with their positions.

        Raises:
            DuplicateRecord: A message with the same id is already pending or committed.
        """
        added = tuple(messages)
        return await self._change(
            thread_id, lambda runs: runs.append_waiting(thread_id, added, mode), now=now
        )

    async def edit_pending(
        self,
        thread_id: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        now: int | None = None,
    ) -> PendingMessage:
        """Replace the pending message that has the id of `message`, and increase its revision.

        Raises:
            AlreadyConsumed: A run has already read the message.
            UnknownMessage: No message has this id.
            VersionConflict: The message was edited after the caller read it.
        """
        return await self._change(
            thread_id,
            lambda runs: runs.messages.edit_waiting(thread_id, message, expected_revision),
            now=now,
        )

    async def retract_pending(
        self, thread_id: str, pending_id: str, *, expected_revision: int | None = None
    ) -> PendingMessage:
        """Withdraw a pending message from a thread, and return the message.

        Raises:
            AlreadyConsumed, UnknownMessage, VersionConflict: As for `edit_pending`.
        """
        return await self._change(
            thread_id, lambda runs: runs.messages.retract_waiting(thread_id, pending_id, expected_revision)
        )

    async def reorder_pending(
        self, thread_id: str, order: Sequence[str], *, expected: Sequence[PendingVersion] | None = None
    ) -> tuple[PendingMessage, ...]:
        """Change the order of the pending messages of a thread; `order` must contain all of their ids.

        Raises:
            VersionConflict: The pending messages have changed since the caller read them.
            InvalidRecord: The order does not contain exactly the pending messages.
        """
        wanted = tuple(order)
        return await self._change(
            thread_id, lambda runs: runs.messages.reorder_waiting(thread_id, wanted, expected)
        )


class EventStore(_Port):
    """The log of events, which are numbered in each scope."""

    async def append(self, draft: CanonicalEventDraft, *, now: int | None = None) -> CanonicalEvent:
        """Append an event to its scopes; for a repeated key, return the stored event.

        Raises:
            IdempotencyConflict: The key was used for a different event.
            VersionConflict: A scope's newest number is not the expected one.
        """

        def appended(tx: Transaction) -> CanonicalEvent:
            tx.lock(*draft.locks)
            [event] = tx.events.append((draft,), at=now)
            return event

        # changes of runs use the thread as their key, too
        key = draft.scope_id("thread") or min(draft.locks, default="")
        return await self._store.write(appended, key=key)

    async def add(self, draft: CanonicalEventDraft, *, claim: Claim | None = None) -> None:
        """Append an event to the scopes of its thread and its run.

        The event is not written if its key was used before, or if the execution has lost its claim.
        """
        thread_id = draft.scope_id("thread") or ""

        def added(tx: Transaction) -> None:
            tx.lock(thread_lock(thread_id), *draft.locks)
            tx.events.add(draft, claim=claim)

        await self._store.write(added, key=thread_id)

    async def list(self, scope: EventScope, *, after: int = 0, limit: int = 100) -> EventPage:
        """Return the events of a scope after the cursor `after`.

        Raises:
            CursorAhead: The cursor is greater than the number of the newest event.
            CursorExpired: Events after the cursor were deleted.
        """
        return await self._store.read(lambda tx: tx.events.behind(scope.key, after, limit))

    async def load(self, event_id: str) -> CanonicalEvent | None:
        """Return the event with this id, or None."""
        return await self._store.read(lambda tx: tx.events.load(event_id))

    async def count(self, scope: EventScope) -> int:
        """Return the number of the newest event in a scope, or 0 if the scope is empty."""
        return await self._store.read(lambda tx: tx.events.newest(scope.key))

    async def wait(self, scope: EventScope, *, after: int) -> None:
        """Wait until a scope has events after the cursor `after`."""
        with self._store.changes.listen(scope.key) as news:
            while await self.count(scope) <= after:
                await news.wait(LOOK_AGAIN_AFTER)


class OutboxStore(_Port):
    """The store of effects, which are performed outside the database."""

    async def enqueue(self, draft: OutboxDraft, *, now: int | None = None) -> OutboxMessage:
        """Store an effect, and return the effect.

        For a key that is stored already, the stored effect is returned. The key of an effect consists of its
        kind, its target and its `dedupe_key`.

        Raises:
            IdempotencyConflict: The key was used with another payload.
        """

        def stored(tx: Transaction) -> OutboxMessage:
            tx.lock(*draft.locks)
            [effect] = _at(tx, now).outbox.enqueue((draft,))
            return effect

        return await self._store.write(stored, key=line_lock(draft.kind, draft.target))

    async def claim(
        self, kind: str, target: str, *, lease_ms: int, limit: int = 1, now: int | None = None
    ) -> tuple[OutboxMessage, ...]:
        """Claim up to `limit` due effects of a target for `lease_ms` milliseconds, oldest first.

        Effects with an expired claim are due. An effect without remaining attempts becomes a dead letter.
        Effects with the same order key are claimed one at a time.
        """
        line = line_lock(kind, target)

        def claimed(tx: Transaction) -> tuple[OutboxMessage, ...]:
            tx.lock(line)
            return _at(tx, now).outbox.claim(kind, target, lease_ms=lease_ms, limit=limit)

        return await self._store.write(claimed, key=line)

    async def ack(self, outbox_id: str, token: str, *, now: int | None = None) -> bool:
        """Record that an effect was performed; return False if the claim was lost."""
        return bool(await self._store.write(lambda tx: tx.outbox.ack([outbox_id], [token])))

    async def nack(  # noqa: PLR0913 - the outcome, by name
        self,
        outbox_id: str,
        token: str,
        *,
        error: str,
        delay_ms: int = 0,
        now: int | None = None,
        final: bool = False,
        may_have_arrived: bool = False,
    ) -> NackOutcome:
        """Release an effect for a later attempt; after the last attempt, the effect becomes a dead letter.

        With `final`, the effect becomes a dead letter even if attempts are left. With `may_have_arrived`, the
        effect is marked as possibly performed.
        """
        became = await self._store.write(
            lambda tx: _at(tx, now).outbox.nack(
                [outbox_id],
                [token],
                error=error,
                delay_ms=delay_ms,
                final=final,
                may_have_arrived=may_have_arrived,
            )
        )
        if not became:
            return NackOutcome.LOST_CLAIM
        gone = became == [OutboxStatus.DEAD_LETTER]
        return NackOutcome.DEAD_LETTERED if gone else NackOutcome.REQUEUED

    async def dead_letters(
        self, *, kind: str | None = None, after: str = "", limit: int = 100
    ) -> tuple[OutboxMessage, ...]:
        """Return up to `limit` dead letters with an id greater than `after`, ordered by id.

        Without `kind`, dead letters of all kinds are returned.
        """
        return await self._store.read(
            lambda tx: tx.outbox.dead_letters(kind=kind, after=after, limit=page(limit))
        )

    async def revive(self, outbox_id: str, *, now: int | None = None) -> OutboxMessage | None:
        """Make a dead letter pending and due now; return None if the effect is not a dead letter.

        The number of attempts is reset to 0, and the last error is kept. If several callers revive the same
        dead letter at the same time, the effect is returned to one caller, and None to the others.
        """
        return await self._store.write(lambda tx: _at(tx, now).outbox.revive(outbox_id))

    async def discard(self, outbox_id: str) -> bool:
        """Mark a dead letter as performed without performing it; return False for any other effect.

        The effect's key stays used. If several callers discard the same dead letter at the same time, True is
        returned to one caller only.
        """
        return await self._store.write(lambda tx: tx.outbox.discard(outbox_id))

    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        """Delete up to `limit` performed effects from before `older_than`; return the number deleted.

        The oldest effects are deleted first. A new effect with the key of a deleted effect is stored and
        performed.
        """
        return await self._store.write(lambda tx: tx.outbox.purge(older_than, limit))


class StoreCoordinator(_Port, CommitCoordinator):
    """Writes the steps of runs to their threads."""

    @override
    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        def committed(tx: Transaction) -> Committed | StaleClaim:
            tx.lock(*commit.locks)
            return _at(tx, now).runs.commit(commit)

        return await self._store.write(committed, key=commit.thread_id)


class RunStores(_Port):
    """The stores of runs in one database."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        self.store = store
        self.clock = store.clock
        self.dispatches = DispatchStore(store)
        self.threads = ThreadStore(store)
        self.events = EventStore(store)
        self.outbox = OutboxStore(store)
        self.coordinator: CommitCoordinator = StoreCoordinator(store)
        self.wakeups = store.changes.listen(WORK)
        """A listener for notifications that there may be work; a lost notification only causes a delay."""


def page(limit: int) -> int:
    """Return the number of rows to read: `limit`, but from 0 to `MAX_PAGE`."""
    return max(0, min(limit, MAX_PAGE))


def _at(tx: Transaction, now: int | None) -> Transaction:
    """Set the time of a transaction to `now`, if given, and return the transaction."""
    if now is not None:
        tx.sql.instant = now
    return tx
