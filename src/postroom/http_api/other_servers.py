"""Forwards requests to the server that does the work, of all servers on a database.

    request ─▶ is it done here? ─▶ the route
                └ no ─▶ the server whose lease covers it ─▶ its response, as it arrives

A request is forwarded only once. Servers call each other over plain HTTP, at the addresses on which they
listen.
"""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock
from postroom.contracts.errors import ServerUnavailable
from postroom.contracts.leases import Lease
from postroom.contracts.signing import SIGNATURE, TIMESTAMP, Proof, signed, verify_signature
from postroom.contracts.tokens import RUN_FORM
from postroom.leases import Leases
from postroom.log import get_logger

if TYPE_CHECKING:
    import httpx2

_LOG = get_logger(__name__)
PASSED_ON: Final = "X-Postroom-Passed-On"
"""The header that authenticates a forwarded request, with a time and a signature of the caller."""
_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""The headers that a proxy does not forward: RFC 9110, section 7.6.1."""
_OURS: Final = _HOP | {"date", "server"}
"""The headers that each server sets itself."""
_CLIENT: Final = "X-Forwarded-For"
_SCHEME: Final = "X-Forwarded-Proto"
_CONNECT_SECONDS: Final = 2
_TRY: Final = "try again in a few seconds; each server must listen at an address that the others reach"

Doing = Callable[[], Awaitable[Lease | None]]


class OtherServers:
    """Forwards requests to the other servers that share the database."""

    def __init__(self, leases: Leases, clock: Clock) -> None:
        self._leases, self._this, self._clock = leases, leases.holder, clock
        self._secret = ""
        self._host = leases.holder.partition("/")[0]
        self._reading = Tasks("other servers")

    def know(self, secret: str) -> None:
        """Set the secret with which the servers of a database sign forwarded requests."""
        self._secret = secret

    def believe(self, scope: Scope) -> None:
        """Restore the original caller and scheme of a request that another server has forwarded."""
        headers = Headers(scope=scope)
        timestamp, _, proof = headers.get(PASSED_ON, "").partition(" ")
        client, scheme = headers.get(_CLIENT, ""), headers.get(_SCHEME, "")
        proofs = {TIMESTAMP: timestamp, SIGNATURE: proof}
        proven = verify_signature(self._secret, proofs, _caller(client, scheme), now=self._clock.now())
        if self._secret and proven is Proof.GOOD:
            scope["client"], scope["scheme"] = (client, 0), scheme

    def headers_for(self, request: Request) -> list[tuple[bytes, bytes]]:
        """Return the headers for a forwarded request, with the original caller and a signature."""
        headers = [(name, value) for name, value in request.headers.raw if _is_forwarded_header(name, _HOP)]
        client = request.client.host if request.client else ""
        scheme = request.url.scheme
        proofs = signed(self._secret, _caller(client, scheme), now=self._clock.now())
        passed_on = f"{proofs[TIMESTAMP]} {proofs[SIGNATURE]}"
        added = {PASSED_ON: passed_on, _CLIENT: client, _SCHEME: scheme}
        names = {name.lower().encode() for name in added}
        return [header for header in headers if header[0] not in names] + [
            (name.encode(), value.encode("ascii", "replace")) for name, value in added.items()
        ]

    async def end(self) -> None:
        """End all forwarded responses that are being streamed; a second call does nothing."""
        await self._reading.close()

    async def with_lease(self, name: str) -> Lease:
        """Return the server that holds the lease `name`.

        Raises:
            ServerUnavailable: No server has the lease now, or this server has just got it.
            StoreError: The lease could not be read.
        """
        servers = [server for server in await self._leases.servers(name) if server.holder != self._this]
        if not servers:
            raise ServerUnavailable(
                f"no server is responsible for the {name} at the moment", value=name, remedy=_TRY
            )
        return servers[0]

    async def of_run(self, token: str) -> Lease | None:
        """Return the lease of the other server that issued a run's token.

        Return None if this server issued the token, or if the issuing server has ended.
        """
        tag = read_server_tag(token)
        if tag is None or tag == get_tag(self._this):
            return None
        return next(
            (server for server in await self._leases.servers() if get_tag(server.holder) == tag), None
        )

    async def pass_on(self, request: Request, server: Lease) -> Response:
        """Forward a request to another server, and stream the server's response.

        Raises:
            ServerUnavailable: The request has been forwarded already, or the other server does not answer. A
                request without an answer may have been performed nevertheless.
            ClientDisconnect: The client has disconnected.
        """
        if PASSED_ON in request.headers:
            raise ServerUnavailable("this task is moving to another server", value=server.holder, remedy=_TRY)
        return self._respond(*await self._forward(request, server))

    async def first(self, request: Request, *, unless: int) -> Response | None:
        """Forward a request to the other servers, one at a time, until a server can answer the request.

        A response with the status `unless` means that the server cannot answer. Return None if no server can
        answer.
        """
        if PASSED_ON in request.headers:
            return None
        for server in await self._leases.servers():
            if server.holder == self._this:
                continue
            try:
                client, answer = await self._forward(request, server)
            except ServerUnavailable as error:  # the server may have ended before its lease
                _LOG.info("server.not_asked", server=server.holder, reason=error.describe())
                continue
            if answer.status_code != unless:
                return self._respond(client, answer)
            await _close(client, answer)
        return None

    async def _forward(self, request: Request, server: Lease) -> "tuple[httpx2.AsyncClient, httpx2.Response]":
        """Send a request to another server, and return the HTTP client and the response.

        Raises:
            ServerUnavailable: The other server does not answer, or is on another machine and listens only on
                loopback.
        """
        host, address = str(server.about.get("host")), urlsplit(str(server.about.get("address")))
        at = ipaddress.ip_address(address.hostname or "0.0.0.0")  # noqa: S104 - compared, not bound
        is_here = host == self._host
        if at.is_loopback and not is_here:
            raise ServerUnavailable(
                f"the server on {host} is responsible, but it listens only on loopback",
                value=host,
                remedy=_TRY,
            )
        place = address.geturl()
        if at.is_unspecified:
            place = f"http://{'localhost' if is_here else host}:{address.port}"
        url = f"{place}{request.scope['raw_path'].decode('ascii').partition('?')[0]}"
        query = request.scope["query_string"].decode("ascii")
        client = await asyncio.to_thread(_client)  # on a thread: the first call loads the library
        outgoing = client.build_request(
            request.method,
            f"{url}?{query}" if query else url,
            headers=self.headers_for(request),
            content=request.stream()
            if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
            else None,
        )
        try:
            return client, await client.send(outgoing, stream=True)
        except BaseException as error:
            await client.aclose()
            import httpx2

            if isinstance(error, httpx2.RequestError):
                problem = (
                    f"the server {server.holder} is responsible, but does not answer ({type(error).__name__})"
                )
                raise ServerUnavailable(problem, value=server.holder, remedy=_TRY) from error
            raise

    def _respond(self, client: "httpx2.AsyncClient", answer: "httpx2.Response") -> Response:
        response = StreamingResponse(self._content(client, answer), status_code=answer.status_code)
        response.raw_headers = [
            (name, value) for name, value in answer.headers.raw if _is_forwarded_header(name, _OURS)
        ]
        return response

    async def _content(self, client: "httpx2.AsyncClient", answer: "httpx2.Response") -> AsyncIterator[bytes]:
        """Yield the bytes of a response; an interrupted event stream ends without an error.

        Raises:
            ClientDisconnect: Another response broke off, so that it must also break off for the client.
        """
        pieces = answer.aiter_raw()
        try:
            while not self._reading.closed:
                reading = self._reading.start(_next(pieces), name="answer")
                await asyncio.wait({reading})
                piece = None if reading.cancelled() else reading.result()
                if piece is None:
                    return
                if isinstance(piece, Exception):
                    break
                yield piece
            else:
                return
            address = f"{answer.url.host}:{answer.url.port}"
            _LOG.warning("server.broke_off", address=address, reason=type(piece).__name__)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise ClientDisconnect from piece
        finally:
            await _close(client, answer)


class Believing:
    """Middleware that restores the original caller of forwarded requests."""

    def __init__(self, app: ASGIApp, others: OtherServers) -> None:
        self._app, self._others = app, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http":
            self._others.believe(scope)
        await self._app(scope, receive, send)


class PassedOn:
    """A route that forwards requests to another server if `doing` returns a server."""

    def __init__(self, app: ASGIApp, others: OtherServers, doing: Doing) -> None:
        self._app, self._others, self._doing = app, others, doing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or forward the request to another server."""
        server = await self._doing()
        if server is None:
            await self._app(scope, receive, send)
        else:
            answer = await self._others.pass_on(Request(scope, receive), server)
            await answer(scope, receive, send)


def get_tag(server: str) -> str:
    """Return the tag that identifies a server in tokens."""
    return server.rpartition("/")[2]


def read_server_tag(token: str) -> str | None:
    """Return the tag of the server that issued a run's token, or None for any other token."""
    match = RUN_FORM.fullmatch(token)
    return None if match is None else match[1]


def _caller(client: str, scheme: str) -> bytes:
    return f"{client} {scheme}".encode()


def _is_forwarded_header(name: bytes, without: frozenset[str]) -> bool:
    return name.decode("latin-1").lower() not in without


async def _next(pieces: AsyncIterator[bytes]) -> "bytes | httpx2.RequestError | None":
    import httpx2

    try:
        return await anext(pieces, None)
    except httpx2.RequestError as error:
        return error


async def _close(client: "httpx2.AsyncClient", answer: "httpx2.Response") -> None:
    await answer.aclose()
    await client.aclose()


def _client() -> "httpx2.AsyncClient":
    import httpx2

    # The connection is plain HTTP, so load no certificates. The client decides how long an answer may take.
    return httpx2.AsyncClient(
        verify=False, trust_env=False, timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS)
    )
