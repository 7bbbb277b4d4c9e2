"""The log of a project: what each change tells, who may see it, and how it is followed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from machine import PATIENCE
from mail_room import CHANGES, HARBOR, RUN_OF_ADA, SHORE, Room, furnish, in_memory, room_in_memory
from postroom.contracts import errors
from postroom.mail.commands import FollowEvents
from postroom.mail.context import Caller, Rules, token_hash
from postroom.services.following import EventFollowing
from postroom.testing import ManualClock
from table_rows import each_row

room = room_in_memory
OPERATOR = Caller(operator=True)

TELLS: dict[str, list[str]] = {
    "ensure_project": [],
    "start_session": ["agent.registered", "reservation.made"],
    **{"register_agent": ["agent.registered"], "create_agent_identity": ["agent.registered"]},
    **{"retire_agent": ["agent.retired"], "unretire_agent": ["agent.unretired"]},
    **{"send_message": ["message.sent"], "reply_message": ["message.sent"]},
    **{"recall_message": ["message.recalled"], "mark_message_read": ["delivery.read"]},
    "acknowledge_message": ["delivery.read", "delivery.acknowledged"],
    **{"ask_person": ["question.asked"], "request_contact": ["contact.asked"]},
    **{"respond_contact": ["contact.granted"], "set_contact_policy": ["agent.policy_set"]},
    "file_reservation_paths": ["reservation.made", "reservation.made"],
    "release_file_reservations": ["reservation.released", "reservation.released"],
    "renew_file_reservations": ["reservation.renewed", "reservation.renewed"],
    "force_release_file_reservation": ["reservation.taken", "message.sent"],
    "claim_task": ["task.claimed"],
    "add_task": ["task.added", "task.ready"],
    "add_note": ["note.added"],
    "end_note": ["note.ended"],
    **{"subscribe": [], "end_subscription": []},
    "update_task": ["task.changed"],
    "done_task": ["task.done", "message.sent"],
}
"""The entries of each change of the table in the log of its project; `ensure_project` makes another."""


async def newest(room: Room) -> int:
    return int((await room.call("fetch_events", after=0, caller=OPERATOR))["newest"])


async def kinds(room: Room, after: int = 0, caller: Caller = OPERATOR, **more: Any) -> list[str]:
    found = await room.call("fetch_events", after=after, limit=1_000, caller=caller, **more)
    return [one["kind"] for one in found["events"]]


async def token_of(room: Room, name: str, project: str = HARBOR) -> Caller:
    token = f"pra_{name}_{project}"
    await room.mail.issue_token(project, name, token_hash(token))
    return Caller(agent_token=token)


def test_every_change_is_in_the_table() -> None:
    assert TELLS.keys() == CHANGES.keys()


@each_row("name", TELLS)
async def test_each_change_tells_what_happened_once_however_often_it_is_sent(
    clock: ManualClock, name: str
) -> None:
    with in_memory(clock) as room:
        await furnish(room)
        before = await newest(room)
        for _ in range(3):
            await room.call(name, **CHANGES[name].arguments, idempotency_key="k")
        assert await kinds(room, before) == TELLS[name]


async def test_an_entry_says_who_and_what_and_repeats_no_words(room: Room) -> None:
    await room.open()
    sent = await room.send("Ada", "Ben", subject="SECRET", body_md="SECRET", thread_id="t", importance="high")
    held = await room.call("file_reservation_paths", agent_name="Ben", paths=["src/"], reason="SECRET")
    found = await room.call("fetch_events", after=4, caller=OPERATOR)
    assert "SECRET" not in str(found)
    message, reservation = found["events"]
    assert message == {
        **{"seq": 5, "at": "2023-11-14T22:13:20.000Z", "kind": "message.sent", "agent": "Ada", "agent_id": 1},
        **{"message_id": sent, "reservation_id": None, "run_id": None},
        "detail": {"thread_id": "t", "importance": "high"},
    }
    assert (reservation["agent"], reservation["reservation_id"]) == ("Ben", held["granted"][0]["id"])
    assert reservation["detail"] == {"path": "src/**", "exclusive": True}
    assert (found["next"], found["newest"], found["oldest"]) == (6, 6, 0)


async def test_a_cursor_that_is_wrong_is_refused_with_what_to_do(room: Room) -> None:
    await room.open()
    ahead = await room.refused(errors.CursorAhead, "fetch_events", after=5)
    assert ahead.details == {"oldest": 0, "newest": 4}
    await room.store.write(lambda tx: tx.trim_log(1, keep=2, limit=9))
    expired = await room.refused(errors.CursorExpired, "fetch_events", after=1)
    assert expired.details == {"oldest": 2, "newest": 4}
    assert "after 2" in (expired.remedy or "")
    assert len(await kinds(room, 2)) == 2
    for wrong in (-1, 2**60, "x", 1.5):
        await room.refused(errors.InvalidArgument, "fetch_events", after=wrong)
    await room.refused(errors.InvalidArgument, "fetch_events", kinds=["no.such"])
    await room.refused(errors.UnknownProject, "fetch_events", project_key="/nowhere")


async def test_an_agent_sees_what_is_public_and_its_own_messages(room: Room) -> None:
    await room.open()
    await room.send("Ada", "Ben", bcc=["Cyd"])
    await room.call("mark_message_read", agent_name="Ben", message_id=1)
    await room.call("mark_message_read", agent_name="Cyd", message_id=1)
    await room.call("request_contact", agent_name="Ada", to="Ben")
    await room.call("file_reservation_paths", agent_name="Cyd", paths=["a"])
    await room.open("Dot")
    read, public = "delivery.read", ["reservation.made", "agent.registered"]
    seen = {name: await kinds(room, 4, await token_of(room, name)) for name in ("Ada", "Ben", "Cyd", "Dot")}
    assert seen == {
        "Ada": ["message.sent", read, read, "contact.asked", *public],
        "Ben": ["message.sent", read, "contact.asked", *public],
        "Cyd": ["message.sent", read, read, *public],
        "Dot": public,
    }
    for agent in await room.store.read(lambda tx: tx.agents(1, include_retired=False, limit=9)):
        in_a_run_of_ours = Caller(agent_id=agent.id)
        assert await kinds(room, 4, in_a_run_of_ours) == seen[agent.name]
    assert await kinds(room, 4) == seen["Ada"]
    assert await kinds(room, 4, Caller()) == ["message.sent", read, *public]


async def test_an_agent_of_another_project_sees_what_other_operations_show_it(room: Room) -> None:
    await room.open()
    await room.open("Eve", project=SHORE)
    await room.store.write(lambda tx: tx.begin_run(RUN_OF_ADA, 1, 1))
    await room.send("Ada", "Ben")
    await room.call("file_reservation_paths", agent_name="Ada", paths=["a"])
    eve = await token_of(room, "Eve", SHORE)
    assert await kinds(room, 4, eve) == ["reservation.made"]
    assert await kinds(room, 4, await token_of(room, "Cyd")) == ["run.began", "reservation.made"]
    room.mail.rules = Rules(verified=True)
    await room.refused(errors.WrongToken, "fetch_events", caller=Caller(agent_token="no"))


async def test_messages_from_abroad_are_told_here_by_their_address(room: Room) -> None:
    await room.open()
    await room.open("Eve", "Fay", project=SHORE)
    await room.send("Ada", "Eve@projects-shore", bcc=["Ben"])
    await room.send("Ada", "Ben", bcc=["Fay@projects-shore"])
    await room.call("acknowledge_message", project_key=SHORE, agent_name="Fay", message_id=2)

    async def seen(caller: Caller) -> list[tuple[str, str, int]]:
        found = await room.call("fetch_events", project_key=SHORE, after=3, caller=caller)
        return [(one["kind"], one["agent"], one["message_id"]) for one in found["events"]]

    to_eve = ("message.sent", "Ada@projects-harbor", 1)
    assert await seen(await token_of(room, "Eve", SHORE)) == [to_eve]
    assert await seen(Caller()) == [to_eve]
    assert await seen(await token_of(room, "Fay", SHORE)) == [
        ("message.sent", "Ada@projects-harbor", 2),
        ("delivery.read", "Fay", 2),
        ("delivery.acknowledged", "Fay", 2),
    ]
    assert (await kinds(room, 4, Caller())) == ["message.sent", "message.sent"]


def follow(room: Room, after: int | None, wait: int = 30, caller: Caller = OPERATOR) -> Any:
    asked = FollowEvents(project_key=HARBOR, after=after, wait=wait)
    return EventFollowing(room.mail).events(asked, caller)


async def test_who_waits_is_answered_when_something_happens(room: Room) -> None:
    await room.open()
    await room.store.write(lambda tx: tx.begin_run(RUN_OF_ADA, 1, 1))
    happenings: list[Callable[[], Awaitable[object]]] = [
        lambda: room.send("Ada", "Ben"),
        lambda: room.mail.set_runner(HARBOR, "Ada", "{}"),
        lambda: room.call("ask_person", **CHANGES["ask_person"].arguments),
    ]
    for happens in happenings:
        after = await newest(room)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            waits = [group.create_task(follow(room, after)) for _ in range(3)]
            await asyncio.sleep(0)
            await happens()
        for one in waits:
            assert one.result()["events"][0]["seq"] == after + 1


async def test_what_is_there_is_answered_at_once_and_an_empty_wait_ends(room: Room) -> None:
    await room.open()
    async with asyncio.timeout(PATIENCE):
        assert len((await follow(room, 0))["events"]) == 4
        assert (await follow(room, 4, wait=0))["events"] == []
        begin = await follow(room, None)
    assert (begin["events"], begin["next"]) == ([], 4)
    with pytest.raises(errors.CursorAhead):
        await follow(room, 5)


async def test_who_waits_is_not_woken_for_what_it_may_not_see_and_its_cursor_moves(room: Room) -> None:
    await room.open()
    dot = await token_of(room, "Cyd")
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        wait = group.create_task(follow(room, 4, caller=dot))
        await asyncio.sleep(0)
        for _ in range(3):
            await room.send("Ada", "Ben")
        await room.call("file_reservation_paths", agent_name="Ada", paths=["a"])
    assert [one["seq"] for one in wait.result()["events"]] == [8]
    await room.send("Ada", "Ben")
    assert (await follow(room, 8, wait=0, caller=dot))["next"] == 9


async def test_what_may_be_seen_behind_a_page_of_what_may_not_is_found(room: Room) -> None:
    await room.open()
    cyd, after = await token_of(room, "Cyd"), 4
    for name in ("Ben", "Ben", "Ben", "Cyd", "Cyd"):
        await room.send("Ada", name)
    for expected in (8, 9):
        asked = FollowEvents(project_key=HARBOR, after=after, limit=1)
        found = await EventFollowing(room.mail).events(asked, cyd)
        assert [one["seq"] for one in found["events"]] == [expected]
        after = found["next"]


async def test_nobody_waits_for_a_server_that_stops(room: Room) -> None:
    await room.open()
    following = EventFollowing(room.mail)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        wait = group.create_task(follow(room, 4))
        await asyncio.sleep(0)
        room.mail.changes.stop()
    assert wait.result()["events"] == []
    assert following.is_over
