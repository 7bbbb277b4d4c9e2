"""A terminal in which a client runs as a person runs it; what it draws is read, and kept for a failure."""

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from machine import Bound
from real_clients.home import PATIENCE, Home

_KEPT = 30_000
_PRESSED = b"\n--- keys were pressed\n"
_SIZE = struct.pack("HHHH", 40, 120, 0, 0)
_STILL = 2.0
"""Seconds without anything drawn after which a client is idle."""


class Terminal:
    """A person's input to a client, and the client's screen."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._drawn = b""
        self._news = threading.Condition()

    def type(self, text: str, *, behind: str = "") -> None:
        """Type a line and send it, when the client accepts it: a starting client drops earlier input.

        It does when it has drawn the text `behind` the line, or else when it stops drawing.
        """
        if behind:
            self.await_drawn(behind)
        else:
            self.await_idle()
        os.write(self._descriptor, text.encode())
        if behind:
            self.await_drawn(text)
        self.enter()

    def enter(self) -> None:
        """Press Enter: a busy client may take it for a part of the typed text, and send nothing."""
        os.write(self._descriptor, b"\r")

    def press(self, keys: str) -> None:
        """Press keys that are no text, such as an arrow."""
        os.write(self._descriptor, keys.encode())

    def press_until(self, keys: str, text: str) -> None:
        """Press keys until the client draws a text after them: it drops keys that come while it draws."""
        bound = Bound(PATIENCE)
        with self._news:
            self._drawn += _PRESSED
            while text.encode() not in self._drawn.rpartition(_PRESSED)[2]:
                assert not bound.has_passed(), f"{text!r} was not drawn after {keys!r}: {self}"
                self.press(keys)
                self._news.wait_for(lambda: text.encode() in self._drawn.rpartition(_PRESSED)[2], _STILL)

    def await_drawn(self, text: str) -> None:
        """Wait until the client has drawn a text."""
        bound = Bound(PATIENCE)
        with self._news:
            while text.encode() not in self._drawn:
                assert not bound.has_passed(), f"{text!r} was not drawn: {self}"
                self._news.wait(bound.wait())

    def await_idle(self) -> None:
        """Wait until the client has drawn and is idle: a working client moves the screen."""
        bound = Bound(PATIENCE)
        with self._news:
            while not self._drawn or self._news.wait(timeout=_STILL):
                assert not bound.has_passed(), f"it is not idle in {PATIENCE} s of work\n{self}"
                if not self._drawn:
                    self._news.wait(timeout=1)

    def read_away(self) -> None:
        """Read until the client has ended: an unread client stops."""
        try:
            while piece := os.read(self._descriptor, 1 << 16):
                with self._news:
                    self._drawn = (self._drawn + piece)[-_KEPT:]
                    self._news.notify_all()
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
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, _SIZE)
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
