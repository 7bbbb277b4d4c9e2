"""The registry in memory."""

import pytest

from postroom.contracts.errors import InvalidRecord
from postroom.contracts.registry import PinnedEntry
from postroom.stores.registry import MemoryRegistryStore


async def test_a_publication_stays_as_it_was_published() -> None:
    registry = MemoryRegistryStore()
    value = {"model": "a"}
    entry = PinnedEntry(kind="agent", id="writer", version=1, value=value, content_hash="sha256:0")
    first = await registry.publish("default", (entry,))
    value["model"] = "b"
    second = await registry.publish("default", (entry,))
    assert [first.publication_id, second.publication_id] == [1, 2]
    kept = await registry.publication("default", 1)
    assert kept == first
    assert first.entries[0].value == {"model": "a"}
    assert await registry.latest("default") == second
    assert await registry.latest("other") is None
    assert [await registry.publication("default", number) for number in (0, 3, -1)] == [None] * 3


async def test_a_registry_scope_must_be_a_name() -> None:
    registry = MemoryRegistryStore()
    with pytest.raises(InvalidRecord):
        await registry.publish(" ", ())
    with pytest.raises(InvalidRecord):
        await registry.latest(" ")
