"""Discord, by its gateway and REST, through discord.py (extra `discord`).

Limits of Discord, and how the adapter handles them:

- It has no acknowledgements. A session advances with received messages, not with stored ones. So an
  update that cannot be stored is held here, in order, and retried until it is. When `max_held` are held,
  the connection is closed; Discord keeps later updates, and a RESUME delivers them, for some minutes.
- After a longer absence there is a new session, without the missed updates. Messages are then requested,
  channel by channel, after the last stored one (`backfill`), up to `backfill_limit` each, in the 200 channels
  with the newest messages. Other updates are lost: messages in channels unknown to this process, unless
  they are in `channels` or came from `remember`; edits, deletions, buttons and commands of that time;
  updates held in memory when the process was killed.
- Messages are unique for some minutes only (`nonce`): a repetition after that is another message.
- If a button or command is answered later than three seconds after it, Discord shows a failure, although it
  was accepted.
- It refuses no markup, so nothing is sent again as plain text.
"""

import asyncio
import hashlib
import json
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta

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
from postroom.gateway.platforms.safe_text import poll_in_words
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger

_LOG = get_logger(__name__)


# Discord's data as our values: translation only, without waiting or state.


LONGEST_NONCE = 25
BUTTONS_A_ROW, ROWS = 5, 5
LONGEST_LABEL, LONGEST_VALUE, LONGEST_NOTE = 80, 100, 2_000
EPHEMERAL = 1 << 6
MENTIONS: Json = {"parse": ["users"], "replied_user": False}
"""Whom our words may wake: those they name, never a role and never everyone."""
_MIME = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)


def marked(text: str, limit: int) -> str:
    """Return Markdown in Discord's dialect, or unchanged if that would be longer than `limit`.

    Discord supports most of Markdown; unsupported parts are converted. Code is unchanged.
    """
    pieces = re.split(r"(^```.*?^```[ \t]*$|^```.*\Z|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    pieces[::2] = [_converted(one) for one in pieces[::2]]
    made = "".join(pieces)
    return made if len(made) <= limit else text


def _converted(text: str) -> str:
    for pattern, put in _CONVERSIONS:
        text = pattern.sub(put, text)
    return text


def _table(found: re.Match[str]) -> str:
    return f"```\n{found[0].rstrip()}\n```\n"


_Put = str | Callable[[re.Match[str]], str]
_CONVERSIONS: tuple[tuple[re.Pattern[str], _Put], ...] = (
    (re.compile(r"^#{4,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE), r"**\1**"),
    (re.compile(r"!\[([^\]\n]+)\]\((https?://[^\s)]+)\)"), r"[\1](\2)"),
    (re.compile(r"!\[\]\((https?://[^\s)]+)\)"), r"\1"),
    (re.compile(r"^\|.*\|[ \t]*\n\|[ \t:|-]+\|[ \t]*(?:\n\|.*\|[ \t]*)*(?:\n|\Z)", re.MULTILINE), _table),
)


def nonce_of(dedupe_key: str) -> str:
    """Return a key in as many characters as Discord takes; equal keys stay equal."""
    return hashlib.sha256(dedupe_key.encode()).hexdigest()[:LONGEST_NONCE]


def body_of(text: str, *, nonce: str, reply_to: str | None = None) -> dict[str, Json]:
    """Return the body of a new message."""
    made: dict[str, Json] = {
        "content": text,
        "allowed_mentions": MENTIONS,
        "nonce": nonce,
        "enforce_nonce": True,
    }
    if is_id(reply_to):
        made["message_reference"] = {"message_id": reply_to, "fail_if_not_exists": False}
    return made


def form_of(body: dict[str, Json], attachment: Attachment, data: bytes) -> list[dict[str, Any]]:
    """Return the parts of a message with a file."""
    name = file_name(attachment.name)
    told = body | {"attachments": [{"id": 0, "filename": name}]}
    mime = (
        attachment.mime
        if attachment.mime and _MIME.fullmatch(attachment.mime)
        else "application/octet-stream"
    )
    return [
        {"name": "payload_json", "value": json.dumps(told), "content_type": "application/json"},
        {"name": "files[0]", "value": data, "filename": name, "content_type": mime},
    ]


def components_of(card: Card) -> list[Json] | None:
    """Return a card's buttons in rows; None when Discord cannot show them all."""
    if len(card.buttons) > BUTTONS_A_ROW * ROWS or any(
        len(one.value) > LONGEST_VALUE for one in card.buttons
    ):
        return None
    shown: Sequence[Json] = [
        {"type": 2, "style": 2, "label": one.label[:LONGEST_LABEL] or "\u200b", "custom_id": one.value}
        for one in card.buttons
    ]
    rows = range(0, len(shown), BUTTONS_A_ROW)
    return [{"type": 1, "components": list(shown[start : start + BUTTONS_A_ROW])} for start in rows]


def note_of(text: str) -> dict[str, Json]:
    """Return the answer to an interaction that only the person who pressed sees."""
    return {
        "type": 4,
        "data": {"content": text[:LONGEST_NOTE], "flags": EPHEMERAL, "allowed_mentions": {"parse": []}},
    }


def file_name(name: str | None) -> str:
    """Return a name that is safe in a header: without a path or quotation marks."""
    kept = re.sub(r"[^\w.() +-]", "_", (name or "").replace("\\", "/").rpartition("/")[2], flags=re.ASCII)
    return kept.strip(". ")[:100] or "file"


def result_of(failure: RestFailure) -> SendResult:
    """Return the meaning of a refusal for the sender of a message."""
    kind = _kind(failure)
    return SendResult.failed(kind, str(failure), retry_after_ms=failure.wait_ms)


def _kind(failure: RestFailure) -> SendErrorKind:
    if failure.status == 0 or failure.status >= 500:
        return SendErrorKind.UNKNOWN if failure.taken else SendErrorKind.TRANSIENT
    if failure.status == 413 or (failure.status == 400 and "or fewer in length" in str(failure)):
        return SendErrorKind.TOO_LONG
    return {
        401: SendErrorKind.FORBIDDEN,
        403: SendErrorKind.FORBIDDEN,
        404: SendErrorKind.NOT_FOUND,
        429: SendErrorKind.RATE_LIMITED,
    }.get(failure.status, SendErrorKind.BAD_FORMAT)


FIRST_MILLISECOND = 1_420_070_400_000
"""Discord's ids count from the first instant of 2015."""
SPOKEN = (0, 19)
"""The types of messages that a person wrote: plain ones and answers. Others report joins or pins."""
DIRECT, GROUP, THREADS = 1, 3, (10, 11, 12)
VOICE_FLAG = 1 << 13
COMMAND, COMPONENT = 2, 3

_KINDS = {"image": MessageType.PHOTO, "video": MessageType.VIDEO, "audio": MessageType.AUDIO}


class Unreadable(InvalidArgument):
    """An update has not the shape that Discord documents. Its words are not in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel, as far as a message needs to know it."""

    chat_type: str
    name: str | None = None
    topic: str | None = None
    parent: str | None = None
    """The parent channel of a thread."""
    guild: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """Our own bot."""

    user_id: str

    def named_in(self, data: Mapping[str, Any]) -> bool:
        """Return whether a message mentions or answers the bot."""
        answered = data.get("referenced_message")
        to_us = isinstance(answered, dict) and _id(_mapping(answered, "author"), "id") == self.user_id
        return to_us or any(_id(one, "id") == self.user_id for one in _mappings(data, "mentions"))

    def without(self, text: str) -> str:
        """Return a text without the mentions of us."""
        return re.sub(rf"[ \t]*<@!?{self.user_id}>", "", text).strip()


# What comes in.


def is_id(value: object) -> bool:
    """Return whether it is one of Discord's ids: up to 20 digits."""
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20


def instant_of(message_id: str) -> int:
    """Return when an id was given, in milliseconds since the epoch."""
    return (int(message_id) >> 22) + FIRST_MILLISECOND


def id_at(instant: int) -> str:
    """Return the least id that can have been given at an instant."""
    return str(max(instant - FIRST_MILLISECOND, 0) << 22)


def ids_of(data: object) -> tuple[str, str | None]:
    """Return the ids of the channel and the guild that an update is about; no guild means a direct message.

    Raises:
        Unreadable: it names no channel.
    """
    found = _checked(data)
    return _id(found, "channel_id"), None if found.get("guild_id") is None else _id(found, "guild_id")


def channel_of(data: object) -> Channel:
    """Return the channel in a channel object.

    Raises:
        Unreadable: The object is not a channel.
    """
    found = _checked(data)
    kind = found.get("type")
    guild = None if found.get("guild_id") is None else _id(found, "guild_id")
    name, topic = _text(found, "name"), _text(found, "topic")
    if kind == DIRECT:
        return Channel(chat_type="dm")
    if kind == GROUP:
        return Channel(chat_type="group", name=name)
    if kind in THREADS:
        return Channel(chat_type="thread", name=name, parent=_id(found, "parent_id"), guild=guild)
    return Channel(chat_type="channel", name=name, topic=topic, guild=guild)


def source_of(channel_id: str, channel: Channel, account: str) -> SessionSource:
    """Return a channel without a sender: the parent of a thread is the chat, with the thread as a detail."""
    return SessionSource(
        platform=Platform.DISCORD,
        chat_id=channel.parent or channel_id,
        chat_name=channel.name,
        chat_type=channel.chat_type,
        thread_id=channel_id if channel.parent else None,
        chat_topic=channel.topic,
        account=account,
    )


def is_message(data: object, me: Me) -> bool:
    """Return whether it is a message from another author.

    Raises:
        Unreadable: The data is not a message.
    """
    found = _checked(data)
    _id(found, "id")
    author = _mapping(found, "author")
    return found.get("type", 0) in SPOKEN and _id(author, "id") != me.user_id


def is_edit(data: object) -> bool:
    """Return whether an update of a message changed its words; others only add link previews."""
    found = _checked(data)
    return bool(found.get("edited_timestamp")) and "content" in found and "author" in found


def event_of(data: object, channel: Channel, me: Me) -> MessageEvent:
    """Return a message as an event.

    Raises:
        Unreadable: The data is not a message.
    """
    found = _checked(data)
    channel_id, guild_id = ids_of(found)
    message_id = _id(found, "id")
    author = found.get("author")
    is_program = "webhook_id" in found or (isinstance(author, dict) and author.get("bot") is True)
    embeds = [_embed(one) for one in _mappings(found, "embeds")]
    media, forwarded = _files(found), list(_snapshots(found))
    snapshots = _mappings(found, "message_snapshots")
    media += Attachment.foreign(file for one in snapshots for file in _files(_inner(one)))
    own = [_words(found), *_parts(found)]
    if is_program:
        own += [words for words, _ in embeds]
    else:
        forwarded += [Forwarded(text=words, author=author) for words, author in embeds if words]
    text = me.without("\n\n".join(part for part in own if part))
    reference = found.get("message_reference")
    answers = isinstance(reference, dict) and reference.get("type", 0) == 0 and reference.get("message_id")
    answered = found.get("referenced_message")
    event = MessageEvent(
        text=text,
        message_type=media[0].kind if media else MessageType.TEXT,
        source=_spoken(source_of(channel_id, channel, me.user_id), found),
        message_id=message_id,
        media=media + _answered_files(answered, me),
        reply_to_message_id=str(answers) if answers else None,
        reply_to_text=_answered(answered) or None if isinstance(answered, dict) else None,
        reply_to_author=_author(answered) if isinstance(answered, dict) else None,
        forwarded=tuple(forwarded),
        timestamp=instant_of(message_id),
        addressed=channel.chat_type == "dm" or me.named_in(found),
        metadata={"guild_id": guild_id} if guild_id else {},
    )
    if not media and event.is_command():
        event.message_type = MessageType.COMMAND
    return event


def deleted_in(data: object) -> list[str]:
    """Return the ids of the messages that an update says were deleted.

    Raises:
        Unreadable: it names none.
    """
    found = _checked(data)
    listed = found["ids"] if "ids" in found else [found.get("id")]
    if not isinstance(listed, list) or not all(is_id(one) for one in listed):
        raise Unreadable("a deletion without message ids")
    return listed


def press_of(data: object, channel: Channel, me: Me) -> ButtonPress | MessageEvent | None:
    """Return a pressed button, or a slash command as an event; None for anything else.

    Raises:
        Unreadable: The data is not an interaction.
    """
    found = _checked(data)
    channel_id, guild_id = ids_of(found)
    source = _spoken(source_of(channel_id, channel, me.user_id), found)
    told = found.get("data")
    if not isinstance(told, dict) or found.get("type") not in (COMMAND, COMPONENT):
        return None
    if found["type"] == COMPONENT:
        card = _id(_mapping(found, "message"), "id")
        value = _text(told, "custom_id") or ""
        return ButtonPress(source=source, value=value, message_id=card, press_id=_id(found, "id"))
    return MessageEvent(
        text=" ".join((f"/{_text(told, 'name') or ''}", *_options(told))),
        message_type=MessageType.COMMAND,
        source=source,
        message_id=_id(found, "id"),
        timestamp=instant_of(_id(found, "id")),
        metadata={"guild_id": guild_id} if guild_id else {},
    )


def callback_of(data: object) -> tuple[str, str]:
    """Return an interaction's id and the token that it is answered with, which is a secret.

    Raises:
        Unreadable: it has none.
    """
    found = _checked(data)
    token = _text(found, "token")
    if not token:
        raise Unreadable("an interaction without a token")
    return _id(found, "id"), token


def in_order(page: object) -> list[dict[str, Any]]:
    """Return a page of messages, the oldest first; entries without an id are left out.

    Raises:
        Unreadable: The page is not a list.
    """
    if not isinstance(page, list):
        raise Unreadable("a page of messages that is not a list")
    known = [one for one in page if isinstance(one, dict) and is_id(one.get("id"))]
    return sorted(known, key=lambda one: int(one["id"]))


def _options(told: Mapping[str, Any]) -> list[str]:
    found = []
    for one in _mappings(told, "options"):
        if "value" in one:
            found.append(str(one["value"]))
        else:
            found.extend((str(one.get("name", "")), *_options(one)))
    return found


def _words(found: Mapping[str, Any]) -> str:
    """Return the words of a message; a sticker stands by its name."""
    stickers = [f":{_text(one, 'name') or 'sticker'}:" for one in _mappings(found, "sticker_items")]
    return " ".join(part for part in (_text(found, "content"), *stickers) if part)


def _parts(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a poll and the blocks of a message say."""
    if isinstance(poll := found.get("poll"), dict):
        answers = (_text(_inner(one, "poll_media"), "text") for one in _mappings(poll, "answers"))
        # Without the votes: Discord edits the message when a poll ends, and nobody has changed its words.
        yield poll_in_words(_text(_inner(poll, "question"), "text"), ((one, None) for one in answers))
    waiting = list(_mappings(found, "components"))
    while waiting:
        part = waiting.pop(0)
        if words := _text(part, "content"):
            yield words
        waiting[:0] = _mappings(part, "components")


def _embed(embed: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the words and the origin of an embed."""
    author, provider, footer = (_inner(embed, name) for name in ("author", "provider", "footer"))
    title, url = _text(embed, "title"), _text(embed, "url")
    fields = (f"{_text(one, 'name')}: {_text(one, 'value')}" for one in _mappings(embed, "fields"))
    named = f"{title} ({url})" if title and url else title
    told = (named, _text(embed, "description"), *fields, _text(footer, "text"))
    return "\n".join(one for one in told if one), _text(author, "name") or _text(provider, "name") or url


def _snapshots(found: Mapping[str, Any]) -> Iterator[Forwarded]:
    """Yield the forwarded words of a message; Discord does not name their author."""
    for one in _mappings(found, "message_snapshots"):
        message = _mapping(one, "message")
        embeds = (words for words, _ in map(_embed, _mappings(message, "embeds")))
        said = (_words(message), *_parts(message), *embeds)
        yield Forwarded(text="\n\n".join(part for part in said if part))


def _files(found: Mapping[str, Any]) -> tuple[Attachment, ...]:
    return tuple(_attachment(one, found.get("flags")) for one in _mappings(found, "attachments"))


def _answered(answered: Mapping[str, Any]) -> str:
    embeds = (words for words, _ in map(_embed, _mappings(answered, "embeds")))
    forwarded = (one.text for one in _snapshots(answered))
    said = "\n\n".join(part for part in (_words(answered), *_parts(answered), *embeds, *forwarded) if part)
    return said or ("(a file)" if _files(answered) else "")


def _author(answered: Mapping[str, Any]) -> str | None:
    """Return the author of a message's words; None for a forward, whose author Discord does not name."""
    return None if any(True for _ in _snapshots(answered)) else _name(_mapping(answered, "author"))


def _answered_files(answered: object, me: Me) -> tuple[Attachment, ...]:
    """Return the files of the answered message, unless it is ours."""
    is_ours = not isinstance(answered, dict) or _inner(answered, "author").get("id") == me.user_id
    return () if is_ours or not isinstance(answered, dict) else Attachment.foreign(_files(answered))


def _inner(found: Mapping[str, Any], name: str = "message") -> dict[str, Any]:
    part = found.get(name)
    return part if isinstance(part, dict) else {}


def _name(author: Mapping[str, Any]) -> str | None:
    return _text(author, "global_name") or _text(author, "username")


def _spoken(source: SessionSource, found: Mapping[str, Any]) -> SessionSource:
    member = found.get("member")
    member = member if isinstance(member, dict) else {}
    author = found.get("author") or found.get("user") or member.get("user")
    if not isinstance(author, dict):
        raise Unreadable("the actor is unknown")
    shown = _text(member, "nick") or _text(author, "global_name") or _text(author, "username")
    told = source.to_dict() | {"user_id": _id(author, "id"), "user_name": shown}
    told["is_bot"] = bool(author.get("bot")) or "webhook_id" in found
    return SessionSource.from_dict(told)


def _attachment(one: Mapping[str, Any], flags: object) -> Attachment:
    mime, url, size = _text(one, "content_type"), _text(one, "url"), one.get("size")
    if not url:
        raise Unreadable("a file without an address")
    kind = _KINDS.get((mime or "").partition("/")[0], MessageType.DOCUMENT)
    if isinstance(flags, int) and flags & VOICE_FLAG:
        kind = MessageType.VOICE
    return Attachment(
        kind=kind,
        ref=url,
        mime=mime,
        name=_text(one, "filename"),
        size=size if isinstance(size, int) else None,
    )


def _checked(data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise Unreadable("an update that is not an object")
    return data


def _mapping(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(one := found.get(name), dict):
        raise Unreadable(f"`{name}` is not an object")
    return one


def _mappings(found: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    listed = found.get(name) or []
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise Unreadable(f"`{name}` is not a list of objects")
    return listed


def _id(found: Mapping[str, Any], name: str) -> str:
    if not is_id(one := found.get(name)):
        raise Unreadable(f"`{name}` is not an id")
    return str(one)


def _text(found: Mapping[str, Any], name: str) -> str | None:
    one = found.get(name)
    if one is not None and not isinstance(one, str):
        raise Unreadable(f"`{name}` is not text")
    return one and one.encode("utf-8", "replace").decode().replace("\0", "")  # half pairs cannot be kept


# Updates that are not stored yet. Discord has no acknowledgements, so they are held here, in order, and
# retried until they are stored: one that cannot be stored now delays later ones.


ChannelId = Annotated[str, Meta(pattern=r"^[0-9]{1,20}\Z", extra={"write": "a text of digits"})]


class DiscordOptions(PlatformConfig, frozen=True, kw_only=True):
    """The table [platforms.discord]. The token is the bot's."""

    base_url: str = "https://discord.com/api/v10"
    """The REST API; it holds for the whole process, as the library has it."""
    cdn_url: str = "https://cdn.discordapp.com"
    """The host of files; no other host is asked."""
    backfill: bool = True
    """Whether messages from the bot's absence are requested."""
    backfill_limit: Annotated[int, Meta(ge=1, le=100_000)] = 500
    """The number of messages requested in one channel after one absence."""
    backfill_minutes: Annotated[int, Meta(ge=0, le=100_000)] = 60
    """How far back the first look into `channels` reaches."""
    channels: tuple[ChannelId, ...] = ()
    """The ids of the channels that are read at the start."""
    max_held: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """The updates in memory that are not stored yet."""
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=600)] = 30
    """How long one answer of Discord may take."""

    def __post_init__(self) -> None:
        refuse_address("base_url", self.base_url)
        refuse_address("cdn_url", self.cdn_url)


def bot_token(token: str | None) -> str:
    """Return a bot's token in the form for requests.

    Raises:
        ConfigError: The token is missing, or has impossible characters. It is not shown.
    """
    kept = (token or "").strip().removeprefix("Bot ").strip()
    if not kept or not kept.isascii() or not kept.isprintable() or " " in kept:
        raise ConfigError(
            "the Discord bot's token is missing or malformed",
            remedy=secret_remedy(
                "token", "the token from Bot → Reset Token at https://discord.com/developers/applications"
            ),
        )
    return kept


ABSENCE = "ABSENCE"
"""The marker in the queue for a new session: earlier messages are requested."""
MOST_MARKS = 200
MOST_PLACES = 5_000
PAGE = 100
TAKEN = "Got it."


class Intake:
    """Holds updates until they are kept."""

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
        """Take in an update; it is handed over after those before it."""
        self._held.append((name, data))
        self._settled.clear()
        self._arrived.set()
        if self.full:
            self._room.clear()

    def remember(self, channel_id: str, message_id: str) -> None:
        """Note the newest known message of a channel; later ones are requested after an absence."""
        known = self._marks.pop(channel_id, "0")
        self._marks[channel_id] = max(known, message_id, key=int)
        while len(self._marks) > MOST_MARKS:
            self._marks.popitem(last=False)

    def watch(self, now: int) -> None:
        """Note the configured channels without known messages."""
        since = id_at(now - self._options.backfill_minutes * 60_000)
        for channel_id in self._options.channels:
            if channel_id not in self._marks:
                self.remember(channel_id, since)

    @property
    def full(self) -> bool:
        """Whether no more updates fit into memory."""
        return len(self._held) >= self._options.max_held

    async def room(self) -> None:
        """Return when at least half of the room is free."""
        await self._room.wait()

    async def settled(self, within_seconds: float) -> None:
        """Return when all updates are stored, or the time is over."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._settled.wait()
        except TimeoutError:
            _LOG.warning("discord.left_unkept", updates=len(self._held))

    async def run(self) -> None:
        """Hand over held updates, without end. If cancelled midway, it starts with the same update again."""
        while True:
            await self._arrived.wait()
            while self._held:
                name, data = self._held[0]
                await self._kept(name, data)
                self._held.popleft()
                if len(self._held) <= self._options.max_held // 2:
                    self._room.set()
            self._arrived.clear()
            self._settled.set()

    async def _kept(self, name: str, data: object) -> None:
        """Hand one update over, and note that its channel is known up to it."""
        await self._take_until_kept({"update": name, "data": data}, partial(self._take, name, data))
        if name != "MESSAGE_CREATE":
            return
        found = data if isinstance(data, dict) else {}
        channel_id, message_id = found.get("channel_id"), found.get("id")
        if is_id(channel_id) and is_id(message_id):
            self.remember(str(channel_id), str(message_id))

    async def _take(self, name: str, data: object) -> None:
        match name:
            case "MESSAGE_CREATE":
                if (event := await self._event(data)) is not None:
                    await self._accept(event)
            case "MESSAGE_UPDATE":
                await self._edited(data)
            case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
                await self._deleted(data)
            case "INTERACTION_CREATE":
                await self._pressed(data)
            case "CHANNEL_UPDATE" | "THREAD_UPDATE":
                self._forget(data)
            case _:
                await self._caught_up()

    async def _event(self, data: object) -> MessageEvent | None:
        if self.me is None or not is_message(data, self.me):
            return None
        return event_of(data, await self._channel(data), self.me)

    async def _edited(self, data: object) -> None:
        inbound = self._inbound()
        if inbound is None or not is_edit(data):
            return
        if (event := await self._event(data)) is not None:
            await inbound.edited(event)

    async def _deleted(self, data: object) -> None:
        inbound = self._inbound()
        if inbound is None or self.me is None:
            return
        gone = deleted_in(data)
        channel_id, _ = ids_of(data)
        source = source_of(channel_id, await self._channel(data), self.me.user_id)
        for message_id in gone:
            await inbound.deleted(source, message_id)

    async def _pressed(self, data: object) -> None:
        inbound = self._inbound()
        if inbound is None or self.me is None:
            return
        interaction_id, token = callback_of(data)
        pressed = press_of(data, await self._channel(data), self.me)
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
                json=note_of(note),
                interaction_id=interaction_id,
                webhook_token=token,
            )
        except RestFailure as failure:  # it was taken: only the note is missing, most often for being late
            _LOG.info("discord.note_not_shown", status=failure.status, code=failure.code)

    # The place of a message.

    async def _channel(self, data: object) -> Channel:
        """Return the channel of an update; Discord is asked once for each, and again when it changed."""
        channel_id, guild_id = ids_of(data)
        if guild_id is None:
            return self._known(channel_id, Channel(chat_type="dm"))
        try:
            return await self._looked_up(channel_id)
        except RestFailure as failure:
            if failure.status not in (403, 404):
                raise
            return Channel(chat_type="channel", guild=guild_id)

    async def _looked_up(self, channel_id: str) -> Channel:
        if (known := self._channels.get(channel_id)) is not None:
            return self._known(channel_id, known)
        found = await self._request("GET", "/channels/{channel_id}", channel_id=channel_id)
        return self._known(channel_id, channel_of(found))

    def _known(self, channel_id: str, channel: Channel) -> Channel:
        self._channels[channel_id] = channel
        self._channels.move_to_end(channel_id)
        while len(self._channels) > MOST_PLACES:
            self._channels.popitem(last=False)
        return channel

    def _forget(self, data: object) -> None:
        channel_id = data.get("id") if isinstance(data, dict) else None
        if isinstance(channel_id, str):
            self._channels.pop(channel_id, None)

    # After an absence.

    async def _caught_up(self) -> None:
        """Request the messages after the mark of each known channel."""
        for channel_id in tuple(self._marks):
            try:
                await self._read_on(channel_id)
            except RestFailure as failure:
                if failure.status not in (403, 404):
                    raise
                self._marks.pop(channel_id, None)

    async def _read_on(self, channel_id: str) -> None:
        guild_id = (await self._looked_up(channel_id)).guild
        left = self._options.backfill_limit
        while left > 0:
            if (mark := self._marks.get(channel_id)) is None:
                return  # its mark was dropped meanwhile; it is never read from the beginning
            asked = min(left, PAGE)
            page = await self._request(
                "GET",
                "/channels/{channel_id}/messages",
                query={"after": mark, "limit": str(asked)},
                channel_id=channel_id,
            )
            messages = in_order(page)
            for message in messages:
                told = message | {"channel_id": channel_id} | ({"guild_id": guild_id} if guild_id else {})
                await self._kept("MESSAGE_CREATE", told)
            left -= asked
            if len(messages) < asked:
                return
        _LOG.warning("discord.backfill_cut", channel_id=channel_id, limit=self._options.backfill_limit)


READY_SECONDS = 30
SETTLE_SECONDS = 2
LEAST_BEFORE_IDENTIFY_MS = 5_000
"""The minimum time between two new sessions that Discord allows."""
RESUMES = 5
"""After this many failures in a row, a new session is started."""
PORTAL = "https://discord.com/developers/applications"
_MESSAGES = "/channels/{channel_id}/messages"
_MESSAGE = "/channels/{channel_id}/messages/{message_id}"
_REACTION = f"{_MESSAGE}/reactions/{{emoji}}/@me"
_TOKEN = ("unauthorized", "Discord rejected the token", f"a new token: {PORTAL} → Bot → Reset Token")
_REFUSALS: Mapping[int, tuple[str, str, str]] = {
    401: _TOKEN,
    4004: _TOKEN,
    4010: (
        "sharding",
        "Discord rejected the shard",
        "report this defect: postroom makes one connection for all guilds",
    ),
    4011: ("sharding", "the bot is in too many guilds for one connection", "remove the bot from some guilds"),
    4012: (
        "library",
        "Discord no longer supports this version of its API",
        "pip install -U 'postroom[discord]'",
    ),
    4013: ("intents", "Discord rejected an invalid intent", "pip install -U 'postroom[discord]'"),
    4014: (
        "missing_intent",
        "the bot may not read messages: the privileged intent `Message Content` is off",
        f"enable it: {PORTAL} → Bot → Privileged Gateway Intents → Message Content Intent",
    ),
}


class DiscordAdapter(BasePlatformAdapter):
    """Speaks with Discord as one bot."""

    platform = Platform.DISCORD
    options = DiscordOptions
    passing = (RestFailure, OSError)
    capabilities = ChannelCapabilities(
        # Code points, by the word of its makers (discord/discord-api-docs 1315).
        limit=2_000,
        edits=True,
        threads=True,
        typing=True,
        reactions=True,
        media=FILES,
        # docs.discord.com: 50 calls a second; limits of a channel are in answers, which the library reads.
        # Reactions have our own limit, so that their refusal does not delay answers.
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
        """The bot's own id; `default` before it is known."""
        return "default" if self._intake.me is None else self._intake.me.user_id

    def lock_identity(self) -> str | None:
        """Return the token: two processes that receive with it would both answer every message."""
        return self.config.token

    def remember(self, source: SessionSource, message_id: str) -> None:
        """Note the newest stored message of a channel or thread: later ones are requested."""
        if is_id(at := source.thread_id or source.chat_id) and is_id(message_id):
            self._intake.remember(at, message_id)

    # Its life.

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Log in and begin to receive; see the base."""
        token = bot_token(self.config.token)
        await asyncio.to_thread(discord_library.load)
        await self.disconnect()
        self.liveness.state = AdapterState.CONNECTING
        self._tasks = Tasks(f"channel {self.platform.value}")
        discord_library.direct(self._options.base_url.rstrip("/"))
        bot = Bot(token, self._on_update, timeout_seconds=self._options.timeout_seconds)
        connected = False
        try:
            self._intake.me = Me(user_id=await bot.login())
            await self._begin(bot)
            connected = True
        except Refused as refused:
            raise self._refused(refused.code) from None
        except (Cut, RestFailure, TimeoutError) as error:
            why = str(error) if isinstance(error, RestFailure) else "the gateway started no session"
            self._fail("unreachable", why, retryable=True)
            raise ServerUnavailable(why, remedy="check whether Discord can be reached from here") from None
        finally:
            if not connected:
                await bot.close()
        self._bot = bot
        self.liveness.error_code = self.liveness.error = None
        self._keeping = self._tasks.start(self._watched(self._intake.run), name="keep")
        self._receiving = self._tasks.start(self._watched(partial(self._stay_connected, bot)), name="receive")

    async def disconnect(self) -> None:
        """End everything. Received updates are stored first, if that takes at most two seconds."""
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

    async def _begin(self, bot: Bot) -> None:
        """Open the first session and wait until it is greeted."""
        self._greeted = False
        async with asyncio.timeout(READY_SECONDS):
            await bot.open(resume=False)
            while not self._greeted:
                await bot.poll()
                self._heard()

    async def _watched(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run background work whose failure must be visible, because nothing would be received any longer."""
        try:
            await work()
        except Exception as error:
            self._fail("internal", f"the adapter stopped: {type(error).__name__}", retryable=True)
            raise

    async def _stay_connected(self, bot: Bot) -> None:
        """Listen without end, reconnecting as often as needed."""
        try:
            while True:
                resumable = await self._listen(bot)
                self.liveness.state = AdapterState.RECONNECTING
                await self._intake.room()
                await self._open_again(bot, resumable=resumable)
        except Refused as refused:
            await bot.hang_up()
            self._refused(refused.code)

    async def _listen(self, bot: Bot) -> bool:
        """Receive updates until the connection ends or memory is full; return whether it can be resumed."""
        try:
            while not self._intake.full:
                await bot.poll()
                self._heard()
        except Cut as cut:
            if cut.unreadable:
                self.liveness.refused += 1
            _LOG.info("discord.cut", resumable=cut.resumable, unreadable=cut.unreadable)
            return cut.resumable
        await bot.hang_up()
        return True

    async def _open_again(self, bot: Bot, *, resumable: bool) -> None:
        """Open the gateway again; the first try to resume is made at once, each other after a pause."""
        asked_ms = 0
        while True:
            resume = resumable and self._attempt < RESUMES
            if self._attempt or not resume:
                least = max(asked_ms, 0 if resume else LEAST_BEFORE_IDENTIFY_MS)
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
        """Take what the gateway says, at once: it is handed over from the row."""
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

    # What goes out.

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
        """Call Discord to show something, and return the result."""
        if not all(is_id(told[name]) for name in ("channel_id", "message_id") if name in told):
            return SendResult.failed(
                SendErrorKind.NOT_FOUND, "there is no such chat or message: a Discord id has only digits"
            )
        chat, is_typing, is_mark = told.get("channel_id"), path.endswith("/typing"), path == _REACTION
        counted = ("typing", None) if is_typing else ("react", None) if is_mark else (method, chat)
        async with self._turn(*counted, metadata, gives_way=is_typing or is_mark) as turn:
            if turn.wait_ms:
                return SendResult.failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=turn.wait_ms)
            try:
                answer = await self._request(method, path, **told)
            except RestFailure as failure:
                result = result_of(failure)
                if result.error_kind is SendErrorKind.RATE_LIMITED:
                    turn.refused(result.retry_after_ms)
                return result
        self._said()
        shown = answer.get("id") if isinstance(answer, dict) else None
        return SendResult.sent(shown if isinstance(shown, str) else told.get("message_id"))

    def _words(self, content: str) -> str | SendResult:
        """Return a text as Discord shows it, or why it cannot be sent."""
        limit = self.capabilities.limit
        if len(content) > limit:
            return SendResult.failed(SendErrorKind.TOO_LONG, f"Discord accepts at most {limit} characters")
        if not content.strip():
            return SendResult.failed(SendErrorKind.BAD_FORMAT, "Discord accepts no empty message")
        return marked(content, limit)

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send a message; see the base."""
        words = self._words(content)
        if isinstance(words, SendResult):
            return words
        body = body_of(words, nonce=_nonce(metadata), reply_to=reply_to)
        return await self._say("POST", _MESSAGES, metadata, channel_id=_channel(chat_id, metadata), json=body)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace a sent message; buttons stay."""
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
        """Show for ten seconds that an answer is being written; failures are ignored."""
        await self._say("POST", "/channels/{channel_id}/typing", channel_id=_channel(chat_id, metadata))

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Add our reaction to a message, or take it away."""
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
        """Send a file, with words if there are some."""
        words = self._words(caption) if caption and caption.strip() else ""
        if isinstance(words, SendResult):
            return words
        body = body_of(words, nonce=_nonce(metadata))
        channel_id = _channel(chat_id, metadata)
        async with self._file_turn:
            form = form_of(body, attachment, await data.whole())
            return await self._say("POST", _MESSAGES, metadata, channel_id=channel_id, form=form)

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a file that came in, from Discord's own file server only.

        Raises:
            TooLarge, ServerUnavailable: see the base.
        """
        if attachment.size is not None and attachment.size > max_bytes:
            raise TooLarge(f"the file exceeds {max_bytes} bytes", value=attachment.size)
        if _origin(attachment.ref) != _origin(self._options.cdn_url):
            raise ServerUnavailable("the file is not on Discord's file server", remedy="")
        if self._bot is None:
            raise ServerUnavailable("not connected to Discord", remedy="")
        async with aclosing(self._bot.fetch(attachment.ref, max_bytes=max_bytes)) as pieces:
            async for piece in pieces:
                yield piece

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Ask with buttons; with more of them than Discord shows, the text lists the possible answers."""
        components, words = components_of(card), self._words(card.text)
        if components is None:
            return await super().send_card(chat_id, card, metadata)
        if isinstance(words, SendResult):
            return words
        body = body_of(words, nonce=_nonce(metadata)) | {"components": components}
        return await self._say("POST", _MESSAGES, metadata, channel_id=_channel(chat_id, metadata), json=body)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Show a card as it stands now, its buttons included."""
        words = self._words(card.text)
        if isinstance(words, SendResult):
            return words
        body: Json = {
            "content": words,
            "allowed_mentions": MENTIONS,
            "components": components_of(card) or [],
        }
        channel = _channel(chat_id, metadata)
        return await self._say(
            "PATCH", _MESSAGE, metadata, channel_id=channel, message_id=message_id, json=body
        )


def _channel(chat_id: str, metadata: Metadata | None) -> str:
    """Return the channel of a message: a thread is a separate channel."""
    thread = (metadata or {}).get("thread_id")
    return str(thread) if thread else chat_id


def _nonce(metadata: Metadata | None) -> str:
    """Return a nonce that makes repetitions harmless, including the library's own retries."""
    key = (metadata or {}).get("dedupe_key")
    return nonce_of(str(key)) if key else secrets.token_hex(LONGEST_NONCE // 2)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """An address's scheme, host and port; an address that names a user is of no origin."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "", None, None
    return ("", None, None) if "@" in parts.netloc else (parts.scheme, parts.hostname, port)
