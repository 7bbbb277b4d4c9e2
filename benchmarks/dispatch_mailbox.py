"""What a run costs through the mailbox when its executor does nothing; beside DBOS and procrastinate.

Latency is from the call of `submit_background` to the begin of the execution.
"""

import asyncio
import resource
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.figures import Table, median, ms, size
from benchmarks.peers import beside_dbos_on_sqlite, beside_those_on_postgres
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.runs.ports import RunStores
from postroom.stores.sqlite import SqliteStore

THREADS = 64
TURNS = size(7, 1)
"""Of which the median counts: one alone is a tenth off."""
RUNS = size(3_000, 60)
SAMPLES = size(300, 5)
QUEUED = size(10_000, 50)


class Nothing(RunDispatchExecutor):
    """Ends at once, and notes when it began."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}

    async def run(self, activation: RunActivation, sink: EventSink) -> AgentRunResult:
        """End at once."""
        self.began[activation.thread_id] = time.perf_counter()
        return AgentRunResult(run_id=activation.run_id or "", response="ok")


@asynccontextmanager
async def on_sqlite() -> AsyncIterator[RunStores]:
    """Give stores on an empty file."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        store = await asyncio.to_thread(
            SqliteStore.open, Path(folder) / "postroom.db", purpose="bench", log_reserve=32 << 20
        )
        try:
            yield store.runs
        finally:
            await asyncio.to_thread(store.close)


async def runs_a_second(
    stores: RunStores, *, callers: int = THREADS, first: int = 0, runs: int = RUNS, threads: int = THREADS
) -> tuple[float, float]:
    """Return how many runs a second are accepted and brought to their end, and a run's processor time.

    They are the runs from number `first` on, dealt to the threads in turn.
    """
    mailbox = Mailbox(Nothing(), stores, config=MailboxConfig(max_queued_per_thread=None))
    numbers = iter(range(first, first + runs))

    async def submit() -> None:
        for number in numbers:
            await mailbox.submit_background(RunActivation.new(f"rate-{number % threads}", ["go"]))

    began, used = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(submit())
    await mailbox.settled()
    taken, cost = time.perf_counter() - began, time.process_time() - used
    await mailbox.aclose()
    return runs / taken, cost / runs


async def latencies(stores: RunStores, name: str) -> list[float]:
    """Return how long single submissions to fresh threads took to begin, in seconds."""
    executor = Nothing()
    mailbox = Mailbox(executor, stores)
    taken = []
    for number in range(SAMPLES):
        thread = f"{name}-{number}"
        asked = time.perf_counter()
        await mailbox.submit_background(RunActivation.new(thread, ["go"]))
        await mailbox.settled()
        taken.append(executor.began[thread] - asked)
    await mailbox.aclose()
    return sorted(taken)


async def fill(stores: RunStores, count: int) -> None:
    """Queue one run on each of many threads; nobody executes them."""
    config = MailboxConfig(max_concurrent_runs=0)
    mailbox = Mailbox(Nothing(), stores, config=config)
    numbers = iter(range(count))

    async def submit() -> None:
        for number in numbers:
            await mailbox.submit_background(RunActivation.new(f"queued-{number}", ["go"]))

    async with asyncio.TaskGroup() as group:
        for _ in range(64):
            group.create_task(submit())
    await mailbox.aclose()


async def worst_stall(stop: asyncio.Event) -> float:
    """Return by how much the event loop was ever late, in seconds."""
    worst, step = 0.0, 0.005
    while not stop.is_set():
        due = time.perf_counter() + step
        await asyncio.sleep(step)
        worst = max(worst, time.perf_counter() - due)
    return worst


async def drain(table: Table, stores: RunStores) -> None:
    """Take up ten thousand queued threads as after a start."""
    stop = asyncio.Event()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with asyncio.TaskGroup() as group:
        stall = group.create_task(worst_stall(stop))
        mailbox = Mailbox(Nothing(), stores)
        began = time.perf_counter()
        await mailbox.start_lifecycle_ready()
        while await stores.dispatches.next_due_at() is not None:
            await asyncio.sleep(0.05)
        await mailbox.settled()
        taken = time.perf_counter() - began
        stop.set()
        await mailbox.aclose()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table.add(f"{QUEUED:,} threads with one queued run each, drained", f"{QUEUED / taken:,.0f} runs/s")
    table.add("longest stall of the loop meanwhile", ms(stall.result()), "", None, "under 50 ms")
    table.add(
        "memory of the process at its largest",
        f"{after // 1024} MB",
        f"{before // 1024} MB before",
        None,
        "under 300 MB",
    )


async def main() -> None:
    """Print the tables."""
    table = Table(f"Runs through the mailbox on SQLite, {THREADS} threads")
    async with on_sqlite() as stores:
        await runs_a_second(stores, runs=300)
        rates, costs = zip(*[await runs_a_second(stores) for _ in range(TURNS)], strict=True)
        await beside_dbos_on_sqlite(table, "runs accepted and ended", median(rates), "runs", "at least 5")
        table.add("processor time of one", ms(median(costs)))
        idle = await latencies(stores, "idle")
    async with on_sqlite() as stores:
        await fill(stores, QUEUED)
        busy = await latencies(stores, "busy")
        for what, taken in (("idle", idle), (f"with {QUEUED:,} queued threads", busy)):
            p50, p99 = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
            table.add(
                f"submit to start, {what}",
                f"p50 {ms(p50)}, p99 {ms(p99)}",
                "",
                None,
                "p50 < 5 ms, p99 < 50 ms",
            )
        await drain(table, stores)
    await on_postgres()


async def on_postgres() -> None:
    """Print the table of the mailbox on PostgreSQL."""
    from postgres_server import running_postgres
    from postroom.stores.postgres import PostgresStore

    with running_postgres() as dsn:
        table = Table(f"Runs through the mailbox on PostgreSQL, {THREADS} threads")
        kept = await asyncio.to_thread(PostgresStore.open, dsn)
        stores = kept.runs
        try:
            await runs_a_second(stores, runs=300)
            rates, costs = zip(*[await runs_a_second(stores) for _ in range(TURNS)], strict=True)
        finally:
            await asyncio.to_thread(kept.close)
        table.add("processor time of one, without the server's", ms(median(costs)))
        what, aims = "runs accepted and ended", ("at least 3", "at least 2")
        await beside_those_on_postgres(table, dsn, what, median(rates), "runs", aims)


if __name__ == "__main__":
    asyncio.run(main())
