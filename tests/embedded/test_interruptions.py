"""The end of a server interrupts a run, and is no failure of it: it is counted apart, with a limit of its own."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from embedded_room import SOON
from postroom import testing
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import InvalidArgument, InvalidSubmission, RunUnsuccessful
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.inspection import WhyNot
from postroom.embedded import Item, Mailbox, Run, State

Open = Callable[..., AbstractAsyncContextManager[testing.ManualMailbox]]
LEASE_OVER = timedelta(minutes=1)
DELAY_OVER = timedelta(seconds=5)


@pytest.fixture(params=["memory", "postgres"])
def opening(request: pytest.FixtureRequest) -> Any:
    schema = f"interruptions_{uuid4().hex}"
    url = "memory" if request.param == "memory" else request.getfixturevalue("postgres_dsn")
    yield lambda work, config=None: testing.mailbox(work, url, config=config, schema=schema)
    if request.param == "postgres":
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


class LongWork:
    """Hangs until it was begun for the last time, then fails or answers."""

    def __init__(self, interruptions: int, *, failures: int = 0) -> None:
        self._left = interruptions
        self._failures = failures
        self._begun = asyncio.Event()

    async def __call__(self, run: Run) -> str:
        if self._left:
            self._left -= 1
            self._begun.set()
            await asyncio.Event().wait()
        if self._failures:
            self._failures -= 1
            raise OSError("the other side is away")
        return "done"

    async def begun(self) -> None:
        async with asyncio.timeout(30):
            await self._begun.wait()
        self._begun.clear()


async def killed(mailbox: testing.ManualMailbox, work: LongWork, times: int) -> None:
    """Kill the process each time the work has begun; the next process takes the run over."""
    for _ in range(times):
        mailbox.clock.advance(DELAY_OVER)
        await mailbox.admin.poll()
        await work.begun()
        await mailbox.crash()
        claimed = await mailbox.stores.dispatches.list_by_status(RunDispatchStatus.CLAIMED)
        if any(row.claimed_by != mailbox.admin.consumer_id for row in claimed):
            mailbox.clock.advance(LEASE_OVER)  # on PostgreSQL others wait for the lease to end
        await mailbox.admin.run_sweep()


async def test_a_run_that_outlives_nine_killed_servers_is_done_and_no_dead_letter(opening: Open) -> None:
    work = LongWork(9)
    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await killed(mailbox, work, 9)
        mailbox.clock.advance(DELAY_OVER)
        await mailbox.run_until_idle()
        assert await handle.result(timeout=30) == "done"
        assert [one async for one in mailbox.dead_letters] == []


async def test_a_run_fails_as_often_as_it_may_however_often_its_server_ended(opening: Open) -> None:
    work = LongWork(3, failures=9)
    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "go", attempts=2)
        await killed(mailbox, work, 3)
        for _ in range(2):
            mailbox.clock.advance(timedelta(hours=1))
            await mailbox.run_until_idle()
        with pytest.raises(RunUnsuccessful, match="the other side is away"):
            await handle.result(timeout=30)
        [dead] = [one async for one in mailbox.dead_letters]
        assert (dead.attempts, dead.interruptions) == (2, 3)


async def test_one_interruption_and_one_that_is_allowed_are_told_in_the_singular(opening: Open) -> None:
    for allowed, told in ((0, "once .* the limit is 0 interruptions"), (1, "2 times .* is 1 interruption")):
        work = LongWork(99)
        async with opening(work) as mailbox:
            handle = await mailbox.enqueue(f"t{allowed}", "go", interruptions=allowed)
            await killed(mailbox, work, allowed + 1)
            with pytest.raises(RunUnsuccessful, match=f"interrupted {told}$"):
                await handle.result(timeout=0)


async def test_a_run_that_is_interrupted_too_often_is_a_dead_letter_that_says_so(opening: Open) -> None:
    work = LongWork(99)
    async with opening(work, MailboxConfig(default_max_interruptions=9)) as mailbox:
        handle = await mailbox.enqueue("t", "go", interruptions=2)
        await killed(mailbox, work, 3)
        assert (await handle.status()).state is State.FAILED
        [dead] = [one async for one in mailbox.dead_letters]
        assert (dead.attempts, dead.interruptions) == (0, 3)
        assert dead.error == (
            "the run was interrupted 3 times because its server ended or lost its lease, "
            "and the limit is 2 interruptions"
        )
        again = await mailbox.dead_letters.replay(handle.id)
        await work.begun()
        assert (await again.status()).state is State.RUNNING


async def test_the_limit_of_a_mailbox_holds_for_runs_that_say_nothing_of_it(opening: Open) -> None:
    work = LongWork(99)
    async with opening(work, MailboxConfig(default_max_interruptions=0)) as mailbox:
        handles = await mailbox.enqueue_many([Item("t", "go", attempts=9)])
        await killed(mailbox, work, 1)
        assert (await handles[0].status()).state is State.FAILED


async def test_after_the_first_interruption_a_run_waits_a_little_and_at_most_5_s(opening: Open) -> None:
    work = LongWork(7)
    async with opening(work) as mailbox:
        handle, delays = await mailbox.enqueue("t", "go"), []
        for _ in range(7):
            await killed(mailbox, work, 1)
            reason = await mailbox.admin.why_not(handle.id)
            is_later = reason.why is WhyNot.NOT_DUE and reason.until is not None
            delays.append(reason.until - mailbox.clock.now() if is_later else 0)
    assert delays[0] == 0
    assert delays[1:] == [250, 500, 1_000, 2_000, 4_000, 5_000]


async def test_a_server_that_stops_in_good_order_interrupts_its_runs_and_fails_none(
    tmp_path: Path, postgres_dsn: str, subtests: pytest.Subtests
) -> None:
    schema = f"interruptions_{uuid4().hex}"
    config = MailboxConfig(drain_grace=timedelta(0))
    for url in (f"sqlite:///{tmp_path}/runs.db", postgres_dsn):
        with subtests.test(url=url.split(":")[0]):
            work = LongWork(3)
            for attempt in range(4):
                async with Mailbox.open(url, work, config=config, schema=schema) as mailbox:
                    handle = await mailbox.enqueue("t", "go", key="once", attempts=1, interruptions=2)
                    if attempt < 3:
                        await work.begun()
                    else:
                        with pytest.raises(RunUnsuccessful, match="was interrupted 3 times"):
                            await handle.result(timeout=30)
                        [dead] = [one async for one in mailbox.dead_letters]
                        assert (dead.attempts, dead.interruptions) == (0, 3)
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


async def test_a_number_of_interruptions_that_none_can_have_is_refused() -> None:
    async with testing.mailbox(LongWork(0), config=SOON) as mailbox:
        with pytest.raises(InvalidSubmission, match="must not be negative"):
            await mailbox.enqueue("t", "go", interruptions=-1)
        with pytest.raises(InvalidArgument, match="interruptions must be a whole number or None"):
            await mailbox.enqueue("t", "go", interruptions=True)
        with pytest.raises(InvalidSubmission, match="must not be negative"):
            await mailbox.schedules.add("nightly", "t", "go", every=timedelta(hours=1), interruptions=-1)
