"""Telegram's updates as events: pure translation, of what anybody may have written, into what we keep.

A chat's `private` is a direct message, `group` and `supergroup` a group, `channel` a channel; a topic is the
chat's thread. Who speaks for a chat (a channel, or its administrators without names) has that chat's id.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from postroom.contracts.errors import InvalidArgument, ServerUnavailable
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json
from postroom.gateway.events import (
    Attachment,
    ButtonPress,
    Card,
    Forwarded,
    MessageEvent,
    MessageType,
    SendErrorKind,
)
from postroom.gateway.platforms.base import Metadata
from postroom.gateway.platforms.safe_text import poll_in_words
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
    described = (
        mended(words)[:300]
        if isinstance(words, str)
        else f"Telegram answered {status} without an explanation"
    )
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


def failed_call(answer: Answer) -> ServerUnavailable:
    """Return why a call gave nothing: what Telegram answered, or that Telegram could not be reached."""
    if not answer.is_telegram:
        return unreachable(answer.error)
    return ServerUnavailable(f"Telegram rejected a call: {answer.error}", remedy="postroom retries")


def unreachable(why: str) -> ServerUnavailable:
    """Return that no answer of Telegram, or of its server of files, could be had."""
    return ServerUnavailable(
        f"Telegram gave no valid answer: {why}",
        remedy="check the network and base_url; the call can be repeated",
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
_ENVELOPE: Final = frozenset(
    """
    message_id message_thread_id direct_messages_topic from sender_chat sender_boost_count sender_tag
    sender_business_bot date business_connection_id chat is_topic_message is_automatic_forward
    reply_to_message external_reply quote reply_to_story reply_to_checklist_task_id via_bot edit_date
    has_protected_content is_from_offline is_paid_post media_group_id author_signature paid_star_count
    link_preview_options suggested_post_info effect_id show_caption_above_media has_media_spoiler
    forward_origin forward_from forward_from_chat forward_from_message_id forward_signature
    forward_sender_name forward_date reply_markup text entities caption caption_entities
    """.split()  # noqa: SIM905 - as a list they are a hundred lines
)
"""Fields of a message that hold no content of its own, and its words."""
_EVENTS: Final = frozenset(
    """
    new_chat_members new_chat_member new_chat_participant left_chat_member left_chat_participant
    new_chat_title new_chat_photo delete_chat_photo group_chat_created supergroup_chat_created
    channel_chat_created message_auto_delete_timer_changed migrate_to_chat_id migrate_from_chat_id
    pinned_message successful_payment refunded_payment connected_website write_access_allowed
    proximity_alert_triggered boost_added chat_background_set checklist_tasks_done checklist_tasks_added
    direct_message_price_changed forum_topic_created forum_topic_edited forum_topic_closed
    forum_topic_reopened general_forum_topic_hidden general_forum_topic_unhidden giveaway_created
    giveaway_completed paid_message_price_changed suggested_post_approved suggested_post_approval_failed
    suggested_post_declined suggested_post_paid suggested_post_refunded video_chat_scheduled
    video_chat_started video_chat_ended video_chat_participants_invited chat_owner_left
    chat_owner_changed
    """.split()  # noqa: SIM905 - as above
)
"""Fields that tell of an event in the chat: nobody said anything."""


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
            message = _object(update, name)
            if name in EDITS and "location" in message:
                return None  # a live location that has moved; nobody can edit another one
            event = read_message(message, me)
            return None if event is None else Posted(event=event, edited=name in EDITS)
    return _press(_object(update, "callback_query"), me) if "callback_query" in update else None


_TYPES: Final[dict[str, type]] = {
    **dict.fromkeys(("text", "caption", "media_group_id"), str),
    **dict.fromkeys(("entities", "caption_entities"), list),
    **dict.fromkeys(("from", "sender_chat", "reply_to_message", "external_reply", "quote"), dict),
    "forward_origin": dict,
    "date": int,
}
"""The types of the fields that say who speaks, when, and in which words."""


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
    for name, expected in _TYPES.items():
        if name in message and not isinstance(message[name], expected):
            raise InvalidArgument(f"the field {name} of a message of Telegram has another type")
    source = _source(message, message.get("from"), me)
    if source.user_id == str(me.bot_id):
        return None
    said = _content(message, me)
    if said is None:
        return None
    kind, text, media, mentioned = said.kind, said.text, said.media, said.mentioned
    forwarded = _forwarded(message, text)
    if forwarded:  # the words are somebody else's, and neither a command nor a mention of ours
        text, mentioned = "", False
    command = _COMMAND.match(text)
    ours = bool(command) and _is_me(command[2], me) if command else False
    if command and not ours and source.chat_type != "dm":
        return None  # another bot's command
    if command and ours:
        text = f"/{command[1]}{text[command.end() :]}"
    reply = _reply(message)
    answered = _answered(message, reply, me)
    answered_files = Attachment.foreign(file for file in answered.media if file not in media)
    if forwarded:
        media = Attachment.foreign(media)
    event = MessageEvent(
        text=text,
        message_type=kind,
        source=source,
        message_id=str(_needed(message, "message_id")),
        media=media + answered_files,
        reply_to_message_id=None if reply is None else _id(reply.get("message_id")),
        reply_to_text=answered.text or None,
        reply_to_author=None if reply is None else _author(reply),
        forwarded=forwarded,
        unread=said.unread + answered.unread,
        timestamp=_instant(message),
        metadata=_album(message, len(answered_files)),
    )
    event.addressed = source.chat_type == "dm" or mentioned or event.is_command() or _is_ours(reply, me)
    if kind is MessageType.TEXT and event.is_command():
        event.message_type = MessageType.COMMAND
    return event


def spelt_out(text: str, entities: Json, me: Me) -> tuple[str, bool]:
    """Return a text without mentions of us and with the addresses behind its words; and whether we are named.

    Offsets count in UTF-16.
    """
    units = text.encode("utf-16-le", "surrogatepass")
    edits = sorted(_edits(units, entities if isinstance(entities, list) else [], me))
    if not edits:
        return text, False
    kept, at = "", 0
    for start, end, address in [*edits, (len(units), len(units), "")]:
        if start < at:
            continue
        piece = units[at:start].decode("utf-16-le", "replace")
        kept += piece.lstrip(" ") if at and (not kept or kept[-1].isspace()) else piece
        kept += address
        at = end
    return kept.strip(), any(start < end for start, end, _ in edits)


def _edits(units: bytes, entities: Iterable[Json], me: Me) -> Iterable[tuple[int, int, str]]:
    """Yield the spans that are left out, and where an address is put in."""
    for entity in entities:
        if not isinstance(entity, dict):
            continue
        offset, length = _number(entity.get("offset")), _number(entity.get("length"))
        if offset is None or length is None or offset < 0 or length <= 0:
            continue
        start, end = 2 * offset, 2 * (offset + length)
        if end > len(units):
            continue
        word = units[start:end].decode("utf-16-le", "replace")
        kind, user, address = entity.get("type"), entity.get("user"), _words(entity, "url")
        named = kind == "mention" and word.startswith("@") and _is_me(word[1:], me)
        meant = kind == "text_mention" and isinstance(user, dict) and user.get("id") == me.bot_id
        if named or meant:
            yield start, end, ""
        elif kind == "text_link" and address and address != word:
            yield end, end, f" ({address})"


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
        raise InvalidArgument("a Telegram message belongs to an unknown kind of chat")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What stands in a message."""

    kind: MessageType = MessageType.TEXT
    text: str = ""
    media: tuple[Attachment, ...] = ()
    mentioned: bool = False
    unread: tuple[str, ...] = ()


def _content(message: dict[str, Json], me: Me) -> _Said | None:
    """Return what was said; None for an event of the chat, such as somebody who joined.

    A part of an unknown kind, or of a known kind in an unknown form, is named and not read.
    """
    parts: list[_Said] = []
    unread: list[str] = []
    for name in (*_CONTENT, *(one for one in message if one not in _CONTENT)):
        if name not in message or name in _ENVELOPE | _EVENTS or _REPEATED.get(name) in message:
            continue
        try:
            parts.append(_CONTENT[name](_object(message, name) if name != "photo" else message[name]))
        except (KeyError, InvalidArgument):
            unread.append(f"a {name.replace('_', ' ')}")
    name = "entities" if "text" in message else "caption_entities"
    words = _words(message, "text" if "text" in message else "caption") or ""
    text, mentioned = spelt_out(words, message.get(name), me)
    if "text" not in message and not (parts or unread or text):
        return None
    return _Said(
        kind=next((one.kind for one in parts if one.kind is not MessageType.TEXT), MessageType.TEXT),
        text="\n\n".join(one for one in (text, *(part.text for part in parts)) if one),
        media=tuple(file for part in parts for file in part.media),
        mentioned=mentioned,
        unread=tuple(unread),
    )


def _contact(contact: dict[str, Json]) -> str:
    parts = (_name(contact), _words(contact, "phone_number"), _words(contact, "vcard"))
    return "Contact: " + ", ".join(part for part in parts if part)


def _poll(poll: dict[str, Json]) -> str:
    options = poll.get("options")
    listed = [one for one in options if isinstance(one, dict)] if isinstance(options, list) else []
    answers = ((_words(one, "text"), _number(one.get("voter_count")) or 0) for one in listed)
    kind = "Quiz" if poll.get("type") == "quiz" else "Poll"
    kind = f"Closed {kind.lower()}" if poll.get("is_closed") is True else kind
    return poll_in_words(_words(poll, "question"), answers, kind=kind)


def _dice(dice: dict[str, Json]) -> str:
    return f"Dice {_words(dice, 'emoji') or ''}: {_number(dice.get('value')) or 0}"


def _titled(kind: str) -> Callable[[dict[str, Json]], str]:
    def read(part: dict[str, Json]) -> str:
        words = (_words(part, "title"), _words(part, "description"), _words(part, "text"))
        return f"{kind}: " + ", ".join(word for word in words if word)

    return read


def _web_app_data(part: dict[str, Json]) -> str:
    return f"Data of a web app: {_words(part, 'data') or ''}"


def _checklist(checklist: dict[str, Json]) -> str:
    tasks = checklist.get("tasks")
    listed = [one for one in tasks if isinstance(one, dict)] if isinstance(tasks, list) else []
    lines = [
        f"- [{'x' if one.get('completion_date') else ' '}] {_words(one, 'text') or ''}" for one in listed
    ]
    return "\n".join((f"Checklist: {_words(checklist, 'title') or ''}", *lines))


def _file(kind: MessageType, mime: str | None = None) -> "Callable[[dict[str, Json]], _Said]":
    return lambda file: _Said(kind=kind, media=(_attachment(kind, file, mime),))


def _said(read: Callable[[dict[str, Json]], str]) -> "Callable[[dict[str, Json]], _Said]":
    return lambda part: _Said(text=read(part))


def _venue(venue: dict[str, Json]) -> _Said:
    return _place(_object(venue, "location"), _words(venue, "title"), _words(venue, "address"))


def _sticker(sticker: dict[str, Json]) -> _Said:
    mime = "image/webp"
    if sticker.get("is_animated") is True:
        mime = "application/x-tgsticker"
    elif sticker.get("is_video") is True:
        mime = "video/webm"
    media = (_attachment(MessageType.STICKER, sticker, mime),)
    return _Said(kind=MessageType.STICKER, text=_words(sticker, "emoji") or "", media=media)


def _place(location: dict[str, Json], *named: str | None) -> _Said:
    degrees = [location.get("latitude"), location.get("longitude")]
    if not all(isinstance(one, int | float) and -180 <= one <= 180 for one in degrees):
        raise InvalidArgument("a location of Telegram has no coordinates")
    at = f"{degrees[0]:.6f}, {degrees[1]:.6f}"
    words = ", ".join(part for part in named if part)
    kind = "Location when its live sharing began" if "live_period" in location else "Location"
    return _Said(kind=MessageType.LOCATION, text=f"{kind}: {words} ({at})" if words else f"{kind}: {at}")


_CONTENT: Final[dict[str, Callable[[Any], _Said]]] = {
    "photo": lambda sizes: _Said(kind=MessageType.PHOTO, media=(_photo(sizes),)),
    "animation": _file(MessageType.VIDEO, "video/mp4"),
    "document": _file(MessageType.DOCUMENT),
    "video": _file(MessageType.VIDEO),
    "video_note": _file(MessageType.VIDEO, "video/mp4"),
    "voice": _file(MessageType.VOICE, "audio/ogg"),
    "audio": _file(MessageType.AUDIO),
    "sticker": _sticker,
    "venue": _venue,
    "location": _place,
    "contact": _said(_contact),
    "poll": _said(_poll),
    "dice": _said(_dice),
    "checklist": _said(_checklist),
    "game": _said(_titled("Game")),
    "invoice": _said(_titled("Invoice")),
    "web_app_data": _said(_web_app_data),
}
"""How each kind of content is read, by the field of a message that holds the content."""
_REPEATED: Final = {"document": "animation", "location": "venue"}
"""Fields that repeat the content of another field."""


def _forwarded(message: dict[str, Json], text: str) -> tuple[Forwarded, ...]:
    """Return the words of a forwarded message, which its sender did not write; () for any other message."""
    return (Forwarded(text=text, author=_author(message)),) if _is_forward(message) else ()


def _is_forward(message: dict[str, Json]) -> bool:
    return any(name in message for name in ("forward_origin", "forward_date", "forward_sender_name"))


def _author(message: dict[str, Json]) -> str | None:
    """Return the author of a message's words, for show: of a forward, never the person who forwarded it."""
    of_forward = _is_forward(message)
    told = message.get("forward_origin") if of_forward else message.get("origin")
    origin = told if isinstance(told, dict) else {}
    people = [origin.get(name) for name in ("sender_user", "sender_chat", "chat")]
    names = ("forward_from", "forward_from_chat") if of_forward else ("sender_chat", "from", "chat")
    people += [message.get(name) for name in names]
    who = next((_name(one) for one in people if isinstance(one, dict) and _name(one)), None)
    hidden = _words(origin, "sender_user_name") or _words(message, "forward_sender_name")
    return who or (hidden if of_forward or origin else None)


def _answered(message: dict[str, Json], reply: dict[str, Json] | None, me: Me) -> _Said:
    """Return the words and the files of the message that is answered."""
    quote = message.get("quote")
    quoted = (
        spelt_out(_words(quote, "text") or "", quote.get("entities"), me)[0]
        if isinstance(quote, dict)
        else ""
    )
    if reply is None:
        return _Said(text=quoted, unread=("a story",) if "reply_to_story" in message else ())
    said = _content({name: part for name, part in reply.items() if name not in _OF_REPLY}, me) or _Said()
    files = () if _is_ours(reply, me) else said.media
    unread = tuple(f"{part} of the message that this answers" for part in said.unread)
    return _Said(text=quoted or said.text or ("(a file)" if files else ""), media=files, unread=unread)


_OF_REPLY: Final = ("origin", "giveaway", "giveaway_winners")


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


def _reply_of(message: dict[str, Json]) -> dict[str, Json]:
    reply = message.get("reply_to_message") or message.get("external_reply")
    return reply if isinstance(reply, dict) else {}


def _reply(message: dict[str, Json]) -> dict[str, Json] | None:
    """Return the message that is answered; the one that opened a topic stands before each of its messages."""
    reply = _reply_of(message)
    return None if not reply or "forum_topic_created" in reply else reply


def _is_ours(reply: dict[str, Json] | None, me: Me) -> bool:
    sender = None if reply is None else reply.get("from")
    return isinstance(sender, dict) and sender.get("id") == me.bot_id


def _album(message: dict[str, Json], answered_files: int) -> dict[str, Json]:
    """Return the album of a message, and how many of its last files are of the message that it answers."""
    album = _words(message, "media_group_id")
    told: dict[str, Json] = {"answered_files": answered_files} if answered_files else {}
    return {} if album is None else {"media_group_id": album, **told}


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
        raise InvalidArgument(f"an update of Telegram has no readable {name}")
    return value


def _needed(parent: dict[str, Json], name: str) -> int:
    value = _number(parent.get(name))
    if value is None:
        raise InvalidArgument(f"an update of Telegram has no numeric {name}")
    return value


def _number(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _id(value: Json) -> str | None:
    number = _number(value)
    return None if number is None else str(number)


def _words(parent: dict[str, Json], name: str) -> str | None:
    value = parent.get(name)
    return mended(value) if isinstance(value, str) else None
