"""Where a message comes from, and the key of the session it belongs to."""

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
"""Matches a part of a key that can be used unchanged, because it contains no colon."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""The names of platforms: 1 to 32 characters."""
_MAIN = "main"
"""Stands in keys for `[agent]`."""


class Platform(StrEnum):
    """A platform of chats: one of postroom, or by its name that of a plug-in, `Platform("zulip")`.

    A name needs no plug-in: `gateway.toml` decides which platforms are connected, and a stored message keeps
    its platform if the plug-in is removed.
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
        """Return the platform of a plug-in, the same object for the same name; None for an invalid name."""
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            return None
        member = str.__new__(cls, value)
        member._name_, member._value_ = value.upper(), value
        return cls._value2member_map_.setdefault(value, member)  # type: ignore[return-value]


ANSWER_ONLY = frozenset({Platform.API_SERVER, Platform.WEBHOOK})
"""Platforms where a message is a request with one answer: nothing is sent before it or later."""


class SessionSource(Record, frozen=True, kw_only=True):
    """A place in a chat, and who spoke there. Names are for show; nothing is decided by them."""

    platform: Platform
    chat_id: str = ""
    chat_name: str | None = None
    chat_type: str = "dm"
    """dm, group, channel or thread."""
    user_id: str | None = None
    """The sender's id, which the platform never changes."""
    user_name: str | None = None
    thread_id: str | None = None
    chat_topic: str | None = None
    account: str = "default"
    """The bot, or other identity, to which the message was sent."""
    is_bot: bool = False
    agent: str | None = None
    """The agent that answers, as the rules decided; None: `[agent]`."""
    person: str | None = None
    """The owner of the conversation, if a direct chat shares that of its person's other chats."""

    @property
    def description(self) -> str:
        """The place in a few words, for people."""
        who = self.user_name or self.user_id or "somebody"
        where = self.chat_name or self.chat_id
        return f"{who} on {self.platform.value}" if self.chat_type == "dm" else f"{who} in {where}"

    @property
    def address(self) -> ChatAddress:
        """The chat in which it is."""
        return ChatAddress(platform=self.platform.value, chat_id=self.chat_id)

    def to_dict(self) -> dict[str, Json]:
        """Return it as plain data, without unknown values."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}

    @classmethod
    def from_dict(cls, data: dict[str, Json]) -> "SessionSource":
        """Return the source in data from `to_dict`; unknown names are ignored.

        Raises:
            ValueError: The platform's name is invalid.
        """
        told = {name: data[name] for name in cls.__struct_fields__ if name in data}
        return cls(**{**told, "platform": Platform(told["platform"])})


def build_session_key(
    source: SessionSource, group_sessions_per_user: bool = True, thread_sessions_per_user: bool = True
) -> str:
    """Return the key of a source's session, for instance `agent:main:telegram:dm:12345`.

    The sessions of different agents are separate. Direct messages are one session per chat and thread, and
    one for all linked chats of a person. Elsewhere each participant has a separate session unless that is
    switched off, for threads independently. A colon within a part is written `%3A`, to keep parts separate.
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
    """Return the platform's permanent name of a message."""
    return InboundKey(
        platform=source.platform.value,
        account=source.account,
        chat_id=source.chat_id or source.user_id or "",
        message_id=message_id or "",
    )
