"""The gateway of a server, with its channels and agents, which is created from `gateway.toml`.

At the start, the mailbox resumes earlier runs, and then the channels are connected. At the stop, no more
messages are accepted, and active runs and answers get time to finish.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from postroom.app.config import Settings
from postroom.app.gateway_answering import Missing, Named, answering
from postroom.app.gateway_config import AgentConfig, GatewayFile
from postroom.concurrency import SystemTimer
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.chat import CHAT_THREAD
from postroom.contracts.clock import Clock, SystemClock, Timer, milliseconds
from postroom.contracts.errors import AgentNotFound, ConfigError, InvalidRunner, MissingExtra
from postroom.contracts.executor import AgentRunResult, ResolvedRunPlan, RunDispatchExecutor
from postroom.contracts.leases import Lease
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.contracts.runners import Runners
from postroom.dispatch.routing import SeveralExecutors
from postroom.gateway.config import PERSON, PlatformConfig, is_person
from postroom.gateway.delivery import MailOutbox
from postroom.gateway.files import ChatFiles
from postroom.gateway.gateway import Gateway
from postroom.gateway.metrics import GatewayMetrics
from postroom.gateway.platforms import load_adapter_class
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.platforms.http_adapter import HttpAdapter
from postroom.gateway.replies import ChatEffects, agent_on
from postroom.gateway.routes import listed
from postroom.gateway.session import Platform
from postroom.gateway.sessions import Sessions
from postroom.gateway.status import ScopedLocks
from postroom.gateway.streaming import ChatExecutor, StreamingPresenter
from postroom.http_api.guard import OpenPath
from postroom.http_api.other_servers import OtherServers, PassedOn
from postroom.leases import Leases
from postroom.log import get_logger
from postroom.ports import ChatDelivery
from postroom.relay import Relay
from postroom.runtime import AgentRuntime, AgentSpec, MapResolver, OpenAICompatibleModel, ResolvedAgent
from postroom.runtime.files import SendFileTool
from postroom.runtime.openai import OpenAISpeaker, OpenAITranscriber
from postroom.services.runs import RunService
from postroom.services.work import failed_runs
from postroom.stores.chats.stores import ChatStores

_LOG = get_logger(__name__)
CHANNELS: Final = "/channels"
"""The path prefix for the routes of channels that are not at the root."""


class ChatAgents(SeveralExecutors):
    """Executes each run of a chat with the agent that answers in the chat."""

    def __init__(
        self, told: GatewayFile, agents: RunDispatchExecutor | None, clock: Clock, timer: Timer
    ) -> None:
        self._told = told
        self._clients: list[OpenAICompatibleModel] = []
        models: dict[str, ResolvedAgent] = {}
        for agent in (told.agent, *told.others.values()):
            if agent.run is None:
                self._clients.append(make_model(agent, clock=clock))
                spec = AgentSpec(
                    model=agent.model,
                    agent_id=agent.agent_id,
                    system_prompt=agent.instructions,
                    max_rounds=agent.max_rounds,
                    wall_timeout_ms=milliseconds(agent.max_run),
                    context_window=agent.context_window,
                    commits_calls=agent.send_files,
                    prices={
                        name: (prices.input_price, prices.output_price)
                        for name, prices in agent.models.items()
                    },
                )
                tools = (SendFileTool(),) if agent.send_files else ()
                models[agent.agent_id] = ResolvedAgent(spec=spec, model=self._clients[-1], tools=tools)
            elif agents is None:
                raise ConfigError("this server runs no registered agents", value=agent.agent_id)
        self._models = AgentRuntime(MapResolver(models), clock=clock, timer=timer) if models else None
        self._agents = agents

    async def chosen(self, activation: RunActivation) -> RunDispatchExecutor:
        """Return the executor of the agent that answers on the run's thread.

        Raises:
            AgentNotFound: `gateway.toml` no longer names this agent.
        """
        return self._of(activation.thread_id)

    async def resolve(self, activation: RunActivation, *, pinned: str | None) -> ResolvedRunPlan:
        """Return the configuration of a run; the run's agent may have been removed from `gateway.toml`."""
        if pinned is not None and self._told.agent_on(activation.thread_id) is None:
            return ResolvedRunPlan(resolution_id=pinned)
        return await super().resolve(activation, pinned=pinned)

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run as the agent that answers on the run's thread."""
        return await super().run(replace(activation, agent_id=self.agent_of(activation.thread_id)), sink)

    def each(self) -> Iterator[RunDispatchExecutor]:
        """Yield the executors for models and for registered agents."""
        return iter([executor for executor in (self._models, self._agents) if executor is not None])

    def waits_for_outages(self, thread_id: str) -> bool:
        """Return whether a thread's runs are retried for minutes after a failure that may be an outage."""
        return self._told.agent_on(thread_id) is not None and self._of(thread_id).waits_for_outages(thread_id)

    def commits_steps(self, thread_id: str) -> bool:
        """Return whether the executor of a thread's runs commits each step."""
        return self._told.agent_on(thread_id) is not None and self._of(thread_id).commits_steps(thread_id)

    def agent_of(self, thread_id: str) -> str | None:
        """Return the id of the agent that executes the runs of a thread."""
        agent = self._told.agent_on(thread_id)
        if agent is None:
            return agent_on(thread_id)
        return agent.agent_id if agent.run is None else "@".join(agent.run[::-1])

    async def close(self) -> None:
        """Close the connections to the models' endpoints."""
        for client in self._clients:
            await client.close()

    def _of(self, thread_id: str) -> RunDispatchExecutor:
        agent = self._told.agent_on(thread_id)
        executor = None if agent is None else self._models if agent.run is None else self._agents
        if executor is None:
            name = agent_on(thread_id)
            raise AgentNotFound(f"{name} no longer answers in this chat", value=name)
        return executor


class ChatService:
    """The gateway for chats together with its services.

    Create the object outside the event loop, and run the object on the event loop.
    """

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        told: GatewayFile,
        *,
        runs: RunService,
        chat: ChatStores,
        relay: Relay,
        clock: Clock,
        registry: CollectorRegistry,
        agents: RunDispatchExecutor | None = None,
        runners: Runners | None = None,
        knows_person: Callable[[str], Awaitable[bool]] | None = None,
        mail: ChatDelivery | None = None,
        locks_dir: Path | None = None,
        timer: Timer | None = None,
        leases: Leases | None = None,
        store_id: Callable[[], Awaitable[str]] | None = None,
        others: OtherServers | None = None,
    ) -> None:
        """Create the gateway and its services without starting them.

        `agents` executes registered agents, and `runners` returns the runners of registered agents. `mail` is
        notified when mail arrives for a chat, and when a chat message arrives for a person. If `leases` is
        given, the servers of one database share the channels. `others` forwards requests to the other servers
        of the database.

        Raises:
            ConfigError: A channel cannot be created from its configuration.
            MissingExtra: The client of the model is not installed.
        """
        timer, config = timer or SystemTimer(), told.gateway
        self.file = told.path
        self._state_dir = config.state_dir
        self.adapters = _adapters(told, clock, timer)
        self.open_paths = open_paths(self.adapters)
        """The addresses whose callers the channels authenticate themselves."""
        self.runs = runs
        self.mailbox = runs.mailbox
        self.state = "stopped"
        """The state of the gateway: stopped, starting, running or stopping."""
        sessions = Sessions(chat, config, clock)
        presenter = StreamingPresenter(config.streaming, sessions, self.adapters, clock, timer)
        self._told, self._runners, self._knows_person = told, runners, knows_person
        self._answering = ChatAgents(told, agents, clock, timer)
        self._transcriber = _transcriber(told.agent, clock)
        transcribe = None if self._transcriber is None else self._transcriber.transcribe
        self._speaker = _speaker(told.agent, clock)
        files = ChatFiles(config, chat.files, self.adapters, transcribe=transcribe)
        runs.serve(CHAT_THREAD, ChatExecutor(self._answering, presenter, files.of_run), ChatEffects())
        self.gateway = Gateway(
            config,
            stores=chat,
            outbox=runs.stores.outbox,
            threads=runs.stores.threads,
            run_queue=self.mailbox,
            presenter=presenter,
            relay=relay,
            clock=clock,
            timer=timer,
            metrics=GatewayMetrics(registry),
            mail=mail,
            failed=failed_runs,
            store=runs.stores.store,
            leases=leases,
            speak=None if self._speaker is None else self._speaker.speak,
        )
        self.mail_outbox = MailOutbox(self.adapters)
        """Delivers mail to the chats of this gateway."""
        self._locks_dir, self._store_id, self._others = locks_dir, store_id, others
        self._locks = ScopedLocks(locks_dir)

    def prepare(self, mcp_path: str) -> None:
        """Create the state folder of the gateway. Blocks.

        Raises:
            ConfigError: The folder cannot be created, or a channel uses the address of the MCP endpoint.
        """
        _check_paths(self.file, self.open_paths, mcp_path)
        if self._state_dir is not None:
            folder = self._state_dir
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
            except OSError as error:
                raise ConfigError(
                    f"the folder {folder} cannot be created or made private: {error.strerror}",
                    value=str(folder),
                    remedy="make the server's user the owner of the data folder",
                ) from error

    # Start and stop.

    async def start(self) -> None:
        """Resume earlier runs, connect the channels, and start to answer messages.

        Raises:
            ConfigError, MissingExtra: A channel lacks a setting or a package.
            StoreError: Earlier work could not be resumed.
        """
        self.state = "starting"
        for item in await self.missing():
            _LOG.warning("gateway.nobody_answers", reason=item.what, remedy=item.remedy)
        store_id = "" if self._store_id is None else await self._store_id()
        await asyncio.to_thread(self._take_tokens, store_id)
        await self.runs.start()
        await self.gateway.start()
        self.state = "running"
        _LOG.info("gateway.running", channels=[adapter.platform.value for adapter in self.adapters])

    async def missing(self) -> list[Missing]:
        """Return the agents and people who cannot answer in chats, with the reasons."""
        looked_at = [await self._find_fault(named) for named in answering(self._told).values()]
        return [item for item in looked_at if item is not None]

    def names(self, whom: str) -> bool:
        """Return whether the gateway file names a person or agent who must answer in chats."""
        return whom.casefold() in map(str.casefold, answering(self._told))

    async def _find_fault(self, named: Named) -> Missing | None:
        if is_person(named.whom):
            name = named.whom.removeprefix(PERSON)
            is_there = self._knows_person is None or await self._knows_person(name)
            return None if is_there else named.gone
        try:
            is_run = self._runners is None or await self._runners.runner_of(named.whom) is not None
        except AgentNotFound as error:
            is_unknown = error.remedy == AgentNotFound.default_remedy
            return named.gone if is_unknown else Missing(named.gone.what, error.remedy)
        except InvalidRunner as error:
            remedy = error.remedy or named.not_run.remedy
            return Missing(f"{named.where} names {named.whom}: {error.message}", remedy)
        return None if is_run else named.not_run

    async def stop(self) -> None:
        """Stop the gateway cleanly; do nothing if the gateway is not running."""
        if self.state == "stopped":
            return
        self.state = "stopping"
        try:
            await self.gateway.stop()
        finally:
            await self._answering.close()
            if self._transcriber is not None:
                await self._transcriber.close()
            if self._speaker is not None:
                await self._speaker.close()
            await asyncio.to_thread(self._locks.release_all)
            self.state = "stopped"

    async def hurry(self) -> None:
        """Stop waiting for runs and answers while the gateway is being stopped.

        The runs and the answers continue at the next start.
        """
        await self.gateway.hurry()

    def _take_tokens(self, store_id: str) -> None:
        tokens = [(adapter.platform.value, adapter.lock_identity()) for adapter in self.adapters]
        try:
            for scope, identity in tokens:
                if identity is not None and self._locks_dir is not None:
                    self._locks_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    self._locks_dir.mkdir(mode=0o700, exist_ok=True)
                    self._locks.acquire(
                        scope, identity, store_id=store_id, server=str(self._state_dir or self.file)
                    )
        except OSError as error:  # without a home, only servers of this data folder see the locks
            _LOG.warning("gateway.tokens_not_locked", reason=error.strerror)

    # Routes and addresses.

    async def passed_on(self, adapter: BasePlatformAdapter, request: Request) -> Response | None:
        """Forward a request to the server of a channel, and return the response.

        Return None if this server serves the channel.

        Raises:
            ServerUnavailable: No server serves the channel now, or the server does not answer.
        """
        server = await self._elsewhere(adapter)
        return None if server is None or self._others is None else await self._others.pass_on(request, server)

    async def _elsewhere(self, adapter: BasePlatformAdapter) -> Lease | None:
        if self._others is None or adapter.lease is None or adapter.is_ours():
            return None
        return await self._others.with_lease(adapter.lease)

    def routes(self) -> list[BaseRoute]:
        """Return the HTTP routes of all channels."""
        at_root: list[BaseRoute] = []
        below: list[BaseRoute] = []
        for adapter in self.adapters:
            routes = adapter.routes()
            for route in routes:
                if self._others is not None and isinstance(route, Route):
                    route.app = PassedOn(route.app, self._others, partial(self._elsewhere, adapter))
            (at_root if adapter.at_root else below).extend(routes)
        return [*at_root, *([Mount(CHANNELS, routes=below)] if below else [])]


def examine(told: GatewayFile, settings: Settings) -> None:
    """Check that the gateway can be created from a gateway file, without opening a connection.

    Raises:
        ConfigError: A channel cannot be created, or uses the address of the MCP endpoint.
        MissingExtra: The client of the model or a library of a channel is not installed.
    """
    clock = SystemClock()
    adapters = _adapters(told, clock, SystemTimer())
    models = (agent for agent in (told.agent, *told.others.values()) if agent.run is None)
    missing = list[MissingExtra]()
    loads: list[Callable[[], object]] = [adapter.load_libraries for adapter in adapters]
    loads += [partial(make_model, agent, clock=clock) for agent in models]
    for load in loads:
        try:
            load()
        except MissingExtra as error:
            missing.append(error)
    if missing:
        values = [(error.message, str(error.value), error.remedy) for error in missing]
        message, value, remedy = ("; ".join(dict.fromkeys(texts)) for texts in zip(*values, strict=True))
        raise MissingExtra(message, value=value, remedy=remedy)
    _transcriber(told.agent, clock)
    _speaker(told.agent, clock)
    _check_paths(told.path, open_paths(adapters), settings.mcp_path)


def open_paths(adapters: Sequence[BasePlatformAdapter]) -> tuple[OpenPath, ...]:
    """Return the paths at which channels authenticate the callers, with size limits."""
    fields: dict[str, OpenPath] = {}
    for adapter in adapters:
        base = "" if adapter.at_root else CHANNELS
        for route in adapter.routes():
            if isinstance(route, Route):
                path = f"{base}/{route.path.split('/')[1]}"
                refuse = adapter.refuse if isinstance(adapter, HttpAdapter) else None
                fields[path] = OpenPath(path=path, limit=adapter.largest_body, refuse=refuse)
    return tuple(fields[path] for path in sorted(fields))


def _adapters(told: GatewayFile, clock: Clock, timer: Timer) -> tuple[BasePlatformAdapter, ...]:
    config = told.gateway
    made = [
        make_adapter(told.path, platform, config.platforms[platform], clock=clock, timer=timer)
        for platform in config.get_connected_platforms()
    ]
    # Connect channels with routes here first, so that they do not wait for a platform that does not answer.
    return tuple(sorted(made, key=lambda one: not isinstance(one, HttpAdapter)))


def make_adapter(
    file: Path, platform: Platform, config: PlatformConfig, *, clock: Clock, timer: Timer
) -> BasePlatformAdapter:
    """Create the adapter for a channel on the given platform.

    Raises:
        ConfigError: The configuration of the platform is invalid.
    """
    try:
        return load_adapter_class(platform)(config, clock=clock, timer=timer)
    except ConfigError as error:
        text = f"{file} [platforms.{platform.value}]: {error.message}"
        raise ConfigError(text, value=error.value, remedy=error.remedy) from error


def make_model(agent: AgentConfig, *, clock: Clock) -> OpenAICompatibleModel:
    """Create the client of the model that answers in chats.

    Raises:
        MissingExtra: The library for the endpoint of the model is not installed.
    """
    silence = agent.silence // timedelta(milliseconds=1)
    return OpenAICompatibleModel(agent.base_url, agent.api_key, silence_ms=silence, clock=clock)


def _transcriber(agent: AgentConfig, clock: Clock) -> OpenAITranscriber | None:
    if agent.transcription_url is None:
        return None
    return OpenAITranscriber(
        agent.transcription_url,
        agent.transcription_key,
        model=agent.transcription_model,
        silence_ms=agent.silence // timedelta(milliseconds=1),
        clock=clock,
    )


def _speaker(agent: AgentConfig, clock: Clock) -> OpenAISpeaker | None:
    if agent.speech_url is None:
        return None
    return OpenAISpeaker(
        agent.speech_url,
        agent.speech_key,
        model=agent.speech_model,
        voice=agent.speech_voice,
        silence_ms=agent.silence // timedelta(milliseconds=1),
        clock=clock,
    )


def outline(told: GatewayFile) -> dict[str, Json]:
    """Return the agent and the channels of a gateway file as plain data, without secrets."""
    config = told.gateway
    return {
        "file": str(told.path),
        "agent": {
            "base_url": told.agent.base_url,
            "model": told.agent.model,
            "run": None if told.agent.run is None else "@".join(told.agent.run[::-1]),
            "id": told.agent.agent_id,
            "has_key": told.agent.api_key is not None,
        },
        **({"routes": listed(config.routes)} if config.routes else {}),
        "busy": config.busy.mode.value,
        "channels": {
            platform.value: {
                "enabled": channel.enabled,
                "allow": {user: role.value for user, role in channel.allow.items()},
                "home_channel": None if channel.home_channel is None else channel.home_channel.chat_id,
            }
            for platform, channel in config.platforms.items()
        },
    }


def _check_paths(file: Path, taken: Sequence[OpenPath], mcp_path: str) -> None:
    for open_path in taken:
        if f"{mcp_path}/".startswith(f"{open_path.path}/"):
            raise ConfigError(
                f"{file}: the channel's path {open_path.path} contains the path of the MCP endpoint",
                value=mcp_path,
                remedy="set mcp_path to another path, such as /mcp",
            )
