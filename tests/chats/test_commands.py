"""Commands act in their turn, also during a run; the agent reads only the words that some give it."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

from gateway_room import CONFIG, Agent, all_answered, at_work, both_engines, settled
from postroom.contracts.chat import InboundMessage, InboundStatus
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import Overloaded, Unauthorized, UnknownDispatch
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery, ThreadCommit
from postroom.contracts.runs import (
    RunWaitingState,
    RunWaitingTicket,
    Summary,
    SummaryDraft,
    TerminationReason,
    WaitingReason,
)
from postroom.gateway import wording
from postroom.gateway.commands import BY_NAME, COMMANDS
from postroom.gateway.config import Route
from postroom.gateway.session import Platform, inbound_key


async def said(room, gateway, channel, number: int) -> list[str]:
    """Return the sent messages once there are this many."""
    await settled(lambda: len(channel.said) >= number, room.hurry(gateway))
    return channel.texts()


async def test_help_lists_what_one_may_use(room) -> None:
    agent, gateway, channel = await room.with_agent()
    await channel.say("/help", user="u2")
    [text] = await said(room, gateway, channel, 1)
    assert "/status" in text
    assert "/sethome" not in text
    assert "/approve" not in text
    assert agent.read == []
    await all_answered(room, gateway, 1)


async def test_an_unknown_command_is_named_and_never_read(room) -> None:
    agent, gateway, channel = await room.with_agent()
    await channel.say("/frobnicate now")
    assert await said(room, gateway, channel, 1) == [
        "There is no command /frobnicate. /help lists the commands."
    ]
    await channel.say("/etc/passwd is a path")
    await all_answered(room, gateway, 2)
    assert agent.read == [["/etc/passwd is a path"]]


async def test_who_may_not_use_a_command_is_told_so(room) -> None:
    gateway, channel = await room.open(Agent())
    await channel.say("/sethome", user="u2")
    assert await said(room, gateway, channel, 1) == ["You are not allowed to do that here."]


async def test_a_viewer_looks_and_is_told_that_writing_is_not_for_viewers(room) -> None:
    agent, telegram = Agent(), CONFIG.platforms[Platform.TELEGRAM]
    people = {**telegram.allow, "u9": PersonRole.VIEWER}
    config = replace(CONFIG, platforms={Platform.TELEGRAM: replace(telegram, allow=people)})
    gateway, channel = await room.open(agent, config=config)
    await channel.say("/status", user="u9")
    await channel.say("/stop", user="u9")
    await channel.say("hello", user="u9")
    await all_answered(room, gateway, 3)
    await settled(lambda: len(channel.said) == 3, room.hurry(gateway))
    shown = channel.texts()
    assert any("Active: no" in text for text in shown)
    assert wording.NOT_ALLOWED in shown
    assert wording.ONLY_LOOKS in shown
    assert agent.read == []


@contextlib.asynccontextmanager
async def being_handed_over(room, channel, text: str):
    """Send a message to an idle chat, and block the change that hands it over."""
    mailbox, held, goes_on = room.opened[-1][1], asyncio.Event(), asyncio.Event()
    accepting = mailbox.accepting

    async def slow(*given, **more):
        held.set()
        await goes_on.wait()
        return await accepting(*given, **more)

    mailbox.accepting = slow
    async with asyncio.TaskGroup() as group:
        group.create_task(channel.handle_message(channel.message(text, user="u2")))
        await held.wait()
        yield
        goes_on.set()
        mailbox.accepting = accepting


async def test_a_stop_that_comes_with_the_message_itself_obeys_the_role_of_the_command(room) -> None:
    agent = Agent()
    config = replace(CONFIG, command_roles={"stop": PersonRole.OWNER})
    gateway, channel = await room.open(agent, config=config)
    async with being_handed_over(room, channel, "one"):
        await channel.handle_message(channel.message("/stop", user="u2"))
        await settled(lambda: wording.NOT_ALLOWED in channel.texts(), room.hurry(gateway))
    await all_answered(room, gateway, 2)
    assert agent.read == [["one"]]


async def test_a_stop_that_comes_with_the_message_itself_stops_the_run_before_it_begins(room) -> None:
    _, gateway, channel = await room.with_agent(held=True)
    async with being_handed_over(room, channel, "one"):
        await channel.handle_message(channel.message("/stop"))
        await settled(lambda: wording.STARTING_UP in channel.texts(), room.hurry(gateway))
    await all_answered(room, gateway, 2)
    assert "Stopped." in channel.texts()


async def test_stop_ends_the_run_and_keeps_what_waits(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await at_work(agent, channel, "one")
    await channel.say("two")
    await settled(lambda: not gateway.intake.tasks)
    await channel.say("/stop")
    await settled(agent.began(2), room.hurry(gateway))
    agent.free.set()
    await all_answered(room, gateway, 3)
    await settled(
        lambda: {"Stopped.", "re: two"} <= {*channel.texts()},
        lambda: any(text.startswith("Stopping.\n1 waiting") for text in channel.texts()),
        room.hurry(gateway),
    )


async def test_stop_ends_a_run_that_waits_for_its_next_attempt(room) -> None:
    agent = Agent()

    async def busy(activation, sink):
        raise Overloaded("the provider is busy", retry_after_ms=60_000)

    agent.act = busy
    gateway, channel = await room.open(agent)
    [(_, mailbox)] = room.opened
    await at_work(agent, channel, "one")
    await mailbox.settled()
    await channel.say("/stop")
    await settled(lambda: not gateway.intake.tasks)
    assert [run.status for run in await room.runs.threads.list_runs(RunQuery())] == ["done"]
    room.clock.advance(timedelta(hours=1))
    assert await mailbox.poll() == 0
    await settled(lambda: "Stopped." in channel.texts(), room.hurry(gateway))
    assert len(agent.read) == 1


async def test_stop_all_drops_what_waits_and_lists_it(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    for word in ("one", "two", "three"):
        await channel.say(word)
    await settled(agent.began(1), lambda: not gateway.intake.tasks)
    await channel.say("/stop all")
    await all_answered(room, gateway, 4)
    listed = "Dropped: 2\n- two\n- three"
    await settled(lambda: any(listed in text for text in channel.texts()), room.hurry(gateway))
    assert agent.read == [["one"]]
    assert (await room.statuses())[InboundStatus.RETRACTED] == 2


async def test_status_says_what_is_at_work_and_what_waits(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await channel.say("/status")
    [idle] = await said(room, gateway, channel, 1)
    assert "Active: no\nWaiting: 0\nWhile busy: queue" in idle
    for word in ("one", "two"):
        await channel.say(word)
    await settled(agent.began(1), lambda: not gateway.intake.tasks)
    await channel.say("/status")
    await settled(
        lambda: any("Active: yes\nWaiting: 1" in text for text in channel.texts()), room.hurry(gateway)
    )


async def test_new_begins_a_conversation_and_resume_takes_up_the_old_one(room) -> None:
    agent, gateway, channel = await room.with_agent()
    await channel.say("in the first")
    await all_answered(room, gateway, 1)
    await channel.say("/title First")
    await channel.say("/new")
    await all_answered(room, gateway, 3)
    await channel.say("in the second")
    await all_answered(room, gateway, 4)
    first, second = (one.thread_id for one in agent.activations)
    assert first != second
    await channel.say("/resume")
    await settled(lambda: any("1. First" in text for text in channel.texts()), room.hurry(gateway))
    await channel.say("/resume First")
    await all_answered(room, gateway, 6)
    await channel.say("back")
    await all_answered(room, gateway, 7)
    assert agent.activations[-1].thread_id == first


async def test_a_message_right_behind_a_command_is_about_what_the_command_made(room) -> None:
    agent, gateway, channel = await room.with_agent()
    await channel.say("in the first")
    await all_answered(room, gateway, 1)
    await channel.say("/new")
    await channel.say("right behind it")
    await all_answered(room, gateway, 3)
    await channel.say("and the next")
    await all_answered(room, gateway, 4)
    assert agent.read == [["in the first"], ["right behind it"], ["and the next"]]
    first, second, third = (one.thread_id for one in agent.activations)
    assert first != second == third
    assert "Dropped" not in " ".join(channel.texts())


@pytest.mark.parametrize(
    "failure", [Overloaded("not now"), RuntimeError("a defect")], ids=["passing", "defect"]
)
async def test_messages_behind_a_command_keep_their_order_whatever_becomes_of_it(
    room, failure, monkeypatch
) -> None:
    agent, gateway, channel = await room.with_agent()
    may_go_on = asyncio.Event()

    async def failing(commands, call):
        await may_go_on.wait()
        raise failure

    monkeypatch.setitem(BY_NAME, "new", replace(BY_NAME["new"], run=failing))
    async with asyncio.TaskGroup() as group:
        for text in ("/new", "one", "two", "three"):
            group.create_task(gateway.intake.accept(channel.message(text)))
    assert agent.read == []
    may_go_on.set()
    await settled(lambda: agent.read == [["one"], ["two"], ["three"]], lambda: not gateway.intake.tasks)


async def test_a_command_that_hangs_holds_up_neither_the_start_nor_another_chat(room, monkeypatch) -> None:
    agent, gateway, channel = await room.with_agent()
    for chat, text in (
        ("a", "/title Stuck"),
        ("a", "/new"),
        ("a", "behind"),
        ("b", "/title Free"),
        ("b", "hi"),
    ):
        event = channel.message(text, chat=chat)
        draft = InboundMessage(
            key=inbound_key(event.source, event.message_id),
            session_key=gateway.config.session_key(event.source),
            sender_id=event.source.user_id,
            body=event.to_body(),
        )
        await room.stores.intake_log.receive(draft)
    await room.close()  # as a process that died after it had kept them
    put, may_go_on = room.stores.sessions.put, asyncio.Event()

    async def hanging(session, **more):
        if session.session_key.endswith(":a"):
            await may_go_on.wait()
        return await put(session, **more)

    monkeypatch.setattr(room.stores.sessions, "put", hanging)
    async with asyncio.timeout(60):
        gateway, channel = await room.open(agent)
    await settled(lambda: agent.read == [["hi"]], room.hurry(gateway))
    await gateway.intake.accept(channel.message("and the newest", chat="a"))
    assert await gateway.intake.sweep() == 0  # the waiting messages are in the queue of their chat
    may_go_on.set()
    await all_answered(room, gateway, 6)
    assert agent.read == [["hi"], ["behind"], ["and the newest"]]
    assert agent.activations[-1].thread_id == agent.activations[-2].thread_id
    [titled] = [one for one in await room.stores.sessions.threads("agent:main:telegram:dm:a") if one.title]
    assert (titled.title, titled.thread_id != agent.activations[-1].thread_id) == ("Stuck", True)


@both_engines
async def test_search_finds_what_was_said_in_any_of_the_conversations(room) -> None:
    gateway, channel = await room.open(Agent())
    await channel.say("the green pier needs paint")
    await all_answered(room, gateway, 1)
    await channel.say("/title Piers")
    await channel.say("/new")
    await all_answered(room, gateway, 3)
    await channel.say("something else")
    await all_answered(room, gateway, 4)
    await channel.say("/search pier PAINT")
    await settled(
        lambda: (
            channel.texts()[-1] == "Piers: re: the green pier needs paint\nPiers: the green pier needs paint"
        ),
        room.hurry(gateway),
    )
    await channel.say("/search nowhere")
    await settled(lambda: channel.texts()[-1] == "No matches.", room.hurry(gateway))


@both_engines
async def test_search_finds_the_messages_that_a_summary_stands_for(room) -> None:
    agent, gateway, channel = await room.with_agent()
    await channel.say("the green pier needs paint")
    await all_answered(room, gateway, 1)
    thread_id = agent.activations[-1].thread_id
    messages = await room.runs.threads.load_messages(thread_id)
    summary = SummaryDraft(
        summary=Summary(number=1, text="Of harbours."), covers=tuple(message.id for message in messages)
    )
    await room.runs.coordinator.commit(ThreadCommit(thread_id=thread_id, summary=summary))
    found = await room.runs.threads.recent_conversation(thread_id, "new")
    assert (found.summary.text, found.messages) == ("Of harbours.", ())
    await channel.say("/search paint")
    await settled(
        lambda: (
            channel.texts()[-1]
            == "untitled: re: the green pier needs paint\nuntitled: the green pier needs paint"
        ),
        room.hurry(gateway),
    )


@both_engines
async def test_search_finds_messages_by_the_names_of_their_files(room) -> None:
    gateway, channel = await room.open(Agent())
    channel.kept_files["../Plan of the pier.pdf"] = b"%PDF-1"
    await channel.say("", files=["../Plan of the pier.pdf"])
    await all_answered(room, gateway, 1)
    await channel.say("/search PLAN pdf")
    await settled(lambda: channel.texts()[-1] == "untitled: [Plan of the pier.pdf]", room.hurry(gateway))


async def test_commands_of_a_session_are_done_in_the_order_in_which_they_came(room, monkeypatch) -> None:
    gateway, channel = await room.open(Agent())
    await channel.say("in the first")
    await all_answered(room, gateway, 1)
    title, may_go_on, waits = BY_NAME["title"], asyncio.Event(), asyncio.Event()

    async def slowly(commands, call):
        waits.set()
        await may_go_on.wait()
        return await title.run(commands, call)

    monkeypatch.setitem(BY_NAME, "title", replace(title, run=slowly))
    await channel.say("/title First")
    await waits.wait()
    await channel.say("/new")
    await channel.say("/stop")
    assert await said(room, gateway, channel, 2) == ["re: in the first", wording.NOTHING_TO_STOP]
    may_go_on.set()
    assert (await said(room, gateway, channel, 4))[2:] == ["Title: First", "Started a new conversation."]
    await channel.say("/resume")
    assert (await said(room, gateway, channel, 5))[-1].startswith("1. First")


async def test_undo_hides_the_last_exchange_and_retry_asks_again(room) -> None:
    agent = Agent()
    seen = []

    async def look(activation, sink):
        control = activation.control
        thread = await control.threads.load_messages(activation.thread_id)
        seen.append([message.text() for message in thread if control.shows(message)])
        text = activation.messages[-1].text()
        return AgentRunResult(run_id=activation.run_id, response=f"re: {text}")

    agent.act = look
    gateway, channel = await room.open(agent)
    await channel.say("one")
    await all_answered(room, gateway, 1)
    await channel.say("two")
    await all_answered(room, gateway, 2)
    await channel.say("/undo")
    await all_answered(room, gateway, 3)
    await channel.say("three")
    await all_answered(room, gateway, 4)
    assert seen[-1] == ["one", "re: one", "three"]
    await channel.say("/retry")
    await all_answered(room, gateway, 5)
    assert seen[-1] == ["one", "re: one", "three"]
    assert channel.texts()[-1] == "re: three"


WORDS_THAT_A_COMMAND_CANNOT_READ = {
    "status": ["now"],
    "stop": ["now", "all of it"],
    "new": ["please"],
    "reset": ["please"],
    "retry": ["x", "2"],
    "undo": ["a", "0", "-1", "1 2", "1.5", "²", "9" * 5_000],
    "compact": ["now"],
    "usage": ["all"],
    "inbox": ["all"],
    "link": ["a b", "AAAA", "1" * 8],
    "unlink": ["now"],
    "here": ["now"],
    "sethome": ["now"],
    "busy": ["perhaps"],
    "voice": ["loud"],
    "set": ["colour blue", "busy perhaps", "reset perhaps", "quiet perhaps"],
    "agent": ["Nobody"],
    "model": ["none-of-these"],
    "resume": ["²", "9" * 5_000],
    "every": ["x", "stop", "stop x", "99m", "mon at noon x", "mon at 9:00 Mars/Base x"],
    "remind": ["x", "10m", "0m x"],
    "reply": ["x", "²  x", "5"],
    "approve": ["x"],
    "deny": ["x"],
}
"""By command, words that it cannot read, or that name nothing."""


async def test_words_that_a_command_cannot_read_change_nothing_and_are_answered_in_a_sentence(room) -> None:
    agent, gateway, channel = await room.with_agent()
    for text in ("one", "two"):
        await channel.say(text)
        await all_answered(room, gateway, len(channel.said) + 1)
    asked = [f"/{name} {words}" for name, each in WORDS_THAT_A_COMMAND_CANNOT_READ.items() for words in each]
    assert {one.name for one in COMMANDS if one.form or not one.usage} <= {
        "start",
        "reset",
        *WORDS_THAT_A_COMMAND_CANNOT_READ,
    }
    before = len(channel.said)
    for number, text in enumerate(asked, 1):
        await channel.say(text)
        told = (await said(room, gateway, channel, before + number))[-1]
        assert "\n" not in told, text
        assert told[0].isupper(), text
        assert told[-1] in ".>", text
        assert not told.endswith((":.", ": .", "..")), text
        if text.split()[0] in ("/undo", "/retry", "/usage", "/stop", "/new"):
            assert told.startswith(f"Not done: {text.split()[0]} takes "), text
    await channel.say("three")
    await all_answered(room, gateway, before + len(asked) + 1)
    assert agent.read == [["one"], ["two"], ["three"]]
    await channel.say("/undo 3")
    assert (await said(room, gateway, channel, len(channel.said) + 1))[-1] == "Removed the last 3 exchanges."


async def test_help_explains_one_command(room) -> None:
    gateway, channel = await room.open(Agent())
    for number, (word, told) in enumerate(
        [
            ("undo", "/undo [n]: remove the last exchanges from the conversation"),
            ("/Q", "/queue <text>: run this text separately, after the active run"),
            ("frobnicate", "There is no command /frobnicate. /help lists the commands."),
            ("sethome", "You are not allowed to do that here."),
        ],
        1,
    ):
        await channel.say(f"/help {word}", user="u2")
        assert (await said(room, gateway, channel, number))[-1] == told


async def test_undo_and_retry_say_that_the_agent_is_at_work_and_what_to_do(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await at_work(agent, channel, "one")
    told = "Not done: the agent is busy. Send this command again after the answer, or send /stop first."
    for number, command in enumerate(("/undo", "/retry"), 1):
        await channel.say(command)
        await settled(lambda number=number: channel.texts() == [told] * number, room.hurry(gateway))
    agent.free.set()
    await all_answered(room, gateway, 3)
    assert channel.texts() == [told, told, "re: one"]


async def test_a_run_that_was_given_up_and_is_retried_in_the_chat_is_no_dead_letter_any_more(room) -> None:
    agent = Agent()

    async def fail(activation, sink):
        raise Unauthorized("the key is not known")

    async def work(activation, sink):
        return AgentRunResult(run_id=activation.run_id, response="at last")

    agent.act = fail
    gateway, channel = await room.open(agent)
    await channel.say("one")
    await said(room, gateway, channel, 1)
    [dead] = await room.runs.dispatches.list_by_status(RunDispatchStatus.DEAD_LETTER, limit=9)
    agent.act = work
    await channel.say("/retry")
    await settled(lambda: channel.texts()[-1] == "at last", room.hurry(gateway))
    assert await room.runs.dispatches.list_by_status(RunDispatchStatus.DEAD_LETTER, limit=9) == ()
    [(_, mailbox)] = room.opened
    with pytest.raises(UnknownDispatch):
        await mailbox.replay_dead_letter(dead.dispatch_id)


async def test_a_way_that_was_chosen_for_the_session_holds(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await channel.say("/busy reject")
    await said(room, gateway, channel, 1)
    await at_work(agent, channel, "one")
    await channel.say("two")
    await settled(lambda: any(text.startswith("Rejected") for text in channel.texts()), room.hurry(gateway))
    await channel.say("/queue three")
    await settled(lambda: not gateway.intake.tasks)
    agent.free.set()
    await all_answered(room, gateway, 4)
    assert agent.read == [["one"], ["three"]]


async def test_background_work_is_done_beside_the_conversation(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await at_work(agent, channel, "one")
    await channel.say("/background two")
    await settled(agent.began(2))
    agent.free.set()
    await all_answered(room, gateway, 2)
    assert len({one.thread_id for one in agent.activations}) == 2
    assert {"re: one", "re: two"} <= set(channel.texts())


def asking(agent: Agent, says: str = "") -> None:
    """Make the agent ask before it answers, and say something before it asks."""

    async def act(activation, sink):
        if activation.decisions:
            [(_, resume)] = activation.decisions
            return AgentRunResult(run_id=activation.run_id, response=f"approved: {resume.approved}")
        ticket = RunWaitingTicket(
            ticket_id="t1", tool_call_id="c1", tool_name="delete", arguments={"path": "a"}
        )
        waiting = RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,))
        return AgentRunResult(
            run_id=activation.run_id,
            response=says,
            termination=TerminationReason.suspended(),
            waiting=waiting,
        )

    agent.act = act


async def test_what_is_said_before_a_question_answers_the_message_once_and_its_card_does_not(room) -> None:
    agent = Agent()
    asking(agent, says="There are two.")
    gateway, channel = await room.open(agent)
    asked = await channel.say("delete a")
    await settled(lambda: any(one.card for one in channel.said), room.hurry(gateway))
    [said, card] = channel.said
    assert (said.text, said.reply_to) == ("There are two.", asked.message_id)
    assert said.metadata["answers"] == [asked.message_id]
    assert (card.reply_to, card.metadata.get("answers"), card.metadata["read"]) == (
        None,
        None,
        [asked.message_id],
    )
    await channel.say("/stop")
    await settled(lambda: len(channel.said) == 3, room.hurry(gateway))
    assert channel.texts()[-1] == wording.STOPPED


WITH_BO = replace(CONFIG, routes=(Route(agent="Bo@harbour", mention=("bo",)),))


async def test_status_knows_the_run_of_another_agent_of_the_chat(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True, config=WITH_BO)
    await at_work(agent, channel, "@bo go")
    await channel.say("/status")
    busy = "Active: yes, but the run belongs to another agent of this chat\nWaiting: 0"
    await settled(lambda: any(busy in one for one in channel.texts()), room.hurry(gateway))
    agent.free.set()
    await all_answered(room, gateway, 2)


async def test_status_and_approve_know_the_question_of_another_agent_of_the_chat(room) -> None:
    agent = Agent()
    asking(agent)
    gateway, channel = await room.open(agent, config=WITH_BO)
    await channel.say("@bo delete a")
    await settled(lambda: any(one.card for one in channel.said), room.hurry(gateway))
    [card] = [one for one in channel.said if one.card]
    number = card.card.buttons[0].value.removeprefix("approve ")
    await channel.say("/status")
    waits = "Active: no, the run waits for the answer to a question"
    await settled(
        lambda: any(waits in one and f"Question ({number}): " in one for one in channel.texts()),
        room.hurry(gateway),
    )
    await channel.say("/approve Blue")
    told = f"Not answered: the number of the question must come first.\nOpen now: /approve {number}: "
    await settled(lambda: any(one.startswith(told) for one in channel.texts()), room.hurry(gateway))


async def test_one_run_is_not_counted_as_several(room) -> None:
    gateway, channel = await room.open(Agent())
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    await channel.say("/usage")
    await settled(lambda: any(one.startswith("1 run: ") for one in channel.texts()), room.hurry(gateway))


async def test_a_question_outlives_the_process_and_is_answered_by_a_command(room) -> None:
    agent = Agent()
    asking(agent)
    gateway, channel = await room.open(agent)
    await channel.say("delete a")
    await settled(lambda: any(one.card for one in channel.said), room.hurry(gateway))
    [card] = [one for one in channel.said if one.card]
    number = card.card.buttons[0].value.removeprefix("approve ")
    await room.close()
    gateway, channel = await room.open(agent)
    await channel.say("/deny not that one")  # no number: another question may be open than the person saw
    await settled(lambda: any(f"Open now: /deny {number}: " in one for one in channel.texts()))
    await channel.say(f"/deny {number} not that one")
    await settled(lambda: "approved: False" in channel.texts(), room.hurry(gateway))
    await all_answered(room, gateway, 3)


async def test_stop_ends_a_run_that_asks_and_its_question_has_no_answer_any_more(room) -> None:
    agent = Agent()
    asking(agent)
    gateway, channel = await room.open(agent)
    await channel.say("delete a")
    await settled(lambda: any(one.card for one in channel.said), room.hurry(gateway))
    [card] = [one for one in channel.said if one.card]
    pressed = card.card.buttons[0].value  # a person may press it before the stop has taken it away
    await channel.say("/stop")
    await settled(lambda: "Stopped." in channel.texts(), room.hurry(gateway))
    await all_answered(room, gateway, 2)
    assert [text for text in channel.texts() if text.startswith("Stop")] == ["Stopped."]
    said = await channel.press(pressed)
    assert said is not None
    assert said.endswith("is not open. Closed: the run was cancelled.")
    await all_answered(room, gateway, 2)


async def test_a_question_that_is_still_open_is_not_posted_again_and_no_card_keeps_its_buttons(room) -> None:
    agent = Agent()
    tickets = tuple(
        RunWaitingTicket(
            ticket_id=f"t{one}", tool_call_id=f"c{one}", tool_name="ask", reason=f"Number {one}?"
        )
        for one in range(3)
    )

    async def act(activation, sink):
        answered = len(activation.decisions)
        told.update(call for call, _ in activation.decisions)
        left = tuple(one for one in tickets if one.tool_call_id not in told)
        words = "Three things." if not answered or len(left) > 1 else "One thing is left."
        return AgentRunResult(
            run_id=activation.run_id,
            response=words,
            termination=TerminationReason.suspended(),
            waiting=RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=left),
        )

    told: set[str] = set()
    agent.act = act
    gateway, channel = await room.open(agent)
    await channel.say("ask")
    await settled(lambda: len([one for one in channel.said if one.card]) == 3, room.hurry(gateway))
    for number in (2, 0):
        [card] = [one for one in channel.said if one.text == f"Number {number}?"]
        assert await channel.press(card.card.buttons[0].value) == "Approved by U1."
        await settled(lambda number=number: f"c{number}" in told, room.hurry(gateway))
    await settled(lambda: "One thing is left." in channel.texts(), room.hurry(gateway))
    await settled(lambda: len(cards_with_buttons(channel)) == 1, room.hurry(gateway))
    await channel.say("/stop")
    await settled(lambda: not cards_with_buttons(channel), room.hurry(gateway))
    assert len([one for one in channel.said if one.card]) == 3
    assert [channel.texts().count(one) for one in ("Three things.", "One thing is left.")] == [1, 1]
    assert [one for one in channel.texts() if "Number 1?" in one] == [
        f"Number 1?\n\n{wording.NO_LONGER_ASKED}"
    ]


def cards_with_buttons(channel) -> list:
    """Return the messages with buttons that can still be pressed."""
    return [one for one in channel.said if one.card and one.card.buttons]


async def test_a_command_in_one_session_does_nothing_to_another(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await channel.say("one", chat="a")
    await settled(agent.began(1))
    await channel.say("/stop", chat="b")
    await settled(lambda: channel.texts("b") == ["There is no active run in this chat."], room.hurry(gateway))
    agent.free.set()
    await all_answered(room, gateway, 2)
    assert channel.texts("a") == ["re: one"]


async def test_an_answer_that_an_agent_receives_and_does_not_use_is_not_lost(room, monkeypatch) -> None:
    agent, received = Agent(), list[str]()
    calls = {"c1": "a", "c2": "b"}

    def receive(run_id: str, call: str, decision: Any) -> bool:
        received.append(call)
        return True

    async def act(activation: Any, sink: Any) -> AgentRunResult:
        decided = [call for call, _ in activation.decisions]
        if decided == ["c1"]:
            agent.busy.set()
            await agent.free.wait()
        if "c2" in decided:
            return AgentRunResult(run_id=activation.run_id, response="both decided")
        tickets = tuple(
            RunWaitingTicket(ticket_id=call, tool_call_id=call, tool_name="delete", arguments={"path": path})
            for call, path in calls.items()
            if call not in decided
        )
        return AgentRunResult(
            run_id=activation.run_id,
            response="",
            termination=TerminationReason.suspended(),
            waiting=RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=tickets),
        )

    agent.act, agent.busy = act, asyncio.Event()
    agent.free.clear()
    monkeypatch.setattr(agent, "send_decision", receive)
    gateway, channel = await room.open(agent)
    await channel.say("delete both")
    await settled(lambda: len([one for one in channel.said if one.card]) == 2, room.hurry(gateway))
    first, second = (one.card.buttons[0].value.removeprefix("approve ") for one in channel.said if one.card)
    await channel.say(f"/approve {first}")
    await settled(agent.busy.is_set, room.hurry(gateway))
    await channel.say(f"/approve {second}")
    await settled(lambda: received, room.hurry(gateway))
    agent.free.set()
    await settled(lambda: "both decided" in channel.texts(), room.hurry(gateway))
