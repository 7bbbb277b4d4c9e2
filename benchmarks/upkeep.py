"""What looking after a large store costs those who use it: sends beside upkeep, and starts."""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.application import PROJECT, as_served, fill, fresh_application, message_arguments
from benchmarks.figures import Table, cpu_of, median, ms, size
from benchmarks.starting import start
from postroom.app.admin_service import AdminService
from postroom.app.retention import Retention
from postroom.app.wiring import Application
from postroom.contracts.mail import KeepRule
from postroom.http_api.readiness import LagMeter

LARGE = size(1_000_000, 2_000)
SENDS = size(1_000, 20)
PAUSE = 0.005
"""Seconds between two sends: a caller who waits for nothing else."""
STATUSES = size(20, 2)
"""As many as last for some hundred sends: p99 of a few is the slowest of them."""
STARTS = size(5, 1)


async def main(large: int = LARGE) -> None:
    """Print the tables."""
    async with fresh_application() as application:
        await fill(application, large)
        with tempfile.TemporaryDirectory(prefix="postroom-bench-") as name:
            kept = Path(name, "large")
            kept.mkdir()
            await application.store.back_up(kept / "postroom.db")
            await asyncio.to_thread(_starts, kept, Path(name, "empty"), large)
        with as_served():
            await _beside(application, large)


async def _send(application: Application) -> float:
    began = time.perf_counter()
    await application.mail.call("send_message", message_arguments("Sender", "Reader4"))
    took = time.perf_counter() - began
    await asyncio.sleep(PAUSE)
    return took


async def against_nothing(
    application: Application, table: Table, what: str, work: Callable[[], Awaitable[Any]]
) -> None:
    """Send before, beside and after the work, once what was written before is on the disk."""
    await asyncio.to_thread(os.sync)
    alone = [await _send(application) for _ in range(SENDS // 2)]
    began, beside = time.perf_counter(), []
    working = asyncio.ensure_future(work())
    while not working.done():
        beside.append(await _send(application))
    await working
    took = time.perf_counter() - began
    alone += [await _send(application) for _ in range(SENDS // 2)]
    table.add(
        f"{what} ({took:.1f} s, {len(beside)} sends)",
        f"p99 {ms(_p99(beside))}, median {ms(median(beside))}",
        f"alone: p99 {ms(_p99(alone))}, median {ms(median(alone))}",
        _p99(beside) / _p99(alone),
        "p99 at most 1.5",
    )


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


async def _beside(application: Application, large: int) -> None:
    table = Table(f"Sends beside upkeep of {large:,} messages")
    backups = application.backups
    await against_nothing(application, table, "a backup", lambda: backups.make("first"))
    admin = AdminService(application, LagMeter(), started_at=0)
    await against_nothing(application, table, "doctor", admin.doctor)

    async def statuses() -> None:
        for _ in range(STATUSES):
            await admin.status()

    await against_nothing(application, table, f"status, {STATUSES} times", statuses)
    rule = KeepRule(project=PROJECT, thread="t1", keep=timedelta(days=1), unread_stays=False)
    retention = Retention(application.settings, application.store, [rule], runs=application.store.store)
    await against_nothing(application, table, "deletion of what no rule keeps", retention.messages)


def _starts(kept: Path, empty: Path, large: int) -> None:
    """Start servers over the large store and over an empty one, in turns."""
    table = Table(f"Starting with {large:,} messages")
    taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(STARTS + 1):
        for is_large, place in ((True, kept), (False, empty)):
            taken[is_large].append(_start(place))
    few, many = taken[False][1:] or taken[False], taken[True][1:] or taken[True]
    for what, at in (("until it is ready", 0), ("processor time until then", 1)):
        ours, against = (median([one[at] for one in values]) for values in (many, few))
        table.add(what, ms(ours), f"empty: {ms(against)}", ours / against, "at most 1.3")


def _start(folder: Path) -> tuple[float, float]:
    (folder / "server.json").unlink(missing_ok=True)
    began = time.perf_counter()
    server = start(folder)
    took, used = time.perf_counter() - began, cpu_of(server.pid)
    server.terminate()
    server.wait(timedelta(minutes=5).total_seconds())
    return took, used


if __name__ == "__main__":
    asyncio.run(main())
