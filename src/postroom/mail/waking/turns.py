"""Gives a run the letters that began it, and the answers that it waited for, and notes that it has them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Clock
from postroom.contracts.executor import AgentRunResult, RunControl, RunDispatchExecutor
from postroom.contracts.messages import Message
from postroom.contracts.runs import (
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.store import MailStore, MailWrites
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.tracing import OFF, Invoked, Span, Tracing
from postroom.contracts.waking import AskedQuestion, Handling
from postroom.mail.tracing import followed, run_trace
from postroom.mail.waking.words import agent_of, answer_told, letters_named

ASK = "ask_person"
_FAILED = {TerminationKind.ERROR, TerminationKind.CANCELLED, TerminationKind.BLOCKED}
AgentName = tuple[str, str]
"""Slug of the project, and name."""


class AgentTurns(RunDispatchExecutor):
    """Stands around what runs agents.

    A run whose letters were all read meanwhile does not begin. One that has asked a person waits for the
    answer when it has ended its turn, and goes on with it in its hands.
    """

    def __init__(
        self,
        within: RunDispatchExecutor,
        store: MailStore,
        clock: Clock,
        whose: Callable[[str], AgentName | None] = agent_of,
        tracing: Tracing = OFF,
    ) -> None:
        """Keep what it works with; `whose` says which agent runs a thread."""
        self._tracing = tracing
        self._within = within
        self._store = store
        self._clock = clock
        self._whose = whose

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run of an agent and return how it ended, or what it waits for."""
        whose = self._whose(activation.thread_id)
        if whose is None:
            return await self._within.run(activation, sink)
        slug, name = whose
        run_id = activation.run_id or ""
        said = await _decided(activation)
        taken = await self._store.write(lambda tx: self._begun(tx, activation, slug, name))
        if not taken and not said:
            return AgentRunResult(run_id=run_id)
        told = replace(activation, messages=(*taken, *said), agent_id=f"{name}@{slug}")
        follows = await self._followed(run_id, taken)
        invoked = Invoked(name=name, project=slug, thread_id=activation.thread_id, run_id=run_id)
        with self._tracing.invoking(invoked, follows=follows) as span:
            result = await self._sat(told, sink, span)
            if result.termination.type in _FAILED:
                span.failed(result.termination.type.value)
            return result

    async def _sat(self, told: RunActivation, sink: EventSink, span: Span) -> AgentRunResult:
        """Execute the run and take up what it asked; what follows from it goes on from where it is."""
        run_id = told.run_id or ""
        try:
            result = await self._within.run(told, sink)
        except Exception:
            await self._store.write(lambda tx: _risen(tx, run_id, span))
            raise
        asked = await self._store.write(lambda tx: _risen(tx, run_id, span))
        return self._waiting(result, asked) if asked and result.waiting is None else result

    async def _followed(self, run_id: str, taken: Sequence[Message]) -> list[str]:
        if not self._tracing.is_on:
            return []
        letters = letters_named([message.id or "" for message in taken])
        return await self._store.read(lambda tx: followed(tx, run_id, letters))

    def _begun(self, tx: MailWrites, activation: RunActivation, slug: str, name: str) -> tuple[Message, ...]:
        """Return what the run is to read, and note that it has it and is at work."""
        project = tx.project(slug)
        agent = None if project is None else tx.agent(project.id, name)
        kept: list[Message] = []
        for message in activation.messages:
            letters = letters_named([message.id or ""])
            if letters and (agent is None or not _is_open(tx, letters[0], agent.id)):
                continue
            if letters and agent is not None:
                handling = Handling(
                    message_id=letters[0],
                    agent_id=agent.id,
                    run_id=activation.run_id or "",
                    injected_at=self._clock.now(),
                )
                tx.put_handling(handling)
            kept.append(message)
        if agent is not None:
            tx.begin_sitting(activation.run_id or "", agent.id, self._clock.now())
        return tuple(kept)

    def _waiting(self, result: AgentRunResult, asked: Sequence[AskedQuestion]) -> AgentRunResult:
        tickets = tuple(
            RunWaitingTicket(
                ticket_id=one.id,
                tool_call_id=one.id,
                tool_name=ASK,
                reason=one.text,
                updated_at=self._clock.now(),
            )
            for one in asked
        )
        waiting = RunWaitingState(
            reason=WaitingReason.USER_INPUT, tickets=tickets, message=result.response or None
        )
        return replace(result, waiting=waiting, termination=TerminationReason.suspended())

    def recovery(self, activation: RunActivation) -> Recovery:
        """Say how a run that was cut off is executed again."""
        return self._within.recovery(activation)

    def cancel(self, id: str) -> bool:
        """Ask a run to end."""
        return self._within.cancel(id)

    async def cancel_and_wait_by_thread(self, thread_id: str) -> bool:
        """Ask the thread's run to end and wait until it has."""
        return await self._within.cancel_and_wait_by_thread(thread_id)

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Hand a decision to a run."""
        return self._within.send_decision(id, tool_call_id, resume)

    def send_messages(self, id: str, messages: Sequence[Message]) -> bool:
        """Hand messages to a run for its next step."""
        return self._within.send_messages(id, messages)

    def wake_pending_boundary(self, id: str) -> bool:
        """Tell a run that messages wait for it."""
        return self._within.wake_pending_boundary(id)

    def commits_steps(self, thread_id: str) -> bool:
        """Say whether the steps of this thread's runs are committed by what executes them."""
        return self._within.commits_steps(thread_id)


def _risen(tx: MailWrites, run_id: str, span: Span) -> list[AskedQuestion]:
    """Note that a run is not at work any more, and where in a trace it was; return what it asked."""
    if span.traceparent is not None:
        tx.put_trace(run_trace(run_id), span.traceparent)
    return tx.end_sitting(run_id)


def _is_open(tx: MailWrites, message_id: int, agent_id: int) -> bool:
    """Say whether a letter is still to be read."""
    message = tx.message(message_id)
    mine = next((one for one in tx.recipients([message_id])[message_id] if one.agent_id == agent_id), None)
    return message is not None and message.recalled_at is None and mine is not None and mine.read_at is None


async def _decided(activation: RunActivation) -> tuple[Message, ...]:
    """Return what a person has decided about the run's questions, as it is told to the agent."""
    control = activation.control
    if not activation.decisions or not isinstance(control, RunControl):
        return ()
    run = await control.threads.load_run(activation.run_id or "")
    tickets = run.waiting.tickets if run is not None and run.waiting is not None else ()
    asked = {one.tool_call_id: one.reason for one in tickets}
    return tuple(
        Message.user(answer_told(asked.get(call_id, ""), resume), id=f"decision-{resume.decision_id}")
        for call_id, resume in activation.decisions
    )
