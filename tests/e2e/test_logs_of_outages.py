"""The log of a real server while its PostgreSQL is unavailable: the outage, and not each failed round of work."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from e2e.running import RunningServer, plain_environment, soon
from e2e.test_server_on_postgres import readiness
from postgres_server import PostgresServer, is_given
from store_kinds import refuse_missing

pytestmark = pytest.mark.long


def lines(server: RunningServer, event: str = "") -> list[dict[str, Any]]:
    """Return what the server logged, all of it or one event's."""
    read = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    return [line for line in read if event in ("", line["event"])]


def test_a_database_that_is_away_is_told_once_and_when_it_is_back_for_how_long(tmp_path: Path) -> None:
    refuse_missing("postgres")
    if is_given():
        pytest.skip("the server of TEST_DATABASE_URL is not ours to stop")
    environment = {
        **plain_environment(tmp_path),
        "POSTROOM_LOG_FORMAT": "json",
        "POSTROOM_DATABASE_SCHEMA": f"away_{os.getpid()}",
    }
    with PostgresServer() as postgres:
        postgres.start()
        flags = ("--database-url", postgres.dsn)
        with RunningServer(tmp_path / "served", *flags, environment=environment) as server:
            begin = len(lines(server))
            postgres.stop()
            soon(lambda: bool(lines(server, "store.lost")), "the log says that the store is lost")
            looked = {"ready": 0}

            def is_looked_at_again() -> bool:
                looked["ready"] += readiness(server) == ("failed", "store_unavailable")
                return looked["ready"] > 40  # some seconds, in which every part that works in rounds met it

            soon(is_looked_at_again, "the server is not ready")
            postgres.start()
            soon(lambda: readiness(server) == ("ok", None), "the server is ready again")
            soon(lambda: bool(lines(server, "store.back")), "the log says that the store is back")
            told = lines(server)[begin:]
    [lost] = [line for line in told if line["event"] == "store.lost"]
    assert (lost["code"], lost["level"]) == ("store_unavailable", "warning")
    assert "PostgreSQL server runs" in lost["remedy"]
    [back] = [line for line in told if line["event"] == "store.back"]
    assert back["lost_for_s"] > 0
    others = [line["event"] for line in told if line["event"] not in ("store.lost", "store.back")]
    assert set(others) <= {"store.hints_lost", "store.reconnected"}, others
