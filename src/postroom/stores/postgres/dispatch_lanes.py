"""What is done to dispatches most often, each in a lane: enqueue, claim, and the writes of an owner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from postroom.contracts.dispatch import STALE_EPOCH, Claim, RunDispatch, RunDispatchResult
from postroom.contracts.errors import (
    DedupeKeyInUse,
    DuplicateRecord,
    InvalidRecord,
    PostroomError,
    RunNotOpen,
    StaleClaim,
    StoreCorrupt,
    StoreUnavailable,
    UnknownDispatch,
)
from postroom.stores.codec import encode
from postroom.stores.postgres import rows
from postroom.stores.postgres.database import TRIES
from postroom.stores.postgres.driver import Connection, Row
from postroom.stores.postgres.lane import Lane
from postroom.stores.postgres.place import Place
from postroom.stores.postgres.statements import load_statements

SQL = load_statements("dispatches")

Answer = RunDispatch | PostroomError | None


class EnqueueLane:
    """Stores queued dispatches with their threads' epochs."""

    def __init__(self, place: Place) -> None:
        self._database = place.database
        self._lane: Lane[RunDispatch, RunDispatch] = Lane(
            self._perform, row=lambda one: one.dispatch_id, tasks=place.tasks, name="enqueue"
        )

    async def ask(self, dispatch: RunDispatch) -> RunDispatch:
        """Store it, or raise as the port says."""
        return await self._lane.ask(dispatch)

    async def _perform(self, asked: Sequence[RunDispatch]) -> Sequence[RunDispatch | PostroomError]:
        left, done = list(asked), dict[str, RunDispatch | PostroomError]()
        for _ in range(TRIES):
            stored = await self._database.write(SQL["enqueue"], *columns(left))
            epochs = {row[0]: row[1] for row in stored}
            for one in left:
                if one.dispatch_id in epochs:
                    epoch = epochs[one.dispatch_id]
                    done[one.dispatch_id] = one if epoch == 0 else replace(one, dispatch_epoch=epoch)
                elif refusal := await self._refusal(one):
                    done[one.dispatch_id] = refusal
            left = [one for one in left if one.dispatch_id not in done]
            if not left:
                break
        busy = StoreUnavailable("PostgreSQL is too busy with the same rows")
        return [done.get(one.dispatch_id, busy) for one in asked]

    async def _refusal(self, one: RunDispatch) -> PostroomError | None:
        """Say what stands against it; None when that was gone by the time we looked."""
        found = await self._database.first(
            SQL["conflict"], one.dispatch_id, one.thread_id, one.dedupe_key, one.run_id
        )
        return None if found is None else conflict(found, one)


def columns(asked: Sequence[RunDispatch]) -> tuple[list[Any], ...]:
    """Return what `enqueue` stores of dispatches, column by column."""
    return (
        [one.dispatch_id for one in asked],
        [one.thread_id for one in asked],
        [one.run_id for one in asked],
        [one.created_at for one in asked],
        [one.available_at for one in asked],
        [one.updated_at for one in asked],
        [one.priority for one in asked],
        [one.dedupe_key for one in asked],
        [one.attempt_count for one in asked],
        [one.max_attempts for one in asked],
        [one.deadline_at for one in asked],
        [one.tenant for one in asked],
        [rows.kept(one.last_error) for one in asked],
        [one.claimed_at for one in asked],
        [one.reconciled for one in asked],
    )


def conflict(found: Row, one: RunDispatch) -> PostroomError:
    """Return why a dispatch cannot be queued: a row of the statement `conflict`."""
    rule, dispatch_id, run_id, dedupe_key = found
    if rule == 0:
        return DuplicateRecord(f"dispatch {dispatch_id!r} exists", value=dispatch_id)
    return (DedupeKeyInUse if rule == 1 else RunNotOpen)(
        f"dispatch {dispatch_id!r} is open: of run {run_id!r}, with the dedupe key {dedupe_key!r}",
        value=one.dispatch_id,
        details={"dispatch_id": dispatch_id},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAsked:
    """Somebody who wants to own a dispatch: that of an id, or the next one of a thread."""

    name: str
    """The dispatch's id, or the thread's."""
    consumer: str
    token: str
    lease_ms: int
    now: int | None


class ClaimLane:
    """Claims, by thread or by id: the threads are locked first, then looked at and written under the lock.

    In one statement the look would be older than the lock, and a dispatch be claimed twice.
    """

    def __init__(self, place: Place, *, by_thread: bool) -> None:
        self._place = place
        self._by_thread = by_thread
        self._lock = "lock_threads" if by_thread else "lock_threads_of"
        self._lane: Lane[ClaimAsked, RunDispatch | None] = Lane(
            self._perform, row=lambda one: one.name, tasks=place.tasks, name="claim"
        )

    async def ask(self, asked: ClaimAsked) -> RunDispatch | None:
        """Claim it, or return None as the port says."""
        return await self._lane.ask(asked)

    async def _perform(self, asked: Sequence[ClaimAsked]) -> Sequence[Answer]:
        claimed = await self._place.database.transact(lambda session: self._claim(session, asked))
        answers: list[Answer] = []
        for one in asked:
            row = claimed.get(one.name)
            try:
                answers.append(None if row is None else rows.dispatch(row))
            except StoreCorrupt as error:
                answers.append(await self._passed_over(one, error))
        return answers

    async def _claim(self, session: Connection, asked: Sequence[ClaimAsked]) -> dict[str, Row]:
        await session.rows(SQL[self._lock], [one.name for one in asked])
        return await claimed_under_lock(session, asked, by_thread=self._by_thread)

    async def _passed_over(self, one: ClaimAsked, error: StoreCorrupt) -> Answer:
        """Leave a row alone that does not read back, and claim the next one of its thread."""
        name = str(error.value)
        await self._place.set_aside("dispatch", name, error)
        await self._place.database.write(SQL["give_back_unread"], name, one.token)
        return (await self._perform([one]))[0] if self._by_thread else error


async def claimed_under_lock(
    session: Connection, asked: Sequence[ClaimAsked], *, by_thread: bool
) -> dict[str, Row]:
    """Claim within a transaction that holds the threads' locks; return the rows by what was named."""
    values = (
        [one.name for one in asked],
        [one.consumer for one in asked],
        [one.token for one in asked],
        [one.lease_ms for one in asked],
        [one.now for one in asked],
    )
    if not by_thread:
        return {row[0]: row for row in await session.rows(SQL["claim_dispatch"], *values, STALE_EPOCH)}
    owned = await session.rows(SQL["claim"], *values)
    if stale := owned[0][-1]:
        await session.rows(SQL["supersede_stale"], stale, STALE_EPOCH, asked[0].now)
        owned += await session.rows(SQL["claim"], *values)
    return {row[1]: row for row in owned if row[0] is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerWrite:
    """What the owner of a dispatch writes; `values` are the further columns of the statement."""

    claim: Claim
    now: int | None
    values: tuple[object, ...] = ()
    run_id: str | None = None
    """The run that the row must be of."""


class OwnerLane:
    """One kind of write by the owners of dispatches; a lost claim is told from an unknown dispatch."""

    def __init__(
        self, place: Place, statement: str, *, read: Callable[[Row], RunDispatch] = rows.dispatch
    ) -> None:
        self._database = place.database
        self._statement = SQL[statement]
        self._read = read
        self._lane: Lane[OwnerWrite, RunDispatch] = Lane(
            self._perform, row=lambda one: one.claim.dispatch_id, tasks=place.tasks, name=statement
        )

    async def ask(self, write: OwnerWrite) -> RunDispatch:
        """Write it and return the row, or raise as the port says."""
        return await self._lane.ask(write)

    async def _perform(self, asked: Sequence[OwnerWrite]) -> Sequence[RunDispatch | PostroomError]:
        left, done = list(asked), dict[str, RunDispatch | PostroomError]()
        for _ in range(TRIES):
            further = zip(*(one.values for one in left), strict=True)
            for row in await self._database.write(self._statement, *_proofs(left), *map(list, further)):
                done[row[0]] = self._told(row)
            if lost := [one for one in left if one.claim.dispatch_id not in done]:
                done.update(await self._losses(lost))
            left = [one for one in left if one.claim.dispatch_id not in done]
            if not left:
                break
        busy = StoreUnavailable("PostgreSQL is too busy with the same rows")
        return [done.get(one.claim.dispatch_id, busy) for one in asked]

    def _told(self, row: Row) -> RunDispatch | PostroomError:
        try:
            return self._read(row)
        except StoreCorrupt as error:
            return error

    async def _losses(self, asked: Sequence[OwnerWrite]) -> dict[str, PostroomError]:
        found = await self._database.write(SQL["lost_claims"], *_proofs(asked), STALE_EPOCH)
        by_id = {row[0]: row for row in found}
        losses = {one.claim.dispatch_id: _loss(one, by_id[one.claim.dispatch_id]) for one in asked}
        return {dispatch_id: error for dispatch_id, error in losses.items() if error is not None}


def result_values(result: RunDispatchResult) -> tuple[str | None, ...]:
    """Return what `result` stores beside the proof, column by column."""
    return (
        result.run_id,
        result.dispatch_instance_id,
        result.status.value,
        None if result.termination is None else encode(result.termination),
        rows.kept(result.response),
        rows.kept(result.error),
    )


def _proofs(asked: Sequence[OwnerWrite]) -> tuple[list[Any], ...]:
    return (
        [one.claim.dispatch_id for one in asked],
        [one.claim.token for one in asked],
        [one.now for one in asked],
    )


def _loss(one: OwnerWrite, found: Row) -> PostroomError | None:
    """Say why a claim did not count: a row of `lost_claims`; None when it should have."""
    dispatch_id, run_id, stale, owned = found
    if run_id is None:
        return UnknownDispatch(f"no dispatch {dispatch_id!r}", value=dispatch_id)
    if stale:
        return StaleClaim(f"dispatch {dispatch_id!r} was interrupted", value=dispatch_id)
    if not owned:
        return StaleClaim(f"dispatch {dispatch_id!r} is not owned by this claim", value=dispatch_id)
    if one.run_id is not None and one.run_id != run_id:
        return InvalidRecord(
            f"dispatch {dispatch_id!r} is of run {run_id!r}, the result of {one.run_id!r}", value=one.run_id
        )
    return None
