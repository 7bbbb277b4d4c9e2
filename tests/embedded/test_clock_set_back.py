"""A clock that is set back makes no short wait of a run last for hours."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from postroom import testing
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
