"""What a light call costs over HTTP: `tools/call` of `health_check` at one, ten and fifty connections.

The caller is a process of its own that sends requests made beforehand over kept connections; the processor
time is the server's alone. `PYTHONPATH=<checkout>/src python -m benchmarks calls` measures another tree.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.figures import Table, median, ms, p95, size

REVISIONS = ("2025-11-25", "2026-07-28")
CONNECTIONS = (1, 10, 50)[: size(3, 1)]
CALLS = size(1_000, 60)
WARM = size(100, 10)
ROUNDS = size(3, 1)
_TICKS = os.sysconf("SC_CLK_TCK")


def request_of(url: str, token: str, revision: str) -> bytes:
    """Return one call as it travels."""
    parts = urlsplit(url)
    params: dict[str, object] = {"name": "health_check", "arguments": {}}
    headers = {
        "Host": parts.netloc,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": revision,
        "Authorization": f"Bearer {token}",
    }
    if revision > "2026":
        mark = "io.modelcontextprotocol/"
        client = {"name": "bench", "version": "0"}
        params["_meta"] = {
            f"{mark}protocolVersion": revision,
            f"{mark}clientCapabilities": {},
            f"{mark}clientInfo": client,
        }
        headers |= {"Mcp-Method": "tools/call", "Mcp-Name": "health_check"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {parts.path} HTTP/1.1\r\n{head}\r\n".encode() + body


async def load(url: str, request: bytes, connections: int, calls: int) -> list[float]:
    """Call over so many connections at once and return how long each call took, in seconds."""
    parts = urlsplit(url)
    numbers, taken = iter(range(calls)), []

    async def work() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for _ in numbers:
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            body = await reader.readexactly(length)
            taken.append(time.perf_counter() - began)
            if not head.startswith(b"HTTP/1.1 200") or b'"isError":true' in body:
                raise SystemExit(f"a call was refused: {head!r} {body[:300]!r}")
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(work())
    return taken


def cpu_of(pid: int) -> float:
    """Return the seconds of a processor that a process has used."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS


def measured(url: str, request: bytes, connections: int, calls: int) -> tuple[float, float]:
    """Return calls a second and their 95th percentile, as a process of its own sees them."""
    words = [sys.executable, "-m", "benchmarks.calls", url, str(connections), str(calls)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(words, input=request, capture_output=True, check=False, cwd=root)
    if done.returncode:
        raise SystemExit(done.stderr.decode()[-2000:])
    rate, slow = json.loads(done.stdout)
    return rate, slow


def main() -> None:
    """Print the table."""
    from benchmarks.layers import _our_server  # not for the callers: it loads the framework

    table = Table("Light calls over HTTP, the token checked and the database read")
    for revision in REVISIONS:
        with tempfile.TemporaryDirectory(prefix="postroom-bench-") as name:
            server, url, token = _our_server(Path(name))
            try:
                _rows(table, revision, server.pid, url, request_of(url, token, revision))
            finally:
                server.terminate()
                server.wait(10)


def _rows(table: Table, revision: str, pid: int, url: str, request: bytes) -> None:
    for connections in CONNECTIONS:
        measured(url, request, connections, WARM)
        rates, slow, costs = [], [], []
        for _ in range(ROUNDS):
            before = cpu_of(pid)
            rate, late = measured(url, request, connections, CALLS)
            rates.append(rate)
            slow.append(late)
            costs.append((cpu_of(pid) - before) / CALLS)
        told = (
            f"{median(rates):,.0f} calls/s, p95 {ms(median(slow))}, {ms(median(costs))} of a processor each"
        )
        table.add(f"revision {revision}, {connections} connections", told)


def _as_caller(url: str, connections: int, calls: int) -> None:
    began = time.perf_counter()
    taken = asyncio.run(load(url, sys.stdin.buffer.read(), connections, calls))
    print(json.dumps([calls / (time.perf_counter() - began), p95(taken)]))


if __name__ == "__main__":
    _as_caller(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
