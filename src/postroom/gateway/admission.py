"""Who hands a session's lines over: one at a time, decided in one step without an await.

    idle ──▶ handing over (the sentinel) ──▶ idle, or at work when a turn of the session executes here
                 │ others arrive
                 ▼
              they stand in line, in order; whoever hands over goes on with them before it leaves

The line in memory is no queue to lose: each of its events is on disk already, and what counts as busy for the
agents is decided by the mailbox, for all processes together. Here it is decided who of this process speaks.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from postroom.gateway.events import MessageEvent

AGENT_PENDING = object()
"""Stands for the agent of a session whose line is being handed over."""


class Agent(Protocol):
    """What executes a session's turn."""

    def interrupt(self, reason: str) -> object:
        """End the turn soon."""
        ...


class AdmissionKind(StrEnum):
    """What became of a line when it was let in."""

    STARTED = "started"
    QUEUED = "queued"
    STEERED = "steered"
    COLLECTED = "collected"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a line; the acknowledgement is worded from this and nothing else.

    `ahead` is how many lines are answered before this one; `reason` is why it was rejected.
    """

    kind: AdmissionKind
    ahead: int = 0
    reason: str = ""


@dataclass(slots=True)
class SessionGuard:
    """Which sessions are being handed over for, and what stands in line.

    `running` shows for each busy session its agent, or the sentinel. Any text may be a key.
    """

    running: dict[str, object] = field(default_factory=dict)
    waiting: dict[str, deque[MessageEvent]] = field(default_factory=dict)
    turns: dict[str, Agent] = field(default_factory=dict)
    """Turns of ours that execute in this process."""
    stop_wishes: set[str] = field(default_factory=set)
    """Sessions whose line, at this moment on its way to an agent, is to be stopped again."""

    def admit(self, key: str, event: MessageEvent) -> Admission:
        """Let a line in: it is handed over by the caller, or stands in line behind others. Never waits."""
        current = self.running.get(key)
        if current is None or current is self.turns.get(key):
            self.running[key] = AGENT_PENDING
            return Admission(AdmissionKind.STARTED)
        line = self.waiting.setdefault(key, deque())
        line.append(event)
        return Admission(AdmissionKind.QUEUED, ahead=len(line))

    def next(self, key: str) -> MessageEvent | None:
        """Take the line that is next; None ends the handing over in the same step."""
        line = self.waiting.get(key)
        if line:
            event = line.popleft()
            if not line:
                del self.waiting[key]
            return event
        self.release(key)
        return None

    def head(self, key: str) -> MessageEvent | None:
        """Return the line that is next, and leave it there."""
        line = self.waiting.get(key)
        return line[0] if line else None

    def release(self, key: str) -> None:
        """End the handing over; an agent at work in the session is shown again."""
        if self.running.get(key) is not AGENT_PENDING:
            return
        self.stop_wishes.discard(key)
        if key in self.turns:
            self.running[key] = self.turns[key]
        else:
            del self.running[key]

    def abandon(self, key: str) -> None:
        """End the handing over, and let go of what stands in line: it is on disk, and is found there."""
        if self.running.get(key) is AGENT_PENDING:
            self.waiting.pop(key, None)
            self.stop_wishes.discard(key)
            self.release(key)

    def wish_stop(self, key: str) -> bool:
        """Have what is being handed over stopped before it begins; False when nothing is."""
        if self.running.get(key) is not AGENT_PENDING:
            return False
        self.stop_wishes.add(key)
        return True

    def turn_began(self, key: str, agent: Agent) -> None:
        """Show that a turn of the session executes here."""
        self.turns[key] = agent
        if self.running.get(key) is not AGENT_PENDING:
            self.running[key] = agent

    def turn_ended(self, key: str, agent: Agent) -> None:
        """Show that this turn, and no newer one, has ended."""
        if self.turns.get(key) is not agent:
            return
        del self.turns[key]
        if self.running.get(key) is agent:
            del self.running[key]

    def agents(self) -> list[object]:
        """Return the agents at work; a session that is being handed over for has none yet."""
        found = [one for one in self.running.values() if one is not AGENT_PENDING]
        return found + [turn for turn in self.turns.values() if not any(turn is one for one in found)]
