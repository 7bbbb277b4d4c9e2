"""What each page shows, as plain values: rows, pages of rows, and what stands around them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from postroom.contracts.choices import Importance
from postroom.contracts.mail import (
    Agent,
    Attachment,
    InboxEntry,
    Message,
    Project,
    Recipient,
    Reservation,
    ThreadHead,
    ThreadParticipant,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list, and where the next ones begin; None when there are no more."""

    rows: Sequence[T]
    next: int | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """A number of rows, as far as they were counted."""

    counted: int
    more: bool

    def __str__(self) -> str:
        return f"{self.counted}+" if self.more else str(self.counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    """A project in the list of projects."""

    project: Project
    agents: Tally
    threads: Tally
    last_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRow:
    """A thread in a list, with its first and its newest message."""

    head: ThreadHead
    first: Message | None
    last: Message | None
    importance: Importance
    """The greater of the two messages' importance."""
    owed: int
    """How many acknowledgements the two messages still wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """A message with everything around it that a page may show."""

    message: Message
    sender: Agent | None
    home: str | None
    """The slug of the sender's project."""
    recipients: Sequence[Recipient]
    attachments: Sequence[Attachment]
    answers: Message | None
    """The message that this one replies to, when the project may show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A project's first page."""

    project: Project
    threads: Page[ThreadRow]
    agents: Page[Agent]
    reservations: Page[Reservation]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadListPage:
    """Some threads of a project, and what their filter may ask for."""

    project: Project
    threads: Page[ThreadRow]
    is_whole: bool
    """Whether the page is full or the list at its end; otherwise older threads were not looked at yet."""
    agents: Sequence[str]
    has_more_agents: bool
    """Whether there are more than are named here."""
    people: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPage:
    """Some messages of a thread, in order."""

    project: Project
    thread_id: str
    first: Message
    size: int
    messages: Page[ShownMessage]
    after: int
    newest: bool
    folded: frozenset[int]
    """Messages that were read."""
    participants: Sequence[ThreadParticipant]
    """Those of the whole thread, as far as its newest `participants_among` messages of each project."""
    participants_among: int
    answers: ShownMessage | None
    """The last message of the thread, which an answer at its end is to; None on a page before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRow:
    """A message that an agent got (`entry`) or sent (without one)."""

    message: Message
    project_slug: str | None
    entry: InboxEntry | None = None
    recipients: Sequence[Recipient] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPage:
    """An agent's profile, one of its boxes, and what it has reserved."""

    project: Project
    agent: Agent
    box: Page[BoxRow]
    held: Page[Reservation]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationsPage:
    """What is reserved now, and what was reserved last."""

    project: Project
    live: Page[Reservation]
    conflicts: Mapping[int, Sequence[Reservation]]
    """The live reservations of others that overlap one, one of the two exclusive, by its id."""
    ended: Sequence[Reservation]
