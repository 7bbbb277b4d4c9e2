"""A used-up budget is a question to the author: the run waits, and a yes grants the same amount once more."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from postroom.contracts.activation import RunActivation
from postroom.contracts.limits import Budget, BudgetScope, BudgetWindow
from postroom.contracts.questions import Given, person
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus
from postroom.gateway.questions import answer_run
from postroom.gateway.replies import question_of
from waking_room import Room, number


@pytest_asyncio.fixture
async def tight(room: Room) -> AsyncIterator[Room]:
    """A room in which an agent may run once."""
    budget = Budget(per=BudgetScope.THREAD, runs=1)
    made = Room(store=room.store, runs=room.runs, clock=room.clock, budgets=(budget,))
    await made.people("Ada", "Bo", runners=("Bo",))
    yield made
    await made.close()


async def waiting(room: Room):
    [run] = await room.runs.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    [ticket] = run.open_tickets
    return run, question_of(run, ticket)


async def test_whoever_wrote_is_asked_and_a_yes_lets_the_run_go_on(tight: Room) -> None:
    await tight.send("Ada", "Bo", body="first")
    await tight.turn()
    second = await tight.send("Ada", "Bo", body="second")
    await tight.turn()
    assert len(tight.agents.prompts) == 1
    run, question = await waiting(tight)
    assert question.text == (
        "The budget of this conversation is used up: 1 of 1 runs. Grant the same amount again?"
    )
    asked = (await tight.texts("Ada"))[-1][1]
    assert asked.startswith(f"Bo has a question:\n\n- {question.text}")
    assert asked.endswith("Answer on the pages or with `postroom questions`.")
    yes = question.decision(Given(value=True, by=person("Ana"), at="page"), tight.clock.now())
    assert await answer_run(tight.mailbox, run.thread_id, question, yes)
    await tight.turn()
    [_, (_, told)] = tight.agents.prompts
    assert len(told) == 1
    assert "second" in told[0]
    assert "budget" not in told[0]
    assert [text for _, text in await tight.texts("Ada")][-1] == "Bo did it"
    assert (await tight.handled(number(second), "Bo")).ended_at is not None


async def test_a_no_starts_nothing_and_the_question_stays(tight: Room) -> None:
    for body in ("first", "second"):
        await tight.send("Ada", "Bo", body=body)
        await tight.turn()
    run, question = await waiting(tight)
    no = question.decision(Given(value=False, by=person("Ana"), at="page"), tight.clock.now())
    assert await answer_run(tight.mailbox, run.thread_id, question, no)
    await tight.turn()
    assert len(tight.agents.prompts) == 1
    again, _ = await waiting(tight)
    assert again.run_id == run.run_id


async def test_a_message_that_was_read_while_the_budget_was_asked_about_starts_nothing(tight: Room) -> None:
    await tight.send("Ada", "Bo", body="first")
    await tight.turn()
    second = await tight.send("Ada", "Bo", body="second")
    await tight.turn()
    run, question = await waiting(tight)
    read = {"project_key": "/projects/shop", "agent_name": "Bo", "message_id": number(second)}
    await tight.mail.call("mark_message_read", read)
    yes = question.decision(Given(value=True, by=person("Ana"), at="page"), tight.clock.now())
    assert await answer_run(tight.mailbox, run.thread_id, question, yes)
    await tight.turn()
    assert len(tight.agents.prompts) == 1
    assert (await tight.runs.threads.load_run(run.run_id)).status is RunStatus.DONE


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"per": BudgetScope.ALL, "runs": 1}, "The budget of all runs is used up: 1 of 1 runs."),
        ({"per": BudgetScope.THREAD, "tokens": 0}, "of this conversation is used up: 0 of 0 tokens."),
        ({"per": BudgetScope.THREAD, "wall_ms": 0}, "is used up: 0 of 0 seconds of work."),
        ({"per": BudgetScope.ALL, "cost_micros": 0}, "is used up: 0.00 of 0.00 USD."),
    ],
)
async def test_what_is_used_up_is_said_in_words(room: Room, budget, words: str) -> None:
    made = Room(store=room.store, runs=room.runs, clock=room.clock, budgets=(Budget(**budget),))
    for _ in range(2):
        await made.mailbox.submit_background(RunActivation.new("agent:shop/Bo", ["go"]))
        await made.mailbox.settled()
    runs = await made.runs.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
    assert words in question_of(runs[-1], runs[-1].open_tickets[0]).text
    await made.close()


async def test_an_agent_has_a_budget_for_the_day_and_messages_wait_for_the_next(room: Room) -> None:
    budget = Budget(per=BudgetScope.AGENT, window=BudgetWindow.DAY, runs=1)
    made = Room(store=room.store, runs=room.runs, clock=room.clock, budgets=(budget,))
    await made.people("Ada", "Bo", "Cy", runners=("Bo", "Cy"))
    for reader in ("Bo", "Bo", "Cy"):
        await made.send("Ada", reader, body="go")
        await made.turn()
    assert len(made.agents.prompts) == 2
    run, question = await waiting(made)
    assert run.agent_id == "Bo@projects-shop"
    assert question.text.startswith("The budget of Bo@projects-shop for this day is used up: 1 of 1 runs.")
    made.clock.advance(timedelta(days=1))
    await made.mailbox.poll()
    await made.turn()
    assert len(made.agents.prompts) == 3
    assert [text for _, text in await made.texts("Ada")][-1] == "Bo did it"
    await made.close()
