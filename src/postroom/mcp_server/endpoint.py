"""The layer between the access check and the transport of the MCP SDK.

This layer corrects and extends the transport.

- A message is parsed only once, strictly according to JSON and JSON-RPC. The transport would answer an
  invalid message with the report of its validator.
- A request without an Accept header accepts every type of response, as HTTP defines. The transport would
  reject the request.
- A request whose named token has too few scopes gets the HTTP status 403, which clients understand.
- A batch of messages is answered as a list, because revision 2025-03-26 requires servers to accept batches.
- POST is the only method. The transport would keep an empty stream open for every GET request, although no
  response needs one and changes are announced through `subscriptions/listen`.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from uuid import uuid4

import msgspec
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import INVALID_REQUEST, PARSE_ERROR
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import SUPPORTED_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from postroom.contracts.errors import AccessError, InsufficientScope
from postroom.mcp_server.callers import GRANT_SCOPE, refuse_message, scope_challenge
from postroom.mcp_server.server import PostroomMcpServer
from postroom.mcp_server.short_way import ShortWay
from postroom.mcp_server.windows import marks_of

_REFUSED: Final = -32000
_ANY_ANSWER: Final = (b"accept", b"application/json, text/event-stream")
MAX_BATCH: Final = 100
"""Maximum number of messages in a batch."""


class Endpoint:
    """An ASGI application that executes plain tool calls itself; the SDK handles all other requests."""

    def __init__(
        self, transport: ASGIApp, short_way: ShortWay | None = None, server: PostroomMcpServer | None = None
    ) -> None:
        self._transport = transport
        self._server = server
        self._short_way = short_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["method"] != "POST":
            refusal = _refusal(405, INVALID_REQUEST, "send messages with POST")
            refusal.headers["Allow"] = "POST"
            await refusal(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        if not any(name == b"accept" for name, _ in scope["headers"]):
            scope = {**scope, "headers": [*scope["headers"], _ANY_ANSWER]}
        decoded: object
        # Refuse headers that the transport would refuse without a remedy.
        if not request.headers.get("content-type", "").lower().startswith("application/json"):
            decoded = _refusal(
                400, INVALID_REQUEST, "send JSON with the header `Content-Type: application/json`"
            )
        else:
            try:
                decoded = msgspec.json.decode(body)
            except UnicodeDecodeError:
                decoded = _refusal(400, PARSE_ERROR, "the body is not UTF-8")
            except (msgspec.DecodeError, RecursionError) as error:
                reason = "the JSON is nested too deeply" if isinstance(error, RecursionError) else str(error)
                decoded = _refusal(400, PARSE_ERROR, f"the body is not valid JSON: {reason}")
        # A request that names no revision uses 2025-03-26, the last revision that allows batches.
        revision = request.headers.get("mcp-protocol-version")
        if isinstance(decoded, list) and revision in (None, "2024-11-05", "2025-03-26"):
            await (await self._answer_batch(scope, receive, decoded))(scope, receive, send)
        elif isinstance(decoded, Response):
            await decoded(scope, receive, send)
        else:
            await self._serve(scope, receive, send, decoded, body)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, document: object, body: bytes) -> None:
        message = _message(document)
        answer: Response | None
        if isinstance(message, Response):
            answer = message
        else:
            revision = Request(scope).headers.get("mcp-protocol-version")
            has_meta = (message.get("params") or {}).get("_meta")
            answer = None
            if revision is not None and revision not in SUPPORTED_PROTOCOL_VERSIONS and not has_meta:
                versions = list(SUPPORTED_PROTOCOL_VERSIONS)
                text = f"unknown protocol version {revision[:40]!r}; use one of {', '.join(versions)}"
                error = {
                    "code": UNSUPPORTED_PROTOCOL_VERSION,
                    "message": text,
                    "data": {"supported": versions},
                }
                answer = _answer(400, error, named=message.get("id"))
            elif (grant := scope.get(GRANT_SCOPE)) is not None:
                try:
                    refuse_message(grant, message)
                except AccessError as refused:
                    error = {"code": _REFUSED, "message": refused.message, "data": refused.as_dict()}
                    answer = _answer(403, error, named=message.get("id"))
                    if isinstance(refused, InsufficientScope):
                        answer.headers["WWW-Authenticate"] = scope_challenge(refused)
            if answer is None and self._server is not None and self._server.windows is not None:
                if _is_answer(message) and self._server.windows.replied(message):
                    answer = Response(status_code=202)
                elif message.get("method") == "initialize" and (
                    marks := marks_of((message.get("params") or {}).get("capabilities"))
                ):
                    send = _with_session(send, marks)
                else:
                    answer = await self._server.ask_in_stream(scope, message)
            if answer is None and self._short_way is not None:
                answer = await self._short_way.answer(scope, message)
        if answer is not None:
            await answer(scope, receive, send)
        else:
            # Replay the body that was read, then pass on later messages.
            waiting = [body]

            async def again() -> Message:
                if waiting:
                    return {"type": "http.request", "body": waiting.pop(), "more_body": False}
                return await receive()

            await self._transport(scope, again, send)

    async def _answer_batch(self, scope: Scope, receive: Receive, documents: list[object]) -> Response:
        if not 0 < len(documents) <= MAX_BATCH:
            return _refusal(400, INVALID_REQUEST, f"send 1 to {MAX_BATCH} messages in a batch")
        if any(
            isinstance(document, dict) and document.get("method") == "initialize" for document in documents
        ):
            return _refusal(400, INVALID_REQUEST, "send `initialize` as a single message, not in a batch")
        answers: list[bytes] = []
        for document in documents:
            answer = bytearray()

            async def keep(message: Message, answer: bytearray = answer) -> None:
                answer += message.get("body", b"")

            await self._serve(scope, receive, keep, document, msgspec.json.encode(document))
            if answer:
                answers.append(bytes(answer))
        if not answers:
            return Response(status_code=202)
        return Response(b"[" + b",".join(answers) + b"]", media_type="application/json")


def _with_session(send: Send, marks: Sequence[str]) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            named = (b"mcp-session-id", "-".join([*marks, uuid4().hex]).encode())
            message = {**message, "headers": [*message["headers"], named]}
        await send(message)

    return sent


def _message(found: object) -> dict[str, Any] | Response:
    if isinstance(found, list):
        return _refusal(
            400, INVALID_REQUEST, "send one message per request; only revision 2025-03-26 supports batches"
        )
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        return _refusal(400, INVALID_REQUEST, 'send one JSON-RPC message: an object with "jsonrpc": "2.0"')
    named = found.get("id")
    if "id" in found and (isinstance(named, bool) or not isinstance(named, str | int)):
        return _refusal(400, INVALID_REQUEST, "the id of a message must be text or an integer")
    is_call = isinstance(found.get("method"), str) and isinstance(found.get("params"), dict | None)
    if is_call or _is_answer(found):
        return found
    return _refusal(
        400, INVALID_REQUEST, "a message needs a method, and its params must be an object", named=named
    )


def _is_answer(found: dict[str, Any]) -> bool:
    if "id" not in found or "method" in found:
        return False
    error = found.get("error")
    if isinstance(error, dict):
        return type(error.get("code")) is int and isinstance(error.get("message"), str)
    return isinstance(found.get("result"), dict)


def _refusal(status: int, code: int, text: str, *, named: str | int | None = None) -> Response:
    return _answer(status, {"code": code, "message": text}, named=named)


def _answer(status: int, error: dict[str, object], *, named: str | int | None) -> Response:
    document = {"jsonrpc": "2.0", "id": named, "error": error}
    return Response(msgspec.json.encode(document), status_code=status, media_type="application/json")


class McpOverHttp:
    """An ASGI application that serves one MCP server."""

    def __init__(
        self,
        server: PostroomMcpServer,
        *,
        max_request_bytes: int,
        is_traced: bool = False,
        short: bool = True,
    ) -> None:
        """If `short` is False, the MCP SDK handles every message."""
        server.streamable_http_app(
            json_response=True,
            stateless_http=True,
            max_request_body_size=max_request_bytes,
            # The access check in front verifies Host and Origin for every route.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        self._server = server
        self._sessions = server.session_manager
        short_way = server.short_way(is_traced=is_traced) if short else None
        asks = server if getattr(server, "windows", None) is not None else None
        self._endpoint = Endpoint(StreamableHTTPASGIApp(self._sessions), short_way, asks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        await self._endpoint(scope, receive, send)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Return the context manager within which the SDK's transport runs; enter it only once."""
        return self._sessions.run()

    def end_listening(self) -> None:
        """End all subscriptions."""
        self._server.end_listening()
