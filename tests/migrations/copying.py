"""Copies every table of a database in SQLite to a schema of PostgreSQL, column by column."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from postroom.stores.mail import search_index
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.stores.transaction import Transaction

LEFT_OUT = ("schema_migrations", "search_index_progress", "sqlite_", "messages_fts")
"""What belongs to SQLite: its ledger, how far its indexes reach, its counters, its search index."""
Tables = dict[str, tuple[list[str], list[tuple[Any, ...]]]]


def copy_to_postgres(
    path: Path, dsn: str, *, schema: str = "postroom", becomes: Callable[[Any], Any] = lambda value: value
) -> Tables:
    """Bring both to the newest schema, copy all rows, and return them by table with their columns.

    `becomes` says what a value is afterwards.
    """
    SqliteStore.open(path, purpose="copying").close()
    store = PostgresStore.open(dsn, schema=schema)
    try:
        copied = tables_of(path)
        with psycopg.connect(dsn) as session:
            session.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
            session.execute(
                "SET session_replication_role = replica"
            )  # what refers to others comes in any order
            for table, (columns, rows) in copied.items():
                _insert(session, table, columns, [tuple(map(becomes, row)) for row in rows])
            _count_on(session, schema)
        asyncio.run(store.store.write(_fill_the_search_index))
    finally:
        store.close()
    return copied


def tables_of(path: Path) -> Tables:
    """Return what a database in SQLite holds."""
    found: Tables = {}
    with closing(sqlite3.connect(path)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for table in tables:
            if not table.startswith(LEFT_OUT):
                answer = connection.execute(f'SELECT * FROM "{table}" ORDER BY 1, 2')
                found[table] = ([column[0] for column in answer.description], answer.fetchall())
    return found


def rows_on_postgres(
    session: psycopg.Connection[Any], table: str, columns: list[str]
) -> list[tuple[Any, ...]]:
    """Return the rows of a table, as they were copied."""
    named = sql.SQL(", ").join(map(sql.Identifier, columns))
    return session.execute(
        sql.SQL("SELECT {} FROM {} ORDER BY 1, 2").format(named, sql.Identifier(table))
    ).fetchall()


def _insert(
    session: psycopg.Connection[Any], table: str, columns: list[str], rows: list[tuple[Any, ...]]
) -> None:
    statement = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join(sql.Placeholder() for _ in columns),
    )
    session.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
    session.cursor().executemany(statement, rows)


def _count_on(session: psycopg.Connection[Any], schema: str) -> None:
    """Let each number that the database gives begin behind those that were copied."""
    numbered = session.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = %s AND is_identity = 'YES'",
        [schema],
    ).fetchall()
    for table, column in numbered:
        session.execute(
            sql.SQL(
                "SELECT setval(pg_get_serial_sequence(quote_ident({table}), {column}),"
                " (SELECT coalesce(max({name}), 0) + 1 FROM {named}), false)"
            ).format(
                table=sql.Literal(table),
                column=sql.Literal(column),
                name=sql.Identifier(column),
                named=sql.Identifier(table),
            )
        )


def _fill_the_search_index(tx: Any) -> None:
    assert isinstance(tx, Transaction)
    search_index.fill(tx.sql)
