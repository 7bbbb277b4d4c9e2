"""Promises of an outbox store: effects wait, are handed out at least once, and a key counts once."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.given import refused
from conformance.promises.run_given import KIND, LEASE, SECOND, TARGET, TOGETHER
from conformance.promises.run_outbox_given import claim_effects, claim_one, effect, numbers
from postroom.contracts.errors import IdempotencyConflict
from postroom.contracts.outbox import NackOutcome, OutboxMessage, OutboxStatus
from postroom.contracts.run_stores import ThreadCommit
from postroom.stores.runs.ports import RunStores
from postroom.stores.transaction import Transaction
from postroom.testing import ManualClock


@on_both
async def test_an_effect_is_stored_claimed_and_delivered(stores: RunStores, clock: ManualClock) -> None:
    draft = effect(payload={"a": [1, None, {"ü": 2.5}]}, dedupe_key="k: 'ü'", max_attempts=3)
    stored = await stores.outbox.enqueue(draft)
    assert stored == OutboxMessage(
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
    found, token = await claim_one(stores)
    assert (found.outbox_id, found.payload, found.dedupe_key) == (
        stored.outbox_id,
        draft.payload,
        draft.dedupe_key,
    )
    assert (found.status, found.attempt_count) == (OutboxStatus.CLAIMED, 1)
    assert found.lease_until == clock.now() + LEASE
    assert await claim_effects(stores) == ()
    assert await stores.outbox.ack(found.outbox_id, token)
    clock.advance(timedelta(days=9))
    assert await claim_effects(stores) == ()


async def test_effects_are_claimed_by_lane_and_target(stores: RunStores) -> None:
    for number, where in enumerate(({}, {"kind": "other"}, {"target": "other"}, {})):
        await stores.outbox.enqueue(effect(number, **where))
    assert numbers(await claim_effects(stores, limit=1)) == [0]
    assert numbers(await claim_effects(stores, kind="other")) == [1]
    assert numbers(await claim_effects(stores, target="other")) == [2]
    assert numbers(await claim_effects(stores)) == [3]
    assert await claim_effects(stores, limit=0) == ()


async def test_effects_are_claimed_when_due(stores: RunStores, clock: ManualClock) -> None:
    due = clock.now() + SECOND
    await stores.outbox.enqueue(effect(available_at=due))
    clock.set(due - 1)
    assert await claim_effects(stores) == ()
    clock.set(due)
    assert len(await claim_effects(stores)) == 1


async def test_the_oldest_effect_comes_first(stores: RunStores, clock: ManualClock) -> None:
    for number in range(3):
        await stores.outbox.enqueue(effect(number))
    commit = ThreadCommit(thread_id="t", outbox=tuple(effect(number) for number in (3, 4, 5)))
    await stores.coordinator.commit(commit)
    clock.advance(timedelta(seconds=1))
    await stores.outbox.enqueue(effect(6))
    found = [numbers(await claim_effects(stores, limit=2)) for _ in range(4)]
    assert found == [[0, 1], [2, 3], [4, 5], [6]]


@on_both
async def test_a_key_gives_the_first_effect_back(stores: RunStores, clock: ManualClock) -> None:
    first = await stores.outbox.enqueue(effect(dedupe_key="k", max_attempts=3))
    clock.advance(timedelta(seconds=1))
    again = await stores.outbox.enqueue(effect(dedupe_key="k", available_at=99))
    assert again == first
    (committed,) = (
        await stores.coordinator.commit(ThreadCommit(thread_id="t", outbox=(effect(dedupe_key="k"),)))
    ).outbox
    assert committed.outbox_id == first.outbox_id
    found, token = await claim_one(stores)
    await stores.outbox.ack(found.outbox_id, token)
    delivered = await stores.outbox.enqueue(effect(dedupe_key="k"))
    assert (delivered.outbox_id, delivered.status) == (first.outbox_id, OutboxStatus.DELIVERED)
    assert await claim_effects(stores) == ()
    others = [
        await stores.outbox.enqueue(effect(1, dedupe_key="k", kind="other")),
        await stores.outbox.enqueue(effect(2, dedupe_key="k", target="other")),
        await stores.outbox.enqueue(effect(3)),
        await stores.outbox.enqueue(effect(3)),
    ]
    assert len({one.outbox_id for one in (first, *others)}) == 5


async def test_a_key_used_with_another_payload_conflicts(stores: RunStores) -> None:
    await stores.outbox.enqueue(effect(1, dedupe_key="k"))
    with refused(IdempotencyConflict):
        await stores.outbox.enqueue(effect(2, dedupe_key="k"))
    for drafts in ((effect(2, dedupe_key="k"),), (effect(1, dedupe_key="n"), effect(2, dedupe_key="n"))):
        with refused(IdempotencyConflict):
            await stores.coordinator.commit(ThreadCommit(thread_id="t", outbox=drafts))
    assert numbers(await claim_effects(stores)) == [1]


async def test_an_effect_whose_lease_ended_is_claimed_again(stores: RunStores, clock: ManualClock) -> None:
    await stores.outbox.enqueue(effect())
    first, old = await claim_one(stores)
    clock.set((first.lease_until or 0) - 1)
    assert await claim_effects(stores) == ()
    clock.set(first.lease_until or 0)
    second, token = await claim_one(stores)
    assert (second.outbox_id, second.attempt_count) == (first.outbox_id, 2)
    assert token != old
    assert not await stores.outbox.ack(first.outbox_id, old)
    assert await stores.outbox.nack(first.outbox_id, old, error="late") is NackOutcome.LOST_CLAIM
    assert await stores.outbox.ack(first.outbox_id, token)


async def test_an_effect_that_failed_comes_again(stores: RunStores, clock: ManualClock) -> None:
    await stores.outbox.enqueue(effect(max_attempts=3))
    outcomes = []
    for attempt in (1, 2, 3):
        found, token = await claim_one(stores)
        assert found.attempt_count == attempt
        assert found.last_error == (None if attempt == 1 else f"failed {attempt - 1}")
        outcome = await stores.outbox.nack(found.outbox_id, token, error=f"failed {attempt}", delay_ms=SECOND)
        outcomes.append(outcome)
        assert await claim_effects(stores) == ()
        clock.advance(timedelta(seconds=1))
    assert outcomes == [NackOutcome.REQUEUED, NackOutcome.REQUEUED, NackOutcome.DEAD_LETTERED]
    clock.advance(timedelta(days=9))
    assert await claim_effects(stores) == ()


async def test_an_effect_that_nobody_answers_for_is_given_up(stores: RunStores, clock: ManualClock) -> None:
    await stores.outbox.enqueue(effect(1, max_attempts=2, dedupe_key="k"))
    for _ in range(2):
        await claim_one(stores)
        clock.set(clock.now() + LEASE)
    await stores.outbox.enqueue(effect(2))
    assert numbers(await claim_effects(stores, limit=1)) == [2]
    dead = await stores.outbox.enqueue(effect(1, dedupe_key="k"))
    assert dead.status is OutboxStatus.DEAD_LETTER


async def test_an_answer_counts_once(stores: RunStores) -> None:
    await stores.outbox.enqueue(effect(1))
    await stores.outbox.enqueue(effect(2))
    first, second = await claim_effects(stores)
    outbox, token, other = stores.outbox, first.claim_token or "", second.claim_token or ""
    assert not await outbox.ack(first.outbox_id, "wrong")
    assert await outbox.nack(first.outbox_id, "wrong", error="x") is NackOutcome.LOST_CLAIM
    assert not await outbox.ack("unknown", token)
    assert await outbox.nack("unknown", token, error="x") is NackOutcome.LOST_CLAIM
    assert await outbox.ack(first.outbox_id, token)
    assert not await outbox.ack(first.outbox_id, token)
    assert await outbox.nack(first.outbox_id, token, error="x") is NackOutcome.LOST_CLAIM
    assert await outbox.nack(second.outbox_id, other, error="x", delay_ms=SECOND) is NackOutcome.REQUEUED
    assert not await outbox.ack(second.outbox_id, other)


async def test_a_claim_is_an_effect_with_its_own_token(stores: RunStores) -> None:
    for keyed in (False, True):
        for number in range(3):
            await stores.outbox.enqueue(effect(number, dedupe_key=f"k{number}" if keyed else None))
        found = [one for _ in range(3) for one in await claim_effects(stores, limit=1)]
        claims = [(one.outbox_id, one.claim_token or "") for one in found]
        (first, second, third), (one, two, three) = zip(*claims, strict=True)

        def acked(ids: Sequence[str], tokens: Sequence[str]) -> Callable[[Transaction], int]:
            return lambda tx: tx.outbox.ack(ids, tokens)

        assert await stores.store.write(acked((first, second, third), (two, one, three))) == 1
        assert await stores.store.write(acked((first, second), (one, two))) == 2


@on_both
async def test_claims_at_the_same_time_share_the_work(stores: RunStores) -> None:
    for number in range(TOGETHER):
        await stores.outbox.enqueue(effect(number))
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(claim_effects(stores, limit=3)) for _ in range(TOGETHER)]
    found = [number for one in tries for number in numbers(one.result())]
    found += numbers(await claim_effects(stores))
    assert sorted(found) == list(range(TOGETHER))


@on_both
async def test_storing_under_a_key_at_the_same_time_stores_once(stores: RunStores) -> None:
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(stores.outbox.enqueue(effect(dedupe_key="k"))) for _ in range(TOGETHER)]
    assert len({one.result().outbox_id for one in tries}) == 1
    assert len(await claim_effects(stores)) == 1


async def test_an_instant_may_be_given(stores: RunStores, clock: ManualClock) -> None:
    later = clock.now() + 9 * SECOND
    stored = await stores.outbox.enqueue(effect(available_at=later), now=later - 5)
    assert stored.created_at == later - 5
    assert await stores.outbox.claim(KIND, TARGET, lease_ms=7, now=later - 1) == ()
    (found,) = await stores.outbox.claim(KIND, TARGET, lease_ms=7, now=later)
    assert found.lease_until == later + 7
    outcome = await stores.outbox.nack(
        found.outbox_id, found.claim_token or "", error="x", delay_ms=3, now=later + 1
    )
    assert outcome is NackOutcome.REQUEUED
    assert await stores.outbox.claim(KIND, TARGET, lease_ms=7, now=later + 3) == ()
    assert len(await stores.outbox.claim(KIND, TARGET, lease_ms=7, now=later + 4)) == 1


async def test_the_payload_of_an_effect_is_the_stores_own(stores: RunStores) -> None:
    payload: dict[str, list[int]] = {"n": [1]}
    await stores.outbox.enqueue(effect(payload=payload))
    payload["n"].append(2)
    found, _ = await claim_one(stores)
    assert found.payload == {"n": [1]}


async def test_steps_of_an_effect_are_kept_and_never_fewer(stores: RunStores) -> None:
    stored = await stores.outbox.enqueue(effect())
    assert stored.steps_done == 0
    await stores.store.write(lambda tx: tx.outbox.note_steps(stored.outbox_id, 2))
    await stores.store.write(lambda tx: tx.outbox.note_steps(stored.outbox_id, 1))
    found, _ = await claim_one(stores)
    assert found.steps_done == 2
