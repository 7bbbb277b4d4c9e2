"""Steps on what waits to be read, over an open transaction. Positions are counted among what is there."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from postroom.contracts.errors import (
    AlreadyConsumed,
    DuplicateRecord,
    InvalidRecord,
    UnknownMessage,
    VersionConflict,
)
from postroom.contracts.messages import (
    DeliveryMode,
    Message,
    PendingMessage,
    PendingVersion,
    refuse_broken_delta,
)
from postroom.stores.codec import encode
from postroom.stores.sqlite.runs import rows
from postroom.stores.sqlite.statements import load_statements

SQL = load_statements("threads")


def waiting(db: sqlite3.Connection, thread_id: str) -> tuple[PendingMessage, ...]:
    """Return what waits on a thread, in order."""
    found = db.execute(SQL["pending"], (thread_id,)).fetchall()
    return tuple(rows.pending(row, position) for position, row in enumerate(found, start=1))


def is_any(db: sqlite3.Connection, thread_id: str) -> bool:
    """Say whether anything waits on a thread."""
    return db.execute(SQL["any_pending"], (thread_id,)).fetchone() is not None


def append(
    db: sqlite3.Connection, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, now: int
) -> tuple[PendingMessage, ...]:
    """Add messages behind those that wait.

    Raises:
        InvalidRecord: they could not be committed as they are.
        DuplicateRecord: an id waits or is committed.
    """
    refuse_broken_delta(messages)
    ids = encode([message.id for message in messages])
    for look in ("pending_named", "committed"):
        if found := db.execute(SQL[look], (thread_id, ids)).fetchone():
            raise DuplicateRecord(f"message {found[0]!r} is on the thread already", value=found[0])
    place = db.execute(SQL["last_place"], (thread_id,)).fetchone()[0]
    before = len(waiting(db, thread_id)) if place else 0
    added = tuple(
        PendingMessage(
            thread_id=thread_id, message=message, position=position, mode=mode, created_at=now, updated_at=now
        )
        for position, message in enumerate(messages, start=before + 1)
    )
    _insert(db, added, range(place + 1, place + 1 + len(added)))
    return added


def edit(
    db: sqlite3.Connection, thread_id: str, message: Message, expected_revision: int | None, now: int
) -> PendingMessage:
    """Replace a message under its id.

    Raises:
        AlreadyConsumed, UnknownMessage, VersionConflict: as the port says.
    """
    before = _as_expected(db, thread_id, message.id or "", expected_revision)
    refuse_broken_delta([message])
    after = replace(before, message=message, revision=before.revision + 1, updated_at=now)
    values = {"body": encode(message), "revision": after.revision, "now": now}
    db.execute(SQL["edit_pending"], {**values, "thread_id": thread_id, "pending_id": after.pending_id})
    return after


def retract(
    db: sqlite3.Connection, thread_id: str, pending_id: str, expected_revision: int | None
) -> PendingMessage:
    """Take back a message.

    Raises:
        AlreadyConsumed, UnknownMessage, VersionConflict: as the port says.
    """
    taken = _as_expected(db, thread_id, pending_id, expected_revision)
    db.execute(SQL["take_pending"], (thread_id, pending_id))
    return taken


def reorder(
    db: sqlite3.Connection, thread_id: str, order: Sequence[str], expected: Sequence[PendingVersion] | None
) -> tuple[PendingMessage, ...]:
    """Put all that waits into this order.

    Raises:
        VersionConflict, InvalidRecord: as the port says.
    """
    found = db.execute(SQL["pending"], (thread_id,)).fetchall()
    there = [rows.pending(row, position) for position, row in enumerate(found, start=1)]
    if expected is not None and [one.version for one in there] != list(expected):
        raise VersionConflict("other messages wait than were looked at", value=thread_id)
    by_id = {one.pending_id: one for one in there}
    if sorted(order) != sorted(by_id):
        raise InvalidRecord("an order names every waiting message once", value=list(order))
    take(db, thread_id, [one.version for one in there])
    ordered = tuple(replace(by_id[name], position=position) for position, name in enumerate(order, start=1))
    _insert(db, ordered, [row[1] for row in found])
    return ordered


def refuse_changed(db: sqlite3.Connection, thread_id: str, versions: Sequence[PendingVersion]) -> None:
    """Refuse when one of them is not there as it was seen.

    Raises:
        VersionConflict: as said.
    """
    for one in versions:
        if not db.execute(SQL["pending_version"], (thread_id, one.pending_id, one.revision)).fetchone():
            raise VersionConflict(
                f"pending message {one.pending_id!r} is not there in revision {one.revision}",
                value=one.pending_id,
            )


def take(db: sqlite3.Connection, thread_id: str, versions: Sequence[PendingVersion]) -> None:
    """Let messages leave; those behind them move up."""
    if versions:
        db.executemany(SQL["take_pending"], [(thread_id, one.pending_id) for one in versions])


def threads_with_pending(db: sqlite3.Connection, limit: int, after: str) -> tuple[str, ...]:
    """Return threads on which something waits, by id."""
    found = db.execute(SQL["threads_with_pending"], {"after": after, "limit": limit})
    return tuple(row[0] for row in found)


def _insert(db: sqlite3.Connection, entries: Sequence[PendingMessage], places: Sequence[int]) -> None:
    db.executemany(
        SQL["insert_pending"],
        [
            (
                one.thread_id,
                place,
                one.pending_id,
                one.revision,
                one.created_at,
                one.updated_at,
                encode(one.mode),
                encode(one.message),
            )
            for place, one in zip(places, entries, strict=True)
        ],
    )


def _as_expected(
    db: sqlite3.Connection, thread_id: str, pending_id: str, expected_revision: int | None
) -> PendingMessage:
    found = next((one for one in waiting(db, thread_id) if one.pending_id == pending_id), None)
    if found is None:
        if db.execute(SQL["committed"], (thread_id, encode([pending_id]))).fetchone():
            raise AlreadyConsumed(f"message {pending_id!r} is already consumed", value=pending_id)
        raise UnknownMessage(f"no pending message {pending_id!r}", value=pending_id)
    if expected_revision not in (None, found.revision):
        raise VersionConflict(
            f"pending message {pending_id!r} is at revision {found.revision}, not {expected_revision}",
            value=pending_id,
        )
    return found
