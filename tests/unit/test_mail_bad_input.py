"""Bad input gets a refusal with code, value and remedy, and changes nothing."""

from typing import Any

import msgspec
import pytest

from mail_room import AGENTS, HARBOR, SHORE, UNPLACED, Room, a_room, room_in_memory
from postroom.contracts.errors import (
    ContactBlocked,
    InvalidArgument,
    InvalidPattern,
    InvalidRecipients,
    TooLarge,
    UnknownAgent,
    UnknownMessage,
    UnknownProject,
    UnknownReservation,
    UnknownThread,
)
from postroom.contracts.mail import Project
from postroom.mail import identity, sending
from postroom.mail.commands import AttachmentIn
from postroom.mail.context import Rules
from postroom.mail.operations import ALL_OPERATIONS, Operation
from postroom.testing import ManualClock
from table_rows import each_row

room = room_in_memory
memory = room_in_memory

GOOD: dict[str, Any] = {
    "project_key": HARBOR,
    "human_key": HARBOR,
    "program": "p",
    "model": "m",
    "agent_name": "Ada",
    "sender_name": "Ada",
    "message_id": 1,
    "subject": "s",
    "body_md": "b",
    "query": "q",
    "thread_id": "t",
    "to": "Ben",
    "requester": "Ben",
    "accept": True,
    "policy": "open",
    "paths": ["a"],
    "reservation_id": 1,
    "reason": "r",
    "run_id": "r",
    "question": "May I?",
    "sha256": "0" * 64,
}
MESSAGE = {"sender_name": "Ada", "subject": "s", "body_md": "b"}


def _good(operation: Operation) -> dict[str, Any]:
    """Return well formed arguments, the required ones alone."""
    fields = [field for field in msgspec.structs.fields(operation.command) if field.required]
    return {field.name: GOOD[field.name] for field in fields if field.name != "project_key"}


EVERY = each_row("operation", ALL_OPERATIONS)


@EVERY
async def test_every_operation_refuses_an_argument_it_does_not_know(
    memory: Room, operation: Operation
) -> None:
    await memory.open()
    error = await memory.refused(InvalidArgument, operation.name, **_good(operation), colour="red")
    assert "colour" in error.message
    await memory.refused(InvalidArgument, operation.name, **_good(operation), **{"x" * 50_000: 1})


@EVERY
async def test_every_operation_names_the_arguments_when_one_is_missing(
    memory: Room, operation: Operation
) -> None:
    await memory.open()
    required = _good(operation)
    for name in required:
        fewer = {key: value for key, value in required.items() if key != name}
        error = await memory.refused(InvalidArgument, operation.name, **fewer)
        assert name in error.message
        assert name in error.remedy


HOSTILE: list[Any] = [
    None,
    [],
    {},
    [[1]],
    {"a": 1},
    1.5,
    float("nan"),
    float("inf"),
    10**400,
    -(2**70),
    b"x",
    object(),
]


@EVERY
async def test_every_argument_refuses_values_of_another_type(memory: Room, operation: Operation) -> None:
    await memory.open()
    good = _good(operation)
    for field in msgspec.structs.fields(operation.command):
        for value in HOSTILE:
            if field.name == "project_key" or (value is None and not field.required):
                continue
            if isinstance(value, list) and field.name in (
                "to",
                "cc",
                "bcc",
                "message_ids",
                "paths",
                "ids",
                "reserve_paths",
                "attachments",
                "kinds",
            ):
                continue
            await memory.refused(InvalidArgument, operation.name, **{**good, field.name: value})


@EVERY
async def test_every_text_refuses_what_is_no_text(memory: Room, operation: Operation) -> None:
    await memory.open()
    good = _good(operation)
    texts = [name for name, value in good.items() if isinstance(value, str)]
    for name in texts:
        for broken in ("\ud800", "a\udfffb", "a\x00b", "\x00"):
            error = await memory.refused(InvalidArgument, operation.name, **{**good, name: broken})
            assert f"$.{name}" in error.message
    await memory.refused(InvalidArgument, operation.name, **{**good, "bad\ud800": 1})


@EVERY
async def test_every_operation_refuses_what_nests_without_end(memory: Room, operation: Operation) -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]
    await memory.refused(InvalidArgument, operation.name, **{**_good(operation), "to": deep})
    deep = {}
    for _ in range(5_000):
        deep = {"a": deep}
    await memory.refused(InvalidArgument, operation.name, **{**_good(operation), "to": deep})


PLACED = [one for one in ALL_OPERATIONS if one.name not in (*UNPLACED, "start_session", "rotate_agent_token")]


@each_row("operation", PLACED)
async def test_every_operation_names_the_projects_nearest_to_one_it_does_not_know(
    memory: Room, operation: Operation
) -> None:
    await memory.open()
    error = await memory.refused(
        UnknownProject, operation.name, **_good(operation), project_key="project-harbor"
    )
    assert error.details["nearest"] == ["projects-harbor", HARBOR]


ACTED = [
    one
    for one in PLACED
    if {"agent_name", "sender_name"}
    & {field.name for field in msgspec.structs.fields(one.command) if field.required}
]


@each_row("operation", ACTED)
async def test_every_operation_names_the_agents_nearest_to_one_it_does_not_know(
    memory: Room, operation: Operation
) -> None:
    await memory.open("Ada", "GreenLake", "BlueStone")
    who = "sender_name" if "sender_name" in _good(operation) else "agent_name"
    error = await memory.refused(UnknownAgent, operation.name, **{**_good(operation), who: "GrenLake"})
    assert error.value == "GrenLake"
    assert error.details["nearest"] == ["GreenLake"]
    for odd in ("", " ", "a@b", "x" * 200, "‮"):
        with pytest.raises((UnknownAgent, UnknownProject, InvalidArgument)):
            await memory.call(operation.name, **{**_good(operation), who: odd})


def test_every_operation_is_in_the_tables_above() -> None:
    names = {one.name for one in ALL_OPERATIONS}
    assert {one.name for one in PLACED} | {*UNPLACED, "start_session", "rotate_agent_token"} == names
    free = {"register_agent", "create_agent_identity", "show_project", "list_agents", "search_messages"}
    free |= {"fetch_thread", "summarize_thread", "list_file_reservations", "fetch_events"}
    assert {one.name for one in PLACED} - {one.name for one in ACTED} == free


@each_row(
    "name, arguments",
    [
        ("fetch_inbox", {"limit": 0}),
        ("fetch_inbox", {"limit": -1}),
        ("fetch_inbox", {"limit": 1_001}),
        ("fetch_inbox", {"limit": 10**30}),
        ("fetch_inbox", {"limit": "many"}),
        ("fetch_inbox", {"after": -1}),
        ("fetch_inbox", {"after": 2**53 + 1}),
        ("fetch_inbox", {"since": ""}),
        ("fetch_inbox", {"since": "yesterday"}),
        ("fetch_inbox", {"since": "2026-13-01"}),
        ("fetch_inbox", {"since": "2026-02-30T00:00:00Z"}),
        ("fetch_inbox", {"since": "2026-01-01T25:00:00"}),
        ("fetch_inbox", {"since": "2026-01-01T00:00:00+99:00"}),
        ("fetch_inbox", {"since": "0000-01-01"}),
        ("fetch_inbox", {"since": "10000-01-01"}),
        ("fetch_inbox", {"since": "x" * 65}),
        ("fetch_inbox_events", {"after": -1}),
        ("fetch_inbox_events", {"limit": 0}),
        ("fetch_inbox_events", {"limit": 1_001}),
        ("get_message", {"message_id": 0}),
        ("get_message", {"message_id": -5}),
        ("get_message", {"message_id": 2**63}),
        ("get_message", {"message_id": 2**200}),
        ("get_message", {"message_id": 10**5_000}),
        ("get_message", {"message_id": "one"}),
        ("list_file_reservations", {"limit": 0}),
        ("release_file_reservations", {"ids": [0]}),
        ("release_file_reservations", {"ids": [1] * 1_001}),
        ("renew_file_reservations", {"ttl_seconds": 0}),
        ("renew_file_reservations", {"ttl_seconds": -1}),
        ("renew_file_reservations", {"ttl_seconds": 8 * 24 * 3600}),
        ("renew_file_reservations", {"ttl_seconds": 10**15}),
        ("file_reservation_paths", {"paths": []}),
        ("file_reservation_paths", {"paths": ["a"] * 1_001}),
        ("file_reservation_paths", {"paths": ["a"], "ttl_seconds": 8 * 24 * 3600}),
        ("file_reservation_paths", {"paths": ["a"], "ttl_seconds": 1.5}),
        ("file_reservation_paths", {"paths": [5]}),
        ("force_release_file_reservation", {"reservation_id": 1, "reason": ""}),
        ("force_release_file_reservation", {"reservation_id": 1, "reason": "x" * 2_001}),
        ("mark_message_read", {"message_id": 1, "idempotency_key": ""}),
        ("mark_message_read", {"message_id": 1, "idempotency_key": "x" * 201}),
    ],
)
async def test_limits_cursors_moments_and_ids_out_of_range_are_refused(
    memory: Room, name: str, arguments: dict[str, Any]
) -> None:
    await memory.open()
    await memory.refused(InvalidArgument, name, **{"agent_name": "Ada", **arguments})


@pytest.mark.parametrize(
    "since",
    [
        "2026-11-21",
        "2026-11-21T09:30:00Z",
        "2026-11-21 09:30+02:00",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "20261121",
    ],
)
async def test_every_moment_of_iso_8601_is_taken(room: Room, since: str) -> None:
    await room.open()
    await room.send("Ada", "Ben")
    assert isinstance(await room.inbox("Ben", since=since), list)


async def test_numbers_and_truth_values_may_come_as_text(memory: Room) -> None:
    await memory.open()
    message = await memory.send("Ada", "Ben", ack_required="true")
    shown = await memory.call("get_message", agent_name="Ben", message_id=str(message))
    assert shown["ack_required"] is True
    assert len(await memory.inbox("Ben", limit="5")) == 1


PATTERNS = [
    "",
    " ",
    "/etc/passwd",
    "../x",
    "a/../../x",
    "..",
    "a\\..\\b",
    "C:\\x",
    "~/x",
    "a/./../..",
    "\\\\server\\x",
]


@each_row("pattern", PATTERNS)
@each_row(
    "name",
    [
        "file_reservation_paths",
        "check_file_reservations",
        "release_file_reservations",
        "renew_file_reservations",
    ],
)
async def test_a_pattern_that_leaves_the_project_is_refused(memory: Room, name: str, pattern: str) -> None:
    await memory.open()
    error = await memory.refused(InvalidPattern, name, agent_name="Ada", paths=["good", pattern])
    assert error.value == pattern


async def test_a_session_with_a_bad_pattern_begins_nothing(room: Room) -> None:
    who = {"project_key": SHORE, "program": "p", "model": "m", "name": "Eve"}
    await room.refused(InvalidPattern, "start_session", **who, reserve_paths=["ok", "../x"])
    await room.refused(InvalidArgument, "start_session", **who, reserve_paths=["ok\x00"])
    await room.refused(InvalidArgument, "start_session", **who, reserve_paths=["ok"], ttl_seconds=10**6)


@each_row("thread_id", [" ", "a b", "-a", "a\nb", "a/b", "a" * 129, "ä", "a\x00", ".a", 5.5])
async def test_a_thread_name_outside_of_the_rule_is_refused(memory: Room, thread_id: Any) -> None:
    await memory.open()
    await memory.refused(InvalidArgument, "send_message", **MESSAGE, to=["Ben"], thread_id=thread_id)


@each_row("topic", [" ", "a b", "-a", "a\nb", "a" * 65, "ä", "a:b"])
async def test_a_topic_outside_of_the_rule_is_refused(memory: Room, topic: str) -> None:
    await memory.open()
    await memory.refused(InvalidArgument, "send_message", **MESSAGE, to=["Ben"], topic=topic)


@pytest.mark.parametrize(
    "thread_id", ["a", "a" * 128, "A.b_c:d-9", "0", "msg-", "msg-x", "msg-0", "msg-007", "msg-" + "9" * 40]
)
async def test_a_thread_name_within_the_rule_is_kept(memory: Room, thread_id: str) -> None:
    await memory.open()
    message = await memory.send("Ada", "Ben", thread_id=thread_id)
    assert (await memory.call("get_message", agent_name="Ben", message_id=message))["thread_id"] == thread_id


async def test_the_thread_of_a_message_to_come_cannot_be_taken(room: Room) -> None:
    await room.open()
    first = await room.send("Ada", "Ben")
    error = await room.refused(
        UnknownThread, "send_message", **MESSAGE, to=["Ben"], thread_id=f"msg-{first + 2}"
    )
    assert error.value == f"msg-{first + 2}"
    second = await room.send("Ben", "Ada", thread_id=f"msg-{first}")
    assert (await room.call("get_message", agent_name="Ada", message_id=second))[
        "thread_id"
    ] == f"msg-{first}"


async def test_size_limits_are_kept_to_the_character_and_the_byte(room: Room) -> None:
    await room.open()
    room.mail.rules = Rules(max_subject_chars=10, max_body_bytes=10)
    await room.send("Ada", "Ben", subject="ü" * 10, body_md="ü" * 5)
    for over in ({"subject": "x" * 11}, {"body_md": "x" * 11}, {"body_md": "ü" * 6}):
        error = await room.refused(TooLarge, "send_message", **{**MESSAGE, "to": ["Ben"], **over})
        assert isinstance(error.value, int)
    message = (await room.inbox("Ben"))[0]["id"]
    await room.refused(TooLarge, "reply_message", sender_name="Ben", message_id=message, body_md="x" * 11)


async def test_the_default_limit_of_a_body_is_a_mebibyte(memory: Room) -> None:
    await memory.open()
    message = await memory.send("Ada", "Ben", body_md="x" * 2**20)
    shown = await memory.call("get_message", agent_name="Ben", message_id=message)
    assert len(shown["body_md"]) + shown["characters_left"] == 2**20
    await memory.refused(TooLarge, "send_message", **{**MESSAGE, "to": ["Ben"], "body_md": "x" * (2**20 + 1)})


@each_row("subject", ["a\nb", "a\r\nBcc: x", "a\tb", "\x1b[31m", "a\x7f", "a\x85b", "a\u2028b", "a\u2029b"])
async def test_a_subject_is_one_line_of_text(memory: Room, subject: str) -> None:
    await memory.open()
    await memory.refused(InvalidArgument, "send_message", **{**MESSAGE, "to": ["Ben"], "subject": subject})


@pytest.mark.parametrize("text", ["", "ü", "👩\u200d🚀", "a: b # c --- \"'", "Re: x", "<script>", "e\u0301"])
async def test_subject_and_body_come_out_as_they_went_in(room: Room, text: str) -> None:
    await room.open()
    message = await room.send("Ada", "Ben", subject=text, body_md=f"\r\n\t{text}\n\x1b\u2028 ")
    shown = await room.call("get_message", agent_name="Ben", message_id=message)
    assert shown["subject"] == text
    assert shown["body_md"] == f"\r\n\t{text}\n\x1b\u2028 "


async def test_a_message_to_nobody_is_refused(memory: Room) -> None:
    await memory.open("Ada")
    for empty in ({}, {"to": []}, {"to": [], "cc": [], "bcc": []}, {"broadcast": True}):
        await memory.refused(InvalidRecipients, "send_message", **MESSAGE, **empty)


@each_row("where", ["to", "cc", "bcc"])
@each_row(
    "bad",
    [
        "Nobody",
        "",
        "  ",
        "@",
        "Ben@",
        "@projects-harbor",
        "Ben@nowhere",
        "Ben@@x",
        "x" * 400,
        "all",
        "*",
        "\n",
    ],
)
async def test_one_bad_name_among_good_ones_means_that_nothing_is_sent(
    memory: Room, where: str, bad: str
) -> None:
    await memory.open()
    message = {**MESSAGE, "to": ["Ben"]}
    message[where] = ["Ben", bad, "Cyd"]
    with pytest.raises((UnknownAgent, UnknownProject)) as caught:
        await memory.call("send_message", **message)
    plain = bad.strip()
    assert caught.value.value == (plain if plain == "@" else plain.removeprefix("@"))
    assert await memory.inbox("Ben") == []
    assert await memory.inbox("Cyd") == []


async def test_every_bad_recipient_is_named_with_its_reason(room: Room) -> None:
    await room.open("Ada", "Ben", "Cyd", "Dee")
    await room.call("set_contact_policy", agent_name="Cyd", policy="closed")
    await room.call("retire_agent", agent_name="Dee")
    error = await room.refused(
        InvalidRecipients, "send_message", **MESSAGE, to=["Ben", "Bem", "Cyd"], cc=["Dee"], bcc=["X@nowhere"]
    )
    reasons = {one["value"]: one["code"] for one in error.details["recipients"]}  # type: ignore[attr-defined]
    assert reasons == {
        "Bem": "unknown_agent",
        "X@nowhere": "unknown_project",
        "Cyd": "contact_blocked",
        "Dee": "agent_retired",
    }
    assert error.value == ["Bem", "X@nowhere", "Cyd", "Dee"]
    assert all(one["remedy"] for one in error.details["recipients"])  # type: ignore[attr-defined]


async def test_a_single_bad_recipient_is_its_own_refusal(memory: Room) -> None:
    await memory.open()
    await memory.call("set_contact_policy", agent_name="Cyd", policy="closed")
    error = await memory.refused(ContactBlocked, "send_message", **MESSAGE, to=["Ben", "Cyd"], broadcast=True)
    assert error.value == "Cyd"


async def test_thousands_of_bad_names_are_refused_at_once(
    memory: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.open()
    compared: list[str] = []

    def counted(tx: Any, project: Project, name: str) -> UnknownAgent:
        compared.append(name)
        return UnknownAgent(f"no {name}", value=name)

    monkeypatch.setattr(identity, "unknown_agent", counted)
    error = await memory.refused(TooLarge, "send_message", **MESSAGE, to=[f"N{n}" for n in range(1_001)])
    assert error.value == 1_001
    await memory.refused(
        TooLarge, "send_message", **MESSAGE, broadcast=True, to=[f"N{n}" for n in range(1_001)]
    )
    assert compared == []
    await memory.refused(InvalidRecipients, "send_message", **MESSAGE, to=[f"N{n}" for n in range(1_000)])
    assert len(compared) == sending.MAX_PROBLEMS
    await memory.refused(InvalidArgument, "send_message", **MESSAGE, to=["x"] * 10_001)
    await memory.refused(InvalidArgument, "send_message", **MESSAGE, to=["x" * 401])


async def test_a_broadcast_to_more_than_can_be_listed_is_refused_and_not_cut(
    memory: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await memory.open("Ada", "Ben", "Cyd", "Dee")
    monkeypatch.setattr(sending, "MAX_BROADCAST", 3)
    await memory.refused(TooLarge, "send_message", **MESSAGE, broadcast=True)
    monkeypatch.setattr(sending, "MAX_BROADCAST", 4)
    assert (await memory.call("send_message", **MESSAGE, broadcast=True))["count"] == 3


async def test_the_number_of_recipients_is_limited_but_for_a_broadcast(room: Room) -> None:
    await room.open("Ada", "Ben", "Cyd", "Dee")
    room.mail.rules = Rules(max_recipients=2)
    await room.refused(TooLarge, "send_message", **MESSAGE, to=["Ben", "Cyd", "Dee"])
    await room.send("Ada", "Ben", "Cyd", "Ben")
    sent = await room.call("send_message", **MESSAGE, broadcast=True)
    assert sent["count"] == 3
    message = sent["deliveries"][0]["payload"]["id"]
    await room.refused(
        TooLarge, "reply_message", sender_name="Ben", message_id=message, body_md="b", reply_all=True
    )


async def test_a_name_that_differs_by_case_is_the_agent_and_gets_one_message(room: Room) -> None:
    await room.open()
    sent = await room.call(
        "send_message", **MESSAGE, to=["BEN", "ben", " Ben "], cc=["bEn"], bcc=["Cyd", "CYD"]
    )
    assert sent["count"] == 2
    assert sent["deliveries"][0]["payload"]["to"] == ["Ben"]
    assert sent["deliveries"][0]["payload"]["cc"] == []
    assert len(await room.inbox("ben")) == 1


@each_row("name", ["get_message", "delivery_status", "mark_message_read", "acknowledge_message"])
async def test_a_message_that_there_is_not_is_unknown(memory: Room, name: str) -> None:
    await memory.open()
    for message_id in (1, 99, 2**53):
        error = await memory.refused(UnknownMessage, name, agent_name="Ada", message_id=message_id)
        assert error.value == message_id


async def test_a_wrong_number_of_a_message_is_refused_with_the_newest_numbers(room: Room) -> None:
    await room.open("Ada", "Ben", "Cy")
    for to in ("Ben", "Cy", "Ben"):
        await room.send("Ada", to)
    error = await room.refused(UnknownMessage, "get_message", agent_name="Ben", message_id=99)
    assert error.message == "Ben has no message 99; the newest messages to Ben are 3, 1"
    error = await room.refused(UnknownMessage, "get_message", agent_name="Ada", message_id=99)
    assert error.message == "Ada has no message 99"


async def test_a_person_who_acts_as_an_agent_is_told_where_people_read(room: Room) -> None:
    await room.open()
    error = await room.refused(UnknownAgent, "fetch_inbox", agent_name="human:Kim")
    assert "register" not in error.remedy
    assert "postroom open" in error.remedy


async def test_messages_threads_and_reservations_that_there_are_not_are_unknown(room: Room) -> None:
    await room.open()
    await room.refused(UnknownMessage, "recall_message", sender_name="Ada", message_id=7)
    await room.refused(UnknownMessage, "reply_message", sender_name="Ada", message_id=7, body_md="b")
    for name in ("summarize_thread", "fetch_thread"):
        await room.refused(UnknownThread, name, thread_id="none")
        await room.refused(InvalidArgument, name, thread_id="")
        await room.refused(InvalidArgument, name, thread_id="x" * 129)
    for name in ("release_file_reservations", "renew_file_reservations"):
        await room.refused(UnknownReservation, name, agent_name="Ada", ids=[7])
    await room.refused(
        UnknownReservation, "force_release_file_reservation", agent_name="Ada", reservation_id=7, reason="r"
    )
    await room.refused(UnknownAgent, "list_file_reservations", agent_name="Nobody")


async def test_messages_and_reservations_of_another_project_are_unknown(
    room: Room, clock: ManualClock
) -> None:
    await room.open()
    away = a_room(room.store, clock)
    await away.open("Eve", "Flo", project=SHORE)
    sent = await away.call(
        "send_message", project_key=SHORE, sender_name="Eve", to=["Flo"], subject="s", body_md="b"
    )
    message = sent["deliveries"][0]["payload"]["id"]
    held = await away.call("file_reservation_paths", project_key=SHORE, agent_name="Eve", paths=["a"])
    number = held["granted"][0]["id"]
    for name in ("get_message", "delivery_status", "mark_message_read", "acknowledge_message"):
        await room.refused(UnknownMessage, name, agent_name="Ada", message_id=message)
    await room.refused(UnknownMessage, "reply_message", sender_name="Ada", message_id=message, body_md="b")
    await room.refused(UnknownMessage, "recall_message", sender_name="Ada", message_id=message)
    for name in ("release_file_reservations", "renew_file_reservations"):
        await room.refused(UnknownReservation, name, agent_name="Ada", ids=[number])
    await room.refused(
        UnknownReservation,
        "force_release_file_reservation",
        agent_name="Ada",
        reservation_id=number,
        reason="r",
    )


async def test_a_name_for_an_operation_that_there_is_not_is_a_fault_of_the_edge(memory: Room) -> None:
    with pytest.raises(KeyError):
        await memory.call("no_such_operation")


def test_an_attachment_refuses_what_it_does_not_know() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"path": "a", "mode": "x"}, AttachmentIn)


def test_the_room_has_the_agents_that_the_tables_name() -> None:
    assert set(AGENTS) >= {GOOD["agent_name"], GOOD["sender_name"], GOOD["to"], GOOD["requester"]}


async def test_what_is_refused_is_told_in_words(room: Room) -> None:
    await room.open("Ada")
    moment = await room.refused(InvalidArgument, "fetch_inbox", agent_name="Ada", since="yesterday")
    assert moment.message == "'yesterday' is no moment"
    assert "2026-11-21 or 2026-11-21T09:30:00Z" in (moment.remedy or "")
    thread = await room.refused(
        InvalidArgument,
        "send_message",
        sender_name="Ada",
        to=["Ada"],
        subject="s",
        body_md="b",
        thread_id="a b",
    )
    assert thread.message.startswith("Expected 1 to 128 letters, digits")
    assert thread.message.endswith("(at $.thread_id)")
