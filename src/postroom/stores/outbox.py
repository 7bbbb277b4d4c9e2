"""The outbox over an open transaction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from postroom.contracts import outbox
from postroom.contracts.errors import IdempotencyConflict, StoreCorrupt
from postroom.contracts.outbox import OUTBOX, Backlog, OutboxDraft, OutboxMessage, OutboxStatus
from postroom.contracts.records import replace
from postroom.stores.codec import decode_json, encode, kept, told, unreadable
from postroom.stores.sql_transaction import Found, Look, Row, Tables, Values


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
        """What is stored once: a dedupe key of a kind and a target."""
        return self.draft.kind, self.draft.target, self.draft.dedupe_key


def effect_looks(written: Sequence[WrittenEffect]) -> list[Look]:
    """Return what is asked before effects are stored: what stands under their keys."""
    looks: list[Look] = []
    for one in written:
        if one.draft.dedupe_key is not None:
            values = dict(zip(("kind", "target", "dedupe_key"), one.key, strict=True))
            looks.append(("outbox.first_of_key", values))
    return looks


class OutboxTables(Tables, outbox.OutboxTables):
    """The rows of the outbox."""

    @override
    def enqueue(self, drafts: Sequence[OutboxDraft]) -> tuple[OutboxMessage, ...]:
        written = [WrittenEffect.of(draft, self._new_id) for draft in drafts]
        stored = storing(written, self._asked(effect_looks(written)), self._now())
        self.write(stored)
        return stored.effects

    @override
    def put(self, draft: OutboxDraft, *, now: int) -> None:
        values = _columns(draft, f"out_{self._new_id()}", now)
        self._sql.run("outbox.enqueue", {**values, "payload": encode(draft.payload)})
        self._tell(OUTBOX)

    def write(self, stored: "Stored") -> None:
        """Write what was decided to be new."""
        for values in stored.new:
            self._sql.run("outbox.enqueue", values)
        if stored.new:
            self._tell(OUTBOX)

    @override
    def open(self, kind: str, *, limit: int) -> tuple[OutboxMessage, ...]:
        return tuple(map(_effect, self._sql.all("outbox.open", {"kind": kind, "limit": limit})))

    @override
    def backlog(self, kind: str) -> Backlog:
        [(waiting, oldest_at, dead)] = self._sql.all("outbox.backlog", {"kind": kind})
        return Backlog(waiting=waiting, oldest_at=oldest_at, dead=dead)

    @override
    def due(self, kinds: Sequence[str]) -> list[tuple[str, str]]:
        now = self._now()
        found = self._sql.ask(*(("outbox.targets", {"kind": kind, "now": now}) for kind in kinds))
        return [(kind, row[0]) for kind, rows in zip(kinds, found, strict=True) for row in rows]

    @override
    def claim(self, kind: str, target: str, *, lease_ms: int, limit: int) -> tuple[OutboxMessage, ...]:
        now, token = self._now(), self._new_id()
        asks = {"kind": kind, "target": target, "now": now}
        taken: list[OutboxMessage] = []
        while (left := limit - len(taken)) > 0:
            due = [_effect(row) for row in self._sql.all("outbox.due", {**asks, "limit": left})]
            fresh = [one for one in due if one.attempt_count < one.max_attempts]
            if used_up := [one.outbox_id for one in due if one.attempt_count >= one.max_attempts]:
                self._sql.run("outbox.bury", {"ids": used_up})
            if fresh:
                ids = [one.outbox_id for one in fresh]
                values = {"ids": ids, "token": token, "lease_until": now + lease_ms}
                self._sql.run("outbox.take", values)
            taken += [_claimed(one, token, now + lease_ms) for one in fresh]
            if len(due) < left:
                break
        return tuple(taken)

    @override
    def ack(self, outbox_ids: Sequence[str], tokens: Sequence[str]) -> int:
        values = {"ids": outbox_ids, "tokens": tokens}
        removed = self._sql.changed("outbox.remove_performed", values)
        return removed + self._sql.changed("outbox.keep_performed", values)

    @override
    def call_next(self, performed: Sequence[OutboxMessage]) -> None:
        lines = sorted({(one.kind, one.target, one.order_key) for one in performed if one.order_key})
        named = [dict(zip(("kind", "target", "order_key"), line, strict=True)) for line in lines]
        if any(self._sql.ask(*(("outbox.next_in_line", one) for one in named))):
            self._tell(OUTBOX)

    @override
    def nack(
        self,
        outbox_ids: Sequence[str],
        tokens: Sequence[str],
        *,
        error: str,
        delay_ms: int = 0,
        final: bool = False,
        may_have_arrived: bool = False,
        untried: bool = False,
    ) -> list[OutboxStatus]:
        values = {
            "ids": outbox_ids,
            "tokens": tokens,
            "last_error": kept(error),
            "available_at": self._now() + delay_ms,
            "final": final,
            "may_have_arrived": may_have_arrived,
            "untried": untried,
        }
        return [OutboxStatus(row[0]) for row in self._sql.all("outbox.fail", values)]

    @override
    def release(
        self, kinds: Sequence[str], *, target: str | None = None, besides: Sequence[str] = ()
    ) -> None:
        self._sql.run("outbox.release", {"kinds": kinds, "target": target, "besides": besides})

    @override
    def dead_letters(self, *, kind: str | None, after: str, limit: int) -> tuple[OutboxMessage, ...]:
        found = self._sql.all("outbox.dead_letters", {"kind": kind, "after": after, "limit": limit})
        return tuple(map(_effect, found))

    @override
    def revive(self, outbox_id: str) -> OutboxMessage | None:
        row = self._sql.one("outbox.revive", {"outbox_id": outbox_id, "now": self._now()})
        if row is None:
            return None
        self._tell(OUTBOX)
        return _effect(row)

    @override
    def discard(self, outbox_id: str) -> bool:
        return self._sql.changed("outbox.discard", {"outbox_id": outbox_id}) > 0

    @override
    def purge(self, older_than: int, limit: int) -> int:
        gone = self._sql.changed("outbox.purge", {"older_than": older_than, "limit": max(0, limit)})
        if gone:
            self._sql.run("outbox.forget_purged")
        return gone


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
    firsts = dict[tuple[str, str, str | None], OutboxMessage]()
    for what, seen in found.items():
        if what[0] == "outbox.first_of_key" and seen:
            firsts[what[1], what[2], what[3]] = _effect(seen[0])
    effects, new = list[OutboxMessage](), list[Values]()
    for one in written:
        draft, payload = one.draft, decode_json(one.payload, where="payload")
        effect = firsts.get(one.key) if firsts else None
        if effect is None:
            values = _columns(draft, one.outbox_id, now)
            effect = OutboxMessage(**values, payload=payload, status=OutboxStatus.PENDING)
            new.append({**values, "payload": one.payload})
            if draft.dedupe_key is not None:
                firsts[one.key] = effect
        elif effect.payload != payload:
            raise IdempotencyConflict("the key was used with another payload", value=draft.dedupe_key)
        effects.append(effect)
    return Stored(tuple(effects), tuple(new))


def _columns(draft: OutboxDraft, outbox_id: str, now: int) -> dict[str, Any]:
    """Return what an effect and its row have in common."""
    return {
        "outbox_id": outbox_id,
        "kind": draft.kind,
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


def _effect(row: Row) -> OutboxMessage:
    """Map a row of `outbox`.

    Raises:
        StoreCorrupt: the row is no such record.
    """
    try:
        return OutboxMessage(
            outbox_id=row[0],
            kind=row[1],
            target=row[2],
            payload=decode_json(row[3], where="payload"),
            status=OutboxStatus(row[4]),
            available_at=row[5],
            created_at=row[6],
            dedupe_key=row[7],
            attempt_count=row[8],
            max_attempts=row[9],
            claim_token=row[10],
            lease_until=row[11],
            last_error=told(row[12]),
            order_key=row[13],
            may_have_arrived=bool(row[14]),
        )
    except (ValueError, StoreCorrupt) as error:
        raise unreadable("effect", row[0], error) from error
