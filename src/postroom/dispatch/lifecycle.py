"""Starts and stops a mailbox's background work: recovery first, then the rounds.

stopped ──▶ starting (recovery) ──▶ running ──▶ stopping ──▶ stopped
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import structlog

from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import LifecycleBusy, PostroomError
from postroom.dispatch.config import MailboxLifecycleConfig
from postroom.dispatch.core import Core
from postroom.dispatch.dispatcher import Dispatcher
from postroom.dispatch.maintenance import Maintenance
from postroom.dispatch.recovery import Recovery

_LOG = structlog.get_logger(__name__)


class Lifecycle:
    """The background work of one mailbox."""

    def __init__(
        self,
        core: Core,
        recovery: Recovery,
        maintenance: Maintenance,
        dispatcher: Dispatcher,
        serve_signals: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._core = core
        self._recovery = recovery
        self._maintenance = maintenance
        self._dispatcher = dispatcher
        self._serve_signals = serve_signals
        self._transition = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    @property
    def is_running(self) -> bool:
        """Whether the rounds are made."""
        return bool(self._tasks)

    def start(self, config: MailboxLifecycleConfig) -> "MailboxLifecycleHandle":
        """Start in the background, recovery first; harmless when it runs already.

        Raises:
            LifecycleBusy: it is being started or stopped at this moment.
        """
        if self._stopping or (not self._tasks and self._transition.locked()):
            raise LifecycleBusy("mailbox lifecycle transition is already running")
        if not self._tasks:
            self._begin(config, recover=True)
        return MailboxLifecycleHandle(self)

    async def start_ready(self, config: MailboxLifecycleConfig) -> "MailboxLifecycleHandle":
        """Recover, then start; return when both are done. Harmless when it runs already.

        Raises:
            StoreError: recovery failed as often as it was to be tried; nothing runs.
        """
        async with self._transition:
            if not self._tasks:
                await self._recovered(config)
                self._begin(config, recover=False)
        return MailboxLifecycleHandle(self)

    async def shutdown(self) -> None:
        """Stop; when it returns no round is being made and no callback is called any more."""
        async with self._transition:
            self._stopping = True
            try:
                await self._ended()
            finally:
                self._stopping = False

    def abort(self) -> None:
        """Stop without waiting."""
        for task in self._tasks:
            task.cancel()
        self._rest()

    async def _ended(self) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._rest()

    def _rest(self) -> None:
        self._tasks.clear()
        self._dispatcher.is_polled = False

    def _begin(self, config: MailboxLifecycleConfig, *, recover: bool) -> None:
        settings = self._core.config
        self._dispatcher.is_polled = True
        rounds: dict[str, Callable[[], Awaitable[None]]] = {
            "poll": self._poll,
            "sweep": lambda: self._rounds(settings.sweep_interval, self._maintenance.sweep),
            "garbage": lambda: self._rounds(settings.gc_interval, lambda: self._collect(config)),
        }
        if self._serve_signals is not None:
            rounds["signals"] = self._serve_signals
        if recover:
            rounds["recovery"] = lambda: self._recovered_or_logged(config)
        for name, serve in rounds.items():
            self._tasks.add(self._core.tasks.start(self._kept_up(name, serve), name=name))

    async def _kept_up(self, name: str, serve: Callable[[], Awaitable[None]]) -> None:
        """Serve; after a failure that nobody foresaw, again: one bad round must not be the last."""
        while True:
            try:
                return await serve()
            except Exception:
                _LOG.exception("mailbox.round_failed", round=name)
            await self._core.timer.sleep(milliseconds(self._core.config.poll_interval))

    async def _poll(self) -> None:
        """Start what is due, as soon as it is; a store that is out of order is asked again later."""
        while True:
            try:
                if not await self._maintenance.poll():
                    await self._maintenance.until_due()
                else:
                    await asyncio.sleep(0)
            except PostroomError as error:
                _LOG.warning("mailbox.poll_failed", reason=error.describe())
                await self._core.timer.sleep(milliseconds(self._core.config.poll_interval))

    async def _rounds(self, interval: timedelta, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._core.timer.sleep(milliseconds(interval))
            await work()

    async def _collect(self, config: MailboxLifecycleConfig) -> None:
        await self._maintenance.collect_garbage()
        if config.maintenance_callback is not None:
            config.maintenance_callback()

    async def _recovered(self, config: MailboxLifecycleConfig) -> None:
        recovery = config.startup_recovery
        await self._core.timer.sleep(milliseconds(config.startup_delay))
        for attempt in range(1, recovery.max_attempts + 1):
            try:
                taken_up = await self._recovery.recover()
            except PostroomError as error:
                _LOG.warning("mailbox.recovery_failed", attempt=attempt, reason=error.describe())
                if attempt == recovery.max_attempts:
                    raise
                await self._core.timer.sleep(milliseconds(recovery.retry_delay))
            else:
                if taken_up:
                    _LOG.info("mailbox.recovered", taken_up=taken_up)
                return

    async def _recovered_or_logged(self, config: MailboxLifecycleConfig) -> None:
        try:
            await self._recovered(config)
        except PostroomError as error:
            _LOG.error("mailbox.not_recovered", reason=error.describe())


class MailboxLifecycleHandle:
    """A hold on the lifecycle. Letting go of it stops nothing."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    @property
    def is_running(self) -> bool:
        """Whether the rounds are made."""
        return self._lifecycle.is_running

    def abort(self) -> None:
        """Stop without waiting."""
        self._lifecycle.abort()

    async def shutdown(self) -> None:
        """Stop; when it returns no round is being made and no callback is called any more."""
        await self._lifecycle.shutdown()
