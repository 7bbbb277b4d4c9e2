"""Versioned configuration, in which a run keeps the version that was current when it started."""

from dataclasses import dataclass, field
from typing import Protocol

from postroom.contracts.errors import InvalidRecord
from postroom.contracts.messages import Json

MAX_SCOPE_BYTES = 512


def checked_scope(scope: str) -> str:
    """Return the name of a registry scope, if the name is valid.

    Raises:
        InvalidRecord: The name is blank, longer than 512 bytes, or contains a control character.
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
    """An agent, a model or a tool in a published version of the configuration."""

    kind: str
    id: str
    version: int
    value: Json
    content_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRegistryManifest:
    """A published version of the configuration, with the versions of all entries."""

    publication_id: int
    entries: tuple[PinnedEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySet:
    """The agents, models and tools that runs use, by kind and id."""

    agents: dict[str, Json] = field(default_factory=dict)
    models: dict[str, Json] = field(default_factory=dict)
    tools: dict[str, Json] = field(default_factory=dict)
    providers: dict[str, Json] = field(default_factory=dict)
    plugins: dict[str, Json] = field(default_factory=dict)
    backends: dict[str, Json] = field(default_factory=dict)


class VersionedRegistryStore(Protocol):
    """Stores published versions of the configuration by scope and number."""

    async def publication(self, scope: str, number: int) -> PinnedRegistryManifest | None:
        """Return the published version with the given number, or None."""
        ...

    async def publish(self, scope: str, entries: tuple[PinnedEntry, ...]) -> PinnedRegistryManifest:
        """Publish a new version of the configuration under the next number."""
        ...

    async def latest(self, scope: str) -> PinnedRegistryManifest | None:
        """Return the newest published version of the configuration, or None."""
        ...
