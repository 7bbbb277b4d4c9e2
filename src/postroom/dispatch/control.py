"""Cancels and interrupts queued and active runs in any process, and sends them decisions and input."""

from collections.abc import Callable, Collection, Sequence

from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import OPEN, Interrupt, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import AlreadyConsumed, StaleDecision
from postroom.contracts.live import LiveCommandKind, LiveDeliveryOutcome, LiveRunCommand, LiveRunTarget
from postroom.contracts.messages import Boundary, DeliveryMode, Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery, ThreadCommit, thread_lock
from postroom.contracts.runs import AnsweredTicket, RunRecord, RunStatus, TerminationReason
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.completion import Completion, EndedRuns, Workers, answers_of, cancelled_by, commands_in
from postroom.dispatch.core import Core
from postroom.dispatch.events import ServerEvents
from postroom.log import get_logger
from postroom.stores.store import Transaction

_LOG = get_logger(__name__)
_CANCEL = LiveRunCommand(kind=LiveCommandKind.CANCEL)
_GIVE_WAY = replace(_CANCEL, gives_way=True)
_WAKE = LiveRunCommand(kind=LiveCommandKind.PENDING_BOUNDARY_WAKE)
_ACTIVE = (RunStatus.RUNNING, RunStatus.WAITING)
_Cancelled = RunDispatch | tuple[RunDispatch, RunRecord | None] | RunRecord | LiveRunTarget | None


class Control:
    """Sends commands to queued and active runs."""

    def __init__(self, core: Core, events: ServerEvents, completion: Completion, workers: Workers) -> None:
        self._core = core
        self._events = events
        self._completion = completion
        self._workers = workers

    async def cancel(self, id: str, reason: str | None = None, *, seen: RunRecord | None = None) -> bool:
        """Cancel a queued, waiting or active run; return False if no such run is open.

        `id` is a dispatch or run id, or a thread id for the current run of the thread. For an active run, the
        cancellation is stored before the method returns. With `seen`, the run is only cancelled if it has not
        changed since the caller read it.
        """
        core, completion = self._core, self._completion
        cancelled = core.store.write(lambda tx: self._cancelled_in(tx, id, reason, seen))
        done = await core.observed("cancel", cancelled)
        match done:
            case None:
                return False
            case RunDispatch():
                self._workers.cancel(done.dispatch_id, core.executor.cancel)
                return True
            case LiveRunTarget():
                return await self._send(done, replace(_CANCEL, reason=reason))
            case RunRecord():
                await completion.told_cancelled(done)
                await completion.submissions.after_run(done.thread_id)
            case (dispatch, run):
                await completion.told_withdrawn(dispatch, run)
                await completion.submissions.after_run(dispatch.thread_id)
        return True

    def _cancelled_in(
        self, tx: Transaction, id: str, reason: str | None, seen: RunRecord | None
    ) -> _Cancelled:
        row, run = _named_in(tx, id)
        if run is not None and (run.status is RunStatus.DONE or seen not in (None, run)):
            return None  # the executor may store the end of the run before its dispatch ends
        if row is not None and row.status is RunDispatchStatus.QUEUED:
            return self._completion.withdrawn_in(tx, row.dispatch_id, reason)
        if row is not None and row.status is RunDispatchStatus.CLAIMED:
            tx.runs.dispatches.put_command(row, replace(_CANCEL, reason=reason))
            return row
        if run is None:
            return None
        ended = self._completion.cancelled_in(tx, run.run_id, termination=TerminationReason.cancelled(reason))
        return ended or (live_target(run) if run.status in _ACTIVE else None)

    async def interrupt(self, thread_id: str) -> Interrupt:
        """Supersede the thread's queued runs and ask the active run to end, without waiting for the end."""
        core = self._core

        def interrupt(tx: Transaction) -> tuple[Interrupt, EndedRuns]:
            tx.lock(thread_lock(thread_id))
            return self._completion.interrupted_in(tx, tx.runs.dispatches.interrupt(thread_id))

        done, ended = await core.observed("interrupt", core.store.write(interrupt, key=thread_id))
        for dispatch, run in ended:
            self._completion.told(dispatch, run)
        await self.stop_active(done)
        return done

    async def stop_active(self, interrupt: Interrupt) -> None:
        """Ask an interrupted active run to end, without waiting for the end."""
        core, active = self._core, interrupt.active_dispatch
        if active is None:
            return
        accepted = core.executor.cancel(active.dispatch_id) or core.executor.cancel(active.thread_id)
        accepted = accepted or self._workers.stop(active.dispatch_id)
        if accepted or await self._send(live_target(active), _CANCEL) or await self._asked_to_end(active):
            await self._events.dispatch_happened("RunInterrupted", active)

    async def give_way(self, active: RunDispatch) -> bool:
        """Stop an active run in favour of a submission; return False if the claim is not released in time.

        The stopped run is queued again with a delay of `PLACE_KEPT_MS`, and ends when the submission is
        committed.
        """
        core, workers = self._core, self._workers
        here = workers.give_way(active.dispatch_id)
        here = here or await core.executor.cancel_and_wait_by_thread(active.thread_id)
        if not here and active.claimed_by != core.consumer_id:
            if core.live is not None and not await self._send(live_target(active), _GIVE_WAY):
                return await self._release(active)  # no process can be reached
            await self._asked_to_end(active, _GIVE_WAY)
        waited, config = 0, core.config
        while workers.give_way(active.dispatch_id) or not await self._release(active):
            if waited >= config.cancel_wait_ms:
                reason = "local_cancel_release_wait" if here else "remote_cancel_release_wait"
                await self._events.dispatch_happened(
                    "MailboxTimeout", active, reason=reason, timeout_ms=config.cancel_wait_ms
                )
                return False
            await core.timer.sleep(config.cancel_poll_ms)
            waited += config.cancel_poll_ms
        await self._events.dispatch_happened("RunInterrupted", active)
        return True

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Pass a decision to an active run in the current process; return False if no run accepts it."""
        return self._core.executor.send_decision(id, tool_call_id, resume)

    async def send_decision_live(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Pass a decision to an active run in any process.

        Return False if the run is not active, or already has another decision. `id` is a dispatch, run or
        thread id.
        """
        row = await self._core.dispatches.load_dispatch(id)
        if row is not None and row.status is RunDispatchStatus.CLAIMED:
            target: LiveRunTarget | None = live_target(row)
        else:
            run = await self._core.threads.load_run(id) or await self._core.threads.latest_run(id)
            target = live_target(run) if run is not None and run.status in _ACTIVE else None
        path = "local_live"
        if not self.send_decision(id, tool_call_id, resume):
            if target is None:
                return False
            path = "remote_live"
            command = LiveRunCommand(kind=LiveCommandKind.DECISION, decisions=((tool_call_id, resume),))
            if not await self._send(target, command):
                if target.run_id is None:
                    return False
                request = RunActivation.new(
                    target.thread_id, [], continue_run_id=target.run_id, decisions=command.decisions
                )
                try:
                    return await self.keep_decisions(request) is not None
                except StaleDecision:
                    return False  # the caller gets this error from the submission
        if target is None or target.run_id is None:
            _LOG.info("decision.of_unknown_run", id=id)
        else:
            await self._events.decision_received(
                target.thread_id, target.run_id, tool_call_id, resume, path=path
            )
        return True

    async def take_back_decision(
        self,
        thread_id: str,
        run_id: str,
        decision_id: str,
        *,
        beside: Collection[str] = (),
        instead: Callable[[Transaction, AnsweredTicket], ToolCallResume | None] | None = None,
    ) -> AnsweredTicket | None:
        """Withdraw a decision that is not final yet, and return the question.

        Return None if the decision is final. `instead` may return a decision that closes the question.
        Without `instead`, the question is open again. `instead` may read the threads in `beside`, which are
        locked.
        """

        def take_back(tx: Transaction) -> AnsweredTicket | None:
            tx.lock(*sorted(map(thread_lock, {thread_id, *beside})))
            run = tx.runs.threads.load_run(run_id)
            answered = () if run is None else run.answered
            mine = [one for one in answered if one.decision.decision_id == decision_id]
            row = None if run is None or not mine else holder_of(tx, run, mine[0].decision)
            if run is None or run.waiting is None or run.activation is None or row is None:
                return None
            kept = [one for one in run.answered if one not in mine]
            closing = None if instead is None else instead(tx, mine[0])
            if closing is not None:
                mine = [replace(mine[0], decision=closing)]
                kept += mine
            call, since = mine[0].ticket.tool_call_id, run.waiting.since_dispatch_id
            activation, run = run.activation, replace(run, answered=tuple(kept))
            if row.status is RunDispatchStatus.CLAIMED:
                tx.runs.dispatches.drop_decision(row.dispatch_id, call)
            else:
                seeded = [one for one in activation.seeded_decisions if one[1].decision_id != decision_id]
                if closing is not None and not run.open_tickets:  # the run does not wait for anything else
                    seeded.append((call, closing))
                run = replace(run, activation=replace(activation, seeded_decisions=tuple(seeded)))
                if not seeded and not activation.trigger_message_ids:  # the run continues for no other reason
                    tx.runs.dispatches.cancel(row.dispatch_id)
                    tx.runs.dispatches.mark_reconciled([row.dispatch_id])  # its run does not end with it
                    run = replace(run, dispatch_id=since)
            tx.runs.commit(ThreadCommit(thread_id=thread_id, run=run))
            return mine[0]

        return await self._core.observed(
            "take_back_decision", self._core.store.write(take_back, key=thread_id)
        )

    async def steered(self, request: RunActivation, expected_run_id: str | None) -> LiveRunTarget | None:
        """Pass the messages of a request to the thread's active run, and return the address of the run.

        Return None if no run accepts the messages, or if the active run is not `expected_run_id`.
        """
        worker = self._workers.get(request.thread_id)
        is_here = worker is not None and worker.is_running
        if worker is not None and is_here:
            target: LiveRunTarget | None = LiveRunTarget(
                thread_id=request.thread_id, run_id=worker.run_id or "", dispatch_id=worker.dispatch_id
            )
        else:
            target = await self._active_target(request.thread_id)
        if target is None or target.run_id is None or expected_run_id not in (None, target.run_id):
            return None
        if not await self._handed_over(request.messages, target, is_here=is_here):
            return None
        return target

    async def wake(self, thread_id: str) -> None:
        """Notify the thread's active run, in any process, that messages are pending."""
        worker = self._workers.get(thread_id)
        if worker is not None and worker.is_running:
            self._core.executor.wake_pending_boundary(worker.run_id or "")
            return
        target = await self._active_target(thread_id)
        if target is not None:
            await self._send(target, _WAKE)

    async def keep_decisions(self, request: RunActivation) -> RunDispatch | None:
        """Store decisions for an active run; return None if the run is not active.

        Raises:
            StaleDecision: A call already has a decision, its question has timed out, or the run is being
                cancelled.
        """
        thread_id, run_id = request.thread_id, request.run_id or ""

        def keep(tx: Transaction) -> RunDispatch | None:
            tx.lock(thread_lock(thread_id))
            row = self.kept_in(tx, run_id, request.decisions)
            if row is not None and cancelled_by(commands_in(tx, row.dispatch_id)) is not None:
                raise StaleDecision(f"run {run_id} is being cancelled, and accepts no answer", value=run_id)
            return row

        row = await self._core.observed("keep_decisions", self._core.store.write(keep, key=thread_id))
        if row is not None:
            await self.tell_kept(row, request.decisions)
        return row

    def kept_in(
        self, tx: Transaction, run_id: str, decisions: Sequence[tuple[str, ToolCallResume]]
    ) -> RunDispatch | None:
        """Store decisions for an active run; return None if the run is not active.

        The caller locks the thread of the run, and calls `tell_kept` after the commit.

        Raises:
            StaleDecision: A call already has a decision, or its question has timed out.
        """
        run = tx.runs.threads.load_run(run_id)
        row = tx.runs.dispatches.load(run.dispatch_id or "") if run is not None else None
        if run is None or row is None or row.status is not RunDispatchStatus.CLAIMED:
            return None
        kept_commands = commands_in(tx, row.dispatch_id)
        # A run that was claimed after its question timed out continues, even if the local clock differs.
        now = max(tx.now(), row.claimed_at or 0)
        fresh = fresh_decisions(run, decisions, kept_commands, now=now)
        for item in fresh:
            command = LiveRunCommand(kind=LiveCommandKind.DECISION, decisions=(item,))
            tx.runs.dispatches.put_command(row, command)
        # An executor that commits its own steps writes the run itself, with the decisions it has read.
        commits_steps = self._core.executor.commits_steps(row.thread_id)
        if answered := () if commits_steps else answers_of(run, fresh):
            run = replace(run, answered=(*run.answered, *answered))
            tx.runs.commit(ThreadCommit(thread_id=run.thread_id, run=run))
        return row

    async def tell_kept(self, row: RunDispatch, decisions: Sequence[tuple[str, ToolCallResume]]) -> None:
        """Publish decisions that were stored for an active run."""
        for call_id, resume in decisions:
            await self._events.decision_received(row.thread_id, row.run_id, call_id, resume, path="kept")

    async def _asked_to_end(self, claimed: RunDispatch, command: LiveRunCommand = _CANCEL) -> bool:
        core = self._core

        def ask(tx: Transaction) -> bool:
            tx.lock(thread_lock(claimed.thread_id))
            row = tx.runs.dispatches.load(claimed.dispatch_id)
            if row is None or row.claim_token != claimed.claim_token:
                return False
            if command not in commands_in(tx, row.dispatch_id):
                tx.runs.dispatches.put_command(row, command)
            return True

        return await core.observed("ask_to_end", core.store.write(ask, key=claimed.thread_id))

    async def _handed_over(
        self, messages: tuple[Message, ...], target: LiveRunTarget, *, is_here: bool
    ) -> bool:
        executor, run_id = self._core.executor, target.run_id or ""
        if not self._core.config.pending_zone:
            if is_here:
                return executor.send_messages(run_id, messages)
            return await self._send(target, LiveRunCommand(kind=LiveCommandKind.MESSAGES, messages=messages))
        mode = DeliveryMode(boundary=Boundary.NEXT_STEP, target_run_id=run_id)
        await self._core.threads.append_pending(target.thread_id, messages, mode)
        woken = executor.wake_pending_boundary(run_id) if is_here else await self._send(target, _WAKE)
        if woken:
            return True
        for message in messages:
            try:
                await self._core.threads.retract_pending(target.thread_id, message.id or "")
            except AlreadyConsumed:
                return True  # the run reads all messages in one step
        return False

    async def _active_target(self, thread_id: str) -> LiveRunTarget | None:
        claimed = await self._core.dispatches.claimed_dispatch(thread_id)
        if claimed is not None:
            return live_target(claimed)
        run = await self._core.threads.latest_run(thread_id)
        return live_target(run) if run is not None and run.status is RunStatus.RUNNING else None

    async def _release(self, dispatch: RunDispatch) -> bool:
        row = await self._core.dispatches.load_dispatch(dispatch.dispatch_id)
        still = row is not None and row.status is RunDispatchStatus.CLAIMED
        return not (still and row is not None and row.claim_token == dispatch.claim_token)

    async def _send(self, target: LiveRunTarget, command: LiveRunCommand) -> bool:
        live = self._core.live
        return live is not None and await live.deliver(target, command) is LiveDeliveryOutcome.DELIVERED


def live_target(of: RunDispatch | RunRecord) -> LiveRunTarget:
    """Return the address of a run for live commands."""
    return LiveRunTarget(thread_id=of.thread_id, run_id=of.run_id, dispatch_id=of.dispatch_id)


def holder_of(tx: Transaction, run: RunRecord, decision: ToolCallResume) -> RunDispatch | None:
    """Return the dispatch that holds a decision back from the run; None if the decision is final."""
    row = tx.runs.dispatches.load(run.dispatch_id or "") if tx.now() < decision.held_until else None
    if row is None or run.activation is None:
        return None
    held = list(run.activation.seeded_decisions) if row.status is RunDispatchStatus.QUEUED else []
    if row.status is RunDispatchStatus.CLAIMED:  # the execution got the other decisions at its start
        held += [one for command in commands_in(tx, row.dispatch_id) for one in command.decisions]
    return row if decision in [one for _, one in held] else None


def _named_in(tx: Transaction, id: str) -> tuple[RunDispatch | None, RunRecord | None]:
    """Lock the thread of a run, and return the run and the dispatch."""
    queue, threads = tx.runs.dispatches, tx.runs.threads
    row = queue.load(id)
    run_id = id if row is None else row.run_id
    named = threads.load_run(run_id) or row
    tx.lock(thread_lock(id if named is None else named.thread_id))
    if named is not None:
        row, run = queue.load(id), threads.load_run(run_id)
        if run is not None and run.dispatch_id is not None and (row is None or row.status not in OPEN):
            row = queue.load(run.dispatch_id)  # the run continues with another dispatch
        return row, run
    row = queue.claimed(id)
    if row is None:
        waiting = threads.list_runs(RunQuery(thread_id=id, statuses=(RunStatus.WAITING,)), 1)
        latest = [run for run in threads.latest_runs(id, 1) if run.status in _ACTIVE]
        for run in (*waiting, *latest):
            return queue.load(run.dispatch_id or ""), run
        row = next(iter(queue.of_thread(id, (RunDispatchStatus.QUEUED,), limit=1, offset=0)), None)
    return row, None if row is None else threads.load_run(row.run_id)


def fresh_decisions(
    run: RunRecord,
    decisions: Sequence[tuple[str, ToolCallResume]],
    kept: Sequence[LiveRunCommand],
    *,
    now: int,
) -> list[tuple[str, ToolCallResume]]:
    """Return the decisions that are not stored yet for an active run.

    Raises:
        StaleDecision: A question already has another answer, has timed out, or is not among the stored
            questions of a waiting run.
    """
    by_tool_call_id = {ticket.tool_call_id: ticket for ticket in run.open_tickets}
    fields = {answered.ticket.tool_call_id: answered.decision for answered in run.answered}
    fields = {call: decision for call, decision in fields.items() if call not in by_tool_call_id}
    fields |= {call: decision for command in kept for call, decision in command.decisions}
    fresh: list[tuple[str, ToolCallResume]] = []
    for call, decision in decisions:
        before = fields.get(call)
        if before is None and call in by_tool_call_id:
            run.refuse_late(by_tool_call_id[call], decision, now=now)
        if before is None and run.status is RunStatus.WAITING and call not in by_tool_call_id:
            raise StaleDecision(f"run {run.run_id} is not waiting for a decision on {call!r}", value=call)
        if before is None:
            fresh.append((call, decision))
        elif before.decision_id != decision.decision_id:
            raise StaleDecision(f"the question of tool call {call!r} has already been answered", value=call)
    return fresh
