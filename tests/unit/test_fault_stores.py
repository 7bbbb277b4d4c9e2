"""The kit's clock and failing stores do what a test plans, and nothing else."""

from datetime import timedelta

from conformance.promises import given
from postroom.contracts.errors import StoreUnavailable
from postroom.contracts.mail import Term
from postroom.stores.mail.store import MailStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from postroom.testing.faults import LosingStore, RefusingStore, writes


async def slugs(store: MailStore) -> list[str]:
    return [project.slug for project in await store.read(lambda tx: tx.projects(limit=99))]


async def make(store: MailStore, *names: str) -> list[str]:
    """Store projects one after another; return those whose caller got a success."""
    told = []
    for name in names:
        try:
            await store.write(lambda tx, name=name: given.project(tx, name))
        except StoreUnavailable:
            continue
        told.append(name)
    return told


async def test_a_refusing_store_writes_nothing_when_it_refuses() -> None:
    store = RefusingStore(SqliteStore.in_memory(), writes(1, 3))
    assert await make(store, "a", "b", "c", "d", "e") == ["b", "d", "e"]
    assert await slugs(store) == ["b", "d", "e"]
    assert store.failed == 2


async def test_a_losing_store_writes_everything_and_loses_the_answer() -> None:
    store = LosingStore(SqliteStore.in_memory(), writes(2))
    assert await make(store, "a", "b", "c") == ["a", "c"]
    assert await slugs(store) == ["a", "b", "c"]
    assert store.failed == 1


async def test_a_store_that_is_not_planned_to_fail_does_what_the_one_within_does() -> None:
    within = SqliteStore.in_memory()
    store = LosingStore(RefusingStore(within, ()), ())
    here = await given.an_office(store)
    sent = await store.write(lambda tx: given.put_message(tx, here.ada, [here.ben], body="plum"))
    await store.settle()
    found = await store.read(lambda tx: tx.search(here.project.id, Term("plum"), order="newest", limit=9))
    assert [hit.message for hit in found] == [sent]
    await store.probe()
    assert store.changes is within.changes
    within.close()


def test_the_clock_stands_until_it_is_moved() -> None:
    clock = ManualClock()
    assert clock.now() == clock.now() == 1_700_000_000_000
    clock.advance(timedelta(seconds=1, milliseconds=5))
    assert clock.now() == 1_700_000_001_005
    clock.advance(-timedelta(milliseconds=6))
    assert clock.now() == 1_700_000_000_999
    clock.set(7)
    assert clock.now() == 7
    assert ManualClock(start=3).now() == 3
