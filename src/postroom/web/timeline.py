"""The timeline of a project: who wrote, who was woken and what became of it, who holds which file.

It is gathered from what is stored, in one consistent view, so that it never tells of what is not there.
Hidden copies do not appear in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from postroom.contracts.mail import Message, Project, Recipient, Reservation
from postroom.contracts.store import MailReads
from postroom.contracts.waking import Handling
from postroom.web import conversation
from postroom.web.reading import known_project, newest_of

Kind = Literal["wrote", "began", "done", "failed", "reserved", "freed"]

LETTERS = 60
HELD = 60
SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened: `who` did it, with a letter or with a file."""

    at: int
    kind: Kind
    who: str
    message: Message | None = None
    readers: Sequence[Recipient] = ()
    is_answer: bool = False
    """Whether the letter tells the end of a run."""
    run_id: str = ""
    reason: str = ""
    held: Reservation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """An agent whose run has a letter in its hands now."""

    who: str
    message: Message
    run_id: str
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePage:
    """What happened in a project lately, and who is at work."""

    project: Project
    happened: Sequence[Happening]
    at_work: Sequence[AtWork]
    is_cut: bool


def timeline(reads: MailReads, slug: str, *, now: int) -> TimelinePage:
    """Return what happened in a project, the newest first."""
    project = known_project(reads, slug)
    messages = _lately(reads, project)
    ids = [one.id for one in messages]
    readers = {number: _seen(found) for number, found in reads.recipients(ids).items()}
    handled = reads.handlings(ids)
    held = newest_of(lambda after, limit: reads.reservations(project.id, limit=limit, after=after), HELD)
    found: list[Happening] = []
    at_work: list[AtWork] = []
    for message in messages:
        found.append(_wrote(reads, message, readers[message.id]))
        for one in readers[message.id]:
            handling = handled[message.id].get(one.agent_id)
            if handling is None:
                continue
            found.extend(_handled(message, one, handling))
            if handling.ended_at is None:
                work = AtWork(
                    who=one.name, message=message, run_id=handling.run_id, since=handling.injected_at
                )
                at_work.append(work)
    for lease in held:
        found.extend(_leased(lease, now))
    found.sort(key=lambda one: one.at, reverse=True)
    is_cut = len(messages) == LETTERS or len(held) == HELD or len(found) > SHOWN
    return TimelinePage(project=project, happened=found[:SHOWN], at_work=at_work, is_cut=is_cut)


def _lately(reads: MailReads, project: Project) -> list[Message]:
    """Return what was written last in a project, and to it by people."""

    def newest(project_id: int) -> list[Message]:
        return newest_of(
            lambda after, limit: reads.project_messages(project_id, limit=limit, after=after), LETTERS
        )

    found = [*newest(project.id), *conversation.from_people(reads, project, newest)]
    return sorted(found, key=lambda one: one.id)[-LETTERS:]


def _wrote(reads: MailReads, message: Message, readers: Sequence[Recipient]) -> Happening:
    return Happening(
        at=message.created_at,
        kind="wrote",
        who=message.sender_name,
        message=message,
        readers=readers,
        is_answer=reads.answering_run(message.id) is not None,
    )


def _handled(message: Message, reader: Recipient, handling: Handling) -> Iterator[Happening]:
    run_id = handling.run_id
    yield Happening(at=handling.injected_at, kind="began", who=reader.name, message=message, run_id=run_id)
    if handling.ended_at is not None:
        yield Happening(
            at=handling.ended_at,
            kind="failed" if handling.failure else "done",
            who=reader.name,
            message=message,
            run_id=run_id,
            reason=handling.failure,
        )


def _leased(lease: Reservation, now: int) -> Iterator[Happening]:
    yield Happening(at=lease.created_at, kind="reserved", who=lease.holder, held=lease)
    ended = lease.released_at if lease.released_at is not None else lease.expires_at
    if ended <= now:
        yield Happening(at=ended, kind="freed", who=lease.holder, held=lease)


def _seen(recipients: Sequence[Recipient]) -> list[Recipient]:
    return [one for one in recipients if one.kind != "bcc"]
