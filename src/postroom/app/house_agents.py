"""The agents that a house runs itself: who has which runner, what executes it, what wakes and answers.

start: what a former server left running is ended, the mailbox takes up what was left, then mail wakes again
stop: nobody is woken, what runs is ended and given back uncounted
"""

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

import structlog

from postroom.app import places
from postroom.app.agent_executors import ExecutorsByRunner, secret_named
from postroom.app.agents_config import DeclaredAgent
from postroom.app.config import Settings
from postroom.app.house_runs import HouseRuns
from postroom.app.model_agents import ModelAgents
from postroom.app.model_tools import check_tools
from postroom.app.runner_secrets import signing_secret
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.activation import RunActivation
from postroom.contracts.clock import Clock
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.people import Carrier, ChatPlace
from postroom.contracts.remote_runners import HttpRunner, ModelRunner
from postroom.contracts.runner_fields import RunnerKind
from postroom.contracts.runners import AnyRunner, Runner
from postroom.contracts.store import MailReads
from postroom.dispatch.routing import JoinedEffects
from postroom.executors.command import CommandExecutor
from postroom.executors.remote import RemoteExecutor, check_installed
from postroom.mail.desk import Caller
from postroom.mail.service import Mail
from postroom.mail.waking.answers import Answering, LetterEffects
from postroom.mail.waking.boxes import PeopleBoxes
from postroom.mail.waking.runners import read_runner, written_runner
from postroom.mail.waking.turns import AgentTurns
from postroom.mail.waking.waker import Waker
from postroom.mail.waking.words import AGENT_THREAD, agent_of
from postroom.mcp_server.calls import Calls

_LOG = structlog.get_logger(__name__)
_OPERATOR = Caller(operator=True)
_PAGE = 500


class HouseAgents:
    """Runs agents for whom mail comes."""

    def __init__(
        self,
        settings: Settings,
        mail: Mail,
        calls: Calls,
        runs: HouseRuns,
        clock: Clock,
        declared: Sequence[DeclaredAgent] = (),
    ) -> None:
        """Make everything; nothing runs yet. `declared` are the agents of the configuration file."""
        self._declared = declared
        self._mail = mail
        self._clock = clock
        self._runs = runs
        self._environment = places.environment()
        self._commands = CommandExecutor(
            self,
            folder=settings.data_dir / "runs",
            house=str(settings.data_dir),
            environment=self._environment,
            clock=clock,
            timer=SystemTimer(),
            environment_of=_environment_of,
        )
        self._executors = ExecutorsByRunner(self)
        self._executors.add(RunnerKind.COMMAND, self._commands)
        self._models = ModelAgents(
            self, calls, mail.store, environment=self._environment, clock=clock, timer=SystemTimer()
        )
        self._executors.add(RunnerKind.MODEL, self._models)
        self.results = self._other_servers()
        """Takes what other servers send of the runs that they execute."""
        self._executors.add(RunnerKind.HTTP, self.results)
        self.address = ""
        """Where this server listens, once it does."""
        self._in_chats: tuple[str, str] | None = None
        self._effects = LetterEffects()
        effects = JoinedEffects(self._effects, self.results)
        runs.serve(AGENT_THREAD, AgentTurns(self._executors, mail.store, clock), effects)
        self.boxes = PeopleBoxes(mail, clock)
        """The letters of people who are reached in chats."""
        self._waker = Waker(mail.store, runs.mailbox, clock, verified=settings.verified, boxes=self.boxes)
        self._answering = Answering(runs.stores.outbox, mail.store, mail.own_desk, clock)
        self._effects.hint = self._answering.wake
        self._tasks = Tasks("agents")

    def _other_servers(self) -> RemoteExecutor:
        return RemoteExecutor(
            self,
            self._runs.stores.dispatches,
            secret_of=self._secret_of,
            agent_on=self._agent_on,
            address=lambda: self.address,
            clock=self._clock,
        )

    @property
    def executing(self) -> int:
        """How many agents are at work."""
        return self._commands.executing + self._models.executing + self.results.executing

    async def orphans(self) -> tuple[int, ...] | None:
        """Return the processes that a former server has left running; None where they cannot be seen."""
        return await self._commands.orphans()

    def check(self, runner: AnyRunner) -> None:
        """Refuse a runner that could not be run here, whatever its agent.

        Raises:
            InvalidRunner: nothing here executes its kind, or it names what there is not.
            MissingExtra: a library that it needs is not installed.
        """
        self._executors.check(runner)
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
                return f"it starts {self._commands.program_of(runner)}"
            case ModelRunner():
                if runner.api_key_env is not None:
                    secret_named(runner.api_key_env, self._environment)
                return f"it asks {runner.model} at {urlsplit(runner.base_url).netloc}"
            case HttpRunner():
                signing_secret(runner, self._environment)
                return f"it posts to {urlsplit(runner.url).netloc}"

    def wake(self) -> None:
        """Hint that a letter was written."""
        self._waker.wake()

    def reaches(self, place: ChatPlace) -> bool:
        """Say whether there is a channel to a chat."""
        carrier = self._waker.carrier
        return carrier is not None and carrier.reaches(place)

    def carry_by(self, carrier: Carrier) -> None:
        """Have letters to people said in chats."""
        self._waker.carrier = carrier

    def as_agent(self, project: str, name: str) -> RunDispatchExecutor:
        """Return what runs this agent in the house's chats."""
        self._in_chats = project, name
        return AgentTurns(self._executors, self._mail.store, self._clock, whose=lambda _: (project, name))

    async def runner_of(self, agent_id: str) -> AnyRunner | None:
        """Return how an agent (`name@project`) is run; None when it is not run here.

        Raises:
            InvalidRunner: what is kept of it cannot be read any more.
        """
        name, _, slug = agent_id.partition("@")

        def look(tx: MailReads) -> str | None:
            project = tx.project(slug)
            agent = None if project is None else tx.agent(project.id, name)
            kept = None if agent is None else tx.runner(agent.id)
            return None if kept is None else kept.runner

        kept = await self._mail.store.read(look)
        return None if kept is None else read_runner(kept)

    def _agent_on(self, thread_id: str) -> str | None:
        """Return which agent (`name@project`) runs a thread; None when none does."""
        whose = agent_of(thread_id) or self._in_chats
        return None if whose is None else f"{whose[1]}@{whose[0]}"

    async def _secret_of(self, runner: HttpRunner) -> str:
        return await asyncio.to_thread(signing_secret, runner, self._environment)

    async def start(self) -> None:
        """End what a former server left running, take up what was left, and wake readers again.

        Raises:
            InvalidRunner: the configuration file declares an agent that cannot be run here.
            StoreError: what was left could not be taken up.
        """
        await self._declare()
        ended = await self._commands.find_and_end_orphans()
        if ended:
            _LOG.warning("agents.orphans_ended", processes=len(ended))
        await self._runs.start()
        self._answering.on_change = self._mail.tell_of_change
        self._tasks.start(self._waker.serve(), name="waker")
        self._tasks.start(self._answering.serve(), name="answers")

    async def _declare(self) -> None:
        """Have the agents that the configuration file declares, and no runner that it declared before."""
        kept: set[tuple[str, str]] = set()
        for one in self._declared:
            self.check(one.runner)
            made = await self._mail.call("ensure_project", {"human_key": one.project}, caller=_OPERATOR)
            asked = {
                "project_key": one.project,
                "name": one.name,
                **_introduced(one.runner),
                "task_description": one.task,
            }
            await self._mail.call("register_agent", asked, caller=_OPERATOR)
            written = written_runner(one.runner)
            await self._mail.set_runner(one.project, one.name, written, declared_by="file")
            kept.add((made["slug"], one.name.casefold()))
        for slug, name in await self._mail.store.read(_declared_before):
            if (slug, name.casefold()) not in kept:
                await self._mail.set_runner(slug, name, None)

    async def stop(self) -> None:
        """End it; harmless when it never started."""
        await self._tasks.close()
        await self._runs.stop()
        await self._models.close()
        await self.results.close()
        await self._commands.close()


def _declared_before(tx: MailReads) -> list[tuple[str, str]]:
    """Return project and name of the agents whose runners a configuration file declared."""
    found: list[tuple[str, str]] = []
    after = 0
    while page := tx.runners(limit=_PAGE, after=after):
        after = page[-1].agent_id
        agents = tx.agents_by_id([one.agent_id for one in page if one.declared_by == "file"])
        projects = {one.id: tx.project_by_id(one.project_id) for one in agents.values()}
        found += [(home.slug, one.name) for one in agents.values() if (home := projects[one.id]) is not None]
    return found


def _introduced(runner: AnyRunner) -> dict[str, str]:
    """Return what an agent of the configuration file is introduced as: its program and its model."""
    match runner:
        case Runner():
            return {"program": runner.recipe.value, "model": "unknown"}
        case ModelRunner():
            return {"program": "postroom", "model": runner.model}
        case HttpRunner():
            return {"program": "http", "model": "unknown"}


def _environment_of(activation: RunActivation) -> dict[str, str]:
    """Return what an agent's program is told of where it stands."""
    whose = agent_of(activation.thread_id)
    return {} if whose is None else {"POSTROOM_PROJECT": whose[0], "POSTROOM_AGENT": whose[1]}
