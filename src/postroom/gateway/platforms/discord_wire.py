"""What comes from Discord, as our values: translation only, nothing here waits or remembers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from postroom.gateway.config import Platform
from postroom.gateway.events import (
    Attachment,
    ButtonPress,
    MessageEvent,
    MessageType,
)
from postroom.gateway.session import SessionSource

FIRST_MILLISECOND = 1_420_070_400_000
"""Discord's ids count from the first instant of 2015."""
SPOKEN = (0, 19)
"""The types of messages that somebody wrote: plain ones and answers. Others tell of joins or pins."""
DIRECT, GROUP, THREADS = 1, 3, (10, 11, 12)
VOICE_FLAG = 1 << 13
COMMAND, COMPONENT = 2, 3

_KINDS = {"image": MessageType.PHOTO, "video": MessageType.VIDEO, "audio": MessageType.AUDIO}


class Unreadable(Exception):
    """An update has not the shape that Discord documents. Its words are not in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A channel, as far as a line needs to know it."""

    chat_type: str
    name: str | None = None
    topic: str | None = None
    parent: str | None = None
    """Of a thread, the channel that it belongs to."""
    guild: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """Our own bot."""

    user_id: str

    def named_in(self, data: Mapping[str, Any]) -> bool:
        """Say whether a message mentions us or answers us."""
        answered = data.get("referenced_message")
        to_us = isinstance(answered, dict) and _id(_mapping(answered, "author"), "id") == self.user_id
        return to_us or any(_id(one, "id") == self.user_id for one in _mappings(data, "mentions"))

    def without(self, text: str) -> str:
        """Return a text without the mentions of us."""
        return re.sub(rf"[ \t]*<@!?{self.user_id}>", "", text).strip()


# What comes in.


def is_id(value: object) -> bool:
    """Say whether it is one of Discord's ids: up to 20 digits."""
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20


def instant_of(message_id: str) -> int:
    """Return when an id was given, in milliseconds since the epoch."""
    return (int(message_id) >> 22) + FIRST_MILLISECOND


def id_at(instant: int) -> str:
    """Return the least id that can have been given at an instant."""
    return str(max(instant - FIRST_MILLISECOND, 0) << 22)


def channel_of(data: object) -> tuple[str, str | None]:
    """Return the ids of the channel and the guild that an update is about; no guild means a direct message.

    Raises:
        Unreadable: it names no channel.
    """
    found = _checked(data)
    return _id(found, "channel_id"), None if found.get("guild_id") is None else _id(found, "guild_id")


def place_of(data: object) -> Place:
    """Return what a channel object says.

    Raises:
        Unreadable: it is none.
    """
    found = _checked(data)
    kind = found.get("type")
    guild = None if found.get("guild_id") is None else _id(found, "guild_id")
    name, topic = _text(found, "name"), _text(found, "topic")
    if kind == DIRECT:
        return Place(chat_type="dm")
    if kind == GROUP:
        return Place(chat_type="group", name=name)
    if kind in THREADS:
        return Place(chat_type="thread", name=name, parent=_id(found, "parent_id"), guild=guild)
    return Place(chat_type="channel", name=name, topic=topic, guild=guild)


def source_of(channel_id: str, place: Place, account: str) -> SessionSource:
    """Return a place without a speaker: the thread's channel is the chat, the thread stands beside it."""
    return SessionSource(
        platform=Platform.DISCORD,
        chat_id=place.parent or channel_id,
        chat_name=place.name,
        chat_type=place.chat_type,
        thread_id=channel_id if place.parent else None,
        chat_topic=place.topic,
        account=account,
    )


def is_line(data: object, me: Me) -> bool:
    """Say whether a message is something that somebody else said.

    Raises:
        Unreadable: it is no message.
    """
    found = _checked(data)
    _id(found, "id")
    author = _mapping(found, "author")
    return found.get("type", 0) in SPOKEN and _id(author, "id") != me.user_id


def is_edit(data: object) -> bool:
    """Say whether an update of a message changed its words; others only add previews of links."""
    found = _checked(data)
    return bool(found.get("edited_timestamp")) and "content" in found and "author" in found


def line_of(data: object, place: Place, me: Me) -> MessageEvent:
    """Return a message as a line.

    Raises:
        Unreadable: it is no message.
    """
    found = _checked(data)
    channel_id, guild_id = channel_of(found)
    message_id = _id(found, "id")
    media = tuple(_attachment(one, found.get("flags")) for one in _mappings(found, "attachments"))
    text = me.without(_words(found))
    reference = found.get("message_reference")
    answers = isinstance(reference, dict) and reference.get("type", 0) == 0 and reference.get("message_id")
    answered = found.get("referenced_message")
    event = MessageEvent(
        text=text,
        message_type=media[0].kind if media else MessageType.TEXT,
        source=_spoken(source_of(channel_id, place, me.user_id), found),
        raw_message=found,
        message_id=message_id,
        media=media,
        reply_to_message_id=str(answers) if answers else None,
        reply_to_text=_text(answered, "content") if isinstance(answered, dict) else None,
        timestamp=instant_of(message_id),
        addressed=place.chat_type == "dm" or me.named_in(found),
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
        raise Unreadable("a deletion of what are no messages")
    return listed


def press_of(data: object, place: Place, me: Me) -> ButtonPress | MessageEvent | None:
    """Return a pressed button, or a slash command as a line; None for what is neither.

    Raises:
        Unreadable: it is no interaction.
    """
    found = _checked(data)
    channel_id, guild_id = channel_of(found)
    source = _spoken(source_of(channel_id, place, me.user_id), found)
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
        raw_message=found,
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
    """Return a page of messages, the oldest first; what has no id is left out.

    Raises:
        Unreadable: it is no list.
    """
    if not isinstance(page, list):
        raise Unreadable("a page of messages that is no list")
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
    """What was written, or what was forwarded; a sticker alone stands by its name."""
    if written := _text(found, "content"):
        return written
    for one in _mappings(found, "message_snapshots"):
        if forwarded := _text(_mapping(one, "message"), "content"):
            return forwarded
    return " ".join(f":{_text(one, 'name') or 'sticker'}:" for one in _mappings(found, "sticker_items"))


def _spoken(source: SessionSource, found: Mapping[str, Any]) -> SessionSource:
    member = found.get("member")
    member = member if isinstance(member, dict) else {}
    author = found.get("author") or found.get("user") or member.get("user")
    if not isinstance(author, dict):
        raise Unreadable("nobody is said to have done it")
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
        raise Unreadable("an update that is no object")
    return data


def _mapping(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(one := found.get(name), dict):
        raise Unreadable(f"`{name}` is no object")
    return one


def _mappings(found: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    listed = found.get(name) or []
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise Unreadable(f"`{name}` is no list of objects")
    return listed


def _id(found: Mapping[str, Any], name: str) -> str:
    if not is_id(one := found.get(name)):
        raise Unreadable(f"`{name}` is no id")
    return str(one)


def _text(found: Mapping[str, Any], name: str) -> str | None:
    one = found.get(name)
    if one is not None and not isinstance(one, str):
        raise Unreadable(f"`{name}` is no text")
    return one and one.encode("utf-8", "replace").decode().replace("\0", "")  # half pairs cannot be kept
