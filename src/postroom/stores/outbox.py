"""The outbox, as a transaction reads and writes it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from postroom.contracts.errors import IdempotencyConflict, StoreCorrupt
from postroom.contracts.outbox import (
    OUTBOX,
    Backlog,
    OutboxDraft,
    OutboxMessage,
    OutboxStatus,
)
from postroom.contracts.records import replace
from postroom.stores.codec import decode_json, encode, escape_nul, unescape_nul, unreadable
from postroom.stores.sql_transaction import Found, Look, Row, Tables

if TYPE_CHECKING:
    from postroom.stores.store import Transaction

_LINE: Final = ("kind", "target", "order_key")
_WINDOW: Final = 64
"""Number of a target's oldest effects that are examined, before the first effect of each order key is."""
_FIRST_ORDERS: Final = 8
"""Number of a target's order keys of which a poll examines the first effect."""


WrittenEffect = tuple[str, OutboxDraft, str, int | None]
"""The id of an effect, its draft, its payload as text, and how long this process claims it in ms, or None."""
NewEffects = Sequence[tuple[OutboxMessage, str]]
"""Effects that are not stored yet, each with its payload as text."""


class OutboxTables(Tables):
    """The rows of the outbox."""

    def __init__(self, tx: "Transaction") -> None:
        super().__init__(tx)
        self._performer = tx.performer
        self.claimed: list[OutboxMessage] = []
        """The effects that are stored as claimed; the performer performs them after the commit."""

    def enqueue(self, drafts: Sequence[OutboxDraft]) -> tuple[OutboxMessage, ...]:
        """Store effects, and return them.

        For a key that is stored already, the stored effect is returned. The key of an effect consists of its
        kind, its target and its `dedupe_key`.

        Raises:
            IdempotencyConflict: The key was used with another payload.
        """
        written = self.written(drafts)
        effects, new = self.decided(written, self._asked(effect_looks(written)), self._now())
        self.write(new)
        return effects

    def written(self, drafts: Sequence[OutboxDraft]) -> list[WrittenEffect]:
        """Return an effect with a new id for each draft, without storing the effects."""
        ask = None if self._performer is None else self._performer.lease_ms
        return [
            (
                f"out_{self._new_id()}",
                draft,
                encode(draft.payload),
                None if ask is None else ask(draft.kind, draft.target),
            )
            for draft in drafts
        ]

    def decided(
        self, written: Sequence[WrittenEffect], found: Found, now: int
    ) -> tuple[tuple[OutboxMessage, ...], NewEffects]:
        """Return an effect for each draft, and a list of the effects that must be stored.

        For a key that `effect_looks` found, the stored effect is returned. An effect that this process
        performs at once has the status CLAIMED.

        Raises:
            IdempotencyConflict: The key was used with another payload.
        """
        firsts: dict[tuple[str, str, str | None], OutboxMessage] = {}
        taken_lines: set[tuple[Any, ...]] = set()
        for what, seen in found.items():
            if seen and what[0] == "outbox.first_of_key":
                firsts[what[1], what[2], what[3]] = _effect(seen[0])
            elif seen and what[0] == "outbox.next_in_line":
                taken_lines.add(what[1:])
        effects: list[OutboxMessage] = []
        new: list[tuple[OutboxMessage, str]] = []
        for outbox_id, draft, text, lease_ms in written:
            payload = decode_json(text, where="payload")
            effect = firsts.get(draft.key) if firsts else None
            if effect is None:
                values = _columns(draft, outbox_id, now)
                effect = OutboxMessage(**values, payload=payload, status=OutboxStatus.PENDING)
                if lease_ms is not None and draft.available_at <= now and draft.line not in taken_lines:
                    effect = _claim(effect, self._new_id(), now + lease_ms)
                new.append((effect, text))
                if draft.line is not None:
                    taken_lines.add(draft.line)
                if draft.dedupe_key is not None:
                    firsts[draft.key] = effect
            elif effect.payload != payload:
                raise IdempotencyConflict(
                    "the key was already used with a different payload", value=draft.dedupe_key
                )
            effects.append(effect)
        return tuple(effects), tuple(new)

    def write(self, new: NewEffects) -> None:
        """Write new effects."""
        for effect, payload in new:
            values = {
                **_columns(effect, effect.outbox_id, effect.created_at),
                "payload": payload,
                "status": effect.status.value,
                "attempt_count": effect.attempt_count,
                "claim_token": effect.claim_token,
                "lease_until": effect.lease_until,
            }
            self._sql.run("outbox.enqueue", values)
        claimed = [effect for effect, _ in new if effect.status is OutboxStatus.CLAIMED]
        self.claimed += claimed
        if len(claimed) < len(new):
            self._tell(OUTBOX)

    def open(self, kind: str, *, limit: int) -> tuple[OutboxMessage, ...]:
        """Return up to `limit` pending and claimed effects of a kind, oldest first."""
        return tuple(map(_effect, self._sql.all("outbox.open", {"kind": kind, "limit": limit})))

    def backlog(self, kind: str) -> Backlog:
        """Return the number of pending effects and dead letters of a kind, and the oldest effect's time."""
        [(waiting, oldest_at, dead)] = self._sql.all("outbox.backlog", {"kind": kind})
        return Backlog(waiting=waiting, oldest_at=oldest_at, dead=dead)

    def due(self, kinds: Sequence[str]) -> list[tuple[str, str]]:
        """Return the pairs of kind and target for which an effect can be claimed now."""
        now = self._now()
        asks = [("outbox.targets", {"kind": kind, "now": now, "orders": _FIRST_ORDERS}) for kind in kinds]
        targets: list[tuple[str, str]] = []
        for kind, rows in zip(kinds, self._sql.ask(*asks), strict=True):
            for target, is_due, orders in rows:
                if is_due or (orders == _FIRST_ORDERS and self._due(kind, target, now, limit=1)):
                    targets.append((kind, target))
        return targets

    def _due(self, kind: str, target: str, now: int, *, limit: int) -> list[Row]:
        """Return up to `limit` due effects of a target."""
        parameters = {"kind": kind, "target": target, "now": now, "limit": limit}
        among_first = self._sql.all("outbox.due", {**parameters, "window": max(_WINDOW, 2 * limit)})
        return among_first or self._sql.all("outbox.due_far_behind", parameters)

    def claim(self, kind: str, target: str, *, lease_ms: int, limit: int) -> tuple[OutboxMessage, ...]:
        """Claim due effects of a target for `lease_ms` milliseconds, oldest first.

        Effects with an expired claim are due. An effect without remaining attempts becomes a dead letter.
        Effects with the same order key are claimed one at a time. The caller must hold `line_lock`.
        """
        now, token = self._now(), self._new_id()
        taken: list[OutboxMessage] = []
        while (left := limit - len(taken)) > 0:
            due = [_effect(row) for row in self._due(kind, target, now, limit=left)]
            fresh = [
                outbox_message
                for outbox_message in due
                if outbox_message.attempt_count < outbox_message.max_attempts
            ]
            if used_up := [
                outbox_message.outbox_id
                for outbox_message in due
                if outbox_message.attempt_count >= outbox_message.max_attempts
            ]:
                self._sql.run("outbox.bury", {"ids": used_up})
            if fresh:
                ids = [outbox_message.outbox_id for outbox_message in fresh]
                values = {"ids": ids, "token": token, "lease_until": now + lease_ms}
                self._sql.run("outbox.take", values)
            taken += [_claim(outbox_message, token, now + lease_ms) for outbox_message in fresh]
            if len(due) < left:
                break
        return tuple(taken)

    def ack(self, outbox_ids: Sequence[str], tokens: Sequence[str], *, keyed: bool = True) -> int:
        """Record that effects were performed; return the number of claims that were still valid.

        Ids and tokens correspond by position. `keyed` states whether the first effect has a key; a wrong
        value is slower, but harmless.

        Raises:
            ValueError: The numbers of ids and tokens differ.
        """
        values = {"ids": outbox_ids, "claims": _claims(outbox_ids, tokens)}
        statements = ["outbox.keep_performed", "outbox.remove_performed"]
        first, second = statements if keyed else reversed(statements)
        done = self._sql.changed(first, values)
        if done < len(outbox_ids):
            done += self._sql.changed(second, values)
        return done

    def note_steps(self, outbox_id: str, steps_done: int) -> None:
        """Store the number of completed steps of an effect, unless a higher number is stored."""
        self._sql.run("outbox.note_steps", {"outbox_id": outbox_id, "steps_done": steps_done})

    def call_next(self, performed: Sequence[OutboxMessage]) -> None:
        """Notify the relays if an open effect has the same order key as a performed effect."""
        looks = dict[tuple[str, ...], Look]()
        for row in performed:
            if row.order_key:
                line = row.kind, row.target, row.order_key
                looks[line] = "outbox.next_in_line", dict(zip(_LINE, line, strict=True))
        if looks and any(self._sql.ask(*looks.values())):
            self._tell(OUTBOX)

    def nack(  # noqa: PLR0913 - the outcome, by name
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
        """Release claimed effects for a later attempt, and return the new status of each released effect.

        With `final`, or without remaining attempts, an effect becomes a dead letter. With `may_have_arrived`,
        the effects are marked as possibly performed. With `untried`, no attempt is used up. Ids and tokens
        correspond by position.

        Raises:
            ValueError: The numbers of ids and tokens differ.
        """
        values = {
            "ids": outbox_ids,
            "claims": _claims(outbox_ids, tokens),
            "last_error": escape_nul(error),
            "available_at": self._now() + delay_ms,
            "final": final,
            "may_have_arrived": may_have_arrived,
            "untried": untried,
        }
        return [OutboxStatus(row[0]) for row in self._sql.all("outbox.fail", values)]

    def release(
        self, kinds: Sequence[str], *, target: str | None = None, besides: Sequence[str] = ()
    ) -> None:
        """Make claimed effects due again, and mark them as possibly performed.

        The caller must know that no process is performing the effects. With `target`, only effects of this
        target are released. Effects with an id in `besides` keep their claims.
        """
        self._sql.run("outbox.release", {"kinds": kinds, "target": target, "besides": besides})

    def dead_letters(self, *, kind: str | None, after: str, limit: int) -> tuple[OutboxMessage, ...]:
        """Return up to `limit` dead letters with an id greater than `after`, ordered by id.

        Without `kind`, dead letters of all kinds are returned.
        """
        rows = self._sql.all("outbox.dead_letters", {"kind": kind, "after": after, "limit": limit})
        return tuple(map(_effect, rows))

    def revive(self, outbox_id: str) -> OutboxMessage | None:
        """Make a dead letter pending and due now; return None if the effect is not a dead letter.

        The number of attempts is reset to 0, and the last error is kept. If several callers revive the same
        dead letter at the same time, the effect is returned to one caller, and None to the others.
        """
        row = self._sql.one("outbox.revive", {"outbox_id": outbox_id, "now": self._now()})
        if row is None:
            return None
        self._tell(OUTBOX)
        return _effect(row)

    def discard(self, outbox_id: str) -> bool:
        """Mark a dead letter as performed without performing it; return False for any other effect.

        The effect's key stays used. If several callers discard the same dead letter at the same time, True is
        returned to one caller only.
        """
        return self._sql.changed("outbox.discard", {"outbox_id": outbox_id}) > 0

    def purge(self, older_than: int, limit: int) -> int:
        """Delete up to `limit` performed effects that have a key, oldest first; return the number deleted.

        The key of a deleted effect can be used again.
        """
        gone = self._sql.changed("outbox.purge", {"older_than": older_than, "limit": max(0, limit)})
        if gone:
            self._sql.run("outbox.forget_purged")
        return gone


def _claims(outbox_ids: Sequence[str], tokens: Sequence[str]) -> list[str]:
    """Return ids and tokens in the combined form that the SQL statements compare."""
    return [f"{outbox_id} {token}" for outbox_id, token in zip(outbox_ids, tokens, strict=True)]


def effect_looks(written: Sequence[WrittenEffect]) -> list[Look]:
    """Return the queries that must run before effects are stored."""
    looks: list[Look] = []
    for _, draft, _, lease_ms in written:
        if draft.dedupe_key is not None:
            values = dict(zip(("kind", "target", "dedupe_key"), draft.key, strict=True))
            looks.append(("outbox.first_of_key", values))
        if lease_ms is not None and draft.line is not None:
            looks.append(("outbox.next_in_line", dict(zip(_LINE, draft.line, strict=True))))
    return looks


def _columns(draft: OutboxDraft | OutboxMessage, outbox_id: str, now: int) -> dict[str, Any]:
    """Return the columns that an effect and its draft share."""
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


def _claim(effect: OutboxMessage, token: str, lease_until: int) -> OutboxMessage:
    return replace(
        effect,
        status=OutboxStatus.CLAIMED,
        attempt_count=effect.attempt_count + 1,
        claim_token=token,
        lease_until=lease_until,
        may_have_arrived=effect.may_have_arrived or effect.status is OutboxStatus.CLAIMED,
    )


def _effect(row: Row) -> OutboxMessage:
    """Create an effect from a row of the table `outbox`.

    Raises:
        StoreCorrupt: The row cannot be read.
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
            last_error=unescape_nul(row[12]),
            order_key=row[13],
            may_have_arrived=bool(row[14]),
            steps_done=row[15],
        )
    except (ValueError, StoreCorrupt) as error:
        raise unreadable("effect", row[0], error) from error
