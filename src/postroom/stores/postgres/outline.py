"""The shape of a schema without what is in it: its tables, how many rows, which runs wait."""

from typing import Final

from postroom.contracts.transactions import Outline
from postroom.stores.postgres.connection import Connection, quoted
from postroom.stores.postgres.sql_transaction import PostgresTransaction
from postroom.stores.sql_transaction import Row

_MOST_RUNS: Final = 500
_COLUMNS: Final = """
SELECT table_name, string_agg(format('  %s %s%s', column_name, data_type,
         CASE is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END), E',\n' ORDER BY ordinal_position)
  FROM information_schema.columns
 WHERE table_schema = current_schema() GROUP BY table_name ORDER BY table_name
"""
_INDEXES: Final = (
    "SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema() ORDER BY tablename, indexname"
)
_STEPS: Final = "SELECT version, name, applied_at FROM schema_migrations ORDER BY version"
_STATES: Final = "SELECT status, count(*) FROM run_dispatches GROUP BY status ORDER BY status"
_RUN: Final = (
    "dispatch_id",
    "run_id",
    "status",
    "attempts",
    "max_attempts",
    "created_at",
    "available_at",
    "updated_at",
)
_QUEUE: Final = """
SELECT dispatch_id, run_id, status, attempt_count, max_attempts, created_at, available_at, updated_at
  FROM run_dispatches WHERE status IN ('Queued', 'Claimed', 'DeadLetter')
 ORDER BY updated_at, dispatch_id LIMIT $1::bigint
"""


def outline_of(transaction: PostgresTransaction) -> Outline:
    """Look at the schema of an open transaction."""
    connection = transaction.connection
    tables = _rows(connection, _COLUMNS)
    schema = [f"CREATE TABLE {name} (\n{columns}\n)" for name, columns in tables]
    schema += [row[0] for row in _rows(connection, _INDEXES)]
    return Outline(
        schema=";\n".join(schema) + ";\n",
        steps=[(row[0], row[1], row[2]) for row in _rows(connection, _STEPS)],
        rows={name: _count(connection, name) for name, _ in tables},
        states={row[0]: row[1] for row in _rows(connection, _STATES)},
        queue=[dict(zip(_RUN, row, strict=True)) for row in _rows(connection, _QUEUE, _MOST_RUNS)],
    )


def _count(connection: Connection, table: str) -> int:
    return int(_rows(connection, f"SELECT count(*) FROM {quoted(table)}")[0][0])  # noqa: S608 - from the schema


def _rows(connection: Connection, text: str, *values: object) -> list[Row]:
    found = connection.send(text, values)
    connection.wait()
    return found.rows
