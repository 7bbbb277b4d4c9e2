"""Slack's requests and answers as our values: pure functions from wire to `MessageEvent` and back.

    events_api       message, app_mention             ─▶ NewMessage
                     message_changed, message_deleted ─▶ Edit, Deletion
    slash_commands   /name args                       ─▶ NewMessage
    interactive      a button of ours                 ─▶ ButtonPress

Irrelevant events (joins, topics, our own messages, unfurled links) are None. A message has the same id, place
and sender whether it arrives as `message` or as `app_mention`. The latter does not contain the kind of
conversation, so every conversation other than a direct message is a channel.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from msgspec import Meta

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.messages import Json, storable
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import Attachment, ButtonPress, Forwarded, MessageEvent, MessageType
from postroom.gateway.platforms.slack_text import blocks_text, escape, from_slack, without_mention
from postroom.gateway.session import Platform, SessionSource

EVENTS: Final = "events_api"
COMMANDS: Final = "slash_commands"
INTERACTIVE: Final = "interactive"
KINDS: Final = (EVENTS, COMMANDS, INTERACTIVE)

ACTION: Final = "postroom:"
"""The prefix of our buttons' ids."""
REPLAY_WINDOW_S: Final = 300

_TS: Final = re.compile(r"\d{1,12}\.\d{1,9}")
_SPOKEN: Final = (None, "file_share", "thread_broadcast", "me_message", "bot_message")
_LONGEST_EARLIER: Final = 2_000
_GONE: Final = ("tombstone", "hidden_by_limit")


class Malformed(InvalidArgument):
    """The data cannot be understood; the message names the missing part and quotes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """Who we are."""

    team_id: str
    user_id: str
    bot_id: str | None = None

    @property
    def account(self) -> str:
        """The bot's permanent name: two bots never share it, in any team."""
        return f"{self.team_id}-{self.user_id}"


class Rules(PlatformConfig, frozen=True, kw_only=True):
    """How messages are read: which slash command stands before others; whether messages begin threads."""

    command: Annotated[str, Meta(pattern=r"^/[^/]+\Z", extra={"write": "a text such as /postroom"})] = (
        "/postroom"
    )
    """The slash command whose first word is the command: `/postroom stop` is `/stop`."""
    reply_in_threads: bool = False
    """Whether each message in a channel begins a thread, and so a separate session."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """Somebody said something."""

    event: MessageEvent


@dataclass(frozen=True, slots=True)
class Edit:
    """A message has other words now."""

    event: MessageEvent


@dataclass(frozen=True, slots=True)
class Deletion:
    """A message was deleted."""

    source: SessionSource
    message_id: str


Update = NewMessage | Edit | Deletion | ButtonPress


def read(kind: str, payload: Json, bot: Bot, rules: Rules) -> Update | None:
    """Return the update in a request, or None if it is irrelevant.

    Raises:
        Malformed: A required field is missing.
    """
    if not isinstance(payload, Mapping):
        raise Malformed("no payload")
    if kind == COMMANDS:
        return _command(payload, bot, rules)
    if kind == INTERACTIVE:
        return _press(payload, bot)
    event = _part(payload, "event")
    if event.get("type") not in ("message", "app_mention"):
        return None
    subtype = event.get("subtype")
    if subtype == "message_changed":
        return _changed(event, bot, rules)
    if subtype == "message_deleted":
        return _deleted(event, bot, rules)
    if subtype not in _SPOKEN or _is_ours(event, bot):
        return None
    return NewMessage(_spoken(event, event, bot, rules))


def is_ts(value: object) -> bool:
    """Return whether it is the id of a message."""
    return isinstance(value, str) and _TS.fullmatch(value) is not None


def signature(secret: str, stamp: str, body: bytes) -> str:
    """Return how Slack signs a request."""
    signed = b"v0:" + stamp.encode() + b":" + body
    return "v0=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def is_signed(secret: str, headers: Mapping[str, str], body: bytes, *, now: int) -> bool:
    """Return whether Slack sent this within the last five minutes; the body is not parsed before."""
    stamp = headers.get("x-slack-request-timestamp", "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        return False
    given = headers.get("x-slack-signature", "").encode()
    right = hmac.compare_digest(signature(secret, stamp, body).encode(), given)
    return right and abs(now // 1000 - int(stamp)) <= REPLAY_WINDOW_S


def _part(payload: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = payload.get(name)
    if not isinstance(found, Mapping):
        raise Malformed(f"no {name}")
    return found


def _word(payload: Mapping[str, Any], name: str) -> str:
    found = payload.get(name)
    if not isinstance(found, str) or not found.strip() or len(found) > 255:
        raise Malformed(f"no {name}")
    return _kept(found)


def _words(payload: Mapping[str, Any], name: str) -> str:
    """Return a text that may be missing, but not be anything else."""
    found = payload.get(name)
    if found is not None and not isinstance(found, str):
        raise Malformed(f"{name} is not text")
    return _kept(found or "")


def _kept(text: str) -> str:
    """Return the text without characters that a store refuses."""
    return storable(text).replace("\0", "")


def _ts(payload: Mapping[str, Any], name: str) -> str:
    found = payload.get(name)
    if not is_ts(found):
        raise Malformed(f"{name} is not the id of a message")
    return str(found)


def _milliseconds(ts: str) -> int:
    seconds, _, fraction = ts.partition(".")
    return int(seconds) * 1000 + int(fraction[:3].ljust(3, "0"))


def _is_ours(message: Mapping[str, Any], bot: Bot) -> bool:
    by_bot = bot.bot_id is not None and message.get("bot_id") == bot.bot_id
    return by_bot or message.get("user") == bot.user_id


def _place(event: Mapping[str, Any], message: Mapping[str, Any], bot: Bot, rules: Rules) -> SessionSource:
    """Return where a message stands, and who wrote it as far as it says."""
    channel = _word(event, "channel")
    ts = message.get("ts")
    root = _ts(message, "thread_ts") if message.get("thread_ts") else None
    thread = root if root != ts else None
    is_dm = _is_dm(channel, event.get("channel_type"))
    if rules.reply_in_threads and not is_dm:
        thread = root or (str(ts) if is_ts(ts) else None)
    spoke = message.get("user") or message.get("bot_id")
    return SessionSource(
        platform=Platform.SLACK,
        chat_id=channel,
        chat_type="dm" if is_dm else "thread" if thread else "channel",
        user_id=_kept(spoke) if isinstance(spoke, str) else None,
        thread_id=thread,
        account=bot.account,
        is_bot=bool(message.get("bot_id")),
    )


def _is_dm(channel: str, kind: object) -> bool:
    return kind == "im" or (kind is None and channel.startswith("D"))


def _spoken(event: Mapping[str, Any], message: Mapping[str, Any], bot: Bot, rules: Rules) -> MessageEvent:
    ts = _ts(message, "ts")
    source = _place(event, message, bot, rules)
    if source.user_id is None:
        raise Malformed("no user")
    blocks, unread = blocks_text(_listed(message, "blocks"))
    shared = [_shared(one) for one in _listed(message, "attachments")]
    words = _words(message, "text")
    if message.get("bot_id") or not words:  # a program's text is a summary of its blocks
        words = "\n\n".join(dict.fromkeys(part for part in (blocks or words, *_own(shared)) if part))
    text, mentioned = without_mention(words, bot.user_id)
    own, gone = _media(message)
    media = own + tuple(file for one in shared for file in one.media)
    root = message.get("thread_ts")
    made = MessageEvent(
        text=from_slack(text),
        message_type=media[0].kind if media else MessageType.TEXT,
        source=source,
        message_id=ts,
        media=media,
        reply_to_message_id=root if root and root != ts else None,
        forwarded=tuple(one.forwarded for one in shared if one.forwarded is not None),
        unread=(*unread, *gone, *(name for one in shared for name in one.gone)),
        timestamp=_milliseconds(ts),
        metadata={}
        if source.thread_id is None or source.chat_type == "dm"
        else {"thread_root": source.thread_id},
        addressed=source.chat_type == "dm" or mentioned or message.get("parent_user_id") == bot.user_id,
    )
    if not media and made.is_command():
        made.message_type = MessageType.COMMAND
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """An attachment of a message: another person's words, or a part of a program's own."""

    text: str = ""
    forwarded: Forwarded | None = None
    media: tuple[Attachment, ...] = ()
    gone: tuple[str, ...] = ()


def _listed(message: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = message.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, Sequence) else []


def _shared(attachment: Mapping[str, Any]) -> _Shared:
    inner = [block for one in _listed(attachment, "message_blocks") for block in _inner_blocks(one)]
    blocks, _ = blocks_text([*_listed(attachment, "blocks"), *inner])
    fields = (f"{one.get('title') or ''}: {one.get('value') or ''}" for one in _listed(attachment, "fields"))
    title, link = _words(attachment, "title"), _words(attachment, "title_link")
    named = f"[{title}]({link})" if title and link else title
    told = [_words(attachment, "pretext"), named, _words(attachment, "text") or blocks, *fields]
    text = from_slack("\n".join(one for one in told if one) or _words(attachment, "fallback"))
    media, gone = _media(attachment)
    if not (attachment.get("is_share") or attachment.get("is_msg_unfurl") or attachment.get("from_url")):
        return _Shared(text=text, media=media, gone=gone)
    author = _words(attachment, "author_name") or _words(attachment, "author_subname")
    author = author or _words(attachment, "service_name") or _words(attachment, "author_id")
    words = Forwarded(text=text, author=author or None)
    return _Shared(forwarded=words, media=Attachment.foreign(media), gone=gone)


def _inner_blocks(shared: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    message = shared.get("message")
    return _listed(message, "blocks") if isinstance(message, Mapping) else []


def _own(shared: Sequence[_Shared]) -> list[str]:
    return [escape(one.text) for one in shared if one.forwarded is None]


def said_in_thread(message: Mapping[str, Any]) -> str:
    """Return an earlier message of a thread as a line: its author and words; "" without words."""
    blocks, _ = blocks_text(_listed(message, "blocks"))
    shared = [_shared(one) for one in _listed(message, "attachments")]
    parts = [_words(message, "text") or blocks, *_own(shared)]
    parts += [
        escape(f"(forwards {one.forwarded.author}: {one.forwarded.text})") for one in shared if one.forwarded
    ]
    parts += [f"(file {_words(one, 'name')})" for one in _listed(message, "files")]
    said = " ".join(from_slack(" ".join(part for part in parts if part)).split())[:_LONGEST_EARLIER]
    who = message.get("username") or message.get("user") or message.get("bot_id") or "somebody"
    return f"{who}: {said}" if said else ""


def _media(message: Mapping[str, Any]) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
    """Return the files of a message, and a name for each file that cannot be fetched or has another form."""
    found: list[Attachment] = []
    files = message.get("files") or ()
    listed = files if isinstance(files, list | tuple) else [files]
    for file in listed:
        try:
            found.append(_attachment(file))
        except Malformed:
            continue
    return tuple(found), ("a file that Slack does not provide",) * (len(listed) - len(found))


def _attachment(file: object) -> Attachment:
    if not isinstance(file, Mapping) or file.get("mode") in _GONE:
        raise Malformed("no file")
    mime, size = _words(file, "mimetype"), file.get("size")
    kinds = {"image": MessageType.PHOTO, "video": MessageType.VIDEO, "audio": MessageType.AUDIO}
    kind = kinds.get(mime.partition("/")[0], MessageType.DOCUMENT)
    if file.get("subtype") == "slack_audio":
        kind = MessageType.VOICE
    return Attachment(
        kind=kind,
        ref=_words(file, "url_private_download") or _word(file, "url_private"),
        mime=mime or None,
        name=_words(file, "name") or None,
        size=size if isinstance(size, int) else None,
    )


def _changed(event: Mapping[str, Any], bot: Bot, rules: Rules) -> Edit | Deletion | None:
    """Slack reports `changed` also for an unfurled link, or a deleted first message of a thread."""
    message = _part(event, "message")
    if _is_ours(message, bot):
        return None
    if message.get("subtype") == "tombstone":
        return _deleted({**event, "deleted_ts": message.get("ts")}, bot, rules)
    before = event.get("previous_message")
    if message.get("subtype") not in _SPOKEN or (isinstance(before, Mapping) and _same(before, message)):
        return None
    return Edit(_spoken(event, message, bot, rules))


def _same(before: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    if (before.get("text") or "") == "" and before.get("blocks") != message.get("blocks"):
        return False
    return all((before.get(name) or None) == (message.get(name) or None) for name in ("text", "files"))


def _deleted(event: Mapping[str, Any], bot: Bot, rules: Rules) -> Deletion | None:
    gone = _ts(event, "deleted_ts")
    before = event.get("previous_message")
    known = dict(before) if isinstance(before, Mapping) else {}
    if _is_ours(known, bot):
        return None
    return Deletion(_place(event, {**known, "ts": gone}, bot, rules), gone)


def _command(form: Mapping[str, Any], bot: Bot, rules: Rules) -> NewMessage:
    """A slash command is not a chat message; the permanently unique id of its trigger replaces its id."""
    command, text = _word(form, "command"), from_slack(_words(form, "text")).strip()
    if not command.startswith("/"):
        raise Malformed("the command has no slash")
    channel = _word(form, "channel_id")
    is_dm = _is_dm(channel, None)
    own = command == rules.command
    source = SessionSource(
        platform=Platform.SLACK,
        chat_id=channel,
        chat_name=_words(form, "channel_name") or None,
        chat_type="dm" if is_dm else "channel",
        user_id=_word(form, "user_id"),
        user_name=_words(form, "user_name") or None,
        account=bot.account,
    )
    said = (f"/{text.removeprefix('/')}" if text else "/help") if own else f"{command} {text}".strip()
    return NewMessage(
        MessageEvent(
            text=said,
            message_type=MessageType.COMMAND,
            source=source,
            message_id=f"command:{_word(form, 'trigger_id')}",
        )
    )


def _press(payload: Mapping[str, Any], bot: Bot) -> ButtonPress | None:
    if payload.get("type") != "block_actions":
        return None
    actions = payload.get("actions")
    if not isinstance(actions, Sequence) or not all(isinstance(one, Mapping) for one in actions):
        raise Malformed("no actions")
    ours = [one for one in actions if str(one.get("action_id")).startswith(ACTION)]
    if not ours:
        return None
    channel, user = _part(payload, "channel"), _part(payload, "user")
    message = payload.get("message")
    card = _ts(_part(payload, "container"), "message_ts")
    told = {**(message if isinstance(message, Mapping) else {}), "ts": card, "user": _word(user, "id")}
    told.pop("bot_id", None)
    source = _place({"channel": channel.get("id")}, told, bot, Rules())
    press_id = payload.get("trigger_id")
    return ButtonPress(
        source=source,
        value=_word(ours[0], "value"),
        message_id=card,
        press_id=press_id if isinstance(press_id, str) else None,
    )
