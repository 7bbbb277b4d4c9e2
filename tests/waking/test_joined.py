"""A message and the run that it starts are one transaction, on both engines; what could not be is found later."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from itertools import count

import pytest
import pytest_asyncio

from machine import PATIENCE
from postroom.concurrency import Tasks
from postroom.contracts.dispatch import OPEN, RunDispatchStatus
from postroom.contracts.errors import QueueFull, StoreUnavailable, Unauthorized
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus
from postroom.mail.context import Caller
from postroom.mail.people import StoredChatDelivery
from postroom.mail.waking import waker
from postroom.mail.waking.prompts import agent_thread
from postroom.mail.waking.waker import MAX_AT_ONCE
from postroom.testing import ManualClock
from waking_room import PROJECT, Room, both_engines, number

ROOM_FOR_LEASES = timedelta(minutes=5)
ADA, BO = (agent_thread("projects-shop", name) for name in ("Ada", "Bo"))
OPERATOR = Caller(operator=True)


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[Room]:
    made = Room(*stores, clock=clock, most_attempts=2)
    yield made
    await made.close()


def dies_before_the_run(room: Room) -> None:
    """Make the process die between the commit of a send and the beginning of the run."""

    async def dies(claimed):
        raise Unauthorized("the process died here")

    room.mailbox._dispatcher.begin_or_release = dies


async def heir_of(room: Room) -> None:
    """Make another process take over after a while."""
    room.clock.advance(ROOM_FOR_LEASES)
    room.mailbox, room.waker = room.opened("heir")
    await room.mailbox.recover()
    await room.turn()


@both_engines
async def test_the_message_its_run_and_its_claim_are_there_when_the_send_has_returned(room):
    await room.people("Ada", "Bo", runners=("Bo",))
    dies_before_the_run(room)
    sent = await room.send("Ada", "Bo", body="paint it")
    [row] = await room.runs.dispatches.list_dispatches(BO)
    run = await room.runs.threads.load_run(row.run_id)
    assert (row.status, run.status) == (RunDispatchStatus.CLAIMED, RunStatus.RUNNING)
    assert run.input.trigger_message_ids == (f"mail-{number(sent)}",)
    assert (await room.handled(number(sent), "Bo")).run_id == row.run_id
    await heir_of(room)
    assert len(room.agents.prompts) == 1
    assert await room.texts("Ada") == [("Bo", "Bo did it")]


@both_engines
async def test_a_send_that_locks_its_readers_thread_is_no_error(room):
    await room.people("Ada", "Bo", runners=("Bo",))
    await room.send("Ada", "Bo", body="paint it")
    counted = partial(room.mailbox.metrics.value, "postroom_mailbox_operations_total", operation="commit")
    commits = {result: counted(result=result) for result in ("again", "error")}
    assert commits == {"again": 1, "error": 0}


@both_engines
async def test_the_next_message_to_the_same_readers_runs_its_change_once(room):
    await room.people("Ada", "Bo", "Cy", runners=("Bo", "Cy"))
    again = partial(
        room.mailbox.metrics.value, "postroom_mailbox_operations_total", operation="commit", result="again"
    )
    for to in (("Bo",), ("Bo", "Cy")):
        await room.send("Ada", *to)
        first = again()
        for _ in range(3):
            await room.send("Ada", *to)
        assert again() == first
    await room.mail.set_runner(PROJECT, "Cy", None)
    await room.send("Ada", "Bo", "Cy", body="for Bo alone")
    await room.turn()
    assert sorted(room.agents.prompts)[-1][0].startswith("Cy"), "before its runner was taken away"
    await room.mail.set_runner(PROJECT, "Cy", "{}")
    sent = await room.send("Ada", "Bo", "Cy", body="for both again")
    await room.turn()
    assert (await room.handled(number(sent), "Cy")).failure == ""


@both_engines
async def test_a_change_that_wakes_readers_of_one_message_and_then_of_another_locks_the_threads_of_both(room):
    await room.people("Ada", "Bo", "Cy", runners=("Bo", "Cy"))
    runs = []

    def change(tx, made):
        runs.append(made)
        assert len(runs) < 9, "the change is run again for ever"
        project = tx.project(PROJECT)
        for name in ("Bo", "Cy"):
            made.expect([(project, tx.agent(project.id, name))], thread_id=None, reply_to=None, sender_id=0)
        return True

    assert await room.waker.write(change, key=PROJECT)


@both_engines
async def test_a_send_that_is_undone_leaves_neither_a_message_nor_a_run(room, monkeypatch):
    await room.people("Ada", "Bo", "Cy", runners=("Bo", "Cy"))
    whole = room.mailbox.accepting

    def accepting(thread_ids, change, *, key):
        def undone(tx, accept):
            change(tx, accept)
            if thread_ids:
                raise StoreUnavailable("the disk went away")

        return whole(thread_ids, undone, key=key)

    monkeypatch.setattr(room.mailbox, "accepting", accepting)
    with pytest.raises(StoreUnavailable):
        await room.send("Ada", "Bo", "Cy")
    monkeypatch.undo()
    assert await room.inbox("Bo") == []
    assert await room.runs.threads.list_runs(RunQuery()) == ()
    await room.send("Ada", "Bo", "Cy")
    await room.turn()
    assert len(room.agents.prompts) == 2


@both_engines
async def test_a_send_that_is_repeated_under_its_key_wakes_once(room):
    await room.people("Ada", "Bo", runners=("Bo",))
    first = await room.send("Ada", "Bo", idempotency_key="k")
    assert await room.send("Ada", "Bo", idempotency_key="k") == first
    await room.turn()
    assert await room.send("Ada", "Bo", idempotency_key="k") == first
    await room.turn()
    assert len(room.agents.prompts) == 1


async def told_of_runs(room: Room) -> list[str]:
    """Return the entries of the project's log about runs and their messages."""
    found = await room.mail.call("fetch_events", {"project_key": PROJECT, "after": 0}, caller=OPERATOR)
    return [one["kind"] for one in found["events"] if one["run_id"] is not None]


async def test_the_end_of_a_run_is_in_the_log_when_it_has_ended_and_not_before(room):
    await room.people("Ada", "Bo", runners=("Bo",))
    write, seen = room.effects.write, []

    def dies(tx, run, accept):
        write(tx, run, accept)
        seen.append(run.status)
        raise Unauthorized("the process died here")

    room.effects.write, room.mailbox._completion.put_back = dies, left_to_lease
    await room.send("Ada", "Bo")
    await room.mailbox.settled()
    assert {*seen} == {RunStatus.DONE}
    assert await told_of_runs(room) == ["delivery.delivered", "run.began"]
    room.effects.write = write
    await heir_of(room)
    again = ["run.cut_off", "run.began", "delivery.handled", "run.ended"]
    assert (await told_of_runs(room))[2:] == again


@both_engines
async def test_the_log_is_in_order_of_time_however_long_a_change_takes(room, monkeypatch):
    instants = count(room.clock.now())
    monkeypatch.setattr(room.clock, "now", lambda: next(instants))  # each look at the clock is later
    await room.people("Ada", "Bo", runners=("Ada", "Bo"))
    await room.send("Ada", "Bo")
    await room.turn()
    found = await room.mail.call("fetch_events", {"project_key": PROJECT, "after": 0}, caller=OPERATOR)
    moments = [one["at"] for one in found["events"]]
    assert "run.ended" in [one["kind"] for one in found["events"]]
    assert moments == sorted(moments)


async def left_to_lease(claimed, error) -> bool:
    """Give nothing back: the process is gone."""
    return False


async def test_an_execution_that_is_tried_again_has_failed_and_was_not_cut_off(room):
    await room.people("Ada", "Bo", runners=("Bo",))

    async def fails_once(activation):
        room.agents.act = None
        raise ConnectionResetError("the line was cut")

    room.agents.act = fails_once
    await room.send("Ada", "Bo")
    await room.turn()
    room.clock.advance(ROOM_FOR_LEASES)
    await room.mailbox.poll()
    await room.turn()
    of_runs = [one for one in await told_of_runs(room) if one.startswith("run.")]
    assert of_runs == ["run.began", "run.failed", "run.began", "run.ended"]


async def test_executions_and_their_time_are_counted_whether_they_fail_or_not(room):
    await room.people("Ada", "Bo", runners=("Bo",))

    async def fails(activation):
        raise ConnectionResetError("the line was cut")

    room.agents.act = fails
    await room.send("Ada", "Bo")
    await room.turn()
    [row] = await room.runs.dispatches.list_dispatches(BO)
    assert (row.status, row.executions) == (RunDispatchStatus.QUEUED, 1)

    async def works_for_a_second(activation):
        [row] = await room.runs.dispatches.list_dispatches(BO, OPEN)
        assert (row.status, row.executions) == (RunDispatchStatus.CLAIMED, 2)
        room.clock.advance(timedelta(seconds=1))

    room.agents.act = works_for_a_second
    room.clock.advance(ROOM_FOR_LEASES)
    await room.mailbox.poll()
    await room.turn()
    [row] = await room.runs.dispatches.list_dispatches(BO)
    assert (row.status, row.executions) == (RunDispatchStatus.ACKED, 2)
    assert (await room.runs.threads.load_run(row.run_id)).usage.wall_ms == 1_000


@both_engines
async def test_an_answer_its_run_and_its_claim_are_there_when_the_run_has_ended(room):
    await room.people("Ada", "Bo", runners=("Ada", "Bo"))

    async def dies_at_its_end(activation):
        dies_before_the_run(room)

    room.agents.act = dies_at_its_end
    await room.send("Ada", "Bo")
    await room.mailbox.settled()
    [answer] = await room.inbox("Ada")
    [row] = await room.runs.dispatches.list_dispatches(ADA)
    run = await room.runs.threads.load_run(row.run_id)
    assert (row.status, run.status) == (RunDispatchStatus.CLAIMED, RunStatus.RUNNING)
    assert run.input.trigger_message_ids == (f"mail-{answer['id']}",)
    assert (await room.handled(answer["id"], "Ada")).run_id == row.run_id
    assert await room.waker.round() == 0
    room.agents.act = None
    await heir_of(room)
    assert [who[:2] for who, _ in room.agents.prompts] == ["Bo", "Ad"]


@pytest.mark.parametrize("fails", [False, True], ids=["done", "given up"])
async def test_the_end_of_a_run_wakes_whoever_asked_without_a_round(room, fails):
    await room.people("Ada", "Bo", runners=("Ada", "Bo"))

    async def act(activation):
        if fails and activation.agent_id.startswith("Bo"):
            raise Unauthorized("the model's key is not known")

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.mailbox.settled()
    assert [who[:2] for who, _ in room.agents.prompts] == ["Bo", "Ad"]
    assert ("key is not known" in room.agents.prompts[1][1][0]) is fails
    assert await room.waker.round() == 0


async def test_an_answer_for_an_agent_at_work_is_on_its_thread_when_the_run_has_ended(room):
    await room.people("Ada", "Bo", "Cy", runners=("Ada", "Bo"))
    began, goes_on = room.agents.hold("Ada")
    await room.send("Cy", "Ada")
    await began.wait()
    await room.send("Ada", "Bo")
    async with asyncio.timeout(PATIENCE):
        while not await room.runs.threads.pending_messages(ADA):
            await asyncio.sleep(0)
    [waiting] = await room.runs.threads.pending_messages(ADA)
    [row] = await room.runs.dispatches.list_dispatches(BO)
    assert row.status is RunDispatchStatus.ACKED
    assert waiting.pending_id == f"mail-{(await room.inbox('Ada'))[-1]['id']}"
    goes_on.set()
    await room.turn()
    assert [who[:2] for who, _ in room.agents.prompts] == ["Ad", "Bo", "Ad"]


async def test_what_comes_for_an_agent_at_work_waits_on_its_thread_and_is_one_run(room):
    await room.people("Ada", "Bo", runners=("Bo",))
    began, goes_on = room.agents.hold()
    await room.send("Ada", "Bo", thread_id="plan")
    await began.wait()
    more = [await room.send("Ada", "Bo", thread_id="plan") for _ in range(5)]
    waiting = await room.runs.threads.pending_messages(BO)
    assert [one.pending_id for one in waiting] == [f"mail-{number(one)}" for one in more]
    assert len(await room.runs.dispatches.list_dispatches(BO, OPEN)) == 1
    goes_on.set()
    await room.turn()
    assert [len(messages) for _, messages in room.agents.prompts] == [1, 5]


async def test_a_queue_without_a_free_slot_keeps_the_run_for_later(room):
    await room.people("Ada", "Bo", "Cy", runners=("Bo", "Cy"))
    slots = room.mailbox._dispatcher.slots
    taken = [slots.take("another", None) for _ in range(slots.free)]
    await room.send("Ada", "Bo")
    [row] = await room.runs.dispatches.list_dispatches(BO)
    assert row.status is RunDispatchStatus.QUEUED
    for _ in taken:
        slots.give(None)
    await room.mailbox.poll()
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "Bo did it")]


async def test_a_message_to_an_agent_that_cannot_be_put_together_now_is_stored_and_waits(room, monkeypatch):
    await room.people("Ada", "Bo", runners=("Bo",))

    async def refuses(request, *, run_id):
        raise Unauthorized("the model's key is not known")

    with monkeypatch.context() as broken:
        broken.setattr(room.mailbox._core.pinning, "pin", refuses)
        sent = await room.send("Ada", "Bo")
    [waiting] = await room.runs.threads.pending_messages(BO)
    assert waiting.pending_id == f"mail-{number(sent)}"
    await room.mailbox.run_sweep()
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "Bo did it")]


async def test_a_server_that_drains_stores_the_message_and_leaves_its_run_to_the_next(room):
    await room.people("Ada", "Bo", runners=("Bo",))
    await room.mailbox.aclose()
    await room.send("Ada", "Bo")
    [row] = await room.runs.dispatches.list_dispatches(BO)
    assert row.status is RunDispatchStatus.QUEUED
    await heir_of(room)
    assert await room.texts("Ada") == [("Bo", "Bo did it")]


async def test_what_was_stored_without_a_server_wakes_its_reader_when_there_is_one(room):
    await room.people("Ada", "Bo", runners=("Bo",))
    room.wakes = False
    await room.send("Ada", "Bo")
    assert await room.runs.threads.list_runs(RunQuery()) == ()
    await room.turn()
    assert await room.texts("Ada") == [("Bo", "Bo did it")]
    assert await room.waker.round() == 0


async def test_unread_mail_wakes_an_agent_that_is_given_a_runner_and_one_that_comes_back(room):
    await room.people("Ada", "Bo", "Cy", runners=("Cy",))
    await room.send("Ada", "Bo")
    room.wakes = False
    await room.send("Ada", "Cy")
    await room.mail.call("retire_agent", {"project_key": PROJECT, "agent_name": "Cy"})
    await room.turn()
    assert room.agents.prompts == []
    told = await room.mail.set_runner(PROJECT, "Bo", "{}")
    assert (told.had_one, told.waking) == (False, 1)
    await room.mail.call("unretire_agent", {"project_key": PROJECT, "agent_name": "Cy"})
    await room.turn()
    assert sorted(who[:2] for who, _ in room.agents.prompts) == ["Bo", "Cy"]


async def test_a_message_to_very_many_agents_wakes_all_of_them(room):
    names = [f"Bo{number}" for number in range(MAX_AT_ONCE + 3)]
    await room.people("Ada", *names, runners=tuple(names))
    await room.send("Ada", *names)
    assert len(await room.runs.threads.list_runs(RunQuery())) == MAX_AT_ONCE
    await room.turn()
    assert len(room.agents.prompts) == len(names)


@both_engines
async def test_readers_who_were_given_runners_meanwhile_are_locked_and_woken_as_well(room, monkeypatch):
    """The change learns whom it wakes, and is run again with their threads locked, until it knows them all."""
    await room.people("Ada", "Bo", "Cy", runners=("Bo",))
    whole, asked = room.mailbox.accepting, []

    async def accepting(thread_ids, change, *, key):
        if len(asked) == 1:
            await room.mail.set_runner(PROJECT, "Cy", "{}")
        asked.append(len(thread_ids))
        return await whole(thread_ids, change, key=key)

    monkeypatch.setattr(room.mailbox, "accepting", accepting)
    await room.send("Ada", "Bo", "Cy")
    assert asked == [0, 1, 2]
    await room.turn()
    assert len(room.agents.prompts) == 2


async def held_up(room: Room, name: str) -> asyncio.Event:
    """Make an agent begin with a message; return the event that ends its run."""
    began, goes_on = room.agents.hold(name)
    await room.send("Ada", name, body="first")
    await asyncio.wait_for(began.wait(), 30)
    return goes_on


async def test_a_message_to_an_agent_with_too_many_waiting_messages_is_refused_and_nothing_is_lost(
    stores, clock
):
    room = Room(*stores, clock=clock, max_pending=2)
    await room.people("Ada", "Bo", "Cy", runners=("Bo",))
    goes_on = await held_up(room, "Bo")
    for body in ("second", "third"):
        await room.send("Ada", "Bo", body=body)
    with pytest.raises(QueueFull, match="nothing was sent: the queue of messages for Bo is full"):
        await room.send("Ada", "Bo", "Cy", body="fourth")
    assert await room.texts("Cy") == []
    assert [body for _, body in await room.texts("Bo")] == ["first", "second", "third"]
    goes_on.set()
    await room.turn()
    await room.send("Ada", "Bo", "Cy", body="fourth")
    await room.turn()
    read = [text for _, prompts in room.agents.prompts for text in prompts]
    assert [sum(body in text for text in read) for body in ("first", "second", "third", "fourth")] == [1] * 4
    assert await room.texts("Cy") == [("Ada", "fourth")]
    await room.close()


async def test_the_answer_of_a_run_to_an_agent_with_too_many_waiting_messages_wakes_it_later(stores, clock):
    room = Room(*stores, clock=clock, max_pending=1)
    await room.people("Ada", "Bo", "Cy", runners=("Bo", "Cy"))
    goes_on = await held_up(room, "Bo")
    await room.send("Ada", "Bo", body="second")
    await room.send("Bo", "Cy", body="a question")
    async with asyncio.timeout(PATIENCE):
        while ("Cy", "Cy did it") not in await room.texts("Bo"):
            await asyncio.sleep(0)
    assert await room.waker.round() == 0, "it waits for its turn"
    goes_on.set()
    await room.turn()
    read = [text for who, prompts in room.agents.prompts for text in prompts if who.startswith("Bo")]
    assert sum("Cy did it" in text for text in read) == 1
    await room.close()


class AwayAtFirst:
    """A store that cannot be read until it is back."""

    def __init__(self, store):
        self.changes, self._store = store.changes, store
        self.is_away, self.refused = True, asyncio.Event()

    async def read(self, look):
        if self.is_away:
            self.refused.set()
            raise StoreUnavailable("the store is away")
        return await self._store.read(look)


async def test_a_hint_wakes_readers_whom_no_change_has_woken_also_after_a_round_that_failed(
    room, monkeypatch
):
    monkeypatch.setattr(waker, "POLL", timedelta(hours=1))
    await room.people("Ada", "Bo", runners=("Bo",))
    room.wakes, store, began = False, AwayAtFirst(room.store), asyncio.Event()
    serving = waker.Waker(store, room.mailbox, verified=False, chat_delivery=StoredChatDelivery(room.mail))

    async def act(activation):
        began.set()

    room.agents.act = act
    tasks = Tasks("waker")
    tasks.start(serving.serve(), name="waker")
    async with asyncio.timeout(60):
        await store.refused.wait()
        store.is_away = False
        await room.send("Ada", "Bo")
        await began.wait()
    await tasks.close()
