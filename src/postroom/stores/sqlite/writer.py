"""The one thread that writes: callers hand it changes, it commits them in groups and then answers.

    callers ──▶ queue ──▶ BEGIN · SAVEPOINT each · COMMIT (one fsync) ──▶ answers ──▶ chores when due

After it has answered, and while nobody waits, the thread does its chores: it moves the search index
and the threads on, and folds the log into the database.

A change that raises is undone alone; the rest of its group stands. A group whose commit fails is undone
whole and every caller learns it. The thread knows nothing of what it writes.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import structlog

from postroom.contracts.errors import StoreError, StoreUnavailable
from postroom.stores.sqlite.connection import store_error, translated
from postroom.stores.sqlite.settling import settle_some

T = TypeVar("T")

_LOG = structlog.get_logger(__name__)

GROUP_LIMIT = 256
CHECKPOINT_AFTER = 1_500
"""Row changes after which the log is folded into the database while nobody waits."""
SETTLE_AFTER = 500
"""Row changes after which the search index and the threads are moved on while nobody waits."""
LATEST = 10
"""How many times as many changes make a chore due even under load, so that its work stays bounded."""


@dataclass(slots=True)
class _Chore:
    """Work that is due after so many row changes."""

    name: str
    after: int
    run: Callable[[sqlite3.Connection], bool]
    done_at: int

    def is_due(self, changes: int, *, idle: bool) -> bool:
        return changes - self.done_at >= (self.after if idle else self.after * LATEST)


@dataclass(slots=True, eq=False)
class _Change:
    run: Callable[[sqlite3.Connection], Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    value: Any = None
    error: BaseException | None = None


class Writer:
    """Runs changes one after another in transactions that are durable before anybody is answered."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._queue: SimpleQueue[_Change | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._chores = [
            _Chore("settle", SETTLE_AFTER, _settle_step, connection.total_changes - SETTLE_AFTER),
            _Chore("checkpoint", CHECKPOINT_AFTER, _fold, connection.total_changes),
        ]
        self.groups = 0
        self.changes = 0
        self._thread = threading.Thread(target=self._serve, name="postroom-writer", daemon=True)
        self._thread.start()

    async def submit(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run `run` in a transaction; return once the fsync that covers it is done.

        Raises:
            StoreError: the change was undone; nothing was written.
        """
        loop = asyncio.get_running_loop()
        change = _Change(run=run, loop=loop, future=loop.create_future())
        with self._gate:
            if self._closed:
                raise StoreUnavailable("the database is closed", remedy="start the server again")
            self._queue.put(change)
        result: T = await change.future
        return result

    def close(self) -> None:
        """Finish what was handed in, fold the log into the database and stop; harmless when done twice."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._connection.close()

    def _serve(self) -> None:
        self._do_chores()  # what a former process left undone
        while (group := self._next_group()) is not None:
            self._commit(group)
            _answer(group)
            self._do_chores()

    def _next_group(self) -> list[_Change] | None:
        """Wait for a change and take all that are there; None after the last one."""
        first = self._queue.get()
        if first is None:
            return None
        group = [first]
        while len(group) < GROUP_LIMIT:
            try:
                change = self._queue.get_nowait()
            except Empty:
                break
            if change is None:
                self._queue.put(None)
                break
            group.append(change)
        return group

    def _commit(self, group: list[_Change]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            if len(group) == 1:
                self._run(group[0])
            else:
                self._run_each(group)
            if self._kept(group):
                self._connection.execute("COMMIT")
                self.groups += 1
                self.changes += len(group)
        except sqlite3.Error as error:
            failure = store_error(error)
            failure.__cause__ = error
            _fail(group, failure)
        self._undo_what_is_open()

    def _kept(self, group: list[_Change]) -> bool:
        """Return whether there is something to commit; tell the callers of a group that SQLite has undone."""
        if not self._connection.in_transaction:
            # A full disk makes SQLite undo the whole transaction: the changes before the one that met it are
            # gone too, and their callers must not be told otherwise.
            _fail(group, _what_undid(group))
            return False
        return any(change.error is None for change in group)

    def _run(self, change: _Change) -> None:
        try:
            with translated():
                change.value = change.run(self._connection)
        except BaseException as error:  # handed to the caller: it is the caller's function that raised
            change.error = error

    def _run_each(self, group: list[_Change]) -> None:
        connection = self._connection
        for change in group:
            connection.execute("SAVEPOINT change")
            self._run(change)
            if not connection.in_transaction:
                return
            if change.error is not None:
                connection.execute("ROLLBACK TO change")
            connection.execute("RELEASE change")

    def _undo_what_is_open(self) -> None:
        if self._connection.in_transaction:
            # Were this to fail, the next group could not begin and would say so to its callers.
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _do_chores(self) -> None:
        for chore in self._chores:
            while chore.is_due(self._connection.total_changes, idle=self._queue.empty()):
                if not self._do(chore):
                    chore.done_at = self._connection.total_changes
                elif not self._queue.empty():
                    break  # callers first; what is left stays due

    def _do(self, chore: _Chore) -> bool:
        """Do one step of a chore; return whether some of it is left."""
        try:
            return chore.run(self._connection)
        except sqlite3.Error as error:
            # Nobody waits for a chore and nothing is lost: it is done again when it is next due, and
            # whatever is wrong with the disk is told to the next caller who writes.
            self._undo_what_is_open()
            _LOG.warning("store.chore_failed", chore=chore.name, reason=str(error))
            return False


def _settle_step(connection: sqlite3.Connection) -> bool:
    connection.execute("BEGIN IMMEDIATE")
    left = settle_some(connection)
    connection.execute("COMMIT")
    return left


def _fold(connection: sqlite3.Connection) -> bool:
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return False


def _what_undid(group: list[_Change]) -> StoreError:
    """Return the failure of the change that was run last."""
    errors = [change.error for change in group if change.error is not None]
    if errors and isinstance(errors[-1], StoreError):
        return errors[-1]
    return StoreUnavailable("the database undid the transaction")


def _fail(group: list[_Change], error: StoreError) -> None:
    for change in group:
        if change.error is None:
            # One instance a caller: each raises it, and tracebacks are written into it.
            change.error = type(error)(error.message, value=error.value, remedy=error.remedy)
            change.error.__cause__ = error.__cause__


def _answer(group: list[_Change]) -> None:
    """Wake the callers, each loop once a group."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Change]] = {}
    for change in group:
        by_loop.setdefault(change.loop, []).append(change)
    for loop, changes in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, changes)
        except RuntimeError:  # the loop is closed: nobody waits any more, and what was written stays written
            continue


def _settle(changes: list[_Change]) -> None:
    for change in changes:
        if change.future.done():
            continue  # the caller was cancelled
        if change.error is None:
            change.future.set_result(change.value)
        else:
            change.future.set_exception(change.error)
