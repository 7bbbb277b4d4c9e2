"""Input for a busy run waits durably, may be changed until a run reads it, and is read by somebody."""

import pytest

from dispatch_room import Blocking, Counting, RunActivation, dispatch_in, done, eventually
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import (
    AgentNotFound,
    AlreadyConsumed,
    DeliveryBlocked,
    UnknownMessage,
    VersionConflict,
)
from postroom.contracts.messages import Boundary, DeliveryMode, Granularity, Message
from postroom.contracts.records import replace


class Reading(Blocking):
    """Reads what waits at its next step, when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.takes = True

    def wake_pending_boundary(self, id: str) -> bool:
        return self.takes

    async def execute(self, activation, sink):
        self.started.put_nowait(activation)
        await self.release.wait()
        frozen = await activation.control.pending.freeze(Boundary.NEXT_STEP)
        self.read += [message.text() for message in frozen]
        return done(activation)


async def test_steered_input_is_read_at_the_next_step_and_committed_once(room):
    executor = Reading()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(RunActivation.new("t", ["start"]))
    await executor.started.get()
    for word in ("left", "right"):
        steered = await mailbox.submit_live_then_queue(RunActivation.new("t", [word]))
        assert (steered.run_id, steered.dispatch_id) == (first.run_id, first.dispatch_id)
    assert [entry.message.text() for entry in await mailbox.pending("t")] == ["left", "right"]
    executor.release.set()
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    assert executor.read == ["left", "right"]
    texts = [m.text() for m in await room.stores.threads.load_messages("t")]
    assert texts == ["start", "left", "right", "ok"]
    assert await mailbox.pending("t") == ()
    assert len(await mailbox.list_dispatches("t")) == 1
    run = await room.stores.threads.load_run(first.run_id)
    assert len(run.input.trigger_message_ids) == 3
    assert (run.input.range.from_seq, run.input.range.to_seq) == (1, 3)


async def test_input_that_the_run_ended_without_reading_goes_to_a_new_run(room):
    class Deafened(Reading):
        async def execute(self, activation, sink):
            self.started.put_nowait(activation)
            if self.run_count == 1:
                await self.release.wait()
            return done(activation)

    executor = Deafened()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(RunActivation.new("t", ["start"]))
    await executor.started.get()
    await mailbox.submit_live_then_queue(RunActivation.new("t", ["nobody read me"]))
    executor.release.set()
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    await executor.started.get()
    await mailbox.settled()
    assert [m.text() for m in executor.activations[1].messages] == ["nobody read me"]
    assert executor.activations[1].run_id != first.run_id
    assert await mailbox.pending("t") == ()


async def test_recovery_takes_up_input_whose_run_ended_in_another_process(room):
    first = room.mailbox(Counting(), consumer_id="gone")
    result = await first.submit_background(RunActivation.new("t", ["start"]))
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    await first.settled()
    mode = DeliveryMode(boundary=Boundary.NEXT_STEP, target_run_id=result.run_id)
    await room.stores.threads.append_pending("t", [Message.user("left over", id="m")], mode)
    executor = Counting()
    heir = room.mailbox(executor, consumer_id="heir")
    assert await heir.recover() == 1
    await eventually(lambda: _acked(room, executor))
    assert [m.text() for m in executor.activations[0].messages] == ["left over"]


async def _acked(room, executor):
    return (executor.run_count == 1 and not await room.stores.threads.pending_messages("t")) or None


async def test_what_nobody_has_read_can_be_edited_retracted_and_reordered(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    ids = {}
    for word in ("one", "two", "three"):
        (entry,) = await mailbox.append_pending("t", [Message.user(word)])
        ids[word] = entry.pending_id
    edited = await mailbox.edit_pending("t", Message.user("TWO", id=ids["two"]), expected_revision=1)
    assert edited.revision == 2
    with pytest.raises(VersionConflict):
        await mailbox.edit_pending("t", Message.user("zwei", id=ids["two"]), expected_revision=1)
    await mailbox.retract_pending("t", ids["one"])
    with pytest.raises(UnknownMessage):
        await mailbox.retract_pending("t", ids["one"])
    await mailbox.reorder_pending("t", [ids["three"], ids["two"]])
    result = await mailbox.submit_background(RunActivation.new("t", ["now"]))
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    assert [m.text() for m in executor.activations[0].messages] == ["three", "TWO", "now"]
    with pytest.raises(AlreadyConsumed):
        await mailbox.edit_pending("t", Message.user("too late", id=ids["two"]))
    with pytest.raises(AlreadyConsumed):
        await mailbox.retract_pending("t", ids["three"])


async def test_a_barrier_keeps_what_is_behind_it_and_changes_nothing(room):
    mailbox = room.mailbox(Counting())
    mode = DeliveryMode(boundary=Boundary.RESUME_INPUT, barrier=True)
    await mailbox.append_pending("t", [Message.user("me first", id="barrier")], mode)
    with pytest.raises(DeliveryBlocked) as refused:
        await mailbox.submit(RunActivation.new("t", ["newest"]))
    assert refused.value.value == "barrier"
    with pytest.raises(DeliveryBlocked):
        await mailbox.submit_background(RunActivation.new("t", ["behind"]))
    assert await mailbox.list_dispatches("t") == ()
    assert len(await mailbox.pending("t")) == 1


async def test_a_foreground_submission_reads_its_own_message_and_passes_over_those_for_a_new_run(room):
    executor = Counting()
    mailbox = room.mailbox(executor)
    await mailbox.append_pending("t", [Message.user("for later")])
    _, events = await mailbox.submit(RunActivation.new("t", ["now"]))
    assert [event.event_type async for event in events] == ["run_finish"]
    assert [m.text() for m in executor.activations[0].messages] == ["now"]
    assert [entry.message.text() for entry in await mailbox.pending("t")] == ["for later"]


async def test_one_that_wants_to_be_alone_is_read_alone(room):
    class ReadsTwice(Reading):
        async def execute(self, activation, sink):
            self.started.put_nowait(activation)
            await self.release.wait()
            for _ in range(3):
                frozen = await activation.control.pending.freeze(Boundary.NEXT_STEP)
                self.read.append("+".join(message.text() for message in frozen))
            return replace(done(activation), response="")

    executor = ReadsTwice()
    mailbox = room.mailbox(executor)
    first = await mailbox.submit_background(RunActivation.new("t", ["start"]))
    await executor.started.get()
    alone = DeliveryMode(boundary=Boundary.NEXT_STEP, granularity=Granularity.ONE, target_run_id=first.run_id)
    together = replace(alone, granularity=Granularity.BATCH)
    await mailbox.append_pending("t", [Message.user("a", id="a")], alone)
    await mailbox.append_pending("t", [Message.user("b", id="b"), Message.user("c", id="c")], together)
    executor.release.set()
    await dispatch_in(room.stores, first.dispatch_id, RunDispatchStatus.ACKED)
    assert executor.read == ["a", "b+c", ""]


async def test_input_that_the_run_does_not_take_is_queued_and_stored_once(room):
    executor = Reading()
    executor.takes = False
    mailbox = room.mailbox(executor)
    await mailbox.submit_background(RunActivation.new("t", ["start"]))
    await executor.started.get()
    queued = await mailbox.submit_live_then_queue(RunActivation.new("t", ["not taken"]))
    assert queued.status == "queued"
    assert await mailbox.pending("t") == ()
    executor.release.set()
    await dispatch_in(room.stores, queued.dispatch_id, RunDispatchStatus.ACKED)
    texts = [m.text() for m in await room.stores.threads.load_messages("t")]
    assert texts.count("not taken") == 1


async def test_input_for_an_agent_that_is_gone_waits_and_keeps_nobody_else_waiting(room):
    class Knowing(Counting):
        async def resolve(self, activation, *, pinned):
            if activation.thread_id == "gone":
                raise AgentNotFound("nobody runs it", value="gone")
            return await super().resolve(activation, pinned=pinned)

    mode = DeliveryMode(boundary=Boundary.NEXT_STEP, target_run_id="ended")
    for thread_id in ("gone", "here"):
        await room.stores.threads.append_pending(thread_id, [Message.user("hi", id=thread_id)], mode)
    mailbox = room.mailbox(Knowing())
    assert await mailbox.recover() == 1
    await mailbox.settled()
    assert [one.message.id for one in await mailbox.pending("gone")] == ["gone"]
    assert [m.text() for m in await room.stores.threads.load_messages("here")] == ["hi", "ok"]
