"""Hostile input through a real server and in memory: no failure inside, no hang, nothing of the inside shown.

The numbers are small by default and the same each time; `POSTROOM_FUZZ=full` asks 10,000 of each kind, and
`POSTROOM_FUZZ_SEED` another sequence.
"""

import asyncio
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from mcp.types import CallToolResult

from e2e.fuzzing import LEAK, Requests, Shot, Values, World, encoded
from e2e.running import PATIENCE, Answer, Cut, Line, RunningServer
from postroom.app.config import Settings
from postroom.app.wiring import Application
from postroom.contracts.errors import all_errors
from postroom.mcp_server.server import PostroomMcpServer

FULL = os.environ.get("POSTROOM_FUZZ") == "full"
SEED = os.environ.get("POSTROOM_FUZZ_SEED", "postroom")
CALLS = 7_000 if FULL else 1_400
IN_MEMORY = 3_000 if FULL else 600
SHOTS = 10_000 if FULL else 2_000
LINES = 8
SLOW_BODIES = 24
MOST_GROWTH = 200 * 1024 * 1024
"""Bytes of memory by which the server may grow: caches fill, and messages of 1 MB pass."""
CODES = frozenset(error.code for error in all_errors())
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200 if FULL else 120)]


@dataclass(slots=True)
class Tally:
    """What came back, and everything that should not have."""

    seen: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def note(self, kind: str, seconds: float) -> None:
        self.seen[kind] += 1
        self.slowest = max(self.slowest, seconds)

    def fault(self, what: str, sent: bytes, got: object) -> None:
        self.faults.append(f"{what}\n   sent {sent[:1500]!r}\n   got  {str(got)[:1500]}")

    def add(self, other: "Tally") -> None:
        self.seen += other.seen
        self.faults += other.faults
        self.slowest = max(self.slowest, other.slowest)

    def check(self, count: int) -> None:
        """See that every one of `count` was judged and that none was found wrong."""
        print(
            f"\n{self.seen.total()} judged, slowest {self.slowest:.2f} s: {dict(self.seen.most_common(40))}"
        )
        assert not self.faults, f"{len(self.faults)} faults, first:\n" + "\n".join(self.faults[:5])
        assert self.seen.total() == count


@pytest.fixture(scope="module")
def world(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A server with projects, agents, messages and reservations, and a folder with traps for attachments."""
    found = World(folder=str(_trapped(tmp_path_factory.mktemp("folder"))))
    with server.line() as line:
        listed = line.rpc({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).json()["result"]["tools"]
        found.tools = {tool["name"]: tool["inputSchema"] for tool in listed}
        populate(lambda name, arguments: line.tool(name, **arguments), found)
    return found


def _trapped(folder: Path) -> Path:
    (folder / "plain.txt").write_text("plain")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 70_000)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "outside").symlink_to("/etc/passwd")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "loop").symlink_to("loop")
    return folder


def populate(tool: Callable[[str, dict[str, Any]], Any], world: World) -> None:
    """Fill an empty application so that most calls find what they name."""
    for folder in ("/fuzz/harbor", "/fuzz/shore", world.folder):
        tool("ensure_project", {"human_key": folder})
        for name in (*world.agents, *world.spare):
            asked = {"project_key": folder, "program": "fuzz", "model": "none", "name": name}
            tool("register_agent", asked)
    for number in range(world.messages):
        sender, reader = world.agents[number % 4], world.agents[(number + 1) % 4]
        message = {
            "sender_name": sender,
            "to": [reader],
            "subject": f"Message {number}",
            "thread_id": f"t{number % 3}",
        }
        tool("send_message", {"project_key": "/fuzz/harbor", "body_md": "lake?", **message})
        held = {"agent_name": sender, "paths": [f"src/{number}/**"]}
        tool("file_reservation_paths", {"project_key": "/fuzz/harbor", **held})


def over_lines(count: int, work: Callable[[int, int, Tally], None]) -> Tally:
    """Do a share of the work on each of eight connections at once."""
    total = Tally()
    with ThreadPoolExecutor(LINES) as pool:
        parts = [Tally() for _ in range(LINES)]
        for done in [pool.submit(work, number, count // LINES, parts[number]) for number in range(LINES)]:
            done.result()
    for part in parts:
        total.add(part)
    return total


def assert_unharmed(server: RunningServer, before: int) -> None:
    """The server answers, has not grown without bound, and logged no failure of its own."""
    with server.line() as line:
        assert line.request("GET", "/healthz").status == 200
        ready = line.request("GET", "/readyz")
        assert ready.status == 200, ready.text
        assert line.tool("health_check")["status"] == "ok"
        assert line.tool("fetch_inbox", project_key="/fuzz/harbor", agent_name="Ada", limit=5)
    rss = server.rss()
    grown = rss - before
    print(f"memory grew by {grown / 1e6:.1f} MB to {rss / 1e6:.0f} MB; {server.descriptors()} descriptors")
    assert grown < MOST_GROWTH
    log = server.log()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4_000]


def test_tool_calls_of_any_form_are_answered_or_refused_by_the_server(
    server: RunningServer, world: World
) -> None:
    before = server.rss()

    def work(number: int, count: int, tally: Tally) -> None:
        values = Values(f"{SEED} calls {number}", world)
        with server.line() as line:
            for _ in range(count):
                headers, body = values.message()
                began = time.monotonic()
                try:
                    answer = line.rpc(body, headers=headers)
                except (Cut, TimeoutError) as error:
                    tally.fault(f"no answer: {error!r}", body, headers)
                    continue
                check_rpc(tally, body, answer, time.monotonic() - began)
                if answer.is_stream:
                    line.close()

    tally = over_lines(CALLS, work)
    tally.check(CALLS)
    assert_unharmed(server, before)


def check_rpc(tally: Tally, body: bytes, answer: Answer, seconds: float) -> None:
    """Judge the answer to a message: a result, a typed refusal, or an error of the protocol."""
    tally.note(_kind(answer), seconds)
    if answer.status >= 500:
        tally.fault(f"status {answer.status}", body, answer.text)
    if found := LEAK.search(answer.text):
        tally.fault(f"shows {found[0]!r}", body, answer.text)
    if seconds > PATIENCE:
        tally.fault(f"took {seconds:.1f} s", body, answer.text)
    if not answer.is_json or not answer.body:
        return
    document = json.loads(answer.body, parse_constant=_no_number)
    result = document.get("result", {})
    if result.get("isError"):
        error = result["structuredContent"]["error"]
        if error["code"] not in CODES or not error["message"] or not error["remedy"]:
            tally.fault("a refusal without code, message or remedy", body, error)


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def _kind(answer: Answer) -> str:
    if answer.is_stream or not answer.body or not answer.is_json:
        return f"{answer.status} {answer.headers.get('content-type', '')}"
    document = json.loads(answer.body)
    if "error" in document:
        return f"{answer.status} {document['error']['code']}"
    result = document.get("result", {})
    return str(result["structuredContent"]["error"]["code"]) if result.get("isError") else "ok"


def test_http_requests_of_any_form_are_answered_or_hung_up_on(
    server: RunningServer, world: World, tmp_path: Path
) -> None:
    before = server.rss()

    def work(number: int, count: int, tally: Tally) -> None:
        values = Values(f"{SEED} requests {number}", world)
        host = f"{server.address[0]}:{server.address[1]}"
        requests = Requests(values, host=host, token=server.token, scratch=str(tmp_path))
        with Line(server.address) as line:
            for _ in range(count):
                shoot(line, requests.shot(), tally)

    tally = over_lines(SHOTS, work)
    tally.check(SHOTS)
    assert_unharmed(server, before)


def shoot(line: Line, shot: Shot, tally: Tally) -> None:
    """Send one request and judge what comes back."""
    began = time.monotonic()
    try:
        answer = line.exchange(shot.raw, method=shot.method, is_last=not shot.sound)
    except Cut as error:
        tally.note("hung up", time.monotonic() - began)
        if shot.sound:
            tally.fault(f"no answer: {error}", shot.raw, "")
        return
    except TimeoutError as error:
        tally.note("hung", time.monotonic() - began)
        tally.fault(f"hung: {error}", shot.raw, "")
        return
    finally:
        if not shot.sound:
            line.close()
    if answer.is_stream:
        line.close()
    seconds = time.monotonic() - began
    tally.note(str(answer.status), seconds)
    if answer.status >= 500:
        tally.fault(f"status {answer.status}", shot.raw, answer.text)
    if not shot.raw.startswith(b"GET /static") and (found := LEAK.search(answer.text)):
        tally.fault(f"shows {found[0]!r}", shot.raw, answer.text)


def test_callers_who_send_slowly_or_stop_halfway_hold_up_nobody_else(
    server: RunningServer, world: World
) -> None:
    head = "POST /mcp HTTP/1.1\r\n" + "".join(f"{name}: {text}\r\n" for name, text in server.headers.items())
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    rest = (
        f"Host: {server.address[0]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    whole = (head + rest).encode() + body
    slow = [socket.create_connection(server.address, timeout=PATIENCE) for _ in range(SLOW_BODIES)]
    cuts = [len(whole) * number // SLOW_BODIES for number in range(SLOW_BODIES)]
    for one, cut in zip(slow, cuts, strict=True):
        one.sendall(whole[:cut])
    began = time.monotonic()
    with server.line() as line:
        for _ in range(20):
            assert line.tool("health_check")["status"] == "ok"
    assert time.monotonic() - began < PATIENCE
    for one, cut in zip(slow, cuts, strict=True):
        for place in range(cut, len(whole), 7):
            one.sendall(whole[place : place + 7])
    for one in slow:
        assert one.recv(4_096).startswith(b"HTTP/1.1 200")
        one.close()


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Application]:
    """An application without a server around it; opened and closed outside of the loop."""
    opened = Application.open(Settings(data_dir=tmp_path / "data"))
    yield opened
    opened.close()


async def test_tool_calls_of_any_form_are_answered_or_refused_in_memory(
    application: Application, tmp_path: Path
) -> None:
    world = World(folder=str(_trapped(tmp_path)))
    server = application.mcp_server()
    async with Client(server) as client:
        world.tools = {tool.name: tool.input_schema for tool in await client.list_tools()}
        calls: list[tuple[str, dict[str, Any]]] = []
        populate(lambda name, arguments: calls.append((name, arguments)), world)
        for name, arguments in calls:
            await client.call_tool(name, arguments)
    parts = [Tally() for _ in range(LINES)]

    async def work(number: int, tally: Tally) -> None:
        values = Values(f"{SEED} memory {number}", world)
        async with Client(server) as client:
            for _ in range(IN_MEMORY // LINES):
                name = values.dice.choice(list(world.tools))
                arguments = values.arguments(name)
                began = time.monotonic()
                try:
                    async with asyncio.timeout(PATIENCE):
                        result = await in_memory(client, server, name, arguments)
                except TimeoutError:
                    tally.fault("hung", name.encode() + encoded(arguments), "")
                else:
                    check_result(tally, name.encode() + encoded(arguments), result, time.monotonic() - began)

    async with asyncio.TaskGroup() as group:
        for number, part in enumerate(parts):
            group.create_task(work(number, part))
    total = Tally()
    for part in parts:
        total.add(part)
    total.check(IN_MEMORY)


async def in_memory(
    client: Client[Any], server: PostroomMcpServer, name: str, arguments: dict[str, Any]
) -> CallToolResult:
    """Call a tool through a client, or straight what no client can put into a message."""
    try:
        return await client.call_tool_mcp(name, arguments)
    except ValueError:  # broken text or too deep a nest: the client's own serializer refuses it
        return await server.call_tool(name, arguments)


def check_result(tally: Tally, sent: bytes, result: CallToolResult, seconds: float) -> None:
    """Judge the result of a call: an answer, or a typed refusal."""
    found = result.structured_content or {}
    error = found.get("error", {}) if result.is_error else {}
    tally.note(str(error.get("code", "ok")), seconds)
    if result.is_error and (error.get("code") not in CODES or not error["message"] or not error["remedy"]):
        tally.fault("a refusal without code, message or remedy", sent, result)
    if leaked := LEAK.search(str(found)):
        tally.fault(f"shows {leaked[0]!r}", sent, found)
