"""Tasks: each is claimed by one agent at a time, with its files, and finished with evidence."""

import random
from datetime import timedelta
from typing import Any

import pytest

from mail_room import HARBOR, Room, everything, room_in_memory
from postroom.contracts.errors import (
    AgentRetired,
    InvalidArgument,
    InvalidPattern,
    NotPermitted,
    TaskCircle,
    TaskNotHeld,
    TaskNotReady,
    UnknownAgent,
    UnknownTask,
)
from postroom.contracts.mail import Agent
from postroom.contracts.tasks import TaskDecision
from postroom.contracts.tokens import Grant
from postroom.mail.context import Caller
from postroom.mail.people import name_person
from postroom.mail.projects import PEOPLE_KEY
from postroom.mail.tasks import AT_ONCE, MAX_LOOKED_AT, decide_task
from postroom.stores.mail.access import MailWrites
from table_rows import each_row
from task_log import check_claims

room = room_in_memory

LEASE = timedelta(hours=1)
SECOND = timedelta(seconds=1)


async def add(room: Room, title: str = "Light the pier", *, by: str = "Ada", **more: Any) -> int:
    """Add a task and return its id."""
    return int((await room.call("add_task", agent_name=by, title=title, **more))["id"])


async def claim(room: Room, name: str, **more: Any) -> dict[str, Any]:
    """Claim the next task and return it; an empty dictionary if there is none."""
    answer = await room.call("claim_task", agent_name=name, **more)
    return answer["task"] or {}


async def done(room: Room, name: str, task: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Finish a claimed task."""
    held = {"task_id": task["id"], "epoch": task["epoch"]}
    answer: dict[str, Any] = await room.call("done_task", agent_name=name, **held, **more)
    return answer


async def task_of(room: Room, number: int) -> dict[str, Any]:
    """Return a task with all its texts."""
    [found] = (await room.call("list_tasks", task_id=number))["tasks"]
    return dict(found)


async def events(room: Room) -> list[dict[str, Any]]:
    """Return the log of the project."""
    found: list[dict[str, Any]] = (await room.call("fetch_events", limit=1000))["events"]
    return found


async def reserved(room: Room) -> list[tuple[str, str]]:
    """Return the reserved paths, each with its holder."""
    found = await room.call("list_file_reservations")
    return [(one["agent"], one["path"]) for one in found["reservations"]]


async def test_the_most_urgent_and_oldest_task_is_claimed_first(room: Room) -> None:
    await room.open()
    normal, low = await add(room), await add(room, priority="low")
    urgent, other = await add(room, priority="urgent"), await add(room)
    claimed = [await claim(room, "Ben") for _ in range(4)]
    assert [one["id"] for one in claimed] == [urgent, normal, other, low]
    assert {(one["state"], one["holder"], one["epoch"]) for one in claimed} == {("claimed", "Ben", 1)}
    answer = await room.call("claim_task", agent_name="Ben")
    assert answer == {
        "task": None,
        "held": [normal, low, urgent, other],
        "reason": "no task is ready for you",
    }


async def test_a_claim_reserves_the_files_and_leaves_out_tasks_whose_files_another_holds(room: Room) -> None:
    await room.open()
    await room.call("file_reservation_paths", agent_name="Cyd", paths=["docs/**"])
    docs, piers = await add(room, paths=["docs/a.md"], priority="high"), await add(room, paths=["piers/**"])
    inner, free = await add(room, paths=["piers/north.py"]), await add(room, paths=["lamps.py"])
    assert (await claim(room, "Ben"))["id"] == piers
    assert await reserved(room) == [("Cyd", "docs/**"), ("Ben", "piers/**")]
    assert (await claim(room, "Ada"))["id"] == free, "piers/north.py is within piers/**"
    answer = await room.call("claim_task", agent_name="Ada")
    assert (answer["task"], answer["reason"]) == (None, "Cyd, Ben reserved files of 2 ready tasks")
    refused = await room.refused(TaskNotReady, "claim_task", agent_name="Ada", task_id=inner)
    assert refused.message == f"Ben reserved files of task {inner}"
    own = await room.call("claim_task", agent_name="Ben")
    assert own["task"] is None, "the files of another task of the same agent are held, too"
    assert (await claim(room, "Cyd"))["id"] == docs, "its own reservation does not keep Cyd from the task"


async def test_a_task_is_for_its_agent_its_role_or_anybody(room: Room) -> None:
    await room.open()
    await add(room, assignee="Ben")
    added = await room.call("add_task", agent_name="Ada", title="Review", assignee="role:Reviewer")
    listed = (await room.call("list_tasks"))["tasks"]
    why = "only an agent that states the role reviewer can claim it"
    assert [added["reason"], *(one["reason"] for one in listed)] == [why, "", why]
    assert await claim(room, "Cyd") == {}
    assert (await claim(room, "Cyd", roles=["reviewer"]))["assignee"] == "role:reviewer"
    assert (await claim(room, "Ben", roles=["role:reviewer"]))["assignee"] == "Ben"
    third = await add(room, assignee="Ben")
    refused = await room.refused(TaskNotReady, "claim_task", agent_name="Cyd", task_id=third)
    assert refused.message == f"task {third} is for Ben"


async def test_a_task_waits_for_the_tasks_that_it_depends_on(room: Room) -> None:
    await room.open()
    first, second = await add(room), await add(room)
    last = await add(room, depends_on=[first, second, first])
    assert (await task_of(room, last))["depends_on"] == [first, second]
    one, two = await claim(room, "Ben"), await claim(room, "Cyd")
    assert await claim(room, "Ada") == {}
    refused = await room.refused(TaskNotReady, "claim_task", agent_name="Ada", task_id=last)
    assert refused.message == f"task {last} waits for 2 tasks that are not done"
    assert (await done(room, "Ben", one))["ready"] == []
    assert (await done(room, "Cyd", two))["ready"] == [last]
    assert (await claim(room, "Ada"))["id"] == last
    number = await add(room, depends_on=[first])
    assert (await claim(room, "Ada"))["id"] == number, "all tasks before it are done"


async def test_a_holder_that_is_gone_loses_the_task_after_the_lease_and_its_late_done_is_refused(
    room: Room,
) -> None:
    await room.open()
    number = await add(room, paths=["piers/**"])
    late = await claim(room, "Ben")
    room.clock.advance(LEASE - SECOND)
    assert await claim(room, "Cyd") == {}
    room.clock.advance(SECOND)
    refused = await room.refused(
        TaskNotHeld, "done_task", agent_name="Ben", task_id=number, epoch=late["epoch"]
    )
    assert "its lease ended at" in refused.message
    assert refused.remedy.startswith(f"call claim_task with `task_id` {number}")
    taken = await claim(room, "Cyd")
    assert (taken["id"], taken["epoch"], await reserved(room)) == (number, 2, [("Cyd", "piers/**")])
    refused = await room.refused(TaskNotHeld, "done_task", agent_name="Ben", task_id=number, epoch=1)
    assert f"is claimed by Cyd since {taken['changed_ts']} until {taken['lease_ends_ts']}" in refused.message
    assert refused.details == {
        "state": "claimed",
        "epoch": 2,
        "since": taken["changed_ts"],
        "given_epoch": 1,
    }
    await done(room, "Cyd", taken)
    refused = await room.refused(TaskNotHeld, "done_task", agent_name="Ben", task_id=number, epoch=1)
    assert "was done by Cyd at" in refused.message
    kinds = [one["kind"] for one in await events(room) if one["kind"].startswith("task.")]
    assert kinds == [
        *("task.added", "task.ready", "task.claimed", "task.lease_ended", "task.ready"),
        *("task.claimed", "task.done"),
    ]
    assert check_claims(await events(room)) == {}


async def test_a_claim_of_the_same_agent_under_an_older_epoch_is_refused(room: Room) -> None:
    """Two sessions may act as one agent."""
    await room.open()
    number = await add(room)
    first = await claim(room, "Ben")
    room.clock.advance(LEASE)
    second = await claim(room, "Ben")
    await room.refused(TaskNotHeld, "done_task", agent_name="Ben", task_id=number, epoch=first["epoch"])
    await done(room, "Ben", second)


async def test_activity_of_the_holder_renews_the_claim_and_its_files(room: Room) -> None:
    await room.open()
    await add(room, paths=["piers/**"])
    task = await claim(room, "Ben", ttl_seconds=600)
    for _ in range(5):
        room.clock.advance(timedelta(seconds=500))
        await room.send("Ben", "Ada")
    assert await reserved(room) == [("Ben", "piers/**")]
    await done(room, "Ben", task)
    assert await reserved(room) == []
    assert await claim(room, "Cyd") == {}


async def test_a_lost_answer_of_a_claim_is_given_again_under_its_key(room: Room) -> None:
    await room.open()
    await add(room)
    await add(room)
    once = await room.call("claim_task", agent_name="Ben", idempotency_key="k")
    assert await room.call("claim_task", agent_name="Ben", idempotency_key="k") == once
    again = await room.call("claim_task", agent_name="Ben", dry_run=True)
    assert again["held"] == [once["task"]["id"]], "without a key the answer names what the agent holds"
    task = once["task"]
    assert (await done(room, "Ben", task))["task"] == (await done(room, "Ben", task))["task"]
    sent = [one["subject"] for one in await room.inbox("Ada")]
    assert sent == ["Done: Light the pier"], "a repeated `done` sends nothing"


async def test_a_second_done_with_other_evidence_says_which_evidence_is_stored(room: Room) -> None:
    await room.open()
    await add(room)
    task = await claim(room, "Ben")
    first = await done(room, "Ben", task, commit="4f2a")
    assert "reason" not in first
    again = await done(room, "Ben", task, commit="9c1b", message="All lamps.")
    assert again["task"] == first["task"]
    since = first["task"]["changed_ts"]
    assert again["reason"] == (
        f'task 1 was done by Ben at {since} with commit "4f2a"; the evidence of this call was not stored'
    )
    await add(room, acceptance="person")
    checked = await claim(room, "Ben")
    await done(room, "Ben", checked)
    assert (
        "without evidence; the evidence of this" in (await done(room, "Ben", checked, commit="1"))["reason"]
    )


async def test_a_holder_that_gives_a_wrong_epoch_is_told_the_epoch_of_its_claim(room: Room) -> None:
    await room.open()
    number = await add(room)
    await claim(room, "Ben")
    for operation, more in (("done_task", {}), ("update_task", {"state": "ready"})):
        given = {"agent_name": "Ben", "task_id": number, "epoch": 7, **more}
        refused = await room.refused(TaskNotHeld, operation, **given)
        assert (
            refused.message
            == "Ben holds task 1 with epoch 1, but the call passes epoch 7; nothing was changed"
        )
        assert refused.remedy == "repeat the call with epoch 1"
    room.clock.advance(LEASE)
    assert (await claim(room, "Ben"))["epoch"] == 2
    refused = await room.refused(TaskNotHeld, "done_task", agent_name="Ben", task_id=number, epoch=1)
    assert refused.message == (
        "Ben holds task 1 with epoch 2, but the call passes epoch 1; nothing was changed"
    )
    assert refused.remedy == (
        "epoch 1 has ended: repeat the call with epoch 2 only if you claimed the task again; if another "
        "session "
        "of Ben claimed it, stop working on the task"
    )


async def test_a_dry_run_claims_nothing(room: Room) -> None:
    await room.open()
    number = await add(room, paths=["piers/**"])
    would = await room.call("claim_task", agent_name="Ben", dry_run=True)
    assert (would["task"]["id"], would["task"]["state"], would["held"]) == (number, "ready", [])
    assert await reserved(room) == []
    assert (await claim(room, "Cyd"))["epoch"] == 1


async def test_done_stores_the_evidence_and_tells_the_author_in_the_thread_of_the_task(room: Room) -> None:
    await room.open()
    number = await add(room, acceptance="make test")
    task = await claim(room, "Ben")
    refused = await room.refused(
        InvalidArgument, "done_task", agent_name="Ben", task_id=number, epoch=1, message="trust me"
    )
    assert "`make test`" in refused.message
    answer = await done(room, "Ben", task, commit="4f2a", output="12 passed\n```", message="It is lit.")
    found = answer["task"]
    assert (found["state"], found["holder"], found["commit"]) == ("done", "Ben", "4f2a")
    assert (found["output"], found["message"]) == ("12 passed\n```", "It is lit.")
    [mail] = await room.inbox("Ada")
    assert (mail["id"], mail["from"], mail["thread_id"]) == (answer["message_id"], "Ben", f"task-{number}")
    assert mail["body_md"] == "It is lit.\n\nCommit: `4f2a`\n\n````\n12 passed\n```\n````"


async def test_an_own_task_is_finished_without_mail_to_oneself(room: Room) -> None:
    await room.open()
    number = await add(room, by="Ben")
    await done(room, "Ben", await claim(room, "Ben"), message="Lit.")
    assert await room.inbox("Ben") == []
    thread = await room.call("fetch_thread", thread_id=f"task-{number}")
    assert [(one["from"], one["body_md"]) for one in thread["messages"]] == [("Ben", "Lit.")]


async def test_the_agent_of_a_task_that_becomes_ready_gets_it_as_a_message(room: Room) -> None:
    await room.open()
    first = await add(room, "Place the lamp")
    await add(room, "Switch it on", assignee="Cyd", depends_on=[first], text="Use the red switch.")
    assert await room.inbox("Cyd") == []
    answer = await done(room, "Ben", await claim(room, "Ben"))
    [mail] = await room.inbox("Cyd")
    assert mail["subject"] == "Ready: Switch it on"
    assert mail["body_md"].startswith("Use the red switch.\n\nTask 2 is ready for you")
    [told] = await room.inbox("Ada")
    assert told["body_md"] == f"Ready now: {answer['ready'][0]} (Switch it on)"
    await add(room, assignee="Ben", title="Paint it")
    assert [one["subject"] for one in await room.inbox("Ben")] == ["Ready: Paint it"]


async def test_a_blocked_task_says_on_what_and_is_claimed_by_nobody_until_it_is_ready(room: Room) -> None:
    await room.open()
    number = await add(room, paths=["piers/**"])
    await claim(room, "Ben")
    block = {"agent_name": "Ben", "task_id": number, "epoch": 1, "state": "blocked"}
    await room.refused(InvalidArgument, "update_task", **block)
    await room.refused(TaskNotHeld, "update_task", **{**block, "epoch": 2}, reason="no lamp")
    await room.refused(TaskNotHeld, "update_task", **{**block, "agent_name": "Cyd"}, reason="no lamp")
    await room.call("update_task", **block, reason="no lamp")
    blocked = await task_of(room, number)
    assert (blocked["reason"], blocked["changed_by"]) == ("no lamp", "Ben")
    assert [(one["subject"], one["body_md"]) for one in await room.inbox("Ada")] == [
        ("Blocked: Light the pier", "no lamp")
    ]
    assert (await reserved(room), await claim(room, "Cyd")) == ([], {})
    refused = await room.refused(TaskNotHeld, "done_task", agent_name="Ben", task_id=number, epoch=1)
    assert "was blocked by Ben at" in refused.message
    await room.call("update_task", agent_name="Ada", task_id=number, state="ready")
    assert (await claim(room, "Cyd"))["epoch"] == 2


async def test_a_task_that_nobody_holds_is_blocked_by_its_author_alone(room: Room) -> None:
    """An agent that may claim the task can claim it and then block it."""
    await room.open()
    ready = await add(room, assignee="Ben")
    for number in (ready, await add(room, depends_on=[ready])):
        block = {"task_id": number, "state": "blocked", "reason": "no lamp"}
        for name in ("Ben", "Cyd"):
            refused = await room.refused(NotPermitted, "update_task", agent_name=name, **block)
            assert refused.message == f"{name} cannot block task {number}: Ada added it"
            assert refused.remedy == "ask Ada, or claim the task, which its holder can block"
        blocked = await room.call("update_task", agent_name="Ada", **block)
        assert (blocked["state"], blocked["changed_by"]) == ("blocked", "Ada")
        await room.refused(NotPermitted, "update_task", agent_name="Ben", **{**block, "reason": "mine"})
        assert (await task_of(room, number))["reason"] == "no lamp"
    opened = await room.call("update_task", agent_name="Cyd", task_id=ready, state="ready")
    assert (opened["state"], opened["changed_by"]) == ("ready", "Cyd")


async def test_a_task_that_is_blocked_on_another_task_waits_for_it(room: Room) -> None:
    await room.open()
    number = await add(room)
    task = await claim(room, "Ben")
    lamp = await add(room, "Buy a lamp", by="Ben")
    held = {"agent_name": "Ben", "task_id": number, "epoch": task["epoch"]}
    blocked = await room.call("update_task", **held, state="blocked", depends_on=[lamp])
    assert (blocked["state"], blocked["depends_on"]) == ("waiting", [lamp])
    taken = await claim(room, "Cyd")
    assert taken["id"] == lamp
    assert (await done(room, "Cyd", taken))["ready"] == [number]


async def test_tasks_that_would_wait_for_each_other_are_refused(room: Room) -> None:
    await room.open()
    first = await add(room)
    second = await add(room, depends_on=[first])
    third = await add(room, depends_on=[second])
    refused = await room.refused(
        TaskCircle, "update_task", agent_name="Ada", task_id=first, depends_on=[third]
    )
    assert refused.details == {"circle": [first, third, second, first]}
    assert f"{first} waits for {third} waits for {second} waits for {first}" in refused.message
    await room.refused(TaskCircle, "update_task", agent_name="Ada", task_id=first, depends_on=[first])
    await room.call("update_task", agent_name="Ada", task_id=third, depends_on=[first])
    assert (await task_of(room, third))["depends_on"] == [first]
    await room.call("update_task", agent_name="Ada", task_id=third, depends_on=[])
    assert (await task_of(room, third))["state"] == "ready"


async def test_a_task_is_changed_while_nobody_holds_it(room: Room) -> None:
    await room.open()
    number = await add(room)
    new = {"title": "Light both piers", "text": "Red.", "paths": ["./piers/"], "priority": "high"}
    changed = await room.call(
        "update_task", agent_name="Ada", task_id=number, **new, assignee="Ben", acceptance="make test"
    )
    assert {name: changed[name] for name in ("title", "text", "priority", "assignee", "acceptance")} == {
        **{name: new[name] for name in ("title", "text", "priority")},
        "assignee": "Ben",
        "acceptance": "make test",
    }
    await claim(room, "Ben")
    for fixed in ({"acceptance": ""}, {"paths": []}, {"assignee": ""}, {"depends_on": []}):
        await room.refused(TaskNotReady, "update_task", agent_name="Ada", task_id=number, **fixed)
    renamed = await room.call("update_task", agent_name="Ada", task_id=number, title="Light them")
    assert (renamed["title"], renamed["state"], renamed["holder"]) == ("Light them", "claimed", "Ben")


DEMANDS: dict[str, Any] = {
    "acceptance": "",
    "assignee": "",
    "title": "Rest",
    "text": "Do nothing.",
    "depends_on": [],
}
"""What a task demands, each with a value that another agent wants."""


async def test_only_its_author_changes_what_a_task_demands(room: Room) -> None:
    await room.open()
    first = await add(room)
    number = await add(room, acceptance="person", assignee="Ben", text="Red.", depends_on=[first])
    stored = await task_of(room, number)
    for name, value in DEMANDS.items():
        for way in ({}, {"priority": "low"}, {"state": "blocked", "reason": "r"}, {"state": "ready"}):
            asked = {"agent_name": "Cyd", "task_id": number, name: value, **way}
            refused = await room.refused(NotPermitted, "update_task", caller=Caller(operator=True), **asked)
            assert refused.message == (
                f"Cyd cannot change the {name} of task {number}: only Ada, who added it, can; "
                "nothing was changed"
            )
            assert f"write to Ada in the thread task-{number}" in refused.remedy
    both = {"acceptance": "", "assignee": ""}
    refused = await room.refused(NotPermitted, "update_task", agent_name="Cyd", task_id=number, **both)
    assert refused.details == {"author": "Ada", "fields": ["assignee", "acceptance"]}
    assert await task_of(room, number) == stored
    assert "task.changed" not in [one["kind"] for one in await events(room)]
    await room.refused(TaskNotReady, "claim_task", agent_name="Cyd", task_id=number)
    changed = await room.call("update_task", agent_name="Cyd", task_id=number, priority="high", paths=["a"])
    assert (changed["priority"], changed["paths"], changed["acceptance"]) == ("high", ["a"], "person")
    await room.call("update_task", agent_name="Ada", task_id=number, **DEMANDS)
    assert (await claim(room, "Cyd", task_id=number))["title"] == "Rest"


async def test_the_holder_of_a_task_cannot_remove_that_a_person_must_accept_it(room: Room) -> None:
    await room.open()
    number = await add(room, acceptance="person")
    held = {"agent_name": "Ben", "task_id": number, "epoch": (await claim(room, "Ben"))["epoch"]}
    for name, value in DEMANDS.items():
        asked = {**held, name: value}
        await room.refused(NotPermitted, "update_task", **asked)
        await room.refused(NotPermitted, "update_task", **asked, state="ready")
        if name != "depends_on":
            await room.refused(NotPermitted, "update_task", **asked, state="blocked", reason="r")
    await room.call("update_task", **held, state="ready")
    await room.refused(NotPermitted, "update_task", agent_name="Ben", task_id=number, acceptance="")
    answer = await done(room, "Ben", await claim(room, "Ben"))
    assert answer["task"]["state"] == "review"


async def test_the_holder_is_told_what_the_author_changed_and_the_log_names_it(room: Room) -> None:
    await room.open()
    number = await add(room, text="Red.")
    await claim(room, "Ben")
    new = {"title": "Light both piers", "text": "Red.", "priority": "high"}
    await room.call("update_task", agent_name="Ada", task_id=number, **new)
    await room.call("update_task", agent_name="Ada", task_id=number, **new)
    await room.call("update_task", agent_name="Ada", task_id=number, text="Blue.", title="Light it")
    told = [
        (one["subject"], one["from"], one["thread_id"], one["body_md"]) for one in await room.inbox("Ben")
    ]
    read = f"Read it with list_tasks (`task_id` {number}) before you continue."
    assert sorted(told) == [
        (f"Changed: {title}", "Ada", f"task-{number}", f"Ada changed {what} of task {number}. {read}")
        for title, what in (("Light both piers", "the title"), ("Light it", "the title and text"))
    ]
    changes = [one["detail"] for one in await events(room) if one["kind"] == "task.changed"]
    assert changes == [
        {"task_id": number, "epoch": 1, "fields": fields} for fields in ("title priority", "title text")
    ]
    own = await add(room, by="Ben")
    await claim(room, "Ben", task_id=own)
    await room.call("update_task", agent_name="Ben", task_id=own, text="Mine.")
    assert len(await room.inbox("Ben")) == len(told), "nobody is told of their own change"
    free = await add(room)
    terms = {"acceptance": "make", "assignee": "Cyd", "depends_on": [own], "paths": ["a"]}
    await room.call("update_task", agent_name="Ada", task_id=free, **terms)
    assert (await events(room))[-1]["detail"]["fields"] == "paths assignee acceptance depends_on"


async def test_an_agent_that_claims_a_task_it_holds_is_told_its_epoch(room: Room) -> None:
    """The call is refused, because another session of the agent may have claimed the task."""
    await room.open()
    number = await add(room)
    await claim(room, "Ben")
    refused = await room.refused(TaskNotReady, "claim_task", agent_name="Ben", task_id=number)
    assert refused.remedy.startswith("you hold it with epoch 1: continue the work")
    refused = await room.refused(TaskNotReady, "claim_task", agent_name="Cyd", task_id=number)
    assert refused.remedy == "claim another task with claim_task"


async def test_a_cancelled_task_is_told_to_its_holder_whose_work_is_refused(room: Room) -> None:
    await room.open()
    number = await add(room, paths=["piers/**"])
    waiting = await add(room, depends_on=[number])
    await claim(room, "Ben")
    await room.refused(
        NotPermitted, "update_task", agent_name="Cyd", task_id=number, state="cancelled", reason="r"
    )
    await room.call("update_task", agent_name="Ada", task_id=number, state="cancelled", reason="no pier")
    [mail] = await room.inbox("Ben")
    assert mail["subject"] == "Cancelled: Light the pier"
    assert mail["body_md"] == f"Ada cancelled task {number}. no pier\n\nTasks that wait for it: {waiting}."
    assert await reserved(room) == []
    refused = await room.refused(TaskNotHeld, "done_task", agent_name="Ben", task_id=number, epoch=1)
    assert refused.message.endswith(": no pier; nothing was changed")
    await room.refused(TaskNotReady, "update_task", agent_name="Ada", task_id=number, state="ready")
    await room.refused(TaskNotReady, "add_task", agent_name="Ada", title="t", depends_on=[number])


async def test_only_its_author_and_its_holder_cancel_a_task_though_all_callers_share_the_servers_token(
    room: Room,
) -> None:
    await room.open()
    number = await add(room, by="Ada")
    cancel = {"task_id": number, "state": "cancelled", "reason": "no pier", "caller": Caller(operator=True)}
    refused = await room.refused(NotPermitted, "update_task", agent_name="Cyd", **cancel)
    assert refused.message == f"Cyd cannot cancel task {number}: Ada added it"
    assert f"`postroom tasks decide {number} cancel --by NAME`" in refused.remedy
    await claim(room, "Ben", ttl_seconds=600)
    refused = await room.refused(NotPermitted, "update_task", agent_name="Cyd", **cancel)
    assert refused.message == f"Cyd cannot cancel task {number}: Ada added it, and Ben holds it"
    room.clock.advance(timedelta(seconds=601))
    await room.refused(NotPermitted, "update_task", agent_name="Ben", **cancel)
    assert (await task_of(room, number))["state"] == "ready", "a refusal changes nothing"
    await claim(room, "Cyd")
    await room.call("update_task", agent_name="Cyd", **cancel)
    assert [one["subject"] for one in await room.inbox("Ada")] == ["Cancelled: Light the pier"]


@pytest.mark.parametrize("read", ["fetch_inbox", "list_tasks"])
async def test_a_holder_that_only_reads_keeps_its_claim_and_its_files(room: Room, read: str) -> None:
    """`fetch_inbox` names the agent, and `list_tasks` is called in the agent's run."""
    await room.open()
    await add(room, paths=["piers/**"])
    task = await claim(room, "Ben", ttl_seconds=600)
    ben = (await room.call("whois", agent_name="Ben"))["id"]
    asked = {"agent_name": "Ben"} if read == "fetch_inbox" else {"caller": Caller(agent_id=ben)}
    ends = set[str]()
    for second in range(10, 1201, 10):
        room.clock.advance(10 * SECOND)
        await room.call(read, **asked)
        [held] = (await room.call("list_tasks", caller=Caller()))["tasks"]
        assert held["holder"] == "Ben", f"lost after {second} s"
        ends.add(held["lease_ends_ts"])
    assert len(ends) == 1 + 1200 // 150, "each renewal is a write: once a quarter of the lease has passed"
    assert await reserved(room) == [("Ben", "piers/**")]
    await done(room, "Ben", task)


async def test_reading_renews_no_claim_of_another_and_none_that_has_ended(room: Room) -> None:
    await room.open()
    number = await add(room)
    task = await claim(room, "Ben", ttl_seconds=600)
    room.clock.advance(timedelta(seconds=500))
    for asked in ({"agent_name": "Cyd"}, {"agent_name": "Ben", "caller": reading_token()}):
        await room.call("fetch_inbox", **asked)
    [held] = (await room.call("list_tasks"))["tasks"]
    assert held["lease_ends_ts"] == task["lease_ends_ts"]
    room.clock.advance(timedelta(seconds=100))
    await room.call("fetch_inbox", agent_name="Ben")
    refused = await room.refused(TaskNotHeld, "done_task", agent_name="Ben", task_id=number, epoch=1)
    assert "its lease ended at" in refused.message


def reading_token() -> Caller:
    """Return a caller whose named token may only read."""
    return Caller(grant=Grant(token_id="t", name="monitor", scopes=frozenset({"mail:read"})))


async def test_a_person_accepts_or_rejects_a_task_and_others_wait_for_it(room: Room) -> None:
    await room.open()
    await name_person(room.mail, "kim", None)
    number = await add(room, acceptance="person")
    after = await add(room, depends_on=[number])
    answer = await done(room, "Ben", await claim(room, "Ben"), message="Look.")
    assert (answer["task"]["state"], answer["ready"]) == ("review", [])
    assert [one["subject"] for one in await room.inbox("Ada")] == ["Check: Light the pier"]
    refused = await room.refused(TaskNotReady, "claim_task", agent_name="Cyd", task_id=number)
    assert "waits for a person's check since Ben finished it" in refused.message

    def decide(tx: MailWrites, answer: TaskDecision, why: str = "") -> str:
        home, project = tx.project(PEOPLE_KEY), tx.project(HARBOR)
        assert home is not None
        assert project is not None
        tx.lock_projects({home.id, project.id})
        kim = tx.agent(home.id, "kim")
        assert isinstance(kim, Agent)
        context = room.mail.context(tx, Caller(postroom=True, operator=True))
        return decide_task(context, project, number, home=home, by=kim, answer=answer, why=why).state

    with pytest.raises(InvalidArgument):
        await room.store.write(lambda tx: decide(tx, "no"))
    assert await room.store.write(lambda tx: decide(tx, "no", why="It is dark.")) == "ready"
    [told] = await room.inbox("Ben")
    assert (told["subject"], told["from"]) == ("Rejected: Light the pier", "human:kim")
    await done(room, "Ben", await claim(room, "Ben"))
    assert await room.store.write(lambda tx: decide(tx, "yes")) == "done"
    for answer in ("yes", "cancel"):
        with pytest.raises(TaskNotReady, match="was done by Ben"):
            await room.store.write(lambda tx, said=answer: decide(tx, said))
    assert (await claim(room, "Cyd"))["id"] == after


async def test_a_retired_agent_holds_no_task(room: Room) -> None:
    await room.open()
    await add(room, paths=["piers/**"])
    await claim(room, "Ben")
    await room.call("retire_agent", agent_name="Ben")
    assert await reserved(room) == []
    assert (await claim(room, "Cyd"))["epoch"] == 2
    assert check_claims(await events(room)) == {1: ("Cyd", 2)}


async def test_a_task_of_a_retired_agent_is_refused_with_who_can_assign_it_to_another(room: Room) -> None:
    await room.open()
    number = await add(room, assignee="Ben")
    refused = await room.refused(TaskNotReady, "claim_task", agent_name="Cyd", task_id=number)
    assert (refused.message, "claim another task" in (refused.remedy or "")) == ("task 1 is for Ben", True)
    await room.call("retire_agent", agent_name="Ben")
    refused = await room.refused(TaskNotReady, "claim_task", agent_name="Cyd", task_id=number)
    assert refused.message == "task 1 is for Ben, who is retired"
    assert "its author Ada can assign it to another agent with update_task" in (refused.remedy or "")


async def test_an_author_who_blocks_a_task_of_another_is_not_told_to_stop_working(room: Room) -> None:
    await room.open()
    number = await add(room)
    await claim(room, "Ben")
    blocked = {"agent_name": "Ada", "task_id": number, "state": "blocked", "reason": "No lamp."}
    refused = await room.refused(TaskNotHeld, "update_task", **blocked)
    assert "is claimed by Ben" in refused.message
    assert refused.remedy == "ask its holder to block it or give it back; or cancel it with update_task"
    await room.call("update_task", **{**blocked, "state": "cancelled"})


async def test_no_task_is_assigned_to_a_retired_agent(room: Room) -> None:
    await room.open()
    number = await add(room)
    await room.call("retire_agent", agent_name="Cyd")
    before = await everything(room.store)
    for tool, more in (("add_task", {"title": "Paint it"}), ("update_task", {"task_id": number})):
        refused = await room.refused(AgentRetired, tool, agent_name="Ada", assignee="Cyd", **more)
        assert (refused.message, refused.value) == ("Cyd is retired", "Cyd")
        assert "assign the task to another agent" in refused.remedy
    assert await everything(room.store) == before
    await room.call("unretire_agent", agent_name="Cyd")
    assert (await claim(room, "Cyd", task_id=await add(room, assignee="Cyd")))["holder"] == "Cyd"


async def test_the_authors_of_tasks_for_an_agent_that_is_retired_are_told_and_the_list_shows_it(
    room: Room,
) -> None:
    await room.open()
    held = await add(room, "Light the pier", assignee="Ben")
    await claim(room, "Ben", task_id=held)
    waiting = await add(room, "Announce it", assignee="Ben", depends_on=[held])
    finished = await add(room, "Paint it", assignee="Ben", acceptance="person")
    await done(room, "Ben", await claim(room, "Ben", task_id=finished))
    blocked = await add(room, "Sell it", by="Cyd", assignee="Ben")
    await room.call("update_task", agent_name="Cyd", task_id=blocked, state="blocked", reason="no buyer")
    own, free = await add(room, "Rest", by="Ben", assignee="Ben"), await add(room, "Buy a lamp")
    for name in ("Ada", "Cyd"):
        for read in await room.inbox(name):
            await room.call("mark_message_read", agent_name=name, message_id=read["id"])
    await room.call("retire_agent", agent_name="Ben")
    await room.call("retire_agent", agent_name="Ben")

    told = {name: [one for one in await room.inbox(name) if not one["read_at"]] for name in ("Ada", "Cyd")}
    begin = "Ben was retired, so nobody can claim these tasks for Ben:\n\n"
    end = "\n\nAssign each of them to others with update_task, or cancel it."
    assert {
        name: [(one["subject"], one["thread_id"], one["body_md"]) for one in mail]
        for name, mail in told.items()
    } == {
        "Ada": [
            (
                "Ben was retired",
                f"task-{held}",
                f"{begin}- {held} (Light the pier)\n- {waiting} (Announce it){end}",
            )
        ],
        "Cyd": [("Ben was retired", f"task-{blocked}", f"{begin}- {blocked} (Sell it){end}")],
    }
    gone = "Ben is retired, so nobody can claim the task"
    reasons = {one["id"]: one["reason"] for one in (await room.call("list_tasks"))["tasks"]}
    assert reasons == {
        held: f"Ben was retired; {gone}",
        waiting: gone,
        blocked: f"no buyer; {gone}",
        own: gone,
        finished: "",
        free: "",
    }
    await room.call("update_task", agent_name="Ada", task_id=held, assignee="Cyd")
    assert (await claim(room, "Cyd"))["id"] == held
    await room.call("unretire_agent", agent_name="Ben")
    assert (await task_of(room, waiting))["reason"] == ""


async def test_one_message_names_the_first_tasks_for_an_agent_that_is_retired(room: Room) -> None:
    await room.open()
    for number in range(AT_ONCE + 7):
        await add(room, f"task {number}", assignee="Ben")
    before = len(await room.inbox("Ada"))
    await room.call("retire_agent", agent_name="Ben")
    mail = await room.inbox("Ada")
    assert len(mail) == before + 1
    assert f"- {AT_ONCE} (task {AT_ONCE - 1})\n- 7 more\n" in mail[0]["body_md"]


async def test_open_tasks_are_listed_in_pages_those_to_claim_first(room: Room) -> None:
    await room.open()
    numbers = [await add(room, f"task {number}") for number in range(5)]
    urgent = await add(room, priority="urgent")
    waiting = await add(room, depends_on=numbers)
    held, over = await claim(room, "Ben"), await claim(room, "Cyd")
    await done(room, "Cyd", over)
    expected = [*numbers[1:], urgent, waiting]
    assert (held["id"], over["id"]) == (urgent, numbers[0])
    for limit in (1, 2, 3, 50):
        found, after = list[int](), ""
        while True:
            page = await room.call("list_tasks", limit=limit, after=after)
            found += [one["id"] for one in page["tasks"]]
            if page["next"] is None:
                break
            after = page["next"]
        assert found == expected, limit
    again = await claim(room, "Cyd")
    await done(room, "Cyd", again)
    newest = await room.call("list_tasks", state="done", limit=1)
    older = await room.call("list_tasks", state="done", limit=1, after=newest["next"])
    assert {one["id"] for page in (newest, older) for one in page["tasks"]} == {over["id"], again["id"]}
    assert "text" not in newest["tasks"][0]
    await room.refused(InvalidArgument, "list_tasks", after="ready.x.1")
    await room.refused(InvalidArgument, "list_tasks", after="done.1.1")


async def test_a_claim_looks_at_a_bounded_number_of_tasks_whose_files_others_hold(room: Room) -> None:
    await room.open()
    await room.call("file_reservation_paths", agent_name="Cyd", paths=["src/**"])
    for number in range(MAX_LOOKED_AT + 1):
        await add(room, f"task {number}", paths=[f"src/{number}.py"])
    answer = await room.call("claim_task", agent_name="Ben")
    assert answer["reason"] == f"Cyd reserved files of the first {MAX_LOOKED_AT} ready tasks"


@each_row(
    "kind, operation, arguments",
    [
        (UnknownTask, "claim_task", {"task_id": 99}),
        (UnknownTask, "done_task", {"task_id": 99, "epoch": 1}),
        (UnknownTask, "update_task", {"task_id": 99, "title": "t"}),
        (UnknownTask, "list_tasks", {"task_id": 99}),
        (UnknownTask, "add_task", {"title": "t", "depends_on": [99]}),
        (UnknownAgent, "add_task", {"title": "t", "assignee": "Nobody"}),
        (InvalidArgument, "add_task", {"title": "t", "assignee": "role:two words"}),
        (InvalidArgument, "add_task", {"title": " "}),
        (InvalidArgument, "add_task", {"title": "two\nlines"}),
        (InvalidArgument, "add_task", {"title": "two\u2028lines"}),
        (InvalidArgument, "add_task", {"title": "x" * 201}),
        (InvalidArgument, "add_task", {"title": "t", "priority": "soon"}),
        (InvalidPattern, "add_task", {"title": "t", "paths": ["../secret"]}),
        (InvalidArgument, "claim_task", {"roles": [""]}),
        (InvalidArgument, "claim_task", {"ttl_seconds": 31_000_000}),
        (InvalidArgument, "done_task", {"task_id": 1, "epoch": 0}),
        (InvalidArgument, "update_task", {"task_id": 1, "state": "done"}),
    ],
)
async def test_bad_input_is_refused_and_changes_nothing(
    room: Room, kind: type[Any], operation: str, arguments: dict[str, Any]
) -> None:
    await room.open()
    await add(room)
    who = {} if operation == "list_tasks" else {"agent_name": "Ada"}
    await room.refused(kind, operation, **who, **arguments)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_agents_do_no_task_has_two_holders_and_none_is_lost(room: Room, seed: int) -> None:
    """Agents claim, finish, give back and block tasks, and freeze beyond their leases."""
    draw, names = random.Random(seed), ["Ada", "Ben", "Cyd", "Dot"]
    await room.open(*names)
    numbers = list[int]()
    for number in range(30):
        depends_on = draw.sample(numbers, min(len(numbers), draw.choice((0, 0, 1, 2))))
        paths = [f"src/{draw.randrange(6)}.py"] if draw.random() < 0.7 else []
        numbers.append(await add(room, f"task {number}", depends_on=depends_on, paths=paths))
    claims, refused, finished = list[tuple[str, dict[str, Any]]](), 0, list[int]()
    for _ in range(2_000):
        name, act = draw.choice(names), draw.random()
        if act < 0.4 and (task := await claim(room, name, ttl_seconds=draw.choice((60, 600)))):
            claims.append((name, task))
        elif act < 0.8 and claims:
            name, task = claims.pop(draw.randrange(len(claims)))
            held = {"agent_name": name, "task_id": task["id"], "epoch": task["epoch"]}
            try:
                if draw.random() < 0.7:
                    await room.call("done_task", **held)
                    finished.append(task["id"])
                else:
                    await room.call("update_task", **held, state="ready")
            except TaskNotHeld:
                refused += 1
        else:
            room.clock.advance(timedelta(seconds=draw.choice((1, 10, 50))))
        if len(finished) == len(numbers):
            break
    assert check_claims(await events(room)) == {}
    assert sorted(finished) == numbers
    assert refused


@each_row("word", ["anybody", "Anyone", " any agent "])
async def test_a_task_for_anybody_is_for_every_agent_unless_an_agent_has_that_name(
    room: Room, word: str
) -> None:
    await room.open()
    number = await add(room, assignee=word)
    assert (await task_of(room, number))["assignee"] == ""
    assert (await claim(room, "Ben"))["id"] == number
    named = await add(room, assignee="Ben")
    await room.call("update_task", agent_name="Ada", task_id=named, assignee=word)
    assert (await claim(room, "Cyd"))["id"] == named
    if " " not in word.strip():
        await room.open(word)
        assert (await task_of(room, await add(room, assignee=word)))["assignee"] == word
        assert await claim(room, "Cyd") == {}


@each_row(
    "written, kept",
    [("None", ""), ("A person", "person"), ("HUMAN", "person"), ("make person", "make person")],
)
async def test_the_acceptance_of_a_task_is_none_a_person_or_a_command(
    room: Room, written: str, kept: str
) -> None:
    await room.open()
    number = await add(room, acceptance=written)
    task = await claim(room, "Ben")
    assert task["acceptance"] == kept
    if kept == "make person":
        await room.refused(
            InvalidArgument, "done_task", agent_name="Ben", task_id=number, epoch=task["epoch"]
        )
    else:
        assert (await done(room, "Ben", task))["task"]["state"] == ("review" if kept else "done")
