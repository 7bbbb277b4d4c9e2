"""Addresses of people and chats that receive mail, and messages that pass from a chat to a person."""

from dataclasses import dataclass
from typing import Final

from postroom.contracts.errors import InvalidArgument

_MAX_LENGTH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAddress:
    """The address of a chat in the form `platform/chat_id`."""

    platform: str
    chat_id: str

    @property
    def name(self) -> str:
        """The address as text."""
        return f"{self.platform}/{self.chat_id}"

    @classmethod
    def parse(cls, text: str) -> "ChatAddress":
        """Parse the address of a chat.

        Raises:
            InvalidArgument: The text is not the name of a chat.
        """
        platform, slash, chat_id = text.partition("/")
        fits = slash and platform.isidentifier() and chat_id.strip() == chat_id != ""
        if not fits or len(text) > _MAX_LENGTH or not chat_id.isprintable():
            raise InvalidArgument(
                f"{text[:_MAX_LENGTH]!r} is not a chat",
                value=text[:_MAX_LENGTH],
                remedy="write PLATFORM/ID, such as telegram/123456",
            )
        return cls(platform=platform, chat_id=chat_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWords:
    """A message from a chat to a person."""

    person: str
    """The address of the person, such as `human:ana`."""
    chat: ChatAddress
    thread_id: str
    """The mail thread that contains the conversation."""
    subject: str
    text: str
    key: str
    """The idempotency key of the message."""
