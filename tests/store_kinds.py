"""A store of each kind for a test: a new file, or one schema of PostgreSQL that is emptied each time.

Changes are checked as `postroom.testing.changes` says: each is run twice.
"""

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from uuid import uuid4

from postroom.contracts.clock import Clock
from postroom.stores.postgres.connection import Address, Connection
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.stores.store import SqlStore
from postroom.testing.changes import CheckingEngine

KINDS = ("sqlite", "postgres")
SCHEMA = f"store_{os.getpid()}_{uuid4().hex[:8]}"
LEDGER = "schema_migrations"
_FILES = count(1)


def checked(store: SqlStore) -> SqlStore:
    """Let the store run every change twice."""
    store.engine = CheckingEngine(store.engine)
    return store


@contextmanager
def opened(kind: str, folder: Path, dsn: Callable[[], str], clock: Clock) -> Iterator[SqlStore]:
    """Open an empty store of a kind; call it outside of the event loop."""
    if kind == "sqlite":
        store = SqliteStore.open(folder / f"store-{next(_FILES)}.db", clock=clock, purpose="test").store
    else:
        store = PostgresStore.open(dsn(), schema=SCHEMA, clock=clock, readers=2).store
        _empty(dsn())
    try:
        yield checked(store)
    finally:
        store.close()


def _empty(dsn: str) -> None:
    """Leave no row in the schema and begin counting anew, which costs less than a new schema."""
    connection = Connection(Address(dsn=dsn, schema=SCHEMA))
    try:
        connection.begin()
        connection.run_script(_emptying(dsn))
        connection.send("COMMIT")
        connection.wait()
    finally:
        connection.close()


@cache
def _emptying(dsn: str) -> str:
    connection = Connection(Address(dsn=dsn, schema=SCHEMA))
    tables = connection.send(
        "SELECT format('DELETE FROM %I', tablename) FROM pg_tables WHERE schemaname = $1 AND tablename <> $2",
        (SCHEMA, LEDGER),
    )
    sequences = connection.send(
        "SELECT format('ALTER SEQUENCE %I RESTART', sequencename) FROM pg_sequences WHERE schemaname = $1",
        (SCHEMA,),
    )
    connection.wait()
    connection.close()
    # Rows that others refer to go last or first, in whatever order: what refers to them goes with this role.
    script = [
        "SET LOCAL session_replication_role = replica",
        *(row[0] for row in tables.rows + sequences.rows),
    ]
    return ";".join(script)


def forget(dsn: str) -> None:
    """Remove the schema; the server may be one that stays."""
    connection = Connection(Address(dsn=dsn, schema=SCHEMA))
    connection.send(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    connection.wait()
    connection.close()


def missing_postgres() -> str | None:
    """Say why there is no PostgreSQL to test on, or None."""
    reason: str | None = importlib.import_module("postgres_server").missing_postgres()
    return reason
