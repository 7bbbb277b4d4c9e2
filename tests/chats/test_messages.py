"""Messages of the mail room are said in chats once, what became of them is told, and `/reply` answers them."""

from datetime import timedelta
from typing import Any

import pytest

from gateway_room import Agent, delivery, settled
from postroom.contracts.chat import CHAT_LANE
from postroom.contracts.errors import ContactBlocked, StoreUnavailable, UnknownMessage
from postroom.contracts.people import ChatPlace
from postroom.gateway.events import SendErrorKind, SendResult
from postroom.gateway.messages import MessageCarrier

PIER = ChatPlace(platform="telegram", chat_id="12345")


class FakeBoxes:
    """A fake for tests: keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.refusal: Exception | None = None

    async def arrived(self, key: str) -> None:
        self.told.append(("arrived", key))
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal

    async def lost(self, key: str, why: str) -> None:
        self.told.append(("lost", key, why))

    async def reply(self, place: ChatPlace, message: int, text: str, *, key: str) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.told.append(("reply", place.name, message, text, key))
        return "Ada@shop"


async def carried(room, boxes, **details):
    gateway, channel = await room.open(Agent(), boxes=boxes, **details)
    carrier = MessageCarrier(room.runs.outbox, [channel], gateway.wake)
    return gateway, channel, carrier


async def test_a_message_is_said_once_and_the_mail_room_is_told(room):
    boxes = FakeBoxes()
    gateway, channel, carrier = await carried(room, boxes)
    assert carrier.reaches(PIER)
    assert not carrier.reaches(ChatPlace(platform="slack", chat_id="12345"))
    await carrier.carry("12/7", PIER, "Message 12")
    await carrier.carry("12/7", PIER, "Message 12")
    await settled(lambda: bool(boxes.told))
    assert channel.texts() == ["Message 12"]
    assert boxes.told == [("arrived", "12/7")]
    await carrier.carry("12/7", PIER, "Message 12")
    await carrier.carry("13/7", PIER, "Message 13")
    await settled(lambda: ("arrived", "13/7") in boxes.told, room.hurry(gateway))
    assert channel.texts() == ["Message 12", "Message 13"]


async def test_a_mail_room_that_could_not_be_told_is_told_again(room):
    boxes = FakeBoxes()
    boxes.refusal = StoreUnavailable("not now")
    soon = delivery(lease=timedelta(milliseconds=500))
    gateway, channel, carrier = await carried(room, boxes, config=soon)
    await carrier.carry("12/7", PIER, "Message 12")
    await settled(lambda: len(boxes.told) == 1)
    await settled(lambda: len(boxes.told) == 2, room.hurry(gateway))
    assert boxes.told == [("arrived", "12/7")] * 2
    assert channel.texts()[0] == "Message 12"


async def test_a_message_that_the_chat_refuses_for_good_is_told_to_be_lost(room):
    boxes = FakeBoxes()
    gateway, channel, carrier = await carried(room, boxes)
    channel.refusals.append(SendResult.failed(SendErrorKind.FORBIDDEN, "the bot was blocked"))
    await carrier.carry("12/7", PIER, "Message 12")
    await settled(lambda: bool(boxes.told))
    [(word, key, why)] = boxes.told
    assert (word, key) == ("lost", "12/7")
    assert "the bot was blocked" in why
    await gateway.services.delivery.idle()
    dead = await room.runs.outbox.dead_letters(lane=CHAT_LANE, limit=5)
    assert [row.payload["message"] for row in dead] == ["12/7"]


async def test_a_reply_goes_to_the_mail_room_and_is_no_prompt(room):
    boxes = FakeBoxes()
    agent = Agent()
    _, channel = await room.open(agent, boxes=boxes)
    await channel.say("/reply 12 Yes, do it.")
    await settled(lambda: bool(channel.texts()))
    [(word, place, message, text, key)] = boxes.told
    assert (word, place, message, text) == ("reply", "telegram/12345", 12, "Yes, do it.")
    assert key.startswith("chat/telegram/12345/")
    assert channel.texts() == ["Sent to Ada@shop."]


@pytest.mark.parametrize(
    "words", ["", "12", "x y", "0 y", "-1 y", "9999999999999999 y", "\N{SUPERSCRIPT TWO} y"]
)
async def test_a_reply_that_names_no_message_or_says_nothing_is_explained(room, words):
    boxes = FakeBoxes()
    _, channel = await room.open(Agent(), boxes=boxes)
    await channel.say(f"/reply {words}")
    await settled(lambda: bool(channel.texts()))
    assert channel.texts() == ["Say which and what: /reply <number> <text>"]
    assert boxes.told == []


@pytest.mark.parametrize("refusal", [UnknownMessage("no message 12 came to this chat"), ContactBlocked("no")])
async def test_a_reply_that_is_refused_says_why(room, refusal):
    boxes = FakeBoxes()
    boxes.refusal = refusal
    _, channel = await room.open(Agent(), boxes=boxes)
    await channel.say("/reply 12 Yes")
    await settled(lambda: bool(channel.texts()))
    assert channel.texts() == [f"It was not sent: {refusal.message}."]


async def test_where_no_messages_come_a_reply_is_told_so(room):
    _, channel = await room.open(Agent())
    await channel.say("/reply 12 Yes")
    await settled(lambda: bool(channel.texts()))
    assert channel.texts() == ["No messages come to this chat."]
