"""The record of a question says where it was shown, when it was asked, who answered it and where, and the answer."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from postroom.contracts.errors import StaleDecision, StoreUnavailable
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import TerminationReason
from postroom.mail.context import Caller
from postroom.mcp_server.windows import Windows
from postroom.services.questions import QuestionTimeouts
from postroom.testing import ManualClock
from waking.test_kinds_of_questions import QUESTIONS, asked, by_mail, over_http
from waking_room import PROJECT
from work_room import SLUG, TOKEN, WorkRoom


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock)
    await made.people("Ada", "Ash", runners=("Ash",))
    for name in ("ana", "ben"):
        await made.people_named.add(name, None)
    yield made
    await made.close()


async def record(room: WorkRoom, number: str) -> Any:
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    return (await operator.get("/admin/questions/one", params={"number": number})).json()


def places(shown: Any) -> list[str]:
    return [one["where"] for one in shown["shown"]]


@pytest.mark.parametrize("address", ["/", f"/p/{SLUG}", QUESTIONS, "run"])
async def test_each_page_that_shows_a_question_is_in_its_record_and_a_refresh_writes_nothing(
    room, clock, address, monkeypatch
):
    run, question = await asked(room)
    address = f"/p/{SLUG}/runs/{run.run_id}" if address == "run" else address
    before = await record(room, question.number)
    assert (before["state"], places(before)) == ("open", ["by mail to Ada"])
    await room.browser().get(address)
    first = await record(room, question.number)
    assert places(first) == ["by mail to Ada", "on the pages"]
    clock.advance(timedelta(minutes=5))
    written, write = list[Any](), room.store.write

    async def counted(*given: Any, **named: Any) -> Any:
        written.append(given)
        return await write(*given, **named)

    monkeypatch.setattr(room.stores.store, "write", counted)
    for place in ("/", QUESTIONS, address):
        await room.browser().get(place)
    assert written == []
    assert await record(room, question.number) == first


async def test_a_restarted_server_does_not_record_a_place_a_second_time(room, stores, clock):
    _, question = await asked(room)
    await room.browser().get(QUESTIONS)
    before = await record(room, question.number)
    clock.advance(timedelta(minutes=5))
    again = WorkRoom(*stores, clock)
    await again.browser().get(QUESTIONS)
    assert await record(again, question.number) == before
    await again.close()


async def test_a_page_is_shown_even_if_its_place_cannot_be_recorded(room, monkeypatch):
    _, question = await asked(room)

    async def full(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(room.stores.store, "write", full)
        page = await room.browser().get(QUESTIONS)
    assert page.status_code == 200
    assert f'id="q-{question.number}"' in page.text
    await room.browser().get(QUESTIONS)
    assert "on the pages" in places(await record(room, question.number))


async def test_the_record_says_who_answered_where_with_what(room, clock):
    run, question = await asked(room, choices=["EUR", "USD"], to=["human:ana"])
    clock.advance(timedelta(minutes=1))
    assert await by_mail(room, run, question, "usd", "ana") == ""
    await room.turn()
    found = await record(room, question.number[:5])
    assert (found["state"], found["answered_by"], found["where"]) == ("answered", "ana", "by mail")
    assert (found["answer"], found["approved"], found["to"]) == ("USD", None, ["human:ana"])
    assert found["asked_at"] < found["answered_at"]
    page = (await room.browser().get(f"/p/{SLUG}/runs/{run.run_id}")).text
    assert "<b><bdi>ana</bdi></b> answered by mail: <bdi>USD</bdi>" in page
    assert "Shown <bdi>by mail to Ada</bdi>." in page


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("timeout", "no answer came in time, so the run was cancelled"),
        ("cancelled", "the run was cancelled by an operator"),
        ("failed", "the run failed"),
    ],
)
async def test_a_question_that_nobody_answered_keeps_a_record_of_its_end(room, clock, end, reason):
    run, question = await asked(room, timeout_seconds=60, on_timeout="cancel")
    clock.advance(timedelta(seconds=30 if end != "timeout" else 60))
    if end == "timeout":
        assert await QuestionTimeouts(room.runs, clock, clock).round() == 1
    elif end == "cancelled":
        await room.operator.cancel(run.run_id)
    else:
        failed = run.ended(TerminationReason.error("no such model"), now=clock.now())
        await room.stores.coordinator.commit(ThreadCommit(thread_id=run.thread_id, run=failed, replaces=run))
    found = await record(room, question.number[:5])
    assert (found["state"], found["answer"], found["approved"]) == ("closed", reason, None)
    assert (found["answered_by"], found["where"]) == ("nobody", "")
    assert found["asked_at"] < found["answered_at"]
    assert "by mail to Ada" in places(found)
    for address in (f"/p/{SLUG}/runs/{run.run_id}", QUESTIONS):
        page = (await room.browser().get(address)).text
        assert reason in page
    assert '<span class="badge low">closed</span>' in page
    with pytest.raises(StaleDecision, match=f"question {question.number} was closed: .{reason}"):
        await room.questions.answer(question.number, "yes", by="ana")
    assert await room.questions.questions() == []
    if end != "failed":  # stored without the effects of a worker
        caught = await room.mail.call("catch_up", {"project_key": PROJECT}, caller=Caller(operator=True))
        told = [one["text"] for one in caught["sentences"] if one["about"] == "decided"]
        assert told == [f'Question {question.number} of Ash, "May I?", was closed: "{reason}".']


async def test_each_of_two_questions_of_a_run_has_its_own_record(room):
    room.agents.more_questions = ["And this?"]
    await room.send("Ada", "Ash")
    await room.turn()
    first, second = await room.questions.questions()
    _, goes_on = room.agents.hold("Ash")  # the end of the run would close the other question
    assert await over_http(room, None, type("", (), {"number": first["number"]}), "no", "ben") == ""
    assert (await record(room, first["number"]))["approved"] is False
    assert (await record(room, second["number"]))["state"] == "open"
    goes_on.set()
    await room.turn()
    assert (await record(room, second["number"]))["state"] == "closed"


async def test_a_window_of_a_client_is_in_the_record(room):
    asks = {"project_key": PROJECT, "agent_name": "Ada", "question": "May I?"}
    view = await room.mail.call("ask_person", asks)
    await room.turn()
    assert await Windows(room.questions).opened(asks, view["question_id"], "claude-code 2.1")
    found = await record(room, view["question_id"])
    assert places(found) == ["in the window of claude-code 2.1"]


async def test_there_is_no_record_of_a_question_that_nobody_asked(room):
    _, question = await asked(room)
    for number in ("ffffff", "", "x'; DROP TABLE runs"):
        with pytest.raises(StaleDecision, match=question.number):
            await room.questions.show(number)
