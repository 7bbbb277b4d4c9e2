"""The event log on PostgreSQL: each scope counts its events from 1, without gaps."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import uuid4

from postroom.contracts.errors import CursorAhead, IdempotencyConflict, PostroomError, VersionConflict
from postroom.contracts.events import CanonicalEvent, CanonicalEventDraft, EventPage, EventScope
from postroom.stores.postgres import rows
from postroom.stores.postgres.driver import Connection
from postroom.stores.postgres.hints import about
from postroom.stores.postgres.lane import Lane
from postroom.stores.postgres.place import Place
from postroom.stores.postgres.statements import load_statements

_SQL = load_statements("events")

Writer = tuple[str, str]
Answer = CanonicalEvent | PostroomError


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedEvent:
    """An event to append, and the instant of it; None leaves that to the database's clock."""

    draft: CanonicalEventDraft
    now: int | None
    turn: int = 0
    """Orders those that are written together."""


class PostgresEventStore:
    """The log in one schema, for many processes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._turns = count()
        self._lane: Lane[AskedEvent, CanonicalEvent] = Lane(
            self._perform, row=lambda one: f"{one.turn:020}", tasks=place.tasks, name="append"
        )

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._place.identity

    async def append(self, draft: CanonicalEventDraft, *, now: int | None = None) -> CanonicalEvent:
        """Add an event to the end of its scopes; return the first one when the key was used."""
        asked = AskedEvent(draft=draft, now=self._place.at(now), turn=next(self._turns))
        if draft.options.expected_prior:
            [answer] = await self._perform([asked])
            if isinstance(answer, PostroomError):
                raise answer
        else:
            answer = await self._lane.ask(asked)
        self.tell([draft])
        return answer

    async def list(self, scope: EventScope, *, after: int = 0, limit: int = 100) -> EventPage:
        """Return the events of a scope behind a cursor."""
        begin = max(after, 0)
        found = await self._place.database.read(_SQL["list"], scope.key, begin, max(limit, 0))
        if not found and after > 0 and (newest := await self.count(scope)) < after:
            raise CursorAhead(f"the newest event of {scope.key!r} is {newest}, before {after}", value=after)
        return EventPage(events=tuple(rows.event(row) for row in found), cursor=begin + len(found))

    async def load(self, event_id: str) -> CanonicalEvent | None:
        """Return one event."""
        found = await self._place.database.first(_SQL["load"], event_id)
        return None if found is None else rows.event(found)

    async def count(self, scope: EventScope) -> int:
        """Return the number of the newest event of a scope, 0 when there is none."""
        found = await self._place.database.first(_SQL["newest"], [scope.key])
        return found[1] if found else 0

    async def wait(self, scope: EventScope, *, after: int) -> None:
        """Return when the scope holds events behind `after`, written here or by another process."""
        with self._place.hints.heard(about("e", scope.key)) as hint:
            while await self.count(scope) <= after:
                await hint.wait()

    def tell(self, drafts: Sequence[CanonicalEventDraft]) -> None:
        """Wake those who wait for events of these scopes."""
        for key in {scope.key for draft in drafts for scope in draft.scopes}:
            self._place.hints.tell(about("e", key))

    async def _perform(self, asked: Sequence[AskedEvent]) -> Sequence[Answer]:
        return await self._place.database.transact(lambda session: append_events(session, asked))


async def append_events(session: Connection, asked: Sequence[AskedEvent]) -> list[Answer]:
    """Append within a transaction, and return an event for each, or the conflict of its key.

    Raises:
        VersionConflict: a scope's newest number is not the expected one.
    """
    known = await _used(session, asked)
    fresh = _fresh(asked, known)
    newest, clock = await _advanced(session, fresh)
    answers: list[Answer] = []
    written: list[tuple[CanonicalEventDraft, CanonicalEvent]] = []
    for one in asked:
        writer = _writer(one.draft)
        if writer and writer in known:
            answers.append(_repeated(one.draft, *known[writer]))
            continue
        _refuse_unexpected(one.draft, newest)
        event = _numbered(one.draft, newest, clock if one.now is None else one.now)
        newest.update(event.sequences)
        written.append((one.draft, event))
        answers.append(event)
        if writer:
            known[writer] = one.draft.digest, event
    if written:
        await session.rows(_SQL["append"], *_columns(written))
    return answers


async def _used(session: Connection, asked: Sequence[AskedEvent]) -> dict[Writer, tuple[str, CanonicalEvent]]:
    writers = [writer for one in asked if (writer := _writer(one.draft))]
    if not writers:
        return {}
    found = await session.rows(_SQL["used"], [one[0] for one in writers], [one[1] for one in writers])
    return {(row[10], row[11]): (row[12], rows.event(row)) for row in found}


def _fresh(asked: Sequence[AskedEvent], known: Container[Writer]) -> list[CanonicalEventDraft]:
    """Return those that are to be written: each key once."""
    fresh, seen = [], set[Writer]()
    for one in asked:
        writer = _writer(one.draft)
        if writer is None or not (writer in known or writer in seen):
            fresh.append(one.draft)
        if writer:
            seen.add(writer)
    return fresh


async def _advanced(session: Connection, drafts: Sequence[CanonicalEventDraft]) -> tuple[dict[str, int], int]:
    """Let the scopes count on; return what each had counted before, and the database's clock."""
    numbers = Counter(scope.key for draft in drafts for scope in draft.scopes)
    looked_at = {key for draft in drafts for key in draft.options.expected_prior} - numbers.keys()
    newest, clock = dict.fromkeys(looked_at, 0), 0
    if looked_at:
        newest.update({row[0]: row[1] for row in await session.rows(_SQL["newest"], list(looked_at))})
    if numbers:
        found = await session.rows(_SQL["advance"], list(numbers), list(numbers.values()))
        newest.update({row[0]: row[1] - numbers[row[0]] for row in found})
        clock = found[0][2]
    return newest, clock


def _refuse_unexpected(draft: CanonicalEventDraft, newest: Mapping[str, int]) -> None:
    for key, expected in draft.options.expected_prior.items():
        if newest[key] != expected:
            raise VersionConflict(f"the newest event of {key!r} is {newest[key]}, not {expected}", value=key)


def _repeated(draft: CanonicalEventDraft, digest: str, event: CanonicalEvent) -> Answer:
    if digest == draft.digest:
        return event
    return IdempotencyConflict("the key was used for another event", value=draft.options.idempotency_key)


def _numbered(draft: CanonicalEventDraft, newest: Mapping[str, int], now: int) -> CanonicalEvent:
    return CanonicalEvent(
        event_id=f"evt_{uuid4().hex}",
        event_kind=draft.event_kind,
        payload=draft.payload,
        sequences={scope.key: newest[scope.key] + 1 for scope in draft.scopes},
        created_at=now,
        causation_id=draft.causation_id,
        correlation_id=draft.correlation_id,
        origin=draft.origin,
        visibility=draft.visibility,
        schema_version=draft.schema_version,
    )


def _columns(written: Sequence[tuple[CanonicalEventDraft, CanonicalEvent]]) -> tuple[list[Any], ...]:
    events = [event for _, event in written]
    writers = [_writer(draft) or (None, None) for draft, _ in written]
    placed = [(key, seq, event.event_id) for event in events for key, seq in event.sequences.items()]
    return (
        [event.event_id for event in events],
        [event.event_kind for event in events],
        [rows.body(event.payload) for event in events],
        [rows.body(event.sequences) for event in events],
        [event.created_at for event in events],
        [event.causation_id for event in events],
        [event.correlation_id for event in events],
        [event.origin for event in events],
        [event.visibility.value for event in events],
        [event.schema_version for event in events],
        [writer for writer, _ in writers],
        [key for _, key in writers],
        [draft.digest if writer else None for (draft, _), (writer, _) in zip(written, writers, strict=True)],
        [key for key, _, _ in placed],
        [seq for _, seq, _ in placed],
        [event_id for _, _, event_id in placed],
    )


def _writer(draft: CanonicalEventDraft) -> Writer | None:
    writer, key = draft.options.writer_id, draft.options.idempotency_key
    return None if writer is None or key is None else (writer, key)
