"""A question that ended in the turn that asked it, before anybody saw it, has a record like every other."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from machine import PATIENCE
from postroom.contracts.errors import Overloaded, Unauthorized
from postroom.mail.context import Caller
from postroom.testing import ManualClock
from waking_room import PROJECT, both_engines
from work_room import SLUG, TOKEN, WorkRoom


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock)
    await made.people("Ada", "Bo", runners=("Bo",))
    yield made
    await made.close()


async def ask(room: WorkRoom, activation: Any, question: str = "May I?", key: str = "", **more: Any) -> str:
    """Let Bo ask in his run, and return the number of the question."""
    asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id, "question": question}
    more |= {"idempotency_key": key} if key else {}
    view = await room.mail.call("ask_person", {**asked, **more})
    assert view["asked"] or key
    return view["question_id"]


async def record(room: WorkRoom, number: str) -> tuple[str, str, str]:
    """Return the state, the text and the end of a question, and require that no place showed it."""
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        found = await operator.get("/admin/questions/one", params={"number": number})
    assert found.status_code == 200, found.text
    said = found.json()
    if said["state"] == "closed":
        assert said["shown"] == []
        assert said["asked_at"] <= said["answered_at"]
    return said["state"], said["question"], said["answer"]


async def logged(room: WorkRoom, number: str) -> list[str]:
    found = await room.mail.call("fetch_events", {"project_key": PROJECT, "after": 0})
    return [one["kind"] for one in found["events"] if one["detail"].get("question_id") == number]


async def decided(room: WorkRoom) -> list[str]:
    asked = {"project_key": PROJECT, "after": 0}
    found = await room.mail.call("catch_up", asked, caller=Caller(operator=True))
    return [one["text"] for one in found["sentences"] if one["about"] == "decided"]


@both_engines
async def test_a_question_of_a_turn_that_failed_has_a_record_on_every_surface(room):
    numbers, runs = list[str](), list[str]()

    async def act(activation: Any) -> None:
        numbers.append(await ask(room, activation))
        runs.append(activation.run_id)
        raise Unauthorized("the key is not known")

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    why = "the run failed before anybody saw the question"
    assert await record(room, numbers[0]) == ("closed", "May I?", why)
    assert await logged(room, numbers[0]) == ["question.asked", "question.withdrawn"]
    assert await decided(room) == [f'Question {numbers[0]} of Bo, "May I?", was closed: "{why}".']
    browser = room.browser()
    for page in (f"/p/{SLUG}/runs/{runs[0]}", f"/p/{SLUG}/questions"):
        assert why in (await browser.get(page)).text, page


@both_engines
async def test_a_question_of_a_turn_that_was_cancelled_has_a_record(room):
    numbers = list[str]()

    async def act(activation: Any) -> None:
        numbers.append(await ask(room, activation))
        await room.operator.cancel(activation.run_id)

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    state, _, why = await record(room, numbers[0])
    assert (state, why) == ("closed", "the run was cancelled by an operator before anybody saw the question")
    assert await logged(room, numbers[0]) == ["question.asked", "question.withdrawn"]


@both_engines
async def test_questions_of_a_failed_attempt_and_of_its_retry_have_a_record_each(room, clock):
    numbers = list[str]()

    async def act(activation: Any) -> None:
        if activation.decisions:
            return
        numbers.append(await ask(room, activation))
        if len(numbers) == 1:
            raise Overloaded("come back later")

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    clock.advance(timedelta(minutes=1))
    await room.runs.mailbox.recover()
    await room.turn()
    assert len(numbers) == 2
    assert await record(room, numbers[0]) == (
        "closed",
        "May I?",
        "the attempt failed before anybody saw the question",
    )
    assert (await record(room, numbers[1]))[0] == "open"
    await room.questions.answer(numbers[1], "yes", by="ana")
    await room.turn()
    assert (await record(room, numbers[0]))[0] == "closed"
    assert (await record(room, numbers[1]))[0] == "answered"
    assert await logged(room, numbers[0]) == ["question.asked", "question.withdrawn"]
    assert await logged(room, numbers[1]) == ["question.asked", "question.answered"]


@both_engines
@pytest.mark.parametrize("fails", [False, True])
async def test_a_question_that_another_one_replaced_in_its_turn_has_a_record(room, fails):
    numbers = list[str]()

    async def act(activation: Any) -> None:
        for table in "aba":
            numbers.append(await ask(room, activation, action=f"DROP TABLE {table}"))
        if fails:
            raise Unauthorized("the key is not known")

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    first, second, third = numbers
    assert await record(room, first) == ("closed", "May I?", f"Bo has asked this again as question {second}")
    assert await record(room, second) == ("closed", "May I?", f"Bo has asked this again as question {third}")
    assert (await record(room, third))[0] == ("closed" if fails else "open")
    assert [one["number"] for one in await room.questions.questions()] == ([] if fails else [third])
    for number in (first, second):
        assert await logged(room, number) == ["question.asked", "question.withdrawn"]


@both_engines
async def test_repeated_calls_of_a_retry_ask_the_replaced_and_the_replacing_question_once(room, clock):
    """A stored result promises its number, so the retry asks again under the numbers of the lost attempt."""
    numbers = list[str]()

    async def act(activation: Any) -> None:
        for table in "ab":
            numbers.append(await ask(room, activation, key=f"key-{table}", action=f"DROP TABLE {table}"))
        if len(numbers) == 2:
            raise Overloaded("come back later")

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    clock.advance(timedelta(minutes=1))
    await room.runs.mailbox.recover()
    await room.turn()
    first, second = numbers[:2]
    assert numbers[2:] == [first, second]
    assert (await record(room, first))[0] == "closed"
    assert (await record(room, second))[0] == "open"
    assert [one["number"] for one in await room.questions.questions()] == [second]


@both_engines
async def test_a_question_of_an_attempt_whose_server_was_lost_has_a_record(stores, clock):
    rooms = [WorkRoom(*stores, clock)]
    await rooms[0].people("Ada", "Bo", runners=("Bo",))
    numbers, has_asked = list[str](), asyncio.Event()

    async def act(activation: Any) -> None:
        if activation.decisions:
            return
        numbers.append(await ask(rooms[-1], activation))
        if len(numbers) == 1:
            has_asked.set()
            await asyncio.Event().wait()

    rooms[0].agents.act = act
    await rooms[0].send("Ada", "Bo")
    await asyncio.wait_for(has_asked.wait(), PATIENCE)
    assert (await logged(rooms[0], numbers[0])) == ["question.asked"]
    await rooms[0].runs.mailbox.abandon()
    rooms.append(WorkRoom(*stores, clock))
    rooms[1].agents.act = act
    clock.advance(timedelta(minutes=10))
    await rooms[1].runs.mailbox.recover()
    await rooms[1].turn()
    why = "its server or its lease was lost before anybody saw the question"
    assert await record(rooms[1], numbers[0]) == ("closed", "May I?", why)
    assert (await record(rooms[1], numbers[1]))[0] == "open"
    assert await logged(rooms[1], numbers[0]) == ["question.asked", "question.withdrawn"]
    await rooms[1].close()


async def test_a_call_repeated_after_its_question_was_replaced_asks_nobody(room):
    """After the answer, the program calls with the keys of its first turn again."""
    numbers = list[str]()

    async def act(activation: Any) -> None:
        for table in "ab":
            numbers.append(await ask(room, activation, key=f"key-{table}", action=f"DROP TABLE {table}"))

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    await room.questions.answer(numbers[1], "yes", by="ana")
    await room.turn()
    assert numbers == numbers[:2] * 2
    assert await room.questions.questions() == []
    assert [(await record(room, number))[0] for number in numbers[:2]] == ["closed", "answered"]
    assert (await room.messages())[-1].body_md == "Bo did it"
