"""Inbound messages of chats, the sessions they belong to, and the ports that keep them.

    waiting ──▶ handed_over ──▶ done
       │             ├────────▶ failed
       │             └────────▶ retracted      taken back in the chat before a run read it
       ├──▶ done        a command, or a message that another answered for
       ├──▶ rejected    refused, and the sender was told why
       └──▶ retracted

An inbound message is kept before its platform is told that we have it: once for each platform, account, chat
and id, however often the platform sends it. What is neither done, failed, rejected nor retracted is open.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from postroom.contracts.chat_links import ChatLinks
from postroom.contracts.chat_people import ChatPeople
from postroom.contracts.errors import AlreadyConsumed, IllegalTransition
from postroom.contracts.files import ChatFile, FileStore
from postroom.contracts.messages import Json
from postroom.contracts.records import Record, field, replace
from postroom.contracts.web_chats import WebChats

if TYPE_CHECKING:
    from postroom.contracts.transactions import Transaction

MAX_INBOUND = 200
"""No listing returns more than this at once."""
INBOUND_ID = "line-"
"""On its thread an inbound message is named by this and its id; the word is that of rows already stored."""
CHAT_THREAD = "chat/"
"""Threads of chats are named `chat/<platform>/<account>/<unique>`; who answers there is read off the name."""
CHAT_KIND = "chat"
"""The outbox kind of what is to be said in chats; its targets are `<platform>/<account>`."""


class InboundStatus(StrEnum):
    """Where a message is on its way to an answer."""

    WAITING = "waiting"
    HANDED_OVER = "handed_over"
    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    RETRACTED = "retracted"

    @property
    def is_open(self) -> bool:
        """Whether somebody still has to do something about it."""
        return self in OPEN_STATUSES


OPEN_STATUSES = (InboundStatus.WAITING, InboundStatus.HANDED_OVER)
INBOUND_MOVES: dict[InboundStatus, frozenset[InboundStatus]] = {
    InboundStatus.WAITING: frozenset(InboundStatus) - {InboundStatus.WAITING, InboundStatus.FAILED},
    InboundStatus.HANDED_OVER: frozenset({InboundStatus.DONE, InboundStatus.FAILED, InboundStatus.RETRACTED}),
}
"""What may become of an open message; nothing becomes of the others."""


class InboundKey(Record, frozen=True, kw_only=True):
    """How a platform names a message, for ever."""

    platform: str
    account: str
    """The bot, or other identity of ours, that received it."""
    chat_id: str
    message_id: str


class InboundDraft(Record, frozen=True, kw_only=True):
    """A message as it came in. `body` is all of it that an answer needs: text, sender, media, time."""

    key: InboundKey
    session_key: str
    sender_id: str | None = None
    body: dict[str, Json] = field(default_factory=dict)


class InboundMessage(Record, frozen=True, kw_only=True):
    """A kept message; `inbound_id` grows in the order in which one place received them, with gaps."""

    inbound_id: int
    key: InboundKey
    session_key: str
    sender_id: str | None
    body: dict[str, Json]
    status: InboundStatus
    received_at: int
    updated_at: int
    revision: int = 1
    """Raised by each edit in the chat."""
    thread_id: str | None = None
    """The thread that it was handed over to."""
    reason: str | None = None
    """Why it was rejected or failed."""

    @property
    def thread_message_id(self) -> str:
        """Its id as a message of its thread."""
        return f"{INBOUND_ID}{self.inbound_id}"

    def may_become(self, status: InboundStatus) -> bool:
        """Say whether a move may bring it to this status."""
        return status in INBOUND_MOVES.get(self.status, ())

    def moved(self, move: "InboundMove", *, now: int) -> "InboundMessage":
        """Return the message as a move leaves it; one to the status that it has already leaves it as it is.

        Raises:
            IllegalTransition: it may not become that.
        """
        if self.status is move.status:
            return self
        if not self.may_become(move.status) or move.since not in (None, self.status):
            raise IllegalTransition(
                f"message {self.inbound_id} is {self.status} and cannot become {move.status}",
                value=self.inbound_id,
            )
        return replace(
            self,
            status=move.status,
            thread_id=self.thread_id if move.thread_id is None else move.thread_id,
            reason=self.reason if move.reason is None else move.reason,
            updated_at=now,
        )

    def edited(self, body: dict[str, Json], *, now: int) -> "InboundMessage":
        """Return the message with other words; the same words leave it as it is.

        Raises:
            AlreadyConsumed: it is not open any more.
        """
        if not self.status.is_open:
            raise AlreadyConsumed(f"message {self.inbound_id} is {self.status}", value=self.inbound_id)
        if self.body == body:
            return self
        return replace(self, body=body, revision=self.revision + 1, updated_at=now)


def chat_lock(key: InboundKey) -> str:
    """Return the name by which a chat is locked while something becomes of its inbound messages."""
    return f"chat:{key.platform}/{key.account}/{key.chat_id}"


def session_locks(session_key: str, thread_id: str) -> tuple[str, str]:
    """Return the names by which a session and its thread are locked; no two sessions may have the thread."""
    return f"chat_session:{session_key}", f"chat_thread:{thread_id}"


def inbound_id_of(message_id: str) -> int | None:
    """Return the inbound message that a message of a thread came from; None when it came from no chat."""
    number = message_id.removeprefix(INBOUND_ID)
    return int(number) if number != message_id and number.isascii() and number.isdigit() else None


class Received(Record, frozen=True, kw_only=True):
    """A received message: `is_new` is False for one that was known, which is as it was."""

    message: InboundMessage
    is_new: bool


class InboundMove(Record, frozen=True, kw_only=True):
    """What becomes of messages: their status, and what is then known of them (None leaves it as it was)."""

    status: InboundStatus
    thread_id: str | None = None
    reason: str | None = None
    since: InboundStatus | None = None
    """The status that each message must still have; None: any from which `status` can follow."""


class IntakeLog(Protocol):
    """The inbound messages of all chats."""

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        ...

    async def receive(self, draft: InboundDraft, *, now: int | None = None) -> Received:
        """Keep a message as waiting; one that is known by its key is returned as it stands, and stays so.

        Durable when it returns. Safe to repeat when its answer was lost.

        Raises:
            InvalidRecord: a part of the key, or the session key, is blank.
        """
        ...

    def receiving(
        self, draft: InboundDraft, *, thread_id: str | None = None
    ) -> Callable[["Transaction"], Received]:
        """Return what `receive` does, to be done in a change of the caller under the chat's lock.

        With a thread, to which that change hands it over, a new message is kept as handed over.

        Raises:
            InvalidRecord: as for `receive`.
        """
        ...

    async def move(
        self, inbound_ids: Collection[int], move: InboundMove, *, now: int | None = None
    ) -> tuple[InboundMessage, ...]:
        """Move all of these messages, or none, and return them by id; an id that comes twice counts once.

        A move to the status that a message has already changes nothing and is no error, so that a move may be
        repeated when its answer was lost.

        Raises:
            UnknownMessage: there is no message with one of these ids.
            IllegalTransition: one of them may not become that: `INBOUND_MOVES`.
        """
        ...

    async def edit(self, key: InboundKey, body: dict[str, Json], *, now: int | None = None) -> InboundMessage:
        """Replace the body of an open message and raise its revision; the same body again changes nothing.

        Raises:
            UnknownMessage: the message was never received.
            AlreadyConsumed: it is not open any more.
        """
        ...

    async def forget_answer(self, key: InboundKey) -> None:
        """Note in a message, open or not, that its answer is no longer shown (`metadata.forgotten`).

        Raises:
            UnknownMessage: The message was never received.
        """
        ...

    async def find(self, key: InboundKey) -> InboundMessage | None:
        """Return the message with this key."""
        ...

    async def messages(self, inbound_ids: Collection[int]) -> tuple[InboundMessage, ...]:
        """Return those of these messages that exist, by id; at most `MAX_INBOUND` ids.

        Raises:
            InvalidRecord: more ids than that.
        """
        ...

    async def open_messages(
        self,
        *,
        status: InboundStatus | None = None,
        session_key: str | None = None,
        after: int = 0,
        limit: int = MAX_INBOUND,
    ) -> tuple[InboundMessage, ...]:
        """Return open messages by id, of one of the open states and one session where that is asked.

        It costs what is open, not what ever was.
        """
        ...

    async def newest(self, platform: str, *, limit: int = MAX_INBOUND) -> tuple[InboundMessage, ...]:
        """Return the messages of a platform that were received last, the newest first, however they ended."""
        ...

    async def counts(self) -> dict[InboundStatus, int]:
        """Count all messages by status, states without messages left out; for gauges, at long intervals."""
        ...

    async def purge(self, *, older_than: int, limit: int = 1_000) -> int:
        """Remove up to `limit` messages that are not open and were last changed before `older_than`.

        Return how many that were. What was removed is not known any more when the platform sends it again.
        """
        ...


class ChatSession(Record, frozen=True, kw_only=True):
    """The thread that a chat is bound to at present. `revision` is raised by each change."""

    session_key: str
    thread_id: str
    source: dict[str, Json] = field(default_factory=dict)
    """Where the chat is: platform, account, chat, thread, person."""
    title: str | None = None
    settings: dict[str, Json] = field(default_factory=dict)
    """What people chose for this session, for instance its busy policy."""
    created_at: int = 0
    updated_at: int = 0
    active_at: int = 0
    """When somebody last said something."""
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionThread:
    """A thread that a session is, or once was, bound to; it can be taken up again."""

    thread_id: str
    session_key: str
    title: str | None
    created_at: int
    active_at: int


class ChatSessions(Protocol):
    """Sessions of chats, and the threads that they were bound to."""

    @property
    def storage_identity(self) -> str | None:
        """Names the place where it writes."""
        ...

    async def load(self, session_key: str) -> ChatSession | None:
        """Return one session."""
        ...

    async def open(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a new session and its thread; when there is one with this key, return that unchanged.

        Of callers at the same time one makes it, and all are given the same.

        Raises:
            InvalidRecord: the session key or the thread id is blank.
            DuplicateRecord: the thread is another session's.
        """
        ...

    async def put(self, session: ChatSession, *, now: int | None = None) -> ChatSession:
        """Store a changed session, compared by its revision, and return it with the next one.

        `thread_id`, `source`, `title`, `settings` and `active_at` are stored as given. A thread that it was
        not bound to before becomes one of its own; the title is also that of the present thread.

        Raises:
            UnknownThread: there is no such session.
            VersionConflict: it was changed since it was read.
            DuplicateRecord: another thread of this session has the title, or the thread is another session's.
        """
        ...

    async def rename(self, session_key: str, new_key: str, source: dict[str, Json]) -> bool:
        """Give a session, its threads and its open messages another key, for its chat is elsewhere now.

        False: there is no such session, or there is one with the new key; nothing was changed.

        Raises:
            InvalidRecord: the new key is blank.
        """
        ...

    async def threads(
        self, session_key: str, *, title: str | None = None, limit: int = MAX_INBOUND
    ) -> tuple[SessionThread, ...]:
        """Return a session's threads, the last active first; those of one title when it is given."""
        ...

    async def thread(self, thread_id: str) -> SessionThread | None:
        """Return this thread of a session, whether the session is bound to it at present or not."""
        ...

    async def sessions(self, *, after: str = "", limit: int = MAX_INBOUND) -> tuple[ChatSession, ...]:
        """Return sessions by key."""
        ...


class ChatStores(Protocol):
    """What the gateway keeps, in one place with the runs."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write here as well."""
        ...

    @property
    def intake_log(self) -> IntakeLog:
        """The inbound messages of all chats."""
        ...

    @property
    def sessions(self) -> ChatSessions:
        """Sessions of chats."""
        ...

    @property
    def people(self) -> ChatPeople:
        """Who may write."""
        ...

    @property
    def links(self) -> ChatLinks:
        """Which direct chats are one person's."""
        ...

    @property
    def files(self) -> FileStore:
        """The files that came with messages, and those that runs have left."""
        ...

    @property
    def web_chats(self) -> WebChats:
        """The conversations of the chat page."""
        ...

    async def answered(
        self, inbound_ids: Collection[int], thread_id: str, run_id: str | None
    ) -> tuple[tuple[InboundMessage, ...], tuple[ChatFile, ...]]:
        """Return in one look the messages that have their answer, as `messages` does, and its run's files."""
        ...

    async def reasoning(self, thread_id: str, run_id: str) -> str:
        """Return the reasoning of the model in the newest 100 messages of a run; empty if there is none."""
        ...

    async def note_sent(self, outbox_id: str, steps: int) -> None:
        """Keep how many steps of a reply have arrived: after a crash they are not repeated."""
        ...
