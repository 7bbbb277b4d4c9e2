"""Operations on projects and agents."""

from typing import TypedDict

from postroom.contracts.errors import NameTaken, StateError
from postroom.contracts.mail import Agent, Project
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
from postroom.mail.desk import Reading, Writing
from postroom.mail.identity import (
    acting,
    check_token,
    find_address,
    refuse_making,
    refuse_retired,
)
from postroom.mail.inbox import inbox_views
from postroom.mail.names import check_name, generated
from postroom.mail.outgoing import to_archive
from postroom.mail.people import refuse_to_speak_for
from postroom.mail.projects import checked_path, find_project, free_slug, spelling
from postroom.mail.reservations import ReservationAnswer, reserve_all
from postroom.mail.views import (
    AgentView,
    InboxView,
    ProjectView,
    ReservationView,
    agent_view,
    project_view,
    reservation_view,
)

GENERATION_TRIES = 32


class AgentsView(TypedDict):
    """Agents of a project, by id; `next` is the cursor of the next page, or null at the end."""

    agents: list[AgentView]
    next: int | None


class WhoisView(AgentView):
    """An agent with its inbox counts and what it holds."""

    project: str
    unread: int
    last_seq: int
    reservations: list[ReservationView]


class SessionView(TypedDict):
    """What an agent needs to begin."""

    project: ProjectView
    agent: AgentView
    unread: int
    inbox: list[InboxView]
    reservations: ReservationAnswer | None


class RotatedToken(TypedDict):
    """Where an agent's new token is: in a file on the server that its user alone can read."""

    agent: str
    token_file: str


class HealthView(TypedDict):
    """The database answered."""

    status: str
    projects: int
    agents: int
    messages: int
    archive_backlog: int


def ensure_project(desk: Writing, asked: EnsureProject) -> ProjectView:
    """Return the project of a folder; it is made by the first call."""
    return project_view(_project_of(desk, asked.human_key, asked.git_identity))


def _project_of(desk: Writing, human_key: str, git_identity: str = "") -> Project:
    path = checked_path(human_key)
    if project := desk.tx.project(path):
        if git_identity and not project.git_identity:
            desk.tx.set_git_identity(project.id, git_identity)
        return project
    spelled = spelling(path)
    for known in desk.tx.projects_spelled(spelled):
        if git_identity and known.git_identity == git_identity:
            desk.tx.add_project_alias(known.id, path)
            return known
    return desk.tx.insert_project(
        slug=free_slug(desk.tx, path),
        human_key=path,
        spelling=spelled,
        git_identity=git_identity,
        owner=desk.rules.owner,
        now=desk.now,
    )


def register_agent(desk: Writing, asked: RegisterAgent) -> AgentView:
    """Register an agent, or update what the one of that name says of itself."""
    project = find_project(desk.tx, asked.project_key)
    return agent_view(_registered(desk, project, asked))


def _registered(desk: Writing, project: Project, asked: RegisterAgent | StartSession) -> Agent:
    refuse_to_speak_for(desk, project)
    if asked.name is None:
        return _made(desk, project, asked)
    name = check_name(asked.name)
    known = desk.tx.agent(project.id, name)
    if known is None:
        return _made(desk, project, asked, name=name)
    if known.name != name:
        raise NameTaken(
            f"{known.name!r} is registered and differs from {name!r} by case alone",
            value=name,
            remedy=f"use {known.name!r}, or a name such as '{name}-2'",
        )
    check_token(desk, known)
    refuse_retired(known)
    desk.tx.touch_agent(known.id, desk.now)  # what follows notes the activity and leaves the reservations
    updated = desk.tx.update_agent(
        known.id,
        program=asked.program,
        model=asked.model,
        task_description=asked.task_description,
        now=desk.now,
    )
    if (known.program, known.model, known.task_description) != (
        updated.program,
        updated.model,
        updated.task_description,
    ):
        to_archive(desk, "agent", updated.id, project.id)
    return updated


def create_agent_identity(desk: Writing, asked: CreateAgentIdentity) -> AgentView:
    """Make a new agent with a generated name."""
    project = find_project(desk.tx, asked.project_key)
    refuse_to_speak_for(desk, project)
    return agent_view(_made(desk, project, asked))


def _made(
    desk: Writing,
    project: Project,
    asked: RegisterAgent | CreateAgentIdentity | StartSession,
    *,
    name: str | None = None,
) -> Agent:
    refuse_making(desk)
    agent = desk.tx.insert_agent(
        project.id,
        name=name or _free_name(desk, project),
        program=asked.program,
        model=asked.model,
        task_description=asked.task_description,
        now=desk.now,
    )
    to_archive(desk, "agent", agent.id, project.id)
    return agent


def _free_name(desk: Writing, project: Project) -> str:
    for attempt in range(GENERATION_TRIES):
        name = generated(desk.dice)
        if attempt >= GENERATION_TRIES // 2:
            name += str(desk.dice.randrange(2, 10_000))
        if desk.tx.agent(project.id, name) is None:
            return name
    raise StateError(
        f"no free name was found in project {project.slug}",
        value=project.slug,
        remedy="choose a name yourself",
    )


def start_session(desk: Writing, asked: StartSession) -> SessionView:
    """Make project and agent if need be, reserve paths and show the head of the inbox."""
    known = desk.tx.project(asked.project_key)
    project = known or _project_of(desk, asked.project_key)
    agent = _registered(desk, project, asked)
    reserved = None
    if asked.reserve_paths:
        reserved = reserve_all(desk, project, agent, asked.reserve_paths, ttl_seconds=asked.ttl_seconds)
    entries = desk.tx.inbox(agent.id, limit=asked.inbox_limit, unread_only=True) if asked.inbox_limit else []
    return {
        "project": project_view(project),
        "agent": agent_view(agent),
        "unread": desk.tx.unread_count(agent.id),
        "inbox": inbox_views(desk, project, agent, entries, bodies=False),
        "reservations": reserved,
    }


def whois(desk: Reading, asked: Whois) -> WhoisView:
    """Say who an agent is and what it holds."""
    home = find_project(desk.tx, asked.project_key)
    project, agent = find_address(desk.tx, home, asked.agent_name)
    held = desk.tx.live_reservations(project.id, now=desk.now, agent_id=agent.id, limit=200)
    return {
        **agent_view(agent),
        "project": project.slug,
        "unread": desk.tx.unread_count(agent.id),
        "last_seq": agent.inbox_seq,
        "reservations": [reservation_view(one) for one in held],
    }


def list_agents(desk: Reading, asked: ListAgents) -> AgentsView:
    """List the agents of a project."""
    project = find_project(desk.tx, asked.project_key)
    found = desk.tx.agents(
        project.id, include_retired=asked.include_retired, limit=asked.limit, after=asked.after
    )
    return {
        "agents": [agent_view(agent) for agent in found],
        "next": found[-1].id if len(found) == asked.limit else None,
    }


def retire_agent(desk: Writing, asked: RetireAgent) -> AgentView:
    """Retire an agent and end its reservations; harmless when it is retired."""
    project, agent = acting(desk, asked.project_key, asked.agent_name)
    if agent.retired_at is None:
        desk.tx.set_agent_retired(agent.id, desk.now)
        for held in desk.tx.live_reservations(project.id, now=desk.now, agent_id=agent.id):
            desk.tx.release_reservation(held.id, now=desk.now, by=agent.name, reason="agent retired")
            to_archive(desk, "reservation", held.id, project.id)
        to_archive(desk, "agent", agent.id, project.id)
    return agent_view(desk.tx.agents_by_id([agent.id])[agent.id])


def unretire_agent(desk: Writing, asked: UnretireAgent) -> AgentView:
    """Bring an agent back; harmless when it is active."""
    project, agent = acting(desk, asked.project_key, asked.agent_name)
    if agent.retired_at is not None:
        desk.tx.set_agent_retired(agent.id, None)
        to_archive(desk, "agent", agent.id, project.id)
    return agent_view(desk.tx.agents_by_id([agent.id])[agent.id])


def set_contact_policy(desk: Writing, asked: SetContactPolicy) -> AgentView:
    """Say whose mail the agent takes."""
    project, agent = acting(desk, asked.project_key, asked.agent_name)
    desk.tx.set_contact_policy(agent.id, asked.policy)
    to_archive(desk, "agent", agent.id, project.id)
    return agent_view(desk.tx.agents_by_id([agent.id])[agent.id])


def health_check(desk: Reading, asked: HealthCheck) -> HealthView:
    """Say that the database answers, and how much it holds."""
    del asked
    counts = desk.tx.counts()
    return {
        "status": "ok",
        "projects": counts["projects"],
        "agents": counts["agents"],
        "messages": counts["messages"],
        "archive_backlog": counts["outbox"],
    }


def rotated_elsewhere(desk: Writing, asked: object) -> RotatedToken:
    """Stand in the table for an operation that needs a file as well and is done by the service."""
    raise StateError(
        "tokens are rotated by the service", value=type(asked).__name__, remedy="call Mail.perform"
    )
