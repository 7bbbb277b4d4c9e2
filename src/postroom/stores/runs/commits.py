"""Steps of threads: all that is needed is asked at once, then decided, then written."""

from collections.abc import Callable

from postroom.contracts.dispatch import Interrupt, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    ActiveRunConflict,
    DuplicateRecord,
    ForeignThread,
    QueueFull,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.run_stores import Delivery, ThreadCommit
from postroom.contracts.runs import Thread
from postroom.stores.runs import rows
from postroom.stores.runs.dispatches import against_look, due_look, interrupted, queue_look, refuse_taken
from postroom.stores.runs.messages import refuse_changed
from postroom.stores.runs.threads import new_thread, no_parent, own_ancestor
from postroom.stores.sql_transaction import Found, Look


def commit_looks(step: ThreadCommit, message_ids: tuple[str, ...]) -> list[Look]:
    """Return what a commit is decided on, but for its dispatch, events and effects."""
    thread_id = step.thread_id
    looks: list[Look] = [("threads.thread", {"thread_id": thread_id})]
    if step.parent_thread_id is not None:
        looks.append(("threads.thread", {"thread_id": step.parent_thread_id}))
    if step.claim is not None:
        looks.append(("dispatches.dispatch", {"dispatch_id": step.claim.dispatch_id}))
    if step.joins is not None:
        looks.append(("dispatches.dispatch", {"dispatch_id": step.joins}))
    if step.consumes:
        ids = tuple(one.pending_id for one in step.consumes)
        looks.append(("threads.pending_versions", {"thread_id": thread_id, "pending_ids": ids}))
    if message_ids:
        looks.append(("threads.committed", {"thread_id": thread_id, "message_ids": message_ids}))
    if step.run is not None:
        looks.append(("threads.run", {"run_id": step.run.run_id}))
    if step.ends is not None:
        looks.append(queue_look(thread_id, waiting=len(step.consumes) + 1))
    return looks


def delivery_looks(delivery: Delivery, now: int) -> list[Look]:
    """Return what is asked before a dispatch is delivered."""
    thread_id = delivery.dispatch.thread_id
    looks = [queue_look(thread_id, delivery.queue_cap or 1), against_look(delivery.dispatch)]
    if delivery.interrupt:
        looks.append(("dispatches.queue", {"thread_id": thread_id}))
    if delivery.claim is not None and not delivery.claim_needed:
        looks.append(due_look(thread_id, now))
    return looks


def thread_before(step: ThreadCommit, message_ids: tuple[str, ...], found: Found, now: int) -> Thread:
    """Return the thread as it was, or as it is made, unless something stands against the commit.

    Raises:
        VersionConflict, InvalidRecord, DuplicateRecord, UnknownThread: as `CommitCoordinator.commit` says.
    """
    thread_id, parent = step.thread_id, step.parent_thread_id
    row = found["threads.thread", thread_id]
    known = rows.thread(row[0]) if row else None
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
    if parent is not None and not found["threads.thread", parent]:
        raise no_parent(parent)
    return new_thread(thread_id, now, parent)


def _refuse_not_joined(step: ThreadCommit, joins: str, found: Found) -> None:
    row = found["dispatches.dispatch", joins]
    joined = rows.dispatch(row[0]) if row else None
    queued = joined is not None and joined.status is RunDispatchStatus.QUEUED
    if joined is None or not queued or joined.thread_id != step.thread_id:
        raise VersionConflict(f"dispatch {joins!r} is no longer queued", value=joins)


def refuse_unwritable_run(step: ThreadCommit, thread: Thread, found: Found) -> None:
    """Refuse to write the run of a commit over what is stored of it, where that may not be followed.

    Raises:
        ForeignThread: it is of another thread.
        IllegalTransition: the state machine has no arrow from there.
        VersionConflict: it is not as it was seen any more.
    """
    run = step.run
    if run is None:
        return
    if run.thread_id != thread.id:
        raise ForeignThread(f"run {run.run_id!r} belongs to thread {run.thread_id!r}", value=run.run_id)
    row = found["threads.run", run.run_id]
    before = rows.run(row[0]) if row else None
    if step.replaces is not None and before != step.replaces:
        raise VersionConflict(f"run {run.run_id!r} has changed", value=run.run_id)
    run.refuse_illegal_move(before)


def delivered(
    step: ThreadCommit, delivery: Delivery, found: Found, now: int, new_id: Callable[[], str]
) -> tuple[RunDispatch, RunDispatch | None, Interrupt | None]:
    """Decide what becomes of the dispatch of a commit, what is claimed and begun with it, and superseded.

    Raises:
        InvalidRecord, DuplicateRecord, DedupeKeyInUse, RunNotOpen, QueueFull, ActiveRunConflict,
        ForeignThread: as `CommitCoordinator.commit` says.
    """
    asked, asks, cap = delivery.dispatch, delivery.claim, delivery.queue_cap
    thread_id = asked.thread_id
    look, values = queue_look(thread_id, cap or 1)
    [[busy, epoch, queued, _, held_by]] = found[look, *values.values()]
    is_held = held_by not in (None, asked.run_id)
    if busy is not None or queued or is_held:
        _refuse_busy(delivery, step.thread_id, busy, held_by if is_held else None)
    if thread_id != step.thread_id:
        raise ForeignThread(f"the dispatch belongs to thread {thread_id!r}", value=asked.run_id)
    stored = asked.prepared_for_enqueue(epoch=epoch + delivery.interrupt)
    look, values = against_look(asked)
    gone = found["dispatches.queue", thread_id] if delivery.interrupt else ()
    refuse_taken(asked, found[look, *values.values()], gone)
    interrupt = interrupted(epoch, gone, (), now) if delivery.interrupt else None
    if cap is not None and (0 if interrupt else queued) >= cap:
        raise QueueFull(f"thread {thread_id!r} already has {cap} queued dispatches", value=thread_id)
    first = stored if delivery.claim_needed else _first(stored, delivery, found, now)
    if asks is None or busy is not None or is_held or first is None:
        return stored, None, interrupt
    claimed = first.claim(token=new_id(), consumer=asks.consumer, lease_ms=asks.lease_ms, now=now)
    if step.begins is not None:
        claimed = claimed.record_dispatch_start(step.begins, now=now)
    return claimed if first is stored else stored, claimed, interrupt


def _refuse_busy(delivery: Delivery, thread_id: str, busy: str | None, held_by: str | None) -> None:
    """Refuse a delivery that a thread with something claimed, queued or asked is not free for."""
    is_now = delivery.claim is not None and delivery.claim_needed
    if held_by is not None and is_now:
        raise ActiveRunConflict(
            f"run {held_by!r} of thread {thread_id!r} waits for an answer, and later runs wait for it",
            value=thread_id,
            remedy="answer the question, or cancel that run",
        )
    if busy is not None and (delivery.interrupt or is_now):
        raise ActiveRunConflict(
            f"thread {thread_id!r} has an active run: dispatch {busy!r} is claimed",
            value=thread_id,
            details={"dispatch_id": busy},
        )
    if delivery.when_idle:
        raise ActiveRunConflict(f"thread {thread_id!r} is not idle", value=thread_id)


def _first(stored: RunDispatch, delivery: Delivery, found: Found, now: int) -> RunDispatch | None:
    """Return the dispatch whose turn it is: the first that is due, this one among them."""
    turns = [stored] if stored.available_at <= now else []
    if delivery.claim is not None and not delivery.interrupt:
        look, values = due_look(stored.thread_id, now)
        turns += [rows.dispatch(row) for row in found[look, *values.values()]]
    return min(turns, key=lambda one: (one.priority, one.created_at, one.dispatch_id), default=None)
