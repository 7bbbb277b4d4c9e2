"""Servers with a real Caddy in front are replaced by those of the next release, one after the other, during clients' calls.

Clients are the official MCP SDK's. They try a call once more whose answer they did not get, with the same
idempotency key; nothing else is forgiven.
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from balancer import balanced, missing_balancer
from e2e.release_process import NEWEST, STEPS, WRITES
from e2e.running import START_PATIENCE, RunningServer, plain_environment
from soak.lines import Cut, McpLine

PROGRAM = Path(__file__).with_name("release_process.py")
FOLDER = "/yard/rolling"
HOST = "mail.example.org"
CLIENTS = 2
AT_LEAST = 5
"""Messages of each client while one server is replaced."""
THINKS = 0.1
PATIENCE = 120.0
CONFIGURATION = 78

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.skipif(missing_balancer() is not None, reason=str(missing_balancer())),
]


class Place:
    """Where a server runs: its folder and its port stay when the release changes."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._data_dir, self._environment = folder / name / "data", environment
        self._port = 0
        self.server = self._of(0)

    def _of(self, release: int) -> RunningServer:
        return RunningServer(self._data_dir, program=self._program(release), environment=self._environment)

    def _program(self, release: int) -> list[str]:
        return [str(PROGRAM), str(release), self.name]

    def start(self, release: int) -> None:
        """Stop the present server in an orderly way, and start the server of a release in its place."""
        assert self.server.stop() == 0
        self.server = self._of(release).start(port=self._port)
        self._port = self.server.address[1]

    def refused(self, release: int) -> str:
        """Return what a server of a release says that does not start here."""
        words = ["up", "--port", "0", "--data-dir", str(self._data_dir)]
        found = subprocess.run(
            [sys.executable, *self._program(release), *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=START_PATIENCE,
            check=False,
        )
        assert found.returncode == CONFIGURATION, found.stderr
        return found.stderr


class Client:
    """An agent; `address`, `token` and `starts` are where its line finds a server."""

    def __init__(self, name: str, address: tuple[str, int], token: str) -> None:
        self.address, self.token, self.starts = address, token, 0
        self._name = name
        self._line = McpLine(self)
        self.sent: dict[str, int] = {}
        self.inbox: list[tuple[str, int]] = []
        self.again = 0
        """How often it had to try once more."""

    async def send(self, stop: asyncio.Event) -> None:
        """Send messages to Ben, one after another, until told to stop."""
        try:
            while not stop.is_set():
                key = f"{self._name} {len(self.sent)}"
                sent = await self._called(
                    "send_message",
                    sender_name=self._name,
                    to=["Ben"],
                    subject=key,
                    body_md="plum",
                    idempotency_key=key,
                )
                self.sent[key] = sent["deliveries"][0]["payload"]["id"]
                await asyncio.sleep(THINKS)
        finally:
            await self._line.close()

    async def read(self) -> None:
        """Read the inbox, once and in order, to its end."""
        after = 0
        try:
            while True:
                page = await self._called("fetch_inbox_events", agent_name=self._name, after=after, limit=100)
                self.inbox += [(event["subject"], event["id"]) for event in page["events"]]
                if not page["events"]:
                    return
                after = page["next"]
        finally:
            await self._line.close()

    async def _called(self, tool: str, **arguments: Any) -> Any:
        try:
            return await self._line.tool(tool, project_key=FOLDER, **arguments)
        except Cut:
            self.again += 1
            return await self._line.tool(tool, project_key=FOLDER, **arguments)


@asynccontextmanager
async def sending(clients: list[Client]) -> AsyncIterator[None]:
    """Make clients send during the block, and each this many messages before it; a failed call ends it."""
    stop = asyncio.Event()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.send(stop))
        await more(clients)
        yield
        await more(clients)
        stop.set()


async def more(clients: list[Client]) -> None:
    """Return when each has sent some more."""
    wanted = [len(client.sent) + AT_LEAST for client in clients]
    while any(len(client.sent) < least for client, least in zip(clients, wanted, strict=True)):
        await asyncio.sleep(0.02)


@pytest.fixture
def schema(postgres_dsn: str) -> Iterator[str]:
    name = f"rolling_{socket.gethostname().lower().replace('-', '_')[:20]}"
    yield name
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture
def places(postgres_dsn: str, schema: str, tmp_path: Path) -> Iterator[list[Place]]:
    """Two servers of the first release, which share the operator's token, and a place for a third."""
    environment = {
        **plain_environment(tmp_path),
        "POSTROOM_DATABASE_URL": postgres_dsn,
        "POSTROOM_DATABASE_SCHEMA": schema,
        "POSTROOM_ALLOWED_HOSTS": HOST,
        "POSTROOM_STOP_DELAY": "6s",
    }
    found = [Place(name, tmp_path, environment) for name in ("one", "two", "three")]
    try:
        for place in found[:2]:
            place.server.data_dir.mkdir(parents=True, mode=0o700)
            token = place.server.data_dir / "token"
            token.touch(0o600)
            token.write_text(f"prm_{'t' * 43}\n")
            place.start(0)
        yield found
    finally:
        for place in found:
            place.server.kill()


def columns(dsn: str, schema: str, wanted: str, where: str = "true") -> list[tuple[Any, ...]]:
    """Return columns of messages."""
    with psycopg.connect(dsn) as session:
        table = sql.Identifier(schema, "messages").as_string(session)
        return session.execute(f"SELECT {wanted} FROM {table} WHERE {where}".encode()).fetchall()


async def writes(dsn: str, schema: str, release: int, place: Place) -> None:
    """Return when a server of a release has written a message from now on: the balancer sends clients to it."""
    [(since,)] = await asyncio.to_thread(columns, dsn, schema, "max(id)")
    wanted = f"{WRITES[release]} = '{release} at {place.name}' AND id > {since or 0}"
    while not await asyncio.to_thread(columns, dsn, schema, "id", wanted):
        await asyncio.sleep(0.1)


async def test_two_releases_follow_one_another_and_no_client_sees_an_error(
    places: list[Place], postgres_dsn: str, schema: str, tmp_path: Path
) -> None:
    one, two, three = places
    names = [f"Ada{number}" for number in range(CLIENTS)]
    with one.server.line() as operator:
        operator.crew(FOLDER, "Ben", *names)
    with balanced([one.server.address, two.server.address], tmp_path, host="127.0.0.1") as address:
        clients = [Client(name, address, one.server.token) for name in names]

        async with sending(clients):
            # A release that adds to the schema: the one before goes on beside it.
            await asyncio.to_thread(one.start, 1)
            await writes(postgres_dsn, schema, 1, one)
            await writes(postgres_dsn, schema, 0, two)
            # The release after that takes away what the first one uses: not before that one is gone.
            told = await asyncio.to_thread(three.refused, 2)
            assert f"without schema step {NEWEST + 2} is running: " in told
            await asyncio.to_thread(two.start, 1)
            await writes(postgres_dsn, schema, 1, two)
            for place in (one, two):
                await asyncio.to_thread(place.start, 2)
                await writes(postgres_dsn, schema, 2, place)
        told = await asyncio.to_thread(three.refused, 0)
        assert f"has schema {STEPS[2].version}, but this release supports up to {NEWEST + 1}" in told

        sent = {key: number for client in clients for key, number in client.sent.items()}
        reader = Client("Ben", address, one.server.token)
        await reader.read()
        assert sorted(reader.inbox) == sorted(sent.items())
    [(stored,)] = columns(postgres_dsn, schema, "count(*)")
    assert stored == len(sent) == len(set(sent.values()))
    print(f"{stored} messages; {sum(client.again for client in clients)} calls were tried once more")
    assert "Traceback" not in one.server.log() + two.server.log()
