"""Who may write to whom: one pure function over facts, and nothing goes round it."""

from dataclasses import dataclass

from postroom.contracts.errors import AgentRetired, ContactBlocked, ContactRequired, PostroomError
from postroom.contracts.mail import ContactPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactFacts:
    """What is known of a sender and a recipient at the moment of sending."""

    policy: ContactPolicy
    """The recipient's."""
    same_agent: bool = False
    same_project: bool = True
    same_owner: bool = True
    retired: bool = False
    approved: bool = False
    """The recipient has approved this sender."""
    blocked: bool = False
    """The recipient has blocked this sender."""
    answers_recipient: bool = False
    """The message answers one that the recipient wrote to the sender."""


def refusal(facts: ContactFacts) -> type[PostroomError] | None:
    """Return why mail may not pass, or None when it may.

    `closed` and a block stand above everything else: importance, acknowledgement, broadcast, threads and
    approvals do not go round them.
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
