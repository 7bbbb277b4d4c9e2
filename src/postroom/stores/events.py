"""The event log, as a transaction reads and writes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from postroom.contracts.dispatch import Claim
from postroom.contracts.errors import (
    CursorAhead,
    CursorExpired,
    IdempotencyConflict,
    StoreCorrupt,
    VersionConflict,
)
from postroom.contracts.events import (
    CanonicalEvent,
    CanonicalEventDraft,
    EventPage,
    EventVisibility,
)
from postroom.contracts.messages import Json
from postroom.contracts.runs import RunRecord
from postroom.stores.codec import (
    answer_in,
    decode_json,
    encode,
    payload_with,
    unreadable,
    with_answer,
    without_answer,
)
from postroom.stores.sql_transaction import Found, Look, Row, Tables, Values


@dataclass(frozen=True, slots=True)
class WrittenEvent:
    """An event to write, with its id and its payload as text."""

    event_id: str
    draft: CanonicalEventDraft
    payload: str
    digest: str | None
    answer: RunRecord | None
    """The run whose row contains the answer that the payload omits."""

    @classmethod
    def of(
        cls, draft: CanonicalEventDraft, new_id: Callable[[], str], answer: RunRecord | None = None
    ) -> "WrittenEvent":
        """Create an event from a draft; the payload omits the answer of the run `answer`."""
        keyed = draft.options.idempotency_key is not None
        rest = None if answer is None else without_answer(draft.payload, answer)
        return cls(
            f"evt_{new_id()}",
            draft,
            encode(draft.payload if rest is None else rest),
            draft.digest if keyed else None,
            None if rest is None else answer,
        )


def event_looks(written: Sequence[WrittenEvent]) -> list[Look]:
    """Return the queries that must run before events are appended."""
    looks: list[Look] = []
    for event in written:
        scopes = [scope.key for scope in event.draft.scopes]
        prior = event.draft.options.expected_prior
        looks += [("events.newest", {"scope": scope}) for scope in (*scopes, *prior)]
        if event.digest is not None:
            key = {"writer_id": event.draft.options.writer_id, "key": event.draft.options.idempotency_key}
            looks.append(("events.first_of_key", key))
    return looks


class EventTables(Tables):
    """The rows of the event log."""

    def append(
        self,
        drafts: Sequence[CanonicalEventDraft],
        *,
        at: int | None = None,
        ended_run: RunRecord | None = None,
    ) -> tuple[CanonicalEvent, ...]:
        """Append events to their scopes; for a repeated key, return the event that was stored first.

        `at` is when the events happened, by default the time of the transaction. An event with the answer of
        `ended_run` is stored with a reference to this run, which must already be stored.

        Raises:
            IdempotencyConflict, VersionConflict: As for `EventStore.append`.
        """
        now, answer = self._now() if at is None else at, with_answer(ended_run)
        written = tuple(WrittenEvent.of(draft, self._new_id, answer) for draft in drafts)
        events, new = appending(written, self._asked(event_looks(written)), now)
        self.write(new)
        return events

    def add(
        self,
        draft: CanonicalEventDraft,
        ended_run: RunRecord | None = None,
        claim: Claim | None = None,
    ) -> None:
        """Append an event to the scopes of its thread and its run.

        The event is not written if its key was used before, or if the execution has lost its claim.
        """
        options, answer, now = draft.options, with_answer(ended_run), self._now()
        event_id = f"evt_{now:012x}{self._new_id()[:20]}"  # ids are appended at the end of their index
        rest = None if answer is None else without_answer(draft.payload, answer)
        scopes = tuple(map(attrgetter("key"), draft.scopes))
        thread, run = scopes
        values = {
            "event_id": event_id,
            "thread_scope": thread,
            "run_scope": run,
            "thread_name": encode(thread),
            "run_name": encode(run),
            "event_kind": draft.event_kind,
            "payload": encode(draft.payload if rest is None else rest),
            "created_at": now,
            "causation_id": draft.causation_id,
            "correlation_id": draft.correlation_id,
            "origin": draft.origin,
            "visibility": draft.visibility.value,
            "schema_version": draft.schema_version,
            "writer_id": options.writer_id,
            "key": options.idempotency_key,
            "digest": None if options.writer_id is None else draft.digest,
            "answer_of": None if answer is None or rest is None else answer.run_id,
            "dispatch_id": None if claim is None else claim.dispatch_id,
            "claim_token": None if claim is None else claim.token,
        }
        self._sql.run("events.add", values)
        self._sql.run("events.place_all", {"scopes": scopes, "event_id": event_id})
        self._tell(*scopes)

    def note(
        self,
        scope: str,
        kind: str,
        payload: Mapping[str, Json],
        *,
        origin: str,
        at: int,
        key: str | None = None,
    ) -> None:
        """Append an internal event to one scope. With a `key`, append it once to this scope.

        The scope's key must not contain a character that JSON escapes.
        """
        named = {
            "writer_id": None if key is None else origin,
            "key": None if key is None else f"{scope}/{key}",
            "digest": None if key is None else kind,
        }
        if key is not None and self._sql.one("events.first_of_key", named):
            return
        values = {
            **named,
            "scope": scope,
            "event_id": f"evt_{at:012x}{self._new_id()[:20]}",
            "event_kind": kind,
            "payload": encode(payload),
            "created_at": at,
            "origin": origin,
        }
        self._sql.run("events.note", values)
        self._sql.run("events.place_next", values)
        self._tell(scope)

    def write(self, new: Sequence[tuple[WrittenEvent, CanonicalEvent]]) -> None:
        """Write new events, and notify the listeners of their scopes."""
        for written, event in new:
            options = written.draft.options
            self._sql.run(
                "events.append",
                {
                    "event_id": event.event_id,
                    "event_kind": event.event_kind,
                    "payload": written.payload,
                    "sequences": encode(event.sequences),
                    "created_at": event.created_at,
                    "causation_id": event.causation_id,
                    "correlation_id": event.correlation_id,
                    "origin": event.origin,
                    "visibility": event.visibility.value,
                    "schema_version": event.schema_version,
                    "writer_id": options.writer_id,
                    "key": options.idempotency_key,
                    "digest": written.digest,
                    "answer_of": None if written.answer is None else written.answer.run_id,
                },
            )
            for scope, seq in event.sequences.items():
                place = {"scope": scope, "seq": seq, "event_id": event.event_id}
                self._sql.run("events.place", place)
            self._tell(*event.sequences)

    def newest(self, scope: str) -> int:
        """Return the number of the newest event in a scope, or 0 if the scope is empty."""
        row = self._sql.one("events.newest", {"scope": scope})
        return row[0] if row else 0

    def bounds(self, scope: str) -> tuple[int, int]:
        """Return the numbers of the oldest and the newest event in a scope, or (1, 0) for an empty scope."""
        [[oldest]], [[newest]] = self._sql.ask(
            ("events.oldest", {"scope": scope}), ("events.newest", {"scope": scope})
        )
        return oldest, newest

    def of_scope(
        self, scope: str, *, after: int, limit: int, kinds: Sequence[str] = ()
    ) -> list[tuple[int, CanonicalEvent]]:
        """Return the numbers and the events of a scope after the number `after`, at most `limit`.

        Without `kinds`, events of all kinds are returned.
        """
        rows = self._sql.all("events.events", _parameters(scope, after, limit, kinds))
        return [(row[-1], _event(row)) for row in rows]

    def trim(self, scope: str, *, keep: int, limit: int) -> int:
        """Delete up to `limit` of the oldest events in a scope, and return the number of deleted events.

        The newest `keep` events are kept. The deleted events must belong to no other scope.
        """
        oldest, newest = self.bounds(scope)
        last = min(newest - max(keep, 1), oldest - 1 + limit)
        if last < oldest:
            return 0
        self._sql.run("events.trim_events", {"scope": scope, "last": last})
        return self._sql.changed("events.trim", {"scope": scope, "last": last})

    def drop(self, scopes: Sequence[str]) -> None:
        """Delete scopes with all their events; no event may be added to the scopes later."""
        self._sql.run("events.drop_events", {"scopes": scopes})
        self._sql.run("events.drop_scopes", {"scopes": scopes})

    def behind(self, scope: str, after: int, limit: int) -> EventPage:
        """Return the events of a scope after the cursor `after`.

        Raises:
            CursorAhead, CursorExpired: As for `EventStore.list`.
        """
        begin = max(after, 0)
        [[newest]], [[oldest]], rows = self._sql.ask(
            ("events.newest", {"scope": scope}),
            ("events.oldest", {"scope": scope}),
            ("events.events", _parameters(scope, begin, max(limit, 0))),
        )
        if begin > newest:
            raise CursorAhead(
                f"the newest event of {scope!r} is {newest}, which is before {after}",
                value=after,
                remedy=f"continue after {newest}: the database was restored or replaced",
                details={"oldest": oldest - 1, "newest": newest},
            )
        if begin + 1 < oldest:
            raise CursorExpired(
                f"the oldest event of {scope!r} is {oldest}, which is after {after}",
                value=after,
                remedy=f"continue after {oldest - 1}: the events up to there were deleted",
                details={"oldest": oldest - 1, "newest": newest},
            )
        cursor = newest if len(rows) < limit else (rows[-1][-1] if rows else begin)
        return EventPage(events=tuple(map(_event, rows)), cursor=cursor)

    def load(self, event_id: str) -> CanonicalEvent | None:
        """Return the event with this id, or None."""
        row = self._sql.one("events.event", {"event_id": event_id})
        return _event(row) if row else None


def _parameters(scope: str, after: int, limit: int, kinds: Sequence[str] = ()) -> Values:
    return {"scope": scope, "after": after, "limit": limit, "kinds": kinds, "any_kind": not kinds}


def appending(
    written: Sequence[WrittenEvent], found: Found, now: int
) -> tuple[tuple[CanonicalEvent, ...], list[tuple[WrittenEvent, CanonicalEvent]]]:
    """Return events with numbers after the newest numbers of their scopes, and a list of the new events.

    For a repeated key, the first result contains the event that was stored first.

    Raises:
        IdempotencyConflict, VersionConflict: As for `EventStore.append`.
    """
    events, new = list[CanonicalEvent](), list[tuple[WrittenEvent, CanonicalEvent]]()
    if not written:
        return (), new
    newest = {key[1]: rows[0][0] for key, rows in found.items() if key[0] == "events.newest"}
    firsts: dict[Any, tuple[str | None, CanonicalEvent]] = {
        key[1:]: (rows[0][-1], _event(rows[0]))
        for key, rows in found.items()
        if key[0] == "events.first_of_key" and rows
    }
    for entry in written:
        options = entry.draft.options
        key = options.writer_id, options.idempotency_key
        if entry.digest is not None and key in firsts:
            digest, first = firsts[key]
            if digest != entry.digest:
                raise IdempotencyConflict("the key was already used for a different event", value=key[1])
            events.append(first)
            continue
        for scope, expected in options.expected_prior.items():
            if newest[scope] != expected:
                raise VersionConflict(
                    f"the newest event of {scope!r} is {newest[scope]}, not {expected}", value=scope
                )
        event = _number(entry, newest, now)
        newest.update(event.sequences)
        firsts[key] = (entry.digest, event)
        new.append((entry, event))
        events.append(event)
    return tuple(events), new


def _number(written: WrittenEvent, newest: Mapping[str, int], now: int) -> CanonicalEvent:
    draft = written.draft
    sequences: dict[str, int] = {}
    for scope in draft.scopes:
        key = scope.key
        sequences[key] = newest[key] + 1
    payload = decode_json(written.payload, where="payload")
    return CanonicalEvent(
        event_id=written.event_id,
        event_kind=draft.event_kind,
        payload=payload
        if written.answer is None
        else payload_with(payload, written.answer.final_output or ""),
        sequences=sequences,
        created_at=now,
        causation_id=draft.causation_id,
        correlation_id=draft.correlation_id,
        origin=draft.origin,
        visibility=draft.visibility,
        schema_version=draft.schema_version,
    )


def _event(row: Row) -> CanonicalEvent:
    """Create an event from a row of the table `events`, joined with the body of a run.

    Raises:
        StoreCorrupt: The row cannot be read.
    """
    try:
        payload = decode_json(row[2], where="payload")
        return CanonicalEvent(
            event_id=row[0],
            event_kind=row[1],
            payload=payload if row[10] is None else payload_with(payload, answer_in(row[10])),
            sequences=decode_json(row[3], where="sequences"),
            created_at=row[4],
            causation_id=row[5],
            correlation_id=row[6],
            origin=row[7],
            visibility=EventVisibility(row[8]),
            schema_version=row[9],
        )
    except (ValueError, StoreCorrupt) as error:
        raise unreadable("event", row[0], error) from error
