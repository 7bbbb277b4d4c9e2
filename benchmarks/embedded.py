"""What runs as a library cost: a step, a stream resumed behind very many events, a long conversation."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.figures import Table, median, ms, p95, size, timed
from postroom.dispatch.config import MailboxConfig
from postroom.embedded import Mailbox, Run, RunHandle
from postroom.embedded.running import LOGGED
from postroom.stores.store import SqlStore, Transaction

STEPS = size(300, 5)
EVENTS = size(1_000_000, 1_000)
AT_ONCE = size(50_000, 500)
TALK = size(2_000, 20)
SAMPLES = size(30, 2)
_EVENT = "event_id, event_kind, payload, sequences, created_at, origin, visibility, schema_version"
_SQLITE = (
    f"INSERT INTO events ({_EVENT})"
    f" VALUES (?, '{LOGGED}', '{{\"text\":\"more\"}}', ?, 0, 'bench', 'internal', 1)",
    "INSERT INTO event_scopes (scope, seq, event_id) VALUES (?, ?, ?)",
)
_POSTGRES = """
INSERT INTO events ({event})
SELECT 'bench-' || n, '{kind}', '{{"text":"more"}}', '{{"{scope}":' || n || '}}', 0, 'bench', 'internal', 1
  FROM generate_series({first}, {last}) n;
INSERT INTO event_scopes (scope, seq, event_id)
SELECT '{scope}', n, 'bench-' || n FROM generate_series({first}, {last}) n;
"""


async def a_step(table: Table, open_mailbox: Callable[..., Any]) -> None:
    """Compare a step that does nothing with a bare durable commit of the same store, in turns."""
    steps: list[float] = []
    bare: list[float] = []
    commits: list[int] = []

    async def work(run: Run) -> None:
        store: Any = mailbox.stores.store

        async def step() -> None:
            await run.step(f"step {len(steps)}", _nothing)

        for _ in range(STEPS):
            before = store.engine.grouping[0]
            steps.extend(await timed(1, step))
            commits.append(store.engine.grouping[0] - before)
            bare.extend(await timed(1, lambda: store.write(_bare)))

    async with open_mailbox(work) as mailbox:
        await (await mailbox.enqueue("steps", "go")).result(timeout=120)
    ours, against = median(steps), median(bare)
    table.add("a step", ms(ours), f"{ms(against)} for a bare commit of an event", ours / against)
    table.add("commits of a step", f"{median(commits):g}", "", None, "1")


def _bare(tx: Transaction) -> None:
    tx.events.note("bench:bare", "Bare", {"value": 1}, origin="bench", at=0)


def _nothing() -> int:
    return 1


async def a_resumed_stream(table: Table, open_mailbox: Callable[..., Any]) -> None:
    """Time the first event behind a cursor of a run that has told very much."""
    async with open_mailbox(None) as mailbox:
        handle = await mailbox.enqueue("stream", "go")
        await fill(mailbox.stores.store, f"run:{handle.id}", EVENTS)
        for what, after in (("none", 0), (f"{EVENTS // 2:,}", EVENTS // 2), (f"{EVENTS - 1:,}", EVENTS - 1)):
            taken = await timed(SAMPLES, lambda after=after: first_behind(handle, after))
            shown = f"p50 {ms(median(taken))}, p95 {ms(p95(taken))}"
            table.add(f"first event behind {what} of {EVENTS:,}", shown, "", None, "under 50 ms")


async def first_behind(handle: RunHandle, after: int) -> None:
    """Follow a run from a cursor until it tells something."""
    async for event in handle.events(after=after):
        assert event.cursor == after + 1
        return


async def fill(store: SqlStore, scope: str, number: int) -> None:
    """Store events of a scope, straight into the tables."""
    for first in range(1, number + 1, AT_ONCE):
        last = min(first + AT_ONCE, number + 1)

        def change(sql: Any, first: int = first, last: int = last) -> None:
            if sql.dialect == "postgres":
                facts = {"event": _EVENT, "kind": LOGGED, "scope": scope, "first": first, "last": last - 1}
                sql.connection.run_script(_POSTGRES.format(**facts))
                return
            numbers = range(first, last)
            sql.connection.executemany(_SQLITE[0], [(f"b{n}", f'{{"{scope}":{n}}}') for n in numbers])
            sql.connection.executemany(_SQLITE[1], [(scope, n, f"b{n}") for n in numbers])

        await store.engine.write(change)


async def a_long_conversation(table: Table, open_mailbox: Callable[..., Any]) -> None:
    """Compare what a run sees of a long conversation with a plain load of its messages."""
    seen: list[float] = []
    plain: list[float] = []

    async def work(run: Run) -> str:
        if run.text == "measure":
            for _ in range(SAMPLES):
                seen.extend(await timed(1, run.history))
                plain.extend(await timed(1, lambda: mailbox.stores.threads.load_messages("talk")))
        return "heard"

    async with open_mailbox(work, MailboxConfig(max_queued_per_thread=None)) as mailbox:
        async with asyncio.TaskGroup() as group:
            for _ in range(TALK):
                group.create_task(mailbox.enqueue("talk", "hello"))
        await (await mailbox.enqueue("talk", "measure")).result(timeout=600)
    what = f"run.history() behind {TALK:,} runs"
    table.add(what, ms(median(seen)), f"{ms(median(plain))} for the messages", median(seen) / median(plain))


@asynccontextmanager
async def on_sqlite() -> AsyncIterator[Callable[..., Any]]:
    """Give what opens a mailbox on a file, a new one each time."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        yield lambda work, config=None: Mailbox.open(
            f"sqlite:///{folder}/{time.monotonic_ns()}.db", work, config=config
        )


@asynccontextmanager
async def on_postgres() -> AsyncIterator[Callable[..., Any]]:
    """Give what opens a mailbox on PostgreSQL, in a new schema each time."""
    from postgres_server import running_postgres

    with running_postgres() as dsn:
        yield lambda work, config=None: Mailbox.open(
            dsn, work, config=config, schema=f"bench_{time.monotonic_ns()}"
        )


async def main() -> None:
    """Print the tables."""
    parts: tuple[Callable[..., Awaitable[None]], ...] = (a_step, a_resumed_stream, a_long_conversation)
    for name, place in (("SQLite", on_sqlite), ("PostgreSQL", on_postgres)):
        table = Table(f"Runs as a library on {name}")
        async with place() as open_mailbox:
            for part in parts:
                await part(table, open_mailbox)


if __name__ == "__main__":
    asyncio.run(main())
