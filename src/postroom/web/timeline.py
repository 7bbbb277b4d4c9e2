"""The timeline of a project, agent or thread: who wrote, who was woken, what came of it, who holds what.

It is gathered from what is stored, in one consistent view, so that it never tells of what is not there.
Hidden copies do not appear in it.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from postroom.contracts.errors import UnknownThread
from postroom.contracts.mail import Agent, Message, Project, Recipient, Reservation
from postroom.contracts.store import MailReads
from postroom.contracts.waking import MessageRun
from postroom.mail import conversation
from postroom.web.reading import inbox_of, known_agent, known_project, sent_by

Kind = Literal["wrote", "began", "done", "failed", "reserved", "freed"]
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""A cause is before its effect."""

MESSAGES = 60
HELD = 60
SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened: `who` did it, with a message or with a file."""

    at: int
    kind: Kind
    who: str
    message: Message | None = None
    readers: Sequence[Recipient] = ()
    is_answer: bool = False
    """Whether the message tells the end of a run."""
    run_id: str = ""
    reason: str = ""
    held: Reservation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """An agent whose run has a message in its hands now."""

    who: str
    message: Message
    run_id: str
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePage:
    """What happened lately, and who is at work."""

    project: Project
    agent: Agent | None
    """Whose timeline it is; None for everybody's."""
    thread_id: str
    """The thread of which it is; "" for all of them."""
    happened: Sequence[Happening]
    at_work: Sequence[AtWork]
    is_cut: bool


def timeline(reads: MailReads, slug: str, *, now: int, agent: str = "", thread_id: str = "") -> TimelinePage:
    """Return what happened in a project, with one of its agents or on one of its threads, the newest first.

    Raises:
        UnknownAgent, UnknownThread: the project has no such agent or thread.
    """
    project = known_project(reads, slug)
    whose = known_agent(reads, project, agent) if agent else None
    messages = _messages(reads, project, whose, thread_id)
    happened, at_work = _of_messages(reads, messages, whose)
    held = [] if thread_id else _held(reads, project, whose)
    for lease in held:
        happened.extend(_leased(lease, now))
    happened.sort(key=_order, reverse=True)
    return TimelinePage(
        project=project,
        agent=whose,
        thread_id=thread_id,
        happened=happened[:SHOWN],
        at_work=at_work,
        is_cut=len(messages) >= MESSAGES or len(held) == HELD or len(happened) > SHOWN,
    )


def _order(one: Happening) -> tuple[int, bool, int, int]:
    """Sort by instant; what happened in the same one, with a cause before its effect.

    A message is before what came of it, and its number is less than that of each message that came of it.
    """
    message, held = one.message, one.held
    number = message.id if message is not None else held.id if held is not None else 0
    return one.at, held is not None, number, _KINDS.index(one.kind)


def _of_messages(
    reads: MailReads, messages: Sequence[Message], whose: Agent | None
) -> tuple[list[Happening], list[AtWork]]:
    """Return what happened with messages, and who has them in hand; of one agent, what it did itself."""
    ids = [one.id for one in messages]
    readers = {number: _seen(found) for number, found in reads.recipients(ids).items()}
    message_runs = reads.message_runs(ids)
    found: list[Happening] = []
    at_work: list[AtWork] = []
    for message in messages:
        found.append(_wrote(reads, message, readers[message.id]))
        for one in readers[message.id]:
            message_run = message_runs[message.id].get(one.agent_id)
            if message_run is None or (whose is not None and one.agent_id != whose.id):
                continue
            found.extend(_handled(message, one, message_run))
            if message_run.ended_at is None:
                work = AtWork(
                    who=one.name, message=message, run_id=message_run.run_id, since=message_run.delivered_at
                )
                at_work.append(work)
    return found, at_work


def _held(reads: MailReads, project: Project, whose: Agent | None) -> list[Reservation]:
    found = reads.newest_reservations(project.id, limit=HELD)
    return [one for one in found if whose is None or one.agent_id == whose.id]


def _messages(reads: MailReads, project: Project, whose: Agent | None, thread_id: str) -> list[Message]:
    """Return the newest messages of a thread, of an agent, or of the project."""
    if thread_id:
        found = conversation.Conversation(reads, reads, project, thread_id).newest(limit=MESSAGES)
        if not found:
            raise UnknownThread(f"{project.slug} has no thread {thread_id!r}", value=thread_id)
    else:
        found = _lately(reads, project) if whose is None else _with_agent(reads, whose)
    if whose is None or not thread_id:
        return found
    mine = {one.id for one in _with_agent(reads, whose)}
    return [one for one in found if one.id in mine]


def _with_agent(reads: MailReads, whose: Agent) -> list[Message]:
    """Return what an agent wrote last, and what came to it."""
    rows = [*inbox_of(reads, whose, None).rows, *sent_by(reads, whose, None).rows]
    found = {row.message.id: row.message for row in rows}
    return [found[number] for number in sorted(found)][-MESSAGES:]


def _lately(reads: MailReads, project: Project) -> list[Message]:
    """Return what was written last in a project, and to it by people."""
    newest = functools.partial(reads.newest_messages, limit=MESSAGES)
    found = [*newest(project.id), *conversation.from_people(reads, project, newest)]
    return sorted(found, key=lambda one: one.id)[-MESSAGES:]


def _wrote(reads: MailReads, message: Message, readers: Sequence[Recipient]) -> Happening:
    return Happening(
        at=message.created_at,
        kind="wrote",
        who=message.sender_name,
        message=message,
        readers=readers,
        is_answer=reads.answering_run(message.id) is not None,
    )


def _handled(message: Message, reader: Recipient, message_run: MessageRun) -> Iterator[Happening]:
    run_id = message_run.run_id
    yield Happening(
        at=message_run.delivered_at, kind="began", who=reader.name, message=message, run_id=run_id
    )
    if message_run.ended_at is not None:
        yield Happening(
            at=message_run.ended_at,
            kind="failed" if message_run.failure else "done",
            who=reader.name,
            message=message,
            run_id=run_id,
            reason=message_run.failure,
        )


def _leased(lease: Reservation, now: int) -> Iterator[Happening]:
    yield Happening(at=lease.created_at, kind="reserved", who=lease.holder, held=lease)
    ended = lease.released_at if lease.released_at is not None else lease.expires_at
    if ended <= now:
        yield Happening(at=ended, kind="freed", who=lease.holder, held=lease)


def _seen(recipients: Sequence[Recipient]) -> list[Recipient]:
    return [one for one in recipients if one.kind != "bcc"]
