"""The stores on one SQLite file: mail, runs beside it, and what the chat gateway keeps."""

import sqlite3
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar

from postroom.contracts.clock import Clock, SystemClock
from postroom.contracts.errors import StoreCorrupt
from postroom.contracts.store import MailReads, MailWrites
from postroom.stores.sqlite.chat.stores import SqliteChatStores
from postroom.stores.sqlite.connection import connect, file_error, translated
from postroom.stores.sqlite.copying import back_up
from postroom.stores.sqlite.lock import OwnerLock
from postroom.stores.sqlite.log_reserve import reserve_log
from postroom.stores.sqlite.migrate import migrate
from postroom.stores.sqlite.outline import Outline, outline_of
from postroom.stores.sqlite.readers import Readers
from postroom.stores.sqlite.runs.desk import Desk
from postroom.stores.sqlite.runs.stores import SqliteRunStores, SqliteRunWrites
from postroom.stores.sqlite.settling import is_behind, settle_some
from postroom.stores.sqlite.statements import STATEMENTS
from postroom.stores.sqlite.transaction import SqliteReads, SqliteWrites
from postroom.stores.sqlite.writer import Writer

T = TypeVar("T")


class SqliteStore:
    """Mail and runs in one file that this process alone owns."""

    def __init__(
        self,
        path: Path,
        lock: OwnerLock,
        connection: sqlite3.Connection,
        clock: Clock,
        *,
        newest_outbox: int,
        readers: int,
    ) -> None:
        self.path = path
        self._lock = lock
        self._clock = clock
        self._outbox_ids = count(max(newest_outbox + 1, clock.now() * 1000))
        """Beyond every id of this process and, unless the clock was set back, of those before it."""
        self._writer = Writer(connection)
        self._readers = Readers(path, count=readers)
        self._copier = Readers(path, count=1)
        """Of its own, so that a long copy keeps no reader waiting."""
        self._closing = threading.Event()
        self._desk = Desk(self._writer, self._readers, clock, identity=f"sqlite:{path}")
        self._runs = SqliteRunStores(self._desk)
        self._chat = SqliteChatStores(self._desk)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        clock: Clock | None = None,
        purpose: str = "server",
        readers: int = 2,
        log_reserve: int = 0,
    ) -> "SqliteStore":
        """Own the file, bring it to the newest schema and start the writer.

        `log_reserve` bytes of the log are written beforehand, which makes commits faster.

        Raises:
            StoreHeld: another process owns it.
            SchemaTooNew: a newer postroom wrote it.
            StoreReadOnly: it or its folder cannot be written.
        """
        clock = clock or SystemClock()
        path = Path(path).resolve()  # one file has one lock, whatever links lead to it
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise file_error(error, path.parent) from error
        lock = OwnerLock(path)
        lock.acquire(now=clock.now(), purpose=purpose)
        try:
            connection, newest_outbox = _open_newest(path, now=clock.now())
        except BaseException:
            lock.release()
            raise
        if log_reserve:
            reserve_log(connection, path, log_reserve)
        return cls(path, lock, connection, clock, newest_outbox=newest_outbox, readers=readers)

    async def read(self, look: Callable[[MailReads], T]) -> T:
        """Run `look` on a reader thread in one consistent view."""
        return await self._readers.submit(lambda connection: look(SqliteReads(connection)))

    async def write(self, change: Callable[[MailWrites], T]) -> T:
        """Run `change` on the writer thread; answer after the fsync that covers it."""
        return await self._writer.submit(
            lambda connection: change(SqliteWrites(connection, self._outbox_ids))
        )

    @property
    def runs(self) -> SqliteRunStores:
        """Runs, in the same file and through the same writer."""
        return self._runs

    @property
    def chat(self) -> SqliteChatStores:
        """What the chat gateway keeps, in the same file and through the same writer."""
        return self._chat

    async def write_together(self, change: Callable[[MailWrites, SqliteRunWrites], T]) -> T:
        """Run `change` over mail and runs on the writer thread: both are written, or neither is.

        Raises:
            StoreError: nothing was written.
        """
        now, scopes = self._clock.now(), set[str]()

        def both(connection: sqlite3.Connection) -> T:
            runs = SqliteRunWrites(connection, now)
            done = change(SqliteWrites(connection, self._outbox_ids), runs)
            scopes.update(runs.scopes)
            return done

        done = await self._desk.write(both)
        self._desk.ring()
        self._desk.tell(scopes)
        return done

    async def settle(self) -> None:
        """Bring search and threads up to what was written so far; most times nothing is left to do."""
        if await self._readers.submit(is_behind):
            while await self._writer.submit(settle_some):
                pass

    async def probe(self) -> None:
        """Write and read back one row."""
        now = self._clock.now()

        def write_and_read(connection: sqlite3.Connection) -> int:
            return int(connection.execute(STATEMENTS["probe"], (now,)).fetchone()[0])

        if await self._writer.submit(write_and_read) != now:
            raise StoreCorrupt("the probe row did not read back as it was written", value=now)

    async def back_up(self, target: Path) -> None:
        """Write a consistent copy while work goes on, and read it back whole; one copy is made at a time.

        It ends with the store: `close` breaks it off.

        Raises:
            StoreError: the copy could not be written or does not read back; the target is as it was.
        """
        await self._copier.submit_free(
            lambda connection: back_up(connection, target, is_read_back=True, stop=self._closing)
        )

    async def check(self) -> list[str]:
        """Read the whole database and return what is wrong with it; empty when nothing is."""

        def look(connection: sqlite3.Connection) -> list[str]:
            rows = [row[0] for row in connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
            broken = connection.execute("PRAGMA foreign_key_check").fetchmany(20)
            return rows + [f"foreign key: {row}" for row in broken]

        return await self._readers.submit(look)

    async def outline(self) -> Outline:
        """Return the shape of the database without what is in it."""
        return await self._readers.submit(outline_of)

    @property
    def grouping(self) -> tuple[int, int]:
        """How many commits the writer made, and how many changes they held."""
        return self._writer.groups, self._writer.changes

    def close(self) -> None:
        """Finish what was handed in, close and give the file back; harmless when done twice."""
        self._closing.set()
        self._copier.close()
        self._readers.close()
        self._writer.close()
        self._lock.release()


def _open_newest(path: Path, *, now: int) -> tuple[sqlite3.Connection, int]:
    """Return a connection to the file, brought to the newest schema, and the newest id of its outbox."""
    with translated():
        try:
            if not path.exists():
                path.touch(mode=0o600)
        except OSError as error:
            raise file_error(error, path) from error
        connection = connect(path)
        try:
            migrate(connection, path, now=now)
            # A file that cannot be written is refused now, not at the first letter. It takes a statement that
            # writes: on such a file SQLite lets BEGIN IMMEDIATE pass and begins to read.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(STATEMENTS["probe"], (now,)).fetchall()
            connection.execute("ROLLBACK")
            newest_outbox = connection.execute(STATEMENTS["newest_outbox"]).fetchone()[0]
        except BaseException:
            connection.close()
            raise
    return connection, int(newest_outbox)
