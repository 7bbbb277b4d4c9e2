"""The report on a schema on PostgreSQL, and the findings of a check of all of it."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from postgres_server import PostgresServer, is_given
from postroom.stores.migrations import list_tables, shipped_migrations
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite import SqliteStore

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("postgres_dsn")]

DISPATCH = """
INSERT INTO run_dispatches
  (dispatch_id, thread_id, run_id, created_at, available_at, updated_at, status, priority, tenant, dispatch_epoch,
   attempt_count, max_attempts, reconciled, is_open)
VALUES ('d', 't', 'r', 1, 1, 1, 'Queued', 1, '', 0, 0, 3, 0, 1)
"""


@contextmanager
def a_store(dsn: str, schema: str) -> Iterator[PostgresStore]:
    store = PostgresStore.open(dsn, schema=schema)
    try:
        yield store
    finally:
        store.close()


def on(dsn: str, schema: str, *statements: str) -> None:
    """Make a change in the database that no store would make."""
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f'SET search_path TO "{schema.replace(chr(34), chr(34) * 2)}"'.encode())
        for statement in statements:
            session.execute(statement.encode())


def test_the_outline_tells_the_schema_the_numbers_of_rows_and_what_waits(
    postgres_dsn: str, a_schema: str
) -> None:
    with a_store(postgres_dsn, a_schema) as store:
        on(postgres_dsn, a_schema, DISPATCH)
        told = asyncio.run(store.outline())
    assert [number for number, _, _ in told.steps] == [
        step.version for step in shipped_migrations("postgres")
    ]
    assert told.rows["run_dispatches"] == 1
    assert told.states == {"Queued": 1}
    assert told.queue == [
        {
            "dispatch_id": "d",
            "run_id": "r",
            "status": "Queued",
            "attempts": 0,
            "max_attempts": 3,
            "created_at": 1,
            "available_at": 1,
            "updated_at": 1,
        }
    ]
    assert told.schema.count("CREATE TABLE ") == len(told.rows)
    assert "CREATE UNIQUE INDEX run_" in told.schema


def test_both_engines_outline_the_same_tables(postgres_dsn: str, a_schema: str) -> None:
    kept = SqliteStore.in_memory()
    try:
        on_sqlite = asyncio.run(kept.outline())
    finally:
        kept.close()
    with a_store(postgres_dsn, a_schema) as store:
        on_postgres = asyncio.run(store.outline())
    for table in ("run_dispatches", "messages", "inbound_messages", "outbox"):
        assert on_sqlite.rows[table] == on_postgres.rows[table] == 0
        assert re.search(rf'CREATE TABLE "?{table}"? ', on_sqlite.schema)  # renamed ones are quoted
        assert f"CREATE TABLE {table} " in on_postgres.schema


def test_a_sound_schema_has_nothing_wrong_with_it(postgres_dsn: str, a_schema: str) -> None:
    with a_store(postgres_dsn, a_schema) as store:
        on(postgres_dsn, a_schema, DISPATCH)
        assert asyncio.run(store.check()) == []


def test_rows_that_break_a_rule_are_found(postgres_dsn: str, a_schema: str) -> None:
    with a_store(postgres_dsn, a_schema) as store:
        on(
            postgres_dsn,
            a_schema,
            "SET session_replication_role = replica",  # as a faulty restore does: nothing is looked up
            "INSERT INTO project_aliases VALUES ('gone', 77), ('too', 78)",
            "CREATE TABLE jottings (words text, CONSTRAINT good CHECK (words <> 'bad'))",
            "INSERT INTO jottings VALUES ('good')",
            "ALTER TABLE jottings DROP CONSTRAINT good",
            "INSERT INTO jottings VALUES ('bad')",
            "ALTER TABLE jottings ADD CONSTRAINT good CHECK (words <> 'bad') NOT VALID",
        )
        assert asyncio.run(store.check()) == [
            "constraint good of table jottings: 1 rows break it",
            "foreign key project_aliases_project_id_fkey of table project_aliases: 2 rows break it",
        ]


def test_missing_tables_and_columns_are_found(postgres_dsn: str, a_schema: str) -> None:
    with a_store(postgres_dsn, a_schema) as store:
        on(postgres_dsn, a_schema, "DROP TABLE run_starts", "ALTER TABLE schedules DROP COLUMN every_ms")
        found = asyncio.run(store.check())
    assert found[0] == "table run_starts is missing"
    assert any("every_ms" in fault for fault in found), found
    assert not any("run_starts" in fault for fault in found[1:]), found


def test_each_table_that_is_missing_is_named(postgres_dsn: str, a_schema: str) -> None:
    with a_store(postgres_dsn, a_schema) as store:
        found = set(asyncio.run(store.outline()).rows) - {"schema_migrations"}
        assert found == list_tables("postgres")
        kept = {"store_identity", "schema_migrations"}
        on(postgres_dsn, a_schema, *(f"DROP TABLE {name} CASCADE" for name in found - kept))
        assert [f"table {name} is missing" for name in sorted(found - kept)][:40] == asyncio.run(
            store.check()
        )


@pytest.mark.skipif(is_given(), reason="the server is somebody else's")
@pytest.mark.timeout(120)
def test_a_damaged_page_is_found() -> None:
    with PostgresServer() as server:
        server.start()
        with a_store(server.dsn, "postroom"):
            on(server.dsn, "postroom", DISPATCH, "CHECKPOINT")
        file = _value(server.dsn, "SELECT pg_relation_filepath('postroom.run_dispatches')")
        server.stop()
        page = server.data / file
        damaged = bytearray(page.read_bytes())
        damaged[5_000] ^= 0xFF
        page.write_bytes(damaged)
        server.start()
        with a_store(server.dsn, "postroom") as store:
            found = asyncio.run(store.check())
    assert found
    assert all(fault.startswith(("table run_dispatches: ", "constraint run_dispatches")) for fault in found)


def _value(dsn: str, statement: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as session:
        row = session.execute(statement.encode()).fetchone()
    assert row is not None
    return str(row[0])
