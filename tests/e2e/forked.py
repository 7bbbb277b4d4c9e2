"""Starts `postroom` by a fork of a process that has loaded it: a start costs a fifth of what a new Python costs.

It runs the code of `python -m postroom`. How a new Python comes to it is seen by the tests of the command
line, of the proxy and of the documentation, which start one.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any


class ForkedProcess:
    """A started `postroom`, with what tests use of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        loaded: tuple[str, ...] = ("postroom.app.serve",),
        within: tuple[str, ...] = (),
        wrong_by: float = 0,
    ) -> None:
        """`loaded` are the modules that the process need not load itself: what a start spends its time on.

        `within` are words that start a program in other surroundings, such as `ip netns exec`. `wrong_by` is by how
        many seconds the wall clock is wrong that Python has there.
        """
        self._parent = _parent(loaded, within)
        order = {
            "arguments": list(arguments),
            "log": str(log),
            "environment": dict(environment),
            "wrong_by": wrong_by,
        }
        self.pid: int = self._parent.ask(order)
        self.returncode: int | None = None
        self._ends = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return how it ended, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            if not select.select([self._ends], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("postroom", timeout or 0.0)
            os.close(self._ends)
            self.returncode = self._parent.ask({"ended": self.pid})
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended: before `wait`, no other process gets its pid."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._ends, number)

    def kill(self) -> None:
        """End it with no chance to tidy up."""
        self.send_signal(signal.SIGKILL)


class _Parent:
    """The process whose children the servers are."""

    def __init__(self, loaded: tuple[str, ...], within: tuple[str, ...]) -> None:
        words = [*within, sys.executable, __file__, *loaded]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._one_at_a_time = threading.Lock()
        atexit.register(self.end)

    def ask(self, order: Mapping[str, Any]) -> int:
        with self._one_at_a_time:
            self._stdin.write(json.dumps(order) + "\n")
            self._stdin.flush()
            return int(self._stdout.readline())

    def end(self) -> None:
        self._stdin.close()
        self._stdout.close()
        self._process.wait()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout


@cache
def _parent(loaded: tuple[str, ...], within: tuple[str, ...]) -> _Parent:
    return _Parent(loaded, within)


def _begin(order: Mapping[str, Any]) -> None:
    """Become a process that was started in that environment, with its output in the log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(nothing)
    os.close(log)
    os.environ.clear()
    os.environ.update(order["environment"])
    if order["wrong_by"]:
        _set_clock_wrong(int(order["wrong_by"] * 1_000_000_000))
    sys.argv[1:] = order["arguments"]


def _set_clock_wrong(by: int) -> None:
    """Move the wall clock of Python's code by nanoseconds.

    Not by `libfaketime`: its 0.9.10 lets `time.sleep` fail with EINVAL, and so every program that is waited for.
    """
    right = time.time_ns
    time.time_ns = lambda: right() + by
    time.time = lambda: time.time_ns() / 1_000_000_000


def _serve() -> int | None:
    """Fork for each order until nobody gives any; in a child, return the exit code of the command."""
    for text in sys.stdin:
        order = json.loads(text)
        if "ended" in order:
            _, status = os.waitpid(order["ended"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
        elif child := os.fork():
            print(child, flush=True)
        else:
            from postroom.cli.main import main

            _begin(order)
            return main()
    return None


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # a child need not look for garbage in what was loaded
    sys.exit(_serve())
