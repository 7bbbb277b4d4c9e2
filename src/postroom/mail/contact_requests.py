"""Operations on contacts: ask, answer, list."""

from typing import TypedDict

from postroom.contracts.errors import ContactBlocked, StateError
from postroom.mail.commands import ListContacts, RequestContact, RespondContact
from postroom.mail.desk import Reading, Writing
from postroom.mail.identity import acting, acting_active, find_address
from postroom.mail.views import ContactView, contact_view


class ContactsView(TypedDict):
    """The links from and to an agent, and its own policy."""

    policy: str
    contacts: list[ContactView]


def request_contact(desk: Writing, asked: RequestContact) -> ContactView:
    """Ask an agent to take your mail; harmless when it is asked or granted.

    Raises:
        ContactBlocked: the other has blocked the asker or takes nobody's mail.
    """
    home, asker = acting_active(desk, asked.project_key, asked.agent_name)
    _, other = find_address(desk.tx, home, asked.to)
    if other.id == asker.id:
        raise StateError("an agent needs no contact with itself", value=asked.to, remedy="name another agent")
    link = desk.tx.contact(asker.id, other.id)
    if other.contact_policy == "closed" or (link is not None and link.status == "blocked"):
        raise ContactBlocked(f"{other.name} takes no mail from {asker.name}", value=other.name)
    if link is None:
        link = desk.tx.put_contact(asker.id, other.id, status="pending", reason=asked.reason, now=desk.now)
    return contact_view(link, {asker.id: asker, other.id: other})


def respond_contact(desk: Writing, asked: RespondContact) -> ContactView:
    """Grant another agent's mail, or block it; also without having been asked."""
    home, agent = acting_active(desk, asked.project_key, asked.agent_name)
    _, requester = find_address(desk.tx, home, asked.requester)
    link = desk.tx.put_contact(
        requester.id,
        agent.id,
        status="approved" if asked.accept else "blocked",
        reason=asked.reason,
        now=desk.now,
    )
    return contact_view(link, {requester.id: requester, agent.id: agent})


def list_contacts(desk: Reading, asked: ListContacts) -> ContactsView:
    """List what an agent has asked of others, and others of it."""
    _, agent = acting(desk, asked.project_key, asked.agent_name)
    links = desk.tx.contacts(agent.id)
    agents = desk.tx.agents_by_id(sorted({one.from_id for one in links} | {one.to_id for one in links}))
    return {"policy": agent.contact_policy, "contacts": [contact_view(one, agents) for one in links]}
