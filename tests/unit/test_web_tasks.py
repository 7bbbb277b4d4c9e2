"""The page of tasks: claimable tasks first, one task with its evidence, and a person's decisions."""

import re
from datetime import timedelta
from typing import Any

from postroom.contracts.tasks import Task
from unit.test_web_work import room, stores
from waking_room import PROJECT
from work_room import SLUG, WorkRoom, hidden, place, post

__all__ = ["room", "stores"]

PAGE = f"/p/{SLUG}/tasks"
DECIDE = f"{PAGE}/decide"


async def call(room: WorkRoom, operation: str, name: str, **arguments: Any) -> Any:
    return await room.mail.call(operation, {"project_key": PROJECT, "agent_name": name, **arguments})


async def task_of(room: WorkRoom, number: int) -> Task:
    found = await room.store.read(lambda tx: tx.task(number))
    assert found is not None
    return found


async def test_a_person_sees_the_tasks_and_decides_about_a_finished_one(room: WorkRoom) -> None:
    await room.people_named.add("Ana", None)
    empty = (await room.browser().get(PAGE)).text
    assert "No open tasks" in empty
    for title, more in (
        ("Mend <b>it</b>", {"acceptance": "person", "paths": ["src/**"], "text": "As <i>before</i>."}),
        ("Tell everybody", {"depends_on": [1], "priority": "urgent"}),
        ("Paint it", {"assignee": "role:painter"}),
    ):
        await call(room, "add_task", "Ada", title=title, **more)
    await call(room, "claim_task", "Bo")
    browser = room.browser()
    page = (await browser.get(PAGE)).text
    order = [page.index(text) for text in ("Paint it", "Mend &lt;b&gt;it&lt;/b&gt;", "Tell everybody")]
    assert order == sorted(order), "tasks to claim come first, those that wait last"
    assert "role:painter" in page
    assert "src/**" in page
    evidence = {"task_id": 1, "epoch": 1, "commit": "4f2a", "message": "<script>1</script>", "output": "ok"}
    await call(room, "done_task", "Bo", **evidence)
    one = (await browser.get(f"{PAGE}?task=1")).text
    for text in ("As &lt;i&gt;before&lt;/i&gt;.", "4f2a", "&lt;script&gt;1&lt;/script&gt;"):
        assert text in one
    assert '<input name="name" value=""' in one, "nobody has said who they are"
    home = (await browser.get("/")).text
    assert "Tasks to check" in home
    assert f'href="{PAGE}?task=1"' in home
    form = [("form_token", hidden((await browser.get(PAGE)).text, "form_token")), ("name", "Ana")]
    refused = [
        ((*form, ("task", "1"), ("do", "reject")), 400),
        ((*form, ("task", "1"), ("do", "burn")), 400),
        ((*form, ("task", "2"), ("do", "accept")), 409),
        ((*form, ("task", "99"), ("do", "accept")), 404),
        ((form[0], ("name", "Zoe"), ("task", "1"), ("do", "accept")), 404),
        ((("form_token", "forged"), *form[1:], ("task", "1"), ("do", "accept")), 403),
    ]
    for fields, status in refused:
        assert (await post(browser, DECIDE, *fields)).status_code == status, fields
    assert (await task_of(room, 1)).state == "review"
    again = (await post(browser, DECIDE, *form, ("task", "1"), ("do", "reject"))).text
    assert "rejection needs a reason" in again
    assert '<input name="name" value="Ana"' in again, "the form is shown again as it was filled in"
    rejected = await post(browser, DECIDE, *form, ("task", "1"), ("do", "reject"), ("why", "It is dark."))
    assert (rejected.status_code, place(rejected)) == (303, f"{PAGE}?done=rejected")
    assert "Tasks to check" not in (home := (await browser.get("/")).text)
    assert "You write as <b><bdi>Ana</bdi></b>" in home, "the first page knows the name, too"
    assert ((await task_of(room, 1)).state, (await task_of(room, 1)).reason) == ("ready", "It is dark.")
    await call(room, "claim_task", "Bo", task_id=1)
    await call(room, "done_task", "Bo", task_id=1, epoch=2)
    accepted = await post(browser, DECIDE, *form, ("task", "1"), ("do", "accept"))
    late = await post(browser, DECIDE, *form, ("task", "1"), ("do", "reject"), ("why", "Too late."))
    assert late.status_code == 409
    assert re.search(r"was done by Bo <time .*</time>, and accepted by \S*Ana", late.text)
    assert ((await task_of(room, 1)).state, (await task_of(room, 2)).state) == ("done", "ready")
    page = (await browser.get(accepted.headers["location"])).text
    assert "The task was accepted." in page
    assert "Recently ended" in page
    told = [one.subject for one in await room.messages()]
    assert {"Rejected: Mend <b>it</b>", "Accepted: Mend <b>it</b>"} <= set(told)
    assert "This project has no task 99" in (await browser.get(f"{PAGE}?task=99")).text
    assert (await browser.get(DECIDE)).headers["location"] == PAGE


async def test_a_person_cancels_an_open_task_and_its_author_and_holder_are_told(room: WorkRoom) -> None:
    await room.people_named.add("Ana", None)
    await call(room, "add_task", "Ada", title="Mend it")
    await call(room, "claim_task", "Bo")
    browser = room.browser()
    page = (await browser.get(f"{PAGE}?task=1")).text
    assert 'value="cancel"' in page
    assert 'value="accept"' not in page
    form = [("form_token", hidden(page, "form_token")), ("name", "Ana"), ("task", "1"), ("do", "cancel")]
    cancelled = await post(browser, DECIDE, *form, ("why", "No pier."))
    assert (cancelled.status_code, place(cancelled)) == (303, f"{PAGE}?done=cancelled")
    assert ((await task_of(room, 1)).state, (await task_of(room, 1)).reason) == ("cancelled", "No pier.")
    told = [one for one in await room.messages() if one.subject == "Cancelled: Mend it"]
    assert [one.body_md for one in told] == ["Ana cancelled task 1. No pier."]
    assert (await post(browser, DECIDE, *form)).status_code == 409
    assert 'value="cancel"' not in (await browser.get(f"{PAGE}?task=1")).text


async def test_finished_tasks_are_in_the_count_of_what_needs_a_person(room: WorkRoom) -> None:
    for number in (1, 2):
        await call(room, "add_task", "Ada", title=f"Mend {number}", acceptance="person")
        await call(room, "claim_task", "Bo")
        await call(room, "done_task", "Bo", task_id=number, epoch=1)
    browser = room.browser()
    page, tasks, home = [(await browser.get(f"{path}")).text for path in (f"/p/{SLUG}", PAGE, "/")]
    assert 'Needs you <span class="count owed">2</span>' in page
    assert "2 finished tasks wait for your check" in page
    assert re.search(r'Control room <span class="count owed">2<span class="hidden"> need you', tasks)
    assert re.search(rf'href="/p/{SLUG}#needs"><span class="badge owed">2</span>', home)


async def test_times_in_the_words_of_a_task_are_shown_like_other_times(room: WorkRoom) -> None:
    """An agent's own text may contain an invalid time."""
    await call(room, "add_task", "Ada", title="Mend it")
    await call(room, "claim_task", "Bo", ttl_seconds=60)
    room.clock.advance(timedelta(minutes=5))
    await call(room, "add_task", "Ada", title="Next")
    browser = room.browser()
    shown = r'its lease ended <time datetime="[^"]+" title="[^"]+ UTC">4 minutes ago'
    for address in (PAGE, f"{PAGE}?task=1"):
        assert re.search(shown, (await browser.get(address)).text), address
    await call(room, "claim_task", "Bo", task_id=1)
    late = {"task_id": 1, "epoch": 2, "state": "blocked", "reason": "<i> at 2023-99-99T10:00:00Z"}
    await call(room, "update_task", "Bo", **late)
    for address in (PAGE, f"{PAGE}?task=1"):
        assert "<bdi>Bo: &lt;i&gt; at 2023-99-99T10:00:00Z" in (await browser.get(address)).text, address
    form = [("form_token", hidden((await browser.get(PAGE)).text, "form_token")), ("name", "Ana")]
    await room.people_named.add("Ana", None)
    refused = (await post(browser, DECIDE, *form, ("task", "1"), ("do", "accept"))).text
    assert re.search(r"was blocked by Bo <time datetime=", refused)
