"""One open transaction with its parts, the same on every engine.

A change is a function of a `Transaction`, and runs as one transaction: when `SqlStore.write` returns, either
all of it is durable, or nothing happened. The function is synchronous and quick, does no I/O, and may run
again after a failure, so that it must not touch anything except the transaction. Therefore every rule has one
place, and every engine the same atomicity.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

from postroom.contracts.clock import Clock
from postroom.contracts.outbox import EffectPerformer
from postroom.stores.changes import MAIL
from postroom.stores.chats.tables import ChatTables
from postroom.stores.events import EventTables
from postroom.stores.leases import LeaseTables
from postroom.stores.mail.access import MailWrites
from postroom.stores.outbox import OutboxTables
from postroom.stores.runs.tables import RunTables
from postroom.stores.schedules import ScheduleTables
from postroom.stores.sql_transaction import SqlTransaction

T = TypeVar("T")


class _Part(Generic[T]):
    """A part of a transaction, created at first use. `cached_property` takes a lock before Python 3.12."""

    def __init__(self, make: "Callable[[Transaction], T]") -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tx: "Transaction", owner: type) -> T:
        part: T = self._make(tx)
        tx.__dict__[self._name] = part
        return part


class Transaction:
    """One run of a change or a read; its parts are created at their first use.

    Its ids are made from `seed`; a read makes none.
    """

    def __init__(
        self,
        sql: SqlTransaction,
        clock: Clock,
        seed: bytes = b"",
        performer: EffectPerformer | None = None,
    ) -> None:
        self.sql = sql
        self.lock = sql.lock
        """Lock out every other change that locks one of these names until the end of this one.

        A change calls it first and once, with all its names.
        """
        self._performer = performer
        self.topics: set[str] = set()
        self._clock = clock
        self._seed = seed
        self._ids = 0

    @_Part
    def mail(self) -> MailWrites:
        """Projects, agents, messages, reservations and their records."""
        self.tell(MAIL)
        return MailWrites(self.sql, self.outbox, self.events, now=self.now, lock=self.lock, tell=self.tell)

    @_Part
    def runs(self) -> RunTables:
        """Threads, runs, messages, dispatches and pending messages."""
        return RunTables(self.sql, self.now, self.tell, self.new_id, lambda: self.outbox)

    @_Part
    def chats(self) -> ChatTables:
        """The tables of the chat gateway."""
        return ChatTables(self.sql)

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
        """The tables of schedules."""
        return ScheduleTables(self.sql, self.now, self.tell, self.new_id)

    @_Part
    def leases(self) -> LeaseTables:
        """The tables of leases."""
        return LeaseTables(self.sql, self.now, self.tell, self.new_id)

    def now(self) -> int:
        """Return the instant of this transaction, read once, after the requested locks are held."""
        if self.sql.instant is None:
            self.sql.wait_for_locks()
            self.sql.instant = self._clock.now()
        return self.sql.instant

    def new_id(self) -> str:
        """Return 32 hexadecimal digits that nobody can guess; a repeated run of a change gets the same."""
        self._ids += 1
        return blake2b(b"%d" % self._ids, key=self._seed, digest_size=16).hexdigest()

    def tell(self, *topics: str) -> None:
        """Wake the listeners of these topics, once this change is committed."""
        self.topics.update(topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A caller's writes in the transaction of another change: both are committed, or neither."""

    locks: tuple[str, ...]
    change: Callable[[Transaction], None]
    """An exception rolls everything back."""
