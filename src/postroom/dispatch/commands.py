"""Hands over what others ask of the runs at work here: to end, or to go on with a decision.

    asked anywhere ─▶ kept with the dispatch ─▶ heard here: a hint, or the poll ─▶ the executor is told
                                    └─▶ what it has not taken holds when the run is tried again, or waits

A command is kept until the execution has ended, so that none is lost with the process that has heard it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from postroom.contracts.errors import PostroomError
from postroom.contracts.live import LiveCommandKind, LiveRunCommand
from postroom.contracts.transactions import commands_to
from postroom.dispatch.core import Core
from postroom.dispatch.limits import Workers
from postroom.log import get_logger

if TYPE_CHECKING:
    from postroom.dispatch.worker import Job

_LOG = get_logger(__name__)


class Commands:
    """Looks what is asked of the runs at work in this process."""

    def __init__(self, core: Core, workers: Workers, jobs: "Mapping[int, Job]") -> None:
        self._core = core
        self._workers = workers
        self._jobs = jobs
        self._is_served = False

    def serve(self) -> None:
        """Listen from now on, until the mailbox is closed; harmless when done twice."""
        if not self._is_served:
            self._is_served = True
            self._core.tasks.start(self._serve(), name="commands")

    async def _serve(self) -> None:
        core = self._core
        with core.store.changes.listen(commands_to(core.consumer_id)) as told:
            while True:
                await told.wait(core.config.poll_interval)
                try:
                    await self._look()
                except PostroomError as error:
                    _LOG.warning("commands.not_read", reason=error.describe())

    async def _look(self) -> None:
        jobs = {job.claimed.dispatch_id: job for job in self._jobs.values()}
        if not jobs:
            return
        found = await self._core.store.read(lambda tx: tx.runs.dispatches.commands(tuple(jobs)))
        for dispatch_id, command in found:
            self._hand_over(jobs[dispatch_id], command)

    def _hand_over(self, job: "Job", command: LiveRunCommand) -> None:
        """Tell the executor, once; a decision that it does not take it is asked about again later."""
        executor, dispatch_id = self._core.executor, job.claimed.dispatch_id
        try:
            if command.kind is LiveCommandKind.CANCEL and not job.lease.is_cancelled:
                self._workers.stop(dispatch_id, is_told=executor.cancel(dispatch_id))
            for call_id, resume in command.decisions:
                if call_id not in job.decided and executor.send_decision(dispatch_id, call_id, resume):
                    job.decided.add(call_id)
        except Exception:  # an executor is anybody's code; the others are told
            _LOG.exception("run.not_told", run_id=job.claimed.run_id, command=command.kind.value)
