"""Starts a program in a session of its own, and says without starting it whether it could be started.

Everything here blocks: call it outside of the event loop.
"""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from postroom.contracts.errors import CommandBusy, CommandError, CommandNotStarted, PromptTooLong
from postroom.contracts.messages import storable
from postroom.contracts.runners import Runner
from postroom.executors.processes.child_environment import child_environment

ARGUMENT_BYTES: Final = 128 * 1024
"""The longest argument that Linux takes, with its zero byte; elsewhere errno reports the sum."""
NO_ROOM: Final = {
    *(errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY),
    *(errno.ENOSPC, errno.EDQUOT),
}
"""Errors that pass when other programs have ended, or there is room on the disk again."""
Input = Callable[[ExitStack], "IO[bytes] | int"]
"""Opens the standard input of a program; closed here once the program has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A program to start."""

    words: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str] = field(repr=False)
    reads: Input = field(repr=False)


def started(launch: Launch, *, platform: str = sys.platform) -> "subprocess.Popen[bytes]":
    """Start the program, its output in pipes.

    Raises:
        CommandNotStarted: its working folder or the program is missing, or may not be used.
        PromptTooLong: the system takes no such argument.
        CommandBusy: the system has no room for it now.
    """
    _refuse_arguments(launch.words)
    if platform == "win32":
        _refuse_batch_file(launch)
    cwd = Path(launch.cwd)
    if not cwd.is_dir():
        raise CommandNotStarted(f"the working folder {launch.cwd!r} is missing", value=launch.cwd)
    try:
        with ExitStack() as opened:
            with notes_kept():
                reads = launch.reads(opened)
            return subprocess.Popen(  # noqa: S603 - no shell; whose words these are the runner's docstring says
                [os.fsencode(word) for word in launch.words],
                stdin=reads,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=launch.cwd,
                env=dict(launch.environment),
                start_new_session=True,
            )
    except OSError as error:
        raise _refusal(launch, error) from error


def _refuse_batch_file(launch: Launch) -> None:
    """Refuse what Windows gives to its shell, which finds commands in arguments; messages are among them."""
    program = launch.words[0]
    found = shutil.which(program, path=launch.environment.get("PATH", os.defpath)) or program
    if found.lower().endswith((".bat", ".cmd")):
        raise CommandNotStarted(
            f"the command {program!r} is a batch file, which would run what stands in messages",
            value=found,
            remedy="name the program that the batch file starts, such as node with its script",
        )


@contextmanager
def notes_kept() -> Iterator[None]:
    """Translate a failure to write a private file of a program; without them it is not started."""
    try:
        yield
    except OSError as error:
        what = f"the private folder for programs cannot be written: {error.strerror}"
        raise (CommandBusy if error.errno in NO_ROOM else CommandNotStarted)(
            what, remedy="give the server's user write access to it, and free space"
        ) from error


def _refuse_arguments(words: Sequence[str]) -> None:
    for word in words:
        length = len(storable(word).encode()) + 1
        if length > ARGUMENT_BYTES:
            raise PromptTooLong(
                f"an argument of {length} bytes is longer than the system's {ARGUMENT_BYTES}", value=length
            )
        if "\0" in word:
            raise PromptTooLong("the prompt holds a zero byte, which no argument can", value="\\0")


def _refusal(launch: Launch, error: OSError) -> CommandError:
    """Return why the system did not start it, the likeliest reason first."""
    program = launch.words[0]
    if error.errno == errno.E2BIG:
        return PromptTooLong("arguments and environment are longer than the system takes", value=program)
    if error.errno in NO_ROOM:
        return CommandBusy(
            f"the system has no room to start {program!r} now: {error.strerror}", value=program
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
    """Return the file that would be started, found as it is then: by the PATH that the program is given.

    Raises:
        CommandNotStarted: the working folder cannot be entered, or the program is missing or not executable.
    """
    cwd = Path(runner.cwd)
    if not cwd.is_dir():
        raise CommandNotStarted(
            f"the working folder {runner.cwd!r} is {'no folder' if cwd.exists() else 'missing'}",
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
        remedy="install it, or give the runner its whole path or a PATH of its own",
    )
