"""What starting costs: server to ready, memory at rest, the command line's help, the stdio entry."""

import json
import resource
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.figures import Table, cpu_of, median, ms, size

ROUNDS = size(5, 1)
PATIENCE = 120.0
"""Seconds within which a server is ready, and has ended, also where much else is at work."""
LIBRARY = """
import asyncio
from postroom import Mailbox
async def answer(run): ...
async def main():
    async with Mailbox.open("memory", answer): ...
asyncio.run(main())
"""


def postroom(*words: str) -> list[str]:
    return [sys.executable, "-m", "postroom", *words]


def _ready(folder: Path) -> bool:
    try:
        url = json.loads((folder / "server.json").read_text())["url"]
        with urllib.request.urlopen(f"{url}/readyz", timeout=1) as answer:
            return answer.status == 200
    except (OSError, ValueError, urllib.error.URLError):
        return False


def start(data_dir: Path) -> subprocess.Popen[bytes]:
    """Start a server on a free port and return when it is ready."""
    words = postroom("up", "--port", "0", "--data-dir", str(data_dir))
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.perf_counter() + PATIENCE
    while not _ready(data_dir):
        if time.perf_counter() > until or server.poll() is not None:
            server.kill()
            raise SystemExit("the server did not become ready")
        time.sleep(0.01)
    return server


def _resident(pid: int) -> int:
    """Return resident memory in bytes, as Linux tells it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _start_once() -> tuple[float, float, int]:
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as name:
        began = time.perf_counter()
        server = start(Path(name))
        try:
            took = time.perf_counter() - began
            used = cpu_of(server.pid)
            time.sleep(1)
            return took, used, _resident(server.pid)
        finally:
            server.terminate()
            server.wait(PATIENCE)


def _run_once(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def _cpu_once(*command: str) -> float:
    """Return the seconds of a processor that a command uses."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).resolve().parents[1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    table = Table("Starting")
    python = median([_run_once(sys.executable, "-c", "pass") for _ in range(ROUNDS)])
    starts = [_start_once() for _ in range(ROUNDS)]
    took = median([seconds for seconds, _, _ in starts])
    table.add(
        "server start to ready", ms(took), f"python itself {ms(python)}", took / python, "under 1,200 ms"
    )
    cpu = median([used for _, used, _ in starts])
    table.add("processor time until then", ms(cpu), "", None, "under 1,200 ms")
    resident = median([memory for _, _, memory in starts]) / 2**20
    table.add("memory at rest", f"{resident:.0f} MB", "", None, "under 90 MB")
    bare = median([_cpu_once(sys.executable, "-c", "pass") for _ in range(ROUNDS)])
    library = median([_cpu_once(sys.executable, "-c", LIBRARY) for _ in range(ROUNDS)])
    table.add(
        "processor time of importing postroom and creating a Mailbox",
        ms(library - bare),
        f"python itself {ms(bare)}",
        None,
        "under 250 ms",
    )
    help_text = median([_run_once(*postroom("--help")) for _ in range(ROUNDS)])
    table.add(
        "postroom --help", ms(help_text), f"python itself {ms(python)}", help_text / python, "under 300 ms"
    )


if __name__ == "__main__":
    main()
