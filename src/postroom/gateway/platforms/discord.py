"""The Discord channel. The channel needs discord.py, which the extra `discord` installs.

Limits of Discord, and how the adapter handles them:

- Discord has no acknowledgements. A session advances when messages are received, not when they are stored. So
  the adapter keeps updates that cannot be stored in a queue, in order, and retries until they are stored.
  When the queue contains `max_held` updates, the adapter closes the connection. Discord keeps later updates
  for some minutes, and delivers them after a RESUME.
- After a longer absence, a new session begins without the missed updates. The adapter then requests the
  messages after the last stored message (`backfill`): up to `backfill_limit` messages for each of the 200
  channels with the newest messages. All other updates are lost: messages in channels that neither `channels`
  nor `remember` nor an earlier update named; edits, deletions, buttons and commands during the absence; and
  updates that were in memory when the process was killed.
- A `nonce` makes a message unique only for some minutes. A later repetition is sent as a new message.
- If a button or command is not answered within three seconds, Discord shows a failure, even if postroom has
  accepted it.
- Discord never refuses markup, so no message needs to be sent again as plain text.
"""

import asyncio
import hashlib
import json
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, Struct

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import (
    ConfigError,
    CredentialRefused,
    InvalidArgument,
    ServerUnavailable,
    TooLarge,
)
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json
from postroom.gateway.capabilities import ChannelCapabilities, Rate, RateLimits
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import (
    FILES,
    Attachment,
    ButtonPress,
    Card,
    Forwarded,
    MessageEvent,
    MessageType,
    SendErrorKind,
    SendResult,
)
from postroom.gateway.platforms import discord_library
from postroom.gateway.platforms.base import (
    TOO_OFTEN,
    AdapterState,
    BasePlatformAdapter,
    Inbound,
    Metadata,
    pause_ms,
)
from postroom.gateway.platforms.discord_library import Bot, Cut, Refused, RestFailure
from postroom.gateway.platforms.options import refuse_address, secret_remedy
from postroom.gateway.platforms.safe_text import poll_in_words, storable_json
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger

_LOG = get_logger(__name__)


# Functions without I/O or state that convert Discord's data to postroom's types.


MAX_NONCE_LENGTH = 25
BUTTONS_A_ROW, ROWS = 5, 5
MAX_LABEL_LENGTH, MAX_VALUE_LENGTH, MAX_NOTE_LENGTH = 80, 100, 2_000
EPHEMERAL = 1 << 6
MENTIONS: Json = {"parse": ["users"], "replied_user": False}
"""The setting that a message notifies only the people it mentions, and never a role or everyone."""
_MIME = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)


def convert_markdown(text: str, limit: int) -> str:
    """Convert Markdown to Discord's dialect.

    If the converted text is longer than `limit`, the text is returned unchanged.
    """
    pieces = re.split(r"(^```.*?^```[ \t]*$|^```.*\Z|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    for pattern, put in _CONVERSIONS:
        pieces[::2] = [pattern.sub(put, piece) for piece in pieces[::2]]
    made = "".join(pieces)
    return made if len(made) <= limit else text


def _table(found: re.Match[str]) -> str:
    return f"```\n{found[0].rstrip()}\n```\n"


_Put = str | Callable[[re.Match[str]], str]
_CONVERSIONS: tuple[tuple[re.Pattern[str], _Put], ...] = (
    (re.compile(r"^#{4,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE), r"**\1**"),
    (re.compile(r"!\[([^\]\n]+)\]\((https?://[^\s)]+)\)"), r"[\1](\2)"),
    (re.compile(r"!\[\]\((https?://[^\s)]+)\)"), r"\1"),
    (re.compile(r"^\|.*\|[ \t]*\n\|[ \t:|-]+\|[ \t]*(?:\n\|.*\|[ \t]*)*(?:\n|\Z)", re.MULTILINE), _table),
)


def make_nonce(dedupe_key: str) -> str:
    """Return a short nonce for a dedupe key. Equal keys have equal nonces."""
    return hashlib.sha256(dedupe_key.encode()).hexdigest()[:MAX_NONCE_LENGTH]


def build_message_body(text: str, *, nonce: str, reply_to: str | None = None) -> dict[str, Json]:
    """Return the request body for a new message."""
    made: dict[str, Json] = {
        "content": text,
        "allowed_mentions": MENTIONS,
        "nonce": nonce,
        "enforce_nonce": True,
    }
    if is_id(reply_to):
        made["message_reference"] = {"message_id": reply_to, "fail_if_not_exists": False}
    return made


def build_upload_form(body: dict[str, Json], attachment: Attachment, data: bytes) -> list[dict[str, Any]]:
    """Return the multipart form of a message with a file."""
    name = file_name(attachment.name)
    fields = body | {"attachments": [{"id": 0, "filename": name}]}
    mime = (
        attachment.mime
        if attachment.mime and _MIME.fullmatch(attachment.mime)
        else "application/octet-stream"
    )
    return [
        {"name": "payload_json", "value": json.dumps(fields), "content_type": "application/json"},
        {"name": "files[0]", "value": data, "filename": name, "content_type": mime},
    ]


def build_buttons(card: Card) -> list[Json] | None:
    """Return the buttons of a card in rows, or None if Discord cannot show all buttons."""
    if len(card.buttons) > BUTTONS_A_ROW * ROWS or any(
        len(button.value) > MAX_VALUE_LENGTH or len(button.label) > MAX_LABEL_LENGTH
        for button in card.buttons
    ):
        return None
    shown: Sequence[Json] = [
        {"type": 2, "style": 2, "label": button.label or "\u200b", "custom_id": button.value}
        for button in card.buttons
    ]
    rows = range(0, len(shown), BUTTONS_A_ROW)
    return [{"type": 1, "components": list(shown[start : start + BUTTONS_A_ROW])} for start in rows]


def build_private_response(text: str) -> dict[str, Json]:
    """Return a response that only the person who pressed the button can see."""
    return {
        "type": 4,
        "data": {"content": text[:MAX_NOTE_LENGTH], "flags": EPHEMERAL, "allowed_mentions": {"parse": []}},
    }


def file_name(name: str | None) -> str:
    """Return a file name that is safe in a header, without a path or quotation marks."""
    kept_text = re.sub(
        r"[^\w.() +-]", "_", (name or "").replace("\\", "/").rpartition("/")[2], flags=re.ASCII
    )
    return kept_text.strip(". ")[:100] or "file"


def convert_refusal(failure: RestFailure) -> SendResult:
    """Convert a failed request to the result of sending a message."""
    if failure.status == 0 or failure.status >= 500:
        kind = SendErrorKind.UNKNOWN if failure.taken else SendErrorKind.TRANSIENT
    elif failure.status == 413 or (failure.status == 400 and "or fewer in length" in str(failure)):
        kind = SendErrorKind.TOO_LONG
    else:
        kind = {
            401: SendErrorKind.FORBIDDEN,
            403: SendErrorKind.FORBIDDEN,
            404: SendErrorKind.NOT_FOUND,
            429: SendErrorKind.RATE_LIMITED,
        }.get(failure.status, SendErrorKind.BAD_FORMAT)
    return SendResult.failed(kind, str(failure), retry_after_ms=failure.wait_ms)


FIRST_MILLISECOND = 1_420_070_400_000
"""The start of 2015, in milliseconds since the epoch. The times in Discord's ids count from this time."""
SPOKEN = (0, 19)
"""The types of messages that people write. Other types report events, such as a join or a pin."""
DIRECT, GROUP, THREADS = 1, 3, (10, 11, 12)
VOICE_FLAG = 1 << 13
COMMAND, COMPONENT = 2, 3

Id: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9]{1,20}\Z")]
S = TypeVar("S", bound=Struct)


class Unreadable(InvalidArgument):
    """An update from Discord does not have the documented format.

    The error message does not quote the update.
    """


class Author(Struct, frozen=True, kw_only=True):
    """A person or a program."""

    id: Id
    bot: bool | None = None
    global_name: str | None = None
    username: str | None = None

    @property
    def name(self) -> str | None:
        """The display name."""
        return self.global_name or self.username


class Member(Struct, frozen=True, kw_only=True):
    """A person in a guild."""

    nick: str | None = None
    user: Author | None = None


class File(Struct, frozen=True, kw_only=True):
    """A file of a message."""

    url: Annotated[str, Meta(min_length=1)]
    content_type: str | None = None
    filename: str | None = None
    size: int | None = None


class Named(Struct, frozen=True, kw_only=True):
    """A named part of a message, such as a sticker or the author of an embed."""

    name: str | None = None
    value: str | None = None
    text: str | None = None


class Embed(Struct, frozen=True, kw_only=True):
    """A preview of a web page, or formatted content in a program's message."""

    author: Named | None = None
    provider: Named | None = None
    footer: Named | None = None
    title: str | None = None
    url: str | None = None
    description: str | None = None
    fields: list[Named] | None = None

    @property
    def words(self) -> str:
        """The text of the embed."""
        named = f"{self.title} ({self.url})" if self.title and self.url else self.title
        lines = (f"{field.name}: {field.value}" for field in self.fields or ())
        texts = (named, self.description, *lines, (self.footer or Named()).text)
        return "\n".join(value for value in texts if value)

    @property
    def origin(self) -> str | None:
        """The author of the embed, or the address of the previewed page."""
        names = (named.name for named in (self.author, self.provider) if named is not None)
        return next(filter(None, names), self.url)


class PollAnswer(Struct, frozen=True, kw_only=True):
    """An option of a poll."""

    poll_media: Named | None = None


class Poll(Struct, frozen=True, kw_only=True):
    """A poll."""

    question: Named | None = None
    answers: list[PollAnswer] | None = None


class Component(Struct, frozen=True, kw_only=True):
    """A block of a message, which may contain other blocks."""

    content: str | None = None
    components: "list[Component] | None" = None


class Content(Struct, frozen=True, kw_only=True):
    """The content of a message or of a forwarded message."""

    content: str | None = None
    flags: Json = 0
    sticker_items: list[Named] | None = None
    poll: Poll | None = None
    components: list[Component] | None = None
    embeds: list[Embed] | None = None
    attachments: list[File] | None = None
    message_snapshots: "list[Snapshot] | None" = None

    @property
    def own_words(self) -> list[str]:
        """The texts of the message, the poll and the blocks, and the names of the stickers."""
        stickers = [f":{named.name or 'sticker'}:" for named in self.sticker_items or ()]
        lines = [" ".join(part for part in (self.content, *stickers) if part)]
        if self.poll is not None:
            answers = ((answer.poll_media or Named()).text for answer in self.poll.answers or ())
            question = (self.poll.question or Named()).text
            # Omit votes: Discord edits the message at the end of a poll, and this must not change the text.
            lines.append(poll_in_words(question, ((answer, None) for answer in answers)))
        waiting = list(self.components or ())
        while waiting:
            part = waiting.pop(0)
            lines.append(part.content or "")
            waiting[:0] = part.components or ()
        return [value for value in lines if value]

    @property
    def words(self) -> str:
        """The complete text, including embeds and forwarded messages."""
        forwarded = (snapshot.message.words for snapshot in self.message_snapshots or ())
        lines = (*self.own_words, *(embed.words for embed in self.embeds or ()), *forwarded)
        return "\n\n".join(part for part in lines if part)

    @property
    def files(self) -> tuple[Attachment, ...]:
        """The files of the message, without the files of forwarded messages."""
        is_voice = isinstance(self.flags, int) and bool(self.flags & VOICE_FLAG)
        return tuple(
            Attachment(
                kind=MessageType.VOICE if is_voice else MessageType.of_file(attachment.content_type),
                ref=attachment.url,
                mime=attachment.content_type,
                name=attachment.filename,
                size=attachment.size,
            )
            for attachment in self.attachments or ()
        )


class Snapshot(Struct, frozen=True, kw_only=True):
    """A forwarded message, without its author."""

    message: Content


class Answered(Content, frozen=True, kw_only=True):
    """The message to which another message replies."""

    author: Author | None = None

    @property
    def writer(self) -> str | None:
        """The author of the text, or None for a forwarded message."""
        return None if self.message_snapshots or self.author is None else self.author.name


class Reference(Struct, frozen=True, kw_only=True):
    """A reference to a message that another message answers or forwards."""

    type: Json = 0
    message_id: Id | None = None


class Located(Struct, frozen=True, kw_only=True):
    """The channel of an update.

    An update without a guild belongs to a direct message.
    """

    channel_id: Id
    guild_id: Id | None = None


class Message(Answered, frozen=True, kw_only=True):
    """A message, or an update of a message."""

    id: Id
    channel_id: Id
    guild_id: Id | None = None
    type: Json = 0
    webhook_id: Json = None
    member: Member | None = None
    mentions: list[Author] | None = None
    message_reference: Reference | None = None
    referenced_message: Answered | None = None
    edited_timestamp: str | None = None

    @property
    def is_program(self) -> bool:
        """Whether a program wrote the message."""
        return self.webhook_id is not None or bool(self.author and self.author.bot)

    @property
    def has_new_words(self) -> bool:
        """Whether the update changed the text of the message."""
        return bool(self.edited_timestamp) and self.content is not None and self.author is not None

    def is_for(self, me: "Me") -> bool:
        """Return whether the bot must process a message.

        System messages and the bot's own messages are not processed.

        Raises:
            Unreadable: The message has no author.
        """
        if self.author is None:
            raise Unreadable("a message from Discord has no author")
        return self.type in SPOKEN and self.author.id != me.user_id

    def names(self, me: "Me") -> bool:
        """Return whether the message mentions the bot or replies to it."""
        answered = self.referenced_message and self.referenced_message.author
        return any(item.id == me.user_id for item in (*(self.mentions or ()), *filter(None, [answered])))


class Deletion(Located, frozen=True, kw_only=True):
    """The deletion of one or more messages."""

    id: Id | None = None
    ids: list[Id] | None = None


class Option(Struct, frozen=True, kw_only=True):
    """An argument of a slash command, or a subcommand."""

    name: str = ""
    value: Any = UNSET
    options: "list[Option] | None" = None

    @property
    def words(self) -> list[str]:
        """The words that a person would type for this option."""
        return [self.name, *_spelt(self.options)] if self.value is UNSET else [str(self.value)]


class Asked(Struct, frozen=True, kw_only=True):
    """The pressed button or the slash command of an interaction."""

    custom_id: str | None = None
    name: str | None = None
    options: list[Option] | None = None


class Pressed(Struct, frozen=True, kw_only=True):
    """The message with the pressed button."""

    id: Id


class Interaction(Located, frozen=True, kw_only=True):
    """A pressed button or a slash command.

    The token of an interaction is a secret that authorizes the response.
    """

    id: Id
    token: Annotated[str, Meta(min_length=1)]
    type: Json = 0
    user: Author | None = None
    member: Member | None = None
    message: Pressed | None = None
    data: Asked | None = None


class ChannelObject(Struct, frozen=True, kw_only=True):
    """A channel as Discord's API describes it."""

    type: Json = None
    guild_id: Id | None = None
    parent_id: Id | None = None
    name: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """The fields of a channel that are needed to process its messages."""

    chat_type: str
    name: str | None = None
    topic: str | None = None
    parent: str | None = None
    """The parent channel of a thread."""
    guild: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """The bot itself."""

    user_id: str

    def without(self, text: str) -> str:
        """Return a text without mentions of the bot."""
        return re.sub(rf"[ \t]*<@!?{self.user_id}>", "", text).strip()


# Incoming updates.


def read(told: object, kind: type[S]) -> S:
    """Convert an update to a struct of the type `kind`.

    Raises:
        Unreadable: The update has another form. The error does not quote it.
    """
    try:
        return msgspec.convert(storable_json(told), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Unreadable(f"an update from Discord has an unknown form: {error}") from error


def is_id(value: object) -> bool:
    """Return whether a value is a Discord id, which is a text of up to 20 digits."""
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20


def read_time_from_id(message_id: str) -> int:
    """Return the time when Discord issued an id, in milliseconds since the epoch."""
    return (int(message_id) >> 22) + FIRST_MILLISECOND


def id_at(instant: int) -> str:
    """Return the smallest id that Discord can have issued at the time `instant`."""
    return str(max(instant - FIRST_MILLISECOND, 0) << 22)


def parse_channel(data: object) -> Channel:
    """Parse a channel object.

    Raises:
        Unreadable: The object is not a channel.
    """
    channel_object = read(data, ChannelObject)
    if channel_object.type == DIRECT:
        return Channel(chat_type="dm")
    if channel_object.type == GROUP:
        return Channel(chat_type="group", name=channel_object.name)
    if channel_object.type in THREADS:
        if channel_object.parent_id is None:
            raise Unreadable("a thread from Discord has no channel")
        return Channel(
            chat_type="thread",
            name=channel_object.name,
            parent=channel_object.parent_id,
            guild=channel_object.guild_id,
        )
    return Channel(
        chat_type="channel",
        name=channel_object.name,
        topic=channel_object.topic,
        guild=channel_object.guild_id,
    )


def build_source(channel_id: str, channel: Channel, account: str, **speaker: Any) -> SessionSource:
    """Return the source of the messages in a channel.

    The chat of a thread is the parent channel of the thread.
    """
    return SessionSource(
        platform=Platform.DISCORD,
        chat_id=channel.parent or channel_id,
        chat_name=channel.name,
        chat_type=channel.chat_type,
        thread_id=channel_id if channel.parent else None,
        chat_topic=channel.topic,
        account=account,
        **speaker,
    )


def build_event(message: Message, channel: Channel, me: Me) -> MessageEvent:
    """Convert a message to an event.

    Raises:
        Unreadable: The message has no author.
    """
    snapshots = [snapshot.message for snapshot in message.message_snapshots or ()]
    embeds, own = message.embeds or (), message.own_words
    forwarded = [Forwarded(text=snapshot.words) for snapshot in snapshots]
    if message.is_program:
        own += [embed.words for embed in embeds if embed.words]
    else:
        forwarded += [Forwarded(text=embed.words, author=embed.origin) for embed in embeds if embed.words]
    reference, answered = message.message_reference, message.referenced_message
    media = message.files + Attachment.foreign(file for snapshot in snapshots for file in snapshot.files)
    quoted: tuple[Attachment, ...] = ()
    if answered is not None and (answered.author is None or answered.author.id != me.user_id):
        quoted = Attachment.foreign(answered.files)
    answers = reference.message_id if reference is not None and reference.type == 0 else None
    event = MessageEvent(
        text=me.without("\n\n".join(own)),
        message_type=media[0].kind if media else MessageType.TEXT,
        source=_spoken(message, channel, me, message.author, is_program=message.is_program),
        message_id=message.id,
        media=media + quoted,
        reply_to_message_id=answers,
        reply_to_text=None
        if answered is None
        else answered.words or ("(a file)" if answered.files else None),
        reply_to_author=None if answered is None else answered.writer,
        forwarded=tuple(forwarded),
        timestamp=read_time_from_id(message.id),
        addressed=channel.chat_type == "dm" or message.names(me),
        metadata={"guild_id": message.guild_id} if message.guild_id else {},
    )
    if not media and event.is_command():
        event.message_type = MessageType.COMMAND
    return event


def parse_interaction(pressed: Interaction, channel: Channel, me: Me) -> ButtonPress | MessageEvent | None:
    """Convert an interaction from Discord to a button press, or to the event of a slash command.

    Return None for an interaction that is neither a button press nor a slash command.

    Raises:
        Unreadable: The interaction names no person or no card.
    """
    if pressed.data is None or pressed.type not in (COMMAND, COMPONENT):
        return None
    source = _spoken(pressed, channel, me, pressed.user)
    if pressed.type == COMPONENT:
        if pressed.message is None:
            raise Unreadable("a button press from Discord has no message")
        value = pressed.data.custom_id or ""
        return ButtonPress(source=source, value=value, message_id=pressed.message.id, press_id=pressed.id)
    return MessageEvent(
        text=" ".join((f"/{pressed.data.name or ''}", *_spelt(pressed.data.options))),
        message_type=MessageType.COMMAND,
        source=source,
        message_id=pressed.id,
        timestamp=read_time_from_id(pressed.id),
        metadata={"guild_id": pressed.guild_id} if pressed.guild_id else {},
    )


def in_order(page: object) -> list[dict[str, Any]]:
    """Return the messages of a page, oldest first, without entries that have no id.

    Raises:
        Unreadable: The page is not a list.
    """
    if not isinstance(page, list):
        raise Unreadable("Discord returned something other than a list of messages")
    known_items = [item for item in page if isinstance(item, dict) and is_id(item.get("id"))]
    return sorted(known_items, key=lambda one: int(one["id"]))


def _spelt(options: Sequence[Option] | None) -> list[str]:
    return [word for option in options or () for word in option.words]


def _spoken(
    update: Message | Interaction,
    channel: Channel,
    me: Me,
    author: Author | None,
    *,
    is_program: bool = False,
) -> SessionSource:
    member = update.member or Member()
    actor = author or member.user
    if actor is None:
        raise Unreadable("an update from Discord does not name the user who caused it")
    return build_source(
        update.channel_id,
        channel,
        me.user_id,
        user_id=actor.id,
        user_name=member.nick or actor.name,
        is_bot=bool(actor.bot) or is_program,
    )


# Updates that are not stored yet. Discord has no acknowledgements, so updates stay in memory, in order, until
# they are stored. An update that cannot be stored delays the later updates.


ChannelId = Annotated[str, Meta(pattern=r"^[0-9]{1,20}\Z", extra={"write": "a text of digits"})]


class DiscordOptions(PlatformConfig, frozen=True, kw_only=True):
    """The settings in the table `[platforms.discord]`. `token` is the token of the bot."""

    base_url: str = "https://discord.com/api/v10"
    """The address of the REST API.

    The library stores this address for the whole process.
    """
    cdn_url: str = "https://cdn.discordapp.com"
    """The address of the file server. Files are requested from no other host."""
    backfill: bool = True
    """Whether the bot requests the messages that arrived while it was not connected."""
    backfill_limit: Annotated[int, Meta(ge=1, le=100_000)] = 500
    """Maximum number of messages of a channel that are requested after each absence."""
    backfill_minutes: Annotated[int, Meta(ge=0, le=100_000)] = 60
    """The maximum age, in minutes, of the messages that are requested at the first read of `channels`."""
    channels: tuple[ChannelId, ...] = ()
    """The ids of the channels whose recent messages are requested at the start."""
    max_held: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """Maximum number of updates in memory that are not stored yet."""
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=600)] = 30
    """The time limit for one response from Discord."""

    def __post_init__(self) -> None:
        refuse_address("base_url", self.base_url)
        refuse_address("cdn_url", self.cdn_url)


def bot_token(token: str | None) -> str:
    """Return the token of a bot without white space and without the prefix `Bot`.

    Raises:
        ConfigError: The token is missing or malformed. The error does not show it.
    """
    kept_text = (token or "").strip().removeprefix("Bot ").strip()
    if not kept_text or not kept_text.isascii() or not kept_text.isprintable() or " " in kept_text:
        raise ConfigError(
            "the Discord bot's token is missing or malformed",
            remedy=secret_remedy(
                "token", "the token under Bot → Reset Token at https://discord.com/developers/applications"
            ),
        )
    return kept_text


ABSENCE = "ABSENCE"
"""A marker in the queue for the start of a new session, at which missed messages are requested."""
MAX_MARKS = 200
MAX_PLACES = 5_000
PAGE = 100
TAKEN = "Got it."


class Intake:
    """The queue of updates that are not stored yet."""

    def __init__(
        self,
        options: DiscordOptions,
        *,
        request: Callable[..., Awaitable[Any]],
        accept: Callable[[MessageEvent], Awaitable[None]],
        take_until_kept: Callable[[Json, Callable[[], Awaitable[None]]], Awaitable[None]],
        inbound: Callable[[], Inbound | None],
    ) -> None:
        self.me: Me | None = None
        self._request = request
        self._accept = accept
        self._take_until_kept = take_until_kept
        self._inbound = inbound
        self._options = options
        self._held: deque[tuple[str, object]] = deque()
        self._marks: OrderedDict[str, str] = OrderedDict()
        self._channels: OrderedDict[str, Channel] = OrderedDict()
        self._arrived, self._room, self._settled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._settled.set()

    def hold(self, name: str, data: object) -> None:
        """Add an update to the end of the queue."""
        self._held.append((name, data))
        self._settled.clear()
        self._arrived.set()
        if self.full:
            self._room.clear()

    def remember(self, channel_id: str, message_id: str) -> None:
        """Record the newest known message of a channel.

        After reconnecting, the bot requests the messages that follow the newest known message.
        """
        known_mark = self._marks.pop(channel_id, "0")
        self._marks[channel_id] = max(known_mark, message_id, key=int)
        while len(self._marks) > MAX_MARKS:
            self._marks.popitem(last=False)

    def watch(self, now: int) -> None:
        """Request the recent messages of each configured channel that has no known message."""
        since = id_at(now - self._options.backfill_minutes * 60_000)
        for channel_id in self._options.channels:
            if channel_id not in self._marks:
                self.remember(channel_id, since)

    @property
    def full(self) -> bool:
        """Whether the queue of updates is full."""
        return len(self._held) >= self._options.max_held

    async def room(self) -> None:
        """Wait until at least half of the queue is free."""
        await self._room.wait()

    async def settled(self, within_seconds: float) -> None:
        """Wait until all updates are stored, for at most `within_seconds`."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._settled.wait()
        except TimeoutError:
            _LOG.warning("discord.left_unkept", updates=len(self._held))

    async def run(self) -> None:
        """Hand over the queued updates until the task is cancelled."""
        while True:
            await self._arrived.wait()
            while self._held:
                name, data = self._held[0]
                await self._hand_over(name, data)
                self._held.popleft()
                if len(self._held) <= self._options.max_held // 2:
                    self._room.set()
            self._arrived.clear()
            self._settled.set()

    async def _hand_over(self, name: str, data: object) -> None:
        """Hand over an update, and record the newest message of the channel."""
        await self._take_until_kept({"update": name, "data": data}, partial(self._take, name, data))
        if name != "MESSAGE_CREATE":
            return
        fields = data if isinstance(data, dict) else {}
        channel_id, message_id = fields.get("channel_id"), fields.get("id")
        if is_id(channel_id) and is_id(message_id):
            self.remember(str(channel_id), str(message_id))

    async def _take(self, name: str, data: object) -> None:
        match name:
            case "MESSAGE_CREATE":
                if (event := await self._event(read(data, Message))) is not None:
                    await self._accept(event)
            case "MESSAGE_UPDATE":
                message, inbound = read(data, Message), self._inbound()
                if inbound is not None and message.has_new_words and (event := await self._event(message)):
                    await inbound.edited(event)
            case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
                gone = read(data, Deletion)
                inbound = self._inbound()
                if inbound is None or self.me is None:
                    return
                channel = await self._channel(gone.channel_id, gone.guild_id)
                source = build_source(gone.channel_id, channel, self.me.user_id)
                for message_id in gone.ids or filter(None, [gone.id]):
                    await inbound.deleted(source, message_id)
            case "INTERACTION_CREATE":
                interaction = read(data, Interaction)
                inbound = self._inbound()
                if inbound is None or self.me is None:
                    return
                channel = await self._channel(interaction.channel_id, interaction.guild_id)
                pressed = parse_interaction(interaction, channel, self.me)
                if pressed is None:
                    return
                if isinstance(pressed, ButtonPress):
                    note = await inbound.pressed(pressed)
                else:
                    await self._accept(pressed)
                    note = TAKEN
                try:
                    await self._request(
                        "POST",
                        "/interactions/{interaction_id}/{webhook_token}/callback",
                        json=build_private_response(note),
                        interaction_id=interaction.id,
                        webhook_token=interaction.token,
                    )
                except RestFailure as failure:  # the press was accepted; only the note was too late
                    _LOG.info("discord.note_not_shown", status=failure.status, code=failure.code)
            case "CHANNEL_UPDATE" | "THREAD_UPDATE":
                channel_id = data.get("id") if isinstance(data, dict) else None
                if isinstance(channel_id, str):
                    self._channels.pop(channel_id, None)
            case _:
                # Request the messages after the newest known message, in each known channel.
                for channel_id in tuple(self._marks):
                    try:
                        await self._read_on(channel_id)
                    except RestFailure as failure:
                        if failure.status not in (403, 404):
                            raise
                        self._marks.pop(channel_id, None)

    async def _event(self, message: Message) -> MessageEvent | None:
        if self.me is None or not message.is_for(self.me):
            return None
        return build_event(message, await self._channel(message.channel_id, message.guild_id), self.me)

    # The channel of a message.

    async def _channel(self, channel_id: str, guild_id: str | None) -> Channel:
        if guild_id is None:
            return self._remember_channel(channel_id, Channel(chat_type="dm"))
        try:
            return await self._looked_up(channel_id)
        except RestFailure as failure:
            if failure.status not in (403, 404):
                raise
            return Channel(chat_type="channel", guild=guild_id)

    async def _looked_up(self, channel_id: str) -> Channel:
        if (known_channel := self._channels.get(channel_id)) is not None:
            return self._remember_channel(channel_id, known_channel)
        value = await self._request("GET", "/channels/{channel_id}", channel_id=channel_id)
        return self._remember_channel(channel_id, parse_channel(value))

    def _remember_channel(self, channel_id: str, channel: Channel) -> Channel:
        self._channels[channel_id] = channel
        self._channels.move_to_end(channel_id)
        while len(self._channels) > MAX_PLACES:
            self._channels.popitem(last=False)
        return channel

    # After an absence.

    async def _read_on(self, channel_id: str) -> None:
        guild_id = (await self._looked_up(channel_id)).guild
        left = self._options.backfill_limit
        while left > 0:
            if (mark := self._marks.get(channel_id)) is None:
                return  # the channel's mark was removed; never read from the beginning
            limit = min(left, PAGE)
            page = await self._request(
                "GET",
                "/channels/{channel_id}/messages",
                query={"after": mark, "limit": str(limit)},
                channel_id=channel_id,
            )
            messages = in_order(page)
            for message in messages:
                fields = message | {"channel_id": channel_id} | ({"guild_id": guild_id} if guild_id else {})
                await self._hand_over("MESSAGE_CREATE", fields)
            left -= limit
            if len(messages) < limit:
                return
        _LOG.warning("discord.backfill_cut", channel_id=channel_id, limit=self._options.backfill_limit)


READY_SECONDS = 30
SETTLE_SECONDS = 2
MIN_BEFORE_IDENTIFY_MS = 5_000
"""The minimum time between two new sessions that Discord allows."""
RESUMES = 5
"""The number of failures in a row after which a new session begins."""
PORTAL = "https://discord.com/developers/applications"
_MESSAGES = "/channels/{channel_id}/messages"
_MESSAGE = "/channels/{channel_id}/messages/{message_id}"
_REACTION = f"{_MESSAGE}/reactions/{{emoji}}/@me"
_TOKEN = ("unauthorized", "Discord rejected the token", f"create a new token: {PORTAL} → Bot → Reset Token")
_REFUSALS: Mapping[int, tuple[str, str, str]] = {
    401: _TOKEN,
    4004: _TOKEN,
    4010: (
        "sharding",
        "Discord rejected the shard of the connection",
        "report this as a defect: postroom makes one connection for all guilds",
    ),
    4011: ("sharding", "the bot is in too many guilds for one connection", "remove the bot from some guilds"),
    4012: (
        "library",
        "Discord no longer supports this version of its API",
        "upgrade postroom: this release uses a version of the API that Discord has ended",
    ),
    4013: ("intents", "Discord rejected one of the intents as invalid", "upgrade postroom"),
    4014: (
        "missing_intent",
        "the bot may not read messages: the privileged intent `Message Content` is off",
        f"enable it: {PORTAL} → Bot → Privileged Gateway Intents → Message Content Intent",
    ),
}


class DiscordAdapter(BasePlatformAdapter):
    """Connects one bot to Discord."""

    platform = Platform.DISCORD
    options = DiscordOptions
    passing = (RestFailure, OSError)
    capabilities = ChannelCapabilities(
        # According to Discord's developers (discord/discord-api-docs 1315), the limit counts code points.
        limit=2_000,
        edits=True,
        threads=True,
        typing=True,
        reactions=True,
        media=FILES,
        # docs.discord.com states 50 calls a second. The limits of a channel are in the responses, which the
        # library reads. The limit for reactions is postroom's own: a refused reaction must not delay answers.
        rates=RateLimits(bot=Rate(50, 1_000), methods={"react": Rate(8, 1_000)}),
    )

    def __init__(
        self, config: DiscordOptions, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = config
        self._intake = Intake(
            self._options,
            request=self._request,
            accept=self.handle_message,
            take_until_kept=self.take_until_kept,
            inbound=lambda: self._inbound,
        )
        self._bot: Bot | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._greeted = False
        self._attempt = 0

    @property
    def account(self) -> str:
        """The bot's id, or `default` until the id is known."""
        return "default" if self._intake.me is None else self._intake.me.user_id

    def lock_identity(self) -> str | None:
        """Return the bot's token, which only one process on a machine may use."""
        return self.config.token

    def remember(self, source: SessionSource, message_id: str) -> None:
        """Record the newest stored message of a channel, so that the bot can request later messages."""
        if is_id(at := source.thread_id or source.chat_id) and is_id(message_id):
            self._intake.remember(at, message_id)

    # Connecting and disconnecting.

    def load_libraries(self) -> None:
        """Import discord.py, which takes almost a second."""
        discord_library.load()

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Log in, and start to receive updates."""
        token = bot_token(self.config.token)
        await asyncio.to_thread(self.load_libraries)
        await self.disconnect()
        self.liveness.state = AdapterState.CONNECTING
        self._tasks = Tasks(f"channel {self.platform.value}")
        discord_library.direct(self._options.base_url.rstrip("/"))
        bot = Bot(token, self._on_update, timeout_seconds=self._options.timeout_seconds)
        connected = False
        try:
            self._intake.me = Me(user_id=await bot.login())
            # Open the first session and wait until Discord confirms it.
            self._greeted = False
            async with asyncio.timeout(READY_SECONDS):
                await bot.open(resume=False)
                while not self._greeted:
                    await bot.poll()
                    self._heard()
            connected = True
        except Refused as refused:
            raise self._refused(refused.code) from None
        except (Cut, RestFailure, TimeoutError) as error:
            why = str(error) if isinstance(error, RestFailure) else "Discord's gateway started no session"
            self._fail("unreachable", why, retryable=True)
            raise ServerUnavailable(why, remedy="check whether this server can reach Discord") from None
        finally:
            if not connected:
                await bot.close()
        self._bot = bot
        self.liveness.error_code = self.liveness.error = None
        self._keeping = self._tasks.start(self._watch(self._intake.run), name="keep")
        self._receiving = self._tasks.start(self._watch(partial(self._receive_updates, bot)), name="receive")

    async def disconnect(self) -> None:
        """Stop receiving, and store the received updates within two seconds."""
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])
            self._receiving = None
        if (bot := self._bot) is not None:
            await bot.hang_up(discord_library.GOODBYE)
            if self._keeping is not None and not self._keeping.done():
                await self._intake.settled(0 if self.is_held_up else SETTLE_SECONDS)
        self._bot = None
        await self._tasks.close()
        if bot is not None:
            await bot.close()
        self.liveness.state = AdapterState.STOPPED

    async def _watch(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run background work, and report a failure of the work."""
        try:
            await work()
        except Exception as error:
            self._fail(
                "internal", f"the adapter stopped because of an error: {type(error).__name__}", retryable=True
            )
            raise

    async def _receive_updates(self, bot: Bot) -> None:
        """Receive updates, and reconnect whenever the connection ends."""
        try:
            while True:
                try:
                    while not self._intake.full:
                        await bot.poll()
                        self._heard()
                except Cut as cut:
                    if cut.unreadable:
                        self.liveness.refused += 1
                    _LOG.info("discord.cut", resumable=cut.resumable, unreadable=cut.unreadable)
                    resumable = cut.resumable
                else:
                    await bot.hang_up()
                    resumable = True
                self.liveness.state = AdapterState.RECONNECTING
                await self._intake.room()
                await self._open_again(bot, resumable=resumable)
        except Refused as refused:
            await bot.hang_up()
            self._refused(refused.code)

    async def _open_again(self, bot: Bot, *, resumable: bool) -> None:
        """Open the gateway connection again, with pauses between the attempts."""
        asked_ms = 0
        while True:
            resume = resumable and self._attempt < RESUMES
            if self._attempt or not resume:
                least = max(asked_ms, 0 if resume else MIN_BEFORE_IDENTIFY_MS)
                await self._timer.sleep(pause_ms(self._attempt, least=least))
            self._attempt += 1
            await self._until_ours()
            try:
                return await bot.open(resume=resume)
            except Cut as cut:
                resumable = resumable and cut.resumable
            except RestFailure as failure:
                if failure.status == 401:
                    raise Refused(401) from None
                asked_ms = failure.wait_ms or 0

    def _on_update(self, name: str, data: object) -> None:
        """Put an event of the gateway into the queue without waiting."""
        self._attempt = 0
        if name not in ("READY", "RESUMED"):
            self._intake.hold(name, data)
            return
        self._greeted = True
        self.liveness.state = AdapterState.CONNECTED
        if name == "READY" and self._options.backfill:
            self._intake.watch(self._clock.now())
            self._intake.hold(ABSENCE, None)

    def _refused(self, code: int) -> ConfigError:
        name, message, remedy = _REFUSALS[code]
        is_token = _REFUSALS[code] is _TOKEN
        self._fail(name, f"{message}; {remedy}", retryable=not is_token)
        return (CredentialRefused if is_token else ConfigError)(message, value=code, remedy=remedy)

    # Outgoing messages.

    async def _request(self, method: str, path: str, **told: Any) -> Any:
        if self._bot is None:
            raise RestFailure("not connected to Discord")
        try:
            return await self._bot.request(method, path, **told)
        except RestFailure as failure:
            if failure.status == 401:
                self._refused(401)
            raise

    async def _say(self, method: str, path: str, metadata: Metadata | None = None, **told: Any) -> SendResult:
        """Call the API to send or change a message, and return the result."""
        if not all(is_id(told[name]) for name in ("channel_id", "message_id") if name in told):
            return SendResult.failed(
                SendErrorKind.NOT_FOUND, "there is no such chat or message: an id on Discord has only digits"
            )
        chat, is_typing, is_mark = told.get("channel_id"), path.endswith("/typing"), path == _REACTION
        counted = ("typing", None) if is_typing else ("react", None) if is_mark else (method, chat)
        async with self._turn(*counted, metadata, gives_way=is_typing or is_mark) as turn:
            if turn.wait_ms:
                return SendResult.failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=turn.wait_ms)
            try:
                answer = await self._request(method, path, **told)
            except RestFailure as failure:
                result = convert_refusal(failure)
                if result.error_kind is SendErrorKind.RATE_LIMITED:
                    turn.refused(result.retry_after_ms)
                return result
        self._said()
        shown = answer.get("id") if isinstance(answer, dict) else None
        return SendResult.sent(shown if isinstance(shown, str) else told.get("message_id"))

    def _words(self, content: str) -> str | SendResult:
        """Return a text in Discord's dialect, or a failure if the text cannot be sent."""
        limit = self.capabilities.limit
        if len(content) > limit:
            return SendResult.failed(SendErrorKind.TOO_LONG, f"Discord accepts at most {limit} characters")
        if not content.strip():
            return SendResult.failed(SendErrorKind.BAD_FORMAT, "Discord does not accept an empty message")
        return convert_markdown(content, limit)

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send a message."""
        words = self._words(content)
        if isinstance(words, SendResult):
            return words
        body = build_message_body(words, nonce=_nonce(metadata), reply_to=reply_to)
        return await self._say("POST", _MESSAGES, metadata, channel_id=_channel(chat_id, metadata), json=body)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text of a sent message without changing the buttons."""
        words = self._words(content)
        if isinstance(words, SendResult):
            return words
        body: Json = {"content": words, "allowed_mentions": MENTIONS}
        channel = _channel(chat_id, metadata)
        return await self._say(
            "PATCH", _MESSAGE, metadata, channel_id=channel, message_id=message_id, json=body
        )

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Delete a sent message."""
        channel = _channel(chat_id, metadata)
        return await self._say("DELETE", _MESSAGE, channel_id=channel, message_id=message_id)

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show a typing indicator in a chat for ten seconds."""
        await self._say("POST", "/channels/{channel_id}/typing", channel_id=_channel(chat_id, metadata))

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Add the bot's reaction to a message, or remove the reaction."""
        channel, method = _channel(chat_id, metadata), "DELETE" if takes_back else "PUT"
        return await self._say(method, _REACTION, channel_id=channel, message_id=message_id, emoji="👀")

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Send a file with an optional caption."""
        words = self._words(caption) if caption and caption.strip() else ""
        if isinstance(words, SendResult):
            return words
        body = build_message_body(words, nonce=_nonce(metadata))
        channel_id = _channel(chat_id, metadata)
        async with self._file_turn:
            form = build_upload_form(body, attachment, await data.whole())
            return await self._say("POST", _MESSAGES, metadata, channel_id=channel_id, form=form)

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a received file from Discord's file server.

        Raises:
            TooLarge, ServerUnavailable: As in the base class.
        """
        if attachment.size is not None and attachment.size > max_bytes:
            raise TooLarge(f"the file exceeds {max_bytes} bytes", value=attachment.size)
        if _origin(attachment.ref) != _origin(self._options.cdn_url):
            raise ServerUnavailable("Discord's file server does not have the file", remedy="")
        if self._bot is None:
            raise ServerUnavailable("not connected to Discord", remedy="")
        async with aclosing(self._bot.fetch(attachment.ref, max_bytes=max_bytes)) as pieces:
            async for piece in pieces:
                yield piece

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Send a card with buttons. If Discord cannot show all buttons, the text lists the answers."""
        components, words = build_buttons(card), self._words(card.text)
        if components is None:
            return await super().send_card(chat_id, card, metadata)
        if isinstance(words, SendResult):
            return words
        body = build_message_body(words, nonce=_nonce(metadata)) | {"components": components}
        return await self._say("POST", _MESSAGES, metadata, channel_id=_channel(chat_id, metadata), json=body)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text and the buttons of a card."""
        words = self._words(card.text)
        if isinstance(words, SendResult):
            return words
        body: Json = {
            "content": words,
            "allowed_mentions": MENTIONS,
            "components": build_buttons(card) or [],
        }
        channel = _channel(chat_id, metadata)
        return await self._say(
            "PATCH", _MESSAGE, metadata, channel_id=channel, message_id=message_id, json=body
        )


def _channel(chat_id: str, metadata: Metadata | None) -> str:
    """Return the id of the channel or thread in which a message is sent."""
    thread = (metadata or {}).get("thread_id")
    return str(thread) if thread else chat_id


def _nonce(metadata: Metadata | None) -> str:
    """Return the nonce with which Discord recognises a repeated message."""
    key = (metadata or {}).get("dedupe_key")
    return make_nonce(str(key)) if key else secrets.token_hex(MAX_NONCE_LENGTH // 2)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return the scheme, host and port of an address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "", None, None
    return ("", None, None) if "@" in parts.netloc else (parts.scheme, parts.hostname, port)
