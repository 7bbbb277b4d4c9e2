"""Direct chats of one person on several channels, and the port that keeps which belong together."""

from dataclasses import dataclass
from enum import StrEnum

from postroom.contracts.people import ChatAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedChat:
    """A direct chat, whose it is, and the code that was given there last; instants in milliseconds."""

    platform: str
    chat_id: str
    person: str | None = None
    """The same for all chats of one person; None: it is linked with none."""
    shares: bool = True
    """Whether its conversation is that of the person's other chats."""
    code_hash: str | None = None
    code_until: int = 0
    failures: int = 0
    """Wrong codes that were entered there since a right one."""
    locked_until: int = 0

    @property
    def address(self) -> ChatAddress:
        """Where it is."""
        return ChatAddress(platform=self.platform, chat_id=self.chat_id)


class LinkOutcome(StrEnum):
    """What became of a code that was entered."""

    LINKED = "linked"
    UNKNOWN = "unknown"
    """Nobody was given it, or it has ended, or it was used."""
    LOCKED = "locked"
    """Too many wrong codes were entered in this chat; it was not looked at."""
    OWN = "own"
    """It was given in the chat in which it was entered."""
    TOGETHER = "together"
    """Both chats are one person's already."""
    OTHER = "other"
    """Each chat is linked already, with others."""
