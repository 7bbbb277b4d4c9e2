"""The end of an agent's run as the mail room hears of it, and what it does then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from postroom.contracts.accepting import Accept
from postroom.contracts.mail import Agent, Message, Project
from postroom.contracts.quoting import without_escapes
from postroom.contracts.waking import MessageRun
from postroom.log import get_logger
from postroom.mail.contacts import Addressee, refusals
from postroom.mail.context import WriteContext
from postroom.mail.sending import NewMessage, post, reply_subject
from postroom.mail.tracing import run_trace
from postroom.mail.waking.prompts import NO_WORDS, asks, clipped, failure
from postroom.stores.transaction import Transaction

_LOG = get_logger(__name__)
MOST_ANSWERS = 40
"""So many answers of runs, one after another on a thread, are a conversation that nobody reads."""

ANSWERED = "question told: "
"""Before the key under which it is kept that a run's questions were told."""

ContextOf = Callable[[Transaction, Accept | None], WriteContext]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompletion:
    """A run that began with messages and is done, or asks a person before it goes on."""

    run_id: str
    slug: str
    name: str
    message_ids: tuple[int, ...]
    text: str
    failed: str | None
    """Why it was not done, when it was not."""
    asked: tuple[str, ...] = ()
    """What it asks a person; then it has not ended, and its messages stay in its hands."""
    by_reply: bool = True
    """Whether a message in answer tells the agent something; whether it may run is not its own question."""
    dispatch_id: str = ""
    """Which of its executions asks; the same may be asked again in another."""

    def told(self, context: WriteContext) -> None:
        """Mark its messages as handled and answer whoever asked; nothing when that is done already."""
        project = context.projects.project(self.slug)
        agent = None if project is None else context.tx.agent(project.id, self.name)
        if project is None or agent is None:
            return
        messages = context.tx.messages(self.message_ids)
        context.tx.lock_projects({project.id, *(one.project_id for one in messages.values())})
        context = replace(context, now=context.tx.now())  # its log is in order of time
        handled = self._in_hand(context, agent) if self.asked else self._handled(context, agent)
        if not handled:
            return
        found = (_asker(context, agent, one) for one in reversed(handled))
        askers = {one.id: one for one in found if one is not None}
        if askers:
            self._answer(context, project, agent, handled[-1], list(askers.values()))

    def _in_hand(self, context: WriteContext, agent: Agent) -> list[Message]:
        """Return the messages that the run has, or is to have, in its hands; none when it was told before."""
        key = self.run_id, ANSWERED + "\n".join(filter(None, (self.dispatch_id, *self.asked)))
        if context.tx.answer(*key) is not None:
            return []
        context.tx.insert_answer(*key, "", b"null", context.now)
        messages, before = context.tx.messages(self.message_ids), context.tx.message_runs(self.message_ids)
        found = [(one, before[one].get(agent.id)) for one in self.message_ids if one in messages]
        return [messages[one] for one, known in found if known is None or known.run_id == self.run_id]

    def _handled(self, context: WriteContext, agent: Agent) -> list[Message]:
        """Return the messages that this end is told of now, marked."""
        tx, found = context.tx, list[Message]()
        messages, before = tx.messages(self.message_ids), tx.message_runs(self.message_ids)
        readers = tx.recipients(self.message_ids)
        for message_id in self.message_ids:
            mine = next((one for one in readers[message_id] if one.agent_id == agent.id), None)
            known = before[message_id].get(agent.id)
            if mine is None or message_id not in messages:
                continue
            if known is None or known.run_id != self.run_id:
                if self.failed is None or mine.read_at is not None:
                    continue  # it was read before this run came to it, and needs nothing more
                known = MessageRun(
                    message_id=message_id, agent_id=agent.id, run_id=self.run_id, delivered_at=context.now
                )
            if known.ended_at is None:
                found.append(messages[message_id])
                self._mark(context, known)
        return found

    def _mark(self, context: WriteContext, known: MessageRun) -> None:
        context.tx.put_message_run(
            MessageRun(
                message_id=known.message_id,
                agent_id=known.agent_id,
                run_id=self.run_id,
                delivered_at=known.delivered_at,
                ended_at=context.now,
                failure=self.failed or "",
            )
        )
        if self.failed is None:
            context.tx.mark_read(known.message_id, known.agent_id, context.now)

    def _answer(
        self, context: WriteContext, project: Project, agent: Agent, asked: Message, askers: Sequence[Agent]
    ) -> None:
        homes = ((one, context.tx.project_by_id(one.project_id)) for one in askers)
        found = [Addressee(project=home, agent=one, kind="to") for one, home in homes if home is not None]
        refused = refusals(context, project, agent, found, reply_to=asked)
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
        message = NewMessage(
            project=project,
            sender=agent,
            addressees=addressees,
            subject=reply_subject(asked.subject, context.rules.max_subject_chars),
            body_md=clipped(without_escapes(body), context.rules.max_body_bytes),
            importance="normal" if self.failed is None else "high",
            thread_id=asked.thread_id,
            topic=asked.topic,
            reply_to=asked,
            trace=context.tx.traces([run_trace(self.run_id)]).get(run_trace(self.run_id)),
            answering_run=self.run_id,
        )
        post(context, message, bad=[], skipped=[])


def _asker(context: WriteContext, agent: Agent, asked: Message) -> Agent | None:
    """Return who is to have the answer, if anybody is.

    That is who wrote the message. What a run reads that is itself the answer of a run belongs to whoever
    began the thread: two agents would else thank each other for ever.
    """
    tx, sender_id = context.tx, asked.sender_id
    if tx.answering_run(asked.id) is not None:
        first = tx.thread(asked.project_id, asked.thread_id, limit=1)
        sender_id = first[0].sender_id if first else agent.id
        if sender_id == asked.sender_id or _nobody_reads(context, asked):
            return None
    return None if sender_id == agent.id else tx.agents_by_id([sender_id]).get(sender_id)


def _nobody_reads(context: WriteContext, asked: Message) -> bool:
    """Say whether the newest messages of a thread are all answers of runs."""
    newest = context.tx.thread_tail(asked.project_id, asked.thread_id, limit=MOST_ANSWERS)
    return len(newest) == MOST_ANSWERS and all(context.tx.answering_run(one.id) is not None for one in newest)
