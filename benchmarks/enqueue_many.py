"""What `enqueue_many` costs beside the bare writer, who writes the same rows in commits of the same size."""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.figures import Table, median, size
from postroom.dispatch.submission import MOST_TOGETHER
from postroom.embedded import Item, Mailbox, Run
from postroom.stores.sql_transaction import SqlTransaction

ITEMS = size(10_000, 40)
TURNS = size(5, 1)
TABLES = {
    "run_threads": "threads.put_thread",
    "run_messages": "threads.append_message",
    "runs": "threads.put_run",
    "run_dispatches": "dispatches.enqueue",
}
"""What is written for an item on a new thread, and by which statement."""
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

    def run(self, statement: str, values: Mapping[str, Any]) -> None:
        """Write a row."""
        self._rows.setdefault(statement, []).append(dict(values))
        self._sql.run(statement, values)

    def run_many(self, statement: str, rows: Any) -> None:
        """Write rows."""
        self._rows.setdefault(statement, []).extend(map(dict, rows))
        self._sql.run_many(statement, rows)


async def ours(mailbox: Mailbox, turn: int) -> float:
    """Enqueue on new threads, and return the seconds that took."""
    items = [
        Item(f"chat-{turn}-{number}", {"page": number}, key="job", delay=LATER) for number in range(ITEMS)
    ]
    began = time.perf_counter()
    await mailbox.enqueue_many(items)
    return time.perf_counter() - began


async def bare(mailbox: Mailbox, rows: Rows, turn: int) -> float:
    """Write rows like those of `enqueue_many` by the same statements, and return the seconds that took."""
    engine = mailbox.stores.store.engine
    parts = []
    for first in range(0, ITEMS, MOST_TOGETHER):
        part = {
            name: [_renamed(row, turn) for row in some[first : first + MOST_TOGETHER]]
            for name, some in rows.items()
        }
        parts.append(part)

    def write(sql: SqlTransaction, part: Rows) -> None:
        for statement, some in part.items():
            sql.run_many(statement, some)

    began = time.perf_counter()
    for part in parts:
        await engine.write(lambda sql, part=part: write(sql, part))
    return time.perf_counter() - began


def _renamed(row: Mapping[str, Any], turn: int) -> dict[str, Any]:
    ids = ("thread_id", "run_id", "dispatch_id", "latest_run_id")
    return {**row, **{name: f"{row[name]}/{turn}" for name in ids if row.get(name)}}


async def measured(table: Table, mailbox: Mailbox, where: str) -> None:
    """Take turns, so that both meet the same machine."""
    rows: Rows = {}
    engine = mailbox.stores.store.engine
    write = engine.write
    engine.write = lambda change, **options: write(lambda sql: change(Recorded(sql, rows)), **options)
    await ours(mailbox, 0)
    engine.write = write
    rows = {name: some for name, some in rows.items() if name in TABLES.values()}
    many, limit = [], []
    for turn in range(1, TURNS + 1):
        limit.append(await bare(mailbox, rows, turn))
        many.append(await ours(mailbox, turn))
    over = median([one - other for one, other in zip(many, limit, strict=True)])
    table.add(
        f"{ITEMS:,} items, {where}",
        f"{median(many):.2f} s",
        f"{median(limit):.2f} s for the same rows by the bare writer",
        median([one / other for one, other in zip(many, limit, strict=True)]),
        f"at most 1 s over it: {over:+.2f} s",
    )


async def main() -> None:
    """Print the table."""
    table = Table(f"enqueue_many, in commits of {MOST_TOGETHER}")
    async with on_sqlite() as mailbox:
        await measured(table, mailbox, "SQLite")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # the server that tests start
    from postgres_server import running_postgres

    with running_postgres() as dsn:
        async with Mailbox.open(dsn, nothing) as mailbox:
            await measured(table, mailbox, "PostgreSQL")


if __name__ == "__main__":
    asyncio.run(main())
