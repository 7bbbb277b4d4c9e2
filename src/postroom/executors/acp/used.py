"""Which permissions a run has used: noted before the agent is told, so that a yes holds once."""

from dataclasses import dataclass
from typing import Final

from postroom.contracts.errors import PostroomError, StaleClaim
from postroom.contracts.executor import RunControl
from postroom.contracts.run_stores import ThreadCommit
from postroom.log import get_logger

_LOG = get_logger(__name__)
KEY: Final = "postroom.executors.acp.used"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedPermissions:
    """What one run has used, kept with its thread; the next run's notes take their place."""

    control: RunControl
    thread_id: str
    run_id: str

    async def all(self) -> list[str]:
        """Return the decisions that an agent was told in this run."""
        kept = (await self.control.threads.load_thread_state(self.thread_id) or {}).get(KEY)
        if not isinstance(kept, dict) or kept.get("run") != self.run_id:
            return []
        used = kept.get("decisions")
        return [one for one in used if isinstance(one, str)] if isinstance(used, list) else []

    async def note(self, decision_id: str) -> bool:
        """Note that a decision is used; False when that could not be kept, and it must not be used then.

        Raises:
            StaleClaim: the run is not the worker's any more; nothing was written.
        """
        try:
            used = {"run": self.run_id, "decisions": [*await self.all(), decision_id]}
            state = await self.control.threads.load_thread_state(self.thread_id) or {}
            commit = ThreadCommit(thread_id=self.thread_id, thread_state={**state, KEY: used})
            await self.control.coordinator.commit(commit)
        except StaleClaim:
            raise
        except PostroomError as error:
            _LOG.warning("acp.permission_not_noted", run_id=self.run_id, reason=error.describe())
            return False
        return True
