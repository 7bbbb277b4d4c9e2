"""Promises of a dispatch store about what waits, when it is due, and how the whole queue stands."""

import asyncio
from datetime import timedelta
from functools import partial

from conformance.promises.run_given import (
    LEASE,
    SECOND,
    Promise,
    claimed,
    ended,
    enqueued,
    ids,
    loaded,
    result,
    taken,
)
from postroom.contracts.dispatch import TERMINAL, RunDispatchStatus
from postroom.contracts.run_ports import RunStores
from postroom.contracts.run_tables import Places
from postroom.contracts.runs import TerminationReason
from postroom.contracts.transactions import Transaction
from postroom.testing.clock import ManualClock


async def due_threads_are_found_without_being_known(stores: RunStores, clock: ManualClock) -> None:
    """A delayed dispatch is seen at its instant and not before, though nothing else happens."""
    due = clock.now() + 10 * SECOND
    await enqueued(stores, available_at=due)
    assert await stores.dispatches.due_thread_ids() == ()
    assert await stores.dispatches.next_due_at() == due
    clock.set(due - 1)
    assert await stores.dispatches.due_thread_ids() == ()
    clock.set(due)
    assert await stores.dispatches.due_thread_ids() == ("t",)
    assert await stores.dispatches.next_due_at() == due
    clock.set(due + 99)
    assert await stores.dispatches.next_due_at() == due


async def a_retry_that_waits_is_found_when_it_is_due(stores: RunStores, clock: ManualClock) -> None:
    """A nack with a delay, and a lease that was taken back, start again with nobody's help."""
    owned = await claimed(stores)
    assert await stores.dispatches.next_due_at() is None
    await stores.dispatches.nack(owned.claim_proof, error="x", delay_ms=5 * SECOND)
    assert await stores.dispatches.next_due_at() == clock.now() + 5 * SECOND
    assert await stores.dispatches.due_thread_ids() == ()
    clock.advance(timedelta(seconds=5))
    assert await stores.dispatches.due_thread_ids() == ("t",)
    await taken(stores)
    clock.set(clock.now() + LEASE + 1)
    assert await stores.dispatches.due_thread_ids() == ()
    await stores.dispatches.reclaim_expired_leases()
    assert await stores.dispatches.due_thread_ids() == ("t",)
    assert await stores.dispatches.next_due_at() == 0


async def a_thread_that_is_at_work_is_not_due(stores: RunStores, clock: ManualClock) -> None:
    """Nor does it set the next due instant, until its dispatch has ended or was given back."""
    owned = await claimed(stores)
    await enqueued(stores, "d2", available_at=clock.now() - 1)
    await enqueued(stores, "o1", thread="u", available_at=clock.now() + SECOND)
    assert await stores.dispatches.due_thread_ids() == ()
    assert await stores.dispatches.next_due_at() == clock.now() + SECOND
    await stores.dispatches.ack(owned.claim_proof)
    assert await stores.dispatches.due_thread_ids() == ("t",)
    assert await stores.dispatches.next_due_at() == clock.now() - 1


async def due_threads_come_once_and_the_most_urgent_first(stores: RunStores, clock: ManualClock) -> None:
    """By the priority of what is due on them, then by its age; what is not due yet makes no thread urgent."""
    now = clock.now()
    for name, thread, priority, age, wait in (
        ("d1", "plain", 128, 1, 0),
        ("d2", "plain", 128, 1, 0),
        ("d3", "older", 128, 5, 0),
        ("d4", "older", 200, 9, 0),
        ("d5", "urgent", 1, 0, 0),
        ("d6", "urgent", 255, 99, 0),
        ("d7", "patient", 0, 99, 1),
        ("d8", "patient", 255, 99, 0),
    ):
        due, made = now + wait * SECOND, now - age
        await enqueued(stores, name, thread=thread, priority=priority, created_at=made, available_at=due)
    assert await stores.dispatches.due_thread_ids() == ("urgent", "older", "plain", "patient")
    assert await stores.dispatches.due_thread_ids(limit=2) == ("urgent", "older")
    clock.advance(timedelta(seconds=1))
    assert (await stores.dispatches.due_thread_ids())[0] == "patient"


async def what_has_ended_is_not_due(stores: RunStores, clock: ManualClock) -> None:
    """Cancelled, superseded, acked or dead, it sets no instant."""
    for status in TERMINAL:
        await ended(stores, status.value, status, thread=status.value)
    assert await stores.dispatches.due_thread_ids() == ()
    assert await stores.dispatches.next_due_at() is None
    assert await stores.dispatches.queued_thread_ids() == ()


async def threads_with_queued_dispatches_are_listed(stores: RunStores, clock: ManualClock) -> None:
    """Each once, by id, due or not, at work or not; page by page."""
    for name, thread in (("d1", "b"), ("d2", "b"), ("d3", "B"), ("d4", "a"), ("d5", "é"), ("d6", "_")):
        await enqueued(stores, name, thread=thread, available_at=clock.now() + SECOND)
    await claimed(stores, "c1", thread="busy")
    await claimed(stores, "c2", thread="c")
    await enqueued(stores, "c3", thread="c")
    await ended(stores, "gone", RunDispatchStatus.ACKED, thread="done")
    store, expected = stores.dispatches, ("B", "_", "a", "b", "c", "é")
    assert await store.queued_thread_ids() == expected
    assert await store.queued_thread_ids(limit=2) == expected[:2]
    assert await store.queued_thread_ids(limit=2, after="_") == expected[2:4]
    assert await store.queued_thread_ids(after="aa") == expected[3:]
    assert await store.queued_thread_ids(after="é") == ()


async def queued_dispatches_are_counted_as_far_as_asked(stores: RunStores, clock: ManualClock) -> None:
    """Of one thread, queued ones alone."""
    for number in range(5):
        await enqueued(stores, f"d{number}")
    await enqueued(stores, "other", thread="u")
    await stores.dispatches.claim_dispatch("d0", "worker", lease_ms=LEASE)
    await stores.dispatches.cancel("d1")
    count = stores.dispatches.count_queued
    assert [await count("t", at_most=most) for most in (0, 1, 2, 3, 4, 99)] == [0, 1, 2, 3, 3, 3]


async def counts_follow_every_move(stores: RunStores, clock: ManualClock) -> None:
    """Each dispatch is counted once, where it is."""

    async def counts() -> tuple[int, ...]:
        found = await stores.dispatches.count_by_status()
        return tuple(found.get(status, 0) for status in RunDispatchStatus)

    assert await counts() == (0, 0, 0, 0, 0, 0)
    for number in range(4):
        await enqueued(stores, f"d{number}", created_at=clock.now() + number)
    assert await counts() == (4, 0, 0, 0, 0, 0)
    owned = await taken(stores, "d0")
    assert await counts() == (3, 1, 0, 0, 0, 0)
    await stores.dispatches.ack(owned.claim_proof)
    assert await counts() == (3, 0, 1, 0, 0, 0)
    await stores.dispatches.cancel("d1")
    assert await counts() == (2, 0, 1, 1, 0, 0)
    owned = await taken(stores, "d2")
    await stores.dispatches.dead_letter(owned.claim_proof, error="x")
    assert await counts() == (1, 0, 1, 1, 0, 1)
    await stores.dispatches.interrupt("t")
    assert await counts() == (0, 0, 1, 1, 1, 1)
    await stores.dispatches.discard("d2")
    assert await counts() == (0, 0, 1, 1, 1, 0)
    await stores.dispatches.mark_reconciled(["d0", "d1", "d3"])
    assert await stores.dispatches.purge_terminal(older_than=clock.now() + 1) == 3
    assert await counts() == (0, 0, 0, 0, 0, 0)


async def dispatches_are_listed_by_status_over_all_threads(stores: RunStores, clock: ManualClock) -> None:
    """By their last change, then by id, however they came about."""
    for name in ("b", "B", "a", "z"):
        await ended(stores, name, RunDispatchStatus.DEAD_LETTER, thread=f"t-{name}")
    clock.advance(timedelta(seconds=1))
    await ended(stores, "0", RunDispatchStatus.DEAD_LETTER)
    for status in (RunDispatchStatus.ACKED, RunDispatchStatus.CANCELLED, RunDispatchStatus.SUPERSEDED):
        await ended(stores, status.value, status)
    await enqueued(stores, "queued")
    await claimed(stores, "claimed", thread="u")
    store = stores.dispatches
    found = await store.list_by_status(RunDispatchStatus.DEAD_LETTER)
    assert ids(found) == ["B", "a", "b", "z", "0"]
    for row in found:
        assert row == await loaded(stores, row.dispatch_id)
    some = await store.list_by_status(RunDispatchStatus.DEAD_LETTER, thread_prefix="t-")
    assert ids(some) == ["B", "a", "b", "z"]
    assert ids(await store.list_by_status(RunDispatchStatus.CLAIMED, thread_prefix="t")) == []
    counted = await stores.store.read(
        lambda tx: [tx.runs.dispatches.count_dead(one, 4) for one in ("t-", "t-b", "T", "")]
    )
    assert counted == [4, 1, 0, 4]
    for status in RunDispatchStatus:
        if status is not RunDispatchStatus.DEAD_LETTER:
            assert ids(await store.list_by_status(status)) in ([status.value], [status.value.lower()])


async def dispatches_are_found_by_what_their_ids_begin_with(stores: RunStores, clock: ManualClock) -> None:
    """Each with its run, in order, up to a limit; capitals count."""
    for name in ("ab", "abc", "Ab", "b", "a\U0010ffff"):
        await enqueued(stores, name, thread=f"t-{name}")
    asked = (("ab", 9), ("a", 2), ("abc", 9), ("abd", 9), ("A", 9), ("a", 9))
    found = await stores.store.read(lambda tx: [list(tx.runs.dispatches.begun_with(*one)) for one in asked])
    assert found == [["ab", "abc"], ["ab", "abc"], ["abc"], [], ["Ab"], ["ab", "abc", "a\U0010ffff"]]
    runs = await stores.store.read(lambda tx: tx.runs.dispatches.begun_with("b", 9))
    assert runs == {"b": (await loaded(stores, "b")).run_id}


async def a_listing_by_status_goes_on_behind_the_last_row(stores: RunStores, clock: ManualClock) -> None:
    """Page by page each row comes once, also when earlier rows vanish meanwhile and instants are equal."""
    for number in range(9):
        await ended(stores, f"d{number}", RunDispatchStatus.DEAD_LETTER, thread=f"t{number}")
        clock.advance(timedelta(milliseconds=number % 3))
    await stores.dispatches.mark_reconciled([f"d{number}" for number in range(9)])
    seen: list[str] = []
    after: tuple[int, str] | None = None
    while page := await stores.dispatches.list_by_status(RunDispatchStatus.DEAD_LETTER, limit=2, after=after):
        assert len(page) <= 2
        seen += ids(page)
        after = (page[-1].updated_at, page[-1].dispatch_id)
        await stores.dispatches.discard(seen[0])
    assert seen == [f"d{number}" for number in range(9)]


async def a_wait_for_work_ends_when_there_is_some(stores: RunStores, clock: ManualClock) -> None:
    """A dispatch that was enqueued since, or given back, ends it; else the time does."""
    await stores.wakeups.wait(1)
    await enqueued(stores)
    await stores.wakeups.wait(60 * SECOND)
    owned = await taken(stores)
    await stores.wakeups.wait(1)
    await stores.dispatches.release(owned.claim_proof)
    await stores.wakeups.wait(60 * SECOND)


async def a_wait_for_work_is_not_ended_by_what_ended_an_earlier_one(
    stores: RunStores, clock: ManualClock
) -> None:
    """Who has looked waits again, for as long as was asked; a hint may come late, but not for ever."""
    loop = asyncio.get_running_loop()
    await enqueued(stores)
    await stores.wakeups.wait(60 * SECOND)
    for _ in range(20):
        began = loop.time()
        await stores.wakeups.wait(20)
        if loop.time() - began >= 0.015:
            return
    raise AssertionError("a wait never lasts")


async def the_parts_of_one_place_share_it(stores: RunStores, clock: ManualClock) -> None:
    """Dispatches and threads name the place where the coordinator writes; all go by one clock."""
    place = stores.coordinator.storage_identity
    assert place
    assert stores.dispatches.storage_identity == place
    assert stores.threads.storage_identity == place
    assert stores.events.storage_identity == stores.outbox.storage_identity == place
    assert stores.clock.now() == clock.now()


async def what_a_worker_reports_may_be_any_text(stores: RunStores, clock: ManualClock) -> None:
    """A NUL character, or a very long text, makes no row that cannot be written or read."""
    text = "\0 \x1a0 \x1a \x1b \u2028 'ü' \\u0000 \U0001f600 %s $1 ? \"x\"" + "long" * 20_000
    owned = await claimed(stores)
    said = result(owned, response=text, error=text, termination=TerminationReason.error(text))
    recorded = await stores.dispatches.record_run_result(owned.claim_proof, said)
    assert (recorded.run_response, recorded.run_error) == (text, text)
    assert await loaded(stores) == recorded
    await stores.dispatches.nack(owned.claim_proof, error=text)
    assert (await loaded(stores)).last_error == text
    owned = await taken(stores)
    assert owned.last_error == text
    await stores.dispatches.dead_letter(owned.claim_proof, error=text)
    (dead,) = await stores.dispatches.list_by_status(RunDispatchStatus.DEAD_LETTER)
    assert dead.last_error == text


async def due_threads_may_be_for_one_place(stores: RunStores, clock: ManualClock) -> None:
    """Who runs in certain places sees what is for them and for anywhere; who asks for no place sees all."""
    for number, place in enumerate(("", "gpu", "mill")):
        await enqueued(stores, f"d{number}", thread=f"t{number}", available_at=clock.now() - 3 + number)
        await stores.store.write(partial(_placed, thread=f"t{number}", place=place))
    first = clock.now() - 3
    for places, expected in (
        (None, ["t0", "t1", "t2"]),
        ((), ["t0"]),
        (("gpu", "other"), ["t0", "t1"]),
        (("mill", "gpu"), ["t0", "t1", "t2"]),
    ):
        found, due_at = await stores.store.read(partial(_due_in, places=places))
        assert sorted(found) == expected
        assert due_at == first
    await stores.store.write(partial(_placed, thread="t0", place="gone"))
    assert await stores.store.read(partial(_due_in, places=())) == ([], None)
    await stores.store.write(partial(_placed, thread="t0", place=""))
    assert await stores.store.read(partial(_due_in, places=())) == (["t0"], first)


def _placed(tx: Transaction, *, thread: str, place: str) -> None:
    tx.runs.dispatches.put_place(thread, place)
    assert tx.runs.dispatches.place(thread) == place


def _due_in(tx: Transaction, *, places: Places) -> tuple[list[str], int | None]:
    queue = tx.runs.dispatches
    every = [
        {one.thread_id for one in queue.due_threads(10, tenant=tenant, places=places)}
        for tenant in (None, "")
    ]
    assert every[0] == every[1]
    return sorted(every[0]), queue.next_due_at(places)


PROMISES: tuple[Promise, ...] = (
    due_threads_are_found_without_being_known,
    a_retry_that_waits_is_found_when_it_is_due,
    a_thread_that_is_at_work_is_not_due,
    due_threads_come_once_and_the_most_urgent_first,
    what_has_ended_is_not_due,
    threads_with_queued_dispatches_are_listed,
    queued_dispatches_are_counted_as_far_as_asked,
    counts_follow_every_move,
    dispatches_are_listed_by_status_over_all_threads,
    dispatches_are_found_by_what_their_ids_begin_with,
    a_listing_by_status_goes_on_behind_the_last_row,
    a_wait_for_work_ends_when_there_is_some,
    a_wait_for_work_is_not_ended_by_what_ended_an_earlier_one,
    the_parts_of_one_place_share_it,
    due_threads_may_be_for_one_place,
    what_a_worker_reports_may_be_any_text,
)
