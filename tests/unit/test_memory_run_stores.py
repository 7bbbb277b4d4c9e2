"""What the memory stores for runs add to the promises that every store keeps: indexes, whole commits, hints."""

import asyncio
import sqlite3
from datetime import timedelta

import pytest

from postroom.contracts.dispatch import STALE_EPOCH, Claim, RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    ActiveRunConflict,
    AlreadyConsumed,
    CursorAhead,
    DuplicateRecord,
    ForeignThread,
    IdempotencyConflict,
    IllegalTransition,
    InvalidRecord,
    PostroomError,
    QueueFull,
    RunNotOpen,
    StaleClaim,
    UnknownThread,
    VersionConflict,
)
from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope
from postroom.contracts.messages import DeliveryMode, Message, PendingVersion
from postroom.contracts.outbox import NackOutcome, OutboxDraft
from postroom.contracts.records import replace
from postroom.contracts.registry import PinnedEntry
from postroom.contracts.run_ports import RunStores
from postroom.contracts.run_stores import ClaimRequest, Delivery, ThreadCommit, ThreadQuery
from postroom.contracts.runs import PersistedState, RunRecord, RunStatus, Thread
from postroom.contracts.transactions import WORK, Listener, Transaction
from postroom.stores.changes import ChangeNotifier, TopicListener
from postroom.stores.memory import MemoryRunStores
from postroom.stores.registry import MemoryRegistryStore
from postroom.stores.sqlite.sql_transaction import SqliteTransaction
from postroom.stores.store import OpenTransaction
from postroom.testing import ManualClock

QUEUED = RunDispatchStatus.QUEUED


@pytest.fixture
def stores(clock: ManualClock) -> MemoryRunStores:
    return MemoryRunStores(clock)


def asked(
    dispatch_id: str, thread_id: str = "t", *, run_id: str | None = None, **details: int
) -> RunDispatch:
    details.setdefault("created_at", 0)
    return RunDispatch.queued(dispatch_id, thread_id, run_id or f"run-{dispatch_id}", **details)


def event(kind: str, *, key: str | None = None, prior: dict[str, int] | None = None) -> CanonicalEventDraft:
    options = AppendOptions(
        writer_id="w" if key else None, idempotency_key=key, expected_prior={} if prior is None else prior
    )
    return CanonicalEventDraft(scopes=(EventScope.thread("t"),), event_kind=kind, options=options)


async def everything(stores: RunStores) -> list[object]:
    """Return what a refused commit could have touched."""
    return [
        await stores.threads.submission_facts("t", "r"),
        await stores.threads.load_messages("t"),
        await stores.threads.load_thread_state("t"),
        await stores.threads.list_threads(ThreadQuery()),
        await stores.dispatches.list_dispatches("t"),
        await stores.dispatches.current_dispatch_epoch("t"),
        (await stores.events.list(EventScope.thread("t"))).events,
    ]


# --- keys in order -----------------------------------------------------------------------------------------


def test_all_parts_name_one_place_and_each_instance_another() -> None:
    first, second = MemoryRunStores(), MemoryRunStores()
    parts = [first.dispatches, first.threads, first.events, first.outbox, first.coordinator]
    assert {part.storage_identity for part in parts} == {first.storage_identity}
    assert first.storage_identity != second.storage_identity


async def test_others_run_while_a_call_is_being_made(stores: MemoryRunStores) -> None:
    order = []

    async def enqueue() -> None:
        await stores.dispatches.enqueue(asked("d"))
        order.append("enqueued")

    async def look_on() -> None:
        order.append("meanwhile")

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(enqueue())
        group.create_task(look_on())
    assert order == ["meanwhile", "enqueued"]


async def test_without_an_instant_the_clock_of_the_stores_counts(
    stores: MemoryRunStores, clock: ManualClock
) -> None:
    await stores.dispatches.enqueue(asked("d", available_at=clock.now() + 1))
    assert await stores.dispatches.claim("t", "w", lease_ms=10) is None
    clock.set(clock.now() + 1)
    claimed = await stores.dispatches.claim("t", "w", lease_ms=10)
    assert claimed is not None
    assert claimed.lease_until == clock.now() + 10


# --- the queue ---------------------------------------------------------------------------------------------


def on(tx: Transaction) -> sqlite3.Connection:
    assert isinstance(tx, OpenTransaction)
    assert isinstance(tx.sql, SqliteTransaction)
    return tx.sql.connection


async def test_a_queued_row_of_an_older_epoch_is_superseded_by_who_would_claim_it(
    stores: MemoryRunStores,
) -> None:
    for number in range(3):
        await stores.dispatches.enqueue(asked(f"d{number}"))
    # As another program, or a restored copy, may leave it:
    await stores._store.write(lambda tx: on(tx).execute("INSERT INTO dispatch_epochs VALUES ('t', 1)"))
    assert await stores.dispatches.claim_dispatch("d2", "w", lease_ms=10) is None
    await stores.dispatches.enqueue(asked("d3"))
    claimed = await stores.dispatches.claim("t", "w", lease_ms=10)
    assert claimed is not None
    assert claimed.dispatch_id == "d3"
    rows = await stores.dispatches.list_dispatches("t", [RunDispatchStatus.SUPERSEDED])
    assert [(row.dispatch_id, row.last_error) for row in rows] == [(f"d{n}", STALE_EPOCH) for n in range(3)]


async def test_purging_everything_keeps_the_epochs(stores: MemoryRunStores, clock: ManualClock) -> None:
    await stores.dispatches.enqueue(asked("d"))
    await stores.dispatches.interrupt("t")
    assert await stores.dispatches.purge_terminal(older_than=clock.now() + 1) == 0
    await stores.dispatches.mark_reconciled(["d", "d", "unknown"])
    assert await stores.dispatches.purge_terminal(older_than=clock.now()) == 0
    assert await stores.dispatches.purge_terminal(older_than=clock.now() + 1) == 1
    assert await stores.dispatches.current_dispatch_epoch("t") == 1
    assert await stores.dispatches.load_dispatch("d") is None
    assert (await stores.dispatches.enqueue(asked("d"))).dispatch_epoch == 1


async def test_superseded_rows_do_not_use_up_the_limit_of_a_reclaim(
    stores: MemoryRunStores, clock: ManualClock
) -> None:
    for number in range(4):
        await stores.dispatches.enqueue(asked(f"d{number}", f"t{number}"))
        await stores.dispatches.claim(f"t{number}", "w", lease_ms=number)
    await stores.dispatches.interrupt("t0")
    await stores.dispatches.interrupt("t1")
    taken = await stores.dispatches.reclaim_expired_leases(limit=1, now=clock.now() + 9)
    assert [row.dispatch_id for row in taken] == ["d2"]
    counts = await stores.dispatches.count_by_status()
    assert counts[RunDispatchStatus.SUPERSEDED] == 2


async def test_a_lease_is_still_owned_at_the_instant_it_ends(stores: MemoryRunStores) -> None:
    await stores.dispatches.enqueue(asked("d"))
    await stores.dispatches.claim("t", "w", lease_ms=5, now=10)
    assert await stores.dispatches.reclaim_expired_leases(now=15) == ()
    (taken,) = await stores.dispatches.reclaim_expired_leases(now=16)
    assert (taken.status, taken.available_at, taken.attempt_count) == (QUEUED, 0, 1)


# --- commits -----------------------------------------------------------------------------------------------


async def busy_thread(stores: MemoryRunStores) -> Claim:
    """Store a thread with a message, a pending one, a run, a claimed and a queued dispatch, an event."""
    await stores.coordinator.commit(
        ThreadCommit(
            thread_id="t",
            messages=(Message.user("hello", id="m1"),),
            run=RunRecord(run_id="r", thread_id="t"),
            thread_state={"kept": [1]},
            events=(event("Started", key="once"),),
            outbox=(OutboxDraft(kind="l", target="x", payload={"n": 1}, dedupe_key="k"),),
        )
    )
    await stores.threads.append_pending("t", [Message.user("wait", id="p1")], DeliveryMode())
    for dispatch_id in ("running", "waiting"):
        await stores.dispatches.enqueue(asked(dispatch_id))
    await stores.dispatches.enqueue(asked("elsewhere", "other"))
    claimed = await stores.dispatches.claim_dispatch("running", "w", lease_ms=1_000)
    assert claimed is not None
    return claimed.claim_proof


A_LOT = ThreadCommit(
    thread_id="t",
    messages=(Message.user("more", id="m2"),),
    expected_message_count=1,
    consumes=(PendingVersion(pending_id="p1", revision=1),),
    run=RunRecord(run_id="r", thread_id="t", status=RunStatus.DONE, finished_at=9, updated_at=9),
    thread_state={"kept": []},
    joins="waiting",
    events=(event("Ending"), event("Ended", prior={"thread:t": 2})),
    outbox=(OutboxDraft(kind="l", target="x", payload={"n": 2}),),
    delivery=Delivery(dispatch=asked("next")),
)
REFUSED = {
    "a token of another": ({"claim": Claim(dispatch_id="running", token="no")}, StaleClaim),
    "a dispatch that is not there": ({"claim": Claim(dispatch_id="gone", token="no")}, StaleClaim),
    "joining what runs": ({"joins": "running"}, VersionConflict),
    "joining what waits elsewhere": ({"joins": "elsewhere"}, VersionConflict),
    "joining what is not there": ({"joins": "gone"}, VersionConflict),
    "an edited pending message": (
        {"consumes": (PendingVersion(pending_id="p1", revision=2),)},
        VersionConflict,
    ),
    "a pending message that left": (
        {"consumes": (PendingVersion(pending_id="p9", revision=1),)},
        VersionConflict,
    ),
    "another message count": ({"expected_message_count": 2}, VersionConflict),
    "a message without an id": ({"messages": (Message.user("x"),)}, InvalidRecord),
    "a committed message": ({"messages": (Message.user("x", id="m1"),)}, DuplicateRecord),
    "a run of another thread": ({"run": RunRecord(run_id="r9", thread_id="other")}, ForeignThread),
    "a dispatch of another thread": ({"delivery": Delivery(dispatch=asked("n", "other"))}, ForeignThread),
    "an interrupt of what runs": (
        {"delivery": Delivery(dispatch=asked("n"), interrupt=True)},
        ActiveRunConflict,
    ),
    "a claim that is needed": (
        {
            "delivery": Delivery(
                dispatch=asked("n"), claim=ClaimRequest(consumer="w", lease_ms=1), claim_needed=True
            )
        },
        ActiveRunConflict,
    ),
    "a dispatch that exists": ({"delivery": Delivery(dispatch=asked("waiting"))}, DuplicateRecord),
    "a run with an open dispatch": (
        {"delivery": Delivery(dispatch=asked("n", run_id="run-waiting"))},
        RunNotOpen,
    ),
    "a full queue": ({"delivery": Delivery(dispatch=asked("n"), queue_cap=1)}, QueueFull),
    "events in another place": ({"events": (event("E"), event("E", prior={"thread:t": 1}))}, VersionConflict),
    "another event under a used key": ({"events": (event("E"), event("E", key="once"))}, IdempotencyConflict),
    "another event under a key of the same commit": (
        {"events": (event("E", key="a"), event("F", key="a"))},
        IdempotencyConflict,
    ),
    "another effect under a used key": (
        {"outbox": (OutboxDraft(kind="l", target="x", payload={"n": 2}, dedupe_key="k"),)},
        IdempotencyConflict,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_commit_leaves_everything_as_it_was(stores: MemoryRunStores, case: str) -> None:
    await busy_thread(stores)
    changes, error = REFUSED[case]
    before = await everything(stores)
    with pytest.raises(error):
        await stores.coordinator.commit(replace(A_LOT, **changes))
    assert await everything(stores) == before
    effects = await stores.outbox.claim("l", "x", lease_ms=1, limit=9)
    assert [one.payload for one in effects] == [{"n": 1}]


async def test_the_commit_that_the_refused_ones_vary_is_written_whole(stores: MemoryRunStores) -> None:
    proof = await busy_thread(stores)
    committed = await stores.coordinator.commit(replace(A_LOT, claim=proof))
    facts = await stores.threads.submission_facts("t", "r")
    assert (committed.message_count, facts.message_count, facts.pending) == (2, 2, ())
    assert facts.named_run == A_LOT.run
    assert facts.thread is not None
    assert (facts.thread.active_run_id, facts.thread.open_run_id, facts.open_run) == (None, None, None)
    assert await stores.threads.load_thread_state("t") == {"kept": []}
    assert [one.sequences for one in committed.events] == [{"thread:t": 2}, {"thread:t": 3}]
    assert [one.payload for one in committed.outbox] == [{"n": 2}]
    assert (committed.dispatch, committed.claimed) == (await stores.dispatches.load_dispatch("next"), None)


async def test_a_run_that_would_begin_again_is_refused(stores: MemoryRunStores) -> None:
    await stores.threads.create_run(
        RunRecord(run_id="r", thread_id="t", status=RunStatus.DONE, finished_at=1, updated_at=1)
    )
    before = await everything(stores)
    for run in (RunRecord(run_id="r", thread_id="t"), RunRecord(run_id="r", thread_id="other")):
        with pytest.raises(IllegalTransition):
            await stores.coordinator.commit(ThreadCommit(thread_id=run.thread_id, run=run))
    assert await everything(stores) == before


async def test_a_commit_after_an_interrupt_writes_nothing_and_supersedes_its_dispatch(
    stores: MemoryRunStores,
) -> None:
    proof = await busy_thread(stores)
    await stores.dispatches.interrupt("t")
    with pytest.raises(StaleClaim):
        await stores.coordinator.commit(ThreadCommit(thread_id="t", claim=proof, thread_state={"new": 1}))
    row = await stores.dispatches.load_dispatch("running")
    assert row is not None
    assert (row.status, row.last_error) == (RunDispatchStatus.SUPERSEDED, STALE_EPOCH)
    assert await stores.threads.load_thread_state("t") == {"kept": [1]}


async def test_a_claim_of_one_thread_proves_nothing_on_another(stores: MemoryRunStores) -> None:
    proof = await busy_thread(stores)
    with pytest.raises(ForeignThread):
        await stores.coordinator.commit(ThreadCommit(thread_id="other", claim=proof))
    assert await stores.threads.load_thread("other") is None


@pytest.mark.parametrize(
    ("parent", "error"), [("missing", UnknownThread), ("new", InvalidRecord), ("t", None), (None, None)]
)
async def test_a_commit_makes_the_thread_with_a_parent_that_is_there(
    stores: MemoryRunStores, parent: str | None, error: type[PostroomError] | None
) -> None:
    await busy_thread(stores)
    commit = ThreadCommit(thread_id="new", parent_thread_id=parent)
    if error is None:
        await stores.coordinator.commit(commit)
    else:
        with pytest.raises(error):
            await stores.coordinator.commit(commit)
    made = await stores.threads.load_thread("new")
    assert (made is None) == (error is not None)
    assert made is None or made.parent_thread_id == parent


async def test_an_interrupting_delivery_takes_the_place_of_what_was_queued(stores: MemoryRunStores) -> None:
    await stores.dispatches.enqueue(replace(asked("old", run_id="r"), dedupe_key="k"))
    delivery = Delivery(
        dispatch=replace(asked("new", run_id="r", available_at=10**15), dedupe_key="k"),
        interrupt=True,
        claim=ClaimRequest(consumer="w", lease_ms=5),
        claim_needed=True,
        queue_cap=1,
    )
    committed = await stores.coordinator.commit(ThreadCommit(thread_id="t", delivery=delivery))
    assert committed.interrupt is not None
    assert [one.dispatch_id for one in committed.interrupt.superseded_dispatches] == ["old"]
    assert committed.claimed is not None
    assert committed.claimed == committed.dispatch
    assert (committed.claimed.dispatch_id, committed.claimed.dispatch_epoch) == ("new", 1)


async def test_a_claiming_delivery_takes_the_oldest_that_is_due(
    stores: MemoryRunStores, clock: ManualClock
) -> None:
    await stores.dispatches.enqueue(asked("older"))
    claim = ClaimRequest(consumer="w", lease_ms=5)
    first = await stores.coordinator.commit(
        ThreadCommit(thread_id="t", delivery=Delivery(dispatch=asked("newer", created_at=1), claim=claim))
    )
    assert first.claimed is not None
    assert first.dispatch is not None
    assert (first.claimed.dispatch_id, first.dispatch.status) == ("older", QUEUED)
    second = await stores.coordinator.commit(
        ThreadCommit(thread_id="t", delivery=Delivery(dispatch=asked("newest", created_at=2), claim=claim))
    )
    assert second.claimed is None
    later = Delivery(dispatch=asked("later", "t2", available_at=clock.now() + 1), claim=claim)
    third = await stores.coordinator.commit(ThreadCommit(thread_id="t2", delivery=later))
    assert third.claimed is None


async def test_a_consumer_without_a_name_is_refused_before_anything_is_written(
    stores: MemoryRunStores,
) -> None:
    delivery = Delivery(dispatch=asked("d"), claim=ClaimRequest(consumer=" ", lease_ms=5))
    with pytest.raises(InvalidRecord):
        await stores.coordinator.commit(ThreadCommit(thread_id="t", delivery=delivery))
    assert await everything(stores) == await everything(MemoryRunStores(stores.clock))


async def test_numbering_of_messages_goes_on_after_they_were_deleted(stores: MemoryRunStores) -> None:
    await stores.coordinator.commit(
        ThreadCommit(thread_id="t", messages=(Message.user("a", id="a"), Message.user("b", id="b")))
    )
    assert await stores.threads.delete_messages("t") == 2
    assert await stores.threads.delete_messages("t") == 0
    committed = await stores.coordinator.commit(
        ThreadCommit(thread_id="t", messages=(Message.user("c", id="c"),), expected_message_count=2)
    )
    assert committed.message_count == 3
    assert [one.seq for one in await stores.threads.load_message_records("t", ["c", "a"])] == [3]


async def test_what_is_stored_does_not_change_with_what_the_caller_holds(stores: MemoryRunStores) -> None:
    state, payload, extensions = {"list": [1]}, {"list": [1]}, {"list": [1]}
    run = RunRecord(run_id="r", thread_id="t", state=PersistedState(extensions=extensions))
    draft = replace(event("E"), payload=payload)
    effect = OutboxDraft(kind="l", target="x", payload=payload)
    await stores.coordinator.commit(
        ThreadCommit(thread_id="t", run=run, thread_state=state, events=(draft,), outbox=(effect,))
    )
    for held in (state, payload, extensions):
        held["list"].append(2)
    stored = await stores.threads.load_run("r")
    assert stored is not None
    assert stored.state == PersistedState(extensions={"list": [1]})
    assert await stores.threads.load_thread_state("t") == {"list": [1]}
    assert (await stores.events.list(EventScope.thread("t"))).events[0].payload == {"list": [1]}
    assert (await stores.outbox.claim("l", "x", lease_ms=1))[0].payload == {"list": [1]}


async def test_a_pending_message_that_was_read_says_so(stores: MemoryRunStores) -> None:
    await stores.threads.append_pending("t", [Message.user("a", id="a")], DeliveryMode())
    waiting = await stores.threads.edit_pending("t", Message.user("b", id="a"), expected_revision=1)
    with pytest.raises(VersionConflict):
        await stores.threads.edit_pending("t", Message.user("c", id="a"), expected_revision=1)
    await stores.coordinator.commit(
        ThreadCommit(thread_id="t", messages=(waiting.message,), consumes=(waiting.version,))
    )
    with pytest.raises(AlreadyConsumed):
        await stores.threads.edit_pending("t", Message.user("b", id="a"))
    with pytest.raises(DuplicateRecord):
        await stores.threads.append_pending("t", [waiting.message], DeliveryMode())
    assert await stores.threads.threads_with_pending() == ()


async def test_deleting_a_thread_takes_those_below_it_only_when_asked(stores: MemoryRunStores) -> None:
    for thread_id, parent in (("a", None), ("b", "a"), ("c", "b"), ("d", "c")):
        await stores.threads.save_thread(Thread(id=thread_id, parent_thread_id=parent))
    await stores.threads.create_run(RunRecord(run_id="r", thread_id="d"))
    await stores.threads.append_pending("d", [Message.user("a", id="a")], DeliveryMode())
    assert await stores.threads.delete_thread("a")
    assert [one.id for one in await stores.threads.list_threads(ThreadQuery(parent_thread_id=""))] == ["b"]
    assert await stores.threads.delete_thread("b", children="cascade")
    assert not await stores.threads.delete_thread("b")
    assert await stores.threads.list_threads(ThreadQuery()) == ()
    assert await stores.threads.load_run("r") is None
    assert await stores.threads.latest_run("d") is None
    assert await stores.threads.pending_messages("d") == ()
    assert await stores.threads.threads_with_pending() == ()


# --- events, effects, hints, registry ----------------------------------------------------------------------


def listeners(stores: MemoryRunStores) -> dict[str, set[TopicListener]]:
    changes = stores._store.changes
    assert isinstance(changes, ChangeNotifier)
    return changes._listeners


async def test_a_reader_is_woken_by_the_next_event_of_its_scope(stores: MemoryRunStores) -> None:
    scope = EventScope.thread("t")
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waits = [group.create_task(stores.events.wait(scope, after=1)) for _ in range(2)]
        given_up = group.create_task(stores.events.wait(scope, after=5))
        await stores.events.append(event("first"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert len(listeners(stores)["thread:t"]) == 2
        await stores.coordinator.commit(ThreadCommit(thread_id="t", events=(event("second"),)))
    await stores.events.wait(scope, after=1)
    with pytest.raises(CursorAhead):
        await stores.events.list(scope, after=3)


async def test_a_reader_that_gives_up_leaves_nothing_behind(stores: MemoryRunStores) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waits = group.create_task(stores.events.wait(EventScope.run("r"), after=0))
        while EventScope.run("r").key not in listeners(stores):
            await asyncio.sleep(0)
        waits.cancel()
    assert EventScope.run("r").key not in listeners(stores)


async def test_an_effect_that_was_performed_does_not_come_back(stores: MemoryRunStores) -> None:
    await stores.outbox.enqueue(OutboxDraft(kind="l", target="x"))
    (taken,) = await stores.outbox.claim("l", "x", lease_ms=10, now=0)
    assert taken.claim_token is not None
    assert await stores.outbox.ack(taken.outbox_id, taken.claim_token, now=1)
    assert await stores.outbox.claim("l", "x", lease_ms=10, now=99) == ()


async def test_an_effect_is_claimed_once_even_for_no_time(
    stores: MemoryRunStores, clock: ManualClock
) -> None:
    for number in range(3):
        await stores.outbox.enqueue(OutboxDraft(kind="l", target="x", payload={"n": number}, max_attempts=2))
    first = await stores.outbox.claim("l", "x", lease_ms=0, limit=2)
    assert [one.payload["n"] for one in first] == [0, 1]
    second = await stores.outbox.claim("l", "x", lease_ms=0, limit=2)
    assert [(one.payload["n"], one.attempt_count) for one in second] == [(0, 2), (1, 2)]
    third = await stores.outbox.claim("l", "x", lease_ms=0, limit=2)
    assert [one.payload["n"] for one in third] == [2]
    assert await stores.outbox.nack(first[0].outbox_id, "old", error="e") is NackOutcome.LOST_CLAIM
    assert third[0].claim_token is not None
    assert await stores.outbox.ack(third[0].outbox_id, third[0].claim_token)
    clock.set(clock.now() - 1)
    assert await stores.outbox.claim("l", "x", lease_ms=1, limit=9) == ()


async def woken(news: Listener) -> bool:
    """Say whether there is a hint, and take it."""
    return await news.wait(timedelta())


async def test_whatever_may_let_something_be_claimed_is_a_hint(stores: MemoryRunStores) -> None:
    queue, news = stores.dispatches, stores._store.changes.listen(WORK)
    assert not await woken(news)
    await queue.enqueue(asked("d"))
    assert await woken(news)
    claimed = await queue.claim("t", "w", lease_ms=5)
    assert claimed is not None
    await queue.extend_lease(claimed.claim_proof, extension_ms=9)
    assert not await woken(news)
    await queue.release(claimed.claim_proof)
    assert await woken(news)
    await queue.claim_dispatch("d", "w", lease_ms=5, now=0)
    assert not await woken(news)
    await queue.reclaim_expired_leases(now=10)
    assert await woken(news)
    await queue.cancel("d")
    assert await woken(news)
    await queue.interrupt("t")
    assert await woken(news)
    await stores.coordinator.commit(ThreadCommit(thread_id="t", thread_state={}))
    assert not await woken(news)
    await stores.coordinator.commit(ThreadCommit(thread_id="t", delivery=Delivery(dispatch=asked("d2"))))
    assert await woken(news)


async def test_everybody_who_waits_for_work_is_woken(stores: MemoryRunStores) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(stores.wakeups.wait(60_000))
        await asyncio.sleep(0)
        await stores.dispatches.enqueue(asked("d"))
    assert await stores.dispatches.count_queued("t", at_most=5) == 1


async def test_a_publication_stays_as_it_was_published() -> None:
    registry = MemoryRegistryStore()
    value = {"model": "a"}
    entry = PinnedEntry(kind="agent", id="writer", version=1, value=value, content_hash="sha256:0")
    first = await registry.publish("default", (entry,))
    value["model"] = "b"
    second = await registry.publish("default", (entry,))
    assert [first.publication_id, second.publication_id] == [1, 2]
    kept = await registry.publication("default", 1)
    assert kept == first
    assert first.entries[0].value == {"model": "a"}
    assert await registry.latest("default") == second
    assert await registry.latest("other") is None
    assert [await registry.publication("default", number) for number in (0, 3, -1)] == [None] * 3


async def test_a_registry_scope_must_be_a_name() -> None:
    registry = MemoryRegistryStore()
    with pytest.raises(InvalidRecord):
        await registry.publish(" ", ())
    with pytest.raises(InvalidRecord):
        await registry.latest(" ")
