"""The store over an engine: hints after the commit, rows set aside, and a database in memory."""

import asyncio
import gc
import threading
from datetime import timedelta

import pytest

from machine import PATIENCE
from postroom.contracts.errors import StaleClaim, StoreReadOnly
from postroom.stores.changes import WORK
from postroom.stores.sqlite import SqliteStore
from postroom.stores.store import SqlStore, Transaction
from postroom.testing import ManualClock

SOON = timedelta(seconds=5)
AT_ONCE = timedelta()


@pytest.fixture
def store(clock: ManualClock) -> SqlStore:
    return SqliteStore.in_memory(clock).store


def make_project(tx: Transaction) -> int:
    return tx.mail.insert_project(
        slug="s", human_key="/s", spelling="/s", git_identity="", owner="", now=tx.now()
    ).id


async def test_a_look_cannot_write(store: SqlStore) -> None:
    with pytest.raises(StoreReadOnly):
        await store.read(make_project)
    assert await store.write(make_project) == 1


async def test_a_change_that_raises_is_undone_and_tells_nobody(store: SqlStore) -> None:
    def fail(tx: Transaction) -> None:
        make_project(tx)
        tx.tell(WORK)
        raise ValueError("refused")

    with store.changes.listen(WORK) as news:
        with pytest.raises(ValueError, match="refused"):
            await store.write(fail)
        assert not await news.wait(AT_ONCE)
    assert await store.read(lambda tx: tx.mail.project("/s")) is None


async def test_a_stale_claim_that_a_change_returns_is_raised_and_its_writes_stand(store: SqlStore) -> None:
    def refuse(tx: Transaction) -> StaleClaim:
        make_project(tx)
        return StaleClaim("it was lost")

    with pytest.raises(StaleClaim):
        await store.write(refuse)
    assert await store.read(lambda tx: tx.mail.project("/s"))


async def test_a_listener_hears_what_was_told_since_it_last_waited(store: SqlStore) -> None:
    with store.changes.listen("thread:a") as news, store.changes.listen("thread:b") as other:
        await store.write(lambda tx: tx.tell("thread:a"))
        assert await news.wait(AT_ONCE)
        assert not await news.wait(AT_ONCE)
        assert not await other.wait(AT_ONCE)


async def test_a_waiting_listener_is_woken_although_the_caller_of_the_change_was_cancelled(
    store: SqlStore,
) -> None:
    entered, opened = threading.Event(), threading.Event()

    def change(tx: Transaction) -> None:
        tx.tell(WORK)
        entered.set()
        assert opened.wait(SOON.total_seconds())

    with store.changes.listen(WORK) as news:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(news.wait(SOON))
            caller = tasks.create_task(store.write(change))
            assert await asyncio.to_thread(entered.wait, SOON.total_seconds())
            caller.cancel()
            await asyncio.wait({caller})
            opened.set()
        assert waiting.result()


async def test_a_hint_that_fails_leaves_no_caller_of_its_commit_waiting(store: SqlStore) -> None:
    loop, reported, told, both_wait = asyncio.get_running_loop(), list[str](), list[str](), threading.Event()
    loop.set_exception_handler(lambda _, context: reported.append(str(context["exception"])))

    def fail() -> None:
        raise RuntimeError("nobody to tell")

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        write = store.engine.write
        group.create_task(write(lambda _: both_wait.wait(PATIENCE)))
        writes = [
            group.create_task(write(lambda _: "first", committed=fail)),
            group.create_task(write(lambda _: "second", committed=lambda: told.append("second"))),
        ]
        group.create_task(asyncio.sleep(0)).add_done_callback(lambda _: both_wait.set())
    assert [one.result() for one in writes] == ["first", "second"]
    assert (told, reported) == (["second"], ["nobody to tell"])


def test_a_store_in_memory_serves_one_event_loop_after_another(store: SqlStore) -> None:
    async def hear() -> bool:
        with store.changes.listen(WORK) as news:
            await store.write(lambda tx: tx.tell(WORK))
            return await news.wait(SOON)

    assert asyncio.run(store.write(make_project)) == 1
    assert asyncio.run(hear())
    assert asyncio.run(store.read(lambda tx: tx.mail.project("/s")))


def test_a_store_in_memory_that_nobody_uses_any_more_ends_its_thread(clock: ManualClock) -> None:
    before = set(threading.enumerate())
    store = SqliteStore.in_memory(clock)
    asyncio.run(store.probe())
    writers = [one for one in threading.enumerate() if one not in before and one.name == "postroom-writer"]
    assert writers
    del store
    gc.collect()
    for writer in writers:
        writer.join(PATIENCE)
        assert not writer.is_alive()
