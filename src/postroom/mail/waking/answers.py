"""What the end of an agent's run causes: the messages that began it are read, whoever asked has an answer.

The effect is stored in the commit that ends the run. Performing it is one transaction of the mail room, in
which the messages are marked as handled: performed again, it finds nothing left to do.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta

import structlog

from postroom.concurrency import Rounds
from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import PostroomError
from postroom.contracts.outbox import OutboxDraft, OutboxMessage, OutboxStore
from postroom.contracts.runs import RunRecord, RunStatus, TerminationKind
from postroom.contracts.store import MailStore
from postroom.mail.waking.completion import DeskOf, RunCompletion
from postroom.mail.waking.mail_runs import waits_for_budget
from postroom.mail.waking.prompts import STOPS, agent_of, messages_named

_LOG = structlog.get_logger(__name__)
LANE = "mail"
TARGET = "mail"
_MOST_CLAIMS = 1_000_000
_BATCH = 32
_LEASE = timedelta(seconds=30)
_POLL = timedelta(seconds=1)
_PAUSE = timedelta(seconds=2)
_MOST_PAUSES = 8


class MessageEffects:
    """Has the ends of agents' runs told to those whose messages began them."""

    def __init__(self) -> None:
        self.hint: Callable[[], None] = _nobody
        """Called when there is something to be told."""

    def stored(self, run: RunRecord) -> None:
        """Hint that there is something to be told."""
        if agent_of(run.thread_id) is not None:
            self.hint()

    def of(self, run: RunRecord) -> Sequence[OutboxDraft]:
        """Return what a run that is done, or asks a person, is to cause."""
        ids = run.input.trigger_message_ids if run.input else ()
        asked = [one.reason for one in run.waiting.tickets] if run.waiting else []
        is_due = run.status is RunStatus.DONE or bool(asked)
        if agent_of(run.thread_id) is None or not is_due or not messages_named(ids):
            return ()
        payload = {
            "run_id": run.run_id,
            "thread_id": run.thread_id,
            "messages": messages_named(ids),
            "text": (run.waiting.message if run.waiting else run.final_output) or "",
            "failed": _reason(run),
            "asked": asked,
            "by_reply": not waits_for_budget(run),
            "dispatch_id": run.dispatch_id or "",
        }
        draft = OutboxDraft(
            lane=LANE,
            target=TARGET,
            payload=payload,
            dedupe_key=f"{'question' if asked else 'answer'}/{run.run_id}/{run.dispatch_id}",
            max_attempts=_MOST_CLAIMS,
            order_key=run.thread_id,
        )
        return (draft,)


class Answering:
    """Performs these effects."""

    def __init__(self, outbox: OutboxStore, store: MailStore, desk_of: DeskOf, clock: Clock) -> None:
        self._outbox = outbox
        self._store = store
        self._desk_of = desk_of
        self._clock = clock
        self._rounds = Rounds("answers", self.round, _POLL)
        self.on_change: Callable[[], None] = _nobody
        """Called after messages were written, as a hint to whoever performs their effects."""

    def wake(self) -> None:
        """Hint that a run has ended."""
        self._rounds.hint()

    async def serve(self) -> None:
        """Answer until cancelled."""
        await self._rounds.serve()

    async def round(self) -> int:
        """Perform what is due; return how many effects were taken.

        Raises:
            PostroomError: the outbox could not be reached.
        """
        lease = milliseconds(_LEASE)
        rows = await self._outbox.claim(LANE, TARGET, lease_ms=lease, limit=_BATCH)
        for row in rows:
            await self._performed(row)
        return len(rows)

    async def _performed(self, row: OutboxMessage) -> None:
        token = row.claim_token or ""
        try:
            ended = RunCompletion.of(row)
        except (KeyError, TypeError, ValueError) as error:
            why = f"it cannot be read: {type(error).__name__}"
            await self._outbox.nack(row.outbox_id, token, error=why, final=True)
            return
        try:
            await self._store.write(lambda tx: ended.told(self._desk_of(tx)))
        except PostroomError as error:
            _LOG.warning("answer.put_off", outbox_id=row.outbox_id, reason=error.describe())
            delay = milliseconds(_PAUSE) * 2 ** min(row.attempt_count, _MOST_PAUSES)
            await self._outbox.nack(row.outbox_id, token, error=error.describe(), delay_ms=delay)
            return
        self.on_change()
        await self._outbox.ack(row.outbox_id, token)


def _reason(run: RunRecord) -> str | None:
    """Return why a run was not done; None when it was."""
    end = run.termination
    if end is None or end.type in (TerminationKind.NATURAL_END, TerminationKind.BEHAVIOR_REQUESTED):
        return None
    return run.error or STOPS.get(end.value or "") or end.value or end.type.value


def _nobody() -> None:
    """Hint to nobody."""
