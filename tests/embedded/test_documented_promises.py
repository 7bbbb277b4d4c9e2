"""Sentences of docs/embedding.md that no other test holds, at the library's face."""

import asyncio
import threading
from datetime import timedelta

import pytest

from embedded.test_mailbox import in_state
from embedded_room import Open
from postroom import MailboxConfig, Run, RunUnsuccessful, State, SubmissionRejected
from postroom.contracts.activation import BusyPolicy

LATER = timedelta(hours=1)


async def test_a_delayed_run_lets_the_next_run_of_its_conversation_go_first(opening: Open) -> None:
    async def work(run: Run) -> str:
        return run.text

    async with opening(work) as mailbox:
        delayed = await mailbox.enqueue("t", "delayed", delay=LATER)
        assert await (await mailbox.enqueue("t", "next")).result(timeout=30) == "next"
        assert (await delayed.status()).state is State.QUEUED


async def test_a_run_that_waits_for_its_next_attempt_lets_the_next_run_go_first(opening: Open) -> None:
    async def work(run: Run) -> str:
        if run.text == "fails":
            raise ConnectionError("away")
        return run.text

    async with opening(work) as mailbox:
        failing = await mailbox.enqueue(
            "t", "fails", retry_delay=LATER * 1_000, max_retry_delay=LATER * 1_000
        )
        async with asyncio.timeout(30):
            while [row.attempt_count for row in await mailbox.admin.list_dispatches("t")] != [1]:
                await asyncio.sleep(0)
            await in_state(failing, State.QUEUED)
        assert await (await mailbox.enqueue("t", "next")).result(timeout=30) == "next"
        assert (await failing.status()).state is State.QUEUED


@pytest.mark.parametrize("policy", [BusyPolicy.INTERRUPT, BusyPolicy.ROLLBACK])
async def test_an_interrupting_job_ends_what_is_active_what_asks_and_what_is_delayed(
    opening: Open, policy: BusyPolicy
) -> None:
    begun = asyncio.Event()

    async def work(run: Run) -> str:
        if run.text == "ask":
            await run.ask("May I?")
        if run.text == "stuck":
            begun.set()
            await asyncio.Event().wait()
        told = [f"{message.role}: {message.text()}" for message in await run.history()]
        return f"{run.text} after {told}"

    async with opening(work) as mailbox:
        await (await mailbox.enqueue("busy", "hello")).result(timeout=30)
        busy = await mailbox.enqueue("busy", "stuck")
        asking = await mailbox.enqueue("asks", "ask")
        delayed = await mailbox.enqueue("busy", "late", delay=LATER)
        await asyncio.wait_for(begun.wait(), 30)
        await in_state(asking, State.WAITING)
        answer = await (await mailbox.enqueue("busy", "now", when_busy=policy)).result(timeout=30)
        await (await mailbox.enqueue("asks", "now", when_busy=policy)).result(timeout=30)
        for handle in (busy, asking, delayed):
            with pytest.raises(RunUnsuccessful, match="cancelled"):
                await handle.result(timeout=30)
        assert ("user: stuck" in answer) == (policy is BusyPolicy.INTERRUPT)


@pytest.mark.parametrize("is_asking", [False, True])
async def test_a_job_that_rejects_a_busy_conversation_is_refused_and_stores_nothing(
    opening: Open, is_asking: bool
) -> None:
    going = asyncio.Event()

    async def work(run: Run) -> str:
        if is_asking:
            await run.ask("May I?")
        await going.wait()
        return run.text

    async with opening(work) as mailbox:
        first = await mailbox.enqueue("t", "first")
        await in_state(first, State.WAITING if is_asking else State.RUNNING)
        with pytest.raises(SubmissionRejected):
            await mailbox.enqueue("t", "second", when_busy=BusyPolicy.REJECT)
        assert len(await mailbox.admin.list_dispatches("t")) == 1
        going.set()
        await first.cancel()


async def test_a_cancelled_run_whose_step_blocks_a_thread_is_left_behind(opening: Open) -> None:
    began, let_go = threading.Event(), threading.Event()

    async def work(run: Run) -> None:
        await run.step("block", lambda: (began.set(), let_go.wait(60)))

    try:
        async with opening(work, MailboxConfig(stop_wait_ms=20)) as mailbox:
            handle = await mailbox.enqueue("t", "go")
            await asyncio.to_thread(began.wait, 30)
            assert await handle.cancel()
            with pytest.raises(RunUnsuccessful, match="cancelled"):
                await handle.result(timeout=30)
            assert not let_go.is_set(), "the run ended before its step returned"
            let_go.set()
    finally:
        let_go.set()
