"""The tables of `gateway.toml` with their names, bounds and defaults; `gateway_config` reads them."""

from datetime import timedelta
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from postroom.app.config import Count, Duration
from postroom.contracts.activation import BusyPolicy
from postroom.contracts.chat_people import PairingRules, PersonRole
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import ConfigError
from postroom.gateway.commands import COMMANDS, resolve_command
from postroom.gateway.config import (
    CHAT_POLICIES,
    ChatRules,
    DeliveryConfig,
    ResetMode,
    SessionResetPolicy,
    StreamingConfig,
)
from postroom.gateway.group_talk import MOST_EARLIER
from postroom.gateway.quiet import QuietHours
from postroom.gateway.session import Platform

_MINUTE: Final = timedelta(minutes=1)


def _whole_minutes(value: timedelta) -> timedelta:
    if value < _MINUTE or value % _MINUTE:
        raise ValueError("write whole minutes, 1m or more")
    return value


def _address(value: str) -> str:
    try:
        parts = urlsplit(value)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not value.isprintable() or " " in value or parts.query or parts.fragment:
        raise ValueError("write an address that begins with http:// or https://, up to and with /v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("write no name and no password into the address")
    return value


def _known_command(name: str) -> str:
    command = resolve_command(name)
    if command is None or command.name != name:
        raise ValueError(f"write the name of a command: {', '.join(one.name for one in COMMANDS)}")
    return name


def _of_chats(policy: BusyPolicy) -> BusyPolicy:
    if policy not in CHAT_POLICIES:
        raise ValueError(f"write one of: {', '.join(CHAT_POLICIES)}")
    return policy


Time = Annotated[Duration, Field(strict=False)]
Minutes = Annotated[Duration, AfterValidator(_whole_minutes), Field(strict=False)]
Mode = Annotated[BusyPolicy, Field(strict=False), AfterValidator(_of_chats)]
Reset = Annotated[ResetMode, Field(strict=False)]
Role = Annotated[PersonRole, Field(strict=False)]
Line = Annotated[str, Field(pattern=r"^\S(.{0,510}\S)?$")]
FileKind = Literal["image", "audio", "video", "text", "application"]
CommandName = Annotated[str, AfterValidator(_known_command)]


class _Table(BaseModel):
    """Names that are not known and values of another type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


Price = Annotated[float, Field(ge=0, le=1_000_000)]


class ModelTable(_Table):
    """A model that /model offers, and the prices in USD of a million tokens."""

    input_price: Price = 0
    output_price: Price = 0


class AgentTable(_Table):
    """Who answers: a model behind an endpoint that speaks the OpenAI chat protocol, or an agent of ours."""

    base_url: Annotated[str, AfterValidator(_address)] | None = None
    model: Line | None = None
    run: Line | None = None
    """An agent of the mail room that has a runner, as `name@project`."""
    id: Line = "default"
    instructions: Annotated[str, Field(max_length=100_000)] = ""
    max_rounds: Annotated[Count, Field(ge=1, le=1_000)] = 32
    max_run: Time = timedelta(minutes=30)
    context_window: Annotated[Count, Field(ge=1_000, le=100_000_000)] | None = None
    silence: Time = timedelta(minutes=2)
    send_files: bool = False
    transcription_url: Annotated[str, AfterValidator(_address)] | None = None
    transcription_model: Line = "whisper-1"
    speech_url: Annotated[str, AfterValidator(_address)] | None = None
    speech_model: Line = "tts-1"
    speech_voice: Line = "alloy"
    models: dict[Line, ModelTable] = {}


def _several(value: object) -> object:
    return [value] if isinstance(value, str) else value


Lines = Annotated[list[Line], BeforeValidator(_several), Field(min_length=1, max_length=1_000)]
Names = Annotated[list[Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]], BeforeValidator(_several)]
Places = Annotated[list[Annotated[Platform, Field(strict=False)]], BeforeValidator(_several)]
Types = Annotated[list[Literal["dm", "group", "channel", "thread"]], BeforeValidator(_several)]


class RouteTable(_Table):
    """Which agent answers messages of which all this is true."""

    agent: Annotated[str, Field(min_length=1, max_length=200)]
    platform: Places = []
    chat: Lines = []
    thread: Lines = []
    type: Types = []
    sender: Lines = []
    mention: Names = []
    pattern: Lines = []

    @model_validator(mode="after")
    def _of_a_platform(self) -> "RouteTable":
        if (self.chat or self.thread or self.sender) and not self.platform:
            raise ValueError("name the platform whose ids chat, thread and sender are")
        return self


class BusyTable(_Table):
    """What a busy session does with another line."""

    mode: Mode = BusyPolicy.QUEUE
    max_waiting: Annotated[Count, Field(ge=1, le=100_000)] = 100


class ResetTable(_Table):
    """When a session begins a new conversation."""

    mode: Reset = ResetMode.NONE
    at_hour: Annotated[Count, Field(ge=0, le=23)] = 4
    idle: Minutes = timedelta(days=1)
    notify: bool = True

    def policy(self) -> SessionResetPolicy:
        """Return it as the gateway has it."""
        return SessionResetPolicy(
            mode=self.mode, at_hour=self.at_hour, idle_minutes=self.idle // _MINUTE, notify=self.notify
        )


class StreamingTable(_Table):
    """How an answer is shown while it is being written."""

    enabled: bool = True
    edit_interval: Time = timedelta(milliseconds=800)
    buffer_threshold: Annotated[Count, Field(ge=1, le=100_000)] = 24

    def config(self) -> StreamingConfig:
        """Return it as the gateway has it."""
        return StreamingConfig(**self.model_dump())


class DeliveryTable(_Table):
    """How what is to be said is delivered."""

    max_attempts: Annotated[Count, Field(ge=1, le=1_000)] = 8
    first_retry: Time = timedelta(seconds=1)
    longest_retry: Time = timedelta(minutes=2)
    max_age: Time = timedelta(hours=12)
    lease: Annotated[Time, Field(ge=timedelta(seconds=10))] = timedelta(seconds=90)

    def config(self) -> DeliveryConfig:
        """Return it as the gateway has it."""
        return DeliveryConfig(**self.model_dump())


class PairingTable(_Table):
    """How often strangers may ask to be let in, and how often a code may be guessed wrong."""

    code: Time = timedelta(hours=1)
    ask_again: Time = timedelta(minutes=10)
    most_open: Annotated[Count, Field(ge=1, le=1_000)] = 3
    most_wrong: Annotated[Count, Field(ge=1, le=100)] = 5
    locked: Time = timedelta(hours=1)

    def rules(self) -> PairingRules:
        """Return it as the gateway has it."""
        return PairingRules(
            code_ms=milliseconds(self.code),
            ask_again_ms=milliseconds(self.ask_again),
            most_open=self.most_open,
            most_wrong=self.most_wrong,
            locked_ms=milliseconds(self.locked),
        )


class GatewayTable(_Table):
    """What holds for all channels."""

    busy: BusyTable = BusyTable()
    reset: ResetTable = ResetTable()
    reset_by_type: dict[Literal["dm", "group", "channel", "thread"], ResetTable] = {}
    streaming: StreamingTable = StreamingTable()
    delivery: DeliveryTable = DeliveryTable()
    pairing: PairingTable = PairingTable()
    command_roles: dict[CommandName, Role] = {}
    unauthorized_dm_behavior: Literal["pair", "ignore"] = "pair"
    group_context: Annotated[Count, Field(ge=0, le=MOST_EARLIER)] = 0
    group_sessions_per_user: bool = True
    thread_sessions_per_user: bool = True
    max_message_age: Time = timedelta(hours=1)
    keep_messages: Time = timedelta(days=7)
    max_media_bytes: Annotated[Count, Field(ge=0, le=1_000_000_000)] = 20_000_000
    max_media_bytes_by_kind: dict[FileKind, Annotated[Count, Field(ge=0, le=1_000_000_000)]] = {}
    scan_command: Annotated[list[Line], Field(max_length=50)] = []
    drain: Time = timedelta(seconds=30)
    show_cost: bool = False


class HomeTable(_Table):
    """Where a platform's messages go that answer nobody."""

    chat_id: Line
    name: Line = "Home"
    thread_id: Line | None = None


def _quiet(value: str) -> str:
    try:
        QuietHours.parse(value)
    except ConfigError as error:
        raise ValueError(f"{error.message}: {error.remedy}") from error
    return value


class ChatTable(_Table):
    """What holds for one chat; what is left out is as for its channel."""

    busy: Mode | None = None
    reset: ResetTable | None = None
    quiet: Annotated[str, AfterValidator(_quiet)] | None = None
    model: Line | None = None
    instructions: Annotated[str, Field(max_length=100_000)] | None = None
    show_cost: bool | None = None

    def rules(self) -> ChatRules:
        """Return it as the gateway has it."""
        return ChatRules(
            busy=self.busy,
            reset=None if self.reset is None else self.reset.policy(),
            quiet=None if self.quiet is None else QuietHours.parse(self.quiet),
            model=self.model,
            instructions=self.instructions,
            show_cost=self.show_cost,
        )


class PlatformTable(_Table):
    """What every platform's table may have; the rest is the platform's own."""

    enabled: bool = True
    allow: dict[Line, Role] = {}
    home_channel: HomeTable | None = None
    reactions: bool | None = None
    busy: Mode | None = None
    reset: ResetTable | None = None
    chats: dict[Line, ChatTable] = {}
