"""The SQLite engine: one file that only this process may use, or a database in memory.

On Unix, a process can still write to an open file that was deleted or replaced, but the contents of the file
disappear when the process ends. Therefore each commit first checks (`OwnFiles`) that the files are still in
place, and that no other process has changed them. If the check fails, earlier commits stay readable, and new
commits are rejected.

One thread writes (`Writer`): it commits the changes of its callers in groups, and then returns their results.
A few other threads read.

    callers ──▶ queue ──▶ BEGIN · each change · COMMIT (one fsync) ──▶ answers ──▶ chores when due
                                  ├ a change raises before a write: the others continue
                                  ├ a change raises after a write: roll back, repeat with a SAVEPOINT each
                                  └ the disk is full: the log is checkpointed, and they are repeated once

After it has returned the results, and while no caller waits, the thread does its chores: it updates the
search index and the list of threads, and runs checkpoints.

If a change raises an exception, only this change is rolled back, and the rest of its group is committed. If
the commit of a group fails, the group is rolled back, and every caller gets the error. The thread does not
depend on the contents of the changes.
"""

import contextlib
import os
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeVar

from typing_extensions import override

from postroom.contracts import progress
from postroom.contracts.clock import Clock
from postroom.contracts.errors import StateError, StoreError, StoreFull, StoreUnavailable, WrongStore
from postroom.log import get_logger
from postroom.stores.engine import Engine, LookingThreads, PendingChange, PendingChanges, answer, fail
from postroom.stores.migrations import missing_migrations, shipped_migrations
from postroom.stores.outline import Outline
from postroom.stores.sql_transaction import SqlTransaction
from postroom.stores.sqlite.apart import Apart
from postroom.stores.sqlite.connection import (
    PAGE_SIZE,
    SqliteTransaction,
    connect,
    connect_unshared,
    file_error,
    prepare,
    refuse_denied,
    refuse_no_file,
    refuse_shared,
    store_error,
    take_room,
    translated,
)
from postroom.stores.sqlite.copying import back_up
from postroom.stores.sqlite.generations import Generations, forget_generation, refuse_lost_commits
from postroom.stores.sqlite.left_log import refuse_damaged_log
from postroom.stores.sqlite.lock import OwnerLock
from postroom.stores.sqlite.looking import read_outline
from postroom.stores.sqlite.migrate import APPLIED, migrate
from postroom.stores.sqlite.repairing import faults_of_server, indexes_that_lack_rows, write_again

T = TypeVar("T")

_LOG = get_logger(__name__)


_HEADER: Final = 100
"""Number of bytes at the start of a database that contain its size, its schema version and its change
counter.
"""


class OwnFiles:
    """The database file and its log, as this process has opened them."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Open the database file and keep it open; changes are detected after the first call of `note`.

        Raises:
            StoreError: The file cannot be opened.
        """
        self._path, self._log, self._clock = path, path.with_name(f"{path.name}-wal"), clock
        self._checkpoint = threading.Lock()
        """A lock that is held while a checkpoint writes to the file, because readers check the file in their
        own threads.
        """
        try:
            # Keep the file open to the end: closing it would release the locks that SQLite has on it.
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise file_error(error, path) from error
        self._let_go = weakref.finalize(self, os.close, self._descriptor)
        self._files: tuple[object, object] | None = None
        self._written: tuple[int, int] | None = None
        self._header = b""
        self.generations = Generations(path)
        self.rescued: Path | None = None
        """The file to which the open contents are saved.

        The attribute is set when the files have been changed by others.
        """
        self.when_changed: Callable[[Path], None] = lambda _: None
        """A function that is called once, with the file to which the open contents are saved."""

    def note(self) -> None:
        """Record the current state of the files as the state that this process has written."""
        with self.writing():
            self._files = _which(self._path), _which(self._log)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Record the state of the database file at the end of the context.

        Run each checkpoint within the context.
        """
        with self._checkpoint:
            try:
                yield
            finally:
                self._written, self._header = self._modification(), self._beginning()
                self.generations.end()

    def refuse_changed(self) -> None:
        """Check that the files were not deleted, moved, replaced, or written by another process.

        Raises:
            WrongStore: The files have changed; earlier commits are saved to `rescued`, if they can still be
                read.
        """
        with self._checkpoint:
            if self._files is None:
                return
            value = os.fstat(self._descriptor)
            is_as_written = (value.st_mtime_ns, value.st_size) == self._written
            if is_as_written and (_which(self._path), _which(self._log)) == self._files:
                return
            reason = self._describe_change(*self._files)
        if not reason:
            return
        if self.rescued is None:
            self.rescued = self._path.with_name(f"{self._path.name}.rescued.{self._clock.now()}")
            _LOG.error("store.taken_away", reason=reason, rescued=str(self.rescued))
            self.when_changed(self.rescued)
        if self.rescued.exists():
            remedy = (
                "all accepted changes are saved: stop the server and run `postroom restore --force "
                f"{self.rescued}`"
            )
        else:
            remedy = (
                f"stop the server and restore {self.rescued} if it exists: the server saves the accepted "
                "changes there if it can still read them. Otherwise restore a backup, see `postroom "
                "backup list`"
            )
        raise WrongStore(
            f"{reason} while the server was running; the server refuses all changes now",
            value=str(self._path),
            remedy=remedy,
        )

    def close(self) -> None:
        """Close the file, after all connections were closed; a second call has no effect."""
        self._let_go()

    def _describe_change(self, database: object, log: object) -> str:
        if (executable := _which(self._path)) != database:
            return f"{self._path} was {'deleted' if executable is None else 'replaced'}"
        if (executable := _which(self._log)) != log:
            return f"{self._log} was {'deleted' if executable is None else 'replaced'}"
        if self._modification() != self._written:
            if self._beginning() != self._header:
                return f"another program wrote to {self._path}"
            self._written = self._modification()  # only the file's times have changed
        return ""

    def _beginning(self) -> bytes:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return os.read(self._descriptor, _HEADER)

    def _modification(self) -> tuple[int, int]:
        value = os.fstat(self._descriptor)
        return value.st_mtime_ns, value.st_size


def _which(path: Path) -> tuple[int, int] | None:
    """Return the device and the inode of a file, or None if the file does not exist."""
    try:
        value = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error(error, path) from error
    return value.st_dev, value.st_ino


class Readers:
    """Threads that read a database file, each in a read transaction."""

    def __init__(self, path: Path, *, count: int = 2, files: OwnFiles | None = None) -> None:
        """Create the threads; with `files`, reads can detect that another program has changed the files."""
        self._path = path
        self._files = files
        self._own = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._threads = LookingThreads(count)

    async def submit(self, look: Callable[[SqliteTransaction], T]) -> T:
        """Call `look` with one consistent snapshot of the database, and return its result.

        Raises:
            StoreUnavailable: The store is closed, or did not respond in time.
        """
        return await self._threads.submit(partial(self._run, look))

    async def submit_free(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` with a connection that is in no transaction, and return its result.

        Raises:
            StoreUnavailable: The store is closed, or did not respond in time.
        """
        return await self._threads.submit(partial(self._run_free, work))

    def begin(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Call `work` with a connection that is in no transaction, without waiting for the result.

        Errors of `work` are logged.

        Raises:
            StoreUnavailable: The store is closed.
        """
        self._threads.begin(partial(self._run_free, work))

    def close(self) -> None:
        """Finish active reads and close all connections; a second call has no effect."""
        self._threads.close()
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _run(self, look: Callable[[SqliteTransaction], T], _: None) -> T:
        try:
            with translated():
                return _look(self._connection(), look)
        except StoreFull:
            # On a full disk, no reader can open the log. No process writes then, so the file is read without
            # the log, over a new connection for each read. Such a connection sees later writes when there is
            # space again.
            with translated(), closing(connect_unshared(self._path)) as connection:
                return _look(connection, look)

    def _run_free(self, work: Callable[[sqlite3.Connection], T], _: None) -> T:
        with translated():
            return work(self._connection())

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            if self._files is not None:
                self._files.refuse_changed()
            connection = connect(self._path, read_only=True)
            self._own.connection = connection
            self._connections.append(connection)
        return connection


def _look(connection: sqlite3.Connection, look: Callable[[SqliteTransaction], T]) -> T:
    connection.execute("BEGIN")
    try:
        return look(SqliteTransaction(connection))
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")


CHECKPOINT_AFTER = 1_500
"""Number of changed rows after which a checkpoint of the log is run, when no caller waits."""
UPDATE_AFTER = 500
"""Number of changed rows after which the search index and the list of threads are updated, when no caller
waits.
"""
FORCE_MULTIPLIER = 10
"""Under load, a chore runs only after this many times its number of rows, which limits the backlog."""


STEP_CHARACTERS = 500_000
"""Number of characters of message bodies after which a transaction indexes no further messages, so that
callers wait only briefly.
"""
STEP = 1_500
"""Maximum number of messages that one transaction indexes while callers wait: about 40 ms if an earlier
process has left many messages, and otherwise a few ms. More messages are indexed than are written between two
steps under load, so that the backlog stays limited.
"""


@dataclass(slots=True)
class _Chore:
    """Maintenance work that is due after a number of changed rows."""

    name: str
    after: int
    run: Callable[[sqlite3.Connection], bool]
    done_at: int


_Change = PendingChange[SqliteTransaction]


class Writer:
    """A thread that makes changes, in transactions that are durable before callers get results."""

    connection: sqlite3.Connection | None = None
    """The connection, or None until there was enough disk space to open it."""
    _connection: sqlite3.Connection

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        opens_at_once: bool = True,
        files: OwnFiles | None = None,
    ) -> None:
        """Start the thread, which calls `connect` to open its connection.

        If `opens_at_once` is False, the first change opens the connection. With `files`, changes are rejected
        after other processes have changed the database files.
        """
        self._connect = connect
        self._files = files
        self.opens_at_once = opens_at_once
        self.pending = PendingChanges[SqliteTransaction]()
        self._chores: list[_Chore] = []
        self.groups = 0
        self.changes = 0
        # The thread has only a weak reference, so that an unused writer ends without being closed.
        weakref.finalize(self, self.pending.stop)
        self._thread = threading.Thread(
            target=_serve, args=(weakref.ref(self), self.pending), name="postroom-writer", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Reject new changes; the thread finishes the submitted changes, closes the connection and ends."""
        self.pending.stop()

    def close(self) -> None:
        """Reject new changes, and wait until the thread has ended; a second call has no effect."""
        self.stop()
        self._thread.join()

    def open_connection(self) -> sqlite3.Connection:
        """Open the connection, and do the maintenance work that an earlier process has left.

        Only the writer's thread may call this method.
        """
        self._connection = self.connection = connection = self._connect()
        fold = partial(_fold, files=self._files)
        self._chores = [
            _Chore("update_indexes", UPDATE_AFTER, _update_step, connection.total_changes - UPDATE_AFTER),
            _Chore("checkpoint", CHECKPOINT_AFTER, fold, connection.total_changes),
        ]
        if self._files is not None:
            self._files.note()
        self._do_chores()
        return connection

    def perform(self, first: _Change) -> None:
        """Commit a change together with other queued changes, return the results, and do maintenance work.

        Only the writer's thread may call this method.
        """
        group = self.pending.group(first)
        if self.connection is None and (failure := self._not_open()) is not None:
            fail(group, failure)
            answer(group)
            return
        if self._commit(group) < len(group):
            # run a checkpoint, and repeat the changes that found no disk space
            refused = [change for change in group if isinstance(change.error, StoreFull)]
            if refused and self._folded():
                for change in refused:
                    change.value = change.error = None
                self._commit(refused)
        answer(group)
        self._do_chores()

    def _not_open(self) -> StoreError | None:
        """Open the connection; return the error of a failure, or None."""
        try:
            self.open_connection()
        except StoreError as error:
            return error
        _LOG.info("store.writes_again")
        return None

    def _commit(self, group: list[_Change]) -> int:
        """Commit the changes of a group, and return the number of changes that raised no exception."""
        # A savepoint costs a copy of each page that is written after it. Therefore savepoints are used only
        # after a change has raised an exception following a write: the group is then rolled back, and made
        # again with them.
        count, must_undo = 0, False
        try:
            if self._files is not None:
                self._files.refuse_changed()
            self._connection.execute("BEGIN IMMEDIATE")
            for change in group:
                written = self._connection.total_changes
                self._run(change)
                count += change.error is None
                has_written = self._connection.total_changes != written
                must_undo = isinstance(change.error, StoreError) or (change.error is not None and has_written)
                if must_undo:
                    break
            if must_undo and len(group) > 1 and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
                self._connection.execute("BEGIN IMMEDIATE")
                count = self._run_each(group)
            if not self._connection.in_transaction:
                # A full disk makes SQLite roll back the whole transaction: the changes before the failed one
                # are lost too, and their callers must get the error.
                errors = [change.error for change in group if change.error is not None]
                if errors and isinstance(errors[-1], StoreError):
                    fail(group, errors[-1])
                else:
                    fail(group, StoreUnavailable("the database rolled back the transaction"))
                count = 0
            elif count:
                due = self._files and self._files.generations.is_due and self._files.generations
                if due:
                    due.begin(self._connection)
                self._connection.execute("COMMIT")
                if due:
                    due.keep()
                self.groups += 1
                self.changes += len(group)
        except sqlite3.Error as error:
            failure = store_error(error)
            failure.__cause__ = error
            fail(group, failure)
            count = 0
        except StoreError as error:  # the files were rejected, so no transaction was begun
            fail(group, error)
        if self._connection.in_transaction:
            self._undo()
        return count

    def _folded(self) -> bool:
        """Run a checkpoint; return whether the whole log was written to the database."""
        try:
            if self._files is not None:
                self._files.refuse_changed()
            return _fold_all(self._connection, self._files)
        except (sqlite3.Error, StoreError):  # the callers get the errors of their own changes
            return False

    def _run(self, change: _Change) -> None:
        # a separate transaction object, because earlier reads may be rolled back
        change.perform(SqliteTransaction(self._connection))
        if isinstance(error := change.error, sqlite3.Error):
            change.error = store_error(error)
            change.error.__cause__ = error

    def _run_each(self, group: list[_Change]) -> int:
        """Make each change again in a savepoint; return the number of changes that raised no exception."""
        connection = self._connection
        for change in group:
            change.value = change.error = None
        for change in group:
            connection.execute("SAVEPOINT change")
            self._run(change)
            if not connection.in_transaction:
                break
            if change.error is not None:
                connection.execute("ROLLBACK TO change")
            connection.execute("RELEASE change")
        return sum(change.error is None for change in group)

    def _undo(self) -> None:
        # If this failed, the next group could not begin, and would report that to its callers.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")

    def _do_chores(self) -> None:
        for chore in self._chores:
            while (done := self._connection.total_changes - chore.done_at) >= chore.after:
                if done < chore.after * FORCE_MULTIPLIER and not self.pending.is_empty:
                    break
                if not self._do(chore):
                    chore.done_at = self._connection.total_changes
                elif not self.pending.is_empty:
                    break  # callers come first; the other steps stay due

    def _do(self, chore: _Chore) -> bool:
        """Do one step of a chore; return whether more steps remain."""
        try:
            if self._files is not None:
                self._files.refuse_changed()
            return chore.run(self._connection)
        except (sqlite3.Error, StoreError) as error:
            # No caller waits for a chore, and nothing is lost: it is repeated when it is due again, and the
            # next caller who writes gets the disk's error.
            if self._connection.in_transaction:
                self._undo()
            _LOG.warning("store.chore_failed", chore=chore.name, reason=str(error))
            return False


def _fold(connection: sqlite3.Connection, *, files: OwnFiles | None) -> bool:
    _fold_all(connection, files)
    return False


def _fold_all(connection: sqlite3.Connection, files: OwnFiles | None) -> bool:
    """Run a checkpoint; return whether the log had content and all of it was written."""
    with contextlib.nullcontext() if files is None else files.writing():
        [[_, pages, folded]] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return bool(0 < pages == folded)


def update_indexes(tx: SqliteTransaction) -> bool:
    """Add the next messages to the search index; return whether more messages remain."""
    [[newest]] = tx.all("mail.index_step", {"limit": STEP, "characters": STEP_CHARACTERS})
    if newest is None:
        return False
    for statement in ("mail.index_search", "mail.index_threads", "mail.indexed"):
        tx.run(statement, {"newest": newest})
    return is_behind(tx)


def is_behind(tx: SqliteTransaction) -> bool:
    """Return whether the search index lacks some messages."""
    return tx.one("mail.index_left") is not None


def _serve(known: "weakref.ref[Writer]", pending: PendingChanges[SqliteTransaction]) -> None:
    writer, connection = known(), None
    if writer is not None and writer.opens_at_once:
        connection = writer.open_connection()
    del writer
    while (change := pending.queue.get()) is not None:
        writer = known()
        if writer is None:
            break
        writer.perform(change)
        connection = writer.connection
        del writer, change
    if connection is not None:
        connection.close()


def _update_step(connection: sqlite3.Connection) -> bool:
    connection.execute("BEGIN IMMEDIATE")
    left = update_indexes(SqliteTransaction(connection))
    connection.execute("COMMIT")
    return left


IN_MEMORY = Path(":memory:")


class SharedReader:
    """Reads an in-memory database over the only connection, in the thread of the writer."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def submit(self, look: Callable[[SqliteTransaction], T]) -> T:
        """Call `look` with one consistent snapshot of the database, and return its result.

        Raises:
            StoreUnavailable: The store is closed.
        """

        def without_writing(tx: SqliteTransaction) -> T:
            tx.connection.execute("PRAGMA query_only = ON")
            try:
                return look(tx)
            finally:
                tx.connection.execute("PRAGMA query_only = OFF")

        return await self._writer.pending.submit(without_writing)

    async def submit_free(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` with the only connection, and return its result."""
        return await self.submit(lambda tx: work(tx.connection))

    def close(self) -> None:
        """Do nothing, because the writer closes the shared connection."""


class SqliteEngine(Engine):
    """The engine of one SQLite database, with one writer thread and a few readers."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        writer: Writer,
        readers: Readers | SharedReader,
        lock: OwnerLock | None = None,
        files: OwnFiles | None = None,
    ) -> None:
        self.path = path
        self.writer = writer
        self.readers = readers
        self._clock = clock
        self._lock = lock
        self._files = files
        self._copier = Readers(path, count=1, files=files) if lock else None
        """A separate thread for copies, so that a long copy does not delay readers."""
        self._closing = threading.Event()
        self._apart = Apart() if files is None else Apart(files.refuse_changed)
        if self._copier is not None and files is not None:
            # It stays open from now on, because it is the only way to the contents of a deleted file.
            self._copier.begin(
                lambda connection: connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
            )
            files.when_changed = self._rescue

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        clock: Clock,
        purpose: str,
        readers: int,
        log_reserve: int = 0,
        may_begin: bool = True,
    ) -> "SqliteEngine":
        """Lock a database file, upgrade its schema, and start the writer thread.

        Raises:
            WrongStore: The database is missing or empty, and `may_begin` is False; its log is damaged; it
                lacks acknowledged commits; or it can be reached through two folders. The database is
                unchanged, and no file was created.
            StoreHeld: Another process owns the file.
            SchemaTooNew: A newer release wrote the database.
            StoreReadOnly: The file or its folder is not writable.
        """
        path = path.resolve()  # a file has one lock, whichever links lead to it
        refuse_no_file(path)
        if not may_begin:
            refuse_missing(path)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise file_error(error, path.parent) from error
        refuse_denied(path)
        refuse_shared(path)
        lock = OwnerLock(path)
        lock.acquire(now=clock.now(), purpose=purpose)
        try:
            refuse_damaged_log(path)
            writer, files = _open_writer(path, clock, log_reserve)
        except BaseException:
            lock.release()
            raise
        return cls(path, clock, writer, Readers(path, count=readers, files=files), lock, files)

    @classmethod
    def in_memory(cls, clock: Clock) -> "SqliteEngine":
        """Create an empty in-memory database, which is lost when the engine is closed."""
        writer = Writer(new_in_memory)
        return cls(IN_MEMORY, clock, writer, SharedReader(writer))

    @property
    @override
    def identity(self) -> str:
        return f"sqlite:{self.path}" if self._lock else f"sqlite:memory:{id(self)}"

    @property
    @override
    def clock(self) -> Clock:
        return self._clock

    @property
    @override
    def release(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    @property
    @override
    def checks_pages(self) -> bool:
        return False  # Python's builds of SQLite lack the extension that does this

    @property
    @override
    def grouping(self) -> tuple[int, int]:
        return self.writer.groups, self.writer.changes

    @override
    async def read(self, look: Callable[[SqlTransaction], T]) -> T:
        return await self.readers.submit(look)

    @override
    async def write(
        self,
        change: Callable[[SqlTransaction], T],
        *,
        key: str = "",
        committed: Callable[[], None] | None = None,
    ) -> T:
        return await self.writer.pending.submit(change, committed=committed)

    @override
    async def settle(self) -> None:
        if await self.readers.submit(is_behind):
            while await self.writer.pending.submit(update_indexes):
                pass

    @override
    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        """Write a copy of the database; `close` stops the copy."""
        if self._copier is None:
            raise StateError("an in-memory database cannot be copied", remedy="use a database file")
        watcher = progress.here()

        def copy(connection: sqlite3.Connection) -> None:
            with progress.watched(watcher):
                back_up(connection, target, is_read_back=is_read_back, rest=1, stop=self._closing)

        await self._copier.submit_free(copy)

    @override
    def take_room(self, sql: SqlTransaction, size: int) -> None:
        """Write `size` bytes to a temporary file next to the database; with 0, do nothing."""
        # A row in the database would stay in the log, and use up the space that is being checked.
        if size and self._lock is not None:
            take_room(self.path.parent, size)

    @override
    def refuse_without_rights(self, sql: SqlTransaction) -> None:
        """Do nothing, because a user who may write the file may write all its tables."""

    @override
    async def check(self) -> list[str]:
        if self._files is None:
            return await self.readers.submit(lambda tx: faults_of_server(tx.connection))
        return await self._apart.faults(self.path)

    @override
    async def indexes_that_lack_rows(self) -> list[str]:
        return await self.readers.submit(lambda tx: indexes_that_lack_rows(tx.connection))

    @override
    async def write_again(self, indexes: Sequence[str]) -> None:
        await self.writer.pending.submit(lambda tx: write_again(tx.connection, indexes))

    @override
    async def outline(self) -> Outline:
        return await self.readers.submit(lambda tx: read_outline(tx.connection))

    @override
    def share(self, topics: Collection[str]) -> None:
        """Do nothing, because no other process uses the database."""

    @override
    def close(self) -> None:
        self._closing.set()
        self._apart.close()
        self.readers.close()
        if self._lock is None or self._copier is None:
            self.writer.stop()  # nothing must be saved, so nothing waits for the thread
            return
        self._copier.close()
        self.writer.close()
        if self._files is not None:
            self._files.close()
        self._lock.release()

    def _rescue(self, target: Path) -> None:
        """Save the contents of open database files that were deleted."""

        def copied(connection: sqlite3.Connection) -> None:
            try:
                back_up(connection, target, is_read_back=True)
            except StoreError as error:
                _LOG.error("store.not_rescued", code=error.code, reason=error.message)
            else:
                _LOG.error(
                    "store.rescued", file=str(target), remedy="stop the server and restore the database"
                )

        assert self._copier is not None  # noqa: S101 - files that can be removed have one
        self._copier.begin(copied)


def _open_writer(path: Path, clock: Clock, log_reserve: int) -> tuple[Writer, OwnFiles]:
    """Start the writer; on a full disk, the writer opens the database later.

    Raises:
        StoreError: The file can neither be written nor read.
    """
    try:
        connection = _open_newest(path, now=clock.now())
    except StoreFull as error:
        _refuse_unreadable(path, error)
        _LOG.error("store.read_only", code=error.code, reason=error.message, remedy=error.remedy)
        files = OwnFiles(path, clock)
        return Writer(lambda: _open_newest(path, now=clock.now()), opens_at_once=False, files=files), files
    if log_reserve:
        _reserve_log(connection, path, log_reserve)
    files = OwnFiles(path, clock)
    return Writer(lambda: connection, files=files), files


def _refuse_unreadable(path: Path, error: StoreFull) -> None:
    """Raise `error` unless the file can be read without disk space and has the newest schema."""
    if not path.exists() or not path.stat().st_size:
        raise error
    with translated(), closing(connect_unshared(path)) as connection:
        if missing_migrations(dict(connection.execute(APPLIED).fetchall()), shipped_migrations("sqlite")):
            raise error


def refuse_missing(path: Path) -> None:
    """Check that a database file exists and is not empty.

    Raises:
        WrongStore: The file is missing or empty.
    """
    if not (path.exists() and path.stat().st_size):
        raise WrongStore(f"{path} is {'empty' if path.exists() else 'missing'}", value=str(path))


def _open_newest(path: Path, *, now: int) -> sqlite3.Connection:
    """Open a database file, and upgrade its schema."""
    with translated():
        try:
            if not path.exists():
                path.touch(mode=0o600)
            if not path.stat().st_size:
                forget_generation(path)
        except OSError as error:
            raise file_error(error, path) from error
        connection = connect(path)
        try:
            refuse_lost_commits(connection, path)
            if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                # Create the newest schema in a new file by a single commit, because each commit waits for the
                # disk.
                empty = sqlite3.connect(":memory:", isolation_level=None)
                try:
                    [[page_size]] = connection.execute("PRAGMA page_size")
                    empty.deserialize(_empty_database(page_size))
                    empty.execute("UPDATE schema_migrations SET applied_at = ?", (now,))
                    empty.backup(connection)
                finally:
                    empty.close()
            migrate(connection, path, now=now)
            # Reject a file that cannot be written now, not at the first message. This needs a statement that
            # writes: on such a file, SQLite accepts BEGIN IMMEDIATE and begins to read.
            connection.execute("BEGIN IMMEDIATE")
            SqliteTransaction(connection).one("store.probe", {"now": now})
            connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
    return connection


@cache
def _empty_database(page_size: int) -> bytes:
    """Return the bytes of an empty database with the newest schema."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size = {page_size}")
        migrate(connection, IN_MEMORY, now=0)
        return connection.serialize()
    finally:
        connection.close()


def new_in_memory() -> sqlite3.Connection:
    """Return a connection to a new in-memory database with the newest schema, for use in any thread."""
    connection = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.deserialize(_empty_database(PAGE_SIZE))
    prepare(connection, read_only=False)
    return connection


def _reserve_log(connection: sqlite3.Connection, path: Path, size: int) -> None:
    """Extend the log to about `size` bytes and leave it empty; errors are ignored."""
    # Commits then overwrite the log instead of extending it, which halves the time of a durable commit: 0.10
    # ms instead of 0.19 ms. SQLite truncates the log when the last connection closes, so this runs at each
    # start.
    if shutil.disk_usage(path.parent).free < 10 * size:
        return
    try:
        connection.execute("DROP TABLE IF EXISTS log_reserve")  # left by a process that died here
        connection.execute("CREATE TABLE log_reserve (filling BLOB)")
        connection.execute("INSERT INTO log_reserve VALUES (zeroblob(?))", (size,))
        connection.execute("DROP TABLE log_reserve")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    except sqlite3.Error as error:
        # Without the reserve, commits are slower but just as durable. A full disk is reported to the first
        # caller that writes.
        _LOG.warning("store.log_not_reserved", reason=str(error))
