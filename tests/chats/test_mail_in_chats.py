"""Messages of mail are shown in chats once, with their later state, and `/reply` answers them."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

from gateway_room import Agent, settled, with_rules
from machine import PATIENCE
from postroom.contracts.chat import CHAT_KIND
from postroom.contracts.errors import ContactBlocked, StoreUnavailable, UnknownMessage
from postroom.contracts.mail import Attachment
from postroom.contracts.people import ChatAddress, ChatWords
from postroom.gateway import wording
from postroom.gateway.config import ChatRules, DeliveryConfig
from postroom.gateway.delivery import MailOutbox
from postroom.gateway.events import SendErrorKind, SendResult
from postroom.gateway.platforms.base import UNKNOWN_ACCOUNT
from postroom.gateway.quiet import QuietHours

PIER = ChatAddress(platform="telegram", chat_id="12345")


class FakeMail:
    """A fake for tests: keeps the messages that it gets."""

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

    async def prefer(self, chats: Sequence[ChatAddress]) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.told.append(("prefer", *(one.name for one in chats)))
        return "human:ada"

    async def pass_on(self, said: ChatWords) -> None:
        raise AssertionError(said)

    async def reply(self, chats: Sequence[ChatAddress], message: int, text: str, *, key: str) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.told.append(("reply", " ".join(one.name for one in chats), message, text, key))
        return "Ada@shop"


async def opened(room, mail, **details):
    gateway, channel = await room.open(Agent(), mail=mail, **details)
    return gateway, channel, MailOutbox([channel])


async def takes(room, outbox, key, text, *, keeps_quiet=True):
    """Have a message taken in a change, as the mail room has."""
    await room.runs.store.write(
        lambda tx: outbox.enqueue(tx.outbox, key, PIER, text, keeps_quiet=keeps_quiet)
    )


async def test_a_message_is_said_once_and_the_mail_room_is_told(room) -> None:
    mail = FakeMail()
    gateway, channel, outbox = await opened(room, mail)
    assert outbox.reaches(PIER)
    assert not outbox.reaches(ChatAddress(platform="slack", chat_id="12345"))
    await takes(room, outbox, "12/7", "Message 12")
    await takes(room, outbox, "12/7", "Message 12")
    await settled(lambda: bool(mail.told))
    assert channel.texts() == ["Message 12"]
    assert mail.told == [("arrived", "12/7")]
    await takes(room, outbox, "12/7", "Message 12")
    await takes(room, outbox, "13/7", "Message 13")
    await settled(lambda: ("arrived", "13/7") in mail.told, room.hurry(gateway))
    assert channel.texts() == ["Message 12", "Message 13"]


async def test_a_message_taken_before_and_after_a_bot_told_its_account_is_said_once(
    room, monkeypatch
) -> None:
    """As after a start: left messages are found before the bot has connected."""
    mail = FakeMail()
    gateway, channel, outbox = await opened(room, mail)
    for account in ("123456", UNKNOWN_ACCOUNT, "123456"):
        monkeypatch.setattr(type(channel), "account", account)
        await takes(room, outbox, "12/7", "Message 12")
    await takes(room, outbox, "13/7", "Message 13")
    gateway.delivery.speak_for([channel])
    await settled(lambda: len(mail.told) >= 2, room.hurry(gateway))
    assert sorted(channel.texts()) == ["Message 12", "Message 13"]
    assert sorted(mail.told) == [("arrived", "12/7"), ("arrived", "13/7")]


async def test_what_one_chat_is_written_comes_in_order_also_when_much_waits_at_a_start(
    room, monkeypatch
) -> None:
    mail = FakeMail()
    gateway, channel, outbox = await opened(room, mail)
    await room.close()
    for number in range(4):
        await takes(room, outbox, f"{number}/7", f"Message {number}", keeps_quiet=bool(number % 2))
    send = type(channel).send

    refused = {"Message 0", "Message 1", "first notice"}

    async def refused_once(self, chat_id, content, reply_to=None, metadata=None):
        if content in refused:
            refused.remove(content)
            return SendResult.failed(SendErrorKind.TRANSIENT, "not now")
        return await send(self, chat_id, content, reply_to, metadata)

    monkeypatch.setattr(type(channel), "send", refused_once)
    gateway, channel, outbox = await opened(room, mail)
    await gateway.runner.services.notices.tell(channel.message("").source, "first notice", key="n1")
    await gateway.runner.services.notices.tell(channel.message("").source, "second notice", key="n2")
    await settled(lambda: len(channel.texts()) == 6, room.hurry(gateway))
    said = channel.texts()
    assert [one for one in said if one in ("Message 0", "Message 2")] == ["Message 0", "Message 2"]
    assert [one for one in said if one in ("Message 1", "Message 3")] == ["Message 1", "Message 3"]
    assert said.index("first notice") < said.index("second notice")


def attached(content: bytes, name: str) -> Attachment:
    hashed = sha256(content).hexdigest()
    return Attachment(sha256=hashed, name=name, media_type="image/png", size=len(content))


async def test_what_is_attached_to_a_message_follows_it_and_what_cannot_be_sent_is_said(room) -> None:
    mail = FakeMail()
    gateway, channel, outbox = await opened(room, mail)
    kept = {"a.png": b"\x89PNG\r\n\x1a\n", "b.png": b"<html>", "../c.png": b"c"}
    files = [attached(content, name) for name, content in kept.items()]
    gone = attached(b"gone", "gone.txt")

    def taken(tx):
        for one, content in zip(files, kept.values(), strict=True):
            tx.mail.insert_blob(one.sha256, content)
        outbox.enqueue(tx.outbox, "12/7", PIER, "Message 12", [*files, gone], keeps_quiet=False)

    send_media = channel.send_media

    async def refuses_one(chat_id, attachment, *more):
        if attachment.name == "b.png":
            return SendResult.failed(SendErrorKind.TOO_LONG, "it is too large for this chat")
        return await send_media(chat_id, attachment, *more)

    channel.send_media = refuses_one
    await room.runs.store.write(taken)
    await settled(lambda: bool(mail.told), room.hurry(gateway))
    assert [(one.name, one.kind.value, content) for one, content in channel.sent_files] == [
        ("a.png", "photo", kept["a.png"]),
        ("c.png", "document", b"c"),
    ]
    assert channel.texts() == [
        "Message 12",
        "The agent's file b.png could not be sent: it is too large for this chat.",
        "The agent's file gone.txt could not be sent: the message with this file was deleted.",
    ]
    assert mail.told == [("arrived", "12/7")]


async def test_a_mail_room_that_could_not_be_told_is_told_again(room) -> None:
    mail = FakeMail()
    mail.refusal = StoreUnavailable("not now")
    gateway, channel, outbox = await opened(room, mail)
    await takes(room, outbox, "12/7", "Message 12")
    await settled(lambda: len(mail.told) == 1)
    room.clock.advance(DeliveryConfig().lease)
    await settled(lambda: len(mail.told) == 2, room.hurry(gateway))
    assert mail.told == [("arrived", "12/7")] * 2
    assert channel.texts()[0] == "Message 12"


async def test_a_message_that_the_chat_refuses_for_good_is_told_to_be_lost(room) -> None:
    mail = FakeMail()
    gateway, channel, outbox = await opened(room, mail)
    channel.refusals.append(SendResult.failed(SendErrorKind.FORBIDDEN, "the bot was blocked"))
    await takes(room, outbox, "12/7", "Message 12")
    await settled(lambda: bool(mail.told))
    [(word, key, why)] = mail.told
    assert (word, key) == ("lost", "12/7")
    assert "the bot was blocked" in why
    await gateway._relay.idle(CHAT_KIND)
    dead = await room.runs.outbox.dead_letters(kind=CHAT_KIND, limit=5)
    assert [row.payload["mail_key"] for row in dead] == ["12/7"]


async def test_a_reply_goes_to_the_mail_room_and_is_no_prompt(room) -> None:
    mail = FakeMail()
    _agent, _, channel = await room.with_agent(mail=mail)
    await channel.say("/reply 12 Yes, do it.")
    await settled(lambda: bool(channel.texts()))
    [(word, address, message, text, key)] = mail.told
    assert (word, address, message, text) == ("reply", "telegram/12345", 12, "Yes, do it.")
    assert key.startswith("chat/telegram/12345/")
    assert channel.texts() == ["Sent to Ada@shop."]


async def test_a_reply_that_names_no_message_or_is_refused_is_explained(room) -> None:
    mail = FakeMail()
    _, channel = await room.open(Agent(), mail=mail)
    words = ("", "12", "x y", "0 y", "-1 y", "9999999999999999 y", "\N{SUPERSCRIPT TWO} y")
    for number, one in enumerate(words, 1):
        await channel.say(f"/reply {one}")
        await settled(lambda number=number: len(channel.texts()) == number)
    assert channel.texts() == ["Write a number and a text after the command: /reply <number> <text>"] * len(
        words
    )
    for mail.refusal in (UnknownMessage("this chat has received no message 12"), ContactBlocked("no")):
        await channel.say("/reply 12 Yes")
        told = f"Not sent: {mail.refusal.message}."
        await settled(lambda told=told: channel.texts()[-1] == told)
    assert mail.told == []


async def test_where_no_messages_come_a_reply_is_told_so(room) -> None:
    _, channel = await room.open(Agent())
    await channel.say("/reply 12 Yes")
    await settled(lambda: bool(channel.texts()))
    assert channel.texts() == ["This chat receives no messages from agents, so there is nothing to reply to."]


async def held_back(room, gateway, *, until):
    """Wait until the one message of the outbox is put off to this instant or later, without an attempt."""
    async with asyncio.timeout(PATIENCE):
        while True:
            rows = await room.runs.store.read(lambda tx: tx.outbox.open(CHAT_KIND, limit=10))
            found = [(row.last_error, row.attempt_count, row.available_at >= until) for row in rows]
            if found == [(wording.QUIET, 0, True)]:
                return
            gateway.wake()
            await asyncio.sleep(0)


async def test_messages_of_agents_wait_for_the_end_of_quiet_hours_and_urgent_ones_do_not(room) -> None:
    mail, quiet = FakeMail(), await asyncio.to_thread(QuietHours.parse, "22:00-07:00 UTC")
    config = with_rules({PIER.chat_id: ChatRules(quiet=quiet)})
    night = 1_700_000_000_000 // 86_400_000 * 86_400_000 + 23 * 3_600_000
    room.clock.set(night)
    gateway, channel, outbox = await opened(room, mail, config=config)
    await takes(room, outbox, "1/7", "Message 1")
    await takes(room, outbox, "2/7", "Message 2", keeps_quiet=False)
    await settled(lambda: ("arrived", "2/7") in mail.told, room.hurry(gateway))
    assert channel.texts() == ["Message 2"]
    await held_back(room, gateway, until=night)
    room.clock.set(night + 8 * 3_600_000 - 1)
    await held_back(room, gateway, until=night + 8 * 3_600_000)
    assert channel.texts() == ["Message 2"]
    room.clock.set(night + 8 * 3_600_000)
    await settled(lambda: ("arrived", "1/7") in mail.told, room.hurry(gateway))
    assert channel.texts() == ["Message 2", "Message 1"]


async def test_messages_that_wait_come_soon_when_quiet_hours_are_given_up(room) -> None:
    mail = FakeMail()
    room.clock.set(1_700_000_000_000 // 86_400_000 * 86_400_000 + 23 * 3_600_000)
    gateway, channel, outbox = await opened(room, mail)
    await channel.say("/set quiet 22:00-07:00 UTC")
    await settled(lambda: channel.texts() == ["quiet: 22:00-07:00 UTC"], room.hurry(gateway))
    await takes(room, outbox, "1/7", "Message 1")
    await held_back(room, gateway, until=room.clock.now())
    await channel.say("/set quiet off")
    await settled(lambda: channel.texts()[-1] == "quiet: off", room.hurry(gateway))
    room.clock.advance(timedelta(minutes=5))
    await settled(lambda: ("arrived", "1/7") in mail.told, room.hurry(gateway))
