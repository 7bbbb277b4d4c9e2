"""The additional promises of the run stores in memory: places, limits, hints, the registry."""

import asyncio
from datetime import timedelta

import pytest

from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import (
    InvalidRecord,
)
from postroom.contracts.registry import PinnedEntry
from postroom.contracts.run_stores import Delivery, ThreadCommit
from postroom.stores.changes import WORK, TopicListener
from postroom.stores.memory import MemoryRunStores
from postroom.stores.registry import MemoryRegistryStore
from postroom.testing import ManualClock


@pytest.fixture
def stores(clock: ManualClock) -> MemoryRunStores:
    return MemoryRunStores(clock)


def asked(
    dispatch_id: str, thread_id: str = "t", *, run_id: str | None = None, **details: int
) -> RunDispatch:
    details.setdefault("created_at", 0)
    return RunDispatch.queued(dispatch_id, thread_id, run_id or f"run-{dispatch_id}", **details)


async def test_others_run_while_a_call_is_being_made(stores: MemoryRunStores) -> None:
    order = []

    async def enqueue() -> None:
        await stores.dispatches.enqueue(asked("d"))
        order.append("enqueued")

    async def look_on() -> None:
        order.append("meanwhile")

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(enqueue())
        group.create_task(look_on())
    assert order == ["meanwhile", "enqueued"]


async def woken(news: TopicListener) -> bool:
    """Return whether there is a hint, and take it."""
    return await news.wait(timedelta())


async def test_whatever_may_let_something_be_claimed_is_a_hint(stores: MemoryRunStores) -> None:
    queue, news = stores.dispatches, stores._store.changes.listen(WORK)
    assert not await woken(news)
    await queue.enqueue(asked("d"))
    assert await woken(news)
    claimed = await queue.claim("t", "w", lease_ms=5)
    assert claimed is not None
    await queue.extend_lease(claimed.claim_proof, extension_ms=9)
    assert not await woken(news)
    await queue.release(claimed.claim_proof)
    assert await woken(news)
    await queue.claim_dispatch("d", "w", lease_ms=5, now=0)
    assert not await woken(news)
    await queue.reclaim_expired_leases(now=10)
    assert await woken(news)
    await queue.cancel("d")
    assert await woken(news)
    await queue.interrupt("t")
    assert await woken(news)
    await stores.coordinator.commit(ThreadCommit(thread_id="t", thread_state={}))
    assert not await woken(news)
    await stores.coordinator.commit(ThreadCommit(thread_id="t", delivery=Delivery(dispatch=asked("d2"))))
    assert await woken(news)


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
