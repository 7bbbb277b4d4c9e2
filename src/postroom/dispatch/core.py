"""What every part of a mailbox works with: its ports, its settings, its clock, and nothing that decides."""

from collections.abc import Awaitable
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, TypeVar

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.effects import RunEffects
from postroom.contracts.events import EventStore
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.live import LiveChannels, LiveRunTarget
from postroom.contracts.outbox import OutboxDraft, OutboxStore
from postroom.contracts.run_stores import CommitCoordinator, DispatchStore, RunStores, ThreadStore, Wakeups
from postroom.contracts.runs import RunRecord
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.ids import Ids
from postroom.dispatch.keyed_locks import KeyedLocks
from postroom.dispatch.metrics import MailboxMetrics

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSet:
    """Stores put together by hand; only those of one place share transactions."""

    clock: Clock
    dispatches: DispatchStore
    threads: ThreadStore
    events: EventStore
    outbox: OutboxStore
    coordinator: CommitCoordinator
    wakeups: Wakeups

    @classmethod
    def of(cls, stores: RunStores, **others: Any) -> "StoreSet":
        """Return the parts of `stores` with some of them replaced."""
        return cls(**{one.name: others.get(one.name, getattr(stores, one.name)) for one in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The ports and settings of one mailbox."""

    executor: RunDispatchExecutor
    stores: RunStores
    consumer_id: str
    config: MailboxConfig
    timer: Timer
    random: Random
    new_id: Ids
    metrics: MailboxMetrics
    live: LiveChannels
    effects: RunEffects | None = None
    tasks: Tasks = field(default_factory=lambda: Tasks("mailbox"))
    threads_being_read: KeyedLocks = field(default_factory=KeyedLocks)
    """Held from look to write, so that those of this process do not make one another look again."""

    @property
    def clock(self) -> Clock:
        """The clock that the stores go by."""
        return self.stores.clock

    @property
    def dispatches(self) -> DispatchStore:
        """The queue."""
        return self.stores.dispatches

    @property
    def threads(self) -> ThreadStore:
        """Threads, runs and messages."""
        return self.stores.threads

    @property
    def one_transaction(self) -> bool:
        """Whether a run and its dispatch can be written in one step."""
        place = self.stores.coordinator.storage_identity
        return place is not None and place == self.stores.dispatches.storage_identity

    def now(self) -> int:
        """Return the present instant."""
        return self.stores.clock.now()

    def effects_of(self, run: RunRecord) -> tuple[OutboxDraft, ...]:
        """Return what the end of a run causes in the world."""
        return () if self.effects is None else tuple(self.effects.of(run))

    def effects_stored(self, run: RunRecord) -> None:
        """Say that what the end of a run causes is on disk."""
        if self.effects is not None:
            self.effects.stored(run)

    async def observed(self, operation: str, work: Awaitable[T]) -> T:
        """Await a store operation and record its time and result."""
        return await self.metrics.observed(operation, work)


def live_target_for_dispatch(dispatch: RunDispatch) -> LiveRunTarget:
    """Return the address of the run that this dispatch delivers."""
    return LiveRunTarget(
        thread_id=dispatch.thread_id, run_id=dispatch.run_id, dispatch_id=dispatch.dispatch_id
    )


def live_target_for_run(run: RunRecord) -> LiveRunTarget:
    """Return the address of a run."""
    return LiveRunTarget(thread_id=run.thread_id, run_id=run.run_id, dispatch_id=run.dispatch_id)
