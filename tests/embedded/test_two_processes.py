"""One program serves, another one asks: what reaches a run in another process, on one PostgreSQL database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio

from embedded.test_mailbox import answer_open_question, in_state
from postroom.dispatch.config import MailboxConfig
from postroom.embedded.handle import State
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import Function, Run
from postroom.stores.postgres.engine import PostgresEngine

CONFIG = MailboxConfig(drain_grace=timedelta(seconds=5))


class Two:
    """A database on which `serving` executes runs and `asking` does not."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.schema = dsn, f"two_{uuid4().hex}"

    @asynccontextmanager
    async def opened(self, work: Function) -> AsyncIterator[tuple[Mailbox, Mailbox]]:
        async with (
            Mailbox.open(self.dsn, work, config=CONFIG, schema=self.schema) as serving,
            Mailbox.open(self.dsn, None, config=CONFIG, schema=self.schema) as asking,
        ):
            yield serving, asking


@pytest_asyncio.fixture
async def two(postgres_dsn: str) -> AsyncIterator[Two]:
    made = Two(postgres_dsn)
    yield made
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA IF EXISTS {made.schema} CASCADE")


async def test_a_function_at_work_elsewhere_is_cancelled(two: Two) -> None:
    async def stuck(run: Run) -> None:
        await run.stream("at work")
        await asyncio.Event().wait()

    async with two.opened(stuck) as (_, asking):
        handle = await asking.enqueue("t", "go")
        assert (await anext(handle.events())).text == "at work"
        assert (await handle.status()).state is State.RUNNING
        assert await handle.cancel()
        await in_state(handle, State.CANCELLED)


async def test_a_question_is_answered_from_elsewhere(two: Two) -> None:
    async def ask(run: Run) -> str:
        return (await run.ask("Deploy?", timeout=timedelta(days=1))).text

    async with two.opened(ask) as (_, asking):
        handle = await asking.enqueue("t", "go")
        await in_state(handle, State.WAITING)
        await answer_open_question(handle, "yes")
        assert await handle.result(timeout=30) == "yes"


@pytest.mark.parametrize("hints", ["heard", "lost"])
async def test_what_a_run_tells_is_followed_elsewhere_while_it_is_at_work(
    two: Two, hints: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost hint costs one look at most: the run goes on only when the follower has its text."""
    going = asyncio.Event()

    async def slowly(run: Run) -> str:
        await run.stream("one ")
        await going.wait()
        return "one two"

    async with two.opened(slowly) as (serving, asking):
        if hints == "lost":
            monkeypatch.setattr("postroom.stores.runs.ports.LOOK_AGAIN_AFTER", timedelta(milliseconds=20))
            engine = serving.stores.store.engine
            assert isinstance(engine, PostgresEngine)
            await asyncio.to_thread(engine.notifications.close)
        handle = await asking.enqueue("t", "go")
        events = handle.events()
        told = await anext(events)
        assert (told.type, told.text) == ("text", "one ")
        going.set()
        assert [event.type async for event in events] == ["end"]
