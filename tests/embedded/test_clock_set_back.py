"""A clock that is set back makes no short wait of a run last for hours, and no question fail."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from postroom import testing
from postroom.contracts.activation import RunActivation
from postroom.embedded import Run, State

Open = Callable[..., AbstractAsyncContextManager[testing.ManualMailbox]]


@pytest.fixture(params=["memory", "postgres"])
def opening(request: pytest.FixtureRequest) -> Any:
    schema = f"clocks_{uuid4().hex}"
    url = "memory" if request.param == "memory" else request.getfixturevalue("postgres_dsn")
    yield lambda work: testing.mailbox(work, url, schema=schema)
    if request.param == "postgres":
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


async def test_a_sleep_a_delay_and_a_retry_end_in_their_time(opening: Open) -> None:
    async def work(run: Run) -> str:
        if run.text == "nap":
            await run.sleep(timedelta(seconds=5))
        if run.text == "fails once" and run.attempt == 1:
            raise OSError("the other side is away")
        return "done"

    async with opening(work) as mailbox:
        handles = [
            await mailbox.enqueue("a", "nap"),
            await mailbox.enqueue("b", "go", delay=timedelta(seconds=5)),
            await mailbox.enqueue("c", "fails once", retry_delay=timedelta(seconds=5)),
        ]
        await mailbox.run_until_idle()
        mailbox.clock.advance(-timedelta(hours=2))
        await mailbox.run_until_idle()
        states = [(await handle.status()).state for handle in handles[:2]]
        assert states == [State.WAITING, State.QUEUED], "5 s have not passed"
        mailbox.clock.advance(timedelta(seconds=5))
        await mailbox.run_until_idle()
        assert [await handle.result(timeout=10) for handle in handles] == ["done"] * 3


@pytest.mark.parametrize("back", [timedelta(seconds=10), timedelta(hours=2)])
async def test_a_question_with_a_timeout_lasts_longer_when_the_clock_is_set_back(
    opening: Open, back: timedelta
) -> None:
    attempts: list[int] = []

    async def work(run: Run) -> str:
        attempts.append(run.attempt)
        answer = await run.ask("Deploy?", timeout=timedelta(seconds=4))
        return "nobody answered" if answer.timed_out else answer.text

    async with opening(work) as mailbox:
        silent, answered = await mailbox.enqueue("a", "go"), await mailbox.enqueue("b", "go")
        await mailbox.run_until_idle()
        mailbox.clock.advance(-back)
        for _ in range(3):
            await mailbox.run_until_idle()
            assert [(await one.status()).state for one in (silent, answered)] == [State.WAITING] * 2
            mailbox.clock.advance(timedelta(seconds=3))
        question = (await answered.status()).question_id
        assert question is not None
        await answered.answer("yes", question_id=question)
        await mailbox.run_until_idle()
        assert await answered.result(timeout=10) == "yes"
        mailbox.clock.advance(back)
        await mailbox.run_until_idle()
        assert await silent.result(timeout=10) == "nobody answered"
        assert set(attempts) == {1}, "a question that waits longer is no failure"
        asked = [event async for event in silent.events() if event.type == "question"]
        assert [one.question_id for one in asked] == [question.replace(answered.id, silent.id)]


async def test_a_question_stays_open_when_its_run_is_begun_again(opening: Open) -> None:
    attempts: list[int] = []

    async def work(run: Run) -> str:
        attempts.append(run.attempt)
        return (await run.ask("Deploy?")).text

    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("a", "go")
        await mailbox.run_until_idle()
        await mailbox.admin.submit_background(RunActivation.new("a", ["well?"], continue_run_id=handle.id))
        await mailbox.run_until_idle()
        for _ in range(5):  # a failure would be retried
            mailbox.clock.advance(timedelta(minutes=10))
            await mailbox.run_until_idle()
        assert attempts == [1, 1]
        question = (await handle.status()).question_id
        assert question is not None
        await handle.answer("yes", question_id=question)
        await mailbox.run_until_idle()
        assert await handle.result(timeout=10) == "yes"
