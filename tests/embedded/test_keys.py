"""A key names one job: the same content returns the run of the first call, other content is refused by name."""

import asyncio

import pytest

from embedded_room import Open, echo
from postroom import BusyPolicy, IdempotencyConflict, Item, Message, Run

CONTENTS = {
    "text": ("lamp", "desk"),
    "data": ({"item": "lamp", "prices": [1, 2.5, None]}, {"item": "lamp", "prices": [1, 2.5]}),
    "message": (Message.user("lamp"), Message.user("desk")),
    "message with an id": (Message.user("lamp", id="m1"), Message.user("desk", id="m2")),
}


@pytest.mark.parametrize("kind", CONTENTS)
async def test_another_content_under_a_key_is_refused_and_names_the_run(opening: Open, kind: str) -> None:
    content, other = CONTENTS[kind]
    async with opening(echo) as mailbox:
        first = await mailbox.enqueue("shop", content, key="order-7")
        for _ in ("while it may be open", "when it is over"):
            assert (await mailbox.enqueue("shop", content, key="order-7")).id == first.id
            with pytest.raises(IdempotencyConflict, match="'order-7'") as refused:
                await mailbox.enqueue("shop", other, key="order-7")
            assert refused.value.details == {"key": "order-7", "run_id": first.id}
            assert first.id in refused.value.message
            with pytest.raises(IdempotencyConflict, match="item 1: the key 'order-7'"):
                await mailbox.enqueue_many(
                    [Item("shop", "new", key="order-8"), Item("shop", other, key="order-7")]
                )
            assert (await mailbox.enqueue_many([Item("shop", content, key="order-7")]))[0].id == first.id
            await first.result(timeout=30)
        messages = await mailbox.stores.threads.load_messages("shop") or ()
        assert len(messages) == 2  # nothing of the refused calls was stored


async def test_two_items_with_a_key_and_two_contents_are_refused_before_anything_is_written(
    opening: Open,
) -> None:
    async with opening(None) as mailbox:
        same = Item("shop", {"item": "lamp"}, key="order-7")
        with pytest.raises(IdempotencyConflict, match="item 2: the key 'order-7'"):
            await mailbox.enqueue_many(
                [Item("other", "work"), same, Item("shop", {"item": "desk"}, key="order-7")]
            )
        assert await mailbox.stores.threads.load_messages("other") is None
        assert len({handle.id for handle in await mailbox.enqueue_many([same, same])}) == 1


async def test_of_two_contents_at_once_one_is_stored_and_the_other_is_refused(opening: Open) -> None:
    async with opening(echo) as mailbox:
        calls = [mailbox.enqueue("shop", content, key="order-7") for content in ("lamp", "desk") * 4]
        done = await asyncio.gather(*calls, return_exceptions=True)
        stored = [one for one in done if not isinstance(one, BaseException)]
        refused = [one for one in done if isinstance(one, BaseException)]
        assert (len({handle.id for handle in stored}), len(stored)) == (1, 4)
        assert {type(one) for one in refused} == {IdempotencyConflict}


@pytest.mark.parametrize("policy", [BusyPolicy.COLLECT, BusyPolicy.STEER])
async def test_another_content_is_refused_where_its_message_joined_a_run(
    opening: Open, policy: BusyPolicy
) -> None:
    go = asyncio.Event()

    async def work(run: Run) -> str:
        await go.wait()
        return run.text

    async with opening(work) as mailbox:
        await mailbox.enqueue("shop", "busy")
        await mailbox.enqueue("shop", "queued")
        joined = await mailbox.enqueue("shop", "lamp", key="order-7", when_busy=policy)
        for _ in ("while it waits", "when it is over"):
            assert (await mailbox.enqueue("shop", "lamp", key="order-7", when_busy=policy)).id == joined.id
            with pytest.raises(IdempotencyConflict, match="'order-7'"):
                await mailbox.enqueue("shop", "desk", key="order-7", when_busy=policy)
            go.set()
            await joined.result(timeout=30)
