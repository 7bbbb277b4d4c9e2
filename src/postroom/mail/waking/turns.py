"""Gives a run the letters that began it, and the answers that it waited for, and notes that it has them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from postroom.contracts.activation import Recovery, RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Clock
from postroom.contracts.executor import AgentRunResult, RunControl, RunDispatchExecutor
from postroom.contracts.mail import Agent
from postroom.contracts.messages import Message
from postroom.contracts.runs import (
    RunRecord,
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.store import MailStore, MailWrites
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import AskedQuestion, Handling
from postroom.mail.waking.at_work import LettersAtWork
from postroom.mail.waking.words import DECISION, agent_of, answer_told, letter_name, letters_named

ASK = "ask_person"
AgentName = tuple[str, str]
"""Slug of the project, and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """What a run that begins, or goes on, has to do."""

    messages: tuple[Message, ...]
    """What it is told now."""
    has_work: bool
    mail_thread: str | None
    """The thread of its letters, where it has any."""


def _nobody() -> None:
    """Hint to nobody."""


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
        ring: Callable[[], None] = _nobody,
    ) -> None:
        """Keep what it works with; `whose` says which agent runs a thread, `ring` hints at changes."""
        self._within = within
        self._store = store
        self._clock = clock
        self._whose = whose
        self._ring = ring

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute a run of an agent and return how it ended, or what it waits for."""
        whose = self._whose(activation.thread_id)
        if whose is None:
            return await self._within.run(activation, sink)
        slug, name = whose
        run_id = activation.run_id or ""
        before = await _former(activation)
        said = _decided(activation, before)
        begun = await self._store.write(lambda tx: self._begun(tx, activation, before, whose))
        self._ring()
        if not begun.has_work and not said:
            return AgentRunResult(run_id=run_id)
        told = replace(
            self._reading(activation, begun, whose),
            messages=(*begun.messages, *said),
            agent_id=f"{name}@{slug}",
        )
        try:
            result = await self._within.run(told, sink)
        except Exception:
            await self._ended(run_id, failed=True)
            raise
        asked = await self._ended(run_id, failed=_failed(result), waits_for=_newly_asked(result, before))
        return self._waiting(result, asked) if asked else result

    async def _ended(
        self, run_id: str, *, failed: bool, waits_for: Sequence[str] | None = None
    ) -> list[AskedQuestion]:
        """Note that a run is not at work any more, and return what it asked the mail room to ask."""
        now = self._clock.now()
        asked = await self._store.write(
            lambda tx: tx.end_sitting(run_id, now=now, failed=failed, waits_for=waits_for)
        )
        self._ring()
        return asked

    def _begun(
        self, tx: MailWrites, activation: RunActivation, before: RunRecord | None, whose: AgentName
    ) -> _Begun:
        """Return what the run is to read, and note that it has it and is at work."""
        run_id = activation.run_id or ""
        agent = _agent(tx, whose)
        messages = self._taken(tx, agent, run_id, activation.messages)
        now = {one.id for one in activation.messages}
        earlier = [one for one in _letters_before(before) if letter_name(one) not in now]
        kept = [one for one in earlier if self._is_taken(tx, agent, run_id, one)]
        if agent is not None and (messages or kept or activation.decisions):
            answered = [call_id for call_id, _ in activation.decisions]
            tx.begin_sitting(run_id, agent.id, self._clock.now(), answered=answered)
        letters = [*kept, *letters_named([one.id or "" for one in messages])]
        first = tx.message(letters[0]) if letters else None
        return _Begun(
            messages=messages,
            has_work=bool(messages or kept),
            mail_thread=None if first is None else first.thread_id,
        )

    def _reading(self, activation: RunActivation, begun: _Begun, whose: AgentName) -> RunActivation:
        """Return the request with what waits for the run as the run may read it: letters of its thread."""
        control, mail_thread = activation.control, begun.mail_thread
        if mail_thread is None or not isinstance(control, RunControl) or control.pending is None:
            return activation
        run_id = activation.run_id or ""

        def taken(tx: MailWrites, messages: Sequence[Message]) -> tuple[Message, ...]:
            return self._taken(tx, _agent(tx, whose), run_id, messages)

        pending = LettersAtWork(control.pending, self._store, mail_thread, taken, self._ring)
        return replace(activation, control=replace(control, pending=pending))

    def _taken(
        self, tx: MailWrites, agent: Agent | None, run_id: str, messages: Sequence[Message]
    ) -> tuple[Message, ...]:
        """Note that the run has these letters in its hands; return what of the messages it is to read."""

        def is_read(message: Message) -> bool:
            letters = letters_named([message.id or ""])
            return not letters or self._is_taken(tx, agent, run_id, letters[0])

        return tuple(one for one in messages if is_read(one))

    def _is_taken(self, tx: MailWrites, agent: Agent | None, run_id: str, message_id: int) -> bool:
        """Note that the run has a letter in its hands; False when nobody needs to handle it any more."""
        message = tx.message(message_id)
        if agent is None or message is None or message.recalled_at is not None:
            return False
        known = tx.handlings([message_id])[message_id].get(agent.id)
        if known is not None and known.run_id == run_id and known.ended_at is None:
            return True  # the run was cut off with it in its hands, and may have read it itself
        mine = next(
            (one for one in tx.recipients([message_id])[message_id] if one.agent_id == agent.id), None
        )
        if mine is None or mine.read_at is not None:
            return False
        now = self._clock.now()
        tx.put_handling(Handling(message_id=message_id, agent_id=agent.id, run_id=run_id, injected_at=now))
        return True

    def _waiting(self, result: AgentRunResult, asked: Sequence[AskedQuestion]) -> AgentRunResult:
        now = self._clock.now()
        tickets = tuple(
            RunWaitingTicket(
                ticket_id=one.id,
                tool_call_id=one.id,
                tool_name=ASK,
                reason=one.text,
                updated_at=now,
                expires_at=None if one.patience is None else now + one.patience,
                on_timeout=one.on_timeout,
            )
            for one in asked
        )
        waiting = result.waiting or RunWaitingState(
            reason=WaitingReason.USER_INPUT, message=result.response or None
        )
        waiting = replace(waiting, tickets=(*waiting.tickets, *tickets))
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


def _agent(tx: MailWrites, whose: AgentName) -> Agent | None:
    project = tx.project(whose[0])
    return None if project is None else tx.agent(project.id, whose[1])


def _newly_asked(result: AgentRunResult, before: RunRecord | None) -> list[str] | None:
    """Return the questions that a run has not waited for before; None when it waits for none."""
    if result.waiting is None:
        return None
    former = before.waiting.tickets if before is not None and before.waiting is not None else ()
    known = {one.tool_call_id for one in former}
    return [one.tool_call_id for one in result.waiting.tickets if one.tool_call_id not in known]


def _failed(result: AgentRunResult) -> bool:
    ends_well = (TerminationKind.NATURAL_END, TerminationKind.BEHAVIOR_REQUESTED, TerminationKind.SUSPENDED)
    return result.waiting is None and result.termination.type not in ends_well


async def _former(activation: RunActivation) -> RunRecord | None:
    """Return the run as an execution before this one has left it; None for one that begins."""
    control = activation.control
    begins = activation.recovery is Recovery.START and not activation.decisions
    if begins or not isinstance(control, RunControl):
        return None
    return await control.threads.load_run(activation.run_id or "")


def _letters_before(run: RunRecord | None) -> list[int]:
    """Return the letters that a run was given so far, also those that came while it was at work."""
    return letters_named(run.input.trigger_message_ids if run is not None and run.input is not None else ())


def _decided(activation: RunActivation, run: RunRecord | None) -> tuple[Message, ...]:
    """Return what a person has decided about the run's questions, as it is told to the agent."""
    tickets = run.waiting.tickets if run is not None and run.waiting is not None else ()
    asked = {one.tool_call_id: one.reason for one in tickets}
    return tuple(
        Message.user(answer_told(asked.get(call_id, ""), resume), id=f"{DECISION}{resume.decision_id}")
        for call_id, resume in activation.decisions
    )
