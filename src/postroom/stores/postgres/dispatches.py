"""The queue on PostgreSQL."""

from collections.abc import Collection, Sequence
from uuid import uuid4

from postroom.contracts.dispatch import (
    INTERRUPTED,
    LEASE_ENDED,
    NO_ATTEMPTS_LEFT,
    STALE_EPOCH,
    TERMINAL,
    Claim,
    Interrupt,
    RunDispatch,
    RunDispatchResult,
    RunDispatchStatus,
)
from postroom.contracts.errors import StaleClaim, StoreCorrupt, UnknownDispatch
from postroom.contracts.run_stores import MAX_PAGE
from postroom.stores.postgres import rows
from postroom.stores.postgres.dispatch_lanes import (
    SQL,
    ClaimAsked,
    ClaimLane,
    EnqueueLane,
    OwnerLane,
    OwnerWrite,
    result_values,
)
from postroom.stores.postgres.driver import Connection, Row
from postroom.stores.postgres.hints import WORK
from postroom.stores.postgres.place import Place, page

_QUEUED = RunDispatchStatus.QUEUED
_CLAIMED = RunDispatchStatus.CLAIMED
_FIRST = -(2**63)
_PURGED_AT_ONCE = 1_000
_OWNER_WRITES = ("start", "result", "ack", "nack", "release", "dead_letter", "extend")


class PostgresDispatchStore:
    """The queue in one schema, for many processes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._database = place.database
        self._enqueues = EnqueueLane(place)
        self._claims = ClaimLane(place, by_thread=True)
        self._claims_by_id = ClaimLane(place, by_thread=False)
        self._writes = {name: OwnerLane(place, name) for name in _OWNER_WRITES}

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def enqueue(self, dispatch: RunDispatch, *, now: int | None = None) -> RunDispatch:
        """Store a queued dispatch with its thread's current epoch."""
        stored = await self._enqueues.ask(dispatch.prepared_for_enqueue(epoch=0))
        self._place.hints.tell(WORK)
        return stored

    async def claim(
        self, thread_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        """Own the thread's next due dispatch."""
        return await self._claims.ask(self._asked(thread_id, consumer, lease_ms, now))

    async def claim_dispatch(
        self, dispatch_id: str, consumer: str, *, lease_ms: int, now: int | None = None
    ) -> RunDispatch | None:
        """Own this dispatch, due or not."""
        return await self._claims_by_id.ask(self._asked(dispatch_id, consumer, lease_ms, now))

    async def record_dispatch_start(
        self, claim: Claim, instance_id: str, *, now: int | None = None
    ) -> RunDispatch:
        """Record that the execution begins."""
        return await self._write("start", claim, now, instance_id)

    async def record_run_result(
        self, claim: Claim, result: RunDispatchResult, *, now: int | None = None
    ) -> RunDispatch:
        """Record how the execution ended; the row stays Claimed."""
        write = OwnerWrite(
            claim=claim,
            now=self._place.at(now),
            run_id=result.run_id,
            values=result_values(result),
        )
        return await self._writes["result"].ask(write)

    async def ack(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        """Record that it is consumed."""
        acked = await self._write("ack", claim, now)
        self._place.hints.tell(WORK, elsewhere=False)
        return acked

    async def nack(
        self, claim: Claim, *, error: str, delay_ms: int = 0, now: int | None = None
    ) -> RunDispatch:
        """Give it back, due after `delay_ms`; at the last attempt it becomes a dead letter."""
        back = await self._write("nack", claim, now, rows.kept(error), delay_ms)
        self._place.hints.tell(WORK)
        return back

    async def release(self, claim: Claim, *, now: int | None = None) -> RunDispatch:
        """Give it back, due at once, without an attempt counted."""
        back = await self._write("release", claim, now)
        self._place.hints.tell(WORK)
        return back

    async def dead_letter(self, claim: Claim, *, error: str, now: int | None = None) -> RunDispatch:
        """Give it up."""
        given_up = await self._write("dead_letter", claim, now, rows.kept(error))
        self._place.hints.tell(WORK, elsewhere=False)
        return given_up

    async def extend_lease(self, claim: Claim, *, extension_ms: int, now: int | None = None) -> bool:
        """Own it until `now + extension_ms`; False when the claim was lost."""
        try:
            await self._write("extend", claim, now, extension_ms)
        except (StaleClaim, UnknownDispatch):
            return False
        return True

    async def cancel(self, dispatch_id: str, *, now: int | None = None) -> RunDispatch | None:
        """Withdraw a queued dispatch; None when it is not queued."""
        found = await self._database.write(SQL["cancel"], dispatch_id, self._place.at(now))
        self._place.hints.tell(WORK, elsewhere=False)
        return rows.dispatch(found[0]) if found else None

    async def interrupt(self, thread_id: str, *, now: int | None = None) -> Interrupt:
        """Raise the thread's epoch and supersede all that is queued; the claimed one is stale then."""
        at = self._place.at(now)
        raised = await self._database.transact(lambda session: interrupted(session, thread_id, at))
        self._place.hints.tell(WORK, elsewhere=False)
        return raised

    async def current_dispatch_epoch(self, thread_id: str) -> int:
        """Return the thread's epoch: 0 at first, and never lower than it was."""
        found = await self._database.first(SQL["epoch"], thread_id)
        return found[0] if found else 0

    async def supersede_claimed(
        self, claim: Claim, *, reason: str, now: int | None = None
    ) -> RunDispatch | None:
        """End a claimed dispatch as superseded; None when it is not Claimed any more."""
        values = claim.dispatch_id, claim.token, rows.kept(reason), self._place.at(now)
        found = await self._database.write(SQL["supersede_claimed"], *values)
        if found:
            self._place.hints.tell(WORK, elsewhere=False)
            return rows.dispatch(found[0])
        row = await self.load_dispatch(claim.dispatch_id)
        if row is not None and row.status is _CLAIMED:
            raise StaleClaim(
                f"dispatch {row.dispatch_id!r} is not owned by this claim", value=row.dispatch_id
            )
        return None

    async def reclaim_expired_leases(
        self, *, limit: int = 100, now: int | None = None
    ) -> tuple[RunDispatch, ...]:
        """Take back what was owned until before `now`; what is superseded does not count."""
        at, taken = self._place.at(now), list[RunDispatch]()
        while (left := limit - len(taken)) > 0:
            reasons = STALE_EPOCH, LEASE_ENDED, NO_ATTEMPTS_LEFT
            found = await self._database.write(SQL["reclaim"], at, left, *reasons)
            read = await self._place.readable("dispatch", found, rows.dispatch)
            taken += [one for one in read if one.status is not RunDispatchStatus.SUPERSEDED]
            if len(found) < left:
                break
        if taken:
            self._place.hints.tell(WORK)
        return tuple(taken)

    async def load_dispatch(self, dispatch_id: str) -> RunDispatch | None:
        """Return one dispatch.

        Raises:
            StoreCorrupt: its row does not read back.
        """
        found = await self._database.first(SQL["load"], dispatch_id)
        return None if found is None else rows.dispatch(found)

    async def list_dispatches(
        self,
        thread_id: str,
        statuses: Collection[RunDispatchStatus] | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[RunDispatch, ...]:
        """Return a thread's dispatches by priority, then age, then id."""
        names = [status.value for status in (RunDispatchStatus if statuses is None else statuses)]
        return await self._listed("of_thread", thread_id, names, page(limit), max(offset, 0))

    async def claimed_dispatch(self, thread_id: str) -> RunDispatch | None:
        """Return the thread's claimed dispatch.

        Raises:
            StoreCorrupt: its row does not read back.
        """
        found = await self._database.first(SQL["claimed"], thread_id)
        return None if found is None else rows.dispatch(found)

    async def list_by_status(
        self, status: RunDispatchStatus, *, limit: int = 100, after: tuple[int, str] | None = None
    ) -> tuple[RunDispatch, ...]:
        """Return dispatches of all threads, by last change then id, behind `after`."""
        behind = after or (_FIRST, "")
        if status.is_terminal:
            return await self._listed("ended", status.value, *behind, page(limit))
        return await self._listed("queued" if status is _QUEUED else "owned", *behind, page(limit))

    async def unreconciled_dispatches(self, *, limit: int = 100) -> tuple[RunDispatch, ...]:
        """Return ended dispatches whose runs were not told yet, oldest first."""
        return await self._listed("unreconciled", page(limit))

    async def mark_reconciled(self, dispatch_ids: Sequence[str]) -> None:
        """Record that the runs of these were told; harmless when repeated."""
        await self._database.write(SQL["mark_reconciled"], list(dispatch_ids))

    async def due_thread_ids(self, *, limit: int = 100, now: int | None = None) -> tuple[str, ...]:
        """Return threads that have a due dispatch and no claimed one, in the order of those dispatches."""
        found: dict[str, None] = {}
        wanted, at = page(limit), self._place.at(now)
        behind: tuple[object, ...] = (-1, _FIRST, "")
        while len(found) < wanted:
            part = await self._database.read(SQL["due"], at, *behind, 2 * wanted)
            found.update(dict.fromkeys(row[0] for row in part))
            if len(part) < 2 * wanted:
                break
            behind = tuple(part[-1])[1:]
        return tuple(found)[:wanted]

    async def next_due_at(self) -> int | None:
        """Return when the next dispatch of a thread without a claimed one is due; it may be past."""
        found = await self._database.first(SQL["next_due_at"])
        return found[0] if found else None

    async def queued_thread_ids(self, *, limit: int = MAX_PAGE, after: str = "") -> tuple[str, ...]:
        """Return threads that have queued dispatches, by id."""
        return tuple(row[0] for row in await self._database.read(SQL["queued_threads"], after, page(limit)))

    async def count_queued(self, thread_id: str, *, at_most: int) -> int:
        """Count a thread's queued dispatches, no further than `at_most`."""
        [[number]] = await self._database.read(SQL["count_queued"], thread_id, max(at_most, 0))
        return int(number)

    async def count_by_status(self) -> dict[RunDispatchStatus, int]:
        """Count all dispatches; for gauges, at long intervals."""
        counts = {row[0]: row[1] for row in await self._database.read(SQL["count_by_status"])}
        return {status: counts.get(status.value, 0) for status in RunDispatchStatus}

    async def discard(self, dispatch_id: str) -> RunDispatch | None:
        """Remove a dead letter for good; None when it is none."""
        found = await self._database.write(SQL["discard"], dispatch_id)
        return rows.dispatch(found[0]) if found else None

    async def purge_terminal(self, *, older_than: int, dead_letters_older_than: int | None = None) -> int:
        """Remove ended rows last changed before `older_than` and return how many; epochs stay."""
        gone = 0
        for status in TERMINAL:
            bound = older_than
            if status is RunDispatchStatus.DEAD_LETTER and dead_letters_older_than is not None:
                bound = dead_letters_older_than
            while True:  # in portions, so that no transaction is long
                removed = len(await self._database.write(SQL["purge"], status.value, bound, _PURGED_AT_ONCE))
                gone += removed
                if removed < _PURGED_AT_ONCE:
                    break
        return gone

    def _asked(self, name: str, consumer: str, lease_ms: int, now: int | None) -> ClaimAsked:
        return ClaimAsked(
            name=name, consumer=consumer, token=uuid4().hex, lease_ms=lease_ms, now=self._place.at(now)
        )

    async def _write(self, statement: str, claim: Claim, now: int | None, *values: object) -> RunDispatch:
        write = OwnerWrite(claim=claim, now=self._place.at(now), values=values)
        return await self._writes[statement].ask(write)

    async def _listed(self, statement: str, *values: object) -> tuple[RunDispatch, ...]:
        found = await self._database.read(SQL[statement], *values)
        return tuple(await self._place.readable("dispatch", found, rows.dispatch))


async def interrupted(session: Connection, thread_id: str, now: int | None) -> Interrupt:
    """Raise the thread's epoch within a transaction, then supersede what is queued under the new one."""
    [[epoch]] = await session.rows(SQL["raise_epoch"], thread_id)
    touched = [
        one
        for row in await session.rows(SQL["supersede_queued"], thread_id, epoch, INTERRUPTED, now)
        if (one := _readable(row)) is not None
    ]
    superseded = [one for one in touched if one.status is RunDispatchStatus.SUPERSEDED]
    return Interrupt(
        new_dispatch_epoch=epoch,
        active_dispatch=next((one for one in touched if one.status is _CLAIMED), None),
        superseded_dispatches=tuple(
            sorted(superseded, key=lambda one: (one.priority, one.created_at, one.dispatch_id))
        ),
    )


def _readable(row: Row) -> RunDispatch | None:
    """Return the dispatch; None when the row does not read back, which is told wherever it is looked for."""
    try:
        return rows.dispatch(row)
    except StoreCorrupt:
        return None
