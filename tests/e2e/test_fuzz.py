"""Hostile arguments for every tool: no failure inside, no hang, nothing of the inside shown.

The numbers are small by default and the same each time; `POSTROOM_FUZZ=full` asks 3,000, and
`POSTROOM_FUZZ_SEED` another sequence.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from mcp.types import CallToolResult

from e2e.fuzzing import LEAK, Values, World, encoded
from e2e.running import PATIENCE
from postroom.app.config import Settings
from postroom.app.wiring import Application
from postroom.contracts.errors import all_errors
from postroom.mcp_server.server import PostroomMcpServer

FULL = os.environ.get("POSTROOM_FUZZ") == "full"
SEED = os.environ.get("POSTROOM_FUZZ_SEED", "postroom")
IN_MEMORY = 3_000 if FULL else 600
LINES = 8
CODES = frozenset(error.code for error in all_errors())
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200 if FULL else 120)]


@dataclass(slots=True)
class Tally:
    """The responses, and everything that should not have been in them."""

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
        """Check that every one of `count` was judged and that none was found wrong."""
        print(
            f"\n{self.seen.total()} judged, slowest {self.slowest:.2f} s: {dict(self.seen.most_common(40))}"
        )
        assert not self.faults, f"{len(self.faults)} faults, first:\n" + "\n".join(self.faults[:5])
        assert self.seen.total() == count


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


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Application]:
    """An application without a server around it; opened and closed outside of the loop."""
    opened = Application.open(Settings(data_dir=tmp_path / "data"))
    yield opened
    opened.close()


async def test_tool_calls_of_any_form_are_answered_or_refused(
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
