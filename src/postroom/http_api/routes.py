"""The routes of the HTTP interface, and the application that returns every error as problem JSON."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Lifespan

from postroom.contracts.clock import Clock
from postroom.contracts.errors import PostroomError, ResultTooEarly
from postroom.contracts.operations import Operation
from postroom.contracts.tokens import Grant
from postroom.executors.remote import RemoteExecutor
from postroom.http_api.administration import administration_routes, read_body
from postroom.http_api.errors import Problem, internal_error, reported
from postroom.http_api.guard import CHANNEL_SCOPE, OpenPath
from postroom.http_api.long_work import LongWork
from postroom.http_api.other_servers import OtherServers
from postroom.http_api.permissions import Permission, close
from postroom.http_api.readiness import FreshReadiness, Readiness
from postroom.http_api.rest.routes import rest_routes
from postroom.http_api.sessions import LoginService
from postroom.http_api.words import find_operation
from postroom.mcp_server.callers import GRANT_SCOPE
from postroom.services.calls import Calls
from postroom.services.following import EventFollowing, Following
from postroom.services.hooks import Hooks
from postroom.services.statuses import status_of
from postroom.version import __version__

_AGENT_TOKEN: Final = "postroom-agent-token"  # noqa: S105 - the name of a header
_DISCOVERY: Final = ("oauth-authorization-server", "oauth-protected-resource", "openid-configuration")
_OAUTH: Final = ("/authorize", "/oauth/token", "/register", "/token")
_ANY_METHOD: Final = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def routes(  # noqa: PLR0913 - the parts behind the routes, by name
    login: LoginService,
    *,
    ready: Callable[[], Awaitable[Readiness]],
    registry: CollectorRegistry,
    clock: Clock,
    operations: Sequence[Operation],
    services: Mapping[type[Any], Any],
    mcp_path: str = "/mcp",
    refresh: Callable[[], Awaitable[None]] | None = None,
    calls: Calls | None = None,
    events: EventFollowing | None = None,
) -> list[Route]:
    """Return the routes for health, metrics, login, administration and REST.

    `ready` checks whether the server can work. `refresh` updates the gauge metrics before the metrics are
    read. An administration operation has a route if its service is in `services`. The REST routes exist only
    if `calls` and `events` are given.
    """
    own = {LongWork: LongWork(), LoginService: login}
    # Add routes that report at once that there is no OAuth. An HTML page would confuse clients.
    paths = [f"/.well-known/{name}" for name in _DISCOVERY]
    paths += [f"{path}/{{rest:path}}" for path in paths]
    paths += [f"{mcp_path}/.well-known/{{rest:path}}", *_OAUTH]
    readiness = FreshReadiness(ready, clock)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def readyz(_: Request) -> Response:
        report = await readiness()
        return JSONResponse(report.as_dict(), status_code=200 if report.is_ready else 503)

    async def metrics(_: Request) -> Response:
        if refresh is not None:
            await refresh()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    health_routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    return [
        *health_routes,
        *login.routes(),
        *administration_routes(operations, {**services, **own}),
        *(
            []
            if calls is None or events is None
            else rest_routes(
                calls, events, session_cookie=login.cookie_name, administration=tuple(operations)
            )
        ),
        *[Route(path, _oauth_is_off, methods=_ANY_METHOD) for path in paths],
    ]


def hook_routes(hooks: Hooks, following: Following) -> list[Route]:
    """Return the routes for the hooks of client programs and of Git, and for `postroom watch`."""

    async def hook(request: Request) -> Response:
        token, grant = request.headers.get(_AGENT_TOKEN), request.scope.get(GRANT_SCOPE)
        body = await read_body(request, dict[str, Any])
        reply = await hooks.answer(
            request.path_params["client"],
            request.path_params["event"],
            body,
            agent_token=token,
            grant=grant if isinstance(grant, Grant) and grant.run_id is not None else None,
        )
        return JSONResponse(dict(reply))

    async def watch(request: Request) -> Response:
        body = await read_body(request, dict[str, Any])
        messages = await following.messages(body, agent_token=request.headers.get(_AGENT_TOKEN))
        return JSONResponse(dict(messages))

    return [
        Route("/hooks/{client}/{event}", hook, methods=["POST"]),
        Route("/watch", watch, methods=["POST"]),
    ]


def application(
    routes: list[BaseRoute],
    *,
    lifespan: Lifespan[Starlette] | None = None,
    permissions: Sequence[Permission],
) -> Starlette:
    """Return an application in which every error response is problem JSON.

    Each route accepts the callers in `permissions`; a route without a permission rejects all callers.
    """
    close(routes, permissions)
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_refusal, PostroomError: _refusal, Exception: _failure},
    )


def callback_routes(path: str, results: RemoteExecutor, others: OtherServers | None = None) -> list[Route]:
    """Return the routes at which other servers deliver the signed results of runs.

    `others` are the servers that share the database.
    """

    async def result(request: Request) -> Response:
        body = await request.body()
        try:
            await results.take(request.path_params["dispatch_id"], request.headers, body)
        except ResultTooEarly as error:
            unless = status_of(error)
            answer = None if others is None else await others.first(request, unless=unless)
            if answer is None:
                raise
            return answer
        return JSONResponse({"taken": True})

    return [Route(f"{path}/{{dispatch_id}}", result, methods=["POST"])]


async def _oauth_is_off(_: Request) -> Response:
    return JSONResponse(
        {"error": "not_found", "error_description": "this server does not use OAuth; send its bearer token"},
        status_code=404,
    )


def _error_response(request: Request, problem: Problem) -> Response:
    channel = request.scope.get(CHANNEL_SCOPE)
    if not isinstance(channel, OpenPath) or channel.refuse is None:
        return problem.response(str(request.scope.get("state", {}).get("request_id", "")))
    message = f"{problem.detail}; {problem.remedy}" if problem.remedy else problem.detail
    return channel.refuse(problem.status, problem.code, message, problem.headers)


async def _refusal(request: Request, error: Exception) -> Response:
    if not isinstance(error, PostroomError):
        raise error
    return _error_response(request, reported(error, find_operation(request.scope)))


async def _http_refusal(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 404 and "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_NO_PAGE.format(pages=f"{request.scope.get('root_path', '')}/p"), status_code=404)
    code, remedy = _HTTP_CODES.get(error.status_code, ("http_error", ""))
    detail = f"{request.method} {request.url.path}"[:200]
    problem = Problem(
        status=error.status_code,
        code=code,
        detail=f"{error.detail}: {detail}",
        remedy=remedy,
        headers=error.headers or {},
    )
    return _error_response(request, problem)


async def _failure(request: Request, _: Exception) -> Response:
    return _error_response(request, internal_error())


_NO_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Not found</title>\n<p>There is no page '
    'at this address. <a href="{pages}">Open the pages</a></html>\n'
)
"""The page for browsers that an address does not exist. Programs get JSON."""
_HTTP_CODES: Final[dict[int, tuple[str, str]]] = {
    404: ("not_found", "this path does not exist"),
    405: ("method_not_allowed", "use a method from the Allow header"),
    415: ("unsupported_media_type", "send JSON with the header `Content-Type: application/json`"),
}
