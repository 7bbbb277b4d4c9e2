"""Which MCP layer serves an empty tool fastest: the framework, or the SDK's server that ours stands on."""

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastmcp import Client, FastMCP

from benchmarks.application import fresh_application, with_empty_tool
from benchmarks.figures import Table, size
from benchmarks.starting import PATIENCE, start

CALLS = size(1_500, 20)
CLIENTS = 1
REVISIONS = ("2025-11-25", "2026-07-28")[size(0, 1) :]


async def main() -> None:
    """Print the table."""
    table = Table("MCP layers, an empty tool")
    framework = FastMCP("framework")

    @framework.tool
    async def empty() -> dict[str, Any]:
        return {"ok": True}

    peer = await _in_memory(framework)
    async with fresh_application() as application:
        ours = await _in_memory(with_empty_tool(application))
    table.add("one client in memory", f"{ours:,.0f} calls/s", f"framework {peer:,.0f} calls/s", ours / peer)
    for revision in REVISIONS:
        peer = _over_http(_framework_server, revision)
        ours = _over_http(_our_server, revision)
        table.add(
            f"one connection over HTTP, revision {revision}",
            f"{ours:,.0f} calls/s, with the token checked and the database read",
            f"framework's empty tool, without either: {peer:,.0f} calls/s",
            ours / peer,
        )


async def _in_memory(server: Any) -> float:
    async with Client(server) as client:
        await client.call_tool("empty", {})
        began = time.perf_counter()
        for _ in range(CALLS):
            await client.call_tool("empty", {})
        return CALLS / (time.perf_counter() - began)


_FRAMEWORK = """
import sys
from typing import Any
from fastmcp import FastMCP
import uvicorn
app = FastMCP("framework")
@app.tool
async def health_check() -> dict[str, Any]:
    return {"ok": True}
uvicorn.run(app.http_app(stateless_http=True, json_response=True), port=int(sys.argv[1]), log_level="error")
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _framework_server(folder: Path) -> tuple[subprocess.Popen[bytes], str, str]:
    port = _free_port()
    server = subprocess.Popen([sys.executable, "-c", _FRAMEWORK, str(port)], stderr=subprocess.DEVNULL)
    return server, f"http://127.0.0.1:{port}/mcp", ""


def _our_server(folder: Path) -> tuple[subprocess.Popen[bytes], str, str]:
    server = start(folder)
    url = json.loads((folder / "server.json").read_text())["url"]
    return server, f"{url}/mcp", (folder / "token").read_text().strip()


def _over_http(start: Callable[[Path], tuple[subprocess.Popen[bytes], str, str]], revision: str) -> float:
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as name:
        server, url, token = start(Path(name))
        try:
            _await_answer(url, token)
            return _threads(url, token, revision)
        finally:
            server.terminate()
            server.wait(PATIENCE)


def _request(url: str, token: str) -> urllib.request.Request:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "health_check", "arguments": {}},
    }
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-11-25",
        "Authorization": f"Bearer {token}",
    }
    return urllib.request.Request(url, json.dumps(body).encode(), headers)


def _await_answer(url: str, token: str) -> None:
    until = time.perf_counter() + PATIENCE
    while time.perf_counter() < until:
        try:
            urllib.request.urlopen(_request(url, token), timeout=5).read()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"{url} did not answer")


def _threads(url: str, token: str, revision: str) -> float:
    """Load with raw keep-alive connections from a process of its own, so that the client is not the limit."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADER, url, token, str(CLIENTS), str(CALLS), revision],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


_LOADER = """
import http.client, json, sys, threading, time
from urllib.parse import urlsplit
url, token, clients, calls, revision = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), sys.argv[5]
parts = urlsplit(url)
params = {"name": "health_check", "arguments": {}}
headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
           "MCP-Protocol-Version": revision, "Authorization": "Bearer " + token}
if revision > "2026":
    mark = "io.modelcontextprotocol/"
    params["_meta"] = {mark + "protocolVersion": revision, mark + "clientCapabilities": {},
                       mark + "clientInfo": {"name": "bench", "version": "0"}}
    headers |= {"Mcp-Method": "tools/call", "Mcp-Name": "health_check"}
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
def work():
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    for _ in range(calls // clients):
        connection.request("POST", parts.path, body, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
threads = [threading.Thread(target=work) for _ in range(clients)]
began = time.perf_counter()
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(calls // clients * clients / (time.perf_counter() - began))
"""


if __name__ == "__main__":
    asyncio.run(main())
