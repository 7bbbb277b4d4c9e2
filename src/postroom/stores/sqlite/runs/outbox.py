"""The outbox on SQLite: the steps over an open transaction, and the port over them."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from uuid import uuid4

from postroom.contracts.errors import IdempotencyConflict
from postroom.contracts.outbox import NackOutcome, OutboxDraft, OutboxMessage, OutboxStatus
from postroom.stores.codec import decode_json, encode
from postroom.stores.sqlite.runs import rows
from postroom.stores.sqlite.runs.desk import Desk, page
from postroom.stores.sqlite.statements import load_statements

SQL = load_statements("run_outbox")


@dataclass(frozen=True, slots=True)
class Written:
    """A draft with its payload as text: what the caller does to it afterwards changes nothing."""

    draft: OutboxDraft
    payload: str

    @classmethod
    def of(cls, draft: OutboxDraft) -> "Written":
        """Write a draft down."""
        return cls(draft, encode(draft.payload))


def enqueue(db: sqlite3.Connection, drafts: Sequence[Written], now: int) -> tuple[OutboxMessage, ...]:
    """Store effects; a key that was used gives its first effect back.

    Raises:
        IdempotencyConflict: the key was used with another payload.
    """
    return tuple(_repeated(db, one) or _enqueue(db, one, now) for one in drafts)


def _repeated(db: sqlite3.Connection, written: Written) -> OutboxMessage | None:
    draft = written.draft
    if draft.dedupe_key is None:
        return None
    row = db.execute(SQL["first_of_key"], (draft.lane, draft.target, draft.dedupe_key)).fetchone()
    if row is None:
        return None
    first = rows.effect(row)
    if first.payload != decode_json(written.payload, where="payload"):
        raise IdempotencyConflict("the key was used with another payload", value=draft.dedupe_key)
    return first


def _enqueue(db: sqlite3.Connection, written: Written, now: int) -> OutboxMessage:
    draft = written.draft
    values = {
        "outbox_id": f"out_{uuid4().hex}",
        "lane": draft.lane,
        "target": draft.target,
        "payload": written.payload,
        "available_at": draft.available_at,
        "created_at": now,
        "dedupe_key": draft.dedupe_key,
        "max_attempts": draft.max_attempts,
        "order_key": draft.order_key,
    }
    db.execute(SQL["enqueue"], values)
    payload = decode_json(written.payload, where="payload")
    return OutboxMessage(**{**values, "payload": payload}, status=OutboxStatus.PENDING)


def claim(
    db: sqlite3.Connection, lane: str, target: str, *, lease_until: int, limit: int, now: int
) -> tuple[OutboxMessage, ...]:
    """Take what is due, oldest first; what is due again after its last attempt becomes a dead letter."""
    token = token_hex(16)
    taken: list[OutboxMessage] = []
    spent: list[OutboxMessage] = []
    for row in db.execute(SQL["due"], {"lane": lane, "target": target, "now": now}):
        if len(taken) >= limit:
            break
        found = rows.effect(row)
        if found.attempt_count >= found.max_attempts:
            spent.append(_without_claim(found, OutboxStatus.DEAD_LETTER))
        else:
            taken.append(_claimed(found, token, lease_until))
    for one in (*spent, *taken):
        _put(db, one)
    return tuple(taken)


def ack(db: sqlite3.Connection, outbox_id: str, token: str) -> bool:
    """Record that the effect was performed; False when the claim was lost."""
    found = _owned(db, outbox_id, token)
    if found is not None:
        _put(db, _without_claim(found, OutboxStatus.DELIVERED))
    return found is not None


def nack(
    db: sqlite3.Connection, outbox_id: str, token: str, *, error: str, available_at: int, final: bool
) -> NackOutcome:
    """Give it back for later, or to the dead letters when its attempts are used up or it is `final`."""
    found = _owned(db, outbox_id, token)
    if found is None:
        return NackOutcome.LOST_CLAIM
    failed = replace(found, last_error=error)
    if final or found.attempt_count >= found.max_attempts:
        _put(db, _without_claim(failed, OutboxStatus.DEAD_LETTER))
        return NackOutcome.DEAD_LETTERED
    _put(db, _without_claim(replace(failed, available_at=available_at), OutboxStatus.PENDING))
    return NackOutcome.REQUEUED


def dead_letters(
    db: sqlite3.Connection, *, lane: str | None, after: str, limit: int
) -> tuple[OutboxMessage, ...]:
    """Return dead letters by id, of one lane where that is asked."""
    found = db.execute(SQL["dead_letters"], {"lane": lane, "after": after, "limit": page(limit)})
    return tuple(rows.effect(row) for row in found)


def revive(db: sqlite3.Connection, outbox_id: str, now: int) -> OutboxMessage | None:
    """Make a dead letter pending again, due now, its attempts counted anew; None when it is none."""
    row = db.execute(SQL["dead_letter"], (outbox_id,)).fetchone()
    if row is None:
        return None
    revived = replace(rows.effect(row), status=OutboxStatus.PENDING, available_at=now, attempt_count=0)
    _put(db, revived)
    return revived


def purge(db: sqlite3.Connection, older_than: int, limit: int) -> int:
    """Remove the oldest of what was delivered, and return how many."""
    gone = db.execute(SQL["purge"], {"older_than": older_than, "limit": max(0, limit)}).rowcount
    if gone:
        db.execute(SQL["forget_purged"])
    return gone


def _owned(db: sqlite3.Connection, outbox_id: str, token: str) -> OutboxMessage | None:
    row = db.execute(SQL["owned"], (outbox_id, token)).fetchone()
    return rows.effect(row) if row else None


def _claimed(effect: OutboxMessage, token: str, lease_until: int) -> OutboxMessage:
    return replace(
        effect,
        status=OutboxStatus.CLAIMED,
        attempt_count=effect.attempt_count + 1,
        claim_token=token,
        lease_until=lease_until,
    )


def _without_claim(effect: OutboxMessage, status: OutboxStatus) -> OutboxMessage:
    return replace(effect, status=status, claim_token=None, lease_until=None)


def _put(db: sqlite3.Connection, effect: OutboxMessage) -> None:
    values = {
        "outbox_id": effect.outbox_id,
        "status": effect.status.value,
        "available_at": effect.available_at,
        "attempt_count": effect.attempt_count,
        "claim_token": effect.claim_token,
        "lease_until": effect.lease_until,
        "last_error": effect.last_error,
    }
    db.execute(SQL["move"], values)


class SqliteOutboxStore:
    """The outbox in the file; every promise is that of the port."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._desk.identity

    async def enqueue(self, draft: OutboxDraft, *, now: int | None = None) -> OutboxMessage:
        """Store an effect; the same key on the same lane and target gives the first one back."""
        at, written = self._desk.at(now), (Written.of(draft),)
        (stored,) = await self._desk.write(lambda db: enqueue(db, written, at))
        return stored

    async def claim(
        self, lane: str, target: str, *, lease_ms: int, limit: int = 1, now: int | None = None
    ) -> tuple[OutboxMessage, ...]:
        """Take what is due, oldest first; what is due again after its last attempt becomes a dead letter."""
        at = self._desk.at(now)
        return await self._desk.write(
            lambda db: claim(db, lane, target, lease_until=at + lease_ms, limit=limit, now=at)
        )

    async def ack(self, outbox_id: str, token: str, *, now: int | None = None) -> bool:
        """Record that the effect was performed; False when the claim was lost."""
        return await self._desk.write(lambda db: ack(db, outbox_id, token))

    async def nack(
        self,
        outbox_id: str,
        token: str,
        *,
        error: str,
        delay_ms: int = 0,
        now: int | None = None,
        final: bool = False,
    ) -> NackOutcome:
        """Give it back for later, or to the dead letters when its attempts are used up or it is `final`."""
        at = self._desk.at(now) + delay_ms
        return await self._desk.write(
            lambda db: nack(db, outbox_id, token, error=error, available_at=at, final=final)
        )

    async def dead_letters(
        self, *, lane: str | None = None, after: str = "", limit: int = 100
    ) -> tuple[OutboxMessage, ...]:
        """Return dead letters by id, of one lane where that is asked, behind the id that was seen last."""
        return await self._desk.look(lambda db: dead_letters(db, lane=lane, after=after, limit=limit))

    async def revive(self, outbox_id: str, *, now: int | None = None) -> OutboxMessage | None:
        """Make a dead letter pending again, due now, its attempts counted anew; None when it is none."""
        at = self._desk.at(now)
        return await self._desk.write(lambda db: revive(db, outbox_id, at))

    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        """Remove delivered effects created before `older_than`, whose keys count as unused then."""
        return await self._desk.write(lambda db: purge(db, older_than, limit))
