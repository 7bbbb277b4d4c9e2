"""What a backlog costs: commits a run while slots work it off, and opening a mailbox that has one."""

import asyncio
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from benchmarks.figures import Table, median, ms, size
from postroom.dispatch.config import MailboxConfig
from postroom.embedded import Item, Mailbox, Run

RUNS = size(10_000, 40)
SLOTS = size(16, 4)
OPENED = size(15, 2)
"""How often each mailbox is opened."""


async def commits(table: Table, engine_name: str, url: str) -> None:
    """Count the commits of a backlog of short runs; on PostgreSQL, the transactions that write."""
    left, done = RUNS, asyncio.Event()

    async def work(run: Run) -> str:
        nonlocal left
        left -= 1
        if not left:
            done.set()
        return "done"

    await _filled(url)
    began = time.perf_counter()
    async with Mailbox.open(url, work, config=MailboxConfig(max_concurrent_runs=SLOTS)) as mailbox:
        engine = mailbox.stores.store.engine  # type: ignore[attr-defined]
        before = engine.grouping[0]
        await done.wait()
        made, took = engine.grouping[0] - before, time.perf_counter() - began
    table.add(f"{engine_name}: {RUNS} runs, {SLOTS} slots: commits a run", f"{made / RUNS:.3f}", aim="0.15")
    table.add(f"{engine_name}: {RUNS} runs, {SLOTS} slots: runs a second", f"{RUNS / took:.0f}")


async def opened(table: Table, folder: Path) -> None:
    """Compare opening a mailbox behind which runs wait with opening an empty one, in turns."""

    async def work(run: Run) -> None:
        await asyncio.Event().wait()

    full, empty = f"sqlite:///{folder}/full.db", f"sqlite:///{folder}/empty.db"
    await _filled(full)
    took: dict[str, list[float]] = {full: [], empty: []}
    config = MailboxConfig(max_concurrent_runs=SLOTS, drain_grace=timedelta(0))
    for _ in range(OPENED):
        for url, seen in took.items():
            began = time.perf_counter()
            async with Mailbox.open(url, work, config=config):
                seen.append(time.perf_counter() - began)
    ours, against = median(took[full]), median(took[empty])
    table.add(f"SQLite: open with {RUNS} queued", ms(ours), f"{ms(against)} with none", ours / against, "1.2")


async def _filled(url: str) -> None:
    async with Mailbox.open(url, None) as mailbox:
        await mailbox.enqueue_many([Item(f"t{number}", number) for number in range(RUNS)])


async def main() -> None:
    """Measure both."""
    from postgres_server import running_postgres

    table = Table(f"A backlog of {RUNS} runs")
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        await commits(table, "SQLite", f"sqlite:///{folder}/commits.db")
        with running_postgres() as dsn:
            await commits(table, "PostgreSQL", dsn)
        await opened(table, Path(folder))
