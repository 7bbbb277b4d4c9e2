"""A summary of a thread, without a model: authors, questions, missing acknowledgements, reservations."""

from datetime import timedelta
from typing import Any

import pytest

from mail_room import HARBOR, SHORE, Room, room_in_memory
from postroom.contracts.clock import iso
from postroom.contracts.errors import UnknownThread
from postroom.mail import threads
from postroom.mail.projects import make_slug
from postroom.mail.threads import _questions

room = room_in_memory


def test_questions_are_found_in_prose_and_not_in_code(subtests: pytest.Subtests) -> None:
    for body, questions in [
        *(("", []), ("Nothing here.", []), ("Is it red?", ["Is it red?"])),
        *(("It is. Is it red? Yes.", ["Is it red?"]), ("One? Two?\nThree?", ["One?", "Two?", "Three?"])),
        ("Really?? Truly?! No!", ["Really??", "Truly?!"]),
        *(('He asked "why?" and left.', ['He asked "why?']), ("(Shall we?) Good.", ["(Shall we?"])),
        ("> Quoted?\n- Listed?\n# Head?\n* Star?", ["Quoted?", "Listed?", "Head?", "Star?"]),
        *(("See http://a.b/c?d=e for more", []), ("Use 3.11 or 3.12?", ["Use 3.11 or 3.12?"])),
        *(("**Is it bold?**", ["Is it bold?"]), ("`is it code?` no", [])),
        ("```\nis it code?\n```\nIs it prose?", ["Is it prose?"]),
        *(("```\nnever closed?", []), ("?", []), ("a?", []), ("...?", ["...?"])),
        *(("Ist es blau?\r\nJa.", ["Ist es blau?"]), ("x" * 400 + "?", ["x" * 300])),
        ("First line\nsecond line?", ["second line?"]),
        ("May I <b>delete</b> `prod.db`?", ["May I <b>delete</b> `prod.db`?"]),
        ("Done. Run `a? b.` or ```c! d``` now? Yes.", ["Run `a? b.` or ```c! d``` now?"]),
        ("Is it so\n```\nx = 1? 2\n```\nor `not`?", ["or `not`?"]),
        ("**Is it `*`?**", ["Is it `*`?"]),
    ]:
        with subtests.test(body=body, questions=questions):
            assert _questions(body) == questions


def test_a_long_body_is_read_in_time_that_grows_with_its_length() -> None:
    # A search that starts anew at each character would take hours; the suite's limit ends it.
    for unit in (*"a?.`'\"\n )", "a ", "? ", "```", "a? ", "`a", "!?", "> ", "?)"):
        _questions((unit * (1 << 19))[: 1 << 19])


async def _write(room: Room, sender: str, body: str, **more: Any) -> int:
    to = more.pop("to", [name for name in ("Ada", "Ben", "Cyd") if name != sender])
    return await room.send(sender, *to, thread_id="t", body_md=body, **more)


async def _summary(room: Room) -> dict[str, Any]:
    found: dict[str, Any] = await room.call("summarize_thread", thread_id="t")
    return found


async def test_a_summary_says_who_wrote_how_often_and_when(room: Room) -> None:
    await room.open()
    began = iso(room.clock.now())
    await _write(room, "Ada", "one", subject="Plan")
    room.clock.advance(timedelta(minutes=1))
    await _write(room, "Ben", "two", subject="Other")
    await _write(room, "Ada", "three")
    await room.send("Cyd", "Ada", thread_id="elsewhere")
    assert await _summary(room) == {
        **{"thread_id": "t", "subject": "Plan", "messages": 3, "left_out": 0, "first_ts": began},
        "last_ts": iso(room.clock.now()),
        "participants": [{"name": "Ada", "messages": 2}, {"name": "Ben", "messages": 1}],
        **{"open_questions": [], "unacknowledged": [], "reservations": []},
    }
    await room.open("Eve", project=SHORE)
    for other in ({"thread_id": "T"}, {"thread_id": "t", "project_key": SHORE}):
        await room.refused(UnknownThread, "summarize_thread", **other)


async def test_a_question_is_open_until_another_writes(room: Room) -> None:
    await room.open()
    first = await _write(room, "Ada", "Is it red?")
    assert (await _summary(room))["open_questions"] == [
        {"message_id": first, "asked_by": "Ada", "text": "Is it red?"}
    ]
    second = await _write(room, "Ada", "Or is it blue?")
    assert [one["message_id"] for one in (await _summary(room))["open_questions"]] == [first, second]
    third = await _write(room, "Ben", "Blue. Why do you ask?")
    assert [one["message_id"] for one in (await _summary(room))["open_questions"]] == [third]
    await _write(room, "Cyd", "So do I.")
    assert (await _summary(room))["open_questions"] == []


async def test_what_a_recalled_message_asked_is_not_asked_and_questions_without_end_are_cut(
    room: Room,
) -> None:
    await room.open()
    message = await _write(room, "Ada", "Is it red?", ack_required=True)
    await room.call("recall_message", sender_name="Ada", message_id=message)
    found = await _summary(room)
    assert (found["open_questions"], found["unacknowledged"], found["subject"]) == ([], [], "")
    await _write(room, "Ada", "What now?\n" * 200)
    assert len((await _summary(room))["open_questions"]) == threads.MAX_QUESTIONS


async def test_an_acknowledgement_is_awaited_from_those_who_have_not_given_it(room: Room) -> None:
    await room.open("Ada", "Ben", "Cyd", "Dee")
    message = await room.send(
        "Ada", "Ben", cc=["Cyd"], bcc=["Dee"], thread_id="t", subject="Do it", ack_required=True
    )
    awaited = {"message_id": message, "subject": "Do it", "waiting_for": ["Ben", "Cyd"]}
    assert (await _summary(room))["unacknowledged"] == [awaited]
    await room.call("mark_message_read", agent_name="Ben", message_id=message)
    await room.call("acknowledge_message", agent_name="Cyd", message_id=message)
    assert (await _summary(room))["unacknowledged"] == [{**awaited, "waiting_for": ["Ben"]}]
    await room.call("acknowledge_message", agent_name="Ben", message_id=message)
    await room.send("Ada", bcc=["Ben"], thread_id="t", ack_required=True)
    assert (await _summary(room))["unacknowledged"] == [], "nobody learns of a hidden copy by it"


async def test_a_summary_shows_what_those_who_wrote_hold_now(room: Room) -> None:
    await room.open()
    await _write(room, "Ada", "one")
    for name in ("Ada", "Ben"):
        await room.call("file_reservation_paths", agent_name=name, paths=[f"{name}.py"], ttl_seconds=60)
    assert [one["path"] for one in (await _summary(room))["reservations"]] == ["Ada.py"]
    room.clock.advance(timedelta(minutes=1))
    assert (await _summary(room))["reservations"] == []


async def test_a_long_thread_is_summarised_by_its_newest_messages(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.open()
    monkeypatch.setattr(threads, "SUMMARY_MESSAGES", 3)
    for number in range(5):
        await _write(room, "Ada", "x", subject=f"Number {number}")
    found = await _summary(room)
    assert (found["messages"], found["left_out"], found["subject"]) == (5, 2, "Number 2")


async def test_a_thread_is_read_in_order_in_pages_and_with_what_came_from_elsewhere(room: Room) -> None:
    await room.open()
    await room.open("Eve", project=SHORE)
    await room.call("set_contact_policy", agent_name="Eve", policy="open", project_key=SHORE)
    first = await _write(room, "Ada", "one", to=["Ben", f"Eve@{make_slug(SHORE)}"])
    second = await _write(room, "Ben", "two", bcc=["Cyd"], to=["Ada"])
    await room.call("set_contact_policy", agent_name="Ada", policy="open")
    came = await room.call(
        "send_message",
        project_key=SHORE,
        sender_name="Eve",
        to=[f"Ada@{HARBOR}"],
        subject="s",
        body_md="three",
        thread_id="t",
    )
    pages, after = [], 0
    while True:
        page = await room.call("fetch_thread", thread_id="t", after=after, limit=2)
        pages.append(page["messages"])
        if page["next"] is None:
            break
        after = page["next"]
    told = [(one["id"], one["from"], one["body_md"]) for page in pages for one in page]
    third = came["deliveries"][0]["payload"]["id"]
    assert [len(page) for page in pages] == [2, 1]
    assert [one[0] for one in told] == [first, second, third]
    assert [one[2] for one in told] == ["one", "two", "three"]
    assert all("bcc" not in one for page in pages for one in page)
    past = await room.call("fetch_thread", thread_id="t", after=third)
    assert (past["messages"], past["next"]) == ([], None)
