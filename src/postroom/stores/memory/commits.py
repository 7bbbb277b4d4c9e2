"""Commits in memory: everything is decided first, then everything is written."""

from copy import deepcopy
from dataclasses import dataclass, replace

from postroom.contracts.budgets import Spending
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
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
from postroom.contracts.messages import Json, refuse_broken_delta
from postroom.contracts.run_stores import ClaimRequest, Committed, Delivery, ThreadCommit
from postroom.contracts.runs import RunRecord, Thread
from postroom.stores.memory.dispatches import Queue
from postroom.stores.memory.events import EventPlan, EventTable
from postroom.stores.memory.outbox import OutboxPlan, OutboxTable
from postroom.stores.memory.run_tables import Place
from postroom.stores.memory.thread_rows import ThreadTable, own_copy
from postroom.stores.memory.threads import new_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """What a commit is going to write; nothing of it can be refused any more."""

    thread: Thread
    message_count: int
    run: RunRecord | None
    thread_state: dict[str, Json] | None
    owned: RunDispatch | None
    """The dispatch whose execution begins or has ended, as it is to be stored."""
    delivery: "_DecidedDelivery | None"
    events: EventPlan
    outbox: OutboxPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecidedDelivery:
    interrupt: bool
    dispatch: RunDispatch
    """As it is to be stored: owned already when it must be."""
    claim: ClaimRequest | None
    """Who is to own the thread's next due dispatch."""


class MemoryCommitCoordinator:
    """Writes a step of a thread over all tables of one place."""

    def __init__(
        self, place: Place, *, queue: Queue, threads: ThreadTable, events: EventTable, outbox: OutboxTable
    ) -> None:
        self._place = place
        self._queue = queue
        self._threads = threads
        self._events = events
        self._outbox = outbox

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        """Write it whole or not at all; a lost claim alone leaves its row Superseded."""
        at = await self._place.turn(now)
        return self._write(commit, self._decided(commit, at), at)

    def _decided(self, commit: ThreadCommit, now: int) -> _Decided:
        commit.refuse_unclaimed_move()
        owned = self._owned(commit, now)
        self._refuse_changed(commit)
        self._refuse_messages(commit)
        thread = self._thread_after(commit, now)
        return _Decided(
            message_count=thread.message_count,
            thread=thread,
            run=None if commit.run is None else own_copy(commit.run),
            owned=commit.moved(owned, now=now) if owned and commit.moves_owned else None,
            delivery=self._delivery(commit, commit.delivery, now) if commit.delivery else None,
            events=self._events.plan(commit.events, now),
            outbox=self._outbox.plan(commit.outbox, now),
            thread_state=deepcopy(commit.thread_state),
        )

    def _write(self, commit: ThreadCommit, decided: _Decided, now: int) -> Committed:
        thread_id = commit.thread_id
        behind = decided.message_count - len(commit.messages)
        self._threads.put_thread(decided.thread)
        self._threads.append(thread_id, commit.messages, behind=behind, now=now)
        self._threads.pending.remove(thread_id, {version.pending_id for version in commit.consumes})
        if decided.run is not None:
            self._threads.put_run(decided.run)
        if decided.thread_state is not None:
            self._threads.states[thread_id] = decided.thread_state
        for one in commit.spends:
            before = self._threads.spent.get(one.scope, Spending(scope=one.scope))
            self._threads.spent[one.scope] = before.plus(one)
        moved = None if decided.owned is None else self._queue.put(decided.owned)
        waits = commit.ends is not None and bool(self._threads.pending.of(thread_id))
        delivered = Committed(message_count=decided.message_count, dispatch=moved, leaves_waiting=waits)
        if decided.delivery is not None:
            delivered = self._deliver(decided.delivery, delivered, now)
        return replace(
            delivered,
            events=self._events.write(decided.events),
            outbox=self._outbox.write(decided.outbox),
        )

    def _deliver(self, delivery: _DecidedDelivery, committed: Committed, now: int) -> Committed:
        thread_id, dispatch_id = delivery.dispatch.thread_id, delivery.dispatch.dispatch_id
        interrupt = self._queue.interrupt(thread_id, now) if delivery.interrupt else None
        self._queue.put(delivery.dispatch)
        if delivery.claim is not None:
            asks = delivery.claim
            self._queue.claim(thread_id, asks.consumer, lease_ms=asks.lease_ms, now=now)
        asked = delivery.claim is not None or delivery.dispatch.claim_token is not None
        return replace(
            committed,
            interrupt=interrupt,
            dispatch=self._queue.table.rows[dispatch_id],
            claimed=self._queue.table.claimed(thread_id) if asked else None,
        )

    def _owned(self, commit: ThreadCommit, now: int) -> RunDispatch | None:
        """Return the dispatch that the writer owns, if it claims to own one."""
        if commit.claim is None:
            return None
        try:
            row = self._queue.proved(commit.claim, now)
        except UnknownDispatch as error:
            raise StaleClaim(f"the claim was lost: {error.message}", value=error.value) from error
        if row.thread_id != commit.thread_id:
            raise ForeignThread(f"the claim is one of thread {row.thread_id!r}", value=commit.thread_id)
        return row

    def _refuse_changed(self, commit: ThreadCommit) -> None:
        thread_id = commit.thread_id
        if commit.joins is not None:
            joined = self._queue.table.rows.get(commit.joins)
            queued = joined is not None and joined.status is RunDispatchStatus.QUEUED
            if joined is None or not queued or joined.thread_id != thread_id:
                raise VersionConflict(f"dispatch {commit.joins!r} is not queued any more", value=commit.joins)
        self._threads.pending.refuse_changed(thread_id, commit.consumes)
        count = self._message_count(thread_id)
        if commit.expected_message_count not in (None, count):
            raise VersionConflict(
                f"thread {thread_id!r} has {count} messages, not {commit.expected_message_count}",
                value=thread_id,
                details={"expected": commit.expected_message_count, "actual": count},
            )

    def _refuse_messages(self, commit: ThreadCommit) -> None:
        refuse_broken_delta(commit.messages)
        for message in commit.messages:
            if self._threads.is_committed(commit.thread_id, message.id or ""):
                raise DuplicateRecord(f"message {message.id!r} is committed already", value=message.id)

    def _thread_after(self, commit: ThreadCommit, now: int) -> Thread:
        run = commit.run
        if run is not None:
            if run.thread_id != commit.thread_id:
                raise ForeignThread(f"run {run.run_id!r} is of thread {run.thread_id!r}", value=run.run_id)
            commit.refuse_changed_run(self._threads.runs.get(run.run_id))
        thread = self._threads.threads.get(commit.thread_id)
        if thread is None:
            commit.refuse_gone()
            parent = commit.parent_thread_id
            thread = new_thread(commit.thread_id, now, parent)
            if parent is not None and parent not in self._threads.threads:
                raise UnknownThread(f"no thread {parent!r}, the parent of another", value=parent)
        if commit.messages:
            count = thread.message_count + len(commit.messages)
            thread = replace(thread, message_count=count, updated_at=max(now, thread.updated_at))
        return thread if run is None else thread.after(run)

    def _delivery(self, commit: ThreadCommit, delivery: Delivery, now: int) -> _DecidedDelivery:
        thread_id = commit.thread_id
        busy = self._queue.table.claimed(thread_id)
        if delivery.when_idle and (busy is not None or self._queue.table.count_queued(thread_id)):
            raise ActiveRunConflict(f"thread {thread_id!r} is not idle", value=thread_id)
        if busy is not None and (delivery.interrupt or (delivery.claim and delivery.claim_needed)):
            raise ActiveRunConflict(
                f"thread {thread_id!r} has an active run: dispatch {busy.dispatch_id!r} is claimed",
                value=thread_id,
                details={"dispatch_id": busy.dispatch_id},
            )
        if delivery.dispatch.thread_id != thread_id:
            raise ForeignThread(
                f"the dispatch is of thread {delivery.dispatch.thread_id!r}", value=delivery.dispatch.run_id
            )
        row = self._queue.acceptable(delivery.dispatch, interrupting=delivery.interrupt)
        waiting = 0 if delivery.interrupt else self._queue.table.count_queued(thread_id)
        if delivery.queue_cap is not None and waiting >= delivery.queue_cap:
            raise QueueFull(f"{waiting} dispatches wait on thread {thread_id!r}", value=thread_id)
        claim = delivery.claim if busy is None else None
        if claim is not None:
            owned = self._queue.owned_row(row, claim.consumer, lease_ms=claim.lease_ms, now=now)
            if commit.begins_delivered:
                owned = owned.record_dispatch_start(commit.begins or "", now=now)
            if delivery.claim_needed:
                return _DecidedDelivery(interrupt=delivery.interrupt, dispatch=owned, claim=None)
        return _DecidedDelivery(interrupt=delivery.interrupt, dispatch=row, claim=claim)

    def _message_count(self, thread_id: str) -> int:
        thread = self._threads.threads.get(thread_id)
        return thread.message_count if thread else 0
