"""Claims due dispatches, renews the claims, and executes the runs; every execution gets a result.

    free ─▶ reserved ─▶ claimed ─▶ request rebuilt ─▶ started ─▶ executor ─▶ ended ─▶ the thread's next
                                     │ impossible                  │ lease lost
                                     ▼                             ▼
                                   dead letter                   stopped, nothing written

One task handles a run from its claim to its end, and one timer renews all claims. If an executor ignores its
cancellation, its task is abandoned, and the final steps are performed without it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from traceback import format_exception
from typing import Any, cast

from postroom.contracts.activation import Recovery, RunActivation, RunHints
from postroom.contracts.clock import milliseconds
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus, deadline_passed
from postroom.contracts.errors import (
    DeadlinePassed,
    DuplicateRecord,
    ExecutorFailed,
    ExecutorMisbehaved,
    ForeignThread,
    InferenceError,
    InferenceFailed,
    InputError,
    InternalError,
    InvalidActivation,
    PostroomError,
    ResolveFailed,
    RunTimedOut,
    StaleClaim,
    StateError,
    StoreCorrupt,
    StoreError,
    UnknownMessage,
    UnknownRun,
)
from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope, EventVisibility
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.limits import Held, Spending
from postroom.contracts.live import LiveRunCommand
from postroom.contracts.messages import (
    Boundary,
    DeliveryMode,
    Json,
    Message,
    PendingMessage,
    SeqRange,
    select_pending,
    storable,
)
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit, ThreadState, thread_lock
from postroom.contracts.runs import (
    RunMessageInput,
    RunRecord,
    RunStatus,
    RunWaitingState,
    TerminationReason,
    WaitingReason,
)
from postroom.dispatch.completion import (
    ClaimAsk,
    Claimed,
    Completion,
    Job,
    LeaseEnd,
    MailboxWorker,
    OutcomeKind,
    Workers,
    WorkerStatus,
    claimed_next,
    classify,
    derive_termination,
    finish_event,
    is_left_open,
)
from postroom.dispatch.core import Core
from postroom.dispatch.events import ServerEvents
from postroom.dispatch.sinks import CapturingSink, EventStream, ReconnectableEventSink, RunCoordinator
from postroom.log import get_logger
from postroom.ports import RunControl
from postroom.stores.changes import commands_to
from postroom.stores.runs.dispatches import state_look
from postroom.stores.runs.ports import ThreadStore
from postroom.stores.store import Transaction


@dataclass(frozen=True, slots=True, eq=False)
class PendingInput:
    """The pending messages of a thread that one run can read."""

    core: Core
    events: ServerEvents
    coordinator: RunCoordinator
    thread_id: str
    run_id: str

    async def waiting(self, boundary: Boundary, *, group: str | None = None) -> tuple[Message, ...]:
        """Return the pending messages that the run would read at a boundary, in order."""

        def look(tx: Transaction) -> tuple[PendingMessage, ...]:
            return self._leading(tx, tx.runs.threads.load_run(self.run_id), boundary, group)

        pending = await self.core.retried(lambda: self.core.store.read(look))
        return tuple(record.message for record in select_pending(pending, boundary, self.run_id, group=group))

    async def freeze(
        self, boundary: Boundary, *, group: str | None = None, only: Collection[str] | None = None
    ) -> tuple[Message, ...]:
        """Commit the pending messages that the run reads at a boundary, and return the messages.

        `group` selects the messages of one group. `only` selects messages by id.

        Raises:
            StaleClaim: The worker no longer owns the run, and the messages stay pending.
        """
        core, thread_id, count = self.core, self.thread_id, len(self.coordinator.staged)
        written: list[tuple[tuple[Message, ...], tuple[Message, ...], int]] = []

        def freeze(tx: Transaction) -> tuple[tuple[Message, ...], tuple[Message, ...], int] | StaleClaim:
            tx.lock(thread_lock(thread_id))
            if written and tx.runs.messages.named(thread_id, [message.id or "" for message in written[0][0]]):
                return written[0]  # the write succeeded; only its reply was lost
            state = tx.runs.state(state_look(thread_id, run_id=self.run_id))
            pending = self._leading(tx, state.run, boundary, group) if state.waiting else ()
            taken = select_pending(pending, boundary, self.run_id, group=group)
            if only is not None:
                taken = tuple(entry for entry in taken if entry.message.id in only)
            messages = read = tuple(entry.message for entry in taken)
            if taken:
                done = tx.runs.commit(self.coordinator.owned(self._commit(state, taken, messages)))
                if isinstance(done, StaleClaim):
                    return done
                if core.effects is not None:
                    is_selected = only is not None
                    read = core.effects.receive(tx, thread_id, self.run_id, messages, told=is_selected)
            frozen = messages, read, state.message_count + 1
            written[:] = [frozen] if taken else []
            return frozen

        messages, read, first_seq = await core.retried(lambda: core.store.write(freeze, key=thread_id))
        if messages:
            del self.coordinator.staged[:count]
            await self.events.messages_committed(thread_id, self.run_id, messages, first_seq=first_seq)
        return read

    async def stage(self, boundary: Boundary, messages: Sequence[Message]) -> None:
        """Add messages that arrived during the run to the pending messages of the run.

        Messages with known ids are ignored.
        """
        mode = DeliveryMode(boundary=boundary, target_run_id=self.run_id)
        for message in messages:
            try:
                await self.core.threads.append_pending(self.thread_id, (message,), mode)
            except DuplicateRecord:
                continue

    def _leading(
        self, tx: Transaction, run: RunRecord | None, boundary: Boundary, group: str | None
    ) -> tuple[PendingMessage, ...]:
        resumed = run if run is not None and run.status is RunStatus.WAITING else None
        return tx.runs.messages.leading(self.thread_id, boundary, self.run_id, group=group, resumed=resumed)

    def _commit(
        self, state: ThreadState, taken: Sequence[PendingMessage], messages: tuple[Message, ...]
    ) -> ThreadCommit:
        first_seq, run = state.message_count + 1, state.run
        if run is not None:  # these messages are already part of its input
            before = run.input or RunMessageInput(thread_id=run.thread_id)
            from_seq = before.range.from_seq if before.range else first_seq
            added = replace(
                before,
                range=SeqRange(from_seq=from_seq, to_seq=first_seq + len(messages) - 1),
                trigger_message_ids=(
                    *before.trigger_message_ids,
                    *(message.id or "" for message in messages),
                ),
            )
            run = replace(run, input=added)
        return ThreadCommit(
            thread_id=self.thread_id,
            messages=messages,
            consumes=tuple(entry.version for entry in taken),
            run=run,
            events=self.events.of_commit(self.thread_id, self.run_id, messages, first_seq=first_seq),
        )


_LOG = get_logger(__name__)
_MAX_SAFETY_MS = 1_000
_TOGETHER_S = 0.002
_MAX_END_S = 0.1
PLACE_KEPT_MS = 250
"""The delay after which a run that was stopped for a submission restarts, if the submission is not stored."""
_LEASES = "leases"
"""The write key of all renewals of claims, no matter which threads the claims belong to."""
_TRACEBACK_KEPT = 16 * 1024
"""Maximum length of a stored traceback.

The end of a traceback is stored, because it shows where the error was raised.
"""
ATTEMPT_FAILED = "RunAttemptFailed"


class Slots:
    """The slots for executions, in total and per tenant, and the queues of waiting threads.

    A free slot goes to the waiting tenant that uses the fewest slots.
    """

    def __init__(self, total: int, per_tenant: int | None) -> None:
        self.total = total
        self._per_tenant = per_tenant
        self._by_tenant: Counter[str] = Counter()
        self._lines: dict[str, dict[str, None]] = {}
        self.waiting: dict[str, str] = {}
        """The tenant of each thread that waits for a slot, keyed by thread."""
        self._freed = asyncio.Event()
        self.used = 0
        """The number of runs that execute or are being claimed."""

    @property
    def free(self) -> int:
        """The number of additional runs that may execute."""
        return max(self.total - self.used, 0)

    def used_by(self, tenant: str) -> int:
        """Return the number of slots that a tenant uses."""
        return self._by_tenant[tenant]

    def waits(self, thread_id: str) -> bool:
        """Return whether a thread waits for a slot."""
        return thread_id in self.waiting

    def take(self, thread_id: str, tenant: str, *, has_turn: bool = True) -> bool:
        """Take a slot, or wait in the queue; return whether a slot was taken.

        An empty tenant means an unknown tenant. Without `has_turn`, threads that already wait come first.
        """
        is_free = self.used < self.total and self.has_room(tenant)
        if is_free and (has_turn or not any(map(self.has_room, self._lines))):
            if thread_id in self.waiting:
                self._leave(thread_id)
            self.used += 1
            self._by_tenant[tenant] += 1
            return True
        self.stand_in_line(thread_id, tenant)
        return False

    def overdraw(self, tenant: str) -> None:
        """Take a slot even if no slot is free, because a person waits for the run."""
        self.used += 1
        self._by_tenant[tenant] += 1

    def has_room(self, tenant: str) -> bool:
        """Return whether a tenant may use another slot."""
        return self._per_tenant is None or not tenant or self._by_tenant[tenant] < self._per_tenant

    def move(self, tenant: str, other: str) -> bool:
        """Move a slot from one tenant to another; return False if the receiving tenant is at its limit."""
        if not self.has_room(other):
            return False
        self._by_tenant[tenant] -= 1
        self._by_tenant[other] += 1
        return True

    def give(self, tenant: str) -> None:
        """Give back a slot that a tenant used."""
        self.used -= 1
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
        self._freed.set()

    async def freed(self, at_most_ms: int) -> bool:
        """Wait until a slot is freed; return False after the time limit."""
        try:
            async with asyncio.timeout(at_most_ms / 1_000):
                await self._freed.wait()
        except TimeoutError:
            return False
        self._freed.clear()
        return True

    def stand_in_line(self, thread_id: str, tenant: str) -> None:
        """Put a thread at the end of the tenant's queue, unless the thread is already queued."""
        if thread_id not in self.waiting:
            self.waiting[thread_id] = tenant
            self._lines.setdefault(tenant, {})[thread_id] = None

    def next_in_line(self) -> str | None:
        """Remove and return the next queued thread of the tenant that uses the fewest slots."""
        if not self.free:
            return None
        may = [tenant for tenant in self._lines if self.has_room(tenant)]
        if not may:
            return None
        tenant = min(may, key=self.used_by)
        thread_id = next(iter(self._lines[tenant]))
        self._leave(thread_id)
        if tenant in self._lines:  # the tenant is now the last among equal ones
            self._lines[tenant] = self._lines.pop(tenant)
        return thread_id

    def _leave(self, thread_id: str) -> None:
        tenant = self.waiting.pop(thread_id)
        del self._lines[tenant][thread_id]
        if not self._lines[tenant]:
            del self._lines[tenant]


class Commands:
    """Receives commands for the active runs of the current process."""

    def __init__(self, core: Core, workers: Workers) -> None:
        """Create the receiver of commands for the given workers."""
        self._core = core
        self._workers = workers
        self._taken: set[tuple[str, str]] = set()
        """The tool calls of active runs whose decisions the executor has accepted, each with its dispatch."""
        self.is_served = False
        """Whether this object listens for commands."""

    def serve(self) -> None:
        """Listen for commands until the mailbox is closed.

        A repeated call has no effect.
        """
        if not self.is_served:
            self.is_served = True
            self._core.tasks.start(self._serve(), name="commands")

    async def _serve(self) -> None:
        core = self._core
        pause = timedelta(milliseconds=milliseconds(core.config.poll_interval))
        with core.store.changes.listen(commands_to(core.consumer_id)) as commands:
            while True:
                await commands.wait(pause)
                if not self._workers.executing:
                    self._taken.clear()
                    continue
                jobs = [worker.job for worker in self._workers.executing.values() if worker.job is not None]
                at_work = {job.dispatch.dispatch_id: job.is_cancelled for job in jobs}
                self._taken = {pair for pair in self._taken if pair[0] in at_work}
                look = partial(_commands, dispatch_ids=tuple(at_work))
                try:
                    state = await core.store.read(look)
                except PostroomError as error:
                    _LOG.warning("commands.not_read", reason=error.describe())
                    continue
                for dispatch_id, command in state:
                    if not (command.cancels and at_work[dispatch_id]):
                        self._hand_over(dispatch_id, command)

    def _hand_over(self, dispatch_id: str, command: LiveRunCommand) -> None:
        executor = self._core.executor
        decide = executor.send_decision
        try:
            if command.gives_way:
                self._workers.give_way(dispatch_id)
            elif command.cancels:
                self._workers.cancel(dispatch_id, executor.cancel)
            for call_id, resume in command.decisions:
                call = dispatch_id, call_id
                if not resume.held_until and call not in self._taken and decide(dispatch_id, call_id, resume):
                    self._taken.add(call)
        except Exception:  # executors are user code; the other commands must still be delivered
            _LOG.exception("run.not_told", dispatch_id=dispatch_id, command=command.kind.value)


def _commands(tx: Transaction, dispatch_ids: Sequence[str]) -> tuple[tuple[str, LiveRunCommand], ...]:
    return tx.runs.dispatches.commands(dispatch_ids)


class DispatchAttempt(StrEnum):
    """The result of an attempt to start work on a thread."""

    CLAIMED = "claimed"
    BUSY = "busy"
    NO_ELIGIBLE = "no_eligible"
    TRANSIENT_ERROR = "transient_error"


class Dispatcher:
    """Claims due dispatches within the limits, executes runs, and stores the starts and ends."""

    def __init__(
        self,
        core: Core,
        workers: Workers,
        events: ServerEvents,
        completion: Completion,
    ) -> None:
        self._core = core
        self._events = events
        self._completion = completion
        self.leases = LeaseKeeper(core)
        """The claims of the runs that this process executes."""
        self._commands = Commands(core, workers)
        self.workers = workers
        self.slots = Slots(core.config.max_concurrent_runs, core.config.max_concurrent_runs_per_tenant)
        self.accepting = True
        """Whether new work is claimed, or False while the mailbox drains."""
        self.is_polled = False
        """Whether the due work of all threads is polled.

        With such a poll, this process need not look for work when a slot becomes free.
        """
        self.failed_claims = 0
        """The number of claims that have failed in a row."""
        self.held: dict[str, int] = {}
        """The time before which no run may start, for each scope of a limit."""
        self._readers: dict[str, ReconnectableEventSink] = {}
        """The readers of queued dispatches that this process will execute, keyed by dispatch."""
        self._failed = dict[str, StoreError]()
        """The errors because of which the ends of executions could not be stored, keyed by claim token."""
        self._ending = set[asyncio.Future[None]]()
        """A future for each run whose end is being stored."""
        self._executing = 0
        self._idle = asyncio.Event()
        self._was_full = False

    async def try_dispatch_next(self, thread_id: str, *, has_turn: bool = False) -> DispatchAttempt:
        """Claim and start the thread's next due dispatch, if the thread's worker is idle.

        Without `has_turn`, threads that already wait for a slot come first.
        """
        worker = self.workers.get(thread_id)
        if worker is None:
            return DispatchAttempt.NO_ELIGIBLE
        if not self.reserve(thread_id, worker, has_turn=has_turn):
            is_open = self.accepting and not self._core.tasks.closed
            if not has_turn and is_open and self.slots.waits(thread_id) and self.slots.free:
                self._executing += 1  # `idle` also waits for the claims of waiting threads
                line = self._core.tasks.start(self.next_in_line(), name="the line for slots")
                line.add_done_callback(lambda _: self._over())
            return DispatchAttempt.BUSY
        return await self._core.claiming.complete(self._write_claim(thread_id, worker), name="a claim")

    async def try_all(self, thread_ids: Sequence[str]) -> int:
        """Claim the next due dispatch of each thread while slots are free; return the number of starts."""
        for thread_id in thread_ids:
            self.workers.get_or_create(thread_id)
        async with asyncio.TaskGroup() as group:
            claims = [
                group.create_task(self.try_dispatch_next(thread_id, has_turn=True))
                for thread_id in thread_ids
            ]
        return sum(claim.result() is DispatchAttempt.CLAIMED for claim in claims)

    async def _write_claim(self, thread_id: str, worker: MailboxWorker) -> DispatchAttempt:
        core, asks = self._core, self.asks()

        def claim(tx: Transaction) -> Claimed | Held | None:
            tx.lock(thread_lock(thread_id), *core.limits_lock)
            return claimed_next(tx, thread_id, asks)

        try:
            claimed = await core.observed("claim", core.store.write(claim, key=thread_id))
        except PostroomError as error:
            self.unreserve(worker)
            self.failed_claims += 1
            # logged only after 1, 2, 4, 8 ... failures, so that a long outage does not fill the log
            if self.failed_claims.bit_count() == 1:
                facts = {"thread_id": thread_id, "failed_claims": self.failed_claims}
                _LOG.warning("dispatch.not_claimed", **facts, reason=error.describe())
            self.look_for_unexecuted()  # the claim may still have been stored
            return DispatchAttempt.TRANSIENT_ERROR
        except BaseException:
            self.unreserve(worker)
            raise
        self.failed_claims = 0
        if isinstance(claimed, Claimed):
            return await self.begin_or_release(claimed)
        self.hold(claimed)
        self._core.budgets.holds_back |= claimed is not None
        if self.unreserve(worker):
            return await self.try_dispatch_next(thread_id, has_turn=True)
        return DispatchAttempt.NO_ELIGIBLE

    def look_for_unexecuted(self) -> None:
        """Start a task that releases claims without an execution."""
        if not self._core.tasks.closed:
            self._core.tasks.start(self.release_unexecuted(), name="claims")

    async def release_unexecuted(self, claimed: Sequence[RunDispatch] | None = None) -> None:
        """Release the dispatches that the process has claimed but does not execute.

        No attempt is counted. If `claimed` is None, the dispatches are read from the store. Errors are
        logged, not raised.
        """
        try:
            for row in await self.unexecuted() if claimed is None else claimed:
                worker = self.workers.get(row.thread_id)
                if row.claim_token in self.leases.ended:
                    continue
                if worker is None or (worker.status is WorkerStatus.IDLE and not worker.storing):
                    _LOG.warning("claim.not_executed", dispatch_id=row.dispatch_id, run_id=row.run_id)
                    await self._give_back(row, self._failed.pop(row.claim_token or "", None))
        except PostroomError as error:
            _LOG.warning("claims.not_looked_at", reason=error.describe())
        if self._readers:
            await self.end_readers()

    def claim_tokens(self) -> frozenset[str]:
        """Return the tokens of the claims whose runs the process executes."""
        return frozenset(token for token, job in self.leases.jobs.items() if job.end is None)

    async def unexecuted(self) -> tuple[RunDispatch, ...]:
        """Return the dispatches that the process has claimed but does not execute.

        Raises:
            StoreError: The store cannot be read.
        """
        self.leases.ended.clear()
        consumer, tokens = self._core.consumer_id, tuple(self.leases.jobs)
        return await self._core.store.read(lambda tx: tx.runs.dispatches.claimed_by(consumer, besides=tokens))

    def reserve(
        self, thread_id: str, worker: MailboxWorker, tenant: str | None = None, *, has_turn: bool = False
    ) -> bool:
        """Reserve the thread's worker and a slot for a claim; return False if none is free.

        Without `has_turn`, threads that already wait for a slot come first. The method never awaits.
        """
        worker.is_wanted = worker.status is not WorkerStatus.IDLE
        if not self.accepting or worker.status is not WorkerStatus.IDLE or worker.foreground:
            return False
        if not self.slots.take(thread_id, tenant or worker.tenant, has_turn=has_turn):
            self._core.metrics.waiting_threads.set(len(self.slots.waiting))
            return False
        worker.status, worker.tenant = WorkerStatus.CLAIMING, tenant or worker.tenant
        return True

    def unreserve(self, worker: MailboxWorker) -> bool:
        """Release a reservation; return whether another caller tried to reserve the worker."""
        wanted, worker.is_wanted = worker.is_wanted, False
        if worker.status is WorkerStatus.CLAIMING:
            worker.status = WorkerStatus.IDLE
            self.slots.give(worker.tenant)
        return wanted

    def asks(self, *, is_now: bool = False) -> ClaimAsk:
        """Return a request with which this process can claim a dispatch.

        `is_now` is true if a caller waits for the run. Such a run starts even if a limit is reached.
        """
        core = self._core
        return ClaimAsk(
            consumer=core.consumer_id,
            lease_ms=core.config.lease_ms,
            instance_id=core.new_id(),
            begins=core.config.max_concurrent_runs_per_tenant is None,
            effects=core.effects,
            places=None if core.config.places is None else core.places,
            limits=core.config.limits,
            budgets=core.budgets if core.has_budgets else None,
            is_now=is_now,
        )

    def _asks_next(self, job: Job) -> ClaimAsk | None:
        """Return the request to claim the thread's next dispatch, or None if waiting threads come first."""
        asks, core = self.asks(), self._core
        worker = self.workers.get_or_create(job.dispatch.thread_id)
        job.has_followers |= worker.is_wanted
        if not self.accepting or not asks.begins or worker.foreground:
            return None
        if self.slots.waiting or self.slots.used > self.slots.total:
            return None
        if core.config.limits:  # older work under a limit comes first
            return None
        kept_ms = core.now() - job.kept_since
        if self.is_polled and not self.slots.free and kept_ms >= milliseconds(core.config.poll_interval):
            return None
        worker.is_wanted = False
        return asks

    async def begin_or_release(self, begun: Claimed) -> DispatchAttempt:
        """Execute a claimed dispatch in the reserved slot, or release the claim without a free slot."""
        claimed = begun.dispatch
        worker = self.workers.get_or_create(claimed.thread_id)
        if worker.status is not WorkerStatus.CLAIMING:
            await self._give_back(claimed)
            return DispatchAttempt.BUSY
        if worker.tenant != claimed.tenant and not self.slots.move(worker.tenant, claimed.tenant):
            await self._give_back(claimed)
            self.slots.stand_in_line(claimed.thread_id, claimed.tenant)
            self.unreserve(worker)
            worker.tenant = claimed.tenant
            return DispatchAttempt.BUSY
        self._begin(worker, begun)
        return DispatchAttempt.CLAIMED

    def begin_foreground(self, begun: Claimed, stream: EventStream | None) -> None:
        """Execute a dispatch for which a person waits, even beyond the limits."""
        worker = self.workers.get_or_create(begun.dispatch.thread_id)
        self.slots.overdraw(begun.dispatch.tenant)
        if worker.status is WorkerStatus.CLAIMING:
            self.slots.give(worker.tenant)
        self._begin(worker, begun, ReconnectableEventSink(stream))

    def read_along(self, dispatch_id: str, stream: EventStream) -> None:
        """Register a reader for the events of a dispatch before the dispatch is queued."""
        self._readers[dispatch_id] = ReconnectableEventSink(stream)

    def stop_reading(self, dispatch_id: str) -> None:
        """Close the stream of a dispatch that the process will not execute."""
        reader = self._readers.pop(dispatch_id, None)
        if reader is not None:
            reader.close()

    def reconnect(self, thread_id: str, stream: EventStream) -> bool:
        """Pass the events of the thread's active run to a reader; return False without an active run."""
        worker = self.workers.get(thread_id)
        if worker is None or worker.job is None:
            return False
        worker.job.sink.reconnect(stream)
        return True

    async def next_in_line(self) -> None:
        """Assign free slots to the waiting threads, in order."""
        while (thread_id := self.slots.next_in_line()) is not None:
            attempt = await self.try_dispatch_next(thread_id, has_turn=True)
            if attempt is DispatchAttempt.BUSY and self.slots.waits(thread_id):
                break
        self._core.metrics.waiting_threads.set(len(self.slots.waiting))

    async def end_readers(self) -> None:
        """Close the streams of dispatches that the process will not execute.

        The last event of each stream reports the end of the run. Errors are logged, not raised.
        """
        try:
            rows = await self._core.store.read(
                lambda tx: [tx.runs.dispatches.load(dispatch_id) for dispatch_id in tuple(self._readers)]
            )
        except PostroomError as error:
            _LOG.warning("readers.not_looked_at", reason=error.describe())
            return
        for row in filter(None, rows):  # a dispatch that is not stored yet has a reader, too
            if row.status.is_terminal:
                await self.end_reading(row)
            elif row.status is RunDispatchStatus.CLAIMED and row.claimed_by != self._core.consumer_id:
                self.stop_reading(row.dispatch_id)

    async def end_reading(self, ended: RunDispatch) -> None:
        """Send the last event of a run to the reader of the queued dispatch, and close the stream."""
        if (reader := self._readers.get(ended.dispatch_id)) is not None:
            if not reader.finished:
                termination = ended.termination or derive_termination(ended)
                await reader.emit(finish_event(ended, termination, ended.run_response))
            self.stop_reading(ended.dispatch_id)

    def hold(self, held: Held | None) -> None:
        """Record the time before which no run may start in the scope of a limit."""
        if held is not None and held.until is not None:
            self.held[held.scope] = held.until

    def closed_scopes(self) -> frozenset[str]:
        """Return the scopes of limits in which no run may start yet."""
        now = self._core.now()
        self.held = {scope: until for scope, until in self.held.items() if until > now}
        return frozenset(self.held)

    async def ends_are_stored(self) -> None:
        """Wait 2 to 102 ms until the ends of finished runs are stored and slots are free."""
        await asyncio.sleep(_TOGETHER_S)
        if self._ending:
            await asyncio.wait(tuple(self._ending), timeout=_MAX_END_S)

    async def idle(self) -> None:
        """Wait until the process executes no run."""
        while self._executing:
            self._idle.clear()
            await self._idle.wait()

    def leave(self, stays: Callable[[str], bool] | None = None) -> None:
        """Stop every execution, and queue the runs again.

        A stop counts as an interruption, not as a failed attempt. An execution continues if `stays` returns
        True for its thread.
        """
        self._core.is_leaving = self._core.is_leaving or stays is None
        for job in list(self.leases.jobs.values()):
            if stays is None or not stays(job.dispatch.thread_id):
                job.stop(LeaseEnd.GIVEN_UP)

    def _begin(
        self,
        worker: MailboxWorker,
        begun: Claimed,
        sink: ReconnectableEventSink | None = None,
        kept_since: int | None = None,
    ) -> Job:
        core, claimed = self._core, begun.dispatch
        kept_since = core.now() if kept_since is None else kept_since
        sink = sink or self._readers.pop(claimed.dispatch_id, None) or ReconnectableEventSink()
        sink.suspended = sink.finished = False  # these flags are from an earlier attempt
        job = Job(
            dispatch=claimed,
            begun=begun,
            sink=sink,
            stops_at=_stops_at(claimed.lease_until or core.now(), core.config.lease_ms),
            kept_since=kept_since,
            concluded=asyncio.get_running_loop().create_future(),
            can_pause=core.executor.can_pause(claimed.thread_id),
        )
        worker.status, worker.job, worker.tenant = WorkerStatus.RUNNING, job, claimed.tenant
        self.workers.executing[claimed.thread_id] = worker
        self._executing += 1
        core.metrics.active_runs.add()
        self.leases.keep(job)
        if not self._commands.is_served:
            self._commands.serve()
        core.tasks.start(self._serve(job), name=f"dispatch {claimed.dispatch_id}")
        return job

    async def _serve(self, job: Job) -> None:
        try:
            if await self._guard(job, self._store_start(job)):
                await self._run_isolated(job)
                if job.is_left_behind:
                    return
                self._ending.add(job.concluded)
                await self._guard(job, self._conclude(job))
        except BaseException:
            if not job.is_left_behind:
                self._rest(job)
                self._over()
            raise
        await self._go_on(job)

    async def _store_start(self, job: Job) -> bool:
        """Store the start of the execution; return False if no execution is needed.

        Raises:
            StaleClaim: This process no longer owns the dispatch; nothing was written.
        """
        core, begun, completion = self._core, job.begun, self._completion
        try:
            await core.retried(partial(self._prepare, job))
        except (InputError, StateError, InternalError, StoreCorrupt) as error:
            await completion.give_up(job.dispatch, job.sink, begun.instance_id, error.describe())
            return False
        run = job.run
        if not is_left_open(run, job.dispatch):  # the run ended, but its dispatch was not acknowledged
            _LOG.info("dispatch.settled_before", dispatch_id=job.dispatch.dispatch_id, run_id=run.run_id)
            termination = run.termination or TerminationReason.suspended()
            text = run.final_output or ""
            await completion.end(
                job,
                AgentRunResult(
                    run_id=run.run_id, response=text, termination=termination, waiting=run.waiting
                ),
            )
            return False
        if begun.start is not None and begun.start.held is not None:
            await completion.release(job.dispatch)
            job.comes_again = True
            return False
        if begun.start is not None and begun.start.asks:
            waiting = RunWaitingState(reason=WaitingReason.MANUAL_PAUSE, tickets=begun.start.asks)
            paused = TerminationReason.suspended()
            await completion.end(job, AgentRunResult(run_id=run.run_id, termination=paused, waiting=waiting))
            return False
        if begun.has_begun:
            job.started_at = job.dispatch.updated_at
        else:
            await completion.begin(job)
        core.metrics.started(job.dispatch, now=job.started_at)
        if self._events.is_on:
            await self._events.dispatch_happened("RunSubmitted", job.dispatch)
        return True

    async def _prepare(self, job: Job) -> None:
        """Load the run of a job, and build the request for the executor.

        Raises:
            DeadlinePassed: The deadline of the dispatch has passed.
            UnknownRun, ForeignThread: The dispatch has no run on its thread.
            InternalError: The registry of the run no longer exists.
            InvalidActivation, UnknownMessage, ResolveFailed: The request cannot be rebuilt.
        """
        core, dispatch, begun, run = self._core, job.dispatch, job.begun, job.begun.run
        if run is None:
            raise UnknownRun(f"run {dispatch.run_id!r} not found", value=dispatch.run_id)
        if run.thread_id != dispatch.thread_id:
            raise ForeignThread(f"run {run.run_id!r} belongs to thread {run.thread_id!r}", value=run.run_id)
        buffer = list[CanonicalEventDraft]()
        coordinator = RunCoordinator(core.coordinator, dispatch.claim_proof, buffer, core.new_id, core.timer)
        job.run, job.coordinator, job.told = run, coordinator, job.sink
        job.activation = RunActivation(thread_id=run.thread_id)
        if is_left_open(run, dispatch):
            if dispatch.has_missed_deadline(core.now()):
                raise deadline_passed(dispatch.deadline_at)
            messages = begun.messages if begun.has_begun else None
            instance_id = begun.instance_id
            activation = await rebuild(
                core.threads, dispatch, run, instance_id=instance_id, messages=messages
            )
            pending = None
            if core.config.pending_zone:
                pending = PendingInput(core, self._events, coordinator, run.thread_id, run.run_id)
            hidden = activation.options.without_runs
            control = RunControl(
                coordinator=coordinator,
                threads=core.threads,
                pending=pending,
                registry=await core.pinning.materialize(run.resolution_id or ""),
                run=run,
                claim=dispatch.claim_proof,
                hidden_runs=frozenset(hidden),
                hidden_message_ids=await list_input_ids(core.threads, hidden) if hidden else frozenset(),
                give_up_on=core.config.give_up_on,
                spends=lambda used: core.budgets.spent_by(dispatch, run, used, now=core.now()),
                beginning=begun.beginning,
            )
            was_cut_off = run.status is RunStatus.RUNNING and run.steps > 0
            recovery = core.executor.recovery(activation) if was_cut_off else Recovery.START
            job.activation = replace(activation, control=control, recovery=recovery)
        if core.capture is not None:
            resumed = job.activation.continue_run_id is not None or run.steps > 0
            job.told = CapturingSink(job.sink, buffer, core.capture, dispatch, resumed=resumed)

    async def _run_isolated(self, job: Job) -> None:
        """Run the executor until the execution ends or the lease is lost, and keep the result."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine is run by a task
        alarms: list[asyncio.Task[None]] = []

        def stop() -> None:
            self._core.executor.cancel(job.dispatch.dispatch_id)
            task.cancel()
            alarms.append(self._core.tasks.start(self._leave_behind(job, task), name="stop of an execution"))

        if self.leases.is_late(job):
            await self.leases.renewed([job])
        if job.end is not None:
            return
        job.is_executing = job.has_executed = True
        job.stops = stop
        run = partial(self._core.executor.run, job.activation, job.told)
        ended: AgentRunResult | BaseException
        try:
            result: object = await _Held(run, job, self.leases)
            odd = f"the executor returned a {type(result).__name__} and no result"
            ended = result if isinstance(result, AgentRunResult) else ExecutorMisbehaved(odd)
        except asyncio.CancelledError:
            if task.cancelling() > (0 if job.end is None else 1):
                raise
            ended = ExecutorFailed("the executor cancelled itself")
        except GeneratorExit:
            raise
        except BaseException as error:
            ended = error
        finally:
            job.is_executing, job.stops = False, None
            for alarm in alarms:
                task.uncancel()
                if not job.is_left_behind:
                    alarm.cancel()
        job.ended = ended if job.end is None else None

    async def _leave_behind(self, job: Job, task: "asyncio.Task[None]") -> None:
        """Abandon an executor that ignores cancellation."""
        await self._core.timer.sleep(self._core.config.stop_wait_ms)
        if not job.is_executing:
            return
        job.is_left_behind = True
        self._core.tasks.let_go(task)
        self._core.metrics.run_abandoned()
        _LOG.error("run.left_behind", run_id=job.dispatch.run_id, dispatch_id=job.dispatch.dispatch_id)
        await self._guard(job, self._conclude(job))
        await self._go_on(job)

    async def _guard(self, job: Job, step: Awaitable[bool]) -> bool:
        """Return the result of a step, or False if the step failed."""
        try:
            return await step
        except StaleClaim as error:
            _LOG.info("dispatch.lost", dispatch_id=job.dispatch.dispatch_id, reason=error.message)
            await self._completion.reconcile(job.dispatch.dispatch_id)
        except StoreError as error:
            # The claim is released when the store can be read again. The run record shows the remaining
            # steps.
            _LOG.error("dispatch.left_claimed", dispatch_id=job.dispatch.dispatch_id, reason=error.describe())
            if job.has_executed or not error.retryable:
                self._failed[job.dispatch.claim_token or ""] = error
        except DeadlinePassed as error:
            _LOG.warning("dispatch.too_late", dispatch_id=job.dispatch.dispatch_id)
            job.comes_again = await self._completion.put_back(job.dispatch, error)
        except Exception as error:
            _LOG.exception("dispatch.failed", dispatch_id=job.dispatch.dispatch_id)
            job.comes_again = await self._completion.put_back(job.dispatch, error)
        return False

    async def _conclude(self, job: Job) -> bool:
        """Store the result of the execution.

        Raises:
            StaleClaim: This process no longer owns the dispatch; nothing was written.
        """
        dispatch, end, ended = job.dispatch, job.end, job.ended
        if job.is_cancelled and isinstance(ended, BaseException):  # the run failed after it was asked to end
            ended, end = None, LeaseEnd.CANCELLED
        if ended is None and end is LeaseEnd.CANCELLED:
            ended = AgentRunResult(run_id=dispatch.run_id, termination=TerminationReason.cancelled())
        elif ended is None and end is LeaseEnd.TIMED_OUT:
            most = self._core.config.max_run_ms
            ended = RunTimedOut(f"the run was not done after {most} ms", value=dispatch.run_id)
        if isinstance(ended, AgentRunResult):
            await self._finish(job, ended)
        elif ended is not None:
            await self._fail(job, ended)
        elif end is LeaseEnd.GIVEN_UP:
            give_back = self._completion.stop if job.has_executed else self._completion.release
            await give_back(dispatch)
        elif end is LeaseEnd.GAVE_WAY:
            job.comes_again = await self._completion.release(dispatch, PLACE_KEPT_MS)
        else:
            await self._completion.reconcile(dispatch.dispatch_id)  # the dispatch was superseded
        if job.comes_again and job.is_cancelled:  # it was cancelled while it was being requeued
            job.comes_again = await self._completion.withdrawn(dispatch.dispatch_id) is None
        return True

    async def _finish(self, job: Job, result: AgentRunResult) -> None:
        core, dispatch = self._core, job.dispatch
        wall_ms, response = max(core.now() - job.started_at, 0), storable(result.response)
        if not result.usage.wall_ms:  # programs do not report their execution time
            result = replace(result, response=response, usage=replace(result.usage, wall_ms=wall_ms))
        elif response != result.response:
            result = replace(result, response=response)
        spends: tuple[Spending, ...] = ()
        if core.has_budgets:
            uncounted = result.usage.beyond(result.counted)
            spends = core.budgets.spent_by(dispatch, job.run, uncounted, wall_ms=wall_ms, now=core.now())
            core.budgets.learn(dispatch, job.run, result.usage, wall_ms=wall_ms)
        await self._completion.end(job, result, spends, self._asks_next(job))
        outcome = OutcomeKind.COMPLETED.value
        core.metrics.ended(outcome, dispatch=dispatch, started_at=job.started_at, now=core.now())

    async def _fail(self, job: Job, error: BaseException) -> None:
        core, completion, dispatch = self._core, self._completion, job.dispatch
        if isinstance(error, StaleClaim):
            _LOG.info("dispatch.cut_off", dispatch_id=dispatch.dispatch_id, reason=error.message)
            job.comes_again = await completion.cut_off(dispatch)
            return
        outcome = classify(error, core.config.give_up_on)
        failed = _failed(dispatch, error, outcome.error)
        if outcome.kind is OutcomeKind.COMPLETED:  # a retry is pointless, so the error ends the run
            code = error.code if isinstance(error, PostroomError) else None
            text = error.describe() if isinstance(error, PostroomError) else str(error)
            ended = TerminationReason.error(storable(text), code)
            await self._finish(job, AgentRunResult(run_id=job.run.run_id, termination=ended))
            return
        if outcome.kind is OutcomeKind.TRANSIENT_ERROR:
            job.comes_again = await completion.try_later(job, outcome, failed)
        else:
            instance_id, text, code = job.begun.instance_id, outcome.error, outcome.code
            await completion.give_up(dispatch, job.told, instance_id, text, failed, code)
        core.metrics.ended(outcome.kind.value, dispatch=dispatch, started_at=job.started_at, now=core.now())

    async def _give_back(self, claimed: RunDispatch, failed: StoreError | None = None) -> None:
        try:
            if failed is None:
                await self._completion.release(claimed)
            else:
                await self._completion.put_back(claimed, failed)
        except StaleClaim as error:
            _LOG.info("dispatch.lost", dispatch_id=claimed.dispatch_id, reason=error.message)
        except StoreError as error:
            _LOG.warning("dispatch.not_released", dispatch_id=claimed.dispatch_id, reason=error.describe())

    def _rest(self, job: Job) -> None:
        """Free the slot and the worker of an ended job."""
        token = job.dispatch.claim_token or ""
        self.leases.jobs.pop(token, None)  # its claim is no longer renewed
        self.leases.ended.add(token)
        if job.alarm is not None:
            job.alarm.cancel()
        self._ending.discard(job.concluded)
        job.concluded.set_result(None)
        self._core.metrics.active_runs.add(amount=-1)
        worker = self.workers.get_or_create(job.dispatch.thread_id)
        if worker.job is job:
            worker.status, worker.job = WorkerStatus.IDLE, None
            self.workers.executing.pop(job.dispatch.thread_id, None)
        self._was_full = not self.slots.free
        self.slots.give(job.dispatch.tenant)
        if job.comes_again and job.sink.stream is not None:
            self._readers[job.dispatch.dispatch_id] = job.sink
        elif job.sink.stream is not None:
            job.sink.stream.close()

    async def _go_on(self, job: Job) -> None:
        """Free the worker, and start the thread's next work."""
        thread_id = job.dispatch.thread_id
        try:
            self._rest(job)
            if job.next is not None:
                return await self._begin_next(job.next, job.kept_since)
            if not self.accepting:
                return None
            # read before the next reservation of the worker, which clears it
            is_wanted = not job.has_looked or self.workers.get_or_create(thread_id).is_wanted
            if not job.comes_again and job.leaves_waiting:
                await self._completion.submissions.after_run(thread_id)
            if self.slots.waiting:
                self.slots.stand_in_line(thread_id, job.dispatch.tenant)
                await self.next_in_line()
                return None
            others_first = self._was_full or self._core.config.limits
            if others_first and self.is_polled and not job.comes_again:
                return None
            if is_wanted:
                await self.try_dispatch_next(thread_id)
        finally:
            self._over()

    async def _begin_next(self, begun: Claimed, kept_since: int) -> None:
        claimed = begun.dispatch
        if not self.accepting:
            await self._give_back(claimed)
            return
        self.slots.overdraw(claimed.tenant)
        self._core.metrics.happened("claim")
        worker = self.workers.get_or_create(claimed.thread_id)
        self._begin(worker, begun, kept_since=kept_since).has_followers = True

    def _over(self) -> None:
        self._executing -= 1
        self._idle.set()


class LeaseKeeper:
    """Renews the claims of the process's executions, and stops runs whose claims are lost.

    renewed ──▶ renewed ──▶ …          the store fails, or is silent: until shortly before the lease expires
       │                                  └──▶ work that can pause makes no step until its claim is renewed
       └──▶ refused, or expired ──▶ lost: the run is stopped before another worker can start it
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.jobs: dict[str, Job] = {}
        """The jobs that this process executes, by claim token."""
        self.ended: set[str] = set()
        """The claim tokens of jobs that ended since the last search for claims without a job."""
        self._keeper: asyncio.Task[None] | None = None

    def keep(self, job: Job) -> None:
        """Renew the claim of a job until the job is removed from `jobs`."""
        self.jobs[job.dispatch.claim_token or ""] = job
        if (most := self._core.config.max_run_ms) is not None:
            ends_at = self._core.now() + most
            job.alarm = self._core.tasks.start(self._end_at(job, ends_at), name="longest run")
        if self._keeper is None:
            self._keeper = self._core.tasks.start(self._keep(), name="leases")
        if self._core.config.claims_hold is not None:
            self._tell()

    async def _end_at(self, job: Job, ends_at: int) -> None:
        await self._core.timer.sleep(max(ends_at - self._core.now(), 0))
        job.stop(LeaseEnd.TIMED_OUT)

    async def _keep(self) -> None:
        config = self._core.config
        third = config.lease_ms // 3  # the time for a renewal before the work is stopped
        interval = pause = min(milliseconds(config.lease_renewal_interval), config.lease_ms - third)
        try:
            while self.jobs:
                at_work = [job for job in self.jobs.values() if job.end is None]
                now = self._core.now()
                stop_times = [job.stops_at for job in at_work if job.stops_at > now or not job.can_pause]
                left = min(stop_times, default=now + pause + third) - now
                await self._core.timer.sleep(min(pause, max(left - third if left > third else left, 1)))
                jobs = [job for job in self.jobs.values() if job.end is None]
                pause = interval if await self.renewed(jobs) else min(interval, config.lease_retry_ms)
        finally:
            self._keeper = None

    def is_late(self, job: Job) -> bool:
        """Return whether the job must pause, because the claim may have expired."""
        return job.end is None and self._core.now() >= job.stops_at

    async def settled(self, job: Job) -> None:
        """Wait until the claim of a paused job is renewed, or the job is stopped."""
        while self.is_late(job) and not await self.renewed([job]):
            await self._core.timer.sleep(self._core.config.lease_retry_ms)

    async def renewed(self, jobs: list[Job]) -> bool:
        """Renew claims in one transaction; return False if the store failed.

        A job whose claim is not renewed in time is stopped.
        """
        if not jobs:
            return True
        core, config, asked_at = self._core, self._core.config, self._core.now()
        lengths = {
            job.dispatch.claim_proof: config.suspended_lease_ms if job.sink.suspended else config.lease_ms
            for job in jobs
        }
        # If the process was frozen, its work is paused, so there is time to check the claim.
        ends = {
            job.dispatch.claim_proof: job.stops_at
            if job.stops_at > asked_at
            else asked_at + config.lease_ms // 2
            for job in jobs
        }
        until = min(ends.values())

        def renew_leases(tx: Transaction) -> frozenset[str]:
            now = tx.now()  # a claim whose work was stopped by now is not renewed
            return tx.runs.dispatches.renew(
                {claim: length for claim, length in lengths.items() if now <= ends[claim]}
            )

        try:
            async with asyncio.timeout((until - asked_at) / 1_000):
                write = core.store.write(renew_leases, key=_LEASES)
                renewed = await core.observed("lease_renewal", write)
                lost = [job for job in jobs if job.dispatch.dispatch_id not in renewed]
                for job in lost:
                    await self._end_superseded(job)
        except (PostroomError, TimeoutError) as error:
            now = until if isinstance(error, TimeoutError) else core.now()
            reason = str(error) or "the store did not answer in time"
            _LOG.warning("leases.not_renewed", count=len(jobs), reason=reason)
            for job in jobs:
                if job.stops_at <= now and not (job.can_pause and job.is_executing):
                    self._lose(job, "the lease expires, and could not be renewed")
            return False
        for job in jobs:
            length = lengths[job.dispatch.claim_proof]
            job.stops_at = _stops_at(asked_at + length, length)
        for job in lost:
            core.metrics.happened("lease_renewal", "lost")
            self._lose(job, "another process took the claim")
        self._tell()
        return True

    def _tell(self) -> None:
        if (claims_hold := self._core.config.claims_hold) is None:
            return
        at_work = [job.stops_at for job in self.jobs.values() if job.end is None]
        if at_work:
            claims_hold(max(min(at_work) - self._core.now(), 0))

    async def _end_superseded(self, job: Job) -> None:
        claim, thread_id = job.dispatch.claim_proof, job.dispatch.thread_id

        def supersede(tx: Transaction) -> None:
            tx.lock(thread_lock(thread_id))
            tx.runs.dispatches.supersede_stale(claim)

        await self._core.store.write(supersede, key=thread_id)

    def _lose(self, job: Job, reason: str) -> None:
        if job.end is not None or self.jobs.get(job.dispatch.claim_token or "") is not job:
            return
        self._core.metrics.lease_lost()
        _LOG.warning("lease.lost", dispatch_id=job.dispatch.dispatch_id, reason=reason)
        job.stop(LeaseEnd.LOST)


class _Held:
    """Wraps an executor's work in an awaitable that pauses while the claim is uncertain."""

    def __init__(self, run: Callable[[], Awaitable[AgentRunResult]], job: Job, leases: LeaseKeeper) -> None:
        self._run = run
        self._job = job
        self._leases = leases

    def __await__(self) -> Generator[Any, Any, AgentRunResult]:
        work = cast("Generator[Any, None, AgentRunResult]", self._run().__await__())
        step = partial(work.send, None)
        while True:
            try:
                waits_for = step()
            except StopIteration as ended:
                return cast("AgentRunResult", ended.value)
            except GeneratorExit as error:  # the work itself raised this; nobody closed the generator
                raise ExecutorFailed("the executor raised GeneratorExit") from error
            try:
                try:
                    yield waits_for
                    step = partial(work.send, None)
                except (
                    Exception
                ) as error:  # the work must not handle even a failure while the claim is uncertain
                    step = partial(work.throw, error)
                if self._leases.is_late(self._job):
                    yield from self._leases.settled(self._job).__await__()
                    if self._job.end is not None:
                        yield  # a cancellation is raised here
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                step = partial(work.throw, error)


def _stops_at(lease_until: int, length: int) -> int:
    return lease_until - min(length // 10, _MAX_SAFETY_MS)


def _failed(dispatch: RunDispatch, error: BaseException, text: str) -> CanonicalEventDraft:
    facts: dict[str, Json] = {"attempt": dispatch.attempt_count + 1, "error": text}
    is_known = isinstance(error, InferenceError) and not isinstance(error, InferenceFailed)
    causes = error, error.__cause__
    is_ours = all(cause is None or isinstance(cause, PostroomError) for cause in causes)
    was_away = isinstance(error, StoreError) and error.retryable
    if not is_ours and not was_away:
        facts["traceback"] = storable("".join(format_exception(error))[-_TRACEBACK_KEPT:])
    shown_facts = {name: fact for name, fact in facts.items() if name != "traceback" or not is_known}
    _LOG.warning("run.attempt_failed", run_id=dispatch.run_id, **shown_facts)
    return CanonicalEventDraft(
        # a thread's log contains only the events that its readers follow
        scopes=(EventScope.run(dispatch.run_id),),
        event_kind=ATTEMPT_FAILED,
        payload=facts,
        correlation_id=dispatch.dispatch_id,
        visibility=EventVisibility.INTERNAL,
        options=AppendOptions(
            writer_id="mailbox",
            idempotency_key=f"{ATTEMPT_FAILED}/{dispatch.dispatch_id}/{facts['attempt']}",
        ),
    )


async def rebuild(
    threads: ThreadStore,
    dispatch: RunDispatch,
    run: RunRecord,
    *,
    instance_id: str,
    messages: tuple[Message, ...] | None = None,
) -> RunActivation:
    """Return the request of a stored run. If `messages` is None, the messages are read from the thread.

    Raises:
        InvalidActivation, UnknownMessage, ResolveFailed: The request cannot be rebuilt.
    """
    activation = run.activation
    if activation is None:
        raise InvalidActivation(f"run {run.run_id!r} has no stored request", value=run.run_id)
    if run.resolution_id is None:
        raise ResolveFailed(f"run {run.run_id!r} is pinned to no configuration", value=run.run_id)
    if messages is None:
        ids = activation.trigger_message_ids
        records = await threads.load_message_records(run.thread_id, ids) if ids else []
        message_ids = {record.message_id for record in records}
        for message_id in ids:
            if message_id not in message_ids:
                raise UnknownMessage(f"message {message_id!r} not found on its thread", value=message_id)
        messages = tuple(record.message for record in records)
    return RunActivation(
        thread_id=run.thread_id,
        messages=messages,
        agent_id=run.agent_id,
        continue_run_id=activation.continue_run_id,
        decisions=activation.seeded_decisions,
        options=activation.options,
        trace=replace(activation.trace, dispatch_id=dispatch.dispatch_id, session_id=instance_id),
        delivery=activation.delivery,
        hints=RunHints(run_id=run.run_id, dispatch_id=dispatch.dispatch_id, resolution_id=run.resolution_id),
        attempt=dispatch.attempt_count + 1,
        interruptions=dispatch.interruption_count,
    )


async def list_input_ids(threads: ThreadStore, run_ids: Sequence[str]) -> frozenset[str]:
    """Return the ids of the messages with which runs started."""
    ids: set[str] = set()
    for run_id in run_ids:
        run = await threads.load_run(run_id)
        if run is not None and run.input is not None:
            ids.update(run.input.trigger_message_ids)
    return frozenset(ids)
