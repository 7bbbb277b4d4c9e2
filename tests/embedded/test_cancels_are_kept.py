"""A cancel that was answered with True holds, whatever happens to the process or to the run afterwards."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from embedded_room import Open
from postroom import Mailbox, RunUnsuccessful, testing
from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import ActiveRunConflict
from postroom.contracts.messages import Message
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import MailboxConfig
from postroom.embedded.handle import RunHandle, State
from postroom.embedded.running import Answer, Run


async def test_a_cancelled_run_does_not_execute_again_after_a_crash() -> None:
    begun: list[str] = []
    is_told = asyncio.Event()

    async def work(run: Run) -> str:
        begun.append(run.id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_told.set()
            await asyncio.Event().wait()  # it is still tidying up when the process dies
        return "executed to the end"

    async with testing.mailbox(work) as mailbox:
        handle = await mailbox.enqueue("t", "x")
        while not begun:
            await asyncio.sleep(0)
        assert await handle.cancel()
        await is_told.wait()
        await mailbox.crash()
        await mailbox.run_until_idle()
        assert (await handle.status()).state is State.CANCELLED
        assert begun == [handle.id]


async def test_a_cancelled_run_with_one_attempt_is_no_dead_letter_after_a_crash() -> None:
    hanging = testing.Hanging()
    async with testing.mailbox(hanging) as mailbox:
        handle = await mailbox.enqueue("t", "x", attempts=1)
        await hanging.begun()
        hanging.cancelled.clear()
        assert await handle.cancel()
        await mailbox.crash()
        await mailbox.run_until_idle()
        assert (await handle.status()).state is State.CANCELLED
        assert [one async for one in mailbox.dead_letters] == []


@pytest.mark.parametrize("ends", ["returns", "fails"])
async def test_a_run_that_ends_by_itself_after_its_cancel_is_cancelled(opening: Open, ends: str) -> None:
    is_at_work = asyncio.Event()

    async def work(run: Run) -> str:
        is_at_work.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends == "fails":
                raise ValueError("it does not fit") from None
        return "done all the same"

    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "x", attempts=1)
        await is_at_work.wait()
        assert await handle.cancel()
        with pytest.raises(RunUnsuccessful, match="was cancelled"):
            await handle.result(timeout=30)


async def test_a_cancel_of_a_run_that_has_ended_says_false(opening: Open) -> None:
    async def work(run: Run) -> str:
        return "done"

    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "x")
        assert await handle.result(timeout=30) == "done"
        assert not await handle.cancel()
        assert (await handle.status()).state is State.DONE


async def test_a_cancel_says_true_only_if_the_run_ends_as_cancelled(opening: Open) -> None:
    """Cancels meet runs in each moment of their short lives."""

    async def work(run: Run) -> str:
        await run.step("a", lambda: 1)
        return "done"

    async def one(mailbox: Mailbox, place: int) -> tuple[bool, State]:
        handle = await mailbox.enqueue(f"t{place}", "x")
        for _ in range(place):
            await asyncio.sleep(0)
        said = await handle.cancel()
        with suppress(RunUnsuccessful):
            await handle.result(timeout=30)
        return said, (await handle.status()).state

    async with opening(work) as mailbox:
        for place in range(0, 40, 3):
            said, state = await one(mailbox, place)
            assert said == (state is State.CANCELLED), place


@pytest.mark.parametrize("by", ["run", "thread"])
async def test_a_cancel_at_the_moment_of_an_answer_is_not_lost(opening: Open, by: str) -> None:
    async def work(run: Run) -> str:
        await run.ask("Go on?")
        await asyncio.Event().wait()
        return "went on"

    async def cancel(mailbox: Mailbox, handle: RunHandle, place: int) -> bool:
        for _ in range(place // 4):
            await asyncio.sleep(0)
        return await mailbox.cancel(handle.id if by == "run" else handle.thread_id)

    async with opening(work) as mailbox:
        for place in range(24):
            handle = await mailbox.enqueue(f"t{place}", "x")
            question = await anext(event async for event in handle.events() if event.type == "question")
            answer = handle.answer("yes", question_id=question.question_id)
            said = await asyncio.gather(answer, cancel(mailbox, handle, place), return_exceptions=True)
            assert said[1] is True, place
            with pytest.raises(RunUnsuccessful, match="was cancelled"):
                await handle.result(timeout=30)


async def test_a_cancel_between_two_attempts_is_not_lost(opening: Open) -> None:
    failing = asyncio.Event()

    async def work(run: Run) -> str:
        if run.attempt > 1:
            await asyncio.Event().wait()
        failing.set()
        raise OSError("try again")

    async with opening(work) as mailbox:
        for place in range(24):
            failing.clear()
            handle = await mailbox.enqueue(f"t{place}", "x", attempts=2)
            await failing.wait()
            for _ in range(place):
                await asyncio.sleep(0)
            assert await handle.cancel(), place
            with pytest.raises(RunUnsuccessful, match="was cancelled"):
                await handle.result(timeout=30)


async def test_a_refused_submission_leaves_the_active_run_to_finish(opening: Open) -> None:
    begun, may_stop = asyncio.Event(), asyncio.Event()

    async def work(run: Run) -> str:
        if not begun.is_set():
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await may_stop.wait()
                raise
        return "finished"

    config = MailboxConfig(cancel_wait_ms=50, drain_grace=timedelta(seconds=5))
    async with opening(work, config) as mailbox:
        handle = await mailbox.enqueue("t", "x", attempts=1)
        await begun.wait()
        with pytest.raises(ActiveRunConflict):
            await mailbox.admin.submit(RunActivation.new("t", [Message.user("at once")]))
        may_stop.set()
        assert await handle.result(timeout=30) == "finished"
        runs = await mailbox.stores.threads.list_runs(RunQuery(thread_id="t"))
        assert [run.run_id for run in runs] == [handle.id], "nothing was written of the refused submission"


async def test_a_decision_is_sent_live_only_to_an_active_run_and_submitted_to_a_queued_one() -> None:
    answers: list[Answer] = []
    begins = asyncio.Event()

    async def work(run: Run) -> str:
        if run.thread_id == "first":
            await begins.wait()
            return "done"
        answers.append(await run.ask("Ship the lamp?", name="ship"))
        return answers[-1].text

    async with Mailbox.open("memory", work, config=MailboxConfig(max_concurrent_runs=1)) as mailbox:
        await mailbox.enqueue("first", "x")
        queued = await mailbox.enqueue("t", "x")
        call_id = f"{queued.id}/ship"
        decision = ToolCallResume(decision_id="d1", result={"text": "yes"}, by="Ann")
        assert not await mailbox.admin.send_decision_live(queued.id, call_id, decision)
        request = RunActivation.new("t", [], continue_run_id=queued.id, decisions=[(call_id, decision)])
        await mailbox.admin.submit_background(request)
        begins.set()
        assert await queued.result(timeout=30) == "yes"
        asks = await mailbox.enqueue("second", "x")
        async for event in asks.events():
            if event.type == "question":
                assert not await mailbox.admin.send_decision_live(
                    asks.id, event.data["question_id"], decision
                )
                await asks.answer("no", question_id=event.data["question_id"])
        assert [one.text for one in answers] == ["yes", "no"]


async def test_a_submission_that_someone_waits_for_is_refused_at_once_behind_a_question() -> None:
    """The run that asks gives way to no submission: to try again and again would only load the database."""

    async def asks(run: Run) -> str:
        return (await run.ask("May I?")).text

    async with testing.mailbox(asks) as opened:
        await opened.enqueue("thread", "ask")
        await opened.run_until_idle()
        engine = opened.stores.store.engine
        before = engine.grouping[1]
        with pytest.raises(ActiveRunConflict):
            await opened.admin.submit(RunActivation.new("thread", [Message.user("now", id="now")]))
        assert engine.grouping[1] - before < 10
