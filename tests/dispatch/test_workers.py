"""The workers of one process, the polls of a thread, and many submissions at once: one run of a thread at a time."""

import asyncio

import pytest

from dispatch.conftest import both_engines
from dispatch_room import (
    ACKED,
    CLAIMED,
    ENDED_BY_CANCEL,
    QUEUED,
    SUPERSEDED,
    AgentUnknown,
    Blocking,
    CommittingEmitting,
    Counting,
    Noop,
    ask,
    asked_for,
    done,
    enqueue_prepared_dispatch,
    make_run,
    put_to_work,
    read_to_end,
    said,
    sample_dispatch,
    seed_messages,
    until,
    waiting_run,
)
from machine import PATIENCE
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import TextDelta
from postroom.contracts.errors import ActiveRunConflict, InvalidSubmission
from postroom.contracts.messages import DeliveryMode, Message, SeqRange
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MAX_PAGE, MessageQuery, ThreadCommit
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.dispatch.completion import MailboxWorker, WorkerStatus
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.sinks import EventStream, ReconnectableEventSink
from postroom.dispatch.submission import MailboxDispatchStatus
from postroom.dispatch.worker import DispatchAttempt
from postroom.stores.memory import MemoryRunStores

NATURAL = TerminationReason.natural_end()
RUNNING = MailboxDispatchStatus.RUNNING

# Readers.


async def test_reconnect_sink_returns_false_for_idle_worker(room):
    mailbox = room.mailbox(AgentUnknown())
    mailbox.get_or_create_worker("t")
    assert mailbox.reconnect_sink("t", EventStream()) is False


async def test_reconnect_sink_returns_false_for_unknown_thread(room):
    mailbox = room.mailbox(AgentUnknown())
    assert mailbox.reconnect_sink("nonexistent", EventStream()) is False
    assert "nonexistent" not in mailbox.workers


async def test_reconnect_sink_succeeds_for_running_worker(room):
    mailbox, former, later = room.mailbox(AgentUnknown()), EventStream(), EventStream()
    sink, event = ReconnectableEventSink(former), TextDelta(delta="go on")
    put_to_work(mailbox, sample_dispatch("t", "run-fake", "dispatch-fake", now=0), sink)
    assert mailbox.reconnect_sink("t", later) is True
    await sink.emit(event)
    assert (await later.next(), await former.next()) == (event, None)


# Their end.


async def test_gc_idle_workers_removes_idle_with_no_dispatches(room):
    mailbox = room.mailbox(AgentUnknown())
    mailbox.get_or_create_worker("t")
    assert "t" in mailbox.workers
    await mailbox.gc_idle_workers()
    assert "t" not in mailbox.workers


async def test_gc_idle_workers_keeps_worker_with_queued_dispatches(room):
    mailbox = room.mailbox(Noop())
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "hi")
    worker = mailbox.get_or_create_worker("t")
    assert worker.status is WorkerStatus.IDLE
    await mailbox.gc_idle_workers()
    assert mailbox.workers.get("t") is worker
    claimed = await room.stores.dispatches.claim("t", "remote-consumer", lease_ms=30_000)
    assert claimed.dispatch_id == queued.dispatch_id
    await mailbox.gc_idle_workers()
    assert mailbox.workers.get("t") is worker
    await room.stores.dispatches.ack(claimed.claim_proof)
    await mailbox.gc_idle_workers()
    assert "t" not in mailbox.workers


async def test_gc_idle_workers_noop_when_empty(room):
    mailbox = room.mailbox(AgentUnknown())
    await mailbox.gc_idle_workers()
    assert len(mailbox.workers) == 0


# What a thread is looked at for: nothing of it is remembered from one run to the next.

SECOND = RunActivation.new("t", [Message.user("second", id="message-second")], agent_id="agent")


async def thread_with(room, run, text="first"):
    """Store a run whose thread has one message; return a mailbox that executes nothing."""
    await seed_messages(room.stores, run, Message.user(text))
    return room.mailbox(Noop())


async def said_then(room, text, run):
    """Commit a run's message after the first message."""
    messages = (Message.assistant(text, id=f"message-{text}"),)
    commit = ThreadCommit(thread_id="t", messages=messages, expected_message_count=1, run=run)
    await room.stores.coordinator.commit(commit)


async def test_thread_context_load_populates_run_cache(room):
    run = make_run("r1", "t", RunStatus.DONE)
    await thread_with(room, run)
    facts = await room.stores.threads.submission_state("t", "r1")
    assert (facts.message_count, facts.latest_run, facts.run) == (1, run, run)
    assert (await room.stores.threads.submission_state("t", "unknown")).run is None


async def test_thread_context_cache_used_by_reusable_waiting_run_id(room):
    mailbox = await thread_with(room, waiting_run("run-waiting", "t"))
    assert await mailbox.reusable_waiting_run_id("t") == "run-waiting"


async def test_thread_context_cache_updated_after_prepare_checkpoint(room):
    mailbox = await thread_with(room, make_run("run-prev", "t", RunStatus.DONE))
    prepared = await mailbox.prepare_run_for_dispatch(SECOND)
    facts = await room.stores.threads.submission_state("t", prepared.run_id)
    assert (facts.message_count, facts.latest_run, facts.run) == (2, prepared.run, prepared.run)
    assert await room.texts() == ["first", "second"]


async def test_prepare_run_falls_back_to_store_without_cache(room):
    mailbox = await thread_with(room, make_run("run-prev", "t", RunStatus.DONE))
    prepared = await mailbox.prepare_run_for_dispatch(SECOND)
    assert prepared.run_id not in ("", "run-prev")
    assert await room.texts() == ["first", "second"]
    assert "t" not in mailbox.workers


async def test_prepare_run_uses_durable_messages_when_active_cache_is_stale(room):
    active = make_run("run-active", "t", RunStatus.RUNNING)
    mailbox = await thread_with(room, active)
    await said_then(room, "active output", active)
    prepared = await mailbox.prepare_run_for_dispatch(SECOND)
    assert await room.texts() == ["first", "active output", "second"]
    assert prepared.run.input.range == SeqRange(from_seq=1, to_seq=3)


async def test_reusable_waiting_run_id_ignores_stale_worker_cache(room):
    waiting = waiting_run("run-waiting", "t")
    mailbox = await thread_with(room, waiting)
    assert await mailbox.reusable_waiting_run_id("t") == "run-waiting"
    await said_then(room, "done", waiting.ended(NATURAL, now=2))
    assert await mailbox.reusable_waiting_run_id("t") is None


async def test_reusable_waiting_run_id_returns_none_for_done_cached_run(room):
    mailbox = await thread_with(room, make_run("run-done", "t", RunStatus.DONE))
    assert await mailbox.reusable_waiting_run_id("t") is None


async def test_thread_context_cache_cleared_on_idle_transition(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.submit_background(SECOND)
    await executor.started.get()
    worker = mailbox.get_or_create_worker("t")
    assert worker.status is WorkerStatus.RUNNING
    executor.release.set()
    await mailbox.settled()
    assert worker == MailboxWorker()


async def test_mailbox_try_new_rejects_coordinator_run_store_mismatch(room):
    with pytest.raises(InvalidSubmission) as raised:
        room.mailbox(CommittingEmitting(MemoryRunStores(room.clock).coordinator))
    assert "mailbox run_store must match executor CommitCoordinator" in raised.value.describe()
    assert room.mailbox(CommittingEmitting(room.stores.coordinator)).consumer_id == "test-consumer"


# Many at once.


class OneAtATime(Blocking):
    """Holds every run until it is released, and counts how many runs of a thread were active at once."""

    def __init__(self, at_work=None):
        super().__init__()
        self.at_work = {} if at_work is None else at_work
        self.most = 0

    async def execute(self, activation, sink):
        thread_id = activation.thread_id
        self.at_work[thread_id] = self.at_work.get(thread_id, 0) + 1
        self.most = max(self.most, self.at_work[thread_id])
        self.started.put_nowait(activation)
        try:
            await self.release.wait()
            return done(activation)
        finally:
            self.at_work[thread_id] -= 1


def request(number):
    return RunActivation.new("t", [Message.user(f"msg-{number}", id=f"t/msg-{number}")], agent_id="agent")


async def assert_nothing_lost(room, instances):
    """Prepare many runs at once: each message stands once in the thread, numbered without a gap."""
    mailboxes = [room.mailbox(Noop(), consumer_id=f"consumer-{number}") for number in range(instances)]
    messages = {}

    async def prepare(number):
        prepared = await mailboxes[number % instances].prepare_run_for_dispatch(request(number))
        messages[prepared.run_id] = f"t/msg-{number}"

    async with asyncio.TaskGroup() as group:
        for number in range(32):
            group.create_task(prepare(number))
    assert len(messages) == 32, "each submission has a run of its own"
    records = await room.stores.threads.list_message_records("t", MessageQuery(limit=MAX_PAGE))
    assert [record.seq for record in records] == list(range(1, 33))
    assert sorted(record.message_id for record in records) == sorted(messages.values())
    seqs = {record.message_id: record.seq for record in records}
    for run_id, message_id in messages.items():
        run = await room.run(run_id)
        assert run.status is RunStatus.CREATED
        assert run.activation.trigger_message_ids == run.input.trigger_message_ids == (message_id,)
        assert (run.input.range.from_seq, run.input.range.to_seq) == (1, seqs[message_id])
    assert (await room.stores.threads.load_thread("t")).message_count == 32


@both_engines
async def test_concurrent_same_thread_submits_do_not_lose_messages(room):
    await assert_nothing_lost(room, 1)


@both_engines
async def test_cross_instance_concurrent_submits_do_not_lose_messages(room):
    await assert_nothing_lost(room, 4)


async def statuses(room):
    return {dispatch_id: row.status for dispatch_id, row in (await room.rows()).items()}


async def submitted_at_once(mailboxes, count):
    """Submit this many at once, to the mailboxes in turn; return the results by dispatch."""
    async with asyncio.TaskGroup() as group:
        turns = [
            mailboxes[number % len(mailboxes)].submit_background(request(number)) for number in range(count)
        ]
        tasks = [group.create_task(turn) for turn in turns]
    return {task.result().dispatch_id: task.result() for task in tasks}


@both_engines
async def test_concurrent_submit_background_same_thread_only_one_runs(room):
    executor = OneAtATime()
    mailbox = room.mailbox(executor)
    results = await submitted_at_once([mailbox], 5)
    [running] = [dispatch_id for dispatch_id, one in results.items() if one.status is RUNNING]
    assert (await executor.started.get()).trace.dispatch_id == running
    assert await statuses(room) == dict.fromkeys(results, QUEUED) | {running: CLAIMED}
    rows = await room.rows()
    assert {one: row.run_id for one, row in rows.items()} == {one: r.run_id for one, r in results.items()}
    executor.release.set()
    await mailbox.settled()
    assert await statuses(room) == dict.fromkeys(results, ACKED)
    assert (sorted(asked_for(executor)), executor.most) == (sorted(results), 1)
    assert sorted(said(executor)) == [[f"msg-{number}"] for number in range(5)]


@both_engines
async def test_background_submissions_to_two_mailboxes_never_run_a_thread_twice_at_once(room):
    at_work = {}
    executors = [OneAtATime(at_work) for _ in range(2)]
    mailboxes = [room.mailbox(one, consumer_id=f"consumer-{number}") for number, one in enumerate(executors)]
    results = await submitted_at_once(mailboxes, 10)
    assert list((await statuses(room)).values()).count(CLAIMED) == 1
    for executor in executors:
        executor.release.set()
    for mailbox in (*mailboxes, *mailboxes):
        await mailbox.settled()
        await mailbox.try_dispatch_next("t")
        await mailbox.settled()
    assert await statuses(room) == dict.fromkeys(results, ACKED)
    assert sorted(asked_for(*executors)) == sorted(results)
    assert max(executor.most for executor in executors) == 1


@both_engines
async def test_concurrent_submit_same_thread_only_one_claims(room):
    executor, accepted, refused = OneAtATime(), {}, []
    mailbox = room.mailbox(executor, config=MailboxConfig(cancel_wait_ms=60_000))

    async def submit(number):
        try:
            result, stream = await mailbox.submit(request(number))
            accepted[result.dispatch_id] = (result, stream, f"msg-{number}")
        except ActiveRunConflict:
            refused.append(number)

    async def tick():
        """Advance the time for calls that wait until another run has ended, no faster than the store works."""
        while len(accepted) + len(refused) < 3:
            await room.stores.dispatches.cancel("nothing has this id")
            room.passes(milliseconds=5)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for one in (tick(), *(submit(number) for number in range(3))):
            group.create_task(one)
    *replaced, newest = accepted
    assert await statuses(room) == dict.fromkeys(replaced, SUPERSEDED) | {newest: CLAIMED}, (
        "what was refused wrote nothing"
    )
    assert sorted(await room.texts()) == sorted(text for _, _, text in accepted.values())
    assert {result.status for result, _, _ in accepted.values()} == {RUNNING}
    for result, stream, _ in (accepted[one] for one in replaced):
        run = await room.run(result)
        assert (run.status, run.termination) == ENDED_BY_CANCEL
        assert (await read_to_end(stream))[-1].is_terminal
    executor.release.set()
    await mailbox.settled()
    assert (await room.row(newest)).status is ACKED
    assert (await room.run(accepted[newest][0])).termination == NATURAL
    assert executor.most == 1


async def test_worker_status_not_corrupted_after_empty_claim(room):
    executor = OneAtATime()
    mailbox = room.mailbox(executor)
    worker = mailbox.get_or_create_worker("t")
    assert await mailbox.try_dispatch_next("t") is DispatchAttempt.NO_ELIGIBLE
    assert worker.status is WorkerStatus.IDLE, "an empty claim leaves the worker as it was"
    submitted = await mailbox.submit_background(ask())
    assert submitted.status is RUNNING
    for _ in range(3):
        assert mailbox.get_or_create_worker("t") is worker
        state = (worker.status, worker.dispatch_id, worker.run_id)
        assert state == (WorkerStatus.RUNNING, submitted.dispatch_id, submitted.run_id)
        assert await mailbox.try_dispatch_next("t") is DispatchAttempt.BUSY
    await executor.started.get()
    executor.release.set()
    await mailbox.settled()
    assert (worker.status, worker.dispatch_id, worker.run_id) == (WorkerStatus.IDLE, None, None)
    assert await mailbox.try_dispatch_next("t") is DispatchAttempt.NO_ELIGIBLE
    assert (await mailbox.submit_background(ask())).status is RUNNING
    await mailbox.settled()
    assert executor.run_count == 2


async def test_a_submission_that_starts_an_older_dispatch_is_told_that_its_own_waits(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    older = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "older")
    room.passes(milliseconds=1)
    newer = await mailbox.submit_background(ask())
    assert newer.status is MailboxDispatchStatus.QUEUED
    await mailbox.settled()
    assert asked_for(executor) == [older.dispatch_id, newer.dispatch_id]


async def test_tries_at_the_same_time_claim_one_dispatch_once(room):
    executor = OneAtATime()
    mailbox = room.mailbox(executor)
    await enqueue_prepared_dispatch(mailbox, room.stores, "t", "a")
    mailbox.get_or_create_worker("t")
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(mailbox.try_dispatch_next("t")) for _ in range(8)]
    assert sorted(one.result() for one in tries) == [DispatchAttempt.BUSY] * 7 + [DispatchAttempt.CLAIMED]
    await until(lambda: executor.run_count)
    executor.release.set()
    await mailbox.settled()
    assert (executor.run_count, executor.most) == (1, 1)


async def test_work_that_is_queued_while_the_end_of_a_run_is_stored_starts_without_a_poll(room, monkeypatch):
    write, is_stored, goes_on = room.stores.store.write, asyncio.Event(), asyncio.Event()
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.submit_background(ask("t", "first"))
    await executor.started.get()
    mode = DeliveryMode(starts_run=True)
    await mailbox.deliver("t", [Message.user("second", id="m2")], replace(mode, group="a"))

    async def answered_late(*given, **named):
        monkeypatch.setattr(room.stores.store, "write", write)
        stored = await write(*given, **named)
        is_stored.set()
        await goes_on.wait()
        return stored

    monkeypatch.setattr(room.stores.store, "write", answered_late)
    executor.release.set()
    async with asyncio.timeout(PATIENCE):
        await is_stored.wait()
        await mailbox.deliver("t", [Message.user("third", id="m3")], replace(mode, group="b"))
        goes_on.set()
        await mailbox.settled()
    assert said(executor) == [["first"], ["second"], ["third"]]
