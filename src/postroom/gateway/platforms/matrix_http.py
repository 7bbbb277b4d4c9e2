"""Requests to one homeserver, and to no other host (ADR 72).

The token is in a header, and in no address, log or failure.
"""

import asyncio
import importlib
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from postroom.contracts.errors import MissingExtra, TooLarge
from postroom.contracts.messages import Json
from postroom.extras import install_command
from postroom.gateway.platforms.base import bounded

LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer that is read; a first sync of many rooms is large."""
READ_ON_THE_LOOP = 128 * 1024
"""Bytes of JSON that are read at once; more is read on a thread."""
CONNECT_SECONDS: Final = 15.0
FATAL = ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of a request. Status 0: there was no answer; `lost` is true if it may have arrived."""

    status: int = 0
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    lost: bool = False
    wait_ms: int | None = None
    """The pause that its header asks for."""

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return 200 <= self.status < 300

    @property
    def errcode(self) -> str:
        """The protocol's error code, if it is a valid one."""
        code = self.body.get("errcode")
        return code if isinstance(code, str) and code.isascii() and code.isidentifier() else ""

    @property
    def is_fatal(self) -> bool:
        """Whether the token is invalid, so that waiting does not help."""
        return self.status == 401 or self.errcode in FATAL

    @property
    def retry_after_ms(self) -> int | None:
        """How long the homeserver asks us to wait."""
        told = self.body.get("retry_after_ms")
        return min(told, 3_600_000) if isinstance(told, int) and told > 0 else self.wait_ms

    def said(self) -> str:
        """Return the failure in a few words, without secrets."""
        return f"{self.status} {self.errcode}".strip() if self.status else "no answer"


class Homeserver:
    """Asks one homeserver as one user. `open` before anything else; `close` as often as one likes."""

    def __init__(self, base_url: str, token: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = token
        self._library: Any = None
        self._client: Any = None

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self._client is not None

    async def open(self) -> None:
        """Load the library and make a client.

        Raises:
            MissingExtra: The library is not installed.
        """
        await self.close()
        try:
            self._library, self._client = await asyncio.to_thread(self._made)
        except ImportError as error:
            raise MissingExtra(
                "the library httpx2 for Matrix is not installed",
                value="matrix",
                remedy=install_command("matrix"),
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Json] | bytes | None = None,
        *,
        content_type: str = "application/json",
        timeout_ms: int = 30_000,
    ) -> Answer:
        """Send a request and return its answer; a failure of the network is an answer with status 0."""
        data = body if isinstance(body, bytes) else None if body is None else _json(body)
        try:
            answer, raw = await self._once(method, path, data, content_type, timeout_ms, LARGEST_ANSWER)
        except TooLarge:
            return Answer(lost=True)
        if raw is None:
            return answer
        read = await asyncio.to_thread(_read, raw) if len(raw) > READ_ON_THE_LOOP else _read(raw)
        return Answer(status=answer.status, body=read, wait_ms=answer.wait_ms)

    async def download(self, path: str, *, max_bytes: int) -> bytes | Answer:
        """Return the bytes at a path, or the answer with the reason for their absence.

        Raises:
            TooLarge: There are more than `max_bytes`; nothing beyond that was read.
        """
        answer, raw = await self._once("GET", path, None, None, 60_000, max_bytes)
        return answer if raw is None or not answer.ok else raw

    async def _once(
        self,
        method: str,
        path: str,
        data: bytes | None,
        content_type: str | None,
        timeout_ms: int,
        most: int,
    ) -> tuple[Answer, bytes | None]:
        if self._client is None:
            return Answer(), None
        httpx = self._library
        headers = {} if content_type is None else {"Content-Type": content_type}
        sent = {"content": data, "headers": headers, "timeout": _timeout(httpx, timeout_ms)}
        try:
            # No redirect is followed: the token is for this homeserver alone.
            async with (
                asyncio.timeout(timeout_ms / 1000),
                self._client.stream(
                    method, self._base_url + path, follow_redirects=False, **sent
                ) as response,
            ):
                length = response.headers.get("content-length")
                pieces = response.aiter_bytes(64 * 1024)
                limit = most if response.is_success else LARGEST_ANSWER
                raw = b"".join([piece async for piece in bounded(pieces, limit, length)])
                return Answer(status=response.status_code, wait_ms=_wait_of(response.headers)), raw
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol):
            return Answer(), None
        except (httpx.RequestError, TimeoutError):
            return Answer(lost=True), None

    def _made(self) -> tuple[Any, Any]:
        """Load the library and make a client; on a thread, for both read files."""
        httpx = importlib.import_module("httpx2")
        # Without TLS no certificates are read; the library still requires a context, so this one trusts
        # nobody.
        is_plain = self._base_url.startswith("http://")
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else True
        headers = {"Authorization": f"Bearer {self._token}"}
        return httpx, httpx.AsyncClient(verify=trusted, trust_env=False, headers=headers)


def _timeout(httpx: Any, milliseconds: int) -> Any:
    return httpx.Timeout(milliseconds / 1000, connect=min(CONNECT_SECONDS, milliseconds / 1000))


def _json(body: Mapping[str, Json]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _read(raw: bytes) -> Mapping[str, Any]:
    """Return the object in an answer; an empty one if it is not an object."""
    try:
        read = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _wait_of(headers: Mapping[str, str]) -> int | None:
    told = headers.get("Retry-After", "")
    return min(int(told), 3_600) * 1000 if told.isascii() and told.isdigit() else None
