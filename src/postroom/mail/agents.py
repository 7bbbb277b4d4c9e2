"""Operations on projects and agents: register, describe, list and retire agents, and start a session."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypedDict

from postroom.contracts.errors import AgentRetired, InvalidRunner, NameTaken, NotPermitted, StateError
from postroom.contracts.mail import Agent, Project
from postroom.contracts.plain_answers import look_alike
from postroom.contracts.runners import Runner, read_runner, reads_at_work
from postroom.mail.commands import (
    CreateAgentIdentity,
    EnsureProject,
    HealthCheck,
    ListAgents,
    RegisterAgent,
    RetireAgent,
    SetContactPolicy,
    StartSession,
    UnretireAgent,
    Whois,
)
from postroom.mail.context import ReadContext, WriteContext
from postroom.mail.git_identity import complete_identity, is_of_git
from postroom.mail.identity import (
    acting,
    check_token,
    find_address,
    refuse_making,
    refuse_to_speak_for,
)
from postroom.mail.inbox import inbox_views
from postroom.mail.names import check_name, check_new_name, generate_name
from postroom.mail.outgoing import to_archive
from postroom.mail.projects import PEOPLE_SLUG, checked_path, find_project, free_slug, spelling
from postroom.mail.repositories import match_project
from postroom.mail.reservations import ReservationAnswer, reserve_all
from postroom.mail.sending import CHAT, HOOK, INBOX, LIVE, RUNNER
from postroom.mail.tasks import give_back, tell_authors
from postroom.mail.views import (
    AgentView,
    InboxView,
    ProjectView,
    ReservationView,
    agent_view,
    project_view,
    reservation_view,
)
from postroom.mail.waking.asking import close_questions


class WayView(TypedDict):
    """A way to reach an agent with a message.

    `taken` is true for the way that a new message would use. `why` gives the reason.
    """

    way: str
    taken: bool
    why: str


def ways(context: ReadContext, project: Project, agent: Agent) -> list[WayView]:
    """Return the ways to reach an agent with a message, in the order of attempts.

    The list ends with the first usable way.
    """
    if agent.retired_at is not None:
        return [WayView(way=INBOX, taken=False, why="the agent is retired and receives no messages")]
    results = list[WayView]()
    for way, taken, why in _delivery_ways(context, project, agent):
        results.append(WayView(way=way, taken=taken, why=why))
        if taken:
            break
    return results


def _delivery_ways(context: ReadContext, project: Project, agent: Agent) -> Iterator[tuple[str, bool, str]]:
    reach = context.tx.reach(agent.id, [agent.id]).get(agent.id)
    if project.slug == PEOPLE_SLUG:
        has_chat = reach is not None and reach.is_woken
        yield (
            CHAT,
            has_chat,
            "the person has a chat" if has_chat else "the person has no chat: `postroom people add`",
        )
    else:
        stored = context.tx.runner(agent.id)
        if stored is None:
            yield LIVE, False, "the agent has no runner"
            yield RUNNER, False, "the agent has no runner: `postroom agents set-runner`"
        else:
            if reads_at_work(stored.runner):
                yield LIVE, False, "only a message on the thread of an active run is passed to that run"
            else:
                yield LIVE, False, "the agent's runner passes messages to a run only at its start"
            try:
                runner = read_runner(stored.runner)
            except InvalidRunner as error:
                why = f"a run starts, and will fail: {error.describe()}"
            else:
                recipe = f", {runner.recipe.value}" if isinstance(runner, Runner) else ""
                why = f"a run starts now, or when the active run has ended: {runner.kind.value}{recipe}"
            yield RUNNER, True, why
        has_session = reach is not None and reach.has_session
        yield (
            HOOK,
            has_session,
            "a client with hooks has acted as this agent; its hooks announce messages at the client's "
            "next step; an idle Claude Code or Codex starts a turn, and so does Copilot CLI with postroom's "
            "extension; other idle clients wait for their user"
            if has_session
            else "no client with hooks has acted as this agent: `postroom setup`",
        )
    yield INBOX, True, "the agent gets no notification of messages: it must fetch its inbox"


GENERATION_TRIES = 32
MAX_COMPARISONS = 1_000
"""Maximum number of existing agents whose names are compared with a new name."""


class AgentsView(TypedDict):
    """A page of the agents of a project, by id.

    `next` is the cursor of the next page, or null on the last page.
    """

    agents: list[AgentView]
    next: int | None


class WhoisView(AgentView):
    """An agent with its unread messages, its reservations and its ways to receive messages."""

    project: str
    unread: int
    last_seq: int
    reservations: list[ReservationView]
    ways: list[WayView]


class SessionView(TypedDict):
    """The project, agent, inbox and reservations that an agent needs at the start of a session."""

    project: ProjectView
    agent: AgentView
    unread: int
    inbox: list[InboxView]
    reservations: ReservationAnswer | None


class RotatedToken(TypedDict):
    """The path of the server's file that holds the agent's new token."""

    agent: str
    token_file: str


class HealthView(TypedDict):
    """The status of the server with the number of projects, agents and messages."""

    status: str
    projects: int
    agents: int
    messages: int
    archive_backlog: int


def ensure_project(context: WriteContext, asked: EnsureProject) -> ProjectView:
    """Return the project of a folder, and create a missing project."""
    return project_view(_ensure_project(context, asked.human_key, asked.git_identity))


def _ensure_project(context: WriteContext, human_key: str, git_identity: str = "") -> Project:
    path = checked_path(human_key)
    read = context.recognition
    identity = git_identity or (read.folder.identity if read is not None else "")
    is_run = context.caller.agent_id is not None
    _note_identities(context, {} if is_run or read is None else read.identities)
    if project := context.projects.project(path):
        is_known = is_of_git(project.git_identity) or project.git_identity == identity
        _note_identities(context, {project.id: identity} if not (is_known or is_run) else {})
        return project
    home = path if git_identity or read is None else read.folder.lasting
    names = {path} if git_identity or read is None else {path, read.folder.top}
    known_project = match_project(
        context.projects,
        None if read is None else read.folder,
        identity
        if git_identity or is_of_git(identity)
        else "",  # the project of a renamed folder has been moved already
        is_said=bool(git_identity),
    )
    if known_project is not None:
        _note_names(context, known_project, names)
        if (whole := complete_identity(known_project.git_identity, identity)) != known_project.git_identity:
            context.tx.set_git_identity(known_project.id, whole)
        return known_project
    if is_run:
        raise NotPermitted(
            "a run cannot create a project",
            value=path,
            remedy="use an existing project, or create one outside of a run with `postroom`",
        )
    made = context.projects.insert_project(
        slug=free_slug(context.projects, home),
        human_key=home,
        spelling=spelling(home),
        git_identity=identity,
        owner=context.rules.owner,
        now=context.now,
    )
    _note_names(context, made, names)
    return made


def _note_names(context: WriteContext, project: Project, folders: Iterable[str]) -> None:
    for folder in sorted(folders):
        if folder != project.human_key:
            context.projects.add_project_alias(project.id, folder)


def _note_identities(context: WriteContext, identities: Mapping[int, str]) -> None:
    for project_id, identity in identities.items():
        if identity:
            context.tx.set_git_identity(project_id, identity)


def register_agent(context: WriteContext, asked: RegisterAgent) -> AgentView:
    """Register an agent, or update the description of an agent that already has the name."""
    project = find_project(context.projects, asked.project_key)
    return agent_view(_update_agent(context, project, asked))


def _update_agent(context: WriteContext, project: Project, asked: RegisterAgent | StartSession) -> Agent:
    refuse_to_speak_for(context, project)
    if asked.name is None:
        return _create_agent(context, project, asked)
    name = check_name(asked.name, of="a person" if project.slug == PEOPLE_SLUG else "an agent")
    known_agent = context.tx.agent(project.id, name)
    if known_agent is None:
        check_new_name(name)
        active = context.tx.active_agents(project.id, limit=MAX_COMPARISONS)
        if other := look_alike(name, (agent.name for agent in active)):  # such as `Ben.` or `B-en` for `Ben`
            raise NameTaken(
                f"{name!r} looks like the existing agent {other!r}",
                value=name,
                remedy=(
                    f"use {other!r} if you are that agent, or a name that differs by letters or digits, such "
                    f"as '{other}-2'"
                ),
            )
        return _create_agent(context, project, asked, name=name)
    if known_agent.name != name:
        raise NameTaken(
            f"agent {known_agent.name!r} already exists, and its name differs from {name!r} only in upper "
            f"and lower case",
            value=name,
            remedy=f"use {known_agent.name!r}, or a name such as '{name}-2'",
        )
    check_token(context, known_agent)
    if known_agent.retired_at is not None:
        raise AgentRetired(f"agent {known_agent.name} is retired", value=known_agent.name)
    context.tx.touch_agent(
        known_agent.id, context.now
    )  # this records the activity, and does not change the reservations
    updated = context.tx.update_agent(
        known_agent.id,
        program=asked.program,
        model=asked.model,
        task_description=asked.task_description,
        now=context.now,
    )
    if (known_agent.program, known_agent.model, known_agent.task_description) != (
        updated.program,
        updated.model,
        updated.task_description,
    ):
        to_archive(context, "agent", updated.id, project.id)
    return updated


def create_agent_identity(context: WriteContext, asked: CreateAgentIdentity) -> AgentView:
    """Register an agent under a generated name."""
    project = find_project(context.projects, asked.project_key)
    refuse_to_speak_for(context, project)
    return agent_view(_create_agent(context, project, asked))


def _create_agent(
    context: WriteContext,
    project: Project,
    asked: RegisterAgent | CreateAgentIdentity | StartSession,
    *,
    name: str | None = None,
) -> Agent:
    refuse_making(context)
    if not name:
        for attempt in range(GENERATION_TRIES):
            name = generate_name(context.dice)
            if attempt >= GENERATION_TRIES // 2:
                name += str(context.dice.randrange(2, 10_000))
            if context.tx.agent(project.id, name) is None:
                break
        else:
            raise StateError(
                f"all generated names for agents of project {project.slug} are in use",
                value=project.slug,
                remedy="choose a name yourself",
            )
    agent = context.tx.insert_agent(
        project.id,
        name=name,
        program=asked.program,
        model=asked.model,
        task_description=asked.task_description,
        now=context.now,
    )
    to_archive(context, "agent", agent.id, project.id)
    return agent


def start_session(context: WriteContext, asked: StartSession) -> SessionView:
    """Register the agent, reserve paths, and return the newest messages of the agent's inbox."""
    known_project = context.projects.project(asked.project_key)
    project = _ensure_project(
        context, asked.project_key if known_project is None else known_project.human_key
    )
    agent = _update_agent(context, project, asked)
    reserved = None
    if asked.reserve_paths:
        reserved = reserve_all(context, project, agent, asked.reserve_paths, ttl_seconds=asked.ttl_seconds)
    entries = (
        context.tx.inbox(agent.id, limit=asked.inbox_limit, unread_only=True) if asked.inbox_limit else []
    )
    return {
        "project": project_view(project),
        "agent": agent_view(agent),
        "unread": context.tx.unread_count(agent.id),
        "inbox": inbox_views(context, project, agent, entries, bodies=False),
        "reservations": reserved,
    }


def whois(context: ReadContext, asked: Whois) -> WhoisView:
    """Return an agent with its reservations and its ways to receive messages."""
    home = find_project(context.projects, asked.project_key)
    project, agent = find_address(context, home, asked.agent_name)
    held = context.tx.live_reservations(project.id, now=context.now, agent_id=agent.id, limit=200)
    return {
        **agent_view(agent),
        "project": project.slug,
        "unread": context.tx.unread_count(agent.id),
        "last_seq": agent.inbox_seq,
        "reservations": [reservation_view(reservation) for reservation in held],
        "ways": ways(context, project, agent),
    }


def list_agents(context: ReadContext, asked: ListAgents) -> AgentsView:
    """List the agents of a project."""
    project = find_project(context.projects, asked.project_key)
    agents = context.tx.agents(
        project.id, include_retired=asked.include_retired, limit=asked.limit, after=asked.after
    )
    return {
        "agents": [agent_view(agent) for agent in agents],
        "next": agents[-1].id if len(agents) == asked.limit else None,
    }


def retire_agent(context: WriteContext, asked: RetireAgent) -> AgentView:
    """Retire an agent, and end the agent's questions, reservations and claims.

    Notify the authors of open tasks that are assigned to the agent. Do nothing if the agent is already
    retired.
    """
    project, agent = acting(context, asked.project_key, asked.agent_name)
    if agent.retired_at is None:
        context.tx.set_agent_retired(agent.id, context.now, now=context.now)
        close_questions(context, project, agent)
        for held in context.tx.live_reservations(project.id, now=context.now, agent_id=agent.id):
            context.tx.release_reservation(held.id, now=context.now, by=agent.name, reason="agent retired")
            to_archive(context, "reservation", held.id, project.id)
        for task in context.tx.tasks_held(agent.id):
            give_back(context, task, by=agent.id, reason=f"{agent.name} was retired")
        tell_authors(context, project, agent)
        to_archive(context, "agent", agent.id, project.id)
    return agent_view(context.tx.agents_by_id([agent.id])[agent.id])


def unretire_agent(context: WriteContext, asked: UnretireAgent) -> AgentView:
    """Unretire an agent, if it is retired."""
    project, agent = acting(context, asked.project_key, asked.agent_name)
    if agent.retired_at is not None:
        context.tx.set_agent_retired(agent.id, None, now=context.now)
        to_archive(context, "agent", agent.id, project.id)
    return agent_view(context.tx.agents_by_id([agent.id])[agent.id])


def set_contact_policy(context: WriteContext, asked: SetContactPolicy) -> AgentView:
    """Set which agents may send mail to the given agent."""
    project, agent = acting(context, asked.project_key, asked.agent_name)
    context.tx.set_contact_policy(agent.id, asked.policy, now=context.now)
    to_archive(context, "agent", agent.id, project.id)
    return agent_view(context.tx.agents_by_id([agent.id])[agent.id])


def health_check(context: ReadContext, asked: HealthCheck) -> HealthView:
    """Return the status of the server and the number of records in the database."""
    del asked
    counts = context.projects.counts(unread=False)  # health checks may be frequent, so they must be cheap
    return {
        "status": "ok",
        "projects": counts["projects"],
        "agents": counts["agents"],
        "messages": counts["messages"],
        "archive_backlog": counts["outbox"],
    }


def rotated_elsewhere(context: WriteContext, asked: object) -> RotatedToken:
    """Raise an error, because only `Mail.perform` can rotate a token."""
    raise StateError(
        "this operation cannot rotate a token; the service does",
        value=type(asked).__name__,
        remedy="call Mail.perform",
    )
