"""People as recipients of mail, and the two ports that connect mail and chats."""

from dataclasses import dataclass
from typing import Final

from postroom.contracts.errors import InvalidArgument

_LONGEST: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAddress:
    """The address of a chat: `platform/chat_id`, with the platform's own id."""

    platform: str
    chat_id: str

    @property
    def name(self) -> str:
        """The chat as an address shows it."""
        return f"{self.platform}/{self.chat_id}"

    @classmethod
    def parse(cls, text: str) -> "ChatAddress":
        """Return the chat with this name.

        Raises:
            InvalidArgument: The text is not such a name.
        """
        platform, slash, chat_id = text.partition("/")
        fits = slash and platform.isidentifier() and chat_id.strip() == chat_id != ""
        if not fits or len(text) > _LONGEST or not chat_id.isprintable():
            raise InvalidArgument(
                f"{text[:_LONGEST]!r} is not a chat",
                value=text[:_LONGEST],
                remedy="write PLATFORM/ID, such as telegram/123456",
            )
        return cls(platform=platform, chat_id=chat_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWords:
    """A message in a chat to a person who answers there."""

    person: str
    """The person's address: `human:ana`."""
    chat: ChatAddress
    thread_id: str
    """The mail thread of the conversation."""
    subject: str
    text: str
    key: str
    """The idempotency key of the message."""
