"""Has the programs of a server ended when it is killed, or stands still until another may begin them.

A server that is gone, or stopped, can end nothing any more. So a small process beside it does, which is told
what runs and for how long the server is sure that nobody else may run it. On Linux; elsewhere the next start
of the server ends what it left.
"""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from postroom.executors.processes.child_environment import INSTANCE

PROGRAM: Final = Path(__file__).with_name("keeper_process.py")
_GRACE: Final = 1.0
"""Seconds that the server itself has for ending its programs, of those that are left until its leases end."""


def is_ending_programs_of(server: int) -> bool:
    """Say whether the process beside a server, by its pid, is there; it outlives it until no program is left.

    Blocks.
    """
    return any(
        words[-3:-2] and Path(words[-3]).name == PROGRAM.name and words[-1] == str(server)
        for one in psutil.process_iter(["cmdline"])
        if (words := one.info["cmdline"] or [])
    )


class Keeper:
    """The process, which is started with the first program, and what it was told."""

    def __init__(self, *, platform: str = sys.platform) -> None:
        """Keep nothing yet; where the system is another than Linux it does nothing."""
        self._is_able = platform == "linux"
        self._process: subprocess.Popen[bytes] | None = None
        self._instances: set[str] = set()
        self._until = ""
        self._one_at_a_time = threading.Lock()

    def begin(self, instance: str) -> None:
        """Say that a program with this marker is about to be started. Blocks while the process is started.

        Raises:
            OSError: the process cannot be started.
        """
        if not self._is_able:
            return
        with self._one_at_a_time:
            self._instances.add(instance)
            if self._process is None or self._process.poll() is not None:
                self._start()
            else:
                self._say(f"+{instance}\n")

    def end(self, instance: str) -> None:
        """Say that no process of this program is left."""
        with self._one_at_a_time:
            self._instances.discard(instance)
            self._say(f"-{instance}\n")

    def hold(self, milliseconds: int) -> None:
        """Say for how long programs may go on from now, without another word."""
        if self._is_able:
            until = time.clock_gettime(time.CLOCK_BOOTTIME) + milliseconds / 1_000 + _GRACE
            self._until = f"{until:.3f}\n"
            self._say(self._until)

    def close(self) -> None:
        """End the process; what was still told to be at work is ended with it."""
        with self._one_at_a_time:
            process, self._process = self._process, None
            if process is not None:
                assert process.stdin is not None  # noqa: S101 - a pipe was asked for
                process.stdin.close()
                process.wait()

    def _start(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = subprocess.Popen(  # noqa: S603 - no shell; the words are ours
            [sys.executable, "-I", "-S", str(PROGRAM), INSTANCE, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,  # what is sent to the server's group is not for it
        )
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        os.set_blocking(self._process.stdin.fileno(), False)
        self._say("".join([*(f"+{one}\n" for one in sorted(self._instances)), self._until]))

    def _say(self, text: str) -> None:
        """Write; one that has ended is started again with the next program."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                os.write(self._process.stdin.fileno(), text.encode())
