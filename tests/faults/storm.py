"""Many runs on few workers that are killed, stopped and cut off; then the history is checked.

PYTHONPATH=tests python -m faults.storm --runs 20000 --threads 500 --workers 4 --at-once 10 --kill-every 2
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from dispatch_room import Counting, RunActivation
from faults.cutting_proxy import a_proxy
from faults.storm_worker import LEASE_MS
from postgres_runs_room import OpenedRuns
from postgres_server import running_postgres
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox

STANDSTILL = 1.5 * LEASE_MS / 1_000
AT_ONCE_SUBMITTED = 200


@dataclass(frozen=True, kw_only=True)
class Storm:
    """How much is done, and how often something is killed."""

    runs: int
    threads: int
    workers: int
    at_once: int
    kill_every: float
    budget: int = 0
    """How many runs may start before a person is asked; 0: as many as there are."""


@dataclass(kw_only=True)
class History:
    """What the runs wrote: the span of each execution, and which runs have come to their end."""

    spans: dict[tuple[str, str, str], tuple[str, int, int]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> "History":
        found = cls()
        for line in path.read_text().splitlines():
            what, run, thread, attempt, process, at = line.split()
            _, since, _ = found.spans.get((run, attempt, process), (thread, int(at), 0))
            found.spans[run, attempt, process] = (thread, since, int(at))
            if what == "end":
                found.ended.add(run)
        return found

    def most_at_once(self) -> int:
        """Return how many executed at the same instant."""
        return _most([(since, until) for _, since, until in self.spans.values()])

    def most_on_a_thread(self) -> int:
        """Return how many of one thread did."""
        by_thread = defaultdict(list)
        for thread, since, until in self.spans.values():
            by_thread[thread].append((since, until))
        return max(map(_most, by_thread.values()))


def _most(spans: list[tuple[int, int]]) -> int:
    most = now = 0
    for _, step in sorted([(since, 1) for since, _ in spans] + [(until, -1) for _, until in spans]):
        now += step
        most = max(most, now)
    return most


class Workers:
    """Processes that work; the last one reaches the database through a proxy."""

    def __init__(self, storm: Storm, dsns: list[str], schema: str, history: Path) -> None:
        self._storm, self._dsns, self._schema, self._history = storm, dsns, schema, history
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self, dsn: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "faults.storm_worker", dsn, self._schema, str(self._history),
            str(self._storm.at_once), str(self._storm.budget),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip

    async def start_all(self) -> None:
        for dsn in self._dsns:
            self.processes.append(await self.start(dsn))

    async def kill(self, number: int) -> None:
        process = self.processes[number]
        with suppress(ProcessLookupError):  # one that was cut off as it started has ended
            process.kill()
        await process.wait()

    async def kill_again_and_again(self, is_over: asyncio.Event) -> None:
        """Kill one and start another, but the one that is stopped and the one that is cut off.

        It ends between two of them, so that none is left over.
        """
        while not is_over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._storm.kill_every):
                    await is_over.wait()
                    return
            number = random.randrange(max(len(self.processes) - 2, 1))
            await self.kill(number)
            self.processes[number] = await self.start(self._dsns[number])


async def weather(storm: Storm, dsn: str, history: Path) -> int:
    """Have all runs done under faults; return how many ended otherwise than well."""
    schema = f"storm_{uuid4().hex}"
    stores = await OpenedRuns.open(dsn, schema=schema)
    writer = Mailbox(Counting(), stores, consumer_id="writer", config=MailboxConfig(max_concurrent_runs=0))

    await submitted(writer, storm)
    async with a_proxy(dsn) as (proxy, through):
        workers = Workers(storm, [*[dsn] * (storm.workers - 1), through], schema, history)
        await workers.start_all()
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(workers.kill_again_and_again(is_over))
            while not history.exists():
                await asyncio.sleep(0.05)
            workers.processes[-2].send_signal(signal.SIGSTOP)
            proxy.is_cut_off = True
            await asyncio.sleep(STANDSTILL)
            workers.processes[-2].send_signal(signal.SIGCONT)
            proxy.is_cut_off = False
            proxy.cut_all()
            while await _open(stores):
                await asyncio.sleep(0.1)
            is_over.set()
        for number in range(len(workers.processes)):
            await workers.kill(number)
    counted = await stores.dispatches.count_by_status()
    await writer.aclose(timedelta(0))
    await stores.close()
    return storm.runs - counted[RunDispatchStatus.ACKED]


async def submitted(writer: Mailbox, storm: Storm) -> None:
    """Queue the runs of a storm."""

    async def submit(number: int) -> None:
        request = RunActivation.new(f"t{number % storm.threads}", ["go"]).delivered(max_attempts=100)
        await writer.submit_background(request)

    for first in range(0, storm.runs, AT_ONCE_SUBMITTED):
        async with asyncio.TaskGroup() as group:
            for number in range(first, min(first + AT_ONCE_SUBMITTED, storm.runs)):
                group.create_task(submit(number))


async def _open(stores: OpenedRuns) -> int:
    counted = await stores.dispatches.count_by_status()
    return counted[RunDispatchStatus.QUEUED] + counted[RunDispatchStatus.CLAIMED]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    for name, default in (("runs", 20_000), ("threads", 500), ("workers", 4), ("at-once", 10)):
        asked.add_argument(f"--{name}", type=int, default=default)
    asked.add_argument("--kill-every", type=float, default=2.0)
    storm = Storm(**vars(asked.parse_args()))
    with running_postgres() as dsn, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history"
        lost = asyncio.run(weather(storm, dsn, path))
        history = History.read(path)
    sys.stdout.write(
        f"{storm}\nlost {lost}; ended {len(history.ended)}; executions {len(history.spans)}; "
        f"at once {history.most_at_once()}; on a thread {history.most_on_a_thread()}\n"
    )


if __name__ == "__main__":
    main()
