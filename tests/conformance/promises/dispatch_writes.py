"""Promises of a dispatch store about what an owner writes, and that nobody else can."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from conformance.promises.given import refused
from conformance.promises.run_given import (
    LEASE,
    SECOND,
    TOGETHER,
    Promise,
    claimed,
    ended,
    enqueued,
    loaded,
    reported,
    result,
    taken,
)
from postroom.contracts.dispatch import STALE_EPOCH, Claim, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import InvalidRecord, StaleClaim, UnknownDispatch
from postroom.contracts.live import LiveCommandKind, LiveRunCommand
from postroom.contracts.records import replace
from postroom.contracts.runs import RunStatus, TerminationKind, TerminationReason
from postroom.contracts.tools import ToolCallResume
from postroom.stores.changes import commands_to
from postroom.stores.runs.ports import DispatchStore, RunStores
from postroom.stores.transaction import Transaction
from postroom.testing.clock import ManualClock

Write = Callable[[DispatchStore, RunDispatch, Claim], Awaitable[object]]

WRITES: dict[str, Write] = {
    "record_dispatch_start": lambda store, row, proof: store.record_dispatch_start(proof, "late"),
    "record_run_result": lambda store, row, proof: store.record_run_result(proof, result(row)),
    "ack": lambda store, row, proof: store.ack(proof),
    "nack": lambda store, row, proof: store.nack(proof, error="late"),
    "release": lambda store, row, proof: store.release(proof),
    "dead_letter": lambda store, row, proof: store.dead_letter(proof, error="late"),
}
"""What an owner writes and, once the claim is lost, may not write any more."""

PROJECTION = ("dispatch_instance_id", "run_status", "termination", "run_response", "run_error")


async def a_start_is_recorded(stores: RunStores, clock: ManualClock) -> None:
    """The run is running under the instance's id; the row stays claimed with its lease."""
    owned = await claimed(stores)
    clock.advance(timedelta(seconds=1))
    started = await stores.dispatches.record_dispatch_start(owned.claim_proof, "instance")
    assert started == owned.record_dispatch_start("instance", now=clock.now())
    assert started.run_status is RunStatus.RUNNING
    assert await loaded(stores) == started


async def a_result_is_recorded(stores: RunStores, clock: ManualClock) -> None:
    """Status, reason, answer and error of the run stand in the row, which stays claimed until it is acked."""
    owned = await claimed(stores)
    await stores.dispatches.record_dispatch_start(owned.claim_proof, "instance")
    clock.advance(timedelta(seconds=1))
    said = result(
        owned,
        termination=TerminationReason(type=TerminationKind.STOPPED, value="max_rounds", detail="after 9"),
        response="so far: 'ü' \"x\"\n",
        error="too long",
    )
    recorded = await stores.dispatches.record_run_result(owned.claim_proof, said)
    assert recorded == owned.record_run_result(said, now=clock.now())
    assert (recorded.status, recorded.completed_at) == (RunDispatchStatus.CLAIMED, clock.now())
    assert await loaded(stores) == recorded
    acked = await stores.dispatches.ack(owned.claim_proof)
    assert [getattr(acked, name) for name in PROJECTION] == [getattr(recorded, name) for name in PROJECTION]


async def a_start_clears_what_was_reported_before(stores: RunStores, clock: ManualClock) -> None:
    """A run that begins again has no answer yet."""
    recorded = await reported(stores, await claimed(stores))
    again = await stores.dispatches.record_dispatch_start(recorded.claim_proof, "second")
    assert [getattr(again, name) for name in PROJECTION] == ["second", RunStatus.RUNNING, None, None, None]
    assert again.completed_at is None
    assert await loaded(stores) == again


async def a_result_of_another_run_is_refused(stores: RunStores, clock: ManualClock) -> None:
    """And the row is as it was."""
    owned = await claimed(stores)
    with refused(InvalidRecord):
        await stores.dispatches.record_run_result(owned.claim_proof, result(owned, run_id="another"))
    assert await loaded(stores) == owned


async def an_ack_ends_the_delivery_and_says_nothing_of_the_run(stores: RunStores, clock: ManualClock) -> None:
    """Acked, no owner, nothing more to be told; what the run reported stays as it is."""
    owned = await claimed(stores)
    clock.advance(timedelta(seconds=1))
    acked = await stores.dispatches.ack(owned.claim_proof)
    assert acked == owned.acked(now=clock.now())
    assert (acked.status, acked.completed_at) == (RunDispatchStatus.ACKED, clock.now())
    assert acked.reconciled
    assert acked.run_status is None
    assert await loaded(stores) == acked
    assert await stores.dispatches.claimed_dispatch("t") is None


async def a_nack_gives_back_with_a_delay_and_an_error(stores: RunStores, clock: ManualClock) -> None:
    """Queued again with one attempt more, due after the delay, owned by nobody."""
    owned = await claimed(stores)
    clock.advance(timedelta(seconds=1))
    back = await stores.dispatches.nack(owned.claim_proof, error="it was 'busy'", delay_ms=5)
    assert back == owned.nacked(error="it was 'busy'", delay_ms=5, now=clock.now())
    assert (back.status, back.attempt_count) == (RunDispatchStatus.QUEUED, 1)
    assert (back.available_at, back.last_error) == (clock.now() + 5, "it was 'busy'")
    assert await loaded(stores) == back
    assert await stores.dispatches.claimed_dispatch("t") is None


async def a_nack_at_the_last_attempt_is_a_dead_letter(stores: RunStores, clock: ManualClock) -> None:
    """With as many attempts as were allowed, to be told to the run."""
    await enqueued(stores, max_attempts=3)
    for attempt in (1, 2, 3):
        owned = await taken(stores)
        back = await stores.dispatches.nack(owned.claim_proof, error=f"failed {attempt}")
        assert back.attempt_count == attempt
        assert back == await loaded(stores)
    assert back.status is RunDispatchStatus.DEAD_LETTER
    assert (back.last_error, back.completed_at) == ("failed 3", clock.now())
    assert not back.reconciled
    assert await stores.dispatches.claim("t", "worker", lease_ms=LEASE) is None


async def one_attempt_is_one(stores: RunStores, clock: ManualClock) -> None:
    """The first nack of such a dispatch ends it."""
    owned = await claimed(stores, max_attempts=1)
    back = await stores.dispatches.nack(owned.claim_proof, error="x")
    assert (back.status, back.attempt_count) == (RunDispatchStatus.DEAD_LETTER, 1)


async def a_release_counts_no_attempt(stores: RunStores, clock: ManualClock) -> None:
    """A worker that leaves gives back at once, as often as it likes, also at the last attempt."""
    await enqueued(stores, max_attempts=2)
    owned = await taken(stores)
    await stores.dispatches.nack(owned.claim_proof, error="first")
    for _ in range(3):
        owned = await taken(stores)
        clock.advance(timedelta(seconds=1))
        back = await stores.dispatches.release(owned.claim_proof)
        assert back == owned.released(now=clock.now())
        assert (back.status, back.attempt_count) == (RunDispatchStatus.QUEUED, 1)
        assert (back.available_at, back.last_error) == (0, "first")
        assert await loaded(stores) == back
    assert await stores.dispatches.due_thread_ids() == ("t",)


async def a_dead_letter_keeps_its_attempts_and_its_reason(stores: RunStores, clock: ManualClock) -> None:
    """Given up at once, whatever attempts are left, with what the run had reported."""
    owned = await claimed(stores)
    recorded = await reported(stores, owned)
    given_up = await stores.dispatches.dead_letter(owned.claim_proof, error="no credentials")
    assert given_up == recorded.dead_lettered(error="no credentials", now=clock.now())
    assert (given_up.status, given_up.attempt_count) == (RunDispatchStatus.DEAD_LETTER, 0)
    assert not given_up.reconciled
    assert await loaded(stores) == given_up


async def what_is_queued_again_reads_back_after_a_result(stores: RunStores, clock: ManualClock) -> None:
    """A result that was recorded before a nack, a release or a lost lease leaves no trace in the queue.

    The row can be loaded, listed, claimed and cancelled.
    """
    for number, give_back in enumerate((WRITES["nack"], WRITES["release"], None)):
        name, thread = f"d{number}", f"t{number}"
        owned = await reported(stores, await claimed(stores, name, thread=thread))
        if give_back is not None:
            await give_back(stores.dispatches, owned, owned.claim_proof)
        else:
            clock.set(clock.now() + LEASE + 1)
            await stores.dispatches.reclaim_expired_leases()
        back = await loaded(stores, name)
        assert back.status is RunDispatchStatus.QUEUED
        assert [getattr(back, field) for field in PROJECTION] == [None] * len(PROJECTION)
        assert back.completed_at is None
        assert await stores.dispatches.list_dispatches(thread) == (back,)
        owned = await taken(stores, name)
        await stores.dispatches.release(owned.claim_proof)
        assert await stores.dispatches.cancel(name) is not None


async def an_extended_lease_ends_later(stores: RunStores, clock: ManualClock) -> None:
    """So long from now on, and not from its former end; nothing else but `updated_at` changes."""
    owned = await claimed(stores)
    clock.advance(timedelta(seconds=2))
    assert await stores.dispatches.extend_lease(owned.claim_proof, extension_ms=LEASE)
    row = await loaded(stores)
    assert row == owned.extend_lease(extension_ms=LEASE, now=clock.now())
    assert row.lease_until == clock.now() + LEASE
    assert await stores.dispatches.extend_lease(owned.claim_proof, extension_ms=1)
    assert (await loaded(stores)).lease_until == clock.now() + 1  # an owner may also ask for less


async def extending_late_works_until_the_dispatch_is_reclaimed(stores: RunStores, clock: ManualClock) -> None:
    """The claim is lost when it is taken back, not when its time has passed."""
    owned = await claimed(stores)
    clock.set(clock.now() + 10 * LEASE)
    assert await stores.dispatches.extend_lease(owned.claim_proof, extension_ms=LEASE)
    assert await stores.dispatches.reclaim_expired_leases() == ()
    clock.set(clock.now() + LEASE + 1)
    assert len(await stores.dispatches.reclaim_expired_leases()) == 1
    assert not await stores.dispatches.extend_lease(owned.claim_proof, extension_ms=LEASE)


async def extending_a_lost_claim_is_false(stores: RunStores, clock: ManualClock) -> None:
    """With a wrong token, of a queued, ended or unknown dispatch; nothing is written."""
    owned = await claimed(stores)
    store, proof = stores.dispatches, owned.claim_proof
    assert not await store.extend_lease(replace(proof, token="wrong"), extension_ms=1)
    assert not await store.extend_lease(replace(proof, dispatch_id="unknown"), extension_ms=1)
    assert await loaded(stores) == owned
    back = await store.release(proof)
    assert not await store.extend_lease(proof, extension_ms=1)
    assert await loaded(stores) == back
    await store.cancel("d1")
    assert not await store.extend_lease(proof, extension_ms=1)


async def a_wrong_token_writes_nothing(stores: RunStores, clock: ManualClock) -> None:
    """Whatever is written with it, and also when it is another dispatch's good one."""
    owned = await claimed(stores)
    other = await claimed(stores, "d2", thread="u")
    for name, write in WRITES.items():
        for token in ("wrong", "", other.claim_proof.token):
            with refused(StaleClaim):
                await write(stores.dispatches, owned, Claim(dispatch_id="d1", token=token))
            assert await loaded(stores) == owned, name
    assert await loaded(stores, "d2") == other


async def an_unknown_dispatch_is_named_as_such(stores: RunStores, clock: ManualClock) -> None:
    """By every write of an owner."""
    owned = await claimed(stores)
    for write in WRITES.values():
        with refused(UnknownDispatch):
            await write(stores.dispatches, owned, Claim(dispatch_id="unknown", token=owned.claim_proof.token))
    assert await loaded(stores) == owned


async def what_is_not_claimed_takes_no_writes(stores: RunStores, clock: ManualClock) -> None:
    """With the token it once had, or any: queued, or ended in whichever way."""
    store = stores.dispatches
    old = await claimed(stores, "queued", thread="q")
    rows = [(await store.release(old.claim_proof), old.claim_proof.token)]
    for status in (RunDispatchStatus.ACKED, RunDispatchStatus.DEAD_LETTER):
        owned = await claimed(stores, status.value, thread=status.value)
        write = WRITES["ack" if status is RunDispatchStatus.ACKED else "dead_letter"]
        await write(store, owned, owned.claim_proof)
        rows.append((await loaded(stores, status.value), owned.claim_proof.token))
    for status in (RunDispatchStatus.CANCELLED, RunDispatchStatus.SUPERSEDED):
        row = await ended(stores, status.value, status, thread=status.value)
        rows.append((row, "token"))
    for row, token in rows:
        for name, write in WRITES.items():
            with refused(StaleClaim):
                await write(store, row, Claim(dispatch_id=row.dispatch_id, token=token))
            assert await loaded(stores, row.dispatch_id) == row, name


async def an_earlier_claim_of_the_same_dispatch_writes_nothing(stores: RunStores, clock: ManualClock) -> None:
    """After the lease ended and another owns it, the first owner's every write is stale."""
    first = await claimed(stores, max_attempts=9)
    clock.set(clock.now() + LEASE + 1)
    await stores.dispatches.reclaim_expired_leases()
    second = await taken(stores, consumer="another")
    for name, write in WRITES.items():
        with refused(StaleClaim):
            await write(stores.dispatches, first, first.claim_proof)
        assert await loaded(stores) == second, name
    assert not await stores.dispatches.extend_lease(first.claim_proof, extension_ms=LEASE)
    with refused(StaleClaim):
        await stores.dispatches.supersede_claimed(first.claim_proof, reason="late")
    assert await loaded(stores) == second
    await stores.dispatches.ack(second.claim_proof)


async def after_an_interrupt_every_write_is_stale(stores: RunStores, clock: ManualClock) -> None:
    """The first one makes the row Superseded, says so, and frees the thread; what was reported is dropped."""
    for number, (name, write) in enumerate(WRITES.items()):
        thread, dispatch_id = f"t{number}", f"d{number}"
        owned = await reported(stores, await claimed(stores, dispatch_id, thread=thread))
        await stores.dispatches.interrupt(thread)
        assert await loaded(stores, dispatch_id) == owned, "an interrupt leaves the claimed row alone"
        clock.advance(timedelta(seconds=1))
        with refused(StaleClaim):
            await write(stores.dispatches, owned, owned.claim_proof)
        row = await loaded(stores, dispatch_id)
        assert row == owned.superseded(reason=STALE_EPOCH, now=clock.now()), name
        assert not row.reconciled
        assert await stores.dispatches.claimed_dispatch(thread) is None
        await enqueued(stores, f"e{number}", thread=thread)
        assert await stores.dispatches.claim(thread, "worker", lease_ms=LEASE) is not None


async def after_an_interrupt_a_lease_is_not_extended(stores: RunStores, clock: ManualClock) -> None:
    """The answer is no, and the row becomes Superseded."""
    owned = await claimed(stores)
    await stores.dispatches.interrupt("t")
    assert not await stores.dispatches.extend_lease(owned.claim_proof, extension_ms=LEASE)
    assert await loaded(stores) == owned.superseded(reason=STALE_EPOCH, now=clock.now())


async def claims_are_renewed_together(stores: RunStores, clock: ManualClock) -> None:
    """Each for its own time, and only what is owned; a stale one ends when that is asked."""
    names = ("d1", "d2", "d3", "d4")
    owned = [await claimed(stores, name, thread=f"t{name}") for name in names]
    await stores.dispatches.interrupt("td3")
    wrong = Claim(dispatch_id="d4", token="another")
    clock.advance(timedelta(seconds=2))
    lengths = {
        owned[0].claim_proof: LEASE,
        owned[1].claim_proof: 9,
        owned[2].claim_proof: LEASE,
        wrong: LEASE,
    }
    assert await stores.store.write(lambda tx: tx.runs.dispatches.renew(lengths)) == {"d1", "d2"}
    for row, length in zip(owned[:2], (LEASE, 9), strict=True):
        assert await loaded(stores, row.dispatch_id) == row.extend_lease(extension_ms=length, now=clock.now())
    assert [await loaded(stores, name) for name in names[2:]] == owned[2:]
    for claim in (owned[0].claim_proof, owned[2].claim_proof, wrong, Claim(dispatch_id="none", token="")):
        await stores.store.write(lambda tx: tx.runs.dispatches.refuse_stale(claim))  # noqa: B023 - awaited at once
    assert (await loaded(stores, "d1")).status is RunDispatchStatus.CLAIMED
    assert await loaded(stores, "d3") == owned[2].superseded(reason=STALE_EPOCH, now=clock.now())
    assert await loaded(stores, "d4") == owned[3]


async def a_wrong_token_does_not_supersede(stores: RunStores, clock: ManualClock) -> None:
    """After an interrupt too, only the owner's own write ends its row."""
    owned = await claimed(stores)
    await stores.dispatches.interrupt("t")
    wrong = replace(owned.claim_proof, token="wrong")
    for write in WRITES.values():
        with refused(StaleClaim):
            await write(stores.dispatches, owned, wrong)
    assert not await stores.dispatches.extend_lease(wrong, extension_ms=LEASE)
    assert await loaded(stores) == owned


async def writing_twice_is_told(stores: RunStores, clock: ManualClock) -> None:
    """What ends a claim is stale when it is repeated after a lost answer, and has happened once."""
    for name in ("ack", "nack", "release", "dead_letter"):
        owned = await claimed(stores, name, thread=name)
        await WRITES[name](stores.dispatches, owned, owned.claim_proof)
        once = await loaded(stores, name)
        clock.advance(timedelta(seconds=1))
        with refused(StaleClaim):
            await WRITES[name](stores.dispatches, owned, owned.claim_proof)
        assert await loaded(stores, name) == once


async def recording_twice_is_harmless(stores: RunStores, clock: ManualClock) -> None:
    """A start, a result and an extension may be repeated by the owner when an answer was lost."""
    owned = await claimed(stores)
    for _ in range(2):
        started = await stores.dispatches.record_dispatch_start(owned.claim_proof, "instance")
        assert await loaded(stores) == started
    for _ in range(2):
        said = await stores.dispatches.record_run_result(owned.claim_proof, result(owned))
        assert await loaded(stores) == said
    for _ in range(2):
        assert await stores.dispatches.extend_lease(owned.claim_proof, extension_ms=SECOND)
    assert (await loaded(stores)).lease_until == clock.now() + SECOND


async def superseding_a_claimed_dispatch_ends_it(stores: RunStores, clock: ManualClock) -> None:
    """The epoch stays; the reason stands in the row, its report is dropped, its run is to be told."""
    owned = await reported(stores, await claimed(stores))
    ended_row = await stores.dispatches.supersede_claimed(owned.claim_proof, reason="replaced")
    assert ended_row == owned.superseded(reason="replaced", now=clock.now())
    assert await loaded(stores) == ended_row
    assert not ended_row.reconciled
    assert await stores.dispatches.current_dispatch_epoch("t") == 0
    assert await stores.dispatches.supersede_claimed(owned.claim_proof, reason="again") is None
    assert await loaded(stores) == ended_row
    await enqueued(stores, "d2")
    assert await stores.dispatches.claim("t", "worker", lease_ms=LEASE) is not None


async def superseding_needs_the_claim(stores: RunStores, clock: ManualClock) -> None:
    """A wrong token is stale; a row that is not claimed is none and stays; after an interrupt it works."""
    owned = await claimed(stores)
    with refused(StaleClaim):
        await stores.dispatches.supersede_claimed(Claim(dispatch_id="d1", token="wrong"), reason="x")
    assert await loaded(stores) == owned
    back = await stores.dispatches.release(owned.claim_proof)
    assert await stores.dispatches.supersede_claimed(owned.claim_proof, reason="x") is None
    assert await loaded(stores) == back
    owned = await taken(stores)
    await stores.dispatches.interrupt("t")
    ended_row = await stores.dispatches.supersede_claimed(owned.claim_proof, reason="replaced")
    assert ended_row == owned.superseded(reason="replaced", now=clock.now())


def _asked(owned: RunDispatch, command: LiveRunCommand, tx: Transaction) -> None:
    tx.runs.dispatches.put_command(owned, command)


async def what_is_asked_of_a_run_at_work_is_kept_until_it_is_dropped(
    stores: RunStores, clock: ManualClock
) -> None:
    """In the order in which it came, the first of each call; its owner hears of it."""
    owned, other = await claimed(stores), await claimed(stores, "d2", thread="u")
    ends = LiveRunCommand(kind=LiveCommandKind.CANCEL)
    decided = [
        LiveRunCommand(
            kind=LiveCommandKind.DECISION, decisions=(("call", ToolCallResume(decision_id=id, result=id)),)
        )
        for id in ("first", "second")
    ]
    with stores.store.changes.listen(commands_to("worker")) as heard:
        for command in (decided[0], ends, decided[1], ends):
            clock.advance(timedelta(seconds=1))
            await stores.store.write(partial(_asked, owned, command))
        assert await heard.wait(timedelta(seconds=TOGETHER))
    await stores.store.write(partial(_asked, other, ends))

    async def kept(*dispatch_ids: str) -> list[tuple[str, LiveRunCommand]]:
        return list(await stores.store.read(lambda tx: tx.runs.dispatches.commands(dispatch_ids)))

    assert await kept("d1", "d2", "d3") == [("d1", decided[0]), ("d1", ends), ("d2", ends)]
    await stores.store.write(lambda tx: tx.runs.dispatches.drop_commands("d1"))
    assert await kept("d1", "d2") == [("d2", ends)]
    await stores.dispatches.ack(other.claim_proof)
    await stores.dispatches.purge_terminal(older_than=clock.now())
    assert await kept("d2") == []


PROMISES: tuple[Promise, ...] = (
    a_start_is_recorded,
    a_result_is_recorded,
    a_start_clears_what_was_reported_before,
    a_result_of_another_run_is_refused,
    an_ack_ends_the_delivery_and_says_nothing_of_the_run,
    a_nack_gives_back_with_a_delay_and_an_error,
    a_nack_at_the_last_attempt_is_a_dead_letter,
    one_attempt_is_one,
    a_release_counts_no_attempt,
    a_dead_letter_keeps_its_attempts_and_its_reason,
    what_is_queued_again_reads_back_after_a_result,
    an_extended_lease_ends_later,
    extending_late_works_until_the_dispatch_is_reclaimed,
    extending_a_lost_claim_is_false,
    a_wrong_token_writes_nothing,
    an_unknown_dispatch_is_named_as_such,
    what_is_not_claimed_takes_no_writes,
    an_earlier_claim_of_the_same_dispatch_writes_nothing,
    after_an_interrupt_every_write_is_stale,
    after_an_interrupt_a_lease_is_not_extended,
    claims_are_renewed_together,
    a_wrong_token_does_not_supersede,
    writing_twice_is_told,
    recording_twice_is_harmless,
    superseding_a_claimed_dispatch_ends_it,
    superseding_needs_the_claim,
    what_is_asked_of_a_run_at_work_is_kept_until_it_is_dropped,
)
