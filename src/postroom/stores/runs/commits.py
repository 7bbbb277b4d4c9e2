"""Steps of threads: all that is needed is asked at once, then decided, then written."""

from collections.abc import Callable
from dataclasses import dataclass

from postroom.contracts.dispatch import RunDispatchStatus
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
from postroom.stores.runs.asking import Found, Looks, dispatch_look, queue_look, run_look, thread_look
from postroom.stores.runs.deliveries import delivery_looks
from postroom.stores.runs.messages import committed_look, refuse_changed, versions_look
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
            events=tuple([WrittenEvent.of(draft, new_id) for draft in step.events]) if step.events else (),
            effects=tuple([WrittenEffect.of(draft, new_id) for draft in step.outbox]) if step.outbox else (),
        )


def commit_looks(written: WrittenCommit, now: int) -> Looks:
    """Return all that a commit is decided on."""
    step, thread_id = written.step, written.step.thread_id
    looks = thread_look(thread_id) | thread_look(step.parent_thread_id or thread_id)
    if step.claim is not None:
        looks |= dispatch_look(step.claim.dispatch_id)
    if step.joins is not None:
        looks |= dispatch_look(step.joins)
    if step.consumes:
        looks |= versions_look(thread_id, tuple(one.pending_id for one in step.consumes))
    if step.messages:
        looks |= committed_look(thread_id, tuple(one.id or "" for one in step.messages))
    if step.run is not None:
        looks |= run_look(step.run.run_id)
    if step.ends is not None:
        looks |= queue_look(thread_id)
    if step.delivery is not None:
        looks |= delivery_looks(step.delivery, now)
    if written.events:
        looks |= event_looks(written.events)
    if written.effects:
        looks |= effect_looks(written.effects)
    return looks


def lost(error: UnknownDispatch) -> StaleClaim:
    """Return what a commit says of a claim on a dispatch that is not there."""
    return StaleClaim(f"the claim was lost: {error.message}", value=error.value)


def thread_before(step: ThreadCommit, found: Found, now: int) -> Thread:
    """Return the thread as it was, or as it is made, unless something stands against the commit.

    Raises:
        VersionConflict, InvalidRecord, DuplicateRecord, UnknownThread: as `CommitCoordinator.commit` says.
    """
    row = found["thread", step.thread_id]
    known = rows.thread(row[0]) if row else None
    if known is None:
        step.refuse_gone()
    if step.joins is not None:
        _refuse_not_joined(step, step.joins, found)
    if step.consumes:
        refuse_changed(
            found["versions", step.thread_id, tuple(one.pending_id for one in step.consumes)], step.consumes
        )
    count = known.message_count if known else 0
    if step.expected_message_count not in (None, count):
        raise VersionConflict(
            f"thread {step.thread_id!r} has {count} messages, not {step.expected_message_count}",
            value=step.thread_id,
            details={"expected": step.expected_message_count, "actual": count},
        )
    if step.messages:
        refuse_broken_delta(step.messages)
        for [twice] in found["committed", step.thread_id, tuple(one.id or "" for one in step.messages)]:
            raise DuplicateRecord(f"message {twice!r} is committed already", value=twice)
    if known is not None:
        return known
    if step.parent_thread_id == step.thread_id:
        raise own_ancestor(step.thread_id)
    if step.parent_thread_id is not None and not found["thread", step.parent_thread_id]:
        raise no_parent(step.parent_thread_id)
    return new_thread(step.thread_id, now, step.parent_thread_id)


def _refuse_not_joined(step: ThreadCommit, joins: str, found: Found) -> None:
    row = found["dispatch", joins]
    joined = rows.dispatch(row[0]) if row else None
    queued = joined is not None and joined.status is RunDispatchStatus.QUEUED
    if joined is None or not queued or joined.thread_id != step.thread_id:
        raise VersionConflict(f"dispatch {joins!r} is not queued any more", value=joins)


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
    row = found["run", step.run.run_id]
    step.refuse_changed_run(rows.run(row[0]) if row else None)
    return thread.after(step.run)


def left(step: ThreadCommit, found: Found) -> tuple[bool, bool]:
    """Return whether dispatches and messages wait on the thread when the commit has ended an execution."""
    if step.ends is None:
        return False, False
    [[_, _, queued, waiting]] = found["queue", step.thread_id, 1]
    consumed = len({one.pending_id for one in step.consumes}) if step.consumes else 0
    return queued > 0, waiting > consumed
