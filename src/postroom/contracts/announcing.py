"""Who was told of which message, and what stores keep for those who tell: hooks, watchers, runners.

A message is announced to a recipient once, by whoever is first; that it was announced says nothing of whether
it was read. Whoever announces looks with `unannounced` and marks in the same transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


class AnnouncingReads(Protocol):
    """Look-ups for those who announce."""

    def unannounced(self, agent_id: int, *, limit: int) -> list[Arrival]:
        """Return messages of the agent that are not read, recalled or announced, oldest first."""
        ...

    def directed_unread(self, agent_id: int, *, limit: int) -> list[tuple[int, int]]:
        """Return id and seq of the unread messages that name the agent with `to`, the newest first.

        Broadcasts, recalled messages and messages that an open run works on are left out.
        """
        ...

    def client_session(self, client: str, session_id: str) -> ClientSession | None:
        """Return what is known of a session of this client."""
        ...

    def sessions_seen(self, agent_ids: Sequence[int]) -> dict[int, int]:
        """Return when a session of some client was last noted to act as each of these agents.

        Agents that no session acts as are left out.
        """
        ...

    def nudges(self, agent_id: int) -> Nudges:
        """Return what hooks did with the agent's turns."""
        ...


class AnnouncingWrites(AnnouncingReads, Protocol):
    """Changes of those who announce."""

    def mark_announced(self, agent_id: int, message_ids: Sequence[int], *, by: str, now: int) -> int:
        """Note that the agent was told of these messages; the first note stays. Return how many were new.

        `by` is a word for who told: hook, watch, runner. Ids of messages that the agent did not get are
        passed over.
        """
        ...

    def bind_client_session(self, client: str, session_id: str, agent_id: int, now: int) -> None:
        """Note that a session acts as an agent, in place of what was noted before."""
        ...

    def end_client_session(self, client: str, session_id: str) -> None:
        """Forget a session; harmless when it is not known."""
        ...

    def purge_client_sessions(self, before: int, *, limit: int) -> int:
        """Forget sessions that were bound before an instant, the oldest first; return how many."""
        ...

    def set_nudges(self, agent_id: int, nudges: Nudges) -> None:
        """Note what hooks did with an agent's turns."""
        ...
