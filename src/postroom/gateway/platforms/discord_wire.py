"""Discord's data as our values: translation only, without waiting or state."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.messages import Json
from postroom.gateway.events import (
    Attachment,
    ButtonPress,
    Card,
    Forwarded,
    MessageEvent,
    MessageType,
    SendErrorKind,
    SendResult,
)
from postroom.gateway.platforms.safe_text import poll_in_words
from postroom.gateway.session import Platform, SessionSource

LONGEST_NONCE = 25
BUTTONS_A_ROW, ROWS = 5, 5
LONGEST_LABEL, LONGEST_VALUE, LONGEST_NOTE = 80, 100, 2_000
EPHEMERAL = 1 << 6
MENTIONS: Json = {"parse": ["users"], "replied_user": False}
"""Whom our words may wake: those they name, never a role and never everyone."""
_MIME = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)


class RestFailure(Exception):
    """Discord refused a request, or did not answer; `taken` is true if it may have been performed."""

    def __init__(
        self, text: str, *, status: int = 0, code: int = 0, wait_ms: int | None = None, taken: bool = False
    ) -> None:
        super().__init__(text)
        self.status = status
        """The HTTP status, 0 when no answer came."""
        self.code = code
        """Discord's own number of the error."""
        self.wait_ms = wait_ms
        self.taken = taken


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
    """Return a key of at most the length that Discord accepts; equal keys stay equal."""
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
    """Return whether an update of a message changed its words; other updates only add link previews."""
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
    """Return the words of a message; a sticker is represented by its name."""
    stickers = [f":{_text(one, 'name') or 'sticker'}:" for one in _mappings(found, "sticker_items")]
    return " ".join(part for part in (_text(found, "content"), *stickers) if part)


def _parts(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a poll and of the blocks of a message."""
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
    """Return the files of the answered message, unless postroom sent that message."""
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
