"""Runs on SQLite whose rows are damaged."""

import sqlite3
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from conformance.promises.run_given import (
    KIND,
    LEASE,
    TARGET,
    a_thread,
    claimed,
    ended,
    enqueued,
    event,
    ids,
    run,
    said,
    taken,
    waiting,
)
from log_lines import capture_logs
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import (
    StoreCorrupt,
)
from postroom.contracts.events import EventScope
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.run_stores import MessageQuery, RunQuery, ThreadCommit, ThreadQuery
from postroom.contracts.runs import RunStatus
from postroom.stores.runs.ports import RunStores
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock

T = TypeVar("T")

THREAD = EventScope.thread("t")


@pytest.fixture
def stores(sqlite_store: SqliteStore) -> RunStores:
    return sqlite_store.runs


async def on_the_writer(store: SqliteStore, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run something on the writer's own connection."""
    return await store.store.engine.write(lambda sql: work(sql.connection))


async def spoiled(store: SqliteStore, change: str, *values: object) -> None:
    """Write what no record can be, as a broken disk or a foreign program may."""

    def spoil(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA ignore_check_constraints = ON")
        try:
            assert db.execute(change, values).rowcount > 0
        finally:
            db.execute("PRAGMA ignore_check_constraints = OFF")

    await on_the_writer(store, spoil)


async def spoiled_dispatch(store: SqliteStore, dispatch_id: str) -> None:
    await spoiled(store, "UPDATE run_dispatches SET termination = '{' WHERE dispatch_id = ?", dispatch_id)


async def set_aside(store: SqliteStore) -> list[tuple[str, str]]:
    return await on_the_writer(
        store, lambda db: db.execute("SELECT kind, id FROM unreadable_rows ORDER BY kind, id").fetchall()
    )


async def test_a_claim_passes_over_a_row_that_does_not_read_back(
    stores: RunStores, sqlite_store: SqliteStore
) -> None:
    for name in ("d1", "d2", "d3", "d4"):
        await enqueued(stores, name)
    await spoiled_dispatch(sqlite_store, "d1")
    await spoiled(sqlite_store, "UPDATE run_dispatches SET priority = -1 WHERE dispatch_id = 'd2'")
    with capture_logs() as logs:
        owned = await stores.dispatches.claim("t", "worker", lease_ms=LEASE)
    assert owned is not None
    assert owned.dispatch_id == "d3"
    assert {(one["event"], one["id"]) for one in logs} == {
        ("store.row_quarantined", "d1"),
        ("store.row_quarantined", "d2"),
    }
    assert await set_aside(sqlite_store) == [("dispatch", "d1"), ("dispatch", "d2")]
    await stores.dispatches.ack(owned.claim_proof)
    with capture_logs() as logs:
        assert (await taken(stores, "d4")).dispatch_id == "d4"
        assert await stores.dispatches.claim("t", "another", lease_ms=LEASE) is None
    assert logs == []  # it is said once


async def test_listings_leave_it_out_and_stay_as_long(
    stores: RunStores, sqlite_store: SqliteStore, clock: ManualClock
) -> None:
    for number in range(4):
        await enqueued(stores, f"q{number}")
        await ended(stores, f"e{number}", RunDispatchStatus.CANCELLED, thread=f"u{number}")
    for name in ("q1", "e1"):
        await spoiled_dispatch(sqlite_store, name)
    store = stores.dispatches
    assert ids(await store.list_dispatches("t", limit=3)) == ["q0", "q2", "q3"]
    assert ids(await store.list_by_status(RunDispatchStatus.QUEUED, limit=2)) == ["q0", "q2"]
    assert ids(await store.list_by_status(RunDispatchStatus.CANCELLED, limit=3)) == ["e0", "e2", "e3"]
    assert ids(await store.unreconciled_dispatches(limit=3)) == ["e0", "e2", "e3"]
    await store.mark_reconciled(["e1"])
    assert await store.purge_terminal(older_than=clock.now() + 1) == 1
    assert await set_aside(sqlite_store) == [("dispatch", "q1")]


async def test_who_asks_for_that_very_row_is_told(stores: RunStores, sqlite_store: SqliteStore) -> None:
    owned = await claimed(stores)
    await said(stores, "m1")
    await stores.threads.create_run(run(stores))
    made = await stores.events.append(event())
    await stores.coordinator.commit(ThreadCommit(thread_id="t", thread_state={"k": 1}))
    await spoiled_dispatch(sqlite_store, "d1")
    for table, column in (("runs", "body"), ("run_messages", "body"), ("events", "payload")):
        await spoiled(sqlite_store, f"UPDATE {table} SET {column} = '{{'")
    await spoiled(sqlite_store, "UPDATE thread_states SET body = '{'")
    looks: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
        ("d1", lambda: stores.dispatches.load_dispatch("d1")),
        ("d1", lambda: stores.dispatches.claimed_dispatch("t")),
        ("d1", lambda: stores.dispatches.claim_dispatch("d1", "worker", lease_ms=LEASE)),
        ("d1", lambda: stores.dispatches.ack(owned.claim_proof)),
        ("r1", lambda: stores.threads.load_run("r1")),
        ("r1", lambda: stores.threads.submission_state("t", "r1")),
        ("t/1", lambda: stores.threads.load_messages("t")),
        ("t/1", lambda: stores.threads.load_message_records("t", ["m1"])),
        (made.event_id, lambda: stores.events.load(made.event_id)),
        ("the state of thread 't'", lambda: stores.threads.load_thread_state("t")),
    )
    for name, look in looks:
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match="cannot be read") as told:
                await look()
            assert told.value.value == name


async def test_runs_threads_messages_and_events_that_do_not_read_back_stop_no_others(
    stores: RunStores, sqlite_store: SqliteStore
) -> None:
    for number in range(3):
        await a_thread(stores, f"t{number}")
        await stores.threads.create_run(run(stores, f"r{number}", thread="t"))
        await stores.events.append(event(f"E{number}"))
        await stores.outbox.enqueue(OutboxDraft(kind=KIND, target=TARGET, payload={"n": number}))
    await said(stores, "m1", "m2", "m3")
    await waiting(stores, "p1", "p2", "p3")
    await spoiled(sqlite_store, "UPDATE run_threads SET custom = '{' WHERE thread_id = 't1'")
    await spoiled(sqlite_store, "UPDATE runs SET body = '[]' WHERE run_id = 'r2'")
    await spoiled(sqlite_store, "UPDATE run_messages SET body = '{' WHERE message_id = 'm2'")
    await spoiled(sqlite_store, "UPDATE pending_messages SET mode = '1' WHERE pending_id = 'p2'")
    await spoiled(sqlite_store, "UPDATE events SET visibility = 'x' WHERE event_kind = 'E2'")
    await spoiled(sqlite_store, "UPDATE outbox SET payload = '{' WHERE place = 1")
    assert [one.id for one in await stores.threads.list_threads(ThreadQuery(id_prefix="t"))] == [
        "t",
        "t0",
        "t2",
    ]
    for query in (RunQuery(), RunQuery(statuses=(RunStatus.RUNNING,)), RunQuery(thread_id="t")):
        assert [one.run_id for one in await stores.threads.list_runs(query)] == ["r0", "r1"]
    facts = await stores.threads.submission_state("t")
    assert (facts.open_run, facts.latest_run and facts.latest_run.run_id) == (None, "r1")
    assert [(one.pending_id, one.position) for one in facts.pending] == [("p1", 1), ("p3", 2)]
    turned = await stores.threads.reorder_pending("t", ["p3", "p1"])
    assert [one.pending_id for one in turned] == ["p3", "p1"]
    records = await stores.threads.list_message_records("t", MessageQuery())
    assert [one.seq for one in records] == [1, 3]
    page = await stores.events.list(THREAD)
    assert ([one.event_kind for one in page.events], page.cursor) == (["E0", "E1"], 3)
    found = await stores.outbox.claim(KIND, TARGET, lease_ms=1, limit=2)
    assert [one.payload for one in found] == [{"n": 1}, {"n": 2}]


async def test_what_was_set_aside_is_forgotten_with_its_thread(
    stores: RunStores, sqlite_store: SqliteStore
) -> None:
    """Everything that is stored under the same names later is visible."""

    async def furnished() -> None:
        await said(stores, "m1")
        await waiting(stores, "p1")
        await stores.threads.create_run(run(stores))

    await furnished()
    for change in (
        "UPDATE run_threads SET custom = '{'",
        "UPDATE runs SET body = '{'",
        "UPDATE run_messages SET body = '{'",
        "UPDATE pending_messages SET body = '{'",
    ):
        await spoiled(sqlite_store, change)
    assert await stores.threads.list_threads(ThreadQuery()) == ()
    assert await stores.threads.list_runs(RunQuery()) == ()
    assert await stores.threads.list_message_records("t", MessageQuery()) == ()
    assert await stores.threads.pending_messages("t") == ()
    assert [kind for kind, _ in await set_aside(sqlite_store)] == ["message", "pending", "run", "thread"]
    assert await stores.threads.delete_thread("t")
    assert await set_aside(sqlite_store) == []
    await furnished()
    assert len(await stores.threads.list_runs(RunQuery())) == 1
    assert len(await stores.threads.list_message_records("t", MessageQuery())) == 1
    assert len(await stores.threads.pending_messages("t")) == 1
