"""Background work of a service; every task has an owner that sees how it ends, and tests control the time.

A `TaskGroup` cannot be opened by one task and closed by another, so a service owns a `Tasks` object. Work
that starts and ends in one task should use `TaskGroup`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from postroom.contracts.clock import Timer
from postroom.contracts.errors import MailboxClosed, PostroomError, StoreClosed, StoreError, StoreReadOnly
from postroom.log import get_logger

T = TypeVar("T")
F = TypeVar("F", bound=asyncio.Future[Any])
_LOG = get_logger(__name__)
FIRST_PAUSE_MS: Final = 50
MAX_PAUSE_MS: Final = 500
"""The longest pause in milliseconds between two attempts at a step while the store is unavailable."""


class SystemTimer:
    """A timer that waits in real time."""

    async def sleep(self, milliseconds: int) -> None:
        """Wait for a number of milliseconds."""
        await asyncio.sleep(max(milliseconds, 0) / 1000)


class Tasks:
    """Owns background tasks, logs their failures, and ends them in `close`."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._running: set[asyncio.Task[Any]] = set()
        self.closed = False
        """Whether the owner is closed, so that no task can be started."""

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> "asyncio.Task[Any]":
        """Run a coroutine in the background, and return its task.

        Raises:
            RuntimeError: The owner is closed, or no event loop is running.
        """
        if self.closed:
            work.close()
            raise RuntimeError(f"{self._owner} is closed")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}")
        self._running.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    async def complete(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """Return the result of a coroutine, which runs to its end even if the caller is cancelled.

        After `close`, the coroutine runs in the caller's task.

        Raises:
            MailboxClosed: `close` ended the work; it is unknown whether its change was stored.
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
            task.add_done_callback(self._unheard)  # the log reports the failure, because no caller gets it
            raise

    async def settle(self) -> None:
        """Wait for all tasks that are active now, except the caller's task."""
        this = asyncio.current_task()
        if running := {task for task in self._running if task is not this}:
            await asyncio.wait(running)

    def let_go(self, task: "asyncio.Task[Any]") -> None:
        """Stop waiting for a task that ignores its cancellation; a failure of the task is still logged."""
        self._running.discard(task)

    async def settled(self) -> None:
        """Wait until no task is active; tasks that start during the wait are included."""
        while self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        """Cancel all tasks, and return when they have ended; a second call has no effect."""
        self.closed = True
        this = asyncio.current_task()
        while others := {task for task in self._running if task is not this}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    def _unheard(self, task: "asyncio.Task[Any]") -> None:
        """Log the error of a task whose caller was cancelled."""
        if not task.cancelled() and isinstance(error := task.exception(), PostroomError):
            self._running.discard(task)
            _LOG.warning("caller.gone", task=task.get_name(), reason=error.describe())
        else:
            self._on_task_end(task)

    def _on_task_end(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("task.failed", task=task.get_name(), exc_info=error)


def unreported(work: F) -> F:
    """Keep the event loop from reporting a failure of `work` that nobody retrieves; return `work`."""
    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    return work


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread, and return its result.

    A cancelled caller still waits until the function returns.
    """
    work = unreported(asyncio.create_task(asyncio.to_thread(function)))
    try:
        return await asyncio.shield(work)
    finally:
        await asyncio.wait({work})


async def within(wanted: Coroutine[Any, Any, Any], most_ms: int, timer: Timer) -> bool:
    """Wait up to `most_ms` milliseconds for a coroutine; return whether the coroutine has ended.

    The coroutine is cancelled after that time. A failure of the coroutine is logged.
    """
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
    """Return the result of `step`, which is called again while the store is unavailable or read-only.

    The pause between two calls is 50 to 500 milliseconds. `step` may be called again after a commit whose
    reply was lost, and must be able to detect this.

    Raises:
        StoreError: The store is closed, `gives_up` returned True, or the failure is permanent.
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
        pause = min(pause * 2, MAX_PAUSE_MS)
