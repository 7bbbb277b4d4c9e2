"""The queue's steps over an open transaction: most are one guarded statement, the rest pure moves put back.

A step that must keep a change and still be refused (a stale claim ends its row) returns the refusal; one
that raises is undone.
"""

import sqlite3
from collections.abc import Callable, Collection, Sequence
from secrets import token_hex

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
    InternalError,
    InvalidRecord,
    PostroomError,
    RunNotOpen,
    StaleClaim,
    UnknownDispatch,
)
from postroom.stores.codec import encode
from postroom.stores.sqlite.runs import rows
from postroom.stores.sqlite.statements import load_statements

SQL = load_statements("dispatches")
PURGED_AT_ONCE = 1_000
"""Most rows removed in one transaction: some 5 ms, within which no caller is answered."""

_EARLIEST = (-(2**63), "")
_GUARDS = {
    RunDispatchStatus.QUEUED: "queued",
    RunDispatchStatus.CLAIMED: "claimed",
    RunDispatchStatus.ACKED: "acked",
    RunDispatchStatus.CANCELLED: "cancelled",
    RunDispatchStatus.SUPERSEDED: "superseded",
    RunDispatchStatus.DEAD_LETTER: "dead_letter",
}


def load(db: sqlite3.Connection, dispatch_id: str) -> RunDispatch | None:
    """Return one dispatch."""
    row = db.execute(SQL["dispatch"], (dispatch_id,)).fetchone()
    return rows.dispatch(row) if row else None


def claimed(db: sqlite3.Connection, thread_id: str) -> RunDispatch | None:
    """Return the thread's claimed dispatch."""
    row = db.execute(SQL["claimed"], (thread_id,)).fetchone()
    return rows.dispatch(row) if row else None


def epoch(db: sqlite3.Connection, thread_id: str) -> int:
    """Return the thread's epoch."""
    row = db.execute(SQL["epoch"], (thread_id,)).fetchone()
    return int(row[0]) if row else 0


def enqueue(db: sqlite3.Connection, dispatch: RunDispatch) -> RunDispatch:
    """Store a queued dispatch with its thread's epoch.

    Raises:
        InvalidRecord, DuplicateRecord, DedupeKeyInUse, RunNotOpen: as the port says.
    """
    if dispatch.status is not RunDispatchStatus.QUEUED:
        raise InvalidRecord(
            f"dispatch {dispatch.dispatch_id!r} must start as Queued", value=dispatch.dispatch_id
        )
    current = epoch(db, dispatch.thread_id)
    try:
        db.execute(SQL["enqueue"], rows.first_values(dispatch, current))
    except sqlite3.IntegrityError as error:
        if (refusal := _why_not_enqueued(db, dispatch)) is None:
            raise
        raise refusal from error
    if current == dispatch.dispatch_epoch:
        return dispatch
    return dispatch.prepared_for_enqueue(epoch=current)


def _why_not_enqueued(db: sqlite3.Connection, dispatch: RunDispatch) -> PostroomError | None:
    wanted = rows.dispatch_values(dispatch)
    if db.execute(SQL["dispatch"], (dispatch.dispatch_id,)).fetchone():
        return DuplicateRecord(f"dispatch {dispatch.dispatch_id!r} exists", value=dispatch.dispatch_id)
    refusals: tuple[tuple[str, type[PostroomError], str], ...] = (
        ("open_with_key", DedupeKeyInUse, f"has the dedupe key {dispatch.dedupe_key!r}"),
        ("open_of_run", RunNotOpen, f"delivers run {dispatch.run_id!r}"),
    )
    for look, refusal, does in refusals:
        if found := db.execute(SQL[look], wanted).fetchone():
            text = f"dispatch {found[0]!r} is open and {does}"
            return refusal(text, value=dispatch.dispatch_id, details={"dispatch_id": found[0]})
    return None


def claim(
    db: sqlite3.Connection, thread_id: str, consumer: str, *, lease_ms: int, now: int
) -> RunDispatch | None:
    """Own the thread's next due dispatch."""
    asked = {"thread_id": thread_id, **_ownership(consumer, lease_ms=lease_ms, now=now)}
    owned = claimed(db, thread_id) if db.execute(SQL["claim"], asked).rowcount else None
    if owned is None or owned.dispatch_epoch:  # where no epoch was raised, nothing can be older than it
        _supersede_stale(db, thread_id, now)
    return owned


def claim_dispatch(
    db: sqlite3.Connection, dispatch_id: str, consumer: str, *, lease_ms: int, now: int
) -> RunDispatch | None:
    """Own this dispatch, due or not."""
    asked = {"dispatch_id": dispatch_id, **_ownership(consumer, lease_ms=lease_ms, now=now)}
    claimed_now = db.execute(SQL["claim_by_id"], asked).rowcount
    found = load(db, dispatch_id)
    if claimed_now:
        return found
    if found is not None and found.status is RunDispatchStatus.QUEUED:
        _superseded_when_stale(db, found, now)
    return None


def _ownership(consumer: str, *, lease_ms: int, now: int) -> rows.Values:
    return {"consumer": consumer, "token": token_hex(16), "lease_until": now + lease_ms, "now": now}


def record_start(
    db: sqlite3.Connection, claim: Claim, instance_id: str, now: int
) -> RunDispatch | StaleClaim:
    """Record that the execution begins."""
    return _owned_write(db, "record_start", claim, now, instance_id=instance_id)


def record_result(
    db: sqlite3.Connection, claim: Claim, result: RunDispatchResult, now: int
) -> RunDispatch | StaleClaim:
    """Record how the execution ended.

    Raises:
        InvalidRecord: the result is another run's.
    """
    said = {
        "instance_id": result.dispatch_instance_id,
        "run_id": result.run_id,
        "run_status": result.status.value,
        "termination": rows.termination_text(result.termination),
        "response": result.response,
        "error": result.error,
    }
    return _owned_write(
        db, "record_result", claim, now, lambda row: row.record_run_result(result, now=now), **said
    )


def ack(db: sqlite3.Connection, claim: Claim, now: int) -> RunDispatch | StaleClaim:
    """Record that it is consumed."""
    return _owned_write(db, "ack", claim, now)


def extend_lease(db: sqlite3.Connection, claim: Claim, extension_ms: int, now: int) -> bool:
    """Own it until `now + extension_ms`; False when the claim was lost."""
    values = {"dispatch_id": claim.dispatch_id, "token": claim.token, "now": now}
    if db.execute(SQL["extend_lease"], {**values, "lease_until": now + extension_ms}).rowcount:
        return True
    row = load(db, claim.dispatch_id)
    if row is not None and _is_owned(row, claim):
        _superseded_when_stale(db, row, now)
    return False


def _owned_write(
    db: sqlite3.Connection,
    statement: str,
    claim: Claim,
    now: int,
    refuse: Callable[[RunDispatch], object] | None = None,
    **values: object,
) -> RunDispatch | StaleClaim:
    values.update(dispatch_id=claim.dispatch_id, token=claim.token, now=now)
    if db.execute(SQL[statement], values).rowcount and (row := load(db, claim.dispatch_id)):
        return row
    found = proved(db, claim, now)
    if isinstance(found, StaleClaim):
        return found
    if refuse is not None:
        refuse(found)
    raise InternalError(f"{statement} wrote nothing although {claim.dispatch_id!r} is owned")


def move_owned(
    db: sqlite3.Connection, claim: Claim, now: int, move: Callable[[RunDispatch], RunDispatch]
) -> RunDispatch | StaleClaim:
    """Store what `move` makes of the dispatch that the claim owns."""
    found = proved(db, claim, now)
    return found if isinstance(found, StaleClaim) else put(db, move(found))


def proved(db: sqlite3.Connection, claim: Claim, now: int) -> RunDispatch | StaleClaim:
    """Return the dispatch that the claim owns, or why it does not; a row of an older epoch is superseded.

    Raises:
        UnknownDispatch: there is no such dispatch.
    """
    row = load(db, claim.dispatch_id)
    if row is None:
        raise UnknownDispatch(f"no dispatch {claim.dispatch_id!r}", value=claim.dispatch_id)
    if not _is_owned(row, claim):
        return StaleClaim(f"dispatch {row.dispatch_id!r} is not owned by this claim", value=row.dispatch_id)
    if _superseded_when_stale(db, row, now):
        return StaleClaim(f"dispatch {row.dispatch_id!r} was interrupted", value=row.dispatch_id)
    return row


def _is_owned(row: RunDispatch, claim: Claim) -> bool:
    return row.status is RunDispatchStatus.CLAIMED and row.claim_token == claim.token


def put(db: sqlite3.Connection, row: RunDispatch) -> RunDispatch:
    """Store a dispatch as it has moved, and return it."""
    db.execute(SQL["move"], rows.dispatch_values(row))
    return row


def cancel(db: sqlite3.Connection, dispatch_id: str, now: int) -> RunDispatch | None:
    """Withdraw a queued dispatch."""
    row = load(db, dispatch_id)
    if row is None or row.status is not RunDispatchStatus.QUEUED:
        return None
    return put(db, row.cancelled(now=now))


def interrupt(db: sqlite3.Connection, thread_id: str, now: int) -> Interrupt:
    """Raise the thread's epoch and supersede all that is queued."""
    queued = [rows.dispatch(row) for row in db.execute(SQL["queue"], (thread_id,)).fetchall()]
    return Interrupt(
        new_dispatch_epoch=db.execute(SQL["raise_epoch"], (thread_id,)).fetchone()[0],
        active_dispatch=claimed(db, thread_id),
        superseded_dispatches=tuple(put(db, row.superseded(reason=INTERRUPTED, now=now)) for row in queued),
    )


def supersede_claimed(
    db: sqlite3.Connection, claim: Claim, reason: str, now: int
) -> RunDispatch | StaleClaim | None:
    """End a claimed dispatch as superseded."""
    row = load(db, claim.dispatch_id)
    if row is None or row.status is not RunDispatchStatus.CLAIMED:
        return None
    if row.claim_token != claim.token:
        return StaleClaim(f"dispatch {row.dispatch_id!r} is not owned by this claim", value=row.dispatch_id)
    return put(db, row.superseded(reason=reason, now=now))


def reclaim(db: sqlite3.Connection, limit: int, now: int) -> tuple[RunDispatch, ...]:
    """Take back what was owned until before `now`; what is superseded does not count."""
    taken: list[RunDispatch] = []
    while len(taken) < limit:
        asked = {"now": now, "limit": limit - len(taken)}
        overdue = [rows.dispatch(row) for row in db.execute(SQL["overdue"], asked).fetchall()]
        if not overdue:
            break
        taken += [
            put(db, row.lease_ended(now=now)) for row in overdue if not _superseded_when_stale(db, row, now)
        ]
    return tuple(taken)


def _supersede_stale(db: sqlite3.Connection, thread_id: str, now: int) -> None:
    """Supersede queued rows older than the thread's epoch: an interrupt leaves none, a foreign writer may."""
    asked = {"thread_id": thread_id, "epoch": epoch(db, thread_id)}
    if asked["epoch"]:
        for row in db.execute(SQL["stale_queue"], asked).fetchall():
            put(db, rows.dispatch(row).superseded(reason=STALE_EPOCH, now=now))


def _superseded_when_stale(db: sqlite3.Connection, row: RunDispatch, now: int) -> bool:
    stale = row.dispatch_epoch < epoch(db, row.thread_id)
    if stale:
        put(db, row.superseded(reason=STALE_EPOCH, now=now))
    return stale


def of_thread(
    db: sqlite3.Connection,
    thread_id: str,
    statuses: Collection[RunDispatchStatus],
    *,
    limit: int,
    offset: int,
) -> tuple[RunDispatch, ...]:
    """Return a thread's dispatches by priority, then age, then id."""
    asked: rows.Values = {"thread_id": thread_id, "limit": limit, "offset": offset}
    asked.update({guard: status in statuses for status, guard in _GUARDS.items()})
    return _all(db.execute(SQL["of_thread"], asked))


def by_status(
    db: sqlite3.Connection, status: RunDispatchStatus, *, limit: int, after: tuple[int, str] | None
) -> tuple[RunDispatch, ...]:
    """Return dispatches by last change, then id."""
    at, dispatch_id = after or _EARLIEST
    asked = {"at": at, "id": dispatch_id, "limit": limit}
    if status is RunDispatchStatus.QUEUED:
        return _all(db.execute(SQL["queued_by_change"], asked))
    if status is RunDispatchStatus.CLAIMED:
        return _all(db.execute(SQL["claimed_by_change"], asked))
    return _all(db.execute(SQL["ended_by_change"], {**asked, "status": status.value}))


def unreconciled(db: sqlite3.Connection, limit: int) -> tuple[RunDispatch, ...]:
    """Return ended dispatches whose runs were not told yet."""
    return _all(db.execute(SQL["unreconciled"], (limit,)))


def due_threads(db: sqlite3.Connection, limit: int, now: int) -> tuple[str, ...]:
    """Return threads that have a due dispatch and no claimed one, in the order of those dispatches."""
    found: dict[str, None] = {}
    if limit > 0:
        for (thread_id,) in db.execute(SQL["due_threads"], (now,)):
            found[thread_id] = None
            if len(found) == limit:
                break
    return tuple(found)


def next_due_at(db: sqlite3.Connection) -> int | None:
    """Return when the next dispatch of a thread without a claimed one is due."""
    row = db.execute(SQL["next_due_at"]).fetchone()
    return int(row[0]) if row else None


def queued_threads(db: sqlite3.Connection, limit: int, after: str) -> tuple[str, ...]:
    """Return threads that have queued dispatches, by id."""
    found = db.execute(SQL["queued_threads"], {"after": after, "limit": limit})
    return tuple(row[0] for row in found)


def count_queued(db: sqlite3.Connection, thread_id: str, at_most: int) -> int:
    """Count a thread's queued dispatches, no further than `at_most`."""
    counted = db.execute(SQL["count_queued"], {"thread_id": thread_id, "at_most": max(at_most, 0)})
    return int(counted.fetchone()[0])


def count_by_status(db: sqlite3.Connection) -> dict[RunDispatchStatus, int]:
    """Count all dispatches."""
    counted = dict(db.execute(SQL["count_by_status"]).fetchall())
    return {status: counted.get(status.value, 0) for status in RunDispatchStatus}


def discard(db: sqlite3.Connection, dispatch_id: str) -> RunDispatch | None:
    """Remove a dead letter for good."""
    row = db.execute(SQL["discard"], (dispatch_id,)).fetchone()
    return rows.dispatch(row) if row else None


def mark_reconciled(db: sqlite3.Connection, dispatch_ids: Sequence[str]) -> None:
    """Record that the runs of these were told."""
    db.execute(SQL["mark_reconciled"], (encode(list(dispatch_ids)),))


def purge_some(db: sqlite3.Connection, older_than: int, dead_letters_older_than: int | None) -> int:
    """Remove some of what ended before and return how many; 0 when nothing is left."""
    for status in TERMINAL:
        bound = older_than
        if status is RunDispatchStatus.DEAD_LETTER and dead_letters_older_than is not None:
            bound = dead_letters_older_than
        asked = {"status": status.value, "older_than": bound, "limit": PURGED_AT_ONCE}
        if gone := db.execute(SQL["purge"], asked).rowcount:
            return gone
    db.execute(SQL["forget_gone"])
    return 0


def _all(cursor: sqlite3.Cursor) -> tuple[RunDispatch, ...]:
    return tuple(rows.dispatch(row) for row in cursor.fetchall())
