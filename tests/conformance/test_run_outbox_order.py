"""Promises of the outbox about effects that stand in line: of one order key, one after the other."""

import asyncio

from conformance.boxes import on_both
from conformance.promises.run_given import KIND, LEASE, SECOND, TARGET
from conformance.promises.run_outbox_given import claim_effects, claim_one, effect, numbers
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock


async def test_of_a_key_only_the_oldest_is_claimed(stores: RunStores) -> None:
    for number in range(3):
        await stores.outbox.enqueue(effect(number, order_key="a"))
    await stores.outbox.enqueue(effect(3, order_key="b"))
    await stores.outbox.enqueue(effect(4))
    await stores.outbox.enqueue(effect(5, order_key="a", target="elsewhere"))
    first = await claim_effects(stores)
    assert numbers(first) == [0, 3, 4]
    assert numbers(await claim_effects(stores, target="elsewhere")) == [5]
    assert await claim_effects(stores) == ()
    assert await stores.outbox.ack(first[0].outbox_id, first[0].claim_token or "")
    assert numbers(await claim_effects(stores)) == [1]


async def test_one_that_is_tried_later_keeps_its_place(stores: RunStores, clock: ManualClock) -> None:
    for number in range(2):
        await stores.outbox.enqueue(effect(number, order_key="a"))
    found, token = await claim_one(stores)
    await stores.outbox.nack(found.outbox_id, token, error="later", delay_ms=SECOND)
    assert await claim_effects(stores) == ()
    clock.set(clock.now() + SECOND)
    assert numbers(await claim_effects(stores)) == [0]
    clock.set(clock.now() + LEASE)
    assert numbers(await claim_effects(stores)) == [0]


@on_both
async def test_one_that_was_given_up_keeps_nobody_waiting(stores: RunStores, clock: ManualClock) -> None:
    for number in range(3):
        await stores.outbox.enqueue(effect(number, order_key="a", max_attempts=1))
    found, token = await claim_one(stores)
    await stores.outbox.nack(found.outbox_id, token, error="never", final=True)
    assert numbers(await claim_effects(stores)) == [1]
    clock.set(clock.now() + LEASE)
    assert numbers(await claim_effects(stores)) in (
        [],
        [2],
    )  # the claim that finds it used up may take no more
    assert numbers(await claim_effects(stores)) in ([], [2])
    dead = await stores.outbox.dead_letters(kind=KIND)
    assert sorted(numbers(dead)) == [0, 1]


@on_both
async def test_claims_at_the_same_time_keep_the_line(stores: RunStores) -> None:
    for number in range(4):
        await stores.outbox.enqueue(effect(number, order_key="a"))
    async with asyncio.TaskGroup() as group:
        claims = [
            group.create_task(stores.outbox.claim(KIND, TARGET, lease_ms=LEASE, limit=9)) for _ in range(16)
        ]
    assert [number for claim in claims for number in numbers(claim.result())] == [0]
