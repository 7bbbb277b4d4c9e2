"""Which sessions of clients are at work, and who waits for the mail of one that is idle.

It is kept in memory alone: after a restart a session counts as idle until its next event, and who waits asks
again.
"""

import time
from dataclasses import dataclass
from typing import Final

QUIET: Final = 120.0
"""Seconds without an event after which a turn counts as over: one that a person breaks off has no end."""
KEPT: Final = 10_000
"""Sessions that are remembered; the one that was longest without an event is forgotten first."""


@dataclass(slots=True)
class _Session:
    waiting_since: int = 0
    """When the one that may wait began to."""
    at_work_until: float = 0.0


class Idling:
    """The sessions of one server."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}

    def note(self, session: str, kind: str, outcome: str) -> None:
        """Note an event: a prompt or a tool is work, the end of a turn is none unless the turn goes on."""
        if kind in ("prompt", "tool") or (kind, outcome) == ("wake", "tell"):
            self._of(session).at_work_until = time.monotonic() + QUIET
        elif kind == "stop" and outcome != "hold":
            self._of(session).at_work_until = 0.0
        elif kind == "end":
            self._of(session).waiting_since += 1  # who waited for it is older than that now

    def take_over(self, session: str, since: int) -> bool:
        """Let who began to wait at that time wait in the place of all before; return whether it is new."""
        known = self._of(session)
        if known.waiting_since >= since:
            return False
        known.waiting_since = since
        return True

    def waits(self, session: str, since: int) -> bool:
        """Return whether who began to wait at that time is to go on: none took its place."""
        return self._of(session).waiting_since == since

    def waits_newer(self, session: str, since: int) -> bool:
        """Return whether a process that began to wait later waits for the session."""
        return self._of(session).waiting_since > since

    def is_at_work(self, session: str) -> bool:
        """Return whether the session is in a turn, and is told there."""
        return self._of(session).at_work_until > time.monotonic()

    def _of(self, session: str) -> _Session:
        found = self._sessions[session] = self._sessions.pop(session, _Session())
        if len(self._sessions) > KEPT:
            del self._sessions[next(iter(self._sessions))]
        return found
