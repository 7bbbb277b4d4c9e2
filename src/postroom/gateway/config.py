"""What the gateway is set to: platforms, sessions, what a busy session does with more, and who may write."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from postroom.contracts.activation import BusyPolicy
from postroom.contracts.chat_people import PairingRules, PersonRole
from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.gateway.routes import Route
from postroom.gateway.session import Platform, SessionSource, build_session_key

CHAT_POLICIES = tuple(policy for policy in BusyPolicy if policy is not BusyPolicy.ROLLBACK)
"""What a chat may do with a message for a busy session: nobody reads there that an answer is hidden again."""


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
    by_chat: Mapping[tuple[Platform, str], BusyPolicy] = field(default_factory=dict)
    max_waiting: int = 100
    """Messages that may wait in one session; those beyond are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig:
    """How what is to be said is delivered."""

    max_attempts: int = 8
    first_retry: timedelta = timedelta(seconds=1)
    longest_retry: timedelta = timedelta(minutes=2)
    max_age: timedelta = timedelta(hours=12)
    """After which an answer is not sent any more but kept as a dead letter."""
    lease: timedelta = timedelta(seconds=60)
    """How long a process has for one of them; what one that died had begun waits so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Everything the gateway is set to."""

    platforms: Mapping[Platform, PlatformConfig] = field(default_factory=dict)
    default_reset_policy: SessionResetPolicy = SessionResetPolicy()
    reset_by_type: Mapping[str, SessionResetPolicy] = field(default_factory=dict)
    reset_by_platform: Mapping[Platform, SessionResetPolicy] = field(default_factory=dict)
    reset_by_chat: Mapping[tuple[Platform, str], SessionResetPolicy] = field(default_factory=dict)
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
    """A program that looks at each file that comes in, and refuses it by any exit code but 0."""
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

    def get_reset_policy(
        self, platform: Platform, session_type: str, chat_id: str = ""
    ) -> SessionResetPolicy:
        """Return when a session begins anew: its chat's rule, else its platform's, and so on."""
        fallback = self.reset_by_type.get(session_type, self.default_reset_policy)
        by_platform = self.reset_by_platform.get(platform, fallback)
        return self.reset_by_chat.get((platform, chat_id), by_platform)

    def get_busy_mode(self, platform: Platform, chat_id: str) -> BusyPolicy:
        """Return what a busy session of this chat does: its chat's rule, else its platform's, else all."""
        by_platform = self.busy.by_platform.get(platform, self.busy.mode)
        return self.busy.by_chat.get((platform, chat_id), by_platform)
