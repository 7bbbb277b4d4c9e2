"""Routes to people: a chat message becomes mail to a person, once and in order, and the answer comes back."""

from dataclasses import dataclass
from typing import Any

from chats.test_delivery import FINAL
from gateway_room import CONFIG, Agent, all_answered, settled, with_rules
from postroom.contracts.chat import InboundStatus
from postroom.contracts.errors import StoreUnavailable
from postroom.contracts.people import ChatAddress
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.config import ChatRules, Route
from postroom.gateway.delivery import MailOutbox
from postroom.gateway.quiet import QuietHours
from postroom.mail.context import Caller, Rules
from postroom.mail.people import StoredChatDelivery, name_person
from postroom.mail.projects import PEOPLE_SLUG
from postroom.mail.service import Mail
from postroom.mail.waking.waker import Waker

ANA = ChatAddress(platform="telegram", chat_id="999")
TO_ANA = replace(CONFIG, routes=(Route(agent="human:Ana", platform=("telegram",), chat=("12345", "-100")),))
QUIET = ChatRules(quiet=QuietHours.parse("00:00-23:59 UTC"))
SERVER = Caller(postroom=True)


@dataclass
class Office:
    """A gateway with a channel, and the mail of its people."""

    room: Any
    agent: Agent
    gateway: Any
    channel: Any
    mail: Mail

    async def inbox(self, name: str = "Ana") -> list[dict[str, Any]]:
        asked = {"project_key": PEOPLE_SLUG, "agent_name": name, "after": 0}
        return await self.mail.call("fetch_inbox", asked, caller=SERVER)

    async def answer(self, message: int, text: str) -> None:
        """Answer as the pages do."""
        asked = {"project_key": PEOPLE_SLUG, "sender_name": "Ana", "message_id": message, "body_md": text}
        await self.mail.call("reply_message", asked, caller=SERVER)

    async def until(self, condition) -> None:
        await settled(condition, self.room.hurry(self.gateway))


async def opened(room, prepared_stores, *, config=TO_ANA, chat=None, fault=None, rules=None) -> Office:
    """Open a gateway over stores whose mail room knows Ana, who may be reached in a chat."""
    made: list[Waker] = []
    held, agent = prepared_stores.held, Agent()
    mail = Mail(held, room.clock, rules or Rules(), waker=lambda: made[0] if made else None)
    delivery = StoredChatDelivery(mail)
    if fault is not None:
        delivery.pass_on = fault(delivery.pass_on)  # type: ignore[method-assign]
    await name_person(mail, "Ana", chat)
    gateway, channel = await room.open(agent, config=config, mail=delivery, capabilities=FINAL)
    mailbox = room.opened[-1][1]
    made.append(Waker(held, mailbox, verified=False, chat_delivery=delivery, chats=MailOutbox([channel])))
    return Office(room, agent, gateway, channel, mail)


async def test_what_is_said_is_mail_to_the_person_in_order_and_their_answer_comes_back(
    room, prepared_stores
) -> None:
    office = await opened(room, prepared_stores)
    for number in range(5):
        await office.channel.say(f"number {number}")
    await all_answered(room, office.gateway, 5)
    assert await room.statuses() == {InboundStatus.DONE: 5}
    assert office.agent.activations == []
    inbox = await office.inbox()
    assert [one["body_md"] for one in inbox] == [f"number {number}" for number in range(5)]
    assert {one["subject"] for one in inbox} == {"U1 on telegram"}
    assert len({one["thread_id"] for one in inbox}) == 1
    assert office.channel.texts() == ["Ana has received your message, and will answer here."]
    await office.answer(inbox[1]["id"], "Yes.\nAt ten.")
    await office.until(lambda: len(office.channel.texts()) == 2)
    assert office.channel.texts()[1] == "Ana: Yes.\nAt ten."
    await office.channel.say("thank you")
    await all_answered(room, office.gateway, 6)
    assert (await office.inbox())[-1]["thread_id"] == inbox[0]["thread_id"]


async def test_the_person_has_it_in_the_chat_that_they_prefer_and_answers_with_reply(
    room, prepared_stores
) -> None:
    office = await opened(room, prepared_stores, chat=ANA)
    await office.channel.say("are the lights on?")
    await office.until(lambda: office.channel.texts("999"))
    [told] = office.channel.texts("999")
    assert "U1 on telegram\n\nare the lights on?" in told
    [message] = await office.inbox()
    await office.channel.say(f"/reply {message['id']} They are.", chat="999", user="u2")
    await office.until(lambda: "Ana: They are." in office.channel.texts())
    await office.until(lambda: len(office.channel.texts("999")) == 2)
    assert office.channel.texts("999")[1].startswith("Sent to human:telegram-")


async def test_quiet_hours_of_the_person_hold_what_is_said_and_those_of_the_chat_no_answer(
    room, prepared_stores
) -> None:
    config = with_rules({"999": QUIET, "12345": QUIET}, TO_ANA)
    office = await opened(room, prepared_stores, config=config, chat=ANA)
    await office.channel.say("are the lights on?")
    await all_answered(room, office.gateway, 1)
    [message] = await office.inbox()
    await office.answer(message["id"], "They are.")
    await office.until(lambda: "Ana: They are." in office.channel.texts())
    assert office.channel.texts("999") == []
    visitor = message["from"].removeprefix("human:")
    asked = {"project_key": PEOPLE_SLUG, "agent_name": visitor, "message_id": message["id"]}
    told = await office.mail.call("delivery_status", asked, caller=SERVER)
    assert [(one["state"], one["waits"]) for one in told["recipients"]] == [("stored", wording.QUIET)]


async def test_a_reply_of_the_store_that_is_lost_writes_nothing_twice(room, prepared_stores) -> None:
    lost = [True, True]

    def losing(pass_on):
        async def passed_on(said):
            await pass_on(said)
            if lost:
                lost.pop()
                raise StoreUnavailable("the process dies here")

        return passed_on

    office = await opened(room, prepared_stores, fault=losing)
    await office.channel.say("one")
    await office.channel.say("two")
    await all_answered(room, office.gateway, 2)
    assert [one["body_md"] for one in await office.inbox()] == ["one", "two"]
    assert not lost


async def test_what_was_kept_when_the_process_died_reaches_the_person_at_the_next_start(
    room, prepared_stores
) -> None:
    def dying(_):
        async def passed_on(said):
            raise StoreUnavailable("the process dies here", retryable=False)

        return passed_on

    office = await opened(room, prepared_stores, fault=dying)
    await office.channel.say("one")
    await office.channel.say("two")
    await settled(lambda: not office.gateway.intake.tasks, room.hurry(office.gateway))
    assert (await room.statuses()).get(InboundStatus.WAITING) == 2
    await room.close()
    office = await opened(room, prepared_stores)
    await all_answered(room, office.gateway, 2)
    assert [one["body_md"] for one in await office.inbox()] == ["one", "two"]


async def test_a_group_is_told_who_speaks_and_files_stay_in_the_chat(room, prepared_stores) -> None:
    office = await opened(room, prepared_stores)
    group = {"chat": "-100", "chat_type": "group"}
    await office.channel.say("hello", **group)
    await office.channel.say("look", user="u2", files=["f"], **group)
    await all_answered(room, office.gateway, 2)
    bodies = sorted([one["body_md"] for one in await office.inbox()])  # each has a session of their own
    assert bodies == ["[U1] hello", "[U2] look\n\n(1 file is in the chat, and not included here.)"]
    told = wording.files_not_passed_on("Ana")
    await office.until(lambda: told in office.channel.texts("-100"))


async def test_what_the_mail_room_refuses_is_told_and_the_next_message_passes(room, prepared_stores) -> None:
    office = await opened(room, prepared_stores, rules=Rules(max_body_bytes=100))
    await office.channel.say("x" * 101)
    await office.channel.say("short")
    await all_answered(room, office.gateway, 2)
    await office.until(lambda: len(office.channel.texts()) == 2)
    assert await room.statuses() == {InboundStatus.REJECTED: 1, InboundStatus.DONE: 1}
    assert any(one.startswith("Not sent to Ana: ") for one in office.channel.texts())
    assert [one["body_md"] for one in await office.inbox()] == ["short"]


async def test_a_person_who_was_removed_is_known_no_more(room, prepared_stores) -> None:
    office = await opened(room, prepared_stores)
    await office.mail.call(
        "retire_agent",
        {"project_key": PEOPLE_SLUG, "agent_name": "Ana"},
        caller=Caller(postroom=True, operator=True),
    )
    await office.channel.say("hello")
    await all_answered(room, office.gateway, 1)
    await office.until(lambda: office.channel.texts())
    assert office.channel.texts() == ["Not sent to Ana: human:Ana no longer exists."]


async def test_nobody_writes_to_themselves(room, prepared_stores) -> None:
    here = ChatAddress(platform="telegram", chat_id="12345")
    office = await opened(room, prepared_stores, chat=here)
    await office.channel.say("hello me")
    await all_answered(room, office.gateway, 1)
    await office.until(lambda: office.channel.texts())
    assert "arrive in this same chat" in office.channel.texts()[0]
    assert await office.inbox() == []


async def test_a_command_for_agents_says_that_a_person_answers(room, prepared_stores) -> None:
    office = await opened(room, prepared_stores)
    for words in ("/queue now", "/every 5m again", "/background think", "/compact"):
        await office.channel.say(words)
    await office.until(lambda: len(office.channel.texts()) == 4)
    assert office.channel.texts() == [wording.A_PERSON_ANSWERS] * 4
    assert office.agent.activations == []


async def test_a_person_is_chosen_for_a_chat_and_given_back(room, prepared_stores) -> None:
    routes = (Route(agent="human:Ana", mention=("ana",)),)
    office = await opened(room, prepared_stores, config=replace(CONFIG, routes=routes))
    for number, words in enumerate(("/agent ana", "hello", "/agent default", "bye"), start=1):
        await office.channel.say(words)
        await all_answered(room, office.gateway, number)
    await office.until(lambda: "re: bye" in office.channel.texts())
    assert [one["body_md"] for one in await office.inbox()] == ["hello"]
    assert office.channel.texts()[0].startswith("Ana now answers in this chat")
