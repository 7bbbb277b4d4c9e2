"""Mail on PostgreSQL: one process against bare inserts over the same connections, and several processes."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.application import BODY, bare_message
from benchmarks.figures import Table, size

CALLERS = 64
PROJECTS = 8
SECONDS = size(5.0, 0.1)
PROCESSES = size(4, 2)
_READY = "ready\n"


def main() -> None:
    """Print the table."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # the server that tests start
    from postgres_server import running_postgres

    table = Table("Mail of many servers on one PostgreSQL")
    with running_postgres() as dsn:
        bare, alone = sum(_rates(dsn, "bare", 1)), sum(_rates(dsn, "mail", 1))
        table.add(
            f"messages of {CALLERS} callers over {PROJECTS} projects, one process",
            f"{alone:,.0f} messages/s",
            f"{bare:,.0f} messages/s of the same rows by the bare writer",
            alone / bare,
            "at least 0.50",
        )
        for number in sorted({2, PROCESSES}):
            together = sum(_rates(dsn, "mail", number))
            table.add(
                f"the same with {number} processes, the server's beside them on {os.cpu_count()} cores",
                f"{together:,.0f} messages/s",
                f"one process {alone:,.0f} messages/s",
                together / alone,
                "at least 2.5 with four processes and four cores" if number == PROCESSES else "",
            )


def _rates(dsn: str, what: str, processes: int) -> list[float]:
    """Have processes send side by side, and return what each reached a second."""
    words = [sys.executable, "-m", "benchmarks.servers", what, dsn]
    workers = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        if worker.stdout.readline() != _READY:
            raise RuntimeError("a process did not start")
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return [float(worker.communicate()[0]) for worker in workers]


async def _work(what: str, dsn: str) -> None:
    """Send until the time is over, when told to begin; print what was reached a second."""
    from postroom.contracts.clock import SystemClock
    from postroom.mail.service import Mail
    from postroom.stores.postgres import PostgresStore

    stores = await asyncio.to_thread(PostgresStore.open, dsn)
    try:
        mail = Mail(stores, SystemClock())
        calls = await calls_of(mail, what)
        await calls[0]()
        print(_READY, end="", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(await rate(calls))
    finally:
        await asyncio.to_thread(stores.close)


async def calls_of(mail: Any, what: str, readers: int = 1) -> list[Callable[[], Awaitable[object]]]:
    """Return what each caller does, again and again; each project has so many who are written to in turn."""
    names = [f"Reader{number}" for number in range(readers)]
    calls = []
    for number in range(PROJECTS):
        home = f"/bench/project-{number}"
        await mail.call("ensure_project", {"human_key": home})
        for name in ("Sender", *names):
            agent = {"project_key": home, "program": "bench", "model": "none", "name": name}
            await mail.call("register_agent", agent)
        calls.append(
            _sending(mail, home, names)
            if what == "mail"
            else await bare_message(mail, home, "Sender", names[0])
        )
    return calls


def _sending(mail: Any, home: str, readers: list[str]) -> Callable[[], Awaitable[object]]:
    message = {
        "project_key": home,
        "sender_name": "Sender",
        "subject": "The build of module seven",
        "body_md": BODY,
    }
    turns = cycle(readers)
    return lambda: mail.call("send_message", {**message, "to": [next(turns)]})


async def rate(calls: list[Callable[[], Awaitable[object]]]) -> float:
    """Have all callers call for some seconds; return how many calls a second were answered."""
    done = 0
    began = time.perf_counter()
    end = began + SECONDS

    async def caller(call: Callable[[], Awaitable[object]]) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call()
            done += 1

    async with asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            group.create_task(caller(calls[number % len(calls)]))
    return done / (time.perf_counter() - began)


if __name__ == "__main__":
    asyncio.run(_work(*sys.argv[1:]))
