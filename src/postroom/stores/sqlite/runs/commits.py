"""Commits on SQLite: everything is written in one transaction, and a refusal undoes what came before it."""

import sqlite3
from dataclasses import dataclass, replace

from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    ActiveRunConflict,
    ForeignThread,
    QueueFull,
    StaleClaim,
    UnknownDispatch,
    VersionConflict,
)
from postroom.contracts.messages import Message, refuse_broken_delta
from postroom.contracts.run_stores import ClaimRequest, Committed, Delivery, ThreadCommit
from postroom.contracts.runs import Thread
from postroom.stores.codec import encode
from postroom.stores.sqlite.runs import events, message_steps, outbox, pending, queue, thread_steps
from postroom.stores.sqlite.runs.desk import Desk


@dataclass(frozen=True, slots=True)
class Written:
    """A commit with its bodies as text: what the caller does to them afterwards changes nothing."""

    commit: ThreadCommit
    messages: tuple[tuple[Message, str], ...]
    run: str
    state: str | None
    events: tuple[events.Written, ...]
    outbox: tuple[outbox.Written, ...]

    @classmethod
    def of(cls, commit: ThreadCommit) -> "Written":
        """Write a commit down."""
        return cls(
            commit=commit,
            messages=tuple((message, encode(message)) for message in commit.messages),
            run="" if commit.run is None else encode(commit.run),
            state=None if commit.thread_state is None else encode(commit.thread_state),
            events=tuple(map(events.Written.of, commit.events)),
            outbox=tuple(map(outbox.Written.of, commit.outbox)),
        )


def write(db: sqlite3.Connection, written: Written, now: int) -> Committed | StaleClaim:
    """Write a step of a thread; one whose claim was lost is refused before anything else is written.

    Raises:
        PostroomError: as the port says; the transaction is to be undone.
    """
    step = written.commit
    step.refuse_unclaimed_move()
    owned = _owned(db, step, now)
    if isinstance(owned, StaleClaim):
        return owned
    known = thread_steps.load_thread(db, step.thread_id)
    if known is None:
        step.refuse_gone()
    _refuse_changed(db, step, known)
    refuse_broken_delta(step.messages)
    thread = known or thread_steps.thread_made(db, step.thread_id, now, step.parent_thread_id)
    message_steps.append(db, thread.id, written.messages, behind=thread.message_count, now=now)
    pending.take(db, thread.id, step.consumes)
    after = _thread_after(db, thread, written, now)
    if after is not thread:
        thread_steps.move_thread(db, after)
    if written.state is not None:
        thread_steps.put_state(db, thread.id, written.state)
    for spent in step.spends:
        thread_steps.spend(db, spent)
    moved = queue.put(db, step.moved(owned, now=now)) if owned and step.moves_owned else None
    waits = step.ends is not None and pending.is_any(db, thread.id)
    delivered = Committed(message_count=after.message_count, dispatch=moved, leaves_waiting=waits)
    if step.delivery is not None:
        delivered = _delivered(db, step, step.delivery, delivered, now)
    return replace(
        delivered,
        events=events.append(db, written.events, now),
        outbox=outbox.enqueue(db, written.outbox, now),
    )


def _owned(db: sqlite3.Connection, step: ThreadCommit, now: int) -> RunDispatch | StaleClaim | None:
    """Return the dispatch that the writer owns, if it claims to own one, or why it does not."""
    if step.claim is None:
        return None
    try:
        row = queue.proved(db, step.claim, now)
    except UnknownDispatch as error:
        return StaleClaim(f"the claim was lost: {error.message}", value=error.value)
    if isinstance(row, StaleClaim):
        return row
    if row.thread_id != step.thread_id:
        raise ForeignThread(f"the claim is one of thread {row.thread_id!r}", value=step.thread_id)
    return row


def _refuse_changed(db: sqlite3.Connection, step: ThreadCommit, thread: Thread | None) -> None:
    if step.joins is not None:
        joined = queue.load(db, step.joins)
        queued = joined is not None and joined.status is RunDispatchStatus.QUEUED
        if joined is None or not queued or joined.thread_id != step.thread_id:
            raise VersionConflict(f"dispatch {step.joins!r} is not queued any more", value=step.joins)
    pending.refuse_changed(db, step.thread_id, step.consumes)
    count = thread.message_count if thread else 0
    if step.expected_message_count not in (None, count):
        raise VersionConflict(
            f"thread {step.thread_id!r} has {count} messages, not {step.expected_message_count}",
            value=step.thread_id,
            details={"expected": step.expected_message_count, "actual": count},
        )


def _thread_after(db: sqlite3.Connection, thread: Thread, written: Written, now: int) -> Thread:
    """Return the thread as the commit leaves it; its run is stored."""
    run = written.commit.run
    if written.messages:
        count = thread.message_count + len(written.messages)
        thread = replace(thread, message_count=count, updated_at=max(now, thread.updated_at))
    if run is None:
        return thread
    if run.thread_id != thread.id:
        raise ForeignThread(f"run {run.run_id!r} is of thread {run.thread_id!r}", value=run.run_id)
    written.commit.refuse_changed_run(thread_steps.load_run(db, run.run_id))
    thread_steps.put_run(db, run, written.run)
    return thread.after(run)


def _delivered(
    db: sqlite3.Connection, step: ThreadCommit, delivery: Delivery, committed: Committed, now: int
) -> Committed:
    thread_id = step.thread_id
    busy = queue.claimed(db, thread_id)
    _refuse_busy(db, delivery, thread_id, busy)
    asked = delivery.dispatch
    if asked.thread_id != thread_id:
        raise ForeignThread(f"the dispatch is of thread {asked.thread_id!r}", value=asked.run_id)
    interrupt = queue.interrupt(db, thread_id, now) if delivery.interrupt else None
    stored = _enqueued_within(db, delivery)
    claimed: RunDispatch | None = None
    if delivery.claim is not None and busy is None:
        claimed = _claimed(db, delivery, delivery.claim, now)
    if claimed is not None and step.begins_delivered:
        claimed = queue.put(db, claimed.record_dispatch_start(step.begins or "", now=now))
    if claimed is not None and claimed.dispatch_id == stored.dispatch_id:
        stored = claimed
    return replace(committed, dispatch=stored, claimed=claimed, interrupt=interrupt)


def _refuse_busy(
    db: sqlite3.Connection, delivery: Delivery, thread_id: str, busy: RunDispatch | None
) -> None:
    """Refuse a delivery that the thread is not free for.

    Raises:
        ActiveRunConflict: as said.
    """
    if busy is not None and (delivery.interrupt or (delivery.claim and delivery.claim_needed)):
        raise ActiveRunConflict(
            f"thread {thread_id!r} has an active run: dispatch {busy.dispatch_id!r} is claimed",
            value=thread_id,
            details={"dispatch_id": busy.dispatch_id},
        )
    if delivery.when_idle and (busy is not None or queue.count_queued(db, thread_id, 1)):
        raise ActiveRunConflict(f"thread {thread_id!r} is not idle", value=thread_id)


def _enqueued_within(db: sqlite3.Connection, delivery: Delivery) -> RunDispatch:
    """Enqueue the dispatch.

    Raises:
        QueueFull: more wait on the thread then than may.
    """
    stored, cap = queue.enqueue(db, delivery.dispatch), delivery.queue_cap
    if cap is not None and queue.count_queued(db, stored.thread_id, cap + 1) > cap:
        raise QueueFull(f"{cap} dispatches wait on thread {stored.thread_id!r}", value=stored.thread_id)
    return stored


def _claimed(db: sqlite3.Connection, delivery: Delivery, asks: ClaimRequest, now: int) -> RunDispatch | None:
    asked = delivery.dispatch
    if delivery.claim_needed:
        return queue.claim_dispatch(db, asked.dispatch_id, asks.consumer, lease_ms=asks.lease_ms, now=now)
    return queue.claim(db, asked.thread_id, asks.consumer, lease_ms=asks.lease_ms, now=now)


class SqliteCommitCoordinator:
    """Writes steps of threads; every promise is that of the port."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._desk.identity

    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        """Write it whole or not at all; a lost claim alone leaves its row Superseded."""
        at, written = self._desk.at(now), Written.of(commit)
        done = await self._desk.write(lambda db: write(db, written, at))
        if commit.delivery is not None or commit.ends is not None:
            self._desk.ring()
        for event in done.events:
            self._desk.tell(event.sequences)
        return done
