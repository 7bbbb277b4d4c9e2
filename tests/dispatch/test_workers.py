"""The workers of one process: their readers and their end, and what a thread is looked at for."""

import asyncio

import pytest

from dispatch.conftest import Room
from dispatch_room import (
    AgentUnknown,
    Blocking,
    CommittingEmitting,
    Noop,
    enqueue_prepared_dispatch,
    make_run,
    seed_messages,
    waiting_run,
)
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import TextDelta
from postroom.contracts.errors import InvalidSubmission
from postroom.contracts.messages import Message, SeqRange
from postroom.contracts.run_stores import SubmissionFacts, ThreadCommit
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.dispatch.limits import MailboxWorker, WorkerStatus
from postroom.dispatch.sinks import EventStream, ReconnectableEventSink
from postroom.stores.memory import MemoryRunStores


async def texts_of(room: Room, thread_id: str) -> list[str]:
    return [message.text() for message in await room.stores.threads.load_messages(thread_id) or ()]


async def facts_of(room: Room, thread_id: str, run_id: str | None = None) -> SubmissionFacts:
    """Look at a thread as a submission does."""
    return await room.stores.threads.submission_facts(thread_id, run_id)


def second(thread_id: str) -> RunActivation:
    return RunActivation.new(thread_id, [Message.user("second", id="message-second")], agent_id="agent")


# Readers.


async def test_reconnect_sink_returns_false_for_idle_worker(memory_room: Room) -> None:
    mailbox = memory_room.mailbox(AgentUnknown())
    mailbox.get_or_create_worker("thread-idle")
    assert mailbox.reconnect_sink("thread-idle", EventStream()) is False


async def test_reconnect_sink_returns_false_for_unknown_thread(memory_room: Room) -> None:
    mailbox = memory_room.mailbox(AgentUnknown())
    assert mailbox.reconnect_sink("nonexistent", EventStream()) is False
    assert "nonexistent" not in mailbox.workers


async def test_reconnect_sink_succeeds_for_running_worker(memory_room: Room) -> None:
    mailbox = memory_room.mailbox(AgentUnknown())
    former, later = EventStream(), EventStream()
    sink = ReconnectableEventSink(former)
    mailbox.get_or_create_worker("thread-reconnect").begin("dispatch-fake", "run-fake", "", sink)
    assert mailbox.reconnect_sink("thread-reconnect", later) is True
    event = TextDelta(delta="go on")
    await sink.emit(event)
    assert await later.next() == event
    assert await former.next() is None


# Their end.


async def test_gc_idle_workers_removes_idle_with_no_dispatches(room: Room) -> None:
    mailbox = room.mailbox(AgentUnknown())
    mailbox.get_or_create_worker("thread-gc")
    assert "thread-gc" in mailbox.workers
    await mailbox.gc_idle_workers()
    assert "thread-gc" not in mailbox.workers


async def test_gc_idle_workers_keeps_worker_with_queued_dispatches(room: Room) -> None:
    mailbox, thread_id = room.mailbox(Noop()), "thread-gc-keep"
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "hi")
    worker = mailbox.get_or_create_worker(thread_id)
    assert worker.status is WorkerStatus.IDLE
    await mailbox.gc_idle_workers()
    assert mailbox.workers.get(thread_id) is worker
    claimed = await room.stores.dispatches.claim(thread_id, "remote-consumer", lease_ms=30_000)
    assert claimed is not None
    assert claimed.dispatch_id == queued.dispatch_id
    await mailbox.gc_idle_workers()
    assert mailbox.workers.get(thread_id) is worker
    await room.stores.dispatches.ack(claimed.claim_proof)
    await mailbox.gc_idle_workers()
    assert thread_id not in mailbox.workers


async def test_gc_idle_workers_noop_when_empty(room: Room) -> None:
    mailbox = room.mailbox(AgentUnknown())
    await mailbox.gc_idle_workers()
    assert len(mailbox.workers) == 0


# What a thread is looked at for: nothing of it is remembered from one run to the next.


async def test_thread_context_load_populates_run_cache(room: Room) -> None:
    run = make_run("r1", "thread-load-test", RunStatus.DONE)
    await seed_messages(room.stores, run, Message.user("msg"))
    facts = await facts_of(room, "thread-load-test", "r1")
    assert (facts.message_count, facts.latest_run, facts.named_run) == (1, run, run)
    assert (await facts_of(room, "thread-load-test", "unknown")).named_run is None


async def test_thread_context_cache_used_by_reusable_waiting_run_id(room: Room) -> None:
    thread_id = "thread-ctx-reuse"
    await seed_messages(room.stores, waiting_run("run-waiting", thread_id), Message.user("hi"))
    mailbox = room.mailbox(Noop())
    assert await mailbox.reusable_waiting_run_id(thread_id) == "run-waiting"


async def test_thread_context_cache_updated_after_prepare_checkpoint(room: Room) -> None:
    thread_id = "thread-ctx-checkpoint"
    await seed_messages(room.stores, make_run("run-prev", thread_id, RunStatus.DONE), Message.user("first"))
    mailbox = room.mailbox(Noop())
    prepared = await mailbox.prepare_run_for_dispatch(second(thread_id))
    facts = await facts_of(room, thread_id, prepared.run_id)
    assert (facts.message_count, facts.latest_run, facts.named_run) == (2, prepared.run, prepared.run)
    assert await texts_of(room, thread_id) == ["first", "second"]


async def test_prepare_run_falls_back_to_store_without_cache(room: Room) -> None:
    thread_id = "thread-no-cache"
    await seed_messages(room.stores, make_run("run-prev", thread_id, RunStatus.DONE), Message.user("first"))
    mailbox = room.mailbox(Noop())
    prepared = await mailbox.prepare_run_for_dispatch(second(thread_id))
    assert prepared.run_id not in ("", "run-prev")
    assert await texts_of(room, thread_id) == ["first", "second"]
    assert thread_id not in mailbox.workers


async def test_prepare_run_uses_durable_messages_when_active_cache_is_stale(room: Room) -> None:
    thread_id = "thread-stale-cache"
    active = make_run("run-active", thread_id, RunStatus.RUNNING)
    await seed_messages(room.stores, active, Message.user("first"))
    mailbox = room.mailbox(Noop())
    said = Message.assistant("active output", id="message-output")
    await room.stores.coordinator.commit(
        ThreadCommit(thread_id=thread_id, messages=(said,), expected_message_count=1, run=active)
    )
    prepared = await mailbox.prepare_run_for_dispatch(second(thread_id))
    assert await texts_of(room, thread_id) == ["first", "active output", "second"]
    assert prepared.run.input is not None
    assert prepared.run.input.range == SeqRange(from_seq=1, to_seq=3)


async def test_reusable_waiting_run_id_ignores_stale_worker_cache(room: Room) -> None:
    thread_id = "thread-stale-waiting-cache"
    waiting = waiting_run("run-waiting", thread_id)
    await seed_messages(room.stores, waiting, Message.user("hi"))
    mailbox = room.mailbox(Noop())
    assert await mailbox.reusable_waiting_run_id(thread_id) == "run-waiting"
    ended = waiting.ended(TerminationReason.natural_end(), now=2)
    await room.stores.coordinator.commit(
        ThreadCommit(
            thread_id=thread_id,
            messages=(Message.assistant("done", id="message-done"),),
            expected_message_count=1,
            run=ended,
        )
    )
    assert await mailbox.reusable_waiting_run_id(thread_id) is None


async def test_reusable_waiting_run_id_returns_none_for_done_cached_run(room: Room) -> None:
    thread_id = "thread-done-run"
    await seed_messages(room.stores, make_run("run-done", thread_id, RunStatus.DONE), Message.user("hi"))
    mailbox = room.mailbox(Noop())
    assert await mailbox.reusable_waiting_run_id(thread_id) is None


async def test_thread_context_cache_cleared_on_idle_transition(room: Room) -> None:
    thread_id, executor = "thread-ctx-clear", Blocking()
    await seed_messages(room.stores, make_run("r1", thread_id, RunStatus.DONE), Message.user("hi"))
    mailbox = room.mailbox(executor)
    await mailbox.submit_background(second(thread_id))
    async with asyncio.timeout(60):
        await executor.started.get()
    worker = mailbox.get_or_create_worker(thread_id)
    assert worker.status is WorkerStatus.RUNNING
    executor.release.set()
    await mailbox.settled()
    assert worker == MailboxWorker()


# What they are put together of.


async def test_mailbox_try_new_rejects_coordinator_run_store_mismatch(room: Room) -> None:
    elsewhere = MemoryRunStores(room.clock)
    with pytest.raises(InvalidSubmission) as raised:
        room.mailbox(CommittingEmitting(elsewhere.coordinator), consumer_id="c")
    assert "mailbox run_store must match executor CommitCoordinator" in raised.value.describe()
    assert room.mailbox(CommittingEmitting(room.stores.coordinator)).consumer_id == "test-consumer"
