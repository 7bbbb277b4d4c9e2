"""How executions end: acknowledged, retried, dead-lettered, superseded; each end reaches the run and the queue."""

import asyncio
from collections import Counter
from datetime import timedelta
from random import Random

import pytest

from dispatch.conftest import both_engines
from dispatch_room import (
    ACKED,
    CLAIMED,
    DEAD,
    ENDED_BY_CANCEL,
    QUEUED,
    SUPERSEDED,
    AgentUnknown,
    Blocking,
    Counting,
    Deaf,
    Longest,
    Raising,
    ask,
    asked_for,
    done,
    enqueue_prepared_dispatch,
    eventually,
    ms,
    operations,
    prepare_queued_dispatch,
    rate_limited,
    runs_ended,
    said,
    sample_dispatch,
    unauthorized,
    waiting_run,
)
from log_lines import capture_logs
from machine import PATIENCE
from postroom.concurrency import MAX_PAUSE_MS
from postroom.contracts import errors
from postroom.contracts.activation import Recovery
from postroom.contracts.dispatch import RunDispatchResult
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.inference import InferenceResult
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import (
    RunStatus,
    RunWaitingState,
    TerminationKind,
    TerminationReason,
    WaitingReason,
)
from postroom.dispatch.completion import WorkerStatus
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.worker import DispatchAttempt
from postroom.runtime import AgentRuntime, FixedResolver, MapResolver, ResolvedAgent, ScriptedModel
from postroom.testing.run_faults import failing_changes, with_parts

NATURAL = TerminationReason.natural_end()


def scripted(room, *answers):
    """Return the built-in runtime with an agent that says this."""
    model = ScriptedModel([InferenceResult.text(answer) for answer in answers])
    agent = ResolvedAgent.new("agent", "m", "sys", model)
    return AgentRuntime(FixedResolver(agent), clock=room.stores.clock, timer=room.clock), model


async def executed(room, mailbox, thread_id="t"):
    """Execute the queued runs of a thread."""
    mailbox.get_or_create_worker(thread_id)
    assert await mailbox.try_dispatch_next(thread_id) is DispatchAttempt.CLAIMED
    await mailbox.settled()


async def assert_given_up(room, of, *texts):
    """Assert that dispatch and run both report a final failure and its reason; return the dispatch."""
    dead = await room.row(of)
    assert (dead.status, dead.run_status, dead.reconciled) == (DEAD, RunStatus.DONE, True)
    assert dead.termination.type is TerminationKind.ERROR
    assert dead.completed_at is not None
    for told in (dead.last_error, dead.run_error, dead.termination.value):
        assert all(text in told for text in texts)
    run = await room.stores.threads.load_run(dead.run_id)
    if run is not None:
        assert (run.status, run.termination, run.error) == (RunStatus.DONE, dead.termination, dead.run_error)
        assert run.dispatch_id == dead.dispatch_id
    return dead


async def fails_once(room, mailbox, operation):
    """Return when the store has failed an execution's last change once, and has come back."""

    async def waits_to_try_again():
        return operations(mailbox, operation, "error") == 1 and room.clock.sleeping == 2

    await eventually(waits_to_try_again)
    room.passes(milliseconds=MAX_PAUSE_MS)
    await mailbox.settled()


async def test_reconstruct_failure_dead_letters_once_without_repolling(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "hi")
    assert await room.stores.threads.delete_messages("t") == 1
    await executed(room, mailbox)
    dead = await assert_given_up(room, queued, "not found", "t/hi")
    assert await mailbox.try_dispatch_next("t") is DispatchAttempt.NO_ELIGIBLE
    await mailbox.run_sweep()
    assert await mailbox.poll() == 0
    await mailbox.settled()
    assert await room.row(queued) == dead
    assert (dead.attempt_count, executor.run_count) == (0, 0)


async def test_permanent_inference_error_dead_letters_after_single_run(room):
    executor = unauthorized()
    mailbox = room.mailbox(executor, config=MailboxConfig(default_max_attempts=5))
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "go")
    await executed(room, mailbox)
    dead = await assert_given_up(room, queued, "unauthorized", "403 pre_consume_token_quota_failed")
    assert (executor.run_count, dead.attempt_count, dead.max_attempts) == (1, 0, 5)
    assert runs_ended(mailbox, "permanent_error") == 1


async def test_transient_inference_error_nacks_for_retry(room):
    executor = rate_limited()
    config = MailboxConfig(default_max_attempts=5, default_retry_delay_ms=600_000, max_retry_delay_ms=600_000)
    mailbox = room.mailbox(executor, config=config, random=Longest())
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "go")
    await executed(room, mailbox)
    row = await room.row(queued)
    assert (row.status, row.attempt_count) == (QUEUED, 1)
    assert row.available_at == room.clock.now() + 600_000
    assert row.last_error == "rate limited: 429 too many requests"
    assert (await room.run(queued)).status is RunStatus.RUNNING
    room.passes(milliseconds=600_000 - 1)
    assert await mailbox.poll() == 0
    assert await mailbox.try_dispatch_next("t") is DispatchAttempt.NO_ELIGIBLE
    assert executor.run_count == 1


async def test_reconstruct_failure_missing_run_dead_letters_once(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    queued = await prepare_queued_dispatch(mailbox, "t", "hi")
    await room.stores.dispatches.enqueue(replace(queued.dispatch, run_id="nonexistent-run"))
    await executed(room, mailbox)
    dead = await assert_given_up(room, queued, "nonexistent-run", "not found")
    assert (dead.attempt_count, executor.run_count) == (0, 0)
    assert (await room.run(queued)).status is RunStatus.CREATED, (
        "another run's failure is not the prepared one's"
    )


async def test_quota_storm_drains_with_bounded_work(room):
    executor = unauthorized()
    mailbox = room.mailbox(executor, config=MailboxConfig(default_max_attempts=5))
    queued = {}

    async def begin(thread_id):
        queued[thread_id] = (
            await enqueue_prepared_dispatch(mailbox, room.stores, thread_id, "go")
        ).dispatch_id
        mailbox.get_or_create_worker(thread_id)
        assert await mailbox.try_dispatch_next(thread_id) is DispatchAttempt.CLAIMED

    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(begin(f"storm-thread-{number}"))
    await mailbox.settled()
    for thread_id, dispatch_id in queued.items():
        [row] = (await room.rows(thread_id)).values()
        assert (row.dispatch_id, row.status, row.attempt_count) == (dispatch_id, DEAD, 0)
    assert Counter(asked_for(executor)) == Counter(queued.values())
    counts = await room.stores.dispatches.count_by_status()
    assert {status: count for status, count in counts.items() if count} == {DEAD: 50}


@pytest.mark.parametrize("plan", ["before", "after"], ids=["refused", "answer lost"])
async def test_permanent_error_recovers_from_transient_dead_letter_fault(room, plan):
    """The failure is written when the store is back; the run is not executed again for it."""
    counts, executor = Counter(), unauthorized()
    stores = failing_changes(room.stores, counts=counts, **{plan: {"dead_letter": [True]}})
    mailbox = room.mailbox(executor, stores=stores)
    queued = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "go")
    mailbox.get_or_create_worker("t")
    assert await mailbox.try_dispatch_next("t") is DispatchAttempt.CLAIMED
    await fails_once(room, mailbox, "dead_letter")
    dead = await assert_given_up(room, queued, "unauthorized")
    assert (dead.attempt_count, executor.run_count, counts["dead_letter"]) == (0, 1, 2)


@both_engines
async def test_background_success_records_run_result_and_keeps_dispatch_id_separate_from_run_id(room):
    runtime, model = scripted(room, "finished")
    mailbox = room.mailbox(runtime)
    submitted = await mailbox.submit_background(ask(agent_id="agent"))
    await mailbox.settled()
    row, run = await room.row(submitted), await room.run(submitted)
    assert (row.status, row.run_status, row.run_id) == (ACKED, RunStatus.DONE, submitted.run_id)
    assert len({row.run_id, row.dispatch_id, row.dispatch_instance_id, None}) == 4
    assert (row.termination, row.run_response, row.run_error) == (NATURAL, "finished", None)
    assert row.completed_at == room.clock.now()
    assert (run.status, run.final_output, run.termination) == (RunStatus.DONE, "finished", NATURAL)
    assert (run.dispatch_id, run.session_id) == (submitted.dispatch_id, row.dispatch_instance_id)
    assert await room.texts() == ["go", "finished"]
    assert len(model.requests) == 1


@pytest.mark.parametrize("plan", ["before", "after"], ids=["refused", "answer lost"])
@pytest.mark.parametrize("kind", ["runtime", "other executor"])
async def test_background_success_recovers_ack_after_result_was_recorded(room, plan, kind):
    """The end with the acknowledgement fails once, or its answer is lost; a runtime has committed its last step before."""
    counts = Counter()
    runtime, model = scripted(room, "ok")
    executor = Counting()
    stores = failing_changes(room.stores, counts=counts, **{plan: {"end": [True]}})
    mailbox = room.mailbox(runtime if kind == "runtime" else executor, stores=stores)
    submitted = await mailbox.submit_background(ask(agent_id="agent"))
    await fails_once(room, mailbox, "ack")
    row = await room.row(submitted)
    assert (row.status, row.run_status, row.run_response) == (ACKED, RunStatus.DONE, "ok")
    assert (row.attempt_count, (await room.run(submitted)).status) == (0, RunStatus.DONE)
    assert await room.texts() == ["go", "ok"]
    assert len(model.requests) + executor.run_count == 1
    assert (counts["end"], runs_ended(mailbox, "completed")) == (2, 1)


@pytest.mark.parametrize("kind", ["runtime", "other executor"])
async def test_background_permanent_error_records_run_result_before_dead_letter(room, kind):
    """The result, the dead letter and the end of the run are one change."""
    changes = Counter()
    executor = AgentRuntime(MapResolver({})) if kind == "runtime" else AgentUnknown()
    mailbox = room.mailbox(executor, stores=failing_changes(room.stores, counts=changes))
    submitted = await mailbox.submit_background(ask(agent_id="missing-agent"))
    await mailbox.settled()
    dead = await assert_given_up(room, submitted, "missing-agent")
    assert dead.run_id == submitted.run_id != dead.dispatch_id
    assert dead.dispatch_instance_id is not None
    assert [changes[name] for name in ("submit", "dead_letter", "reconcile")] == [1, 1, 0]


async def test_reconstruct_failure_cleans_worker_and_dispatches_next_queued(room):
    executor, now = Counting(), room.clock.now()
    mailbox = room.mailbox(executor)
    await room.stores.dispatches.enqueue(
        replace(sample_dispatch("t", "missing-run", "broken", now=now), priority=10)
    )
    good = await enqueue_prepared_dispatch(mailbox, room.stores, "t", "next", priority=20, created_at=now + 1)
    await executed(room, mailbox)
    await assert_given_up(room, "broken", "missing-run", "not found")
    assert (await room.row(good)).status is ACKED
    assert asked_for(executor) == [good.dispatch_id]
    assert mailbox.get_or_create_worker("t").status is WorkerStatus.IDLE


async def test_reconstruct_failure_dead_letters_once_and_is_not_polled_again(room):
    counts, executor = Counter(), Counting()
    mailbox = room.mailbox(executor, stores=failing_changes(room.stores, counts=counts))
    await room.stores.dispatches.enqueue(sample_dispatch("t", "missing-run", "broken", now=room.clock.now()))
    await executed(room, mailbox)
    dead = await assert_given_up(room, "broken", "missing-run", "not found")
    for _ in range(3):
        assert await mailbox.try_dispatch_next("t") is DispatchAttempt.NO_ELIGIBLE
    assert (counts["dead_letter"], executor.run_count) == (1, 0)
    assert await room.row("broken") == dead


async def test_interrupt_between_claim_and_execution_supersedes_without_runtime_start(room):
    """If a tenant is read between the claim and the begin, others may interrupt between the two."""
    executor, interrupts = Counting(), []
    config = MailboxConfig(lease_ms=100, lease_renewal_interval=ms(20), max_concurrent_runs_per_tenant=1)

    class Interrupting:
        storage_identity = room.stores.coordinator.storage_identity

        async def commit(self, commit, *, now=None):
            if commit.begins is not None and not interrupts:
                interrupts.append(await room.stores.dispatches.interrupt(commit.thread_id))
            return await room.stores.coordinator.commit(commit, now=now)

    mailbox = room.mailbox(
        executor, stores=with_parts(room.stores, coordinator=Interrupting()), config=config
    )
    result = await mailbox.submit_background(ask())
    await mailbox.settled()
    assert (len(interrupts), executor.run_count) == (1, 0)
    row, run = await room.row(result), await room.run(result)
    assert (row.status, row.claim_token, row.claimed_by, row.lease_until) == (SUPERSEDED, None, None, None)
    assert row.reconciled
    assert ((run.status, run.termination), run.dispatch_id) == (ENDED_BY_CANCEL, result.dispatch_id)
    assert operations(mailbox, "record_dispatch_start", "error") == 1
    assert operations(mailbox, "mark_run_superseded") == runs_ended(mailbox, "superseded") == 1


async def test_a_run_whose_thread_was_removed_meanwhile_is_acked_and_not_made_again(room):
    class Removing(Deaf):
        async def execute(self, activation, sink):
            await room.stores.threads.delete_thread(activation.thread_id)
            return done(activation)

    mailbox = room.mailbox(Removing())
    submitted = await mailbox.submit_background(ask())
    await mailbox.settled()
    row = await room.row(submitted)
    assert (row.status, row.run_response) == (ACKED, "ok")
    assert await room.stores.threads.load_thread("t") is None


# Executors that do what none should.


class Odd(Deaf):
    """Does something odd: raises it, or returns it."""

    def __init__(self, oddity):
        super().__init__()
        self._oddity = oddity

    async def execute(self, activation, sink):
        if isinstance(self._oddity, BaseException):
            raise self._oddity
        return self._oddity


class NoCoroutine(Deaf):
    def run(self, activation, sink):
        raise TypeError("not even a coroutine")


class FailsBeforeItRuns(Counting):
    def commits_steps(self, thread_id):
        raise ZeroDivisionError("a bug in an executor's other methods")


ODD = [
    Odd(ValueError("value")),
    Odd(KeyboardInterrupt("stop")),
    Odd(SystemExit(3)),
    Odd(asyncio.CancelledError("by itself")),
    Odd(BaseException("bare")),
    Odd(GeneratorExit()),
    Odd(RecursionError("deep")),
    Odd(MemoryError()),
    Odd(ExceptionGroup("many", [ValueError("one"), TypeError("two")])),
    Odd(StopAsyncIteration()),
    NoCoroutine(),
    FailsBeforeItRuns(),
]


@pytest.mark.parametrize("executor", ODD, ids=range(len(ODD)))
async def test_whatever_an_executor_raises_is_tried_again_and_given_up_in_the_end(room, executor):
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(ask(max_attempts=2))
    await room.failed(mailbox, result)
    room.passes(minutes=1)
    await mailbox.poll()
    row = await room.given_up(result)
    await mailbox.settled()
    run = await room.run(result)
    assert (row.attempt_count, run.status, run.termination.type) == (2, RunStatus.DONE, TerminationKind.ERROR)
    assert row.last_error
    assert row.last_error in run.termination.value
    await room.acked(await room.mailbox(Counting()).submit_background(ask("t", "go on")))


@pytest.mark.parametrize("oddity", [None, "done", 42, {"run_id": "r"}], ids=repr)
async def test_an_executor_that_returns_no_result_is_given_up_at_once(room, oddity):
    mailbox = room.mailbox(Odd(oddity))
    result = await mailbox.submit_background(ask())
    assert type(oddity).__name__ in (await room.given_up(result)).last_error
    await mailbox.settled()
    assert (await room.run(result)).status is RunStatus.DONE


@both_engines
async def test_half_characters_of_an_executor_are_stored_as_question_marks(room):
    class Half(Deaf):
        async def execute(self, activation, sink):
            if activation.thread_id == "raises":
                raise OSError("no file \udcff")
            return AgentRunResult(run_id=activation.run_id, response="caf\ud800")

    mailbox = room.mailbox(Half())
    assert (await room.acked(await mailbox.submit_background(ask("says")))).run_response == "caf?"
    raised = await mailbox.submit_background(ask("raises", max_attempts=1))
    assert (await room.given_up(raised)).last_error == "OSError: no file ?"


# A run that was cut off is executed again from its checkpoint; one that was finished is not.


class OneStepThenCut(Deaf):
    """Commits a step on its first execution and is cut off; ends well on its second."""

    def __init__(self, says):
        super().__init__()
        self._says = says

    def recovery(self, activation):
        return self._says

    async def execute(self, activation, sink):
        if self.run_count > 1:
            return done(activation)
        run = await activation.control.threads.load_run(activation.run_id)
        await activation.control.coordinator.commit(
            ThreadCommit(
                thread_id=activation.thread_id,
                messages=(Message.assistant("half way", id=f"{activation.run_id}/half"),),
                expected_message_count=1,
                run=replace(run, status=RunStatus.RUNNING, steps=1),
            )
        )
        raise errors.ExecutorFailed("the process was cut off")


@pytest.mark.parametrize("says", [Recovery.RESUME, Recovery.RESTART])
async def test_a_run_past_its_first_step_goes_on_as_its_executor_says_and_comes_to_its_end(room, says):
    executor = OneStepThenCut(says)
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(ask())
    await room.failed(mailbox, result)
    room.passes(seconds=30)
    await mailbox.poll()
    row, run = await room.acked(result), await room.run(result)
    first, second = executor.activations
    assert (first.attempt, first.recovery) == (1, Recovery.START)
    assert (second.attempt, second.recovery) == (2, says)
    assert second.run_id == first.run_id
    assert (run.status, run.steps, row.run_status) == (RunStatus.DONE, 1, RunStatus.DONE)


async def claimed_by_the_dead(room, mailbox):
    """Return a submission whose run is claimed by a process that dies, its claim, and its run."""
    result = await mailbox.submit_background(ask(delay_ms=1))
    room.passes(milliseconds=1)
    claimed = await room.stores.dispatches.claim("t", "dead", lease_ms=100)
    return result, claimed, await room.run(result)


async def test_a_run_that_ended_is_not_executed_again_when_its_acknowledgement_was_lost(room):
    """The process died after the run's end was written: the dispatch comes again and finds it settled."""
    executor = Counting()
    mailbox = room.mailbox(executor)
    result, claimed, run = await claimed_by_the_dead(room, mailbox)
    ended = replace(run.ended(NATURAL, now=room.clock.now()), final_output="said before")
    await room.stores.coordinator.commit(ThreadCommit(thread_id="t", run=ended, claim=claimed.claim_proof))
    room.passes(milliseconds=101)
    await mailbox.run_sweep()
    row = await room.acked(result)
    assert (executor.run_count, row.run_response) == (0, "said before")
    assert (row.attempt_count, row.interruption_count) == (0, 1)


async def test_a_run_that_begins_and_ends_while_claims_are_read_is_not_given_back(room, monkeypatch):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    read = room.stores.store.read

    async def slow(look):
        """Read while a run executes, and answer after its end."""
        monkeypatch.setattr(room.stores.store, "read", read)
        result = await mailbox.submit_background(ask())
        await executor.started.get()
        found = await read(look)
        executor.release.set()
        await room.acked(result)
        return found

    monkeypatch.setattr(room.stores.store, "read", slow)
    with capture_logs() as lines:
        await mailbox.release_unexecuted_claims()
    assert [line for line in lines if line["log_level"] == "warning"] == []
    assert [line["event"] for line in lines if line["event"] == "dispatch.lost"] == []


async def test_a_run_that_came_to_wait_is_not_resumed_by_its_own_lost_acknowledgement(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    result, claimed, run = await claimed_by_the_dead(room, mailbox)
    await room.stores.dispatches.record_dispatch_start(claimed.claim_proof, "instance")
    waiting = RunWaitingState(reason=WaitingReason.BACKGROUND_TASKS, since_dispatch_id=result.dispatch_id)
    waits = replace(run, status=RunStatus.WAITING, waiting=waiting)
    await room.stores.coordinator.commit(ThreadCommit(thread_id="t", run=waits))
    told = RunDispatchResult(run_id=run.run_id, dispatch_instance_id="instance", status=RunStatus.WAITING)
    await room.stores.dispatches.record_run_result(claimed.claim_proof, told)
    room.passes(milliseconds=101)
    await mailbox.run_sweep()
    assert ((await room.acked(result)).run_status, executor.run_count) == (RunStatus.WAITING, 0)
    assert (await room.run(result)).status is RunStatus.WAITING


@pytest.mark.parametrize("error", [errors.PhaseError("bad state"), errors.InvalidResume("nothing to resume")])
async def test_a_failure_that_leaves_nothing_to_try_is_consumed_and_ends_the_run(room, error):
    result = await room.mailbox(Raising(error)).submit_background(ask())
    row, run = await room.acked(result), await room.run(result)
    assert (run.status, run.termination.type) == (RunStatus.DONE, TerminationKind.ERROR)
    assert error.message in run.termination.value
    assert row.run_error == run.termination.value


class FailsFirst(Raising):
    """Fails once, then works."""

    async def execute(self, activation, sink):
        return await super().execute(activation, sink) if self.run_count == 1 else done(activation)


async def test_a_waiting_run_that_was_resumed_and_cut_off_is_resumed_again(room):
    await room.place(waiting_run("w", "t", WaitingReason.USER_INPUT))
    executor = FailsFirst(errors.StoreUnavailable("for a moment"))
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(ask("t", "here it is"))
    await room.failed(mailbox, result)
    room.passes(seconds=30)
    await mailbox.poll()
    await room.acked(result)
    assert [one.continue_run_id for one in executor.activations] == ["w", "w"]
    assert said(executor)[1] == ["here it is"]
    assert (await room.run("w")).status is RunStatus.DONE


# How long failed work is tried again: outages pass, defects do not, and a submission may say it for itself.


class Shortest(Random):
    def randint(self, a, b):
        return a


class Away(Deaf):
    """A provider that is away until an instant."""

    def __init__(self, clock, until):
        super().__init__()
        self.clock, self.until = clock, until

    async def execute(self, activation, sink):
        if self.clock.now() < self.until:
            raise ConnectionRefusedError("nobody listens")
        return done(activation)


async def until_over(room, mailbox, *, thread="t", **delivery):
    """Submit a run and let time pass until it has ended; return its row and how long that took."""
    result, began = await mailbox.submit_background(ask(thread, **delivery)), room.clock.now()
    while True:
        await mailbox.settled()
        row = await room.row(result)
        if row.status is not QUEUED:
            return row, room.clock.now() - began
        room.clock.set(max(row.available_at, room.clock.now()))
        assert await mailbox.poll() == 1


@pytest.mark.parametrize("random", [Shortest(), Longest()], ids=["shortest", "longest"])
@pytest.mark.parametrize("seconds", [8, 600])
async def test_by_default_a_provider_that_is_away_for_ten_minutes_gives_up_nothing(room, seconds, random):
    executor = Away(room.clock, room.clock.now() + seconds * 1_000)
    row, took = await until_over(room, room.mailbox(executor, random=random))
    assert row.status is ACKED
    assert executor.run_count <= 13
    assert took < seconds * 1_000 + 300_000


async def test_an_outage_that_does_not_end_is_given_up_at_last(room):
    mailbox = room.mailbox(Raising(errors.ProviderFailed("500")), random=Longest())
    row, took = await until_over(room, mailbox)
    assert (row.status, row.attempt_count, row.max_attempts) == (DEAD, 13, 13)
    assert took < timedelta(minutes=20) // ms(1)


@pytest.mark.parametrize(
    "error", [KeyError("page"), ValueError("no number"), errors.CommandKilled("signal 9")]
)
async def test_a_defect_is_given_up_after_the_usual_attempts(room, error):
    row, took = await until_over(room, room.mailbox(Raising(error), random=Longest()))
    assert (row.status, row.attempt_count, row.max_attempts) == (DEAD, 5, 5)
    assert took == 250 + 500 + 1_000 + 2_000


async def test_what_turns_out_to_be_a_defect_behind_an_outage_is_given_up_then(room):
    away = [ConnectionError("away")] * 7
    for thread, last, attempts in (("t", KeyError("page"), 8), ("u", errors.Unauthorized("no key"), 7)):
        row, _ = await until_over(room, room.mailbox(Raising(*away, last)), thread=thread)
        assert (row.status, row.attempt_count) == (DEAD, attempts)
        assert attempts == 7 or row.max_attempts == attempts


async def test_who_sets_the_attempts_or_no_outage_has_so_many(room):
    for thread, config in (
        ("t", MailboxConfig(default_max_attempts=3)),
        ("u", MailboxConfig(outage=timedelta(0))),
    ):
        row, _ = await until_over(
            room, room.mailbox(Raising(ConnectionError("away")), config=config), thread=thread
        )
        assert (row.status, row.attempt_count) == (DEAD, config.default_max_attempts)


async def test_a_submission_has_a_retry_policy_of_its_own(room):
    mailbox = room.mailbox(Raising(ConnectionError("away")), random=Longest())
    policy = {"max_attempts": 6, "retry_delay_ms": 1_000, "max_retry_delay_ms": 5_000}
    row, took = await until_over(room, mailbox, **policy)
    assert (row.status, row.attempt_count) == (DEAD, 6)
    assert took == 1_000 + 2_000 + 4_000 + 5_000 + 5_000
    row, _ = await until_over(room, mailbox, thread="u", max_attempts=1)
    assert (row.status, row.attempt_count) == (DEAD, 1)


async def test_a_failed_run_is_executed_again_after_the_delay_that_was_asked_for(room):
    executor = FailsFirst(errors.RateLimited("slow down", retry_after_ms=7_000))
    mailbox = room.mailbox(executor)
    row, took = await until_over(room, mailbox)
    assert (row.status, row.attempt_count, took) == (ACKED, 1, 7_000)
    assert [one.attempt for one in executor.activations] == [1, 2]


# Who owns a dispatch, to the millisecond: claims contend, leases end, retries become due.


async def owned_from_1000_to_1100(room):
    """Enqueue a dispatch at instant 0 and have it claimed by consumer a at 1000 for 100 ms."""
    store = room.stores.dispatches
    await store.enqueue(sample_dispatch("t", "r", "d", now=0), now=0)
    claimed = await store.claim_dispatch("d", "consumer-a", lease_ms=100, now=1_000)
    assert (claimed.status, claimed.lease_until, claimed.attempt_count) == (CLAIMED, 1_100, 0)
    return store, claimed


@both_engines
async def test_distributed_claim_same_dispatch_allows_exactly_one_consumer(room):
    store, now = room.stores.dispatches, room.clock.now()
    await store.enqueue(sample_dispatch("t", "r", "d", now=now))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        names = [f"consumer-{number}" for number in range(32)]
        attempts = [group.create_task(store.claim_dispatch("d", name, lease_ms=30_000)) for name in names]
    [winner] = [claimed for attempt in attempts if (claimed := attempt.result()) is not None]
    assert await room.row("d") == winner
    assert (winner.status, winner.lease_until) == (CLAIMED, now + 30_000)
    assert winner.claimed_by in names


async def test_distributed_expired_lease_reclaim_rejects_late_old_owner_ack(room):
    store, by_a = await owned_from_1000_to_1100(room)
    [reclaimed] = await store.reclaim_expired_leases(limit=10, now=1_101)
    assert (reclaimed.dispatch_id, reclaimed.status, reclaimed.attempt_count) == ("d", QUEUED, 1)
    by_b = await store.claim_dispatch("d", "consumer-b", lease_ms=30_000, now=1_102)
    assert by_b.claim_token != by_a.claim_token
    with pytest.raises(errors.StaleClaim):
        await store.ack(by_a.claim_proof, now=1_103)
    assert await room.row("d") == by_b
    assert (by_b.status, by_b.claimed_by) == (CLAIMED, "consumer-b")
    await store.ack(by_b.claim_proof, now=1_104)
    delivered = await room.row("d")
    assert (delivered.status, delivered.completed_at) == (ACKED, 1_104)


async def test_distributed_lease_reclaim_uses_strict_expiry_boundary(room):
    store, claimed = await owned_from_1000_to_1100(room)
    for now in (999, 1_100):
        assert await store.reclaim_expired_leases(limit=10, now=now) == ()
    assert await room.row("d") == claimed
    [reclaimed] = await store.reclaim_expired_leases(limit=10, now=1_101)
    assert (reclaimed.dispatch_id, reclaimed.status, reclaimed.attempt_count) == ("d", QUEUED, 1)
    assert await store.reclaim_expired_leases(limit=10, now=1_101) == ()


async def test_distributed_nack_retry_window_respects_retry_at_boundary(room):
    store, claimed = await owned_from_1000_to_1100(room)
    nacked = await store.nack(claimed.claim_proof, error="retry later", delay_ms=999, now=1_001)
    assert (nacked.status, nacked.available_at, nacked.attempt_count) == (QUEUED, 2_000, 1)
    assert nacked.last_error == "retry later"
    assert await store.claim("t", "consumer-b", lease_ms=30_000, now=1_999) is None
    again = await store.claim("t", "consumer-b", lease_ms=30_000, now=2_000)
    assert (again.dispatch_id, again.claimed_by, again.attempt_count) == ("d", "consumer-b", 1)
