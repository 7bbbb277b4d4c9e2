"""Who works on which thread in this process, and how many may at once.

    Idle ──▶ Claiming ──▶ Running ──▶ Idle

The step from Idle to Claiming has no await in it: two callers cannot both make it.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from postroom.contracts.messages import Message
from postroom.contracts.run_stores import ThreadStore
from postroom.contracts.runs import RunRecord
from postroom.dispatch.sinks import ReconnectableEventSink


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadContext:
    """A thread as it was read for a run. A convenience: nothing is ever decided on it."""

    messages: tuple[Message, ...] = ()
    latest_run: RunRecord | None = None
    runs: dict[str, RunRecord] = field(default_factory=dict)

    @classmethod
    async def load(cls, threads: ThreadStore, thread_id: str) -> "ThreadContext":
        """Read a thread's messages and latest run."""
        messages = await threads.load_messages(thread_id) or ()
        run = await threads.latest_run(thread_id)
        return cls(messages=messages, latest_run=run, runs={run.run_id: run} if run else {})

    def get_run(self, run_id: str) -> RunRecord | None:
        """Return a run as it was read."""
        return self.runs.get(run_id)

    def after(self, run: RunRecord, messages: Sequence[Message]) -> "ThreadContext":
        """Return the context with what was just written."""
        return replace(
            self,
            messages=(*self.messages, *messages),
            latest_run=run,
            runs=self.runs | {run.run_id: run},
        )


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
    thread_context: ThreadContext | None = None
    is_wanted: bool = False
    """Whether somebody found the worker reserved who would have begun something."""
    foreground: int = 0
    """How many foreground submissions want the thread; nothing queued is claimed meanwhile."""

    @property
    def is_running(self) -> bool:
        """Whether a run executes."""
        return self.status is WorkerStatus.RUNNING

    def begin(self, dispatch_id: str, run_id: str, tenant: str, sink: ReconnectableEventSink) -> None:
        """Run this dispatch from now on."""
        self.status = WorkerStatus.RUNNING
        self.dispatch_id, self.run_id, self.tenant, self.sink = dispatch_id, run_id, tenant, sink
        self.thread_context = None

    def rest(self) -> None:
        """Run nothing."""
        self.status = WorkerStatus.IDLE
        self.dispatch_id = self.run_id = self.sink = self.thread_context = None


class Workers:
    """The workers by thread."""

    def __init__(self) -> None:
        self._workers: dict[str, MailboxWorker] = {}

    def __contains__(self, thread_id: str) -> bool:
        return thread_id in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, thread_id: str) -> MailboxWorker | None:
        """Return a thread's worker."""
        return self._workers.get(thread_id)

    def get_or_create(self, thread_id: str) -> MailboxWorker:
        """Return a thread's worker, an idle one if there was none."""
        return self._workers.setdefault(thread_id, MailboxWorker())

    def running(self) -> list[tuple[str, MailboxWorker]]:
        """Return the workers at work, with their threads."""
        return [(thread_id, worker) for thread_id, worker in self._workers.items() if worker.is_running]

    def idle_threads(self) -> list[str]:
        """Return the threads whose workers have nothing to do and are wanted by nobody."""
        return [thread_id for thread_id, worker in self._workers.items() if _rests(worker)]

    def forget(self, thread_id: str) -> None:
        """Drop an idle worker; one that was given work meanwhile stays."""
        worker = self._workers.get(thread_id)
        if worker is not None and _rests(worker):
            del self._workers[thread_id]

    def remember(self, run: RunRecord, messages: Sequence[Message]) -> None:
        """Bring a thread's context up to what was just written, where there is one."""
        worker = self._workers.get(run.thread_id)
        if worker is not None and worker.thread_context is not None:
            worker.thread_context = worker.thread_context.after(run, messages)


def _rests(worker: MailboxWorker) -> bool:
    return worker.status is WorkerStatus.IDLE and not worker.foreground


class Slots:
    """How many runs execute at once, in all and for each tenant, and which threads wait for their turn.

    A thread that finds no slot stands in a line; the next free slot goes to the first in line that may have
    it, so that a busy thread cannot keep others waiting.
    """

    def __init__(self, total: int, per_tenant: int | None) -> None:
        self._total = total
        self._per_tenant = per_tenant
        self._used: Counter[str] = Counter()
        self._line: OrderedDict[str, str | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    @property
    def used(self) -> int:
        """How many runs execute or are being claimed."""
        return self._used.total()

    @property
    def free(self) -> int:
        """How many more may."""
        return max(self._total - self.used, 0)

    def waits(self, thread_id: str) -> bool:
        """Whether the thread stands in the line."""
        return thread_id in self._line

    def take(self, thread_id: str, tenant: str | None) -> bool:
        """Take a slot, or stand in the line. A tenant of None is not known yet."""
        if self.free and self.has_room(tenant):
            self._line.pop(thread_id, None)
            self._used[tenant or ""] += 1
            return True
        self._line.setdefault(thread_id, tenant)
        return False

    def overdraw(self, tenant: str) -> None:
        """Take a slot that may not be there: a person waits for this run."""
        self._used[tenant] += 1

    def has_room(self, tenant: str | None) -> bool:
        """Whether the tenant may have one more."""
        if self._per_tenant is None or not tenant:
            return True
        return self._used[tenant] < self._per_tenant

    def move(self, tenant: str, other: str) -> bool:
        """Give one tenant's slot to another; False when that one is at its bound."""
        if tenant == other:
            return True
        if not self.has_room(other):
            return False
        self._used[tenant] -= 1
        self._used[other] += 1
        return True

    def give(self, tenant: str) -> None:
        """Give a slot back."""
        self._used[tenant] -= 1

    def stand_in_line(self, thread_id: str, tenant: str | None) -> None:
        """Put a thread at the end of the line, if it does not stand in it."""
        self._line.setdefault(thread_id, tenant)

    def next_in_line(self) -> str | None:
        """Take the first thread out of the line that could have a slot now."""
        if not self.free:
            return None
        found = next((one for one, tenant in self._line.items() if self.has_room(tenant)), None)
        if found is not None:
            del self._line[found]
        return found

    def leave_line(self, thread_ids: Iterable[str]) -> None:
        """Take threads out of the line."""
        for thread_id in thread_ids:
            self._line.pop(thread_id, None)
