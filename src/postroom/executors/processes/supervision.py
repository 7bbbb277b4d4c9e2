"""Watches one program from its start to the end of its last process.

    reads output ─▶ exits by itself ──────────────▶ all its processes are ended ─▶ rest of output ─▶ reaped
               └─▶ is to stop ─▶ is told so, briefly ─▶┘

However the wait ends, no process of its group is left and no descriptor stays open.
"""

import asyncio
import os
import subprocess
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer, milliseconds
from postroom.contracts.runners import Runner
from postroom.executors.processes.active import Stop, StopReason
from postroom.executors.processes.ending import end_all, told_by
from postroom.executors.processes.limits import READ_BYTES, CommandLimits
from postroom.executors.processes.machine import Machine, Seen, Wanted, descriptor_of
from postroom.executors.processes.output import Tail
from postroom.executors.processes.pipes import Pipe, reading


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """How a program ended; `code` is negative for a signal, None when it could not be ended."""

    code: int | None
    stopped: StopReason | None
    left: tuple[Seen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a program is watched with."""

    runner: Runner
    limits: CommandLimits
    clock: Clock
    timer: Timer
    machine: Machine
    marks: tuple[tuple[str, str], ...]


class Talk(Protocol):
    """Handles the output of a program and writes to it."""

    @property
    def taken(self) -> int:
        """The number of bytes of output so far."""
        ...

    async def begin(self, process: "subprocess.Popen[bytes]") -> None:
        """Start the conversation; the program has just been started."""
        ...

    async def take(self, chunk: bytes) -> None:
        """Take a piece of output."""
        ...

    async def part(self, gone: asyncio.Event) -> None:
        """Ask a program to finish before its processes are ended; returns within a bound."""
        ...

    async def end(self) -> None:
        """Release the program: none of its processes is left, or they could not be ended."""
        ...


class Supervision:
    """Watches one program that was started."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        watch: Watch,
        stop: Stop,
        *,
        talk: Talk,
        errors: Tail,
    ) -> None:
        self._process = process
        self._watch = watch
        self._stop = stop
        self._talk = talk
        self._errors = errors
        self._heard_at = watch.clock.now()

    async def end(self) -> ProgramEnd:
        """Wait until none of its processes is left or the rest could not be ended."""
        tasks = Tasks("command")
        with ExitStack() as opened:
            opened.callback(self._kill_at_last)
            try:
                return await self._watched(tasks, opened)
            finally:
                await tasks.close()

    async def _watched(self, tasks: Tasks, opened: ExitStack) -> ProgramEnd:
        exited = _exit_of(self._process, opened)
        platform = self._watch.machine.platform
        assert self._process.stdout is not None and self._process.stderr is not None  # noqa: S101, PT018 - pipes were asked for
        output = await reading(self._process.stdout, platform=platform)
        errors = await reading(self._process.stderr, platform=platform)
        readers = (
            tasks.start(self._read_output(output), name="output"),
            tasks.start(self._read_errors(errors), name="errors"),
        )
        await self._talk.begin(self._process)
        self._begin_limits(tasks)
        gone = tasks.start(_wait(exited), name="exit")
        asked = tasks.start(self._stop.asked(), name="stop")
        await asyncio.wait((gone, asked), return_when=asyncio.FIRST_COMPLETED)
        stopped = None if exited.is_set() else self._stop.reason
        self._stop.settle()  # from here on it ends by itself, or for the reason that was first
        if not exited.is_set():
            await self._talk.part(exited)
        watch = self._watch
        wanted = Wanted(leader=self._process.pid, variables=watch.marks)
        _, left = await end_all(watch.machine, wanted, watch.limits, watch.timer)
        if not left and not await self._has_exited(tasks, gone):
            left = (Seen(pid=self._process.pid),)
        await self._drain(tasks, readers, (output, errors))
        if _has_failed(readers[0]):
            stopped = StopReason.BROKEN
        return ProgramEnd(code=self._process.poll(), stopped=stopped, left=left)

    async def _has_exited(self, tasks: Tasks, gone: "asyncio.Task[None]") -> bool:
        """Wait for the program itself; kill its group when it was not seen among the processes."""
        if gone.done():
            return True
        alarm = tasks.start(self._watch.timer.sleep(milliseconds(self._watch.limits.kill_wait)), name="exit")
        self._watch.machine.kill_group(self._process.pid)
        await asyncio.wait((gone, alarm), return_when=asyncio.FIRST_COMPLETED)
        return gone.done()

    async def _drain(
        self,
        tasks: Tasks,
        readers: "tuple[asyncio.Task[None], asyncio.Task[None]]",
        pipes: tuple[Pipe, Pipe],
    ) -> None:
        """Read the rest of the pipes for a bounded time: a process that is left may hold them open."""
        alarm = tasks.start(self._watch.timer.sleep(milliseconds(self._watch.limits.drain)), name="drain")
        both = tasks.start(_both(readers), name="end of output")
        await asyncio.wait((alarm, both), return_when=asyncio.FIRST_COMPLETED)
        for reader in readers:
            reader.cancel()
        for pipe in pipes:
            await pipe.close()
        await self._talk.end()

    def _begin_limits(self, tasks: Tasks) -> None:
        runner = self._watch.runner
        tasks.start(self._time_out(milliseconds(runner.timeout)), name="time-out")
        if runner.idle_timeout is not None:
            tasks.start(self._idle_out(max(milliseconds(runner.idle_timeout), 1)), name="idle time-out")

    async def _time_out(self, most_ms: int) -> None:
        await self._watch.timer.sleep(most_ms)
        self._stop.ask(StopReason.TIMED_OUT)

    async def _idle_out(self, most_ms: int) -> None:
        while (left := self._heard_at + most_ms - self._watch.clock.now()) > 0:
            await self._watch.timer.sleep(min(left, most_ms))  # a clock that is turned back adds nothing
        self._stop.ask(StopReason.IDLE)

    async def _read_output(self, pipe: Pipe) -> None:
        is_whole = False
        try:
            while chunk := await pipe.read(READ_BYTES):
                self._heard_at = self._watch.clock.now()
                await self._talk.take(chunk)
                self._refuse_flood()
            is_whole = True
        finally:
            if not is_whole:  # nobody reads any more: it would wait for ever
                self._stop.ask(StopReason.BROKEN)

    async def _read_errors(self, pipe: Pipe) -> None:
        while chunk := await pipe.read(READ_BYTES):
            self._heard_at = self._watch.clock.now()
            self._errors.add(chunk)
            self._refuse_flood()

    def _refuse_flood(self) -> None:
        if self._talk.taken + self._errors.total > self._watch.limits.most_output_bytes:
            self._stop.ask(StopReason.FLOODED)

    def _kill_at_last(self) -> None:
        """Leave nothing running when the wait was interrupted, as by the end of the event loop."""
        machine = self._watch.machine
        if self._process.poll() is None:
            machine.kill_group(self._process.pid)
        if machine.platform == "win32":  # the threads that have the pipes close them
            return
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _exit_of(process: "subprocess.Popen[bytes]", opened: ExitStack) -> asyncio.Event:
    """Return an event that is set when the process has ended; its pid is valid until it is reaped."""
    loop = asyncio.get_running_loop()
    descriptor = descriptor_of(process.pid)
    if descriptor is None:
        return _exit_by_thread(process, loop)
    opened.callback(os.close, descriptor)
    return told_by(loop, descriptor, opened)


def _exit_by_thread(process: "subprocess.Popen[bytes]", loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    event = asyncio.Event()

    def wait() -> None:
        process.wait()
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(event.set)

    threading.Thread(target=wait, name=f"exit of {process.pid}", daemon=True).start()
    return event


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _has_failed(task: "asyncio.Task[None]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


async def _both(tasks: "tuple[asyncio.Task[None], ...]") -> None:
    await asyncio.wait(tasks)
