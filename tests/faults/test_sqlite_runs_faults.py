"""Runs on SQLite when something is wrong: a row that is damaged, a disk that is full, a step that fails."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from conformance.promises.run_given import (
    KIND,
    LEASE,
    TARGET,
    a_thread,
    asked,
    claimed,
    ended,
    enqueued,
    event,
    ids,
    loaded,
    run,
    said,
    snapshot,
    taken,
    waiting,
)
from log_lines import capture_logs
from machine import PATIENCE
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    DuplicateRecord,
    PostroomError,
    StaleClaim,
    StoreCorrupt,
    StoreError,
    StoreFull,
    VersionConflict,
)
from postroom.contracts.events import EventScope
from postroom.contracts.messages import Message
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.run_stores import MessageQuery, RunQuery, ThreadCommit, ThreadQuery
from postroom.contracts.runs import RunStatus
from postroom.stores.runs.ports import RunStores
from postroom.stores.sql_transaction import SqlTransaction
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


# Rows that do not read back


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


# Steps that fail beside others


async def outcome(work: Coroutine[Any, Any, T]) -> T | BaseException:
    try:
        return await work
    except PostroomError as error:
        return error


async def as_one_group(store: SqliteStore, *steps: Coroutine[Any, Any, object]) -> list[Any]:
    """Commit the steps together, and return the result of each caller."""
    entered, opened = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def gate(sql: SqlTransaction) -> None:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(opened.wait(), loop).result(PATIENCE)

    before = store.grouping
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(store.store.engine.write(gate))
        await entered.wait()
        handed_in = [tasks.create_task(outcome(step)) for step in steps]
        queue = store.store.engine.writer.pending.queue
        while queue.qsize() < len(steps):  # some look at their thread before they are handed in
            await asyncio.sleep(0)
        opened.set()
    assert store.grouping[0] - before[0] <= 2
    return [task.result() for task in handed_in]


async def test_a_step_that_is_refused_leaves_the_rest_of_its_group(
    stores: RunStores, sqlite_store: SqliteStore
) -> None:
    stale = await claimed(stores, "stale", thread="s")
    await stores.dispatches.interrupt("s")
    await enqueued(stores, "taken", thread="u")
    step = ThreadCommit(
        thread_id="t",
        messages=(Message.user("x", id="m9"),),
        events=(event(),),
        queues=asked(stores, "taken"),
    )
    learned = await as_one_group(
        sqlite_store,
        stores.dispatches.enqueue(asked(stores, "d1", thread="a")),
        stores.dispatches.ack(stale.claim_proof),
        stores.coordinator.commit(step),
        stores.dispatches.enqueue(asked(stores, "d1", thread="b")),
        said(stores, "m1"),
        stores.dispatches.claim("a", "worker", lease_ms=LEASE),
    )
    kinds = [type(one) for one in learned]
    assert kinds[:4] == [RunDispatch, StaleClaim, DuplicateRecord, DuplicateRecord]
    assert learned[5].dispatch_id == "d1"
    assert (await loaded(stores, "stale")).status is RunDispatchStatus.SUPERSEDED  # kept although it raised
    assert [one.id for one in await stores.threads.load_messages("t") or ()] == ["m1"]
    assert await stores.dispatches.current_dispatch_epoch("t") == 0
    assert await stores.events.count(THREAD) == 0


async def test_of_a_group_each_step_sees_those_before_it(
    stores: RunStores, sqlite_store: SqliteStore
) -> None:
    await enqueued(stores, "d1")
    learned = await as_one_group(
        sqlite_store,
        stores.dispatches.claim("t", "first", lease_ms=LEASE),
        stores.dispatches.claim("t", "second", lease_ms=LEASE),
        stores.dispatches.interrupt("t"),
        stores.dispatches.enqueue(asked(stores, "d2")),
    )
    first, second, interrupt, later = learned
    assert (first.claimed_by, second) == ("first", None)
    assert interrupt.active_dispatch == first
    assert later.dispatch_epoch == 1
    with pytest.raises(StaleClaim):
        await stores.dispatches.ack(first.claim_proof)


async def test_a_full_disk_is_told_and_changes_nothing(stores: RunStores, sqlite_store: SqliteStore) -> None:
    await said(stores, "m1")
    owned = await claimed(stores)
    before = await snapshot(stores, "t")

    def limit(db: sqlite3.Connection, more: int) -> None:
        present = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {present + more}").fetchall()

    await on_the_writer(sqlite_store, lambda db: limit(db, 0))
    large = ThreadCommit(
        thread_id="t",
        messages=(Message.user("x" * 500_000, id="m2"),),
        claim=owned.claim_proof,
        events=(event(),),
    )
    with capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(StoreFull):
                await stores.coordinator.commit(large)
    assert [line["event"] for line in lines] == ["store.full"], "a write that is retried is logged once"
    assert await snapshot(stores, "t") == before
    await on_the_writer(sqlite_store, lambda db: limit(db, 1_000_000))
    assert (await stores.coordinator.commit(large)).message_count == 2
    assert (await stores.dispatches.ack(owned.claim_proof)).status is RunDispatchStatus.ACKED


@pytest.mark.parametrize("given_up_after", range(4))
async def test_a_commit_whose_caller_gives_up_is_written_whole_or_not_at_all(
    stores: RunStores, given_up_after: int
) -> None:
    step = ThreadCommit(
        thread_id="t",
        messages=(Message.user("x", id="m1"),),
        run=run(stores),
        events=(event(),),
        outbox=(OutboxDraft(kind=KIND, target=TARGET),),
        queues=asked(stores),
    )
    task = asyncio.get_running_loop().create_task(stores.coordinator.commit(step))
    for _ in range(given_up_after):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await said(stores, "after")
    there = {
        len(await stores.threads.load_messages("t") or ()) == 2,
        await stores.threads.load_run("r1") is not None,
        await stores.dispatches.load_dispatch("d1") is not None,
        await stores.events.count(THREAD) == 1,
        len(await stores.outbox.claim(KIND, TARGET, lease_ms=1)) == 1,
    }
    assert len(there) == 1
    if there == {True}:
        with pytest.raises((DuplicateRecord, VersionConflict)):
            await stores.coordinator.commit(step)


async def test_what_the_schema_refuses_is_an_error_of_the_store(
    stores: RunStores, sqlite_store: SqliteStore
) -> None:
    """A wrong program meets the schema; the writer continues."""
    await enqueued(stores)
    with pytest.raises(StoreError, match="CHECK constraint failed"):
        await on_the_writer(
            sqlite_store, lambda db: db.execute("UPDATE run_dispatches SET status = 'Claimed'")
        )
    assert (await taken(stores)).status is RunDispatchStatus.CLAIMED


async def test_a_backup_holds_the_runs(
    stores: RunStores, sqlite_store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    await said(stores, "m1")
    await claimed(stores)
    await sqlite_store.back_up(tmp_path / "copy.db")
    copy = await asyncio.to_thread(SqliteStore.open, tmp_path / "copy.db", clock=clock, purpose="test")
    try:
        assert await snapshot(copy.runs, "t") == await snapshot(stores, "t")
    finally:
        await asyncio.to_thread(copy.close)
