"""An event loop with virtual time, in which a seed decides the order of the servers.

    timers ──due──▶ ready callbacks of each process ──the seed picks a process──▶ one turn of that process

A *process* stands for one server. Callbacks of one process keep their order, as asyncio promises. The seed decides
which process has the next turn. When no process is ready, time jumps to the next timer. A frozen process has no
turns until it thaws. A dead process never has a turn again, and its `finally` blocks do not run.
"""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from itertools import count
from random import Random
from typing import Any

START_MS = 1_700_000_000_000
"""The instant at which every world begins, in milliseconds since the epoch."""


class Turn:
    """A callback; a plain `asyncio.Handle` costs three times as much."""

    __slots__ = ("args", "callback", "cancelled_at_once", "context", "when_ms")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Any, when_ms: int
    ) -> None:
        self.callback, self.args, self.when_ms = callback, args, when_ms
        self.context = copy_context() if context is None else context
        self.cancelled_at_once = False

    def cancel(self) -> None:
        """Do not call back."""
        self.cancelled_at_once = True

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self.cancelled_at_once

    def when(self) -> float:
        """Return when it calls back, in seconds since the world began."""
        return self.when_ms / 1000


class Process:
    """A server as the loop sees it: it can freeze and die by itself, and its clock is its own."""

    def __init__(self, name: str, skew_ms: int = 0) -> None:
        self.name = name
        self.skew_ms = skew_ms
        """How many milliseconds its clock is ahead of the world."""
        self.frozen_until = 0
        self.is_dead = False
        self.ready: deque[Turn] = deque()
        self.left_behind: list[object] = []
        """The objects that it waited for when it died: if they were freed, its `finally` blocks would run."""

    def die(self, loop: "SimulatedLoop") -> None:
        """Do nothing more. The tasks of the process are kept, so that none of its `finally` blocks run."""
        self.is_dead = True
        loop.processes.remove(self)


class Stuck(Exception):
    """No callback is ready and no timer is set: every task waits for an event that never comes."""


class _Numbered:
    """Give futures and tasks the same hash in every run: asyncio keeps them in sets."""

    _numbers = count(1)
    _number = 0

    def __hash__(self) -> int:
        if not self._number:
            self._number = next(_Numbered._numbers)
        return self._number


class SimulatedFuture(_Numbered, asyncio.Future):
    """A future with a number."""


class SimulatedTask(_Numbered, asyncio.Task):
    """A task with a number."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of one world."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.ms = 0
        """Milliseconds since the world began."""
        self.turns = 0
        self.outside = Process("outside")
        """Callers, the database and the books: they never freeze and never die."""
        self.current = self.outside
        self.processes = [self.outside]
        self.is_over = False
        self.digest = 0
        """A hash of the order of all turns: equal digests mean equal runs."""
        self._random = random
        self._timers: list[tuple[int, int, Turn, Process]] = []
        self._order = count()
        _Numbered._numbers = count(1)
        self.set_task_factory(_task)

    def time(self) -> float:
        """Return seconds since the world began."""
        return self.ms / 1000

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        """Call back at an instant, rounded up to a millisecond."""
        return self.call_at_ms(math.ceil(when * 1000 - 1e-6), callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        """Call back after a number of seconds."""
        return self.call_at_ms(self.ms + math.ceil(delay * 1000 - 1e-6), callback, *args, context=context)

    def call_at_ms(
        self, at: int, callback: Any, *args: Any, process: Process | None = None, context: Any = None
    ) -> Turn:
        """Call back at a millisecond of this world, in a process; without one, in the process that asks."""
        at = max(at, self.ms)
        timer = Turn(callback, args, context, at)
        heapq.heappush(self._timers, (at, next(self._order), timer, process or self.current))
        return timer

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        """Call back after the callbacks of the current process that are ready."""
        turn = Turn(callback, args, context, self.ms)
        if not self.is_over:
            self.current.ready.append(turn)
        return turn

    call_soon_threadsafe = call_soon

    def call_in(self, process: Process, callback: Any, *args: Any) -> None:
        """Call back in a process, after its callbacks that are ready."""
        before, self.current = self.current, process
        try:
            self.call_soon(callback, *args)
        finally:
            self.current = before

    def spawn(
        self, process: Process, work: Coroutine[Any, Any, Any], context: Any = None
    ) -> "asyncio.Task[Any]":
        """Start a task in a process."""
        before, self.current = self.current, process
        try:
            return self.create_task(work, context=context)
        finally:
            self.current = before

    async def joined(self, process: Process, work: Coroutine[Any, Any, Any], context: Any = None) -> Any:
        """Return the result of work in another process; the caller stays in its own process."""
        task = self.spawn(process, work, context)
        await self.ended(task)
        return task.result()

    async def ended(self, task: "asyncio.Task[Any]", within_ms: int | None = None) -> None:
        """Return when a task of another process has ended, or at the end of the time."""
        owner, future = self.current, self.create_future()
        task.add_done_callback(lambda _: self.call_in(owner, _finish, future))
        if within_ms is not None:
            self.call_at_ms(self.ms + within_ms, _finish, future)
        await future

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Call the function at once: there are no threads."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:
            future.set_exception(error)
        return future

    def create_future(self) -> Any:
        """Return a future with a number."""
        return SimulatedFuture(loop=self)

    async def passes(self, ms: int) -> None:
        """Return when this many milliseconds have passed."""
        future = SimulatedFuture(loop=self)
        self.call_at_ms(self.ms + ms, _finish, future)
        await future

    def _run_once(self) -> None:
        timers, processes = self._timers, self.processes
        while not self._stopping:
            while timers and timers[0][0] <= self.ms:
                _, _, timer, owner = heapq.heappop(timers)
                if not timer.cancelled_at_once:
                    owner.ready.append(timer)
            able = [one for one in processes if one.ready and one.frozen_until <= self.ms]
            if not able:
                self._jump()
                continue
            process = able[int(self._random.random() * len(able))] if len(able) > 1 else able[0]
            self.current = process
            self.digest = hash((self.digest, self.ms, process.name, len(process.ready)))
            ready = process.ready
            for _ in range(len(ready)):
                turn = ready.popleft()
                if turn.cancelled_at_once:
                    continue
                self.turns += 1
                try:
                    turn.context.run(turn.callback, *turn.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"{turn.callback} failed", "exception": error})
                if self._stopping or process.is_dead or process.frozen_until > self.ms:
                    break
            self.current = self.outside

    def _jump(self) -> None:
        """Move the time to the next timer or thaw."""
        while self._timers and self._timers[0][2].cancelled_at_once:
            heapq.heappop(self._timers)
        coming = [one.frozen_until for one in self.processes if one.ready]
        if self._timers:
            coming.append(self._timers[0][0])
        if not coming:
            raise Stuck
        self.ms = max(self.ms, min(coming))

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no sockets."""

    def _write_to_self(self) -> None:
        """Do nothing: there are no threads."""


def _task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> SimulatedTask:
    task = SimulatedTask(work, loop=loop, **options)
    task._log_destroy_pending = False  # those of a dead server never end
    return task


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class ProcessClock:
    """The clock of one process: the world's time and the skew of the process."""

    def __init__(self, loop: SimulatedLoop, process: Process) -> None:
        self._loop = loop
        self._process = process

    def now(self) -> int:
        """Return the present instant in milliseconds since the epoch."""
        return START_MS + self._loop.ms + self._process.skew_ms
