"""Finds senders and recipients, and checks that a call may act as its agent.

People belong to a separate project, in which only postroom itself acts for them. The address of a person is
`human:alice` and, if the person has a chat, also `chat:telegram/123`. A model cannot create a person or act
as a person. The operator adds people. A person answers on the pages, or from the chat that the operator has
assigned.
"""

from contextlib import suppress
from typing import Final

from postroom.contracts.errors import (
    AgentRetired,
    IdentityMismatch,
    NotPermitted,
    PostroomError,
    TokenRequired,
    UnknownAgent,
    UnknownMessage,
    UnknownProject,
    WrongToken,
)
from postroom.contracts.mail import Agent, Message, Project, Recipient
from postroom.contracts.people import ChatAddress
from postroom.contracts.plain_answers import HUMAN, person_name
from postroom.mail.context import ReadContext, WriteContext, token_hash
from postroom.mail.names import nearest, shown
from postroom.mail.projects import CHAT, PEOPLE_KEY, PEOPLE_SLUG, PERSONS, find_project
from postroom.stores.mail.access import ProjectReads, RecordReads

_MAX_AGENTS: Final = 10_000
ACTIVITY_INTERVAL = 30_000
"""Minimum time between two stored updates of an agent's last activity, in milliseconds."""


_EVERYBODY: Final = frozenset({"all", "everybody", "everyone", "*"})
"""The words that models use to address all agents of a project."""


def find_agent(tx: RecordReads, project: Project, name: str) -> Agent:
    """Return the agent of a project by name.

    The name of a person may begin with `human:`.

    Raises:
        UnknownAgent: No agent has the name. The error lists the most similar names.
    """
    if agent := tx.agent(project.id, person_name(name) if project.slug == PEOPLE_SLUG else name):
        return agent
    raise unknown_agent(tx, project, name)


def unknown_agent(tx: RecordReads, project: Project, name: str) -> UnknownAgent:
    """Return the error that a project has no agent with the given name."""
    if name.startswith(PERSONS):
        return UnknownAgent(
            f"{shown(name)} is a person, but only an agent of {project.slug} can act here",
            value=name,
            remedy=(
                "read a person's messages on the web pages (`postroom open`) or in the person's chat; the "
                "operator adds people with `postroom people add NAME`"
            ),
            details={"nearest": [], "project": project.slug},
        )
    if name.casefold() in _EVERYBODY:
        return UnknownAgent(
            f"project {project.slug} has no agent {shown(name)}",
            value=name,
            remedy=(
                "to write to every active agent of the project, set `broadcast` to true and remove this name"
            ),
            details={"nearest": [], "project": project.slug},
        )
    close = nearest(name, (agent.name for agent in tx.agents(project.id, include_retired=False, limit=1_000)))
    hint = f"; similar names: {', '.join(close)}" if close else ""
    if not name.strip():
        hint = "; remove the empty name"
    if "," in name:
        hint = "; names contain no commas: give each recipient separately"
    return UnknownAgent(
        f"project {project.slug} has no agent {shown(name)}{hint}",
        value=name,
        details={"nearest": close, "project": project.slug},
    )


def find_person(tx: RecordReads, projects: ProjectReads, address: str) -> tuple[Project, Agent]:
    """Return the person with a given name, or with an address such as `human:name` or `chat:platform/id`.

    Raises:
        UnknownAgent: No person has that name or that chat. The error lists the most similar names.
    """
    project = projects.project(PEOPLE_KEY)
    everybody = [] if project is None else tx.agents(project.id, include_retired=True, limit=_MAX_AGENTS)
    if address.startswith(CHAT):
        platform, _, chat_id = address.removeprefix(CHAT).partition("/")
        reached = set(tx.reached_at(ChatAddress(platform=platform, chat_id=chat_id)))
        agent = next((person for person in everybody if person.id in reached), None)
    else:
        address = f"{HUMAN}{person_name(address)}"
        name = person_name(address).casefold()
        agent = next((item for item in everybody if item.name.casefold() == name), None)
    if project is not None and agent is not None:
        return project, agent
    close = [
        f"{HUMAN}{name}" for name in nearest(address.partition(":")[2], (item.name for item in everybody))
    ]
    raise UnknownAgent(
        f"there is no person {shown(address)}" + (f"; similar names: {', '.join(close)}" if close else ""),
        value=address,
        remedy="the operator adds people with `postroom people add NAME [--chat PLATFORM/ID]`",
        details={"nearest": close},
    )


def find_address(context: ReadContext, home: Project, address: str) -> tuple[Project, Agent]:
    """Return the project and the agent for `name`, `name@project`, `human:name` or `chat:platform/id`.

    Raises:
        UnknownProject, UnknownAgent: There is no such project or agent.
    """
    if address.startswith(PERSONS):
        return find_person(context.tx, context.projects, address)
    name, at, key = address.partition("@")  # split at the first `@`: a path may contain more
    if not at:
        try:
            return home, find_agent(context.tx, home, address)
        except UnknownAgent as error:
            if remedy := person_remedy(context, address):
                raise UnknownAgent(
                    error.message, value=address, remedy=remedy, details=error.details
                ) from error
            raise
    if not key:
        raise UnknownProject(f"{shown(address)} has no project after '@'", value=address)
    project = find_project(context.projects, key)
    return project, find_agent(context.tx, project, name)


def person_remedy(context: ReadContext, name: str) -> str:
    """Return a hint on how to address a person, or "" if no person has the name."""
    with suppress(UnknownAgent):
        _, person = find_person(context.tx, context.projects, name)
        return f"for the person, write {HUMAN}{person.name}"
    return ""


def check_token(context: ReadContext, agent: Agent) -> None:
    """Raise an error unless the caller may act as `agent`.

    A token in a call is always checked. Only an installation in verified mode requires a token.

    Raises:
        TokenRequired, WrongToken, IdentityMismatch: The caller has not proved that it is the agent.
    """
    if context.caller.agent_id is not None:
        if context.caller.agent_id != agent.id:
            raise IdentityMismatch(
                f"this run belongs to another agent, not to {shown(agent.name)}", value=agent.name
            )
        return
    token = context.caller.agent_token
    if token is None:
        if context.rules.verified and not context.caller.postroom:
            raise TokenRequired(f"this server requires the token of {agent.name}", value=agent.name)
        return
    owner = context.tx.agent_by_token(token_hash(token))
    if owner is None:
        raise WrongToken("this server does not know this agent token")
    if owner.id != agent.id:
        raise IdentityMismatch(f"the token does not belong to {shown(agent.name)}", value=agent.name)


def refuse_unknown_token(context: ReadContext) -> None:
    """Raise `WrongToken` if the call contains an unknown token."""
    token = context.caller.agent_token
    if token is None:
        return
    owner = context.tx.agent_by_token(token_hash(token))
    if owner is None:
        raise WrongToken("this server does not know this agent token")
    context.active.add(owner.id)


def refuse_making(context: ReadContext) -> None:
    """Raise `TokenRequired` or `NotPermitted` unless the caller may create agents."""
    if context.caller.agent_id is not None:
        raise NotPermitted(
            "a run acts as its own agent and cannot create other agents", value=context.caller.agent_id
        )
    if context.rules.verified and not context.caller.operator:
        raise TokenRequired(
            "on this server only the operator creates agents",
            remedy="the operator runs `postroom agents register` and `postroom agents token` on the server",
        )


def refuse_to_speak_for(context: ReadContext, project: Project) -> None:
    """Raise `NotPermitted` if an agent tries to create a person or to act as a person."""
    if project.human_key == PEOPLE_KEY and not context.caller.postroom:
        raise NotPermitted(
            "agents cannot act for a person or create people",
            value=project.slug,
            remedy="the operator adds people with `postroom people add`",
        )


def acting(context: ReadContext, project_key: str, name: str) -> tuple[Project, Agent]:
    """Return the project and the agent of a call, after checking that the caller may act as the agent."""
    project = find_project(context.projects, project_key)
    agent = find_agent(context.tx, project, name)
    refuse_to_speak_for(context, project)
    check_token(context, agent)
    context.active.add(agent.id)
    return project, agent


def acting_active(
    context: WriteContext, project_key: str, name: str, *, may_be_retired: bool = False
) -> tuple[Project, Agent]:
    """Return the project and the agent of a call that changes data, and record the agent's activity.

    Activity extends the agent's reservations.

    Raises:
        AgentRetired: The agent is retired.
    """
    project, agent = acting(context, project_key, name)
    if agent.retired_at is not None and not may_be_retired:
        raise AgentRetired(f"agent {agent.name} is retired", value=agent.name)
    if context.now - agent.last_active_at >= ACTIVITY_INTERVAL:
        context.tx.touch_agent(agent.id, context.now)
    return project, agent


def as_reason(error: PostroomError) -> dict[str, object]:
    """Return an error as an entry in a list of errors."""
    return {"code": error.code, "value": error.value, "message": error.message, "remedy": error.remedy}


def visible_message(
    context: ReadContext, project: Project, agent: Agent, message_id: int
) -> tuple[Message, list[Recipient]]:
    """Return a message and its recipients if the agent can see the message.

    An agent sees the messages of its project, and the messages that the agent received.

    Raises:
        UnknownMessage: The agent cannot see a message with this id.
    """
    at_pages = context.caller.postroom and context.caller.operator
    message = context.tx.message(message_id)
    recipients = context.tx.recipients([message_id])[message_id]
    if message is not None:
        received = any(recipient.agent_id == agent.id for recipient in recipients)
        if message.project_id == project.id or received or at_pages:
            return message, recipients
    newest = [str(entry.message.id) for entry in context.tx.inbox(agent.id, limit=3)]
    hint = f"; the newest messages to {agent.name} are {', '.join(newest)}" if newest else ""
    raise UnknownMessage(f"{agent.name} has no message {message_id}{hint}", value=message_id)
