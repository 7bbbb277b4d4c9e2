"""What a run is pinned to, and the registry that goes with it; what is missing fails closed."""

import re
from collections import defaultdict

from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import InternalError, ResolveFailed
from postroom.contracts.executor import RunDispatchExecutor
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.contracts.registry import (
    PinnedRegistryManifest,
    RegistrySet,
    VersionedRegistryStore,
    checked_scope,
)

_PUBLICATION = re.compile(r"[0-9]{1,18}")


class Pinning:
    """Chooses a run's pin when it is prepared, and the registry it stands for when it is executed."""

    def __init__(
        self,
        executor: RunDispatchExecutor,
        registry: VersionedRegistryStore | None = None,
        scope: str = "",
    ) -> None:
        """Pin runs to publications of this registry, where there is one.

        Raises:
            InvalidRecord: the scope is no name.
        """
        self._executor = executor
        self._registry = registry
        self._scope = scope if registry is None else checked_scope(scope)

    async def pin(self, request: RunActivation, *, run_id: str) -> str:
        """Return what a new run is pinned to: as asked, else the latest publication, else its own id.

        Raises:
            ResolveFailed: the executor cannot put that together, or could not do it again.
        """
        pinned = request.hints.resolution_id
        if pinned is None and self._registry is not None:
            manifest = await self._registry.latest(self._scope)
            pinned = None if manifest is None else str(manifest.publication_id)
        plan = await self._executor.resolve(request, pinned=pinned or run_id)
        if not plan.replayable:
            raise ResolveFailed(
                f"the pinned configuration of run {run_id!r} cannot be assembled again",
                value=plan.resolution_id,
            )
        return plan.resolution_id

    async def materialize(self, resolution_id: str) -> RegistrySet | None:
        """Return the registry that a pin stands for; None, the live one, when no registry is attached.

        Raises:
            InternalError: the pin is no number, its publication is gone, or there is no live registry.
        """
        if self._registry is None:
            return None
        if not _PUBLICATION.fullmatch(resolution_id):
            shown = resolution_id[:80]
            raise InternalError(f"invalid pinned registry resolution id {shown!r}", value=shown)
        live = self._executor.live_registry()
        if live is None:
            raise InternalError("the executor has no live registry to complete a pinned one")
        manifest = await self._registry.publication(self._scope, int(resolution_id))
        if manifest is None:
            raise InternalError(
                f"missing registry version publication/{self._scope}@{resolution_id}", value=resolution_id
            )
        return _frozen(live, manifest)


def _frozen(live: RegistrySet, manifest: PinnedRegistryManifest) -> RegistrySet:
    """Return agents and models as they were published, the rest as it is live."""
    kinds: dict[str, dict[str, Json]] = defaultdict(dict)
    for entry in manifest.entries:
        kinds[entry.kind][entry.id] = entry.value
    return replace(live, agents=kinds["agent"], models=kinds["model"] | kinds["model_pool"])
