"""The operator's routes: how their bodies are read, and what each asks of which service.

Those for hooks and watchers of this machine are among them.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from postroom.contracts.choices import Importance
from postroom.contracts.errors import InvalidArgument, InvalidPath
from postroom.contracts.messages import Json
from postroom.contracts.tokens import Grant
from postroom.contracts.work import Work, told
from postroom.http_api.long_work import LongWork
from postroom.http_api.operations import Operations
from postroom.http_api.sessions import LoginService, own_address
from postroom.mail.named_tokens import NamedTokens
from postroom.mcp_server.callers import GRANT_SCOPE
from postroom.services.following import Following
from postroom.services.hooks import Hooks
from postroom.services.people import PeopleService
from postroom.services.questions import QuestionService
from postroom.services.runners import RunnerService
from postroom.services.schedules import MailSchedules, ScheduledMessage
from postroom.services.work import WorkService

Endpoint = Callable[[Request], Awaitable[Response]]


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a body asks for."""


class _Named(Asked, frozen=True):
    name: str


class _Agent(Asked, frozen=True):
    project: str
    agent: str


T = TypeVar("T", bound=Asked)
D = TypeVar("D")
_LONGEST_PATH: Final = 4096
_AGENT_TOKEN: Final = "postroom-agent-token"  # noqa: S105 - the name of a header
_MOST_SECONDS: Final = 10**9
_Seconds = Annotated[int, Meta(ge=0, le=_MOST_SECONDS)]


def operators(path: str, endpoints: Mapping[str, Endpoint]) -> Route:
    """Return a route with an endpoint for each method; whom it answers is said in `permissions`."""

    async def chosen(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, chosen, methods=list(endpoints))


async def read_body(request: Request, kind: type[T]) -> T:
    """Return a JSON body as what it is to be.

    Raises:
        InvalidArgument: it does not fit.
    """
    remedy = f"send a JSON object with {', '.join(kind.__struct_fields__)} as text"
    return _decoded(await request.body(), kind, remedy)


async def _object(request: Request) -> dict[str, Any]:
    return _decoded(await request.body(), dict[str, Any], "send a JSON object")


def _decoded(body: bytes, kind: type[D], remedy: str) -> D:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body is invalid: {error}"[:300], remedy=remedy) from error


class _Backup(Asked, frozen=True):
    target: str | None = None


class _Landing(Asked, frozen=True):
    path: str = "/"


class _Prune(Asked, frozen=True):
    dry_run: bool = False


class _Repair(Asked, frozen=True):
    full: bool = False
    dry_run: bool = False


class _Merge(Asked, frozen=True):
    source: str
    target: str
    renames: dict[str, str] = {}
    rename_equal: bool = False
    dry_run: bool = False


class _Move(Asked, frozen=True):
    project: str
    folder: str


class _Rebuild(Asked, frozen=True):
    project: str | None = None


async def _login_address(request: Request, login: LoginService, then: str) -> str:
    """Return an address that logs in once, and leads to a page of ours.

    Raises:
        InvalidArgument: the page is none of ours.
    """
    if then != own_address(then) or not _is_shown(request, then):
        raise InvalidArgument(
            "the path is not a page of this server",
            value=then[:200],
            remedy="use a path such as /p/shop/runs",
        )
    leads_on = "" if then == "/" else f"&next={quote(then, safe='/')}"
    base = f"{request.url.scheme}://{request.headers['host']}"  # the name by which the caller reaches us
    return f"{base}/login?code={await login.codes.make()}{leads_on}"


def _is_shown(request: Request, address: str) -> bool:
    """Say whether a browser that comes to an address of ours is shown something, and not only a form's."""
    coming = {"type": "http", "method": "GET", "path": unquote(urlsplit(address).path)}
    return any(route.matches(coming)[0] is Match.FULL for route in request.app.routes)


def _told_as(name: str, look: Callable[[], Awaitable[object]]) -> Endpoint:
    async def told_whole(_: Request) -> Response:
        return JSONResponse({name: await look()})

    return told_whole


async def _repair(operations: Operations, request: Request) -> Response:
    wanted = await read_body(request, _Repair)
    return JSONResponse(dict(await operations.repair(full=wanted.full, dry_run=wanted.dry_run)))


async def _prune(operations: Operations, request: Request) -> Response:
    wanted = await read_body(request, _Prune)
    return JSONResponse(dict(await operations.prune(dry_run=wanted.dry_run)))


async def _merge(operations: Operations, request: Request) -> Response:
    wanted = await read_body(request, _Merge)
    done = operations.merge_projects(
        wanted.source,
        wanted.target,
        renames=wanted.renames,
        rename_equal=wanted.rename_equal,
        dry_run=wanted.dry_run,
    )
    return JSONResponse(dict(await done))


async def _status(operations: Operations, _: Request) -> Response:
    return JSONResponse(dict(await operations.status()))


async def _cluster(operations: Operations, _: Request) -> Response:
    return JSONResponse(dict(await operations.cluster()))


def _long(work: LongWork, path: str, endpoints: Mapping[str, Endpoint]) -> Route:
    return operators(path, {method: work.watched(path, one) for method, one in endpoints.items()})


def admin_routes(operations: Operations, login: LoginService) -> list[Route]:
    """Return the routes to the server itself."""
    long = partial(_long, work := LongWork())

    async def doctor(request: Request) -> Response:
        return JSONResponse(dict(await operations.doctor(full=request.query_params.get("full") == "yes")))

    async def back_up(request: Request) -> Response:
        wanted = await read_body(request, _Backup)
        return JSONResponse(dict(await operations.back_up(_absolute(wanted.target))))

    async def issue(request: Request) -> Response:
        wanted = await read_body(request, _Agent)
        return JSONResponse({"token": await operations.issue_agent_token(wanted.project, wanted.agent)})

    async def revoke(request: Request) -> Response:
        wanted = await read_body(request, _Agent)
        await operations.revoke_agent_token(wanted.project, wanted.agent)
        return JSONResponse({"revoked": True})

    async def login_code(request: Request) -> Response:
        then = (await read_body(request, _Landing)).path
        return JSONResponse({"url": await _login_address(request, login, then)})

    async def move_project(request: Request) -> Response:
        wanted = await read_body(request, _Move)
        return JSONResponse(dict(await operations.move_project(wanted.project, wanted.folder)))

    async def rebuild_archive(request: Request) -> Response:
        wanted = await read_body(request, _Rebuild)
        return JSONResponse(dict(await operations.rebuild_archive(wanted.project)))

    return [
        operators("/admin/progress", {"GET": work.told}),
        operators("/admin/status", {"GET": partial(_status, operations)}),
        operators("/admin/cluster", {"GET": partial(_cluster, operations)}),
        operators("/admin/projects", {"GET": _told_as("projects", operations.projects)}),
        long("/admin/doctor", {"GET": doctor, "POST": partial(_repair, operations)}),
        long("/admin/support-bundle", {"GET": _told_as("files", operations.support_bundle)}),
        long("/admin/backup", {"POST": back_up}),
        operators("/admin/agent-token", {"POST": issue, "DELETE": revoke}),
        operators("/admin/login-code", {"POST": login_code}),
        long("/admin/projects/merge", {"POST": partial(_merge, operations)}),
        operators("/admin/projects/move", {"POST": move_project}),
        long("/admin/prune", {"POST": partial(_prune, operations)}),
        long("/admin/rebuild-archive", {"POST": rebuild_archive}),
    ]


def _absolute(text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text)
    if not path.is_absolute() or "\0" in text or len(text) > _LONGEST_PATH:
        raise InvalidPath(
            "the target is not an absolute path",
            value=text[:200],
            remedy="send an absolute path on the server's machine",
        )
    return path


class _Person(Asked, frozen=True):
    name: str
    chat: str | None = None


def people_routes(people: PeopleService) -> list[Route]:
    """Return the routes to people: who may be written to by name, and in which chat they are reached."""

    async def add(request: Request) -> Response:
        asked = await read_body(request, _Person)
        return JSONResponse(dict(await people.add(asked.name, asked.chat)))

    async def remove(request: Request) -> Response:
        asked = await read_body(request, _Named)
        return JSONResponse(dict(await people.remove(asked.name)))

    async def everybody(_: Request) -> Response:
        return JSONResponse({"people": [dict(one) for one in await people.everybody()]})

    return [operators("/admin/people", {"GET": everybody, "PUT": add, "DELETE": remove})]


class _Declared(Asked, frozen=True):
    project: str
    agent: str
    runner: dict[str, Json]


def runner_routes(runners: RunnerService) -> list[Route]:
    """Return the routes to runners: who is run how, when mail comes."""

    async def declare(request: Request) -> Response:
        asked = await read_body(request, _Declared)
        return JSONResponse(dict(await runners.declare(asked.project, asked.agent, asked.runner)))

    async def withdraw(request: Request) -> Response:
        asked = await read_body(request, _Agent)
        return JSONResponse({"removed": await runners.withdraw(asked.project, asked.agent)})

    async def declared(request: Request) -> Response:
        found = await runners.declared(request.query_params.get("project"))
        return JSONResponse({"runners": [dict(one) for one in found]})

    return [operators("/admin/runners", {"GET": declared, "PUT": declare, "DELETE": withdraw})]


class _Run(Asked, frozen=True):
    run: str


def _done_to_a_run(act: Callable[[str], Awaitable[Work]]) -> Endpoint:
    async def acted(request: Request) -> Response:
        asked = await read_body(request, _Run)
        return JSONResponse(told(await act(asked.run)))

    return acted


def run_routes(runs: WorkService) -> list[Route]:
    """Return the routes to runs: what agents are at, what waits and why, and dead letters."""

    async def listed(request: Request) -> Response:
        project = request.query_params.get("project")
        slug = "" if project is None else await runs.slug(project)
        works, waiting = await runs.works(slug), await runs.store.read(partial(runs.waiting, slug=slug))
        return JSONResponse({"runs": [told(one) for one in works], "waiting": [told(one) for one in waiting]})

    async def shown(request: Request) -> Response:
        run_id = request.query_params.get("run")
        if not run_id:
            raise InvalidArgument("no run is given", remedy="give the run's id as `run`")
        work = await runs.named(run_id)
        output = await runs.output(work.run_id, whole=request.query_params.get("output") == "whole")
        return JSONResponse({**told(work), "output": output.text, "output_is_cut": output.is_cut})

    async def floor(request: Request) -> Response:
        slug = await runs.slug(request.query_params.get("project", ""))
        health = await runs.health()
        return JSONResponse(told(await runs.store.read(partial(runs.floor, slug=slug, health=health))))

    async def dead(_: Request) -> Response:
        return JSONResponse({"dead": [dict(one) for one in await runs.dead()]})

    async def cancelled(request: Request) -> Response:
        asked = await read_body(request, _Run)
        await runs.cancel(asked.run)
        return JSONResponse(told(await runs.named(asked.run)))

    return [
        operators("/admin/runs", {"GET": listed}),
        operators("/admin/runs/one", {"GET": shown}),
        operators("/admin/floor", {"GET": floor}),
        operators("/admin/runs/dead", {"GET": dead}),
        operators("/admin/runs/cancel", {"POST": cancelled}),
        operators("/admin/runs/hasten", {"POST": _done_to_a_run(runs.hasten)}),
        operators("/admin/runs/discard", {"POST": _done_to_a_run(runs.discard)}),
        operators("/admin/runs/replay", {"POST": _done_to_a_run(runs.replay)}),
    ]


class _Answer(Asked, frozen=True):
    number: str
    answer: Literal["yes", "no"]
    why: str = ""


def question_routes(questions: QuestionService) -> list[Route]:
    """Return the routes to what runs wait to be told."""

    async def listed(_: Request) -> Response:
        return JSONResponse({"questions": [dict(one) for one in await questions.questions()]})

    async def answered(request: Request) -> Response:
        asked = await read_body(request, _Answer)
        done = await questions.answer(asked.number, approved=asked.answer == "yes", why=asked.why)
        return JSONResponse(dict(done))

    return [operators("/admin/questions", {"GET": listed, "POST": answered})]


_Span = Annotated[float, Meta(ge=0, le=_MOST_SECONDS)]


class _Schedule(Asked, frozen=True, kw_only=True):
    name: str
    project: str
    sender: str
    to: list[str]
    subject: str
    body: str
    importance: Importance = "normal"
    ack_required: bool = False
    cron: str | None = None
    every_seconds: _Span | None = None
    zone: str = "UTC"
    missed: str = "once"
    overlap: str = "queue"
    jitter_seconds: _Span = 0
    replaces: bool = False

    @property
    def message(self) -> ScheduledMessage:
        """What is to be sent."""
        fields = ScheduledMessage.__struct_fields__
        return ScheduledMessage(**{name: getattr(self, name) for name in fields})


def schedule_routes(schedules: MailSchedules) -> list[Route]:
    """Return the routes to schedules: messages of people that are sent again and again."""

    async def listed(request: Request) -> Response:
        project = request.query_params.get("project")
        slug = "" if project is None else await schedules.slug(project)
        return JSONResponse({"schedules": [dict(one) for one in await schedules.listed(slug)]})

    async def shown(request: Request) -> Response:
        return JSONResponse(dict(await schedules.named(request.query_params.get("name", ""))))

    async def added(request: Request) -> Response:
        asked = await read_body(request, _Schedule)
        every = None if asked.every_seconds is None else timedelta(seconds=asked.every_seconds)
        made = await schedules.add(
            asked.name,
            asked.message,
            cron=asked.cron,
            every=every,
            zone=asked.zone,
            missed=asked.missed,
            overlap=asked.overlap,
            jitter=timedelta(seconds=asked.jitter_seconds),
            replaces=asked.replaces,
        )
        return JSONResponse(dict(made))

    async def removed(request: Request) -> Response:
        return JSONResponse({"removed": await schedules.remove((await read_body(request, _Named)).name)})

    return [
        operators("/admin/schedules", {"GET": listed, "POST": added, "DELETE": removed}),
        operators("/admin/schedules/one", {"GET": shown}),
        *_schedule_steps(schedules),
    ]


def _schedule_steps(schedules: MailSchedules) -> list[Route]:
    async def paused(request: Request) -> Response:
        return JSONResponse(dict(await schedules.pause((await read_body(request, _Named)).name)))

    async def resumed(request: Request) -> Response:
        return JSONResponse(dict(await schedules.resume((await read_body(request, _Named)).name)))

    async def triggered(request: Request) -> Response:
        return JSONResponse({"message": await schedules.trigger((await read_body(request, _Named)).name)})

    steps = {"pause": paused, "resume": resumed, "trigger": triggered}
    return [operators(f"/admin/schedules/{word}", {"POST": step}) for word, step in steps.items()]


class _NewToken(Asked, frozen=True):
    name: str
    id: str
    hash: str
    scopes: list[str]
    project: str | None = None
    life_seconds: _Seconds | None = None


class _Rotation(Asked, frozen=True):
    name: str
    id: str
    hash: str
    overlap_seconds: _Seconds


def token_routes(tokens: NamedTokens) -> list[Route]:
    """Return the routes to named tokens. Only hashes come here: a token is made by who will hold it.

    No token opens them but the server's own: who may make tokens may do everything.
    """

    async def create(request: Request) -> Response:
        asked = await read_body(request, _NewToken)
        life = None if asked.life_seconds is None else timedelta(seconds=asked.life_seconds)
        made = await tokens.create(
            asked.name, asked.id, asked.hash, asked.scopes, project=asked.project, life=life
        )
        return JSONResponse(dict(made))

    async def rotate(request: Request) -> Response:
        asked = await read_body(request, _Rotation)
        overlap = timedelta(seconds=asked.overlap_seconds)
        return JSONResponse(dict(await tokens.rotate(asked.name, asked.id, asked.hash, overlap=overlap)))

    async def revoke(request: Request) -> Response:
        return JSONResponse({"revoked": await tokens.revoke((await read_body(request, _Named)).name)})

    async def listed(request: Request) -> Response:
        found = await tokens.listed(ended=request.query_params.get("all") == "yes")
        return JSONResponse({"tokens": [dict(one) for one in found]})

    methods = {"GET": listed, "POST": create, "DELETE": revoke}
    return [
        operators("/admin/tokens", methods),
        operators("/admin/tokens/rotate", {"POST": rotate}),
    ]


def hook_routes(hooks: Hooks, following: Following) -> list[Route]:
    """Return the routes for hooks and watchers of this machine."""

    async def hook(request: Request) -> Response:
        client, event = request.path_params["client"], request.path_params["event"]
        token, grant = request.headers.get(_AGENT_TOKEN), request.scope.get(GRANT_SCOPE)
        of_run = grant if isinstance(grant, Grant) and grant.run_id is not None else None
        body = await _object(request)
        return JSONResponse(dict(await hooks.answer(client, event, body, agent_token=token, grant=of_run)))

    async def watch(request: Request) -> Response:
        token = request.headers.get(_AGENT_TOKEN)
        return JSONResponse(dict(await following.messages(await _object(request), agent_token=token)))

    return [
        operators("/hooks/{client}/{event}", {"POST": hook}),
        operators("/watch", {"POST": watch}),
    ]
