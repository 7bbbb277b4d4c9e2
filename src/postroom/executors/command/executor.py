"""The executor whose agents are programs: each run is one process, and no process outlives its run."""

import asyncio
import sys
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink, RunStart, StreamReset
from postroom.contracts.clock import Clock, SystemClock, Timer, milliseconds
from postroom.contracts.errors import (
    CommandNotEnded,
    ConfigError,
    InvalidActivation,
    InvalidRunner,
    PostroomError,
    RunnerNotFound,
)
from postroom.contracts.executor import AgentRunResult, RunControl, RunDispatchExecutor
from postroom.contracts.messages import Message
from postroom.contracts.runner_fields import RunnerKind
from postroom.contracts.runners import Runner, Runners
from postroom.contracts.runs import TerminationReason
from postroom.contracts.tools import ToolCallResume
from postroom.executors.activations import identity_of
from postroom.executors.command.active import ActiveRun, ActiveRuns
from postroom.executors.command.execution import Execution, Workshop
from postroom.executors.command.inspecting import program_of
from postroom.executors.command.limits import CommandLimits
from postroom.executors.command.orphans import Orphan, Orphans
from postroom.executors.command.outcome import Outcome
from postroom.executors.command.processes import this_machine
from postroom.executors.command.records import Records
from postroom.executors.command.sessions import keep_session, session_of
from postroom.executors.command.surroundings import AGENT

_LOG = structlog.get_logger(__name__)
_MARGIN_MS = 1_000
Ended = Outcome | PostroomError | None
"""How work ended: a program that ended, a failure of it or before it, or nothing that was started."""


def _nothing_more(activation: RunActivation) -> dict[str, str]:
    return {}


class CommandExecutor(RunDispatchExecutor):
    """Runs each agent by the program that its runner names.

    `folder` is for its private files and is made for its owner alone. `house` names this server among all
    that ever run on the machine: what carries the name and is not known here is ended as left behind, so that
    no two servers that run at once may share it. `environment` is the server's, of which a program is given
    what its runner says; `environment_of` tells more of a run, as its project.
    """

    def __init__(  # noqa: PLR0913 - what it works with, by name
        self,
        runners: Runners,
        *,
        folder: Path,
        house: str,
        environment: Mapping[str, str],
        clock: Clock | None = None,
        timer: Timer | None = None,
        limits: CommandLimits | None = None,
        environment_of: Callable[[RunActivation], Mapping[str, str]] = _nothing_more,
    ) -> None:
        """Keep what it works with; nothing is started or written.

        Raises:
            ConfigError: the house has no name, the folder is not absolute, or the system has no sessions of
                processes.
        """
        if sys.platform == "win32":
            raise ConfigError("the command executor needs process groups", remedy="run it on Linux or macOS")
        if not house.strip() or "\0" in house or not folder.is_absolute():
            raise ConfigError("the command executor needs a house's name and an absolute folder", value=house)
        self._runners = runners
        self._environment_of = environment_of
        self._runs = ActiveRuns()
        self._tasks = Tasks("command executor")
        machine = this_machine()
        self._with = Workshop(
            clock=clock or SystemClock(),
            timer=timer or SystemTimer(),
            machine=machine,
            records=Records(folder, machine),
            limits=limits or CommandLimits(),
            house=house,
            server=dict(environment),
        )
        self._orphans = Orphans(
            self._with.records, machine, house, limits=self._with.limits, timer=self._with.timer
        )

    @property
    def executing(self) -> int:
        """How many runs execute here."""
        return len(self._runs)

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Run the agent's program to its end and return its answer; returns when no process of it is left.

        Cancelled, it ends the program and all its processes before it passes the cancellation on.

        Raises:
            ThreadAlreadyRunning: the thread's run is executed here already.
            RunnerNotFound: nobody has said how this agent is run.
            InvalidRunner: it is run otherwise than by a command.
            InvalidActivation: it was asked nothing, or is not handed over by a mailbox.
            CommandError: the program was not started, or failed; `retryable` says whether it may pass.
            StaleClaim: the run is not the worker's any more.
        """
        control = activation.control
        if not isinstance(control, RunControl):
            raise InvalidActivation("a run needs a thread store and a coordinator", value=activation.run_id)
        active = ActiveRun(identity_of(activation), activation.trace.session_id or uuid.uuid4().hex)
        await self._runs.enter(active)
        try:
            return await self._executed(activation, control, active, sink)
        finally:
            self._runs.leave(active)

    async def _executed(
        self, activation: RunActivation, control: RunControl, active: ActiveRun, sink: EventSink
    ) -> AgentRunResult:
        identity = active.identity
        await sink.emit(
            RunStart(
                thread_id=identity.thread_id,
                run_id=identity.run_id,
                parent_run_id=identity.parent_run_id,
                identity=identity,
            )
        )
        runner = await self._runner_of(identity.agent_id)
        session = await session_of(control, identity.thread_id, identity.agent_id, runner)
        told = {AGENT: identity.agent_id, **self._environment_of(activation)}
        execution = Execution(self._with, active, activation, runner, sink, told)
        outcome = await self._contained(active, self._attempted(execution, session, active, sink))
        if outcome is None:
            return AgentRunResult(run_id=identity.run_id, termination=TerminationReason.cancelled())
        result = outcome.result(activation)
        if outcome.ended.stopped is None:
            await keep_session(control, identity.thread_id, identity.agent_id, runner, outcome.session)
        return result

    async def _runner_of(self, agent_id: str) -> Runner:
        runner = await self._runners.runner_of(agent_id)
        if runner is None:
            raise RunnerNotFound(f"agent {agent_id!r} has no runner", value=agent_id)
        if not isinstance(runner, Runner) or runner.kind is not RunnerKind.COMMAND:
            raise InvalidRunner(f"the runner of {agent_id!r} is no command", value=runner.kind.value)
        return runner

    async def _attempted(
        self, execution: Execution, session: str | None, active: ActiveRun, sink: EventSink
    ) -> Ended:
        """Run the program; once more without its session when it does not know that any more."""
        try:
            await self._end_former(active)
            outcome = await execution.run(session)
            if session is not None and outcome is not None and outcome.refuses_session:
                _LOG.info("command.session_refused", run_id=active.identity.run_id)
                await sink.emit(StreamReset(reason="the client does not know its session; it begins anew"))
                active.stop.open()
                outcome = await execution.run(None)
        except PostroomError as error:
            return error
        return outcome

    async def _end_former(self, active: ActiveRun) -> None:
        """End what a former execution of the same run has left behind; it is not run twice at once."""
        run_id = active.identity.run_id
        for orphan in await self._orphans.end(self._runs.instances, run_id=run_id):
            if orphan.left:
                raise CommandNotEnded(
                    f"processes of a former execution could not be ended: {list(orphan.left)}",
                    value=list(orphan.left),
                )

    async def _contained(self, active: ActiveRun, work: Coroutine[Any, Any, Ended]) -> Outcome | None:
        """Await work that must come to its end; cancelled, ask it to end and wait until it has."""
        task = self._tasks.start(work, name=active.identity.run_id)
        try:
            done: Ended = await asyncio.shield(task)
        except asyncio.CancelledError:
            active.cancel()
            await _settled(task)
            raise
        if isinstance(done, PostroomError):
            raise done
        return done

    def recovery(self, activation: RunActivation) -> Recovery:
        """A program that was cut off is started again from the beginning."""
        return Recovery.RESTART

    def cancel(self, id: str) -> bool:
        """Ask the run that has this dispatch, run or thread id to end; False when none runs here."""
        active = self._runs.find(id)
        return active is not None and active.cancel()

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the thread's run to end and wait until none of its processes is left; False when some are."""
        if (active := self._runs.on_thread(thread_id)) is None:
            return False
        active.cancel()
        limits = self._with.limits
        most = milliseconds(limits.grace + limits.kill_wait + limits.drain) + _MARGIN_MS
        waits = Tasks("cancel of a run")
        try:
            alarm = waits.start(self._with.timer.sleep(most), name="time-out")
            ended = waits.start(active.ended.wait(), name="end")
            await asyncio.wait((alarm, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await waits.close()
        return active.ended.is_set()

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """A program asks nothing: False."""
        return False

    def send_messages(self, id: str, messages: Sequence[Message]) -> bool:
        """A program that runs is told nothing more: False, and they wait for the next run."""
        return False

    async def find_and_end_orphans(self) -> tuple[Orphan, ...]:
        """End what a former server of this house has left running, and return it; to be called at the start.

        A process counts by its marker, or by its pid together with the instant it was started at. Where the
        system shows no processes of others nothing can be proved, and nothing is ended.
        """
        return await self._orphans.end(self._runs.instances)

    async def orphans(self) -> tuple[int, ...] | None:
        """Return the processes that a former server of this house has left running, and end none.

        None where the system shows no processes of others.
        """
        return await self._orphans.look(self._runs.instances)

    def program_of(self, runner: Runner) -> str:
        """Return the file that a runner would start, without starting it. Blocks.

        Raises:
            CommandNotStarted: it could not be started.
        """
        return program_of(runner, self._with.server)

    async def close(self) -> None:
        """End every program and return when none is left; harmless when done twice."""
        for active in self._runs.all():
            active.cancel()
        for active in self._runs.all():
            await active.ended.wait()
        await self._tasks.close()


async def _settled(task: "asyncio.Task[Ended]") -> None:
    """Return when the work has ended, however often the wait for it is cancelled: it ends itself in time."""
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:  # the cancellation that began this is passed on by the caller
            continue
