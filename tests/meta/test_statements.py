"""Every statement prepares on both engines, and those with a second text stay few."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sql_transaction import second_texts, statements
from postroom.stores.sqlite.migrate import migrate
from table_rows import each_row

MAX_SECOND_TEXTS = 19
NOT_TO_BE_PREPARED = {"store.rehearse", "store.forget_rehearsal", "store.end_rehearsal"}
"""Statements that PREPARE does not accept: commands about the transaction itself."""


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, Path(":memory:"), now=0)
        yield connection


@each_row("name", statements("sqlite"))
def test_a_statement_prepares_on_sqlite(empty: sqlite3.Connection, name: str) -> None:
    found = statements("sqlite")[name]
    for text in {found.text, found.text_of_one}:
        assert empty.execute(f"EXPLAIN {text}", dict.fromkeys(found.parameters)).fetchall()


def test_every_statement_prepares_on_postgres(postgres_dsn: str, a_schema: str) -> None:
    PostgresStore.open(postgres_dsn, schema=a_schema).close()
    refused = {}
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {psycopg.sql.Identifier(a_schema).as_string(connection)}")
        for name, found in statements("postgres").items():
            if name in NOT_TO_BE_PREPARED:
                continue
            try:
                connection.execute(f"PREPARE one AS {found.text}".encode())
                connection.execute("DEALLOCATE one")
            except psycopg.Error as error:
                refused[name] = str(error)
    assert refused == {}


def test_a_statement_of_one_engine_alone_counts_as_a_second_text() -> None:
    assert statements("sqlite").keys() ^ statements("postgres").keys() <= set(second_texts())


def test_statements_with_a_second_text_are_few() -> None:
    assert len(second_texts()) <= MAX_SECOND_TEXTS, second_texts()
