"""The parts that the modules of a mailbox share: ports, settings and ids. This module decides nothing."""

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from postroom.concurrency import Tasks, retried
from postroom.contracts.activation import RunActivation
from postroom.contracts.clock import Ids, Timer
from postroom.contracts.errors import InternalError, ResolveFailed
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.limits import LIMITS
from postroom.contracts.live import LiveChannels
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.contracts.registry import (
    RegistrySet,
    VersionedRegistryStore,
    checked_scope,
)
from postroom.contracts.run_stores import Places
from postroom.dispatch.budgets import Budgets
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.metrics import MailboxMetrics
from postroom.dispatch.sinks import Capture
from postroom.ports import RunEffects
from postroom.stores.runs.ports import RunStores

_PUBLICATION = re.compile(r"[0-9]{1,18}")


class Pinning:
    """Pins each run to one version of the registry, so that later executions use the same configuration.

    Chooses the pin when a run is prepared, and loads the pinned registry when the run is executed.
    """

    def __init__(
        self,
        executor: RunDispatchExecutor,
        registry: VersionedRegistryStore | None = None,
        scope: str = "",
    ) -> None:
        """Pin runs to the publications of this registry; pass None if there is no registry.

        Raises:
            InvalidRecord: The scope is not a valid name.
        """
        self._executor = executor
        self._registry = registry
        self._scope = scope if registry is None else checked_scope(scope)

    async def pin(self, request: RunActivation, *, run_id: str) -> str:
        """Return the pin of a new run: the requested pin, else the latest publication, else the run's id.

        Raises:
            ResolveFailed: The executor cannot resolve the agent, or could not resolve it again later.
        """
        pinned = request.hints.resolution_id
        if pinned is None and self._registry is not None:
            manifest = await self._registry.latest(self._scope)
            pinned = None if manifest is None else str(manifest.publication_id)
        plan = await self._executor.resolve(request, pinned=pinned or run_id)
        if not plan.replayable:
            raise ResolveFailed(
                f"the pinned configuration of run {run_id!r} cannot be loaded again",
                value=plan.resolution_id,
            )
        return plan.resolution_id

    async def materialize(self, resolution_id: str) -> RegistrySet | None:
        """Return the registry of a pin.

        None if no versioned registry is attached, so that the live one applies.

        Raises:
            InternalError: The pin is not a number, its publication is gone, or there is no live registry.
        """
        if self._registry is None:
            return None
        if not _PUBLICATION.fullmatch(resolution_id):
            shown = resolution_id[:80]
            raise InternalError(f"invalid pinned registry resolution id {shown!r}", value=shown)
        live = self._executor.live_registry()
        if live is None:
            raise InternalError("the executor has no live registry, which a pinned registry needs")
        manifest = await self._registry.publication(self._scope, int(resolution_id))
        if manifest is None:
            raise InternalError(
                f"missing registry version publication/{self._scope}@{resolution_id}", value=resolution_id
            )
        # A registry with the published agents and models, and everything else from the live registry.
        kinds: dict[str, dict[str, Json]] = defaultdict(dict)
        for entry in manifest.entries:
            kinds[entry.kind][entry.id] = entry.value
        return replace(live, agents=kinds["agent"], models=kinds["model"] | kinds["model_pool"])


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
        self.limits_lock: tuple[str, ...] = (LIMITS,) if config.limits or config.budgets else ()
        """The lock that each claiming transaction takes if claims must count the runs of all workers of the
        database.
        """
        self.timer = timer
        self.random = random
        self.new_id = new_id
        self.now = stores.clock.now
        self.metrics = metrics
        self.observed = metrics.observed
        self.live = live
        self.pinning = Pinning(executor)
        self.capture: Capture | None = None
        """The rules that decide which events of executions are stored; None if none are."""
        self.tasks = Tasks("mailbox")
        self.claiming = Tasks("the mailbox")
        """The tasks that write changes which may claim a dispatch, and that execute the claimed runs."""
        self.effects = effects
        """The effects of the start and the end of runs, if any."""
        self.is_leaving = False
        """Whether this worker is shutting down.

        A worker that is shutting down no longer waits for an unavailable store, and lets its leases expire.
        """

    @property
    def places(self) -> Places:
        """The places where this process executes runs; None for every place."""
        return None if self.config.places is None else self.config.places()

    def gives_up(self) -> bool:
        """Return whether to stop repeating a run's step while the store is unavailable."""
        return self.is_leaving

    async def retried(self, step: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `step`; repeat the step as long as the store is unavailable.

        Raises:
            StoreError: The worker is shutting down, or the failure is permanent.
        """
        return await retried(step, self.timer, gives_up=self.gives_up)
