"""A push service of the tests' own, and browsers that subscribe there and decrypt what they get."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typing_extensions import override

from postroom.services.push_encryption import encoded

LOST = 0
"""In place of a status: the push service takes the notification, and its answer is lost."""


@dataclass
class FakeBrowser:
    """The keys of a browser, and its address at the push service."""

    endpoint: str
    key: Any = field(default_factory=lambda: generate_private_key(SECP256R1()))
    auth: bytes = field(default_factory=lambda: os.urandom(16))

    @property
    def subscription(self) -> dict[str, str]:
        """The subscription that `PushManager.subscribe` returns to a page."""
        point = self.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return {"endpoint": self.endpoint, "p256dh": encoded(point), "auth": encoded(self.auth)}

    def read(self, body: bytes) -> dict[str, Any]:
        """Decrypt a notification with a library that shares no code with ours."""
        import http_ece

        return json.loads(
            http_ece.decrypt(body, private_key=self.key, auth_secret=self.auth, version="aes128gcm")
        )


@dataclass
class Pushed:
    """A request that the push service got."""

    path: str
    headers: dict[str, str]
    body: bytes


class PushService:
    """A push service on loopback, which answers with the statuses that a test has put in, otherwise with 201."""

    def __init__(self) -> None:
        self.got = SimpleQueue[Pushed]()
        self.statuses: list[tuple[int, dict[str, str]]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, headers = service.statuses.pop(0) if service.statuses else (201, {})
                service.got.put(
                    Pushed(self.path, {name.lower(): text for name, text in self.headers.items()}, body)
                )
                if status == LOST:  # the reply is lost
                    return
                self.send_response(status)
                for name, text in {"Content-Length": "0", **headers}.items():
                    self.send_header(name, text)
                self.end_headers()

            @override
            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"

    def browser(self, name: str = "one") -> FakeBrowser:
        """Return a browser that has an address here."""
        return FakeBrowser(f"{self.origin}/{name}")

    def taken(self) -> list[Pushed]:
        """Return the requests that came since the last call."""
        return [self.got.get() for _ in range(self.got.qsize())]

    @contextmanager
    def serving(self) -> Iterator["PushService"]:
        """Answer requests during the block."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
