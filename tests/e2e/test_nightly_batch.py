"""The example of a nightly batch, killed while it enqueues and while it works, and started again."""

import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nightly_batch.py"
JOBS = 1_500
CENTS = 10
"""The cost of a thousand jobs."""
AT_MOST = 0.1003
"""Their allowed cost: a server that has just started knows no cost, and starts 4 jobs concurrently."""
PATIENCE = 240
pytestmark = [pytest.mark.long, pytest.mark.timeout(PATIENCE + 30)]
KILLED = """
import builtins, os, runpy, signal, sys
say, last = print, sys.argv.pop(1)
def said(*words, **options):
    say(*words, **options)
    if " ".join(map(str, words)) == last:
        os.kill(os.getpid(), signal.SIGKILL)
builtins.print = said
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the example, and kills the process when it prints a certain line."""
ENTERED = """
SELECT replace(scope, 'thread:page-', '') FROM event_scopes JOIN events USING (event_id)
 WHERE event_kind = 'StepStored' AND payload ->> 'name' = 'enter' AND scope LIKE 'thread:page-%'
"""
PRICED = ENTERED.replace("'enter'", "'price'")


def run(folder: Path, *answer: str, killed_at: str = "") -> str:
    words = ["-c", KILLED, killed_at] if killed_at else []
    command = [sys.executable, *words, str(EXAMPLE), "2026-11-24", str(JOBS), "100000", str(CENTS), *answer]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    used_up = re.compile(r"The budget of provider for this day is used up: (0\.\d+) of 0\.10 USD\.")
    asks = used_up.search(done.stderr)
    if asks:
        priced = found(folder, PRICED)
        assert len(priced) == len(set(priced))
        assert 0.1 <= float(asks[1]) <= len(priced) / 10_000 <= AT_MOST, "each job that was paid for counts"
    assert done.returncode == (-signal.SIGKILL if killed_at else int(asks is not None)), done.stderr
    return done.stderr if asks else done.stdout


def found(folder: Path, query: str) -> list[str]:
    with closing(sqlite3.connect(folder / "nightly.db")) as database:
        return [row[0] for row in database.execute(query)]


def test_a_batch_that_is_killed_twice_does_each_job_and_its_effect_once(tmp_path: Path) -> None:
    report = tmp_path / "report-2026-11-24"
    run(tmp_path, killed_at=f"enqueued 500 of {JOBS}")
    stored = found(tmp_path, "SELECT run_id FROM runs")
    assert len(stored) == 500
    run(tmp_path, killed_at=f"done 300 of {JOBS}")
    assert set(stored) < set(found(tmp_path, "SELECT run_id FROM runs"))
    before = {page: (report / f"{page}.txt").stat().st_mtime_ns for page in found(tmp_path, ENTERED)}
    assert 300 <= len(before) < JOBS
    assert run(tmp_path).endswith("Start it again with yes or no.\n")
    assert run(tmp_path, "yes").endswith(f"done {JOBS} of {JOBS}\n")
    pages = [str(page) for page in range(JOBS)]
    assert sorted(found(tmp_path, ENTERED)) == sorted(pages)
    assert {path.stem: path.read_text() for path in report.iterdir()} == {
        page: f"page {page}: {page}00\n" if page != "0" else "page 0: 0\n" for page in pages
    }
    assert {page: (report / f"{page}.txt").stat().st_mtime_ns for page in before} == before
    assert len(found(tmp_path, "SELECT run_id FROM runs WHERE status = 'done'")) == JOBS


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
