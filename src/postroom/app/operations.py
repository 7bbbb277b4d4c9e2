"""The operations table: the mail operations, then the administration operations with their commands.

An administration row names a service function. The function takes the fields of the command as
parameters; tests/meta/test_operations.py compares both. Routes, permissions, reference pages and the
commands of `postroom` are made from the rows, so an operation is declared here and nowhere else.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from postroom.app.admin_service import AdminService
from postroom.app.chats import ChatAdministration
from postroom.app.undelivered import UndeliveredService
from postroom.contracts.choices import Importance
from postroom.contracts.client_programs import COMMANDS
from postroom.contracts.clock import MAX_DURATION
from postroom.contracts.errors import InvalidArgument, InvalidPath
from postroom.contracts.messages import Json
from postroom.contracts.operations import Operation, Option, Who
from postroom.contracts.questions import COMMAND_LINE, OVER_HTTP
from postroom.contracts.tasks import TaskDecision
from postroom.contracts.tokens import ADMIN
from postroom.contracts.work import Floor, Work, WorkOutput
from postroom.http_api.long_work import LongWork
from postroom.http_api.sessions import LoginService
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mail.tokens import NamedTokens, TokenView
from postroom.services.administration import (
    AnsweredQuestion,
    BackupView,
    DecidedTaskView,
    QuestionsView,
    RunsView,
    ScheduleView,
    SnoozedQuestion,
)
from postroom.services.people import PeopleService
from postroom.services.questions import QuestionService
from postroom.services.runners import RunnerService
from postroom.services.schedules import MailSchedules, ScheduledMessage
from postroom.services.work import WorkService

_MAX_PATH_LENGTH: Final = 4096
_MAX_SECONDS: Final = MAX_DURATION // timedelta(seconds=1)
_MAX_SNOOZE: Final = 90 * 24 * 3_600
"""The longest snooze of a question, in seconds."""
_Seconds = Annotated[int, Meta(ge=0, le=_MAX_SECONDS)]
_Span = Annotated[float, Meta(ge=0, le=_MAX_SECONDS)]


def _text(description: str, **option: str) -> Meta:
    return Meta(description=description, extra={"option": Option(**option)})


_Project = Annotated[str, _text("The project: its folder or slug.", kind="project")]
"""A field for the option `--project`, whose default is the current folder."""
_OneProject = Annotated[str, _text("The project: its folder or slug.", kind="one_project")]
"""A field for the option `--project`, whose default is every project."""
_AgentName = Annotated[str, _text("The agent.", metavar="NAME", complete="agents")]
_RunId = Annotated[
    str,
    Meta(min_length=1),
    _text(
        "The run's id, its dispatch's id, or the first characters of either.", metavar="ID", complete="runs"
    ),
]
_QuestionNumber = Annotated[str, Meta(description="the question's number, or its first digits")]
_WholeNumber = Annotated[
    str | int,
    Meta(description="the number, or its first digits; as a JSON number: all six digits"),
]
_TokenName = Annotated[str, _text("The token's name.")]
_PersonName = Annotated[str, _text("The person, as agents write it: human:NAME.")]
_ScheduleName = Annotated[str, _text("The schedule's name.")]
_Platform = Annotated[str, _text("The channel, such as telegram.")]
_OutboxId = Annotated[str, _text("The id of the message, or its first characters.")]


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON body of a change."""


class Query(msgspec.Struct, frozen=True):
    """The parameters of an address; other parameters are ignored."""


class NoFields(Query, frozen=True):
    """No fields."""


class OfProject(Query, frozen=True):
    """A project, or all."""

    project: _OneProject | None = None


class AgentNamed(Command, frozen=True):
    """An agent of a project."""

    project: _Project
    agent: _AgentName


class RunNamed(Command, frozen=True):
    """A run."""

    run: _RunId


class CancelRun(Command, frozen=True):
    """A run, and the person who cancels the run."""

    run: _RunId
    by: Annotated[
        str, Meta(max_length=64), _text("Your name, for the record.", name="--by", metavar="NAME")
    ] = ""


class ScheduleNamed(Command, frozen=True):
    """A schedule."""

    name: _ScheduleName


class UndeliveredNamed(Command, frozen=True):
    """A message that no chat took."""

    outbox_id: _OutboxId


def _row(
    command: type[Command | Query], run: Callable[..., Any], address: str, line: str = "", **more: Any
) -> Operation:
    name = "".join(f"_{char.lower()}" if char.isupper() else char for char in command.__name__)
    return Operation(
        name=name.strip("_"),
        command=command,
        run=run,
        address=address,
        changes=not address.startswith("GET "),
        needs=ADMIN,
        line=line,
        **more,
    )


def _named(
    name: str,
    doc: str,
    command: type[Command | Query],
    run: Callable[..., Any],
    address: str,
    line: str = "",
    **more: Any,
) -> Operation:
    return replace(_row(command, run, address, line, **more), name=name, doc=doc)


def _of(service: type[Any], *rows: Operation, who: Who = Who.ADMINS) -> tuple[Operation, ...]:
    return tuple(replace(row, service=service, who=who) for row in rows)


# Named tokens. The client makes a token and sends only its hash. Only the server's own token opens these
# addresses, because a caller who can make tokens can do everything.


class ListTokens(Query, frozen=True):
    """List the tokens: their rights, expiry and last use. Tokens themselves are not shown."""

    all: Annotated[bool, Meta(description="Also list expired and revoked tokens.")] = False


class CreateToken(Command, frozen=True):
    """Store a new token by its hash. The same call again stores no second token."""

    name: _TokenName
    id: Annotated[str, Meta(description="12 letters and digits")]
    hash: Annotated[str, Meta(description="the SHA-256 of `prt_<id>_<secret>`")]
    scopes: list[str]
    project: str | None = None
    life_seconds: _Seconds | None = None


class RevokeToken(Command, frozen=True):
    """Revoke every token with this name now, also in an overlap period. Without a token, nothing happens."""

    name: _TokenName


class RotateToken(Command, frozen=True):
    """Replace a token by a new token with the same rights. The old token expires after the overlap."""

    name: _TokenName
    id: str
    hash: str
    overlap_seconds: _Seconds


async def list_tokens(tokens: NamedTokens, *, all: bool) -> Sequence[TokenView]:
    """Return the valid tokens, or also the tokens that have ended."""
    return await tokens.listed(ended=all)


async def create_token(tokens: NamedTokens, command: CreateToken) -> TokenView:
    """Store a token."""
    life = None if command.life_seconds is None else timedelta(seconds=command.life_seconds)
    return await tokens.create(
        command.name, command.id, command.hash, command.scopes, project=command.project, life=life
    )


async def rotate_token(tokens: NamedTokens, command: RotateToken) -> TokenView:
    """Replace a token."""
    overlap = timedelta(seconds=command.overlap_seconds)
    return await tokens.rotate(command.name, command.id, command.hash, overlap=overlap)


_TOKENS: Final = _of(
    NamedTokens,
    _row(ListTokens, list_tokens, "GET /admin/tokens", "tokens list", answer_key="tokens"),
    _row(CreateToken, create_token, "POST /admin/tokens"),
    _row(RevokeToken, NamedTokens.revoke, "DELETE /admin/tokens", "tokens revoke NAME", answer_key="revoked"),
    _row(RotateToken, rotate_token, "POST /admin/tokens/rotate"),
    who=Who.OPERATOR,
)


# The server itself.


class ShowProgress(Query, frozen=True):
    """Show the progress of long work that another request waits for. Empty if no such work runs."""

    of: Annotated[
        str, Meta(description="the path of the request that reports its progress, such as /admin/backup")
    ] = ""


class CheckInstallation(Query, frozen=True):
    """Check the installation, as `postroom doctor` does."""

    full: Annotated[bool, Meta(description="compare each record with the archive")] = False


class RepairInstallation(Command, frozen=True):
    """Repair what can be repaired without a loss, then run the checks."""

    full: bool = False
    dry_run: bool = False


class WriteBackup(Command, frozen=True):
    """Write a verified backup of the database. Without a target, it goes to the backups folder."""

    target: Annotated[str, Meta(description="an absolute path on the server's machine")] | None = None


class MakeLoginLink(Command, frozen=True):
    """Print a link to the pages. The link works once, within 10 minutes."""

    path: Annotated[str, _text("The page to open, such as /p/shop/runs.", complete="pages")] = "/"


class MergeProjects(Command, frozen=True):
    """Merge a project into another, then delete the first."""

    source: str
    target: str
    renames: Annotated[
        dict[str, str], Meta(description="new names of agents of the first project, by the old names")
    ] = {}
    rename_equal: Annotated[
        bool, Meta(description="whether each agent whose name exists in both projects gets a new name")
    ] = False
    dry_run: bool = False


class MoveProject(Command, frozen=True):
    """Change the folder of a project after you moved it. Agents, messages, ids and the slug stay.

    The old path still names the project. A renamed folder needs no command: the next registration or session
    there finds the project again.
    """

    project: Annotated[
        str,
        _text(
            "A folder or a slug. A folder of this name in the current folder takes precedence.",
            kind="named_project",
            metavar="PATH|SLUG",
            complete="projects",
        ),
    ]
    folder: Annotated[str, _text("The new folder of the project.", kind="folder")]


class Prune(Command, frozen=True):
    """Delete the messages that no [[keep]] rule keeps.

    A running server does this every hour, in small steps, so that other work continues.
    """

    dry_run: Annotated[bool, Meta(description="Only count the messages, and delete none.")] = False


class RebuildArchive(Command, frozen=True):
    """Write the records of the database to the Git archive, of one project or of all."""

    project: str | None = None


async def write_backup(server: AdminService, target: str | None) -> BackupView:
    """Write a backup.

    Raises:
        InvalidPath: The target is not an absolute path.
    """
    if target is None:
        return await server.back_up(None)
    path = Path(target)
    if not path.is_absolute() or "\0" in target or len(target) > _MAX_PATH_LENGTH:
        raise InvalidPath(
            "the target is not an absolute path",
            value=target[:200],
            remedy="send an absolute path on the server's machine",
        )
    return await server.back_up(path)


_SERVER: Final = (
    *_of(LongWork, _row(ShowProgress, LongWork.progress, "GET /admin/progress")),
    *_of(
        AdminService,
        _named(
            "show_status",
            "Show the server's state: its version, data folder and counts.",
            NoFields,
            AdminService.status,
            "GET /admin/status",
        ),
        _named(
            "show_cluster",
            "List the running servers, and for each task that only one server does at a time: which "
            "server does it, and since when.",
            NoFields,
            AdminService.cluster,
            "GET /admin/cluster",
            "cluster status",
        ),
        _named(
            "list_projects",
            "List every project: its slug and its folder.",
            NoFields,
            AdminService.projects,
            "GET /admin/projects",
            "projects list",
            answer_key="projects",
        ),
        _row(CheckInstallation, AdminService.doctor, "GET /admin/doctor", doing="checking the installation"),
        _row(
            RepairInstallation, AdminService.repair, "POST /admin/doctor", doing="checking the installation"
        ),
        _named(
            "collect_support_bundle",
            "Collect the content of `postroom support-bundle`, as texts by file name.",
            NoFields,
            AdminService.support_bundle,
            "GET /admin/support-bundle",
            answer_key="files",
            doing="checking the installation",
        ),
        _row(WriteBackup, write_backup, "POST /admin/backup", doing="writing the backup"),
        _named(
            "issue_agent_token",
            "Create a new token for an agent. It is shown once and replaces the previous token.",
            AgentNamed,
            AdminService.issue_agent_token,
            "POST /admin/agent-token",
            "agents token AGENT",
            answer_key="token",
        ),
        _named(
            "revoke_agent_token",
            "Revoke an agent's token. An agent without a token is left as it is.",
            AgentNamed,
            AdminService.revoke_agent_token,
            "DELETE /admin/agent-token",
            "agents revoke-token AGENT",
            answer_key="revoked",
        ),
    ),
    *_of(
        LoginService,
        _row(MakeLoginLink, LoginService.make_link, "POST /admin/login-code", "open PATH"),
    ),
    *_of(
        AdminService,
        _row(MergeProjects, AdminService.merge_projects, "POST /admin/projects/merge", doing="merging"),
        _row(
            MoveProject,
            AdminService.move_project,
            "POST /admin/projects/move",
            "projects move PROJECT FOLDER",
        ),
        _row(Prune, AdminService.prune, "POST /admin/prune", "prune", doing="looking for messages"),
        _row(
            RebuildArchive,
            AdminService.rebuild_archive,
            "POST /admin/rebuild-archive",
            doing="writing the archive",
        ),
    ),
)


# People to whom agents may write by name, and the people's chats.


class AddPerson(Command, frozen=True):
    """Let agents write to a person, or change the chat of a person.

    Without a chat the person reads messages on the pages.
    """

    name: _PersonName
    chat: (
        Annotated[str, _text("The chat for the messages, such as telegram/123456.", metavar="PLATFORM/ID")]
        | None
    ) = None


class RemovePerson(Command, frozen=True):
    """Stop agents from writing to a person. Stored messages stay."""

    name: _PersonName


_PEOPLE: Final = _of(
    PeopleService,
    _named(
        "list_people",
        "List the people whom agents may write to.",
        NoFields,
        PeopleService.everybody,
        "GET /admin/people",
        "people list",
        answer_key="people",
    ),
    _row(AddPerson, PeopleService.add, "PUT /admin/people", "people add NAME"),
    _row(RemovePerson, PeopleService.remove, "DELETE /admin/people", "people remove NAME"),
)


# Runners. A runner states how the server runs an agent for which mail arrives.


class ListRunners(Query, frozen=True):
    """List the agents that the server runs, and how."""

    project: _Project | None = None


class SetRunner(Command, frozen=True):
    """Set the runner of an agent: the server starts a run when mail arrives for it."""

    project: _Project
    agent: _AgentName
    runner: Annotated[dict[str, Json], Meta(description='such as `{"argv": ["..."]}`')]


_RUNNERS: Final = _of(
    RunnerService,
    _row(ListRunners, RunnerService.declared, "GET /admin/runners", "agents runners", answer_key="runners"),
    _row(SetRunner, RunnerService.declare, "PUT /admin/runners"),
    _named(
        "remove_runner",
        "Remove the runner of an agent: the server starts no further runs of it. "
        "Its mail waits in its inbox.",
        AgentNamed,
        RunnerService.withdraw,
        "DELETE /admin/runners",
        "agents unset-runner AGENT",
    ),
)


# Runs of agents, messages that wait for a run, and dead letters.


class ShowRun(Query, frozen=True):
    """Show one run and the end of its output, or its whole output."""

    run: _RunId
    output: Literal["", "end", "whole"] = ""


class ShowControlRoom(Query, frozen=True):
    """Show a project's control room: what needs a person, runs, and waiting messages."""

    project: _Project


async def list_runs(runs: WorkService, project: str | None) -> RunsView:
    """Return the runs, and the messages that wait for the next run."""
    slug = "" if project is None else await runs.slug(project)
    works, waiting = await runs.works(slug), await runs.store.read(partial(runs.waiting, slug=slug))
    return {"runs": works, "waiting": waiting}


async def show_run(runs: WorkService, run: str, output: str) -> WorkOutput:
    """Return a run with its output."""
    work = await runs.named(run)
    result = await runs.output(work.run_id, whole=output == "whole")
    fields = {name: getattr(work, name) for name in Work.__dataclass_fields__}
    return WorkOutput(**fields, output=result.text, output_is_cut=result.is_cut)


async def show_control_room(runs: WorkService, project: str) -> Floor:
    """Return the control room of a project."""
    slug, health = await runs.slug(project), await runs.health()
    return await runs.store.read(partial(runs.floor, slug=slug, health=health))


_RUNS: Final = _of(
    WorkService,
    _named(
        "list_runs",
        "List the runs of agents: open runs, then recently ended runs.\n\n"
        "Without a project the open and failed runs of chats are listed, too. The answer also contains the "
        "messages that wait for the next run.",
        OfProject,
        list_runs,
        "GET /admin/runs",
        "runs list",
    ),
    _row(ShowRun, show_run, "GET /admin/runs/one"),
    _row(ShowControlRoom, show_control_room, "GET /admin/floor", "runs overview"),
    _named(
        "list_dead_letters",
        "List the dead letters: failed runs that wait for a person, oldest first, and why they failed.\n\n"
        "At most 500 are listed. `replay` executes a dead letter again, `discard` removes it from the list.",
        NoFields,
        WorkService.dead,
        "GET /admin/runs/dead",
        "runs dead",
        answer_key="dead",
    ),
    _named(
        "list_failed_runs",
        "List the dead letters in groups: those of one agent that failed with the same error.\n\n"
        "At most 500 dead letters of all projects and chats are listed, the newest first.",
        NoFields,
        WorkService.failed_runs,
        "GET /admin/runs/failed",
        answer_key="failed",
    ),
    _named(
        "cancel_run",
        "Cancel a run that is queued, active or waiting. Its question is withdrawn, and the sender of "
        "its message is notified.",
        CancelRun,
        WorkService.cancel,
        "POST /admin/runs/cancel",
        "runs cancel RUN",
    ),
    _named(
        "hasten_run",
        "Execute a run that waits for its next attempt now.",
        RunNamed,
        WorkService.hasten,
        "POST /admin/runs/hasten",
        "runs hasten RUN",
    ),
    _named(
        "discard_run",
        "Discard a dead letter. Its run stays failed.",
        RunNamed,
        WorkService.discard,
        "POST /admin/runs/discard",
    ),
    _named(
        "replay_run",
        "Replay a dead letter: execute its messages again, in a new run.",
        RunNamed,
        WorkService.replay,
        "POST /admin/runs/replay",
        "runs replay RUN",
    ),
)


# Open tasks, and tasks that wait for a person's check.


class ListOpenTasks(Query, frozen=True):
    """List the open tasks of a project, or of all projects: claimed ones first, at most 50 per project."""

    project: _OneProject | None = None


class DecideTask(Command, frozen=True):
    """Accept or reject a finished task that waits for a person's check, or cancel an open task."""

    project: _Project
    task: Annotated[int, Meta(ge=1), _text("The task's number.")]
    answer: TaskDecision
    person: Annotated[
        str, _text("The person who decides, as in `postroom people list`.", name="--by", metavar="NAME")
    ]
    why: Annotated[str, _text("The reason. It is required for a rejection.", metavar="TEXT")] = ""


async def decide_task(
    runs: WorkService, project: str, task: int, answer: TaskDecision, person: str, why: str
) -> DecidedTaskView:
    """Accept, reject or cancel a task."""
    return await runs.decide_task(project, task, person, answer=answer, why=why)


_TASKS: Final = _of(
    WorkService,
    _row(ListOpenTasks, WorkService.open_tasks, "GET /admin/tasks", answer_key="tasks"),
    _row(DecideTask, decide_task, "POST /admin/tasks/decide", "tasks decide TASK ANSWER"),
)


# Questions that runs ask people.


class ListQuestions(Query, frozen=True):
    """List the open questions of agents, also those in chats, oldest first; snoozed ones come last."""

    limit: Annotated[int, Meta(ge=1, le=500, description="Maximum number of results.")] = 50
    after: Annotated[str, Meta(max_length=600), _text("The value of `next` in the previous answer.")] = ""


class ShowQuestion(Query, frozen=True):
    """Show the record of a question: who asked it, where it was shown, and who answered it and where.

    By a part of its number, a question is found while it is open, and for a week after its answer.
    """

    number: _QuestionNumber


class AnswerQuestion(Command, frozen=True):
    """Answer a question. The first answer counts, whether it comes from a page, a command or a chat."""

    number: _WholeNumber
    answer: Annotated[
        str | bool | dict[str, Any], Meta(description="yes or no, a choice, a text, or the fields of a form")
    ]
    why: Annotated[str, Meta(description="a comment for the agent")] = ""
    by: Annotated[str, Meta(max_length=64, description="the name of the person who answers")] | None = None


class SnoozeQuestion(Command, frozen=True):
    """Snooze a question for everybody: it stays open, and this is neither yes nor no."""

    number: _WholeNumber
    seconds: Annotated[
        float,
        Meta(ge=0, description="0 shows the question again at once; otherwise from 1 second to 90 days"),
    ]
    by: Annotated[str, Meta(max_length=64, description="the name of the person who snoozes")] | None = None


async def list_questions(questions: QuestionService, limit: int, after: str) -> QuestionsView:
    """List a page of the open questions."""
    return await questions.page(limit, after)


async def answer_question(
    questions: QuestionService,
    request: Request,
    number: str | int,
    answer: str | bool | dict[str, Any],
    why: str,
    by: str | None,
) -> AnsweredQuestion:
    """Answer a question.

    The record of each question states whether the command line or another program sent the answer.
    """
    is_ours = request.headers.get("user-agent") == COMMANDS
    at = COMMAND_LINE if is_ours else OVER_HTTP
    return await questions.answer(_as_text(number), answer, why=why, by=_given_name(by), at=at)


async def snooze_question(
    questions: QuestionService, number: str | int, seconds: float, by: str | None
) -> SnoozedQuestion:
    """Snooze a question."""
    if seconds and not 1 <= seconds <= _MAX_SNOOZE:
        span = f"{seconds:g} seconds" if seconds < 1 else f"{seconds / 86_400:,.10g} days"
        raise InvalidArgument(
            f"a question can be snoozed for 1 second to 90 days, not for {span}",
            value=seconds,
            remedy="choose a time within these limits, or 0 to end the snooze; to close the question, answer "
            "it or cancel its run",
        )
    return await questions.snooze(_as_text(number), for_ms=int(seconds * 1_000), by=_given_name(by))


def _as_text(number: str | int) -> str:
    if isinstance(number, int) and not 100_000 <= number <= 999_999:
        raise InvalidArgument(
            "`number` is a JSON number that does not have six digits",
            value=number,
            remedy='pass the number of the question as text: "number": "012345"',
        )
    return str(number)


def _given_name(by: str | None) -> str:
    if by is not None and not by.strip():
        raise InvalidArgument(
            "the name in `by` is blank", value=by, remedy="pass the person's name, or leave out `by`"
        )
    return (by or "").strip()


_QUESTIONS: Final = _of(
    QuestionService,
    _row(ListQuestions, list_questions, "GET /admin/questions", "questions list"),
    _row(ShowQuestion, QuestionService.show, "GET /admin/questions/one", "questions show NUMBER"),
    _row(AnswerQuestion, answer_question, "POST /admin/questions"),
    _row(SnoozeQuestion, snooze_question, "POST /admin/questions/snooze"),
)


# Schedules send a person's message repeatedly.


class AddSchedule(Command, frozen=True):
    """Send a message on a schedule. The same call again changes nothing."""

    name: _ScheduleName
    project: str
    sender: str
    to: list[str]
    subject: str
    body: str
    importance: Importance = "normal"
    ack_required: bool = False
    catch_up: Annotated[
        bool,
        Meta(
            description="add a summary of what happened in the project since the previous message "
            "of the schedule"
        ),
    ] = False
    cron: Annotated[str, Meta(description="such as `0 9 * * MON`")] | None = None
    every_seconds: Annotated[_Span, Meta(description="a time between messages, instead of `cron`")] | None = (
        None
    )
    zone: str = "UTC"
    missed: str = "once"
    overlap: str = "queue"
    jitter_seconds: _Span = 0
    replaces: bool = False


class ShowSchedule(Query, frozen=True):
    """Show a schedule: its message, its times, and the result of the last time."""

    name: _ScheduleName


async def list_schedules(schedules: MailSchedules, project: str | None) -> Sequence[ScheduleView]:
    """Return the schedules of a project, or of all projects."""
    return await schedules.listed("" if project is None else await schedules.slug(project))


async def add_schedule(schedules: MailSchedules, command: AddSchedule) -> ScheduleView:
    """Store a schedule."""
    message = {name: getattr(command, name) for name in ScheduledMessage.__struct_fields__}
    return await schedules.add(
        command.name,
        ScheduledMessage(**message),
        cron=command.cron,
        every=None if command.every_seconds is None else timedelta(seconds=command.every_seconds),
        zone=command.zone,
        missed=command.missed,
        overlap=command.overlap,
        jitter=timedelta(seconds=command.jitter_seconds),
        replaces=command.replaces,
    )


_SCHEDULES: Final = _of(
    MailSchedules,
    _named(
        "list_schedules",
        "List the schedules and their next times.",
        OfProject,
        list_schedules,
        "GET /admin/schedules",
        "schedules list",
        answer_key="schedules",
    ),
    _row(AddSchedule, add_schedule, "POST /admin/schedules"),
    _named(
        "remove_schedule",
        "Remove a schedule. The messages that it has sent stay.",
        ScheduleNamed,
        MailSchedules.remove,
        "DELETE /admin/schedules",
        "schedules remove NAME",
        answer_key="removed",
    ),
    _row(ShowSchedule, MailSchedules.named, "GET /admin/schedules/one", "schedules show NAME"),
    _named(
        "pause_schedule",
        "Pause a schedule. It sends nothing until it is resumed.",
        ScheduleNamed,
        MailSchedules.pause,
        "POST /admin/schedules/pause",
        "schedules pause NAME",
    ),
    _named(
        "resume_schedule",
        "Resume a schedule at its next time. Times missed during the pause are not sent.",
        ScheduleNamed,
        MailSchedules.resume,
        "POST /admin/schedules/resume",
        "schedules resume NAME",
    ),
    _named(
        "trigger_schedule",
        "Send the schedule's message now, even if the schedule is paused. Its times do not change.",
        ScheduleNamed,
        MailSchedules.trigger,
        "POST /admin/schedules/trigger",
        "schedules trigger NAME",
        answer_key="message",
    ),
)


# Chats: the gateway, the people who may write, and undelivered messages.


class PairPerson(Command, frozen=True):
    """Admit a person who wrote to a bot and received a code."""

    platform: _Platform
    code: Annotated[str, Meta(description="The code that the bot gave the person.")]
    role: Annotated[
        Literal["owner", "operator", "member", "viewer"], Meta(description="Role of the person.")
    ] = "member"


class RemoveChatPerson(Command, frozen=True):
    """Remove a person who was admitted with a code."""

    platform: _Platform
    user_id: str


class SendToChat(Command, frozen=True):
    """Send a message to a chat, or to the channel's home.

    The message is stored first, and then delivered like an answer.

    The answer has the status 202 and the id of the stored message.
    """

    platform: _Platform
    text: str
    chat_id: (
        Annotated[str, Meta(description="a chat id; without it, the message goes to the home channel")] | None
    ) = None
    thread_id: str | None = None
    key: (
        Annotated[
            str, Meta(description="a key of your choice; calls with the same key send the message only once")
        ]
        | None
    ) = None


class ReconnectChannel(Command, frozen=True):
    """Reconnect a channel, also after its credential was rejected.

    The channel uses the secrets that were read at the last start of the server.
    """

    platform: _Platform


_CHATS: Final = (
    *_of(
        AdminService,
        _named(
            "show_health",
            "Show whether the server is ready, and the chats: channels, states of accepted messages, "
            "queue.\n\nThe `state` of `gateway` is `off` if the server has no chats.",
            NoFields,
            AdminService.health,
            "GET /health/detailed",
        ),
    ),
    *_of(
        ChatAdministration,
        _row(PairPerson, ChatAdministration.pair, "POST /admin/gateway/pair", "gateway pair PLATFORM CODE"),
        _named(
            "list_chat_people",
            "List the people who may write to the bot, and those who ask for access.",
            NoFields,
            ChatAdministration.people,
            "GET /admin/gateway/people",
        ),
        _row(RemoveChatPerson, ChatAdministration.remove_person, "DELETE /admin/gateway/people"),
        _row(SendToChat, ChatAdministration.send, "POST /admin/gateway/send", status=202),
        _row(
            ReconnectChannel,
            ChatAdministration.reconnect,
            "POST /admin/gateway/reconnect",
            "gateway reconnect PLATFORM",
        ),
    ),
    *_of(
        UndeliveredService,
        _named(
            "list_undelivered",
            "List the dead letters of chats: undelivered messages, and why they failed.",
            NoFields,
            UndeliveredService.dead,
            "GET /admin/gateway/dead",
        ),
        _named(
            "retry_undelivered",
            "Send an undelivered message again.",
            UndeliveredNamed,
            UndeliveredService.revive,
            "POST /admin/gateway/dead",
        ),
        _named(
            "discard_undelivered",
            "Discard an undelivered message permanently.",
            UndeliveredNamed,
            UndeliveredService.discard,
            "DELETE /admin/gateway/dead",
        ),
    ),
)

ADMINISTRATION: Final = (
    *_TOKENS,
    *_SERVER,
    *_PEOPLE,
    *_RUNNERS,
    *_RUNS,
    *_TASKS,
    *_QUESTIONS,
    *_SCHEDULES,
    *_CHATS,
)
ALL_OPERATIONS: Final = (*MAIL_OPERATIONS, *ADMINISTRATION)
