"""Effects wait, are handed out at least once, a key counts once; dead letters are revived, old effects purged."""

import asyncio
from datetime import timedelta

import pytest

from conformance.boxes import on_both
from conformance.promises.run_given import KIND, LEASE, SECOND, TARGET, TOGETHER
from conformance.promises.run_outbox_given import claim_effects, claim_one, effect, numbers, outbox_ids
from postroom.contracts.errors import IdempotencyConflict
from postroom.contracts.outbox import NackOutcome, OutboxMessage, OutboxStatus
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.stores.runs.ports import OutboxStore, RunStores
from postroom.testing import ManualClock

LOST, REQUEUED, DEAD_LETTERED = NackOutcome.LOST_CLAIM, NackOutcome.REQUEUED, NackOutcome.DEAD_LETTERED


@pytest.fixture
def outbox(stores: RunStores) -> OutboxStore:
    return stores.outbox


async def dead(stores: RunStores, number: int = 0, **details) -> OutboxMessage:
    """Store an effect and make it a dead letter; no other effect may be due there."""
    stored = await stores.outbox.enqueue(effect(number, **details))
    (found,) = await claim_effects(stores, kind=stored.kind, target=stored.target)
    outcome = await stores.outbox.nack(found.outbox_id, found.claim_token, error="gone", final=True)
    assert (found.outbox_id, outcome) == (stored.outbox_id, DEAD_LETTERED)
    return stored


async def delivered(stores: RunStores, number: int = 0, **details) -> OutboxMessage:
    """Store an effect and perform it; nothing else may be due."""
    stored = await stores.outbox.enqueue(effect(number, **details))
    found, token = await claim_one(stores)
    assert found.outbox_id == stored.outbox_id
    assert await stores.outbox.ack(found.outbox_id, token)
    return stored


@on_both
async def test_an_effect_is_stored_claimed_and_delivered(
    stores: RunStores, outbox: OutboxStore, clock: ManualClock
) -> None:
    draft = effect(payload={"a": [1, None, {"ü": 2.5}]}, dedupe_key="k: 'ü'", max_attempts=3)
    stored = await outbox.enqueue(draft)
    expected = OutboxMessage(
        outbox_id=stored.outbox_id,
        kind=KIND,
        target=TARGET,
        payload=draft.payload,
        status=OutboxStatus.PENDING,
        available_at=0,
        created_at=clock.now(),
        dedupe_key=draft.dedupe_key,
        max_attempts=3,
    )
    assert stored == expected
    await stores.store.write(lambda tx: tx.outbox.note_steps(stored.outbox_id, 2))
    await stores.store.write(lambda tx: tx.outbox.note_steps(stored.outbox_id, 1))  # they are never fewer
    found, token = await claim_one(stores)
    assert found == replace(
        expected,
        status=OutboxStatus.CLAIMED,
        attempt_count=1,
        claim_token=token,
        lease_until=clock.now() + LEASE,
        steps_done=2,
    )
    assert await claim_effects(stores) == ()
    assert await outbox.ack(found.outbox_id, token)
    clock.advance(timedelta(days=9))
    assert await claim_effects(stores) == ()


async def test_effects_are_claimed_by_lane_and_target_when_due_the_oldest_first(
    stores: RunStores, outbox: OutboxStore, clock: ManualClock
) -> None:
    for number, where in enumerate(({}, {"kind": "other"}, {"target": "other"}, {}, {})):
        await outbox.enqueue(effect(number, **where))
    commit = ThreadCommit(thread_id="t", outbox=tuple(effect(number) for number in (5, 6, 7)))
    await stores.coordinator.commit(commit)
    due = clock.now() + SECOND
    await outbox.enqueue(effect(8, available_at=due))
    assert await claim_effects(stores, limit=0) == ()
    assert [numbers(await claim_effects(stores, limit=2)) for _ in "1234"] == [[0, 3], [4, 5], [6, 7], []]
    assert numbers(await claim_effects(stores, kind="other")) == [1]
    assert numbers(await claim_effects(stores, target="other")) == [2]
    clock.set(due - 1)
    assert await claim_effects(stores) == ()
    clock.set(due)
    assert numbers(await claim_effects(stores)) == [8]


@on_both
async def test_a_key_gives_the_first_effect_back_whatever_became_of_it(
    stores: RunStores, outbox: OutboxStore, clock: ManualClock
) -> None:
    first = await outbox.enqueue(effect(dedupe_key="k", max_attempts=3))
    clock.advance(timedelta(seconds=1))
    assert await outbox.enqueue(effect(dedupe_key="k", available_at=99)) == first
    commit = ThreadCommit(thread_id="t", outbox=(effect(dedupe_key="k"),))
    (committed,) = (await stores.coordinator.commit(commit)).outbox
    found, token = await claim_one(stores)
    assert committed.outbox_id == found.outbox_id == first.outbox_id
    await outbox.ack(found.outbox_id, token)
    again = await outbox.enqueue(effect(dedupe_key="k"))
    assert (again.outbox_id, again.status) == (first.outbox_id, OutboxStatus.DELIVERED)
    assert await claim_effects(stores) == ()
    elsewhere = [{"dedupe_key": "k", "kind": "other"}, {"dedupe_key": "k", "target": "other"}, {}, {}]
    others = [await outbox.enqueue(effect(1, **where)) for where in elsewhere]
    assert len({one.outbox_id for one in (first, *others)}) == 5
    with pytest.raises(IdempotencyConflict):
        await outbox.enqueue(effect(2, dedupe_key="k"))
    for drafts in ((effect(2, dedupe_key="k"),), (effect(1, dedupe_key="n"), effect(2, dedupe_key="n"))):
        with pytest.raises(IdempotencyConflict):
            await stores.coordinator.commit(ThreadCommit(thread_id="t", outbox=drafts))
    assert numbers(await claim_effects(stores)) == [1, 1]


async def test_an_answer_counts_once_and_needs_the_token(stores: RunStores, outbox: OutboxStore) -> None:
    for number in (1, 2):
        await outbox.enqueue(effect(number))
    first, second = await claim_effects(stores)
    one, token = first.outbox_id, first.claim_token
    for outbox_id, wrong in ((one, "wrong"), ("unknown", token)):
        assert not await outbox.ack(outbox_id, wrong)
        assert await outbox.nack(outbox_id, wrong, error="x") is LOST
        assert await outbox.nack(outbox_id, wrong, error="x", final=True) is LOST
    assert await outbox.ack(one, token)
    assert not await outbox.ack(one, token)
    assert await outbox.nack(one, token, error="x") is LOST
    other, token = second.outbox_id, second.claim_token
    assert await outbox.nack(other, token, error="x", delay_ms=SECOND) is REQUEUED
    assert not await outbox.ack(other, token)


@pytest.mark.parametrize("keyed", [False, True])
async def test_of_effects_that_are_acked_together_one_with_the_token_of_another_stays_claimed(
    stores: RunStores, outbox: OutboxStore, keyed: bool
) -> None:
    for number in range(3):
        await outbox.enqueue(effect(number, dedupe_key=f"k{number}" if keyed else None))
    claims = [one for _ in range(3) for one in await claim_effects(stores, limit=1)]
    ids, (one, two, three) = outbox_ids(claims), (claim.claim_token for claim in claims)
    assert await stores.store.write(lambda tx: tx.outbox.ack(ids, (two, one, three))) == 1
    assert await stores.store.write(lambda tx: tx.outbox.ack(ids[:2], (one, two))) == 2


@on_both
async def test_at_the_same_time_work_is_shared_and_a_key_stores_or_revives_or_discards_once(
    stores: RunStores, outbox: OutboxStore
) -> None:
    async def together(call) -> list:
        async with asyncio.TaskGroup() as group:
            tries = [group.create_task(call()) for _ in range(TOGETHER)]
        return [one.result() for one in tries]

    for number in range(TOGETHER):
        await outbox.enqueue(effect(number))
    found = [
        number for one in await together(lambda: claim_effects(stores, limit=3)) for number in numbers(one)
    ]
    found += numbers(await claim_effects(stores))
    assert sorted(found) == list(range(TOGETHER))
    stored = await together(lambda: outbox.enqueue(effect(dedupe_key="k")))
    assert len({one.outbox_id for one in stored}) == len(await claim_effects(stores)) == 1
    gone = await dead(stores)
    revived = await together(lambda: outbox.revive(gone.outbox_id))
    assert len([one for one in revived if one]) == len(await claim_effects(stores)) == 1
    gone = await dead(stores)
    assert (await together(lambda: outbox.discard(gone.outbox_id))).count(True) == 1
    for number in range(4):
        await outbox.enqueue(effect(number, order_key="a"))
    in_line = await together(lambda: claim_effects(stores, limit=9))
    assert [number for claim in in_line for number in numbers(claim)] == [0]


async def test_of_an_order_key_only_the_oldest_is_claimed_until_it_is_delivered(
    stores: RunStores, outbox: OutboxStore, clock: ManualClock
) -> None:
    for number in range(3):
        await outbox.enqueue(effect(number, order_key="a"))
    await outbox.enqueue(effect(3, order_key="b"))
    await outbox.enqueue(effect(4))
    await outbox.enqueue(effect(5, order_key="a", target="elsewhere"))
    first = await claim_effects(stores)
    assert numbers(first) == [0, 3, 4]
    assert numbers(await claim_effects(stores, target="elsewhere")) == [5]
    assert await claim_effects(stores) == ()
    for one in first[1:]:
        await outbox.ack(one.outbox_id, one.claim_token)
    await outbox.nack(first[0].outbox_id, first[0].claim_token, error="later", delay_ms=SECOND)
    assert await claim_effects(stores) == ()  # one that is tried later keeps its place
    for wait in (SECOND, LEASE):  # and while its owner is silent
        clock.set(clock.now() + wait)
        (again,) = await claim_effects(stores)
        assert numbers((again,)) == [0]
    assert await outbox.ack(again.outbox_id, again.claim_token)
    assert numbers(await claim_effects(stores)) == [1]


@on_both
async def test_one_that_was_given_up_keeps_nobody_of_its_order_key_waiting(
    stores: RunStores, outbox: OutboxStore, clock: ManualClock
) -> None:
    for number in range(3):
        await outbox.enqueue(effect(number, order_key="a", max_attempts=1))
    found, token = await claim_one(stores)
    await outbox.nack(found.outbox_id, token, error="never", final=True)
    assert numbers(await claim_effects(stores)) == [1]
    clock.set(clock.now() + LEASE)
    # The claim that finds one used up may take no more.
    assert sorted([numbers(await claim_effects(stores)) for _ in "12"]) == [[], [2]]
    assert sorted(numbers(await outbox.dead_letters(kind=KIND))) == [0, 1]


async def test_an_effect_may_be_given_up_at_once_and_be_revived(
    stores: RunStores, outbox: OutboxStore, clock: ManualClock
) -> None:
    await outbox.enqueue(effect(max_attempts=2, dedupe_key="k"))
    found, token = await claim_one(stores)
    outcome = await outbox.nack(found.outbox_id, token, error="no such room", delay_ms=SECOND, final=True)
    (gone,) = await outbox.dead_letters()
    status = OutboxStatus.DEAD_LETTER
    assert outcome is DEAD_LETTERED
    assert gone == replace(
        found, status=status, claim_token=None, lease_until=None, last_error="no such room"
    )
    clock.advance(timedelta(days=9))
    assert await claim_effects(stores) == ()
    revived = await outbox.revive(gone.outbox_id)
    pending = {"status": OutboxStatus.PENDING, "available_at": clock.now(), "attempt_count": 0}
    assert revived == replace(gone, **pending) == await outbox.enqueue(effect(dedupe_key="k"))
    assert await outbox.dead_letters() == ()
    for attempt, outcome in ((1, REQUEUED), (2, DEAD_LETTERED)):
        found, token = await claim_one(stores)
        assert (found.outbox_id, found.attempt_count) == (gone.outbox_id, attempt)
        assert await outbox.nack(found.outbox_id, token, error="again") is outcome
    assert [one.last_error for one in await outbox.dead_letters()] == ["again"]


@on_both
async def test_dead_letters_are_listed_by_id_page_by_page(
    stores: RunStores, outbox: OutboxStore, clock: ManualClock
) -> None:
    gone = [await dead(stores, number, kind="other" if number % 2 else KIND) for number in range(5)]
    await outbox.enqueue(effect(5, max_attempts=1))
    await claim_one(stores)
    clock.set(clock.now() + LEASE)
    assert await claim_effects(stores) == ()
    assert sorted(numbers(await outbox.dead_letters(kind=KIND))) == [0, 2, 4, 5]
    await delivered(stores, 6)
    await outbox.enqueue(effect(7))
    await claim_one(stores)
    await outbox.enqueue(effect(8))
    every = await outbox.dead_letters()
    assert sorted(numbers(every)) == [0, 1, 2, 3, 4, 5]
    ids = outbox_ids(every)
    assert ids == sorted(ids)
    pages = [await outbox.dead_letters(after=after, limit=2) for after in ("", ids[1], ids[3], ids[5])]
    assert [outbox_ids(one) for one in pages] == [ids[:2], ids[2:4], ids[4:], []]
    other = sorted((gone[1].outbox_id, gone[3].outbox_id))
    assert outbox_ids(await outbox.dead_letters(kind="other", limit=1)) == other[:1]
    assert outbox_ids(await outbox.dead_letters(kind="other", after=other[0])) == other[1:]
    assert await outbox.dead_letters(kind="unknown") == await outbox.dead_letters(limit=0) == ()


async def test_what_is_no_dead_letter_is_neither_revived_nor_discarded(
    stores: RunStores, outbox: OutboxStore, clock: ManualClock
) -> None:
    gone, done = await dead(stores, 1, dedupe_key="d"), await delivered(stores, 2, dedupe_key="k")
    claimed = await outbox.enqueue(effect(3))
    found, token = await claim_one(stores)
    pending = await outbox.enqueue(effect(4, available_at=clock.now() + SECOND))
    for one in ("unknown", *outbox_ids((done, claimed, pending))):
        assert (await outbox.revive(one), await outbox.discard(one)) == (None, False)
    assert await outbox.revive(gone.outbox_id)
    assert await outbox.revive(gone.outbox_id) is None
    again, token_of_it = await claim_one(stores)
    await outbox.nack(again.outbox_id, token_of_it, error="x", final=True)
    assert await outbox.discard(gone.outbox_id)
    assert (await outbox.dead_letters(), await outbox.revive(gone.outbox_id)) == ((), None)
    assert (await outbox.enqueue(effect(1, dedupe_key="d"))).outbox_id == gone.outbox_id  # its key stays used
    assert await claim_effects(stores) == ()
    assert await outbox.ack(found.outbox_id, token)
    assert (await outbox.enqueue(effect(2, dedupe_key="k"))).status is OutboxStatus.DELIVERED
    clock.advance(timedelta(milliseconds=1))
    assert (
        await outbox.purge(older_than=clock.now()) == 2
    )  # what was discarded too; one without a key is gone


async def test_nothing_but_what_was_delivered_is_purged_however_old(
    stores: RunStores, outbox: OutboxStore, clock: ManualClock
) -> None:
    gone = await dead(stores, 1, dedupe_key="dead")
    await outbox.enqueue(effect(2, dedupe_key="late"))
    late, token = await claim_one(stores)
    clock.set(clock.now() + LEASE)
    await outbox.enqueue(effect(3, target="other", dedupe_key="claimed"))
    (claimed,) = await claim_effects(stores, target="other")
    pending = await outbox.enqueue(effect(4, available_at=clock.now() + 1))
    assert await outbox.purge(older_than=clock.now() + 9) == 0
    assert outbox_ids(await outbox.dead_letters()) == [gone.outbox_id]
    assert await outbox.ack(late.outbox_id, token)
    assert await outbox.ack(claimed.outbox_id, claimed.claim_token)
    clock.advance(timedelta(seconds=1))
    assert outbox_ids(await claim_effects(stores)) == [pending.outbox_id]
    assert await outbox.purge(older_than=clock.now()) == 2
