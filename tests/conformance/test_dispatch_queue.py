"""Enqueued dispatches, their due times, and the state of the whole queue."""

import asyncio
from datetime import timedelta

import pytest

from conformance.boxes import on_both
from conformance.promises.run_given import (
    LEASE,
    SECOND,
    TOGETHER,
    asked,
    claimed,
    ended,
    enqueued,
    ids,
    loaded,
    result,
    taken,
)
from postroom.contracts.dispatch import LOWEST_PRIORITY, TERMINAL, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import DedupeKeyInUse, DuplicateRecord, RunNotOpen
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MAX_PAGE
from postroom.contracts.runs import TerminationReason
from postroom.stores.runs.ports import DispatchStore, RunStores
from postroom.testing import ManualClock

QUEUED, DEAD_LETTER = RunDispatchStatus.QUEUED, RunDispatchStatus.DEAD_LETTER


@on_both
async def test_an_enqueued_dispatch_is_listed_and_loaded_as_it_was_given(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    now = clock.now()
    details = {"created_at": now - 7, "available_at": now + 9, "priority": 3, "max_attempts": 2}
    details |= {"dedupe_key": "key: 'ü'", "deadline_at": now + 99, "tenant": "acme"}
    given = asked(stores, thread="a thread: 'ü' \"x\" 100%_", **details)
    assert await queue.enqueue(given) == given == await queue.load_dispatch("d1")
    assert await queue.list_dispatches(given.thread_id) == (given,)
    assert await queue.list_dispatches("t") == ()


async def test_enqueuing_sets_the_epoch_of_the_thread(stores: RunStores, queue: DispatchStore) -> None:
    for epoch in range(3):
        stored = await queue.enqueue(replace(asked(stores, f"d{epoch}"), dispatch_epoch=77))
        assert stored.dispatch_epoch == (await loaded(stores, f"d{epoch}")).dispatch_epoch == epoch
        assert (await queue.interrupt("t")).new_dispatch_epoch == epoch + 1
    assert await queue.current_dispatch_epoch("t") == 3


@on_both
async def test_an_id_is_used_once_whatever_became_of_it(stores: RunStores, queue: DispatchStore) -> None:
    await claimed(stores, "claimed", thread="a")
    await enqueued(stores, "queued", thread="b")
    for number, status in enumerate(TERMINAL):
        await ended(stores, status.value, status, thread=f"c{number}")
    for name in ("queued", "claimed", *(status.value for status in TERMINAL)):
        before = await loaded(stores, name)
        for thread in (before.thread_id, "elsewhere"):
            with pytest.raises(DuplicateRecord):
                await enqueued(stores, name, thread=thread, run_id="another", priority=1)
        assert await loaded(stores, name) == before
    assert await queue.list_dispatches("elsewhere") == ()


async def test_a_dedupe_key_is_taken_on_its_thread_while_its_dispatch_is_open(
    stores: RunStores, queue: DispatchStore
) -> None:
    for status in TERMINAL:
        first, second = f"{status}-1", f"{status}-2"
        await enqueued(stores, first, dedupe_key="key")
        with pytest.raises(DedupeKeyInUse):
            await enqueued(stores, second, dedupe_key="key")
        if status is RunDispatchStatus.CANCELLED:
            await queue.cancel(first)
        elif status is RunDispatchStatus.SUPERSEDED:
            await queue.interrupt("t")
        else:
            owned = await taken(stores, first)
            with pytest.raises(DedupeKeyInUse):
                await enqueued(stores, second, dedupe_key="key")
            end = queue.ack if status is RunDispatchStatus.ACKED else queue.dead_letter
            await end(owned.claim_proof, **({} if end == queue.ack else {"error": "x"}))
        assert (await loaded(stores, first)).status is status
        await enqueued(stores, second, dedupe_key="key")
        await queue.cancel(second)
    await enqueued(stores, "d1", dedupe_key="key")
    await enqueued(stores, "d2", dedupe_key="another key")
    await enqueued(stores, "d3", thread="u", dedupe_key="key")
    await enqueued(stores, "d4")


@on_both
async def test_a_listing_is_by_priority_then_age_then_id(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """Ids are compared by code points."""
    rows = [("late", 128, 0), *((name, 128, 5) for name in ("b", "B", "_", "ä", "a"))]
    for name, priority, age in (*rows, ("last", LOWEST_PRIORITY, 9), ("first", 0, -9)):
        await enqueued(stores, name, priority=priority, created_at=clock.now() - age)
    await queue.cancel("B")
    await taken(stores, "late")
    assert ids(await queue.list_dispatches("t")) == ["first", "B", "_", "a", "b", "ä", "late", "last"]


async def test_a_listing_is_cut_and_narrowed_by_status(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    for number in range(6):
        await enqueued(stores, f"d{number}", created_at=clock.now() + number)
    await queue.cancel("d1")
    await taken(stores, "d3")
    both = {QUEUED, RunDispatchStatus.CANCELLED}
    assert ids(await queue.list_dispatches("t", [QUEUED])) == ["d0", "d2", "d4", "d5"]
    assert ids(await queue.list_dispatches("t", both, limit=2, offset=1)) == ["d1", "d2"]
    assert ids(await queue.list_dispatches("t", limit=3, offset=4)) == ["d4", "d5"]
    assert await queue.list_dispatches("t", limit=3, offset=6) == ()
    assert await queue.list_dispatches("t", []) == ()
    counts = [await queue.count_queued("t", at_most=most) for most in (0, 3, 4, 99)]
    assert counts == [0, 3, 4, 4]


async def test_no_listing_is_longer_than_a_page(stores: RunStores, queue: DispatchStore) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(MAX_PAGE + 3):
            group.create_task(enqueued(stores, f"d{number:03}"))
    assert len(await queue.list_dispatches("t", limit=10_000)) == MAX_PAGE
    assert len(await queue.list_by_status(QUEUED, limit=10_000)) == MAX_PAGE
    behind = await queue.list_dispatches("t", limit=10_000, offset=MAX_PAGE)
    assert ids(behind) == [f"d{number}" for number in range(MAX_PAGE, MAX_PAGE + 3)]


@on_both
async def test_enqueuing_at_the_same_time_loses_nothing(stores: RunStores, queue: DispatchStore) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(TOGETHER):
            group.create_task(enqueued(stores, f"own-{number:02}", thread=f"t{number}"))
            group.create_task(enqueued(stores, f"shared-{number:02}", thread="shared"))
    assert ids(await queue.list_dispatches("shared")) == [f"shared-{number:02}" for number in range(TOGETHER)]
    for number in range(TOGETHER):
        assert ids(await queue.list_dispatches(f"t{number}")) == [f"own-{number:02}"]
    assert (await queue.count_by_status())[QUEUED] == 2 * TOGETHER


@on_both
async def test_of_equal_dispatches_at_the_same_time_one_is_enqueued(
    stores: RunStores, queue: DispatchStore
) -> None:
    """A dispatch with an id, a dispatch with a dedupe key, and a dispatch of a run."""

    async def told(given: RunDispatch, refusal: type[Exception]) -> bool:
        try:
            await queue.enqueue(given)
        except refusal:
            return False
        return True

    for name, refusal in (("id", DuplicateRecord), ("key", DedupeKeyInUse), ("run", RunNotOpen)):
        given = [
            asked(
                stores,
                name if name == "id" else f"{name}{number}",
                thread=name,
                dedupe_key="key" if name == "key" else None,
                run_id="r" if name == "run" else f"{name}-{number}",
            )
            for number in range(TOGETHER)
        ]
        async with asyncio.TaskGroup() as group:
            tries = [group.create_task(told(one, refusal)) for one in given]
        assert sum(one.result() for one in tries) == 1, name
        assert len(await queue.list_dispatches(name)) == 1


@on_both
async def test_a_cancelled_enqueue_is_stored_whole_or_not_at_all(
    stores: RunStores, queue: DispatchStore
) -> None:
    for steps in range(6):
        thread = f"t{steps}"
        async with asyncio.TaskGroup() as group:
            work = group.create_task(enqueued(stores, f"d{steps}", thread=thread))
            for _ in range(steps):
                await asyncio.sleep(0)
            work.cancel()
        await enqueued(stores, f"e{steps}", thread=thread)
        there = await queue.load_dispatch(f"d{steps}") is not None
        assert work.cancelled() or there
        assert len(await queue.list_dispatches(thread)) == 1 + there
        assert await queue.count_queued(thread, at_most=9) == 1 + there


async def test_a_retry_that_waits_is_found_when_it_is_due(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    owned = await claimed(stores)
    assert await queue.next_due_at() is None
    await queue.nack(owned.claim_proof, error="x", delay_ms=5 * SECOND)
    assert (await queue.due_thread_ids(), await queue.next_due_at()) == ((), clock.now() + 5 * SECOND)
    clock.advance(timedelta(seconds=5))
    assert await queue.due_thread_ids() == ("t",)
    await taken(stores)
    clock.set(clock.now() + LEASE + 1)
    assert await queue.due_thread_ids() == ()
    await queue.reclaim_expired_leases()
    assert (await queue.due_thread_ids(), await queue.next_due_at()) == (("t",), 0)


async def test_due_threads_come_once_and_the_most_urgent_first(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """By the priority of their due work, then by its age; work that is not due makes no thread urgent."""
    now = clock.now()
    for number, (thread, priority, age, wait) in enumerate(
        (
            ("plain", 128, 1, 0),
            ("plain", 128, 1, 0),
            ("older", 128, 5, 0),
            ("older", 200, 9, 0),
            ("urgent", 1, 0, 0),
            ("urgent", 255, 99, 0),
            ("patient", 0, 99, 1),
            ("patient", 255, 99, 0),
        )
    ):
        details = {"priority": priority, "created_at": now - age, "available_at": now + wait * SECOND}
        await enqueued(stores, f"d{number}", thread=thread, **details)
    assert await queue.due_thread_ids() == ("urgent", "older", "plain", "patient")
    assert await queue.due_thread_ids(limit=2) == ("urgent", "older")
    clock.advance(timedelta(seconds=1))
    assert (await queue.due_thread_ids())[0] == "patient"


@on_both
async def test_threads_with_queued_dispatches_are_listed(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """Each once, by code points, due or not, active or not; page by page."""
    for number, thread in enumerate(("b", "b", "B", "a", "é", "_")):
        await enqueued(stores, f"d{number}", thread=thread, available_at=clock.now() + SECOND)
    await claimed(stores, "c1", thread="busy")
    await claimed(stores, "c2", thread="c")
    await enqueued(stores, "c3", thread="c")
    for status in TERMINAL:
        await ended(stores, status.value, status, thread=f"done {status}")
    expected = ("B", "_", "a", "b", "c", "é")
    assert await queue.queued_thread_ids() == expected
    assert await queue.queued_thread_ids(limit=2) == expected[:2]
    assert await queue.queued_thread_ids(limit=2, after="_") == expected[2:4]
    assert await queue.queued_thread_ids(after="aa") == expected[3:]
    assert await queue.queued_thread_ids(after="é") == ()
    assert (await queue.due_thread_ids(), await queue.next_due_at()) == ((), clock.now() + SECOND)


async def test_counts_follow_every_move(stores: RunStores, queue: DispatchStore, clock: ManualClock) -> None:
    async def counts() -> tuple[int, ...]:
        found = await queue.count_by_status()
        return tuple(found.get(status, 0) for status in RunDispatchStatus)

    for number in range(4):
        await enqueued(stores, f"d{number}", created_at=clock.now() + number)
    seen = [await counts()]
    owned = await taken(stores, "d0")
    seen.append(await counts())
    await queue.ack(owned.claim_proof)
    seen.append(await counts())
    await queue.cancel("d1")
    seen.append(await counts())
    await queue.dead_letter((await taken(stores, "d2")).claim_proof, error="x")
    seen.append(await counts())
    await queue.interrupt("t")
    seen.append(await counts())
    await queue.discard("d2")
    seen.append(await counts())
    assert seen == [
        (4, 0, 0, 0, 0, 0),
        (3, 1, 0, 0, 0, 0),
        (3, 0, 1, 0, 0, 0),
        (2, 0, 1, 1, 0, 0),
        (1, 0, 1, 1, 0, 1),
        (0, 0, 1, 1, 1, 1),
        (0, 0, 1, 1, 1, 0),
    ]
    await queue.mark_reconciled(["d0", "d1", "d3"])
    assert await queue.purge_terminal(older_than=clock.now() + 1) == 3
    assert await counts() == (0, 0, 0, 0, 0, 0)


@on_both
async def test_dispatches_are_listed_by_status_over_all_threads(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """By their last change, then by code points of their ids."""
    for name in ("b", "B", "a", "z"):
        await ended(stores, name, DEAD_LETTER, thread=f"t-{name}")
    clock.advance(timedelta(seconds=1))
    await ended(stores, "0", DEAD_LETTER)
    for status in set(TERMINAL) - {DEAD_LETTER}:
        await ended(stores, status.value.lower(), status)
    await enqueued(stores, "queued")
    await claimed(stores, "claimed", thread="u")
    found = await queue.list_by_status(DEAD_LETTER)
    assert ids(found) == ["B", "a", "b", "z", "0"]
    assert list(found) == [await loaded(stores, row.dispatch_id) for row in found]
    some = await queue.list_by_status(DEAD_LETTER, thread_prefix="t-")
    assert ids(some) == ["B", "a", "b", "z"]
    assert await queue.list_by_status(RunDispatchStatus.CLAIMED, thread_prefix="t") == ()
    for status in set(RunDispatchStatus) - {DEAD_LETTER}:
        assert ids(await queue.list_by_status(status)) == [status.value.lower()]
    prefixes = ("t-", "t-b", "T", "")
    found = await stores.store.read(lambda tx: [tx.runs.dispatches.dead_errors(one, 4) for one in prefixes])
    assert [len(pairs) for pairs in found] == [4, 1, 0, 4]


@on_both
async def test_retried_dispatches_are_those_queued_after_a_failed_attempt(
    stores: RunStores, queue: DispatchStore
) -> None:
    for name, delay in (("late", 9), ("soon", 5)):
        owned = await claimed(stores, name, thread=name)
        await queue.nack(owned.claim_proof, error=f"no model for {name}", delay_ms=delay * SECOND)
    released = await claimed(stores, "released", thread="u")
    await queue.release(released.claim_proof)
    await enqueued(stores, "new", thread="v")
    found = await stores.store.read(lambda tx: tx.runs.dispatches.retried(9))
    assert [row.last_error for row in found] == ["no model for soon", "no model for late"]
    assert ids(await stores.store.read(lambda tx: tx.runs.dispatches.retried(1))) == ["soon"]


@on_both
async def test_dispatches_are_found_by_what_their_ids_begin_with(stores: RunStores) -> None:
    for name in ("ab", "abc", "Ab", "b", "a\U0010ffff"):
        await enqueued(stores, name, thread=f"t-{name}")
    asked = (("ab", 9), ("a", 2), ("abc", 9), ("abd", 9), ("A", 9), ("a", 9))
    found = await stores.store.read(lambda tx: [list(tx.runs.dispatches.begun_with(*one)) for one in asked])
    assert found == [["ab", "abc"], ["ab", "abc"], ["abc"], [], ["Ab"], ["ab", "abc", "a\U0010ffff"]]
    assert await stores.store.read(lambda tx: tx.runs.dispatches.begun_with("b", 9)) == {"b": "r-b"}


async def test_a_listing_by_status_goes_on_behind_the_last_row_though_rows_vanish(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    names = [f"d{number}" for number in range(9)]
    for number, name in enumerate(names):
        await ended(stores, name, DEAD_LETTER, thread=f"t{number}")
        clock.advance(timedelta(milliseconds=number % 3))
    await queue.mark_reconciled(names)
    seen: list[str] = []
    after: tuple[int, str] | None = None
    while page := await queue.list_by_status(DEAD_LETTER, limit=2, after=after):
        assert len(page) <= 2
        seen += ids(page)
        after = (page[-1].updated_at, page[-1].dispatch_id)
        await queue.discard(seen[0])
    assert seen == names


@on_both
async def test_a_wait_for_work_ends_when_there_is_some_and_not_by_what_ended_an_earlier_one(
    stores: RunStores, queue: DispatchStore
) -> None:
    await stores.wakeups.wait(timedelta(milliseconds=1))
    await enqueued(stores)
    await stores.wakeups.wait(timedelta(milliseconds=60 * SECOND))
    owned = await taken(stores)
    await stores.wakeups.wait(timedelta(milliseconds=1))
    await queue.release(owned.claim_proof)
    await stores.wakeups.wait(timedelta(milliseconds=60 * SECOND))
    loop = asyncio.get_running_loop()
    for _ in range(20):  # a hint may come late, but not for ever
        began = loop.time()
        await stores.wakeups.wait(timedelta(milliseconds=20))
        if loop.time() - began >= 0.015:
            return
    raise AssertionError("a wait never lasts")


@on_both
async def test_what_a_worker_reports_may_be_any_text(stores: RunStores, queue: DispatchStore) -> None:
    text = "\0 \x1a0 \x1a \x1b \u2028 'ü' \\u0000 \U0001f600 %s $1 ? \"x\"" + "long" * 20_000
    owned = await claimed(stores)
    said = result(owned, response=text, error=text, termination=TerminationReason.error(text))
    recorded = await queue.record_run_result(owned.claim_proof, said)
    assert (recorded.run_response, recorded.run_error) == (text, text)
    assert await loaded(stores) == recorded
    await queue.nack(owned.claim_proof, error=text)
    assert (await loaded(stores)).last_error == text
    owned = await taken(stores)
    await queue.dead_letter(owned.claim_proof, error=text)
    (dead,) = await queue.list_by_status(DEAD_LETTER)
    assert (owned.last_error, dead.last_error) == (text, text)
