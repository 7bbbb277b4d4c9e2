"""A mailbox for tests: its time is moved by hand, and its process can die."""

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
    """A mailbox in which nothing becomes due until its clock is moved, and looked for when a test says so."""

    clock: ManualClock
    """The time of the mailbox and its database. Delays between the attempts of a step pass at once."""

    def __init__(
        self, begin: Callable[[Function], Queue], work: Function, stores: RunStores, clock: ManualClock
    ):
        self._died = asyncio.Event()
        self._begin = begin
        self._work = work
        super().__init__(begin(self._watched), stores)
        self.clock = clock

    async def run_until_idle(self, *, timeout: float = 30) -> None:
        """Return when nothing is at work and nothing is due; no time passes by the mailbox's clock.

        Ended leases are taken back and due schedules enqueue, as the rounds of a mailbox do. Runs that wait,
        sleep or are tried again later stay as they are: move `clock`, and call this again.

        Raises:
            TimeoutError: something was at work still after `timeout` seconds; it names the runs.
        """
        try:
            async with asyncio.timeout(timeout):
                while not await self._is_idle():
                    pass
        except TimeoutError:
            rows = await self.stores.dispatches.list_by_status(RunDispatchStatus.CLAIMED)
            named = ", ".join(f"run {row.run_id} of thread {row.thread_id}" for row in rows)
            raise TimeoutError(f"still active after {timeout:g} s: {named or 'the queue itself'}") from None

    async def crash(self) -> None:
        """Have the process die and begin again: what was at work is cut off, and writes nothing more.

        On `memory` and SQLite the new process takes it up at once; on PostgreSQL when the leases have ended.
        """
        await self.admin.abandon()
        self._died.clear()
        super().__init__(self._begin(self._watched), self.stores)
        await self.admin.recover()

    async def _is_idle(self) -> bool:
        if await self.schedules.kept.submit_due():
            return False
        await self._settled()
        await self.admin.run_sweep()
        await self.admin.release_unexecuted_claims()
        await self._settled()
        return not await self.admin.poll()

    async def _settled(self) -> None:
        """Return when nothing is at work; a process that dies meanwhile begins again first."""
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

    async def _watched(self, run: Run) -> object:
        try:
            return await self._work(run)
        except ProcessDied:
            self._died.set()
            return await asyncio.Event().wait()  # a process that is gone goes on with nothing


class _AtOnce:
    """Lets no time pass: nobody moves the clock while a run is at work."""

    async def sleep(self, milliseconds: int) -> None:
        """Return at once."""
        await asyncio.sleep(0)


@asynccontextmanager
async def mailbox(
    work: Function,
    url: str = MEMORY,
    *,
    config: MailboxConfig | None = None,
    schema: str = "postroom",
) -> AsyncIterator[ManualMailbox]:
    """Open a mailbox as `Mailbox.open` does, whose time stands still until its `clock` is moved.

    Work begins when it is enqueued; what is due later begins in `run_until_idle`. At the end what is at work
    is cancelled and given back.

    Raises:
        ConfigError, StoreError: as `Mailbox.open`.
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
