"""How long messages are kept: what a rule says, and what the store tells and deletes.

A rule is about the messages of a project, of a topic, of both, or of all. It keeps them for a number of
days, or it holds them: what is held is never deleted. Which messages go is decided by `mail.retention`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRule:
    """What is kept, and for how long; `project`, `topic` and `thread` are None where it is about each."""

    project: str | None = None
    """A path, alias or slug."""
    topic: str | None = None
    thread: str | None = None
    keep: timedelta | None = None
    """None holds."""
    unread_stays: bool = True
    """Whether what a reader has not read, or not acknowledged as it should, stays however old it is."""

    @property
    def holds(self) -> bool:
        """Whether nothing that the rule is about is ever deleted."""
        return self.keep is None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedMessage:
    """What decides whether a message goes."""

    id: int
    thread_id: str
    topic: str
    created_at: int
    is_awaited: bool
    """Somebody who is not retired has yet to read it, or to acknowledge it where that is asked for."""
    is_at_work: bool
    """A run has it, or is yet to be given it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldMessages:
    """Which messages may go at all: what a store finds without telling of all the others."""

    before: int
    """No younger ones."""
    threads: Sequence[str] = ()
    topics: Sequence[str] = ()
    is_any: bool = False
    """Those of every thread and topic."""
    with_awaited: bool = False
    """Also what somebody has yet to read or to acknowledge."""
