"""Subscriptions that are refused, listed and ended; `waking/test_subscriptions.py` has their messages."""

from typing import Any

from mail_room import Room, room_in_memory
from postroom.contracts.errors import (
    EventNotReported,
    InvalidArgument,
    InvalidPattern,
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
