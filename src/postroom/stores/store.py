"""The store: transactions with typed parts on an engine, with the same interface for every engine.

An unreadable row does not block other rows: this release skips it, logs it once, and repeats the step without
it. A caller that requests this row gets the error. The row is read again at each start of the server, and
after an hour.

A change is a function that gets a `Transaction`, and is executed as one transaction: when `SqlStore.write`
returns, all of its writes are durable; if it raises an exception, nothing was changed. The function must be
synchronous and quick, and must not do any I/O. The function may be called again after a failure, so it must
not modify anything outside the transaction. Therefore all engines guarantee the same atomicity.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from secrets import token_bytes
from typing import Final, Generic, TypeVar

from postroom.contracts.clock import Clock
from postroom.contracts.errors import (
    CommitUnknown,
    MailboxForked,
    RecordTooNew,
    StaleClaim,
    StoreCorrupt,
    StoreFull,
    WrongStore,
)
from postroom.contracts.outbox import EffectPerformer, OutboxMessage
from postroom.log import get_logger
from postroom.stores.changes import ChangeNotifier
from postroom.stores.chats.tables import ChatTables
from postroom.stores.engine import Engine
from postroom.stores.events import EventTables
from postroom.stores.leases import LeaseTables
from postroom.stores.mail.access import MailWrites
from postroom.stores.outbox import OutboxTables
from postroom.stores.push import PushTables
from postroom.stores.runs.tables import RunTables
from postroom.stores.schedules import ScheduleTables
from postroom.stores.sql_transaction import Row, SqlTransaction

T = TypeVar("T")

_LOG = get_logger(__name__)


class _Part(Generic[T]):
    """A part of a transaction that is created on first use."""

    def __init__(self, kind: "Callable[[Transaction], T]") -> None:
        self._kind = kind

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tx: "Transaction", owner: type) -> T:
        part: T = self._kind(tx)
        tx.__dict__[self._name] = part
        return part


class Transaction:
    """A database transaction, through which functions read and write all tables.

    New ids are derived from `seed`; a read creates no ids.
    """

    mail = _Part(MailWrites)
    """Projects, agents, messages, reservations and their records."""
    runs = _Part(RunTables)
    """Threads, runs, messages, dispatches and pending messages."""
    chats = _Part(ChatTables)
    """The tables of the chat gateway."""
    events = _Part(EventTables)
    """The event log."""
    outbox = _Part(OutboxTables)
    """Side effects outside the database."""
    schedules = _Part(ScheduleTables)
    """The tables of schedules."""
    leases = _Part(LeaseTables)
    """The tables of leases."""
    push = _Part(PushTables)
    """The tables of Web Push."""

    def __init__(
        self,
        sql: SqlTransaction,
        clock: Clock,
        seed: bytes = b"",
        performer: EffectPerformer | None = None,
    ) -> None:
        self.sql = sql
        self.lock = sql.lock
        """Block all other changes that lock one of these names, until this change ends.

        A change calls this only once, before anything else, with all the names that it needs.
        """
        self.performer = performer
        self.topics: set[str] = set()
        self._clock = clock
        self._seed = seed
        self._ids = 0

    def now(self) -> int:
        """Return the time of this transaction, read once after the requested locks are held."""
        if self.sql.instant is None:
            self.sql.wait_for_locks()
            self.sql.instant = self._clock.now()
        return self.sql.instant

    def new_id(self) -> str:
        """Return 32 random hexadecimal digits; if the transaction is repeated, the ids are repeated, too."""
        self._ids += 1
        return blake2b(b"%d" % self._ids, key=self._seed, digest_size=16).hexdigest()

    def tell(self, *topics: str) -> None:
        """Notify the listeners of the topics when the transaction is committed."""
        self.topics.update(topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A caller's writes that are committed in the transaction of another change."""

    locks: tuple[str, ...]
    change: Callable[[Transaction], None]
    """The change that the caller requested; if it raises an exception, everything is rolled back."""


MIN_SPACE: Final = 300_000
"""The number of bytes that the first check allocates: enough for one long message with its indexes."""
MAX_SPACE: Final = 1 << 24
"""The maximum number of bytes that a check allocates before it frees them again."""


class Room:
    """Remembers that a write failed because there was too little disk space.

    If a write fails although a check has succeeded, later checks require twice as much space.
    """

    def __init__(self) -> None:
        self.wanted = 0
        """Number of bytes that must be available before writes count as possible again, or 0 if no write has
        failed.
        """
        self._next = MIN_SPACE
        self._was_missing = False

    def refused(self, error: StoreFull) -> None:
        """Record a write that failed for lack of disk space, and log the first failure."""
        if not self.wanted:
            self.wanted, self._was_missing = self._next, False
            _LOG.warning("store.full", reason=error.describe())

    def missing(self) -> None:
        """Record that a check found too little disk space."""
        self._was_missing = True

    def found(self, size: int) -> None:
        """Record that a check found `size` free bytes."""
        if not self.wanted or size < self.wanted:
            return
        if not self._was_missing:  # the failed write needs more space than that
            self._next = min(2 * self.wanted, MAX_SPACE)
        self.wanted = 0


def refuse_forked(opened_by: int) -> None:
    """Check that this process opened the mailbox.

    Raises:
        MailboxForked: The process was forked from the process `opened_by`, which opened the mailbox.
    """
    if (this := os.getpid()) != opened_by:
        raise MailboxForked(
            f"process {opened_by} opened this mailbox, and process {this} was forked from it afterwards",
            value=this,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRow:
    """An unreadable database row that this release skips."""

    kind: str
    id: str
    reason: str
    at: int
    """The time when the row was found, in milliseconds since the epoch."""


class SqlStore:
    """The store of mail, runs and chats in one database."""

    def __init__(self, engine: Engine, changes: ChangeNotifier | None = None) -> None:
        self.engine = engine
        self.clock = engine.clock
        self.opened_at = self.clock.now()
        """The time when the store was opened, in milliseconds since the epoch."""
        self.changes = changes or ChangeNotifier()
        """Notifications about commits of this and other processes."""
        self._seed = token_bytes(32)
        self._writes = count()
        self._room = Room()
        self._store_id: str | None = None
        """The id that the store had at the last probe."""
        self._process = os.getpid()

    @property
    def identity(self) -> str:
        """The name of the database."""
        return self.engine.identity

    async def read(self, look: Callable[[Transaction], T]) -> T:
        """Call `look` with one consistent snapshot of the store, and return its result.

        Raises:
            StoreUnavailable: The store is closed, or did not respond in time.
        """
        refuse_forked(self._process)
        aside: set[tuple[object, object]] = set()

        def run(sql: SqlTransaction) -> T:
            tx = Transaction(sql, self.clock)
            try:
                return look(tx)
            finally:
                # its parts refer to it, so otherwise only the garbage collector could free them
                vars(tx).clear()

        while True:
            try:
                return await self.engine.read(run)
            except StoreCorrupt as error:
                await self._set_aside(error, aside)

    async def write(self, change: Callable[[Transaction], T | StaleClaim], *, key: str = "") -> T:
        """Make a change in one transaction; when the call returns, the change survives a power failure.

        Changes with equal keys are made one after another; a key names a thread or a project. If `change`
        raises an exception, the transaction is rolled back, and the caller gets the exception. If `change`
        returns a StaleClaim, the transaction is committed, and the StaleClaim is raised. If the caller is
        cancelled, it is unknown whether the change was made.

        Raises:
            StoreFull, StoreReadOnly, StoreUnavailable: Nothing was written.
            CommitUnknown: It is unknown whether the change was written.
        """
        refuse_forked(self._process)
        performer = self.changes.performer
        topics: set[str] = set()
        effects: list[OutboxMessage] = []
        # All runs of the change share one seed, so that each run creates the same ids. Random bytes are read
        # once per process: that call lets another thread run first, which costs more than the whole change.
        seed = b"%s%d" % (self._seed, next(self._writes))
        aside: set[tuple[object, object]] = set()

        def run(sql: SqlTransaction) -> "T | StaleClaim":
            tx = Transaction(sql, self.clock, seed, performer)
            try:
                done = change(tx)
                topics.clear()  # notifications of an earlier run were rolled back with it
                topics.update(tx.topics)
                effects[:] = tx.outbox.claimed if "outbox" in vars(tx) else ()
                return done
            finally:
                # its parts refer to it, so otherwise only the garbage collector could free them
                vars(tx).clear()

        def committed() -> None:
            self.changes.tell(topics)
            self.engine.share(topics)
            if performer is not None and effects:
                performer.begin(effects)

        while True:
            try:
                done = await self.engine.write(run, key=key, committed=committed)
            except StoreCorrupt as error:
                await self._set_aside(error, aside)
                continue
            except StoreFull as error:
                self._room.refused(error)
                raise
            except CommitUnknown:
                if performer is not None and effects:
                    performer.give_back(effects)
                raise
            if isinstance(done, StaleClaim):
                raise done
            return done

    async def settle(self) -> None:
        """Update the search index and the lists of threads, so that later reads see all messages."""
        await self.engine.settle()

    async def unreadable(self, limit: int) -> list[UnreadableRow]:
        """Return up to `limit` unreadable rows that this release skips."""
        parameters = {"until": self.clock.now(), "limit": limit}
        rows = await self.engine.read(lambda sql: sql.all("store.unreadable", parameters))
        return [UnreadableRow(kind=kind, id=id, reason=reason, at=at) for kind, id, reason, at in rows]

    async def read_again(self, *, until: int | None = None) -> None:
        """Stop skipping unreadable rows that were found until the time `until`, by default until now.

        A row that is still unreadable is skipped again at the next read.
        """
        parameters = {"until": self.clock.now() if until is None else until, "limit": 1}
        if await self.engine.read(lambda sql: sql.all("store.unreadable", parameters)):
            await self.engine.write(lambda sql: sql.run("store.read_again", parameters))

    async def probe(self) -> None:
        """Check that the store accepts writes: write a row and read it back.

        Raises:
            StoreError: The write failed, or the database was replaced by another one.
        """
        now, wanted = self.clock.now(), self._room.wanted

        def change(sql: SqlTransaction) -> tuple[Row | None, Row | None]:
            self.engine.refuse_without_rights(sql)
            self.engine.take_room(sql, wanted)
            return sql.one("store.probe", {"now": now}), sql.one("store.id")

        try:
            row, items = await self.engine.write(change)
        except StoreFull:
            self._room.missing()
            raise
        self._room.found(wanted)
        if row is None or row[0] != now:
            raise StoreCorrupt("the test row was read back with a different value", value=now)
        store_id = None if items is None else items[0]
        if self._store_id not in (None, store_id):
            raise WrongStore(
                f"the database was store {self._store_id} and is now {store_id or 'none'}",
                remedy="stop the server and restore the previous database; or start the server, which then "
                "reports what to do",
            )
        self._store_id = store_id

    def close(self) -> None:
        """Finish submitted work and close the store; a second call has no effect.

        The call blocks until the work is done.
        """
        if os.getpid() != self._process:
            return  # the threads and the lock of the file belong to the parent process
        self.engine.close()
        # listeners that wait for a notification check again, and find that the store is closed
        self.changes.tell_all()

    async def _set_aside(self, error: StoreCorrupt, before: set[tuple[object, object]]) -> None:
        """Mark an unreadable row as skipped.

        Raises:
            StoreCorrupt: The error names no row, or a row that was already skipped `before`.
        """
        row = {"at": self.clock.now(), **error.details}
        name = row.get("kind"), row.get("id")
        if "kind" not in row or name in before:
            raise error
        before.add(name)
        if await self.engine.write(lambda sql: sql.one("store.set_aside", row)):
            facts = {"kind": row["kind"], "id": row["id"], "reason": row["reason"]}
            if isinstance(error, RecordTooNew):
                _LOG.warning("store.row_too_new", **facts, remedy=error.remedy)
            else:
                _LOG.error("store.row_quarantined", **facts)
