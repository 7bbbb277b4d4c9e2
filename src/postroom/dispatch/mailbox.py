"""The mailbox, which durably accepts work for conversations and executes one run per thread at a time.

To follow a submission, read the modules in this order: `submission` checks and plans the request, and stores
the run with its dispatch. `worker` claims and executes the run, `completion` writes its end, and `recovery`
handles unfinished work.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from random import Random
from types import TracebackType
from typing import Final, Self, TypeVar

from postroom.concurrency import SystemTimer
from postroom.contracts.activation import BusyPolicy, RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Timer, milliseconds, time_ordered_ids
from postroom.contracts.dispatch import Interrupt, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import InvalidRecord, InvalidSubmission, MailboxClosed
from postroom.contracts.events import CanonicalEventDraft, RuntimeEventDurability
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.live import LiveChannels
from postroom.contracts.messages import DeliveryMode, Message, PendingMessage, PendingVersion
from postroom.contracts.records import replace
from postroom.contracts.registry import RegistrySet, VersionedRegistryStore
from postroom.contracts.runs import AnsweredTicket, RunRecord
from postroom.contracts.tools import ToolCallResume
from postroom.contracts.waking import Accept
from postroom.dispatch.completion import Completion, MailboxWorker, Workers
from postroom.dispatch.config import MailboxConfig, MailboxLifecycleConfig
from postroom.dispatch.control import Control
from postroom.dispatch.core import Core, Pinning
from postroom.dispatch.events import CheckpointRepair, ServerEventPublisher, ServerEvents
from postroom.dispatch.inspection import Inspection, Reason
from postroom.dispatch.metrics import MailboxMetrics
from postroom.dispatch.recovery import Lifecycle, MailboxLifecycleHandle, Recovery, Rounds
from postroom.dispatch.sinks import Capture, CapturingSink, EventStream
from postroom.dispatch.submission import (
    MailboxSubmitResult,
    Prepared,
    Submission,
    Submissions,
    build_dispatch,
    reusable_waiting_run,
)
from postroom.dispatch.worker import DispatchAttempt, Dispatcher
from postroom.ports import RunEffects
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import Joined, Transaction

T = TypeVar("T")
_COMMITS: Final = "use an executor that commits its steps with their events, such as AgentRuntime"


class Mailbox:
    """A durable queue of runs, with an executor and stores.

    `async with Mailbox(...) as mailbox:` recovers unfinished work, starts the periodic work, and drains the
    mailbox at the end. Without `async with`, call `start_lifecycle` at the start and `aclose` at the end.
    """

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        executor: RunDispatchExecutor,
        stores: RunStores,
        *,
        consumer_id: str | None = None,
        config: MailboxConfig | None = None,
        live: LiveChannels | None = None,
        publisher: ServerEventPublisher | None = None,
        origin: str = "server",
        timer: Timer | None = None,
        random: Random | None = None,
        metrics: MailboxMetrics | None = None,
        effects: RunEffects | None = None,
    ) -> None:
        """Create a mailbox. `consumer_id` identifies the mailbox in claims, and defaults to a unique id.

        Raises:
            InvalidSubmission: The executor commits to a different storage than `stores`.
            InvalidRecord: The consumer id or the origin of the events is blank.
        """
        _refuse_other_place(executor, stores)
        random = random or Random()  # noqa: S311 - spreads retries; not a secret
        self.new_id = new_id = time_ordered_ids(stores.clock, random)
        self.consumer_id = consumer_id = f"mailbox-{new_id()}" if consumer_id is None else consumer_id
        if not consumer_id.strip():
            raise InvalidRecord(
                "the mailbox's consumer_id must not be blank",
                value=consumer_id,
                remedy="pass a unique name for this mailbox, or leave out consumer_id",
            )
        self.metrics = metrics or MailboxMetrics()
        self._core = core = Core(
            executor=executor,
            stores=stores,
            consumer_id=consumer_id,
            config=config or MailboxConfig(),
            timer=timer or SystemTimer(),
            random=random,
            new_id=new_id,
            metrics=self.metrics,
            live=live,
            effects=effects,
        )
        self.complete = core.claiming.complete
        """Awaits a call of this mailbox; if the caller is cancelled, the call still continues."""
        executor.listen_to(live)
        place = stores.coordinator.storage_identity
        self.events = events = ServerEvents(publisher, origin, place=place, metrics=self.metrics)
        self.workers = workers = Workers()
        self._completion = completion = Completion(core, events)
        self._control = control = Control(core, events, completion, workers)
        self._dispatcher = dispatcher = Dispatcher(core, workers, events, completion)
        self._submissions = submissions = Submissions(core, events, completion, dispatcher, control)
        completion.submissions = submissions
        self._recovery = Recovery(core, events, completion, dispatcher, submissions)
        self._rounds = Rounds(core, completion, dispatcher, self._recovery, submissions)
        self._inspection = Inspection(core, dispatcher, submissions)
        self._lifecycle = Lifecycle(core, self._recovery, self._rounds, dispatcher)

    # Accepting work.

    async def submit(
        self, request: RunActivation, *, strategy: BusyPolicy = BusyPolicy.INTERRUPT
    ) -> tuple[MailboxSubmitResult, EventStream]:
        """Execute a request now, and stream the events of the run.

        By default, the thread's active run is cancelled.

        Raises:
            InvalidSubmission, UnknownRun, ForeignThread, RunNotOpen: The request is invalid, or does not
                fit the state of its thread.
            SubmissionRejected, QueueFull: The strategy `reject` or `queue` refused the request.
            ActiveRunConflict: The active run did not stop; nothing was written.
            DeliveryBlocked: A pending barrier precedes the message; nothing was written.
        """
        self._check_open()
        return await self._submissions.submit(request, strategy=strategy)

    async def submit_background(
        self,
        request: RunActivation,
        *,
        strategy: BusyPolicy = BusyPolicy.QUEUE,
        first: Joined | None = None,
    ) -> MailboxSubmitResult:
        """Queue work.

        The transaction calls `first` before it stores the work.

        `first` is called in the same transaction before the work is stored. If `first` raises an error,
        nothing is stored.

        Raises:
            InvalidSubmission, UnknownRun, ForeignThread, RunNotOpen: The request is invalid, or does not fit
                the state of its thread.
            SubmissionRejected: The thread is busy and the strategy is `reject`.
            QueueFull: The thread already has the maximum number of pending messages or queued runs.
            DedupeKeyInUse: An open dispatch of the thread already has the key.
        """
        self._check_open()
        return await self._submissions.submit_background(request, strategy=strategy, first=first)

    async def submit_many(
        self, requests: Sequence[RunActivation], *, progress: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str, bool]]:
        """Queue work for many threads in commits of up to 500 requests.

        For each request, return the thread, the run, and whether the call created the run. All requests are
        validated before the first commit. After each commit, `progress` is called with the number of stored
        requests and the total. A request whose hints name an existing run is not stored.

        Raises:
            InvalidSubmission: A request is invalid; the text begins with its index. Nothing was written.
            QueueFull, DedupeKeyInUse, DuplicateRecord: A request was refused; earlier commits remain.
        """
        self._check_open()
        return await self._submissions.submit_many(requests, progress)

    async def submit_live_then_queue(
        self, request: RunActivation, expected_run_id: str | None = None
    ) -> MailboxSubmitResult:
        """Pass messages to the thread's active run, or queue the messages if the run does not accept them.

        Messages are delivered at least once.
        """
        self._check_open()
        return await self._submissions.submit_live_then_queue(request, expected_run_id)

    # Controlling runs.

    async def cancel(self, id: str, reason: str | None = None) -> bool:
        """Cancel a run, and record the reason; return False if no such run is open.

        `id` is a dispatch, run or thread id.
        """
        return await self._control.cancel(id, reason)

    async def cancel_waiting(self, run: RunRecord, *, reason: str | None = None) -> bool:
        """End a run that waits for a person, and record the reason.

        A run that works with another answer is cancelled, too. Return False if the run has changed since the
        caller read it.

        Raises:
            StoreError: The end could not be written, and the run still waits.
        """
        return await self._control.cancel(run.run_id, reason, seen=run)

    async def interrupt(self, thread_id: str) -> Interrupt:
        """Supersede a thread's queued runs and ask the active run to end, without waiting for the end."""
        return await self._control.interrupt(thread_id)

    def send_decision(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Pass a decision to an active run in the current process; return False if no run accepts it."""
        return self._control.send_decision(id, tool_call_id, resume)

    async def send_decision_live(self, id: str, tool_call_id: str, resume: ToolCallResume) -> bool:
        """Pass a decision to an active run in any process; return False if no run accepts the decision.

        After False, the caller must submit the decision.
        """
        return await self._control.send_decision_live(id, tool_call_id, resume)

    async def take_back_decision(
        self,
        thread_id: str,
        run_id: str,
        decision_id: str,
        *,
        beside: Collection[str] = (),
        instead: Callable[[Transaction, AnsweredTicket], ToolCallResume | None] | None = None,
    ) -> AnsweredTicket | None:
        """Withdraw a decision; return None if the run has already read the decision.

        `instead` may return a decision that closes the question. Without `instead`, the question is open
        again. `instead` may read the threads in `beside`, which are locked.
        """
        return await self._control.take_back_decision(
            thread_id, run_id, decision_id, beside=beside, instead=instead
        )

    def reconnect_sink(self, thread_id: str, stream: EventStream) -> bool:
        """Stream the events of the thread's active run to a reader; return False without an active run."""
        return self._dispatcher.reconnect(thread_id, stream)

    # Pending messages.

    async def pending(self, thread_id: str) -> tuple[PendingMessage, ...]:
        """Return the messages of a thread that no run has read yet, in order."""
        return await self._core.threads.pending_messages(thread_id)

    async def append_pending(
        self, thread_id: str, messages: Sequence[Message], mode: DeliveryMode | None = None
    ) -> tuple[PendingMessage, ...]:
        """Store pending messages for the next run of the thread, without starting a run."""
        request = self._submissions.checked(RunActivation.new(thread_id, messages), background=True)
        return await self._core.threads.append_pending(
            request.thread_id, request.messages, mode or DeliveryMode()
        )

    async def deliver(
        self,
        thread_id: str,
        messages: Sequence[Message],
        mode: DeliveryMode,
    ) -> MailboxSubmitResult | None:
        """Store messages for runs of the thread, with the delivery rules in `mode`.

        Return the run that the messages started, or None if the messages wait for a run.

        Waiting messages can be edited and withdrawn until a run reads them. Known message ids are ignored, so
        a repeated call is safe.

        Raises:
            InvalidSubmission: As for `submit_background`; nothing was written.
        """
        self._check_open()
        return await self._submissions.deliver(thread_id, messages, mode)

    async def accepting(
        self, thread_ids: Collection[str], change: Callable[[Transaction, Accept], T], *, key: str = ""
    ) -> T:
        """Execute `change` in a transaction, in which `change` may deliver messages to runs.

        `change` receives a function that delivers a message to a thread. The threads are locked before the
        change, and runs start after the commit.

        Raises:
            StoreError, or any error of the change: Nothing was written.
        """
        return await self._submissions.accepting(thread_ids, change, key=key)

    async def edit_pending(
        self, thread_id: str, message: Message, *, expected_revision: int | None = None
    ) -> PendingMessage:
        """Replace a pending message that no run has read yet.

        Raises:
            AlreadyConsumed, UnknownMessage, VersionConflict: The message was read, does not exist, or was
                edited in the meantime.
        """
        return await self._core.threads.edit_pending(thread_id, message, expected_revision=expected_revision)

    async def retract_pending(
        self, thread_id: str, message_id: str, *, expected_revision: int | None = None
    ) -> PendingMessage:
        """Withdraw a pending message that no run has read yet.

        Raises:
            AlreadyConsumed, UnknownMessage, VersionConflict: As for `edit_pending`.
        """
        return await self._core.threads.retract_pending(
            thread_id, message_id, expected_revision=expected_revision
        )

    async def reorder_pending(
        self, thread_id: str, order: Sequence[str], *, expected: Sequence[PendingVersion] | None = None
    ) -> tuple[PendingMessage, ...]:
        """Change the order of the pending messages of a thread.

        Raises:
            VersionConflict, InvalidRecord: The pending messages have changed, or the order names other
                messages.
        """
        return await self._core.threads.reorder_pending(thread_id, order, expected=expected)

    # Inspecting the queue.

    async def list_dispatches(
        self,
        thread_id: str,
        statuses: Sequence[RunDispatchStatus] | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[RunDispatch, ...]:
        """Return a thread's dispatches, ordered by priority and age."""
        return await self._core.dispatches.list_dispatches(thread_id, statuses, limit=limit, offset=offset)

    async def why_not(self, dispatch_id: str) -> Reason:
        """Return the reason why a dispatch is not executing.

        Raises:
            UnknownDispatch: No dispatch has this id.
        """
        return await self._inspection.why_not(dispatch_id)

    async def hasten(self, dispatch_id: str) -> None:
        """Make a delayed queued dispatch due immediately.

        Raises:
            IllegalTransition: The dispatch is not queued, or is already due.
        """
        self._check_open()
        await self._inspection.hasten(dispatch_id)

    async def dead_letters(self, *, after: RunDispatch | None = None) -> tuple[RunDispatch, ...]:
        """Return a page of the dead letters, oldest first, starting after `after`."""
        return await self._inspection.dead_letters(after=after)

    async def replay_dead_letter(self, dispatch_id: str) -> MailboxSubmitResult:
        """Retry a dead letter as a new run with the same messages.

        Raises:
            UnknownDispatch, UnknownRun, IllegalTransition: No dead letter has this id, or its run no longer
                exists.
        """
        self._check_open()
        return await self._inspection.replay(dispatch_id)

    async def discard_dead_letter(self, dispatch_id: str) -> RunDispatch:
        """Delete a dead letter permanently.

        Raises:
            UnknownDispatch, IllegalTransition: No dead letter has this id.
        """
        return await self._inspection.discard(dispatch_id)

    # Lifecycle.

    async def recover(self) -> int:
        """Recover work that a crash left unfinished, and start due work.

        Return the number of recovered dispatches, runs and threads.
        """
        taken_up = await self._recovery.recover()
        await self._rounds.poll()
        return taken_up

    async def run_sweep(self) -> None:
        """Release expired leases, and end runs whose dispatches have ended."""
        await self._rounds.sweep()

    async def unexecuted_claims(self) -> tuple[RunDispatch, ...]:
        """Return the dispatches that the mailbox has claimed but does not execute.

        A claim that is currently being stored may be included.

        Raises:
            StoreError: The store cannot be read.
        """
        return await self._dispatcher.unexecuted()

    async def release_unexecuted_claims(self) -> None:
        """Release the claims that the mailbox does not execute, without counting an attempt."""
        await self._dispatcher.release_unexecuted()

    async def run_gc(self) -> None:
        """Delete ended rows after the retention period, and remove idle workers."""
        await self._rounds.collect_garbage()

    async def poll(self) -> int:
        """Start due work on any thread; return the number of started runs."""
        return await self._rounds.poll()

    def start_lifecycle(self, config: MailboxLifecycleConfig | None = None) -> MailboxLifecycleHandle:
        """Start recovery and the periodic work in the background.

        Do nothing if the periodic work has already started.

        Raises:
            LifecycleBusy: The periodic work is being started or stopped at the moment.
        """
        self._check_open()
        return self._lifecycle.start(config or MailboxLifecycleConfig())

    async def start_lifecycle_ready(
        self, config: MailboxLifecycleConfig | None = None
    ) -> MailboxLifecycleHandle:
        """Recover unfinished work, and start the periodic work before returning.

        Raises:
            StoreError: All attempts at recovery failed, so nothing was started.
        """
        self._check_open()
        return await self._lifecycle.start_ready(config or MailboxLifecycleConfig())

    def lifecycle_is_running(self) -> bool:
        """Return whether the periodic work is running."""
        return self._lifecycle.is_running

    async def drain(
        self, grace: timedelta | None = None, *, waits_for: Callable[[str], bool] | None = None
    ) -> None:
        """Stop claiming runs, and wait for active runs.

        Runs that outlast the grace period are stopped and queued again. `waits_for` decides by thread id
        whether a run gets the grace period. A stopped execution counts as an interruption, not as a failed
        attempt.
        """
        dispatcher = self._dispatcher
        dispatcher.accepting = False
        grace_ms = milliseconds(self._core.config.drain_grace if grace is None else grace)
        alarm = self._core.tasks.start(self._after(grace_ms), name="drain") if grace_ms else None
        stays = waits_for if alarm is not None else None
        if alarm is None or stays is not None:
            dispatcher.leave(stays)
        await self._core.claiming.settle()
        if self._core.is_leaving or stays is not None:
            # this includes the runs that were just claimed
            dispatcher.leave(None if self._core.is_leaving else stays)
        await dispatcher.idle()
        if alarm is not None:
            alarm.cancel()

    async def aclose(self, grace: timedelta | None = None) -> None:
        """Stop the periodic work, drain the mailbox, and close the mailbox.

        A repeated call has no effect. The caller must close the stores. A cancelled call closes the mailbox
        immediately, like `abandon`.
        """
        if self._core.tasks.closed:
            return
        try:
            await self._lifecycle.shutdown()
            await self.drain(grace)
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Close the mailbox immediately without releasing claims.

        Active runs are recovered later, as after a crash.
        """
        await self._lifecycle.shutdown()
        await self._core.claiming.close()
        await self._core.tasks.close()

    async def __aenter__(self) -> Self:
        """Recover unfinished work and start the periodic work."""
        await self.start_lifecycle_ready()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Drain the mailbox, and close the mailbox."""
        await self.aclose()

    # Further configuration.

    def with_pinned_registry(self, registry: VersionedRegistryStore, scope: str) -> Self:
        """Pin runs to the configuration versions that a registry publishes.

        Raises:
            InvalidRecord: The scope is not a valid name.
        """
        self._core.pinning = Pinning(self._core.executor, registry, scope)
        return self

    def with_runtime_event_capture(self, durability: RuntimeEventDurability, origin: str) -> Self:
        """Store events of executions in the event log, unless `durability` is `disabled`.

        Raises:
            InvalidSubmission: The executor does not commit its steps together with their events.
            InvalidRecord: The origin is blank.
        """
        if durability is RuntimeEventDurability.DISABLED:
            self._core.capture = None
            return self
        executor = self._core.executor
        if not executor.has_commit_coordinator():
            raise InvalidSubmission(
                "runtime event capture requires an executor with CommitCoordinator", remedy=_COMMITS
            )
        if not executor.stages_events():
            raise InvalidSubmission(
                "runtime event capture requires an executor with StagedCommitCoordinator", remedy=_COMMITS
            )
        if not origin.strip():
            raise InvalidRecord("the origin for captured events must not be blank", value=origin)
        self._core.capture = Capture(durability, origin)
        return self

    @property
    def runtime_event_capture(self) -> Capture | None:
        """The rules for storing the events of executions, or None if no events are stored."""
        return self._core.capture

    # The single steps of a submission, for code that builds on them.

    async def prepare_run_for_dispatch(self, request: RunActivation) -> Prepared:
        """Store the run of a request and the messages, but no dispatch.

        Raises:
            InvalidSubmission, UnknownRun, ForeignThread, RunNotOpen: The request is invalid, or does not fit
                the state of its thread.
        """
        return await self._submissions.prepare(Submission(request=request, is_queued=False))

    def build_dispatch(self, request: RunActivation) -> RunDispatch:
        """Return the dispatch of a prepared request, which the caller must enqueue.

        A server shutdown counts as a failed attempt, unless the request sets `max_interruptions`.

        Raises:
            InternalError: The request was not prepared.
        """
        core = self._core
        dispatch = build_dispatch(request, config=core.config, new_id=core.new_id, now=core.now())
        return replace(dispatch, max_interruptions=request.delivery.max_interruptions)

    async def reusable_waiting_run_id(self, thread_id: str) -> str | None:
        """Return the id of the waiting run that new input to a thread would resume, or None."""
        run = reusable_waiting_run(await self._core.threads.submission_state(thread_id))
        return None if run is None else run.run_id

    async def materialize_pinned_registry_set(self, resolution_id: str) -> RegistrySet | None:
        """Return the registry contents to which a run is pinned, or None without a registry.

        Raises:
            InternalError: The pin names no registry.
        """
        return await self._core.pinning.materialize(resolution_id)

    def get_or_create_worker(self, thread_id: str) -> MailboxWorker:
        """Return the worker of a thread in the current process."""
        return self.workers.get_or_create(thread_id)

    async def try_dispatch_next(self, thread_id: str) -> DispatchAttempt:
        """Claim and start the thread's next due dispatch, if the thread's worker is idle."""
        return await self._dispatcher.try_dispatch_next(thread_id)

    async def recover_prepared_runs_missing_dispatch(self, queued_thread_ids: Sequence[str] = ()) -> int:
        """Create the missing dispatches of prepared runs, except on the named threads."""
        return await self._recovery.dispatch_prepared_runs(queued_thread_ids)

    async def repair_thread_message_checkpoint_events(self) -> int:
        """Publish the input of every run to the event log again; return the number of messages."""
        return await self._recovery.repair.repair_all()

    @property
    def checkpoint_repair(self) -> CheckpointRepair:
        """The part of the mailbox that repairs the event log."""
        return self._recovery.repair

    def wrap_dispatch_runtime_event_sink(
        self,
        inner: EventSink,
        dispatch: RunDispatch,
        buffer: list[CanonicalEventDraft],
        *,
        resumed: bool = False,
    ) -> EventSink:
        """Return a sink that adds events to `buffer` before passing them to `inner`.

        If no events are stored, return `inner`.
        """
        capture = self._core.capture
        return inner if capture is None else CapturingSink(inner, buffer, capture, dispatch, resumed=resumed)

    async def gc_idle_workers(self) -> None:
        """Remove the workers of threads without open work."""
        await self._rounds.forget_idle_workers()

    async def settled(self) -> None:
        """Wait until the current process executes no run."""
        await self._dispatcher.idle()

    async def _after(self, grace_ms: int) -> None:
        await self._core.timer.sleep(grace_ms)
        self._dispatcher.leave()

    def _check_open(self) -> None:
        if self._core.tasks.closed or not self._dispatcher.accepting:
            raise MailboxClosed("the mailbox accepts no new runs: it is draining or closed")


def _refuse_other_place(executor: RunDispatchExecutor, stores: RunStores) -> None:
    coordinator = executor.commit_coordinator()
    place = None if coordinator is None else coordinator.storage_identity
    if place is not None and place != stores.threads.storage_identity:
        raise InvalidSubmission(
            "mailbox run_store must match executor CommitCoordinator: the two write to different databases",
            value=place,
            remedy="open the mailbox with the executor's stores",
        )
