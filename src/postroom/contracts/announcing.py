"""Announcements of messages to their recipients, and the records that hooks, watchers and runners keep.

A message is announced to a recipient once, by the first announcer. An announced message can still be unread.
An announcer reads `unannounced` and marks the messages in the same transaction.
"""

from dataclasses import dataclass

from postroom.contracts.choices import Importance, RecipientKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message in one inbox, with the fields that a notice may show: neither subject nor text."""

    message_id: int
    seq: int
    kind: RecipientKind
    sender_id: int
    sender_name: str
    importance: Importance
    broadcast: bool
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSession:
    """A session of a client program, and the agent that it acts as."""

    client: str
    session_id: str
    agent_id: int
    bound_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nudges:
    """The record of what hooks did in an agent's turns; an agent without a stored record has this default."""

    held_seq: int = 0
    """Messages up to this seq do not hold the end of a turn: they held one before, or were fetched."""
    notified_at: int = 0
    """The last time a hook added a line in the middle of a turn; 0 for never."""
