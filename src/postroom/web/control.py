"""The control room, a project's first page: what goes on, and what stands around it for who looks at it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from postroom.contracts.mail import InboxEntry, Message
from postroom.contracts.store import MailReads
from postroom.contracts.work import Floor, Held
from postroom.mail import conversation
from postroom.mail.conflicts import together
from postroom.mail.projects import PEOPLE_KEY
from postroom.web import reading
from postroom.web.views import Overview

SILENCE: Final = 5 * 60_000
"""Milliseconds without output after which the control room says so of an active run."""
UNREAD: Final = 5
"""Messages to the person at the page that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPage:
    """What the control room shows."""

    overview: Overview
    floor: Floor
    mine: Sequence[InboxEntry]
    """The newest messages that the person at the page has not read."""
    subjects: Mapping[int, Message]
    overlaps: Sequence[Sequence[Held]]
    """Reservations that hang together by conflicts, group by group."""


def control(reads: MailReads, slug: str, floor: Floor, *, me: str, now: int) -> ControlPage:
    """Return what a project's control room shows to the person `me`."""
    overview = reading.overview(reads, slug, now=now)
    causes = {number for one in (*floor.works, *floor.given_up) for number in one.messages}
    causes |= {one.message for one in floor.waiting}
    causes |= {number for one in floor.waits for number in one.messages}
    found = list(reads.messages(sorted(causes)).values()) if causes else []
    return ControlPage(
        overview=overview,
        floor=floor,
        mine=_mine(reads, me),
        overlaps=together((one.first, one.second) for one in floor.conflicts),
        subjects={one.id: one for one in conversation.here(reads, overview.project, found)},
    )


def _mine(reads: MailReads, me: str) -> Sequence[InboxEntry]:
    people = reads.project(PEOPLE_KEY)
    person = reads.agent(people.id, me) if people is not None and me else None
    return [] if person is None else reads.inbox(person.id, limit=UNREAD, unread_only=True)
