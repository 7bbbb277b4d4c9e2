"""What the operator's routes ask of the server; `app` answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

CheckState = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One look at one part. What could not be seen is `unknown`, never `ok`."""

    name: str
    state: CheckState
    required: bool = True
    """Whether the server is of no use without it."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Numbers and codes; no paths and no names, for anybody may read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the server can do its work now."""

    checks: tuple[Check, ...]

    @property
    def is_ready(self) -> bool:
        """Whether every required check is known to be well."""
        return all(check.state == "ok" for check in self.checks if check.required)

    def as_dict(self) -> dict[str, object]:
        """Return it as plain JSON data."""
        return {
            "status": "ready" if self.is_ready else "not_ready",
            "checks": {check.name: {"state": check.state, **check.facts} for check in self.checks},
        }


class Operations(Protocol):
    """The server as its operator sees it. Answers are plain JSON data."""

    async def status(self) -> Mapping[str, object]:
        """Return what runs, where its data is and how much there is."""
        ...

    async def ready(self) -> Readiness:
        """Look at every part the server needs; bounded in time, never raises for what it finds."""
        ...

    async def doctor(self) -> Mapping[str, object]:
        """Examine the store, the archive and the set-up; may take long."""
        ...

    async def support_bundle(self) -> Mapping[str, str]:
        """Return what may be shown to others, as texts by the names of their files; may take long."""
        ...

    async def back_up(self, target: Path | None) -> Mapping[str, object]:
        """Write a whole, verified copy of the store to an absolute path, or to the usual place.

        Raises:
            InvalidPath: the target exists or cannot be written.
            StoreError: the copy failed; nothing is left of it.
        """
        ...

    async def issue_agent_token(self, project: str, agent: str) -> str:
        """Give an agent a new token; the one before ends. The token is not kept and cannot be shown again.

        Raises:
            UnknownProject, UnknownAgent: there is none.
        """
        ...

    async def revoke_agent_token(self, project: str, agent: str) -> None:
        """End an agent's token; harmless when it has none.

        Raises:
            UnknownProject, UnknownAgent: there is none.
        """
        ...

    async def rebuild_archive(self, project: str | None) -> Mapping[str, object]:
        """Write the archive of one project, or of all, anew from the store.

        Raises:
            UnknownProject: there is none.
            ArchiveUnavailable: Git failed.
        """
        ...
