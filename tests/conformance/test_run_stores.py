"""Stores of runs that fail as a test plans it."""

from collections import Counter

import pytest

from conformance.promises.run_given import claimed, event, run, said
from postroom.contracts.dispatch import RunDispatch
from postroom.contracts.errors import CommitUnknown, StoreUnavailable, VersionConflict
from postroom.contracts.events import EventScope
from postroom.contracts.messages import Message
from postroom.contracts.run_stores import ThreadCommit
from postroom.stores.memory import MemoryRunStores
from postroom.testing import ManualClock
from postroom.testing.faults import writes
from postroom.testing.run_faults import failing, with_parts


async def test_a_port_that_is_not_planned_to_fail_does_what_the_one_within_does(clock: ManualClock) -> None:
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
    await said(wrapped, "m1")
    made = run(wrapped)
    await wrapped.threads.create_run(made)
    await wrapped.events.append(event())
    await wrapped.dispatches.ack((await claimed(wrapped)).claim_proof)
    assert await wrapped.threads.load_run("r1") == made == await stores.threads.load_run("r1")
    assert await wrapped.events.count(EventScope.thread("t")) == 1
    assert await wrapped.outbox.claim("kind", "target", lease_ms=1) == ()


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
