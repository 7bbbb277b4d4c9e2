"""Bytes that several messages have: while one message goes, another may come, at another server."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from conformance.promises.given import an_office, file, put_message
from machine import PATIENCE
from postroom.stores.mail.access import MailWrites
from postroom.stores.postgres.store import PostgresStore
from postroom.testing import ManualClock
from store_kinds import SCHEMA, empty

PICTURE = "a" * 64


@pytest.fixture
def stores(postgres_dsn: str, clock: ManualClock) -> Iterator[list[PostgresStore]]:
    """Give the stores of two servers."""
    made = [PostgresStore.open(postgres_dsn, schema=SCHEMA, clock=clock) for _ in range(2)]
    empty(postgres_dsn)
    yield made
    for store in made:
        store.close()


def somebody_waits(dsn: str) -> None:
    """Return when a session waits for another; the server sends no notice, so it polls."""
    with psycopg.connect(dsn, autocommit=True) as session:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        for _ in range(100_000):
            [found] = session.execute(waiting).fetchone() or (0,)
            if found:
                return
    raise AssertionError("nobody waited")


@pytest.mark.parametrize(
    "holds", ["the deletion", "a message with its attachment", "a message that has no attachment yet"]
)
async def test_bytes_stay_that_a_message_has_which_came_while_another_went(
    stores: list[PostgresStore], postgres_dsn: str, holds: str
) -> None:
    store, other_store = stores
    here, there = await an_office(store), await an_office(store, "quay")

    def sent(tx: MailWrites) -> int:
        message = put_message(tx, here.ada, [here.ben])
        tx.insert_blob(PICTURE, b"png")
        tx.insert_attachment(message.id, file(PICTURE))
        return message.id

    old = await store.write(sent)
    held, may_end = threading.Event(), threading.Event()

    def comes(tx: MailWrites, between: Callable[[MailWrites], None]) -> int:
        message = put_message(tx, there.ada, [there.ben])
        tx.insert_blob(PICTURE, b"png")
        if holds == "a message that has no attachment yet":
            between(tx)
        tx.insert_attachment(message.id, file(PICTURE))
        between(tx)
        return message.id

    def goes(tx: MailWrites, between: Callable[[MailWrites], None]) -> list[int]:
        gone = tx.delete_messages(here.project.id, [old], now=9)
        between(tx)
        return gone

    def hold(tx: MailWrites) -> None:
        tx.agents_by_id([here.ada.id])  # a look: all that was written is at the server
        held.set()
        assert may_end.wait(PATIENCE)

    first, second = (goes, comes) if holds == "the deletion" else (comes, goes)
    async with asyncio.TaskGroup() as tasks:
        one = tasks.create_task(store.write(lambda tx: first(tx, hold)))
        assert await asyncio.to_thread(held.wait, PATIENCE)
        other = tasks.create_task(other_store.write(lambda tx: second(tx, lambda _: None)))
        await asyncio.to_thread(somebody_waits, postgres_dsn)
        may_end.set()
    new = other.result() if holds == "the deletion" else one.result()
    [attached] = (await store.read(lambda tx: tx.attachments([new])))[new]
    assert await store.read(lambda tx: tx.blob(attached.sha256)) == b"png"
    assert await store.read(lambda tx: tx.message(old)) is None
