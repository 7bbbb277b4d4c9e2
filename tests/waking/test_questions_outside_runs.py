"""An agent that a person started asks outside a run: the question is listed everywhere, and its answer is mailed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from postroom.contracts.clock import iso
from postroom.contracts.errors import IllegalTransition, InvalidArgument, StaleDecision, UnknownAgent
from postroom.contracts.questions import PAGES, Given, person
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus
from postroom.gateway.questions import Questions
from postroom.mail.context import Caller
from postroom.services.hooks import Hooks
from postroom.services.questions import TAKE_BACK_MS, QuestionTimeouts
from postroom.testing import ManualClock
from waking_room import PROJECT, both_engines
from work_room import QUESTIONS, SLUG, TOKEN, WorkRoom, post, take_back_form
from work_room import place as place_of


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock, take_back_ms=TAKE_BACK_MS)
    await made.people("Ada", "Ada2", "Bo", runners=("Bo",))
    yield made
    await made.close()


async def ask(room: WorkRoom, name: str = "Ada", question: str = "EUR or USD?", **more: Any) -> Any:
    asked = {"project_key": PROJECT, "agent_name": name, "question": question}
    return await room.mail.call("ask_person", {**asked, **more})


async def inbox(room: WorkRoom) -> list[tuple[str, str]]:
    asked = {"project_key": PROJECT, "agent_name": "Ada", "include_bodies": True}
    found = await room.mail.call("fetch_inbox", asked)
    return [(one["subject"], one["body_md"]) for one in found]


async def test_a_question_outside_a_run_is_listed_and_its_answer_is_mailed_to_the_agent(room):
    view = await ask(room, choices=["EUR", "USD"])
    await room.turn()
    [shown] = await room.questions.questions()
    assert (shown["number"], shown["agent"], shown["project"]) == (view["question_id"], "Ada", SLUG)
    again = {"question_id": view["question_id"], "asked": False, "state": "open"}
    assert await ask(room, choices=["EUR", "USD"]) == again
    await room.questions.answer(view["question_id"], "usd", by="ana")
    await room.turn()
    [(subject, body)] = await inbox(room)
    assert subject == "Answer: EUR or USD?"
    assert "They answered: USD" in body
    assert await room.questions.questions() == []


async def test_a_name_that_no_agent_has_is_refused_with_a_way_to_name_people(room):
    await room.people_named.add("ana", None)
    for written, remedy in (
        ("Ana", "for the person, write human:ana"),
        ("everyone", "leave out `to`: then anyone may answer"),
        ("zoe", "name a person (human:NAME)"),
    ):
        with pytest.raises(UnknownAgent) as caught:
            await ask(room, to=written)
        assert remedy in (caught.value.remedy or "")
    assert await room.questions.questions() == []
    with pytest.raises(UnknownAgent) as caught:
        await room.send("Ada", "ANA")
    assert caught.value.remedy == "for the person, write human:ana"


async def test_a_question_can_be_answered_as_soon_as_its_number_is_known(room):
    view = await ask(room)
    answering = asyncio.create_task(room.questions.answer(view["question_id"], "EUR", by="ana"))
    await room.turn()
    assert (await answering)["answer"] == "EUR"
    await room.turn()
    [(_, body)] = await inbox(room)
    assert "They answered: EUR" in body


async def test_a_question_that_nobody_answered_is_named_to_the_agent_that_asked(room):
    await ask(room, timeout_seconds=60, on_timeout="cancel")
    await room.turn()
    room.clock.advance(timedelta(seconds=61))
    await QuestionTimeouts(room.runs, room.clock, room.clock).round()
    await room.turn()
    [(subject, body)] = await inbox(room)
    assert subject == "Answer: EUR or USD?"
    assert body.startswith("You asked: EUR or USD?\nThere is no answer: no answer came in time")


async def test_snoozed_questions_are_listed_below_the_others_with_the_time_on_each_page_and_in_a_chat(
    room, clock
):
    for number in range(1, 7):
        await ask(room, question=f"Question {number}?")
        await room.turn()
        clock.advance(timedelta(seconds=1))
    asked = {one["question"]: one["number"] for one in await room.questions.questions()}
    for question in ("Question 1?", "Question 4?"):
        await room.questions.snooze(asked[question], for_ms=3_600_000)
    order = [f"Question {number}?" for number in (2, 3, 5, 6, 1, 4)]
    until = iso(clock.now() + 3_600_000)
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        for limit in (1, 2, 4, 5, 9):
            listed, after = list[Any](), ""
            while after is not None:
                found = await operator.get("/admin/questions", params={"limit": limit, "after": after})
                listed, after = [*listed, *found.json()["questions"]], found.json()["next"]
            assert [one["question"] for one in listed] == order
            assert [one["snoozed_until"] for one in listed] == [*[None] * 4, until, until]
    chat = Questions(room.runs.mailbox, room.stores.threads, room.clock)
    texts = (await chat.inbox("")).split("\n\n")
    assert [one.partition("\n")[0] for one in texts] == order
    assert [one.endswith(f"\nSnoozed until {until}.") for one in texts] == [False] * 4 + [True] * 2
    assert (await chat.inbox(f"after {asked['Question 1?']}")).startswith("Question 4?\n")
    assert f"Snoozed until {until}." in await chat.inbox(asked["Question 1?"])


async def test_a_call_that_is_repeated_with_its_key_says_the_state_of_its_question(room):
    view = await ask(room, idempotency_key="k")
    number = view["question_id"]
    assert view == {"question_id": number, "asked": True}
    assert await ask(room, idempotency_key="k") == {"question_id": number, "asked": False, "state": "open"}
    await room.turn()
    assert await ask(room, idempotency_key="k") == {"question_id": number, "asked": False, "state": "open"}
    await room.questions.answer(number, True, by="ana")
    await room.turn()
    again = await ask(room, idempotency_key="k")
    assert (again["asked"], again["state"]) == (False, "answered")
    assert again["answer"].startswith("The answer is yes.")


async def test_a_call_that_is_repeated_with_its_key_says_that_its_question_was_closed(room):
    view = await ask(room, idempotency_key="k")
    await room.turn()
    [shown] = await room.questions.questions()
    await room.operator.cancel(shown["run_id"])
    await room.turn()
    again = {"question_id": view["question_id"], "asked": False, "state": "closed"}
    assert await ask(room, idempotency_key="k") == again


async def test_an_agent_has_sixteen_open_questions_at_most_and_none_holds_up_another(room):
    views = [await ask(room, question=f"Question {number}?") for number in range(16)]
    await room.turn()
    assert len(await room.questions.questions()) == 16
    with pytest.raises(IllegalTransition, match="16 open questions"):
        await ask(room, question="One more?")
    await room.questions.answer(views[7]["question_id"], True, by="ana")
    await room.turn()
    assert [subject for subject, _ in await inbox(room)] == ["Answer: Question 7?"]
    await ask(room, question="One more?")


async def test_an_agent_with_a_runner_asks_in_its_run(room):
    with pytest.raises(InvalidArgument, match="run_id"):
        await ask(room, "Bo")


@pytest.mark.parametrize("to", [["Bo"], ["operator", f"Bo@{SLUG}"]])
async def test_a_question_outside_a_run_that_names_an_agent_is_refused_and_says_who_can_be_asked(room, to):
    with pytest.raises(InvalidArgument, match=f"Bo@{SLUG} cannot answer") as refused:
        await ask(room, to=to)
    assert "people (human:NAME) or operator; starter works in a run" in (refused.value.remedy or "")
    await room.turn()
    assert await room.questions.questions() == []
    assert (await ask(room, to=["operator"]))["asked"]


async def caught_up(room: WorkRoom, about: str) -> list[str]:
    asked = {"project_key": PROJECT, "after": 0}
    found = await room.mail.call("catch_up", asked, caller=Caller(operator=True))
    return [one["text"] for one in found["sentences"] if one["about"] == about]


async def test_the_answer_is_logged_and_summarised_as_a_decision_of_the_person(room):
    view = await ask(room)
    number = view["question_id"]
    await room.turn()
    assert await caught_up(room, "asked") == [f'Ada asks a person (question {number}): "EUR or USD?".']
    await room.questions.answer(number, "EUR", by="ana")
    await room.turn()
    log = await room.mail.call("fetch_events", {"project_key": PROJECT, "after": 0})
    kinds = [one["kind"] for one in log["events"] if one["kind"].startswith("question.")]
    assert kinds == ["question.asked", "question.answered"]
    assert await caught_up(room, "asked") == []
    told = f'ana answered question {number} of Ada, "EUR or USD?", with "EUR".'
    assert await caught_up(room, "decided") == [told]


async def test_the_mail_with_the_answer_is_told_as_a_message_of_the_server(room):
    view = await ask(room)
    await room.turn()
    await room.questions.answer(view["question_id"], "EUR", by="ana")
    await room.turn()
    [said] = await caught_up(room, "said")
    assert said.startswith('postroom wrote a message about "Answer: EUR or USD?"')
    told = await Hooks(room.mail).answer("claude", "UserPromptSubmit", {"cwd": PROJECT, "agent": "Ada"})
    assert '1 unread message for "Ada"; newest from the server,' in told["text"]


async def test_the_record_of_a_question_does_not_list_the_mail_with_its_answer_as_a_place(room):
    view = await ask(room)
    await room.turn()
    await room.questions.answer(view["question_id"], "EUR", by="ana")
    await room.turn()
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    shown = await operator.get("/admin/questions/one", params={"number": view["question_id"]})
    assert (shown.json()["answer"], shown.json()["shown"]) == ("EUR", [])


async def test_an_open_question_of_a_client_holds_up_no_mail_to_its_agent(room):
    await ask(room)
    await room.turn()
    await room.send("Bo", "Ada", subject="News")
    await room.turn()
    assert [subject for subject, _ in await inbox(room)] == ["News"]


async def test_a_question_that_is_asked_again_with_another_action_closes_the_former_one(room):
    first = (await ask(room, question="May I?", action="DROP TABLE a"))["question_id"]
    await room.turn()
    second = (await ask(room, question="May I?", action="DROP TABLE b"))["question_id"]
    await room.turn()
    [shown] = await room.questions.questions()
    assert (shown["number"], shown["action"]) == (second, "DROP TABLE b")
    with pytest.raises(StaleDecision, match=f"Ada has asked this again as question {second}") as stale:
        await room.questions.answer(first, "yes", by="ana")
    assert stale.value.details["open"] == [second]
    assert await inbox(room) == []  # the agent knows that it has asked again
    record = await room.questions.show(first)
    assert (record["state"], record["approved"], record["answered_by"]) == ("closed", None, "nobody")
    log = await room.mail.call("fetch_events", {"project_key": PROJECT, "after": 0})
    told = [one["kind"] for one in log["events"] if one["detail"].get("question_id") == first]
    assert told == ["question.asked", "question.withdrawn"]
    await room.questions.answer(second, "yes", by="ana")
    await room.turn()
    [(_, body)] = await inbox(room)
    assert "The answer is yes." in body


async def test_a_question_that_is_asked_again_while_its_answer_can_be_withdrawn_gets_this_answer(room):
    number = (await ask(room, choices=["EUR", "USD"]))["question_id"]
    await room.turn()
    [shown] = await room.questions.questions()
    await room.questions.decide(SLUG, shown["run_id"], number, Given(value="usd", by=person("ana"), at=PAGES))
    again = {"question_id": number, "asked": False, "state": "answered"}  # the answer can be withdrawn
    assert await ask(room, choices=["EUR", "USD"]) == again
    await room.turn()
    assert await room.questions.questions() == []
    room.clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
    await room.runs.mailbox.recover()
    await room.turn()
    [(_, body)] = await inbox(room)
    assert "They answered: USD" in body
    assert (await ask(room, choices=["EUR", "USD"]))["asked"], "the agent has the answer, and asks anew"


async def test_another_question_of_the_agent_stays_open_if_one_is_asked_again(room):
    other = (await ask(room, question="EUR or USD?"))["question_id"]
    await ask(room, question="May I?", action="DROP TABLE a")
    await room.turn()
    second = (await ask(room, question="May I?", action="DROP TABLE b"))["question_id"]
    await room.turn()
    assert {one["number"] for one in await room.questions.questions()} == {other, second}


async def test_an_answer_that_came_before_the_question_was_asked_again_stays_the_answer(room):
    first = (await ask(room, question="May I?", action="DROP TABLE a"))["question_id"]
    await room.turn()
    await room.questions.answer(first, "yes", by="ana")
    second = (await ask(room, question="May I?", action="DROP TABLE b"))["question_id"]
    await room.turn()
    record = await room.questions.show(first)
    assert (record["approved"], record["answered_by"]) == (True, "ana")
    assert [one["number"] for one in await room.questions.questions()] == [second]


async def answered_and_asked_again(room) -> tuple[tuple[str, str, str], str]:
    """Let the agent ask again after an answer that can be taken back; return the former place, and the new number."""
    first = (await ask(room, question="May I?", action="DROP TABLE a"))["question_id"]
    await room.turn()
    [shown] = await room.questions.questions()
    place = SLUG, shown["run_id"], first
    await room.questions.decide(*place, Given(value=True, by=person("ana"), at=PAGES))
    second = (await ask(room, question="May I?", action="DROP TABLE b"))["question_id"]
    return place, second


async def test_an_answer_that_is_taken_back_after_the_question_was_asked_again_closes_the_former_one(room):
    place, second = await answered_and_asked_again(room)
    _, run_id, first = place
    await room.turn()
    async with room.browser() as browser:
        page = f"/p/{SLUG}/questions"
        taken = await post(browser, page, *await take_back_form(browser, run_id))
        assert (taken.status_code, place_of(taken)) == (303, f"{page}?done=closed")
        assert "the former question is closed" in (await browser.get(taken.headers["location"])).text
    assert [one["number"] for one in await room.questions.questions()] == [second]
    with pytest.raises(StaleDecision, match=f"Ada has asked this again as question {second}"):
        await room.questions.answer(first, "yes", by="ana")
    room.clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
    await room.runs.mailbox.recover()
    await room.turn()
    assert await inbox(room) == [], "the agent gets no answer that was taken back"
    assert (await room.questions.show(first))["state"] == "closed"
    assert [one["number"] for one in await room.questions.questions()] == [second]


async def test_an_answer_is_taken_back_before_the_run_of_the_question_that_replaces_it_has_started(room):
    place, second = await answered_and_asked_again(room)
    browser = room.browser()
    await post(browser, QUESTIONS, *await take_back_form(browser, place[1]))
    await room.turn()
    assert [one["number"] for one in await room.questions.questions()] == [second]


RETIRED = "Ada was retired, so the question was closed"


@both_engines
async def test_the_questions_of_an_agent_that_is_retired_are_closed_with_this_reason(room):
    numbers = [(await ask(room, question=f"{one}?"))["question_id"] for one in range(3)]
    await ask(room, "Ada2", "And I?")
    await room.turn()
    await room.mail.call("retire_agent", {"project_key": PROJECT, "agent_name": "Ada"})
    await room.turn()
    assert [one["agent"] for one in await room.questions.questions()] == ["Ada2"]
    for number in numbers:
        record = await room.questions.show(number)
        assert (record["state"], record["answer"], record["answered_by"]) == ("closed", RETIRED, "nobody")
    with pytest.raises(StaleDecision, match=RETIRED):
        await room.questions.answer(numbers[0], "yes", by="ana")
    await room.mail.call("unretire_agent", {"project_key": PROJECT, "agent_name": "Ada"})
    assert await inbox(room) == [], "a retired agent receives no messages"


async def test_a_question_of_an_agent_that_is_retired_before_anybody_can_see_it_is_closed(room):
    number = (await ask(room))["question_id"]
    await room.mail.call("retire_agent", {"project_key": PROJECT, "agent_name": "Ada"})
    await room.turn()
    assert await room.questions.questions() == []
    with pytest.raises(StaleDecision, match=RETIRED):
        await room.questions.answer(number, "EUR", by="ana")


@pytest.mark.parametrize("asks_first", [True, False])
async def test_a_run_whose_agent_is_retired_waits_for_no_answer_and_its_sender_is_told(room, asks_first):
    await room.people("Ash", runners=("Ash",))
    retire = {"project_key": PROJECT, "agent_name": "Ash"}
    if not asks_first:

        async def retired_while_it_asks(activation):
            await room.mail.call("ask_person", {**retire, "run_id": activation.run_id, "question": "May I?"})
            await room.mail.call("retire_agent", retire)

        room.agents.asking, room.agents.act = set(), retired_while_it_asks
    await room.send("Ada", "Ash")
    await room.turn()
    if asks_first:
        assert len(await room.questions.questions()) == 1
        room.clock.advance(timedelta(seconds=1))
        await room.mail.call("retire_agent", retire)
        await room.turn()
    assert await room.questions.questions() == []
    assert "Ash was retired" in (await inbox(room))[0][1]
    [run] = await room.runs.stores.threads.list_runs(RunQuery(statuses=(RunStatus.DONE,)))
    page = (await room.browser().get(f"/p/{SLUG}/runs/{run.run_id}")).text
    assert "May I?" in page
    assert ("Shown <bdi>by mail to Ada</bdi>" in page) == asks_first


async def test_an_answer_that_came_before_its_agent_was_retired_stays_and_cannot_be_taken_back(room):
    number = (await ask(room, choices=["EUR", "USD"]))["question_id"]
    await room.turn()
    [shown] = await room.questions.questions()
    place = SLUG, shown["run_id"], number
    await room.questions.decide(*place, Given(value="usd", by=person("ana"), at=PAGES))
    browser = room.browser()
    form = await take_back_form(browser, shown["run_id"])
    await room.mail.call("retire_agent", {"project_key": PROJECT, "agent_name": "Ada"})
    assert not (await room.questions.show(number))["can_take_back"]
    assert "Take back" not in (await browser.get(QUESTIONS)).text
    refused = await post(browser, QUESTIONS, *form)
    assert refused.status_code == 409
    assert "cannot be withdrawn: Ada was retired" in refused.text
    room.clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
    await room.runs.mailbox.recover()
    await room.turn()
    record = await room.questions.show(number)
    assert (record["state"], record["answer"]) == ("answered", "USD")
