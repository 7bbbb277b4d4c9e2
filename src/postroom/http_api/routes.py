"""The routes for machines and for the operator. Thin: read the request, ask `Operations`, answer in JSON."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Lifespan

from postroom.contracts.clock import Clock
from postroom.contracts.errors import InvalidPath, PostroomError
from postroom.http_api.chat_routes import ChatOperations, chat_routes
from postroom.http_api.errors import Problem, internal_error, reported
from postroom.http_api.operations import Operations
from postroom.http_api.operators import operators, read_body
from postroom.http_api.question_routes import question_routes
from postroom.http_api.readiness import FreshReadiness
from postroom.http_api.rest.routes import rest_routes
from postroom.http_api.run_routes import run_routes
from postroom.http_api.runner_routes import runner_routes
from postroom.http_api.sessions import LoginService
from postroom.http_api.token_routes import token_routes
from postroom.mail.named_tokens import NamedTokens
from postroom.services.calls import Calls
from postroom.services.following import EventFollowing
from postroom.services.questions import QuestionService
from postroom.services.runners import RunnerService
from postroom.services.work import WorkService
from postroom.version import __version__

_LONGEST_NAME: Final = 4096
_DISCOVERY: Final = ("oauth-authorization-server", "oauth-protected-resource", "openid-configuration")
_OAUTH: Final = ("/authorize", "/oauth/token", "/register", "/token")
_ANY_METHOD: Final = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class _Backup(msgspec.Struct, forbid_unknown_fields=True):
    target: str | None = None


class _Rebuild(msgspec.Struct, forbid_unknown_fields=True):
    project: str | None = None


class _Agent(msgspec.Struct, forbid_unknown_fields=True):
    project: str
    agent: str


def routes(  # noqa: PLR0913 - what the routes ask, by name
    operations: Operations,
    login: LoginService,
    *,
    registry: CollectorRegistry,
    clock: Clock,
    mcp_path: str = "/mcp",
    refresh: Callable[[], Awaitable[None]] | None = None,
    chats: ChatOperations | None = None,
    runners: RunnerService | None = None,
    questions: QuestionService | None = None,
    runs: WorkService | None = None,
    tokens: NamedTokens | None = None,
    calls: Calls | None = None,
    events: EventFollowing | None = None,
) -> list[Route]:
    """Return every route of this room: health, metrics, log-in, administration, REST, OAuth's clean refusals.

    They stand behind `Guard`; the operator's routes refuse everybody where it is missing. `refresh` brings
    the registry's gauges up to date before they are shown. `chats` answers for the gateway, if there is one,
    `runners` for the agents that are run here, `runs` for what they were asked, `questions` for what they
    wait to be told, `tokens` for named tokens, `calls` for the mail room, `events` for what happens in it.
    """
    return [
        *_health_routes(operations, registry, clock, refresh),
        *login.routes(),
        *_admin_routes(operations, login),
        *chat_routes(operations, chats),
        *([] if runners is None else runner_routes(runners)),
        *([] if questions is None else question_routes(questions)),
        *([] if runs is None else run_routes(runs)),
        *([] if tokens is None else token_routes(tokens)),
        *_rest(calls, events, login),
        *_no_oauth(mcp_path),
    ]


def application(routes: list[BaseRoute], *, lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    """Return an application in which every refusal is problem JSON, of unknown paths and methods too."""
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_refusal, PostroomError: _refusal, Exception: _failure},
    )


def _rest(calls: Calls | None, events: EventFollowing | None, login: LoginService) -> list[Route]:
    if calls is None or events is None:
        return []
    return rest_routes(calls, events, session_cookie=login.cookie_name)


def _health_routes(
    operations: Operations,
    registry: CollectorRegistry,
    clock: Clock,
    refresh: Callable[[], Awaitable[None]] | None,
) -> list[Route]:
    readiness = FreshReadiness(operations.ready, clock)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def readyz(_: Request) -> Response:
        found = await readiness()
        return JSONResponse(found.as_dict(), status_code=200 if found.is_ready else 503)

    async def metrics(_: Request) -> Response:
        if refresh is not None:
            await refresh()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]


def _admin_routes(operations: Operations, login: LoginService) -> list[Route]:
    async def status(_: Request) -> Response:
        return JSONResponse(dict(await operations.status()))

    async def doctor(_: Request) -> Response:
        return JSONResponse(dict(await operations.doctor()))

    async def back_up(request: Request) -> Response:
        target = (await read_body(request, _Backup)).target
        return JSONResponse(dict(await operations.back_up(None if target is None else _absolute(target))))

    async def support_bundle(_: Request) -> Response:
        return JSONResponse({"files": dict(await operations.support_bundle())})

    async def issue(request: Request) -> Response:
        wanted = await read_body(request, _Agent)
        return JSONResponse({"token": await operations.issue_agent_token(wanted.project, wanted.agent)})

    async def revoke(request: Request) -> Response:
        wanted = await read_body(request, _Agent)
        await operations.revoke_agent_token(wanted.project, wanted.agent)
        return JSONResponse({"revoked": True})

    async def login_code(request: Request) -> Response:
        base = f"{request.url.scheme}://{request.headers['host']}"  # the name by which the caller reaches us
        return JSONResponse({"url": f"{base}/login?code={login.codes.make()}"})

    async def rebuild_archive(request: Request) -> Response:
        return JSONResponse(
            dict(await operations.rebuild_archive((await read_body(request, _Rebuild)).project))
        )

    return [
        operators("/admin/status", {"GET": status}),
        operators("/admin/doctor", {"GET": doctor}),
        operators("/admin/support-bundle", {"GET": support_bundle}),
        operators("/admin/backup", {"POST": back_up}),
        operators("/admin/agent-token", {"POST": issue, "DELETE": revoke}),
        operators("/admin/login-code", {"POST": login_code}),
        operators("/admin/rebuild-archive", {"POST": rebuild_archive}),
    ]


def _no_oauth(mcp_path: str) -> list[Route]:
    """Clients that look for OAuth are told at once that there is none; a page of HTML would mislead them."""
    paths = [f"/.well-known/{name}" for name in _DISCOVERY]
    paths += [f"{path}/{{rest:path}}" for path in paths]
    paths += [f"{mcp_path}/.well-known/{{rest:path}}", *_OAUTH]
    return [Route(path, _oauth_is_off, methods=_ANY_METHOD) for path in paths]


async def _oauth_is_off(_: Request) -> Response:
    return JSONResponse(
        {"error": "not_found", "error_description": "this server does not use OAuth; send its bearer token"},
        status_code=404,
    )


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or "\0" in text or len(text) > _LONGEST_NAME:
        raise InvalidPath(
            "the target is no absolute path",
            value=text[:200],
            remedy="send an absolute path on the server's machine",
        )
    return path


def _id_of(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


async def _refusal(request: Request, error: Exception) -> Response:
    if not isinstance(error, PostroomError):
        raise error
    return reported(error).response(_id_of(request))


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
    return problem.response(_id_of(request))


async def _failure(request: Request, _: Exception) -> Response:
    """Answer for what nobody foresaw. It is raised again after this, up to `Guard`, which logs it."""
    return internal_error().response(_id_of(request))


_NO_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Not found</title>
<p>There is nothing at this address. <a href="{pages}">To the pages</a></html>
"""
"""For a browser; programs are answered in JSON."""
_HTTP_CODES: Final[dict[int, tuple[str, str]]] = {
    404: ("not_found", "there is nothing at this address"),
    405: ("method_not_allowed", "use a method that the Allow header names"),
    415: ("unsupported_media_type", "send JSON, and say so: `Content-Type: application/json`"),
}
