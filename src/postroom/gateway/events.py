"""Incoming and outgoing chat messages, in the same form for every platform."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from postroom.contracts.messages import Json
from postroom.gateway.session import SessionSource


class MessageType(StrEnum):
    """The kind of a message."""

    TEXT = "text"
    LOCATION = "location"
    PHOTO = "photo"
    VIDEO = "video"
    AUDIO = "audio"
    VOICE = "voice"
    DOCUMENT = "document"
    STICKER = "sticker"
    COMMAND = "command"

    @classmethod
    def of_file(cls, mime: str | None) -> "MessageType":
        """Return the kind of a file, based on the first part of the MIME type, such as `image`."""
        return _BY_MIME.get((mime or "").partition("/")[0], cls.DOCUMENT)


_BY_MIME = {"image": MessageType.PHOTO, "video": MessageType.VIDEO, "audio": MessageType.AUDIO}
FILES = frozenset({MessageType.PHOTO, MessageType.VIDEO, MessageType.AUDIO, MessageType.DOCUMENT})
"""The kinds of files on a platform that has no voice messages and no stickers."""
ALL_MEDIA = FILES | {MessageType.VOICE, MessageType.STICKER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that belongs to a message.

    `ref` identifies the file to the platform's adapter and contains no secret. `name` is chosen by the sender
    and never used as a path.
    """

    kind: MessageType
    ref: str
    mime: str | None = None
    name: str | None = None
    size: int | None = None
    """The size in bytes that the platform reports."""
    is_foreign: bool = False
    """Whether somebody other than the sender may have created the file, for example if it is forwarded."""

    @staticmethod
    def foreign(files: "Iterable[Attachment]") -> "tuple[Attachment, ...]":
        """Return copies of the files, marked as not created by the sender of the message."""
        return tuple(replace(file, is_foreign=True) for file in files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """A text by another author that the sender of a message forwarded.

    `author` is None if the platform does not name the author.
    """

    text: str = ""
    author: str | None = None


@dataclass(eq=False, kw_only=True)
class MessageEvent:
    """An incoming message that an adapter has parsed.

    Two events are equal only if they are the same object. `timestamp` is the platform's time of the message,
    in milliseconds since the epoch.
    """

    text: str = ""
    message_type: MessageType = MessageType.TEXT
    source: SessionSource | None = None
    message_id: str | None = None
    """The message's permanent id within its chat.

    If the platform delivers the message again, the id is the same.
    """
    media: tuple[Attachment, ...] = ()
    reply_to_message_id: str | None = None
    reply_to_text: str | None = None
    reply_to_author: str | None = None
    """The author of the answered message, for display."""
    forwarded: tuple[Forwarded, ...] = ()
    """The texts by other people that the sender forwards."""
    unread: tuple[str, ...] = ()
    """Descriptions of the parts that agents cannot read, such as `a game`.

    The sender gets a notice about these parts.
    """
    timestamp: int | None = None
    addressed: bool = True
    """Whether the message is addressed to the bot: it is a direct message, a reply, or mentions the bot."""
    inbound_id: int | None = None
    """The number of the stored message, or None before it is stored."""
    revision: int = 1
    """The version of the message that this event contains. Each edit increases the version."""
    handed_over: bool = False
    """Whether the message has been handed over to an agent."""
    metadata: dict[str, Json] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the message contains nothing that an agent can read."""
        content = (self.text.strip(), self.media, self.forwarded, self.reply_to_text)
        return not any(content) and not {"earlier", "caller"} & self.metadata.keys()

    def is_command(self) -> bool:
        """Return whether the text begins with a slash and a command name."""
        return self.get_command() is not None

    def get_command(self) -> str | None:
        """Return the command's name in lower case, without the slash and without `@bot`.

        Return None if the message is not a command. A path such as `/etc/passwd` is not a command.
        """
        if not self.text.startswith("/"):
            return None
        name = self.text.split(maxsplit=1)[0][1:].partition("@")[0].lower()
        return name if name and name.replace("_", "").replace("-", "").isalnum() else None

    def get_command_args(self) -> str:
        """Return the text after the command's name, or the whole text if the message is not a command."""
        if not self.is_command():
            return self.text
        words = self.text.split(maxsplit=1)
        return words[1].strip() if len(words) > 1 else ""

    def to_body(self) -> dict[str, Json]:
        """Convert the event to plain data for storage."""
        media = [
            {
                "kind": attachment.kind.value,
                "ref": attachment.ref,
                "mime": attachment.mime,
                "name": attachment.name,
                "size": attachment.size,
            }
            for attachment in self.media
        ]
        return {
            "text": self.text,
            "type": self.message_type.value,
            "source": None if self.source is None else self.source.to_dict(),
            "message_id": self.message_id,
            "media": media,
            "foreign_files": [
                number for number, attachment in enumerate(self.media) if attachment.is_foreign
            ],
            "reply_to": self.reply_to_message_id,
            "reply_to_text": self.reply_to_text,
            "reply_to_author": self.reply_to_author,
            "forwarded": [
                {"text": forwarded.text, "author": forwarded.author} for forwarded in self.forwarded
            ],
            "unread": list(self.unread),
            "timestamp": self.timestamp,
            "addressed": self.addressed,
            "metadata": self.metadata,
        }

    @classmethod
    def from_body(
        cls, body: Mapping[str, Json], *, inbound_id: int | None = None, revision: int = 1
    ) -> "MessageEvent":
        """Create an event from the data that `to_body` returned.

        Raises:
            ValueError, KeyError, TypeError: The body is invalid.
        """
        source = body["source"]
        foreign = body.get("foreign_files", ())  # older releases did not store this field
        media = [Attachment(**{**item, "kind": MessageType(item["kind"])}) for item in body["media"]]
        return cls(
            text=body["text"],
            message_type=MessageType(body["type"]),
            source=None if source is None else SessionSource.from_dict(source),
            message_id=body["message_id"],
            media=tuple(replace(attachment, is_foreign=n in foreign) for n, attachment in enumerate(media)),
            reply_to_message_id=body["reply_to"],
            reply_to_text=body["reply_to_text"],
            # The previous release did not store these three fields.
            reply_to_author=body.get("reply_to_author"),
            forwarded=tuple(Forwarded(**item) for item in body.get("forwarded", ())),
            unread=tuple(body.get("unread", ())),
            timestamp=body["timestamp"],
            addressed=body["addressed"],
            inbound_id=inbound_id,
            revision=revision,
            metadata=dict(body["metadata"]),
        )


class SendErrorKind(StrEnum):
    """The reason why a message could not be sent.

    Sending is retried after a rate limit, a temporary failure or an unknown failure. After an unknown
    failure, the platform may have accepted the message.
    """

    TOO_LONG = "too_long"
    BAD_FORMAT = "bad_format"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    RATE_LIMITED = "rate_limited"
    TRANSIENT = "transient"
    UNKNOWN = "unknown"

    @property
    def may_pass(self) -> bool:
        """Whether another attempt to send the message may succeed."""
        return self in (SendErrorKind.RATE_LIMITED, SendErrorKind.TRANSIENT, SendErrorKind.UNKNOWN)

    @property
    def may_have_arrived(self) -> bool:
        """Whether the platform may have accepted the message despite the failure."""
        return self is SendErrorKind.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """The result of sending a message."""

    success: bool
    message_id: str | None = None
    error: str | None = None
    error_kind: SendErrorKind | None = None
    retry_after_ms: int | None = None
    """The time, in milliseconds, that the platform asks the bot to wait."""

    @classmethod
    def sent(cls, message_id: str | None = None) -> "SendResult":
        """Return the result of a message that the platform has accepted."""
        return cls(success=True, message_id=message_id)

    @classmethod
    def failed(cls, kind: SendErrorKind, error: str, *, retry_after_ms: int | None = None) -> "SendResult":
        """Return the result of a message that could not be sent."""
        return cls(success=False, error=error, error_kind=kind, retry_after_ms=retry_after_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A button on a card.

    Pressing the button sends `value`, which has at most 60 ASCII characters.
    """

    label: str
    value: str


def is_button_value(value: str) -> bool:
    """Return whether every platform accepts a text as the value of a button."""
    return value.isascii() and value.isprintable() and 0 < len(value) <= 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A text with buttons, such as a question."""

    text: str
    buttons: tuple[Button, ...] = ()

    def answered(self, note: str) -> "Card":
        """Return a copy of the card that shows `note` and has no buttons."""
        return replace(self, text=f"{self.text}\n\n{note}", buttons=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ButtonPress:
    """A press of a button on a card. `source.user_id` is the person who pressed the button."""

    source: SessionSource
    value: str
    message_id: str | None = None
    """The platform's id of the card."""
    press_id: str | None = None
    """The unique id of each press, if the platform has one."""
