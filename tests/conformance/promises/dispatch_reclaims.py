"""Promises of a dispatch store about leases that end, and about rows that have ended."""

import asyncio
from datetime import timedelta

from conformance.promises.run_given import (
    LEASE,
    TOGETHER,
    Promise,
    claimed,
    ended,
    enqueued,
    ids,
    loaded,
    reported,
    taken,
)
from postroom.contracts.dispatch import (
    LEASE_ENDED,
    NO_ATTEMPTS_LEFT,
    STALE_EPOCH,
    TERMINAL,
    RunDispatchStatus,
)
from postroom.contracts.records import replace
from postroom.stores.runs.ports import RunStores
from postroom.testing.clock import ManualClock


async def a_lease_that_ends_now_is_still_owned(stores: RunStores, clock: ManualClock) -> None:
    """It is taken back a millisecond later."""
    owned = await claimed(stores)
    clock.set(owned.lease_until or 0)
    assert await stores.dispatches.reclaim_expired_leases() == ()
    assert await loaded(stores) == owned
    clock.set((owned.lease_until or 0) + 1)
    assert ids(await stores.dispatches.reclaim_expired_leases()) == ["d1"]


async def what_is_taken_back_is_queued_with_an_attempt(stores: RunStores, clock: ManualClock) -> None:
    """Due at once, with nothing of the lost execution left; the next worker may begin."""
    owned = await reported(stores, await claimed(stores))
    clock.set(clock.now() + LEASE + 7)
    (back,) = await stores.dispatches.reclaim_expired_leases()
    assert back == owned.lease_ended(now=clock.now())
    assert (back.status, back.attempt_count) == (RunDispatchStatus.QUEUED, 1)
    assert (back.available_at, back.last_error) == (0, LEASE_ENDED)
    assert await loaded(stores) == back
    assert await stores.dispatches.reclaim_expired_leases() == ()
    assert (await taken(stores)).attempt_count == 1


async def at_the_last_attempt_it_is_a_dead_letter(stores: RunStores, clock: ManualClock) -> None:
    """It is returned as well, says why, and carries no result of the lost execution."""
    owned = await reported(stores, await claimed(stores, max_attempts=1))
    clock.set(clock.now() + LEASE + 1)
    (dead,) = await stores.dispatches.reclaim_expired_leases()
    assert dead == owned.lease_ended(now=clock.now())
    assert (dead.status, dead.attempt_count) == (RunDispatchStatus.DEAD_LETTER, 1)
    assert (dead.last_error, dead.completed_at) == (NO_ATTEMPTS_LEFT.format(LEASE_ENDED), clock.now())
    assert (dead.run_status, dead.run_response) == (None, None)
    assert not dead.reconciled
    assert await loaded(stores) == dead


async def an_interruption_is_counted_apart_from_attempts(stores: RunStores, clock: ManualClock) -> None:
    """If the dispatch has a limit of interruptions: it is due at once, and a dead letter beyond the limit."""
    owned = await reported(stores, await claimed(stores, max_attempts=1, max_interruptions=1))
    clock.set(clock.now() + LEASE + 1)
    (back,) = await stores.dispatches.reclaim_expired_leases()
    assert back == owned.lease_ended(now=clock.now())
    assert (back.status, back.attempt_count, back.interruption_count) == (RunDispatchStatus.QUEUED, 0, 1)
    assert (back.available_at, await loaded(stores)) == (0, back)
    again = await taken(stores)
    clock.set(clock.now() + LEASE + 1)
    (dead,) = await stores.dispatches.reclaim_expired_leases()
    assert dead == again.lease_ended(now=clock.now())
    assert (dead.status, dead.attempt_count, dead.interruption_count) == (RunDispatchStatus.DEAD_LETTER, 0, 2)
    assert (await loaded(stores), dead.executions) == (dead, 2)


async def an_interrupted_claim_is_superseded_when_its_lease_ends(
    stores: RunStores, clock: ManualClock
) -> None:
    """It is neither queued again nor returned, and its thread is free."""
    owned = await reported(stores, await claimed(stores))
    await stores.dispatches.interrupt("t")
    await enqueued(stores, "d2")
    clock.set(clock.now() + LEASE + 1)
    assert await stores.dispatches.reclaim_expired_leases() == ()
    row = await loaded(stores)
    assert row == owned.superseded(reason=STALE_EPOCH, now=clock.now())
    assert (row.attempt_count, row.reconciled) == (0, False)
    owned_next = await stores.dispatches.claim("t", "worker", lease_ms=LEASE)
    assert owned_next is not None
    assert owned_next.dispatch_id == "d2"


async def an_extended_lease_is_not_taken_back(stores: RunStores, clock: ManualClock) -> None:
    """Its end is the new one, also for a dispatch claimed before others."""
    kept = await claimed(stores, "kept", thread="a")
    await claimed(stores, "lost", thread="b")
    clock.set(clock.now() + LEASE)
    assert await stores.dispatches.extend_lease(kept.claim_proof, extension_ms=LEASE)
    clock.set(clock.now() + 1)
    assert ids(await stores.dispatches.reclaim_expired_leases()) == ["lost"]
    clock.set(clock.now() + LEASE)
    assert ids(await stores.dispatches.reclaim_expired_leases()) == ["kept"]


async def a_shortened_lease_is_taken_back_early(stores: RunStores, clock: ManualClock) -> None:
    """The end that counts is the one that was written last."""
    owned = await claimed(stores)
    assert await stores.dispatches.extend_lease(owned.claim_proof, extension_ms=5)
    clock.set(clock.now() + 6)
    assert ids(await stores.dispatches.reclaim_expired_leases()) == ["d1"]


async def only_claimed_rows_are_taken_back(stores: RunStores, clock: ManualClock) -> None:
    """However old: queued and ended ones stay as they are."""
    rows = [await enqueued(stores, "queued", thread="q")]
    rows += [await ended(stores, status.value, status, thread=status.value) for status in TERMINAL]
    clock.advance(timedelta(days=9))
    assert await stores.dispatches.reclaim_expired_leases() == ()
    assert [await loaded(stores, row.dispatch_id) for row in rows] == rows


async def a_limit_leaves_the_rest_for_the_next_call(stores: RunStores, clock: ManualClock) -> None:
    """Nothing is forgotten."""
    names = {f"d{number}" for number in range(7)}
    for name in names:
        await claimed(stores, name, thread=f"t-{name}")
    clock.set(clock.now() + LEASE + 1)
    found: list[str] = []
    for expected in (3, 3, 1, 0):
        back = ids(await stores.dispatches.reclaim_expired_leases(limit=3))
        assert len(back) == expected
        found += back
    assert set(found) == names
    assert len(found) == len(names)


async def many_reclaims_return_each_dispatch_once(stores: RunStores, clock: ManualClock) -> None:
    """However many ask at once, one attempt is counted for each lease that ended."""
    names = [f"d{number}" for number in range(6)]
    for name in names:
        await claimed(stores, name, thread=f"t-{name}")
    clock.set(clock.now() + LEASE + 1)
    async with asyncio.TaskGroup() as group:
        tries = [
            group.create_task(stores.dispatches.reclaim_expired_leases(limit=4)) for _ in range(TOGETHER)
        ]
    found = [name for one in tries for name in ids(one.result())]
    found += ids(await stores.dispatches.reclaim_expired_leases())
    assert sorted(found) == names
    assert {(await loaded(stores, name)).attempt_count for name in names} == {1}


async def an_owner_and_a_reclaim_have_one_winner(stores: RunStores, clock: ManualClock) -> None:
    """A late extension either keeps the claim or finds it lost; the row says the same."""
    for number in range(8):
        name = f"d{number}"
        owned = await claimed(stores, name, thread=f"t{number}")
        now = clock.now() + LEASE + 1
        clock.set(now)
        async with asyncio.TaskGroup() as group:
            kept = group.create_task(stores.dispatches.extend_lease(owned.claim_proof, extension_ms=LEASE))
            back = group.create_task(stores.dispatches.reclaim_expired_leases())
        assert kept.result() == (name not in ids(back.result()))
        row = await loaded(stores, name)
        expected = RunDispatchStatus.CLAIMED if kept.result() else RunDispatchStatus.QUEUED
        assert row.status is expected
        if kept.result():
            await stores.dispatches.ack(owned.claim_proof)


async def what_ended_without_its_run_being_told_is_listed(stores: RunStores, clock: ManualClock) -> None:
    """Cancelled, superseded and dead letters, the oldest first, until they are marked; acked ones never."""
    for number, status in enumerate(TERMINAL):
        await ended(stores, f"{number}-{status}", status, thread=f"t{number}")
        clock.advance(timedelta(seconds=1))
    await enqueued(stores, "queued", thread="q")
    expected = [
        f"{number}-{one}" for number, one in enumerate(TERMINAL) if one is not RunDispatchStatus.ACKED
    ]
    store = stores.dispatches
    found = await store.unreconciled_dispatches()
    assert ids(found) == expected
    for row in found:
        assert row == await loaded(stores, row.dispatch_id)
    assert ids(await store.unreconciled_dispatches(limit=2)) == expected[:2]
    await store.mark_reconciled(expected[:1])
    assert ids(await store.unreconciled_dispatches()) == expected[1:]
    await store.mark_reconciled([*expected, "unknown", "queued"])
    await store.mark_reconciled(expected)
    await store.mark_reconciled([])
    assert await store.unreconciled_dispatches() == ()


async def marking_changes_nothing_else(stores: RunStores, clock: ManualClock) -> None:
    """The row keeps its place in every listing, and one that ends later is listed all the same."""
    dead = await ended(stores, "dead", RunDispatchStatus.DEAD_LETTER)
    open_one = await enqueued(stores, "open")
    clock.advance(timedelta(seconds=1))
    await stores.dispatches.mark_reconciled(["dead", "open"])
    told = await loaded(stores, "dead")
    assert told.reconciled
    assert (told.updated_at, told.completed_at) == (dead.updated_at, dead.completed_at)
    assert (told.status, told.last_error) == (dead.status, dead.last_error)
    assert await loaded(stores, "open") == open_one
    await stores.dispatches.cancel("open")
    assert ids(await stores.dispatches.unreconciled_dispatches()) == ["open"]


async def purging_removes_what_ended_before_a_moment(stores: RunStores, clock: ManualClock) -> None:
    """Strictly before, by the last change; open rows stay, however old."""
    await enqueued(stores, "queued", thread="q")
    await claimed(stores, "claimed", thread="c")
    for status in TERMINAL:
        await ended(stores, status.value, status, thread=status.value)
        await stores.dispatches.mark_reconciled([status.value])
    moment = clock.now()
    assert await stores.dispatches.purge_terminal(older_than=moment) == 0
    clock.advance(timedelta(milliseconds=1))
    await ended(stores, "young", RunDispatchStatus.ACKED, thread="y")
    assert await stores.dispatches.purge_terminal(older_than=moment + 1) == len(TERMINAL)
    for status in TERMINAL:
        assert await stores.dispatches.load_dispatch(status.value) is None
        assert await stores.dispatches.list_dispatches(status.value) == ()
    for name in ("queued", "claimed", "young"):
        await loaded(stores, name)
    assert await stores.dispatches.purge_terminal(older_than=moment + 1) == 0
    counts = await stores.dispatches.count_by_status()
    assert sum(counts.values()) == 3


async def purging_keeps_what_its_run_was_not_told_of(stores: RunStores, clock: ManualClock) -> None:
    """Until that was done."""
    for status in TERMINAL:
        await ended(stores, status.value, status, thread=status.value)
    clock.advance(timedelta(days=9))
    assert await stores.dispatches.purge_terminal(older_than=clock.now()) == 1
    assert await stores.dispatches.load_dispatch(RunDispatchStatus.ACKED.value) is None
    left = ids(await stores.dispatches.unreconciled_dispatches())
    assert len(left) == 3
    await stores.dispatches.mark_reconciled(left)
    assert await stores.dispatches.purge_terminal(older_than=clock.now()) == 3


async def dead_letters_may_be_kept_longer(stores: RunStores, clock: ManualClock) -> None:
    """Where a moment of their own is given, that one counts for them and the other does not."""
    for number in range(2):
        name = f"dead-{number}"
        await ended(stores, name, RunDispatchStatus.DEAD_LETTER, thread=f"t{number}")
        await ended(stores, f"acked-{number}", RunDispatchStatus.ACKED, thread=f"t{number}")
        await stores.dispatches.mark_reconciled([name])
        clock.advance(timedelta(days=1))
    now, day = clock.now(), 86_400_000
    purge = stores.dispatches.purge_terminal
    assert await purge(older_than=now, dead_letters_older_than=now - 2 * day) == 2
    assert ids(await stores.dispatches.list_by_status(RunDispatchStatus.DEAD_LETTER)) == ["dead-0", "dead-1"]
    assert await purge(older_than=now, dead_letters_older_than=now - day) == 1
    assert ids(await stores.dispatches.list_by_status(RunDispatchStatus.DEAD_LETTER)) == ["dead-1"]
    assert await purge(older_than=now) == 1


async def what_was_purged_is_forgotten(stores: RunStores, clock: ManualClock) -> None:
    """Its id, its dedupe key and its run may be used again."""
    owned = await claimed(stores, dedupe_key="key")
    await stores.dispatches.ack(owned.claim_proof)
    clock.advance(timedelta(seconds=1))
    assert await stores.dispatches.purge_terminal(older_than=clock.now()) == 1
    again = await enqueued(stores, dedupe_key="key")
    assert await loaded(stores) == again
    assert again.status is RunDispatchStatus.QUEUED


async def a_dead_letter_is_discarded(stores: RunStores, clock: ManualClock) -> None:
    """It alone: of any other dispatch nothing is removed; the second time there is none."""
    dead = await ended(stores, "dead", RunDispatchStatus.DEAD_LETTER, thread="d")
    await stores.dispatches.mark_reconciled(["dead"])
    assert await stores.dispatches.discard("dead") == replace(dead, reconciled=True)
    assert await stores.dispatches.load_dispatch("dead") is None
    assert await stores.dispatches.discard("dead") is None
    await enqueued(stores, "queued", thread="q")
    await claimed(stores, "claimed", thread="c")
    for status in (RunDispatchStatus.ACKED, RunDispatchStatus.CANCELLED, RunDispatchStatus.SUPERSEDED):
        await ended(stores, status.value, status, thread=status.value)
    for name in ("queued", "claimed", "Acked", "Cancelled", "Superseded", "unknown"):
        assert await stores.dispatches.discard(name) is None
    counts = await stores.dispatches.count_by_status()
    assert sum(counts.values()) == 5
    assert counts.get(RunDispatchStatus.DEAD_LETTER, 0) == 0


async def what_is_due_later_may_be_due_at_once(stores: RunStores, clock: ManualClock) -> None:
    """Of any other dispatch nothing changes; the second time there is nothing to hasten."""
    later = await enqueued(stores, "later", thread="l", available_at=clock.now() + 60_000)
    await enqueued(stores, "queued", thread="q")
    await claimed(stores, "claimed", thread="c")
    await ended(stores, "dead", RunDispatchStatus.DEAD_LETTER, thread="d")
    assert await stores.dispatches.due_thread_ids() == ("q",)
    clock.advance(timedelta(seconds=1))
    hastened = await stores.dispatches.hasten("later")
    assert hastened == replace(later, available_at=0, updated_at=clock.now())
    assert hastened == await loaded(stores, "later")
    assert set(await stores.dispatches.due_thread_ids()) == {"q", "l"}
    for name in ("later", "queued", "claimed", "dead", "unknown"):
        assert await stores.dispatches.hasten(name) is None


PROMISES: tuple[Promise, ...] = (
    a_lease_that_ends_now_is_still_owned,
    what_is_taken_back_is_queued_with_an_attempt,
    at_the_last_attempt_it_is_a_dead_letter,
    an_interruption_is_counted_apart_from_attempts,
    an_interrupted_claim_is_superseded_when_its_lease_ends,
    an_extended_lease_is_not_taken_back,
    a_shortened_lease_is_taken_back_early,
    only_claimed_rows_are_taken_back,
    a_limit_leaves_the_rest_for_the_next_call,
    many_reclaims_return_each_dispatch_once,
    an_owner_and_a_reclaim_have_one_winner,
    what_ended_without_its_run_being_told_is_listed,
    marking_changes_nothing_else,
    purging_removes_what_ended_before_a_moment,
    purging_keeps_what_its_run_was_not_told_of,
    dead_letters_may_be_kept_longer,
    what_was_purged_is_forgotten,
    a_dead_letter_is_discarded,
    what_is_due_later_may_be_due_at_once,
)
