"""Tells runs how their dispatches ended, when no execution did: one place for each such end."""

import structlog

from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import IllegalTransition, PostroomError, VersionConflict
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.dispatch.config import RECONCILE_PAGE
from postroom.dispatch.core import Core

_LOG = structlog.get_logger(__name__)

_OPERATIONS = {
    RunDispatchStatus.CANCELLED: ("mark_run_cancelled", "cancelled"),
    RunDispatchStatus.SUPERSEDED: ("mark_run_superseded", "superseded"),
    RunDispatchStatus.DEAD_LETTER: ("mark_run_dead_letter", "dead_letter"),
}


class RunEnds:
    """Ends runs whose dispatch was cancelled, superseded or given up."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def tell(self, dispatch: RunDispatch) -> None:
        """End the run of a dispatch that has ended unacked, unless another dispatch has the run by now.

        Once; afterwards the row counts as reconciled.
        """
        if dispatch.status not in _OPERATIONS or dispatch.reconciled:
            return
        operation, outcome = _OPERATIONS[dispatch.status]
        run = await self._core.threads.load_run(dispatch.run_id)
        if run is not None and owns(dispatch, run):
            await self._core.observed(operation, self._end(run, dispatch))
            self._core.metrics.run_ended(outcome)
        await self._core.dispatches.mark_reconciled([dispatch.dispatch_id])

    async def tell_all(self) -> int:
        """End the run of every ended dispatch that was not told yet; return how many there were."""
        told = 0
        while rows := await self._core.observed(
            "list_terminal_dispatches", self._core.dispatches.unreconciled_dispatches(limit=RECONCILE_PAGE)
        ):
            failed = 0
            for row in rows:
                try:
                    await self._core.observed("reconcile_terminal_dispatch", self.tell(row))
                except PostroomError as error:
                    failed += 1
                    _LOG.warning(
                        "dispatch.not_reconciled", dispatch_id=row.dispatch_id, reason=error.describe()
                    )
            told += len(rows) - failed
            if failed:
                break
        return told

    async def cancel_waiting(self, run: RunRecord, reason: str | None = None) -> bool:
        """End a run that waits for a person; False when it is not as it was seen any more."""
        is_asking = run.waiting is not None and run.waiting.reason is not WaitingReason.BACKGROUND_TASKS
        if run.status is not RunStatus.WAITING or not is_asking:
            return False
        end = TerminationReason(type=TerminationKind.CANCELLED, value=reason)
        ended = run.ended(end, now=self._core.now())
        effects = self._core.effects_of(ended)
        commit = ThreadCommit(thread_id=run.thread_id, run=ended, replaces=run, outbox=effects)
        try:
            await self._core.observed("cancel_waiting_run", self._core.stores.coordinator.commit(commit))
        except (IllegalTransition, VersionConflict):
            _LOG.info("run.went_on_meanwhile", run_id=run.run_id)
            return False
        self._core.effects_stored(ended)
        self._core.metrics.run_ended("cancelled")
        return True

    async def _end(self, run: RunRecord, dispatch: RunDispatch) -> None:
        ended = run.ended(termination_of(dispatch), now=self._core.now(), dispatch_id=dispatch.dispatch_id)
        try:
            effects = self._core.effects_of(ended)
            commit = ThreadCommit(thread_id=run.thread_id, run=ended, outbox=effects)
            await self._core.stores.coordinator.commit(commit)
            self._core.effects_stored(ended)
        except IllegalTransition:
            _LOG.info("run.ended_meanwhile", run_id=run.run_id)


def owns(dispatch: RunDispatch, run: RunRecord) -> bool:
    """Say whether the end of this dispatch is the end of this run."""
    mine = run.thread_id == dispatch.thread_id and run.dispatch_id in (None, dispatch.dispatch_id)
    return mine and run.is_open


def termination_of(dispatch: RunDispatch) -> TerminationReason:
    """Return why a run ends when its dispatch has ended so."""
    if dispatch.status is RunDispatchStatus.DEAD_LETTER:
        return TerminationReason.error(dispatch.run_error or dispatch.last_error or "dead letter")
    return TerminationReason.cancelled()
