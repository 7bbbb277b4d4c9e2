"""The registry of versioned configuration in memory."""

import asyncio
from copy import deepcopy

from postroom.contracts.registry import PinnedEntry, PinnedRegistryManifest, checked_scope


class MemoryRegistryStore:
    """Published versions of the configuration, in the memory of this process."""

    def __init__(self) -> None:
        self._publications: dict[str, list[PinnedRegistryManifest]] = {}

    async def publication(self, scope: str, number: int) -> PinnedRegistryManifest | None:
        """Return the published version with this number, or None.

        Raises:
            InvalidRecord: The scope is not a valid name.
        """
        await asyncio.sleep(0)
        publication = self._publications.get(checked_scope(scope), [])
        return deepcopy(publication[number - 1]) if 1 <= number <= len(publication) else None

    async def publish(self, scope: str, entries: tuple[PinnedEntry, ...]) -> PinnedRegistryManifest:
        """Publish a new version of a scope; the first version has the number 1.

        Raises:
            InvalidRecord: The scope is not a valid name.
        """
        await asyncio.sleep(0)
        published = self._publications.setdefault(checked_scope(scope), [])
        manifest = PinnedRegistryManifest(publication_id=len(published) + 1, entries=deepcopy(entries))
        published.append(manifest)
        return deepcopy(manifest)

    async def latest(self, scope: str) -> PinnedRegistryManifest | None:
        """Return the newest published version of a scope, or None.

        Raises:
            InvalidRecord: The scope is not a valid name.
        """
        await asyncio.sleep(0)
        published = self._publications.get(checked_scope(scope), [])
        return deepcopy(published[-1]) if published else None
