"""What ten daily backups of a large store take on the disk and of a processor."""

import asyncio
import random
import time
from typing import Any

from benchmarks.application import PROJECT, fill, fresh_application
from benchmarks.figures import Table, size
from postroom.app.wiring import Application

LARGE = size(1_000_000, 2_000)
DAYS = 10
CHANGED = 0.02


async def main(large: int = LARGE) -> None:
    """Print the table."""
    async with fresh_application() as application:
        await fill(application, large)
        await _ten_days(application, large)


async def _ten_days(application: Application, large: int) -> None:
    """Back up each day; in between a fiftieth of the messages is read, and as many are new."""
    folder = application.backups.folder
    dice = random.Random("days")
    table = Table(f"Backups of {large:,} messages on {DAYS} days, {CHANGED:.0%} changed in between")
    for day in range(DAYS):
        began, cpu = time.perf_counter(), time.process_time()
        made = await application.backups.make(f"day-{day}")
        took = time.perf_counter() - began
        database = made.size
        if day in (0, 1, DAYS - 1):
            table.add(
                f"day {day + 1}: {took:.1f} s, {time.process_time() - cpu:.1f} s of a processor",
                f"{made.added / 1e6:.0f} MB written",
                f"database {made.size / 1e6:.0f} MB",
                made.added / made.size,
            )
        await _changed(application, large, int(large * CHANGED), dice)
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    table.add(
        "all together", f"{total / 1e6:.0f} MB", f"{database / 1e6:.0f} MB", total / database, "under 1.5"
    )


async def _changed(application: Application, large: int, number: int, dice: random.Random) -> None:
    """Write messages of today, and change as many of any day."""

    def some(tx: Any, first: int, last: int) -> None:
        project = tx.project(PROJECT)
        sender = tx.agent(project.id, "Sender")
        reader = tx.agent(project.id, "Reader4")
        for one in range(first, last):
            message = tx.insert_message(
                project_id=project.id,
                sender=sender,
                thread_id=f"t{dice.randrange(5_000)}",
                subject=f"Report {one} of today",
                body_md=f"word{dice.randrange(9_973)} beside {dice.randbytes(100).hex()}",
                importance="normal",
                ack_required=False,
                topic="",
                broadcast=False,
                reply_to=None,
                now=1_800_000_000_000 + one,
            )
            tx.insert_recipient(message.id, reader, "to")

    for first in range(0, number, 2_000):
        await application.store.write(lambda tx, at=first: some(tx, at, min(at + 2_000, number)))
    chosen = sorted(dice.sample(range(1, large + 1), number))
    engine = application.store.store.engine
    for first in range(0, number, 2_000):
        few = ",".join(map(str, chosen[first : first + 2_000]))
        await engine.write(
            lambda sql, few=few: sql.connection.execute(
                f"UPDATE recipients SET read_at = 1800000000000 WHERE message_id IN ({few})"
            )
        )
    await application.store.settle()


if __name__ == "__main__":
    asyncio.run(main())
