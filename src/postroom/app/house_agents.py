"""The agents that a house runs itself: who has which runner, what executes it, what wakes and answers.

start: what a former server left running is ended, the mailbox takes up what was left, then mail wakes again
stop: nobody is woken, what runs is ended and given back uncounted
"""

import structlog

from postroom.app import places
from postroom.app.config import Settings
from postroom.app.house_runs import HouseRuns
from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.activation import RunActivation
from postroom.contracts.clock import Clock
from postroom.contracts.runners import Runner
from postroom.contracts.store import MailReads
from postroom.executors.command import CommandExecutor
from postroom.mail.service import Mail
from postroom.mail.waking.answers import Answering, LetterEffects
from postroom.mail.waking.runners import read_runner
from postroom.mail.waking.turns import LetterTurns
from postroom.mail.waking.waker import Waker
from postroom.mail.waking.words import AGENT_THREAD, agent_of

_LOG = structlog.get_logger(__name__)


class HouseAgents:
    """Runs agents for whom mail comes."""

    def __init__(self, settings: Settings, mail: Mail, runs: HouseRuns, clock: Clock) -> None:
        self._mail = mail
        self._runs = runs
        self._commands = CommandExecutor(
            self,
            folder=settings.data_dir / "runs",
            house=str(settings.data_dir),
            environment=places.environment(),
            clock=clock,
            timer=SystemTimer(),
            environment_of=_environment_of,
        )
        self._effects = LetterEffects()
        runs.serve(AGENT_THREAD, LetterTurns(self._commands, mail.store, clock), self._effects)
        self._waker = Waker(mail.store, runs.mailbox, clock, verified=settings.verified)
        self._answering = Answering(runs.stores.outbox, mail.store, mail.desk, clock)
        self._effects.hint = self._answering.wake
        self._tasks = Tasks("agents")

    @property
    def executing(self) -> int:
        """How many agents are at work."""
        return self._commands.executing

    async def orphans(self) -> tuple[int, ...] | None:
        """Return the processes that a former server has left running; None where they cannot be seen."""
        return await self._commands.orphans()

    def program_of(self, runner: Runner) -> str:
        """Return the file that a runner would start, without starting it. Blocks.

        Raises:
            CommandNotStarted: it could not be started.
        """
        return self._commands.program_of(runner)

    def wake(self) -> None:
        """Hint that a letter was written."""
        self._waker.wake()

    async def runner_of(self, agent_id: str) -> Runner | None:
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

    async def start(self) -> None:
        """End what a former server left running, take up what was left, and wake readers again.

        Raises:
            StoreError: what was left could not be taken up.
        """
        ended = await self._commands.find_and_end_orphans()
        if ended:
            _LOG.warning("agents.orphans_ended", processes=len(ended))
        await self._runs.start()
        self._answering.on_change = self._mail.changed
        self._tasks.start(self._waker.serve(), name="waker")
        self._tasks.start(self._answering.serve(), name="answers")

    async def stop(self) -> None:
        """End it; harmless when it never started."""
        await self._tasks.close()
        await self._runs.stop()


def _environment_of(activation: RunActivation) -> dict[str, str]:
    """Return what an agent's program is told of where it stands."""
    whose = agent_of(activation.thread_id)
    return {} if whose is None else {"POSTROOM_PROJECT": whose[0], "POSTROOM_AGENT": whose[1]}
