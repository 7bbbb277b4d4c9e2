"""The queue's part of a commit: one dispatch, perhaps in place of what was queued, perhaps owned at once.

Everything is decided on what was found before, so that the new dispatch is written once, as it is to be.
"""

from collections.abc import Callable
from dataclasses import dataclass

from postroom.contracts.dispatch import Interrupt, RunDispatch
from postroom.contracts.errors import ActiveRunConflict, ForeignThread, QueueFull
from postroom.contracts.run_stores import Delivery, ThreadCommit
from postroom.stores.runs import rows
from postroom.stores.runs.asking import Found, Looks, queue_look
from postroom.stores.runs.dispatches import Dispatches, against_look, interrupted, refuse_taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What a delivery is to write."""

    dispatch: RunDispatch
    claimed: RunDispatch | None
    interrupt: Interrupt | None

    def write(self, queue: Dispatches) -> None:
        """Write it."""
        if self.interrupt is not None:
            queue.write_interrupt(self.dispatch.thread_id, self.interrupt)
        if self.claimed is not None and self.claimed.dispatch_id != self.dispatch.dispatch_id:
            queue.put(self.claimed)
        queue.insert(self.dispatch)


def delivery_looks(delivery: Delivery, now: int) -> Looks:
    """Return what is asked before a dispatch is delivered."""
    thread_id = delivery.dispatch.thread_id
    thread = {"thread_id": thread_id}
    looks = queue_look(thread_id, delivery.queue_cap or 1) | against_look(delivery.dispatch)
    if delivery.interrupt:
        looks["superseded", thread_id] = ("dispatches.queue", thread)
    if delivery.claim is not None and not delivery.claim_needed:
        looks["due", thread_id] = ("dispatches.next_due", {**thread, "now": now})
    return looks


def delivered(
    step: ThreadCommit, delivery: Delivery, found: Found, now: int, new_id: Callable[[], str]
) -> Delivered:
    """Decide what becomes of the dispatch of a commit, and what is claimed and begun with it.

    Raises:
        InvalidRecord, DuplicateRecord, DedupeKeyInUse, RunNotOpen, QueueFull, ActiveRunConflict,
        ForeignThread: as `CommitCoordinator.commit` says.
    """
    thread_id, at_most = delivery.dispatch.thread_id, max(delivery.queue_cap or 1, 1)
    [[busy, epoch, queued, _]] = found["queue", thread_id, at_most]
    _refuse_busy(delivery, step.thread_id, busy, queued)
    asked = delivery.dispatch
    if asked.thread_id != step.thread_id:
        raise ForeignThread(f"the dispatch is of thread {asked.thread_id!r}", value=asked.run_id)
    replaced = {row[0] for row in found.get(("superseded", thread_id), ())}
    stored = asked.prepared_for_enqueue(epoch=epoch + delivery.interrupt)
    [against] = against_look(asked)
    refuse_taken(asked, found[against], gone=replaced)
    if delivery.queue_cap is not None and (0 if delivery.interrupt else queued) >= delivery.queue_cap:
        raise QueueFull(
            f"{delivery.queue_cap} dispatches wait on thread {asked.thread_id!r}", value=asked.thread_id
        )
    claimed = None
    if delivery.claim is not None and busy is None:
        first = stored if delivery.claim_needed else _first(stored, delivery, found, now)
        asks = delivery.claim
        claimed = first and first.claim(
            token=new_id(), consumer=asks.consumer, lease_ms=asks.lease_ms, now=now
        )
    if claimed is not None and step.begins_delivered:
        claimed = claimed.record_dispatch_start(step.begins or "", now=now)
    return Delivered(
        dispatch=claimed if claimed and claimed.dispatch_id == stored.dispatch_id else stored,
        claimed=claimed,
        interrupt=interrupted(epoch, found["superseded", thread_id], (), now) if delivery.interrupt else None,
    )


def _refuse_busy(delivery: Delivery, thread_id: str, busy: str | None, queued: int) -> None:
    """Refuse a delivery that the thread is not free for."""
    if busy is not None and (delivery.interrupt or (delivery.claim and delivery.claim_needed)):
        raise ActiveRunConflict(
            f"thread {thread_id!r} has an active run: dispatch {busy!r} is claimed",
            value=thread_id,
            details={"dispatch_id": busy},
        )
    if delivery.when_idle and (busy is not None or queued):
        raise ActiveRunConflict(f"thread {thread_id!r} is not idle", value=thread_id)


def _first(stored: RunDispatch, delivery: Delivery, found: Found, now: int) -> RunDispatch | None:
    """Return the dispatch whose turn it is: the first that is due, this one among them."""
    turns = [stored] if stored.available_at <= now else []
    if not delivery.interrupt:
        turns += [rows.dispatch(row) for row in found.get(("due", stored.thread_id), ())]
    return min(turns, key=lambda one: (one.priority, one.created_at, one.dispatch_id), default=None)
