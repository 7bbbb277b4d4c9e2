"""What schedules cost: adding them, keeping thousands that are not due, and submitting all at once."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from benchmarks.figures import Table, ms, size
from postroom.embedded import Mailbox
from postroom.stores.store import Transaction

FEW, MANY = 10, size(10_000, 20)
IDLE_SECONDS = size(35.0, 0.1)
"""Longer than a worker sleeps that has nothing to do."""
AT_ONCE = size(1_000, 5)
T = TypeVar("T")


async def main() -> None:
    """Measure on SQLite."""
    table = Table("Schedules")
    few, many = await _idle(FEW), await _idle(MANY)
    table.add(f"adding one, of {MANY}", ms(many[0] / MANY), f"{ms(few[0] / FEW)} of {FEW}")
    table.add(
        f"CPU of {IDLE_SECONDS:g} s with {MANY}, none due", ms(many[1]), ms(few[1]), many[1] / few[1], "1"
    )
    table.add(f"{AT_ONCE} due at once, each", ms(await _due() / AT_ONCE))


async def _idle(count: int) -> tuple[float, float]:
    """Return how long adding so many took, and the CPU of some seconds behind it."""

    async def measured(mailbox: Mailbox) -> tuple[float, float]:
        began = time.perf_counter()
        await _added(mailbox, count, cron="0 0 1 1 *")
        took = time.perf_counter() - began
        await asyncio.sleep(IDLE_SECONDS / 10)
        spans = list[float]()
        for _ in range(2):  # the first has what the adding left to do
            before = time.process_time()
            await asyncio.sleep(IDLE_SECONDS)
            spans.append(time.process_time() - before)
        return took, min(spans)

    return await _with_mailbox(measured)


async def _due() -> float:
    """Return how long it took to submit all that is due."""

    async def measured(mailbox: Mailbox) -> float:
        await _added(mailbox, AT_ONCE, every=timedelta(days=1))
        now, store = mailbox.stores.clock.now(), mailbox.stores.store
        due = [replace(one, tick_at=now, next_at=now) for one in await mailbox.schedules.list()]

        def make_due(tx: Transaction) -> None:
            for one in due:
                tx.schedules.put(one)

        await store.write(make_due)
        began = time.perf_counter()
        while await mailbox.schedules.kept.submit_due():
            pass
        return time.perf_counter() - began

    return await _with_mailbox(measured)


async def _added(
    mailbox: Mailbox, count: int, cron: str | None = None, every: timedelta | None = None
) -> None:
    async def add(first: int) -> None:
        for number in range(first, count, FEW):
            await mailbox.schedules.add(f"s{number}", f"t{number}", "go", cron=cron, every=every)

    await asyncio.gather(*map(add, range(FEW)))


async def _with_mailbox(measured: Callable[[Mailbox], Awaitable[T]]) -> T:
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        async with Mailbox.open(f"sqlite:///{folder}/runs.db", None) as mailbox:
            return await measured(mailbox)
