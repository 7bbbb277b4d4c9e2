"""A store on PostgreSQL for each test, empty; import the fixtures with their test."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
import pytest

from conformance.run_backends import refuse_missing
from postroom.contracts.clock import Clock
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.store import SqlStore

LEDGER = "schema_migrations"


@pytest.fixture(scope="module")
def postgres_schema(postgres_dsn: str) -> Iterator[str]:
    """The name of a schema that is used by the tests of one module."""
    schema = f"test_{uuid4().hex}"
    yield schema
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@contextmanager
def an_empty_schema(request: pytest.FixtureRequest, clock: Clock) -> Iterator[SqlStore]:
    """Open a store without any row, counting from 1; skip the test where there is no server."""
    refuse_missing("postgres")
    dsn, schema = request.getfixturevalue("postgres_dsn"), request.getfixturevalue("postgres_schema")
    store = PostgresStore.open(dsn, schema=schema, clock=clock).store
    try:
        empty(dsn, schema)
        yield store
    finally:
        store.close()


def empty(dsn: str, schema: str) -> None:
    """Remove every row, which costs less than a new schema."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])
        tables = ", ".join(f'"{schema}"."{row[0]}"' for row in found if row[0] != LEDGER)
        connection.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")
