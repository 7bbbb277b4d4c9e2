"""Records of agent mail: the records that are stored, and the results that services return.

Records are frozen, and times are in milliseconds since the epoch. The `mail` package decides which changes of
a record are allowed, and table constraints enforce the invariants.

The timeline of a project contains the events of a time span that includes its start and excludes its end. The
log of a project contains its events in order, numbered from 1 without gaps. The store writes an entry in the
transaction of the change that the entry reports, so neither exists without the other. An entry refers to
records only by their ids. An entry contains no subject, text, reason or question, so the log cannot reveal
the content of recalled messages.

An event that concerns agents of two projects is written to the logs of both.

A retention rule applies to all messages, or to the messages of a project, a topic, or both. The rule keeps
messages for a number of days, or puts them on hold. Messages on hold are never deleted. `mail.retention`
decides which messages are deleted.
"""

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, NamedTuple, get_args

from postroom.contracts.choices import ContactPolicy, ContactStatus, Importance, RecipientKind, ThreadsSeen
from postroom.contracts.records import Record, field

URGENT: tuple[Importance, ...] = ("high", "urgent")


class Project(Record, frozen=True, kw_only=True):
    """A shared workspace, identified by an absolute path and a slug."""

    id: int
    slug: str
    human_key: str
    created_at: int
    spelling: str
    """The normalized path, which is equal for the WSL, UNC and Windows (`C:`) spellings of one folder."""
    git_identity: str = ""
    owner: str = ""


class Agent(Record, frozen=True, kw_only=True):
    """A named member of a project that sends and receives mail."""

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
    """The newest sequence number in this agent's inbox, or 0 if the inbox is empty."""
    inbox_floor: int = 0
    """The highest sequence number of the inbox entries that were deleted."""
    runs_at_once: int = 1
    """Maximum number of runs that the agent executes at once, each on a different mail thread."""


class Message(Record, frozen=True, kw_only=True):
    """A message, which never changes after sending.

    A sender can recall a message that nobody has read.
    """

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
    """The check value of subject, text and topic at the time of writing, or None if none was stored."""


def check_value(message_id: int, subject: str, body_md: str, topic: str) -> int:
    """Return the check value (CRC-32) of a message's texts."""
    return zlib.crc32("\0".join((subject, body_md, topic)).encode(), message_id & 0xFFFFFFFF)


def is_content_of(sha256: str, content: bytes) -> bool:
    """Return whether content has the given SHA-256 hash."""
    return hashlib.sha256(content).hexdigest() == sha256


def is_damaged(message: Message) -> bool:
    """Return whether the texts of a message differ from the message's check value."""
    return (
        message.check_value is not None
        # An earlier release that recalls a message does not update its check value.
        and message.recalled_at is None
        and message.check_value != check_value(message.id, message.subject, message.body_md, message.topic)
    )


class Recipient(Record, frozen=True, kw_only=True):
    """A recipient of a message, with the delivery state."""

    message_id: int
    agent_id: int
    name: str
    project_slug: str
    kind: RecipientKind
    seq: int = 0
    """The number of the message in the recipient's inbox, or 0 in the result for the sender."""
    read_at: int | None = None
    acked_at: int | None = None
    announced_at: int | None = None
    announced_by: str | None = None
    """The component that notified the recipient of the message: hook, watch or runner."""


class AddressedAgent(Record, frozen=True, kw_only=True):
    """An agent with the agent's project and runner."""

    project: Project
    agent: Agent
    runner: str | None
    """The runner as JSON, or None if postroom does not run the agent."""
    has_notes: bool = False
    """Whether the project has any notes, active or not."""


class Received(Record, frozen=True, kw_only=True):
    """The delivery of a message to an agent, and the run that received the message."""

    message_id: int
    project_id: int
    thread_id: str
    kind: RecipientKind
    read_at: int | None
    recalled_at: int | None
    run_id: str | None
    """The agent's newest run that received the message, or None if no run received it."""
    delivered_at: int | None
    """The time when the run received the message."""
    ended_at: int | None
    """The time when the run ended, or None if it has not ended."""
    answer_of: str | None
    """The run whose answer is this message, or None if an agent or a person wrote the message."""


class InboxEntry(Record, frozen=True, kw_only=True):
    """A message as a recipient sees it."""

    message: Message
    kind: RecipientKind
    seq: int
    read_at: int | None
    acked_at: int | None


class Attachment(Record, frozen=True, kw_only=True):
    """A file that was sent with a message.

    Files with the same content share one stored copy.
    """

    sha256: str
    name: str
    media_type: str
    size: int
    preview_sha256: str | None = None


class Reservation(Record, frozen=True, kw_only=True):
    """A reservation of a path or glob pattern, active until `expires_at` or `released_at`."""

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
    """The time, in milliseconds, by which a renewal or the holder's activity extends the reservation."""
    released_at: int | None = None
    released_by: str = ""
    release_reason: str = ""


LivePattern = tuple[int, str]
"""The id and pattern of an active reservation; a tuple, because one conflict check reads thousands of them.
"""


class ContactLink(Record, frozen=True, kw_only=True):
    """A request for contact between two agents, and the decision about the request."""

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
    """The agent's decision on a contact request from the sender."""
    is_woken: bool
    """Whether the server can start a run of the agent, through a runner or a chat."""
    has_session: bool
    """Whether a client session acts as the agent."""


class ThreadHead(Record, frozen=True, kw_only=True):
    """A thread with the facts for a list of threads."""

    thread_id: str
    subject: str
    messages: int
    first_id: int
    last_id: int
    last_at: int
    last_sender: str


class ProjectTally(Record, frozen=True, kw_only=True):
    """The counts for a list of projects.

    Each counter stops at a maximum.
    """

    project_id: int
    agents: int
    """Number of agents in the project that are not retired."""
    threads: int
    last_at: int | None
    """The time of the project's last message."""


class ThreadParticipant(Record, frozen=True, kw_only=True):
    """A participant who sent or received a message of a thread."""

    agent_id: int
    name: str
    project_slug: str
    """The slug of the participant's project; empty if the sender is unknown."""
    wrote: int
    unread: int


class ThreadFilter(Record, frozen=True, kw_only=True):
    """A filter for threads.

    A thread matches if one of its messages meets all conditions.
    """

    seen: ThreadsSeen = "any"
    """Matches messages that the given readers, or any reader, have not yet read or acknowledged."""
    importance: tuple[Importance, ...] = ()
    agent_id: int = 0
    """The sender or a visible recipient of the message; 0 matches any agent. `person_id` has the same meaning
    for a person.
    """
    person_id: int = 0
    people_id: int = 0
    """The project that contains people; messages from people to another project count for that project."""


class SearchHit(Record, frozen=True, kw_only=True):
    """A message that a search found, with a matching excerpt."""

    message: Message
    snippet: str
    rank: float


class StoredAnswer(Record, frozen=True, kw_only=True):
    """The result of the first call with an idempotency key."""

    digest: str
    answer: bytes


@dataclass(frozen=True, slots=True)
class Term:
    """A search for a word.

    `prefix` matches words with the given beginning, and `field` restricts the search to a column.
    """

    text: str
    prefix: bool = False
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Phrase:
    """A search for adjacent words in a fixed order."""

    words: tuple[str, ...]
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Not:
    """A search for everything that matches `left` but not `right`."""

    left: "Query"
    right: "Query"


@dataclass(frozen=True, slots=True)
class All:
    """A search for everything that matches all parts."""

    parts: tuple["Query", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A search for everything that matches at least one part."""

    parts: tuple["Query", ...]


Query = Term | Phrase | Not | All | AnyOf

BEST_AMONG = 1_000
"""A search by rank considers only the newest matches, up to this number. Ranking all matches of a word that
occurs in most messages would take a hundred times as long, without better results.
"""

SEARCH_FIELDS = ("subject", "body", "sender", "topic")


class ProjectSize(Record, frozen=True, kw_only=True):
    """The number of records in a project."""

    agents: int
    messages: int
    reservations: int
    tokens: int
    """Number of named tokens that are bound to the project, including invalid ones."""


Outcome = Literal["", "done", "failed", "cancelled", "waiting", "cut_off"]
"""The outcome of an attempt, or "" while it is active. `cut_off` means that its server stopped or its lease
ended.
"""


class Attempt(Record, frozen=True, kw_only=True):
    """An execution of an agent's run.

    The outcome `cut_off` means an interruption.
    """

    id: int
    run_id: str
    agent_id: int
    queued_at: int
    """The time when the attempt was queued."""
    began_at: int
    ended_at: int | None = None
    outcome: Outcome = ""
    waited_until: int | None = None
    """The time when a run that waited for a person was resumed, or its questions were withdrawn."""
    error: str = ""


class EndedAttempt(NamedTuple):
    """An ended execution of a run, and the agent of the run."""

    run_id: str
    project_id: int
    agent: str
    outcome: Outcome
    ended_at: int


class AttemptGroup(Record, frozen=True, kw_only=True):
    """Successful or cancelled executions of one agent that started close together."""

    agent_id: int
    count: int
    first_id: int
    """The id of the attempt that started first."""
    run_id: str
    """The run of one of the attempts."""
    queued_at: int
    """The time when the first attempt was queued."""
    began_at: int
    ended_at: int
    is_cancelled: bool
    """Whether at least one attempt was cancelled."""


class Written(Record, frozen=True, kw_only=True):
    """A sent message without its text."""

    id: int
    project_id: int
    sender_id: int
    sender_name: str
    thread_id: str
    subject: str
    importance: str
    created_at: int
    recalled_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time span with a start and an end."""

    begin: int
    end: int


EventKind = Literal[
    "project.made",
    "project.merged",
    "agent.registered",
    "agent.changed",
    "agent.retired",
    "agent.unretired",
    "agent.policy_set",
    "agent.runner_set",
    "agent.runner_dropped",
    "message.sent",
    "message.recalled",
    "message.deleted",
    "delivery.announced",
    "delivery.delivered",
    "delivery.handled",
    "delivery.failed",
    "delivery.read",
    "delivery.acknowledged",
    "reservation.made",
    "reservation.renewed",
    "reservation.released",
    "reservation.taken",
    "reservation.expired",
    "task.added",
    "task.changed",
    "task.ready",
    "task.claimed",
    "task.released",
    "task.lease_ended",
    "task.blocked",
    "task.review",
    "task.done",
    "task.cancelled",
    "agent.idle",
    "file.changed",
    "branch.merged",
    "branch.moved",
    "note.added",
    "note.ended",
    "contact.asked",
    "contact.granted",
    "contact.blocked",
    "run.began",
    "run.waiting",
    "run.ended",
    "run.failed",
    "run.cut_off",
    "question.asked",
    "question.answered",
    "question.withdrawn",
]
EVENT_KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)

OF_CONTACT: Final[Mapping[ContactStatus, EventKind]] = {
    "pending": "contact.asked",
    "approved": "contact.granted",
    "blocked": "contact.blocked",
}

HIDDEN: Final = "hidden"
"""The detail of an event about a blind copy; the event is shown only to readers who may know of the copy."""
OTHER: Final = "other_id"
"""The detail that contains the second agent of a contact."""

Detail = Mapping[str, str | int | bool]


class Happening(Record, frozen=True, kw_only=True):
    """An event for the log of a project, before the event has a number."""

    kind: EventKind
    at: int
    agent_id: int | None = None
    """The agent that acted; for a delivery, the agent that owns the inbox."""
    message_id: int | None = None
    reservation_id: int | None = None
    run_id: str | None = None
    detail: Detail = field(default_factory=dict)


class ProjectEvent(Record, frozen=True, kw_only=True):
    """An entry in a project's log."""

    project_id: int
    seq: int
    happening: Happening


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """The range of a log: all entries after `oldest`, up to and including `newest`.

    The bounds of an empty log are 0.
    """

    oldest: int
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRule:
    """The retention period of messages.

    None for `project`, `topic` or `thread` matches any value.
    """

    project: str | None = None
    """The path, alias or slug of the project."""
    topic: str | None = None
    thread: str | None = None
    keep: timedelta | None = None
    """The time for which the messages are kept; None puts them on hold."""
    unread_stays: bool = True
    """Whether messages are never deleted while they are unread or lack a requested acknowledgement."""

    @property
    def holds(self) -> bool:
        """Whether the rule prevents the deletion of messages."""
        return self.keep is None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedMessage:
    """A message with the facts that decide whether the message may be deleted."""

    id: int
    thread_id: str
    topic: str
    created_at: int
    is_awaited: bool
    """Whether a recipient has not read the message, or has not sent a requested acknowledgement; retired
    agents do not count.
    """
    is_at_work: bool
    """Whether a run has received the message or will receive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldMessages:
    """A filter for messages that may be deleted."""

    before: int
    """Only messages from before this time match."""
    threads: Sequence[str] = ()
    topics: Sequence[str] = ()
    is_any: bool = False
    """Whether messages of all threads and topics match."""
    with_awaited: bool = False
    """Whether messages match that a recipient has not yet read or acknowledged."""
