"""Who owns a dispatch, to the millisecond: claims contend, leases end, retries become due."""

import asyncio

import pytest

from dispatch.conftest import Room
from dispatch_room import sample_dispatch
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import StaleClaim
from postroom.stores.runs.ports import DispatchStore


async def owned_from_1000_to_1100(dispatches: DispatchStore, name: str) -> RunDispatch:
    """Enqueue a dispatch at instant 0 and have it claimed by consumer a at 1000 for 100 ms."""
    await dispatches.enqueue(
        sample_dispatch(f"thread-{name}", f"run-{name}", f"dispatch-{name}", now=0), now=0
    )
    claimed = await dispatches.claim_dispatch(f"dispatch-{name}", "consumer-a", lease_ms=100, now=1_000)
    assert claimed is not None
    assert (claimed.status, claimed.lease_until, claimed.attempt_count) == (
        RunDispatchStatus.CLAIMED,
        1_100,
        0,
    )
    return claimed


async def test_distributed_claim_same_dispatch_allows_exactly_one_consumer(room: Room) -> None:
    store, now = room.stores.dispatches, room.clock.now()
    dispatch_id = "dispatch-distributed-claim"
    await store.enqueue(
        sample_dispatch("thread-distributed-claim", "run-distributed-claim", dispatch_id, now=now)
    )
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        attempts = [
            group.create_task(store.claim_dispatch(dispatch_id, f"consumer-{number}", lease_ms=30_000))
            for number in range(32)
        ]
    [winner] = [claimed for attempt in attempts if (claimed := attempt.result()) is not None]
    loaded = await store.load_dispatch(dispatch_id)
    assert loaded is not None
    assert loaded == winner
    assert loaded.status is RunDispatchStatus.CLAIMED
    assert loaded.claimed_by in {f"consumer-{number}" for number in range(32)}
    assert loaded.lease_until == now + 30_000


async def test_distributed_expired_lease_reclaim_rejects_late_old_owner_ack(room: Room) -> None:
    store = room.stores.dispatches
    by_a = await owned_from_1000_to_1100(store, "lease-race")

    [reclaimed] = await store.reclaim_expired_leases(limit=10, now=1_101)
    assert reclaimed.dispatch_id == by_a.dispatch_id
    assert (reclaimed.status, reclaimed.attempt_count) == (RunDispatchStatus.QUEUED, 1)

    by_b = await store.claim_dispatch(by_a.dispatch_id, "consumer-b", lease_ms=30_000, now=1_102)
    assert by_b is not None
    assert by_b.claim_token != by_a.claim_token
    with pytest.raises(StaleClaim):
        await store.ack(by_a.claim_proof, now=1_103)
    assert await store.load_dispatch(by_a.dispatch_id) == by_b
    assert (by_b.status, by_b.claimed_by) == (RunDispatchStatus.CLAIMED, "consumer-b")

    await store.ack(by_b.claim_proof, now=1_104)
    delivered = await store.load_dispatch(by_a.dispatch_id)
    assert delivered is not None
    assert (delivered.status, delivered.completed_at) == (RunDispatchStatus.ACKED, 1_104)


async def test_distributed_lease_reclaim_uses_strict_expiry_boundary(room: Room) -> None:
    store = room.stores.dispatches
    claimed = await owned_from_1000_to_1100(store, "lease-boundary")
    assert await store.reclaim_expired_leases(limit=10, now=999) == ()
    assert await store.reclaim_expired_leases(limit=10, now=1_100) == ()
    assert await store.load_dispatch(claimed.dispatch_id) == claimed

    [reclaimed] = await store.reclaim_expired_leases(limit=10, now=1_101)
    assert reclaimed.dispatch_id == claimed.dispatch_id
    assert (reclaimed.status, reclaimed.attempt_count) == (RunDispatchStatus.QUEUED, 1)
    assert await store.reclaim_expired_leases(limit=10, now=1_101) == ()


async def test_distributed_nack_retry_window_respects_retry_at_boundary(room: Room) -> None:
    store = room.stores.dispatches
    claimed = await owned_from_1000_to_1100(store, "retry-boundary")
    nacked = await store.nack(claimed.claim_proof, error="retry later", delay_ms=999, now=1_001)
    assert (nacked.status, nacked.available_at, nacked.attempt_count) == (RunDispatchStatus.QUEUED, 2_000, 1)
    assert nacked.last_error == "retry later"

    assert await store.claim(nacked.thread_id, "consumer-b", lease_ms=30_000, now=1_999) is None
    again = await store.claim(nacked.thread_id, "consumer-b", lease_ms=30_000, now=2_000)
    assert again is not None
    assert (again.dispatch_id, again.claimed_by) == (claimed.dispatch_id, "consumer-b")
    assert again.attempt_count == 1
