"""The promises of the run stores on SQLite beyond the port, and one transaction with mail."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.promises.given import an_office, put_message
from conformance.promises.run_given import (
    KIND,
    LEASE,
    TARGET,
    asked,
    claimed,
    ended,
    enqueued,
    event,
    loaded,
    reported,
    run,
    said,
    snapshot,
    waiting,
)
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    ActiveRunConflict,
    StoreError,
)
from postroom.contracts.events import EventScope
from postroom.contracts.messages import Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.run_stores import ClaimRequest, Committed, ThreadCommit
from postroom.contracts.runs import RunStatus
from postroom.stores.runs import dispatches, ports
from postroom.stores.runs.dispatches import state_look
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


# Mail and runs together


def submission(stores: RunStores, dispatch_id: str = "d1", **details: Any) -> ThreadCommit:
    return ThreadCommit(
        thread_id="t",
        messages=(Message.user("x", id=f"m-{dispatch_id}"),),
        run=run(stores, f"r-{dispatch_id}", status=RunStatus.CREATED),
        events=(event("Submitted"),),
        outbox=(OutboxDraft(kind=KIND, target=TARGET),),
        queues=asked(stores, dispatch_id),
        **details,
    )


async def test_a_message_and_the_run_it_causes_are_written_together(
    stores: RunStores, sqlite_store: SqliteStore
) -> None:
    here = await an_office(sqlite_store)
    scope = EventScope.thread("t")

    def change(tx: Transaction) -> str:
        put_message(tx.mail, here.ada, [here.ben], subject="plums")
        assert tx.runs.state(state_look("t", is_submission=True)).thread is None
        done = tx.runs.commit(submission(stores, claimed_by=ClaimRequest(consumer="w", lease_ms=LEASE)))
        assert tx.runs.threads.load("t") is not None
        assert tx.runs.threads.load_run("r-d1") is not None
        assert isinstance(done, Committed)
        assert done.dispatch is not None
        return done.dispatch.dispatch_id

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        hears = group.create_task(stores.events.wait(scope, after=0))
        await asyncio.sleep(0)
        assert await sqlite_store.store.write(change) == "d1"
        await hears
    messages = await sqlite_store.read(lambda tx: tx.project_messages(here.project.id, limit=9))
    assert [one.subject for one in messages] == ["plums"]
    assert (await loaded(stores)).status is RunDispatchStatus.CLAIMED
    assert len(await stores.outbox.claim(KIND, TARGET, lease_ms=1)) == 1


@pytest.mark.parametrize("fault", ["mail", "runs", "caller"])
async def test_neither_is_written_when_one_is_refused(
    stores: RunStores, sqlite_store: SqliteStore, fault: str
) -> None:
    here = await an_office(sqlite_store)
    await claimed(stores, "active")
    before = await snapshot(stores, "t")

    def change(tx: Transaction) -> None:
        put_message(tx.mail, here.ada, [here.ben], subject="plums")
        claim = ClaimRequest(consumer="w", lease_ms=LEASE) if fault == "runs" else None
        tx.runs.commit(submission(stores, claimed_by=claim))
        if fault == "mail":
            tx.mail.put_contact(here.ada.id, 99, status="pending", reason="", now=1)
        raise KeyError(fault)

    with pytest.raises((StoreError, ActiveRunConflict, KeyError)):
        await sqlite_store.store.write(change)
    assert await sqlite_store.read(lambda tx: tx.project_messages(here.project.id, limit=9)) == []
    assert await snapshot(stores, "t") == before
