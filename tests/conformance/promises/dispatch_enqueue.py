"""Promises of a dispatch store about what is enqueued, and how a thread's dispatches are listed."""

import asyncio
from datetime import timedelta

from conformance.promises.given import refused
from conformance.promises.run_given import (
    LEASE,
    TOGETHER,
    Promise,
    asked,
    claimed,
    ended,
    enqueued,
    ids,
    loaded,
)
from postroom.contracts.dispatch import LOWEST_PRIORITY, TERMINAL, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import DedupeKeyInUse, DuplicateRecord, InvalidRecord, RunNotOpen
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MAX_PAGE
from postroom.stores.runs.ports import RunStores
from postroom.testing.clock import ManualClock


async def an_enqueued_dispatch_is_listed_and_loaded_as_it_was_given(
    stores: RunStores, clock: ManualClock
) -> None:
    """Every field comes back, and the answer is what is stored."""
    given = asked(
        stores,
        thread="a thread: 'ü' \"x\" 100%_",
        created_at=clock.now() - 7,
        available_at=clock.now() + 9,
        priority=3,
        max_attempts=2,
        dedupe_key="key: 'ü'",
        deadline_at=clock.now() + 99,
        tenant="acme",
    )
    stored = await stores.dispatches.enqueue(given)
    assert stored == given
    assert await stores.dispatches.load_dispatch("d1") == given
    assert await stores.dispatches.list_dispatches(given.thread_id) == (given,)
    assert await stores.dispatches.list_dispatches("t") == ()


async def a_dispatch_that_nobody_enqueued_is_none(stores: RunStores, clock: ManualClock) -> None:
    """Look-ups on an empty store answer with nothing."""
    store = stores.dispatches
    assert await store.load_dispatch("d1") is None
    assert await store.list_dispatches("t") == ()
    assert await store.claimed_dispatch("t") is None
    assert await store.list_by_status(RunDispatchStatus.ACKED) == ()
    assert await store.unreconciled_dispatches() == ()
    assert await store.due_thread_ids() == ()
    assert await store.next_due_at() is None
    assert await store.queued_thread_ids() == ()
    assert await store.count_queued("t", at_most=5) == 0
    assert await store.current_dispatch_epoch("t") == 0
    assert await store.reclaim_expired_leases() == ()
    assert await store.purge_terminal(older_than=clock.now()) == 0
    assert await store.discard("d1") is None
    assert await store.cancel("d1") is None


async def only_a_queued_dispatch_is_enqueued(stores: RunStores, clock: ManualClock) -> None:
    """A record that says it is claimed or ended is refused, and nothing is stored of it."""
    queued, now = asked(stores), clock.now()
    owned = queued.claim(token="token", consumer="worker", lease_ms=LEASE, now=now)
    for record in (owned, owned.acked(now=now), queued.cancelled(now=now)):
        with refused(InvalidRecord):
            await stores.dispatches.enqueue(record)
    assert await stores.dispatches.load_dispatch("d1") is None
    assert await stores.dispatches.list_dispatches("t") == ()


async def enqueuing_sets_the_epoch_of_the_thread(stores: RunStores, clock: ManualClock) -> None:
    """Whatever the caller wrote there: an invented epoch neither fences nor is fenced."""
    for epoch in range(3):
        given = replace(asked(stores, f"d{epoch}"), dispatch_epoch=77)
        stored = await stores.dispatches.enqueue(given)
        assert stored.dispatch_epoch == epoch
        assert (await loaded(stores, f"d{epoch}")).dispatch_epoch == epoch
        assert (await stores.dispatches.interrupt("t")).new_dispatch_epoch == epoch + 1
    assert await stores.dispatches.current_dispatch_epoch("t") == 3


async def an_id_is_used_once_whatever_became_of_it(stores: RunStores, clock: ManualClock) -> None:
    """A second dispatch of the id is refused, on its thread and on any other, and the first is unchanged."""
    await claimed(stores, "claimed", thread="a")
    await enqueued(stores, "queued", thread="b")
    for number, status in enumerate(TERMINAL):
        await ended(stores, status.value, status, thread=f"c{number}")
    for name in ("queued", "claimed", *(status.value for status in TERMINAL)):
        before = await loaded(stores, name)
        for thread in (before.thread_id, "elsewhere"):
            with refused(DuplicateRecord):
                await enqueued(stores, name, thread=thread, run_id="another", priority=1)
        assert await loaded(stores, name) == before
    assert await stores.dispatches.list_dispatches("elsewhere") == ()


async def enqueuing_again_after_a_lost_answer_is_told_from_a_conflict(
    stores: RunStores, clock: ManualClock
) -> None:
    """The very same dispatch meets its own id first, not its own dedupe key or its own open run."""
    given = asked(stores, dedupe_key="key")
    stored = await stores.dispatches.enqueue(given)
    with refused(DuplicateRecord):
        await stores.dispatches.enqueue(given)
    assert await stores.dispatches.list_dispatches("t") == (stored,)


async def a_dedupe_key_is_taken_while_its_dispatch_is_open(stores: RunStores, clock: ManualClock) -> None:
    """On its thread alone, whether the dispatch is queued or claimed."""
    await enqueued(stores, "d1", dedupe_key="key")
    with refused(DedupeKeyInUse):
        await enqueued(stores, "d2", dedupe_key="key")
    assert await stores.dispatches.claim("t", "worker", lease_ms=LEASE) is not None
    with refused(DedupeKeyInUse):
        await enqueued(stores, "d2", dedupe_key="key")
    await enqueued(stores, "d3", dedupe_key="another key")
    await enqueued(stores, "d4", thread="u", dedupe_key="key")
    await enqueued(stores, "d5")
    await enqueued(stores, "d6")
    assert await stores.dispatches.load_dispatch("d2") is None


async def a_dedupe_key_is_free_when_its_dispatch_has_ended(stores: RunStores, clock: ManualClock) -> None:
    """In each of the ways in which it can end."""
    for status in TERMINAL:
        await enqueued(stores, f"{status}-1", dedupe_key="key")
        if status is RunDispatchStatus.CANCELLED:
            await stores.dispatches.cancel(f"{status}-1")
        elif status is RunDispatchStatus.SUPERSEDED:
            await stores.dispatches.interrupt("t")
        else:
            owned = await stores.dispatches.claim("t", "worker", lease_ms=LEASE)
            assert owned is not None
            if status is RunDispatchStatus.ACKED:
                await stores.dispatches.ack(owned.claim_proof)
            else:
                await stores.dispatches.dead_letter(owned.claim_proof, error="x")
        assert (await loaded(stores, f"{status}-1")).status is status
        await enqueued(stores, f"{status}-2", dedupe_key="key")
        await stores.dispatches.cancel(f"{status}-2")


async def a_run_has_one_open_dispatch(stores: RunStores, clock: ManualClock) -> None:
    """Queued, claimed or given back, it stands alone, on any thread; when it has ended another may follow."""
    await enqueued(stores, "d1", run_id="r")
    with refused(RunNotOpen):
        await enqueued(stores, "d2", run_id="r")
    owned = await stores.dispatches.claim_dispatch("d1", "worker", lease_ms=LEASE)
    assert owned is not None
    with refused(RunNotOpen):
        await enqueued(stores, "d2", run_id="r", thread="u")
    await stores.dispatches.nack(owned.claim_proof, error="again")
    with refused(RunNotOpen):
        await enqueued(stores, "d2", run_id="r")
    assert await stores.dispatches.load_dispatch("d2") is None
    await stores.dispatches.cancel("d1")
    await enqueued(stores, "d2", run_id="r")
    await enqueued(stores, "d3", run_id="r3")


async def what_is_refused_leaves_the_thread_as_it_was(stores: RunStores, clock: ManualClock) -> None:
    """No count, queue, due time or epoch is moved by an enqueue that failed."""
    await enqueued(stores, "d1", dedupe_key="key", available_at=clock.now() + 5)
    for details in ({"dedupe_key": "key"}, {"run_id": "r-d1"}):
        with refused(DedupeKeyInUse, RunNotOpen):
            await enqueued(stores, "d2", **details)
    with refused(DuplicateRecord):
        await enqueued(stores, "d1", thread="u")
    assert await stores.dispatches.queued_thread_ids() == ("t",)
    assert await stores.dispatches.count_queued("t", at_most=9) == 1
    assert await stores.dispatches.next_due_at() == clock.now() + 5
    assert await stores.dispatches.due_thread_ids() == ()
    counts = await stores.dispatches.count_by_status()
    assert {status: number for status, number in counts.items() if number} == {RunDispatchStatus.QUEUED: 1}
    await enqueued(stores, "d2", thread="u")


async def a_listing_is_by_priority_then_age_then_id(stores: RunStores, clock: ManualClock) -> None:
    """Whatever the order of their coming, and whatever became of them; ids are compared by code points."""
    now = clock.now()
    for name, priority, age in (
        ("late", 128, 0),
        ("b", 128, 5),
        ("B", 128, 5),
        ("_", 128, 5),
        ("ä", 128, 5),
        ("a", 128, 5),
        ("last", LOWEST_PRIORITY, 9),
        ("first", 0, -9),
    ):
        await enqueued(stores, name, priority=priority, created_at=now - age)
    await stores.dispatches.cancel("B")
    await stores.dispatches.claim_dispatch("late", "worker", lease_ms=LEASE)
    listed = await stores.dispatches.list_dispatches("t")
    assert ids(listed) == ["first", "B", "_", "a", "b", "ä", "late", "last"]


async def a_listing_is_cut_and_sorted_by_status(stores: RunStores, clock: ManualClock) -> None:
    """`limit` and `offset` count what the statuses let through; no statuses at all are none."""
    for number in range(6):
        await enqueued(stores, f"d{number}", created_at=clock.now() + number)
    await stores.dispatches.cancel("d1")
    await stores.dispatches.claim_dispatch("d3", "worker", lease_ms=LEASE)
    store, queued, cancelled = stores.dispatches, RunDispatchStatus.QUEUED, RunDispatchStatus.CANCELLED
    assert ids(await store.list_dispatches("t", [queued])) == ["d0", "d2", "d4", "d5"]
    assert ids(await store.list_dispatches("t", {queued, cancelled}, limit=2, offset=1)) == ["d1", "d2"]
    assert ids(await store.list_dispatches("t", limit=3, offset=4)) == ["d4", "d5"]
    assert await store.list_dispatches("t", limit=3, offset=6) == ()
    assert await store.list_dispatches("t", []) == ()


async def no_listing_is_longer_than_a_page(stores: RunStores, clock: ManualClock) -> None:
    """However much is asked for."""
    async with asyncio.TaskGroup() as group:
        for number in range(MAX_PAGE + 3):
            group.create_task(enqueued(stores, f"d{number:03}"))
    store = stores.dispatches
    assert len(await store.list_dispatches("t", limit=10_000)) == MAX_PAGE
    assert len(await store.list_by_status(RunDispatchStatus.QUEUED, limit=10_000)) == MAX_PAGE
    behind = await store.list_dispatches("t", limit=10_000, offset=MAX_PAGE)
    assert ids(behind) == [f"d{number}" for number in range(MAX_PAGE, MAX_PAGE + 3)]


async def enqueuing_at_the_same_time_loses_nothing(stores: RunStores, clock: ManualClock) -> None:
    """Every dispatch that was answered is there, on threads of its own and on a shared one."""
    async with asyncio.TaskGroup() as group:
        for number in range(TOGETHER):
            group.create_task(enqueued(stores, f"own-{number:02}", thread=f"t{number}"))
            group.create_task(enqueued(stores, f"shared-{number:02}", thread="shared"))
    assert ids(await stores.dispatches.list_dispatches("shared")) == [
        f"shared-{number:02}" for number in range(TOGETHER)
    ]
    for number in range(TOGETHER):
        assert ids(await stores.dispatches.list_dispatches(f"t{number}")) == [f"own-{number:02}"]
    counts = await stores.dispatches.count_by_status()
    assert counts[RunDispatchStatus.QUEUED] == 2 * TOGETHER


async def _told(stores: RunStores, given: RunDispatch, *refusals: type[Exception]) -> bool:
    try:
        await stores.dispatches.enqueue(given)
    except refusals:
        return False
    return True


async def of_equal_dispatches_at_the_same_time_one_is_enqueued(stores: RunStores, clock: ManualClock) -> None:
    """One of an id, one with a dedupe key, and one of a run."""
    for name, refusal in (("id", DuplicateRecord), ("key", DedupeKeyInUse), ("run", RunNotOpen)):
        async with asyncio.TaskGroup() as group:
            tries = [
                group.create_task(
                    _told(
                        stores,
                        asked(
                            stores,
                            name if name == "id" else f"{name}{number}",
                            thread=name,
                            dedupe_key="key" if name == "key" else None,
                            run_id="r" if name == "run" else f"{name}-{number}",
                        ),
                        refusal,
                    )
                )
                for number in range(TOGETHER)
            ]
        assert sum(one.result() for one in tries) == 1, name
        assert len(await stores.dispatches.list_dispatches(name)) == 1


async def a_cancelled_enqueue_is_stored_whole_or_not_at_all(stores: RunStores, clock: ManualClock) -> None:
    """Whenever the caller gives up, the store goes on, and its views of the thread agree."""
    for steps in range(6):
        thread = f"t{steps}"
        async with asyncio.TaskGroup() as group:
            work = group.create_task(enqueued(stores, f"d{steps}", thread=thread))
            for _ in range(steps):
                await asyncio.sleep(0)
            work.cancel()
        await enqueued(stores, f"e{steps}", thread=thread)
        there = await stores.dispatches.load_dispatch(f"d{steps}") is not None
        assert work.cancelled() or there
        number = 1 + there
        assert len(await stores.dispatches.list_dispatches(thread)) == number
        assert await stores.dispatches.count_queued(thread, at_most=9) == number
        clock.advance(timedelta(seconds=1))


PROMISES: tuple[Promise, ...] = (
    an_enqueued_dispatch_is_listed_and_loaded_as_it_was_given,
    a_dispatch_that_nobody_enqueued_is_none,
    only_a_queued_dispatch_is_enqueued,
    enqueuing_sets_the_epoch_of_the_thread,
    an_id_is_used_once_whatever_became_of_it,
    enqueuing_again_after_a_lost_answer_is_told_from_a_conflict,
    a_dedupe_key_is_taken_while_its_dispatch_is_open,
    a_dedupe_key_is_free_when_its_dispatch_has_ended,
    a_run_has_one_open_dispatch,
    what_is_refused_leaves_the_thread_as_it_was,
    a_listing_is_by_priority_then_age_then_id,
    a_listing_is_cut_and_sorted_by_status,
    no_listing_is_longer_than_a_page,
    enqueuing_at_the_same_time_loses_nothing,
    of_equal_dispatches_at_the_same_time_one_is_enqueued,
    a_cancelled_enqueue_is_stored_whole_or_not_at_all,
)
