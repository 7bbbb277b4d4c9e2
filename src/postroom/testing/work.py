"""Work that fails as planned, for tests of programs that run on the mailbox."""

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from postroom.embedded.running import Function, Run


class ProcessDied(BaseException):
    """An exception with which work in a test mailbox simulates that the process dies.

    After the simulated death, nothing is written for active runs, and a new process recovers the runs.
    """


def fails(times: int, then: Function, *, error: Exception | None = None) -> Function:
    """Return work that raises an error in the first `times` executions of each run, and then calls `then`.

    The default error is a ConnectionError, which makes the mailbox retry the run.
    """
    failed = Counter[str]()

    @functools.wraps(then)
    async def work(run: Run) -> object:
        if failed[run.id] < times:
            failed[run.id] += 1
            raise error or ConnectionError(f"failure {failed[run.id]} of {times}, as planned")
        return await then(run)

    return work


class Hanging:
    """Work that runs until the run is cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        """The runs that were cancelled, in order."""
        self._begun: asyncio.Queue[Run] = asyncio.Queue()

    async def __call__(self, run: Run) -> object:
        """Wait until the run is cancelled."""
        self._begun.put_nowait(run)
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(run.id)
            raise

    async def begun(self) -> Run:
        """Wait until the next run starts, and return the run."""
        return await self._begun.get()


def crashes(work: Function, *, in_step: str, times: int = 1) -> Function:
    """Return work whose process dies in the step `in_step`, at the first `times` calls of the step.

    The step is executed, but the result of the step is not stored.
    """
    left = times

    @functools.wraps(work)
    async def dying(run: Run) -> object:
        step = run.step

        async def watched(name: str, function: Callable[..., Any], /, *args: object, **options: Any) -> Any:
            async def last_act(*args: object, **options: object) -> None:
                nonlocal left
                left -= 1
                done = function(*args, **options)
                if inspect.isawaitable(done):
                    await done
                raise ProcessDied(f"in step {name}, as planned")

            return await step(name, last_act if name == in_step and left else function, *args, **options)

        run.step = watched  # type: ignore[method-assign]  # affects only the run of this execution
        return await work(run)

    return dying
