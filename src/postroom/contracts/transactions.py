"""The port behind which everything is stored.

A change is one function over a `Transaction`, run as one transaction: all of it is durable when `write`
returns, or none of it is there. The function is synchronous, quick, free of I/O and may be run again
after a failure, so that it must not touch anything but the transaction. That keeps every rule in one
place and gives every store the same atomicity.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from postroom.contracts.clock import Clock
from postroom.contracts.errors import StaleClaim
from postroom.contracts.events import EventTables
from postroom.contracts.leases import LeaseTables
from postroom.contracts.outbox import EffectPerformer, OutboxTables
from postroom.contracts.run_tables import RunTables
from postroom.contracts.schedules import ScheduleTables
from postroom.contracts.store import MailWrites
from postroom.contracts.tables import ChatTables

T = TypeVar("T")

WORK: Final = "work"
"""The topic on which hints come that something may be claimable."""
MAIL: Final = "mail"
"""The topic on which hints come that something was written to mail."""


def commands_to(consumer_id: str) -> str:
    """Return the topic on which a mailbox hears that something is asked of a run that it has at work."""
    return f"commands:{consumer_id}"


class Transaction(Protocol):
    """One open transaction: its tables, its instant, and what it tells others once it is committed.

    A change first locks what it orders by, then looks, then decides, then writes.
    """

    @property
    def mail(self) -> MailWrites:
        """Projects, agents, messages, reservations and what belongs to them."""
        ...

    @property
    def runs(self) -> RunTables:
        """Threads, runs, messages, dispatches and what waits for them."""
        ...

    @property
    def chats(self) -> ChatTables:
        """What the chat gateway keeps."""
        ...

    @property
    def events(self) -> EventTables:
        """The event log."""
        ...

    @property
    def outbox(self) -> OutboxTables:
        """Effects outside the database."""
        ...

    @property
    def schedules(self) -> ScheduleTables:
        """What is submitted again and again."""
        ...

    @property
    def leases(self) -> LeaseTables:
        """Who does what one server does at a time."""
        ...

    def now(self) -> int:
        """Return the instant of this transaction, read once, after the locks that were asked for are held."""
        ...

    def new_id(self) -> str:
        """Return 32 hexadecimal digits that nobody can guess; a change that is run again gets the same."""
        ...

    def lock(self, *names: str) -> None:
        """Keep every other change that locks one of these names out until this one has ended.

        It comes first and once in a change, with all its names.
        """
        ...

    def tell(self, *topics: str) -> None:
        """Wake those who listen to these topics, once this change is committed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What a caller has written in the transaction of another's change: all of both, or nothing."""

    locks: tuple[str, ...]
    change: Callable[[Transaction], None]
    """An exception undoes everything."""


class Listener(Protocol):
    """Hears one topic from its making until `close`; a context manager that closes it."""

    async def wait(self, at_most: timedelta) -> bool:
        """Return True once the topic was told since the last call, False when the time is up."""
        ...

    def close(self) -> None:
        """Hear nothing more; harmless when done twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Changes(Protocol):
    """Hints that something was committed. One may be lost, so a waiter looks again now and then."""

    performer: EffectPerformer | None
    """Who performs effects in this process; it hears at once of those that are stored here."""

    def listen(self, topic: str) -> Listener:
        """Hear a topic from now on: `WORK`, `MAIL`, or the key of an event scope."""
        ...

    def tell(self, topics: Iterable[str]) -> None:
        """Wake those who listen to these topics."""
        ...


class SharedChanges(NamedTuple):
    """Passes hints between the servers of one database: what they tell, and how they are told."""

    changes: Changes
    share: Callable[[Iterable[str]], None]
    """Tells the others of topics, and nobody here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What is told of a database; no text that anybody wrote is in it."""

    schema: str
    steps: list[tuple[int, str, int]]
    """Number, name and instant of each step that was applied."""
    rows: dict[str, int]
    """How many rows each table has."""
    states: dict[str, int]
    """How many dispatches are in each state."""
    queue: list[dict[str, object]]
    """Dispatches that are open or given up, the longest unchanged first, at most 500."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRow:
    """A row that this release passes over because it cannot read it."""

    kind: str
    id: str
    reason: str
    at: int
    """When it was found, in milliseconds since the epoch."""


class Store(Protocol):
    """Transactions over all tables."""

    @property
    def clock(self) -> Clock:
        """The clock that the store goes by."""
        ...

    @property
    def identity(self) -> str:
        """Names the place where it writes."""
        ...

    @property
    def changes(self) -> Changes:
        """Hints about what was committed, here and by other processes."""
        ...

    async def read(self, look: Callable[[Transaction], T]) -> T:
        """Run `look` in one consistent view and return what it returns.

        Raises:
            StoreUnavailable: closed, or not answering in time.
        """
        ...

    async def write(self, change: Callable[[Transaction], T | StaleClaim], *, key: str = "") -> T:
        """Run `change` as one transaction; when this returns, it survives a power cut.

        `key` names what the change orders by, say its thread; changes of one key are run one after another.
        An exception from `change` undoes it and is raised here; a StaleClaim that it returns is raised too,
        and what it wrote stands. A cancelled caller does not learn the outcome: the change may have happened.

        Raises:
            StoreFull, StoreReadOnly, StoreUnavailable: nothing was written.
            CommitUnknown: it may or may not have been written.
        """
        ...

    async def settle(self) -> None:
        """Let reads that begin after this returns see every message written so far in search and threads."""
        ...

    async def unreadable(self, limit: int) -> list[UnreadableRow]:
        """Return rows that this release passes over because it cannot read them, at most `limit`."""
        ...

    async def read_again(self, *, older_than_ms: int = 0) -> None:
        """Pass over no row that was found so long ago or earlier: the next look reads it again.

        A row that still cannot be read is then set aside again.
        """
        ...

    async def probe(self) -> None:
        """Write and read back one row; raise what is wrong."""
        ...

    def close(self) -> None:
        """Finish what was handed in and close; harmless when done twice. May block."""
        ...
