"""The record of a question says truthfully how the question ended, on every surface."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from machine import PATIENCE
from postroom.contracts.errors import RunnerNotFound, RunnerSecretMissing, StaleDecision, Unauthorized
from postroom.contracts.questions import PAGES, Given, person
from postroom.dispatch.completion import Ending
from postroom.mail.context import Caller
from postroom.mail.waking.prompts import ASKING_LANES
from postroom.services.questions import TAKE_BACK_MS, QuestionTimeouts
from postroom.testing import ManualClock
from postroom.testing.run_faults import FailingChanges, failing_changes, with_parts
from waking_room import PROJECT, both_engines
from work_room import SLUG, TOKEN, WorkRoom, hidden, place, post


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    """Return a room in which an answer from the pages can be taken back for eight seconds."""
    made = WorkRoom(*stores, clock, take_back_ms=TAKE_BACK_MS)
    await made.people("Ada", "Ash", runners=("Ash",))
    yield made
    await made.close()


async def ask(room: WorkRoom, question: str = "May I?", **more: Any) -> Any:
    """Let Ada ask a question outside a run."""
    asked = {"project_key": PROJECT, "agent_name": "Ada", "question": question}
    return await room.mail.call("ask_person", {**asked, **more})


async def asked_by(room: WorkRoom, name: str) -> dict[str, Any]:
    """Let an agent ask a question, in a run or outside, and return the question as it is listed."""
    if name == "Ada":
        await ask(room)
    else:
        await room.send("Ada", name)
    await room.turn()
    [listed] = await room.questions.questions()
    return listed


async def answered_on_page(room: WorkRoom, listed: dict[str, Any], value: Any = True, why: str = "") -> None:
    given = Given(value=value, by=person("ana"), at=PAGES, why=why)
    await room.questions.decide(SLUG, listed["run_id"], listed["number"], given)


async def cancel(room: WorkRoom, run_id: str) -> None:
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        answer = await operator.post("/admin/runs/cancel", json={"run": run_id})
        assert answer.status_code == 200, answer.text
    await room.turn()


async def record(room: WorkRoom, number: str) -> dict[str, Any]:
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        found = await operator.get("/admin/questions/one", params={"number": number})
        assert found.status_code == 200, found.text
        return found.json()


async def decided(room: WorkRoom) -> list[str]:
    """Return the sentences of a summary about questions that have ended."""
    asked = {"project_key": PROJECT, "after": 0}
    found = await room.mail.call("catch_up", asked, caller=Caller(operator=True))
    return [one["text"] for one in found["sentences"] if one["about"] == "decided"]


async def logged(room: WorkRoom, number: str) -> list[str]:
    found = await room.mail.call("fetch_events", {"project_key": PROJECT, "after": 0})
    return [one["kind"] for one in found["events"] if one["detail"].get("question_id") == number]


@pytest.mark.parametrize(("name", "back"), [("Ash", "run"), ("Ash", "control"), ("Ada", "home")])
async def test_an_answer_that_no_agent_got_because_its_run_was_cancelled_is_told_as_such(
    room, clock, name, back
):
    listed = await asked_by(room, name)
    number, run_id = listed["number"], listed["run_id"]
    browser, page = room.browser(), f"/p/{SLUG}/questions"
    token = hidden((await browser.get(page)).text, "form_token")
    fields = {"form_token": token, "run": run_id, "number": number, "by": "ana", "back": back}
    answered = await post(browser, page, *fields.items(), ("answer", "yes"), ("why", "after lunch"))
    assert answered.status_code == 303, answered.text
    await cancel(room, run_id)
    clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
    await room.runs.mailbox.recover()
    await room.turn()
    why = 'the run was cancelled before the agent got the answer of ana on the pages: yes: "after lunch"'
    found = await record(room, number)
    assert (found["state"], found["approved"], found["answer"]) == ("closed", None, why)
    assert not found["can_take_back"]
    [told] = await decided(room)
    assert told.startswith(f"Question {number} of {name}")
    assert "the run was cancelled before" in told
    assert await logged(room, number) == ["question.asked", "question.withdrawn"]
    for page in (f"/p/{SLUG}/questions", f"/p/{SLUG}/runs/{run_id}", answered.headers["location"]):
        text = (await browser.get(page)).text
        assert "before the agent got the answer" in text, page
        assert "has received it" not in text, page
    with pytest.raises(StaleDecision, match="before the agent got the answer"):
        await room.questions.answer(number, "yes", by="bob")
    if name == "Ada":
        [body] = [one.body_md for one in await room.messages()]
        assert body == f"You asked: May I?\nThere is no answer: {why}."


async def test_an_answer_that_no_agent_got_because_of_the_deadline_of_another_question_is_told_as_such(
    room, clock
):
    room.agents.more_questions = ["And this?"]
    room.agents.asks = {"timeout_seconds": 5, "on_timeout": "cancel"}
    await room.send("Ada", "Ash")
    await room.turn()
    listed = {one["question"]: one for one in await room.questions.questions()}
    clock.advance(timedelta(seconds=4))
    await answered_on_page(room, listed["May I?"])
    clock.advance(timedelta(seconds=2))
    await QuestionTimeouts(room.runs, clock, clock).round()
    await room.turn()
    found = await record(room, listed["May I?"]["number"])
    why = "the run was cancelled before the agent got the answer of ana on the pages: yes"
    assert (found["state"], found["answer"]) == ("closed", why)
    found = await record(room, listed["And this?"]["number"])
    assert (found["state"], found["answer"]) == (
        "closed",
        "no answer came in time, so the run was cancelled",
    )


async def test_an_answer_that_an_agent_got_before_its_run_was_cancelled_stays_the_answer(room):
    listed = await asked_by(room, "Ash")

    async def act(activation: Any) -> None:
        room.agents.act = None
        await room.operator.cancel(activation.run_id)

    room.agents.act = act
    await room.questions.answer(listed["number"], "yes", by="ana")
    await room.turn()
    found = await record(room, listed["number"])
    assert (found["state"], found["approved"], found["answered_by"]) == ("answered", True, "ana")
    assert await logged(room, listed["number"]) == ["question.asked", "question.answered"]


@pytest.mark.parametrize("error", [RunnerNotFound, RunnerSecretMissing])
async def test_an_answer_that_no_agent_got_because_its_run_could_not_start_is_told_as_such(room, error):
    listed = await asked_by(room, "Ash")
    number = listed["number"]
    if error is RunnerNotFound:
        await room.mail.set_runner(PROJECT, "Ash", None)

    async def act(activation: Any) -> None:
        raise error("nothing to start")

    room.agents.act = act
    await room.questions.answer(number, "yes", by="ana")
    await room.turn()
    found = await record(room, number)
    why = "the run failed before the agent got the answer of ana"
    assert (found["state"], found["approved"]) == ("closed", None)
    assert found["answer"].startswith(why)
    [told] = await decided(room)
    assert "the run failed before" in told
    given = [] if error is RunnerNotFound else ["question.answered"]
    assert await logged(room, number) == ["question.asked", *given, "question.withdrawn"]


async def test_a_run_that_failed_after_an_answer_is_retried_with_its_messages_and_asks_anew(room):
    listed = await asked_by(room, "Ash")

    async def act(activation: Any) -> None:
        raise Unauthorized("the key is not known")

    room.agents.act = act
    await room.questions.answer(listed["number"], "yes", by="ana")
    await room.turn()
    assert (await record(room, listed["number"]))["state"] == "answered"
    room.agents.act = None
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        shown = await operator.get("/admin/runs/one", params={"run": listed["run_id"]})
        assert shown.json()["can_replay"] is True
        again = await operator.post("/admin/runs/replay", json={"run": listed["run_id"]})
        assert again.status_code == 200, again.text
    await room.turn()
    [asked] = await room.questions.questions()
    assert asked["run_id"] == again.json()["run_id"]
    await room.questions.answer(asked["number"], "no", by="ana")
    await room.turn()
    assert (await room.messages())[-1].body_md == "Ash did it"


async def test_a_question_is_open_once_its_call_has_returned_though_its_server_executes_no_further_run(
    stores, clock, monkeypatch
):
    monkeypatch.setattr("postroom.services.runs.SLOTS", 1)
    room, is_at_work, goes_on = WorkRoom(*stores, clock), asyncio.Event(), asyncio.Event()
    await room.people("Ada", "Bo", runners=("Bo",))

    async def work(activation: Any) -> None:
        is_at_work.set()
        await goes_on.wait()

    room.agents.act = work
    await room.send("Ada", "Bo")
    await is_at_work.wait()
    number = (await ask(room, choices=["EUR", "USD"]))["question_id"]
    found = await record(room, number)
    assert (found["state"], found["question"]) == ("open", "May I?")
    assert [listed["number"] for listed in await room.questions.questions()] == [number]
    await room.questions.answer(number, "usd", by="ana")
    goes_on.set()
    await room.turn()
    assert "They answered: USD" in (await room.messages())[-1].body_md
    await room.close()


@both_engines
async def test_the_same_question_asked_at_the_same_time_is_one_question(room):
    views = await asyncio.gather(*(ask(room, action="DROP TABLE a") for _ in range(8)))
    [listed] = await room.questions.questions()
    assert {view["question_id"] for view in views} == {listed["number"]}
    assert [view["asked"] for view in views].count(True) == 1
    assert all(view["state"] == "open" for view in views if not view["asked"])


@both_engines
async def test_of_actions_that_are_asked_for_at_the_same_time_only_the_last_is_open(room):
    views = await asyncio.gather(*(ask(room, action=f"DROP TABLE t{number}") for number in range(4)))
    assert all(view["asked"] for view in views)
    await room.turn()
    [listed] = await room.questions.questions()
    states = [(await record(room, view["question_id"]))["state"] for view in views]
    assert sorted(states) == ["closed", "closed", "closed", "open"]
    assert listed["number"] in {view["question_id"] for view in views}


@both_engines
@pytest.mark.parametrize("action", ["DROP TABLE a", "DROP TABLE b"], ids=["equal", "different"])
@pytest.mark.parametrize("servers", [1, 2])
async def test_a_call_that_was_overtaken_by_another_call_or_server_sees_its_question(
    stores, clock, action, servers
):
    overtaken, goes_on, changes = asyncio.Event(), asyncio.Event(), []

    async def begins(name: str) -> None:
        changes.append(name)
        if changes.count("accepted") == 2:  # the first change has found out which thread to lock
            overtaken.set()
            await goes_on.wait()

    mail, runs = stores
    slow = WorkRoom(mail, failing_changes(runs, begins=begins), clock, is_exclusive=False)
    other = WorkRoom(mail, runs, clock, is_exclusive=False)
    await other.people("Ada")
    asking = asyncio.create_task(ask(slow, action="DROP TABLE a"))
    await asyncio.wait_for(overtaken.wait(), PATIENCE)
    former = await ask(slow if servers == 1 else other, action=action)
    goes_on.set()
    last = await asking
    assert (former["asked"], last["asked"]) == (True, action == "DROP TABLE b")
    for room in (slow, other):
        await room.turn()
    assert [listed["number"] for listed in await slow.questions.questions()] == [last["question_id"]]
    for room in (slow, other):
        await room.close()


class HeldEnd(FailingChanges):
    """A store that holds the first end of a run after its commit, so the worker is still at work."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.ended, self.goes_on = asyncio.Event(), asyncio.Event()

    async def write(self, change: Any, *, key: str = "") -> Any:
        stored = await super().write(change, key=key)
        if isinstance(stored, Ending) and not self.ended.is_set():
            self.ended.set()
            await self.goes_on.wait()
        return stored


@both_engines
async def test_a_former_question_is_closed_though_the_worker_of_its_thread_still_ends_a_run(stores, clock):
    mail, runs = stores
    held = HeldEnd(runs.store)
    room = WorkRoom(mail, with_parts(runs, store=held), clock)
    await room.people("Ada")
    first, other, *_ = [await ask(room, f"Question {number}?") for number in range(ASKING_LANES)]
    listed = {one["number"]: one["run_id"] for one in await room.questions.questions()}
    await room.questions.answer(first["question_id"], "yes", by="ana")
    await asyncio.wait_for(held.ended.wait(), PATIENCE)
    former = await ask(room, action="DROP TABLE a")  # on the only free thread
    await room.operator.cancel(listed[other["question_id"]])
    last = await ask(room, action="DROP TABLE b")
    open_now = {one["number"] for one in await room.questions.questions()}
    held.goes_on.set()
    await room.turn()
    assert last["question_id"] in open_now
    assert former["question_id"] not in open_now
    assert (await record(room, former["question_id"]))["state"] == "closed"
    await room.close()


async def test_a_question_that_is_asked_again_has_the_state_of_its_record(room, clock):
    asked = {"choices": ["EUR", "USD"], "idempotency_key": "k"}
    number = (await ask(room, **asked))["question_id"]
    [listed] = await room.questions.questions()
    await answered_on_page(room, listed, "usd")
    found = await record(room, number)
    assert (found["state"], found["can_take_back"]) == ("answered", True)
    again = {"question_id": number, "asked": False, "state": "answered"}
    assert await ask(room, choices=["EUR", "USD"]) == again  # the answer can be withdrawn, so it is not told
    assert await ask(room, **asked) == again
    clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
    await room.runs.mailbox.recover()
    await room.turn()
    assert await ask(room, **asked) == {**again, "answer": "They answered: USD\nContinue with this answer."}
    assert await room.questions.questions() == []


async def test_an_answer_that_was_taken_back_was_not_told_to_the_agent_that_repeats_its_call(room):
    number = (await ask(room, idempotency_key="k"))["question_id"]
    [listed] = await room.questions.questions()
    await answered_on_page(room, listed, True)
    assert "answer" not in await ask(room, idempotency_key="k")
    await room.questions.take_back(SLUG, listed["run_id"], number)
    assert await ask(room, idempotency_key="k") == {"question_id": number, "asked": False, "state": "open"}


@pytest.mark.parametrize(
    ("on_timeout", "ended"),
    [
        ({"on_timeout": "no"}, ("answered", False, "no answer came in time")),
        ({"on_timeout": "cancel"}, ("closed", None, "no answer came in time, so the run was cancelled")),
        (
            {"on_timeout": "default", "default": "later", "text": True},
            ("answered", None, "later (no answer came in time)"),
        ),
    ],
    ids=["no", "cancel", "default"],
)
async def test_an_answer_that_is_taken_back_after_the_deadline_ends_the_question_by_its_deadline(
    room, clock, on_timeout, ended
):
    number = (await ask(room, timeout_seconds=5, **on_timeout))["question_id"]
    [listed] = await room.questions.questions()
    clock.advance(timedelta(seconds=4))
    await answered_on_page(room, listed, "now" if "text" in on_timeout else True)
    clock.advance(timedelta(seconds=2))
    async with room.browser() as browser:
        page = f"/p/{SLUG}/questions"
        token = hidden((await browser.get(page)).text, "form_token")
        fields = (("form_token", token), ("run", listed["run_id"]), ("number", number), ("do", "take_back"))
        taken = await post(browser, page, *fields)
        assert (taken.status_code, place(taken)) == (303, f"{page}?done=late")
        text = (await browser.get(taken.headers["location"])).text
        assert "Taken back." in text
        assert "is open again" not in text
    assert await room.questions.questions() == []
    found = await record(room, number)
    assert (found["state"], found["approved"], found["answer"]) == ended
    with pytest.raises(StaleDecision, match="no answer came in time"):
        await room.questions.answer(number, "yes", by="ana")
