"""The executor of programs that are told everything at their start: what they put out is the answer."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import StreamReset
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.runner_fields import RunnerKind
from postroom.contracts.runners import Runner, Runners
from postroom.executors.command.execution import Execution
from postroom.executors.command.outcome import Outcome
from postroom.executors.command.recipes import RECIPES
from postroom.executors.processes.executor import ProgramExecutor, nothing_more
from postroom.executors.processes.limits import CommandLimits
from postroom.executors.processes.process_runner import ProcessRunner, Work
from postroom.executors.processes.sessions import Sessions

_LOG = structlog.get_logger(__name__)
KEY: Final = "postroom.executors.command"


class CommandExecutor(ProgramExecutor):
    """Runs each agent by the program that its runner names.

    `folder` is for its private files and is made for its owner alone. `server_name` names this server among
    all that ever run on the machine: what carries the name and is not known here is ended as left behind, so
    that no two servers that run at once may share it. `environment` is the server's, of which a program is
    given what its runner says; `environment_of` tells more of a run, as its project.
    """

    kind = RunnerKind.COMMAND

    def __init__(  # noqa: PLR0913 - what it works with, by name
        self,
        runners: Runners,
        *,
        folder: Path,
        server_name: str,
        environment: Mapping[str, str],
        clock: Clock | None = None,
        timer: Timer | None = None,
        limits: CommandLimits | None = None,
        environment_of: Callable[[RunActivation], Mapping[str, str]] = nothing_more,
    ) -> None:
        """Keep what it works with; nothing is started or written.

        Raises:
            ConfigError: the server has no name, the folder is not absolute, or the system has no sessions of
                processes.
        """
        process_runner = ProcessRunner.at(
            folder, server_name=server_name, server=environment, clock=clock, timer=timer, limits=limits
        )
        super().__init__(runners, process_runner, name="command executor", environment_of=environment_of)

    async def _attempted(self, work: Work) -> Outcome | None:
        """Run the program; once more without its session when it does not know that any more."""
        execution = Execution(self._with, work)
        session = await _sessions(work).former() if work.runner.resume else None
        outcome = await execution.run(session)
        if session is not None and outcome is not None and outcome.refuses_session:
            _LOG.info("command.session_refused", run_id=work.active.identity.run_id)
            await work.sink.emit(StreamReset(reason="the client does not know its session; it begins anew"))
            work.active.stop.open()
            outcome = await execution.run(None)
        return outcome

    async def _keep(self, work: Work, finished: Outcome) -> None:
        if work.runner.resume and finished.ended.stopped is None:
            await _sessions(work).keep(finished.session)

    def words_of(self, runner: Runner) -> Sequence[str]:
        """Return the runner's command, or its recipe's."""
        return runner.argv or RECIPES[runner.recipe].command


def _sessions(work: Work) -> Sessions:
    return Sessions(
        control=work.control,
        thread_id=work.active.identity.thread_id,
        agent_id=work.active.identity.agent_id,
        key=KEY,
        made_with=(work.runner.recipe.value, work.runner.cwd),
    )
