"""Permission to write to an agent: one pure function over facts, which cannot be bypassed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from postroom.contracts.choices import ContactPolicy, RecipientKind
from postroom.contracts.errors import AgentRetired, ContactBlocked, ContactRequired, PostroomError
from postroom.contracts.mail import Agent, Message, Project, Reach
from postroom.mail.context import WriteContext
from postroom.mail.projects import PEOPLE_SLUG, address_of


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
