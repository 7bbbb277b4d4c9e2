"""Direct chats of one person on several channels, and the port that keeps which belong together."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from postroom.contracts.chat_people import PairingRules
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


class ChatLinks(Protocol):
    """Which direct chats are one person's. Each method is one transaction."""

    async def find(self, address: ChatAddress) -> LinkedChat | None:
        """Return what is known of a chat."""
        ...

    async def offer(
        self, address: ChatAddress, code_hash: str, rules: PairingRules, *, now: int | None = None
    ) -> None:
        """Keep the hash of a code of this chat for `rules.code_ms`, in the place of an earlier one.

        Raises:
            InvalidRecord: the chat or the hash is blank.
        """
        ...

    async def redeem(
        self,
        address: ChatAddress,
        code_hash: str,
        rules: PairingRules,
        *,
        person: str,
        now: int | None = None,
    ) -> tuple[LinkOutcome, LinkedChat | None]:
        """Link a chat with the one that gave this code, and return that; `person` names a new person.

        A code links once. Each code that nobody was given counts as a wrong one of this chat; the last that
        `rules.most_wrong` allows locks the chat for `rules.locked_ms`. A right code begins the count anew.
        """
        ...

    async def share(self, address: ChatAddress, *, shares: bool) -> bool:
        """Say whether a linked chat has the person's conversation or its own; False when it is not linked."""
        ...

    async def leave(self, address: ChatAddress) -> LinkedChat | None:
        """Forget that a chat is linked, and its code; return it as it was, None when it was not linked."""
        ...

    async def chats_of(self, person: str) -> tuple[LinkedChat, ...]:
        """Return a person's chats by platform and id, up to 200."""
        ...
