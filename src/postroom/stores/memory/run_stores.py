"""The memory stores for runs, on shared tables: everything is gone when the process ends."""

import asyncio

from postroom.contracts.clock import Clock, SystemClock
from postroom.stores.memory.chat import MemoryChatStores
from postroom.stores.memory.commits import MemoryCommitCoordinator
from postroom.stores.memory.dispatches import MemoryDispatchStore, Queue
from postroom.stores.memory.events import EventTable, MemoryEventStore
from postroom.stores.memory.outbox import MemoryOutboxStore, OutboxTable
from postroom.stores.memory.run_tables import Place
from postroom.stores.memory.thread_rows import ThreadTable
from postroom.stores.memory.threads import MemoryThreadStore


class MemoryWakeups:
    """Hints that there may be work, within one process."""

    def __init__(self, bell: asyncio.Event) -> None:
        self._bell = bell

    async def wait(self, timeout_ms: int) -> None:
        """Return when something was enqueued or released since the last call, or the time is up."""
        try:
            async with asyncio.timeout(max(timeout_ms, 0) / 1000):
                await self._bell.wait()
        except TimeoutError:
            return
        self._bell.clear()


class MemoryRunStores:
    """The stores for runs in this process's memory; the reference for what every backend answers.

    For one event loop. Each call lets others run first and is then done in one step.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._place = place = Place(clock or SystemClock())
        queue, threads, events, outbox = Queue(place), ThreadTable(), EventTable(), OutboxTable()
        self._dispatches = MemoryDispatchStore(place, queue)
        self._threads = MemoryThreadStore(place, threads)
        self._events = MemoryEventStore(place, events)
        self._outbox = MemoryOutboxStore(place, outbox)
        self._coordinator = MemoryCommitCoordinator(
            place, queue=queue, threads=threads, events=events, outbox=outbox
        )
        self._wakeups = MemoryWakeups(place.bell)
        self._chat = MemoryChatStores(place=place)

    @property
    def storage_identity(self) -> str | None:
        """Names this instance; all its parts have the same name."""
        return self._place.identity

    @property
    def clock(self) -> Clock:
        """The clock that the stores go by."""
        return self._place.clock

    @property
    def dispatches(self) -> MemoryDispatchStore:
        """The queue."""
        return self._dispatches

    @property
    def threads(self) -> MemoryThreadStore:
        """Threads, runs and messages."""
        return self._threads

    @property
    def events(self) -> MemoryEventStore:
        """The log."""
        return self._events

    @property
    def outbox(self) -> MemoryOutboxStore:
        """Effects that wait."""
        return self._outbox

    @property
    def coordinator(self) -> MemoryCommitCoordinator:
        """Writes over all of them in one step."""
        return self._coordinator

    @property
    def wakeups(self) -> MemoryWakeups:
        """Hints that there may be work."""
        return self._wakeups

    @property
    def chat(self) -> MemoryChatStores:
        """What the chat gateway keeps, in the same place."""
        return self._chat
