"""Versioned configuration: a run is pinned to a version and continues with that version."""

from dataclasses import dataclass, field
from typing import Protocol

from postroom.contracts.errors import InvalidRecord
from postroom.contracts.messages import Json

MAX_SCOPE_BYTES = 512


def checked_scope(scope: str) -> str:
    """Return the name of a tenancy scope.

    Raises:
        InvalidRecord: The name is blank, longer than 512 bytes or contains a control character.
    """
    if not scope.strip():
        raise InvalidRecord(
            "a registry scope must not be blank", value=scope, remedy="pass a name for the scope"
        )
    if len(scope.encode()) > MAX_SCOPE_BYTES:
        raise InvalidRecord(
            f"a registry scope must have at most {MAX_SCOPE_BYTES} bytes",
            value=scope[:80],
            remedy="choose a shorter name for the scope",
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in scope):
        raise InvalidRecord(
            "a registry scope must not contain control characters",
            value=scope,
            remedy="remove line breaks, tabs and other control characters",
        )
    return scope


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedEntry:
    """An entry of a publication: an agent, a model or a tool."""

    kind: str
    id: str
    version: int
    value: Json
    content_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRegistryManifest:
    """A publication: the versions of all entries that were live at the same time."""

    publication_id: int
    entries: tuple[PinnedEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySet:
    """The objects that runs are assembled from, keyed by kind and id."""

    agents: dict[str, Json] = field(default_factory=dict)
    models: dict[str, Json] = field(default_factory=dict)
    tools: dict[str, Json] = field(default_factory=dict)
    providers: dict[str, Json] = field(default_factory=dict)
    plugins: dict[str, Json] = field(default_factory=dict)
    backends: dict[str, Json] = field(default_factory=dict)


class VersionedRegistryStore(Protocol):
    """Stores publications, keyed by scope and number."""

    async def publication(self, scope: str, number: int) -> PinnedRegistryManifest | None:
        """Return a publication."""
        ...

    async def publish(self, scope: str, entries: tuple[PinnedEntry, ...]) -> PinnedRegistryManifest:
        """Store a publication under the next number."""
        ...

    async def latest(self, scope: str) -> PinnedRegistryManifest | None:
        """Return the newest publication."""
        ...
