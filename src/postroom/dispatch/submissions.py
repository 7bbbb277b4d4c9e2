"""Accepts work: newest wins, behind the others, or into the run that is at work.

submit ────────────▶ the active run gives way ─▶ run, dispatch and claim in one step ─▶ executes here
submit_background ─▶ run and dispatch in one step ─▶ executes when it is its turn
steer ─────────────▶ the run at work reads it at its next step, or as submit_background
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

import structlog

from postroom.contracts.activation import RunActivation, RunMode, Strategy
from postroom.contracts.dispatch import OPEN, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    ActiveRunConflict,
    AlreadyConsumed,
    DeliveryBlocked,
    PostroomError,
    QueueFull,
    SubmissionRejected,
)
from postroom.contracts.live import LiveCommandKind, LiveRunCommand, LiveRunTarget
from postroom.contracts.messages import (
    Boundary,
    DeliveryMode,
    Message,
    leading_barrier,
    select_pending,
)
from postroom.dispatch.config import ACTIVE_RUN_CONFLICT_MESSAGE, INLINE_CLAIM_GUARD_MS
from postroom.dispatch.control import Control
from postroom.dispatch.core import Core
from postroom.dispatch.dispatcher import Dispatcher
from postroom.dispatch.inputs import normalized_mode, refuse_bad_delivery, validate_run_inputs
from postroom.dispatch.journal import Journal, decision_facts
from postroom.dispatch.outcome import DispatchAttempt
from postroom.dispatch.preparation import DeliveryWish, Preparation, Prepared
from postroom.dispatch.run_ends import RunEnds
from postroom.dispatch.sinks import EventStream

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
    """The ways into the mailbox."""

    def __init__(
        self,
        core: Core,
        journal: Journal,
        ends: RunEnds,
        preparation: Preparation,
        dispatcher: Dispatcher,
        control: Control,
    ) -> None:
        self._core = core
        self._journal = journal
        self._ends = ends
        self._preparation = preparation
        self._dispatcher = dispatcher
        self._control = control

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

    # Newest wins.

    async def submit(self, request: RunActivation) -> tuple[MailboxSubmitResult, EventStream]:
        """Run this now: the active run gives way, what was queued is superseded, events are streamed.

        Raises:
            ActiveRunConflict: the active run did not give way; nothing was written.
            DeliveryBlocked: a barrier stands before the message; nothing was written.
        """
        request = self.checked(request, background=False)
        if request.trace.run_mode is RunMode.FOREGROUND:
            await self._refuse_barrier(request.thread_id)
        stream = EventStream(self._core.config.event_channel_capacity)
        async with self._wanting(request.thread_id):
            claimed = await self._claimed_now(request)
            self._dispatcher.begin_foreground(claimed, stream)
        return _result(claimed, MailboxDispatchStatus.RUNNING), stream

    async def _claimed_now(self, request: RunActivation) -> RunDispatch:
        rounds = max(self._core.config.cancel_wait_ms // self._core.config.cancel_poll_ms, 1)
        for _ in range(rounds):
            active = await self._core.dispatches.claimed_dispatch(request.thread_id)
            if active is not None and not await self._control.give_way(active):
                break
            try:
                if self._core.one_transaction:
                    return await self._admitted_in_one_step(request)
                return await self._admitted_step_by_step(request)
            except ActiveRunConflict:
                if not self._core.one_transaction:
                    raise
        raise ActiveRunConflict(ACTIVE_RUN_CONFLICT_MESSAGE, value=request.thread_id)

    async def _admitted_in_one_step(self, request: RunActivation) -> RunDispatch:
        wish = DeliveryWish(interrupt=True, claim=True, claim_needed=True)
        prepared = await self._preparation.prepare(request, wish)
        if prepared.joined is not None:
            return await self._joined_now(prepared.joined)
        committed = prepared.committed
        interrupt, queued = committed.interrupt, committed.dispatch
        for superseded in interrupt.superseded_dispatches if interrupt else ():
            await self._ends.tell(superseded)
        if queued is None or committed.claimed is None:
            raise ActiveRunConflict(ACTIVE_RUN_CONFLICT_MESSAGE, value=request.thread_id)
        await self._journal.dispatch_happened("RunQueued", queued)
        return committed.claimed

    async def _joined_now(self, queued: RunDispatch) -> RunDispatch:
        """Claim the dispatch that the submission has become part of."""
        core = self._core
        claimed = await core.dispatches.claim_dispatch(
            queued.dispatch_id, core.consumer_id, lease_ms=core.config.lease_ms
        )
        if claimed is None:
            raise ActiveRunConflict(ACTIVE_RUN_CONFLICT_MESSAGE, value=queued.thread_id)
        return claimed

    async def _admitted_step_by_step(self, request: RunActivation) -> RunDispatch:
        """As in one step, where run and queue are in different places; a guard time keeps others off."""
        core = self._core
        interrupt = await core.observed("interrupt", core.dispatches.interrupt(request.thread_id))
        for superseded in interrupt.superseded_dispatches:
            await self._ends.tell(superseded)
        prepared = await self._preparation.prepare(request)
        if prepared.joined is not None:
            return await self._joined_now(prepared.joined)
        dispatch = self._preparation.dispatch_of(prepared.activation)
        guarded = replace(dispatch, available_at=dispatch.available_at + INLINE_CLAIM_GUARD_MS)
        queued = await self._enqueued(guarded, prepared)
        claimed = await core.observed(
            "claim_dispatch",
            core.dispatches.claim_dispatch(
                queued.dispatch_id, core.consumer_id, lease_ms=core.config.lease_ms
            ),
        )
        if claimed is not None:
            return claimed
        cancelled = await core.observed("cancel", core.dispatches.cancel(queued.dispatch_id))
        if cancelled is None:
            cancelled = await core.dispatches.load_dispatch(queued.dispatch_id)
        if cancelled is not None:
            await self._ends.tell(cancelled)
            await self._journal.dispatch_happened("RunCancelled", cancelled)
        raise ActiveRunConflict(ACTIVE_RUN_CONFLICT_MESSAGE, value=request.thread_id)

    @asynccontextmanager
    async def _wanting(self, thread_id: str) -> AsyncIterator[None]:
        """Keep this process from claiming what the thread has queued while somebody waits for it."""
        worker = self._dispatcher.workers.get_or_create(thread_id)
        worker.foreground += 1
        try:
            yield
        finally:
            worker.foreground -= 1
            if not worker.foreground and not worker.is_running:
                await self._dispatcher.try_dispatch_next(thread_id)

    async def _refuse_barrier(self, thread_id: str) -> None:
        if not self._core.config.pending_zone:
            return
        waiting = await self._core.threads.pending_messages(thread_id)
        barrier = leading_barrier(waiting, Boundary.INTERRUPT)
        if barrier is not None:
            raise DeliveryBlocked(
                f"pending message {barrier.pending_id!r} must be read first", value=barrier.pending_id
            )

    # Behind the others.

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
                await self._refuse_busy(request.thread_id)
            case Strategy.INTERRUPT | Strategy.ROLLBACK:
                await self._control.interrupt(request.thread_id)
            case Strategy.QUEUE:
                pass
        return await self._queued(request)

    async def _queued(self, request: RunActivation) -> MailboxSubmitResult:
        if self._core.one_transaction:
            return await self._queued_in_one_step(request)
        prepared = await self._preparation.prepare(request)
        if prepared.joined is not None:
            return _result(prepared.joined, MailboxDispatchStatus.QUEUED, joined=True)
        dispatch = self._preparation.dispatch_of(prepared.activation)
        await self._refuse_full_queue(request.thread_id)
        queued = await self._enqueued(dispatch, prepared)
        self._dispatcher.workers.get_or_create(queued.thread_id)
        attempt = await self._dispatcher.try_dispatch_next(queued.thread_id)
        running = attempt is DispatchAttempt.CLAIMED
        return _result(queued, MailboxDispatchStatus.RUNNING if running else MailboxDispatchStatus.QUEUED)

    async def _queued_in_one_step(self, request: RunActivation) -> MailboxSubmitResult:
        """Write run and dispatch together and, when the thread is free here, the claim of its next one."""
        dispatcher, thread_id = self._dispatcher, request.thread_id
        worker = dispatcher.workers.get_or_create(thread_id)
        reserved = dispatcher.reserve(thread_id, worker, request.delivery.tenant)
        wish = DeliveryWish(claim=reserved, queue_cap=self._core.config.max_queued_per_thread)
        claimed = None
        try:
            prepared = await self._preparation.prepare(request, wish)
            claimed = prepared.committed.claimed
        finally:
            if reserved and claimed is None:
                dispatcher.unreserve(worker)
        if prepared.joined is not None:
            await dispatcher.try_dispatch_next(thread_id)
            return _result(prepared.joined, MailboxDispatchStatus.QUEUED, joined=True)
        queued = prepared.committed.dispatch or self._preparation.dispatch_of(prepared.activation)
        await self._journal.dispatch_happened("RunQueued", queued)
        started = DispatchAttempt.NO_ELIGIBLE
        if claimed is not None:
            started = await dispatcher.begin_or_release(claimed)
        elif not reserved:
            await dispatcher.try_dispatch_next(thread_id)  # it may have become free meanwhile
        running = started is DispatchAttempt.CLAIMED
        return _result(queued, MailboxDispatchStatus.RUNNING if running else MailboxDispatchStatus.QUEUED)

    async def _enqueued(self, dispatch: RunDispatch, prepared: Prepared) -> RunDispatch:
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

    # Into the run that is at work.

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
        steered = await self._steered(request, expected_run_id)
        return steered or await self._queued(request)

    async def _steered(
        self, request: RunActivation, expected_run_id: str | None
    ) -> MailboxSubmitResult | None:
        worker = self._dispatcher.workers.get(request.thread_id)
        if worker is not None and worker.is_running:
            run_id, dispatch_id, is_here = worker.run_id or "", worker.dispatch_id, True
        else:
            target = await self._control.active_target(request.thread_id)
            if target is None or target.run_id is None:
                return None
            run_id, dispatch_id, is_here = target.run_id, target.dispatch_id, False
        if expected_run_id is not None and expected_run_id != run_id:
            return None
        if not await self._handed_over(request, run_id, dispatch_id, is_here=is_here):
            return None
        return MailboxSubmitResult(
            dispatch_id=dispatch_id or run_id,
            run_id=run_id,
            thread_id=request.thread_id,
            status=MailboxDispatchStatus.RUNNING,
        )

    async def _handed_over(
        self, request: RunActivation, run_id: str, dispatch_id: str | None, *, is_here: bool
    ) -> bool:
        if not self._core.config.pending_zone:
            if is_here:
                return self._core.executor.send_messages(run_id, request.messages)
            command = LiveRunCommand(kind=LiveCommandKind.MESSAGES, messages=request.messages)
            return await self._told(request.thread_id, run_id, dispatch_id, command)
        mode = DeliveryMode(boundary=Boundary.NEXT_STEP, target_run_id=run_id, fallback_to_new_run=False)
        await self._core.threads.append_pending(request.thread_id, request.messages, mode)
        if is_here:
            woken = self._core.executor.wake_pending_boundary(run_id)
        else:
            command = LiveRunCommand(kind=LiveCommandKind.PENDING_BOUNDARY_WAKE)
            woken = await self._told(request.thread_id, run_id, dispatch_id, command)
        return woken or not await self._retracted(request.thread_id, request.messages)

    async def _told(
        self, thread_id: str, run_id: str, dispatch_id: str | None, command: LiveRunCommand
    ) -> bool:
        target = LiveRunTarget(thread_id=thread_id, run_id=run_id, dispatch_id=dispatch_id)
        return await self._control.deliver(target, command)

    async def _retracted(self, thread_id: str, messages: tuple[Message, ...]) -> bool:
        """Take staged messages back; False when a run has read them meanwhile, so that they are delivered."""
        for message in messages:
            try:
                await self._core.threads.retract_pending(thread_id, message.id or "")
            except AlreadyConsumed:
                return False  # they are read together, in one step
        return True

    async def submit_committed(self, request: RunActivation) -> MailboxSubmitResult:
        """Queue a run on messages that are committed already."""
        return await self._queued(request)

    async def take_up_left_over(self, thread_id: str) -> MailboxSubmitResult | None:
        """Give what was meant for a run that has ended without reading it to a new one."""
        if not self._core.config.pending_zone:
            return None
        waiting = await self._core.threads.pending_messages(thread_id)
        left = [entry.mode.target_run_id for entry in select_pending(waiting, Boundary.NEW_RUN, None)]
        if not any(left) or await self._control.active_target(thread_id) is not None:
            return None
        request = RunActivation(thread_id=thread_id).traced(run_mode=RunMode.SCHEDULED)
        return await self._queued(request)


def _result(
    dispatch: RunDispatch, status: MailboxDispatchStatus, *, joined: bool = False
) -> MailboxSubmitResult:
    return MailboxSubmitResult(
        dispatch_id=dispatch.dispatch_id,
        run_id=dispatch.run_id,
        thread_id=dispatch.thread_id,
        status=status,
        joined=joined,
    )
