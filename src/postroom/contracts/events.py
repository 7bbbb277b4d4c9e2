"""Canonical events: what happened, once, in an order without gaps, to be read again at any time.

Each scope (a project, a thread, a run) counts its own events from 1; a cursor is the number of the last one
read. A writer that names an idempotency key gets the event of its first call back when it repeats it.
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
    """Whose log an event stands in."""

    family: str
    id: str

    @classmethod
    def thread(cls, thread_id: str) -> "EventScope":
        """The log of a thread."""
        return cls(family="thread", id=thread_id)

    @classmethod
    def run(cls, run_id: str) -> "EventScope":
        """The log of a run."""
        return cls(family="run", id=run_id)

    @classmethod
    def project(cls, project_id: int) -> "EventScope":
        """The log of a project of mail."""
        return cls(family="project", id=str(project_id))

    @property
    def key(self) -> str:
        """The scope as one string."""
        return f"{self.family}:{self.id}"


class EventVisibility(StrEnum):
    """Who may read an event."""

    PUBLIC = "public"
    INTERNAL = "internal"
    AUDIT = "audit"
    SENSITIVE = "sensitive"


class RuntimeEventDurability(StrEnum):
    """What of an executor's events is kept: nothing, all but mere observations, or everything."""

    DISABLED = "disabled"
    COMPACTED = "compacted"
    FULL_FIDELITY = "full_fidelity"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions:
    """Who writes, under which key, and what the scopes' newest numbers must be for it to count."""

    writer_id: str | None = None
    idempotency_key: str | None = None
    expected_prior: dict[str, int] = field(default_factory=dict)
    """By `EventScope.key`; a scope that is not named is not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalEventDraft:
    """An event before it has a number."""

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
        """Refuse a draft that stands nowhere, or twice in one family.

        Raises:
            InvalidRecord: as said, or a writer without a key.
        """
        families = set(map(attrgetter("family"), self.scopes))
        if not self.scopes or len(families) != len(self.scopes) or not self.event_kind.strip():
            raise InvalidRecord(
                "an event needs a kind, and at most one scope of each family", value=self.event_kind
            )
        if (self.options.writer_id is None) != (self.options.idempotency_key is None):
            raise InvalidRecord(
                "a writer and an idempotency key must be given together", value=self.event_kind
            )

    @property
    def digest(self) -> str:
        """What must be equal when the key is used again; origin and schema version may differ."""
        said = [
            sorted(map(attrgetter("key"), self.scopes)),
            self.event_kind,
            self.payload,
            self.causation_id,
            self.correlation_id,
            self.visibility,
        ]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    @property
    def locks(self) -> set[str]:
        """What is locked before it is appended: its scopes, and the key that counts once."""
        options = self.options
        keys = (
            {f"event:{options.writer_id}:{options.idempotency_key}"}
            if options.writer_id is not None
            else set()
        )
        return {scope.key for scope in self.scopes} | keys

    def scope_id(self, family: str) -> str | None:
        """Return the id of its scope in a family."""
        return next((scope.id for scope in self.scopes if scope.family == family), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalEvent:
    """An event at its place in each of its scopes."""

    event_id: str
    event_kind: str
    payload: dict[str, Json]
    sequences: dict[str, int]
    """By `EventScope.key`."""
    created_at: int
    causation_id: str | None = None
    correlation_id: str | None = None
    origin: str = "server"
    visibility: EventVisibility = EventVisibility.PUBLIC
    schema_version: int = 1

    @property
    def thread_id(self) -> str | None:
        """The thread in whose log it stands."""
        return self._scope("thread:")

    @property
    def run_id(self) -> str | None:
        """The run in whose log it stands."""
        return self._scope("run:")

    def _scope(self, prefix: str) -> str | None:
        return next((key.removeprefix(prefix) for key in self.sequences if key.startswith(prefix)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Events of one scope in order; `cursor` is the number to go on from."""

    events: tuple[CanonicalEvent, ...]
    cursor: int
