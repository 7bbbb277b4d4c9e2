"""Every table has the same columns on both engines once every step was applied."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite.connection import connect
from postroom.stores.sqlite.migrate import migrate

Columns = dict[str, tuple[str, bool]]
"""By name: the type on PostgreSQL, and whether there is always a value."""

ONLY_ON_SQLITE = ("search_index_progress", "sqlite_sequence", "messages_fts", "schema_migrations")
"""How far indexes reach that are maintained after the commit, what counts ids, and the ledger of the steps."""
ONLY_ON_POSTGRES = ("message_words", "run_live_", "schema_migrations")
"""The search index, and commands between processes."""
TYPES = {"INTEGER": "bigint", "TEXT": "text", "BLOB": "bytea"}
COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable = 'NO' FROM information_schema.columns
 WHERE table_schema = %s
"""


def on_sqlite(path: Path) -> dict[str, Columns]:
    with closing(connect(path)) as connection:
        migrate(connection, path, now=1)
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            table: _columns(connection, table) for table in tables if not table.startswith(ONLY_ON_SQLITE)
        }


def _columns(connection: sqlite3.Connection, table: str) -> Columns:
    found = connection.execute(f'PRAGMA table_info ("{table}")')
    return {name: (TYPES[kind], bool(needed or in_key)) for _, name, kind, needed, _, in_key in found}


def test_every_table_has_the_same_columns_on_both_engines(
    tmp_path: Path, postgres_dsn: str, a_schema: str
) -> None:
    PostgresStore.open(postgres_dsn, schema=a_schema).close()
    found: dict[str, Columns] = {}
    with psycopg.connect(postgres_dsn) as connection:
        for table, name, kind, is_needed in connection.execute(COLUMNS, [a_schema]):
            if not table.startswith(ONLY_ON_POSTGRES):
                found.setdefault(table, {})[name] = (kind, is_needed)
    assert found == on_sqlite(tmp_path / "postroom.db")
