"""Questions of every kind in a chat: buttons for choices, a reply to the card for words, and the inbox of an owner."""

import asyncio
import re

import pytest

from fake_channel import FakeChannel
from gateway_room import Agent, settled
from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import Unauthorized
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.messages import ContentBlock, Message, Role
from postroom.contracts.questions import Asked, asked_for
from postroom.contracts.runs import RunWaitingState, RunWaitingTicket, TerminationReason, WaitingReason

CURRENCY = asked_for(choices=["EUR", "USD"])
WORDS = asked_for(wants_text=True)


async def asked(room, asks: Asked, *more: Asked, channel: FakeChannel | None = None):
    """Start an agent that asks such questions; return the channel, the first card, and how to wait."""
    agent = Agent()

    async def act(activation, sink):
        if activation.decisions:
            [(_, resume)] = activation.decisions
            return AgentRunResult(run_id=activation.run_id, response=f"heard: {resume.reason}")
        tickets = [
            RunWaitingTicket(
                ticket_id=f"t{place}", tool_call_id=f"c{place}", tool_name="ask", reason="Which?", asked=one
            )
            for place, one in enumerate((asks, *more))
        ]
        waiting = RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=tuple(tickets))
        return AgentRunResult(
            run_id=activation.run_id, termination=TerminationReason.suspended(), waiting=waiting
        )

    agent.act = act
    room.agent = agent
    gateway, channel = await room.open(agent, channel=channel)
    await channel.say("go")

    async def until(*conditions) -> None:
        await settled(*conditions, room.hurry(gateway))

    await until(lambda: sum(one.card is not None for one in channel.said) == 1 + len(more))
    [card, *_] = [one for one in channel.said if one.card]
    await until(lambda: not gateway.intake.tasks)
    return channel, card, until


async def fails(activation, sink):
    raise Unauthorized("the key is not known")


async def test_each_choice_has_a_button_and_the_pressed_one_is_the_answer(room) -> None:
    channel, card, until = await asked(room, CURRENCY)
    assert [one.label for one in card.card.buttons] == ["EUR", "USD"]
    assert await channel.press(card.card.buttons[1].value) == "Answered: USD by U1."
    await until(lambda: "heard: USD" in channel.texts(), lambda: not card.card.buttons)


async def test_the_end_of_the_run_removes_the_buttons_of_a_question_that_nobody_answered(room) -> None:
    channel, card, until = await asked(room, CURRENCY, CURRENCY)
    [_, other] = [one for one in channel.said if one.card]
    await channel.press(card.card.buttons[1].value)
    await until(lambda: "heard: USD" in channel.texts(), lambda: not other.card.buttons)
    assert "no longer" in other.text


async def test_a_reply_to_the_card_answers_a_question_that_takes_words(room) -> None:
    channel, card, until = await asked(room, WORDS)
    assert "You can also reply to this message" in card.text
    assert card.card.buttons == ()
    await channel.say("Name it Ben.", reply_to_message_id=card.message_id)
    await until(lambda: "heard: Name it Ben." in channel.texts())


async def test_a_reply_to_a_card_answers_while_the_card_is_still_being_stored(room, monkeypatch) -> None:
    write, stored, shown = room.runs.store.write, asyncio.Event(), FakeChannel(clock=room.clock)

    async def late(*given, **named):
        if any(one.card for one in shown.said):
            monkeypatch.setattr(room.runs.store, "write", write)
            await stored.wait()
        return await write(*given, **named)

    monkeypatch.setattr(room.runs.store, "write", late)
    channel, card, until = await asked(room, WORDS, channel=shown)
    await channel.say("Name it Ben.", reply_to_message_id=card.message_id)
    [(gateway, _)] = room.opened
    await until(lambda: not gateway.intake.tasks)
    stored.set()
    await until(lambda: "heard: Name it Ben." in channel.texts())


async def test_a_reply_that_does_not_fit_is_told_at_once_and_the_question_stays_open(room) -> None:
    channel, card, until = await asked(room, CURRENCY)
    await channel.say("GBP", reply_to_message_id=card.message_id)
    told = "it accepts one of: EUR, USD, from everybody who may answer questions."
    await until(lambda: any(one.startswith("Not answered: ") and told in one for one in channel.texts()))
    await channel.say("eur", reply_to_message_id=card.message_id)
    await until(lambda: "heard: EUR" in channel.texts())


async def test_a_message_that_answers_no_question_is_told_how_to_answer_the_open_one(room) -> None:
    channel, card, until = await asked(room, CURRENCY)
    number = card.card.buttons[0].value.split()[1]
    await channel.say("EUR")
    told = f"Queued. This does not answer the open question, which comes first. To answer the question: /answer {number} EUR | USD"
    await until(lambda: told in channel.texts())
    assert card.card.buttons != ()


async def test_an_owner_lists_all_open_questions_and_the_command_that_answers_each(room) -> None:
    channel, card, until = await asked(room, CURRENCY)
    number = card.card.buttons[0].value.split()[1]
    await channel.say("/inbox")
    await until(lambda: any(f"Which?\n/answer {number} EUR | USD" in one for one in channel.texts()))
    await channel.say(f"/answer {number} 1")
    await until(lambda: "heard: EUR" in channel.texts())
    await channel.say("/inbox")
    await until(lambda: "No open questions." in channel.texts())


async def test_an_owner_answers_the_question_of_a_project_agent_and_the_chat_goes_on(room) -> None:
    channel, card, until = await asked(room, CURRENCY)
    await channel.press(card.card.buttons[0].value)
    await until(lambda: "heard: EUR" in channel.texts())
    [(_, mailbox)] = room.opened
    work = Message(role=Role.USER, content=(ContentBlock(text="go", data={}),))
    await mailbox.submit_background(RunActivation.new("agent:shop/Ash", [work]))
    await mailbox.settled()
    await channel.say("/inbox")
    await until(lambda: any(one.startswith("Which?\n/answer ") for one in channel.texts()))
    number = channel.texts()[-1].split()[2]
    await channel.say(f"/answer {number} USD")
    await until(lambda: "Answered: USD by U1." in channel.texts())
    await channel.say("/inbox")
    await until(lambda: "No open questions." in channel.texts())


async def test_the_inbox_shows_the_action_that_a_yes_permits_and_a_long_one_whole_on_demand(room) -> None:
    short, long = asked_for(action="DROP TABLE a"), asked_for(action="DROP TABLE b;\n" * 100 + "THE END")
    channel, _, until = await asked(room, short, long)
    numbers = [one.card.buttons[0].value.split()[1] for one in channel.said if one.card]
    await channel.say("/inbox")
    await until(lambda: any(f"/approve {numbers[1]} or" in one for one in channel.texts()))
    listed = channel.texts()[-1]
    assert f"A yes permits exactly this:\n```\nDROP TABLE a\n```\nWhich?\n/approve {numbers[0]} or" in listed
    assert f"an action of 1,407 characters, which begins like this. /inbox {numbers[1]} shows all" in listed
    assert "THE END" not in listed
    await channel.say(f"/inbox {numbers[1]}")
    await until(lambda: any("THE END" in one for one in channel.texts()[-3:]))
    await channel.say("/inbox abcdef")
    await until(lambda: channel.texts()[-1].startswith("Question abcdef is not open."))


async def test_the_inbox_continues_after_the_twentieth_question(room) -> None:
    channel, _, until = await asked(room, WORDS)
    [(_, mailbox)] = room.opened
    for number in range(20):
        work = Message(role=Role.USER, content=(ContentBlock(text="go", data={}),))
        await mailbox.submit_background(RunActivation.new(f"agent:shop/Ash{number}", [work]))
    await mailbox.settled()
    await channel.say("/inbox")
    await until(lambda: any("More: /inbox after " in one for one in channel.texts()))
    [more] = [one for one in channel.texts() if "More: /inbox after " in one]
    await channel.say(more.rpartition("More: ")[2])
    await until(lambda: channel.texts()[-1].count("Which?\n/answer ") == 1)
    await channel.say("/inbox after abcdef")
    await until(lambda: channel.texts()[-1].startswith("Question abcdef is not open."))


async def test_the_inbox_lists_failed_runs_and_groups_those_with_the_same_error(room) -> None:
    channel, card, until = await asked(room, CURRENCY)
    [(_, mailbox)] = room.opened
    room.agent.act = fails
    for agent in ("Ash", "Bo", "Bo"):
        work = Message(role=Role.USER, content=(ContentBlock(text="go", data={}),))
        await mailbox.submit_background(RunActivation.new(f"agent:shop/{agent}", [work]))
        await mailbox.settled()
    await channel.say("/inbox")
    await until(lambda: any("Failed runs:" in one for one in channel.texts()))
    questions, failed = channel.texts()[-1].split("Failed runs:")
    assert "Which?" in questions
    bo, ash, how = failed.strip().splitlines()
    assert re.match(
        r"- Bo@shop failed 2 times, last at 20\S+Z: unauthorized: the key is not known \(run ", bo
    )
    assert re.match(r"- Ash@shop failed at 20\S+Z: unauthorized: the key is not known \(run ", ash)
    assert how.endswith("or with `postroom runs replay` and `postroom runs discard`.")
    number = card.card.buttons[0].value.split()[1]
    await channel.say(f"/inbox {number}")
    await until(lambda: sum(one.startswith("Which?\n/answer ") for one in channel.texts()) == 2)
    assert "Failed runs:" not in channel.texts()[-1]


async def test_the_card_of_an_answered_question_still_shows_its_action(room) -> None:
    channel, card, until = await asked(room, asked_for(action="DROP TABLE a"))
    await channel.press(card.card.buttons[0].value)
    await until(lambda: not card.card.buttons)
    assert card.text == "A yes permits exactly this:\n```\nDROP TABLE a\n```\n\nWhich?\n\nApproved by U1."


@pytest.mark.parametrize(
    "name", ["K\u202eim", "Kim\nDenied", "x" * 65, "postroom", "human:System", "default", "D.e.fault"]
)
async def test_a_display_name_that_no_person_has_is_replaced_by_the_id_of_the_platform(
    room, name: str
) -> None:
    channel, card, until = await asked(room, CURRENCY)
    number = card.card.buttons[0].value.split()[1]
    await channel.say(f"/answer {number} USD", name=name)
    await until(lambda: {"heard: USD", "Answered: USD by u1."} <= {*channel.texts()})


async def test_the_next_turn_removes_the_buttons_of_a_question_asked_again_and_repeats_no_open_card(
    room,
) -> None:
    agent = Agent()

    async def act(activation, sink):
        asks = ("A?", "B?", "C?") if not activation.decisions else ("B?",)
        turn = len(activation.decisions)
        tickets = tuple(
            RunWaitingTicket(
                ticket_id=f"{text}{turn}",
                tool_call_id=f"{text}{turn}",
                tool_name="ask",
                reason=text,
                asked=asked_for(choices=["EUR", "GBP"] if turn else ["EUR", "USD"]),
            )
            for text in asks
        )
        waiting = RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=tickets)
        end = TerminationReason.suspended()
        return AgentRunResult(run_id=activation.run_id, termination=end, waiting=waiting)

    agent.act = act
    room.agent = agent
    gateway, channel = await room.open(agent)
    await channel.say("go")

    def cards() -> list[tuple[str, list[str]]]:
        """Return the text and the buttons of each card, in the order in which the chat shows them."""
        shown = [one for one in channel.said if one.card is not None]
        texts = [next(text for text in ("A?", "B?", "C?") if text in one.text) for one in shown]
        return [(text, [b.label for b in one.card.buttons]) for text, one in zip(texts, shown, strict=True)]

    dollars, pounds = ["EUR", "USD"], ["EUR", "GBP"]
    await settled(lambda: cards() == [("A?", dollars), ("B?", dollars), ("C?", dollars)], room.hurry(gateway))
    first = next(one for one in channel.said if one.card is not None)
    await channel.press(first.card.buttons[0].value)
    after = [("A?", []), ("B?", []), ("C?", dollars), ("B?", pounds)]
    await settled(lambda: cards() == after, room.hurry(gateway))
