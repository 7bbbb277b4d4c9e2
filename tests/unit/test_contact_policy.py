"""The rules for writing to an agent: one function over facts, and the choices of agents."""

from typing import Any

from mail_room import HARBOR, SHORE, Room, a_room, in_memory, room_in_memory
from postroom.contracts import errors
from postroom.contracts.clock import iso
from postroom.mail.context import Rules
from postroom.testing import ManualClock
from table_rows import each_row

room = room_in_memory


async def _closed_room(room: Room, policy: str) -> None:
    await room.open()
    await room.call("set_contact_policy", agent_name="Ben", policy=policy)


MESSAGE = {"sender_name": "Ada", "subject": "s", "body_md": "b"}
LOUD: list[dict[str, Any]] = [
    *({}, {"importance": "urgent"}, {"ack_required": True}, {"cc": ["Ben"], "to": ["Cyd"]}),
    *({"bcc": ["Ben"], "to": ["Cyd"]}, {"bcc": ["Ben"], "to": []}, {"broadcast": True}),
    *({"thread_id": "known"}, {"to": ["ben"]}, {"to": ["Ben@projects-harbor"]}),
    *({"to": ["Ben@/projects/harbor"]}, {"to": ["Cyd", "Ben", "Ben"]}),
]


async def test_nothing_gets_past_closed(room: Room) -> None:
    await room.open()
    await room.send("Ben", "Ada", thread_id="known")
    await room.call("request_contact", agent_name="Ada", to="Ben")
    await room.call("respond_contact", agent_name="Ben", requester="Ada", accept=True)
    await room.call("respond_contact", agent_name="Ada", requester="Ben", accept=True)
    await room.call("set_contact_policy", agent_name="Ben", policy="closed")
    for extra in LOUD:
        await room.refused(errors.ContactBlocked, "send_message", **{**MESSAGE, "to": ["Ben"], **extra})
    assert [*await room.inbox("Ben"), *await room.inbox("Cyd")] == []


async def test_a_broadcast_passes_by_those_who_do_not_take_it_and_says_who(room: Room) -> None:
    await room.open("Ada", "Ben", "Cyd", "Dee", "Eve")
    await room.call("set_contact_policy", agent_name="Ben", policy="closed")
    await room.call("set_contact_policy", agent_name="Cyd", policy="approval")
    await room.call("respond_contact", agent_name="Dee", requester="Ada", accept=False)
    sent = await room.call("send_message", sender_name="Ada", broadcast=True, subject="s", body_md="b")
    assert sent["count"] == 1
    assert sent["deliveries"][0]["recipients"] == ["Eve"]
    assert sorted(sent["skipped"]) == ["Ben", "Cyd", "Dee"]
    for name in ("Ben", "Cyd", "Dee", "Ada"):
        assert await room.inbox(name) == []


async def test_approval_lets_in_those_who_were_approved_and_nobody_else(room: Room) -> None:
    await _closed_room(room, "approval")
    message = {"to": ["Ben"], "subject": "s", "body_md": "b"}
    error = await room.refused(errors.ContactRequired, "send_message", sender_name="Ada", **message)
    assert error.value == "Ben"
    assert "request_contact" in error.remedy
    asked = await room.call("request_contact", agent_name="Ada", to="Ben", reason="hello")
    assert (asked["requester"], asked["to"], asked["status"], asked["reason"]) == (
        *("Ada", "Ben", "pending", "hello"),
    )
    await room.refused(errors.ContactRequired, "send_message", sender_name="Ada", **message)
    answered = await room.call("respond_contact", agent_name="Ben", requester="Ada", accept=True)
    assert answered["status"] == "approved"
    assert answered["decided_at"] == iso(room.clock.now())
    await room.send("Ada", "Ben")
    await room.refused(errors.ContactRequired, "send_message", sender_name="Cyd", **message)


async def test_a_message_opens_the_door_to_its_answer_and_to_nobody_elses(room: Room) -> None:
    await _closed_room(room, "approval")
    answer = {"message_id": await room.send("Ben", "Ada"), "body_md": "b"}
    for reply_all in (False, True):
        error = await room.refused(
            errors.ContactRequired, "reply_message", sender_name="Cyd", **answer, reply_all=reply_all
        )
        assert error.value == "Ben"
    sent = await room.call("reply_message", sender_name="Ada", **answer)
    assert sent["deliveries"][0]["recipients"] == ["Ben"]


async def test_a_block_can_be_lifted_and_an_approval_taken_back(room: Room) -> None:
    await room.open()
    await room.call("respond_contact", agent_name="Ben", requester="Ada", accept=False, reason="noise")
    message = {"sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"}
    await room.refused(errors.ContactBlocked, "send_message", **message)
    await room.refused(errors.ContactBlocked, "request_contact", agent_name="Ada", to="Ben")
    await room.send("Ben", "Ada")  # a block holds in one direction
    await room.call("respond_contact", agent_name="Ben", requester="Ada", accept=True)
    await room.call("send_message", **message)
    await room.call("respond_contact", agent_name="Ben", requester="Ada", accept=False)
    await room.refused(errors.ContactBlocked, "send_message", **message)


async def test_asking_again_changes_nothing_and_asking_oneself_or_a_closed_agent_is_refused(
    room: Room,
) -> None:
    await _closed_room(room, "closed")
    await room.refused(errors.ContactBlocked, "request_contact", agent_name="Ada", to="Ben")
    await room.refused(errors.StateError, "request_contact", agent_name="Ada", to="ada")
    await room.refused(errors.StateError, "respond_contact", agent_name="Ada", requester="Ada", accept=False)
    await room.refused(errors.UnknownAgent, "request_contact", agent_name="Ada", to="Nobody")
    await room.refused(
        errors.UnknownAgent, "respond_contact", agent_name="Ada", requester="Nobody", accept=True
    )
    await room.refused(errors.UnknownProject, "request_contact", agent_name="Ada", to="Ben@nowhere")
    await room.refused(errors.UnknownProject, "request_contact", agent_name="Ada", to="Ben@")
    first = await room.call("request_contact", agent_name="Ada", to="Cyd", reason="one")
    assert await room.call("request_contact", agent_name="Ada", to="Cyd", reason="two") == first
    await room.call("respond_contact", agent_name="Cyd", requester="Ada", accept=True)
    assert (await room.call("request_contact", agent_name="Ada", to="Cyd"))["status"] == "approved"


async def test_contacts_are_listed_for_both_sides_with_the_policy(room: Room) -> None:
    await _closed_room(room, "approval")
    await room.call("request_contact", agent_name="Ada", to="Ben")
    await room.call("respond_contact", agent_name="Ada", requester="Cyd", accept=False)
    mine = await room.call("list_contacts", agent_name="Ada")
    assert mine["policy"] == "open"
    shown = {(one["requester"], one["to"], one["status"]) for one in mine["contacts"]}
    assert shown == {("Ada", "Ben", "pending"), ("Cyd", "Ada", "blocked")}
    theirs = await room.call("list_contacts", agent_name="Ben")
    assert theirs["policy"] == "approval"
    assert [one["requester"] for one in theirs["contacts"]] == ["Ada"]


async def test_a_policy_may_be_written_in_capital_letters_and_no_other_is_taken(room: Room) -> None:
    await room.open()
    for policy in ("Closed", "OPEN"):
        view = await room.call("set_contact_policy", agent_name="Ben", policy=policy)
        assert view["contact_policy"] == policy.lower()
    for wrong in ("", "opened", "none", None, 1):
        await room.refused(errors.InvalidArgument, "set_contact_policy", agent_name="Ben", policy=wrong)
    await room.refused(
        errors.InvalidArgument, "respond_contact", agent_name="Ben", requester="Ada", accept="maybe"
    )


async def _two_projects(room: Room, here: str, there: str) -> None:
    """Open two projects of two owners."""
    await a_room(room.store, room.clock, Rules(owner=here)).open("Ada", "Ben")
    await a_room(room.store, room.clock, Rules(owner=there)).open("Eve", "Flo", "Ada", project=SHORE)


ABROAD = {"sender_name": "Ada", "to": ["Eve@projects-shore"], "subject": "s", "body_md": "b"}


async def test_mail_to_another_project_of_the_same_owner_needs_no_approval(room: Room) -> None:
    await _two_projects(room, "me", "me")
    sent = await room.call("send_message", **ABROAD, cc=["Ben", "Flo@/projects/shore"])
    assert [(one["project"], one["recipients"]) for one in sent["deliveries"]] == [
        ("projects-shore", ["Eve", "Flo"]),
        ("projects-harbor", ["Ben"]),
    ]
    arrived = (await room.inbox("Eve", project_key=SHORE))[0]
    assert arrived["from"] == "Ada@projects-harbor"
    assert arrived["to"] == ["Eve"]
    assert arrived["cc"] == ["Ben@projects-harbor", "Flo"]
    everybody = await room.call("send_message", sender_name="Ada", broadcast=True, subject="s", body_md="b")
    assert [one["project"] for one in everybody["deliveries"]] == ["projects-harbor"]


@each_row("owners", [("me", "you"), ("", ""), ("me", "")])
async def test_mail_to_a_project_of_another_owner_needs_an_approval(
    clock: ManualClock, owners: tuple[str, str]
) -> None:
    with in_memory(clock) as room:
        await _two_projects(room, *owners)
        await _needs_an_approval(room)


async def _needs_an_approval(room: Room) -> None:
    error = await room.refused(errors.ContactRequired, "send_message", **ABROAD)
    assert error.value == "Eve@projects-shore"
    await room.call("request_contact", agent_name="Ada", to="Eve@projects-shore")
    listed = (await room.call("list_contacts", project_key=SHORE, agent_name="Eve"))["contacts"]
    assert listed[0]["requester"] == "Ada@projects-harbor", "the address by which it can be answered"
    granted = await room.call(
        "respond_contact", project_key=SHORE, agent_name="Eve", requester=listed[0]["requester"], accept=True
    )
    assert (granted["requester"], granted["to"]) == ("Ada@projects-harbor", "Eve")
    await room.call("send_message", **ABROAD)
    await room.refused(errors.ContactRequired, "send_message", **{**ABROAD, "sender_name": "Ben"})
    await room.refused(errors.ContactRequired, "send_message", **{**ABROAD, "to": ["Flo@projects-shore"]})


async def test_two_of_one_name_in_two_projects_are_told_apart_in_a_refusal(room: Room) -> None:
    await _two_projects(room, "me", "you")
    await room.call("register_agent", project_key=SHORE, program="p", model="m", name="Ben")
    await room.call("set_contact_policy", agent_name="Ben", policy="closed")
    error = await room.refused(
        errors.InvalidRecipients,
        "send_message",
        **{**ABROAD, "to": ["Ben", "Ben@projects-shore", "Ada@projects-shore"]},
    )
    assert error.value == ["Ben", "Ben@projects-shore", "Ada@projects-shore"]
    codes = [one["code"] for one in error.details["recipients"]]  # type: ignore[attr-defined]
    assert codes == ["contact_blocked", "contact_required", "contact_required"]


async def test_a_message_from_abroad_can_be_answered_without_an_approval_of_its_own(room: Room) -> None:
    await _two_projects(room, "me", "you")
    await room.call(
        "respond_contact", project_key=SHORE, agent_name="Eve", requester="Ada@projects-harbor", accept=True
    )
    message = (await room.call("send_message", **ABROAD))["deliveries"][0]["payload"]["id"]
    answer = {"project_key": SHORE, "sender_name": "Eve", "message_id": message, "body_md": "b"}
    sent = await room.call("reply_message", **answer)
    assert sent["deliveries"][0]["project"] == "projects-harbor"
    back = {"project_key": SHORE, "sender_name": "Eve", "to": ["Ada@projects-harbor"]}
    await room.refused(errors.ContactRequired, "send_message", **back, subject="s", body_md="b")
    await room.refused(errors.UnknownMessage, "reply_message", **{**answer, "sender_name": "Flo"})


async def test_an_address_may_name_a_folder_with_an_at_sign(sqlite_store: Any, clock: ManualClock) -> None:
    room = a_room(sqlite_store, clock)
    await room.open("Ada")
    await room.open("Eve", project="/projects/@scope/app")
    await room.send("Ada", "Eve@/projects/@scope/app")
    assert len(await room.inbox("Eve", project_key="/projects/@scope/app")) == 1
    found = await room.call("whois", agent_name="Eve@/projects/@scope/app")
    assert found["project"] == "projects-scope-app"
    assert (await room.call("show_project", project_key=HARBOR))["threads"][0]["messages"] == 1
