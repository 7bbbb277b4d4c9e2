"""The repository of an archive: stores batches of files, and returns files, with the program `git`.

`ArchiveRepository` manages a bare repository with the branch `main`. The repository has no index and no
working tree. So there is no `index.lock`, and the cost of a batch does not grow with the number of files.
This module does not depend on mail.

    turn ──▶ tip ──▶ fast-import (one pack, one fsync) ──▶ what changed? ──▶ compare and set of the branch
              ▲                                                                        │
              └───────────────── another writer was faster ◀───────────────────────────┘

Writers that use this class take turns. Without turns, one of two equally fast processes lost the race twenty
times in a row. Turns only make writes faster. Consistency depends on the compare-and-set of the branch, which
also protects against other Git processes.

`GitProgram` starts and stops Git, with a clean environment and a time limit for each call, and converts Git's
failures to errors. This module also composes the paths, the message and the whole input of `git fast-import`,
so that malicious names and texts are handled in one place.
"""

import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

from filelock import FileLock, Timeout

from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import ArchiveUnavailable, InvalidArgument, InvalidPath

SETTINGS = (
    "core.fsync=objects,derived-metadata,reference",  # after a power failure, no branch has partial objects
    # a live writer locks the branch for milliseconds, but a dead one never releases the lock
    "core.filesRefLockTimeout=500",
    "fastimport.unpackLimit=0",  # a batch is a pack with one fsync, and not a loose file for each object
    "gc.auto=0",  # only the worker repacks, so that Git never does so during a write
    "pack.threads=1",  # a repack runs while the server works, so it may use only one core
)
GRACE_SECONDS = 1.0
"""The number of seconds that Git has to remove its lock files after it was asked to end.

A killed Git process does not remove its lock files.
"""
STDERR_SHOWN = 300
"""Maximum number of characters of Git's error output that an error contains."""

INSTALL = "install Git 2.32 or newer on the server's PATH, or turn off the archive"
_FREE_SPACE = "free space on the disk that holds the archive; no restart is needed"
_GIVE_ACCESS = "give the server's user write access to the archive's folder"
_RESTORE = (
    "run `postroom doctor`: the archive can be rebuilt from the database; if doctor cannot read it, move "
    "the repository to another folder and run `postroom rebuild archive`"
)

# Git reports failures only as text, which LC_ALL=C keeps in English. The first match decides the remedy.
_REMEDIES = (
    (
        ".lock': File exists",
        ("wait until the other Git process has ended; if there is none, remove the lock file that is named"),
    ),
    ("No space left on device", _FREE_SPACE),
    ("Out of diskspace", _FREE_SPACE),
    ("Disk quota exceeded", _FREE_SPACE),
    ("Permission denied", _GIVE_ACCESS),
    ("Read-only file system", _GIVE_ACCESS),
    ("insufficient permission", _GIVE_ACCESS),
    (
        "not a git repository",
        ("move the files that are there to another folder, or use another folder for the archive"),
    ),
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
"""The content of HEAD in each repository: a reference to the only branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The exit code, the output and the error output of a Git command."""

    code: int
    out: bytes
    complaint: str


class GitProgram:
    """Runs Git commands in a bare repository, each with a timeout."""

    def __init__(self, program: str, folder: Path, timeout: timedelta) -> None:
        """Find the Git program on the search path.

        Raises:
            ArchiveUnavailable: The program is not installed.
        """
        executable = shutil.which(program)
        if executable is None:
            raise ArchiveUnavailable(f"the program {program!r} does not exist", value=program, remedy=INSTALL)
        self.program = str(Path(executable).absolute())
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
        """Run a Git command, and return the command's output.

        Raises:
            ArchiveUnavailable: The command failed, could not be started, or did not end within `patience`
                times the timeout.
        """
        answer = self.ask(*arguments, stdin=stdin, patience=patience)
        if answer.code != 0:
            raise self.failure(arguments[0], answer)
        return answer.out

    def ask(self, *arguments: str, stdin: bytes = b"", patience: int = 1) -> Answer:
        """Run a Git command that may fail, and return the command's exit code and output.

        Raises:
            ArchiveUnavailable: The command could not be started, or did not end within `patience` times the
                timeout.
        """
        settings = [word for setting in SETTINGS for word in ("-c", setting)]
        bound = self.timeout * patience
        try:
            with subprocess.Popen(  # noqa: S603 - no shell; the program is fixed and paths follow "--" or go by stdin
                [self.program, *settings, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                cwd=self.folder.anchor,  # this folder always exists, but the current folder may not
                umask=0o077,
                start_new_session=True,  # Git starts child processes, and a timeout must stop them all
            ) as process:
                try:
                    out, complaint = process.communicate(stdin, timeout=bound.total_seconds())
                except BaseException:  # after the wait has ended for any reason, no Git process may continue
                    _end(process)
                    raise
        except subprocess.TimeoutExpired:
            raise ArchiveUnavailable(
                f"git {arguments[0]} did not finish within {bound.total_seconds():g} s and was stopped",
                value=str(self.folder),
                remedy="check whether the machine is overloaded or its disk slow; postroom repeats the write",
            ) from None
        except OSError as error:
            raise ArchiveUnavailable(
                f"git {arguments[0]} could not be run: {error}", value=self.program, remedy=INSTALL
            ) from error
        return Answer(code=process.returncode, out=out, complaint=complaint.decode("utf-8", "replace"))

    def failure(self, command: str, answer: Answer) -> ArchiveUnavailable:
        """Return an error with the error output of a failed Git command."""
        text = " ".join(answer.complaint.split())
        shown = text[:STDERR_SHOWN] or f"it ended with exit code {answer.code} and no message"
        return ArchiveUnavailable(
            f"git {command} failed: {shown}",
            value=str(self.folder),
            remedy=remedy_for(text),
            details={"command": command, "exit_code": answer.code},
        )


def remedy_for(said: str) -> str | None:
    """Return the remedy for an error message of Git, or None for an unknown message."""
    return next((remedy for words, remedy in _REMEDIES if words in said), None)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process and its child processes to end, and kill them after the grace period."""
    for wish in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, wish)
            process.wait(GRACE_SECONDS)
        except (ProcessLookupError, PermissionError):  # all have ended; macOS raises the second error
            return
        except subprocess.TimeoutExpired:  # the process ignored the request to end
            continue


def head_is_lost(folder: Path) -> bool:
    """Return whether the HEAD of a repository is missing or damaged.

    Blocks.
    """
    try:
        return (folder / "objects").is_dir() and (folder / "HEAD").read_bytes() != HEAD
    except FileNotFoundError:
        return True
    except OSError:  # the folder is unreadable, which a later write will report
        return False


def write_head(folder: Path) -> None:
    """Write the HEAD file of a repository.

    Blocks.

    Raises:
        ArchiveUnavailable: The file cannot be written.
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


SUBJECT_LIMIT = 72
SEGMENT_LIMIT = 255
"""Maximum number of bytes in a name. Common file systems do not support longer names."""
PATH_LIMIT = 4096
"""Maximum number of bytes in a path. Newer releases of `git fsck --strict` report longer paths."""
NO_SUBJECT = "(no subject)"

# Names that Git reserves, also if the archive is checked out on macOS or Windows. There, upper and lower
# case, trailing dots and spaces, a stream name after a colon, and invisible characters make no difference.
# "gi....~1" is the short form on Windows. `git fsck --strict` reports all these names, too.
_RESERVED = re.compile(r"\.git(modules)?|gi[^~.]{0,4}~\d+")
_INVISIBLE = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF], None
)
_ESCAPED = re.compile(rb'[\x00-\x1f\x7f"\\]')
_TRAILER_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_IDENTITY = re.compile(r"[^<>\x00-\x1f\x7f]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Matches control characters, which could move the cursor of a terminal or end a message early.

Newlines and tabs do not match.
"""


def checked_path(path: str) -> str:
    """Return a path unchanged if an archive may contain a file with this path.

    Raises:
        InvalidPath: The path is empty, absolute or too long, leaves the tree, or names a file of Git.
    """
    if fault := _fault(path):
        raise InvalidPath(
            f"{path!r} cannot be archived: {fault}",
            value=path,
            remedy="use a relative path of plain names, separated by /",
        )
    return path


def checked_identity(name: str, email: str) -> str:
    """Return `Name <email>`, the author's identity in a Git commit.

    Raises:
        InvalidArgument: A part is blank, or contains angle brackets or control characters.
    """
    for text in (name, email):
        if not _IDENTITY.fullmatch(text.strip()):
            raise InvalidArgument(
                f"{text!r} is not allowed in a commit: it is blank or contains <, > or control characters",
                value=text,
            )
    return f"{name.strip()} <{email.strip()}>"


def message(subject: str, body: str, trailers: Sequence[tuple[str, str]]) -> str:
    """Return a commit message that consists of a subject line, a body and trailers.

    Raises:
        InvalidArgument: The key of a trailer is invalid.
    """
    for key, _ in trailers:
        if not _TRAILER_KEY.fullmatch(key):
            raise InvalidArgument(
                f"{key!r} is not a valid trailer key: use letters, digits and hyphens", value=key
            )
    parts = [
        _one_line(subject)[:SUBJECT_LIMIT].rstrip() or NO_SUBJECT,
        _CONTROL.sub("", "\n".join(body.splitlines())).strip(),
        "\n".join(f"{key}: {_one_line(value)}".rstrip() for key, value in trailers),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def file_changes(files: Mapping[str, bytes]) -> bytes:
    """Return the `git fast-import` commands that add or replace files.

    Raises:
        InvalidPath: A path is not safe, or is used both as a file and as the folder of another file.
    """
    for path in files:
        segments = checked_path(path).split("/")
        for depth in range(1, len(segments)):
            if (folder := "/".join(segments[:depth])) in files:
                raise InvalidPath(f"{folder!r} is a file, but must be a folder for {path!r}", value=path)
    parts: list[bytes] = []
    for path, content in files.items():
        parts += [b"M 100644 inline ", _quote_path(path), b"\n", _data(content)]
    return b"".join(parts)


def file_removals(paths: Sequence[str]) -> bytes:
    """Return the `git fast-import` commands that remove files.

    Raises:
        InvalidPath: A path is not safe.
    """
    return b"".join(b"D %b\n" % _quote_path(checked_path(path)) for path in paths)


def commit_stream(
    *, ref: str, identity: str, now: int, text: str, changes: bytes, parent: str | None
) -> bytes:
    """Return the `git fast-import` stream for one commit.

    `ref` is a temporary ref name, which must be unique.
    """
    who = f"{identity} {now // 1000} +0000"
    head = f"commit {ref}\nmark :1\nauthor {who}\ncommitter {who}\n".encode()
    origin = f"from {parent}\n".encode() if parent else b""
    tail = f"\nget-mark :1\nreset {ref}\n\ndone\n".encode()
    return b"".join([head, _data(text.encode("utf-8", "replace")), origin, changes, tail])


def _data(content: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(content), content)


def _quote_path(path: str) -> bytes:
    escaped = _ESCAPED.sub(lambda found: b"\\%03o" % found[0][0], path.encode())
    return b'"%b"' % escaped


def _one_line(text: str) -> str:
    return _CONTROL.sub("", " ".join(text.split()))


def _fault(path: str) -> str | None:
    """Return the reason why a path is not safe in an archive, or None for a safe path."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "the path is not text"
    if not path or "\0" in path:
        return "the path is empty or contains a zero byte"
    if len(encoded) > PATH_LIMIT:
        return f"the path is longer than {PATH_LIMIT} bytes"
    for segment in path.split("/"):
        if not segment:
            return "the path is absolute, or contains an empty name"
        if len(segment.encode()) > SEGMENT_LIMIT:
            return f"the path contains a name longer than {SEGMENT_LIMIT} bytes"
        # On some systems, a backslash is a separator, too, so each part counts as a name.
        for name in segment.split("\\"):
            if name in {".", ".."}:
                return "the path leaves its folder"
            plain = name.translate(_INVISIBLE).partition(":")[0].rstrip(" .").lower()
            if _RESERVED.fullmatch(plain):
                return f"{name!r} is reserved by Git"
    return None


T = TypeVar("T")

BRANCH = "refs/heads/main"
UNBORN = "0" * 40
"""The value that Git uses for a branch that does not exist."""
TURN_FILE = "postroom.lock"
ATTEMPTS = 20
"""Maximum number of attempts at a write if other writers move the branch."""
LONG = 10
"""The factor by which the timeout is longer for a read of the whole repository."""
PACKS_KEPT = 50
LOOSE_KEPT = 2_000
LEFTOVER_AFTER = timedelta(hours=1)
"""The age after which an unchanged temporary file is treated as left over by a dead process."""
LEFTOVERS = ("objects/pack/tmp_*", "objects/pack/.tmp-*", "fast_import_crash_*")
_OWN_LEFTOVER = re.compile(r"objects/pack/tmp_(?:pack|idx)_\w+|fast_import_crash_\d+")
ARGUMENTS_LIMIT = 24_000
"""Maximum bytes of paths in the arguments of a call. The lowest limit of any system is 32 kB."""
GROUP_ITEMS = 1_000
GROUP_BYTES = 8 * 1024 * 1024
"""Maximum number of bytes that `walk` has in memory at once. A single file may be larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    path: str
    blob: str
    size: int


class ArchiveRepository:
    """A bare Git repository to which commits are only added.

    Several threads and processes may write to a repository. All methods block.
    """

    def __init__(self, git: GitProgram, identity: str) -> None:
        self._git = git
        self._identity = identity

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        author_name: str,
        author_email: str,
        timeout: timedelta = timedelta(seconds=60),
        program: str = "git",
    ) -> "ArchiveRepository":
        """Open the repository at `path`, and create a missing repository.

        Concurrent calls are safe.

        Raises:
            InvalidArgument: The name or the address of the author is not valid in a commit.
            ArchiveUnavailable: Git is missing, or the folder cannot be created, or contains other files.
        """
        opened = cls(
            GitProgram(program, path.absolute(), timeout), checked_identity(author_name, author_email)
        )
        if not opened.is_made:
            _create(opened._git)
        opened._git.run("rev-parse", "--git-dir")
        return opened

    @property
    def is_made(self) -> bool:
        """Whether the repository exists and its folder is readable."""
        try:
            return (self._git.folder / "HEAD").exists()
        except OSError:
            return False

    def write(
        self,
        files: Mapping[str, bytes],
        *,
        removed: Sequence[str] = (),
        subject: str,
        body: str = "",
        trailers: Sequence[tuple[str, str]] = (),
        now: int,
    ) -> str | None:
        """Add, replace and remove files in one commit, and return the commit id.

        Return None if the archive already has the given content, so a repeated write is safe. Removed files
        remain in earlier commits.

        Raises:
            InvalidPath: A path is not safe, a file would replace a folder, or a folder would replace a file.
            InvalidArgument: `now` is before 1970, or the key of a trailer is invalid.
            ArchiveUnavailable: Git failed. The branch is unchanged, or contains the complete batch.
        """
        if now < 0:
            raise InvalidArgument(f"{now} is not a valid time for a commit", value=now)
        text = message(subject, body, trailers)
        changes = (file_removals(removed) if removed else b"") + file_changes(files)
        if not files and not removed:
            return None
        with self._turn():
            for _ in range(ATTEMPTS):
                parent = self.tip()
                built = self._build(parent, text, changes, now)
                if not self._changes_something(parent, built, removed):
                    return None
                answer = self._git.ask("update-ref", BRANCH, built, parent or UNBORN)
                if answer.code == 0:
                    return built
                if self.tip() == parent:  # otherwise, another writer has moved the branch
                    raise self._git.failure("update-ref", answer)
        raise ArchiveUnavailable(
            f"other writers moved {BRANCH} {ATTEMPTS} times while one batch was written",
            value=str(self._git.folder),
            remedy="make sure that only one process writes the archive; postroom repeats the batch",
        )

    def tip(self) -> str | None:
        """Return the id of the newest commit, or None for an empty repository."""
        answer = self._git.ask("for-each-ref", "--format=%(objectname)", BRANCH)
        # If Git cannot read a branch file, it only warns. Do not treat this as a missing branch.
        if answer.code != 0 or answer.complaint:
            raise self._git.failure("for-each-ref", answer)
        return answer.out.decode().strip() or None

    def existing(self, paths: Iterable[str]) -> set[str]:
        """Return the given paths that exist as files in the newest commit.

        Raises:
            InvalidPath: A path is not safe.
        """
        requested_values = sorted({checked_path(path) for path in paths})
        tip = self.tip()
        if tip is None:
            return set()
        groups = _groups(requested_values, lambda path: len(path.encode()), ARGUMENTS_LIMIT)
        return {entry.path for group in groups for entry in self._list(tip, group)}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file in the newest commit, or None for a missing file.

        Raises:
            InvalidPath: The path is not safe.
        """
        safe_path = checked_path(path)
        tip = self.tip()
        if tip is None:
            return None
        entries = [entry for entry in self._list(tip, [safe_path]) if entry.path == safe_path]
        return next((content for _, content in self._contents(entries)), None)

    def walk(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the path and content of each file below the folder `prefix`, ordered by path.

        All files come from the same commit.

        Raises:
            InvalidPath: The prefix is not safe.
        """
        return self._walk(_folder(prefix))

    def paths(self, prefix: str = "") -> list[str]:
        """Return the paths of all files below the folder `prefix` in the newest commit, in order.

        Raises:
            InvalidPath: The prefix is not safe.
        """
        return [entry.path for entry in self._below(_folder(prefix))]

    def blobs(self) -> dict[str, str]:
        """Return the Git hash of every file in the newest commit, keyed by path."""
        return {entry.path: entry.blob for entry in self._below([])}

    def commit_count(self) -> int:
        """Return the number of commits in the repository."""
        tip = self.tip()
        return 0 if tip is None else int(self._git.run("rev-list", "--count", tip, patience=LONG))

    def check(self) -> list[str]:
        """Return the findings of `git fsck --strict` and the paths of stale lock files.

        Raises:
            ArchiveUnavailable: The check could not be made.
        """
        answer = self._git.ask("fsck", "--strict", "--no-dangling", "--no-progress", patience=LONG)
        lines = f"{answer.out.decode('utf-8', 'replace')}\n{answer.complaint}".splitlines()
        findings = [line for line in lines if line.strip() and not line.startswith(("notice: ", "dangling "))]
        if answer.code != 0 and not findings:
            findings = [f"git fsck ended with {answer.code}"]
        with self._turn():  # no writer is active, so an existing lock belongs to a dead process
            folder = self._git.folder
            left = [*folder.glob("*.lock"), *folder.glob("refs/**/*.lock")]
        return findings + [
            f"{path} blocks the archive: if no Git runs, remove this file"
            for path in left
            if path.name != TURN_FILE
        ]

    def tidy(self, now: int) -> bool:
        """Combine packs if the repository has over 50 packs or 2,000 loose objects.

        Return whether packs were combined. Delete temporary files that dead processes left more than an hour
        before `now`. Concurrent reads and writes are safe.

        Raises:
            ArchiveUnavailable: Git failed. Nothing is lost.
        """
        since = now - milliseconds(LEFTOVER_AFTER)
        for pattern in LEFTOVERS:
            for path in self._git.folder.glob(pattern):
                try:
                    if path.stat().st_mtime_ns // 1_000_000 < since:
                        path.unlink()
                # its process has completed the file, or another `tidy` has removed it
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise ArchiveUnavailable(
                        f"a file of an interrupted write cannot be removed: {error}", value=str(path)
                    ) from error
        counted = self._git.run("count-objects", "-v").decode().splitlines()
        counts = dict(line.split(": ", 1) for line in counted)
        if int(counts["packs"]) <= PACKS_KEPT and int(counts["count"]) <= LOOSE_KEPT:
            return False
        # `--geometric` combines packs of similar size, so the work is proportional to the added data. Objects
        # to which no branch refers yet, such as a batch in progress, are kept.
        self._git.run("repack", "--geometric=2", "-d", "-l", "-q", "-n", patience=LONG)
        return True

    @contextmanager
    def _turn(self) -> Iterator[None]:
        path = self._git.folder / TURN_FILE
        patience = self._git.timeout.total_seconds()
        lock = FileLock(path, timeout=patience, mode=0o600, poll_interval=0.005)
        try:
            lock.acquire()
        except Timeout:
            raise ArchiveUnavailable(
                f"another process has held {path} for {self._git.timeout.total_seconds():g} s",
                value=str(path),
                remedy="make sure that only one process writes the archive; postroom repeats the batch",
            ) from None
        except OSError as error:
            raise ArchiveUnavailable(
                f"the archive cannot be written: {error}", value=str(path), remedy=remedy_for(str(error))
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _build(self, parent: str | None, text: str, changes: bytes, now: int) -> str:
        """Write the objects of a commit, and return the id of the commit, which no branch contains yet."""
        stream = commit_stream(
            ref=f"refs/postroom/{uuid.uuid4().hex}",
            identity=self._identity,
            now=now,
            text=text,
            changes=changes,
            parent=parent,
        )
        answer = self._git.ask("fast-import", "--quiet", "--done", "--date-format=raw", stdin=stream)
        if answer.code != 0:
            # Remove the files that a failed import names in its output. They may have filled the disk.
            for name in _OWN_LEFTOVER.findall(answer.complaint):
                # Ignore the error, because the caller needs the error of the import. `tidy` removes these
                # files later.
                with suppress(OSError):
                    (self._git.folder / name).unlink()
            raise self._git.failure("fast-import", answer)
        return answer.out.decode().strip()

    def _changes_something(self, parent: str | None, built: str, removed: Sequence[str]) -> bool:
        if parent is None:
            return True
        changed = self._git.run("diff-tree", "-r", "-z", "--name-status", "--no-renames", parent, built)
        words = changed.decode("utf-8", "surrogateescape").split("\0")
        for status, path in zip(words[::2], words[1::2], strict=False):
            if status == "D" and path not in removed:
                raise InvalidPath(
                    f"a new file would replace {path!r} in the archive: a path cannot be both a file and a "
                    f"folder",
                    value=path,
                    remedy="choose another name for the new file",
                )
        return bool(changed)

    def _list(self, tip: str, paths: Sequence[str], *, below: bool = False) -> list[_Entry]:
        options = ["-r"] if below else []
        listed = self._git.run("ls-tree", "-z", "-l", *options, "--", tip, *paths)
        return [entry for line in listed.split(b"\0") if (entry := _entry(line)) is not None]

    def _below(self, folder: Sequence[str]) -> list[_Entry]:
        tip = self.tip()
        return [] if tip is None else self._list(tip, folder, below=True)

    def _walk(self, folder: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for group in _groups(self._below(folder), lambda entry: entry.size, GROUP_BYTES):
            yield from self._contents(group)

    def _contents(self, entries: Sequence[_Entry]) -> Iterator[tuple[str, bytes]]:
        if not entries:
            return
        data = "".join(f"{entry.blob}\n" for entry in entries).encode()
        replies = memoryview(self._git.run("cat-file", "--batch", stdin=data))
        at = 0
        for entry in entries:
            heading = f"{entry.blob} blob {entry.size}\n".encode()
            start = at + len(heading)
            if replies[at:start] != heading:
                raise ArchiveUnavailable(
                    f"{entry.path!r} cannot be read back: object {entry.blob} is missing or damaged",
                    value=entry.path,
                )
            yield entry.path, bytes(replies[start : start + entry.size])
            at = start + entry.size + 1


def _create(git: GitProgram) -> None:
    """Create the repository atomically, so that no other process sees an incomplete repository."""
    folder = git.folder
    fresh = GitProgram(git.program, folder.with_name(f".{folder.name}-{uuid.uuid4().hex}"), git.timeout)
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.run("init", "--bare", "--quiet", "--template=", "--initial-branch=main")
        fresh.run("config", "gc.auto", "0")
        fresh.run("config", "core.logAllRefUpdates", "false")
        fresh.folder.rename(folder)
    except OSError as error:
        if not (folder / "HEAD").exists():
            raise ArchiveUnavailable(
                f"cannot create a repository at {folder}: {error}",
                value=str(folder),
                remedy="give the server's user a writable folder that is empty or does not exist",
            ) from error
    finally:
        shutil.rmtree(fresh.folder, ignore_errors=True)


def _folder(prefix: str) -> list[str]:
    return [checked_path(prefix.removesuffix("/"))] if prefix else []


def _entry(line: bytes) -> _Entry | None:
    facts, _, path = line.partition(b"\t")
    if not facts.startswith(b"100"):
        return None
    _, _, blob, size = facts.split()
    if not size.isdigit():
        name = path.decode("utf-8", "replace")
        raise ArchiveUnavailable(
            f"{name!r} cannot be read: object {blob.decode()} is missing or damaged",
            value=name,
            remedy="move the repository to another folder and run `postroom rebuild archive`",
        )
    return _Entry(path=path.decode("utf-8", "surrogateescape"), blob=blob.decode(), size=int(size))


def _groups(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    group: list[T] = []
    held = 0
    for item in items:
        if group and (held + size(item) > limit or len(group) == GROUP_ITEMS):
            yield group
            group, held = [], 0
        group.append(item)
        held += size(item)
    if group:
        yield group
