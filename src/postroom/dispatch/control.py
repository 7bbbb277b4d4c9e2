"""Reaches runs that are queued or at work: cancel, interrupt, decide. Here, or on another machine."""

import structlog

from postroom.contracts.dispatch import Interrupt, RunDispatch, RunDispatchStatus
from postroom.contracts.live import LiveCommandKind, LiveDeliveryOutcome, LiveRunCommand, LiveRunTarget
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.core import Core, live_target_for_dispatch, live_target_for_run
from postroom.dispatch.execution import Execution
from postroom.dispatch.journal import Journal
from postroom.dispatch.run_ends import RunEnds
from postroom.dispatch.workers import Workers

_LOG = structlog.get_logger(__name__)
_CANCEL = LiveRunCommand(kind=LiveCommandKind.CANCEL)
_ACTIVE = (RunStatus.RUNNING, RunStatus.WAITING)


class Control:
    """Commands to runs."""

    def __init__(
        self, core: Core, journal: Journal, ends: RunEnds, workers: Workers, execution: Execution
    ) -> None:
        self._core = core
        self._journal = journal
        self._ends = ends
        self._workers = workers
        self._execution = execution

    async def cancel(self, id: str) -> bool:
        """Cancel what has this dispatch, run or thread id.

        Queued work and a run that waits for a person at once, a run at work by asking it.
        """
        core = self._core
        cancelled = await core.observed("cancel", core.dispatches.cancel(id))
        if cancelled is not None:
            await self._ends.tell(cancelled)
            await self._journal.dispatch_happened("RunCancelled", cancelled)
            return True
        if core.executor.cancel(id) or self._stop_here(id):
            return True
        target = await self._target(id)
        if target is not None and await self._deliver(target, _CANCEL):
            return True
        run = await core.threads.load_run(id) or await core.threads.latest_run(id)
        return run is not None and await self.cancel_waiting(run)

    async def cancel_waiting(self, run: RunRecord, reason: str | None = None) -> bool:
        """End a run that waits for a person; False when it is not as it was seen any more."""
        if not await self._ends.cancel_waiting(run, reason):
            return False
        await self._journal.waiting_cancelled(run)
        return True

    async def interrupt(self, thread_id: str) -> Interrupt:
        """Supersede what the thread has queued and ask its active run to end, without waiting for it."""
        core = self._core
        done = await core.observed("interrupt", core.dispatches.interrupt(thread_id))
        for superseded in done.superseded_dispatches:
            await self._ends.tell(superseded)
        active = done.active_dispatch
        if active is not None:
            accepted = core.executor.cancel(active.dispatch_id) or core.executor.cancel(thread_id)
            accepted = accepted or self._stop_here(active.dispatch_id)
            if accepted or await self._deliver(live_target_for_dispatch(active), _CANCEL):
                await self._journal.dispatch_happened("RunInterrupted", active)
        return done

    async def give_way(self, active: RunDispatch) -> bool:
        """Ask an active run to end and wait until its dispatch is released; False when it is not."""
        here = await self._core.executor.cancel_and_wait_by_thread(active.thread_id)
        here = self._stop_here(active.dispatch_id) or here
        told = here or await self._deliver(live_target_for_dispatch(active), _CANCEL)
        if not told and active.claimed_by != self._core.consumer_id:
            return await self._is_released(active)
        waited, config = 0, self._core.config
        while not await self._is_released(active):
            if waited >= config.cancel_wait_ms:
                reason = "local_cancel_release_wait" if here else "remote_cancel_release_wait"
                await self._journal.dispatch_happened(
                    "MailboxTimeout", active, reason=reason, timeout_ms=config.cancel_wait_ms
                )
                return False
            await self._core.timer.sleep(config.cancel_poll_ms)
            waited += config.cancel_poll_ms
            self._stop_here(active.dispatch_id)  # it may have been about to begin
        await self._journal.dispatch_happened("RunInterrupted", active)
        return True

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Hand a decision to a run at work in this process; False when none takes it."""
        return self._core.executor.send_decision(id, tool_call_id, resume)

    async def send_decision_live(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Hand a decision to the run with this dispatch, run or thread id, wherever it is at work."""
        target = await self._target(id)
        if self.send_decision(id, tool_call_id, resume):
            await self._tell_decision(target, id, tool_call_id, resume, path="local_live")
            return True
        command = LiveRunCommand(kind=LiveCommandKind.DECISION, decisions=((tool_call_id, resume),))
        if target is None or not await self._deliver(target, command):
            return False
        await self._tell_decision(target, id, tool_call_id, resume, path="remote_live")
        return True

    async def active_target(self, thread_id: str) -> LiveRunTarget | None:
        """Return the address of the thread's run at work, anywhere."""
        claimed = await self._core.dispatches.claimed_dispatch(thread_id)
        if claimed is not None:
            return live_target_for_dispatch(claimed)
        run = await self._core.threads.latest_run(thread_id)
        running = run is not None and run.status is RunStatus.RUNNING
        return live_target_for_run(run) if run is not None and running else None

    async def deliver(self, target: LiveRunTarget, command: LiveRunCommand) -> bool:
        """Hand a command to a run at work; False when none accepted it."""
        return await self._deliver(target, command)

    def _stop_here(self, id: str) -> bool:
        """Stop the execution of this dispatch, run or thread in this process, if its executor did not."""
        for thread_id, worker in self._workers.running():
            if id in (thread_id, worker.run_id, worker.dispatch_id) and worker.dispatch_id is not None:
                return self._execution.cancel(worker.dispatch_id)
        return False

    async def _is_released(self, dispatch: RunDispatch) -> bool:
        row = await self._core.dispatches.load_dispatch(dispatch.dispatch_id)
        still = row is not None and row.status is RunDispatchStatus.CLAIMED
        return not (still and row is not None and row.claim_token == dispatch.claim_token)

    async def _deliver(self, target: LiveRunTarget, command: LiveRunCommand) -> bool:
        return await self._core.live.deliver(target, command) is LiveDeliveryOutcome.DELIVERED

    async def _target(self, id: str) -> LiveRunTarget | None:
        """Return the address of the run that has this dispatch, run or thread id and may be at work."""
        row = await self._core.dispatches.load_dispatch(id)
        if row is not None and row.status is RunDispatchStatus.CLAIMED:
            return live_target_for_dispatch(row)
        run: RunRecord | None = await self._core.threads.load_run(id)
        run = run or await self._core.threads.latest_run(id)
        return live_target_for_run(run) if run is not None and run.status in _ACTIVE else None

    async def _tell_decision(
        self, target: LiveRunTarget | None, id: str, call_id: str, resume: ToolCallResume, *, path: str
    ) -> None:
        if target is None or target.run_id is None:
            _LOG.info("decision.of_unknown_run", id=id)
            return
        await self._journal.decision_received(target.thread_id, target.run_id, call_id, resume, path=path)
