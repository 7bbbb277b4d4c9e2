"""Background work of a service: every task has an owner that sees its end, and time that a test can move.

A service that lives longer than one block, started by one task and closed by another, cannot hold a
`TaskGroup` open between the two. It owns a `Tasks` instead; inside one piece of work `TaskGroup` is the rule.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from postroom.contracts.clock import Timer
from postroom.contracts.errors import MailboxClosed, StoreClosed, StoreError, StoreReadOnly
from postroom.log import get_logger

T = TypeVar("T")
F = TypeVar("F", bound=asyncio.Future[Any])
_LOG = get_logger(__name__)
FIRST_PAUSE_MS: Final = 50
LONGEST_PAUSE_MS: Final = 500
"""Pauses between two attempts at a step while the store is unavailable."""


class SystemTimer:
    """The time of this process."""

    async def sleep(self, milliseconds: int) -> None:
        """Return when so much time has passed."""
        await asyncio.sleep(max(milliseconds, 0) / 1000)


class Tasks:
    """Owns tasks: each one's failure is logged, and none outlives `close`."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._running: set[asyncio.Task[Any]] = set()
        self.closed = False
        """Whether nothing can be started any more."""

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> "asyncio.Task[Any]":
        """Run `work` in the background.

        Raises:
            RuntimeError: closed, or no event loop runs.
        """
        if self.closed:
            work.close()
            raise RuntimeError(f"{self._owner} is closed")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def complete(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """Return the result of `work`. If the caller is cancelled, `work` still runs to its end.

        Use it for a change of the database whose next step is only known here: a caller that hangs up must
        not take that step with it. If `close` was called before, `work` runs in the caller's own task.

        Raises:
            MailboxClosed: `close` ended the work; whether its change is stored is not known.
        """
        if self.closed:
            return await work
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError as error:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise MailboxClosed(f"{self._owner} closed before {name} ended") from error
            task.add_done_callback(self._ended)  # no caller hears of a failure: the log does
            raise

    async def settle(self) -> None:
        """Return when all work that runs now has ended; work that starts later is not waited for."""
        this = asyncio.current_task()
        if running := {task for task in self._running if task is not this}:
            await asyncio.wait(running)

    def let_go(self, task: "asyncio.Task[Any]") -> None:
        """Wait for this one no more, which does not end when it is told to; its failure is logged still."""
        self._running.discard(task)

    async def settled(self) -> None:
        """Return when nothing runs any more, what is started meanwhile included."""
        while self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        """Cancel what runs and return when it has ended; harmless when done twice."""
        self.closed = True
        this = asyncio.current_task()
        while others := {task for task in self._running if task is not this}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("task.failed", task=task.get_name(), exc_info=error)


def unreported(work: F) -> F:
    """Return this work, whose failure is not reported when whoever waited for it was cancelled."""
    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    return work


async def in_thread(function: Callable[[], T]) -> T:
    """Return what `function` returns on a thread.

    A caller that is cancelled hears of that when the function has ended: a thread cannot be stopped.
    """
    work = unreported(asyncio.create_task(asyncio.to_thread(function)))
    try:
        return await asyncio.shield(work)
    finally:
        await asyncio.wait({work})


async def within(wanted: Coroutine[Any, Any, Any], most_ms: int, timer: Timer) -> bool:
    """Do what is wanted, for so long at most; say whether it came to its end. Its failure is logged."""
    work = Tasks("bounded work")
    try:
        alarm = work.start(timer.sleep(most_ms), name="time-out")
        done = work.start(wanted, name="work")
        await asyncio.wait({alarm, done}, return_when=asyncio.FIRST_COMPLETED)
        return done.done()
    finally:
        await work.close()


async def retried(
    step: Callable[[], Awaitable[T]], timer: Timer, *, gives_up: Callable[[], bool] = lambda: False
) -> T:
    """Return what `step` returns; call it again while the store is away or read-only, after 50 to 500 ms.

    A step is called again also after a lost reply: it must find out whether it was written before. A store is
    read-only for a time if its server is a standby, or if a right is missing.

    Raises:
        StoreError: The store is closed, `gives_up` returned True, or the failure does not pass by itself.
    """
    pause = FIRST_PAUSE_MS
    while True:
        try:
            return await step()
        except StoreError as error:
            may_pass = error.retryable or isinstance(error, StoreReadOnly)
            if not may_pass or isinstance(error, StoreClosed) or gives_up():
                raise
        await timer.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_MS)
