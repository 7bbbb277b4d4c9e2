"""Reads the content and the frame of each page from one snapshot of the store, with few queries.

This module does not produce HTML. The module removes blind copies from the recipients of messages and from
inboxes, so that no page can see them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from postroom.contracts.choices import Importance
from postroom.contracts.errors import UnknownAgent, UnknownMessage, UnknownProject
from postroom.contracts.mail import (
    Agent,
    Attachment,
    Message,
    Project,
    Recipient,
    ThreadHead,
)
from postroom.contracts.waking import MessageRun
from postroom.contracts.work import Work, WorkCounts
from postroom.mail import conversation, sending
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG
from postroom.mail.reservations import conflicts, together
from postroom.markdown import REFERENCE
from postroom.services.floor import LEASES
from postroom.stores.mail.access import MailReads
from postroom.web import links
from postroom.web.wording import TONES, tone

MAX_NAMES_SHOWN = 200
OFFERED = 200
"""Maximum number of agents, and of people, that a filter offers."""
IMPORTANCES: tuple[Importance, ...] = ("low", "normal", "high", "urgent")
BRIEF = 8
"""The number of rows in a list on the first page of a project."""

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The media types that browsers may display in a page.

The type is detected from the bytes, regardless of the sender's claim.
"""

SHOWN_PICTURE = 512 * 1024
"""The maximum size, in bytes, of an image that a page displays without a preview."""

NAMED: Final = 200
"""Maximum number of agents, and of people, who get colours in the order in which they joined.

The colours of later agents and people depend on their names.
"""
MAX_REVIEWS: Final = 99
"""Maximum number of counted tasks that wait for a check."""
_STEP: Final = 5
"""The distance between the colours of successive members. Neighbouring colours look similar."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list, with the cursor of the next page.

    The last page of a list has no cursor.
    """

    rows: Sequence[T]
    next: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRow:
    """A thread in a list, with the first and the newest message."""

    head: ThreadHead
    first: Message | None
    last: Message | None
    importance: Importance
    """The higher importance of the first and the newest message."""
    owed: int
    """The number of missing acknowledgements of the first and the newest message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """A message with all data that a page may show."""

    message: Message
    sender: Agent | None
    home: str | None
    """The slug of the sender's project."""
    recipients: Sequence[Recipient]
    runs: Mapping[int, MessageRun]
    """The runs that received the message, keyed by recipient id."""
    attachments: Sequence[Attachment]
    answers: Message | None
    """The message to which this message replies, if the project may show it."""


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

        `is_person` is None if it is unknown whether the name belongs to a person.
        """
        known_face = self.faces_in.get(slug, self.faces).get(name.casefold())
        if known_face is None or (is_person is not None and known_face.is_person != is_person):
            return Face(tone(name), bool(is_person))
        return known_face


EMPTY: Final = Frame()


def known_project(reads: MailReads, slug: str) -> Project:
    """Return the project with this slug.

    Raises:
        UnknownProject: No project has this slug.
    """
    project = reads.project(slug)
    if project is None:
        raise UnknownProject(f"there is no project {slug!r}", value=slug, remedy="see the list of projects")
    return project


def known_agent(reads: MailReads, project: Project, name: str) -> Agent:
    """Return the agent with this name in a project.

    Raises:
        UnknownAgent: The project has no such agent.
    """
    agent = reads.agent(project.id, name)
    if agent is None:
        raise UnknownAgent(
            f"{project.slug} has no agent {name!r}",
            value=name,
            remedy="see the project's agents",
        )
    return agent


def message(reads: MailReads, project: Project, message_id: int) -> ShownMessage:
    """Return a message that was written in a project or sent to it.

    Raises:
        UnknownMessage: The project has no such message.
    """
    message = reads.message(message_id)
    if message is None or not conversation.here(reads, project, [message]):
        raise UnknownMessage(f"{project.slug} has no message {message_id}", value=message_id)
    return shown_messages(reads, project, [message])[0]


def shown_as(attachment: Attachment) -> str | None:
    """Return the SHA-256 of the image to display for an attachment, or None if there is no image."""
    is_small = attachment.media_type in PICTURES and attachment.size <= SHOWN_PICTURE
    return attachment.preview_sha256 or (attachment.sha256 if is_small else None)


def read_bodies(
    reads: MailReads, project: Project, messages: Sequence[ShownMessage]
) -> tuple[dict[int, str], dict[int, dict[str, str]], dict[int, dict[str, str]]]:
    """Return the texts, image addresses and reference addresses of messages, each keyed by message id."""
    standing = [message for message in messages if message.message.recalled_at is None]
    texts = {message.message.id: message.message.body_md for message in standing}
    pictures = {
        message.message.id: {
            file.name: links.preview(sha256, message.message.id)
            for file in message.attachments
            if (sha256 := shown_as(file)) and file.name
        }
        for message in standing
    }
    return texts, pictures, references(reads, project, texts)


def how_seen(reads: MailReads, shown: ShownMessage) -> list[tuple[str, str]]:
    """Return the recipients that a page may show, and how each recipient has seen the message."""
    seen = sending.how_seen(reads, shown.message, shown.recipients)
    return [(recipient.name, seen[recipient.agent_id]) for recipient in shown.recipients]


def offered_names(reads: MailReads, project: Project | None, chosen: str) -> list[str]:
    """Return the agent names that a filter offers, including the name `chosen`."""
    known_agents = (
        [] if project is None else reads.agents(project.id, include_retired=True, limit=OFFERED + 1)
    )
    names = [agent.name for agent in known_agents]
    return names if not chosen or chosen in names else [chosen, *names]


def subjects_of(
    reads: MailReads, project: Project, works: Iterable[Work], messages: Sequence[int] = ()
) -> dict[int, Message]:
    """Return the messages that started a run or wait for a run, keyed by message id.

    Only messages that the project may show are returned.
    """
    ids = sorted({*messages, *(number for work in works for number in work.messages)})
    items = conversation.here(reads, project, list(reads.messages(ids).values()))
    return {message.id: message for message in items}


def references(reads: MailReads, project: Project, texts: Mapping[int, str]) -> dict[int, dict[str, str]]:
    """Return the addresses of references in texts, such as `#12` for a message and `@lena` for a person.

    A reference to a message gets an address only if the project may show the message. If an agent and a
    person have the same name, the reference points to the agent. At most 200 messages and 200 names are
    looked up.
    """
    words = {
        key: dict.fromkeys(match[0] for match in REFERENCE.finditer(text)) for key, text in texts.items()
    }
    every = dict.fromkeys(word for item in words.values() for word in item)
    numbers = [int(word[1:]) for word in every if word[0] == "#"][:MAX_NAMES_SHOWN]
    names = [word[1:] for word in every if word[0] == "@"][:MAX_NAMES_SHOWN]
    messages = conversation.here(reads, project, list(reads.messages(numbers).values())) if numbers else ()
    known_values = {f"#{message.id}": links.page(project.slug, "m", message.id) for message in messages}
    people = reads.project(PEOPLE_KEY) if names else None
    for name in names:
        for home in (people, project):
            if home is not None and (agent := reads.agent(home.id, name)) is not None:
                known_values[f"@{name}"] = links.page(home.slug, "agents", agent.name)
    return {
        key: {word: known_values[word] for word in fields if word in known_values}
        for key, fields in words.items()
    }


def cut(found: Sequence[T], limit: int, number: Callable[[T], int]) -> Page[T]:
    """Return a page of at most `limit` rows, with the cursor of the next page if there are more rows."""
    shown = found[:limit]
    return Page(shown, number(shown[-1]) if len(found) > limit else None)


def thread_rows(reads: MailReads, heads: Sequence[ThreadHead]) -> list[ThreadRow]:
    """Return threads with their first and newest messages."""
    ids = sorted({number for head in heads for number in (head.first_id, head.last_id)})
    known_values = reads.messages(ids)
    recipients = reads.recipients(ids)
    rows = []
    for head in heads:
        ends = [known_values[number] for number in {head.first_id, head.last_id} if number in known_values]
        standing = [end for end in ends if end.recalled_at is None]
        row = ThreadRow(
            head=head,
            first=known_values.get(head.first_id),
            last=known_values.get(head.last_id),
            importance=max(
                (message.importance for message in standing), key=IMPORTANCES.index, default="normal"
            ),
            owed=sum(
                conversation.awaited(message, openly(recipients.get(message.id, []))) for message in standing
            ),
        )
        rows.append(row)
    return rows


def shown_messages(reads: MailReads, project: Project, messages: Sequence[Message]) -> list[ShownMessage]:
    """Return messages with all data that the pages of a project may show."""
    ids = [message.id for message in messages]
    by_id = {message.id: message for message in messages}
    answered = [
        message.reply_to
        for message in messages
        if message.reply_to is not None and message.reply_to not in by_id
    ]
    by_id |= reads.messages(answered) if answered else {}
    senders = reads.agents_by_id(sorted({message.sender_id for message in messages}))
    recipients = reads.recipients(ids)
    runs = reads.message_runs(ids)
    attachments = reads.attachments(ids)
    shown = {message.id for message in conversation.here(reads, project, list(by_id.values()))}
    homes = read_slugs(reads, (sender.project_id for sender in senders.values()))
    cards = []
    for message in messages:
        sender = senders.get(message.sender_id)
        answers = by_id.get(message.reply_to) if message.reply_to is not None else None
        card = ShownMessage(
            message=message,
            sender=sender,
            home=homes.get(sender.project_id) if sender else None,
            recipients=openly(recipients.get(message.id, [])),
            runs=runs[message.id],
            attachments=attachments.get(message.id, []) if message.recalled_at is None else [],
            answers=answers if answers and answers.id in shown else None,
        )
        cards.append(card)
    return cards


def openly(recipients: Iterable[Recipient]) -> list[Recipient]:
    """Return the recipients of a message without the recipients of blind copies."""
    return [recipient for recipient in recipients if recipient.kind != "bcc"]


def read_slugs(reads: MailReads, project_ids: Iterable[int]) -> dict[int, str]:
    """Return the slugs of projects, keyed by project id. Unknown ids are ignored."""
    by_project_id = {project_id: reads.project_by_id(project_id) for project_id in sorted(set(project_ids))}
    return {project_id: project.slug for project_id, project in by_project_id.items() if project is not None}


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
    """Return the shared data of a project's pages for the person `me`.

    `overlaps` is the number of groups of overlapping reservations, or None if the groups must be counted.
    """
    people = reads.project(PEOPLE_KEY)
    if overlaps is None:
        items = conflicts(reads.live_reservations(project.id, now=now, limit=LEASES))
        overlaps = len(together((overlap.first, overlap.second) for overlap in items))
    person = reads.agent(people.id, me) if people is not None and me else None
    reviews = reads.count_reviews(project.id, limit=MAX_REVIEWS)
    return Frame(
        after=after,
        needs=work.questions + work.failures + overlaps + reviews,
        questions=work.questions,
        open_runs=work.open_runs,
        conflicts=overlaps,
        reviews=reviews,
        unread=0 if person is None else reads.unread_count(person.id),
        # If an agent and a person have the same name, use the agent's avatar.
        faces={**(faces_of(reads, people) if people else {}), **faces_of(reads, project)},
    )


def faces_of(reads: MailReads, project: Project) -> dict[str, Face]:
    """Return the avatars of a project's members, in the order in which the members joined."""
    faces, is_person = dict[str, Face](), project.slug == PEOPLE_SLUG
    for name in reads.member_names(project.id, include_retired=True, limit=NAMED).values():
        faces[name.casefold()] = Face(len(faces) * _STEP % TONES, is_person)
    return faces
