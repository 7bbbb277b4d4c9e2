"""Runs one claimed dispatch, from the claim to its acknowledgement.

claimed ─▶ request rebuilt ─▶ begun, if still ours ─▶ executor ─┬─▶ result: run ended, dispatch acked
│                     │                       ├─▶ fails, may pass: back with a delay
│ cannot              │ no                    ├─▶ fails for good: dead letter
▼                     ▼                       └─▶ lease lost: stopped, nothing written
dead letter              left
"""

from dataclasses import replace

import structlog

from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink, RunRetrying
from postroom.contracts.budgets import Spending
from postroom.contracts.dispatch import RunDispatch, RunDispatchResult, RunDispatchStatus
from postroom.contracts.errors import (
    InputError,
    InternalError,
    PostroomError,
    StaleClaim,
    StateError,
    StoreCorrupt,
    StoreError,
)
from postroom.contracts.executor import AgentRunResult, RunControl
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.dispatch.attempt import Attempt, AttemptEnd, Begun
from postroom.dispatch.bookkeeping import Bookkeeping
from postroom.dispatch.boundary import ThreadBoundary
from postroom.dispatch.budgets import Budgets
from postroom.dispatch.capture import Capture, EventBuffer, RunCoordinator
from postroom.dispatch.contained import Ended, executed, stopped
from postroom.dispatch.core import Core
from postroom.dispatch.journal import Journal
from postroom.dispatch.lease import Lease, LeaseEnd, lease_kept
from postroom.dispatch.outcome import (
    COMPLETED,
    MailboxRunOutcome,
    OutcomeKind,
    backoff_ms,
    classify,
    retry_delay_ms,
)
from postroom.dispatch.pinning import Pinning
from postroom.dispatch.rebuild import asked_of, begins_as, is_settled, load_run_of, rebuild
from postroom.dispatch.run_ends import RunEnds
from postroom.dispatch.settlement import as_result, finish_event, paused_by
from postroom.dispatch.sinks import ReconnectableEventSink, SuspensionAwareSink

_LOG = structlog.get_logger(__name__)
SUPERSEDED_BEFORE_START = "claimed dispatch superseded before execution start"
DEADLINE_PASSED = "the deadline passed before it could be started"


class Execution:
    """Executes claimed dispatches."""

    def __init__(self, core: Core, journal: Journal, ends: RunEnds, pinning: Pinning) -> None:
        self._books = Bookkeeping(core)
        self._budgets = Budgets(core)
        self._core = core
        self._journal = journal
        self._ends = ends
        self._pinning = pinning
        self.capture: Capture | None = None
        self._leases: dict[str, Lease] = {}

    async def run(
        self, claimed: RunDispatch, out: ReconnectableEventSink, begun: Begun | None = None
    ) -> AttemptEnd:
        """Execute a claimed dispatch to its end, and say what that leaves to do."""
        watched = SuspensionAwareSink(out)
        with self._core.metrics.active_runs.track_inprogress():
            async with lease_kept(self._core, claimed, is_suspended=lambda: watched.suspended) as lease:
                self._leases[claimed.dispatch_id] = lease
                try:
                    return await self._run(claimed, watched, lease, begun)
                except StaleClaim as error:
                    _LOG.info("dispatch.lost", dispatch_id=claimed.dispatch_id, reason=error.message)
                    await self._tell_of_loss(claimed)
                except StoreError as error:
                    # The lease runs out and the dispatch comes again: its run says what is left to do.
                    _LOG.error(
                        "dispatch.left_to_lease", dispatch_id=claimed.dispatch_id, reason=error.describe()
                    )
                except Exception as error:
                    _LOG.exception("dispatch.failed", dispatch_id=claimed.dispatch_id)
                    return AttemptEnd(comes_again=await self._put_back(claimed, error))
                finally:
                    del self._leases[claimed.dispatch_id]
        return AttemptEnd()

    async def _put_back(self, claimed: RunDispatch, error: Exception) -> bool:
        """Give back what failed for a reason that nobody foresaw; an attempt counts."""
        delay = backoff_ms(self._core.config, claimed.attempt_count + 1)
        try:
            row = await self._core.dispatches.nack(
                claimed.claim_proof, error=classify(error).error, delay_ms=delay
            )
            await self._ends.tell(row)
        except PostroomError as reason:
            _LOG.warning("dispatch.left_to_lease", reason=reason.describe())
            return False
        return row.status is RunDispatchStatus.QUEUED

    def leave(self) -> None:
        """Stop every execution and give its dispatch back, with no attempt counted."""
        for lease in self._leases.values():
            lease.stop(LeaseEnd.GIVEN_UP, "the worker is leaving")

    def cancel(self, dispatch_id: str) -> bool:
        """Stop an execution of this process, whose run then ends as cancelled; False when there is none."""
        lease = self._leases.get(dispatch_id)
        if lease is not None:
            lease.stop(LeaseEnd.CANCELLED, "cancelled")
        return lease is not None

    async def _run(
        self, claimed: RunDispatch, watched: SuspensionAwareSink, lease: Lease, begun: Begun | None
    ) -> AttemptEnd:
        dispatch = claimed if self._core.one_transaction else await self._still_ours(claimed)
        if dispatch is None:
            return AttemptEnd()
        instance_id = self._core.new_id() if begun is None else begun.instance_id
        try:
            attempt = await self._attempt(dispatch, watched, instance_id, begun)
        except (InputError, StateError, InternalError, StoreCorrupt) as error:
            await self._core.dispatches.record_dispatch_start(dispatch.claim_proof, instance_id)
            await self._give_up(dispatch, watched, instance_id, error.describe())
            return AttemptEnd()
        if is_settled(attempt.run, dispatch):
            await self._books.acknowledge_settled(attempt)
            return AttemptEnd()
        await self._start(attempt, is_written=begun is not None)
        comes_again = await self._brought_to_its_end(attempt, lease)
        return AttemptEnd(comes_again=comes_again, leaves_waiting=attempt.leaves_waiting)

    async def _brought_to_its_end(self, attempt: Attempt, lease: Lease) -> bool:
        """Execute what has begun; say whether it comes again."""
        pause = await self._budgets.pause(attempt.activation, attempt.dispatch)
        if pause is not None:
            attempt.paused = True
            await self._complete(attempt, paused_by(attempt.run, pause))
            return False
        ended = await self._executed(attempt, lease)
        return False if ended is None else await self._finish(attempt, ended)

    async def _still_ours(self, claimed: RunDispatch) -> RunDispatch | None:
        """Return the dispatch as it stands, None when it was lost meanwhile.

        Where run and queue are kept in one place the begin itself proves the claim, and this is not asked.
        """
        row = await self._core.observed(
            "load_dispatch", self._core.dispatches.load_dispatch(claimed.dispatch_id)
        )
        if row is None or row.claim_token != claimed.claim_token:
            if row is not None:
                await self._ends.tell(row)
            return None
        epoch = await self._core.observed(
            "current_dispatch_epoch", self._core.dispatches.current_dispatch_epoch(row.thread_id)
        )
        if row.dispatch_epoch < epoch:
            ended = await self._core.observed(
                "supersede_claimed",
                self._core.dispatches.supersede_claimed(row.claim_proof, reason=SUPERSEDED_BEFORE_START),
            )
            if ended is not None:
                await self._ends.tell(ended)
            return None
        return row

    async def _attempt(
        self, dispatch: RunDispatch, watched: SuspensionAwareSink, instance_id: str, begun: Begun | None
    ) -> Attempt:
        run = await load_run_of(self._core.threads, dispatch) if begun is None else begun.run
        buffer = EventBuffer()
        coordinator = RunCoordinator(self._core.stores.coordinator, dispatch.claim_proof, buffer, run)
        sink: EventSink = watched
        activation = RunActivation(thread_id=run.thread_id)
        if not is_settled(run, dispatch):
            if dispatch.deadline_at is not None and self._core.now() > dispatch.deadline_at:
                raise InternalError(DEADLINE_PASSED, value=dispatch.deadline_at)
            known = None if begun is None else begun.messages
            activation = await rebuild(
                self._core.threads, dispatch, run, instance_id=instance_id, messages=known
            )
            registry = await self._pinning.materialize(run.resolution_id or "")
            boundary = ThreadBoundary(self._core, self._journal, coordinator, run.thread_id, run.run_id)
            hidden = activation.options.without_runs
            control = RunControl(
                coordinator=coordinator,
                threads=self._core.threads,
                pending=boundary if self._core.config.pending_zone else None,
                registry=registry,
                hidden_runs=frozenset(hidden),
                hidden_message_ids=await asked_of(self._core.threads, hidden),
            )
            said = self._core.executor.recovery(activation)
            activation = replace(activation, control=control, recovery=begins_as(run, said))
        if self.capture is not None:
            resumed = activation.continue_run_id is not None or run.steps > 0
            sink = self.capture.sink(watched, buffer, dispatch, resumed=resumed)
        return Attempt(
            dispatch=dispatch,
            run=run,
            activation=activation,
            instance_id=instance_id,
            watched=watched,
            sink=sink,
            coordinator=coordinator,
        )

    async def _start(self, attempt: Attempt, *, is_written: bool) -> None:
        if is_written:
            attempt.started_at = attempt.run.started_at or self._core.now()
        else:
            await self._books.begin(attempt)
        self._core.metrics.started(attempt.dispatch, now=attempt.started_at)
        await self._journal.dispatch_happened("RunSubmitted", attempt.dispatch)

    async def _executed(self, attempt: Attempt, lease: Lease) -> Ended | None:
        """Run the executor; None when the dispatch is not ours any more."""
        core, dispatch = self._core, attempt.dispatch
        body = await executed(
            core.tasks,
            lambda: core.executor.run(attempt.activation, attempt.sink),
            lease,
            name=f"run {dispatch.run_id}",
        )
        if body.done() and not body.cancelled():
            return body.result()
        core.executor.cancel(dispatch.dispatch_id)
        has_stopped = await stopped(body, core.timer, core.tasks, within_ms=core.config.stop_wait_ms)
        if not has_stopped:
            core.metrics.run_abandoned()
            _LOG.error("run.left_behind", run_id=dispatch.run_id, dispatch_id=dispatch.dispatch_id)
        if lease.end is LeaseEnd.CANCELLED:
            return AgentRunResult(run_id=dispatch.run_id, termination=TerminationReason.cancelled())
        if lease.end is LeaseEnd.GIVEN_UP and has_stopped:
            await core.observed("release", core.dispatches.release(dispatch.claim_proof))
            return None
        await self._tell_of_loss(dispatch)
        return None

    async def _finish(self, attempt: Attempt, ended: Ended) -> bool:
        if isinstance(ended, StaleClaim):
            raise ended
        outcome, comes_again = classify(ended), False
        if outcome.kind is OutcomeKind.TRANSIENT_ERROR:
            comes_again = await self._try_later(attempt, outcome)
        elif outcome.kind is OutcomeKind.PERMANENT_ERROR:
            await self._give_up(attempt.dispatch, attempt.sink, attempt.instance_id, outcome.error)
        else:
            await self._complete(attempt, as_result(ended, attempt.run.run_id))
            outcome = COMPLETED
        self._core.metrics.ended(
            outcome.metric_label,
            dispatch=attempt.dispatch,
            started_at=attempt.started_at,
            now=self._core.now(),
        )
        return comes_again

    async def _complete(self, attempt: Attempt, result: AgentRunResult) -> None:
        spends: tuple[Spending, ...] = ()
        if not attempt.paused:
            wall_ms = self._core.now() - attempt.started_at
            spends = self._budgets.spent_by(attempt.dispatch, result, wall_ms=wall_ms)
        await self._books.end(attempt, result, spends)

    async def _try_later(self, attempt: Attempt, outcome: MailboxRunOutcome) -> bool:
        dispatch = attempt.dispatch
        delay = retry_delay_ms(
            self._core.config,
            dispatch.attempt_count + 1,
            self._core.random,
            retry_after_ms=outcome.retry_after_ms,
        )
        row = await self._core.observed(
            "nack",
            self._core.dispatches.nack(dispatch.claim_proof, error=outcome.error, delay_ms=delay),
        )
        if row.status is RunDispatchStatus.DEAD_LETTER:
            await self._tell_failure(row, attempt.sink, outcome.error)
            await self._ends.tell(row)
            return False
        await self._journal.dispatch_happened("RunRescheduled", row, reason="retry_backoff")
        retrying = RunRetrying(
            run_id=row.run_id, attempt=row.attempt_count, retry_at=row.available_at, error=outcome.error
        )
        await attempt.sink.emit(retrying)
        return True

    async def _give_up(self, dispatch: RunDispatch, sink: EventSink, instance_id: str, error: str) -> None:
        await self._tell_failure(dispatch, sink, error)
        failed = RunDispatchResult(
            run_id=dispatch.run_id,
            dispatch_instance_id=instance_id,
            status=RunStatus.DONE,
            termination=TerminationReason.error(error),
            error=error,
        )
        await self._books.record(dispatch, failed)
        row = await self._core.observed(
            "dead_letter", self._core.dispatches.dead_letter(dispatch.claim_proof, error=error)
        )
        await self._ends.tell(row)

    async def _tell_failure(self, dispatch: RunDispatch, sink: EventSink, error: str) -> None:
        await self._journal.dispatch_happened("RunErrored", dispatch, error=error)
        await sink.emit(finish_event(dispatch, TerminationReason.error(error), None))

    async def _tell_of_loss(self, dispatch: RunDispatch) -> None:
        """End the run of a dispatch that was superseded while it was ours."""
        try:
            row = await self._core.dispatches.load_dispatch(dispatch.dispatch_id)
            if row is not None:
                await self._ends.tell(row)
        except PostroomError as error:
            _LOG.warning("dispatch.not_reconciled", dispatch_id=dispatch.dispatch_id, reason=error.describe())
