"""Tables in memory: rows by key, found by index, every mutation undone in reverse when a change raises."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from operator import attrgetter as by
from typing import Generic, TypeVar

from postroom.contracts.announcing import ClientSession, Nudges
from postroom.contracts.errors import StoreError
from postroom.contracts.mail import (
    Agent,
    Attachment,
    ContactLink,
    Message,
    OutboxRow,
    Project,
    RecipientKind,
    Reservation,
    StoredAnswer,
)
from postroom.contracts.project_log import ProjectEvent
from postroom.contracts.tokens import KeptToken
from postroom.contracts.waking import AskedQuestion, Handling, KeptRunner

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


class Journal:
    """How to take back every mutation since the change began, newest last."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def note(self, undo: Callable[[], None]) -> None:
        """Keep the inverse of a mutation."""
        self._undo.append(undo)

    def keep(self) -> None:
        """Let what was done stand."""
        self._undo.clear()

    def undo(self) -> None:
        """Take back what was done."""
        while self._undo:
            self._undo.pop()()


class Table(Generic[K, R]):
    """Rows by key; each index finds them by a value that is computed from the row."""

    def __init__(self, journal: Journal, **indexes: Callable[[R], Hashable]) -> None:
        self._journal = journal
        self._rows: dict[K, R] = {}
        self._indexes = indexes
        self._keys: dict[tuple[str, Hashable], set[K]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[R]:
        """Iterate over the rows in the order of their keys."""
        return (self._rows[key] for key in sorted(self._rows))  # type: ignore[type-var]  # all keys can be compared

    def get(self, key: K) -> R | None:
        """Return the row with this key."""
        return self._rows.get(key)

    def row(self, key: K) -> R:
        """Return the row with this key, which another row refers to."""
        return self._rows[key]

    def where(self, index: str, value: Hashable) -> list[R]:
        """Return the rows for which an index has this value, in the order of their keys."""
        keys = self._keys.get((index, value), ())
        return [self._rows[key] for key in sorted(keys)]  # type: ignore[type-var]  # all keys can be compared

    def one(self, index: str, value: Hashable) -> R | None:
        """Return the only row for which an index has this value."""
        found = self.where(index, value)
        return found[0] if found else None

    def insert(self, key: K, row: R) -> R:
        """Store a row whose key nobody has, and return it.

        Raises:
            StoreError: the key is taken.
        """
        if key in self._rows:
            raise StoreError(f"the store refused: there is a row {key!r} already", value=key)
        return self.put(key, row)

    def put(self, key: K, row: R) -> R:
        """Store or replace a row, and return it."""
        before = self._rows.get(key)
        self._set(key, row)
        self._journal.note(lambda: self._set(key, before))
        return row

    def drop(self, key: K) -> None:
        """Remove a row; harmless when it is not there."""
        before = self._rows.get(key)
        if before is not None:
            self._set(key, None)
            self._journal.note(lambda: self._set(key, before))

    def _set(self, key: K, row: R | None) -> None:
        before = self._rows.pop(key, None)
        if before is not None:
            for name, value_of in self._indexes.items():
                self._keys[name, value_of(before)].discard(key)
        if row is not None:
            self._rows[key] = row
            for name, value_of in self._indexes.items():
                self._keys.setdefault((name, value_of(row)), set()).add(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message in one inbox."""

    message_id: int
    agent_id: int
    kind: RecipientKind
    seq: int
    position: int = 0
    read_at: int | None = None
    acked_at: int | None = None
    announced_at: int | None = None
    announced_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """An attachment of one message."""

    message_id: int
    position: int
    attachment: Attachment


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """An answer under an idempotency key, and since when."""

    scope: str
    key: str
    stored: StoredAnswer
    created_at: int
    number: int
    """Counts answers, so that the first of equal age goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """A run of an agent that is at work, and what it asks, with the instants."""

    agent_id: int
    asked: tuple[tuple[int, AskedQuestion], ...] = ()


class WakingTables:
    """What is kept of agents that are run, and of where in traces letters and runs were."""

    def __init__(self, journal: Journal) -> None:
        self.runners: Table[int, KeptRunner] = Table(journal)
        self.handlings: Table[tuple[int, int], Handling] = Table(journal, message=by("message_id"))
        self.run_answers: Table[int, str] = Table(journal)
        self.sittings: Table[str, Sitting] = Table(journal)
        self.traces: Table[str, str] = Table(journal)


class AnnouncingTables:
    """What is kept of who was told of letters."""

    def __init__(self, journal: Journal) -> None:
        self.client_sessions: Table[tuple[str, str], ClientSession] = Table(journal)
        self.nudges: Table[int, Nudges] = Table(journal)


class EffectTables:
    """What is kept of answers that were given, and of what is still to be done."""

    def __init__(self, journal: Journal) -> None:
        self.answers: Table[tuple[str, str], KeptAnswer] = Table(journal)
        self.outbox: Table[int, OutboxRow] = Table(journal, topic=by("topic"))


class LogTables:
    """What is kept of what happened."""

    def __init__(self, journal: Journal) -> None:
        self.events: Table[tuple[int, int], ProjectEvent] = Table(journal)
        self.floors: Table[int, int] = Table(journal)
        """The last entry of each project that was trimmed."""


class Tables:
    """Everything a memory store holds."""

    def __init__(self) -> None:
        self.journal = journal = Journal()
        self.projects: Table[int, Project] = Table(
            journal, slug=by("slug"), path=by("human_key"), spelling=by("spelling")
        )
        self.aliases: Table[str, int] = Table(journal)
        self.agents: Table[int, Agent] = Table(
            journal,
            project=by("project_id"),
            name=lambda row: (row.project_id, row.name.casefold()),
            token=by("token_hash"),
        )
        self.messages: Table[int, Message] = Table(
            journal, project=by("project_id"), thread=by("project_id", "thread_id")
        )
        self.letters: Table[tuple[int, int], Letter] = Table(
            journal, inbox=by("agent_id"), message=by("message_id"), copy=by("message_id", "agent_id")
        )
        self.blobs: Table[str, bytes] = Table(journal)
        self.enclosures: Table[tuple[int, int], Enclosure] = Table(
            journal,
            message=by("message_id"),
            blob=by("attachment.sha256"),
            preview=by("attachment.preview_sha256"),
        )
        self.reservations: Table[int, Reservation] = Table(
            journal,
            project=by("project_id"),
            held_by=by("agent_id"),
            open_in=lambda row: row.project_id if row.released_at is None else None,
        )
        self.contacts: Table[tuple[int, int], ContactLink] = Table(
            journal, outgoing=by("from_id"), incoming=by("to_id")
        )
        self.effects = EffectTables(journal)
        self.waking = WakingTables(journal)
        self.announcing = AnnouncingTables(journal)
        self.logs = LogTables(journal)
        self.tokens: Table[str, KeptToken] = Table(journal, name=by("name"))
        self.probes: Table[int, int] = Table(journal)
        self._numbers: Table[str, int] = Table(journal)

    def next_number(self, name: str) -> int:
        """Return the next number of a series; none is given out twice, even after its row is gone."""
        return self._numbers.put(name, self.newest_number(name) + 1)

    def newest_number(self, name: str) -> int:
        """Return the number of a series that was given out last; 0 before the first."""
        return self._numbers.get(name) or 0

    def numbers_reach(self, name: str, number: int) -> None:
        """Let a series go on after a number that came from elsewhere."""
        self._numbers.put(name, max(self.newest_number(name), number))
