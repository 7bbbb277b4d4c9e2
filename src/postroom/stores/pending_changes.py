"""Changes and looks on their way from callers on event loops to threads, and answers on their way back."""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from postroom.contracts.errors import PostroomError, StoreClosed
from postroom.log import get_logger

_LOG = get_logger(__name__)

S = TypeVar("S")
T = TypeVar("T")

GROUP_LIMIT: Final = 64
"""Most changes of one commit: more would gain little and keep the first of them waiting."""


@dataclass(slots=True, eq=False)
class PendingChange(Generic[S]):
    """One change, who waits for it, and what came of it."""

    run: Callable[[S], Any]
    future: "asyncio.Future[Any] | None" = None
    """None where nobody waits."""
    committed: Callable[[], None] | None = None
    key: str = ""
    value: Any = None
    error: BaseException | None = None

    def perform(self, given: S) -> None:
        """Run it, and keep what it gave or raised for its caller; on the thread."""
        try:
            self.value = self.run(given)
        except StopIteration:
            self.error = no_stop_iteration()
        except BaseException as error:  # handed to the caller: it is the caller's function that raised
            self.error = error


class PendingChanges(Generic[S]):
    """A queue of changes for one thread."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[PendingChange[S] | None] = SimpleQueue()
        """Changes; None behind the last one."""
        self._gate = threading.Lock()
        self._closed = False

    async def submit(
        self, run: Callable[[S], T], *, key: str = "", committed: Callable[[], None] | None = None
    ) -> T:
        """Have `run` done by the thread, and return once what it wrote is durable.

        `committed` is called on the caller's event loop then, also when the caller was cancelled.

        Raises:
            StoreClosed: this process has closed the store.
            BaseException: what came of it.
        """
        future = asyncio.get_running_loop().create_future()
        self.put(PendingChange(run=run, future=future, committed=committed, key=key))
        result: T = await future
        return result

    def put(self, change: PendingChange[S]) -> None:
        """Have a change done, and wait for nothing.

        Raises:
            StoreClosed: this process has closed the store.
        """
        with self._gate:
            if self._closed:
                raise StoreClosed("the database is closed")
            self.queue.put(change)

    def stop(self) -> None:
        """Take nothing more; the thread gets None after the last change. Harmless when done twice."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self.queue.put(None)

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits."""
        return self.queue.empty()

    def group(self, first: PendingChange[S]) -> list[PendingChange[S]]:
        """Return a change together with those that wait behind it, as many as share a commit."""
        group = [first]
        while len(group) < GROUP_LIMIT:
            try:
                change = self.queue.get_nowait()
            except Empty:
                break
            if change is None:
                self.queue.put(None)
                break
            group.append(change)
        return group


class LookingThreads:
    """A few threads that do what callers on event loops hand in, one thing each at a time.

    `asyncio` has such a pool; its futures of two kinds cost a look more than what most looks do.
    """

    def __init__(self, count: int) -> None:
        self._pending = PendingChanges[None]()
        weakref.finalize(self, self._pending.stop)  # those of a store that nobody closed end as well
        self._threads = [
            threading.Thread(target=_look_on, args=(self._pending,), name="postroom-reader", daemon=True)
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    async def submit(self, look: Callable[[], T]) -> T:
        """Have `look` done by one of the threads and return its answer.

        Raises:
            StoreClosed: this process has closed the store.
            BaseException: what came of it.
        """
        return await self._pending.submit(lambda _: look())

    def begin(self, look: Callable[[], object]) -> None:
        """Have `look` done, and wait for nothing; that it fails is logged.

        Raises:
            StoreClosed: this process has closed the store.
        """
        self._pending.put(PendingChange(run=lambda _: look()))

    def close(self) -> None:
        """Take nothing more, and wait until what was handed in is done; harmless when done twice."""
        self._pending.stop()
        for thread in self._threads:
            thread.join()


def _look_on(pending: PendingChanges[None]) -> None:
    while (look := pending.queue.get()) is not None:
        if look.future is None or not look.future.cancelled():
            look.perform(None)
            answer((look,))
        del look  # the next may be long in coming
    pending.queue.put(None)  # for the next thread


def no_stop_iteration() -> RuntimeError:
    """Return what a caller gets instead: a future refuses to hold one, and would be awaited for ever."""
    return RuntimeError("a function given to the store raised StopIteration")


def fail(group: Iterable[PendingChange[Any]], error: PostroomError) -> None:
    """Let every change that did not raise by itself end with this error."""
    for change in group:
        if change.error is None:
            # One instance a caller: each raises it, and tracebacks are written into it.
            change.error = type(error)(
                error.message, value=error.value, remedy=error.remedy, details=error.details
            )
            change.error.__cause__ = error.__cause__
            change.error.is_told = error.is_told


def answer(group: Iterable[PendingChange[Any]]) -> None:
    """Wake the callers, each loop once a group."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[PendingChange[Any], asyncio.Future[Any]]]] = {}
    for change in group:
        if change.future is not None:
            by_loop.setdefault(change.future.get_loop(), []).append((change, change.future))
        elif change.error is not None:
            _LOG.error("store.failed_for_nobody", reason=repr(change.error))
    for loop, changes in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, changes)
        except RuntimeError:  # the loop is closed: nobody waits any more, and what was written stays written
            continue


def _settle(changes: "list[tuple[PendingChange[Any], asyncio.Future[Any]]]") -> None:
    """Answer all callers, then call each `committed`; what one raises, the loop reports."""
    for change, future in changes:
        if future.done():
            continue  # the caller was cancelled
        if change.error is None:
            future.set_result(change.value)
        else:
            future.set_exception(change.error)
    with contextlib.ExitStack() as stack:  # it calls the last one first
        for change, _ in reversed(changes):
            if change.error is None and change.committed is not None:
                stack.callback(change.committed)
