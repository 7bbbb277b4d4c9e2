"""Questions with a deadline, questions side by side, and where a run is while it is answered, from any process."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from embedded.test_mailbox import Open, answer_open_question, first, in_state
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.errors import InvalidArgument, QueueFull, RunUnsuccessful, StaleDecision
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.runs import RunWaitingState, RunWaitingTicket, TerminationReason, WaitingReason
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import MailboxConfig
from postroom.embedded.handle import State
from postroom.embedded.running import Run
from postroom.ports import RunControl

LATER = timedelta(days=1)


async def test_a_question_that_nobody_answers_in_time_lets_the_run_go_on(opening: Open) -> None:
    async def wait(run: Run) -> str:
        said = await run.ask("Deploy?", timeout=timedelta(milliseconds=50))
        await run.ask("Why not?")
        return f"{said.timed_out} {said.approved} {said.text!r}"

    async with opening(wait) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        events = handle.events()
        told = [(event.type, event.text) for event in [await anext(events) for _ in range(3)]]
        assert told == [("question", "Deploy?"), ("step", "ask-deploy-55a57d5d-1"), ("question", "Why not?")]
        await in_state(handle, State.WAITING)
        assert (await handle.status()).question == "Why not?"
        await answer_open_question(handle, "because")  # the run is begun again, and knows
        assert await handle.result(timeout=30) == "True None ''"


async def test_an_answer_in_time_is_had_at_once_and_the_deadline_never_comes(opening: Open) -> None:
    begun: list[str] = []

    async def wait(run: Run) -> str:
        begun.append(run.id)
        said = await run.ask("Deploy?", timeout=LATER)
        return f"{said.timed_out} {said.approved} {said.text}"

    async with opening(wait) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await in_state(handle, State.WAITING)
        assert (await handle.status()).question == "Deploy?"
        await answer_open_question(handle, "yes", approved=True)
        assert await handle.result(timeout=30) == "False True yes"
        assert begun == [handle.id] * 2
        assert [row.status for row in await mailbox.admin.list_dispatches("t")] == ["Acked"] * 2


async def test_a_late_answer_is_refused(opening: Open) -> None:
    going, begun = asyncio.Event(), asyncio.Event()

    async def wait(run: Run) -> str:
        said = await run.ask("Deploy?", timeout=timedelta(milliseconds=50))
        begun.set()
        await going.wait()
        return str(said.timed_out)

    async with opening(wait) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        asked = await anext(handle.events())
        async with asyncio.timeout(30):
            await begun.wait()
        with pytest.raises(StaleDecision):
            await handle.answer("too late", question_id=asked.question_id)
        going.set()
        assert await handle.result(timeout=30) == "True"


async def test_of_an_answer_and_a_deadline_at_the_same_instant_exactly_one_counts(opening: Open) -> None:
    async def wait(run: Run) -> str:
        return (await run.ask("Deploy?", timeout=timedelta(milliseconds=30))).text or "nobody"

    async with opening(wait) as mailbox:
        for number in range(5):
            handle = await mailbox.enqueue(f"t{number}", "go")
            assert [one.type async for one in first(handle.events(), 1)] == ["question"]
            run = await mailbox.stores.threads.load_run(handle.id)
            tickets = run.waiting.tickets if run is not None and run.waiting is not None else ()
            while tickets and mailbox.stores.clock.now() < (tickets[0].expires_at or 0) + number - 2:
                await asyncio.sleep(0)
            try:
                await handle.answer("Ann", question_id=tickets[0].tool_call_id)
                expected = "Ann"
            except StaleDecision:
                expected = "nobody"
            assert await handle.result(timeout=30) == expected


async def test_an_answer_is_taken_when_the_queue_of_its_thread_is_full(opening: Open) -> None:
    async def ask(run: Run) -> str:
        return (await run.ask("May I?")).text if run.text == "first" else run.text

    config = MailboxConfig(max_queued_per_thread=1, max_pending_per_thread=1)
    async with opening(ask, config) as mailbox:
        handle = await mailbox.enqueue("t", "first")
        await in_state(handle, State.WAITING)
        behind = await mailbox.enqueue("t", "second")
        with pytest.raises(QueueFull):
            await mailbox.enqueue("t", "third")
        await answer_open_question(handle, "yes")
        assert await handle.result(timeout=30) == "yes"
        assert await behind.result(timeout=30) == "second"


async def test_a_late_answer_never_counts_for_the_next_question(opening: Open) -> None:
    async def two(run: Run) -> str:
        cache = await run.ask("Restart the cache?")
        database = await run.ask("Delete the database?")
        return f"{cache.by} {cache.approved}, {database.by} {database.approved}"

    async with opening(two) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await in_state(handle, State.WAITING)
        [seen_by_ann] = [one async for one in mailbox.questions]
        await handle.answer(question_id=seen_by_ann.question_id, approved=True, by="Bob")
        await in_state(handle, State.WAITING)
        [open_now] = [one async for one in mailbox.questions]
        assert (open_now.text, open_now.run_id) == ("Delete the database?", handle.id)
        with pytest.raises(StaleDecision) as refused:
            await handle.answer(question_id=seen_by_ann.question_id, approved=True, by="Ann")
        assert refused.value.details == {"open": [open_now.question_id]}
        assert "Delete the database?" in refused.value.describe()
        with pytest.raises(TypeError, match="question_id"):
            await handle.answer(approved=True, by="Ann")  # type: ignore[call-arg]
        with pytest.raises(InvalidArgument, match="question_id"):
            await handle.answer(question_id=None, approved=True, by="Ann")  # type: ignore[arg-type]
        decision = seen_by_ann.question_id, ToolCallResume(decision_id="late", result={"approved": True})
        late = RunActivation.new("t", [], continue_run_id=handle.id, decisions=[decision])
        with pytest.raises(StaleDecision, match="does not ask"):  # the change refuses it, too
            await mailbox.admin.submit_background(late)
        assert (await handle.status()).question_id == open_now.question_id
        await handle.answer(question_id=open_now.question_id, approved=False, by="Ann")
        assert await handle.result(timeout=30) == "Bob True, Ann False"


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1)])
async def test_a_question_has_some_time(opening: Open, timeout: timedelta) -> None:
    async def wait(run: Run) -> None:
        await run.ask("Deploy?", timeout=timeout)

    async with opening(wait) as mailbox:
        with pytest.raises(RunUnsuccessful, match="timeout"):
            await (await mailbox.enqueue("t", "go")).result(timeout=30)


async def test_questions_side_by_side_are_asked_one_after_another(opening: Open) -> None:
    async def both(run: Run) -> str:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(run.ask("One?"))
            second = group.create_task(run.ask("Two?"))
            group.create_task(run.sleep(timedelta(milliseconds=1)))
        return f"{first.result().text} {second.result().text}"

    async with opening(both) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        asked = []
        async for event in handle.events():
            if event.type == "question":
                asked.append(event.text)
                await handle.answer(f"to {event.text}", question_id=event.question_id)
        assert asked == ["One?", "Two?"]
        assert await handle.result(timeout=30) == "to One? to Two?"


async def test_a_failure_beside_a_question_is_a_failure(opening: Open) -> None:
    async def fail() -> None:
        raise InvalidArgument("no such lamp")

    async def both(run: Run) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.ask("One?"))
            group.create_task(fail())

    async with opening(both) as mailbox:
        with pytest.raises(RunUnsuccessful, match="no such lamp"):
            await (await mailbox.enqueue("t", "go", attempts=1)).result(timeout=30)


async def test_a_run_that_goes_on_is_not_said_to_wait(opening: Open) -> None:
    going, slow = asyncio.Event(), asyncio.Event()

    async def work(run: Run) -> str:
        if run.text == "other":
            await slow.wait()
            return ""
        said = await run.ask("Deploy?")
        await going.wait()
        return said.text

    async with opening(work, MailboxConfig(max_concurrent_runs=1)) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await in_state(handle, State.WAITING)
        await mailbox.enqueue("u", "other")
        await answer_open_question(handle, "yes")
        status = await handle.status()
        assert (status.state, status.question) == (State.QUEUED, None)
        slow.set()
        await in_state(handle, State.RUNNING)
        assert (await handle.status()).question is None
        going.set()
        assert await handle.result(timeout=30) == "yes"


async def test_a_run_that_sleeps_asks_nothing(opening: Open) -> None:
    async def nap(run: Run) -> None:
        await run.sleep(LATER)

    async with opening(nap) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await in_state(handle, State.WAITING)
        assert (await handle.status()).question is None
        with pytest.raises(StaleDecision, match="does not ask"):
            await handle.answer("wake up", question_id=f"{handle.id}/sleep-1")
        assert await handle.cancel()


async def test_a_run_that_is_answered_keeps_its_tenant_and_its_turn(opening: Open) -> None:
    async def ask(run: Run) -> str:
        return (await run.ask("Deploy?")).text

    async with opening(ask) as mailbox:
        asked = RunActivation.new("t", ["go"]).delivered(
            tenant="a", limit_key="k", priority=7, max_attempts=2
        )
        handle = await mailbox.handle((await mailbox.admin.submit_background(asked)).run_id)
        await in_state(handle, State.WAITING)
        await answer_open_question(handle, "yes")
        assert await handle.result(timeout=30) == "yes"
        rows = await mailbox.admin.list_dispatches("t")
        told = {(row.tenant, row.limit_key, row.priority, row.max_attempts) for row in rows}
        assert (len(rows), told) == (2, {("a", "k", 7, 2)})


async def test_what_was_given_up_is_tried_again_behind_a_question(opening: Open) -> None:
    mended: list[str] = []

    async def work(run: Run) -> str:
        if run.text == "asks":
            return (await run.ask("Deploy?")).text
        if not mended:
            raise InvalidArgument("no such lamp")
        return "mended"

    async with opening(work) as mailbox:
        failed = await mailbox.enqueue("t", "fails")
        with pytest.raises(RunUnsuccessful):
            await failed.result(timeout=30)
        asks = await mailbox.enqueue("t", "asks")
        await in_state(asks, State.WAITING)
        mended.append("yes")
        [dead] = await mailbox.admin.dead_letters()
        again = await mailbox.handle((await mailbox.admin.replay_dead_letter(dead.dispatch_id)).run_id)
        assert (await again.status()).state is State.QUEUED
        assert (await asks.status()).question == "Deploy?"
        await answer_open_question(asks, "yes")
        assert [await one.result(timeout=30) for one in (asks, again)] == ["yes", "mended"]


async def test_work_that_catches_what_suspends_it_fails_with_a_reason_and_harms_nothing_else(
    opening: Open,
) -> None:
    async def swallowing(run: Run) -> str:
        if run.text == "fine":
            return "done"
        with suppress(BaseException):
            await run.ask("may I?")
        return "went on"

    async with opening(swallowing) as mailbox:
        bad = await mailbox.enqueue("bad", "ask", attempts=1)
        with pytest.raises(RunUnsuccessful, match="went on behind a question"):
            await bad.result(timeout=30)
        assert await (await mailbox.enqueue("good", "fine")).result(timeout=30) == "done"


async def test_a_question_without_a_name_is_a_step_that_people_can_read(opening: Open) -> None:
    async def asking(run: Run) -> str:
        return (await run.ask("May I delete 3 files?")).text

    async with opening(asking) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        while (found := (await handle.status()).question_id) is None:
            await asyncio.sleep(0)
        assert found.startswith(f"{handle.id}/ask-may-i-delete-3-files-")


class TwoApprovals(RunDispatchExecutor):
    """Asks two questions at once, and ends when both are answered."""

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        control = activation.control
        assert isinstance(control, RunControl)
        assert control.run is not None
        answered = {one.ticket.tool_call_id for one in control.run.answered}
        tickets = tuple(
            RunWaitingTicket(ticket_id=call, tool_call_id=call, reason=f"{call}?")
            for call in ("first", "second")
            if call not in answered
        )
        if not tickets:
            return AgentRunResult(run_id=control.run.run_id, response="both")
        waiting = RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=tickets)
        return AgentRunResult(
            run_id=control.run.run_id, termination=TerminationReason.suspended(), waiting=waiting
        )


async def test_the_first_of_two_questions_stays_open_when_the_second_is_answered_before(
    opening: Open,
) -> None:
    async with opening(TwoApprovals()) as mailbox:
        handle = await mailbox.enqueue("t", "go", attempts=1)
        await in_state(handle, State.WAITING)
        await handle.answer("yes", question_id="second")
        await in_state(handle, State.WAITING)
        await handle.answer("yes", question_id="first")
        assert await handle.result(timeout=30) == "both"
        told = [(event.type, event.text) async for event in handle.events()]
        assert told == [("question", "first?"), ("end", "both")]
