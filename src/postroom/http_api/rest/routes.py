"""The REST routes for mail, which read arguments, perform operations, and answer in JSON."""

from collections.abc import Awaitable, Callable
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from postroom.contracts.operations import Operation
from postroom.http_api.rest.document import BYTES, DOCUMENT, EVENTS, encoded
from postroom.http_api.rest.event_routes import EventService
from postroom.http_api.rest.reading import JSON, body_arguments, list_fields, query_arguments
from postroom.http_api.words import note_operation
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mcp_server.callers import TRACEPARENT, read_caller
from postroom.mcp_server.schema import input_schema
from postroom.services.calls import Calls
from postroom.services.following import EventFollowing

Endpoint = Callable[[Request], Awaitable[Response]]


def rest_paths() -> frozenset[str]:
    """Return all paths of the REST interface."""
    return frozenset({DOCUMENT, EVENTS, *(operation.path for operation in MAIL_OPERATIONS)})


def rest_routes(
    calls: Calls,
    following: EventFollowing,
    *,
    session_cookie: str,
    administration: tuple[Operation, ...] = (),
) -> list[Route]:
    """Return the routes for mail operations, events and the OpenAPI document.

    `session_cookie` is the name of the login cookie. The OpenAPI document also describes the operations in
    `administration`.
    """
    events_of = EventService(following)

    async def describe(_: Request) -> Response:
        described = encoded(session_cookie=session_cookie, administration=administration)
        return Response(described, media_type=JSON)

    async def events(request: Request) -> Response:
        return await events_of.answer(request)

    own = [_route(DOCUMENT, "GET", describe), _route(EVENTS, "GET", events)]
    return [*own, *(_operation_route(operation, calls) for operation in MAIL_OPERATIONS)]


def _operation_route(operation: Operation, calls: Calls) -> Route:
    lists = list_fields(input_schema(operation.command))

    async def perform(request: Request) -> Response:
        note_operation(request, operation)
        arguments = (
            await body_arguments(request)
            if operation.changes
            else query_arguments(request.scope["query_string"], lists)
        )
        answer = await calls.perform(
            operation.name,
            arguments,
            caller=read_caller(request),
            follows=request.headers.get(TRACEPARENT),
            is_file_taken=True,
        )
        if isinstance(answer, tuple):  # a file is a download, which a browser never executes
            attachment, content = answer
            headers = {
                "Content-Disposition": f"attachment; filename*=UTF-8''{quote(attachment.name, safe='')}",
                "Content-Security-Policy": "sandbox; default-src 'none'",
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "private, no-cache",
                "ETag": f'"{attachment.sha256}"',
            }
            return Response(content, media_type=BYTES, headers=headers)
        return Response(msgspec.json.encode(answer), media_type=JSON)

    return _route(operation.path, operation.method, perform)


def _route(path: str, method: str, endpoint: Endpoint) -> Route:
    allowed = [method, "OPTIONS", *(["HEAD"] if method == "GET" else [])]

    async def answer(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": ", ".join(sorted(allowed))})
        return await endpoint(request)

    return Route(path, answer, methods=allowed)
