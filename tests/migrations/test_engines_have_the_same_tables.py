"""The tables of mail and chats have the same columns on both engines, in the same order."""

import sqlite3
from contextlib import closing

import psycopg
import pytest

from conformance.postgres_backend import an_empty_schema, postgres_schema
from conformance.run_backends import postgres_dsn
from postroom.stores.sqlite.migrate import shipped_migrations, split_statements
from postroom.testing import ManualClock

__all__ = ["postgres_dsn", "postgres_schema"]

Column = tuple[str, str, bool]

ONLY_ON_SQLITE = {"settled", "sqlite_sequence"}
"""How far indexes reach that are maintained after the commit; and what counts ids that are never given twice."""
TYPES = {"INTEGER": "bigint", "TEXT": "text", "BLOB": "bytea"}
OTHERS = ("run_", "dispatch_", "pending_", "schema_", "messages_fts")
"""Tables that are compared elsewhere, or that belong to the engine."""
COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable = 'NO' FROM information_schema.columns
 WHERE table_schema = %s ORDER BY table_name, ordinal_position
"""


def is_compared(table: str) -> bool:
    return table == "run_answers" or not table.startswith(OTHERS)


def on_sqlite() -> dict[str, list[Column]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for step in shipped_migrations():
            for statement in split_statements(step.sql):
                connection.execute(statement)
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            table: [
                (row[1], TYPES[row[2]], bool(row[3] or row[5]))
                for row in connection.execute(f'PRAGMA table_info ("{table}")')
            ]
            for table in tables
            if is_compared(table) and table not in ONLY_ON_SQLITE
        }


def test_the_columns_are_the_same(request: pytest.FixtureRequest, clock: ManualClock) -> None:
    with an_empty_schema(request, clock):
        dsn, schema = request.getfixturevalue("postgres_dsn"), request.getfixturevalue("postgres_schema")
        found: dict[str, list[Column]] = {}
        with psycopg.connect(dsn) as connection:
            for table, name, kind, is_needed in connection.execute(COLUMNS, [schema]):
                if is_compared(table):
                    found.setdefault(table, []).append((name, kind, is_needed))
    assert found.pop("message_words") == [("message_id", "bigint", True), ("words", "tsvector", True)]
    assert found == on_sqlite()
