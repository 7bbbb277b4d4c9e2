"""Senders and recipients: the agent that a call names, checked against its token, and its addressees.

People with messages are in a separate project, where only postroom itself acts for them. The address of a
person is `human:alice`, and for a person with a chat also `chat:telegram/123`. A model can neither create a
person nor act as one: the operator names people, and a person answers from the pages or from a chat that the
operator gave them.
"""

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
from postroom.mail.context import ReadContext, WriteContext, token_hash
from postroom.mail.names import nearest, shown
from postroom.mail.projects import CHAT, HUMAN, PEOPLE_KEY, PERSONS, find_project
from postroom.stores.mail.access import ProjectReads, RecordReads

_MOST: Final = 10_000
ACTIVITY_INTERVAL = 30_000
"""Minimum milliseconds between two stored signs of an agent's activity."""


_EVERYBODY: Final = frozenset({"all", "everybody", "everyone", "*"})
"""Words that models use for every agent of a project."""


def find_agent(tx: RecordReads, project: Project, name: str) -> Agent:
    """Return the project's agent with this name.

    Raises:
        UnknownAgent: No agent has the name; the error lists the nearest names.
    """
    if agent := tx.agent(project.id, name):
        return agent
    raise unknown_agent(tx, project, name)


def unknown_agent(tx: RecordReads, project: Project, name: str) -> UnknownAgent:
    """Return the error for a name that no agent of the project has."""
    if name.startswith(PERSONS):
        return UnknownAgent(
            f"{shown(name)} is a person, but only an agent of {project.slug} can act here",
            value=name,
            remedy=(
                "read a person's messages on the pages (`postroom open`) or in the person's chat; the "
                "operator adds people with `postroom people add NAME`"
            ),
            details={"nearest": [], "project": project.slug},
        )
    if name.casefold() in _EVERYBODY:
        return UnknownAgent(
            f"project {project.slug} has no agent {shown(name)}",
            value=name,
            remedy=(
                "to write to every active agent of the project, set broadcast to true and remove this name"
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
    """Return the person that `human:name` or `chat:platform/id` names.

    Raises:
        UnknownAgent: No agent or person has that name or that chat; the error lists the nearest names.
    """
    project = projects.project(PEOPLE_KEY)
    everybody = [] if project is None else tx.agents(project.id, include_retired=True, limit=_MOST)
    if address.startswith(CHAT):
        platform, _, chat_id = address.removeprefix(CHAT).partition("/")
        reached = set(tx.reached_at(ChatAddress(platform=platform, chat_id=chat_id)))
        found = next((person for person in everybody if person.id in reached), None)
    else:
        name = address.removeprefix(HUMAN).casefold()
        found = next((one for one in everybody if one.name.casefold() == name), None)
    if project is not None and found is not None:
        return project, found
    close = [f"{HUMAN}{one}" for one in nearest(address.partition(":")[2], (one.name for one in everybody))]
    raise UnknownAgent(
        f"there is no person {shown(address)}" + (f"; similar names: {', '.join(close)}" if close else ""),
        value=address,
        remedy="the operator adds people with `postroom people add NAME [--chat PLATFORM/ID]`",
        details={"nearest": close},
    )


def find_address(context: ReadContext, home: Project, address: str) -> tuple[Project, Agent]:
    """Return project and agent of a `name`, a `name@project`, a `human:name` or a `chat:platform/id`.

    Raises:
        UnknownProject, UnknownAgent: No project or agent has that name.
    """
    if address.startswith(PERSONS):
        return find_person(context.tx, context.projects, address)
    name, at, key = address.partition("@")  # the first: no name holds one, but the path of a folder may
    if not at:
        return home, find_agent(context.tx, home, address)
    if not key:
        raise UnknownProject(f"{shown(address)} has no project after '@'", value=address)
    project = find_project(context.projects, key)
    return project, find_agent(context.tx, project, name)


def check_token(context: ReadContext, agent: Agent) -> None:
    """Allow the caller to act as `agent`, or raise.

    A given token is checked in every mode; only a verified installation requires one. An agent whose run the
    server executes needs none.

    Raises:
        TokenRequired, WrongToken, IdentityMismatch: The caller is not proved to be the agent.
    """
    if context.caller.agent_id is not None:
        if context.caller.agent_id != agent.id:
            raise IdentityMismatch(f"this run does not belong to {shown(agent.name)}", value=agent.name)
        return
    token = context.caller.agent_token
    if token is None:
        if context.rules.verified and not context.caller.postroom:
            raise TokenRequired(f"this server requires the token of {agent.name}", value=agent.name)
        return
    owner = context.tx.agent_by_token(token_hash(token))
    if owner is None:
        raise WrongToken("this server does not know the agent token")
    if owner.id != agent.id:
        raise IdentityMismatch(f"the token does not belong to {shown(agent.name)}", value=agent.name)


def refuse_unknown_token(context: ReadContext) -> None:
    """Raise `WrongToken` if the call has an unknown token, whatever it requests."""
    token = context.caller.agent_token
    if token is not None and context.tx.agent_by_token(token_hash(token)) is None:
        raise WrongToken("this server does not know the agent token")


def refuse_making(context: ReadContext) -> None:
    """Raise `TokenRequired` or `NotPermitted` unless the caller may create agents here."""
    if context.caller.agent_id is not None:
        raise NotPermitted(
            "a run acts as its own agent and cannot create others", value=context.caller.agent_id
        )
    if context.rules.verified and not context.caller.operator:
        raise TokenRequired(
            "on this server only the operator creates agents",
            remedy="run `postroom agents register` and `postroom agents token` on the server",
        )


def refuse_to_speak_for(context: ReadContext, project: Project) -> None:
    """Raise `NotPermitted` if a caller other than postroom itself would act for a person, or create one."""
    if project.human_key == PEOPLE_KEY and not context.caller.postroom:
        raise NotPermitted(
            "agents cannot act for a person or create people",
            value=project.slug,
            remedy="the operator adds people with `postroom people add`",
        )


def acting(context: ReadContext, project_key: str, name: str) -> tuple[Project, Agent]:
    """Return the project and the agent that a call acts as, after the check of its identity."""
    project = find_project(context.projects, project_key)
    agent = find_agent(context.tx, project, name)
    refuse_to_speak_for(context, project)
    check_token(context, agent)
    return project, agent


def acting_active(
    context: WriteContext, project_key: str, name: str, *, may_be_retired: bool = False
) -> tuple[Project, Agent]:
    """Return project and agent of a call that changes something, and record the agent's activity.

    Activity extends the agent's reservations; it is stored at most once per interval.

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
    """Return a refusal as an entry of a list of refusals."""
    return {"code": error.code, "value": error.value, "message": error.message, "remedy": error.remedy}


def visible_message(
    context: ReadContext, project: Project, agent: Agent, message_id: int
) -> tuple[Message, list[Recipient]]:
    """Return a message of the agent's project, or one that the agent received, with its recipients.

    A person at the server's pages sees the messages of all projects, as the operator does.

    Raises:
        UnknownMessage: The agent can see no message with this id.
    """
    at_pages = context.caller.postroom and context.caller.operator
    message = context.tx.message(message_id)
    recipients = context.tx.recipients([message_id])[message_id]
    if message is not None:
        received = any(one.agent_id == agent.id for one in recipients)
        if message.project_id == project.id or received or at_pages:
            return message, recipients
    newest = [str(entry.message.id) for entry in context.tx.inbox(agent.id, limit=3)]
    hint = f"; the newest messages to {agent.name} are {', '.join(newest)}" if newest else ""
    raise UnknownMessage(f"{agent.name} has no message {message_id}{hint}", value=message_id)
