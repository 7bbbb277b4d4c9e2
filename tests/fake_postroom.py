"""A fake server for the command line and the stdio entry: it speaks just enough HTTP, and knows no mail.

It listens on a free loopback port, notes every request, and answers what the test told it to.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from machine import PATIENCE


@dataclass
class Seen:
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Raw:
    """An answer given byte for byte."""

    status: int
    body: bytes
    content_type: str = "application/json"


@dataclass
class Short(Raw):
    """An answer that promises more bytes than come."""


@dataclass
class Stream:
    """Events of a stream; it stays open until the client closes it, unless it ends by itself."""

    data: list[str]
    stays_open: bool = False
    chunked: bool = True


Answer = Callable[[Seen], object]


@dataclass
class FakePostroom:
    """The fake; `rpc` answers JSON-RPC methods, `tools` tool calls, `admin` everything else."""

    rpc: dict[str, Answer] = field(default_factory=dict)
    tools: dict[str, Answer] = field(default_factory=dict)
    admin: dict[tuple[str, str], Answer] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    port: int = 0
    arrived: threading.Condition = field(default_factory=threading.Condition)
    left: threading.Event = field(default_factory=threading.Event)
    """Set when a client closes a stream that stayed open."""

    def __enter__(self) -> Self:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: object) -> None:
                del words

            def do_GET(self) -> None:
                fake.serve(self)

            do_POST = do_PUT = do_DELETE = do_GET

        class Threaded(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *words: object) -> None:
                del words  # a client that went away is part of the tests

        self.server = Threaded(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(PATIENCE)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for(self, count: int, method: str = "") -> list[Seen]:
        """Return the requests of a JSON-RPC method once this many have arrived."""

        def found() -> list[Seen]:
            return [one for one in self.seen if not method or _method(one) == method]

        with self.arrived:
            if not self.arrived.wait_for(lambda: len(found()) >= count, PATIENCE):
                raise AssertionError(
                    f"{len(found())} of {count} requests of {method or 'any method'} arrived"
                )
            return found()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        text = handler.rfile.read(length)
        seen = Seen(handler.command, handler.path, dict(handler.headers), json.loads(text) if text else None)
        with self.arrived:
            self.seen.append(seen)
            self.arrived.notify_all()
        found = self._answer(seen)
        if isinstance(found, Stream):
            self._stream(handler, found)
            return
        raw = found if isinstance(found, Raw) else Raw(200, json.dumps(found).encode())
        handler.send_response(raw.status)
        handler.send_header("Content-Type", raw.content_type)
        handler.send_header("Content-Length", str(len(raw.body) + (5 if isinstance(raw, Short) else 0)))
        handler.end_headers()
        handler.wfile.write(raw.body)
        handler.close_connection |= isinstance(raw, Short)

    def _answer(self, seen: Seen) -> object:
        if seen.path == "/readyz":
            return {"status": "ready"}
        if seen.path not in ("/mcp", "/mcp/core", "/mcp/full"):
            path = seen.path.partition("?")[0]
            made = self.admin.get((seen.method, seen.path)) or self.admin.get((seen.method, path))
            return made(seen) if made else Raw(404, b'{"code": "not_found", "detail": "nothing"}')
        if isinstance(seen.body, list) or "id" not in seen.body or "method" not in seen.body:
            made = self.rpc.get("*")
            return made(seen) if made else Raw(202, b"")
        method = seen.body["method"]
        made = self.rpc.get(method) or self._tool(seen)
        if made is None:
            return rpc_error(seen, -32601, "no such method", status=404)
        found = made(seen)
        return found if isinstance(found, Raw | Stream) else rpc_result(seen, found)

    def _tool(self, seen: Seen) -> Answer | None:
        if seen.body["method"] != "tools/call":
            return None
        made = self.tools[seen.body["params"]["name"]]

        def call(seen: Seen) -> object:
            found = made(seen)
            if isinstance(found, Raw | Stream):
                return found
            failed = isinstance(found, dict) and set(found) == {"error"}
            structured = found if isinstance(found, dict) else {"result": found}
            return {
                "content": [{"type": "text", "text": json.dumps(found)}],
                "structuredContent": structured,
                "isError": failed,
            }

        return call

    def _stream(self, handler: BaseHTTPRequestHandler, stream: Stream) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        if stream.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            handler.send_header("Connection", "close")
        handler.end_headers()
        for data in stream.data:
            lines = "".join(f"data: {line}\r\n" for line in data.split("\n"))
            piece = f": ping\r\n\r\nevent: message\r\n{lines}\r\n".encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if stream.chunked else piece)
            handler.wfile.flush()
        if stream.stays_open:
            handler.connection.settimeout(PATIENCE)
            if not handler.connection.recv(1):
                self.left.set()
        elif stream.chunked:
            handler.wfile.write(b"0\r\n\r\n")
        handler.close_connection = True


def rpc_result(seen: Seen, result: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": seen.body["id"], "result": result}


def rpc_error(seen: Seen, code: int, message: str, *, status: int = 200) -> Raw:
    named = seen.body.get("id") if isinstance(seen.body, dict) else None
    document = {"jsonrpc": "2.0", "id": named, "error": {"code": code, "message": message}}
    return Raw(status, json.dumps(document).encode())


def _method(seen: Seen) -> str:
    return str(seen.body.get("method", "")) if isinstance(seen.body, dict) else ""
