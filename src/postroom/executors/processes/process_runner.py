"""Runs a program under a shim, in a private folder, until its last process has ended.

start ─▶ exits by itself ───────────────▶ its other processes are ended ─▶ the rest of its output is read
   └─▶ must stop ─▶ gets a short time ─▶─┘
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from postroom.concurrency import SystemTimer, Tasks, in_thread, within
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Clock, SystemClock, Timer, milliseconds
from postroom.contracts.errors import CommandNotEnded, ConfigError, StaleClaim
from postroom.contracts.executor import RunAccess
from postroom.contracts.files import ChatFile
from postroom.contracts.messages import Json
from postroom.contracts.runners import Runner
from postroom.executors.processes.active import ActiveRun, StopReason
from postroom.executors.processes.connecting import CONNECTING, NO_CONNECTION, Connection
from postroom.executors.processes.output import READ_BYTES, CommandLimits, Control, Output, Tail
from postroom.executors.processes.starting import (
    CLOCK,
    Launch,
    Launcher,
    Started,
    child_environment,
    private_files,
    started,
    write_private,
)
from postroom.log import get_logger
from postroom.ports import RunControl

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")


def own_process(programs: Path) -> dict[str, Json]:
    """Return facts by which other servers recognise this process; `programs` is the folder of its runs."""
    return {"machine": _machine(), "pid": os.getpid(), "programs": str(programs)}


def is_gone(about: Mapping[str, Json]) -> bool:
    """Return whether the process that said so of itself has surely ended, with all its programs.

    Return False for a process of another machine, and if another process now has its pid. Blocks.
    """
    machine, pid, programs = about.get("machine"), about.get("pid"), about.get("programs")
    if not machine or machine != _machine() or not isinstance(pid, int) or not isinstance(programs, str):
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        state = b"X"
    return state in (b"Z", b"X") and not has_programs(Path(programs))


def _machine() -> str:
    """Return a text that identifies this machine and its present start, within which pids are unique."""
    try:
        return f"{_BOOT_ID.read_text().strip()} {_NAMESPACE.readlink()}"
    except OSError:  # another system than Linux: its leases end by themselves
        return ""


_LOG = get_logger(__name__)
_FOLDER: Final = ".run"
_LOCK: Final = "lock"
_SETTINGS: Final = "settings"
_LOOK_AGAIN_MS: Final = 50
_CONTINUED_MS: Final = 1_000
"""How long a shim that was stopped, and is continued, may take to kill the processes of its run."""
_MARGIN_SECONDS: Final = 1.0
"""The time that the server itself has to stop its programs, before their shims do."""


class ProcessRunner:
    """Starts and watches the programs of one server; its executors share it."""

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str],
        clock: Clock | None = None,
        timer: Timer | None = None,
        limits: CommandLimits | None = None,
        platform: str = sys.platform,
    ) -> None:
        """Start and write nothing yet. `environment` is the server's.

        Raises:
            ConfigError: The folder is not absolute.
        """
        if not folder.is_absolute():
            raise ConfigError("programs as agents need an absolute folder", value=str(folder))
        self.folder, self.server = folder, dict(environment)
        self.clock, self.timer = clock or SystemClock(), timer or SystemTimer()
        self.limits = limits or CommandLimits()
        self.launcher = Launcher(environment, platform)
        self.controls: set[Control] = set()
        """The sockets to the shims of all programs that run here."""
        self.until: float | None = None
        """The instant at which another server can begin the runs of this one; None if no other server can."""

    def hold(self, duration: int) -> None:
        """Move the deadline of all programs to this many milliseconds from now: then their shims kill them.

        A frozen server cannot stop its programs, and another server will begin their runs again.
        """
        self.until = time.clock_gettime(CLOCK) + duration / 1_000 + _MARGIN_SECONDS
        for control in self.controls:
            control.say(f"hold {self.until:.3f}")

    @asynccontextmanager
    async def folder_of(self, run_id: str) -> "AsyncIterator[RunFolder]":
        """Make the private folder of a run, for one execution at a time, and remove it after the block.

        Raises:
            CommandNotEnded: Processes of an earlier execution of the run are still there.
            CommandNotStarted, CommandBusy: The folder cannot be made.
        """
        name = hashlib.sha256(run_id.encode("utf-8", "replace")).hexdigest()[:32]
        folder, waited = RunFolder(self.folder / f"{name}{_FOLDER}"), 0
        try:
            while not await in_thread(folder.take):
                if waited >= milliseconds(self.limits.grace + self.limits.kill_wait):
                    raise CommandNotEnded(
                        "processes of an earlier execution of this run have not ended", value=run_id
                    )
                await self.timer.sleep(_LOOK_AGAIN_MS)
                waited += _LOOK_AGAIN_MS
            yield folder
        finally:
            await in_thread(folder.release)

    def remove_left(self) -> None:
        """Remove the folders of runs that an earlier server was executing. Blocks; call it before any run."""
        for path in self.folder.glob(f"*{_FOLDER}"):
            if not is_locked(path):
                shutil.rmtree(path, ignore_errors=True)


class RunFolder:
    """The private folder of a run, whose lock one execution has at a time. The methods block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: int | None = None
        """The descriptor that holds the lock. Each shim has a copy, and so holds the lock until it ends."""
        self.is_in_use = False
        """Whether processes are left that could not be ended."""

    def take(self) -> bool:
        """Make the folder and take its lock; return False if another execution of the run has it.

        Raises:
            CommandNotStarted, CommandBusy: The folder cannot be made.
        """
        with private_files():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.parent.chmod(0o700)
            self.path.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self.lock = lock
        return True

    def release(self) -> None:
        """Remove the folder, if this execution has its lock and leaves no process."""
        if self.lock is not None:
            os.close(self.lock)
            if not self.is_in_use:
                shutil.rmtree(self.path, ignore_errors=True)


def has_programs(folder: Path) -> bool:
    """Return whether any run of a server has processes, by the server's folder; True if that is not known."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a glob hides errors
        return any(is_locked(folder / name) for name in names if name.endswith(_FOLDER))
    except FileNotFoundError:
        return not folder.parent.is_dir()
    except OSError:
        return True


def is_locked(path: Path) -> bool:
    """Return whether an execution of a run still has processes, by the private folder of the run."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A run for a program to execute; `told` goes into its environment, `access` is to our server."""

    activation: RunActivation
    control: RunControl
    active: ActiveRun
    folder: RunFolder
    runner: Runner
    sink: EventSink
    told: Mapping[str, str]
    access: RunAccess | None = None
    received: tuple[tuple[ChatFile, Path], ...] = ()
    """The files of its messages, with their paths for the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """The end of a program.

    Attributes:
        code: The exit code, negative for a signal; None if the program could not be ended.
        taken: The number of bytes of its output, with standard error.
        left: Processes that could not be ended.
        is_late: Whether the program was killed at its deadline, because another server could start its run
        from that time on.
    """

    code: int | None
    stopped: StopReason | None
    taken: int
    left: tuple[int, ...] = ()
    is_late: bool = False


class Talk(Protocol):
    """Handles the output of a program and writes to it."""

    async def begin(self, stdin: IO[bytes] | None) -> None:
        """Start the conversation with a program that has just been started, by its pipe if there is one."""
        ...

    async def take(self, chunk: bytes) -> None:
        """Take a piece of output."""
        ...

    async def part(self, gone: asyncio.Event) -> None:
        """Ask a program to finish before its processes are ended; return within a bound."""
        ...

    async def end(self) -> None:
        """Release the program: none of its processes is left, or they could not be ended."""
        ...


class Program:
    """Starts a run's program and watches it."""

    def __init__(
        self, process_runner: ProcessRunner, work: Work, variables: Mapping[str, str] | None = None
    ) -> None:
        """Make the program's environment; the runner's own variables win over `variables`."""
        self._with, self._work = process_runner, work
        access = {} if work.access is None else work.access.variables()
        names = {
            "POSTROOM_THREAD": work.activation.thread_id,
            "POSTROOM_RUN": work.activation.run_id or "",
            "POSTROOM_DISPATCH": work.activation.trace.dispatch_id or "",
        }
        told = {**access, **work.told, **names}
        self.environment = child_environment(work.runner, process_runner.server, told, variables or {})
        self._connection = NO_CONNECTION
        self._heard_at = self._taken = 0

    async def connect(self) -> Connection:
        """Connect the client to our server for this run; return the words that its command needs for that."""
        access, connect = self._work.access, CONNECTING.get(self._work.runner.recipe)
        if access is not None and connect is not None:
            folder = self._work.folder.path / _SETTINGS
            self._connection = await asyncio.to_thread(connect, access, self.environment, folder)
            self.environment.update(self._connection.variables)
        return self._connection

    async def run(self, launch: Launch, talk: Talk, errors: Tail) -> ProgramEnd | None:
        """Run the program until none of its processes is left, or the rest could not be ended.

        Return None if the run was stopped before the start. Do not cancel this: stop the program by the
        active run's `stop`.

        Raises:
            CommandNotStarted, PromptTooLong, CommandBusy: It was not started; nothing of it is left.
            StaleClaim: The shim killed the program at its deadline; another server may have the claim.
        """
        if self._work.active.stop.is_ending:
            return None
        program = await asyncio.to_thread(self._started, launch)
        control, tasks = Control(), Tasks("command")
        try:
            control.data_received(program.said)
            await asyncio.get_running_loop().create_unix_connection(lambda: control, sock=program.control)
            self._with.controls.add(control)
            if self._with.until is not None:  # it may have moved meanwhile
                control.say(f"hold {self._with.until:.3f}")
            ended = await self._watched(program, control, tasks, talk, errors)
        finally:  # also if the event loop ends: what still runs is killed
            self._with.controls.discard(control)
            control.close()
            program.close()
            await tasks.close()
        self._work.folder.is_in_use = bool(ended.left)
        if ended.left:
            _LOG.error("command.processes_left", run_id=self._work.active.identity.run_id, pids=ended.left)
        elif ended.is_late:
            raise StaleClaim("the program was ended: its server was suspended, or could not renew the claim")
        return ended

    def _started(self, launch: Launch) -> Started:
        folder, connection = self._work.folder, self._connection
        assert folder.lock is not None  # noqa: S101 - an execution of a run has it
        with private_files():
            for name, content in launch.files.items():
                write_private(folder.path / name, content)
            if connection.files:
                connection.write(folder.path / _SETTINGS)
        return started(
            launch, self._with.launcher, folder=folder.path, lock=folder.lock, until=self._with.until
        )

    async def _watched(
        self, program: Started, control: Control, tasks: Tasks, talk: Talk, errors: Tail
    ) -> ProgramEnd:
        limits, timer, stop = self._with.limits, self._with.timer, self._work.active.stop
        self._heard_at = self._with.clock.now()
        pipes = await Output.of(program.stdout), await Output.of(program.stderr)
        reading = tasks.start(self._read(pipes[0], talk), name="output")
        readers = (reading, tasks.start(self._read(pipes[1], errors), name="errors"))
        reading.add_done_callback(lambda task: _has_failed(task) and stop.ask(StopReason.BROKEN))
        await talk.begin(program.stdin)
        tasks.start(self._time_out(), name="time-out")
        if self._work.runner.idle_timeout is not None:
            tasks.start(self._idle_out(milliseconds(self._work.runner.idle_timeout)), name="idle time-out")
        exited = tasks.start(control.exited.wait(), name="exit")
        asked = tasks.start(stop.asked(), name="stop")
        await asyncio.wait((exited, asked), return_when=asyncio.FIRST_COMPLETED)
        stopped = None if control.exited.is_set() else stop.reason
        is_late = control.is_late and stopped is not StopReason.CANCELLED
        stop.settle()  # from here on it ends by itself, or for the reason that was first
        if stopped is not None:
            await talk.part(control.exited)
        grace = min(limits.grace, limits.leftover_grace) if stopped is None else limits.grace
        for wish, most in (("end", grace), ("kill", limits.kill_wait)):
            if not control.gone.is_set():
                control.say(wish)
                await within(control.gone.wait(), milliseconds(most), timer)
        if not (control.gone.is_set() or control.left):  # the program may have stopped its shim
            await asyncio.to_thread(self._with.launcher.close)  # which continues the shim
            await within(control.gone.wait(), min(milliseconds(limits.kill_wait), _CONTINUED_MS), timer)
        left = () if control.gone.is_set() else control.left or (program.pid,)
        if left or control.is_lost:  # the shim was killed, or is frozen
            with suppress(OSError):
                os.killpg(program.pid, signal.SIGKILL)
        if not all(reader.done() for reader in readers):  # a process that is left may hold a pipe open
            await within(asyncio.wait(readers), milliseconds(limits.drain), timer)
        for reader, pipe in zip(readers, pipes, strict=True):
            reader.cancel()
            await pipe.close()
        await talk.end()
        stopped = StopReason.BROKEN if _has_failed(reading) else stopped
        code = -signal.SIGKILL if control.is_lost and control.code is None else control.code
        is_late = is_late and code != 0
        return ProgramEnd(code=code, stopped=stopped, taken=self._taken, left=left, is_late=is_late)

    async def _read(self, pipe: Output, to: Talk | Tail) -> None:
        while chunk := await pipe.reader.read(READ_BYTES):
            self._heard_at = self._with.clock.now()
            self._taken += len(chunk)
            if isinstance(to, Tail):
                to.add(chunk)
            else:
                await to.take(chunk)
            if self._taken > self._with.limits.most_output_bytes:
                self._work.active.stop.ask(StopReason.FLOODED)

    async def _time_out(self) -> None:
        await self._with.timer.sleep(milliseconds(self._work.runner.timeout))
        self._work.active.stop.ask(StopReason.TIMED_OUT)

    async def _idle_out(self, most: int) -> None:
        while (left := self._heard_at + max(most, 1) - self._with.clock.now()) > 0:
            await self._with.timer.sleep(min(left, most))  # a clock that is turned back adds nothing
        self._work.active.stop.ask(StopReason.IDLE)


def _has_failed(task: "asyncio.Task[None]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
