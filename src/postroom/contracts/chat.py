"""Inbound messages of chats, the sessions they belong to, and the ports that store them.

    waiting ──▶ handed_over ──▶ done
      │             ├────────▶ failed
      │             └────────▶ retracted      withdrawn in the chat before a run read it
      ├──▶ done        a command, or a message that another message answered
      ├──▶ rejected    refused, and the sender was notified
      └──▶ retracted

An inbound message is stored before the platform receives a confirmation. A message is stored once for each
platform, account, chat and id, even if the platform sends it again. A message is open until it is done,
failed, rejected or retracted.
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
"""Maximum length of a list that a call returns."""
INBOUND_ID = "line-"
"""Prefix of the id that an inbound message has on its thread. Stored rows contain it, so it cannot change."""
CHAT_THREAD = "chat/"
"""Prefix of the names of chat threads, `chat/<platform>/<account>/<unique>`. The name determines which chat
receives the answers.
"""
CHAT_KIND = "chat"
"""The outbox kind of messages to chats; their targets have the form `<platform>/<account>`."""


class InboundStatus(StrEnum):
    """The processing state of an inbound chat message."""

    WAITING = "waiting"
    HANDED_OVER = "handed_over"
    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    RETRACTED = "retracted"

    @property
    def is_open(self) -> bool:
        """Whether the message still needs to be processed."""
        return self in OPEN_STATUSES


OPEN_STATUSES = (InboundStatus.WAITING, InboundStatus.HANDED_OVER)
INBOUND_MOVES: dict[InboundStatus, frozenset[InboundStatus]] = {
    InboundStatus.WAITING: frozenset(InboundStatus) - {InboundStatus.WAITING, InboundStatus.FAILED},
    InboundStatus.HANDED_OVER: frozenset({InboundStatus.DONE, InboundStatus.FAILED, InboundStatus.RETRACTED}),
}
"""The states to which each open state can change; all other states are final."""


class InboundKey(Record, frozen=True, kw_only=True):
    """The permanent identifier of a message on a chat platform."""

    platform: str
    account: str
    """The account of postroom on the platform, such as a bot, that received the message."""
    chat_id: str
    message_id: str


class InboundMessage(Record, frozen=True, kw_only=True):
    """An inbound chat message.

    `inbound_id` increases, with gaps, in the order of arrival in a chat. `body` contains the text, sender,
    media and time of the message.
    """

    inbound_id: int = 0
    key: InboundKey
    session_key: str
    sender_id: str | None = None
    body: dict[str, Json] = field(default_factory=dict)
    status: InboundStatus = InboundStatus.WAITING
    received_at: int = 0
    updated_at: int = 0
    revision: int = 1
    """The version of the message, which increases with each edit in the chat."""
    thread_id: str | None = None
    """The thread that received the message."""
    reason: str | None = None
    """The reason why the message was rejected or failed; the answer, if the message was answered without a
    run.
    """

    @property
    def thread_message_id(self) -> str:
        """The id of the inbound message on the session's thread."""
        return f"{INBOUND_ID}{self.inbound_id}"

    def may_become(self, status: InboundStatus) -> bool:
        """Return whether the message can change to the given status."""
        return status in INBOUND_MOVES.get(self.status, ())

    def moved(self, move: "InboundMove", *, now: int) -> "InboundMessage":
        """Return a copy of the message with a new status."""
        if self.status is move.status:
            return self
        if not self.may_become(move.status) or move.since not in (None, self.status):
            raise IllegalTransition(
                f"message {self.inbound_id} cannot change from {self.status} to {move.status}",
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
        """Return a copy of the message with a new body.

        Raises:
            AlreadyConsumed: The message is no longer open.
        """
        if not self.status.is_open:
            raise AlreadyConsumed(f"message {self.inbound_id} is {self.status}", value=self.inbound_id)
        if self.body == body:
            return self
        return replace(self, body=body, revision=self.revision + 1, updated_at=now)


def chat_lock(key: InboundKey) -> str:
    """Return the name of the lock for changing a chat's inbound messages."""
    return f"chat:{key.platform}/{key.account}/{key.chat_id}"


def session_locks(session_key: str, thread_id: str) -> tuple[str, str]:
    """Return the names of the locks for a chat session and its thread."""
    return f"chat_session:{session_key}", f"chat_thread:{thread_id}"


def parse_inbound_id(message_id: str) -> int | None:
    """Return the inbound id in a thread's message id, or None for a message that did not come from a chat."""
    number = message_id.removeprefix(INBOUND_ID)
    return int(number) if number != message_id and number.isascii() and number.isdigit() else None


class Received(Record, frozen=True, kw_only=True):
    """An inbound message as stored.

    `is_new` is False if the message was already stored.
    """

    message: InboundMessage
    is_new: bool


class InboundMove(Record, frozen=True, kw_only=True):
    """A change of inbound messages to a new status.

    Fields with the value None do not change the messages.
    """

    status: InboundStatus
    thread_id: str | None = None
    reason: str | None = None
    since: InboundStatus | None = None
    """The status that each message must have before the change.

    None allows every status from which `status` can be reached.
    """


class ChatSession(Record, frozen=True, kw_only=True):
    """The current thread of a chat.

    Each change increases `revision`.
    """

    session_key: str
    thread_id: str
    source: dict[str, Json] = field(default_factory=dict)
    """The address of the chat: platform, account, chat, thread and person."""
    title: str | None = None
    settings: dict[str, Json] = field(default_factory=dict)
    """The settings that people chose for this session, such as the busy policy."""
    created_at: int = 0
    updated_at: int = 0
    active_at: int = 0
    """The time of the newest message from a person."""
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionThread:
    """A current or former thread of a chat session, which the session can resume."""

    thread_id: str
    session_key: str
    title: str | None
    created_at: int
    active_at: int
