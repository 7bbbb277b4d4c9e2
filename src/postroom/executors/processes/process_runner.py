"""Runs a program under a shim, in a private folder, until the last process of the program has ended.

start ─▶ exits by itself ───────────────▶ its other processes are ended ─▶ the rest of its output is read
   └─▶ must stop ─▶ gets a short time ─▶─┘

`started` and `Launcher` start a program through its shim; `find_program` checks whether a program could be
started. All functions of this module block, so call them outside the event loop.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, Protocol

from postroom.concurrency import SystemTimer, Tasks, in_thread, within
from postroom.contracts.activation import RunActivation
from postroom.contracts.agent_events import EventSink
from postroom.contracts.clock import Clock, SystemClock, Timer, milliseconds
from postroom.contracts.errors import (
    CommandBusy,
    CommandError,
    CommandNotEnded,
    CommandNotStarted,
    ConfigError,
    PromptTooLong,
    StaleClaim,
)
from postroom.contracts.executor import RunAccess
from postroom.contracts.files import ChatFile
from postroom.contracts.messages import Json, storable
from postroom.contracts.runners import Runner
from postroom.executors.clients.client import NO_CONNECTION, CodingClient, Connection, write_private
from postroom.executors.processes.active import ActiveRun, StopReason
from postroom.executors.processes.output import READ_BYTES, CommandLimits, Control, Output, Tail
from postroom.log import get_logger
from postroom.ports import RunControl

PASSED: Final = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "SHELL"})
"""The variables that are copied from the server's environment, in addition to every `LC_...` variable."""
MASK: Final = "[masked]"
AGENT: Final = "POSTROOM_AGENT"
_SECRET: Final = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_MIN_LINE: Final = 8
_MIN_BEGIN: Final = 4


def child_environment(
    runner: Runner,
    server: Mapping[str, str],
    told: Mapping[str, str],
    defaults: Mapping[str, str],
) -> dict[str, str]:
    """Return all environment variables for a runner's program.

    Variables in `told` override variables of the runner, and variables of the runner override `defaults`.
    """
    taken = {
        name: value
        for name, value in server.items()
        if name in PASSED or name.startswith("LC_") or name in runner.pass_env
    }
    environment = {name: storable(value).replace("\0", "") for name, value in told.items()}
    return {**taken, **defaults, **runner.env, **environment}


def secrets_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables whose names indicate secrets, longest first.

    Each long line of a multi-line secret is returned as a separate secret.
    """
    secrets: set[str] = set()
    for name, value in environment.items():
        if _SECRET.search(name) and value.strip():
            lines = (line.strip() for line in value.splitlines())
            secrets |= {value, value.strip(), *(line for line in lines if len(line) >= _MIN_LINE)}
    return tuple(sorted(secrets, key=len, reverse=True))


def mask_secrets(text: str, secrets: Iterable[str], *, is_cut: bool = False) -> str:
    """Return a text in which all secrets are masked.

    A part of a secret at the end of the text is masked. If `is_cut` is True, a part at the start is masked.
    """
    values = tuple(secrets)
    if is_cut and any(text in secret for secret in values):
        return MASK
    if is_cut and (length := max((_overlap(secret, text) for secret in values), default=0)):
        text = MASK + text[length:]
    for secret in values:
        text = text.replace(secret, MASK)
    length = max((_overlap(text, secret) for secret in values), default=0)
    return text[:-length] + MASK if length >= _MIN_BEGIN else text


def _overlap(left: str, right: str) -> int:
    most = min(len(left), len(right))
    return next((length for length in range(most, 0, -1) if right.startswith(left[-length:])), 0)


ARGUMENT_BYTES: Final = 128 * 1024
"""The maximum length of an argument on Linux, including the final zero byte.

Other systems only limit the total length of all arguments, and report an error if it is exceeded.
"""
NO_ROOM: Final = {
    *(errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY),
    *(errno.ENOSPC, errno.EDQUOT),
}
"""Errors that may disappear when other programs end or disk space becomes free."""
CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock for deadlines. Programs cannot set it, and on Linux it advances while the machine sleeps."""
_SHIM: Final = str(Path(__file__).with_name("shim.py"))
_LIBRARIES: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_START_SECONDS: Final = 60.0
"""The time that a shim may take to start a program; a fork is slow if memory is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A program to start.

    Attributes:
        words: The program and its arguments.
        stdin: The whole standard input, or None for a pipe that is written to while the program works.
        files: The files to create in the run's private folder, with their contents.
    """

    words: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str] = field(repr=False)
    stdin: bytes | None = field(default=b"", repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A started program.

    Attributes:
        control: The socket to the shim, which kills the program when the socket is closed.
        said: Output of the shim that arrived with its start message.
        stdin: The pipe to the program, if the program was started with a pipe.
    """

    pid: int
    control: socket.socket
    said: bytes
    stdin: IO[bytes] | None
    stdout: IO[bytes]
    stderr: IO[bytes]

    def close(self) -> None:
        """Close all file descriptors and sockets, which kills a running program."""
        self.control.close()
        for end in (self.stdin, self.stdout, self.stderr):
            if end is not None:
                end.close()


class Launcher:
    """A process that forks a shim for each program; the process is started with the first program."""

    def __init__(self, environment: Mapping[str, str], platform: str) -> None:
        self._platform = platform
        self._environment = {name: environment[name] for name in _LIBRARIES if name in environment}
        self._turn = threading.Lock()
        self._line: socket.socket | None = None

    def hand_over(self, ends: Sequence[int]) -> None:
        """Make the launcher fork a shim that inherits the file descriptors in `ends`.

        Raises:
            OSError: The system has no resources for a process, or the new launcher was killed.
        """
        with self._turn:
            if self._line is not None:
                try:
                    socket.send_fds(self._line, [b"+"], ends)
                except OSError:
                    self._line.close()
                else:
                    return
            ours, theirs = socket.socketpair()
            with theirs:
                begun = subprocess.run(  # noqa: S603 - no shell; the command is fixed
                    [sys.executable, "-I", "-S", _SHIM, self._platform, str(CLOCK)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env=self._environment,
                    # Signals to the server's process group must not reach the launcher.
                    start_new_session=True,
                    check=False,
                )
            if begun.returncode != 0:
                ours.close()
                killed = f"the process that starts programs ended with exit code {begun.returncode}"
                raise OSError(errno.EPIPE if begun.returncode < 0 else errno.EAGAIN, killed)
            weakref.finalize(self, ours.close)
            self._line = ours
            socket.send_fds(ours, [b"+"], ends)

    def close(self) -> None:
        """End the launcher process without ending active shims."""
        with self._turn:
            if self._line is not None:
                self._line.close()
                self._line = None


def started(
    launch: Launch, launcher: Launcher, *, folder: Path, lock: int, until: float | None = None
) -> Started:
    """Start a program through a shim, with pipes for the output.

    The shim kills the program at the deadline `until`. `folder` is the private folder of the run. `lock` is
    the file descriptor of the run folder's lock.

    Raises:
        CommandNotStarted: The working folder or the program is missing, or access to it is denied.
        PromptTooLong: The argument is too long for the system.
        CommandBusy: The system has no resources for a process now, or the process that starts programs was
            killed.
    """
    for word in launch.words:
        length = len(storable(word).encode()) + 1
        if length > ARGUMENT_BYTES:
            raise PromptTooLong(
                f"an argument of {length} bytes exceeds the system limit of {ARGUMENT_BYTES} bytes",
                value=length,
            )
        if "\0" in word:
            raise PromptTooLong("the prompt has a zero byte, which an argument cannot contain", value="\\0")
    if not Path(launch.cwd).is_dir():
        raise CommandNotStarted(f"the working folder {launch.cwd!r} is missing", value=launch.cwd)
    try:
        with ExitStack() as ours:
            with ExitStack() as theirs:
                stdin, reads = _stdin(launch.stdin, folder, ours, theirs)
                stdout, writes = _pipe(ours, theirs)
                stderr, complains = _pipe(ours, theirs)
                refused, refuses = socket.socketpair()
                control, shim = socket.socketpair()
                ours.callback(refused.close)
                ours.callback(control.close)
                theirs.callback(refuses.close)
                theirs.callback(shim.close)
                launcher.hand_over((lock, reads, writes, complains, refuses.fileno(), shim.fileno()))
            pid, response = _request_start(control, refused, launch, until)
            refused.close()
            ours.pop_all()
            return Started(pid=pid, control=control, said=response, stdin=stdin, stdout=stdout, stderr=stderr)
    except OSError as error:
        # The error for a program that the system did not start, with the reason.
        program = launch.words[0]
        refusal: CommandError
        if error.errno == errno.E2BIG:
            refusal = PromptTooLong(
                "the arguments and the environment are longer than the system accepts", value=program
            )
        elif isinstance(error, BrokenPipeError | ConnectionResetError):  # the launcher or the shim was killed
            refusal = CommandBusy(
                f"the command {program!r} could not be started at the moment: {error.strerror}", value=program
            )
        elif error.errno in NO_ROOM or isinstance(error, TimeoutError):
            refusal = CommandBusy(
                f"the system lacks resources to start {program!r} now: {error.strerror}", value=program
            )
        else:
            path = launch.environment.get("PATH", os.defpath)
            where = program if os.sep not in program else str(Path(launch.cwd, program))
            full_path = shutil.which(where, path=path)
            if not Path(launch.cwd).is_dir() or not os.access(launch.cwd, os.X_OK):
                what = f"the working folder {launch.cwd!r} cannot be entered"
            elif isinstance(error, FileNotFoundError) and full_path is None:
                what = f"the command {program!r} was not found"
            elif isinstance(error, FileNotFoundError):
                what = f"the command {program!r} names an interpreter that is missing"
            elif isinstance(error, PermissionError):
                what = f"the command {program!r} is not executable"
            else:
                what = f"the command {program!r} could not be started: {error.strerror}"
            refusal = CommandNotStarted(what, value=program)
        raise refusal from error


def _stdin(
    content: bytes | None, folder: Path, ours: ExitStack, theirs: ExitStack
) -> tuple[IO[bytes] | None, int]:
    if content is None:
        reads, writes = os.pipe()
        theirs.callback(os.close, reads)
        return ours.enter_context(os.fdopen(writes, "wb", 0)), reads
    if not content:
        reads = os.open(os.devnull, os.O_RDONLY)
        theirs.callback(os.close, reads)
        return None, reads
    with private_files():  # an unnamed file, so that writing never waits for a reader
        held = theirs.enter_context(TemporaryFile(dir=folder))  # noqa: SIM115 - the stack closes it
        held.write(content)
        held.seek(0)
    return None, held.fileno()


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[IO[bytes], int]:
    reads, writes = os.pipe()
    theirs.callback(os.close, writes)
    return ours.enter_context(os.fdopen(reads, "rb", 0)), writes


def _request_start(
    control: socket.socket, refused: socket.socket, launch: Launch, until: float | None
) -> tuple[int, bytes]:
    """Send the start request to the shim, and return the program's pid and further output of the shim.

    Raises:
        OSError: The shim could not start the program, or has ended.
    """
    variables = (f"{name}={value}" for name, value in launch.environment.items())
    texts = b"\0".join(map(os.fsencode, (launch.cwd, *launch.words, *variables)))
    deadline = "-" if until is None else f"{until:.3f}"
    for line in (control, refused):
        line.settimeout(_START_SECONDS)
    control.sendall(f"{len(texts)} {len(launch.words)} {deadline}\n".encode() + texts)
    response = b""
    while b"\n" not in response:
        if not (more := control.recv(4_096)):
            raise OSError(errno.EPIPE, "the process that starts the program has ended")
        response += more
    first, response = response.split(b"\n", 1)
    about, number = first.split()
    errno_of_program = number if about == b"refused" else refused.recv(16)
    if errno_of_program:
        raise OSError(int(errno_of_program), os.strerror(int(errno_of_program)))
    control.setblocking(False)
    return int(number), response


@contextmanager
def private_files() -> Iterator[None]:
    """Convert an OSError in the block to CommandBusy or CommandNotStarted."""
    try:
        yield
    except OSError as error:
        what = f"the private folder for programs cannot be written: {error.strerror}"
        raise (CommandBusy if error.errno in NO_ROOM else CommandNotStarted)(
            what, remedy="give the server's user write access to it, and free space"
        ) from error


def find_program(program: str, runner: Runner, server: Mapping[str, str]) -> str:
    """Return the path of the file that would be started for the command `program`.

    The command is searched on the PATH of the runner.

    Raises:
        CommandNotStarted: The working folder is inaccessible, or the program is missing or not executable.
    """
    cwd = Path(runner.cwd)
    if not cwd.is_dir():
        raise CommandNotStarted(
            f"the working folder {runner.cwd!r} is {'not a folder' if cwd.exists() else 'missing'}",
            value=runner.cwd,
        )
    if not os.access(cwd, os.X_OK):
        raise CommandNotStarted(f"the working folder {runner.cwd!r} cannot be entered", value=runner.cwd)
    path = child_environment(runner, server, {}, {}).get("PATH", os.defpath)
    if os.sep in program:
        where, name = str((cwd / program).parent), Path(program).name
    else:
        where, name = os.pathsep.join(str(cwd / part) for part in path.split(os.pathsep)), program
    if executable := shutil.which(name, path=where):
        return executable
    if there := shutil.which(name, mode=os.F_OK, path=where):
        raise CommandNotStarted(f"the command {there!r} is not executable", value=program)
    raise CommandNotStarted(
        f"the command {program!r} was not found",
        value=program,
        remedy="install the command; or set its full path or a PATH in the runner",
    )


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")


def own_process(programs: Path) -> dict[str, Json]:
    """Return the data with which other servers can identify this process.

    `programs` is the folder with the private folders of the process's runs.
    """
    return {"machine": _machine(), "pid": os.getpid(), "programs": str(programs)}


def is_gone(about: Mapping[str, Json]) -> bool:
    """Return whether a process and all its programs have certainly exited.

    `about` is a result of `own_process`. Return False for a process on another machine. Blocks.
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
    try:
        return f"{_BOOT_ID.read_text().strip()} {_NAMESPACE.readlink()}"
    except OSError:  # without Linux, other servers wait until the lease expires
        return ""


_LOG = get_logger(__name__)
_FOLDER: Final = ".run"
_LOCK: Final = "lock"
_SETTINGS: Final = "settings"
_LOOK_AGAIN_MS: Final = 50
_CONTINUED_MS: Final = 1_000
"""The time that a stopped shim may take to kill the processes of its run after it is continued."""
_MARGIN_SECONDS: Final = 1.0
"""The server must have stopped its programs this number of seconds before the shims' deadline."""


class ProcessRunner:
    """Starts and watches the programs of all executors of a server."""

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
        if not folder.is_absolute():
            raise ConfigError(
                "a server that executes programs needs an absolute data folder", value=str(folder)
            )
        self.folder, self.server = folder, dict(environment)
        self.clock, self.timer = clock or SystemClock(), timer or SystemTimer()
        self.limits = limits or CommandLimits()
        self.launcher = Launcher(environment, platform)
        self.controls: set[Control] = set()
        """The sockets to the shims of all programs that are running."""
        self.until: float | None = None
        """The time after which another server may take over the runs, or None if no other server can."""

    def hold(self, duration: int) -> None:
        """Set the deadline at which the shims kill all programs to `duration` milliseconds from now."""
        self.until = time.clock_gettime(CLOCK) + duration / 1_000 + _MARGIN_SECONDS
        for control in self.controls:
            control.say(f"hold {self.until:.3f}")

    @asynccontextmanager
    async def open_run_folder(self, run_id: str) -> "AsyncIterator[RunFolder]":
        """Create the private folder of a run, and remove the folder when the block ends.

        Raises:
            CommandNotEnded: Processes of an earlier execution of the run still exist.
            CommandNotStarted, CommandBusy: The folder could not be created.
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

    def remove_leftovers(self) -> None:
        """Remove the run folders of earlier servers; must be called before the first run."""
        for path in self.folder.glob(f"*{_FOLDER}"):
            if not is_locked(path):
                shutil.rmtree(path, ignore_errors=True)


class RunFolder:
    """The private folder of a run, with a lock for one execution at a time.

    All methods block.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: int | None = None
        """The descriptor that holds the lock. Each shim has a copy, so the lock is also held until the shim
        ends.
        """
        self.is_in_use = False
        """Whether some processes of this execution could not be ended."""

    def take(self) -> bool:
        """Create the folder and acquire the lock; return False if another execution holds the lock.

        Raises:
            CommandNotStarted, CommandBusy: The folder could not be created.
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
        """Release the lock, and remove the folder if no process of the run is left."""
        if self.lock is not None:
            os.close(self.lock)
            if not self.is_in_use:
                shutil.rmtree(self.path, ignore_errors=True)


def has_programs(folder: Path) -> bool:
    """Return whether runs in a server's folder still have processes, or True if this is unknown."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a glob hides errors
        return any(is_locked(folder / name) for name in names if name.endswith(_FOLDER))
    except FileNotFoundError:
        return not folder.parent.is_dir()
    except OSError:
        return True


def is_locked(path: Path) -> bool:
    """Return whether a process of a run still holds the lock of the run's private folder."""
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
    """A run that a program executes.

    `told` contains additional environment variables for the program. `access` gives the program access to
    this server.
    """

    activation: RunActivation
    control: RunControl
    active: ActiveRun
    folder: RunFolder
    runner: Runner
    sink: EventSink
    told: Mapping[str, str]
    access: RunAccess | None = None
    received: tuple[tuple[ChatFile, Path], ...] = ()
    """The files of the run's messages, and the paths at which the program finds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """The outcome of a program that has ended.

    Attributes:
        code: The exit code, negative after a signal, or None if the program could not be ended.
        taken: The number of bytes of output, including standard error.
        left: The processes that could not be ended.
        is_late: Whether the program was killed at its deadline, because another server could start its run
            from that time on.
    """

    code: int | None
    stopped: StopReason | None
    taken: int
    left: tuple[int, ...] = ()
    is_late: bool = False


class Talk(Protocol):
    """A conversation with a program, which reads the program's output and writes to the program's input."""

    async def begin(self, stdin: IO[bytes] | None) -> None:
        """Begin the conversation with a new program.

        `stdin` is the pipe to the program, or None if there is no pipe.
        """
        ...

    async def take(self, chunk: bytes) -> None:
        """Process a piece of the program's output."""
        ...

    async def part(self, gone: asyncio.Event) -> None:
        """Ask the program to finish; return within a limited time."""
        ...

    async def end(self) -> None:
        """Stop using the program after the program's processes have ended."""
        ...


class Program:
    """Starts and watches the program of a run."""

    def __init__(
        self, process_runner: ProcessRunner, work: Work, variables: Mapping[str, str] | None = None
    ) -> None:
        self._with, self._work = process_runner, work
        access = {} if work.access is None else work.access.variables()
        names = {
            "POSTROOM_THREAD": work.activation.thread_id,
            "POSTROOM_RUN": work.activation.run_id or "",
            "POSTROOM_DISPATCH": work.activation.trace.dispatch_id or "",
        }
        environment = {**access, **work.told, **names}
        self.environment = child_environment(work.runner, process_runner.server, environment, variables or {})
        self._connection = NO_CONNECTION
        self._heard_at = self._taken = 0

    async def connect(self, client: CodingClient) -> Connection:
        """Prepare the access of a client to this server, and return the connection data."""
        access, connect = self._work.access, client.connect
        if access is not None and connect is not None:
            folder = self._work.folder.path / _SETTINGS
            self._connection = await asyncio.to_thread(connect, access, self.environment, folder)
            self.environment.update(self._connection.variables)
        return self._connection

    async def run(self, launch: Launch, talk: Talk, errors: Tail) -> ProgramEnd | None:
        """Run the program until all processes of the program have ended.

        Return None if the run was stopped before the start. Do not cancel this call; use `stop` of the active
        run to end the program.

        Raises:
            CommandNotStarted, PromptTooLong, CommandBusy: The program was not started, and none of its
                processes is left.
            StaleClaim: The shim killed the program at the deadline, so another server may own the claim.
        """
        if self._work.active.stop.is_ending:
            return None
        program = await asyncio.to_thread(self._start, launch)
        control, tasks = Control(program.control), Tasks("command")
        try:
            control.data_received(program.said)
            await asyncio.get_running_loop().create_unix_connection(lambda: control, sock=program.control)
            self._with.controls.add(control)
            if self._with.until is not None:  # the deadline may have been moved
                control.say(f"hold {self._with.until:.3f}")
            ended = await self._watch(program, control, tasks, talk, errors)
        finally:  # even if the event loop ends, closing the socket kills the remaining processes
            self._with.controls.discard(control)
            control.close()
            program.close()
            await tasks.close()
        self._work.folder.is_in_use = bool(ended.left)
        if ended.left:
            _LOG.error("command.processes_left", run_id=self._work.active.identity.run_id, pids=ended.left)
        elif ended.is_late:
            raise StaleClaim(
                "the program was stopped because its server was suspended or could not renew the claim "
                "on the run"
            )
        return ended

    def _start(self, launch: Launch) -> Started:
        folder, connection = self._work.folder, self._connection
        assert folder.lock is not None  # noqa: S101 - every execution of a run has one
        with private_files():
            for name, content in launch.files.items():
                write_private(folder.path / name, content)
            if connection.files:
                connection.write(folder.path / _SETTINGS)
        return started(
            launch, self._with.launcher, folder=folder.path, lock=folder.lock, until=self._with.until
        )

    async def _watch(
        self, program: Started, control: Control, tasks: Tasks, talk: Talk, errors: Tail
    ) -> ProgramEnd:
        limits, timer, stop = self._with.limits, self._with.timer, self._work.active.stop
        self._heard_at = self._with.clock.now()
        pipes = await Output.of(program.stdout), await Output.of(program.stderr)
        reading = tasks.start(self._read(pipes[0], talk), name="output")
        readers = (reading, tasks.start(self._read(pipes[1], errors), name="errors"))
        reading.add_done_callback(lambda task: _raised(task) and stop.ask(StopReason.BROKEN))
        await talk.begin(program.stdin)
        tasks.start(self._time_out(), name="time-out")
        if self._work.runner.idle_timeout is not None:
            tasks.start(self._idle_out(milliseconds(self._work.runner.idle_timeout)), name="idle time-out")
        exited = tasks.start(control.exited.wait(), name="exit")
        stop_task = tasks.start(stop.asked(), name="stop")
        await asyncio.wait((exited, stop_task), return_when=asyncio.FIRST_COMPLETED)
        stopped = None if control.exited.is_set() else stop.reason
        is_late = control.is_late and stopped is not StopReason.CANCELLED
        stop.settle()  # from here on, a request to stop is too late
        if stopped is not None:
            await talk.part(control.exited)
        grace = min(limits.grace, limits.leftover_grace) if stopped is None else limits.grace
        for wish, most in (("end", grace), ("kill", limits.kill_wait)):
            if not control.gone.is_set():
                control.say(wish)
                await within(control.gone.wait(), milliseconds(most), timer)
        if not (control.gone.is_set() or control.left):  # the program may have stopped its shim by SIGSTOP
            await asyncio.to_thread(self._with.launcher.close)  # the end of the launcher continues the shim
            await within(control.gone.wait(), min(milliseconds(limits.kill_wait), _CONTINUED_MS), timer)
        left = () if control.gone.is_set() else control.left or (program.pid,)
        if left or control.is_lost:  # the shim was killed, or is frozen
            with suppress(OSError):
                os.killpg(program.pid, signal.SIGKILL)
        if not all(reader.done() for reader in readers):
            # a process that could not be ended may keep a pipe open
            await within(asyncio.wait(readers), milliseconds(limits.drain), timer)
        for reader, pipe in zip(readers, pipes, strict=True):
            reader.cancel()
            await pipe.close()
        await talk.end()
        stopped = StopReason.BROKEN if _raised(reading) else stopped
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
            await self._with.timer.sleep(min(left, most))  # a clock that is set back must not extend it
        self._work.active.stop.ask(StopReason.IDLE)


def _raised(task: "asyncio.Task[None]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
