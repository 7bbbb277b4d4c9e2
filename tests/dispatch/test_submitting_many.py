"""Many submissions in one call, at the mailbox itself: without rounds, with events, with answers lost on the way."""

import pytest

from dispatch.conftest import Room
from dispatch_room import Counting, Noop, events_of
from dispatch_waiting import until
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import InvalidSubmission, StoreUnavailable
from postroom.contracts.events import EventScope
from postroom.dispatch.events import StoreEventPublisher
from postroom.testing.run_faults import failing_changes

THREADS = ("a", "b", "a", "c")


def named(number: int, thread_id: str) -> RunActivation:
    return RunActivation.new(thread_id, [f"{number}"]).hinted(run_id=f"run-{number}")


MANY = [named(number, thread_id) for number, thread_id in enumerate(THREADS)]


async def test_their_runs_begin_also_where_no_rounds_are_made(room: Room) -> None:
    executor = Counting()
    mailbox = room.mailbox(executor)
    accepted = await mailbox.submit_many(MANY)
    assert accepted == [(thread_id, f"run-{number}") for number, thread_id in enumerate(THREADS)]
    await until(lambda: executor.run_count == 4)


async def test_events_of_the_same_place_are_written_with_them_in_order(room: Room) -> None:
    place = room.stores.coordinator.storage_identity
    publisher = StoreEventPublisher(room.stores.events, storage_identity=place)
    mailbox = room.mailbox(Noop(), publisher=publisher)
    delayed = [request.delivered(delay_ms=10**9) for request in MANY]
    await mailbox.submit_many(delayed)
    events = await events_of(room.stores, "a")
    assert [event.sequences[EventScope.thread("a").key] for event in events] == list(
        range(1, len(events) + 1)
    )
    assert [event.event_kind for event in events].count("RunQueued") == 2


async def test_when_the_answer_is_lost_the_same_call_doubles_nothing(room: Room) -> None:
    stores = failing_changes(room.stores, after={"submit": [True]})
    mailbox = room.mailbox(Noop(), stores=stores)
    delayed = [request.delivered(delay_ms=10**9) for request in MANY]
    with pytest.raises(StoreUnavailable):
        await mailbox.submit_many(delayed)
    assert len(await mailbox.submit_many(delayed)) == 4
    assert (await room.stores.dispatches.count_by_status())[RunDispatchStatus.QUEUED] == 4
    messages = await room.stores.threads.load_messages("a") or ()
    assert [message.text() for message in messages] == ["0", "2"]


async def test_a_bad_one_is_named_by_its_place_before_anything_is_written(room: Room) -> None:
    mailbox = room.mailbox(Noop())
    with pytest.raises(InvalidSubmission, match=r"^item 4: the priority is from 0 to 255"):
        await mailbox.submit_many([*MANY, named(4, "d").delivered(priority=-1)])
    assert await room.stores.threads.load_thread("a") is None
