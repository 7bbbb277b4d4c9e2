"""The agents that a server runs itself: their waking and their answers.

start: the mailbox resumes earlier runs, then mail wakes agents again stop: no agent is woken, active runs are
stopped and released without counting an attempt
"""

import asyncio
from collections.abc import Callable, Sequence

from postroom.app.agents_config import DeclaredAgent
from postroom.app.executor_registry import ExecutorRegistry
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.clock import Clock
from postroom.contracts.errors import InputError, RunFailure, StateError
from postroom.contracts.remote_runners import HttpRunner, ModelRunner
from postroom.contracts.runners import AnyRunner, Runner
from postroom.dispatch.routing import JoinedEffects
from postroom.mail.context import Caller
from postroom.mail.service import Mail
from postroom.mail.waking.answers import MessageEffects
from postroom.mail.waking.mail_runs import MailRunExecutor
from postroom.mail.waking.prompts import AGENT_THREAD, agent_of
from postroom.mail.waking.run_input import AgentName
from postroom.mail.waking.runners import place_of, written_runner
from postroom.mail.waking.task_runs import TaskRuns
from postroom.mail.waking.waker import Waker
from postroom.services.questions import QuestionTimeouts
from postroom.services.runners import declared_runners
from postroom.services.runs import RunService
from postroom.services.schedules import MailSchedules

_OPERATOR = Caller(operator=True)


class AgentSupervisor:
    """Runs agents when mail comes for them."""

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
        """Create all parts; none is started. `declared` are the agents of the configuration file."""
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
        """Whether messages wake their recipients: from the start on."""

    async def start(self) -> None:
        """Resume the work of an earlier server, and wake recipients again.

        Raises:
            ConfigError: The configuration file declares an agent that cannot be registered or run here.
            StoreError: The earlier work could not be resumed.
        """
        await self._declare()
        await asyncio.to_thread(self._executors.programs.remove_left)
        await self._runs.start()
        self.is_waking = True
        self._tasks.start(self._waker.serve(), name="waker")
        self._tasks.start(TaskRuns(self._mail, self._waker).serve(), name="tasks for agents")
        self._tasks.start(self._timeouts.serve(), name="question timeouts")
        self._tasks.start(self._schedules.kept.serve(), name="schedules")

    async def _declare(self) -> None:
        """Register the agents of the configuration file, and remove runners that it no longer declares."""
        kept: set[tuple[str, str]] = set()
        for one in self._declared:
            try:
                kept.add((await self._declare_one(one), one.name.casefold()))
            except (InputError, StateError, RunFailure) as error:
                raise one.refused(error) from error
        for before in await self._mail.store.read(declared_runners):
            slug, name = before.project.slug, before.agent.name
            if before.declared_by == "file" and (slug, name.casefold()) not in kept:
                await self._mail.set_runner(slug, name, None)

    async def _declare_one(self, one: DeclaredAgent) -> str:
        """Register an agent of the configuration file with its runner, and return the slug of its project."""
        self._executors.check(one.runner)
        made = await self._mail.call("ensure_project", {"human_key": one.project}, caller=_OPERATOR)
        asked = {
            "project_key": one.project,
            "name": one.name,
            **_introduced(one.runner),
            "task_description": one.task,
        }
        await self._mail.call("register_agent", asked, caller=_OPERATOR)
        await self._mail.set_runner(
            one.project,
            one.name,
            written_runner(one.runner),
            place=place_of(one.runner),
            runs_at_once=one.runner.runs_at_once,
            declared_by="file",
            claims_tasks=one.runner.claims_tasks,
        )
        return str(made["slug"])

    async def stop(self) -> None:
        """Stop all parts; no effect if they never started."""
        await self._tasks.close()
        await self._runs.stop()
        await self._executors.close()


def mail_runs(
    mail: Mail, executors: ExecutorRegistry, clock: Clock, whose: Callable[[str], AgentName | None] = agent_of
) -> MailRunExecutor:
    """Return the executor of agents on their mail; `whose` returns the agent of a thread."""
    return MailRunExecutor(executors.chosen, mail.store, clock, whose=whose, tracing=mail.tracing)


def _introduced(runner: AnyRunner) -> dict[str, str]:
    """Return program and model with which an agent of the configuration file is registered."""
    match runner:
        case Runner():
            return {"program": runner.recipe.value, "model": "unknown"}
        case ModelRunner():
            return {"program": "postroom", "model": runner.model}
        case HttpRunner():
            return {"program": "http", "model": "unknown"}
