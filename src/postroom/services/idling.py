"""Tracks which client sessions are active, and which processes wait for mail in idle sessions.

The activity of sessions is kept only in memory. After a restart, a session counts as idle until its next
event, and waiting processes ask again.
"""

import time
from dataclasses import dataclass
from typing import Final

QUIET: Final = 120.0
"""After this number of seconds without an event, a turn counts as ended.

A turn that a person interrupts has no end event.
"""
KEPT: Final = 10_000
"""Maximum number of sessions in memory; the session with the oldest last event is forgotten first."""


@dataclass(slots=True)
class _Session:
    waiting_since: int = 0
    """The start time of the only valid wait, which a later wait replaces."""
    at_work_until: float = 0.0


class Idling:
    """The client sessions of one server, and whether each session is active."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}

    def note(self, session: str, kind: str, outcome: str) -> None:
        """Record a hook event of a session.

        A prompt or tool call makes the session active. The end of a turn makes the session idle.
        """
        if kind in ("prompt", "tool") or (kind, outcome) == ("wake", "tell"):
            self._of(session).at_work_until = time.monotonic() + QUIET
        elif kind == "stop" and outcome != "hold":
            self._of(session).at_work_until = 0.0
        elif kind == "end":
            self._of(session).waiting_since += 1  # earlier waits are now outdated

    def take_over(self, session: str, since: int) -> bool:
        """Replace earlier waits of a session by a new wait; return False if a later wait exists.

        `since` is the start time of the new wait.
        """
        known_session = self._of(session)
        if known_session.waiting_since >= since:
            return False
        known_session.waiting_since = since
        return True

    def waits(self, session: str, since: int) -> bool:
        """Return whether the wait with a given start time may continue."""
        return self._of(session).waiting_since == since

    def waits_newer(self, session: str, since: int) -> bool:
        """Return whether a process that started later waits for the session."""
        return self._of(session).waiting_since > since

    def is_at_work(self, session: str) -> bool:
        """Return whether the session is in a turn."""
        return self._of(session).at_work_until > time.monotonic()

    def _of(self, session: str) -> _Session:
        result = self._sessions[session] = self._sessions.pop(session, _Session())
        if len(self._sessions) > KEPT:
            del self._sessions[next(iter(self._sessions))]
        return result
