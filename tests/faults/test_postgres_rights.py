"""Rights that the database's user loses while a server runs: reported by each check, with the remedy."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from e2e.commands import run_here
from e2e.running import RunningServer, plain_environment, soon
from e2e.test_postgres_settings import SEQUENCES, TABLES, a_guest
from e2e.test_server_on_postgres import ask, readiness
from postroom.contracts.errors import StoreReadOnly
from postroom.stores.postgres import notifications
from postroom.stores.postgres.store import PostgresStore
from table_rows import each_row

pytestmark = pytest.mark.long


@pytest.fixture
def guest(postgres_dsn: str) -> Iterator[tuple[str, str]]:
    with a_guest(postgres_dsn, TABLES, SEQUENCES) as lent:
        yield lent


@pytest_asyncio.fixture
async def store(guest: tuple[str, str]) -> AsyncIterator[PostgresStore]:
    dsn, schema = guest
    opened = await asyncio.to_thread(PostgresStore.open, dsn, schema=schema)
    yield opened
    await asyncio.to_thread(opened.close)


@contextmanager
def without(dsn: str, right: str, name: str) -> Iterator[None]:
    """Take a right from a user for a while."""
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"REVOKE {right} FROM {name}")
        yield
        session.execute(f"GRANT {right} TO {name}")


@each_row(
    "right, told, mended_by",
    [
        *[
            (f"{one} ON {{schema}}.{table}", f"lacks {one} on {table} ", TABLES)
            for table, one in [
                ("contacts", "SELECT"),
                ("messages", "INSERT"),
                ("schedules", "UPDATE"),
                ("outbox", "DELETE"),
                ("probe", "UPDATE"),
            ]
        ],
        ("USAGE ON SEQUENCE {schema}.messages_id_seq", "lacks USAGE on messages_id_seq ", SEQUENCES),
        ("SELECT ON {schema}.schema_migrations", "lacks SELECT on schema_migrations ", TABLES),
        ("USAGE ON SCHEMA {schema}", "lacks USAGE on the schema ", "USAGE ON SCHEMA"),
    ],
)
async def test_a_right_that_is_taken_away_is_told_by_the_probe_with_what_to_grant(
    right: str, told: str, mended_by: str, store: PostgresStore, guest: tuple[str, str], postgres_dsn: str
) -> None:
    name = guest[1]
    await store.probe()
    with without(postgres_dsn, right.format(schema=name), name):
        with pytest.raises(StoreReadOnly, match=f"the user {name} {told}") as refused:
            await store.probe()
        assert f"GRANT {mended_by}" in refused.value.remedy
        with psycopg.connect(postgres_dsn, autocommit=True) as session:
            session.execute(refused.value.remedy.removeprefix("ask an administrator to run "))
        await store.probe()


async def test_a_store_that_looks_at_its_schema_while_usage_is_revoked_works_when_it_is_granted_again(
    guest: tuple[str, str], postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "LOOKS_EVERY", timedelta(0))
    monkeypatch.setattr(notifications, "LOOK_AGAIN_AFTER", timedelta(0))
    dsn, name = guest
    store = await asyncio.to_thread(PostgresStore.open, dsn, schema=name)
    try:
        for _ in range(30):
            with (
                without(postgres_dsn, f"USAGE ON SCHEMA {name}", name),
                pytest.raises(StoreReadOnly, match="lacks USAGE on the schema"),
            ):
                await store.probe()
            await store.probe()
    finally:
        await asyncio.to_thread(store.close)


async def test_a_call_that_lacks_the_right_is_told_what_to_grant(
    store: PostgresStore, guest: tuple[str, str], postgres_dsn: str
) -> None:
    name = guest[1]
    with (
        without(postgres_dsn, f"SELECT ON {name}.agents", name),
        pytest.raises(StoreReadOnly, match="permission denied for table agents") as refused,
    ):
        await store.read(lambda tx: tx.agent_by_token("a"))
    assert f'GRANT {TABLES} IN SCHEMA "{name}" TO "{name}"' in refused.value.remedy


def test_a_server_whose_user_lost_a_right_is_not_ready_until_it_has_it_again(
    guest: tuple[str, str], postgres_dsn: str, tmp_path: Path
) -> None:
    url, name = guest
    environment = {**plain_environment(tmp_path), "POSTROOM_DATABASE_SCHEMA": name}
    with RunningServer(tmp_path / "served", "--database-url", url, environment=environment) as server:
        with without(postgres_dsn, f"DELETE ON {name}.outbox", name):
            soon(lambda: readiness(server) == ("failed", "store_read_only"), "the server is not ready")
            assert ask(server, "GET", "/readyz")["checks"]["store"]["lacking"] == ["DELETE"]
            looked = run_here("doctor", "--json", "--data-dir", str(server.data_dir), environment=environment)
        found = {one["name"]: one for one in json.loads(looked.stdout)["checks"]}["store writes"]
        assert (looked.returncode, found["state"]) == (1, "failed")
        assert f"lacks DELETE on outbox of the schema {name}" in found["detail"]
        assert f'GRANT {TABLES} IN SCHEMA "{name}" TO "{name}"' in found["remedy"]
        assert f"GRANT {TABLES} IN SCHEMA" in server.log()
        soon(lambda: readiness(server) == ("ok", None), "the server is ready again")
