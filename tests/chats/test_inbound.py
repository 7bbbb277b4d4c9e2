"""Lines become turns, one at a time a session, each answered once and in order."""

import asyncio
import contextlib
from datetime import timedelta

import pytest

from dispatch_room import done
from gateway_room import Agent, all_answered, at_work, both_engines, busy, settled
from postroom.contracts.chat import InboundStatus
from postroom.contracts.errors import CommitUnknown, StoreUnavailable
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.config import BusyPolicy


async def test_a_message_is_answered_where_it_was_said(room) -> None:
    agent, gateway, channel = await room.with_agent()
    event = await channel.say("hello")
    await settled(lambda: channel.texts() == ["re: hello"])
    await all_answered(room, gateway, 1)
    assert agent.read == [["hello"]]
    [said] = channel.said
    assert (said.reply_to, said.metadata["final"], said.metadata["answers"]) == (
        event.message_id,
        True,
        [event.message_id],
    )
    assert await room.statuses() == {InboundStatus.DONE: 1}
    assert (await gateway.counts()).adds_up


async def test_a_message_is_three_changes_also_in_a_session_that_was_silent_for_long(
    room, monkeypatch
) -> None:
    gateway, channel = await room.open(Agent())
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    room.clock.advance(timedelta(minutes=5))
    changes, write = [], room.runs.store.write

    async def counted(change, *, key=""):
        changes.append(change.__qualname__)
        return await write(change, key=key)

    monkeypatch.setattr(room.runs.store, "write", counted)
    said_at = room.clock.now()
    await channel.say("are you there?")
    await all_answered(room, gateway, 2)
    about_it = [one for one in changes if "purge" not in one]  # that is a round of the gateway
    assert len(about_it) == 3, about_it
    [session] = await room.stores.sessions.sessions()
    [thread] = await room.stores.sessions.threads(session.session_key)
    assert (session.active_at, thread.active_at) == (said_at, said_at)


@both_engines
@pytest.mark.parametrize("mode", [BusyPolicy.QUEUE, BusyPolicy.INTERRUPT])
async def test_twenty_at_once_have_one_agent_and_are_read_in_order(room, mode) -> None:
    agent, gateway, channel = await room.with_agent(config=busy(mode))
    words = [f"w{number}" for number in range(20)]
    for word in words:
        await channel.say(word, files=["f.png"] if word.endswith("3") else ())
    await all_answered(room, gateway, 20)
    read = [text for [text] in agent.read]
    assert read == [word for word in words if word in read]
    assert max(agent.peak.values()) == 1
    answers = [text for text in channel.texts() if not text.startswith("Queued")]
    assert len(answers) == 20
    # A cancel that is stored before the end of its run keeps the answer, marked as stopped.
    assert {answer.removesuffix("Stopped.").rstrip() for answer in answers} <= {
        *(f"re: {word}" for word in words),
        "",
    }
    assert answers[-1] == "re: w19", answers
    if mode is BusyPolicy.QUEUE:
        assert answers == [f"re: {word}" for word in words]
        assert sum(len(one) for one in agent.files) == 2


async def test_a_message_that_interrupts_a_run_which_has_ended_meanwhile_does_not_interrupt_its_own(
    room,
) -> None:
    agent, ends = Agent(), [asyncio.Event(), asyncio.Event()]

    async def answered(activation, sink):
        await ends[len(agent.read) - 1].wait()
        return done(activation, f"re: {activation.messages[0].text()}")

    agent.act = answered
    gateway, channel = await room.open(agent, config=busy(BusyPolicy.INTERRUPT))
    await at_work(agent, channel, "first")
    run_queue = room.opened[-1][1]
    accepting = run_queue.accepting

    async def overtaken(*given, **more):
        accepted = await accepting(*given, **more)
        ends[0].set()
        await settled(agent.began(2))
        return accepted

    run_queue.accepting = overtaken
    await channel.say("second")
    await settled(agent.began(2), lambda: not gateway.intake.tasks)
    ends[1].set()
    await all_answered(room, gateway, 2)
    told = [text for text in channel.texts() if not text.startswith("Queued")]
    # The interrupt is stored with the message, so it may reach the first run before that run has its answer.
    assert told in (["re: first\n\nStopped.", "re: second"], ["Stopped.", "re: second"])


async def test_a_message_that_interrupts_ends_the_run_at_work_and_is_answered_next(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True, config=busy(BusyPolicy.INTERRUPT))
    await at_work(agent, channel, "first")
    await channel.say("second")
    await settled(agent.began(2))
    agent.free.set()
    await all_answered(room, gateway, 2)
    assert [text for text in channel.texts() if not text.startswith("Queued")] == ["Stopped.", "re: second"]


async def test_a_message_interrupts_the_active_run_also_if_the_reply_to_its_hand_over_is_lost(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True, config=busy(BusyPolicy.INTERRUPT))
    await at_work(agent, channel, "first")
    run_queue = room.opened[-1][1]
    accepting = run_queue.accepting

    async def lost(*given, **more):
        run_queue.accepting = accepting
        await accepting(*given, **more)
        raise CommitUnknown("the connection broke before the answer")

    run_queue.accepting = lost
    await channel.say("second")
    await settled(agent.began(2), room.hurry(gateway))
    agent.free.set()
    await all_answered(room, gateway, 2)
    assert channel.texts() == ["Stopped.", "re: second"]


async def test_collected_messages_are_read_together_by_sender(room) -> None:
    agent = Agent()
    agent.free.clear()
    config = replace(busy(BusyPolicy.COLLECT), group_sessions_per_user=False)
    gateway, channel = await room.open(agent, config=config)
    await channel.say("first", user="u1", chat="g", chat_type="group")
    await settled(agent.began(1))
    for word, user in (("a1", "u1"), ("a2", "u1"), ("b1", "u2"), ("b2", "u2"), ("a3", "u1")):
        await channel.say(word, user=user, chat="g", chat_type="group")
    await settled(lambda: not gateway.intake.tasks)
    agent.free.set()
    await all_answered(room, gateway, 6)
    assert agent.read == [["[U1] first"], ["[U1] a1", "[U1] a2"], ["[U2] b1", "[U2] b2"], ["[U1] a3"]]
    assert agent.senders == [["u1"], ["u1", "u1"], ["u2", "u2"], ["u1"]]


async def test_a_message_for_a_busy_session_is_refused_where_that_is_the_rule(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True, config=busy(BusyPolicy.REJECT))
    await at_work(agent, channel, "first")
    for text in ("second", "third", "fourth"):
        await channel.say(text)
    await settled(lambda: not gateway.intake.tasks)
    agent.free.set()
    await all_answered(room, gateway, 4)
    assert agent.read == [["first"]]
    await settled(lambda: len(channel.texts()) == 2, room.hurry(gateway))
    assert sorted(channel.texts()) == [wording.BUSY, "re: first"]
    assert await room.statuses() == {InboundStatus.DONE: 1, InboundStatus.REJECTED: 3}


async def test_a_full_queue_refuses_and_says_so(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True, config=busy(BusyPolicy.QUEUE, max_waiting=2))
    await at_work(agent, channel, "w0")
    for number in range(1, 5):
        await channel.say(f"w{number}")
    await settled(lambda: not gateway.intake.tasks)
    agent.free.set()
    await all_answered(room, gateway, 5)
    assert agent.read == [["w0"], ["w1"], ["w2"]]
    refusal = "Rejected: 2 messages are already waiting here. Send it again later."
    assert channel.texts().count(refusal) == 2


async def test_sessions_do_not_wait_for_one_another(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    for number in range(8):
        await channel.say("hi", chat=f"c{number}")
    await settled(agent.began(8))
    assert len(agent.peak) == 8
    agent.free.set()
    await all_answered(room, gateway, 8)


async def test_messages_are_not_overtaken_while_the_store_is_out_of_order(room, monkeypatch) -> None:
    agent, gateway, channel = await room.with_agent()
    run_queue, failures = room.opened[-1][1], [StoreUnavailable("full")] * 3
    accepting = run_queue.accepting

    async def failing(*given, **more):
        if failures:
            raise failures.pop()
        return await accepting(*given, **more)

    monkeypatch.setattr(run_queue, "accepting", failing)
    for word in ("one", "two", "three"):
        await channel.say(word)
    await all_answered(room, gateway, 3)
    assert agent.read == [["one"], ["two"], ["three"]]
    assert failures == []


@both_engines
async def test_what_was_left_waiting_is_answered_first_and_in_order_at_the_next_start(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    for number in range(33):
        await channel.say(f"w{number}")
    await settled(agent.began(1), lambda: not gateway.intake.tasks)
    await room.close()
    agent.free.set()
    agent.read.clear()
    again, channel = await room.open(agent)
    await room.opened[-1][1].recover()
    await all_answered(room, again, 33)
    assert [text for [text] in agent.read] == [f"w{number}" for number in range(33)]
    assert max(agent.peak.values()) == 1
    answers = [text for text in channel.texts() if text.startswith("re: ")]
    assert answers == [f"re: w{number}" for number in range(33)]


async def test_a_message_that_was_left_too_long_is_not_answered_and_its_sender_is_told(room) -> None:
    agent, _, channel = await room.with_agent()
    draft = channel.message("old")
    await room.close()
    from postroom.contracts.chat import InboundKey, InboundMessage

    key = InboundKey(platform="telegram", account="bot", chat_id="12345", message_id="m-old")
    await room.stores.intake_log.receive(
        InboundMessage(
            key=key, session_key="agent:main:telegram:dm:12345", sender_id="u1", body=draft.to_body()
        )
    )
    room.clock.advance(timedelta(hours=2))
    gateway, channel = await room.open(agent)
    await all_answered(room, gateway, 1)
    await settled(lambda: bool(channel.said), room.hurry(gateway))
    assert agent.read == []
    assert "60 minutes" in channel.texts()[0]


@contextlib.asynccontextmanager
async def on_its_way(room, gateway, channel, text):
    """Send a message to a busy session and block it between the intake log and its thread."""
    mailbox = room.opened[-1][1]
    accepting, goes_on, held = mailbox.accepting, asyncio.Event(), asyncio.Event()

    async def slow(*given, **more):
        held.set()
        await goes_on.wait()
        return await accepting(*given, **more)

    mailbox.accepting = slow
    event = await channel.say(text)
    await held.wait()
    yield event
    goes_on.set()
    await settled(lambda: not gateway.intake.tasks)


async def test_a_message_that_is_edited_or_deleted_on_its_way_is_read_so(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await at_work(agent, channel, "first")
    async with on_its_way(room, gateway, channel, "secnod") as event:
        await channel.edit(event, "second")
    async with on_its_way(room, gateway, channel, "oh no") as event:
        await channel.take_back(event)
    agent.free.set()
    await all_answered(room, gateway, 3)
    assert agent.read == [["first"], ["second"]]
    assert await room.statuses() == {InboundStatus.DONE: 2, InboundStatus.RETRACTED: 1}
    assert (await gateway.counts()).adds_up


async def test_a_message_that_another_process_handed_over_too_stays_handed_over(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await at_work(agent, channel, "first")
    async with on_its_way(room, gateway, channel, "second"):
        other, _ = await room.open(agent)
        await settled(lambda: not other.intake.tasks)
        assert (await room.statuses())[InboundStatus.HANDED_OVER] == 2
    agent.free.set()
    await all_answered(room, gateway, 2)
    assert agent.read == [["first"], ["second"]]


async def test_strangers_get_a_code_in_private_and_nothing_elsewhere(room) -> None:
    agent, gateway, channel = await room.with_agent()
    await channel.say("let me in", user="stranger", chat="s")
    await channel.say("me too", user="stranger", chat="g", chat_type="group")
    await all_answered(room, gateway, 2)
    await settled(lambda: bool(channel.texts("s")), room.hurry(gateway))
    code = channel.texts("s")[0].split("pair telegram ")[1].split("`")[0]
    assert agent.read == []
    assert channel.texts("g") == []
    assert await gateway.people.pair("telegram", code.lower()) is not None
    await channel.say("now?", user="stranger", chat="s")
    await all_answered(room, gateway, 3)
    assert agent.read == [["now?"]]
