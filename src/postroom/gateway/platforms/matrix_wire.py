"""Matrix's events as our values, without I/O. Events that violate the protocol are `Malformed`."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import unescape
from typing import Any
from urllib.parse import quote, unquote, urlencode

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.messages import Json
from postroom.gateway.events import Attachment, MessageEvent, MessageType, SendErrorKind, SendResult
from postroom.gateway.platforms.safe_text import clean, is_marked_up, one_line, poll_in_words
from postroom.gateway.session import Platform, SessionSource

LARGEST_EVENT = 60_000
"""Bytes of an event's content; a homeserver refuses events over 65,536 with all that it adds."""
SENT_AS = {
    MessageType.PHOTO: "m.image",
    MessageType.STICKER: "m.image",
    MessageType.VIDEO: "m.video",
    MessageType.AUDIO: "m.audio",
    MessageType.VOICE: "m.audio",
}


def content_of(
    text: str, html: str, *, thread_id: str | None = None, reply_to: str | None = None
) -> list[dict[str, Json]]:
    """Return the contents to try, the best first: with useful markup if it fits, then without.

    It mentions nobody, whatever the text says: an answer must not notify a whole room.
    """
    plain: dict[str, Json] = {"msgtype": "m.text", "body": text, "m.mentions": {}}
    if relation := _relation(thread_id, reply_to):
        plain["m.relates_to"] = relation
    marked: dict[str, Json] = {**plain, "format": "org.matrix.custom.html", "formatted_body": html}
    return [marked, plain] if is_marked_up(html, text) and _fits(marked) else [plain]


def edit_of(message_id: str, text: str, html: str) -> list[dict[str, Json]]:
    """Return the contents to try that give a message other words."""
    found = []
    for new in content_of(text, html):
        edit: dict[str, Json] = {
            **new,
            "body": f"* {text[:200]}",  # shown only by clients that know no edits
            "m.new_content": new,
            "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
        }
        edit.pop("format", None), edit.pop("formatted_body", None)
        found.append(edit)
    return [one for one in found[:-1] if _fits(one)] + found[-1:]


def media_of(
    url: str, attachment: Attachment, size: int, caption: str | None, thread_id: str | None
) -> dict[str, Json]:
    """Return the content of a file that was uploaded."""
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
    """Return the transaction id of something that is sent: the same for the same key."""
    return f"{kind}-{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:40]}"


def reaction_to(event_id: str) -> dict[str, Json]:
    """Return the content of the event that marks a message as seen."""
    return {"m.relates_to": {"rel_type": "m.annotation", "event_id": event_id, "key": "👀"}}


def refusal(status: int, errcode: str, retry_after_ms: int | None) -> SendResult:
    """Return the meaning of an answer other than 200 to a sent event."""
    said = f"the homeserver answered {status} {errcode}".strip()
    if status == 429 or errcode == "M_LIMIT_EXCEEDED":
        return SendResult.failed(SendErrorKind.RATE_LIMITED, said, retry_after_ms=retry_after_ms or 5_000)
    if status == 413 or errcode == "M_TOO_LARGE":
        return SendResult.failed(SendErrorKind.TOO_LONG, said)
    if status in (408, 504):
        return SendResult.failed(SendErrorKind.UNKNOWN, said)
    if status >= 500:
        return SendResult.failed(SendErrorKind.TRANSIENT, said, retry_after_ms=retry_after_ms)
    kinds = {401: SendErrorKind.FORBIDDEN, 403: SendErrorKind.FORBIDDEN, 404: SendErrorKind.NOT_FOUND}
    return SendResult.failed(kinds.get(status, SendErrorKind.BAD_FORMAT), said)


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
    """Return about how many bytes a value is as JSON, never less."""
    if isinstance(value, str):
        return 2 + len(value.encode("utf-8", "replace")) + sum(value.count(one) for one in '"\\\n\t')
    if isinstance(value, Mapping):
        return 2 + sum(_weight(str(name)) + _weight(one) + 2 for name, one in value.items())
    return 32


REMEMBERED_NAMES = 2_000
"""Members of one room whose names are kept for show."""
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
"""The filter of requests: only data that is used here."""
_MEDIA = re.compile(r"mxc://([\w.\-:\[\]]{1,255})/([\w\-.~]{1,255})", re.ASCII)
_PILL = re.compile(r'<a href="https://matrix\.to/#/([^"]{1,300})"[^>]{0,200}>([^<]{0,255})</a>')
_QUOTED_SENDER = re.compile(r"> (?:\* )?<(@[^>]{1,255})>")
_COMMAND = re.compile(r"[a-zA-Z][\w-]*(?:\s|$)")


POLLS = ("m.poll.start", "org.matrix.msc3381.poll.start")
_LINK = re.compile(r"<a\s[^<>]*?href=\"(https?://[^\"<>\s]{1,2000})\"[^<>]*>(.{0,500}?)</a>", re.DOTALL)
_TAGS = re.compile(r"<[^<>]{0,200}>")
_POSITION = re.compile(r"geo:(-?\d{1,3}(?:\.\d{1,20})?),(-?\d{1,3}(?:\.\d{1,20})?)(?![\d.])", re.ASCII)


class Malformed(InvalidArgument):
    """Something that a server sent is not as the protocol says."""


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
    """Whether the server reports members by itself; then it reports every change."""
    names: dict[str, str] = field(default_factory=dict)

    @property
    def is_direct(self) -> bool:
        """Whether nobody is here but us and one other."""
        return self.joined is not None and self.joined + self.invited <= 2

    def learn(self, event: object) -> None:
        """Process a state event; other or unreadable events are ignored."""
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
                self._learn_member(event.get("state_key"), content)

    def count(self, summary: object) -> None:
        """Take how many members the server says that there are."""
        told = summary if isinstance(summary, dict) else {}
        joined, invited = told.get("m.joined_member_count"), told.get("m.invited_member_count")
        if isinstance(joined, int):
            self.joined, self.counted = joined, True
        if isinstance(invited, int):
            self.invited = invited

    def _learn_member(self, user_id: object, content: Mapping[str, Any]) -> None:
        if not self.counted:
            self.joined = None
        if isinstance(user_id, str) and (name := _name(content.get("displayname"))):
            self.names.pop(user_id, None)
            self.names[user_id] = name
            if len(self.names) > REMEMBERED_NAMES:
                del self.names[next(iter(self.names))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ourselves:
    """The bot's identity on this homeserver, and the prefix of commands besides a slash."""

    user_id: str
    name: str | None = None
    command_prefix: str = "!"

    @property
    def called(self) -> tuple[str, ...]:
        """The names with which people address us, the longest first."""
        local = self.user_id[1:].partition(":")[0]
        return tuple(one for one in (self.user_id, f"@{local}", self.name, local) if one)


class Kind(StrEnum):
    """The meaning of an event for us."""

    MESSAGE = "message"
    EDIT = "edit"
    TAKEN_BACK = "taken_back"
    ENCRYPTED = "encrypted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A relevant event; edits and withdrawals have the `message_id` of the old message."""

    kind: Kind
    event: MessageEvent


def understood(event: object, room: Room, me: Ourselves) -> Heard | None:
    """Return the meaning of an event in a room's timeline; None if it is irrelevant.

    Raises:
        Malformed: The event violates the protocol.
    """
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise Malformed("an event without a type")
    content = event.get("content")
    if not isinstance(content, dict):
        raise Malformed("an event without content")
    sender, event_id = _identifier(event.get("sender"), "@"), _identifier(event.get("event_id"), "$")
    if sender == me.user_id:
        return None
    if event["type"] == "m.room.redaction":
        target = _identifier(content.get("redacts") or event.get("redacts"), "$")
        return Heard(kind=Kind.TAKEN_BACK, event=_bare(event, room, me, sender, target))
    if event["type"] == "m.room.encrypted":
        return Heard(kind=Kind.ENCRYPTED, event=_bare(event, room, me, sender, event_id))
    if event["type"] in POLLS:
        message = _bare(event, room, me, sender, event_id)
        _relate(message, _mapping(content.get("m.relates_to")))
        message.text = _poll(_mapping(content.get(event["type"]) or content.get("m.poll")))
        return Heard(kind=Kind.MESSAGE, event=message)
    if event["type"] not in ("m.room.message", "m.sticker") or not content:
        return None  # without content: it was deleted before we saw it
    relation = _mapping(content.get("m.relates_to"))
    if relation.get("rel_type") == "m.replace":
        return _edit(event, room, me, sender, _mapping(content.get("m.new_content")))
    if content.get("msgtype") == "m.notice":
        return None  # the protocol's word for what machines say: nobody answers it
    message = _bare(event, room, me, sender, event_id)
    _relate(message, relation)
    _fill(message, content, me, is_sticker=event["type"] == "m.sticker")
    return Heard(kind=Kind.MESSAGE, event=message)


def after_our_invitation(events: Sequence[object], me: Ourselves) -> Sequence[object]:
    """Return a timeline without the messages from before we belonged to the room.

    If the timeline contains our joining, it begins with our invitation; without one, with our joining.
    Messages between the two were meant for us: clients invite and write at once.
    """
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


def rooms_of(batch: Mapping[str, Any], which: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the rooms of a batch by our membership: join, leave or invite."""
    rooms = batch.get("rooms")
    found = rooms.get(which) if isinstance(rooms, dict) else None
    return [one for one in found.items() if isinstance(one[1], dict)] if isinstance(found, dict) else []


def events_of(info: Mapping[str, Any], which: str) -> list[object]:
    """Return the events of one part of a room's data in a batch."""
    part = info.get(which)
    found = part.get("events") if isinstance(part, dict) else None
    return found if isinstance(found, list) else []


def inviter(events: Iterable[object], me: Ourselves) -> str | None:
    """Return who invited us, by a room's stripped state; None when that does not say."""
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
    """Return whether each of these events claims to be older than an instant."""
    ages = [_mapping(event).get("origin_server_ts") for event in events]
    return all(isinstance(at, int) and at < floor for at in ages)


def quoted(event: object) -> tuple[str, str, tuple[Attachment, ...]] | None:
    """Return the sender, the words and the files of an answered event; None if it is not a message."""
    if not isinstance(event, dict) or event.get("type") not in ("m.room.message", "m.sticker", *POLLS):
        return None
    sender, content = event.get("sender"), _mapping(event.get("content"))
    if not isinstance(sender, str):
        return None
    body, kind = content.get("body"), _kind(content)
    words = clean(body) if isinstance(body, str) else _poll(_mapping(content.get(str(event["type"]))))
    words = _with_position(content, words) if kind is MessageType.LOCATION else words
    is_file = event["type"] == "m.sticker" or kind not in (MessageType.TEXT, MessageType.LOCATION)
    try:
        return sender, words, _attachments(content, kind) if is_file else ()
    except Malformed:
        return sender, words, ()


def path_of(*parts: str, query: Mapping[str, str] | None = None, base: str = "/_matrix/client/v3") -> str:
    """Return a path of the client-server API; no part can leave its place."""
    path = "/".join((base, *(quote(part, safe="") for part in parts)))
    return f"{path}?{urlencode(query)}" if query else path


def media_path(ref: str) -> str | None:
    """Return the path of a file on our own homeserver; None if the reference is not one of Matrix."""
    found = _MEDIA.fullmatch(ref)
    if found is None or set(found[2]) <= {"."} or set(found[1]) <= {"."}:
        return None
    return path_of("media", "download", found[1], found[2], base="/_matrix/client/v1")


# The parts of an event.


def _bare(event: Mapping[str, Any], room: Room, me: Ourselves, sender: str, message_id: str) -> MessageEvent:
    at = event.get("origin_server_ts")
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
    known = isinstance(at, int) and not isinstance(at, bool) and 0 <= at < 2**53
    return MessageEvent(
        source=source, message_id=message_id, timestamp=at if known else None, addressed=room.is_direct
    )


def _edit(event: Mapping[str, Any], room: Room, me: Ourselves, sender: str, new: Mapping[str, Any]) -> Heard:
    relation = _mapping(event["content"]["m.relates_to"])
    message = _bare(event, room, me, sender, _identifier(relation.get("event_id"), "$"))
    if not new:
        raise Malformed("an edit without new content")
    _fill(message, new, me, is_sticker=False)
    return Heard(kind=Kind.EDIT, event=message)


def _relate(message: MessageEvent, relation: Mapping[str, Any]) -> None:
    """Set the thread of a message, and the message that it answers, from its relation."""
    in_thread = relation.get("rel_type") == "m.thread"
    if in_thread and message.source is not None:
        place = message.source.to_dict()
        message.source = SessionSource.from_dict(
            {**place, "thread_id": _identifier(relation.get("event_id"), "$")}
        )
    answered = _mapping(relation.get("m.in_reply_to")).get("event_id")
    if isinstance(answered, str) and not (in_thread and relation.get("is_falling_back") is True):
        message.reply_to_message_id = _identifier(answered, "$")


def _fill(message: MessageEvent, content: Mapping[str, Any], me: Ourselves, *, is_sticker: bool) -> None:
    """Take the words and the file of a message."""
    body = content.get("body")
    if not isinstance(body, str):
        raise Malformed("a message without a body")
    text, quote_of_old = clean(body), ""
    if message.reply_to_message_id is not None:
        text, quote_of_old = _without_fallback(text)
    message.message_type = MessageType.STICKER if is_sticker else _kind(content)
    if message.message_type not in (MessageType.TEXT, MessageType.LOCATION):
        message.media = _attachments(content, message.message_type)
        name = content.get("filename")
        text = text if isinstance(name, str) and name != body else ""
        if not message.media:
            message.unread += ("an encrypted file",)
    elif message.message_type is MessageType.LOCATION:
        text = _with_position(content, text)
    else:
        text = _addresses(content, text)
    mentioned, names = _mentions(content, me, text)
    quoted_sender = _QUOTED_SENDER.match(quote_of_old)
    answers_us = quoted_sender is not None and quoted_sender[1] == me.user_id
    message.addressed = message.addressed or mentioned or answers_us
    message.reply_to_text = quote_of_old.partition(">")[2].partition("> ")[2] if quote_of_old else None
    message.text = _command(_without_names(text, names) if mentioned else text, me)
    if message.message_type is MessageType.TEXT and message.is_command():
        message.message_type = MessageType.COMMAND


def _kind(content: Mapping[str, Any]) -> MessageType:
    if "org.matrix.msc3245.voice" in content or "m.voice" in content:
        return MessageType.VOICE
    return KINDS.get(str(content.get("msgtype")), MessageType.TEXT)


def _poll(poll: Mapping[str, Any]) -> str:
    def words(part: object) -> str:
        told = _mapping(part)
        found = told.get("m.text", told.get("org.matrix.msc1767.text", told.get("body")))
        if isinstance(found, list):
            found = next((one.get("body") for one in found if isinstance(one, dict)), "")
        return clean(found) if isinstance(found, str) else ""

    answers = poll.get("answers")
    listed = answers if isinstance(answers, list) else []
    return poll_in_words(words(poll.get("question")), ((words(one), None) for one in listed))


def _with_position(content: Mapping[str, Any], text: str) -> str:
    """Return the words of a place with its latitude and longitude, which only `geo_uri` contains."""
    found = _POSITION.match(str(content.get("geo_uri")))
    return f"Location: {text} ({found[1]}, {found[2]})" if found else f"Location: {text}"


def _addresses(content: Mapping[str, Any], text: str) -> str:
    """Return a text with the addresses of its links, which clients put only into the marked-up form."""
    formatted = content.get("formatted_body")
    found = _LINK.findall(formatted) if isinstance(formatted, str) else []
    pairs = {(unescape(address), unescape(_TAGS.sub("", label)).strip()) for address, label in found}
    missing = [f"{label}: {address}" for address, label in sorted(pairs) if address not in text]
    missing = [one for one in missing if "matrix.to/#/" not in one]
    return "\n\n".join((text, *((clean("Links: " + ", ".join(missing)),) if missing else ())))


def _attachments(content: Mapping[str, Any], kind: MessageType) -> tuple[Attachment, ...]:
    info, url, size = _mapping(content.get("info")), content.get("url"), None
    if url is None and isinstance(content.get("file"), dict):
        return ()  # encrypted
    if not isinstance(url, str) or media_path(url) is None:
        raise Malformed("a file without a URI on the homeserver")
    if isinstance(told := info.get("size"), int) and 0 <= told < 2**53:
        size = told
    mime, name = info.get("mimetype"), content.get("filename") or content.get("body")
    return (
        Attachment(
            kind=kind,
            ref=url,
            mime=one_line(mime) if isinstance(mime, str) else None,
            name=one_line(name) if isinstance(name, str) else None,
            size=size,
        ),
    )


def _mentions(content: Mapping[str, Any], me: Ourselves, text: str) -> tuple[bool, tuple[str, ...]]:
    """Return whether a message mentions us, and by what words."""
    formatted = content.get("formatted_body")
    pills = _PILL.findall(formatted) if isinstance(formatted, str) else []
    names = tuple(clean(shown) for target, shown in pills if unquote(target) == me.user_id and shown)
    listed = _mapping(content.get("m.mentions")).get("user_ids")
    if isinstance(content.get("m.mentions"), dict):
        mentioned = isinstance(listed, list) and me.user_id in listed
    else:  # a client from before there were lists of mentions
        mentioned = bool(names) or me.user_id in text or _begins_with_name(text, me)
    return mentioned, (*names, *me.called)


def _begins_with_name(text: str, me: Ourselves) -> bool:
    return any(re.match(rf"{re.escape(name)}[:,]", text, re.IGNORECASE) for name in me.called)


def _without_names(text: str, names: Sequence[str]) -> str:
    """Return the text without the name that addresses the bot at its beginning, and without full names."""
    for name in sorted(set(names), key=len, reverse=True):
        found = re.match(rf"@?{re.escape(name)}(?:[:,]|(?=\W)|$)\s*", text, re.IGNORECASE)
        if found is not None:
            text = text[found.end() :]
            break
    full = [name for name in names if name.startswith("@") and ":" in name]
    for name in full:
        text = text.replace(name, "")
    return text.strip()


def _without_fallback(text: str) -> tuple[str, str]:
    """Return a text and the quotation that older clients put in front of an answer."""
    if not text.startswith("> "):
        return text, ""
    head, gap, rest = text.partition("\n\n")
    lines = head.split("\n")
    if not gap or not all(line.startswith(">") for line in lines) or _QUOTED_SENDER.match(head) is None:
        return text, ""
    return rest, "\n".join([lines[0], *(line.removeprefix(">").removeprefix(" ") for line in lines[1:])])


def _command(text: str, me: Ourselves) -> str:
    """Return a text with a slash if it begins with the alternative prefix of commands."""
    sign = me.command_prefix
    if sign and text.startswith(sign) and _COMMAND.match(text[len(sign) :]):
        return f"/{text[len(sign) :]}"
    return text


def _identifier(value: object, sigil: str) -> str:
    """Return a valid identifier of the protocol unchanged.

    Raises:
        Malformed: The value is not an identifier.
    """
    if (
        not isinstance(value, str)
        or not value.startswith(sigil)
        or len(value) > 255
        or not value.isprintable()
    ):
        raise Malformed(f"an identifier that should begin with {sigil}")
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _name(value: object) -> str | None:
    return (one_line(value) or None) if isinstance(value, str) else None
