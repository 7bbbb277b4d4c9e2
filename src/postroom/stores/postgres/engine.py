"""The PostgreSQL engine, which runs transactions on one schema of a database.

Three threads write, a few threads read, and one thread listens for changes made by other processes.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

from typing_extensions import override

from postroom.contracts.clock import Clock, elapsed_ms
from postroom.contracts.errors import (
    ConfigError,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    WrongStore,
)
from postroom.contracts.leases import IsGone, nobody_is_gone
from postroom.log import get_logger
from postroom.stores.changes import ChangeNotifier
from postroom.stores.engine import Engine, LookingThreads
from postroom.stores.migrations import shipped_migrations
from postroom.stores.outline import Outline
from postroom.stores.postgres.connection import Address, Connection
from postroom.stores.postgres.errors import ConnectionLost, Contended, no_backup, unreachable
from postroom.stores.postgres.notifications import Notifications
from postroom.stores.postgres.reach import Reach
from postroom.stores.postgres.schema import (
    LACKING,
    SETTINGS,
    WITHIN,
    Ownership,
    find_faults,
    list_tables,
    migrate,
    read_outline,
    refuse_lacking,
    refuse_unfit,
    refuse_without_rights,
)
from postroom.stores.postgres.sql_transaction import PostgresTransaction
from postroom.stores.postgres.writer import Writer
from postroom.stores.sql_transaction import OF_A_PROJECT, SqlTransaction, Statement
from postroom.stores.store import MIN_SPACE

T = TypeVar("T")

_LOG = get_logger(__name__)


TRIES: Final = 3
"""Maximum number of attempts for a read that loses its connection.

A read changes nothing, so it can safely be repeated.
"""
_END_WITHIN: Final = timedelta(seconds=5)
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Readers:
    """Threads that read a schema, each in a read transaction."""

    def __init__(self, address: Address, *, count: int) -> None:
        self._address = address
        self._own = threading.local()
        self._connections: set[Connection] = set()
        self._threads = LookingThreads(count)

    async def submit(self, look: Callable[[PostgresTransaction], T]) -> T:
        """Call `look` with one consistent snapshot of the schema, and return its result.

        Raises:
            StoreUnavailable: The store is closed, or did not respond in time.
        """
        return await self._threads.submit(partial(self._run, look))

    def close(self) -> None:
        """Finish active reads and close all connections; a read that takes more than 5 seconds is aborted."""
        alarm = threading.Timer(_END_WITHIN.total_seconds(), self._cut_all)
        alarm.start()
        self._threads.close()
        alarm.cancel()
        while self._connections:
            self._connections.pop().close()

    def _run(self, look: Callable[[PostgresTransaction], T], _: None) -> T:
        for _number in range(TRIES):
            connection: Connection | None = getattr(self._own, "connection", None)
            if connection is None:
                connection = self._own.connection = Connection(self._address)
                self._connections.add(connection)
            try:
                return self._look(connection, look)
            except ConnectionLost as error:
                self._own.connection = None
                self._connections.discard(connection)
                connection.close()
                failure = unreachable(error)
                failure.__cause__ = error
        raise failure

    def _look(self, connection: Connection, look: Callable[[PostgresTransaction], T]) -> T:
        transaction = PostgresTransaction(connection)
        connection.begin(_BEGIN)
        try:
            result = look(transaction)
            transaction.refuse_failed()
        except ConnectionLost:
            raise
        except Contended as error:
            connection.undo()
            raise StoreUnavailable(f"PostgreSQL cancelled the read: {error}") from error
        except BaseException:
            connection.undo()
            raise
        connection.send("COMMIT")
        connection.flush()  # nothing must wait for the end of a read
        return result

    def _cut_all(self) -> None:
        for connection in tuple(self._connections):
            connection.cut()


_MAX_NAME_LENGTH: Final = 63
_WRITERS: Final = 3
"""The number of writers. One of them makes the changes that must wait for a lock."""
_SAMPLES: Final = 5
_NOW: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_PLACE: Final = """
SELECT format('postgresql:%s:%s/%s', coalesce(host(inet_server_addr()), 'local'),
              coalesce(inet_server_port(), 0), current_database())
"""
# A result that exceeds work_mem is written to a temporary file on the disk of the database, at about 12 bytes
# per row. The single row of the probe cannot show that the disk is full because, like any changed row, it
# fits on its page.
_ROW: Final = 12
_ROOM: Final = Statement(
    name="store.room",
    text="""
WITH small AS MATERIALIZED (
  SELECT set_config('work_mem', '64kB', true) || set_config('temp_tablespaces', '', true) AS size
)
SELECT count(*) FROM small, generate_series(1, CAST($1 AS bigint) + 0 * length(small.size)) AS one
""",
    parameters=(),
    lists=frozenset(),
)


class DatabaseClock:
    """The clock of the database, computed from its last reading and the monotonic time since the reading."""

    def __init__(self) -> None:
        self._offset = 0

    def now(self) -> int:
        """Return the current time in milliseconds since the epoch."""
        return elapsed_ms() + self._offset

    def measure(self, connection: Connection) -> None:
        """Read the clock of the database several times, and use the fastest answer."""
        quickest: int | None = None
        offset = self._offset
        for _ in range(_SAMPLES):
            before = elapsed_ms()
            answer = connection.send(_NOW)
            connection.wait()
            after = elapsed_ms()
            if quickest is None or after - before < quickest:
                quickest, offset = after - before, answer.rows[0][0] - (before + after) // 2
        self._offset = offset


class _About(NamedTuple):
    """The identity of the schema, and whether its pages have checksums."""

    identity: str
    checks_pages: bool


class PostgresEngine(Engine):
    """The engine of one PostgreSQL schema, which many processes and machines can use."""

    def __init__(  # noqa: PLR0913 - only `open` calls it
        self,
        ownership: Ownership,
        writing: list[Connection],
        *,
        about: _About,
        clock: Clock | None,
        own_clock: DatabaseClock,
        readers: int,
        changes: ChangeNotifier,
    ) -> None:
        patient = Writer(writing[2], partial(ownership.connect, 2), name="postroom-writer-2")
        self.writers = (
            Writer(writing[0], partial(ownership.connect, 0), name="postroom-writer-0", patient=patient),
            Writer(writing[1], partial(ownership.connect, 1), name="postroom-writer-1", patient=patient),
            patient,  # closed last, because the other threads pass work to it
        )
        address = ownership.address
        self.readers = Readers(address, count=readers)
        looking = replace(address, answer_within=WITHIN, settings={**address.settings, **SETTINGS})
        self.inspector = Readers(looking, count=1)
        self._about = about
        self._release = writing[0].release
        self._own_clock = own_clock
        self._clock: Clock = clock or own_clock
        self._schema = address.schema
        self._steps = shipped_migrations("postgres")
        self._tables = list_tables(self._steps)
        self._unfit: StoreError | None = None
        """The reason why this release can no longer use the schema, after another release has upgraded it."""
        self.notifications = Notifications(address, changes, self.look_around)

    @classmethod
    def open(  # noqa: PLR0913 - its options, by name
        cls,
        address: Address,
        *,
        clock: Clock | None,
        readers: int,
        changes: ChangeNotifier,
        may_begin: bool = True,
        is_tried: bool = False,
        is_gone: IsGone = nobody_is_gone,
    ) -> "PostgresEngine":
        """Connect, upgrade the schema, and start to listen for changes by other processes.

        With `is_tried`, all sessions that the engine will ever need are opened as a test. `is_gone` returns
        whether a server has certainly exited; an exited server does not prevent a migration of the schema.

        Raises:
            WrongStore: The schema is missing or empty, and `may_begin` is False; nothing was created.
            StoreHeld: The schema is being copied, or a running server could not continue after a step of the
                schema.
            ConfigError: The server rejects the user, does not have this database, or is too old; or the
                schema's name is invalid.
            SchemaTooNew: A newer release wrote the schema.
            StoreReadOnly: The server accepts no writes, or no writes of this user.
            StoreUnavailable: The server does not respond, or a pooler has too few sessions.
        """
        if not 0 < len(address.schema.encode()) <= _MAX_NAME_LENGTH or "\0" in address.schema:
            raise ConfigError(
                f"the name of a schema must have 1 to {_MAX_NAME_LENGTH} bytes: {address.schema!r:.80}",
                value=address.schema,
            )
        ownership = Ownership(address)
        writing: list[Connection] = []
        try:
            first = ownership.connect(0)
            writing.append(first)
            _refuse_unwritable(first)
            _refuse_pooler(first, address)
            refuse_without_rights(first, address.schema, list_tables(shipped_migrations("postgres")))
            migrate(first, address, may_begin=may_begin, is_gone=is_gone)
            own_clock = DatabaseClock()
            own_clock.measure(first)
            place, checksums = first.send(_PLACE), first.send("SHOW data_checksums")
            first.wait()
            for number in range(1, _WRITERS):
                writing.append(ownership.connect(number))  # noqa: PERF401 - earlier ones are closed after an error
            if is_tried:
                # Open `count` more sessions at once, because a pooler with too few would make readers wait
                # silently.
                count = readers if address.direct_dsn else readers + 1
                opened: list[Connection] = []
                try:
                    for _ in range(count):
                        opened.append(Connection(address))  # noqa: PERF401 - earlier ones are closed after an error
                finally:
                    _close_all(opened)
        except (ConnectionLost, Contended) as error:
            _close_all(writing)
            raise unreachable(error) from error
        except BaseException:
            _close_all(writing)
            raise
        return cls(
            Ownership(replace(address, reach=Reach())),
            writing,
            about=_About(f"{place.rows[0][0]}/{address.schema}", checksums.rows[0][0] == "on"),
            clock=clock,
            own_clock=own_clock,
            readers=readers,
            changes=changes,
        )

    @property
    @override
    def identity(self) -> str:
        return self._about.identity

    @property
    @override
    def clock(self) -> Clock:
        return self._clock

    @property
    @override
    def release(self) -> str:
        return self._release

    @property
    @override
    def checks_pages(self) -> bool:
        return self._about.checks_pages

    @property
    @override
    def grouping(self) -> tuple[int, int]:
        return sum(writer.groups for writer in self.writers), sum(writer.changes for writer in self.writers)

    def look_around(self, connection: Connection) -> None:
        """Read the clock of the database, and check that this release can still use the schema."""
        self._own_clock.measure(connection)
        try:
            try:
                refuse_unfit(connection, self._steps)
            except WrongStore:  # a user without USAGE of the schema sees no tables
                refuse_without_rights(connection, self._schema, self._tables)
                refuse_unfit(connection, self._steps)
            self._unfit = None
        except (SchemaTooNew, StoreCorrupt, WrongStore) as error:
            self._unfit = error
        # The user lacks a right, which each probe reports together with the statement that grants it.
        except StoreReadOnly as error:
            _LOG.warning("store.schema_not_seen", code=error.code, reason=error.message, remedy=error.remedy)

    @override
    async def read(self, look: Callable[[SqlTransaction], T]) -> T:
        self._refuse_unfit()
        return await self.readers.submit(look)

    @override
    async def write(
        self,
        change: Callable[[SqlTransaction], T],
        *,
        key: str = "",
        committed: Callable[[], None] | None = None,
    ) -> T:
        self._refuse_unfit()
        # Changes of many threads wait together in one writer; two writers would block each other. Changes of
        # a project are made in order, each with its own waits: while one writer waits, the other continues.
        is_second = key.startswith(OF_A_PROJECT) and crc32(key.encode(errors="surrogatepass")) % 2
        writer = self.writers[1 if is_second else 0]
        return await writer.pending.submit(change, key=key, committed=committed)

    def _refuse_unfit(self) -> None:
        if self._unfit is not None:
            raise self._unfit.with_traceback(None)

    @override
    async def settle(self) -> None:
        """Do nothing, because each commit updates the indexes."""

    @override
    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        raise no_backup()

    @override
    async def check(self) -> list[str]:
        return await self.inspector.submit(find_faults)

    @override
    async def indexes_that_lack_rows(self) -> list[str]:
        return []  # only `amcheck`, which an administrator must run, detects one

    @override
    async def write_again(self, indexes: Sequence[str]) -> None:
        """Do nothing, because `indexes_that_lack_rows` never returns an index."""

    @override
    async def outline(self) -> Outline:
        return await self.inspector.submit(read_outline)

    @override
    def take_room(self, sql: SqlTransaction, size: int) -> None:
        assert isinstance(sql, PostgresTransaction)  # noqa: S101 - this engine creates no other type
        sql.rows(_ROOM, (max(size, MIN_SPACE) // _ROW,))

    @override
    def refuse_without_rights(self, sql: SqlTransaction) -> None:
        assert isinstance(sql, PostgresTransaction)  # noqa: S101 - this engine creates no other type
        refuse_lacking(sql.rows(LACKING, (self._schema, self._tables))[0], self._schema)

    @override
    def share(self, topics: Collection[str]) -> None:
        self.notifications.share(topics)

    @override
    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.inspector.close()
        self.readers.close()
        self.notifications.close()


def _refuse_unwritable(connection: Connection) -> None:
    """Check that the server accepts writes, and that the database can store every text.

    Raises:
        StoreReadOnly: The server is a standby, or was made read-only.
        ConfigError: The encoding is not UTF-8; SQL_ASCII would accept any bytes unchecked.
    """
    answer = connection.send(
        "SELECT current_setting('transaction_read_only'), current_setting('server_encoding')"
    )
    connection.wait()
    is_read_only, encoding = answer.rows[0]
    if is_read_only == "on":
        raise StoreReadOnly(
            "the PostgreSQL server accepts no writes",
            remedy="connect to the writable server; this server is a standby or read-only",
        )
    if encoding != "UTF8":
        raise ConfigError(
            f"the database uses {encoding}, which cannot store every text",
            remedy="use a database in UTF8: `createdb --encoding UTF8 --template template0 NAME` creates one",
        )


def _refuse_pooler(first: Connection, address: Address) -> None:
    """Check that the address belongs to no pooler that gives each transaction a different session.

    Raises:
        ConfigError: The address belongs to such a pooler, and a direct address is missing.
    """
    # A pooler reports process ids that are not those of the server, and gives each transaction the session
    # that was freed last. Therefore the use of a second connection changes the session of the first.
    if address.direct_dsn or first.process() == first.pid:
        return
    other = Connection(address)
    try:
        before = first.process()
        other.begin()
        other.process()
        if first.process() != before:
            raise ConfigError(
                "database_url is the address of a pooler that may use another PostgreSQL session for "
                "each transaction",
                remedy=(
                    "also set database_direct_url to the database's own address, which notifications "
                    "between servers need"
                ),
            )
    finally:
        other.close()


def _close_all(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()
