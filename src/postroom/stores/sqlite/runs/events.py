"""The event log on SQLite: the steps over an open transaction, and the port over them."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from postroom.contracts.errors import CursorAhead, CursorExpired, IdempotencyConflict, VersionConflict
from postroom.contracts.events import CanonicalEvent, CanonicalEventDraft, EventPage, EventScope
from postroom.stores.codec import decode_json, encode
from postroom.stores.sqlite.runs import rows
from postroom.stores.sqlite.runs.desk import Desk
from postroom.stores.sqlite.statements import load_statements

SQL = load_statements("run_events")
LOOK_AGAIN_AFTER = 10.0
"""Seconds after which one who waits looks by itself: an append whose caller was cancelled tells nobody."""


@dataclass(frozen=True, slots=True)
class Written:
    """A draft with its payload as text: what the caller does to it afterwards changes nothing."""

    draft: CanonicalEventDraft
    payload: str
    digest: str | None

    @classmethod
    def of(cls, draft: CanonicalEventDraft) -> "Written":
        """Write a draft down."""
        keyed = draft.options.idempotency_key is not None
        return cls(draft, encode(draft.payload), draft.digest if keyed else None)


def append(db: sqlite3.Connection, drafts: Sequence[Written], now: int) -> tuple[CanonicalEvent, ...]:
    """Add events to the end of their scopes; a key that was used gives its first event back.

    Raises:
        IdempotencyConflict, VersionConflict: as the port says.
    """
    newest: dict[str, int] = {}
    return tuple(_repeated(db, one) or _append(db, one, newest, now) for one in drafts)


def _repeated(db: sqlite3.Connection, written: Written) -> CanonicalEvent | None:
    if written.digest is None:
        return None
    options = written.draft.options
    row = db.execute(SQL["first_of_key"], (options.writer_id, options.idempotency_key)).fetchone()
    if row is None:
        return None
    if row[0] != written.digest:
        raise IdempotencyConflict("the key was used for another event", value=options.idempotency_key)
    return rows.event(row[1:])


def _append(db: sqlite3.Connection, written: Written, newest: dict[str, int], now: int) -> CanonicalEvent:
    draft = written.draft
    keys = [scope.key for scope in draft.scopes]
    for key in (*keys, *draft.options.expected_prior):
        if key not in newest:
            newest[key] = _newest(db, key)
    for key, expected in draft.options.expected_prior.items():
        if newest[key] != expected:
            raise VersionConflict(f"the newest event of {key!r} is {newest[key]}, not {expected}", value=key)
    event = CanonicalEvent(
        event_id=f"evt_{uuid4().hex}",
        event_kind=draft.event_kind,
        payload=decode_json(written.payload, where="payload"),
        sequences={key: newest[key] + 1 for key in keys},
        created_at=now,
        causation_id=draft.causation_id,
        correlation_id=draft.correlation_id,
        origin=draft.origin,
        visibility=draft.visibility,
        schema_version=draft.schema_version,
    )
    stored = db.execute(SQL["append"], _columns(event, written)).lastrowid
    db.executemany(SQL["place"], [(key, seq, stored) for key, seq in event.sequences.items()])
    newest.update(event.sequences)
    return event


def _columns(event: CanonicalEvent, written: Written) -> tuple[Any, ...]:
    return (
        event.event_id,
        event.event_kind,
        written.payload,
        encode(event.sequences),
        event.created_at,
        event.causation_id,
        event.correlation_id,
        event.origin,
        event.visibility.value,
        event.schema_version,
        written.draft.options.writer_id,
        written.draft.options.idempotency_key,
        written.digest,
    )


def _newest(db: sqlite3.Connection, scope: str) -> int:
    return int(db.execute(SQL["newest"], (scope,)).fetchone()[0])


def events_behind(db: sqlite3.Connection, scope: str, after: int, limit: int) -> EventPage:
    """Return the events of a scope behind a cursor.

    Raises:
        CursorAhead, CursorExpired: as the port says.
    """
    newest, begin = _newest(db, scope), max(after, 0)
    if begin > newest:
        raise CursorAhead(f"the newest event of {scope!r} is {newest}, before {after}", value=after)
    oldest = db.execute(SQL["oldest"], (scope,)).fetchone()[0]
    if begin + 1 < oldest:
        raise CursorExpired(f"the oldest event of {scope!r} is {oldest}, behind {after}", value=after)
    asked = {"scope": scope, "after": begin, "limit": max(limit, 0)}
    found = db.execute(SQL["events"], asked).fetchall()
    cursor = newest if len(found) < limit else (found[-1][0] if found else begin)
    return EventPage(events=tuple(rows.event(row[1:]) for row in found), cursor=cursor)


def load_event(db: sqlite3.Connection, event_id: str) -> CanonicalEvent | None:
    """Return one event."""
    row = db.execute(SQL["event"], (event_id,)).fetchone()
    return rows.event(row) if row else None


class SqliteEventStore:
    """The log in the file; every promise is that of the port."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        return self._desk.identity

    async def append(self, draft: CanonicalEventDraft, *, now: int | None = None) -> CanonicalEvent:
        """Add an event to the end of its scopes; return the first one when the key was used."""
        at, written = self._desk.at(now), (Written.of(draft),)
        (event,) = await self._desk.write(lambda db: append(db, written, at))
        self._desk.tell(event.sequences)
        return event

    async def list(self, scope: EventScope, *, after: int = 0, limit: int = 100) -> EventPage:
        """Return the events of a scope behind a cursor."""
        return await self._desk.read(lambda db: events_behind(db, scope.key, after, limit))

    async def load(self, event_id: str) -> CanonicalEvent | None:
        """Return one event."""
        return await self._desk.read(lambda db: load_event(db, event_id))

    async def count(self, scope: EventScope) -> int:
        """Return the number of the newest event of a scope, 0 when there is none."""
        return await self._desk.read(lambda db: _newest(db, scope.key))

    async def wait(self, scope: EventScope, *, after: int) -> None:
        """Return when the scope holds events behind `after`."""
        while True:
            with self._desk.listening(scope.key) as news:
                if await self.count(scope) > after:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_AFTER):
                        await news
