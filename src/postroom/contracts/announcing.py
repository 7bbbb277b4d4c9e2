"""Who was told of which message, and what stores keep for those who tell: hooks, watchers, runners.

A message is announced to a recipient once, by whoever is first; that it was announced says nothing of whether
it was read. Whoever announces looks with `unannounced` and marks in the same transaction.
"""

from dataclasses import dataclass

from postroom.contracts.choices import Importance, RecipientKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message in one inbox, as a notice may speak of it: it holds no subject and no text."""

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
    """What hooks did with an agent's turns; an agent without a record has this one."""

    held_seq: int = 0
    """Messages up to this seq hold no end of a turn: a turn was held for them, or they were fetched."""
    notified_at: int = 0
    """When a line was last given in the middle of a turn; 0 for never."""
