"""Progress of long work, reported to a watcher if there is one.

A caller sets the watcher for the duration of a call, and all code below that call reports to it. Tasks and
threads that asyncio starts inherit the watcher of their creator; to pass it to other threads, call `here`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

FIRST_LINE: Final = 2.0
"""Seconds of work before the first line is written."""
NEXT_LINE: Final = 5.0


class Watcher(Protocol):
    """Receives progress. It is called often and from any thread, so it must be quick."""

    def __call__(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Record the current work and how much of the total is done; both numbers are 0 if unknown."""
        ...


class Lines:
    """Writes progress as lines: the first after two seconds, then one every five seconds."""

    def __init__(self, write: Callable[[str], object], seconds: Callable[[], float]) -> None:
        """`seconds` is a monotonic clock."""
        self._write, self._seconds = write, seconds
        self._began = seconds()
        self._due = self._began + FIRST_LINE

    def __call__(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Write a line if one is due."""
        if (now := self._seconds()) >= self._due:
            self._due = now + NEXT_LINE
            far = f": {amount(done, total)}" if done or total else ""
            self._write(f"{doing}{far}, after {now - self._began:.0f} s")


def amount(done: int, total: int) -> str:
    """Return the progress as text; "" if it is unknown."""
    if total:
        return f"{done:,} of {total:,} ({min(done * 100 // total, 100)} %)"
    return f"{done:,}" if done else ""


def _nobody(doing: str, done: int = 0, total: int = 0) -> None:
    pass


_WATCHER: ContextVar[Watcher] = ContextVar("watcher", default=_nobody)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Report all progress inside the context to a watcher."""
    before = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(before)


def tell(doing: str, done: int = 0, total: int = 0) -> None:
    """Report the current work, and how much of the total is done; 0 of 0 if unknown."""
    _WATCHER.get()(doing, done, total)


def here() -> Watcher:
    """Return the current watcher, to pass it to work in another thread."""
    return _WATCHER.get()
