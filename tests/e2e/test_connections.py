"""Connections that are slow, stuck or too many: they are cut, and those of others go on."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from e2e.running import PATIENCE, Cut, RunningServer
from postroom.app import connection
from postroom.app.connection import MAX_HEAD_LENGTH

SHORT = 0.4
"""Seconds that the servers in these tests wait for what a client owes; the tests wait long enough for it."""
FILES = 400
CROWD = 600


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(body or b"nothing")(scope, receive, send)


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch, *, most: int = 100) -> AsyncIterator[tuple[str, int]]:
    """Serve an echo on postroom's connections, which wait for a short time only."""
    monkeypatch.setattr(connection, "PATIENCE", SHORT)
    monkeypatch.setattr(connection, "room", lambda: most)
    settings = {"log_config": None, "lifespan": "off", "ws": "none", "timeout_keep_alive": 30}
    server = uvicorn.Server(uvicorn.Config(echo, http=connection.Connection, **settings))
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(server._serve(sockets=[listener]))
            yield listener.getsockname()
            server.should_exit = True


async def sent_and_read(address: tuple[str, int], *pieces: bytes) -> bytes:
    """Send pieces with a short while between them; return all that comes until the server ends."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(SHORT / 4)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"


async def test_who_owes_the_rest_of_a_request_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    in_drops = (HEAD[:9], HEAD[9:20], HEAD[20:30], HEAD[30:40], HEAD[40:])
    behind_another = HEAD + b"\r\nabcd" + HEAD
    async with serving(monkeypatch) as address:
        for pieces in ((), (b"POST",), (HEAD,), in_drops, (HEAD + b"\r\n",), (HEAD + b"\r\nab",)):
            assert await sent_and_read(address, *pieces) == b"", pieces
        for rest in (b"\r\n", b"\r\nab"):
            answer = await sent_and_read(address, behind_another + rest)
            assert answer.count(b"HTTP/1.1 200") == 1


async def test_a_body_may_take_its_time_while_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch) as address:
        pieces = [HEAD + b"Connection: close\r\n\r\n", b"a", b"b", b"c", b"d"]
        answer = await sent_and_read(address, *pieces)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"abcd")


async def test_who_owes_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch) as address:
        whole = HEAD + b"\r\nabcd"
        last = HEAD + b"Connection: close\r\n\r\nwxyz"
        answer = await sent_and_read(address, whole, b"", b"", b"", b"", last)
        assert (answer.count(b"abcd"), answer.count(b"wxyz")) == (1, 1)


async def test_one_too_many_is_cut_off_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch, most=2) as address:
        first = await asyncio.open_connection(*address)
        second = await asyncio.open_connection(*address)
        for reader, writer in (first, second):
            writer.write(HEAD + b"\r\nabcd")
            assert await reader.readuntil(b"abcd")
        assert await sent_and_read(address) == b""
        for reader, writer in (first, second):
            writer.write(HEAD + b"\r\nefgh")
            assert await reader.readuntil(b"efgh")
            writer.close()
            await writer.wait_closed()
        assert b"abcd" in await sent_and_read(address, HEAD + b"Connection: close\r\n\r\nabcd")


@pytest.fixture
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that may open few files."""
    with RunningServer(tmp_path_factory.mktemp("narrow") / "data", most_files=FILES) as running:
        yield running


def test_a_crowd_that_takes_every_connection_neither_ends_the_server_nor_floods_its_log(
    narrow: RunningServer,
) -> None:
    with narrow.line() as line:
        assert line.tool("health_check")["status"] == "ok"
        crowd = [socket.create_connection(narrow.address, timeout=PATIENCE) for _ in range(CROWD)]
        assert line.tool("ensure_project", human_key="/yard/crowd")["slug"] == "yard-crowd"
        assert narrow.descriptors() < FILES
        for one in crowd:
            one.close()
        while True:  # until the server has seen that they are gone
            try:
                with narrow.line() as other:
                    assert other.tool("health_check")["projects"] == 1
                break
            except Cut:
                continue
    log = narrow.log()
    assert "Traceback" not in log
    assert len(log) < 10_000


def test_an_address_that_is_too_long_is_not_read_to_its_end_and_others_go_on(narrow: RunningServer) -> None:
    with socket.create_connection(narrow.address, timeout=PATIENCE) as one:
        try:
            one.sendall(b"GET /v1/whois?agent_name=" + b"a" * 2 * MAX_HEAD_LENGTH)
            said = one.recv(1_000)
        except ConnectionError:  # closed while we were still writing
            said = b""
    assert said[:12] in (b"", b"HTTP/1.1 400")
    with narrow.line() as line:
        assert line.request("GET", "/healthz").status == 200
    assert "Traceback" not in narrow.log()
