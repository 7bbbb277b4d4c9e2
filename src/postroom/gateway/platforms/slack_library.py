"""The HTTP client and the web socket for Slack, which need the libraries of the extra `slack`."""

import asyncio
import json
import logging
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from postroom.concurrency import Tasks
from postroom.contracts.clock import Timer
from postroom.contracts.errors import (
    ConfigError,
    CredentialRefused,
    InvalidArgument,
    MissingExtra,
    ServerUnavailable,
    TooLarge,
)
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json
from postroom.extras import install_command
from postroom.gateway.platforms.base import AdapterState, bounded, pause_ms
from postroom.gateway.platforms.slack import (
    ANSWER_LOST,
    KINDS,
    UNREACHABLE,
    Answer,
    build_refusal,
    read_answer,
)
from postroom.log import get_logger

_LOG = get_logger(__name__)


# Web API and files. Tokens are sent only in headers. No exception of the HTTP client leaves this part,
# because its text contains addresses.


try:
    import httpx2
except ImportError as error:
    raise MissingExtra(
        f"the library {error.name}, which the Slack channel needs, is not installed",
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
    """The network settings for Slack."""

    base_url: str
    timeout_ms: int
    proxy: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


def is_of_platform(url: str, base_url: str, *, any_port: bool = False) -> bool:
    """Return whether an address belongs to the host of the API or to a subdomain."""
    if not (url.isascii() and url.isprintable() and " " not in url):
        return False
    try:
        parts, base = urlsplit(url), urlsplit(base_url)
        ports = (_port(parts), _port(base))
    except ValueError:
        return False
    secure = {"https": ("https", "wss"), "http": ("http", "ws")}[base.scheme]
    host, own = (parts.hostname or "").lower(), (base.hostname or "").lower()
    at_home = host == own or (base.scheme == "https" and host.endswith(f".{own}"))
    clean = _HOST.fullmatch(host) is not None and parts.username is None and parts.password is None
    return clean and at_home and parts.scheme in secure and (any_port or ports[0] == ports[1])


def _port(url: SplitResult) -> int | None:
    return url.port or _PORTS.get(url.scheme)


def tls_context() -> ssl.SSLContext:
    """Return the TLS context for connections to Slack.

    Call `tls_context` outside the event loop, because the function reads files.
    """
    return httpx2.create_ssl_context(trust_env=False)


class SlackApi:
    """A client of Slack's Web API for one bot."""

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
        """Close the connections. A second call has no effect."""
        await self._client.aclose()

    async def call(
        self, method: str, body: Mapping[str, Any], *, form: bool = False, token: str | None = None
    ) -> Answer:
        """Call a method of the Web API. A failure is returned as an answer, and never raised.

        If `form` is true, the body is sent as a form. `token` replaces the token of the bot.
        """
        sent = {"data": dict(body)} if form else {"json": dict(body)}
        return await self._ask(f"{self._base}/{method}", token or self._token, **sent)

    async def upload(self, url: str, data: FileContent) -> Answer:
        """Upload a file to an address that Slack has returned.

        The file is invisible until the upload is completed.

        Raises:
            InvalidArgument: The address does not belong to Slack.
        """
        self._refuse_foreign(url)
        length = {"Content-Length": str(data.size)}
        return await self._ask(url, None, content=data.pieces(), headers=length)

    async def fetch(self, url: str, *, max_bytes: int, is_page: bool) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file that a person has sent.

        Raises:
            InvalidArgument: The address does not belong to Slack. Nothing was fetched.
            TooLarge: The file is larger than `max_bytes`. Nothing beyond the limit was read.
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
            raise ServerUnavailable(
                f"the file could not be downloaded: {type(error).__name__}",
                remedy="ask the sender to send the file again",
            ) from None

    async def _ask(
        self, url: str, token: str | None, *, headers: Mapping[str, str] | None = None, **sent: Any
    ) -> Answer:
        fields = {**_bearer(token), **(headers or {})}
        try:
            async with self._client.stream("POST", url, headers=fields, **sent) as response:
                length = response.headers.get("content-length")
                raw = b"".join(
                    [piece async for piece in bounded(response.aiter_bytes(), LARGEST_ANSWER, length)]
                )
                if token is None:
                    status = response.status_code
                    if status == httpx2.codes.OK:
                        return Answer()
                    return Answer(refusal=build_refusal(UNREACHABLE if status >= 500 else f"http_{status}"))
                return read_answer(response.status_code, response.headers, raw)
        except TooLarge:
            return Answer(refusal=build_refusal(ANSWER_LOST))
        except _NEVER_SENT:
            return Answer(refusal=build_refusal(UNREACHABLE))
        except (httpx2.HTTPError, httpx2.InvalidURL):
            return Answer(refusal=build_refusal(ANSWER_LOST))

    def _refuse_foreign(self, url: str) -> None:
        if not is_of_platform(url, self._base):
            raise InvalidArgument("the file is not stored on Slack's servers, so it is not downloaded")


def _bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


# Socket Mode: Slack sends its events over a web socket that the adapter opens.
#
#     open ─▶ hello ─▶ envelopes ─▶ (queue) ─▶ processed, one after another ─▶ ack
#          ─▶ `disconnect` ─▶ the next connection is opened; the old one is closed ten seconds later
#          ─▶ cut, silent  ─▶ a pause that grows, then the next connection
#
# All connections feed one queue, so that messages keep their order of arrival, even while one connection
# replaces another. An envelope is acknowledged only after it was accepted. If it could not be stored, the
# adapter retries after a pause, and later envelopes wait. Slack also sends it again, which is harmless, but
# it stops after some attempts, and never sends a button press again.


try:
    import websockets
    from websockets.asyncio.client import ClientConnection, connect
except ImportError as error:
    raise MissingExtra(
        f"the library {error.name}, which the Slack channel needs, is not installed",
        value=error.name,
        remedy=install_command("slack"),
    ) from error

HEARTBEAT_MS: Final = 15_000
"""The interval between pings. If a ping has no answer when the next ping is due, the connection ends."""
LEAVE_MS: Final = 10_000
OPEN_S: Final = 15.0
CLOSE_S: Final = 1.0
LARGEST_FRAME: Final = 4 * 1024 * 1024
MAX_WAITING: Final = 1_000
"""The number of queued envelopes at which the adapter stops reading. Slack keeps further envelopes."""

_SILENT = logging.getLogger(f"{__name__}.library")
# at lower levels, the library logs whole messages, and the secret ticket in the address
_SILENT.setLevel(logging.CRITICAL)


class Ending(StrEnum):
    """The reason why a connection must be replaced, or has ended."""

    REPLACED = "replaced"
    CROWDED = "crowded"
    DISABLED = "disabled"
    LOST = "lost"


_ENDINGS: Final = {"link_disabled": Ending.DISABLED, "too_many_websockets": Ending.CROWDED}


_WHY: Final = {
    Ending.LOST: "the connection to Slack was lost",
    Ending.CROWDED: "Slack reports too many connections of this app",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The callbacks through which the socket calls its adapter."""

    address: Callable[[], Awaitable[str]]
    """Return the address for one connection. Raise ConfigError or ServerUnavailable."""
    take: Callable[[str, Json], Awaitable[None]]
    """Process an envelope, and return when it is stored."""
    take_unreadable: Callable[[bytes, str], Awaitable[None]]
    """Store a frame that is not an envelope, and the reason."""
    heard: Callable[[], None]
    stands: Callable[[AdapterState, str], None]
    """The function that gets the state of the connection, and the reason for a loss."""
    failed: Callable[[str, str, bool], None]
    """Called with a code and a message when receiving ends, and with whether `connect` may succeed again."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Connection:
    peer: ClientConnection
    ended: "asyncio.Future[Ending]"
    proven: bool = False
    """Whether the connection has received an envelope, or was open for a while.

    The pauses between attempts to connect grow until this is true.
    """


@dataclass(slots=True, kw_only=True)
class Dialing:
    """The settings for opening connections."""

    tls: ssl.SSLContext | None = None
    proxy: str | None = None


class SlackSocket:
    """A connection to Slack that is opened again after a failure."""

    def __init__(self, hooks: Hooks, *, tasks: Tasks, timer: Timer, dialing: Dialing) -> None:
        self._hooks = hooks
        self._tasks = tasks
        self._timer = timer
        self._dialing = dialing
        self._open: set[_Connection] = set()
        self._arrived: asyncio.Queue[tuple[_Connection, Mapping[str, Any] | bytes]] = asyncio.Queue(
            MAX_WAITING
        )

    async def open(self) -> None:
        """Connect to Slack, and keep the connection open in the background.

        The call returns after Slack's `hello`.

        Raises:
            ConfigError: Slack refuses the app's token, or Socket Mode is switched off.
            ServerUnavailable: Slack could not be reached.
        """
        first = await self._connect()
        self._tasks.start(self._keep(first), name="socket")

    async def close(self) -> None:
        """Close all connections within two seconds. The caller must close the tasks first."""
        async with asyncio.TaskGroup() as group:
            for connection in tuple(self._open):
                group.create_task(self._leave(connection))

    # Connections.

    async def _keep(self, connection: _Connection) -> None:
        worker = self._tasks.start(self._work(), name="envelopes")
        attempt = 0
        try:
            while True:
                await asyncio.wait({connection.ended, worker}, return_when=asyncio.FIRST_COMPLETED)
                ending = connection.ended.result() if connection.ended.done() else Ending.LOST
                if ending is not Ending.REPLACED:
                    await self._leave(connection)
                if ending is Ending.DISABLED:
                    self._hooks.failed("socket_mode_disabled", SWITCHED_OFF, True)
                    return
                if worker.done():  # the failure is logged, and Slack sends unacknowledged envelopes again
                    while not self._arrived.empty():
                        self._arrived.get_nowait()
                    worker = self._tasks.start(self._work(), name="envelopes")
                elif connection.proven:
                    attempt = 0
                fresh = await self._next(attempt, ending, connection.proven)
                if ending is Ending.REPLACED:
                    self._tasks.start(self._leave_later(connection), name="leaving")
                connection = fresh
                attempt += 1
        except ConfigError as error:
            passing = not isinstance(error, CredentialRefused)
            self._hooks.failed("refused" if passing else "credentials_refused", error.message, passing)
        finally:
            worker.cancel()

    async def _next(self, attempt: int, ending: Ending, proven: bool) -> _Connection:
        """Open the next connection, after a pause if the last connection was lost."""
        wait = 0 if ending is Ending.REPLACED and proven else pause_ms(attempt)
        if ending is not Ending.REPLACED:
            self._hooks.stands(AdapterState.RECONNECTING, _WHY[ending])
        while True:
            await self._timer.sleep(wait)
            try:
                connection = await self._connect()
            except ServerUnavailable as error:
                attempt += 1
                detail = error.details.get("retry_after_ms")
                wait = max(pause_ms(attempt), detail if isinstance(detail, int) else 0)
                self._hooks.stands(AdapterState.RECONNECTING, error.message)
                _LOG.warning("slack.unreachable", why=error.message, next_try_ms=wait)
            else:
                self._hooks.stands(AdapterState.CONNECTED, "")
                return connection

    async def _connect(self) -> _Connection:
        address = await self._hooks.address()
        try:
            async with asyncio.timeout(OPEN_S):
                peer = await connect(
                    address,
                    ssl=self._dialing.tls if address.startswith("wss:") else None,
                    proxy=self._dialing.proxy,
                    open_timeout=None,
                    ping_interval=None,
                    close_timeout=CLOSE_S,
                    max_size=LARGEST_FRAME,
                    logger=_SILENT,
                )
                greeted = False
                try:
                    frame = _decode(await peer.recv()) or {}
                    greeted = frame.get("type") == "hello"
                finally:
                    if not greeted:
                        await peer.close()
                if frame.get("reason") == "link_disabled":
                    raise ConfigError(SWITCHED_OFF, remedy=SWITCH_ON)
                if not greeted:
                    raise ServerUnavailable(
                        "Slack opened a socket without the first message, hello", remedy="postroom retries"
                    )
        except (OSError, TimeoutError, websockets.WebSocketException) as error:
            raise ServerUnavailable(
                f"the socket to Slack could not be opened: {type(error).__name__}", remedy="postroom retries"
            ) from None
        connection = _Connection(peer=peer, ended=asyncio.get_running_loop().create_future())
        self._open.add(connection)
        self._hooks.heard()
        self._tasks.start(self._read(connection), name="reading")
        self._tasks.start(self._heartbeat(connection), name="heartbeat")
        return connection

    async def _leave_later(self, connection: _Connection) -> None:
        await self._timer.sleep(LEAVE_MS)
        await self._leave(connection)

    async def _leave(self, connection: _Connection) -> None:
        await connection.peer.close()
        self._open.discard(connection)

    async def _heartbeat(self, connection: _Connection) -> None:
        """Send pings, and treat a connection without an answer as lost."""
        while True:
            try:
                pong = await connection.peer.ping()
            except websockets.ConnectionClosed:
                return
            answer = self._tasks.start(self._has_pong(pong), name="pong")
            await self._timer.sleep(HEARTBEAT_MS)
            if not answer.done():
                _LOG.warning("slack.silent", after_ms=HEARTBEAT_MS)
                await connection.peer.close()
                return
            connection.proven = True

    async def _has_pong(self, pong: Awaitable[float]) -> None:
        try:
            await pong
        except websockets.ConnectionClosed:
            return
        self._hooks.heard()

    # Incoming envelopes.

    async def _read(self, connection: _Connection) -> None:
        try:
            async for raw in connection.peer:
                self._hooks.heard()
                frame = _decode(raw)
                if frame is None:
                    await self._arrived.put((connection, raw.encode() if isinstance(raw, str) else raw))
                elif frame.get("type") == "disconnect":
                    ending = _ENDINGS.get(str(frame.get("reason")), Ending.REPLACED)
                    _LOG.info("slack.asked_to_move", why=ending.value)
                    if not connection.ended.done():
                        connection.ended.set_result(ending)
                elif isinstance(frame.get("envelope_id"), str):
                    await self._arrived.put((connection, frame))
                elif frame.get("type") in KINDS:
                    await self._arrived.put((connection, json.dumps(frame).encode()))
        except websockets.ConnectionClosed:
            _LOG.debug("slack.cut")
        finally:
            if not connection.ended.done():
                connection.ended.set_result(Ending.LOST)

    async def _work(self) -> None:
        """Process the envelopes in order, and acknowledge each processed envelope."""
        while True:
            connection, envelope = await self._arrived.get()
            if isinstance(envelope, bytes):
                await self._hooks.take_unreadable(envelope, "an envelope from Slack has no id")
            elif envelope.get("type") in KINDS:
                await self._hooks.take(str(envelope["type"]), envelope.get("payload"))
            connection.proven = True
            if isinstance(envelope, bytes):
                continue  # without an id, it cannot be acknowledged
            try:
                await connection.peer.send(json.dumps({"envelope_id": envelope["envelope_id"]}))
            except websockets.ConnectionClosed:
                _LOG.debug("slack.ack_lost")  # Slack sends the envelope again


SWITCHED_OFF: Final = "Socket Mode is disabled for this Slack app"
SWITCH_ON: Final = "enable Socket Mode in the app's settings, or set `signing_secret` to receive over HTTP"


def _decode(frame: str | bytes) -> Mapping[str, Any] | None:
    try:
        document = json.loads(frame)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
