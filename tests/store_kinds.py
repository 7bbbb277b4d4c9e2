"""A store of each kind for a test: a new file, or one schema of PostgreSQL that is emptied each time.

Changes are checked as `postroom.testing.changes` says: each is run twice.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from pooler import a_pooler, missing_pooler
from postgres_server import missing_postgres
from postroom.contracts.clock import Clock
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.store import SqlStore
from postroom.testing.changes import CheckingEngine
from sqlite_files import open_new

KINDS = ("sqlite", "postgres")
POOLED = "pooled"
"""PostgreSQL with a pooler that gives each transaction another session."""
SCHEMA = f"test_{uuid4().hex}"
"""One of this process: tests use it one after another."""
_FILES = count(1)
_POOLERS = ExitStack()


def checked(store: SqlStore) -> SqlStore:
    """Make the store run every change twice."""
    store.engine = CheckingEngine(store.engine)
    return store


@contextmanager
def opened(kind: str, folder: Path, dsn: Callable[[], str], clock: Clock) -> Iterator[SqlStore]:
    """Open an empty store of a kind; call it outside of the event loop."""
    if kind == "sqlite":
        store = open_new(folder / f"store-{next(_FILES)}.db", clock).store
    else:
        address, direct = (pooled(dsn()), dsn()) if kind == POOLED else (dsn(), "")
        store = PostgresStore.open(address, schema=SCHEMA, clock=clock, readers=2, direct_dsn=direct).store
        empty(dsn())
    try:
        yield checked(store)
    finally:
        store.close()


def empty(dsn: str) -> None:
    """Delete all rows of the schema and restart its counters.

    Deleting takes a millisecond; a new schema, or cutting each table, takes a hundred times as long.
    """
    _session(dsn).execute(_emptying(dsn))


@cache
def _session(dsn: str) -> psycopg.Connection[tuple[str, ...]]:
    return psycopg.connect(dsn, autocommit=True)


@cache
def _emptying(dsn: str) -> str:
    tables = _session(dsn).execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'schema_migrations'", [SCHEMA]
    )
    sequences = _session(dsn).execute(
        "SELECT sequencename, start_value FROM pg_sequences WHERE schemaname = %s", [SCHEMA]
    )
    return ";".join(
        [
            "BEGIN",
            # In this role rows go in any order, also those that others refer to.
            "SET LOCAL session_replication_role = replica",
            *(f"DELETE FROM {SCHEMA}.{name}" for [name] in tables),
            *(f"SELECT setval('{SCHEMA}.{name}', {first}, false)" for name, first in sequences),
            "COMMIT",
        ]
    )


@cache
def pooled(dsn: str) -> str:
    """Return the DSN of a pooler before the server, which ends with this process's use of the server."""
    return _POOLERS.enter_context(a_pooler(dsn))


def forget(dsn: str) -> None:
    """Remove the schema, and a pooler; the server may be a permanent one."""
    pooled.cache_clear()
    _POOLERS.close()
    with _session(dsn) as session:
        session.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    _session.cache_clear()


def refuse_missing(kind: str) -> None:
    """Skip the test when there is no PostgreSQL for a store of this kind; where `CI` is set, fail it."""
    reason = missing_postgres() if kind != "sqlite" else None
    if reason:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    if kind == POOLED and (reason := missing_pooler()):
        pytest.skip(reason)
