"""The calls to Telegram's Bot API. No other module of the adapter uses the HTTP library.

At Telegram, the token is part of each address. Only the transport inserts the token, below all code that logs
or quotes an address. So requests, errors and logs contain `bot***` instead of the token.
"""

import json
import re
import secrets
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Final
from urllib.parse import quote

from postroom.contracts.errors import MissingExtra
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json
from postroom.extras import install_command
from postroom.gateway.events import SendErrorKind
from postroom.gateway.platforms.base import bounded
from postroom.gateway.platforms.telegram import Answer, read_answer, unreachable

try:
    import httpx2
except ImportError as error:
    raise MissingExtra(
        f"the library {error.name}, which the Telegram channel needs, is not installed",
        value=error.name,
        remedy=install_command("telegram"),
    ) from error

LARGEST_ANSWER: Final = 16 * 1024 * 1024
CONNECT_SECONDS: Final = 10.0
MASK: Final = "bot***"

_SAFE_PATH: Final = re.compile(r"[\w][\w .+-]*(/[\w][\w .+-]*)*")
File = tuple[str, FileContent, str]
"""The name, the content and the MIME type of a file."""


class _WithToken(httpx2.AsyncBaseTransport):
    """Inserts the token into the address of each request, and sends the request."""

    def __init__(self, token: str, *, is_plain: bool, proxy: str | None) -> None:
        self._path = f"/bot{token}/".encode("ascii")
        # Without TLS, no certificates are read. The library requires a context nevertheless, so this context
        # trusts no certificate.
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else True
        self._inner = httpx2.AsyncHTTPTransport(verify=trusted, trust_env=False, proxy=proxy)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.raw_path.replace(f"/{MASK}/".encode("ascii"), self._path, 1)
        return await self._inner.handle_async_request(
            httpx2.Request(
                request.method,
                request.url.copy_with(raw_path=path),
                headers=request.headers,
                stream=request.stream,
                extensions=request.extensions,
            )
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class TelegramApi:
    """A client of the Bot API for one bot.

    Create the client on a thread, because the constructor reads certificates.
    """

    def __init__(self, base_url: str, token: str, *, silence_ms: int, proxy: str | None = None) -> None:
        self._base = base_url.rstrip("/")
        self._silence = silence_ms / 1_000
        transport = _WithToken(token, is_plain=self._base.startswith("http://"), proxy=proxy)
        self._client = httpx2.AsyncClient(transport=transport, trust_env=False)

    def __repr__(self) -> str:
        return f"TelegramApi({self._base!r})"

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def call(
        self, method: str, fields: Mapping[str, Json], *, more_silence_ms: int = 0, file: File | None = None
    ) -> Answer:
        """Call a method of the Bot API. A network failure is returned as an answer, and never raised.

        The field `file` names the form field in which the file is sent. `more_silence_ms` is added to the
        time limit for a response.
        """
        url = f"{self._base}/{MASK}/{method}"
        sent, body = {**_body(fields, file), "timeout": self._timeout(more_silence_ms)}, bytearray()
        try:
            async with self._client.stream("POST", url, **sent) as response:
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > LARGEST_ANSWER:
                        return Answer(kind=SendErrorKind.UNKNOWN, error="Telegram's answer is too large")
                return read_answer(response.status_code, bytes(body))
        except (
            httpx2.ConnectError,
            httpx2.ConnectTimeout,
            httpx2.PoolTimeout,
            httpx2.ProxyError,
            httpx2.UnsupportedProtocol,
        ) as error:
            return Answer(
                kind=SendErrorKind.TRANSIENT, error=f"Telegram cannot be reached: {_error_type(error)}"
            )
        except httpx2.RequestError as error:
            return Answer(
                kind=SendErrorKind.UNKNOWN, error=f"Telegram's answer was lost: {_error_type(error)}"
            )

    async def download(self, path: str, *, max_bytes: int) -> AsyncGenerator[bytes]:
        """Yield the bytes of the file whose path `getFile` has returned.

        The file is fetched only from the Bot API server.

        Raises:
            TooLarge: The file is larger than `max_bytes`. At most `max_bytes` are yielded.
            ServerUnavailable: The file could not be fetched.
        """
        if not _SAFE_PATH.fullmatch(path):
            raise unreachable("the path of the file on Telegram is invalid")
        url = f"{self._base}/file/{MASK}/{quote(path)}"
        try:
            async with self._client.stream("GET", url, timeout=self._timeout(0)) as response:
                if response.status_code != httpx2.codes.OK:
                    raise unreachable(f"Telegram's file server answered with status {response.status_code}")
                length = response.headers.get("content-length")
                async for piece in bounded(response.aiter_bytes(), max_bytes, length):
                    yield piece
        except httpx2.RequestError as error:
            raise unreachable(_error_type(error)) from None

    def _timeout(self, more_ms: int) -> httpx2.Timeout:
        silence = self._silence + more_ms / 1_000
        return httpx2.Timeout(silence, connect=min(CONNECT_SECONDS, silence))


def _error_type(error: httpx2.RequestError) -> str:
    """Describe an error only by its type, because the message may contain secrets."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()


def _body(fields: Mapping[str, Json], file: File | None) -> dict[str, Json]:
    """Return the fields as the body of a request."""
    if file is None:
        content = json.dumps(dict(fields), allow_nan=False).encode("ascii")
        return {"content": content, "headers": {"Content-Type": "application/json"}}
    name = str(fields["file"])
    plain = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in fields.items()
        if key != "file"
    }
    title, data, mime = file
    boundary = secrets.token_hex(16)
    quoted = title.replace("\\", "\\\\").replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    parts = [f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}' for key, value in plain.items()]
    parts.append(
        f'Content-Disposition: form-data; name="{name}"; filename="{quoted}"\r\nContent-Type: {mime}\r\n\r\n'
    )
    head = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts).removesuffix("\r\n").encode()
    tail = f"\r\n--{boundary}--\r\n".encode()
    headers = {
        "Content-Type": f"multipart/form-data; boundary={boundary}",
        "Content-Length": str(len(head) + data.size + len(tail)),
    }
    return {"content": _form(head, data, tail), "headers": headers}


async def _form(head: bytes, content: FileContent, tail: bytes) -> AsyncIterator[bytes]:
    """Yield the parts of a form with a file, without loading the whole file into memory."""
    yield head
    async for piece in content.pieces():
        yield piece
    yield tail
