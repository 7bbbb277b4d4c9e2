"""The records of agent mail: what is stored, and what services answer with.

Records are frozen; instants are milliseconds since the epoch. Which transitions a record may take is
decided in the mail room; the tables repeat the invariants.
"""

import hashlib
import zlib
from dataclasses import dataclass

from postroom.contracts.choices import ContactPolicy, ContactStatus, Importance, RecipientKind, ThreadsSeen
from postroom.contracts.records import Record

URGENT: tuple[Importance, ...] = ("high", "urgent")


class Project(Record, frozen=True, kw_only=True):
    """A shared workspace, named by its absolute path and its slug."""

    id: int
    slug: str
    human_key: str
    created_at: int
    spelling: str
    """The path in the one spelling under which WSL, UNC and drive forms of a folder compare equal."""
    git_identity: str = ""
    owner: str = ""


class Agent(Record, frozen=True, kw_only=True):
    """A named identity in a project."""

    id: int
    project_id: int
    name: str
    program: str
    model: str
    task_description: str
    created_at: int
    last_active_at: int
    contact_policy: ContactPolicy = "open"
    retired_at: int | None = None
    token_hash: str | None = None
    inbox_seq: int = 0
    """The newest sequence number of this agent's inbox; 0 while it is empty."""
    inbox_floor: int = 0
    """Entries up to this number were purged."""
    runs_at_once: int = 1
    """How many of its runs may execute at once, each of another mail thread."""


class Message(Record, frozen=True, kw_only=True):
    """A message; immutable once sent, except that it may be recalled while nobody has read it."""

    id: int
    project_id: int
    sender_id: int
    sender_name: str
    thread_id: str
    subject: str
    body_md: str
    importance: Importance
    ack_required: bool
    created_at: int
    topic: str = ""
    broadcast: bool = False
    reply_to: int | None = None
    recalled_at: int | None = None
    check_value: int | None = None
    """The check value of subject, text and topic when they were written; None: there is none."""


def check_value(message_id: int, subject: str, body_md: str, topic: str) -> int:
    """Return the check value of a message's texts: a CRC-32."""
    return zlib.crc32("\0".join((subject, body_md, topic)).encode(), message_id & 0xFFFFFFFF)


def is_content_of(sha256: str, content: bytes) -> bool:
    """Return whether these bytes are those of a file with this SHA-256; False if they changed on the disk."""
    return hashlib.sha256(content).hexdigest() == sha256


def is_damaged(message: Message) -> bool:
    """Return whether the texts of a message are not those that were written; False if nobody can know."""
    return (
        message.check_value is not None
        and message.recalled_at is None  # an earlier release recalls a message and leaves its check value
        and message.check_value != check_value(message.id, message.subject, message.body_md, message.topic)
    )


class Recipient(Record, frozen=True, kw_only=True):
    """One reader of one message, and what is known of the delivery."""

    message_id: int
    agent_id: int
    name: str
    project_slug: str
    kind: RecipientKind
    seq: int = 0
    """Its number in the reader's inbox; 0 where a message is only about to be shown to its sender."""
    read_at: int | None = None
    acked_at: int | None = None
    announced_at: int | None = None
    announced_by: str | None = None
    """Who told the recipient that the message is there: hook, watch, runner."""


class AddressedAgent(Record, frozen=True, kw_only=True):
    """An agent with its project and its runner."""

    project: Project
    agent: Agent
    runner: str | None
    """The runner as JSON; None: postroom does not run the agent."""


class Received(Record, frozen=True, kw_only=True):
    """A delivery of a message to one agent, and the run that has the message."""

    message_id: int
    project_id: int
    thread_id: str
    kind: RecipientKind
    read_at: int | None
    recalled_at: int | None
    run_id: str | None
    """The newest run of the agent that was given the message; None: no run was."""
    delivered_at: int | None
    """When that run was given the message."""
    ended_at: int | None
    """When that run ended; None while it has not."""
    answer_of: str | None
    """The run whose answer the message is; None: an agent or a person wrote it."""


class InboxEntry(Record, frozen=True, kw_only=True):
    """A message as one recipient sees it."""

    message: Message
    kind: RecipientKind
    seq: int
    read_at: int | None
    acked_at: int | None


class Attachment(Record, frozen=True, kw_only=True):
    """A file that came with a message; its bytes are stored once under their SHA-256."""

    sha256: str
    name: str
    media_type: str
    size: int
    preview_sha256: str | None = None


class Reservation(Record, frozen=True, kw_only=True):
    """A lease on a path or glob of a project; live until `expires_at` or `released_at`, the first of them."""

    id: int
    project_id: int
    agent_id: int
    holder: str
    pattern: str
    prefix: str
    exclusive: bool
    reason: str
    created_at: int
    expires_at: int
    ttl: int
    """How long a renewal or the holder's activity keeps it, in milliseconds."""
    released_at: int | None = None
    released_by: str = ""
    release_reason: str = ""


LivePattern = tuple[int, str]
"""Id and pattern of a live reservation: thousands are read to decide one conflict."""


class ContactLink(Record, frozen=True, kw_only=True):
    """What one agent has asked of, or granted to, another."""

    from_id: int
    to_id: int
    status: ContactStatus
    reason: str
    created_at: int
    decided_at: int | None = None


class Reach(Record, frozen=True, kw_only=True):
    """What decides whether and how a message reaches an agent."""

    agent_id: int
    granted: ContactStatus | None
    """What it has granted to the sender."""
    is_woken: bool
    """It has a runner, or a chat."""
    has_session: bool
    """A session of a client program acts as it."""


class ThreadHead(Record, frozen=True, kw_only=True):
    """A thread as a list shows it."""

    thread_id: str
    subject: str
    messages: int
    first_id: int
    last_id: int
    last_at: int
    last_sender: str


class ProjectTally(Record, frozen=True, kw_only=True):
    """What a list of projects says of one; more than a given number is not counted."""

    project_id: int
    agents: int
    """Those that are not retired."""
    threads: int
    last_at: int | None
    """When its last message was written."""


class ThreadParticipant(Record, frozen=True, kw_only=True):
    """Who wrote or got some messages of a thread."""

    agent_id: int
    name: str
    project_slug: str
    """Empty where a sender is not known any more."""
    wrote: int
    unread: int


class ThreadFilter(Record, frozen=True, kw_only=True):
    """Which threads are wanted: those with a message that is all of this. Recalled messages are none."""

    seen: ThreadsSeen = "any"
    """Unread, or not acknowledged where that is asked for: by those named here, or by any reader."""
    importance: tuple[Importance, ...] = ()
    agent_id: int = 0
    """Who wrote it or got it openly; 0 for anybody. The same of `person_id`."""
    person_id: int = 0
    people_id: int = 0
    """The project of people: what they wrote to a project is looked at too."""


class SearchHit(Record, frozen=True, kw_only=True):
    """A message that a search found, with the place where."""

    message: Message
    snippet: str
    rank: float


class StoredAnswer(Record, frozen=True, kw_only=True):
    """The first answer given under an idempotency key."""

    digest: str
    answer: bytes


@dataclass(frozen=True, slots=True)
class Term:
    """A word or, when `prefix`, the beginning of one; `field` narrows it to one column."""

    text: str
    prefix: bool = False
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words in this order, side by side."""

    words: tuple[str, ...]
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Not:
    """Whatever `left` finds and `right` does not."""

    left: "Query"
    right: "Query"


@dataclass(frozen=True, slots=True)
class All:
    """Every one of the parts."""

    parts: tuple["Query", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of the parts."""

    parts: tuple["Query", ...]


Query = Term | Phrase | Not | All | AnyOf

BEST_AMONG = 1_000
"""A search for the best looks at so many of the newest matches: to rank every message that holds a word that
most of them hold takes a hundred times as long and finds nothing better."""

SEARCH_FIELDS = ("subject", "body", "sender", "topic")
