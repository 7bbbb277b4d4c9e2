"""Steps of threads: all that is needed is asked at once, then decided, then written."""

from collections.abc import Callable

from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    ActiveRunConflict,
    DuplicateRecord,
    ForeignThread,
    QueueFull,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.run_stores import Delivery, ThreadCommit
from postroom.contracts.runs import RunRecord, Thread
from postroom.stores.runs import rows
from postroom.stores.runs.dispatches import refuse_taken, state_look
from postroom.stores.runs.messages import refuse_changed
from postroom.stores.runs.rows import ThreadState
from postroom.stores.runs.threads import new_thread, no_parent, own_ancestor
from postroom.stores.sql_transaction import Found, Look


def likely_looks(request: RunActivation, run_id: str, dispatch_id: str, at_most: int) -> list[Look]:
    """Return what the commit of a request is decided on if it makes this run and dispatch."""
    thread_id, parent = request.thread_id, request.trace.parent_thread_id or ""
    adds = dispatch_id, request.delivery.dedupe_key, run_id
    looks = [state_look(thread_id, run_id=run_id, parent=parent, adds=adds, at_most=at_most)]
    if message_ids := tuple(message.id for message in request.messages if message.id):
        looks.append(("threads.committed", {"thread_id": thread_id, "message_ids": message_ids}))
    return looks


def commit_looks(step: ThreadCommit, message_ids: tuple[str, ...]) -> list[Look]:
    """Return what a commit is decided on, but for its events and effects; the first is for the state."""
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
    """Return the thread as it was, or as it is made, unless something stands against the commit.

    Raises:
        VersionConflict, InvalidRecord, DuplicateRecord, UnknownThread: as `CommitCoordinator.commit` says.
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
    """Refuse to write the run of a commit over the run as it is stored, if it may not follow that.

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
    if step.replaces is not None and before != step.replaces:
        raise VersionConflict(f"run {run.run_id!r} has changed", value=run.run_id)
    run.refuse_illegal_move(before)


def delivered(
    step: ThreadCommit, delivery: Delivery, state: ThreadState, now: int, new_id: Callable[[], str]
) -> RunDispatch:
    """Return the dispatch of a commit as it is stored: queued, or claimed and begun.

    Raises:
        InvalidRecord, DuplicateRecord, DedupeKeyInUse, RunNotOpen, QueueFull, ActiveRunConflict,
        ForeignThread: as `CommitCoordinator.commit` says.
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
    refuse_taken(asked, state.taken)
    if cap is not None and state.queued >= cap:
        raise QueueFull(f"thread {thread_id!r} already has {cap} queued dispatches", value=thread_id)
    if asks is None:
        return stored
    claimed = stored.claim(token=new_id(), consumer=asks.consumer, lease_ms=asks.lease_ms, now=now)
    return claimed if step.begins is None else claimed.record_dispatch_start(step.begins, now=now)
