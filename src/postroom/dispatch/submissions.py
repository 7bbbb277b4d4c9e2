"""Accepts work: newest wins, behind the others, or into the run that is at work.

submit ────────────▶ the active run gives way ─▶ run, dispatch and claim in one step ─▶ executes here
submit_background ─▶ run and dispatch in one step ─▶ executes when it is its turn
steer ─────────────▶ the run at work reads it at its next step, or as submit_background
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import structlog

from postroom.contracts.activation import RunActivation, RunMode, Strategy
from postroom.contracts.dispatch import OPEN, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    ActiveRunConflict,
    AlreadyConsumed,
    DeliveryBlocked,
    DuplicateRecord,
    PostroomError,
    QueueFull,
    SubmissionRejected,
)
from postroom.contracts.messages import (
    Boundary,
    DeliveryMode,
    Message,
    PendingMessage,
    select_pending,
)
from postroom.dispatch.control import Control
from postroom.dispatch.core import Core
from postroom.dispatch.dispatcher import Dispatcher
from postroom.dispatch.inputs import normalized_mode, refuse_bad_delivery, validate_run_inputs
from postroom.dispatch.journal import Journal, decision_facts
from postroom.dispatch.preparation import DeliveryWish, Preparation, Prepared
from postroom.dispatch.steering import Steering

_LOG = structlog.get_logger(__name__)


class MailboxDispatchStatus(StrEnum):
    """What a submission's dispatch is at when the call returns."""

    RUNNING = "running"
    QUEUED = "queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxSubmitResult:
    """What was accepted. `joined` says that it became part of a dispatch that was queued already."""

    dispatch_id: str
    run_id: str
    thread_id: str
    status: MailboxDispatchStatus
    joined: bool = False


class Submissions:
    """The ways into the queue."""

    def __init__(
        self,
        core: Core,
        journal: Journal,
        preparation: Preparation,
        dispatcher: Dispatcher,
        control: Control,
        steering: Steering,
    ) -> None:
        self._core = core
        self._journal = journal
        self._preparation = preparation
        self._dispatcher = dispatcher
        self._control = control
        self._steering = steering

    def checked(self, request: RunActivation, *, background: bool) -> RunActivation:
        """Return the request in its mode, with a thread id and an id for each message.

        Raises:
            InvalidSubmission: as the text says; nothing was looked up or written.
        """
        request = normalized_mode(request, background=background)
        refuse_bad_delivery(request)
        thread_id, messages = validate_run_inputs(
            request.thread_id,
            request.messages,
            allow_empty=bool(request.decisions),
            new_id=self._core.new_id,
        )
        return replace(request, thread_id=thread_id, messages=messages)

    async def submit_background(
        self, request: RunActivation, *, strategy: Strategy = Strategy.QUEUE
    ) -> MailboxSubmitResult:
        """Accept work; what happens when the thread is busy is the strategy's choice.

        Raises:
            SubmissionRejected: the thread is busy and the strategy is `reject`.
            QueueFull: as many wait on the thread as may.
            DedupeKeyInUse: an open dispatch of the thread has the key.
        """
        request = self.checked(request, background=True)
        match strategy:
            case Strategy.STEER:
                return await self._steered_or_queued(request, None)
            case Strategy.COLLECT:
                request = await self._collected(request)
            case Strategy.REJECT:
                return await self._queued_when_idle(request)
            case Strategy.ROLLBACK:
                request = await self.without_the_active(request)
                await self._control.interrupt(request.thread_id)
            case Strategy.INTERRUPT:
                await self._control.interrupt(request.thread_id)
            case Strategy.QUEUE:
                pass
        return await self._queued(request)

    async def _queued_when_idle(self, request: RunActivation) -> MailboxSubmitResult:
        await self._refuse_busy(request.thread_id)
        try:
            return await self._queued(request, when_idle=True)
        except ActiveRunConflict as error:
            raise SubmissionRejected(error.message, value=request.thread_id) from error

    async def _queued(self, request: RunActivation, *, when_idle: bool = False) -> MailboxSubmitResult:
        if self._core.one_transaction:
            return await self._queued_in_one_step(request, when_idle=when_idle)
        await self._refuse_full_queue(request.thread_id)
        prepared = await self._preparation.prepare(request)
        if prepared.joined is not None:
            return submitted(prepared.joined, MailboxDispatchStatus.QUEUED, joined=True)
        queued = await self.enqueued(self._preparation.dispatch_of(prepared), prepared)
        self._dispatcher.workers.get_or_create(queued.thread_id)
        await self._dispatcher.try_dispatch_next(queued.thread_id)
        return submitted(queued, self._status_of(queued))

    async def _queued_in_one_step(self, request: RunActivation, *, when_idle: bool) -> MailboxSubmitResult:
        """Write run and dispatch together and, when the thread is free here, the claim of its next one."""
        dispatcher, thread_id = self._dispatcher, request.thread_id
        worker = dispatcher.workers.get_or_create(thread_id)
        reserved = dispatcher.reserve(thread_id, worker, request.delivery.tenant)
        begins = reserved and when_idle and not request.delivery.delay_ms
        wish = DeliveryWish(
            claim=reserved,
            claim_needed=begins,
            begins=begins,
            when_idle=when_idle,
            queue_cap=self._core.config.max_queued_per_thread,
        )
        claimed = None
        try:
            prepared = await self._preparation.prepare(request, wish)
            claimed = prepared.committed.claimed
        finally:
            if reserved and claimed is None and dispatcher.unreserve(worker) and not self._core.tasks.closed:
                self._core.tasks.start(dispatcher.try_dispatch_next(thread_id), name=f"look at {thread_id}")
        if prepared.joined is not None:
            await dispatcher.try_dispatch_next(thread_id)
            return submitted(prepared.joined, MailboxDispatchStatus.QUEUED, joined=True)
        queued = prepared.committed.dispatch or self._preparation.dispatch_of(prepared)
        try:
            await self._journal.dispatch_happened("RunQueued", queued)
        finally:  # what is claimed is begun, also when the caller has gone meanwhile
            if claimed is not None:
                await dispatcher.begin_or_release(claimed, prepared.begun)
        if not reserved:
            await dispatcher.try_dispatch_next(thread_id)  # it may have become free meanwhile
        return submitted(queued, self._status_of(queued))

    def _status_of(self, queued: RunDispatch) -> MailboxDispatchStatus:
        """Say whether this very dispatch executes here by now; an older one of the thread may."""
        worker = self._dispatcher.workers.get(queued.thread_id)
        runs = worker is not None and worker.is_running and worker.dispatch_id == queued.dispatch_id
        return MailboxDispatchStatus.RUNNING if runs else MailboxDispatchStatus.QUEUED

    async def enqueued(self, dispatch: RunDispatch, prepared: Prepared) -> RunDispatch:
        """Enqueue the dispatch of a run that is stored; when it fails, the run waits for recovery."""
        try:
            queued = await self._core.observed("enqueue", self._core.dispatches.enqueue(dispatch))
        except PostroomError as error:
            await self._tell_failure(dispatch, prepared.activation, error)
            raise
        await self._journal.dispatch_happened("RunQueued", queued)
        return queued

    async def _tell_failure(
        self, dispatch: RunDispatch, request: RunActivation, error: PostroomError
    ) -> None:
        facts = {"reason": "enqueue_failed", "error": error.describe()}
        await self._journal.dispatch_happened("MailboxSubmitFailed", dispatch, **facts)
        if request.decisions:
            decisions = [decision_facts(call, resume) for call, resume in request.decisions]
            await self._journal.dispatch_happened(
                "MailboxResumeFailed", dispatch, **facts, decisions=decisions
            )

    async def _collected(self, request: RunActivation) -> RunActivation:
        """Return the request to join the newest run that waits on the thread, if one does."""
        queued = await self._core.dispatches.list_dispatches(
            request.thread_id, (RunDispatchStatus.QUEUED,), limit=200
        )
        if not queued or request.run_id is not None:
            return request
        newest = max(queued, key=lambda row: (row.created_at, row.dispatch_id))
        return request.hinted(run_id=newest.run_id)

    async def _refuse_busy(self, thread_id: str) -> None:
        open_rows = await self._core.dispatches.list_dispatches(thread_id, OPEN, limit=1)
        if open_rows:
            raise SubmissionRejected(f"thread {thread_id!r} is busy", value=open_rows[0].dispatch_id)

    async def _refuse_full_queue(self, thread_id: str) -> None:
        cap = self._core.config.max_queued_per_thread
        if cap is not None and await self._core.dispatches.count_queued(thread_id, at_most=cap) >= cap:
            raise QueueFull(f"{cap} runs wait on thread {thread_id!r} already", value=cap)

    async def without_the_active(self, request: RunActivation) -> RunActivation:
        """Return the request with the thread's open work out of its sight."""
        rows = await self._core.dispatches.list_dispatches(request.thread_id, OPEN, limit=200)
        gone = tuple(sorted({row.run_id for row in rows} - {request.run_id}))
        return replace(request, options=replace(request.options, without_runs=gone))

    async def submit_live_then_queue(
        self, request: RunActivation, expected_run_id: str | None = None
    ) -> MailboxSubmitResult:
        """Hand the messages to the run at work, or queue them where none takes them.

        At least once: when the acceptance was lost on its way, they are queued as well.
        """
        return await self._steered_or_queued(self.checked(request, background=True), expected_run_id)

    async def _steered_or_queued(
        self, request: RunActivation, expected_run_id: str | None
    ) -> MailboxSubmitResult:
        steered = await self._steering.steered(request, expected_run_id)
        if steered is None:
            return await self._queued(request)
        return MailboxSubmitResult(
            dispatch_id=steered.dispatch_id,
            run_id=steered.run_id,
            thread_id=request.thread_id,
            status=MailboxDispatchStatus.RUNNING,
        )

    async def submit_committed(self, request: RunActivation) -> MailboxSubmitResult:
        """Queue a run on messages that are committed already."""
        return await self._queued(request)

    async def after_run(self, thread_id: str) -> None:
        """Look after what a run left when it ended; a failure is logged, recovery looks again."""
        if self._core.tasks.closed or not self._dispatcher.accepting:
            return
        try:
            await self.take_up_left_over(thread_id)
        except PostroomError as error:
            _LOG.warning("pending.not_taken_up", thread_id=thread_id, reason=error.describe())

    async def take_up_left_over(self, thread_id: str) -> MailboxSubmitResult | None:
        """Give what waits on an idle thread to a new run, if it was meant to be.

        That is what was meant for a run that has ended without reading it, and what starts runs by itself.
        """
        if not self._core.config.pending_zone:
            return None
        waiting = await self._core.threads.pending_messages(thread_id)
        return await self.take_up(thread_id, waiting)

    async def take_up(self, thread_id: str, waiting: Sequence[PendingMessage]) -> MailboxSubmitResult | None:
        """Do what `take_up_left_over` does, with what was seen to wait."""
        modes = [entry.mode for entry in select_pending(waiting, Boundary.NEW_RUN, None)]
        if not any(mode.target_run_id or mode.starts_run for mode in modes):
            return None
        request = RunActivation(thread_id=thread_id).traced(run_mode=RunMode.SCHEDULED)
        try:
            return await self._queued_when_idle(request)
        except (AlreadyConsumed, DeliveryBlocked, SubmissionRejected):
            return None  # it is at work, or others were faster: they look when they have ended

    async def _begun_at_once(self, request: RunActivation, mode: DeliveryMode) -> MailboxSubmitResult | None:
        """Begin a run on messages that nothing stands before, in one commit; None when they have to wait.

        A commit of one message that is known is refused as a whole, so this may be repeated as well.
        """
        worker = self._dispatcher.workers.get(request.thread_id)
        is_busy_here = worker is not None and worker.is_running
        if is_busy_here or not mode.starts_run or mode.barrier or not self._core.one_transaction:
            return None
        if not mode.is_read_at(Boundary.NEW_RUN, None):
            return None
        try:
            return await self._queued(request, when_idle=True)
        except (ActiveRunConflict, DeliveryBlocked, DuplicateRecord):
            return None

    async def deliver(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode
    ) -> MailboxSubmitResult | None:
        """Put messages where they are read as their mode says; return the run that was started for them.

        Those that are known by their id are passed over, so that it may be repeated.
        """
        request = self.checked(RunActivation.new(thread_id, messages), background=True)
        started = await self._begun_at_once(request, mode)
        if started is not None:
            return started
        for message in request.messages:
            try:
                await self._core.threads.append_pending(request.thread_id, (message,), mode)
            except DuplicateRecord:
                continue
        started = await self.take_up_left_over(request.thread_id)
        if started is None and mode.boundary in (Boundary.INTERRUPT, Boundary.NEXT_STEP):
            await self._steering.wake(request.thread_id)
        return started


def submitted(
    dispatch: RunDispatch, status: MailboxDispatchStatus, *, joined: bool = False
) -> MailboxSubmitResult:
    """Return what was accepted with this dispatch."""
    return MailboxSubmitResult(
        dispatch_id=dispatch.dispatch_id,
        run_id=dispatch.run_id,
        thread_id=dispatch.thread_id,
        status=status,
        joined=joined,
    )
