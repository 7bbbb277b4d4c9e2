"""What the executor grants every program, whatever its runner says."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

READ_BYTES: Final = 64 << 10
"""Taken from a pipe at once; about as much again waits in the reader's buffer."""
ERRORS_KEPT: Final = 8 << 10
"""Bytes of standard error that are kept for a failure's reason."""
ERRORS_SHOWN: Final = 2_000
"""Characters of a program's own words in a failure's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimits:
    """How programs are ended, and how much of what they put out is passed on.

    `grace` lies between the wish to end and the kill, `kill_wait` is how long a kill may take to show.
    Of the output at most `stream_per_second` characters are streamed; all of it counts for the answer, as far
    back as the runner says. A program that puts out more than `most_output_bytes` in all is ended.
    """

    grace: timedelta = timedelta(seconds=5)
    kill_wait: timedelta = timedelta(seconds=5)
    drain: timedelta = timedelta(seconds=2)
    """How long output is awaited that still is in a pipe when no process of the run is left."""
    handshake: timedelta = timedelta(minutes=2)
    """How long a program that is spoken to may take to answer the first thing that it is told."""
    farewell: timedelta = timedelta(seconds=2)
    """How long one has to end its turn and itself, before its processes are asked to end."""
    stream_per_second: int = 256 << 10
    most_output_bytes: int = 8 << 30
