"""Bad input gets a refusal with code, value and remedy, and changes nothing."""

from typing import Any

import msgspec
import pytest

from mail_room import HARBOR, SHORE, UNPLACED, Room, a_room, room_in_memory
from postroom.contracts import errors
from postroom.contracts.operations import Operation
from postroom.mail import sending
from postroom.mail.context import Rules
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.testing import ManualClock
from table_rows import each_row

room = room_in_memory

GOOD: dict[str, Any] = {
    **{"project_key": HARBOR, "human_key": HARBOR, "program": "p", "model": "m", "policy": "open"},
    **{"agent_name": "Ada", "sender_name": "Ada", "to": "Ben", "requester": "Ben", "accept": True},
    **{"message_id": 1, "subject": "s", "body_md": "b", "query": "q", "thread_id": "t", "sha256": "0" * 64},
    **{"paths": ["a"], "reservation_id": 1, "reason": "r", "run_id": "r", "question": "May I?"},
    **{"title": "t", "task_id": 1, "epoch": 1, "text": "t", "note_id": 1},
    **{"kind": "task_ready", "subscription_id": 1},
}
MESSAGE = {"sender_name": "Ada", "subject": "s", "body_md": "b"}
TO_BEN = {**MESSAGE, "to": ["Ben"]}
LISTS = {"to", "cc", "bcc", "message_ids", "paths", "ids", "reserve_paths", "attachments", "kinds"}
LISTS |= {"roles", "depends_on", "replaces", "choices", "not_by"}
HOSTILE: list[Any] = [
    *(None, [], {}, [[1]], {"a": 1}, 1.5, float("nan"), float("inf"), 10**400, -(2**70), b"x", object()),
]


def _good(operation: Operation) -> dict[str, Any]:
    """Return well formed arguments, the required ones alone."""
    fields = [field for field in msgspec.structs.fields(operation.command) if field.required]
    return {field.name: GOOD[field.name] for field in fields if field.name != "project_key"}


def _nested(step: Any) -> Any:
    deep: Any = "x"
    for _ in range(5_000):
        deep = step(deep)
    return deep


@each_row("operation", MAIL_OPERATIONS)
async def test_every_operation_refuses_arguments_that_are_unknown_missing_or_of_another_type(
    room: Room, operation: Operation
) -> None:
    await room.open()
    good = _good(operation)

    async def refused(**arguments: Any) -> errors.InvalidArgument:
        return await room.refused(errors.InvalidArgument, operation.name, **arguments)

    assert "colour" in (await refused(**good, colour="red")).message
    for unknown in ("x" * 50_000, "bad\ud800"):
        await refused(**good, **{unknown: 1})
    for name, value in good.items():
        error = await refused(**{key: other for key, other in good.items() if key != name})
        assert name in error.message
        assert name in error.remedy
        if isinstance(value, str):
            for broken in ("\ud800", "a\udfffb", "a\x00b", "\x00"):
                assert f"`{name}`" in (await refused(**{**good, name: broken})).message
    for field in msgspec.structs.fields(operation.command):
        for value in HOSTILE:
            optional = value is None and not field.required
            if (
                field.name != "project_key"
                and not optional
                and not (isinstance(value, list) and field.name in LISTS)
                and not (value == {} and field.name in {"to", "cc", "bcc", "attachments"})  # as an empty list
            ):
                await refused(**{**good, field.name: value})
    for deep in (_nested(lambda inner: [inner]), _nested(lambda inner: {"a": inner})):
        await refused(**{**good, "to": deep})


UNNAMED = (*UNPLACED, "start_session", "rotate_agent_token")
FREE = {
    *("register_agent", "create_agent_identity", "show_project", "list_agents", "search_messages"),
    *("fetch_thread", "summarize_thread", "list_file_reservations", "fetch_events"),
    "list_tasks",
    "find_notes",
    "catch_up",
}
"""Operations of a project that name no agent who acts."""


@each_row("operation", [one for one in MAIL_OPERATIONS if one.name not in UNNAMED])
async def test_every_operation_names_the_projects_and_agents_nearest_to_what_it_does_not_know(
    room: Room, operation: Operation
) -> None:
    await room.open("Ada", "GreenLake", "BlueStone")
    good = _good(operation)
    error = await room.refused(errors.UnknownProject, operation.name, **good, project_key="project-harbor")
    assert error.details["nearest"] == ["projects-harbor", HARBOR]
    who = {"sender_name", "agent_name"} & good.keys()
    assert bool(who) is (operation.name not in FREE)
    for name in who:
        unknown = await room.refused(errors.UnknownAgent, operation.name, **{**good, name: "GrenLake"})
        assert (unknown.value, unknown.details["nearest"]) == ("GrenLake", ["GreenLake"])
        for odd in ("", " ", "a@b", "x" * 200, "‮"):
            with pytest.raises((errors.UnknownAgent, errors.UnknownProject, errors.InvalidArgument)):
                await room.call(operation.name, **{**good, name: odd})


HOURS = 3_600
NO_MOMENTS = [
    *("", "the day before", "2026-13-01", "2026-02-30T00:00:00Z", "2026-01-01T25:00:00", "x" * 65),
    *("2026-01-01T00:00:00+99:00", "0000-01-01", "10000-01-01"),
]
CONTROLS = ["a\nb", "a\r\nBcc: x", "a\tb", "\x1b[31m", "a\x7f", "a\x85b", "a\u2028b", "a\u2029b"]
OUT_OF_RANGE: list[tuple[str, str, list[Any]]] = [
    ("fetch_inbox", "limit", [0, -1, 1_001, 10**30, "many"]),
    *(("fetch_inbox", "after", [-1, 2**53 + 1]), ("fetch_inbox", "since", NO_MOMENTS)),
    *(("fetch_inbox_events", "after", [-1]), ("fetch_inbox_events", "limit", [0, 1_001])),
    ("get_message", "message_id", [0, -5, 2**63, 2**200, 10**5_000, "one"]),
    ("list_file_reservations", "limit", [0]),
    ("release_file_reservations", "ids", [[0], [1] * 1_001]),
    ("renew_file_reservations", "ttl_seconds", [0, -1, 8 * 24 * HOURS, 10**15]),
    ("file_reservation_paths", "paths", [[], ["a"] * 1_001, [5]]),
    ("file_reservation_paths", "ttl_seconds", [8 * 24 * HOURS, 1.5]),
    ("force_release_file_reservation", "reason", ["", "  ", "\n\t", "x" * 2_001]),
    ("mark_message_read", "idempotency_key", ["", "x" * 201]),
    ("send_message", "thread_id", [" ", "a b", "-a", "a\nb", "a/b", "a" * 129, "ä", "a\x00", ".a", 5.5]),
    ("send_message", "topic", [" ", "a b", "-a", "a\nb", "a" * 65, "ä", "a:b"]),
    *(("send_message", "subject", CONTROLS), ("send_message", "to", [["x"] * 10_001, ["x" * 401]])),
]
OTHERS: dict[str, dict[str, Any]] = {
    "send_message": TO_BEN,
    "get_message": {"agent_name": "Ada", "message_id": 1},
    "mark_message_read": {"agent_name": "Ada", "message_id": 1},
    "file_reservation_paths": {"agent_name": "Ada", "paths": ["a"]},
    "force_release_file_reservation": {"agent_name": "Ada", "reservation_id": 1},
}


@each_row("name, argument, values", OUT_OF_RANGE)
async def test_what_is_out_of_range_or_outside_of_its_rule_is_refused(
    room: Room, name: str, argument: str, values: list[Any]
) -> None:
    await room.open()
    for value in values:
        arguments = {**OTHERS.get(name, {"agent_name": "Ada"}), argument: value}
        await room.refused(errors.InvalidArgument, name, **arguments)


async def test_every_moment_of_iso_8601_and_numbers_and_truth_values_as_text_are_taken(room: Room) -> None:
    await room.open()
    message = await room.send("Ada", "Ben", ack_required="true")
    for since in (
        *("2026-11-21", "2026-11-21T09:30:00Z", "2026-11-21 09:30+02:00", "20261121"),
        *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"),
    ):
        assert isinstance(await room.inbox("Ben", since=since), list), since
    shown = await room.call("get_message", agent_name="Ben", message_id=str(message))
    assert shown["ack_required"] is True
    assert len(await room.inbox("Ben", limit="5")) == 1


async def test_a_pattern_that_leaves_the_project_is_refused(room: Room) -> None:
    await room.open()
    acts = ("file_reservation_paths", *(f"{act}_file_reservations" for act in ("check", "release", "renew")))
    outside = (
        *("/etc/passwd", "../x", "a/../../x", "..", "a\\..\\b", "C:\\x", "~/x", "a/./../..", "\\\\server\\x"),
    )
    for pattern in ("", " ", *outside):
        for name in acts:
            error = await room.refused(errors.InvalidPattern, name, agent_name="Ada", paths=["good", pattern])
            assert error.value == pattern
    who = {"project_key": SHORE, "program": "p", "model": "m", "name": "Eve"}
    await room.refused(errors.InvalidPattern, "start_session", **who, reserve_paths=["ok", "../x"])
    await room.refused(errors.InvalidArgument, "start_session", **who, reserve_paths=["ok\x00"])
    await room.refused(
        errors.InvalidArgument, "start_session", **who, reserve_paths=["ok"], ttl_seconds=10**6
    )


async def test_a_thread_name_within_the_rule_is_kept_and_that_of_a_message_to_come_is_refused(
    room: Room,
) -> None:
    await room.open()
    for name in ("a", "a" * 128, "A.b_c:d-9", "0", "msg-", "msg-x", "msg-0", "msg-007", "msg-" + "9" * 40):
        message = await room.send("Ada", "Ben", thread_id=name)
        assert (await room.call("get_message", agent_name="Ben", message_id=message))["thread_id"] == name
    to_come = f"msg-{message + 2}"
    error = await room.refused(errors.UnknownThread, "send_message", **TO_BEN, thread_id=to_come)
    assert error.value == to_come
    second = await room.send("Ben", "Ada", thread_id=f"msg-{message}")
    shown = await room.call("get_message", agent_name="Ada", message_id=second)
    assert shown["thread_id"] == f"msg-{message}"


async def test_size_limits_are_kept_to_the_character_and_the_byte(room: Room) -> None:
    await room.open()
    message = await room.send("Ada", "Ben", body_md="x" * 2**20)
    shown = await room.call("get_message", agent_name="Ben", message_id=message)
    assert len(shown["body_md"]) + shown["characters_left"] == 2**20
    await room.refused(errors.TooLarge, "send_message", **{**TO_BEN, "body_md": "x" * (2**20 + 1)})
    room.mail.rules = Rules(max_subject_chars=10, max_body_bytes=10)
    await room.send("Ada", "Ben", subject="ü" * 10, body_md="ü" * 5)
    for over in ({"subject": "x" * 11}, {"body_md": "x" * 11}, {"body_md": "ü" * 6}):
        error = await room.refused(errors.TooLarge, "send_message", **{**TO_BEN, **over})
        assert isinstance(error.value, int)
    await room.refused(
        errors.TooLarge, "reply_message", sender_name="Ben", message_id=message, body_md="x" * 11
    )


async def test_subject_and_body_come_out_as_they_went_in(room: Room) -> None:
    await room.open()
    for text in ("", "ü", "👩\u200d🚀", "a: b # c --- \"'", "Re: x", "<script>", "e\u0301"):
        body = f"\r\n\t{text}\n\x1b\u2028 "
        message = await room.send("Ada", "Ben", subject=text, body_md=body)
        shown = await room.call("get_message", agent_name="Ben", message_id=message)
        assert (shown["subject"], shown["body_md"]) == (text, body)


async def test_one_bad_name_among_good_ones_means_that_nothing_is_sent(room: Room) -> None:
    await room.open()
    addresses = ("@", "Ben@", "@projects-harbor", "Ben@nowhere", "Ben@@x")
    for bad in ("Nobody", "", "  ", "x" * 400, "all", "*", "\n", *addresses):
        for where in ("to", "cc", "bcc"):
            with pytest.raises((errors.UnknownAgent, errors.UnknownProject)) as caught:
                await room.call("send_message", **{**TO_BEN, where: ["Ben", bad, "Cyd"]})
            plain = bad.strip()
            assert caught.value.value == (plain if plain == "@" else plain.removeprefix("@"))
    assert [*await room.inbox("Ben"), *await room.inbox("Cyd")] == []
    for nobody in ({}, {"to": []}, {"to": [], "cc": [], "bcc": []}):
        await room.refused(errors.InvalidRecipients, "send_message", **MESSAGE, **nobody)


async def test_every_bad_recipient_is_named_with_its_reason_and_a_single_one_is_its_own_refusal(
    room: Room,
) -> None:
    await room.open("Ada", "Ben", "Cyd", "Dee")
    await room.call("set_contact_policy", agent_name="Cyd", policy="closed")
    await room.call("retire_agent", agent_name="Dee")
    error = await room.refused(
        errors.InvalidRecipients,
        "send_message",
        **MESSAGE,
        to=["Ben", "Bem", "Cyd"],
        cc=["Dee"],
        bcc=["X@nowhere"],
    )
    told: list[dict[str, str]] = error.details["recipients"]  # type: ignore[assignment]
    assert {one["value"]: one["code"] for one in told} == {
        "Bem": "unknown_agent",
        "X@nowhere": "unknown_project",
        "Cyd": "contact_blocked",
        "Dee": "agent_retired",
    }
    assert error.value == ["Bem", "X@nowhere", "Cyd", "Dee"]
    assert all(one["remedy"] for one in told)
    alone = await room.refused(
        errors.ContactBlocked, "send_message", **MESSAGE, to=["Ben", "Cyd"], broadcast=True
    )
    assert alone.value == "Cyd"


async def test_thousands_of_bad_names_are_refused_at_once(room: Room) -> None:
    await room.open()
    names = [f"N{number}" for number in range(1_001)]
    for more in ({}, {"broadcast": True}):
        error = await room.refused(errors.TooLarge, "send_message", **MESSAGE, to=names, **more)
        assert error.value == 1_001
    many = await room.refused(errors.InvalidRecipients, "send_message", **MESSAGE, to=names[1:])
    assert len(many.details["recipients"]) == sending.MAX_PROBLEMS  # type: ignore[arg-type]


async def test_the_number_of_recipients_is_limited_and_a_broadcast_is_refused_and_not_cut(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.open("Ada", "Ben", "Cyd", "Dee")
    room.mail.rules = Rules(max_recipients=2)
    await room.refused(errors.TooLarge, "send_message", **MESSAGE, to=["Ben", "Cyd", "Dee"])
    await room.send("Ada", "Ben", "Cyd", "Ben")
    monkeypatch.setattr(sending, "MAX_BROADCAST", 3)
    await room.refused(errors.TooLarge, "send_message", **MESSAGE, broadcast=True)
    monkeypatch.setattr(sending, "MAX_BROADCAST", 4)
    sent = await room.call("send_message", **MESSAGE, broadcast=True)
    assert sent["count"] == 3
    answer = {"sender_name": "Ben", "message_id": sent["deliveries"][0]["payload"]["id"], "body_md": "b"}
    await room.refused(errors.TooLarge, "reply_message", **answer, reply_all=True)


async def test_a_name_that_differs_by_case_is_the_agent_and_gets_one_message(room: Room) -> None:
    await room.open()
    names = {"to": ["BEN", "ben", " Ben "], "cc": ["bEn"], "bcc": ["Cyd", "CYD"]}
    sent = await room.call("send_message", **MESSAGE, **names)
    payload = sent["deliveries"][0]["payload"]
    assert (sent["count"], payload["to"], payload["cc"]) == (2, ["Ben"], [])
    assert len(await room.inbox("ben")) == 1


async def test_what_is_refused_is_told_in_words(room: Room) -> None:
    await room.open("Ada", "Ben", "Cy")
    for to in ("Ben", "Cy", "Ben"):
        await room.send("Ada", to)
    error = await room.refused(errors.UnknownMessage, "get_message", agent_name="Ben", message_id=99)
    assert error.message == "Ben has no message 99; the newest messages to Ben are 3, 1"
    error = await room.refused(errors.UnknownMessage, "get_message", agent_name="Ada", message_id=99)
    assert error.message == "Ada has no message 99"
    person = await room.refused(errors.UnknownAgent, "fetch_inbox", agent_name="human:Kim")
    assert ("register" in person.remedy, "postroom open" in person.remedy) == (False, True)
    moment = await room.refused(errors.InvalidArgument, "fetch_inbox", agent_name="Ada", since="some day")
    assert moment.message == "'some day' is not a past time"
    assert "2026-11-21, 2026-11-21T09:30:00Z, yesterday" in (moment.remedy or "")
    thread = await room.refused(
        errors.InvalidArgument, "send_message", **MESSAGE, to=["Ada"], thread_id="a b"
    )
    assert thread.message.startswith("`thread_id` must be 1 to 128 letters, digits")


OF_A_MESSAGE = ("get_message", "delivery_status", "mark_message_read", "acknowledge_message")


async def _knows_neither(room: Room, message: int, reservation: int) -> None:
    """See that Ada's project has no such message and no such reservation."""
    for name in OF_A_MESSAGE:
        error = await room.refused(errors.UnknownMessage, name, agent_name="Ada", message_id=message)
        assert error.value == message
    for name, more in (("recall_message", {}), ("reply_message", {"body_md": "b"})):
        await room.refused(errors.UnknownMessage, name, sender_name="Ada", message_id=message, **more)
    for name in ("release_file_reservations", "renew_file_reservations"):
        await room.refused(errors.UnknownReservation, name, agent_name="Ada", ids=[reservation])
    forced = {"agent_name": "Ada", "reservation_id": reservation, "reason": "r"}
    await room.refused(errors.UnknownReservation, "force_release_file_reservation", **forced)


async def test_messages_threads_and_reservations_that_are_not_in_the_project_are_unknown(
    room: Room, clock: ManualClock
) -> None:
    await room.open()
    for number in (1, 99, 2**53):
        await _knows_neither(room, number, number)
    for name in ("summarize_thread", "fetch_thread"):
        await room.refused(errors.UnknownThread, name, thread_id="none")
        await room.refused(errors.InvalidArgument, name, thread_id="")
        await room.refused(errors.InvalidArgument, name, thread_id="x" * 129)
    await room.refused(errors.UnknownAgent, "list_file_reservations", agent_name="Nobody")
    with pytest.raises(KeyError):
        await room.call("no_such_operation")
    away = a_room(room.store, clock)
    await away.open("Eve", "Flo", project=SHORE)
    message = await away.send("Eve", "Flo", project_key=SHORE)
    held = await away.call("file_reservation_paths", project_key=SHORE, agent_name="Eve", paths=["a"])
    await _knows_neither(room, message, held["granted"][0]["id"])
