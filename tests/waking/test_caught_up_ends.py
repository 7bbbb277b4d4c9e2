"""A summary of events tells cancelled runs, ended questions and decided tasks as what they are."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from postroom.mail.context import Caller
from postroom.services.questions import QuestionTimeouts
from postroom.testing import ManualClock
from waking_room import PROJECT
from work_room import SLUG, TOKEN, WorkRoom

ASKED = {"project_key": PROJECT, "agent_name": "Ash"}


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock)
    await made.people("Ada", "Ash", "Fay", runners=("Ash", "Fay"))
    yield made
    await made.close()


async def caught(room: WorkRoom) -> Any:
    asked = {"project_key": PROJECT, "after": 0}
    return await room.mail.call("catch_up", asked, caller=Caller(operator=True))


async def said(room: WorkRoom, about: str) -> list[str]:
    return [one["text"] for one in (await caught(room))["sentences"] if one["about"] == about]


async def runs_listed(room: WorkRoom) -> list[str]:
    """Return the status of each run, as `postroom runs list` shows it."""
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        found = (await operator.get("/admin/runs")).json()
        return sorted(one["state"] for one in found["runs"])


async def cancel(room: WorkRoom, run_id: str) -> None:
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        answer = await operator.post("/admin/runs/cancel", json={"run": run_id})
        assert answer.status_code == 200, answer.text
    await room.turn()


async def page_counts(room: WorkRoom) -> dict[str, int]:
    """Return the number of runs in each state, from the page of the digest."""
    page = (await room.browser().get(f"/p/{SLUG}/digest?hours=24")).text
    states = "active|waiting|succeeded|failed|cancelled"
    return {state: int(count) for count, state in re.findall(rf"(\d+) ({states})\b", page)}


@pytest.mark.parametrize("end", ["a person", "no answer"])
async def test_a_waiting_run_that_was_cancelled_is_told_as_cancelled(room, clock, end):
    room.agents.asks = {"timeout_seconds": 60, "on_timeout": "cancel"}
    await room.send("Ada", "Ash")
    await room.turn()
    [shown] = await room.questions.questions()
    if end == "a person":
        await cancel(room, shown["run_id"])
    else:
        clock.advance(timedelta(seconds=61))
        await QuestionTimeouts(room.runs, clock, clock).round()
        await room.turn()
    why = " by an operator" if end == "a person" else ': "no answer came in time"'
    assert await said(room, "cancelled") == [f"A run of Ash was cancelled{why}."]
    assert await said(room, "failed") == []
    assert (await caught(room))["failed"] == []
    assert await page_counts(room) == {"active": 0, "waiting": 0, "succeeded": 0, "failed": 0, "cancelled": 1}
    assert await runs_listed(room) == ["cancelled"]
    page = (await room.browser().get(f"/p/{SLUG}/digest?hours=24")).text
    assert '<h2 id="cancelled">Cancelled</h2>' in page


async def test_a_run_that_was_cancelled_before_its_next_attempt_is_told_as_cancelled(room):
    room.agents.asking.clear()
    room.agents.overloaded = {"Ash"}
    await room.send("Ada", "Ash")
    await room.turn()
    assert await said(room, "failed") == ["An attempt of a run of Ash failed. The run is retried."]
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        [listed] = (await operator.get("/admin/runs")).json()["runs"]
    await cancel(room, listed["run_id"])
    assert await runs_listed(room) == ["cancelled"]
    assert await said(room, "failed") == []
    assert await said(room, "cancelled") == ["A run of Ash was cancelled by an operator."]
    assert await page_counts(room) == {"active": 0, "waiting": 0, "succeeded": 0, "failed": 0, "cancelled": 1}


async def test_a_question_of_a_run_that_failed_in_the_same_turn_is_told_as_closed(room):
    async def fail(activation: Any) -> Any:
        await room.mail.call("ask_person", {**ASKED, "run_id": activation.run_id, "question": "Why?"})
        raise ValueError("the program has ended")

    room.agents.asking.clear()
    room.agents.act = fail
    await room.send("Ada", "Ash")
    await room.turn()
    assert await said(room, "asked") == []
    assert (await caught(room))["questions"] == []
    [told] = await said(room, "decided")
    why = "the attempt failed before anybody saw the question"
    assert re.fullmatch(rf'Question \w+ of Ash, "Why\?", was closed: "{why}"\.', told)


async def test_a_question_that_was_open_when_its_run_ended_is_told_as_closed(room):
    room.agents.more_questions = ["And this?"]
    await room.send("Ada", "Ash")
    await room.turn()
    open_now = {question["question"]: question["number"] for question in await room.questions.questions()}
    await room.questions.answer(open_now["May I?"], "yes", by="ana")
    await room.turn()
    assert await room.questions.questions() == []
    assert await said(room, "asked") == []
    assert (await caught(room))["questions"] == []
    assert sorted(await said(room, "decided")) == [
        f'Question {open_now["And this?"]} of Ash, "And this?", was closed: "the run ended".',
        f'ana answered question {open_now["May I?"]} of Ash, "May I?", with yes.',
    ]


@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_a_task_that_a_person_decided_is_told_with_the_decision(room, answer):
    given = {"project_key": PROJECT, "agent_name": "Ada"}
    await room.people_named.add("Kim", None)
    await room.mail.call("add_task", {**given, "title": "Paint", "acceptance": "person"})
    await room.mail.call("claim_task", given)
    await room.mail.call("done_task", {**given, "task_id": 1, "epoch": 1})
    assert await said(room, "asked") == ['Ada asks a person to accept task 1 "Paint".']
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        decision = {"project": SLUG, "task": 1, "answer": answer, "person": "Kim", "why": "It drips."}
        decided = await operator.post("/admin/tasks/decide", json=decision)
        assert decided.status_code == 200, decided.text
    assert await said(room, "asked") == []
    [told] = await said(room, "done" if answer == "yes" else "decided")
    assert "Kim" in told
    assert told.endswith(
        ' accepted task 1 "Paint".' if answer == "yes" else ' rejected task 1 "Paint": "It drips.".'
    )


async def test_questions_outside_runs_count_neither_as_runs_nor_as_finished_work(room):
    given = {"project_key": PROJECT, "agent_name": "Ada"}
    for number in range(3):
        view = await room.mail.call("ask_person", {**given, "question": f"Question {number}?"})
        await room.turn()
        await room.questions.answer(view["question_id"], "yes", by="ana")
        await room.turn()
    assert await said(room, "done") == []
    assert set((await page_counts(room)).values()) == {0}
    home = (await room.browser().get("/")).text
    assert "Finished, not yet opened" not in home
    room.agents.asking.clear()
    await room.send("Ada", "Ash")
    await room.turn()
    assert await said(room, "done") == ["Ash ended 1 run well."]
    assert "Finished, not yet opened" in (await room.browser().get("/")).text
