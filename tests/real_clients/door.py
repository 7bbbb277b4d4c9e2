"""Passes requests on to a server with its token, for clients that cannot send one; nothing else is changed."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol


class Listening(Protocol):
    """A server with the token of its operator."""

    @property
    def address(self) -> tuple[str, int]: ...

    @property
    def token(self) -> str: ...


_OF_A_CONNECTION = {"connection", "transfer-encoding", "content-length", "keep-alive", "server", "date"}


@contextmanager
def opened(server: Listening) -> Iterator[str]:
    """Listen on a free port of loopback; yield the address of the MCP endpoint there."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            line = http.client.HTTPConnection(*server.address, timeout=60)
            try:
                token = {"Authorization": f"Bearer {server.token}"}
                line.request(self.command, self.path, body=body, headers={**headers, **token})
                answer = line.getresponse()
                content = answer.read()
            finally:
                line.close()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_A_CONNECTION:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_OPTIONS = _pass_on

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.server_port}/mcp"
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
