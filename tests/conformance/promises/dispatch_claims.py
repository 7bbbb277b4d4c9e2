"""Promises of a dispatch store about claiming: who owns what, in which order, and never two of a thread."""

import asyncio
from datetime import timedelta

from conformance.promises.given import refused
from conformance.promises.run_given import (
    LEASE,
    SECOND,
    TOGETHER,
    Promise,
    claimed,
    ended,
    enqueued,
    ids,
    loaded,
    taken,
    without_token,
)
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import StaleClaim
from postroom.stores.runs.ports import RunStores
from postroom.testing.clock import ManualClock


async def _claim(stores: RunStores, thread: str = "t", consumer: str = "worker") -> RunDispatch | None:
    return await stores.dispatches.claim(thread, consumer, lease_ms=LEASE)


async def _claims(stores: RunStores, thread: str = "t") -> str | None:
    """Claim, ack at once, and return the id."""
    found = await _claim(stores, thread)
    if found is None:
        return None
    await stores.dispatches.ack(found.claim_proof)
    return found.dispatch_id


async def a_claim_owns_a_dispatch_until_its_lease_ends(stores: RunStores, clock: ManualClock) -> None:
    """It gives token, consumer and lease; no attempt is counted and nothing else changes."""
    queued = await enqueued(stores, priority=7, dedupe_key="key", deadline_at=clock.now() + 5)
    clock.advance(timedelta(seconds=3))
    owned = await _claim(stores)
    assert owned is not None
    expected = queued.claim(token="token", consumer="worker", lease_ms=LEASE, now=clock.now())
    assert without_token(owned) == expected
    assert owned.attempt_count == 0
    assert await loaded(stores) == owned
    assert await stores.dispatches.claimed_dispatch("t") == owned
    assert await stores.dispatches.claimed_dispatch("u") is None


async def an_enqueued_dispatch_is_claimed_once(stores: RunStores, clock: ManualClock) -> None:
    """Neither by thread nor by id does a second caller get it, and the first one's claim is unharmed."""
    owned = await claimed(stores)
    assert await _claim(stores, consumer="another") is None
    assert await stores.dispatches.claim_dispatch("d1", "another", lease_ms=LEASE) is None
    assert await loaded(stores) == owned


async def each_claim_has_a_token_of_its_own(stores: RunStores, clock: ManualClock) -> None:
    """Also the next one of the same dispatch, and one at the same instant."""
    tokens = set()
    await enqueued(stores, max_attempts=9)
    for _ in range(4):
        owned = await _claim(stores)
        assert owned is not None
        tokens.add(owned.claim_token)
        await stores.dispatches.nack(owned.claim_proof, error="again")
    tokens.add((await claimed(stores, "d2", thread="u")).claim_token)
    assert len(tokens) == 5


async def a_claim_waits_until_available_at(stores: RunStores, clock: ManualClock) -> None:
    """It is not due a millisecond before, and is due at that instant."""
    due = clock.now() + 10
    await enqueued(stores, available_at=due)
    clock.set(due - 1)
    assert await _claim(stores) is None
    clock.set(due)
    assert await _claim(stores) is not None


async def a_claim_by_id_does_not_wait(stores: RunStores, clock: ManualClock) -> None:
    """`available_at` is for claims by thread."""
    await enqueued(stores, available_at=clock.now() + 60 * SECOND)
    assert await _claim(stores) is None
    owned = await taken(stores, consumer="inline")
    assert (owned.status, owned.claimed_by) == (RunDispatchStatus.CLAIMED, "inline")
    assert owned.lease_until == clock.now() + LEASE


async def claims_are_by_priority_then_age_then_id(stores: RunStores, clock: ManualClock) -> None:
    """The lowest number first, then what was made first; when it came and when it was due matter not."""
    now = clock.now()
    for name, priority, age in (
        ("new", 128, 0),
        ("b", 128, 7),
        ("urgent", 3, 1),
        ("a", 128, 7),
        ("old", 128, 9),
        ("whenever", 255, 99),
    ):
        await enqueued(stores, name, priority=priority, created_at=now - age, available_at=now - 1)
    expected = ["urgent", "old", "a", "b", "new", "whenever"]
    assert [await _claims(stores) for _ in expected] == expected
    assert await _claims(stores) is None


async def what_is_not_due_is_passed_over(stores: RunStores, clock: ManualClock) -> None:
    """A more urgent dispatch that is not due keeps none from being claimed, and goes first when it is due."""
    await enqueued(stores, "later", priority=0, available_at=clock.now() + SECOND)
    await enqueued(stores, "now-1", priority=200)
    await enqueued(stores, "now-2", priority=201)
    assert await _claims(stores) == "now-1"
    clock.advance(timedelta(seconds=1))
    assert await _claims(stores) == "later"
    assert await _claims(stores) == "now-2"


async def a_thread_has_one_claim_at_a_time(stores: RunStores, clock: ManualClock) -> None:
    """While one is claimed, no other of the thread is, by thread or by id; after an ack the next one is."""
    await enqueued(stores, "d1", created_at=clock.now() - 2)
    await enqueued(stores, "d2", created_at=clock.now() - 1)
    first = await _claim(stores)
    assert first is not None
    assert first.dispatch_id == "d1"
    assert await _claim(stores) is None
    assert await stores.dispatches.claim_dispatch("d2", "another", lease_ms=LEASE) is None
    assert (await loaded(stores, "d2")).status is RunDispatchStatus.QUEUED
    await stores.dispatches.ack(first.claim_proof)
    second = await _claim(stores)
    assert second is not None
    assert second.dispatch_id == "d2"


async def a_lease_that_ended_still_blocks_its_thread(stores: RunStores, clock: ManualClock) -> None:
    """Until it is reclaimed nobody else begins: the owner may only be slow, and may still write."""
    owned = await claimed(stores)
    await enqueued(stores, "d2")
    clock.set(clock.now() + LEASE + 1)
    assert await _claim(stores) is None
    assert await stores.dispatches.claim_dispatch("d2", "another", lease_ms=LEASE) is None
    await stores.dispatches.ack(owned.claim_proof)
    assert await _claim(stores) is not None


async def threads_are_claimed_side_by_side(stores: RunStores, clock: ManualClock) -> None:
    """What one thread does keeps no other."""
    for thread in ("a", "b", "c"):
        await enqueued(stores, f"d-{thread}", thread=thread)
    owned = [await _claim(stores, thread) for thread in ("a", "b", "c")]
    assert [one and one.thread_id for one in owned] == ["a", "b", "c"]
    assert await _claim(stores, "d") is None


async def a_claim_follows_a_nack_when_it_is_due(stores: RunStores, clock: ManualClock) -> None:
    """The thread is free meanwhile for others."""
    owned = await claimed(stores)
    await stores.dispatches.nack(owned.claim_proof, error="again", delay_ms=SECOND)
    assert await _claim(stores) is None
    await enqueued(stores, "d2")
    assert await _claims(stores) == "d2"
    clock.advance(timedelta(seconds=1))
    again = await _claim(stores)
    assert again is not None
    assert (again.dispatch_id, again.attempt_count) == ("d1", 1)


async def what_has_ended_is_not_claimed(stores: RunStores, clock: ManualClock) -> None:
    """By thread or by id, and it stays as it is; an unknown id is none."""
    for status in (
        RunDispatchStatus.ACKED,
        RunDispatchStatus.CANCELLED,
        RunDispatchStatus.SUPERSEDED,
        RunDispatchStatus.DEAD_LETTER,
    ):
        before = await ended(stores, status.value, status)
        assert await _claim(stores) is None
        assert await stores.dispatches.claim_dispatch(status.value, "worker", lease_ms=LEASE) is None
        assert await loaded(stores, status.value) == before
    assert await stores.dispatches.claim_dispatch("unknown", "worker", lease_ms=LEASE) is None


async def many_claims_of_a_thread_have_one_winner(stores: RunStores, clock: ManualClock) -> None:
    """However many workers try at once; the others get none."""
    for number in range(TOGETHER):
        await enqueued(stores, f"d{number}", created_at=clock.now() + number, available_at=clock.now())
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(_claim(stores, consumer=f"w{n}")) for n in range(TOGETHER)]
    won = [one for task in tries if (one := task.result()) is not None]
    assert ids(won) == ["d0"]
    counts = await stores.dispatches.count_by_status()
    assert counts[RunDispatchStatus.CLAIMED] == 1
    assert counts[RunDispatchStatus.QUEUED] == TOGETHER - 1
    assert await loaded(stores, "d0") == won[0]


async def many_claims_of_a_dispatch_have_one_winner(stores: RunStores, clock: ManualClock) -> None:
    """By id, also together with claims by thread."""
    await enqueued(stores)
    async with asyncio.TaskGroup() as group:
        tries = [
            group.create_task(
                stores.dispatches.claim_dispatch("d1", f"w{n}", lease_ms=LEASE)
                if n % 2
                else _claim(stores, consumer=f"w{n}")
            )
            for n in range(TOGETHER)
        ]
    won = [one for task in tries if (one := task.result()) is not None]
    assert len(won) == 1
    assert await loaded(stores) == won[0]


async def claims_by_id_of_one_thread_have_one_winner(stores: RunStores, clock: ManualClock) -> None:
    """Also when each caller names another dispatch."""
    for number in range(TOGETHER):
        await enqueued(stores, f"d{number}")
    async with asyncio.TaskGroup() as group:
        tries = [
            group.create_task(stores.dispatches.claim_dispatch(f"d{n}", f"w{n}", lease_ms=LEASE))
            for n in range(TOGETHER)
        ]
    assert sum(task.result() is not None for task in tries) == 1
    counts = await stores.dispatches.count_by_status()
    assert counts[RunDispatchStatus.CLAIMED] == 1


async def workers_together_do_each_dispatch_once(stores: RunStores, clock: ManualClock) -> None:
    """Several threads, several workers, claim and ack until nothing is left: each is done once, in order."""
    threads, depth = ("a", "b", "c"), 6
    for thread in threads:
        for number in range(depth):
            await enqueued(stores, f"{thread}{number}", thread=thread, created_at=clock.now() - 9 + number)
    done: list[str] = []
    at_work: set[str] = set()

    async def work(consumer: str) -> None:
        while any([await stores.dispatches.count_queued(thread, at_most=1) for thread in threads]):
            for thread in threads:
                owned = await _claim(stores, thread, consumer)
                if owned is not None:
                    assert thread not in at_work, f"{thread} is claimed twice"
                    at_work.add(thread)
                    await stores.dispatches.record_dispatch_start(owned.claim_proof, consumer)
                    done.append(owned.dispatch_id)
                    at_work.remove(thread)
                    await stores.dispatches.ack(owned.claim_proof)

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(work(f"w{number}"))
    for thread in threads:
        assert [one for one in done if one.startswith(thread)] == [f"{thread}{n}" for n in range(depth)]


async def a_given_instant_counts_before_the_clock(stores: RunStores, clock: ManualClock) -> None:
    """Every method that reads the time takes it as an argument, and then looks at no clock."""
    later, store = clock.now() + 100 * SECOND, stores.dispatches
    await enqueued(stores, available_at=later, max_attempts=9)
    assert await store.claim("t", "w", lease_ms=5, now=later - 1) is None
    assert await store.due_thread_ids(now=later) == ("t",)
    owned = await store.claim("t", "w", lease_ms=5, now=later)
    assert owned is not None
    assert (owned.claimed_at, owned.lease_until, owned.updated_at) == (later, later + 5, later)
    assert await store.extend_lease(owned.claim_proof, extension_ms=7, now=later + 1)
    assert (await loaded(stores)).lease_until == later + 8
    started = await store.record_dispatch_start(owned.claim_proof, "i", now=later + 2)
    assert started.updated_at == later + 2
    assert await store.reclaim_expired_leases(now=later + 8) == ()
    (back,) = await store.reclaim_expired_leases(now=later + 9)
    assert (back.available_at, back.updated_at) == (0, later + 9)
    again = await store.claim_dispatch("d1", "w", lease_ms=5, now=later + 10)
    assert again is not None
    assert again.lease_until == later + 15
    given_back = await store.nack(again.claim_proof, error="x", delay_ms=3, now=later + 11)
    assert given_back.available_at == later + 14
    withdrawn = await store.cancel("d1", now=later + 12)
    assert withdrawn is not None
    assert (withdrawn.completed_at, withdrawn.updated_at) == (later + 12, later + 12)


async def a_clock_that_is_turned_back_breaks_nothing(stores: RunStores, clock: ManualClock) -> None:
    """Nothing is reclaimed early, nothing claimed twice, and the owner goes on writing.

    What was not delayed is due whatever the clock says; what was delayed waits for its instant.
    """
    start = clock.now()
    owned = await claimed(stores)
    await enqueued(stores, "d2")
    await enqueued(stores, "d3", available_at=start + 1)
    assert await stores.dispatches.due_thread_ids() == ()
    clock.set(start - 3600 * SECOND)
    assert await stores.dispatches.reclaim_expired_leases() == ()
    assert await _claim(stores) is None
    assert await loaded(stores) == owned
    await stores.dispatches.record_dispatch_start(owned.claim_proof, "instance")
    assert await stores.dispatches.extend_lease(owned.claim_proof, extension_ms=LEASE)
    assert (await loaded(stores)).lease_until == start - 3600 * SECOND + LEASE
    await stores.dispatches.ack(owned.claim_proof)
    assert await stores.dispatches.due_thread_ids() == ("t",)
    assert await stores.dispatches.next_due_at() == 0
    for _ in range(2):
        found = await _claim(stores)
        assert found is not None
        assert found.dispatch_id == "d2"
        await stores.dispatches.release(found.claim_proof)
        clock.advance(timedelta(hours=-1))
    await stores.dispatches.cancel("d2")
    assert await _claim(stores) is None
    assert await stores.dispatches.next_due_at() == start + 1
    clock.set(start + 1)
    assert await _claims(stores) == "d3"


async def a_claim_whose_answer_was_lost_is_found_again(stores: RunStores, clock: ManualClock) -> None:
    """Repeating it gives none, the owner is named by the thread, and after the lease another gets it."""
    await claimed(stores)  # the answer is not used
    assert await _claim(stores) is None
    held = await stores.dispatches.claimed_dispatch("t")
    assert held is not None
    assert held.claimed_by == "worker"
    clock.set(clock.now() + LEASE + 1)
    await stores.dispatches.reclaim_expired_leases()
    again = await _claim(stores, consumer="another")
    assert again is not None
    assert again.attempt_count == 1
    with refused(StaleClaim):
        await stores.dispatches.ack(held.claim_proof)
    assert await loaded(stores) == again


async def data_is_kept_through_a_life(stores: RunStores, clock: ManualClock) -> None:
    """From the queue to the end and back, what the caller decided on stays as it was."""
    given = await enqueued(
        stores, priority=9, dedupe_key="k", deadline_at=clock.now() + 9, tenant="acme", max_attempts=7
    )
    kept = (
        *("dispatch_id", "thread_id", "run_id", "created_at", "priority", "dedupe_key", "dispatch_epoch"),
        *("deadline_at", "tenant", "max_attempts"),
    )
    owned = await taken(stores)
    back = await stores.dispatches.nack(owned.claim_proof, error="x")
    owned = await taken(stores)
    for record in (owned, back, await stores.dispatches.ack(owned.claim_proof), await loaded(stores)):
        assert {name: getattr(record, name) for name in kept} == {name: getattr(given, name) for name in kept}
    assert (await loaded(stores)).claimed_by is None


PROMISES: tuple[Promise, ...] = (
    a_claim_owns_a_dispatch_until_its_lease_ends,
    an_enqueued_dispatch_is_claimed_once,
    each_claim_has_a_token_of_its_own,
    a_claim_waits_until_available_at,
    a_claim_by_id_does_not_wait,
    claims_are_by_priority_then_age_then_id,
    what_is_not_due_is_passed_over,
    a_thread_has_one_claim_at_a_time,
    a_lease_that_ended_still_blocks_its_thread,
    threads_are_claimed_side_by_side,
    a_claim_follows_a_nack_when_it_is_due,
    what_has_ended_is_not_claimed,
    many_claims_of_a_thread_have_one_winner,
    many_claims_of_a_dispatch_have_one_winner,
    claims_by_id_of_one_thread_have_one_winner,
    workers_together_do_each_dispatch_once,
    a_given_instant_counts_before_the_clock,
    a_clock_that_is_turned_back_breaks_nothing,
    a_claim_whose_answer_was_lost_is_found_again,
    data_is_kept_through_a_life,
)
