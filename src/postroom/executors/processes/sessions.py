"""A client's session for a thread: stored with the thread's state, if the run is still ours.

It is stored for each agent and mail thread, or once for the agent if its runner is set to that. It is valid
only for the same program and working folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from postroom.contracts.errors import PostroomError, StaleClaim
from postroom.contracts.messages import Json
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runners import SessionPer
from postroom.log import get_logger
from postroom.ports import RunControl

_LOG = get_logger(__name__)
_MOST_TRIES: Final = 3
_LONGEST: Final = 256
_MOST_KEPT: Final = 100
"""Sessions stored with a thread; a mail thread idle for longer than that many others gets a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The sessions of an agent on a thread; `key` is the executor's, `made_with` names the program."""

    control: RunControl
    thread_id: str
    agent_id: str
    key: str
    made_with: Sequence[str]
    per: SessionPer = SessionPer.THREAD

    @property
    def _name(self) -> str:
        """The name under which the session is kept."""
        conversation = self.control.conversation if self.per is SessionPer.THREAD else None
        return self.agent_id if conversation is None else f"{self.agent_id} {conversation}"

    async def former(self, *, of_run: str | None = None) -> str | None:
        """Return the session that the agent resumes, or None for a new one.

        A run that must not see earlier messages gets a new session: the client cannot forget them. With
        `of_run` only a session of this run counts.
        """
        if self.control.hidden_runs:
            return None
        kept = self._kept(await self.control.threads.load_thread_state(self.thread_id)).get(self._name)
        if not isinstance(kept, dict) or kept.get("made_with") != list(self.made_with):
            return None
        if of_run is not None and kept.get("run") != of_run:
            return None
        session = kept.get("session")
        return session if is_session(session) else None

    async def keep(self, session: str | None, *, of_run: str | None = None) -> None:
        """Store the session for the thread's next run of this agent, or for the rest of this run.

        If that fails, the failure is logged, and the next run starts a new session: the finished answer is
        more important.

        Raises:
            StaleClaim: The worker no longer owns the run; nothing was written.
        """
        if not is_session(session):
            return None
        entry: dict[str, Json] = {"made_with": list(self.made_with), "session": session}
        if of_run is not None:
            entry["run"] = of_run
        for tries_left in reversed(range(_MOST_TRIES)):
            try:
                return await self._write(entry)
            except StaleClaim:
                raise
            except PostroomError as error:
                if not (error.retryable and tries_left):
                    reason = error.describe()
                    _LOG.warning("command.session_not_kept", thread_id=self.thread_id, reason=reason)
                    return None
        return None

    async def _write(self, entry: dict[str, Json]) -> None:
        state = await self.control.threads.load_thread_state(self.thread_id)
        sessions = self._kept(state)
        if sessions.get(self._name) == entry:
            return
        others = [one for one in sessions.items() if one[0] != self._name]
        newest = dict([*others, (self._name, entry)][-_MOST_KEPT:])
        whole: dict[str, Json] = {**(state or {}), self.key: newest}
        await self.control.coordinator.commit(ThreadCommit(thread_id=self.thread_id, thread_state=whole))

    def _kept(self, state: dict[str, Json] | None) -> dict[str, Any]:
        kept = (state or {}).get(self.key)
        return kept if isinstance(kept, dict) else {}


def is_session(session: object) -> bool:
    """Return whether it is safe as an argument that names a session."""
    if not isinstance(session, str) or not 0 < len(session) <= _LONGEST:
        return False
    return session.isprintable() and not session.startswith("-")
