"""The work that a mailbox finds by itself: due runs, ended leases, runs without a hint, whatever clocks do."""

import asyncio

import pytest

from dispatch.conftest import both_engines
from dispatch_room import (
    ACKED,
    CLAIMED,
    DEAD,
    ENDED_BY_CANCEL,
    QUEUED,
    AgentUnknown,
    Blocking,
    Counting,
    Noop,
    ask,
    asked_for,
    enqueue_prepared_dispatch,
    make_run,
    operations,
    prepare_queued_dispatch,
    runs_ended,
    said,
    until,
    waiting_run,
)
from postroom.contracts.activation import AdapterKind, RunActivation, RunMode, RunOrigin
from postroom.contracts.dispatch import LEASE_ENDED, NO_ATTEMPTS_LEFT, OWNER_GONE
from postroom.contracts.messages import TASKS_UPDATED, Message, Role, Visibility
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import (
    RunStatus,
    RunWaitingState,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.dispatch.config import RECLAIM_PAGE, MailboxConfig
from postroom.testing.run_faults import with_parts

ASKS = RunWaitingState(reason=WaitingReason.USER_INPUT, message="waiting for user")


async def claimed_by_the_dead(room, thread_id="t", *, lease_ms=100, consumer="crashed-consumer"):
    """Let a worker that then disappears claim the thread's next dispatch."""
    claimed = await room.stores.dispatches.claim(thread_id, consumer, lease_ms=lease_ms)
    assert claimed.lease_until == room.clock.now() + lease_ms
    return claimed


async def place_together(room, runs):
    async with asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(room.place(run))


async def test_terminal_run_is_not_redispatched_by_recovery(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    natural = TerminationReason.natural_end()
    ended = make_run("run-done", "t", RunStatus.DONE, dispatch_id="stale-dispatch-id", termination=natural)
    await room.place(ended)
    assert await mailbox.recover() == 0
    await mailbox.settled()
    assert await room.rows() == {}
    assert await room.stores.dispatches.load_dispatch("stale-dispatch-id") is None
    assert (executor.run_count, await room.run("run-done")) == (0, ended)


async def test_run_gc_auto_vacuums_old_terminal_dispatches(room):
    mailbox = room.mailbox(Counting(), config=MailboxConfig(gc_ttl=0 * MailboxConfig().gc_ttl))
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "done")
    await room.stores.dispatches.ack((await claimed_by_the_dead(room)).claim_proof)
    waiting = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "next")
    await mailbox.run_gc()
    assert (await room.row(queued)).status is ACKED, "not older yet"
    room.passes(milliseconds=1)
    await mailbox.run_gc()
    rows = await room.rows()
    assert {dispatch_id: row.status for dispatch_id, row in rows.items()} == {waiting.dispatch_id: QUEUED}
    assert (await room.run(queued)).run_id == queued.run_id, "the run is no queue's to remove"


async def test_run_sweep_reclaims_expired_lease_and_completes_work(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "x")
    claimed = await claimed_by_the_dead(room)
    for span in (100, 1):
        assert await room.row(queued) == claimed, "owned up to its last instant"
        room.passes(milliseconds=span)
        await mailbox.run_sweep()
        await mailbox.settled()
    row = await room.row(queued)
    assert (row.status, row.attempt_count, row.last_error) == (ACKED, 1, LEASE_ENDED)
    assert row.run_response == "ok"
    assert [(one.attempt, one.run_id) for one in executor.activations] == [(2, queued.run_id)]


async def test_start_lifecycle_runs_startup_recovery_for_existing_queued_dispatches(room):
    mailbox = room.mailbox(AgentUnknown())
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "recover me")
    handle = mailbox.start_lifecycle()
    dead = await room.given_up(queued)
    assert "'agent' is not registered" in dead.last_error
    assert handle.is_running
    await handle.shutdown()
    assert not handle.is_running
    await mailbox.settled()
    assert (await room.run(queued)).status is RunStatus.DONE


async def test_start_lifecycle_reclaims_expired_claimed_dispatches_and_executes_them(room):
    executor = AgentUnknown()
    mailbox = room.mailbox(executor)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "recover stale")
    await claimed_by_the_dead(room, lease_ms=5)
    room.passes(milliseconds=6)
    handle = mailbox.start_lifecycle()
    dead = await room.given_up(queued)
    await handle.shutdown()
    assert (dead.run_status, dead.attempt_count, executor.run_count) == (RunStatus.DONE, 1, 1)
    assert dead.run_id == queued.run_id != dead.dispatch_id
    assert dead.dispatch_instance_id is not None
    assert dead.termination.type is TerminationKind.ERROR
    for told in (dead.termination.value, dead.run_error, dead.last_error):
        assert "'agent' is not registered" in told


@both_engines
async def test_multi_instance_ready_lifecycle_executes_shared_dispatch_once(room):
    executors = [Counting(), Counting()]
    mailboxes = [room.mailbox(one, consumer_id=f"consumer-{number}") for number, one in enumerate(executors)]
    queued = await enqueue_prepared_dispatch(mailboxes[0], room.stores, "t", "shared startup dispatch")
    async with asyncio.TaskGroup() as group:
        starts = [group.create_task(one.start_lifecycle_ready()) for one in mailboxes]
    handles = [start.result() for start in starts]
    assert all(handle.is_running for handle in handles)
    assert (await room.acked(queued)).attempt_count == 0
    for mailbox, handle in zip(mailboxes, handles, strict=True):
        await handle.shutdown()
        await mailbox.settled()
        assert not mailbox.lifecycle_is_running()
    assert asked_for(*executors) == [queued.dispatch_id]


async def test_recover_reconciles_terminal_cancelled_and_superseded_dispatches_after_crash(room):
    mailbox = room.mailbox(Counting())
    cancelled = await enqueue_prepared_dispatch(mailbox, room.stores, "c", "cancel")
    superseded = await enqueue_prepared_dispatch(mailbox, room.stores, "s", "supersede")
    assert await room.stores.dispatches.cancel(cancelled.dispatch_id) is not None
    await room.stores.dispatches.interrupt("s")
    for queued in (cancelled, superseded):
        before = await room.run(queued)
        assert (before.status, before.dispatch_id) == (RunStatus.CREATED, queued.dispatch_id)
        assert not (await room.row(queued)).reconciled
    for _ in range(2):
        assert await mailbox.recover() == 0
        for queued in (cancelled, superseded):
            run = await room.run(queued)
            assert ((run.status, run.termination), run.dispatch_id) == (ENDED_BY_CANCEL, queued.dispatch_id)
            assert (await room.row(queued)).reconciled
        assert operations(mailbox, "reconcile_terminal_dispatch") == 2, "each is told once"
        assert runs_ended(mailbox, "cancelled") == runs_ended(mailbox, "superseded") == 1
    assert operations(mailbox, "list_terminal_dispatches") >= 2
    assert operations(mailbox, "mark_run_cancelled") == operations(mailbox, "mark_run_superseded") == 1


async def test_reclaim_dead_letter_marks_run_error(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "expire", max_attempts=1)
    await claimed_by_the_dead(room)
    room.passes(milliseconds=101)
    assert await mailbox.recover() == 1
    await mailbox.settled()
    dead, run = await room.row(queued), await room.run(queued)
    assert (dead.status, dead.attempt_count) == (DEAD, 1)
    assert dead.last_error == NO_ATTEMPTS_LEFT.format(LEASE_ENDED)
    assert (run.status, run.termination) == (RunStatus.DONE, TerminationReason.error(dead.last_error))
    assert run.dispatch_id == queued.dispatch_id
    assert operations(mailbox, "mark_run_dead_letter") == runs_ended(mailbox, "dead_letter") == 1
    assert executor.run_count == 0


async def test_a_sweep_continues_after_a_page_of_expired_claims_whose_threads_were_interrupted(room):
    mailbox = room.mailbox(Counting())
    for number in range(RECLAIM_PAGE):
        await enqueue_prepared_dispatch(mailbox, room.stores, f"t{number}", "interrupted")
        await claimed_by_the_dead(room, f"t{number}")
        await room.stores.dispatches.interrupt(f"t{number}")
    room.passes(milliseconds=1)
    last = await enqueue_prepared_dispatch(mailbox, room.stores, "u", "lost")
    await claimed_by_the_dead(room, "u")
    room.passes(milliseconds=101)
    await mailbox.run_sweep()
    await mailbox.settled()
    assert (await room.row(last)).status is ACKED


async def test_sweep_reconciles_dead_letter_dispatch_after_crash(room):
    mailbox = room.mailbox(Counting())
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "dead")
    claimed, crash = await claimed_by_the_dead(room), "crashed after dead_letter"
    await room.stores.dispatches.dead_letter(claimed.claim_proof, error=crash)
    assert (await room.run(queued)).status is RunStatus.CREATED
    await mailbox.run_sweep()
    run = await room.run(queued)
    assert (run.status, run.termination) == (RunStatus.DONE, TerminationReason.error(crash))
    assert run.dispatch_id == queued.dispatch_id
    assert (await room.row(queued)).reconciled


async def test_recover_only_enqueues_orphaned_background_task_waiting_runs(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    user = waiting_run("run-user", "u", waiting=ASKS)
    await room.place(waiting_run("run-bg", "bg"), user)
    assert await mailbox.recover() == 1
    await mailbox.settled()
    [woken] = executor.activations
    assert (woken.thread_id, woken.continue_run_id) == ("bg", "run-bg")
    assert (woken.trace.run_mode, woken.trace.adapter) == (RunMode.INTERNAL_WAKE, AdapterKind.INTERNAL)
    assert woken.trace.origin is RunOrigin.INTERNAL
    (message,) = woken.messages
    assert (message.role, message.visibility) == (Role.USER, Visibility.INTERNAL)
    assert message.text() == TASKS_UPDATED
    assert (await room.run("run-bg")).status is RunStatus.DONE
    assert (await room.rows("u"), await room.run("run-user")) == ({}, user)


async def test_recover_pages_orphaned_background_task_waiting_runs(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    names = [f"run-bg-page-{number}" for number in range(205)]
    await place_together(room, [waiting_run(name, name.replace("run", "thread")) for name in names])
    assert await mailbox.recover() == 205
    await mailbox.settled()
    assert sorted(woken.continue_run_id for woken in executor.activations) == sorted(names)


async def test_recover_reconstructs_dispatch_for_prepared_run_missing_wal(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    queued = await prepare_queued_dispatch(mailbox, "t", "recover me")
    assert await room.rows() == {}
    assert await mailbox.recover() == 1
    await mailbox.settled()
    row = await room.row(queued.prepared)
    assert (row.run_id, row.thread_id, row.status, row.attempt_count) == (queued.run_id, "t", ACKED, 0)
    assert asked_for(executor) == [queued.prepared.dispatch_id]
    assert await room.texts() == ["recover me", "ok"]
    assert await mailbox.recover() == 0


async def test_recover_reconstructs_dispatch_for_prepared_waiting_resume_missing_wal(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    await room.place(waiting_run("w", "t", waiting=ASKS))
    request = RunActivation.new("t", [Message.user("resume", id="resume-1")], continue_run_id="w")
    prepared = await mailbox.prepare_run_for_dispatch(request)
    assert (prepared.run_id, await room.rows()) == ("w", {})
    assert await mailbox.recover() == 1
    await mailbox.settled()
    [row] = (await room.rows()).values()
    assert (row.dispatch_id, row.run_id, row.status) == (prepared.dispatch_id, "w", ACKED)
    (resumed,) = executor.activations
    assert (resumed.continue_run_id, resumed.trace.run_mode) == ("w", RunMode.RESUME)
    assert said(executor) == [["resume"]]


async def test_recover_prepared_runs_collects_before_enqueue_to_avoid_offset_skips(room):
    executor, pages = Counting(), range(250)
    mailbox = room.mailbox(executor)
    threads = [f"t{number}" for number in pages]
    created = [make_run(f"r{n}", f"t{n}", RunStatus.CREATED, dispatch_id=f"d{n}") for n in pages]
    await place_together(room, created)
    assert await mailbox.recover_prepared_runs_missing_dispatch(threads) == 250
    for number in pages:
        row = await room.row(f"d{number}")
        assert (row.run_id, row.thread_id) == (f"r{number}", f"t{number}")
        assert row.status is QUEUED, "threads that are queued are looked at by others"
    assert executor.run_count == 0
    assert await mailbox.recover_prepared_runs_missing_dispatch(threads) == 0


@both_engines
async def test_distributed_recover_prepared_run_missing_wal_is_idempotent_across_instances(room):
    executors = [Counting() for _ in range(2)]
    mailboxes = [room.mailbox(one, consumer_id=f"consumer-{number}") for number, one in enumerate(executors)]
    queued = await prepare_queued_dispatch(mailboxes[0], "t", "go")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.recover_prepared_runs_missing_dispatch()) for one in mailboxes]
    for mailbox in mailboxes:
        await mailbox.settled()
    assert sum(task.result() for task in tasks) == 1
    [row] = (await room.rows()).values()
    assert (row.dispatch_id, row.run_id) == (queued.dispatch_id, queued.run_id)
    assert (row.attempt_count, row.status) == (0, ACKED)
    assert asked_for(*executors) == [queued.dispatch_id]


# Beyond the seed: windows that it leaves open.


async def test_a_dispatch_that_another_instance_writes_meanwhile_is_written_and_counted_once(room):
    class Slower:
        """Dispatches of an instance that another overtakes between its look and its write."""

        def __getattr__(self, name):
            return getattr(room.stores.dispatches, name)

        async def enqueue(self, dispatch):
            counts.append(await faster.recover_prepared_runs_missing_dispatch())
            return await room.stores.dispatches.enqueue(dispatch)

    counts, executor = [], Counting()
    faster = room.mailbox(executor, consumer_id="faster")
    slower = room.mailbox(executor, consumer_id="slower", stores=with_parts(room.stores, dispatches=Slower()))
    queued = await prepare_queued_dispatch(faster, "t", "go")
    counts.append(await slower.recover_prepared_runs_missing_dispatch())
    for mailbox in (faster, slower):
        await mailbox.settled()
    assert counts == [1, 0], "the faster one, then the slower one"
    assert asked_for(executor) == list(await room.rows()) == [queued.dispatch_id]


async def test_a_run_that_waits_since_a_dispatch_that_was_purged_is_not_dispatched_again(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    asks = RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, since_dispatch_id="purged-dispatch")
    run = waiting_run("run-asks", "t", waiting=asks, dispatch_id="purged-dispatch")
    await room.place(run)
    assert await mailbox.recover() == 0
    await mailbox.settled()
    assert (await room.rows(), await room.run("run-asks"), executor.run_count) == ({}, run, 0)


@pytest.mark.parametrize("ends", ["cancelled", "superseded"])
async def test_a_row_that_was_ended_does_not_end_a_run_that_another_dispatch_has_by_now(room, ends):
    mailbox = room.mailbox(Counting())
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "go")
    dispatches = room.stores.dispatches
    await (dispatches.cancel(queued.dispatch_id) if ends == "cancelled" else dispatches.interrupt("t"))
    moved = replace(await room.run(queued), dispatch_id="another-dispatch")
    await room.stores.coordinator.commit(ThreadCommit(thread_id="t", run=moved))
    await mailbox.run_sweep()
    assert (await room.run(queued)).status is RunStatus.CREATED
    assert (await room.row(queued)).reconciled
    assert await dispatches.unreconciled_dispatches() == ()


async def test_a_long_line_of_ended_leases_is_taken_back_at_once(room):
    """More leases than one page of the store holds."""
    mailbox = room.mailbox(Counting())
    threads = [f"t{number}" for number in range(130)]

    async def leave(thread_id):
        await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "go")
        await claimed_by_the_dead(room, thread_id)

    async with asyncio.TaskGroup() as group:
        for thread_id in threads:
            group.create_task(leave(thread_id))
    room.passes(milliseconds=101)
    assert await mailbox.recover() == 130
    await mailbox.settled()
    assert [row.status for one in threads for row in (await room.rows(one)).values()] == [ACKED] * 130


async def test_a_run_that_is_being_woken_is_not_woken_by_the_recovery_of_another_mailbox(room):
    executor, other = Blocking(), Counting()
    mailbox = room.mailbox(executor)
    await room.place(waiting_run("w", "t"))
    result = await mailbox.submit_background(RunActivation.new("t", ["news"], continue_run_id="w"))
    assert (await executor.started.get()).continue_run_id == "w"
    assert await room.mailbox(other, consumer_id="other").recover() == 0
    executor.release.set()
    await mailbox.settled()
    assert list(await room.rows()) == [result.dispatch_id]
    assert (executor.run_count, other.run_count) == (1, 0)


async def test_a_look_for_due_work_takes_back_what_a_process_holds_that_has_surely_ended(room):
    """Not when its lease ends, nor at the next sweep. Later claims of another consumer with that name are its own."""
    executor, ended = Counting(), set()
    await enqueue_prepared_dispatch(room.mailbox(Noop(), consumer_id="killed"), room.stores, "a", "x")
    await claimed_by_the_dead(room, "a", consumer="killed", lease_ms=600_000)
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
        await enqueue_prepared_dispatch(gone, room.stores, name, "x", max_attempts=attempts)
        await claimed_by_the_dead(room, name, consumer=gone.consumer_id, lease_ms=600_000)
    await room.mailbox(executor, consumer_id="others").recover()
    assert executor.run_count == 0
    heir = room.mailbox(executor, consumer_id="heir", config=MailboxConfig(is_exclusive=True))
    await heir.recover()
    await heir.settled()
    assert [(one.thread_id, one.attempt) for one in executor.activations] == [("a", 2)]
    [dead] = await heir.dead_letters()
    assert (dead.thread_id, dead.last_error) == ("b", NO_ATTEMPTS_LEFT.format(OWNER_GONE))
    run = await room.run(dead)
    assert (run.status, run.termination.type) == (RunStatus.DONE, TerminationKind.ERROR)


@pytest.mark.parametrize("is_polled", [False, True])
async def test_a_sweep_claims_what_it_took_back_in_the_order_in_which_it_is_due(room, is_polled):
    executor = Counting()
    mailbox = room.mailbox(executor, config=MailboxConfig(max_concurrent_runs=1))
    for thread_id, priority in (("a", 200), ("b", 100), ("c", 0)):
        await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "x", priority=priority)
        await claimed_by_the_dead(room, thread_id)
    room.passes(milliseconds=101)
    await (mailbox.start_lifecycle_ready() if is_polled else mailbox.run_sweep())
    await until(lambda: executor.run_count == 3)
    await mailbox.settled()
    assert [one.thread_id for one in executor.activations] == ["c", "b", "a"]


# Time: as it passes, and as clocks that are set tell it.


async def test_a_delayed_dispatch_starts_at_its_instant_and_not_before_also_by_itself(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(ask(delay_ms=60_000))
    assert result.status == "queued"
    room.passes(milliseconds=59_999)
    assert await mailbox.poll() == 0
    room.passes(milliseconds=1)
    assert await mailbox.poll() == 1
    await room.acked(result)
    await mailbox.start_lifecycle_ready()
    later = await mailbox.submit_background(ask("later", delay_ms=60_000))
    room.passes(seconds=60)
    assert (await room.acked(later)).attempt_count == 0
    assert executor.run_count == 2


@both_engines
async def test_two_workers_correct_a_delay_once_when_the_clock_is_set_back(room):
    mailboxes = [room.mailbox(Counting(), consumer_id=name) for name in ("one", "two")]
    sent = await mailboxes[0].submit_background(ask(delay_ms=60_000))
    for hours in (0, -2):
        room.passes(hours=hours)
        for mailbox in mailboxes:
            await mailbox.poll()
    due_at = (await room.row(sent)).available_at
    assert abs(due_at - room.clock.now() - 60_000) < 30_000, "a real clock measures how far it was set back"


async def test_the_lease_of_a_dead_worker_ends_in_its_time_when_the_clock_is_set_back(room):
    mailbox, other = room.mailbox(Counting()), room.mailbox(Blocking(), consumer_id="other")
    held = await other.submit_background(ask())
    await room.comes_to(CLAIMED, held)
    await other.abandon()
    await mailbox.poll()
    room.passes(hours=-2)
    await mailbox.poll()
    room.passes(minutes=1)
    await mailbox.run_sweep()
    await room.acked(held)


async def test_a_run_that_executes_here_is_not_taken_back_when_the_clock_is_set_forward(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    sent = await mailbox.submit_background(ask())
    await executor.started.get()
    room.passes(hours=2)
    await mailbox.run_sweep()
    row = await room.row(sent)
    assert (row.attempt_count, row.interruption_count, row.status) == (0, 0, CLAIMED)
    executor.release.set()
    await room.acked(sent)
    assert executor.started.empty()
