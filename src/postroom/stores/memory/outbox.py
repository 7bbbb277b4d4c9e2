"""The outbox in memory: effects by lane and target, oldest first."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from uuid import uuid4

from postroom.contracts.errors import IdempotencyConflict
from postroom.contracts.outbox import NackOutcome, OutboxDraft, OutboxMessage, OutboxStatus
from postroom.stores.memory.run_tables import Key, Ordered, Place, Timeline, page

Address = tuple[str, str]
DedupeKey = tuple[str, str, str]

_WAITING = (OutboxStatus.PENDING, OutboxStatus.CLAIMED)


@dataclass(slots=True)
class OutboxPlan:
    """Effects that may be stored."""

    answers: list[OutboxMessage] = field(default_factory=list)
    """One for each draft; the first one of its key where that was used."""
    new: list[OutboxMessage] = field(default_factory=list)
    keys: dict[DedupeKey, OutboxMessage] = field(default_factory=dict)


class OutboxTable:
    """Effects by id; those that wait by lane and target in the order they were stored.

    Those that were given up are found by id, those that were performed by age.
    """

    def __init__(self) -> None:
        self.rows: dict[str, OutboxMessage] = {}
        self.dead: Ordered[str] = Ordered()
        self._numbers: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._newest = 0
        self._delivered: Ordered[Key] = Ordered()
        self._keys: dict[DedupeKey, str] = {}
        self._timelines: dict[Address, Timeline] = {}
        self._due: dict[Address, Ordered[int]] = {}
        self._in_line: dict[tuple[str, str, str], Ordered[int]] = {}

    def plan(self, drafts: Sequence[OutboxDraft], now: int) -> OutboxPlan:
        """Return what storing the drafts would write; nothing is written.

        Raises:
            IdempotencyConflict: a key was used with another payload.
        """
        plan = OutboxPlan()
        for draft in drafts:
            plan.answers.append(self._repeated(draft, plan) or _planned(draft, plan, now))
        return plan

    def write(self, plan: OutboxPlan) -> tuple[OutboxMessage, ...]:
        """Store what was planned."""
        for row in plan.new:
            self._newest += 1
            self._numbers[row.outbox_id] = self._newest
            self._ids[self._newest] = row.outbox_id
            self.put(row)
        self._keys.update({key: row.outbox_id for key, row in plan.keys.items()})
        return tuple(plan.answers)

    def put(self, row: OutboxMessage) -> OutboxMessage:
        """Store or replace an effect, and return it."""
        before = self.rows.get(row.outbox_id)
        number = self._numbers[row.outbox_id]
        address = row.lane, row.target
        timeline = self._timelines.setdefault(address, Timeline())
        due = self._due.setdefault(address, Ordered())
        if before is not None and before.status in _WAITING:
            timeline.discard(_due_at(before), number)
            due.discard(number)
        self.dead.discard(row.outbox_id)
        self.rows[row.outbox_id] = row
        if row.order_key is not None:
            line = self._in_line.setdefault((*address, row.order_key), Ordered())
            (line.add if row.status in _WAITING else line.discard)(number)
        if row.status is OutboxStatus.DEAD_LETTER:
            self.dead.add(row.outbox_id)
        elif row.status is OutboxStatus.DELIVERED:
            self._delivered.add((row.created_at, number))
        elif timeline.add(_due_at(row), number):
            due.add(number)
        return row

    def purge(self, older_than: int, limit: int) -> int:
        """Remove the oldest of what was performed, with their keys."""
        old = takewhile(lambda key: key[0] < older_than, self._delivered)
        gone = list(islice(old, max(0, limit)))
        for key in gone:
            self._delivered.discard(key)
            row = self.rows.pop(self._ids.pop(key[1]))
            del self._numbers[row.outbox_id]
            if row.dedupe_key is not None:
                del self._keys[row.lane, row.target, row.dedupe_key]
        return len(gone)

    def due(self, lane: str, target: str, now: int) -> Iterator[OutboxMessage]:
        """Iterate over the effects that may be claimed, oldest first."""
        if (lane, target) not in self._due:
            return
        due = self._due[lane, target]
        crossed, forward = self._timelines[lane, target].look(now)
        for number in crossed:
            if forward:
                due.add(number)
            else:
                due.discard(number)
        for number in due:
            row = self.rows[self._ids[number]]
            line = self._in_line.get((lane, target, row.order_key)) if row.order_key is not None else None
            if line is None or next(iter(line)) == number:
                yield row

    def owned(self, outbox_id: str, token: str) -> OutboxMessage | None:
        """Return the effect if this token owns it."""
        row = self.rows.get(outbox_id)
        return row if row and row.status is OutboxStatus.CLAIMED and row.claim_token == token else None

    def _repeated(self, draft: OutboxDraft, plan: OutboxPlan) -> OutboxMessage | None:
        if draft.dedupe_key is None:
            return None
        key = draft.lane, draft.target, draft.dedupe_key
        first = plan.keys.get(key) or self.rows.get(self._keys.get(key, ""))
        if first is not None and first.payload != draft.payload:
            raise IdempotencyConflict("the key was used with another payload", value=draft.dedupe_key)
        return first


class MemoryOutboxStore:
    """The outbox in this process's memory."""

    def __init__(self, place: Place, table: OutboxTable) -> None:
        self._place = place
        self._table = table

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def enqueue(self, draft: OutboxDraft, *, now: int | None = None) -> OutboxMessage:
        """Store an effect; the same key on the same lane and target gives the first one back."""
        at = await self._place.turn(now)
        return self._table.write(self._table.plan([draft], at))[0]

    async def claim(
        self, lane: str, target: str, *, lease_ms: int, limit: int = 1, now: int | None = None
    ) -> tuple[OutboxMessage, ...]:
        """Take what is due, oldest first; what is due again after its last attempt becomes a dead letter."""
        at = await self._place.turn(now)
        token = uuid4().hex
        taken: list[OutboxMessage] = []
        spent: list[OutboxMessage] = []
        for row in self._table.due(lane, target, at):
            if len(taken) >= limit:
                break
            if row.attempt_count >= row.max_attempts:
                spent.append(_without_claim(row, OutboxStatus.DEAD_LETTER))
            else:
                taken.append(_claimed(row, token, lease_until=at + lease_ms))
        for row in (*spent, *taken):
            self._table.put(row)
        return tuple(taken)

    async def ack(self, outbox_id: str, token: str, *, now: int | None = None) -> bool:
        """Record that the effect was performed; False when the claim was lost."""
        await self._place.turn(now)
        row = self._table.owned(outbox_id, token)
        if row is not None:
            self._table.put(_without_claim(row, OutboxStatus.DELIVERED))
        return row is not None

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
        at = await self._place.turn(now)
        row = self._table.owned(outbox_id, token)
        if row is None:
            return NackOutcome.LOST_CLAIM
        failed = replace(row, last_error=error)
        if final or row.attempt_count >= row.max_attempts:
            self._table.put(_without_claim(failed, OutboxStatus.DEAD_LETTER))
            return NackOutcome.DEAD_LETTERED
        self._table.put(_without_claim(replace(failed, available_at=at + delay_ms), OutboxStatus.PENDING))
        return NackOutcome.REQUEUED

    async def dead_letters(
        self, *, lane: str | None = None, after: str = "", limit: int = 100
    ) -> tuple[OutboxMessage, ...]:
        """Return dead letters by id, of one lane where that is asked, behind the id that was seen last."""
        await self._place.turn()
        found = (self._table.rows[outbox_id] for outbox_id in self._table.dead.behind(after))
        return tuple(islice((row for row in found if lane is None or row.lane == lane), page(limit)))

    async def revive(self, outbox_id: str, *, now: int | None = None) -> OutboxMessage | None:
        """Make a dead letter pending again, due now, its attempts counted anew; None when it is none."""
        at = await self._place.turn(now)
        row = self._table.rows.get(outbox_id)
        if row is None or row.status is not OutboxStatus.DEAD_LETTER:
            return None
        return self._table.put(replace(row, status=OutboxStatus.PENDING, available_at=at, attempt_count=0))

    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        """Remove delivered effects created before `older_than`, whose keys count as unused then."""
        await self._place.turn()
        return self._table.purge(older_than, limit)


def _planned(draft: OutboxDraft, plan: OutboxPlan, now: int) -> OutboxMessage:
    row = OutboxMessage(
        outbox_id=f"out_{uuid4().hex}",
        lane=draft.lane,
        target=draft.target,
        payload=deepcopy(draft.payload),
        status=OutboxStatus.PENDING,
        available_at=draft.available_at,
        created_at=now,
        dedupe_key=draft.dedupe_key,
        max_attempts=draft.max_attempts,
        order_key=draft.order_key,
    )
    plan.new.append(row)
    if draft.dedupe_key is not None:
        plan.keys[draft.lane, draft.target, draft.dedupe_key] = row
    return row


def _claimed(row: OutboxMessage, token: str, *, lease_until: int) -> OutboxMessage:
    return replace(
        row,
        status=OutboxStatus.CLAIMED,
        attempt_count=row.attempt_count + 1,
        claim_token=token,
        lease_until=lease_until,
    )


def _without_claim(row: OutboxMessage, status: OutboxStatus) -> OutboxMessage:
    return replace(row, status=status, claim_token=None, lease_until=None)


def _due_at(row: OutboxMessage) -> int:
    return row.available_at if row.lease_until is None else row.lease_until
