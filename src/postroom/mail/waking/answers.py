"""What the end of an agent's run causes: the messages that began it are read, whoever asked has an answer.

Both are written in the change that ends the run.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta

from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import PostroomError, StoreError
from postroom.contracts.messages import Message
from postroom.contracts.outbox import OutboxDraft, OutboxMessage, OutboxStore
from postroom.contracts.runs import RunRecord, RunStatus, TerminationKind
from postroom.contracts.store import MailStore
from postroom.contracts.transactions import Transaction
from postroom.mail.waking.completion import DeskOf, RunCompletion
from postroom.mail.waking.mail_runs import waits_for_budget
from postroom.mail.waking.prompts import STOPS, agent_of, messages_named
from postroom.mail.waking.run_input import MailClaims

LANE = "mail"
"""The lane, and the target, under which earlier versions stored the ends of runs."""
_BATCH = 32
_LEASE = timedelta(seconds=30)


class MessageEffects:
    """Answers those whose messages began an agent's run, in the change that ends it."""

    def __init__(self, desk_of: DeskOf, on_change: Callable[[], None]) -> None:
        """`on_change` is called after messages were written, as a hint to whoever performs their effects."""
        self._desk_of = desk_of
        self._on_change = on_change

    def begin(self, tx: Transaction, run: RunRecord, messages: Sequence[Message]) -> bool:
        """Note that the run of an agent is at work and has its messages in its hands."""
        whose = agent_of(run.thread_id)
        if whose is not None:
            MailClaims(tx, whose, run.run_id).begun(tx.mail, messages)
        return whose is not None

    def write(self, tx: Transaction, run: RunRecord) -> None:
        """Mark the messages of a run that is done as handled and answer, or ask what it asks."""
        ended = _completion(run)
        if ended is not None:
            ended.told(self._desk_of(tx.mail))

    def of(self, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return no effects: the answer is in the database."""
        return ()

    def stored(self, run: RunRecord) -> None:
        """Hint that there may be an answer."""
        if agent_of(run.thread_id) is not None:
            self._on_change()


async def perform_left_over(outbox: OutboxStore, store: MailStore, desk_of: DeskOf) -> int:
    """Write the answers that an earlier version left in the outbox; return how many rows there were.

    Raises:
        StoreError: what is not written yet is written at the next start.
    """
    performed = 0
    while rows := await outbox.claim(LANE, LANE, lease_ms=milliseconds(_LEASE), limit=_BATCH):
        for row in rows:
            await _performed(row, outbox, store, desk_of)
        performed += len(rows)
    return performed


async def _performed(row: OutboxMessage, outbox: OutboxStore, store: MailStore, desk_of: DeskOf) -> None:
    token = row.claim_token or ""
    try:
        ended = RunCompletion.of(row)
        await store.write(lambda tx: ended.told(desk_of(tx)))
    except (KeyError, TypeError, ValueError) as error:
        why = f"it cannot be read: {type(error).__name__}"
        await outbox.nack(row.outbox_id, token, error=why, final=True)
    except StoreError:
        raise
    except PostroomError as error:
        await outbox.nack(row.outbox_id, token, error=error.describe(), final=True)
    else:
        await outbox.ack(row.outbox_id, token)


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
        by_reply=not waits_for_budget(run),
        dispatch_id=run.dispatch_id or "",
    )


def _reason(run: RunRecord) -> str | None:
    """Return why a run was not done; None when it was."""
    end = run.termination
    if end is None or end.type in (TerminationKind.NATURAL_END, TerminationKind.BEHAVIOR_REQUESTED):
        return None
    return run.error or STOPS.get(end.value or "") or end.value or end.type.value
