"""Each benchmark runs to its end with tiny sizes, in a separate process as `make bench` starts it.

Its figures mean nothing then and are not checked; the test checks that it measures the present code.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from postgres_server import missing_postgres

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"__init__", "__main__", "application", "figures", "http_server"}
"""Modules that are not benchmarks."""
ALL = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in PARTS)
PATIENCE = 150
pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * PATIENCE)]


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("name", ALL)
def test_a_benchmark_runs_to_its_end_and_prints_figures(name: str) -> None:
    if reason := missing_postgres():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    done = ran(name, "--tiny")
    head, *figures = [row for row in done.stdout.splitlines() if row.strip()] or [""]
    has_figures = len(figures) > 1 and any(letter.isdigit() for letter in "".join(figures))
    assert (done.returncode, head[:7], has_figures) == (0, "Python ", True), done.stderr[-3000:]


def test_an_unknown_benchmark_is_refused_by_name() -> None:
    done = ran("sendings")
    assert (done.returncode, "no benchmark is named sendings" in done.stderr) == (1, True)
