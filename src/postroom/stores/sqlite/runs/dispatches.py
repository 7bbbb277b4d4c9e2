"""The queue on SQLite."""

from collections.abc import Collection, Sequence

from postroom.contracts.dispatch import Claim, Interrupt, RunDispatch, RunDispatchResult, RunDispatchStatus
from postroom.contracts.run_stores import MAX_PAGE
from postroom.stores.sqlite.runs import queue
from postroom.stores.sqlite.runs.desk import Desk, page


class SqliteDispatchStore:
    """The queue in the file; every promise is that of the port."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._desk.identity

    async def enqueue(self, dispatch: RunDispatch, *, now: int | None = None) -> RunDispatch:
        """Store a queued dispatch with its thread's current epoch."""
        stored = await self._desk.write(lambda db: queue.enqueue(db, dispatch))
        self._desk.ring()
        return stored

    async def claim(
        self, thread_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        """Own the thread's next due dispatch."""
        at = self._desk.at(now)
        return await self._desk.write(
            lambda db: queue.claim(db, thread_id, consumer, lease_ms=lease_ms, now=at)
        )

    async def claim_dispatch(
        self, dispatch_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        """Own this dispatch, due or not."""
        at = self._desk.at(now)
        return await self._desk.write(
            lambda db: queue.claim_dispatch(db, dispatch_id, consumer, lease_ms=lease_ms, now=at)
        )

    async def record_dispatch_start(
        self, claim: Claim, instance_id: str, *, now: int | None = None
    ) -> RunDispatch:
        """Record that the execution begins."""
        at = self._desk.at(now)
        return await self._desk.write(lambda db: queue.record_start(db, claim, instance_id, at))

    async def record_run_result(
        self, claim: Claim, result: RunDispatchResult, *, now: int | None = None
    ) -> RunDispatch:
        """Record how the execution ended; the row stays Claimed."""
        at = self._desk.at(now)
        return await self._desk.write(lambda db: queue.record_result(db, claim, result, at))

    async def ack(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        """Record that it is consumed."""
        at = self._desk.at(now)
        done = await self._desk.write(lambda db: queue.ack(db, claim, at))
        self._desk.ring()
        return done

    async def nack(
        self, claim: Claim, *, error: str, delay_ms: int = 0, now: int | None = None
    ) -> RunDispatch:
        """Give it back, due after `delay_ms`; at the last attempt it becomes a dead letter."""
        at = self._desk.at(now)
        done = await self._desk.write(
            lambda db: queue.move_owned(
                db, claim, at, lambda row: row.nacked(error=error, delay_ms=delay_ms, now=at)
            )
        )
        self._desk.ring()
        return done

    async def release(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        """Give it back, due at once, without an attempt counted."""
        at = self._desk.at(now)
        done = await self._desk.write(
            lambda db: queue.move_owned(db, claim, at, lambda row: row.released(now=at))
        )
        self._desk.ring()
        return done

    async def dead_letter(self, claim: Claim, *, error: str, now: int | None = None) -> RunDispatch:
        """Give it up."""
        at = self._desk.at(now)
        done = await self._desk.write(
            lambda db: queue.move_owned(db, claim, at, lambda row: row.dead_lettered(error=error, now=at))
        )
        self._desk.ring()
        return done

    async def extend_lease(self, claim: Claim, *, extension_ms: int, now: int | None = None) -> bool:
        """Own it until `now + extension_ms`; False when the claim was lost."""
        at = self._desk.at(now)
        return await self._desk.write(lambda db: queue.extend_lease(db, claim, extension_ms, at))

    async def cancel(self, dispatch_id: str, *, now: int | None = None) -> RunDispatch | None:
        """Withdraw a queued dispatch; None when it is not queued."""
        at = self._desk.at(now)
        withdrawn = await self._desk.write(lambda db: queue.cancel(db, dispatch_id, at))
        self._desk.ring()
        return withdrawn

    async def interrupt(self, thread_id: str, *, now: int | None = None) -> Interrupt:
        """Raise the thread's epoch and supersede all that is queued; the claimed one is stale then."""
        at = self._desk.at(now)
        done = await self._desk.write(lambda db: queue.interrupt(db, thread_id, at))
        self._desk.ring()
        return done

    async def current_dispatch_epoch(self, thread_id: str) -> int:
        """Return the thread's epoch."""
        return await self._desk.look(lambda db: queue.epoch(db, thread_id))

    async def supersede_claimed(
        self, claim: Claim, *, reason: str, now: int | None = None
    ) -> RunDispatch | None:
        """End a claimed dispatch as superseded; None when it is not Claimed any more."""
        at = self._desk.at(now)
        ended = await self._desk.write(lambda db: queue.supersede_claimed(db, claim, reason, at))
        self._desk.ring()
        return ended

    async def reclaim_expired_leases(
        self, *, limit: int = 100, now: int | None = None
    ) -> tuple[RunDispatch, ...]:
        """Take back what was owned until before `now`; what is superseded does not count."""
        at = self._desk.at(now)
        taken = await self._desk.write(lambda db: queue.reclaim(db, limit, at))
        self._desk.ring()
        return taken

    async def load_dispatch(self, dispatch_id: str) -> RunDispatch | None:
        """Return one dispatch.

        Raises:
            StoreCorrupt: its row does not read back.
        """
        return await self._desk.look(lambda db: queue.load(db, dispatch_id))

    async def list_dispatches(
        self,
        thread_id: str,
        statuses: Collection[RunDispatchStatus] | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[RunDispatch, ...]:
        """Return a thread's dispatches by priority, then age, then id."""
        chosen = frozenset(RunDispatchStatus if statuses is None else statuses)
        return await self._desk.read(
            lambda db: queue.of_thread(db, thread_id, chosen, limit=page(limit), offset=offset)
        )

    async def claimed_dispatch(self, thread_id: str) -> RunDispatch | None:
        """Return the thread's claimed dispatch."""
        return await self._desk.look(lambda db: queue.claimed(db, thread_id))

    async def list_by_status(
        self, status: RunDispatchStatus, *, limit: int = 100, after: tuple[int, str] | None = None
    ) -> tuple[RunDispatch, ...]:
        """Return dispatches of all threads, by last change then id, behind `after`."""
        return await self._desk.read(lambda db: queue.by_status(db, status, limit=page(limit), after=after))

    async def unreconciled_dispatches(self, *, limit: int = 100) -> tuple[RunDispatch, ...]:
        """Return ended dispatches whose runs were not told yet, oldest first."""
        return await self._desk.read(lambda db: queue.unreconciled(db, page(limit)))

    async def mark_reconciled(self, dispatch_ids: Sequence[str]) -> None:
        """Record that the runs of these were told."""
        named = tuple(dispatch_ids)
        if named:
            await self._desk.write(lambda db: queue.mark_reconciled(db, named))

    async def due_thread_ids(self, *, limit: int = 100, now: int | None = None) -> tuple[str, ...]:
        """Return threads that have a due dispatch and no claimed one, in the order of those dispatches."""
        at = self._desk.at(now)
        return await self._desk.read(lambda db: queue.due_threads(db, page(limit), at))

    async def next_due_at(self) -> int | None:
        """Return when the next dispatch of a thread without a claimed one is due."""
        return await self._desk.read(queue.next_due_at)

    async def queued_thread_ids(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        """Return threads that have queued dispatches, by id."""
        return await self._desk.read(lambda db: queue.queued_threads(db, page(limit), after))

    async def count_queued(self, thread_id: str, *, at_most: int) -> int:
        """Count a thread's queued dispatches, no further than `at_most`."""
        return await self._desk.look(lambda db: queue.count_queued(db, thread_id, at_most))

    async def count_by_status(self) -> dict[RunDispatchStatus, int]:
        """Count all dispatches."""
        return await self._desk.read(queue.count_by_status)

    async def discard(self, dispatch_id: str) -> RunDispatch | None:
        """Remove a dead letter for good; None when it is none."""
        return await self._desk.write(lambda db: queue.discard(db, dispatch_id))

    async def purge_terminal(self, *, older_than: int, dead_letters_older_than: int | None = None) -> int:
        """Remove ended rows last changed before `older_than` and return how many; epochs stay.

        It is done in several transactions, so that a large purge keeps nobody waiting; one that breaks off
        has removed a part and may be repeated.
        """
        removed = 0
        while gone := await self._desk.write(
            lambda db: queue.purge_some(db, older_than, dead_letters_older_than)
        ):
            removed += gone
        return removed
