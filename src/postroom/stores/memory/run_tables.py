"""What the memory stores for runs find their rows by: keys in order, and the table of dispatches.

Nothing here walks over rows that have ended: what is asked for often has an index of its own.
"""

import asyncio
from collections.abc import Iterator
from heapq import merge
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

from sortedcontainers import SortedList

from postroom.contracts.clock import Clock
from postroom.contracts.dispatch import OPEN, RunDispatch, RunDispatchStatus
from postroom.contracts.run_stores import MAX_PAGE

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

K = TypeVar("K", bound="SupportsRichComparison")
Key = tuple[Any, ...]


def page(limit: int) -> int:
    """Return how much a listing holds that was asked for so much."""
    return max(0, min(limit, MAX_PAGE))


class Ordered(Generic[K]):
    """Distinct keys in order; to add, remove or find one costs little, however many there are."""

    def __init__(self) -> None:
        self._keys = SortedList()

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    @property
    def first(self) -> K | None:
        """The lowest key."""
        return self._keys[0] if self._keys else None

    @property
    def last(self) -> K | None:
        """The highest key."""
        return self._keys[-1] if self._keys else None

    def behind(self, key: K, *, inclusive: bool = False) -> Iterator[K]:
        """Iterate over the keys above `key`, itself with them when `inclusive`."""
        return iter(self._keys.irange(key, inclusive=(inclusive, True)))

    def add(self, key: K) -> None:
        """Add a key; harmless when it is there."""
        if key not in self._keys:
            self._keys.add(key)

    def discard(self, key: K) -> None:
        """Remove a key; harmless when it is not there."""
        self._keys.discard(key)


class Timeline:
    """Ids by the instant from which they are due, and the instant that was last looked at."""

    def __init__(self) -> None:
        self._times: Ordered[Key] = Ordered()
        self._seen = 0

    def add(self, at: int, one: int | str) -> bool:
        """Add an id and say whether it is due at the instant last looked at."""
        self._times.add((at, one))
        return at <= self._seen

    def discard(self, at: int, one: int | str) -> None:
        """Remove an id."""
        self._times.discard((at, one))

    def look(self, now: int) -> tuple[list[Any], bool]:
        """Look at another instant; return the ids between both, and whether they are due now.

        A clock that was turned back makes them not due again.
        """
        low, high = sorted((self._seen, now))
        between = takewhile(lambda key: key[0] <= high, self._times.behind((low + 1,), inclusive=True))
        crossed = [key[1] for key in between]
        forward, self._seen = now >= self._seen, now
        return crossed, forward


class Lanes:
    """Keys of each thread in order, and over all threads that are free the first key of each."""

    def __init__(self) -> None:
        self.heads: Ordered[Key] = Ordered()
        self.threads: Ordered[str] = Ordered()
        self._lanes: dict[str, Ordered[Key]] = {}
        self._held: set[str] = set()

    def first(self, thread_id: str) -> Key | None:
        """Return the first key of a thread, free or not."""
        lane = self._lanes.get(thread_id)
        return lane.first if lane else None

    def add(self, thread_id: str, key: Key) -> None:
        """Add a key to a thread."""
        before = self.first(thread_id)
        if thread_id not in self._lanes:
            self._lanes[thread_id] = Ordered()
            self.threads.add(thread_id)
        self._lanes[thread_id].add(key)
        self._move_head(thread_id, before)

    def discard(self, thread_id: str, key: Key) -> None:
        """Remove a key of a thread; harmless when it is not there."""
        before = self.first(thread_id)
        if before is None:
            return
        self._lanes[thread_id].discard(key)
        if not self._lanes[thread_id]:
            del self._lanes[thread_id]
            self.threads.discard(thread_id)
        self._move_head(thread_id, before)

    def hold(self, thread_id: str) -> None:
        """Take a thread from among the free ones."""
        self._held.add(thread_id)
        if (head := self.first(thread_id)) is not None:
            self.heads.discard(head)

    def free(self, thread_id: str) -> None:
        """Put a thread back among the free ones."""
        self._held.discard(thread_id)
        if (head := self.first(thread_id)) is not None:
            self.heads.add(head)

    def _move_head(self, thread_id: str, before: Key | None) -> None:
        head = self.first(thread_id)
        if head == before or thread_id in self._held:
            return
        if before is not None:
            self.heads.discard(before)
        if head is not None:
            self.heads.add(head)


class Place:
    """What the stores of one place share: its name, its clock, and the bell that says there may be work."""

    def __init__(self, clock: Clock) -> None:
        self.identity = f"memory:{uuid4().hex}"
        self.clock = clock
        self.bell = asyncio.Event()

    async def turn(self, now: int | None = None) -> int:
        """Let others run, as they do while a store on disk works, then return the instant to go by."""
        await asyncio.sleep(0)
        return self.clock.now() if now is None else now


class DispatchTable:
    """Dispatches by id, every way in which the queue looks for them, and the threads' epochs."""

    def __init__(self) -> None:
        self.rows: dict[str, RunDispatch] = {}
        self.epochs: dict[str, int] = {}
        self.unreconciled: Ordered[Key] = Ordered()
        self.leases: Ordered[Key] = Ordered()
        self.by_status: dict[RunDispatchStatus, Ordered[Key]] = {one: Ordered() for one in RunDispatchStatus}
        self._in_thread: dict[tuple[str, RunDispatchStatus], Ordered[Key]] = {}
        self._holders: dict[tuple[str, ...], str] = {}
        self._timeline = Timeline()
        self._due = Lanes()
        self._queued = Lanes()

    def put(self, row: RunDispatch) -> RunDispatch:
        """Store or replace a row, and return it."""
        self.drop(row.dispatch_id)
        self.rows[row.dispatch_id] = row
        for index, key in self._places(row):
            index.add(key)
        for held in _held_by(row):
            self._holders[held] = row.dispatch_id
        if row.status is RunDispatchStatus.QUEUED:
            self._queued.add(row.thread_id, (row.available_at, row.dispatch_id))
            if self._timeline.add(row.available_at, row.dispatch_id):
                self._due.add(row.thread_id, _turn(row))
        elif row.status is RunDispatchStatus.CLAIMED:
            self._due.hold(row.thread_id)
            self._queued.hold(row.thread_id)
        return row

    def drop(self, dispatch_id: str) -> None:
        """Remove a row; harmless when it is not there."""
        row = self.rows.pop(dispatch_id, None)
        if row is None:
            return
        for index, key in self._places(row):
            index.discard(key)
        for held in _held_by(row):
            del self._holders[held]
        if row.status is RunDispatchStatus.QUEUED:
            self._queued.discard(row.thread_id, (row.available_at, row.dispatch_id))
            self._timeline.discard(row.available_at, row.dispatch_id)
            self._due.discard(row.thread_id, _turn(row))
        elif row.status is RunDispatchStatus.CLAIMED:
            self._due.free(row.thread_id)
            self._queued.free(row.thread_id)
        if not self._in_thread[row.thread_id, row.status]:
            del self._in_thread[row.thread_id, row.status]

    def claimed(self, thread_id: str) -> RunDispatch | None:
        """Return the thread's claimed row."""
        return self._holder("claim", thread_id)

    def open_of_run(self, run_id: str) -> RunDispatch | None:
        """Return the open row of a run."""
        return self._holder("run", run_id)

    def open_with_key(self, thread_id: str, dedupe_key: str) -> RunDispatch | None:
        """Return the open row of a thread that has this dedupe key."""
        return self._holder("key", thread_id, dedupe_key)

    def of_thread(self, thread_id: str, *statuses: RunDispatchStatus) -> Iterator[RunDispatch]:
        """Iterate over a thread's rows that are in one of these states, in the order of their turns."""
        lanes = [self._in_thread.get((thread_id, status), ()) for status in set(statuses)]
        return (self.rows[key[-1]] for key in merge(*lanes))

    def count_queued(self, thread_id: str) -> int:
        """Count a thread's queued rows."""
        return len(self._in_thread.get((thread_id, RunDispatchStatus.QUEUED), ()))

    def next_due(self, thread_id: str, now: int) -> RunDispatch | None:
        """Return the thread's queued row whose turn it is."""
        self._look(now)
        first = self._due.first(thread_id)
        return self.rows[first[-1]] if first else None

    def due_threads(self, now: int) -> Iterator[str]:
        """Iterate over threads that have a due row and no claimed one, in the order of their turns."""
        self._look(now)
        return (self.rows[key[-1]].thread_id for key in self._due.heads)

    def next_due_at(self) -> int | None:
        """Return when the first queued row of a thread without a claimed one is due."""
        first = self._queued.heads.first
        return first[0] if first else None

    def queued_threads(self, after: str) -> Iterator[str]:
        """Iterate over threads behind `after` that have queued rows, by id."""
        return self._queued.threads.behind(after)

    def _look(self, now: int) -> None:
        crossed, forward = self._timeline.look(now)
        for row in map(self.rows.__getitem__, crossed):
            if forward:
                self._due.add(row.thread_id, _turn(row))
            else:
                self._due.discard(row.thread_id, _turn(row))

    def _holder(self, *held: str) -> RunDispatch | None:
        dispatch_id = self._holders.get(held)
        return None if dispatch_id is None else self.rows[dispatch_id]

    def _places(self, row: RunDispatch) -> Iterator[tuple[Ordered[Key], Key]]:
        changed = (row.updated_at, row.dispatch_id)
        yield self.by_status[row.status], changed
        yield self._in_thread.setdefault((row.thread_id, row.status), Ordered()), _turn(row)
        if row.status is RunDispatchStatus.CLAIMED:
            yield self.leases, (row.lease_until, row.dispatch_id)
        if not row.reconciled:
            yield self.unreconciled, changed


def _turn(row: RunDispatch) -> Key:
    """Return what decides whose turn it is."""
    return row.priority, row.created_at, row.dispatch_id


def _held_by(row: RunDispatch) -> Iterator[tuple[str, ...]]:
    """Yield what only one row at a time may hold."""
    if row.status in OPEN:
        yield "run", row.run_id
        if row.dedupe_key is not None:
            yield "key", row.thread_id, row.dedupe_key
    if row.status is RunDispatchStatus.CLAIMED:
        yield "claim", row.thread_id
