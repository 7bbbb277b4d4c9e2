"""The source of a message, and the key of the session to which the message belongs."""

import re
from enum import StrEnum
from urllib.parse import quote

from msgspec.structs import asdict

from postroom.contracts.chat import InboundKey
from postroom.contracts.messages import Json
from postroom.contracts.people import ChatAddress
from postroom.contracts.records import Record

PREFIX = "agent"
_PLAIN = re.compile(r"[\w./@:-]*", re.ASCII)
"""Matches a part of a session key that needs no escaping."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""Matches a valid platform name, which has 1 to 32 characters."""
_MAIN = "main"
"""The name of `[agent]` in session keys."""


class Platform(StrEnum):
    """A chat platform, either built-in or provided by a plug-in, as in `Platform("zulip")`.

    Stored messages keep their platform when the plug-in is removed. `gateway.toml` decides which platforms
    are connected.
    """

    LOCAL = "local"
    TELEGRAM = "telegram"
    DISCORD = "discord"
    SLACK = "slack"
    MATRIX = "matrix"
    EMAIL = "email"
    WEBHOOK = "webhook"
    WEB = "web"
    API_SERVER = "api_server"

    @classmethod
    def _missing_(cls, value: object) -> "Platform | None":
        """Return the platform of a plug-in, or None for an invalid name."""
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            return None
        member = str.__new__(cls, value)
        member._name_, member._value_ = value.upper(), value
        return cls._value2member_map_.setdefault(value, member)  # type: ignore[return-value]


ANSWER_ONLY = frozenset({Platform.API_SERVER, Platform.WEBHOOK})
"""The platforms on which each message is a request that gets exactly one answer, and no other message."""


class SessionSource(Record, frozen=True, kw_only=True):
    """The chat, thread and sender of a message.

    The names of chats and senders are used only for display.
    """

    platform: Platform
    chat_id: str = ""
    chat_name: str | None = None
    chat_type: str = "dm"
    """The kind of chat: dm, group, channel or thread."""
    user_id: str | None = None
    """The id of the sender, which the platform never changes."""
    user_name: str | None = None
    thread_id: str | None = None
    chat_topic: str | None = None
    account: str = "default"
    """The bot, or other identity, to which the message was sent."""
    is_bot: bool = False
    agent: str | None = None
    """The agent that the routes chose for the message. None means `[agent]`."""
    person: str | None = None
    """The person whose linked chats share a conversation with this chat, or None if no chat is linked."""

    @property
    def description(self) -> str:
        """A short description of the chat for people to read."""
        who = self.user_name or self.user_id or "somebody"
        where = self.chat_name or self.chat_id
        return f"{who} on {self.platform.value}" if self.chat_type == "dm" else f"{who} in {where}"

    @property
    def address(self) -> ChatAddress:
        """The address of the chat."""
        return ChatAddress(platform=self.platform.value, chat_id=self.chat_id)

    def to_dict(self) -> dict[str, Json]:
        """Convert the source to plain data, without fields that are None or False."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}

    @classmethod
    def from_dict(cls, data: dict[str, Json]) -> "SessionSource":
        """Create a source from the data that `to_dict` returned.

        Unknown fields are ignored.

        Raises:
            ValueError: The platform's name is invalid.
        """
        by_name = {name: data[name] for name in cls.__struct_fields__ if name in data}
        return cls(**{**by_name, "platform": Platform(by_name["platform"])})


def build_session_key(
    source: SessionSource, group_sessions_per_user: bool = True, thread_sessions_per_user: bool = True
) -> str:
    """Return the session key of a source, such as `agent:main:telegram:dm:12345`.

    Each agent has separate sessions. A direct chat has one session for each thread. All linked chats of a
    person share one session. In a group, each participant has a separate session by default. If
    `group_sessions_per_user` is False, all participants of a group share a session. If
    `thread_sessions_per_user` is False, all participants of a thread share a session. A colon within a part
    of the key is escaped as `%3A`.
    """
    chat_id = source.chat_id or None
    if source.person is not None:
        parts: tuple[str | None, ...] = ("person", source.person)
    elif source.chat_type == "dm":
        is_alone = chat_id is None and source.thread_id is None
        participant = source.user_id if is_alone else None
        parts = (source.platform.value, "dm", chat_id, source.thread_id, participant)
    else:
        per_user = group_sessions_per_user and (thread_sessions_per_user or not source.thread_id)
        participant = source.user_id if per_user else None
        parts = (source.platform.value, source.chat_type, chat_id, source.thread_id, participant)
    named = [PREFIX, *filter(None, (source.agent or _MAIN, *parts))]
    key = ":".join(named)
    if _PLAIN.fullmatch(key) and key.count(":") == len(named) - 1:
        return key
    return ":".join(quote(part, safe="!@#$&'()*+,;=/?~ ") for part in named)


def inbound_key(source: SessionSource, message_id: str | None) -> InboundKey:
    """Return the key that identifies a message of a platform permanently."""
    return InboundKey(
        platform=source.platform.value,
        account=source.account,
        chat_id=source.chat_id or source.user_id or "",
        message_id=message_id or "",
    )
