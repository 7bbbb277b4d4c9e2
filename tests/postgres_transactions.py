"""The plainest way to run changes on PostgreSQL: one after another on one thread, nothing pipelined."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any, Final, TypeVar

import psycopg
from psycopg.types.numeric import Int8Dumper
from typing_extensions import override

from postroom.contracts.errors import StoreError
from postroom.stores.sql_transaction import Row, SqlTransaction, Values
from postroom.stores.statements import Dialect, statements

T = TypeVar("T")

LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) FROM unnest($1::text[]) name"
AGAIN: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_NONE: Final[Values] = {}


class PostgresTransaction(SqlTransaction):
    """Runs named statements over one connection, each with a round trip of its own."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._cursor = psycopg.RawCursor(connection)
        self._statements = statements("postgres")

    @property
    @override
    def dialect(self) -> Dialect:
        return "postgres"

    @override
    def one(self, statement: str, values: Values = _NONE) -> Row | None:
        found = self.all(statement, values)
        return found[0] if found else None

    @override
    def all(self, statement: str, values: Values = _NONE) -> list[Row]:
        self.run(statement, values)
        return [*self._cursor.fetchall()] if self._cursor.description else []

    @override
    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        return [self.all(statement, values) for statement, values in looks]

    @override
    def run(self, statement: str, values: Values = _NONE) -> None:
        found = self._statements[statement]
        self._cursor.execute(found.text, [_plain(values[name]) for name in found.parameters])

    @override
    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        for values in rows:
            self.run(statement, values)

    @override
    def changed(self, statement: str, values: Values = _NONE) -> int:
        self.run(statement, values)
        return self._cursor.rowcount

    @override
    def lock(self, *names: str) -> None:
        self._cursor.execute(LOCK, [sorted(names)])

    @override
    def wait_for_locks(self) -> None:
        """They are held when `lock` returns."""


class PlainPostgres:
    """Looks and changes over transactions, each part of them made by `tables`."""

    def __init__(self, dsn: str, schema: str, tables: Callable[[SqlTransaction], T]) -> None:
        self._tables = tables
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._readers = ThreadPoolExecutor(max_workers=2)
        self._dsn = dsn
        self._schema = schema
        self._idle: list[psycopg.Connection[Any]] = []

    async def read(self, look: Callable[[Any], T]) -> T:
        return await self._on(self._readers, psycopg.IsolationLevel.REPEATABLE_READ, look)

    async def write(self, change: Callable[[Any], T]) -> T:
        return await self._on(self._writer, psycopg.IsolationLevel.READ_COMMITTED, change)

    async def settle(self) -> None:
        """Nothing follows later."""

    async def probe(self) -> None:
        """Nothing is to be tried."""

    def close(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        for connection in self._idle:
            connection.close()

    async def _on(
        self, threads: ThreadPoolExecutor, level: psycopg.IsolationLevel, work: Callable[[Any], T]
    ) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, self._again, level, work)

    def _again(self, level: psycopg.IsolationLevel, work: Callable[[Any], T]) -> T:
        while True:
            try:
                return self._once(level, work)
            except AGAIN:
                continue
            except psycopg.Error as error:
                raise StoreError(f"the database refused: {error}") from error
            except StopIteration:
                raise RuntimeError("a function given to the store raised StopIteration") from None

    def _once(self, level: psycopg.IsolationLevel, work: Callable[[Any], T]) -> T:
        connection = self._idle.pop() if self._idle else self._connected()
        try:
            connection.isolation_level = level
            with connection.transaction():
                return work(self._tables(PostgresTransaction(connection)))
        finally:
            self._idle.append(connection)

    def _connected(self) -> "psycopg.Connection[Any]":
        connection = psycopg.connect(_named(self._dsn), autocommit=True)
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.execute(f'SET search_path TO "{self._schema}"')
        return connection


def make_schema(dsn: str, schema: str, *migrations: str) -> None:
    """Make a schema anew from some of the shipped steps."""
    folder = resources.files("postroom.stores.postgres").joinpath("migrations")
    with psycopg.connect(_named(dsn), autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        connection.execute(f'CREATE SCHEMA "{schema}"')
        connection.execute(f'SET search_path TO "{schema}"')
        for name in migrations:
            connection.execute(folder.joinpath(name).read_bytes())


def drop_schema(dsn: str, schema: str) -> None:
    """Remove a schema; the server may be one that stays."""
    with psycopg.connect(_named(dsn), autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{schema}" CASCADE')


def empty_schema(dsn: str, schema: str) -> None:
    """Remove every row and begin counting anew."""
    with psycopg.connect(_named(dsn), autocommit=True) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])
        tables = ", ".join(f'"{schema}"."{row[0]}"' for row in found)
        connection.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    return list(value) if isinstance(value, (tuple, set, frozenset, range)) else value


def _named(dsn: str) -> str:
    """Return the name of a server in which settings are written as this driver has them."""
    return dsn.replace("synchronous_commit=off", "options=-csynchronous_commit%3Doff")
