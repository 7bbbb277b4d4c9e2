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

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from postroom.contracts.errors import AlreadyConsumed, IllegalTransition
from postroom.contracts.messages import Json
from postroom.contracts.records import Record, field, replace

if TYPE_CHECKING:
    pass

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
    """Why it was rejected or failed; of a message that is done without a run, the answer to it."""

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
