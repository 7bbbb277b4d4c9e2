"""The Slack channel: receives events by Socket Mode or signed requests, and sends by the Web API.

`SlackOptions.token` is the bot's token (`xoxb-…`), and `api_key` is the app's token (`xapp-…`, with the scope
connections:write). With an app token, the adapter opens a web socket (Socket Mode). Without an app token,
Slack calls `/slack`, and `signing_secret` is required.

Slack has threads instead of replies: if `reply_in_threads` is set, `reply_to` begins a thread. `thread_id` is
the first message of a thread. `metadata["dedupe_key"]` becomes `client_msg_id`, so that Slack accepts a
message only once. Slack documents the errors of `client_msg_id`, but not the argument itself. Therefore, the
outcome of a call without a response is unknown nevertheless.
"""

import asyncio
import hashlib
import hmac
import html
import importlib
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote_to_bytes
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta, Struct, structs
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import ConfigError, CredentialRefused, InvalidArgument, ServerUnavailable
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json, storable
from postroom.contracts.records import replace
from postroom.contracts.tables import Secret
from postroom.gateway.capabilities import ChannelCapabilities, LengthUnit, Rate, RateLimits
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import (
    FILES,
    Attachment,
    Button,
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
from postroom.gateway.platforms.safe_text import storable_json
from postroom.gateway.session import Platform, SessionSource
from postroom.gateway.splitting import split
from postroom.log import get_logger

if TYPE_CHECKING:
    from postroom.gateway.platforms.slack_library import SlackApi, SlackSocket

_LOG = get_logger(__name__)


# Conversion of Slack's text dialect: outgoing Markdown becomes mrkdwn, and incoming mrkdwn becomes plain
# text. In mrkdwn, only `&`, `<` and `>` are written as entities, and only `<…>` makes links and mentions.
# Each `<` in an outgoing text becomes an entity, so an agent's text cannot notify a whole channel. The time
# of each function is linear in the length of the text.


_HELD: Final = re.compile("\ue001(\\d+)\ue002")
_PRIVATE: Final = re.compile("[\ue000-\ue002]")
_STRONG: Final = "\ue000"
"""A placeholder for the asterisks of bold text, while the asterisks of italic text are replaced."""

_FENCE: Final = re.compile(r" {0,3}(`{3,}(?=[^`]*\Z)|~{3,})[ \t]*([^\n]*)\Z")
_LANGUAGE: Final = re.compile(r"[\w+#.-]*[ \t]*", re.ASCII)
_HEADING: Final = re.compile(r" {0,3}#{1,6}[ \t]+(.*)\Z")
_BULLET: Final = re.compile(r"([ \t]*)[-*+][ \t]+(?=\S)")
_RULE: Final = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})\Z")
_QUOTE: Final = re.compile(r" {0,3}((?:>[ ]?)+)")
_TABLE: Final = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?\Z")
_MARKED: Final = re.compile(r"[*_~`<>&\[#+-]")
"""Matches the characters that may need conversion. A line without these characters does not change."""

_LINK: Final = re.compile(
    r"!?\[([^\[\]\n]+)\]"
    r"\(<?((?:https?://|mailto:|tel:)[^()\s<>]+(?:\([^()\s<>]*\)[^()\s<>]*)*)>?(?:[ \t]+\"[^\"\n]*\")?\)"
)
_ADDRESS: Final = re.compile(r"<((?:https?://|mailto:|tel:)[^\s<>]+)>|(https?://[^\s<>|\ue001]+)")
_STRIKE: Final = re.compile(r"~~(?=\S)([^~\n]+)(?<=\S)~~")
_BOTH: Final = re.compile(r"\*\*\*(?=[^\s*])([^*\n]+)(?<=\S)\*\*\*")
_STARS: Final = re.compile(r"\*\*(?=\S)((?:[^*\n]|\*(?!\*))+)(?<=\S)\*\*")
_LINES: Final = re.compile(r"(?<!\w)__(?=\S)((?:[^_\n]|_(?!_))+)(?<=\S)__(?!\w)")
_STRESS: Final = re.compile(r"(?<![\w*])\*(?=\S)([^*\n]+)(?<=\S)\*(?![\w*])")

_ANGLES: Final = re.compile(r"<([@#!][^<>\n]+|[A-Za-z][A-Za-z0-9+.-]*:[^<>\n]+)>")
_SAME: Final = re.compile(r"\A(?:https?://|mailto:|tel:)?(.*?)/?\Z", re.DOTALL)


def escape(text: str) -> str:
    """Escape a text, so that Slack shows it literally."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_mrkdwn(markdown: str) -> str:
    """Convert Markdown to Slack's dialect.

    Markup that Slack does not support stays visible as text.
    """
    shown: list[str] = []
    lines = _PRIVATE.sub("", markdown).replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        if fence := _FENCE.match(lines[at]):
            marker, info = fence[1], fence[2]
            closing = re.compile(rf" {{0,3}}{marker[0]}{{{len(marker)},}}[ \t]*\Z")
            end = next(
                (number for number in range(at + 1, len(lines)) if closing.match(lines[number])), len(lines)
            )
            labels = [] if _LANGUAGE.fullmatch(info) else [info]
            shown += ["```", *(_in_code(line) for line in (*labels, *lines[at + 1 : end])), "```"]
            at = end + 1
        elif (
            at + 1 < len(lines)
            and "|" in lines[at]
            and "|" in lines[at + 1]
            and _TABLE.match(lines[at + 1].strip())
        ):
            end = next((number for number in range(at, len(lines)) if "|" not in lines[number]), len(lines))
            shown += ["```", *(_in_code(line) for line in lines[at:end]), "```"]
            at = end
        else:
            shown.append(_line(lines[at]))
            at += 1
    return "\n".join(shown)


def from_slack(text: str) -> str:
    """Convert a text from Slack to plain text, with the addresses of links and the names of people."""
    # Escape every `&` except in Slack's three entities, so that decoding changes only these entities.
    return html.unescape(re.sub(r"&(?!(?:amp|lt|gt);)", "&amp;", _ANGLES.sub(_spelt, text)))


_SILENT_BLOCKS: Final = ("divider", "input", "file")


def blocks_text(blocks: Sequence[Json]) -> tuple[str, tuple[str, ...]]:
    """Return the text of Block Kit blocks, in Slack's dialect, and the names of unreadable parts."""
    values, unread = [], []
    for block in (block for block in blocks if isinstance(block, dict)):
        words = _block(block)
        if words:
            values.append(words)
        elif block.get("type") not in _SILENT_BLOCKS:
            unread.append(f"a block of the type {block.get('type')}")
    return "\n".join(values), tuple(unread)


def _block(part: object) -> str:
    """Return the text of a block, or of a part of a block."""
    if isinstance(part, str):
        return part
    if isinstance(part, Sequence):
        return "".join(_block(item) for item in part)
    if not isinstance(part, Mapping):
        return ""
    kind = part.get("type")
    read = _INLINE.get(str(kind))
    if read is not None:
        return read(part)
    if kind == "rich_text_list":
        return "".join(f"- {_block(item)}\n" for item in _parts(part, "elements"))
    if kind in ("section", "header", "context", "actions"):
        parts = [part.get("text"), *_parts(part, "fields"), part.get("accessory"), *_parts(part, "elements")]
        lines = [_block(part) for part in parts]
        return "\n".join(value for value in lines if value)
    words = part.get("text")
    return words if isinstance(words, str) else _block(part.get("elements"))


def _parts(part: Mapping[str, Any], name: str) -> list[Json]:
    value = part.get(name)
    return value if isinstance(value, list) else []


def _link(part: Mapping[str, Any]) -> str:
    label = part.get("text")
    return f"<{part.get('url')}|{label}>" if label else f"<{part.get('url')}>"


def _image(part: Mapping[str, Any]) -> str:
    parts = (_block(part.get("title")), part.get("alt_text"), part.get("image_url"))
    return "image: " + ", ".join(str(item) for item in parts if item)


def _button_text(part: Mapping[str, Any]) -> str:
    address = part.get("url")
    return f"[{_block(part.get('text'))}]" + (f" <{address}>" if address else "")


_INLINE: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "link": _link,
    "user": lambda part: f"<@{part.get('user_id')}>",
    "channel": lambda part: f"<#{part.get('channel_id')}>",
    "usergroup": lambda part: f"<!subteam^{part.get('usergroup_id')}>",
    "broadcast": lambda part: f"<!{part.get('range')}>",
    "emoji": lambda part: f":{part.get('name')}:",
    "image": _image,
    "video": lambda part: f"video: {_block(part.get('title'))}, {part.get('title_url')}",
    "button": _button_text,
}


def without_mention(text: str, user_id: str) -> tuple[str, bool]:
    """Return a line without the mentions of a user, and whether the line mentioned the user."""
    mention = rf"<@{re.escape(user_id)}(?:\|[^<>]*)?>"
    begun = re.sub(rf"\A\s*{mention}[ \t]*[:,]?", "", text)
    left = re.sub(rf" ?{mention}", "", begun)
    return left.strip(), left != text


def _in_code(line: str) -> str:
    return escape(line.replace("```", "`\u200b`\u200b`"))


def _line(line: str) -> str:
    if not _MARKED.search(line):
        return line
    if _RULE.match(line):
        return "───"
    if heading := _HEADING.match(line):
        words = heading[1].strip()
        unhashed = words.rstrip("#")
        words = (unhashed if unhashed.endswith((" ", "\t")) else words).strip()
        words = words.replace("**", "").replace("__", "")
        return f"*{_inline(words)}*" if words else ""
    quote = _QUOTE.match(line)
    begin, rest = ("> ", line[quote.end() :]) if quote else ("", line)
    if bullet := _BULLET.match(rest):
        begin, rest = f"{begin}{bullet[1]}• ", rest[bullet.end() :]
    return begin + _inline(rest)


def _inline(line: str) -> str:
    """Convert the inline markup of a line."""
    held: list[str] = []

    def hold(shown: str) -> str:
        held.append(shown)
        return f"\ue001{len(held) - 1}\ue002"

    def link(match: re.Match[str]) -> str:
        label = _HELD.sub(lambda kept: held[int(kept[1])].strip("`"), escape(match[1].replace("**", "")))
        return hold(f"<{_target(match[2])}|{label}>")

    def address(match: re.Match[str]) -> str:
        return hold(f"<{_target(match[1])}>" if match[1] else escape(match[2]))

    # Replace the code spans of a line by placeholders. A code span begins and ends with the same number of
    # backticks.
    runs = [(match.start(), match.end()) for match in re.finditer("`+", line)]
    partner: list[int | None] = [None] * len(runs)
    latest: dict[int, int] = {}
    for index in range(len(runs) - 1, -1, -1):
        length = runs[index][1] - runs[index][0]
        partner[index] = latest.get(length)
        latest[length] = index
    pieces: list[str] = []
    done = index = 0
    while index < len(runs):
        other = partner[index]
        if other is None:
            index += 1
            continue
        inner = line[runs[index][1] : runs[other][0]].replace("`", "\u02cb")
        pieces += [line[done : runs[index][0]], hold(f"`{escape(inner.strip() or inner)}`")]
        done = runs[other][1]
        index = other + 1
    text = "".join([*pieces, line[done:]])
    text = _ADDRESS.sub(address, _LINK.sub(link, text))
    text = escape(text)
    text = _STRIKE.sub(r"~\1~", text)
    text = _BOTH.sub(rf"{_STRONG}_\1_{_STRONG}", text)
    text = _LINES.sub(rf"{_STRONG}\1{_STRONG}", _STARS.sub(rf"{_STRONG}\1{_STRONG}", text))
    text = _STRESS.sub(r"_\1_", text).replace(_STRONG, "*")
    return _HELD.sub(lambda kept: held[int(kept[1])], text)


def _target(url: str) -> str:
    return escape(url.replace("|", "%7C"))


def _spelt(match: re.Match[str]) -> str:
    """Return a `<…>` element as text: a mention, a channel, a group, a date or a link."""
    target, _, label = match[1].partition("|")
    if target.startswith(("@", "#")):
        return f"{target[0]}{label or target[1:]}"
    if target.startswith("!"):
        return label or f"@{target[1:].partition('^')[0]}"
    plain = _SAME.sub(r"\1", target)
    if not label or label == target:
        return target.removeprefix("mailto:").removeprefix("tel:")
    return label if label.rstrip("/") == plain else f"[{label}]({target})"


# Convert incoming requests to postroom's types, without I/O.
#
#     events_api       message, app_mention             ─▶ NewMessage
#                      message_changed, message_deleted ─▶ Edit, Deletion
#     slash_commands   /name args                       ─▶ NewMessage
#     interactive      a postroom button                 ─▶ ButtonPress
#
# Irrelevant events (joins, topics, the bot's messages, unfurled links) become None. A message has the same
# id, chat and sender, whether it arrives as `message` or as `app_mention`. An `app_mention` does not contain
# the kind of conversation, so every conversation other than a direct message is a channel.


EVENTS: Final = "events_api"
COMMANDS: Final = "slash_commands"
INTERACTIVE: Final = "interactive"
KINDS: Final = (EVENTS, COMMANDS, INTERACTIVE)

ACTION: Final = "postroom:"
"""The prefix of the ids of postroom's buttons."""
REPLAY_WINDOW_S: Final = 300

_TS: Final = re.compile(r"[0-9]{1,12}\.[0-9]{1,9}")
_SPOKEN: Final = (None, "file_share", "thread_broadcast", "me_message", "bot_message")
_READ: Final = (*_SPOKEN, "message_changed", "message_deleted")
_MAX_EARLIER_LENGTH: Final = 2_000
_GONE: Final = ("tombstone", "hidden_by_limit")
Ts: TypeAlias = Annotated[str, Meta(pattern=rf"^{_TS.pattern}\Z")]
"""The id of a message: its time, in seconds with a fraction."""
Id: TypeAlias = Annotated[str, Meta(pattern=r"\S", max_length=255)]
S = TypeVar("S", bound=Struct)


class Malformed(InvalidArgument):
    """Data from Slack cannot be parsed.

    The error message names the field but does not quote the data.
    """


class Rules(PlatformConfig, frozen=True, kw_only=True):
    """The settings that affect how messages are read."""

    command: Annotated[str, Meta(pattern=r"^/[^/]+\Z", extra={"write": "a text such as /postroom"})] = (
        "/postroom"
    )
    """The slash command. The word after it is postroom's command: `/postroom stop` means `/stop`."""
    reply_in_threads: bool = False
    """Whether each message in a channel begins a thread with a separate session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """The identity of the bot in a Slack team."""

    team_id: str
    user_id: str
    bot_id: str | None = None

    @property
    def account(self) -> str:
        """The bot's permanent name, which is unique across all Slack teams."""
        return f"{self.team_id}-{self.user_id}"

    def wrote(self, message: "Message") -> bool:
        """Return whether the bot itself wrote a message."""
        is_program = self.bot_id is not None and message.bot_id == self.bot_id
        return is_program or message.user == self.user_id


class File(Struct, frozen=True, kw_only=True):
    """A file of a message."""

    mode: str | None = None
    subtype: str | None = None
    url_private: str | None = None
    url_private_download: str | None = None
    mimetype: str | None = None
    name: str | None = None
    size: int | None = None

    def as_media(self) -> Attachment | None:
        """Return the file as an attachment, or None if Slack does not provide the file."""
        ref = self.url_private_download or self.url_private
        if self.mode in _GONE or not ref or not ref.strip():
            return None
        is_voice = self.subtype == "slack_audio"
        return Attachment(
            kind=MessageType.VOICE if is_voice else MessageType.of_file(self.mimetype),
            ref=ref,
            mime=self.mimetype or None,
            name=self.name or None,
            size=self.size,
        )


class Field(Struct, frozen=True, kw_only=True):
    """A field of an attachment."""

    title: str | None = None
    value: str | None = None


class Shared(Struct, frozen=True, kw_only=True):
    """An attachment of a message, such as a shared message."""

    pretext: str | None = None
    title: str | None = None
    title_link: str | None = None
    text: str | None = None
    fallback: str | None = None
    author_name: str | None = None
    author_subname: str | None = None
    service_name: str | None = None
    author_id: str | None = None
    from_url: str | None = None
    is_share: bool | None = None
    is_msg_unfurl: bool | None = None
    fields: list[Field] | None = None
    blocks: list[Json] | None = None
    message_blocks: list[Json] | None = None
    files: list[Json] | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether another person wrote the attached text."""
        return bool(self.is_share or self.is_msg_unfurl or self.from_url)

    @property
    def author(self) -> str | None:
        """The author's display name."""
        return self.author_name or self.author_subname or self.service_name or self.author_id or None

    @property
    def words(self) -> str:
        """The attachment as plain text."""
        held = [block for block in self.message_blocks or () if isinstance(block, dict)]
        messages = [item["message"] for item in held if isinstance(item.get("message"), dict)]
        inner = [block for message in messages for block in _parts(message, "blocks")]
        blocks, _ = blocks_text([*(self.blocks or ()), *inner])
        named = f"[{self.title}]({self.title_link})" if self.title and self.title_link else self.title
        lines = [f"{item.title or ''}: {item.value or ''}" for item in self.fields or ()]
        texts = [self.pretext, named, self.text or blocks, *lines]
        return from_slack("\n".join(value for value in texts if value) or self.fallback or "")


class Message(Struct, frozen=True, kw_only=True):
    """A message as Slack sends it."""

    subtype: str | None = None
    user: str | None = None
    bot_id: str | None = None
    username: str | None = None
    text: str | None = None
    ts: Ts | None = None
    thread_ts: Ts | None = None
    parent_user_id: str | None = None
    blocks: list[Json] | None = None
    attachments: list[Json] | None = None
    files: Json = None

    def read_attachments(self) -> tuple[list[Shared], tuple[str, ...]]:
        """Return the attachments, and a name for each unreadable attachment."""
        return _each(self.attachments, Shared, "an attachment")

    def same_words(self, other: "Message") -> bool:
        """Return whether another message has the same text and files."""
        if not other.text and other.blocks != self.blocks:
            return False
        return (self.text or None, self.files or None) == (other.text or None, other.files or None)


class Event(Message, frozen=True, kw_only=True):
    """An event of the type `message` or `app_mention`."""

    channel: Id
    channel_type: str | None = None
    message: Message | None = None
    previous_message: Message | None = None
    deleted_ts: Ts | None = None


class Slash(Struct, frozen=True, kw_only=True):
    """A slash command. The trigger id identifies the command, because there is no message id."""

    command: Annotated[str, Meta(pattern="^/", max_length=255)]
    channel_id: Id
    user_id: Id
    trigger_id: Id
    text: str | None = None
    channel_name: str | None = None
    user_name: str | None = None


class Named(Struct, frozen=True, kw_only=True):
    """The channel or the person of a button press."""

    id: Id


class Container(Struct, frozen=True, kw_only=True):
    """The card on which a button was pressed."""

    message_ts: Ts


class Action(Struct, frozen=True, kw_only=True):
    """The pressed button. `action_id` shows whether postroom created the button."""

    action_id: str | None = None
    value: str | None = None


class Press(Struct, frozen=True, kw_only=True):
    """A press of a button."""

    actions: list[Action]
    channel: Named
    user: Named
    container: Container
    message: Message | None = None
    trigger_id: str | None = None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A new message."""

    event: MessageEvent


@dataclass(frozen=True, slots=True)
class Edit:
    """A message was edited."""

    event: MessageEvent


@dataclass(frozen=True, slots=True)
class Deletion:
    """A message was deleted."""

    source: SessionSource
    message_id: str


Update = NewMessage | Edit | Deletion | ButtonPress


def read(kind: str, payload: Json, bot: Bot, rules: Rules) -> Update | None:
    """Convert a request from Slack to an update, or return None for an irrelevant request.

    Raises:
        Malformed: A required field is missing, or has another type.
    """
    try:
        body = storable_json(payload)
        if kind == COMMANDS:
            form = msgspec.convert(body, Slash)
            text = from_slack(form.text or "").strip()
            source = SessionSource(
                platform=Platform.SLACK,
                chat_id=form.channel_id,
                chat_name=form.channel_name or None,
                chat_type="dm" if _is_dm(form.channel_id, None) else "channel",
                user_id=form.user_id,
                user_name=form.user_name or None,
                account=bot.account,
            )
            line = f"{form.command} {text}".strip()
            if form.command == rules.command:
                line = f"/{text.removeprefix('/')}" if text else "/help"
            return NewMessage(
                MessageEvent(
                    text=line,
                    message_type=MessageType.COMMAND,
                    source=source,
                    message_id=f"command:{form.trigger_id}",
                )
            )
        if kind == INTERACTIVE:
            if not isinstance(body, dict) or body.get("type") != "block_actions":
                return None
            press = msgspec.convert(body, Press)
            ours = [action for action in press.actions if (action.action_id or "").startswith(ACTION)]
            if not ours:
                return None
            if not ours[0].value:
                raise Malformed("no value")
            card = structs.replace(
                press.message or Message(), ts=press.container.message_ts, user=press.user.id, bot_id=None
            )
            return ButtonPress(
                source=_place(Event(channel=press.channel.id), card, bot, Rules()),
                value=ours[0].value,
                message_id=card.ts,
                press_id=press.trigger_id,
            )
        event = body.get("event") if isinstance(body, dict) else None
        if not isinstance(event, dict):
            raise Malformed("no event")
        if event.get("type") not in ("message", "app_mention") or event.get("subtype") not in _READ:
            return None
        return _event(msgspec.convert(event, Event), bot, rules)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Malformed(f"a request from Slack has an unknown form: {error}") from error


def is_ts(value: object) -> bool:
    """Return whether a value is the id of a Slack message."""
    return isinstance(value, str) and _TS.fullmatch(value) is not None


def signature(secret: str, stamp: str, body: bytes) -> str:
    """Return the signature that Slack computes for a request."""
    signed = b"v0:" + stamp.encode() + b":" + body
    return "v0=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def is_signed(secret: str, headers: Mapping[str, str], body: bytes, *, now: int) -> bool:
    """Return whether Slack signed a request within the last five minutes."""
    stamp = headers.get("x-slack-request-timestamp", "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        return False
    given_data = headers.get("x-slack-signature", "").encode()
    right = hmac.compare_digest(signature(secret, stamp, body).encode(), given_data)
    return right and abs(now // 1000 - int(stamp)) <= REPLAY_WINDOW_S


def _each(parts: Sequence[Json] | None, kind: type[S], name: str) -> tuple[list[S], tuple[str, ...]]:
    """Return the parsed parts, and `name` once for each part that cannot be parsed."""
    items: list[S] = []
    for part in parts or ():
        try:
            items.append(msgspec.convert(part, kind))
        except msgspec.ValidationError:
            continue
    return items, (name,) * (len(parts or ()) - len(items))


def _files(parts: Json) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
    """Return the files of a message, and a name for each file that Slack does not provide."""
    name = "a file that Slack does not provide"
    files, unread = _each(parts if isinstance(parts, list | None) else [parts], File, name)
    media = tuple(attachment for file in files if (attachment := file.as_media()) is not None)
    return media, (*unread, *(name,) * (len(files) - len(media)))


def _event(event: Event, bot: Bot, rules: Rules) -> Update | None:
    before = event.previous_message
    if event.subtype == "message_deleted" or (
        event.subtype == "message_changed" and event.message and event.message.subtype == "tombstone"
    ):
        gone = event.deleted_ts or (event.message.ts if event.message else None)
        if gone is None:
            raise Malformed("deleted_ts in an event from Slack is not the id of a message")
        known_message = structs.replace(before or Message(), ts=gone)
        return None if bot.wrote(known_message) else Deletion(_place(event, known_message, bot, rules), gone)
    if event.subtype == "message_changed":
        if (changed := event.message) is None:
            raise Malformed("no message")
        is_same = before is not None and changed.same_words(before)
        if bot.wrote(changed) or changed.subtype not in _SPOKEN or is_same:
            return None
        return Edit(_spoken(event, changed, bot, rules))
    if event.subtype not in _SPOKEN or bot.wrote(event):
        return None
    return NewMessage(_spoken(event, event, bot, rules))


def _place(event: Event, message: Message, bot: Bot, rules: Rules) -> SessionSource:
    """Return the chat, thread and author of a message."""
    root = message.thread_ts
    thread = root if root != message.ts else None
    is_dm = _is_dm(event.channel, event.channel_type)
    if rules.reply_in_threads and not is_dm:
        thread = root or message.ts
    return SessionSource(
        platform=Platform.SLACK,
        chat_id=event.channel,
        chat_type="dm" if is_dm else "thread" if thread else "channel",
        user_id=message.user or message.bot_id or None,
        thread_id=thread,
        account=bot.account,
        is_bot=bool(message.bot_id),
    )


def _is_dm(channel: str, kind: str | None) -> bool:
    return kind == "im" or (kind is None and channel.startswith("D"))


def _spoken(event: Event, message: Message, bot: Bot, rules: Rules) -> MessageEvent:
    source, ts = _place(event, message, bot, rules), message.ts
    if ts is None or source.user_id is None:
        raise Malformed("a message from Slack has no ts or no user")
    blocks, unread = blocks_text(message.blocks or ())
    shared, unknown = message.read_attachments()
    own = [escape(shared.words) for shared in shared if not shared.is_foreign]
    words = message.text or ""
    if message.bot_id or not words:  # the text of a program's message only summarises the blocks
        words = "\n\n".join(dict.fromkeys(part for part in (blocks or words, *own) if part))
    text, mentioned = without_mention(words, bot.user_id)
    media, gone = _files(message.files)
    for item in shared:
        files, missing = _files(item.files)
        media += Attachment.foreign(files) if item.is_foreign else files
        gone += missing
    seconds, _, fraction = ts.partition(".")
    is_dm = source.chat_type == "dm"
    made = MessageEvent(
        text=from_slack(text),
        message_type=media[0].kind if media else MessageType.TEXT,
        source=source,
        message_id=ts,
        media=media,
        reply_to_message_id=message.thread_ts if message.thread_ts != ts else None,
        forwarded=tuple(
            Forwarded(text=shared.words, author=shared.author) for shared in shared if shared.is_foreign
        ),
        unread=(*unread, *gone, *unknown),
        timestamp=int(seconds) * 1000 + int(fraction[:3].ljust(3, "0")),
        metadata={} if source.thread_id is None or is_dm else {"thread_root": source.thread_id},
        addressed=is_dm or mentioned or message.parent_user_id == bot.user_id,
    )
    if not media and made.is_command():
        made.message_type = MessageType.COMMAND
    return made


def said_in_thread(told: Json) -> tuple[str, str] | None:
    """Return the id of an earlier message in a thread, and a line with its author and text.

    The line is empty if the message has no text. Return None if `told` is not a message.
    """
    try:
        message = msgspec.convert(storable_json(told), Message)
    except (msgspec.ValidationError, RecursionError):
        return None
    if message.ts is None:
        return None
    blocks, _ = blocks_text(message.blocks or ())
    shared, _ = message.read_attachments()
    files, _ = _each(message.files if isinstance(message.files, list) else (), File, "")
    parts = [message.text or blocks, *(escape(shared.words) for shared in shared if not shared.is_foreign)]
    parts += [escape(f"(forwards {shared.author}: {shared.words})") for shared in shared if shared.is_foreign]
    parts += [f"(file {file.name or ''})" for file in files]
    text = " ".join(from_slack(" ".join(part for part in parts if part)).split())[:_MAX_EARLIER_LENGTH]
    who = message.username or message.user or message.bot_id or "somebody"
    return message.ts, f"{who}: {text}" if text else ""


# Convert outgoing messages to Slack's form, and Slack's responses to results.


UNREACHABLE: Final = "unreachable"
ANSWER_LOST: Final = "answer_lost"
MAX_WAIT_MS: Final = 3_600_000
TO_WRITE: Final = "chat:write"
TO_REACT: Final = "reactions:write"
TO_READ: Final = frozenset(
    {"app_mentions:read", "channels:history", "commands", "groups:history", "im:history", "mpim:history"}
)

AS_WANTED: Final = frozenset({"already_reacted", "no_reaction"})
"""Error codes after which nothing need be done: the reaction exists already, or is removed already."""
TOKEN_REFUSED: Final = frozenset(
    {"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"}
)
"""Error codes after which a person must provide another token."""

_KINDS: Final[Mapping[SendErrorKind, frozenset[str]]] = {
    SendErrorKind.TOO_LONG: frozenset({"msg_too_long", "msg_blocks_too_long"}),
    SendErrorKind.BAD_FORMAT: frozenset(
        {
            "invalid_blocks",
            "invalid_blocks_format",
            "invalid_attachments",
            "invalid_arguments",
            "no_text",
            "too_many_attachments",
        }
    ),
    SendErrorKind.NOT_FOUND: frozenset(
        {
            "channel_not_found",
            "file_not_found",
            "message_not_found",
            "thread_not_found",
            "user_not_found",
            "users_not_found",
        }
    ),
    SendErrorKind.RATE_LIMITED: frozenset({"ratelimited", "rate_limited"}),
    SendErrorKind.TRANSIENT: frozenset(
        {UNREACHABLE, "service_unavailable", "request_timeout", "team_added_to_org"}
    ),
    # After the first two codes, Slack may have performed the call. The others mean that the key was used
    # before.
    SendErrorKind.UNKNOWN: frozenset(
        {
            ANSWER_LOST,
            "fatal_error",
            "internal_error",
            "duplicate_channel_not_found",
            "duplicate_message_not_found",
        }
    ),
}
_KIND_OF: Final = {code: kind for kind, codes in _KINDS.items() for code in codes}
_MARKUP: Final = frozenset(
    {"invalid_blocks", "invalid_blocks_format", "invalid_attachments", "invalid_arguments"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why a call to Slack failed."""

    code: str
    kind: SendErrorKind
    retry_after_ms: int | None = None
    needed: str | None = None
    """The missing scope."""

    @property
    def is_of_markup(self) -> bool:
        """Whether Slack may accept the text without markup."""
        return self.code in _MARKUP

    def describe(self) -> str:
        """Return a short description that does not quote the request."""
        return f"{self.code}: the app lacks the scope {self.needed}" if self.needed else self.code

    def as_result(self) -> SendResult:
        """Convert the refusal to the result of sending a message."""
        return SendResult.failed(self.kind, f"slack: {self.describe()}", retry_after_ms=self.retry_after_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response of Slack's Web API."""

    body: Mapping[str, Any] = field(default_factory=dict)
    scopes: frozenset[str] | None = None
    """The scopes of the token, or None if Slack does not report them."""
    refusal: Refusal | None = None

    def word(self, name: str) -> str:
        """Return the text in a field of the body, or "" if the field is missing."""
        value = self.body.get(name)
        return value if isinstance(value, str) else ""


def build_refusal(code: str, *, retry_after_ms: int | None = None, needed: str | None = None) -> Refusal:
    """Return the refusal for an error code of Slack.

    An unknown error code counts as a permanent failure.
    """
    kind = _KIND_OF.get(code, SendErrorKind.FORBIDDEN)
    return Refusal(code=code, kind=kind, retry_after_ms=retry_after_ms, needed=needed)


def read_answer(status: int, headers: Mapping[str, str], raw: bytes) -> Answer:
    """Parse an HTTP response of Slack's Web API.

    The status 503 means that Slack did nothing. After an invalid response or a server error with another
    status, the outcome of the call is unknown.
    """
    header = headers.get("retry-after")
    wait: int | None
    if header is None or not (header.isascii() and header.isdigit()):
        wait = None
    else:
        wait = min(int(header[:9]) * 1000, MAX_WAIT_MS)
    if status == 429:
        return Answer(refusal=build_refusal("ratelimited", retry_after_ms=wait))
    if status == 503:
        return Answer(refusal=build_refusal("service_unavailable", retry_after_ms=wait))
    if status >= 500:
        return Answer(refusal=build_refusal(ANSWER_LOST))
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("ok"), bool):
        return Answer(refusal=build_refusal(ANSWER_LOST if status < 400 else f"http_{status}"))
    given_header = headers.get("x-oauth-scopes")
    scopes = (
        None
        if given_header is None
        else frozenset(part.strip() for part in given_header.split(",") if part.strip())
    )
    if body["ok"]:
        return Answer(body=body, scopes=scopes)
    needed = body.get("needed")
    refusal = build_refusal(
        str(body.get("error") or "refused")[:64],
        retry_after_ms=wait,
        needed=needed[:200] if isinstance(needed, str) else None,
    )
    return Answer(body=body, scopes=scopes, refusal=refusal)


def refuse(answer: Answer, what: str, remedy: str) -> None:
    """Raise an error if Slack refused a call that `connect` made.

    Raises:
        ConfigError: A person must correct the configuration.
        ServerUnavailable: The refusal may be temporary.
    """
    refusal = answer.refusal
    if refusal is None:
        return
    if refusal.kind.may_pass:
        raise ServerUnavailable(
            f"Slack cannot be reached: {refusal.code}",
            remedy="postroom retries",
            details={"retry_after_ms": refusal.retry_after_ms},
        )
    if refusal.needed:
        raise ConfigError(
            f"the {what} lacks the scope {refusal.needed}", value=refusal.needed, remedy=_give(refusal.needed)
        )
    kind = CredentialRefused if refusal.code in TOKEN_REFUSED else ConfigError
    raise kind(f"Slack rejected the {what}: {refusal.code}", remedy=remedy)


def check_scopes(scopes: frozenset[str] | None) -> None:
    """Check that a token has the scopes to read and write messages.

    Raises:
        ConfigError: A required scope is missing. The error names it.
    """
    if scopes is None:
        return
    if TO_WRITE not in scopes:
        raise ConfigError(f"the bot token lacks the scope {TO_WRITE}", value=TO_WRITE, remedy=_give(TO_WRITE))
    if not scopes & TO_READ:
        wanted = ", ".join(sorted(TO_READ))
        raise ConfigError(
            f"the bot token has no scope for reading messages; it needs one of {wanted}",
            remedy=_give("im:history"),
        )
    for scope in sorted({"files:read", "files:write", TO_REACT} - scopes):
        _LOG.warning("slack.scope_missing", scope=scope)


def _give(scope: str) -> str:
    return f"add the scope {scope} in the settings of the Slack app, and install the app again"


MAX_TEXT_LENGTH: Final = 40_000
"""Maximum characters of a message. Slack truncates longer messages silently."""
MAX_EDIT_LENGTH: Final = 4_000
"""Maximum bytes of text in an edit. A longer text is sent in blocks."""
MAX_BLOCKS_LENGTH: Final = 12_000
"""Maximum characters of all blocks together. Slack accepts a few hundred more, but does not document this."""
MAX_SECTION_LENGTH: Final = 3_000
PIECE: Final = 2_500
"""Maximum characters of Markdown in a section. A section that entities make too long is cut again."""
MAX_LABEL_LENGTH: Final = 75
BUTTONS_A_ROW: Final = 25
_SUMMARY: Final = 500


def card_blocks(card: Card) -> list[dict[str, Any]]:
    """Return the blocks of a card: the text, then the buttons."""
    blocks = _sections(card.text)
    for first in range(0, len(card.buttons), BUTTONS_A_ROW):
        elements = [
            {
                "type": "button",
                "action_id": f"{ACTION}{index}",
                "text": {"type": "plain_text", "text": button.label or "…"},
                "value": button.value,
            }
            for index, button in enumerate(card.buttons[first : first + BUTTONS_A_ROW], start=first)
        ]
        blocks.append({"type": "actions", "elements": elements})
    return blocks


def card_body(card: Card) -> dict[str, Any]:
    """Return the request body for a card.

    The field `text` is for notifications and for clients that cannot show blocks.
    """
    return {"text": _short(card.text), "blocks": card_blocks(card)}


def edit_body(markdown: str) -> dict[str, Any]:
    """Return the request body for an edit.

    A text that is too long for a plain edit is split into blocks.
    """
    text = to_mrkdwn(markdown)
    if len(text.encode()) <= MAX_EDIT_LENGTH:
        return {"text": text, "blocks": []}
    return {"text": _short(markdown), "blocks": _sections(markdown)}


def blocks_fit(blocks: list[dict[str, Any]]) -> bool:
    """Return whether the text in the blocks is within Slack's limit."""
    return (
        sum(len(block["text"]["text"]) for block in blocks if block["type"] == "section") <= MAX_BLOCKS_LENGTH
    )


def _short(markdown: str) -> str:
    text = to_mrkdwn(markdown)
    return text if len(text.encode()) <= MAX_EDIT_LENGTH else f"{escape(markdown[:_SUMMARY])}…"


def _sections(markdown: str) -> list[dict[str, Any]]:
    """Split Markdown into sections that Slack does not collapse."""
    pieces = split(markdown, limit=PIECE, unit=LengthUnit.CHARACTERS)
    texts: list[str] = []
    for piece in pieces:
        # Entities may have made the text too long. Cut it at line ends if possible, and never in an entity.
        rest = to_mrkdwn(piece)
        while len(rest) > MAX_SECTION_LENGTH:
            cut = rest.rfind("\n", 1, MAX_SECTION_LENGTH)
            if cut < 0:
                entity = rest.rfind("&", MAX_SECTION_LENGTH - 5, MAX_SECTION_LENGTH)
                cut = entity if entity > 0 else MAX_SECTION_LENGTH
            texts.append(rest[:cut])
            rest = rest[cut:].removeprefix("\n")
        texts.append(rest)
    return [
        {"type": "section", "expand": True, "text": {"type": "mrkdwn", "text": text}}
        for text in texts
        if text.strip()
    ]


QUICKLY: Final = 4_000
"""Maximum characters of a text that is converted on the event loop. A longer text needs a thread."""
Given = TypeVar("Given")
Made = TypeVar("Made")
_KEYS: Final = UUID("6f8b6a0e-3f0e-4c55-9a54-2f1d8a1b7c10")


def in_thread(thread_id: object) -> dict[str, str]:
    """Return the fields that put a message into a thread, or no fields for an invalid thread id."""
    return {"thread_ts": str(thread_id)} if is_ts(thread_id) else {}


def build_dedupe_field(told: Metadata) -> dict[str, str]:
    """Return the field by which Slack recognises a repeated message. Equal keys have equal values."""
    key = told.get("dedupe_key")
    return {"client_msg_id": str(uuid5(_KEYS, key))} if isinstance(key, str) and key else {}


def storable_card(card: Card) -> Card:
    """Return a card whose texts can be sent to Slack."""
    return Card(
        text=storable(card.text),
        buttons=tuple(Button(label=storable(button.label), value=button.value) for button in card.buttons),
    )


async def off_loop(work: Callable[[Given], Made], given: Given, length: int) -> Made:
    """Call a pure function on a text, and use a thread for a long text."""
    return work(given) if length <= QUICKLY else await asyncio.to_thread(work, given)


async def convert_markdown(content: str) -> str:
    """Convert Markdown to Slack's dialect, and use a thread for a long text."""
    return await off_loop(to_mrkdwn, storable(content), len(content))


def convert_response(answer: Answer, *, nothing_done: bool = False) -> SendResult:
    """Convert a response of the Web API to the result of sending a message.

    If `nothing_done` is true, a call with an unknown outcome may be repeated.
    """
    refusal = answer.refusal
    if refusal is None:
        return SendResult.sent(answer.word("ts") or None)
    if nothing_done and refusal.kind is SendErrorKind.UNKNOWN:
        return replace(refusal, kind=SendErrorKind.TRANSIENT).as_result()
    return refusal.as_result()


# The endpoint to which Slack sends signed events, slash commands and button presses. Nothing is parsed before
# the signature of the raw body is verified. The answer is 200 only if the request was accepted. If the
# request could not be stored, the answer is 503, and Slack sends events again.


LARGEST_BODY: Final = 1024 * 1024
MAX_FIELDS: Final = 100


class SlackReceiver:
    """Answers requests from Slack, and processes accepted requests in order of arrival."""

    def __init__(
        self,
        secret: str,
        clock: Clock,
        *,
        is_taken: Callable[[Callable[[], Awaitable[None]]], Awaitable[bool]],
        take: Callable[[str, Json], Awaitable[None]],
        take_unreadable: Callable[[bytes, str], Awaitable[None]],
        refused: Callable[[str], None],
    ) -> None:
        """Create the receiver.

        `is_taken` processes a request, and returns whether the request may be acknowledged.
        """
        self._secret = secret
        self._clock = clock
        self._is_taken = is_taken
        self._take = take
        self._take_unreadable = take_unreadable
        self._refused = refused
        self._in_order = asyncio.Lock()

    async def answer(self, request: Request) -> Response:
        """Answer a request with the status 200, 401, 413 or 503.

        The status 401 means that the request is too old or not signed by Slack. The status 503 means that the
        request was not stored.
        """
        try:
            body = await bounded_body(request, LARGEST_BODY)
        except ClientDisconnect:
            return Response(status_code=400)
        if body is None:
            self._refused("too large")
            return Response(status_code=413)
        if not is_signed(self._secret, request.headers, body, now=self._clock.now()):
            self._refused("the signature of the request is missing, wrong or too old")
            return Response(status_code=401)
        try:
            content_type = request.headers.get("content-type", "")
            kind: str
            payload: Mapping[str, Any]
            if content_type.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
                kind, payload = EVENTS, _object(body)
            else:
                try:
                    fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
                except ValueError:
                    raise Malformed("the form in a request from Slack cannot be read") from None
                form = {name: values[0] for name, values in fields.items()}
                if "payload" in form:
                    kind, payload = INTERACTIVE, _object(form["payload"])
                else:
                    kind, payload = COMMANDS, form
        except Malformed as error:
            # In a form, the characters of secrets are percent-encoded.
            return await self._take_in_order(
                partial(self._take_unreadable, unquote_to_bytes(body), error.message)
            )
        if kind == EVENTS and payload.get("type") == "url_verification":
            return PlainTextResponse(str(payload.get("challenge", ""))[:1_000])
        return await self._take_in_order(partial(self._take, kind, payload))

    async def _take_in_order(self, take: Callable[[], Awaitable[None]]) -> Response:
        async def in_turn() -> None:
            async with self._in_order:
                await take()

        return Response() if await self._is_taken(in_turn) else Response(status_code=503)


def _object(text: str | bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("not JSON") from None
    if not isinstance(document, dict):
        raise Malformed("a request from Slack is not a JSON object")
    return document


class SlackOptions(Rules, frozen=True, kw_only=True):
    """The settings in the table `[platforms.slack]`.

    `token` is the token of the bot, and `api_key` is the token of the app.
    """

    ALSO: ClassVar = {"app_token": "api_key"}
    signing_secret: Secret | None = None
    """The secret that verifies requests from Slack. Without the secret, there is no HTTP route for Slack."""
    base_url: str = "https://slack.com/api"
    """The address of the Web API. Plain http is allowed only on loopback."""
    unfurl: bool = False
    """Whether Slack shows previews of the links in the bot's messages."""
    proxy: Proxy | None = None
    """An HTTP proxy for connections to Slack."""
    timeout_ms: Annotated[int, Meta(ge=1, le=600_000)] = 30_000
    """The time limit for a call, in milliseconds."""

    def __post_init__(self) -> None:
        refuse_address("base_url", self.base_url)
        token, app_token = self.token, self.api_key
        if not token or not token.strip() or token.startswith("xapp-"):
            raise ConfigError(
                "Slack requires a bot token",
                remedy=secret_remedy("token", "the token that begins with xoxb-"),
            )
        if app_token is not None and (not app_token.strip() or app_token.startswith("xoxb-")):
            raise ConfigError(
                "the token for Socket Mode is not an app token",
                remedy=secret_remedy("app_token", "the token that begins with xapp-"),
            )
        if app_token is None and self.signing_secret is None:
            raise ConfigError(
                "Slack has no way to reach this server",
                remedy="set `app_token_env` or `app_token_file` (Socket Mode), or `signing_secret_env` or"
                " `signing_secret_file` (HTTP)",
            )

    def api(self, token: str) -> "SlackApi":
        """Return a client of the Web API for a bot token.

        Call `api` outside the event loop, because the client loads libraries and certificates.

        Raises:
            MissingExtra: A library is not installed.
        """
        from postroom.gateway.platforms import slack_library  # noqa: F401 - to be loaded here and not later
        from postroom.gateway.platforms.slack_library import Network, SlackApi, tls_context

        network = Network(
            base_url=self.base_url,
            timeout_ms=self.timeout_ms,
            proxy=self.proxy,
            tls=tls_context() if self.base_url.startswith("https:") else None,
        )
        return SlackApi(network, token)


MAX_IN_THREAD: Final = 100
"""Maximum number of earlier messages of a thread that are added to a mention."""
THREAD_PAGE: Final = 200
"""Maximum messages in a page of a thread. Slack returns the oldest first, and allows some apps only 15."""
MAX_THREAD_PAGES: Final = 5
MAX_THREADS: Final = 10_000
NOTE: Final = 1_000
"""Maximum characters of a note to one person."""

Keep = Callable[[Json | bytes, Callable[[], Awaitable[None]]], Awaitable[None]]
"""The type of `take_in` and `take_until_kept`, which process an update."""


class SlackAdapter(BasePlatformAdapter):
    """Connects one bot to one Slack workspace."""

    platform = Platform.SLACK
    options = SlackOptions
    capabilities = ChannelCapabilities(
        # Slack cuts a message at 40,000 characters, and allows about fifty edits a minute in total.
        limit=39_000,
        edits=True,
        threads=True,
        reactions=True,
        media=FILES,
        min_edit_interval_ms=1_200,
        # docs.slack.dev/apis/web-api/rate-limits states one message a second in a channel, and a limit for
        # each tier of methods.
        rates=RateLimits(
            chat=Rate(1, 1_000),
            methods={
                "chat.update": Rate(50, 60_000),
                "chat.delete": Rate(50, 60_000),
                "reactions.add": Rate(50, 60_000),
                "reactions.remove": Rate(20, 60_000),
                "files.completeUploadExternal": Rate(100, 60_000),
            },
        ),
    )

    def __init__(
        self, config: SlackOptions, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = config
        self._bot: Bot | None = None
        self._api: SlackApi | None = None
        self._socket: SlackSocket | None = None
        self._receiver: SlackReceiver | None = None
        self._threads_read: OrderedDict[tuple[str, str], None] = OrderedDict()
        """The threads whose messages an agent has read, keyed by channel and first message."""
        if self._options.signing_secret:
            self._receiver = SlackReceiver(
                self._options.signing_secret,
                self._clock,
                is_taken=self._is_taken,
                take=partial(self._take, keep=self.take_in),
                take_unreadable=partial(self._take_unreadable, keep=self.take_in),
                refused=self._refused,
            )

    @property
    def account(self) -> str:
        """The ids of the team and of the bot. `connect` sets the value."""
        return "default" if self._bot is None else self._bot.account

    def lock_identity(self) -> str | None:
        """Return the app's token, which only one process on a machine may use."""
        return self.config.api_key

    def routes(self) -> Sequence[BaseRoute]:
        """Return the route for events, slash commands and interactivity."""
        return () if self._receiver is None else (Route("/slack", self._receiver.answer, methods=["POST"]),)

    # Connecting and disconnecting.

    def load_libraries(self) -> None:
        """Import the libraries for requests and for Socket Mode."""
        importlib.import_module("postroom.gateway.platforms.slack_library")

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Check the tokens and the scopes, and start to receive events."""
        await self.disconnect()
        if self._tasks.closed:
            self._tasks = Tasks(f"channel {self.platform.value}")
        self.liveness.state = AdapterState.RECONNECTING if is_reconnect else AdapterState.CONNECTING
        self.liveness.error_code = self.liveness.error = None
        self.liveness.retryable = True
        connected = False
        try:
            self._api = await asyncio.to_thread(self._options.api, self.config.token or "")
            answer = await self._call("auth.test", {}, form=True)
            refuse(
                answer,
                "bot token",
                secret_remedy(
                    "token", "the bot token under OAuth & Permissions in the settings of the Slack app"
                ),
            )
            user, team = answer.word("user_id"), answer.word("team_id")
            if not user or not team:
                raise ServerUnavailable("Slack did not return the bot's user id", remedy="")
            check_scopes(answer.scopes)
            self.may_react = answer.scopes is None or TO_REACT in answer.scopes
            self._bot = Bot(team_id=team, user_id=user, bot_id=answer.word("bot_id") or None)
            if self.config.api_key:
                from postroom.gateway.platforms.slack_library import Dialing, Hooks, SlackSocket

                hooks = Hooks(
                    address=self._socket_address,
                    take=partial(self._take, keep=self.take_until_kept),
                    heard=self._heard,
                    take_unreadable=partial(self._take_unreadable, keep=self.take_until_kept),
                    stands=self._stands,
                    failed=self._failure,
                )
                dialing = Dialing(tls=self._api.network.tls, proxy=self._api.network.proxy)
                self._socket = SlackSocket(hooks, tasks=self._tasks, timer=self._timer, dialing=dialing)
                await self._socket.open()
            self.liveness.state = AdapterState.CONNECTED
            connected = True
        finally:
            if not connected:
                await self.disconnect()
        self._heard()

    async def disconnect(self) -> None:
        """Stop receiving within a few seconds. A second call has no effect."""
        self.liveness.state = AdapterState.STOPPED
        await self._end_receiving()
        api, self._api = self._api, None
        if api is not None:
            await api.close()

    async def _end_receiving(self) -> None:
        await self._tasks.close()
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _socket_address(self) -> str:
        from postroom.gateway.platforms.slack_library import is_of_platform

        await self._until_ours()
        answer = await self._call("apps.connections.open", {}, form=True, token=self.config.api_key)
        refuse(answer, "app token", secret_remedy("app_token", "a token with the scope connections:write"))
        address = answer.word("url")
        if not is_of_platform(address, self._options.base_url, any_port=True):
            raise ServerUnavailable(
                "Slack returned the address of a socket that does not belong to Slack", remedy=""
            )
        return address

    def _stands(self, state: AdapterState, why: str) -> None:
        self.liveness.state = state
        self.liveness.error_code, self.liveness.error = ("unreachable", why) if why else (None, None)

    def _failure(self, code: str, message: str, retryable: bool) -> None:
        _LOG.error("slack.failed", code=code, why=message)
        self._fail(code, message, retryable=retryable)

    # Incoming requests.

    async def _is_taken(self, work: Callable[[], Awaitable[None]]) -> bool:
        return self.liveness.is_reachable and await self.is_taken(work)

    def _refused(self, why: str) -> None:
        self.liveness.refused += 1
        _LOG.warning("slack.refused", what="request", why=why)

    async def _take_unreadable(self, raw: bytes, why: str, *, keep: Keep) -> None:
        """Store unreadable data from Slack as a dead letter."""

        async def read() -> None:
            raise Malformed(why)

        await keep(raw, read)

    async def _take(self, kind: str, payload: Json, *, keep: Keep) -> None:
        """Process an envelope from Slack with `take_in` or `take_until_kept`."""
        if self._bot is not None:
            fields = payload if isinstance(payload, dict) else {"payload": payload}
            await keep({"kind": kind, **fields}, partial(self._hand_over, kind, payload, self._bot))

    async def _hand_over(self, kind: str, payload: Json, bot: Bot) -> None:
        update = read(kind, payload, bot, self._options)
        if update is None:
            return
        self._heard()
        if isinstance(update, NewMessage):
            await self._bring_thread(update.event)
            await self.handle_message(update.event)
            self._note_thread(update.event.source)
        elif self._inbound is None:
            return
        elif isinstance(update, Edit):
            await self._inbound.edited(update.event)
        elif isinstance(update, Deletion):
            await self._inbound.deleted(update.source, update.message_id)
        elif isinstance(update, ButtonPress):
            note = await self._inbound.pressed(update)
            if note.strip():
                self._tasks.start(self._show_note(update, note), name="note")

    async def _bring_thread(self, event: MessageEvent) -> None:
        """Add the earlier messages of a thread to an event that mentions the bot in the thread."""
        source, root = event.source, event.metadata.get("thread_root")
        if source is None or root is None or root == event.message_id or not event.addressed:
            return
        if (source.chat_id, root) in self._threads_read or event.is_command():
            return
        fields = {root: ""}  # each page from Slack repeats the first message of the thread
        arguments = {"channel": source.chat_id, "ts": root, "latest": event.message_id, "limit": THREAD_PAGE}
        is_whole = False
        for _ in range(MAX_THREAD_PAGES):
            answer = await self._call("conversations.replies", arguments, form=True)
            page, following = answer.body.get("messages"), answer.body.get("response_metadata")
            if answer.refusal is not None or not isinstance(page, list):
                _LOG.info(
                    "slack.thread_not_read", why=None if answer.refusal is None else answer.refusal.code
                )
                break
            fields |= dict(filter(None, map(said_in_thread, page)))
            cursor = following.get("next_cursor") if isinstance(following, dict) else None
            if not cursor:
                is_whole = not answer.body.get("has_more")
                break
            arguments["cursor"] = cursor
        fields.pop(event.message_id or "", None)
        first, *others = [words for words in fields.values() if words] or [""]
        if not is_whole:
            event.unread += (
                "the later messages of this thread" if first else "the earlier messages of this thread",
            )
        if len(others) >= MAX_IN_THREAD:
            event.unread += ("older messages of this long thread",)
        if first:
            lines = [first, *others[1 - MAX_IN_THREAD :]]
            event.metadata["earlier"] = {"said": lines, "mark": token_hex(4)}

    def _note_thread(self, source: SessionSource | None) -> None:
        if source is not None and source.thread_id is not None:
            self._threads_read[source.chat_id, source.thread_id] = None
            if len(self._threads_read) > MAX_THREADS:
                self._threads_read.popitem(last=False)

    def remember(self, source: SessionSource, message_id: str) -> None:
        """Record that an agent has read the messages of a thread."""
        self._note_thread(source)

    async def _show_note(self, press: ButtonPress, note: str) -> None:
        """Show a note only to the person who pressed the button."""
        body = {
            "channel": press.source.chat_id,
            "user": press.source.user_id,
            "text": escape(storable(note)[:NOTE]),
            **in_thread(press.source.thread_id),
        }
        answer = await self._call("chat.postEphemeral", body)
        if answer.refusal is not None:
            _LOG.info("slack.note_not_shown", why=answer.refusal.describe())

    # Outgoing messages.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send a message."""
        if not content.strip():
            return SendResult.failed(SendErrorKind.BAD_FORMAT, "the message is empty")
        fields = metadata or {}
        body = {
            "channel": chat_id,
            "text": await convert_markdown(content),
            "unfurl_links": self._options.unfurl,
            "unfurl_media": self._options.unfurl,
            **self._answering(chat_id, reply_to, fields),
            **build_dedupe_field(fields),
        }
        answer = await self._say("chat.postMessage", body, metadata)
        if answer.refusal is not None and answer.refusal.is_of_markup:
            plain = {**body, "text": escape(storable(content)), "mrkdwn": False}
            answer = await self._say("chat.postMessage", plain, metadata)
        return convert_response(answer)

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text and the buttons of a sent message.

        Slack accepts at most about 12,000 characters in an edit.
        """
        if not content.strip():
            return SendResult.failed(SendErrorKind.BAD_FORMAT, "the message is empty")
        plain = storable(content)
        body = {"channel": chat_id, "ts": message_id, **await off_loop(edit_body, plain, len(plain))}
        answer = await self._say("chat.update", body, metadata)
        if answer.refusal is not None and answer.refusal.is_of_markup:
            answer = await self._say("chat.update", {**body, "text": escape(plain), "blocks": []}, metadata)
        return convert_response(answer)

    async def delete_message(
        self, chat_id: str, message_id: str, metadata: Metadata | None = None
    ) -> SendResult:
        """Delete a sent message."""
        return convert_response(await self._say("chat.delete", {"channel": chat_id, "ts": message_id}))

    async def react(
        self,
        chat_id: str,
        message_id: str,
        metadata: Metadata | None = None,
        *,
        takes_back: str | None = None,
    ) -> SendResult:
        """Add or remove the bot's "seen" reaction to a message."""
        method = "reactions.remove" if takes_back else "reactions.add"
        if not is_ts(message_id):
            return SendResult.failed(
                SendErrorKind.NOT_FOUND, "a slash command is not a message, so it cannot get a reaction"
            )
        async with self._turn(method, None, metadata, gives_way=True) as turn:
            if turn.wait_ms:
                return SendResult.failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=turn.wait_ms)
            answer = await self._call(method, {"channel": chat_id, "timestamp": message_id, "name": "eyes"})
            if answer.refusal is not None and answer.refusal.kind is SendErrorKind.RATE_LIMITED:
                turn.refused(answer.refusal.retry_after_ms)
        code = "" if answer.refusal is None else answer.refusal.code
        self.may_react = self.may_react and code != "missing_scope"
        return SendResult.sent() if code in AS_WANTED else convert_response(answer)

    async def send_card(self, chat_id: str, card: Card, metadata: Metadata | None = None) -> SendResult:
        """Send a card with buttons.

        If Slack cannot show all buttons, the text lists the answers.
        """
        if any(len(button.label) > MAX_LABEL_LENGTH for button in card.buttons):
            return await super().send_card(chat_id, card, metadata)
        fields = metadata or {}
        body = {
            "channel": chat_id,
            **await off_loop(card_body, storable_card(card), len(card.text)),
            **self._answering(chat_id, None, fields),
            **build_dedupe_field(fields),
        }
        answer = await self._say("chat.postMessage", body, metadata)
        if answer.refusal is not None and answer.refusal.is_of_markup:
            return await super().send_card(chat_id, card, metadata)
        return convert_response(answer)

    async def update_card(
        self, chat_id: str, message_id: str, card: Card, metadata: Metadata | None = None
    ) -> SendResult:
        """Replace the text and the buttons of a card."""
        shown = await off_loop(card_body, storable_card(card), len(card.text))
        body = {"channel": chat_id, "ts": message_id, **shown}
        answer = await self._say("chat.update", body)
        if answer.refusal is not None and answer.refusal.is_of_markup:
            return await self.edit_message(chat_id, message_id, card.text, metadata)
        return convert_response(answer)

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Send a file. The result has no message id."""
        name = storable(attachment.name or "file")[:255]
        arguments = {"filename": name, "length": data.size}
        ticket = await self._call("files.getUploadURLExternal", arguments, form=True)
        if ticket.refusal is not None or self._api is None:
            return convert_response(ticket, nothing_done=True)
        try:
            put = await self._api.upload(ticket.word("upload_url"), data)
        except InvalidArgument as error:
            return SendResult.failed(SendErrorKind.FORBIDDEN, error.message)
        if put.refusal is not None:
            return convert_response(put, nothing_done=True)
        body: dict[str, Any] = {
            "files": [{"id": ticket.word("file_id"), "title": name}],
            "channel_id": chat_id,
            **in_thread((metadata or {}).get("thread_id")),
        }
        if caption:
            body["initial_comment"] = await convert_markdown(caption)
        answer = await self._say("files.completeUploadExternal", body, metadata)
        return SendResult.sent() if answer.refusal is None else convert_response(answer)

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield the bytes of a received file.

        Raises:
            InvalidArgument: The file is not stored at Slack. Nothing was fetched.
        """
        if self._api is None:
            raise ServerUnavailable("the Slack channel is not connected", remedy="")
        is_page = (attachment.mime or "").startswith("text/html")
        async with aclosing(self._api.fetch(attachment.ref, max_bytes=max_bytes, is_page=is_page)) as pieces:
            async for piece in pieces:
                yield piece

    async def _say(self, method: str, body: Mapping[str, Any], metadata: Metadata | None = None) -> Answer:
        too_long = len(body.get("text", "")) > MAX_TEXT_LENGTH  # Slack would truncate the text silently
        if too_long or not blocks_fit(body.get("blocks", [])):
            return Answer(refusal=build_refusal("msg_too_long"))
        chat = body.get("channel_id") or (body["channel"] if method == "chat.postMessage" else None)
        async with self._turn(method, chat, metadata) as turn:
            if turn.wait_ms:
                return Answer(refusal=build_refusal("ratelimited", retry_after_ms=turn.wait_ms))
            answer = await self._call(method, body)
            if answer.refusal is None:
                self._said()
            elif answer.refusal.kind is SendErrorKind.RATE_LIMITED:
                turn.refused(answer.refusal.retry_after_ms)
            return answer

    async def _call(
        self, method: str, body: Mapping[str, Any], *, form: bool = False, token: str | None = None
    ) -> Answer:
        """Call the Web API, and stop receiving if Slack refuses the bot's token."""
        if self._api is None:
            return Answer(refusal=build_refusal(UNREACHABLE))
        answer = await self._api.call(method, body, form=form, token=token)
        dead = answer.refusal is not None and answer.refusal.code in TOKEN_REFUSED and token is None
        if dead and self.liveness.is_reachable:
            self._failure("token_refused", "Slack no longer accepts the bot token", False)
            await self._end_receiving()
        return answer

    def _answering(self, chat_id: str, reply_to: str | None, told: Metadata) -> dict[str, str]:
        thread = in_thread(told.get("thread_id"))
        if thread or not self._options.reply_in_threads or chat_id.startswith("D"):
            return thread
        return in_thread(reply_to)
