"""The access check of the HTTP interface, a middleware in front of all routes.

The guard checks, in this order, whether the request is well formed (400), names this server in its Host
header (421), does not come from a page of another site (Origin, 403), has a known caller (401, or the log-in
page), and is small enough (413). Accepted requests are marked with their caller. Then `permissions` decides
which callers an address accepts. An exception from an inner layer becomes a single well-formed error
response. This module does not depend on mail.
"""

import asyncio
import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self
from urllib.parse import quote, unquote_to_bytes

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from postroom.contracts.errors import PostroomError, TokenRequired, TooLarge, WrongToken
from postroom.contracts.tokens import RUN_PREFIX, TOKEN_PREFIX, Grant
from postroom.http_api.errors import Problem, internal_error, reported, to_problem
from postroom.http_api.other_servers import OtherServers
from postroom.http_api.sessions import login_address
from postroom.log import binding, get_logger
from postroom.mcp_server.callers import AGENT_TOKEN_SCOPE, GRANT_SCOPE, OPERATOR_SCOPE
from postroom.services.login_codes import Sessions

Caller = Literal["anyone", "operator", "person", "agent", "token"]
"""The kinds of callers. `anyone` is any caller on a public path.

The others are the holder of the server's token, a person who has logged in to the pages, an agent, and the
holder of a named token.
"""

CHANNEL_SCOPE: Final = "postroom.channel"
"""The key in the ASGI scope for the `OpenPath` of a request to a channel, or None for other requests."""
REST: Final = "/v1"
"""The prefix of the addresses of the mail room and of the OpenAI protocol."""
HOOKS: Final = "/hooks"
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
SMALL_BODY: Final = 16 * 1024
"""Maximum number of bytes in a body from a caller without a token. A log-in form needs far less."""
READ_ON_BYTES: Final = 256 * 1024 * 1024
"""The number of bytes of a body that are still read, and ignored, after the response.

This limit applies to a caller who may send large bodies. If the connection were closed earlier, the system
would reset it, and a client that still sends would lose the response.
"""
READ_ON_SECONDS: Final = 20
READ_ON_UNKNOWN_SECONDS: Final = 1
"""The number of seconds for which a body of another caller is still read after the response."""

MAX_PATH_LENGTH: Final = 4096
"""Maximum number of characters in a path.

Python refuses to parse numbers of 4,300 digits and more. Because of this limit, no route gets such a number.
"""
MAX_QUERY_LENGTH: Final = 8192

_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9][a-z0-9._-]{0,254})(?::([0-9]{1,5}))?", re.I)
_ORIGIN: Final = re.compile(r"(https?)://([^/?#@\s]+)", re.I)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BAD_IN_PATH: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]|(^|/)\.\.?(/|$)")
_SINGLE: Final = (b"idempotency-key", b"host", b"origin", b"content-length", b"authorization")
"""The headers that may occur only once. Otherwise, layers could use different values."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


_LOG = get_logger(__name__)
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    # Do not use `no-referrer`: browsers would send `Origin: null` with our own forms, which must be rejected.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; "
        "font-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
}
_PUBLIC: Final = frozenset(
    {"/authorize", "/healthz", "/login", "/oauth/token", "/readyz", "/register", "/token"}
)
_INTERFACES: Final = ("/admin", "/health", HOOKS, "/metrics", "/watch")
_DISCOVERY: Final = (
    "/.well-known/oauth-authorization-server",
    "/.well-known/oauth-protected-resource",
    "/.well-known/openid-configuration",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPath:
    """A path at which the handler authenticates the caller, such as the path of a chat channel."""

    path: str
    limit: int
    """Maximum number of bytes in the body of a request."""
    refuse: Callable[[int, str, str, Mapping[str, str]], Response] | None = field(default=None, compare=False)
    """Return an error response in the form that callers expect.

    The arguments are a status, a code, a message and headers.

    If there is no function, the response is problem JSON.
    """

    def too_large(self, limit: int) -> "Problem | Response":
        """Return the error response for a body that exceeds the limit in bytes."""
        if self.refuse is None:
            return _too_large(limit)
        return self.refuse(413, "too_large", f"the body exceeds {limit} bytes", {})


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """The settings that decide which requests the guard accepts."""

    host: str = "127.0.0.1"
    """The address to which the server is bound."""
    allowed_hosts: tuple[str, ...] = ()
    mcp_path: str = "/mcp"
    max_request_bytes: int = 64 * 1024 * 1024
    channels: tuple[OpenPath, ...] = ()
    rest_paths: frozenset[str] = frozenset()
    """The REST addresses of the mail room.

    A channel may have other addresses with the same prefix.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The functions with which the guard verifies credentials."""

    is_operator: Callable[[str], bool]
    sessions: Sessions
    is_agent: Callable[[str], Awaitable[bool]] | None = None
    """If set, an agent's bearer token gives access to the MCP endpoint and REST, and to nothing else."""
    grant_of: Callable[[str], Awaitable[Grant]] | None = None
    """If set, a named token gives access to the MCP endpoint and REST according to its scopes.

    A token with the scope `admin` also gives access to the addresses of the operator, and the token of a run
    also gives access to the addresses for hooks. The function raises `WrongToken` for an invalid token.
    """
    others: OtherServers | None = None
    """If set, a request with the token of a run on another server is forwarded to that server."""


class Malformed(Exception):
    """Raised for a malformed request; the text does not quote the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A host name in lower case or an IP address, with an optional port."""

    name: str
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The parts of an HTTP request that the guard examines."""

    method: str
    path: str
    host: Authority | None
    origin: str | None
    bearer: str | None = field(default=None, repr=False)
    """The bearer token, or None if the request has none."""
    cookie: str = field(default="", repr=False)
    content_length: int = 0
    wants_page: bool = False
    target: str = "/"
    """The path and query of a reading request as they were sent, or `/` for a request that changes data."""

    @classmethod
    def read(cls, scope: Scope) -> Self:
        """Read the request head from an ASGI scope.

        Raises:
            Malformed: The path or a header is malformed.
        """
        path, sent = scope["path"], scope.get("raw_path") or b""
        query = scope.get("query_string", b"")
        if max(len(path), len(sent)) > MAX_PATH_LENGTH:
            raise Malformed(f"the path exceeds {MAX_PATH_LENGTH} bytes")
        if len(query) > MAX_QUERY_LENGTH:
            raise Malformed(f"the query exceeds {MAX_QUERY_LENGTH} bytes")
        if not query.isascii():
            raise Malformed("the query contains bytes that must be percent-encoded")
        if _BROKEN_ESCAPE.search(sent):
            raise Malformed("the path contains a percent sign without two hexadecimal digits")
        try:
            unquote_to_bytes(sent).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Malformed("the path is not UTF-8") from error
        if not path.startswith("/") or _BAD_IN_PATH.search(path):
            raise Malformed("the path contains control characters, backslashes or dot segments")
        # The values of each header.
        values: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            values.setdefault(name, []).append(value.decode("latin-1").strip())
        for name in _SINGLE:
            if len(values.get(name, ())) > 1:
                raise Malformed(f"the header {name.decode()} occurs {len(values[name])} times")
        length = values.get(b"content-length", ["0"])[0]
        scheme, _, token = values.get(b"authorization", [""])[0].partition(" ")
        if not (length.isascii() and length.isdigit() and len(length) <= 18):
            raise Malformed("the header content-length is not a valid length")
        target = (sent or quote(path).encode()) + (b"?" + query if query else b"")
        return cls(
            method=scope["method"],
            path=path,
            host=_read_authority(values.get(b"host", [""])[0]),
            origin=values.get(b"origin", [None])[0],
            bearer=token.strip() if scheme.lower() == "bearer" else None,
            cookie="; ".join(values.get(b"cookie", ())),
            content_length=int(length),
            wants_page="text/html" in ",".join(values.get(b"accept", ())).lower(),
            target=target.decode("latin-1") if scope["method"] == "GET" else "/",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Admitted:
    caller: Caller
    grant: Grant | None = None


class Guard:
    """Middleware that rejects forbidden requests and adds headers to responses."""

    def __init__(self, app: ASGIApp, rules: GuardRules, credentials: Credentials) -> None:
        self._app = app
        self._rules = rules
        self._credentials = credentials
        self._trusted = frozenset(rules.allowed_hosts)
        self._names = LOOPBACK | self._trusted | {rules.host}
        mcp_path = rules.mcp_path
        self._public = _below(*_DISCOVERY, f"{mcp_path}/.well-known")
        self._channels = _below(*(channel.path for channel in rules.channels))
        self._interfaces = _below(mcp_path, *_INTERFACES)
        """The addresses for programs, to which the log-in of a person gives no access."""
        self._programs = (*self._interfaces, *_below(REST))
        """The addresses at which a log-in page would not help the caller.

        They include REST, which accepts log-ins for reading.
        """
        self._agents = _below(mcp_path, REST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection; web sockets are rejected."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            ids = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"]
            is_given = len(ids) == 1 and _REQUEST_ID.fullmatch(ids[0])
            request_id = ids[0] if is_given else secrets.token_hex(8)
            with binding(request_id=request_id):
                await self._serve(_Exchange(scope, receive, send, request_id))
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _serve(self, exchange: "_Exchange") -> None:
        scope = exchange.scope
        try:
            refusal = await self._look(exchange)
            if refusal is None:
                await self._app(scope, exchange.receive, exchange.send)
            else:
                await exchange.answer(refusal)
        except ClientDisconnect:
            _LOG.debug("http.client_left", path=scope["path"])
        except PostroomError as error:
            await exchange.answer(reported(error))
        except Exception:  # here, any error becomes a response
            _LOG.exception("http.failed", method=scope["method"], path=scope["path"])
            await exchange.answer(internal_error())

    async def _look(self, exchange: "_Exchange") -> Problem | Response | None:
        try:
            head = Head.read(exchange.scope)
        except Malformed as error:
            return replace(
                _refusal(400, "malformed_request", str(error), "send a valid HTTP request"),
                headers={"Connection": "close"},  # later data on the connection could be ambiguous, too
            )
        refusal = self._foreign(head)
        if refusal is not None:
            return refusal
        channel, below = None, f"{head.path}/"
        if below.startswith(self._channels) and head.path not in self._rules.rest_paths:
            channel = next(
                channel for channel in self._rules.channels if below.startswith(f"{channel.path}/")
            )
        public = channel is not None or head.path in _PUBLIC or head.path.startswith("/static/")
        public = public or below.startswith(self._public)
        limit = SMALL_BODY if public else self._rules.max_request_bytes
        limit = limit if channel is None else channel.limit
        too_large = _too_large if channel is None else channel.too_large
        exchange.scope[CHANNEL_SCOPE] = channel
        if self._credentials.others is not None and head.bearer is not None and not public:
            there = await self._credentials.others.of_run(head.bearer)
            if there is not None:
                exchange.admit(_Admitted(caller="anyone"), limit, None, too_large)
                if head.content_length > limit:
                    return too_large(limit)
                request = Request(exchange.scope, exchange.receive)
                return await self._credentials.others.pass_on(request, there)
        admitted = _Admitted(caller="anyone") if public else await self._caller(head)
        if admitted is None:
            if head.wants_page and not f"{head.path}/".startswith(self._programs):
                # The redirect keeps the form, only so that the log-in page can show the typed text, which
                # would be lost.
                status = 307 if head.method == "POST" else 303
                return RedirectResponse(login_address(head.target), status_code=status)
            return to_problem(TokenRequired("this server requires a bearer token", remedy=_HOW_TO_PROVE))
        exchange.admit(admitted, limit, head.bearer, too_large)
        if head.content_length > limit:
            return too_large(limit)
        if head.path.startswith("/admin/") and head.method not in ("GET", "HEAD"):
            by = admitted.caller if admitted.grant is None else admitted.grant.name
            _LOG.info("http.admin_change_asked", by=by, method=head.method, path=head.path)
        return None

    def _foreign(self, head: Head) -> Problem | None:
        if head.host is None or head.host.name not in self._names:
            return _refusal(
                421,
                "unknown_host",
                "the Host header names a host that this server does not serve",
                "use 127.0.0.1 or localhost, or add the host to POSTROOM_ALLOWED_HOSTS",
            )
        if head.origin is not None and not _is_own_origin(head.origin, head.host, self._trusted):
            return _refusal(
                403,
                "foreign_origin",
                "a page from another origin sent this request",
                "use the server's own pages; if the server is behind a proxy, add the proxy's host name "
                "to POSTROOM_ALLOWED_HOSTS",
            )
        return None

    async def _caller(self, head: Head) -> _Admitted | None:
        """Return the caller of a request, or None if the path does not accept the request's token or session.

        Raises:
            WrongToken: The bearer token of the request is not valid for this path.
            StoreError: It could not be read whether the person has logged out.
        """
        if head.bearer is not None:
            if self._credentials.is_operator(head.bearer):
                return _Admitted(caller="operator")
            is_agent = self._credentials.is_agent
            is_named = head.bearer.startswith((TOKEN_PREFIX, RUN_PREFIX))
            may_be_agent = f"{head.path}/".startswith(self._agents) and not is_named
            if may_be_agent and is_agent is not None and await is_agent(head.bearer):
                return _Admitted(caller="agent")
            # Find the permissions of a named token; None for other tokens, and on paths for people.
            grant_of = self._credentials.grant_of
            if grant_of is None or not is_named or not f"{head.path}/".startswith(self._programs):
                grant = None
            else:
                grant = await grant_of(head.bearer)
            if grant is None:
                raise WrongToken("the bearer token does not permit access to this path", remedy=_HOW_TO_PROVE)
            return _Admitted(caller="token", grant=grant)
        is_page = not f"{head.path}/".startswith(self._interfaces)
        if is_page and await self._credentials.sessions.recognises(head.cookie):
            return _Admitted(caller="person")
        return None


class _Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        state = {**scope.get("state", {}), "request_id": request_id, "caller": "anyone"}
        self.scope: MutableMapping[str, Any] = {**scope, "state": state}
        self._request_id = request_id
        self._receive = receive
        self._send = send
        self._limit = SMALL_BODY
        self._too_large: Callable[[int], Problem | Response] = _too_large
        self._received = 0
        headers = dict(scope["headers"])
        # The client sends the body at once, but a client that sends "Expect" gets the error response first.
        self._is_body_due = b"expect" not in headers and (
            b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        )
        self._overrun = False
        self._begun = False
        self._ours = False

    def admit(
        self,
        admitted: _Admitted,
        limit: int,
        bearer: str | None,
        too_large: Callable[[int], Problem | Response],
    ) -> None:
        self._limit, self._too_large = limit, too_large
        self.scope["state"]["caller"] = admitted.caller
        self.scope[OPERATOR_SCOPE] = admitted.caller == "operator"
        if admitted.caller == "agent":
            self.scope[AGENT_TOKEN_SCOPE] = bearer
        if admitted.grant is not None:
            self.scope[GRANT_SCOPE] = admitted.grant

    async def receive(self) -> Message:
        if self._overrun:
            return {"type": "http.disconnect"}
        message = await self._next()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            if self._received > self._limit:
                self._overrun = True
                await self.answer(self._too_large(self._limit))
                return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        if not self._ours:
            await self._pass(message)

    async def answer(self, found: Problem | Response) -> None:
        if self._begun:
            return
        self._ours = True
        response = found.response(self._request_id) if isinstance(found, Problem) else found
        await response(self.scope, self._receive, self._pass)

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            message = {**message, "headers": list(message.get("headers", []))}
            headers = MutableHeaders(raw=message["headers"])
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            is_static = self.scope["path"].startswith("/static/")
            headers.setdefault("Cache-Control", "no-cache" if is_static else "no-store")
            headers["X-Request-Id"] = self._request_id
        elif self._is_body_due and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            # Read and ignore the rest of the body, up to a limit. If the body is longer, close the
            # connection.
            dropped = 0
            is_unknown = self._limit == SMALL_BODY
            most_bytes, seconds = (
                (SMALL_BODY, READ_ON_UNKNOWN_SECONDS) if is_unknown else (READ_ON_BYTES, READ_ON_SECONDS)
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while self._is_body_due and dropped < most_bytes:
                        dropped += len((await self._next()).get("body", b""))
            message = {"type": "http.response.body"}
        await self._send(message)

    async def _next(self) -> Message:
        message = await self._receive()
        self._is_body_due = message["type"] == "http.request" and message.get("more_body", False)
        return message


_HOW_TO_PROVE: Final = (
    "send `Authorization: Bearer <token>`; the token is in the file `token` of the data folder"
)


def _below(*paths: str) -> tuple[str, ...]:
    return tuple(f"{path}/" for path in paths)


def _refusal(status: int, code: str, detail: str, remedy: str) -> Problem:
    return Problem(status=status, code=code, detail=detail, remedy=remedy)


def _too_large(limit: int) -> Problem:
    return to_problem(
        TooLarge(
            f"the request exceeds {limit} bytes",
            value=limit,
            remedy="send less data in one request; the limits are settings of the server",
        )
    )


def _read_authority(text: str) -> Authority | None:
    """Parse `name`, `name:port` or `[address]:port`; return None for any other text."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    port = int(match[2]) if match[2] else None
    name = match[1].lower()
    if name.startswith("["):
        try:
            name = ipaddress.IPv6Address(name[1:-1]).compressed
        except ValueError:
            return None
    return None if port is not None and port > 65535 else Authority(name=name, port=port)


def _is_own_origin(origin: str, host: Authority, trusted: frozenset[str]) -> bool:
    """Return whether an origin belongs to this server.

    The origin must have the host and port of the request, or a trusted host name. With a trusted host name,
    the origin must have the port of the request or the default port.
    """
    match = _ORIGIN.fullmatch(origin)
    author = _read_authority(match[2]) if match else None
    if match is None or author is None:
        return False
    usual = _DEFAULT_PORTS[match[1].lower()]
    port = author.port or usual
    own_port = host.port or usual
    if author.name == host.name and author.name not in trusted:
        return match[1].lower() == "http" and port == own_port  # only proxies have https
    if author.name == host.name:
        return port == own_port
    return author.name in trusted and port in (usual, own_port)
