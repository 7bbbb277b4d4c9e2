"""What the operator may ask of the server, of its mail room and its agents: the rows of administration.

Those for hooks and watchers of this machine are among them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from postroom.contracts.choices import Importance
from postroom.contracts.errors import InvalidArgument, InvalidPath
from postroom.contracts.messages import Json
from postroom.contracts.tokens import Grant
from postroom.contracts.work import Work, told
from postroom.http_api.administration import Asked, Query, Table, Who, read_body
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

_LONGEST_PATH: Final = 4096
_AGENT_TOKEN: Final = "postroom-agent-token"  # noqa: S105 - the name of a header
_MOST_SECONDS: Final = 10**9
_Seconds = Annotated[int, Meta(ge=0, le=_MOST_SECONDS)]
_Span = Annotated[float, Meta(ge=0, le=_MOST_SECONDS)]


@dataclass(frozen=True, slots=True)
class Server:
    """The server itself, as its operator asks it."""

    operations: Operations
    login: LoginService
    work: LongWork = field(default_factory=LongWork)


SERVER: Final = Table[Server]()
PEOPLE: Final = Table[PeopleService]()
RUNNERS: Final = Table[RunnerService]()
RUNS: Final = Table[WorkService]()
QUESTIONS: Final = Table[QuestionService]()
SCHEDULES: Final = Table[MailSchedules]()
TOKENS: Final = Table[NamedTokens]()
HOOKS: Final = Table[tuple[Hooks, Following]]()


class _Named(Asked, frozen=True):
    name: str


class _Agent(Asked, frozen=True):
    project: str
    agent: str


class _OfProject(Query, frozen=True):
    project: str | None = None


# The server itself.

_progress = SERVER.at(
    "/admin/progress",
    "The progress of a long task that another request waits for, such as `?of=/admin/backup`: what "
    "is done, and how much of the total. Empty if no such task runs.",
)


@_progress.raw("GET")
async def _progress_of(server: Server, request: Request) -> Response:
    return await server.work.told(request)


_status = SERVER.at("/admin/status", "The server's state: its version, data folder and counts.")


@_status("GET", Query)
async def _status_of(server: Server, _: Query) -> object:
    return await server.operations.status()


_cluster = SERVER.at("/admin/cluster", "The servers that share the database, and the tasks of each server.")


@_cluster("GET", Query)
async def _cluster_of(server: Server, _: Query) -> object:
    return await server.operations.cluster()


_projects = SERVER.at("/admin/projects", "Every project: its slug and its path.")


@_projects("GET", Query)
async def _list_projects(server: Server, _: Query) -> object:
    return {"projects": await server.operations.projects()}


class _Doctor(Query, frozen=True):
    full: str = ""


class _Repair(Asked, frozen=True):
    full: bool = False
    dry_run: bool = False


_doctor = SERVER.at("/admin/doctor", "The checks of `postroom doctor`.", is_long=True)


@_doctor("GET", _Doctor)
async def _examine(server: Server, asked: _Doctor) -> object:
    return await server.operations.doctor(full=asked.full == "yes")


@_doctor("POST", _Repair)
async def _repair(server: Server, asked: _Repair) -> object:
    return await server.operations.repair(full=asked.full, dry_run=asked.dry_run)


_bundle = SERVER.at(
    "/admin/support-bundle",
    "The content of `postroom support-bundle`, as texts by file name.",
    is_long=True,
)


@_bundle("GET", Query)
async def _make_bundle(server: Server, _: Query) -> object:
    return {"files": await server.operations.support_bundle()}


class _Backup(Asked, frozen=True):
    target: str | None = None


_backup = SERVER.at(
    "/admin/backup",
    'Writes a backup. Body: `{"target": "/absolute/path"}`, or `{}` for the folder of backups.',
    is_long=True,
)


@_backup("POST", _Backup)
async def _back_up(server: Server, asked: _Backup) -> object:
    return await server.operations.back_up(_absolute(asked.target))


_agent_token = SERVER.at(
    "/admin/agent-token",
    'Creates (`POST`) or revokes (`DELETE`) an agent\'s token. Body: `{"project": "...", "agent": "..."}`.',
)


@_agent_token("POST", _Agent)
async def _issue_token(server: Server, asked: _Agent) -> object:
    return {"token": await server.operations.issue_agent_token(asked.project, asked.agent)}


@_agent_token("DELETE", _Agent)
async def _revoke_token(server: Server, asked: _Agent) -> object:
    await server.operations.revoke_agent_token(asked.project, asked.agent)
    return {"revoked": True}


class _Landing(Asked, frozen=True):
    path: str = "/"


_login_code = SERVER.at("/admin/login-code", "Creates a link that opens the pages once, within 10 minutes.")


@_login_code.raw("POST")
async def _login_address(server: Server, request: Request) -> Response:
    """Return an address that logs in once, and leads to a page of ours.

    Raises:
        InvalidArgument: the page is none of ours.
    """
    then = (await read_body(request, _Landing)).path
    if then != own_address(then) or not _is_shown(request, then):
        raise InvalidArgument(
            "the path is not a page of this server",
            value=then[:200],
            remedy="use a path such as /p/shop/runs",
        )
    leads_on = "" if then == "/" else f"&next={quote(then, safe='/')}"
    base = f"{request.url.scheme}://{request.headers['host']}"  # the name by which the caller reaches us
    return JSONResponse({"url": f"{base}/login?code={await server.login.codes.make()}{leads_on}"})


def _is_shown(request: Request, address: str) -> bool:
    """Say whether a browser that comes to an address of ours is shown something, and not only a form's."""
    coming = {"type": "http", "method": "GET", "path": unquote(urlsplit(address).path)}
    return any(route.matches(coming)[0] is Match.FULL for route in request.app.routes)


class _Merge(Asked, frozen=True):
    source: str
    target: str
    renames: dict[str, str] = msgspec.field(default_factory=dict)
    rename_equal: bool = False
    dry_run: bool = False


_merging = SERVER.at(
    "/admin/projects/merge",
    'Merges a project into another. Body: `{"source": "...", "target": "...", "renames": {"Ada": '
    '"Ada-2"}, "rename_equal": false, "dry_run": false}`. See '
    "[mail](../mail.md#merging-two-projects).",
    is_long=True,
)


@_merging("POST", _Merge)
async def _merge(server: Server, asked: _Merge) -> object:
    return await server.operations.merge_projects(
        asked.source,
        asked.target,
        renames=asked.renames,
        rename_equal=asked.rename_equal,
        dry_run=asked.dry_run,
    )


class _Move(Asked, frozen=True):
    project: str
    folder: str


_moving = SERVER.at(
    "/admin/projects/move",
    'Changes the folder of a project. Body: `{"project": "...", "folder": "/path"}`. See '
    "[mail](../mail.md#a-folder-that-was-renamed).",
)


@_moving("POST", _Move)
async def _move(server: Server, asked: _Move) -> object:
    return await server.operations.move_project(asked.project, asked.folder)


class _Prune(Asked, frozen=True):
    dry_run: bool = False


_pruning = SERVER.at(
    "/admin/prune",
    'Deletes the messages that no `[[keep]]` rule keeps. Body: `{"dry_run": true}` only counts them. '
    "See [operating](../operating.md#retention).",
    is_long=True,
)


@_pruning("POST", _Prune)
async def _prune(server: Server, asked: _Prune) -> object:
    return await server.operations.prune(dry_run=asked.dry_run)


class _Rebuild(Asked, frozen=True):
    project: str | None = None


_rebuilding = SERVER.at(
    "/admin/rebuild-archive",
    'Rebuilds the archive from the database. Body: `{"project": "..."}`, or `{}` for every project.',
    is_long=True,
)


@_rebuilding("POST", _Rebuild)
async def _rebuild(server: Server, asked: _Rebuild) -> object:
    return await server.operations.rebuild_archive(asked.project)


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


# People who may be written to by name, and in which chat they are reached.


class _Person(Asked, frozen=True):
    name: str
    chat: str | None = None


_people = PEOPLE.at(
    "/admin/people",
    "Lists the people whom agents may write to (`GET`); adds a person or changes their chat (`PUT`, "
    'body: `{"name": "...", "chat": "telegram/1"}`, `chat` is optional); removes a person (`DELETE`, '
    'body: `{"name": "..."}`).',
)


@_people("GET", Query)
async def _everybody(people: PeopleService, _: Query) -> object:
    return {"people": await people.everybody()}


@_people("PUT", _Person)
async def _name_person(people: PeopleService, asked: _Person) -> object:
    return await people.add(asked.name, asked.chat)


@_people("DELETE", _Named)
async def _remove_person(people: PeopleService, asked: _Named) -> object:
    return await people.remove(asked.name)


# Which agents are run how, when mail comes.


class _Declared(Asked, frozen=True):
    project: str
    agent: str
    runner: dict[str, Json]


_runners = RUNNERS.at(
    "/admin/runners",
    "Lists the runners of agents (`GET`, `?project=` for one project); sets a runner (`PUT`), body: "
    '`{"project": "...", "agent": "...", "runner": {"argv": ["..."]}}`; removes a runner (`DELETE`), '
    'body: `{"project": "...", "agent": "..."}`.',
)


@_runners("GET", _OfProject)
async def _list_runners(runners: RunnerService, asked: _OfProject) -> object:
    return {"runners": await runners.declared(asked.project)}


@_runners("PUT", _Declared)
async def _set_runner(runners: RunnerService, asked: _Declared) -> object:
    return await runners.declare(asked.project, asked.agent, asked.runner)


@_runners("DELETE", _Agent)
async def _remove_runner(runners: RunnerService, asked: _Agent) -> object:
    return {"removed": await runners.withdraw(asked.project, asked.agent)}


# Runs: what agents are at, what waits and why, and dead letters.


class _Run(Asked, frozen=True):
    run: str


class _OneRun(Query, frozen=True):
    run: str = ""
    output: str = ""


_runs = RUNS.at(
    "/admin/runs",
    "Runs of agents: open runs, recently ended runs and dead letters, and messages that wait for the "
    "next run. `?project=` selects one project.",
)


@_runs("GET", _OfProject)
async def _list_runs(runs: WorkService, asked: _OfProject) -> object:
    slug = "" if asked.project is None else await runs.slug(asked.project)
    works, waiting = await runs.works(slug), await runs.store.read(partial(runs.waiting, slug=slug))
    return {"runs": [told(one) for one in works], "waiting": [told(one) for one in waiting]}


_one_run = RUNS.at(
    "/admin/runs/one",
    "One run and the end of its output. `?run=` is the id of the run or of its dispatch.",
)


@_one_run("GET", _OneRun)
async def _show_run(runs: WorkService, asked: _OneRun) -> object:
    if not asked.run:
        raise InvalidArgument("no run is given", remedy="give the run's id as `run`")
    work = await runs.named(asked.run)
    output = await runs.output(work.run_id, whole=asked.output == "whole")
    return {**told(work), "output": output.text, "output_is_cut": output.is_cut}


_floor = RUNS.at("/admin/floor", "The control room of the project in `?project=`.")


@_floor("GET", _OfProject)
async def _show_floor(runs: WorkService, asked: _OfProject) -> object:
    slug, health = await runs.slug(asked.project or ""), await runs.health()
    return told(await runs.store.read(partial(runs.floor, slug=slug, health=health)))


_dead = RUNS.at(
    "/admin/runs/dead", "The dead letters: failed runs that wait for a person, oldest first, at most 500."
)


@_dead("GET", Query)
async def _list_dead(runs: WorkService, _: Query) -> object:
    return {"dead": await runs.dead()}


_cancel = RUNS.at(
    "/admin/runs/cancel", 'Cancels a run that is queued, active or waiting. Body: `{"run": "..."}`.'
)


@_cancel("POST", _Run)
async def _cancel_run(runs: WorkService, asked: _Run) -> object:
    await runs.cancel(asked.run)
    return told(await runs.named(asked.run))


def _act(path: str, words: str, act: Callable[[WorkService, str], Awaitable[Work]]) -> None:
    @RUNS.at(path, words)("POST", _Run)
    async def _(runs: WorkService, asked: _Run) -> object:
        return told(await act(runs, asked.run))


_act(
    "/admin/runs/hasten",
    'Retries now a run that waits for its next attempt. Body: `{"run": "..."}`.',
    WorkService.hasten,
)
_act(
    "/admin/runs/discard",
    'Discards a dead letter; its run stays failed. Body: `{"run": "..."}`.',
    WorkService.discard,
)
_act("/admin/runs/replay", 'Replays a dead letter. Body: `{"run": "..."}`.', WorkService.replay)


# What runs wait to be told.


class _Answer(Asked, frozen=True):
    number: str
    answer: Literal["yes", "no"]
    why: str = ""


_questions = QUESTIONS.at(
    "/admin/questions",
    'Lists the open questions (`GET`); answers a question (`POST`), body: `{"number": "...", '
    '"answer": "yes", "why": "..."}`.',
)


@_questions("GET", Query)
async def _list_questions(questions: QuestionService, _: Query) -> object:
    return {"questions": await questions.questions()}


@_questions("POST", _Answer)
async def _answer_question(questions: QuestionService, asked: _Answer) -> object:
    return await questions.answer(asked.number, approved=asked.answer == "yes", why=asked.why)


# Schedules: messages of people that are sent again and again.


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


class _OneSchedule(Query, frozen=True):
    name: str = ""


_schedules = SCHEDULES.at(
    "/admin/schedules",
    "Lists the schedules (`GET`, `?project=` for one project); adds a schedule (`POST`), body: "
    '`{"name": "...", "project": "...", "sender": "...", "to": ["..."], "subject": "...", "body": '
    '"...", "cron": "0 9 * * MON"}`, optionally `every_seconds` instead of `cron`, and `zone`, '
    "`missed`, `overlap`, `jitter_seconds`, `importance`, `ack_required`, `replaces`; removes a "
    'schedule (`DELETE`), body: `{"name": "..."}`.',
)


@_schedules("GET", _OfProject)
async def _list_schedules(schedules: MailSchedules, asked: _OfProject) -> object:
    slug = "" if asked.project is None else await schedules.slug(asked.project)
    return {"schedules": await schedules.listed(slug)}


@_schedules("POST", _Schedule)
async def _add_schedule(schedules: MailSchedules, asked: _Schedule) -> object:
    fields = ScheduledMessage.__struct_fields__
    return await schedules.add(
        asked.name,
        ScheduledMessage(**{name: getattr(asked, name) for name in fields}),
        cron=asked.cron,
        every=None if asked.every_seconds is None else timedelta(seconds=asked.every_seconds),
        zone=asked.zone,
        missed=asked.missed,
        overlap=asked.overlap,
        jitter=timedelta(seconds=asked.jitter_seconds),
        replaces=asked.replaces,
    )


@_schedules("DELETE", _Named)
async def _remove_schedule(schedules: MailSchedules, asked: _Named) -> object:
    return {"removed": await schedules.remove(asked.name)}


_one_schedule = SCHEDULES.at("/admin/schedules/one", "The schedule in `?name=`.")


@_one_schedule("GET", _OneSchedule)
async def _show_schedule(schedules: MailSchedules, asked: _OneSchedule) -> object:
    return await schedules.named(asked.name)


_pause = SCHEDULES.at("/admin/schedules/pause", 'Pauses a schedule. Body: `{"name": "..."}`.')


@_pause("POST", _Named)
async def _pause_schedule(schedules: MailSchedules, asked: _Named) -> object:
    return await schedules.pause(asked.name)


_resume = SCHEDULES.at(
    "/admin/schedules/resume", 'Resumes a schedule at its next time. Body: `{"name": "..."}`.'
)


@_resume("POST", _Named)
async def _resume_schedule(schedules: MailSchedules, asked: _Named) -> object:
    return await schedules.resume(asked.name)


_trigger = SCHEDULES.at(
    "/admin/schedules/trigger", 'Sends the message of a schedule now. Body: `{"name": "..."}`.'
)


@_trigger("POST", _Named)
async def _trigger_schedule(schedules: MailSchedules, asked: _Named) -> object:
    return {"message": await schedules.trigger(asked.name)}


# Named tokens. Only hashes come here: a token is made by who will hold it. No token opens these addresses but
# the server's own: who may make tokens may do everything.


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


class _WhichTokens(Query, frozen=True):
    all: str = ""


_tokens = TOKENS.at(
    "/admin/tokens",
    "Lists the named tokens (`GET`, with `?all=yes` also expired and revoked ones); adds a token "
    '(`POST`), body: `{"name": "...", "id": "...", "hash": "...", "scopes": ["mail:read"]}`, '
    "optionally `project` and `life_seconds`; revokes the tokens of a name (`DELETE`), body: "
    '`{"name": "..."}`. `id` has 12 letters and digits, `hash` is the SHA-256 of `prt_<id>_<secret>`.',
    Who.OPERATOR,
)


@_tokens("GET", _WhichTokens)
async def _list_tokens(tokens: NamedTokens, asked: _WhichTokens) -> object:
    return {"tokens": [dict(one) for one in await tokens.listed(ended=asked.all == "yes")]}


@_tokens("POST", _NewToken)
async def _create_token(tokens: NamedTokens, asked: _NewToken) -> object:
    life = None if asked.life_seconds is None else timedelta(seconds=asked.life_seconds)
    return await tokens.create(
        asked.name, asked.id, asked.hash, asked.scopes, project=asked.project, life=life
    )


@_tokens("DELETE", _Named)
async def _end_tokens(tokens: NamedTokens, asked: _Named) -> object:
    return {"revoked": await tokens.revoke(asked.name)}


_rotation = TOKENS.at(
    "/admin/tokens/rotate",
    'Replaces a token by a new token. Body: `{"name": "...", "id": "...", "hash": "...", '
    '"overlap_seconds": 86400}`.',
    Who.OPERATOR,
)


@_rotation("POST", _Rotation)
async def _rotate_token(tokens: NamedTokens, asked: _Rotation) -> object:
    overlap = timedelta(seconds=asked.overlap_seconds)
    return await tokens.rotate(asked.name, asked.id, asked.hash, overlap=overlap)


# Hooks and watchers of this machine.

_hook = HOOKS.at(
    "/hooks/{client}/{event}",
    "The call of a hook of a client or of Git. See [hooks](../hooks.md).",
    Who.HOOKS,
)


@_hook.raw("POST")
async def _answer_hook(served: tuple[Hooks, Following], request: Request) -> Response:
    client, event = request.path_params["client"], request.path_params["event"]
    token, grant = request.headers.get(_AGENT_TOKEN), request.scope.get(GRANT_SCOPE)
    of_run = grant if isinstance(grant, Grant) and grant.run_id is not None else None
    body = await read_body(request, dict[str, Any])
    return JSONResponse(dict(await served[0].answer(client, event, body, agent_token=token, grant=of_run)))


_watch = HOOKS.at("/watch", "Waits up to 30 s for messages after a cursor, for `postroom watch`.")


@_watch.raw("POST")
async def _answer_watch(served: tuple[Hooks, Following], request: Request) -> Response:
    token, body = request.headers.get(_AGENT_TOKEN), await read_body(request, dict[str, Any])
    return JSONResponse(dict(await served[1].messages(body, agent_token=token)))
