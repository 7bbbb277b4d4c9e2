"""A terminal in which a client runs as a person runs it; what it draws is read, and kept for a failure."""

import os
import pty
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from real_clients.home import Home

_KEPT = 3_000


class Terminal:
    """What a person types to a client, and what it has drawn."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._drawn = b""

    def type(self, text: str) -> None:
        """Type a line and send it."""
        os.write(self._descriptor, text.encode())
        os.write(self._descriptor, b"\r")

    def read_away(self) -> None:
        """Read until the client has ended: one that nobody reads stops."""
        try:
            while piece := os.read(self._descriptor, 1 << 16):
                self._drawn = (self._drawn + piece)[-_KEPT:]
        except OSError:  # the client has ended
            return

    def __str__(self) -> str:
        return f"--- the end of what it drew\n{self._drawn.decode(errors='replace')}"


@contextmanager
def at_a_terminal(home: Home, words: Sequence[str]) -> Iterator[Terminal]:
    """Start a client in the project as a person does, and end it."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(home.project)
        os.execvpe(words[0], list(words), home.environment)
    terminal = Terminal(descriptor)
    reader = threading.Thread(target=terminal.read_away, daemon=True)
    reader.start()
    try:
        yield terminal
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        reader.join()
        os.close(descriptor)
