"""Contacts: one pure function decides who may write to an agent; the operations change its facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from postroom.contracts.choices import ContactPolicy, RecipientKind
from postroom.contracts.errors import AgentRetired, ContactBlocked, ContactRequired, PostroomError, StateError
from postroom.contracts.mail import Agent, Message, Project, Reach
from postroom.mail.commands import ListContacts, RequestContact, RespondContact
from postroom.mail.context import ReadContext, WriteContext
from postroom.mail.identity import acting, acting_active, find_address
from postroom.mail.projects import PEOPLE_SLUG, address_of
from postroom.mail.views import ContactView, contact_view


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactFacts:
    """The facts about a sender and a recipient at the moment of sending."""

    policy: ContactPolicy
    """The recipient's policy."""
    same_agent: bool = False
    same_project: bool = True
    same_owner: bool = True
    retired: bool = False
    approved: bool = False
    """Whether the recipient has approved this sender."""
    blocked: bool = False
    """Whether the recipient has blocked this sender."""
    answers_recipient: bool = False
    """Whether the message answers a message of the recipient to the sender."""


def refusal(facts: ContactFacts) -> type[PostroomError] | None:
    """Return why the message is refused, or None if it is permitted.

    `closed` and a block override everything: importance, acknowledgement, broadcast, threads and approvals do
    not bypass them.
    """
    if facts.retired:
        return AgentRetired
    if facts.same_agent:
        return None
    if facts.blocked or facts.policy == "closed":
        return ContactBlocked
    if facts.approved or facts.answers_recipient:
        return None
    if facts.policy == "approval":
        return ContactRequired
    return None if facts.same_project or facts.same_owner else ContactRequired


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressee:
    """One recipient of a message before it is written."""

    project: Project
    agent: Agent
    kind: RecipientKind


def refusals(
    context: WriteContext,
    home: Project,
    sender: Agent,
    addressees: Sequence[Addressee],
    *,
    reach: Mapping[int, Reach],
    answered: int | None = None,
) -> dict[int, PostroomError]:
    """Return the agents that refuse the message, each with the reason.

    `answered` is the sender of the message that this one answers, if that message was sent to `sender`.
    """
    found: dict[int, PostroomError] = {}
    for one in addressees:
        granted = reach[one.agent.id].granted
        facts = ContactFacts(
            policy=one.agent.contact_policy,
            same_agent=one.agent.id == sender.id,
            same_project=one.project.id == home.id,
            same_owner=one.project.owner == home.owner and bool(home.owner),
            retired=one.agent.retired_at is not None,
            approved=granted == "approved",
            blocked=granted == "blocked",
            answers_recipient=answered == one.agent.id,
        )
        if (kind := refusal(facts)) is not None:
            name = address_of(one.agent.name, one.project.slug, home.slug)
            what = f"{name} does not accept this message"
            if facts.retired:
                is_person = one.project.slug == PEOPLE_SLUG
                what = f"{name} no longer exists" if is_person else f"{name} is retired"
            found[one.agent.id] = kind(what, value=name)
    return found


def answered_by(context: WriteContext, sender: Agent, message: Message | None) -> int | None:
    """Return the sender of a message if that message was sent to `sender`; else None.

    Agents may read all messages of their project, but only a recipient's answer passes a closed contact.
    """
    if message is None:
        return None
    readers = context.tx.recipients([message.id])[message.id]
    return message.sender_id if any(one.agent_id == sender.id for one in readers) else None


class ContactsView(TypedDict):
    """The contacts from and to an agent, and its policy."""

    policy: str
    contacts: list[ContactView]


def request_contact(context: WriteContext, asked: RequestContact) -> ContactView:
    """Ask an agent to accept your mail; no effect if it was asked or has accepted.

    Raises:
        ContactBlocked: The other agent has blocked the asker or accepts no mail.
    """
    home, asker = acting_active(context, asked.project_key, asked.agent_name)
    abroad, other = find_address(context, home, asked.to)
    if other.id == asker.id:
        raise _with_itself(asked.to)
    link = context.tx.contact(asker.id, other.id)
    if other.contact_policy == "closed" or (link is not None and link.status == "blocked"):
        raise ContactBlocked(f"{other.name} accepts no messages from {asker.name}", value=other.name)
    if link is None:
        link = context.tx.put_contact(
            asker.id, other.id, status="pending", reason=asked.reason, now=context.now
        )
    return contact_view(link, _addresses(home, (home, asker), (abroad, other)))


def respond_contact(context: WriteContext, asked: RespondContact) -> ContactView:
    """Accept another agent's mail, or block it, also without a request."""
    home, agent = acting_active(context, asked.project_key, asked.agent_name)
    abroad, requester = find_address(context, home, asked.requester)
    if requester.id == agent.id:
        raise _with_itself(asked.requester)
    link = context.tx.put_contact(
        requester.id,
        agent.id,
        status="approved" if asked.accept else "blocked",
        reason=asked.reason,
        now=context.now,
    )
    return contact_view(link, _addresses(home, (home, agent), (abroad, requester)))


def list_contacts(context: ReadContext, asked: ListContacts) -> ContactsView:
    """List the contact requests that an agent has sent and received."""
    home, agent = acting(context, asked.project_key, asked.agent_name)
    links = context.tx.contacts(agent.id)
    agents = context.tx.agents_by_id(sorted({one.from_id for one in links} | {one.to_id for one in links}))
    projects = {one.project_id: context.tx.project_by_id(one.project_id) for one in agents.values()}
    known = [(place, one) for one in agents.values() if (place := projects[one.project_id]) is not None]
    addresses = _addresses(home, *known)
    return {"policy": agent.contact_policy, "contacts": [contact_view(one, addresses) for one in links]}


def _addresses(home: Project, *agents: tuple[Project, Agent]) -> dict[int, str]:
    """Return by agent the address with which `home` writes to it."""
    return {one.id: address_of(one.name, place.slug, home.slug) for place, one in agents}


def _with_itself(name: str) -> StateError:
    return StateError(
        "an agent needs no contact with itself", value=name, remedy="use the name of another agent"
    )
