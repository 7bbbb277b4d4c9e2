"""The event log in memory: each scope counts its events from 1."""

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from uuid import uuid4

from postroom.contracts.errors import CursorAhead, IdempotencyConflict, VersionConflict
from postroom.contracts.events import CanonicalEvent, CanonicalEventDraft, EventPage, EventScope
from postroom.stores.memory.run_tables import Place

Writer = tuple[str | None, str]


@dataclass(slots=True)
class EventPlan:
    """Events that may be written: their numbers are right as long as nothing else is written before."""

    answers: list[CanonicalEvent] = field(default_factory=list)
    """One for each draft; that of an earlier call where the key was used."""
    new: list[CanonicalEvent] = field(default_factory=list)
    keys: dict[Writer, tuple[str, CanonicalEvent]] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)


class EventTable:
    """Events by scope, by id and by idempotency key, and who waits for more."""

    def __init__(self) -> None:
        self.scopes: dict[str, list[CanonicalEvent]] = {}
        self.rows: dict[str, CanonicalEvent] = {}
        self._keys: dict[Writer, tuple[str, CanonicalEvent]] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def newest(self, scope_key: str) -> int:
        """Return the number of the scope's newest event."""
        return len(self.scopes.get(scope_key, ()))

    def plan(self, drafts: Sequence[CanonicalEventDraft], now: int) -> EventPlan:
        """Return what appending the drafts would write; nothing is written.

        Raises:
            IdempotencyConflict: a key was used for another event.
            VersionConflict: a scope's newest number is not the expected one.
        """
        plan = EventPlan()
        for draft in drafts:
            plan.answers.append(self._repeated(draft, plan) or self._planned(draft, plan, now))
        return plan

    def write(self, plan: EventPlan) -> tuple[CanonicalEvent, ...]:
        """Write what was planned and wake who waits for it."""
        self._keys.update(plan.keys)
        for event in plan.new:
            self.rows[event.event_id] = event
            for key in event.sequences:
                self.scopes.setdefault(key, []).append(event)
                for waiter in self._waiting.pop(key, ()):
                    if not waiter.done():
                        waiter.set_result(None)
        return tuple(plan.answers)

    async def changed(self, scope_key: str) -> None:
        """Return when the scope's next event is written."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(scope_key, set()).add(waiter)
        try:
            await waiter
        finally:
            others = self._waiting.get(scope_key, set())
            others.discard(waiter)
            if not others:
                self._waiting.pop(scope_key, None)

    def _repeated(self, draft: CanonicalEventDraft, plan: EventPlan) -> CanonicalEvent | None:
        writer = _writer(draft)
        used = (plan.keys.get(writer) or self._keys.get(writer)) if writer else None
        if used is None:
            return None
        digest, event = used
        if digest != draft.digest:
            raise IdempotencyConflict(
                "the key was used for another event", value=draft.options.idempotency_key
            )
        return event

    def _planned(self, draft: CanonicalEventDraft, plan: EventPlan, now: int) -> CanonicalEvent:
        for key, expected in draft.options.expected_prior.items():
            newest = plan.newest.get(key, self.newest(key))
            if newest != expected:
                raise VersionConflict(f"the newest event of {key!r} is {newest}, not {expected}", value=key)
        keys = [scope.key for scope in draft.scopes]
        sequences = {key: plan.newest.get(key, self.newest(key)) + 1 for key in keys}
        event = CanonicalEvent(
            event_id=f"evt_{uuid4().hex}",
            event_kind=draft.event_kind,
            payload=deepcopy(draft.payload),
            sequences=sequences,
            created_at=now,
            causation_id=draft.causation_id,
            correlation_id=draft.correlation_id,
            origin=draft.origin,
            visibility=draft.visibility,
            schema_version=draft.schema_version,
        )
        if (writer := _writer(draft)) is not None:
            plan.keys[writer] = (draft.digest, event)
        plan.newest.update(sequences)
        plan.new.append(event)
        return event


class MemoryEventStore:
    """The event log in this process's memory."""

    def __init__(self, place: Place, table: EventTable) -> None:
        self._place = place
        self._table = table

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def append(self, draft: CanonicalEventDraft, *, now: int | None = None) -> CanonicalEvent:
        """Add an event to the end of its scopes; return the first one when the key was used."""
        at = await self._place.turn(now)
        return self._table.write(self._table.plan([draft], at))[0]

    async def list(self, scope: EventScope, *, after: int = 0, limit: int = 100) -> EventPage:
        """Return the events of a scope behind a cursor."""
        await self._place.turn()
        newest = self._table.newest(scope.key)
        if after > newest:
            raise CursorAhead(f"the newest event of {scope.key!r} is {newest}, before {after}", value=after)
        begin = max(after, 0)
        events = self._table.scopes.get(scope.key, [])[begin : begin + max(limit, 0)]
        return EventPage(events=tuple(events), cursor=begin + len(events))

    async def load(self, event_id: str) -> CanonicalEvent | None:
        """Return one event."""
        await self._place.turn()
        return self._table.rows.get(event_id)

    async def count(self, scope: EventScope) -> int:
        """Return the number of the newest event of a scope, 0 when there is none."""
        await self._place.turn()
        return self._table.newest(scope.key)

    async def wait(self, scope: EventScope, *, after: int) -> None:
        """Return when the scope holds events behind `after`."""
        await self._place.turn()
        while self._table.newest(scope.key) <= after:
            await self._table.changed(scope.key)


def _writer(draft: CanonicalEventDraft) -> Writer | None:
    key = draft.options.idempotency_key
    return None if key is None else (draft.options.writer_id, key)
