"""The stores for runs in one schema of a PostgreSQL database, for many processes and machines."""

from datetime import timedelta

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock
from postroom.contracts.errors import ConfigError
from postroom.stores.postgres.clock import DatabaseClock
from postroom.stores.postgres.commits import PostgresCommitCoordinator
from postroom.stores.postgres.database import Database
from postroom.stores.postgres.dispatches import PostgresDispatchStore
from postroom.stores.postgres.events import PostgresEventStore
from postroom.stores.postgres.hints import WORK, Hint, Hints
from postroom.stores.postgres.migrate import migrate
from postroom.stores.postgres.outbox import PostgresOutboxStore
from postroom.stores.postgres.place import Place
from postroom.stores.postgres.statements import load_statements
from postroom.stores.postgres.threads import PostgresThreadStore

_SQL = load_statements("clock")
_LONGEST_NAME = 63


class PostgresWakeups:
    """Hints that there may be work, from this process and from others."""

    def __init__(self, hint: Hint) -> None:
        self._hint = hint

    async def wait(self, timeout_ms: int) -> None:
        """Return when something was enqueued or released since the last call, or the time is up."""
        await self._hint.wait(timedelta(milliseconds=max(timeout_ms, 0)))


class PostgresRunStores:
    """The stores of one schema. For one event loop; opened by `open`, ended by `close`."""

    def __init__(self, place: Place, *, clock: Clock, own_clock: DatabaseClock, hinting: Tasks) -> None:
        self.place = place
        """What all parts share; for those of this package."""
        self._clock = clock
        self._own_clock = own_clock
        self._hinting = hinting
        self._dispatches = PostgresDispatchStore(place)
        self._threads = PostgresThreadStore(place)
        self._events = PostgresEventStore(place)
        self._outbox = PostgresOutboxStore(place)
        self._coordinator = PostgresCommitCoordinator(place, self._events)
        self._wakeups = PostgresWakeups(place.hints.hear(WORK))

    @classmethod
    async def open(
        cls, dsn: str, *, schema: str = "postroom", clock: Clock | None = None, pool_size: int = 8
    ) -> "PostgresRunStores":
        """Connect, bring the schema to the newest state and begin to hear other processes.

        The stores go by the database's clock, unless `clock` is given. At most `pool_size` sessions are open
        at once for the stores, and one for hints.

        Raises:
            MissingExtra: the driver is not installed.
            ConfigError: the server refuses the user or has no such database; or the schema's name is none.
            SchemaTooNew: a newer postroom wrote the schema.
            StoreUnavailable: the server does not answer.
        """
        if not 0 < len(schema.encode()) <= _LONGEST_NAME or "\0" in schema:
            raise ConfigError(f"a schema's name has 1 to {_LONGEST_NAME} bytes", value=schema)
        database = Database(dsn, schema, size=pool_size)
        tasks, hinting = Tasks("postgres statements"), Tasks("postgres hints")
        try:
            await migrate(database)
            own_clock = DatabaseClock(database)
            await own_clock.measure()
            [[identity]] = await database.read(_SQL["place"])
        except BaseException:
            await database.close()
            raise
        hints = Hints(database, hinting)
        hints.start()
        place = Place(database, hints, tasks, identity=f"{identity}/{schema}", clock=clock)
        return cls(place, clock=clock or own_clock, own_clock=own_clock, hinting=hinting)

    @property
    def storage_identity(self) -> str | None:
        """Names the schema; all parts have the same name, in every process."""
        return self.place.identity

    @property
    def clock(self) -> Clock:
        """The clock that the stores go by: the one given, or the database's as this process sees it."""
        return self._clock

    @property
    def dispatches(self) -> PostgresDispatchStore:
        """The queue."""
        return self._dispatches

    @property
    def threads(self) -> PostgresThreadStore:
        """Threads, runs and messages."""
        return self._threads

    @property
    def events(self) -> PostgresEventStore:
        """The log."""
        return self._events

    @property
    def outbox(self) -> PostgresOutboxStore:
        """Effects that wait."""
        return self._outbox

    @property
    def coordinator(self) -> PostgresCommitCoordinator:
        """Writes over all of them in one transaction."""
        return self._coordinator

    @property
    def wakeups(self) -> PostgresWakeups:
        """Hints that there may be work."""
        return self._wakeups

    async def measure_clock(self) -> int:
        """Compare this process's clock with the database's again; return what it is off, in milliseconds."""
        return await self._own_clock.measure()

    async def close(self) -> None:
        """Answer what was asked, then end every session; harmless when done twice."""
        await self._hinting.close()
        await self.place.tasks.settled()
        await self.place.tasks.close()
        await self.place.database.close()
