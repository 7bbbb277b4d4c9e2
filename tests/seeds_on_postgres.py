"""Runs the acceptance tests of the parent folder on PostgreSQL, unchanged: `pytest -p seeds_on_postgres <files>`.

Their own fixture names a SQLite file in an older variable; ours names a schema of a real server in the newer
one, which wins. Each test gets a separate schema, and a separate data folder: a folder belongs to one store.
"""

from collections.abc import Iterator
from hashlib import blake2b

import psycopg
import pytest

from postgres_server import running_postgres

WITHOUT_A_DATABASE = {"test_concurrent_archive_writes", "test_concurrent_message_bundle_writes"}
"""They write straight into Git repositories."""


@pytest.fixture(scope="session")
def seeds_dsn() -> Iterator[str]:
    with running_postgres() as dsn:
        yield dsn


@pytest.fixture(autouse=True)
def on_postgres(
    seeds_dsn: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[None]:
    """Run before the fixture of the tests, which reads the settings again."""
    schema = f"seeds_{blake2b(request.node.nodeid.encode(), digest_size=8).hexdigest()}"
    with psycopg.connect(seeds_dsn, autocommit=True) as session:
        monkeypatch.setenv("POSTROOM_DATABASE_URL", seeds_dsn)
        monkeypatch.setenv("POSTROOM_DATABASE_SCHEMA", schema)
        monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield
        used = session.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchall()
        session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    needs_one = "isolated_env" in request.fixturenames and request.node.name not in WITHOUT_A_DATABASE
    assert bool(used) == needs_one, "tests of the database touch PostgreSQL, and no others do"
