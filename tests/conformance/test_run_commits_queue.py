"""Promises of a commit coordinator about the dispatch that a commit queues."""

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
    enqueued,
    event,
    everything,
    furnished,
    loaded,
    refused_whole,
    run,
    taken,
    without_token,
)
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import (
    ActiveRunConflict,
    DedupeKeyInUse,
    DuplicateRecord,
    InvalidRecord,
    PostroomError,
    QueueFull,
    RunNotOpen,
    StaleClaim,
)
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ClaimRequest, Committed, ThreadCommit
from postroom.contracts.runs import RunStatus
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

CLAIM = ClaimRequest(consumer="inline", lease_ms=LEASE)


def _submission(dispatch: RunDispatch, **details: object) -> ThreadCommit:
    """Return a commit of one message and a prepared run, and this dispatch for the run."""
    return ThreadCommit(
        thread_id=dispatch.thread_id,
        messages=(Message.user("x", id=f"m-{dispatch.dispatch_id}"),),
        events=(event("Submitted", thread=dispatch.thread_id),),
        queues=dispatch,
        **details,
    )


async def _submit(stores: RunStores, dispatch_id: str, **details: object) -> Committed:
    return await stores.coordinator.commit(_submission(asked(stores, dispatch_id), **details))


@on_both
async def test_a_commit_can_be_refused_as_an_enqueue_can(stores: RunStores, clock: ManualClock) -> None:
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
            step = replace(everything(stores), queues=dispatch, claimed_by=claim)
            await refused_whole(stores, step, kind)
    nameless = replace(everything(stores), queues=good, claimed_by=replace(CLAIM, consumer=" "))
    await refused_whole(stores, nameless, InvalidRecord)


async def test_a_commit_claims_its_dispatch_whatever_is_due(stores: RunStores, clock: ManualClock) -> None:
    await furnished(stores)
    await enqueued(stores, "older", created_at=clock.now() - 9, priority=0)
    later = asked(stores, "d9", available_at=clock.now() + 60 * SECOND)
    done = await stores.coordinator.commit(ThreadCommit(thread_id="t", queues=later, claimed_by=CLAIM))
    assert done.dispatch is not None
    assert without_token(done.dispatch) == later.claim(
        token="token",
        consumer="inline",
        lease_ms=LEASE,
        now=clock.now(),
    )
    another = replace(everything(stores), queues=asked(stores, "d10"), claimed_by=CLAIM)
    await refused_whole(stores, another, ActiveRunConflict)


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
async def test_dispatches_claimed_at_the_same_time_have_one_owner(stores: RunStores) -> None:

    async def submit(number: int) -> bool:
        return await _goes_through(stores, f"d{number}", ActiveRunConflict, claimed_by=CLAIM)

    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(submit(number)) for number in range(TOGETHER)]
    assert sum(one.result() for one in tries) == 1
    held = await stores.dispatches.claimed_dispatch("t")
    assert [row.dispatch_id for row in await stores.dispatches.list_dispatches("t")] == [held.dispatch_id]


async def test_a_commit_may_queue_a_dispatch_after_the_one_that_it_owns(stores: RunStores) -> None:
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


@on_both
async def test_a_commit_that_queues_a_dispatch_wakes_who_waits_for_work(stores: RunStores) -> None:
    await stores.wakeups.wait(timedelta(milliseconds=1))
    await _submit(stores, "d1")
    await stores.wakeups.wait(timedelta(milliseconds=60 * SECOND))
    assert await stores.dispatches.due_thread_ids() == ("t",)
