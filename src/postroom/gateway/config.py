"""What the gateway is set to: platforms, sessions, what a busy session does with more, and who may write."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from postroom.contracts.activation import BusyPolicy
from postroom.contracts.chat_people import PairingRules, PersonRole
from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.gateway.quiet import QuietHours
from postroom.gateway.session import Platform, SessionSource, build_session_key

MOST_SPOKEN = 4_096
"""The characters of the longest answer that is spoken: the OpenAI protocol takes no more."""
VOICE_ON = "on"
VOICE_OFF = "off"
CHAT_POLICIES = tuple(policy for policy in BusyPolicy if policy is not BusyPolicy.ROLLBACK)
"""What a chat may do with a message for a busy session: nobody reads there that an answer is hidden again."""

DEFAULT_AGENT = "default"
"""What people call the agent of `[agent]`."""
PERSON = "human:"
"""Before the name of a person who answers, as agents write to them."""
CONDITIONS = ("platform", "chat", "thread", "type", "sender", "mention", "pattern")
"""What a route may ask of a message: the place and the sender, then its words."""
_PLACE = ("platform", "chat", "thread", "type", "sender")
_WORDS = ("mention", "pattern")


class ResetMode(StrEnum):
    """When a session begins a new thread by itself; with `both`, whichever comes first."""

    NONE = "none"
    DAILY = "daily"
    IDLE = "idle"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResetPolicy:
    """When a session begins a new conversation: daily at this hour of local time, or idle for so long.

    Raises:
        ConfigError: the hour is none, or the minutes are not more than 0.
    """

    mode: ResetMode = ResetMode.NONE
    at_hour: int = 4
    idle_minutes: int = 1_440
    notify: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.at_hour <= 23:
            raise ConfigError("at_hour is an hour from 0 to 23", value=self.at_hour)
        if self.idle_minutes <= 0:
            raise ConfigError("idle_minutes must be more than 0", value=self.idle_minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeChannel:
    """Where a platform's messages go that answer nobody."""

    platform: Platform
    chat_id: str
    name: str = "Home"
    thread_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformConfig:
    """How one platform is reached. Secrets are never shown."""

    enabled: bool = False
    token: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    home_channel: HomeChannel | None = None
    allow: Mapping[str, PersonRole] = field(default_factory=dict)
    """Who may write, by the platform's stable user id, and as what; `*` stands for everybody."""
    reactions: bool | None = None
    """Whether messages that will be answered are marked as seen; None: in groups only."""
    extra: Mapping[str, Json] = field(default_factory=dict, repr=False)
    """What only this platform's adapter reads; its module lists the names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingConfig:
    """How an answer is shown while it is being written, where the platform can."""

    enabled: bool = True
    edit_interval: timedelta = timedelta(milliseconds=800)
    buffer_threshold: int = 24
    """Characters that must be new before what is shown is renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyConfig:
    """What a busy session does with another message: the session's own choice, else the chat's, and so on."""

    mode: BusyPolicy = BusyPolicy.QUEUE
    by_platform: Mapping[Platform, BusyPolicy] = field(default_factory=dict)
    max_waiting: int = 100
    """Messages that may wait in one session; those beyond are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRules:
    """What holds for one chat; None is as for its channel."""

    busy: BusyPolicy | None = None
    reset: SessionResetPolicy | None = None
    quiet: QuietHours | None = None
    model: str | None = None
    """The model that answers, where the agent is one."""
    instructions: str | None = None
    """Said to the agent beside its own."""
    show_cost: bool | None = None
    """Whether each answer ends with its tokens and its cost."""


AS_EVERYWHERE = ChatRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig:
    """How what is to be said is delivered."""

    max_attempts: int = 8
    first_retry: timedelta = timedelta(seconds=1)
    longest_retry: timedelta = timedelta(minutes=2)
    max_age: timedelta = timedelta(hours=12)
    """After which an answer is not sent any more but kept as a dead letter."""
    lease: timedelta = timedelta(seconds=90)
    """How long a process has for one of them; what one that died had begun waits so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which agent answers messages of which all this is true; of several values one must be, none is all."""

    agent: str | None = None
    """As `name@project`, one of the gateway's own models, or a person, `human:name`; None: `[agent]`."""
    platform: tuple[str, ...] = ()
    chat: tuple[str, ...] = ()
    thread: tuple[str, ...] = ()
    type: tuple[str, ...] = ()
    sender: tuple[str, ...] = ()
    mention: tuple[str, ...] = ()
    """Names that address the agent: `@name` anywhere, or `name:` and `name,` at the beginning."""
    pattern: tuple[str, ...] = ()
    """Shell patterns of the whole text, whatever the case: `*deploy*`."""

    @property
    def reads_words(self) -> bool:
        """Whether it looks at what a message says; then it also finds messages that are not for us."""
        return bool(self.mention or self.pattern)

    def covers(self, source: SessionSource) -> bool:
        """Say whether messages from there, of this sender, can be meant."""
        found = {
            "platform": source.platform.value,
            "chat": source.chat_id,
            "thread": source.thread_id,
            "type": source.chat_type,
            "sender": source.user_id,
        }
        return all(found[name] in wanted for name in _PLACE if (wanted := getattr(self, name)))

    def found_in(self, text: str) -> bool:
        """Say whether a text has the words that the rule looks for."""
        is_mentioned = not self.mention or any(_naming(name).search(text) for name in self.mention)
        return is_mentioned and (not self.pattern or any(_like(one).match(text) for one in self.pattern))

    def includes(self, other: "Route") -> bool:
        """Say whether every message that the other rule finds is found by this one."""
        pairs = ((_values(self, name), _values(other, name)) for name in (*_PLACE, *_WORDS))
        return all(not mine or "*" in mine or (its and its <= mine) for mine, its in pairs)

    def __str__(self) -> str:
        """Return its conditions in one line."""
        named = ((name, getattr(self, name)) for name in (*_PLACE, *_WORDS))
        return (
            ", ".join(f"{name} {' or '.join(values)}" for name, values in named if values) or "all messages"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Everything the gateway is set to."""

    platforms: Mapping[Platform, PlatformConfig] = field(default_factory=dict)
    default_reset_policy: SessionResetPolicy = SessionResetPolicy()
    reset_by_type: Mapping[str, SessionResetPolicy] = field(default_factory=dict)
    reset_by_platform: Mapping[Platform, SessionResetPolicy] = field(default_factory=dict)
    chats: Mapping[tuple[Platform, str], ChatRules] = field(default_factory=dict)
    """What holds for single chats, by the platform's id."""
    programs: frozenset[str | None] = frozenset()
    """The agents that are no models, as routes name them; None: `[agent]`."""
    models: Mapping[str | None, tuple[str, ...]] = field(default_factory=dict)
    """The models that /model offers, by agent; None: `[agent]`."""
    own_models: Mapping[str | None, str] = field(default_factory=dict)
    """The model that answers if its chat has chosen none, by agent; None: `[agent]`."""
    speaks: bool = False
    """Whether a speech endpoint is configured, so that `/voice on` can be chosen."""
    show_cost: bool = False
    """Whether each answer ends with its tokens and its cost, where the rules of its chat do not say."""
    group_sessions_per_user: bool = True
    thread_sessions_per_user: bool = True
    busy: BusyConfig = BusyConfig()
    streaming: StreamingConfig = StreamingConfig()
    delivery: DeliveryConfig = DeliveryConfig()
    pairing: PairingRules = field(default_factory=PairingRules)
    unauthorized_dm_behavior: str = "pair"
    """What a stranger's direct message gets: `pair`, a code to be let in with, or `ignore`."""
    command_roles: Mapping[str, PersonRole] = field(default_factory=dict)
    """Who may use a command, where that differs from the command's own rule."""
    max_message_age: timedelta = timedelta(hours=1)
    """After which a message that a crash left behind is not answered any more; its sender is told."""
    keep_messages: timedelta = timedelta(days=7)
    """How long a message that has its answer is known, should its platform send it again."""
    max_media_bytes: int = 20_000_000
    group_context: int = 0
    """How many messages of a group that were addressed to nobody an agent reads with the next one to it."""
    max_media_bytes_by_kind: Mapping[str, int] = field(default_factory=dict)
    """The same for one kind of files, by the first half of their type; 0: none is taken."""
    scan_command: tuple[str, ...] = ()
    """A program that looks at each file that comes in or is left by a run; any exit code but 0 refuses it."""
    drain: timedelta = timedelta(seconds=30)
    """How long a stop waits for runs at work and answers on their way."""
    routes: tuple[Route, ...] = ()
    """Which agent answers which messages: the first that matches; without one `[agent]` does."""
    state_dir: Path | None = None
    """Where locks on bot tokens and the status file are; None: neither is kept."""

    def __post_init__(self) -> None:
        if self.unauthorized_dm_behavior not in ("pair", "ignore"):
            raise ConfigError(
                "unauthorized_dm_behavior is `pair` or `ignore`", value=self.unauthorized_dm_behavior
            )

    def get_connected_platforms(self) -> tuple[Platform, ...]:
        """Return the platforms that are to be connected."""
        return tuple(platform for platform, config in self.platforms.items() if config.enabled)

    def get_home_channel(self, platform: Platform) -> HomeChannel | None:
        """Return a platform's home channel."""
        config = self.platforms.get(platform)
        return None if config is None else config.home_channel

    def session_key(self, source: SessionSource) -> str:
        """Return the key of the session that messages from there belong to."""
        return build_session_key(source, self.group_sessions_per_user, self.thread_sessions_per_user)

    def rules_of(self, platform: Platform, chat_id: str) -> ChatRules:
        """Return what the file says for a chat."""
        return self.chats.get((platform, chat_id), AS_EVERYWHERE)

    def get_reset_policy(
        self, platform: Platform, session_type: str, chat_id: str = ""
    ) -> SessionResetPolicy:
        """Return when a session begins anew: its chat's rule, else its platform's, and so on."""
        fallback = self.reset_by_type.get(session_type, self.default_reset_policy)
        by_platform = self.reset_by_platform.get(platform, fallback)
        return self.rules_of(platform, chat_id).reset or by_platform

    def get_busy_mode(self, platform: Platform, chat_id: str) -> BusyPolicy:
        """Return what a busy session of this chat does: its chat's rule, else its platform's, else all."""
        by_platform = self.busy.by_platform.get(platform, self.busy.mode)
        return self.rules_of(platform, chat_id).busy or by_platform


def reachable(routes: Sequence[Route], source: SessionSource) -> tuple[str | None, ...]:
    """Return the agents that the rules let somebody reach there, with whatever words; None is `[agent]`."""
    found: dict[str | None, None] = {}
    for rule in routes:
        if rule.covers(source):
            found[rule.agent] = None
            if not rule.reads_words:
                return tuple(found)
    return (*(agent for agent in found if agent is not None), None)


def short_name(agent: str) -> str:
    """Return what people call an agent, or the person who answers."""
    return agent.removeprefix(PERSON).partition("@")[0]


def chat_names(agents: Iterable[str]) -> dict[str, str]:
    """Return what a chat calls each agent: the short name, or the whole one if two agents share the short."""
    names = list(agents)
    shared = Counter(map(short_name, names))
    return {name: short_name(name) if shared[short_name(name)] == 1 else name for name in names}


def is_person(agent: str | None) -> bool:
    """Say whether a person answers, and no agent."""
    return agent is not None and agent.startswith(PERSON)


def label(agent: str) -> str:
    """Return the beginning of what an agent says where several may answer."""
    return f"{short_name(agent)}: "


def is_one_of_several(routes: Sequence[Route], source: SessionSource) -> bool:
    """Say whether people in this group must be told which agent speaks."""
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
