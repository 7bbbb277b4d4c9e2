"""The built-in agent runtime, an executor that runs agents in this process."""

import uuid
from collections.abc import Callable, Sequence

from postroom.concurrency import SystemTimer, Tasks
from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink, RunFinish, RunIdentity
from postroom.contracts.clock import Clock, SystemClock, Timer
from postroom.contracts.errors import InvalidActivation, InvalidResume
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor, build_identity
from postroom.contracts.live import LiveChannels
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import CommitCoordinator
from postroom.contracts.runs import RunRecord, RunStatus, TerminationKind, TerminationReason
from postroom.contracts.tools import ToolCallResume
from postroom.ports import RunControl
from postroom.runtime.agents import AgentResolver, ResolvedAgent
from postroom.runtime.background import BackgroundTasks, WakeSubmitter
from postroom.runtime.calls import ToolCalls
from postroom.runtime.checkpoint import RunLog
from postroom.runtime.execution import Execution
from postroom.runtime.files import SEND_FILE
from postroom.runtime.interrupting import TimeUp, limited
from postroom.runtime.slots import ActiveRun, ActiveRuns, Listener
from postroom.runtime.step_context import StepContext
from postroom.runtime.window import Windows
from postroom.stores.runs.ports import ThreadStore

CANCEL_WAIT_MS = 5_000
"""The time, in milliseconds, that `cancel_and_wait_by_thread` waits for the end of a run."""


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


class AgentRuntime(RunDispatchExecutor):
    """Runs agents in this process, as a loop of model requests and tool calls.

    Each step of the loop is committed. `wake` is a function that resumes a run when the run's background
    tasks have ended. `threads` and `coordinator` are required for runs without a mailbox. A suspended run
    stays in memory for `hold_ms` milliseconds.
    """

    def __init__(  # noqa: PLR0913 - its dependencies, by name
        self,
        resolver: AgentResolver,
        *,
        clock: Clock | None = None,
        timer: Timer | None = None,
        threads: ThreadStore | None = None,
        coordinator: CommitCoordinator | None = None,
        tasks: BackgroundTasks | None = None,
        wake: WakeSubmitter | None = None,
        hold_ms: int = 0,
        new_id: Callable[[str], str] = _new_id,
    ) -> None:
        self.wake = wake
        self._resolver = resolver
        self._clock = clock or SystemClock()
        self._timer = timer or SystemTimer()
        self._live: LiveChannels | None = None
        self._threads = threads
        self._coordinator = coordinator
        self._hold_ms = hold_ms
        self._new_id = new_id
        self._runs = ActiveRuns()
        self._windows = Windows()
        self.tasks = tasks or BackgroundTasks(timer=self._timer)
        self.tasks.attach(self)

    @property
    def executing(self) -> int:
        """The number of runs that this process executes."""
        return len(self._runs)

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run until the run ends or waits.

        If the call is repeated after a crash, the run continues after the last committed step. For a run that
        has ended, the recorded result is returned.

        Raises:
            ThreadAlreadyRunning: A run of the thread is already executing in this process.
            AgentNotFound: No agent has the id that the run names.
            InvalidActivation: The thread store or the coordinator is missing.
            InvalidResume: The run has ended, but was asked to continue.
            InferenceError: The model failed.
            StaleClaim: The worker has lost the run.
        """
        if isinstance(activation.control, RunControl):
            control = activation.control
        else:
            if self._threads is None or self._coordinator is None:
                raise InvalidActivation(
                    "this executor needs a thread store and a coordinator to execute a run",
                    value=activation.run_id,
                )
            control = RunControl(coordinator=self._coordinator, threads=self._threads)
        identity = build_identity(activation, run_id=activation.run_id or self._new_id("run"))
        active = ActiveRun(
            identity, reads_pending=control.pending is not None, new_id=lambda: self._new_id("msg")
        )
        self._runs.enter(active)
        listener = Listener(self._live, active)
        try:
            await listener.start()
            identity = active.identity
            now = self._clock.now()
            log = RunLog(
                control,
                RunRecord(
                    run_id=identity.run_id,
                    thread_id=identity.thread_id,
                    agent_id=identity.agent_id,
                    status=RunStatus.CREATED,
                    parent_run_id=identity.parent_run_id,
                    dispatch_id=identity.dispatch_id,
                    session_id=identity.session_id,
                    transport_request_id=identity.transport_request_id,
                    created_at=now,
                    updated_at=now,
                ),
                self._clock,
            )
            stored = await log.stored()
            if stored.status is RunStatus.DONE:
                return await self._told_again(activation, stored, identity, sink)
            active.identity = replace(identity, agent_id=activation.agent_id or stored.agent_id)
            agent = self._resolver.resolve(active.identity.agent_id)
            await log.load(activation.messages, restart=activation.recovery is Recovery.RESTART)
            active.open()
            active.accept(self.tasks.untold(identity.thread_id))
            context = self._step_context(activation, control, active, agent, log, sink)
            limits = Tasks("run limits")
            try:
                if (most := agent.spec.wall_timeout_ms) is not None:
                    limits.start(self._end_after(most, active), name=identity.run_id)
                return await Execution(context).run()
            except BaseException:
                await context.put_down_in_haste()
                raise
            finally:
                await limits.close()
        finally:
            active.shut()
            try:
                await listener.stop()
            finally:
                self._runs.leave(active)

    async def _end_after(self, milliseconds: int, active: ActiveRun) -> None:
        await self._timer.sleep(milliseconds)
        active.stop.request(TerminationReason(type=TerminationKind.STOPPED, value="wall_timeout"))

    async def _told_again(
        self, activation: RunActivation, record: RunRecord, identity: RunIdentity, sink: EventSink
    ) -> AgentRunResult:
        if activation.attempt == 1 and not activation.interruptions:
            raise InvalidResume(f"run {record.run_id!r} has ended and cannot continue", value=record.run_id)
        ended = record.termination or TerminationReason.natural_end()
        text = record.final_output or ""
        result = {"response": text, "status": record.status, "status_reason": ended.value}
        await sink.emit(
            RunFinish(
                thread_id=record.thread_id,
                run_id=record.run_id,
                termination=ended,
                result=result,
                identity=identity,
            )
        )
        return AgentRunResult(run_id=record.run_id, response=text, termination=ended)

    def _step_context(
        self,
        activation: RunActivation,
        control: RunControl,
        active: ActiveRun,
        agent: ResolvedAgent,
        log: RunLog,
        sink: EventSink,
    ) -> StepContext:
        files = control.files if control.files is not None and control.files.can_send else None
        tools = agent.usable_tools()
        if files is None:
            tools.pop(SEND_FILE, None)
        calls = ToolCalls(
            tools=tools,
            frontend={tool.name: tool for tool in activation.options.frontend_tools},
            identity=active.identity,
            sink=sink,
            timer=self._timer,
            timeout_ms=agent.spec.tool_timeout_ms,
            parallel=agent.spec.parallel_tools,
            new_id=lambda: self._new_id("msg"),
            claim=control.claim,
            files=files,
        )
        return StepContext(
            activation=activation,
            agent=agent,
            active=active,
            control=control,
            log=log,
            calls=calls,
            tasks=self.tasks,
            windows=self._windows,
            sink=sink,
            clock=self._clock,
            timer=self._timer,
            hold_ms=self._hold_ms,
            new_id=lambda: self._new_id("msg"),
        )

    def recovery(self, activation: RunActivation) -> Recovery:
        """Return `RESUME`, because an interrupted run continues from the last checkpoint."""
        return Recovery.RESUME

    def cancel(self, id: str) -> bool:
        """Ask an active run to stop; `id` is a dispatch, run or thread id.

        Return False if no run is active.
        """
        active = self._runs.find(id)
        return active is not None and active.cancel()

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the active run of a thread to stop, and wait until the run has ended.

        Return False if no run of the thread is active, or if the run does not end in time.
        """
        if (active := self._runs.on_thread(thread_id)) is None:
            return False
        active.cancel()
        try:
            await limited(active.ended.wait, CANCEL_WAIT_MS, self._timer)
        except TimeUp:
            return False
        return True

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Pass a decision to an active run; return False if the run has no such open tool call."""
        active = self._runs.find(id)
        return active is not None and active.decide([(tool_call_id, resume)])

    def send_messages(self, id: str, messages: Sequence[Message]) -> bool:
        """Pass messages to an active run for the next step; return False if the run accepts no messages."""
        active = self._runs.find(id)
        return active is not None and active.accept(messages)

    def wake_pending_boundary(self, id: str) -> bool:
        """Notify an active run that messages are pending; return False if the run ignores this."""
        active = self._runs.find(id)
        return active is not None and active.wake()

    def listen_to(self, live: LiveChannels | None) -> None:
        """Set the channels through which active runs receive commands from other processes."""
        self._live = live

    def commit_coordinator(self) -> CommitCoordinator | None:
        """Return the commit coordinator for runs without a mailbox."""
        return self._coordinator

    def has_commit_coordinator(self) -> bool:
        """Return True, because the runtime commits each step."""
        return True

    def stages_events(self) -> bool:
        """Return True, because the runtime commits each step with its events."""
        return True

    async def close(self) -> None:
        """Cancel the background tasks, after the caller has ended all runs."""
        await self.tasks.close()

    def owner_on(self, thread_id: str) -> RunIdentity | None:
        """Return the identity of the active run on a thread, or None if no run is active."""
        active = self._runs.on_thread(thread_id)
        return active.identity if active else None

    def hand_over(self, run_id: str, message: Message) -> bool:
        """Pass a message to a run; return False if this process does not execute the run."""
        return self.send_messages(run_id, [message])

    def submitter(self) -> WakeSubmitter | None:
        """Return the function that resumes runs after background tasks, or None."""
        return self.wake
