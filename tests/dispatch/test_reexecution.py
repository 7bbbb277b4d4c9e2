"""A run that was cut off is executed again from its checkpoint; one that was finished is not."""

from datetime import timedelta

from dispatch_room import (
    AgentRunResult,
    Counting,
    Deaf,
    EventSink,
    RunActivation,
    dispatch_in,
    dispatch_that,
    done,
    waiting_run,
)
from postroom.contracts.activation import Recovery
from postroom.contracts.dispatch import RunDispatchResult, RunDispatchStatus
from postroom.contracts.errors import ExecutorFailed, InvalidResume, PhaseError, StoreUnavailable
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


class OneStepThenCut(Deaf):
    """Commits a step on its first execution and is cut off; ends well on its second."""

    def __init__(self, says: Recovery = Recovery.RESUME) -> None:
        super().__init__()
        self._says = says

    def recovery(self, activation: RunActivation) -> Recovery:
        return self._says

    async def execute(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        if self.run_count > 1:
            return done(activation)
        run = await activation.control.threads.load_run(activation.run_id)
        said = Message.assistant("half way", id=f"{activation.run_id}/half")
        await activation.control.coordinator.commit(
            ThreadCommit(
                thread_id=activation.thread_id,
                messages=(said,),
                expected_message_count=1,
                run=replace(run, status=RunStatus.RUNNING, steps=1),
            )
        )
        raise ExecutorFailed("the process was cut off")


async def cut_off_and_again(room, executor):
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("cut", ["go"]))
    await dispatch_that(room.stores, result.dispatch_id, lambda row: row.attempt_count == 1)
    await mailbox.settled()
    room.clock.advance(timedelta(seconds=30))
    await mailbox.poll()
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    return row, await room.stores.threads.load_run(result.run_id)


async def test_a_run_past_its_first_step_is_resumed_and_comes_to_its_end(room):
    executor = OneStepThenCut()
    row, run = await cut_off_and_again(room, executor)
    first, second = executor.activations
    assert (first.attempt, first.recovery) == (1, Recovery.START)
    assert (second.attempt, second.recovery) == (2, Recovery.RESUME)
    assert second.run_id == first.run_id
    assert (run.status, run.steps, row.run_status) == (RunStatus.DONE, 1, RunStatus.DONE)


async def test_the_executor_says_that_it_starts_over(room):
    executor = OneStepThenCut(Recovery.RESTART)
    await cut_off_and_again(room, executor)
    assert executor.activations[1].recovery is Recovery.RESTART


async def test_a_run_that_ended_is_not_executed_again_when_its_acknowledgement_was_lost(room):
    """The process died after the run's end was written: the dispatch comes again and finds it settled."""
    executor = Counting()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("settled", ["go"]).delivered(delay_ms=1))
    room.clock.advance(timedelta(milliseconds=1))
    claimed = await room.stores.dispatches.claim("settled", "dead", lease_ms=100)
    run = await room.stores.threads.load_run(result.run_id)
    ended = run.ended(TerminationReason.natural_end(), now=room.clock.now())
    await room.stores.coordinator.commit(
        ThreadCommit(
            thread_id="settled", run=replace(ended, final_output="said before"), claim=claimed.claim_proof
        )
    )
    room.clock.advance(timedelta(milliseconds=101))
    await mailbox.run_sweep()
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert (executor.run_count, row.run_response) == (0, "said before")
    assert (row.attempt_count, row.interruption_count) == (0, 1)


async def test_a_run_that_came_to_wait_is_not_resumed_by_its_own_lost_acknowledgement(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("waits", ["go"]).delivered(delay_ms=1))
    room.clock.advance(timedelta(milliseconds=1))
    claimed = await room.stores.dispatches.claim("waits", "dead", lease_ms=100)
    await room.stores.dispatches.record_dispatch_start(claimed.claim_proof, "instance")
    run = await room.stores.threads.load_run(result.run_id)
    waiting = RunWaitingState(reason=WaitingReason.BACKGROUND_TASKS, since_dispatch_id=result.dispatch_id)
    await room.stores.coordinator.commit(
        ThreadCommit(thread_id="waits", run=replace(run, status=RunStatus.WAITING, waiting=waiting))
    )
    await room.stores.dispatches.record_run_result(
        claimed.claim_proof,
        RunDispatchResult(run_id=run.run_id, dispatch_instance_id="instance", status=RunStatus.WAITING),
    )
    room.clock.advance(timedelta(milliseconds=101))
    await mailbox.run_sweep()
    row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert (executor.run_count, row.run_status) == (0, RunStatus.WAITING)
    assert (await room.stores.threads.load_run(run.run_id)).status is RunStatus.WAITING


async def test_a_failure_that_leaves_nothing_to_try_is_consumed_and_ends_the_run(room):
    for number, error in enumerate((PhaseError("bad state"), InvalidResume("nothing to resume"))):

        class Fails(Deaf):
            async def execute(self, activation, sink, error=error):
                raise error

        mailbox = room.mailbox(Fails())
        result = await mailbox.submit_background(RunActivation.new(f"phase-{number}", ["go"]))
        row = await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
        run = await room.stores.threads.load_run(result.run_id)
        assert run.status is RunStatus.DONE
        assert run.termination.type is TerminationKind.ERROR
        assert error.message in run.termination.value
        assert row.run_error == run.termination.value


async def test_a_waiting_run_that_was_resumed_and_cut_off_is_resumed_again(room):
    class FailsFirst(Deaf):
        async def execute(self, activation, sink):
            if self.run_count == 1:
                raise StoreUnavailable("for a moment")
            return done(activation)

    await room.stores.threads.create_run(waiting_run("w", "resumed", WaitingReason.USER_INPUT))
    executor = FailsFirst()
    mailbox = room.mailbox(executor)
    result = await mailbox.submit_background(RunActivation.new("resumed", ["here it is"]))
    await dispatch_that(room.stores, result.dispatch_id, lambda row: row.attempt_count == 1)
    await mailbox.settled()
    room.clock.advance(timedelta(seconds=30))
    await mailbox.poll()
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert [one.continue_run_id for one in executor.activations] == ["w", "w"]
    assert [message.text() for message in executor.activations[1].messages] == ["here it is"]
    assert (await room.stores.threads.load_run("w")).status is RunStatus.DONE
