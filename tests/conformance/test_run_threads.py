"""Promises of a thread store about threads and their hierarchy, and about runs and what points to them."""

from collections.abc import Awaitable
from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.given import refused
from conformance.promises.run_given import a_thread, run, said, waiting
from postroom.contracts.activation import (
    DeliveryOptions,
    InferenceOverride,
    RunActivationSnapshot,
    RunMode,
    RunOptions,
    RunTraceContext,
)
from postroom.contracts.errors import DuplicateRecord, InvalidRecord, UnknownThread
from postroom.contracts.messages import SeqRange
from postroom.contracts.records import replace
from postroom.contracts.run_stores import (
    BEFORE_ALL_RUNS,
    RunCursor,
    RunQuery,
    ThreadCommit,
    ThreadQuery,
    ThreadState,
)
from postroom.contracts.runs import (
    PersistedState,
    RunMessageInput,
    RunRecord,
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationReason,
    Thread,
    Usage,
    WaitingReason,
)
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume, ToolDescriptor
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock


@on_both
async def test_a_thread_reads_back_as_it_was_saved(stores: RunStores, clock: ManualClock) -> None:
    await a_thread(stores, "parent")
    saved = Thread(
        id="t: 'ü' \"x\" 100%_",
        title="A title: 'ü'",
        resource_id="resource",
        parent_thread_id="parent",
        custom={"key": [1, "two", None, {"three": 3.5}], "ü": True},
        active_run_id="r1",
        open_run_id="r2",
        latest_run_id="r3",
        latest_run_updated_at=clock.now() + 3,
        message_count=99,
        created_at=clock.now() + 1,
        updated_at=clock.now() + 2,
    )
    await stores.threads.save_thread(saved)
    assert await stores.threads.load_thread(saved.id) == replace(saved, message_count=0)
    changed = Thread(id=saved.id, title="another", created_at=5)
    await stores.threads.save_thread(changed)
    assert await stores.threads.load_thread(saved.id) == changed


async def test_a_parent_must_exist(stores: RunStores) -> None:
    with refused(UnknownThread):
        await stores.threads.save_thread(Thread(id="t", parent_thread_id="nobody"))
    assert await stores.threads.load_thread("t") is None


async def test_no_thread_is_its_own_ancestor(stores: RunStores) -> None:
    await a_thread(stores, "a")
    await a_thread(stores, "b", parent_thread_id="a")
    await a_thread(stores, "c", parent_thread_id="b")
    for below in ("b", "c"):
        with refused(InvalidRecord):
            await stores.threads.save_thread(Thread(id="a", parent_thread_id=below))
    found = await stores.threads.list_threads(ThreadQuery())
    assert [one.parent_thread_id for one in found] == [None, "a", "b"]
    await stores.threads.save_thread(Thread(id="c", parent_thread_id="a"))
    await stores.threads.save_thread(Thread(id="b", parent_thread_id="c"))


@on_both
async def test_deleting_a_thread_detaches_its_children(stores: RunStores) -> None:
    await a_thread(stores, "t")
    await a_thread(stores, "child", parent_thread_id="t")
    await a_thread(stores, "grandchild", parent_thread_id="child")
    await said(stores, "m1")
    await said(stores, "m2", thread="child")
    await waiting(stores, "p1")
    await stores.threads.create_run(run(stores))
    await stores.coordinator.commit(ThreadCommit(thread_id="t", thread_state={"k": 1}))
    assert await stores.threads.delete_thread("t")
    assert await stores.threads.load_thread("t") is None
    assert await stores.threads.load_messages("t") is None
    assert await stores.threads.pending_messages("t") == ()
    assert await stores.threads.threads_with_pending() == ()
    assert await stores.threads.load_run("r1") is None
    assert await stores.threads.latest_run("t") is None
    assert await stores.threads.load_thread_state("t") is None
    found = await stores.threads.list_threads(ThreadQuery())
    assert [(one.id, one.parent_thread_id) for one in found] == [("child", None), ("grandchild", "child")]
    assert len(await stores.threads.load_messages("child") or ()) == 1
    assert not await stores.threads.delete_thread("t")


async def test_children_may_prevent_that_a_thread_is_deleted(stores: RunStores) -> None:
    await a_thread(stores, "t")
    await a_thread(stores, "child", parent_thread_id="t")
    await said(stores, "m1")
    with refused(InvalidRecord):
        await stores.threads.delete_thread("t", children="reject")
    assert len(await stores.threads.load_messages("t") or ()) == 1
    assert await stores.threads.delete_thread("child", children="reject")
    assert await stores.threads.delete_thread("t", children="reject")


@on_both
async def test_children_may_go_with_their_thread(stores: RunStores) -> None:
    for thread, parent in (("t", None), ("a", "t"), ("b", "a"), ("c", "t"), ("other", None)):
        await a_thread(stores, thread, parent_thread_id=parent)
        await said(stores, f"m-{thread}", thread=thread)
        await stores.threads.create_run(run(stores, f"r-{thread}", thread=thread))
    assert await stores.threads.delete_thread("t", children="cascade")
    assert [one.id for one in await stores.threads.list_threads(ThreadQuery())] == ["other"]
    assert [one.run_id for one in await stores.threads.list_runs(RunQuery())] == ["r-other"]
    assert await stores.threads.load_messages("b") is None


@on_both
async def test_threads_are_listed_by_id_and_by_what_is_asked(stores: RunStores) -> None:
    for thread, parent, resource in (
        ("a_1", None, "x"),
        ("aB1", None, "y"),
        ("ab1", None, "x"),
        ("a%1", "ab1", "x"),
        ("a_2", "ab1", None),
        ("é", None, None),
    ):
        await a_thread(stores, thread, parent_thread_id=parent, resource_id=resource)

    async def found(**query: object) -> list[str]:
        return [one.id for one in await stores.threads.list_threads(ThreadQuery(**query))]

    assert await found() == ["a%1", "aB1", "a_1", "a_2", "ab1", "é"]
    assert await found(limit=2) == ["a%1", "aB1"]
    assert await found(after="aB1", limit=2) == ["a_1", "a_2"]
    assert await found(after="a_0", limit=1) == ["a_1"]
    assert await found(resource_id="x") == ["a%1", "a_1", "ab1"]
    assert await found(parent_thread_id="") == ["aB1", "a_1", "ab1", "é"]
    assert await found(parent_thread_id="ab1") == ["a%1", "a_2"]
    assert await found(parent_thread_id="nobody") == []
    assert await found(id_prefix="a_") == ["a_1", "a_2"]
    assert await found(id_prefix="a%") == ["a%1"]
    assert await found(id_prefix="aB") == ["aB1"]
    assert await found(id_prefix="é") == ["é"]
    assert await found(id_prefix="b") == []
    assert await found(id_prefix="a_", after="a_1") == ["a_2"]
    assert await found(id_prefix="a", parent_thread_id="", resource_id="x", after="a_1") == ["ab1"]


def _activation(now: int) -> RunActivationSnapshot:
    """Return what a run was started by, with every field set."""
    decision = ToolCallResume(
        decision_id="d", action=ResumeDecisionAction.CANCEL, result={"approved": False}, updated_at=now
    )
    return RunActivationSnapshot(
        thread_id="t",
        agent_id="agent",
        continue_run_id="r0",
        range=SeqRange(from_seq=1, to_seq=3),
        trigger_message_ids=("m1", "m2"),
        options=RunOptions(
            overrides=InferenceOverride(temperature=0.5, max_tokens=9),
            frontend_tools=(ToolDescriptor(id="f", name="front"),),
        ),
        trace=RunTraceContext(run_mode=RunMode.RESUME, correlation_id="c: 'ü'"),
        delivery=DeliveryOptions(priority=3, deadline_at=now, dedupe_key="k"),
        seeded_decisions=(("call", decision),),
    )


@on_both
async def test_a_run_reads_back_as_it_was_created(stores: RunStores, clock: ManualClock) -> None:
    now = clock.now()
    ticket = RunWaitingTicket(ticket_id="k", tool_call_id="call", arguments={"a": [1, None]}, updated_at=now)
    given = run(
        stores,
        agent_id="agent",
        status=RunStatus.WAITING,
        parent_run_id="r0",
        resolution_id="42",
        activation=_activation(now),
        input=RunMessageInput(
            thread_id="t", range=SeqRange(from_seq=1, to_seq=3), trigger_message_ids=("m1",)
        ),
        output_message_ids=("m4", "m5"),
        termination=TerminationReason.suspended(),
        final_output="so far",
        error="none: 'ü'",
        dispatch_id="d1",
        session_id="s",
        transport_request_id="q",
        waiting=RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,), message="may it?"),
        started_at=now + 1,
        steps=7,
        usage=Usage(input_tokens=1, output_tokens=2, cost_micros=3, wall_ms=4),
        state=PersistedState(revision=5, extensions={"x": {"y": [1, 2]}}),
    )
    await stores.threads.create_run(given)
    assert await stores.threads.load_run("r1") == given
    assert await stores.threads.latest_run("t") == given
    assert await stores.threads.list_runs(RunQuery()) == (given,)


@on_both
async def test_a_run_is_created_once(stores: RunStores, clock: ManualClock) -> None:
    first = run(stores)
    await stores.threads.create_run(first)
    thread = await stores.threads.load_thread("t")
    clock.advance(timedelta(seconds=1))
    for other in ("t", "u"):
        with refused(DuplicateRecord):
            await stores.threads.create_run(run(stores, thread=other))
    assert await stores.threads.load_run("r1") == first
    assert await stores.threads.load_thread("t") == thread
    assert await stores.threads.load_thread("u") is None


async def test_a_thread_points_to_its_runs(stores: RunStores, clock: ManualClock) -> None:

    async def pointers() -> tuple[str | None, str | None, str | None]:
        thread = await stores.threads.load_thread("t")
        return thread.active_run_id, thread.open_run_id, thread.latest_run_id

    async def become(run_id: str, status: RunStatus) -> None:
        clock.advance(timedelta(seconds=1))
        await stores.coordinator.commit(ThreadCommit(thread_id="t", run=run(stores, run_id, status=status)))

    await stores.threads.create_run(run(stores, "r1", status=RunStatus.CREATED))
    assert await pointers() == (None, "r1", "r1")
    await become("r1", RunStatus.RUNNING)
    assert await pointers() == ("r1", "r1", "r1")
    await become("r1", RunStatus.WAITING)
    assert await pointers() == (None, "r1", "r1")
    await become("r2", RunStatus.RUNNING)
    assert await pointers() == ("r2", "r2", "r2")
    await become("r1", RunStatus.DONE)
    assert await pointers() == ("r2", "r2", "r1")
    await become("r2", RunStatus.DONE)
    assert await pointers() == (None, None, "r2")


async def test_an_older_run_moves_no_pointer(stores: RunStores, clock: ManualClock) -> None:
    await stores.threads.create_run(run(stores, "r1"))
    early = clock.now() - 5
    await stores.threads.create_run(run(stores, "r0", created_at=early, updated_at=early))
    thread = await stores.threads.load_thread("t")
    assert (thread.active_run_id, thread.open_run_id, thread.latest_run_id) == ("r1", "r1", "r1")
    late_end = run(stores, "r1", status=RunStatus.DONE, updated_at=early, created_at=early)
    await stores.coordinator.commit(ThreadCommit(thread_id="t", run=late_end))
    thread = await stores.threads.load_thread("t")
    assert (thread.active_run_id, thread.open_run_id, thread.latest_run_id) == (None, None, "r1")
    assert thread.latest_run_updated_at == clock.now()


async def test_the_latest_run_is_the_newest_by_change_then_by_making(
    stores: RunStores, clock: ManualClock
) -> None:
    now = clock.now()
    for run_id, updated, created in (("a", 5, 1), ("b", 9, 2), ("c", 9, 4), ("d", 9, 3), ("e", 7, 8)):
        await stores.threads.create_run(
            run(stores, run_id, updated_at=now + updated, created_at=now + created)
        )
    await stores.threads.create_run(run(stores, "o", thread="u", updated_at=now + 99))
    latest = await stores.threads.latest_run("t")
    assert latest.run_id == "c"
    newest = await stores.threads.latest_runs("t")
    assert [one.run_id for one in newest] == ["c", "d", "b", "e", "a"]
    assert await stores.threads.latest_runs("t", limit=2) == newest[:2]
    assert await stores.threads.latest_runs("nothing") == ()


@on_both
async def test_runs_of_several_threads_come_by_their_last_change_from_any_place_on(
    stores: RunStores, clock: ManualClock
) -> None:
    now, made = clock.now(), list[RunRecord]()
    for number in range(130):
        at = now + number // 3
        thread = ("t", "u", "t", "t")[number % 4]
        made.append(
            run(stores, f"run-{number:03}", thread=thread, updated_at=at, created_at=now + number % 2)
        )
        await stores.threads.create_run(made[-1])
    await stores.threads.create_run(run(stores, "other", thread="v", updated_at=now + 99))

    def place(one: RunRecord) -> RunCursor:
        return RunCursor(one.updated_at, one.created_at, one.run_id)

    def newest(*threads: str, before: RunCursor = BEFORE_ALL_RUNS) -> Awaitable[list[RunRecord]]:
        return stores.store.read(lambda tx: list(tx.runs.threads.newest_runs(threads, before)))

    made.sort(key=place, reverse=True)
    assert await newest("t", "u", "nothing") == made
    assert await newest("u", "t", before=place(made[57])) == made[58:]
    assert await newest("u") == [one for one in made if one.thread_id == "u"]
    assert await newest() == []
    ids = [one.run_id for one in made if one.thread_id == "u"]
    for place_of, named in enumerate(ids):
        beside = await stores.store.read(lambda tx, named=named: tx.runs.threads.runs_beside(named))
        assert beside == ((*ids, "")[place_of + 1], ("", *ids)[place_of])
    assert await stores.store.read(lambda tx: tx.runs.threads.runs_beside("nothing")) == ("", "")


@on_both
async def test_runs_are_listed_by_id_and_by_what_is_asked(stores: RunStores) -> None:
    for run_id, thread, status in (
        ("a_1", "t", RunStatus.RUNNING),
        ("aB1", "t", RunStatus.DONE),
        ("ab1", "u", RunStatus.WAITING),
        ("a%1", "u", RunStatus.CREATED),
        ("a_2", "t", RunStatus.WAITING),
    ):
        await stores.threads.create_run(run(stores, run_id, thread=thread, status=status))

    async def found(**query: object) -> list[str]:
        return [one.run_id for one in await stores.threads.list_runs(RunQuery(**query))]

    assert await found() == ["a%1", "aB1", "a_1", "a_2", "ab1"]
    assert await found(limit=2, after="a%1") == ["aB1", "a_1"]
    assert await found(thread_id="t") == ["aB1", "a_1", "a_2"]
    assert await found(thread_id="nobody") == []
    assert await found(statuses=(RunStatus.WAITING, RunStatus.CREATED)) == ["a%1", "a_2", "ab1"]
    assert await found(statuses=(RunStatus.WAITING,), thread_id="u") == ["ab1"]
    assert await found(id_prefix="a_") == ["a_1", "a_2"]
    assert await found(id_prefix="ab") == ["ab1"]
    assert await found(id_prefix="a_", after="a_1", statuses=(RunStatus.WAITING,)) == ["a_2"]


@on_both
async def test_runs_are_listed_and_counted_by_the_beginning_of_their_threads_ids(stores: RunStores) -> None:
    for run_id, thread, status in (
        ("r1", "a/x", RunStatus.RUNNING),
        ("r2", "a/x", RunStatus.DONE),
        ("r3", "a/%", RunStatus.WAITING),
        ("r4", "A/x", RunStatus.WAITING),
        ("r5", "a0", RunStatus.WAITING),
        ("r0", "a/y", RunStatus.CREATED),
    ):
        await stores.threads.create_run(run(stores, run_id, thread=thread, status=status))

    async def found(**query: object) -> list[str]:
        return [one.run_id for one in await stores.threads.list_runs(RunQuery(**query))]

    assert await found(thread_prefix="a/") == ["r0", "r1", "r2", "r3"]
    open_ones = (RunStatus.CREATED, RunStatus.RUNNING, RunStatus.WAITING)
    assert await found(thread_prefix="a/", statuses=open_ones, limit=2) == ["r0", "r1"]
    assert await found(thread_prefix="a/", statuses=open_ones, after="r1") == ["r3"]
    assert await found(thread_prefix="b/", statuses=open_ones) == []
    counted = await stores.store.read(
        lambda tx: [tx.runs.threads.count_open(prefix) for prefix in ("a/", "A/", "b/", "")]
    )
    assert counted == [3, 1, 0, 5]


async def test_facts_are_what_a_submission_is_decided_on(stores: RunStores, clock: ManualClock) -> None:
    await said(stores, "m1", "m2")
    pending = await waiting(stores, "p1", "p2")
    first = run(stores, "r1")
    await stores.threads.create_run(first)
    clock.advance(timedelta(seconds=1))
    prepared = run(stores, "r2", status=RunStatus.CREATED)
    await stores.threads.create_run(prepared)
    await stores.threads.create_run(run(stores, "other", thread="u", updated_at=clock.now() + 99))
    facts = await stores.threads.submission_state("t", "r1")
    assert facts == ThreadState(
        thread=await stores.threads.load_thread("t"),
        pending=pending,
        run=first,
        open_run=prepared,
        latest_run=prepared,
        latest_started_run=first,
    )
    unnamed = await stores.threads.submission_state("t")
    assert unnamed == replace(facts, run=None)
    named = (await stores.threads.submission_state("t", "other")).run
    assert named.thread_id == "u"
