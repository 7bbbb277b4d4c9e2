"""A database for the tests of the library, on each engine."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from embedded_room import SOON
from postroom.embedded.mailbox import Mailbox


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Open a mailbox on a database of this test, again and again."""
    schema = f"embedded_{uuid4().hex}"
    url = {"memory": "memory", "sqlite": f"sqlite:///{tmp_path}/runs.db"}.get(request.param)
    if url is None:
        url = request.getfixturevalue("postgres_dsn")
    yield lambda work, config=SOON: Mailbox.open(url, work, config=config, schema=schema)
    if request.param == "postgres":
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
