"""The agents that a house runs itself: what wakes them, what answers for them.

start: what a former server left running is ended, the mailbox takes up what was left, then mail wakes again
stop: nobody is woken, what runs is ended and given back uncounted
"""

from collections.abc import Sequence

import structlog

from postroom.app.agents_config import DeclaredAgent
from postroom.app.config import Settings
from postroom.app.executor_registry import ExecutorRegistry
from postroom.app.question_timeouts import QuestionTimeouts
from postroom.app.run_service import RunService
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.clock import Clock
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.people import ChatAddress, ChatOutbox
from postroom.contracts.remote_runners import HttpRunner, ModelRunner
from postroom.contracts.runners import AnyRunner, Runner
from postroom.contracts.store import MailReads
from postroom.dispatch.routing import JoinedEffects
from postroom.mail.desk import Caller
from postroom.mail.service import Mail
from postroom.mail.waking.answers import MessageEffects
from postroom.mail.waking.chat_delivery import StoredChatDelivery
from postroom.mail.waking.mail_runs import MailRunExecutor
from postroom.mail.waking.prompts import AGENT_THREAD
from postroom.mail.waking.runners import written_runner
from postroom.mail.waking.waker import Waker
from postroom.mcp_server.calls import Calls

_LOG = structlog.get_logger(__name__)
_OPERATOR = Caller(operator=True)
_PAGE = 500


class AgentSupervisor:
    """Runs agents for whom mail comes."""

    def __init__(
        self,
        settings: Settings,
        mail: Mail,
        calls: Calls,
        runs: RunService,
        clock: Clock,
        declared: Sequence[DeclaredAgent] = (),
    ) -> None:
        """Make everything; nothing runs yet. `declared` are the agents of the configuration file."""
        self._declared = declared
        self._mail = mail
        self._clock = clock
        self._runs = runs
        self.executors = ExecutorRegistry(settings, mail, calls, runs.stores.dispatches, clock)
        effects = MessageEffects(mail.own_desk, mail.tell_of_change)
        turns = MailRunExecutor(
            self.executors.chosen, mail.store, clock, ring=mail.bell.ring, tracing=mail.tracing
        )
        runs.serve(AGENT_THREAD, turns, JoinedEffects(effects, self.executors.results))
        self.boxes = StoredChatDelivery(mail, clock)
        """The messages of people who are reached in chats."""
        self._waker = Waker(mail.store, runs.mailbox, clock, verified=settings.verified, boxes=self.boxes)
        self._waker.on_change = mail.bell.ring
        self._pauses = QuestionTimeouts(runs, clock, SystemTimer())
        self._tasks = Tasks("agents")

    def wake(self) -> None:
        """Hint that a message was written."""
        self._waker.wake()

    def reaches(self, place: ChatAddress) -> bool:
        """Say whether there is a channel to a chat."""
        carrier = self._waker.carrier
        return carrier is not None and carrier.reaches(place)

    def carry_by(self, carrier: ChatOutbox) -> None:
        """Have messages to people said in chats."""
        self._waker.carrier = carrier

    def as_agent(self, project: str, name: str) -> RunDispatchExecutor:
        """Return what runs this agent in the house's chats."""
        self.executors.in_chats = project, name
        return MailRunExecutor(
            self.executors.chosen,
            self._mail.store,
            self._clock,
            whose=lambda _: (project, name),
            ring=self._mail.bell.ring,
            tracing=self._mail.tracing,
        )

    async def start(self) -> None:
        """End what a former server left running, take up what was left, and wake readers again.

        Raises:
            InvalidRunner: the configuration file declares an agent that cannot be run here.
            StoreError: what was left could not be taken up.
        """
        await self._declare()
        if ended := await self.executors.end_orphans():
            _LOG.warning("agents.orphans_ended", processes=ended)
        await self._runs.start()
        self._tasks.start(self._waker.serve(), name="waker")
        self._tasks.start(self._pauses.serve(), name="pauses")

    async def _declare(self) -> None:
        """Have the agents that the configuration file declares, and no runner that it declared before."""
        kept: set[tuple[str, str]] = set()
        for one in self._declared:
            self.executors.check(one.runner)
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
        await self.executors.close()


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
