"""What a dispatch costs on PostgreSQL: its whole life, against the same server committing single rows."""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]

from benchmarks.figures import Table, size
from benchmarks.peers import beside_those_on_postgres
from postroom.contracts.dispatch import RunDispatch, RunDispatchResult
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.stores.postgres import PostgresRunStores

TASKS = 64
SESSIONS = 16
SECONDS = size(4.0, 0.2)
LEASE = 30_000


async def main(ended: int = size(100_000, 1_000)) -> None:
    """Print the table; measured on an empty schema and again with `ended` dispatches that have ended."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    from postgres_server import running_postgres

    with running_postgres() as dsn:
        table = Table(f"Dispatches on PostgreSQL, {TASKS} tasks, {SESSIONS} sessions")
        rows = await _single_rows(dsn)
        stores = await PostgresRunStores.open(dsn, pool_size=SESSIONS)
        try:
            await _cycles(stores, 1.0)
            for what in ("empty", f"{ended:,} ended"):
                cycles = await _cycles(stores, SECONDS)
                table.add(
                    f"enqueue, claim, start, result, ack ({what})",
                    f"{cycles:,.0f} cycles/s",
                    f"{rows:,.0f} single-row commits/s of the bare driver",
                    5 * cycles / rows,
                    "at least 2,500 cycles/s",
                )
                if what == "empty":
                    await beside_those_on_postgres(
                        table, dsn, "the same", cycles, "cycles", ("at least 3", "at least 6")
                    )
                    await _fill(dsn, ended)
            alone = await _alone(stores)
            table.add("one cycle, nobody else", f"{alone * 1000:.2f} ms")
        finally:
            await stores.close()


async def _together(seconds: float, work: Callable[[int], Awaitable[None]]) -> float:
    """Return how often `TASKS` tasks do the work in a second."""
    until, done = time.perf_counter() + seconds, 0

    async def again(task: int) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await work(task)
            done += 1

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for task in range(TASKS):
            group.create_task(again(task))
    return done / (time.perf_counter() - began)


async def _cycles(stores: PostgresRunStores, seconds: float) -> float:
    began, numbers = time.time_ns(), iter(range(10**9))
    return await _together(seconds, lambda task: _cycle(stores, task, f"{began}-{next(numbers)}"))


async def _cycle(stores: PostgresRunStores, task: int, name: str) -> None:
    thread, store = f"thread {task}", stores.dispatches
    dispatch = RunDispatch.queued(name, thread, f"run {name}", created_at=stores.clock.now())
    await store.enqueue(dispatch)
    owned = await store.claim(thread, "worker", lease_ms=LEASE)
    if owned is None:  # the database's clock is behind by a millisecond
        owned = await store.claim_dispatch(name, "worker", lease_ms=LEASE)
    assert owned is not None
    proof = owned.claim_proof
    await store.record_dispatch_start(proof, "instance")
    result = RunDispatchResult(
        run_id=owned.run_id,
        dispatch_instance_id="instance",
        status=RunStatus.DONE,
        termination=TerminationReason.natural_end(),
        response="done",
    )
    await store.record_run_result(proof, result)
    await store.ack(proof)


async def _alone(stores: PostgresRunStores) -> float:
    taken = []
    for number in range(size(300, 5)):
        began = time.perf_counter()
        await _cycle(stores, 0, f"alone {number}")
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


async def _single_rows(dsn: str) -> float:
    """Return how many commits of one row the driver makes in a second, as `pgbench` would count them."""
    sessions: asyncio.Queue[asyncpg.Connection] = asyncio.Queue()
    opened = [await asyncpg.connect(dsn) for _ in range(SESSIONS)]
    await opened[0].execute("CREATE TABLE single (id int PRIMARY KEY, filler text) WITH (fillfactor = 50)")
    await opened[0].execute("INSERT INTO single SELECT g, repeat('x', 200) FROM generate_series(1, 1000) g")
    for session in opened:
        sessions.put_nowait(session)

    async def update(task: int) -> None:
        session = await sessions.get()
        try:
            await session.fetchrow("UPDATE single SET filler = filler WHERE id = $1 RETURNING *", task + 1)
        finally:
            sessions.put_nowait(session)

    rate = await _together(SECONDS, update)
    for session in opened:
        await session.close()
    return rate


async def _fill(dsn: str, ended: int) -> None:
    """Store dispatches that have ended, on threads of their own."""
    session = await asyncpg.connect(dsn, server_settings={"search_path": "postroom"})
    await session.execute(
        f"""
        INSERT INTO run_dispatches
               (dispatch_id, thread_id, run_id, created_at, available_at, updated_at, status, priority,
                dispatch_epoch, attempt_count, max_attempts, tenant, completed_at, reconciled, thread_epoch)
        SELECT 'old ' || g, 'thread ' || g % 5000, 'old run ' || g, g, g, g, 'Acked', 128,
               0, 0, 5, '', g, true, 0
          FROM generate_series(1, {ended}) g
        """
    )
    await session.execute("CHECKPOINT")
    await session.close()


if __name__ == "__main__":
    asyncio.run(main(*(int(word) for word in sys.argv[1:])))
