"""The initial records of promises, with only the relevant fields given."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from postroom.contracts.choices import Importance, RecipientKind
from postroom.contracts.mail import Agent, Attachment, Message, Project, Reservation
from postroom.stores.mail.access import MailWrites
from postroom.stores.mail.store import MailStore

T = TypeVar("T")

MINUTE = 60_000
"""In milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """A project with three agents, no mail and no reservations."""

    project: Project
    ada: Agent
    ben: Agent
    cyd: Agent


def project(tx: MailWrites, slug: str = "harbor", *, spelling: str | None = None, now: int = 1) -> Project:
    """Store a project at `/projects/<slug>`."""
    path = f"/projects/{slug}"
    return tx.insert_project(
        slug=slug, human_key=path, spelling=spelling or path, git_identity="", owner="local", now=now
    )


def agent(tx: MailWrites, project_id: int, name: str, *, now: int = 1) -> Agent:
    """Store an agent."""
    return tx.insert_agent(project_id, name=name, program="shell", model="none", task_description="", now=now)


def office(tx: MailWrites, slug: str = "harbor") -> Office:
    """Store a project with three agents."""
    home = project(tx, slug)
    ada, ben, cyd = (agent(tx, home.id, name) for name in ("Ada", "Ben", "Cyd"))
    return Office(project=home, ada=ada, ben=ben, cyd=cyd)


async def an_office(store: MailStore, slug: str = "harbor") -> Office:
    """Store a project with three agents, in a separate change."""
    return await store.write(lambda tx: office(tx, slug))


def put_message(
    tx: MailWrites,
    sender: Agent,
    readers: Sequence[Agent],
    *,
    subject: str = "A subject",
    body: str = "A body",
    thread: str | None = None,
    topic: str = "",
    importance: Importance = "normal",
    ack: bool = False,
    kind: RecipientKind = "to",
    now: int = 1,
) -> Message:
    """Store a message and its recipients."""
    message = tx.insert_message(
        project_id=sender.project_id,
        sender=sender,
        thread_id=thread,
        subject=subject,
        body_md=body,
        importance=importance,
        ack_required=ack,
        topic=topic,
        broadcast=False,
        reply_to=None,
        now=now,
    )
    for reader in readers:
        tx.insert_recipient(message.id, reader, kind)
    return message


def reservation(
    tx: MailWrites, holder: Agent, prefix: str, *, ttl: int = MINUTE, now: int, exclusive: bool = True
) -> Reservation:
    """Store a live reservation of everything below a prefix."""
    pattern = f"{prefix}/**" if prefix else "**"
    return tx.insert_reservation(
        holder, pattern=pattern, prefix=prefix, exclusive=exclusive, reason="", ttl=ttl, now=now
    )


def file(sha256: str, *, preview: str | None = None, name: str = "a.bin") -> Attachment:
    """Return an attachment whose bytes are stored, or not, under any hash."""
    return Attachment(
        sha256=sha256, name=name, media_type="application/octet-stream", size=3, preview_sha256=preview
    )


@contextmanager
def refused(*kinds: type[BaseException]) -> Iterator[None]:
    """Expect the block to raise one of these."""
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"nothing was raised; expected {' or '.join(kind.__name__ for kind in kinds)}")


async def never_made(store: MailStore, change: Callable[[MailWrites], object]) -> None:
    """Run a change and undo it by raising at its end."""

    def change_then_raise(tx: MailWrites) -> None:
        change(tx)
        raise _Undone

    with refused(_Undone):
        await store.write(change_then_raise)


class _Undone(Exception):
    """Raised to undo a change."""
