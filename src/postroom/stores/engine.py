"""The port to a database engine: transactions, maintenance of the database, and notifications."""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

from postroom.contracts.clock import Clock
from postroom.contracts.errors import PostroomError, StoreClosed
from postroom.log import get_logger
from postroom.stores.outline import Outline
from postroom.stores.sql_transaction import SqlTransaction

_LOG = get_logger(__name__)

S = TypeVar("S")
T = TypeVar("T")

GROUP_LIMIT: Final = 64
"""Maximum number of changes in one commit; more changes would gain little and delay the first one."""


@dataclass(slots=True, eq=False)
class PendingChange(Generic[S]):
    """A change with its caller and its result."""

    run: Callable[[S], Any]
    future: "asyncio.Future[Any] | None" = None
    """The future of the caller, or None if no caller waits."""
    committed: Callable[[], None] | None = None
    key: str = ""
    value: Any = None
    error: BaseException | None = None

    def perform(self, given: S) -> None:
        """Make the change in the engine's thread; store its result or error for the caller."""
        try:
            self.value = self.run(given)
        except StopIteration:
            self.error = no_stop_iteration()
        except BaseException as error:  # the error is for the caller, whose function raised it
            self.error = error


class PendingChanges(Generic[S]):
    """A queue of changes that one thread makes."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[PendingChange[S] | None] = SimpleQueue()
        """The queued changes; None marks the end of the queue."""
        self._gate = threading.Lock()
        self._closed = False

    async def submit(
        self, run: Callable[[S], T], *, key: str = "", committed: Callable[[], None] | None = None
    ) -> T:
        """Call `run` in the thread, and return its result when its writes are durable.

        When the writes are durable, `committed` is called on the caller's event loop, even if the caller was
        cancelled.

        Raises:
            StoreClosed: This process has closed the store.
            BaseException: The error that `run` raised.
        """
        future = asyncio.get_running_loop().create_future()
        self.put(PendingChange(run=run, future=future, committed=committed, key=key))
        result: T = await future
        return result

    def put(self, change: PendingChange[S]) -> None:
        """Queue a change without waiting for it.

        Raises:
            StoreClosed: This process has closed the store.
        """
        with self._gate:
            if self._closed:
                raise StoreClosed("the database is closed")
            self.queue.put(change)

    def stop(self) -> None:
        """Stop accepting changes.

        After the last change, the thread receives None. A repeated call has no effect.
        """
        with self._gate:
            if not self._closed:
                self._closed = True
                self.queue.put(None)

    @property
    def is_empty(self) -> bool:
        """Whether the queue is empty."""
        return self.queue.empty()

    def group(self, first: PendingChange[S]) -> list[PendingChange[S]]:
        """Return a change and the changes after it, up to the maximum for one commit."""
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
    """A few threads that call functions for event loops; each thread runs one function at a time.

    The thread pool of `asyncio` has more overhead than most reads, because it uses two kinds of futures.
    """

    def __init__(self, count: int) -> None:
        self._pending = PendingChanges[None]()
        self.submit = self._pending.submit
        """Calls a function in one of the threads, and returns its result or raises its error."""
        weakref.finalize(self, self._pending.stop)  # the threads end even if the store is never closed
        self._threads = [
            threading.Thread(target=_look_on, args=(self._pending,), name="postroom-reader", daemon=True)
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, look: Callable[[None], object]) -> None:
        """Call `look` in a thread without waiting for it; a failure is logged.

        Raises:
            StoreClosed: This process has closed the store.
        """
        self._pending.put(PendingChange(run=look))

    def close(self) -> None:
        """Stop accepting work, and wait until the queued work is done; a repeated call has no effect."""
        self._pending.stop()
        for thread in self._threads:
            thread.join()


def _look_on(pending: PendingChanges[None]) -> None:
    while (look := pending.queue.get()) is not None:
        if look.future is None or not look.future.cancelled():
            look.perform(None)
            answer((look,))
        del look  # the next function may arrive much later
    pending.queue.put(None)  # for the next thread


def no_stop_iteration() -> RuntimeError:
    """Return the error that replaces a StopIteration.

    A future cannot hold a StopIteration, so its caller would wait forever.
    """
    return RuntimeError("a function given to the store raised StopIteration")


def fail(group: Iterable[PendingChange[Any]], error: PostroomError) -> None:
    """Set this error for each change that has not raised one itself."""
    for change in group:
        if change.error is None:
            # Each caller gets its own instance, because raising an error writes a traceback into it.
            change.error = type(error)(
                error.message, value=error.value, remedy=error.remedy, details=error.details
            )
            change.error.__cause__ = error.__cause__
            change.error.is_told = error.is_told


def answer(group: Iterable[PendingChange[Any]]) -> None:
    """Return the results to the callers; each event loop is woken only once for the group."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[PendingChange[Any], asyncio.Future[Any]]]] = {}
    for change in group:
        if change.future is not None:
            by_loop.setdefault(change.future.get_loop(), []).append((change, change.future))
        elif change.error is not None:
            _LOG.error("store.failed_for_nobody", reason=repr(change.error))
    for loop, changes in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, changes)
        except RuntimeError:  # the loop is closed, so no caller waits; the writes are stored
            continue


def _settle(changes: "list[tuple[PendingChange[Any], asyncio.Future[Any]]]") -> None:
    """Return the results to all callers, and then call each `committed`.

    If a `committed` raises an error, the event loop reports the error.
    """
    for change, future in changes:
        if future.done():
            continue  # the caller was cancelled
        if change.error is None:
            future.set_result(change.value)
        else:
            future.set_exception(change.error)
    with contextlib.ExitStack() as stack:  # the stack calls the last one first
        for change, _ in reversed(changes):
            if change.error is None and change.committed is not None:
                stack.callback(change.committed)


class Engine(Protocol):
    """Runs functions within a transaction, in its own threads."""

    @property
    def identity(self) -> str:
        """The name of the database to which the engine writes."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of the database."""
        ...

    @property
    def release(self) -> str:
        """The name and the version of the database, as people see them."""
        ...

    @property
    def checks_pages(self) -> bool:
        """Whether each page has a checksum, which shows damage when the page is read."""
        ...

    @property
    def grouping(self) -> tuple[int, int]:
        """The number of commits so far, and the number of changes that they contained."""
        ...

    async def read(self, look: Callable[[SqlTransaction], T]) -> T:
        """Call `look` with one consistent view of the data, and return its result.

        Raises:
            StoreError: The read failed.
        """
        ...

    async def write(
        self,
        change: Callable[[SqlTransaction], T],
        *,
        key: str = "",
        committed: Callable[[], None] | None = None,
    ) -> T:
        """Call `change` in a transaction, and return when it is durable; `change` may be called again.

        Changes with the same key are made in order of arrival. When the change is durable, `committed` is
        called on the caller's event loop, even if the caller was cancelled.

        Raises:
            StoreError: The change was rolled back, so nothing was written.
            CommitUnknown: It is unknown whether the change was written.
        """
        ...

    async def settle(self) -> None:
        """Update the indexes that are not updated in each commit."""
        ...

    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        """Write a consistent copy of the database; unless `is_read_back` is False, verify the copy."""
        ...

    async def check(self) -> list[str]:
        """Read the whole database, and return its problems."""
        ...

    async def indexes_that_lack_rows(self) -> list[str]:
        """Return the indexes that lack rows and can be rebuilt from their tables without losing data."""
        ...

    async def write_again(self, indexes: Sequence[str]) -> None:
        """Rebuild the indexes with the given names from their tables.

        Raises:
            StoreCorrupt: A problem remains, so nothing was changed.
        """
        ...

    async def outline(self) -> Outline:
        """Return the schema of the database, without its data."""
        ...

    def take_room(self, sql: SqlTransaction, size: int) -> None:
        """Allocate `size` bytes on the disk and free them again; 0 means the size of a few rows.

        Raises:
            StoreFull: There is not enough space.
        """
        ...

    def refuse_without_rights(self, sql: SqlTransaction) -> None:
        """Raise an error if the user lacks a permission on a table; one query checks all tables.

        Raises:
            StoreReadOnly: A permission is missing; the remedy states how to grant it.
        """
        ...

    def share(self, topics: Collection[str]) -> None:
        """Notify other processes in the background that the data of these topics has changed."""
        ...

    def close(self) -> None:
        """Finish submitted work and close the engine. The call may block; a second call has no effect."""
        ...
