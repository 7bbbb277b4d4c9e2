"""Following an inbox: who waits is answered when something comes, and no message comes twice or never."""

import asyncio
from typing import Any

import pytest

from machine import PATIENCE
from mail_room import HARBOR, Room, room_in_memory
from postroom.contracts import errors
from postroom.mail.context import Rules
from postroom.mail.service import Mail
from postroom.services.following import Following
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from table_rows import each_row

room = room_in_memory


async def look(room: Room, after: int | None, *, wait: float = 0, **more: Any) -> Any:
    body = {"project_key": HARBOR, "agent_name": "Ben", "wait_seconds": wait, **more}
    return await Following(room.mail).messages(body if after is None else {**body, "after": after})


async def test_without_a_cursor_one_begins_at_the_end(room: Room) -> None:
    await room.open()
    await room.send("Ada", "Ben")
    found = await look(room, None, wait=30)
    assert (found["events"], found["next"]) == ([], 1)


async def test_who_waits_is_answered_when_a_message_comes(room: Room) -> None:
    await room.open()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        waits = [group.create_task(look(room, 0, wait=30)) for _ in range(3)]
        await asyncio.sleep(0)
        await room.send("Ada", "Cyd")
        sent = await room.send("Ada", "Ben")
    assert [[one["id"] for one in task.result()["events"]] for task in waits] == [[sent]] * 3


async def test_messages_that_were_shown_are_announced(room: Room) -> None:
    await room.open()
    first, second = await room.send("Ada", "Ben"), await room.send("Ada", "Ben")
    await look(room, 1, shown=[first])
    states = {}
    for sent in (first, second):
        found = await room.call("delivery_status", agent_name="Ada", message_id=sent)
        states[sent] = (found["recipients"][0]["state"], found["recipients"][0]["announced_by"])
    assert states == {first: ("announced", "watch"), second: ("stored", None)}


@each_row(
    "body, kind",
    [
        *(({"after": 1}, errors.CursorAhead), ({"agent_name": "Nobody"}, errors.UnknownAgent)),
        *(({"project_key": "/nowhere"}, errors.UnknownProject), ({"after": -1}, errors.InvalidArgument)),
        *(({"wait_seconds": 31}, errors.InvalidArgument), ({"shown": [0]}, errors.InvalidArgument)),
        ({"more": 1}, errors.InvalidArgument),
    ],
)
async def test_what_cannot_be_followed_is_refused(
    room: Room, body: dict[str, Any], kind: type[errors.PostroomError]
) -> None:
    await room.open()
    with pytest.raises(kind):
        await Following(room.mail).messages({"project_key": HARBOR, "agent_name": "Ben", **body})


async def test_where_agents_prove_who_they_are_a_watcher_does_too(clock: ManualClock) -> None:
    store = SqliteStore.in_memory(clock)
    open_room, strict = (Room(Mail(store, clock, Rules(verified=one)), clock) for one in (False, True))
    await open_room.open()
    with pytest.raises(errors.TokenRequired):
        await look(strict, 0)
    store.close()
