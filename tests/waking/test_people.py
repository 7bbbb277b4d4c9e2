"""Agents write to people by name or by chat, the messages are shown there once, and no agent can act for a person."""

from datetime import timedelta

import pytest

from postroom.contracts.errors import (
    InvalidArgument,
    InvalidRecipients,
    NotPermitted,
    StoreUnavailable,
    TokenRequired,
    UnknownAgent,
    UnknownMessage,
    UnknownThread,
)
from postroom.contracts.people import ChatAddress
from postroom.mail.context import Caller, Rules
from postroom.mail.people import StoredChatDelivery
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG
from postroom.services.people import PeopleService
from postroom.stores.changes import MAIL
from waking_room import PROJECT, number

PIER = ChatAddress(platform="telegram", chat_id="77")


class FakeChatOutbox:
    """A fake for tests: sends nothing, and remembers the messages that it should send."""

    def __init__(self, *, fails: bool = False) -> None:
        self.taken: dict[str, tuple[str, str]] = {}
        self.kept_quiet: dict[str, bool] = {}
        self.files: list[str] = []
        self.fails = fails

    @property
    def carried(self) -> list[tuple[str, str, str]]:
        return [(key, *said) for key, said in self.taken.items()]

    def reaches(self, place: ChatAddress) -> bool:
        return place.platform == "telegram"

    def enqueue(
        self, outbox, key: str, place: ChatAddress, text: str, files=(), *, keeps_quiet: bool
    ) -> None:
        if self.fails:
            raise StoreUnavailable("the disk went away")
        self.files = [f"{file.name} {file.size}" for file in files]
        self.taken[key] = (place.name, text)
        self.kept_quiet[key] = keeps_quiet

    def stored(self) -> None:
        pass


@pytest.fixture
def carrier(room):
    return with_chats(room, FakeChatOutbox())


@pytest.fixture
def boxes(room):
    return StoredChatDelivery(room.mail)


def with_chats(room, chats):
    """Make these chats show the messages of people."""
    room.waker = room.waker_of(room.mailbox, chats)
    return chats


async def named(room, name="alice", chat="telegram/77"):
    desk = PeopleService(room.mail, FakeChatOutbox().reaches)
    return await desk.add(name, chat)


async def status(room, sent):
    asked = {"project_key": PROJECT, "agent_name": "Ada", "message_id": number(sent)}
    [told] = (await room.mail.call("delivery_status", asked))["recipients"]
    return told


@pytest.mark.parametrize("address", ["human:alice", "chat:telegram/77"])
async def test_what_is_attached_to_a_message_goes_to_the_chat_with_it(room, carrier, address):
    await room.people("Ada")
    await named(room)
    asked = {"project_key": PROJECT, "sender_name": "Ada", "to": [address], "subject": "S", "body_md": "B"}
    files = [{"name": "plan.txt", "content_base64": "cGxhbg=="}, {"name": "b.txt", "content_base64": "Yg=="}]
    await room.mail.call("send_message", {**asked, "attachments": files})
    await room.turn()
    assert carrier.files == ["plan.txt 4", "b.txt 1"]


@pytest.mark.parametrize(
    "address", ["human:alice", "human:ALICE", "chat:telegram/77", f"alice@{PEOPLE_SLUG}"]
)
async def test_a_message_to_a_person_is_said_in_their_chat_and_answered_from_there(
    room, carrier, boxes, address
):
    await room.people("Ada")
    await named(room)
    sent = await room.send("Ada", address, body="May I push?")
    assert [one["seen"] for one in sent["deliveries"]] == [["message in a chat"]]
    assert sent["deliveries"][0]["payload"]["to"] == ["human:alice"]
    await room.turn()
    [(key, place, text)] = carrier.carried
    assert place == "telegram/77"
    assert f"Message {number(sent)} from Ada@projects-shop: Work" in text
    assert "May I push?" in text
    assert (await status(room, sent))["state"] == "stored"
    with room.store.changes.listen(MAIL) as told:
        await boxes.arrived(key)
        assert await told.wait(timedelta())
    await boxes.arrived(key)
    told = await status(room, sent)
    assert (told["name"], told["state"], told["announced_by"]) == (
        "human:alice",
        "announced",
        "chat:telegram/77",
    )
    assert await boxes.reply([PIER], number(sent), "Yes.", key="line-1") == "Ada@projects-shop"
    assert await boxes.reply([PIER], number(sent), "Yes.", key="line-1") == "Ada@projects-shop"
    assert await room.texts("Ada") == [("human:alice", "Yes.")]
    assert (await status(room, sent))["state"] == "acknowledged"
    [answer] = await room.inbox("Ada")
    await room.mail.call(
        "reply_message",
        {"project_key": PROJECT, "sender_name": "Ada", "message_id": answer["id"], "body_md": "Done."},
    )
    await room.turn()
    assert "Done." in carrier.carried[1][2]


async def test_a_message_is_stored_and_taken_for_its_chat_or_neither(room):
    carrier = with_chats(room, FakeChatOutbox(fails=True))
    await room.people("Ada")
    await named(room)
    with pytest.raises(StoreUnavailable):
        await room.send("Ada", "human:alice", idempotency_key="k")
    carrier.fails = False
    sent = await room.send("Ada", "human:alice", idempotency_key="k")
    assert [key.partition("/")[0] for key, _, _ in carrier.carried] == [str(number(sent))]
    await room.turn()
    assert len(carrier.carried) == 1


async def test_a_message_that_was_stored_without_a_gateway_is_said_once_when_there_is_one(room):
    await room.people("Ada")
    await named(room)
    room.wakes = False
    await room.send("Ada", "human:alice")
    carrier = with_chats(room, FakeChatOutbox())
    await room.turn()
    [said] = carrier.carried
    carrier.taken.clear()
    await room.turn()
    assert carrier.carried == []  # it was taken, and is looked at no more until the chat has shown it
    assert "please" in said[2]


@pytest.mark.parametrize("chat", ["slack/C1", "telegram/77"])
async def test_whoever_wrote_a_message_that_no_chat_shows_is_told_once(room, carrier, boxes, chat):
    await room.people("Ada")
    await named(room, chat=chat)
    sent = await room.send("Ada", "human:alice")
    await room.turn()
    if carrier.carried:
        await boxes.lost(carrier.carried[0][0], "the bot was blocked")
        await boxes.lost(carrier.carried[0][0], "the bot was blocked")
    why = "the bot was blocked" if chat == "telegram/77" else "this server has no channel for slack/C1"
    told = await status(room, sent)
    assert (told["state"], told["failure"]) == ("failed", why)
    [(sender, body)] = await room.texts("Ada")
    assert sender == "human:alice"
    assert why in body


async def test_a_person_without_a_chat_has_messages_in_their_inbox(room, carrier):
    await room.people("Ada")
    await named(room, chat=None)
    sent = await room.send("Ada", "human:alice")
    assert sent["deliveries"][0]["seen"] == ["inbox only"]
    await room.turn()
    assert carrier.carried == []
    assert (await status(room, sent))["state"] == "stored"


async def test_only_the_chat_that_has_a_message_answers_it(room, carrier, boxes):
    await room.people("Ada")
    await named(room)
    await named(room, "bob", "telegram/78")
    sent = await room.send("Ada", "human:alice")
    await room.turn()
    for place, message in ((ChatAddress(platform="telegram", chat_id="78"), number(sent)), (PIER, 999)):
        with pytest.raises(UnknownMessage):
            await boxes.reply([place], message, "No.", key="k")
    assert await room.texts("Ada") == []


async def test_a_person_who_was_removed_is_written_to_no_more_and_may_come_back(room, carrier):
    await room.people("Ada")
    desk = PeopleService(room.mail, carrier.reaches, lambda whom: whom == "human:alice")
    assert (await desk.remove("alice"))["removed"] is False
    assert await desk.everybody() == []
    await desk.add("alice", "telegram/77")
    assert await desk.remove("ALICE") == {"removed": True, "answers": True}
    assert (await desk.remove("alice"))["removed"] is False
    assert await desk.everybody() == []
    with pytest.raises(UnknownAgent):
        await room.send("Ada", "chat:telegram/77")
    await desk.add("alice", None)
    [told] = await desk.everybody()
    assert told == {
        "name": "alice",
        "address": "human:alice",
        "chat": None,
        "reached": None,
        "unread": 0,
        "visitor": False,
    }


async def test_who_is_not_known_is_refused_with_the_nearest_name(room):
    await room.people("Ada")
    with pytest.raises(UnknownAgent) as caught:
        await room.send("Ada", "human:alice")
    assert "postroom people add" in caught.value.remedy
    await named(room)
    with pytest.raises(UnknownAgent) as caught:
        await room.send("Ada", "human:alic")
    assert caught.value.details["nearest"] == ["human:alice"]
    for address in ("human:", "chat:", "chat:telegram", "chat:telegram/78", "chat:slack/77"):
        with pytest.raises(UnknownAgent):
            await room.send("Ada", address)


async def test_what_is_no_chat_is_refused(room):
    for text in ("", "telegram", "telegram/", "/7", "tele gram/7", "telegram/\n7", "x/" + "7" * 300):
        with pytest.raises(InvalidArgument) as caught:
            await named(room, chat=text)
        assert "telegram/123456" in caught.value.remedy


ACTS = {
    "register_agent": {"name": "mallory", "program": "p", "model": "m"},
    "create_agent_identity": {"program": "p", "model": "m"},
    "start_session": {"name": "alice", "program": "p", "model": "m"},
    "send_message": {"sender_name": "alice", "to": ["alice"], "subject": "s", "body_md": "b"},
    "fetch_inbox": {"agent_name": "alice"},
    "retire_agent": {"agent_name": "alice"},
}


async def test_nobody_but_postroom_itself_acts_for_a_person(room):
    await named(room)
    for caller in (Caller(), Caller(operator=True)):
        for key in (PEOPLE_KEY, PEOPLE_SLUG):
            for name, given in ACTS.items():
                with pytest.raises(NotPermitted) as caught:
                    await room.mail.call(name, {"project_key": key, **given}, caller=caller)
                assert "postroom people add" in caught.value.remedy


async def test_another_folder_does_not_take_the_place_of_people(room):
    made = await room.mail.call("ensure_project", {"human_key": "/postroom-people"})
    assert made["slug"] != PEOPLE_SLUG
    assert (await room.mail.call("ensure_project", {"human_key": PEOPLE_KEY}))["slug"] == PEOPLE_SLUG


async def test_a_server_that_asks_for_tokens_lets_people_answer_from_their_chat(room, carrier, boxes):
    await room.people("Ada")
    await named(room)
    sent = await room.send("Ada", "human:alice")
    room.mail.rules = Rules(verified=True)
    with pytest.raises(TokenRequired):
        await room.send("Ada", "human:alice")
    await boxes.reply([PIER], number(sent), "Yes.", key="k")


async def test_a_message_to_a_thread_goes_to_everybody_in_it(room):
    await room.people("Ada", "Bo", "Cy", "Di", "Ed")
    await room.send("Ada", "Bo", thread_id="plan", bcc=["Di"])
    await room.send("Cy", "Bo", thread_id="plan")
    await room.send("Bo", "Cy", thread_id="plan")
    sent = await room.send("Bo", "thread:plan", "Ed")
    payload = sent["deliveries"][0]["payload"]
    assert (payload["thread_id"], payload["to"]) == ("plan", ["Ada", "Cy", "Ed"])
    await room.mail.call("retire_agent", {"project_key": PROJECT, "agent_name": "Cy"})
    again = await room.send("Ed", "thread:plan", thread_id="plan")
    assert again["deliveries"][0]["payload"]["to"] == ["Ada", "Bo"]


async def test_nobody_enters_a_conversation_by_mail_to_herself_with_its_thread_id(room):
    await room.people("Ada", "Bo", "Mallory")
    await room.send("Ada", "Bo", thread_id="plan")
    await room.send("Mallory", "Mallory", thread_id="plan")
    sent = await room.send("Ada", "thread:plan")
    assert sent["deliveries"][0]["payload"]["to"] == ["Bo"]
    with pytest.raises(
        InvalidRecipients, match="no other active agent sent or received a message with Mallory"
    ):
        await room.send("Mallory", "thread:plan")


async def test_a_stranger_who_writes_into_a_thread_joins_it_when_a_participant_writes_to_her(room):
    await room.people("Ada", "Bo", "Cy", "Mallory")

    async def reached(sender):
        return (await room.send(sender, "thread:plan"))["deliveries"][0]["payload"]["to"]

    await room.send("Ada", "Bo", thread_id="plan")
    into = await room.send("Mallory", "Bo", "Cy", "Ada", thread_id="plan")
    assert (await reached("Ada"), await reached("Bo")) == (["Bo"], ["Ada"])
    assert await reached("Mallory") == ["Ada", "Bo", "Cy"], "those to whom she wrote herself"
    await room.send("Ada", "Cy", thread_id="plan")
    assert await reached("Cy") == ["Ada"], "a stranger's message that came first makes her no participant"
    await room.mail.call(
        "reply_message",
        {
            "project_key": PROJECT,
            "sender_name": "Bo",
            "message_id": number(into),
            "body_md": "Welcome.",
            "reply_all": True,
        },
    )
    assert await reached("Bo") == ["Ada", "Cy", "Mallory"]
    assert "Mallory" in await reached("Ada")


async def test_a_thread_id_that_an_outsider_used_first_keeps_her_out_of_the_conversation(room):
    await room.people("Ada", "Bo", "Mallory")
    await room.send("Mallory", "Mallory", thread_id="ticket-7")
    await room.send("Ada", "Bo", thread_id="ticket-7")
    sent = await room.send("Bo", "thread:ticket-7")
    assert sent["deliveries"][0]["payload"]["to"] == ["Ada"]


async def test_a_thread_that_is_none_has_nobody_else_or_is_not_the_messages_own_is_refused(room):
    await room.people("Ada", "Bo")
    with pytest.raises(UnknownThread):
        await room.send("Ada", "thread:plan")
    await room.send("Ada", "Ada", thread_id="mine")
    with pytest.raises(InvalidRecipients):
        await room.send("Ada", "thread:mine")
    with pytest.raises(InvalidArgument):
        await room.send("Ada", "thread:mine", thread_id="other")
    with pytest.raises(InvalidArgument):
        await room.send("Ada", "thread:mine", "thread:other")
