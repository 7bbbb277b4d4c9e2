"""The frame of all pages of a project: counts on the tabs, avatars, and the position in the log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from postroom.contracts.mail import Project
from postroom.contracts.work import WorkCounts
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG
from postroom.mail.reservations import conflicts, together
from postroom.services.floor import LEASES
from postroom.stores.mail.access import MailReads
from postroom.web.wording import TONES, tone

NAMED: Final = 200
"""Maximum number of agents, and of people, who get colours in the order in which they joined.

The colours of later agents and people depend on their names.
"""
MAX_REVIEWS: Final = 99
"""Maximum number of counted tasks that wait for a check."""
_STEP: Final = 5
"""The distance between the colours of successive members. Neighbouring colours look similar."""


@dataclass(frozen=True, slots=True)
class Face:
    """The avatar of a name: a circle for a person, or a rounded square for an agent."""

    tone: int
    is_person: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The data that all pages of a project share."""

    after: int = 0
    """The number of the newest entry in the project's log when the page was read."""
    needs: int = 0
    """The number of questions, dead letters, conflicts and finished tasks that wait for a person."""
    questions: int = 0
    open_runs: int = 0
    conflicts: int = 0
    """The number of groups of overlapping reservations."""
    reviews: int = 0
    """The number of finished tasks that wait for a person's check, at most 99."""
    unread: int = 0
    """The number of messages that the viewer has not read."""
    faces: Mapping[str, Face] = field(default_factory=dict)
    faces_in: Mapping[str, Mapping[str, Face]] = field(default_factory=dict)
    """On a page about all projects, the avatars of each project's agents, keyed by the project's slug."""

    def face(self, name: str, *, is_person: bool | None = None, slug: str = "") -> Face:
        """Return the avatar of a name.

        `is_person` is None if the caller does not know whether the name belongs to a person.
        """
        known_face = self.faces_in.get(slug, self.faces).get(name.casefold())
        if known_face is None or (is_person is not None and known_face.is_person != is_person):
            return Face(tone(name), bool(is_person))
        return known_face


EMPTY: Final = Frame()


def frame(  # noqa: PLR0913 - what stands around a page, by name
    reads: MailReads,
    project: Project,
    *,
    after: int,
    work: WorkCounts,
    me: str,
    now: int,
    overlaps: int | None = None,
) -> Frame:
    """Return the frame of a project's pages for the person `me`.

    `overlaps` is the number of groups of overlapping reservations, if the page has counted them already.
    """
    people = reads.project(PEOPLE_KEY)
    if overlaps is None:
        items = conflicts(reads.live_reservations(project.id, now=now, limit=LEASES))
        overlaps = len(together((overlap.first, overlap.second) for overlap in items))
    person = reads.agent(people.id, me) if people is not None and me else None
    reviews = reads.count_reviews(project.id, limit=MAX_REVIEWS)
    return Frame(
        after=after,
        needs=work.for_people + overlaps + reviews,
        questions=work.questions,
        open_runs=work.open_runs,
        conflicts=overlaps,
        reviews=reviews,
        unread=0 if person is None else reads.unread_count(person.id),
        # If an agent and a person have the same name, use the agent's avatar.
        faces={**(faces_of(reads, people) if people else {}), **faces_of(reads, project)},
    )


def faces_of(reads: MailReads, project: Project) -> dict[str, Face]:
    """Return the avatars of a project's members, in the order in which they joined."""
    faces, is_person = dict[str, Face](), project.slug == PEOPLE_SLUG
    for name in reads.member_names(project.id, include_retired=True, limit=NAMED).values():
        faces[name.casefold()] = Face(len(faces) * _STEP % TONES, is_person)
    return faces
