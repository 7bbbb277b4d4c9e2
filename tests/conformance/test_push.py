"""Subscriptions of Web Push and their notices, on both engines."""

from collections.abc import AsyncIterator

import pytest

from conformance.promises.run_given import run
from conformance.run_backends import Prepared, prepared_stores, run_place
from postroom.contracts.push import PushNotice, PushSubscription
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import RunStatus
from postroom.stores.store import SqlStore
from postroom.testing import ManualClock

__all__ = ["prepared_stores", "run_place"]


@pytest.fixture
async def store(prepared_stores: Prepared) -> AsyncIterator[SqlStore]:
    async with prepared_stores.opened() as stores:
        yield stores.store


def subscription(
    name: str, clock: ManualClock, *, endpoint: str = "", session: str = "s"
) -> PushSubscription:
    now = clock.now()
    return PushSubscription(
        id=name,
        endpoint=endpoint or f"https://push.example.org/{name}",
        p256dh="p",
        auth="a",
        person="lena",
        form_token=session,
        server_key="k",
        created_at=now,
        ends_at=now + 1,
        seen_at=now,
    )


async def test_a_browser_has_one_subscription_and_a_logout_removes_those_of_its_session(
    store: SqlStore, clock: ManualClock
) -> None:
    one = subscription("one", clock)
    again = subscription("again", clock, endpoint=one.endpoint, session="t")
    two = subscription("two", clock)
    for made in (one, two, again):
        await store.write(lambda tx, made=made: tx.push.put(made))  # type: ignore[misc]
    assert await store.read(lambda tx: tx.push.subscriptions()) == sorted(
        (again, two), key=lambda one: one.id
    )
    assert await store.read(lambda tx: (tx.push.subscription("one"), tx.push.subscription("two"))) == (
        None,
        two,
    )
    await store.write(lambda tx: tx.push.note_result("two", error="away"))
    await store.write(lambda tx: tx.push.note_result("two"))
    found = await store.read(lambda tx: tx.push.subscription("two"))
    assert found is not None
    assert (found.delivered_at, found.error) == (clock.now(), "")
    await store.write(lambda tx: tx.mail.drop_push_of_session("s"))
    assert await store.read(lambda tx: tx.push.subscriptions()) == [again]
    await store.write(lambda tx: tx.push.drop(["again"]))
    assert await store.read(lambda tx: tx.push.subscriptions()) == []


async def test_the_runs_that_wait_are_found_by_the_time_of_their_last_change(
    prepared_stores: Prepared, clock: ManualClock
) -> None:
    async with prepared_stores.opened() as stores:
        made = [
            run(stores, name, thread=name, status=RunStatus.WAITING, created_at=1, updated_at=at)
            for name, at in (("c", 5), ("a", 7), ("b", 7))
        ]
        for one in made:
            await stores.coordinator.commit(ThreadCommit(thread_id=one.thread_id, run=one))

        async def found(at: int, run_id: str, limit: int = 9) -> list[str]:
            page = await stores.store.read(lambda tx: tx.runs.threads.asked_since(at, run_id, limit))
            return [one.run_id for one in page]

        assert await found(0, "") == ["c", "a", "b"]
        assert await found(0, "", 2) == ["c", "a"]
        assert await found(7, "a") == ["b"]
        assert await found(7, "b") == []
        last = await stores.store.read(lambda tx: tx.runs.threads.asked_last(2))
        assert [one.run_id for one in last] == ["b", "a"]


async def test_a_notice_is_open_until_it_is_closed_and_goes_with_its_subscription(
    store: SqlStore, clock: ManualClock
) -> None:
    now = clock.now()
    await store.write(lambda tx: tx.push.put(subscription("one", clock)))
    for item in ("more", "question/r/1"):
        await store.write(lambda tx, item=item: tx.push.add_notice("one", item))  # type: ignore[misc]
    await store.write(lambda tx: tx.push.close_notice("one", "more"))
    closed = PushNotice(subscription_id="one", item="more", created_at=now, closed_at=now)
    opened = PushNotice(subscription_id="one", item="question/r/1", created_at=now)
    assert await store.read(lambda tx: tx.push.notices()) == [closed, opened]
    await store.write(lambda tx: tx.push.add_notice("one", "more"))
    await store.write(lambda tx: tx.push.drop_notice("one", "question/r/1"))
    assert await store.read(lambda tx: [one.closed_at for one in tx.push.notices()]) == [None]
    assert await store.read(lambda tx: tx.push.has_notice("one", "more"))
    await store.write(lambda tx: tx.push.close_notice("one", "more"))
    await store.write(lambda tx: tx.push.purge_notices(now))
    assert await store.read(lambda tx: tx.push.has_notice("one", "more"))
    await store.write(lambda tx: tx.push.purge_notices(now + 1))
    await store.write(lambda tx: tx.push.add_notice("gone", "failed/r"))
    await store.write(lambda tx: tx.push.purge_notices(0))
    assert await store.read(lambda tx: tx.push.notices()) == []
