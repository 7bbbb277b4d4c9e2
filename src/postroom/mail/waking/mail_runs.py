"""Executes an agent's run with its messages and the answers that it waited for."""

from collections.abc import Callable, Collection, Sequence

from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.budgets import BUDGET_TOOL
from postroom.contracts.clock import Clock
from postroom.contracts.executor import AgentRunResult, ExecutorAround, ResolvedRunPlan, RunDispatchExecutor
from postroom.contracts.messages import Boundary, Message
from postroom.contracts.records import replace
from postroom.contracts.runs import (
    RunRecord,
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.tracing import OFF, Invoked, Span, Tracing
from postroom.contracts.waking import AskedQuestion
from postroom.mail.tracing import followed, run_trace
from postroom.mail.waking.open_questions import ASK, BY_MAIL
from postroom.mail.waking.prompts import DECISION, agent_of, answer_told
from postroom.mail.waking.run_input import AgentName, RunInput, begin, take, unread
from postroom.ports import PendingBoundary, RunControl
from postroom.stores.mail.store import MailStore


class MailRunExecutor(ExecutorAround):
    """Wraps the executor of agents.

    A run whose messages were all read in the meantime does not start. A run that has asked a person waits for
    the answer when it has ended its turn, and continues with it.
    """

    def __init__(
        self,
        within: RunDispatchExecutor,
        store: MailStore,
        clock: Clock,
        *,
        whose: Callable[[str], AgentName | None] = agent_of,
        tracing: Tracing = OFF,
    ) -> None:
        """Keep the arguments; `whose` returns the agent of a thread."""
        super().__init__(within)
        self._store = store
        self._clock = clock
        self._whose = whose
        self._tracing = tracing

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run of an agent and return its end, or the questions that it waits for."""
        whose = self._whose(activation.thread_id)
        if whose is None:
            return await self._within.run(activation, sink)
        run_id = activation.run_id or ""
        before: RunRecord | None = None
        if activation.recovery is not Recovery.START or activation.decisions:
            activation, before = await _continued(activation)
        begun = await self._begun(whose, activation, before)
        messages = begun.read(activation.messages)
        if not messages and not begun.mail:
            return AgentRunResult(run_id=run_id)
        told = replace(
            self._with_mail(activation, begun, whose),
            messages=messages,
            agent_id=self.agent_of(activation.thread_id),
        )
        slug, name = whose
        follows = list[str]()
        if self._tracing.is_on:
            follows = await self._store.read(lambda tx: followed(tx, run_id, begun.mail))
        invoked = Invoked(name=name, project=slug, thread_id=activation.thread_id, run_id=run_id)
        with self._tracing.invoking(invoked, follows=follows) as span:
            result = await self._executed(told, sink, span)
            if _failed(result):
                span.failed(result.termination.type.value)
            return result

    async def _begun(self, whose: AgentName, activation: RunActivation, before: RunRecord | None) -> RunInput:
        """Return the mail of the run: assigned when the run was claimed, or now."""
        control, messages = activation.control, activation.messages
        if isinstance(control, RunControl) and isinstance(control.beginning, RunInput):
            return control.beginning
        run_id, answered = activation.run_id or "", [call_id for call_id, _ in activation.decisions]
        return await self._store.write(lambda tx: begin(tx, whose, run_id, messages, before, answered))

    async def _executed(self, told: RunActivation, sink: EventSink, span: Span) -> AgentRunResult:
        """Execute the run and collect its questions; later work continues its trace."""
        run_id = told.run_id or ""
        try:
            result = await self._within.run(told, sink)
        except Exception:
            await self._traced(run_id, span)
            raise
        await self._traced(run_id, span)
        asked = await self._store.read(lambda tx: tx.questions(run_id))
        return self._waiting(result, asked) if asked else result

    async def _traced(self, run_id: str, span: Span) -> None:
        """Store the run's place in a trace, for work that follows from it."""
        if (at := span.traceparent) is not None:
            await self._store.write(lambda tx: tx.put_trace(run_trace(run_id), at))

    def _with_mail(self, activation: RunActivation, begun: RunInput, whose: AgentName) -> RunActivation:
        """Return the request with its agent and its mail conversation, from which the run can read more."""
        control, mail_thread = activation.control, begun.mail_thread
        if not isinstance(control, RunControl):
            return activation
        control = replace(control, agent=begun.agent)
        if mail_thread is not None:
            control = replace(control, conversation=begun.conversation)
        if mail_thread is not None and control.pending is not None:
            live = LiveMail(control.pending, self._store, mail_thread, whose, activation.run_id or "")
            control = replace(control, pending=live)
        return replace(activation, control=control)

    def _waiting(self, result: AgentRunResult, asked: Sequence[AskedQuestion]) -> AgentRunResult:
        now = self._clock.now()
        tickets = tuple(
            RunWaitingTicket(
                ticket_id=one.id,
                tool_call_id=one.id,
                tool_name=ASK,
                reason=one.text,
                updated_at=now,
                expires_at=None if one.timeout_ms is None else now + one.timeout_ms,
                on_timeout=one.on_timeout,
            )
            for one in asked
        )
        waiting = result.waiting or RunWaitingState(
            reason=WaitingReason.USER_INPUT, message=result.response or None
        )
        waiting = replace(waiting, tickets=(*waiting.tickets, *tickets))
        return replace(result, waiting=waiting, termination=TerminationReason.suspended())

    def agent_of(self, thread_id: str) -> str | None:
        """Return the agent of all runs of a thread."""
        whose = self._whose(thread_id)
        return self._within.agent_of(thread_id) if whose is None else f"{whose[1]}@{whose[0]}"

    async def resolve(self, activation: RunActivation, *, pinned: str | None) -> ResolvedRunPlan:
        """Return the configuration of the run; the runner of its agent is read when it starts."""
        return ResolvedRunPlan(resolution_id=pinned or "live")


class LiveMail:
    """Lets an active run read the messages that arrive on its mail thread, and no others.

    The run reads messages before a step and never after its last one, because their senders would not get an
    answer: such a message starts another run.
    """

    def __init__(
        self, within: PendingBoundary, store: MailStore, mail_thread: str, whose: AgentName, run_id: str
    ) -> None:
        """Read pending messages through `within`, for the run of an agent on a mail thread."""
        self._within = within
        self._store = store
        self._mail_thread = mail_thread
        self._whose = whose
        self._run_id = run_id

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        """Return the messages that the run would read before this step, without those read or recalled.

        Raises:
            StoreError: The store could not be reached.
        """
        if boundary is not Boundary.NEXT_STEP:
            return ()
        waiting = await self._within.waiting(boundary, group=self._mail_thread)
        return await self._store.read(lambda tx: unread(tx, self._whose, waiting)) if waiting else ()

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[Message, ...]:
        """Commit the messages that the run reads before this step, and return them in order.

        Messages that were read or recalled in the meantime are omitted. Messages in `only` were already given
        to the program, so they count even if its model has also read them in the inbox. If the run is cut off
        before they are assigned, its next execution assigns them.

        Raises:
            StaleClaim: The worker has lost the run.
            StoreError: The store could not be reached.
        """
        if boundary is not Boundary.NEXT_STEP:
            return ()
        frozen = await self._within.freeze(boundary, group=self._mail_thread, only=only)
        if not frozen:
            return ()
        whose, run_id, told = self._whose, self._run_id, only is not None
        return await self._store.write(lambda tx: take(tx, whose, run_id, frozen, told=told))

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        """Add messages that came live to the pending ones, for this run; known ids are ignored."""
        await self._within.stage(boundary, messages)


def _failed(result: AgentRunResult) -> bool:
    ends_well = (TerminationKind.NATURAL_END, TerminationKind.BEHAVIOR_REQUESTED, TerminationKind.SUSPENDED)
    return result.waiting is None and result.termination.type not in ends_well


async def _continued(activation: RunActivation) -> tuple[RunActivation, RunRecord | None]:
    """Return the request of a run that continues with all its input, and the run as it was stored.

    The input includes decisions of people, as messages, and the earlier messages of a run that a budget held
    back.
    """
    control, messages = activation.control, activation.messages
    before: RunRecord | None = None
    if isinstance(control, RunControl):
        before = await control.threads.load_run(activation.run_id or "")
    tickets = before.waiting.tickets if before is not None and before.waiting is not None else ()
    asked = {one.tool_call_id: one.reason for one in tickets}
    budgets = {one.tool_call_id for one in tickets if one.tool_name == BUDGET_TOOL}
    was_kept = bool(budgets) and len(budgets) == len(asked)
    if was_kept and before is not None and before.input is not None and isinstance(control, RunControl):
        given = {one.id for one in messages}
        ids = [one for one in before.input.trigger_message_ids if one not in given]
        records = await control.threads.load_message_records(activation.thread_id, ids)
        messages = (*(one.message for one in records), *messages)
    decided = (
        Message.user(answer_told(asked.get(call_id, ""), resume), id=f"{DECISION}{resume.decision_id}")
        for call_id, resume in activation.decisions
        if call_id not in budgets  # the agent has not asked whether it may run
        and not resume.decision_id.startswith(f"{BY_MAIL}/")  # it reads the reply itself
    )
    return replace(activation, messages=(*messages, *decided)), before
