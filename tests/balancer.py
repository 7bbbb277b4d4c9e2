"""A real Caddy with `deploy/Caddyfile` before servers: requests go to them in turn, to those that are ready alone.

It is Debian's package `caddy`, or whatever program of that name is found.
"""

import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from addresses import Address, free_address
from e2e.running import Cut, Line, plain_environment
from machine import PATIENCE

CADDYFILE = Path(__file__).parents[1] / "deploy" / "Caddyfile"


def missing_balancer() -> str | None:
    """Return why no balancer can be tested, or None."""
    return None if shutil.which("caddy") else "no Caddy: install Debian's package `caddy`"


@contextmanager
def balanced(servers: Sequence[Address], folder: Path, *, host: str) -> Iterator[Address]:
    """Run Caddy before several servers, start one of them, and return its address; `host` is the name that servers go by."""
    address = free_address()
    environment = {
        **plain_environment(folder),
        "SITE": f"http://:{address[1]}",
        "SERVERS": " ".join(f"{one}:{port}" for one, port in servers),
    }
    with (folder / "caddy.log").open("wb") as log:
        words = ["caddy", "run", "--adapter", "caddyfile", "--config", str(CADDYFILE)]
        caddy = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log, env=environment)
    try:
        _await_ready(address, host, caddy)
        yield address
    finally:
        caddy.kill()
        caddy.wait()


def _await_ready(address: Address, host: str, caddy: "subprocess.Popen[bytes]") -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.1)):
        assert caddy.poll() is None
        try:
            with Line(address, headers={"Host": host}) as line:
                if line.request("GET", "/readyz").status == 200:
                    return
        except (OSError, Cut):
            pass
        pause.wait(0.1)
    raise AssertionError("Caddy found no server that is ready")
