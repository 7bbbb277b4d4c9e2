"""People work on the pages: they answer, write, end runs and have them tried again, each once and only they."""

import asyncio
import html
import re
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import urlencode

import httpx2
import pytest
import pytest_asyncio
from starlette.applications import Starlette

from dispatch_room import Noop, done
from machine import PATIENCE
from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import StaleDecision
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery, ThreadCommit
from postroom.contracts.runs import RunRecord, RunStatus, TerminationReason
from postroom.contracts.work import SHOWN_STATES
from postroom.dispatch.mailbox import Mailbox
from postroom.mail.context import Caller, Rules
from postroom.mail.operations import OPERATIONS
from postroom.mail.projects import PEOPLE_SLUG
from postroom.mail.waking.prompts import agent_thread
from postroom.services import work as work_service
from postroom.services.questions import TAKE_BACK_MS, QuestionTimeouts
from postroom.stores.runs import rows
from postroom.stores.sqlite import SqliteStore
from postroom.stores.store import Transaction
from postroom.testing import ManualClock
from postroom.web.forms import MAX_FIELDS, SMALL_FORM
from postroom.web.pages import page_routes
from table_rows import each_row
from waking_room import PROJECT
from web_samples import HOSTILE
from work_room import HTTP, QUESTIONS, SLUG, TOKEN, WorkRoom, hidden, opened, place, post, take_back_form

RUNS, WRITE, SCHEDULES = (f"/p/{SLUG}/{name}" for name in ("runs", "write", "schedules"))
NEW_PAGES = (QUESTIONS, RUNS, WRITE, SCHEDULES, f"{QUESTIONS}?live=1", f"{RUNS}?live=1", f"{WRITE}?to=Bo")


@pytest.fixture
def stores(clock: ManualClock):
    held = SqliteStore.in_memory(clock)
    yield held, held.runs
    held.close()


OF_QUESTIONS = ["question.asked", "question.answered", "question.withdrawn"]


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock)
    await made.people("Ada", "Bo", "Ash", "Fay", runners=("Bo", "Ash", "Fay"))
    yield made
    await made.close()


@pytest_asyncio.fixture
async def patient(clock: ManualClock) -> AsyncIterator[WorkRoom]:
    """A room in which an answer can be taken back for eight seconds."""
    async with opened(clock, "Ada", "Ash", runners=("Ash",), take_back_ms=TAKE_BACK_MS) as room:
        yield room


async def asked(room: WorkRoom):
    """Have a person asked, and return a browser with the fields of the question's form."""
    await room.send("Ada", "Ash")
    await room.turn()
    browser = room.browser()
    page = (await browser.get(QUESTIONS)).text
    names = ("form_token", "run", "number")
    return browser, [(name, hidden(page, name)) for name in names]


async def dead(room: WorkRoom):
    """Have a run become a dead letter, and return a browser with the fields by which the next attempt is due."""
    await room.send("Ada", "Fay", subject="Count the bees")
    await room.turn()
    browser = room.browser()
    page = (await browser.get(RUNS)).text
    return browser, [(name, hidden(page, name)) for name in ("form_token", "run")]


async def message_form(room: WorkRoom, address: str = WRITE, **typed: str):
    if not await room.people_named.everybody():
        await room.people_named.add("Ana", None)
    browser = room.browser()
    page = (await browser.get(address)).text
    fields = {"name": "Ana", "to": "Bo", "subject": "Hello", "body": "Look.", "importance": "normal", **typed}
    known = [(name, hidden(page, name)) for name in ("form_token", "key")]
    return browser, [*known, *((name, text) for name, text in fields.items() if text)]


# Questions.


async def test_a_question_is_answered_with_a_reason_and_the_agent_goes_on_with_it(room):
    browser, fields = await asked(room)
    answer = await post(
        browser, QUESTIONS, *fields, ("why", "it is copied"), ("by", "Ana"), ("answer", "yes")
    )
    assert answer.status_code == 303
    page = (await browser.get(answer.headers["location"])).text
    assert "Answered with <b>yes</b>" in page
    assert "No open questions" in page
    await room.turn()
    assert room.agents.told[1] == (
        "You asked a person: May I?\nThe answer is yes. They said: it is copied\nContinue with this answer."
    )
    [given] = await room.look(room.questions.given_answers, SLUG, limit=9)
    assert (given.by, given.where, given.why, given.approved) == ("Ana", "on the pages", "it is copied", True)
    page = (await browser.get(QUESTIONS)).text
    assert "Ana" in page
    assert "it is copied" in page
    assert 'value="Ana"' in (await browser.get(WRITE)).text


async def test_the_control_room_has_what_needs_a_person_with_its_context_and_takes_the_answer(room):
    other, dead_letter = await dead(room)
    browser, fields = await asked(room)
    await room.send("Bo", "Ash", subject="Waits behind the question")
    await room.turn()
    page = (await browser.get(f"/p/{SLUG}")).text
    question = await room.look(room.questions.open_questions, SLUG)
    for words in (
        *(question[0].text, "Working on", "1 waiting message", "</a> failed", "Count the bees"),
        *("Ash has an open question", "missing:"),
    ):
        assert words in page, words
    assert 'data-go="c"' in page
    assert '<span class="count owed">2<span class="hidden"> need you' in page
    parts = (await browser.get(f"/p/{SLUG}?part=needs,tabs")).text
    assert question[0].text in parts
    assert "<html" not in parts
    answer = await post(browser, QUESTIONS, *fields, ("back", "control"), ("by", "Ana"), ("answer", "yes"))
    assert (answer.status_code, place(answer).partition("&")[0]) == (303, f"/p/{SLUG}?done=yes")
    await room.turn()
    after = (await browser.get(answer.headers["location"])).text
    assert "Answered with" in after
    assert f'value="{question[0].run_id}"' not in after
    tried = await post(other, RUNS, *dead_letter, ("do", "replay"))
    assert tried.status_code == 303
    again = (await room.look(room.operator.floor, SLUG)).given_up  # it failed once more, as a new run
    assert [one.parent_run_id for one in again] == [dict(dead_letter)["run"]]
    failures = [one for one in await room.messages() if "could not process" in one.body_md]
    assert len(failures) == 2, "that is told once more"


async def test_a_question_is_shown_with_its_cause_and_the_last_lines_that_a_person_can_read(room):
    room.agents.output = [
        "\x1b[1mI look at the plan\x1b[0m\n",
        '{"type":"system","session_id":"5"}\n',
        "It is short. \x1b[3",
    ]
    cause = "**Empty** the [old cellar](http://a.b)\n\nof `prod.db`. " + "word " * 99
    await room.send("Ada", "Ash", body=cause)
    await room.turn()
    browser = room.browser()
    page = (await browser.get(f"/p/{SLUG}")).text
    cause = page[page.index("Working on") :].partition("</dd>")[0]
    assert "<bdi>Empty the old cellar of prod.db. word" in " ".join(cause.split())
    assert cause.count("word") < 40
    before = page[page.index("<dt>Last output</dt>") :]
    assert '<pre class="last" tabindex="0">I look at the plan\nIt is short. </pre>' in before
    number = (await room.look(room.questions.open_questions, SLUG))[0].number
    assert f'id="q-{number}"' in (await browser.get(QUESTIONS)).text, "the timeline leads there"


async def test_a_question_is_called_the_same_by_the_agent_the_pages_and_the_command_line(room):
    _, fields = await asked(room)
    [number] = room.agents.question_ids
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    [listed] = (await operator.get("/admin/questions")).json()["questions"]
    assert [listed["number"], dict(fields)["number"]] == [number, number]
    answered = await operator.post("/admin/questions", json={"number": number, "answer": "no"})
    assert answered.status_code == 200
    await room.turn()
    await room.send("Ada", "Ash")
    await room.turn()
    assert len(set(room.agents.question_ids)) == 2  # the same words of another run


async def test_a_number_that_two_open_questions_share_answers_neither_at_the_command_line(room):
    _, fields = await asked(room)
    [run] = await room.stores.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    twin = replace(run, run_id="twin", thread_id=f"agent:{SLUG}/Ada", dispatch_id=None)
    await room.stores.coordinator.commit(ThreadCommit(thread_id=twin.thread_id, run=twin))
    assert [one.number for one in await room.look(room.questions.open_questions, SLUG)] == [
        dict(fields)["number"]
    ] * 2
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    answer = {"number": dict(fields)["number"], "answer": "yes"}
    refused = await operator.post("/admin/questions", json=answer)
    assert (refused.status_code, "2 open questions" in refused.json()["detail"]) == (400, True)
    assert len(await room.look(room.questions.open_questions, SLUG)) == 2


async def test_two_people_at_once_are_one_answer(room):
    browser, fields = await asked(room)
    refused = await post(browser, QUESTIONS, *fields, ("answer", "yes"))
    assert (refused.status_code, "answer does not name a person" in refused.text) == (400, True)
    answers = await asyncio.gather(
        post(browser, QUESTIONS, *fields, ("by", "Ana"), ("answer", "yes")),
        post(browser, QUESTIONS, *fields, ("by", "Ben"), ("answer", "no")),
    )
    assert sorted(one.status_code for one in answers) == [303, 409]
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    body = {"number": dict(fields)["number"], "answer": "no"}
    refused = await operator.post("/admin/questions", json=body)
    [given] = await room.look(room.questions.given_answers, SLUG, limit=9)
    first = f"{given.by} on the pages answered {'yes' if given.by == 'Ana' else 'no'}"
    assert (refused.status_code, first in refused.json()["detail"]) == (409, True)
    await room.turn()
    assert len([one for one in room.agents.told if "The answer is" in one]) == 1


@pytest.mark.parametrize(
    ("asks", "badge", "answer", "told"),
    [
        (
            {"choices": ["x", "z"], "on_timeout": "default", "default": "x"},
            "default",
            "x (no answer came in time)",
            "<b>Nobody answered</b>: <bdi>x (no answer came in time)</bdi>",
        ),
        (
            {"on_timeout": "no"},
            "no",
            "no answer came in time",
            "<b>Nobody answered</b>, which means no: <bdi>no answer came in time</bdi>",
        ),
        (
            {"on_timeout": "cancel"},
            "closed",
            "no answer came in time, so the run was cancelled",
            "<b>Nobody answered</b>: <bdi>no answer came in time, so the run was cancelled</bdi>",
        ),
    ],
)
async def test_a_question_that_nobody_answers_in_time_is_not_shown_as_answered(
    room, asks, badge, answer, told
):
    room.agents.asks = {**asks, "timeout_seconds": 60}
    browser, fields = await asked(room)
    room.clock.advance(timedelta(seconds=61))
    await QuestionTimeouts(room.runs, room.clock, room.clock).round()
    await room.turn()
    page = (await browser.get(QUESTIONS)).text
    lately = page[page.index("Recently answered or closed") :]
    assert re.search(
        rf'<span class="badge \w+">{badge}</span>\s+<span class="soft under"><bdi>{re.escape(answer)}<',
        lately,
    )
    assert "in words" not in lately
    assert told in (await browser.get(f"{RUNS}/{dict(fields)['run']}")).text
    late = await post(browser, QUESTIONS, *fields, ("do", "answer"), ("answer", "yes"), ("by", "Ana"))
    assert late.status_code == 409
    assert ("The first answer counts" in late.text, "</b> answered" in late.text) == (False, False)


async def test_a_snoozed_question_is_listed_below_those_that_need_an_answer_now(room):
    room.agents.more_questions = ["And then?"]
    await asked(room)
    await room.questions.snooze(room.agents.question_ids[0], for_ms=3_600_000, by="Ana")
    browser = room.browser()
    for address in ("/", f"/p/{SLUG}", QUESTIONS):
        page = (await browser.get(address)).text
        assert page.index("And then?") < page.index("May I?"), address


async def test_a_choice_is_shown_as_the_choice_and_words_on_a_yes_or_no_as_words(room):
    browser, _ = await asked(room)
    room.agents.asks = {"choices": ["EUR", "USD"]}
    await room.questions.answer(room.agents.question_ids[0], "not before May", why="")
    await room.turn()
    await room.send("Ada", "Ash")
    await room.turn()
    await room.questions.answer(room.agents.question_ids[1], "USD", why="")
    page = (await browser.get(QUESTIONS)).text
    answers = re.findall(r'data-label="Answer"><span>(.*?)</span></td>', page, re.DOTALL)
    assert ["in words" in one for one in answers] == [False, True]
    assert ["<bdi>USD<" in one or "<bdi>not before May<" in one for one in answers] == [True, True]


async def test_a_question_of_another_project_is_none_of_ours(room):
    await room.mail.call("ensure_project", {"human_key": "/projects/other"})
    browser, fields = await asked(room)
    assert "No open questions" in (await browser.get("/p/projects-other/questions")).text
    answer = await post(browser, "/p/projects-other/questions", *fields, ("by", "Ana"), ("answer", "yes"))
    assert answer.status_code == 409
    run_id = dict(fields)["run"]
    assert (await browser.get(f"/p/projects-other/runs/{run_id}")).status_code == 404
    cancelled = await post(browser, "/p/projects-other/runs", *fields, ("do", "cancel"))
    assert cancelled.status_code == 404
    assert len(await room.look(room.questions.open_questions, SLUG)) == 1


async def test_the_end_of_a_server_is_drawn_as_an_interruption_and_not_as_a_failure(room):
    begun, goes_on = room.agents.hold()
    await room.send("Ada", "Bo")
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    [run] = await room.stores.threads.list_runs(RunQuery())
    room.clock.advance(timedelta(seconds=30))

    def begins_again(tx):  # as the next server has it, when the one before was stopped
        project = tx.project(PROJECT)
        tx.begin_run(run.run_id, tx.agent(project.id, "Bo").id, tx.now())

    await room.store.write(begins_again)
    room.clock.advance(timedelta(seconds=30))
    browser = room.browser()
    page = (await browser.get(f"/p/{SLUG}/runs/{run.run_id}")).text
    main = re.sub("<[^>]*>", " ", page[page.index("<main") : page.index("</main")])
    assert "↻ interrupted" in main
    assert "Attempt 1 was interrupted" in main
    assert "fail" not in main.lower()
    drawn = (await browser.get(f"/p/{SLUG}/timeline")).text
    assert "Bo was interrupted" in drawn
    assert "Bo failed" not in drawn
    goes_on.set()
    await room.turn()


async def test_a_question_ends_a_chain_though_its_agent_waits_for_another(room):
    await room.send("Bo", "Ash")
    await room.turn()
    room.agents.asking = {"Ash", "Bo"}
    await room.send("Ada", "Bo")
    await room.turn()
    waits = (await room.look(room.operator.floor, SLUG)).waits
    assert sorted(one.names for one in waits) == [("Ada", "Bo"), ("Ada", "Bo", "Ash")]
    assert {one.state for one in waits} == {"asks"}
    page = (await room.browser().get(f"/p/{SLUG}")).text
    chains = page[page.index('id="waits"') :].partition("</section>")[0]
    assert chains.count("May I?") == 2


async def test_an_answer_can_be_taken_back_for_eight_seconds_and_then_another_is_given(patient, clock):
    browser, fields = await asked(patient)
    told = len(patient.agents.told)
    sent = await post(browser, QUESTIONS, *fields, ("back", "control"), ("by", "Ana"), ("answer", "yes"))
    await patient.turn()
    assert len(patient.agents.told) == told  # the agent has nothing yet
    assert await patient.look(patient.questions.open_questions, SLUG) == []
    for page in (sent.headers["location"], QUESTIONS):
        assert (await browser.get(page)).text.count('value="take_back"') == 1, page
    clock.advance(timedelta(milliseconds=TAKE_BACK_MS - 1))
    form = await take_back_form(browser, dict(fields)["run"])
    assert (await post(browser, QUESTIONS, *form)).status_code == 303
    [question] = await patient.look(patient.questions.open_questions, SLUG)
    assert question.number == dict(fields)["number"]
    clock.advance(timedelta(minutes=1))
    await patient.runs.mailbox.poll()
    await patient.turn()
    assert len(patient.agents.told) == told
    assert await patient.look(patient.questions.given_answers, SLUG, limit=10) == []
    await post(browser, QUESTIONS, *fields, ("by", "Ana"), ("answer", "no"))
    form = await take_back_form(browser, dict(fields)["run"])
    clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
    await patient.runs.mailbox.poll()
    await patient.turn()
    assert "The answer is no." in patient.agents.told[-1]
    late = await post(browser, QUESTIONS, *form)
    assert late.status_code == 409
    assert "has already received it" in late.text
    assert 'value="take_back"' not in (await browser.get(QUESTIONS)).text


@pytest.mark.parametrize("back", ["", "home", "control", "run"])
async def test_an_answer_that_is_taken_back_after_the_deadline_leaves_the_question_closed(
    patient, clock, back
):
    patient.agents.asks = {"timeout_seconds": 5, "on_timeout": "cancel"}
    browser, fields = await asked(patient)
    clock.advance(timedelta(seconds=4))
    await post(browser, QUESTIONS, *fields, ("by", "Ana"), ("answer", "yes"))
    clock.advance(timedelta(seconds=2))
    form = dict(await take_back_form(browser, dict(fields)["run"])) | {"back": back}
    sent = await post(browser, QUESTIONS, *form.items())
    page = await browser.get(sent.headers["location"])
    assert page.status_code == 200
    assert "The deadline of the question has passed, so the question is not open again." in page.text


FORM = {
    "type": "object",
    "properties": {"amount": {"type": "number"}, "again": {"type": "boolean"}},
    "required": ["amount"],
}


@pytest.mark.parametrize(
    ("asks", "given", "shown"),
    [
        ({"text": True}, {"answer": "As\nbefore <b>"}, ">As\nbefore &lt;b&gt;</textarea>"),
        ({"choices": ["EUR", "USD"]}, {"answer": "USD", "why": "as (ever)"}, 'value="as (ever)"'),
        ({}, {"answer": "no", "why": "the backup first"}, 'value="the backup first"'),
        ({}, {"answer": "", "why": "EUR, please"}, 'value="EUR, please"'),
        ({"form": FORM}, {"names": ("amount", "again"), "v0": "5.5", "v1": "no"}, 'value="5.5"'),
    ],
    ids=["text", "choice", "no", "words", "form"],
)
async def test_an_answer_that_is_taken_back_brings_its_words_back(patient, asks, given, shown):
    patient.agents.asks = asks
    browser, fields = await asked(patient)
    pairs = [
        (name, one) for name, value in given.items() for one in ([value] if isinstance(value, str) else value)
    ]
    await post(browser, QUESTIONS, *fields, ("by", "Ana"), *pairs)
    await patient.turn()
    assert await patient.look(patient.questions.open_questions, SLUG) == []
    back = await post(browser, QUESTIONS, *await take_back_form(browser, dict(fields)["run"]))
    assert (back.status_code, "<h1>Taken back</h1>" in back.text, shown in back.text) == (200, True, True)
    assert 'name="by" value="Ana"' in back.text
    assert ('<option value="no" selected>' in back.text) is ("form" in asks)
    assert len(await patient.look(patient.questions.open_questions, SLUG)) == 1


@each_row("second_at", ["pages", "command line"])
async def test_an_answer_to_one_question_leaves_the_answer_to_another_its_eight_seconds(clock, second_at):
    async with opened(clock, "Ada", "Ash", runners=("Ash",), take_back_ms=TAKE_BACK_MS) as room:
        room.agents.more_questions = ["May I push?"]
        browser, fields = await asked(room)
        told = len(room.agents.told)
        first, other = ([*fields[:2], ("number", number)] for number in room.agents.question_ids)
        await post(browser, QUESTIONS, *first, ("by", "Ana"), ("answer", "yes"))
        form = await take_back_form(browser, dict(first)["run"])
        clock.advance(timedelta(milliseconds=TAKE_BACK_MS - 1_000))
        if second_at == "pages":
            await post(browser, QUESTIONS, *other, ("by", "Ben"), ("answer", "no"))
        else:
            await room.questions.answer(dict(other)["number"], False, why="")
        await room.runs.mailbox.poll()
        await room.turn()
        assert len(room.agents.told) == told, (
            "the run waits for as long as the first answer can be taken back"
        )
        assert (await post(browser, QUESTIONS, *form)).status_code == 303
        assert [one.number for one in await room.look(room.questions.open_questions, SLUG)] == [
            dict(first)["number"]
        ]
        clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
        await room.runs.mailbox.poll()
        await room.turn()
        assert "The answer is no." in room.agents.told[-1]
        assert "The answer is yes." not in room.agents.told[-1]


async def test_an_answer_by_mail_is_listed_with_who_gave_it_and_its_words(room):
    room.agents.asks = {"text": True}
    browser, _ = await asked(room)
    [question] = [one for one in await room.messages() if one.sender_name == "Ash"]
    reply = {
        "project_key": PROJECT,
        "sender_name": "Ada",
        "message_id": question.id,
        "body_md": "Blue, please.",
    }
    await room.mail.call("reply_message", reply)
    for _ in range(2):  # before the run goes on, and after its end
        [given] = await room.look(room.questions.given_answers, SLUG, limit=10)
        assert (given.by, given.where, given.why, given.approved) == ("Ada", "by mail", "Blue, please.", None)
        assert await room.look(room.questions.open_questions, SLUG) == []
        page = (await browser.get(QUESTIONS)).text
        lately = page[page.index("Recently answered") :]
        assert all(words in lately for words in ("May I?", "Ada", "by mail", "Blue, please."))
        await room.turn()
    story = (await browser.get(f"/p/{SLUG}/runs/{given.run_id}")).text
    assert "Blue, please." in story
    [mail, answer] = [one for one in room.agents.told if "Blue, please." in one]
    assert mail.startswith("Mail has come")
    assert answer == "You asked a person: May I?\nThey answered: Blue, please.\nContinue with this answer."
    with pytest.raises(StaleDecision, match="Ada by mail"):
        await room.questions.answer(given.number, True, why="")


async def test_every_page_that_shows_open_questions_is_read_again_every_two_seconds(room):
    """No event tells an answer that came while the run works with another one."""
    browser, fields = await asked(room)
    for page in ("/", f"/p/{SLUG}", QUESTIONS, f"{RUNS}/{dict(fields)['run']}"):
        text = (await browser.get(page)).text
        [part] = re.findall(
            r'<\w+[^>]* data-part="([^"]*)"[^>]* data-every="2000"[^>]*>(?=(?:(?!data-part=).)*May I\?)',
            text,
            re.DOTALL,
        )
        assert part, page
        assert page == "/" or re.search(r'<nav[^>]* data-part="tabs"[^>]* data-every="2000"', text), (
            "its count"
        )


async def test_a_persons_reply_to_a_question_on_its_page_answers_it(room):
    await asked(room)
    [question] = [one for one in await room.messages() if one.sender_name == "Ash"]  # it came to Ada
    browser, fields = await message_form(room, f"{WRITE}?reply={question.id}", to="", subject="", body="yes")
    sent = await post(browser, WRITE, *fields, ("reply", str(question.id)))
    assert "waits:" not in (await browser.get(sent.headers["location"])).text
    await room.turn()
    [given] = await room.look(room.questions.given_answers, SLUG, limit=10)
    assert (given.by, given.where, given.approved) == ("Ana", "by mail", True)
    assert [run.status for run in await room.stores.threads.list_runs(RunQuery())] == [RunStatus.DONE]


async def test_a_reply_below_a_thread_goes_to_its_open_question_also_after_a_later_message(room):
    browser, _ = await asked(room)
    [question] = [one for one in await room.messages() if one.sender_name == "Ash"]
    later = {
        "project_key": PROJECT,
        "sender_name": "Fay",
        "to": ["Ada"],
        "subject": "Hm",
        "body_md": "Ask Ada.",
    }
    await room.mail.call("send_message", {**later, "thread_id": question.thread_id})
    page = (await browser.get(f"/p/{SLUG}/t/{question.thread_id}")).text
    assert f'>Reply <span class="soft">to <a href="#m-{question.id}">' in page
    await room.questions.answer(room.agents.question_ids[0], True, why="")
    await room.turn()
    last = max(one.id for one in await room.messages())
    page = (await browser.get(f"/p/{SLUG}/t/{question.thread_id}")).text
    assert f'>Reply <span class="soft">to <a href="#m-{last}">' in page


async def test_a_person_whose_message_does_not_answer_is_told_why_at_once(room):
    await asked(room)
    [question] = [one for one in await room.messages() if one.sender_name == "Ash"]
    await room.questions.answer(room.agents.question_ids[0], True, why="")
    room.agents.question = "And now?"
    await room.send("Ada", "Ash")
    await room.turn()  # another run asks: the first question is no longer open
    browser, fields = await message_form(room, f"{WRITE}?reply={question.id}", to="", subject="", body="No!")
    sent = await post(browser, WRITE, *fields, ("reply", str(question.id)))
    assert "waits: Ash has an open question" in (await browser.get(sent.headers["location"])).text
    await room.turn()
    assert [one.text for one in await room.look(room.questions.open_questions, SLUG)] == ["And now?"]


async def test_a_message_with_which_an_agent_works_does_not_wait_behind_the_question_about_it(room):
    browser, fields = await message_form(room, to="Ash")
    sent = await post(browser, WRITE, *fields)
    await room.turn()
    assert [one.text for one in await room.look(room.questions.open_questions, SLUG)] == ["May I?"]
    [message] = [one for one in await room.messages() if one.sender_name == "Ana"]
    page = (await browser.get(sent.headers["location"])).text
    assert "<b><bdi>Ash</bdi></b>: wake by runner, and a run of Ash has it<" in page
    thread = (await browser.get(f"/p/{PEOPLE_SLUG}/t/{message.thread_id}")).text
    inbox = (await browser.get(f"/p/{SLUG}/agents/Ash")).text
    for shown in (page, inbox, thread):
        assert "to a run that has not ended" in shown
        assert "waits:" not in shown
        assert "unread, announced" not in shown
    asked = {"project_key": PROJECT, "agent_name": "Ash", "message_id": message.id}
    found = await room.mail.call("delivery_status", asked)
    assert [(one["state"], one["waits"]) for one in found["recipients"]] == [("delivered", None)]


async def test_a_message_whose_run_failed_is_marked_as_such(room):
    browser, fields = await message_form(room, to="Fay")
    sent = await post(browser, WRITE, *fields)
    await room.turn()
    page = (await browser.get(sent.headers["location"])).text
    assert "unread, the run failed" in page
    assert "unread, announced" not in page


# Messages.


async def test_a_person_writes_and_sees_how_each_will_see_it(room):
    browser, fields = await message_form(room)
    answer = await post(browser, WRITE, *fields, ("to", "Ada"), ("others", "Bo, Fay"))
    assert answer.status_code == 303
    assert place(answer).endswith("?sent=1")
    page = (await browser.get(answer.headers["location"])).text
    assert "<b><bdi>Ada</bdi></b>: inbox only" in page
    assert "<b><bdi>Bo</bdi></b>: wake by runner" in page
    assert "<b><bdi>Fay</bdi></b>: wake by runner" in page
    [message] = [one for one in await room.messages() if one.sender_name == "Ana"]  # there may be answers
    assert (message.subject, message.body_md) == ("Hello", "Look.")
    await room.turn()
    assert "From: human:Ana" in room.agents.told[0]


async def test_a_double_click_sends_one_message(room):
    browser, fields = await message_form(room)
    answers = await asyncio.gather(*(post(browser, WRITE, *fields) for _ in range(3)))
    assert {(one.status_code, one.headers["location"]) for one in answers} == {
        (303, answers[0].headers["location"])
    }
    assert [one.sender_name for one in await room.messages() if one.reply_to is None] == ["Ana"]


async def test_a_form_that_was_sent_and_changed_is_kept_and_sent_when_asked_again(room):
    browser, fields = await message_form(room)
    await post(browser, WRITE, *fields)
    changed = [(name, "Other words." if name == "body" else text) for name, text in fields]
    refused = await post(browser, WRITE, *changed)
    assert refused.status_code == 409
    assert "Other words." in refused.text
    again = [(name, hidden(refused.text, "key") if name == "key" else text) for name, text in changed]
    assert (await post(browser, WRITE, *again)).status_code == 303
    written = [one.body_md for one in await room.messages() if one.sender_name != "Bo"]
    assert written == ["Look.", "Other words."]


@each_row(
    "typed, status, said",
    [
        ({"to": "", "others": "Nobody-here"}, 404, "no agent &#39;Nobody-here&#39;"),
        ({"to": "", "others": "Nobody-here"}, 404, "Choose an agent from the list, or correct the name"),
        *(({"to": ""}, 400, "The message has no recipient"), ({"to": ""}, 400, "Choose at least one agent")),
        ({"to": "Bo", "others": "Nix, Nox"}, 400, "Nix"),
        ({"to": "Bo", "others": "Nix, Nox"}, 400, "choose an agent from the list, or correct the name"),
        *(({"subject": "s" * 513}, 413, "the limit is 512"), ({"subject": "two\nlines"}, 400, "line breaks")),
        ({"body": "b" * (1 << 20) + "é"}, 413, "the limit is 1048576"),
        *(({"name": "Bo"}, 404, "There is no person"), ({"name": ""}, 404, "There is no person")),
        ({"importance": "loud"}, 400, "importance"),
        ({"body": "nul\0"}, 400, "The message contains text that is not valid Unicode or a zero byte"),
    ],
)
async def test_what_is_refused_comes_back_as_it_was_typed(room, typed, status, said):
    browser, fields = await message_form(room, **typed)
    answer = await post(browser, WRITE, *fields)
    note = answer.text.partition('id="refusal"')[2].partition("</div>")[0]
    assert not re.search(rf"\b({'|'.join(OPERATIONS)})\b|_md|<code>(to|cc|bcc)</code>", note), note
    assert (answer.status_code, said in answer.text) == (status, True), answer.text[:3000]
    assert "Not sent." in answer.text
    kept = dict(fields)
    for name in ("name", "subject", "body"):
        assert kept.get(name, "").replace("é", "")[:200].strip("\0") in answer.text
    assert hidden(answer.text, "key") == kept["key"]
    assert await room.messages() == []


async def send_files(browser, *pairs: tuple[str, str], files: list[tuple[str, bytes]]):
    """Send the form for a message as a browser does, its files last."""
    mark = "----mark"
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{text}'.encode() for name, text in pairs]
    for name, content in files or [("", b"")]:
        head = f'Content-Disposition: form-data; name="files"; filename="{name}"\r\nContent-Type: text/plain'
        parts.append(f"{head}\r\n\r\n".encode() + content)
    body = b"".join(b"--" + mark.encode() + b"\r\n" + part + b"\r\n" for part in parts)
    headers = {"Content-Type": f"multipart/form-data; boundary={mark}", "Origin": HTTP}
    return await browser.post(WRITE, content=body + b"--" + mark.encode() + b"--\r\n", headers=headers)


async def test_a_person_sends_files_whose_bytes_come_as_they_are(room):
    browser, fields = await message_form(room, body="Two lines\r\nof text")
    content = bytes(range(256)) + b"\r\n------mar\r\n\r\n" + bytes(100)
    files = [("données.bin", content), ("a %22b%22.txt", b"")]
    sent = [await send_files(browser, *fields, files=files) for _ in range(2)]
    assert {(one.status_code, one.headers["location"]) for one in sent} == {
        (303, sent[0].headers["location"])
    }, "sent twice, it is one message"
    page = (await browser.get(sent[0].headers["location"])).text
    links = [html.unescape(one) for one in re.findall(r'href="(/attachments/[^"]+)"', page)]
    assert [(await browser.get(one)).content for one in links] == [content, b""]
    assert ("données.bin" in page, "a &#34;b&#34;.txt" in page) == (True, True)
    [message] = [one for one in await room.messages() if one.sender_name == "Ana"]
    assert message.body_md == "Two lines\nof text"
    browser, fields = await message_form(room)
    assert (await send_files(browser, *fields, files=[])).status_code == 303


async def test_files_over_the_limits_of_the_tools_are_refused_and_what_was_typed_comes_back(stores, clock):
    rules = Rules(max_attachment_bytes=1_000, max_attachments_bytes=2_000, max_attachments=3)
    room = WorkRoom(*stores, clock, rules)
    await room.people("Bo")
    browser, fields = await message_form(room)
    for files, said in (
        ([("one.txt", bytes(1_001))], "the limit is 1000"),
        ([(f"{n}.txt", bytes(900)) for n in range(3)], "exceed 2000 bytes"),
        ([("large.txt", bytes(5_000_000))], "exceed 2000 bytes"),
        ([(f"{n}.txt", b"x") for n in range(4)], "4 attachments exceed the limit of 3"),
    ):
        answer = await send_files(browser, *fields, files=files)
        assert (answer.status_code, said in answer.text) == (413, True), answer.text[:3000]
        assert ">\nLook.</textarea>" in answer.text
        assert hidden(answer.text, "key") == dict(fields)["key"]
        assert "large" in files[0][0] or f"does not keep them: <bdi>{files[0][0]}" in answer.text
    assert await room.messages() == []
    page = (await browser.get(WRITE)).text
    assert "Up to 3 files of 1000 B, 2.0 KiB in total." in page
    await room.close()


async def test_a_form_with_files_that_cannot_be_read_changes_nothing(room):
    browser, fields = await message_form(room)
    kind = {"Content-Type": "multipart/form-data; boundary=x", "Origin": HTTP}
    token = (
        f'--x\r\nContent-Disposition: form-data; name="form_token"\r\n\r\n{dict(fields)["form_token"]}\r\n'
    )
    for body in (b"", b"--x--", b"x", token.encode(), token.encode() + b"--x\r\nnothing\r\n--x--\r\n"):
        assert (await browser.post(WRITE, content=body, headers=kind)).status_code in (400, 403), body
    assert (await browser.post(QUESTIONS, content=f"{token}--x--", headers=kind)).status_code == 400
    assert await room.messages() == []


async def test_what_was_typed_is_on_the_page_that_tells_that_the_disk_is_full(room, stores):
    text = "A long letter. " * 2_000
    browser, fields = await message_form(room, body=text)

    async def leave_room_for(pages: int) -> None:
        def limit(sql: sqlite3.Connection) -> None:
            [present] = sql.execute("PRAGMA page_count").fetchone()
            sql.execute(f"PRAGMA max_page_count = {present + pages}").fetchall()

        await stores[0].store.engine.write(lambda sql: limit(sql.connection))

    await leave_room_for(0)
    answer = await post(browser, WRITE, *fields)
    assert (answer.status_code, text in answer.text) == (507, True)
    await leave_room_for(10_000)
    assert (await post(browser, WRITE, *fields)).status_code == 303


async def test_a_person_joins_a_conversation_that_was_not_theirs_and_all_in_it_have_the_message(room):
    first = await room.send("Ada", "Bo", subject="The lights")
    await room.turn()
    reply = (await room.messages())[-1]
    browser, fields = await message_form(room, f"{WRITE}?reply={reply.id}", to="", subject="")
    answer = await post(browser, WRITE, *fields, ("reply", str(reply.id)), ("to_all", "1"))
    assert place(answer) == f"/p/{SLUG}/m/{reply.id + 1}?sent=1"
    [message] = [one for one in await room.messages() if one.sender_name == "Ana"]
    assert (message.thread_id, message.subject) == (f"msg-{first}", "Re: The lights")
    readers = await room.store.read(lambda tx: tx.recipients([message.id])[message.id])
    assert sorted(one.name for one in readers) == ["Ada", "Bo"]
    page = (await browser.get(f"/p/{SLUG}/t/msg-{first}")).text
    assert page.index("The lights") < page.index("Bo did it") < page.index("Look.")
    assert f"{WRITE}?reply={reply.id}" in page
    assert (await browser.get(f"{WRITE}?reply=99")).status_code == 404


async def test_a_conversation_of_a_person_is_whole_on_the_pages_of_both(room):
    browser, fields = await message_form(room, subject="The quay")
    await post(browser, WRITE, *fields)
    await room.turn()
    first, answer = await room.messages()
    assert (answer.body_md, answer.thread_id) == ("Bo did it", first.thread_id)
    for slug in (SLUG, PEOPLE_SLUG):
        page = (await browser.get(f"/p/{slug}/t/{first.thread_id}")).text
        assert page.index("Look.") < page.index("Bo did it"), slug
        assert "2 messages" in page, slug
        assert "Bo did it" in (await browser.get(f"/p/{slug}/t/{first.thread_id}?newest=1")).text
        assert (await browser.get(f"/p/{slug}/m/{first.id}")).status_code == 200
    assert "The quay" in (await browser.get(f"/p/{SLUG}/timeline")).text
    assert "The quay" in (await browser.get(RUNS)).text
    await room.mail.call("ensure_project", {"human_key": "/projects/other"})
    assert (await browser.get(f"/p/projects-other/m/{first.id}")).status_code == 404
    assert (await browser.get(f"/p/projects-other/t/{first.thread_id}")).status_code == 404
    browser, fields = await message_form(room, f"{WRITE}?reply={answer.id}", to="", subject="")
    await post(browser, WRITE, *fields, ("reply", str(answer.id)))
    [reply] = [one for one in await room.messages() if one.reply_to == answer.id]
    assert (reply.sender_name, reply.body_md) == ("Ana", "Look.")
    [reader] = (await room.store.read(lambda tx: tx.recipients([answer.id])))[answer.id]
    assert (reader.name, reader.acked_at) == ("Ana", room.clock.now())


@each_row("ack, button", [(False, "Mark as read"), (True, "Acknowledge")])
async def test_a_person_says_that_a_message_was_read_and_its_writer_sees_that(room, ack, button):
    browser, _ = await message_form(room)
    asked = {
        **{"project_key": PROJECT, "sender_name": "Ada", "to": ["human:Ana"], "subject": "x", "body_md": "y"},
    }
    await room.mail.call("send_message", {**asked, "ack_required": ack})
    message = (await room.messages())[-1]
    for address in (f"/p/{SLUG}/m/{message.id}", f"/p/{PEOPLE_SLUG}/m/{message.id}"):
        page = (await browser.get(address)).text
        assert f">{button}" in page
    fields = [(name, hidden(page, name)) for name in ("form_token", "name")]
    strange = await post(browser, f"{address}/mark", *fields, ("do", "burn"))
    wrong = await post(browser, f"{address}/mark", fields[0], ("name", "Ben"), ("do", "read"))
    assert (strange.status_code, wrong.status_code) == (400, 404)
    assert await reader_of(room, message) == (None, None)
    marked = await post(browser, f"{address}/mark", *fields, ("do", "ack" if ack else "read"))
    assert (marked.status_code, marked.headers["location"]) == (303, address)
    now = room.clock.now()
    assert await reader_of(room, message) == (now, now if ack else None)
    assert f">{button}" not in (await browser.get(address)).text
    assert (await post(browser, f"/p/{PEOPLE_SLUG}/m/99/mark", *fields, ("do", "read"))).status_code == 404
    assert (await browser.get(f"{address}/mark")).headers["location"] == address


async def reader_of(room, message):
    [one] = (await room.store.read(lambda tx: tx.recipients([message.id])))[message.id]
    return one.read_at, one.acked_at


async def test_who_writes_says_a_name_first_and_is_chosen_of_several(room):
    browser = room.browser()
    page = (await browser.get(f"{WRITE}?to=Bo")).text
    assert "Who are you?" in page
    fields = [("form_token", hidden(page, "form_token")), ("to", hidden(page, "to")), ("do", "name")]
    refused = await post(browser, WRITE, *fields, ("name", "no name"))
    assert (refused.status_code, "is not a valid name for a person" in refused.text) == (400, True)
    assert await room.people_named.everybody() == []
    named = await post(browser, WRITE, *fields, ("name", "Ana"))
    assert named.headers["location"] == f"{WRITE}?to=Bo"
    assert [one["address"] for one in await room.people_named.everybody()] == ["human:Ana"]
    page = (await browser.get(named.headers["location"])).text
    assert "<option selected>Ana</option>" in page
    assert 'value="Bo" checked' in page
    await room.people_named.add("Ana", "telegram/77")
    assert (await post(browser, WRITE, *fields, ("name", "ana"))).status_code == 303
    [person] = await room.people_named.everybody()  # to give a name again takes nobody's chat
    assert (person["name"], person["chat"]) == ("Ana", "telegram/77")
    assert "messages go to a chat" in (await browser.get(f"/p/{PEOPLE_SLUG}/agents")).text
    await room.people_named.add("Ana", None)
    for name in ("Ben", "Cy"):
        await room.people_named.add(name, None)
    page = (await room.browser().get(WRITE)).text
    assert "Choose who you are" in page
    assert "<option selected>" not in page.partition("</select>")[0]
    await room.people_named.remove("Cy")
    browser, fields = await message_form(room, name="Cy")
    refused = await post(browser, WRITE, *fields)
    assert (refused.status_code, "is retired" in refused.text) == (409, True)
    browser, fields = await message_form(room, name="Ben", to="human:Ana")
    sent = await post(browser, WRITE, *fields)
    assert place(sent) == f"/p/{PEOPLE_SLUG}/m/1?sent=1"
    assert "<b><bdi>Ana</bdi></b>: inbox only" in (await browser.get(sent.headers["location"])).text


async def test_where_agents_prove_themselves_a_person_who_has_logged_in_writes_all_the_same(stores, clock):
    room = WorkRoom(*stores, clock, rules=Rules(verified=True))
    operator = Caller(operator=True)
    await room.mail.call("ensure_project", {"human_key": PROJECT}, caller=operator)
    registered = {"project_key": PROJECT, "program": "p", "model": "m", "name": "Bo"}
    await room.mail.call("register_agent", registered, caller=operator)
    browser, fields = await message_form(room)
    assert (await post(browser, WRITE, *fields)).status_code == 303
    assert [one.body_md for one in await room.messages() if one.reply_to is None] == ["Look."]
    await room.close()


# Runs.


async def test_runs_say_how_they_stand_what_began_them_and_why_they_wait(room):
    began, goes_on = room.agents.hold()
    await room.send("Ada", "Ash", subject="May be")
    await room.send("Ada", "Fay", subject="Will fail")
    await room.turn()
    await room.send("Ada", "Bo", subject="At hand")
    await room.send("Ada", "Bo", subject="Behind it")
    await began.wait()
    works = await room.operator.works(SLUG)
    assert [(one.agent, one.state) for one in works] == [
        ("Bo", "at work"),
        ("Ash", "asks"),
        ("Fay", "failed"),
    ]
    [waiting] = await room.look(room.operator.waiting, SLUG)
    assert (waiting.agent, waiting.behind_run_id) == ("Bo", works[0].run_id)
    assert await room.look(room.operator.at_work, SLUG) == {"bo": room.clock.now()}
    browser = room.browser()
    page = (await browser.get(RUNS)).text
    for words in (
        *(
            "At hand",
            "Behind it",
            "the agent is active, and reads this message after the active run",
            "the key is not known",
        ),
    ):
        assert words in page
    agents = (await browser.get(f"/p/{SLUG}/agents")).text
    assert [agents.count(f">{word} <span") for word in ("active", "reachable", "unknown")] == [1, 2, 1]
    assert "active" in (await browser.get(f"/p/{SLUG}/agents/Bo")).text
    assert "No output yet." in (await browser.get(f"{RUNS}/{works[0].run_id}")).text
    goes_on.set()
    await room.turn()


async def test_a_queued_run_says_what_holds_it_back_and_can_be_cancelled(room):
    room.wakes = False  # what the message begins is queued below
    await room.send("Ada", "Bo", subject="Later")

    other = Mailbox(Noop(), room.stores, timer=room.clock)
    request = RunActivation.new(f"agent:{SLUG}/Bo", [Message.user("x", id="mail-1")])
    await other.submit_background(request.delivered(delay_ms=60_000))
    [work] = await room.operator.works(SLUG)
    assert (work.state, work.why, work.until) == ("queued", "the run is due later", room.clock.now() + 60_000)
    browser = room.browser()
    page = (await browser.get(RUNS)).text
    assert "Waiting:" in page
    fields = [(name, hidden(page, name)) for name in ("form_token", "run")]
    answer = await post(browser, RUNS, *fields, ("do", "cancel"))
    assert answer.status_code == 303
    [work] = await room.operator.works(SLUG)
    assert work.state == "cancelled"
    refused = await post(browser, RUNS, *fields, ("do", "cancel"))
    assert refused.status_code == 409
    await other.aclose()


async def test_a_run_that_asks_is_cancelled_and_what_waited_for_its_answer_goes_on(room):
    await room.send("Ada", "Ash", subject="First")
    await room.turn()
    later = await room.send("Fay", "Ash", subject="Second")
    await room.turn()
    why = f"Ash has an open question: {room.agents.question}"
    [waiting] = await room.look(room.operator.waiting, SLUG)
    [work] = await room.operator.works(SLUG)
    assert (waiting.message, waiting.why, waiting.behind_run_id) == (later, why, work.run_id)
    assert (work.state, work.why, work.can_cancel) == ("asks", why, True)
    browser = room.browser()
    assert f"Waiting: <bdi>{why}</bdi>" in (await browser.get(f"/p/{SLUG}/m/{later}")).text
    page = (await browser.get(f"{RUNS}/{work.run_id}")).text
    assert (room.agents.question in page, ">Approve<" in page) == (True, True)
    room.agents.asking.clear()
    fields = [(name, hidden(page, name)) for name in ("form_token", "run")]
    assert (await post(browser, RUNS, *fields, ("do", "cancel"))).status_code == 303
    await room.turn()
    assert (await room.operator.named(work.run_id)).state == "cancelled"
    assert await room.questions.questions() == []
    assert list(await room.look(room.operator.waiting, SLUG)) == []
    assert (await post(browser, RUNS, *fields, ("do", "cancel"))).status_code == 409
    told = [one.body_md for one in await room.messages()]
    assert "Ash could not process your message: cancelled by an operator" in told
    assert "Ash did it" in told
    log = await room.mail.call("fetch_events", {"project_key": PROJECT, "after": 0, "kinds": OF_QUESTIONS})
    [asked, withdrawn] = log["events"]
    assert (asked["kind"], withdrawn["kind"]) == ("question.asked", "question.withdrawn")
    assert asked["detail"] == withdrawn["detail"]


async def test_a_run_at_work_is_cancelled_and_whoever_wrote_is_told(room):
    began = asyncio.Event()

    async def held(activation):
        began.set()
        await asyncio.Event().wait()

    room.agents.act = held
    await room.send("Ada", "Bo")
    await began.wait()
    browser = room.browser()
    page = (await browser.get(RUNS)).text
    fields = [(name, hidden(page, name)) for name in ("form_token", "run")]
    assert (await post(browser, RUNS, *fields, ("do", "cancel"))).status_code == 303
    await room.turn()
    page = (await browser.get(f"{RUNS}/{dict(fields)['run']}")).text
    assert "cancelled" in page
    assert [one.body_md for one in await room.messages()][1:] == [
        "Bo could not process your message: cancelled by an operator"
    ]


async def test_output_is_seen_while_a_run_is_at_work_and_afterwards(room):
    began, goes_on = room.agents.hold()
    room.agents.output = ["\x1b[32mstep 1\x1b[0m\n", "<script>alert(1)</script>\n"]
    await room.send("Ada", "Bo")
    await began.wait()
    [work] = await room.operator.works(SLUG)
    browser = room.browser()
    await until_kept(room, work.run_id, "alert(1)")
    page = (await browser.get(f"{RUNS}/{work.run_id}")).text
    assert "step 1\n&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in page
    assert "<script>" not in page
    more = f"{RUNS}/{work.run_id}?output=more"
    first = await browser.get(f"{more}&after=0")
    assert first.text == "step 1\n<script>alert(1)</script>\n"
    assert first.headers["content-type"] == "text/plain; charset=utf-8"
    assert "postroom-over" not in first.headers
    after = first.headers["postroom-cursor"]
    assert f'data-after="{after}"' in page
    assert (await browser.get(f"{more}&after={after}")).text == ""
    assert (await browser.get(f"{RUNS}/{work.run_id}?output=raw")).text == first.text
    assert (await room.operator.named(work.run_id[:-1])).run_id == work.run_id
    whole = await browser.get(f"{RUNS}/{work.run_id}?output=whole")
    assert whole.text == "step 1\n<script>alert(1)</script>\n"
    assert whole.headers["content-disposition"].startswith("attachment;")
    goes_on.set()
    await room.turn()
    assert (await browser.get(f"{more}&after={after}")).headers["postroom-over"] == "1"
    page = (await browser.get(f"{RUNS}/{work.run_id}")).text
    assert "step 1" in page
    assert "Bo did it" in page
    assert "Tool calls are not reported" in page


@each_row(
    "output, answer, shown, not_shown",
    [
        (
            [],
            "## Done\n\n- **two** bees\n- <img src=x>",
            ("<strong>two</strong> bees", "&lt;img src=x&gt;"),
            ("## Done",),
        ),
        (
            ["Bo did it\n"],
            "Bo did it",
            ("Answered <a href=", "Answer</h2>", "No other output."),
            ("<h3>Text</h3>", "No output."),
        ),
        (["step 1\n", "Bo did it\n"], "Bo did it", ("step 1\nBo did it\n</pre>",), ("No other output",)),
    ],
)
async def test_the_page_of_a_run_shows_its_answer_rendered_and_its_output_unless_that_is_the_same(
    room, output, answer, shown, not_shown
):
    ran = []

    async def answering(activation):
        ran.append(activation.run_id)
        return done(activation, answer)

    room.agents.act, room.agents.output = answering, output
    await room.send("Ada", "Bo")
    await room.turn()
    address = f"{RUNS}/{ran[-1]}"
    page = (await room.browser().get(address)).text
    assert [text for text in shown if text not in page] == []
    assert [text for text in not_shown if text in page] == []
    assert page.count("Bo did it") == len(output)
    assert (await room.browser().get(f"{address}?output=raw")).text == "".join(output)
    room.clock.advance(timedelta(seconds=1))


async def until_kept(room, run_id, words):
    while words not in (await room.operator.output(run_id)).text:
        room.clock.advance(timedelta(milliseconds=100))
        await asyncio.sleep(0)


async def test_a_run_that_was_given_up_is_tried_again_once_and_answered_once(room):
    browser, fields = await dead(room)
    assert [one["attempts"] for one in await room.operator.dead()] == [1], "it has executed once"
    room.agents.failing = set()
    answers = await asyncio.gather(*(post(browser, RUNS, *fields, ("do", "replay")) for _ in range(2)))
    assert 303 in {one.status_code for one in answers}
    assert {one.status_code for one in answers} <= {303, 409}
    await room.turn()
    bodies = [one.body_md for one in await room.messages()]
    assert [one for one in bodies if one == "Fay did it"] == ["Fay did it"]
    assert len(bodies) == 3
    assert await room.operator.dead() == []
    asked = {"project_key": PROJECT, "agent_name": "Fay", "after": 0}
    assert all(one["read_at"] for one in await room.mail.call("fetch_inbox", asked))
    refused = await post(browser, RUNS, *fields, ("do", "replay"))
    assert refused.status_code == 409
    page = (await browser.get(RUNS)).text
    assert ">retry</span>" in page


async def test_a_run_that_was_given_up_is_discarded_once_and_its_page_keeps_the_error(room):
    browser, fields = await dead(room)
    assert "Dismiss" in (await browser.get(RUNS)).text
    assert "Dismiss" in (await browser.get(f"/p/{SLUG}")).text
    answer = await post(browser, RUNS, *fields, ("do", "discard"))
    assert answer.status_code == 303
    page = (await browser.get(answer.headers["location"])).text
    for words in ("The dead letter was dismissed", "the key is not known"):
        assert words in page
    assert ('value="discard"' in page, 'value="replay"' in page) == (False, False)
    assert "</a> failed" not in (await browser.get(f"/p/{SLUG}")).text
    assert (await room.look(room.operator.counts, SLUG)).failures == 0
    assert await room.operator.dead() == []
    assert (await post(browser, RUNS, *fields, ("do", "discard"))).status_code == 409
    assert (await post(browser, RUNS, *fields, ("do", "replay"))).status_code == 409


async def test_what_was_given_up_is_shown_however_much_has_ended_since(room, monkeypatch):
    monkeypatch.setattr(work_service, "FOUND", 1)
    browser, fields = await dead(room)
    for _ in range(3):
        room.clock.advance(timedelta(seconds=1))
        await room.send("Ada", "Bo")
        await room.turn()
    room.agents.failing = set()
    await room.send("Ada", "Fay", subject="Count the wasps")
    await room.turn()
    page = (await browser.get(RUNS)).text
    assert "Dead letters" in page
    assert "Count the bees" in page
    assert hidden(page, "run") == dict(fields)["run"]


async def store_runs(room: WorkRoom, *names: str, each: int) -> None:
    """Store runs of some agents, in turn and one a second: the last run is the newest."""
    made = [
        RunRecord(
            run_id=f"{name.lower()}-{number:04}",
            thread_id=agent_thread(SLUG, name),
            status=RunStatus.DONE,
            termination=TerminationReason.natural_end(),
            final_output=f"{name} counted {number} bees",
            created_at=at,
            started_at=at,
            finished_at=at,
            updated_at=at,
        )
        for number in range(each)
        for place, name in enumerate(names)
        for at in [room.clock.now() - 1_000 * (each * len(names) - number * len(names) - place)]
    ]

    def fill(tx: Transaction) -> None:
        for run in made:
            tx.runs.threads.create_run(run)

    await room.stores.store.write(fill)


def listed_runs(page: str) -> list[str]:
    return re.findall(r'<li class="row" data-item data-key="([a-z]+-[0-9]+)"', page)


def older(page: str) -> str:
    found = re.search(r'href="([^"]+)" rel="next">(?:Older runs|Look further back)', page)
    assert found
    return html.unescape(found[1])


async def test_every_run_is_listed_once_page_by_page_behind_the_newest_fifty(room):
    await store_runs(room, "Bo", "Ada", each=80)
    browser = room.browser()
    page = (await browser.get(RUNS)).text
    found = listed_runs(page)
    assert found[:3] == ["ada-0079", "bo-0079", "ada-0078"]
    assert len(found) == 50
    while len(found) < 160:
        page = (await browser.get(older(page))).text
        assert listed_runs(page)
        found += listed_runs(page)
    assert found == [f"{name}-{number:04}" for number in range(79, -1, -1) for name in ("ada", "bo")]
    assert "Older runs" not in page
    assert "Back to the start" in page


async def test_runs_are_found_by_state_by_agent_and_by_words_of_their_subject_answer_error_or_id(room):
    await store_runs(room, "Bo", each=60)
    browser, fields = await dead(room)
    failed = dict(fields)["run"]
    await room.send("Ada", "Ash", subject="Move the hives")
    await room.turn()

    async def found(**asked: str) -> list[str]:
        page = (await browser.get(f"{RUNS}?{urlencode(asked)}")).text
        return re.findall(r'<li class="row" data-item data-key="([^"]+)"', page)

    assert await found(state="failed") == [failed]
    assert await found(agent="fay") == [failed]
    assert await found(q="count BEES", agent="Fay") == [failed], "by the subject of the message"
    assert await found(q="key not known") == [failed], "by the error"
    assert await found(q="counted 7 bees", state="done", agent="Bo") == [
        f"bo-00{n:02}" for n in (57, 47, 37, 27, 17, 7)
    ]
    assert await found(q="bo-0007") == ["bo-0007"]
    [asking] = await found(state="asks")
    for word, state in SHOWN_STATES.items():
        assert await found(state=word) == await found(state=state), word
    assert len(await found(state="succeeded")) == 50
    assert await found(q="hives") == [asking]
    assert await found(state="queued") == []
    assert await found(agent="Nobody") == []
    assert len(await found(state="ended")) == 50


async def test_runs_are_filtered_by_time_and_those_of_a_filter_are_replayed_together(room):
    for number in range(3):
        await room.send("Ada", "Fay", subject=f"Work {number}")
        await room.turn()
        room.clock.advance(timedelta(hours=2))
    await room.send("Ada", "Fay")
    await room.turn()
    browser = room.browser()
    for since, many in (("", 4), ("hour", 1), ("day", 4), ("week", 4)):
        page = (await browser.get(f"{RUNS}?state=failed&since={since}")).text
        assert page.count('<li class="row"') == many
    assert "Retry all 4" in page
    assert "Retry all" not in (await browser.get(f"{RUNS}?state=failed&since=hour")).text
    assert (await browser.get(f"{RUNS}?since=year")).status_code == 400
    dead = [one["run_id"] for one in await room.operator.dead()]
    await room.operator.discard(dead[0])
    room.agents.failing.clear()
    fields = [
        ("form_token", hidden(page, "form_token")),
        ("do", "replay"),
        ("back", "state=failed&since=week&x=1"),
    ]
    done = await post(browser, RUNS, *fields, *(("run", one) for one in dead))
    assert place(done) == f"{RUNS}?state=failed&since=week&done=replay&many=4&skipped=1"
    page = (await browser.get(done.headers["location"])).text
    assert "Retrying: 3 runs. 1 run had changed in the meantime" in page
    assert await room.operator.dead() == []
    assert (await post(browser, RUNS, *fields, *[("run", dead[0])] * 101)).status_code == 400


async def test_what_a_page_of_runs_cannot_show_is_refused_and_leads_to_the_list(room):
    browser = room.browser()
    for asked, value, status in (
        ("?state=sleeping", "must be one of active, queued, waiting, ended, succeeded", 400),
        ("?before=yesterday", "yesterday", 400),
        ("?before=1.2", "1.2", 400),
        ("?live=no", "", 400),
        ("/none", "", 404),
    ):
        page = await browser.get(f"{RUNS}{asked}")
        assert (page.status_code, value in page.text) == (status, True), asked
        assert f'<a class="button" href="{RUNS}">Runs</a>' in page.text, asked
        assert f'href="/p/{SLUG}">Control room</a>' in page.text, asked


async def test_a_page_of_runs_reads_as_much_of_five_thousand_runs_as_of_two_hundred(room, monkeypatch):
    browser = room.browser()

    async def decoded(address: str) -> int:
        count, decode = 0, rows.run

        def counted(row):
            nonlocal count
            count += 1
            return decode(row)

        with monkeypatch.context() as watched:
            watched.setattr(rows, "run", counted)
            assert (await browser.get(address)).status_code == 200
        return count

    await store_runs(room, "Bo", "Ada", each=100)
    addresses = [RUNS, f"{RUNS}?agent=Bo", f"{RUNS}?q=bees", older((await browser.get(RUNS)).text)]
    few = [await decoded(one) for one in addresses]
    await store_runs(room, "Ash", "Fay", each=2_400)
    assert [await decoded(one) for one in addresses] == few
    before = await decoded(f"{RUNS}?q=nothing-has-this")
    assert before <= work_service.AMONG + 50
    page = (await browser.get(f"{RUNS}?q=nothing-has-this")).text
    assert "No run among the newest 2,000" in page
    page = (await browser.get(f"{RUNS}?q=ada-0001")).text
    while not listed_runs(page):
        page = (await browser.get(older(page))).text
    assert listed_runs(page) == ["ada-0001"]


async def test_the_same_by_command(room):
    _, fields = await dead(room)
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    listed = (await operator.get("/admin/runs", params={"project": PROJECT})).json()
    [one] = listed["runs"]
    assert (one["state"], one["agent"], one["can_replay"]) == ("failed", "Fay", True)
    assert one["created_at"].endswith("Z")
    shown = (await operator.get("/admin/runs/one", params={"run": one["dispatch_id"]})).json()
    assert (shown["run_id"], shown["output"]) == (dict(fields)["run"], "")
    room.agents.failing = set()
    again = await operator.post("/admin/runs/replay", json={"run": one["dispatch_id"]})
    assert (again.status_code, again.json()["parent_run_id"]) == (200, one["run_id"])
    await room.turn()
    refused = await operator.post("/admin/runs/cancel", json={"run": again.json()["run_id"]})
    assert (refused.status_code, refused.json()["code"]) == (409, "illegal_transition")
    refused = await operator.post("/admin/runs/discard", json={"run": again.json()["run_id"]})
    assert (refused.status_code, refused.json()["code"]) == (409, "illegal_transition")
    for path in ("/admin/runs?project=nowhere", "/admin/runs/one?run=none"):
        assert (await operator.get(path)).status_code == 404
    assert (await operator.get("/admin/runs/one")).status_code == 400


# Who may.


async def forms(room):
    """Return the six forms as a logged-in person has them, each with its address."""
    _, question = await asked(room)
    _, run = await dead(room)
    _, message = await message_form(room)
    to_ana = await room.send("Ada", "human:Ana")
    return {
        "answer": (QUESTIONS, [*question, ("answer", "yes")]),
        "replay": (RUNS, [*run, ("do", "replay")]),
        "cancel": (RUNS, [*run, ("do", "cancel")]),
        "write": (WRITE, message),
        "name": (WRITE, [("form_token", ""), ("name", "Ben"), ("do", "name")]),
        "mark": (f"/p/{SLUG}/m/{to_ana}/mark", [("form_token", ""), ("name", "Ana"), ("do", "read")]),
    }


async def standing(room):
    """Return all that a form could change."""
    works = await room.operator.works(SLUG)
    questions = await room.look(room.questions.open_questions, SLUG)
    agents = await room.mail.call("list_agents", {"project_key": PROJECT})
    people = await room.people_named.everybody()  # with how many messages each has not read
    return (works, questions, await room.messages(), [one["name"] for one in agents["agents"]], people)


async def test_a_form_counts_only_from_the_session_and_the_page_that_it_was_made_for(room):
    before = None
    for name, (address, fields) in (await forms(room)).items():
        before = before or await standing(room)
        plain = [(key, text) for key, text in fields if key != "form_token"]
        mine, other = room.browser(), room.browser()
        own = [("form_token", hidden((await mine.get(WRITE)).text, "form_token")), *plain]
        tokens = ("", "x", "é", "0" * 64)
        for wrong in (plain, *([("form_token", token), *plain] for token in tokens)):
            assert (await post(mine, address, *wrong)).status_code == 403, name
        assert (await post(other, address, *own)).status_code == 403, name
        for origin in ("http://evil.example", "null", "http://127.0.0.1:9999"):
            assert (await post(mine, address, *own, Origin=origin)).status_code == 403, name
        assert (await post(mine, address, *own, Host="evil.example")).status_code == 421, name
        stranger = room.browser(logged_in=False)
        answer = await post(stranger, address, *own)
        assert (answer.status_code, answer.headers["location"]) == (307, "/login"), name
        operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
        assert (await post(operator, address, *own)).status_code == 403, name
        typed = {"Content-Type": "application/json"}
        assert (await post(mine, address, *own, **typed)).status_code == 400, name
        assert await standing(room) == before, name


async def test_what_is_too_large_or_no_form_is_refused_and_changes_nothing(room):
    browser, fields = await asked(room)
    huge = urlencode([*fields, ("why", "w" * SMALL_FORM), ("answer", "yes")])
    typed = {"Content-Type": "application/x-www-form-urlencoded", "Origin": HTTP}
    assert (await browser.post(QUESTIONS, content=huge, headers=typed)).status_code == 413
    long = await post(browser, QUESTIONS, *fields, ("why", "w" * 2_001), ("answer", "yes"))
    assert long.status_code == 413
    many = [("x", "")] * (MAX_FIELDS + 1)
    assert (await post(browser, QUESTIONS, *many)).status_code == 400
    for broken in (b"form_token=%ff", b"\xff", b"=&&="):
        answer = await browser.post(QUESTIONS, content=broken, headers=typed)
        assert answer.status_code in (400, 403)
    assert (await post(browser, QUESTIONS, *fields, ("by", "Ana"), ("answer", ""))).status_code == 400
    assert (await post(browser, RUNS, *fields, ("do", "delete"))).status_code == 400
    enormous = b"body=" + b"x" * (4 << 20)
    assert (await browser.post(WRITE, content=enormous, headers=typed)).status_code == 413
    assert len(await room.look(room.questions.open_questions, SLUG)) == 1


async def test_hostile_words_stay_words_on_every_new_page(room):
    words = [one.replace("\0", "") for one in HOSTILE]
    room.agents.question = "\n".join(words)[:1_900]
    room.agents.output = list(HOSTILE)
    await room.send("Ada", "Ash", subject="<img src=x onerror=alert(1)>", body="\n\n".join(words))
    await room.send("Ada", "Fay", subject="<script>alert(1)</script>", body="\n\n".join(words))
    await room.turn()
    browser = room.browser()
    works = await room.operator.works(SLUG)
    name = "<svg onload=alert(1)>"
    [question] = await room.look(room.questions.open_questions, SLUG)
    token = hidden((await browser.get(QUESTIONS)).text, "form_token")
    fields = [("form_token", token), ("run", question.run_id), ("number", question.number), ("by", name)]
    await post(browser, QUESTIONS, *fields, ("why", "<b onclick=alert(1)>"), ("answer", "yes"))
    stale = await post(browser, QUESTIONS, *fields, ("why", "'\"><script>"), ("answer", "no"))
    assert stale.status_code == 409
    pages = [stale.text]
    for address in (*NEW_PAGES, *(f"{RUNS}/{one.run_id}" for one in works), f"/p/{SLUG}"):
        answer = await browser.get(address)
        assert answer.status_code == 200
        pages.append(answer.text)
    wild = f"{WRITE}?{urlencode({'to': name})}"
    pages.append((await browser.get(wild)).text)
    browser, typed = await message_form(room, subject="\"'><script>", body="</textarea><script>", to=name)
    refused = await post(browser, WRITE, *typed)
    pages.append(refused.text)
    for page in pages:
        for act in (
            "<script>",
            *("<svg onload", "<svg/", "<svg>"),
            *("<img src=x", "<b onclick", "</textarea><s", "\x1b"),
        ):
            assert act not in page.lower(), act
        acting = r"""<[a-z][^<>]*\s(?:href|src|srcdoc|action|data|on\w+)\s*=\s*["']?\s*javascript:"""
        assert not re.search(acting, page, re.IGNORECASE)
    assert refused.text.count("</textarea>") == 1


async def test_the_pages_say_how_often_a_server_interrupted_a_run_beside_its_failed_attempts(room):
    browser, _ = await dead(room)
    [row] = await room.runs.mailbox.dead_letters()
    for count, words in ((1, "interrupted once"), (3, "interrupted 3 times")):
        moved = replace(row, interruption_count=count)
        await room.stores.store.write(lambda tx, moved=moved: tx.runs.dispatches.put(moved))
        assert words in (await browser.get(RUNS)).text
        assert "1 failed attempt" in (await browser.get(RUNS)).text
        page = (await browser.get(f"{RUNS}/{row.run_id}")).text
        assert words in re.sub(r"</?b>", "", page)


async def test_a_run_that_is_retried_is_told_as_one_run_with_its_last_error(room, clock):
    room.agents.failing, room.agents.overloaded = set(), {"Fay"}
    await room.send("Ada", "Fay")
    for _ in range(3):
        await room.turn()
        clock.advance(timedelta(hours=1))
        await room.runs.mailbox.poll()
    await room.turn()
    browser = room.browser()
    home = (await browser.get("/")).text
    assert "shop</bdi></a>: 1 failed," in home
    assert f"1 run failed and is retried. Last error, of <bdi>Fay@{SLUG}</bdi>: <bdi>overloaded: " in home
    inbox = (await browser.get(f"/p/{SLUG}/agents/Fay")).text
    assert "to a run that has not ended" in inbox
    for page in (inbox, (await browser.get(RUNS)).text):
        assert "failed attempts<" in page
        assert "Last error: <bdi>overloaded: come back later</bdi>" in page


async def test_numbers_of_messages_and_names_in_a_text_lead_to_them_where_the_project_has_them(room):
    await room.people_named.add("Ana", None)
    await room.mail.call("ensure_project", {"human_key": "/projects/bank"})
    for name in ("Bo", "Cid", "Ida"):
        known = {"project_key": "/projects/bank", "program": "p", "model": "m", "name": name}
        await room.mail.call("register_agent", known)
    elsewhere = {"project_key": "/projects/bank", "sender_name": "Cid", "to": ["Ida"], "subject": "Secret"}
    hidden_one = (await room.mail.call("send_message", {**elsewhere, "body_md": "x"}))["deliveries"][0]
    first = await room.send("Ada", "Bo")
    body = (
        f"As #{first} says to @Bo and @ana, not @Cid: #{hidden_one['payload']['id']} #9999 `@Bo` bo@Bo.de "
        f"<a href='/p/bank'>@Ada</a>"
    )
    second = await room.send("Ada", "Fay", body=body)
    [thread] = [one.thread_id for one in await room.messages() if one.id == second]
    browser = room.browser()
    for address in (f"/p/{SLUG}/m/{second}", f"/p/{SLUG}/t/{thread}"):
        page = (await browser.get(address)).text
        prose = page[page.index("<p>As <a") :]
        prose = prose[: prose.index("</p>")]
        assert re.findall(r'<a href="([^"]+)"[^>]*>([^<]+)</a>', prose) == [
            (f"/p/{SLUG}/m/{first}", f"#{first}"),
            (f"/p/{SLUG}/agents/Bo", "@Bo"),
            (f"/p/{PEOPLE_SLUG}/agents/Ana", "@ana"),
            (f"/p/{SLUG}/agents/Ada", "@Ada"),
        ]


class CountedReads:
    """A store that counts the requested views."""

    def __init__(self, store):
        self._store = store
        self.reads = 0

    async def settle(self):
        await self._store.settle()

    async def read(self, look):
        self.reads += 1
        return await self._store.read(look)


async def test_each_page_reads_the_store_once(room):
    await room.people_named.add("Ana", None)
    for reader in ("Bo", "Ash", "Ash"):
        await room.send("Ada", reader, body="#1 @Bo")
        await room.turn()
    works = await room.operator.works(SLUG)
    assert {one.state for one in works} == {"asks", "done"}
    counted = CountedReads(room.stores.store)
    app = Starlette(routes=page_routes(counted, clock=room.clock, services=room.services))
    pages = ["", "/agents", "/agents/Bo", "/agents/Ada?box=sent", "/threads", "/threads?show=unread", "/m/1"]
    pages += [
        *("/m/1", "/reservations", "/search?q=work", "/timeline", "/timeline?sel=message:1", "/runs"),
    ]
    pages += [
        "/runs?state=done",
        "/runs?q=none",
        *(f"/runs/{one.run_id}" for one in works),
        "/questions",
        "/schedules",
    ]
    pages += ["/write", "/write?reply=1", "?part=tabs,needs"]
    addresses = ["/", "/chats", *(f"/p/{SLUG}{rest}" for rest in pages)]
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url=HTTP, cookies={"postroom_name": "Ana"}
    ) as browser:
        for address in addresses:
            counted.reads = 0
            answer = await browser.get(address)
            assert (answer.status_code, counted.reads) == (200, 1), address
            if address.startswith("/p/"):
                assert f'href="/p/{SLUG}/schedules"' in answer.text, address


async def test_the_counts_on_the_tabs_are_those_of_the_control_room(room):
    await dead(room)
    await room.send("Ada", "Ash")
    await room.turn()
    async with room.browser() as browser:
        control, runs = [(await browser.get(address)).text for address in (f"/p/{SLUG}", RUNS)]
    assert re.search(r'<h2 id="needs">Needs you <span class="count owed">2</span>', control)
    for name in ("control", "runs", "reservations"):
        tab = re.compile(rf'data-key="tab-{name}"[^>]*>(.*?)</a>')
        assert tab.findall(control) == tab.findall(runs) != [], name
