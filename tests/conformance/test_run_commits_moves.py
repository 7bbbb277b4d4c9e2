"""Promises of a commit that begins or ends the execution whose dispatch it proves to own."""

from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.given import refused
from conformance.promises.run_given import (
    LEASE,
    asked,
    claimed,
    enqueued,
    everything,
    furnished,
    loaded,
    refused_whole,
    result,
    run,
    taken,
)
from postroom.contracts.dispatch import STALE_EPOCH, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import ActiveRunConflict, InvalidRecord, StaleClaim, VersionConflict
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ClaimRequest, ThreadCommit
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock


@on_both
async def test_a_commit_may_end_an_execution(stores: RunStores, clock: ManualClock) -> None:
    await furnished(stores)
    owned = await _begun(stores)
    await enqueued(stores, "d2")
    clock.advance(timedelta(seconds=1))
    ends = result(owned, response="an answer", termination=TerminationReason.error("broken"))
    commit = replace(_ending(stores, owned), ends=ends)
    done = await stores.coordinator.commit(commit)
    ended = owned.record_run_result(ends, now=clock.now()).acked(now=clock.now())
    assert done.dispatch == ended == await loaded(stores)
    assert ended.status is RunDispatchStatus.ACKED
    assert await stores.threads.load_run("r1") == commit.run
    assert await stores.dispatches.claimed_dispatch("t") is None
    assert await stores.dispatches.unreconciled_dispatches() == ()
    assert (await taken(stores, "d2")).run_id == "r-d2"


async def test_a_commit_may_begin_and_end_an_execution(stores: RunStores, clock: ManualClock) -> None:
    await furnished(stores)
    owned = await claimed(stores)
    earlier = result(owned, error="a complaint")
    await stores.dispatches.record_run_result(owned.claim_proof, earlier)
    ends = result(owned)
    commit = ThreadCommit(thread_id="t", claim=owned.claim_proof, begins="instance", ends=ends)
    done = await stores.coordinator.commit(commit)
    now = clock.now()
    moved = owned.record_dispatch_start("instance", now=now).record_run_result(ends, now=now).acked(now=now)
    assert done.dispatch == moved == await loaded(stores)
    assert moved.run_error is None


async def test_a_refused_commit_moves_no_dispatch(stores: RunStores) -> None:
    await furnished(stores)
    owned = await _begun(stores)
    commit = _ending(stores, owned)
    await refused_whole(stores, replace(commit, expected_message_count=7), VersionConflict)
    await refused_whole(stores, replace(commit, ends=result(owned, run_id="another")), InvalidRecord)
    again = replace(commit, ends=None, begins="another", expected_message_count=7)
    await refused_whole(stores, again, VersionConflict)
    assert await loaded(stores) == owned
    await stores.coordinator.commit(commit)


async def test_only_the_owner_begins_and_ends(stores: RunStores) -> None:
    await furnished(stores)
    owned = await _begun(stores)
    ends = result(owned)
    await refused_whole(stores, ThreadCommit(thread_id="t", ends=ends), InvalidRecord)
    await refused_whole(stores, ThreadCommit(thread_id="t", begins="instance"), InvalidRecord)
    both = replace(everything(stores), claim=owned.claim_proof, ends=ends)
    await refused_whole(stores, both, InvalidRecord)
    assert await loaded(stores) == owned


async def test_a_commit_that_claims_its_dispatch_may_begin_it_at_once(stores: RunStores) -> None:
    await furnished(stores)
    claim = ClaimRequest(consumer="w", lease_ms=LEASE)
    for name in ("d1", "d2"):
        dispatch = asked(stores, name, run_id=f"new-{name}")
        executes = run(stores, dispatch.run_id, status=RunStatus.RUNNING, dispatch_id=name)
        commit = ThreadCommit(
            thread_id="t", run=executes, begins="instance", queues=dispatch, claimed_by=claim
        )
        done = await stores.coordinator.commit(commit)
        owned = await loaded(stores, name)
        assert done.dispatch == owned
        assert owned.status is RunDispatchStatus.CLAIMED
        assert (owned.dispatch_instance_id, owned.run_status) == ("instance", RunStatus.RUNNING)
        assert await stores.threads.load_run(dispatch.run_id) == executes
        again = asked(stores, "again")
        await refused_whole(stores, replace(commit, run=None, queues=again), ActiveRunConflict)
        await stores.coordinator.commit(
            ThreadCommit(thread_id="t", claim=owned.claim_proof, ends=result(owned))
        )
    commit = ThreadCommit(thread_id="t", begins="instance", queues=asked(stores, "perhaps"))
    await refused_whole(stores, commit, InvalidRecord)


async def test_an_end_after_an_interrupt_is_refused(stores: RunStores, clock: ManualClock) -> None:
    await furnished(stores)
    owned = await _begun(stores)
    before = await stores.threads.load_run("r1")
    await stores.dispatches.interrupt("t")
    with refused(StaleClaim):
        await stores.coordinator.commit(_ending(stores, owned))
    assert await loaded(stores) == owned.superseded(reason=STALE_EPOCH, now=clock.now())
    assert await stores.threads.load_run("r1") == before


async def _begun(stores: RunStores) -> RunDispatch:
    """Own a dispatch of the run `r1` whose execution has started."""
    owned = await claimed(stores, run_id="r1")
    return await stores.dispatches.record_dispatch_start(owned.claim_proof, "instance")


def _ending(stores: RunStores, owned: RunDispatch) -> ThreadCommit:
    """Return a commit that writes in every table and ends the run `r1` and its dispatch."""
    ended = run(stores, "r1", status=RunStatus.DONE, steps=5, dispatch_id=owned.dispatch_id)
    return replace(
        everything(stores),
        queues=None,
        claimed_by=None,
        run=ended,
        claim=owned.claim_proof,
        ends=result(owned),
        outbox=(),
    )
