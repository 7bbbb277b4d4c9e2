"""The contents of `gateway.toml`: the agents and people who answer, the channels, and their settings.

    [agent]              the respondent: a model behind an endpoint that supports the OpenAI chat protocol
    [gateway]            settings for all channels
    [platforms.<name>]   one channel: its connection, and the people who may write there
    [agents.<name>]      another model that answers; omitted settings are those of [agent]
    [[routes]]           which agent answers which messages: the first that matches, else that of [agent]

Without the file, there is no gateway. The reader never guesses. An unknown name, a value out of range, a
duration without a unit, or a secret in the file raises a `ConfigError`, so that the server does not start.
The error names the file, the table, the name, the value (unless it is secret) and the remedy.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

from msgspec import Meta, structs

from postroom.app import places
from postroom.app.config import Settings
from postroom.app.tables import check_table, read_table
from postroom.contracts import records
from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import CONTROL
from postroom.contracts.tables import Duration, Secret, Table
from postroom.gateway.commands import COMMANDS
from postroom.gateway.config import (
    DEFAULT_AGENT,
    PERSON,
    GatewayConfig,
    GatewayRules,
    Line,
    PlatformConfig,
    Route,
    is_person,
)
from postroom.gateway.platforms import ADAPTERS, load_adapter_class, plug_ins
from postroom.gateway.replies import agent_on
from postroom.gateway.routes import check_routes
from postroom.gateway.session import ANSWER_ONLY, Platform
from postroom.mail.names import RULE
from postroom.toml_files import TableName, check_names, read_toml, unreadable

STATE_DIR: Final = "gateway"
"""The folder, in the data folder, for the gateway's status, its locks, and the positions of channels."""
_CALLED: Final = "the gateway's file"
_REMEDY: Final = "correct the file, or remove it to run the server without chats"
_TABLES: Final = ("agent", "agents", "gateway", "platforms")
_ROUTES: Final = "routes"
T = TypeVar("T", bound=Table)
_OWN_NAME: Final = re.compile(r"[\w-]{1,64}")
_NOT_NAMES: Final = (DEFAULT_AGENT, "main")
"""The reserved names, which mean `[agent]`."""


def _address(value: object) -> object:
    text = value if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not text.isprintable() or " " in text or parts.query or parts.fragment:
        raise ValueError("write a URL that begins with http:// or https:// and ends with /v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("remove the user name and the password from the URL")
    return text


def _project_and_name(value: object) -> tuple[str, str]:
    name, at, project = value.partition("@") if isinstance(value, str) else ("", "", "")
    if not (RULE.fullmatch(name) and at and project.strip() and not CONTROL.search(project)):
        raise ValueError('write run = "name@project", where the project is a slug or a path')
    return project, name


Address = Annotated[str, Meta(extra={"read": _address})]
Price = Annotated[float, Meta(ge=0, le=1_000_000)]


class ModelPrices(Table, frozen=True, kw_only=True):
    """The prices of a model in US dollars for a million tokens of input and of output."""

    input_price: Price = 0
    output_price: Price = 0


class AgentConfig(Table, frozen=True, kw_only=True):
    """The agent that answers in chats: a model at an OpenAI-compatible endpoint, or a registered agent.

    Raises:
        ConfigError: The table configures both a model and a registered agent, or neither.
    """

    base_url: Address = ""
    model: Line = ""
    run: Annotated[tuple[str, str], Meta(extra={"read": _project_and_name})] | None = None
    """The project and the name of a registered agent, written as `name@project`, or None for a model."""
    agent_id: Line = records.field(default=DEFAULT_AGENT, name="id")
    instructions: Annotated[
        str, Meta(max_length=100_000, extra={"write": "a text of at most 100,000 characters"})
    ] = ""
    max_rounds: Annotated[int, Meta(ge=1, le=1_000)] = 32
    max_run: Duration = timedelta(minutes=30)
    """Maximum duration of one execution of a run."""
    context_window: Annotated[int, Meta(ge=1_000, le=100_000_000)] | None = None
    silence: Duration = timedelta(minutes=2)
    send_files: bool = False
    """Whether the model gets a tool that sends files."""
    api_key: Secret | None = None
    transcription_url: Address | None = None
    """The speech-to-text endpoint for voice messages, or None if there are no transcripts."""
    transcription_model: Line = "whisper-1"
    transcription_key: Secret | None = None
    speech_url: Address | None = None
    """The text-to-speech endpoint for answers, or None if no answers are spoken."""
    speech_model: Line = "tts-1"
    speech_voice: Line = "alloy"
    speech_key: Secret | None = None
    models: Mapping[Line, ModelPrices] = {}

    def __post_init__(self) -> None:
        fields = {"base_url": self.base_url, "model": self.model}
        if self.run is None:
            for missing in (name for name, value in fields.items() if not value):
                raise ConfigError(
                    f"{missing} is missing",
                    value=missing,
                    remedy=f"add {missing}; or set run and nothing else, to let a registered agent answer",
                )
        elif any(fields.values()):
            raise ConfigError(
                "the table names both a model and an agent",
                value="@".join(self.run[::-1]),
                remedy="remove either the model or the agent",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFile:
    """The contents of `gateway.toml` together with the secrets."""

    path: Path
    agent: AgentConfig
    gateway: GatewayConfig
    others: Mapping[str, AgentConfig] = field(default_factory=dict)
    """The agents that routes name, without the one in `[agent]`."""

    def agent_on(self, thread_id: str) -> AgentConfig | None:
        """Return the agent that answers on a chat's thread, or None if the agent is no longer configured."""
        name = agent_on(thread_id)
        return self.agent if name is None else self.others.get(name)


@dataclass(frozen=True, slots=True)
class _Source:
    file: Path
    environment: Mapping[str, str]
    state_dir: Path

    def place(self, name: str) -> TableName:
        return TableName(self.file, name)

    def read(self, name: str, told: object, kind: type[T]) -> T:
        return read_table(self.place(name), told, kind, self.environment)


def load_gateway(settings: Settings, *, environment: Mapping[str, str] | None = None) -> GatewayFile | None:
    """Return the gateway's configuration, or None if the gateway file does not exist.

    Raises:
        ConfigError: The file cannot be read, contains an invalid value, or is missing although a setting
            names it.
    """
    given_fields = places.environment() if environment is None else environment
    file = settings.gateway_file
    fields = read_toml(file, _CALLED, _REMEDY)
    if fields is None:
        if settings.find_origin("gateway_file") == "default":
            return None
        raise unreadable(file, _CALLED, "the file does not exist", _REMEDY)
    source = _Source(file, given_fields, settings.data_dir / STATE_DIR)
    top = source.place("")
    check_names(top, fields, (*_TABLES, _ROUTES))
    for name in _TABLES:
        if not isinstance(fields.get(name, {}), dict):
            table = f"{name}.<name>" if name in ("agents", "platforms") else name
            top.refuse(f"the value of {name} is not a table", value=name, remedy=f"write it as [{table}]")
    if "agent" not in fields:
        remedy = "add [agent] with base_url and model, or with run"
        top.refuse("there is no [agent] table, so no agent would answer", value="agent", remedy=remedy)
    agent = source.read("agent", fields["agent"], AgentConfig)
    models = _models(source, fields["agent"], fields.get("agents", {}))
    rules = source.read("gateway", fields.get("gateway", {}), GatewayRules)
    known_values = {command.name for command in COMMANDS}
    for name in rules.command_roles:
        if name not in known_values:
            source.place("gateway.command_roles").refuse(
                f"no command is called {name!r}",
                value=name,
                remedy=f"correct or remove {name}: the commands are {', '.join(sorted(known_values))}",
            )
    platforms = _platforms(source, fields.get("platforms", {}))
    routes = _routes(source, fields.get(_ROUTES, []), agent, models, platforms)
    others = {route.agent for route in routes if route.agent and route.agent not in models}
    by_name = ((None, agent), *models.items())
    gateway = GatewayConfig(
        **{name: getattr(rules, name) for name in rules.__struct_fields__},
        platforms=platforms,
        routes=routes,
        programs=frozenset(others) | (frozenset() if agent.run is None else {None}),
        models={name: tuple(config.models) for name, config in by_name},
        own_models={name: config.model for name, config in by_name if config.model},
        speaks=agent.speech_url is not None,
        state_dir=source.state_dir,
    )
    named = dict[str, AgentConfig]()  # the registered agents, each of which answers with its own runner
    for other in others:
        if not is_person(other):
            who, _, project = other.partition("@")
            named[other] = AgentConfig(run=(project, who), agent_id=other)
    return GatewayFile(path=file, agent=agent, gateway=gateway, others={**models, **named})


def _models(
    source: _Source, default: Mapping[str, Any], told: Mapping[str, Any]
) -> Mapping[str, AgentConfig]:
    table = source.place("agents")
    result: dict[str, AgentConfig] = {}
    for key, rest in told.items():
        name = str(key)
        if not _OWN_NAME.fullmatch(name) or name.casefold() in _NOT_NAMES:
            table.refuse(
                f"{name!r} is not a valid agent name",
                value=name,
                remedy=f"use up to 64 letters, digits, _ and -, but not {' or '.join(_NOT_NAMES)}",
            )
        inner = table.within(name)
        if not isinstance(rest, dict):
            inner.refuse("the value is not a table", value=name, remedy=f"write it as [{inner.name}]")
        for other in ("id", "run"):
            if other in rest:
                inner.refuse(
                    f"{other} is set",
                    value=other,
                    remedy="to use a registered agent, name it in [[routes]] instead",
                )
        for setting in sorted(item for item in rest if item.startswith("speech_")):
            inner.refuse(
                f"{setting} is set",
                value=setting,
                remedy="set it in [agent], because the setting applies to all agents",
            )
        own = {"base_url", "api_key_env", "api_key_file"} & rest.keys()
        left = {"id", "run", "instructions", *(("api_key_env", "api_key_file") if own else ())}
        left |= {"models"} if own else set()
        left |= {"context_window"} if "model" in rest else set()
        by_key = {key: value for key, value in default.items() if key not in left}
        agent = source.read(inner.name, {**by_key, **rest}, AgentConfig)
        result[name] = structs.replace(agent, agent_id=name)
    return result


def _routes(
    source: _Source,
    told: object,
    agent: AgentConfig,
    models: Mapping[str, AgentConfig],
    platforms: Mapping[Platform, PlatformConfig],
) -> tuple[Route, ...]:
    if not isinstance(told, list) or not all(isinstance(item, dict) for item in told):
        source.place("").refuse(
            "routes is not a list of tables", value=_ROUTES, remedy="write each of them as [[routes]]"
        )
    connected = [platform for platform, config in platforms.items() if config.enabled]
    routes = []
    for number, item in enumerate(told, start=1):
        table = source.place(f"routes, rule {number}")
        route = read_table(table, item, Route, source.environment)
        if route.agent is None:
            table.refuse("agent is missing", value="agent", remedy="add agent")
        if (route.chat or route.thread or route.sender) and not route.platform:
            table.refuse(
                "add platform, because the ids in chat, thread and sender belong to one platform",
                remedy="add platform",
            )
        for platform in route.platform:
            if platform not in connected:
                table.refuse(
                    f"the rule matches nothing, because {platform.value} is not connected",
                    value=platform.value,
                    remedy=f"add [platforms.{platform.value}], or remove the rule",
                )
        if is_person(route.agent):
            _check_person(table, route.agent, route, connected)
        # A route to the agent in `[agent]` names no agent.
        name = route.agent
        is_default = name in (DEFAULT_AGENT, agent.agent_id)
        if not is_default and not is_person(name) and name not in models:
            who, at, project = name.partition("@")
            if not (at and RULE.fullmatch(who) and project.strip()):
                known_value = ", ".join((DEFAULT_AGENT, *models))
                table.refuse(
                    f"there is no agent {name!r}",
                    value=name,
                    remedy='write agent = "name@project" for a registered agent, "human:name" for a '
                    f"person, or one of {known_value}",
                )
        routes.append(structs.replace(route, agent=None if is_default else name))
    try:
        check_routes(routes)
    except ConfigError as error:
        source.place(_ROUTES).refuse(error.message, value=error.value, remedy=error.remedy)
    return tuple(routes)


def _check_person(table: TableName, person: str, route: Route, connected: Sequence[Platform]) -> None:
    if not RULE.fullmatch(person.removeprefix(PERSON)):
        table.refuse(
            f"{person!r} is not a known person",
            value=person,
            remedy='write agent = "human:name", as `postroom people` lists them',
        )
    if route.thread:
        text = f"{person} answers in a chat, but not in the threads of a chat"
        table.refuse(text, value=person, remedy="remove thread from the rule")
    for platform in route.platform or connected:
        if platform in ANSWER_ONLY:
            table.refuse(
                f"{person} cannot answer over {platform.value}, whose callers wait for an immediate answer",
                value=platform.value,
                remedy="limit the rule to other platforms",
            )


def _platforms(source: _Source, told: Mapping[str, Any]) -> Mapping[Platform, PlatformConfig]:
    known_values = [*(platform.value for platform in ADAPTERS), *plug_ins()]
    check_names(source.place("platforms"), told, known_values)
    result = dict[Platform, PlatformConfig]()
    for name, given in told.items():
        platform = Platform(name)
        kind = load_adapter_class(platform).options
        table = source.place(f"platforms.{platform.value}")
        if not isinstance(given, dict):
            table.refuse("the value is not a table", value=name, remedy=f"write it as [{table.name}]")
        rest = _current_form(table, given)
        if rest.get("enabled") is False:  # a disabled channel needs neither secrets nor values
            check_table(table, rest, kind)
            rest = {name: item for name, item in rest.items() if name in PlatformConfig.__struct_fields__}
            kind = PlatformConfig
        elif platform is Platform.MATRIX:
            rest.setdefault("sync_file", str(source.state_dir / "matrix-sync.json"))
        result[platform] = source.read(table.name, rest, kind)
    if not any(config.enabled for config in result.values()):
        source.place("").refuse(
            "no platform is enabled, so nobody could write to an agent",
            value="platforms",
            remedy=f"add [platforms.<name>] for one of {', '.join(known_values)}; or remove the gateway file",
        )
    return result


def _current_form(table: TableName, told: Mapping[str, Any]) -> dict[str, Any]:
    rest = dict(told)
    extra = rest.pop("extra", {})
    if not isinstance(extra, dict):
        table.refuse(
            "the value of extra is not a table", value="extra", remedy=f"write it as [{table.name}.extra]"
        )
    for name, value in extra.items():
        if name in rest:
            table.refuse(f"{name} is set twice", value=name, remedy="set it either here or in extra")
        rest[name] = value
    former = rest.pop("busy_chats", None)
    if former is None:
        return rest
    chats = rest.get("chats", {})
    if not isinstance(former, dict) or not isinstance(chats, dict):
        table.refuse(
            "the value of busy_chats is not a table",
            value="busy_chats",
            remedy="write [<channel>.chats.<id>] instead",
        )
    kept_fields = {chat: {"busy": mode} for chat, mode in former.items()}
    changed = {chat: {**kept_fields.get(chat, {}), **item} for chat, item in chats.items()}
    return {**rest, "chats": {**kept_fields, **changed}}
