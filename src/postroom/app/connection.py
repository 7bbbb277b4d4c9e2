"""One HTTP connection: uvicorn's protocol with limits for slow, faulty and too many clients.

The time limits for a client:

    accepted ──▶ the head of a request, 30 s in all ──▶ its body, 30 s for each next piece ──▶ none
       │                        ▲                                                                │
       └─ one of too many: cut  └──────────── uvicorn waits for the next request ◀── the answer ─┘
"""

import asyncio
import resource
from contextlib import suppress
from functools import cache
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

PATIENCE: Final = 30.0
"""The time limit for a client in seconds."""
WANTED: Final = 4096
"""The desired limit of open files and sockets for the process. Usual defaults are 256 and 1024."""
RESERVED: Final = 192
"""The part of the limit that is reserved for the database, Git, and connections not counted yet."""
ACCEPTED_AT_ONCE: Final = 50
"""The number of connections that asyncio accepts at once.

The connections of about three such batches can be open before they are counted.
"""
QUEUE: Final = 1024
"""How many connections can wait in the system to be accepted. Many agents may connect at once."""
MAX_HEAD_LENGTH: Final = 64 << 10
"""Maximum bytes of a request's address and headers, and of the data between two pieces of a body."""
_AT_ONCE: Final = 8 << 10
"""The number of bytes that the parser gets at once.

After a complete part, up to this number of bytes are not counted towards the limits.
"""
MAX_BEHIND: Final = 32
"""Maximum number of pipelined requests that wait behind the active request."""

_HEAD_TOO_LARGE: Final = (
    f"The request head exceeds {MAX_HEAD_LENGTH} bytes. Send a shorter URL or fewer headers."
)
_NO_HTTP: Final = (
    "The server received something that is not an HTTP request. Send plain HTTP/1.1 to a path that "
    "begins with /. To use TLS, put a proxy in front of this server."
)


class _Refused(Exception):
    """Raised to reject a request with status 400."""


@cache
def room() -> int:
    """Raise the limit of open files if possible, and return the maximum number of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < best:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = WANTED if soft == resource.RLIM_INFINITY else min(WANTED, soft)
    return max(allowed - RESERVED, allowed // 4)


class Connection(HttpToolsProtocol):
    """One HTTP/1.1 connection with limits for the head of a request and the number of waiting requests.

    Proxy addresses are rejected, and trailers are ignored. Rejected input closes the connection.
    """

    _late: asyncio.TimerHandle | None = None
    _in_head = False
    _head_size = 0
    """The number of bytes of the current request's address and headers that have been read so far."""
    _unfinished = 0
    """The number of bytes since the last complete head, complete piece of a body, or complete message."""
    _is_deaf = False
    """Whether the connection is no longer read, because the input is invalid or no longer HTTP."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for a request, or close the connection if there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > room():
            transport.abort()
        else:
            self._wait_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit of the connection."""
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, up to the limit of unfinished data."""
        while data and not self._is_deaf and not self.transport.is_closing():
            allowed = min(MAX_HEAD_LENGTH - self._unfinished, _AT_ONCE)
            piece, data = data[:allowed], data[allowed:]
            self._unfinished += len(piece)
            super().data_received(piece)
            if self._unfinished >= MAX_HEAD_LENGTH and not self._is_deaf:
                self.send_400_response(_HEAD_TOO_LARGE)
        self._wait_for_the_rest()

    def on_message_begin(self) -> None:
        """Start to read a request, or reject the request if too many requests are waiting."""
        if len(self.pipeline) >= MAX_BEHIND:
            raise _Refused
        super().on_message_begin()
        self._in_head, self._head_size = True, 0

    def on_url(self, url: bytes) -> None:
        """Store a piece of the request's address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header of the request; ignore a header after the body."""
        self._count(len(name) + len(value))
        if self._in_head:
            super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Start to handle the request, or reject a request that this server does not support."""
        self._in_head, self._unfinished = False, 0
        coded = any(
            name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers
        )
        is_path = self.url.startswith(b"/") and b"#" not in self.url
        if coded or not is_path or self.parser.get_http_version() not in ("1.0", "1.1"):
            raise _Refused
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Store a piece of the request's body."""
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._unfinished = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue with the next request, or close the connection if the request's body is incomplete."""
        if self.cycle.response_complete and self.cycle.more_body:
            self.transport.close()
        super().on_response_complete()
        if self._is_serving():
            self._wait_for_the_rest()

    def send_400_response(self, msg: str) -> None:
        """Answer the valid requests, reject the invalid request, and close the connection."""
        self._is_deaf = True
        last = self.pipeline[0][0] if self.pipeline else self.cycle
        if self._is_serving() and not last.more_body:
            last.keep_alive = False
            return
        if self._is_serving():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.pipeline or (self._is_serving() and self.cycle.response_started):
            self.transport.close()
        else:
            super().send_400_response(msg if msg == _HEAD_TOO_LARGE else _NO_HTTP)

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore a request to upgrade the protocol, and answer in HTTP/1.1."""
        self._is_deaf = True
        self.cycle.keep_alive = False

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MAX_HEAD_LENGTH:
            raise _Refused

    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_the_rest(self) -> None:
        if self._is_serving():
            self._wait_no_more()
        if not self._is_serving() or self.cycle.more_body:
            self._wait_on()

    def _wait_on(self) -> None:
        if self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(PATIENCE, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
