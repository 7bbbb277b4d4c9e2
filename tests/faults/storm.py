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
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from faults.cutting_proxy import CuttingProxy, a_proxy
from faults.storm_worker import LEASE_MS
from postgres_server import running_postgres
from postroom import testing
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.embedded import Mailbox

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
class Weathered:
    """The result."""

    findings: list[str]
    counts: dict[str, int]
    history: testing.History
    kills: int
    standstills: int
    seconds: float


class Workers:
    """Working processes; the last but one is suspended, and the last one is cut off from the database."""

    def __init__(self, storm: Storm, dsns: list[str], schema: str, log: Path) -> None:
        self._storm, self._dsns, self._schema, self._log = storm, dsns, schema, log
        self.processes: list[asyncio.subprocess.Process] = []
        self.kills = self.standstills = 0

    async def start(self, dsn: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "faults.storm_worker", dsn, self._schema, str(self._log),
            str(self._storm.at_once), str(self._storm.budget),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip

    async def start_all(self) -> None:
        for dsn in self._dsns:
            self.processes.append(await self.start(dsn))

    async def end(self, number: int) -> None:
        with suppress(ProcessLookupError):  # one that was cut off as it started has ended
            self.processes[number].kill()
        await self.processes[number].wait()

    async def kill_again_and_again(self, is_over: asyncio.Event) -> None:
        """Kill a process and start another, except the suspended process and the process that is cut off.

        It ends between two of them, so that none is left over.
        """
        while not await _over_within(is_over, self._storm.kill_every):
            number = random.randrange(max(len(self.processes) - 2, 1))
            await self.end(number)
            self.processes[number] = await self.start(self._dsns[number])
            self.kills += 1

    async def stand_still_again_and_again(self, is_over: asyncio.Event, proxy: CuttingProxy) -> None:
        """Stop one and cut one off, both for longer than a lease, and let them go on."""
        is_last = False
        while not is_last:
            self.processes[-2].send_signal(signal.SIGSTOP)
            proxy.is_cut_off = True
            await asyncio.sleep(STANDSTILL)
            self.processes[-2].send_signal(signal.SIGCONT)
            proxy.is_cut_off = False
            proxy.cut_all()
            self.standstills += 1
            is_last = await _over_within(is_over, 10 * STANDSTILL)


async def _over_within(is_over: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await is_over.wait()
    return is_over.is_set()


async def weather(storm: Storm, dsn: str, log: Path) -> Weathered:
    """Execute all runs under faults, and check the result."""
    schema = f"storm_{uuid4().hex}"
    began = time.monotonic()
    async with Mailbox.open(dsn, None, schema=schema) as mailbox:
        await testing.record(mailbox)
        accepted = await enqueued(mailbox, storm)
        async with a_proxy(dsn) as (proxy, through):
            workers = Workers(storm, [*[dsn] * (storm.workers - 1), through], schema, log)
            await workers.start_all()
            is_over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(workers.kill_again_and_again(is_over))
                while not log.exists():
                    await asyncio.sleep(0.05)
                group.create_task(workers.stand_still_again_and_again(is_over, proxy))
                while await _open(mailbox):
                    await asyncio.sleep(0.1)
                is_over.set()
            for number in range(len(workers.processes)):
                await workers.end(number)
        history = await asyncio.to_thread(testing.History.read, log, accepted=accepted)
        counted = await mailbox.stores.dispatches.count_by_status()
        return Weathered(
            findings=await testing.check(mailbox, accepted=accepted, history=history, at_once=storm.at_once),
            counts={status.label: number for status, number in counted.items() if number},
            history=history,
            kills=workers.kills,
            standstills=workers.standstills,
            seconds=time.monotonic() - began,
        )


async def enqueued(mailbox: Mailbox, storm: Storm) -> dict[str, str]:
    """Enqueue all runs, and return the thread of each."""
    accepted: dict[str, str] = {}

    async def enqueue(number: int) -> None:
        handle = await mailbox.enqueue(f"t{number % storm.threads}", "go", attempts=100)
        accepted[handle.id] = handle.thread_id

    for first in range(0, storm.runs, AT_ONCE_SUBMITTED):
        async with asyncio.TaskGroup() as group:
            for number in range(first, min(first + AT_ONCE_SUBMITTED, storm.runs)):
                group.create_task(enqueue(number))
    return accepted


async def _open(mailbox: Mailbox) -> int:
    counted = await mailbox.stores.dispatches.count_by_status()
    return counted[RunDispatchStatus.QUEUED] + counted[RunDispatchStatus.CLAIMED]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    for name, default in (("runs", 20_000), ("threads", 500), ("workers", 4), ("at-once", 10)):
        asked.add_argument(f"--{name}", type=int, default=default)
    asked.add_argument("--kill-every", type=float, default=2.0)
    storm = Storm(**vars(asked.parse_args()))
    with running_postgres() as dsn, tempfile.TemporaryDirectory() as folder:
        done = asyncio.run(weather(storm, dsn, Path(folder) / "log"))
    sys.stdout.write(
        f"{storm}\n{done.counts}; ended {len(done.history.ended)}; executions {len(done.history.executions)}; "
        f"at once {done.history.most_at_once}; killed {done.kills}, stopped and cut off {done.standstills} times "
        f"in {done.seconds:.0f} s; {len(done.findings)} findings\n"
    )
    for finding in done.findings:
        sys.stdout.write(f"{finding}\n")
    sys.exit(bool(done.findings))


if __name__ == "__main__":
    main()
