"""Canonical events, which are stored once, numbered without gaps, and can be read again at any time.

Each scope (a project, a thread or a run) numbers its events from 1. A cursor is the number of the last event
that a reader has read. If a writer repeats an idempotency key, it gets the event that the first call stored.
"""

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter

from postroom.contracts.errors import InvalidRecord
from postroom.contracts.messages import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class EventScope:
    """The log to which an event belongs."""

    family: str
    id: str

    @classmethod
    def thread(cls, thread_id: str) -> "EventScope":
        """Return the scope of a thread's log."""
        return cls(family="thread", id=thread_id)

    @classmethod
    def run(cls, run_id: str) -> "EventScope":
        """Return the scope of a run's log."""
        return cls(family="run", id=run_id)

    @classmethod
    def questions(cls, run_id: str) -> "EventScope":
        """Return the scope of the log of the places where a run's questions were shown."""
        return cls(family="questions", id=run_id)

    @classmethod
    def project(cls, project_id: int) -> "EventScope":
        """Return the scope of a mail project's log."""
        return cls(family="project", id=str(project_id))

    @property
    def key(self) -> str:
        """The family and id of the scope as one text."""
        return f"{self.family}:{self.id}"


class EventVisibility(StrEnum):
    """The readers who may see an event."""

    PUBLIC = "public"
    INTERNAL = "internal"
    AUDIT = "audit"
    SENSITIVE = "sensitive"


class RuntimeEventDurability(StrEnum):
    """The setting that decides which executor events are stored: none, all except observations, or all."""

    DISABLED = "disabled"
    COMPACTED = "compacted"
    FULL_FIDELITY = "full_fidelity"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions:
    """The writer of an event, the idempotency key, and the newest event number expected in each scope."""

    writer_id: str | None = None
    idempotency_key: str | None = None
    expected_prior: dict[str, int] = field(default_factory=dict)
    """The expected newest numbers, keyed by `EventScope.key`; other scopes are not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalEventDraft:
    """An event that does not have a number yet."""

    scopes: tuple[EventScope, ...]
    event_kind: str
    payload: dict[str, Json] = field(default_factory=dict)
    causation_id: str | None = None
    correlation_id: str | None = None
    origin: str = "server"
    visibility: EventVisibility = EventVisibility.PUBLIC
    schema_version: int = 1
    options: AppendOptions = AppendOptions()

    def __post_init__(self) -> None:
        """Raise an error if the scopes of the draft are invalid.

        Raises:
            InvalidRecord: The scopes are invalid, or a writer has no key.
        """
        families = set(map(attrgetter("family"), self.scopes))
        if not self.scopes or len(families) != len(self.scopes) or not self.event_kind.strip():
            raise InvalidRecord(
                "an event must have a kind, at least one scope, and at most one scope of each family",
                value=self.event_kind,
            )
        if (self.options.writer_id is None) != (self.options.idempotency_key is None):
            raise InvalidRecord(
                "an event's writer_id and idempotency_key must be set together", value=self.event_kind
            )

    @property
    def digest(self) -> str:
        """The hash of the fields that must be equal when a writer repeats an idempotency key."""
        content = [
            sorted(map(attrgetter("key"), self.scopes)),
            self.event_kind,
            self.payload,
            self.causation_id,
            self.correlation_id,
            self.visibility,
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def locks(self) -> set[str]:
        """The names of the locks that an append of the event needs."""
        options = self.options
        keys = (
            {f"event:{options.writer_id}:{options.idempotency_key}"}
            if options.writer_id is not None
            else set()
        )
        return {scope.key for scope in self.scopes} | keys

    def scope_id(self, family: str) -> str | None:
        """Return the id of the draft's scope with the given family, or None."""
        return next((scope.id for scope in self.scopes if scope.family == family), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalEvent:
    """A stored event, with the event's number in each scope."""

    event_id: str
    event_kind: str
    payload: dict[str, Json]
    sequences: dict[str, int]
    """The event's number in each scope, keyed by `EventScope.key`."""
    created_at: int
    causation_id: str | None = None
    correlation_id: str | None = None
    origin: str = "server"
    visibility: EventVisibility = EventVisibility.PUBLIC
    schema_version: int = 1

    @property
    def thread_id(self) -> str | None:
        """The id of the thread whose log contains the event."""
        return self._scope("thread:")

    @property
    def run_id(self) -> str | None:
        """The id of the run whose log contains the event."""
        return self._scope("run:")

    def _scope(self, prefix: str) -> str | None:
        return next((key.removeprefix(prefix) for key in self.sequences if key.startswith(prefix)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Consecutive events of one scope.

    `cursor` points to the next page.
    """

    events: tuple[CanonicalEvent, ...]
    cursor: int
