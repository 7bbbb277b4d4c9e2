"""People who are written to, and the two ports by which mail reaches them in chats and comes back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from postroom.contracts.errors import InvalidArgument

if TYPE_CHECKING:
    from postroom.contracts.mail import Attachment
    from postroom.contracts.outbox import OutboxTables

_LONGEST: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAddress:
    """A chat in which somebody is reached: `platform/chat_id`, with the platform's own id."""

    platform: str
    chat_id: str

    @property
    def name(self) -> str:
        """The chat as it is written in an address."""
        return f"{self.platform}/{self.chat_id}"

    @classmethod
    def parse(cls, text: str) -> "ChatAddress":
        """Return the chat of this name.

        Raises:
            InvalidArgument: it is no such name.
        """
        platform, slash, chat_id = text.partition("/")
        fits = slash and platform.isidentifier() and chat_id.strip() == chat_id != ""
        if not fits or len(text) > _LONGEST or not chat_id.isprintable():
            raise InvalidArgument(
                f"{text[:_LONGEST]!r} names no chat",
                value=text[:_LONGEST],
                remedy="write PLATFORM/ID, such as telegram/123456",
            )
        return cls(platform=platform, chat_id=chat_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWords:
    """What was said in a chat to a person who answers there."""

    person: str
    """Their address: `human:ana`."""
    chat: ChatAddress
    thread_id: str
    """The mail thread of the conversation."""
    subject: str
    text: str
    key: str
    """Under one key it is written once."""


class ChatOutbox(Protocol):
    """Has mail messages delivered to chats."""

    def reaches(self, address: ChatAddress) -> bool:
        """Say whether there is a channel to this chat."""
        ...

    def enqueue(
        self,
        outbox: "OutboxTables",
        key: str,
        address: ChatAddress,
        text: str,
        files: "Sequence[Attachment]" = (),
        *,
        keeps_quiet: bool,
    ) -> None:
        """Take a message for a chat, in an open change: it is delivered, or reported as lost.

        Its files follow it; the chat is told of one that cannot be sent there.

        Taken twice, it is delivered once; with `keeps_quiet` after the chat's quiet hours.

        Raises:
            IdempotencyConflict: another text was taken under its key.
        """
        ...


class ChatDelivery(Protocol):
    """Is told what became of messages in chats, and takes people's answers to them."""

    async def arrived(self, key: str) -> None:
        """Take note that the chat shows a message; harmless when it is said again.

        Raises:
            StoreError: it could not be noted.
        """
        ...

    async def lost(self, key: str, why: str) -> None:
        """Tell whoever wrote a message that the chat will not show it; said again, it changes nothing.

        Raises:
            StoreError: it could not be noted.
        """
        ...

    async def prefer(self, chats: Sequence[ChatAddress]) -> str:
        """Have what is written to the person who is reached in one of these chats come to the first of them.

        Return whom.

        Raises:
            UnknownAgent: nobody, or more than one person, is reached in these chats.
            StoreError: it could not be stored.
        """
        ...

    async def reply(self, chats: Sequence[ChatAddress], message: int, text: str, *, key: str) -> str:
        """Answer a message for the person who is reached in one of these chats, which are all theirs.

        Return whom; repeated under its key, it is answered once.

        Raises:
            UnknownMessage: nobody who is reached in these chats was written this message.
            PostroomError: the mail room refuses the answer.
        """
        ...

    async def pass_on(self, said: ChatWords) -> None:
        """Write to a person what was said in a chat, from whoever is reached there.

        A chat in which nobody is reached is named as a visitor; what is written to a visitor comes there.

        Raises:
            StoreError: it could not be stored; it is not known whether it was.
            PostroomError: the mail room refuses it.
        """
        ...
