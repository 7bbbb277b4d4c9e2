"""The mail of an agent's run: the messages that it gets at its start, and the answer to their senders.

Both are written in the change that starts or ends the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from postroom.contracts.accepting import Accept
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.mail import Agent, Message, Project, Received
from postroom.contracts.messages import Message as RunMessage
from postroom.contracts.quoting import without_escapes
from postroom.contracts.runs import RunRecord, RunStatus, TerminationKind
from postroom.contracts.tasks import TASK_THREAD
from postroom.contracts.waking import MessageRun
from postroom.log import get_logger
from postroom.mail.contacts import Addressee, refusals
from postroom.mail.context import WriteContext
from postroom.mail.reservations import in_run, release_reserved_in
from postroom.mail.sending import NewMessage, reply_subject, store_message, wake_readers
from postroom.mail.tasks import MOST_REASON, block_unfinished, give_back
from postroom.mail.tracing import run_trace
from postroom.mail.waking.open_questions import takes_reply
from postroom.mail.waking.prompts import NO_WORDS, STOPS, agent_of, asks, clipped, failure, messages_named
from postroom.mail.waking.run_input import RunInput, begin
from postroom.ports import RunEffects
from postroom.stores.transaction import Transaction

_LOG = get_logger(__name__)
MOST_ANSWERS = 40
"""If the newest 40 messages of a thread are answers of runs, nobody reads them: no further answer is sent."""

ANSWERED = "question told: "
"""The prefix of the key under which a run's questions are recorded as sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompletion:
    """The end of a run that had messages, or the questions that it asks before it continues."""

    run_id: str
    slug: str
    name: str
    message_ids: tuple[int, ...]
    text: str
    failed: str | None
    """Why the run failed; None if it succeeded."""
    asked: tuple[str, ...] = ()
    """The questions of a run that waits. It has not ended, and keeps its messages."""
    by_reply: bool = True
    """Whether a reply answers the questions. A question about the run's budget takes a decision only."""
    dispatch_id: str = ""
    """The execution that asks, because another execution may ask the same question again."""

    def told(self, context: WriteContext) -> None:
        """Mark the messages as handled and answer their senders; do nothing if that was done before."""
        tx = context.tx
        addressed = tx.agent_addressed(self.slug, self.name)
        if addressed is None:
            return
        project, agent = addressed.project, addressed.agent
        received = tx.received(agent.id, self.message_ids)
        tx.lock_projects({project.id, *(one.project_id for one in received.values())})
        received = tx.received(agent.id, self.message_ids)  # in their state under the lock
        context = replace(context, now=tx.now())  # the log of the project is in order of time
        concerned = self._asked(context, received) if self.asked else self._handled(context, agent, received)
        if not concerned:
            return
        messages = tx.messages(concerned)
        found = (
            _asker(context, agent, messages[one], is_answer=received[one].answer_of is not None)
            for one in reversed(concerned)
        )
        askers = {one.id: one for one in found if one is not None}
        if askers:
            self._answer(context, project, agent, messages[concerned[-1]], list(askers.values()))
        for message in messages.values():
            if not self.asked and message.thread_id.startswith(TASK_THREAD):
                why = f"the run failed: {self.failed}" if self.failed else "the run ended without done_task"
                block_unfinished(context, project, agent, message.id, why[:MOST_REASON])

    def _asked(self, context: WriteContext, received: dict[int, Received]) -> list[int]:
        """Return the messages that the run has, or none if these questions were sent before."""
        key = self.run_id, ANSWERED + "\n".join(filter(None, (self.dispatch_id, *self.asked)))
        if context.tx.answer(*key) is not None:
            return []
        context.tx.insert_answer(*key, "", b"null", context.now)
        found = (received[one] for one in self.message_ids if one in received)
        return [one.message_id for one in found if one.run_id in (None, self.run_id)]

    def _handled(self, context: WriteContext, agent: Agent, received: dict[int, Received]) -> list[int]:
        """Mark the messages that this end handles, and return them."""
        found = list[int]()
        for one in (received[number] for number in self.message_ids if number in received):
            if one.run_id == self.run_id and one.delivered_at is not None:
                if one.ended_at is not None:
                    continue
                delivered_at = one.delivered_at
            elif self.failed is None or one.read_at is not None:
                continue  # it was read before this run came to it, and needs nothing more
            else:
                delivered_at = context.now
            found.append(one.message_id)
            context.tx.put_message_run(
                MessageRun(
                    message_id=one.message_id,
                    agent_id=agent.id,
                    run_id=self.run_id,
                    delivered_at=delivered_at,
                    ended_at=context.now,
                    failure=self.failed or "",
                )
            )
            if self.failed is None:
                context.tx.mark_read(one.message_id, agent.id, context.now)
        return found

    def _answer(
        self, context: WriteContext, project: Project, agent: Agent, asked: Message, askers: Sequence[Agent]
    ) -> None:
        tx = context.tx
        homes = {project.id: project}
        for one in askers:
            if one.project_id not in homes and (home := tx.project_by_id(one.project_id)) is not None:
                homes[home.id] = home
        found = [
            Addressee(project=homes[one.project_id], agent=one, kind="to")
            for one in askers
            if one.project_id in homes
        ]
        reach = tx.reach(agent.id, [one.agent.id for one in found])
        refused = refusals(context, project, agent, found, reach=reach, answered=asked.sender_id)
        for why in refused.values():
            _LOG.warning("answer.refused", run_id=self.run_id, code=why.code, reason=why.describe())
        addressees = [one for one in found if one.agent.id not in refused][: context.rules.max_recipients]
        if not addressees:
            return
        if self.asked:
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
            body_md=clipped(without_escapes(body), context.rules.max_body_bytes),
            importance="normal" if self.failed is None else "high",
            thread_id=asked.thread_id,
            topic=asked.topic,
            reply_to=asked,
            trace=trace,
            answering_run=self.run_id,
        )
        wake_readers(context, new, *store_message(context, new, reach))


def _asker(context: WriteContext, agent: Agent, asked: Message, *, is_answer: bool) -> Agent | None:
    """Return the agent that gets the answer to a message, if there is one.

    That is the sender of the message. If the message is itself the answer of a run, it is the agent that
    started the thread: two agents would otherwise thank each other forever.
    """
    tx, sender_id = context.tx, asked.sender_id
    if is_answer:
        first = tx.thread(asked.project_id, asked.thread_id, limit=1)
        sender_id = first[0].sender_id if first else agent.id
        if sender_id == asked.sender_id or _nobody_reads(context, asked):
            return None
    return None if sender_id == agent.id else tx.agents_by_id([sender_id]).get(sender_id)


def _nobody_reads(context: WriteContext, asked: Message) -> bool:
    """Return whether the newest messages of a thread are all answers of runs."""
    newest = context.tx.thread_tail(asked.project_id, asked.thread_id, limit=MOST_ANSWERS)
    return len(newest) == MOST_ANSWERS and all(context.tx.answering_run(one.id) is not None for one in newest)


class MessageEffects(RunEffects):
    """Assigns messages to an agent's run that starts, and answers their senders when it ends."""

    def __init__(self, context_of: Callable[[Transaction, Accept | None], WriteContext]) -> None:
        self._context_of = context_of

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[RunMessage]) -> RunInput | None:
        """Record that an agent's run is active, and assign its messages to it."""
        whose = agent_of(run.thread_id)
        return None if whose is None else begin(tx.mail, whose, run.run_id, messages)

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Mark the messages of a run that ended as handled and answer them, or send its questions.

        This includes the runs of agents that answer in chats: they are no longer active either.
        """
        ended = _completion(run)
        if ended is not None:
            ended.told(self._context_of(tx, accept))  # first: it locks all projects that are concerned
        if run.status is RunStatus.DONE:
            self._release(tx, run)
        failed = run.status is RunStatus.DONE and _reason(run) is not None
        tickets = run.waiting.tickets if run.waiting else ()
        asked = {one.tool_call_id: one.updated_at for one in tickets}
        waits = None if run.status is RunStatus.DONE else asked
        end = run.termination
        cancelled = failed and end is not None and end.type is TerminationKind.CANCELLED
        holds_tasks = tx.mail.end_run(
            run.run_id,
            now=tx.now(),
            failed=failed,
            cancelled=cancelled,
            error=(_reason(run) or "") if failed else "",
            waits_for=waits,
        )
        if holds_tasks and run.status is RunStatus.DONE:
            context = replace(self._context_of(tx, None), now=tx.now())
            for task in tx.mail.tasks_claimed_in(run.run_id):
                give_back(context, task, by=task.holder_id, reason="the run of its holder ended")

    def _release(self, tx: Transaction, run: RunRecord) -> None:
        """Release the reservations that the run made, and none that others made for its agent."""
        held = tx.mail.reserved_in(in_run(run.run_id), now=tx.now())
        if held:
            tx.mail.lock_projects({one.project_id for one in held})
            context = self._context_of(tx, None)
            release_reserved_in(replace(context, now=tx.now()), in_run(run.run_id), reason="run ended")

    def put_back(self, tx: Transaction, row: RunDispatch) -> None:
        """Record that a run is not active until it is retried."""
        tx.mail.end_run(row.run_id, now=tx.now(), failed=True, error=row.last_error or "")

    def withdraw(self, tx: Transaction, run: RunRecord) -> None:
        """Record that the questions of an agent's run are withdrawn, and that the run has failed."""
        whose = agent_of(run.thread_id)
        addressed = None if whose is None else tx.mail.agent_addressed(*whose)
        if addressed is not None:
            tx.mail.lock_projects([addressed.project.id])
            questions = [one.tool_call_id for one in run.open_tickets]
            tx.mail.withdraw_questions(run.run_id, addressed.agent.id, questions, now=tx.now())


def _completion(run: RunRecord) -> RunCompletion | None:
    """Return the end or the questions of a run to report to senders; None if there is nobody to notify."""
    whose = agent_of(run.thread_id)
    messages = messages_named(run.input.trigger_message_ids if run.input else ())
    asked = [one.reason for one in run.waiting.tickets] if run.waiting else []
    if whose is None or not messages or not (run.status is RunStatus.DONE or asked):
        return None
    return RunCompletion(
        run_id=run.run_id,
        slug=whose[0],
        name=whose[1],
        message_ids=tuple(messages),
        text=(run.waiting.message if run.waiting else run.final_output) or "",
        failed=_reason(run),
        asked=tuple(asked),
        by_reply=takes_reply(run),
        dispatch_id=run.dispatch_id or "",
    )


def _reason(run: RunRecord) -> str | None:
    """Return why a run failed; None if it succeeded."""
    end = run.termination
    if end is None or end.type in (TerminationKind.NATURAL_END, TerminationKind.BEHAVIOR_REQUESTED):
        return None
    return run.error or STOPS.get(end.value or "") or end.value or end.type.value
