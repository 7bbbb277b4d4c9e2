"""A deadline that has passed is refused before anything changes; one that passes later fails its run."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from postroom import testing
from postroom.contracts.activation import BusyPolicy, RunActivation
from postroom.contracts.errors import InvalidSubmission, RunUnsuccessful
from postroom.embedded import Item, Mailbox, Run, State

Open = Callable[..., AbstractAsyncContextManager[testing.ManualMailbox]]


@pytest.fixture(params=["memory", "postgres"])
def opening(request: pytest.FixtureRequest) -> Any:
    schema = f"deadlines_{uuid4().hex}"
    url = "memory" if request.param == "memory" else request.getfixturevalue("postgres_dsn")
    yield lambda work: testing.mailbox(work, url, schema=schema)
    if request.param == "postgres":
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def seconds_from_now(mailbox: Mailbox, seconds: int) -> datetime:
    return datetime.fromtimestamp(mailbox.stores.clock.now() / 1000, UTC) + timedelta(seconds=seconds)


@pytest.mark.parametrize("policy", [one for one in BusyPolicy if one is not BusyPolicy.REJECT])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_deadline_that_has_passed_leaves_the_active_run_alone(
    opening: Open, policy: BusyPolicy, key: str | None
) -> None:
    begun, going = asyncio.Event(), asyncio.Event()

    async def work(run: Run) -> str:
        begun.set()
        await going.wait()
        return "done"

    async with opening(work) as mailbox:
        active = await mailbox.enqueue("d", "first")
        rounds = asyncio.create_task(mailbox.run_until_idle())
        async with asyncio.timeout(30):
            await begun.wait()
        late = seconds_from_now(mailbox, -5)
        with pytest.raises(InvalidSubmission, match=r"the deadline .* has passed: the time is ") as refused:
            await mailbox.enqueue("d", "late", deadline=late, when_busy=policy, key=key)
        assert refused.value.value == int(late.timestamp() * 1000)
        assert refused.value.remedy == "give a later deadline, or none"
        assert (await active.status()).state is State.RUNNING
        going.set()
        await rounds
        assert await active.result(timeout=30) == "done"
        assert [message.text() for message in await mailbox.stores.threads.load_messages("d") or ()] == [
            "first",
            "done",
        ]


async def echo(run: Run) -> str:
    return run.text


async def test_every_entry_refuses_a_deadline_that_has_passed_and_writes_nothing(opening: Open) -> None:
    async with opening(echo) as mailbox:
        late = seconds_from_now(mailbox, -5)
        request = RunActivation.new("t", ["late"]).delivered(deadline_at=int(late.timestamp() * 1000))
        entries = (
            lambda: mailbox.enqueue_many([Item("t", "on time"), Item("t", "late", deadline=late)]),
            lambda: mailbox.enqueue_many([Item("t", "on time"), Item("t", "late", deadline=late, key="k")]),
            lambda: mailbox.admin.submit(request),
            lambda: mailbox.admin.submit(request.hinted(run_id="r")),
            lambda: mailbox.admin.submit(request, strategy=BusyPolicy.QUEUE),
            lambda: mailbox.admin.submit_background(request),
            lambda: mailbox.admin.submit_background(request.hinted(run_id="r")),
            lambda: mailbox.admin.submit_live_then_queue(request),
        )
        for enter in entries:
            with pytest.raises(InvalidSubmission, match=r"the deadline .* has passed"):
                await enter()
            assert await mailbox.stores.threads.load_thread("t") is None


async def test_every_entry_refuses_a_delay_beyond_the_deadline_by_both_names_and_writes_nothing(
    opening: Open,
) -> None:
    async with opening(echo) as mailbox:
        options: Any = {"delay": timedelta(seconds=10), "deadline": seconds_from_now(mailbox, 5)}
        request = RunActivation.new("t", ["never"]).delivered(
            delay_ms=10_000, deadline_at=int(options["deadline"].timestamp() * 1000)
        )
        entries = (
            lambda: mailbox.enqueue("t", "never", **options),
            lambda: mailbox.enqueue("t", "never", key="k", **options),
            lambda: mailbox.enqueue("t", "never", when_busy=BusyPolicy.INTERRUPT, **options),
            lambda: mailbox.enqueue_many([Item("t", "on time"), Item("t", "never", **options)]),
            lambda: mailbox.enqueue_many([Item("t", "on time"), Item("t", "never", key="k", **options)]),
            lambda: mailbox.admin.submit(request, strategy=BusyPolicy.QUEUE),
            lambda: mailbox.admin.submit_background(request),
            lambda: mailbox.admin.submit_live_then_queue(request),
        )
        for enter in entries:
            with pytest.raises(
                InvalidSubmission, match=r"the delay of 10 s .* after the deadline "
            ) as refused:
                await enter()
            assert refused.value.remedy == "give a shorter delay or a later deadline"
            assert await mailbox.stores.threads.load_thread("t") is None
        options["deadline"] = seconds_from_now(mailbox, 10)
        begins_at_its_deadline = await mailbox.enqueue("t", "just in time", **options)
        mailbox.clock.advance(timedelta(seconds=10))
        await mailbox.run_until_idle()
        assert await begins_at_its_deadline.result(timeout=0) == "just in time"


async def test_what_was_accepted_before_its_deadline_keeps_its_run_when_it_is_enqueued_again(
    opening: Open,
) -> None:
    async with opening(echo) as mailbox:
        deadline = seconds_from_now(mailbox, 5)
        first = await mailbox.enqueue("t", "go", key="k", deadline=deadline)
        mailbox.clock.advance(timedelta(seconds=10))
        assert (await mailbox.enqueue("t", "go", key="k", deadline=deadline)).id == first.id
        again = await mailbox.enqueue_many([Item("t", "go", key="k", deadline=deadline)])
        assert [handle.id for handle in again] == [first.id]


async def test_a_deadline_that_passes_while_its_run_waits_fails_the_run(opening: Open) -> None:
    async with opening(echo) as mailbox:
        late = await mailbox.enqueue(
            "chat", "go", delay=timedelta(seconds=3), deadline=seconds_from_now(mailbox, 5)
        )
        mailbox.clock.advance(timedelta(seconds=6))
        await mailbox.run_until_idle()
        with pytest.raises(RunUnsuccessful, match="run failed: the deadline passed"):
            await late.result(timeout=30)
        assert [one.attempts async for one in mailbox.dead_letters] == [1]
