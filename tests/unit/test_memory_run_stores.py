"""What the run stores in memory add to the promises of every store: places, limits, hints, the registry."""

import asyncio
from datetime import timedelta

import pytest

from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    InvalidRecord,
)
from postroom.contracts.outbox import NackOutcome, OutboxDraft
from postroom.contracts.registry import PinnedEntry
from postroom.contracts.run_stores import Delivery, ThreadCommit
from postroom.contracts.transactions import WORK, Listener
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


def test_all_parts_name_one_place_and_each_instance_another() -> None:
    first, second = MemoryRunStores(), MemoryRunStores()
    parts = [first.dispatches, first.threads, first.events, first.outbox, first.coordinator]
    assert {part.storage_identity for part in parts} == {first.storage_identity}
    assert first.storage_identity != second.storage_identity


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


async def test_superseded_rows_do_not_use_up_the_limit_of_a_reclaim(
    stores: MemoryRunStores, clock: ManualClock
) -> None:
    for number in range(4):
        await stores.dispatches.enqueue(asked(f"d{number}", f"t{number}"))
        await stores.dispatches.claim(f"t{number}", "w", lease_ms=number)
    await stores.dispatches.interrupt("t0")
    await stores.dispatches.interrupt("t1")
    taken = await stores.dispatches.reclaim_expired_leases(limit=1, now=clock.now() + 9)
    assert [row.dispatch_id for row in taken] == ["d2"]
    counts = await stores.dispatches.count_by_status()
    assert counts[RunDispatchStatus.SUPERSEDED] == 2


async def test_an_effect_is_claimed_once_even_for_no_time(
    stores: MemoryRunStores, clock: ManualClock
) -> None:
    for number in range(3):
        await stores.outbox.enqueue(OutboxDraft(kind="l", target="x", payload={"n": number}, max_attempts=2))
    first = await stores.outbox.claim("l", "x", lease_ms=0, limit=2)
    assert [one.payload["n"] for one in first] == [0, 1]
    second = await stores.outbox.claim("l", "x", lease_ms=0, limit=2)
    assert [(one.payload["n"], one.attempt_count) for one in second] == [(0, 2), (1, 2)]
    third = await stores.outbox.claim("l", "x", lease_ms=0, limit=2)
    assert [one.payload["n"] for one in third] == [2]
    assert await stores.outbox.nack(first[0].outbox_id, "old", error="e") is NackOutcome.LOST_CLAIM
    assert third[0].claim_token is not None
    assert await stores.outbox.ack(third[0].outbox_id, third[0].claim_token)
    clock.set(clock.now() - 1)
    assert await stores.outbox.claim("l", "x", lease_ms=1, limit=9) == ()


async def woken(news: Listener) -> bool:
    """Say whether there is a hint, and take it."""
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


async def test_everybody_who_waits_for_work_is_woken(stores: MemoryRunStores) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(stores.wakeups.wait(60_000))
        await asyncio.sleep(0)
        await stores.dispatches.enqueue(asked("d"))
    assert await stores.dispatches.count_queued("t", at_most=5) == 1


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
