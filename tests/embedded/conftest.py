"""A database for the tests of the library, and how a mailbox is opened on it, with time as it passes or by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from embedded_room import SOON, Database
from postroom import testing
from postroom.embedded.mailbox import Mailbox


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database: in memory, or of the kinds that `on` names."""
    schema, kind = f"embedded_{uuid4().hex}", getattr(request, "param", "memory")
    if kind != "postgres":
        yield Database("memory" if kind == "memory" else f"sqlite:///{tmp_path}/runs.db", schema)
        return
    url = request.getfixturevalue("postgres_dsn")
    yield Database(url, schema)
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
def opening(database: Database) -> Any:
    """Open a mailbox on the database of this test, repeatedly."""
    return lambda work, config=SOON: Mailbox.open(database.url, work, config=config, schema=database.schema)


@pytest.fixture
def manual(database: Database) -> Any:
    """Open a mailbox whose time the test moves."""
    return lambda work, config=None: testing.mailbox(
        work, database.url, config=config, schema=database.schema
    )
