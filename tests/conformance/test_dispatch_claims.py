"""Owners of dispatches, their order, never two of a thread; interrupts, epochs and cancelling."""

import asyncio
from datetime import timedelta

import pytest

from conformance.boxes import on_both
from conformance.promises.run_given import (
    LEASE,
    SECOND,
    TOGETHER,
    claimed,
    ended,
    enqueued,
    ids,
    loaded,
    reported,
    taken,
    without_token,
)
from postroom.contracts.dispatch import (
    INTERRUPTED,
    STALE_EPOCH,
    TERMINAL,
    Interrupt,
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


async def test_each_claim_has_a_token_of_its_own(stores: RunStores, queue: DispatchStore) -> None:
    tokens = set()
    await enqueued(stores, max_attempts=9)
    for _ in range(4):
        owned = await claim(stores)
        tokens.add(owned.claim_token)
        await queue.nack(owned.claim_proof, error="again")
    tokens.add((await claimed(stores, "d2", thread="u")).claim_token)
    assert len(tokens) == 5


async def test_a_claim_by_thread_waits_until_available_at_and_one_by_id_does_not(
    stores: RunStores, clock: ManualClock
) -> None:
    due = clock.now() + 10
    await enqueued(stores, "d1", available_at=due)
    await enqueued(stores, "d2", thread="u", available_at=due)
    clock.set(due - 1)
    assert await claim(stores) is None
    owned = await taken(stores, "d2", consumer="inline")
    assert (owned.status, owned.claimed_by, owned.lease_until) == (CLAIMED, "inline", due - 1 + LEASE)
    clock.set(due)
    assert await claim(stores) is not None


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


async def test_a_claim_follows_a_nack_when_it_is_due(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    owned = await claimed(stores)
    await queue.nack(owned.claim_proof, error="again", delay_ms=SECOND)
    assert await claim(stores) is None
    await enqueued(stores, "d2")
    assert await claim_and_ack(stores) == "d2"
    clock.advance(timedelta(seconds=1))
    again = await claim(stores)
    assert (again.dispatch_id, again.attempt_count) == ("d1", 1)


async def test_what_has_ended_is_neither_claimed_nor_cancelled_nor_interrupted(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    before = [await ended(stores, status.value, status) for status in TERMINAL]
    clock.advance(timedelta(seconds=1))
    done = await queue.interrupt("t")
    assert (done.superseded_count, done.active_dispatch) == (0, None)
    assert await claim(stores) is None
    for row in (*before, RunDispatch.queued("unknown", "t", "r", created_at=1)):
        assert await queue.claim_dispatch(row.dispatch_id, "worker", lease_ms=LEASE) is None
        assert await queue.cancel(row.dispatch_id) is None
    assert [await loaded(stores, row.dispatch_id) for row in before] == before


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


async def test_a_given_instant_counts_before_the_clock(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    later = clock.now() + 100 * SECOND
    await enqueued(stores, available_at=later, max_attempts=9)
    assert await queue.claim("t", "w", lease_ms=5, now=later - 1) is None
    assert await queue.due_thread_ids(now=later) == ("t",)
    owned = await queue.claim("t", "w", lease_ms=5, now=later)
    assert (owned.claimed_at, owned.lease_until, owned.updated_at) == (later, later + 5, later)
    assert await queue.extend_lease(owned.claim_proof, extension_ms=7, now=later + 1)
    assert (await loaded(stores)).lease_until == later + 8
    started = await queue.record_dispatch_start(owned.claim_proof, "i", now=later + 2)
    assert started.updated_at == later + 2
    assert await queue.reclaim_expired_leases(now=later + 8) == ()
    (back,) = await queue.reclaim_expired_leases(now=later + 9)
    assert (back.available_at, back.updated_at) == (0, later + 9)
    again = await queue.claim_dispatch("d1", "w", lease_ms=5, now=later + 10)
    assert again.lease_until == later + 15
    given_back = await queue.nack(again.claim_proof, error="x", delay_ms=3, now=later + 11)
    assert given_back.available_at == later + 14
    withdrawn = await queue.cancel("d1", now=later + 12)
    assert (withdrawn.completed_at, withdrawn.updated_at) == (later + 12, later + 12)


async def test_a_clock_that_is_turned_back_breaks_nothing(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """Without a delay, a dispatch is due whatever the clock says; with a delay, it waits for its instant."""
    start = clock.now()
    owned = await claimed(stores)
    await enqueued(stores, "d2")
    await enqueued(stores, "d3", available_at=start + 1)
    assert await queue.due_thread_ids() == ()
    clock.set(start - 3600 * SECOND)
    assert await queue.reclaim_expired_leases() == ()
    assert await claim(stores) is None
    assert await loaded(stores) == owned
    await queue.record_dispatch_start(owned.claim_proof, "instance")
    assert await queue.extend_lease(owned.claim_proof, extension_ms=LEASE)
    assert (await loaded(stores)).lease_until == start - 3600 * SECOND + LEASE
    await queue.ack(owned.claim_proof)
    assert (await queue.due_thread_ids(), await queue.next_due_at()) == (("t",), 0)
    for _ in range(2):
        found = await claim(stores)
        assert found.dispatch_id == "d2"
        await queue.release(found.claim_proof)
        clock.advance(timedelta(hours=-1))
    await queue.cancel("d2")
    assert (await claim(stores), await queue.next_due_at()) == (None, start + 1)
    clock.set(start + 1)
    assert await claim_and_ack(stores) == "d3"


async def test_a_claim_whose_answer_was_lost_is_found_again(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    await claimed(stores)  # the answer is not used
    assert await claim(stores) is None
    held = await queue.claimed_dispatch("t")
    assert held.claimed_by == "worker"
    clock.set(clock.now() + LEASE + 1)
    await queue.reclaim_expired_leases()
    again = await claim(stores, consumer="another")
    assert again.attempt_count == 1
    with pytest.raises(StaleClaim):
        await queue.ack(held.claim_proof)
    assert await loaded(stores) == again


async def test_what_the_caller_decided_on_is_kept_through_a_life(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    details = {"priority": 9, "dedupe_key": "k", "deadline_at": clock.now() + 9, "tenant": "acme"}
    given = await enqueued(stores, max_attempts=7, **details)
    kept = {"dispatch_id", "thread_id", "run_id", "created_at", "dispatch_epoch", "max_attempts", *details}
    owned = await taken(stores)
    back = await queue.nack(owned.claim_proof, error="x")
    owned = await taken(stores)
    for record in (owned, back, await queue.ack(owned.claim_proof), await loaded(stores)):
        assert {name: getattr(record, name) for name in kept} == {name: getattr(given, name) for name in kept}
    assert (await loaded(stores)).claimed_by is None


async def test_an_interrupt_supersedes_all_that_is_queued_on_its_thread(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    first = await enqueued(stores, "d1", created_at=clock.now() - 2)
    later = await enqueued(stores, "d2", available_at=clock.now() + 60 * SECOND)
    other = await enqueued(stores, "o1", thread="u")
    clock.advance(timedelta(seconds=1))
    done = await queue.interrupt("t")
    expected = [row.superseded(reason=INTERRUPTED, now=clock.now()) for row in (first, later)]
    assert sorted(done.superseded_dispatches, key=lambda row: row.dispatch_id) == expected
    assert (done.new_dispatch_epoch, done.active_dispatch, done.superseded_count) == (1, None, 2)
    assert [await loaded(stores, name) for name in ("d1", "d2")] == expected
    assert not any(row.reconciled for row in expected)
    assert await loaded(stores, "o1") == other
    assert await queue.current_dispatch_epoch("u") == 0
    assert await queue.due_thread_ids() == ("u",)


async def test_an_interrupt_names_who_is_at_work_and_what_follows_is_claimed_after_it(
    stores: RunStores, queue: DispatchStore
) -> None:
    owned = await reported(stores, await claimed(stores))
    await enqueued(stores, "d2")
    done = await queue.interrupt("t")
    assert (done.active_dispatch, ids(done.superseded_dispatches)) == (owned, ["d2"])
    assert await loaded(stores) == owned
    await enqueued(stores, "d3")
    assert await claim(stores) is None
    assert await queue.claim_dispatch("d3", "worker", lease_ms=LEASE) is None
    with pytest.raises(StaleClaim):
        await queue.ack(owned.claim_proof)
    newest = await claim(stores)
    assert (newest.dispatch_id, newest.dispatch_epoch) == ("d3", 1)
    await queue.ack(newest.claim_proof)


async def test_the_epoch_counts_the_interrupts_of_a_thread(queue: DispatchStore) -> None:
    for number in range(1, 4):
        assert await queue.interrupt("t") == Interrupt(new_dispatch_epoch=number)
        assert await queue.current_dispatch_epoch("t") == number
    assert await queue.current_dispatch_epoch("u") == 0


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


async def test_a_queued_dispatch_is_cancelled_also_one_that_was_given_back(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    await queue.nack((await claimed(stores)).claim_proof, error="x", delay_ms=60 * SECOND)
    queued = await loaded(stores)
    clock.advance(timedelta(seconds=1))
    withdrawn = await queue.cancel("d1")
    assert withdrawn == queued.cancelled(now=clock.now()) == await loaded(stores)
    assert not withdrawn.reconciled
    assert await claim(stores) is None
    assert await queue.cancel("d1") is None
    assert await loaded(stores) == withdrawn
    owned = await claimed(stores, "d2")
    assert await queue.cancel("d2") is None
    assert await queue.claimed_dispatch("t") == owned
