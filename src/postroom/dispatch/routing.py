"""Combines several executors, one of which is selected for each run."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import AgentNotFound
from postroom.contracts.executor import AgentRunResult, ResolvedRunPlan, RunDispatchExecutor
from postroom.contracts.live import LiveChannels
from postroom.contracts.messages import Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.records import replace
from postroom.contracts.runs import RunRecord
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import Accept
from postroom.ports import RunEffects
from postroom.stores.store import Transaction


class SeveralExecutors(RunDispatchExecutor):
    """Combines several executors in one mailbox.

    Each run has one executor, which also receives all later calls for the run.

    Each executor writes its commits through the context of the run. Executors that end their runs themselves
    can be combined with others, because the mailbox only ends runs that are still open.
    """

    @abstractmethod
    async def chosen(self, activation: RunActivation) -> RunDispatchExecutor:
        """Return the executor of a run.

        Raises:
            PostroomError: No executor of this mailbox executes such runs; `retryable` states whether a later
                attempt may succeed.
        """

    @abstractmethod
    def each(self) -> Iterator[RunDispatchExecutor]:
        """Return each executor once."""

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run with its executor, which also decides how an interrupted run continues.

        Raises:
            PostroomError: No executor of this mailbox executes the run, or its executor failed.
        """
        executor = await self.chosen(activation)
        if activation.recovery is not Recovery.START:
            activation = replace(activation, recovery=executor.recovery(activation))
        return await executor.run(activation, sink)

    def recovery(self, activation: RunActivation) -> Recovery:
        """Return RESUME for an interrupted run; the run's executor decides how the run continues."""
        return Recovery.RESUME

    def cancel(self, id: str) -> bool:
        """Ask the run with this dispatch, run or thread id to end."""
        return any(executor.cancel(id) for executor in self.each())

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the thread's run to end, and wait until it has ended."""
        for executor in self.each():
            if await executor.cancel_and_wait_by_thread(thread_id):
                return True
        return False

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Pass a decision to the executor of the run with this id."""
        return any(executor.send_decision(id, tool_call_id, resume) for executor in self.each())

    def send_messages(self, id: str, messages: Sequence[Message]) -> bool:
        """Pass messages to the executor of the run with this id."""
        return any(executor.send_messages(id, messages) for executor in self.each())

    def wake_pending_boundary(self, id: str) -> bool:
        """Notify the executor of the run with this id that messages are waiting."""
        return any(executor.wake_pending_boundary(id) for executor in self.each())

    def listen_to(self, live: LiveChannels | None) -> None:
        """Set the channel over which other processes send commands for active runs."""
        for executor in self.each():
            executor.listen_to(live)

    async def resolve(self, activation: RunActivation, *, pinned: str | None) -> ResolvedRunPlan:
        """Return the configuration to which the run is pinned."""
        return await (await self.chosen(activation)).resolve(activation, pinned=pinned)


class ExecutorsByThread(SeveralExecutors):
    """Chooses the executor of a run by the prefix of its thread's name."""

    def __init__(self, routes: Mapping[str, RunDispatchExecutor]) -> None:
        """Create the executor from other executors, keyed by thread prefix."""
        self._routes = dict(routes)

    def add(self, prefix: str, executor: RunDispatchExecutor) -> None:
        """Register an executor for the threads with this prefix."""
        self._routes[prefix] = executor

    async def chosen(self, activation: RunActivation) -> RunDispatchExecutor:
        """Return the executor that this mailbox uses for runs of the request's thread.

        Raises:
            AgentNotFound: No executor of this mailbox executes runs of this thread.
        """
        thread_id = activation.thread_id
        executor = self._route(thread_id)
        if executor is None:
            raise AgentNotFound(f"no executor of this mailbox runs thread {thread_id!r}", value=thread_id)
        return executor

    def each(self) -> Iterator[RunDispatchExecutor]:
        """Return each executor once."""
        return iter(dict.fromkeys(self._routes.values()))

    def waits_for_outages(self, thread_id: str) -> bool:
        """Return whether this thread's runs are retried for minutes after a failure that may be an outage."""
        executor = self._route(thread_id)
        return executor is not None and executor.waits_for_outages(thread_id)

    def commits_steps(self, thread_id: str) -> bool:
        """Return whether the executor of the thread's runs commits their steps."""
        executor = self._route(thread_id)
        return executor is not None and executor.commits_steps(thread_id)

    def agent_of(self, thread_id: str) -> str | None:
        """Return the agent of all runs of a thread.

        Return None if each request names its agent, or if no executor of this mailbox executes runs of the
        thread.
        """
        executor = self._route(thread_id)
        return None if executor is None else executor.agent_of(thread_id)

    def _route(self, thread_id: str) -> RunDispatchExecutor | None:
        for prefix, executor in self._routes.items():
            if thread_id.startswith(prefix):
                return executor
        return None


class JoinedEffects(RunEffects):
    """Combines the effects of several parts of the server, each of which handles only its own threads."""

    def __init__(self, *parts: RunEffects) -> None:
        self._parts = list(parts)

    def add(self, part: RunEffects) -> None:
        """Add a part that may write rows when a run starts or ends."""
        self._parts.append(part)

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[Message]) -> object | None:
        """Let the first part that handles the thread of the run write its rows for the start of the run.

        Return the result of this part, or None if no part handles the thread.
        """
        for part in self._parts:
            if (begun := part.begin(tx, run, messages)) is not None:
                return begun
        return None

    def receive(
        self, tx: Transaction, thread_id: str, run_id: str, messages: tuple[Message, ...], *, told: bool
    ) -> tuple[Message, ...]:
        """Let each part write its rows for messages that a run receives; return those that the run reads."""
        for part in self._parts:
            messages = part.receive(tx, thread_id, run_id, messages, told=told)
        return messages

    def why_not_wait(self, tx: Transaction, run: RunRecord) -> str | None:
        """Return the first reason of a part for which the run must not wait for a person, or None."""
        return next(filter(None, (part.why_not_wait(tx, run) for part in self._parts)), None)

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Write the rows of all parts for the end of a run."""
        for part in self._parts:
            part.write(tx, run, accept)

    def put_back(self, tx: Transaction, row: RunDispatch, *, is_stop: bool) -> None:
        """Write the rows of all parts for the end of an execution whose run is retried."""
        for part in self._parts:
            part.put_back(tx, row, is_stop=is_stop)

    def withdraw(self, tx: Transaction, run: RunRecord) -> None:
        """Write the rows of all parts for the withdrawal of a run's questions."""
        for part in self._parts:
            part.withdraw(tx, run)

    def of(self, tx: Transaction, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the combined effects of a run that has ended or waits."""
        drafts = list[OutboxDraft]()
        for part in self._parts:
            drafts += part.of(tx, run)
        return drafts

    def stored(self, run: RunRecord) -> None:
        """Notify all parts that the effects of a run are stored."""
        for part in self._parts:
            part.stored(run)
