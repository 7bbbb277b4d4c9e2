"""Every question of a run ends once on every surface, whatever the run does in the turn after an answer."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from machine import PATIENCE
from postroom.contracts.clock import iso
from postroom.contracts.errors import StaleDecision
from postroom.mail.context import Caller
from postroom.services.questions import QuestionTimeouts
from postroom.testing import ManualClock
from waking_room import PROJECT, both_engines
from work_room import QUESTIONS, SLUG, TOKEN, WorkRoom, hidden, post


class Turns:
    """Lets the runs of a fake agent ask questions, and holds each turn but the first until the test goes on."""

    def __init__(self, room: WorkRoom, *questions: dict[str, Any]) -> None:
        self.room, self.questions = room, questions
        self.told = list[list[str]]()
        self.then: Callable[[Any], Any] | None = None
        self.working, self.go_on = asyncio.Event(), asyncio.Event()
        self.run_id, self.rest = "", None
        room.agents.act = self._act

    async def _act(self, activation: Any) -> Any:
        self.run_id = activation.run_id
        self.told.append([decision.by for _, decision in activation.decisions])
        if len(self.told) == 1:
            for question in self.questions:
                await self.ask(**question)
            return None
        self.working.set()
        await asyncio.wait_for(self.go_on.wait(), PATIENCE)
        self.go_on.clear()
        then, self.then = self.then, None
        return None if then is None else await then(activation)

    async def ask(self, question: str, **more: Any) -> str:
        asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": self.run_id, "question": question}
        return (await self.room.mail.call("ask_person", {**asked, **more}))["question_id"]

    async def asked(self) -> list[str]:
        """Let the run ask its questions, and return their numbers."""
        await self.room.send("Ada", "Bo")
        await self.room.turn()
        numbers = {one["question"]: one["number"] for one in await self.room.questions.questions()}
        return [numbers[question["question"]] for question in self.questions]

    async def answered(self, number: str, given: str = "yes", *, by: str = "ana") -> None:
        """Answer a question, and return when the run works with the answer."""
        await self.room.questions.answer(number, given, by=by)
        self.rest = asyncio.create_task(self.room.turn())
        await asyncio.wait_for(self.working.wait(), PATIENCE)
        self.working.clear()

    async def end(self, then: Callable[[Any], Any] | None = None) -> None:
        """Let the turn end after `then`."""
        self.then = then
        self.go_on.set()
        await asyncio.wait_for(self.rest, PATIENCE)


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock)
    await made.people("Ada", "Bo", runners=("Bo",))
    yield made
    await made.close()


@pytest.fixture
def timeouts(room: WorkRoom) -> QuestionTimeouts:
    return QuestionTimeouts(room.runs, room.clock, room.clock)


async def found(room: WorkRoom, number: str) -> tuple[str, str]:
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        record = await operator.get("/admin/questions/one", params={"number": number})
    assert record.status_code == 200, record.text
    return record.json()["state"], record.json()["answer"]


async def log(room: WorkRoom) -> list[tuple[str, str]]:
    entries = await room.mail.call("fetch_events", {"project_key": PROJECT, "after": 0})
    return [(one["kind"], one["detail"].get("question_id", "")) for one in entries["events"]]


async def logged(room: WorkRoom, number: str) -> list[str]:
    return [kind.removeprefix("question.") for kind, about in await log(room) if about == number]


async def received(room: WorkRoom) -> list[str]:
    """Return the texts of Ada's messages, oldest first."""
    inbox = await room.mail.call("fetch_inbox", {"project_key": PROJECT, "agent_name": "Ada", "after": 0})
    return [one["body_md"] for one in inbox]


async def listed(room: WorkRoom) -> set[str]:
    return {one["number"] for one in await room.questions.questions()}


@both_engines
async def test_the_open_questions_of_a_run_stay_open_if_its_next_turn_asks_another_one(room):
    bo = Turns(room, {"question": "A?"}, {"question": "B?"}, {"question": "C?"})
    a, b, c = await bo.asked()
    await bo.answered(a)

    async def then(_: Any) -> None:
        await bo.ask("D?")

    await bo.end(then)
    [d] = await listed(room) - {b, c}
    assert await listed(room) == {b, c, d}
    told = (await received(room))[-1]
    assert [question in told for question in ("- A?", "- B?", "- C?", "- D?")] == [False, True, True, True]
    await bo.answered(b, "no", by="bob")
    assert await listed(room) == {c, d}
    await bo.end()
    assert bo.told == [[], ["ana"], ["bob"]]
    assert [await found(room, one) for one in (c, d)] == [("closed", "the run ended")] * 2
    assert [await logged(room, one) for one in (a, b)] == [["asked", "answered"]] * 2
    assert [await logged(room, one) for one in (c, d)] == [["asked", "withdrawn"]] * 2


@both_engines
@pytest.mark.parametrize("late", [False, True], ids=["no late answer", "a late answer"])
async def test_a_question_that_the_next_turn_asks_again_is_recorded_as_replaced(room, clock, late):
    questions = ({"question": "A?"}, {"question": "B?", "action": "drop a"}, {"question": "C?"})
    bo = Turns(room, *questions)
    a, b, c = await bo.asked()
    await bo.answered(a)
    again = list[str]()

    async def then(_: Any) -> None:
        clock.advance(timedelta(milliseconds=1))
        again.append(await bo.ask("B?", action="drop b"))
        with pytest.raises(StaleDecision, match=f"Bo has asked this again as question {again[0]}"):
            await room.questions.answer(b, "yes", by="bob")
        assert await found(room, b) == ("closed", f"Bo has asked this again as question {again[0]}")
        assert await listed(room) == {c}
        if late:
            await room.questions.answer(c, "no", by="cyd")

    bo.then = then
    bo.go_on.set()
    if late:
        await asyncio.wait_for(bo.working.wait(), PATIENCE)
    else:
        await bo.end(then)
    [b2] = again
    assert await listed(room) == ({b2} if late else {b2, c})
    why = f"Bo has asked this again as question {b2}"
    assert await found(room, b) == ("closed", why)
    assert await logged(room, b) == ["asked", "withdrawn"]
    with pytest.raises(StaleDecision, match=why):
        await room.questions.answer(b, "yes", by="bob")
    if not late:
        await bo.answered(b2)
    await bo.end()
    assert await found(room, b) == ("closed", why)
    assert await logged(room, b) == ["asked", "withdrawn"]
    summary = await room.mail.call(
        "catch_up", {"project_key": PROJECT, "after": 0}, caller=Caller(operator=True)
    )
    assert [one["text"] for one in summary["sentences"] if f"Question {b} " in one["text"]] == [
        f'Question {b} of Bo, "B?", was closed: "{why}".'
    ]


@both_engines
async def test_the_deadline_of_a_question_ends_nothing_once_the_run_has_asked_it_again(room, timeouts, clock):
    limit = {"timeout_seconds": 20, "on_timeout": "cancel"}
    bo = Turns(room, {"question": "A?"}, {"question": "B?", "action": "drop a", **limit})
    a, b = await bo.asked()
    await bo.answered(a)

    async def then(_: Any) -> None:
        await bo.ask("B?", action="drop b")
        clock.advance(timedelta(seconds=21))
        await timeouts.round()

    await bo.end(then)
    [b2] = await listed(room)
    assert b2 != b
    assert await logged(room, b) == ["asked", "withdrawn"]
    await bo.answered(b2, by="bob")
    await bo.end()
    assert bo.told == [[], ["ana"], ["bob"]]


@both_engines
@pytest.mark.parametrize("late", [False, True], ids=["no late answer", "a late answer"])
async def test_a_question_that_the_next_turn_asks_again_unchanged_is_the_same_question(room, clock, late):
    bo = Turns(room, {"question": "A?"}, {"question": "B?", "action": "drop a"})
    a, b = await bo.asked()
    await bo.answered(a)
    state = "answered" if late else "open"

    async def then(_: Any) -> None:
        if late:
            await room.questions.answer(b, "no", by="bob")
        clock.advance(timedelta(milliseconds=1))
        for key in ("first", "first", "second"):
            asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": bo.run_id, "question": "B?"}
            seen = await room.mail.call("ask_person", {**asked, "action": "drop a", "idempotency_key": key})
            assert seen == {"question_id": b, "asked": False, "state": state}

    if late:
        bo.then = then
        bo.go_on.set()
        await asyncio.wait_for(bo.working.wait(), PATIENCE)
    else:
        await bo.end(then)
        assert await listed(room) == {b}
        await bo.answered(b, "no", by="bob")
    await bo.end()
    assert bo.told == [[], ["ana"], ["bob"]]
    assert await logged(room, b) == ["asked", "answered"]


@both_engines
async def test_an_agent_that_is_retired_at_work_still_gets_the_answer_that_came_before(room):
    bo = Turns(room, {"question": "A?"}, {"question": "B?"}, {"question": "C?"})
    a, b, c = await bo.asked()
    await bo.answered(a)
    await room.questions.answer(b, "no", by="bob")
    await room.mail.call("retire_agent", {"project_key": PROJECT, "agent_name": "Bo"})
    bo.go_on.set()
    await asyncio.wait_for(bo.working.wait(), PATIENCE)
    await bo.end()
    assert bo.told == [[], ["ana"], ["bob"]]
    assert (await found(room, c))[0] == "closed"
    assert [await logged(room, one) for one in (b, c)] == [["asked", "answered"], ["asked", "withdrawn"]]


@both_engines
async def test_a_deadline_that_cancels_a_run_at_work_ends_it_and_its_questions_once(room, timeouts, clock):
    limit = {"timeout_seconds": 20, "on_timeout": "cancel"}
    bo = Turns(room, {"question": "A?"}, {"question": "B?", **limit}, {"question": "C?"})
    a, b, c = await bo.asked()
    await bo.answered(a)
    clock.advance(timedelta(seconds=20))
    await timeouts.round()
    await timeouts.round()
    await bo.end()
    kinds = [kind for kind, _ in await log(room)]
    assert kinds.count("run.failed") == 1
    assert "run.ended" not in kinds
    assert await logged(room, a) == ["asked", "answered"]
    assert [await logged(room, one) for one in (b, c)] == [["asked", "withdrawn"]] * 2
    why = "no answer came in time, so the run was cancelled"
    assert [await found(room, one) for one in (b, c)] == [("closed", why)] * 2
    told = await received(room)
    assert told[-1] == "Bo could not process your message: no answer came in time"
    assert len(told) == 2


@both_engines
@pytest.mark.parametrize("seconds", [10, 20], ids=["earlier", "at the same time"])
async def test_a_no_by_silence_in_a_turn_that_another_deadline_cancels_has_its_end_in_the_log(
    room, timeouts, clock, seconds
):
    bo = Turns(
        room,
        {"question": "A?"},
        {"question": "B?", "timeout_seconds": seconds, "on_timeout": "no"},
        {"question": "C?", "timeout_seconds": 20, "on_timeout": "cancel"},
    )
    a, b, c = await bo.asked()
    await bo.answered(a)
    for _ in range(2):
        clock.advance(timedelta(seconds=10))
        await timeouts.round()
    await bo.end()
    why = "no answer came in time, so the run was cancelled"
    assert [await found(room, one) for one in (b, c)] == [("closed", why)] * 2
    assert [await logged(room, one) for one in (b, c)] == [["asked", "withdrawn"]] * 2


@both_engines
async def test_an_answer_is_logged_once_if_the_turn_that_gets_it_is_retried(room, clock):
    bo = Turns(room, {"question": "A?"})
    [a] = await bo.asked()
    await bo.answered(a)

    async def then(_: Any) -> None:
        raise ConnectionError("the provider is away")

    await bo.end(then)
    clock.advance(timedelta(minutes=1))
    bo.go_on.set()
    await room.runs.mailbox.recover()
    await room.turn()
    assert bo.told == [[], ["ana"], ["ana"]]
    assert await logged(room, a) == ["asked", "answered"]


async def test_the_page_of_a_run_at_work_shows_its_open_question_and_takes_the_answer(room):
    bo = Turns(room, {"question": "A?"}, {"question": "B?"})
    a, _ = await bo.asked()
    await bo.answered(a)
    browser, address = room.browser(), f"/p/{SLUG}/runs/{bo.run_id}"
    _, _, cards = (await browser.get(address)).text.partition('class="cards run-asks"')
    cards, _, _ = cards.partition("</ol>")
    assert re.findall(r"[AB]\?", cards)[:1] == ["B?"]
    assert a not in cards
    fields = [(name, hidden(cards, name)) for name in ("form_token", "back", "run", "number")]
    done = await post(browser, QUESTIONS, *fields, ("answer", "yes"), ("by", "bob"))
    assert done.headers["location"].partition("?answered=")[0] == address
    assert 'class="cards run-asks"' not in (await browser.get(address)).text
    bo.go_on.set()
    await asyncio.wait_for(bo.working.wait(), PATIENCE)
    await bo.end()
    assert bo.told == [[], ["ana"], ["bob"]]


@both_engines
async def test_an_open_question_keeps_the_time_at_which_it_was_asked(room, clock):
    async def then(_: Any) -> None:
        await bo.ask(f"Turn {len(bo.told)}?")

    bo = Turns(room, {"question": "A?"}, {"question": "B?"}, {"question": "C?"})
    asked_at = clock.now()
    a, b, _ = await bo.asked()
    for number, by in ((a, "ana"), (b, "bob")):
        clock.advance(timedelta(minutes=1))
        await bo.answered(number, by=by)
        clock.advance(timedelta(minutes=1))
        await bo.end(then)
    expected = [("C?", asked_at), ("Turn 2?", asked_at + 120_000), ("Turn 3?", clock.now())]
    views = {one["question"]: one["waiting_since"] for one in await room.questions.questions()}
    assert views == {one: iso(at) for one, at in expected}
    shown = await room.look(room.questions.open_questions, SLUG)
    assert [(one.text, one.asked_at) for one in shown] == expected
    pages = [await room.questions.page(1)]
    while (after := pages[-1]["next"]) is not None:
        pages.append(await room.questions.page(1, after))
    assert sorted(one["question"] for page in pages for one in page["questions"]) == [
        one for one, _ in expected
    ]


@pytest.mark.parametrize(
    ("runner", "told"),
    [
        ({}, ["A?", "B?"]),
        ({"kind": "http", "url": "http://127.0.0.1/run", "secret_env": "S"}, ["A?", "B?"]),
        ({"recipe": "claude", "resume": True}, ["B?"]),
        ({"kind": "model", "base_url": "http://127.0.0.1/v1", "model": "m"}, ["B?"]),
    ],
    ids=["program", "another server", "session", "model"],
)
async def test_a_runner_without_a_session_gets_all_answers_of_its_run(room, runner, told):
    await room.mail.set_runner(PROJECT, "Bo", json.dumps(runner))
    bo = Turns(room, {"question": "A?"}, {"question": "B?"})

    async def then(_: Any) -> None:
        await bo.ask("D?")

    a, b = await bo.asked()
    await bo.answered(a)
    await bo.end(then)
    await bo.answered(b)
    await bo.end()
    texts = [re.search("You asked a person: (.*)", text)[1] for text in room.agents.prompts[-1][1]]
    assert texts == told
