"""Promises of a commit coordinator about the dispatch that a commit delivers."""

import asyncio
from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.given import refused
from conformance.promises.run_given import (
    LEASE,
    SECOND,
    TOGETHER,
    a_thread,
    asked,
    claimed,
    ended,
    enqueued,
    event,
    everything,
    furnished,
    ids,
    loaded,
    refused_whole,
    run,
    taken,
    without_token,
)
from postroom.contracts.dispatch import INTERRUPTED, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    ActiveRunConflict,
    DedupeKeyInUse,
    DuplicateRecord,
    InvalidRecord,
    PostroomError,
    QueueFull,
    RunNotOpen,
    StaleClaim,
    VersionConflict,
)
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ClaimRequest, Committed, Delivery, ThreadCommit
from postroom.contracts.runs import RunStatus
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

CLAIM = ClaimRequest(consumer="inline", lease_ms=LEASE)


def _submission(dispatch: RunDispatch, **details: object) -> ThreadCommit:
    """Return a commit of one message and a prepared run, delivered by this dispatch."""
    return ThreadCommit(
        thread_id=dispatch.thread_id,
        messages=(Message.user("x", id=f"m-{dispatch.dispatch_id}"),),
        events=(event("Submitted", thread=dispatch.thread_id),),
        delivery=Delivery(dispatch=dispatch, **details),
    )


async def _submit(stores: RunStores, dispatch_id: str, **details: object) -> Committed:
    return await stores.coordinator.commit(_submission(asked(stores, dispatch_id), **details))


async def test_a_delivery_enqueues_with_the_commit(stores: RunStores, clock: ManualClock) -> None:
    await stores.dispatches.interrupt("t")
    await enqueued(stores, "d0", created_at=clock.now() - 1)
    done = await _submit(stores, "d1")
    assert done.dispatch == await loaded(stores, "d1")
    assert done.dispatch is not None
    assert (done.dispatch.status, done.dispatch.dispatch_epoch) == (RunDispatchStatus.QUEUED, 1)
    assert (done.claimed, done.interrupt) == (None, None)
    assert ids(await stores.dispatches.list_dispatches("t")) == ["d0", "d1"]
    assert await stores.dispatches.due_thread_ids() == ("t",)


@on_both
async def test_a_delivery_can_be_refused_as_an_enqueue_can(stores: RunStores, clock: ManualClock) -> None:
    await furnished(stores)
    await enqueued(stores, "d1", dedupe_key="taken", run_id="r-open")
    good = asked(stores, "d9")
    for dispatch, kind in (
        (asked(stores, "d1"), DuplicateRecord),
        (asked(stores, "d9", dedupe_key="taken"), DedupeKeyInUse),
        (asked(stores, "d9", run_id="r-open"), RunNotOpen),
        (good.cancelled(now=clock.now()), InvalidRecord),
        (good.claim(token="x", consumer="w", lease_ms=1, now=1), InvalidRecord),
    ):
        for claim in (None, CLAIM):
            delivery = Delivery(dispatch=dispatch, claim=claim)
            await refused_whole(stores, replace(everything(stores), delivery=delivery), kind)
    nameless = Delivery(dispatch=good, claim=replace(CLAIM, consumer=" "))
    await refused_whole(stores, replace(everything(stores), delivery=nameless), InvalidRecord)


async def test_an_interrupting_delivery_replaces_what_is_queued(
    stores: RunStores, clock: ManualClock
) -> None:
    first = await enqueued(stores, "d1", created_at=clock.now() - 2)
    second = await enqueued(stores, "d2", available_at=clock.now() + 60 * SECOND)
    other = await enqueued(stores, "o1", thread="u")
    clock.advance(timedelta(seconds=1))
    done = await _submit(stores, "d9", interrupt=True)
    expected = [row.superseded(reason=INTERRUPTED, now=clock.now()) for row in (first, second)]
    assert done.interrupt is not None
    assert done.interrupt.new_dispatch_epoch == 1
    assert done.interrupt.active_dispatch is None
    superseded = sorted(done.interrupt.superseded_dispatches, key=lambda row: row.dispatch_id)
    assert superseded == expected
    assert [await loaded(stores, name) for name in ("d1", "d2")] == expected
    assert done.dispatch is not None
    assert (done.dispatch.status, done.dispatch.dispatch_epoch) == (RunDispatchStatus.QUEUED, 1)
    assert await stores.dispatches.current_dispatch_epoch("t") == 1
    assert await loaded(stores, "o1") == other


async def test_an_interrupting_delivery_owns_itself(stores: RunStores, clock: ManualClock) -> None:
    await enqueued(stores, "d1")
    done = await _submit(stores, "d9", interrupt=True, claim=CLAIM, claim_needed=True)
    assert done.claimed is not None
    assert done.claimed == done.dispatch == await loaded(stores, "d9")
    assert (done.claimed.claimed_by, done.claimed.dispatch_epoch) == ("inline", 1)
    assert done.claimed.lease_until == clock.now() + LEASE
    assert (await stores.dispatches.ack(done.claimed.claim_proof)).status is RunDispatchStatus.ACKED


@on_both
async def test_an_interrupting_delivery_takes_over_key_and_run(stores: RunStores) -> None:
    await enqueued(stores, "d1", dedupe_key="key", run_id="r")
    mine = asked(stores, "d9", dedupe_key="key", run_id="r")
    await stores.coordinator.commit(_submission(mine, interrupt=True))
    assert (await loaded(stores, "d1")).status is RunDispatchStatus.SUPERSEDED
    elsewhere = asked(stores, "d8", thread="u", run_id="r")
    await refused_whole(stores, _submission(elsewhere, interrupt=True), RunNotOpen)
    assert await stores.dispatches.current_dispatch_epoch("u") == 0


async def test_an_interrupt_that_meets_a_run_at_work_changes_nothing(stores: RunStores) -> None:
    await furnished(stores)
    owned = await claimed(stores, "active")
    await enqueued(stores, "queued")
    for claim in (None, CLAIM):
        delivery = Delivery(dispatch=asked(stores, "d9"), interrupt=True, claim=claim)
        await refused_whole(stores, replace(everything(stores), delivery=delivery), ActiveRunConflict)
    assert await stores.dispatches.current_dispatch_epoch("t") == 0
    assert (await loaded(stores, "queued")).status is RunDispatchStatus.QUEUED
    assert (await stores.dispatches.ack(owned.claim_proof)).status is RunDispatchStatus.ACKED


async def test_a_refused_interrupt_leaves_epoch_and_queue(stores: RunStores) -> None:
    await furnished(stores)
    await enqueued(stores, "queued")
    delivery = Delivery(dispatch=asked(stores, "d9"), interrupt=True, claim=CLAIM)
    commit = replace(everything(stores), delivery=delivery)
    await refused_whole(stores, replace(commit, expected_message_count=9), VersionConflict)
    await refused_whole(stores, replace(commit, delivery=replace(delivery, queue_cap=0)), QueueFull)
    assert (await loaded(stores, "queued")).status is RunDispatchStatus.QUEUED


async def test_a_claim_that_is_needed_is_of_this_dispatch(stores: RunStores, clock: ManualClock) -> None:
    await furnished(stores)
    await enqueued(stores, "older", created_at=clock.now() - 9, priority=0)
    later = asked(stores, "d9", available_at=clock.now() + 60 * SECOND)
    delivery = Delivery(dispatch=later, claim=CLAIM, claim_needed=True)
    done = await stores.coordinator.commit(ThreadCommit(thread_id="t", delivery=delivery))
    assert done.claimed is not None
    assert without_token(done.claimed) == later.claim(
        token="token",
        consumer="inline",
        lease_ms=LEASE,
        now=clock.now(),
    )
    assert done.dispatch == done.claimed
    another = Delivery(dispatch=asked(stores, "d10"), claim=CLAIM, claim_needed=True)
    await refused_whole(stores, replace(everything(stores), delivery=another), ActiveRunConflict)


async def test_a_claim_that_is_not_needed_takes_whose_turn_it_is(
    stores: RunStores, clock: ManualClock
) -> None:
    await enqueued(stores, "older", created_at=clock.now() - 9)
    done = await _submit(stores, "d9", claim=CLAIM)
    assert done.claimed is not None
    assert done.claimed.dispatch_id == "older"
    assert done.claimed == await loaded(stores, "older")
    assert done.dispatch == await loaded(stores, "d9")
    assert done.dispatch is not None
    assert done.dispatch.status is RunDispatchStatus.QUEUED
    await stores.dispatches.ack(done.claimed.claim_proof)
    urgent = asked(stores, "urgent", priority=0)
    done = await stores.coordinator.commit(_submission(urgent, claim=CLAIM))
    assert done.claimed is not None
    assert done.claimed == done.dispatch == await loaded(stores, "urgent")


async def test_a_claim_that_is_not_needed_waits_its_turn(stores: RunStores, clock: ManualClock) -> None:
    owned = await claimed(stores, "active")
    done = await _submit(stores, "d1", claim=CLAIM)
    assert done.claimed is None
    assert done.dispatch == await loaded(stores, "d1")
    assert await stores.dispatches.claimed_dispatch("t") == owned
    later = asked(stores, "d2", thread="u", available_at=clock.now() + 1)
    done = await stores.coordinator.commit(_submission(later, claim=CLAIM))
    assert done.claimed is None
    assert done.dispatch == later == await loaded(stores, "d2")


async def test_a_queue_holds_no_more_than_its_cap(stores: RunStores) -> None:
    await furnished(stores)
    await claimed(stores, "active")
    await enqueued(stores, "elsewhere", thread="u")
    await ended(stores, "gone", RunDispatchStatus.CANCELLED)
    for number in range(2):
        delivery = Delivery(dispatch=asked(stores, f"d{number}"), queue_cap=2)
        await stores.coordinator.commit(ThreadCommit(thread_id="t", delivery=delivery))
    full = replace(everything(stores), delivery=Delivery(dispatch=asked(stores, "d9"), queue_cap=2))
    await refused_whole(stores, full, QueueFull)
    await stores.dispatches.cancel("d0")
    await stores.coordinator.commit(full)
    assert await stores.dispatches.count_queued("t", at_most=9) == 2


async def test_what_an_interrupt_supersedes_does_not_fill_the_queue(stores: RunStores) -> None:
    for number in range(3):
        await enqueued(stores, f"d{number}")
    done = await _submit(stores, "d9", interrupt=True, queue_cap=1)
    assert done.interrupt is not None
    assert done.interrupt.superseded_count == 3


@on_both
async def test_a_cap_holds_however_many_come_at_once(stores: RunStores) -> None:

    async def submit(number: int) -> bool:
        return await _goes_through(stores, f"d{number}", QueueFull, queue_cap=5)

    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(submit(number)) for number in range(TOGETHER)]
    assert sum(one.result() for one in tries) == 5
    assert await stores.dispatches.count_queued("t", at_most=99) == 5
    assert len(await stores.threads.load_messages("t") or ()) == 5


async def _goes_through(
    stores: RunStores, dispatch_id: str, *refusals: type[PostroomError], **details: object
) -> bool:
    try:
        await _submit(stores, dispatch_id, **details)
    except refusals:
        return False
    return True


@on_both
async def test_deliveries_at_the_same_time_have_one_owner(stores: RunStores) -> None:

    async def submit(number: int) -> bool:
        return await _goes_through(
            stores, f"d{number}", ActiveRunConflict, interrupt=True, claim=CLAIM, claim_needed=True
        )

    async with asyncio.TaskGroup() as group:
        needing = [group.create_task(submit(number)) for number in range(TOGETHER)]
    assert sum(one.result() for one in needing) == 1
    assert await stores.dispatches.current_dispatch_epoch("t") == 1
    held = await stores.dispatches.claimed_dispatch("t")
    await stores.dispatches.ack(held.claim_proof)
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(_submit(stores, f"e{n}", claim=CLAIM)) for n in range(TOGETHER)]
    won = [one.result().claimed for one in others if one.result().claimed is not None]
    assert won == [await stores.dispatches.claimed_dispatch("t")]
    assert await stores.dispatches.count_queued("t", at_most=99) == TOGETHER - 1


async def test_a_delivery_may_follow_on_the_claim_it_proves(stores: RunStores) -> None:
    await a_thread(stores)
    owned = await claimed(stores)
    step = replace(
        _submission(asked(stores, "d2")),
        run=run(stores, owned.run_id, status=RunStatus.DONE),
        claim=owned.claim_proof,
    )
    done = await stores.coordinator.commit(step)
    assert done.dispatch == await loaded(stores, "d2")
    await stores.dispatches.ack(owned.claim_proof)
    owned = await taken(stores, "d2")
    await stores.dispatches.interrupt("t")
    late = replace(_submission(asked(stores, "d3")), claim=owned.claim_proof)
    with refused(StaleClaim):
        await stores.coordinator.commit(late)
    assert await stores.dispatches.load_dispatch("d3") is None
    assert len(await stores.threads.load_messages("t") or ()) == 1


async def test_an_idle_thread_takes_a_delivery_that_wants_one_and_no_other_does(stores: RunStores) -> None:
    await _submit(stores, "d1", when_idle=True)
    await refused_whole(stores, _submission(asked(stores, "d2"), when_idle=True), ActiveRunConflict)
    owned = await taken(stores, "d1")
    await refused_whole(stores, _submission(asked(stores, "d2"), when_idle=True), ActiveRunConflict)
    await stores.dispatches.ack(owned.claim_proof)
    await _submit(stores, "d2", when_idle=True)
    await _submit(stores, "elsewhere", when_idle=False)


@on_both
async def test_of_many_that_want_an_idle_thread_one_is_taken(stores: RunStores) -> None:
    taken_up: list[str] = []

    async def submit(dispatch_id: str) -> None:
        try:
            await _submit(stores, dispatch_id, when_idle=True)
        except ActiveRunConflict:
            return
        taken_up.append(dispatch_id)

    async with asyncio.TaskGroup() as group:
        for number in range(TOGETHER):
            group.create_task(submit(f"d{number}"))
    assert ids(await stores.dispatches.list_dispatches("t")) == taken_up
    assert len(taken_up) == 1


@on_both
async def test_a_delivery_wakes_who_waits_for_work(stores: RunStores) -> None:
    await stores.wakeups.wait(1)
    await _submit(stores, "d1")
    await stores.wakeups.wait(60 * SECOND)
    assert await stores.dispatches.due_thread_ids() == ("t",)
