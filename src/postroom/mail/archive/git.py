"""The `git` program: one repository, a clean environment, a time limit for every call.

Starts and stops Git and names its failures. Independent of the contents that are written.
"""

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from postroom.contracts.errors import ArchiveUnavailable

SETTINGS = (
    "core.fsync=objects,derived-metadata,reference",  # a power cut leaves no branch that names half an object
    # another writer holds the branch for milliseconds; a dead one never releases it
    "core.filesRefLockTimeout=500",
    "fastimport.unpackLimit=0",  # a batch is one pack with one fsync, never a loose file an object
    "gc.auto=0",  # tidying is the worker's, never a surprise in the middle of a write
    "pack.threads=1",  # repacking runs while the server works: one core is enough
)
GRACE_SECONDS = 1.0
"""Seconds for a stopped Git to remove its lock files, which a killed Git leaves behind."""
STDERR_SHOWN = 300
"""Maximum characters of Git's message in an error."""

INSTALL = "install Git 2.32 or newer on the server's PATH, or turn off the archive"
_FREE_SPACE = "free space on the disk that holds the archive; no restart is needed"
_GIVE_ACCESS = "give the server's user write access to the archive's folder"
_RESTORE = (
    "run `postroom doctor`: the archive can be rebuilt from the database; if doctor cannot read it, "
    "move the repository away and run `postroom rebuild archive`"
)

# Git tells its failures in words only. LC_ALL=C keeps them in English; the first match names the remedy.
_REMEDIES = (
    (".lock': File exists", "wait for the other Git process; if none runs, remove the named lock file"),
    ("No space left on device", _FREE_SPACE),
    ("Out of diskspace", _FREE_SPACE),
    ("Disk quota exceeded", _FREE_SPACE),
    ("Permission denied", _GIVE_ACCESS),
    ("Read-only file system", _GIVE_ACCESS),
    ("insufficient permission", _GIVE_ACCESS),
    ("not a git repository", "move the existing files away, or use another folder for the archive"),
    ("unknown option", INSTALL),
    ("corrupt", _RESTORE),
    ("broken", _RESTORE),
    ("bad object", _RESTORE),
    ("not a valid object", _RESTORE),
    ("unable to read", _RESTORE),
    ("missing", _RESTORE),
    ("Not a valid commit", _RESTORE),
    ("not a tree object", _RESTORE),
)

HEAD: Final = b"ref: refs/heads/main\n"
"""The content of the file HEAD of each repository: its one branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of one call: its exit code, its output and its messages on standard error."""

    code: int
    out: bytes
    complaint: str


class GitProgram:
    """Runs `git` on one bare repository; every call ends, or is stopped, within the timeout."""

    def __init__(self, program: str, folder: Path, timeout: timedelta) -> None:
        """Find the program once.

        Raises:
            ArchiveUnavailable: The program does not exist.
        """
        found = shutil.which(program)
        if found is None:
            raise ArchiveUnavailable(f"the program {program!r} does not exist", value=program, remedy=INSTALL)
        self.program = str(Path(found).absolute())
        self.folder = folder
        self.timeout = timeout
        self._environment = {
            "PATH": f"{Path(self.program).parent}{os.pathsep}{os.defpath}",
            "LC_ALL": "C",
            "GIT_DIR": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
        }

    def run(self, *arguments: str, stdin: bytes = b"", patience: int = 1) -> bytes:
        """Run one command that must succeed and return its output.

        Raises:
            ArchiveUnavailable: It failed, could not be started, or did not end within `patience` timeouts.
        """
        answer = self.ask(*arguments, stdin=stdin, patience=patience)
        if answer.code != 0:
            raise self.failure(arguments[0], answer)
        return answer.out

    def ask(self, *arguments: str, stdin: bytes = b"", patience: int = 1) -> Answer:
        """Run one command that may fail and return its result.

        Raises:
            ArchiveUnavailable: It could not be started, or did not end within `patience` timeouts.
        """
        settings = [word for setting in SETTINGS for word in ("-c", setting)]
        bound = self.timeout * patience
        try:
            with self._start([*settings, *arguments]) as process:
                out, complaint = _exchange(process, stdin, bound)
        except subprocess.TimeoutExpired:
            raise ArchiveUnavailable(
                f"git {arguments[0]} did not finish within {bound.total_seconds():g} s and was ended",
                value=str(self.folder),
                remedy="check the load and the disk of the machine; the write is retried",
            ) from None
        except OSError as error:
            raise ArchiveUnavailable(
                f"git {arguments[0]} could not be run: {error}", value=self.program, remedy=INSTALL
            ) from error
        return Answer(code=process.returncode, out=out, complaint=complaint.decode("utf-8", "replace"))

    def failure(self, command: str, answer: Answer) -> ArchiveUnavailable:
        """Return the error of a failed call, with Git's message."""
        said = " ".join(answer.complaint.split())
        shown = said[:STDERR_SHOWN] or f"it ended with exit code {answer.code} and no message"
        return ArchiveUnavailable(
            f"git {command} failed: {shown}",
            value=str(self.folder),
            remedy=remedy_for(said),
            details={"command": command, "exit_code": answer.code},
        )

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - no shell; the program is fixed and paths follow "--" or go by stdin
            [self.program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            cwd=self.folder.anchor,  # always there, unlike the caller's folder
            umask=0o077,
            start_new_session=True,  # Git starts child processes; a timeout stops them all
        )


def remedy_for(said: str) -> str | None:
    """Return the remedy for a failure with this message, or None if there is no special one."""
    return next((remedy for words, remedy in _REMEDIES if words in said), None)


def _exchange(process: subprocess.Popen[bytes], stdin: bytes, bound: timedelta) -> tuple[bytes, bytes]:
    try:
        return process.communicate(stdin, timeout=bound.total_seconds())
    except BaseException:  # whatever ended the wait, no Git process outlives it
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its children: first by request, then by a kill after the grace period."""
    for wish in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, wish)
            process.wait(GRACE_SECONDS)
        except (ProcessLookupError, PermissionError):  # none of them is left; macOS says the latter
            return
        except subprocess.TimeoutExpired:  # it did not listen
            continue


def head_is_lost(folder: Path) -> bool:
    """Return whether a repository lacks only its HEAD, without which Git does not recognize it. Blocks."""
    try:
        return (folder / "objects").is_dir() and (folder / "HEAD").read_bytes() != HEAD
    except FileNotFoundError:
        return True
    except OSError:  # the folder is unreadable, so a later write fails too
        return False


def write_head(folder: Path) -> None:
    """Write the HEAD of a repository, which is the same in each archive. Blocks.

    Raises:
        ArchiveUnavailable: It cannot be written.
    """
    fresh = folder / f"HEAD.{os.getpid()}"
    try:
        with fresh.open("wb") as file:
            file.write(HEAD)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(folder / "HEAD")
    except OSError as error:
        raise ArchiveUnavailable(
            f"HEAD cannot be written: {error}", value=str(folder), remedy=remedy_for(str(error))
        ) from error
    finally:
        fresh.unlink(missing_ok=True)
