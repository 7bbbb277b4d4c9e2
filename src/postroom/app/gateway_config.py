"""What `gateway.toml` says: who answers, which channels there are, and what holds for them.

    [agent]              what answers: a model behind an endpoint that speaks the OpenAI chat protocol
    [gateway]            what holds for all channels
    [platforms.<name>]   one channel: how it is reached, and who may write there
    [agents.<name>]      another model that answers, of which what is left out is as in [agent]
    [[routes]]           which agent answers which messages: the first that matches, else that of [agent]

No file, no gateway. Nothing is guessed, as in `config`: an unknown name, a value out of range, a duration
without a unit or a secret in the file stops the start with a `ConfigError` that names the file, the table,
the name, the value where it is no secret, and the remedy.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from postroom.app import places
from postroom.app.config import Settings
from postroom.app.gateway_models import AgentTable, GatewayTable, PlatformTable, RouteTable
from postroom.app.gateway_platforms import NESTED_SECRETS, PLATFORMS, PlatformNames
from postroom.app.gateway_secrets import Table, secret_names, take_secret
from postroom.app.tokens import redact
from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.gateway.config import (
    CONDITIONS,
    DEFAULT_AGENT,
    PERSON,
    BusyConfig,
    GatewayConfig,
    HomeChannel,
    PlatformConfig,
    Route,
    is_person,
)
from postroom.gateway.replies import agent_on
from postroom.gateway.routes import check_routes
from postroom.gateway.session import ANSWER_ONLY, Platform
from postroom.mail.names import RULE

STATE_DIR: Final = "gateway"
"""Folder in the data folder: the gateway's status, its locks, and how far channels have read."""
_LARGEST: Final = 1024 * 1024
_TABLES: Final = ("agent", "agents", "gateway", "platforms")
_ROUTES: Final = "routes"
_OWN_NAME: Final = re.compile(r"[\w-]{1,64}")
_NOT_NAMES: Final = (DEFAULT_AGENT, "main")
"""These stand for `[agent]`."""
_PASSWORD: Final = re.compile(r"://[^/\s]*@")
T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Who answers: a model, or an agent of the mail room. The key is never shown."""

    base_url: str
    model: str
    run: tuple[str, str] | None
    """Project and name of the agent that is run; None for a model."""
    agent_id: str
    instructions: str
    max_rounds: int
    max_run: timedelta
    """How long one execution of a run may take."""
    context_window: int | None
    silence: timedelta
    send_files: bool = False
    """Whether a model is offered the tool that sends files."""
    api_key: str | None = field(default=None, repr=False)
    transcription_url: str | None = None
    """The endpoint that writes down what is said in voice messages; None: nobody does."""
    transcription_model: str = "whisper-1"
    transcription_key: str | None = field(default=None, repr=False)
    speech_url: str | None = None
    """The endpoint that speaks answers; None: no answer is spoken."""
    speech_model: str = "tts-1"
    speech_voice: str = "alloy"
    speech_key: str | None = field(default=None, repr=False)
    models: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The models that /model offers, with the prices in USD of a million tokens read and written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFile:
    """A file that was read, its secrets with it."""

    path: Path
    agent: AgentConfig
    gateway: GatewayConfig
    others: Mapping[str, AgentConfig] = field(default_factory=dict)
    """The agents that routes name, beside that of `[agent]`."""

    def agent_on(self, thread_id: str) -> AgentConfig | None:
        """Return what answers on a chat's thread; None when it answers no chats any more."""
        name = agent_on(thread_id)
        return self.agent if name is None else self.others.get(name)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where values come from."""

    file: Path
    environment: Mapping[str, str]
    state_dir: Path

    def table(self, name: str) -> Table:
        return Table(self.file, name)


@dataclass(frozen=True, slots=True)
class _Channel:
    """One platform as its table has it."""

    told: PlatformTable
    config: PlatformConfig


def load_gateway(settings: Settings, *, environment: Mapping[str, str] | None = None) -> GatewayFile | None:
    """Return what the gateway of these settings is set to; None when there is no file.

    Raises:
        ConfigError: the file cannot be read or says something wrong, or is not where a setting says.
    """
    given = places.environment() if environment is None else environment
    file = settings.gateway_file
    told = _read(file, required=settings.origin_of("gateway_file") != "default")
    if told is None:
        return None
    source = _Source(file, given, settings.data_dir / STATE_DIR)
    _check_names(source.table(""), told, (*_TABLES, _ROUTES))
    for name in _TABLES:
        if not isinstance(told.get(name, {}), dict):
            source.table("").refuse(f"{name} is no table", value=name, remedy=f"write it as [{name}]")
    agent = _agent(source, told.get("agent"))
    models = _models(source, told.get("agent", {}), told.get("agents", {}))
    rules = _checked(source.table("gateway"), GatewayTable, told.get("gateway", {}))
    channels = _channels(source, told.get("platforms", {}))
    routes = _routes(source, told.get(_ROUTES, []), agent, models, channels)
    others = {one.agent for one in routes if one.agent and one.agent not in models}
    named = {one: _of_mail_room(one) for one in others if not is_person(one)}
    programs = frozenset(others) | (frozenset() if agent.run is None else {None})
    gateway = replace(
        _gateway(source, routes, rules, channels, programs),
        models={None: tuple(agent.models), **{name: tuple(one.models) for name, one in models.items()}},
        own_models={name: one.model for name, one in ((None, agent), *models.items()) if one.model},
        speaks=agent.speech_url is not None,
    )
    return GatewayFile(path=file, agent=agent, gateway=gateway, others={**models, **named})


def _models(
    source: _Source, default: Mapping[str, Any], told: Mapping[str, Any]
) -> Mapping[str, AgentConfig]:
    """Return the gateway's other models; what is left out is as in `[agent]`, a key only for its endpoint."""
    table = source.table("agents")
    found: dict[str, AgentConfig] = {}
    for key, rest in told.items():
        name = str(key)
        if not _OWN_NAME.fullmatch(name) or name.casefold() in _NOT_NAMES:
            table.refuse(
                f"{name!r} is no name for an agent",
                value=name,
                remedy=f"write letters, digits, _ and -, 64 at most, and not {' or '.join(_NOT_NAMES)}",
            )
        inner = table.within(name)
        if not isinstance(rest, dict):
            inner.refuse("it is no table", value=name, remedy=f"write it as [{inner.name}]")
        for other in ("id", "run"):
            if other in rest:
                inner.refuse(f"{other} is set", value=other, remedy="name agents of the mail room in routes")
        for setting in sorted(one for one in rest if one.startswith("speech_")):
            inner.refuse(f"{setting} is set", value=setting, remedy="set it in [agent]: it is for all agents")
        own = {"base_url", "api_key_env", "api_key_file"} & rest.keys()
        left = {"id", "run", "instructions", *(("api_key_env", "api_key_file") if own else ())}
        left |= {"models"} if own else set()
        left |= {"context_window"} if "model" in rest else set()
        kept = {key: value for key, value in default.items() if key not in left}
        found[name] = replace(_agent(source, {**kept, **rest}, inner), agent_id=name)
    return found


def _of_mail_room(address: str) -> AgentConfig:
    """Return an agent that answers by its own runner."""
    name, _, project = address.partition("@")
    return AgentConfig(
        base_url="",
        model="",
        run=(project, name),
        agent_id=address,
        instructions="",
        max_rounds=0,
        max_run=timedelta(0),
        context_window=None,
        silence=timedelta(0),
    )


def _routes(
    source: _Source,
    told: object,
    agent: AgentConfig,
    models: Mapping[str, AgentConfig],
    channels: Mapping[Platform, _Channel],
) -> tuple[Route, ...]:
    if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
        source.table("").refuse("routes are no tables", value=_ROUTES, remedy="write each as [[routes]]")
    routes = []
    for number, one in enumerate(told, start=1):
        table = source.table(f"routes, rule {number}")
        read = _checked(table, RouteTable, one)
        for platform in read.platform:
            if platform not in channels or not channels[platform].config.enabled:
                table.refuse(
                    f"it matches nothing: {platform.value} is not connected",
                    value=platform.value,
                    remedy=f"add [platforms.{platform.value}], or remove the rule",
                )
        if is_person(read.agent):
            _check_person(table, read, channels)
        conditions = {name: tuple(map(str, getattr(read, name))) for name in CONDITIONS}
        routes.append(Route(agent=_named(table, read.agent, agent, models), **conditions))
    try:
        check_routes(routes)
    except ConfigError as error:
        source.table(_ROUTES).refuse(error.message, value=error.value, remedy=error.remedy)
    return tuple(routes)


def _check_person(table: Table, read: RouteTable, channels: Mapping[Platform, _Channel]) -> None:
    """Refuse a route to a person whose answer could not come where it is asked for."""
    if not RULE.fullmatch(read.agent.removeprefix(PERSON)):
        table.refuse(
            f"{read.agent!r} names nobody",
            value=read.agent,
            remedy='write agent = "human:name", as `postroom people` lists them',
        )
    if read.thread:
        told = f"{read.agent} answers in a chat, and in none of its threads"
        table.refuse(told, value=read.agent, remedy="leave thread out")
    for platform in read.platform or (one for one, channel in channels.items() if channel.config.enabled):
        if platform in ANSWER_ONLY:
            table.refuse(
                f"{read.agent} cannot answer over {platform.value}, whose callers wait for their answer",
                value=platform.value,
                remedy="name the other platforms in the rule",
            )


def _named(table: Table, name: str, agent: AgentConfig, models: Mapping[str, AgentConfig]) -> str | None:
    """Return which agent a route names; None for that of `[agent]`."""
    if name in (DEFAULT_AGENT, agent.agent_id):
        return None
    who, at, project = name.partition("@")
    if is_person(name):
        return name
    if name not in models and not (at and who.strip() and project.strip()):
        known = ", ".join((DEFAULT_AGENT, *models))
        table.refuse(
            f"there is no agent {name!r}",
            value=name,
            remedy='write agent = "name@project" for an agent of the mail room, "human:name" for a person, '
            f"or one of {known}",
        )
    return name


def _read(file: Path, *, required: bool) -> dict[str, Any] | None:
    try:
        with file.open("rb") as stream:
            content = stream.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise _unreadable(file, f"it is larger than {_LARGEST} bytes")
        return tomllib.loads(content.decode("utf-8"))
    except FileNotFoundError as error:
        if required:
            raise _unreadable(file, "it is not there") from error
        return None
    except OSError as error:
        raise _unreadable(file, error.strerror or type(error).__name__) from error
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(file, f"not TOML: {error}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(file, f"not TOML: {type(error).__name__}") from error


def _unreadable(file: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the gateway's file {file} cannot be read: {reason}",
        value=str(file),
        remedy="correct it, or take it away: without it the server runs with no chats",
    )


def _agent(source: _Source, told: dict[str, Any] | None, table: Table | None = None) -> AgentConfig:
    table = table or source.table("agent")
    if told is None:
        source.table("").refuse(
            "there is no [agent], so that nobody would answer",
            value="agent",
            remedy="add [agent] with base_url and model, or with run",
        )
    rest = dict(told)
    key = take_secret(table, rest, "api_key", source.environment)
    transcription_key = take_secret(table, rest, "transcription_key", source.environment)
    speech_key = take_secret(table, rest, "speech_key", source.environment)
    secrets = secret_names(["api_key", "transcription_key", "speech_key"])
    read = _checked(table, AgentTable, rest, also=secrets)
    run = _run(table, read)
    return AgentConfig(
        base_url=read.base_url or "",
        model=read.model or "",
        run=run,
        agent_id=read.id,
        instructions=read.instructions,
        max_rounds=read.max_rounds,
        max_run=read.max_run,
        context_window=read.context_window,
        silence=read.silence,
        send_files=read.send_files,
        api_key=key,
        transcription_url=read.transcription_url,
        transcription_model=read.transcription_model,
        transcription_key=transcription_key,
        speech_url=read.speech_url,
        speech_model=read.speech_model,
        speech_voice=read.speech_voice,
        speech_key=speech_key,
        models={name: (one.input_price, one.output_price) for name, one in read.models.items()},
    )


def _run(table: Table, read: AgentTable) -> tuple[str, str] | None:
    """Return project and name of the agent that answers; None when that is a model."""
    told = {"base_url": read.base_url, "model": read.model}
    if read.run is None:
        for missing in (name for name, value in told.items() if value is None):
            table.refuse(f"{missing} is missing", value=missing, remedy=f"add {missing}, or run alone")
        return None
    if any(value is not None for value in told.values()):
        table.refuse("names a model and an agent", value=read.run, remedy="leave one of them out")
    name, at, project = read.run.partition("@")
    if not (name.strip() and at and project.strip()):
        table.refuse(
            "run names no agent",
            value=read.run,
            remedy='write run = "name@project", the project by slug or path',
        )
    return project, name


def _gateway(
    source: _Source,
    routes: tuple[Route, ...],
    rules: GatewayTable,
    channels: Mapping[Platform, _Channel],
    programs: frozenset[str | None],
) -> GatewayConfig:
    told = {platform: one.told for platform, one in channels.items()}
    busy = BusyConfig(
        mode=rules.busy.mode,
        max_waiting=rules.busy.max_waiting,
        by_platform={platform: one.busy for platform, one in told.items() if one.busy is not None},
    )
    return GatewayConfig(
        platforms={platform: one.config for platform, one in channels.items()},
        default_reset_policy=rules.reset.policy(),
        reset_by_type={name: one.policy() for name, one in rules.reset_by_type.items()},
        reset_by_platform={name: one.reset.policy() for name, one in told.items() if one.reset is not None},
        chats={
            (name, chat): rules.rules() for name, one in told.items() for chat, rules in one.chats.items()
        },
        programs=programs,
        group_sessions_per_user=rules.group_sessions_per_user,
        thread_sessions_per_user=rules.thread_sessions_per_user,
        busy=busy,
        streaming=rules.streaming.config(),
        delivery=rules.delivery.config(),
        pairing=rules.pairing.rules(),
        unauthorized_dm_behavior=rules.unauthorized_dm_behavior,
        command_roles=dict(rules.command_roles),
        max_message_age=rules.max_message_age,
        keep_messages=rules.keep_messages,
        max_media_bytes=rules.max_media_bytes,
        max_media_bytes_by_kind={str(kind): most for kind, most in rules.max_media_bytes_by_kind.items()},
        scan_command=tuple(rules.scan_command),
        drain=rules.drain,
        show_cost=rules.show_cost,
        routes=routes,
        group_context=rules.group_context,
        state_dir=source.state_dir,
    )


def _channels(source: _Source, told: Mapping[str, Any]) -> Mapping[Platform, _Channel]:
    known = [platform.value for platform in PLATFORMS]
    _check_names(source.table("platforms"), told, known)
    found = {Platform(name): _channel(source, Platform(name), rest) for name, rest in told.items()}
    if not any(one.config.enabled for one in found.values()):
        source.table("").refuse(
            "no platform is enabled, so that nobody could write",
            value="platforms",
            remedy=f"add [platforms.<name>], of {', '.join(known)}; or take the file away",
        )
    return MappingProxyType(found)


def _channel(source: _Source, platform: Platform, told: object) -> _Channel:
    table, names = source.table(f"platforms.{platform.value}"), PLATFORMS[platform]
    if not isinstance(told, dict):
        table.refuse("it is no table", value=platform.value, remedy=f"write it as [{table.name}]")
    rest = _with_chats(table, _flat(table, told))
    read = rest.get("enabled", True) is not False
    secrets = {
        name: take_secret(table, rest, name, source.environment, read=read)
        for name in sorted(names.secret_names)
    }
    common = list(PlatformTable.model_fields)
    _check_names(table, rest, [*common, *names.extras - names.secrets, *secret_names(names.secret_names)])
    read_table = _checked(table, PlatformTable, {name: rest.pop(name) for name in common if name in rest})
    for name in list(rest):
        rest[name] = _extra(source, table, platform, name, rest[name], read=read)
    rest |= {name: secrets[name] for name in names.secrets if secrets[name] is not None}
    if platform is Platform.MATRIX:
        rest.setdefault("sync_file", str(source.state_dir / "matrix-sync.json"))
    return _Channel(read_table, _platform(table, platform, read_table, names, secrets, rest))


def _with_chats(table: Table, told: dict[str, Any]) -> dict[str, Any]:
    """Return a channel's table with the busy modes of single chats where they stand now."""
    former = told.pop("busy_chats", None)
    if former is None:
        return told
    chats = told.get("chats", {})
    if not isinstance(former, dict) or not isinstance(chats, dict):
        table.refuse(
            "busy_chats is no table", value="busy_chats", remedy="write [<channel>.chats.<id>] instead"
        )
    kept = {chat: {"busy": mode} for chat, mode in former.items()}
    return {**told, "chats": {**kept, **{chat: {**kept.get(chat, {}), **one} for chat, one in chats.items()}}}


def _platform(
    table: Table,
    platform: Platform,
    told: PlatformTable,
    names: PlatformNames,
    secrets: Mapping[str, str | None],
    extra: Mapping[str, Json],
) -> PlatformConfig:
    main = {name: secrets[name] for name in ("token", "api_key")}
    for name, stands_for in names.also.items():
        if secrets[name] is not None and main[stands_for] is not None:
            table.refuse(f"{name} and {stands_for} are the same here", value=name, remedy="keep one of them")
        main[stands_for] = secrets[name] if main[stands_for] is None else main[stands_for]
    home = told.home_channel
    return PlatformConfig(
        enabled=told.enabled,
        token=main["token"],
        api_key=main["api_key"],
        home_channel=None if home is None else HomeChannel(platform=platform, **home.model_dump()),
        allow=dict(told.allow),
        reactions=told.reactions,
        extra=dict(extra),
    )


def _flat(table: Table, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with what stands in its `extra` beside the rest."""
    rest = dict(told)
    extra = rest.pop("extra", {})
    if not isinstance(extra, dict):
        table.refuse("extra is no table", value="extra", remedy=f"write it as [{table.name}.extra]")
    for name, value in extra.items():
        if name in rest:
            table.refuse(f"{name} is set twice", value=name, remedy="set it here, or in its extra")
        rest[name] = value
    return rest


def _extra(source: _Source, table: Table, platform: Platform, name: str, value: Any, *, read: bool) -> Json:
    """Return a value of a platform's own as its adapter takes it: paths absolute, secrets read."""
    if name in PLATFORMS[platform].files and isinstance(value, str) and value:
        return str(places.absolute(value, source.environment, base=source.file.parent))
    inner = NESTED_SECRETS.get((platform, name))
    if inner is not None:
        return _nested(source, table.within(name), inner, value, read=read)
    if name == "proxy" and isinstance(value, str) and "@" in value:
        table.refuse(
            "a password stands in the proxy's address", value=name, remedy="name a proxy that asks for none"
        )
    return value


def _nested(source: _Source, table: Table, names: frozenset[str], told: Any, *, read: bool) -> Json:
    """Return a table of tables with the secrets of each read; one that is a secret alone becomes that."""
    if not isinstance(told, dict):
        table.refuse("it is no table", value=table.name, remedy=f"write [{table.name}.<name>]")
    found: dict[str, Json] = {}
    for key, one in told.items():
        inner = table.within(key)
        ways = secret_names(sorted(names))
        if not isinstance(one, dict):
            inner.refuse("it is no table", value=key, remedy=f"write [{inner.name}] with {ways[0]}")
        rest = dict(one)
        secrets = {name: take_secret(inner, rest, name, source.environment, read=read) for name in names}
        kept = {name: secret for name, secret in secrets.items() if secret is not None}
        if names == {"token"}:
            _check_names(inner, rest, ways)
            found[key] = kept.get("token", "")
        else:
            found[key] = rest | kept
    return found


def _checked(table: Table, model: type[T], told: Mapping[str, Any], *, also: Iterable[str] = ()) -> T:
    _check_deep(table, model, told, also)
    try:
        return model(**told)
    except ValidationError as error:
        first = error.errors()[0]
        *within, name = [str(part) for part in first["loc"] if part != "[key]"] or [""]
        for part in within:
            table = table.within(part)
        reason = first["msg"].removeprefix("Value error, ")
        reason = reason[:1].lower() + reason[1:]
        if first["type"] == "missing":
            table.refuse(f"{name} is missing", value=name, remedy=f"add {name}")
        shown = _PASSWORD.sub("://***@", redact(str(first.get("input"))))[:200]
        table.refuse(f"{name} is {shown!r}: {reason}", value=shown, remedy=f"correct or remove {name}")


def _check_deep(table: Table, model: type[BaseModel], told: Mapping[str, Any], also: Iterable[str]) -> None:
    """Refuse names that are not known, in the tables within this one too."""
    _check_names(table, told, [*model.model_fields, *also])
    for name, value in told.items():
        if not isinstance(value, dict):
            continue
        kind, is_many = _table_of(model.model_fields[name].annotation)
        within = table.within(name)
        tables = [(within.within(key), one) for key, one in value.items()] if is_many else [(within, value)]
        for inner, one in tables:
            if kind is not None and isinstance(one, dict):
                _check_deep(inner, kind, one, ())


def _table_of(annotation: object) -> tuple[type[BaseModel] | None, bool]:
    """Return what a field's table is, and whether it holds several of that by name."""
    kinds = get_args(annotation) or (annotation,)
    models = (one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel))
    return next(models, None), get_origin(annotation) is dict


def _check_names(table: Table, told: Mapping[str, Any], known: Iterable[str]) -> None:
    names = list(known)
    for name in told:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
            table.refuse(
                f"no setting is called {name[:100]!r}",
                value=name[:100],
                remedy=f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(names))}",
            )
