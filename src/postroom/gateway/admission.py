"""Who hands a session's messages over: one at a time, decided in one step without an await.

    idle ──▶ handing over (the sentinel) ──▶ idle, or at work when a run of the session executes here
                 │ others arrive
                 ▼
              they wait in order; whoever hands over goes on with them before it leaves

What waits in memory cannot be lost: each of its events is on disk already. What counts as busy for the
agents is decided by the mailbox, for all processes together; here it is decided who of this process speaks.
"""

from collections import deque
from dataclasses import dataclass, field

from postroom.gateway.events import MessageEvent

AGENT_PENDING = object()
"""Stands for the agent of a session whose message is being handed over."""


@dataclass(slots=True)
class SessionGuard:
    """Which sessions are being handed over for, and what waits.

    `running` shows for each busy session its agent, or the sentinel. Any text may be a key.
    """

    running: dict[str, object] = field(default_factory=dict)
    waiting: dict[str, deque[MessageEvent]] = field(default_factory=dict)
    runs: dict[str, object] = field(default_factory=dict)
    """Runs of chats that execute in this process."""
    stop_wishes: set[str] = field(default_factory=set)
    """Sessions whose message, at this moment on its way to an agent, is to be stopped again."""

    def admit(self, key: str, event: MessageEvent) -> bool:
        """Let a message in: True when the caller hands it over, False when it waits behind others."""
        current = self.running.get(key)
        if current is None or current is self.runs.get(key):
            self.running[key] = AGENT_PENDING
            return True
        self.waiting.setdefault(key, deque()).append(event)
        return False

    def next(self, key: str) -> MessageEvent | None:
        """Take the message that is next; None ends the handing over in the same step."""
        queue = self.waiting.get(key)
        if queue:
            event = queue.popleft()
            if not queue:
                del self.waiting[key]
            return event
        self.release(key)
        return None

    def head(self, key: str) -> MessageEvent | None:
        """Return the message that is next, and leave it there."""
        queue = self.waiting.get(key)
        return queue[0] if queue else None

    def release(self, key: str) -> None:
        """End the handing over; an agent at work in the session is shown again."""
        if self.running.get(key) is not AGENT_PENDING:
            return
        self.stop_wishes.discard(key)
        if key in self.runs:
            self.running[key] = self.runs[key]
        else:
            del self.running[key]

    def abandon(self, key: str) -> None:
        """End the handing over, and let go of what waits: it is on disk, and is found there."""
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

    def run_began(self, key: str, agent: object) -> None:
        """Show that a run of the session executes here."""
        self.runs[key] = agent
        if self.running.get(key) is not AGENT_PENDING:
            self.running[key] = agent

    def run_ended(self, key: str, agent: object) -> None:
        """Show that this run, and no newer one, has ended."""
        if self.runs.get(key) is not agent:
            return
        del self.runs[key]
        if self.running.get(key) is agent:
            del self.running[key]

    def agents(self) -> list[object]:
        """Return the agents at work; a session that is being handed over for has none yet."""
        found = [agent for agent in self.running.values() if agent is not AGENT_PENDING]
        return found + [run for run in self.runs.values() if not any(run is agent for agent in found)]
