"""Newest wins: a submission that somebody waits for runs now.

    the active run gives way ─▶ interrupt, run, dispatch and claim in one step ─▶ executes here
    it does not give way ─────▶ refused; nothing was written

Where run and queue are in different places the one step is several, and a guard time keeps others off.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from postroom.contracts.activation import RunActivation, RunMode, Strategy
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import ActiveRunConflict, DeliveryBlocked, InvalidSubmission
from postroom.contracts.messages import Boundary, leading_barrier
from postroom.dispatch.config import ACTIVE_RUN_CONFLICT_MESSAGE, INLINE_CLAIM_GUARD_MS
from postroom.dispatch.control import Control
from postroom.dispatch.core import Core
from postroom.dispatch.dispatcher import Dispatcher
from postroom.dispatch.journal import Journal
from postroom.dispatch.preparation import DeliveryWish, Preparation
from postroom.dispatch.run_ends import RunEnds
from postroom.dispatch.sinks import EventStream
from postroom.dispatch.submissions import MailboxDispatchStatus, MailboxSubmitResult, Submissions, submitted


class Foreground:
    """Submissions that somebody waits for."""

    def __init__(  # noqa: PLR0913 - the parts it works with
        self,
        core: Core,
        journal: Journal,
        ends: RunEnds,
        preparation: Preparation,
        dispatcher: Dispatcher,
        control: Control,
        queueing: Submissions,
    ) -> None:
        self._core = core
        self._journal = journal
        self._ends = ends
        self._preparation = preparation
        self._dispatcher = dispatcher
        self._control = control
        self._queueing = queueing

    async def submit(
        self, request: RunActivation, *, strategy: Strategy = Strategy.INTERRUPT
    ) -> tuple[MailboxSubmitResult, EventStream]:
        """Run this and stream its events; unless the strategy says otherwise now: the active run gives way.

        Raises:
            ActiveRunConflict: the active run did not give way; nothing was written.
            DeliveryBlocked: a barrier stands before the message; nothing was written.
            InvalidSubmission: the strategy makes it part of another run, whose events others read.
        """
        if strategy in (Strategy.STEER, Strategy.COLLECT):
            raise InvalidSubmission(f"a submission that streams events cannot {strategy}", value=strategy)
        if strategy in (Strategy.QUEUE, Strategy.REJECT):
            return await self._submit_in_turn(request, strategy)
        request = self._queueing.checked(request, background=False)
        if strategy is Strategy.ROLLBACK:
            request = await self._queueing.without_the_active(request)
        if request.trace.run_mode is RunMode.FOREGROUND:
            await self._refuse_barrier(request.thread_id)
        stream = EventStream(self._core.config.event_channel_capacity)
        async with self._wanting(request.thread_id):
            claimed = await self._claimed_now(request)
            self._dispatcher.begin_foreground(claimed, stream)
        return submitted(claimed, MailboxDispatchStatus.RUNNING), stream

    async def _submit_in_turn(
        self, request: RunActivation, strategy: Strategy
    ) -> tuple[MailboxSubmitResult, EventStream]:
        stream = EventStream(self._core.config.event_channel_capacity)
        dispatch_id = request.hints.dispatch_id or self._core.new_id()
        self._dispatcher.read_along(dispatch_id, stream)
        try:
            request = request.hinted(dispatch_id=dispatch_id)
            result = await self._queueing.submit_background(request, strategy=strategy)
        except BaseException:
            self._dispatcher.stop_reading(dispatch_id)
            raise
        if result.dispatch_id != dispatch_id:  # it joined another, whose events others read
            self._dispatcher.stop_reading(dispatch_id)
        return result, stream

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
        dispatch = self._preparation.dispatch_of(prepared)
        guarded = replace(dispatch, available_at=dispatch.available_at + INLINE_CLAIM_GUARD_MS)
        queued = await self._queueing.enqueued(guarded, prepared)
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
