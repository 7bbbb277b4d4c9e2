"""Tells operators why a dispatch waits and which dead letters exist, and replays dead letters."""

import uuid
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from postroom.contracts.activation import RunActivation, RunHints, RunMode
from postroom.contracts.clock import iso
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import IllegalTransition, UnknownDispatch, UnknownRun
from postroom.contracts.leases import servers
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MAX_PAGE, RunQuery
from postroom.contracts.runs import RunRecord, RunStatus, RunWaitingTicket, WaitingReason
from postroom.dispatch.budgets import held_back
from postroom.dispatch.core import Core
from postroom.dispatch.submission import MailboxDispatchStatus, MailboxSubmitResult, Submissions
from postroom.dispatch.worker import Dispatcher
from postroom.stores.store import Transaction

_REPLAYS: Final = uuid.UUID("5b0f0cf6-6f0e-5f5e-9d0b-2f6a1c7f1d26")


_NONE_HERE: Final = "this process does not execute runs; another process executes this run"


def replayed_as(dispatch_id: str) -> str:
    """Return the id of the run that retries a dead letter."""
    return str(uuid.uuid5(_REPLAYS, dispatch_id))


class WhyNot(StrEnum):
    """A reason why a dispatch is not executing."""

    RUNNING = "running"
    ENDED = "ended"
    WAITING = "waiting"
    TOO_LATE = "too_late"
    NOT_DUE = "not_due"
    THREAD_BUSY = "thread_busy"
    BEHIND_QUESTION = "behind_question"
    BEHIND_OTHERS = "behind_others"
    SUPERSEDED = "superseded"
    NO_FREE_SLOT = "no_free_slot"
    TENANT_AT_LIMIT = "tenant_at_limit"
    AT_LIMIT = "at_limit"
    OVER_BUDGET = "over_budget"
    DRAINING = "draining"
    ELSEWHERE = "elsewhere"
    LEASE_ENDED = "lease_ended"
    ABOUT_TO_START = "about_to_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason why a dispatch is not executing.

    `until` is the known end of the reason, or None.
    """

    why: WhyNot
    text: str
    until: int | None = None
    by_dispatch_id: str | None = None


class Inspection:
    """Queries and commands for operators of the queue."""

    def __init__(self, core: Core, dispatcher: Dispatcher, submissions: Submissions) -> None:
        self._core = core
        self._dispatcher = dispatcher
        self._submissions = submissions

    async def why_not(self, dispatch_id: str) -> Reason:
        """Return the reason why no process executes a dispatch. `dispatch_id` may be a run id.

        Raises:
            UnknownDispatch: No dispatch has this id.
        """
        row = await self._core.dispatches.load_dispatch(dispatch_id)
        if row is None:
            named = await self._core.threads.load_run(dispatch_id)
            row = await self._row(dispatch_id if named is None else named.dispatch_id or dispatch_id)
        if row.status is RunDispatchStatus.CLAIMED:
            if row.lease_until is not None and row.lease_until < self._core.now():
                return Reason(
                    why=WhyNot.LEASE_ENDED,
                    text=f"the lease of {row.claimed_by} has expired; the next sweep releases it",
                    by_dispatch_id=row.dispatch_id,
                )
            return Reason(why=WhyNot.RUNNING, text=f"{row.claimed_by} executes it", until=row.lease_until)
        if row.status.is_terminal:
            run = await self._core.threads.load_run(row.run_id)
            if run is not None and run.waiting is not None and run.dispatch_id == row.dispatch_id:
                [ticket] = run.open_tickets[:1] or [None]
                until = None if ticket is None else ticket.expires_at
                what = run.waiting.reason.replace("_", " ") if ticket is None else ticket.question
                return Reason(why=WhyNot.WAITING, text=f"the run waits: {what}", until=until)
            if row.status is RunDispatchStatus.SUPERSEDED:
                return Reason(
                    why=WhyNot.SUPERSEDED, text=row.last_error or "a newer run has replaced this run"
                )
            why = "" if row.last_error is None else f": {row.last_error}"
            return Reason(why=WhyNot.ENDED, text=f"the run ended as {row.status.label}{why}")
        return await self._explain_queue(row)

    async def dead_letters(self, *, after: RunDispatch | None = None) -> tuple[RunDispatch, ...]:
        """Return a page of the dead letters, oldest first, starting after `after`."""
        return await self._core.dispatches.list_by_status(
            RunDispatchStatus.DEAD_LETTER,
            limit=MAX_PAGE,
            after=None if after is None else (after.updated_at, after.dispatch_id),
        )

    async def replay(self, dispatch_id: str) -> MailboxSubmitResult:
        """Retry a dead letter as a new run with the same messages, and delete the dead letter.

        The new run starts from the beginning, without answers to earlier questions.

        A repeated call creates no second run.

        Raises:
            UnknownDispatch, UnknownRun: The dispatch does not exist, or its run no longer exists.
            IllegalTransition: The dispatch is not a dead letter.
        """
        row = await self._dead_letter(dispatch_id)
        run = await self._core.threads.load_run(row.run_id)
        if run is None or run.activation is None:
            raise UnknownRun(f"the run {row.run_id!r} of the dead letter no longer exists", value=row.run_id)
        snapshot = run.activation
        again = RunActivation(
            thread_id=run.thread_id,
            agent_id=run.agent_id,
            options=snapshot.options,
            trace=replace(snapshot.trace, run_mode=RunMode.SCHEDULED, parent_run_id=run.run_id),
            delivery=replace(snapshot.delivery, delay_ms=0, deadline_at=None),
            hints=RunHints(run_id=replayed_as(dispatch_id), resolution_id=run.resolution_id),
            # after an answer, the snapshot contains only the decision; the input has the run's messages
            committed_message_ids=run.input.trigger_message_ids if run.input is not None else (),
        )
        begun = await self._core.threads.load_run(again.run_id or "")
        if begun is None or begun.dispatch_id is None or begun.status is RunStatus.CREATED:
            # a prepared run is submitted again and joins its queued dispatch
            result = await self._submissions.submit_committed(again)
        else:
            result = MailboxSubmitResult(
                dispatch_id=begun.dispatch_id,
                run_id=begun.run_id,
                thread_id=begun.thread_id,
                status=MailboxDispatchStatus.RUNNING,
            )
        await self._core.dispatches.discard(dispatch_id)
        return result

    async def hasten(self, dispatch_id: str) -> None:
        """Make a delayed queued dispatch due immediately.

        Raises:
            IllegalTransition: The dispatch is not queued, or is already due.
        """
        if await self._core.dispatches.hasten(dispatch_id) is None:
            raise IllegalTransition(
                f"dispatch {dispatch_id} is not waiting for a point in time",
                value=dispatch_id,
                remedy="call why_not() to see what the dispatch is waiting for",
            )

    async def discard(self, dispatch_id: str) -> RunDispatch:
        """Delete a dead letter permanently. The run keeps the error.

        Raises:
            UnknownDispatch: The dispatch does not exist.
            IllegalTransition: The dispatch is not a dead letter.
        """
        row = await self._dead_letter(dispatch_id)
        await self._core.dispatches.discard(dispatch_id)
        return row

    async def _explain_queue(self, row: RunDispatch) -> Reason:
        dispatches, now = self._core.dispatches, self._core.now()
        if row.dispatch_epoch < await dispatches.current_dispatch_epoch(row.thread_id):
            return Reason(why=WhyNot.SUPERSEDED, text="an interrupt has replaced this run")
        if row.has_missed_deadline(now):
            passed = f"the deadline {iso(row.deadline_at or 0)} has passed"
            return Reason(
                why=WhyNot.TOO_LATE, text=f"{passed}: the run never starts, and fails at the next sweep"
            )
        if row.available_at > now:
            is_again = row.attempt_count or row.interruption_count
            why = "the next attempt is due" if is_again else "the run is due"
            return Reason(why=WhyNot.NOT_DUE, text=f"{why} later", until=row.available_at)
        claimed = await dispatches.claimed_dispatch(row.thread_id)
        if claimed is not None:
            return Reason(
                why=WhyNot.THREAD_BUSY,
                text=f"run {claimed.run_id} is active on the same thread",
                until=claimed.lease_until,
                by_dispatch_id=claimed.dispatch_id,
            )
        waiting = RunQuery(thread_id=row.thread_id, statuses=(RunStatus.WAITING,))
        for run in await self._core.threads.list_runs(waiting):
            if run.waiting is not None and run.holds_others and run.run_id != row.run_id:
                return _behind(run, run.waiting.tickets[0])
        queued = await dispatches.list_dispatches(row.thread_id, (RunDispatchStatus.QUEUED,), limit=MAX_PAGE)
        first = next((dispatch for dispatch in queued if dispatch.available_at <= now), row)
        if first.dispatch_id != row.dispatch_id:
            return Reason(
                why=WhyNot.BEHIND_OTHERS,
                text="earlier runs of the same thread come first",
                by_dispatch_id=first.dispatch_id,
            )
        held = await self._core.store.read(partial(self._elsewhere, thread_id=row.thread_id))
        if held is None and self._core.limits_lock:
            held = await self._core.store.read(partial(self._explain_limit, row=row))
        if held is not None:
            return held
        dispatcher = self._dispatcher
        if not dispatcher.accepting:
            return Reason(
                why=WhyNot.DRAINING,
                text="this mailbox accepts no new executions; another mailbox may execute the run",
            )
        if not dispatcher.slots.free:
            used = dispatcher.slots.used
            text = f"all slots are taken: this process executes {used} runs" if used else _NONE_HERE
            return Reason(why=WhyNot.NO_FREE_SLOT, text=text)
        if not dispatcher.slots.has_room(row.tenant):
            return Reason(why=WhyNot.TENANT_AT_LIMIT, text=f"tenant {row.tenant!r} has reached its limit")
        return Reason(why=WhyNot.ABOUT_TO_START, text="nothing prevents the run; a mailbox starts it soon")

    def _elsewhere(self, tx: Transaction, thread_id: str) -> Reason | None:
        place, places = tx.runs.dispatches.place(thread_id), self._core.places
        if places is None or not place or place in places:
            return None
        leases, now = tx.leases.listed(), tx.now()
        if there := [lease.holder for lease in servers(leases, now, place)]:
            text = f"the run is limited to the place {place}, so only {' or '.join(there)} can execute it"
        else:
            up = ", ".join(lease.holder for lease in servers(leases, now)) or "none"
            text = (
                f"the run is limited to the place {place}, but no running server has this place; "
                f"running: {up}"
            )
        return Reason(why=WhyNot.ELSEWHERE, text=text)

    def _explain_limit(self, tx: Transaction, row: RunDispatch) -> Reason | None:
        held, run = held_back(tx, self._core.config.limits, row), tx.runs.threads.load_run(row.run_id)
        if held is not None:
            return Reason(why=WhyNot.AT_LIMIT, text=held.text, until=held.until)
        held = None if run is None else self._core.budgets.start(tx, row, run).held
        return None if held is None else Reason(why=WhyNot.OVER_BUDGET, text=held.text, until=held.until)

    async def _row(self, dispatch_id: str) -> RunDispatch:
        row = await self._core.dispatches.load_dispatch(dispatch_id)
        if row is None:
            raise UnknownDispatch(f"there is no dispatch {dispatch_id!r}", value=dispatch_id)
        return row

    async def _dead_letter(self, dispatch_id: str) -> RunDispatch:
        row = await self._row(dispatch_id)
        if row.status is not RunDispatchStatus.DEAD_LETTER:
            raise IllegalTransition(
                f"dispatch {dispatch_id!r} is {row.status.label}, not a dead letter",
                value=dispatch_id,
                remedy="list the dead letters: `postroom runs dead` or mailbox.dead_letters",
            )
        return row


def _behind(run: RunRecord, ticket: RunWaitingTicket) -> Reason:
    since = iso(ticket.updated_at)
    what = f"has an open question since {since}: {ticket.question}"
    if run.waiting is not None and run.waiting.reason is WaitingReason.EXTERNAL_EVENT:
        what = "sleeps until its time"
    if ticket not in run.open_tickets:
        what = "has an answer and resumes first"
    return Reason(
        why=WhyNot.BEHIND_QUESTION,
        text=f"run {run.run_id} of the same thread {what}",
        until=ticket.expires_at,
    )
