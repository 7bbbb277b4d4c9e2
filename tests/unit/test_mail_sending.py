"""Sending, answering and recalling: one message a recipient, hidden copies stay hidden, all or nothing."""

import itertools
import json
from datetime import timedelta
from typing import Any

from mail_room import HARBOR, SHORE, Room, room_in_memory
from postroom.contracts import errors
from postroom.contracts.clock import iso
from postroom.mail.archive.archive import gather
from postroom.stores.mail.access import MailReads
from table_rows import each_row

room = room_in_memory

TEXT = {"subject": "s", "body_md": "b"}


async def test_a_message_arrives_as_it_was_sent(room: Room) -> None:
    await room.open()
    sent = await room.call(
        "send_message",
        sender_name="ada",
        to=["Ben"],
        cc=["Cyd"],
        subject="Plan",
        body_md="Hello *you*",
        importance="urgent",
        ack_required=True,
        topic="plans/now",
        thread_id="T-1",
    )
    payload = sent["deliveries"][0]["payload"]
    assert sent == {
        "count": 2,
        "deliveries": [
            {
                "project": "projects-harbor",
                "recipients": ["Ben", "Cyd"],
                "payload": payload,
                "seen": ["inbox only", "inbox only"],
            }
        ],
        "skipped": [],
    }
    arrived = (await room.inbox("Ben"))[0]
    assert arrived == {
        **{"id": payload["id"], "thread_id": "T-1", "subject": "Plan", "from": "Ada", "to": ["Ben"]},
        **{"cc": ["Cyd"], "importance": "urgent", "ack_required": True, "topic": "plans/now"},
        **{"created_ts": iso(room.clock.now()), "reply_to": None, "recalled_at": None, "attachments": []},
        **{"body_md": "Hello *you*", "seq": 1, "kind": "to", "read_at": None, "acked_at": None},
    }
    assert (await room.inbox("Cyd"))[0]["kind"] == "cc"
    assert await room.inbox("Ada") == []


async def test_an_agent_named_twice_gets_one_message_by_its_most_open_mention(room: Room) -> None:
    await room.open("Ada", "Ben", "Cyd", "Dee")
    for lists in (
        {"to": ["Ben", "ben", "Ben@projects-harbor"], "cc": ["BEN"], "bcc": ["Ben@/projects/harbor"]},
        {"cc": ["Ben"], "bcc": ["Ben", "ben"]},
        {"bcc": ["Ben", "Ben@projects-harbor"]},
    ):
        assert (await room.call("send_message", sender_name="Ada", **TEXT, **lists))["count"] == 1
    assert [one["kind"] for one in await room.inbox("Ben")] == ["bcc", "cc", "to"]
    await room.call("retire_agent", agent_name="Dee")
    everybody = {"broadcast": True, "cc": ["Ben"], "bcc": ["Cyd"]}
    assert (await room.call("send_message", sender_name="Ada", **TEXT, **everybody))["count"] == 2
    assert [(await room.inbox(name))[0]["kind"] for name in ("Ben", "Cyd")] == ["cc", "bcc"]
    await room.call("set_contact_policy", agent_name="Ada", policy="closed")
    to_itself = await room.send("Ada", "Ada")
    assert [one["id"] for one in await room.inbox("Ada")] == [to_itself]


HIDDEN = "Ghost"


async def _views(room: Room, viewer: str, message: int, project: str = HARBOR) -> list[str]:
    """Return everything that an agent can see of a message, as text."""
    own = {"project_key": project, "agent_name": viewer}
    seen: list[Any] = [
        await room.call("fetch_inbox", **own),
        await room.call("fetch_inbox_events", **own),
        await room.call("search_messages", query="s OR b OR subject"),
        await room.call("show_project"),
        await room.call("list_file_reservations"),
        await room.call("whois", agent_name="Ben"),
    ]
    for name in ("get_message", "delivery_status"):
        try:
            seen.append(await room.call(name, **own, message_id=message))
        except errors.UnknownMessage as error:
            seen.append(error.as_dict())
    seen.append(await room.call("summarize_thread", thread_id="t"))
    return [json.dumps(one) for one in seen]


async def _archived(room: Room) -> str:
    """Return every archived file but the profiles, which name every agent of the project."""

    def look(tx: MailReads) -> dict[str, bytes]:
        project = tx.project(HARBOR)
        assert project is not None
        rows = tx.outbox.open("archive", limit=1_000)
        return gather(tx, project, [row.payload["record"] for row in rows]).files

    files = await room.store.read(look)
    return "\n".join(
        path + content.decode("utf-8", "replace")
        for path, content in files.items()
        if not path.startswith("agents/")
    )


async def _hidden_message(room: Room) -> int:
    await room.open("Ada", "Ben", "Cyd", HIDDEN, "Ghast")
    return await room.send("Ada", "Ben", cc=["Cyd"], bcc=[HIDDEN, "Ghast"], thread_id="t", ack_required=True)


async def test_a_hidden_recipient_sees_itself_and_the_sender_sees_all(room: Room) -> None:
    message = await _hidden_message(room)
    mine = await room.call("get_message", agent_name=HIDDEN, message_id=message)
    assert mine["bcc"] == [HIDDEN]
    assert (await room.inbox(HIDDEN))[0]["bcc"] == [HIDDEN]
    own = await room.call("delivery_status", agent_name=HIDDEN, message_id=message)
    assert [one["name"] for one in own["recipients"]] == ["Ben", "Cyd", HIDDEN]
    sent = await room.call("get_message", agent_name="Ada", message_id=message)
    assert sent["bcc"] == [HIDDEN, "Ghast"]
    status = await room.call("delivery_status", agent_name="Ada", message_id=message)
    assert [(one["name"], one["kind"]) for one in status["recipients"]] == [
        *(("Ben", "to"), ("Cyd", "cc"), (HIDDEN, "bcc"), ("Ghast", "bcc")),
    ]
    for viewer in ("Ben", "Cyd"):
        assert "bcc" not in await room.call("get_message", agent_name=viewer, message_id=message)


async def test_a_reply_to_all_leaves_the_hidden_out_who_answer_all_only_by_naming_them(room: Room) -> None:
    """An answer to all by a hidden recipient would tell the others of the copy."""
    message = await _hidden_message(room)

    async def answered(sender: str, number: int = message, **more: Any) -> tuple[list[str], list[str]]:
        answer = {"sender_name": sender, "message_id": number, "body_md": "b", **more}
        sent = await room.call("reply_message", **answer)
        return sent["deliveries"][0]["recipients"], sent["skipped"]

    assert await answered("Ben", reply_all=True) == (["Ada", "Cyd"], [])
    assert await answered("Ada", reply_all=True) == (["Ben", "Cyd"], [])
    assert await answered(HIDDEN, reply_all=True) == (["Ada"], ["Ben", "Cyd"])
    assert await answered(HIDDEN) == (["Ada"], [])
    own = await room.send("Ada", "Ben", bcc=["Ada"])
    assert (await answered("Ada", own, reply_all=True))[0] == ["Ben"]


async def test_the_states_of_a_delivery_are_told_apart_and_sending_is_a_sign_of_life(room: Room) -> None:
    await room.open()
    room.clock.advance(timedelta(minutes=5))
    message = await room.send("Ada", "Ben", "Cyd")
    alive = [(await room.call("whois", agent_name=name))["last_active_at"] for name in ("Ada", "Ben")]
    assert [one == iso(room.clock.now()) for one in alive] == [True, False]
    await room.call("mark_message_read", agent_name="Ben", message_id=message)
    status = await room.call("delivery_status", agent_name="Ada", message_id=message)
    assert [one["state"] for one in status["recipients"]] == ["read", "stored"]
    await room.call("acknowledge_message", agent_name="Cyd", message_id=message)
    status = await room.call("delivery_status", agent_name="Ben", message_id=message)
    assert [one["state"] for one in status["recipients"]] == ["read", "acknowledged"]
    assert status["recipients"][1]["read_at"] == status["recipients"][1]["acked_at"] == iso(room.clock.now())


# Answering


@each_row(
    "subject, answered",
    [
        *(("Plan", "Re: Plan"), ("Re: Plan", "Re: Plan"), ("RE: re:  Re : Plan", "Re: Plan")),
        *(("Regarding", "Re: Regarding"), ("Aw: Plan", "Re: Aw: Plan"), ("", ""), (" Re: ", "")),
        ("x" * 512, "Re: " + "x" * 508),
    ],
)
async def test_an_answer_stays_on_the_thread_with_one_re(room: Room, subject: str, answered: str) -> None:
    await room.open()
    message = await room.send("Ada", "Ben", subject=subject, topic="top")
    sent = await room.call("reply_message", sender_name="Ben", message_id=message, body_md="b")
    payload = sent["deliveries"][0]["payload"]
    assert (payload["subject"], payload["to"], payload["reply_to"]) == (answered, ["Ada"], message)
    shown = await room.call("get_message", agent_name="Ada", message_id=payload["id"])
    assert (shown["subject"], shown["thread_id"], shown["topic"]) == (answered, f"msg-{message}", "top")
    again = await room.call("reply_message", sender_name="Ada", message_id=shown["id"], body_md="b")
    payload = again["deliveries"][0]["payload"]
    assert (payload["subject"], payload["thread_id"], payload["reply_to"]) == (
        answered,
        f"msg-{message}",
        shown["id"],
    )


async def test_an_answer_keeps_who_was_addressed_and_who_got_a_copy(room: Room) -> None:
    await room.open("Ada", "Ben", "Cyd", "Dee")
    message = await room.send("Ada", "Ben", "Cyd", cc=["Dee"])
    for sender, reply_all, to, cc in (
        ("Ben", True, ["Ada", "Cyd"], ["Dee"]),
        ("Ben", False, ["Ada"], []),
        ("Ada", False, ["Ben", "Cyd"], []),
        ("Ada", True, ["Ben", "Cyd"], ["Dee"]),
    ):
        answer = {"sender_name": sender, "message_id": message, "body_md": "b", "reply_all": reply_all}
        payload = (await room.call("reply_message", **answer))["deliveries"][0]["payload"]
        assert (payload["to"], payload["cc"]) == (to, cc), (sender, reply_all)
    for to_nobody in (await room.send("Ada", bcc=["Ben"]), await room.send("Ada", "Ada")):
        answer = {"sender_name": "Ada", "message_id": to_nobody, "body_md": "b"}
        await room.refused(errors.InvalidRecipients, "reply_message", **answer)


async def test_one_who_may_not_be_written_to_stops_the_whole_answer(room: Room) -> None:
    await room.open()
    message = await room.send("Ada", "Ben", "Cyd")
    await room.call("set_contact_policy", agent_name="Cyd", policy="closed")
    answer = {"sender_name": "Ben", "message_id": message, "body_md": "b"}
    error = await room.refused(errors.ContactBlocked, "reply_message", **answer, reply_all=True)
    assert error.value == "Cyd"
    await room.call("reply_message", **answer)
    await room.call("retire_agent", agent_name="Ada")
    await room.refused(errors.AgentRetired, "reply_message", **answer)


async def test_an_answer_goes_home_across_projects(room: Room) -> None:
    await room.open()
    await room.open("Eve", "Flo", project=SHORE)
    message = await room.send("Ada", "Eve@projects-shore", "Ben", subject="Plan")
    sent = await room.call(
        "reply_message", project_key=SHORE, sender_name="Eve", message_id=message, body_md="b", reply_all=True
    )
    payload = sent["deliveries"][0]["payload"]
    assert payload["subject"] == "Re: Plan"
    assert payload["thread_id"] == f"msg-{message}"
    assert payload["to"] == ["Ada@projects-harbor", "Ben@projects-harbor"]
    arrived = (await room.inbox("Ada"))[0]
    assert (arrived["from"], arrived["to"], arrived["reply_to"]) == (
        "Eve@projects-shore",
        ["Ada", "Ben"],
        message,
    )
    back = await room.call("reply_message", sender_name="Ada", message_id=arrived["id"], body_md="b")
    assert [one["project"] for one in back["deliveries"]] == ["projects-shore"]
    await room.refused(
        errors.UnknownMessage,
        "reply_message",
        project_key=SHORE,
        sender_name="Flo",
        message_id=message,
        body_md="b",
    )


# Taking back


async def _everywhere(room: Room, message: int) -> str:
    """Return all texts in which a message could still stand, the answers kept under keys among them."""
    seen = []
    for name in ("Ada", "Ben", "Cyd"):
        seen += await _views(room, name, message)
    return "\n".join(seen) + await _archived(room)


async def test_a_recalled_message_leaves_no_text_behind(room: Room) -> None:
    await room.open()
    secret = {"subject": "Walrus", "body_md": "Xylophone zebra?", "topic": "quagga"}
    file = {"name": "okapi.txt", "content_base64": "QUJD"}
    message = await room.send("Ada", "Ben", **secret, attachments=[file], thread_id="t", ack_required=True)
    sha256 = (await room.inbox("Ben"))[0]["attachments"][0]["sha256"]
    room.clock.advance(timedelta(seconds=5))
    answer = await room.call("recall_message", sender_name="Ada", message_id=message)
    assert answer == {"message_id": message, "recalled": True}
    everywhere = await _everywhere(room, message)
    for word in ("Walrus", "Xylophone", "zebra", "quagga", "okapi", sha256):
        assert word not in everywhere
        found = await room.call("search_messages", query=word)
        assert found["hits"] == []
    assert await room.store.read(lambda tx: tx.blob(sha256)) is None
    assert await room.inbox("Ben") == []
    event = (await room.call("fetch_inbox_events", agent_name="Ben"))["events"][0]
    assert event["recalled_at"] == iso(room.clock.now())
    status = await room.call("delivery_status", agent_name="Ada", message_id=message)
    assert [one["state"] for one in status["recipients"]] == ["recalled"]
    assert (await room.call("whois", agent_name="Ben"))["unread"] == 0


async def test_a_message_that_anybody_read_cannot_be_recalled(room: Room) -> None:
    await room.open("Ada", "Ben", "Cyd", "Dee")
    for reader, mark in itertools.product(
        ("Ben", "Cyd", "Dee"), ("mark_message_read", "acknowledge_message")
    ):
        message = await room.send("Ada", "Ben", cc=["Cyd"], bcc=["Dee"])
        await room.call(mark, agent_name=reader, message_id=message)
        error = await room.refused(
            errors.AlreadyRead, "recall_message", sender_name="Ada", message_id=message
        )
        assert error.details == {"readers": [reader]}
        assert (await room.call("get_message", agent_name="Ada", message_id=message))["body_md"] == "A body"


async def test_only_the_sender_recalls_and_does_so_once(room: Room) -> None:
    await room.open()
    await room.open("Ada", project=SHORE)
    message = await room.send("Ada", "Ben", "Ada@projects-shore")
    for other in (
        {"sender_name": "Ben"},
        {"sender_name": "Cyd"},
        {"sender_name": "Ada", "project_key": SHORE},
    ):
        await room.refused(errors.NotPermitted, "recall_message", **other, message_id=message)
    await room.inbox("Ben")  # looking is not reading
    await room.call("get_message", agent_name="Ben", message_id=message)
    await room.call("fetch_inbox_events", agent_name="Ben")
    first = await room.call("recall_message", sender_name="Ada", message_id=message)
    before = (await room.call("get_message", agent_name="Ada", message_id=message))["recalled_at"]
    room.clock.advance(timedelta(hours=1))
    assert await room.call("recall_message", sender_name="Ada", message_id=message) == first
    assert (await room.call("get_message", agent_name="Ada", message_id=message))["recalled_at"] == before


async def test_the_answer_that_a_key_keeps_does_not_keep_the_text(room: Room) -> None:
    await room.open()
    message = {"sender_name": "Ada", "to": ["Ben"], **TEXT, "body_md": "Xylophone", "idempotency_key": "k"}
    sent = await room.call("send_message", **message)
    assert "Xylophone" not in json.dumps(sent)
    await room.call("recall_message", sender_name="Ada", message_id=sent["deliveries"][0]["payload"]["id"])
    assert "Xylophone" not in json.dumps(await room.call("send_message", **message))
