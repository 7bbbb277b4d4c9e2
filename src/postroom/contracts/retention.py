"""Retention of messages: the rules, and the store's old messages.

A rule covers the messages of a project, of a topic, of both, or all messages. It keeps them for a number of
days, or holds them: held messages are never deleted. `mail.retention` decides which messages are deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRule:
    """The retention period of messages; `project`, `topic` and `thread` are None if any value matches."""

    project: str | None = None
    """A path, alias or slug."""
    topic: str | None = None
    thread: str | None = None
    keep: timedelta | None = None
    """None holds the messages."""
    unread_stays: bool = True
    """Whether the rule never deletes a message that is unread or lacks a requested acknowledgement."""

    @property
    def holds(self) -> bool:
        """Whether the messages of this rule are never deleted."""
        return self.keep is None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedMessage:
    """A message with the facts that decide about its deletion."""

    id: int
    thread_id: str
    topic: str
    created_at: int
    is_awaited: bool
    """Whether a recipient that is not retired has not read it, or not acknowledged it as requested."""
    is_at_work: bool
    """Whether a run has it or will receive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldMessages:
    """A filter of messages that may be deleted, so that the store does not return all others."""

    before: int
    """Only messages older than this instant."""
    threads: Sequence[str] = ()
    topics: Sequence[str] = ()
    is_any: bool = False
    """Whether every thread and topic matches."""
    with_awaited: bool = False
    """Whether messages match that a recipient has yet to read or acknowledge."""
