"""A key makes a change happen once: the same call gets the same answer, another call is a conflict."""

import asyncio
from datetime import timedelta

from mail_room import CHANGES, SHORE, Room, a_room, everything, furnish, in_memory, room_in_memory
from postroom.contracts.errors import IdempotencyConflict, InvalidPattern, UnknownAgent
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.testing import ManualClock
from table_rows import each_row

room = room_in_memory

EVERY_CHANGE = each_row("name", CHANGES)


def test_every_change_but_the_rotation_of_a_token_is_in_the_table() -> None:
    changing = {one.name for one in MAIL_OPERATIONS if one.changes}
    assert set(CHANGES) == changing - {"rotate_agent_token"}


@EVERY_CHANGE
async def test_another_call_under_a_used_key_is_a_conflict_and_changes_nothing(
    clock: ManualClock, name: str
) -> None:
    with in_memory(clock) as room:
        await furnish(room)
        case = CHANGES[name]
        await room.call(name, **case.arguments, idempotency_key="k")
        if case.other:
            error = await room.refused(
                IdempotencyConflict, name, **{**case.arguments, **case.other}, idempotency_key="k"
            )
            assert error.value == "k"
        if "agent_name" in case.arguments:
            another = "request_contact" if name != "request_contact" else "set_contact_policy"
            more = {"to": "Ada"} if another == "request_contact" else {"policy": "open"}
            await room.refused(
                IdempotencyConflict,
                another,
                agent_name=case.arguments["agent_name"],
                **more,
                idempotency_key="k",
            )


@EVERY_CHANGE
async def test_the_key_of_another_agent_or_project_does_not_collide(clock: ManualClock, name: str) -> None:
    with in_memory(clock) as room:
        await furnish(room)
        away = a_room(room.store, room.clock)
        await away.open("Ada", "Ben", "Cyd", project=SHORE)
        for agent in ("Ada", "Ben", "Cyd"):
            await away.call(
                "set_contact_policy", project_key=SHORE, agent_name=agent, policy="open", idempotency_key="k"
            )
        before = await everything(room.store)
        await room.call(name, **CHANGES[name].arguments, idempotency_key="k")
        after = await everything(room.store)
        assert (after == before, after["answers"]) == (False, 4)


@EVERY_CHANGE
async def test_ten_equal_calls_at_once_have_one_effect_and_one_answer(clock: ManualClock, name: str) -> None:
    with in_memory(clock) as room:
        await furnish(room)
        arguments = {**CHANGES[name].arguments, "idempotency_key": "k"}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(room.call(name, **arguments)) for _ in range(10)]
        # a repeated question says in addition that nothing new was asked, and its state
        of_a_try = ("asked", "state") if name == "ask_person" else ()
        answers = [task.result() for task in tasks]
        for key in of_a_try:
            assert sum(answer.pop(key, None) is True for answer in answers) == (key == "asked")
        assert all(answer == answers[0] for answer in answers)
        after = await everything(room.store)
        assert after["answers"] == 1
        for _ in range(2):
            room.clock.advance(timedelta(hours=1))
            again = await room.call(name, **arguments)
            for key in of_a_try:
                assert again.pop(key, None) is not True
            assert again == answers[0]
        assert await everything(room.store) == after


async def test_a_refused_call_leaves_its_key_free(room: Room) -> None:
    await room.open()
    message = {"sender_name": "Ada", "subject": "s", "body_md": "b", "idempotency_key": "k"}
    await room.refused(UnknownAgent, "send_message", **message, to=["Nobody"])
    await room.refused(
        InvalidPattern, "file_reservation_paths", agent_name="Ada", paths=[".."], idempotency_key="k"
    )
    sent = await room.call("send_message", **message, to=["Ben"])
    assert sent["count"] == 1


async def test_the_case_of_the_agents_name_makes_no_other_agent_of_it(room: Room) -> None:
    await room.open()
    message = {"to": ["Ben"], "subject": "s", "body_md": "b", "idempotency_key": "k"}
    await room.call("send_message", sender_name="Ada", **message)
    await room.refused(IdempotencyConflict, "send_message", sender_name="ADA", **message)


async def test_arguments_in_another_order_or_form_are_the_same_call(room: Room) -> None:
    await room.open()
    asked = {"sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b", "idempotency_key": "k"}
    first = await room.call("send_message", **asked, ack_required=True)
    other_form = {"cc": [], "importance": "normal", "ack_required": "true", **dict(reversed(asked.items()))}
    assert await room.call("send_message", **other_form) == first
    await room.call("retire_agent", agent_name="Ada")
    assert await room.call("send_message", **other_form) == first, "though its agent retired since"
