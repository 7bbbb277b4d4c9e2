"""Runs on PostgreSQL beyond what every store promises: the schema, the clock, hints, lanes, rows set aside."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from conformance.promises import run_given as given
from machine import PATIENCE
from postgres_runs_room import OpenedRuns, Session
from postroom.contracts import errors
from postroom.contracts.clock import SystemClock
from postroom.contracts.dispatch import INTERRUPTED, Claim, RunDispatch, RunDispatchStatus
from postroom.contracts.events import CanonicalEventDraft, EventScope
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

pytestmark = pytest.mark.usefixtures("postgres_dsn")
LEASE = 30_000


@pytest_asyncio.fixture
async def stores(postgres_dsn: str, a_schema: str, clock: ManualClock) -> AsyncIterator[OpenedRuns]:
    opened = await OpenedRuns.open(postgres_dsn, schema=a_schema, clock=clock)
    yield opened
    await opened.close()
    await opened.close()


@pytest_asyncio.fixture
async def elsewhere(
    postgres_dsn: str, a_schema: str, clock: ManualClock, stores: OpenedRuns
) -> AsyncIterator[OpenedRuns]:
    """The same schema as another process sees it."""
    opened = await OpenedRuns.open(postgres_dsn, schema=a_schema, clock=clock)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def session(postgres_dsn: str, a_schema: str, stores: OpenedRuns) -> AsyncIterator[Session]:
    """A second session, for changes that no store would make."""
    opened = await Session.open(postgres_dsn, a_schema)
    yield opened
    await opened.end()


def asked(name: str, thread: str = "t", **details: Any) -> RunDispatch:
    return RunDispatch.queued(name, thread, f"r-{name}", created_at=details.pop("created_at", 1), **details)


# The schema


async def test_a_name_that_needs_quotes_is_a_schema_like_any_other(
    stores: OpenedRuns, session: Session, a_schema: str
) -> None:
    assert '"' in a_schema
    [[name]] = await session.rows("SELECT current_schema()")
    assert name == a_schema
    assert stores.storage_identity == stores.coordinator.storage_identity
    assert (stores.storage_identity or "").endswith(a_schema)


BROKEN = {
    f"UPDATE run_dispatches SET {change} WHERE dispatch_id = '{name}'"
    for name, change in (
        ("d1", "claim_token = NULL"),
        ("d2", "status = 'Claimed', claim_token = 'x', claimed_by = 'w', lease_until = 1"),  # two of a thread
        ("d2", "lease_until = 1"),
        ("d2", "completed_at = 1"),
        ("d2", "run_status = 'done'"),
        ("d2", "status = 'Cancelled'"),  # without its instant
        ("d3", "run_id = 'r-d2'"),  # two queued ones of a run
        ("d2", "dedupe_key = 'key'"),
        ("d2", "attempt_count = 6"),
        ("d2", "priority = 256"),
        ("d2", "run_id = E'\\t '"),
        ("d2", "status = 'Lost'"),
    )
} | {f"UPDATE run_threads SET parent_thread_id = {parent}" for parent in ("'nobody'", "thread_id")}


async def test_the_schema_itself_refuses_what_no_record_can_be(stores: OpenedRuns, session: Session) -> None:
    await given.claimed(stores, "d1", dedupe_key="key")
    await given.enqueued(stores, "d2")
    await given.enqueued(stores, "d3")
    await given.a_thread(stores)
    taken = []
    for change in BROKEN:
        try:
            await session.rows(change)
        except errors.StoreError:
            continue
        taken.append(change)
    assert taken == []


async def test_no_index_of_dispatches_has_a_column_that_a_renewed_lease_changes(session: Session) -> None:
    """Else each renewal of a long run would write a new entry to every index of the table."""
    indexes = await session.rows(
        "SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema() AND tablename = 'run_dispatches'"
    )
    assert len(indexes) > 5
    assert not [one for (one,) in indexes if "lease_until" in str(one) or "updated_at" in str(one)]


# The clock


async def test_without_a_clock_the_database_tells_the_time(
    postgres_dsn: str, a_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose clock is an hour slow claims due work and leases for as long as any other."""
    monkeypatch.setattr(SystemClock, "now", lambda self: right_now() - 3_600_000)
    opened = await OpenedRuns.open(postgres_dsn, schema=a_schema)
    try:
        assert abs(opened.clock.now() - right_now()) < 5_000
        await opened.dispatches.enqueue(asked("d1", available_at=right_now() - 1_000))
        owned = await opened.dispatches.claim("t", "w", lease_ms=LEASE)
        assert owned is not None
        assert abs((owned.lease_until or 0) - right_now() - LEASE) < 5_000
        event = await opened.events.append(given.event())
        assert abs(event.created_at - right_now()) < 5_000
        await opened.coordinator.commit(ThreadCommit(thread_id="t", messages=(Message.user("x", id="m"),)))
        [record] = await opened.threads.load_message_records("t", ["m"])
        assert abs(record.created_at - right_now()) < 5_000
    finally:
        await opened.close()


def right_now() -> int:
    return time.time_ns() // 1_000_000


# Hints


async def test_work_and_events_of_another_process_wake_who_waits_for_them(
    stores: OpenedRuns, elsewhere: OpenedRuns
) -> None:
    async with asyncio.timeout(60):
        await elsewhere.listening()
        await elsewhere.wakeups.wait(timedelta(milliseconds=0))
        async with asyncio.TaskGroup() as group:
            woken = group.create_task(elsewhere.wakeups.wait(timedelta(milliseconds=60_000)))
            await stores.listening()
            await stores.dispatches.enqueue(asked("d1"))
            await woken
        scope = EventScope.thread("t")
        async with asyncio.TaskGroup() as group:
            woken = group.create_task(elsewhere.events.wait(scope, after=1))
            await stores.events.append(given.event())
            await stores.coordinator.commit(ThreadCommit(thread_id="t", events=(given.event(),)))
            await woken
    assert await elsewhere.events.count(scope) == 2


async def failure_of(work: Any) -> errors.PostroomError:
    try:
        await work
    except errors.PostroomError as error:
        return error
    raise AssertionError("it did not fail")


async def test_a_value_that_cannot_be_stored_harms_nobody_else(stores: OpenedRuns) -> None:
    async with asyncio.TaskGroup() as group:
        good = [group.create_task(stores.dispatches.enqueue(asked(f"d{number}"))) for number in range(3)]
        bad = group.create_task(failure_of(stores.dispatches.enqueue(asked("d\0"))))
        far = group.create_task(failure_of(stores.dispatches.enqueue(asked("far", created_at=2**70))))
    assert isinstance(bad.result(), errors.InvalidRecord)
    assert isinstance(far.result(), errors.InvalidRecord)
    assert [one.result().dispatch_id for one in good] == ["d0", "d1", "d2"]


async def test_closing_answers_what_was_asked_before_and_refuses_what_comes_later(
    postgres_dsn: str, a_schema: str
) -> None:
    opened = await OpenedRuns.open(postgres_dsn, schema=a_schema)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        stored = [group.create_task(opened.dispatches.enqueue(asked(f"d{number}"))) for number in range(200)]
        await asyncio.sleep(0)
        await opened.close()
    assert len([one.result() for one in stored]) == 200
    late = (opened.dispatches.enqueue(asked("d")), opened.dispatches.load_dispatch("d1"))
    for call in (*late, opened.dispatches.interrupt("t")):
        with pytest.raises(errors.StoreUnavailable, match="closed"):
            await call


# Several processes


async def test_processes_together_claim_each_dispatch_once(stores: OpenedRuns, elsewhere: OpenedRuns) -> None:
    threads, depth = 8, 12
    async with asyncio.TaskGroup() as group:
        for number in range(threads * depth):
            group.create_task(stores.dispatches.enqueue(asked(f"d{number:03}", f"t{number % threads}")))
    done: list[str] = []
    at_work: set[str] = set()

    async def work(by: RunStores, consumer: str) -> None:
        while len(done) < threads * depth:
            for thread in range(threads):
                owned = await by.dispatches.claim(f"t{thread}", consumer, lease_ms=LEASE)
                if owned is not None:
                    assert owned.thread_id not in at_work
                    at_work.add(owned.thread_id)
                    await by.dispatches.record_dispatch_start(owned.claim_proof, consumer)
                    at_work.remove(owned.thread_id)
                    done.append(owned.dispatch_id)
                    await by.dispatches.ack(owned.claim_proof)

    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(work(stores if number % 2 else elsewhere, f"w{number}"))
    assert sorted(done) == [f"d{number:03}" for number in range(threads * depth)]


async def test_an_interrupt_and_what_an_owner_gives_back_do_not_pass_each_other(
    stores: OpenedRuns, elsewhere: OpenedRuns
) -> None:
    """Either it was queued again and is superseded, or the owner learns that its claim was lost."""
    for number in range(25):
        owned = await given.claimed(stores, f"d{number}")
        async with asyncio.TaskGroup() as group:
            back = group.create_task(outcome(stores, owned.claim_proof))
            raised = group.create_task(elsewhere.dispatches.interrupt("t"))
        row = await given.loaded(stores, owned.dispatch_id)
        assert row.status is RunDispatchStatus.SUPERSEDED
        if back.result():
            assert row.last_error == INTERRUPTED
            assert raised.result().superseded_dispatches == (row,)
            assert raised.result().active_dispatch is None
        else:
            assert raised.result().active_dispatch == owned


async def outcome(stores: RunStores, claim: Claim) -> bool:
    try:
        await stores.dispatches.nack(claim, error="x")
    except errors.StaleClaim:
        return False
    return True


async def test_commits_of_one_thread_by_processes_leave_no_gap(
    stores: OpenedRuns, elsewhere: OpenedRuns
) -> None:
    async def say(by: RunStores, name: str) -> None:
        events = (CanonicalEventDraft(scopes=(EventScope.thread("t"),), event_kind="Said"),)
        message = Message.user(name, id=name)
        await by.coordinator.commit(ThreadCommit(thread_id="t", messages=(message,), events=events))

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for number in range(30):
            group.create_task(say(stores if number % 2 else elsewhere, f"m{number}"))
            group.create_task(stores.events.append(given.event()))
    thread = await stores.threads.load_thread("t")
    assert thread is not None
    assert thread.message_count == 30
    assert len(await stores.threads.load_messages("t") or ()) == 30
    page = await elsewhere.events.list(EventScope.thread("t"), limit=100)
    assert [one.sequences["thread:t"] for one in page.events] == list(range(1, 61))


async def test_threads_do_not_become_each_others_ancestors(stores: OpenedRuns, elsewhere: OpenedRuns) -> None:
    for name in ("a", "b"):
        await given.a_thread(stores, name)
    one, other = [await stores.threads.load_thread(name) for name in ("a", "b")]
    assert one is not None
    assert other is not None
    async with asyncio.TaskGroup() as group:
        tries = [
            group.create_task(saved(stores, replace(one, parent_thread_id="b"))),
            group.create_task(saved(elsewhere, replace(other, parent_thread_id="a"))),
        ]
    assert sorted(task.result() for task in tries) == [False, True]


async def saved(stores: RunStores, thread: Any) -> bool:
    try:
        await stores.threads.save_thread(thread)
    except errors.InvalidRecord:
        return False
    return True
