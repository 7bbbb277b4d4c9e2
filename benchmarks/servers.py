"""Mail on PostgreSQL: one process against bare inserts over the same connections, and several processes."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.application import BODY, bare_message
from benchmarks.figures import Table, cpu_of, ms, size

CALLERS = 64
PROJECTS = 8
SECONDS = size(5.0, 0.1)
PROCESSES = size(4, 2)
_READY = "ready\n"


def main() -> None:
    """Print the table."""
    from postgres_server import running_postgres

    table = Table("Mail of many servers on one PostgreSQL")
    with running_postgres() as dsn:
        [limit], before = _worked(dsn, "bare", 1), _size(dsn)
        [one], bare = _worked(dsn, "mail", 1), limit.rate
        alone = one.rate
        table.add(
            f"messages of {CALLERS} callers over {PROJECTS} projects, one process",
            f"{alone:,.0f} messages/s",
            f"{bare:,.0f} messages/s of the same rows by the bare writer",
            alone / bare,
            "at least 0.50",
        )
        table.add("processor time of a message, the sender's", ms(one.cpu), f"bare writer {ms(limit.cpu)}")
        table.add("the same, the database's", ms(one.database_cpu), f"bare writer {ms(limit.database_cpu)}")
        table.add(
            "bytes of the database for a message",
            f"{(_size(dsn) - before) / one.done:,.0f}",
            f"{len(BODY)} of its text",
        )
        table.add("connections of one process", f"{one.sessions}")
        for number in sorted({2, PROCESSES}):
            together = sum(done.rate for done in _worked(dsn, "mail", number))
            table.add(
                f"the same with {number} processes, the server's beside them on {os.cpu_count()} cores",
                f"{together:,.0f} messages/s",
                f"one process {alone:,.0f} messages/s",
                together / alone,
                "at least 2.5 with four processes and four cores" if number == PROCESSES else "",
            )


@dataclass(frozen=True, kw_only=True)
class Worked:
    """What one process reached."""

    rate: float
    """Calls a second."""
    done: int
    cpu: float
    """Seconds of a processor that each took."""
    database_cpu: float
    """The same of the database; of one that is on another machine nothing is known."""
    sessions: int


def _worked(dsn: str, what: str, processes: int) -> list[Worked]:
    """Have processes send side by side, and return what each reached."""
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
    return [Worked(**json.loads(worker.communicate()[0])) for worker in workers]


async def _work(what: str, dsn: str) -> None:
    """Send until the time is over, when told to begin; print what was reached a second."""
    from postroom.contracts.clock import SystemClock
    from postroom.mail.service import Mail
    from postroom.stores.postgres import PostgresStore

    own_name = f"bench-{os.getpid()}"
    stores = await asyncio.to_thread(PostgresStore.open, f"{dsn}?application_name={own_name}")
    try:
        mail = Mail(stores, SystemClock())
        calls = await calls_of(mail, what)
        await calls[0]()
        print(_READY, end="", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        sessions = sessions_of(dsn, own_name)
        own, theirs, began = time.process_time(), sum(map(cpu_of, sessions)), time.perf_counter()
        reached = await rate(calls)
        done = round(reached * (time.perf_counter() - began))
        worked = Worked(
            rate=reached,
            done=done,
            cpu=(time.process_time() - own) / done,
            database_cpu=(sum(map(cpu_of, sessions)) - theirs) / done,
            sessions=len(sessions),
        )
        print(json.dumps(asdict(worked)))
    finally:
        await asyncio.to_thread(stores.close)


def sessions_of(dsn: str, application: str = "postroom") -> list[int]:
    """Return the processes of a database on this machine that serve those who call themselves so."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as asked:
        found = asked.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", (application,))
        return [pid for (pid,) in found if Path(f"/proc/{pid}").exists()]


def _size(dsn: str) -> int:
    """Return the bytes of the database."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as asked:
        [[size_now]] = asked.execute("SELECT pg_database_size(current_database())").fetchall()
        return int(size_now)


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
