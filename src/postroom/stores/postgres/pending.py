"""The pending zone on PostgreSQL: each step within a transaction that holds the thread's lock."""

from collections.abc import Sequence

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
from postroom.stores.postgres import rows
from postroom.stores.postgres.driver import Connection
from postroom.stores.postgres.statements import load_statements

_SQL = load_statements("threads")


async def lock_thread(session: Connection, thread_id: str, now: int | None) -> int:
    """Keep others from writing to the thread until the transaction ends; return the instant to go by."""
    [[instant]] = await session.rows(_SQL["lock"], thread_id, now)
    return int(instant)


async def waiting(session: Connection, thread_id: str) -> tuple[PendingMessage, ...]:
    """Return what waits on the thread, in order."""
    found = await session.rows(_SQL["pending"], thread_id)
    return tuple(rows.pending(row, position) for position, row in enumerate(found, start=1))


async def append(
    session: Connection, thread_id: str, messages: Sequence[Message], mode: DeliveryMode, now: int | None
) -> tuple[PendingMessage, ...]:
    """Add messages behind those that wait."""
    refuse_broken_delta(messages)
    at = await lock_thread(session, thread_id, now)
    ids = [message.id or "" for message in messages]
    if taken := await session.rows(_SQL["on_the_thread"], thread_id, ids):
        raise DuplicateRecord(f"message {taken[0][0]!r} is on the thread already", value=taken[0][0])
    await session.rows(_SQL["make"], thread_id, at)
    bodies = [rows.body(message) for message in messages]
    await session.rows(_SQL["append_pending"], thread_id, ids, bodies, rows.body(mode), at)
    return (await waiting(session, thread_id))[-len(ids) :] if ids else ()


async def edit(
    session: Connection, thread_id: str, message: Message, expected_revision: int | None, now: int | None
) -> PendingMessage:
    """Replace a message under its id."""
    at = await lock_thread(session, thread_id, now)
    before = await _as_expected(session, thread_id, message.id or "", expected_revision)
    refuse_broken_delta([message])
    await session.rows(_SQL["edit_pending"], thread_id, before.pending_id, rows.body(message), at)
    return (await waiting(session, thread_id))[before.position - 1]


async def retract(
    session: Connection, thread_id: str, pending_id: str, expected_revision: int | None
) -> PendingMessage:
    """Take back a message."""
    await lock_thread(session, thread_id, None)
    taken = await _as_expected(session, thread_id, pending_id, expected_revision)
    await session.rows(_SQL["retract_pending"], thread_id, pending_id)
    return taken


async def reorder(
    session: Connection, thread_id: str, order: Sequence[str], expected: Sequence[PendingVersion] | None
) -> tuple[PendingMessage, ...]:
    """Put all that waits into this order."""
    await lock_thread(session, thread_id, None)
    before = await waiting(session, thread_id)
    if expected is not None and [one.version for one in before] != list(expected):
        raise VersionConflict("other messages wait than were looked at", value=thread_id)
    if sorted(order) != sorted(one.pending_id for one in before):
        raise InvalidRecord("an order names every waiting message once", value=list(order))
    await session.rows(_SQL["reorder_pending"], thread_id, list(order))
    return await waiting(session, thread_id)


async def _as_expected(
    session: Connection, thread_id: str, pending_id: str, expected_revision: int | None
) -> PendingMessage:
    there = await waiting(session, thread_id)
    found = next((one for one in there if one.pending_id == pending_id), None)
    if found is None:
        if await session.rows(_SQL["on_the_thread"], thread_id, [pending_id]):
            raise AlreadyConsumed(f"message {pending_id!r} is already consumed", value=pending_id)
        raise UnknownMessage(f"no pending message {pending_id!r}", value=pending_id)
    if expected_revision not in (None, found.revision):
        raise VersionConflict(
            f"pending message {pending_id!r} is at revision {found.revision}, not {expected_revision}",
            value=pending_id,
        )
    return found
