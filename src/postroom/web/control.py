"""The control room, a project's first page: what needs a person, who is on what, what waits and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from postroom.contracts.mail import InboxEntry, Message, Recipient, Reservation
from postroom.contracts.store import MailReads
from postroom.contracts.work import Floor
from postroom.mail import conversation
from postroom.mail.conflicts import Conflict, conflicts
from postroom.mail.projects import PEOPLE_KEY
from postroom.web import reading
from postroom.web.frame import LEASES
from postroom.web.views import Overview

UNREAD: Final = 5
"""Messages to the person at the page that are shown."""
LATELY: Final = 60
"""The newest messages of a project, among which those are looked for that nobody has read."""
OWED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedMessage:
    """A message that some of its readers have not read, or not acknowledged where it asks for that."""

    message: Message
    missing: Sequence[Recipient]
    readers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPage:
    """What the control room shows."""

    overview: Overview
    floor: Floor
    conflicts: Sequence[Conflict]
    mine: Sequence[InboxEntry]
    """The newest messages that the person at the page has not read."""
    owed: Sequence[OwedMessage]
    subjects: Mapping[int, Message]
    holds: Mapping[str, Sequence[Reservation]]
    """What each agent holds, by its name in small letters."""


def control(reads: MailReads, slug: str, floor: Floor, *, me: str, now: int) -> ControlPage:
    """Return what a project's control room shows to the person `me`."""
    overview = reading.overview(reads, slug, now=now)
    project = overview.project
    live = reads.live_reservations(project.id, now=now, limit=LEASES)
    holds: dict[str, list[Reservation]] = {}
    for one in live:
        holds.setdefault(one.holder.casefold(), []).append(one)
    causes = {number for one in (*floor.works, *floor.given_up) for number in one.messages}
    causes |= {one.message for one in floor.waiting}
    known = conversation.here(reads, project, list(reads.messages(sorted(causes)).values()) if causes else [])
    return ControlPage(
        overview=overview,
        floor=floor,
        conflicts=conflicts(live),
        mine=_mine(reads, me),
        owed=_owed(reads, reads.newest_messages(project.id, limit=LATELY)),
        subjects={one.id: one for one in known},
        holds=holds,
    )


def _mine(reads: MailReads, me: str) -> Sequence[InboxEntry]:
    people = reads.project(PEOPLE_KEY)
    person = reads.agent(people.id, me) if people is not None and me else None
    return [] if person is None else reads.inbox(person.id, limit=UNREAD, unread_only=True)


def _owed(reads: MailReads, lately: Iterable[Message]) -> list[OwedMessage]:
    messages = [one for one in lately if one.recalled_at is None][::-1]
    readers = reads.recipients([one.id for one in messages]) if messages else {}
    found = []
    for one in messages:
        seen = [reader for reader in readers.get(one.id, []) if reader.kind != "bcc"]
        missing = [
            reader for reader in seen if (reader.acked_at if one.ack_required else reader.read_at) is None
        ]
        if missing:
            found.append(OwedMessage(message=one, missing=missing, readers=len(seen)))
    return found[:OWED]
