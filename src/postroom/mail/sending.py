"""Operations that send, reply to and recall messages, and the rules for who may write to whom.

A message is sent only if all its recipients are valid. No option of a message bypasses the rules.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from postroom.contracts.choices import ContactPolicy, Importance, RecipientKind
from postroom.contracts.errors import (
    AgentRetired,
    AlreadyRead,
    ContactBlocked,
    ContactRequired,
    InvalidArgument,
    InvalidRecipients,
    NotPermitted,
    PostroomError,
    TooLarge,
    UnknownThread,
)
from postroom.contracts.mail import Agent, Message, Project, Reach, Recipient
from postroom.contracts.messages import CONTROL
from postroom.contracts.runners import reads_at_work
from postroom.contracts.tracing import message_trace
from postroom.mail.commands import RecallMessage, ReplyMessage, SendMessage
from postroom.mail.context import WriteContext
from postroom.mail.identity import (
    acting_active,
    as_reason,
    find_address,
    visible_message,
)
from postroom.mail.names import shown
from postroom.mail.outgoing import to_archive
from postroom.mail.projects import PEOPLE_SLUG, format_address
from postroom.mail.views import NOT_TAKEN, STORED, MessageView, delivery_state, message_view
from postroom.mail.waking import open_questions
from postroom.stores.mail.access import RecordReads

_REPLY_PREFIX = re.compile(r"^\s*(?:re\s*:\s*)+", re.IGNORECASE)
_GENERATED_THREAD = re.compile(r"msg-([1-9][0-9]*)")
_ID_DIGITS = 15
MAX_BROADCAST = 10_000
MAX_THREAD = 1_000
"""Maximum number of a thread's newest messages that are searched for the recipients of `thread:`."""
THREAD = "thread:"
LIVE = "live"
"""The active run will read the message at its next step, or another run will if that run ends first."""
RUNNER = "wake by runner"
WAITS = "waits"
"""The prefix of the reason why the message waits.

Another run reads the message after the run that waits for a person has ended.
"""
CHAT = "message in a chat"
HOOK = "hook at next step"
INBOX = "inbox only"
_NO_STATES: Mapping[int, str] = {}
MAX_NAMED = 32
"""Maximum number of recipients for whose names the threads to lock are cached."""
MAX_PROBLEMS = 20
"""The number of invalid recipients after which no more recipients are checked.

There is a limit, because each invalid name is compared with all names.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactFacts:
    """The facts that decide whether a recipient accepts a message from a sender."""

    policy: ContactPolicy
    """The recipient's contact policy."""
    same_agent: bool = False
    same_project: bool = True
    same_owner: bool = True
    retired: bool = False
    approved: bool = False
    """Whether the recipient has approved this sender."""
    blocked: bool = False
    """Whether the recipient has blocked this sender."""
    answers_recipient: bool = False
    """Whether the message replies to a message that the recipient sent to the sender."""


def refusal(facts: ContactFacts) -> type[PostroomError] | None:
    """Return the error class for a message that the recipient refuses, or None for an accepted message.

    Nothing bypasses the contact policy `closed` or a block.
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
    """A recipient of a message that is not stored yet."""

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
    """Return the error for each agent that refuses a message, keyed by agent id.

    For a reply, `answered` is the sender of the original message.
    """
    errors: dict[int, PostroomError] = {}
    for addressee in addressees:
        granted = reach[addressee.agent.id].granted
        facts = ContactFacts(
            policy=addressee.agent.contact_policy,
            same_agent=addressee.agent.id == sender.id,
            same_project=addressee.project.id == home.id,
            same_owner=addressee.project.owner == home.owner and bool(home.owner),
            retired=addressee.agent.retired_at is not None,
            approved=granted == "approved",
            blocked=granted == "blocked",
            answers_recipient=answered == addressee.agent.id,
        )
        if (kind := refusal(facts)) is not None:
            name = format_address(addressee.agent.name, addressee.project.slug, home.slug)
            what = f"{name} does not accept this message"
            if facts.retired:
                is_person = addressee.project.slug == PEOPLE_SLUG
                what = f"{name} no longer exists" if is_person else f"{name} is retired"
            errors[addressee.agent.id] = kind(what, value=name)
    return errors


class Delivery(TypedDict):
    """The delivery of a message to the agents of one project.

    `seen` says how each agent in `recipients` will see the message.
    """

    project: str
    recipients: list[str]
    payload: MessageView
    seen: list[str]


class Sent(TypedDict):
    """A stored message, which `count` recipients have in their inboxes."""

    count: int
    deliveries: list[Delivery]
    skipped: list[str]


class Recalled(TypedDict):
    """A message that was recalled."""

    message_id: int
    recalled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to store, with the sender and the recipients already looked up."""

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
    trace: str | None = None
    """The trace position at which the message was written. The default is the position of the call."""
    answering_run: str | None = None
    """The run whose answer this message contains."""


def send_message(context: WriteContext, asked: SendMessage) -> Sent:
    """Send a message to agents of any project.

    Raises:
        InvalidRecipients: At least one recipient is invalid. The error lists all of them, with the reasons.
        TooLarge: The subject, the body or the list of recipients exceeds its limit.
    """
    project, sender = acting_active(context, asked.project_key, asked.sender_name)
    thread_id = _choose_thread(context, asked)
    addressees, bad = _addressees(context, project, sender, asked)
    skipped: list[str] = []
    if asked.broadcast:
        everyone = context.tx.agents(project.id, include_retired=False, limit=MAX_BROADCAST + 1)
        if len(everyone) > MAX_BROADCAST:
            raise TooLarge(
                f"project {project.slug} has more than {MAX_BROADCAST} active agents",
                value=MAX_BROADCAST,
                remedy="list the recipients, or retire agents that are no longer in use",
            )
        named = {addressee.agent.id for addressee in addressees} | {sender.id}
        others = [
            Addressee(project=project, agent=agent, kind="to") for agent in everyone if agent.id not in named
        ]
        reach = context.tx.reach(sender.id, [addressee.agent.id for addressee in others])
        closed = refusals(context, project, sender, others, reach=reach)
        addressees += [addressee for addressee in others if addressee.agent.id not in closed]
        skipped = [addressee.agent.name for addressee in others if addressee.agent.id in closed]
    new = NewMessage(
        project=project,
        sender=sender,
        addressees=addressees,
        subject=asked.subject,
        body_md=asked.body_md,
        importance=asked.importance,
        ack_required=asked.ack_required,
        thread_id=thread_id,
        topic=asked.topic,
        broadcast=asked.broadcast,
    )
    return post(context, new, bad=bad, skipped=skipped)


def named_readers(command: object) -> Hashable:
    """Return the recipients that a command names, or None if the command names none or over `MAX_NAMED`."""
    if (
        not isinstance(command, SendMessage)
        or len(command.to) + len(command.cc) + len(command.bcc) > MAX_NAMED
    ):
        return None
    return (command.project_key, command.broadcast, *map(tuple, (command.to, command.cc, command.bcc)))


def _choose_thread(context: WriteContext, asked: SendMessage) -> str | None:
    """Return the thread that a new message names, or to which the message is addressed.

    Raises:
        InvalidArgument: The message names one thread, and is addressed to another.
        UnknownThread: The name is reserved for the thread that a later message will start.
    """
    named = set[str]() if asked.thread_id is None else {asked.thread_id}
    for name in asked.to:
        if name.strip().startswith(THREAD):
            named.add(name.strip().removeprefix(THREAD))
    if len(named) > 1:
        raise InvalidArgument(
            f"a message belongs to only one thread, but this message names {', '.join(sorted(named))}",
            value=sorted(named),
            remedy="send a separate message for each thread",
        )
    thread_id = next(iter(named), None)
    match = _GENERATED_THREAD.fullmatch(thread_id or "")
    if match and len(match[1]) <= _ID_DIGITS and context.tx.message(int(match[1])) is None:
        raise UnknownThread(
            f"thread id {thread_id!r} is reserved for the thread of message {match[1]}, which does not "
            "exist yet",
            value=thread_id,
            remedy="use another id, or leave out `thread_id` to start a thread",
        )
    return thread_id


def reply_message(context: WriteContext, asked: ReplyMessage) -> Sent:
    """Reply to the sender of a message.

    If the agent itself sent the message, reply to the first recipients. A reply to a blind copy goes only to
    the sender.
    """
    project, sender = acting_active(context, asked.project_key, asked.sender_name)
    original, recipients = visible_message(context, project, sender, asked.message_id)
    own = original.sender_id == sender.id
    kinds: dict[int, RecipientKind] = {} if own else {original.sender_id: "to"}
    for recipient in recipients:
        if recipient.kind == "bcc" or recipient.agent_id == sender.id:
            continue
        if own and recipient.kind == "to":
            kinds.setdefault(recipient.agent_id, "to")
        elif asked.reply_all:
            kinds.setdefault(recipient.agent_id, recipient.kind)
    addressees = _at_home(context, kinds)
    skipped: list[Addressee] = []
    hidden = [recipient.agent_id for recipient in recipients if recipient.kind == "bcc"]
    if sender.id in hidden and original.sender_id != sender.id:
        skipped = [addressee for addressee in addressees if addressee.agent.id != original.sender_id]
        addressees = [addressee for addressee in addressees if addressee not in skipped]
    new = NewMessage(
        project=project,
        sender=sender,
        addressees=addressees,
        subject=reply_subject(original.subject, context.rules.max_subject_chars),
        body_md=asked.body_md,
        importance=asked.importance,
        ack_required=asked.ack_required,
        thread_id=original.thread_id,
        topic=original.topic,
        reply_to=original,
    )
    left_out = [
        format_address(addressee.agent.name, addressee.project.slug, project.slug) for addressee in skipped
    ]
    return post(context, new, bad=[], skipped=left_out)


def reply_subject(subject: str, most: int) -> str:
    """Return the subject of a reply, which begins with a single `Re:` and has at most `most` characters.

    An empty subject stays empty.
    """
    plain = _REPLY_PREFIX.sub("", subject)
    return f"Re: {plain}"[:most] if plain.strip() else ""


def _at_home(context: WriteContext, kinds: Mapping[int, RecipientKind]) -> list[Addressee]:
    agents = context.tx.agents_by_id(list(kinds))
    projects = {agent.project_id: context.tx.project_by_id(agent.project_id) for agent in agents.values()}
    return [
        Addressee(project=home, agent=agents[agent_id], kind=kind)
        for agent_id, kind in kinds.items()
        if agent_id in agents and (home := projects[agents[agent_id].project_id]) is not None
    ]


def _participants(
    context: WriteContext, home: Project, sender: Agent, address: str, kind: RecipientKind
) -> list[Addressee]:
    """Return the participants of a thread, except the sender of the new message.

    Raises:
        UnknownThread: The project has no such thread.
        InvalidRecipients: The sender shares no message in the thread with another active agent.
    """
    thread_id = address.removeprefix(THREAD)
    messages = context.tx.thread_tail(home.id, thread_id, limit=MAX_THREAD)
    if not messages:
        raise UnknownThread(
            f"project {home.slug} has no thread {shown(thread_id)}",
            value=address,
            remedy="find the thread with `search_messages`, or leave out `thread:` to start a new thread",
        )
    readers = context.tx.recipients([message.id for message in messages])
    entries = [
        _Entry(
            sender=message.sender_id,
            open_readers={reader.agent_id for reader in readers[message.id] if reader.kind != "bcc"},
            is_shared=sender.id in (message.sender_id, *(reader.agent_id for reader in readers[message.id])),
        )
        for message in sorted(messages, key=lambda message: message.id)
    ]
    opening = entries if len(entries) < MAX_THREAD else []  # if the thread is longer, its start is unknown
    opener = next((entry.sender for entry in opening if entry.open_readers - {entry.sender}), sender.id)
    met = _list_participants(entries, {opener, sender.id}) - {sender.id}
    if not met and (first := next((entry.sender for entry in entries if entry.is_shared), None)) is not None:
        met = _list_participants(entries, {first, sender.id}) - {sender.id}
    others = _at_home(context, dict.fromkeys(sorted(met), kind))
    active = [addressee for addressee in others if addressee.agent.retired_at is None]
    if not active:
        raise InvalidRecipients(
            f"no other active agent sent or received a message with {sender.name} on thread "
            f"{shown(thread_id)}",
            value=address,
            remedy="list the recipients; `fetch_thread` shows who sent and received the thread's messages",
        )
    return active


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """The fields of a thread's message that determine the participants of the thread."""

    sender: int
    open_readers: set[int]
    is_shared: bool
    """Whether the sender of the new message wrote or received this message."""


def _list_participants(entries: Iterable[_Entry], participants: set[int]) -> set[int]:
    met = set[int]()
    for entry in entries:
        if entry.sender in participants:
            participants |= entry.open_readers
            met |= {entry.sender, *entry.open_readers} if entry.is_shared else set()
    return met


def post(context: WriteContext, new: NewMessage, *, bad: list[PostroomError], skipped: list[str]) -> Sent:
    """Store a message with all recipients in one transaction, and wake the recipients."""
    _check_size(context, new)
    tx = context.tx
    reach = tx.reach(new.sender.id, [addressee.agent.id for addressee in new.addressees])
    answered: int | None = None
    if (before := new.reply_to) is not None:
        # Agents can read all messages of their project, but only recipients may reply to a closed agent.
        was_sent = any(
            recipient.agent_id == new.sender.id for recipient in tx.recipients([before.id])[before.id]
        )
        answered = before.sender_id if was_sent else None
    refused = refusals(context, new.project, new.sender, new.addressees, reach=reach, answered=answered)
    if problems := [*bad, *refused.values()]:
        if len(problems) == 1:
            raise problems[0]
        names = ", ".join(str(error.value) for error in problems)
        raise InvalidRecipients(
            f"nothing was sent, because these recipients are invalid: {names}",
            value=[error.value for error in problems],
            remedy="correct or remove each of them; `details.recipients` gives the reasons",
            details={"recipients": [as_reason(error) for error in problems]},
        )
    if not new.addressees:
        raise InvalidRecipients(
            "the message has no recipient", value=[], remedy="name at least one agent in `to`, `cc` or `bcc`"
        )
    message, woken = store_message(context, new, reach)
    sent = _result_view(context, new, message, reach)  # compute this before a run with the message starts
    wake_readers(context, new, message, woken)
    return {**sent, "skipped": skipped}


def store_message(
    context: WriteContext, new: NewMessage, reach: Mapping[int, Reach]
) -> tuple[Message, Sequence[tuple[Project, Agent]]]:
    """Store a message for recipients that accept the message.

    Return the message, and the recipients to wake.

    Raises:
        ThreadsNeeded, QueueFull: As for `Waking.expect`. Nothing was written.
    """
    tx = context.tx
    woken = [
        (addressee.project, addressee.agent)
        for addressee in new.addressees
        if reach[addressee.agent.id].is_woken
    ]
    if context.waking is not None and woken:
        reply_to = None if new.reply_to is None else new.reply_to.id
        sender_id = new.sender.id
        context.waking.expect(woken, thread_id=new.thread_id, reply_to=reply_to, sender_id=sender_id)
    message = tx.insert_message(
        project_id=new.project.id,
        sender=new.sender,
        thread_id=new.thread_id,
        subject=new.subject,
        body_md=new.body_md,
        importance=new.importance,
        ack_required=new.ack_required,
        topic=new.topic,
        broadcast=new.broadcast,
        reply_to=new.reply_to.id if new.reply_to else None,
        now=context.now,
    )
    if (trace := new.trace or context.caller.trace) is not None:
        tx.put_trace(message_trace(message.id), trace)
    if new.answering_run is not None:
        tx.note_answer(message.id, new.answering_run)
    for reader in new.addressees:
        tx.insert_recipient(message.id, reader.agent, reader.kind)
    for loaded in context.loaded:
        tx.insert_blob(loaded.attachment.sha256, loaded.content)
        if loaded.preview is not None and loaded.attachment.preview_sha256 is not None:
            tx.insert_blob(loaded.attachment.preview_sha256, loaded.preview)
        tx.insert_attachment(message.id, loaded.attachment)
    to_archive(context, "message", message.id, new.project.id)
    return message, woken


def wake_readers(
    context: WriteContext, new: NewMessage, message: Message, woken: Sequence[tuple[Project, Agent]]
) -> None:
    """Wake the recipients of a message that the transaction has stored."""
    if not woken:
        return
    if context.waking is None:
        context.tx.wake_later()
        return
    is_answer = new.answering_run is not None
    context.waking.wake(message, new.project, new.sender, woken, is_answer=is_answer)


def _result_view(
    context: WriteContext, new: NewMessage, message: Message, reach: Mapping[int, Reach]
) -> Sent:
    recipients = [
        Recipient(
            message_id=message.id,
            agent_id=addressee.agent.id,
            name=addressee.agent.name,
            project_slug=addressee.project.slug,
            kind=addressee.kind,
        )
        for addressee in new.addressees
    ]
    home = new.project.slug
    attachments = [file.attachment for file in context.loaded]
    payload = message_view(message, recipients, attachments, viewer=new.sender, home_slug=home, bodies=False)
    agents = {addressee.agent.id: addressee.agent for addressee in new.addressees}
    seen = _seen_by(context.tx, message, recipients, reach, agents, starts_thread=new.thread_id is None)
    deliveries: dict[str, Delivery] = {}
    for reader in recipients:
        slug = reader.project_slug
        if slug not in deliveries:
            deliveries[slug] = {"project": slug, "recipients": [], "payload": payload, "seen": []}
        deliveries[slug]["recipients"].append(reader.name)
        deliveries[slug]["seen"].append(seen[reader.agent_id])
    return {"count": len(recipients), "deliveries": list(deliveries.values()), "skipped": []}


def how_seen(tx: RecordReads, message: Message, readers: Sequence[Recipient]) -> dict[int, str]:
    """Return how each recipient will see a message, keyed by recipient id."""
    ids, runs = [reader.agent_id for reader in readers], tx.message_runs([message.id])[message.id]
    states = {one.agent_id: delivery_state(message, one, runs.get(one.agent_id)) for one in readers}
    reach, agents = tx.reach(message.sender_id, ids), tx.agents_by_id(ids)
    return _seen_by(tx, message, readers, reach, agents, states=states)


def _seen_by(  # noqa: PLR0913 - the facts that the caller has read, by name
    tx: RecordReads,
    message: Message,
    readers: Sequence[Recipient],
    reach: Mapping[int, Reach],
    agents: Mapping[int, Agent],
    *,
    starts_thread: bool = False,
    states: Mapping[int, str] = _NO_STATES,
) -> dict[int, str]:
    woken = {agent_id for agent_id, entry in reach.items() if entry.is_woken}
    at_work = set[int]()
    if woken and not starts_thread:
        at_work = tx.working_on(list(woken), message.project_id, message.thread_id)
    run = [reader for reader in readers if reader.agent_id in woken and reader.project_slug != PEOPLE_SLUG]
    waiting = [reader for reader in run if states.get(reader.agent_id, STORED) in NOT_TAKEN]
    held, answered = open_questions.held(tx, message, waiting, agents)
    seen: dict[int, str] = {}
    for recipient in readers:
        runner = tx.runner(recipient.agent_id) if recipient.agent_id in at_work else None
        if runner is not None and reads_at_work(runner.runner):
            why = held.get(recipient.agent_id, "")
            seen[recipient.agent_id] = f"{LIVE}: {why}" if why else LIVE
        elif recipient.agent_id in held:
            seen[recipient.agent_id] = f"{WAITS}: {held[recipient.agent_id]}"
        elif recipient.agent_id in woken:
            seen[recipient.agent_id] = CHAT if recipient.project_slug == PEOPLE_SLUG else RUNNER
        else:
            seen[recipient.agent_id] = HOOK if reach[recipient.agent_id].has_session else INBOX
        if states.get(recipient.agent_id) == "delivered":
            seen[recipient.agent_id] += f", and a run of {recipient.name} has it"
    for recipient in run if message.reply_to is not None else ():
        slug, name = recipient.project_slug, recipient.name
        if late := open_questions.why_late(tx, message, slug, name, is_for_sender=True):
            seen[recipient.agent_id] += f": this message answers no question, because {late}"
            continue
        numbers = answered.get(recipient.agent_id) or open_questions.answered_by(tx, message, (slug, name))
        if numbers:
            which = f"question{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
            seen[recipient.agent_id] += f": this message answers {which}"
    return seen


def _check_size(context: WriteContext, new: NewMessage) -> None:
    rules = context.rules
    if len(new.subject) > rules.max_subject_chars:
        raise TooLarge(
            f"the subject has {len(new.subject)} characters; the limit is {rules.max_subject_chars}",
            value=len(new.subject),
            remedy="shorten the subject, and move the rest to the body",
        )
    if CONTROL.search(new.subject):
        raise InvalidArgument(
            "the subject contains line breaks or control characters",
            value=new.subject,
            remedy="use one line of text",
        )
    size = len(new.body_md.encode())
    if size > rules.max_body_bytes:
        raise TooLarge(
            f"the body has {size} bytes; the limit is {rules.max_body_bytes}",
            value=size,
            remedy="attach the text as a file, or send several messages on one thread",
        )
    if not new.broadcast:
        _check_number(len(new.addressees), rules.max_recipients)


def _check_number(recipients: int, limit: int) -> None:
    if recipients > limit:
        raise TooLarge(
            f"{recipients} recipients exceed the limit of {limit}",
            value=recipients,
            remedy="set `broadcast` to true to write to all active agents, or send several messages",
        )


def _addressees(
    context: WriteContext, home: Project, sender: Agent, asked: SendMessage
) -> tuple[list[Addressee], list[PostroomError]]:
    kinds: dict[str, RecipientKind] = {}
    mentions: tuple[tuple[RecipientKind, list[str]], ...] = (
        ("to", asked.to),
        ("cc", asked.cc),
        ("bcc", asked.bcc),
    )
    for kind, names in mentions:
        for name in names:
            kinds.setdefault(name.strip(), kind)
    _check_number(len(kinds), context.rules.max_recipients)
    local: dict[str, Agent] = {}
    for known_agent in context.tx.agents_named(home.id, list(kinds)):
        local[known_agent.name.casefold()] = known_agent
    addressees: dict[int, Addressee] = {}
    bad: list[PostroomError] = []
    for name, kind in kinds.items():
        try:
            if agent := local.get(name.casefold()):
                named = [Addressee(project=home, agent=agent, kind=kind)]
            elif name.startswith(THREAD):
                named = _participants(context, home, sender, name, kind)
            else:
                project, agent = find_address(context, home, name)
                named = [Addressee(project=project, agent=agent, kind=kind)]
        except PostroomError as error:
            error.value = name  # the name as it was given, with its project
            bad.append(error)
            if len(bad) == MAX_PROBLEMS:
                break
        else:
            for addressee in named:
                addressees.setdefault(addressee.agent.id, addressee)
    return list(addressees.values()), bad


def recall_message(context: WriteContext, asked: RecallMessage) -> Recalled:
    """Recall a message that no recipient has read.

    Do nothing if the message is already recalled.

    Raises:
        NotPermitted: Another agent wrote the message.
        AlreadyRead: At least one recipient has read the message, or the message has answered a question.
    """
    project, sender = acting_active(context, asked.project_key, asked.sender_name)
    message, recipients = visible_message(context, project, sender, asked.message_id)
    if message.sender_id != sender.id:
        raise NotPermitted(
            f"message {message.id} was sent by {message.sender_name}",
            value=message.id,
            remedy="only its sender can recall a message",
        )
    if message.recalled_at is None:
        if readers := [recipient.name for recipient in recipients if recipient.read_at is not None]:
            raise AlreadyRead(
                f"message {message.id} was read by {', '.join(readers)}",
                value=message.id,
                details={"readers": readers},
            )
        if numbers := open_questions.answered_by(context.tx, message):
            which = f"question{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
            raise AlreadyRead(
                f"message {message.id} is the answer to {which}, and counts already",
                value=message.id,
                details={"readers": [recipient.name for recipient in recipients]},
            )
        context.tx.mark_recalled(message.id, context.now)
        to_archive(context, "message", message.id, message.project_id)
    return {"message_id": message.id, "recalled": True}
