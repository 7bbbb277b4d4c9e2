"""A question that nobody answers in time ends as its asker said, and never in a yes."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import pytest

from dispatch_room import done
from postroom.concurrency import Tasks
from postroom.contracts.errors import InvalidArgument, StoreUnavailable
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus
from postroom.contracts.tools import ToolCallResume
from postroom.gateway.questions import answer_run
from postroom.gateway.replies import question_of
from postroom.services.questions import POLL_MS, QuestionTimeouts
from waking_room import PROJECT


@dataclass
class Application:
    """A fake for tests: what `RunService` has, of the room."""

    stores: object
    mailbox: object


@pytest.fixture
def pauses(room):
    return QuestionTimeouts(Application(room.runs, room.mailbox), room.clock, room.clock)


async def asked(room, **more):
    """Make Bo ask a person and wait."""

    async def act(activation):
        if activation.decisions:
            return done(activation, activation.messages[-1].text().splitlines()[1])
        mine = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        await room.mail.call("ask_person", {**mine, "question": "May I?", **more})
        return done(activation, "I wait.")

    await room.people("Ada", "Bo", runners=("Bo",))
    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()


async def waiting(room):
    return await room.runs.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))


async def test_a_question_waits_as_long_as_it_takes_unless_it_says_otherwise(room, pauses):
    await asked(room)
    room.clock.advance(timedelta(days=400))
    assert await pauses.round() == 0
    assert len(await waiting(room)) == 1


async def test_silence_is_a_no_when_the_asker_said_so_and_is_told_once(room, pauses):
    await asked(room, timeout_seconds=60, on_timeout="no")
    room.clock.advance(timedelta(seconds=59, milliseconds=999))
    assert await pauses.round() == 0
    room.clock.advance(timedelta(milliseconds=1))
    assert await pauses.round() == 1
    assert await pauses.round() == 0
    await room.turn()
    told = [text for _, text in await room.texts("Ada")]
    assert told[1:] == ["The answer is no. They said: no answer came in time"]
    assert await waiting(room) == ()


async def test_silence_cancels_the_run_when_the_asker_said_so_and_its_sender_learns_why(room, pauses):
    await asked(room, timeout_seconds=60, on_timeout="cancel")
    room.clock.advance(timedelta(minutes=1))
    assert await pauses.round() == 1
    await room.turn()
    assert await waiting(room) == ()
    told = [text for _, text in await room.texts("Ada")]
    assert len(told) == 2
    assert told[1] == "Bo could not process your message: no answer came in time"
    assert [one["read_at"] for one in await room.inbox("Bo")] == [None]


async def test_an_answer_that_came_before_its_time_counts_though_the_run_has_not_gone_on(room, pauses):
    await asked(room, timeout_seconds=60, on_timeout="no")
    [run] = await waiting(room)
    [ticket] = run.open_tickets
    yes = ToolCallResume(decision_id="yes", result={"approved": True})
    assert await answer_run(room.mailbox, run.thread_id, question_of(run, ticket), yes)
    room.clock.advance(timedelta(minutes=2))
    await pauses.round()
    await room.turn()
    assert [text for _, text in await room.texts("Ada")][1:] == ["The answer is yes."]


async def test_a_time_and_what_silence_means_then_need_one_another(room):
    refused = []

    async def act(activation):
        mine = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id, "question": "?"}
        for more in ({"timeout_seconds": 60}, {"on_timeout": "no"}, {"on_timeout": "cancel"}):
            with pytest.raises(InvalidArgument) as caught:
                await room.mail.call("ask_person", {**mine, **more})
            refused.append(caught.value.remedy)

    await room.people("Ada", "Bo", runners=("Bo",))
    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    assert refused == ["pass both; or pass neither, to wait without a timeout"] * 3
    mine = {"project_key": PROJECT, "agent_name": "Bo", "run_id": "r", "question": "?"}
    for more in ({"on_timeout": "yes", "timeout_seconds": 1}, {"timeout_seconds": 0}):
        with pytest.raises(InvalidArgument):
            await room.mail.call("ask_person", {**mine, **more})


async def test_a_store_that_fails_does_not_end_the_looking(room, pauses, monkeypatch):
    await asked(room, timeout_seconds=60, on_timeout="no")
    room.clock.advance(timedelta(minutes=1))
    read, calls = room.runs.store.read, []

    async def failing(look):
        calls.append(look)
        if len(calls) == 1:
            raise StoreUnavailable("not now")
        return await read(look)

    monkeypatch.setattr(room.runs.store, "read", failing)
    tasks = Tasks("pauses")
    tasks.start(pauses.serve(), name="serve")
    async with asyncio.timeout(60):
        while not calls or not room.clock.sleeping:
            await asyncio.sleep(0)
        room.clock.advance(timedelta(milliseconds=POLL_MS))
        while len(calls) < 2 or not room.clock.sleeping:
            await asyncio.sleep(0)
    await tasks.close()
    await room.turn()
    assert len(await room.texts("Ada")) == 2


@pytest.mark.parametrize("seconds", [4, 17])
async def test_a_question_ends_at_its_deadline_and_not_with_the_next_regular_look(room, pauses, seconds):
    await asked(room, timeout_seconds=seconds, on_timeout="no")
    [run] = await waiting(room)
    tasks = Tasks("pauses")
    tasks.start(pauses.serve(), name="serve")
    async with asyncio.timeout(60):
        for passed in range(seconds):
            while not room.clock.sleeping:
                await asyncio.sleep(0)
            assert len((await waiting(room))[0].answered) == 0, passed
            room.clock.advance(timedelta(seconds=1))
        while not (await room.runs.threads.load_run(run.run_id)).answered:
            await asyncio.sleep(0)
    await tasks.close()


async def test_a_waiting_run_is_cancelled_once_and_not_when_it_went_on_meanwhile(room):
    await asked(room)
    [run] = await waiting(room)
    [ticket] = run.open_tickets
    yes = ToolCallResume(decision_id="yes", result={"approved": True})
    assert await answer_run(room.mailbox, run.thread_id, question_of(run, ticket), yes)
    assert not await room.mailbox.cancel_waiting(run)
    await room.turn()
    assert [text for _, text in await room.texts("Ada")][1:] == ["The answer is yes."]


async def test_cancel_reaches_a_run_that_waits_by_its_id_and_by_its_thread(room):
    for by in ("run_id", "thread_id"):
        room.agents.prompts.clear()
        await asked(room)
        [run] = await waiting(room)
        assert await room.mailbox.cancel(getattr(run, by))
        assert not await room.mailbox.cancel(run.run_id)
        await room.turn()
        assert await waiting(room) == ()
    failed = [text for _, text in await room.texts("Ada") if "could not process" in text]
    assert failed == ["Bo could not process your message: cancelled"] * 2
