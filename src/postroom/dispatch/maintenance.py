"""The rounds a mailbox makes: work that is due, leases that ended, rows that have had their time."""

import structlog

from postroom.contracts.clock import milliseconds
from postroom.contracts.dispatch import OPEN
from postroom.contracts.errors import PostroomError
from postroom.dispatch.core import Core
from postroom.dispatch.dispatcher import Dispatcher
from postroom.dispatch.recovery import Recovery
from postroom.dispatch.repair import CheckpointRepair
from postroom.dispatch.run_ends import RunEnds

_LOG = structlog.get_logger(__name__)
_MOST_DUE = 1_000


class Maintenance:
    """Looks after the queue."""

    def __init__(
        self,
        core: Core,
        ends: RunEnds,
        dispatcher: Dispatcher,
        recovery: Recovery,
        repair: CheckpointRepair,
    ) -> None:
        self._core = core
        self._ends = ends
        self._dispatcher = dispatcher
        self._recovery = recovery
        self._repair = repair
        self._is_held_up = False
        """Whether what was due could not be started: to ask again at once would not help."""

    async def poll(self) -> int:
        """Start what is due on any thread, as far as there are slots; return how many were started."""
        slots = self._dispatcher.slots
        if not slots.free or not self._dispatcher.accepting:
            return 0
        # Those that stand in the line are due as well, and must not hide the others.
        limit = min(slots.free + len(slots), _MOST_DUE)
        due = await self._core.dispatches.due_thread_ids(limit=limit)
        started = await self._recovery.look_at(due)
        self._is_held_up = bool(due) and not started
        return started

    async def until_due(self) -> None:
        """Return when something may be started: a slot is free again, a hint came, or an instant did."""
        if not self._dispatcher.slots.free:
            await self._dispatcher.slot_freed()
            return
        pause = milliseconds(self._core.config.poll_interval)
        due_at = await self._core.dispatches.next_due_at()
        if due_at is not None and not self._is_held_up:
            pause = min(max(due_at - self._core.now(), 1), pause)
        await self._core.stores.wakeups.wait(pause)

    async def sweep(self) -> None:
        """Take back ended leases, tell runs how their dispatches ended, repair what could not be told.

        What fails is logged; the next round tries again.
        """
        try:
            reclaimed = await self._recovery.reclaim()
            await self._ends.tell_all()
            await self._repair.drain()
            await self._recovery.take_up_left_over()
            await self._dispatcher.forget_ended_readers()
            self._core.metrics.show_depths(await self._core.dispatches.count_by_status())
            await self._recovery.look_at(sorted({row.thread_id for row in reclaimed}))
        except PostroomError as error:
            _LOG.warning("mailbox.sweep_failed", reason=error.describe())

    async def collect_garbage(self) -> None:
        """Remove ended rows that have had their time, and workers that have nothing to do."""
        now, config = self._core.now(), self._core.config
        try:
            purged = await self._core.observed(
                "purge_terminal",
                self._core.dispatches.purge_terminal(
                    older_than=now - milliseconds(config.gc_ttl),
                    dead_letters_older_than=now - milliseconds(config.dead_letter_ttl),
                ),
            )
            if purged:
                _LOG.info("mailbox.purged", dispatches=purged)
        except PostroomError as error:
            _LOG.warning("mailbox.purge_failed", reason=error.describe())
        await self.forget_idle_workers()

    async def forget_idle_workers(self) -> None:
        """Drop the workers of threads that have nothing open; one that cannot be looked up stays."""
        for thread_id in self._dispatcher.workers.idle_threads():
            try:
                open_rows = await self._core.dispatches.list_dispatches(thread_id, OPEN, limit=1)
            except PostroomError as error:
                _LOG.info("worker.kept", thread_id=thread_id, reason=error.describe())
                continue
            if not open_rows:
                self._dispatcher.workers.forget(thread_id)
