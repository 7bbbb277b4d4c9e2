"""A client's own session of a thread: kept with the thread's state, with proof that the run is still ours.

It is kept for each agent and mail thread, or for the agent where its runner says so, and counts only for the
program and the working folder it was made with.
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
"""Sessions kept with a thread; a mail thread that was silent while so many others began has a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The sessions of one agent on one thread; `key` is the executor's, `made_with` names the program."""

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
        """Return the session that the agent goes on with, or None to begin a new one.

        A run that is not to see what others have said begins a new one: the client cannot forget it. With
        `of_run` only a session counts that this run has begun.
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
        """Keep the session for the thread's next run of this agent, or for the rest of this run.

        When it cannot be written that is told in the log, and the next run begins a new one: the answer that
        is there already counts for more.

        Raises:
            StaleClaim: the run is not the worker's any more; nothing was written.
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
    """Say whether it can be an argument that names a session and nothing else."""
    if not isinstance(session, str) or not 0 < len(session) <= _LONGEST:
        return False
    return session.isprintable() and not session.startswith("-")
