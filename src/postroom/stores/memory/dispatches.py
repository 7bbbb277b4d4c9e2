"""The queue in memory: the rules of the port as plain functions, and the port over them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice
from uuid import uuid4

from postroom.contracts.dispatch import (
    INTERRUPTED,
    STALE_EPOCH,
    TERMINAL,
    Claim,
    Interrupt,
    RunDispatch,
    RunDispatchResult,
    RunDispatchStatus,
)
from postroom.contracts.errors import (
    DedupeKeyInUse,
    DuplicateRecord,
    RunNotOpen,
    StaleClaim,
    UnknownDispatch,
)
from postroom.contracts.run_stores import MAX_PAGE
from postroom.stores.memory.run_tables import DispatchTable, Place, page

_QUEUED = RunDispatchStatus.QUEUED
_CLAIMED = RunDispatchStatus.CLAIMED


class Queue:
    """Each step of the queue, done whole or refused before anything is changed."""

    def __init__(self, place: Place) -> None:
        self.table = DispatchTable()
        self._place = place

    def epoch(self, thread_id: str) -> int:
        """Return the thread's epoch."""
        return self.table.epochs.get(thread_id, 0)

    def acceptable(self, dispatch: RunDispatch, *, interrupting: bool = False) -> RunDispatch:
        """Return the row to store; with `interrupting`, as it is once the queued ones are superseded.

        Raises:
            InvalidRecord, DuplicateRecord, DedupeKeyInUse, RunNotOpen: as the port says.
        """
        thread_id = dispatch.thread_id
        row = dispatch.prepared_for_enqueue(epoch=self.epoch(thread_id) + interrupting)
        if row.dispatch_id in self.table.rows:
            raise DuplicateRecord(f"dispatch {row.dispatch_id!r} exists", value=row.dispatch_id)
        same_key = self.table.open_with_key(thread_id, row.dedupe_key) if row.dedupe_key else None
        same_run = self.table.open_of_run(row.run_id)
        for other, refusal in ((same_key, DedupeKeyInUse), (same_run, RunNotOpen)):
            if other is None or (interrupting and other.thread_id == thread_id and other.status is _QUEUED):
                continue
            raise refusal(
                f"dispatch {other.dispatch_id!r} is open: of run {other.run_id!r}, with the dedupe key "
                f"{other.dedupe_key!r}",
                value=row.dispatch_id,
                details={"dispatch_id": other.dispatch_id},
            )
        return row

    def put(self, row: RunDispatch) -> RunDispatch:
        """Store a row as it has moved; unless it was claimed, something may be claimable now."""
        if row.status is not _CLAIMED:
            self._place.bell.set()
        return self.table.put(row)

    def owned_row(self, row: RunDispatch, consumer: str, *, lease_ms: int, now: int) -> RunDispatch:
        """Return a queued row as it is when `consumer` owns it, under a fresh token; nothing is stored."""
        return row.claim(token=uuid4().hex, consumer=consumer, lease_ms=lease_ms, now=now)

    def claim(self, thread_id: str, consumer: str, *, lease_ms: int, now: int) -> RunDispatch | None:
        """Own the thread's next due dispatch."""
        while (row := self.table.next_due(thread_id, now)) and not self.table.claimed(thread_id):
            if not self._superseded_when_stale(row, now):
                return self.put(self.owned_row(row, consumer, lease_ms=lease_ms, now=now))
        return None

    def claim_dispatch(
        self, dispatch_id: str, consumer: str, *, lease_ms: int, now: int
    ) -> RunDispatch | None:
        """Own this dispatch."""
        row = self.table.rows.get(dispatch_id)
        if row is None or row.status is not _QUEUED or self._superseded_when_stale(row, now):
            return None
        if self.table.claimed(row.thread_id) is not None:
            return None
        return self.put(self.owned_row(row, consumer, lease_ms=lease_ms, now=now))

    def proved(self, claim: Claim, now: int) -> RunDispatch:
        """Return the row that the claim owns.

        Raises:
            UnknownDispatch: there is no such dispatch.
            StaleClaim: the claim was lost; a row of an older epoch is superseded then.
        """
        row = self.table.rows.get(claim.dispatch_id)
        if row is None:
            raise UnknownDispatch(f"no dispatch {claim.dispatch_id!r}", value=claim.dispatch_id)
        if row.status is not _CLAIMED or row.claim_token != claim.token:
            raise StaleClaim(
                f"dispatch {row.dispatch_id!r} is not owned by this claim", value=row.dispatch_id
            )
        if self._superseded_when_stale(row, now):
            raise StaleClaim(f"dispatch {row.dispatch_id!r} was interrupted", value=row.dispatch_id)
        return row

    def interrupt(self, thread_id: str, now: int) -> Interrupt:
        """Raise the thread's epoch and supersede all that is queued."""
        queued = tuple(self.table.of_thread(thread_id, _QUEUED))
        self.table.epochs[thread_id] = self.epoch(thread_id) + 1
        self._place.bell.set()
        return Interrupt(
            new_dispatch_epoch=self.epoch(thread_id),
            active_dispatch=self.table.claimed(thread_id),
            superseded_dispatches=tuple(
                self.put(row.superseded(reason=INTERRUPTED, now=now)) for row in queued
            ),
        )

    def reclaim(self, limit: int, now: int) -> tuple[RunDispatch, ...]:
        """Take back what was owned until before `now`."""
        taken: list[RunDispatch] = []
        while len(taken) < limit and (first := self.table.leases.first) is not None and first[0] < now:
            row = self.table.rows[first[1]]
            if not self._superseded_when_stale(row, now):
                taken.append(self.put(row.lease_ended(now=now)))
        return tuple(taken)

    def purge(self, older_than: int, dead_letters_older_than: int | None) -> int:
        """Remove what ended before."""
        gone: list[str] = []
        for status in TERMINAL:
            bound = older_than
            if status is RunDispatchStatus.DEAD_LETTER and dead_letters_older_than is not None:
                bound = dead_letters_older_than
            for updated_at, dispatch_id in self.table.by_status[status]:
                if updated_at >= bound:
                    break
                if self.table.rows[dispatch_id].reconciled:
                    gone.append(dispatch_id)
        for dispatch_id in gone:
            self.table.drop(dispatch_id)
        return len(gone)

    def _superseded_when_stale(self, row: RunDispatch, now: int) -> bool:
        stale = row.dispatch_epoch < self.epoch(row.thread_id)
        if stale:
            self.put(row.superseded(reason=STALE_EPOCH, now=now))
        return stale


class MemoryDispatchStore:
    """The queue in this process's memory."""

    def __init__(self, place: Place, queue: Queue) -> None:
        self._place = place
        self._queue = queue
        self._table = queue.table

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def enqueue(self, dispatch: RunDispatch, *, now: int | None = None) -> RunDispatch:
        """Store a queued dispatch with its thread's current epoch."""
        await self._place.turn(now)
        return self._queue.put(self._queue.acceptable(dispatch))

    async def claim(
        self, thread_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        """Own the thread's next due dispatch."""
        at = await self._place.turn(now)
        return self._queue.claim(thread_id, consumer, lease_ms=lease_ms, now=at)

    async def claim_dispatch(
        self, dispatch_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        """Own this dispatch, due or not."""
        at = await self._place.turn(now)
        return self._queue.claim_dispatch(dispatch_id, consumer, lease_ms=lease_ms, now=at)

    async def record_dispatch_start(
        self, claim: Claim, instance_id: str, *, now: int | None = None
    ) -> RunDispatch:
        """Record that the execution begins."""
        at = await self._place.turn(now)
        return self._queue.put(self._queue.proved(claim, at).record_dispatch_start(instance_id, now=at))

    async def record_run_result(
        self, claim: Claim, result: RunDispatchResult, *, now: int | None = None
    ) -> RunDispatch:
        """Record how the execution ended; the row stays Claimed."""
        at = await self._place.turn(now)
        return self._queue.put(self._queue.proved(claim, at).record_run_result(result, now=at))

    async def ack(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        """Record that it is consumed."""
        at = await self._place.turn(now)
        return self._queue.put(self._queue.proved(claim, at).acked(now=at))

    async def nack(
        self, claim: Claim, *, error: str, delay_ms: int = 0, now: int | None = None
    ) -> RunDispatch:
        """Give it back, due after `delay_ms`; at the last attempt it becomes a dead letter."""
        at = await self._place.turn(now)
        row = self._queue.proved(claim, at)
        return self._queue.put(row.nacked(error=error, delay_ms=delay_ms, now=at))

    async def release(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        """Give it back, due at once, without an attempt counted."""
        at = await self._place.turn(now)
        return self._queue.put(self._queue.proved(claim, at).released(now=at))

    async def dead_letter(self, claim: Claim, *, error: str, now: int | None = None) -> RunDispatch:
        """Give it up."""
        at = await self._place.turn(now)
        return self._queue.put(self._queue.proved(claim, at).dead_lettered(error=error, now=at))

    async def extend_lease(self, claim: Claim, *, extension_ms: int, now: int | None = None) -> bool:
        """Own it until `now + extension_ms`; False when the claim was lost."""
        at = await self._place.turn(now)
        try:
            row = self._queue.proved(claim, at)
        except (StaleClaim, UnknownDispatch):
            return False
        self._queue.put(row.extend_lease(extension_ms=extension_ms, now=at))
        return True

    async def cancel(self, dispatch_id: str, *, now: int | None = None) -> RunDispatch | None:
        """Withdraw a queued dispatch; None when it is not queued."""
        at = await self._place.turn(now)
        row = self._table.rows.get(dispatch_id)
        if row is None or row.status is not _QUEUED:
            return None
        return self._queue.put(row.cancelled(now=at))

    async def interrupt(self, thread_id: str, *, now: int | None = None) -> Interrupt:
        """Raise the thread's epoch and supersede all that is queued; the claimed one is stale then."""
        return self._queue.interrupt(thread_id, await self._place.turn(now))

    async def current_dispatch_epoch(self, thread_id: str) -> int:
        """Return the thread's epoch."""
        await self._place.turn()
        return self._queue.epoch(thread_id)

    async def supersede_claimed(
        self, claim: Claim, *, reason: str, now: int | None = None
    ) -> RunDispatch | None:
        """End a claimed dispatch as superseded; None when it is not Claimed any more."""
        at = await self._place.turn(now)
        row = self._table.rows.get(claim.dispatch_id)
        if row is None or row.status is not _CLAIMED:
            return None
        if row.claim_token != claim.token:
            raise StaleClaim(
                f"dispatch {row.dispatch_id!r} is not owned by this claim", value=row.dispatch_id
            )
        return self._queue.put(row.superseded(reason=reason, now=at))

    async def reclaim_expired_leases(
        self, *, limit: int = 100, now: int | None = None
    ) -> tuple[RunDispatch, ...]:
        """Take back what was owned until before `now`; what is superseded does not count."""
        return self._queue.reclaim(limit, await self._place.turn(now))

    async def load_dispatch(self, dispatch_id: str) -> RunDispatch | None:
        """Return one dispatch."""
        await self._place.turn()
        return self._table.rows.get(dispatch_id)

    async def list_dispatches(
        self,
        thread_id: str,
        statuses: Collection[RunDispatchStatus] | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[RunDispatch, ...]:
        """Return a thread's dispatches by priority, then age, then id."""
        await self._place.turn()
        rows = self._table.of_thread(thread_id, *(RunDispatchStatus if statuses is None else statuses))
        return tuple(islice(rows, offset, offset + page(limit)))

    async def claimed_dispatch(self, thread_id: str) -> RunDispatch | None:
        """Return the thread's claimed dispatch."""
        await self._place.turn()
        return self._table.claimed(thread_id)

    async def list_by_status(
        self, status: RunDispatchStatus, *, limit: int = 100, after: tuple[int, str] | None = None
    ) -> tuple[RunDispatch, ...]:
        """Return dispatches of all threads, by last change then id, behind `after`."""
        await self._place.turn()
        index = self._table.by_status[status]
        keys = index.behind(after) if after else iter(index)
        return tuple(self._table.rows[key[1]] for key in islice(keys, page(limit)))

    async def unreconciled_dispatches(self, *, limit: int = 100) -> tuple[RunDispatch, ...]:
        """Return ended dispatches whose runs were not told yet, oldest first."""
        await self._place.turn()
        return tuple(self._table.rows[key[1]] for key in islice(self._table.unreconciled, page(limit)))

    async def mark_reconciled(self, dispatch_ids: Sequence[str]) -> None:
        """Record that the runs of these were told."""
        await self._place.turn()
        for row in map(self._table.rows.get, dispatch_ids):
            if row is not None and not row.reconciled:
                self._table.put(replace(row, reconciled=True))

    async def due_thread_ids(self, *, limit: int = 100, now: int | None = None) -> tuple[str, ...]:
        """Return threads that have a due dispatch and no claimed one, in the order of those dispatches."""
        at = await self._place.turn(now)
        return tuple(islice(self._table.due_threads(at), page(limit)))

    async def next_due_at(self) -> int | None:
        """Return when the next dispatch of a thread without a claimed one is due."""
        await self._place.turn()
        return self._table.next_due_at()

    async def queued_thread_ids(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        """Return threads that have queued dispatches, by id."""
        await self._place.turn()
        return tuple(islice(self._table.queued_threads(after), page(limit)))

    async def count_queued(self, thread_id: str, *, at_most: int) -> int:
        """Count a thread's queued dispatches, no further than `at_most`."""
        await self._place.turn()
        return min(self._table.count_queued(thread_id), at_most)

    async def count_by_status(self) -> dict[RunDispatchStatus, int]:
        """Count all dispatches."""
        await self._place.turn()
        return {status: len(index) for status, index in self._table.by_status.items()}

    async def discard(self, dispatch_id: str) -> RunDispatch | None:
        """Remove a dead letter for good; None when it is none."""
        await self._place.turn()
        row = self._table.rows.get(dispatch_id)
        if row is None or row.status is not RunDispatchStatus.DEAD_LETTER:
            return None
        self._table.drop(dispatch_id)
        return row

    async def purge_terminal(self, *, older_than: int, dead_letters_older_than: int | None = None) -> int:
        """Remove ended rows last changed before `older_than` and return how many; epochs stay."""
        await self._place.turn()
        return self._queue.purge(older_than, dead_letters_older_than)
