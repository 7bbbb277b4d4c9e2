"""The outbox over an open transaction; who claims, answers or revives holds the lock of the effect's line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from typing_extensions import override

from postroom.contracts import run_tables
from postroom.contracts.errors import IdempotencyConflict
from postroom.contracts.outbox import NackOutcome, OutboxDraft, OutboxMessage, OutboxStatus, line_lock
from postroom.contracts.records import replace
from postroom.stores.codec import decode_json, encode, kept
from postroom.stores.runs import rows
from postroom.stores.runs.asking import Found, Looks, asked
from postroom.stores.sql_transaction import SqlTransaction, Values


@dataclass(frozen=True, slots=True)
class WrittenEffect:
    """A draft with its id, and its payload as text: what the caller does to it afterwards changes nothing."""

    outbox_id: str
    draft: OutboxDraft
    payload: str

    @classmethod
    def of(cls, draft: OutboxDraft, new_id: Callable[[], str]) -> "WrittenEffect":
        """Write a draft down."""
        return cls(f"out_{new_id()}", draft, encode(draft.payload))

    @property
    def key(self) -> tuple[str, str, str | None]:
        """What is stored once: a dedupe key of a lane and a target."""
        return self.draft.lane, self.draft.target, self.draft.dedupe_key


def effect_looks(written: Sequence[WrittenEffect]) -> Looks:
    """Return what is asked before effects are stored: what stands under their keys."""
    names = ("lane", "target", "dedupe_key")
    return {
        ("effect", one.key): ("outbox.first_of_key", dict(zip(names, one.key, strict=True)))
        for one in written
        if one.draft.dedupe_key is not None
    }


class OutboxTables(run_tables.OutboxTables):
    """The rows of the outbox."""

    def __init__(self, sql: SqlTransaction, now: Callable[[], int], new_id: Callable[[], str]) -> None:
        self._sql = sql
        self._now = now
        self._new_id = new_id

    @override
    def at(self, now: int) -> Self:
        return type(self)(self._sql, lambda: now, self._new_id)

    @override
    def enqueue(self, drafts: Sequence[OutboxDraft]) -> tuple[OutboxMessage, ...]:
        written = tuple(WrittenEffect.of(draft, self._new_id) for draft in drafts)
        stored = storing(written, asked(self._sql, effect_looks(written)), self._now())
        self.write(stored)
        return stored.effects

    def write(self, stored: "Stored") -> None:
        """Write what was decided to be new."""
        if stored.new:
            self._sql.run_many("outbox.enqueue", stored.new)

    @override
    def line_of(self, outbox_id: str) -> str | None:
        row = self._sql.one("outbox.line_of", {"outbox_id": outbox_id})
        return line_lock(row[0], row[1]) if row else None

    @override
    def claim(self, lane: str, target: str, *, lease_ms: int, limit: int) -> tuple[OutboxMessage, ...]:
        now, token = self._now(), self._new_id()
        asks = {"lane": lane, "target": target, "now": now}
        taken: list[OutboxMessage] = []
        while (left := limit - len(taken)) > 0:
            due = [rows.effect(row) for row in self._sql.all("outbox.due", {**asks, "limit": left})]
            for one in due:
                if one.attempt_count >= one.max_attempts:
                    self._put(_without_claim(one, OutboxStatus.DEAD_LETTER))
                else:
                    taken.append(self._put(_claimed(one, token, now + lease_ms)))
            if len(due) < left:
                break
        return tuple(taken)

    @override
    def ack(self, outbox_id: str, token: str) -> bool:
        found = self._owned(outbox_id, token)
        if found is not None:
            self._put(_without_claim(found, OutboxStatus.DELIVERED))
        return found is not None

    @override
    def nack(
        self,
        outbox_id: str,
        token: str,
        *,
        error: str,
        delay_ms: int,
        final: bool,
        may_have_arrived: bool = False,
    ) -> NackOutcome:
        found = self._owned(outbox_id, token)
        if found is None:
            return NackOutcome.LOST_CLAIM
        unsure = found.may_have_arrived or may_have_arrived
        failed = replace(found, last_error=error, may_have_arrived=unsure)
        if final or found.attempt_count >= found.max_attempts:
            self._put(_without_claim(failed, OutboxStatus.DEAD_LETTER))
            return NackOutcome.DEAD_LETTERED
        later = replace(failed, available_at=self._now() + delay_ms)
        self._put(_without_claim(later, OutboxStatus.PENDING))
        return NackOutcome.REQUEUED

    @override
    def dead_letters(self, *, lane: str | None, after: str, limit: int) -> tuple[OutboxMessage, ...]:
        found = self._sql.all("outbox.dead_letters", {"lane": lane, "after": after, "limit": limit})
        return tuple(map(rows.effect, found))

    @override
    def revive(self, outbox_id: str) -> OutboxMessage | None:
        found = self._load(outbox_id)
        if found is None or found.status is not OutboxStatus.DEAD_LETTER:
            return None
        return self._put(
            replace(
                found,
                status=OutboxStatus.PENDING,
                available_at=self._now(),
                attempt_count=0,
                may_have_arrived=False,
            )
        )

    @override
    def purge(self, older_than: int, limit: int) -> int:
        gone = self._sql.changed("outbox.purge", {"older_than": older_than, "limit": max(0, limit)})
        if gone:
            self._sql.run("outbox.forget_purged")
        return gone

    def _load(self, outbox_id: str) -> OutboxMessage | None:
        row = self._sql.one("outbox.effect", {"outbox_id": outbox_id})
        return rows.effect(row) if row else None

    def _owned(self, outbox_id: str, token: str) -> OutboxMessage | None:
        found = self._load(outbox_id)
        is_owned = found is not None and found.status is OutboxStatus.CLAIMED and found.claim_token == token
        return found if is_owned else None

    def _put(self, effect: OutboxMessage) -> OutboxMessage:
        values = {
            "outbox_id": effect.outbox_id,
            "status": effect.status.value,
            "available_at": effect.available_at,
            "attempt_count": effect.attempt_count,
            "claim_token": effect.claim_token,
            "lease_until": effect.lease_until,
            "last_error": kept(effect.last_error),
            "may_have_arrived": effect.may_have_arrived,
        }
        self._sql.run("outbox.move", values)
        return effect


@dataclass(frozen=True, slots=True)
class Stored:
    """What storing effects gives back, and the rows that are new."""

    effects: tuple[OutboxMessage, ...]
    new: tuple[Values, ...]


def storing(written: Sequence[WrittenEffect], found: Found, now: int) -> Stored:
    """Decide what is stored of effects; a key under which `effect_looks` found one gives that one back.

    Raises:
        IdempotencyConflict: the key was used with another payload.
    """
    firsts = {what[1]: rows.effect(seen[0]) for what, seen in found.items() if what[0] == "effect" and seen}
    effects, new = list[OutboxMessage](), list[Values]()
    for one in written:
        payload = decode_json(one.payload, where="payload")
        effect = firsts.get(one.key)
        if effect is None:
            values = _values(one, now)
            effect = OutboxMessage(**values, payload=payload, status=OutboxStatus.PENDING)
            new.append({**values, "payload": one.payload})
            if one.draft.dedupe_key is not None:
                firsts[one.key] = effect
        elif effect.payload != payload:
            raise IdempotencyConflict("the key was used with another payload", value=one.draft.dedupe_key)
        effects.append(effect)
    return Stored(tuple(effects), tuple(new))


def _values(written: WrittenEffect, now: int) -> dict[str, Any]:
    draft = written.draft
    return {
        "outbox_id": written.outbox_id,
        "lane": draft.lane,
        "target": draft.target,
        "available_at": draft.available_at,
        "created_at": now,
        "dedupe_key": draft.dedupe_key,
        "max_attempts": draft.max_attempts,
        "order_key": draft.order_key,
    }


def _claimed(effect: OutboxMessage, token: str, lease_until: int) -> OutboxMessage:
    return replace(
        effect,
        status=OutboxStatus.CLAIMED,
        attempt_count=effect.attempt_count + 1,
        claim_token=token,
        lease_until=lease_until,
        may_have_arrived=effect.may_have_arrived or effect.status is OutboxStatus.CLAIMED,
    )


def _without_claim(effect: OutboxMessage, status: OutboxStatus) -> OutboxMessage:
    return replace(effect, status=status, claim_token=None, lease_until=None)
