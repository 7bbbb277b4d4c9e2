"""What was refused, doubled or left unsaid where a caller had done nothing wrong."""

import pytest

from dispatch_room import Blocking, Counting, Deaf, dispatch_in, done, waiting_run
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import DuplicateRecord, InvalidSubmission, UnknownDispatch
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import (
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.inspection import WhyNot


def texts(executor):
    return [[message.text() for message in one.messages] for one in executor.activations]


async def test_what_the_model_said_needs_no_id_of_the_executor(room):
    class Committing(Deaf):
        async def execute(self, activation, sink):
            run = await activation.control.threads.load_run(activation.run_id)
            said = Message.assistant("thinking")
            step = ThreadCommit(thread_id="t", messages=(said,), run=replace(run, steps=1))
            await activation.control.coordinator.commit(step)
            return done(activation)

    mailbox = room.mailbox(Committing())
    result = await mailbox.submit_background(RunActivation.new("t", ["hello", Message.assistant("before")]))
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    found = await room.stores.threads.load_messages("t")
    assert [one.text() for one in found] == ["hello", "before", "thinking", "ok"]
    assert all(one.id for one in found)


async def test_a_message_that_is_known_is_refused_with_the_run_that_has_it(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(RunActivation.new("t", [Message.user("x", id="m1")]))
    queued = await mailbox.submit_background(RunActivation.new("t", [Message.user("y", id="m2")]))
    for message_id, result in (("m1", first), ("m2", queued)):
        with pytest.raises(DuplicateRecord, match=result.run_id) as refused:
            await mailbox.submit_background(RunActivation.new("t", [Message.user("z", id=message_id)]))
        assert refused.value.details == {"run_id": result.run_id}
    executor.release.set()


@pytest.mark.parametrize("instant", [-1, 0])
async def test_a_deadline_that_is_no_instant_is_refused_before_anything_is_written(room, instant):
    mailbox = room.mailbox(Counting())
    with pytest.raises(InvalidSubmission, match="deadline"):
        await mailbox.submit_background(RunActivation.new("t", ["a"]).delivered(deadline_at=instant))
    assert await room.stores.threads.load_thread("t") is None


async def test_a_submission_that_is_repeated_by_its_run_while_that_is_queued_adds_nothing(room):
    executor = Blocking()
    mailbox = room.mailbox(executor)
    await mailbox.submit_background(RunActivation.new("t", ["before"]))
    await executor.started.get()

    async def submit(*messages):
        return await mailbox.submit_background(RunActivation.new("t", messages).hinted(run_id="r"))

    first, again = await submit("a", "b"), await submit("a", "b")
    assert (again.dispatch_id, again.run_id, again.joined) == (first.dispatch_id, "r", True)
    await submit("c")
    assert (await submit("c")).joined
    assert (await submit("a", "b")).joined
    executor.release.set()
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    assert texts(executor) == [["before"], ["a", "b", "c"]]
    assert len(await mailbox.list_dispatches("t")) == 2


async def test_a_decision_is_taken_just_after_a_message_came_for_the_thread(room):
    ticket = RunWaitingTicket(ticket_id="q", tool_call_id="call", tool_name="shell", reason="May it?")
    asking = RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,))
    await room.stores.threads.create_run(waiting_run("w", "t", waiting=asking))
    executor = Counting()
    mailbox = room.mailbox(executor)
    behind = await mailbox.submit_background(RunActivation.new("t", ["and another thing"]))
    yes = ToolCallResume(decision_id="d", result={"approved": True})
    decided = RunActivation.new("t", [], continue_run_id="w", decisions=[("call", yes)])
    resumed = await mailbox.submit_background(decided)
    await dispatch_in(room.stores, resumed.dispatch_id, RunDispatchStatus.ACKED)
    await dispatch_in(room.stores, behind.dispatch_id, RunDispatchStatus.ACKED)
    assert [one.decisions for one in executor.activations] == [(("call", yes),), ()]
    assert texts(executor) == [[], ["and another thing"]]


class Pausing(Deaf):
    """Waits as a run does whose budget is used up."""

    async def execute(self, activation, sink):
        ticket = RunWaitingTicket(
            ticket_id="q", tool_call_id="budget", tool_name="budget", reason="its budget is used up"
        )
        return AgentRunResult(
            run_id=activation.run_id,
            termination=TerminationReason.suspended(),
            waiting=RunWaitingState(reason=WaitingReason.MANUAL_PAUSE, tickets=(ticket,)),
        )


async def test_why_not_of_what_is_paused_superseded_or_given_up(room):
    mailbox = room.mailbox(Pausing())
    paused = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await dispatch_in(room.stores, paused.dispatch_id, RunDispatchStatus.ACKED)
    said = await mailbox.why_not(paused.dispatch_id)
    assert (said.why, said.text) == (WhyNot.WAITING, "its run waits: its budget is used up")
    replaced = await mailbox.submit_background(RunActivation.new("u", ["go"]).delivered(delay_ms=1_000))
    await mailbox.interrupt("u")
    said = await mailbox.why_not(replaced.dispatch_id)
    assert (said.why, said.text) == (WhyNot.SUPERSEDED, "queued dispatch superseded by interrupt")
    assert await mailbox.cancel(paused.run_id)
    assert (await mailbox.why_not(paused.dispatch_id)).why is WhyNot.ENDED


async def test_why_not_is_asked_by_run_and_in_another_process(room):
    executor = Blocking()
    mailbox = room.mailbox(executor, consumer_id="here")
    running = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await executor.started.get()
    behind = await mailbox.submit_background(RunActivation.new("t", ["then"]))
    elsewhere = room.mailbox(Counting(), consumer_id="elsewhere")
    said = await elsewhere.why_not(running.run_id)
    assert (said.why, said.text) == (WhyNot.RUNNING, "it is executing at here")
    said = await elsewhere.why_not(behind.run_id)
    assert (said.why, said.by_dispatch_id) == (WhyNot.THREAD_BUSY, running.dispatch_id)
    with pytest.raises(UnknownDispatch):
        await elsewhere.why_not("nothing")
    executor.release.set()
    await dispatch_in(room.stores, behind.dispatch_id, RunDispatchStatus.ACKED)
    assert (await room.stores.threads.load_run(behind.run_id)).status is RunStatus.DONE
