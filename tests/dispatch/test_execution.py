"""How executions end: acknowledged, tried again, given up, superseded; each end reaches the run and the queue."""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from dispatch_reading import (
    failing_queue,
    ms,
    open_rows,
    operations,
    row_of,
    rows_of,
    run_of,
    runs_ended,
    texts_of,
)
from dispatch_room import (
    AgentUnknown,
    Counting,
    Raising,
    done,
    enqueue_prepared_dispatch,
    eventually,
    prepare_queued_dispatch,
    rate_limited,
    sample_dispatch,
    unauthorized,
)
from postroom.concurrency import LONGEST_PAUSE_MS
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import StoreUnavailable
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.inference import InferenceResult
from postroom.contracts.records import replace
from postroom.contracts.run_stores import Committed, ThreadCommit
from postroom.contracts.runs import RunStatus, TerminationKind, TerminationReason
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.limits import WorkerStatus
from postroom.dispatch.mailbox import Mailbox
from postroom.dispatch.worker import DispatchAttempt
from postroom.runtime import AgentRuntime, FixedResolver, MapResolver, ResolvedAgent, ScriptedModel
from postroom.testing.run_faults import failing_changes, with_parts

DONE_CANCELLED = (RunStatus.DONE, TerminationReason.cancelled())


class LongestDelays(Random):
    """Draws the longest delay each time."""

    def randint(self, a: int, b: int) -> int:
        return b


def request(thread_id: str, text: str = "go", agent_id: str = "agent") -> RunActivation:
    return RunActivation.new(thread_id, [text], agent_id=agent_id)


def scripted(room, *answers: str) -> tuple[AgentRuntime, ScriptedModel]:
    """Return the built-in runtime with an agent that says this."""
    model = ScriptedModel([InferenceResult.text(answer) for answer in answers])
    agent = ResolvedAgent.new("agent", "m", "sys", model)
    return AgentRuntime(FixedResolver(agent), clock=room.stores.clock, timer=room.clock), model


async def started(mailbox: Mailbox, thread_id: str) -> DispatchAttempt:
    mailbox.get_or_create_worker(thread_id)
    return await mailbox.try_dispatch_next(thread_id)


async def assert_given_up(room, dead: RunDispatch, *said: str) -> None:
    """Assert that dispatch and run both say that it failed for good, and why."""
    assert dead.status is RunDispatchStatus.DEAD_LETTER
    assert dead.run_status is RunStatus.DONE
    assert dead.termination is not None
    assert dead.termination.type is TerminationKind.ERROR
    for text in said:
        for told in (dead.last_error, dead.run_error, dead.termination.value):
            assert told is not None
            assert text in told
    assert dead.completed_at is not None
    assert dead.reconciled
    run = await room.stores.threads.load_run(dead.run_id)
    if run is not None:
        assert (run.status, run.termination, run.error) == (RunStatus.DONE, dead.termination, dead.run_error)
        assert run.dispatch_id == dead.dispatch_id


async def test_reconstruct_failure_dead_letters_once_without_repolling(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-gc", "hi")
    assert await room.stores.threads.delete_messages("thread-gc") == 1

    assert await started(mailbox, "thread-gc") is DispatchAttempt.CLAIMED
    await mailbox.settled()
    dead = await row_of(room.stores, queued.dispatch_id)
    await assert_given_up(room, dead, "not found", "thread-gc/hi")
    assert (dead.attempt_count, executor.run_count) == (0, 0)

    assert await mailbox.try_dispatch_next("thread-gc") is DispatchAttempt.NO_ELIGIBLE
    await mailbox.run_sweep()
    assert await mailbox.poll() == 0
    await mailbox.settled()
    assert await row_of(room.stores, queued.dispatch_id) == dead
    assert executor.run_count == 0


async def test_permanent_inference_error_dead_letters_after_single_run(room):
    executor = unauthorized()
    mailbox = room.mailbox(executor, config=MailboxConfig(default_max_attempts=5))
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-perm", "go")

    assert await started(mailbox, "thread-perm") is DispatchAttempt.CLAIMED
    await mailbox.settled()
    dead = await row_of(room.stores, queued.dispatch_id)
    await assert_given_up(room, dead, "unauthorized", "403 pre_consume_token_quota_failed")
    assert executor.run_count == 1
    assert (dead.attempt_count, dead.max_attempts) == (0, 5)
    assert runs_ended(mailbox, "permanent_error") == 1


async def test_transient_inference_error_nacks_for_retry(room):
    executor = rate_limited()
    config = MailboxConfig(default_max_attempts=5, default_retry_delay_ms=600_000, max_retry_delay_ms=600_000)
    mailbox = room.mailbox(executor, config=config, random=LongestDelays(1))
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-transient", "go")

    assert await started(mailbox, "thread-transient") is DispatchAttempt.CLAIMED
    await mailbox.settled()
    requeued = await row_of(room.stores, queued.dispatch_id)
    assert (requeued.status, requeued.attempt_count) == (RunDispatchStatus.QUEUED, 1)
    assert requeued.available_at == room.clock.now() + 600_000
    assert requeued.last_error == "rate limited: 429 too many requests"
    assert executor.run_count == 1
    assert (await run_of(room.stores, queued.run_id)).status is RunStatus.RUNNING

    room.clock.advance(ms(600_000 - 1))
    assert await mailbox.poll() == 0
    assert await mailbox.try_dispatch_next("thread-transient") is DispatchAttempt.NO_ELIGIBLE
    assert executor.run_count == 1


async def test_reconstruct_failure_missing_run_dead_letters_once(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    queued = await prepare_queued_dispatch(mailbox, "thread-missing-run", "hi")
    await room.stores.dispatches.enqueue(replace(queued.dispatch, run_id="nonexistent-run"))

    assert await started(mailbox, "thread-missing-run") is DispatchAttempt.CLAIMED
    await mailbox.settled()
    dead = await row_of(room.stores, queued.dispatch_id)
    await assert_given_up(room, dead, "nonexistent-run", "not found")
    assert (dead.attempt_count, executor.run_count) == (0, 0)
    prepared = await run_of(room.stores, queued.run_id)
    assert prepared.status is RunStatus.CREATED, "another run's failure is not the prepared one's"


async def test_quota_storm_drains_with_bounded_work(room):
    executor = unauthorized()
    mailbox = room.mailbox(executor, config=MailboxConfig(default_max_attempts=5))
    threads = [f"storm-thread-{number}" for number in range(50)]
    queued: dict[str, str] = {}

    async def begin(thread_id: str) -> None:
        prepared = await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "go")
        queued[thread_id] = prepared.dispatch_id
        assert await started(mailbox, thread_id) is DispatchAttempt.CLAIMED

    async with asyncio.TaskGroup() as group:
        for thread_id in threads:
            group.create_task(begin(thread_id))
    await mailbox.settled()

    for thread_id in threads:
        rows = await rows_of(room.stores, thread_id)
        assert rows.keys() == {queued[thread_id]}
        assert rows[queued[thread_id]].status is RunDispatchStatus.DEAD_LETTER
        assert rows[queued[thread_id]].attempt_count == 0
        assert await open_rows(room.stores, thread_id) == ()
    asked = Counter(activation.trace.dispatch_id for activation in executor.activations)
    assert asked == Counter(dict.fromkeys(queued.values(), 1))
    counts = await room.stores.dispatches.count_by_status()
    assert {status: count for status, count in counts.items() if count} == {RunDispatchStatus.DEAD_LETTER: 50}


@pytest.mark.parametrize("plan", ["before", "after"], ids=["refused", "answer lost"])
async def test_permanent_error_recovers_from_transient_dead_letter_fault(room, plan: str):
    """The failure is written when the store is back; the run is not executed again for it."""
    counts: Counter[str] = Counter()
    executor = unauthorized()
    plans: dict[str, Any] = {plan: {"dead_letter": [True]}}
    mailbox = room.mailbox(executor, stores=failing_changes(room.stores, counts=counts, **plans))
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-dl-fault", "go")

    assert await started(mailbox, "thread-dl-fault") is DispatchAttempt.CLAIMED

    async def waits_to_try_again() -> bool:
        return operations(mailbox, "dead_letter", "error") == 1 and room.clock.sleeping == 2

    await eventually(waits_to_try_again)
    room.clock.advance(ms(LONGEST_PAUSE_MS))
    await mailbox.settled()

    dead = await row_of(room.stores, queued.dispatch_id)
    await assert_given_up(room, dead, "unauthorized")
    assert dead.attempt_count == 0
    assert executor.run_count == 1
    assert counts["dead_letter"] == 2


async def test_background_success_records_run_result_and_keeps_dispatch_id_separate_from_run_id(
    room,
):
    runtime, model = scripted(room, "finished")
    mailbox = room.mailbox(runtime)
    submitted = await mailbox.submit_background(request("thread-run-result"))
    await mailbox.settled()

    acked = await row_of(room.stores, submitted.dispatch_id)
    assert (acked.status, acked.run_status) == (RunDispatchStatus.ACKED, RunStatus.DONE)
    assert acked.run_id == submitted.run_id
    assert acked.run_id != acked.dispatch_id
    assert acked.dispatch_instance_id not in (None, acked.run_id, acked.dispatch_id)
    assert acked.termination == TerminationReason.natural_end()
    assert (acked.run_response, acked.run_error) == ("finished", None)
    assert acked.completed_at == room.clock.now()

    run = await run_of(room.stores, submitted.run_id)
    assert (run.status, run.final_output) == (RunStatus.DONE, "finished")
    assert run.termination == TerminationReason.natural_end()
    assert run.dispatch_id == submitted.dispatch_id
    assert run.session_id == acked.dispatch_instance_id
    assert await texts_of(room.stores, "thread-run-result") == ["go", "finished"]
    assert len(model.requests) == 1


@pytest.mark.parametrize("plan", ["before", "after"], ids=["refused", "answer lost"])
async def test_background_success_recovers_ack_after_result_was_recorded(room, plan: str):
    """The runtime has committed its last step; the end with the acknowledgement fails once, or its answer is lost."""
    counts: Counter[str] = Counter()
    plans: dict[str, Any] = {plan: {"end": [True]}}
    runtime, model = scripted(room, "finished")
    mailbox = room.mailbox(runtime, stores=failing_changes(room.stores, counts=counts, **plans))
    submitted = await mailbox.submit_background(request("thread-run-result-ack-recover"))

    async def waits_to_try_again() -> bool:
        return operations(mailbox, "ack", "error") == 1 and room.clock.sleeping == 2

    await eventually(waits_to_try_again)
    assert (await run_of(room.stores, submitted.run_id)).status is RunStatus.DONE
    room.clock.advance(ms(LONGEST_PAUSE_MS))
    await mailbox.settled()

    acked = await row_of(room.stores, submitted.dispatch_id)
    assert (acked.status, acked.run_status) == (RunDispatchStatus.ACKED, RunStatus.DONE)
    assert (acked.run_response, acked.attempt_count) == ("finished", 0)
    assert (await run_of(room.stores, submitted.run_id)).status is RunStatus.DONE
    assert len(model.requests) == 1
    assert counts["end"] == 2


@pytest.mark.parametrize("kind", ["runtime", "other executor"])
async def test_background_permanent_error_records_run_result_before_dead_letter(room, kind: str):
    """The result, the dead letter and the end of the run are one change."""
    changes: Counter[str] = Counter()
    executor = AgentRuntime(MapResolver({})) if kind == "runtime" else AgentUnknown()
    mailbox = room.mailbox(executor, stores=failing_changes(room.stores, counts=changes))
    submitted = await mailbox.submit_background(request("thread-missing-agent", agent_id="missing-agent"))
    await mailbox.settled()

    dead = await row_of(room.stores, submitted.dispatch_id)
    await assert_given_up(room, dead, "missing-agent")
    assert dead.run_id == submitted.run_id
    assert dead.run_id != dead.dispatch_id
    assert dead.dispatch_instance_id is not None
    assert [changes[name] for name in ("submit", "dead_letter", "reconcile")] == [1, 1, 0]


async def test_reconstruct_failure_cleans_worker_and_dispatches_next_queued(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    thread_id, now = "thread-reconstruct-next", room.clock.now()
    broken = sample_dispatch(thread_id, "missing-run", "dispatch-missing-run", now=now)
    await room.stores.dispatches.enqueue(replace(broken, priority=10))
    good = await enqueue_prepared_dispatch(
        mailbox, room.stores, thread_id, "next", priority=20, created_at=now + 1
    )

    assert await started(mailbox, thread_id) is DispatchAttempt.CLAIMED
    await mailbox.settled()
    dead = await row_of(room.stores, "dispatch-missing-run")
    await assert_given_up(room, dead, "missing-run", "not found")
    assert (await row_of(room.stores, good.dispatch_id)).status is RunDispatchStatus.ACKED
    assert [activation.trace.dispatch_id for activation in executor.activations] == [good.dispatch_id]
    assert mailbox.get_or_create_worker(thread_id).status is WorkerStatus.IDLE


async def test_reconstruct_failure_dead_letters_once_and_is_not_polled_again(room):
    counts: Counter[str] = Counter()
    executor = Counting()
    mailbox = room.mailbox(executor, stores=failing_queue(room.stores, counts=counts))
    thread_id = "thread-reconstruct-once"
    broken = sample_dispatch(thread_id, "missing-run", "dispatch-reconstruct-once", now=room.clock.now())
    await room.stores.dispatches.enqueue(broken)

    assert await started(mailbox, thread_id) is DispatchAttempt.CLAIMED
    await mailbox.settled()
    dead = await row_of(room.stores, "dispatch-reconstruct-once")
    await assert_given_up(room, dead, "missing-run", "not found")
    for _ in range(3):
        assert await mailbox.try_dispatch_next(thread_id) is DispatchAttempt.NO_ELIGIBLE
    assert counts["dead_letter"] == 1
    assert executor.run_count == 0
    assert await row_of(room.stores, "dispatch-reconstruct-once") == dead


async def test_interrupt_between_claim_and_execution_supersedes_without_runtime_start(room):
    """Where a tenant is looked at between the claim and the begin, others may interrupt between the two."""
    executor, interrupts = Counting(), []
    config = MailboxConfig(lease_ms=100, lease_renewal_interval=ms(20), max_concurrent_runs_per_tenant=1)

    class Interrupting:
        storage_identity = room.stores.coordinator.storage_identity

        async def commit(self, commit: ThreadCommit, *, now: int | None = None) -> Committed:
            if commit.begins is not None and not interrupts:
                interrupts.append(await room.stores.dispatches.interrupt(commit.thread_id))
            return await room.stores.coordinator.commit(commit, now=now)

    stores = with_parts(room.stores, coordinator=Interrupting())
    mailbox = room.mailbox(executor, stores=stores, config=config)
    result = await mailbox.submit_background(request("thread-epoch-race"))
    await mailbox.settled()

    assert len(interrupts) == 1
    assert executor.run_count == 0
    row = await row_of(room.stores, result.dispatch_id)
    assert row.status is RunDispatchStatus.SUPERSEDED
    assert (row.claim_token, row.claimed_by, row.lease_until) == (None, None, None)
    assert row.reconciled
    run = await run_of(room.stores, result.run_id)
    assert (run.status, run.termination) == DONE_CANCELLED
    assert run.dispatch_id == result.dispatch_id
    assert operations(mailbox, "record_dispatch_start", "error") == 1
    assert operations(mailbox, "mark_run_superseded") == 1
    assert runs_ended(mailbox, "superseded") == 1


@pytest.mark.parametrize("plan", ["before", "after"], ids=["refused", "answer lost"])
async def test_an_end_in_one_transaction_is_written_once_when_the_store_fails(room, plan: str):
    """What was said is there once, and nothing is executed again."""
    plans: dict[str, Any] = {plan: {"end": [True]}}
    executor = Counting()
    mailbox = room.mailbox(executor, stores=failing_changes(room.stores, **plans))
    submitted = await mailbox.submit_background(request("thread-end-once"))

    async def waits_to_try_again() -> bool:
        return operations(mailbox, "ack", "error") == 1 and room.clock.sleeping == 2

    await eventually(waits_to_try_again)
    room.clock.advance(ms(LONGEST_PAUSE_MS))
    await mailbox.settled()

    acked = await row_of(room.stores, submitted.dispatch_id)
    assert (acked.status, acked.run_status) == (RunDispatchStatus.ACKED, RunStatus.DONE)
    assert (acked.run_response, acked.attempt_count) == ("ok", 0)
    assert (await run_of(room.stores, submitted.run_id)).status is RunStatus.DONE
    assert await texts_of(room.stores, "thread-end-once") == ["go", "ok"]
    assert executor.run_count == 1
    assert runs_ended(mailbox, "completed") == 1


async def test_a_run_whose_thread_was_removed_meanwhile_is_acked_and_not_made_again(room):
    class Removing(Counting):
        async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
            await room.stores.threads.delete_thread(activation.thread_id)
            return done(activation)

    mailbox = room.mailbox(Removing())
    submitted = await mailbox.submit_background(request("thread-removed"))
    await mailbox.settled()
    row = await row_of(room.stores, submitted.dispatch_id)
    assert (row.status, row.run_response) == (RunDispatchStatus.ACKED, "ok")
    assert await room.stores.threads.load_thread("thread-removed") is None


async def test_attempts_that_are_used_up_end_in_a_dead_letter_and_tell_the_run(room):
    executor = Raising(StoreUnavailable("the executor's own database is away"))
    config = MailboxConfig(default_max_attempts=3, default_retry_delay_ms=100)
    mailbox = room.mailbox(executor, config=config, random=LongestDelays(1))
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "thread-used-up", "go")
    await started(mailbox, "thread-used-up")
    await mailbox.settled()
    for delay in (100, 200):
        row = await row_of(room.stores, queued.dispatch_id)
        assert row.available_at == room.clock.now() + delay
        room.clock.advance(ms(delay))
        assert await mailbox.poll() == 1
        await mailbox.settled()
    dead = await row_of(room.stores, queued.dispatch_id)
    assert (dead.status, dead.attempt_count) == (RunDispatchStatus.DEAD_LETTER, 3)
    run = await run_of(room.stores, queued.run_id)
    assert run.status is RunStatus.DONE
    assert run.error is not None
    assert "the executor's own database is away" in run.error
    assert executor.run_count == 3
