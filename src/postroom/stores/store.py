"""The store: transactions with typed parts over an engine, the same for every engine.

A row that does not read back stops no other: it is set aside for this release, which is logged once, and the
step is done again without it. Whoever asked for that very row learns it. It is read again at each start, and
after an hour.
"""

import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path
from secrets import token_bytes
from typing import Generic, TypeVar

from typing_extensions import override

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
from postroom.contracts.run_ports import RunStores
from postroom.contracts.transactions import MAIL, Outline, Store, Transaction, UnreadableRow
from postroom.log import get_logger
from postroom.stores.changes import ChangeNotifier
from postroom.stores.chats.stores import StoredChats
from postroom.stores.chats.tables import SqlChatTables
from postroom.stores.engine import Engine
from postroom.stores.events import EventTables
from postroom.stores.identity import StoreIdentity, identity_of
from postroom.stores.leases import LeaseTables
from postroom.stores.mail.tables import MailTables, StoredMail
from postroom.stores.outbox import OutboxTables
from postroom.stores.room import Room
from postroom.stores.runs.tables import RunTables
from postroom.stores.schedules import ScheduleTables
from postroom.stores.sql_transaction import Row, SqlTransaction

T = TypeVar("T")

_LOG = get_logger(__name__)


class _Part(Generic[T]):
    """A part of a transaction, made when asked for. `cached_property` takes a lock before Python 3.12."""

    def __init__(self, make: "Callable[[OpenTransaction], T]") -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tx: "OpenTransaction", owner: type) -> T:
        part: T = self._make(tx)
        tx.__dict__[self._name] = part
        return part


class OpenTransaction(Transaction):
    """One run of a change or a look; its parts are made when they are first asked for.

    `seed` is what its ids are made from; a look makes none.
    """

    def __init__(
        self,
        sql: SqlTransaction,
        clock: Clock,
        seed: bytes = b"",
        performer: EffectPerformer | None = None,
    ) -> None:
        self.sql = sql
        self._performer = performer
        self.topics: set[str] = set()
        self._clock = clock
        self._now: int | None = None
        self._seed = seed
        self._ids = 0

    def __enter__(self) -> "OpenTransaction":
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the parts, which hold this: else only the garbage collector frees either."""
        vars(self).clear()

    @_Part
    def mail(self) -> MailTables:
        """Projects, agents, messages, reservations and what belongs to them."""
        self.tell(MAIL)
        return MailTables(self.sql, self.outbox, self.events, now=self.now, lock=self.lock)

    @_Part
    def runs(self) -> RunTables:
        """Threads, runs, messages, dispatches and what waits for them."""
        return RunTables(self.sql, self.now, self.tell, self.new_id, self.outbox)

    @_Part
    def chats(self) -> SqlChatTables:
        """What the chat gateway keeps."""
        return SqlChatTables(self.sql)

    @_Part
    def events(self) -> EventTables:
        """The event log."""
        return EventTables(self.sql, self.now, self.tell, self.new_id)

    @_Part
    def outbox(self) -> OutboxTables:
        """Effects outside the database."""
        return OutboxTables(self.sql, self.now, self.tell, self.new_id, self._performer)

    @_Part
    def schedules(self) -> ScheduleTables:
        """What is submitted again and again."""
        return ScheduleTables(self.sql, self.now, self.tell, self.new_id)

    @_Part
    def leases(self) -> LeaseTables:
        """Who does what one server does at a time."""
        return LeaseTables(self.sql, self.now, self.tell, self.new_id)

    @property
    def claimed_effects(self) -> Sequence[OutboxMessage]:
        """The effects that were stored as claimed by this process."""
        return self.outbox.claimed if "outbox" in self.__dict__ else ()

    @override
    def now(self) -> int:
        if self._now is None:
            self.sql.wait_for_locks()
            self._now = self._clock.now()
        return self._now

    @override
    def new_id(self) -> str:
        self._ids += 1
        return blake2b(b"%d" % self._ids, key=self._seed, digest_size=16).hexdigest()

    @override
    def lock(self, *names: str) -> None:
        self._now = None  # an instant that was read before may lie before a change that was waited for
        self.sql.lock(*names)

    @override
    def tell(self, *topics: str) -> None:
        self.topics.update(topics)


def refuse_forked(opened_by: int) -> None:
    """Refuse a call in a process that another one forked after it opened the mailbox: none would answer it.

    Raises:
        MailboxForked: This process is not the one with the id `opened_by`.
    """
    if (this := os.getpid()) != opened_by:
        raise MailboxForked(
            f"process {opened_by} opened this mailbox, and process {this} was forked from it afterwards",
            value=this,
        )


class SqlStore(Store):
    """The store over an engine."""

    def __init__(self, engine: Engine, changes: ChangeNotifier | None = None) -> None:
        self.engine = engine
        self._changes = changes or ChangeNotifier()
        self._seed = token_bytes(32)
        self._writes = count()
        self._room = Room()
        self._store_id: str | None = None
        """Which store it was when that was looked at last."""
        self._process = os.getpid()

    @property
    @override
    def clock(self) -> Clock:
        return self.engine.clock

    @property
    @override
    def identity(self) -> str:
        return self.engine.identity

    @property
    @override
    def changes(self) -> ChangeNotifier:
        return self._changes

    @override
    async def read(self, look: Callable[[Transaction], T]) -> T:
        refuse_forked(self._process)
        aside: set[tuple[object, object]] = set()

        def run(sql: SqlTransaction) -> T:
            with OpenTransaction(sql, self.clock) as tx:
                return look(tx)

        while True:
            try:
                return await self.engine.read(run)
            except StoreCorrupt as error:
                await self._set_aside(error, aside)

    @override
    async def write(self, change: Callable[[Transaction], T | StaleClaim], *, key: str = "") -> T:
        refuse_forked(self._process)
        clock, performer = self.engine.clock, self._changes.performer
        topics: set[str] = set()
        effects: list[OutboxMessage] = []
        # Once for all its runs: ids that it makes are the same each time. Random bytes are asked for once a
        # process: that call lets another thread go first, which costs more than the whole change.
        seed = b"%s%d" % (self._seed, next(self._writes))
        aside: set[tuple[object, object]] = set()

        def run(sql: SqlTransaction) -> "T | StaleClaim":
            with OpenTransaction(sql, clock, seed, performer) as tx:
                done = change(tx)
                topics.clear()  # what an earlier run of it told was undone with it
                topics.update(tx.topics)
                effects[:] = tx.claimed_effects
                return done

        def committed() -> None:
            self._tell(topics)
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

    @override
    async def settle(self) -> None:
        await self.engine.settle()

    @override
    async def unreadable(self, limit: int) -> list[UnreadableRow]:
        asked = {"until": self.clock.now(), "limit": limit}
        rows = await self.engine.read(lambda sql: sql.all("store.unreadable", asked))
        return [UnreadableRow(kind=kind, id=id, reason=reason, at=at) for kind, id, reason, at in rows]

    @override
    async def read_again(self, *, older_than_ms: int = 0) -> None:
        asked = {"until": self.clock.now() - older_than_ms, "limit": 1}
        if await self.engine.read(lambda sql: sql.all("store.unreadable", asked)):
            await self.engine.write(lambda sql: sql.run("store.read_again", asked))

    @override
    async def probe(self) -> None:
        now, wanted = self.clock.now(), self._room.wanted

        def change(sql: SqlTransaction) -> tuple[Row | None, Row | None]:
            self.engine.refuse_without_rights(sql)
            self.engine.take_room(sql, wanted)
            return sql.one("store.probe", {"now": now}), sql.one("store.id")

        try:
            row, found = await self.engine.write(change)
        except StoreFull:
            self._room.missing()
            raise
        self._room.found(wanted)
        if row is None or row[0] != now:
            raise StoreCorrupt("the probe row did not read back as it was written", value=now)
        store_id = None if found is None else found[0]
        if self._store_id not in (None, store_id):
            raise WrongStore(
                f"the database was store {self._store_id} and is {store_id or 'none'} now",
                remedy="stop the server and put back the database that was there; a start says what leads on",
            )
        self._store_id = store_id

    @override
    def close(self) -> None:
        if os.getpid() != self._process:
            return  # the threads and the lock of the file belong to the process that forked this one
        self.engine.close()
        self._changes.tell_all()  # those who wait for a hint look again, and learn that it is closed

    def _tell(self, topics: set[str]) -> None:
        if topics:
            self._changes.tell(topics)
            self.engine.share(topics)

    async def _set_aside(self, error: StoreCorrupt, before: set[tuple[object, object]]) -> None:
        """Set the row aside that does not read back, so that the step can be done again without it.

        Raises:
            StoreCorrupt: it is no single row, or was set aside `before` in vain.
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


class Stores(StoredMail):
    """One store as those see it who know one kind of tables only; by itself it is the port of mail."""

    def __init__(self, store: SqlStore, *, is_exclusive: bool) -> None:
        super().__init__(store)
        self.store = store
        self.is_exclusive = is_exclusive
        """Whether no other process writes to the same place."""
        self._runs = RunStores(store)
        self._chat = StoredChats(store, is_shared=not is_exclusive)

    @property
    def runs(self) -> RunStores:
        """Runs, in the same place."""
        return self._runs

    @property
    def chat(self) -> StoredChats:
        """What the chat gateway keeps, in the same place."""
        return self._chat

    @property
    def clock(self) -> Clock:
        """The clock to go by."""
        return self.store.clock

    @property
    def release(self) -> str:
        """The database and its release, as people name it."""
        return self.store.engine.release

    @property
    def checks_pages(self) -> bool:
        """Whether each page has a checksum, so that one that was damaged is refused when it is read."""
        return self.store.engine.checks_pages

    @property
    def grouping(self) -> tuple[int, int]:
        """How many commits were made, and how many changes they held."""
        return self.store.engine.grouping

    async def back_up(self, target: Path, *, is_kept: bool = True) -> None:
        """Write a consistent copy while work goes on, and read it back whole.

        One that is not kept need not survive a power cut, and is read back by whoever asked for it.

        Raises:
            StoreError: the copy could not be written or does not read back; the target is as it was.
            StateError: the engine makes no copies.
        """
        await self.store.engine.back_up(target, is_kept=is_kept)

    async def check(self) -> list[str]:
        """Read the whole database and return what is wrong with it; empty when nothing is."""
        return await self.store.engine.check()

    async def indexes_that_lack_rows(self) -> list[str]:
        """Return the indexes that can be written again from their tables without losing anything."""
        return await self.store.engine.indexes_that_lack_rows()

    async def write_again(self, indexes: Sequence[str]) -> None:
        """Write these indexes again; other writers wait meanwhile.

        Raises:
            StoreCorrupt: something is wrong still; nothing was changed.
        """
        await self.store.engine.write_again(indexes)

    async def identity(self, slugs: Sequence[str] = ()) -> StoreIdentity:
        """Say which store it is; `slugs` are projects of which it is asked whether it has one."""
        return await self.store.engine.read(lambda sql: identity_of(sql, slugs))

    async def identify(self, store_id: str) -> None:
        """Give the store its id, once; one that it has stays."""
        await self.store.engine.write(lambda sql: sql.run("store.identify", {"store_id": store_id}))

    async def outline(self) -> Outline:
        """Return the shape of the database without what is in it."""
        return await self.store.engine.outline()

    def close(self) -> None:
        """Finish what was handed in and close; harmless when done twice. Blocks."""
        self.store.close()
