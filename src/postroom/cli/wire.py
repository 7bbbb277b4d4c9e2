"""Sends HTTP requests to the server with only the standard library, so that `postroom mcp` stays small.

Each connection is used for one request. On one machine, a new connection takes 0.1 ms. If connections were
used again, the server could close one just when a call is sent, and the outcome of that call would be
unknown.
"""

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from urllib.parse import SplitResult, urlsplit

from postroom.contracts.client_programs import COMMANDS
from postroom.contracts.errors import ConfigError, PostroomError, ServerUnavailable, TooLarge

CONNECT_TIMEOUT: Final = timedelta(seconds=5)
ANSWER_TIMEOUT: Final = timedelta(seconds=60)
LARGEST_ANSWER: Final = 64 * 1024 * 1024
"""The maximum size, in bytes, of a response or of one event in a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a server, and the tokens for requests to the server."""

    url: str
    """The URL of the server, perhaps with the path prefix of a proxy, without a slash at the end."""
    mcp_path: str = "/mcp"
    token: str = field(default="", repr=False)
    agent_token: str = field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers that every request to the server needs."""
        result = {"User-Agent": COMMANDS}
        if self.token:
            result["Authorization"] = f"Bearer {self.token}"
        if self.agent_token:
            result["Postroom-Agent-Token"] = self.agent_token
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An HTTP request to the server."""

    path: str
    method: str = "POST"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP response from the server."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> object:
        """Return the JSON data in the body, or None if the body is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class Exchange:
    """An HTTP request and its response; another thread may abort the exchange at any time."""

    def __init__(self, endpoint: Endpoint, *, timeout: timedelta = ANSWER_TIMEOUT) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._parts = parts(endpoint.url)
        found = self._parts
        kind = http.client.HTTPSConnection if found.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(found.hostname or "", found.port, timeout=CONNECT_TIMEOUT.total_seconds())
        self._socket: socket.socket | None = None
        self._broken_off = False

    def connect(self) -> None:
        """Connect to the server; after a failure, no part of a request has been sent.

        Raises:
            ServerUnavailable: No server accepts a connection at the endpoint.
        """
        try:
            self._connection.connect()
            held = self._connection.sock
            if held is None:
                raise ConnectionError("the connection closed while it was opening")
            held.settimeout(self._timeout.total_seconds())
            self._socket = held
            if self._broken_off:
                raise ConnectionAbortedError("the call was cancelled")
        except OSError as error:
            raise ServerUnavailable(
                f"no server answers at {self._endpoint.url}: {error}", value=self._endpoint.url
            ) from error

    def send(self, call: Call) -> http.client.HTTPResponse:
        """Send a request, and return the response after the response headers have arrived.

        Raises:
            ServerUnavailable: No server answers at the endpoint in time.
        """
        headers = {**self._endpoint.headers(), **call.headers}
        path = self._parts.path + call.path
        if self._socket is None:
            self.connect()
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                # A server that rejects a large body responds, and closes the connection, before it has read
                # all of it.
                self._connection.request(call.method, path, body=call.body, headers=headers)
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise unavailable(self._endpoint, error) from error

    def break_off(self) -> None:
        """Close the connection while another thread uses it, so that the server ends the request."""
        self._broken_off = True
        held = self._socket
        if held is not None:
            try:
                held.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it is already closed

    def close(self) -> None:
        """Close the connection; a second call has no effect."""
        self._connection.close()


def exchange(endpoint: Endpoint, call: Call, *, timeout: timedelta = ANSWER_TIMEOUT) -> Reply:
    """Send a request to the server, and return the whole response.

    Raises:
        ServerUnavailable: No server answers in time, or the response is incomplete.
        TooLarge: The response is larger than `LARGEST_ANSWER`.
    """
    line = Exchange(endpoint, timeout=timeout)
    try:
        response = line.send(call)
        body = whole_body(endpoint, response)
    finally:
        line.close()
    return Reply(status=response.status, content_type=content_type(response), body=body)


def whole_body(endpoint: Endpoint, response: http.client.HTTPResponse) -> bytes:
    """Read and return the body of a response.

    Raises:
        ServerUnavailable: The response is incomplete.
        TooLarge: The response is larger than `LARGEST_ANSWER`.
    """
    try:
        body = response.read(LARGEST_ANSWER + 1)
    except (OSError, http.client.HTTPException) as error:
        raise unavailable(endpoint, error) from error
    if len(body) > LARGEST_ANSWER:
        raise TooLarge(
            f"the answer exceeds {LARGEST_ANSWER} bytes",
            remedy="request less at once, for example with a smaller limit",
        )
    if response.length:  # http.client reports an incomplete body only if it is read without a limit
        short = ConnectionError(f"the answer is incomplete: {response.length} bytes are missing")
        raise unavailable(endpoint, short) from short
    return body


def content_type(response: http.client.HTTPResponse) -> str:
    """Return the media type of a response, without parameters."""
    return (response.getheader("Content-Type") or "").split(";", 1)[0].strip().lower()


def unavailable(endpoint: Endpoint, error: Exception) -> PostroomError:
    """Return the error for a request without a response, which the server may have executed."""
    if isinstance(error, TimeoutError):
        return ServerUnavailable(
            f"the server at {endpoint.url} did not answer in time; the call may have taken effect",
            value=endpoint.url,
            remedy="run `postroom status`; you can safely repeat a call that has an idempotency key",
        )
    return ServerUnavailable(
        f"the server at {endpoint.url} accepted the request, but its answer was lost: {error}; the "
        "change may or may not have been stored",
        value=endpoint.url,
        remedy=(
            "repeat the call with the same idempotency_key; without a key, first check whether the "
            "change was stored"
        ),
    )


def parts(url: str) -> SplitResult:
    """Split the URL of a server into its parts.

    Raises:
        ConfigError: The address is not an http or https address with a host.
    """
    try:
        parts = urlsplit(url.rstrip("/"))
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a URL: {error}", value=url) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise ConfigError(
            f"{url!r} does not begin with http:// or https://",
            value=url,
            remedy="set POSTROOM_URL to the address of the server, such as http://127.0.0.1:8765",
        )
    return parts
