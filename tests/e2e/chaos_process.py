"""A process of the chaos test: submits runs and executes them, until it is killed.

python chaos_process.py <sqlite path> <journal> <threads> <runs>

The journal is one file for all processes, a line at a time: `start|end <thread> <run> <token> <pid>`.
"""

import asyncio
import os
import random
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from postroom.concurrency import SystemTimer
from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import DuplicateRecord, PostroomError
from postroom.contracts.executor import AgentRunResult, RunDispatchExecutor
from postroom.contracts.messages import Message
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.sqlite import SqliteStore

CONFIG = MailboxConfig(
    lease_ms=2_000,
    lease_renewal_interval=timedelta(milliseconds=500),
    lease_retry_ms=100,
    sweep_interval=timedelta(milliseconds=500),
    poll_interval=timedelta(milliseconds=200),
    default_max_attempts=1_000,
    max_concurrent_runs=64,
    max_queued_per_thread=None,
)
SUBMITTERS = 16


class Journalling(RunDispatchExecutor):
    """Writes start and end of each run; works for some milliseconds in between."""

    def __init__(self, journal: str) -> None:
        self._file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._random, self._timer = random.Random(os.getpid()), SystemTimer()

    async def run(self, activation: RunActivation, sink: Any) -> AgentRunResult:
        token = activation.trace.session_id or ""
        facts = f"{activation.thread_id} {activation.run_id} {token} {os.getpid()}\n"
        os.write(self._file, f"start {facts}".encode())
        await self._timer.sleep(self._random.randrange(0, 20))
        os.write(self._file, f"end {facts}".encode())
        return AgentRunResult(run_id=activation.run_id or "", response=f"did {activation.messages[0].id}")


async def submit_all(mailbox: Mailbox, threads: int, runs: int) -> None:
    """Submit each thread in order; skip work that was accepted before."""
    waiting = iter(range(threads))

    async def work() -> None:
        for thread in waiting:
            for number in range(thread, runs, threads):
                name = f"{number:06d}"
                request = RunActivation.new(f"thread-{thread}", [Message.user(f"do {name}", id=f"m{name}")])
                request = request.hinted(run_id=f"run-{name}", dispatch_id=f"dispatch-{name}")
                try:
                    await mailbox.submit_background(request)
                except DuplicateRecord:
                    continue
                except PostroomError as error:
                    if error.code != "run_not_open":
                        raise

    async with asyncio.TaskGroup() as group:
        for _ in range(SUBMITTERS):
            group.create_task(work())


async def serve(stores: Any, journal: str, threads: int, runs: int) -> None:
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    mailbox = Mailbox(Journalling(journal), stores, consumer_id=f"worker-{os.getpid()}", config=CONFIG)
    await mailbox.start_lifecycle_ready()
    await submit_all(mailbox, threads, runs)
    await leaving.wait()
    await mailbox.aclose(timedelta(minutes=1))


if __name__ == "__main__":
    database, journal, threads, runs = sys.argv[1:]
    store = SqliteStore.open(Path(database), purpose="chaos")
    asyncio.run(serve(store.runs, journal, int(threads), int(runs)))
