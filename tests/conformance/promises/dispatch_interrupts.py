"""Promises of a dispatch store about interrupts, epochs and cancelling."""

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
    reported,
    taken,
)
from postroom.contracts.dispatch import INTERRUPTED, STALE_EPOCH, Interrupt, RunDispatchStatus
from postroom.contracts.errors import StaleClaim
from postroom.stores.runs.ports import RunStores
from postroom.testing.clock import ManualClock


async def an_interrupt_supersedes_all_that_is_queued(stores: RunStores, clock: ManualClock) -> None:
    """Also what is not due, and exactly those rows are its answer; other threads are left alone."""
    first = await enqueued(stores, "d1", created_at=clock.now() - 2)
    later = await enqueued(stores, "d2", available_at=clock.now() + 60 * SECOND)
    other = await enqueued(stores, "o1", thread="u")
    await ended(stores, "done", RunDispatchStatus.CANCELLED, thread="t")
    clock.advance(timedelta(seconds=1))
    done = await stores.dispatches.interrupt("t")
    expected = [row.superseded(reason=INTERRUPTED, now=clock.now()) for row in (first, later)]
    assert sorted(done.superseded_dispatches, key=lambda row: row.dispatch_id) == expected
    assert (done.new_dispatch_epoch, done.active_dispatch, done.superseded_count) == (1, None, 2)
    assert [await loaded(stores, name) for name in ("d1", "d2")] == expected
    assert not any(row.reconciled for row in expected)
    assert await loaded(stores, "o1") == other
    assert (await loaded(stores, "done")).status is RunDispatchStatus.CANCELLED
    assert await stores.dispatches.current_dispatch_epoch("u") == 0
    assert await stores.dispatches.due_thread_ids() == ("u",)


async def an_interrupt_names_who_is_at_work(stores: RunStores, clock: ManualClock) -> None:
    """The claimed dispatch is returned, left as it is, and still blocks its thread until it has ended."""
    owned = await reported(stores, await claimed(stores))
    await enqueued(stores, "d2")
    done = await stores.dispatches.interrupt("t")
    assert done.active_dispatch == owned
    assert ids(done.superseded_dispatches) == ["d2"]
    assert await loaded(stores) == owned
    await enqueued(stores, "d3")
    assert await stores.dispatches.claim("t", "worker", lease_ms=LEASE) is None
    assert await stores.dispatches.claim_dispatch("d3", "worker", lease_ms=LEASE) is None
    with refused(StaleClaim):
        await stores.dispatches.ack(owned.claim_proof)
    newest = await stores.dispatches.claim("t", "worker", lease_ms=LEASE)
    assert newest is not None
    assert (newest.dispatch_id, newest.dispatch_epoch) == ("d3", 1)
    await stores.dispatches.ack(newest.claim_proof)


async def the_epoch_counts_interrupts(stores: RunStores, clock: ManualClock) -> None:
    """Thread by thread, from 0, also where nothing was ever enqueued."""
    for number in range(1, 4):
        done = await stores.dispatches.interrupt("t")
        assert done == Interrupt(new_dispatch_epoch=number)
        assert await stores.dispatches.current_dispatch_epoch("t") == number
    assert await stores.dispatches.current_dispatch_epoch("u") == 0


async def an_epoch_is_never_lower_than_it_was(stores: RunStores, clock: ManualClock) -> None:
    """Not when all its thread's rows are purged or discarded, so that a number that was noted stays true."""
    for number in range(2):
        await ended(stores, f"s{number}", RunDispatchStatus.SUPERSEDED)
    await ended(stores, "acked", RunDispatchStatus.ACKED)
    await ended(stores, "dead", RunDispatchStatus.DEAD_LETTER)
    await stores.dispatches.mark_reconciled(["s0", "s1", "dead"])
    await stores.dispatches.discard("dead")
    clock.advance(timedelta(days=9))
    assert await stores.dispatches.purge_terminal(older_than=clock.now()) == 3
    assert await stores.dispatches.list_dispatches("t") == ()
    assert await stores.dispatches.current_dispatch_epoch("t") == 2
    assert (await enqueued(stores, "next")).dispatch_epoch == 2
    assert (await stores.dispatches.interrupt("t")).new_dispatch_epoch == 3


async def what_follows_an_interrupt_is_claimed(stores: RunStores, clock: ManualClock) -> None:
    """A dispatch that is enqueued afterwards carries the new epoch and is as good as any."""
    await enqueued(stores, "d1")
    await stores.dispatches.interrupt("t")
    await enqueued(stores, "d2")
    owned = await stores.dispatches.claim("t", "worker", lease_ms=LEASE)
    assert owned is not None
    assert (owned.dispatch_id, owned.dispatch_epoch) == ("d2", 1)
    assert (await stores.dispatches.ack(owned.claim_proof)).status is RunDispatchStatus.ACKED
    assert await stores.dispatches.claim("t", "worker", lease_ms=LEASE) is None


async def an_interrupt_does_not_touch_what_has_ended(stores: RunStores, clock: ManualClock) -> None:
    """However it ended; a second interrupt supersedes nothing twice."""
    before = [
        await ended(stores, status.value, status)
        for status in (
            RunDispatchStatus.ACKED,
            RunDispatchStatus.CANCELLED,
            RunDispatchStatus.DEAD_LETTER,
            RunDispatchStatus.SUPERSEDED,
        )
    ]
    clock.advance(timedelta(seconds=1))
    done = await stores.dispatches.interrupt("t")
    assert (done.superseded_count, done.active_dispatch) == (0, None)
    assert [await loaded(stores, row.dispatch_id) for row in before] == before


async def interrupts_at_the_same_time_are_counted_each(stores: RunStores, clock: ManualClock) -> None:
    """No two get the same epoch, and each queued dispatch is superseded by one of them."""
    for number in range(5):
        await enqueued(stores, f"d{number}")
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(stores.dispatches.interrupt("t")) for _ in range(TOGETHER)]
    assert sorted(one.result().new_dispatch_epoch for one in tries) == list(range(1, TOGETHER + 1))
    superseded = [name for one in tries for name in ids(one.result().superseded_dispatches)]
    assert sorted(superseded) == [f"d{number}" for number in range(5)]
    assert await stores.dispatches.current_dispatch_epoch("t") == TOGETHER


async def interrupts_and_enqueues_do_not_pass_each_other(stores: RunStores, clock: ManualClock) -> None:
    """Whatever the order, all that is queued in the end is of the newest epoch and can be claimed."""
    async with asyncio.TaskGroup() as group:
        for number in range(TOGETHER):
            group.create_task(enqueued(stores, f"d{number}"))
            if number % 3 == 0:
                group.create_task(stores.dispatches.interrupt("t"))
    epoch = await stores.dispatches.current_dispatch_epoch("t")
    rows = await stores.dispatches.list_dispatches("t")
    assert len(rows) == TOGETHER
    for row in rows:
        queued = row.status is RunDispatchStatus.QUEUED
        assert queued == (row.dispatch_epoch == epoch), row
        assert queued or row.status is RunDispatchStatus.SUPERSEDED


async def interrupts_and_claims_do_not_pass_each_other(stores: RunStores, clock: ManualClock) -> None:
    """A claim is seen by the interrupt and stale then, or there is none; never anything in between."""
    for number in range(8):
        thread, name = f"t{number}", f"d{number}"
        await enqueued(stores, name, thread=thread)
        async with asyncio.TaskGroup() as group:
            claim = group.create_task(stores.dispatches.claim(thread, "worker", lease_ms=LEASE))
            done = group.create_task(stores.dispatches.interrupt(thread))
        owned = claim.result()
        if owned is None:
            assert ids(done.result().superseded_dispatches) == [name]
            continue
        assert done.result().active_dispatch == owned
        with refused(StaleClaim):
            await stores.dispatches.ack(owned.claim_proof)
        assert (await loaded(stores, name)).last_error == STALE_EPOCH


async def a_queued_dispatch_is_cancelled(stores: RunStores, clock: ManualClock) -> None:
    """It has ended then, its run is to be told, and it is never claimed."""
    queued = await enqueued(stores)
    clock.advance(timedelta(seconds=1))
    withdrawn = await stores.dispatches.cancel("d1")
    assert withdrawn == queued.cancelled(now=clock.now())
    assert await loaded(stores) == withdrawn
    assert not withdrawn.reconciled
    assert await stores.dispatches.claim("t", "worker", lease_ms=LEASE) is None
    assert await stores.dispatches.cancel("d1") is None
    assert await loaded(stores) == withdrawn


async def what_is_not_queued_is_not_cancelled(stores: RunStores, clock: ManualClock) -> None:
    """A claimed dispatch stays its owner's, an ended one as it ended, an unknown one unknown."""
    owned = await claimed(stores, "claimed", thread="u")
    assert await stores.dispatches.cancel("claimed") is None
    assert await loaded(stores, "claimed") == owned
    await stores.dispatches.record_dispatch_start(owned.claim_proof, "instance")
    for status in (
        RunDispatchStatus.ACKED,
        RunDispatchStatus.SUPERSEDED,
        RunDispatchStatus.DEAD_LETTER,
    ):
        before = await ended(stores, status.value, status)
        assert await stores.dispatches.cancel(status.value) is None
        assert await loaded(stores, status.value) == before
    assert await stores.dispatches.cancel("unknown") is None


async def cancelling_and_claiming_have_one_winner(stores: RunStores, clock: ManualClock) -> None:
    """A dispatch is withdrawn or begun, never both."""
    for number in range(8):
        name, thread = f"d{number}", f"t{number}"
        await enqueued(stores, name, thread=thread)
        async with asyncio.TaskGroup() as group:
            withdrawn = group.create_task(stores.dispatches.cancel(name))
            owned = group.create_task(stores.dispatches.claim(thread, "worker", lease_ms=LEASE))
        assert (withdrawn.result() is None) != (owned.result() is None)
        winner = withdrawn.result() or owned.result()
        assert await loaded(stores, name) == winner


async def what_was_given_back_can_be_cancelled(stores: RunStores, clock: ManualClock) -> None:
    """A retry that waits is queued like any other."""
    owned = await claimed(stores)
    await stores.dispatches.nack(owned.claim_proof, error="x", delay_ms=60 * SECOND)
    assert await stores.dispatches.cancel("d1") is not None
    await enqueued(stores, "d2")
    owned = await taken(stores, "d2")
    assert await stores.dispatches.cancel("d2") is None
    assert await stores.dispatches.claimed_dispatch("t") == owned


PROMISES: tuple[Promise, ...] = (
    an_interrupt_supersedes_all_that_is_queued,
    an_interrupt_names_who_is_at_work,
    the_epoch_counts_interrupts,
    an_epoch_is_never_lower_than_it_was,
    what_follows_an_interrupt_is_claimed,
    an_interrupt_does_not_touch_what_has_ended,
    interrupts_at_the_same_time_are_counted_each,
    interrupts_and_enqueues_do_not_pass_each_other,
    interrupts_and_claims_do_not_pass_each_other,
    a_queued_dispatch_is_cancelled,
    what_is_not_queued_is_not_cancelled,
    cancelling_and_claiming_have_one_winner,
    what_was_given_back_can_be_cancelled,
)
