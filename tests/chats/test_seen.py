"""A message that will be answered is marked as seen until its answer arrives, and the mark delays nothing."""

import asyncio

import pytest

from fake_channel import ALL, FakeChannel
from gateway_room import Agent, all_answered, busy, delivery, settled
from log_lines import capture_logs
from postroom.contracts.errors import Unauthorized
from postroom.contracts.records import replace
from postroom.gateway.config import BusyPolicy, PlatformConfig
from postroom.gateway.events import SendErrorKind, SendResult
from postroom.gateway.platforms.base import TOO_OFTEN

REACTS = replace(ALL, reactions=True)
GROUP = {"chat": "-100", "chat_type": "group"}


def failed(kind: SendErrorKind, why: str = "the platform says no", **more) -> SendResult:
    return SendResult.failed(kind, why, **more)


async def test_a_message_in_a_group_is_marked_until_it_is_answered(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True, capabilities=REACTS)
    event = await channel.say("hello", **GROUP)
    await settled(agent.began(1), lambda: channel.marks == [(event.message_id, True)])
    agent.free.set()
    await all_answered(room, gateway, 1)
    await settled(lambda: channel.marks == [(event.message_id, True), (event.message_id, False)])
    assert channel.texts("-100") == ["re: hello"]


async def test_a_mark_goes_away_with_a_refusal_too(room) -> None:
    agent = Agent()

    async def act(activation, sink):
        raise Unauthorized("the key is wrong")

    agent.act = act
    gateway, channel = await room.open(agent, capabilities=REACTS)
    event = await channel.say("hello", **GROUP)
    await all_answered(room, gateway, 1)
    await settled(lambda: channel.marks == [(event.message_id, True), (event.message_id, False)])


async def test_a_mark_goes_away_when_the_answer_cannot_be_delivered(room) -> None:
    gateway, channel = await room.open(Agent(), capabilities=REACTS, config=delivery(max_attempts=1))
    channel.refusals.append(failed(SendErrorKind.FORBIDDEN))
    event = await channel.say("hello", **GROUP)
    await all_answered(room, gateway, 1)
    await settled(lambda: channel.marks == [(event.message_id, True), (event.message_id, False)])


async def test_messages_that_a_command_drops_lose_their_marks(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True, capabilities=REACTS)
    first = await channel.say("one", **GROUP)
    await settled(agent.began(1))
    second = await channel.say("two", **GROUP)
    await settled(lambda: (second.message_id, True) in channel.marks, lambda: not gateway.intake.tasks)
    await channel.say("/new", **GROUP)
    await settled(lambda: (second.message_id, False) in channel.marks, room.hurry(gateway))
    agent.free.set()
    await all_answered(room, gateway, 3)
    assert (first.message_id, True) in channel.marks


async def test_a_message_that_is_refused_at_once_is_never_marked(room) -> None:
    agent, gateway, channel = await room.with_agent(
        held=True, capabilities=REACTS, config=busy(BusyPolicy.REJECT)
    )
    first = await channel.say("one", **GROUP)
    await settled(agent.began(1), lambda: not gateway.intake.tasks)
    await channel.say("two", **GROUP)
    await channel.say("/status", **GROUP)
    await settled(lambda: len(channel.said) == 2, room.hurry(gateway))
    agent.free.set()
    await all_answered(room, gateway, 3)
    assert {message_id for message_id, _ in channel.marks} == {first.message_id}


async def test_the_setting_decides_and_without_it_only_groups_have_marks(room) -> None:
    agent, cases = Agent(), []
    for setting, capabilities in ((None, REACTS), (True, REACTS), (False, REACTS), (True, ALL)):
        channel = FakeChannel(
            PlatformConfig(enabled=True, reactions=setting), capabilities=capabilities, clock=room.clock
        )
        gateway, _ = await room.open(agent, channel=channel)
        sent = {"dm": (await channel.say("hello")).message_id}
        sent["group"] = (await channel.say("hello", **GROUP)).message_id
        await settled(lambda shown=channel: len(shown.said) == 2, room.hurry(gateway))
        marked = {message_id for message_id, _ in channel.marks}
        cases.append({name for name, message_id in sent.items() if message_id in marked})
        await room.close()
    assert cases == [{"group"}, {"dm", "group"}, set(), set()]


@pytest.mark.parametrize("refusal", [failed(SendErrorKind.BAD_FORMAT, "REACTION_INVALID"), OSError("broken")])
async def test_a_platform_that_refuses_marks_holds_up_no_answer(room, refusal) -> None:
    gateway, channel = await room.open(Agent(), capabilities=REACTS)
    channel.mark_refusal = refusal
    for number, text in enumerate(("one", "two", "three"), start=1):
        await channel.say(text, **GROUP)
        await all_answered(room, gateway, number)
    assert channel.texts("-100") == ["re: one", "re: two", "re: three"]
    tried = 1 if isinstance(refusal, SendResult) else 3
    assert len(channel.marks) == tried


async def test_a_platform_that_never_answers_to_a_mark_holds_up_no_answer(room) -> None:
    gateway, channel = await room.open(Agent(), capabilities=REACTS)
    channel.marks_hang = asyncio.Event()
    event = await channel.say("hello", **GROUP)
    await all_answered(room, gateway, 1)
    assert channel.texts("-100") == ["re: hello"]
    assert channel.marks == [(event.message_id, True)]
    channel.marks_hang.set()
    await settled(lambda: channel.marks[1:] == [(event.message_id, False)])


async def test_a_mark_that_has_no_turn_is_not_tried_again_and_one_to_take_away_waits_for_its_turn(
    room,
) -> None:
    agent, gateway, channel = await room.with_agent(capabilities=REACTS)
    channel.mark_refusal = failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=500)
    await channel.say("one", **GROUP)
    await all_answered(room, gateway, 1)
    assert [shows for _, shows in channel.marks] == [True]
    channel.mark_refusal = None
    agent.free.clear()
    await channel.say("two", **GROUP)
    await settled(lambda: len(channel.marks) == 2, agent.began(2))
    channel.mark_refusal = failed(SendErrorKind.RATE_LIMITED, TOO_OFTEN, retry_after_ms=500)
    agent.free.set()
    await all_answered(room, gateway, 2)
    await settled(lambda: len(channel.marks) == 5, room.hurry(gateway))
    channel.mark_refusal = None
    await settled(lambda: not gateway._presenter.seen._tasks, room.hurry(gateway))
    assert [shows for _, shows in channel.marks][:2] == [True, True]
    assert not any(shows for _, shows in channel.marks[2:])


async def test_a_chat_that_refuses_marks_is_said_once_in_the_log(room) -> None:
    gateway, channel = await room.open(Agent(), capabilities=REACTS)
    channel.mark_refusal = failed(SendErrorKind.FORBIDDEN, "missing_scope")
    with capture_logs() as lines:
        for number in range(1, 4):
            await channel.say("hello", **GROUP)
            await all_answered(room, gateway, number)
    assert [line["event"] for line in lines].count("reactions.off") == 1
