"""`/catchup` summarises a project in a chat, each time since the last summary there."""

from typing import Any

import pytest

from gateway_room import CONFIG, Agent, settled
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.session import Platform
from postroom.mail.context import Caller
from postroom.mail.people import StoredChatDelivery
from postroom.mail.service import Mail

SERVER = Caller(postroom=True, operator=True)


class Office:
    """A chat with a gateway, and a mail room with two agents."""

    def __init__(self, mail: Mail, channel: Any) -> None:
        self.mail, self.channel = mail, channel

    async def open(self, folder: str) -> None:
        await self.mail.call("ensure_project", {"human_key": folder}, caller=SERVER)
        for name in ("Ada", "Ben"):
            who = {"project_key": folder, "program": "p", "model": "m", "name": name}
            await self.mail.call("register_agent", who, caller=SERVER)

    async def send(self, folder: str, subject: str) -> None:
        message = {"sender_name": "Ada", "to": ["Ben"], "subject": subject, "body_md": "b"}
        await self.mail.call("send_message", {"project_key": folder, "thread_id": subject, **message})

    async def asked(self, words: str, **more: Any) -> str:
        """Return the answer to a command."""
        before = len(self.channel.texts())
        await self.channel.say(words, **more)
        await settled(lambda: len(self.channel.texts()) > before)
        return str(self.channel.texts()[-1])


@pytest.fixture
async def office(room: Any, prepared_stores: Any) -> Office:
    mail = Mail(prepared_stores.held, room.clock)
    _, channel = await room.open(Agent(), mail=StoredChatDelivery(mail))
    return Office(mail, channel)


async def test_each_summary_begins_where_the_last_one_in_the_chat_ended(office: Office) -> None:
    assert await office.asked("/catchup") == "There are no projects. Write /catchup <project>."
    await office.open("/projects/shop")
    await office.send("/projects/shop", "Lights")
    first = await office.asked("/catchup")
    assert first.startswith("projects-shop\nSince ")
    assert '- Ada wrote a message about "Lights" (thread "Lights").' in first
    await office.send("/projects/shop", "Lamps")
    second = await office.asked("/catchup projects-shop")
    assert ("Lights" in second, 'about "Lamps"' in second) == (False, True)
    assert "0 events" in await office.asked("/catchup")
    await office.open("/projects/shore")
    assert await office.asked("/catchup") == "There are several projects. Write /catchup <project>."
    assert "Write /catchup <project>." in await office.asked("/catchup nowhere")
    assert (await office.asked("/catchup projects-shore")).startswith("projects-shore\n")
    assert "0 events" in await office.asked("/catchup projects-shop")


async def test_only_operators_may_ask_for_a_summary(room: Any) -> None:
    telegram = CONFIG.platforms[Platform.TELEGRAM]
    people = {**telegram.allow, "u9": PersonRole.MEMBER}
    config = replace(CONFIG, platforms={Platform.TELEGRAM: replace(telegram, allow=people)})
    _, channel = await room.open(Agent(), config=config)
    await channel.say("/catchup", user="u9")
    await settled(lambda: bool(channel.texts()))
    assert channel.texts() == [wording.NOT_ALLOWED]
    await channel.say("/catchup")
    await settled(lambda: len(channel.texts()) == 2)
    assert channel.texts()[1] == "This chat receives no messages from agents."
