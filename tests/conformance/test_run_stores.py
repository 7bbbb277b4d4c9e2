"""Every promise of the run stores' ports, on every kind of store; and the stores that fail on purpose."""

import asyncio
from collections import Counter

import pytest

from conformance.promises.run_given import Promise
from conformance.promises.run_stores import PROMISES
from conformance.run_backends import prepared_stores, run_place, run_stores
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import CommitUnknown, StoreUnavailable, VersionConflict
from postroom.contracts.messages import Message
from postroom.contracts.run_stores import ThreadCommit
from postroom.stores.memory import MemoryRunStores
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock
from postroom.testing.faults import writes
from postroom.testing.run_faults import failing, with_parts
from table_rows import each_row

__all__ = ["prepared_stores", "run_place", "run_stores"]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_run_stores_keep_their_promise(
    promise: Promise, run_stores: RunStores, clock: ManualClock
) -> None:
    async with asyncio.timeout(30):
        await promise(run_stores, clock)


def test_no_promise_is_made_twice() -> None:
    names = [promise.__name__ for promise in PROMISES]
    assert len(names) == len(set(names))


@each_row("promise", PROMISES[::10])
async def test_a_port_that_is_not_planned_to_fail_does_what_the_one_within_does(promise: Promise) -> None:
    """A promise of each kind is enough: what the stores within do is tested with them."""
    clock = ManualClock()
    stores = MemoryRunStores(clock)
    place = stores.storage_identity
    wrapped = with_parts(
        stores,
        dispatches=failing(stores.dispatches, before={"ack": ()}, storage_identity=place),
        threads=failing(stores.threads, after={"load_run": ()}, storage_identity=place),
        events=failing(stores.events),
        outbox=failing(stores.outbox),
        coordinator=failing(stores.coordinator, before={"commit": [False]}, storage_identity=place),
    )
    async with asyncio.timeout(30):
        await promise(wrapped, clock)


async def test_a_planned_call_is_refused_before_anything_is_done(clock: ManualClock) -> None:
    stores, counts = MemoryRunStores(clock), Counter[str]()
    dispatches = failing(stores.dispatches, before={"enqueue": writes(1, 3)}, counts=counts)
    told = []
    for number in range(1, 6):
        given = RunDispatch.queued(f"d{number}", "t", f"r{number}", created_at=clock.now())
        try:
            await dispatches.enqueue(given)
        except StoreUnavailable:
            continue
        told.append(given.dispatch_id)
    assert told == ["d2", "d4", "d5"]
    assert [row.dispatch_id for row in await dispatches.list_dispatches("t")] == told
    assert counts == {"enqueue": 5, "list_dispatches": 1}


async def test_a_planned_answer_is_lost_after_everything_is_done(clock: ManualClock) -> None:
    stores = MemoryRunStores(clock)
    coordinator = failing(stores.coordinator, after={"commit": writes(1)})
    commit = ThreadCommit(thread_id="t", messages=(Message.user("x", id="m1"),), expected_message_count=0)
    with pytest.raises(StoreUnavailable, match="injected commit failure"):
        await coordinator.commit(commit)
    assert len(await stores.threads.load_messages("t") or ()) == 1
    with pytest.raises(VersionConflict):
        await coordinator.commit(commit)


async def test_a_failing_port_may_raise_what_is_asked_and_share_a_place(clock: ManualClock) -> None:
    stores = MemoryRunStores(clock)
    assert failing(stores.threads).storage_identity is None
    assert failing(stores.threads, storage_identity="here").storage_identity == "here"
    threads = failing(stores.threads, before={"load_thread": writes(1)}, error=CommitUnknown)
    with pytest.raises(CommitUnknown, match="load_thread"):
        await threads.load_thread("t")
    assert await threads.load_thread("t") is None


def test_a_plan_for_a_method_that_is_not_there_is_a_mistake(clock: ManualClock) -> None:
    with pytest.raises(AttributeError):
        failing(MemoryRunStores(clock).dispatches, before={"enqueu": writes(1)})
