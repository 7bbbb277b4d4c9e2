"""A client's own session of a thread: kept with the thread's state, with proof that the run is still ours.

It is kept for each agent, and counts only for the program and the working folder it was made with.
"""

from typing import Any, Final

import structlog

from postroom.contracts.errors import PostroomError, StaleClaim
from postroom.contracts.executor import RunControl
from postroom.contracts.messages import Json
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runners import Runner

_LOG = structlog.get_logger(__name__)
KEY: Final = "postroom.executors.command"
_MOST_TRIES: Final = 3
_LONGEST: Final = 256


async def session_of(control: RunControl, thread_id: str, agent_id: str, runner: Runner) -> str | None:
    """Return the session that the agent goes on with on the thread, or None to begin a new one.

    A run that is not to see what others have said begins a new one: the client cannot forget it.
    """
    if not runner.resume or control.hidden_runs:
        return None
    kept = _kept(await control.threads.load_thread_state(thread_id)).get(agent_id)
    if not isinstance(kept, dict) or kept.get("made_with") != _made_with(runner):
        return None
    session = kept.get("session")
    return session if is_session(session) else None


def is_session(session: object) -> bool:
    """Say whether it can be an argument that names a session and nothing else."""
    if not isinstance(session, str) or not 0 < len(session) <= _LONGEST:
        return False
    return session.isprintable() and not session.startswith("-")


async def keep_session(
    control: RunControl, thread_id: str, agent_id: str, runner: Runner, session: str | None
) -> None:
    """Keep the session for the thread's next run of this agent.

    When it cannot be written that is told in the log, and the next run begins a new one: the answer that is
    there already counts for more.

    Raises:
        StaleClaim: the run is not the worker's any more; nothing was written.
    """
    if not runner.resume or not is_session(session):
        return None
    entry = {"made_with": _made_with(runner), "session": session}
    for tries_left in reversed(range(_MOST_TRIES)):
        try:
            return await _write(control, thread_id, agent_id, entry)
        except StaleClaim:
            raise
        except PostroomError as error:
            if not (error.retryable and tries_left):
                _LOG.warning("command.session_not_kept", thread_id=thread_id, reason=error.describe())
                return None
    return None


async def _write(control: RunControl, thread_id: str, agent_id: str, entry: dict[str, Json]) -> None:
    state = await control.threads.load_thread_state(thread_id)
    sessions = _kept(state)
    if sessions.get(agent_id) == entry:
        return
    whole = {**(state or {}), KEY: {**sessions, agent_id: entry}}
    await control.coordinator.commit(ThreadCommit(thread_id=thread_id, thread_state=whole))


def _kept(state: dict[str, Json] | None) -> dict[str, Any]:
    kept = (state or {}).get(KEY)
    return kept if isinstance(kept, dict) else {}


def _made_with(runner: Runner) -> list[str]:
    return [runner.recipe.value, runner.cwd]
