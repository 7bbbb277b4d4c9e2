"""Tasks on both engines: rows, order, pages, and a claim of which only one of many at once succeeds."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from conformance.boxes import on_both
from mail_room import Room, a_room
from postroom.contracts.errors import TaskNotHeld
from postroom.stores.mail.store import MailStore
from postroom.testing import ManualClock
from task_log import check_claims

CREW = tuple(f"Mate{number}" for number in range(12))


@pytest.fixture
def room(mail_store: MailStore, clock: ManualClock) -> Room:
    return a_room(mail_store, clock)


async def _listed(room: Room, **more: Any) -> list[int]:
    found, after = list[int](), ""
    while True:
        page = await room.call("list_tasks", limit=2, after=after, **more)
        found += [one["id"] for one in page["tasks"]]
        if page["next"] is None:
            return found
        after = page["next"]


@on_both
async def test_many_agents_at_once_hold_and_finish_each_task_once(room: Room) -> None:
    await room.open(*CREW)
    numbers = list[int]()
    for number in range(24):
        task = {"title": f"task {number}", "paths": [f"src/{number % 9}.py"], "depends_on": numbers[-1:]}
        if number % 3:
            task["depends_on"] = []
        added = await room.call("add_task", agent_name=CREW[0], **task)
        numbers.append(added["id"])
    finished = list[int]()

    async def works(name: str) -> None:
        while len(finished) < len(numbers):
            task = (await room.call("claim_task", agent_name=name))["task"]
            if task is None:
                await asyncio.sleep(0)
                continue
            await room.call("done_task", agent_name=name, task_id=task["id"], epoch=task["epoch"])
            finished.append(task["id"])

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for name in CREW:
            group.create_task(works(name))
    assert sorted(finished) == numbers
    log = await room.call("fetch_events", limit=1000)
    assert check_claims(log["events"]) == {}
    assert (await room.call("list_file_reservations"))["reservations"] == []


@on_both
async def test_rows_are_listed_changed_and_found_alike(room: Room, clock: ManualClock) -> None:
    await room.open("Ada", "Ben")
    priorities = ("low", "urgent", "normal", "urgent")
    for priority in priorities:
        await room.call("add_task", agent_name="Ada", title="Grüße an\u00a0Bö", priority=priority)
    await room.call("add_task", agent_name="Ada", title="last", depends_on=[1, 2], assignee="role:x")
    assert await _listed(room) == [2, 4, 3, 1, 5]
    assert await _listed(room, state="waiting") == [5]
    late = (await room.call("claim_task", agent_name="Ben", ttl_seconds=60))["task"]
    clock.advance(timedelta(minutes=1))
    again = (await room.call("claim_task", agent_name="Ada", task_id=late["id"]))["task"]
    assert (late["id"], late["epoch"], again["epoch"], again["title"]) == (2, 1, 2, "Grüße an\u00a0Bö")
    with pytest.raises(TaskNotHeld):
        await room.call("done_task", agent_name="Ben", task_id=2, epoch=1)
    await room.call("done_task", agent_name="Ada", task_id=2, epoch=2, output="ok")
    await room.call("update_task", agent_name="Ada", task_id=4, state="cancelled", reason="r")
    one = (await room.call("claim_task", agent_name="Ada", task_id=1))["task"]
    done = await room.call("done_task", agent_name="Ada", task_id=1, epoch=one["epoch"])
    assert done["ready"] == [5]
    assert await _listed(room) == [3, 5]
    assert sorted(await _listed(room, state="done")) == [1, 2]
    assert await _listed(room, state="cancelled") == [4]
    log = await room.call("fetch_events", limit=1000)
    assert check_claims(log["events"]) == {}


@on_both
async def test_tasks_for_an_agent_that_is_retired_are_found_and_their_authors_told(room: Room) -> None:
    await room.open("Ada", "Ben")
    for terms in ({}, {"depends_on": [1]}, {"assignee": ""}):
        await room.call("add_task", agent_name="Ada", **{"title": "t", "assignee": "Ben", **terms})
    await room.call("claim_task", agent_name="Ben", task_id=1)
    await room.call("retire_agent", agent_name="Ben")
    [mail] = await room.inbox("Ada")
    assert [line for line in mail["body_md"].splitlines() if line.startswith("-")] == ["- 1 (t)", "- 2 (t)"]
    listed = (await room.call("list_tasks"))["tasks"]
    assert {one["id"] for one in listed if "Ben is retired" in one["reason"]} == {1, 2}


@on_both
async def test_a_read_renews_a_claim_once_a_quarter_of_its_lease_has_passed_and_reviews_are_counted(
    room: Room, clock: ManualClock
) -> None:
    await room.open("Ada", "Ben")
    for _ in range(3):
        await room.call("add_task", agent_name="Ada", title="Mend", acceptance="person")
    ends = []
    task = (await room.call("claim_task", agent_name="Ben", ttl_seconds=100))["task"]
    for seconds in (24, 1, 24, 75, 100):
        clock.advance(timedelta(seconds=seconds))
        await room.call("fetch_inbox", agent_name="Ben")
        [held] = (await room.call("list_tasks", task_id=1))["tasks"]
        ends.append(held["lease_ends_ts"])
    assert ends[0] == task["lease_ends_ts"]
    assert ends[0] < ends[1] == ends[2] < ends[3], "renewed after 25 s, and again 99 s later"
    assert ends[4] is None, "a claim that has ended is not renewed"
    project = (await room.call("show_project"))["id"]
    for number in range(3):
        epoch = (await room.call("claim_task", agent_name="Ben", task_id=number + 1))["task"]["epoch"]
        await room.call("done_task", agent_name="Ben", task_id=number + 1, epoch=epoch)
    counts = [
        await room.store.read(lambda tx, at_most=most: tx.count_reviews(project, limit=at_most))
        for most in (2, 9)
    ]
    assert counts == [2, 3]
