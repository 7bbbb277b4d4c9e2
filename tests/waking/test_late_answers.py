"""An answer after the deadline of a question is refused on every surface, also before the server ends the question."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from machine import PATIENCE
from postroom.contracts.clock import iso
from postroom.contracts.errors import StaleDecision
from postroom.gateway.questions import Questions
from postroom.gateway.session import Platform, SessionSource
from postroom.services.questions import QuestionTimeouts
from postroom.testing import ManualClock
from waking.test_questions_left_open import Turns
from waking_room import PROJECT, both_engines
from work_room import QUESTIONS, TOKEN, WorkRoom, hidden, post

LIMIT = timedelta(seconds=60)
ENDS = {
    "no": ({"on_timeout": "no"}, ("answered", "nobody", "no answer came in time")),
    "default": (
        {"on_timeout": "default", "default": "later", "text": True},
        ("answered", "nobody", "later (no answer came in time)"),
    ),
    "cancel": (
        {"on_timeout": "cancel"},
        ("closed", "nobody", "no answer came in time, so the run was cancelled"),
    ),
}


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock)
    await made.people("Ada", "Ash", "Bo", runners=("Ash", "Bo"))
    yield made
    await made.close()


async def by_command(room: WorkRoom, listed: dict[str, Any]) -> str:
    with pytest.raises(StaleDecision) as caught:
        await room.questions.answer(listed["number"], "yes", by="ana")
    return caught.value.message


async def over_http(room: WorkRoom, listed: dict[str, Any]) -> str:
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        body = {"number": listed["number"], "answer": "yes", "by": "ana"}
        found = await operator.post("/admin/questions", json=body)
    assert (found.status_code, found.json()["code"]) == (409, "stale_decision"), found.text
    return found.text


async def on_page(room: WorkRoom, listed: dict[str, Any]) -> str:
    async with room.browser() as browser:
        token = hidden((await browser.get(QUESTIONS)).text, "form_token")
        fields = (("run", listed["run_id"]), ("number", listed["number"]), ("by", "ana"), ("answer", "yes"))
        found = await post(browser, QUESTIONS, ("form_token", token), *fields)
    assert found.status_code == 409, found.text
    return found.text


async def in_chat(room: WorkRoom, listed: dict[str, Any]) -> str:
    chat = Questions(room.runs.mailbox, room.stores.threads, room.clock)
    who = SessionSource(platform=Platform.TELEGRAM, chat_id="1", chat_type="dm", user_id="7", user_name="ana")
    decided = await chat.decide([listed["thread_id"]], who, f"{listed['number']} yes", approved=None)
    assert decided.question is None  # the card keeps its buttons until the question ends
    return decided.note


async def by_mail(room: WorkRoom, listed: dict[str, Any]) -> str:
    asks = (await room.messages())[-1]
    reply = {"project_key": PROJECT, "sender_name": "Ada", "message_id": asks.id, "body_md": "yes"}
    [delivery] = (await room.mail.call("reply_message", reply))["deliveries"]
    return delivery["seen"][0]


async def record(room: WorkRoom, number: str) -> tuple[str, str, str]:
    found = await room.questions.show(number)
    return found["state"], found["answered_by"], found["answer"]


@both_engines
@pytest.mark.parametrize("surface", [by_command, over_http, on_page, in_chat, by_mail])
@pytest.mark.parametrize("on_timeout", ENDS)
async def test_an_answer_between_the_deadline_and_the_end_of_its_question_is_refused(
    room, clock, on_timeout, surface
):
    more, end = ENDS[on_timeout]
    room.agents.asks = {"timeout_seconds": 60, **more}
    await room.send("Ada", "Ash")
    await room.turn()
    [listed] = await room.questions.questions()
    clock.advance(LIMIT)
    over = f"uestion {listed['number']} timed out at {iso(clock.now())}"
    assert over in await surface(room, listed)
    assert await record(room, listed["number"]) == ("open", "", "")
    assert await QuestionTimeouts(room.runs, clock, clock).round() == 1
    await room.turn()
    assert await record(room, listed["number"]) == end


async def test_an_answer_that_meets_the_end_of_its_question_is_not_told_that_somebody_answered(
    room, clock, monkeypatch
):
    room.agents.asks = {"timeout_seconds": 60, "on_timeout": "cancel"}
    await room.send("Ada", "Ash")
    await room.turn()
    [listed] = await room.questions.questions()
    async with room.browser() as browser:
        token = hidden((await browser.get(QUESTIONS)).text, "form_token")
        read, ended = Questions.open, QuestionTimeouts(room.runs, clock, clock)

        async def read_before_the_end(chat: Questions, thread_id: str) -> Any:
            found = await read(chat, thread_id)
            clock.advance(LIMIT)
            assert await ended.round() == 1
            return found

        monkeypatch.setattr(Questions, "open", read_before_the_end)
        chat = Questions(room.runs.mailbox, room.stores.threads, clock)
        who = SessionSource(platform=Platform.TELEGRAM, chat_id="1", chat_type="dm", user_id="7")
        words = f"{listed['number']} yes"
        decided = await chat.decide([listed["thread_id"]], who, words, approved=None)
        fields = (("run", listed["run_id"]), ("number", listed["number"]), ("by", "ana"), ("answer", "yes"))
        page = await post(browser, QUESTIONS, ("form_token", token), *fields)
    closed = "Closed: no answer came in time, so the run was cancelled."
    assert decided.note == f"Question {listed['number']} is not open. {closed}"
    assert page.status_code == 409
    assert "<h1>This question is no longer open</h1>" in page.text


async def test_a_question_without_a_timeout_takes_an_answer_after_any_time(room, clock):
    await room.send("Ada", "Ash")
    await room.turn()
    [listed] = await room.questions.questions()
    clock.advance(timedelta(days=400))
    await room.questions.answer(listed["number"], "yes", by="ana")
    assert (await record(room, listed["number"]))[:2] == ("answered", "ana")


@both_engines
@pytest.mark.parametrize("question", ["B?", "C?"], ids=["its own answer", "the answer to another question"])
async def test_no_answer_is_taken_in_a_turn_once_a_deadline_cancels_the_run(room, clock, question):
    limit = {"timeout_seconds": 20, "on_timeout": "cancel"}
    bo = Turns(room, {"question": "A?"}, {"question": "B?", **limit}, {"question": "C?"})
    numbers = dict(zip(("A?", "B?", "C?"), await bo.asked(), strict=True))
    await bo.answered(numbers["A?"])
    clock.advance(timedelta(seconds=20))
    over = f"question {numbers['B?']} timed out at {iso(clock.now())}"
    with pytest.raises(StaleDecision, match=re.escape(over)):
        await room.questions.answer(numbers[question], "yes", by="bob")
    await QuestionTimeouts(room.runs, clock, clock).round()
    await bo.end()
    why = "no answer came in time, so the run was cancelled"
    assert [await record(room, numbers[one]) for one in ("B?", "C?")] == [("closed", "nobody", why)] * 2
    assert bo.told == [[], ["ana"]]


@both_engines
async def test_no_answer_is_taken_in_a_turn_that_is_being_cancelled(room):
    working, go_on = asyncio.Event(), asyncio.Event()
    runs = list[str]()

    async def act(activation: Any) -> None:
        runs.append(activation.run_id)
        asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        if len(runs) == 1:
            for question in ("A?", "B?"):
                await room.mail.call("ask_person", {**asked, "question": question})
            return
        working.set()
        while not go_on.is_set():  # a program that takes its time to end
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(go_on.wait(), PATIENCE)

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    numbers = {one["question"]: one["number"] for one in await room.questions.questions()}
    await room.questions.answer(numbers["A?"], "yes", by="ana")
    turn = asyncio.create_task(room.turn())
    await asyncio.wait_for(working.wait(), PATIENCE)
    await room.operator.cancel(runs[0], "kim")
    try:
        with pytest.raises(StaleDecision):
            await room.questions.answer(numbers["B?"], "yes", by="bob")
    finally:
        go_on.set()
        await turn
    closed = ("closed", "nobody", "the run was cancelled by kim")
    assert await record(room, numbers["B?"]) == closed
