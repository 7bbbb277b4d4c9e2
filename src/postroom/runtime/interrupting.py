"""Runs work that can be ended from outside, by a request with a reason or by a time limit.

A request and a time limit cancel the work at its current `await`, and convert this cancellation to an
exception of this module. If the task itself is cancelled, the cancellation is raised unchanged.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from postroom.concurrency import Tasks
from postroom.contracts.clock import Timer
from postroom.contracts.runs import TerminationReason

T = TypeVar("T")


class Interrupted(Exception):
    """Raised if a run has been asked to stop."""

    def __init__(self, reason: TerminationReason) -> None:
        super().__init__(reason.type)
        self.reason = reason


class TimeUp(Exception):
    """Raised if work was cancelled at the end of its time limit."""


class Stop:
    """A request to stop a run; the reason of the first request counts."""

    def __init__(self) -> None:
        self._reason: TerminationReason | None = None
        self._scopes: set[asyncio.Timeout] = set()

    @property
    def requested(self) -> bool:
        """Whether the run must stop."""
        return self._reason is not None

    def request(self, reason: TerminationReason) -> None:
        """Ask the run to stop, and cancel the work that is executed by the method `run`."""
        if self._reason is None:
            self._reason = reason
            for scope in self._scopes:
                _end(scope)

    def check(self) -> None:
        """Raise an error if the run has been asked to stop.

        Raises:
            Interrupted: The run has been asked to stop.
        """
        if self._reason is not None:
            raise Interrupted(self._reason)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Execute an async function, and cancel the function if the run is asked to stop.

        Raises:
            Interrupted: The run was asked to stop before or during the work.
        """
        self.check()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                return await work()
        except TimeoutError:
            if scope.expired():
                self.check()
            raise
        finally:
            self._scopes.discard(scope)


async def limited(work: Callable[[], Awaitable[T]], milliseconds: int | None, timer: Timer) -> T:
    """Execute an async function within a time limit in milliseconds; None means no limit.

    Raises:
        TimeUp: The work took longer and was cancelled.
    """
    if milliseconds is None:
        return await work()
    scope = asyncio.timeout(None)
    alarm = Tasks("time limit")

    async def ring() -> None:
        await timer.sleep(milliseconds)
        _end(scope)

    try:
        async with scope:
            alarm.start(ring(), name="alarm")
            return await work()
    except TimeoutError as error:
        if scope.expired():
            raise TimeUp from error
        raise
    finally:
        await alarm.close()


def _end(scope: asyncio.Timeout) -> None:
    scope.reschedule(asyncio.get_running_loop().time())
