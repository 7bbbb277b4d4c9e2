"""A mailbox for tests, with a manual clock and a simulated process that can crash."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from postroom.concurrency import Tasks
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox as Queue
from postroom.embedded.mailbox import MEMORY, Mailbox, live_channels, open_stores, queue_over
from postroom.embedded.running import Function, Run
from postroom.stores.runs.ports import RunStores
from postroom.testing.clock import ManualClock
from postroom.testing.work import ProcessDied


class ManualMailbox(Mailbox):
    """A mailbox with a manual clock that starts due work only when a test asks for it."""

    clock: ManualClock
    """The clock of the mailbox and its database.

    The delays between the attempts of a step do not depend on this clock, because they are skipped.
    """

    def __init__(
        self, begin: Callable[[Function], Queue], work: Function, stores: RunStores, clock: ManualClock
    ):
        self._died = asyncio.Event()
        self._begin = begin
        self._work = work
        super().__init__(begin(self._watch), stores)
        self.clock = clock

    async def run_until_idle(self, *, timeout: float = 30) -> None:
        """Wait until no run is active and no work is due, without moving the clock.

        Expired leases are released, and due schedules enqueue runs. Runs that wait or sleep do not change;
        move `clock` and call this method again to continue these runs.

        Raises:
            TimeoutError: A run was still active after `timeout` seconds. The error names the runs.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if not await self.schedules.kept.submit_due():
                        await self._settled()
                        await self.admin.run_sweep()
                        await self.admin.release_unexecuted_claims()
                        await self._settled()
                        if not await self.admin.poll():
                            return
        except TimeoutError:
            rows = await self.stores.dispatches.list_by_status(RunDispatchStatus.CLAIMED)
            named = ", ".join(f"run {row.run_id} of thread {row.thread_id}" for row in rows)
            raise TimeoutError(f"still active after {timeout:g} s: {named or 'the queue itself'}") from None

    async def crash(self) -> None:
        """Simulate a crash and a restart of the process: active runs end and write nothing more.

        On `memory` and SQLite, the new process recovers the runs immediately. On PostgreSQL, the new process
        recovers the runs when the leases expire.
        """
        await self.admin.abandon()
        self._died.clear()
        super().__init__(self._begin(self._watch), self.stores)
        await self.admin.recover()

    async def _settled(self) -> None:
        waits = Tasks("test")
        try:
            idle = waits.start(self.admin.settled(), name="idle")
            died = waits.start(self._died.wait(), name="died")
            await asyncio.wait({idle, died}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await waits.close()
        if self._died.is_set():
            await self.crash()
            await self._settled()

    async def _watch(self, run: Run) -> object:
        try:
            return await self._work(run)
        except ProcessDied:
            self._died.set()
            return await asyncio.Event().wait()  # a dead process does nothing further


class _AtOnce:
    async def sleep(self, milliseconds: int) -> None:
        await asyncio.sleep(0)


@asynccontextmanager
async def mailbox(
    work: Function,
    url: str = MEMORY,
    *,
    config: MailboxConfig | None = None,
    schema: str = "postroom",
) -> AsyncIterator[ManualMailbox]:
    """Open a mailbox for tests, with a clock that only the test moves.

    Enqueued work starts immediately; delayed work starts in `run_until_idle`. On exit, active runs are
    stopped and put back into the queue.

    Raises:
        ConfigError, StoreError: As in `Mailbox.open`.
    """
    clock = ManualClock()
    async with AsyncExitStack() as opened:
        stores = await open_stores(opened, url, schema, clock)
        live = live_channels(stores, opened)

        def begin(function: Function) -> Queue:
            return queue_over(stores, function, live, config=config, timer=clock, steps=_AtOnce())

        made = ManualMailbox(begin, work, stores.runs, clock)
        opened.push_async_callback(lambda: made.admin.aclose(timedelta(0)))
        await made.admin.recover()
        yield made
