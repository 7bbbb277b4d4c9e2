"""Runs that ask or sleep: they go on with the answer, in time, and once, from any process, whatever clocks do."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from embedded_room import answer_open_question, asking, both_engines, echo, in_state, told
from machine import PATIENCE
from postroom import (
    Budget,
    BudgetScope,
    BudgetWindow,
    InvalidArgument,
    MailboxConfig,
    QueueFull,
    RunDispatchExecutor,
    RunUnsuccessful,
    StaleDecision,
    State,
)
from postroom.contracts.activation import RunActivation
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.runs import RunWaitingState, RunWaitingTicket, TerminationReason, WaitingReason
from postroom.contracts.tools import ToolCallResume

DAY = timedelta(days=1)


async def deploy(run):
    await run.step("build", lambda: "built")
    said = await run.ask(f"Deploy {run.text}?")
    return f"{run.text}: {said.approved} {said.text} by {said.by}"


async def ask(run):
    return (await run.ask("May I?")).text


async def nap(run):
    await run.sleep(DAY)


async def why_not(mailbox, handle):
    return (await mailbox.admin.why_not(handle.id)).text


# Answers.


@both_engines
async def test_a_run_that_asks_goes_on_with_the_answer_and_what_comes_behind_it_waits(opening):
    async with opening(deploy) as mailbox:
        handle = await mailbox.enqueue("t", "main")
        events = handle.events()
        first = [(event.type, event.text) for event in [await anext(events), await anext(events)]]
        assert first == [("step", "build"), ("question", "Deploy main?")]
        state = await handle.status()
        assert (state.state, state.question) == (State.WAITING, "Deploy main?")
        behind = await mailbox.enqueue("t", "next")
        await asking(await mailbox.enqueue("u", "other"))
        assert (await behind.status()).state is State.QUEUED
        assert "has an open question" in await why_not(mailbox, behind)
        elsewhere = await mailbox.handle(handle.id)
        asked = await answer_open_question(elsewhere, "go ahead", approved=True, by="Ann")
        said = "main: True go ahead by Ann"
        assert await handle.result(timeout=PATIENCE) == said
        assert await told(events) == [("end", said)]
        with pytest.raises(StaleDecision):
            await handle.answer("too late", question_id=asked)
        assert await (await asking(behind)).cancel()
        with pytest.raises(RunUnsuccessful, match="was cancelled"):
            await behind.result(timeout=PATIENCE)


async def test_a_late_answer_never_counts_for_the_next_question(opening):
    async def two(run):
        cache = await run.ask("Restart the cache?")
        database = await run.ask("Delete the database?")
        return f"{cache.by} {cache.approved}, {database.by} {database.approved}"

    async with opening(two) as mailbox:
        handle = await asking(await mailbox.enqueue("t", "go"))
        [seen_by_ann] = [one async for one in mailbox.questions]
        late = {"question_id": seen_by_ann.question_id, "approved": True}
        await handle.answer(**late, by="Bob")
        await asking(handle)
        [now] = [one async for one in mailbox.questions]
        assert (now.text, now.run_id) == ("Delete the database?", handle.id)
        with pytest.raises(StaleDecision) as refused:
            await handle.answer(**late, by="Ann")
        assert refused.value.details == {"open": [now.question_id]}
        assert "Delete the database?" in refused.value.describe()
        with pytest.raises(InvalidArgument, match="needs the question's id"):
            await handle.answer(approved=True, by="Ann")
        decision = seen_by_ann.question_id, ToolCallResume(decision_id="late", result={"approved": True})
        request = RunActivation.new("t", [], continue_run_id=handle.id, decisions=[decision])
        with pytest.raises(StaleDecision, match="is not asking question"):  # the change refuses it, too
            await mailbox.admin.submit_background(request)
        assert (await handle.status()).question_id == now.question_id
        await handle.answer(question_id=now.question_id, approved=False, by="Ann")
        assert await handle.result(timeout=PATIENCE) == "Bob True, Ann False"


async def test_a_name_that_no_person_has_is_refused_and_the_question_stays_open(opening):
    async def one(run):
        return (await run.ask("Restart the cache?")).by

    async with opening(one) as mailbox:
        handle = await asking(await mailbox.enqueue("t", "go"))
        [asked] = [one async for one in mailbox.questions]
        for name, why in (
            ("x" * 65, "is longer than 64 characters"),
            ("An\u202en", "contains hidden or control characters"),
            ("Ann\nBob", "contains hidden or control characters"),
            ("Post-Room", "is a name of the server"),
        ):
            with pytest.raises(InvalidArgument, match=why):
                await handle.answer(question_id=asked.question_id, approved=True, by=name)
            assert (await handle.status()).question_id == asked.question_id
        await handle.answer(question_id=asked.question_id, approved=True, by=" Ann ")
        assert await handle.result(timeout=PATIENCE) == "Ann"


async def test_the_same_answer_may_be_given_twice_and_another_answer_is_refused(opening):
    async def two(run):
        first = await run.ask("Restart the cache?", timeout=600)
        return f"{first.by} {first.text}, then {(await run.ask('And the database?', timeout=600.5)).text}"

    async with opening(two) as mailbox:
        handle = await asking(await mailbox.enqueue("t", "go"))
        first = (await handle.status()).question_id
        answer = {"question_id": first, "approved": True, "by": "Ann"}
        await asyncio.gather(*(handle.answer("yes", **answer) for _ in range(3)))
        await asking(handle)
        second = (await handle.status()).question_id
        await handle.answer("yes", **answer)  # while the next question is open
        for other in ({"approved": False}, {"by": "Bob"}):
            with pytest.raises(StaleDecision, match="has another answer already; the run asks 'And the data"):
                await handle.answer("yes", **answer | other)
        assert (await handle.status()).question_id == second
        await handle.answer("no", question_id=second)
        assert await handle.result(timeout=PATIENCE) == "Ann yes, then no"
        await handle.answer("yes", **answer)  # after the end of the run
        await handle.answer("no", question_id=second)
        with pytest.raises(StaleDecision, match="has another answer already; the run asks nothing"):
            await handle.answer("yes", question_id=second)


async def test_an_invalid_answer_is_refused_and_the_question_stays_open(opening):
    async with opening(ask) as mailbox:
        handle = await asking(await mailbox.enqueue("chat", "go"))
        asked = (await handle.status()).question_id
        for wrong in ({"by": None}, {"text": 5}, {"approved": "yes"}, {"question_id": None}, {}):
            with pytest.raises(InvalidArgument):
                await handle.answer(**{"question_id": asked} | wrong)
        with pytest.raises(StaleDecision):
            await handle.answer("late", question_id="an earlier one")
        await handle.answer("yes", question_id=asked)
        assert await handle.result(timeout=PATIENCE) == "yes"


async def test_an_answer_is_taken_when_the_queue_of_its_thread_is_full(opening):
    async def work(run):
        return await ask(run) if run.text == "first" else run.text

    async with opening(work, MailboxConfig(max_queued_per_thread=1, max_pending_per_thread=1)) as mailbox:
        handle = await asking(await mailbox.enqueue("t", "first"))
        behind = await mailbox.enqueue("t", "second")
        with pytest.raises(QueueFull):
            await mailbox.enqueue("t", "third")
        await answer_open_question(handle, "yes")
        assert [await one.result(timeout=PATIENCE) for one in (handle, behind)] == ["yes", "second"]


async def test_a_run_that_goes_on_is_not_said_to_wait(opening):
    going, slow = asyncio.Event(), asyncio.Event()

    async def work(run):
        if run.text == "other":
            return await slow.wait()
        said = await ask(run)
        await going.wait()
        return said

    async with opening(work, MailboxConfig(max_concurrent_runs=1)) as mailbox:
        handle = await asking(await mailbox.enqueue("t", "go"))
        await mailbox.enqueue("u", "other")
        await answer_open_question(handle, "yes")
        for state in (State.QUEUED, State.RUNNING):
            await in_state(handle, state)
            assert (await handle.status()).question is None
            slow.set()
        going.set()
        assert await handle.result(timeout=PATIENCE) == "yes"


async def test_a_run_that_asks_or_sleeps_keeps_its_tenant_and_its_turn(opening):
    options = {"tenant": "a", "limit_key": "k", "priority": 7}

    async def work(run):
        return await (ask(run) if run.text == "asks" else nap(run))

    async with opening(work, MailboxConfig(default_max_attempts=2)) as mailbox:
        for text in ("asks", "sleeps"):
            handle = await asking(await mailbox.enqueue(text, text, **options))
            if text == "asks":
                await answer_open_question(handle, "yes")
                assert await handle.result(timeout=PATIENCE) == "yes"
            rows = await mailbox.admin.list_dispatches(text)
            kept = {(row.tenant, row.limit_key, row.priority, row.max_attempts) for row in rows}
            assert (len(rows), kept) == (2, {("a", "k", 7, 2)})


async def test_what_was_given_up_is_tried_again_behind_a_question(opening):
    mended = []

    async def work(run):
        if run.text == "asks":
            return await ask(run)
        if not mended:
            raise InvalidArgument("no such lamp")
        return "mended"

    async with opening(work) as mailbox:
        failed = await mailbox.enqueue("t", "fails")
        with pytest.raises(RunUnsuccessful):
            await failed.result(timeout=PATIENCE)
        asks = await asking(await mailbox.enqueue("t", "asks"))
        mended.append("yes")
        again = await mailbox.dead_letters.replay(failed.id)
        assert (await again.status()).state is State.QUEUED
        assert (await asks.status()).question == "May I?"
        await answer_open_question(asks, "yes")
        assert [await one.result(timeout=PATIENCE) for one in (asks, again)] == ["yes", "mended"]


async def test_what_failed_after_an_answer_is_tried_again_from_the_start_and_asks_anew(opening):
    seen = []

    async def work(run):
        answer = await ask(run)
        seen.append((run.text, answer))
        if len(seen) == 1:
            raise InvalidArgument("no such lamp")
        return answer

    async with opening(work) as mailbox:
        failed = await asking(await mailbox.enqueue("t", "the lamp"))
        await answer_open_question(failed, "yes")
        with pytest.raises(RunUnsuccessful):
            await failed.result(timeout=PATIENCE)
        again = await asking(await mailbox.dead_letters.replay(failed.id))
        await answer_open_question(again, "no")
        assert await again.result(timeout=PATIENCE) == "no"
        assert seen == [("the lamp", "yes"), ("the lamp", "no")]
        assert [letter async for letter in mailbox.dead_letters] == []


async def test_work_that_catches_what_suspends_it_fails_with_a_reason_and_harms_nothing_else(opening):
    async def swallowing(run):
        if run.text == "ask":
            with suppress(BaseException):
                await ask(run)
        return "went on"

    async with opening(swallowing) as mailbox:
        with pytest.raises(RunUnsuccessful, match="continued after a question"):
            await (await mailbox.enqueue("bad", "ask", attempts=1)).result(timeout=PATIENCE)
        assert await (await mailbox.enqueue("good", "fine")).result(timeout=PATIENCE) == "went on"


@pytest.mark.parametrize("of", [{"tenant": "acme"}, {"limit_key": "model"}, {"agent": "ada"}])
async def test_when_a_budget_is_used_up_one_asks_and_one_answer_has_all_go_on(opening, of):
    [(option, name)] = of.items()
    scope = {"tenant": BudgetScope.TENANT, "limit_key": BudgetScope.KEY, "agent": BudgetScope.AGENT}[option]
    budget = Budget(per=scope, window=BudgetWindow.MONTH, runs=5)
    async with opening(echo, MailboxConfig(budgets=(budget,), max_concurrent_runs=1)) as mailbox:
        handles = [await mailbox.enqueue(f"t{number}", "hello", **of) for number in range(10)]
        question = (await (await asking(handles[5])).status()).question
        assert question.startswith(f"The budget of {name} for this month is used up")
        await answer_open_question(handles[5], approved=True, by="Ann")
        assert {await one.result(timeout=PATIENCE) for one in handles} == {"you said hello"}


# Side by side.


async def answer_all(handle):
    async for event in handle.events():
        if event.type == "question":
            await handle.answer(event.text.lower(), question_id=event.question_id)


@both_engines
async def test_the_answer_to_a_second_question_that_may_time_out_is_delivered_at_once(opening):
    async def twice(run):
        first = await run.ask("Build?", timeout=DAY)
        return f"{first.text}, {(await run.ask('Deploy?', timeout=DAY)).text}"

    async with opening(twice) as mailbox:
        handle = await mailbox.enqueue("t", "main")
        answering = asyncio.create_task(answer_all(handle))
        assert await handle.result(timeout=60) == "build?, deploy?"
        await answering


async def test_questions_side_by_side_are_asked_one_after_another_and_have_their_own_answers(opening):
    async def both(run):
        async def looked():
            await run.step("look", asyncio.sleep, 0)
            return (await run.ask("Refund?")).approved

        async def greeted():
            return (await run.ask("Greet?")).approved

        async with asyncio.TaskGroup() as group:
            refund, greet = group.create_task(looked()), group.create_task(greeted())
            group.create_task(run.sleep(timedelta(milliseconds=1)))
        return {"refund": refund.result(), "greet": greet.result()}

    async with opening(both) as mailbox:
        handle, asked = await mailbox.enqueue("chat", "go"), []
        async for event in handle.events():
            if event.type == "question":
                asked.append(event.text)
                await handle.answer(approved=event.text == "Greet?", question_id=event.question_id)
        assert sorted(asked) == ["Greet?", "Refund?"]
        assert await handle.result(type=dict) == {"refund": False, "greet": True}


async def test_a_failure_beside_a_question_is_a_failure(opening):
    async def fail():
        raise InvalidArgument("no such lamp")

    async def both(run):
        async with asyncio.TaskGroup() as group:
            group.create_task(run.ask("One?"))
            group.create_task(fail())

    async with opening(both) as mailbox:
        with pytest.raises(RunUnsuccessful, match="no such lamp"):
            await (await mailbox.enqueue("t", "go", attempts=1)).result(timeout=PATIENCE)


class TwoApprovals(RunDispatchExecutor):
    """Asks two questions at once, and ends when both are answered."""

    async def run(self, activation, sink):
        run = activation.control.run
        answered = {one.ticket.tool_call_id for one in run.answered}
        tickets = tuple(
            RunWaitingTicket(ticket_id=call, tool_call_id=call, reason=f"{call}?")
            for call in ("first", "second")
            if call not in answered
        )
        if not tickets:
            return AgentRunResult(run_id=run.run_id, response="both")
        waiting = RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=tickets)
        return AgentRunResult(run_id=run.run_id, termination=TerminationReason.suspended(), waiting=waiting)


async def test_the_first_of_two_questions_stays_open_when_the_second_is_answered_before(opening):
    async with opening(TwoApprovals()) as mailbox:
        handle = await mailbox.enqueue("t", "go", attempts=1)
        for question in ("second", "first"):
            await asking(handle)
            await handle.answer("yes", question_id=question)
        assert await handle.result(timeout=PATIENCE) == "both"
        assert await told(handle.events()) == [("question", "first?"), ("end", "both")]


# Deadlines of questions, and sleep.


async def test_a_question_that_nobody_answers_in_time_lets_the_run_go_on_and_a_late_answer_is_refused(manual):
    async def wait(run):
        said = await run.ask("Deploy?", timeout=DAY)
        await run.ask("Why not?")
        return f"{said.timed_out} {said.approved} {said.text!r}"

    async with manual(wait) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await mailbox.run_until_idle()
        missed = (await handle.status()).question_id
        mailbox.clock.advance(DAY)
        await mailbox.run_until_idle()
        assert (await handle.status()).question == "Why not?"
        with pytest.raises(StaleDecision):
            await handle.answer("too late", question_id=missed)
        await answer_open_question(handle, "because")  # the run is begun again, and knows
        await mailbox.run_until_idle()
        assert await handle.result(timeout=PATIENCE) == "True None ''"
        step = ("step", "ask-deploy-55a57d5d-1")
        asked = [one for one in await told(handle.events()) if one[0] != "end"]
        assert asked == [("question", "Deploy?"), step, ("question", "Why not?")]


async def test_an_answer_to_a_question_that_timed_out_is_refused_while_the_run_goes_on(opening):
    goes_on, holds = asyncio.Event(), asyncio.Event()

    async def wait(run):
        said = await run.ask("Deploy?", timeout=timedelta(milliseconds=1))
        await run.ask("Why not?")
        goes_on.set()
        await holds.wait()
        return f"{said.timed_out}"

    async with opening(wait) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        while (await handle.status()).question != "Why not?":
            await asyncio.sleep(0)
        await answer_open_question(handle, "because")
        await goes_on.wait()
        late = (
            f"{handle.id}/ask-deploy-55a57d5d-1",
            ToolCallResume(decision_id="late", result={"text": "yes"}),
        )
        request = RunActivation.new("t", [], continue_run_id=handle.id, decisions=[late])
        with pytest.raises(StaleDecision):
            await mailbox.admin.submit_background(request)
        holds.set()
        assert await handle.result(timeout=PATIENCE) == "True"


async def test_an_answer_in_time_is_had_at_once_and_the_deadline_never_comes(opening):
    begun = []

    async def wait(run):
        begun.append(run.id)
        said = await run.ask("Deploy?", timeout=DAY)
        return f"{said.timed_out} {said.approved} {said.text}"

    async with opening(wait) as mailbox:
        handle = await asking(await mailbox.enqueue("t", "go"))
        assert (await handle.status()).question == "Deploy?"
        await answer_open_question(handle, "yes", approved=True)
        assert await handle.result(timeout=PATIENCE) == "False True yes"
        assert begun == [handle.id] * 2
        assert [row.status for row in await mailbox.admin.list_dispatches("t")] == ["Acked"] * 2


@both_engines
async def test_of_an_answer_and_a_deadline_at_the_same_instant_exactly_one_counts(opening):
    async def wait(run):
        return (await run.ask("Deploy?", timeout=timedelta(milliseconds=30))).text or "nobody"

    async with opening(wait) as mailbox:
        for number in range(5):
            handle = await mailbox.enqueue(f"t{number}", "go")
            assert (await anext(handle.events())).type == "question"
            run = await mailbox.stores.threads.load_run(handle.id)
            tickets = run.waiting.tickets if run.waiting is not None else ()
            while tickets and mailbox.stores.clock.now() < tickets[0].expires_at + number - 2:
                await asyncio.sleep(0)
            try:
                await handle.answer("Ann", question_id=tickets[0].tool_call_id if tickets else "gone")
                expected = "Ann"
            except StaleDecision:
                expected = "nobody"
            assert await handle.result(timeout=PATIENCE) == expected


async def test_a_run_that_sleeps_goes_on_in_time_and_lets_nobody_by(manual):
    begun = []

    async def two_naps(run):
        begun.append(run.text)
        await nap(run)
        await run.sleep(datetime(2000, 1, 1, tzinfo=UTC))
        return "awake"

    async with manual(two_naps) as mailbox:
        handles = [await mailbox.enqueue("t", text) for text in ("go", "next")]
        for _ in range(3):
            await mailbox.run_until_idle()
            mailbox.clock.advance(DAY)
        assert [await one.result(timeout=0) for one in handles] == ["awake", "awake"]
    assert begun == ["go", "go", "next", "next"]


async def test_a_run_that_sleeps_asks_nothing_and_can_be_cancelled(opening):
    async with opening(nap) as mailbox:
        handle = await asking(await mailbox.enqueue("t", "go"))
        assert (await handle.status()).question is None
        with pytest.raises(StaleDecision, match="does not ask"):
            await handle.answer("wake up", question_id=f"{handle.id}/sleep-1")
        assert await handle.cancel()
        assert (await handle.status()).state is State.CANCELLED


# A clock that is set back makes no short wait of a run last for hours, and no question fail.


async def test_a_sleep_a_delay_and_a_retry_end_in_their_time_when_the_clock_is_set_back(manual):
    short = timedelta(seconds=5)

    async def work(run):
        if run.text == "nap":
            await run.sleep(short)
        if run.text == "fails once" and run.attempt == 1:
            raise OSError("the other side is away")
        return "done"

    async with manual(work) as mailbox:
        each = (("nap", {}), ("go", {"delay": short}), ("fails once", {"retry_delay": short}))
        handles = [await mailbox.enqueue(text, text, **options) for text, options in each]
        await mailbox.run_until_idle()
        mailbox.clock.advance(-timedelta(hours=2))
        await mailbox.run_until_idle()
        states = [(await handle.status()).state for handle in handles[:2]]
        assert states == [State.WAITING, State.QUEUED], "5 s have not passed"
        mailbox.clock.advance(short)
        await mailbox.run_until_idle()
        assert [await handle.result(timeout=10) for handle in handles] == ["done"] * 3


@pytest.mark.parametrize("back", [timedelta(seconds=10), timedelta(hours=2)])
async def test_a_question_with_a_timeout_lasts_longer_when_the_clock_is_set_back(manual, back):
    attempts = []

    async def work(run):
        attempts.append(run.attempt)
        answer = await run.ask("Deploy?", timeout=timedelta(seconds=4))
        return "nobody answered" if answer.timed_out else answer.text

    async with manual(work) as mailbox:
        silent, answered = [await mailbox.enqueue(thread, "go") for thread in "ab"]
        await mailbox.run_until_idle()
        mailbox.clock.advance(-back)
        for _ in range(3):
            await mailbox.run_until_idle()
            assert [(await one.status()).state for one in (silent, answered)] == [State.WAITING] * 2
            mailbox.clock.advance(timedelta(seconds=3))
        question = await answer_open_question(answered, "yes")
        await mailbox.run_until_idle()
        assert await answered.result(timeout=10) == "yes"
        mailbox.clock.advance(back)
        await mailbox.run_until_idle()
        assert await silent.result(timeout=10) == "nobody answered"
        assert set(attempts) == {1}, "a question that waits longer is no failure"
        asked = [event async for event in silent.events() if event.type == "question"]
        assert [one.question_id for one in asked] == [question.replace(answered.id, silent.id)]


async def test_a_question_stays_open_when_its_run_is_begun_again(manual):
    attempts = []

    async def work(run):
        attempts.append(run.attempt)
        return await ask(run)

    async with manual(work) as mailbox:
        handle = await mailbox.enqueue("a", "go")
        await mailbox.run_until_idle()
        await mailbox.admin.submit_background(RunActivation.new("a", ["well?"], continue_run_id=handle.id))
        for _ in range(6):  # a failure would be retried
            await mailbox.run_until_idle()
            mailbox.clock.advance(timedelta(minutes=10))
        assert attempts == [1, 1]
        await answer_open_question(handle, "yes")
        await mailbox.run_until_idle()
        assert await handle.result(timeout=10) == "yes"
