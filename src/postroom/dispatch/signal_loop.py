"""Takes dispatch signals, for stores whose engine has a work queue of them.

claimed, busy ──▶ ack: a busy thread looks for its next by itself
the store fails ─▶ nack      blocked by another's claim ─▶ nack, later and later
"""

import asyncio
from collections.abc import Sequence

import structlog

from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import PostroomError
from postroom.contracts.signals import DispatchSignal, DispatchSignals
from postroom.dispatch.config import SignalConfig
from postroom.dispatch.core import Core
from postroom.dispatch.dispatcher import Dispatcher
from postroom.dispatch.outcome import DispatchAttempt
from postroom.dispatch.workers import WorkerStatus

_LOG = structlog.get_logger(__name__)
_MOST_DOUBLINGS = 16


def dispatch_signal_blocked_nack_delay(attempts: int | None, config: SignalConfig | None = None) -> int:
    """Return after how many milliseconds a signal comes again whose dispatch another's claim blocks."""
    config = config or SignalConfig()
    doublings = min(max((attempts or 1) - 1, 0), _MOST_DOUBLINGS)
    return min(config.nack_base_ms << doublings, config.nack_max_ms)


class SignalLoop:
    """Turns signals into tries to start work."""

    def __init__(
        self, core: Core, dispatcher: Dispatcher, signals: DispatchSignals, config: SignalConfig
    ) -> None:
        self._core = core
        self._dispatcher = dispatcher
        self._signals = signals
        self._config = config
        self._handlers = asyncio.Semaphore(config.handlers)

    async def serve(self) -> None:
        """Take signals until cancelled; what fails is tried again after a pause."""
        while True:
            try:
                await self.serve_once()
            except PostroomError as error:
                _LOG.warning("signals.not_pulled", reason=error.describe())
                await self._core.timer.sleep(self._config.error_pause_ms)

    async def serve_once(self) -> int:
        """Take and handle one batch; return how many signals it held.

        Raises:
            StoreError: the queue of signals failed.
        """
        batch = await self._core.observed(
            "signal_pull", self._signals.pull(self._config.batch, wait_ms=self._config.wait_ms)
        )
        self._core.metrics.signal("pulled", len(batch))
        by_thread: dict[str, list[DispatchSignal]] = {}
        for signal in batch:
            by_thread.setdefault(signal.thread_id, []).append(signal)
        async with asyncio.TaskGroup() as group:
            for signals in by_thread.values():
                group.create_task(self._handle_all(signals))
        return len(batch)

    async def _handle_all(self, signals: Sequence[DispatchSignal]) -> None:
        """Handle the signals of one thread, one after another: each sees what came of the one before."""
        async with self._handlers:
            for signal in signals:
                await self._handle(signal)

    async def _handle(self, signal: DispatchSignal) -> None:
        attempts = signal.receipt.redelivery_attempts
        if attempts is not None and attempts > 1:
            self._core.metrics.signal("redelivery")
        worker = self._dispatcher.workers.get_or_create(signal.thread_id)
        attempt = await self._dispatcher.try_dispatch_next(signal.thread_id)
        undecided = attempt is DispatchAttempt.BUSY and worker.status is WorkerStatus.CLAIMING
        if attempt is DispatchAttempt.TRANSIENT_ERROR:
            await self._nack(signal, 0)
        elif attempt is DispatchAttempt.NO_ELIGIBLE or undecided:
            await self._answer_blocked(signal, attempts)
        else:
            await self._ack(signal)

    async def _answer_blocked(self, signal: DispatchSignal, attempts: int | None) -> None:
        try:
            row = await self._core.dispatches.load_dispatch(signal.dispatch_id)
        except PostroomError as error:
            _LOG.warning("signal.not_looked_up", dispatch_id=signal.dispatch_id, reason=error.describe())
            await self._nack(signal, 0)
            return
        waits = row is not None and row.status is RunDispatchStatus.QUEUED
        if waits and row is not None and row.available_at <= self._core.now():
            await self._nack(signal, dispatch_signal_blocked_nack_delay(attempts, self._config))
        else:
            await self._ack(signal)

    async def _ack(self, signal: DispatchSignal) -> None:
        self._core.metrics.signal("ack")
        await self._core.observed("signal_ack", signal.receipt.ack())

    async def _nack(self, signal: DispatchSignal, delay_ms: int) -> None:
        self._core.metrics.signal("delayed_nack" if delay_ms else "nack")
        await self._core.observed("signal_nack", signal.receipt.nack(delay_ms))
