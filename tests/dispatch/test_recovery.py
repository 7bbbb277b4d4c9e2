"""What a mailbox takes up at its start and in its rounds: leases that ended, runs that nobody told or queued."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from dispatch_reading import ms, open_rows, operations, row_of, rows_of, run_of, runs_ended, texts_of
from dispatch_room import (
    AgentUnknown,
    Blocking,
    Counting,
    Noop,
    dispatch_in,
    enqueue_prepared_dispatch,
    eventually,
    make_run,
    prepare_queued_dispatch,
    waiting_run,
)
from postroom.contracts.activation import AdapterKind, RunActivation, RunMode, RunOrigin
from postroom.contracts.dispatch import (
    LEASE_ENDED,
    NO_ATTEMPTS_LEFT,
    OWNER_GONE,
    RunDispatch,
    RunDispatchStatus,
)
from postroom.contracts.messages import TASKS_UPDATED, Message, Role, Visibility
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    RunWaitingState,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.dispatch.config import MailboxConfig
from postroom.testing.run_faults import with_parts

NATURAL = TerminationReason.natural_end()


async def claimed_by_the_dead(room, thread_id: str, *, lease_ms: int) -> RunDispatch:
    """Have the thread's next dispatch claimed by a worker that is not heard of again."""
    claimed = await room.stores.dispatches.claim(thread_id, "crashed-consumer", lease_ms=lease_ms)
    assert claimed is not None
    assert claimed.lease_until == room.clock.now() + lease_ms
    return claimed


async def store_runs(room, runs: Sequence[RunRecord]) -> None:
    async with asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(room.stores.threads.create_run(run))


async def test_terminal_run_is_not_redispatched_by_recovery(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    ended = make_run(
        "run-done", "thread-done", RunStatus.DONE, dispatch_id="stale-dispatch-id", termination=NATURAL
    )
    await room.stores.threads.create_run(ended)

    assert await mailbox.recover() == 0
    await mailbox.settled()
    assert await room.stores.dispatches.list_dispatches("thread-done") == ()
    assert await room.stores.dispatches.load_dispatch("stale-dispatch-id") is None
    assert executor.run_count == 0
    assert await run_of(room.stores, "run-done") == ended


async def test_run_gc_auto_vacuums_old_terminal_dispatches(room):
    mailbox = room.mailbox(Counting(), config=MailboxConfig(gc_ttl=timedelta(0)))
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-gc-vacuum", "done")
    claimed = await claimed_by_the_dead(room, "thread-gc-vacuum", lease_ms=30_000)
    await room.stores.dispatches.ack(claimed.claim_proof)
    waiting = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-gc-vacuum", "next")

    await mailbox.run_gc()
    assert (await row_of(room.stores, queued.dispatch_id)).status is RunDispatchStatus.ACKED, "not older yet"
    room.clock.advance(ms(1))
    await mailbox.run_gc()
    assert await room.stores.dispatches.load_dispatch(queued.dispatch_id) is None
    assert (await row_of(room.stores, waiting.dispatch_id)).status is RunDispatchStatus.QUEUED
    assert (await run_of(room.stores, queued.run_id)).run_id == queued.run_id, (
        "the run is no queue's to remove"
    )


async def test_run_sweep_reclaims_expired_lease_and_completes_work(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-sweep-reclaim", "x")
    claimed = await claimed_by_the_dead(room, "thread-sweep-reclaim", lease_ms=100)

    room.clock.advance(ms(100))
    await mailbox.run_sweep()
    await mailbox.settled()
    assert await row_of(room.stores, queued.dispatch_id) == claimed, "owned up to its last instant"
    room.clock.advance(ms(1))
    await mailbox.run_sweep()
    await mailbox.settled()

    acked = await row_of(room.stores, queued.dispatch_id)
    assert (acked.status, acked.attempt_count) == (RunDispatchStatus.ACKED, 1)
    assert acked.last_error == LEASE_ENDED
    assert acked.run_response == "ok"
    assert [activation.attempt for activation in executor.activations] == [2]
    assert [activation.run_id for activation in executor.activations] == [queued.run_id]


async def test_start_lifecycle_runs_startup_recovery_for_existing_queued_dispatches(room):
    mailbox = room.mailbox(AgentUnknown())
    queued = await prepare_queued_dispatch(mailbox, "thread-recover", "recover me", "missing-agent")
    await room.stores.dispatches.enqueue(queued.dispatch)

    handle = mailbox.start_lifecycle()
    dead = await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    assert dead.last_error is not None
    assert "missing-agent" in dead.last_error
    assert handle.is_running
    await handle.shutdown()
    assert not handle.is_running
    await mailbox.settled()
    assert (await run_of(room.stores, queued.run_id)).status is RunStatus.DONE


async def test_start_lifecycle_reclaims_expired_claimed_dispatches_and_executes_them(room):
    executor = AgentUnknown()
    mailbox = room.mailbox(executor)
    queued = await prepare_queued_dispatch(mailbox, "thread-stale", "recover stale", "missing-agent")
    await room.stores.dispatches.enqueue(queued.dispatch)
    await claimed_by_the_dead(room, "thread-stale", lease_ms=5)
    room.clock.advance(ms(6))

    handle = mailbox.start_lifecycle()
    dead = await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.DEAD_LETTER)
    await handle.shutdown()
    assert (dead.run_status, dead.attempt_count) == (RunStatus.DONE, 1)
    assert dead.run_id == queued.run_id
    assert dead.run_id != dead.dispatch_id
    assert dead.dispatch_instance_id is not None
    assert dead.termination is not None
    assert dead.termination.type is TerminationKind.ERROR
    for told in (dead.termination.value, dead.run_error, dead.last_error):
        assert told is not None
        assert "missing-agent" in told
    assert executor.run_count == 1


async def test_multi_instance_ready_lifecycle_executes_shared_dispatch_once(room):
    one, two = Counting(), Counting()
    first = room.mailbox(one, consumer_id="consumer-a")
    second = room.mailbox(two, consumer_id="consumer-b")
    queued = await enqueue_prepared_dispatch(
        first, room.stores, "thread-multi-instance-ready", "shared startup dispatch"
    )

    async with asyncio.TaskGroup() as group:
        starts = [group.create_task(one.start_lifecycle_ready()) for one in (first, second)]
    handles = [start.result() for start in starts]
    assert all(handle.is_running for handle in handles)
    acked = await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.ACKED)
    for mailbox, handle in zip((first, second), handles, strict=True):
        await handle.shutdown()
        await mailbox.settled()
        assert not mailbox.lifecycle_is_running()
    assert acked.attempt_count == 0
    asked = [activation.trace.dispatch_id for activation in (*one.activations, *two.activations)]
    assert asked == [queued.dispatch_id]


async def test_recover_reconciles_terminal_cancelled_and_superseded_dispatches_after_crash(
    room,
):
    mailbox = room.mailbox(Counting())
    cancelled = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-reconcile-cancel", "cancel")
    superseded = await enqueue_prepared_dispatch(
        mailbox, room.stores, "thread-reconcile-supersede", "supersede"
    )
    assert await room.stores.dispatches.cancel(cancelled.dispatch_id) is not None
    await room.stores.dispatches.interrupt("thread-reconcile-supersede")
    for queued in (cancelled, superseded):
        before = await run_of(room.stores, queued.run_id)
        assert (before.status, before.dispatch_id) == (RunStatus.CREATED, queued.dispatch_id)
        assert not (await row_of(room.stores, queued.dispatch_id)).reconciled

    for _ in range(2):
        assert await mailbox.recover() == 0
        for queued in (cancelled, superseded):
            run = await run_of(room.stores, queued.run_id)
            assert (run.status, run.termination) == (RunStatus.DONE, TerminationReason.cancelled())
            assert run.dispatch_id == queued.dispatch_id
            assert (await row_of(room.stores, queued.dispatch_id)).reconciled
        assert operations(mailbox, "reconcile_terminal_dispatch") == 2, "each is told once"
        assert runs_ended(mailbox, "cancelled") == runs_ended(mailbox, "superseded") == 1
    assert operations(mailbox, "list_terminal_dispatches") >= 2
    assert operations(mailbox, "mark_run_cancelled") == operations(mailbox, "mark_run_superseded") == 1


async def test_reclaim_dead_letter_marks_run_error(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    queued = await enqueue_prepared_dispatch(
        mailbox, room.stores, "thread-reclaim-dead", "expire", max_attempts=1
    )
    await claimed_by_the_dead(room, "thread-reclaim-dead", lease_ms=100)
    room.clock.advance(ms(101))

    assert await mailbox.recover() == 1
    await mailbox.settled()
    dead = await row_of(room.stores, queued.dispatch_id)
    assert (dead.status, dead.attempt_count) == (RunDispatchStatus.DEAD_LETTER, 1)
    assert dead.last_error == NO_ATTEMPTS_LEFT.format(LEASE_ENDED)
    run = await run_of(room.stores, queued.run_id)
    assert run.status is RunStatus.DONE
    assert run.termination == TerminationReason.error(dead.last_error)
    assert run.dispatch_id == queued.dispatch_id
    assert operations(mailbox, "mark_run_dead_letter") == 1
    assert runs_ended(mailbox, "dead_letter") == 1
    assert executor.run_count == 0


async def test_sweep_reconciles_dead_letter_dispatch_after_crash(room):
    mailbox = room.mailbox(Counting())
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-sweep-reconcile-dead", "dead")
    claimed = await claimed_by_the_dead(room, "thread-sweep-reconcile-dead", lease_ms=100)
    await room.stores.dispatches.dead_letter(claimed.claim_proof, error="crashed after dead_letter")
    assert (await run_of(room.stores, queued.run_id)).status is RunStatus.CREATED

    await mailbox.run_sweep()
    run = await run_of(room.stores, queued.run_id)
    assert run.status is RunStatus.DONE
    assert run.termination == TerminationReason.error("crashed after dead_letter")
    assert run.dispatch_id == queued.dispatch_id
    assert (await row_of(room.stores, queued.dispatch_id)).reconciled


async def test_recover_only_enqueues_orphaned_background_task_waiting_runs(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    asks = RunWaitingState(reason=WaitingReason.USER_INPUT, message="waiting for user")
    user = waiting_run("run-user", "thread-user-recover", waiting=asks)
    await store_runs(room, [waiting_run("run-bg", "thread-bg-recover"), user])

    assert await mailbox.recover() == 1
    await mailbox.settled()
    assert len(executor.activations) == 1
    woken = executor.activations[0]
    assert (woken.thread_id, woken.continue_run_id) == ("thread-bg-recover", "run-bg")
    assert woken.trace.run_mode is RunMode.INTERNAL_WAKE
    assert (woken.trace.adapter, woken.trace.origin) == (AdapterKind.INTERNAL, RunOrigin.INTERNAL)
    (message,) = woken.messages
    assert (message.role, message.visibility) == (Role.USER, Visibility.INTERNAL)
    assert message.text() == TASKS_UPDATED
    assert (await run_of(room.stores, "run-bg")).status is RunStatus.DONE
    assert await room.stores.dispatches.list_dispatches("thread-user-recover") == ()
    assert await run_of(room.stores, "run-user") == user


async def test_recover_pages_orphaned_background_task_waiting_runs(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    names = [f"run-bg-page-{number}" for number in range(205)]
    await store_runs(room, [waiting_run(name, name.replace("run", "thread")) for name in names])

    assert await mailbox.recover() == 205
    await mailbox.settled()
    assert sorted(str(woken.continue_run_id) for woken in executor.activations) == sorted(names)


async def test_recover_reconstructs_dispatch_for_prepared_run_missing_wal(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    queued = await prepare_queued_dispatch(mailbox, "thread-prepared-crash", "recover me")
    dispatch_id = queued.prepared.dispatch_id
    assert await room.stores.dispatches.load_dispatch(dispatch_id) is None

    assert await mailbox.recover() == 1
    await mailbox.settled()
    row = await row_of(room.stores, dispatch_id)
    assert (row.run_id, row.thread_id) == (queued.run_id, "thread-prepared-crash")
    assert (row.status, row.attempt_count) == (RunDispatchStatus.ACKED, 0)
    assert [activation.trace.dispatch_id for activation in executor.activations] == [dispatch_id]
    assert await texts_of(room.stores, "thread-prepared-crash") == ["recover me", "ok"]
    assert await mailbox.recover() == 0


async def test_recover_reconstructs_dispatch_for_prepared_waiting_resume_missing_wal(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    asks = RunWaitingState(reason=WaitingReason.USER_INPUT, message="waiting for user input")
    await store_runs(room, [waiting_run("run-waiting-crash", "thread-waiting-crash", waiting=asks)])
    request = RunActivation.new(
        "thread-waiting-crash",
        [Message.user("resume", id="resume-1")],
        agent_id="agent",
        continue_run_id="run-waiting-crash",
    )
    prepared = await mailbox.prepare_run_for_dispatch(request)
    assert prepared.run_id == "run-waiting-crash"
    assert await room.stores.dispatches.load_dispatch(prepared.dispatch_id) is None

    assert await mailbox.recover() == 1
    await mailbox.settled()
    rows = await rows_of(room.stores, "thread-waiting-crash")
    assert rows.keys() == {prepared.dispatch_id}
    assert rows[prepared.dispatch_id].run_id == "run-waiting-crash"
    assert rows[prepared.dispatch_id].status is RunDispatchStatus.ACKED
    (resumed,) = executor.activations
    assert (resumed.continue_run_id, resumed.trace.run_mode) == ("run-waiting-crash", RunMode.RESUME)
    assert [message.text() for message in resumed.messages] == ["resume"]


async def test_recover_prepared_runs_collects_before_enqueue_to_avoid_offset_skips(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    pages = range(250)
    threads = [f"thread-prepared-page-{number}" for number in pages]
    await store_runs(
        room,
        [
            make_run(
                f"run-prepared-page-{number}",
                threads[number],
                RunStatus.CREATED,
                dispatch_id=f"dispatch-prepared-page-{number}",
            )
            for number in pages
        ],
    )

    assert await mailbox.recover_prepared_runs_missing_dispatch(threads) == 250
    for number in pages:
        row = await row_of(room.stores, f"dispatch-prepared-page-{number}")
        assert (row.run_id, row.thread_id) == (f"run-prepared-page-{number}", threads[number])
        assert row.status is RunDispatchStatus.QUEUED, "threads that are queued are looked at by others"
    assert executor.run_count == 0
    assert await mailbox.recover_prepared_runs_missing_dispatch(threads) == 0


async def test_distributed_recover_prepared_run_missing_wal_is_idempotent_across_instances(
    room,
):
    executors = [Counting() for _ in range(2)]
    mailboxes = [
        room.mailbox(executor, consumer_id=f"consumer-{number}") for number, executor in enumerate(executors)
    ]
    queued = await prepare_queued_dispatch(mailboxes[0], "thread-distributed-recover", "go")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.recover_prepared_runs_missing_dispatch()) for one in mailboxes]
    for mailbox in mailboxes:
        await mailbox.settled()
    assert sum(task.result() for task in tasks) == 1
    rows = await rows_of(room.stores, "thread-distributed-recover")
    assert rows.keys() == {queued.dispatch_id}
    assert (rows[queued.dispatch_id].run_id, rows[queued.dispatch_id].attempt_count) == (queued.run_id, 0)
    assert rows[queued.dispatch_id].status is RunDispatchStatus.ACKED
    asked = [activation.trace.dispatch_id for one in executors for activation in one.activations]
    assert asked == [queued.dispatch_id]


# Beyond the seed: windows that it leaves open.


async def test_a_dispatch_that_another_instance_writes_meanwhile_is_written_and_counted_once(room):
    class Slower:
        """Dispatches of an instance that another overtakes between its look and its write."""

        def __getattr__(self, name: str) -> Any:
            return getattr(room.stores.dispatches, name)

        async def enqueue(self, dispatch: RunDispatch) -> RunDispatch:
            counts.append(await faster.recover_prepared_runs_missing_dispatch())
            return await room.stores.dispatches.enqueue(dispatch)

    counts: list[int] = []
    executor = Counting()
    faster = room.mailbox(executor, consumer_id="faster")
    slower = room.mailbox(executor, consumer_id="slower", stores=with_parts(room.stores, dispatches=Slower()))
    queued = await prepare_queued_dispatch(faster, "thread-overtaken", "go")

    counts.append(await slower.recover_prepared_runs_missing_dispatch())
    for mailbox in (faster, slower):
        await mailbox.settled()
    assert counts == [1, 0], "the faster one, then the slower one"
    assert (await rows_of(room.stores, "thread-overtaken")).keys() == {queued.dispatch_id}
    assert executor.run_count == 1


async def test_a_run_that_waits_since_a_dispatch_that_was_purged_is_not_dispatched_again(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    asks = RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, since_dispatch_id="purged-dispatch")
    run = waiting_run("run-asks", "thread-asks", waiting=asks, dispatch_id="purged-dispatch")
    await store_runs(room, [run])
    assert await mailbox.recover() == 0
    await mailbox.settled()
    assert await rows_of(room.stores, "thread-asks") == {}
    assert (await run_of(room.stores, "run-asks"), executor.run_count) == (run, 0)


async def test_a_superseded_dispatch_does_not_end_a_run_that_another_dispatch_has_by_now(
    room,
):
    mailbox = room.mailbox(Counting())
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-owned", "go")
    await room.stores.dispatches.interrupt("thread-owned")
    run = await run_of(room.stores, queued.run_id)
    await room.stores.coordinator.commit(
        ThreadCommit(thread_id="thread-owned", run=replace(run, dispatch_id="another-dispatch"))
    )
    await mailbox.run_sweep()
    assert (await run_of(room.stores, queued.run_id)).status is RunStatus.CREATED
    assert (await row_of(room.stores, queued.dispatch_id)).reconciled


async def test_a_long_line_of_ended_leases_is_taken_back_at_once(room):
    """More leases than one page of the store holds."""
    mailbox = room.mailbox(Counting())
    threads = [f"thread-left-{number}" for number in range(130)]

    async def leave(thread_id: str) -> None:
        await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "go")
        await claimed_by_the_dead(room, thread_id, lease_ms=100)

    async with asyncio.TaskGroup() as group:
        for thread_id in threads:
            group.create_task(leave(thread_id))
    room.clock.advance(ms(101))
    assert await mailbox.recover() == 130
    await mailbox.settled()
    for thread_id in threads:
        assert await open_rows(room.stores, thread_id) == ()


async def test_a_run_that_is_being_woken_is_not_woken_by_the_recovery_of_another_mailbox(
    room,
):
    executor, other = Blocking(), Counting()
    mailbox = room.mailbox(executor)
    await store_runs(room, [waiting_run("run-woken", "thread-woken")])
    wake = RunActivation.new("thread-woken", ["news"], agent_id="agent", continue_run_id="run-woken")
    result = await mailbox.submit_background(wake)
    assert (await executor.started.get()).continue_run_id == "run-woken"
    assert await room.mailbox(other, consumer_id="other").recover() == 0
    executor.release.set()
    await mailbox.settled()
    assert (await rows_of(room.stores, "thread-woken")).keys() == {result.dispatch_id}
    assert (executor.run_count, other.run_count) == (1, 0)


async def test_a_look_for_due_work_takes_back_what_a_process_holds_that_has_surely_ended(room):
    """Not when its lease ends, nor at the next sweep. What another of that name claims later is its own."""
    executor, ended = Counting(), set[str]()
    killed = room.mailbox(Noop(), consumer_id="killed")
    prepared = await killed.prepare_run_for_dispatch(RunActivation.new("a", [Message.user("x", id="m")]))
    await room.stores.dispatches.enqueue(killed.build_dispatch(prepared.activation))
    assert await room.stores.dispatches.claim("a", "killed", lease_ms=600_000) is not None
    heir = room.mailbox(executor, consumer_id="heir", config=MailboxConfig(gone=lambda: ended))
    for count in (0, 1):
        await heir.poll()
        await heir.settled()
        assert executor.run_count == count
        ended.add("killed")
    assert executor.activations[0].attempt == 2


async def test_who_is_alone_takes_back_what_processes_hold_that_are_gone(room):
    """At once and not when their leases end; an attempt counts, and the last one ends in the dead-letter queue."""
    executor = Counting()
    for name, attempts in (("a", 2), ("b", 1)):
        gone = room.mailbox(Noop(), consumer_id=f"gone-{name}")
        asked = [Message.user("x", id="m")]
        request = RunActivation.new(name, asked).delivered(max_attempts=attempts)
        prepared = await gone.prepare_run_for_dispatch(request)
        await room.stores.dispatches.enqueue(gone.build_dispatch(prepared.activation))
        assert await room.stores.dispatches.claim(name, gone.consumer_id, lease_ms=600_000) is not None
    others = room.mailbox(executor, consumer_id="others")
    await others.recover()
    assert executor.run_count == 0
    heir = room.mailbox(executor, consumer_id="heir", config=MailboxConfig(is_exclusive=True))
    await heir.recover()
    await heir.settled()
    assert [one.thread_id for one in executor.activations] == ["a"]
    assert executor.activations[0].attempt == 2
    [dead] = await heir.dead_letters()
    assert (dead.thread_id, dead.last_error) == ("b", NO_ATTEMPTS_LEFT.format(OWNER_GONE))
    run = await room.stores.threads.load_run(dead.run_id)
    assert (run.status, run.termination.type) == (RunStatus.DONE, TerminationKind.ERROR)


@pytest.mark.parametrize("is_polled", [False, True])
async def test_a_sweep_claims_what_it_took_back_in_the_order_in_which_it_is_due(room, is_polled):
    executor = Counting()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_concurrent_runs=1))
    for thread_id, priority in (("a", 200), ("b", 100), ("c", 0)):
        await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "x", priority=priority)
        await claimed_by_the_dead(room, thread_id, lease_ms=100)
    room.clock.advance(ms(101))
    if is_polled:
        await mailbox.start_lifecycle_ready()
    else:
        await mailbox.run_sweep()

    async def all_ran():
        return executor.run_count == 3 or None

    await eventually(all_ran)
    await mailbox.settled()
    assert [one.thread_id for one in executor.activations] == ["c", "b", "a"]
