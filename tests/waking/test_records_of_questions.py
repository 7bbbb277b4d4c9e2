"""The record of a question says truthfully how the question ended, on every surface."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from machine import PATIENCE
from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import (
    IllegalTransition,
    RunnerNotFound,
    RunnerSecretMissing,
    StaleDecision,
    Unauthorized,
)
from postroom.contracts.questions import PAGES, Given, person
from postroom.dispatch.completion import Ending
from postroom.mail.context import Caller
from postroom.mail.waking.mail_runs import MailRunExecutor
from postroom.mail.waking.prompts import ASKING_LANES, MAX_ASKED
from postroom.ports import RunEffects
from postroom.services.questions import TAKE_BACK_MS, QuestionTimeouts
from postroom.services.runners import RunnerService
from postroom.testing import ManualClock
from postroom.testing.run_faults import FailingChanges, failing_changes, with_parts
from waking_room import PROJECT, both_engines
from work_room import QUESTIONS, SLUG, TOKEN, WorkRoom, hidden, place, post, take_back_form


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


async def taken_back_on_page(room: WorkRoom, listed: dict[str, Any]) -> None:
    browser = room.browser()
    taken = await post(browser, QUESTIONS, *await take_back_form(browser, listed["run_id"]))
    assert (taken.status_code, place(taken)) == (303, f"{QUESTIONS}?done=taken_back")


async def cancel(room: WorkRoom, run_id: str, **named: str) -> None:
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        answer = await operator.post("/admin/runs/cancel", json={"run": run_id, **named})
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
    end = "the run was cancelled by an operator before the agent got the answer"
    why = f'{end} of ana on the pages: yes: "after lunch"'
    found = await record(room, number)
    assert (found["state"], found["approved"], found["answer"]) == ("closed", None, why)
    assert not found["can_take_back"]
    [told] = await decided(room)
    assert told.startswith(f"Question {number} of {name}")
    assert "the run was cancelled by an operator before" in told
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


@both_engines
@pytest.mark.parametrize(
    ("surface", "who"),
    [("over HTTP", "an operator"), ("with a name", "kim"), ("on the page", "Zoë Lee")],
)
@pytest.mark.parametrize("name", ["Ash", "Ada"], ids=["in a run", "outside a run"])
async def test_the_record_of_a_question_says_who_cancelled_its_run(room, name, surface, who):
    listed = await asked_by(room, name)
    number, run_id = listed["number"], listed["run_id"]
    if surface == "on the page":
        async with room.browser() as browser:
            browser.cookies.set("postroom_name", quote(who))
            token = hidden((await browser.get(f"/p/{SLUG}/questions")).text, "form_token")
            fields = (("form_token", token), ("run", run_id), ("do", "cancel"))
            assert (await post(browser, f"/p/{SLUG}/runs", *fields)).status_code == 303
        await room.turn()
    else:
        await cancel(room, run_id, **({"by": who} if surface == "with a name" else {}))
    found = await record(room, number)
    assert (found["state"], found["answered_by"]) == ("closed", "nobody")
    assert found["answer"] == f"the run was cancelled by {who}"
    assert await logged(room, number) == ["question.asked", "question.withdrawn"]
    told = [one.body_md for one in await room.messages()][-1]
    assert f"cancelled by {who}" in told
    assert f"the run was cancelled by {who}" in (await room.browser().get(f"/p/{SLUG}/questions")).text


@both_engines
async def test_the_questions_of_a_chats_run_that_is_cancelled_while_it_waits_are_logged_for_its_agent(room):
    ash = MailRunExecutor(room.agents, room.store, room.clock, whose=lambda _: (SLUG, "Ash"))
    room.runs.serve("chat/", ash, RunEffects())
    room.agents.more_questions = ["And today?"]
    await room.runs.mailbox.submit_background(RunActivation.new("chat/web/Ash/1", ["Clean up."]))
    await room.turn()
    listed = await room.questions.questions()
    await cancel(room, listed[0]["run_id"])
    await room.turn()
    logs = [await logged(room, one["number"]) for one in listed]
    assert logs == [["question.asked", "question.withdrawn"]] * 2


async def test_a_run_is_not_cancelled_under_a_name_that_is_none(room):
    listed = await asked_by(room, "Ash")
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        for by in ("postroom", "a\u202eb", "human:"):
            refused = await operator.post("/admin/runs/cancel", json={"run": listed["run_id"], "by": by})
            assert refused.status_code == 400, by
    assert (await record(room, listed["number"]))["state"] == "open"


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
    room = WorkRoom(mail, with_parts(runs, store=held), clock, take_back_ms=TAKE_BACK_MS)
    await room.people("Ada")
    for number in range(ASKING_LANES - MAX_ASKED):  # each keeps its thread for eight seconds
        await ask(room, f"Answered question {number}?")
        [listed] = await room.questions.questions()
        await answered_on_page(room, listed)
    first, other, *_ = [await ask(room, f"Question {number}?") for number in range(MAX_ASKED)]
    with pytest.raises(IllegalTransition, match="too many answers to earlier questions of Ada"):
        await ask(room, "Question 0?", action="DROP TABLE a")
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
    await taken_back_on_page(room, listed)
    assert await ask(room, idempotency_key="k") == {"question_id": number, "asked": False, "state": "open"}


@pytest.mark.parametrize(
    ("on_timeout", "ended"),
    [
        ({"on_timeout": "no"}, ("answered", False, "no answer came in time")),
        ({"on_timeout": "cancel"}, ("closed", None, "no answer came in time, so the question was closed")),
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
        taken = await post(browser, page, *await take_back_form(browser, listed["run_id"]))
        assert (taken.status_code, place(taken)) == (303, f"{page}?done=late")
        text = (await browser.get(taken.headers["location"])).text
        assert "Taken back." in text
        assert "is open again" not in text
    assert await room.questions.questions() == []
    found = await record(room, number)
    assert (found["state"], found["approved"], found["answer"]) == ended
    with pytest.raises(StaleDecision, match="no answer came in time"):
        await room.questions.answer(number, "yes", by="ana")


async def test_each_of_two_questions_has_one_end_in_the_log_though_the_runs_are_cancelled_within_8_seconds(
    room,
):
    """Ana answers on the page, Ada asks for another action, Ana takes her answer back, and cancels both."""
    listed = await asked_by(room, "Ada")
    await answered_on_page(room, listed)
    second = (await ask(room, action="DROP TABLE b"))["question_id"]
    await room.turn()
    browser = room.browser()
    taken = await post(browser, QUESTIONS, *await take_back_form(browser, listed["run_id"]))
    assert place(taken) == f"{QUESTIONS}?done=closed"
    [other] = [one for one in await room.questions.questions() if one["number"] == second]
    for run_id in (listed["run_id"], other["run_id"]):
        await cancel(room, run_id)
    for number in (listed["number"], second):
        assert await logged(room, number) == ["question.asked", "question.withdrawn"]
        assert (await record(room, number))["state"] == "closed"
    assert (await record(room, listed["number"]))[
        "answer"
    ] == f"Ada has asked this again as question {second}"


async def test_with_16_open_questions_another_form_of_one_replaces_it_and_no_17th_is_asked(room):
    numbers = [(await ask(room, f"May I {number}?"))["question_id"] for number in range(MAX_ASKED)]
    again = await ask(room, "May I 3?", action="DROP TABLE b")
    assert again["asked"]
    await room.turn()
    assert {one["number"] for one in await room.questions.questions()} == {
        *numbers[:3],
        *numbers[4:],
        again["question_id"],
    }
    assert (await record(room, numbers[3]))["state"] == "closed"
    with pytest.raises(IllegalTransition, match="already has 16 open questions"):
        await ask(room, "May I 16?")


@both_engines
@pytest.mark.parametrize("asked", [("May I 16?", {}), ("May I 0?", {"action": "DROP TABLE b"})])
async def test_a_question_whose_answer_can_be_taken_back_does_not_count_as_one_of_16(room, asked):
    numbers = [(await ask(room, f"May I {number}?"))["question_id"] for number in range(MAX_ASKED)]
    [first] = [one for one in await room.questions.questions() if one["number"] == numbers[0]]
    await answered_on_page(room, first)
    text, kind = asked
    again = await ask(room, text, **kind)
    listed = {one["number"] for one in await room.questions.questions()}
    assert listed == {*numbers[1:], again["question_id"]}
    with pytest.raises(IllegalTransition, match="already has 16 open questions"):
        await ask(room, "May I 17?")
    another = await ask(room, "May I 1?", action="DROP TABLE c")
    await room.turn()
    listed = {one["number"] for one in await room.questions.questions()}
    assert listed == {*numbers[2:], again["question_id"], another["question_id"]}


@both_engines
@pytest.mark.parametrize("times", [1, 2])
async def test_a_question_whose_answer_was_taken_back_stays_open_until_it_is_answered(room, clock, times):
    listed = await asked_by(room, "Ada")
    for _ in range(times):
        clock.advance(timedelta(seconds=1))
        await answered_on_page(room, listed)
        await taken_back_on_page(room, listed)
    for _ in range(4):
        clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
        await room.runs.mailbox.poll()
        await room.runs.mailbox.recover()
        await room.turn()
    assert [one["number"] for one in await room.questions.questions()] == [listed["number"]]
    assert (await record(room, listed["number"]))["state"] == "open"
    assert await room.messages() == []
    await room.questions.answer(listed["number"], "yes", by="bob")
    await room.turn()
    [body] = [one.body_md for one in await room.messages()]
    assert "The answer is yes." in body


@both_engines
@pytest.mark.parametrize("name", ["Ash", "Ada"], ids=["in a run", "outside"])
async def test_a_form_takes_back_only_the_answer_with_which_it_was_shown(room, clock, name):
    """Ana's form stays open while somebody else takes her answer back, and bob answers."""
    listed = await asked_by(room, name)
    number = listed["number"]
    await answered_on_page(room, listed)
    browser = room.browser()
    old = await take_back_form(browser, listed["run_id"])
    assert (await post(browser, QUESTIONS, *old)).status_code == 303
    clock.advance(timedelta(seconds=9))
    stale = await post(browser, QUESTIONS, *old)
    assert stale.status_code == 409
    assert f"answer to question {number} was withdrawn before, and the question is open" in stale.text
    assert (await record(room, number))["state"] == "open"
    for by, value in (("bob", False), ("ana", True)):  # also the same answer of the same person
        given = Given(value=value, by=person(by), at=PAGES)
        await room.questions.decide(SLUG, listed["run_id"], number, given)
        stale = await post(browser, QUESTIONS, *old)
        assert stale.status_code == 409
        assert f"{number} was answered already: {by} on the pages" in stale.text
        assert (await record(room, number))["answered_by"] == by
        form = await take_back_form(browser, listed["run_id"])
        if by == "bob":
            assert (await post(browser, QUESTIONS, *form)).status_code == 303
    clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
    await room.runs.mailbox.recover()
    await room.turn()
    late = await post(browser, QUESTIONS, *form)
    assert late.status_code == 409
    assert "the agent has already received it" in late.text


async def test_who_removes_a_runner_is_told_which_questions_stay_open(room):
    listed = await asked_by(room, "Ash")
    runners = RunnerService(room.mail, lambda _: None)
    removed = await runners.withdraw(PROJECT, "Ash")
    assert removed == {"removed": True, "open_questions": [listed["number"]]}
    assert (await record(room, listed["number"]))["state"] == "open"
    assert await runners.withdraw(PROJECT, "Ada") == {"removed": False, "open_questions": []}


@both_engines
@pytest.mark.parametrize("end", ["ends", "fails", "is cancelled", "cannot start"])
async def test_a_question_that_stayed_open_until_its_run_ended_has_one_end_in_the_log(room, end):
    room.agents.more_questions = ["And this?"]
    await room.send("Ada", "Ash")
    await room.turn()
    listed = {one["question"]: one for one in await room.questions.questions()}

    async def act(activation: Any) -> None:
        room.agents.act = None
        if end == "fails":
            raise Unauthorized("the key is not known")
        if end == "cannot start":
            raise RunnerSecretMissing("nothing to start")
        if end == "is cancelled":
            await room.operator.cancel(activation.run_id)

    room.agents.act = act
    await room.questions.answer(listed["May I?"]["number"], "yes", by="ana")
    await room.turn()
    number = listed["And this?"]["number"]
    found = await record(room, number)
    assert found["state"] == "closed"
    assert await logged(room, number) == ["question.asked", "question.withdrawn"]
    assert [one for one in await decided(room) if number in one] == [
        f'Question {number} of Ash, "And this?", was closed: "{found["answer"]}".'
    ]


@both_engines
async def test_a_question_of_an_agent_that_was_retired_in_the_turn_that_asked_has_one_end_in_the_log(room):
    numbers = list[str]()

    async def act(activation: Any) -> None:
        asked = {"project_key": PROJECT, "agent_name": "Ash", "run_id": activation.run_id, "question": "Why?"}
        numbers.append((await room.mail.call("ask_person", asked))["question_id"])
        await room.mail.call("retire_agent", {"project_key": PROJECT, "agent_name": "Ash"})

    room.agents.asking.clear()
    room.agents.act = act
    await room.send("Ada", "Ash")
    await room.turn()
    assert (await record(room, numbers[0]))["state"] == "closed"
    assert await logged(room, numbers[0]) == ["question.asked", "question.withdrawn"]


@pytest.mark.parametrize(
    ("on_timeout", "means", "answer"),
    [
        ({"on_timeout": "no"}, ", which means no", "no answer came in time"),
        ({"on_timeout": "default", "default": "later", "text": True}, "", "later (no answer came in time)"),
    ],
    ids=["no", "default"],
)
async def test_a_question_that_nobody_answered_in_time_ends_with_the_same_words_everywhere(
    room, clock, on_timeout, means, answer
):
    room.agents.asks = {"timeout_seconds": 5, **on_timeout}
    listed = await asked_by(room, "Ash")
    number = listed["number"]
    clock.advance(timedelta(seconds=6))
    await QuestionTimeouts(room.runs, clock, clock).round()
    await room.turn()
    told = f'Nobody answered question {number} of Ash, "May I?"{means}: "{answer}".'
    assert await decided(room) == [told]
    page = (await room.browser().get(f"/p/{SLUG}/runs/{listed['run_id']}")).text
    assert f"<b>Nobody answered</b>{means}: <bdi>{answer}</bdi>" in page
    with pytest.raises(StaleDecision, match=f"Nobody answered question {number} until .*{means}: "):
        await room.questions.answer(number, "yes", by="ana")
    [_, asking, *_] = await room.messages()
    reply = {"project_key": PROJECT, "sender_name": "Ada", "message_id": asking.id, "body_md": "yes"}
    late = await room.mail.call("reply_message", reply)
    assert f'because nobody answered question {number}{means}: "{answer}"' in str(late)
    assert await logged(room, number) == ["question.asked", "question.answered"]
