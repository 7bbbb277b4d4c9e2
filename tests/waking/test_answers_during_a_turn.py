"""An answer that arrives while its run executes reaches the agent, whatever the run does next."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from machine import PATIENCE
from postroom.contracts.errors import StaleDecision, Unauthorized
from postroom.contracts.questions import PAGES
from postroom.testing import ManualClock
from waking_room import PROJECT, both_engines
from work_room import QUESTIONS as PAGE
from work_room import SLUG, TOKEN, WorkRoom, post, take_back_form

QUESTIONS = ("A?", "B?")
TAKE_BACK = timedelta(seconds=8)


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock, take_back_ms=8_000)
    await made.people("Ada", "Bo", runners=("Bo",))
    yield made
    await made.close()


async def shown(room: WorkRoom, number: str, *, can_take_back: bool = False) -> dict[str, Any]:
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        found = await operator.get("/admin/questions/one", params={"number": number})
    assert found.status_code == 200, found.text
    assert found.json()["can_take_back"] is can_take_back
    return {key: found.json()[key] for key in ("state", "approved", "answered_by")}


@both_engines
@pytest.mark.parametrize("asks_again", [False, True], ids=["and ends", "and asks something else"])
async def test_the_second_of_two_answers_is_kept_if_the_first_has_resumed_the_run(room, asks_again):
    told, working, go_on = list[list[str]](), asyncio.Event(), asyncio.Event()

    async def act(activation: Any) -> None:
        told.append([decision.by for _, decision in activation.decisions])
        asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        if len(told) == 1:
            for question in QUESTIONS:
                await room.mail.call("ask_person", {**asked, "question": question})
        elif len(told) == 2:
            working.set()
            await asyncio.wait_for(go_on.wait(), PATIENCE)
            if asks_again:
                await room.mail.call("ask_person", {**asked, "question": "C?"})

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    numbers = {one["question"]: one["number"] for one in await room.questions.questions()}
    first, second = numbers["A?"], numbers["B?"]
    await room.questions.answer(first, "yes", by="ana")
    turn = asyncio.create_task(room.turn())
    await asyncio.wait_for(working.wait(), PATIENCE)
    await room.questions.answer(second, "no", by="bob")
    assert await shown(room, second) == {"state": "answered", "approved": False, "answered_by": "bob"}
    assert second not in [one["number"] for one in await room.questions.questions()]
    with pytest.raises(StaleDecision, match="bob"):
        await room.questions.answer(second, "yes", by="ana")
    go_on.set()
    await turn
    await room.turn()
    assert told == [[], ["ana"], ["bob"]]
    assert await shown(room, second) == {"state": "answered", "approved": False, "answered_by": "bob"}
    assert await room.questions.questions() == []  # the last turn ended, and closed what it left open


@both_engines
async def test_a_third_question_stays_open_while_the_run_works_with_the_second_answer(room):
    working, go_on = [asyncio.Event() for _ in range(3)], [asyncio.Event() for _ in range(3)]
    told = list[list[str]]()

    async def act(activation: Any) -> None:
        turn = len(told)
        told.append([decision.by for _, decision in activation.decisions])
        asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        if turn == 0:
            for question in (*QUESTIONS, "C?"):
                await room.mail.call("ask_person", {**asked, "question": question})
        elif turn < 3:
            working[turn].set()
            await asyncio.wait_for(go_on[turn].wait(), PATIENCE)

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    numbers = {one["question"]: one["number"] for one in await room.questions.questions()}
    await room.questions.answer(numbers["A?"], "yes", by="ana")
    turn = asyncio.create_task(room.turn())
    await asyncio.wait_for(working[1].wait(), PATIENCE)
    await room.questions.answer(numbers["B?"], "no", by="bob")
    go_on[1].set()
    await asyncio.wait_for(working[2].wait(), PATIENCE)
    assert (await shown(room, numbers["C?"]))["state"] == "open"
    await room.questions.answer(numbers["C?"], "yes", by="cyd")
    go_on[2].set()
    await turn
    await room.turn()
    assert told == [[], ["ana"], ["bob"], ["cyd"]]
    assert (await shown(room, numbers["C?"]))["answered_by"] == "cyd"


@both_engines
@pytest.mark.parametrize("how", ["failed", "was cancelled by an operator"])
async def test_an_answer_in_a_turn_that_gives_no_further_turn_is_not_recorded_as_received(room, how):
    working, go_on, told = asyncio.Event(), asyncio.Event(), list[str]()

    async def act(activation: Any) -> None:
        told.append(activation.run_id)
        asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        if len(told) == 1:
            for question in QUESTIONS:
                await room.mail.call("ask_person", {**asked, "question": question})
            return
        working.set()
        await asyncio.wait_for(go_on.wait(), PATIENCE)
        if how == "failed":
            raise Unauthorized("the key is not known")

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    numbers = {one["question"]: one["number"] for one in await room.questions.questions()}
    await room.questions.answer(numbers["A?"], "yes", by="ana")
    turn = asyncio.create_task(room.turn())
    await asyncio.wait_for(working.wait(), PATIENCE)
    await room.questions.answer(numbers["B?"], "no", by="bob")
    if how != "failed":
        await room.operator.cancel(told[0])
    go_on.set()
    await turn
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        found = (await operator.get("/admin/questions/one", params={"number": numbers["B?"]})).json()
    assert found["state"] == "closed"
    assert f"the run {how} before the agent got the answer of bob" in found["answer"]


@both_engines
async def test_only_the_new_action_is_open_if_a_turn_with_a_late_answer_asks_again(room, clock):
    working, go_on = asyncio.Event(), asyncio.Event()
    turns, asked_again, checked = list[int](), list[str](), list[list[str]]()

    async def act(activation: Any) -> None:
        turns.append(len(turns))
        asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        if len(turns) == 1:
            for question in (*QUESTIONS, "C?"):
                await room.mail.call("ask_person", {**asked, "question": question, "action": "drop a"})
        elif len(turns) == 2:
            working.set()
            await asyncio.wait_for(go_on.wait(), PATIENCE)
            clock.advance(timedelta(milliseconds=1))
            view = await room.mail.call("ask_person", {**asked, "question": "C?", "action": "drop b"})
            asked_again.append(view["question_id"])
        else:  # the turn that gets the late answer
            checked.append([one["number"] for one in await room.questions.questions()])

    room.agents.act = act
    await room.send("Ada", "Bo")
    await room.turn()
    numbers = {one["question"]: one["number"] for one in await room.questions.questions()}
    await room.questions.answer(numbers["A?"], "yes", by="ana")
    turn = asyncio.create_task(room.turn())
    await asyncio.wait_for(working.wait(), PATIENCE)
    await room.questions.answer(numbers["B?"], "no", by="bob")
    go_on.set()
    await turn
    await room.turn()
    assert asked_again != [numbers["C?"]]
    assert checked == [asked_again]


class Working:
    """An agent that works with the answer to its first question while others answer the other questions."""

    def __init__(self, room: WorkRoom, *questions: str, **asked: Any) -> None:
        self.room = room
        self.questions = questions
        self.asked = asked
        self.told = list[list[str]]()
        self.numbers = dict[str, str]()
        self.in_turn: Callable[[dict[str, str]], Any] | None = None
        """What the agent does at the end of its second turn."""
        self._working, self._go_on = asyncio.Event(), asyncio.Event()

    async def act(self, activation: Any) -> None:
        """Execute a turn."""
        self.told.append([decision.by for _, decision in activation.decisions])
        asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        if len(self.told) == 1:
            for question in self.questions:
                named = {**asked, "question": question, "idempotency_key": f"key of {question}"}
                await self.room.mail.call("ask_person", {**named, **self.asked})
        elif len(self.told) == 2:
            self._working.set()
            await asyncio.wait_for(self._go_on.wait(), PATIENCE)
            if self.in_turn is not None:
                await self.in_turn(asked)

    async def begin(self) -> None:
        """Ask, and work with the answer to the first question."""
        self.room.agents.act = self.act
        await self.room.send("Ada", "Bo")
        await self.room.turn()
        listed = await self.room.questions.questions()
        self.numbers = {one["question"]: one["number"] for one in listed}
        self.run_id = listed[0]["run_id"]
        await self.room.questions.answer(self.numbers["A?"], "yes", by="ana")
        self.turn = asyncio.create_task(self.room.turn())
        await asyncio.wait_for(self._working.wait(), PATIENCE)

    async def end(self) -> None:
        """End the turn."""
        self._go_on.set()
        await self.turn
        await self.room.turn()

    async def take_back(self) -> None:
        """Press "Take back" on the page of questions."""
        browser = self.room.browser()
        taken = await post(browser, PAGE, *await take_back_form(browser, self.run_id))
        assert taken.status_code == 303, taken.text

    async def later(self, by: timedelta) -> None:
        """Let time pass, and perform what is due then."""
        self.room.clock.advance(by)
        await self.room.runs.mailbox.recover()
        await self.room.turn()


@both_engines
async def test_an_answer_from_a_page_in_a_turn_reaches_the_agent_only_after_eight_seconds(room):
    bo = Working(room, *QUESTIONS)
    await bo.begin()
    await room.questions.answer(bo.numbers["B?"], "no", by="bob", at=PAGES)
    answered = {"state": "answered", "approved": False, "answered_by": "bob"}
    assert await shown(room, bo.numbers["B?"], can_take_back=True) == answered
    assert 'value="take_back"' in (await room.browser().get(PAGE)).text
    with pytest.raises(StaleDecision, match="bob"):
        await room.questions.answer(bo.numbers["B?"], "yes", by="ana")
    room.clock.advance(timedelta(seconds=1))
    await bo.end()
    assert await shown(room, bo.numbers["B?"], can_take_back=True) == answered
    await bo.later(timedelta(milliseconds=6_999))
    assert bo.told == [[], ["ana"]]
    await bo.later(timedelta(milliseconds=1))
    assert bo.told == [[], ["ana"], ["bob"]]
    assert await shown(room, bo.numbers["B?"]) == answered
    assert 'value="take_back"' not in (await room.browser().get(PAGE)).text


@both_engines
async def test_a_turn_of_more_than_eight_seconds_is_followed_at_once_by_the_turn_with_the_answer(room):
    bo = Working(room, *QUESTIONS)
    await bo.begin()
    await room.questions.answer(bo.numbers["B?"], "no", by="bob", at=PAGES)
    room.clock.advance(TAKE_BACK)
    await shown(room, bo.numbers["B?"])
    given = await room.look(room.questions.given_answer, SLUG, bo.run_id, bo.numbers["B?"])
    with pytest.raises(StaleDecision, match="cannot be withdrawn"):
        await room.questions.take_back(SLUG, bo.run_id, bo.numbers["B?"], given.answer_id)
    await bo.end()
    assert bo.told == [[], ["ana"], ["bob"]]


@both_engines
async def test_an_answer_that_is_taken_back_after_the_turn_leaves_its_question_open(room):
    bo = Working(room, *QUESTIONS)
    await bo.begin()
    await room.questions.answer(bo.numbers["B?"], "yes", by="bob", at=PAGES)
    await bo.end()
    await bo.take_back()
    assert (await shown(room, bo.numbers["B?"]))["state"] == "open"
    await bo.later(TAKE_BACK)
    assert bo.told == [[], ["ana"]]
    await room.questions.answer(bo.numbers["B?"], "no", by="cyd")
    await room.turn()
    assert bo.told == [[], ["ana"], ["cyd"]]


@both_engines
async def test_an_answer_that_is_taken_back_in_the_turn_can_be_given_again_in_this_turn(room):
    bo = Working(room, *QUESTIONS)
    await bo.begin()
    await room.questions.answer(bo.numbers["B?"], "yes", by="bob", at=PAGES)
    await bo.take_back()
    assert (await shown(room, bo.numbers["B?"]))["state"] == "open"
    await room.questions.answer(bo.numbers["B?"], "no", by="bob")
    await bo.end()
    assert bo.told == [[], ["ana"], ["bob"]]
    assert (await shown(room, bo.numbers["B?"]))["approved"] is False


@both_engines
async def test_a_final_answer_waits_for_an_earlier_answer_that_can_be_taken_back(room):
    bo = Working(room, *QUESTIONS, "C?")
    await bo.begin()
    await room.questions.answer(bo.numbers["B?"], "yes", by="bob", at=PAGES)
    room.clock.advance(timedelta(seconds=2))
    await room.questions.answer(bo.numbers["C?"], "no", by="cyd")
    await bo.end()
    assert await shown(room, bo.numbers["C?"]) == {
        "state": "answered",
        "approved": False,
        "answered_by": "cyd",
    }
    assert bo.told == [[], ["ana"]]
    await bo.later(timedelta(seconds=6))
    assert bo.told == [[], ["ana"], ["bob", "cyd"]]


@both_engines
async def test_a_turn_that_a_restart_repeats_waits_for_an_answer_that_can_be_taken_back(stores, clock):
    first = WorkRoom(*stores, clock, take_back_ms=8_000)
    await first.people("Ada", "Bo", runners=("Bo",))
    bo = Working(first, *QUESTIONS)
    await bo.begin()
    await first.questions.answer(bo.numbers["B?"], "yes", by="bob", at=PAGES)
    await first.close()
    await bo.turn
    bo.room = after = WorkRoom(*stores, clock, take_back_ms=8_000)
    after.agents.act = bo.act
    await bo.later(timedelta(seconds=7))
    assert bo.told == [[], ["ana"]]
    await shown(after, bo.numbers["B?"], can_take_back=True)
    await bo.take_back()
    await bo.later(timedelta(seconds=1))
    assert bo.told == [[], ["ana"], ["ana"]]
    await after.close()


@both_engines
async def test_a_question_that_its_run_has_replaced_is_closed_when_its_answer_is_taken_back(room):
    bo = Working(room, *QUESTIONS, action="drop a")
    asked_again = list[str]()

    async def replace_it(asked: dict[str, str]) -> None:
        room.clock.advance(timedelta(milliseconds=1))
        view = await room.mail.call("ask_person", {**asked, "question": "B?", "action": "drop b"})
        asked_again.append(view["question_id"])

    bo.in_turn = replace_it
    await bo.begin()
    await room.questions.answer(bo.numbers["B?"], "yes", by="bob", at=PAGES)
    await bo.end()
    await bo.take_back()
    assert (await shown(room, bo.numbers["B?"]))["state"] == "closed"
    entries = (await room.mail.call("fetch_events", {"project_key": PROJECT, "after": 0}))["events"]
    log = [one["kind"] for one in entries if one["detail"].get("question_id") == bo.numbers["B?"]]
    assert log == ["question.asked", "question.withdrawn"]
    assert [one["number"] for one in await room.questions.questions()] == asked_again
    await bo.later(TAKE_BACK)
    assert bo.told == [[], ["ana"]]


@both_engines
async def test_a_repeated_call_does_not_tell_an_answer_that_can_be_taken_back(room):
    bo = Working(room, "A?", "B?")
    views = list[dict[str, Any]]()

    async def ask_again(asked: dict[str, str]) -> None:
        named = {**asked, "question": "B?", "idempotency_key": "key of B?"}
        views.append(await room.mail.call("ask_person", named))

    bo.in_turn = ask_again
    await bo.begin()
    await room.questions.answer(bo.numbers["B?"], "yes", by="bob", at=PAGES)
    await bo.end()
    assert views == [{"question_id": bo.numbers["B?"], "asked": False, "state": "answered"}]
