"""Commits on PostgreSQL: one transaction that holds the thread's lock, looks, decides and writes."""

from dataclasses import replace
from uuid import uuid4

from postroom.contracts.dispatch import STALE_EPOCH, RunDispatch
from postroom.contracts.errors import (
    ActiveRunConflict,
    DuplicateRecord,
    ForeignThread,
    InvalidRecord,
    PostroomError,
    QueueFull,
    StaleClaim,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.events import CanonicalEvent
from postroom.contracts.messages import refuse_broken_delta
from postroom.contracts.run_stores import Committed, Delivery, ThreadCommit
from postroom.contracts.runs import Thread
from postroom.stores.postgres import rows
from postroom.stores.postgres.dispatch_lanes import (
    SQL,
    ClaimAsked,
    claimed_under_lock,
    columns,
    conflict,
    result_values,
)
from postroom.stores.postgres.dispatches import interrupted
from postroom.stores.postgres.driver import Clash, Connection, Row
from postroom.stores.postgres.events import AskedEvent, PostgresEventStore, append_events
from postroom.stores.postgres.hints import WORK
from postroom.stores.postgres.outbox import store_effects
from postroom.stores.postgres.place import Place
from postroom.stores.postgres.statements import load_statements
from postroom.stores.postgres.threads import new_thread, pointers, run_columns

_SQL = load_statements("commits")
_THREAD_COLUMNS = 12


class PostgresCommitCoordinator:
    """Writes a step of a thread over all tables of one schema."""

    def __init__(self, place: Place, events: PostgresEventStore) -> None:
        self._place = place
        self._database = place.database
        self._events = events

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
        """Write it whole or not at all; a lost claim alone leaves its row Superseded."""
        commit.refuse_unclaimed_move()
        at = self._place.at(now)
        try:
            committed = await self._database.transact(lambda session: _commit(session, commit, at))
        except StaleClaim:
            if commit.claim is not None:
                proof = [commit.claim.dispatch_id], [commit.claim.token], [at]
                await self._database.write(SQL["lost_claims"], *proof, STALE_EPOCH)
            raise
        self._events.tell(commit.events)
        if commit.delivery is not None:
            self._place.hints.tell(WORK, elsewhere=committed.claimed is None)
        elif commit.ends is not None:
            self._place.hints.tell(WORK, elsewhere=False)
        return committed


async def _commit(session: Connection, commit: ThreadCommit, now: int | None) -> Committed:
    at = await _locked(session, commit, now)
    thread, waits = await _thread_after(session, commit, at)
    delivery = commit.delivery
    if delivery is not None:
        await _refuse_delivery(session, delivery, commit.thread_id)
    await _write(session, commit, thread, at)
    committed = Committed(
        message_count=thread.message_count,
        dispatch=await _moved(session, commit, at),
        leaves_waiting=waits and commit.ends is not None,
    )
    if delivery is not None:
        committed = await _deliver(session, delivery, committed, at, claim_at=now)
        committed = await _begun(session, commit, committed, now)
    return replace(
        committed,
        events=await _appended(session, commit, at),
        outbox=tuple(await store_effects(session, commit.outbox, at)),
    )


async def _locked(session: Connection, commit: ThreadCommit, now: int | None) -> int:
    """Keep others from the thread, and from the dispatch that is owned; return the instant to go by."""
    claim = commit.claim
    proof = (claim.dispatch_id, claim.token) if claim else (None, None)
    [[at, thread_id, owned, stale]] = await session.rows(_SQL["lock"], commit.thread_id, now, *proof)
    if claim is not None:
        if not owned or stale:
            raise StaleClaim(f"dispatch {claim.dispatch_id!r} is not owned any more", value=claim.dispatch_id)
        if thread_id != commit.thread_id:
            raise ForeignThread(f"the claim is one of thread {thread_id!r}", value=commit.thread_id)
    return int(at)


async def _thread_after(session: Connection, commit: ThreadCommit, now: int) -> tuple[Thread, bool]:
    """Return the thread as it is to be, unless something stands against the commit, and whether any waits."""
    run, parent = commit.run, commit.parent_thread_id
    [found] = await session.rows(
        _SQL["facts"],
        commit.thread_id,
        run and run.run_id,
        commit.joins,
        [message.id for message in commit.messages],
        [version.pending_id for version in commit.consumes],
        [version.revision for version in commit.consumes],
        parent,
    )
    known = None if found[0] is None else rows.thread(found)
    if known is None:
        commit.refuse_gone()
    run_id, body, joined, twice, missing, parent_known, waits = tuple(found)[_THREAD_COLUMNS:]
    _refuse_changed(commit, known, joined=joined, missing=missing)
    refuse_broken_delta(commit.messages)
    if twice is not None:
        raise DuplicateRecord(f"message {twice!r} is committed already", value=twice)
    if run is not None:
        if run.thread_id != commit.thread_id:
            raise ForeignThread(f"run {run.run_id!r} is of thread {run.thread_id!r}", value=run.run_id)
        commit.refuse_changed_run(None if body is None else rows.run((run_id, body)))
    if known is None and parent is not None and not parent_known:
        raise UnknownThread(f"no thread {parent!r}, the parent of another", value=parent)
    thread = known or new_thread(commit.thread_id, now, parent)
    if commit.messages:
        count = thread.message_count + len(commit.messages)
        thread = replace(thread, message_count=count, updated_at=max(now, thread.updated_at))
    return (thread if run is None else thread.after(run)), waits


def _refuse_changed(
    commit: ThreadCommit, known: Thread | None, *, joined: bool | None, missing: str | None
) -> None:
    if commit.joins is not None and not joined:
        raise VersionConflict(f"dispatch {commit.joins!r} is not queued any more", value=commit.joins)
    if missing is not None:
        raise VersionConflict(f"pending message {missing!r} is not there as it was seen", value=missing)
    count = known.message_count if known else 0
    if commit.expected_message_count not in (None, count):
        raise VersionConflict(
            f"thread {commit.thread_id!r} has {count} messages, not {commit.expected_message_count}",
            value=commit.thread_id,
            details={"expected": commit.expected_message_count, "actual": count},
        )


async def _refuse_delivery(session: Connection, delivery: Delivery, thread_id: str) -> None:
    one, cap = delivery.dispatch, delivery.queue_cap
    [found] = await session.rows(
        _SQL["delivery_facts"],
        thread_id,
        one.dispatch_id,
        one.dedupe_key,
        one.run_id,
        delivery.interrupt,
        max(cap or 0, 1 if delivery.when_idle else 0),
    )
    busy, waiting, *against = found
    if delivery.when_idle and (busy is not None or waiting):
        raise ActiveRunConflict(f"thread {thread_id!r} is not idle", value=thread_id)
    if busy is not None and (delivery.interrupt or (delivery.claim and delivery.claim_needed)):
        raise ActiveRunConflict(
            f"thread {thread_id!r} has an active run: dispatch {busy!r} is claimed",
            value=thread_id,
            details={"dispatch_id": busy},
        )
    if one.thread_id != thread_id:
        raise ForeignThread(f"the dispatch is of thread {one.thread_id!r}", value=one.run_id)
    one.prepared_for_enqueue(epoch=0)
    if against[0] is not None:
        raise conflict(against, one)
    if cap is not None and (0 if delivery.interrupt else waiting) >= cap:
        raise QueueFull(f"{waiting} dispatches wait on thread {thread_id!r}", value=thread_id)


async def _write(session: Connection, commit: ThreadCommit, thread: Thread, now: int) -> None:
    messages, run = commit.messages, commit.run
    first = thread.message_count - len(messages) + 1
    *moved, updated_at = pointers(thread)
    run_id, _, *ran = (None,) * 6 if run is None else run_columns(run)
    written = await session.rows(
        _SQL["write"],
        commit.thread_id,
        thread.parent_thread_id,
        *moved,
        thread.message_count,
        thread.created_at,
        updated_at,
        now,
        list(range(first, first + len(messages))),
        [message.id for message in messages],
        [message.metadata.run_id if message.metadata else None for message in messages],
        [message.visibility.value for message in messages],
        [rows.body(message) for message in messages],
        [version.pending_id for version in commit.consumes],
        None if commit.thread_state is None else rows.body(commit.thread_state),
        run_id,
        *ran,
    )
    if run is not None and not written:
        raise Clash("runs_pkey", f"run {run_id!r} was made on another thread")
    if commit.spends:
        names = ("scope", "runs", "wall_ms", "tokens", "cost_micros")
        await session.rows(_SQL["spend"], *([getattr(one, name) for one in commit.spends] for name in names))


async def _moved(session: Connection, commit: ThreadCommit, now: int) -> RunDispatch | None:
    """Begin or end the execution whose dispatch is owned; its row is locked."""
    claim, written = commit.claim, list[Row]()
    if claim is None or not commit.moves_owned:
        return None
    proof = [claim.dispatch_id], [claim.token], [now]
    if commit.begins is not None:
        written = await session.rows(SQL["start"], *proof, [commit.begins])
    if commit.ends is not None:
        said = ([value] for value in result_values(commit.ends))
        if not await session.rows(SQL["result"], *proof, *said):
            raise InvalidRecord(
                f"dispatch {claim.dispatch_id!r} is not of run {commit.ends.run_id!r}",
                value=commit.ends.run_id,
            )
        written = await session.rows(SQL["ack"], *proof)
    return rows.dispatch(written[0])


async def _deliver(
    session: Connection, delivery: Delivery, committed: Committed, now: int, *, claim_at: int | None
) -> Committed:
    """Deliver at `now`, which was told when the commit began.

    What is due is decided by the clock when the claim is made: what was given back meanwhile is due.
    """
    one = delivery.dispatch
    interrupt = await interrupted(session, one.thread_id, now) if delivery.interrupt else None
    stored = await session.rows(SQL["enqueue"], *columns([one]))
    if not stored:
        raise Clash("run_dispatches", f"dispatch {one.dispatch_id!r} met another that was being stored")
    dispatch = one.prepared_for_enqueue(epoch=stored[0][1])
    claimed = await _claimed(session, delivery, claim_at)
    if claimed is not None and claimed.dispatch_id == dispatch.dispatch_id:
        dispatch = claimed
    return replace(committed, interrupt=interrupt, dispatch=dispatch, claimed=claimed)


async def _begun(
    session: Connection, commit: ThreadCommit, committed: Committed, now: int | None
) -> Committed:
    """Begin the execution of what was just claimed, where that is wanted."""
    owned = committed.claimed
    if owned is None or not commit.begins_delivered:
        return committed
    proof = [owned.dispatch_id], [owned.claim_token], [now]
    [row] = await session.rows(SQL["start"], *proof, [commit.begins])
    begun = rows.dispatch(row)
    return replace(committed, dispatch=begun, claimed=begun)


async def _claimed(session: Connection, delivery: Delivery, now: int | None) -> RunDispatch | None:
    by_thread = not delivery.claim_needed
    one, request = delivery.dispatch, delivery.claim
    if request is None:
        return None
    asked = ClaimAsked(
        name=one.thread_id if by_thread else one.dispatch_id,
        consumer=request.consumer,
        token=uuid4().hex,
        lease_ms=request.lease_ms,
        now=now,
    )
    found: Row | None = (await claimed_under_lock(session, [asked], by_thread=by_thread)).get(asked.name)
    return None if found is None else rows.dispatch(found)


async def _appended(session: Connection, commit: ThreadCommit, now: int) -> tuple[CanonicalEvent, ...]:
    events = []
    if commit.events:
        asked = [AskedEvent(draft=draft, now=now) for draft in commit.events]
        for answer in await append_events(session, asked):
            if isinstance(answer, PostroomError):
                raise answer
            events.append(answer)
    return tuple(events)
