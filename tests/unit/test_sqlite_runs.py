"""The promises of the run stores on SQLite beyond the port."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from conformance.promises.run_given import (
    claimed,
    ended,
    enqueued,
    event,
    reported,
    run,
    said,
    snapshot,
    waiting,
)
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.events import EventScope
from postroom.stores.runs import dispatches, ports
from postroom.stores.runs.ports import RunStores
from postroom.stores.sql_transaction import SqlTransaction
from postroom.stores.sqlite import SqliteStore
from postroom.stores.store import Transaction
from postroom.testing import ManualClock


@pytest.fixture
def stores(sqlite_store: SqliteStore) -> RunStores:
    return sqlite_store.runs


async def test_what_was_answered_is_there_when_the_file_is_opened_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "postroom.db"
    seen: list[object] = []
    for _ in range(2):
        store = await asyncio.to_thread(SqliteStore.open, path, clock=clock, purpose="test")
        if not seen:
            await said(store.runs, "m1", "m2")
            await waiting(store.runs, "p1")
            await store.runs.threads.create_run(run(store.runs))
            await store.runs.events.append(event(run_id="r1"))
            await store.runs.dispatches.interrupt("t")
            await reported(store.runs, await claimed(store.runs))
            await ended(store.runs, "d0", RunDispatchStatus.CANCELLED, thread="u")
        seen.append(await snapshot(store.runs, "t", "u"))
        assert store.runs.storage_identity == f"sqlite:{path}"
        await asyncio.to_thread(store.close)
    assert seen[0] == seen[1]


async def test_a_purge_lets_others_write_between_its_steps(
    stores: RunStores, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatches, "PURGED_AT_ONCE", 3)
    for number in range(10):
        await ended(stores, f"d{number}", RunDispatchStatus.ACKED, thread=f"t{number}")
    async with asyncio.TaskGroup() as group:
        purge = group.create_task(stores.dispatches.purge_terminal(older_than=clock.now() + 1))
        await removed(stores, "d3")
        await enqueued(stores, "d3", thread="again")
    assert purge.result() == 10
    counts = await stores.dispatches.count_by_status()
    assert counts[RunDispatchStatus.ACKED] == 0


async def test_a_stale_row_in_the_queue_is_superseded_by_the_next_claim(
    stores: RunStores, sqlite_store: SqliteStore
) -> None:
    """An interrupt leaves none; who writes to the table by other means may."""
    await stores.dispatches.interrupt("t")
    for name in ("old-1", "new", "old-2"):
        await stores.dispatches.enqueue(RunDispatch.queued(name, "t", f"run-{name}", created_at=0))
    await sqlite_store.store.engine.write(
        lambda sql: sql.connection.execute(
            "UPDATE run_dispatches SET dispatch_epoch = 0 WHERE dispatch_id LIKE 'old-%'"
        )
    )
    assert await stores.dispatches.claim_dispatch("old-2", "worker", lease_ms=30) is None
    owned = await stores.dispatches.claim("t", "worker", lease_ms=30)
    assert owned is not None
    assert owned.dispatch_id == "new"
    rows = [await stores.dispatches.load_dispatch(name) for name in ("old-1", "old-2")]
    assert [row and row.status for row in rows] == [RunDispatchStatus.SUPERSEDED] * 2


async def removed(stores: RunStores, dispatch_id: str) -> None:
    async with asyncio.timeout(60):
        while await stores.dispatches.load_dispatch(dispatch_id) is not None:
            await asyncio.sleep(0)


async def test_who_waits_for_events_looks_by_itself_at_times(
    stores: RunStores, sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint may be lost."""
    monkeypatch.setattr(ports, "LOOK_AGAIN_AFTER", timedelta(milliseconds=10))

    def untold(sql: SqlTransaction) -> None:
        Transaction(sql, ManualClock()).events.append((event(),))

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waits = group.create_task(stores.events.wait(EventScope.thread("t"), after=0))
        await asyncio.sleep(0)
        await sqlite_store.store.engine.write(untold)
        await waits
    assert EventScope.thread("t").key not in sqlite_store.store.changes._listeners
