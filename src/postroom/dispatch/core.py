"""Ports, settings and ids that the modules of a mailbox share; this module makes no decisions."""

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
    """Pins each run to a version of the configuration, which all executions of the run use."""

    def __init__(
        self,
        executor: RunDispatchExecutor,
        registry: VersionedRegistryStore | None = None,
        scope: str = "",
    ) -> None:
        """Set the registry that publishes configuration versions, or None for runs without a pin.

        Raises:
            InvalidRecord: The scope is not a valid name.
        """
        self._executor = executor
        self._registry = registry
        self._scope = scope if registry is None else checked_scope(scope)

    async def pin(self, request: RunActivation, *, run_id: str) -> str:
        """Return the pin of a new run: the requested pin, the latest published version, or the run id.

        Raises:
            ResolveFailed: The executor cannot resolve the agent, or could not do so again later.
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
        """Return the registry contents to which a run is pinned, or None without a registry.

        Raises:
            InternalError: The pin is not a number, its publication no longer exists, or there is no live
                registry.
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
        # The published agents and models, and everything else from the live registry.
        kinds: dict[str, dict[str, Json]] = defaultdict(dict)
        for entry in manifest.entries:
            kinds[entry.kind][entry.id] = entry.value
        return replace(live, agents=kinds["agent"], models=kinds["model"] | kinds["model_pool"])


T = TypeVar("T")


class Core:
    """The stores, executor and settings of one mailbox."""

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
        """The lock that claiming transactions take if claims must count the runs of all workers of the
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
        """The rules for storing the events of executions, or None if no events are stored."""
        self.tasks = Tasks("mailbox")
        self.claiming = Tasks("the mailbox")
        """The tasks that write changes which may claim a dispatch, and that execute claimed runs."""
        self.effects = effects
        """The effects of the start and end of runs, if there are any."""
        self.is_leaving = False
        """Whether this worker is shutting down.

        A worker that shuts down does not wait for an unavailable store, and lets its leases expire.
        """

    @property
    def places(self) -> Places:
        """The places whose runs the current process executes, or None for all places."""
        return None if self.config.places is None else self.config.places()

    def gives_up(self) -> bool:
        """Return whether to stop retrying a step of a run while the store is unavailable."""
        return self.is_leaving

    async def retried(self, step: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `step`, with retries while the store is unavailable.

        Raises:
            StoreError: The worker is shutting down, or the failure is permanent.
        """
        return await retried(step, self.timer, gives_up=self.gives_up)
