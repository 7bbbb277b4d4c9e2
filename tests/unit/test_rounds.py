"""Rounds of work: at a hint, at the poll, again at once while there is more, and again after a failure."""

import asyncio
from datetime import timedelta

import pytest

from postroom.concurrency import Rounds, Tasks
from postroom.contracts.errors import StoreError

NEVER = timedelta(hours=1)
AT_ONCE = timedelta(0)


class Work:
    """Says how much each round did, or fails; a round that nothing is said of does nothing."""

    def __init__(self, *rounds: int | Exception) -> None:
        self._rounds = list(rounds)
        self.done = 0
        self.idle = asyncio.Event()

    async def round(self) -> int:
        self.done += 1
        found = self._rounds.pop(0) if self._rounds else 0
        if not self._rounds:
            self.idle.set()
        if isinstance(found, Exception):
            raise found
        return found


async def served(work: Work, poll: timedelta) -> tuple[Rounds, Tasks]:
    rounds, tasks = Rounds("work", work.round, poll), Tasks("test")
    tasks.start(rounds.serve(), name="rounds")
    async with asyncio.timeout(60):
        await work.idle.wait()
    return rounds, tasks


async def test_while_there_is_more_the_next_round_comes_at_once() -> None:
    work = Work(3, 1, 0)
    _, tasks = await served(work, NEVER)
    assert work.done == 3
    await tasks.close()


async def test_a_hint_that_comes_in_the_midst_of_a_round_is_not_lost() -> None:
    hinted = asyncio.Event()

    class Hinted(Work):
        async def round(self) -> int:
            if self.done == 0:
                rounds.hint()
                hinted.set()
            return await super().round()

    work = Hinted(0, 0)
    rounds, tasks = Rounds("work", work.round, NEVER), Tasks("test")
    tasks.start(rounds.serve(), name="rounds")
    async with asyncio.timeout(60):
        await hinted.wait()
        await work.idle.wait()
    assert work.done == 2
    await tasks.close()


async def test_a_round_that_fails_is_done_again_at_the_poll(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(StoreError("the disk is full"), 0)
    _, tasks = await served(work, AT_ONCE)
    assert work.done >= 2
    assert "round.put_off" in caplog.text
    await tasks.close()


async def test_what_is_no_failure_of_postroom_ends_it_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    _, tasks = await served(Work(ZeroDivisionError()), NEVER)
    await tasks.settled()
    assert "ZeroDivisionError" in caplog.text
    await tasks.close()
