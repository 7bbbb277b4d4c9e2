"""Starts a program through its shim, and says without starting it whether it could be started.

Everything here blocks: call it outside of the event loop.
"""

import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from postroom.contracts.errors import CommandBusy, CommandError, CommandNotStarted, PromptTooLong
from postroom.contracts.messages import storable
from postroom.contracts.runners import Runner

PASSED: Final = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "SHELL"})
"""The variables that are copied from the server's environment, together with every `LC_...`."""
GEMINI_VARIABLES: Final = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}
"""Without it Gemini CLI starts no MCP server in a folder that its user has not trusted manually."""
MASK: Final = "[masked]"
AGENT: Final = "POSTROOM_AGENT"
_SECRET: Final = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SHORTEST_LINE: Final = 8
_SHORTEST_BEGIN: Final = 4


def child_environment(
    runner: Runner,
    server: Mapping[str, str],
    told: Mapping[str, str],
    defaults: Mapping[str, str],
) -> dict[str, str]:
    """Return a program's whole environment.

    `told` overrides the runner's variables, these override `defaults`.

    Names in `pass_env` that the server does not have are ignored.
    """
    taken = {
        name: value
        for name, value in server.items()
        if name in PASSED or name.startswith("LC_") or name in runner.pass_env
    }
    said = {name: storable(value).replace("\0", "") for name, value in told.items()}
    return {**taken, **defaults, **runner.env, **said}


def secrets_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables with names of secrets, the longest first.

    Each longer line of a multi-line value counts as well: a program may print it alone.
    """
    found: set[str] = set()
    for name, value in environment.items():
        if _SECRET.search(name) and value.strip():
            lines = (line.strip() for line in value.splitlines())
            found |= {value, value.strip(), *(line for line in lines if len(line) >= _SHORTEST_LINE)}
    return tuple(sorted(found, key=len, reverse=True))


def masked(text: str, secrets: Iterable[str], *, is_cut: bool = False) -> str:
    """Return the text with every secret in it masked.

    If the beginning of the text was cut off, it may start with the end of a secret, or be part of one. The
    text may also end within a secret, if its writer was ended. These parts are masked as well.
    """
    known = tuple(secrets)
    if is_cut and any(text in secret for secret in known):
        return MASK
    if is_cut and (length := max((_overlap(secret, text) for secret in known), default=0)):
        text = MASK + text[length:]
    for secret in known:
        text = text.replace(secret, MASK)
    length = max((_overlap(text, secret) for secret in known), default=0)
    return text[:-length] + MASK if length >= _SHORTEST_BEGIN else text


def _overlap(left: str, right: str) -> int:
    """Return the length of the longest end of `left` that `right` begins with."""
    most = min(len(left), len(right))
    return next((length for length in range(most, 0, -1) if right.startswith(left[-length:])), 0)


ARGUMENT_BYTES: Final = 128 * 1024
"""The longest argument that Linux takes, with its zero byte; elsewhere errno reports the sum."""
NO_ROOM: Final = {
    *(errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY),
    *(errno.ENOSPC, errno.EDQUOT),
}
"""Errors that pass when other programs have ended, or there is room on the disk again."""
CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock of deadlines. No program can set it, and on Linux it also counts while the machine sleeps."""
_SHIM: Final = str(Path(__file__).with_name("shim.py"))
_LIBRARIES: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_START_SECONDS: Final = 60.0
"""How long a shim may take to start a program; on a machine without memory a fork can take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A program to start.

    Attributes:
        words: The program and its arguments.
        stdin: Its whole standard input; None for a pipe that is written to while it works.
        files: Files in the private folder of the run, with their content.
    """

    words: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str] = field(repr=False)
    stdin: bytes | None = field(default=b"", repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A program that was started.

    Attributes:
        control: The socket to its shim, which kills the program when the socket closes.
        said: Further output of the shim that came with the start.
        stdin: The pipe to the program, if it was started with one.
    """

    pid: int
    control: socket.socket
    said: bytes
    stdin: IO[bytes] | None
    stdout: IO[bytes]
    stderr: IO[bytes]

    def close(self) -> None:
        """Close everything that is open; a program that still runs is killed."""
        self.control.close()
        for end in (self.stdin, self.stdout, self.stderr):
            if end is not None:
                end.close()


class Launcher:
    """The process that forks a shim for each program; it starts with the first program."""

    def __init__(self, environment: Mapping[str, str], platform: str) -> None:
        """`environment` is the server's: a Python that finds its library by a variable needs that again."""
        self._platform = platform
        self._environment = {name: environment[name] for name in _LIBRARIES if name in environment}
        self._turn = threading.Lock()
        self._line: socket.socket | None = None

    def hand_over(self, ends: Sequence[int]) -> None:
        """Have a shim forked that gets these descriptors; a launcher that was killed is started again.

        Raises:
            OSError: The system has no room for it.
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
                begun = subprocess.run(  # noqa: S603 - no shell; the words are ours
                    [sys.executable, "-I", "-S", _SHIM, self._platform, str(CLOCK)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env=self._environment,
                    start_new_session=True,  # signals to the server's group are not for it
                    check=False,
                )
            if begun.returncode != 0:
                ours.close()
                raise OSError(errno.EAGAIN, f"the process that starts programs ended with {begun.returncode}")
            weakref.finalize(self, ours.close)
            self._line = ours
            socket.send_fds(ours, [b"+"], ends)

    def close(self) -> None:
        """End the launcher; active shims continue."""
        with self._turn:
            if self._line is not None:
                self._line.close()
                self._line = None


def started(
    launch: Launch, launcher: Launcher, *, folder: Path, lock: int, until: float | None = None
) -> Started:
    """Start a program by a shim, its output in pipes. It must have ended at `until`, unless that is moved.

    `folder` is the private folder of the run, and `lock` the descriptor that other executions of it wait for.

    Raises:
        CommandNotStarted: Its working folder or the program is missing, or may not be used.
        PromptTooLong: The argument is too long for the system.
        CommandBusy: The system has no room for it now.
    """
    for word in launch.words:
        length = len(storable(word).encode()) + 1
        if length > ARGUMENT_BYTES:
            raise PromptTooLong(
                f"an argument of {length} bytes is longer than the system's {ARGUMENT_BYTES}", value=length
            )
        if "\0" in word:
            raise PromptTooLong(
                "the prompt contains a zero byte, which an argument cannot contain", value="\\0"
            )
    if not Path(launch.cwd).is_dir():
        raise CommandNotStarted(f"the working folder {launch.cwd!r} is missing", value=launch.cwd)
    try:
        with ExitStack() as ours:
            with ExitStack() as theirs:
                stdin, reads = _stdin(launch.stdin, folder, ours, theirs)
                stdout, writes = _pipe(ours, theirs)
                stderr, complains = _pipe(ours, theirs)
                control, shim = socket.socketpair()
                ours.callback(control.close)
                theirs.callback(shim.close)
                launcher.hand_over((lock, reads, writes, complains, shim.fileno()))
            control.settimeout(_START_SECONDS)
            pid, said = _asked(control, launch, until)
            ours.pop_all()
            control.setblocking(False)
            return Started(pid=pid, control=control, said=said, stdin=stdin, stdout=stdout, stderr=stderr)
    except OSError as error:
        raise _refusal(launch, error) from error


def _stdin(
    content: bytes | None, folder: Path, ours: ExitStack, theirs: ExitStack
) -> tuple[IO[bytes] | None, int]:
    """Return our end of a program's standard input, if it is a pipe, and the descriptor for the program."""
    if content is None:
        reads, writes = os.pipe()
        theirs.callback(os.close, reads)
        return ours.enter_context(os.fdopen(writes, "wb", 0)), reads
    if not content:
        reads = os.open(os.devnull, os.O_RDONLY)
        theirs.callback(os.close, reads)
        return None, reads
    with private_files():  # a file without a name, so that nobody waits for a reader
        held = theirs.enter_context(TemporaryFile(dir=folder))  # noqa: SIM115 - the stack closes it
        held.write(content)
        held.seek(0)
    return None, held.fileno()


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[IO[bytes], int]:
    reads, writes = os.pipe()
    theirs.callback(os.close, writes)
    return ours.enter_context(os.fdopen(reads, "rb", 0)), writes


def _asked(control: socket.socket, launch: Launch, until: float | None) -> tuple[int, bytes]:
    """Name the program to its shim; return the program's pid, and further output of the shim.

    Raises:
        OSError: The shim could not start it, or is gone.
    """
    variables = (f"{name}={value}" for name, value in launch.environment.items())
    texts = b"\0".join(map(os.fsencode, (launch.cwd, *launch.words, *variables)))
    deadline = "-" if until is None else f"{until:.3f}"
    control.sendall(f"{len(texts)} {len(launch.words)} {deadline}\n".encode() + texts)
    said = b""
    while b"\n" not in said:
        if not (more := control.recv(4_096)):
            raise OSError(errno.EAGAIN, "its shim has ended")
        said += more
    line, said = said.split(b"\n", 1)
    about, number = line.split()
    if about == b"refused":
        raise OSError(int(number), os.strerror(int(number)))
    return int(number), said


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


@contextmanager
def private_files() -> Iterator[None]:
    """Translate a failure to write a private file of a program; without them it is not started."""
    try:
        yield
    except OSError as error:
        what = f"the private folder for programs cannot be written: {error.strerror}"
        raise (CommandBusy if error.errno in NO_ROOM else CommandNotStarted)(
            what, remedy="give the server's user write access to it, and free space"
        ) from error


def _refusal(launch: Launch, error: OSError) -> CommandError:
    """Return why the system did not start it, the likeliest reason first."""
    program = launch.words[0]
    if error.errno == errno.E2BIG:
        return PromptTooLong("arguments and environment are longer than the system takes", value=program)
    if error.errno in NO_ROOM or isinstance(error, TimeoutError):
        return CommandBusy(
            f"the system lacks resources to start {program!r} now: {error.strerror}", value=program
        )
    path = launch.environment.get("PATH", os.defpath)
    where = program if os.sep not in program else str(Path(launch.cwd, program))
    found = shutil.which(where, path=path)
    if not Path(launch.cwd).is_dir() or not os.access(launch.cwd, os.X_OK):
        what = f"the working folder {launch.cwd!r} cannot be entered"
    elif isinstance(error, FileNotFoundError) and found is None:
        what = f"the command {program!r} was not found"
    elif isinstance(error, FileNotFoundError):
        what = f"the command {program!r} names an interpreter that is missing"
    elif isinstance(error, PermissionError):
        what = f"the command {program!r} is not executable"
    else:
        what = f"the command {program!r} could not be started: {error.strerror}"
    return CommandNotStarted(what, value=program)


def program_of(program: str, runner: Runner, server: Mapping[str, str]) -> str:
    """Return the file that would be started, found by the PATH of the program.

    Raises:
        CommandNotStarted: The working folder cannot be entered, or the program is missing or not executable.
    """
    cwd = Path(runner.cwd)
    if not cwd.is_dir():
        raise CommandNotStarted(
            f"the working folder {runner.cwd!r} is {'not a folder' if cwd.exists() else 'missing'}",
            value=runner.cwd,
        )
    if not os.access(cwd, os.X_OK):
        raise CommandNotStarted(f"the working folder {runner.cwd!r} cannot be entered", value=runner.cwd)
    return _found_program(program, cwd, child_environment(runner, server, {}, {}).get("PATH", os.defpath))


def _found_program(program: str, cwd: Path, path: str) -> str:
    if os.sep in program:
        where, name = str((cwd / program).parent), Path(program).name
    else:
        where, name = os.pathsep.join(str(cwd / one) for one in path.split(os.pathsep)), program
    if found := shutil.which(name, path=where):
        return found
    if there := shutil.which(name, mode=os.F_OK, path=where):
        raise CommandNotStarted(f"the command {there!r} is not executable", value=program)
    raise CommandNotStarted(
        f"the command {program!r} was not found",
        value=program,
        remedy="install it, or give the runner its full path or a PATH",
    )
