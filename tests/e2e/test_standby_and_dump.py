"""The needs of an operator of PostgreSQL: a standby that takes over, a dump that is restored. All of it is real."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from e2e.running import Cut, Refused, RunningServer, plain_environment
from machine import PATIENCE
from postgres_server import PostgresServer, is_given
from store_kinds import refuse_missing

FOLDER = "/yard/standby"
BEFORE, AFTER = 20, 5
REPLICATED = {
    "wal_level": "replica",
    "max_wal_senders": "4",
    "hot_standby": "on",
}
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    refuse_missing("postgres")
    if is_given():
        pytest.skip("the server that was given is not ours to stop")
    with PostgresServer(settings=REPLICATED) as server:
        server.start()
        yield server


def sent(server: RunningServer, number: int) -> int:
    """Send a message, repeatedly until it is accepted, and return its id."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.2)):
        try:
            with server.line() as line:
                message = line.tool(
                    "send_message",
                    project_key=FOLDER,
                    sender_name="Ada",
                    to=["Ben"],
                    subject=f"{number}",
                    body_md="plum",
                    idempotency_key=f"message {number}",
                )
            return int(message["deliveries"][0]["payload"]["id"])
        except (Refused, Cut):
            pause.wait(0.2)
    raise AssertionError(f"no message was accepted in {PATIENCE} s:\n{server.log()[-3000:]}")


def inbox(server: RunningServer) -> list[int]:
    with server.line() as line:
        found = line.tool("fetch_inbox", project_key=FOLDER, agent_name="Ben", limit=100)
    return sorted(int(message["id"]) for message in found)


def furnished(server: RunningServer) -> None:
    with server.line() as line:
        line.crew(FOLDER, "Ada", "Ben")


def test_what_was_accepted_outlives_the_primary_when_the_standby_is_synchronous(
    primary: PostgresServer, tmp_path: Path
) -> None:
    with PostgresServer(settings=REPLICATED, standby_of=primary) as standby:
        standby.start()
        with psycopg.connect(primary.dsn, autocommit=True) as session:
            session.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            session.execute("SELECT pg_reload_conf()")
        hosts = ",".join(urlsplit(one.dsn).netloc.rpartition("@")[2] for one in (primary, standby))
        address = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        with RunningServer(tmp_path / "data", "--database-url", address) as server:
            furnished(server)
            accepted = [sent(server, number) for number in range(BEFORE)]
            primary.kill()
            with psycopg.connect(standby.dsn, autocommit=True) as session:
                assert session.execute("SELECT pg_promote()").fetchone() == (True,)
                session.execute("ALTER SYSTEM RESET synchronous_standby_names")
                session.execute("SELECT pg_reload_conf()")
            accepted += [sent(server, number) for number in range(BEFORE, BEFORE + AFTER)]
            assert len(set(accepted)) == BEFORE + AFTER
            assert inbox(server) == sorted(accepted)


def test_a_dump_of_a_running_server_is_restored_into_another_database(
    primary: PostgresServer, tmp_path: Path
) -> None:
    with RunningServer(tmp_path / "data", "--database-url", primary.dsn) as server:
        furnished(server)
        accepted = [sent(server, number) for number in range(BEFORE)]
        dump = tmp_path / "postroom.dump"
        made = [primary.programs / "pg_dump", "--format=custom", f"--file={dump}", primary.dsn]
        subprocess.run(made, check=True, env=plain_environment(tmp_path))
        sent(server, BEFORE)
    with psycopg.connect(primary.dsn, autocommit=True) as session:
        session.execute("CREATE DATABASE restored")
    restored = urlsplit(primary.dsn)._replace(path="/restored").geturl()
    words = [primary.programs / "pg_restore", "--exit-on-error", f"--dbname={restored}", dump]
    subprocess.run(words, check=True, env=plain_environment(tmp_path))
    with RunningServer(tmp_path / "other", "--database-url", restored) as server:
        assert inbox(server) == sorted(accepted)
        sent(server, BEFORE)
        assert len(inbox(server)) == BEFORE + 1
