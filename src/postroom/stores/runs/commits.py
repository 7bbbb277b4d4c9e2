"""Steps of threads: all that is needed is asked at once, then decided, then written."""

from collections.abc import Callable
from dataclasses import dataclass

from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    DuplicateRecord,
    ForeignThread,
    StaleClaim,
    UnknownDispatch,
    VersionConflict,
)
from postroom.contracts.messages import Message, refuse_broken_delta
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import Thread
from postroom.stores.codec import encode
from postroom.stores.events import WrittenEvent, event_looks
from postroom.stores.outbox import WrittenEffect, effect_looks
from postroom.stores.runs import rows
from postroom.stores.runs.asking import Found, Looks
from postroom.stores.runs.deliveries import delivery_looks
from postroom.stores.runs.messages import refuse_changed
from postroom.stores.runs.threads import new_thread, no_parent, own_ancestor


@dataclass(frozen=True, slots=True)
class WrittenCommit:
    """A commit with its bodies as text and its ids made: what is done to it afterwards changes nothing."""

    step: ThreadCommit
    messages: tuple[tuple[Message, str], ...]
    run: str
    state: str | None
    events: tuple[WrittenEvent, ...]
    effects: tuple[WrittenEffect, ...]

    @classmethod
    def of(cls, step: ThreadCommit, new_id: Callable[[], str]) -> "WrittenCommit":
        """Write a commit down."""
        return cls(
            step=step,
            messages=tuple((message, encode(message)) for message in step.messages),
            run="" if step.run is None else encode(step.run),
            state=None if step.thread_state is None else encode(step.thread_state),
            events=tuple(WrittenEvent.of(draft, new_id) for draft in step.events),
            effects=tuple(WrittenEffect.of(draft, new_id) for draft in step.outbox),
        )


def commit_looks(written: WrittenCommit, now: int) -> Looks:
    """Return all that a commit is decided on."""
    step = written.step
    thread = {"thread_id": step.thread_id}
    looks: Looks = {("thread",): ("threads.thread", thread)}
    if step.claim is not None:
        looks["owned",] = ("dispatches.dispatch", {"dispatch_id": step.claim.dispatch_id})
    if step.joins is not None:
        looks["joined",] = ("dispatches.dispatch", {"dispatch_id": step.joins})
    if step.consumes:
        ids = [one.pending_id for one in step.consumes]
        looks["consumed",] = ("threads.pending_versions", {**thread, "pending_ids": ids})
    if step.messages:
        ids = [one.id or "" for one in step.messages]
        looks["committed",] = ("threads.committed", {**thread, "message_ids": ids})
    if step.run is not None:
        looks["run",] = ("threads.run", {"run_id": step.run.run_id})
    if step.parent_thread_id is not None:
        looks["parent",] = ("threads.thread", {"thread_id": step.parent_thread_id})
    if step.ends is not None:
        looks["waiting",] = ("threads.count_pending", thread)
    if step.delivery is not None:
        looks.update(delivery_looks(step.delivery, now))
    return {**looks, **event_looks(written.events), **effect_looks(written.effects)}


def refuse_owner(step: ThreadCommit, owned: RunDispatch) -> None:
    """Refuse the proof of a claim on another thread.

    Raises:
        ForeignThread: as said.
    """
    if owned.thread_id != step.thread_id:
        raise ForeignThread(f"the claim is one of thread {owned.thread_id!r}", value=step.thread_id)


def lost(error: UnknownDispatch) -> StaleClaim:
    """Return what a commit says of a claim on a dispatch that is not there."""
    return StaleClaim(f"the claim was lost: {error.message}", value=error.value)


def thread_before(step: ThreadCommit, found: Found, now: int) -> Thread:
    """Return the thread as it was, or as it is made, unless something stands against the commit.

    Raises:
        VersionConflict, InvalidRecord, DuplicateRecord, UnknownThread: as `CommitCoordinator.commit` says.
    """
    known = rows.thread(found["thread",][0]) if found["thread",] else None
    if known is None:
        step.refuse_gone()
    _refuse_not_joined(step, found)
    refuse_changed(found.get(("consumed",), ()), step.consumes)
    count = known.message_count if known else 0
    if step.expected_message_count not in (None, count):
        raise VersionConflict(
            f"thread {step.thread_id!r} has {count} messages, not {step.expected_message_count}",
            value=step.thread_id,
            details={"expected": step.expected_message_count, "actual": count},
        )
    refuse_broken_delta(step.messages)
    for [twice] in found.get(("committed",), ()):
        raise DuplicateRecord(f"message {twice!r} is committed already", value=twice)
    if known is not None:
        return known
    if step.parent_thread_id == step.thread_id:
        raise own_ancestor(step.thread_id)
    if step.parent_thread_id is not None and not found["parent",]:
        raise no_parent(step.parent_thread_id)
    return new_thread(step.thread_id, now, step.parent_thread_id)


def _refuse_not_joined(step: ThreadCommit, found: Found) -> None:
    if step.joins is None:
        return
    joined = rows.dispatch(found["joined",][0]) if found["joined",] else None
    queued = joined is not None and joined.status is RunDispatchStatus.QUEUED
    if joined is None or not queued or joined.thread_id != step.thread_id:
        raise VersionConflict(f"dispatch {step.joins!r} is not queued any more", value=step.joins)


def thread_after(thread: Thread, step: ThreadCommit, found: Found, now: int) -> Thread:
    """Return the thread as the commit leaves it.

    Raises:
        ForeignThread, IllegalTransition, VersionConflict: the run may not be written.
    """
    if step.messages:
        count = thread.message_count + len(step.messages)
        thread = replace(thread, message_count=count, updated_at=max(now, thread.updated_at))
    if step.run is None:
        return thread
    if step.run.thread_id != thread.id:
        raise ForeignThread(
            f"run {step.run.run_id!r} is of thread {step.run.thread_id!r}", value=step.run.run_id
        )
    step.refuse_changed_run(rows.run(found["run",][0]) if found["run",] else None)
    return thread.after(step.run)


def leaves_waiting(step: ThreadCommit, found: Found) -> bool:
    """Return whether messages wait on the thread when the commit has ended an execution."""
    return step.ends is not None and found["waiting",][0][0] > len({one.pending_id for one in step.consumes})
