"""Runs that mail starts: the messages of a run, its execution, and the answer to the senders.

The change that starts a run also assigns the messages to it. A change in which the run receives more messages
assigns these messages. The change that ends the run also writes the answer.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Clock
from postroom.contracts.dispatch import Claim, RunDispatch
from postroom.contracts.executor import AgentRunResult, ExecutorAround, ResolvedRunPlan, RunDispatchExecutor
from postroom.contracts.limits import BUDGET_TOOL
from postroom.contracts.mail import AddressedAgent, Agent, Message, Outcome, Project, Received
from postroom.contracts.messages import Boundary
from postroom.contracts.messages import Message as RunMessage
from postroom.contracts.questions import ASKED_AGAIN, IN_WINDOW, NOBODY
from postroom.contracts.quoting import one_line, without_escapes
from postroom.contracts.records import from_plain, replace
from postroom.contracts.runners import RunnerKind
from postroom.contracts.runs import (
    ASKING,
    RunRecord,
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    WaitingReason,
    agent_of,
)
from postroom.contracts.tasks import TASK_THREAD
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.tracing import OFF, Span, Tracing, message_trace, run_trace
from postroom.contracts.waking import Accept, AskedQuestion, MessageRun, not_replaced
from postroom.log import get_logger
from postroom.mail.context import Rules, WriteContext
from postroom.mail.notes import notes_to_give
from postroom.mail.reservations import in_run, release_reserved_in
from postroom.mail.sending import Addressee, NewMessage, refusals, reply_subject, store_message, wake_readers
from postroom.mail.tasks import MAX_REASON_LENGTH, block_unfinished, give_back
from postroom.mail.waking.open_questions import (
    ASK,
    BEFORE_SEEN,
    close_unseen,
    retired,
    takes_reply,
    ticket_of,
)
from postroom.mail.waking.prompts import (
    DECISION,
    NO_WORDS,
    NOTES,
    STOPS,
    answer_told,
    asks,
    decision_told,
    failure,
    keep_end,
    messages_named,
)
from postroom.ports import PendingBoundary, RunControl, RunEffects, get_claim
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.stores.store import Transaction

_ENDS_WELL = (TerminationKind.NATURAL_END, TerminationKind.BEHAVIOR_REQUESTED, TerminationKind.SUSPENDED)
T = TypeVar("T")
STOPPED: Final = "its server stopped in an orderly way; the run starts again, and no attempt is counted"
"""The error of an attempt that ended because its server was shut down in an orderly way."""
AgentName = tuple[str, str]
"""The slug of an agent's project, and the agent's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """The mail for a run that starts or continues."""

    agent: AddressedAgent | None
    """The agent of the run, or None if the agent no longer exists."""
    mail: tuple[int, ...] = ()
    """The messages assigned to the run. Messages of an earlier execution come first."""
    mail_thread: str | None = None
    """The thread of these messages, or None if there are no messages."""
    conversation: str | None = None
    """The project and the thread of these messages."""


def begin(  # noqa: PLR0913 - the facts about a start
    tx: MailWrites,
    whose: AgentName,
    run_id: str,
    messages: Sequence[RunMessage],
    before: RunRecord | None = None,
    answered: Sequence[str] = (),
    closed: Sequence[str] = (),
    *,
    is_question: bool = False,
) -> RunInput:
    """Assign messages to the run of an agent, record that the run is active, and return the run's mail.

    `before` is the run as stored by an earlier execution. `answered` lists the questions that got an answer,
    and `closed` the questions that got none.
    """
    now = messages_named([message.id or "" for message in messages])
    message_ids = before.input.trigger_message_ids if before is not None and before.input is not None else ()
    earlier = [message_id for message_id in messages_named(message_ids) if message_id not in now]
    agent, assigned = _assign(tx, whose, run_id, [*earlier, *now])
    has_work = bool(assigned) or any(not messages_named([message.id or ""]) for message in messages)
    if agent is not None and has_work:
        gets = answered if is_question or agent.runner is not None else ()
        lost = tx.begin_run(run_id, agent.agent.id, tx.now(), answered=gets, is_question=is_question)
        if lost:
            why = f"its server or its lease was lost {BEFORE_SEEN}"
            close_unseen(tx, run_id, agent.agent.id, lost, why)
        if closed:
            tx.withdraw_questions(run_id, agent.agent.id, closed, now=tx.now())
    if not assigned:
        return RunInput(agent=agent)
    first = assigned[0]
    return RunInput(
        agent=agent,
        mail=tuple(message.message_id for message in assigned),
        mail_thread=first.thread_id,
        conversation=f"{first.project_id}/{first.thread_id}",
    )


def unread(tx: MailReads, whose: AgentName, messages: Sequence[RunMessage]) -> tuple[RunMessage, ...]:
    """Return the messages that the agent has not read and that nobody recalled."""
    addressed = tx.agent_addressed(*whose)
    ids = messages_named([message.id or "" for message in messages])
    deliveries = {} if addressed is None else tx.received(addressed.agent.id, ids)
    return _among(
        messages,
        [
            number
            for number in deliveries
            if deliveries[number].read_at is None and deliveries[number].recalled_at is None
        ],
    )


def _assign(
    tx: MailWrites, whose: AgentName, run_id: str, ids: Sequence[int], *, told: bool = False
) -> tuple[AddressedAgent | None, list[Received]]:
    """Assign messages to a run; return the run's agent, and the messages that the run must handle."""
    addressed = tx.agent_addressed(*whose)
    if addressed is not None:
        tx.lock_projects([addressed.project.id])
        addressed = tx.agent_addressed(*whose)  # read the agent's state again, under the lock
    if addressed is None:
        return None, []
    agent = addressed.agent
    is_run = agent.retired_at is None and addressed.runner is not None
    received, assigned = tx.received(agent.id, ids) if ids else {}, list[Received]()
    for delivery in filter(None, map(received.get, ids)):
        is_new = delivery.run_id != run_id or delivery.ended_at is not None
        if delivery.recalled_at is not None or (
            is_new and (not is_run or (delivery.read_at is not None and not told))
        ):
            continue
        assigned.append(delivery)
        if is_new:
            tx.put_message_run(
                MessageRun(
                    message_id=delivery.message_id, agent_id=agent.id, run_id=run_id, delivered_at=tx.now()
                )
            )
    return addressed, assigned


def _among(messages: Sequence[RunMessage], mail: Sequence[int]) -> tuple[RunMessage, ...]:
    return tuple(message for message in messages if set(messages_named([message.id or ""])).issubset(mail))


def _notes_message(tx: MailWrites, *, begun: RunInput, run_id: str, rules: Rules) -> tuple[RunMessage, ...]:
    if begun.agent is None:
        return ()
    notes = notes_to_give(
        tx,
        begun.agent.project,
        begun.agent.agent,
        rules,
        place=in_run(run_id),
        again=True,
        mail_thread=begun.mail_thread or "",
    )
    if notes is None:
        return ()
    notes.record(tx, tx.now())
    return (RunMessage.user(notes.text, id=f"{NOTES}{run_id}"),)


class MailRunExecutor(ExecutorAround):
    """Wraps the executor of agents, so that runs can read mail and ask people.

    A run does not start if all of its messages were already read.
    """

    def __init__(
        self,
        within: RunDispatchExecutor,
        store: MailStore,
        clock: Clock,
        *,
        whose: Callable[[str], AgentName | None] = agent_of,
        tracing: Tracing = OFF,
        rules: Rules | None = None,
    ) -> None:
        """Wrap the executor `within`.

        `whose` returns the agent that executes the runs of a thread.
        """
        super().__init__(within)
        self._store = store
        self._clock = clock
        self._whose = whose
        self._tracing = tracing
        self._rules = rules or Rules()

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """Execute the run of an agent, and return the result, or the questions for which the run waits.

        Raises:
            StaleClaim: This process no longer executes the run. Nothing was written.
        """
        whose, is_asking = self._whose(activation.thread_id), ASKING in activation.thread_id
        if whose is None:
            return await self._within.run(activation, sink)
        if is_asking and not activation.decisions:
            return self._asked_outside(activation)
        run_id, control = activation.run_id or "", activation.control
        if isinstance(control, RunControl) and isinstance(control.beginning, RunInput):
            begun = control.beginning  # the change that claimed the run has assigned the messages
        else:
            activation, before = await _continuation(activation)
            ended = {True: list[str](), False: list[str]()}
            for call_id, decision in activation.decisions:
                ended[decision.by != NOBODY or decision.result is not None].append(call_id)
            begin_run = partial(
                begin,
                whose=whose,
                run_id=run_id,
                messages=activation.messages,
                before=before,
                answered=ended[True],
                closed=ended[False],
                is_question=is_asking,
            )
            begun = await _write_change(self._store, get_claim(activation), begin_run)
        if is_asking:
            return AgentRunResult(run_id=run_id, response=decision_told(activation.decisions[0][1]))
        messages = _among(activation.messages, begun.mail)
        if not messages and not begun.mail:
            return AgentRunResult(run_id=run_id)
        if isinstance(control, RunControl):
            control = replace(control, agent=begun.agent)
            if (run := control.run) is not None:
                control = replace(control, continues=partial(self._continues, run))
                if activation.decisions:
                    earlier = _earlier_answers(run, activation.decisions, begun.agent)
                    messages = (*earlier, *messages)
            if begun.mail_thread is not None:
                control = replace(control, conversation=begun.conversation)
                if control.pending is not None:
                    live = LiveMail(control.pending, self._store, begun.mail_thread, whose)
                    control = replace(control, pending=live)
        prepared = replace(
            activation, control=control, messages=messages, agent_id=self.agent_of(activation.thread_id)
        )
        follows = list[str]()  # the earlier trace position of the run, then those of its messages
        if self._tracing.is_on:
            names = [run_trace(run_id), *map(message_trace, begun.mail)]
            places = await self._store.read(lambda tx: tx.traces(names))
            follows = [places[name] for name in names if name in places]
        thread_id = activation.thread_id
        with self._tracing.invoking(whose[1], thread_id=thread_id, run_id=run_id, follows=follows) as span:
            result = await self._executed(prepared, sink, span, begun)
            if result.waiting is None and result.termination.type not in _ENDS_WELL:
                span.failed(result.termination.type.value)
            return result

    def _asked_outside(self, activation: RunActivation) -> AgentRunResult:
        blocks = [
            block for message in activation.messages for block in message.content if block.type == "data"
        ]
        questions = [from_plain(block.data, AskedQuestion) for block in blocks]
        result = AgentRunResult(run_id=activation.run_id or "")
        return self._waiting(result, questions) if questions else result

    async def _executed(
        self, told: RunActivation, sink: EventSink, span: Span, begun: RunInput
    ) -> AgentRunResult:
        run_id = told.run_id or ""
        if begun.agent is not None and begun.agent.has_notes and not told.decisions:
            noted = partial(_notes_message, begun=begun, run_id=run_id, rules=self._rules)
            told = replace(
                told, messages=(*await _write_change(self._store, get_claim(told), noted), *told.messages)
            )
        try:
            result = await self._within.run(told, sink)
        except Exception:
            await self._store_trace(told, span)
            raise
        await self._store_trace(told, span)
        questions = await self._store.read(lambda tx: tx.questions(run_id))
        return self._waiting(result, not_replaced(questions)) if questions else result

    async def _continues(self, run: RunRecord) -> bool:
        def look(tx: MailReads) -> bool:
            now, run_id = tx.run_of(run.run_id), run.run_id
            late = now is not None and any(one.is_answer and one not in run.answered for one in now.answered)
            return late or bool(tx.questions(run_id))

        return await self._store.read(look)

    async def _store_trace(self, activation: RunActivation, span: Span) -> None:
        if (at := span.traceparent) is not None:
            name = run_trace(activation.run_id or "")
            await _write_change(self._store, get_claim(activation), lambda tx: tx.put_trace(name, at))

    def _waiting(self, result: AgentRunResult, asked: Sequence[AskedQuestion]) -> AgentRunResult:
        now = self._clock.now()
        tickets = tuple(ticket_of(question, now) for question in asked)
        waiting = result.waiting or RunWaitingState(
            reason=WaitingReason.USER_INPUT, message=result.response or None
        )
        waiting = replace(waiting, tickets=(*waiting.tickets, *tickets))
        return replace(result, waiting=waiting, termination=TerminationReason.suspended())

    def agent_of(self, thread_id: str) -> str | None:
        """Return the agent that executes the runs of a thread."""
        whose = self._whose(thread_id)
        return self._within.agent_of(thread_id) if whose is None else f"{whose[1]}@{whose[0]}"

    async def resolve(self, activation: RunActivation, *, pinned: str | None) -> ResolvedRunPlan:
        """Return the configuration of the run."""
        return ResolvedRunPlan(resolution_id=pinned or "live")


async def _write_change(store: MailStore, claim: Claim | None, change: Callable[[MailWrites], T]) -> T:
    """Make a change on behalf of an execution.

    Raises:
        StaleClaim: This process no longer executes the run. Nothing was written.
    """

    def claimed(tx: MailWrites) -> T:
        tx.refuse_stale(claim)
        return change(tx)

    return await store.write(claimed)


class LiveMail:
    """Gives an active run new messages of its mail thread before each step.

    Messages that arrive after the last step start another run.
    """

    def __init__(self, within: PendingBoundary, store: MailStore, mail_thread: str, whose: AgentName) -> None:
        """Read pending messages of the mail thread `mail_thread` through `within`."""
        self._within = within
        self._store = store
        self._mail_thread = mail_thread
        self._whose = whose

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[RunMessage, ...]:
        """Return the unread messages that the run would receive before its next step.

        Raises:
            StoreError: The store could not be reached.
        """
        if boundary is not Boundary.NEXT_STEP:
            return ()
        waiting = await self._within.waiting(boundary, group=self._mail_thread)
        return await self._store.read(lambda tx: unread(tx, self._whose, waiting)) if waiting else ()

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[RunMessage, ...]:
        """Commit which messages the run receives before its next step, and return the messages in order.

        Raises:
            StaleClaim: The worker has lost the run.
            StoreError: The store could not be reached.
        """
        if boundary is not Boundary.NEXT_STEP:
            return ()
        return await self._within.freeze(boundary, group=self._mail_thread, only=only)

    async def stage(self, boundary: Boundary, messages: Sequence[RunMessage]) -> None:
        """Add messages that arrived during the run to the run's pending messages.

        Known message ids are ignored.
        """
        await self._within.stage(boundary, messages)


async def _continuation(activation: RunActivation) -> tuple[RunActivation, RunRecord | None]:
    control, messages = activation.control, activation.messages
    before = control.run if isinstance(control, RunControl) else None
    tickets = before.waiting.tickets if before is not None and before.waiting is not None else ()
    reasons = {ticket.tool_call_id: ticket.reason for ticket in tickets}
    budgets = {ticket.tool_call_id for ticket in tickets if ticket.tool_name == BUDGET_TOOL}
    was_kept = bool(budgets) and len(budgets) == len(reasons)
    if was_kept and before is not None and before.input is not None and isinstance(control, RunControl):
        message_ids = {message.id for message in messages}
        ids = [message_id for message_id in before.input.trigger_message_ids if message_id not in message_ids]
        records = await control.threads.load_message_records(activation.thread_id, ids)
        messages = (*(record.message for record in records), *messages)
    decided = (
        RunMessage.user(answer_told(reasons.get(call_id, ""), resume), id=f"{DECISION}{resume.decision_id}")
        for call_id, resume in activation.decisions
        if call_id not in budgets  # the agent did not ask about the budget
    )
    return replace(activation, messages=(*messages, *decided)), before


def _earlier_answers(
    run: RunRecord, decisions: Sequence[tuple[str, ToolCallResume]], agent: AddressedAgent | None
) -> tuple[RunMessage, ...]:
    """Return the answers that earlier executions of a run got, if the agent's runner keeps no session."""
    if agent is None or agent.runner is None:
        return ()
    runner, new = json.loads(agent.runner), {decision.decision_id for _, decision in decisions}
    if runner.get("resume") or runner.get("kind") == RunnerKind.MODEL.value:
        return ()
    return tuple(
        RunMessage.user(
            f"Earlier in this run: {answer_told(one.ticket.reason, one.decision)}",
            id=f"{DECISION}{one.decision.decision_id}",
        )
        for one in run.answered
        if one.is_answer and one.ticket.tool_name == ASK and one.decision.decision_id not in new
    )[-MAX_EARLIER_ANSWERS:]


_LOG = get_logger(__name__)
MAX_EARLIER_ANSWERS: Final = 20
"""Maximum number of earlier answers in the prompt of a run that keeps no session."""
MAX_ANSWERS = 40
"""The number of a thread's newest messages that are checked before an answer is sent.

If all these messages are answers of runs, nobody reads them, and no further answer is sent.
"""

ANSWERED = "question told: "
"""The prefix of the key which records that the questions of a run have been sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompletion:
    """The end of a run that handled messages, or the questions for which the run waits."""

    run_id: str
    slug: str
    name: str
    message_ids: tuple[int, ...]
    text: str
    failed: str | None
    """Why the run failed, or None if it succeeded."""
    asked: tuple[RunWaitingTicket, ...] | None = None
    """The unanswered questions of a waiting run, or None if the run has ended.

    The messages of a waiting run stay assigned. If all questions have answers, the run continues at once.
    """
    by_reply: bool = True
    """Whether people can answer the questions by a reply.

    A question about the budget of the run needs a decision.
    """
    dispatch_id: str = ""
    """The execution that asks. Another execution may ask the same question again."""

    def told(self, context: WriteContext) -> None:
        """Mark the run's messages as handled, and answer the senders of the messages.

        A repeated call does nothing.
        """
        tx = context.tx
        addressed = tx.agent_addressed(self.slug, self.name)
        if addressed is None:
            return
        project, agent = addressed.project, addressed.agent
        received = tx.received(agent.id, self.message_ids)
        tx.lock_projects({project.id, *(delivery.project_id for delivery in received.values())})
        received = tx.received(agent.id, self.message_ids)  # read again under the lock
        context = replace(context, now=tx.now())  # entries of the project's log must be in the order of time
        concerned = (
            self._messages_of_questions(context, received)
            if self.asked is not None
            else self._mark_handled(context, agent, received)
        )
        if not concerned:
            return
        messages = tx.messages(concerned)
        askers = dict[int, Agent]()
        for number in reversed(concerned):
            is_answer = received[number].answer_of is not None
            if (asker := _asker(context, agent, messages[number], is_answer=is_answer)) is not None:
                askers[asker.id] = asker
        if askers and (self.asked != () or self.text.strip()):
            self._answer(context, project, agent, messages[concerned[-1]], list(askers.values()))
        for message in messages.values():
            if self.asked is None and message.thread_id.startswith(TASK_THREAD):
                why = f"the run failed: {self.failed}" if self.failed else "the run ended without done_task"
                block_unfinished(context, project, agent, message.id, why[:MAX_REASON_LENGTH])

    def _messages_of_questions(self, context: WriteContext, received: dict[int, Received]) -> list[int]:
        key = (
            self.run_id,
            ANSWERED
            + "\n".join(filter(None, (self.dispatch_id, *(ticket.reason for ticket in self.asked or ())))),
        )
        if context.tx.answer(*key) is not None:
            return []
        context.tx.insert_answer(*key, "", b"null", context.now)
        deliveries = (received[message_id] for message_id in self.message_ids if message_id in received)
        return [delivery.message_id for delivery in deliveries if delivery.run_id in (None, self.run_id)]

    def _mark_handled(self, context: WriteContext, agent: Agent, received: dict[int, Received]) -> list[int]:
        numbers = list[int]()
        for delivery in filter(None, map(received.get, self.message_ids)):
            if delivery.run_id == self.run_id and delivery.delivered_at is not None:
                if delivery.ended_at is not None:
                    continue
                delivered_at = delivery.delivered_at
            elif self.failed is None or delivery.read_at is not None:
                continue  # the message was read before this run received it, so nothing more is needed
            else:
                delivered_at = context.now
            numbers.append(delivery.message_id)
            context.tx.put_message_run(
                MessageRun(
                    message_id=delivery.message_id,
                    agent_id=agent.id,
                    run_id=self.run_id,
                    delivered_at=delivered_at,
                    ended_at=context.now,
                    failure=self.failed or "",
                )
            )
            if self.failed is None:
                context.tx.mark_read(delivery.message_id, agent.id, context.now)
        return numbers

    def _answer(
        self, context: WriteContext, project: Project, agent: Agent, asked: Message, askers: Sequence[Agent]
    ) -> None:
        tx = context.tx
        homes = {project.id: project}
        for asker in askers:
            if asker.project_id not in homes and (home := tx.project_by_id(asker.project_id)) is not None:
                homes[home.id] = home
        readers = [
            Addressee(project=homes[asker.project_id], agent=asker, kind="to")
            for asker in askers
            if asker.project_id in homes
        ]
        reach = tx.reach(agent.id, [addressee.agent.id for addressee in readers])
        refused = refusals(context, project, agent, readers, reach=reach, answered=asked.sender_id)
        for why in refused.values():
            _LOG.warning("answer.refused", run_id=self.run_id, code=why.code, reason=why.describe())
        addressees = [addressee for addressee in readers if addressee.agent.id not in refused][
            : context.rules.max_recipients
        ]
        if not addressees:
            return
        if self.asked is not None:
            body = asks(agent.name, self.text, self.asked, by_reply=self.by_reply)
        elif self.failed is not None:
            body = failure(agent.name, self.failed)
        else:
            body = self.text.strip() or NO_WORDS
        name = run_trace(self.run_id)
        trace = tx.traces([name]).get(name) if context.is_traced else None
        new = NewMessage(
            project=project,
            sender=agent,
            addressees=addressees,
            subject=reply_subject(asked.subject, context.rules.max_subject_chars),
            body_md=keep_end(without_escapes(body), context.rules.max_body_bytes),
            importance="normal" if self.failed is None else "high",
            thread_id=asked.thread_id,
            topic=asked.topic,
            reply_to=asked,
            trace=trace,
            answering_run=self.run_id,
        )
        wake_readers(context, new, *store_message(context, new, reach))


def _asker(context: WriteContext, agent: Agent, asked: Message, *, is_answer: bool) -> Agent | None:
    """Return the agent that must get the answer to a message, or None if no agent must."""
    tx, sender_id = context.tx, asked.sender_id
    if is_answer:
        first = tx.thread(asked.project_id, asked.thread_id, limit=1)
        sender_id = first[0].sender_id if first else agent.id
        if sender_id == asked.sender_id:
            return None
        newest = tx.thread_tail(asked.project_id, asked.thread_id, limit=MAX_ANSWERS)
        if len(newest) == MAX_ANSWERS and all(tx.answering_run(message.id) is not None for message in newest):
            return None
    return None if sender_id == agent.id else tx.agents_by_id([sender_id]).get(sender_id)


class MessageEffects(RunEffects):
    """Assigns messages to runs of agents, and answers the senders when the runs end."""

    def __init__(self, context_of: Callable[[Transaction, Accept | None], WriteContext]) -> None:
        self._context_of = context_of

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[RunMessage]) -> RunInput | None:
        """Record that the run of an agent is active, and assign messages to the run."""
        whose = agent_of(run.thread_id)
        is_question = ASKING in run.thread_id
        return None if whose is None else begin(tx.mail, whose, run.run_id, messages, is_question=is_question)

    def receive(
        self, tx: Transaction, thread_id: str, run_id: str, messages: tuple[RunMessage, ...], *, told: bool
    ) -> tuple[RunMessage, ...]:
        """Assign new messages to an active run, and return the messages to read.

        Messages that were read or recalled in the meantime are omitted.
        """
        whose, ids = agent_of(thread_id), messages_named([message.id or "" for message in messages])
        if whose is None or not ids:
            return messages
        _, assigned = _assign(tx.mail, whose, run_id, ids, told=told)
        return _among(messages, [message.message_id for message in assigned])

    def why_not_wait(self, tx: Transaction, run: RunRecord) -> str | None:
        """Return the reason why the run must not wait for an answer: the run's agent was retired."""
        whose = agent_of(run.thread_id)
        addressed = None if whose is None else tx.mail.agent_addressed(*whose)
        if whose is None or addressed is None or not run.open_tickets:
            return None
        tx.mail.lock_projects([addressed.project.id])
        addressed = tx.mail.agent_addressed(*whose)  # read the agent's state again, under the lock
        is_retired = addressed is not None and addressed.agent.retired_at is not None
        return retired(whose[1]) if is_retired else None

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Send the answers of an ended run, or the questions of a waiting run, to the senders of mail."""
        ended, is_question = _completion(run), ASKING in run.thread_id
        if ended is not None:
            ended.told(self._context_of(tx, accept))  # do this first, because it locks all affected projects
        elif run.status is RunStatus.DONE and is_question:
            _tell_asker(self._context_of(tx, accept), tx, run)
        place = in_run(run.run_id)
        if run.status is RunStatus.DONE and (reserved := tx.mail.reserved_in(place, now=tx.now())):
            tx.mail.lock_projects({entry.project_id for entry in reserved})
            context = replace(self._context_of(tx, None), now=tx.now())
            release_reserved_in(context, place, reason="run ended")
        if run.status is not RunStatus.DONE:
            tickets = run.waiting.tickets if run.waiting else ()
            # The call of `ask_person` has logged each question of an agent.
            asked_at = {one.tool_call_id: one.updated_at for one in tickets if one.tool_name != ASK}
            ended_turn = tx.mail.end_run(
                run.run_id, "waiting", now=tx.now(), asked_at=asked_at, is_question=is_question
            )
            if ended_turn is not None and ended_turn[2]:
                agent_id, _, asked = ended_turn
                close_unseen(tx.mail, run.run_id, agent_id, asked, f"the run waited already {BEFORE_SEEN}")
            again = [one for one in run.answered if one.asked_again_as is not None]
            if ended_turn is not None and again:
                numbers = [one.ticket.tool_call_id for one in again]
                tx.mail.note_withdrawn(run.run_id, ended_turn[0], numbers, now=tx.now())
            return
        reason, end = _reason(run), run.termination
        is_cancelled = end is not None and end.type is TerminationKind.CANCELLED
        outcome: Outcome = "done" if reason is None else "cancelled" if is_cancelled else "failed"
        inactive = None
        if reason is not None and (agent := _executing(tx, run)) is not None:
            tx.mail.lock_projects([agent.project_id])
            inactive = agent.id
        ended_turn = tx.mail.end_run(
            run.run_id,
            outcome,
            now=tx.now(),
            error=reason or "",
            usage=run.usage,
            inactive=inactive,
            is_question=is_question,
        )
        if ended_turn is None:
            return
        agent_id, holds_tasks, asked = ended_turn
        if asked:
            how = "ended" if end is None else end.how
            close_unseen(tx.mail, run.run_id, agent_id, asked, f"the run {how} {BEFORE_SEEN}")
        for one in run.answered:
            if one.is_left:
                tx.mail.note_withdrawn(run.run_id, agent_id, [one.ticket.tool_call_id], now=tx.now())
        if holds_tasks:
            context = replace(self._context_of(tx, None), now=tx.now())
            for task in tx.mail.tasks_claimed_in(run.run_id):
                give_back(context, task, by=task.holder_id, reason="the run of its holder ended")

    def put_back(self, tx: Transaction, row: RunDispatch, *, is_stop: bool) -> None:
        """Record that a run is inactive until the next attempt."""
        outcome: Outcome = "cut_off" if is_stop else "failed"
        error = STOPPED if is_stop else row.last_error or ""
        is_question = ASKING in row.thread_id
        ended_turn = tx.mail.end_run(row.run_id, outcome, now=tx.now(), error=error, is_question=is_question)
        if ended_turn is not None and ended_turn[2]:
            agent_id, _, asked = ended_turn
            why = "its server was stopped" if is_stop else "the attempt failed"
            close_unseen(tx.mail, row.run_id, agent_id, asked, f"{why} {BEFORE_SEEN}")

    def withdraw(self, tx: Transaction, run: RunRecord, *, has_begun: bool) -> None:
        """Record which questions were closed before the end of the run, unless its execution recorded it."""
        agent = _executing(tx, run)
        if agent is not None:
            tx.mail.lock_projects([agent.project_id])
            tickets = run.waiting.tickets if run.waiting is not None and not has_begun else ()
            closed = [one.ticket for one in run.answered if not one.is_answer and one.ticket in tickets]
            questions = [ticket.tool_call_id for ticket in closed]
            tx.mail.withdraw_questions(run.run_id, agent.id, questions, now=tx.now())


def _executing(tx: Transaction, run: RunRecord) -> Agent | None:
    """Return the agent that executes a run; None if it is unknown, or if the run belongs to no agent.

    The run of a chat names no agent, but each of its attempts does.
    """
    if (whose := agent_of(run.thread_id)) is not None:
        addressed = tx.mail.agent_addressed(*whose)
        return None if addressed is None else addressed.agent
    ids = [attempt.agent_id for attempt in tx.mail.attempts_of_runs([run.run_id])][-1:]
    return tx.mail.agents_by_id(ids).get(ids[0]) if ids else None


def _tell_asker(context: WriteContext, tx: Transaction, run: RunRecord) -> None:
    whose, answer = agent_of(run.thread_id), run.answered[-1] if run.answered else None
    addressed = None if whose is None else context.tx.agent_addressed(*whose)
    where = "" if answer is None else answer.decision.decision_id.partition("/")[0]
    if addressed is None or where in (IN_WINDOW, ASKED_AGAIN):
        return
    project, agent = addressed.project, addressed.agent
    if agent.retired_at is not None and not run.final_output:
        return  # the agent receives no messages
    context.tx.lock_projects([project.id])
    context = replace(context, now=context.tx.now())
    texts = [] if answer is None else [answer.ticket.reason]
    if not texts and run.input is not None:  # the run has ended before it asked
        asking = tx.runs.messages.named(run.thread_id, run.input.trigger_message_ids)
        texts = [record.message.text() for record in asking]
    question = one_line(texts[0]) if texts else "your question"
    why = answer.decision.reason if answer is not None and not answer.is_answer else _reason(run)
    text = run.final_output or f"There is no answer: {why or 'the question was withdrawn'}."
    new = NewMessage(
        project=project,
        sender=agent,
        addressees=[Addressee(project=project, agent=agent, kind="to")],
        subject=f"Answer: {question}"[: context.rules.max_subject_chars],
        body_md=f"You asked: {question}\n{text}",
        answering_run=run.run_id,
    )
    wake_readers(context, new, *store_message(context, new, context.tx.reach(agent.id, [agent.id])))


def _completion(run: RunRecord) -> RunCompletion | None:
    whose = agent_of(run.thread_id)
    messages = messages_named(run.input.trigger_message_ids if run.input else ())
    tickets = run.waiting.tickets if run.waiting else ()
    if whose is None or not messages or not (run.status is RunStatus.DONE or tickets):
        return None
    return RunCompletion(
        run_id=run.run_id,
        slug=whose[0],
        name=whose[1],
        message_ids=tuple(messages),
        text=(run.waiting.message if run.waiting else run.final_output) or "",
        failed=_reason(run),
        asked=None if run.status is RunStatus.DONE else run.open_tickets,
        by_reply=takes_reply(run),
        dispatch_id=run.dispatch_id or "",
    )


def _reason(run: RunRecord) -> str | None:
    end = run.termination
    if end is None or end.type in (TerminationKind.NATURAL_END, TerminationKind.BEHAVIOR_REQUESTED):
        return None
    return run.error or STOPS.get(end.value or "") or end.value or end.type.value
