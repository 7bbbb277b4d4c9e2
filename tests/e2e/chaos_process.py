"""A process of the chaos test: submits what is its share, executes what it can claim, until it is killed.

python chaos_process.py <sqlite path or dsn> <journal> <threads> <runs> <share> <shares>

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


async def a_moment() -> None:
    """Wait before a store that is out of order is asked again."""
    await asyncio.sleep(0.1)


class Journal:
    """Appends whole lines to a file that others append to as well."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: str) -> None:
        os.write(self._file, (" ".join(words) + "\n").encode())


class Journalling(RunDispatchExecutor):
    """Writes start and end of each run; works for some milliseconds in between."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._random = random.Random(os.getpid())
        self._timer = SystemTimer()

    async def run(self, activation: RunActivation, sink: Any) -> AgentRunResult:
        facts = (
            activation.thread_id,
            activation.run_id or "",
            activation.trace.session_id or "",
            str(os.getpid()),
        )
        self._journal.write("start", *facts)
        await self._timer.sleep(self._random.randrange(0, 20))
        self._journal.write("end", *facts)
        return AgentRunResult(run_id=activation.run_id or "", response=f"did {activation.messages[0].id}")


async def submit_share(mailbox: Mailbox, threads: int, runs: int, share: int, shares: int) -> None:
    """Submit this process's threads, each in order; what was accepted before is passed over."""

    async def submit_thread(thread: int) -> None:
        for number in range(thread, runs, threads):
            name = f"{number:06d}"
            request = RunActivation.new(f"thread-{thread}", [Message.user(f"do {name}", id=f"m{name}")])
            request = request.hinted(run_id=f"run-{name}", dispatch_id=f"dispatch-{name}")
            await accepted(mailbox, request)

    waiting = iter(range(share, threads, shares))

    async def work() -> None:
        for thread in waiting:
            await submit_thread(thread)

    async with asyncio.TaskGroup() as group:
        for _ in range(SUBMITTERS):
            group.create_task(work())


async def accepted(mailbox: Mailbox, request: RunActivation) -> None:
    """Submit until the answer is that it is there."""
    while True:
        try:
            await mailbox.submit_background(request)
        except DuplicateRecord:
            return
        except PostroomError as error:
            if not error.retryable and error.code != "run_not_open":
                raise
            if error.code == "run_not_open":
                return
            await a_moment()
        else:
            return


async def serve(stores: Any, arguments: list[str]) -> None:
    journal, threads, runs, share, shares = arguments[0], *map(int, arguments[1:])
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    mailbox = Mailbox(
        Journalling(Journal(journal)), stores, consumer_id=f"worker-{os.getpid()}", config=CONFIG
    )
    while True:
        try:
            await mailbox.start_lifecycle_ready()
            break
        except PostroomError:
            await a_moment()
    print("ready", flush=True)
    await submit_share(mailbox, threads, runs, share, shares)
    print("submitted", flush=True)
    await leaving.wait()
    await mailbox.aclose(timedelta(minutes=1))


def main() -> None:
    place, rest = sys.argv[1], sys.argv[2:]
    if place.startswith("postgres"):

        async def on_postgres() -> None:
            from postroom.stores.postgres import PostgresStore

            while True:
                try:
                    kept = await asyncio.to_thread(PostgresStore.open, place, schema="chaos")
                    break
                except PostroomError:
                    await a_moment()
            await serve(kept.runs, rest)

        asyncio.run(on_postgres())
    else:
        from postroom.stores.sqlite import SqliteStore

        store = SqliteStore.open(Path(place), purpose="chaos")
        asyncio.run(serve(store.runs, rest))


if __name__ == "__main__":
    main()
