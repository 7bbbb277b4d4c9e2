"""What is at work in this process, and how much may be at once.

    Idle ──▶ Claiming ──▶ Running ──▶ Idle          a worker is one thread's place in this process

The step from Idle to Claiming has no await in it: two callers cannot both make it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from postroom.dispatch.sinks import ReconnectableEventSink


class LeaseEnd(StrEnum):
    """Why an execution is stopped from outside."""

    LOST = "lost"
    GIVEN_UP = "given_up"
    GAVE_WAY = "gave_way"
    """A submission takes the place of the run."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


@dataclass(slots=True, eq=False)
class Lease:
    """Whether an execution may go on, and if not, why."""

    end: LeaseEnd | None = None
    reason: str = ""
    is_cancelled: bool = False
    """Whether somebody has cancelled the run: a failure is not tried again then."""
    stops: Callable[[], None] | None = None
    """Interrupts what executes, while something does."""

    def stop(self, end: LeaseEnd, reason: str) -> None:
        """Stop the execution; the first reason stands."""
        if self.end is None:
            self.end, self.reason = end, reason
            if self.stops is not None:
                self.stops()


class WorkerStatus(StrEnum):
    """What a thread's worker is at."""

    IDLE = "idle"
    CLAIMING = "claiming"
    RUNNING = "running"


@dataclass(slots=True, kw_only=True)
class MailboxWorker:
    """The one place in this process where a thread's run executes."""

    status: WorkerStatus = WorkerStatus.IDLE
    dispatch_id: str | None = None
    run_id: str | None = None
    tenant: str = ""
    sink: ReconnectableEventSink | None = None
    lease: Lease | None = None
    is_wanted: bool = False
    """Whether somebody found the worker reserved who would have begun something."""
    foreground: int = 0
    """How many foreground submissions want the thread; nothing queued is claimed meanwhile."""
    storing: int = 0
    """How many of them are being stored: their claims may be in the database before they are known here."""

    @property
    def is_running(self) -> bool:
        """Whether a run executes."""
        return self.status is WorkerStatus.RUNNING

    def begin(
        self,
        dispatch_id: str,
        run_id: str,
        tenant: str,
        sink: ReconnectableEventSink,
        lease: Lease | None = None,
    ) -> None:
        """Run this dispatch from now on."""
        self.status = WorkerStatus.RUNNING
        self.dispatch_id, self.run_id, self.tenant, self.sink = dispatch_id, run_id, tenant, sink
        self.lease = lease

    def expect(self, tenant: str) -> None:
        """Know whose work is next, where nothing runs."""
        if self.status is WorkerStatus.IDLE:
            self.tenant = tenant

    def rest(self) -> None:
        """Run nothing."""
        self.status = WorkerStatus.IDLE
        self.dispatch_id = self.run_id = self.sink = self.lease = None


class Workers:
    """The workers by thread."""

    def __init__(self) -> None:
        self._workers: dict[str, MailboxWorker] = {}
        self.executing: dict[str, MailboxWorker] = {}
        """Those that execute a run, by thread."""

    def __contains__(self, thread_id: str) -> bool:
        return thread_id in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, thread_id: str) -> MailboxWorker | None:
        """Return a thread's worker."""
        return self._workers.get(thread_id)

    def get_or_create(self, thread_id: str) -> MailboxWorker:
        """Return a thread's worker, an idle one if there was none."""
        worker = self._workers.get(thread_id)
        if worker is None:
            worker = self._workers[thread_id] = MailboxWorker()
        return worker

    def stop(self, id: str, *, is_told: bool = False) -> bool:
        """Have the execution of this dispatch, run or thread end as cancelled; False when there is none.

        One whose executor is told already ends by itself.
        """
        for thread_id, worker in self.executing.items():
            if worker.lease is not None and id in (thread_id, worker.run_id, worker.dispatch_id):
                worker.lease.is_cancelled = True
                if not is_told:
                    worker.lease.stop(LeaseEnd.CANCELLED, "cancelled")
                return True
        return False

    def give_way(self, dispatch_id: str) -> bool:
        """Stop the execution of this dispatch for a submission; return False if there is none here."""
        for worker in self.executing.values():
            if worker.lease is not None and worker.dispatch_id == dispatch_id:
                worker.lease.stop(LeaseEnd.GAVE_WAY, "a submission takes the place of the run")
                return True
        return False

    def cancel(self, dispatch_id: str, tell: Callable[[str], bool]) -> bool:
        """Have the execution of this dispatch end as cancelled; return False if there is none.

        `tell` asks its executor to end. An execution that no executor ends is stopped. An execution that was
        cancelled before is not stopped: it is ending, and what it said until then is being stored.
        """
        known = (worker.lease for worker in self.executing.values() if worker.dispatch_id == dispatch_id)
        is_ending = any(lease is not None and lease.is_cancelled for lease in known)
        return self.stop(dispatch_id, is_told=tell(dispatch_id) or is_ending)

    def idle_threads(self) -> list[str]:
        """Return the threads whose workers have nothing to do and are wanted by nobody."""
        return [thread_id for thread_id, worker in self._workers.items() if _rests(worker)]

    def forget(self, thread_id: str) -> None:
        """Drop an idle worker; one that was given work meanwhile stays."""
        worker = self._workers.get(thread_id)
        if worker is not None and _rests(worker):
            del self._workers[thread_id]


def _rests(worker: MailboxWorker) -> bool:
    return worker.status is WorkerStatus.IDLE and not worker.foreground


class Slots:
    """How many runs execute at once, in all and for each tenant, and which threads wait for their turn.

    A thread that finds no slot stands in the line of its tenant. The next free slot goes to the tenant that
    has the fewest, so that neither a busy thread nor a busy tenant keeps others waiting.
    """

    def __init__(self, total: int, per_tenant: int | None) -> None:
        self._total = total
        self._per_tenant = per_tenant
        self._by_tenant: Counter[str] = Counter()
        self._lines: dict[str, dict[str, None]] = {}
        self._waiting: dict[str, str] = {}
        self._freed = asyncio.Event()
        self.used = 0
        """How many runs execute or are being claimed."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def free(self) -> int:
        """How many more may."""
        return max(self._total - self.used, 0)

    @property
    def may_be_kept(self) -> bool:
        """Whether who has a slot may go on with it: nobody waits, and no more execute than may."""
        return not self._waiting and self.used <= self._total

    def used_by(self, tenant: str) -> int:
        """How many of them are a tenant's."""
        return self._by_tenant[tenant]

    def waits(self, thread_id: str) -> bool:
        """Whether the thread stands in a line."""
        return thread_id in self._waiting

    def take(self, thread_id: str, tenant: str, *, has_turn: bool = True) -> bool:
        """Take a slot, or stand in the line. A tenant that is not known yet is ''.

        A thread that has no turn takes no slot which a thread in the line may have.
        """
        is_free = self.used < self._total and self.has_room(tenant)
        if is_free and (has_turn or not any(map(self.has_room, self._lines))):
            self._leave(thread_id)
            self.used += 1
            self._by_tenant[tenant] += 1
            return True
        self.stand_in_line(thread_id, tenant)
        return False

    def overdraw(self, tenant: str) -> None:
        """Take a slot that may not be there: a person waits for this run."""
        self.used += 1
        self._by_tenant[tenant] += 1

    def has_room(self, tenant: str) -> bool:
        """Whether the tenant may have one more."""
        return self._per_tenant is None or not tenant or self._by_tenant[tenant] < self._per_tenant

    def move(self, tenant: str, other: str) -> bool:
        """Give one tenant's slot to another; False when that one is at its bound."""
        if not self.has_room(other):
            return False
        self._by_tenant[tenant] -= 1
        self._by_tenant[other] += 1
        return True

    def give(self, tenant: str) -> None:
        """Give a slot back."""
        self.used -= 1
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
        self._freed.set()

    async def freed(self) -> None:
        """Return when a slot was given back since the last call."""
        await self._freed.wait()
        self._freed.clear()

    def stand_in_line(self, thread_id: str, tenant: str) -> None:
        """Put a thread at the end of its tenant's line, if it does not stand in one."""
        if thread_id not in self._waiting:
            self._waiting[thread_id] = tenant
            self._lines.setdefault(tenant, {})[thread_id] = None

    def next_in_line(self) -> str | None:
        """Take the first thread out of the line whose tenant has the fewest slots and may have one more."""
        if not self.free:
            return None
        may = [tenant for tenant in self._lines if self.has_room(tenant)]
        if not may:
            return None
        tenant = min(may, key=self.used_by)
        found = next(iter(self._lines[tenant]))
        self._leave(found)
        if tenant in self._lines:  # among tenants that have as many, it comes last now
            self._lines[tenant] = self._lines.pop(tenant)
        return found

    def _leave(self, thread_id: str) -> None:
        tenant = self._waiting.pop(thread_id, None)
        if tenant is not None:
            del self._lines[tenant][thread_id]
            if not self._lines[tenant]:
                del self._lines[tenant]
