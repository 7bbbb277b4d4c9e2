"""A key makes a change happen once: the same call is answered alike, another call is a conflict."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from mail_room import SHORE, Room, a_room, everything, room_over_each_store

from postroom.contracts.errors import IdempotencyConflict, InvalidPattern, UnknownAgent
from postroom.mail import service
from postroom.mail.desk import Rules
from postroom.mail.operations import ALL_OPERATIONS

room = room_over_each_store

WHO = {"program": "p", "model": "m"}


@dataclass(frozen=True, slots=True)
class Case:
    """A change: its arguments, and others that would make it another call."""

    arguments: dict[str, Any]
    other: dict[str, Any] = field(default_factory=dict)


CHANGES: dict[str, Case] = {
    "ensure_project": Case({"human_key": "/projects/new"}, {"git_identity": "r#1"}),
    "start_session": Case({**WHO, "reserve_paths": ["z"]}, {"model": "n"}),
    "register_agent": Case(WHO, {"model": "n"}),
    "create_agent_identity": Case(WHO, {"model": "n"}),
    "retire_agent": Case({"agent_name": "Cyd"}),
    "unretire_agent": Case({"agent_name": "Ret"}),
    "send_message": Case({"sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"}, {"subject": "t"}),
    "reply_message": Case({"sender_name": "Ben", "message_id": 1, "body_md": "b"}, {"body_md": "c"}),
    "recall_message": Case({"sender_name": "Ada", "message_id": 1}, {"message_id": 2}),
    "mark_message_read": Case({"agent_name": "Ben", "message_id": 1}, {"message_id": 2}),
    "acknowledge_message": Case({"agent_name": "Ben", "message_id": 1}, {"message_id": 2}),
    "request_contact": Case({"agent_name": "Ada", "to": "Ben"}, {"to": "Cyd"}),
    "respond_contact": Case({"agent_name": "Ada", "requester": "Ben", "accept": True}, {"accept": False}),
    "set_contact_policy": Case({"agent_name": "Ada", "policy": "approval"}, {"policy": "closed"}),
    "file_reservation_paths": Case({"agent_name": "Ada", "paths": ["x", "y"]}, {"paths": ["x"]}),
    "release_file_reservations": Case({"agent_name": "Ben"}, {"paths": ["p"]}),
    "renew_file_reservations": Case({"agent_name": "Ben"}, {"ttl_seconds": 9}),
    "force_release_file_reservation": Case(
        {"agent_name": "Ada", "reservation_id": 1, "reason": "r"}, {"reason": "other"}
    ),
}
EVERY_CHANGE = pytest.mark.parametrize("name", CHANGES)


def test_every_change_but_the_rotation_of_a_token_is_in_the_table() -> None:
    changing = {one.name for one in ALL_OPERATIONS if one.changes}
    assert set(CHANGES) == changing - {"rotate_agent_token"}


async def furnish(room: Room) -> None:
    """Open a project in which every change of the table has something to do."""
    await room.open("Ada", "Ben", "Cyd", "Ret")
    await room.call("retire_agent", agent_name="Ret")
    await room.send("Ada", "Ben")
    await room.send("Ada", "Ben", "Cyd")
    await room.call("file_reservation_paths", agent_name="Ben", paths=["p", "q"])


@EVERY_CHANGE
async def test_the_same_call_under_its_key_is_answered_alike_and_has_one_effect(room: Room, name: str) -> None:
    await furnish(room)
    arguments = {**CHANGES[name].arguments, "idempotency_key": "k"}
    first = await room.call(name, **arguments)
    after_one = await everything(room.store)
    for _ in range(3):
        room.clock.advance(timedelta(hours=1))
        assert await room.call(name, **arguments) == first
    assert await everything(room.store) == after_one


@EVERY_CHANGE
async def test_another_call_under_a_used_key_is_a_conflict_and_changes_nothing(room: Room, name: str) -> None:
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
            IdempotencyConflict, another, agent_name=case.arguments["agent_name"], **more, idempotency_key="k"
        )


@EVERY_CHANGE
async def test_the_key_of_another_agent_or_project_does_not_collide(room: Room, name: str) -> None:
    await furnish(room)
    away = a_room(room.store, room.clock)
    await away.open("Ada", "Ben", "Cyd", project=SHORE)
    for agent in ("Ada", "Ben", "Cyd"):
        await away.call("set_contact_policy", project_key=SHORE, agent_name=agent, policy="open", idempotency_key="k")
    before = await everything(room.store)
    await room.call(name, **CHANGES[name].arguments, idempotency_key="k")
    assert await everything(room.store) != before


@EVERY_CHANGE
async def test_ten_equal_calls_at_once_have_one_effect_and_one_answer(room: Room, name: str) -> None:
    await furnish(room)
    arguments = {**CHANGES[name].arguments, "idempotency_key": "k"}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(room.call(name, **arguments)) for _ in range(10)]
    answers = [task.result() for task in tasks]
    assert all(answer == answers[0] for answer in answers)
    after = await everything(room.store)
    assert after["answers"] == 1
    assert await room.call(name, **arguments) == answers[0]
    assert await everything(room.store) == after


@EVERY_CHANGE
async def test_without_a_key_a_call_is_made_each_time(room: Room, name: str) -> None:
    await furnish(room)
    await room.call(name, **CHANGES[name].arguments)
    assert (await everything(room.store))["answers"] == 0


async def test_a_refused_call_leaves_its_key_free(room: Room) -> None:
    await room.open()
    letter = {"sender_name": "Ada", "subject": "s", "body_md": "b", "idempotency_key": "k"}
    await room.refused(UnknownAgent, "send_message", **letter, to=["Nobody"])
    await room.refused(InvalidPattern, "file_reservation_paths", agent_name="Ada", paths=[".."], idempotency_key="k")
    sent = await room.call("send_message", **letter, to=["Ben"])
    assert sent["count"] == 1


async def test_the_case_of_the_agents_name_makes_no_other_agent_of_it(room: Room) -> None:
    await room.open()
    letter = {"to": ["Ben"], "subject": "s", "body_md": "b", "idempotency_key": "k"}
    await room.call("send_message", sender_name="Ada", **letter)
    await room.refused(IdempotencyConflict, "send_message", sender_name="ADA", **letter)


async def test_arguments_in_another_order_or_form_are_the_same_call(room: Room) -> None:
    await room.open()
    first = await room.call(
        "send_message", sender_name="Ada", to=["Ben"], subject="s", body_md="b", ack_required=True, idempotency_key="k"
    )
    again = await room.call(
        "send_message",
        idempotency_key="k",
        ack_required="true",
        importance="normal",
        cc=[],
        body_md="b",
        subject="s",
        to=["Ben"],
        sender_name="Ada",
    )
    assert again == first


async def test_keys_are_forgotten_after_their_time_and_no_earlier(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.open()
    monkeypatch.setattr(service, "PURGE_EVERY", 3)
    room.mail.rules = Rules(answer_retention=timedelta(days=1))
    letter = {"sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"}
    first = await room.call("send_message", **letter, idempotency_key="old")
    room.clock.advance(timedelta(days=1))
    await room.call("send_message", **letter, idempotency_key="k1")
    await room.call("send_message", **letter, idempotency_key="k2")
    assert await room.call("send_message", **letter, idempotency_key="old") == first
    room.clock.advance(timedelta(milliseconds=1))
    for number in range(3):
        await room.call("send_message", **letter, idempotency_key=f"later {number}")
    again = await room.call("send_message", **letter, idempotency_key="old")
    assert again != first
    assert await room.call("send_message", **letter, idempotency_key="k1") != again


async def test_an_agent_that_retired_since_gets_its_answer_again(room: Room) -> None:
    await room.open()
    letter = {"sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b", "idempotency_key": "k"}
    first = await room.call("send_message", **letter)
    await room.call("retire_agent", agent_name="Ada")
    assert await room.call("send_message", **letter) == first
