"""The configuration of the gateway. The records of this module are the tables of `gateway.toml`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from postroom.contracts.activation import BusyPolicy
from postroom.contracts.chat_people import PairingRules, PersonRole
from postroom.contracts.clock import duration_of
from postroom.contracts.errors import ConfigError
from postroom.contracts.records import Meta, field
from postroom.contracts.tables import Duration, Secret, Table
from postroom.gateway.group_talk import MAX_EARLIER
from postroom.gateway.quiet import QuietHours
from postroom.gateway.session import Platform, SessionSource, build_session_key

MAX_SPOKEN_LENGTH = 4_096
"""Maximum characters of a spoken answer: the limit of the OpenAI protocol."""
VOICE_ON = "on"
VOICE_OFF = "off"
CHAT_POLICIES = tuple(policy for policy in BusyPolicy if policy is not BusyPolicy.ROLLBACK)
"""The busy policies that a chat can choose.

Rollback is excluded, because people in a chat would not notice that later runs do not see the output of an
interrupted run.
"""

DEFAULT_AGENT = "default"
"""The name that chats show for the agent of the table `[agent]`."""
PERSON = "human:"
"""The prefix of the address of a person who answers in place of an agent."""
CONDITIONS = ("platform", "chat", "thread", "type", "sender", "mention", "pattern")
"""The names of a route's conditions. The last two are conditions on the text of the message."""
_PLACE = ("platform", "chat", "thread", "type", "sender")
_WORDS = ("mention", "pattern")
_MINUTE = timedelta(minutes=1)


def _policy(value: object) -> BusyPolicy:
    result = next((policy for policy in CHAT_POLICIES if policy == value), None)
    if result is None:
        raise ValueError(f"write one of: {', '.join(CHAT_POLICIES)}")
    return result


def _minutes(value: object) -> int:
    duration = duration_of(value)
    if duration % _MINUTE:
        raise ValueError("write a number of whole minutes, 1m or more")
    return duration // _MINUTE


def _lease(value: object) -> timedelta:
    duration = duration_of(value)
    if duration < timedelta(seconds=10):
        raise ValueError("write a duration of 10s or more")
    return duration


def _quiet(value: object) -> QuietHours:
    try:
        return QuietHours.parse(str(value))
    except ConfigError as error:
        raise ValueError(error.remedy) from error


def _several(value: object) -> object:
    return [value] if isinstance(value, str) else value


Line = Annotated[
    str,
    Meta(
        pattern=r"^(?!\s)[^\x00-\x1f\x7f-\x9f]{1,512}(?<!\s)\Z",
        extra={
            "write": "a text of one line, of 1 to 512 characters, without control characters and without "
            "spaces around it"
        },
    ),
]
Lines = Annotated[tuple[Line, ...], Meta(min_length=1, max_length=1_000, extra={"read": _several})]
Mode = Annotated[BusyPolicy, Meta(extra={"read": _policy})]
MediaLimit = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Name = Annotated[
    str, Meta(pattern=r"^[\w.-]{1,64}\Z", extra={"write": "a name of 1 to 64 letters, digits and . _ -"})
]
ChatType = Annotated[
    str, Meta(pattern=r"^(dm|group|channel|thread)\Z", extra={"write": "dm, group, channel or thread"})
]
FileKind = Annotated[
    str,
    Meta(
        pattern=r"^(image|audio|video|text|application)\Z",
        extra={"write": "image, audio, video, text or application"},
    ),
]


class ResetMode(StrEnum):
    """When a session automatically starts a new thread.

    With `daily`, a session is reset at a set time each day. With `idle`, a session is reset after a period
    without messages. With `both`, a session is reset daily and after a period without messages.
    """

    NONE = "none"
    DAILY = "daily"
    IDLE = "idle"
    BOTH = "both"


class SessionResetPolicy(Table, frozen=True, kw_only=True):
    """The rule that decides when a session starts a new conversation."""

    mode: ResetMode = ResetMode.NONE
    at_hour: Annotated[int, Meta(ge=0, le=23)] = 4
    idle_minutes: Annotated[int, Meta(extra={"read": _minutes})] = field(default=1_440, name="idle")
    notify: bool = True


class HomeChannel(Table, frozen=True, kw_only=True):
    """The chat on a platform that receives all messages that are not replies to a person."""

    chat_id: Line
    name: Line = "Home"
    thread_id: Line | None = None


class ChatRules(Table, frozen=True, kw_only=True):
    """The rules of one chat.

    A rule that is None falls back to the setting of the platform.
    """

    busy: Mode | None = None
    reset: SessionResetPolicy | None = None
    quiet: Annotated[QuietHours, Meta(extra={"read": _quiet})] | None = None
    model: Line | None = None
    """The model that answers, if the agent is a model."""
    instructions: (
        Annotated[str, Meta(max_length=100_000, extra={"write": "a text of at most 100,000 characters"})]
        | None
    ) = None
    """Instructions that are added to the agent's usual instructions."""
    show_cost: bool | None = None
    """Whether each answer ends with a line that shows the number of its tokens and its cost."""


AS_EVERYWHERE = ChatRules()


class PlatformConfig(Table, frozen=True, kw_only=True):
    """The settings of one platform.

    Each adapter module defines a subclass with the settings of its platform.
    """

    enabled: bool = True
    token: Secret | None = None
    api_key: Secret | None = None
    home_channel: HomeChannel | None = None
    allow: Mapping[Line, PersonRole] = {}
    """The role of each person who may write, keyed by the platform's stable user id. `*` means everybody."""
    reactions: bool | None = None
    """Whether messages to be answered get a "seen" reaction. If None, only messages in groups get one."""
    busy: Mode | None = None
    """What a busy session does with another message.

    If None, the policy in [gateway] applies. A chat's own rule takes precedence.
    """
    reset: SessionResetPolicy | None = None
    """The reset policy of the platform's sessions.

    If None, the policy in [gateway] applies. A chat's own rule takes precedence.
    """
    chats: Mapping[Line, ChatRules] = {}
    """The rules of individual chats, keyed by the platform's chat id."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class StreamingConfig(Table, frozen=True, kw_only=True):
    """The settings for showing an answer while the agent writes it."""

    enabled: bool = True
    edit_interval: Duration = timedelta(milliseconds=800)
    buffer_threshold: Annotated[int, Meta(ge=1, le=100_000)] = 24
    """The number of new characters after which a shown draft is updated."""


class BusyConfig(Table, frozen=True, kw_only=True):
    """The settings for messages that arrive while a session is busy.

    A setting of the session, the chat or the platform has priority over the setting in this table.
    """

    mode: Mode = BusyPolicy.QUEUE
    max_waiting: Annotated[int, Meta(ge=1, le=100_000)] = 100
    """Maximum number of messages that wait in one session. Further messages are refused."""


class DeliveryConfig(Table, frozen=True, kw_only=True):
    """The settings for the delivery of outgoing messages."""

    max_attempts: Annotated[int, Meta(ge=1, le=1_000)] = 8
    first_retry: Duration = timedelta(seconds=1)
    longest_retry: Duration = timedelta(minutes=2)
    max_age: Duration = timedelta(hours=12)
    """The age at which an answer is no longer sent but becomes a dead letter."""
    lease: Annotated[timedelta, Meta(extra={"read": _lease})] = timedelta(seconds=90)
    """The time limit for one delivery.

    If a process dies, its deliveries are retried after this time.
    """


class Route(Table, frozen=True, kw_only=True):
    """A rule that assigns an agent to all messages that satisfy the rule's conditions.

    A condition with several values is satisfied if one value matches. A condition without values is always
    satisfied.
    """

    agent: (
        Annotated[str, Meta(min_length=1, max_length=200, extra={"write": "a text of 1 to 200 characters"})]
        | None
    ) = None
    """`name@project`, a model of the gateway, or a person as `human:name`.

    None means the agent of `[agent]`.
    """
    platform: Annotated[tuple[Platform, ...], Meta(extra={"read": _several})] = ()
    chat: Lines = ()
    thread: Lines = ()
    type: Annotated[tuple[ChatType, ...], Meta(extra={"read": _several})] = ()
    sender: Lines = ()
    mention: Annotated[tuple[Name, ...], Meta(extra={"read": _several})] = ()
    """Names that address the agent: `@name` anywhere, or `name:` and `name,` at the beginning."""
    pattern: Lines = ()
    """Shell patterns that must match the whole text, ignoring case, such as `*deploy*`."""

    @property
    def reads_words(self) -> bool:
        """Whether a condition of the route checks the text of messages.

        A route that checks texts also matches messages that are not addressed to the bot.
        """
        return bool(self.mention or self.pattern)

    def covers(self, source: SessionSource) -> bool:
        """Return whether a message from this chat and sender can match the route, regardless of its text."""
        fields = {
            "platform": source.platform.value,
            "chat": source.chat_id,
            "thread": source.thread_id,
            "type": source.chat_type,
            "sender": source.user_id,
        }
        return all(fields[name] in wanted for name in _PLACE if (wanted := getattr(self, name)))

    def found_in(self, text: str) -> bool:
        """Return whether a text satisfies the route's conditions on texts."""
        is_mentioned = not self.mention or any(_naming(name).search(text) for name in self.mention)
        return is_mentioned and (not self.pattern or any(_like(value).match(text) for value in self.pattern))

    def includes(self, other: "Route") -> bool:
        """Return whether this route matches every message that the route `other` matches."""
        pairs = ((_values(self, name), _values(other, name)) for name in (*_PLACE, *_WORDS))
        return all(not mine or "*" in mine or (its and its <= mine) for mine, its in pairs)

    def __str__(self) -> str:
        """Return the conditions of the route as one line of text."""
        named = ((name, getattr(self, name)) for name in (*_PLACE, *_WORDS))
        return (
            ", ".join(f"{name} {' or '.join(values)}" for name, values in named if values) or "all messages"
        )


class GatewayRules(Table, frozen=True, kw_only=True):
    """The rules for all channels, from the table `[gateway]`."""

    busy: BusyConfig = BusyConfig()
    default_reset_policy: SessionResetPolicy = field(default=SessionResetPolicy(), name="reset")
    reset_by_type: Mapping[ChatType, SessionResetPolicy] = {}
    streaming: StreamingConfig = StreamingConfig()
    delivery: DeliveryConfig = DeliveryConfig()
    pairing: PairingRules = PairingRules()
    command_roles: Mapping[str, PersonRole] = {}
    """The role that a command requires, for each command whose role differs from the default."""
    unauthorized_dm_behavior: Literal["pair", "ignore"] = "pair"
    """The reaction to a direct message from a stranger.

    `pair` replies with a pairing code, `ignore` does nothing.
    """
    group_context: Annotated[int, Meta(ge=0, le=MAX_EARLIER)] = 0
    """Maximum number of a group's earlier messages that are added to the next message to an agent."""
    group_sessions_per_user: bool = True
    thread_sessions_per_user: bool = True
    max_message_age: Duration = timedelta(hours=1)
    """The maximum age of a message that is still answered after a crash.

    The sender of an older message gets a notice instead.
    """
    keep_messages: Duration = timedelta(days=7)
    """The time for which an answered message is kept.

    Within this time, a repetition by the platform is recognised.
    """
    max_media_bytes: MediaLimit = 20_000_000
    max_media_bytes_by_kind: Mapping[FileKind, MediaLimit] = {}
    """Maximum size in bytes of each kind of file. A kind is the first half of a MIME type. 0 refuses it."""
    scan_command: Annotated[tuple[Line, ...], Meta(max_length=50)] = ()
    """A program that scans each received or sent file. An exit code other than 0 refuses the file."""
    drain: Duration = timedelta(seconds=30)
    """The time for which a shutdown waits for active runs and outgoing answers."""
    show_cost: bool = False
    """Whether each answer ends with its number of tokens and its cost. A chat's own rule takes precedence."""


class GatewayConfig(GatewayRules, frozen=True, kw_only=True):
    """The complete configuration of the gateway."""

    platforms: Mapping[Platform, PlatformConfig] = {}
    programs: frozenset[str | None] = frozenset()
    """The agents that are not models, by their names in routes. The key None means `[agent]`."""
    models: Mapping[str | None, tuple[str, ...]] = {}
    """The models that /model offers, keyed by agent. The key None means `[agent]`."""
    own_models: Mapping[str | None, str] = {}
    """The model of each agent in chats that have not chosen a model. The key None means `[agent]`."""
    speaks: bool = False
    """Whether a speech endpoint is configured, so that `/voice on` can be chosen."""
    routes: tuple[Route, ...] = ()
    """The routes, which choose an agent for each message.

    The first matching route decides. If none matches, `[agent]` answers.
    """
    state_dir: Path | None = None
    """The folder of the status file and of the locks on bot tokens, or None if there are no such files."""

    def get_connected_platforms(self) -> tuple[Platform, ...]:
        """Return the platforms that the configuration enables."""
        return tuple(platform for platform, config in self.platforms.items() if config.enabled)

    def get_home_channel(self, platform: Platform) -> HomeChannel | None:
        """Return the home channel of a platform, or None if the platform has none."""
        config = self.platforms.get(platform)
        return None if config is None else config.home_channel

    def session_key(self, source: SessionSource) -> str:
        """Return the key of the session to which a message with this source belongs."""
        return build_session_key(source, self.group_sessions_per_user, self.thread_sessions_per_user)

    def get_rules(self, platform: Platform, chat_id: str) -> ChatRules:
        """Return the rules that the configuration file sets for a chat."""
        config = self.platforms.get(platform)
        return AS_EVERYWHERE if config is None else config.chats.get(chat_id, AS_EVERYWHERE)

    def get_reset_policy(
        self, platform: Platform, session_type: str, chat_id: str = ""
    ) -> SessionResetPolicy:
        """Return the reset policy of a chat.

        The policy of the chat has priority over the policies of the platform and the gateway.
        """
        config = self.platforms.get(platform)
        own = self.get_rules(platform, chat_id).reset or (config and config.reset)
        return own or self.reset_by_type.get(session_type, self.default_reset_policy)

    def get_busy_mode(self, platform: Platform, chat_id: str) -> BusyPolicy:
        """Return the busy policy of a chat.

        The policy of the chat has priority over the policies of the platform and the gateway.
        """
        config = self.platforms.get(platform)
        return self.get_rules(platform, chat_id).busy or (config and config.busy) or self.busy.mode


def reachable(routes: Sequence[Route], source: SessionSource) -> tuple[str | None, ...]:
    """Return the agents that may answer a sender in a chat.

    None stands for the agent in the table `[agent]`.
    """
    fields: dict[str | None, None] = {}
    for rule in routes:
        if rule.covers(source):
            fields[rule.agent] = None
            if not rule.reads_words:
                return tuple(fields)
    return (*(agent for agent in fields if agent is not None), None)


def short_name(agent: str) -> str:
    """Return the name that chats display for an agent, or for a person who answers."""
    return agent.removeprefix(PERSON).partition("@")[0]


def chat_names(agents: Iterable[str]) -> dict[str, str]:
    """Map each agent to its short name, or to its full name if the short name is not unique."""
    names = list(agents)
    shared = Counter(map(short_name, names))
    return {name: short_name(name) if shared[short_name(name)] == 1 else name for name in names}


def is_person(agent: str | None) -> bool:
    """Return whether `agent` names a person who answers in place of an agent."""
    return agent is not None and agent.startswith(PERSON)


def label(agent: str) -> str:
    """Return the prefix that shows the name of an agent before a message."""
    return f"{short_name(agent)}: "


def is_one_of_several(routes: Sequence[Route], source: SessionSource) -> bool:
    """Return whether several agents may answer in a group, so that each answer must name its agent."""
    return source.agent is not None and source.chat_type != "dm" and len(reachable(routes, source)) > 1


def _values(rule: Route, name: str) -> frozenset[str]:
    values: tuple[str, ...] = getattr(rule, name)
    return frozenset(value.casefold() if name in _WORDS else value for value in values)


@lru_cache(maxsize=1_000)
def _naming(name: str) -> re.Pattern[str]:
    word = re.escape(name)
    return re.compile(rf"(?<![\w@])@{word}(?!\w)|\A\s*{word}[:,]", re.IGNORECASE)


@lru_cache(maxsize=1_000)
def _like(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern), re.IGNORECASE)
