"""Operations on contacts: request a contact, respond to a request, and list contacts."""

from collections.abc import Mapping
from typing import TypedDict

from postroom.contracts.clock import iso
from postroom.contracts.errors import ContactBlocked, StateError
from postroom.contracts.mail import Agent, ContactLink, Project
from postroom.mail.commands import ListContacts, RequestContact, RespondContact
from postroom.mail.context import ReadContext, WriteContext
from postroom.mail.identity import acting, acting_active, find_address
from postroom.mail.projects import format_address


class ContactView(TypedDict):
    """A contact request between two agents, and its status."""

    requester: str
    to: str
    status: str
    reason: str
    created_at: str
    decided_at: str | None


class ContactsView(TypedDict):
    """An agent's contact policy, and the contact requests that the agent sent or received."""

    policy: str
    contacts: list[ContactView]


def request_contact(context: WriteContext, asked: RequestContact) -> ContactView:
    """Ask an agent to accept mail from the caller.

    Do nothing if the caller has already asked the agent.

    Raises:
        ContactBlocked: The other agent has blocked the caller, or accepts no mail.
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
    return _view(link, _addresses(home, (home, asker), (abroad, other)))


def respond_contact(context: WriteContext, asked: RespondContact) -> ContactView:
    """Accept or block mail from an agent, even without a contact request from that agent."""
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
    return _view(link, _addresses(home, (home, agent), (abroad, requester)))


def list_contacts(context: ReadContext, asked: ListContacts) -> ContactsView:
    """Return the contact requests that an agent sent or received, with their statuses."""
    home, agent = acting(context, asked.project_key, asked.agent_name)
    links = context.tx.contacts(agent.id)
    agents = context.tx.agents_by_id(
        sorted({link.from_id for link in links} | {link.to_id for link in links})
    )
    projects = {agent.project_id: context.tx.project_by_id(agent.project_id) for agent in agents.values()}
    known_items = [
        (place, agent) for agent in agents.values() if (place := projects[agent.project_id]) is not None
    ]
    addresses = _addresses(home, *known_items)
    return {"policy": agent.contact_policy, "contacts": [_view(link, addresses) for link in links]}


def _addresses(home: Project, *agents: tuple[Project, Agent]) -> dict[int, str]:
    return {agent.id: format_address(agent.name, place.slug, home.slug) for place, agent in agents}


def _with_itself(name: str) -> StateError:
    return StateError(
        "an agent cannot be its own contact", value=name, remedy="use the name of another agent"
    )


def _view(link: ContactLink, addresses: Mapping[int, str]) -> ContactView:
    return {
        "requester": addresses[link.from_id],
        "to": addresses[link.to_id],
        "status": link.status,
        "reason": link.reason,
        "created_at": iso(link.created_at),
        "decided_at": None if link.decided_at is None else iso(link.decided_at),
    }
