"""The operator's routes for runners: set, show without secrets, and remove a runner."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from postroom.contracts.errors import InvalidRunner
from postroom.contracts.mail import Agent, Project
from postroom.contracts.messages import Json
from postroom.contracts.runners import AnyRunner, Runner, place_of, read_runner, runner_of, written_runner
from postroom.contracts.waking import RunnerSource
from postroom.mail.projects import find_project
from postroom.mail.service import Mail
from postroom.services.administration import RemovedRunner, RunnerView, StoredRunner
from postroom.stores.mail.access import MailReads

_PAGE = 500
_HIDDEN = "(hidden)"


class RunnerService:
    """Implements the operator's routes for runners."""

    def __init__(self, mail: Mail, check: Callable[[AnyRunner], None]) -> None:
        """Create the service.

        `check` raises an error for a runner that the server cannot execute.
        """
        self._mail = mail
        self._check = check

    async def declare(self, project: str, agent: str, runner: Mapping[str, Json]) -> StoredRunner:
        """Set the runner of an agent.

        The default working folder is the project's folder. `waking` in the result is the number of unread
        messages for which runs start.
        """
        home = await self._mail.store.read(lambda tx: find_project(tx, project).human_key)
        checked = runner_of(runner, home=home)
        await asyncio.to_thread(self._check, checked)  # it looks for the packages that the runner needs
        written, place = written_runner(checked), place_of(checked)
        made = await self._mail.set_runner(
            project,
            agent,
            written,
            place=place,
            runs_at_once=checked.runs_at_once,
            claims_tasks=checked.claims_tasks,
        )
        return {
            "agent": agent,
            "replaced": made.had_one,
            "waking": made.waking,
            "runner": _runner_view(checked),
        }

    async def withdraw(self, project: str, agent: str) -> RemovedRunner:
        """Remove the runner of an agent, and return the agent's open questions, which stay open."""
        made = await self._mail.set_runner(project, agent, None)
        return {"removed": made.had_one, "open_questions": made.questions}

    async def declared(self, project: str | None) -> Sequence[RunnerView]:
        """Return the runners in a project, or in all projects."""

        def shown(tx: MailReads) -> list[RunnerView]:
            only = None if project is None else find_project(tx, project).id
            return [
                {
                    "agent": runner.agent.name,
                    "project": runner.project.slug,
                    "declared_by": runner.declared_by,
                    "runner": _read(runner.runner),
                }
                for runner in declared_runners(tx)
                if only in (None, runner.project.id)
            ]

        return await self._mail.store.read(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRunner:
    """A stored runner with the runner's agent and project."""

    project: Project
    agent: Agent
    runner: str
    declared_by: RunnerSource


def declared_runners(tx: MailReads) -> list[DeclaredRunner]:
    """Return the runners of all agents, ordered by agent id."""
    runners: list[DeclaredRunner] = []
    after = 0
    while page := tx.runners(limit=_PAGE, after=after):
        after = page[-1].agent_id
        agents = tx.agents_by_id([item.agent_id for item in page])
        homes = {
            number: tx.project_by_id(number) for number in {agent.project_id for agent in agents.values()}
        }
        for kept_runner in page:
            agent = agents[kept_runner.agent_id]
            if (home := homes[agent.project_id]) is not None:
                runners.append(
                    DeclaredRunner(
                        project=home,
                        agent=agent,
                        runner=kept_runner.runner,
                        declared_by=kept_runner.declared_by,
                    )
                )
    return runners


def _read(kept: str) -> Mapping[str, Json]:
    try:
        return _runner_view(read_runner(kept))
    except InvalidRunner as error:
        return {"error": error.describe()}


def _runner_view(runner: AnyRunner) -> Mapping[str, Json]:
    """Return a runner without secrets."""
    if not isinstance(runner, Runner):
        return runner.to_dict()
    return {**runner.to_dict(), "env": dict.fromkeys(runner.env, _HIDDEN)}
