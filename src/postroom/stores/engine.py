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
    """A change that waits for a commit, with the result and the caller of the change."""

    run: Callable[[S], Any]
    future: "asyncio.Future[Any] | None" = None
    """The future of the caller, or None if no caller waits."""
    committed: Callable[[], None] | None = None
    key: str = ""
    value: Any = None
    error: BaseException | None = None

    def perform(self, given: S) -> None:
        """Make the change, and store its result or its error."""
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

        `committed` is called on the caller's event loop after the commit, even if the caller was cancelled.

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
        """Reject new changes; a second call has no effect.

        The thread receives None after the last queued change.
        """
        with self._gate:
            if not self._closed:
                self._closed = True
                self.queue.put(None)

    @property
    def is_empty(self) -> bool:
        """Whether the queue contains no changes."""
        return self.queue.empty()

    def group(self, first: PendingChange[S]) -> list[PendingChange[S]]:
        """Return the change `first` and the next queued changes, together at most `GROUP_LIMIT`."""
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
    """Threads that call functions on behalf of event loops."""

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
        """Call `look` in a thread without waiting for the result; errors are logged.

        Raises:
            StoreClosed: This process has closed the store.
        """
        self._pending.put(PendingChange(run=look))

    def close(self) -> None:
        """Reject new calls, and wait for the queued calls; a second call has no effect."""
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
    """Return the error that replaces a StopIteration, which a future cannot hold."""
    return RuntimeError("a function given to the store raised StopIteration")


def fail(group: Iterable[PendingChange[Any]], error: PostroomError) -> None:
    """Set a copy of `error` on each change that has no error yet."""
    for change in group:
        if change.error is None:
            # Each caller gets its own instance, because raising an error writes a traceback into it.
            change.error = type(error)(
                error.message, value=error.value, remedy=error.remedy, details=error.details
            )
            change.error.__cause__ = error.__cause__
            change.error.is_told = error.is_told


def answer(group: Iterable[PendingChange[Any]]) -> None:
    """Pass the result or the error of each change to its caller."""
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
    """Return the results to all callers, and then call the `committed` functions."""
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
    """A database engine, which runs functions in transactions."""

    @property
    def identity(self) -> str:
        """The name of the database."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of the database."""
        ...

    @property
    def release(self) -> str:
        """The product name and the version of the database server or library."""
        ...

    @property
    def checks_pages(self) -> bool:
        """Whether each page of the database has a checksum."""
        ...

    @property
    def grouping(self) -> tuple[int, int]:
        """The number of commits, and the number of committed changes."""
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
        """Call `change` in a transaction, and return its result when the writes are durable.

        The engine may call `change` more than once. Changes with equal keys are made in order of arrival.
        `committed` is called on the caller's event loop after the commit, even if the caller was cancelled.

        Raises:
            StoreError: The change was rolled back, so nothing was written.
            CommitUnknown: It is unknown whether the change was written.
        """
        ...

    async def settle(self) -> None:
        """Bring the search index and the lists of threads up to date."""
        ...

    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        """Write a consistent copy of the database to `target`.

        With `is_read_back`, the copy is read and checked.
        """
        ...

    async def check(self) -> list[str]:
        """Read the whole database, and return the list of its problems."""
        ...

    async def indexes_that_lack_rows(self) -> list[str]:
        """Return the names of the indexes that lack rows and can be rebuilt without losing data."""
        ...

    async def write_again(self, indexes: Sequence[str]) -> None:
        """Rebuild the named indexes from their tables.

        Raises:
            StoreCorrupt: A problem remains, so nothing was changed.
        """
        ...

    async def outline(self) -> Outline:
        """Return the schema of the database, without its data."""
        ...

    def take_room(self, sql: SqlTransaction, size: int) -> None:
        """Check that the disk has `size` free bytes; 0 means the size of a few rows.

        Raises:
            StoreFull: There is not enough space.
        """
        ...

    def refuse_without_rights(self, sql: SqlTransaction) -> None:
        """Check that the database user has all required permissions on the tables.

        Raises:
            StoreReadOnly: A permission is missing; the remedy states how to grant it.
        """
        ...

    def share(self, topics: Collection[str]) -> None:
        """Notify other processes in the background that the data of `topics` has changed."""
        ...

    def close(self) -> None:
        """Finish the submitted work and close the engine; a second call has no effect.

        The call blocks until the work is done.
        """
        ...
