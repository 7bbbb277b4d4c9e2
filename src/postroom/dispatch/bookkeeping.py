"""Writes that an execution began and how it ended, in the run and in the queue.

Where both are kept in one place, each of the two is one transaction. Where they are not, the run's end is
written before the queue's: when the process dies in between, the dispatch comes again, finds its run settled,
and is acknowledged without being executed a second time.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from postroom.contracts.budgets import Spending
from postroom.contracts.dispatch import RunDispatch, RunDispatchResult, RunDispatchStatus
from postroom.contracts.errors import InternalError, StaleClaim, StoreError
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.run_stores import Committed, ThreadCommit
from postroom.contracts.runs import RunRecord, RunStatus, TerminationReason
from postroom.dispatch.attempt import Attempt
from postroom.dispatch.capture import CapturingSink
from postroom.dispatch.core import Core
from postroom.dispatch.settlement import finish_event, result_of, settle_run

T = TypeVar("T")
_LOG = structlog.get_logger(__name__)


class Bookkeeping:
    """Writes begins and ends of executions."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def begin(self, attempt: Attempt) -> None:
        """Write that the execution begins; a run that was only prepared is running from now on.

        Raises:
            StaleClaim: the dispatch is not ours any more; nothing was written.
        """
        attempt.started_at = now = self._core.now()
        run = None
        if attempt.run.status is RunStatus.CREATED:
            run = attempt.run.begun(attempt.dispatch.dispatch_id, attempt.instance_id, now=now)
        attempt.dispatch = await self._core.observed("record_dispatch_start", self._begun(attempt, run))
        attempt.run = run or attempt.run

    async def _begun(self, attempt: Attempt, run: RunRecord | None) -> RunDispatch:
        commit = ThreadCommit(thread_id=attempt.run.thread_id, run=run)
        if self._core.one_transaction:
            return _moved(await attempt.coordinator.commit(replace(commit, begins=attempt.instance_id)))
        begun = await self._core.dispatches.record_dispatch_start(
            attempt.dispatch.claim_proof, attempt.instance_id
        )
        if run is not None:
            await attempt.coordinator.commit(commit)
        return begun

    async def end(self, attempt: Attempt, result: AgentRunResult, spends: tuple[Spending, ...]) -> None:
        """Write how the execution ended, tell it, and have the dispatch acked.

        Raises:
            StaleClaim: the dispatch is not ours any more; nothing was written.
        """
        finish = finish_event(attempt.dispatch, result.termination, result.response)
        is_told = attempt.watched.finished
        if not is_told and isinstance(attempt.sink, CapturingSink):
            attempt.sink.keep(finish)
        run = await self._repeated(lambda: self._settled(attempt, result, spends))
        is_acked = self._core.one_transaction and run is not None
        if not is_acked:
            await self.record(attempt.dispatch, result_of(attempt.dispatch, run, result, attempt.instance_id))
        if not is_told:
            await attempt.watched.emit(finish)
        if not is_acked:
            await self.ack(attempt.dispatch)

    async def _settled(
        self, attempt: Attempt, result: AgentRunResult, spends: tuple[Spending, ...]
    ) -> RunRecord | None:
        try:
            return await settle_run(self._core, attempt, result, spends)
        except StaleClaim:
            row = await self._core.dispatches.load_dispatch(attempt.dispatch.dispatch_id)
            if row is None or not _is_acked_by(row, attempt.instance_id):
                raise
            _LOG.info("dispatch.acked_before", dispatch_id=row.dispatch_id)  # only the answer was lost
            return await self._core.threads.load_run(row.run_id)

    async def record(self, dispatch: RunDispatch, result: RunDispatchResult) -> None:
        """Write a result into the queue alone."""
        await self._repeated(
            lambda: self._core.observed(
                "record_run_result", self._core.dispatches.record_run_result(dispatch.claim_proof, result)
            )
        )

    async def ack(self, dispatch: RunDispatch) -> None:
        """Acknowledge; when that fails and the row is still ours with its result, once more."""
        try:
            await self._core.observed("ack", self._core.dispatches.ack(dispatch.claim_proof))
        except StoreError as error:
            row = await self._core.dispatches.load_dispatch(dispatch.dispatch_id)
            if row is None or row.claim_token != dispatch.claim_token or row.completed_at is None:
                if row is not None and row.status is RunDispatchStatus.ACKED:
                    return  # only the answer was lost
                raise
            _LOG.warning("dispatch.acked_again", dispatch_id=row.dispatch_id, reason=error.describe())
            await self._core.observed("ack_recovery", self._core.dispatches.ack(dispatch.claim_proof))

    async def acknowledge_settled(self, attempt: Attempt) -> None:
        """Have a dispatch acked whose run had ended before: what was left of it is its acknowledgement."""
        run, dispatch = attempt.run, attempt.dispatch
        _LOG.info("dispatch.settled_before", dispatch_id=dispatch.dispatch_id, run_id=run.run_id)
        await self._core.dispatches.record_dispatch_start(dispatch.claim_proof, attempt.instance_id)
        termination = run.termination or TerminationReason.suspended()
        result = AgentRunResult(
            run_id=run.run_id, response=run.final_output or "", termination=termination, waiting=run.waiting
        )
        await self.record(dispatch, result_of(dispatch, run, result, attempt.instance_id))
        for effect in self._core.effects_of(run):
            await self._core.stores.outbox.enqueue(effect)
        self._core.effects_stored(run)
        await attempt.watched.emit(finish_event(dispatch, termination, result.response))
        await self.ack(dispatch)

    async def _repeated(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write; while the store is out of order, again after a pause, until the claim is lost."""
        config, tries = self._core.config, 0
        while True:
            try:
                return await write()
            except StoreError as error:
                tries += 1
                if not error.retryable or tries > config.lease_ms // config.lease_retry_ms:
                    raise
                await self._core.timer.sleep(config.lease_retry_ms)


def _moved(committed: Committed) -> RunDispatch:
    if committed.dispatch is None:
        raise InternalError("a commit that begins an execution gave no dispatch back")
    return committed.dispatch


def _is_acked_by(row: RunDispatch, instance_id: str) -> bool:
    return row.status is RunDispatchStatus.ACKED and row.dispatch_instance_id == instance_id
