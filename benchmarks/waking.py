"""How long after a message was accepted its reader's program runs: a real server, client and process.

The program notes the instant at which it runs, which is after its shell was loaded; beside it stands how long
the same program takes when this process starts it itself.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Table, ms, size

ROUNDS = size(200, 2)
PATIENCE = 20.0
NOTE = 'cat > /dev/null; printf "%s\\n" "$(date +%s%N)" >> "$JOURNAL"; echo done'


class Server:
    """A server in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "POSTROOM_DATA_DIR": str(folder / "data"), "HOME": str(folder)}
        self._process: subprocess.Popen[bytes] | None = None
        self._ids = 0
        self.url = self.token = ""

    @contextmanager
    def running(self) -> Iterator["Server"]:
        """Have it run."""
        words = [sys.executable, "-m", "postroom", "up", "--port", "0"]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(words, env=self._environment, stdout=log, stderr=log)
        try:
            note = self.folder / "data" / "server.json"
            await_it(note.exists)
            self.url = json.loads(note.read_text())["url"]
            self.token = (self.folder / "data" / "token").read_text().strip()
            yield self
        finally:
            self._process.terminate()
            self._process.wait(PATIENCE)

    def ask(self, method: str, path: str, body: object) -> dict[str, object]:
        """Send a request and return the answer."""
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        request = urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(), headers=headers, method=method
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            found: dict[str, object] = json.loads(answer.read())
        return found

    def call(self, tool: str, **arguments: object) -> None:
        """Call a tool."""
        self._ids += 1
        call = {"name": tool, "arguments": arguments}
        told = self.ask(
            "POST", "/mcp", {"jsonrpc": "2.0", "id": self._ids, "method": "tools/call", "params": call}
        )
        result = told["result"]
        if not isinstance(result, dict) or result.get("isError"):
            raise SystemExit(f"{tool} was refused: {told}")


def main() -> None:
    """Print the table."""
    table = Table("A message to an idle agent with a runner")
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as name:
        folder = Path(name)
        with Server(folder).running() as server:
            waits = woken(server, folder)
        bare = [started(folder / "bare") for _ in range(ROUNDS)]
    table.add(
        "from the answer to send_message to the program's first line",
        spread(waits),
        f"started by this process: {spread(bare)}",
        None,
        "p95 < 200 ms",
    )


def woken(server: Server, folder: Path) -> list[float]:
    """Send messages one after another and return how long after each its reader's program ran."""
    project, journal = str(folder), folder / "journal"
    server.call("ensure_project", human_key=project)
    for name in ("Ada", "Bo"):
        server.call("register_agent", project_key=project, program="p", model="m", name=name)
    runner = {"argv": ["sh", "-c", NOTE], "env": {"JOURNAL": str(journal)}}
    server.ask("PUT", "/admin/runners", {"project": project, "agent": "Bo", "runner": runner})
    waits = []
    for number in range(1, ROUNDS + 1):
        message = {"to": ["Bo"], "subject": "s", "body_md": "b"}
        server.call("send_message", project_key=project, sender_name="Ada", **message)
        accepted = time.time_ns()
        await_it(lambda number=number: len(noted(journal)) == number)  # type: ignore[misc]
        waits.append((noted(journal)[-1] - accepted) / 1e9)
        threading.Event().wait(0.05)  # the run has ended: the agent is idle again
    return waits


def started(journal: Path) -> float:
    """Start the program here and return how long after that it ran."""
    before = time.time_ns()
    environment = {**os.environ, "JOURNAL": str(journal)}
    subprocess.run(
        ["sh", "-c", NOTE], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    return (noted(journal)[-1] - before) / 1e9


def noted(journal: Path) -> list[int]:
    """Return the instants that were noted, in nanoseconds."""
    return [int(row) for row in journal.read_text().split()] if journal.exists() else []


def await_it(condition: Callable[[], bool]) -> None:
    """Return when something holds."""
    until, pause = time.monotonic() + PATIENCE, threading.Event()
    while not condition():
        if time.monotonic() > until:
            raise SystemExit("it did not happen in time")
        pause.wait(0.002)


def spread(values: Sequence[float]) -> str:
    """Return the median and the slow end."""
    ordered = sorted(values)
    p50, p95 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
    return f"p50 {ms(p50)}, p95 {ms(p95)}, longest {ms(ordered[-1])}"
