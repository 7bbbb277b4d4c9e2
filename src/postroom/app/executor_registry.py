"""What executes the agents of a server: programs, models and other servers, chosen by each agent's runner."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from postroom.app import places
from postroom.app.config import Settings
from postroom.app.gateway_secrets import take_secret
from postroom.app.model_agents import ModelAgents, secret_named
from postroom.app.model_tools import check_tools
from postroom.app.tokens import new_run_token
from postroom.concurrency import SystemTimer
from postroom.contracts.activation import RunActivation
from postroom.contracts.clock import Clock
from postroom.contracts.errors import (
    AgentNotFound,
    ConfigError,
    InvalidRunner,
    RunnerNotFound,
    RunnerSecretMissing,
)
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.mail import AddressedAgent
from postroom.contracts.remote_runners import HttpRunner, ModelRunner
from postroom.contracts.run_access import RunAccess
from postroom.contracts.runner_fields import RunnerKind
from postroom.contracts.runners import AnyRunner, Runner, Runners
from postroom.contracts.signing import LEAST_SECRET
from postroom.dispatch.routing import SeveralExecutors
from postroom.executors.acp import AcpExecutor
from postroom.executors.command import CommandExecutor
from postroom.executors.remote import RemoteExecutor, check_installed
from postroom.mail.run_tokens import RunTokens
from postroom.mail.service import Mail
from postroom.mail.waking.prompts import agent_of
from postroom.mail.waking.runners import place_of, read_runner
from postroom.ports import RunControl
from postroom.services.calls import Calls
from postroom.stores.mail.access import MailReads
from postroom.stores.runs.ports import DispatchStore
from postroom.toml_files import TableName

_RUNNER: Final = TableName(Path("the runner"), "")
_MOST_PROJECTS: Final = 200


class ExecutorsByRunner(SeveralExecutors):
    """Asks how the agent of a run is run, and has the executor of that kind run it."""

    def __init__(self, runners: Runners, by_kind: Mapping[RunnerKind, RunDispatchExecutor]) -> None:
        """Keep who knows the runners, and what executes each kind."""
        self._runners = runners
        self._by_kind = by_kind

    def check(self, runner: AnyRunner) -> None:
        """Refuse a runner of a kind that nothing here executes.

        Raises:
            InvalidRunner: it is of such a kind.
        """
        self._of(runner)

    async def chosen(self, activation: RunActivation) -> RunDispatchExecutor:
        """Return what executes an agent's run, as its runner says now.

        Raises:
            AgentNotFound: there is no such agent.
            RunnerNotFound: nobody has said how this agent is run.
            InvalidRunner: its runner cannot be read, or nothing here executes that kind.
        """
        agent_id, control = activation.agent_id or "default", activation.control
        agent = control.agent if isinstance(control, RunControl) else None
        runner = await self._runners.runner_of(agent_id, agent)
        if runner is None:
            raise RunnerNotFound(f"agent {agent_id!r} has no runner", value=agent_id)
        return self._of(runner)

    def each(self) -> Iterator[RunDispatchExecutor]:
        """Return the executors, each once."""
        return iter(dict.fromkeys(self._by_kind.values()))

    def _of(self, runner: AnyRunner) -> RunDispatchExecutor:
        executor = self._by_kind.get(runner.kind)
        if executor is None:
            raise InvalidRunner(
                f"this server does not execute runners of the kind {runner.kind.value!r}",
                value=runner.kind.value,
                remedy=f"supported kinds: {', '.join(self._by_kind)}",
            )
        return executor


class ExecutorRegistry:
    """Has agents run as their runners say, and knows their runners."""

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        settings: Settings,
        mail: Mail,
        calls: Calls,
        dispatches: DispatchStore,
        clock: Clock,
        *,
        address: str = "",
        in_chats: Callable[[str], tuple[str, str] | None] = lambda _: None,
        tokens: RunTokens,
        server: str = "",
        alone_at: Sequence[str] = (),
    ) -> None:
        """Make one for each kind of runner; nothing runs yet.

        `address` is where this server listens, and `tokens` open it to runs, which say by `server` whose they
        are; `in_chats` says which agent, slug of its project and name, answers on a chat's thread. Where no
        other server uses the database, `alone_at` says which places this one is.
        """
        self._settings, self._address = settings, address
        self._alone_at = alone_at
        self._tokens, self._server = tokens, server
        self._mail = mail
        self._environment = places.environment()
        self._commands = CommandExecutor(
            self,
            folder=places.programs_dir(settings.data_dir),
            environment=self._environment,
            clock=clock,
            environment_of=self._place_of,
            access_of=self._access_of,
        )
        self.programs = self._commands.process_runner
        """Runs the programs of both kinds."""
        self._acp = AcpExecutor(self, self.programs, environment_of=self._place_of, access_of=self._access_of)
        self._models = ModelAgents(
            self, calls, mail.store, environment=self._environment, clock=clock, timer=SystemTimer()
        )
        self._in_chats = in_chats
        self.results = RemoteExecutor(
            self,
            dispatches,
            secret_of=self._secret_of,
            agent_on=self._agent_on,
            address=lambda: address,
            clock=clock,
        )
        """Takes what other servers send of the runs that they execute."""
        self.chosen = ExecutorsByRunner(
            self,
            {
                RunnerKind.COMMAND: self._commands,
                RunnerKind.ACP: self._acp,
                RunnerKind.MODEL: self._models,
                RunnerKind.HTTP: self.results,
            },
        )
        """Executes each run by what its agent's runner names."""

    @property
    def executing(self) -> int:
        """How many agents are at work."""
        programs = self._commands.executing + self._acp.executing
        return programs + self._models.executing + self.results.executing

    def check(self, runner: AnyRunner) -> None:
        """Refuse a runner that could not be run here, whatever its agent.

        Raises:
            InvalidRunner: nothing here executes its kind, or it names what there is not.
            MissingExtra: a library that it needs is not installed.
        """
        self.chosen.check(runner)
        if self._alone_at and (place := place_of(runner)) not in ("", *self._alone_at):
            raise InvalidRunner(
                f"its runs_on is {place!r}, but no server with that name or label uses this database",
                value=place,
                remedy=f"leave out runs_on, or use {' or '.join(self._alone_at)}",
            )
        if isinstance(runner, ModelRunner):
            check_tools(runner.tools)
        elif isinstance(runner, HttpRunner):
            check_installed()

    def looked_at(self, runner: AnyRunner) -> str:
        """Return what a runner would start or ask, without doing so. Blocks.

        Raises:
            InvalidRunner: nothing here executes its kind.
            CommandNotStarted: its program could not be started.
            MissingExtra: a library that it needs is not installed.
            RunnerSecretMissing: its key or secret cannot be had.
        """
        self.check(runner)
        match runner:
            case Runner():
                executor = self._acp if runner.kind is RunnerKind.ACP else self._commands
                return f"starts {executor.program_of(runner)}"
            case ModelRunner():
                if runner.api_key_env is not None:
                    secret_named(runner.api_key_env, self._environment)
                return f"calls {runner.model} at {urlsplit(runner.base_url).netloc}"
            case HttpRunner():
                signing_secret(runner, self._environment)
                return f"posts to {urlsplit(runner.url).netloc}"

    async def runner_of(self, agent_id: str, agent: AddressedAgent | None = None) -> AnyRunner | None:
        """Return how an agent (`name@project`) is run; None when it is not run here.

        `agent` is the agent, if it was read for the same run already.

        Raises:
            AgentNotFound: there is no such agent.
            InvalidRunner: what is kept of it cannot be read any more.
        """
        name, _, slug = agent_id.partition("@")

        def look(tx: MailReads) -> str | None:
            addressed = tx.agent_addressed(slug, name)
            if addressed is None:
                named = _addresses_of(tx, name)
                remedy = f"use one of the agents named {name}: {', '.join(named)}" if named else None
                raise AgentNotFound(f"there is no agent {agent_id!r}", value=agent_id, remedy=remedy)
            return addressed.runner

        kept = await self._mail.store.read(look) if agent is None else agent.runner
        return None if kept is None else read_runner(kept)

    def _agent_on(self, thread_id: str) -> str | None:
        """Return which agent (`name@project`) runs a thread; None when none does."""
        whose = agent_of(thread_id) or self._in_chats(thread_id)
        return None if whose is None else f"{whose[1]}@{whose[0]}"

    async def _secret_of(self, runner: HttpRunner) -> str:
        return await asyncio.to_thread(signing_secret, runner, self._environment)

    def _place_of(self, activation: RunActivation) -> Mapping[str, str]:
        """Return who an agent's program acts as, alike for mail and chats, and where it is in a trace."""
        name, at, slug = (activation.agent_id or "").partition("@")
        trace = self._mail.tracing.traceparent()
        place = {"POSTROOM_PROJECT": slug, "POSTROOM_AGENT": name} if at else {}
        return {**place, **({} if trace is None else {"TRACEPARENT": trace})}

    @asynccontextmanager
    async def _access_of(self, activation: RunActivation) -> AsyncIterator[RunAccess | None]:
        """Open this server to a run of an agent, by a token that ends with the run's program."""
        name, _, slug = (activation.agent_id or "").partition("@")
        control = activation.control
        addressed = control.agent if isinstance(control, RunControl) and self._address else None
        if addressed is None and self._address:
            addressed = await self._mail.store.read(lambda tx: tx.agent_addressed(slug, name))
        if addressed is None:
            yield None
            return
        token = new_run_token(self._server)
        self._tokens.issue(token, agent_id=addressed.agent.id, agent=name, run_id=activation.run_id or "")
        try:
            yield RunAccess(
                url=self._address,
                mcp_path=self._settings.mcp_path,
                data_dir=str(self._settings.data_dir),
                token=token,
            )
        finally:
            self._tokens.revoke(token)

    async def untold(self, run_id: str) -> str:
        """Return the messages that came for a run here, for the answer of a tool that its program called."""
        return await self._commands.untold(run_id) or await self._acp.untold(run_id)

    async def close(self) -> None:
        """End connections and what keeps programs; runs are ended by who began them."""
        await self._models.close()
        await self.results.close()
        await self._commands.close()
        await self._acp.close()


def _addresses_of(tx: MailReads, name: str) -> list[str]:
    """Return the addresses of the agents with this name in the first 200 projects."""
    found = [(project, tx.agent(project.id, name)) for project in tx.projects(limit=_MOST_PROJECTS)]
    return [f"{one.name}@{project.slug}" for project, one in found if one and one.retired_at is None]


def signing_secret(runner: HttpRunner, environment: Mapping[str, str]) -> str:
    """Return the secret that a runner names, by a variable of the environment or by a private file. Blocks.

    Raises:
        RunnerSecretMissing: it is not there, others can read it, or it is too short to sign with.
    """
    told = {"secret_env": runner.secret_env, "secret_file": runner.secret_file}
    named: dict[str, object] = {name: place for name, place in told.items() if place is not None}
    try:
        secret = take_secret(_RUNNER, named, "secret", environment) or ""
    except ConfigError as error:
        value = runner.secret_env or runner.secret_file
        raise RunnerSecretMissing(error.message, value=value, remedy=error.remedy) from error
    if len(secret) < LEAST_SECRET:
        raise RunnerSecretMissing(
            f"the runner's secret is shorter than {LEAST_SECRET} characters",
            value=runner.secret_env or runner.secret_file,
            remedy=f"make a random secret of at least {LEAST_SECRET} characters, and give it to both servers",
        )
    return secret
