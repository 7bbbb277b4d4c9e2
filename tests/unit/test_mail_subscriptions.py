"""Subscriptions that are refused, listed and ended; `waking/test_subscriptions.py` has their messages."""

from typing import Any

from mail_room import Room, room_in_memory
from postroom.contracts.errors import (
    EventNotReported,
    InvalidArgument,
    InvalidPattern,
    TaskNotReady,
    TooLarge,
    UnknownAgent,
    UnknownSubscription,
    UnknownTask,
)
from postroom.contracts.subscriptions import MAX_OF_AGENT
from table_rows import each_row

room = room_in_memory


async def add(room: Room, kind: str, about: str = "", **more: Any) -> int:
    """Subscribe Ada and return the id of the subscription."""
    made = await room.call("subscribe", agent_name="Ada", kind=kind, about=about, **more)
    return int(made["id"])


@each_row(
    "kind, watched, about",
    [
        (EventNotReported, "branch_merged", "main"),
        (UnknownAgent, "agent_idle", "Nobody"),
        (InvalidArgument, "agent_idle", "Ada"),
        (InvalidArgument, "agent_idle", ""),
        (UnknownTask, "task_ready", "9"),
        (InvalidArgument, "task_ready", "one"),
        (InvalidArgument, "file_changed", " "),
        (InvalidArgument, "file_changed", "{a,b}"),
        (InvalidPattern, "file_changed", "../x"),
        (InvalidArgument, "sunrise", ""),
    ],
)
async def test_what_cannot_be_watched_is_refused(
    room: Room, kind: type[Any], watched: str, about: str
) -> None:
    await room.open()
    await room.refused(kind, "subscribe", agent_name="Ada", kind=watched, about=about)


async def test_an_agent_lists_and_ends_its_own_subscriptions(room: Room) -> None:
    await room.open()
    first = await add(room, "agent_idle", "ben")
    assert await add(room, "agent_idle", "Ben") == first
    second = await add(room, "file_changed", "src/", once=True)
    listed = await room.call("list_subscriptions", agent_name="Ada")
    shown = [(one["id"], one["kind"], one["about"], one["once"]) for one in listed["subscriptions"]]
    assert shown == [(first, "agent_idle", "Ben", False), (second, "file_changed", "src/**", True)]
    await room.refused(UnknownSubscription, "end_subscription", agent_name="Ben", subscription_id=first)
    left = await room.call("end_subscription", agent_name="Ada", subscription_id=first)
    assert [one["id"] for one in left["subscriptions"]] == [second]
    await room.refused(UnknownSubscription, "end_subscription", agent_name="Ada", subscription_id=first)


async def test_an_agent_has_a_limit_of_subscriptions(room: Room) -> None:
    await room.open()
    for number in range(MAX_OF_AGENT):
        await add(room, "file_changed", f"src/{number}.py")
    more = {"agent_name": "Ada", "kind": "file_changed", "about": "src/more.py"}
    await room.refused(TooLarge, "subscribe", **more)
    assert await add(room, "file_changed", "src/0.py") == 1


@each_row("about", ["1", "task-1", "Task #1", "#1", " task 1 "])
async def test_the_id_of_a_task_to_watch_is_read_in_each_form(room: Room, about: str) -> None:
    await room.open()
    await room.call("add_task", agent_name="Ada", title="Light the pier")
    made = await room.call("subscribe", agent_name="Ada", kind="task_ready", about=about)
    assert (made["about"], made["now"]) == ("1", "task 1 is ready")


async def test_a_task_that_has_ended_is_refused_with_its_state(room: Room) -> None:
    await room.open()
    for number in (1, 2):
        await room.call("add_task", agent_name="Ada", title="Light the pier")
        task = (await room.call("claim_task", agent_name="Ben"))["task"]
        held = {"agent_name": "Ben", "task_id": number, "epoch": task["epoch"]}
        if number == 1:
            await room.call("done_task", **held)
        else:
            await room.call("update_task", **held, state="cancelled", reason="No pier.")
    for number, state in ((1, "was done by Ben"), (2, "was cancelled by Ben")):
        watched = {"agent_name": "Ada", "kind": "task_ready", "about": str(number)}
        refused = await room.refused(TaskNotReady, "subscribe", **watched)
        assert f"task {number} {state}" in refused.message
        assert refused.message.endswith("so it will not become ready")


async def test_a_text_for_several_patterns_is_refused_with_each_pattern(room: Room) -> None:
    await room.open()
    watched = {"agent_name": "Ada", "kind": "file_changed", "about": "src/{a,b}.py"}
    refused = await room.refused(InvalidArgument, "subscribe", **watched)
    assert refused.remedy == "make one call for each: src/a.py, src/b.py"
