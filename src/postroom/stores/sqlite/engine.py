"""The engine on SQLite: one file that this process alone owns, or a database in memory."""

import shutil
import sqlite3
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from postroom.contracts import progress
from postroom.contracts.clock import Clock
from postroom.contracts.errors import StateError, StoreError, StoreFull, WrongStore
from postroom.log import get_logger
from postroom.stores.engine import Engine
from postroom.stores.migrations import missing_migrations, shipped_migrations
from postroom.stores.outline import Outline
from postroom.stores.sql_transaction import SqlTransaction
from postroom.stores.sqlite.apart import Apart
from postroom.stores.sqlite.connection import (
    PAGE_SIZE,
    connect,
    connect_unshared,
    file_error,
    prepare,
    refuse_denied,
    refuse_no_file,
    refuse_shared,
    take_room,
    translated,
)
from postroom.stores.sqlite.copying import back_up
from postroom.stores.sqlite.generations import forget_generation, refuse_lost_commits
from postroom.stores.sqlite.left_log import refuse_damaged_log
from postroom.stores.sqlite.lock import OwnerLock
from postroom.stores.sqlite.looking import outline_of
from postroom.stores.sqlite.migrate import APPLIED, migrate
from postroom.stores.sqlite.own_files import OwnFiles
from postroom.stores.sqlite.readers import Readers
from postroom.stores.sqlite.repairing import faults_of_server, indexes_that_lack_rows, write_again
from postroom.stores.sqlite.sql_transaction import SqliteTransaction
from postroom.stores.sqlite.writer import Writer, is_behind, update_indexes

T = TypeVar("T")

_LOG = get_logger(__name__)

IN_MEMORY = Path(":memory:")


class SharedReader:
    """Reads over the writer's connection, on its thread, because a database in memory has only one."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def submit(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Run `look` in one consistent view and return its answer.

        Raises:
            StoreUnavailable: The store is closed.
        """

        def without_writing(tx: SqliteTransaction) -> T:
            tx.connection.execute("PRAGMA query_only = ON")
            try:
                return look(tx.connection)
            finally:
                tx.connection.execute("PRAGMA query_only = OFF")

        return await self._writer.pending.submit(without_writing)

    async def submit_free(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a read; here every view is consistent."""
        return await self.submit(work)

    def close(self) -> None:
        """Do nothing: the writer closes the shared connection."""


class SqliteEngine(Engine):
    """One writer thread that groups commits, and a pool of readers."""

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
        """A separate thread, so that a long copy delays no reader."""
        self._closing = threading.Event()
        self._apart = Apart() if files is None else Apart(files.refuse_changed)
        if self._copier is not None and files is not None:
            # Open from now on: if the file is deleted, this is the only way to its contents.
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
        """Own the file, upgrade its schema and start the writer.

        Raises:
            WrongStore: The database is missing or empty, and `may_begin` is False; its log is damaged; it
                lacks acknowledged commits; or it is in two folders. Nothing was created or changed.
            StoreHeld: Another process owns the file.
            SchemaTooNew: A newer release wrote the database.
            StoreReadOnly: The file or its folder is not writable.
        """
        path = path.resolve()  # one file has one lock, whatever links lead to it
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
        """Create an empty database that disappears with the engine; one thread writes and reads."""
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
        return False  # the extension that does is in no build that Python comes with

    @property
    @override
    def grouping(self) -> tuple[int, int]:
        return self.writer.groups, self.writer.changes

    @override
    async def read(self, look: Callable[[SqlTransaction], T]) -> T:
        return await self.readers.submit(lambda connection: look(SqliteTransaction(connection)))

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
        if await self.readers.submit(lambda connection: is_behind(SqliteTransaction(connection))):
            while await self.writer.pending.submit(update_indexes):
                pass

    @override
    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        """Write one copy at a time; `close` stops it."""
        if self._copier is None:
            raise StateError("a database in memory cannot be copied", remedy="use a database in a file")
        watcher = progress.here()

        def copy(connection: sqlite3.Connection) -> None:
            with progress.watched(watcher):
                back_up(connection, target, is_read_back=is_read_back, rest=1, stop=self._closing)

        await self._copier.submit_free(copy)

    @override
    def take_room(self, sql: SqlTransaction, size: int) -> None:
        """Rely on the commit for space in the log; write more than that to a temporary file in the folder.

        A row in the database would stay in its log, and use up the space that the check looks for.
        """
        if size and self._lock is not None:
            take_room(self.path.parent, size)

    @override
    def refuse_without_rights(self, sql: SqlTransaction) -> None:
        """Do nothing: a user who may write the file may write every table in it."""

    @override
    async def check(self) -> list[str]:
        if self._files is None:
            return await self.readers.submit(faults_of_server)
        return await self._apart.faults(self.path)

    @override
    async def indexes_that_lack_rows(self) -> list[str]:
        return await self.readers.submit(indexes_that_lack_rows)

    @override
    async def write_again(self, indexes: Sequence[str]) -> None:
        await self.writer.pending.submit(lambda tx: write_again(tx.connection, indexes))

    @override
    async def outline(self) -> Outline:
        return await self.readers.submit(outline_of)

    @override
    def share(self, topics: Collection[str]) -> None:
        """Do nothing: no other process writes to the file or waits for it."""

    @override
    def close(self) -> None:
        self._closing.set()
        self._apart.close()
        self.readers.close()
        if self._lock is None or self._copier is None:
            self.writer.stop()  # nothing is to be kept, so nobody needs to wait for the thread
            return
        self._copier.close()
        self.writer.close()
        if self._files is not None:
            self._files.close()
        self._lock.release()

    def _rescue(self, target: Path) -> None:
        """Save the open contents of files that were removed; `close` waits for it."""

        def copied(connection: sqlite3.Connection) -> None:
            try:
                back_up(connection, target, is_read_back=True)
            except StoreError as error:
                _LOG.error("store.not_rescued", code=error.code, reason=error.message)
            else:
                _LOG.error(
                    "store.rescued", file=str(target), remedy="stop the server and restore the database"
                )

        assert self._copier is not None  # noqa: S101 - files that can be taken away have one
        self._copier.begin(copied)


def _open_writer(path: Path, clock: Clock, log_reserve: int) -> tuple[Writer, OwnFiles]:
    """Start to write to the file; with a full disk, a readable file is opened when there is space.

    Raises:
        StoreError: The file can be neither written nor read.
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
    """Raise `error` unless the file can be read without space, and has the newest schema."""
    if not path.exists() or not path.stat().st_size:
        raise error
    with translated(), closing(connect_unshared(path)) as connection:
        if missing_migrations(dict(connection.execute(APPLIED).fetchall()), shipped_migrations("sqlite")):
            raise error


def refuse_missing(path: Path) -> None:
    """Refuse a missing or empty file.

    Raises:
        WrongStore: The file is missing or empty.
    """
    if not (path.exists() and path.stat().st_size):
        raise WrongStore(f"{path} is {'empty' if path.exists() else 'missing'}", value=str(path))


def _open_newest(path: Path, *, now: int) -> sqlite3.Connection:
    """Return a connection to the file with the newest schema."""
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
                _begin(connection, now)
            migrate(connection, path, now=now)
            # A file that cannot be written is refused now, not at the first message. It takes a statement
            # that writes: on such a file SQLite lets BEGIN IMMEDIATE pass and begins to read.
            connection.execute("BEGIN IMMEDIATE")
            SqliteTransaction(connection).one("store.probe", {"now": now})
            connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
    return connection


def _begin(connection: sqlite3.Connection, now: int) -> None:
    """Give a new file the newest schema in one commit, because each commit waits for the disk."""
    empty = sqlite3.connect(":memory:", isolation_level=None)
    try:
        [[page_size]] = connection.execute("PRAGMA page_size")
        empty.deserialize(_empty_database(page_size))
        empty.execute("UPDATE schema_migrations SET applied_at = ?", (now,))
        empty.backup(connection)
    finally:
        empty.close()


@cache
def _empty_database(page_size: int) -> bytes:
    """Return an empty database with the newest schema; made once per process and size of a page."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size = {page_size}")
        migrate(connection, IN_MEMORY, now=0)
        return connection.serialize()
    finally:
        connection.close()


def new_in_memory() -> sqlite3.Connection:
    """Return a connection, for any thread, to a new database in memory with the newest schema."""
    connection = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.deserialize(_empty_database(PAGE_SIZE))
    prepare(connection, read_only=False)
    return connection


def _reserve_log(connection: sqlite3.Connection, path: Path, size: int) -> None:
    """Make the log about `size` bytes long and leave it empty; a failure has no effect.

    Commits then overwrite it rather than make it longer, which would cost a second log entry of the file
    system with each fsync: a durable commit took 0.10 ms on an existing log and 0.19 ms on a growing one. The
    log shrinks to nothing when the last connection closes, so this is done at each opening. The database
    keeps as many bytes as free pages, which the next messages fill. The reserve is skipped if less than ten
    times its size is free on the disk.
    """
    if shutil.disk_usage(path.parent).free < 10 * size:
        return
    try:
        connection.execute("DROP TABLE IF EXISTS log_reserve")  # of a process that died here
        connection.execute("CREATE TABLE log_reserve (filling BLOB)")
        connection.execute("INSERT INTO log_reserve VALUES (zeroblob(?))", (size,))
        connection.execute("DROP TABLE log_reserve")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    except sqlite3.Error as error:
        # Commits are slower without it, but as durable; a full disk is reported to the first caller who
        # writes.
        _LOG.warning("store.log_not_reserved", reason=str(error))
