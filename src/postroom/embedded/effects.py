"""Announces ended runs to the handles that wait for them, and requeues sleeping runs on time."""

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import OnTimeout, RunRecord, RunStatus, RunWaitingTicket
from postroom.contracts.waking import Accept
from postroom.embedded.running import SLEEP
from postroom.ports import RunEffects
from postroom.stores.store import Transaction

ENDED: Final = "RunEnded"
WAITS: Final = "RunWaits"
_WRITER: Final = "embedded"


class Watch:
    """Receives the result of a run in the process that executes the run."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        """An event that is set when the run ends, or when the waiter should read the database."""
        self.run: RunRecord | None = None
        """The ended run, or None while the run is open."""


class Ends(RunEffects):
    """Announces to all processes that runs have ended or wait for an answer."""

    def __init__(self) -> None:
        self._watches: WeakValueDictionary[str, Watch] = WeakValueDictionary()

    def watch(self, message_id: str) -> Watch:
        """Return the watch of the run that will process a message."""
        return self._watches.setdefault(message_id, Watch())

    def close(self) -> None:
        """Wake all waiting callers, so that they read the database."""
        for watch in list(self._watches.values()):
            watch.told.set()

    def write(self, tx: Transaction, run: RunRecord, accept: Accept | None) -> None:
        """Store the event of a run that has ended or asks a question, and queue a sleeping run."""
        is_done = run.status is RunStatus.DONE
        tickets = run.waiting.tickets if run.waiting is not None else ()
        if tickets and (tickets[0].tool_name == SLEEP or tickets[0].on_timeout is OnTimeout.GO_ON):
            _wake_later(tx, run, tickets[0])
        if (tickets and tickets[0].tool_name == SLEEP) or (not is_done and not tickets):
            return
        kind, end = ENDED if is_done else WAITS, run.termination
        # A restarted run may wait for the same question, so each dispatch has its own event.
        key = f"{kind}/{run.run_id}/" + (f"{tickets[0].ticket_id}/{run.dispatch_id}" if tickets else "")
        fields: dict[str, Json] = {
            "text": run.final_output or "",
            "termination": end.type.value if end else None,
            "error": run.error,
        }
        if tickets:
            fields = {
                "question": tickets[0].question,
                "question_id": tickets[0].tool_call_id,
                "tool": tickets[0].tool_name,
                "arguments": tickets[0].arguments,
            }
        draft = CanonicalEventDraft(
            scopes=(EventScope.thread(run.thread_id), EventScope.run(run.run_id)),
            event_kind=kind,
            payload=fields,
            correlation_id=run.dispatch_id,
            options=AppendOptions(writer_id=_WRITER, idempotency_key=key),
        )
        tx.events.add(draft, ended_run=run)

    def stored(self, run: RunRecord) -> None:
        """Wake the callers that wait for a run."""
        for message_id in run.activation.trigger_message_ids if self._watches and run.activation else ():
            if (watch := self._watches.get(message_id)) is not None:
                watch.run = run if run.status is RunStatus.DONE else None
                watch.told.set()


def _wake_later(tx: Transaction, run: RunRecord, ticket: RunWaitingTicket) -> None:
    """Queue a waiting run for the time at which the run resumes without an answer."""
    waiting = run.waiting
    if waiting is None or run.dispatch_id != waiting.since_dispatch_id:
        return
    before = tx.runs.dispatches.load(run.dispatch_id or "")
    if before is None:
        return
    dispatch = RunDispatch.queued(
        tx.new_id(),
        run.thread_id,
        run.run_id,
        created_at=tx.now(),
        available_at=ticket.expires_at,
        priority=before.priority,
        max_attempts=before.max_attempts,
        max_interruptions=before.max_interruptions,
        tenant=before.tenant,
        limit_key=before.limit_key,
    )
    again = replace(run, dispatch_id=dispatch.dispatch_id)
    tx.runs.commit(ThreadCommit(thread_id=run.thread_id, run=again, queues=dispatch))
