"""Reads the content of each page from one consistent view of the store, with a limited number of queries.

This module does not produce HTML. It removes blind copies before any page can see them: from the recipients
of messages, and from inboxes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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
from postroom.contracts.work import Work
from postroom.mail import conversation, sending
from postroom.mail.projects import PEOPLE_KEY
from postroom.markdown import REFERENCE
from postroom.stores.mail.access import MailReads
from postroom.web import links

MAX_NAMES_SHOWN = 200
OFFERED = 200
"""Maximum number of agents, and of people, that a filter offers."""
IMPORTANCES: tuple[Importance, ...] = ("low", "normal", "high", "urgent")
BRIEF = 8
"""Number of rows that a list on a project's first page shows."""

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types that browsers may display within a page.

The type is detected from the bytes, whatever the sender claimed.
"""

SHOWN_PICTURE = 512 * 1024
"""The maximum size in bytes of an image without a preview that a page displays."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """The rows of one page of a list, and the cursor of the next page, which is None on the last page."""

    rows: Sequence[T]
    next: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRow:
    """A thread in a list, with its first and its newest message."""

    head: ThreadHead
    first: Message | None
    last: Message | None
    importance: Importance
    """The importance of the first or the newest message, whichever is higher."""
    owed: int
    """How many acknowledgements of the first and the newest message are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """A message, with all the data about it that a page may show."""

    message: Message
    sender: Agent | None
    home: str | None
    """The slug of the sender's project."""
    recipients: Sequence[Recipient]
    attachments: Sequence[Attachment]
    answers: Message | None
    """The message to which this one replies, if the project may show it."""


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
    """Return an agent of a project.

    Raises:
        UnknownAgent: The project has no such agent.
    """
    found = reads.agent(project.id, name)
    if found is None:
        raise UnknownAgent(
            f"{project.slug} has no agent {name!r}",
            value=name,
            remedy="see the project's agents",
        )
    return found


def message(reads: MailReads, project: Project, message_id: int) -> ShownMessage:
    """Return one message that was written in a project or sent to it.

    Raises:
        UnknownMessage: The project has no such message.
    """
    found = reads.message(message_id)
    if found is None or not conversation.here(reads, project, [found]):
        raise UnknownMessage(f"{project.slug} has no message {message_id}", value=message_id)
    return shown_messages(reads, project, [found])[0]


def shown_as(attachment: Attachment) -> str | None:
    """Return the SHA-256 of the image that is displayed for an attachment; None if there is none."""
    is_small = attachment.media_type in PICTURES and attachment.size <= SHOWN_PICTURE
    return attachment.preview_sha256 or (attachment.sha256 if is_small else None)


def bodies_of(
    reads: MailReads, project: Project, messages: Sequence[ShownMessage]
) -> tuple[dict[int, str], dict[int, dict[str, str]], dict[int, dict[str, str]]]:
    """Return the data needed to render the bodies of messages, keyed by the ids of the messages.

    The data are the texts, the addresses of attached images, and the addresses of references.
    """
    standing = [one for one in messages if one.message.recalled_at is None]
    texts = {one.message.id: one.message.body_md for one in standing}
    pictures = {
        one.message.id: {
            file.name: links.preview(sha256, one.message.id)
            for file in one.attachments
            if (sha256 := shown_as(file)) and file.name
        }
        for one in standing
    }
    return texts, pictures, references(reads, project, texts)


def how_seen(reads: MailReads, shown: ShownMessage) -> list[tuple[str, str]]:
    """Return the recipients of a message that pages may show, and how each will see the message."""
    seen = sending.how_seen(reads, shown.message, shown.recipients)
    return [(one.name, seen[one.agent_id]) for one in shown.recipients]


def offered_names(reads: MailReads, project: Project | None, chosen: str) -> list[str]:
    """Return the names that a filter offers: up to the limit, one more, and always the chosen name."""
    known = [] if project is None else reads.agents(project.id, include_retired=True, limit=OFFERED + 1)
    names = [one.name for one in known]
    return names if not chosen or chosen in names else [chosen, *names]


def subjects_of(
    reads: MailReads, project: Project, works: Iterable[Work], messages: Sequence[int] = ()
) -> dict[int, Message]:
    """Return the messages that started runs or wait for a run, if the project may show them."""
    ids = sorted({*messages, *(number for one in works for number in one.messages)})
    found = conversation.here(reads, project, list(reads.messages(ids).values()))
    return {one.id: one for one in found}


def references(reads: MailReads, project: Project, texts: Mapping[int, str]) -> dict[int, dict[str, str]]:
    """Return the addresses of each text's references: messages as `#12`, agents and people as `@lena`.

    Only messages that the project may show get an address. If an agent of the project and a person have the
    same name, the name refers to the agent. At most 200 numbers and 200 names are looked up.
    """
    words = {key: dict.fromkeys(one[0] for one in REFERENCE.finditer(text)) for key, text in texts.items()}
    every = dict.fromkeys(word for found in words.values() for word in found)
    numbers = [int(word[1:]) for word in every if word[0] == "#"][:MAX_NAMES_SHOWN]
    names = [word[1:] for word in every if word[0] == "@"][:MAX_NAMES_SHOWN]
    messages = conversation.here(reads, project, list(reads.messages(numbers).values())) if numbers else ()
    known = {f"#{one.id}": links.page(project.slug, "m", one.id) for one in messages}
    people = reads.project(PEOPLE_KEY) if names else None
    for name in names:
        for home in (people, project):
            if home is not None and (found := reads.agent(home.id, name)) is not None:
                known[f"@{name}"] = links.page(home.slug, "agents", found.name)
    return {key: {word: known[word] for word in found if word in known} for key, found in words.items()}


def cut(found: Sequence[T], limit: int, number: Callable[[T], int]) -> Page[T]:
    """Return a page of `limit` rows; if `found` has more rows, the page has the cursor of the next one."""
    shown = found[:limit]
    return Page(shown, number(shown[-1]) if len(found) > limit else None)


def thread_rows(reads: MailReads, heads: Sequence[ThreadHead]) -> list[ThreadRow]:
    """Return threads with their first and their newest messages."""
    ids = sorted({number for head in heads for number in (head.first_id, head.last_id)})
    known = reads.messages(ids)
    recipients = reads.recipients(ids)
    rows = []
    for head in heads:
        ends = [known[number] for number in {head.first_id, head.last_id} if number in known]
        standing = [one for one in ends if one.recalled_at is None]
        row = ThreadRow(
            head=head,
            first=known.get(head.first_id),
            last=known.get(head.last_id),
            importance=max((one.importance for one in standing), key=IMPORTANCES.index, default="normal"),
            owed=sum(conversation.awaited(one, openly(recipients.get(one.id, []))) for one in standing),
        )
        rows.append(row)
    return rows


def shown_messages(reads: MailReads, project: Project, messages: Sequence[Message]) -> list[ShownMessage]:
    """Return messages with all the data about them that a project's pages may show."""
    ids = [one.id for one in messages]
    known = {one.id: one for one in messages}
    answered = [one.reply_to for one in messages if one.reply_to is not None and one.reply_to not in known]
    known |= reads.messages(answered) if answered else {}
    senders = reads.agents_by_id(sorted({one.sender_id for one in messages}))
    recipients = reads.recipients(ids)
    attachments = reads.attachments(ids)
    shown = {one.id for one in conversation.here(reads, project, list(known.values()))}
    homes = slugs_of(reads, (one.project_id for one in senders.values()))
    cards = []
    for one in messages:
        sender = senders.get(one.sender_id)
        answers = known.get(one.reply_to) if one.reply_to is not None else None
        card = ShownMessage(
            message=one,
            sender=sender,
            home=homes.get(sender.project_id) if sender else None,
            recipients=openly(recipients.get(one.id, [])),
            attachments=attachments.get(one.id, []) if one.recalled_at is None else [],
            answers=answers if answers and answers.id in shown else None,
        )
        cards.append(card)
    return cards


def openly(recipients: Iterable[Recipient]) -> list[Recipient]:
    """Return the recipients, except those of blind copies."""
    return [one for one in recipients if one.kind != "bcc"]


def slugs_of(reads: MailReads, project_ids: Iterable[int]) -> dict[int, str]:
    """Return the slugs of projects, keyed by id; unknown ids are left out."""
    found = {project_id: reads.project_by_id(project_id) for project_id in sorted(set(project_ids))}
    return {project_id: project.slug for project_id, project in found.items() if project is not None}
