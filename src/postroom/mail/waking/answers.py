"""What the end of an agent's run causes: the messages that began it are read, whoever asked has an answer.

Both are written in the change that ends the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from postroom.contracts.accepting import Accept
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.messages import Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.runs import RunRecord, RunStatus, TerminationKind
from postroom.mail.reservations import in_run, release_reserved_in
from postroom.mail.waking.completion import ContextOf, RunCompletion
from postroom.mail.waking.open_questions import takes_reply
from postroom.mail.waking.prompts import STOPS, agent_of, messages_named
from postroom.mail.waking.run_input import MailClaims
from postroom.stores.transaction import Transaction


class MessageEffects:
    """Answers those whose messages began an agent's run, in the change that ends it."""

    def __init__(self, context_of: ContextOf, wake_readers: Callable[[], None]) -> None:
        """`wake_readers` is called after messages were written that may have woken nobody."""
        self._context_of = context_of
        self._wake_readers = wake_readers

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[Message]) -> bool:
        """Note that the run of an agent is at work and has its messages in its hands."""
        whose = agent_of(run.thread_id)
        if whose is not None:
            MailClaims(whose, run.run_id).begun(tx.mail, messages)
        return whose is not None

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Mark the messages of a run that is done as handled and answer, or ask what it asks.

        Whoever runs the agent, also in a chat: it is not at work any more.
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
        tx.mail.end_run(
            run.run_id,
            now=tx.now(),
            failed=failed,
            cancelled=cancelled,
            error=(_reason(run) or "") if failed else "",
            waits_for=waits,
        )

    def _release(self, tx: Transaction, run: RunRecord) -> None:
        """Let go of what the run has reserved, and of nothing that others have reserved for its agent."""
        held = tx.mail.reserved_in(in_run(run.run_id), now=tx.now())
        if held:
            tx.mail.lock_projects({one.project_id for one in held})
            context = self._context_of(tx, None)
            release_reserved_in(replace(context, now=tx.now()), in_run(run.run_id), reason="run ended")

    def put_back(self, tx: Transaction, row: RunDispatch) -> None:
        """Note that a run is not at work until it is tried again."""
        tx.mail.end_run(row.run_id, now=tx.now(), failed=True, error=row.last_error or "")

    def withdraw(self, tx: Transaction, run: RunRecord) -> None:
        """Tell in the log that the questions of an agent's run are withdrawn, and that it has failed."""
        whose = agent_of(run.thread_id)
        project = None if whose is None else tx.mail.project(whose[0])
        if whose is None or project is None:
            return
        tx.mail.lock_projects([project.id])
        agent = tx.mail.agent(project.id, whose[1])
        if agent is not None:
            questions = [one.tool_call_id for one in run.open_tickets]
            tx.mail.withdraw_questions(run.run_id, agent.id, questions, now=tx.now())

    def of(self, tx: Transaction, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return no effects: the answer is in the database."""
        return ()

    def stored(self, run: RunRecord) -> None:
        """Hint that there may be an answer."""
        if agent_of(run.thread_id) is not None:
            self._wake_readers()


def _completion(run: RunRecord) -> RunCompletion | None:
    """Return what is to be told of a run that is done, or asks a person; None where nobody is to hear."""
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
    """Return why a run was not done; None when it was."""
    end = run.termination
    if end is None or end.type in (TerminationKind.NATURAL_END, TerminationKind.BEHAVIOR_REQUESTED):
        return None
    return run.error or STOPS.get(end.value or "") or end.value or end.type.value
