"""What a hook costs its client: the whole process, with the server up and down, beside an empty Python."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.figures import Table, median, ms, p95, size
from benchmarks.starting import PATIENCE, postroom, start

ROUNDS = size(60, 2)
WARM = size(5, 1)
SCRIPT = Path(sys.executable).with_name("postroom")
CURRENT = f"""#!{sys.executable}
import sys
from postroom.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""
"""The start script as uv and current releases of pip write it.

An older pip, such as the one that comes with Python 3.11, writes a script that imports `re`. The import takes
half as long as a start of Python.
"""
EDIT = {
    "session_id": "s",
    "tool_name": "Write",
    "tool_input": {"file_path": "src/app.py", "content": "x" * 4000},
}


BARE = [sys.executable, "-c", "pass"]
MINIMAL_PROCESS = [sys.executable, "-I", "-S", "-c", "pass"]


def _environment(data_dir: Path, **more: str) -> dict[str, str]:
    """Return the environment of a client; an installed package has its bytecode, so it is written here."""
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "POSTROOM_DATA_DIR": str(data_dir), **more}


def _timed(commands: list[list[str]], given: bytes, environment: Mapping[str, str]) -> list[list[float]]:
    """Run the commands in turns, so that whatever else the machine does slows all of them alike."""
    taken: list[list[float]] = [[] for _ in commands]
    for _ in range(WARM + ROUNDS):
        for command, times in zip(commands, taken, strict=True):
            began = time.perf_counter()
            done = subprocess.run(command, input=given, capture_output=True, env=environment, check=True)
            times.append(time.perf_counter() - began)
            if done.stderr:
                raise SystemExit(f"{command} said {done.stderr!r}")
    return [times[WARM:] for times in taken]


def _both(taken: list[float]) -> str:
    return f"p50 {ms(median(taken))}, p95 {ms(p95(taken))}"


def _rows(table: Table, folder: Path, given: bytes, state: str, aim: str) -> None:
    """Measure each kind of call in turns with an empty Python, by two start scripts."""
    environment = _environment(folder / "data", POSTROOM_AGENT="Ben")
    current = folder / "postroom"
    current.write_text(CURRENT)
    current.chmod(0o755)
    for event in ("PreToolUse", "PostToolUse", "Stop"):
        commands = [[str(script), "hook", "claude", event] for script in (current, SCRIPT)]
        bare, *both = _timed([BARE, *commands], given, environment)
        for taken, script in zip(both, ("current start script", "start script of .venv"), strict=True):
            starts = f"python -c pass: {_both(bare)}; p95 is {p95(taken) / p95(bare):.2f} starts, aim under 2"
            name = f"{event}, server {state}, {script}"
            table.add(name, _both(taken), starts, median(taken) / median(bare), aim)


def _furnish(folder: Path) -> None:
    environment = _environment(folder / "data")
    for words in (
        ("agents", "register", "Ada"),
        ("agents", "register", "Ben"),
        ("reservations", "reserve", "docs/**", "--as", "Ada"),
        ("mail", "send", "--as", "Ada", "--to", "Ben", "-s", "s", "b"),
    ):
        subprocess.run(postroom(*words), check=True, capture_output=True, env=environment, cwd=folder)


def main() -> None:
    """Print the table."""
    table = Table("Hooks: the whole process of one call")
    bare, least = _timed([BARE, MINIMAL_PROCESS], b"", os.environ)
    ratio = median(least) / median(bare)
    table.add("python -I -S -c pass", _both(least), f"python -c pass: {_both(bare)}", ratio)
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as name:
        folder = Path(name)
        given = json.dumps({**EDIT, "cwd": name}).encode()
        _rows(table, folder, given, "never started", "p95 under 50 ms")
        server = start(folder / "data")
        try:
            _furnish(folder)
            _rows(table, folder, given, "up", "p95 under 100 ms")
        finally:
            server.kill()  # so that its note stays, as after a crash
            server.wait(PATIENCE)
        _rows(table, folder, given, "killed", "p95 under 50 ms")


if __name__ == "__main__":
    main()
