"""A question stays open despite other mail to the agent, on both engines; messages in between wait."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from dispatch_room import done, eventually
from postroom.contracts.clock import iso
from postroom.contracts.errors import QueueFull, Unauthorized
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.limits import Budget, BudgetScope
from postroom.contracts.messages import Boundary
from postroom.contracts.questions import Given, person
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.waking import number_of
from postroom.gateway.questions import answer_run
from postroom.gateway.replies import question_of
from postroom.mail.context import Caller, token_hash
from postroom.testing import ManualClock
from waking_room import PROJECT, Room, both_engines, number


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[Room]:
    made = Room(*stores, clock=clock)
    made.agents.act = asks_first(made)
    await made.people("Ada", "Ben", "Cyd", "Bo", runners=("Bo",))
    yield made
    await made.close()


def subject(activation: Any) -> str:
    """Return what the messages in hand are about, as the program reads it."""
    lines = [line for message in activation.messages for line in message.text().splitlines()]
    return ", ".join(line.removeprefix("Subject: ") for line in lines if line.startswith("Subject: "))


def asks_first(room: Room):
    """Make the agent ask a person about its first message, and answer all others at once."""

    async def act(activation):
        if any(not decision.decision_id.startswith("mail/") for _, decision in activation.decisions):
            return done(activation, activation.messages[-1].text())
        if len(room.agents.prompts) == 1:
            asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
            await room.mail.call("ask_person", {**asked, "question": "May I?"})
            return done(activation, "I wait.")
        return done(activation, f"about {subject(activation)}")

    return act


async def waiting(room: Room) -> RunRecord:
    [run] = await room.runs.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    return run


async def answered(room: Room, run: RunRecord, *, approved: bool = True) -> None:
    """Answer the run's question, as people do."""
    [ticket] = run.open_tickets
    question = question_of(run, ticket)
    decision = question.decision(Given(value=approved, by=person("Ana"), at="page"), room.clock.now())
    assert await answer_run(room.mailbox, run.thread_id, question, decision)
    await room.turn()


async def bodies(room: Room, name: str) -> list[str]:
    return [text for _, text in await room.texts(name)]


async def events(room: Room, *kinds: str) -> list[tuple[str, str | None]]:
    asked = {"project_key": PROJECT, "after": 0, "kinds": list(kinds)}
    return [
        (one["kind"], one.get("run_id")) for one in (await room.mail.call("fetch_events", asked))["events"]
    ]


@both_engines
async def test_a_question_stays_open_whoever_writes_meanwhile_and_each_has_its_own_answer(room):
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    asked = await waiting(room)
    for sender, topic in (("Ben", "second"), ("Cyd", "third"), ("Ada", "fourth")):
        sent = await room.send(sender, "Bo", subject=topic)
        await room.turn()
        assert await room.handled(number(sent), "Bo") is None
    assert (await waiting(room)) == asked
    assert len(room.agents.prompts) == 1
    await answered(room, asked)
    assert [len(texts) for _, texts in room.agents.prompts] == [1, 1, 1, 1, 1]
    assert (await bodies(room, "Ada"))[1:] == [
        "You asked a person: May I?\nThe answer is yes.\nContinue with this answer.",
        "about fourth",
    ]
    assert await bodies(room, "Ben") == ["about second"]
    assert await bodies(room, "Cyd") == ["about third"]
    assert all(one["read_at"] for one in await room.inbox("Bo"))


@both_engines
async def test_a_round_and_a_new_server_leave_the_question_and_what_waits_as_they_are(room):
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    asked = await waiting(room)
    await room.send("Ben", "Bo", subject="second")
    await room.close()
    room.mailbox, room.waker = room.opened("heir")
    await room.mailbox.recover()
    await room.turn()
    assert (await waiting(room)) == asked
    await answered(room, asked)
    assert await bodies(room, "Ben") == ["about second"]
    assert len(await bodies(room, "Ada")) == 2


async def test_a_reply_to_the_question_lets_its_run_go_on_past_the_messages_that_wait(room):
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    await room.send("Ben", "Bo", subject="second")
    [question] = await room.inbox("Ada")
    sent = await reply(room, question, "yes")
    await room.turn()
    assert [
        text for _, texts in room.agents.prompts[1:] for text in texts if "The answer is yes." in text
    ] != []
    assert len(room.agents.prompts[1][1]) == 2  # the reply as mail, then the answer
    assert (await bodies(room, "Ada"))[1:] == ["about Re: first"]
    assert await bodies(room, "Ben") == ["about second"]
    assert (await room.handled(number(sent), "Bo")).ended_at is not None
    assert [kind for kind, _ in await events(room, "question.asked", "question.answered")] == [
        "question.asked",
        "question.answered",
    ]


async def test_an_answer_is_taken_when_too_many_messages_wait_and_other_messages_are_refused(stores, clock):
    room = Room(*stores, clock=clock, max_pending=2)
    room.agents.act = asks_first(room)
    await room.people("Ada", "Ben", "Bo", runners=("Bo",))
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    for subject in ("second", "third"):
        await room.send("Ben", "Bo", subject=subject)
    with pytest.raises(QueueFull):
        await room.send("Ben", "Bo", subject="fourth")
    [question] = await room.inbox("Ada")
    await reply(room, question, "yes")
    await room.turn()
    assert len(room.agents.prompts[1][1]) == 2  # the reply as mail, then the answer
    assert room.agents.prompts[1][1][1].startswith("You asked a person: May I?\nThe answer is yes.")
    assert (await bodies(room, "Ada"))[1:] == ["about Re: first"]
    await room.turn()
    assert sorted(await bodies(room, "Ben")) == ["about second", "about third"]
    await room.close()


async def test_a_sender_is_told_that_its_message_waits_and_why(room):
    first = await room.send("Ada", "Bo", subject="first")
    await room.turn()
    asked = await waiting(room)
    [question] = await room.inbox("Ada")
    sent = await room.send("Ben", "Bo", "Cyd", subject="second")
    why = f"Bo has an open question since {iso(asked.open_tickets[0].updated_at)}"
    assert sent["deliveries"][0]["seen"] == [f"waits: {why}", "inbox only"]
    await room.turn()
    assert await states(room, "Ben", number(sent)) == [("announced", why), ("stored", None)]
    assert await states(room, "Ada", number(first)) == [("delivered", None)]
    answer = await reply(room, question, "yes")
    number_asked = number_of(asked.run_id, asked.open_tickets[0])
    told = f"wake by runner: this message answers question {number_asked}"
    assert answer["deliveries"][0]["seen"] == [told]
    await room.turn()
    assert await states(room, "Ben", number(sent)) == [("read", None), ("stored", None)]


async def states(room: Room, name: str, message: int) -> list[tuple[str, str | None]]:
    asked = {"project_key": PROJECT, "agent_name": name, "message_id": message}
    found = await room.mail.call("delivery_status", asked)
    return [(one["state"], one["waits"]) for one in found["recipients"]]


async def test_another_message_of_the_same_thread_is_no_answer(room):
    await room.send("Ada", "Bo", subject="first", thread_id="paint")
    await room.turn()
    asked = await waiting(room)
    await room.send("Ada", "Bo", subject="first, again", thread_id="paint")
    await room.turn()
    assert (await waiting(room)) == asked
    await answered(room, asked)
    assert (await bodies(room, "Ada"))[2:] == ["about first, again"]


async def test_a_reply_of_one_who_did_not_receive_the_question_is_no_answer(room):
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    asked = await waiting(room)
    [question] = await room.inbox("Ada")
    meddled = await reply(room, question, "yes do it", by="Cyd")
    assert meddled["deliveries"][0]["seen"][0].startswith("waits: Bo has an open question")
    await room.turn()
    assert (await waiting(room)) == asked
    assert await room.handled(number(meddled), "Bo") is None
    await reply(room, question, "no")
    await room.turn()
    told = ["yes do it" in prompt[1][-1] for prompt in room.agents.prompts]
    assert told == [False, False, True]
    assert "The answer is no." in room.agents.prompts[1][1][-1]
    assert await bodies(room, "Cyd") == ["about Re: first"]


async def reply(room: Room, question: Any, text: str, *, by: str = "Ada") -> Any:
    """Let a person reply to a message of Bo."""
    asked = {"project_key": PROJECT, "sender_name": by, "message_id": question["id"], "body_md": text}
    return await room.mail.call("reply_message", asked)


async def test_a_message_in_the_thread_of_a_question_that_does_not_answer_it_is_told_why(room):
    sent = await room.send("Ada", "Bo", "Ben")
    await room.turn()
    asked = await waiting(room)
    [question] = await room.inbox("Ada")

    async def told(sender: str, message_id: int) -> str:
        said = {"project_key": PROJECT, "sender_name": sender, "message_id": message_id, "body_md": "yes"}
        answer = await room.mail.call("reply_message", {**said, "reply_all": True})
        [seen] = [
            how
            for delivery in answer["deliveries"]
            for name, how in zip(delivery["recipients"], delivery["seen"], strict=True)
            if name == "Bo"
        ]
        return seen

    assert "does not answer it: only people, and those whom it was sent to" in await told("Ben", number(sent))
    again = await room.send("Ada", "Bo", thread_id=question["thread_id"])
    [why] = again["deliveries"][0]["seen"]
    assert why.endswith(f"does not answer it: only a reply to message {question['id']} does")
    elsewhere = await room.send("Ada", "Bo")
    [why] = elsewhere["deliveries"][0]["seen"]
    assert "does not answer it" not in why
    await room.turn()
    assert await waiting(room) == asked


async def test_a_reply_to_an_answered_question_is_told_the_answer_and_no_run_takes_it_for_an_order(room):
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    asked = await waiting(room)
    [question] = await room.inbox("Ada")
    await answered(room, asked)
    late = await reply(room, question, "NO! Not before the backup is done")
    [seen] = late["deliveries"][0]["seen"]
    number_asked = number_of(asked.run_id, asked.open_tickets[0])
    told = f"question {number_asked} was already answered: yes"
    assert seen == f"wake by runner: this message answers no question, because {told}, by Ana on the pages"
    meddled = await reply(room, question, "yes", by="Cyd")
    [seen] = meddled["deliveries"][0]["seen"]
    assert seen.endswith(f"because question {number_asked} is closed")
    await room.turn()
    for prompt, text in zip(room.agents.prompts[-2:], ("NO! Not before", "yes"), strict=True):
        head, _, written = prompt[1][-1].partition("[")[2].partition("\n[")
        assert f"which asked a question, but when it came, {told}. So it is not the answer" in head
        assert "Ana" not in head
        assert text in written


@both_engines
async def test_a_second_answer_by_reply_is_told_the_first_and_the_first_is_told_its_question(room):
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    [question] = await room.inbox("Ada")
    asked = await waiting(room)
    first = await reply(room, question, "yes")
    number_asked = number_of(asked.run_id, asked.open_tickets[0])
    told = f"wake by runner: this message answers question {number_asked}"
    assert first["deliveries"][0]["seen"] == [told]
    for _ in range(2):  # before the run resumes, and after its end
        second = await reply(room, question, "no")
        [seen] = second["deliveries"][0]["seen"]
        assert "was already answered: yes, by Ada by mail" in seen
        await room.turn()
        assert "was already answered: yes. So it is not the answer" in room.agents.prompts[-1][1][-1]


async def test_a_yes_to_a_question_whose_run_was_cancelled_is_told_that_it_was_withdrawn(room):
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    [question] = await room.inbox("Ada")
    assert await room.mailbox.cancel_waiting(await waiting(room))
    await room.turn()
    late = await reply(room, question, "yes")
    withdrawn = 'was closed: "the run was cancelled"'
    assert late["deliveries"][0]["seen"][0].endswith(withdrawn)
    await room.turn()
    assert f"{withdrawn}. So it is not the answer" in room.agents.prompts[-1][1][-1]


def asks_twice(room: Room):
    """Make the agent ask two questions about its first message, the second when the first is answered."""

    async def act(activation):
        if len(room.agents.prompts) > 2:
            return done(activation, f"told {activation.messages[-1].text().splitlines()[-2]}")
        which = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        await room.mail.call("ask_person", {**which, "question": f"Question {len(room.agents.prompts)}?"})
        return done(activation, "I wait.")

    return act


@pytest.mark.parametrize("by_reply", [True, False])
async def test_a_late_reply_to_an_earlier_question_does_not_answer_the_present_one(room, by_reply):
    room.agents.act = asks_twice(room)
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    [first] = await room.inbox("Ada")
    if by_reply:
        await reply(room, first, "yes")
        await room.turn()
    else:
        await answered(room, await waiting(room))
    second = await waiting(room)
    assert [one.reason for one in second.open_tickets] == ["Question 2?"]
    late = await reply(room, first, "Too late.")
    await room.turn()
    assert (await waiting(room)) == second
    assert await room.handled(number(late), "Bo") is None
    [_, question] = await room.inbox("Ada")
    await reply(room, question, "no")
    await room.turn()
    assert [
        sum(word in text for _, texts in room.agents.prompts for text in texts)
        for word in ("Too late.", "The answer is no.")
    ] == [1, 1]
    assert "The answer is no." in room.agents.prompts[2][1][-1]
    assert "Too late." in room.agents.prompts[3][1][-1]
    assert len(room.agents.prompts) == 4
    assert len({run.run_id for run in await room.runs.threads.list_runs(RunQuery())}) == 2


@both_engines
async def test_a_second_reply_to_a_question_that_its_run_goes_on_from_does_not_answer_the_next(room):
    ask = asks_twice(room)

    async def act(activation):
        if len(room.agents.prompts) == 2:
            await reply(room, (await room.inbox("Ada"))[0], "One more thing.")
        return await ask(activation)

    room.agents.act = act
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    await reply(room, (await room.inbox("Ada"))[0], "yes")
    await room.turn()
    second = await waiting(room)
    assert [one.reason for one in second.open_tickets] == ["Question 2?"]
    assert len(room.agents.prompts) == 2
    await answered(room, second)
    assert ["One more thing." in prompt[1][-1] for prompt in room.agents.prompts] == [
        False,
        False,
        False,
        True,
    ]


async def test_what_was_given_up_is_tried_again_behind_an_open_question(room):
    act = room.agents.act

    async def fails(activation):
        raise Unauthorized("the model's key is not known")

    room.agents.act = fails
    await room.send("Ben", "Bo", subject="second")
    await room.turn()
    [dead] = await room.mailbox.dead_letters()
    room.agents.act, room.agents.prompts = act, []
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    asked = await waiting(room)
    again = await room.mailbox.replay_dead_letter(dead.dispatch_id)
    await room.turn()
    assert (await room.mailbox.why_not(again.dispatch_id)).text.startswith(
        f"run {asked.run_id} of the same thread"
    )
    assert (await waiting(room)) == asked
    assert len(room.agents.prompts) == 1
    await answered(room, asked)
    await room.turn()
    assert (await bodies(room, "Ben"))[1:] == ["about second"]
    assert await room.mailbox.dead_letters() == ()


async def test_a_permission_is_answered_by_no_message(room):
    async def act(activation):
        if len(room.agents.prompts) > 1:
            return done(activation, f"about {subject(activation)}" if not activation.decisions else "allowed")
        ticket = RunWaitingTicket(
            ticket_id="p", tool_call_id="p", tool_name="permission", reason="May it go on?"
        )
        state = RunWaitingState(reason=WaitingReason.TOOL_PERMISSION, tickets=(ticket,))
        return AgentRunResult(
            run_id=activation.run_id, termination=TerminationReason.suspended(), waiting=state
        )

    room.agents.act = act
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    asked = await waiting(room)
    [question] = await room.inbox("Ada")
    assert question["body_md"].endswith("Answer on the pages or with `postroom questions`.")
    await reply(room, question, "Yes.")
    await room.turn()
    assert (await waiting(room)) == asked
    await answered(room, asked)
    assert (await bodies(room, "Ada"))[1:] == ["allowed", "about Re: first"]


async def test_messages_leave_a_run_that_a_budget_has_stopped_as_it_is(stores, clock):
    budget = Budget(per=BudgetScope.THREAD, runs=1)
    room = Room(*stores, clock=clock, budgets=(budget,))

    async def act(activation):
        return done(activation, f"about {subject(activation)}")

    room.agents.act = act
    await room.people("Ada", "Ben", "Bo", runners=("Bo",))
    for sender, topic in (("Ada", "first"), ("Ada", "second"), ("Ben", "third"), ("Ada", "fourth")):
        await room.send(sender, "Bo", subject=topic)
        await room.turn()
    asked = [await waiting(room)]
    for _ in range(3):
        await answered(room, asked[-1])
        runs = await room.runs.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
        asked += runs
    assert len({run.run_id for run in asked}) == len(asked) == 3
    assert [text for text in await bodies(room, "Ada") if "about" in text] == [
        "about first",
        "about second",
        "about fourth",
    ]
    assert [text for text in await bodies(room, "Ben") if "about" in text] == ["about third"]
    await room.close()


async def test_what_waits_behind_a_question_is_not_told_to_the_run_that_goes_on_and_is_answered_once(room):
    """A message announced to a run must be accepted by it; otherwise it is answered now, and once more by a separate run."""

    async def act(activation):
        if activation.decisions:
            pending = activation.control.pending
            seen.extend([await pending.waiting(Boundary.NEXT_STEP), await pending.freeze(Boundary.NEXT_STEP)])
        return await asking(activation)

    seen: list[Any] = []
    asking, room.agents.act = room.agents.act, act
    await room.send("Ada", "Bo", thread_id="plan")
    await room.turn()
    run = await waiting(room)
    await room.send("Ada", "Bo", thread_id="plan", subject="And this")
    await room.turn()
    await answered(room, run)
    await room.turn()
    await room.turn()
    assert seen == [(), ()]
    assert len(room.agents.prompts) == 3
    assert [text for _, text in await room.texts("Ada")].count("about And this") == 1


async def test_what_is_tried_again_while_a_run_is_at_work_waits_behind_the_question_that_it_asks(room):
    asking = room.agents.act

    async def fails(activation):
        raise Unauthorized("the model's key is not known")

    room.agents.act = fails
    await room.send("Ben", "Bo", subject="second")
    await room.turn()
    [dead] = await room.mailbox.dead_letters()

    async def is_tried_again_meanwhile(activation):
        if len(room.agents.prompts) == 1:
            tried.append(await room.mailbox.replay_dead_letter(dead.dispatch_id))
        return await asking(activation)

    tried: list[Any] = []

    room.agents.act, room.agents.prompts = is_tried_again_meanwhile, []
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    asked = await waiting(room)
    for _ in range(3):
        room.clock.advance(timedelta(hours=1))
        await room.mailbox.poll()
        await room.turn()
    assert (await waiting(room)) == asked
    assert len(room.agents.prompts) == 1
    why = await room.mailbox.why_not(tried[0].dispatch_id)
    assert why.text.startswith(f"run {asked.run_id} of the same thread has an open question since ")
    await answered(room, asked)
    room.clock.advance(timedelta(hours=1))
    await room.mailbox.poll()
    await room.turn()
    assert len(room.agents.prompts) == 3
    assert "about second" in await bodies(room, "Ben")


def asks_under_a_key(room: Room, answers: list[dict[str, Any]], *, ends: list[str]):
    """Make the agent ask under one key in each attempt; the first attempts end as given, before their turn ends."""

    async def act(activation):
        if activation.decisions:
            return done(activation, activation.messages[-1].text())
        asked = {"project_key": PROJECT, "agent_name": "Bo", "run_id": activation.run_id}
        key = f"ask-{activation.run_id}"
        answers.append(
            await room.mail.call("ask_person", {**asked, "question": "May I?", "idempotency_key": key})
        )
        match ends.pop(0) if ends else "turn":
            case "killed":
                await asyncio.Event().wait()
            case "fails":
                raise ConnectionResetError("the line was cut")
        return done(activation, "I wait.")

    return act


@pytest.mark.parametrize("ends", [["killed"], ["fails"], ["killed", "killed"]])
async def test_a_question_asked_under_a_key_stands_after_an_attempt_that_was_lost(stores, clock, ends):
    room, answers = Room(*stores, clock=clock, most_attempts=3), list[dict[str, Any]]()
    kills = ends.count("killed")
    room.agents.act = asks_under_a_key(room, answers, ends=list(ends))
    await room.people("Ada", "Bo", runners=("Bo",))
    await room.send("Ada", "Bo", subject="first")
    for number_of_kills in range(1, kills + 1):

        async def has_asked(times: int = number_of_kills) -> bool:
            return len(answers) == times

        await eventually(has_asked)
        await room.close()
        room.mailbox, room.waker = room.opened("server")
        await room.mailbox.recover()
    await room.turn()
    clock.advance(timedelta(minutes=2))
    await room.mailbox.poll()
    await room.turn()
    assert [one["question_id"] for one in answers] == [answers[0]["question_id"]] * (len(ends) + 1)
    asked = await waiting(room)
    assert [one.ticket_id for one in asked.open_tickets] == [answers[0]["question_id"]]
    await answered(room, asked)
    assert (await bodies(room, "Ada"))[1:] == [
        "You asked a person: May I?\nThe answer is yes.\nContinue with this answer."
    ]
    await room.close()


async def test_a_call_that_is_repeated_after_the_answer_asks_nobody_again(room):
    answers: list[dict[str, Any]] = []
    act = asks_under_a_key(room, answers, ends=[])

    async def asks_always(activation):
        await act(replace(activation, decisions=()))
        return done(activation, "done with it")

    room.agents.act = asks_always
    await room.send("Ada", "Bo", subject="first")
    await room.turn()
    await answered(room, await waiting(room))
    assert len(answers) == 2
    assert (await bodies(room, "Ada"))[1:] == ["done with it"]
    assert await room.runs.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,))) == ()


async def test_a_summary_has_the_text_of_an_open_question_for_people_and_for_the_agent_that_asked(room):
    room.agents.act = asks_first(room)
    await room.people("Ada", "Bo", runners=("Bo",))
    await room.send("Ada", "Bo")
    await room.turn()
    for name in ("Ada", "Bo"):
        await room.mail.issue_token(PROJECT, name, token_hash(f"pra_{name}"))
    callers = [Caller(operator=True), *(Caller(agent_token=f"pra_{name}") for name in ("Bo", "Ada"))]
    texts = list[str]()
    for caller in callers:
        found = await room.mail.call("catch_up", {"project_key": PROJECT}, caller=caller)
        texts += [one["text"] for one in found["sentences"] if one["about"] == "asked"]
    assert ['"May I?"' in one for one in texts] == [True, True, False]
