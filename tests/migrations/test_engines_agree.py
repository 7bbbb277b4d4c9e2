"""The tables of runs have the same columns on both engines once every step was applied."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from conformance.run_backends import postgres_dsn
from postgres_schemas import a_schema, postgres_is_there
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite.connection import connect
from postroom.stores.sqlite.migrate import migrate

__all__ = ["a_schema", "postgres_dsn", "postgres_is_there"]

TABLES = (
    "dispatch_epochs",
    "pending_messages",
    "run_dispatches",
    "run_event_scopes",
    "run_events",
    "run_messages",
    "run_outbox",
    "run_quarantine",
    "run_spending",
    "run_threads",
    "runs",
    "thread_states",
)
Columns = dict[str, bool]
"""Names, and whether they may be null."""


@pytest.fixture
def on_sqlite(tmp_path: Path) -> dict[str, Columns]:
    path = tmp_path / "postroom.db"
    with closing(connect(path)) as connection:
        migrate(connection, path, now=1)
        return {table: _columns(connection, table) for table in TABLES}


def _columns(connection: sqlite3.Connection, table: str) -> Columns:
    found = connection.execute(f"PRAGMA table_info({table})")
    return {name: not (not_null or in_key) for _, name, _, not_null, _, in_key in found}


@pytest.fixture
def on_postgres(postgres_dsn: str, a_schema: str) -> dict[str, Columns]:
    PostgresStore.open(postgres_dsn, schema=a_schema).close()
    asked = "SELECT column_name, is_nullable = 'YES' FROM information_schema.columns"
    with psycopg.connect(postgres_dsn) as connection:
        return {
            table: dict(
                connection.execute(
                    f"{asked} WHERE table_schema = %s AND table_name = %s", (a_schema, table)
                ).fetchall()
            )
            for table in TABLES
        }


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_the_same_columns_on_both_engines(
    table: str, on_sqlite: dict[str, Columns], on_postgres: dict[str, Columns]
) -> None:
    assert on_sqlite[table]
    assert on_postgres[table] == on_sqlite[table]
