"""People's decisions in the control room, and the same content as JSON."""

import json
import re
from datetime import timedelta

from unit.test_web_work import RUNS, asked, dead, room, stores, until_kept
from waking_room import PROJECT
from work_room import HTTP, SLUG, TOKEN, WorkRoom, hidden, place, post

__all__ = ["room", "stores"]

HOME = f"/p/{SLUG}"
DECIDE = f"{HOME}/reservations/decide"


async def overlapping(room: WorkRoom) -> tuple[int, int]:
    """Make two agents reserve the same file, and return their reservations."""
    found = []
    for name, path in (("Ada", "src/**"), ("Bo", "src/total.py")):
        reserved = {"project_key": PROJECT, "agent_name": name, "paths": [path], "reason": "mending"}
        told = await room.mail.call("file_reservation_paths", reserved)
        found.append(told["granted"][0]["id"])
    return found[0], found[1]


async def test_a_person_ends_one_of_two_reservations_that_overlap_and_its_holder_is_told(room: WorkRoom):
    await room.people_named.add("Ana", None)
    first, second = await overlapping(room)
    browser = room.browser()
    page = (await browser.get(HOME)).text
    assert "Overlapping reservations" in page
    assert ">Release <bdi>" not in page  # nobody has said who they are
    browser.cookies.set("postroom_name", "Ana")
    page = (await browser.get(HOME)).text
    assert "<span>Release <bdi>Bo</bdi>" in page
    form = [("form_token", hidden(page, "form_token")), ("name", "Ana"), ("reservation", str(second))]
    ended = await post(browser, DECIDE, *form, ("do", "end"))
    assert (ended.status_code, place(ended)) == (303, f"{HOME}?done=end")
    known = await room.store.read(lambda tx: tx.reservation(second))
    assert (known.released_by, known.released_at) == ("Ana", room.clock.now())
    assert (await room.store.read(lambda tx: tx.reservation(first))).released_at is None
    told = (await room.messages())[-1]
    assert (told.sender_name, told.subject) == ("Ana", "Your reservation of src/total.py was ended")
    page = (await browser.get(ended.headers["location"])).text
    assert "The reservation was ended" in page
    assert "Overlapping reservations" not in page
    for fields, status in [
        ((*form, ("do", "end")), 409),
        ((form[0], ("name", "Zoe"), ("reservation", str(first)), ("do", "end")), 404),
        ((*form[:2], ("reservation", "x"), ("do", "end")), 400),
        ((*form[:2], ("reservation", "999"), ("do", "end")), 404),
        ((*form[:2], ("reservation", str(first)), ("do", "burn")), 400),
        ((*form[:2], ("do", "share")), 400),
        ((("form_token", "forged"), ("reservation", str(first)), ("do", "share")), 403),
    ]:
        assert (await post(browser, DECIDE, *fields)).status_code == status, fields
    assert (await room.store.read(lambda tx: tx.reservation(first))).released_at is None
    assert (await browser.get(DECIDE)).headers["location"] == f"{HOME}/reservations"


async def test_reservations_that_are_meant_to_overlap_are_shared_from_now_on(room: WorkRoom):
    both = await overlapping(room)
    browser = room.browser()
    form = [("form_token", hidden((await browser.get(HOME)).text, "form_token"))]
    form += [("reservation", str(one)) for one in both]
    shared = await post(browser, DECIDE, *form, ("do", "share"))
    assert place(shared) == f"{HOME}?done=share"
    held = await room.store.read(lambda tx: tx.reservations_by_id(list(both)))
    assert [one.exclusive for one in held] == [False, False]
    assert "Overlapping reservations" not in (await browser.get(shared.headers["location"])).text
    gone = await post(browser, DECIDE, *form, ("reservation", "999"), ("do", "share"))
    assert gone.status_code == 404


async def test_what_needs_a_person_is_one_number_at_home_on_the_tab_and_over_the_cards(room: WorkRoom):
    await room.people_named.add("Ana", None)
    browser, _ = await asked(room)
    await dead(room)
    await overlapping(room)
    browser.cookies.set("postroom_name", "Ana")
    for number in range(22):
        await room.send("Ada", "human:Ana", subject=f"Bill {number}")
    home, page = (await browser.get(f"{HTTP}/")).text, (await browser.get(HOME)).text
    assert re.search(rf'href="{HOME}#needs"><span class="badge owed">3</span>', home)
    assert "22 unread messages to <bdi>Ana</bdi>" in home
    assert "<title>(25) postroom<" in home
    assert page.count("data-need ") == 3
    assert re.search(r'Control room <span class="count owed">3<span class="hidden"> need you', page)
    assert 'Needs you <span class="count owed">3</span>' in page
    assert 'Messages to you <span class="count">22</span>' in page
    assert page.count('aria-label="A message to you"') == 5
    assert "All messages to you" in page
    assert re.search(r"Threads</a>", page)  # its count was that of all projects


async def test_an_active_run_without_output_for_minutes_says_so(room: WorkRoom):
    began, goes_on = room.agents.hold()
    room.agents.output = ["step 1\n"]
    await room.send("Ada", "Bo")
    await began.wait()
    [work] = await room.operator.works(SLUG)
    await until_kept(room, work.run_id, "step 1")
    browser = room.browser()
    assert "no output for" not in (await browser.get(HOME)).text
    room.clock.advance(timedelta(minutes=12))
    page = (await browser.get(HOME)).text
    assert "no output for 12 min" in page
    assert "step 1" in page
    goes_on.set()
    await room.turn()
    assert "no output for" not in (await browser.get(HOME)).text


async def test_the_control_room_is_told_as_json_to_its_operator_alone(room: WorkRoom):
    await asked(room)
    await dead(room)
    await overlapping(room)
    address, operator = f"/admin/floor?project={PROJECT}", {"Authorization": f"Bearer {TOKEN}"}
    browser = room.browser(logged_in=False)
    assert (await browser.get(address)).status_code == 401
    answer = await browser.get(address, headers=operator)
    told = json.loads(answer.text)
    assert [one["agent"] for one in told["questions"]] == ["Ash"]
    assert [one["agent"] for one in told["given_up"]] == ["Fay"]
    assert [one["state"] for one in told["works"]] == ["asks"]
    assert told["questions"][0]["asked_at"].startswith("20")
    assert all(one.endswith("Z") for one in told["heard_at"].values())
    [conflict] = told["conflicts"]
    assert (conflict["first"]["holder"], conflict["second"]["holder"]) == ("Ada", "Bo")
    assert conflict["first"]["expires_at"].endswith("Z")
    assert [(one["names"], one["state"]) for one in told["waits"]] == [
        (["Ada", "Ash"], "asks"),
        (["Ada", "Fay"], "failed"),
    ]
    assert {one["sender"] for one in told["owed"]} >= {"Fay"}
    assert told["holds"]["bo"][0]["pattern"] == "src/total.py"
    assert [one["outcome"] for one in told["last_hour"]["fay"]] == ["failed"]
    assert (await browser.get(f"{HTTP}/admin/floor?project=/none", headers=operator)).status_code == 404


async def test_a_run_that_is_tried_again_later_is_tried_now(room: WorkRoom):
    room.agents.overloaded = {"Bo"}
    await room.send("Ada", "Bo")
    await room.runs.mailbox.settled()
    browser = room.browser()
    [work] = await room.operator.works(SLUG)
    assert (work.state, work.can_hasten) == ("queued", True)
    for address in (HOME, RUNS, f"{RUNS}/{work.run_id}"):
        page = (await browser.get(address)).text
        assert 'value="hasten"' in page, address
    room.agents.overloaded = set()
    await room.runs.mailbox.poll()
    assert (await room.operator.named(work.run_id)).state == "queued"
    form = [(name, hidden(page, name)) for name in ("form_token", "run")]
    tried = await post(browser, RUNS, *form, ("do", "hasten"))
    assert place(tried) == f"{RUNS}/{work.run_id}?done=hasten"
    await room.runs.mailbox.poll()
    await room.turn()
    assert (await room.operator.named(work.run_id)).state == "done"
    assert (await post(browser, RUNS, *form, ("do", "hasten"))).status_code == 409


async def test_who_has_a_script_is_not_told_to_load_the_page_again(room: WorkRoom):
    await room.people("Ada")
    told = "reload the page for newer data"
    page = (await room.browser().get(HOME)).text
    assert re.search(f"<noscript>[^<]*<time [^<]*</time>; {told}.</noscript>", page)
    page = (await room.browser().get("/")).text  # the script asks for the first page every 5 seconds
    assert 'data-every="5000"' in page
    assert re.search(f"<noscript>[^<]*<time [^<]*</time>; {told}.</noscript>", page)
