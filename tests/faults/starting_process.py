"""Run as a process of its own on a small disk: ends a server, fills the disk, starts the server again.

The log is on that disk too. What the second start does, and what it does once there is room, is printed as JSON.
"""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")

PATIENCE = 20.0


def main(disk: Path, how: str) -> None:
    """Print what the second start does: whether it runs, what it says of its health, and what it answers."""
    with (disk / "first.log").open("wb") as log:
        server = started(disk, log)
        port = int(awaited(lambda: json.loads((disk / "server.json").read_text())["url"]).rpartition(":")[2])
        awaited(lambda: asked(port, "GET", "/healthz"))
        server.send_signal(signal.Signals[how])
        server.wait()
    (disk / "server.json").unlink(missing_ok=True)
    filler = disk / "filler"
    with (disk / "second.log").open("wb") as log, filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
        server = started(disk, log, "--port", str(port))
        try:
            health, _ = awaited(
                lambda: (0, {}) if server.poll() is not None else asked(port, "GET", "/healthz")
            )
            seen: dict[str, Any] = {"health": health, "exit": server.poll()}
            if health:
                _, ready = asked(port, "GET", "/readyz")
                token = (disk / "token").read_text().strip()
                seen["checks"] = {name: found["state"] for name, found in ready["checks"].items()}
                seen["read"], _ = asked(port, "GET", "/admin/status", token)
                seen["store"] = ready["checks"]["store"].get("code")
                seen["refused"] = sorted({asked(port, "POST", "/mcp", token)[0] for _ in range(100)})
                filler.unlink()
                file.truncate(0)
                seen["with_room"] = awaited(lambda: writing(port))
        finally:
            server.kill()
    print(json.dumps(seen))


def writing(port: int) -> int:
    """Return 200 once the server writes; it looks at most once a second."""
    status, _ = asked(port, "GET", "/readyz")
    if status != http.client.OK:
        raise OSError(status)
    return status


def started(disk: Path, log: BinaryIO, *more: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "postroom", "up", "--data-dir", str(disk), *(more or ("--port", "0"))]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def asked(port: int, method: str, path: str, token: str = "") -> tuple[int, Any]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        line.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = line.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        line.close()


def awaited(look: Callable[[], T]) -> T:
    """Return what a look finds as soon as it can, within a bound."""
    pause = threading.Event()
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return look()
        except (OSError, ValueError):
            if time.monotonic() > until:
                raise
            pause.wait(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
