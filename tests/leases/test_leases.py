"""Leases: one server at a time, even if servers are suspended, cut off, ended or have a wrong clock."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from conformance.run_backends import Prepared, prepared_stores, run_place
from log_lines import capture_logs
from postroom.contracts.errors import StaleClaim, StoreUnavailable
from postroom.contracts.leases import LEASES, SERVER
from postroom.leases import LENGTH, Leases
from postroom.stores.store import SqlStore, Transaction
from postroom.testing import ManualClock

__all__ = ["prepared_stores", "run_place"]

NAME = "archive"
SURE = LENGTH * 5 / 6


@pytest.fixture
async def store(prepared_stores: Prepared) -> AsyncIterator[SqlStore]:
    async with prepared_stores.opened() as stores:
        yield stores.store


def leases(store: SqlStore, holder: str, *wanted: str, **given: Any) -> Leases:
    made = Leases(store, holder, {"address": f"http://{holder}"}, **given)
    for name in wanted or (NAME,):
        made.want(name)
    return made


async def test_one_of_two_servers_has_it_and_keeps_it_for_as_long_as_it_renews(
    store: SqlStore, clock: ManualClock
) -> None:
    one, two = leases(store, "one"), leases(store, "two")
    assert not one.holds(NAME)
    for _ in range(5):
        assert await one.renew()
        assert await two.renew()
        assert one.holds(NAME)
        assert not two.holds(NAME)
        clock.advance(LENGTH / 3)
    [lease] = [row for row in await store.read(lambda tx: tx.leases.listed()) if row.name == NAME]
    assert (lease.holder, lease.fence) == ("one", 1)
    assert lease.about == {"address": "http://one"}


async def test_a_server_that_starts_logs_no_acquired_lease_and_one_that_takes_over_does(
    store: SqlStore, clock: ManualClock
) -> None:
    """Such lines would be printed before the server's greeting, and a newcomer would not need them."""
    first, second = leases(store, "first"), leases(store, "second")
    with capture_logs() as logs:
        async with first.serving():
            assert first.holds(NAME)
            await second.renew()
        assert [row for row in logs if row["log_level"] != "debug" and row.get("name") == NAME] == []
        await second.renew()
        assert [row["event"] for row in logs if row.get("name") == NAME and row["log_level"] == "info"] == [
            "lease.taken"
        ]


async def test_what_was_begun_with_a_lease_is_not_written_once_another_has_it(
    store: SqlStore, clock: ManualClock
) -> None:
    one, two = leases(store, "one"), leases(store, "two")
    await one.renew()

    def change(tx: Transaction) -> str:
        tx.outbox.purge(0, 1)
        return "written"

    begun = one.guarded(NAME, change)
    assert await store.write(begun) == "written"
    clock.advance(LENGTH)
    with pytest.raises(StaleClaim):  # its end is enough: another may have begun
        await store.write(begun)
    await two.renew()
    with pytest.raises(StaleClaim):
        await store.write(begun)
    clock.advance(LENGTH)
    await one.renew()
    with pytest.raises(StaleClaim):  # it has it again, and what the other did lies between
        await store.write(begun)
    assert await store.write(one.guarded(NAME, change)) == "written"


async def test_without_a_lease_nothing_is_written(store: SqlStore) -> None:
    with pytest.raises(StaleClaim):
        await store.write(leases(store, "one").guarded(NAME, lambda tx: None))


async def test_a_lease_that_is_given_back_is_anothers_at_once_and_wakes_it(store: SqlStore) -> None:
    one, two = leases(store, "one"), leases(store, "two")
    async with asyncio.timeout(60), one.serving(), two.serving():
        assert one.holds(NAME)
        assert not two.holds(NAME)
        with store.changes.listen(LEASES) as news:
            await one.give_back(NAME)
            assert not one.holds(NAME)
            while not two.holds(NAME):
                await news.wait(timedelta(milliseconds=10))


async def test_a_lease_that_is_given_back_while_it_is_taken_is_free(store: SqlStore) -> None:
    one, two = leases(store, "one"), leases(store, "two")
    for _ in range(20):
        one.want(NAME)
        async with asyncio.TaskGroup() as group:
            renewal = group.create_task(one.renew())
            group.create_task(one.give_back(NAME))
        assert renewal.done()
        assert not one.holds(NAME)
        await two.renew()
        assert two.holds(NAME)
        await two.give_back(NAME)
        two.want(NAME)


async def test_a_server_that_ends_gives_back_all_that_it_has(store: SqlStore) -> None:
    one = leases(store, "one", "a", "b")
    async with one.serving():
        assert one.holds("a")
    assert not one.holds("a")
    two = leases(store, "two", "a", "b")
    await two.renew()
    assert two.holds("a")
    assert two.holds("b")


async def test_the_only_process_takes_over_from_one_that_was_killed(store: SqlStore) -> None:
    await leases(store, "killed").renew()
    shares, alone = leases(store, "shares"), leases(store, "alone", is_gone=lambda _: True)
    await shares.renew()
    assert not shares.holds(NAME)
    await alone.renew()
    assert alone.holds(NAME)


async def test_who_has_all_that_it_wants_hears_of_servers_that_have_ended_too(store: SqlStore) -> None:
    ended: list[str] = []
    one = leases(store, "one", is_gone=lambda about: about["address"] in ended)
    await leases(store, "two", "another").renew()
    for gone in (set(), {"two"}):
        await one.renew()
        await one.renew()
        assert one.gone == gone
        ended.append("http://two")


async def test_which_servers_are_up_is_a_lease_of_each_and_forgotten_after_a_while(
    store: SqlStore, clock: ManualClock
) -> None:
    one, two = leases(store, "one"), leases(store, "two")
    await one.renew()
    await two.renew()
    assert await _named(store) == [NAME, f"{SERVER}one", f"{SERVER}two"]
    clock.advance(timedelta(hours=2))
    await two.renew()
    assert await _named(store) == [NAME, f"{SERVER}two"]


async def test_a_store_that_fails_costs_the_lease_only_when_its_time_is_over(
    store: SqlStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = leases(store, "one")
    await one.renew()

    async def fails(*_: object, **__: object) -> None:
        raise StoreUnavailable("it is away")

    with monkeypatch.context() as broken:
        broken.setattr(store, "write", fails)
        assert not await one.renew()
        assert one.holds(NAME)
        clock.advance(SURE)
        assert not one.holds(NAME)
    await one.renew()
    assert one.holds(NAME)


async def _named(store: SqlStore) -> list[str]:
    return [one.name for one in await store.read(lambda tx: tx.leases.listed())]
