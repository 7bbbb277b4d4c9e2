"""One person on several channels: a code links two chats to one conversation; refused links give the reason."""

import re
from datetime import timedelta

import pytest

from chats.test_mail_in_chats import FakeMail
from fake_channel import FakeChannel
from gateway_room import CONFIG, Agent, all_answered, busy, settled
from postroom.contracts.activation import BusyPolicy
from postroom.contracts.chat import InboundStatus
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.errors import UnknownAgent
from postroom.contracts.people import ChatAddress
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.config import PlatformConfig, Route
from postroom.gateway.session import Platform

SLACK = {"chat": "D1", "user": "U1"}
ALLOWED = {"u1": PersonRole.OWNER, "U1": PersonRole.MEMBER, "U2": PersonRole.MEMBER}


class FakeSlack(FakeChannel):
    platform = Platform.SLACK


def both(config=CONFIG):
    told = PlatformConfig(enabled=True, allow=ALLOWED)
    return replace(config, platforms={Platform.TELEGRAM: told, Platform.SLACK: told})


async def opened(room, agent=None, *, config=CONFIG, **details):
    slack = FakeSlack(clock=room.clock)
    gateway, telegram = await room.open(agent or Agent(), config=both(config), others=[slack], **details)
    return gateway, telegram, slack


class Talk:
    """Says things one after another, and waits for what becomes of each."""

    def __init__(self, room, gateway) -> None:
        self.room, self.gateway, self.said = room, gateway, 0

    async def __call__(self, channel, text, **details):
        before = len(channel.said)
        await channel.say(text, **details)
        self.said += 1
        await all_answered(self.room, self.gateway, self.said)
        await settled(lambda: len(channel.said) > before, self.room.hurry(self.gateway))
        return channel.said[before].text


async def code_of(talk, channel, **details):
    return re.search(r"/link ([A-Z2-9]{8})", await talk(channel, "/link", **details))[1]


async def link(talk, telegram, slack):
    return await talk(slack, f"/link {(await code_of(talk, telegram)).lower()}", **SLACK)


async def test_linked_chats_are_one_conversation_answered_where_something_was_said(room) -> None:
    agent = Agent()
    gateway, telegram, slack = await opened(room, agent)
    talk = Talk(room, gateway)
    await talk(telegram, "first")
    await talk(slack, "my own", **SLACK)
    assert await link(talk, telegram, slack) == wording.linked("telegram/12345")
    await settled(lambda: wording.linked_by("slack/D1") in telegram.texts(), room.hurry(gateway))
    assert await talk(slack, "second", **SLACK) == "re: second"
    assert await talk(telegram, "third") == "re: third"
    threads = {one.messages[-1].text(): one.thread_id for one in agent.activations}
    assert threads["first"] == threads["second"] == threads["third"] != threads["my own"]
    assert await talk(slack, "/link apart", **SLACK) == wording.APART
    await talk(slack, "mine again", **SLACK)
    assert await talk(slack, "/link together", **SLACK) == wording.TOGETHER
    await talk(slack, "ours", **SLACK)
    assert await talk(slack, "/unlink", **SLACK) == wording.UNLINKED
    await talk(slack, "alone", **SLACK)
    threads = {one.messages[-1].text(): one.thread_id for one in agent.activations}
    assert threads["ours"] == threads["first"]
    assert threads["alone"] == threads["mine again"] == threads["my own"]
    assert (await talk(slack, "/link", **SLACK)).startswith("Send /link")


async def test_a_linked_conversation_goes_on_after_a_restart(room) -> None:
    agent = Agent()
    gateway, telegram, slack = await opened(room, agent)
    talk = Talk(room, gateway)
    await talk(telegram, "first")
    await link(talk, telegram, slack)
    await room.close()
    gateway, telegram, slack = await opened(room, agent)
    talk.gateway = gateway
    assert await talk(slack, "second", **SLACK) == "re: second"
    assert len({one.thread_id for one in agent.activations}) == 1


@pytest.mark.parametrize("policy", [BusyPolicy.QUEUE, BusyPolicy.COLLECT, BusyPolicy.STEER])
async def test_linked_chats_have_one_run_at_a_time_and_each_its_own_answers(room, policy) -> None:
    agent = Agent()
    gateway, telegram, slack = await opened(room, agent, config=busy(policy))
    talk = Talk(room, gateway)
    await link(talk, telegram, slack)
    agent.free.clear()
    await telegram.say("one")
    await settled(agent.began(1))
    for number in range(3):
        await slack.say(f"s{number}", **SLACK)
        await telegram.say(f"t{number}")
    agent.free.set()
    await all_answered(room, gateway, talk.said + 7)
    assert max(agent.peak.values()) == 1
    await settled(
        lambda: all(f"t{number}" in " ".join(telegram.texts()) for number in range(3)), room.hurry(gateway)
    )
    told = " ".join(one.text for one in slack.said if one.text.startswith("re:"))
    assert all(f"s{number}" in told for number in range(3))
    assert "t" not in told.replace("re:", "")
    assert not re.search(r"\bs\d", " ".join(telegram.texts()))


async def test_a_draft_is_shown_in_the_chat_that_gets_the_answer(room) -> None:
    agent = Agent()
    gateway, telegram, slack = await opened(room, agent)
    talk = Talk(room, gateway)
    await link(talk, telegram, slack)
    agent.stream = ["It is a long enough beginning", " and an end."]
    agent.free.clear()
    await slack.say("s", **SLACK)
    await telegram.say("t")
    await settled(lambda: any("beginning" in one.text for one in slack.said), room.hurry(gateway))
    assert not any("beginning" in text for text in telegram.texts())
    agent.free.set()
    await all_answered(room, gateway, talk.said + 2)
    assert [one.text for one in slack.said if one.text.startswith("re: ")] == ["re: s"]
    assert [text for text in telegram.texts() if text.startswith("re: ")] == ["re: t"]


async def test_codes_that_do_not_link_are_refused_in_one_sentence(room) -> None:
    gateway, telegram, slack = await opened(room)
    talk = Talk(room, gateway)
    why = wording.NOT_LINKED_BECAUSE
    own = await code_of(talk, telegram)
    assert await talk(telegram, f"/link {own}") == why["own"]
    assert await talk(slack, f"/link {own}", **SLACK) == wording.linked("telegram/12345")
    other = {"chat": "D2", "user": "U2"}
    assert await talk(slack, f"/link {own}", **other) == why["unknown"]  # used
    assert await talk(slack, f"/link {await code_of(talk, telegram)}", **SLACK) == why["together"]
    third = {"chat": "D3", "user": "U2"}
    await talk(slack, f"/link {await code_of(talk, slack, **third)}", **other)
    assert await talk(slack, f"/link {await code_of(talk, telegram)}", **other) == why["other"]
    assert await talk(slack, "/link", chat="C1", user="U2", chat_type="group") == wording.LINKED_WHERE
    assert await talk(slack, "/unlink", chat="D9", user="U2") == wording.NOT_LINKED
    late = await code_of(talk, telegram)
    room.clock.advance(timedelta(hours=1))
    assert await talk(slack, f"/link {late}", chat="D9", user="U2") == why["unknown"]


async def test_guessed_codes_lock_the_chat_in_which_they_are_entered(room) -> None:
    gateway, telegram, slack = await opened(room)
    talk = Talk(room, gateway)
    code = await code_of(talk, telegram)
    for _ in range(5):
        assert await talk(slack, "/link AAAAAAAA", **SLACK) == wording.NOT_LINKED_BECAUSE["unknown"]
    assert await talk(slack, f"/link {code}", **SLACK) == wording.NOT_LINKED_BECAUSE["locked"]
    assert await talk(slack, f"/link {code}", chat="D2", user="U2") == wording.linked("telegram/12345")


async def test_a_link_gives_nobody_access(room) -> None:
    gateway, telegram, slack = await opened(room)
    talk = Talk(room, gateway)
    code = await code_of(talk, telegram)
    await slack.say(f"/link {code}", chat="D7", user="stranger")
    talk.said += 1
    await talk(telegram, "hello")
    assert await room.stores.links.find(ChatAddress(platform="slack", chat_id="D7")) is None


async def test_each_agent_has_one_conversation_with_a_person(room) -> None:
    agent = Agent()
    routes = (Route(agent="poet", mention=("poet",)),)
    gateway, telegram, slack = await opened(room, agent, config=replace(CONFIG, routes=routes))
    talk = Talk(room, gateway)
    await talk(telegram, "@poet one")
    await talk(telegram, "two")
    await link(talk, telegram, slack)
    await talk(slack, "@poet three", **SLACK)
    await talk(slack, "four", **SLACK)
    threads = {one.messages[-1].text(): one.thread_id for one in agent.activations}
    assert threads["@poet one"] == threads["@poet three"] != threads["two"] == threads["four"]


async def test_an_answer_for_a_channel_that_is_gone_becomes_a_dead_letter_and_others_go_on(room) -> None:
    agent = Agent()
    gateway, telegram, slack = await opened(room, agent)
    talk = Talk(room, gateway)
    await talk(telegram, "first")
    await link(talk, telegram, slack)
    agent.free.clear()
    await slack.say("s", **SLACK)
    await settled(agent.began(2))
    await room.close()
    agent.free.set()
    only = replace(CONFIG, platforms={Platform.TELEGRAM: both().platforms[Platform.TELEGRAM]})
    gateway, telegram = await room.open(agent, config=only)
    await room.opened[-1][1].recover()
    await telegram.say("t")
    await settled(lambda: "re: t" in telegram.texts(), room.hurry(gateway))
    [dead] = await gateway.outbox.dead_letters()
    assert "the chat's channel is not connected to this server" in dead.last_error
    assert (await room.statuses())[InboundStatus.FAILED] == 1


async def test_a_conversation_that_began_in_a_channel_that_is_gone_begins_anew(room) -> None:
    agent = Agent()
    gateway, telegram, slack = await opened(room, agent)
    talk = Talk(room, gateway)
    await link(talk, telegram, slack)
    await talk(slack, "s", **SLACK)
    await room.close()
    only = replace(CONFIG, platforms={Platform.TELEGRAM: both().platforms[Platform.TELEGRAM]})
    gateway, telegram = await room.open(agent, config=only)
    await telegram.say("t")
    await settled(lambda: "re: t" in telegram.texts(), room.hurry(gateway))
    assert wording.BEGAN_ANEW in telegram.texts()


async def test_what_agents_write_comes_to_the_chat_in_which_here_was_said(room) -> None:
    mail = FakeMail()
    gateway, telegram, slack = await opened(room, mail=mail)
    talk = Talk(room, gateway)
    await link(talk, telegram, slack)
    assert await talk(slack, "/here", **SLACK) == wording.reached_here("human:ada")
    assert mail.told == [("prefer", "slack/D1", "telegram/12345")]
    mail.refusal = UnknownAgent("nobody is reached in these chats")
    assert await talk(slack, "/here", **SLACK) == wording.NOBODY_REACHED
