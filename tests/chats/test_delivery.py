"""Messages are sent once, in order, despite faults of platforms; or they are kept with the reason."""

import asyncio
from datetime import timedelta
from typing import Any

from dispatch_room import done
from gateway_room import Agent, all_answered, at_work, delivery, settled, tried
from postroom.contracts.agent_events import StreamReset, TextDelta
from postroom.contracts.chat import InboundStatus
from postroom.contracts.errors import Overloaded, StoreUnavailable, Unauthorized
from postroom.contracts.outbox import line_lock
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.capabilities import ChannelCapabilities
from postroom.gateway.events import SendErrorKind, SendResult
from postroom.gateway.replies import target_name

FINAL = ChannelCapabilities(limit=200)
EDITS = ChannelCapabilities(limit=200, edits=True, min_edit_interval_ms=0)
TARGET = target_name("telegram", "bot")


def failed(kind: SendErrorKind, **more) -> SendResult:
    return SendResult.failed(kind, "the platform says no", **more)


async def test_an_answer_that_a_crash_cut_off_is_marked_when_it_is_said_again(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True, capabilities=FINAL)
    await at_work(agent, channel, "hello")
    channel.refusals.append(asyncio.CancelledError())  # the process dies here
    agent.free.set()
    await settled(lambda: not channel.refusals, room.hurry(gateway))
    room.clock.advance(timedelta(minutes=3))
    await room.close()
    gateway, channel = await room.open(agent, channel=channel)
    await all_answered(room, gateway, 1)
    assert channel.texts() == [f"{wording.POSSIBLE_DUPLICATE}\nre: hello"]


async def test_an_adapter_that_breaks_its_promise_does_not_hold_up_its_conversation(room) -> None:
    gateway, channel = await room.open(Agent(), config=delivery(max_attempts=2), capabilities=FINAL)
    channel.refusals += [KeyError("ok"), KeyError("ok")]
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    [dead] = await room.runs.outbox.dead_letters(kind="chat")
    assert "KeyError" in dead.last_error
    await channel.say("and now?")
    await all_answered(room, gateway, 2)
    assert channel.texts() == ["re: and now?"]


async def test_a_platform_that_asks_for_patience_is_asked_again_later_however_often_it_does(room) -> None:
    rules = delivery(max_attempts=2, max_age=timedelta(seconds=10))
    gateway, channel = await room.open(Agent(), config=rules, capabilities=FINAL)
    later = SendResult.failed(SendErrorKind.RATE_LIMITED, "too many requests", retry_after_ms=3_000)
    channel.refusals += [later] * 7
    began = room.clock.now()
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    assert channel.texts() == ["re: hello"]
    assert room.clock.now() - began >= 7 * 3_000
    assert await room.runs.outbox.dead_letters(kind="chat") == ()


async def test_what_lies_in_the_dead_letter_queue_can_be_sent_after_all(room) -> None:
    gateway, channel = await room.open(Agent(), capabilities=FINAL)
    channel.refusals.append(failed(SendErrorKind.FORBIDDEN))
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    [dead] = await room.runs.outbox.dead_letters(kind="chat")
    room.clock.advance(timedelta(days=2))
    assert await room.runs.outbox.revive(dead.outbox_id) is not None
    await settled(lambda: channel.texts() == ["re: hello"], room.hurry(gateway))


async def test_an_answer_that_was_given_before_its_acknowledgement_is_not_given_again(room) -> None:
    gateway, channel = await room.open(Agent(), capabilities=FINAL)
    write, lost = room.runs.store.write, [True]

    async def lossy(change, *, key=""):
        done = await write(change, key=key)
        if key == line_lock("chat", "telegram/bot") and lost:
            lost.clear()
            raise StoreUnavailable("the process dies here")
        return done

    room.runs.store.write = lossy
    await channel.say("hello")
    await settled(lambda: not lost, room.hurry(gateway))
    room.clock.advance(timedelta(minutes=5))
    await channel.say("again")
    await all_answered(room, gateway, 2)
    assert channel.texts() == ["re: hello", "re: again"]


async def test_what_was_tried_too_often_goes_to_the_dead_letter_queue(room) -> None:
    gateway, channel = await room.open(Agent(), capabilities=FINAL, config=delivery(max_attempts=3))
    channel.refusals += [failed(SendErrorKind.TRANSIENT)] * 3
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    assert not channel.refusals
    assert await room.statuses() == {InboundStatus.FAILED: 1}


async def test_an_answer_that_is_too_old_is_not_sent(room) -> None:
    gateway, channel = await room.open(
        Agent(), capabilities=FINAL, config=delivery(max_age=timedelta(seconds=2))
    )
    channel.refusals.append(failed(SendErrorKind.TRANSIENT, retry_after_ms=4_000))
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    assert channel.texts() == []
    assert await room.statuses() == {InboundStatus.FAILED: 1}


async def test_a_later_answer_does_not_overtake_one_that_has_to_wait(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True, capabilities=FINAL)
    await at_work(agent, channel, "one")
    channel.refusals += [failed(SendErrorKind.TRANSIENT)] * 2
    await channel.say("two")
    await channel.say("three", chat="other")
    agent.free.set()
    await all_answered(room, gateway, 3)
    texts = [text for text in channel.texts() if text.startswith("re:")]
    assert sorted(texts) == ["re: one", "re: two"]
    assert channel.texts("other") == ["re: three"]


async def test_what_is_said_in_part_goes_on_where_it_stopped(room) -> None:
    gateway, channel = await room.open(Agent(), capabilities=FINAL)
    text = " ".join(f"word{number}" for number in range(100))
    first = channel._answered
    calls = []

    def second_fails(shown):
        calls.append(1)
        return failed(SendErrorKind.TRANSIENT) if len(calls) == 2 else first(shown)

    channel._answered = second_fails
    await channel.say(text)
    await all_answered(room, gateway, 1)
    assert " ".join(channel.texts()) == f"re: {text}"


async def test_a_cut_stream_leaves_no_draft_beside_the_answer(room) -> None:
    agent, beginning = Agent(), "I think that this is a rather good beginning "

    async def broken_twice(activation, sink):
        for _ in range(3):
            await sink.emit(TextDelta(delta=beginning))
            await settled(lambda: bool(channel.said), room.hurry(gateway))
            await sink.emit(StreamReset(reason="cut"))
        if len(agent.read) == 1:
            raise Overloaded("busy")  # the next attempt begins another draft
        return done(activation, "the whole answer")

    agent.act = broken_twice
    gateway, channel = await room.open(agent, capabilities=EDITS)
    await channel.say("hello")
    await tried(room, agent, 2)
    await all_answered(room, gateway, 1)
    assert channel.texts() == ["the whole answer"]


async def test_a_run_that_fails_says_so_and_the_next_one_is_answered(room) -> None:
    agent = Agent()
    outcomes = [Unauthorized("the key is wrong"), None]

    async def act(activation, sink):
        error = outcomes.pop(0)
        if error is not None:
            raise error
        from dispatch_room import done

        return done(activation, "fine")

    agent.act = act
    gateway, channel = await room.open(agent, capabilities=FINAL)
    await channel.say("one")
    await channel.say("two")
    await all_answered(room, gateway, 2)
    texts = [text for text in channel.texts() if not text.startswith("Queued")]
    assert texts[0].startswith("The agent could not answer: ")
    assert texts[1] == "fine"
    assert await room.statuses() == {InboundStatus.FAILED: 1, InboundStatus.DONE: 1}


async def test_typing_is_shown_from_the_moment_a_message_is_taken(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await channel.say("one")
    await settled(agent.began(1), lambda: not gateway.intake.tasks, lambda: channel.typed >= 1)
    before = channel.typed
    await channel.say("two")
    await settled(lambda: channel.typed == before + 1)
    await settled(lambda: channel.typed > before + 2, room.hurry(gateway))  # also while it is at work
    agent.free.set()
    await all_answered(room, gateway, 2)


async def test_typing_is_shown_again_after_an_attempt_that_failed(room, monkeypatch) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    failing, typing = [StoreUnavailable("away")], channel.send_typing

    async def fails_once(*given: Any, **named: Any) -> None:
        if "answers" in (given[1] or {}) and failing:
            raise failing.pop()
        await typing(*given, **named)

    monkeypatch.setattr(channel, "send_typing", fails_once)
    await channel.say("one")
    await settled(lambda: not failing, room.hurry(gateway))
    before = channel.typed
    await settled(lambda: channel.typed > before, room.hurry(gateway))
    agent.free.set()
    await all_answered(room, gateway, 1)


async def test_rows_that_cannot_be_read_go_to_the_dead_letter_queue_and_keep_nobody_waiting(room) -> None:
    from postroom.contracts.outbox import OutboxDraft

    await room.runs.outbox.enqueue(OutboxDraft(kind="chat", target=TARGET, payload={"kind": "nonsense"}))
    gateway, channel = await room.open(Agent())
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    assert channel.texts() == ["re: hello"]
    async with asyncio.timeout(90):  # the answer does not wait for it, and may be there before it
        while not await room.runs.outbox.dead_letters(kind="chat"):
            await settled(room.hurry(gateway))
    assert len(await room.runs.outbox.dead_letters(kind="chat")) == 1


async def test_who_wrote_during_an_outage_is_told_once_and_answered_when_it_is_over(room) -> None:
    agent, tries = Agent(), list[int]()

    async def down(activation, sink):
        tries.append(activation.attempt)
        agent.act = down if len(tries) < 6 else None
        raise Overloaded("the account of Example Ltd is overloaded")

    agent.act = down
    gateway, channel = await room.open(agent, capabilities=FINAL)
    await channel.say("hello")
    await tried(room, agent, 7)
    await all_answered(room, gateway, 1)
    told, answer = channel.texts()
    assert told.startswith("No answer yet: ")
    assert "overloaded" in told
    assert "Example" not in told
    assert answer == "re: hello"
    assert tries == [1, 2, 3, 4, 5, 6]


async def test_who_wrote_is_told_that_there_is_no_answer_yet_after_the_attempts_that_are_set(room) -> None:
    agent, tries = Agent(), list[int]()

    async def down(activation, sink):
        tries.append(activation.attempt)
        agent.act = down if len(tries) < 3 else None
        raise Overloaded("the provider is down")

    agent.act = down
    gateway, channel = await room.open(agent, capabilities=FINAL, attempts=2)
    await channel.say("hello")
    await tried(room, agent, 4)
    await all_answered(room, gateway, 1)
    assert [text.split(":")[0] for text in channel.texts()] == ["No answer yet", "re"]
    assert tries == [1, 2, 3]


async def test_who_holds_a_request_open_is_told_of_a_failure_after_the_usual_attempts(room) -> None:
    agent, tries = Agent(), []

    async def down(activation, sink):
        tries.append(activation.attempt)
        raise Overloaded("the provider is down")

    agent.act = down
    gateway, channel = await room.open(agent, capabilities=replace(FINAL, holds_requests=True))
    await channel.say("hello")
    await tried(room, agent, 5)
    await all_answered(room, gateway, 1)
    assert tries == [1, 2, 3, 4, 5]
    assert channel.texts() == ["The agent could not answer: the model provider is overloaded"]


async def test_an_answer_says_itself_where_it_goes_and_is_looked_up_only_where_it_may_have_arrived(
    room, monkeypatch
) -> None:
    gateway, channel = await room.open(Agent(), capabilities=FINAL)
    looked, answered = [], room.stores.answered

    async def counted(*about):
        looked.append(about)
        return await answered(*about)

    monkeypatch.setattr(room.stores, "answered", counted)
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    assert (channel.texts(), looked) == (["re: hello"], [])
    channel.refusals.append(failed(SendErrorKind.UNKNOWN))
    await channel.say("again")
    await all_answered(room, gateway, 2)
    assert len(looked) == 1
    assert await room.statuses() == {InboundStatus.DONE: 2}
