"""Starts work on threads, one run each at a time, and goes on with the next when one has ended."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import PostroomError
from postroom.dispatch.attempt import AttemptEnd, Begun
from postroom.dispatch.core import Core
from postroom.dispatch.execution import Execution
from postroom.dispatch.outcome import DispatchAttempt
from postroom.dispatch.sinks import EventStream, ReconnectableEventSink
from postroom.dispatch.workers import MailboxWorker, Slots, Workers, WorkerStatus

_LOG = structlog.get_logger(__name__)


class Dispatcher:
    """Claims what is due and has it executed, within the bounds that were set."""

    def __init__(self, core: Core, workers: Workers, execution: Execution) -> None:
        self._core = core
        self._execution = execution
        self.workers = workers
        self.slots = Slots(core.config.max_concurrent_runs, core.config.max_concurrent_runs_per_tenant)
        self.accepting = True
        """False while the mailbox drains: nothing new is claimed."""
        self.after_run: Callable[[str], Awaitable[None]] | None = None
        """Called when a run has ended that was given input at work, before the next is looked for."""
        self._readers: dict[str, ReconnectableEventSink] = {}
        """Who reads along when a queued dispatch executes here, by dispatch."""
        self._executing = 0
        self._idle = asyncio.Event()
        self._freed = asyncio.Event()
        self._was_full = False
        self.is_polled = False
        """Whether somebody looks for due work on all threads; a freed slot is used without a try here."""

    async def try_dispatch_next(self, thread_id: str) -> DispatchAttempt:
        """Claim the thread's next due dispatch and start it, if nothing of the thread is at work here."""
        worker = self.workers.get(thread_id)
        if worker is None:
            return DispatchAttempt.NO_ELIGIBLE
        if not self.reserve(thread_id, worker):
            return DispatchAttempt.BUSY
        try:
            claimed = await self._core.observed("claim", self._claim(thread_id))
        except PostroomError as error:
            self.unreserve(worker)
            _LOG.warning("dispatch.not_claimed", thread_id=thread_id, reason=error.describe())
            return DispatchAttempt.TRANSIENT_ERROR
        except BaseException:
            self.unreserve(worker)
            raise
        if claimed is not None:
            return await self.begin_or_release(claimed)
        if self.unreserve(worker):
            return await self.try_dispatch_next(thread_id)
        return DispatchAttempt.NO_ELIGIBLE

    def reserve(self, thread_id: str, worker: MailboxWorker, tenant: str | None = None) -> bool:
        """Take the thread's worker and a slot for a claim; False when either is taken. No await within."""
        worker.is_wanted = worker.status is WorkerStatus.CLAIMING
        if not self.accepting or worker.status is not WorkerStatus.IDLE or worker.foreground:
            return False
        if not self.slots.take(thread_id, tenant or worker.tenant or None):
            self._core.metrics.waiting_threads.set(len(self.slots))
            return False
        worker.status, worker.tenant = WorkerStatus.CLAIMING, tenant or worker.tenant
        return True

    def unreserve(self, worker: MailboxWorker) -> bool:
        """Give back what `reserve` took; say whether somebody wanted it meanwhile and has to look again."""
        wanted, worker.is_wanted = worker.is_wanted, False
        if worker.status is WorkerStatus.CLAIMING:
            worker.status = WorkerStatus.IDLE
            self.slots.give(worker.tenant)
        return wanted

    async def begin_or_release(self, claimed: RunDispatch, begun: Begun | None = None) -> DispatchAttempt:
        """Execute what was claimed under a reservation, or give it back when its tenant is at its bound."""
        worker = self.workers.get_or_create(claimed.thread_id)
        if not self.slots.move(worker.tenant, claimed.tenant):
            self.slots.stand_in_line(claimed.thread_id, claimed.tenant)
            self.unreserve(worker)
            worker.tenant = claimed.tenant
            await self._core.observed("release", self._core.dispatches.release(claimed.claim_proof))
            return DispatchAttempt.BUSY
        reader = self._readers.pop(claimed.dispatch_id, ReconnectableEventSink())
        self._begin(worker, claimed, reader, begun)
        return DispatchAttempt.CLAIMED

    def begin_foreground(self, claimed: RunDispatch, stream: EventStream | None) -> None:
        """Execute what a person waits for, whatever else is at work."""
        worker = self.workers.get_or_create(claimed.thread_id)
        self.slots.overdraw(claimed.tenant)
        if worker.status is WorkerStatus.CLAIMING:
            self.slots.give(worker.tenant)
        self._begin(worker, claimed, ReconnectableEventSink(stream))

    def read_along(self, dispatch_id: str, stream: EventStream) -> None:
        """Stream the events of a dispatch that is about to be queued, when it executes here."""
        self._readers[dispatch_id] = ReconnectableEventSink(stream)

    def stop_reading(self, dispatch_id: str) -> None:
        """Close the stream of a dispatch that will not execute here after all."""
        reader = self._readers.pop(dispatch_id, None)
        if reader is not None:
            reader.close()

    def reconnect(self, thread_id: str, stream: EventStream) -> bool:
        """Pass the events of the thread's run on to this reader; False when none executes here."""
        worker = self.workers.get(thread_id)
        if worker is None or not worker.is_running or worker.sink is None:
            return False
        worker.sink.reconnect(stream)
        return True

    async def next_in_line(self) -> None:
        """Give free slots to the threads that have waited longest."""
        while (thread_id := self.slots.next_in_line()) is not None:
            if await self.try_dispatch_next(thread_id) is DispatchAttempt.BUSY and self.slots.waits(
                thread_id
            ):
                break
        self._core.metrics.waiting_threads.set(len(self.slots))

    async def forget_ended_readers(self) -> None:
        """Let go of readers whose run is tried again elsewhere, or not at all."""
        for dispatch_id in list(self._readers):
            row = await self._core.dispatches.load_dispatch(dispatch_id)
            if row is None or row.status is not RunDispatchStatus.QUEUED:
                self.stop_reading(dispatch_id)

    async def slot_freed(self) -> None:
        """Return when a run has ended here since the last call."""
        await self._freed.wait()
        self._freed.clear()

    async def idle(self) -> None:
        """Return when nothing executes here."""
        while self._executing:
            self._idle.clear()
            await self._idle.wait()

    async def _claim(self, thread_id: str) -> RunDispatch | None:
        core = self._core
        return await core.dispatches.claim(thread_id, core.consumer_id, lease_ms=core.config.lease_ms)

    def _begin(
        self,
        worker: MailboxWorker,
        claimed: RunDispatch,
        sink: ReconnectableEventSink,
        begun: Begun | None = None,
    ) -> None:
        worker.begin(claimed.dispatch_id, claimed.run_id, claimed.tenant, sink)
        self._executing += 1
        execution = self._execute(worker, claimed, sink, begun)
        self._core.tasks.start(execution, name=f"dispatch {claimed.dispatch_id}")

    async def _execute(
        self,
        worker: MailboxWorker,
        claimed: RunDispatch,
        sink: ReconnectableEventSink,
        begun: Begun | None,
    ) -> None:
        end = AttemptEnd()
        try:
            try:
                end = await self._execution.run(claimed, sink, begun)
            finally:
                self._rest(worker, claimed)
                if end.comes_again:
                    self._readers[claimed.dispatch_id] = sink
                else:
                    sink.close()
            await self._go_on(claimed.thread_id, look=end.leaves_waiting and not end.comes_again)
        finally:
            self._executing -= 1
            self._idle.set()

    def _rest(self, worker: MailboxWorker, ended: RunDispatch) -> None:
        """Free the worker, unless it runs something newer by now."""
        if worker.dispatch_id == ended.dispatch_id:
            worker.rest()
        self._was_full = not self.slots.free
        self.slots.give(ended.tenant)
        self._freed.set()

    async def _go_on(self, thread_id: str, *, look: bool) -> None:
        """Look for the thread's next work; behind those that wait for a slot."""
        if self.after_run is not None and look:
            await self.after_run(thread_id)
        if not self.accepting:
            return
        if len(self.slots):
            self.slots.stand_in_line(thread_id, None)
            await self.next_in_line()
        elif not (self._was_full and self.is_polled):
            await self.try_dispatch_next(thread_id)
