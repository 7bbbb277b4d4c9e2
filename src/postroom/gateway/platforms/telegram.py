"""The Telegram channel: one bot, which receives updates by long polling or by a webhook.

    poll      getUpdates(offset) ──▶ each update in turn: stored ──▶ offset advances ──▶ getUpdates(offset)
    webhook   POST, secret in a header ──▶ stored ──▶ 200

`TelegramOptions` is the table [platforms.telegram]. For a webhook, `api_key` is the secret that Telegram
sends with each update.

Telegram has no idempotency key for sending, and does not report deleted messages to bots. A command without
the name of a bot is addressed to this bot, even in groups. A command with the name of another bot is ignored.
"""

import asyncio
import hmac
import importlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, TypeVar

import msgspec
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from msgspec import Meta, Struct, field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

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
from postroom.gateway.capabilities import ChannelCapabilities, LengthUnit, Rate, RateLimits
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import (
    ALL_MEDIA,
    Attachment,
    ButtonPress,
    Card,
    Forwarded,
    MessageEvent,
    MessageType,
    SendErrorKind,
    SendResult,
)
from postroom.gateway.platforms.base import TOO_OFTEN, AdapterState, BasePlatformAdapter, Metadata
from postroom.gateway.platforms.http_adapter import bounded_body
from postroom.gateway.platforms.options import Proxy, refuse_address, secret_remedy
from postroom.gateway.platforms.safe_text import poll_in_words, replace_unstorable, storable_json
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger

if TYPE_CHECKING:
    from postroom.gateway.platforms.telegram_api import File as SentFile
    from postroom.gateway.platforms.telegram_api import TelegramApi

_LOG = get_logger(__name__)


# Markdown in Telegram's dialect, which the Bot API calls MarkdownV2. Every character that could be markup is
# escaped, so that plain text stays plain text. Unsupported elements are replaced: headings become bold, lists
# get bullets, and tables become blocks of code.


_DEEPEST: Final = 60
_RESERVED: Final = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_IN_CODE: Final = re.compile(r"([`\\])")
_IN_ADDRESS: Final = re.compile(r"([)\\])")
_SHOWN_AS_LINK: Final = ("http://", "https://", "tg://", "mailto:")
_LANGUAGE: Final = re.compile(r"[\w+#.-]{1,30}")
_ITALIC: Final = "\0"
"""A placeholder for the mark of italic text in incomplete text."""


_PARSER: Final = MarkdownIt("commonmark", {"html": False, "maxNesting": _DEEPEST + 10})
_PARSER.enable(["strikethrough", "table"])
_PARSER.disable("reference")  # Telegram would not show the line with the target of a reference
_PARSER.parse("it puts its rules in order at the first text; later ones may come in several threads")


def markdown_v2(text: str) -> str | None:
    """Convert Markdown to Telegram's dialect, or return None if the text must be sent unchanged.

    A text without visible characters or with very deep nesting must be sent unchanged. The function is
    thread-safe. Convert long texts outside the event loop, because the conversion can take 0.3 seconds.
    """
    tokens = _PARSER.parse(text)
    if any(token.level >= _DEEPEST for token in tokens):
        return None
    lines = tuple(re.sub(r"\r\n?", "\n", text).split("\n"))
    written = _Writer(lines=lines).blocks(SyntaxTreeNode(tokens).children)
    # Put empty bold text between two adjacent italic texts, which Telegram would otherwise underline.
    shown = written.replace(_ITALIC * 2, "_**_").replace(_ITALIC, "_")
    return shown if shown.strip("`>\n ") else None


def escape_markup(text: str) -> str:
    """Escape a text, so that Telegram finds no markup in it."""
    return _RESERVED.sub(r"\\\1", text)


def _code(text: str) -> str:
    return f"`{_escape(text)}`" if text else ""


def _escape(text: str, marks: re.Pattern[str] = _IN_CODE) -> str:
    return marks.sub(r"\\\1", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Writes Markdown blocks in Telegram's dialect."""

    lines: Sequence[str]
    bold: bool = False
    italic: bool = False
    struck: bool = False
    quoted: bool = False
    listed: bool = False

    def blocks(self, nodes: Iterable[SyntaxTreeNode]) -> str:
        """Write successive blocks, and keep the blank lines between the blocks."""
        written = ""
        for node in nodes:
            shown = self.block(node)
            if shown and written:
                before = node.map[0] - 1 if node.map else -1
                stands_apart = 0 <= before < len(self.lines) and not self.lines[before].lstrip("> ").strip()
                written += "\n\n" if stands_apart else "\n"
            written += shown
        return written

    def block(self, node: SyntaxTreeNode) -> str:
        """Write one block."""
        match node.type:
            case "heading":
                return self._mark("*", replace(self, bold=True).inline(node), set_already=self.bold)
            case "fence" | "code_block":
                return self._fence(node.content, node.info)
            case "table":
                first, last = node.map or (0, 0)
                return self._fence("\n".join(self.lines[first:last]), "")
            case "blockquote":
                inner = replace(self, quoted=True).blocks(node.children)
                if self.quoted:
                    return inner
                mark = "\\> " if self.listed else ">"  # `>` is a mark only at the beginning of a line
                return "\n".join(f"{mark}{line}" for line in inner.split("\n"))
            case "bullet_list" | "ordered_list":
                return "\n".join(self._item(item) for item in node.children)
            case "hr":
                return "———"
            case _:
                return self.inline(node)

    def _fence(self, code: str, info: str) -> str:
        if self.quoted:  # a code block would end the quotation
            return "\n".join(_code(line) for line in code.rstrip("\n").split("\n"))
        language = _LANGUAGE.match(info)
        body = _escape(code.rstrip("\n"))
        return f"```{language[0] if language else ''}\n{body}\n```"

    def _item(self, node: SyntaxTreeNode) -> str:
        mark = f"{escape_markup(node.info + '.')} " if node.info else "• "
        inside = replace(self, listed=True)
        parts: list[str] = []
        for child in node.children:
            shown = inside.block(child)
            indented = shown if shown.startswith("```") else shown.replace("\n", "\n  ")
            parts.append(indented if not parts or shown.startswith("```") else f"  {indented}")
        begins_with_code = bool(parts) and parts[0].startswith("```")
        return mark + ("\n" if begins_with_code else "") + "\n".join(parts)

    def _mark(self, mark: str, inner: str, *, set_already: bool) -> str:
        return inner if set_already or not inner.strip() else f"{mark}{inner}{mark}"

    def inline(self, node: SyntaxTreeNode) -> str:
        """Write the inline content of a block."""
        return "".join(self._span(child) for child in node.children)

    def _span(self, node: SyntaxTreeNode) -> str:
        match node.type:
            case "text":
                return escape_markup(node.content)
            case "softbreak" | "hardbreak":
                return "\n"
            case "code_inline":
                return _code(node.content)
            case "strong":
                return self._mark("*", replace(self, bold=True).inline(node), set_already=self.bold)
            case "em":
                return self._mark(_ITALIC, replace(self, italic=True).inline(node), set_already=self.italic)
            case "s":
                return self._mark("~", replace(self, struck=True).inline(node), set_already=self.struck)
            case "link":
                return self._link(self.inline(node), str(node.attrs.get("href", "")))
            case "image":
                return self._link(escape_markup(node.content), str(node.attrs.get("src", "")))
            case _:
                return self.inline(node) if node.children else escape_markup(node.content)

    def _link(self, label: str, address: str) -> str:
        if not label.strip():
            return escape_markup(address)
        if not address.lower().startswith(_SHOWN_AS_LINK):
            return f"{label} {escape_markup(f'({address})')}" if address else label
        return f"[{label}]({_escape(address, _IN_ADDRESS)})"


T = TypeVar("T")
_TOKEN: Final = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,120}")
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")


class TelegramOptions(PlatformConfig, frozen=True, kw_only=True):
    """The settings in the table `[platforms.telegram]`. `token` is the token of the bot."""

    ALSO: ClassVar = {"webhook_secret": "api_key"}
    base_url: str = "https://api.telegram.org"
    """The address of the Bot API."""
    webhook_url: str | None = None
    """The public address of `/channels/telegram`, which Telegram calls, or None for long polling."""
    delete_webhook: bool = False
    """Whether long polling removes a webhook that another program has set."""
    poll_seconds: Annotated[int, Meta(ge=1, le=50)] = 30
    """How long Telegram keeps a poll open without updates, in seconds."""
    timeout_ms: Annotated[int, Meta(ge=1, le=300_000)] = 30_000
    """The time, in milliseconds, after which a call that receives no data fails."""
    proxy: Proxy | None = None
    """An HTTP proxy for connections to Telegram."""

    def __post_init__(self) -> None:
        refuse_address("base_url", self.base_url, plain=True)
        if self.webhook_url is not None:
            refuse_address("webhook_url", self.webhook_url, plain=True)
            if not _SECRET.fullmatch(self.api_key or ""):
                raise ConfigError(
                    "the webhook secret is missing, or has a format that Telegram rejects",
                    remedy=secret_remedy("webhook_secret", "a text of 1 to 256 letters, digits, _ or -"),
                )


def read_token(config: PlatformConfig) -> str:
    """Return the bot's token.

    Raises:
        ConfigError: The token is missing or malformed. The error does not show it.
    """
    if not config.token:
        raise ConfigError(
            "no token is configured for Telegram",
            remedy=secret_remedy("token", "the token from @BotFather in Telegram"),
        )
    if not _TOKEN.fullmatch(config.token):
        raise refused_token("a token has the form 123456:ABC-DEF")
    return config.token


def refused_token(why: str) -> CredentialRefused:
    """Return the error for a token that is invalid or has been revoked."""
    return CredentialRefused(
        f"the Telegram token is not valid: {why}",
        remedy=secret_remedy("token", "the token from @BotFather in Telegram"),
    )


WEBHOOK_PATH: Final = "/telegram"
SECRET_HEADER: Final = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - the name of a header
LARGEST_UPDATE: Final = 1024 * 1024
MAX_NOTE_LENGTH: Final = 200
LOOK_EVERY_MS: Final = 300_000
"""The interval at which the adapter checks that the webhook still points to this server."""

_MIN_POLL_MS: Final = 500
_BODY_SECONDS: Final = 15.0


MAX_CAPTION_LENGTH: Final = 1_024
SEEN: Final = "👀"
SHORT_TEXT: Final = 256
"""Maximum characters of a text that is formatted on the event loop."""


# Telegram's responses, and the fields of requests.

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
"""The kinds of failures for the words in which Telegram describes a refusal with status 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response of Telegram, or the outcome of a request without a response."""

    result: Json = None
    status: int = 0
    """The HTTP status, or 0 if there was no response."""
    kind: SendErrorKind | None = None
    """The kind of failure, or None if the call succeeded."""
    error: str = ""
    retry_after_ms: int | None = None
    migrate_to: int | None = None
    """The new id of a group that has moved."""
    is_telegram: bool = False
    """Whether Telegram itself sent the response, and not a proxy in front of it."""

    @property
    def is_unauthorized(self) -> bool:
        """Whether Telegram refused the token of the bot."""
        return self.is_telegram and self.status in (401, 403, 404)

    @property
    def is_conflict(self) -> bool:
        """Whether another program is receiving updates for this bot."""
        return self.is_telegram and self.status == 409


class Parameters(Struct, frozen=True, kw_only=True):
    """The parameters of a refusal: the seconds to wait, or the new id of a moved group."""

    retry_after: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    migrate_to_chat_id: int | None = None


def read_answer(status: int, body: bytes) -> Answer:
    """Parse a response of the Bot API."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    document = document if isinstance(document, dict) else {}
    if document.get("ok") is True and status == _OK:
        return Answer(result=document.get("result"), status=status, is_telegram=True)
    words = document.get("description")
    described = (
        replace_unstorable(words)[:300]
        if isinstance(words, str)
        else f"Telegram answered {status} without an explanation"
    )
    is_telegram = document.get("ok") is False
    try:
        parameters = msgspec.convert(document.get("parameters", {}), Parameters)
    except msgspec.ValidationError:
        parameters = Parameters()
    seconds = parameters.retry_after
    return Answer(
        status=status,
        kind=_kind(status, described.lower(), is_telegram=is_telegram),
        error=described,
        retry_after_ms=None if seconds is None else int(seconds * 1_000),
        migrate_to=parameters.migrate_to_chat_id,
        is_telegram=is_telegram,
    )


def _kind(status: int, described: str, *, is_telegram: bool) -> SendErrorKind:
    """Return the kind of a refusal."""
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


def failed_call(answer: Answer) -> ServerUnavailable:
    """Return the error for a failed call.

    The error quotes Telegram's response, or states that Telegram is unreachable.
    """
    if not answer.is_telegram:
        return unreachable(answer.error)
    return ServerUnavailable(f"Telegram rejected a call: {answer.error}", remedy="postroom retries")


def unreachable(why: str) -> ServerUnavailable:
    """Return the error for a missing or invalid response from Telegram or its file server."""
    return ServerUnavailable(
        f"the call to Telegram failed: {why}",
        remedy="check the network and base_url; the call can be repeated",
    )


MAX_DATA_BYTES: Final = 64
"""Maximum bytes of data in a button."""
MAX_BUTTONS: Final = 100
"""Maximum number of buttons below a message."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_MIME: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-z0-9.+-]{0,80}", re.IGNORECASE)
_MAX_NAME_LENGTH: Final = 200
_MEDIA: Final = {
    MessageType.PHOTO: ("sendPhoto", "photo"),
    MessageType.VIDEO: ("sendVideo", "video"),
    MessageType.AUDIO: ("sendAudio", "audio"),
    MessageType.VOICE: ("sendVoice", "voice"),
    MessageType.STICKER: ("sendSticker", "sticker"),
}
_GENERAL: Final = "1"
"""The id of the general topic, which every forum has. A message to this topic must name no topic."""


def parse_id(text: str | None) -> int | None:
    """Return an id as a number, or None if the text is not a number."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def place(chat_id: str, metadata: Metadata | None) -> dict[str, Json]:
    """Return the fields of a request that name the chat and the topic."""
    number = parse_id(chat_id)
    where: dict[str, Json] = {"chat_id": replace_unstorable(chat_id) if number is None else number}
    thread = (metadata or {}).get("thread_id")
    topic = None if thread is None or str(thread) == _GENERAL else parse_id(str(thread))
    return where if topic is None else {**where, "message_thread_id": topic}


def keyboard(card: Card) -> dict[str, Json] | None:
    """Return the buttons of a card, one in each row, or None if Telegram cannot show all buttons."""
    if len(card.buttons) > MAX_BUTTONS or any(
        not 0 < len(button.value.encode("utf-8", "replace")) <= MAX_DATA_BYTES for button in card.buttons
    ):
        return None
    rows = [
        [{"text": replace_unstorable(button.label), "callback_data": replace_unstorable(button.value)}]
        for button in card.buttons
    ]
    return {"reply_markup": {"inline_keyboard": rows}}


def media_method(kind: MessageType, *, has_caption: bool) -> tuple[str, str]:
    """Return the API method and the field for sending a kind of file.

    A sticker with a caption is sent as a document.
    """
    if kind is MessageType.STICKER and has_caption:
        return "sendDocument", "document"
    return _MEDIA.get(kind, ("sendDocument", "document"))


def build_upload(attachment: Attachment, data: FileContent) -> tuple[str, FileContent, str]:
    """Return the name, the content and the MIME type of a file to upload."""
    name = replace_unstorable(attachment.name or "")[:_MAX_NAME_LENGTH] or attachment.kind.value
    mime = attachment.mime or ""
    return name, data, mime if _MIME.fullmatch(mime) else "application/octet-stream"


# Incoming updates: their structs, and their conversion to events.

MESSAGES: Final = ("message", "channel_post")
EDITS: Final = ("edited_message", "edited_channel_post")
ALLOWED_UPDATES: Final = (*MESSAGES, *EDITS, "callback_query")
"""The kinds of updates that Telegram must send. Telegram does not report deleted messages to bots."""
CHAT_TYPES: Final = {"private": "dm", "group": "group", "supergroup": "group", "channel": "channel"}

_MAX_TIMESTAMP: Final = 253_402_300_799
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
"""The fields of a message that contain no content other than its text."""
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
"""The fields of chat events that are not messages of people."""
_OF_REPLY: Final = frozenset(("origin", "giveaway", "giveaway_winners"))
"""The fields without content in a message to which another message replies."""
_REPEATED: Final = {"document": "animation", "location": "venue"}
"""The fields that repeat the content of another field."""
_FORWARDS: Final = frozenset(("forward_origin", "forward_date", "forward_sender_name"))
"""Fields that only a forwarded message has."""
_REPLIES: Final = frozenset(("reply_to_message", "external_reply", "reply_to_story", "quote"))
"""Fields that only a reply has."""
Degrees: TypeAlias = Annotated[float, Meta(ge=-180, le=180)]


class Peer(Struct, frozen=True, kw_only=True):
    """A person or a chat."""

    id: int | None = None
    type: str = ""
    title: str = ""
    first_name: str = ""
    last_name: str = ""
    username: str = ""
    is_bot: bool = False

    @property
    def name(self) -> str | None:
        """The display name."""
        return self.title or f"{self.first_name} {self.last_name}".strip() or self.username or None


class Origin(Struct, frozen=True, kw_only=True):
    """The author of a forwarded text, or of an answered message in another chat."""

    sender_user: Peer | None = None
    sender_chat: Peer | None = None
    chat: Peer | None = None
    sender_user_name: str | None = None


class Words(Struct, frozen=True, kw_only=True):
    """A quotation from the answered message, or the name of a forum topic that was created."""

    text: str = ""
    name: str | None = None
    entities: list[Json] = field(default_factory=list)


class Entity(Struct, frozen=True, kw_only=True):
    """Markup in a text. The offset and the length count UTF-16 units."""

    offset: Annotated[int, Meta(ge=0)]
    length: Annotated[int, Meta(ge=1)]
    type: str = ""
    user: Peer | None = None
    url: str = ""


class Message(Struct, frozen=True, kw_only=True):
    """The fields of a message that contain its sender, place, time and text."""

    message_id: int | None = None
    chat: Peer | None = None
    sender: Peer | None = field(name="from", default=None)
    sender_chat: Peer | None = None
    date: int = 0
    text: str | None = None
    caption: str = ""
    entities: list[Json] = field(default_factory=list)
    caption_entities: list[Json] = field(default_factory=list)
    media_group_id: str | None = None
    message_thread_id: int | None = None
    is_topic_message: bool = False
    reply_to_message: dict[str, Json] | None = None
    external_reply: dict[str, Json] | None = None
    quote: Words | None = None
    forum_topic_created: Words | None = None
    forward_origin: Origin | None = None
    forward_from: Peer | None = None
    forward_from_chat: Peer | None = None
    forward_sender_name: str | None = None
    origin: Origin | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None


class Press(Struct, frozen=True, kw_only=True):
    """A pressed button below a message."""

    id: Annotated[str, Meta(min_length=1)]
    sender: Peer = field(name="from")
    message: Message
    data: str


class File(Struct, frozen=True, kw_only=True):
    """A file, or the description of a photo or sticker."""

    file_id: Annotated[str, Meta(min_length=1)]
    mime_type: str | None = None
    file_name: str | None = None
    file_size: int | None = None
    width: int = 0
    height: int = 0
    emoji: str = ""
    is_animated: bool = False
    is_video: bool = False

    def as_media(self, kind: MessageType, mime: str | None = None) -> Attachment:
        """Return the file as an attachment. `mime` is the MIME type if Telegram names no type."""
        return Attachment(
            kind=kind, ref=self.file_id, mime=self.mime_type or mime, name=self.file_name, size=self.file_size
        )


class Location(Struct, frozen=True, kw_only=True):
    """A point on the map."""

    latitude: Degrees
    longitude: Degrees
    live_period: int | None = None


class Venue(Struct, frozen=True, kw_only=True):
    """A place with a name."""

    location: Location
    title: str = ""
    address: str = ""


class Choice(Struct, frozen=True, kw_only=True):
    """An option of a poll, or a task of a checklist."""

    text: str = ""
    voter_count: int = 0
    completion_date: int = 0


class Told(Struct, frozen=True, kw_only=True):
    """The texts of a poll, a contact, a game or similar content."""

    first_name: str = ""
    last_name: str = ""
    phone_number: str = ""
    vcard: str = ""
    question: str = ""
    options: list[Choice] = field(default_factory=list)
    type: str = ""
    is_closed: bool = False
    emoji: str = ""
    value: int = 0
    title: str = ""
    tasks: list[Choice] = field(default_factory=list)
    description: str = ""
    text: str = ""
    data: str = ""

    def describe(self, kind: str, *words: str) -> str:
        """Return the content as text that begins with the kind of content."""
        return f"{kind}: " + ", ".join(filter(None, words or (self.title, self.description, self.text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """The bot itself."""

    bot_id: int
    username: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A group became a supergroup, and has a new id."""

    source: SessionSource
    chat_id: str


def read_update_id(update: Json) -> int | None:
    """Return the number of an update, or None if the update has no number."""
    number = update.get("update_id") if isinstance(update, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def read_update(update: Json, me: Me) -> MessageEvent | ButtonPress | Moved | None:
    """Return the content of an update, or None for an irrelevant update, such as a message of the bot.

    Raises:
        InvalidArgument: The update is invalid.
    """
    if read_update_id(update) is None:
        raise InvalidArgument("an update from Telegram has no update id")
    try:
        update = storable_json(update)
        for name in (*MESSAGES, *EDITS):
            if name in update:
                message = msgspec.convert(update[name], Message)
                if message.migrate_to_chat_id or message.migrate_from_chat_id:
                    # A change of a group's id. Telegram reports it in the old and in the new group.
                    here = None if message.chat is None else message.chat.id
                    old, new = (message.migrate_from_chat_id or here), (message.migrate_to_chat_id or here)
                    if old is None or new is None:
                        return None
                    account = str(me.bot_id)
                    source = SessionSource(
                        platform=Platform.TELEGRAM, chat_id=str(old), chat_type="group", account=account
                    )
                    return Moved(source=source, chat_id=str(new))
                if name in EDITS and "location" in update[name]:
                    return None  # a live location has moved: no other location can be edited
                return read_message(update[name], message, me)
        query = update.get("callback_query")
        is_ours = isinstance(query, dict) and isinstance(query.get("message"), dict) and "data" in query
        if query is None or (isinstance(query, dict) and not is_ours):
            return None  # the button belongs to a game, or to a message of another bot
        press = msgspec.convert(query, Press)
        return ButtonPress(
            source=_source(press.message, press.sender, me),
            value=press.data,
            message_id=str(press.message.message_id),
            press_id=press.id,
        )
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidArgument(f"an update from Telegram has an unknown format: {error}") from error


def read_message(raw: Mapping[str, Json], message: Message, me: Me) -> MessageEvent | None:
    """Convert a message to an event, or return None for a message without content for the bot.

    Raises:
        InvalidArgument: The message is invalid.
        ValidationError: The message that was replied to is invalid.
    """
    source = _source(message, message.sender_chat or message.sender, me)
    event = None if source.user_id == str(me.bot_id) else _content(raw, message, me)
    if event is None:
        return None
    event.source, event.message_id = source, str(message.message_id)
    if raw.keys() & _FORWARDS:
        # a text of another person contains no command and no mention of the bot
        event.forwarded = (Forwarded(text=event.text, author=_author(message, is_forward=True)),)
        event.media = Attachment.foreign(event.media)
        event.text, event.addressed = "", False
    if command := _COMMAND.match(event.text):
        if command[2].lower() == me.username.lower():
            event.text = f"/{command[1]}{event.text[command.end() :]}"
        elif source.chat_type != "dm":
            return None  # a command for another bot
    event.timestamp = message.date * 1_000 if 0 < message.date <= _MAX_TIMESTAMP else None
    is_reply = raw.keys() & _REPLIES
    files = _read_reply(raw, message, event, me) if is_reply else ()
    if message.media_group_id is not None:
        event.metadata = {"media_group_id": message.media_group_id}
    if files:
        event.media += files
        event.metadata |= {"answered_files": len(files)} if message.media_group_id is not None else {}
    event.addressed = event.addressed or source.chat_type == "dm" or event.is_command()
    if event.message_type is MessageType.TEXT and event.is_command():
        event.message_type = MessageType.COMMAND
    return event


def _read_reply(
    raw: Mapping[str, Json], message: Message, event: MessageEvent, me: Me
) -> tuple[Attachment, ...]:
    """Add the answered message to an event, and return the files of the answered message."""
    reply_to_message = message.reply_to_message or message.external_reply or {}
    quoted = "" if message.quote is None else _spelt_out(message.quote.text, message.quote.entities, me)[0]
    reply = (
        None
        if not reply_to_message or "forum_topic_created" in reply_to_message
        else msgspec.convert(reply_to_message, Message)
    )
    if reply is None:
        event.unread += ("a story",) if "reply_to_story" in raw else ()
        event.reply_to_text = quoted or None
        return ()
    is_ours = reply.sender is not None and reply.sender.id == me.bot_id
    event.addressed = event.addressed or is_ours
    event.reply_to_message_id = None if reply.message_id is None else str(reply.message_id)
    event.reply_to_author = _author(reply, is_forward=bool(reply_to_message.keys() & _FORWARDS))
    message_event = _content(
        {name: part for name, part in reply_to_message.items() if name not in _OF_REPLY}, reply, me
    )
    if message_event is None:
        event.reply_to_text = quoted or None
        return ()
    media = () if is_ours else message_event.media
    event.unread += tuple(f"{part} of the message that this message answers" for part in message_event.unread)
    event.reply_to_text = quoted or message_event.text or ("(a file)" if media else None)
    return Attachment.foreign(file for file in media if file not in event.media)


def _content(raw: Mapping[str, Json], message: Message, me: Me) -> MessageEvent | None:
    """Return the content of a message, or None for an event of the chat, such as a new member."""
    words, entities, is_named = message.caption, message.caption_entities, False
    if message.text is not None:
        words, entities = message.text, message.entities
    if entities:
        words, is_named = _spelt_out(words, entities, me)
    event, texts = MessageEvent(addressed=is_named), [words]
    for name in dict.fromkeys((*_CONTENT, *raw)):
        if name not in raw or name in _ENVELOPE | _EVENTS or _REPEATED.get(name) in raw:
            continue
        if (content := _CONTENT.get(name)) is None:
            event.unread += (f"a {name.replace('_', ' ')}",)
            continue
        try:
            kind, text, file = content[1](msgspec.convert(raw[name], content[0]))
        except msgspec.ValidationError:
            event.unread += (f"a {name.replace('_', ' ')}",)
            continue
        texts.append(text)
        event.media += () if file is None else (file,)
        event.message_type = kind if event.message_type is MessageType.TEXT else event.message_type
    event.text = "\n\n".join(filter(None, texts))
    is_empty = message.text is None and not (event.text or event.media or event.unread)
    return None if is_empty else event


def _spelt_out(text: str, entities: Iterable[Json], me: Me) -> tuple[str, bool]:
    """Return a text without mentions of the bot and with the addresses of its links.

    The second value is true if the text names the bot.
    """
    units, edits = text.encode("utf-16-le", "surrogatepass"), list[tuple[int, int, str]]()
    for item in entities:
        try:
            entity = msgspec.convert(item, Entity)
        except msgspec.ValidationError:
            continue
        start, end = 2 * entity.offset, 2 * (entity.offset + entity.length)
        if end > len(units):
            continue
        word = units[start:end].decode("utf-16-le", "replace")
        is_named = entity.type == "mention" and word.lower() == f"@{me.username.lower()}"
        if is_named or (entity.type == "text_mention" and entity.user and entity.user.id == me.bot_id):
            edits.append((start, end, ""))
        elif entity.type == "text_link" and entity.url and entity.url != word:
            edits.append((end, end, f" ({entity.url})"))
    if not edits:
        return text, False
    kept_text, at = "", 0
    for start, end, address in [*sorted(edits), (len(units), len(units), "")]:
        if start < at:
            continue
        piece = units[at:start].decode("utf-16-le", "replace")
        kept_text += piece.lstrip(" ") if at and (not kept_text or kept_text[-1].isspace()) else piece
        kept_text += address
        at = end
    return kept_text.strip(), any(start < end for start, end, _ in edits)


def _source(message: Message, speaker: Peer | None, me: Me) -> SessionSource:
    """Return the chat, topic and sender of a message.

    Raises:
        InvalidArgument: The message has no chat or no id.
    """
    chat, who = message.chat or Peer(), speaker or Peer()
    if chat.id is None or chat.type not in CHAT_TYPES or message.message_id is None:
        raise InvalidArgument("a message from Telegram has no id, no chat, or an unknown type of chat")
    topic = None
    if message.is_topic_message and (root := message.reply_to_message or message.external_reply):
        began = msgspec.convert(root, Message).forum_topic_created
        topic = None if began is None else began.name
    in_thread = message.is_topic_message and message.message_thread_id is not None
    return SessionSource(
        platform=Platform.TELEGRAM,
        chat_id=str(chat.id),
        chat_name=chat.name,
        chat_type=CHAT_TYPES[chat.type],
        user_id=None if who.id is None else str(who.id),
        user_name=who.name,
        thread_id=str(message.message_thread_id) if in_thread else None,
        chat_topic=topic,
        account=str(me.bot_id),
        is_bot=who.is_bot,
    )


def _author(message: Message, *, is_forward: bool) -> str | None:
    """Return the display name of the original author of a text."""
    origin = (message.forward_origin if is_forward else message.origin) or Origin()
    people = [origin.sender_user, origin.sender_chat, origin.chat]
    if is_forward:
        people += [message.forward_from, message.forward_from_chat]
    else:
        people += [message.sender_chat, message.sender, message.chat]
    hidden = origin.sender_user_name or (message.forward_sender_name if is_forward else None)
    return next((who.name for who in people if who is not None and who.name), hidden)


Content: TypeAlias = tuple[MessageType, str, Attachment | None]
"""The kind, the text and the file of a part of a message."""


def _file(kind: MessageType, mime: str | None = None) -> Callable[[File], Content]:
    return lambda file: (kind, "", file.as_media(kind, mime))


def _photo(sizes: list[File]) -> Content:
    largest = max(sizes, key=lambda one: one.width * one.height)
    return MessageType.PHOTO, "", largest.as_media(MessageType.PHOTO, "image/jpeg")


def _sticker(sticker: File) -> Content:
    mime = (
        "application/x-tgsticker"
        if sticker.is_animated
        else "video/webm"
        if sticker.is_video
        else "image/webp"
    )
    return MessageType.STICKER, sticker.emoji, sticker.as_media(MessageType.STICKER, mime)


def _place(location: Location, *named: str) -> Content:
    at, words = f"{location.latitude:.6f}, {location.longitude:.6f}", ", ".join(filter(None, named))
    kind = "Location" if location.live_period is None else "Location when its live sharing began"
    return MessageType.LOCATION, f"{kind}: {words} ({at})" if words else f"{kind}: {at}", None


def _poll(poll: Told) -> Content:
    kind = "Quiz" if poll.type == "quiz" else "Poll"
    kind = f"Closed {kind.lower()}" if poll.is_closed else kind
    answers = ((option.text, option.voter_count) for option in poll.options)
    return MessageType.TEXT, poll_in_words(poll.question, answers, kind=kind), None


def _checklist(list_: Told) -> Content:
    lines = [f"- [{'x' if task.completion_date else ' '}] {task.text}" for task in list_.tasks]
    return MessageType.TEXT, "\n".join((f"Checklist: {list_.title}", *lines)), None


def _described_by(words: Callable[[Told], str]) -> Callable[[Told], Content]:
    return lambda part: (MessageType.TEXT, words(part), None)


_CONTENT: Final[dict[str, tuple[Any, Callable[[Any], Content]]]] = {
    "photo": (Annotated[list[File], Meta(min_length=1)], _photo),
    "animation": (File, _file(MessageType.VIDEO, "video/mp4")),
    "document": (File, _file(MessageType.DOCUMENT)),
    "video": (File, _file(MessageType.VIDEO)),
    "video_note": (File, _file(MessageType.VIDEO, "video/mp4")),
    "voice": (File, _file(MessageType.VOICE, "audio/ogg")),
    "audio": (File, _file(MessageType.AUDIO)),
    "sticker": (File, _sticker),
    "venue": (Venue, lambda venue: _place(venue.location, venue.title, venue.address)),
    "location": (Location, _place),
    "contact": (
        Told,
        _described_by(
            lambda one: one.describe(
                "Contact", f"{one.first_name} {one.last_name}".strip(), one.phone_number, one.vcard
            )
        ),
    ),
    "poll": (Told, _poll),
    "dice": (Told, _described_by(lambda dice: f"Dice {dice.emoji}: {dice.value}")),
    "checklist": (Told, _checklist),
    "game": (Told, _described_by(lambda game: game.describe("Game"))),
    "invoice": (Told, _described_by(lambda invoice: invoice.describe("Invoice"))),
    "web_app_data": (Told, _described_by(lambda part: f"Data of a web app: {part.data}")),
}
"""The type and the conversion of each kind of content, keyed by the field that contains it."""


class TelegramAdapter(BasePlatformAdapter):
    """Connects one bot to Telegram."""

    platform: ClassVar[Platform] = Platform.TELEGRAM
    options: ClassVar = TelegramOptions
    capabilities: ClassVar[ChannelCapabilities] = ChannelCapabilities(
        # The limit of 4096 applies to the text after formatting. Only private chats support drafts.
        limit=4_096,
        unit=LengthUnit.UTF16,
        edits=True,
        threads=True,
        typing=True,
        reactions=True,
        media=ALL_MEDIA,
        # core.telegram.org/bots/faq states one message a second in a chat, 20 a minute in a group, and about
        # 30 a second in total. Telegram documents no limit for reactions. The limit for them is postroom's
        # own: refused reactions must not delay answers.
        rates=RateLimits(
            bot=Rate(30, 1_000),
            chat=Rate(1, 1_000),
            group=Rate(20, 60_000),
            methods={"setMessageReaction": Rate(10, 1_000)},
        ),
    )

    def __init__(
        self,
        config: TelegramOptions,
        *,
        clock: Clock | None = None,
        timer: Timer | None = None,
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._api: TelegramApi | None = None
        self._options = config
        self._moved: dict[str, str] = {}
        """The new ids of groups that have become supergroups since the start, keyed by old id."""
        self._me: Me | None = None
        self._offset: int | None = None
        """The number of the first update that is not acknowledged to Telegram."""

    @property
    def account(self) -> str:
        """The bot's id. `connect` sets the value."""
        return "default" if self._me is None else str(self._me.bot_id)

    def lock_identity(self) -> str | None:
        """Return the bot's token if the adapter polls for updates, or None if the bot has a webhook."""
        return None if self._options.webhook_url else self.config.token

    def routes(self) -> Sequence[BaseRoute]:
        """Return the route of the webhook, or no route if the adapter polls for updates."""
        if self._options.webhook_url is None:
            return ()
        return (Route(WEBHOOK_PATH, self._webhook, methods=["POST"]),)

    # Connecting and disconnecting.

    def load_libraries(self) -> None:
        """Import the library for requests."""
        importlib.import_module("postroom.gateway.platforms.telegram_api")

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Check the token, and start to receive updates."""
        token = read_token(self.config)
        await self.disconnect()
        self.liveness.state = AdapterState.CONNECTING
        async with AsyncExitStack() as undo:
            undo.callback(setattr, self.liveness, "state", AdapterState.STOPPED)
            api = await asyncio.to_thread(_client, self._options, token)
            undo.push_async_callback(api.close)
            me = _check_result(await api.call("getMe", {}))
            bot_id, name = (me.get("id"), me.get("username")) if isinstance(me, dict) else (None, None)
            if not isinstance(bot_id, int) or not isinstance(name, str):
                raise ConfigError(
                    "Telegram's base_url is not the URL of a Bot API",
                    remedy="set base_url to the URL of a Bot API, or remove it",
                )
            self._me = Me(bot_id=bot_id, username=name)
            if self._options.webhook_url:  # register the webhook's address with Telegram
                answer = await api.call(
                    "setWebhook",
                    {
                        "url": self._options.webhook_url,
                        "secret_token": self.config.api_key,
                        "allowed_updates": ALLOWED_UPDATES,
                    },
                )
                if answer.is_telegram and answer.status == 400:
                    raise ConfigError(
                        f"Telegram rejected the webhook: {answer.error}",
                        remedy="set webhook_url to an https URL that Telegram can reach",
                    )
                _check_result(answer)
            else:  # no webhook may prevent polling
                webhook = _check_result(await api.call("getWebhookInfo", {}))
                if isinstance(webhook, dict) and webhook.get("url"):
                    if not self._options.delete_webhook:
                        raise ConfigError(
                            "a webhook is set for this bot, so Telegram refuses to let postroom poll",
                            remedy="set delete_webhook to true to remove the webhook, or webhook_url "
                            "to use it",
                        )
                    _check_result(await api.call("deleteWebhook", {"drop_pending_updates": False}))
            undo.pop_all()
        self._api = api
        if self._options.webhook_url is None:
            self._start_receiving(self._poll)
        else:
            self._start_receiving(self._look, after_ms=LOOK_EVERY_MS)
        if self.commands:
            self._tasks.start(self._show_menu(api), name="show the menu of commands")

    async def _show_menu(self, api: "TelegramApi") -> None:
        """Set the command menu of the bot."""
        listed: Json = [{"command": name, "description": words[:256]} for name, words in self.commands]
        answer = await api.call("setMyCommands", {"commands": listed})
        if answer.kind is not None:
            _LOG.info("telegram.no_menu", reason=answer.error)

    async def disconnect(self) -> None:
        """Stop receiving and close the connections. A second call has no effect."""
        await self._end_tasks()
        api, self._api = self._api, None
        if api is not None:
            await api.close()

    # Incoming updates.

    async def _poll(self, _: int) -> int:
        """Fetch and process updates once, and return the pause before the next poll."""
        wanted = {"timeout": self._options.poll_seconds, "allowed_updates": ALLOWED_UPDATES}
        if self._offset is not None:
            wanted["offset"] = self._offset
        began, silence_ms = self._clock.now(), self._options.poll_seconds * 1_000
        updates = await self._request("getUpdates", wanted, list, more_silence_ms=silence_ms)
        # Pause after an empty response that came at once, and if no update has a number: the next response
        # would be the same.
        moved = not updates and self._clock.now() - began >= _MIN_POLL_MS
        for update in updates:
            await self.take_in(update, partial(self._take, update))
            if (update_id := read_update_id(update)) is not None:
                self._offset, moved = update_id + 1, True
        return 0 if moved else _MIN_POLL_MS

    async def _look(self, _: int) -> int:
        """Check that the webhook is still registered, and return the pause before the next check."""
        fields = await self._request("getWebhookInfo", {}, dict)
        if fields.get("url") != self._options.webhook_url:
            self._fail(
                "conflict",
                "the bot's webhook was removed or changed: find the other program that uses the bot's token",
                retryable=True,
            )
        return LOOK_EVERY_MS

    async def _request(
        self, method: str, fields: dict[str, Json], kind: type[T], *, more_silence_ms: int = 0
    ) -> T:
        """Call a method that is necessary for receiving updates, and return the result.

        Raises:
            CredentialRefused: The token is no longer valid.
            ServerUnavailable: Telegram did not return a result.
        """
        if self._api is None:
            raise unreachable("the Telegram channel is not connected")
        answer = await self._api.call(method, fields, more_silence_ms=more_silence_ms)
        if answer.kind is None and isinstance(answer.result, kind):
            self._heard()
            return answer.result
        if answer.is_unauthorized:
            raise refused_token(answer.error)
        details: dict[str, object] = {"retry_after_ms": answer.retry_after_ms}
        if answer.is_conflict:
            raise ServerUnavailable(
                f"another program receives the messages of this bot: {answer.error}; stop that program, or "
                "remove the webhook (delete_webhook)",
                remedy="",
                details={**details, "channel": "conflict"},
            )
        why = answer.error or f"Telegram's answer to {method} has an unknown form"
        raise ServerUnavailable(why, remedy="postroom retries", details=details)

    async def _take(self, update: Json) -> None:
        if self._me is None or self._inbound is None:
            raise unreachable("the Telegram channel is not connected")
        value = read_update(update, self._me)
        if isinstance(value, ButtonPress):
            note = replace_unstorable(await self._inbound.pressed(value))
            shown = note[: self.capabilities.unit.fitting(note, 0, MAX_NOTE_LENGTH)]
            fields = {"callback_query_id": value.press_id, "text": shown}
            # The effect of the press is stored already, so later messages need not wait for the note.
            if not self._tasks.closed:
                self._tasks.start(self._call("answerCallbackQuery", fields), name="answer a press")
        elif isinstance(value, Moved):
            await self._follow(value)
        elif value is not None and update.keys() & EDITS:
            await self._inbound.edited(value)
        elif value is not None:
            await self.handle_message(value)

    async def _follow(self, moved: Moved) -> None:
        """Switch to the new id of a group that has become a supergroup."""
        self._moved[moved.source.chat_id] = moved.chat_id
        if self._inbound is not None:
            await self._inbound.moved(moved.source, moved.chat_id)

    async def _webhook(self, request: Request) -> Response:
        """Process an update from Telegram. Answer 200 only if the update has been stored."""
        given_data = request.headers.get(SECRET_HEADER, "").encode()
        if not hmac.compare_digest(given_data, (self.config.api_key or "").encode()):
            self._refuse("wrong_secret")
            return Response(status_code=401)
        if not self._receives():
            return Response(status_code=503)
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await bounded_body(request, LARGEST_UPDATE)
        except (ClientDisconnect, TimeoutError):
            return Response(status_code=408)
        if body is None:
            self._refuse("too_large")
            return Response(status_code=413)
        if not self._receives():
            return Response(status_code=503)
        self._heard()
        try:
            update = json.loads(body)
        except (ValueError, RecursionError):
            update = body.decode("utf-8", "replace")  # the body is not an update, so it becomes a dead letter
        kept_taken = await self.is_taken(partial(self.take_in, update, partial(self._take, update)))
        return Response(status_code=200 if kept_taken else 503)

    def _receives(self) -> bool:
        return self._me is not None and not self._tasks.closed

    def _refuse(self, code: str, **more: object) -> None:
        self.liveness.refused += 1
        _LOG.warning("channel.refused", platform=self.platform.value, code=code, **more)

    # Outgoing messages.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send a message."""
        fields, answered = place(chat_id, metadata), parse_id(reply_to)
        if answered is not None:  # send this message even if that one no longer exists
            fields["reply_parameters"] = {"message_id": answered, "allow_sending_without_reply": True}
        return await self._say("sendMessage", fields, content, metadata=metadata)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text of a sent message. An unchanged text is not a failure."""
        fields = place(chat_id, None)
        return await self._say("editMessageText", fields, content, message_id=message_id, metadata=metadata)

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Delete a sent message."""
        number = parse_id(message_id)
        if number is None:
            return _unusable("the id of a message must be a number")
        fields = {**place(chat_id, None), "message_id": number}
        return self._result(await self._call("deleteMessage", fields), message_id)

    async def send_typing(self, chat_id: str, metadata: Metadata | None = None) -> None:
        """Show a typing indicator in a chat."""
        await self._call("sendChatAction", {**place(chat_id, metadata), "action": "typing"})

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Set or remove the bot's reaction to a message."""
        number = parse_id(message_id)
        if number is None:
            return _unusable("the id of a message must be a number")
        marks: list[Json] = [] if takes_back else [{"type": "emoji", "emoji": SEEN}]
        fields = {**place(chat_id, None), "message_id": number, "reaction": marks}
        return self._result(await self._call("setMessageReaction", fields))

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Send a file with a caption of at most 1,024 UTF-16 units."""
        method, field = media_method(attachment.kind, has_caption=bool(caption))
        fields = {**place(chat_id, metadata), "file": field}
        file = build_upload(attachment, data)
        if caption:
            return await self._say(method, fields, caption, file=file, metadata=metadata)
        return self._result(await self._call(method, fields, file=file, metadata=metadata))

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a received file."""
        if attachment.size is not None and attachment.size > max_bytes:
            raise TooLarge(f"the file exceeds {max_bytes} bytes", value=attachment.size)
        answer = await self._call("getFile", {"file_id": attachment.ref})
        if answer.kind is SendErrorKind.TOO_LONG:
            raise TooLarge("the file exceeds Telegram's limit for bots", value=attachment.size)
        path = answer.result.get("file_path") if isinstance(answer.result, dict) else None
        if answer.kind is not None:
            raise failed_call(answer)
        if self._api is None or not isinstance(path, str):
            raise unreachable("Telegram does not have the file")
        async with aclosing(self._api.download(path, max_bytes=max_bytes)) as pieces:
            async for piece in pieces:
                yield piece

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Send a card with buttons. If Telegram cannot show all buttons, the text lists the answers."""
        buttons = keyboard(card)
        if buttons is None:
            return await super().send_card(chat_id, card, metadata)
        fields = {**place(chat_id, metadata), **buttons}
        return await self._say("sendMessage", fields, card.text, metadata=metadata)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text and the buttons of a card.

        If the new card has no buttons, the old buttons are removed.
        """
        buttons = keyboard(card)
        if buttons is None:
            return _unusable("the callback data of a button must have 1 to 64 bytes")
        fields = {**place(chat_id, None), **buttons}
        return await self._say("editMessageText", fields, card.text, message_id=message_id, metadata=metadata)

    async def _say(
        self,
        method: str,
        fields: dict[str, Json],
        text: str,
        *,
        file: "SentFile | None" = None,
        message_id: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Send or replace a formatted text, or an unformatted text if Telegram refuses the markup."""
        if message_id is not None:
            if (number := parse_id(message_id)) is None:
                return _unusable("the id of a message must be a number")
            fields = {**fields, "message_id": number}
        name, limit = ("caption", MAX_CAPTION_LENGTH) if file else ("text", self.capabilities.limit)
        plain = replace_unstorable(text)
        if self.capabilities.unit.measure(plain) > limit:
            return SendResult.failed(SendErrorKind.TOO_LONG, f"the {name} exceeds {limit} UTF-16 units")
        is_short = len(plain) <= SHORT_TEXT
        marked = markdown_v2(plain) if is_short else await asyncio.to_thread(markdown_v2, plain)
        if marked is not None:
            shown = {**fields, name: marked, "parse_mode": "MarkdownV2"}
            result = self._result(await self._call(method, shown, file=file, metadata=metadata), message_id)
            if result.error_kind not in (SendErrorKind.BAD_FORMAT, SendErrorKind.TOO_LONG):
                return result
        answer = await self._call(method, {**fields, name: plain}, file=file, metadata=metadata)
        return self._result(answer, message_id)

    async def _call(
        self,
        method: str,
        fields: dict[str, Json],
        *,
        file: "SentFile | None" = None,
        metadata: Metadata | None = None,
    ) -> Answer:
        """Call a method of the Bot API as soon as the rate limits allow the call."""
        chat_id = str(fields.get("chat_id", ""))
        if (now_at := self._moved.get(chat_id)) is not None:
            fields = {**fields, "chat_id": int(now_at)}
        gives_way = method in ("sendChatAction", "setMessageReaction")
        says = method.startswith(("send", "edit")) and not gives_way
        chat = str(fields["chat_id"]) if says else None
        is_group = chat is not None and chat.startswith(("-", "@"))
        async with self._turn(method, chat, metadata, is_group=is_group, gives_way=gives_way) as turn:
            if turn.wait_ms:
                return Answer(kind=SendErrorKind.RATE_LIMITED, error=TOO_OFTEN, retry_after_ms=turn.wait_ms)
            if self._api is None:
                return Answer(kind=SendErrorKind.TRANSIENT, error="the Telegram channel is not connected")
            answer = await self._api.call(method, fields, file=file)
            if answer.kind is SendErrorKind.RATE_LIMITED:
                turn.refused(answer.retry_after_ms)
        if answer.migrate_to is None or self._me is None or now_at is not None:
            return answer
        source = SessionSource(
            platform=self.platform, chat_id=chat_id, chat_type="group", account=self.account
        )
        moved = Moved(source=source, chat_id=str(answer.migrate_to))
        self._moved[chat_id] = moved.chat_id
        if not self._tasks.closed:
            self._tasks.start(self._follow(moved), name="follow a group")
        return await self._call(method, fields, file=file, metadata=metadata)

    def _result(self, answer: Answer, message_id: str | None = None) -> SendResult:
        if answer.kind is not None and "message is not modified" not in answer.error.lower():
            return SendResult.failed(answer.kind, answer.error, retry_after_ms=answer.retry_after_ms)
        self._said()
        number = answer.result.get("message_id") if isinstance(answer.result, dict) else None
        return SendResult.sent(message_id if number is None else str(number))


def _client(options: TelegramOptions, token: str) -> "TelegramApi":
    """Return a client for Telegram. Call the function outside the event loop, because it reads files.

    Raises:
        MissingExtra: The library is not installed.
    """
    from postroom.gateway.platforms.telegram_api import TelegramApi

    return TelegramApi(options.base_url, token, silence_ms=options.timeout_ms, proxy=options.proxy)


def _check_result(answer: Answer) -> Json:
    """Return the result of a call that `connect` makes before the first poll.

    Raises:
        ConfigError: Telegram refuses the token.
        ServerUnavailable: The call failed temporarily.
    """
    if answer.is_unauthorized:
        raise refused_token(answer.error)
    if answer.kind is not None:
        raise failed_call(answer)
    return answer.result


def _unusable(why: str) -> SendResult:
    return SendResult.failed(SendErrorKind.BAD_FORMAT, why)
