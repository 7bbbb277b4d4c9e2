"""Reports the progress of long work to a watcher, if there is one.

A caller sets the watcher for the duration of a call, and all code within the call reports to this watcher.
Tasks and threads that asyncio starts inherit the watcher of their creator. To pass the watcher to other
threads, call `here`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

FIRST_LINE: Final = 2.0
"""The time in seconds before the first line is written."""
NEXT_LINE: Final = 5.0


class Watcher(Protocol):
    """Receives progress reports.

    Calls are frequent, come from any thread, and must return quickly.
    """

    def __call__(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Record the current work and progress.

        `done` and `total` are 0 if unknown.
        """
        ...


class Lines:
    """Writes progress reports as lines: the first after two seconds, then one every five seconds."""

    def __init__(self, write: Callable[[str], object], seconds: Callable[[], float]) -> None:
        """Set the function that writes a line, and a monotonic clock in seconds."""
        self._write, self._seconds = write, seconds
        self._began = seconds()
        self._due = self._began + FIRST_LINE

    def __call__(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Write a progress line if enough time has passed since the last line."""
        if (now := self._seconds()) >= self._due:
            self._due = now + NEXT_LINE
            far = f": {amount(done, total)}" if done or total else ""
            self._write(f"{doing}{far}, after {now - self._began:.0f} s")


def amount(done: int, total: int) -> str:
    """Return the progress as text, or "" if the progress is unknown."""
    if total:
        return f"{done:,} of {total:,} ({min(done * 100 // total, 100)} %)"
    return f"{done:,}" if done else ""


def _nobody(doing: str, done: int = 0, total: int = 0) -> None:
    pass


_WATCHER: ContextVar[Watcher] = ContextVar("watcher", default=_nobody)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Report all progress within the context to a watcher."""
    before = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(before)


def tell(doing: str, done: int = 0, total: int = 0) -> None:
    """Report the current work and progress.

    `done` and `total` are 0 if unknown.
    """
    _WATCHER.get()(doing, done, total)


def here() -> Watcher:
    """Return the current progress watcher, for use in another thread."""
    return _WATCHER.get()
