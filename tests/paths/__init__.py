"""How much a call passes before its effect, and limits that may only fall.

`make paths` counts. `limits.json` has the limits of each path: this much code one must read to follow it.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from paths.tracing import Figures

FILE = Path(__file__).with_name("limits.json")


class Limit(NamedTuple):
    """The limits of a path."""

    functions: int
    files: int
    statements: int
    records: int


def limits() -> dict[str, Limit]:
    """Return the limit of each path."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, Limit])


def passed(figures: Figures) -> Limit:
    """Return the figures in the form of a limit."""
    return Limit(figures.functions, figures.files, figures.statements, len(figures.records))


def measured(name: str) -> Figures:
    """Play a path in a separate process.

    Raises:
        RuntimeError: The path could not be played; the message holds what the process printed.
    """
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "paths", "--play", name],
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not done.stdout:
        raise RuntimeError(f"the path {name!r} could not be played: {done.stderr or done.stdout}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Figures)
