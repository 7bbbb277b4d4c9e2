"""The Matrix channel: receives events by long polling, and sends them in transactions.

`token` is an access token. A log-in with a password is not supported.

Encryption is not supported: an encrypted room gets one notice that the bot cannot read it. The position in
the event stream advances when every message of a batch is stored. Only invitations from users in `allow` are
accepted. If the homeserver leaves out messages of a room after a long absence, the adapter requests them.
"""

import asyncio
import hashlib
import importlib
import json
import os
import re
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from html import unescape
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote, unquote, urlencode
from uuid import uuid4

import msgspec
from msgspec import UNSET, Meta, Struct, structs

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import (
    ConfigError,
    CredentialRefused,
    InvalidArgument,
    MissingExtra,
    ServerUnavailable,
    TooLarge,
)
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json
from postroom.extras import install_command
from postroom.gateway.capabilities import ChannelCapabilities, LengthUnit, Rate, RateLimits
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import FILES, Attachment, MessageEvent, MessageType, SendErrorKind, SendResult
from postroom.gateway.platforms.base import (
    TOO_OFTEN,
    AdapterState,
    BasePlatformAdapter,
    Inbound,
    Metadata,
    bounded,
)
from postroom.gateway.platforms.options import FilePath, refuse_address, secret_remedy
from postroom.gateway.platforms.safe_text import clean, is_marked_up, one_line, poll_in_words, to_html
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger

_LOG = get_logger(__name__)


# Functions without I/O that convert Matrix events to postroom's types. If an event violates the protocol,
# they raise `Malformed`.


LARGEST_EVENT = 60_000
"""Maximum bytes of the content of an event.

A homeserver refuses events that have more than 65,536 bytes together with the fields that it adds.
"""
SENT_AS = {
    MessageType.PHOTO: "m.image",
    MessageType.STICKER: "m.image",
    MessageType.VIDEO: "m.video",
    MessageType.AUDIO: "m.audio",
    MessageType.VOICE: "m.audio",
}


def build_contents(
    text: str, html: str, *, thread_id: str | None = None, reply_to: str | None = None
) -> list[dict[str, Json]]:
    """Return the event contents to try for a message: with formatting, then without formatting.

    The contents notify nobody, even if the text contains a mention.
    """
    plain: dict[str, Json] = {"msgtype": "m.text", "body": text, "m.mentions": {}}
    if relation := _relation(thread_id, reply_to):
        plain["m.relates_to"] = relation
    marked: dict[str, Json] = {**plain, "format": "org.matrix.custom.html", "formatted_body": html}
    return [marked, plain] if is_marked_up(html, text) and _fits(marked) else [plain]


def build_edits(message_id: str, text: str, html: str) -> list[dict[str, Json]]:
    """Return the event contents to try for an edit: with formatting, then without formatting."""
    items = []
    for new in build_contents(text, html):
        edit: dict[str, Json] = {
            **new,
            "body": f"* {text[:200]}",  # only clients that do not support edits show this
            "m.new_content": new,
            "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
        }
        edit.pop("format", None), edit.pop("formatted_body", None)
        items.append(edit)
    return [item for item in items[:-1] if _fits(item)] + items[-1:]


def build_media_content(
    url: str, attachment: Attachment, size: int, caption: str | None, thread_id: str | None
) -> dict[str, Json]:
    """Return the content of an event that shows an uploaded file."""
    name = one_line(attachment.name or "file")
    content: dict[str, Json] = {
        "msgtype": SENT_AS.get(attachment.kind, "m.file"),
        "body": caption or name,
        "filename": name,
        "url": url,
        "info": {"mimetype": attachment.mime or "application/octet-stream", "size": size},
        "m.mentions": {},
    }
    if relation := _relation(thread_id, None):
        content["m.relates_to"] = relation
    return content


def transaction_id(kind: str, key: str) -> str:
    """Return the transaction id for sending an event. Equal keys have equal ids."""
    return f"{kind}-{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:40]}"


def reaction_to(event_id: str) -> dict[str, Json]:
    """Return the content of the reaction that marks a message as seen."""
    return {"m.relates_to": {"rel_type": "m.annotation", "event_id": event_id, "key": "👀"}}


def refusal(status: int, errcode: str, retry_after_ms: int | None) -> SendResult:
    """Convert an error response to the result of sending an event."""
    text = f"the homeserver answered {status} {errcode}".strip()
    if status == 429 or errcode == "M_LIMIT_EXCEEDED":
        return SendResult.failed(SendErrorKind.RATE_LIMITED, text, retry_after_ms=retry_after_ms or 5_000)
    if status == 413 or errcode == "M_TOO_LARGE":
        return SendResult.failed(SendErrorKind.TOO_LONG, text)
    if status in (408, 504):
        return SendResult.failed(SendErrorKind.UNKNOWN, text)
    if status >= 500:
        return SendResult.failed(SendErrorKind.TRANSIENT, text, retry_after_ms=retry_after_ms)
    kinds = {401: SendErrorKind.FORBIDDEN, 403: SendErrorKind.FORBIDDEN, 404: SendErrorKind.NOT_FOUND}
    return SendResult.failed(kinds.get(status, SendErrorKind.BAD_FORMAT), text)


def _relation(thread_id: str | None, reply_to: str | None) -> dict[str, Json] | None:
    if thread_id is not None:
        answered = {"event_id": reply_to or thread_id}
        return {
            "rel_type": "m.thread",
            "event_id": thread_id,
            "is_falling_back": reply_to is None,
            "m.in_reply_to": answered,
        }
    return {"m.in_reply_to": {"event_id": reply_to}} if reply_to else None


def _fits(content: Mapping[str, Json]) -> bool:
    return _weight(content) <= LARGEST_EVENT


def _weight(value: Json) -> int:
    """Return an upper bound for the size of a value as JSON, in bytes."""
    if isinstance(value, str):
        return 2 + len(value.encode("utf-8", "replace")) + sum(value.count(item) for item in '"\\\n\t')
    if isinstance(value, Mapping):
        return 2 + sum(_weight(str(name)) + _weight(item) + 2 for name, item in value.items())
    return 32


REMEMBERED_NAMES = 2_000
"""Maximum number of display names that are cached for a room."""
KINDS = {
    "m.image": MessageType.PHOTO,
    "m.video": MessageType.VIDEO,
    "m.audio": MessageType.AUDIO,
    "m.file": MessageType.DOCUMENT,
    "m.location": MessageType.LOCATION,
}
SYNC_FILTER = (
    '{"room":{"timeline":{"limit":50},"state":{"lazy_load_members":true},"ephemeral":{"types":[]},'
    '"account_data":{"types":[]}},"presence":{"types":[]},"account_data":{"types":[]}}'
)
"""The filter of sync requests, which selects only the data that the adapter uses."""
_MEDIA = re.compile(r"mxc://([\w.\-:\[\]]{1,255})/([\w\-.~]{1,255})", re.ASCII)
_PILL = re.compile(r'<a href="https://matrix\.to/#/([^"]{1,300})"[^>]{0,200}>([^<]{0,255})</a>')
_QUOTED_SENDER = re.compile(r"> (?:\* )?<(@[^>]{1,255})>")
_COMMAND = re.compile(r"[a-zA-Z][\w-]*(?:\s|$)")


POLLS = ("m.poll.start", "org.matrix.msc3381.poll.start")
_LINK = re.compile(r"<a\s[^<>]*?href=\"(https?://[^\"<>\s]{1,2000})\"[^<>]*>(.{0,500}?)</a>", re.DOTALL)
_TAGS = re.compile(r"<[^<>]{0,200}>")
_POSITION = re.compile(r"geo:(-?\d{1,3}(?:\.\d{1,20})?),(-?\d{1,3}(?:\.\d{1,20})?)(?![\d.])", re.ASCII)


S = TypeVar("S", bound=Struct)


class Malformed(InvalidArgument):
    """Data from a homeserver violates the Matrix protocol."""


class Reply(Struct, frozen=True, kw_only=True):
    """The message to which another message replies."""

    event_id: str | None = None


class Relation(Struct, frozen=True, kw_only=True):
    """The thread of an event, or the message that the event replaces or replies to."""

    rel_type: str | None = None
    event_id: str | None = None
    is_falling_back: bool | None = None
    reply: Reply | None = msgspec.field(name="m.in_reply_to", default=None)


class Info(Struct, frozen=True, kw_only=True):
    """A client's description of a file."""

    size: int | None = None
    mimetype: str | None = None


class Mentions(Struct, frozen=True, kw_only=True):
    """The people whom a message mentions."""

    user_ids: Json = None


class Words(Struct, frozen=True, kw_only=True):
    """A text in a poll, in one of three versions of the protocol."""

    text: Json = msgspec.field(name="m.text", default=None)
    former: Json = msgspec.field(name="org.matrix.msc1767.text", default=None)
    body: Json = None

    def __str__(self) -> str:
        value = next((item for item in (self.text, self.former, self.body) if item is not None), "")
        if isinstance(value, list):
            value = next((item.get("body") for item in value if isinstance(item, dict)), "")
        return clean(value) if isinstance(value, str) else ""


class Poll(Struct, frozen=True, kw_only=True):
    """A poll."""

    question: Words | None = None
    answers: list[Words] | None = None

    def __str__(self) -> str:
        answers = ((str(answer), None) for answer in self.answers or ())
        return poll_in_words(str(self.question or ""), answers)


class Content(Struct, frozen=True, kw_only=True):
    """The content of a message."""

    msgtype: str | None = None
    body: str | None = None
    filename: str | None = None
    url: str | None = None
    file: Json = None
    """An encrypted file."""
    info: Info | None = None
    geo_uri: str | None = None
    formatted_body: str | None = None
    redacts: str | None = None
    relation: Relation | None = msgspec.field(name="m.relates_to", default=None)
    new: "Content | None" = msgspec.field(name="m.new_content", default=None)
    mentions: Mentions | None = msgspec.field(name="m.mentions", default=None)
    voice: Json = msgspec.field(name="m.voice", default=UNSET)
    former_voice: Json = msgspec.field(name="org.matrix.msc3245.voice", default=UNSET)
    poll: Poll | None = msgspec.field(name="m.poll", default=None)
    started_poll: Poll | None = msgspec.field(name="m.poll.start", default=None)
    former_poll: Poll | None = msgspec.field(name="org.matrix.msc3381.poll.start", default=None)

    @property
    def kind(self) -> MessageType:
        """The kind of the message."""
        if self.voice is not UNSET or self.former_voice is not UNSET:
            return MessageType.VOICE
        return KINDS.get(self.msgtype or "", MessageType.TEXT)

    @property
    def poll_words(self) -> str:
        """The question and the answers of a poll in the message."""
        return str(self.started_poll or self.former_poll or self.poll or Poll())

    def describe_location(self, text: str) -> str:
        """Return the description of a location, followed by the coordinates."""
        match = _POSITION.match(self.geo_uri or "")
        return f"Location: {text} ({match[1]}, {match[2]})" if match else f"Location: {text}"

    def with_addresses(self, text: str) -> str:
        """Return a text, followed by the link addresses in the HTML version of the message."""
        items = _LINK.findall(self.formatted_body or "")
        pairs = {(unescape(address), unescape(_TAGS.sub("", label)).strip()) for address, label in items}
        missing = [f"{label}: {address}" for address, label in sorted(pairs) if address not in text]
        missing = [value for value in missing if "matrix.to/#/" not in value]
        return "\n\n".join((text, *((clean("Links: " + ", ".join(missing)),) if missing else ())))

    def attachments(self, kind: MessageType) -> tuple[Attachment, ...]:
        """Return the file of the message, or no file if the file is encrypted.

        Raises:
            Malformed: The file is not on the homeserver.
        """
        if self.url is None and self.file is not None:
            return ()
        if self.url is None or media_path(self.url) is None:
            raise Malformed("a file in a Matrix message has no mxc:// URI")
        info, name = self.info or Info(), self.filename or self.body
        size = info.size if info.size is not None and 0 <= info.size < 2**53 else None
        mime = None if info.mimetype is None else one_line(info.mimetype)
        return (Attachment(kind=kind, ref=self.url, mime=mime, name=name and one_line(name), size=size),)


class RoomEvent(Struct, frozen=True, kw_only=True):
    """An event in a room. The type of the event determines how `content` is parsed."""

    type: str
    content: dict[str, Json]
    sender: Json = None
    event_id: Json = None
    redacts: Json = None
    state_key: Json = None
    origin_server_ts: Json = None
    unsigned: Json = None


def read(told: object, kind: type[S]) -> S:
    """Convert received data to a struct of the type `kind`.

    Raises:
        Malformed: The data has a different form. The error does not quote it.
    """
    try:
        return msgspec.convert(told, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Malformed(f"an event from Matrix has an unknown form: {error}") from error


@dataclass(slots=True, kw_only=True)
class Room:
    """A joined room."""

    room_id: str
    name: str | None = None
    topic: str | None = None
    encrypted: bool = False
    joined: int | None = None
    invited: int = 0
    counted: bool = False
    """Whether the homeserver has reported the number of members.

    From then on, the homeserver reports every change of the number.
    """
    names: dict[str, str] = field(default_factory=dict)

    @property
    def is_direct(self) -> bool:
        """Whether the bot and one other person are the only members."""
        return self.joined is not None and self.joined + self.invited <= 2

    def learn(self, event: object) -> None:
        """Update the room from a state event."""
        if not isinstance(event, dict) or not isinstance(content := event.get("content"), dict):
            return
        match event.get("type"):
            case "m.room.name":
                self.name = _name(content.get("name"))
            case "m.room.topic":
                self.topic = _name(content.get("topic"))
            case "m.room.encryption":
                self.encrypted = True
            case "m.room.member":
                user_id = event.get("state_key")
                if not self.counted:
                    self.joined = None
                if isinstance(user_id, str) and (name := _name(content.get("displayname"))):
                    self.names.pop(user_id, None)
                    self.names[user_id] = name
                    if len(self.names) > REMEMBERED_NAMES:
                        del self.names[next(iter(self.names))]

    def count(self, summary: object) -> None:
        """Record the number of members that the homeserver reports."""
        fields = summary if isinstance(summary, dict) else {}
        joined, invited = fields.get("m.joined_member_count"), fields.get("m.invited_member_count")
        if isinstance(joined, int):
            self.joined, self.counted = joined, True
        if isinstance(invited, int):
            self.invited = invited


@dataclass(frozen=True, slots=True, kw_only=True)
class Ourselves:
    """The bot's identity on the homeserver, and the prefix for commands in addition to the slash."""

    user_id: str
    name: str | None = None
    command_prefix: str = "!"

    @property
    def called(self) -> tuple[str, ...]:
        """The names by which people address the bot, longest first."""
        local = self.user_id[1:].partition(":")[0]
        return tuple(name for name in (self.user_id, f"@{local}", self.name, local) if name)


class Kind(StrEnum):
    """The meaning of an event for the bot."""

    MESSAGE = "message"
    EDIT = "edit"
    TAKEN_BACK = "taken_back"
    ENCRYPTED = "encrypted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """An event that the bot processes.

    For an edit or deletion, `message_id` is the id of the original message.
    """

    kind: Kind
    event: MessageEvent


def understood(told: object, room: Room, me: Ourselves) -> Heard | None:
    """Convert an event of a room, or return None for an irrelevant event.

    Raises:
        Malformed: The event violates the protocol.
    """
    event = read(told, RoomEvent)
    sender, event_id = _identifier(event.sender, "@"), _identifier(event.event_id, "$")
    if sender == me.user_id:
        return None
    if event.type == "m.room.redaction":
        target = _identifier(event.content.get("redacts") or event.redacts, "$")
        return Heard(kind=Kind.TAKEN_BACK, event=_bare(event, room, me, sender, target))
    if event.type == "m.room.encrypted":
        return Heard(kind=Kind.ENCRYPTED, event=_bare(event, room, me, sender, event_id))
    if event.type not in ("m.room.message", "m.sticker", *POLLS) or not event.content:
        return None  # the event has no content, because it was deleted already
    content, message = read(event.content, Content), _bare(event, room, me, sender, event_id)
    relation = content.relation or Relation()
    if event.type in POLLS:
        _relate(message, relation)
        message.text = content.poll_words
        return Heard(kind=Kind.MESSAGE, event=message)
    if relation.rel_type == "m.replace":
        if content.new is None:
            raise Malformed("an edited message has no new content")
        message.message_id = _identifier(relation.event_id, "$")
        _fill(message, content.new, me, is_sticker=False)
        return Heard(kind=Kind.EDIT, event=message)
    if content.msgtype == "m.notice":
        return None  # only programs send notices, and the protocol forbids answers to them
    _relate(message, relation)
    _fill(message, content, me, is_sticker=event.type == "m.sticker")
    return Heard(kind=Kind.MESSAGE, event=message)


def after_our_invitation(events: Sequence[object], me: Ourselves) -> Sequence[object]:
    """Return the events of a timeline without messages that were sent before the bot's invitation."""
    marker, invited = None, False
    for at, event in enumerate(events):
        if not isinstance(event, dict) or event.get("type") != "m.room.member":
            continue
        if event.get("state_key") != me.user_id:
            continue
        membership = _mapping(event.get("content")).get("membership")
        before = _mapping(_mapping(event.get("unsigned")).get("prev_content")).get("membership")
        if membership == "invite" or (membership == "join" and before != "join" and not invited):
            marker = at
        invited = membership == "invite"
    return events if marker is None else events[marker + 1 :]


def list_rooms(batch: Mapping[str, Any], which: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the rooms of a batch in which the bot has the membership `which`: join, leave or invite."""
    rooms = batch.get("rooms")
    room = rooms.get(which) if isinstance(rooms, dict) else None
    return [item for item in room.items() if isinstance(item[1], dict)] if isinstance(room, dict) else []


def list_events(info: Mapping[str, Any], which: str) -> list[object]:
    """Return the events in the part `which` of a room's data."""
    part = info.get(which)
    value = part.get("events") if isinstance(part, dict) else None
    return value if isinstance(value, list) else []


def inviter(events: Iterable[object], me: Ourselves) -> str | None:
    """Return the user who invited the bot to a room, or None if the user is unknown."""
    for event in events:
        if (
            isinstance(event, dict)
            and event.get("type") == "m.room.member"
            and event.get("state_key") == me.user_id
            and _mapping(event.get("content")).get("membership") == "invite"
            and isinstance(sender := event.get("sender"), str)
        ):
            return sender
    return None


def all_older(events: Iterable[object], floor: int) -> bool:
    """Return whether all events are older than the time `floor`, in milliseconds since the epoch."""
    ages = [_mapping(event).get("origin_server_ts") for event in events]
    return all(isinstance(at, int) and at < floor for at in ages)


def parse_quote(told: object) -> tuple[str, str, tuple[Attachment, ...]] | None:
    """Return the sender, text and files of an answered event, or None if the event is not a message."""
    try:
        event = read(told, RoomEvent)
        content = read(event.content, Content)
    except Malformed:
        return None
    if event.type not in ("m.room.message", "m.sticker", *POLLS) or not isinstance(event.sender, str):
        return None
    kind = content.kind
    words = content.poll_words if content.body is None else clean(content.body)
    words = content.describe_location(words) if kind is MessageType.LOCATION else words
    is_file = event.type == "m.sticker" or kind not in (MessageType.TEXT, MessageType.LOCATION)
    try:
        return event.sender, words, content.attachments(kind) if is_file else ()
    except Malformed:
        return event.sender, words, ()


def build_path(*parts: str, query: Mapping[str, str] | None = None, base: str = "/_matrix/client/v3") -> str:
    """Return a path of the client-server API, with each part quoted as one segment."""
    path = "/".join((base, *(quote(part, safe="") for part in parts)))
    return f"{path}?{urlencode(query)}" if query else path


def media_path(ref: str) -> str | None:
    """Return the path of a file on the homeserver, or None if `ref` is not a Matrix media URI."""
    match = _MEDIA.fullmatch(ref)
    if match is None or set(match[2]) <= {"."} or set(match[1]) <= {"."}:
        return None
    return build_path("media", "download", match[1], match[2], base="/_matrix/client/v1")


# The parts of an event.


def _bare(event: RoomEvent, room: Room, me: Ourselves, sender: str, message_id: str) -> MessageEvent:
    at = event.origin_server_ts
    source = SessionSource(
        platform=Platform.MATRIX,
        chat_id=room.room_id,
        chat_name=room.name,
        chat_topic=room.topic,
        chat_type="dm" if room.is_direct else "group",
        user_id=sender,
        user_name=room.names.get(sender),
        account=me.user_id,
    )
    is_valid = isinstance(at, int) and not isinstance(at, bool) and 0 <= at < 2**53
    return MessageEvent(
        source=source, message_id=message_id, timestamp=at if is_valid else None, addressed=room.is_direct
    )


def _relate(message: MessageEvent, relation: Relation) -> None:
    """Set the thread and the answered message of a message event."""
    in_thread = relation.rel_type == "m.thread"
    if in_thread and message.source is not None:
        message.source = structs.replace(message.source, thread_id=_identifier(relation.event_id, "$"))
    answered = None if relation.reply is None else relation.reply.event_id
    if answered is not None and not (in_thread and relation.is_falling_back):
        message.reply_to_message_id = _identifier(answered, "$")


def _fill(message: MessageEvent, content: Content, me: Ourselves, *, is_sticker: bool) -> None:
    """Set the text and the files of a message event."""
    if content.body is None:
        raise Malformed("a message from Matrix has no body")
    text, quote_of_old = clean(content.body), ""
    if message.reply_to_message_id is not None:
        # Separate a text from the quotation that older clients put in front of a reply.
        if not text.startswith("> "):
            without_fallback = text, ""
        else:
            head, gap, rest = text.partition("\n\n")
            lines = head.split("\n")
            if (
                not gap
                or not all(line.startswith(">") for line in lines)
                or _QUOTED_SENDER.match(head) is None
            ):
                without_fallback = text, ""
            else:
                without_fallback = (
                    rest,
                    "\n".join([lines[0], *(line.removeprefix(">").removeprefix(" ") for line in lines[1:])]),
                )
        text, quote_of_old = without_fallback
    message.message_type = MessageType.STICKER if is_sticker else content.kind
    if message.message_type not in (MessageType.TEXT, MessageType.LOCATION):
        message.media = content.attachments(message.message_type)
        text = text if content.filename not in (None, content.body) else ""
        if not message.media:
            message.unread += ("an encrypted file",)
    elif message.message_type is MessageType.LOCATION:
        text = content.describe_location(text)
    else:
        text = content.with_addresses(text)
    pills = _PILL.findall(content.formatted_body or "")
    names = tuple(clean(shown) for target, shown in pills if unquote(target) == me.user_id and shown)
    if content.mentions is not None:
        listed = content.mentions.user_ids
        mentioned = isinstance(listed, list) and me.user_id in listed
    else:  # older clients do not send a list of mentions
        begins = any(re.match(rf"{re.escape(name)}[:,]", text, re.IGNORECASE) for name in me.called)
        mentioned = bool(names) or me.user_id in text or begins
    quoted_sender = _QUOTED_SENDER.match(quote_of_old)
    answers_us = quoted_sender is not None and quoted_sender[1] == me.user_id
    message.addressed = message.addressed or mentioned or answers_us
    message.reply_to_text = quote_of_old.partition(">")[2].partition("> ")[2] if quote_of_old else None
    text = _without_names(text, (*names, *me.called)) if mentioned else text
    sign = me.command_prefix
    if sign and text.startswith(sign) and _COMMAND.match(text[len(sign) :]):
        text = f"/{text[len(sign) :]}"
    message.text = text
    if message.message_type is MessageType.TEXT and message.is_command():
        message.message_type = MessageType.COMMAND


def _without_names(text: str, names: Sequence[str]) -> str:
    """Return a text without the names of the bot."""
    for name in sorted(set(names), key=len, reverse=True):
        match = re.match(rf"@?{re.escape(name)}(?:[:,]|(?=\W)|$)\s*", text, re.IGNORECASE)
        if match is not None:
            text = text[match.end() :]
            break
    full = [name for name in names if name.startswith("@") and ":" in name]
    for name in full:
        text = text.replace(name, "")
    return text.strip()


def _identifier(value: object, sigil: str) -> str:
    """Check and return an identifier of the Matrix protocol.

    Raises:
        Malformed: The value is not an identifier.
    """
    if (
        not isinstance(value, str)
        or not value.startswith(sigil)
        or len(value) > 255
        or not value.isprintable()
    ):
        raise Malformed(f"an identifier from Matrix does not begin with {sigil}, or is not valid")
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _name(value: object) -> str | None:
    return (one_line(value) or None) if isinstance(value, str) else None


# Requests to one homeserver, and to no other host (ADR 72). The token is sent in a header, and is never part
# of an address, a log or an error.


LARGEST_ANSWER = 64 * 1024 * 1024
"""Maximum bytes of a response. The first sync of many rooms is large."""
READ_ON_THE_LOOP = 128 * 1024
"""Maximum bytes of JSON that are parsed on the event loop. Larger documents are parsed on a thread."""
CONNECT_SECONDS: Final = 15.0
FATAL = ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of a request.

    The status is 0 if no response arrived. `lost` is true if the homeserver may have received the request.
    """

    status: int = 0
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    lost: bool = False
    wait_ms: int | None = None
    """The pause that a header of the response asks for, in milliseconds."""

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300

    @property
    def errcode(self) -> str:
        """The error code of the response, or "" if the response has no valid code."""
        code = self.body.get("errcode")
        return code if isinstance(code, str) and code.isascii() and code.isidentifier() else ""

    @property
    def is_fatal(self) -> bool:
        """Whether the token is invalid, so that a retry does not help."""
        return self.status == 401 or self.errcode in FATAL

    @property
    def retry_after_ms(self) -> int | None:
        """The pause that the homeserver asks for, in milliseconds."""
        retry_after_ms = self.body.get("retry_after_ms")
        return (
            min(retry_after_ms, 3_600_000)
            if isinstance(retry_after_ms, int) and retry_after_ms > 0
            else self.wait_ms
        )

    def describe(self) -> str:
        """Return a short description of the failure, without secrets."""
        return f"{self.status} {self.errcode}".strip() if self.status else "no answer"


class Homeserver:
    """A client that sends requests to a homeserver as one user.

    Call `open` before the first request.
    """

    def __init__(self, base_url: str, token: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = token
        self._library: Any = None
        self._client: Any = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._client is not None

    async def open(self) -> None:
        """Load the HTTP library and create a client.

        Raises:
            MissingExtra: The library is not installed.
        """
        await self.close()
        self._library, self._client = await asyncio.to_thread(self._create_client)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Json] | bytes | None = None,
        *,
        content_type: str = "application/json",
        timeout_ms: int = 30_000,
    ) -> Answer:
        """Send a request and return its outcome.

        After a network failure, the outcome has the status 0.
        """
        data = (
            body
            if isinstance(body, bytes)
            else None
            if body is None
            else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        )
        try:
            answer, raw = await self._once(method, path, data, content_type, timeout_ms, LARGEST_ANSWER)
        except TooLarge:
            return Answer(lost=True)
        if raw is None:
            return answer
        read = await asyncio.to_thread(_read, raw) if len(raw) > READ_ON_THE_LOOP else _read(raw)
        return Answer(status=answer.status, body=read, wait_ms=answer.wait_ms)

    async def download(self, path: str, *, max_bytes: int) -> bytes | Answer:
        """Download a file, and return the bytes or the failed outcome.

        Raises:
            TooLarge: There are more than `max_bytes`. Nothing beyond that was read.
        """
        answer, raw = await self._once("GET", path, None, None, 60_000, max_bytes)
        return answer if raw is None or not answer.ok else raw

    async def _once(
        self,
        method: str,
        path: str,
        data: bytes | None,
        content_type: str | None,
        timeout_ms: int,
        most: int,
    ) -> tuple[Answer, bytes | None]:
        if self._client is None:
            return Answer(), None
        httpx = self._library
        headers = {} if content_type is None else {"Content-Type": content_type}
        sent = {
            "content": data,
            "headers": headers,
            "timeout": httpx.Timeout(timeout_ms / 1000, connect=min(CONNECT_SECONDS, timeout_ms / 1000)),
        }
        try:
            # Follow no redirect, because the token is only for this homeserver.
            async with (
                asyncio.timeout(timeout_ms / 1000),
                self._client.stream(
                    method, self._base_url + path, follow_redirects=False, **sent
                ) as response,
            ):
                length = response.headers.get("content-length")
                pieces = response.aiter_bytes(64 * 1024)
                limit = most if response.is_success else LARGEST_ANSWER
                raw = b"".join([piece async for piece in bounded(pieces, limit, length)])
                header = response.headers.get("Retry-After", "")
                wait_ms = min(int(header), 3_600) * 1000 if header.isascii() and header.isdigit() else None
                return Answer(status=response.status_code, wait_ms=wait_ms), raw
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol):
            return Answer(), None
        except (httpx.RequestError, TimeoutError):
            return Answer(lost=True), None

    def _create_client(self) -> tuple[Any, Any]:
        """Load the HTTP library and create a client."""
        httpx = _import_httpx()
        # Without TLS, no certificates are read. The library requires a context nevertheless, so this context
        # trusts no certificate.
        is_plain = self._base_url.startswith("http://")
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else True
        headers = {"Authorization": f"Bearer {self._token}"}
        return httpx, httpx.AsyncClient(verify=trusted, trust_env=False, headers=headers)


def _import_httpx() -> Any:
    try:
        return importlib.import_module("httpx2")
    except ImportError as error:
        raise MissingExtra(
            "the library httpx2, which the Matrix channel needs, is not installed",
            value="matrix",
            remedy=install_command("matrix"),
        ) from error


def _read(raw: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a response, or an empty object for an invalid response."""
    try:
        read = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


# Incoming events: the position in the homeserver's stream, and the messages in order.


class SyncPosition:
    """The position in the event stream of one user."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._user_id = ""
        self.since: str | None = None
        self.at = 0
        """The time when the adapter reached this position."""
        self.told: set[str] = set()
        """The encrypted rooms that have got the notice that the bot cannot read them."""

    async def load(self, user_id: str) -> None:
        """Load the position from the file, unless this process has a newer position.

        Raises:
            ConfigError: The file exists but cannot be read, or its folder is not writable.
        """
        if self._user_id == user_id and self.since is not None:
            return
        self._user_id = user_id
        if self._path is None:
            return
        try:
            kept_thread = await asyncio.to_thread(_read_position, self._path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "Matrix: the file that stores the position in the event stream cannot be used",
                value=str(self._path),
                remedy="repair the file and its folder, or remove the file to start with new messages only",
            ) from error
        if kept_thread is not None and kept_thread[0] == user_id:
            _, self.since, self.at, self.told = kept_thread

    async def move(self, since: str, at: int) -> None:
        """Advance to a new position, and store the position.

        If the position cannot be stored, messages may arrive twice.
        """
        moved = since != self.since
        self.since, self.at = since, at
        if self._path is None or not moved:
            return
        kept_fields = {"user_id": self._user_id, "since": since, "at": at, "told": sorted(self.told)}
        try:
            await asyncio.to_thread(_write_position, self._path, json.dumps(kept_fields))
        except OSError as error:
            _LOG.warning("matrix.place_not_kept", reason=type(error).__name__)


def _read_position(path: Path) -> tuple[str, str, int, set[str]] | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {path.parent} is not writable")
    if not path.exists():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    user_id, since, at = document["user_id"], document["since"], document["at"]
    if not isinstance(user_id, str) or not isinstance(since, str) or not isinstance(at, int):
        raise TypeError("no place")
    return user_id, since, at, set(map(str, document["told"]))


def _write_position(path: Path, text: str) -> None:
    """Write a private file atomically."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


_UNREADABLE = (
    "This room is encrypted, and I cannot read encrypted messages. Please write to me in a room without "
    "encryption."
)
_GAP_PAGES = 50
"""Maximum number of pages, with a hundred events each, that are requested to fill a gap."""
_SKEW_MS = 3_600_000
"""The assumed maximum difference between the clocks of homeservers.

Events that are older than the last round by more than this difference were known in that round.
"""
_NOT_THERE = (400, 403, 404)


class Intake:
    """Hands over the events of each batch in order."""

    def __init__(
        self,
        home: Homeserver,
        position: SyncPosition,
        me: Ourselves,
        *,
        accept: Callable[[MessageEvent], Awaitable[None]],
        take_in: Callable[[Json, Callable[[], Awaitable[None]]], Awaitable[None]],
        inbound: Callable[[], Inbound | None],
    ) -> None:
        self.me = me
        self.rooms: dict[str, Room] = {}
        self.knows_rooms = False
        """Whether this process has received all rooms since its start."""
        self.insists = True
        """Whether a batch waits for related data that cannot be requested now.

        If this is False, the batch is processed without the data.
        """
        self._home = home
        self._position = position
        self._accept = accept
        self._inbound = inbound
        self._take_in = take_in

    def begin(self, batch: Mapping[str, Any]) -> None:
        """Record the rooms of the first batch without handing over old messages."""
        for room_id, info in list_rooms(batch, "join"):
            self._learn(room_id, info)
        self.knows_rooms = True

    async def take(self, batch: Mapping[str, Any]) -> None:
        """Hand over the events of a batch in order. When the call returns, all events are stored.

        Raises:
            StoreError: A message could not be stored. Process the batch again.
            ServerUnavailable: Related data could not be requested.
        """
        joined = list_rooms(batch, "join")
        rooms = [self._learn(room_id, info) for room_id, info in joined]
        self.knows_rooms = True
        for room, (_, info) in zip(rooms, joined, strict=True):
            events = list_events(info, "timeline")
            belonged = len(after_our_invitation(events, self.me)) == len(events)
            timeline = info.get("timeline")
            if belonged and isinstance(timeline, dict) and timeline.get("limited") is True:
                events = [*await self._gap(room.room_id, timeline.get("prev_batch")), *events]
            for event in after_our_invitation(events, self.me):
                await self._take_in(event, partial(self._take_event, event, room))
        for room_id, _ in list_rooms(batch, "leave"):
            self.rooms.pop(room_id, None)

    def _learn(self, room_id: str, info: Mapping[str, Any]) -> Room:
        room = self.rooms.setdefault(room_id, Room(room_id=room_id))
        for event in (*list_events(info, "state"), *list_events(info, "timeline")):
            room.learn(event)
        room.count(info.get("summary"))
        return room

    async def _gap(self, room_id: str, before: object) -> list[object]:
        """Return the messages of a room that are missing in the batch, oldest first."""
        items: list[object] = []
        floor = self._position.at - _SKEW_MS
        for _ in range(_GAP_PAGES):
            if not isinstance(before, str) or self._position.since is None:
                break
            query = {"dir": "b", "from": before, "to": self._position.since, "limit": "100"}
            answer = await self._home.ask("GET", build_path("rooms", room_id, "messages", query=query))
            if not answer.ok and answer.status not in _NOT_THERE:
                raise ServerUnavailable(
                    f"the homeserver did not return older events of a room: {answer.describe()}",
                    remedy="postroom retries",
                )
            page = answer.body.get("chunk") if answer.ok else None
            if not isinstance(page, list) or not page or all_older(page, floor):
                break
            items.extend(page)
            before = answer.body.get("end")
        else:
            _LOG.warning("matrix.gap_is_too_long", room=room_id, events=len(items))
        return items[::-1]

    async def _take_event(self, event: object, room: Room) -> None:
        """Hand over one event.

        Raises:
            Malformed: The event violates the protocol.
        """
        if room.joined is None:
            fields = await self._looked_up(build_path("rooms", room.room_id, "joined_members"))
            joined = fields.get("joined") if fields is not None else None
            room.joined = len(joined) if isinstance(joined, dict) else 3
        heard = understood(event, room, self.me)
        if heard is not None:
            event = heard.event
            if heard.kind is Kind.ENCRYPTED:
                room.encrypted = True
                if room.room_id in self._position.told:
                    return
                content: dict[str, Json] = {"msgtype": "m.notice", "body": _UNREADABLE, "m.mentions": {}}
                txn = transaction_id("unreadable", room.room_id)
                path = build_path("rooms", room.room_id, "send", "m.room.message", txn)
                answer = await self._home.ask("PUT", path, content)
                if answer.ok:
                    self._position.told.add(room.room_id)
            elif heard.kind is Kind.MESSAGE:
                if event.reply_to_message_id is not None:
                    old = parse_quote(await self._event(room, event.reply_to_message_id))
                    if old is not None:
                        event.reply_to_text, event.reply_to_author = old[1], room.names.get(old[0]) or old[0]
                        if old[0] != self.me.user_id:
                            event.media += Attachment.foreign(
                                file for file in old[2] if file not in event.media
                            )
                        event.addressed = event.addressed or old[0] == self.me.user_id
                await self._accept(event)
            elif (inbound := self._inbound()) is not None and event.source is not None:
                if heard.kind is Kind.TAKEN_BACK:
                    await inbound.deleted(event.source, event.message_id or "")
                else:  # anybody can send an edit of any message
                    old = parse_quote(await self._event(room, event.message_id or ""))
                    if old is None or old[0] != event.source.user_id:
                        raise Malformed("a user edited another user's message")
                    await inbound.edited(event)

    async def _event(self, room: Room, event_id: str) -> Mapping[str, Any] | None:
        return await self._looked_up(build_path("rooms", room.room_id, "event", event_id))

    async def _looked_up(self, path: str) -> Mapping[str, Any] | None:
        answer = await self._home.ask("GET", path)
        if not answer.ok and answer.status not in _NOT_THERE and self.insists:
            raise ServerUnavailable(f"a request failed: {answer.describe()}", remedy="postroom retries")
        return answer.body if answer.ok else None


_JOIN_TRIES = 5
_INSISTS = 5
"""The number of rounds in which the adapter waits for an event that the homeserver cannot find.

Then the adapter continues without the event, which must not block all others.
"""
_RENDERED_ON_THE_LOOP = 8_000


class MatrixOptions(PlatformConfig, frozen=True, kw_only=True):
    """The settings in the table `[platforms.matrix]`."""

    base_url: str
    """The homeserver, such as `https://matrix.example.org`."""
    user_id: str | None = None
    """The user to whom the token must belong. The token of another user is refused."""
    sync_file: FilePath | None = None
    """The file that stores the position in the stream. If None, a process starts with new events."""
    poll_ms: Annotated[int, Meta(ge=1_000, le=300_000)] = 30_000
    """How long the homeserver may keep a sync request without new events open, in milliseconds."""
    command_prefix: str = "!"
    """A second prefix for commands, because clients intercept `/`, or "" for no second prefix."""

    def __post_init__(self) -> None:
        refuse_address("base_url", self.base_url, plain=True)


class MatrixAdapter(BasePlatformAdapter):
    """Connects a bot, which is a Matrix user, to a homeserver.

    Raises:
        ConfigError: The token or a setting is missing or invalid.
    """

    platform = Platform.MATRIX
    options = MatrixOptions
    capabilities = ChannelCapabilities(
        # Matrix limits a whole event to 65,536 bytes, and an event contains its text twice: as plain text and
        # as HTML. So a text may have 16,000 bytes (not characters). In an edit, the text for old clients is
        # short.
        limit=16_000,
        unit=LengthUnit.UTF8,
        edits=True,
        threads=True,
        typing=True,
        reactions=True,
        media=FILES,
        min_edit_interval_ms=1_500,
        # Each homeserver has its own limits. This limit is postroom's: refused reactions must not delay
        # answers.
        rates=RateLimits(methods={"react": Rate(10, 1_000)}),
    )

    def __init__(
        self, config: MatrixOptions, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = config
        # The access token.
        token = config.token
        if not token or not token.isascii() or not token.isprintable():
            raise ConfigError(
                "Matrix: the access token is missing", remedy=secret_remedy("token", "the bot's access token")
            )
        self._home = Homeserver(self._options.base_url, token)
        self._me = Ourselves(user_id="", command_prefix=self._options.command_prefix)
        self._position = SyncPosition(self._options.sync_file)
        self._intake = self._fresh_intake()
        self._joining: set[str] = set()

    @property
    def account(self) -> str:
        """The bot's user id. `connect` sets the value."""
        return self._me.user_id or "default"

    def lock_identity(self) -> str | None:
        """Return the bot's token, which only one process on a machine may use."""
        return self.config.token

    # Connecting and disconnecting.

    def load_libraries(self) -> None:
        """Import the library for requests."""
        _import_httpx()

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Check the token, find the position in the event stream, and start to receive events."""
        await self.disconnect()
        self._tasks = Tasks(f"channel {self.platform.value}")
        self.liveness.state = AdapterState.CONNECTING
        try:
            await self._home.open()
            answer = await self._home.ask("GET", build_path("account", "whoami"))
            if answer.is_fatal or answer.status == 403:
                raise CredentialRefused(
                    f"the homeserver rejected the access token: {answer.describe()}",
                    remedy=secret_remedy("token", "a new access token of the bot's user"),
                )
            user_id = answer.body.get("user_id")
            if not answer.ok or not isinstance(user_id, str):
                raise ServerUnavailable(
                    f"the homeserver did not return the bot's user id: {answer.describe()}",
                    remedy="check `base_url` of Matrix, and whether the homeserver is running",
                )
            wanted = self._options.user_id
            if wanted not in (None, user_id):
                raise ConfigError(
                    f"the access token belongs to {user_id}",
                    value=wanted,
                    remedy=f"change user_id to {user_id}, or "
                    + secret_remedy("token", f"the access token of {wanted}"),
                )
            profile = await self._home.ask("GET", build_path("profile", user_id, "displayname"))
            name = profile.body.get("displayname") if profile.ok else None
            self._me = Ourselves(
                user_id=user_id,
                name=name if isinstance(name, str) and name.strip() else None,
                command_prefix=self._options.command_prefix,
            )
            self._intake = self._fresh_intake()
            await self._position.load(self._me.user_id)
            if self._position.since is None:
                # Start at the current position of the event stream, without handing over earlier messages.
                answer = await self._sync(timeout_ms=0)
                since = answer.body.get("next_batch")
                if not answer.ok or not isinstance(since, str):
                    raise ServerUnavailable(
                        f"the homeserver returned no position in the event stream: {answer.describe()}",
                        remedy="postroom retries",
                    )
                self._intake.begin(answer.body)
                self._accept_invites(answer.body)
                await self._position.move(since, self._clock.now())
        except BaseException:
            await self.disconnect()
            raise
        self._start_receiving(self._look)

    async def disconnect(self) -> None:
        """Stop receiving and close all connections."""
        await self._end_tasks()
        await self._home.close()
        self._intake = self._fresh_intake()
        self._joining.clear()

    def _fresh_intake(self) -> Intake:
        return Intake(
            self._home,
            self._position,
            self._me,
            accept=self.handle_message,
            inbound=lambda: self._inbound,
            take_in=self.take_in,
        )

    # Incoming events.

    async def _look(self, failures: int) -> int:
        """Process a batch of events, and advance the position."""
        self._intake.insists = failures < _INSISTS
        answer = await self._sync(timeout_ms=self._options.poll_ms)
        if answer.is_fatal:
            raise CredentialRefused(
                f"the homeserver no longer accepts the access token: {answer.describe()}",
                remedy=secret_remedy("token", "a new access token of the bot's user"),
            )
        since = answer.body.get("next_batch")
        if not answer.ok or not isinstance(since, str):
            raise ServerUnavailable(
                f"the homeserver did not return new events: {answer.describe()}",
                remedy="postroom retries",
                details={"retry_after_ms": answer.retry_after_ms},
            )
        self._heard()
        await self.take_in(answer.body, partial(self._take, answer.body))
        await self._position.move(since, self._clock.now())
        return 0

    async def _take(self, batch: Mapping[str, Any]) -> None:
        await self._intake.take(batch)
        self._accept_invites(batch)

    async def _sync(self, *, timeout_ms: int) -> Answer:
        """Request new events from the homeserver."""
        query = {"filter": SYNC_FILTER, "timeout": str(timeout_ms)}
        if self._position.since is not None:
            query["since"] = self._position.since
            if not self._intake.knows_rooms:
                query["full_state"] = "true"
        return await self._home.ask("GET", build_path("sync", query=query), timeout_ms=timeout_ms + 30_000)

    # Invitations.

    def _accept_invites(self, batch: Mapping[str, Any]) -> None:
        for room_id, info in list_rooms(batch, "invite"):
            sender = inviter(list_events(info, "invite_state"), self._me)
            allowed = sender in self.config.allow or "*" in self.config.allow
            if sender is None or not allowed or room_id in self._joining:
                _LOG.info("matrix.invitation_passed_over", room=room_id)
                continue
            self._joining.add(room_id)
            self._tasks.start(self._join(room_id), name="join")

    async def _join(self, room_id: str) -> None:
        """Join a room, and retry after temporary failures."""
        for attempt in range(_JOIN_TRIES):
            answer = await self._home.ask("POST", build_path("join", room_id), {}, timeout_ms=120_000)
            if answer.ok or (400 <= answer.status < 500 and answer.status not in (408, 429)):
                break
            await self._timer.sleep(answer.retry_after_ms or 2_000 * 2**attempt)
        if not answer.ok:
            _LOG.warning("matrix.not_joined", room=room_id, answer=answer.describe())
        self._joining.discard(room_id)

    # Outgoing events.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send a message to a room. The homeserver accepts only one message with each `dedupe_key`."""
        thread_id = (metadata or {}).get("thread_id")
        html = await _render(content)
        contents = build_contents(content, html, thread_id=thread_id, reply_to=reply_to)
        return await self._say(chat_id, content, contents, _key(metadata), metadata)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text of a sent message."""
        contents = build_edits(message_id, content, await _render(content))
        result = await self._say(chat_id, content, contents, uuid4().hex, metadata)
        return SendResult.sent(message_id) if result.success else result

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Delete a sent message."""
        txn = transaction_id("redact", chat_id + message_id)
        answer = await self._home.ask("PUT", build_path("rooms", chat_id, "redact", message_id, txn), {})
        return self._result(answer)

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show a typing indicator in a room for ten seconds."""
        path = build_path("rooms", chat_id, "typing", self._me.user_id)
        async with self._turn("typing", None, metadata, gives_way=True) as turn:
            if turn.wait_ms:
                return
            fields = {"typing": True, "timeout": 10_000}
            result = self._result(await self._home.ask("PUT", path, fields, timeout_ms=5_000))
            if result.error_kind is SendErrorKind.RATE_LIMITED:
                turn.refused(result.retry_after_ms)

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Add a reaction to a message, or remove the reaction."""
        txn = transaction_id("react", chat_id + (takes_back or message_id))
        path = build_path("rooms", chat_id, "send", "m.reaction", txn)
        content: dict[str, Json] = reaction_to(message_id)
        if takes_back:
            path, content = build_path("rooms", chat_id, "redact", takes_back, txn), {}
        async with self._turn("react", None, metadata, gives_way=True) as turn:
            if turn.wait_ms:
                return SendResult.failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=turn.wait_ms)
            result = self._result(await self._home.ask("PUT", path, content))
            if result.error_kind is SendErrorKind.RATE_LIMITED:
                turn.refused(result.retry_after_ms)
            return result

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Upload a file, and show it in a room."""
        mime = attachment.mime or "application/octet-stream"
        path = build_path("upload", base="/_matrix/media/v3")
        async with self._file_turn:
            raw = await data.whole()
            answer = await self._home.ask("POST", path, raw, content_type=mime, timeout_ms=120_000)
        url = answer.body.get("content_uri")
        if not answer.ok or not isinstance(url, str):
            refused = self._result(answer)  # the file is not shown yet, so a repetition cannot show it twice
            kind = refused.error_kind if refused.error_kind is not SendErrorKind.UNKNOWN else None
            return SendResult.failed(kind or SendErrorKind.TRANSIENT, f"not uploaded: {answer.describe()}")
        thread_id = (metadata or {}).get("thread_id")
        content = build_media_content(url, attachment, data.size, caption, thread_id)
        return await self._say(chat_id, caption or "", [content], f"file {_key(metadata)}", metadata)

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a received file from the bot's homeserver."""
        path = media_path(attachment.ref)
        if path is None:
            raise ServerUnavailable(
                "the URI of the file is not a Matrix media URI (mxc://...)",
                remedy="send the file again in the room",
            )
        value = await self._home.download(path, max_bytes=max_bytes)
        if isinstance(value, Answer):
            raise ServerUnavailable(
                f"the file could not be downloaded: {value.describe()}",
                remedy="ask the sender to send the file again",
            )
        yield value

    async def _say(
        self,
        chat_id: str,
        text: str,
        contents: list[dict[str, Json]],
        key: str,
        metadata: Metadata | None,
    ) -> SendResult:
        """Send a message with the first of several contents that the homeserver accepts."""
        if not self._intake.knows_rooms:
            return SendResult.failed(
                SendErrorKind.TRANSIENT, "postroom does not know yet whether the room is encrypted"
            )
        if (room := self._intake.rooms.get(chat_id)) is not None and room.encrypted:
            return SendResult.failed(
                SendErrorKind.FORBIDDEN, "the room is encrypted, and postroom cannot send encrypted messages"
            )
        if self.capabilities.unit.measure(text) > self.capabilities.limit:
            return SendResult.failed(
                SendErrorKind.TOO_LONG, f"the message has more than {self.capabilities.limit} bytes"
            )
        # Each homeserver sets its own limits for a user, and reports when a limit is reached.
        async with self._turn("send", None, metadata) as turn:
            if turn.wait_ms:
                return SendResult.failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=turn.wait_ms)
            for number, content in enumerate(contents, start=1):
                answer = await self._home.ask(
                    "PUT",
                    build_path(
                        "rooms", chat_id, "send", "m.room.message", transaction_id(f"say{number}", key)
                    ),
                    content,
                )
                if answer.status not in (400, 413):
                    break
            result = self._result(answer)
            if result.error_kind is SendErrorKind.RATE_LIMITED:
                turn.refused(result.retry_after_ms)
            return result

    def _result(self, answer: Answer) -> SendResult:
        if answer.ok:
            self._said()
            event_id = answer.body.get("event_id")
            return SendResult.sent(event_id if isinstance(event_id, str) else None)
        if not answer.status:
            kind = SendErrorKind.UNKNOWN if answer.lost else SendErrorKind.TRANSIENT
            return SendResult.failed(kind, "the homeserver did not answer")
        if answer.is_fatal:
            self._fail(
                "unauthorized",
                f"the homeserver no longer accepts the access token: {answer.describe()}",
                retryable=False,
            )
        return refusal(answer.status, answer.errcode, answer.retry_after_ms)


def _key(metadata: Metadata | None) -> str:
    key = (metadata or {}).get("dedupe_key")
    return str(key) if key else uuid4().hex


async def _render(text: str) -> str:
    return to_html(text) if len(text) <= _RENDERED_ON_THE_LOOP else await asyncio.to_thread(to_html, text)
