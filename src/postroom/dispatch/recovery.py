"""Closes what a crash left open. What it costs grows with open work, never with history.

1. expired leases are taken back             4. threads with queued work are looked at
2. runs are told how their dispatches ended  5. prepared runs without a dispatch get one
3. the event log is told of open runs        6. runs that waited for their own tasks are woken
                                             7. what was meant for a run that has ended goes to a new one
"""

from collections.abc import Collection, Sequence

import structlog

from postroom.contracts.activation import AdapterKind, RunActivation, RunMode, RunOrigin
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import DuplicateRecord, PostroomError, RunNotOpen, StaleClaim
from postroom.contracts.messages import TASKS_UPDATED, Message
from postroom.contracts.run_stores import MAX_PAGE, RunQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.dispatch.config import RECLAIM_PAGE
from postroom.dispatch.core import Core
from postroom.dispatch.dispatcher import Dispatcher
from postroom.dispatch.journal import Journal
from postroom.dispatch.outcome import DispatchAttempt
from postroom.dispatch.repair import CheckpointRepair
from postroom.dispatch.run_ends import RunEnds
from postroom.dispatch.submissions import Submissions

_LOG = structlog.get_logger(__name__)
OWNER_GONE = "the process that executed it is gone"
_OPEN_RUNS = (RunStatus.CREATED, RunStatus.RUNNING, RunStatus.WAITING)


class Recovery:
    """Finds what was left behind and takes it up again."""

    def __init__(
        self,
        core: Core,
        journal: Journal,
        ends: RunEnds,
        dispatcher: Dispatcher,
        submissions: Submissions,
        repair: CheckpointRepair,
    ) -> None:
        self._core = core
        self._journal = journal
        self._ends = ends
        self._dispatcher = dispatcher
        self._submissions = submissions
        self._repair = repair

    async def recover(self) -> int:
        """Take up all that was left behind; return how many dispatches, runs and threads that were.

        Raises:
            StoreError: the store could not be looked through; what was taken up already stays so.
        """
        if self._core.config.is_alone:
            await self._take_over()
        taken_up = len(await self.reclaim())
        await self._ends.tell_all()
        if self._journal.is_on:
            await self._repair.repair_all(_OPEN_RUNS)
        queued = await self._queued_threads()
        await self.look_at(queued)
        taken_up += await self.dispatch_prepared_runs(queued)
        taken_up += await self._wake_waiting_runs(set(queued))
        return taken_up + await self.take_up_left_over()

    async def _take_over(self) -> None:
        """Take back what processes hold that are gone; an attempt counts, as when a lease ends."""
        after: tuple[int, str] | None = None
        while rows := await self._core.dispatches.list_by_status(RunDispatchStatus.CLAIMED, after=after):
            after = (rows[-1].updated_at, rows[-1].dispatch_id)
            for row in rows:
                if row.claimed_by != self._core.consumer_id:
                    await self._taken_back(row)

    async def _taken_back(self, row: RunDispatch) -> None:
        try:
            given_up = await self._core.dispatches.nack(row.claim_proof, error=OWNER_GONE)
        except StaleClaim:
            return  # it was superseded, and is that now
        await self._journal.dispatch_happened("RunRescheduled", given_up, reason="owner_gone")

    async def reclaim(self) -> list[RunDispatch]:
        """Take back expired leases, tell of them and of the runs that are thereby given up."""
        reclaimed: list[RunDispatch] = []
        while rows := await self._core.observed(
            "reclaim", self._core.dispatches.reclaim_expired_leases(limit=RECLAIM_PAGE)
        ):
            reclaimed += rows
            for row in rows:
                if row.status is RunDispatchStatus.QUEUED:
                    await self._journal.dispatch_happened(
                        "RunRescheduled", row, reason="expired_lease_reclaimed"
                    )
                else:
                    await self._ends.tell(row)
            if len(rows) < RECLAIM_PAGE:
                break
        return reclaimed

    async def look_at(self, thread_ids: Sequence[str]) -> int:
        """Start what is due on these threads, as far as there are slots; return how many were started."""
        started = 0
        for thread_id in thread_ids:
            self._dispatcher.workers.get_or_create(thread_id)
            attempt = await self._dispatcher.try_dispatch_next(thread_id)
            started += attempt is DispatchAttempt.CLAIMED
        return started

    async def dispatch_prepared_runs(self, queued_threads: Collection[str]) -> int:
        """Give prepared runs whose dispatch was never written one under the same id; return how many."""
        missing = [run for run in await self._open_runs() if await self._lacks_dispatch(run)]
        enqueued = 0
        for run in missing:
            enqueued += await self._enqueue_for(run)
        await self.look_at(sorted({run.thread_id for run in missing} - set(queued_threads)))
        return enqueued

    async def _queued_threads(self) -> list[str]:
        found: list[str] = []
        while page := await self._core.dispatches.queued_thread_ids(after=found[-1] if found else ""):
            found += page
            if len(page) < MAX_PAGE:
                break
        return found

    async def _open_runs(self) -> list[RunRecord]:
        """Return all runs that are not done; collected first, for what follows changes them."""
        found: list[RunRecord] = []
        after = ""
        while page := await self._core.threads.list_runs(RunQuery(statuses=_OPEN_RUNS, after=after)):
            found += page
            after = page[-1].run_id
        return found

    async def _lacks_dispatch(self, run: RunRecord) -> bool:
        prepared = run.status is RunStatus.CREATED or run.is_resumable_waiting
        if not prepared or run.dispatch_id is None:
            return False
        if run.waiting is not None and run.waiting.since_dispatch_id == run.dispatch_id:
            return False  # it waits since that very dispatch, which was purged meanwhile
        return await self._core.dispatches.load_dispatch(run.dispatch_id) is None

    async def _enqueue_for(self, run: RunRecord) -> int:
        now = self._core.now()
        options = run.activation.delivery if run.activation else None
        dispatch = RunDispatch.queued(
            run.dispatch_id or self._core.new_id(),
            run.thread_id,
            run.run_id,
            created_at=now,
            available_at=max(now, run.updated_at + options.delay_ms) if options else now,
            max_attempts=(options and options.max_attempts) or self._core.config.default_max_attempts,
            priority=options.priority if options else 128,
            dedupe_key=options.dedupe_key if options else None,
            deadline_at=options.deadline_at if options else None,
            tenant=options.tenant if options else "",
        )
        try:
            queued = await self._core.observed("enqueue", self._core.dispatches.enqueue(dispatch))
        except (DuplicateRecord, RunNotOpen):
            return 0  # another instance was faster
        await self._journal.dispatch_happened("RunQueued", queued)
        return 1

    async def _wake_waiting_runs(self, queued_threads: set[str]) -> int:
        woken = 0
        for run in await self._open_runs():
            if not run.is_background_task_waiting or run.thread_id in queued_threads:
                continue
            if await self._core.dispatches.list_dispatches(
                run.thread_id, (RunDispatchStatus.QUEUED, RunDispatchStatus.CLAIMED), limit=1
            ):
                continue
            wake = RunActivation.new(
                run.thread_id,
                [Message.internal(TASKS_UPDATED)],
                agent_id=run.agent_id,
                continue_run_id=run.run_id,
            ).traced(run_mode=RunMode.INTERNAL_WAKE, adapter=AdapterKind.INTERNAL, origin=RunOrigin.INTERNAL)
            try:
                await self._submissions.submit_background(wake)
            except PostroomError as error:
                _LOG.warning("run.not_woken", run_id=run.run_id, reason=error.describe())
                continue
            woken += 1
        return woken

    async def take_up_left_over(self) -> int:
        """Give what was meant for runs that have ended to new ones; return how many that started."""
        taken_up, after = 0, ""
        while page := await self._core.threads.threads_with_pending(after=after):
            for thread_id in page:
                self._core.metrics.happened("orphaned_pending_thread", "detected")
                taken_up += await self._submissions.take_up_left_over(thread_id) is not None
            after = page[-1]
        return taken_up
