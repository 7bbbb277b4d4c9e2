"""A real `postroom up` on a real PostgreSQL: everything a server does, one server a schema, nothing lost."""

import asyncio
import json
import os
import pwd
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from e2e.commands import run_here
from e2e.peer import CLIENTS
from e2e.running import START_PATIENCE, Line, RunningServer, plain_environment
from embedded_room import echo
from postgres_server import PostgresServer, is_given, running_postgres
from postroom.embedded.mailbox import Mailbox
from store_kinds import refuse_missing

pytestmark = pytest.mark.long

FOLDER = "/yard/elephants"
SLUG = "yard-elephants"
CONFIGURATION, TEMPORARY = 78, 75
PATIENCE = 40.0
_NUMBERS = count(1)
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    refuse_missing("postgres")
    with running_postgres() as found:
        yield found


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


def test_a_second_server_joins_and_each_sees_what_the_other_was_told(
    server: RunningServer, flags: tuple[str, ...], tmp_path: Path
) -> None:
    with RunningServer(tmp_path / "second", *flags) as second:
        number = asyncio.run(write_by_a_real_client(server, "2026", "lamp"))
        seen = asyncio.run(read_by_a_real_client(second, "handshake"))
        assert [one["id"] for one in seen["inbox"]] == [number]
        for one in (server, second):
            found = ask(one, "GET", "/admin/doctor")["checks"]
            assert [check for check in found if check["state"] == "failed"] == []
        told = ask(second, "GET", "/admin/cluster")
        assert sorted(one["address"] for one in told["servers"]) == sorted([server.url, second.url])
        [first] = [one["name"] for one in told["servers"] if one["address"] == server.url]
        assert {one["work"]: (one["is_held"], one["server"]) for one in told["work"]} == {
            "archive": (True, first),
            "retention": (True, first),
        }
        shown = postroom(tmp_path, "cluster", "status", "--data-dir", str(tmp_path / "second"))
        assert (shown.returncode, shown.stdout.count(first) > 0, "this one" in shown.stdout) == (
            0,
            True,
            True,
        )
        server.kill()
        told = ask(second, "GET", "/admin/cluster")
        await_that(lambda: work_of(second) == {"archive", "retention"}, "the other one took over")
    offline = postroom(tmp_path, "doctor", "--data-dir", str(tmp_path / "second"))
    assert offline.returncode == 1


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


def test_a_run_that_a_killed_server_had_begun_is_taken_up_at_the_next_start(
    server: RunningServer, tmp_path: Path
) -> None:
    begun, may_end = tmp_path / "begun", tmp_path / "may end"
    script = f'cat >/dev/null; touch "{begun}"; test -e "{may_end}" || sleep 60; echo done'
    asyncio.run(write_by_a_real_client(server, "2026", "lamp"))
    runner = {"argv": ["sh", "-c", script], "cwd": str(tmp_path)}
    ask(server, "PUT", "/admin/runners", {"project": FOLDER, "agent": "Ben", "runner": runner})
    with server.line() as line:
        message = {"to": ["Ben"], "subject": "candle", "body_md": "Light it."}
        line.tool("send_message", project_key=FOLDER, sender_name="Ada", **message)
    await_that(begun.exists, "the run began")
    server.kill()
    may_end.touch()
    server.start()
    await_that(lambda: "done" in json.dumps(inbox_of_ada(server)), "the run was taken up again")
    assert [one["from"] for one in inbox_of_ada(server)] == ["Ben"]


def work_of(server: RunningServer) -> set[str]:
    """Return what a server does alone."""
    found = ask(server, "GET", "/admin/cluster")
    [this] = [one["name"] for one in found["servers"] if one["is_this"]]
    return {one["work"] for one in found["work"] if one["is_held"] and one["server"] == this}


def inbox_of_ada(server: RunningServer) -> Any:
    with server.line() as line:
        return line.tool("fetch_inbox", project_key=FOLDER, agent_name="Ada", include_bodies=True)


def test_a_server_is_not_ready_while_postgresql_is_away_and_goes_on_by_itself(tmp_path: Path) -> None:
    refuse_missing("postgres")
    if is_given():
        pytest.skip("the server of TEST_DATABASE_URL is not ours to kill")
    with PostgresServer() as postgres:
        postgres.start()
        with RunningServer(tmp_path / "data", "--database-url", postgres.dsn) as server:
            asyncio.run(write_by_a_real_client(server, "2026", "lamp"))
            postgres.kill()
            await_that(lambda: readiness(server) == ("failed", "store_unavailable"), "it was told")
            found = json.dumps(ask(server, "GET", "/admin/doctor"))
            assert (found.count("Connection refused"), found.count("as reported above") > 2) == (1, True)
            postgres.start()
            await_that(lambda: readiness(server) == ("ok", None), "it was ready again")
            asyncio.run(write_by_a_real_client(server, "2026", "candle"))
            seen = asyncio.run(read_by_a_real_client(server, "2026"))
            assert [one["subject"] for one in seen["inbox"]] == ["candle", "lamp"]


def test_doctor_finds_damage_on_postgresql_without_a_server(
    server: RunningServer, flags: tuple[str, ...], dsn: str, tmp_path: Path
) -> None:
    number = asyncio.run(write_by_a_real_client(server, "2026", "lamp"))
    server.stop()

    def doctor() -> tuple[int, dict[str, Any]]:
        words = ("doctor", "--json", "--data-dir", str(server.data_dir))
        found = run_here(
            *words, environment=plain_environment(tmp_path) | {"POSTROOM_DATABASE_URL": flags[1]}
        )
        return found.returncode, {one["name"]: one for one in json.loads(found.stdout)["checks"]}

    code, checks = doctor()
    assert (code, checks["store"]["state"], checks["messages"]["state"]) == (1, "ok", "ok"), checks
    config = (tmp_path / "config" / "postroom" / "config.toml").read_text()
    schema = config.partition('"')[2].partition('"')[0]
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"UPDATE {schema}.messages SET subject = 'oil' WHERE id = {number}".encode())
    code, checks = doctor()
    assert (code, checks["messages"]["state"]) == (1, "failed"), checks
    assert str(number) in checks["messages"]["detail"]
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("SET session_replication_role = replica")
        session.execute(f"INSERT INTO {schema}.project_aliases VALUES ('gone', 4242)".encode())
    code, checks = doctor()
    assert (code, checks["store"]["state"]) == (1, "failed"), checks
    assert "of table project_aliases: 1 rows break it" in checks["store"]["detail"]
    assert "PostgreSQL server to restore a backup" in checks["store"]["remedy"]


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


def test_a_server_is_not_ready_while_the_database_has_no_room_for_rows(
    small_disk: Path, tmp_path: Path
) -> None:
    filler = small_disk / "filler"
    with PostgresServer() as postgres:
        postgres.start()
        with psycopg.connect(postgres.dsn, autocommit=True) as session:
            session.execute(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
            session.execute("CREATE DATABASE mail TABLESPACE small")
        url = postgres.dsn.rpartition("/")[0] + "/mail"
        with RunningServer(tmp_path / "data", "--database-url", url) as server:
            asyncio.run(write_by_a_real_client(server, "2026", "lamp"))
            assert readiness(server) == ("ok", None)
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4_096)):
                    pass
            message = {"sender_name": "Ada", "to": ["Ben"], "subject": "wick", "body_md": "burn " * 1_000}
            document = {"project_key": FOLDER, **message}

            def sent() -> Any:
                return ask(server, "POST", "/v1/send_message", document)

            await_that(lambda: sent().get("code") == "store_full", "no message fits any more")
            await_that(lambda: readiness(server) == ("failed", "store_full"), "it was told")
            found = ask(server, "GET", "/admin/doctor")["checks"]
            assert {one["name"]: one["state"] for one in found}["store writes"] == "failed"
            filler.unlink()
            await_that(lambda: readiness(server) == ("ok", None), "it was ready again")
            asyncio.run(write_by_a_real_client(server, "2026", "candle"))


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 24 MB that belongs to the user of PostgreSQL."""
    refuse_missing("postgres")
    place = Path(tempfile.mkdtemp(prefix="postroom-small-"))
    place.chmod(0o755)
    nobody = pwd.getpwnam("nobody").pw_uid
    mounting = ["mount", "-t", "tmpfs", "-o", f"size=24m,mode=700,uid={nobody}", "tmpfs", str(place)]
    try:
        if (
            is_given()
            or os.geteuid()
            or subprocess.run(mounting, capture_output=True, check=False).returncode
        ):
            pytest.skip("a file system of its own is mounted by root, for a server of the tests' own")
        yield place
        subprocess.run(["umount", str(place)], check=True)
    finally:
        place.rmdir()


def readiness(server: RunningServer) -> tuple[str, str | None]:
    found = ask(server, "GET", "/readyz")
    store = found["checks"]["store"]
    return store["state"], store.get("code")


def await_that(look: Callable[[], bool], what: str) -> None:
    """Look again and again, within a bound."""
    pause = threading.Event()
    until = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < until, f"in {PATIENCE} s it did not come to it that {what}"
        pause.wait(0.05)


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        ("postgresql://u:hunter2@127.0.0.1:1/mail", TEMPORARY, "cannot be reached"),
        ("postgresql://u:hunter2@127.0.0.1:x/mail", CONFIGURATION, "a numeric port"),
        ("mysql://u:hunter2@db/mail", CONFIGURATION, "postgresql://user:password@host:port/database"),
        ("postgresql://u:hunter2@2@db/mail", CONFIGURATION, "%40"),
        ("postgresql://u:p/hunter2@db/mail", CONFIGURATION, "%2F"),
        (
            "postgresql://u:hunter2@127.0.0.1:99999/mail",
            CONFIGURATION,
            'address of PostgreSQL is wrong: invalid port number: "99999"',
        ),
        ("postgresql://u:hunter2@127.0.0.1:1/mail?foo=bar", CONFIGURATION, 'parameter "foo"'),
        ("postgresql://u:hunter2@127.0.0.1:1/mail?sslmode=maybe", CONFIGURATION, '"maybe"'),
    ],
)
def test_what_is_wrong_with_the_address_is_one_sentence(
    url: str, code: int, told: str, tmp_path: Path, here: Command
) -> None:
    refused(url, code, told, tmp_path, here)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("no_such_mail", "createdb no_such_mail"),
        ("postgres?sslmode=require", "sslmode=disable"),
        ("read_only", "writable server"),
        ("guarded", 'GRANT CREATE ON DATABASE guarded TO "guest"'),
        ("anothers", 'GRANT USAGE, CREATE ON SCHEMA "postroom" TO "stranger"'),
    ],
)
def test_what_the_server_does_not_offer_is_told_with_what_to_do(
    path: str, told: str, dsn: str, tmp_path: Path, here: Command
) -> None:
    with psycopg.connect(dsn, autocommit=True) as session:
        if "sslmode" not in path and path != "no_such_mail":
            session.execute(f"CREATE DATABASE {path}")
        if path == "read_only":
            session.execute("ALTER DATABASE read_only SET default_transaction_read_only = on")
        if path == "guarded":
            session.execute("CREATE ROLE guest LOGIN")
    if path == "anothers":
        with psycopg.connect(f"{dsn.rpartition('/')[0]}/{path}", autocommit=True) as session:
            session.execute("CREATE ROLE stranger LOGIN; GRANT CREATE ON DATABASE anothers TO stranger")
            session.execute("CREATE SCHEMA postroom")
    user = {"guarded": "guest", "anothers": "stranger"}.get(path, "postgres")
    url = f"{dsn.replace('postgres@', f'{user}:hunter2@').rpartition('/')[0]}/{path}"
    refused(url, CONFIGURATION, told, tmp_path, here)


@pytest.mark.parametrize(
    ("answer", "code"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", CONFIGURATION), (b"", TEMPORARY)]
)
def test_what_listens_there_and_is_no_postgresql_is_told_as_that(
    answer: bytes, code: int, tmp_path: Path
) -> None:
    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(answer)
            self.request.recv(100)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"postgresql://u:hunter2@127.0.0.1:{other.server_address[1]}/mail"
        refused(
            url,
            code,
            f"the program that listens at 127.0.0.1:{other.server_address[1]} is not PostgreSQL",
            tmp_path,
        )
        other.shutdown()


@pytest.fixture
def here(tmp_path: Path) -> Command:
    """Runs a command in this process; that a process of its own ends in the same way is seen with others."""
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
