"""Runs what other queues do on the same machine, in an environment of their own."""

import asyncio
import json
import sqlite3
import subprocess
import tempfile
from pathlib import Path

from benchmarks.figures import Table, size

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / ".venv-peers" / "bin" / "python"
MISSING = "not installed: make peers"
JOBS = size(1_000, 20)
KEYS = 64
"""Threads that the jobs of a peer belong to; of one only one is executed at a time."""


def rate_of(program: str, place: str) -> float | None:
    """Return how many jobs a second a peer accepts and ends; None when the peers are not installed."""
    if not PYTHON.exists():
        return None
    words = [str(PYTHON), str(HERE / program), place, str(JOBS), str(KEYS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found["jobs_per_s"]


def _dbos_in_a_file() -> float | None:
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        path = Path(folder) / "dbos.sqlite"
        preset = sqlite3.connect(path)
        preset.execute("PRAGMA journal_mode = WAL")
        preset.close()
        return rate_of("dbos_queue.py", f"sqlite:///{path}")


async def beside_dbos_on_sqlite(table: Table, what: str, rate: float, unit: str, aim: str) -> None:
    """Add how a rate of ours stands to that of DBOS on a file in WAL."""
    theirs = await asyncio.to_thread(_dbos_in_a_file)
    _add(table, f"{what}, against DBOS on a file in WAL", rate, unit, theirs, aim)


async def beside_those_on_postgres(
    table: Table, dsn: str, what: str, rate: float, unit: str, aims: tuple[str, str]
) -> None:
    """Add how a rate of ours stands to those of DBOS and procrastinate on the same server."""
    for name, program, aim in zip(("DBOS", "procrastinate"), ("dbos", "procrastinate"), aims, strict=True):
        theirs = await asyncio.to_thread(rate_of, f"{program}_queue.py", dsn)
        _add(table, f"{what}, against {name} with one key per thread", rate, unit, theirs, aim)


def _add(table: Table, what: str, rate: float, unit: str, theirs: float | None, aim: str) -> None:
    ours = f"{rate:,.0f} {unit}/s"
    if theirs is None:
        table.add(what, ours, MISSING, None, aim)
    else:
        table.add(what, ours, f"{theirs:,.0f} jobs/s", rate / theirs, aim)
