"""The stores on one SQLite file: mail, runs beside it, and what the chat gateway keeps."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from postroom.contracts.clock import Clock, SystemClock
from postroom.contracts.store import MailReads, MailWrites
from postroom.contracts.transactions import Outline
from postroom.stores.chats import SqlChatTables, StoredChats
from postroom.stores.mail import MailTables
from postroom.stores.runs.events import EventTables
from postroom.stores.runs.outbox import OutboxTables
from postroom.stores.runs.ports import SqlRunStores
from postroom.stores.runs.tables import RunTables
from postroom.stores.sql_transaction import SqlTransaction
from postroom.stores.sqlite.engine import SqliteEngine
from postroom.stores.sqlite.sql_transaction import SqliteTransaction
from postroom.stores.store import OpenTransaction, SqlStore, Tables

T = TypeVar("T")


class SqliteStore:
    """Mail and runs in one file that this process alone owns, or in memory."""

    def __init__(self, engine: SqliteEngine) -> None:
        self.engine = engine
        self.path = engine.path
        self._writer = engine.writer
        self._readers = engine.readers
        self.store = SqlStore(
            engine,
            Tables(
                mail=lambda tx: MailTables(tx.sql),
                runs=lambda tx: RunTables(tx.sql, tx.now, tx.tell),
                chats=lambda tx: SqlChatTables(tx.sql),
                events=lambda tx: EventTables(tx.sql, tx.now, tx.tell),
                outbox=lambda tx: OutboxTables(tx.sql, tx.now),
            ),
        )
        """The same tables behind the port of all stores."""
        self._runs = SqlRunStores(self.store)
        self._chat = StoredChats(self.store, is_shared=False)

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
        engine = SqliteEngine.open(
            Path(path),
            clock=clock or SystemClock(),
            purpose=purpose,
            readers=readers,
            log_reserve=log_reserve,
        )
        return cls(engine)

    @classmethod
    def in_memory(cls, clock: Clock | None = None) -> "SqliteStore":
        """Begin an empty store whose contents are gone with it."""
        return cls(SqliteEngine.in_memory(clock or SystemClock()))

    async def read(self, look: Callable[[MailReads], T]) -> T:
        """Run `look` on a reader thread in one consistent view."""
        return await self._readers.submit(lambda connection: look(_mail(connection)))

    async def write(self, change: Callable[[MailWrites], T]) -> T:
        """Run `change` on the writer thread; answer after the fsync that covers it."""
        return await self._writer.submit(lambda connection: change(_mail(connection)))

    @property
    def runs(self) -> SqlRunStores:
        """Runs, in the same file and through the same writer."""
        return self._runs

    @property
    def chat(self) -> StoredChats:
        """What the chat gateway keeps, in the same file and through the same writer."""
        return self._chat

    async def settle(self) -> None:
        """Bring search and threads up to what was written so far; most times nothing is left to do."""
        await self.engine.settle()

    async def probe(self) -> None:
        """Write and read back one row."""
        await self.store.probe()

    async def back_up(self, target: Path) -> None:
        """Write a consistent copy while work goes on, and read it back whole; one copy is made at a time.

        It ends with the store: `close` breaks it off.

        Raises:
            StoreError: the copy could not be written or does not read back; the target is as it was.
        """
        await self.engine.back_up(target)

    async def check(self) -> list[str]:
        """Read the whole database and return what is wrong with it; empty when nothing is."""
        return await self.engine.check()

    async def outline(self) -> Outline:
        """Return the shape of the database without what is in it."""
        return await self.engine.outline()

    @property
    def grouping(self) -> tuple[int, int]:
        """How many commits the writer made, and how many changes they held."""
        return self._writer.groups, self._writer.changes

    def close(self) -> None:
        """Finish what was handed in, close and give the file back; harmless when done twice."""
        self.engine.close()


def _mail(connection: sqlite3.Connection) -> MailTables:
    return MailTables(SqliteTransaction(connection))


def _connection(sql: SqlTransaction) -> sqlite3.Connection:
    assert isinstance(sql, SqliteTransaction)  # noqa: S101 - there is no other over this engine
    return sql.connection


def _none_yet(tx: OpenTransaction) -> Any:
    raise NotImplementedError
