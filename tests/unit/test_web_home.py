"""The first page: questions and failures over all projects and chats, settled on the page itself."""

import html
import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
import pytest_asyncio

from postroom.services.questions import TAKE_BACK_MS
from postroom.stores.runs import rows
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from unit.test_web_control import overlapping
from unit.test_web_work import QUESTIONS, asked, store_runs
from work_room import SLUG, WorkRoom, hidden, post

HOUR = timedelta(hours=1)


@pytest_asyncio.fixture
async def room(clock: ManualClock) -> AsyncIterator[WorkRoom]:
    store = SqliteStore.in_memory(clock)
    made = WorkRoom(store, store.runs, clock)
    await made.people("Ada", "Ash", "Bo", "Fay", runners=("Ash", "Fay"))
    yield made
    await made.close()
    store.close()


async def test_a_question_is_answered_on_the_first_page(room: WorkRoom) -> None:
    browser = room.browser()
    assert "Nothing needs you: no open question" in (await browser.get("/")).text
    await room.send("Ada", "Ash")
    await room.turn()
    page = (await browser.get("/")).text
    assert "<title>(1) postroom<" in page
    assert "May I?" in page
    fields = [(name, hidden(page, name)) for name in ("form_token", "do", "back", "run", "number")]
    assert ("back", "home") in fields
    answered = await post(browser, f"/p/{SLUG}/questions", *fields, ("answer", "no"), ("by", "Bea"))
    assert answered.status_code == 303
    assert answered.headers["location"].startswith("/?done=no&answered=")
    for forged in ("/?done=no", "/?done=yes&answered=shop/1/2"):
        page = (await browser.get(forged)).text
        assert ("Denied." in page, "Approved." in page) == (False, False)
    claimed = answered.headers["location"].replace("done=no", "done=yes")
    for address in (answered.headers["location"], claimed):
        page = (await browser.get(address)).text
        assert ("Denied." in page, "Approved." in page) == (True, False)
    assert await room.questions.questions() == []


@pytest.mark.parametrize(("back", "home"), [("home", "/"), ("control", f"/p/{SLUG}")])
async def test_take_back_is_offered_for_eight_seconds_and_leads_back_to_its_page(
    clock: ManualClock, back: str, home: str
) -> None:
    store = SqliteStore.in_memory(clock)
    room = WorkRoom(store, store.runs, clock, take_back_ms=TAKE_BACK_MS)
    await room.people("Ada", "Ash", runners=("Ash",))
    browser, fields = await asked(room)
    fields.append(("back", back))
    answer = ("by", "Ana"), ("answer", "yes")
    address = (await post(browser, QUESTIONS, *fields, *answer)).headers["location"]
    assert 'value="take_back"' in (await browser.get(f"{address}&part=given")).text
    taken = await post(browser, QUESTIONS, *fields, ("do", "take_back"))
    assert (taken.status_code, taken.headers["location"]) == (303, home)
    page = (await browser.get(address)).text
    assert ("Approved." in page, "Answered with" in page) == (False, False)
    address = (await post(browser, QUESTIONS, *fields, *answer)).headers["location"]
    clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
    part = (await browser.get(f"{address}&part=given")).text
    assert 'value="take_back"' not in part
    assert ("Approved." if back == "home" else "Answered with <b>yes</b>") in part
    assert 'data-part="given"' in (await browser.get(address)).text
    await room.close()
    store.close()


async def test_an_answer_that_comes_too_late_stays_on_the_first_page(room: WorkRoom) -> None:
    browser = room.browser()
    await room.send("Ada", "Ash")
    await room.turn()
    page = (await browser.get("/")).text
    fields = [(name, hidden(page, name)) for name in ("form_token", "do", "back", "run", "number")]
    await post(browser, f"/p/{SLUG}/questions", *fields, ("answer", "no"), ("by", "Bea"))
    for told in (
        "no question is open now.",
        "1 question is open now: “<bdi>May I?</bdi>”.",
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
    assert "<title>(1) postroom<" in page
    assert 'Failed</a> <span class="count owed">1</span>' in page
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


async def test_a_row_is_snoozed_in_one_browser_until_its_time_and_no_longer_counted(room: WorkRoom) -> None:
    browser, other = room.browser(), room.browser()
    for reader in ("Ash", "Fay"):
        await room.send("Ada", reader)
        await room.turn()
    page = (await browser.get("/")).text
    keys = re.findall(r'name="later" value="([a-z]-[^"]+\.4)"', page)
    assert len(keys) == 2
    token = ("form_token", hidden(page, "form_token"))
    for key in keys:
        assert (await post(browser, "/", token, ("later", key))).headers["location"] == "/?done=later"
    page = (await browser.get("/")).text
    assert "May I?" not in page
    assert "<title>postroom<" in page
    assert "<title>(2) postroom<" in (await other.get("/")).text
    room.clock.advance(4 * HOUR)
    page = (await browser.get("/")).text
    assert ("May I?" in page, "<title>(2) postroom<" in page) == (True, True)
    await post(browser, "/", token, ("later", keys[0]))
    assert "<title>(1) postroom<" in (await browser.get("/")).text
    await post(browser, "/", token, ("later", "all.0"))
    assert "<title>(2) postroom<" in (await browser.get("/")).text
    for wrong in ("q-1", "q-1.0", "q-1.169", "q_1.4", "all.1"):
        assert (await post(browser, "/", token, ("later", wrong))).status_code == 400


async def test_the_first_page_tells_what_happened_since_the_last_visit(room: WorkRoom) -> None:
    await room.people("Ben", runners=("Ben",))
    browser = room.browser()
    assert "Nothing happened." in (await browser.get("/")).text
    room.clock.advance(HOUR)
    await room.send("Ada", "Ben", subject="Sweep the yard")
    await room.send("Ada", "Fay")
    await room.turn()
    page = (await browser.get("/")).text
    assert "Since you were here" in page
    assert re.search(rf"{SLUG}</bdi></a>: 1 finished, 1 failed, \d messages", page)
    finished = re.search(r'data-key="(f-[^"]+)".*?Sweep the yard', page, re.DOTALL)
    assert finished is not None
    room.clock.advance(timedelta(minutes=1))
    assert "Sweep the yard" in (await browser.get("/")).text  # the same visit
    token = ("form_token", hidden(page, "form_token"))
    seen = await post(browser, "/", token, ("do", "seen"))
    assert seen.headers["location"] == "/?done=seen"
    room.clock.advance(timedelta(milliseconds=1))
    page = (await browser.get("/")).text
    assert ("Sweep the yard" in page, "Nothing happened." in page) == (False, True)


async def test_cookies_that_the_first_page_did_not_write_are_ignored(room: WorkRoom) -> None:
    await room.send("Ada", "Ash")
    await room.turn()
    for later, seen in (("x" * 300, "1.2.3"), ("q-.._", "-1.5"), ('"', "99999999999999.99999999999999")):
        browser = room.browser()
        for name, text in (("postroom_later", later), ("postroom_seen", seen)):
            browser.cookies.set(name, text)
        assert "May I?" in (await browser.get("/")).text


async def test_the_first_page_decodes_as_many_runs_of_five_thousand_as_of_two_hundred(
    room: WorkRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.send("Ada", "Ash")
    await room.turn()
    browser, counts = room.browser(), list[int]()
    for names in (("Ada",), ("Ash", "Fay")):
        await store_runs(room, *names, each=200 if names == ("Ada",) else 2_400)
        count, decode = 0, rows.run

        def counted(row: object, decode: Callable[..., object] = decode) -> object:
            nonlocal count
            count += 1
            return decode(row)

        with monkeypatch.context() as watched:
            watched.setattr(rows, "run", counted)
            assert "May I?" in (await browser.get("/")).text
        counts.append(count)
    assert counts[0] == counts[1] < 10


async def test_an_answer_on_the_first_page_can_be_taken_back_there(clock: ManualClock) -> None:
    store = SqliteStore.in_memory(clock)
    room = WorkRoom(store, store.runs, clock, take_back_ms=8_000)
    await room.people("Ada", "Ash", runners=("Ash",))
    await room.send("Ada", "Ash")
    await room.turn()
    browser = room.browser()
    page = (await browser.get("/")).text
    fields = [(name, hidden(page, name)) for name in ("form_token", "do", "back", "run", "number")]
    answered = await post(browser, f"/p/{SLUG}/questions", *fields, ("answer", "no"), ("by", "Bea"))
    page = (await browser.get(answered.headers["location"])).text
    assert ("Denied." in page, ">Take back<" in page) == (True, True)
    await post(browser, f"/p/{SLUG}/questions", fields[0], ("do", "take_back"), *fields[3:])
    assert len(await room.questions.questions()) == 1
    assert ">Take back<" not in (await browser.get(answered.headers["location"])).text
    await room.close()
    store.close()


async def test_a_question_that_was_put_off_everywhere_is_listed_apart(room: WorkRoom) -> None:
    browser = room.browser()
    await room.send("Ada", "Ash")
    await room.turn()
    [asked] = await room.questions.questions()
    await room.questions.snooze(asked["number"], for_ms=3_600_000, by="Bea")
    page = (await browser.get("/")).text
    assert ("<title>postroom<" in page, "1 question put off" in page) == (True, True)
    assert 'class="card question"' not in page
    assert 'data-label="Needs you"><span class="soft">–' in page
    for place in (f"/p/{SLUG}", f"/p/{SLUG}/runs"):
        page = (await browser.get(place)).text
        assert ('class="count owed"' in page, 'aria-current="page"' in page) == (False, True), place
    await room.questions.snooze(asked["number"], for_ms=0, by="Bea")
    assert 'data-label="Needs you"><a' in (await browser.get("/")).text
    assert 'class="count owed"' in (await browser.get(f"/p/{SLUG}")).text


async def test_overlapping_reservations_are_settled_on_the_first_page(room: WorkRoom) -> None:
    await room.people_named.add("Ana", None)
    await overlapping(room)
    browser = room.browser()
    assert "reservation</button>" not in (await browser.get("/")).text  # nobody has said who they are
    browser.cookies.set("postroom_name", "Ana")
    page = (await browser.get("/")).text
    released = re.search(r'<form [^>]*id="release-(\d+)".*?</form>', page, re.DOTALL)
    assert released is not None
    names = ("form_token", "back", "do", "name", "reservation")
    fields = [(name, hidden(released[0], name)) for name in names]
    ended = await post(browser, f"/p/{SLUG}/reservations/decide", *fields)
    assert ended.headers["location"] == "/?done=end"
    page = (await browser.get("/?done=end")).text
    assert ("The reservation was released." in page, "Overlapping reservations" in page) == (True, False)


async def test_the_digest_of_a_project_tells_what_the_tool_tells(room: WorkRoom) -> None:
    await room.send("Ada", "Ash", subject="Sweep the yard")
    await room.send("Ada", "Fay", subject="Count the bees")
    await room.turn()
    browser = room.browser()
    link = re.search(r'href="(/p/[^"]+/digest[^"]+)"', (await browser.get("/")).text)
    assert link is not None
    page = (await browser.get(html.unescape(link[1]))).text
    for words in (
        "Ash asks a person (question ",
        "A run of Fay failed: &#34;",
        "the key is not known",
        "Sweep the yard",
        "Count the bees",
        "1 waiting",
        "1 failed",
    ):
        assert words in page, words
    assert (await browser.get(f"/p/{SLUG}/digest?hours=x")).status_code == 400
    assert (await browser.get("/p/none/digest")).status_code == 404
