"""The table client x scenario: what a run of every scenario with every client comes to.

A cell is what the test expects, and what `docs/clients.md` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Yes:
    """The scenario holds; `detail` is what it returns."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class No:
    """The scenario is tried and fails, and the failure says `because`: a limit of the client, not of ours."""

    reason: str
    because: str


@dataclass(frozen=True, slots=True)
class NotOffered:
    """The client has nothing to try."""

    reason: str


Cell = Yes | No | NotOffered

TABLE: Mapping[str, Mapping[str, Cell]] = {
    "claude": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("10 tools, about 1,700 tokens"),
        "session_resumed": Yes(),
    },
    "codex": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("10 tools, about 1,600 tokens"),
        "session_resumed": Yes(),
    },
}
