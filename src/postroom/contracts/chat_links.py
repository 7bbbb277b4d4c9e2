"""The direct chats of one person on several channels, and the port that stores the links between them."""

from dataclasses import dataclass
from enum import StrEnum

from postroom.contracts.people import ChatAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedChat:
    """A direct chat with one person, and the newest link code of the chat.

    Times are in milliseconds since 1970.
    """

    platform: str
    chat_id: str
    person: str | None = None
    """An id that all chats of one person share, or None if the chat is not linked."""
    shares: bool = True
    """Whether the chat shares one conversation with the person's other chats."""
    code_hash: str | None = None
    code_until: int = 0
    failures: int = 0
    """Number of wrong codes that were entered in this chat since the last correct code."""
    locked_until: int = 0

    @property
    def address(self) -> ChatAddress:
        """The address of the chat."""
        return ChatAddress(platform=self.platform, chat_id=self.chat_id)


class LinkOutcome(StrEnum):
    """The result of entering a link code in a chat."""

    LINKED = "linked"
    UNKNOWN = "unknown"
    """The code was never issued, has expired, or was already used."""
    LOCKED = "locked"
    """Too many wrong codes were entered in this chat, so this code was not checked."""
    OWN = "own"
    """The code was entered in the chat in which it was issued."""
    TOGETHER = "together"
    """The two chats already belong to the same person."""
    OTHER = "other"
    """Each of the two chats is already linked with other chats."""
