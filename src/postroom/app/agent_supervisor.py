"""Runs the agents that this server executes. Mail starts the runs, and the answers are sent as mail.

At the start, the mailbox resumes earlier runs, and then mail wakes agents again. At the stop, no more agents
are woken, and active runs are stopped and put back into the queue. An attempt that ends in this way does not
count.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from postroom.app import places
from postroom.app.agents_config import DeclaredAgent
from postroom.app.config import Settings
from postroom.app.gateway_secrets import take_secret
from postroom.app.model_agents import ModelAgents, read_secret
from postroom.app.model_tools import check_tools
from postroom.app.tokens import new_run_token
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.activation import RunActivation
from postroom.contracts.clock import Clock
from postroom.contracts.errors import (
    AgentNotFound,
    ConfigError,
    InputError,
    InvalidRunner,
    MissingExtra,
    RunFailure,
    RunnerNotFound,
    RunnerSecretMissing,
    StateError,
)
from postroom.contracts.executor import RunAccess, RunDispatchExecutor
from postroom.contracts.mail import AddressedAgent
from postroom.contracts.runners import (
    AnyRunner,
    HttpRunner,
    ModelRunner,
    Runner,
    RunnerKind,
    Runners,
    place_of,
    read_runner,
    written_runner,
)
from postroom.contracts.runs import AGENT_THREAD, agent_of
from postroom.contracts.signing import MIN_SECRET_LENGTH
from postroom.dispatch.routing import JoinedEffects, SeveralExecutors
from postroom.executors.acp import AcpExecutor
from postroom.executors.command import CommandExecutor
from postroom.executors.remote import RemoteExecutor, check_installed
from postroom.mail.context import Caller
from postroom.mail.service import Mail
from postroom.mail.tokens import RunTokens
from postroom.mail.waking.mail_runs import AgentName, MailRunExecutor, MessageEffects
from postroom.mail.waking.task_runs import TaskRuns
from postroom.mail.waking.waker import Waker
from postroom.ports import RunControl
from postroom.runtime.openai import check_sdk
from postroom.services.calls import Calls
from postroom.services.questions import QuestionTimeouts
from postroom.services.runners import declared_runners
from postroom.services.runs import RunService
from postroom.services.schedules import MailSchedules
from postroom.stores.mail.access import MailReads
from postroom.stores.runs.ports import DispatchStore
from postroom.toml_files import TableName

_RUNNER: Final = TableName(Path("the runner"), "")
_MAX_PROJECTS: Final = 200


class ExecutorsByRunner(SeveralExecutors):
    """Executes each run with the executor for the kind of the agent's runner."""

    def __init__(self, runners: Runners, by_kind: Mapping[RunnerKind, RunDispatchExecutor]) -> None:
        self._runners = runners
        self._by_kind = by_kind

    def check(self, runner: AnyRunner) -> None:
        """Check that an executor supports the kind of a runner.

        Raises:
            InvalidRunner: This server has no executor for this kind of runner.
        """
        self._of(runner)

    async def chosen(self, activation: RunActivation) -> RunDispatchExecutor:
        """Return the executor for the runner of a run's agent.

        Raises:
            AgentNotFound: The agent does not exist.
            RunnerNotFound: The agent has no runner.
            InvalidRunner: The runner of the agent cannot be read, or this server has no executor for it.
        """
        agent_id, control = activation.agent_id or "default", activation.control
        agent = control.agent if isinstance(control, RunControl) else None
        runner = await self._runners.runner_of(agent_id, agent)
        if runner is None:
            raise RunnerNotFound(f"agent {agent_id!r} has no runner", value=agent_id)
        return self._of(runner)

    def each(self) -> Iterator[RunDispatchExecutor]:
        """Yield every executor of the registry once."""
        return iter(dict.fromkeys(self._by_kind.values()))

    def _of(self, runner: AnyRunner) -> RunDispatchExecutor:
        executor = self._by_kind.get(runner.kind)
        if executor is None:
            raise InvalidRunner(
                f"this server does not support runners of the kind {runner.kind.value!r}",
                value=runner.kind.value,
                remedy=f"supported kinds: {', '.join(self._by_kind)}",
            )
        return executor


class ExecutorRegistry:
    """Finds the runner of each agent, and executes the agent's runs with the runner."""

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
        """Create an executor for each runner kind, without starting the executors.

        `address` is the address on which this server listens. `server` is a tag that each access token of a
        run contains. `in_chats` returns the project slug and the agent name for the thread of a chat.
        `alone_at` contains the names and labels of this server, or nothing if several servers share the
        database.
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
            environment_of=self._find_place,
            access_of=self._grant_access,
        )
        self.programs = self._commands.process_runner
        """Runs the programs of command runners and ACP runners."""
        self._acp = AcpExecutor(
            self, self.programs, environment_of=self._find_place, access_of=self._grant_access
        )
        self._models = ModelAgents(
            self, calls, mail.store, environment=self._environment, clock=clock, timer=SystemTimer()
        )
        self._in_chats = in_chats
        self.results = RemoteExecutor(
            self,
            dispatches,
            secret_of=self._signing_secret,
            agent_on=self._agent_on,
            address=lambda: address,
            clock=clock,
        )
        """Accepts the results of runs that other servers execute."""
        self.chosen = ExecutorsByRunner(
            self,
            {
                RunnerKind.COMMAND: self._commands,
                RunnerKind.ACP: self._acp,
                RunnerKind.MODEL: self._models,
                RunnerKind.HTTP: self.results,
            },
        )
        """Executes each run with the executor for its agent's kind of runner."""

    @property
    def executing(self) -> int:
        """The number of active runs."""
        programs = self._commands.executing + self._acp.executing
        return programs + self._models.executing + self.results.executing

    def check(self, runner: AnyRunner) -> None:
        """Check that this server can execute a runner.

        Raises:
            InvalidRunner: This server has no executor for this kind of runner, or the runner names a place or
                a tool that does not exist.
            MissingExtra: A library that the runner needs is not installed.
        """
        self.chosen.check(runner)
        if self._alone_at and (place := place_of(runner)) not in ("", *self._alone_at):
            raise InvalidRunner(
                f"runs_on is {place!r}, but no server with that name or label uses this database",
                value=place,
                remedy=f"leave out runs_on, or use {' or '.join(self._alone_at)}",
            )
        if isinstance(runner, ModelRunner):
            check_tools(runner.tools)
            check_sdk()
        elif isinstance(runner, HttpRunner):
            check_installed()

    def looked_at(self, runner: AnyRunner) -> str:
        """Return the command or the address that a runner would use, without executing the runner. Blocks.

        Raises:
            InvalidRunner: This server has no executor for the kind of runner.
            CommandNotStarted: The program of the runner could not be started.
            MissingExtra: A library that the runner needs is not installed.
            RunnerSecretMissing: The key or secret of the runner is missing.
        """
        self.check(runner)
        match runner:
            case Runner():
                executor = self._acp if runner.kind is RunnerKind.ACP else self._commands
                return f"starts {executor.find_program(runner)}"
            case ModelRunner():
                if runner.api_key_env is not None:
                    read_secret(runner.api_key_env, self._environment)
                return f"calls {runner.model} at {urlsplit(runner.base_url).netloc}"
            case HttpRunner():
                signing_secret(runner, self._environment)
                return f"posts to {urlsplit(runner.url).netloc}"

    async def runner_of(self, agent_id: str, agent: AddressedAgent | None = None) -> AnyRunner | None:
        """Return the runner of an agent (`name@project`), or None if the agent has no runner.

        `agent` is the stored agent, or None to read the agent from the database.

        Raises:
            AgentNotFound: The agent does not exist.
            InvalidRunner: The stored runner cannot be read.
        """
        name, _, slug = agent_id.partition("@")

        def look(tx: MailReads) -> str | None:
            addressed = tx.agent_addressed(slug, name)
            if addressed is None:
                # Find the addresses of the agents with this name in the first 200 projects.
                agents = [
                    (project, tx.agent(project.id, name)) for project in tx.projects(limit=_MAX_PROJECTS)
                ]
                named = [
                    f"{agent.name}@{project.slug}"
                    for project, agent in agents
                    if agent and agent.retired_at is None
                ]
                remedy = f"use one of the agents named {name}: {', '.join(named)}" if named else None
                raise AgentNotFound(f"there is no agent {agent_id!r}", value=agent_id, remedy=remedy)
            return addressed.runner

        runner = await self._mail.store.read(look) if agent is None else agent.runner
        return None if runner is None else read_runner(runner)

    def _agent_on(self, thread_id: str) -> str | None:
        whose = agent_of(thread_id) or self._in_chats(thread_id)
        return None if whose is None else f"{whose[1]}@{whose[0]}"

    async def _signing_secret(self, runner: HttpRunner) -> str:
        return await asyncio.to_thread(signing_secret, runner, self._environment)

    def _find_place(self, activation: RunActivation) -> Mapping[str, str]:
        """Return the environment variables with the run's project, agent and trace."""
        name, at, slug = (activation.agent_id or "").partition("@")
        trace = self._mail.tracing.traceparent()
        place = {"POSTROOM_PROJECT": slug, "POSTROOM_AGENT": name} if at else {}
        return {**place, **({} if trace is None else {"TRACEPARENT": trace})}

    @asynccontextmanager
    async def _grant_access(self, activation: RunActivation) -> AsyncIterator[RunAccess | None]:
        """Yield the URL and the token with which a run's program can access this server."""
        control = activation.control
        if not isinstance(control, RunControl) or control.agent is None or not self._address:
            yield None
            return
        agent = control.agent.agent
        token = new_run_token(self._server)
        self._tokens.issue(
            token,
            agent_id=agent.id,
            agent=agent.name,
            run_id=activation.run_id or "",
            claim=control.claim,
        )
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
        """Return the messages for a run that have arrived since the last call of this method."""
        return await self._commands.untold(run_id) or await self._acp.untold(run_id)

    async def close(self) -> None:
        """Close the executors, after the caller has ended all runs."""
        await self._models.close()
        await self.results.close()
        await self._commands.close()
        await self._acp.close()


def signing_secret(runner: HttpRunner, environment: Mapping[str, str]) -> str:
    """Return the secret of a runner, from an environment variable or a private file. Blocks.

    Raises:
        RunnerSecretMissing: The secret is missing, too short for a signature, or readable by other users.
    """
    secret_fields = {"secret_env": runner.secret_env, "secret_file": runner.secret_file}
    named: dict[str, object] = {name: place for name, place in secret_fields.items() if place is not None}
    try:
        secret = take_secret(_RUNNER, named, "secret", environment) or ""
    except ConfigError as error:
        value = runner.secret_env or runner.secret_file
        raise RunnerSecretMissing(error.message, value=value, remedy=error.remedy) from error
    if len(secret) < MIN_SECRET_LENGTH:
        raise RunnerSecretMissing(
            f"the runner's secret is too short: it must have at least {MIN_SECRET_LENGTH} characters",
            value=runner.secret_env or runner.secret_file,
            remedy=f"create a random secret of at least {MIN_SECRET_LENGTH} characters, and configure it "
            f"on both servers",
        )
    return secret


_OPERATOR = Caller(operator=True)


class AgentSupervisor:
    """Runs agents that receive mail."""

    def __init__(  # noqa: PLR0913 - what it joins
        self,
        mail: Mail,
        runs: RunService,
        executors: ExecutorRegistry,
        clock: Clock,
        waker: Waker,
        schedules: MailSchedules,
        declared: Sequence[DeclaredAgent] = (),
    ) -> None:
        self._declared = declared
        self._mail = mail
        self._runs = runs
        self._executors = executors
        self._waker = waker
        self._schedules = schedules
        effects = MessageEffects(mail.own_context)
        runs.serve(AGENT_THREAD, mail_runs(mail, executors, clock), JoinedEffects(effects, executors.results))
        self._timeouts = QuestionTimeouts(runs, clock, SystemTimer())
        self._tasks = Tasks("agents")
        self.is_waking = False
        """Whether messages wake their recipients, which is so from `start` until `stop`."""

    async def start(self) -> None:
        """Register the agents of the configuration file, resume earlier runs, and start to wake agents.

        Raises:
            ConfigError: The configuration file declares an agent that this server cannot register or run.
            StoreError: Earlier work could not be resumed.
        """
        # Register the agents of the configuration file, and remove runners that it no longer declares.
        still_declared: set[tuple[str, str]] = set()
        for declared in self._declared:
            try:
                # Register an agent of the configuration file with its runner, and find out the slug of its
                # project.
                await asyncio.to_thread(self._executors.check, declared.runner)
                made = await self._mail.call(
                    "ensure_project", {"human_key": declared.project}, caller=_OPERATOR
                )
                match declared.runner:
                    case Runner():
                        program, model = declared.runner.recipe.value, "unknown"
                    case ModelRunner():
                        program, model = "postroom", declared.runner.model
                    case HttpRunner():
                        program, model = "http", "unknown"
                arguments = {
                    "project_key": declared.project,
                    "name": declared.name,
                    "program": program,
                    "model": model,
                    "task_description": declared.task,
                }
                await self._mail.call("register_agent", arguments, caller=_OPERATOR)
                await self._mail.set_runner(
                    declared.project,
                    declared.name,
                    written_runner(declared.runner),
                    place=place_of(declared.runner),
                    runs_at_once=declared.runner.runs_at_once,
                    declared_by="file",
                    claims_tasks=declared.runner.claims_tasks,
                )
                still_declared.add((str(made["slug"]), declared.name.casefold()))
            except (InputError, StateError, RunFailure, MissingExtra) as error:
                raise declared.refused(error) from error
        for before in await self._mail.store.read(declared_runners):
            slug, name = before.project.slug, before.agent.name
            if before.declared_by == "file" and (slug, name.casefold()) not in still_declared:
                await self._mail.set_runner(slug, name, None)
        await asyncio.to_thread(self._executors.programs.remove_leftovers)
        await self._runs.start()
        self.is_waking = True
        self._tasks.start(self._waker.serve(), name="waker")
        self._tasks.start(TaskRuns(self._mail, self._waker).serve(), name="tasks for agents")
        self._tasks.start(self._timeouts.serve(), name="question timeouts")
        self._tasks.start(self._schedules.kept.serve(), name="schedules")

    async def stop(self) -> None:
        """Stop the background tasks, the runs and the executors."""
        await self._tasks.close()
        await self._runs.stop()
        await self._executors.close()


def mail_runs(
    mail: Mail, executors: ExecutorRegistry, clock: Clock, whose: Callable[[str], AgentName | None] = agent_of
) -> MailRunExecutor:
    """Return the executor for runs that mail starts. `whose` returns the agent of a thread."""
    return MailRunExecutor(
        executors.chosen, mail.store, clock, whose=whose, tracing=mail.tracing, rules=mail.rules
    )
