"""A message to a run that is being resumed is never swallowed: it joins, or it is for the next run."""

from dispatch_room import Blocking, Counting, RunActivation, dispatch_in, make_resume, waiting_run
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.runs import RunStatus, WaitingReason


async def test_a_second_message_joins_the_dispatch_that_is_queued(room):
    await room.stores.threads.create_run(waiting_run("w", "t", WaitingReason.USER_INPUT))
    executor = Counting()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(RunActivation.new("t", ["one"]).delivered(delay_ms=10))
    second = await mailbox.submit_background(RunActivation.new("t", ["two"]).delivered(delay_ms=10))
    assert (second.dispatch_id, second.run_id, second.joined) == (first.dispatch_id, "w", True)
    assert len(await mailbox.list_dispatches("t")) == 1
    room.clock.set(room.clock.now() + 10)
    await mailbox.poll()
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    assert [[m.text() for m in one.messages] for one in executor.activations] == [["one", "two"]]
    run = await room.stores.threads.load_run("w")
    assert (run.status, len(run.input.trigger_message_ids)) == (RunStatus.DONE, 2)


async def test_a_message_to_a_run_at_work_is_for_the_next_run(room):
    await room.stores.threads.create_run(waiting_run("w", "t", WaitingReason.USER_INPUT))
    executor = Blocking()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(RunActivation.new("t", ["one"]))
    await executor.started.get()
    second = await mailbox.submit_background(RunActivation.new("t", ["two"]))
    assert second.run_id != "w"
    executor.release.set()
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    await dispatch_in(room.stores, second.dispatch_id, RunDispatchStatus.ACKED)
    assert [[m.text() for m in one.messages] for one in executor.activations] == [["one"], ["two"]]
    for run_id in ("w", second.run_id):
        assert (await room.stores.threads.load_run(run_id)).status is RunStatus.DONE


async def test_a_decision_for_a_queued_resume_joins_it_and_counts_once(room):
    await room.stores.threads.create_run(waiting_run("w", "t", WaitingReason.TOOL_PERMISSION))
    executor = Counting()
    mailbox = room.mailbox(executor)
    decided = RunActivation.new("t", [], continue_run_id="w", decisions=[("call", make_resume())])
    first = await mailbox.submit_background(decided.delivered(delay_ms=10))
    again = await mailbox.submit_background(decided.delivered(delay_ms=10))
    assert again.dispatch_id == first.dispatch_id
    room.clock.set(room.clock.now() + 10)
    await mailbox.poll()
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    assert [one.decisions for one in executor.activations] == [(("call", make_resume()),)]
