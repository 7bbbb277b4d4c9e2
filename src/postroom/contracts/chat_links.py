"""Direct chats of one person on several channels, and the port that stores which chats belong together."""

from dataclasses import dataclass
from enum import StrEnum

from postroom.contracts.people import ChatAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedChat:
    """A direct chat with its person and the newest code that was issued there.

    Times are in milliseconds since the epoch.
    """

    platform: str
    chat_id: str
    person: str | None = None
    """An id shared by all chats of one person; None if the chat is not linked."""
    shares: bool = True
    """Whether it shares one conversation with the person's other chats."""
    code_hash: str | None = None
    code_until: int = 0
    failures: int = 0
    """Number of wrong codes entered there since the last correct code."""
    locked_until: int = 0

    @property
    def address(self) -> ChatAddress:
        """The address of the chat."""
        return ChatAddress(platform=self.platform, chat_id=self.chat_id)


class LinkOutcome(StrEnum):
    """The result of a code that a person entered."""

    LINKED = "linked"
    UNKNOWN = "unknown"
    """The code was never issued, has expired, or was already used."""
    LOCKED = "locked"
    """Too many wrong codes were entered in this chat; the code was not checked."""
    OWN = "own"
    """The code was entered in the same chat in which it was issued."""
    TOGETHER = "together"
    """Both chats already belong to the same person."""
    OTHER = "other"
    """Each of the two chats is already linked with other chats."""
