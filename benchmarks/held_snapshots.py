"""What a transaction that stays open and a running `pg_dump` cost those who work on PostgreSQL.

Both hold a snapshot: no row that was changed or removed since can be cleared away, so that
whatever looks for work passes over more and more of them.

`python -m benchmarks.held_snapshots 60` has the transaction open for a minute.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.dispatch_mailbox import runs_a_second
from benchmarks.figures import Table, cpu_of, median, ms, size
from benchmarks.servers import calls_of, rate, sessions_of

OPEN_FOR = size(600.0, 0.5)
"""Seconds for which the transaction is open."""
RUNS = size(1_000, 20)
"""Runs of one turn; messages are sent for as long as `benchmarks.servers.SECONDS`."""
CONVERSATIONS = size(5_000, 50)
TURNS = size(4, 1)
READERS = size(12, 2)
"""Agents of each project: each delivery changes the row of one, of which all versions are kept meanwhile."""
COMMON = size(10_000, 20)
"""Messages that are there at the beginning, so that a dump takes some seconds."""


@dataclass(frozen=True)
class Turn:
    """What was reached in one turn, and what each took of processors: ours and the database's."""

    runs: float
    messages: float
    run_cpu: float
    message_cpu: float


class Load:
    """Runs through the whole mailbox, then messages by 64 callers over eight projects, again and again."""

    def __init__(self, stores: Any, dsn: str, calls: list[Callable[[], Awaitable[object]]]) -> None:
        self._stores, self._dsn, self._calls = stores, dsn, calls
        self._sessions = sessions_of(dsn)
        self._turns = count()

    async def turn(self) -> Turn:
        """Work for one turn."""
        before = self._used()
        runs, _ = await runs_a_second(
            self._stores.runs, first=next(self._turns) * RUNS, runs=RUNS, threads=CONVERSATIONS
        )
        between, began = self._used(), time.perf_counter()
        messages = await rate(self._calls)
        sent = messages * (time.perf_counter() - began)
        return Turn(runs, messages, (between - before) / RUNS, (self._used() - between) / sent)

    async def turns(self, number: int) -> Turn:
        """Work for some turns, and return the medians."""
        return medians([await self.turn() for _ in range(number)])

    def _used(self) -> float:
        return time.process_time() + sum(map(cpu_of, self._sessions))


def medians(turns: list[Turn]) -> Turn:
    """Return the median of each figure."""
    return Turn(*(median([getattr(one, name) for one in turns]) for name in vars(turns[0])))


@contextmanager
def an_open_transaction(dsn: str) -> Iterator[None]:
    """Hold a snapshot, as a report does that somebody forgot to end."""
    import psycopg

    with psycopg.connect(dsn) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM pg_class")
        yield
        session.rollback()


@contextmanager
def dumping(program: Path, dsn: str) -> Iterator[list[float]]:
    """Dump again and again, at a low priority as an operator would; give the seconds that each dump took."""
    over, took = threading.Event(), list[float]()

    def dump() -> None:
        words = ["nice", "-n", "10", str(program), "--format=custom", dsn]
        while not over.is_set():
            began = time.perf_counter()
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - began)

    thread = threading.Thread(target=dump)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()


@asynccontextmanager
async def _loaded() -> AsyncIterator[tuple[Load, str, Path]]:
    from postgres_server import PostgresServer
    from postroom.contracts.clock import SystemClock
    from postroom.mail.service import Mail
    from postroom.stores.postgres import PostgresStore

    with PostgresServer() as server:
        await asyncio.to_thread(server.start)
        stores = await asyncio.to_thread(PostgresStore.open, server.dsn)
        try:
            calls = await calls_of(Mail(stores, SystemClock()), "mail", READERS)
            for first in range(0, COMMON, 500):
                await asyncio.gather(
                    *(calls[number % len(calls)]() for number in range(first, min(first + 500, COMMON)))
                )
            yield Load(stores, server.dsn, calls), server.dsn, server.programs / "pg_dump"
        finally:
            await asyncio.to_thread(stores.close)


async def main(held_for: float = OPEN_FOR) -> None:
    """Print the table."""
    table = Table(
        f"Held snapshots: an open transaction of {held_for:,.0f} s, and pg_dump, on {os.cpu_count()} cores"
    )
    async with _loaded() as (load, dsn, pg_dump):
        await load.turn()
        alone = await load.turns(TURNS)
        held: list[Turn] = []
        until = time.monotonic() + held_for
        with an_open_transaction(dsn):
            while time.monotonic() < until or not held:
                held.append(await load.turn())
        _add(
            table,
            f"beside a transaction open for {held_for:,.0f} s, at its end",
            medians(held[-TURNS:]),
            alone,
        )
        after = await load.turns(TURNS)
        _add(table, "once it has ended", after, alone, aim="")
        with dumping(pg_dump, dsn) as took:
            dumped = await load.turns(TURNS)
        _add(table, f"beside pg_dump, {len(took)} times, {median(took):.1f} s each", dumped, after)


def _add(table: Table, what: str, ours: Turn, alone: Turn, aim: str = "at least 0.80") -> None:
    for name, unit in (("runs", "runs/s"), ("messages", "messages/s")):
        reached, before = getattr(ours, name), getattr(alone, name)
        table.add(
            f"{name} {what}", f"{reached:,.0f} {unit}", f"alone {before:,.0f} {unit}", reached / before, aim
        )
    for name in ("run", "message"):
        cost, before = getattr(ours, f"{name}_cpu"), getattr(alone, f"{name}_cpu")
        most = "at most 1.20" if aim else ""
        table.add(
            f"processor time of a {name} {what}, the database's too",
            ms(cost),
            f"alone {ms(before)}",
            cost / before,
            most,
        )


if __name__ == "__main__":
    asyncio.run(main(*map(float, sys.argv[1:])))
