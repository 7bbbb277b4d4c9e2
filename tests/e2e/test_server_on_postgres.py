"""A real `postroom up` on a real PostgreSQL: everything a server does, one server a schema, nothing lost."""

import asyncio
import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from e2e.commands import run_here
from e2e.peer import CLIENTS
from e2e.running import START_PATIENCE, Line, RunningServer, plain_environment, soon
from embedded_room import echo
from machine import PATIENCE
from postgres_server import PostgresServer, is_given
from postroom.embedded.mailbox import Mailbox
from store_kinds import refuse_missing

pytestmark = pytest.mark.long

FOLDER = "/yard/elephants"
SLUG = "yard-elephants"
CONFIGURATION, TEMPORARY = 78, 75
_NUMBERS = count(1)
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def flags(dsn: str, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Flags of a server on a schema that nobody used, with a password that must not be shown."""
    schema = f"server_{os.getpid()}_{next(_NUMBERS)}"
    config = tmp_path / "config" / "postroom" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'database_schema = "{schema}"\n')
    yield ("--database-url", dsn.replace("postgres@", "postgres:hunter2@"))
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
def server(flags: tuple[str, ...], tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data", *flags) as running:
        yield running


def postroom(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "postroom", *words],
        capture_output=True,
        text=True,
        timeout=START_PATIENCE,
        env=plain_environment(tmp_path),
        check=False,
    )


def ask(server: RunningServer, method: str, target: str, document: Any = None) -> Any:
    """Ask as the operator and return the answer's document or text."""
    body = None if document is None else json.dumps(document).encode()
    with Line(server.address, headers=server.headers, patience=20) as line:
        answer = line.request(method, target, body=body, headers={"Content-Type": "application/json"})
        return json.loads(answer.body) if answer.body[:1] == b"{" else answer.text


async def write_by_a_real_client(server: RunningServer, client: str, subject: str) -> int:
    """Register two agents, reserve, send and acknowledge; return the message's id."""
    async with CLIENTS[client](f"{server.url}/mcp", server.token) as tool:
        await tool("ensure_project", human_key=FOLDER)
        for name in ("Ada", "Ben"):
            await tool("register_agent", project_key=FOLDER, program="p", model="m", name=name)
        await tool(
            "file_reservation_paths", project_key=FOLDER, agent_name="Ada", paths=[f"src/{subject}/**"]
        )
        sent = await tool(
            "send_message",
            project_key=FOLDER,
            sender_name="Ada",
            to=["Ben"],
            subject=subject,
            body_md=f"The *{subject}* is lit.",
        )
        number = int(sent["deliveries"][0]["payload"]["id"])
        await tool("acknowledge_message", project_key=FOLDER, agent_name="Ben", message_id=number)
        return number


async def read_by_a_real_client(server: RunningServer, client: str) -> dict[str, Any]:
    async with CLIENTS[client](f"{server.url}/mcp", server.token) as tool:
        inbox = await tool("fetch_inbox", project_key=FOLDER, agent_name="Ben", include_bodies=True)
        found = await tool("search_messages", project_key=FOLDER, query="lit")
        return {"inbox": inbox["result"], "found": found["hits"]}


def test_what_clients_wrote_is_there_after_a_kill(server: RunningServer) -> None:
    first = asyncio.run(write_by_a_real_client(server, "fastmcp", "lamp"))
    second = asyncio.run(write_by_a_real_client(server, "2026", "candle"))
    server.kill()
    server.start()
    third = asyncio.run(write_by_a_real_client(server, "handshake", "torch"))
    seen = asyncio.run(read_by_a_real_client(server, "fastmcp"))
    assert {one["id"] for one in seen["inbox"]} == {first, second, third}
    assert {one["id"] for one in seen["found"]} == {first, second, third}
    server.await_archive()
    with server.line() as line:
        events = line.request("GET", f"/v1/events?project_key={FOLDER}&after=0").json()
        page = line.request("GET", f"/p/{SLUG}")
    assert page.status == 200
    assert "message.sent" in json.dumps(events)
    assert server.log().count("Traceback") == 0


def test_the_operator_sees_the_database_and_never_its_password(server: RunningServer) -> None:
    asyncio.run(write_by_a_real_client(server, "2026", "lamp"))
    status = ask(server, "GET", "/admin/status")
    assert status["database"].startswith("postgresql://127.0.0.1:")
    assert status["database"].endswith("/postgres, schema " + status["database"].split()[-1])
    assert status["records"]["messages"] == 1
    found = ask(server, "GET", "/admin/doctor")
    assert {one["name"]: one["state"] for one in found["checks"]}["store reads"] == "ok"
    assert [one for one in found["checks"] if one["state"] == "failed"] == []
    assert "PostgreSQL" in json.dumps(found)
    bundle = ask(server, "GET", "/admin/support-bundle")
    assert json.loads(bundle["files"]["counts.json"])["messages"] == 1
    metrics = ask(server, "GET", "/metrics")
    assert "postroom_db_commits_total" in metrics
    shown = json.dumps([status, found, bundle]) + metrics + server.log()
    assert "hunter2" not in shown
    refused = ask(server, "POST", "/admin/backup", {"target": None})
    assert "pg_dump" in json.dumps(refused)
    assert refused["code"] == "state_conflict"


def test_a_second_server_in_the_same_data_folder_is_refused_and_the_first_goes_on(
    server: RunningServer, flags: tuple[str, ...], tmp_path: Path
) -> None:
    before = server.note.read_text()
    refused = postroom(tmp_path, "up", "--port", "0", "--data-dir", str(server.data_dir), *flags)
    assert refused.returncode == CONFIGURATION
    assert f"{server.data_dir} is in use by process {server.pid} (server, since " in refused.stderr
    assert server.note.read_text() == before
    assert readiness(server) == ("ok", None)
    server.kill()
    server.start()


def test_a_server_is_not_ready_while_postgresql_is_away_and_goes_on_by_itself(tmp_path: Path) -> None:
    refuse_missing("postgres")
    if is_given():
        pytest.skip("the server of TEST_DATABASE_URL is not ours to kill")
    with PostgresServer() as postgres:
        postgres.start()
        with RunningServer(tmp_path / "data", "--database-url", postgres.dsn) as server:
            asyncio.run(write_by_a_real_client(server, "2026", "lamp"))
            postgres.kill()
            soon(lambda: readiness(server) == ("failed", "store_unavailable"), "it was told")
            found = json.dumps(ask(server, "GET", "/admin/doctor"))
            assert (found.count("Connection refused"), found.count("as reported above") > 2) == (1, True)
            postgres.start()
            soon(lambda: readiness(server) == ("ok", None), "it was ready again")
            asyncio.run(write_by_a_real_client(server, "2026", "candle"))
            seen = asyncio.run(read_by_a_real_client(server, "2026"))
            assert [one["subject"] for one in seen["inbox"]] == ["candle", "lamp"]


def test_every_surface_takes_an_address_of_a_unix_socket(tmp_path: Path, here: Command) -> None:
    refuse_missing("postgres")
    if is_given():
        pytest.skip("the server of TEST_DATABASE_URL may have no socket here")
    with PostgresServer() as postgres:
        postgres.start()
        url = f"postgresql://postgres@/postgres?host={postgres.sockets}&port={postgres.port}"
        words = f"user=postgres dbname=postgres host={postgres.sockets} port={postgres.port}"
        with RunningServer(tmp_path / "data", "--database-url", url) as server:
            asyncio.run(write_by_a_real_client(server, "2026", "lamp"))
            assert readiness(server) == ("ok", None)
        shown = f"postgresql:///postgres?host={postgres.sockets}&port={postgres.port}, schema postroom"
        for address in (url, words):
            target = f"sqlite:{tmp_path}/copy.db"
            copied = here("database", "copy", "--from", address, "--to", target, "--dry-run", "--json")
            assert json.loads(copied.stdout)["from"] == shown

        async def answers() -> list[object]:
            found = []
            for address in (url, words):
                async with Mailbox.open(address, echo, schema="library") as mailbox:
                    found.append(await (await mailbox.enqueue("t", "go")).result(timeout=PATIENCE))
            return found

        assert asyncio.run(answers()) == ["you said go"] * 2


def readiness(server: RunningServer) -> tuple[str, str | None]:
    found = ask(server, "GET", "/readyz")
    store = found["checks"]["store"]
    return store["state"], store.get("code")


ADDRESSES = (
    ("postgresql://u:hunter2@127.0.0.1:1/mail", TEMPORARY, "cannot be reached"),
    ("postgresql://u:hunter2@127.0.0.1:x/mail", CONFIGURATION, "a numeric port"),
    ("mysql://u:hunter2@db/mail", CONFIGURATION, "postgresql://user:password@host:port/database"),
    ("postgresql://u:hunter2@2@db/mail", CONFIGURATION, "%40"),
    ("postgresql://u:p/hunter2@db/mail", CONFIGURATION, "%2F"),
    ("postgresql://u:hunter2@127.0.0.1:99999/mail", CONFIGURATION, 'wrong: invalid port number: "99999"'),
    ("postgresql://u:hunter2@127.0.0.1:1/mail?foo=bar", CONFIGURATION, 'parameter "foo"'),
    ("postgresql://u:hunter2@127.0.0.1:1/mail?sslmode=maybe", CONFIGURATION, '"maybe"'),
)
LACKS = (
    ("postgres", "no_such_mail", "createdb no_such_mail"),
    ("postgres", "postgres?sslmode=require", "sslmode=disable"),
    ("postgres", "read_only", "writable server"),
    ("guest", "guarded", 'GRANT CREATE ON DATABASE guarded TO "guest"'),
    ("stranger", "anothers", 'GRANT USAGE, CREATE ON SCHEMA "postroom" TO "stranger"'),
)
"""User, database, and what to do."""


def test_what_is_wrong_with_the_address_is_one_sentence(tmp_path: Path, here: Command) -> None:
    for url, code, told in ADDRESSES:
        refused(url, code, told, tmp_path, here)


def test_what_the_server_does_not_offer_is_told_with_what_to_do(
    dsn: str, tmp_path: Path, here: Command
) -> None:
    with psycopg.connect(dsn, autocommit=True) as session:
        for name in ("read_only", "guarded", "anothers"):
            session.execute(f"CREATE DATABASE {name}")
        session.execute("ALTER DATABASE read_only SET default_transaction_read_only = on")
        session.execute("CREATE ROLE guest LOGIN; CREATE ROLE stranger LOGIN")
        session.execute("GRANT CREATE ON DATABASE anothers TO stranger")
    with psycopg.connect(f"{dsn.rpartition('/')[0]}/anothers", autocommit=True) as session:
        session.execute("CREATE SCHEMA postroom")
    for user, path, told in LACKS:
        url = f"{dsn.replace('postgres@', f'{user}:hunter2@').rpartition('/')[0]}/{path}"
        refused(url, CONFIGURATION, told, tmp_path, here)


def test_what_listens_there_and_is_no_postgresql_is_told_as_that(tmp_path: Path, here: Command) -> None:
    answers = [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""]

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(answers[0])
            self.request.recv(100)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{other.server_address[1]}"
        for code, what in (
            (CONFIGURATION, "is not PostgreSQL"),
            (TEMPORARY, "did not answer as PostgreSQL within 10 s"),
        ):
            told = f"the program that listens at {place} {what}"
            refused(f"postgresql://u:hunter2@{place}/mail", code, told, tmp_path, here)
            answers.pop(0)
        other.shutdown()


@pytest.fixture
def here(tmp_path: Path) -> Command:
    """Runs a command in this process; other tests check that a separate process ends in the same way."""
    return partial(run_here, environment=plain_environment(tmp_path))


def refused(url: str, code: int, told: str, tmp_path: Path, run: Command | None = None) -> None:
    """See that a server does not start on an address, and says in one sentence why and in one what to do."""
    run = run or partial(postroom, tmp_path)
    found = run("up", "--port", "0", "--data-dir", str(tmp_path / "data"), "--database-url", url)
    assert (found.returncode, "Traceback" in found.stderr) == (code, False), found.stderr
    assert told in found.stderr
    assert len(found.stderr.strip().splitlines()) == 3, "the failure, its remedy, and its code"
    assert "hunter2" not in found.stdout + found.stderr
    assert not (tmp_path / "data").exists(), "nothing is made for a database that is refused"
