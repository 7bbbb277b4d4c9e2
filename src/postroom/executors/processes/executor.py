"""The base of executors whose agents are programs: no process outlives its run, however it ends."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Protocol

from postroom.concurrency import Tasks, within
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink, RunStart
from postroom.contracts.client_programs import ClientProgram
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import (
    CommandError,
    InvalidActivation,
    InvalidRunner,
    PostroomError,
    RunnerNotFound,
    StaleClaim,
)
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.mail import AddressedAgent
from postroom.contracts.messages import Boundary
from postroom.contracts.records import replace
from postroom.contracts.run_access import AccessOf, RunAccess
from postroom.contracts.runner_fields import RunnerKind
from postroom.contracts.runners import Runner, Runners
from postroom.contracts.runs import TerminationKind, TerminationReason
from postroom.executors.activations import identity_of
from postroom.executors.files import file_room
from postroom.executors.processes.active import ActiveRun, ActiveRuns
from postroom.executors.processes.advice import LastWords, advised
from postroom.executors.processes.child_environment import AGENT, child_environment
from postroom.executors.processes.process_runner import ProcessRunner, Work
from postroom.executors.processes.starting import program_of
from postroom.log import get_logger
from postroom.ports import RunControl

_LOG = get_logger(__name__)
_MARGIN_MS = 2_000  # for the checks of processes, on a machine under load


class Finished(Protocol):
    """An ended program of a run."""

    def result(self, activation: RunActivation) -> AgentRunResult:
        """Return the run's result.

        Raises:
            CommandError: The program failed; the class and `retryable` say how.
        """
        ...

    def last_words(self) -> LastWords:
        """Return its last output, for advice on its failure."""
        ...


Ended = Finished | PostroomError | None
"""The end of work: an ended program, a failure, or None if nothing was started."""


def nothing_more(activation: RunActivation) -> dict[str, str]:
    """Return no additional variables."""
    return {}


@asynccontextmanager
async def no_server(activation: RunActivation) -> AsyncIterator[RunAccess | None]:
    """Give a run no access to the server."""
    yield None


async def _with_taken(activation: RunActivation, control: RunControl) -> RunActivation:
    """Return the request with the messages that the run took in earlier executions.

    A new program does not know them. They are those after the request on its thread, whether the request had
    messages or an answer.
    """
    if control.beginning is not None:
        return activation  # it begins now
    run = await control.threads.load_run(activation.run_id or "")
    if run is None or run.input is None or run.activation is None:
        return activation
    known = {*run.activation.trigger_message_ids, *(message.id for message in activation.messages)}
    ids = [one for one in run.input.trigger_message_ids if one not in known]
    asked_at = run.activation.range.to_seq if run.activation.range is not None else 0
    records = await control.threads.load_message_records(activation.thread_id, ids) if ids else ()
    taken = (one.message for one in records if one.seq > asked_at and control.shows(one.message))
    return replace(activation, messages=(*activation.messages, *taken))


async def from_the_start(activation: RunActivation, control: RunControl) -> RunActivation:
    """Return the request with all earlier prompts of its run, for a program without a session."""
    if activation.continue_run_id is None:
        return activation
    run = await control.threads.load_run(activation.continue_run_id)
    if run is None or run.input is None:
        return activation
    given = {message.id for message in activation.messages}
    ids = [one for one in run.input.trigger_message_ids if one not in given]
    records = await control.threads.load_message_records(activation.thread_id, ids)
    before = (record.message for record in records if control.shows(record.message))
    return replace(activation, messages=(*before, *activation.messages))


class ProgramExecutor(RunDispatchExecutor):
    """Runs each agent by a program; a subclass implements the conversation with the program.

    `process_runner` may be shared by several executors. `environment_of` adds variables for a run, such as
    its project; `access_of` gives its program access to our server.
    """

    kind: ClassVar[RunnerKind]
    """The kind of runner that it executes."""

    def __init__(
        self,
        runners: Runners,
        process_runner: ProcessRunner,
        *,
        name: str,
        environment_of: Callable[[RunActivation], Mapping[str, str]] = nothing_more,
        access_of: AccessOf = no_server,
    ) -> None:
        self._access_of = access_of
        self._runners = runners
        self._environment_of = environment_of
        self._runs = ActiveRuns()
        self._tasks = Tasks(name)
        self.process_runner = process_runner

    @abstractmethod
    async def _attempted(self, work: Work) -> Finished | None:
        """Run the program to its end; return None if it was asked to end before it was started.

        Do not cancel this: to end it, use the active run's `stop`.
        """

    @abstractmethod
    async def _keep(self, work: Work, finished: Any) -> None:
        """Store data for the thread's next run; called only if the program has not failed."""

    @abstractmethod
    def words_of(self, runner: Runner) -> Sequence[str]:
        """Return the command of a runner, as far as it is known before a run."""

    @abstractmethod
    def client_of(self, runner: Runner) -> ClientProgram | None:
        """Return the client that a runner starts, for advice on failures; None if it is unknown."""

    @property
    def executing(self) -> int:
        """The number of runs that execute here."""
        return len(self._runs)

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Run the agent's program to its end and return its answer, once no process of it is left.

        When cancelled, it ends the program and all its processes before it passes the cancellation on.

        Raises:
            ThreadAlreadyRunning: The thread's run is executed here already.
            RunnerNotFound: The agent has no runner.
            InvalidRunner: The runner is of another kind.
            InvalidActivation: The request has no prompt, or does not come from a mailbox.
            CommandError: The program was not started, or failed; `retryable` says whether a retry may help.
            StaleClaim: The worker no longer owns the run.
        """
        control = activation.control
        if not isinstance(control, RunControl):
            raise InvalidActivation("a run needs a thread store and a coordinator", value=activation.run_id)
        active = ActiveRun(identity_of(activation))
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
        runner = await self._runner_of(identity.agent_id, control.agent)
        activation = await _with_taken(activation, control)
        async with (
            self.process_runner.folder_of(identity.run_id) as folder,
            file_room(activation, control.files, folder.path / "files") as room,
            self._access_of(activation) as access,
        ):
            work = Work(
                activation=room.activation,
                control=room.activation.control,
                active=active,
                folder=folder,
                runner=runner,
                sink=sink,
                told={AGENT: identity.agent_id, **self._environment_of(activation), **room.variables},
                access=access,
                received=room.received,
            )
            active.pending = None if runner.is_steered else control.pending
            result = await self._came_to(work)
            if active.told and result.termination.type is not TerminationKind.CANCELLED:
                await self._take_told(active)
            await room.send()
            return result

    async def _came_to(self, work: Work) -> AgentRunResult:
        """Return the run's result from the program's end; a failure names the client, with advice."""
        finished: Finished | None = None
        try:
            finished = await self._contained(work.active, self._begun(work))
            if finished is None:
                run_id = work.active.identity.run_id
                return AgentRunResult(run_id=run_id, termination=TerminationReason.cancelled())
            result = finished.result(work.activation)
        except CommandError as error:
            client = self.client_of(work.runner)
            if client is None:
                raise
            environment = child_environment(work.runner, self.process_runner.server, {}, {})
            command = self.words_of(work.runner)[0]
            said = finished.last_words() if finished else LastWords()
            raise await asyncio.to_thread(
                advised, error, client, work.runner, command, environment, said
            ) from error
        await self._keep(work, finished)
        return result

    async def _take_told(self, active: ActiveRun) -> None:
        """Make the messages that tools delivered the run's. On failure, they also start the next run.

        Raises:
            StaleClaim: The worker no longer owns the run.
        """
        assert active.pending is not None  # noqa: S101 - they came from there
        try:
            await active.pending.freeze(Boundary.NEXT_STEP, only=frozenset(active.told))
        except StaleClaim:
            raise
        except PostroomError as error:
            run_id = active.identity.run_id
            _LOG.warning("program.told_not_noted", run_id=run_id, reason=error.describe())

    async def untold(self, run_id: str) -> str:
        """Return new messages for a run here, for the answer of a tool that its program called.

        Each message is returned once. Empty if there are none, or if the program takes them otherwise.
        """
        active = self._runs.find(run_id)
        return "" if active is None else await active.untold()

    async def _runner_of(self, agent_id: str, agent: AddressedAgent | None) -> Runner:
        runner = await self._runners.runner_of(agent_id, agent)
        if runner is None:
            raise RunnerNotFound(f"agent {agent_id!r} has no runner", value=agent_id)
        if not isinstance(runner, Runner) or runner.kind is not self.kind:
            what = f"the runner of {agent_id!r} is of the kind {runner.kind.value!r}, not {self.kind.value!r}"
            raise InvalidRunner(what, value=runner.kind.value)
        return runner

    async def _begun(self, work: Work) -> Ended:
        try:
            return await self._attempted(work)
        except PostroomError as error:
            return error

    async def _contained(self, active: ActiveRun, work: Coroutine[Any, Any, Ended]) -> Finished | None:
        """Await work that must not be cut off; when cancelled, ask it to end and wait for the end."""
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

    def cancel(self, id: str) -> bool:
        """Ask the run with this dispatch, run or thread id to end; return False if none runs here."""
        active = self._runs.find(id)
        return active is not None and active.cancel()

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the thread's run to end and wait until its processes have ended; False if some remain."""
        if (active := self._runs.on_thread(thread_id)) is None:
            return False
        active.cancel()
        limits = self.process_runner.limits
        most = milliseconds(limits.farewell + limits.grace + limits.kill_wait + limits.drain) + _MARGIN_MS
        return await within(active.ended.wait(), most, self.process_runner.timer)

    def wake_pending_boundary(self, id: str) -> bool:
        """Tell the run with this id about new messages; return False if its program takes none."""
        active = self._runs.find(id)
        return active is not None and active.wake()

    def program_of(self, runner: Runner) -> str:
        """Return the file that a runner would start, without starting it. Blocks.

        Raises:
            CommandNotStarted: It could not be started.
        """
        return program_of(self.words_of(runner)[0], runner, self.process_runner.server)

    async def close(self) -> None:
        """End every program and return when none is left; a repeated call has no effect."""
        for active in self._runs.all():
            active.cancel()
        for active in self._runs.all():
            await active.ended.wait()
        await self._tasks.close()
        await asyncio.to_thread(self.process_runner.launcher.close)


async def _settled(task: "asyncio.Task[Ended]") -> None:
    """Wait until the work has ended, despite any cancellation; the work is bounded."""
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:  # the cancellation that began this is passed on by the caller
            continue
