"""Telegram's updates as events: pure translation, of what anybody may have written, into what we keep.

A chat's `private` is a direct message, `group` and `supergroup` a group, `channel` a channel; a topic is the
chat's thread. Who speaks for a chat (a channel, or its administrators without names) has that chat's id.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from postroom.contracts.errors import InvalidArgument, ServerUnavailable
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json
from postroom.gateway.events import Attachment, ButtonPress, Card, MessageEvent, MessageType, SendErrorKind
from postroom.gateway.platforms.base import Metadata
from postroom.gateway.session import Platform, SessionSource

_OK: Final = 200
_BY_STATUS: Final = {
    401: SendErrorKind.FORBIDDEN,
    403: SendErrorKind.FORBIDDEN,
    404: SendErrorKind.NOT_FOUND,
    409: SendErrorKind.TRANSIENT,
    413: SendErrorKind.TOO_LONG,
    429: SendErrorKind.RATE_LIMITED,
    502: SendErrorKind.UNKNOWN,
    503: SendErrorKind.TRANSIENT,
    504: SendErrorKind.UNKNOWN,
}
_BY_WORDS: Final = (
    (("too long", "too_long", "too big"), SendErrorKind.TOO_LONG),
    (("not found", "peer_id_invalid", "topic_deleted", "upgraded to a supergroup"), SendErrorKind.NOT_FOUND),
    (
        (
            "not enough rights",
            "no rights",
            "need administrator rights",
            "write_forbidden",
            "channel_private",
            "topic_closed",
        ),
        SendErrorKind.FORBIDDEN,
    ),
)
"""What Telegram's own words for a request that it refuses with 400 mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What Telegram answered, or what became of a request that was not answered."""

    result: Json = None
    status: int = 0
    """0 when there was no answer."""
    kind: SendErrorKind | None = None
    """None when it was done."""
    error: str = ""
    retry_after_ms: int | None = None
    migrate_to: int | None = None
    """The id that the group has now."""
    is_telegram: bool = False
    """Whether Telegram itself said so, and not something that stands before it."""

    def says(self, *words: str) -> bool:
        """Whether the refusal holds one of these words, in small letters."""
        told = self.error.lower()
        return any(word in told for word in words)

    @property
    def is_unauthorized(self) -> bool:
        """Whether the token is refused; one that no bot has is answered with 404."""
        return self.is_telegram and self.status in (401, 403, 404)

    @property
    def is_conflict(self) -> bool:
        """Whether somebody else receives for this bot."""
        return self.is_telegram and self.status == 409


def read_answer(status: int, body: bytes) -> Answer:
    """Return what an answer of the Bot API says."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    told = told if isinstance(told, dict) else {}
    if told.get("ok") is True and status == _OK:
        return Answer(result=told.get("result"), status=status, is_telegram=True)
    words = told.get("description")
    described = mended(words)[:300] if isinstance(words, str) else f"Telegram answered {status} without words"
    is_telegram = told.get("ok") is False
    return Answer(
        status=status,
        kind=_kind(status, described.lower(), is_telegram=is_telegram),
        error=described,
        retry_after_ms=_retry_after(told.get("parameters")),
        migrate_to=_migrate_to(told.get("parameters")),
        is_telegram=is_telegram,
    )


def _kind(status: int, described: str, *, is_telegram: bool) -> SendErrorKind:
    """Return what a refusal means. What stands before Telegram may refuse what Telegram has taken."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status < 300 or (status >= 500 and not is_telegram):
        return SendErrorKind.UNKNOWN
    if status < 400 or status >= 500:
        return SendErrorKind.TRANSIENT
    for words, kind in _BY_WORDS:
        if any(word in described for word in words):
            return kind
    return SendErrorKind.BAD_FORMAT


def _retry_after(parameters: Json) -> int | None:
    seconds = parameters.get("retry_after") if isinstance(parameters, dict) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 86_400:
        return None
    return int(seconds * 1_000)


def _migrate_to(parameters: Json) -> int | None:
    return _number(parameters.get("migrate_to_chat_id")) if isinstance(parameters, dict) else None


def unreachable(why: str) -> ServerUnavailable:
    """Return that Telegram, or a file there, could not be had."""
    return ServerUnavailable(
        f"Telegram could not be asked: {why}",
        remedy="check the network and base_url; it may be repeated",
    )


MOST_DATA_BYTES: Final = 64
"""What a button may carry."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_MIME: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-z0-9.+-]{0,80}", re.IGNORECASE)
_LONGEST_NAME: Final = 200
_MEDIA: Final = {
    MessageType.PHOTO: ("sendPhoto", "photo"),
    MessageType.VIDEO: ("sendVideo", "video"),
    MessageType.AUDIO: ("sendAudio", "audio"),
    MessageType.VOICE: ("sendVoice", "voice"),
    MessageType.STICKER: ("sendSticker", "sticker"),
}
_GENERAL: Final = "1"
"""The topic that every forum begins with; a message into it names no topic."""


def number_of(text: str | None) -> int | None:
    """Return an id as the number that it is; None when it is none."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def place(chat_id: str, metadata: Metadata | None) -> dict[str, Json]:
    """Return the fields that say where a message goes."""
    number = number_of(chat_id)
    where: dict[str, Json] = {"chat_id": mended(chat_id) if number is None else number}
    thread = (metadata or {}).get("thread_id")
    topic = None if thread is None or str(thread) == _GENERAL else number_of(str(thread))
    return where if topic is None else {**where, "message_thread_id": topic}


def answering(reply_to: str | None) -> dict[str, Json]:
    """Return the fields that make it an answer; should that message be gone, it is sent all the same."""
    number = number_of(reply_to)
    if number is None:
        return {}
    return {"reply_parameters": {"message_id": number, "allow_sending_without_reply": True}}


def keyboard(card: Card) -> dict[str, Json] | None:
    """Return a card's buttons, one below the other; None when one of them cannot be carried."""
    if any(not 0 < len(one.value.encode("utf-8", "replace")) <= MOST_DATA_BYTES for one in card.buttons):
        return None
    rows = [[{"text": mended(one.label), "callback_data": mended(one.value)}] for one in card.buttons]
    return {"reply_markup": {"inline_keyboard": rows}}


def media_method(kind: MessageType, *, has_caption: bool) -> tuple[str, str]:
    """Return the method for a kind of file, and its field; a sticker with words goes as a document."""
    if kind is MessageType.STICKER and has_caption:
        return "sendDocument", "document"
    return _MEDIA.get(kind, ("sendDocument", "document"))


def file_of(attachment: Attachment, data: FileContent) -> tuple[str, FileContent, str]:
    """Return name, content and MIME type of a file; the name is data, whatever stands in it."""
    name = mended(attachment.name or "")[:_LONGEST_NAME] or attachment.kind.value
    mime = attachment.mime or ""
    return name, data, mime if _MIME.fullmatch(mime) else "application/octet-stream"


MESSAGES: Final = ("message", "channel_post")
EDITS: Final = ("edited_message", "edited_channel_post")
ALLOWED_UPDATES: Final = (*MESSAGES, *EDITS, "callback_query")
"""What Telegram is asked to send; it tells bots nothing of messages that were deleted."""
CHAT_TYPES: Final = {"private": "dm", "group": "group", "supergroup": "group", "channel": "channel"}

_LATEST: Final = 253_402_300_799
"""The last second of the year 9999."""
_COMMAND: Final = re.compile(r"/([A-Za-z0-9_]+)@([A-Za-z0-9_]+)(?=\s|$)")
_FILES: Final = (
    ("animation", MessageType.VIDEO, "video/mp4"),  # comes together with `document`, and first
    ("document", MessageType.DOCUMENT, None),
    ("video", MessageType.VIDEO, None),
    ("video_note", MessageType.VIDEO, "video/mp4"),
    ("voice", MessageType.VOICE, "audio/ogg"),
    ("audio", MessageType.AUDIO, None),
)
_NAMED_ONLY: Final = ("contact", "dice", "poll", "game", "story", "checklist", "paid_media", "invoice")
"""What is told by its name alone, so that an answer can say that it was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """Our bot."""

    bot_id: int
    username: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """Somebody said something, or said it otherwise."""

    event: MessageEvent
    edited: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A group became a supergroup, which has another id."""

    source: SessionSource
    chat_id: str


def mended(text: str) -> str:
    """Return text that every store and every JSON can hold, as long as it was in UTF-16.

    Halves of surrogate pairs and the null character become replacement characters.
    """
    whole = (
        text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    )
    return whole.replace("\0", "\ufffd")


def update_id_of(update: Json) -> int | None:
    """Return the number of an update; None when it has none."""
    return _number(update.get("update_id")) if isinstance(update, dict) else None


def read_update(update: Json, me: Me) -> Posted | ButtonPress | Moved | None:
    """Return what an update says; None when it is nothing for us, for instance our own message.

    Raises:
        InvalidArgument: it is no update.
    """
    if update_id_of(update) is None:
        raise InvalidArgument("an update of Telegram has no number")
    for name in (*MESSAGES, *EDITS):
        if name in update:
            if (moved := _moved(_object(update, name), me)) is not None:
                return moved
            event = read_message(_object(update, name), me)
            return None if event is None else Posted(event=event, edited=name in EDITS)
    return _press(_object(update, "callback_query"), me) if "callback_query" in update else None


def _moved(message: dict[str, Json], me: Me) -> Moved | None:
    """Return that a group moved, which Telegram tells in the old one and in the new."""
    chat, to = message.get("chat"), _id(message.get("migrate_to_chat_id"))
    here = _id(chat.get("id")) if isinstance(chat, dict) else None
    old, new = (_id(message.get("migrate_from_chat_id")), here) if to is None else (here, to)
    if old is None or new is None:
        return None
    account = str(me.bot_id)
    source = SessionSource(platform=Platform.TELEGRAM, chat_id=old, chat_type="group", account=account)
    return Moved(source=source, chat_id=new)


def read_message(message: dict[str, Json], me: Me) -> MessageEvent | None:
    """Return a message as an event; None when there is nothing in it that somebody said to us.

    Raises:
        InvalidArgument: it is no message.
    """
    source = _source(message, message.get("from"), me)
    if source.user_id == str(me.bot_id):
        return None
    said = _content(message)
    if said is None:
        return None
    kind, text, media = said
    entities = message.get("entities") or message.get("caption_entities") or []
    text, mentioned = without_mentions(text, entities if isinstance(entities, list) else [], me)
    command = _COMMAND.match(text)
    ours = bool(command) and _is_me(command[2], me) if command else False
    if command and not ours and source.chat_type != "dm":
        return None  # another bot's command
    if command and ours:
        text = f"/{command[1]}{text[command.end() :]}"
    reply = _reply(message)
    event = MessageEvent(
        text=text,
        message_type=kind,
        source=source,
        message_id=str(_needed(message, "message_id")),
        media=media,
        reply_to_message_id=None if reply is None else _id(reply.get("message_id")),
        reply_to_text=_replied_text(message, reply),
        timestamp=_instant(message),
        metadata=_metadata(message),
    )
    event.addressed = source.chat_type == "dm" or mentioned or event.is_command() or _is_ours(reply, me)
    if kind is MessageType.TEXT and event.is_command():
        event.message_type = MessageType.COMMAND
    return event


def without_mentions(text: str, entities: Iterable[Json], me: Me) -> tuple[str, bool]:
    """Return the text without mentions of us, and whether there were any. Offsets count in UTF-16."""
    units = text.encode("utf-16-le", "surrogatepass")
    spans = sorted(_own_spans(units, entities, me))
    if not spans:
        return text, False
    kept, at = "", 0
    for start, end in [*spans, (len(units), len(units))]:
        if start < at:
            continue
        piece = units[at:start].decode("utf-16-le", "replace")
        kept += piece.lstrip(" ") if at and (not kept or kept[-1].isspace()) else piece
        at = end
    return kept.strip(), True


def _own_spans(units: bytes, entities: Iterable[Json], me: Me) -> Iterable[tuple[int, int]]:
    for entity in entities:
        if not isinstance(entity, dict):
            continue
        offset, length = _number(entity.get("offset")), _number(entity.get("length"))
        if (
            offset is None
            or length is None
            or offset < 0
            or length <= 0
            or 2 * (offset + length) > len(units)
        ):
            continue
        start, end = 2 * offset, 2 * (offset + length)
        word = units[start:end].decode("utf-16-le", "replace")
        user = entity.get("user")
        named = entity.get("type") == "mention" and word.startswith("@") and _is_me(word[1:], me)
        meant = (
            entity.get("type") == "text_mention" and isinstance(user, dict) and user.get("id") == me.bot_id
        )
        if named or meant:
            yield start, end


def _press(query: dict[str, Json], me: Me) -> ButtonPress | None:
    """Return a pressed button; None when it is on no message of ours, or carries nothing."""
    value, message = query.get("data"), query.get("message")
    if not isinstance(value, str) or not isinstance(message, dict):
        return None
    press_id = query.get("id")
    if not isinstance(press_id, str) or not press_id:
        raise InvalidArgument("a pressed button has no id")
    sender = _object(query, "from")
    plain = {name: part for name, part in message.items() if name != "sender_chat"}
    return ButtonPress(
        source=_source(plain, sender, me),
        value=mended(value),
        message_id=str(_needed(message, "message_id")),
        press_id=mended(press_id),
    )


def _source(message: dict[str, Json], sender: Json, me: Me) -> SessionSource:
    chat = _object(message, "chat")
    chat_type = _chat_type(chat)
    if chat_type is None:
        raise InvalidArgument("a message of Telegram stands in no known kind of chat")
    speaker = message.get("sender_chat")
    who = speaker if isinstance(speaker, dict) else sender if isinstance(sender, dict) else {}
    in_topic = message.get("is_topic_message") is True
    topic = _reply_of(message).get("forum_topic_created")
    return SessionSource(
        platform=Platform.TELEGRAM,
        chat_id=str(_needed(chat, "id")),
        chat_name=_name(chat),
        chat_type=chat_type,
        user_id=_id(who.get("id")),
        user_name=_name(who),
        thread_id=_id(message.get("message_thread_id")) if in_topic else None,
        chat_topic=_words(topic, "name") if in_topic and isinstance(topic, dict) else None,
        account=str(me.bot_id),
        is_bot=who.get("is_bot") is True,
    )


def _content(message: dict[str, Json]) -> tuple[MessageType, str, tuple[Attachment, ...]] | None:
    """Return what was said; None for what is only told of, such as somebody who joined."""
    if (text := _words(message, "text")) is not None:
        return MessageType.TEXT, text, ()
    caption = _words(message, "caption") or ""
    if "photo" in message:
        return MessageType.PHOTO, caption, (_photo(message["photo"]),)
    for name, kind, mime in _FILES:
        if name in message:
            return kind, caption, (_attachment(kind, _object(message, name), mime),)
    if "sticker" in message:
        return _sticker(_object(message, "sticker"))
    if "venue" in message or "location" in message:
        return MessageType.LOCATION, _place(message), ()
    named = next((name for name in _NAMED_ONLY if name in message), None)
    return None if named is None else (MessageType.TEXT, caption or f"[{named.replace('_', ' ')}]", ())


def _attachment(kind: MessageType, file: dict[str, Json], mime: str | None = None) -> Attachment:
    ref = _words(file, "file_id")
    if not ref:
        raise InvalidArgument("a file of Telegram has no id")
    size = _number(file.get("file_size"))
    return Attachment(
        kind=kind, ref=ref, mime=_words(file, "mime_type") or mime, name=_words(file, "file_name"), size=size
    )


def _photo(sizes: Json) -> Attachment:
    found = [one for one in sizes if isinstance(one, dict)] if isinstance(sizes, list) else []
    if not found:
        raise InvalidArgument("a photo of Telegram has no sizes")
    largest = max(found, key=lambda one: (_number(one.get("width")) or 0) * (_number(one.get("height")) or 0))
    return _attachment(MessageType.PHOTO, largest, "image/jpeg")


def _sticker(sticker: dict[str, Json]) -> tuple[MessageType, str, tuple[Attachment, ...]]:
    mime = "image/webp"
    if sticker.get("is_animated") is True:
        mime = "application/x-tgsticker"
    elif sticker.get("is_video") is True:
        mime = "video/webm"
    return (
        MessageType.STICKER,
        _words(sticker, "emoji") or "",
        (_attachment(MessageType.STICKER, sticker, mime),),
    )


def _place(message: dict[str, Json]) -> str:
    venue = message.get("venue")
    named = [_words(venue, name) for name in ("title", "address")] if isinstance(venue, dict) else []
    location = _object(message if venue is None else _object(message, "venue"), "location")
    degrees = [location.get("latitude"), location.get("longitude")]
    if not all(isinstance(one, int | float) and -180 <= one <= 180 for one in degrees):
        raise InvalidArgument("a location of Telegram has no coordinates")
    at = f"{degrees[0]:.6f}, {degrees[1]:.6f}"
    words = ", ".join(part for part in named if part)
    return f"Location: {words} ({at})" if words else f"Location: {at}"


def _reply_of(message: dict[str, Json]) -> dict[str, Json]:
    reply = message.get("reply_to_message")
    return reply if isinstance(reply, dict) else {}


def _reply(message: dict[str, Json]) -> dict[str, Json] | None:
    """Return the message that is answered; the one that opened a topic stands before each of its messages."""
    reply = _reply_of(message)
    return None if not reply or "forum_topic_created" in reply else reply


def _replied_text(message: dict[str, Json], reply: dict[str, Json] | None) -> str | None:
    quote = message.get("quote")
    quoted = _words(quote, "text") if isinstance(quote, dict) else None
    if quoted or reply is None:
        return quoted
    return _words(reply, "text") or _words(reply, "caption")


def _is_ours(reply: dict[str, Json] | None, me: Me) -> bool:
    sender = None if reply is None else reply.get("from")
    return isinstance(sender, dict) and sender.get("id") == me.bot_id


def _metadata(message: dict[str, Json]) -> dict[str, Json]:
    album = _words(message, "media_group_id")
    return {} if album is None else {"media_group_id": album}


def _instant(message: dict[str, Json]) -> int | None:
    seconds = _number(message.get("date"))
    return seconds * 1_000 if seconds is not None and 0 < seconds <= _LATEST else None


def _name(who: dict[str, Json]) -> str | None:
    """Return the name of a person or a chat, for show."""
    title = _words(who, "title")
    parts = [part for part in (_words(who, "first_name"), _words(who, "last_name")) if part]
    return title or " ".join(parts) or _words(who, "username")


def _chat_type(chat: dict[str, Json]) -> str | None:
    kind = chat.get("type")
    return CHAT_TYPES.get(kind) if isinstance(kind, str) else None


def _is_me(name: str, me: Me) -> bool:
    return name.lower() == me.username.lower()


def _object(parent: dict[str, Json], name: str) -> dict[str, Json]:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise InvalidArgument(f"an update of Telegram has no {name} that can be read")
    return value


def _needed(parent: dict[str, Json], name: str) -> int:
    value = _number(parent.get(name))
    if value is None:
        raise InvalidArgument(f"an update of Telegram has no {name} that is a number")
    return value


def _number(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _id(value: Json) -> str | None:
    number = _number(value)
    return None if number is None else str(number)


def _words(parent: dict[str, Json], name: str) -> str | None:
    value = parent.get(name)
    return mended(value) if isinstance(value, str) else None
