"""A cancel that was answered with True holds, whatever happens to the process or to the run afterwards."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from embedded_room import both_engines
from machine import PATIENCE
from postroom import MailboxConfig, RunUnsuccessful, State
from postroom.contracts.activation import BusyPolicy, DeliveryOptions, RunActivation
from postroom.contracts.errors import (
    ActiveRunConflict,
    DuplicateRecord,
    InvalidSubmission,
    RunNotOpen,
    UnknownRun,
)
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import TerminationKind
from postroom.contracts.tools import ToolCallResume


async def assert_cancelled(handle):
    with pytest.raises(RunUnsuccessful, match="was cancelled"):
        await handle.result(timeout=PATIENCE)


async def test_a_cancelled_run_neither_executes_again_nor_is_a_dead_letter_after_a_crash(manual):
    begun, is_told = [], asyncio.Event()

    async def work(run):
        begun.append(run.id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_told.set()
            await asyncio.Event().wait()  # it is still tidying up when the process dies

    async with manual(work) as mailbox:
        for attempts in (5, 1):
            handle = await mailbox.enqueue(f"t{attempts}", "x", attempts=attempts)
            while handle.id not in begun:
                await asyncio.sleep(0)
            assert await handle.cancel()
            await is_told.wait()
            is_told.clear()
            await mailbox.crash()
            await mailbox.run_until_idle()
            assert (await handle.status()).state is State.CANCELLED
            assert begun.count(handle.id) == 1
        assert [one async for one in mailbox.dead_letters] == []


@pytest.mark.parametrize("ends", ["returns", "fails"])
async def test_a_run_that_ends_by_itself_after_its_cancel_is_cancelled(opening, ends):
    is_at_work = asyncio.Event()

    async def work(run):
        is_at_work.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if ends == "fails":
            raise ValueError("it does not fit")
        return "done all the same"

    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "x", attempts=1)
        await is_at_work.wait()
        assert await handle.cancel()
        await assert_cancelled(handle)


@both_engines
async def test_a_cancel_says_true_only_if_the_run_ends_as_cancelled(opening):
    """Cancels meet runs in each moment of their short lives."""

    async def work(run):
        await run.step("a", lambda: 1)
        return "done"

    async with opening(work) as mailbox:
        for place in range(0, 40, 3):
            handle = await mailbox.enqueue(f"t{place}", "x")
            for _ in range(place):
                await asyncio.sleep(0)
            said = await handle.cancel()
            with suppress(RunUnsuccessful):
                await handle.result(timeout=PATIENCE)
            assert said == ((await handle.status()).state is State.CANCELLED), place


@both_engines
@pytest.mark.parametrize("by", ["id", "thread_id"])
async def test_a_cancel_at_the_moment_of_an_answer_is_not_lost(opening, by):
    async def work(run):
        await run.ask("Go on?")
        await asyncio.Event().wait()

    async def cancel(mailbox, handle, place):
        for _ in range(place // 4):
            await asyncio.sleep(0)
        return await mailbox.cancel(getattr(handle, by))

    async with opening(work) as mailbox:
        for place in range(24):
            handle = await mailbox.enqueue(f"t{place}", "x")
            question = await anext(event async for event in handle.events() if event.type == "question")
            answer = handle.answer("yes", question_id=question.question_id)
            said = await asyncio.gather(answer, cancel(mailbox, handle, place), return_exceptions=True)
            assert said[1] is True, place
            await assert_cancelled(handle)


@both_engines
async def test_a_cancel_between_two_attempts_is_not_lost(opening):
    failing = asyncio.Event()

    async def work(run):
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
            await assert_cancelled(handle)


async def test_a_refused_submission_leaves_the_active_run_to_finish(opening):
    begun, may_stop = asyncio.Event(), asyncio.Event()

    async def work(run):
        if not begun.is_set():
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await may_stop.wait()
                raise
        return "finished"

    async with opening(work, MailboxConfig(cancel_wait_ms=50, drain_grace=timedelta(seconds=5))) as mailbox:
        handle = await mailbox.enqueue("t", "x", attempts=1)
        await begun.wait()
        with pytest.raises(ActiveRunConflict):
            await mailbox.admin.submit(RunActivation.new("t", [Message.user("at once")]))
        may_stop.set()
        assert await handle.result(timeout=PATIENCE) == "finished"
        runs = await mailbox.stores.threads.list_runs(RunQuery(thread_id="t"))
        assert [run.run_id for run in runs] == [handle.id], "nothing was written of the refused submission"


@both_engines
async def test_a_submission_that_must_be_refused_interrupts_nothing(opening):
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def work(run):
        begun.set()
        await goes_on.wait()
        return "finished"

    async with opening(work) as mailbox:
        submit = mailbox.admin.submit
        active = await mailbox.enqueue("t", "x", key="first")
        await begun.wait()
        [known] = await mailbox.stores.threads.load_messages("t")
        requests = {
            DuplicateRecord: RunActivation.new("t", [Message.user("again", id=known.id)]),
            RunNotOpen: RunActivation.new("t", ["go on"], continue_run_id=active.id),
            UnknownRun: RunActivation.new("t", ["go on"], continue_run_id="nothing"),
        }
        for refusal, request in requests.items():
            for strategy in (BusyPolicy.INTERRUPT, BusyPolicy.ROLLBACK):
                with pytest.raises(refusal):
                    await submit(request, strategy=strategy)
        goes_on.set()
        assert await active.result(timeout=PATIENCE) == "finished"
        runs = await mailbox.stores.threads.list_runs(RunQuery(thread_id="t"))
        assert [run.run_id for run in runs] == [active.id]


@both_engines
@pytest.mark.parametrize("refusal", [DuplicateRecord, InvalidSubmission])
async def test_a_run_that_stopped_for_a_submission_goes_on_if_the_submission_is_then_refused(manual, refusal):
    """When the run has stopped, the message of the submission is known, or its deadline has passed."""
    begun, executions = asyncio.Event(), []

    async def work(run):
        executions.append((run.id, run.attempt, run.interruptions))
        if len(executions) == 1:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                mailbox.clock.advance(timedelta(seconds=10))
                if refusal is DuplicateRecord:
                    await mailbox.admin.append_pending("t", [Message.user("at once", id="m1")])
        return "finished"

    async with manual(work) as mailbox:
        active = await mailbox.enqueue("t", "x", attempts=1, interruptions=0)
        await begun.wait()
        request = RunActivation.new("t", [Message.user("at once", id="m1")])
        if refusal is InvalidSubmission:
            request = request.delivered(deadline_at=int(mailbox.clock.now()) + 5_000)
        submitting = asyncio.ensure_future(mailbox.admin.submit(request))
        while not submitting.done():
            mailbox.clock.advance(timedelta(milliseconds=1))
            await asyncio.sleep(0)
        with pytest.raises(refusal):
            await submitting
        await mailbox.run_until_idle()
        assert await active.result(timeout=0) == "finished"
        assert executions == [(active.id, 1, 0)] * 2
        runs = await mailbox.stores.threads.list_runs(RunQuery(thread_id="t"))
        assert [run.run_id for run in runs] == [active.id]


async def test_the_stream_of_a_run_that_gives_way_ends_with_its_cancel(opening):
    begun = asyncio.Event()

    async def work(run):
        if run.text == "at once":
            return "finished"
        begun.set()
        return await asyncio.Event().wait()

    async with opening(work) as mailbox:
        first, events = await mailbox.admin.submit(RunActivation.new("t", ["x"]))
        await begun.wait()
        await mailbox.admin.submit(RunActivation.new("t", ["at once"]))
        async with asyncio.timeout(PATIENCE):
            last = [event async for event in events][-1]
        assert (last.run_id, last.termination.type) == (first.run_id, TerminationKind.CANCELLED)


@both_engines
async def test_a_submission_with_the_dedupe_key_of_the_active_run_takes_its_place(opening):
    begun = asyncio.Event()

    async def work(run):
        if run.text != "at once":
            begun.set()
            await asyncio.Event().wait()
        return "finished"

    async with opening(work) as mailbox:
        delivery = DeliveryOptions(dedupe_key="report")
        first = replace(RunActivation.new("t", ["x"]), delivery=delivery)
        active = await mailbox.admin.submit_background(first)
        await begun.wait()
        second = replace(RunActivation.new("t", ["at once"]), delivery=delivery)
        accepted, _ = await mailbox.admin.submit(second)
        assert await (await mailbox.handle(accepted.run_id)).result(timeout=PATIENCE) == "finished"
        await assert_cancelled(await mailbox.handle(active.run_id))


async def test_a_decision_is_sent_live_only_to_an_active_run_and_submitted_to_a_queued_one(opening):
    answers, begins = [], asyncio.Event()

    async def work(run):
        if run.thread_id == "first":
            return await begins.wait()
        answers.append((await run.ask("Ship the lamp?", name="ship")).text)
        return answers[-1]

    async with opening(work, MailboxConfig(max_concurrent_runs=1)) as mailbox:
        await mailbox.enqueue("first", "x")
        queued = await mailbox.enqueue("t", "x")
        call_id, send = f"{queued.id}/ship", mailbox.admin.send_decision_live
        decision = ToolCallResume(decision_id="d1", result={"text": "yes"}, by="Ann")
        assert not await send(queued.id, call_id, decision)
        request = RunActivation.new("t", [], continue_run_id=queued.id, decisions=[(call_id, decision)])
        await mailbox.admin.submit_background(request)
        begins.set()
        assert await queued.result(timeout=PATIENCE) == "yes"
        asks = await mailbox.enqueue("second", "x")
        async for event in asks.events():
            if event.type == "question":
                assert not await send(asks.id, event.question_id, decision)
                await asks.answer("no", question_id=event.question_id)
        assert answers == ["yes", "no"]


async def test_a_submission_that_someone_waits_for_is_refused_at_once_behind_a_question(manual):
    """The asking run yields to no submission: repeated attempts would only load the database."""

    async def asks(run):
        return (await run.ask("May I?")).text

    async with manual(asks) as mailbox:
        await mailbox.enqueue("thread", "ask")
        await mailbox.run_until_idle()
        engine = mailbox.stores.store.engine
        before = engine.grouping[1]
        with pytest.raises(ActiveRunConflict):
            await mailbox.admin.submit(RunActivation.new("thread", [Message.user("now", id="now")]))
        assert engine.grouping[1] - before < 10
