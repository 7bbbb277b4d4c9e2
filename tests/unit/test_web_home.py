"""The first page: questions and failures over all projects and chats, settled on the page itself."""

from collections.abc import AsyncIterator

import pytest_asyncio

from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from work_room import SLUG, WorkRoom, hidden, post


@pytest_asyncio.fixture
async def room(clock: ManualClock) -> AsyncIterator[WorkRoom]:
    store = SqliteStore.in_memory(clock)
    made = WorkRoom(store, store.runs, clock)
    await made.people("Ada", "Ash", "Fay", runners=("Ash", "Fay"))
    yield made
    await made.close()
    store.close()


async def test_a_question_is_answered_on_the_first_page(room: WorkRoom) -> None:
    browser = room.browser()
    assert "Nothing: no open question" in (await browser.get("/")).text
    await room.send("Ada", "Ash")
    await room.turn()
    page = (await browser.get("/")).text
    assert "<title>(1) Projects" in page
    assert "May I?" in page
    fields = [(name, hidden(page, name)) for name in ("form_token", "do", "back", "run", "number")]
    assert ("back", "home") in fields
    answered = await post(browser, f"/p/{SLUG}/questions", *fields, ("answer", "no"), ("by", "Bea"))
    assert (answered.status_code, answered.headers["location"]) == (303, "/?done=no")
    assert "Denied." in (await browser.get("/?done=no")).text
    assert await room.questions.questions() == []


async def test_an_answer_that_comes_too_late_stays_on_the_first_page(room: WorkRoom) -> None:
    browser = room.browser()
    await room.send("Ada", "Ash")
    await room.turn()
    page = (await browser.get("/")).text
    fields = [(name, hidden(page, name)) for name in ("form_token", "do", "back", "run", "number")]
    await post(browser, f"/p/{SLUG}/questions", *fields, ("answer", "no"), ("by", "Bea"))
    for told in (
        "no question is open now.",
        "1 question is open now: <bdi>May I?</bdi>.",
    ):
        late = await post(browser, f"/p/{SLUG}/questions", *fields, ("answer", "yes"), ("by", "Cy"))
        assert (late.status_code, late.headers["location"]) == (303, "/?done=late")
        assert told in (await browser.get(late.headers["location"])).text
        await room.send("Ada", "Ash")
        await room.turn()


async def test_equal_failures_are_one_row_and_are_replayed_together(room: WorkRoom) -> None:
    browser = room.browser()
    for number in range(3):
        await room.send("Ada", "Fay", subject=f"Work {number}")
        await room.turn()
    page = (await browser.get("/")).text
    assert page.count("the key is not known") == 1
    assert "3 times" in page
    assert "Replay all 3" in page
    dead = [one["run_id"] for one in await room.operator.dead()]
    token = ("form_token", hidden(page, "form_token"))
    room.agents.failing.clear()
    await room.operator.discard(dead[0])
    replayed = await post(browser, "/", token, ("do", "replay"), *(("run", run_id) for run_id in dead))
    assert replayed.headers["location"] == "/?done=replay&skipped=1"
    page = (await browser.get(replayed.headers["location"])).text
    assert "The runs start again. 1 of them had been replayed or discarded before." in page
    await room.turn()
    assert await room.operator.dead() == []


async def test_a_form_that_decides_nothing_changes_nothing(room: WorkRoom) -> None:
    browser = room.browser()
    await room.send("Ada", "Fay")
    await room.turn()
    [dead] = await room.operator.dead()
    run = ("run", str(dead["run_id"]))
    token = ("form_token", hidden((await browser.get("/")).text, "form_token"))
    for wrong in (
        [token, ("do", "cancel"), run],
        [token, ("do", "discard")],
        [token, ("do", "discard"), *[run] * 101],
        [("form_token", "0" * 64), ("do", "discard"), run],
    ):
        assert (await post(browser, "/", *wrong)).status_code in (400, 403)
    assert len(await room.operator.dead()) == 1
