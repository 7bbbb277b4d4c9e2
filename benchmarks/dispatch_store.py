"""What the queue costs: on SQLite beside the bare writer, and on both engines with a million ended runs."""

import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.dispatch_mailbox import runs_a_second
from benchmarks.figures import Table, median, ms, size, timed
from benchmarks.peers import beside_dbos_on_sqlite
from postroom.contracts.dispatch import RunDispatch, RunDispatchResult, RunDispatchStatus
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunStatus, TerminationReason
from postroom.stores.sqlite import SqliteStore
from postroom.stores.stores import Stores

TASKS = 64
STEPS = 5
"""Calls in one life of a dispatch: enqueue, claim, start, result, ack."""
TURN = size(0.5, 0.05)
TURNS = size(10, 2)
BARE_ROWS = size(10_000, 200)
WIDTH = 250
ROUNDS = size(200, 10)
RUNS = size(500, 20)
"""Runs through the whole mailbox in a turn."""
LEASE = 30_000

_NUMBERS = count(time.time_ns())
Calls = dict[str, Callable[[], Awaitable[object]]]


@asynccontextmanager
async def _store() -> AsyncIterator[SqliteStore]:
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        store = await asyncio.to_thread(SqliteStore.open, Path(folder) / "postroom.db", purpose="bench")
        try:
            yield store
        finally:
            await asyncio.to_thread(store.close)


async def life(store: Stores, thread: str) -> None:
    """Take one dispatch from the queue to its end."""
    runs = store.runs
    number = f"{next(_NUMBERS):032x}"  # ids rise with time, as those of the mailbox do
    given = RunDispatch.queued(number, thread, f"run-{number}", created_at=runs.clock.now())
    await runs.dispatches.enqueue(given)
    owned = await runs.dispatches.claim(thread, "worker", lease_ms=LEASE)
    if owned is None:
        raise RuntimeError(f"nothing to claim on {thread}")
    proof = owned.claim_proof
    await runs.dispatches.record_dispatch_start(proof, number)
    ended = RunDispatchResult(
        run_id=owned.run_id,
        dispatch_instance_id=number,
        status=RunStatus.DONE,
        termination=TerminationReason.natural_end(),
        response="The linker of module seven works again.",
    )
    await runs.dispatches.record_run_result(proof, ended)
    await runs.dispatches.ack(proof)


def _update(store: SqliteStore, row: str) -> Awaitable[object]:
    update = "UPDATE bare SET number = number + 1 WHERE id = ?"
    return store.store.engine.write(lambda sql: sql.connection.execute(update, (row,)).rowcount)


async def _prepare_bare(store: SqliteStore) -> None:
    """Make a table of rows as wide as dispatches are, found by a text as they are, and nothing else."""

    def make(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE bare (id TEXT PRIMARY KEY, number INTEGER, filling TEXT)")
        rows = ((f"{number:032x}", 0, "x" * WIDTH) for number in range(BARE_ROWS))
        db.executemany("INSERT INTO bare VALUES (?, ?, ?)", rows)

    await store.store.engine.write(lambda sql: make(sql.connection))


async def _rate(call: Callable[[int], Awaitable[object]]) -> float:
    """Return how many calls a second are answered when `TASKS` callers ask one after another."""
    done = 0
    began = time.perf_counter()

    async def work(task: int) -> None:
        nonlocal done
        while time.perf_counter() < began + TURN:
            await call(task)
            done += 1

    async with asyncio.TaskGroup() as group:
        for task in range(TASKS):
            group.create_task(work(task))
    return done / (time.perf_counter() - began)


async def beside_the_writer(table: Table, store: SqliteStore, what: str) -> float:
    """Take turns with the bare writer, so that both meet the same machine; return our lives a second."""
    await _prepare_bare(store)
    rows = (f"{number * 7919 % BARE_ROWS:032x}" for number in count())
    bare, lives = [], []
    for _ in range(TURNS):
        bare.append(await _rate(lambda task: _update(store, next(rows))))
        lives.append(await _rate(lambda task: life(store, f"thread-{task}")))
    table.add(
        f"{what}, {TASKS} at once",
        f"{median(lives):,.0f} lives/s of {STEPS} durable steps",
        f"{median(bare):,.0f} updates/s of one row each by the bare writer",
        median([STEPS * ours / limit for ours, limit in zip(lives, bare, strict=True)]),
        "at least 0.5",
    )
    return median(lives)


def _ended_rows(number: int, first: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows of dispatches that have ended, most of them well, on five thousand threads."""
    others = {0: "Cancelled", 1: "Superseded", 2: "DeadLetter"}
    for one in range(number):
        at, name = 1_600_000_000_000 + one, f"{first + one:032x}"
        status = others.get(one % 100, "Acked")
        asked = (name, f"thread-{one % 5_000}", f"run-{name}", at, at, at, status, 128, None, 0, 0, 5)
        said = (None, name, "done", '{"type":"natural_end","value":null,"detail":null}', "done well")
        yield (*asked, None, "", None, None, None, at, *said, None, at, 1, 0, "", "", 0, None, 0, None)


async def fill(store: SqliteStore, number: int, *, page: int = 5_000) -> None:
    """Store dispatches that have ended, straight into the table."""
    insert = f"INSERT INTO run_dispatches VALUES ({', '.join('?' * 33)})"
    for first in range(0, number, page):
        some = list(_ended_rows(min(page, number - first), first))
        await store.store.engine.write(lambda sql, some=some: _insert(sql, insert, some))


def _insert(sql: Any, insert: str, rows: list[Any]) -> None:
    sql.connection.executemany(insert, rows)  # the cursor must end in this thread


def _calls(store: Stores) -> Calls:
    runs = store.runs
    queue = runs.dispatches
    return {
        "a life": lambda: life(store, "thread-7"),
        "claim of an empty thread": lambda: queue.claim("thread-8", "worker", lease_ms=LEASE),
        "due_thread_ids": queue.due_thread_ids,
        "next_due_at": queue.next_due_at,
        "reclaim_expired_leases": queue.reclaim_expired_leases,
        "unreconciled_dispatches": queue.unreconciled_dispatches,
        "queued_thread_ids": queue.queued_thread_ids,
        "list_dispatches, open": lambda: queue.list_dispatches(
            "thread-9", [RunDispatchStatus.QUEUED, RunDispatchStatus.CLAIMED]
        ),
        "list_dispatches, all": lambda: queue.list_dispatches("thread-9", limit=10),
        "list_by_status, 10 dead letters": lambda: queue.list_by_status(
            RunDispatchStatus.DEAD_LETTER, limit=10
        ),
        "count_by_status": queue.count_by_status,
        "list_runs, open": lambda: runs.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,))),
        "interrupt": lambda: queue.interrupt("thread-10"),
    }


async def whether_it_stays_flat(table: Table, few: Stores, many: Stores) -> None:
    """Take turns on a store with hardly any history and on one with much of it."""
    costs: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(ROUNDS):
        for at, store in enumerate((few, many)):
            for what, call in _calls(store).items():
                costs.setdefault(what, ([], []))[at].extend(await timed(1, call))
    for what, (short, long) in costs.items():
        table.add(what, ms(median(long)), ms(median(short)), median(long) / median(short), "under 1.5")


async def on_postgres(number: int) -> None:
    """Print the table of two schemas of one PostgreSQL, of which one holds many runs that have ended."""
    from postgres_server import running_postgres
    from postroom.stores.postgres import PostgresStore

    table = Table(
        f"Flatness on PostgreSQL: almost none against {number:,} ended runs, medians, measured in turns"
    )
    with running_postgres() as dsn:
        few, many = [
            await asyncio.to_thread(PostgresStore.open, dsn, schema=name) for name in ("few", "many")
        ]
        try:
            for store, ended in ((few, 500), (many, number)):
                await runs_a_second(store.runs, runs=1, threads=1)
                await asyncio.to_thread(_fill_schema, dsn, "few" if store is few else "many", ended)
            rates: tuple[list[float], list[float]] = ([], [])
            for _ in range(TURNS):
                for at, store in enumerate((few, many)):
                    rates[at].append((await runs_a_second(store.runs, runs=RUNS))[0])
            table.add(
                "runs accepted and ended, through the whole mailbox",
                f"{median(rates[1]):,.0f} runs/s",
                f"{median(rates[0]):,.0f} runs/s",
                median(rates[1]) / median(rates[0]),
                "at least 0.67",
            )
            await whether_it_stays_flat(table, few, many)
        finally:
            for store in (few, many):
                await asyncio.to_thread(store.close)


def _fill_schema(dsn: str, schema: str, number: int) -> None:
    """Store runs and dispatches that have ended, like the one that is there, on five thousand threads."""
    import psycopg

    with psycopg.connect(dsn, options=f"-c search_path={schema}") as session:
        columns = {
            table: [
                name
                for (name,) in session.execute(
                    "SELECT column_name FROM information_schema.columns"
                    " WHERE table_schema = %s AND table_name = %s",
                    (schema, table),
                )
            ]
            for table in ("runs", "run_dispatches")
        }
        for table, names in columns.items():
            others = {
                "run_id": "md5(one::text)",
                "dispatch_id": "md5(one::text)",
                "thread_id": "'ended-' || mod(one, 5000)",
                "created_at": "1600000000000 + one",
                "updated_at": "1600000000000 + one",
                "body": "replace(body, run_id, md5(one::text))",
            }
            values = ", ".join(others.get(name, name) for name in names)
            session.execute(
                f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM"
                f" (SELECT * FROM {table} LIMIT 1) AS like_this, generate_series(1, %s) AS one",
                (number,),
            )
        session.commit()
        session.autocommit = True
        session.execute("VACUUM ANALYZE")


async def main(large: int = size(1_000_000, 2_000)) -> None:
    """Print the tables."""
    async with _store() as few, _store() as many:
        await fill(few, 500)
        await fill(many, large)
        table = Table("Dispatches on SQLite")
        rate = await beside_the_writer(table, few, "an empty queue")
        await beside_dbos_on_sqlite(table, "the same", rate, "lives", "at least 3")
        await beside_the_writer(table, many, f"{large:,} ended dispatches beside it")
        flat = Table(f"Flatness: almost none against {large:,} ended dispatches, medians, measured in turns")
        await whether_it_stays_flat(flat, few, many)
    await on_postgres(large)


if __name__ == "__main__":
    asyncio.run(main(*(int(word) for word in sys.argv[1:])))
