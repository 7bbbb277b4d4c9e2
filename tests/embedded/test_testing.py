"""The kit for programs that run on the mailbox: time by hand, planned failures, and a check that can fail."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from postroom import testing
from postroom.dispatch.config import MailboxConfig
from postroom.embedded import Run, State

Open = Callable[..., AbstractAsyncContextManager[testing.ManualMailbox]]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opening(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Open a mailbox of the kit on a database of this test."""
    schema = f"testing_{uuid4().hex}"
    url = {"memory": "memory", "sqlite": f"sqlite:///{tmp_path}/runs.db"}.get(request.param)
    if url is None:
        url = request.getfixturevalue("postgres_dsn")
    yield lambda work, config=None: testing.mailbox(work, url, config=config, schema=schema)
    if request.param == "postgres":
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


async def echo(run: Run) -> str:
    return f"you said {run.text}"


async def test_what_is_due_later_waits_for_the_clock(opening: Open) -> None:
    async def nap(run: Run) -> str:
        await run.sleep(timedelta(hours=2))
        return "rested"

    async with opening(nap) as mailbox:
        handle = await mailbox.enqueue("t", "go", delay=timedelta(hours=1))
        seen = []
        for _ in range(4):
            await mailbox.run_until_idle()
            seen.append((await handle.status()).state)
            mailbox.clock.advance(timedelta(hours=1))
        assert seen == [State.QUEUED, State.WAITING, State.WAITING, State.DONE]
        assert await testing.check(mailbox) == []


async def test_work_that_fails_as_planned_is_tried_again_in_its_time(opening: Open) -> None:
    async with opening(testing.fails(2, echo)) as mailbox:
        handle = await mailbox.enqueue("t", "go", retry_delay=timedelta(hours=1))
        await mailbox.run_until_idle()
        assert (await handle.status()).state is not State.DONE
        for _ in range(2):
            mailbox.clock.advance(timedelta(hours=2))
            await mailbox.run_until_idle()
        assert await handle.result() == "you said go"


async def test_work_that_hangs_is_named_and_ends_when_it_is_cancelled(opening: Open) -> None:
    work = testing.Hanging()
    async with opening(work, MailboxConfig(max_run_ms=3_600_000)) as mailbox:
        first, second = [await mailbox.enqueue(thread, "go") for thread in ("a", "b")]
        assert {(await work.begun()).id for _ in range(2)} == {first.id, second.id}
        with pytest.raises(TimeoutError, match=f"run {first.id} of thread a"):
            await mailbox.run_until_idle(timeout=0)
        await first.cancel()
        mailbox.clock.advance(timedelta(hours=1))
        await mailbox.run_until_idle()
        assert [(await one.status()).state for one in (first, second)] == [State.CANCELLED, State.FAILED]
        assert work.cancelled == [first.id, second.id]


async def test_a_process_that_dies_in_a_step_does_the_step_again_and_no_other(opening: Open) -> None:
    done: list[str] = []

    async def sell(run: Run) -> str:
        await run.step("charge", done.append, "charge")
        await run.step("send", done.append, "send")
        return "sold"

    async with opening(testing.crashes(sell, in_step="send")) as mailbox:
        handle = await mailbox.enqueue("shop", "go")
        await mailbox.run_until_idle()
        mailbox.clock.advance(timedelta(minutes=1))  # on PostgreSQL others wait for the lease to end
        await mailbox.run_until_idle()
        assert await handle.result() == "sold"
        assert done == ["charge", "send", "send"]
        assert await testing.check(mailbox, accepted={handle.id: "shop"}) == []
