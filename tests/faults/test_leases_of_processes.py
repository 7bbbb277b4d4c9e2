"""Servers in separate processes, one of which is killed, suspended or cut off: never two write for one lease.

PostgreSQL alone: a file has one process. The writes of each are in one order, with their fence.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from faults.cutting_proxy import a_proxy
from faults.lease_process import KIND

pytestmark = pytest.mark.long

HERE = Path(__file__).with_name("lease_process.py")
PATIENCE = 90
Steps = list[tuple[str, int]]


@asynccontextmanager
async def server(dsn: str, schema: str, name: str, *more: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE), dsn, schema, name, *more, stdout=PIPE
    )
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"serving\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class Books:
    """The writes of the servers, in order."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._session = psycopg.connect(dsn, autocommit=True)
        self._table = sql.Identifier(schema, "outbox")

    def steps(self) -> Steps:
        asked = sql.SQL("SELECT payload FROM {} WHERE kind = %s ORDER BY place").format(self._table)
        found = [json.loads(row[0]) for row in self._session.execute(asked, [KIND])]
        return [(one["server"], one["fence"]) for one in found]

    async def until(self, seen: Callable[[Steps], bool]) -> Steps:
        async with asyncio.timeout(PATIENCE):
            while not seen(steps := self.steps()):
                await asyncio.sleep(0.05)
        return steps

    def close(self) -> Steps:
        """See that no two worked at once: the fences only grow, and each is one server's."""
        steps = self.steps()
        self._session.close()
        assert all(before <= after for (_, before), (_, after) in pairwise(steps))
        assert len({fence for _, fence in steps}) == len(set(steps))
        return steps


@pytest.fixture
def books(postgres_dsn: str, a_schema: str) -> Books:
    return Books(postgres_dsn, a_schema)


def by(name: str, behind: int = 0) -> Callable[[Steps], bool]:
    return lambda steps: any(server == name for server, _ in steps[behind:])


async def test_when_a_server_is_killed_another_goes_on(
    postgres_dsn: str, a_schema: str, books: Books
) -> None:
    async with server(postgres_dsn, a_schema, "one") as one:
        await books.until(by("one"))
        async with server(postgres_dsn, a_schema, "two"):
            one.kill()
            await books.until(by("two"))
    assert {name for name, _ in books.close()} == {"one", "two"}


async def test_a_server_that_stood_still_beyond_its_lease_writes_nothing_when_it_goes_on(
    postgres_dsn: str, a_schema: str, books: Books
) -> None:
    async with server(postgres_dsn, a_schema, "one") as one, server(postgres_dsn, a_schema, "two") as two:
        processes = {"one": one, "two": two}
        for _ in range(3):
            holder = (await books.until(bool))[-1][0]
            other = ({*processes} - {holder}).pop()
            os.kill(processes[holder].pid, signal.SIGSTOP)
            behind = len(books.steps())
            await books.until(by(other, behind))
            os.kill(processes[holder].pid, signal.SIGCONT)
            await books.until(lambda steps, behind=behind: len(steps) > behind + 40)
    assert len({fence for _, fence in books.close()}) >= 4


async def test_a_server_that_is_cut_off_has_stopped_before_another_begins(
    postgres_dsn: str, a_schema: str, books: Books
) -> None:
    async with (
        a_proxy(postgres_dsn) as (proxy, through),
        server(through, a_schema, "one"),
        server(postgres_dsn, a_schema, "two"),
    ):
        await books.until(by("one"))
        proxy.is_cut_off = True
        steps = await books.until(by("two"))
        proxy.cut_all()
        proxy.is_cut_off = False
        await books.until(lambda found: len(found) > len(steps) + 40)
    assert {name for name, _ in books.close()} == {"one", "two"}


async def test_a_clock_that_is_wrong_and_jumps_loses_no_lease(
    postgres_dsn: str, a_schema: str, books: Books
) -> None:
    async with server(postgres_dsn, a_schema, "one", "wrong clock"):
        await books.until(by("one"))
        async with server(postgres_dsn, a_schema, "two", "wrong clock"):
            began = len(books.steps())
            await books.until(lambda steps: len(steps) > began + 200)
    assert set(books.close()) == {("one", 1)}
