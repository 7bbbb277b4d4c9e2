"""What every part of a mailbox works with: its ports, its settings, its ids, and nothing that decides."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from postroom.concurrency import Tasks, retried
from postroom.contracts.clock import Ids, Timer
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.live import LiveChannels
from postroom.contracts.run_stores import Places
from postroom.dispatch.budgets import Budgets
from postroom.dispatch.capture import Capture
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.metrics import MailboxMetrics
from postroom.dispatch.registry import Pinning
from postroom.ports import RunEffects
from postroom.stores.runs.ports import RunStores

T = TypeVar("T")


class Core:
    """The ports and settings of one mailbox."""

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        *,
        executor: RunDispatchExecutor,
        stores: RunStores,
        consumer_id: str,
        config: MailboxConfig,
        timer: Timer,
        random: Random,
        new_id: Ids,
        metrics: MailboxMetrics,
        live: LiveChannels | None,
        effects: RunEffects | None,
    ) -> None:
        self.executor = executor
        self.stores = stores
        self.store = stores.store
        self.dispatches = stores.dispatches
        self.threads = stores.threads
        self.coordinator = stores.coordinator
        self.consumer_id = consumer_id
        self.config = config
        self.budgets = Budgets(config.budgets)
        self.has_budgets = bool(config.budgets)
        self.counts_all = bool(config.limits or config.budgets)
        """Whether a claim counts what all workers of the database do: it is a change of its own then."""
        self.timer = timer
        self.random = random
        self.new_id = new_id
        self.now = stores.clock.now
        self.metrics = metrics
        self.observed = metrics.observed
        self.live = live
        self.pinning = Pinning(executor)
        self.capture: Capture | None = None
        """What keeps the executions' events, when something does."""
        self.tasks = Tasks("mailbox")
        self.claiming = Tasks("the mailbox")
        """Changes that may claim a dispatch, each with the execution that follows from it."""
        self.effects = effects
        """What belongs to the beginning and the end of runs, where something does."""
        self.may_hold_more = True
        """Whether a claim of this process may be stored that it does not execute, after a lost reply."""
        self.is_leaving = False
        """Whether this worker no longer waits for an unavailable store; it leaves runs to their leases."""

    @property
    def places(self) -> Places:
        """The places where this process executes runs; None for every place."""
        return None if self.config.places is None else self.config.places()

    def gives_up(self) -> bool:
        """Return whether a step of a run is not repeated while the store is unavailable."""
        return self.is_leaving

    async def retried(self, step: Callable[[], Awaitable[T]]) -> T:
        """Return what `step` returns; repeat the step while the store is unavailable.

        Raises:
            StoreError: The worker is leaving, or the failure does not pass by itself.
        """
        return await retried(step, self.timer, gives_up=self.gives_up)
