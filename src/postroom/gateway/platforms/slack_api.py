"""Slack's Web API and files over HTTP; only this module of the adapter uses the HTTP client.

Tokens are sent only in headers. No exception of the client leaves this module, because they contain
addresses.
"""

import re
import ssl
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from postroom.contracts.errors import InvalidArgument, MissingExtra, ServerUnavailable, TooLarge
from postroom.contracts.files import FileContent
from postroom.extras import install_command
from postroom.gateway.platforms.base import bounded
from postroom.gateway.platforms.slack_outgoing import ANSWER_LOST, UNREACHABLE, Answer, read_answer, refused

try:
    import httpx2
except ImportError as error:
    raise MissingExtra(
        f"Slack requires {error.name}, which is not installed",
        value=error.name,
        remedy=install_command("slack"),
    ) from error

LARGEST_ANSWER: Final = 4 * 1024 * 1024
CONNECT_S: Final = 10.0
_HOST: Final = re.compile(r"[a-z0-9.-]+")
_PORTS: Final = {"https": 443, "wss": 443, "http": 80, "ws": 80}
_NEVER_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How Slack is reached."""

    base_url: str
    timeout_ms: int
    proxy: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


def is_of_platform(url: str, base_url: str, *, any_port: bool = False) -> bool:
    """Return whether an address is Slack's own: encrypted as the API is, on its host or below it."""
    if not (url.isascii() and url.isprintable() and " " not in url):
        return False
    try:
        asked, base = urlsplit(url), urlsplit(base_url)
        ports = (_port(asked), _port(base))
    except ValueError:
        return False
    secure = {"https": ("https", "wss"), "http": ("http", "ws")}[base.scheme]
    host, own = (asked.hostname or "").lower(), (base.hostname or "").lower()
    at_home = host == own or (base.scheme == "https" and host.endswith(f".{own}"))
    clean = _HOST.fullmatch(host) is not None and asked.username is None and asked.password is None
    return clean and at_home and asked.scheme in secure and (any_port or ports[0] == ports[1])


def _port(url: SplitResult) -> int | None:
    return url.port or _PORTS.get(url.scheme)


def tls_context() -> ssl.SSLContext:
    """Return how certificates are checked; it reads files, so that it belongs outside of the event loop."""
    return httpx2.create_ssl_context(trust_env=False)


class SlackApi:
    """The Web API as one bot."""

    def __init__(self, network: Network, token: str) -> None:
        self.network = network
        self._base = network.base_url.rstrip("/")
        self._token = token
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(network.timeout_ms / 1000, connect=CONNECT_S),
            verify=network.tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            proxy=network.proxy,
            trust_env=False,
            headers={"Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        """Close the connections; harmless when done twice."""
        await self._client.aclose()

    async def call(
        self, method: str, body: Mapping[str, Any], *, form: bool = False, token: str | None = None
    ) -> Answer:
        """Call a method; whatever comes of it is in the answer.

        Some methods take forms alone, and `apps.connections.open` another token.
        """
        sent = {"data": dict(body)} if form else {"json": dict(body)}
        return await self._ask(f"{self._base}/{method}", token or self._token, **sent)

    async def upload(self, url: str, data: FileContent) -> Answer:
        """Put a file where Slack said; until it is completed nobody sees it.

        Raises:
            InvalidArgument: the address is not Slack's own.
        """
        self._refuse_foreign(url)
        length = {"Content-Length": str(data.size)}
        return await self._ask(url, None, content=data.pieces(), headers=length)

    async def fetch(self, url: str, *, max_bytes: int, is_page: bool) -> AsyncGenerator[bytes]:
        """Yield a file from a person.

        Raises:
            InvalidArgument: The address is not Slack's own; nothing was fetched.
            TooLarge: The file is larger; nothing beyond the limit was read.
            ServerUnavailable: The file could not be fetched.
        """
        self._refuse_foreign(url)
        try:
            async with self._client.stream("GET", url, headers=_bearer(self._token)) as response:
                page = response.headers.get("content-type", "").startswith("text/html") and not is_page
                if response.status_code != httpx2.codes.OK or page:
                    raise ServerUnavailable(
                        f"Slack did not return the file (status {response.status_code})",
                        remedy="give the app the scope files:read and install it again",
                    )
                length = response.headers.get("content-length")
                async for piece in bounded(response.aiter_bytes(), max_bytes, length):
                    yield piece
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ServerUnavailable(f"the file could not be downloaded: {type(error).__name__}") from None

    async def _ask(
        self, url: str, token: str | None, *, headers: Mapping[str, str] | None = None, **sent: Any
    ) -> Answer:
        told = {**_bearer(token), **(headers or {})}
        try:
            async with self._client.stream("POST", url, headers=told, **sent) as response:
                length = response.headers.get("content-length")
                raw = b"".join(
                    [piece async for piece in bounded(response.aiter_bytes(), LARGEST_ANSWER, length)]
                )
                if token is None:
                    return _uploaded(response.status_code)
                return read_answer(response.status_code, response.headers, raw)
        except TooLarge:
            return Answer(refusal=refused(ANSWER_LOST))
        except _NEVER_SENT:
            return Answer(refusal=refused(UNREACHABLE))
        except (httpx2.HTTPError, httpx2.InvalidURL):
            return Answer(refusal=refused(ANSWER_LOST))

    def _refuse_foreign(self, url: str) -> None:
        if not is_of_platform(url, self._base):
            raise InvalidArgument("this file is not on Slack's servers, so it is not downloaded")


def _bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _uploaded(status: int) -> Answer:
    if status == httpx2.codes.OK:
        return Answer()
    return Answer(refusal=refused(UNREACHABLE if status >= 500 else f"http_{status}"))
