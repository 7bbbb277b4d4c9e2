"""Recovers unfinished work, and regularly handles due work, expired leases and old rows.

Recovery completes all work that a crash left unfinished. The store selects only the affected rows, so the
duration does not grow with the number of queued or finished runs.

    1. expired leases are released              4. prepared runs without a dispatch get one
    2. runs get the ends of their dispatches    5. runs that waited for their own tasks are woken
    3. the event log gets open runs             6. messages for an ended run go to a new one

The rounds claim as many queued runs as there are free slots.

    stopped ──▶ starting (recovery) ──▶ running (rounds) ──▶ stopping ──▶ stopped
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from postroom.contracts.activation import AdapterKind, RunActivation, RunMode, RunOrigin
from postroom.contracts.clock import ClockWatch, Duration, milliseconds
from postroom.contracts.dispatch import DEFAULT_PRIORITY, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    DuplicateRecord,
    InvalidSubmission,
    LifecycleBusy,
    PostroomError,
    RunNotOpen,
    StaleClaim,
    StateError,
    StoreError,
)
from postroom.contracts.limits import LIMITS
from postroom.contracts.messages import TASKS_UPDATED, Message
from postroom.contracts.run_stores import MAX_PAGE, DueThread, thread_lock
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.dispatch.budgets import (
    held_threads,
    hold_threads,
    question_about,
    release_abandoned,
    room_in,
    window_ended,
)
from postroom.dispatch.completion import Completion
from postroom.dispatch.config import RECLAIM_PAGE, MailboxLifecycleConfig
from postroom.dispatch.core import Core
from postroom.dispatch.events import CheckpointRepair, ServerEvents
from postroom.dispatch.submission import Submissions
from postroom.dispatch.worker import Dispatcher
from postroom.log import get_logger
from postroom.stores.store import Transaction

_LOG = get_logger(__name__)
_READ_AGAIN_MS: Final = 3_600_000
"""An unreadable row is read again after one hour, because its writer may have changed it."""
CLAIM_ERROR_BASE_MS = 500
CLAIM_ERROR_MOST_MS = 30_000
_CLAIMED_AGAIN_WITHIN_MS: Final = 1_500
"""The maximum pause in milliseconds before due work is tried again while claims fail.

With this limit, work starts within 2 s after the end of an outage.
"""
_MAX_DOUBLINGS = 16
_MAX_DUE = 1_000
_HELD_AT_ONCE = 100
_OPEN_RUNS = (RunStatus.CREATED, RunStatus.RUNNING, RunStatus.WAITING)


def claim_error_pause_ms(failures: int | None) -> int:
    """Return the pause in milliseconds after `failures` consecutive failed claims."""
    doublings = min(max((failures or 1) - 1, 0), _MAX_DOUBLINGS)
    return min(CLAIM_ERROR_BASE_MS << doublings, CLAIM_ERROR_MOST_MS)


class Recovery:
    """Finds and recovers unfinished work."""

    def __init__(
        self,
        core: Core,
        events: ServerEvents,
        completion: Completion,
        dispatcher: Dispatcher,
        submissions: Submissions,
    ) -> None:
        self._core = core
        self._events = events
        self._completion = completion
        self._dispatcher = dispatcher
        self._submissions = submissions
        self.repair = CheckpointRepair(events, core.threads)
        self._gone = frozenset[str]()
        """Processes that have exited, and whose claims were released."""

    async def recover(self) -> int:
        """Recover all unfinished work; return the number of recovered dispatches, runs and threads.

        Raises:
            StoreError: The store could not be read; the recoveries before that remain.
        """
        config = self._core.config
        # Rows that an earlier release skipped may be readable now; rows skipped since the start are not.
        await self._core.store.read_again(until=self._core.store.opened_at)
        if config.is_exclusive:
            await self._take_over(lambda consumer: consumer != self._core.consumer_id)
        await self.take_over_from_gone()
        taken_up = len(await self.reclaim())
        await self._completion.reconcile_all()
        if self._events.is_on:
            await self.repair.repair_all(_OPEN_RUNS)
        taken_up += await self.dispatch_prepared_runs()
        # Resume the runs that wait for background tasks, because the tasks may be lost.
        after = ""
        while page := await self._core.store.read(partial(_unquestioning, after=after)):
            after = page[-1].run_id
            for run in page:
                if not run.is_background_task_waiting:
                    continue
                wake = RunActivation.new(
                    run.thread_id,
                    [Message.internal(TASKS_UPDATED)],
                    agent_id=run.agent_id,
                    continue_run_id=run.run_id,
                ).traced(
                    run_mode=RunMode.INTERNAL_WAKE, adapter=AdapterKind.INTERNAL, origin=RunOrigin.INTERNAL
                )
                try:
                    await self._submissions.submit_background(wake)
                except PostroomError as error:
                    _LOG.warning("run.not_woken", run_id=run.run_id, reason=error.describe())
                    continue
                taken_up += 1
        return taken_up + await self.take_up_left_over()

    async def reclaim(self) -> list[RunDispatch]:
        """Release expired leases, and publish the resulting events."""
        core, reclaimed = self._core, list[RunDispatch]()
        while overdue := await core.store.read(lambda tx: tx.runs.dispatches.overdue(RECLAIM_PAGE)):
            here = self._dispatcher.claim_tokens()  # after a clock was set forward, these claims are renewed
            lost = [expired for expired in overdue if expired.claim_token not in here]
            for expired in lost:
                row = await core.observed("reclaim", self._release_lease(expired))
                if row is None:
                    continue
                reclaimed.append(row)
                if row.status is RunDispatchStatus.QUEUED:
                    await self._events.dispatch_happened(
                        "RunRescheduled", row, reason="expired_lease_reclaimed"
                    )
            if len(overdue) < RECLAIM_PAGE or not lost:
                break
        return reclaimed

    async def _release_lease(self, expired: RunDispatch) -> RunDispatch | None:
        def reclaim(tx: Transaction) -> tuple[RunDispatch, RunRecord | None] | None:
            tx.lock(thread_lock(expired.thread_id))
            return self._completion.reclaimed_in(tx, expired.dispatch_id)

        done = await self._core.store.write(reclaim, key=expired.thread_id)
        return None if done is None else self._completion.told(*done)

    async def dispatch_prepared_runs(self, queued_threads: Collection[str] = ()) -> int:
        """Create the missing dispatches of prepared runs; return the number of new dispatches."""
        enqueued, after, prepared = 0, "", list[RunRecord]()
        while page := await self._core.store.read(partial(_list_waiting, after=after)):
            for run in page:
                if await self._lacks_dispatch(run):
                    enqueued += await self._enqueue_for(run)
                    prepared.append(run)
            after = page[-1].run_id
        in_order = sorted(
            prepared,
            key=lambda run: (
                DEFAULT_PRIORITY if run.activation is None else run.activation.delivery.priority,
                run.created_at,
                run.run_id,
            ),
        )
        thread_ids = dict.fromkeys(run.thread_id for run in in_order)
        await self._dispatcher.try_all([value for value in thread_ids if value not in queued_threads])
        return enqueued

    async def take_up_left_over(self) -> int:
        """Start new runs for the unread messages of ended runs; return the number of started runs."""
        taken_up, after = 0, ""
        if not self._core.config.pending_zone:
            return 0
        while page := await self._core.store.read(partial(_left_over, after=after)):
            for thread_id in page:
                self._core.metrics.happened("orphaned_pending_thread", "detected")
                try:
                    taken_up += await self._submissions.take_up_left_over(thread_id) is not None
                except StoreError:
                    raise
                except PostroomError as error:
                    _LOG.warning("pending.not_taken_up", thread_id=thread_id, reason=error.describe())
            after = page[-1]
        return taken_up

    async def take_over_from_gone(self) -> None:
        """Release the claims of processes that are known to have exited."""
        gone = frozenset(() if self._core.config.gone is None else self._core.config.gone()) - self._gone
        if gone:
            await self._take_over(gone.__contains__)
            self._gone |= gone

    async def _take_over(self, is_gone: Callable[[str], bool]) -> None:
        after: tuple[int, str] | None = None
        while rows := await self._core.dispatches.list_by_status(RunDispatchStatus.CLAIMED, after=after):
            after = (rows[-1].updated_at, rows[-1].dispatch_id)
            for row in rows:
                if not is_gone(row.claimed_by or ""):
                    continue
                try:
                    given_up = await self._completion.taken_back(row)
                except StaleClaim:
                    continue  # the dispatch was superseded, which is now stored
                await self._events.dispatch_happened("RunRescheduled", given_up, reason="owner_gone")

    async def _lacks_dispatch(self, run: RunRecord) -> bool:
        if run.dispatch_id is None:
            return False
        if run.waiting is not None and run.waiting.since_dispatch_id == run.dispatch_id:
            # The run has waited since this dispatch ended, and the dispatch was deleted meanwhile.
            return False
        return await self._core.dispatches.load_dispatch(run.dispatch_id) is None

    async def _enqueue_for(self, run: RunRecord) -> int:
        now = self._core.now()
        options = run.activation.delivery if run.activation else None
        survives = None if options is None else options.max_interruptions
        dispatch = RunDispatch.queued(
            run.dispatch_id or self._core.new_id(),
            run.thread_id,
            run.run_id,
            created_at=now,
            available_at=run.updated_at + options.delay_ms if options and options.delay_ms else None,
            max_attempts=(options and options.max_attempts) or self._core.config.default_max_attempts,
            max_interruptions=self._core.config.default_max_interruptions if survives is None else survives,
            priority=options.priority if options else 128,
            dedupe_key=options.dedupe_key if options else None,
            deadline_at=options.deadline_at if options else None,
            tenant=options.tenant if options else "",
            limit_key=options.limit_key if options else "",
        )
        try:
            queued = await self._core.observed("enqueue", self._core.dispatches.enqueue(dispatch))
        except (DuplicateRecord, RunNotOpen):
            return 0  # another process was faster
        await self._events.dispatch_happened("RunQueued", queued)
        return 1


class Rounds:
    """The periodic work of a mailbox.

    Each method performs one round.
    """

    def __init__(
        self,
        core: Core,
        completion: Completion,
        dispatcher: Dispatcher,
        recovery: Recovery,
        submissions: Submissions,
    ) -> None:
        self._core = core
        self._submissions = submissions
        self._completion = completion
        self._dispatcher = dispatcher
        self._recovery = recovery
        self._is_held_up = False
        """Whether due work could not be started, so that an immediate retry could not start it either."""
        self._due_at: int | None = None
        """The time when the next delayed run is due, in milliseconds since the epoch, from the last poll."""
        self._clock = ClockWatch()

    async def poll(self) -> int:
        """Start due work on any thread while slots are free; return the number of started runs."""
        slots, self._due_at, now = self._dispatcher.slots, None, self._core.now()
        if back := self._clock.set_back_ms(now):
            count = await self._core.store.write(lambda tx: tx.runs.dispatches.set_back(back))
            if count:
                _LOG.warning("clock.set_back", milliseconds=back, delayed_runs=count)
        self._clock.remember(now)
        if self._core.has_budgets and self._dispatcher.accepting:
            await self._end_windows()
        is_open = bool(slots.free) and self._dispatcher.accepting
        if is_open and self._core.config.gone is not None:
            await self._recovery.take_over_from_gone()
        # Threads that wait for a slot are also due, and must not hide other due threads.
        limit = min(slots.free + len(slots.waiting), _MAX_DUE) if is_open else 0
        self._dispatcher.leases.ended.clear()
        look = partial(self._look, limit=limit, tokens=tuple(self._dispatcher.leases.jobs))
        unexecuted, due, self._due_at = await self._core.store.read(look)
        await self._dispatcher.release_unexecuted(unexecuted)
        if not is_open:
            return 0
        while self._core.has_budgets and self._core.budgets.holds_back:
            held, crowded = await self._hold_back(due)
            self._core.budgets.holds_back = bool(crowded)
            if not held:
                due = [item for item in due if item.thread_id not in crowded]
                break
            _, due, self._due_at = await self._core.store.read(look)
        for item in due:
            self._dispatcher.workers.get_or_create(item.thread_id).expect(item.tenant)
        started = await self._dispatcher.try_all([item.thread_id for item in due]) if due else 0
        if slots.waiting and slots.free:  # threads without due work may be waiting for slots
            await self._dispatcher.next_in_line()
        is_bounded = bool(self._core.config.limits) or self._core.budgets.holds_back
        self._is_held_up = not started and (bool(due) or is_bounded)
        return started

    async def _hold_back(self, due: Sequence[DueThread]) -> tuple[int, frozenset[str]]:
        held, budgets, starting, crowded = 0, self._core.budgets, Counter[str](), set[str]()
        for first in range(0, len(due), _HELD_AT_ONCE):
            thread_ids = [due.thread_id for due in due[first : first + _HELD_AT_ONCE]]
            look = partial(held_threads, budgets=budgets, thread_ids=thread_ids, starting=starting)
            items, waiting = await self._core.store.read(look)
            crowded.update(waiting)
            if items:
                hold = partial(hold_threads, budgets=budgets, thread_ids=sorted(thread_ids))
                held += await self._core.store.write(hold, key=LIMITS)
        return held, frozenset(crowded)

    async def _end_windows(self) -> None:
        core = self._core

        def ended(tx: Transaction) -> list[tuple[RunRecord, str, str]]:
            results = []
            for spending in tx.runs.threads.asked():
                run = tx.runs.threads.load_run(spending.asked_by)
                ticket = None if run is None else question_about(run, spending.scope)
                if (
                    spending.until is not None
                    and spending.until <= tx.now()
                    and run is not None
                    and ticket is not None
                ):
                    results.append((run, ticket.tool_call_id, spending.scope))
            return results

        for run, call_id, scope in await core.store.read(ended):
            answer = (call_id, window_ended(scope, now=core.now()))
            goes_on = RunActivation.new(run.thread_id, [], continue_run_id=run.run_id, decisions=[answer])
            try:
                await self._submissions.submit_background(goes_on)
            except StateError as error:  # a person or another worker was faster
                _LOG.info("budget.answered_before", run_id=run.run_id, reason=error.describe())
            except InvalidSubmission as error:  # the run's deadline has passed, and the sweep ends the run
                _LOG.info("budget.not_resumed", run_id=run.run_id, reason=error.describe())

    def _look(
        self, tx: Transaction, limit: int, tokens: Sequence[str]
    ) -> tuple[Sequence[RunDispatch], list[DueThread], int | None]:
        slots, queue, room = self._dispatcher.slots, tx.runs.dispatches, None
        claimed = queue.claimed_by(self._core.consumer_id, besides=tokens)
        if not limit:
            return claimed, [], None
        full_keys: Sequence[str] = ()
        if limits := self._core.config.limits:
            room = room_in(tx, limits, self._dispatcher.closed_scopes())
            full_keys = room.full_keys()
        places = None if self._core.config.places is None else self._core.places
        due_threads = queue.due_threads(limit, full_keys=full_keys, places=places)
        if not due_threads:
            return claimed, [], queue.later_due_at(places)
        if len(due_threads) >= limit and (tenants := queue.due_tenants(_MAX_DUE)):
            # More threads are due than were read, and these may belong to other tenants.
            each = max(limit // (len(tenants) + 1), 1)
            may = [tenant for tenant in ("", *tenants) if room is None or room.has(tenant, "")]
            parts = [
                queue.due_threads(each, tenant=tenant, full_keys=full_keys, places=places)
                for tenant in sorted(may, key=slots.used_by)[: limit + 1]
            ]
            due_threads = tuple(item for part in parts for item in part)
        used, shares = Counter[str](), list[tuple[int, int, DueThread]]()
        for place, item in enumerate(due_threads):
            shares.append((slots.used_by(item.tenant) + used[item.tenant], place, item))
            used[item.tenant] += 1
        due = [item for *_, item in sorted(shares) if room is None or room.take(item.tenant, item.limit_key)]
        return claimed, due, None if due else queue.later_due_at(places)

    async def until_due(self) -> None:
        """Wait until work may start, but at most for the poll interval."""
        core = self._core
        pause = milliseconds(core.config.poll_interval)
        if not self._dispatcher.slots.free:
            if await self._dispatcher.slots.freed(pause):
                await self._dispatcher.ends_are_stored()
            return
        if self._is_held_up:
            failures = self._dispatcher.failed_claims
            if failures:
                pause = max(pause, min(claim_error_pause_ms(failures), _CLAIMED_AGAIN_WITHIN_MS))
        elif self._due_at is not None:
            pause = min(max(self._due_at - core.now(), 1), pause)
        if core.has_budgets and (turns_at := await core.store.read(_next_turn)) is not None:
            pause = min(max(turns_at - core.now(), 1), pause)
        if self._dispatcher.held and self._dispatcher.closed_scopes():
            pause = min(max(min(self._dispatcher.held.values()) - core.now(), 1), pause)
        await core.stores.wakeups.wait(timedelta(milliseconds=pause))

    async def sweep(self) -> bool:
        """Release expired leases, end runs that missed their deadline, and repair the event log.

        Return whether the store failed. Errors are logged, not raised.
        """
        try:
            await self._dispatcher.release_unexecuted()
            reclaimed = await self._recovery.reclaim()
            await self._completion.end_late()
            await self._completion.reconcile_all()
            await self._recovery.repair.drain()
            await self._recovery.take_up_left_over()
            if self._core.has_budgets:
                await release_abandoned(self._core.store)
            self._core.metrics.show_depths(await self._core.dispatches.count_by_status())
            if not self._dispatcher.is_polled:  # otherwise a poll claims them in the order of all due work
                in_order = sorted(reclaimed, key=lambda row: (row.priority, row.created_at, row.dispatch_id))
                await self._dispatcher.try_all(list(dict.fromkeys(row.thread_id for row in in_order)))
        except PostroomError as error:
            _LOG.warning("mailbox.sweep_failed", reason=error.describe())
            return isinstance(error, StoreError)
        return False

    async def collect_garbage(self) -> None:
        """Delete ended rows after the retention period, and remove idle workers."""
        now, config, dispatches = self._core.now(), self._core.config, self._core.dispatches
        purge = dispatches.purge_terminal(
            older_than=now - milliseconds(config.gc_ttl),
            dead_letters_older_than=now - milliseconds(config.dead_letter_ttl),
        )
        try:
            purged = await self._core.observed("purge_terminal", purge)
            await self._core.store.read_again(until=self._core.now() - _READ_AGAIN_MS)
            if config.budgets:
                gone = now - milliseconds(config.gc_ttl)
                await self._core.store.write(lambda tx: tx.runs.threads.forget_spending(gone))
            if periods := [limit.period for limit in config.limits if limit.period is not None]:
                gone = now - milliseconds(max(periods))
                await self._core.store.write(lambda tx: tx.runs.dispatches.forget_starts(gone))
            if purged:
                _LOG.info("mailbox.purged", dispatches=purged)
        except PostroomError as error:
            _LOG.warning("mailbox.purge_failed", reason=error.describe())
        await self.forget_idle_workers()

    async def forget_idle_workers(self) -> None:
        """Remove the workers of threads without open work."""
        workers = self._dispatcher.workers
        idle = workers.idle_threads()
        for first in range(0, len(idle), _MAX_DUE):
            part = idle[first : first + _MAX_DUE]
            try:
                open_ones = await self._core.store.read(partial(_open_among, thread_ids=part))
            except PostroomError as error:
                _LOG.info("workers.kept", count=len(part), reason=error.describe())
                continue
            for thread_id in part:
                if thread_id not in open_ones:
                    workers.forget(thread_id)


def _list_waiting(tx: Transaction, after: str) -> tuple[RunRecord, ...]:
    return tx.runs.threads.undelivered(MAX_PAGE, after)


def _unquestioning(tx: Transaction, after: str) -> tuple[RunRecord, ...]:
    return tx.runs.threads.waiting_without_questions(MAX_PAGE, after)


def _left_over(tx: Transaction, after: str) -> tuple[str, ...]:
    return tx.runs.messages.threads_left_over(MAX_PAGE, after)


def _open_among(tx: Transaction, thread_ids: Sequence[str]) -> frozenset[str]:
    return tx.runs.dispatches.open_threads(thread_ids)


def _next_turn(tx: Transaction) -> int | None:
    requested_untils = [spending.until for spending in tx.runs.threads.asked() if spending.until is not None]
    held = tx.runs.dispatches.held_until()
    return min((*requested_untils, *(() if held is None else (held,))), default=None)


class Lifecycle:
    """Manages the background work of one mailbox: recovery, and then periodic work."""

    def __init__(self, core: Core, recovery: Recovery, rounds: Rounds, dispatcher: Dispatcher) -> None:
        self._core = core
        self._recovery = recovery
        self._rounds = rounds
        self._dispatcher = dispatcher
        self._transition = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    @property
    def is_running(self) -> bool:
        """Whether the periodic work is running."""
        return bool(self._tasks)

    def start(self, config: MailboxLifecycleConfig) -> "MailboxLifecycleHandle":
        """Start recovery and the periodic work in the background.

        Do nothing if the periodic work has already started.

        Raises:
            LifecycleBusy: The lifecycle is being started or stopped at the moment.
        """
        if self._stopping or (not self._tasks and self._transition.locked()):
            raise LifecycleBusy("the mailbox is already being started or closed")
        if not self._tasks:
            self._begin(config, recover=True)
        return MailboxLifecycleHandle(self)

    async def start_ready(self, config: MailboxLifecycleConfig) -> "MailboxLifecycleHandle":
        """Recover unfinished work, and start the periodic work before returning.

        Do nothing if the periodic work has already started.

        Raises:
            StoreError: All attempts at recovery failed, so nothing was started.
        """
        async with self._transition:
            if not self._tasks:
                await self._recover_with_retries(config)
                self._begin(config, recover=False)
        return MailboxLifecycleHandle(self)

    async def shutdown(self) -> None:
        """Stop the background work, and wait until no round is running."""
        async with self._transition:
            self._stopping = True
            tasks = set(self._tasks)
            try:
                self.abort()
                if tasks:
                    await asyncio.wait(tasks)
            finally:
                self._stopping = False

    def abort(self) -> None:
        """Stop the background work without waiting for the end."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._dispatcher.is_polled = False

    def _begin(self, config: MailboxLifecycleConfig, *, recover: bool) -> None:
        settings, rounds = self._core.config, self._rounds
        self._dispatcher.is_polled = True

        async def collect() -> None:
            await rounds.collect_garbage()
            if config.maintenance_callback is not None:
                config.maintenance_callback()

        serve: dict[str, tuple[Callable[[], Awaitable[None]], Duration | None]] = {
            "poll": (self._poll, None),
            "sweep": (self._sweep, None),
            "garbage": (collect, settings.gc_interval),
        }
        if recover:
            serve["recovery"] = (lambda: self._recover_or_log(config), None)
        for name, (work, interval) in serve.items():
            self._tasks.add(self._core.tasks.start(self._kept_up(name, work, interval), name=name))

    async def _kept_up(
        self, name: str, work: Callable[[], Awaitable[None]], interval: Duration | None
    ) -> None:
        while True:
            try:
                if interval is None:
                    return await work()
                await self._core.timer.sleep(milliseconds(interval))
                await work()
            except Exception:
                _LOG.exception("mailbox.round_failed", round=name)
                await self._core.timer.sleep(milliseconds(self._core.config.poll_interval))

    async def _poll(self) -> None:
        while True:
            try:
                if not await self._rounds.poll():
                    await self._rounds.until_due()
                else:
                    await self._dispatcher.ends_are_stored()
            except PostroomError as error:
                _LOG.warning("mailbox.poll_failed", reason=error.describe())
                await self._core.timer.sleep(milliseconds(self._core.config.poll_interval))

    async def _sweep(self) -> None:
        config = self._core.config
        interval, pause = milliseconds(config.sweep_interval), milliseconds(config.poll_interval)
        failed = False
        while True:
            await self._core.timer.sleep(min(interval, pause) if failed else interval)
            failed = await self._rounds.sweep()

    async def _recover_with_retries(self, config: MailboxLifecycleConfig) -> None:
        recovery = config.startup_recovery
        await self._core.timer.sleep(milliseconds(config.startup_delay))
        for attempt in range(1, recovery.max_attempts + 1):
            try:
                taken_up = await self._recovery.recover()
            except PostroomError as error:
                _LOG.warning("mailbox.recovery_failed", attempt=attempt, reason=error.describe())
                if attempt == recovery.max_attempts:
                    raise
                await self._core.timer.sleep(milliseconds(recovery.retry_delay))
            else:
                if taken_up:
                    _LOG.info("mailbox.recovered", taken_up=taken_up)
                return

    async def _recover_or_log(self, config: MailboxLifecycleConfig) -> None:
        try:
            await self._recover_with_retries(config)
        except PostroomError as error:
            _LOG.error("mailbox.not_recovered", reason=error.describe())


class MailboxLifecycleHandle:
    """A handle to the background work of a mailbox.

    The work continues if the handle is discarded.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.abort = lifecycle.abort
        self.shutdown = lifecycle.shutdown

    @property
    def is_running(self) -> bool:
        """Whether the periodic work is running."""
        return self._lifecycle.is_running
