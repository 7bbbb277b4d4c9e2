"""The outbox on PostgreSQL: effects by lane and target, oldest first."""

from collections.abc import Sequence
from uuid import uuid4

from postroom.contracts.errors import IdempotencyConflict
from postroom.contracts.outbox import NackOutcome, OutboxDraft, OutboxMessage, OutboxStatus
from postroom.stores.postgres import rows
from postroom.stores.postgres.driver import Connection
from postroom.stores.postgres.place import Place, page
from postroom.stores.postgres.statements import load_statements

_SQL = load_statements("outbox")
_NACKED = {
    OutboxStatus.PENDING.value: NackOutcome.REQUEUED,
    OutboxStatus.DEAD_LETTER.value: NackOutcome.DEAD_LETTERED,
}

DedupeKey = tuple[str, str, str]


class PostgresOutboxStore:
    """The outbox in one schema, for many processes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._database = place.database

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def enqueue(self, draft: OutboxDraft, *, now: int | None = None) -> OutboxMessage:
        """Store an effect; the same key on the same lane and target gives the first one back."""
        at = self._place.at(now)
        [stored] = await self._database.transact(lambda session: store_effects(session, [draft], at))
        return stored

    async def claim(
        self, lane: str, target: str, *, lease_ms: int, limit: int = 1, now: int | None = None
    ) -> tuple[OutboxMessage, ...]:
        """Take what is due, oldest first; what is due again after its last attempt becomes a dead letter."""
        at, token, taken = self._place.at(now), uuid4().hex, list[OutboxMessage]()
        while (left := limit - len(taken)) > 0:
            found = await self._database.write(_SQL["claim"], lane, target, at, lease_ms, left, token)
            owned = [row for row in found if row[5] == OutboxStatus.CLAIMED.value]
            taken += await self._place.readable("effect", [tuple(row)[1:] for row in owned], rows.effect)
            if len(found) < left:
                break
        return tuple(taken)

    async def ack(self, outbox_id: str, token: str, *, now: int | None = None) -> bool:
        """Record that the effect was performed; False when the claim was lost."""
        return bool(await self._database.write(_SQL["ack"], outbox_id, token))

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
        values = outbox_id, token, rows.kept(error), delay_ms, self._place.at(now), final
        found = await self._database.write(_SQL["nack"], *values)
        return _NACKED[found[0][0]] if found else NackOutcome.LOST_CLAIM

    async def dead_letters(
        self, *, lane: str | None = None, after: str = "", limit: int = 100
    ) -> tuple[OutboxMessage, ...]:
        """Return dead letters by id, of one lane where that is asked, behind the id that was seen last."""
        found = await self._database.read(_SQL["dead_letters"], lane, after, page(limit))
        return tuple(await self._place.readable("effect", [tuple(row)[1:] for row in found], rows.effect))

    async def revive(self, outbox_id: str, *, now: int | None = None) -> OutboxMessage | None:
        """Make a dead letter pending again, due now, its attempts counted anew; None when it is none."""
        at = self._place.at(now)
        return await self._database.transact(lambda session: _revived(session, outbox_id, at))

    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        """Remove delivered effects created before `older_than`, whose keys count as unused then."""
        [[gone]] = await self._database.write(_SQL["purge"], older_than, max(0, limit))
        return int(gone)


async def store_effects(
    session: Connection, drafts: Sequence[OutboxDraft], now: int | None
) -> list[OutboxMessage]:
    """Store effects within a transaction; return one for each, the first one of its key where that was used.

    Raises:
        IdempotencyConflict: a key was used with another payload.
    """
    known = await _used(session, drafts)
    new: dict[str, OutboxDraft] = {}
    places: list[str | OutboxMessage] = []
    by_key: dict[DedupeKey, str] = {}
    for draft in drafts:
        key = _key(draft)
        if key in known:
            _refuse_other(draft, known[key].payload)
            places.append(known[key])
        elif key in by_key:
            _refuse_other(draft, new[by_key[key]].payload)
            places.append(by_key[key])
        else:
            outbox_id = f"out_{uuid4().hex}"
            new[outbox_id] = draft
            places.append(outbox_id)
            if key:
                by_key[key] = outbox_id
    stored = await _stored(session, new, now)
    return [stored[one] if isinstance(one, str) else one for one in places]


async def _revived(session: Connection, outbox_id: str, now: int | None) -> OutboxMessage | None:
    """Revive within a transaction, so that a row that does not read back stays as it is."""
    found = await session.rows(_SQL["revive"], outbox_id, now)
    return rows.effect(tuple(found[0])[1:]) if found else None


async def _used(session: Connection, drafts: Sequence[OutboxDraft]) -> dict[DedupeKey | None, OutboxMessage]:
    keys = [key for draft in drafts if (key := _key(draft))]
    if not keys:
        return {}
    found = [
        rows.effect(tuple(row)[1:])
        for row in await session.rows(_SQL["used"], *map(list, zip(*keys, strict=True)))
    ]
    return {(one.lane, one.target, one.dedupe_key or ""): one for one in found}


async def _stored(
    session: Connection, new: dict[str, OutboxDraft], now: int | None
) -> dict[str, OutboxMessage]:
    if not new:
        return {}
    found = await session.rows(
        _SQL["enqueue"],
        list(new),
        [one.lane for one in new.values()],
        [one.target for one in new.values()],
        [rows.body(one.payload) for one in new.values()],
        [one.available_at for one in new.values()],
        [one.dedupe_key for one in new.values()],
        now,
        [one.max_attempts for one in new.values()],
        [one.order_key for one in new.values()],
    )
    return {row[1]: rows.effect(tuple(row)[1:]) for row in found}


def _key(draft: OutboxDraft) -> DedupeKey | None:
    return None if draft.dedupe_key is None else (draft.lane, draft.target, draft.dedupe_key)


def _refuse_other(draft: OutboxDraft, payload: object) -> None:
    if payload != draft.payload:
        raise IdempotencyConflict("the key was used with another payload", value=draft.dedupe_key)
