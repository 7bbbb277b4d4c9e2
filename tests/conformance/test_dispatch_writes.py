"""The writes that only an owner can make; leases that end, and rows that have ended."""

import asyncio
from datetime import timedelta

import pytest

from conformance.boxes import on_both
from conformance.promises.run_given import (
    LEASE,
    TOGETHER,
    claimed,
    ended,
    enqueued,
    ids,
    loaded,
    reported,
    result,
    taken,
)
from postroom.contracts.dispatch import (
    STALE_EPOCH,
    TERMINAL,
    Claim,
    RunDispatchStatus,
)
from postroom.contracts.errors import StaleClaim, UnknownDispatch
from postroom.contracts.live import LiveCommandKind, LiveRunCommand
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus, TerminationKind, TerminationReason
from postroom.contracts.tools import ToolCallResume
from postroom.stores.changes import commands_to
from postroom.stores.runs.ports import DispatchStore, RunStores
from postroom.testing import ManualClock

ACKED, CANCELLED, DEAD_LETTER = (
    RunDispatchStatus.ACKED,
    RunDispatchStatus.CANCELLED,
    RunDispatchStatus.DEAD_LETTER,
)
QUEUED, SUPERSEDED = RunDispatchStatus.QUEUED, RunDispatchStatus.SUPERSEDED
WRITES = {
    "record_dispatch_start": lambda queue, row, proof: queue.record_dispatch_start(proof, "late"),
    "record_run_result": lambda queue, row, proof: queue.record_run_result(proof, result(row)),
    "ack": lambda queue, row, proof: queue.ack(proof),
    "nack": lambda queue, row, proof: queue.nack(proof, error="late"),
    "release": lambda queue, row, proof: queue.release(proof),
    "dead_letter": lambda queue, row, proof: queue.dead_letter(proof, error="late"),
}
"""The writes of an owner, which are refused once the claim is lost."""
PROJECTION = ("dispatch_instance_id", "run_status", "termination", "run_response", "run_error")


def projection(row) -> list:
    return [getattr(row, name) for name in PROJECTION]


async def test_a_start_and_a_result_are_recorded_and_stay_with_the_ack(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    owned = await claimed(stores)
    clock.advance(timedelta(seconds=1))
    started = await queue.record_dispatch_start(owned.claim_proof, "instance")
    assert started == owned.record_dispatch_start("instance", now=clock.now()) == await loaded(stores)
    assert started.run_status is RunStatus.RUNNING
    reason = TerminationReason(type=TerminationKind.STOPPED, value="max_rounds", detail="after 9")
    said = result(owned, termination=reason, response="so far: 'ü' \"x\"\n", error="too long")
    recorded = await queue.record_run_result(owned.claim_proof, said)
    assert recorded == started.record_run_result(said, now=clock.now()) == await loaded(stores)
    assert (recorded.status, recorded.completed_at) == (RunDispatchStatus.CLAIMED, clock.now())
    again = await queue.record_dispatch_start(owned.claim_proof, "second")  # it has no answer yet
    assert projection(again) == ["second", RunStatus.RUNNING, None, None, None]
    assert again.completed_at is None
    assert await loaded(stores) == again
    recorded = await queue.record_run_result(owned.claim_proof, said)
    acked = await queue.ack(owned.claim_proof)
    assert acked == recorded.acked(now=clock.now()) == await loaded(stores)
    assert projection(acked) == projection(recorded)


@on_both
async def test_what_is_queued_again_reads_back_after_a_result(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """A result that was recorded before a nack, a release or a lost lease leaves no trace in the queue."""
    for number, give_back in enumerate((WRITES["nack"], WRITES["release"], None)):
        name, thread = f"d{number}", f"t{number}"
        owned = await reported(stores, await claimed(stores, name, thread=thread))
        if give_back is not None:
            await give_back(queue, owned, owned.claim_proof)
        else:
            clock.set(clock.now() + LEASE + 1)
            await queue.reclaim_expired_leases()
        back = await loaded(stores, name)
        assert (back.status, back.completed_at) == (QUEUED, None)
        assert projection(back) == [None] * len(PROJECTION)
        assert await queue.list_dispatches(thread) == (back,)
        await queue.release((await taken(stores, name)).claim_proof)
        assert await queue.cancel(name) is not None


async def test_an_extended_lease_ends_so_long_from_now_on(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    owned = await claimed(stores)
    await claimed(stores, "lost", thread="b")
    clock.set(clock.now() + LEASE)
    for length in (1, LEASE):  # an owner may also ask for less
        assert await queue.extend_lease(owned.claim_proof, extension_ms=length)
        assert await loaded(stores) == owned.extend_lease(extension_ms=length, now=clock.now())
    clock.set(clock.now() + 1)
    assert ids(await queue.reclaim_expired_leases()) == ["lost"]
    assert await queue.extend_lease(owned.claim_proof, extension_ms=5)
    clock.set(clock.now() + 6)
    assert ids(await queue.reclaim_expired_leases()) == ["d1"]


async def test_a_claim_is_lost_when_it_is_taken_back_and_not_when_its_time_has_passed(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    owned = await claimed(stores)
    clock.set(clock.now() + 10 * LEASE)
    assert await queue.extend_lease(owned.claim_proof, extension_ms=LEASE)
    assert await queue.reclaim_expired_leases() == ()
    clock.set(clock.now() + LEASE)
    assert await queue.reclaim_expired_leases() == ()  # it ends now, and is owned a millisecond longer
    clock.set(clock.now() + 1)
    assert ids(await queue.reclaim_expired_leases()) == ["d1"]
    assert not await queue.extend_lease(owned.claim_proof, extension_ms=LEASE)


async def test_who_does_not_own_a_dispatch_writes_nothing(stores: RunStores, queue: DispatchStore) -> None:
    """With a wrong token, or another dispatch's; on an unknown, a queued or an ended dispatch."""
    owned = await claimed(stores)
    other = await claimed(stores, "d2", thread="u")
    old = await claimed(stores, "queued", thread="q")
    good = owned.claim_proof
    tries = [(owned, replace(good, token=token)) for token in ("wrong", "", other.claim_proof.token)]
    tries.append((await queue.release(old.claim_proof), old.claim_proof))
    for name, write in (("ack", WRITES["ack"]), ("dead", WRITES["dead_letter"])):
        row = await claimed(stores, name, thread=name)
        await write(queue, row, row.claim_proof)
        tries.append((await loaded(stores, name), row.claim_proof))
    for status in (CANCELLED, SUPERSEDED):
        row = await ended(stores, status.value, status, thread=status.value)
        tries.append((row, Claim(dispatch_id=row.dispatch_id, token="token")))
    for row, proof in tries:
        assert not await queue.extend_lease(proof, extension_ms=1)
        for name, write in WRITES.items():
            with pytest.raises(StaleClaim):
                await write(queue, row, proof)
            assert await loaded(stores, row.dispatch_id) == row, name
    unknown = replace(good, dispatch_id="unknown")
    assert not await queue.extend_lease(unknown, extension_ms=1)
    for write in WRITES.values():
        with pytest.raises(UnknownDispatch):
            await write(queue, owned, unknown)
    assert (await loaded(stores), await loaded(stores, "d2")) == (owned, other)


async def test_an_earlier_claim_of_the_same_dispatch_writes_nothing(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    first = await claimed(stores, max_attempts=9)
    clock.set(clock.now() + LEASE + 1)
    await queue.reclaim_expired_leases()
    second = await taken(stores, consumer="another")
    supersede = {"supersede": lambda queue, row, proof: queue.supersede_claimed(proof, reason="late")}
    for name, write in (WRITES | supersede).items():
        with pytest.raises(StaleClaim):
            await write(queue, first, first.claim_proof)
        assert await loaded(stores) == second, name
    assert not await queue.extend_lease(first.claim_proof, extension_ms=LEASE)
    await queue.ack(second.claim_proof)


async def test_after_an_interrupt_every_write_of_the_owner_supersedes_its_row(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """It is refused, frees the thread, and drops the report; no other owner's write does so."""

    async def extend(queue, row, proof) -> None:
        if not await queue.extend_lease(proof, extension_ms=LEASE):
            raise StaleClaim("no")

    for number, (name, write) in enumerate({**WRITES, "extend": extend}.items()):
        thread, dispatch_id = f"t{number}", f"d{number}"
        owned = await reported(stores, await claimed(stores, dispatch_id, thread=thread))
        await queue.interrupt(thread)
        with pytest.raises(StaleClaim):
            await write(queue, owned, replace(owned.claim_proof, token="wrong"))
        assert await loaded(stores, dispatch_id) == owned, "an interrupt leaves the claimed row alone"
        clock.advance(timedelta(seconds=1))
        with pytest.raises(StaleClaim):
            await write(queue, owned, owned.claim_proof)
        row = await loaded(stores, dispatch_id)
        assert row == owned.superseded(reason=STALE_EPOCH, now=clock.now()), name
        assert not row.reconciled
        assert await queue.claimed_dispatch(thread) is None
        await enqueued(stores, f"e{number}", thread=thread)
        assert await queue.claim(thread, "worker", lease_ms=LEASE) is not None


async def test_claims_are_renewed_together_each_for_its_own_time(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    owned = [await claimed(stores, name, thread=f"t{name}") for name in ("d1", "d2", "d3", "d4")]
    await queue.interrupt("td3")
    wrong = Claim(dispatch_id="d4", token="another")
    clock.advance(timedelta(seconds=2))
    proofs = [row.claim_proof for row in owned]
    lengths = {proofs[0]: LEASE, proofs[1]: 9, proofs[2]: LEASE, wrong: LEASE}
    assert await stores.store.write(lambda tx: tx.runs.dispatches.renew(lengths)) == {"d1", "d2"}
    for row, length in zip(owned[:2], (LEASE, 9), strict=True):
        assert await loaded(stores, row.dispatch_id) == row.extend_lease(extension_ms=length, now=clock.now())
    assert [await loaded(stores, name) for name in ("d3", "d4")] == owned[2:]
    for claim in (proofs[0], proofs[2], wrong, Claim(dispatch_id="none", token="")):
        await stores.store.write(lambda tx, claim=claim: tx.runs.dispatches.supersede_stale(claim))
    assert (await loaded(stores, "d1")).status is RunDispatchStatus.CLAIMED
    assert await loaded(stores, "d3") == owned[2].superseded(reason=STALE_EPOCH, now=clock.now())
    assert await loaded(stores, "d4") == owned[3]


async def test_superseding_a_claimed_dispatch_needs_the_claim_and_ends_it(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    owned = await reported(stores, await claimed(stores))
    with pytest.raises(StaleClaim):
        await queue.supersede_claimed(Claim(dispatch_id="d1", token="wrong"), reason="x")
    assert await loaded(stores) == owned
    row = await queue.supersede_claimed(owned.claim_proof, reason="replaced")
    assert row == owned.superseded(reason="replaced", now=clock.now()) == await loaded(stores)
    assert not row.reconciled
    assert await queue.current_dispatch_epoch("t") == 0
    assert await queue.supersede_claimed(owned.claim_proof, reason="again") is None
    assert await loaded(stores) == row
    second = await claimed(stores, "d2")
    back = await queue.release(second.claim_proof)
    assert await queue.supersede_claimed(second.claim_proof, reason="x") is None
    assert await loaded(stores, "d2") == back
    second = await taken(stores, "d2")
    await queue.interrupt("t")  # after it too
    row = await queue.supersede_claimed(second.claim_proof, reason="replaced")
    assert row == second.superseded(reason="replaced", now=clock.now())


@on_both
async def test_what_is_asked_of_a_run_at_work_is_kept_until_it_is_dropped(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """In the order of arrival, the first of each call; its owner is notified."""
    owned, other = await claimed(stores), await claimed(stores, "d2", thread="u")
    ends = LiveRunCommand(kind=LiveCommandKind.CANCEL)
    first, second = (
        LiveRunCommand(
            kind=LiveCommandKind.DECISION, decisions=(("call", ToolCallResume(decision_id=id, result=id)),)
        )
        for id in ("first", "second")
    )

    async def ask(row, command: LiveRunCommand) -> None:
        await stores.store.write(lambda tx: tx.runs.dispatches.put_command(row, command))

    async def kept(*dispatch_ids: str) -> list[tuple[str, LiveRunCommand]]:
        return list(await stores.store.read(lambda tx: tx.runs.dispatches.commands(dispatch_ids)))

    with stores.store.changes.listen(commands_to("worker")) as heard:
        for command in (first, ends, second, ends):
            clock.advance(timedelta(seconds=1))
            await ask(owned, command)
        assert await heard.wait(timedelta(seconds=TOGETHER))
    await ask(other, ends)
    assert await kept("d1", "d2", "d3") == [("d1", first), ("d1", ends), ("d2", ends)]
    await stores.store.write(lambda tx: tx.runs.dispatches.drop_commands("d1"))
    assert await kept("d1", "d2") == [("d2", ends)]
    await queue.ack(other.claim_proof)
    await queue.purge_terminal(older_than=clock.now())
    assert await kept("d2") == []


async def test_an_interrupted_claim_is_superseded_when_its_lease_ends(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    owned = await reported(stores, await claimed(stores))
    await queue.interrupt("t")
    await enqueued(stores, "d2")
    clock.set(clock.now() + LEASE + 1)
    assert await queue.reclaim_expired_leases() == ()
    row = await loaded(stores)
    assert row == owned.superseded(reason=STALE_EPOCH, now=clock.now())
    assert (row.attempt_count, row.reconciled) == (0, False)
    assert (await queue.claim("t", "worker", lease_ms=LEASE)).dispatch_id == "d2"


@on_both
async def test_many_reclaims_return_each_dispatch_once_and_an_owner_wins_or_loses(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    names = [f"d{number}" for number in range(6)]
    for name in names:
        await claimed(stores, name, thread=f"t-{name}")
    clock.set(clock.now() + LEASE + 1)
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(queue.reclaim_expired_leases(limit=4)) for _ in range(TOGETHER)]
    found = [name for one in tries for name in ids(one.result())]
    found += ids(await queue.reclaim_expired_leases())
    assert sorted(found) == names
    assert {(await loaded(stores, name)).attempt_count for name in names} == {1}
    for number in range(8):
        name = f"o{number}"
        owned = await claimed(stores, name, thread=name)
        clock.set(clock.now() + LEASE + 1)
        async with asyncio.TaskGroup() as group:
            kept = group.create_task(queue.extend_lease(owned.claim_proof, extension_ms=LEASE))
            back = group.create_task(queue.reclaim_expired_leases())
        assert kept.result() == (name not in ids(back.result()))
        expected = RunDispatchStatus.CLAIMED if kept.result() else QUEUED
        assert (await loaded(stores, name)).status is expected
        if kept.result():
            await queue.ack(owned.claim_proof)


async def test_purging_removes_what_ended_before_a_moment_and_its_run_was_told_of(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    """Strictly before, by the last change; open rows stay, however old."""
    await enqueued(stores, "queued", thread="q")
    await claimed(stores, "claimed", thread="c")
    for status in TERMINAL:
        await ended(stores, status.value, status, thread=status.value)
    moment = clock.now()
    assert await queue.purge_terminal(older_than=moment) == 0
    clock.advance(timedelta(milliseconds=1))
    owned = await claimed(stores, "young", thread="y", dedupe_key="key")
    await queue.ack(owned.claim_proof)
    assert await queue.purge_terminal(older_than=moment + 1) == 1  # what was acked
    left = ids(await queue.unreconciled_dispatches())
    await queue.mark_reconciled(left)
    assert await queue.purge_terminal(older_than=moment + 1) == len(left) == len(TERMINAL) - 1
    for status in TERMINAL:
        assert await queue.load_dispatch(status.value) is None
        assert await queue.list_dispatches(status.value) == ()
    assert sum((await queue.count_by_status()).values()) == 3
    assert await queue.purge_terminal(older_than=moment + 2) == 1
    again = await enqueued(stores, "young", thread="y", dedupe_key="key")  # id, key and run are free
    assert (await loaded(stores, "young"), again.status) == (again, QUEUED)


async def test_dead_letters_may_be_kept_longer(
    stores: RunStores, queue: DispatchStore, clock: ManualClock
) -> None:
    for number in range(2):
        await ended(stores, f"dead-{number}", DEAD_LETTER, thread=f"t{number}")
        await ended(stores, f"acked-{number}", ACKED, thread=f"t{number}")
        await queue.mark_reconciled([f"dead-{number}"])
        clock.advance(timedelta(days=1))
    now, day = clock.now(), 86_400_000
    for moment, gone, left in ((now - 2 * day, 2, ["dead-0", "dead-1"]), (now - day, 1, ["dead-1"])):
        assert await queue.purge_terminal(older_than=now, dead_letters_older_than=moment) == gone
        assert ids(await queue.list_by_status(DEAD_LETTER)) == left
    assert await queue.purge_terminal(older_than=now) == 1
