"""Run as a process of its own beside a server: ends the server's programs when it is gone, or stands still.

It is told in lines: `+` and the marker of a program that is about to be started, `-` and that of one that
has ended, or the instant until which all may go on, in seconds of the clock that goes on while the machine
sleeps.
The standard library alone, and nothing of ours: it is to start fast and to be small. Its last word is the
server's pid: while it is there others on the machine see that programs of that server may be left.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

_LOOK_EVERY = 1.0
"""Seconds, at most: while a machine sleeps a wait stands still, and the leases do not."""
_AGAIN_AFTER, _ROUNDS = 0.02, 500


def keep(variable: bytes) -> None:
    """Read what the server says until it is gone; `variable` is where programs have their markers."""
    markers: set[bytes] = set()
    until: float | None = None
    begun = b""
    while True:
        left = None if until is None else until - time.clock_gettime(time.CLOCK_BOOTTIME)
        if left is not None and left <= 0:
            _end(variable, markers)
            until = None
        elif select.select([0], [], [], None if left is None else min(left, _LOOK_EVERY))[0]:
            said = os.read(0, 65_536)
            if not said:
                _end(variable, markers)
                return
            *lines, begun = (begun + said).split(b"\n")
            for line in lines:
                if line[:1] == b"+":
                    markers.add(line[1:])
                elif line[:1] == b"-":
                    markers.discard(line[1:])
                else:
                    until = float(line)


def _end(variable: bytes, markers: set[bytes]) -> None:
    """Kill every process that has one of the markers, and those that they start meanwhile."""
    marked = {variable + b"=" + marker for marker in markers}
    for _ in range(_ROUNDS if marked else 0):
        found = [pid for pid in _processes() if not marked.isdisjoint(_environment(pid))]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # it has ended
        select.select([], [], [], _AGAIN_AFTER)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - names alone, and fast


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is another user's


if __name__ == "__main__":
    keep(os.fsencode(sys.argv[1]))
