"""Run as a separate process on a small disk: ends a server, fills the disk, starts the server again.

The log is on that disk too. It prints the behaviour of the second start, and its behaviour once there is space, as JSON.
"""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from machine import PATIENCE

T = TypeVar("T")


def main(disk: Path, how: str) -> None:
    """Print the behaviour of the second start: whether it runs, its health, and its answers."""
    with (disk / "first.log").open("wb") as log:
        server = started(disk, log)
        port = int(awaited(lambda: json.loads((disk / "server.json").read_text())["url"]).rpartition(":")[2])
        awaited(lambda: asked(port, "GET", "/healthz"))
        send_one(port, (disk / "token").read_text().strip())
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
                seen["pages"] = [looked_at(port, path, token) for path in ("/", "/p/s/threads")]
                seen["store"] = ready["checks"]["store"].get("code")
                seen["refused"] = sorted({asked(port, "POST", "/mcp", token)[0] for _ in range(100)})
                filler.unlink()
                file.truncate(0)
                seen["with_room"] = awaited(lambda: writing(port))
                seen["note"] = (
                    awaited(lambda: json.loads((disk / "server.json").read_text()))["pid"] == server.pid
                )
        finally:
            server.kill()
    print(json.dumps(seen))


def send_one(port: int, token: str) -> None:
    """Store a message that searches and threads do not contain when the server starts again."""
    agent = {"project_key": "/s", "program": "test", "model": "test", "name": "Ada"}
    message = {"project_key": "/s", "sender_name": "Ada", "to": ["Ada"], "subject": "s", "body_md": "b"}
    for name, body in (
        ("ensure_project", {"human_key": "/s"}),
        ("register_agent", agent),
        ("send_message", message),
    ):
        status, found = asked(port, "POST", f"/v1/{name}", token, body)
        if status != http.client.OK:
            raise RuntimeError(found)


def looked_at(port: int, path: str, token: str) -> int:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        line.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return line.getresponse().status
    finally:
        line.close()


def writing(port: int) -> int:
    """Return 200 once the server writes; it checks at most once a second."""
    status, _ = asked(port, "GET", "/readyz")
    if status != http.client.OK:
        raise OSError(status)
    return status


def started(disk: Path, log: BinaryIO, *more: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "postroom", "up", "--data-dir", str(disk), *(more or ("--port", "0"))]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def asked(
    port: int, method: str, path: str, token: str = "", body: Mapping[str, object] | None = None
) -> tuple[int, Any]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        content = None if body is None else json.dumps(body)
        line.request(method, path, content, headers | ({"Content-Type": "application/json"} if body else {}))
        answer = line.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        line.close()


def awaited(look: Callable[[], T]) -> T:
    """Return the first result of a poll, within a bound."""
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
