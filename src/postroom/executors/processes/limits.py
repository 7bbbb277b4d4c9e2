"""Limits of every program, whatever its runner says."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

READ_BYTES: Final = 64 << 10
"""Read from a pipe at once; the reader buffers about the same amount again."""
ERRORS_KEPT: Final = 8 << 10
"""Bytes of standard error that are kept for the error message."""
ERRORS_SHOWN: Final = 2_000
"""Characters of a program's output in an error message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimits:
    """How programs are ended, and how much of their output is streamed.

    `grace` is the time between the request to end and the kill, `kill_wait` the time that a kill may take. At
    most `stream_per_second` characters of output are streamed. All of it counts for the answer, up to the
    runner's limit. A program with more than `most_output_bytes` of output in total is ended.
    """

    grace: timedelta = timedelta(seconds=5)
    leftover_grace: timedelta = timedelta(milliseconds=500)
    """The grace of processes that are left when the program itself has exited, if `grace` is not shorter."""
    kill_wait: timedelta = timedelta(seconds=5)
    drain: timedelta = timedelta(seconds=2)
    """How long to wait for output that is still in a pipe when no process of the run is left."""
    handshake: timedelta = timedelta(minutes=2)
    """How long a program may take to answer the first request of its protocol."""
    farewell: timedelta = timedelta(seconds=2)
    """How long a program has to end its turn and exit before its processes get SIGTERM."""
    stream_per_second: int = 256 << 10
    most_output_bytes: int = 8 << 30
