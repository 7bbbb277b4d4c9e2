"""What a hook costs its client: the whole process, with the server up and down, beside an empty Python."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.figures import Table, median, ms, p95
from benchmarks.starting import _postroom, _ready

ROUNDS = 60
WARM = 5
SCRIPT = Path(sys.executable).with_name("postroom")
EDIT = {
    "session_id": "s",
    "tool_name": "Write",
    "tool_input": {"file_path": "src/app.py", "content": "x" * 4000},
}


def _timed(command: list[str], given: bytes, environment: Mapping[str, str]) -> list[float]:
    taken = []
    for _ in range(WARM + ROUNDS):
        began = time.perf_counter()
        done = subprocess.run(command, input=given, capture_output=True, env=environment, check=True)
        taken.append(time.perf_counter() - began)
        if done.stderr:
            raise SystemExit(f"{command} said {done.stderr!r}")
    return taken[WARM:]


def _both(taken: list[float]) -> str:
    return f"p50 {ms(median(taken))}, p95 {ms(p95(taken))}"


def _rows(table: Table, folder: Path, given: bytes, state: str, aim: str) -> None:
    """Measure each kind of call next to an empty Python, in turns as near as may be."""
    environment = {**os.environ, "POSTROOM_DATA_DIR": str(folder / "data"), "POSTROOM_AGENT": "Ben"}
    bare = _timed([sys.executable, "-c", "pass"], b"", environment)
    for event in ("PreToolUse", "PostToolUse", "Stop"):
        taken = _timed([str(SCRIPT), "hook", "claude", event], given, environment)
        against = f"python -c pass {_both(bare)}"
        table.add(f"{event}, server {state}", _both(taken), against, p95(taken) / p95(bare), aim)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    server = subprocess.Popen(
        _postroom("up", "--port", "0", "--data-dir", str(folder / "data")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.perf_counter() + 20
    while not _ready(folder / "data"):
        if time.perf_counter() > until or server.poll() is not None:
            server.kill()
            raise SystemExit("the server did not become ready")
        time.sleep(0.02)
    return server


def _furnish(folder: Path) -> None:
    environment = {**os.environ, "POSTROOM_DATA_DIR": str(folder / "data")}
    for words in (
        ("agents", "register", "Ada"),
        ("agents", "register", "Ben"),
        ("reservations", "reserve", "docs/**", "--as", "Ada"),
        ("mail", "send", "--as", "Ada", "--to", "Ben", "-s", "s", "b"),
    ):
        subprocess.run(_postroom(*words), check=True, capture_output=True, env=environment, cwd=folder)


def main() -> None:
    """Print the table."""
    table = Table("Hooks: the whole process of one call")
    plain = _timed([sys.executable, "-c", "pass"], b"", os.environ)
    least = _timed([sys.executable, "-I", "-S", "-c", "pass"], b"", os.environ)
    table.add("python -c pass", _both(plain))
    table.add("python -I -S -c pass", _both(least), "python -c pass", p95(least) / p95(plain))
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as name:
        folder = Path(name)
        given = json.dumps({**EDIT, "cwd": name}).encode()
        _rows(table, folder, given, "never started", "p95 under 50 ms")
        server = _start(folder)
        try:
            _furnish(folder)
            _rows(table, folder, given, "up", "p95 under 100 ms")
        finally:
            server.kill()  # so that its note stays, as after a crash
            server.wait(10)
        _rows(table, folder, given, "killed", "p95 under 50 ms")


if __name__ == "__main__":
    main()
