"""Measures the cost of a summary with a short and a long log, on both engines, as a server runs it."""

import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.application import as_served, fresh_application
from benchmarks.figures import Table, median, ms, p95, size, timed
from postroom.contracts.clock import SystemClock
from postroom.mail.context import Caller
from postroom.mail.service import Mail
from postroom.stores.mail.access import MailWrites

SMALL = size(1_000, 100)
ROUNDS = size(200, 3)
_BATCH = size(10_000, 100)
_RECENT = size(2_000, 100)
"""The newest events are of all kinds, so that a summary has all its sentences."""


async def main(large: int = size(1_000_000, 400)) -> None:
    """Print a table for each engine."""
    async with fresh_application() as application:
        await _measure("SQLite", application.mail, large)
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    from postgres_server import running_postgres
    from postroom.stores.postgres import PostgresStore

    with running_postgres() as dsn:
        stores = await asyncio.to_thread(PostgresStore.open, dsn)
        try:
            await _measure("PostgreSQL", Mail(stores, SystemClock()), large)
        finally:
            await asyncio.to_thread(stores.close)


async def _measure(engine: str, mail: Mail, large: int) -> None:
    """Print the table of one engine."""
    logs = {"/bench/small": SMALL, "/bench/large": large}
    for path, events in logs.items():
        await fill(mail, path, events)
    table = Table(f"Catch up on {engine}: {SMALL:,} against {large:,} events in the log, {ROUNDS} calls each")
    for what, more in (("the last day", {}), ("from the beginning", {"after": 0})):
        taken, processor = list[list[float]](), list[float]()
        for path in logs:
            ask = partial(mail.call, "catch_up", {"project_key": path, **more}, caller=Caller(operator=True))
            with as_served():
                began = time.process_time()
                taken.append(await timed(ROUNDS, ask))
                processor.append((time.process_time() - began) / ROUNDS)
        few, many = taken
        table.add(
            f"catch_up, {what}",
            f"median {ms(median(many))}, p95 {ms(p95(many))}, processor {ms(processor[1])}",
            f"median {ms(median(few))}, p95 {ms(p95(few))}, processor {ms(processor[0])} with {SMALL:,}",
            median(many) / median(few),
            "p95 at most 50 ms",
        )


async def fill(mail: Mail, path: str, events: int) -> None:
    """Log changes of files, and at the end tasks, notes and messages."""
    await mail.call("ensure_project", {"human_key": path})
    project_key = {"project_key": path}
    agents = list[int]()
    for name in ("Ada", "Ben"):
        who = {**project_key, "program": "p", "model": "m", "name": name}
        agents.append((await mail.call("register_agent", who))["id"])
    project_id = await mail.store.read(lambda tx: tx.project(path).id)

    def change(tx: MailWrites, count: int) -> None:
        for number in range(count):
            tx.note_changed_file(project_id, agents[number % 2], f"src/{number % 500}.py", number)

    for first in range(0, events - _RECENT, _BATCH):
        await mail.store.write(partial(change, count=min(_BATCH, events - _RECENT - first)))
    left = max(0, events - await mail.store.read(lambda tx: tx.newest_entry(project_id)))
    for number in range(left // 5 + 1):  # each turn logs about five entries
        ada: dict[str, Any] = {**project_key, "agent_name": "Ada"}
        task = await mail.call("add_task", {**ada, "title": f"Task {number}"})
        claimed = await mail.call("claim_task", {**ada, "task_id": task["id"]})
        done = {
            "task_id": task["id"],
            "epoch": claimed["task"]["epoch"],
            "commit": "4f2a",
            "message": "It works.",
        }
        await mail.call("done_task", {**ada, **done})
        message = {"sender_name": "Ada", "to": ["Ben"], "subject": f"About {number}", "body_md": "b"}
        await mail.call("send_message", {**project_key, **message})


if __name__ == "__main__":
    asyncio.run(main(*(int(word) for word in sys.argv[1:])))
