"""Operations that write letters: send, reply, recall. All recipients are valid, or nothing is sent."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from postroom.contracts.errors import (
    AlreadyRead,
    InvalidArgument,
    InvalidRecipients,
    NotPermitted,
    PostroomError,
    TooLarge,
    UnknownProject,
)
from postroom.contracts.mail import Agent, Importance, Message, Project, Recipient, RecipientKind
from postroom.mail.commands import RecallMessage, ReplyMessage, SendMessage
from postroom.mail.contacts import ContactFacts, refusal
from postroom.mail.desk import Writing
from postroom.mail.identity import acting_active, as_reason, unknown_agent
from postroom.mail.inbox import visible_message
from postroom.mail.outgoing import to_archive
from postroom.mail.projects import find_project
from postroom.mail.views import MessageView, message_view

_REPLY_PREFIX = re.compile(r"^\s*re\s*:\s*", re.IGNORECASE)
MAX_BROADCAST = 10_000


class Delivery(TypedDict):
    """What went to the agents of one project."""

    project: str
    recipients: list[str]
    payload: MessageView


class Sent(TypedDict):
    """A letter that is stored: `count` recipients have it in their inbox; none is said to have read it."""

    count: int
    deliveries: list[Delivery]
    skipped: list[str]


class Recalled(TypedDict):
    """A letter that was taken back."""

    message_id: int
    recalled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressee:
    """One recipient of a letter that is about to be written."""

    project: Project
    agent: Agent
    kind: RecipientKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A letter whose sender and recipients are settled."""

    project: Project
    sender: Agent
    addressees: Sequence[Addressee]
    subject: str
    body_md: str
    importance: Importance = "normal"
    ack_required: bool = False
    thread_id: str | None = None
    topic: str = ""
    broadcast: bool = False
    reply_to: Message | None = None


def send_message(desk: Writing, asked: SendMessage) -> Sent:
    """Send one letter to agents of this and other projects.

    Raises:
        InvalidRecipients: at least one may not receive it; lists every one with its reason.
        TooLarge: subject, body or the list of recipients is over its limit.
    """
    project, sender = acting_active(desk, asked.project_key, asked.sender_name)
    addressees, bad = _addressees(desk, project, asked)
    skipped: list[str] = []
    if asked.broadcast:
        everyone = desk.tx.agents(project.id, include_retired=False, limit=MAX_BROADCAST)
        named = {one.agent.id for one in addressees} | {sender.id}
        others = [Addressee(project=project, agent=one, kind="to") for one in everyone if one.id not in named]
        closed = _refused(desk, project, sender, others)
        skipped = list(closed)
        addressees += [one for one in others if one.agent.name not in closed]
    letter = Letter(
        project=project,
        sender=sender,
        addressees=addressees,
        subject=asked.subject,
        body_md=asked.body_md,
        importance=asked.importance,
        ack_required=asked.ack_required,
        thread_id=asked.thread_id,
        topic=asked.topic,
        broadcast=asked.broadcast,
    )
    return post(desk, letter, bad=bad, skipped=skipped)


def reply_message(desk: Writing, asked: ReplyMessage) -> Sent:
    """Answer a letter: to its sender, or to the first recipients when the sender answers itself."""
    project, sender = acting_active(desk, asked.project_key, asked.sender_name)
    original, recipients = visible_message(desk, project, sender, asked.message_id)
    subject = _REPLY_PREFIX.sub("", original.subject)
    letter = Letter(
        project=project,
        sender=sender,
        addressees=_answered(desk, sender, original, recipients, everybody=asked.reply_all),
        subject=f"Re: {subject}"[: desk.rules.max_subject_chars],
        body_md=asked.body_md,
        importance=asked.importance,
        ack_required=asked.ack_required,
        thread_id=original.thread_id,
        topic=original.topic,
        reply_to=original,
    )
    return post(desk, letter, bad=[], skipped=[])


def _answered(
    desk: Writing, sender: Agent, original: Message, recipients: Sequence[Recipient], *, everybody: bool
) -> list[Addressee]:
    own = original.sender_id == sender.id
    kinds: dict[int, RecipientKind] = {} if own else {original.sender_id: "to"}
    for one in recipients:
        if one.kind == "bcc" or one.agent_id == sender.id:
            continue
        if own and one.kind == "to":
            kinds.setdefault(one.agent_id, "to")
        elif everybody:
            kinds.setdefault(one.agent_id, one.kind)
    agents = desk.tx.agents_by_id(list(kinds))
    projects = {agent.project_id: desk.tx.project_by_id(agent.project_id) for agent in agents.values()}
    return [
        Addressee(project=home, agent=agents[agent_id], kind=kind)
        for agent_id, kind in kinds.items()
        if agent_id in agents and (home := projects[agents[agent_id].project_id]) is not None
    ]


def post(desk: Writing, letter: Letter, *, bad: list[PostroomError], skipped: list[str]) -> Sent:
    """Store a letter with its recipients and its outbox row, or nothing at all."""
    _check_size(desk, letter)
    refused = _refused(desk, letter.project, letter.sender, letter.addressees, reply_to=letter.reply_to)
    if problems := [*bad, *refused.values()]:
        raise _invalid(problems)
    if not letter.addressees:
        raise InvalidRecipients(
            "the letter has no recipient", value=[], remedy="name at least one agent in `to`, `cc` or `bcc`"
        )
    tx = desk.tx
    message = tx.insert_message(
        project_id=letter.project.id,
        sender=letter.sender,
        thread_id=letter.thread_id,
        subject=letter.subject,
        body_md=letter.body_md,
        importance=letter.importance,
        ack_required=letter.ack_required,
        topic=letter.topic,
        broadcast=letter.broadcast,
        reply_to=letter.reply_to.id if letter.reply_to else None,
        now=desk.now,
    )
    recipients = [_deliver(desk, message, one) for one in letter.addressees]
    for loaded in desk.loaded:
        tx.insert_blob(loaded.attachment.sha256, loaded.content)
        if loaded.preview is not None and loaded.attachment.preview_sha256 is not None:
            tx.insert_blob(loaded.attachment.preview_sha256, loaded.preview)
        tx.insert_attachment(message.id, loaded.attachment)
    to_archive(desk, "message", message.id, letter.project.id)
    return _sent(desk, letter, message, recipients, skipped)


def _deliver(desk: Writing, message: Message, one: Addressee) -> Recipient:
    seq = desk.tx.insert_recipient(message.id, one.agent, one.kind)
    return Recipient(
        message_id=message.id,
        agent_id=one.agent.id,
        name=one.agent.name,
        project_slug=one.project.slug,
        kind=one.kind,
        seq=seq,
    )


def _sent(
    desk: Writing, letter: Letter, message: Message, recipients: Sequence[Recipient], skipped: list[str]
) -> Sent:
    payload = message_view(
        message,
        recipients,
        [loaded.attachment for loaded in desk.loaded],
        viewer=letter.sender,
        home_slug=letter.project.slug,
    )
    by_project: dict[str, list[str]] = {}
    for one in recipients:
        by_project.setdefault(one.project_slug, []).append(one.name)
    return {
        "count": len(recipients),
        "deliveries": [
            {"project": slug, "recipients": names, "payload": payload} for slug, names in by_project.items()
        ],
        "skipped": skipped,
    }


def _check_size(desk: Writing, letter: Letter) -> None:
    rules = desk.rules
    if len(letter.subject) > rules.max_subject_chars:
        raise TooLarge(
            f"the subject has {len(letter.subject)} characters, the limit is {rules.max_subject_chars}",
            value=len(letter.subject),
            remedy="put the text into the body",
        )
    if any(ord(character) < 32 for character in letter.subject):
        raise InvalidArgument(
            "the subject holds line breaks or control characters", value=letter.subject, remedy="use one line of text"
        )
    size = len(letter.body_md.encode())
    if size > rules.max_body_bytes:
        raise TooLarge(
            f"the body has {size} bytes, the limit is {rules.max_body_bytes}",
            value=size,
            remedy="attach the text as a file, or send several letters on one thread",
        )
    if len(letter.addressees) > rules.max_recipients and not letter.broadcast:
        raise TooLarge(
            f"{len(letter.addressees)} recipients, the limit is {rules.max_recipients}",
            value=len(letter.addressees),
            remedy="use broadcast, or send several letters",
        )


def _addressees(
    desk: Writing, home: Project, asked: SendMessage
) -> tuple[list[Addressee], list[PostroomError]]:
    """Look up every name at once; an agent named twice gets one letter, by its most open mention."""
    kinds: dict[str, RecipientKind] = {}
    for kind, names in (("to", asked.to), ("cc", asked.cc), ("bcc", asked.bcc)):
        for name in names:
            kinds.setdefault(name.strip(), kind)  # type: ignore[arg-type] # the tuple above lists the three kinds
    local = {agent.name.casefold(): agent for agent in desk.tx.agents_named(home.id, list(kinds))}
    found: dict[int, Addressee] = {}
    bad: list[PostroomError] = []
    for name, kind in kinds.items():
        try:
            one = _addressee(desk, home, local, name, kind)
        except PostroomError as error:
            bad.append(error)
        else:
            found.setdefault(one.agent.id, one)
    return list(found.values()), bad


def _addressee(
    desk: Writing, home: Project, local: dict[str, Agent], address: str, kind: RecipientKind
) -> Addressee:
    if agent := local.get(address.casefold()):
        return Addressee(project=home, agent=agent, kind=kind)
    name, at, key = address.rpartition("@")
    if not at:
        raise unknown_agent(desk.tx, home, address)
    if not key:
        raise UnknownProject(f"{address!r} names no project after '@'", value=address)
    project = find_project(desk.tx, key)
    away = desk.tx.agent(project.id, name)
    if away is None:
        raise unknown_agent(desk.tx, project, name)
    return Addressee(project=project, agent=away, kind=kind)


def _refused(
    desk: Writing,
    home: Project,
    sender: Agent,
    addressees: Iterable[Addressee],
    *,
    reply_to: Message | None = None,
) -> dict[str, PostroomError]:
    """Return by name those who may not be written to, with the reason."""
    links = {(link.from_id, link.to_id): link.status for link in desk.tx.contacts(sender.id)}
    found: dict[str, PostroomError] = {}
    for one in addressees:
        there, back = links.get((sender.id, one.agent.id)), links.get((one.agent.id, sender.id))
        facts = ContactFacts(
            policy=one.agent.contact_policy,
            same_agent=one.agent.id == sender.id,
            same_project=one.project.id == home.id,
            same_owner=one.project.owner == home.owner and bool(home.owner),
            retired=one.agent.retired_at is not None,
            approved="approved" in (there, back),
            blocked=there == "blocked",
            answers_recipient=reply_to is not None and reply_to.sender_id == one.agent.id,
        )
        if (kind := refusal(facts)) is not None:
            found[one.agent.name] = kind(
                f"{one.agent.name} of {one.project.slug} does not take this letter", value=one.agent.name
            )
    return found


def _invalid(problems: Sequence[PostroomError]) -> PostroomError:
    if len(problems) == 1:
        return problems[0]
    names = ", ".join(str(error.value) for error in problems)
    return InvalidRecipients(
        f"nothing was sent: {len(problems)} recipients are not valid: {names}",
        value=[error.value for error in problems],
        remedy="mend or leave out each of them; `details.recipients` says why",
        details={"recipients": [as_reason(error) for error in problems]},
    )


def recall_message(desk: Writing, asked: RecallMessage) -> Recalled:
    """Take back a letter that no recipient has read; harmless when it is recalled.

    Raises:
        NotPermitted: somebody else wrote it.
        AlreadyRead: at least one recipient has read it.
    """
    project, sender = acting_active(desk, asked.project_key, asked.sender_name)
    message, recipients = visible_message(desk, project, sender, asked.message_id)
    if message.sender_id != sender.id:
        raise NotPermitted(
            f"message {message.id} was written by {message.sender_name}",
            value=message.id,
            remedy="only its sender can recall a letter",
        )
    if message.recalled_at is None:
        if readers := [one.name for one in recipients if one.read_at is not None]:
            raise AlreadyRead(
                f"message {message.id} was read by {', '.join(readers)}", value=message.id, details={"readers": readers}
            )
        desk.tx.mark_recalled(message.id, desk.now)
        to_archive(desk, "message", message.id, message.project_id)
    return {"message_id": message.id, "recalled": True}
