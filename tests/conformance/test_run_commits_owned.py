"""Promises of a commit coordinator about who may write, and about commits that meet one another."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

from conformance.boxes import on_both
from conformance.promises.given import refused
from conformance.promises.run_given import (
    KIND,
    LEASE,
    TARGET,
    TOGETHER,
    a_thread,
    asked,
    claimed,
    enqueued,
    event,
    everything,
    furnished,
    ids,
    loaded,
    refused_whole,
    run,
    said,
    taken,
)
from machine import PATIENCE
from postroom.contracts.dispatch import STALE_EPOCH, Claim, RunDispatchStatus
from postroom.contracts.errors import (
    ForeignThread,
    PostroomError,
    StaleClaim,
    StateError,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.events import EventScope
from postroom.contracts.messages import Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ClaimRequest, MessageQuery, ThreadCommit
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock


@on_both
async def test_a_commit_of_a_lost_claim_is_refused(stores: RunStores, clock: ManualClock) -> None:
    await furnished(stores)
    commit = replace(everything(stores), queues=None, claimed_by=None)

    async def lost(claim: Claim) -> None:
        await refused_whole(stores, replace(commit, claim=claim), StaleClaim)

    first = await claimed(stores, max_attempts=9)
    await lost(replace(first.claim_proof, token="wrong"))
    await lost(Claim(dispatch_id="unknown", token=first.claim_proof.token))
    await stores.dispatches.release(first.claim_proof)
    await lost(first.claim_proof)
    second = await taken(stores, consumer="another")
    await lost(first.claim_proof)
    await stores.dispatches.ack(second.claim_proof)
    await lost(second.claim_proof)
    clock.advance(timedelta(seconds=1))
    assert await stores.dispatches.purge_terminal(older_than=clock.now()) == 1
    await lost(second.claim_proof)


async def test_a_commit_after_an_interrupt_is_refused(stores: RunStores, clock: ManualClock) -> None:
    await furnished(stores)
    owned = await claimed(stores)
    await stores.dispatches.interrupt("t")
    commit = replace(everything(stores), claim=owned.claim_proof, queues=None, claimed_by=None)
    with refused(StaleClaim):
        await stores.coordinator.commit(commit)
    ended_row = await loaded(stores)
    assert ended_row == owned.superseded(reason=STALE_EPOCH, now=clock.now())
    await refused_whole(stores, commit, StaleClaim)
    assert [one.id for one in await stores.threads.load_messages("t") or ()] == ["m1", "m2"]
    assert len(await stores.threads.pending_messages("t")) == 2
    assert await stores.events.count(EventScope.thread("t")) == 1
    assert await stores.threads.load_thread_state("t") is None


async def test_a_claim_of_another_thread_proves_nothing(stores: RunStores) -> None:
    await furnished(stores)
    owned = await claimed(stores, thread="u")
    commit = replace(everything(stores), claim=owned.claim_proof, queues=None, claimed_by=None)
    await refused_whole(stores, commit, StaleClaim, ForeignThread)
    assert await loaded(stores) == owned


async def test_an_owner_does_not_make_its_thread_again(stores: RunStores) -> None:
    await furnished(stores)
    owned = await claimed(stores)
    await stores.threads.delete_thread("t")
    late = ThreadCommit(
        thread_id="t", messages=(Message.assistant("late", id="m9"),), claim=owned.claim_proof
    )
    for commit in (late, replace(late, run=run(stores, "r1")), replace(late, messages=())):
        await refused_whole(stores, commit, UnknownThread)
    assert await loaded(stores) == owned


async def test_what_joins_a_dispatch_needs_it_queued(stores: RunStores) -> None:
    await furnished(stores)
    await enqueued(stores, "d1")
    await enqueued(stores, "elsewhere", thread="u")
    commit = replace(everything(stores), queues=None, claimed_by=None, joins="d1", outbox=())
    for other in ("unknown", "elsewhere"):
        await refused_whole(stores, replace(commit, joins=other), VersionConflict)
    owned = await taken(stores)
    await refused_whole(stores, commit, VersionConflict)
    await stores.dispatches.release(owned.claim_proof)
    queued = await loaded(stores)
    await stores.coordinator.commit(commit)
    assert await loaded(stores) == queued
    await stores.dispatches.cancel("d1")
    await refused_whole(stores, ThreadCommit(thread_id="t", joins="d1"), VersionConflict)


@on_both
async def test_a_join_and_a_claim_have_one_winner(stores: RunStores) -> None:
    for number in range(8):
        thread, name = f"t{number}", f"d{number}"
        await enqueued(stores, name, thread=thread)
        commit = ThreadCommit(thread_id=thread, messages=(Message.user("x", id="m"),), joins=name)

        async def join(commit: ThreadCommit) -> bool:
            return await _goes_through(stores, commit, VersionConflict)

        async def claim(thread: str) -> int:
            assert await stores.dispatches.claim(thread, "worker", lease_ms=LEASE) is not None
            return len(await stores.threads.load_messages(thread) or ())

        async with asyncio.TaskGroup() as group:
            joined = group.create_task(join(commit))
            read = group.create_task(claim(thread))
        assert read.result() == int(joined.result())


async def _goes_through(stores: RunStores, commit: ThreadCommit, *refusals: type[PostroomError]) -> bool:
    try:
        await stores.coordinator.commit(commit)
    except refusals:
        return False
    return True


@on_both
async def test_of_commits_that_expect_the_same_one_goes_through(stores: RunStores) -> None:
    async with asyncio.TaskGroup() as group:
        tries = [
            group.create_task(
                _goes_through(
                    stores,
                    ThreadCommit(
                        thread_id="t",
                        messages=(Message.user("x", id=f"m{number}"),),
                        expected_message_count=0,
                        run=run(stores, f"r{number}"),
                        events=(event(f"By{number}"),),
                    ),
                    VersionConflict,
                )
            )
            for number in range(TOGETHER)
        ]
    won = [number for number, one in enumerate(tries) if one.result()]
    assert len(won) == 1
    assert [one.id for one in await stores.threads.load_messages("t") or ()] == [f"m{won[0]}"]
    listed = await stores.events.list(EventScope.thread("t"))
    assert [one.event_kind for one in listed.events] == [f"By{won[0]}"]
    latest = await stores.threads.latest_run("t")
    assert latest.run_id == f"r{won[0]}"


@on_both
async def test_a_cancelled_commit_is_written_whole_or_not_at_all(stores: RunStores) -> None:
    for steps in range(8):
        thread = f"t{steps}"
        commit = ThreadCommit(
            thread_id=thread,
            messages=(Message.user("x", id="m1"),),
            run=run(stores, f"r{steps}", thread=thread),
            events=(event(thread=thread),),
            outbox=(OutboxDraft(kind=KIND, target=TARGET),),
            queues=asked(stores, f"d{steps}", thread=thread),
        )
        async with asyncio.TaskGroup() as group:
            work = group.create_task(stores.coordinator.commit(commit))
            for _ in range(steps):
                await asyncio.sleep(0)
            work.cancel()
        await said(stores, "m2", thread=thread)
        made = await stores.threads.load_run(f"r{steps}") is not None
        assert work.cancelled() or made
        names = [one.id for one in await stores.threads.load_messages(thread) or ()]
        assert sorted(one for one in names if one) == (["m1", "m2"] if made else ["m2"])
        assert await stores.events.count(EventScope.thread(thread)) == int(made)
        assert len(await stores.dispatches.list_dispatches(thread)) == int(made)
        assert len(await stores.outbox.claim(KIND, TARGET, lease_ms=LEASE)) == int(made)


@on_both
async def test_a_commit_and_an_interrupt_do_not_pass_each_other(stores: RunStores) -> None:
    for number in range(8):
        thread = f"t{number}"
        await a_thread(stores, thread)
        owned = await claimed(stores, f"d{number}", thread=thread)
        queued = asked(stores, f"e{number}", thread=thread)
        commit = ThreadCommit(thread_id=thread, claim=owned.claim_proof, queues=queued)
        async with asyncio.TaskGroup() as group:
            made = group.create_task(_goes_through(stores, commit, StaleClaim))
            done = group.create_task(stores.dispatches.interrupt(thread))
        delivered = await stores.dispatches.load_dispatch(f"e{number}")
        assert (delivered is not None) == made.result()
        assert ids(done.result().superseded_dispatches) == ([f"e{number}"] if made.result() else [])


@on_both
async def test_all_kinds_of_work_at_the_same_time_keep_every_rule(stores: RunStores) -> None:
    threads = ("t", "u")

    async def work(number: int) -> None:
        thread = threads[number % 2]
        for turn in range(4):
            with suppress(StateError, StaleClaim):
                await _one_thing(stores, number + turn, thread, f"{number}-{turn}")

    for thread in threads:  # a commit with a claim does not create its thread
        await stores.coordinator.commit(_step(thread, f"first-{thread}"))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for number in range(TOGETHER // 2):
            group.create_task(work(number))
    for thread in threads:
        epoch = await stores.dispatches.current_dispatch_epoch(thread)
        rows = await stores.dispatches.list_dispatches(thread)
        claims = [row for row in rows if row.status is RunDispatchStatus.CLAIMED]
        assert len(claims) <= 1
        queued = [row for row in rows if row.status is RunDispatchStatus.QUEUED]
        assert {row.dispatch_epoch for row in queued} <= {epoch}
        assert await stores.dispatches.count_queued(thread, at_most=999) == len(queued)
        records = await stores.threads.list_message_records(thread, MessageQuery())
        assert [one.seq for one in records] == list(range(1, len(records) + 1))
        listed = (await stores.events.list(EventScope.thread(thread))).events
        assert len(listed) == len(records)
        assert [one.sequences[f"thread:{thread}"] for one in listed] == list(range(1, len(listed) + 1))


async def _one_thing(stores: RunStores, kind: int, thread: str, name: str) -> None:
    """Do what a worker, a submission or a person does."""
    store = stores.dispatches
    match kind % 6:
        case 0:
            await enqueued(stores, f"q-{name}", thread=thread)
        case 1 | 2:
            owned = await store.claim(thread, "worker", lease_ms=LEASE)
            if owned is not None:
                await store.record_dispatch_start(owned.claim_proof, "instance")
                await stores.coordinator.commit(_step(thread, name, claim=owned.claim_proof))
                await store.ack(owned.claim_proof)
        case 3:
            queued = asked(stores, f"d-{name}", thread=thread)
            done = await stores.coordinator.commit(_step(thread, name, queues=queued, claimed_by=_CLAIM))
            await store.nack(done.dispatch.claim_proof, error="again")
        case 4:
            await store.interrupt(thread)
            await store.reclaim_expired_leases()
        case _:
            queued = asked(stores, f"d-{name}", thread=thread)
            done = await stores.coordinator.commit(_step(thread, name, queues=queued, claimed_by=_CLAIM))
            await store.release(done.dispatch.claim_proof)


_CLAIM = ClaimRequest(consumer="inline", lease_ms=LEASE)


def _step(thread: str, name: str, **details: Any) -> ThreadCommit:
    """Return a commit of a message and an event."""
    message = Message.user("x", id=f"m-{name}")
    return ThreadCommit(thread_id=thread, messages=(message,), events=(event(thread=thread),), **details)
