"""The first page: questions and failures over all projects and chats, settled on the page itself."""

import html
import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from urllib.parse import quote, unquote

import pytest
import pytest_asyncio

from postroom.services.questions import TAKE_BACK_MS
from postroom.stores.runs import rows
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from unit.test_web_control import overlapping
from unit.test_web_work import asked, patient, store_runs
from work_room import QUESTIONS, SLUG, TOKEN, WorkRoom, hidden, opened, place, post, take_back_form

__all__ = ["patient"]

HOUR = timedelta(hours=1)


@pytest_asyncio.fixture
async def room(clock: ManualClock) -> AsyncIterator[WorkRoom]:
    async with opened(clock, "Ada", "Ash", "Bo", "Fay", runners=("Ash", "Fay")) as made:
        yield made


async def test_a_question_is_answered_on_the_first_page(room: WorkRoom) -> None:
    browser = room.browser()
    assert "Everything is settled: no open question" in (await browser.get("/")).text
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
    page = (await browser.get(answered.headers["location"])).text
    assert ("Denied." in page, "Approved." in page) == (True, False)
    assert await room.questions.questions() == []


@pytest.mark.parametrize(
    ("back", "home"),
    [("home", "/"), ("control", f"/p/{SLUG}"), ("run", f"/p/{SLUG}/runs/{{run}}"), ("", QUESTIONS)],
)
async def test_take_back_is_offered_for_eight_seconds_and_leads_back_to_its_page(
    patient: WorkRoom, clock: ManualClock, back: str, home: str
) -> None:
    browser, fields = await asked(patient)
    fields.append(("back", back))
    answer = ("by", "Ana"), ("answer", "yes")
    address = (await post(browser, QUESTIONS, *fields, *answer)).headers["location"]
    part = "&part=given" if back else ""
    assert 'value="take_back"' in (await browser.get(f"{address}{part}")).text
    form = [*await take_back_form(browser, dict(fields)["run"]), ("back", back)]
    taken = await post(browser, QUESTIONS, *form)
    assert (taken.status_code, place(taken)) == (303, f"{home.format(**dict(fields))}?done=taken_back")
    assert "Taken back: the question is open again." in (await browser.get(taken.headers["location"])).text
    page = (await browser.get(address)).text
    assert ("Approved." in page, "Answered with" in page) == (False, False)
    address = (await post(browser, QUESTIONS, *fields, *answer)).headers["location"]
    clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
    shown = (await browser.get(f"{address}{part}")).text
    assert 'value="take_back"' not in shown
    assert ("Approved." if back == "home" else "Answered with <b>yes</b>") in shown
    assert ('data-part="given"' in (await browser.get(address)).text) == bool(back)


@pytest.mark.parametrize("name", ["Kim Lee", "Zoë", "O'Brien", "日本", 'a;b="c,d'])
async def test_the_browser_remembers_every_name_under_which_a_person_answers(room, name):
    await room.people("Lea", runners=("Lea",))
    room.agents.asking.add("Lea")
    for agent in ("Ash", "Lea"):
        await room.send("Ada", agent)
        await room.turn()
    browser = room.browser()
    page = (await browser.get("/")).text
    [mine, _] = await room.look(lambda tx: list(room.questions.listed(tx)))
    fields = [("form_token", hidden(page, "form_token")), ("do", "answer"), ("back", "home")]
    fields += [("run", mine.run_id), ("number", mine.number), ("answer", "yes"), ("by", name)]
    assert (await post(browser, f"/p/{SLUG}/questions", *fields)).status_code == 303
    prefilled = re.findall(r'<input name="by" value="([^"]*)"', (await browser.get("/")).text)
    assert {*map(html.unescape, prefilled)} == {name}


async def test_a_late_answer_is_told_who_answered_and_what_the_same_agent_still_asks(room: WorkRoom) -> None:
    await room.people("Lea", runners=("Lea",))
    room.agents.asking.add("Lea")
    room.agents.asks = {"choices": ["EUR", "USD"]}
    await room.send("Ada", "Lea")
    await room.turn()
    room.agents.asks = {}
    browser = room.browser()
    await room.send("Ada", "Ash")
    await room.turn()
    page = (await browser.get("/")).text
    fields = [("form_token", hidden(page, "form_token")), ("do", "answer"), ("back", "home")]
    [mine] = [
        one for one in await room.look(lambda tx: list(room.questions.listed(tx))) if one.agent == "Ash"
    ]
    fields += [("run", mine.run_id), ("number", mine.number)]
    await post(browser, f"/p/{SLUG}/questions", *fields, ("answer", "no"), ("why", "too late"), ("by", "Bea"))
    late = await post(
        browser, f"/p/{SLUG}/questions", *fields, ("answer", "yes"), ("why", "go on"), ("by", "Cy")
    )
    assert late.status_code == 409
    assert "<bdi>Bea</bdi></b> answered" in late.text
    for words in (
        *("This question was answered already", "on the pages", "<bdi>too late</bdi>", "<bdi>go on</bdi>"),
        "no other open question",
    ):
        assert words in late.text
    assert "EUR" not in late.text, "the question of another agent is none of this one's business"
    await room.turn()
    await room.send("Ada", "Ash", subject="Again")
    await room.turn()
    late = await post(browser, f"/p/{SLUG}/questions", *fields, ("answer", "yes"), ("by", "Cy"))
    assert "Open questions of this agent" in late.text
    assert (late.text.count("May I?"), "EUR" in late.text) == (2, False)


async def test_a_refused_answer_comes_back_as_it_was_filled_in_and_says_why(room: WorkRoom) -> None:
    form = {
        "properties": {"amount": {"type": "number"}, "currency": {"enum": ["EUR", "USD"]}, "note": {}},
        "required": ["amount"],
    }
    room.agents.asks = {"form": form}
    browser = room.browser()
    await room.send("Ada", "Ash")
    await room.turn()
    page = (await browser.get("/")).text
    fields = [(name, hidden(page, name)) for name in ("form_token", "do", "back", "run", "number")]
    typed = [
        ("names", "amount"),
        ("names", "currency"),
        ("names", "note"),
        ("v1", "USD"),
        ("v2", "<b>as before"),
    ]
    for by, why in (("Bea", "the field amount is missing"), ("", "The answer does not name a person")):
        refused = await post(browser, f"/p/{SLUG}/questions", *fields, *typed, ("by", by))
        assert refused.status_code == 400
        assert why in refused.text
        for kept in (
            '<option value="USD" selected>',
            'value="&lt;b&gt;as before"',
            f'name="by" value="{by}"',
        ):
            assert kept in refused.text
        fields = [
            (name, hidden(refused.text, name)) for name in ("form_token", "do", "back", "run", "number")
        ]
    room.agents.asks = {"to": ["human:ana"]}
    answered = await post(browser, f"/p/{SLUG}/questions", *fields, *typed, ("v0", "5"), ("by", "Bea"))
    assert place(answered).startswith("/?done=answered")


FORGED = [
    *("/?done=replay", "/?done=discard&skipped=3", "/?done=seen", "/?done=yes&answered={slug}/1/2"),
    *("/chats?done=replay", "/chats?done=yes&answered=1/2", "/p/{slug}?done=share", "/p/{slug}?done=end"),
    *("/p/{slug}/runs?done=discard&many=5&skipped=1&state=failed", "/p/{slug}/tasks?done=accepted"),
    *("/p/{slug}/schedules?done=nightly&sent=1", "/p/{slug}/m/1?sent=1", "/p/{slug}/questions?done=abcdef"),
]
"""Addresses that claim that something was done."""


@pytest.mark.parametrize("address", FORGED)
async def test_a_page_says_what_was_done_only_if_the_server_has_done_it(room: WorkRoom, address: str) -> None:
    await room.send("Ada", "Bo")
    await room.turn()
    browser, forged = room.browser(), address.format(slug=SLUG)
    seal = place(
        await post(
            browser, "/", ("form_token", hidden((await browser.get("/")).text, "form_token")), ("do", "seen")
        )
    )
    assert seal == "/?done=seen"
    for tried in (forged, f"{forged}&seal=", f"{forged}&seal=1700000000000.{'0' * 64}"):
        refused = await browser.get(tried)
        assert refused.status_code == 303, tried
        assert refused.headers["location"] == re.sub(
            r"[?&](done|answered|many|skipped|sent)=[^&]*", "", forged
        ).replace("/runs&", "/runs?")


async def test_the_note_of_one_act_holds_for_no_other_act_session_or_day(room: WorkRoom) -> None:
    browser, other = room.browser(), room.browser()
    token = ("form_token", hidden((await browser.get("/")).text, "form_token"))
    address = (await post(browser, "/", token, ("do", "seen"))).headers["location"]
    assert "marked as seen" in (await browser.get(address)).text
    for reader, tried in ((other, address), (browser, address.replace("seen", "discard"))):
        assert (await reader.get(tried)).headers["location"] == "/"
    assert (await browser.get(address.replace("/?", "/chats?"))).headers["location"] == "/chats"
    room.clock.advance(timedelta(minutes=10, milliseconds=1))
    assert (await browser.get(address)).headers["location"] == "/"


async def test_an_answer_can_be_taken_back_at_a_server_that_started_in_between(clock: ManualClock) -> None:
    store = SqliteStore.in_memory(clock)
    before = WorkRoom(store, store.runs, clock, take_back_ms=TAKE_BACK_MS)
    await before.people("Ada", "Ash", runners=("Ash",))
    browser, fields = await asked(before)
    answer = ("by", "Ana"), ("answer", "yes")
    await post(browser, QUESTIONS, *fields, *answer)
    await before.close()
    after = WorkRoom(store, store.runs, clock, take_back_ms=TAKE_BACK_MS)
    browser = after.browser()
    fields[0] = ("form_token", hidden((await browser.get(QUESTIONS)).text, "form_token"))
    clock.advance(timedelta(milliseconds=TAKE_BACK_MS - 1))
    await after.runs.mailbox.poll()
    await after.turn()
    form = await take_back_form(browser, dict(fields)["run"])
    assert (await post(browser, QUESTIONS, *form)).status_code == 303
    assert len(await after.look(after.questions.open_questions, SLUG)) == 1
    await post(browser, QUESTIONS, *fields, *answer)
    form = await take_back_form(browser, dict(fields)["run"])
    await after.close()
    last = WorkRoom(store, store.runs, clock, take_back_ms=TAKE_BACK_MS)
    clock.advance(timedelta(milliseconds=TAKE_BACK_MS))
    await last.runs.mailbox.poll()
    await last.turn()
    assert "The answer is yes." in last.agents.told[-1], "a server that starts later passes the answer on"
    browser = last.browser()
    form[0] = ("form_token", hidden((await browser.get(f"/p/{SLUG}/write")).text, "form_token"))
    assert (await post(browser, QUESTIONS, *form)).status_code == 409
    await last.close()
    store.close()


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
    assert "Retry all 3" in page
    dead = [one["run_id"] for one in await room.operator.dead()]
    token = ("form_token", hidden(page, "form_token"))
    room.agents.failing.clear()
    await room.operator.discard(dead[0])
    replayed = await post(browser, "/", token, ("do", "replay"), *(("run", run_id) for run_id in dead))
    assert place(replayed) == "/?done=replay&skipped=1"
    page = (await browser.get(replayed.headers["location"])).text
    assert "The runs start again. 1 of them had been retried or dismissed before." in page
    await room.turn()
    assert await room.operator.dead() == []
    for do in ("replay", "discard"):  # the page is stale, so nothing starts, and nothing is dismissed
        stale = await post(browser, "/", token, ("do", do), *(("run", run_id) for run_id in dead))
        page = (await browser.get(stale.headers["location"])).text
        assert "Nothing changed: the failed runs had been retried or dismissed before." in page
        assert "The runs start again." not in page
        assert "Dismissed" not in page


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
        refused = await post(browser, "/", *wrong)
        assert refused.status_code in (400, 403)
        assert "read-only" not in refused.text
    assert len(await room.operator.dead()) == 1


async def test_a_row_is_hidden_in_one_browser_until_its_time_and_not_counted_there(room: WorkRoom) -> None:
    browser, other = room.browser(), room.browser()
    for reader in ("Ash", "Fay"):
        await room.send("Ada", reader)
        await room.turn()
    page = (await browser.get("/")).text
    keys = re.findall(r'name="later" value="([a-z]-[^"]+\.4)"', page)
    assert len(keys) == 1, "a question is not hidden but snoozed, for everybody"
    token = ("form_token", hidden(page, "form_token"))
    hid = await post(browser, "/", token, ("later", keys[0]), ("asked_after", "5/r/4f2a1c"))
    assert place(hid) == "/?done=later&asked_after=5%2Fr%2F4f2a1c"
    page = (await browser.get(hid.headers["location"])).text
    assert ("the key is not known" in page, "Hidden in this browser." in page) == (False, True)
    assert "<title>(1) postroom<" in page
    assert "<title>(2) postroom<" in (await other.get("/")).text
    room.clock.advance(4 * HOUR)
    page = (await browser.get("/")).text
    assert ("the key is not known" in page, "<title>(2) postroom<" in page) == (True, True)
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
    assert "Since your last visit" in page
    assert re.search(rf"{SLUG}\">shop</bdi></a>: 1 finished, 1 failed, \d messages", page)
    finished = re.search(r'data-key="(f-[^"]+)".*?Sweep the yard', page, re.DOTALL)
    assert finished is not None
    room.clock.advance(timedelta(minutes=1))
    assert "Sweep the yard" in (await browser.get("/")).text  # the same visit
    token = ("form_token", hidden(page, "form_token"))
    seen = await post(browser, "/", token, ("do", "seen"))
    assert place(seen) == "/?done=seen"
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


async def test_more_questions_than_a_page_shows_are_on_the_next_page_and_in_the_next_answer(room) -> None:
    room.agents.more_questions = [f"May I do {number}?" for number in range(18)]
    await room.send("Ada", "Ash")
    await room.turn()
    room.agents.more_questions = ["And now?"]
    await room.send("Ada", "Ash", subject="More")
    await room.people("Lea", runners=("Lea",))
    room.agents.asking.add("Lea")
    await room.send("Ada", "Lea")
    await room.turn()
    numbers = [one["number"] for one in await room.questions.questions()]
    assert len(numbers) == 21
    browser, pages, address = room.browser(), list[str](), "/"
    while address:
        page = (await browser.get(address)).text
        pages += re.findall(r'class="card question" data-item id="q-([0-9a-f]{6})"', page)
        assert "of 21 open questions." in page
        found = re.search(r'href="(/\?asked_after=[^"]+)" rel="next"', page)
        address = html.unescape(found[1]) if found else ""
    assert pages == numbers
    assert (await browser.get("/?asked_after=x")).status_code == 400
    operator, listed, after = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}"), list[str](), ""
    while True:
        found = (await operator.get(f"/admin/questions?limit=8&after={quote(after)}")).json()
        listed += [one["number"] for one in found["questions"]]
        if (after := found["next"]) is None:
            break
    assert listed == numbers
    first = (await operator.get("/admin/questions?limit=19")).json()
    assert first["questions"][-1]["agent"] == "Ash"
    await room.questions.answer(numbers[18], True, by="Bea")
    await room.turn()
    rest = (await operator.get(f"/admin/questions?after={quote(first['next'])}")).json()
    assert [one["number"] for one in rest["questions"]] == [
        one["number"] for one in await room.questions.questions()
    ], "the question after which the list continues may have been answered"
    assert (await operator.get("/admin/questions?after=x")).status_code == 400
    assert (await operator.get("/admin/questions?limit=0")).status_code == 400


async def test_a_form_on_a_later_page_of_the_list_leads_back_to_that_page(patient: WorkRoom) -> None:
    for _ in range(2):
        patient.agents.more_questions = [f"May I do {number}?" for number in range(19)]
        await patient.send("Ada", "Ash")
        await patient.turn()
        await patient.people("Lea", runners=("Lea",))
        patient.agents.asking.add("Lea")
        patient.agents.more_questions = [f"Shall I do {number}?" for number in range(19)]
        await patient.send("Ada", "Lea")
        await patient.turn()
    browser = patient.browser()
    first = (await browser.get("/")).text
    found = re.search(r'href="/\?(asked_after=[^"]+)" rel="next"', first)
    assert found is not None
    here = html.unescape(found[1])
    page = (await browser.get(f"/?{here}")).text
    names = ("form_token", "back", "asked_after", "run", "number")
    fields = [(name, hidden(page, name)) for name in names]

    async def leads_to(*more: tuple[str, str]) -> str:
        sent = await post(browser, f"/p/{SLUG}/questions", *fields, *more)
        assert sent.status_code in (303, 400), sent.text
        if sent.status_code == 400:
            assert f'href="/?{here}">Back' in unquote(sent.text)
            return f"asked_after={hidden(sent.text, 'asked_after')}"
        assert here in unquote(sent.headers["location"])
        return (await browser.get(sent.headers["location"])).text

    assert await leads_to(("do", "answer"), ("answer", "no")) == here
    answered = await leads_to(("do", "answer"), ("answer", "no"), ("by", "Bea"))
    cards = re.compile(r'data-item id="q-([0-9a-f]{6})"')
    assert "Denied." in answered
    assert cards.findall(answered)[:19] == cards.findall(page)[1:]
    assert await leads_to(("do", "take_back"), ("answer_id", hidden(answered, "answer_id")))
    snoozed = await leads_to(("do", "snooze"), ("until", "4h"))
    assert "1 question snoozed" in snoozed
    assert await leads_to(("do", "snooze"), ("until", "0"))


async def test_a_snoozed_question_is_snoozed_for_everybody_and_listed_apart(room: WorkRoom) -> None:
    browser = room.browser()
    await room.send("Ada", "Ash")
    await room.turn()
    [asked] = await room.questions.questions()
    page = (await browser.get("/")).text
    menu = page[page.index('id="snooze-') :]
    fields = [(name, hidden(menu, name)) for name in ("form_token", "do", "run", "number", "back")]
    snoozed = await post(browser, f"/p/{SLUG}/questions", *fields, ("until", "4h"))
    assert place(snoozed) == "/?done=snoozed"
    assert "Snoozed for everybody." in (await browser.get(snoozed.headers["location"])).text
    page = (await room.browser().get("/")).text
    assert ("<title>postroom<" in page, "1 question snoozed" in page) == (True, True)
    assert 'class="card question"' not in page
    assert 'data-label="Needs you"><span class="soft">–' in page
    for address in (f"/p/{SLUG}", f"/p/{SLUG}/runs"):
        page = (await browser.get(address)).text
        assert ('class="count owed"' in page, 'aria-current="page"' in page) == (False, True), address
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
    assert place(ended) == "/?done=end"
    page = (await browser.get(ended.headers["location"])).text
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
