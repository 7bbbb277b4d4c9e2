"""Promises of an outbox store about what is over: dead letters are seen and revived, old effects purged."""

import asyncio
from datetime import timedelta
from typing import Any

from conformance.boxes import on_both
from conformance.promises.given import refused
from conformance.promises.run_given import KIND, LEASE, SECOND, TARGET, TOGETHER
from conformance.promises.run_outbox_given import (
    claim_effects,
    claim_one,
    effect,
    numbers,
    outbox_ids,
)
from postroom.contracts.errors import IdempotencyConflict
from postroom.contracts.outbox import NackOutcome, OutboxMessage, OutboxStatus
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock


async def _dead(stores: RunStores, number: int = 0, **details: Any) -> OutboxMessage:
    """Store an effect and give it up; nothing else may be due where it is."""
    stored = await stores.outbox.enqueue(effect(number, **details))
    (found,) = await claim_effects(stores, kind=stored.kind, target=stored.target)
    outcome = await stores.outbox.nack(found.outbox_id, found.claim_token or "", error="gone", final=True)
    assert (found.outbox_id, outcome) == (stored.outbox_id, NackOutcome.DEAD_LETTERED)
    return stored


async def _delivered(stores: RunStores, number: int = 0, **details: Any) -> OutboxMessage:
    """Store an effect and perform it; nothing else may be due."""
    stored = await stores.outbox.enqueue(effect(number, **details))
    found, token = await claim_one(stores)
    assert found.outbox_id == stored.outbox_id
    assert await stores.outbox.ack(found.outbox_id, token)
    return stored


async def test_an_effect_may_be_given_up_at_once(stores: RunStores, clock: ManualClock) -> None:
    await stores.outbox.enqueue(effect(max_attempts=5))
    found, token = await claim_one(stores)
    outbox = stores.outbox
    assert await outbox.nack(found.outbox_id, "wrong", error="x", final=True) is NackOutcome.LOST_CLAIM
    assert await outbox.dead_letters() == ()
    outcome = await outbox.nack(found.outbox_id, token, error="no such room", delay_ms=SECOND, final=True)
    assert outcome is NackOutcome.DEAD_LETTERED
    assert await outbox.nack(found.outbox_id, token, error="x", final=True) is NackOutcome.LOST_CLAIM
    (dead,) = await outbox.dead_letters()
    assert dead == replace(
        found, status=OutboxStatus.DEAD_LETTER, claim_token=None, lease_until=None, last_error="no such room"
    )
    clock.advance(timedelta(days=9))
    assert await claim_effects(stores) == ()


@on_both
async def test_dead_letters_are_listed_by_id(stores: RunStores, clock: ManualClock) -> None:
    dead = [await _dead(stores, number, kind="other" if number % 2 else KIND) for number in range(5)]
    await stores.outbox.enqueue(effect(5, max_attempts=1))
    await claim_one(stores)
    clock.set(clock.now() + LEASE)
    assert await claim_effects(stores) == ()
    used_up = await stores.outbox.dead_letters(kind=KIND)
    assert sorted(numbers(used_up)) == [0, 2, 4, 5]
    await _delivered(stores, 6)
    await stores.outbox.enqueue(effect(7))
    await claim_one(stores)
    await stores.outbox.enqueue(effect(8))
    everything = await stores.outbox.dead_letters()
    assert sorted(numbers(everything)) == [0, 1, 2, 3, 4, 5]
    assert {one.status for one in everything} == {OutboxStatus.DEAD_LETTER}
    ids = outbox_ids(everything)
    assert ids == sorted(ids)
    pages = [await stores.outbox.dead_letters(after=after, limit=2) for after in ("", ids[1], ids[3], ids[5])]
    assert [outbox_ids(one) for one in pages] == [ids[:2], ids[2:4], ids[4:], []]
    other = sorted((dead[1].outbox_id, dead[3].outbox_id))
    assert outbox_ids(await stores.outbox.dead_letters(kind="other", limit=1)) == other[:1]
    assert outbox_ids(await stores.outbox.dead_letters(kind="other", after=other[0])) == other[1:]
    assert await stores.outbox.dead_letters(kind="unknown") == ()
    assert await stores.outbox.dead_letters(limit=0) == ()


async def test_a_dead_letter_is_revived(stores: RunStores, clock: ManualClock) -> None:
    await _dead(stores, dedupe_key="k", max_attempts=2)
    (dead,) = await stores.outbox.dead_letters()
    clock.advance(timedelta(seconds=1))
    revived = await stores.outbox.revive(dead.outbox_id)
    assert revived == replace(
        dead, status=OutboxStatus.PENDING, available_at=clock.now(), attempt_count=0, last_error="gone"
    )
    assert await stores.outbox.dead_letters() == ()
    assert await stores.outbox.enqueue(effect(dedupe_key="k")) == revived
    for attempt, outcome in ((1, NackOutcome.REQUEUED), (2, NackOutcome.DEAD_LETTERED)):
        found, token = await claim_one(stores)
        assert (found.outbox_id, found.attempt_count) == (dead.outbox_id, attempt)
        assert await stores.outbox.nack(found.outbox_id, token, error="again") is outcome
    (dead,) = await stores.outbox.dead_letters()
    assert dead.last_error == "again"
    assert await stores.outbox.revive(dead.outbox_id)
    found, token = await claim_one(stores)
    assert await stores.outbox.ack(found.outbox_id, token)


async def test_an_effect_is_revived_at_the_instant_given(stores: RunStores, clock: ManualClock) -> None:
    dead, later = await _dead(stores, 1), clock.now() + 9 * SECOND
    await stores.outbox.enqueue(effect(2, available_at=later))
    revived = await stores.outbox.revive(dead.outbox_id, now=later)
    assert revived.available_at == later
    assert await stores.outbox.claim(KIND, TARGET, lease_ms=7, limit=9, now=later - 1) == ()
    assert numbers(await stores.outbox.claim(KIND, TARGET, lease_ms=7, limit=9, now=later)) == [1, 2]


async def test_what_is_no_dead_letter_is_not_revived(stores: RunStores, clock: ManualClock) -> None:
    dead, delivered = await _dead(stores, 1), await _delivered(stores, 2, dedupe_key="k")
    claimed = await stores.outbox.enqueue(effect(3))
    found, token = await claim_one(stores)
    pending = await stores.outbox.enqueue(effect(4, available_at=clock.now() + SECOND))
    for one in ("unknown", *outbox_ids((delivered, claimed, pending))):
        assert await stores.outbox.revive(one) is None
    assert await stores.outbox.revive(dead.outbox_id)
    assert await stores.outbox.revive(dead.outbox_id) is None
    assert numbers(await claim_effects(stores)) == [1]
    assert await stores.outbox.ack(found.outbox_id, token)
    again = await stores.outbox.enqueue(effect(2, dedupe_key="k"))
    assert again.status is OutboxStatus.DELIVERED


@on_both
async def test_a_discarded_dead_letter_is_gone_and_its_key_stays_used(
    stores: RunStores, clock: ManualClock
) -> None:
    dead = await _dead(stores, 1, dedupe_key="k")
    pending = await stores.outbox.enqueue(effect(2))
    for one in ("unknown", *outbox_ids((pending,))):
        assert not await stores.outbox.discard(one)
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(stores.outbox.discard(dead.outbox_id)) for _ in range(TOGETHER)]
    assert [one.result() for one in tries].count(True) == 1
    assert await stores.outbox.dead_letters() == ()
    assert await stores.outbox.revive(dead.outbox_id) is None
    assert (await stores.outbox.enqueue(effect(1, dedupe_key="k"))).outbox_id == dead.outbox_id
    assert numbers(await claim_effects(stores)) == [2]
    clock.advance(timedelta(seconds=1))
    assert await stores.outbox.purge(older_than=clock.now()) == 1


@on_both
async def test_reviving_at_the_same_time_revives_once(stores: RunStores) -> None:
    dead = await _dead(stores)
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(stores.outbox.revive(dead.outbox_id)) for _ in range(TOGETHER)]
    assert len([one for one in tries if one.result()]) == 1
    assert len(await claim_effects(stores)) == 1


async def test_delivered_effects_are_purged_by_age(stores: RunStores, clock: ManualClock) -> None:
    start = clock.now()
    for number in (3, 1, 2, 0):
        await stores.outbox.enqueue(effect(number, dedupe_key=str(number)), now=start + number)
    clock.set(start + SECOND)
    for one in await claim_effects(stores):
        assert await stores.outbox.ack(one.outbox_id, one.claim_token or "")

    async def purged(older_than: int, limit: int) -> tuple[int, set[int]]:
        """Purge; return how many that were, and whose keys are taken no more."""
        gone = await stores.outbox.purge(older_than=older_than, limit=limit)
        found = [await stores.outbox.enqueue(effect(one, dedupe_key=str(one))) for one in range(4)]
        return gone, {one.payload["n"] for one in found if one.status is not OutboxStatus.DELIVERED}

    assert await purged(start, 9) == (0, set())
    assert await purged(start + 9, 0) == (0, set())
    assert await purged(start + 3, 2) == (2, {0, 1})
    assert await purged(start + 3, 9) == (1, {0, 1, 2})
    assert await purged(start + 3, 9) == (0, {0, 1, 2})
    assert await purged(start + 4, 1) == (1, {0, 1, 2, 3})


async def test_nothing_but_what_was_delivered_is_purged(stores: RunStores, clock: ManualClock) -> None:
    dead = await _dead(stores, 1, dedupe_key="dead")
    await stores.outbox.enqueue(effect(2, dedupe_key="late"))
    late, token = await claim_one(stores)
    clock.set(clock.now() + LEASE)
    await stores.outbox.enqueue(effect(3, target="other", dedupe_key="claimed"))
    (claimed,) = await claim_effects(stores, target="other")
    pending = await stores.outbox.enqueue(effect(4, available_at=clock.now() + 1))
    revived = await _dead(stores, 5, kind="other")
    assert await stores.outbox.revive(revived.outbox_id)
    assert await stores.outbox.purge(older_than=clock.now() + 9) == 0
    assert outbox_ids(await stores.outbox.dead_letters()) == [dead.outbox_id]
    for number, stays in ((1, dead), (2, late), (3, claimed)):
        draft = effect(number, target=stays.target, dedupe_key=stays.dedupe_key)
        assert (await stores.outbox.enqueue(draft)).outbox_id == stays.outbox_id
    assert await stores.outbox.ack(late.outbox_id, token)
    assert await stores.outbox.ack(claimed.outbox_id, claimed.claim_token or "")
    clock.advance(timedelta(seconds=1))
    assert outbox_ids(await claim_effects(stores)) == [pending.outbox_id]
    assert outbox_ids(await claim_effects(stores, kind="other")) == [revived.outbox_id]
    assert await stores.outbox.purge(older_than=clock.now()) == 2


async def test_a_purged_key_may_be_used_again(stores: RunStores, clock: ManualClock) -> None:
    first = [await _delivered(stores, number, dedupe_key=key) for number, key in ((1, "a"), (2, "b"))]
    clock.advance(timedelta(seconds=1))
    young = await _delivered(stores, 3, dedupe_key="c")
    assert await stores.outbox.purge(older_than=clock.now()) == 2
    again = await stores.outbox.enqueue(effect(10, dedupe_key="a"))
    commit = ThreadCommit(thread_id="t", outbox=(effect(2, dedupe_key="b"), effect(3, dedupe_key="c")))
    (committed, known) = (await stores.coordinator.commit(commit)).outbox
    assert {again.outbox_id, committed.outbox_id}.isdisjoint(outbox_ids(first))
    assert known.outbox_id == young.outbox_id
    assert (again.status, again.created_at) == (OutboxStatus.PENDING, clock.now())
    assert numbers(await claim_effects(stores)) == [10, 2]
    with refused(IdempotencyConflict):
        await stores.outbox.enqueue(effect(1, dedupe_key="a"))
