"""Writes the start and the end of runs, and decides what happens to a dispatch after its run.

    starts ─▶ executed ─┬─▶ result: messages, run, acknowledgement and effects in one commit
                        ├─▶ temporary failure: queued again with a delay
                        └─▶ permanent failure: dead letter, and the run ends with the error

If a run ends without an execution (cancelled, superseded, dead letter), the end of the run is written here,
too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Literal, TypeVar

from postroom.contracts.activation import DeliveryOptions, RunActivation
from postroom.contracts.agent_events import EventSink, RunFinish, RunRetrying
from postroom.contracts.dispatch import (
    OWNER_GONE,
    Interrupt,
    RunDispatch,
    RunDispatchResult,
    RunDispatchStatus,
)
from postroom.contracts.errors import (
    AgentNotFound,
    CommandKilled,
    CommandNotStarted,
    DeadlinePassed,
    ExecutorFailed,
    GiveUp,
    InvalidResume,
    InvalidRunner,
    PhaseError,
    PostroomError,
    RunFailure,
    RunnerNotFound,
    RunnerSecretMissing,
    StaleClaim,
    StoreError,
)
from postroom.contracts.events import CanonicalEventDraft
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.limits import BUDGET_TOOL, LIMITS, Held, Limit, Spending
from postroom.contracts.live import LiveRunCommand
from postroom.contracts.messages import ContentBlock, Message, MessageMetadata, Role, storable
from postroom.contracts.records import Record, replace
from postroom.contracts.run_stores import Beginning, ClaimRequest, Places, ThreadCommit, thread_lock
from postroom.contracts.runs import (
    AnsweredTicket,
    RunRecord,
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationKind,
    TerminationReason,
    WaitingReason,
    agent_of,
)
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import NOWHERE, Accept, ThreadsNeeded, number_of
from postroom.dispatch.budgets import (
    Budgets,
    Start,
    begin_to_ask,
    held_back,
    late_asking,
    missed_deadline,
    note_start,
    release_abandoned,
)
from postroom.dispatch.config import RECLAIM_PAGE, RECONCILE_PAGE, MailboxConfig
from postroom.dispatch.core import Core
from postroom.dispatch.events import ServerEvents
from postroom.dispatch.sinks import CapturingSink, ReconnectableEventSink, RunCoordinator
from postroom.log import get_logger
from postroom.ports import RunEffects
from postroom.stores.changes import WORK
from postroom.stores.runs.dispatches import due_look, state_look
from postroom.stores.store import Transaction

if TYPE_CHECKING:
    from postroom.dispatch.submission import Submissions

T = TypeVar("T")
_Why = Literal["failed", "stopped", "released"]
"""The reason why an execution has no result: it failed, its server stops, or it only returns its dispatch to
the queue.
"""
_LOG = get_logger(__name__)
_MAX_DOUBLINGS = 6
_MAX_SHIFT = 40
_OUTAGE_SHARES = (1, 2, 4, 8, 16, 16, 16, 16)
"""The relative lengths of the delays between attempts during a possible outage."""
_DEFECTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    ValueError,
    CommandKilled,
    ExecutorFailed,
)
"""Exceptions that mean a permanent failure, after which a retry cannot help."""
_NOT_STARTED = frozenset(
    error.code
    for error in (AgentNotFound, CommandNotStarted, InvalidRunner, RunnerNotFound, RunnerSecretMissing)
)
"""Codes of errors with which an execution fails before the agent gets any input."""
Ended = AgentRunResult | BaseException
"""The result that an executor returned, or the error that it raised."""
EndedRuns = list[tuple[RunDispatch, RunRecord | None]]
"""Dispatches that ended without an acknowledgement, each with its ended run."""
_RECONCILIATIONS = {
    RunDispatchStatus.CANCELLED: ("mark_run_cancelled", "cancelled"),
    RunDispatchStatus.SUPERSEDED: ("mark_run_superseded", "superseded"),
    RunDispatchStatus.DEAD_LETTER: ("mark_run_dead_letter", "dead_letter"),
}


class OutcomeKind(StrEnum):
    """The kind of result of an execution, which decides whether the run is retried."""

    COMPLETED = "completed"
    TRANSIENT_ERROR = "transient_error"
    PERMANENT_ERROR = "permanent_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxRunOutcome:
    """The outcome of an execution, with the error text and a requested retry delay."""

    kind: OutcomeKind
    error: str = ""
    retry_after_ms: int | None = None
    code: str | None = None
    """The code of the error, if it is a `PostroomError`."""
    may_be_outage: bool = False
    """Whether an outage of another service may be the cause, so that the same attempt may succeed later."""

    @property
    def metric_label(self) -> str:
        """The label of the outcome in metrics."""
        return self.kind.value


_MAX_ERROR_LENGTH = 16 * 1024
"""Maximum number of characters of an error's text in logs and in the store."""
COMPLETED = MailboxRunOutcome(kind=OutcomeKind.COMPLETED)


def classify(
    ended: AgentRunResult | BaseException, give_up_on: tuple[type[Exception], ...] = ()
) -> MailboxRunOutcome:
    """Decide how the end of an execution affects the dispatch.

    Any result completes the dispatch. A `PostroomError` is retried if the error is `retryable`. Exceptions
    from outside postroom are retried unless `give_up_on` lists the class.
    """
    if isinstance(ended, AgentRunResult | PhaseError | InvalidResume):
        return COMPLETED
    text = ended.describe() if isinstance(ended, PostroomError) else _told_by(ended)
    permanent = isinstance(ended, PostroomError) and not (ended.retryable or isinstance(ended, StoreError))
    final: tuple[type[Exception], ...] = (GiveUp, *give_up_on)
    permanent |= isinstance(ended, final) or (
        isinstance(ended, BaseExceptionGroup) and ended.subgroup(final) is not None
    )
    return MailboxRunOutcome(
        kind=OutcomeKind.PERMANENT_ERROR if permanent else OutcomeKind.TRANSIENT_ERROR,
        error=storable(text[:_MAX_ERROR_LENGTH]),
        retry_after_ms=ended.retry_after_ms if isinstance(ended, RunFailure) else None,
        code=ended.code if isinstance(ended, PostroomError) else None,
        may_be_outage=not permanent and isinstance(ended, Exception) and not isinstance(ended, _DEFECTS),
    )


def _told_by(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as own:  # this is user code, so only its own failure can be reported
        text = f"the text of the error cannot be read ({type(own).__name__})"
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__


def backoff_ms(config: MailboxConfig, attempt: int) -> int:
    """Return the maximum delay before the next attempt.

    The delay doubles with each attempt, up to a limit.
    """
    doublings = min(max(attempt - 1, 0), _MAX_DOUBLINGS)
    return min(config.default_retry_delay_ms << doublings, config.max_retry_delay_ms)


def next_try(
    config: MailboxConfig,
    dispatch: RunDispatch,
    delivery: DeliveryOptions,
    outcome: MailboxRunOutcome,
    random: Random,
    *,
    waits_for_outages: bool = True,
) -> tuple[int, int]:
    """Return the delay before the next attempt, and the maximum number of attempts.

    A failure that an outage may have caused is retried for at least `config.outage`, unless the submission
    sets a number of attempts.
    """
    failed, normal = dispatch.attempt_count + 1, config.default_max_attempts
    most, longest = normal + len(_OUTAGE_SHARES), dispatch.max_attempts
    if delivery.max_attempts is None and failed >= normal and longest in (normal, most):
        if not (outcome.may_be_outage and config.outage_ms and waits_for_outages):
            return 0, failed
        share = _OUTAGE_SHARES[min(failed, most - 1) - normal]
        least = -(-config.outage_ms * share // sum(_OUTAGE_SHARES))
        return max(random.randint(least, least * 3 // 2), outcome.retry_after_ms or 0), most
    first, cap = delivery.retry_delay_ms, delivery.max_retry_delay_ms
    if first is None and cap is None:
        return retry_delay_ms(config, failed, random, retry_after_ms=outcome.retry_after_ms), longest
    first = config.default_retry_delay_ms if first is None else first
    cap = max(config.max_retry_delay_ms, first) if cap is None else cap
    backoff = min(first << min(failed - 1, _MAX_SHIFT), cap)
    return max(random.randint(0, backoff), outcome.retry_after_ms or 0), longest


def retry_delay_ms(config: MailboxConfig, attempt: int, random: Random, *, retry_after_ms: int | None) -> int:
    """Return a random retry delay after attempt number `attempt`.

    The delay is at most the backoff, but at least `retry_after_ms` ("full jitter",
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    """
    return max(random.randint(0, backoff_ms(config, attempt)), retry_after_ms or 0)


class LeaseEnd(StrEnum):
    """The reason why an execution is stopped before its end."""

    LOST = "lost"
    GIVEN_UP = "given_up"
    GAVE_WAY = "gave_way"
    """The run was stopped so that a submission can replace it."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class ClaimAsk(ClaimRequest, frozen=True, kw_only=True):
    """A request to claim a dispatch, with the rows to store together with the claim."""

    instance_id: str
    """The id of the execution that starts."""
    begins: bool = True
    """Whether the execution starts in the transaction that claims the dispatch."""
    effects: RunEffects | None = None
    """The effects that write rows when a new run starts."""
    places: Places = None
    """The places whose runs this process executes, or None for all places."""
    limits: tuple[Limit, ...] = ()
    """The limits of runs. If there are limits or budgets, the claiming transaction holds the lock of limits.
    """
    budgets: Budgets | None = None
    """The budgets of runs, or None if there are none."""
    is_now: bool = False
    """Whether a caller waits for the run, which then starts even if a limit is reached."""

    def start(self, tx: Transaction, dispatch: RunDispatch, run: RunRecord | None) -> Start:
        """Return the decision of limits and budgets about a run's start; the caller locks the limits."""
        held = None if self.is_now else held_back(tx, self.limits, dispatch)
        if held is not None or run is None or self.budgets is None:
            return Start(held=held)
        return self.budgets.start(tx, dispatch, run, is_now=self.is_now)

    def is_elsewhere(self, tx: Transaction, thread_id: str) -> bool:
        """Return whether a thread belongs to a place that the process does not serve."""
        if self.places is None:
            return False
        place = tx.runs.dispatches.place(thread_id)
        return bool(place) and place not in self.places


class Claimed(Record, frozen=True, kw_only=True):
    """A dispatch that the process has claimed, with the run and the messages at the time of the claim."""

    dispatch: RunDispatch
    instance_id: str
    run: RunRecord | None = None
    messages: tuple[Message, ...] = ()
    has_begun: bool = False
    """Whether the execution started in the transaction that claimed the dispatch, so that nothing must be
    read again.
    """
    is_first: bool = False
    """Whether the run starts for the first time; if so, the transaction stores the run, too."""
    beginning: object | None = None
    """The value that `RunEffects.begin` returned in the claiming transaction."""
    start: Start | None = None
    """The decision of limits and budgets about the start of the run, or None without limits and budgets."""

    @property
    def rows(self) -> Beginning:
        """The dispatch and its run; the run is None unless the claim's transaction also stores the run."""
        return self.dispatch, self.run if self.is_first else None

    def noted(self, tx: Transaction, asks: ClaimAsk) -> "Claimed":
        """Store the budget usage of the run's start, and the effects of a new run."""
        if self.start is not None and self.run is not None:
            if self.start.asks:
                begin_to_ask(tx, self.run.run_id, self.start.asks)
            elif self.has_begun:
                tx.runs.threads.spend(self.start.spends)
        if not self.is_first or self.run is None or asks.effects is None:
            return self
        return replace(self, beginning=asks.effects.begin(tx, self.run, self.messages))


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A claimed dispatch with the run, and the state of the execution in the current process."""

    dispatch: RunDispatch
    begun: Claimed
    sink: ReconnectableEventSink
    stops_at: int
    """The time when the work stops if its claim is not renewed, shortly before another process may claim it.
    """
    kept_since: int
    """The time when the thread took its slot, which the thread's successive runs share."""
    concluded: "asyncio.Future[None]"
    """A future that completes when the run has freed its slot."""
    has_followers: bool = False
    """Whether this process knows of more queued work on the thread, which it then starts directly after the
    run.
    """
    alarm: "asyncio.Task[None] | None" = None
    """The timer that stops the run after the maximum execution time."""
    run: RunRecord = field(init=False)
    """The run at the start of its execution. `Dispatcher._prepare` sets this field and the next three."""
    activation: RunActivation = field(init=False)
    coordinator: RunCoordinator = field(init=False)
    told: EventSink = field(init=False)
    """The sink to which the executor writes; it stores some events, and passes all events to `sink`."""
    started_at: int = 0
    """The time when the execution started, or 0 until the start is stored."""
    ended: Ended | None = None
    """The result or the error of the executor, or None if the executor was stopped."""
    result: AgentRunResult = field(init=False)
    """The result that is stored when the run ends. `Completion.end` sets this field and the next five."""
    spends: tuple[Spending, ...] = ()
    drafts: tuple[CanonicalEventDraft, ...] = ()
    asks: ClaimAsk | None = None
    """The request to claim the thread's next dispatch when this run ends."""
    answer_id: str | None = None
    """The message id of the answer, or None if there is no answer, or if the executor has stored the answer.
    """
    ended_at: int = 0
    """The time when the run ended. A dispatch that is due at this time may be claimed next."""
    next: Claimed | None = None
    """The thread's next dispatch, if it was claimed by the transaction that ended this run."""
    has_looked: bool = False
    """Whether no poll is needed, because the thread's next dispatch was claimed or does not exist."""
    leaves_waiting: bool = True
    """Whether messages may be pending on the thread after this run."""
    comes_again: bool = False
    """Whether the dispatch was requeued, so that the run will be executed again."""
    end: LeaseEnd | None = None
    """The reason why the execution was stopped from outside, or None if it was not stopped."""
    is_cancelled: bool = False
    """Whether the run was cancelled; after a failure, a cancelled run is not retried."""
    stops: Callable[[], None] | None = None
    """Interrupts the executor, or None while none is running."""
    is_executing: bool = False
    has_executed: bool = False
    is_left_behind: bool = False
    can_pause: bool = False
    """Whether the work can pause while its claim is uncertain; if not, the work is stopped."""

    def stop(self, end: LeaseEnd) -> None:
        """Stop the execution for a reason.

        Only the first call determines the reason.
        """
        if self.end is None:
            self.end = end
            if self.stops is not None:
                self.stops()


class WorkerStatus(StrEnum):
    """The state of a thread's worker."""

    IDLE = "idle"
    CLAIMING = "claiming"
    RUNNING = "running"


@dataclass(slots=True, kw_only=True)
class MailboxWorker:
    """The worker of one thread in the current process, which executes the thread's runs."""

    status: WorkerStatus = WorkerStatus.IDLE
    job: Job | None = None
    """The job that is executing, or None if there is none."""
    tenant: str = ""
    is_wanted: bool = False
    """Whether another caller tried to start work while the worker was reserved."""
    foreground: int = 0
    """Number of foreground submissions that wait for the thread. While a foreground submission waits, the
    thread's queued dispatches are not claimed.
    """
    storing: int = 0
    """Number of foreground submissions that are being stored. Their claims may be in the database before this
    process knows them.
    """

    @property
    def is_running(self) -> bool:
        """Whether the worker is executing a run."""
        return self.status is WorkerStatus.RUNNING

    @property
    def dispatch_id(self) -> str | None:
        """The id of the executing dispatch, or None for an idle worker."""
        return None if self.job is None else self.job.dispatch.dispatch_id

    @property
    def run_id(self) -> str | None:
        """The id of the executing run, or None for an idle worker."""
        return None if self.job is None else self.job.dispatch.run_id

    def expect(self, tenant: str) -> None:
        """Set the tenant of the next work, unless a run is executing."""
        if self.status is WorkerStatus.IDLE:
            self.tenant = tenant


class Workers:
    """The workers of the current process, keyed by thread."""

    def __init__(self) -> None:
        self._workers: dict[str, MailboxWorker] = {}
        self.executing: dict[str, MailboxWorker] = {}
        """The workers that are executing a run, keyed by thread."""

    def __contains__(self, thread_id: str) -> bool:
        return thread_id in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, thread_id: str) -> MailboxWorker | None:
        """Return the worker of a thread, or None."""
        return self._workers.get(thread_id)

    def get_or_create(self, thread_id: str) -> MailboxWorker:
        """Return the worker of a thread, and create a missing worker."""
        worker = self._workers.get(thread_id)
        if worker is None:
            worker = self._workers[thread_id] = MailboxWorker()
        return worker

    def stop(self, id: str, *, is_told: bool = False) -> bool:
        """Cancel an execution; return False if nothing was executing.

        `id` is a dispatch, run or thread id. `is_told` is true if the executor was already asked to end.
        """
        for thread_id, worker in self.executing.items():
            if worker.job is not None and id in (thread_id, worker.run_id, worker.dispatch_id):
                worker.job.is_cancelled = True
                if not is_told:
                    worker.job.stop(LeaseEnd.CANCELLED)
                return True
        return False

    def give_way(self, dispatch_id: str) -> bool:
        """Stop the execution of a dispatch for a submission; return False if nothing was executing."""
        for worker in self.executing.values():
            if worker.job is not None and worker.dispatch_id == dispatch_id:
                worker.job.stop(LeaseEnd.GAVE_WAY)
                return True
        return False

    def cancel(self, dispatch_id: str, tell: Callable[[str], bool]) -> bool:
        """Cancel the execution of a dispatch; return False if nothing was executing.

        `tell` asks the executor to end the run. If no executor accepts the request, the execution is stopped.
        """
        known_jobs = (worker.job for worker in self.executing.values() if worker.dispatch_id == dispatch_id)
        is_ending = any(job is not None and job.is_cancelled for job in known_jobs)
        return self.stop(dispatch_id, is_told=tell(dispatch_id) or is_ending)

    def idle_threads(self) -> list[str]:
        """Return the threads whose workers are idle and not reserved."""
        return [thread_id for thread_id, worker in self._workers.items() if _rests(worker)]

    def forget(self, thread_id: str) -> None:
        """Remove the worker of a thread if the worker is still idle."""
        worker = self._workers.get(thread_id)
        if worker is not None and _rests(worker):
            del self._workers[thread_id]


def _rests(worker: MailboxWorker) -> bool:
    return worker.status is WorkerStatus.IDLE and not worker.foreground


class Ending(Record, frozen=True, kw_only=True):
    """The rows that were stored by a transaction that ends a run."""

    run: RunRecord | None = None
    leaves_waiting: bool = True
    """Whether messages may be pending on the thread, or True if this is unknown."""
    leaves_queued: bool = True
    """Whether another dispatch may be queued on the thread, or True if this is unknown."""
    next: Claimed | Held | None = None
    """The claim of the thread's next dispatch, or the budget that prevents the dispatch from starting."""
    tells: Callable[[], Awaitable[object]] | None = None
    """Publishes the event that the run was requeued, because its decisions arrived before its questions were
    stored.
    """
    unasked: tuple[str, ...] = ()
    """The ids of tool calls with decisions that the run neither used nor asked for."""


def claimed_next(tx: Transaction, thread_id: str, asks: ClaimAsk) -> Claimed | Held | None:
    """Claim and start the thread's next due dispatch, or return the limit that prevents the start.

    The caller locks the thread and the limits.
    """
    claimed = _next(tx, thread_id, asks, tx.runs.dispatches.due(thread_id))
    start = None if claimed is None else claimed.start
    if claimed is None or start is None or start.held is None:
        return None if claimed is None else _begin(tx, claimed, asks)
    if start.holds_thread:
        tx.runs.dispatches.hold(thread_id, start.held.scope, start.held.until)
    return start.held


def _next(tx: Transaction, thread_id: str, asks: ClaimAsk, due: RunDispatch | None) -> Claimed | None:
    if due is None or (asks.places is not None and asks.is_elsewhere(tx, thread_id)):
        return None
    claimed = due.claim(token=tx.new_id(), consumer=asks.consumer, lease_ms=asks.lease_ms, now=tx.now())
    return _looked_up(tx, claimed, asks)


def begun_in(tx: Transaction, claimed: RunDispatch, asks: ClaimAsk) -> Claimed:
    """Start a claimed dispatch in the current transaction, if possible."""
    return _begin(tx, _looked_up(tx, claimed, asks), asks)


def _begin(tx: Transaction, found: Claimed, asks: ClaimAsk) -> Claimed:
    if asks.limits:
        note_start(tx, asks.limits, found.dispatch)
    tx.runs.begin(*found.rows)
    return found.noted(tx, asks)


def _looked_up(tx: Transaction, claimed: RunDispatch, asks: ClaimAsk) -> Claimed:
    runs, instance_id = tx.runs, asks.instance_id
    run = runs.threads.load_run(claimed.run_id)
    has_run = run is not None and run.thread_id == claimed.thread_id and is_left_open(run, claimed)
    messages: tuple[Message, ...] | None = None
    begins = asks.begins and not claimed.has_missed_deadline(tx.now())
    if run is not None and has_run and begins and run.activation is not None:
        ids = run.activation.trigger_message_ids
        records = runs.messages.named(run.thread_id, ids) if ids else ()
        if len(records) == len(set(ids)):
            messages = tuple(record.message for record in records)
    start = None
    if asks.limits or asks.budgets is not None:  # the thread is read before the limits
        start = asks.start(tx, claimed, run)
    if run is None or messages is None or (start is not None and (start.held or start.asks)):
        return Claimed(dispatch=claimed, run=run, instance_id=instance_id, start=start)
    is_first = run.status is RunStatus.CREATED
    return Claimed(
        dispatch=claimed.record_dispatch_start(instance_id, now=tx.now()),
        instance_id=instance_id,
        run=run.begun(claimed.dispatch_id, instance_id, now=tx.now()) if is_first else run,
        messages=messages,
        has_begun=True,
        is_first=is_first,
        start=start,
    )


class Completion:
    """Stores the start and the end of executions."""

    def __init__(
        self,
        core: Core,
        events: ServerEvents,
    ) -> None:
        self._core = core
        self._events = events
        self.submissions: Submissions
        """The part of the mailbox that accepts submissions.

        The attribute is set after construction, because both objects need each other.
        """

    async def begin(self, job: Job) -> None:
        """Store that an execution has started.

        Raises:
            StaleClaim: This process no longer owns the dispatch; nothing was written.
        """
        core, begun, dispatch, now = self._core, job.begun, job.dispatch, self._core.now()
        run = None
        if job.run.status is RunStatus.CREATED:
            run = job.run.begun(dispatch.dispatch_id, begun.instance_id, now=now)
        begins = ThreadCommit(
            thread_id=dispatch.thread_id,
            run=run,
            begins=begun.instance_id,
            spends=() if begun.start is None else begun.start.spends,
        )
        owned = job.coordinator.owned(begins)
        is_repeated = False

        async def write() -> RunDispatch | None:
            nonlocal is_repeated
            if is_repeated:  # the reply may have been lost; count the start once
                row = await core.dispatches.load_dispatch(dispatch.dispatch_id)
                has_begun = row is not None and row.dispatch_instance_id == begun.instance_id
                if row is not None and has_begun and row.claim_token == dispatch.claim_token:
                    return row
            is_repeated = True
            return (await core.coordinator.commit(owned)).dispatch

        started = await core.retried(lambda: core.observed("record_dispatch_start", write()))
        job.dispatch, job.run, job.started_at = started or dispatch, run or job.run, now

    async def end(
        self,
        job: Job,
        result: AgentRunResult,
        spends: tuple[Spending, ...] = (),
        asks: ClaimAsk | None = None,
    ) -> None:
        """Store the end of an execution, and claim the thread's next dispatch on request.

        The write is repeated while the store is unavailable.

        Raises:
            StaleClaim: This process no longer owns the dispatch; nothing was written.
        """
        core, dispatch, staged = self._core, job.dispatch, job.coordinator.staged
        is_told = job.sink.finished
        if not is_told and isinstance(job.told, CapturingSink) and is_left_open(job.run, dispatch):
            job.told.keep(finish_event(dispatch, result.termination, result.response))
        job.result, job.spends, job.asks, job.drafts = result, spends, asks, tuple(staged)
        says = bool(result.response) and not core.executor.commits_steps(dispatch.thread_id)
        job.answer_id = core.new_id() if says else None
        job.ended_at = core.now()

        def end(tx: Transaction, accept: Accept = NOWHERE) -> Ending | StaleClaim:
            if accept is NOWHERE:  # the next claim must see the spending, and that this run asks
                tx.lock(thread_lock(dispatch.thread_id), *((LIMITS,) if core.has_budgets else ()))
            return self._end_in(tx, job, accept)

        ending = await core.retried(partial(self._written_end, "ack", dispatch.thread_id, end))
        del staged[: len(job.drafts)]
        # the claim is repeated in a change that records the reason
        is_held = isinstance(ending.next, Held)
        job.next = None if isinstance(ending.next, Held) else ending.next
        job.leaves_waiting = ending.leaves_waiting
        job.has_looked = (asks is not None and not is_held) or not ending.leaves_queued
        if ending.run is None or ending.run.status is RunStatus.DONE:
            core.metrics.runs.add(OutcomeKind.COMPLETED.value)
        if ending.run is not None and core.effects is not None:
            core.effects.stored(ending.run)
        if ending.unasked:
            _LOG.warning("decisions.not_asked_for", run_id=job.run.run_id, calls=ending.unasked)
        if ending.tells is not None:
            await ending.tells()
        if not is_told and job.sink.stream is not None:
            await job.sink.emit(finish_event(dispatch, result.termination, result.response))

    def _end_in(self, tx: Transaction, job: Job, accept: Accept) -> Ending | StaleClaim:
        core, dispatch, asks, result = self._core, job.dispatch, job.asks, job.result
        thread_id = dispatch.thread_id
        looks = [state_look(thread_id, run_id=dispatch.run_id, owned=dispatch.dispatch_id)]
        if job.has_followers and asks is not None:
            looks.append(due_look(thread_id, job.ended_at, dispatch))
        state = tx.runs.state(*looks)
        run, commands = state.run, commands_in(tx, dispatch.dispatch_id) if state.has_commands else []
        cancelled = cancelled_by(commands) if commands and not (run and not run.is_open) else None
        if is_cancelled := cancelled is not None:
            result = replace(result, termination=cancelled, waiting=None)
        answer = ended = following = None
        if run is not None and (is_cancelled or is_left_open(run, dispatch)):
            run, result = _still_asking(run, result, commands, now=tx.now()) if run.waiting else (run, result)
            run, answer = as_ended(run, dispatch, result, job.answer_id, now=tx.now(), commands=commands)
            is_asking = run.waiting and not any(command.decisions for command in commands)
            if is_asking and core.effects and (why := core.effects.why_not_wait(tx, run)):
                result = replace(result, termination=TerminationReason.cancelled(why), waiting=None)
                run = run.ended(result.termination, now=tx.now())
            ended = run
        ends = convert_result(dispatch, run, result, job.begun.instance_id)
        if run is None:  # the thread was removed during its run
            acked = tx.runs.dispatches.move_owned(
                dispatch.claim_proof, lambda row, now: row.record_run_result(ends, now=now).acked(now=now)
            )
            return acked if isinstance(acked, StaleClaim) else Ending()
        is_done = not commands and run.status is RunStatus.DONE
        if asks is not None and asks.budgets is None and state.queued and is_done:  # budgets see this end
            due = tx.runs.dispatches.due(thread_id, behind=dispatch, now=job.ended_at)
            following = _next(tx, thread_id, asks, due)
        step = ThreadCommit(
            thread_id=run.thread_id,
            messages=() if answer is None else (answer,),
            are_new=True,
            run=ended,
            claim=dispatch.claim_proof,
            events=job.drafts,
            outbox=() if core.effects is None else tuple(core.effects.of(tx, run)),
            spends=job.spends,
            begins=None if job.started_at else job.begun.instance_id,
            ends=ends,
            ended_before=run if ended is None else None,
        )
        done = tx.runs.commit(step, None if following is None else following.rows, state=state)
        if isinstance(done, StaleClaim):
            return self._ended_before(tx, job, run) or done
        tx.tell(*((WORK,) if core.config.limits or core.budgets.holds_back else ()))
        if core.effects is not None:
            core.effects.write(tx, run, accept)
        tells, unasked = self._resume_if_possible(tx, dispatch, commands) if commands else (None, ())
        claimed: Claimed | Held | None = None
        if asks is not None and (following is not None or done.leaves_queued or tells is not None):
            claimed = following.noted(tx, asks) if following else claimed_next(tx, thread_id, asks)
        return Ending(
            run=run,
            leaves_waiting=done.leaves_waiting,
            leaves_queued=done.leaves_queued or tells is not None,
            next=claimed,
            tells=tells,
            unasked=unasked,
        )

    def _ended_before(self, tx: Transaction, job: Job, run: RunRecord) -> Ending | None:
        """Return the rows of an earlier attempt to store the end, or None."""
        queue, asks = tx.runs.dispatches, job.asks
        row = queue.load(job.dispatch.dispatch_id)
        is_done = row is not None and row.status is RunDispatchStatus.ACKED
        if row is None or not is_done or row.dispatch_instance_id != job.begun.instance_id:
            return None
        after = queue.claimed(job.dispatch.thread_id)
        if asks is None or after is None or after.dispatch_instance_id != asks.instance_id:
            return Ending(run=run)
        released = queue.move_owned(after.claim_proof, lambda row, now: row.released(now=now))
        report = None
        if not isinstance(released, StaleClaim):
            row, ended = self.ended_in(tx, apply_stored_commands(tx, released))
            report = None if ended is None else partial(self.told_withdrawn, row, ended)
        return Ending(run=run, next=claimed_next(tx, after.thread_id, asks), tells=report)

    def _resume_if_possible(
        self, tx: Transaction, dispatch: RunDispatch, asked: Sequence[LiveRunCommand]
    ) -> tuple[Callable[[], Awaitable[None]] | None, tuple[str, ...]]:
        """Resume a waiting run with decisions that arrived early."""
        tx.runs.dispatches.drop_commands(dispatch.dispatch_id)
        run = tx.runs.threads.load_run(dispatch.run_id)  # effects may have written its questions
        if run is None or run.status is not RunStatus.WAITING:
            return None, ()
        calls = {ticket.tool_call_id for ticket in run.waiting.tickets} if run.waiting is not None else ()
        decisions = [decision for command in asked for decision in command.decisions]
        wanted = [decision for decision in decisions if decision[0] in calls]
        unasked = tuple(call for call, _ in decisions if call not in calls)
        return self.submissions.resumed_in(tx, run, wanted) if wanted else None, unasked

    async def try_later(
        self, job: Job, outcome: MailboxRunOutcome, failed: CanonicalEventDraft | None = None
    ) -> bool:
        """Queue the dispatch again with a delay; return False after the last attempt."""
        core, dispatch = self._core, job.dispatch
        delay, most = next_try(
            core.config,
            dispatch,
            job.activation.delivery,
            outcome,
            core.random,
            waits_for_outages=core.executor.waits_for_outages(dispatch.thread_id),
        )
        row = await self._move_dispatch(
            "nack",
            dispatch,
            lambda row, now: row.nacked(
                error=outcome.error, delay_ms=delay, now=now, max_attempts=most, code=outcome.code
            ),
            failed=failed,
        )
        if row.status is RunDispatchStatus.DEAD_LETTER:
            await self._tell_failure(row, job.told, outcome.error)
            return False
        if row.status is RunDispatchStatus.CANCELLED:
            await job.told.emit(finish_event(row, TerminationReason.cancelled(), None))
            return False
        await self._events.dispatch_happened("RunRescheduled", row, reason="retry_backoff")
        retrying = RunRetrying(
            run_id=row.run_id, attempt=row.attempt_count, retry_at=row.due_since, error=outcome.error
        )
        await job.told.emit(retrying)
        return True

    async def give_up(
        self,
        dispatch: RunDispatch,
        sink: EventSink,
        instance_id: str,
        error: str,
        cause: CanonicalEventDraft | None = None,
        code: str | None = None,
    ) -> None:
        """Make the dispatch a dead letter and end the run with an error, in one transaction."""
        await self._tell_failure(dispatch, sink, error)
        failed = RunDispatchResult(
            run_id=dispatch.run_id,
            dispatch_instance_id=instance_id,
            status=RunStatus.DONE,
            termination=TerminationReason.error(error, code),
            error=error,
        )

        def given_up(row: RunDispatch, now: int) -> RunDispatch:
            begun = row.record_dispatch_start(instance_id, now=now)
            return begun.record_run_result(failed, now=now).dead_lettered(error=error, now=now)

        outcome = OutcomeKind.PERMANENT_ERROR.value
        await self._move_dispatch("dead_letter", dispatch, given_up, outcome=outcome, failed=cause)

    async def put_back(self, claimed: RunDispatch, error: Exception) -> bool:
        """Queue a dispatch again after a failure before the execution.

        Return False if no attempt is left.
        """
        attempts = claimed.attempt_count + 1
        delay, outcome = backoff_ms(self._core.config, attempts), classify(error)
        most = attempts if isinstance(error, DeadlinePassed) else None
        try:
            row = await self._move_dispatch(
                "nack",
                claimed,
                lambda row, now: row.nacked(
                    error=outcome.error, delay_ms=delay, now=now, max_attempts=most, code=outcome.code
                ),
            )
        except PostroomError as reason:
            _LOG.warning("dispatch.left_to_lease", reason=reason.describe())
            return False
        return row.status is RunDispatchStatus.QUEUED

    async def release(self, claimed: RunDispatch, delay_ms: int = 0) -> bool:
        """Queue a claimed dispatch again after `delay_ms`, without counting an attempt.

        Return False if the dispatch has ended because the run was cancelled.

        Raises:
            StaleClaim: The claim has ended; nothing was written.
        """
        row = await self._move_dispatch(
            "release",
            claimed,
            lambda row, now: row.released(now=now, delay_ms=delay_ms),
            why="released",
        )
        return row.status is RunDispatchStatus.QUEUED

    async def stop(self, claimed: RunDispatch) -> None:
        """Queue a dispatch again when the server stops, and count an interruption.

        Raises:
            StaleClaim: This process no longer owns the dispatch; nothing was written.
        """
        await self._move_dispatch("release", claimed, lambda row, now: row.stopped(now=now), why="stopped")

    async def cut_off(self, claimed: RunDispatch) -> bool:
        """Queue a stopped dispatch again, and count an interruption.

        Return True if the dispatch is queued again, or False if it ended, for example as a dead letter.

        Raises:
            StaleClaim: This process no longer owns the dispatch; nothing was written.
        """
        row = await self._move_dispatch(
            "nack", claimed, lambda row, now: row.lease_ended(now=now), why="released"
        )
        return row.status is RunDispatchStatus.QUEUED

    async def taken_back(self, row: RunDispatch) -> RunDispatch:
        """Queue the dispatch of an exited process again, and count an interruption.

        Raises:
            StaleClaim: The dispatch was superseded, which is now stored.
        """
        return await self._move_dispatch(
            "nack", row, lambda row, now: row.lease_ended(now=now, reason=OWNER_GONE), why="released"
        )

    def reclaimed_in(self, tx: Transaction, dispatch_id: str) -> tuple[RunDispatch, RunRecord | None] | None:
        """Release a dispatch with an expired lease; return None for any other dispatch.

        A dispatch of an interrupted thread is superseded, and None is returned. The caller locks the thread.
        """
        row = tx.runs.dispatches.reclaim(
            dispatch_id, counts=cancelled_by(commands_in(tx, dispatch_id)) is None
        )
        return None if row is None else self.ended_in(tx, apply_stored_commands(tx, row))

    async def withdrawn(self, dispatch_id: str) -> RunDispatch | None:
        """Withdraw a queued dispatch and end the run; return None if the dispatch was not queued."""

        def cancel(tx: Transaction) -> tuple[RunDispatch, RunRecord | None] | None:
            thread_id = tx.runs.dispatches.thread_of(dispatch_id)
            if thread_id is None:
                return None
            tx.lock(thread_lock(thread_id))
            return self.withdrawn_in(tx, dispatch_id)

        done = await self._core.observed("cancel", self._core.store.write(cancel))
        return None if done is None else await self.told_withdrawn(*done)

    def withdrawn_in(
        self, tx: Transaction, dispatch_id: str, reason: str | None = None
    ) -> tuple[RunDispatch, RunRecord | None] | None:
        """Withdraw a queued dispatch and end the run; return None if the dispatch was not queued.

        The caller locks the thread, and calls `told_withdrawn` after the commit.
        """
        row = tx.runs.dispatches.cancel(dispatch_id, reason)
        return None if row is None else self.ended_in(tx, row)

    async def end_late(self) -> None:
        """End the runs that missed their deadline before the start."""
        core = self._core

        def end(tx: Transaction, late: Sequence[RunDispatch]) -> EndedRuns:
            tx.lock(*(thread_lock(row.thread_id) for row in late))
            ended = [tx.runs.dispatches.end_late(row.dispatch_id) for row in late]
            return [self.ended_in(tx, row) for row in ended if row is not None]

        def end_asking(tx: Transaction, asking: RunRecord) -> RunRecord | None:
            tx.lock(thread_lock(asking.thread_id))
            run = tx.runs.threads.load_run(asking.run_id)
            missed = None if run is None else missed_deadline(run, tx.now())
            if missed is None:
                return None
            failed = TerminationReason.error(missed.describe(), missed.code)
            return self.cancelled_in(tx, asking.run_id, seen=run, termination=failed)

        while late := await core.store.read(lambda tx: tx.runs.dispatches.late(RECLAIM_PAGE)):
            done = await core.observed("dead_letter", core.store.write(partial(end, late=late)))
            for row, ended in done:
                self.told(row, ended)
            if not done or len(late) < RECLAIM_PAGE:
                break
        for asking in await core.store.read(late_asking) if core.has_budgets else ():
            change = core.store.write(partial(end_asking, asking=asking), key=asking.thread_id)
            if await core.observed("dead_letter", change) is not None:
                await self.told_cancelled(asking, "dead_letter")

    async def told_withdrawn(self, dispatch: RunDispatch, ended: RunRecord | None) -> RunDispatch:
        """Publish the end of a withdrawn run after the commit."""
        cancelled = self.told(dispatch, ended)
        await self._pass_on_question()
        await self._events.dispatch_happened("RunCancelled", cancelled)
        return cancelled

    def ended_in(
        self, tx: Transaction, dispatch: RunDispatch, accept: Accept | None = None
    ) -> tuple[RunDispatch, RunRecord | None]:
        """End a run in the transaction that ends the run's dispatch without an acknowledgement.

        Return the stored dispatch and the ended run. The caller must call `told` after the commit.
        """
        if dispatch.status not in _RECONCILIATIONS or dispatch.reconciled:
            return dispatch, None
        run = tx.runs.threads.load_run(dispatch.run_id)
        ended = None
        if run is not None and owns(dispatch, run):
            end = derive_termination(dispatch)
            could_not_start = end.detail in _NOT_STARTED and dispatch.executions <= 1
            has_read = dispatch.claimed_at is not None and not could_not_start
            now, unread_ids = tx.now(), set[str]()
            if commands := commands_in(tx, dispatch.dispatch_id):
                tx.runs.dispatches.drop_commands(dispatch.dispatch_id)
                if not self._core.executor.commits_steps(dispatch.thread_id):
                    unread_ids = {one.decision_id for command in commands for _, one in command.decisions}
            ended = run.ended(
                end,
                now=now,
                dispatch_id=dispatch.dispatch_id,
                has_read=has_read,
                unread_ids=unread_ids,
            )
            effects = self._core.effects
            drafts = () if effects is None else tuple(effects.of(tx, ended))
            tx.runs.commit(ThreadCommit(thread_id=run.thread_id, run=ended, outbox=drafts))
            if effects is not None:
                effects.write(tx, ended, accept)
                if run.waiting is not None and not has_read:
                    effects.withdraw(tx, run, has_begun=dispatch.claimed_at is not None)
        tx.runs.dispatches.mark_reconciled([dispatch.dispatch_id])
        return replace(dispatch, reconciled=True), ended

    def told(self, dispatch: RunDispatch, ended: RunRecord | None, outcome: str = "") -> RunDispatch:
        """Count an ended run in the metrics after the commit, and notify the run's effects."""
        if ended is not None:
            operation, usual = _RECONCILIATIONS[dispatch.status]
            self._core.metrics.happened(operation)
            self._core.metrics.runs.add(outcome or usual)
            if self._core.effects is not None:
                self._core.effects.stored(ended)
        return dispatch

    def interrupted_in(self, tx: Transaction, interrupt: Interrupt) -> tuple[Interrupt, EndedRuns]:
        """End the runs that an interrupt superseded, in the transaction of the interrupt."""
        ended = [self.ended_in(tx, row) for row in interrupt.superseded_dispatches]
        return replace(interrupt, superseded_dispatches=tuple(row for row, _ in ended)), ended

    async def reconcile(self, dispatch_id: str) -> None:
        """End the run of an ended dispatch that the process no longer owns.

        Errors are logged, not raised.
        """
        core = self._core
        try:
            row = await core.dispatches.load_dispatch(dispatch_id)
            if row is None or row.reconciled:
                return

            def reconcile(tx: Transaction) -> tuple[RunDispatch, RunRecord | None]:
                tx.lock(thread_lock(row.thread_id))
                return self.ended_in(tx, tx.runs.dispatches.load(dispatch_id) or row)

            self.told(*await core.store.write(reconcile, key=row.thread_id))
        except PostroomError as error:
            _LOG.warning("dispatch.not_reconciled", dispatch_id=dispatch_id, reason=error.describe())

    async def reconcile_all(self) -> None:
        """End each run whose dispatch has already ended, for example by an interrupt."""
        core = self._core
        seen: set[str] = set()
        while rows := await core.observed(
            "list_terminal_dispatches", core.dispatches.unreconciled_dispatches(limit=RECONCILE_PAGE)
        ):
            fresh = [row.dispatch_id for row in rows if row.dispatch_id not in seen]
            seen.update(fresh)
            for dispatch_id in fresh:
                await core.observed("reconcile_terminal_dispatch", self.reconcile(dispatch_id))
            if not fresh:
                break

    def cancelled_in(
        self,
        tx: Transaction,
        run_id: str,
        *,
        seen: RunRecord | None = None,
        termination: TerminationReason | None = None,
    ) -> RunRecord | None:
        """End a run that waits for a person, under the thread's lock; return None if the run does not wait.

        The run ends as cancelled unless `termination` states another reason. Return the run in its state
        before the change. The caller must call `told_cancelled` after the commit.
        """
        run = seen or tx.runs.threads.load_run(run_id)
        is_asking = (
            run is not None
            and run.waiting is not None
            and run.waiting.reason is not WaitingReason.BACKGROUND_TASKS
        )
        if run is None or run.status is not RunStatus.WAITING or not is_asking:
            return None
        is_asked = run.waiting is not None and run.waiting.since_dispatch_id == run.dispatch_id
        row = None if is_asked else tx.runs.dispatches.load(run.dispatch_id or "")  # it brings an answer
        has_read = row is None or row.claimed_at is not None
        end = termination or TerminationReason.cancelled()
        ended = run.ended(end, now=tx.now(), has_read=has_read)
        effects = self._core.effects
        drafts = () if effects is None else tuple(effects.of(tx, ended))
        tx.runs.commit(ThreadCommit(thread_id=run.thread_id, run=ended, replaces=run, outbox=drafts))
        tx.tell(WORK)  # the thread's other work can start now
        if effects is not None:
            effects.write(tx, ended, None)
            effects.withdraw(tx, run, has_begun=row is not None and has_read)
        return run

    async def told_cancelled(self, run: RunRecord, outcome: str = "cancelled") -> None:
        """Publish the end of a waiting run after the commit."""
        if self._core.effects is not None:
            self._core.effects.stored(run)
        self._core.metrics.runs.add(outcome)
        await self._pass_on_question()
        await self._events.waiting_cancelled(run)

    async def _pass_on_question(self) -> None:
        """Let another run ask about a budget after the end of the run that asked."""
        if not self._core.has_budgets:
            return
        try:
            await release_abandoned(self._core.store)
        except PostroomError as error:
            _LOG.warning("budgets.not_released", reason=error.describe())

    async def _move_dispatch(
        self,
        operation: str,
        dispatch: RunDispatch,
        move: Callable[[RunDispatch, int], RunDispatch],
        *,
        outcome: str = "",
        failed: CanonicalEventDraft | None = None,
        why: _Why = "failed",
    ) -> RunDispatch:
        core = self._core
        written: list[tuple[RunDispatch, RunRecord | None]] = []

        def moved(
            tx: Transaction, accept: Accept = NOWHERE
        ) -> tuple[RunDispatch, RunRecord | None] | StaleClaim:
            if accept is NOWHERE:
                tx.lock(thread_lock(dispatch.thread_id))
            if written and tx.runs.dispatches.load(dispatch.dispatch_id) == written[0][0]:
                return written[0]  # the write succeeded; only its reply was lost
            step = move
            if cancelled_by(
                commands_in(tx, dispatch.dispatch_id)
            ):  # the run is cancelled, whatever its result is
                step = lambda row, now: row.released(now=now)  # noqa: E731 - selects one of two functions
            row = tx.runs.dispatches.move_owned(dispatch.claim_proof, step)
            if isinstance(row, StaleClaim):
                return row
            if failed is not None:
                tx.events.append((failed,))
            row = apply_stored_commands(tx, row)
            if why != "released" and row.status is RunDispatchStatus.QUEUED and core.effects is not None:
                core.effects.put_back(tx, row, is_stop=why == "stopped")
            written[:] = [self.ended_in(tx, row, accept)]
            return written[0]

        moved.__name__ = operation
        row, ended = await core.retried(partial(self._written_end, operation, dispatch.thread_id, moved))
        if row.status is RunDispatchStatus.CANCELLED:
            await self._events.dispatch_happened("RunCancelled", row)
        return self.told(row, ended, outcome)

    async def _written_end(self, operation: str, thread_id: str, change: Callable[..., T | StaleClaim]) -> T:
        write: Awaitable[T] = self._core.store.write(change, key=thread_id)
        thread_ids = frozenset[str]()
        while True:
            try:
                return await self._core.observed(operation, write)
            except ThreadsNeeded as needed:
                thread_ids |= needed.thread_ids
                write = self.submissions.accepting(thread_ids, change, key=thread_id, within=thread_id)

    async def _tell_failure(self, dispatch: RunDispatch, sink: EventSink, error: str) -> None:
        await self._events.dispatch_happened("RunErrored", dispatch, error=error)
        await sink.emit(finish_event(dispatch, TerminationReason.error(error), None))


def commands_in(tx: Transaction, dispatch_id: str) -> list[LiveRunCommand]:
    """Return the stored commands for the run of an active dispatch."""
    return [command for _, command in tx.runs.dispatches.commands((dispatch_id,))]


def cancelled_by(commands: Sequence[LiveRunCommand]) -> TerminationReason | None:
    """Return the end of a run that one of its stored commands cancels, or None if none does."""
    reasons = (command.reason for command in commands if command.cancels)
    return next(map(TerminationReason.cancelled, reasons), None)


def apply_stored_commands(tx: Transaction, row: RunDispatch) -> RunDispatch:
    """Apply the stored commands of an active run when the dispatch is queued again.

    A cancelled run is withdrawn. Unread decisions are kept for the next execution, which is not due before
    these decisions are final. The caller locks the thread.
    """
    commands = commands_in(tx, row.dispatch_id)
    if not commands or row.status is not RunDispatchStatus.QUEUED:
        return row
    if (end := cancelled_by(commands)) is not None:  # the end of the run reads its other commands
        return tx.runs.dispatches.cancel(row.dispatch_id, end.value) or row
    tx.runs.dispatches.drop_commands(row.dispatch_id)
    run = tx.runs.threads.load_run(row.run_id)
    if run is not None and owns(row, run):
        decisions = [decision for command in commands for decision in command.decisions]
        tx.runs.commit(ThreadCommit(thread_id=run.thread_id, run=with_decisions(run, decisions)))
        due = max([row.available_at, *(decision.held_until for _, decision in decisions)])
        if due > max(row.available_at, tx.now()):
            return tx.runs.dispatches.put(replace(row, available_at=due))
    return row


def with_decisions(run: RunRecord, decisions: Sequence[tuple[str, ToolCallResume]]) -> RunRecord:
    """Return a copy of the run with unread decisions for the next execution."""
    snapshot = run.activation
    if snapshot is None:
        return run
    seeded = (
        *snapshot.seeded_decisions,
        *(decision for decision in decisions if decision not in snapshot.seeded_decisions),
    )
    return replace(
        run,
        answered=(*run.answered, *answers_of(run, decisions)),
        activation=replace(snapshot, seeded_decisions=seeded),
    )


def answers_of(run: RunRecord, decisions: Sequence[tuple[str, ToolCallResume]]) -> list[AnsweredTicket]:
    """Return the open questions of a run that the decisions answer, each with its answer."""
    return [
        AnsweredTicket(ticket=ticket, decision=decision)
        for call, decision in decisions
        for ticket in run.open_tickets
        if ticket.tool_call_id == call
    ]


def convert_result(
    dispatch: RunDispatch, run: RunRecord | None, result: AgentRunResult, instance_id: str
) -> RunDispatchResult:
    """Convert a result to the form that the queue stores."""
    termination = result.termination
    waits = result.waiting is not None or (run is not None and run.status is RunStatus.WAITING)
    failed = termination.type is TerminationKind.ERROR
    return RunDispatchResult(
        run_id=dispatch.run_id,
        dispatch_instance_id=instance_id,
        status=RunStatus.WAITING if waits else termination.run_status,
        termination=termination,
        response=result.response or None,
        error=termination.value if failed else None,
    )


def is_left_open(run: RunRecord, dispatch: RunDispatch) -> bool:
    """Return whether the run is still open, so that the dispatch must be executed further."""
    if run.status is RunStatus.WAITING:
        return run.waiting is None or run.waiting.since_dispatch_id != dispatch.dispatch_id
    return run.status is not RunStatus.DONE


def _still_asking(
    run: RunRecord, result: AgentRunResult, commands: Sequence[LiveRunCommand], *, now: int
) -> tuple[RunRecord, AgentRunResult]:
    """Return a run and the result of its turn, with all questions for which the run waits after this turn.

    The run was resumed by an answer. If it asks a person again, its open questions stay open, and a question
    that it has asked again is closed. If another answer arrived in this turn, the run continues with it.
    """
    calls = {call for command in commands for call, _ in command.decisions}
    former = run.waiting.tickets if run.waiting is not None else ()
    late = [ticket for ticket in former if ticket.tool_call_id in calls]
    waiting, end = result.waiting, result.termination.type
    if waiting is None and (
        end is TerminationKind.SUSPENDED or (late and end is TerminationKind.NATURAL_END)
    ):
        waiting = RunWaitingState(reason=WaitingReason.USER_INPUT, message=result.response or None)
    if waiting is None:
        return run, result
    new = {ticket.question: ticket for ticket in waiting.tickets}
    calls = {ticket.tool_call_id for ticket in waiting.tickets}
    kept, answered, whose = list[RunWaitingTicket](), list[AnsweredTicket](), agent_of(run.thread_id)
    for ticket in former:
        is_open = ticket in run.open_tickets and ticket.tool_name != BUDGET_TOOL and not ticket.goes_on(now)
        if not (ticket in late or is_open):
            continue
        again = None if ticket in late else new.get(ticket.question)
        if again is None or (again.tool_call_id, again.asked) == (ticket.tool_call_id, ticket.asked):
            kept.append(ticket)
        elif ticket.tool_call_id not in calls:
            name, number = whose[1] if whose else "the agent", number_of(run.run_id, again)
            answered.append(AnsweredTicket.asked_again(ticket, name, number, now=now))
    run = replace(run, answered=(*run.answered, *answered))
    calls = {ticket.tool_call_id for ticket in kept}
    tickets = [ticket for ticket in waiting.tickets if ticket.tool_call_id not in calls]
    waiting = replace(waiting, tickets=(*tickets, *kept))
    return run, replace(result, waiting=waiting, termination=TerminationReason.suspended())


def as_ended(
    run: RunRecord,
    dispatch: RunDispatch,
    result: AgentRunResult,
    answer_id: str | None,
    *,
    now: int,
    commands: Sequence[LiveRunCommand] = (),
) -> tuple[RunRecord, Message | None]:
    """Return the run after an execution, and the answer as a message.

    `answer_id` is None if no answer has to be stored. `commands` are the stored commands of the run, whose
    decisions the run has not read.
    """
    answer, waiting = None, result.waiting
    if answer_id is not None:
        is_stopped = result.termination.type in (TerminationKind.CANCELLED, TerminationKind.STOPPED)
        answer = Message(
            role=Role.ASSISTANT,
            content=(ContentBlock(text=result.response),),
            id=answer_id,
            metadata=MessageMetadata(run_id=run.run_id, step_index=run.steps, is_stopped=is_stopped),
        )
    if waiting is None and result.termination.type is TerminationKind.SUSPENDED:
        waiting = RunWaitingState(reason=WaitingReason.USER_INPUT)
    answer_ids = () if answer is None else (answer_id or "",)
    after = replace(
        run,
        final_output=result.response or run.final_output,
        steps=max(run.steps, result.steps),
        usage=run.usage + result.usage,
        output_message_ids=(*run.output_message_ids, *answer_ids),
        dispatch_id=dispatch.dispatch_id,
    )
    if waiting is None:
        given = [decision for command in commands for decision in command.decisions] if commands else ()
        unread_ids = [decision.decision_id for _, decision in given] if given else ()
        return after.ended(result.termination, now=now, unread_ids=unread_ids), answer
    is_held = waiting.tickets and all(ticket.tool_name == BUDGET_TOOL for ticket in waiting.tickets)
    waits = replace(
        after,
        status=RunStatus.WAITING,
        waiting=replace(waiting, since_dispatch_id=dispatch.dispatch_id),
        # If a budget held the run at first, this was the first execution.
        started_at=run.started_at if run.started_at is not None or is_held else dispatch.claimed_at,
        updated_at=max(now, run.updated_at),
    )
    return waits, answer


def finish_event(dispatch: RunDispatch, termination: TerminationReason, response: str | None) -> RunFinish:
    """Return the last event of an execution."""
    result = None if response is None else {"response": response}
    return RunFinish(
        thread_id=dispatch.thread_id, run_id=dispatch.run_id, termination=termination, result=result
    )


def owns(dispatch: RunDispatch, run: RunRecord) -> bool:
    """Return whether a run ends together with a dispatch."""
    is_its = run.thread_id == dispatch.thread_id and run.dispatch_id in (None, dispatch.dispatch_id)
    return is_its and run.is_open


def derive_termination(dispatch: RunDispatch) -> TerminationReason:
    """Return the reason for a run's end, derived from the end of its dispatch."""
    is_dead, end = dispatch.status is RunDispatchStatus.DEAD_LETTER, dispatch.termination
    if end is not None and end.type is (TerminationKind.ERROR if is_dead else TerminationKind.CANCELLED):
        return end
    if is_dead:
        return TerminationReason.error(dispatch.run_error or dispatch.last_error or "dead letter")
    return TerminationReason.cancelled()
