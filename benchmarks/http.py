"""What a light call of MCP over HTTP costs on the short way, behind httptools.

Beside it in the same run: the SDK's way behind httptools, and the SDK's way behind h11, which was before.
"""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.figures import Table, cpu_of, median, p95, size

CALLS = size(3_000, 100)
ROUNDS = size(3, 1)
CONNECTIONS = (1, 10, 50)[: size(3, 1)]
REVISIONS = ("2025-11-25", "2026-07-28")


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a process of its own."""

    pid: int
    url: str
    token: str

    def cpu(self) -> float:
        """Return the seconds of a core that it has used, as Linux tells them."""
        return cpu_of(self.pid)


@dataclass(frozen=True, slots=True)
class Figure:
    """What one load showed."""

    rate: float
    """Calls a second."""
    cpu: float
    """Seconds of a core that the server used a call."""
    p95: float
    """Seconds."""


def main() -> None:
    """Print the table."""
    table = Table("MCP over HTTP, health_check, token checked and database read")
    with (
        serving("short", "httptools") as ours,
        serving("sdk", "httptools") as sdk,
        serving("sdk", "h11") as first,
    ):
        for revision in REVISIONS:
            for connections in CONNECTIONS:
                _compare(table, (ours, sdk, first), revision, connections)


def _compare(table: Table, servers: tuple[Server, ...], revision: str, connections: int) -> None:
    found: list[list[Figure]] = [[] for _ in servers]
    for _ in range(ROUNDS):  # in turns, so that what else goes on here meets all of them
        for server, figures in zip(servers, found, strict=True):
            figures.append(load(server, revision, connections))
    ours, sdk, first = (_middle(figures) for figures in found)
    where = f"{revision}, {connections} connection{'s' * (connections > 1)}"
    table.add(f"CPU, {where}", _shown(ours), f"before: {_shown(first)}", ours.cpu / first.cpu, "at most 0.5")
    table.add(f"p95, {where}", "", "before", ours.p95 / first.p95, "at most 0.5 at 10")
    table.add(f"CPU, {where}", "", f"through the SDK: {_shown(sdk)}", ours.cpu / sdk.cpu)


def _middle(figures: list[Figure]) -> Figure:
    return Figure(
        rate=median([one.rate for one in figures]),
        cpu=median([one.cpu for one in figures]),
        p95=median([one.p95 for one in figures]),
    )


def _shown(figure: Figure) -> str:
    return f"{figure.rate:,.0f} calls/s, {figure.cpu * 1000:.2f} ms of a core, p95 {figure.p95 * 1000:.1f} ms"


@contextmanager
def serving(way: str, parser: str, *, folder: Path | None = None) -> Iterator[Server]:
    """Start a server whose calls go one way, behind one parser; with what a folder holds, or with nothing."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as empty:
        command = [sys.executable, "-m", "benchmarks.http_server", str(folder or empty), way, parser]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url, token = process.stdout.readline().split()
            server = Server(process.pid, url, token)
            for revision in REVISIONS:
                load(server, revision, 1, calls=50)
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(10)


def load(server: Server, revision: str, connections: int, *, calls: int = CALLS) -> Figure:
    """Call from a process of its own, so that the client is not the limit."""
    before = server.cpu()
    command = [sys.executable, "-m", "benchmarks.http", server.url, server.token, revision]
    done = subprocess.run(
        [*command, str(connections), str(calls)], check=True, capture_output=True, text=True
    )
    took, taken = json.loads(done.stdout)
    return Figure(rate=len(taken) / took, cpu=(server.cpu() - before) / len(taken), p95=p95(taken))


def _request(url: str, token: str, revision: str) -> bytes:
    params: dict[str, object] = {"name": "health_check", "arguments": {}}
    headers = {
        "Host": urlsplit(url).netloc,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": revision,
        "Authorization": f"Bearer {token}",
    }
    if revision == REVISIONS[-1]:
        mark = "io.modelcontextprotocol/"
        client = {"name": "bench", "version": "0"}
        params["_meta"] = {
            f"{mark}protocolVersion": revision,
            f"{mark}clientCapabilities": {},
            f"{mark}clientInfo": client,
        }
        headers |= {"Mcp-Method": "tools/call", "Mcp-Name": "health_check"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /mcp HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _connection(url: str, request: bytes, calls: int) -> list[float]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(head.decode())
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        taken.append(time.perf_counter() - began)
    writer.close()
    return taken


async def _clients(url: str, token: str, revision: str, connections: int, calls: int) -> None:
    request = _request(url, token, revision)
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        each = [
            group.create_task(_connection(url, request, calls // connections)) for _ in range(connections)
        ]
    took = time.perf_counter() - began
    print(json.dumps([took, [seconds for one in each for seconds in one.result()]]))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:  # one load, in its own process
        _, at, shown, spoken, how_many, how_often = sys.argv
        asyncio.run(_clients(at, shown, spoken, int(how_many), int(how_often)))
