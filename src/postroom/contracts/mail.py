"""The records of agent mail: stored records, and answers of services.

Records are frozen; instants are milliseconds since the epoch. The `mail` package decides which transitions a
record may take; the tables repeat the invariants.
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
    """The path in a form in which WSL, UNC and drive spellings of one folder are equal."""
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
    """Maximum number of its runs that execute at once, each of another mail thread."""


class Message(Record, frozen=True, kw_only=True):
    """A message; immutable once sent, except that it can be recalled before anybody has read it."""

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
    """The check value of subject, text and topic at the time of writing; None if it has none."""


def check_value(message_id: int, subject: str, body_md: str, topic: str) -> int:
    """Return the check value of a message's texts: a CRC-32."""
    return zlib.crc32("\0".join((subject, body_md, topic)).encode(), message_id & 0xFFFFFFFF)


def is_content_of(sha256: str, content: bytes) -> bool:
    """Return whether these bytes have this SHA-256; False if a file changed on the disk."""
    return hashlib.sha256(content).hexdigest() == sha256


def is_damaged(message: Message) -> bool:
    """Return whether the texts of a message differ from those written; False without a check value."""
    return (
        message.check_value is not None
        and message.recalled_at is None  # an earlier release recalls a message and leaves its check value
        and message.check_value != check_value(message.id, message.subject, message.body_md, message.topic)
    )


class Recipient(Record, frozen=True, kw_only=True):
    """One recipient of one message, and the state of the delivery."""

    message_id: int
    agent_id: int
    name: str
    project_slug: str
    kind: RecipientKind
    seq: int = 0
    """Its number in the recipient's inbox; 0 in the answer to the sender."""
    read_at: int | None = None
    acked_at: int | None = None
    announced_at: int | None = None
    announced_by: str | None = None
    """The announcer of the message to the recipient: hook, watch, runner."""


class AddressedAgent(Record, frozen=True, kw_only=True):
    """An agent with its project and its runner."""

    project: Project
    agent: Agent
    runner: str | None
    """The runner as JSON; None if postroom does not run the agent."""


class Received(Record, frozen=True, kw_only=True):
    """A delivery of a message to one agent, and the run that has the message."""

    message_id: int
    project_id: int
    thread_id: str
    kind: RecipientKind
    read_at: int | None
    recalled_at: int | None
    run_id: str | None
    """The newest run of the agent that received the message; None if no run did."""
    delivered_at: int | None
    """The time when that run received the message."""
    ended_at: int | None
    """The time when that run ended; None if it has not ended."""
    answer_of: str | None
    """The run that wrote the message as its answer; None if an agent or a person wrote it."""


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
    """A reservation of a path or glob in a project.

    Active until `expires_at` or `released_at`, whichever is first.
    """

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
    """How long a renewal or the holder's activity extends it, in milliseconds."""
    released_at: int | None = None
    released_by: str = ""
    release_reason: str = ""


LivePattern = tuple[int, str]
"""Id and pattern of an active reservation: one conflict check reads thousands."""


class ContactLink(Record, frozen=True, kw_only=True):
    """The contact of one agent with another: requested, or granted."""

    from_id: int
    to_id: int
    status: ContactStatus
    reason: str
    created_at: int
    decided_at: int | None = None


class Reach(Record, frozen=True, kw_only=True):
    """The facts that decide whether and how a message reaches an agent."""

    agent_id: int
    granted: ContactStatus | None
    """The agent's decision about contact with the sender."""
    is_woken: bool
    """Whether it has a runner or a chat."""
    has_session: bool
    """Whether a session of a client program acts as it."""


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
    """The counts of a project in a list of projects; each count stops at a given maximum."""

    project_id: int
    agents: int
    """Number of agents that are not retired."""
    threads: int
    last_at: int | None
    """The time of its last message."""


class ThreadParticipant(Record, frozen=True, kw_only=True):
    """A participant who sent or received messages of a thread."""

    agent_id: int
    name: str
    project_slug: str
    """Empty if the sender is unknown."""
    wrote: int
    unread: int


class ThreadFilter(Record, frozen=True, kw_only=True):
    """A filter of threads: at least one message meets all conditions. Recalled messages do not count."""

    seen: ThreadsSeen = "any"
    """Unread, or unacknowledged although requested: by the named readers, or by any reader."""
    importance: tuple[Importance, ...] = ()
    agent_id: int = 0
    """The sender or visible recipient; 0 for anybody. The same applies to `person_id`."""
    person_id: int = 0
    people_id: int = 0
    """The project of people, whose messages to a project count too."""


class SearchHit(Record, frozen=True, kw_only=True):
    """A message that a search found, with the matching excerpt."""

    message: Message
    snippet: str
    rank: float


class StoredAnswer(Record, frozen=True, kw_only=True):
    """The first answer given under an idempotency key."""

    digest: str
    answer: bytes


@dataclass(frozen=True, slots=True)
class Term:
    """A word, or with `prefix` the start of a word; `field` limits it to one column."""

    text: str
    prefix: bool = False
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Phrase:
    """Adjacent words in this order."""

    words: tuple[str, ...]
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Not:
    """Matches of `left` that `right` does not match."""

    left: "Query"
    right: "Query"


@dataclass(frozen=True, slots=True)
class All:
    """Matches of every part."""

    parts: tuple["Query", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Matches of at least one part."""

    parts: tuple["Query", ...]


Query = Term | Phrase | Not | All | AnyOf

BEST_AMONG = 1_000
"""Number of newest matches that a search by rank considers. Ranking every message that holds a word of most
messages takes a hundred times as long and finds nothing better."""

SEARCH_FIELDS = ("subject", "body", "sender", "topic")
