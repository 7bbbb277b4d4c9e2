"""The log of a project: its events in order, numbered from 1 without gaps.

The store writes an entry in the transaction of the change that it reports, so that neither exists without the
other. An entry names records by their ids. It contains no subject, text, reason or question, so that the log
keeps nothing of a recalled message.

An event that concerns agents of two projects is in the log of each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from postroom.contracts.choices import ContactStatus

EventKind = Literal[
    "project.made",
    "project.merged",
    "agent.registered",
    "agent.changed",
    "agent.retired",
    "agent.unretired",
    "agent.policy_set",
    "agent.runner_set",
    "agent.runner_dropped",
    "message.sent",
    "message.recalled",
    "message.deleted",
    "delivery.announced",
    "delivery.delivered",
    "delivery.handled",
    "delivery.failed",
    "delivery.read",
    "delivery.acknowledged",
    "reservation.made",
    "reservation.renewed",
    "reservation.released",
    "reservation.taken",
    "reservation.expired",
    "task.added",
    "task.changed",
    "task.ready",
    "task.claimed",
    "task.released",
    "task.lease_ended",
    "task.blocked",
    "task.review",
    "task.done",
    "task.cancelled",
    "contact.asked",
    "contact.granted",
    "contact.blocked",
    "run.began",
    "run.waiting",
    "run.ended",
    "run.failed",
    "run.cut_off",
    "question.asked",
    "question.answered",
    "question.withdrawn",
]
EVENT_KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)

OF_CONTACT: Final[Mapping[ContactStatus, EventKind]] = {
    "pending": "contact.asked",
    "approved": "contact.granted",
    "blocked": "contact.blocked",
}

HIDDEN: Final = "hidden"
"""The detail that only readers who know of a hidden copy may see."""
OTHER: Final = "other_id"
"""The detail that names the second agent of a contact."""

Detail = Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """An event before a log numbers it."""

    kind: EventKind
    at: int
    agent_id: int | None = None
    """The agent that acted or, for a delivery, the owner of the inbox."""
    message_id: int | None = None
    reservation_id: int | None = None
    run_id: str | None = None
    detail: Detail = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectEvent:
    """An entry of a project's log."""

    project_id: int
    seq: int
    happening: Happening


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """The range of a log: the entries after `oldest` up to `newest`; both are 0 while it is empty."""

    oldest: int
    newest: int
