"""Faults that the system we learned from has, where no other test here looks at them."""

from datetime import timedelta

from dispatch_room import Counting, Deaf, RunActivation, dispatch_in, done, make_run, waiting_run
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import RateLimited
from postroom.contracts.registry import PinnedEntry
from postroom.contracts.runs import RunMessageInput, RunStatus
from postroom.dispatch.events import StoreEventPublisher
from postroom.stores.registry import MemoryRegistryStore


class LimitedOnce(Deaf):
    async def execute(self, activation, sink):
        if self.run_count == 1:
            raise RateLimited("slow down")
        return done(activation)


async def test_a_failure_that_is_tried_again_tells_no_end_and_the_reader_stays(room):
    """Clients must not see a failure and then a history that knows of none."""
    mailbox = room.mailbox(LimitedOnce())
    _, events = await mailbox.submit(RunActivation.new("t", ["go"]))
    await mailbox.settled()
    room.clock.advance(timedelta(minutes=1))
    await mailbox.poll()
    told = [event async for event in events]
    assert [event.event_type for event in told] == ["run_retrying", "run_finish"]
    assert told[0].attempt == 1
    assert told[1].termination.type == "natural_end"


async def test_one_run_that_cannot_be_told_of_does_not_keep_the_others_from_recovery(room):
    publisher = StoreEventPublisher(room.stores.events)
    mailbox = room.mailbox(Counting(), publisher=publisher)
    lost = RunMessageInput(thread_id="broken", trigger_message_ids=("gone-1", "gone-2"))
    await room.stores.threads.create_run(make_run("a-broken", "broken", RunStatus.RUNNING, input=lost))
    result = await mailbox.submit_background(RunActivation.new("fine", ["go"]).delivered(delay_ms=10))
    room.clock.advance(timedelta(milliseconds=10))
    heir = room.mailbox(Counting(), publisher=publisher, consumer_id="heir")
    await heir.start_lifecycle_ready()
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)


async def test_work_that_the_mailbox_submits_itself_is_pinned_to_the_latest_publication(room):
    registry = MemoryRegistryStore()
    value = {"prompt": "as published"}
    entry = PinnedEntry(kind="agent", id="agent", version=1, value=value, content_hash="sha256:0")
    published = await registry.publish("default", (entry,))
    await room.stores.threads.create_run(waiting_run("w", "t"))
    executor = Counting()
    mailbox = room.mailbox(executor).with_pinned_registry(registry, "default")
    assert await mailbox.recover() == 1
    await mailbox.settled()
    run = await room.stores.threads.load_run("w")
    assert (run.status, run.resolution_id) == (RunStatus.DONE, str(published.publication_id))
    assert executor.activations[0].control.registry.agents == {"agent": value}


async def test_instants_of_runs_messages_and_dispatches_are_of_one_unit(room):
    mailbox = room.mailbox(Counting())
    result = await mailbox.submit_background(RunActivation.new("t", ["go"]))
    await dispatch_in(room.stores, result.dispatch_id, RunDispatchStatus.ACKED)
    await mailbox.settled()
    now = room.clock.now()
    row = await room.stores.dispatches.load_dispatch(result.dispatch_id)
    run = await room.stores.threads.load_run(result.run_id)
    thread = await room.stores.threads.load_thread("t")
    (asked, said) = await room.stores.threads.load_message_records(
        "t", [*run.input.trigger_message_ids, *run.output_message_ids]
    )
    instants = (
        row.created_at,
        row.completed_at,
        run.created_at,
        run.started_at,
        run.finished_at,
        run.updated_at,
        thread.created_at,
        thread.latest_run_updated_at,
        asked.created_at,
        said.created_at,
    )
    assert set(instants) == {now}
