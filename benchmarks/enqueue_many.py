"""What `enqueue_many` costs beside the bare writer, who writes the same rows in commits of the same size."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.figures import Table, median, ms, size, timed
from postroom.dispatch.submission import MAX_BATCH
from postroom.embedded import Item, Mailbox, Run
from postroom.stores.sql_transaction import SqlTransaction
from postroom.stores.store import Transaction

ITEMS = size(10_000, 40)
TURNS = size(5, 1)
THREADS = size(500, 10)
WRITES = (
    "threads.put_thread",
    "threads.move_thread",
    "threads.append_message",
    "threads.put_run",
    "dispatches.enqueue",
)
"""The statements by which items are written."""
LATER = timedelta(days=1)

Rows = dict[str, list[Mapping[str, Any]]]


async def nothing(run: Run) -> None:
    """Be done; it is not called, for all is due tomorrow."""


@asynccontextmanager
async def on_sqlite() -> AsyncIterator[Mailbox]:
    """Open a mailbox on an empty file."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        async with Mailbox.open(f"sqlite:///{folder}/runs.db", nothing) as mailbox:
            yield mailbox


class Recorded:
    """Notes what a transaction writes, and passes everything on."""

    def __init__(self, sql: SqlTransaction, rows: Rows) -> None:
        self._sql = sql
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sql, name)

    def run(self, statement: str, values: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Write a row."""
        self._rows.setdefault(statement, []).append(dict(values))
        self._sql.run(statement, values)

    def run_many(self, statement: str, rows: Any) -> None:
        """Write rows."""
        self._rows.setdefault(statement, []).extend(map(dict, rows))
        self._sql.run_many(statement, rows)


class Taken(NamedTuple):
    """What something took, in seconds."""

    time: float
    cpu: float
    """Of this process; other load on the machine disturbs it less."""


async def taken(work: Callable[[], Awaitable[object]]) -> Taken:
    """Do this, and return what it took."""
    began, cpu = time.perf_counter(), time.process_time()
    await work()
    return Taken(time.perf_counter() - began, time.process_time() - cpu)


async def ours(mailbox: Mailbox, turn: str, threads: int) -> Taken:
    """Enqueue on new threads, in rounds."""
    items = [
        Item(f"chat-{turn}-{number % threads}", {"page": number}, key=f"job {number}", delay=LATER)
        for number in range(ITEMS)
    ]
    return await taken(lambda: mailbox.enqueue_many(items))


async def bare(mailbox: Mailbox, rows: Rows, turn: str) -> Taken:
    """Write rows like those of `enqueue_many` by the same statements."""
    engine = mailbox.stores.store.engine
    parts = []
    for first in range(0, ITEMS, MAX_BATCH):
        part = {
            name: [_renamed(row, turn) for row in some[first : first + MAX_BATCH]]
            for name, some in rows.items()
        }
        parts.append(part)

    def write(sql: SqlTransaction, part: Rows) -> None:
        for statement, some in part.items():
            sql.run_many(statement, some)

    async def write_all() -> None:
        for part in parts:
            await engine.write(lambda sql, part=part: write(sql, part))

    return await taken(write_all)


def _renamed(row: Mapping[str, Any], turn: str) -> dict[str, Any]:
    ids = ("thread_id", "run_id", "dispatch_id", "latest_run_id")
    return {**row, **{name: f"{row[name]}/{turn}" for name in ids if row.get(name)}}


async def measured(table: Table, mailbox: Mailbox, where: str, threads: int) -> None:
    """Take turns, so that both meet the same machine."""
    rows: Rows = {}
    engine = mailbox.stores.store.engine
    write = engine.write
    engine.write = lambda change, **options: write(lambda sql: change(Recorded(sql, rows)), **options)
    await ours(mailbox, f"{threads}-0", threads)
    engine.write = write
    rows = {name: some for name in WRITES if (some := rows.get(name))}
    many, limit, commits = [], [], list[float]()
    for turn in range(1, TURNS + 1):
        limit.append(await bare(mailbox, rows, f"{threads}-{turn}"))
        many.append(await ours(mailbox, f"{threads}-{turn}", threads))
        commits += await timed(20, lambda: mailbox.stores.store.write(_one_row))
    both = list(zip(many, limit, strict=True))
    time_over = median([one.time - other.time for one, other in both])
    cpu_over = median([one.cpu - other.cpu for one, other in both])
    table.add(
        f"{ITEMS:,} items of {threads:,} threads, {where}; one durable commit took {ms(median(commits))}",
        f"{median([one.time for one in many]):.2f} s, CPU {median([one.cpu for one in many]):.2f} s",
        f"{median([one.time for one in limit]):.2f} s, CPU {median([one.cpu for one in limit]):.2f} s"
        " for the same rows by the bare writer",
        median([one.time / other.time for one, other in both]),
        f"at most 1 s over it: {time_over:+.2f} s, CPU {cpu_over:+.2f} s",
    )


def _one_row(tx: Transaction) -> None:
    tx.events.note("bench:bare", "Bare", {"value": 1}, origin="bench", at=0)


async def main() -> None:
    """Print the table."""
    table = Table(f"enqueue_many, in commits of {MAX_BATCH}")
    async with on_sqlite() as mailbox:
        for threads in (ITEMS, THREADS):
            await measured(table, mailbox, "SQLite", threads)
    from postgres_server import running_postgres

    with running_postgres() as dsn:
        async with Mailbox.open(dsn, nothing) as mailbox:
            for threads in (ITEMS, THREADS):
                await measured(table, mailbox, "PostgreSQL", threads)


if __name__ == "__main__":
    asyncio.run(main())
