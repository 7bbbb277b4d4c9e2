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

    Each run has one executor, which receives all calls for the run.
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
        """Execute a run with the run's executor.

        Raises:
            PostroomError: No executor of this mailbox executes the run, or its executor failed.
        """
        executor = await self.chosen(activation)
        if activation.recovery is not Recovery.START:
            activation = replace(activation, recovery=executor.recovery(activation))
        return await executor.run(activation, sink)

    def recovery(self, activation: RunActivation) -> Recovery:
        """Return RESUME for every interrupted run; `run` asks the run's executor."""
        return Recovery.RESUME

    def cancel(self, id: str) -> bool:
        """Ask an active run to end.

        `id` is a dispatch, run or thread id.
        """
        return any(executor.cancel(id) for executor in self.each())

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the thread's active run to end, and wait for the end."""
        for executor in self.each():
            if await executor.cancel_and_wait_by_thread(thread_id):
                return True
        return False

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Pass a decision to the executor of an active run."""
        return any(executor.send_decision(id, tool_call_id, resume) for executor in self.each())

    def send_messages(self, id: str, messages: Sequence[Message]) -> bool:
        """Pass messages to the executor of an active run."""
        return any(executor.send_messages(id, messages) for executor in self.each())

    def wake_pending_boundary(self, id: str) -> bool:
        """Notify the executor of an active run that messages are waiting."""
        return any(executor.wake_pending_boundary(id) for executor in self.each())

    def listen_to(self, live: LiveChannels | None) -> None:
        """Set the channel through which other processes send commands to active runs."""
        for executor in self.each():
            executor.listen_to(live)

    async def resolve(self, activation: RunActivation, *, pinned: str | None) -> ResolvedRunPlan:
        """Return the configuration to which a run is pinned."""
        return await (await self.chosen(activation)).resolve(activation, pinned=pinned)


class ExecutorsByThread(SeveralExecutors):
    """Chooses the executor of a run by the prefix of the thread id."""

    def __init__(self, routes: Mapping[str, RunDispatchExecutor]) -> None:
        """Set the executors, keyed by thread prefix."""
        self._routes = dict(routes)

    def add(self, prefix: str, executor: RunDispatchExecutor) -> None:
        """Register an executor for the threads with a prefix."""
        self._routes[prefix] = executor

    async def chosen(self, activation: RunActivation) -> RunDispatchExecutor:
        """Return the executor for the runs of the request's thread.

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
        """Return whether a thread's runs are retried for minutes after a failure that may be an outage."""
        executor = self._route(thread_id)
        return executor is not None and executor.waits_for_outages(thread_id)

    def commits_steps(self, thread_id: str) -> bool:
        """Return whether the executor itself commits the steps of the thread's runs."""
        executor = self._route(thread_id)
        return executor is not None and executor.commits_steps(thread_id)

    def agent_of(self, thread_id: str) -> str | None:
        """Return the agent of all runs of a thread, or None if the agent depends on the request."""
        executor = self._route(thread_id)
        return None if executor is None else executor.agent_of(thread_id)

    def _route(self, thread_id: str) -> RunDispatchExecutor | None:
        for prefix, executor in self._routes.items():
            if thread_id.startswith(prefix):
                return executor
        return None


class JoinedEffects(RunEffects):
    """Combines the run effects of several parts of the server, each of which handles its own threads."""

    def __init__(self, *parts: RunEffects) -> None:
        self._parts = list(parts)

    def add(self, part: RunEffects) -> None:
        """Add a part that stores rows when a run starts or ends."""
        self._parts.append(part)

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[Message]) -> object | None:
        """Let the parts store their rows for the start of a run.

        The first result that is not None is returned, and the remaining parts are not called. Return None
        if no part handles the thread of the run.
        """
        for part in self._parts:
            if (begun := part.begin(tx, run, messages)) is not None:
                return begun
        return None

    def receive(
        self, tx: Transaction, thread_id: str, run_id: str, messages: tuple[Message, ...], *, told: bool
    ) -> tuple[Message, ...]:
        """Store the rows for messages that a run receives; return the messages that the run reads."""
        for part in self._parts:
            messages = part.receive(tx, thread_id, run_id, messages, told=told)
        return messages

    def why_not_wait(self, tx: Transaction, run: RunRecord) -> str | None:
        """Return the first reason why the run must not wait for a person, or None."""
        return next(filter(None, (part.why_not_wait(tx, run) for part in self._parts)), None)

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Store the rows of all parts for the end of a run."""
        for part in self._parts:
            part.write(tx, run, accept)

    def put_back(self, tx: Transaction, row: RunDispatch, *, is_stop: bool) -> None:
        """Store the rows of all parts for the end of an execution whose run is retried."""
        for part in self._parts:
            part.put_back(tx, row, is_stop=is_stop)

    def withdraw(self, tx: Transaction, run: RunRecord, *, has_begun: bool) -> None:
        """Store the rows of all parts for the withdrawal of a run's questions."""
        for part in self._parts:
            part.withdraw(tx, run, has_begun=has_begun)

    def of(self, tx: Transaction, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return the outbox effects of a run that has ended or waits."""
        drafts = list[OutboxDraft]()
        for part in self._parts:
            drafts += part.of(tx, run)
        return drafts

    def stored(self, run: RunRecord) -> None:
        """Notify all parts that the effects of a run are stored."""
        for part in self._parts:
            part.stored(run)
