"""How far long work is: told to who watches it, and to nobody where nobody does.

Whoever watches says so around the call; what is called tells it, however deep below. Tasks and threads of
asyncio have the watcher of where they were begun; for other threads `here` hands it over.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

FIRST_LINE: Final = 2.0
"""Seconds that work takes before a line is written of it."""
NEXT_LINE: Final = 5.0


class Watcher(Protocol):
    """Takes note of how far work is. It is called from any thread, and often: it must be quick."""

    def __call__(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Take note of what is being done, and how much of how much; 0 of 0 where nobody knows."""
        ...


class Lines:
    """Writes how far work is as lines: the first when it has taken two seconds, then one each five."""

    def __init__(self, write: Callable[[str], object], seconds: Callable[[], float]) -> None:
        """`seconds` is a clock that only goes forward."""
        self._write, self._seconds = write, seconds
        self._began = seconds()
        self._due = self._began + FIRST_LINE

    def __call__(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Write a line when one is due."""
        if (now := self._seconds()) >= self._due:
            self._due = now + NEXT_LINE
            far = f": {amount(done, total)}" if done or total else ""
            self._write(f"{doing}{far}, after {now - self._began:.0f} s")


def amount(done: int, total: int) -> str:
    """Return how much of how much in words; "" where nobody knows."""
    if total:
        return f"{done:,} of {total:,} ({min(done * 100 // total, 100)} %)"
    return f"{done:,}" if done else ""


def _nobody(doing: str, done: int = 0, total: int = 0) -> None:
    pass


_WATCHER: ContextVar[Watcher] = ContextVar("watcher", default=_nobody)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Have all that is done within told to a watcher."""
    before = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(before)


def tell(doing: str, done: int = 0, total: int = 0) -> None:
    """Say what is being done, and how much of how much; 0 of 0 where nobody knows."""
    _WATCHER.get()(doing, done, total)


def here() -> Watcher:
    """Return who watches here, for work that another thread does."""
    return _WATCHER.get()
