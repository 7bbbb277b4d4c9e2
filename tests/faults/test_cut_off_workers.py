"""A worker that cannot reach the database, or was suspended: its work stops before another worker has it.

PostgreSQL alone: a file has one process.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from dispatch_room import Blocking, Counting, Deaf, RunActivation, dispatch_in, eventually
from faults.cutting_proxy import a_proxy
from faults.working_process import CONFIG
from postgres_runs_room import OpenedRuns
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("postgres_dsn")]
WRITES_ONLY = MailboxConfig(max_concurrent_runs=0)


@asynccontextmanager
async def opened(dsn: str, schema: str) -> AsyncIterator[OpenedRuns]:
    stores = await OpenedRuns.open(dsn, schema=schema)
    try:
        yield stores
    finally:
        await stores.close()


class Endless(Deaf):
    """Works until it is stopped, and keeps the instant at which it was."""

    def __init__(self, stores: OpenedRuns) -> None:
        super().__init__()
        self.now = stores.clock.now
        self.started = asyncio.Event()
        self.stopped_at: int | None = None

    async def execute(self, activation, sink):
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped_at = self.now()


async def test_a_worker_cut_off_from_the_database_stops_its_work_before_another_has_it(postgres_dsn):
    schema = f"test_{uuid4().hex}"
    async with a_proxy(postgres_dsn) as (proxy, through), opened(postgres_dsn, schema) as stores:
        behind = await OpenedRuns.open(through, schema=schema)
        executor, heir = Endless(behind), Blocking()
        worker = Mailbox(executor, behind, consumer_id="cut off", config=CONFIG)
        try:
            result = await worker.submit_background(RunActivation.new("t", ["go"]))
            await executor.started.wait()
            proxy.is_cut_off = True
            async with Mailbox(heir, stores, consumer_id="heir", config=CONFIG):
                taken = await heir.started.get()
                assert (taken.attempt, taken.interruptions) == (1, 1)
                row = await stores.dispatches.load_dispatch(result.dispatch_id)
                assert row.claimed_by == "heir"
                assert executor.stopped_at is not None
                assert executor.stopped_at < row.claimed_at
                heir.release.set()
                await dispatch_in(stores, result.dispatch_id, RunDispatchStatus.ACKED)
        finally:
            proxy.is_cut_off = False
            proxy.cut_all()
            await worker.aclose()
            await behind.close()


async def test_a_worker_that_stood_still_makes_no_step_of_what_another_has(postgres_dsn, tmp_path: Path):
    schema, lines = f"test_{uuid4().hex}", tmp_path / "steps"
    async with opened(postgres_dsn, schema) as stores:
        async with Mailbox(Counting(), stores, consumer_id="writer", config=WRITES_ONLY) as writer:
            result = await writer.submit_background(RunActivation.new("t", ["go"]))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "faults.working_process", postgres_dsn, schema, str(lines),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip
        try:

            async def steps() -> bool | None:
                return (lines.exists() and len(lines.read_text().split()) > 3) or None

            await eventually(steps)
            process.send_signal(signal.SIGSTOP)
            heir = Blocking()
            async with Mailbox(heir, stores, consumer_id="heir", config=CONFIG):
                await heir.started.get()
                before = lines.read_text()
                process.send_signal(signal.SIGCONT)

                async def stopped() -> bool | None:
                    return "stopped" in lines.read_text() or None

                await eventually(stopped)
                assert lines.read_text() == before + "stopped\n"
                assert (await stores.dispatches.load_dispatch(result.dispatch_id)).claimed_by == "heir"
                heir.release.set()
                await dispatch_in(stores, result.dispatch_id, RunDispatchStatus.ACKED)
        finally:
            process.kill()
            await process.wait()
