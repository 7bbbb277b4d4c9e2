"""Owners of dispatches, their order, never two of a thread; interrupts, epochs and cancelling."""

import asyncio
from datetime import timedelta

import pytest

from conformance.boxes import on_both
from conformance.promises.run_given import (
    LEASE,
    SECOND,
    TOGETHER,
    ended,
    enqueued,
    ids,
    loaded,
    without_token,
)
from postroom.contracts.dispatch import (
    STALE_EPOCH,
    RunDispatch,
    RunDispatchStatus,
)
from postroom.contracts.errors import StaleClaim
from postroom.stores.runs.ports import DispatchStore, RunStores
from postroom.testing import ManualClock

QUEUED, CLAIMED = RunDispatchStatus.QUEUED, RunDispatchStatus.CLAIMED


async def claim(stores: RunStores, thread: str = "t", consumer: str = "worker") -> RunDispatch | None:
    return await stores.dispatches.claim(thread, consumer, lease_ms=LEASE)


async def claim_and_ack(stores: RunStores, thread: str = "t") -> str | None:
    """Claim, ack at once, and return the id."""
    found = await claim(stores, thread)
    if found is None:
        return None
    await stores.dispatches.ack(found.claim_proof)
    return found.dispatch_id


async def test_a_claim_owns_a_dispatch_until_its_lease_ends(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    queued = await enqueued(stores, priority=7, dedupe_key="key", deadline_at=clock.now() + 5)
    clock.advance(timedelta(seconds=3))
    owned = await claim(stores)
    expected = queued.claim(token="token", consumer="worker", lease_ms=LEASE, now=clock.now())
    assert without_token(owned) == expected
    assert owned.attempt_count == 0
    assert await loaded(stores) == owned == await queue.claimed_dispatch("t")
    assert await queue.claimed_dispatch("u") is None
    assert await claim(stores, consumer="another") is None
    assert await queue.claim_dispatch("d1", "another", lease_ms=LEASE) is None
    assert await loaded(stores) == owned


async def test_claims_are_by_priority_then_age_then_id(stores: RunStores, clock: ManualClock) -> None:
    """A dispatch that is not due is skipped, and is first when it is due."""
    now = clock.now()
    rows = (("new", 128, 0), ("b", 128, 7), ("urgent", 3, 1), ("a", 128, 7), ("old", 128, 9))
    for name, priority, age in (*rows, ("whenever", 255, 99)):
        await enqueued(stores, name, priority=priority, created_at=now - age, available_at=now - 1)
    await enqueued(stores, "later", priority=0, available_at=now + SECOND)
    assert [await claim_and_ack(stores) for _ in "123"] == ["urgent", "old", "a"]
    clock.advance(timedelta(seconds=1))
    assert [await claim_and_ack(stores) for _ in "12345"] == ["later", "b", "new", "whenever", None]


async def test_a_thread_has_one_claim_at_a_time(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """Also when its lease has ended: the owner may only be slow, and may still write."""
    await enqueued(stores, "d1", created_at=clock.now() - 2)
    await enqueued(stores, "d2", created_at=clock.now() - 1)
    first = await claim(stores)
    assert first.dispatch_id == "d1"
    for _ in range(2):
        assert await claim(stores) is None
        assert await queue.claim_dispatch("d2", "another", lease_ms=LEASE) is None
        assert (await loaded(stores, "d2")).status is QUEUED
        clock.set(clock.now() + LEASE + 1)
    await queue.ack(first.claim_proof)
    assert (await claim(stores)).dispatch_id == "d2"
    await enqueued(stores, "d3", thread="u")
    assert (await claim(stores, "u")).dispatch_id == "d3"  # what one thread does keeps no other
    assert await claim(stores, "v") is None


@on_both
async def test_many_claims_have_one_winner_by_thread_by_id_and_together(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    def by_thread(thread: str, number: int):
        return claim(stores, thread, f"w{number}")

    def by_own_id(thread: str, number: int):
        return queue.claim_dispatch(f"{thread}{number}", f"w{number}", lease_ms=LEASE)

    def either(thread: str, number: int):
        if number % 2:
            return queue.claim_dispatch(f"{thread}0", f"w{number}", lease_ms=LEASE)
        return by_thread(thread, number)

    for thread, attempt in (("a", by_thread), ("b", by_own_id), ("c", either)):
        for number in range(TOGETHER if attempt != either else 1):
            await enqueued(
                stores, f"{thread}{number}", thread=thread, created_at=clock.now() + number, available_at=1
            )
        async with asyncio.TaskGroup() as group:
            tries = [group.create_task(attempt(thread, number)) for number in range(TOGETHER)]
        [won] = [one for task in tries if (one := task.result()) is not None]
        assert await loaded(stores, won.dispatch_id) == won
        if attempt == by_thread:
            assert won.dispatch_id == "a0"
        statuses = [row.status for row in await queue.list_dispatches(thread)]
        assert (statuses.count(CLAIMED), set(statuses) <= {CLAIMED, QUEUED}) == (1, True)


@on_both
async def test_workers_together_do_each_dispatch_once_and_in_order(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    threads, depth = ("a", "b", "c"), 6
    for thread in threads:
        for number in range(depth):
            await enqueued(stores, f"{thread}{number}", thread=thread, created_at=clock.now() - 9 + number)
    done: list[str] = []
    at_work: set[str] = set()

    async def work(consumer: str) -> None:
        while any([await queue.count_queued(thread, at_most=1) for thread in threads]):
            for thread in threads:
                owned = await claim(stores, thread, consumer)
                if owned is not None:
                    assert thread not in at_work, f"{thread} is claimed twice"
                    at_work.add(thread)
                    await queue.record_dispatch_start(owned.claim_proof, consumer)
                    done.append(owned.dispatch_id)
                    at_work.remove(thread)
                    await queue.ack(owned.claim_proof)

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(work(f"w{number}"))
    for thread in threads:
        assert [one for one in done if one.startswith(thread)] == [f"{thread}{n}" for n in range(depth)]


async def test_an_epoch_is_never_lower_than_it_was(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """Not when all its thread's rows are purged or discarded, so that a number that was noted stays true."""
    for number in range(2):
        await ended(stores, f"s{number}", RunDispatchStatus.SUPERSEDED)
    await ended(stores, "acked", RunDispatchStatus.ACKED)
    await ended(stores, "dead", RunDispatchStatus.DEAD_LETTER)
    await queue.mark_reconciled(["s0", "s1", "dead"])
    await queue.discard("dead")
    clock.advance(timedelta(days=9))
    assert await queue.purge_terminal(older_than=clock.now()) == 3
    assert await queue.list_dispatches("t") == ()
    assert await queue.current_dispatch_epoch("t") == 2
    assert (await enqueued(stores, "next")).dispatch_epoch == 2
    assert (await queue.interrupt("t")).new_dispatch_epoch == 3


@on_both
async def test_interrupts_at_the_same_time_are_counted_each(stores: RunStores, queue: DispatchStore) -> None:
    for number in range(5):
        await enqueued(stores, f"d{number}")
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(queue.interrupt("t")) for _ in range(TOGETHER)]
    assert sorted(one.result().new_dispatch_epoch for one in tries) == list(range(1, TOGETHER + 1))
    superseded = [name for one in tries for name in ids(one.result().superseded_dispatches)]
    assert sorted(superseded) == [f"d{number}" for number in range(5)]
    assert await queue.current_dispatch_epoch("t") == TOGETHER


@on_both
async def test_interrupts_and_enqueues_do_not_pass_each_other(
    stores: RunStores, queue: DispatchStore
) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(TOGETHER):
            group.create_task(enqueued(stores, f"d{number}"))
            if number % 3 == 0:
                group.create_task(queue.interrupt("t"))
    epoch = await queue.current_dispatch_epoch("t")
    rows = await queue.list_dispatches("t")
    assert len(rows) == TOGETHER
    for row in rows:
        assert (row.status is QUEUED) == (row.dispatch_epoch == epoch), row
        assert row.status in (QUEUED, RunDispatchStatus.SUPERSEDED)


@on_both
async def test_a_claim_meets_an_interrupt_or_a_cancellation_with_one_winner(
    stores: RunStores, queue: DispatchStore
) -> None:
    for number in range(8):
        thread, name = f"t{number}", f"d{number}"
        await enqueued(stores, name, thread=thread)
        async with asyncio.TaskGroup() as group:
            claiming = group.create_task(claim(stores, thread))
            done = group.create_task(queue.interrupt(thread))
        owned = claiming.result()
        if owned is None:
            assert ids(done.result().superseded_dispatches) == [name]
        else:
            assert done.result().active_dispatch == owned
            with pytest.raises(StaleClaim):
                await queue.ack(owned.claim_proof)
            assert (await loaded(stores, name)).last_error == STALE_EPOCH
        await enqueued(stores, f"c{number}", thread=thread)
        async with asyncio.TaskGroup() as group:
            withdrawn = group.create_task(queue.cancel(f"c{number}"))
            claiming = group.create_task(claim(stores, thread))
        [winner] = [one.result() for one in (withdrawn, claiming) if one.result() is not None]
        assert await loaded(stores, f"c{number}") == winner
