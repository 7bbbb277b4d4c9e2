"""A crowd of agents against a real server over HTTP for a bounded time: rate, latency, failures, growth.

    python -m benchmarks.soak --agents 32 --seconds 20

Every agent has a connection of its own and waits for each answer before it asks on, so that the latencies are
those of a busy server and the rate is what it can do. Client and server share the machine.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Table, ms

PROJECT = "/bench/soak"
START_PATIENCE = 20.0
ANSWER_PATIENCE = 10.0
SAMPLE_EVERY = 0.5
MIX = {
    "send_message": 45,
    "fetch_inbox": 30,
    "acknowledge_message": 10,
    "search_messages": 5,
    "file_reservation_paths": 5,
    "release_file_reservations": 5,
}
"""How often an agent does what, in a hundred calls."""


@dataclass(slots=True)
class Seen:
    """What the agents met: the seconds each call took, by tool, and what failed."""

    took: dict[str, list[float]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    lags: list[int] = field(default_factory=list)

    def all(self) -> list[float]:
        """Return the seconds of every call."""
        return [one for taken in self.took.values() for one in taken]


class Process:
    """The server as the system sees it."""

    def __init__(self, process: subprocess.Popen[bytes], data_dir: Path) -> None:
        self._process = process
        self._data_dir = data_dir

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        url = json.loads((self._data_dir / "server.json").read_text())["url"]
        host, _, port = url.removeprefix("http://").partition(":")
        return host, int(port)

    @property
    def token(self) -> str:
        """The operator's token."""
        return (self._data_dir / "token").read_text().strip()

    def has_begun(self) -> bool:
        """Whether it says where it listens."""
        assert self._process.poll() is None, "the server ended at once"
        return (self._data_dir / "server.json").exists()

    def memory(self) -> int:
        """Return its resident bytes; 0 where the system does not tell."""
        status = Path(f"/proc/{self._process.pid}/status")
        rows = status.read_text().splitlines() if status.exists() else []
        return next((int(row.split()[1]) * 1024 for row in rows if row.startswith("VmRSS:")), 0)

    def descriptors(self) -> int:
        """Return how many files and sockets it has open; 0 where the system does not tell."""
        folder = Path(f"/proc/{self._process.pid}/fd")
        return sum(1 for _ in folder.iterdir()) if folder.exists() else 0


@asynccontextmanager
async def running_server() -> AsyncIterator[Process]:
    """Start a server on a free port with its data in a temporary folder, and end it."""
    with tempfile.TemporaryDirectory(prefix="postroom-soak-") as folder:
        data_dir = Path(folder) / "data"
        command = [sys.executable, "-m", "postroom", "up", "--port", "0", "--data-dir", str(data_dir)]
        environment = {name: text for name, text in os.environ.items() if not name.startswith("POSTROOM_")}
        process = subprocess.Popen(
            [*command, "--log-level", "error"], stdout=subprocess.DEVNULL, env=environment
        )
        found = Process(process, data_dir)
        try:
            async with asyncio.timeout(START_PATIENCE):
                while not found.has_begun():
                    await asyncio.sleep(0.02)
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(START_PATIENCE)


class Caller:
    """One connection, kept alive."""

    def __init__(self, server: Process) -> None:
        self._address = server.address
        host = "{}:{}".format(*self._address)
        self._head = f"HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {server.token}\r\n"
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        """Send a request; return status and document of the answer."""
        if self._stream is None:
            self._stream = await asyncio.open_connection(*self._address)
        reader, writer = self._stream
        rest = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"{method} {path} {self._head}{rest}".encode() + body)
        async with asyncio.timeout(ANSWER_PATIENCE):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length:")[2].partition("\r")[0])
            return int(head.split(" ")[1]), json.loads(await reader.readexactly(length))

    async def tool(self, name: str, /, **arguments: Any) -> Any:
        """Call a tool and return its answer; one that is refused raises."""
        params = {"name": name, "arguments": {"project_key": PROJECT, **arguments}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        status, document = await self.exchange("POST", "/mcp", json.dumps(call).encode())
        if status != 200 or document["result"].get("isError"):
            raise RuntimeError(f"{status} {str(document)[:300]}")
        return document["result"]["structuredContent"]

    def close(self) -> None:
        """End the connection."""
        if self._stream is not None:
            self._stream[1].close()
            self._stream = None


class Agent:
    """One of the crowd; the same calls in the same order for the same number."""

    def __init__(self, number: int, crowd: int, server: Process, seen: Seen) -> None:
        self.name = f"Agent{number}"
        self._dice = random.Random(number)
        self._others = [f"Agent{other}" for other in range(crowd) if other != number] or [self.name]
        self._caller = Caller(server)
        self._seen = seen
        self._inbox: list[int] = []

    async def register(self) -> None:
        """Be there."""
        await self._caller.tool("register_agent", program="soak", model="none", name=self.name)

    async def work(self, end: float) -> None:
        """Call tools until the time is over."""
        while time.perf_counter() < end:
            (tool,) = self._dice.choices(list(MIX), list(MIX.values()))
            if tool == "acknowledge_message" and not self._inbox:
                tool = "fetch_inbox"
            began = time.perf_counter()
            try:
                answer = await self._caller.tool(tool, **self._arguments(tool))
            except (RuntimeError, OSError, TimeoutError, EOFError) as error:
                self._seen.failures[f"{tool}: {error!r}"[:200]] += 1
                self._caller.close()
                continue
            self._seen.took.setdefault(tool, []).append(time.perf_counter() - began)
            if tool == "fetch_inbox":
                self._inbox = [message["id"] for message in answer["result"]]
        self._caller.close()

    def _arguments(self, tool: str) -> dict[str, Any]:
        number = self._dice.randrange(1000)
        mine = {"agent_name": self.name}
        match tool:
            case "send_message":
                message = {"subject": f"Report {number}", "body_md": f"word{number} " * 60}
                return {"sender_name": self.name, "to": [self._dice.choice(self._others)], **message}
            case "fetch_inbox":
                return {**mine, "limit": 20, "unread_only": True}
            case "acknowledge_message":
                return {**mine, "message_id": self._inbox.pop()}
            case "search_messages":
                return {"query": f"word{number}", "limit": 10}
            case "file_reservation_paths":
                return {**mine, "paths": [f"src/{self.name}/{number % 20}/**"], "ttl_seconds": 60}
            case _:
                return mine


async def watch(server: Process, seen: Seen, end: float) -> None:
    """Note how late the event loop is, as the server itself says."""
    caller = Caller(server)
    while time.perf_counter() < end:
        _, found = await caller.exchange("GET", "/readyz")
        lag = found["checks"]["event_loop"].get("lag_ms")
        seen.lags.append(lag or 0)
        await asyncio.sleep(SAMPLE_EVERY)
    caller.close()


async def soak(agents: int, seconds: float) -> None:
    """Let the crowd work for a time, and print what was seen."""
    seen = Seen()
    async with running_server() as server:
        first = Caller(server)
        made = {"name": "ensure_project", "arguments": {"human_key": PROJECT}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": made}
        await first.exchange("POST", "/mcp", json.dumps(call).encode())
        first.close()
        crowd = [Agent(number, agents, server, seen) for number in range(agents)]
        for agent in crowd:
            await agent.register()
        before = (server.memory(), server.descriptors())
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(watch(server, seen, began + seconds))
            for agent in crowd:
                group.create_task(agent.work(began + seconds))
        took = time.perf_counter() - began
        await asyncio.sleep(SAMPLE_EVERY)  # for the server to see that the connections are closed
        report(seen, took, before, (server.memory(), server.descriptors()), agents=agents)


def report(seen: Seen, took: float, before: tuple[int, int], after: tuple[int, int], *, agents: int) -> None:
    """Print the table."""
    calls = seen.all()
    table = Table(f"{agents} agents over HTTP for {took:.0f} s")
    table.add("calls", f"{len(calls) / took:,.0f} a second", f"{len(calls):,} in all")
    table.add("failures", str(seen.failures.total()), "; ".join(list(seen.failures)[:3]), aim="0")
    for tool, taken in [("all", calls), *sorted(seen.took.items())]:
        p50, p95, p99 = (percentile(taken, share) for share in (0.5, 0.95, 0.99))
        table.add(f"{tool}: p50, p95, p99", f"{ms(p50)}, {ms(p95)}, {ms(p99)}", f"{len(taken):,} calls")
    table.add("memory after", f"{after[0] / 1e6:.1f} MB", f"{before[0] / 1e6:.1f} MB before")
    table.add("open descriptors after", str(after[1]), f"{before[1]} before (of which {agents} connections)")
    table.add("event loop late by", f"{max(seen.lags, default=0)} ms at most", f"{len(seen.lags)} looks")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def main(arguments: Sequence[str] = ()) -> None:
    """Read the options and soak."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0)
    chosen = parser.parse_args(arguments)
    asyncio.run(soak(chosen.agents, chosen.seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
