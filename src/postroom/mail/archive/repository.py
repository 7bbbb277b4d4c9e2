"""The archive's repository: batches of files in, files out, through the `git` program.

Owns one bare repository and its branch `main`. Uses neither the index nor a work tree, so that there is no
`index.lock` and the cost of a batch does not grow with the number of files. Independent of mail.

    turn ──▶ tip ──▶ fast-import (one pack, one fsync) ──▶ what changed? ──▶ compare and set of the branch
              ▲                                                                        │
              └───────────────── another writer came between ◀─────────────────────────┘

Writers of this class take turns, so that none of them builds in vain forever: without turns, one of two
equally fast processes lost twenty times in a row. Only the compare-and-set keeps the branch consistent, also
against a Git without turns.
"""

import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import ArchiveUnavailable, InvalidArgument, InvalidPath
from postroom.mail.archive import commit
from postroom.mail.archive.git import GitProgram, remedy_for

T = TypeVar("T")

BRANCH = "refs/heads/main"
UNBORN = "0" * 40
"""Git's value for a branch that does not exist yet."""
TURN_FILE = "postroom.lock"
ATTEMPTS = 20
"""Maximum restarts of one write because another writer moved the branch."""
LONG = 10
"""Number of timeouts that a read of the whole repository may take."""
PACKS_KEPT = 50
LOOSE_KEPT = 2_000
LEFTOVER_AFTER = timedelta(hours=1)
"""Age after which an unchanged temporary file counts as left by a dead process."""
LEFTOVERS = ("objects/pack/tmp_*", "objects/pack/.tmp-*", "fast_import_crash_*")
_OWN_LEFTOVER = re.compile(r"objects/pack/tmp_(?:pack|idx)_\w+|fast_import_crash_\d+")
ARGUMENTS_LIMIT = 24_000
"""Bytes of paths passed to one call; the lowest limit of the supported systems is 32 kB."""
GROUP_ITEMS = 1_000
GROUP_BYTES = 8 * 1024 * 1024
"""Bytes that `walk` holds at once; one file may be larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One file of a tree."""

    path: str
    blob: str
    size: int


class ArchiveRepository:
    """One bare Git repository to which commits are only added.

    Several writers, in threads or processes, may share it: they take turns, and a writer that finds the
    branch moved builds again on the new commit. Waiting for a turn and every Git call are bounded by the
    timeout, calls that read the whole repository by ten timeouts. Blocks: run it in a worker thread.
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
        """Open the repository at `path`, or create it; concurrent calls are safe.

        Raises:
            InvalidArgument: The author is not valid in a commit.
            ArchiveUnavailable: Git is missing, or the folder cannot be created or has other contents.
        """
        identity = commit.checked_identity(author_name, author_email)
        git = GitProgram(program, path.absolute(), timeout)
        if not _is_made(git.folder):
            _create(git)
        git.run("rev-parse", "--git-dir")
        return cls(git, identity)

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
        """Add or replace `files` in one commit on the branch, dated `now`, and return the commit's id.

        Return None if the archive already has exactly these files: a batch can be repeated, also after a
        failure with an unknown result. Files in `removed` are removed from the newest tree; those of earlier
        commits stay, and nothing else is ever removed. The subject is folded to one line of at most 72
        characters, each trailer's value to one line.

        Raises:
            InvalidPath: A path is not safe, or a file would replace a folder or a folder a file.
            InvalidArgument: `now` is before 1970, or a trailer's key is invalid.
            ArchiveUnavailable: Git failed; the branch is unchanged, or has the complete batch.
        """
        if now < 0:
            raise InvalidArgument(f"{now} is not a valid time for a commit", value=now)
        text = commit.message(subject, body, trailers)
        changes = commit.file_removals(removed) + commit.file_changes(files)
        if not files and not removed:
            return None
        with self._turn():
            for _ in range(ATTEMPTS):
                parent = self.tip()
                built = self._build(parent, text, changes, now)
                if not self._changes_something(parent, built, removed):
                    return None
                if self._move_branch(parent, built):
                    return built
        raise ArchiveUnavailable(
            f"other writers moved {BRANCH} {ATTEMPTS} times while one batch was written",
            value=str(self._git.folder),
            remedy="let only one process write the archive; the batch is retried",
        )

    def tip(self) -> str | None:
        """Return the id of the newest commit, or None before the first one."""
        answer = self._git.ask("for-each-ref", "--format=%(objectname)", BRANCH)
        # A branch file that Git cannot read is only a complaint here; taking it for no branch would hide it.
        if answer.code != 0 or answer.complaint:
            raise self._git.failure("for-each-ref", answer)
        return answer.out.decode().strip() or None

    def existing(self, paths: Iterable[str]) -> set[str]:
        """Return the paths among these that are files of the newest commit.

        Raises:
            InvalidPath: A path is not safe.
        """
        asked = sorted({commit.checked_path(path) for path in paths})
        tip = self.tip()
        if tip is None:
            return set()
        groups = _groups(asked, lambda path: len(path.encode()), ARGUMENTS_LIMIT)
        return {entry.path for group in groups for entry in self._list(tip, group)}

    def read(self, path: str) -> bytes | None:
        """Return a file of the newest commit, or None if it has no such file.

        Raises:
            InvalidPath: The path is not safe.
        """
        asked = commit.checked_path(path)
        tip = self.tip()
        if tip is None:
            return None
        entries = [entry for entry in self._list(tip, [asked]) if entry.path == asked]
        return next((content for _, content in self._contents(entries)), None)

    def walk(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield every file of the newest commit in the folder `prefix` (or all files), by path.

        All files come from one commit, whatever is written in the meantime. Paths are held in memory,
        contents in groups; no process runs between two groups, so the reader may take its time.

        Raises:
            InvalidPath: The prefix is not safe.
        """
        return self._walk(_folder(prefix))

    def paths(self, prefix: str = "") -> list[str]:
        """Return the paths of all files of the newest commit in the folder `prefix`, in order.

        Raises:
            InvalidPath: The prefix is not safe.
        """
        return [entry.path for entry in self._below(_folder(prefix))]

    def blobs(self) -> dict[str, str]:
        """Return Git's hash of every file of the newest commit, by path."""
        return {entry.path: entry.blob for entry in self._below([])}

    def commit_count(self) -> int:
        """Return the number of commits on the branch."""
        tip = self.tip()
        return 0 if tip is None else int(self._git.run("rev-list", "--count", tip, patience=LONG))

    def check(self) -> list[str]:
        """Return the findings of `git fsck --strict`, and stale lock files; empty for a sound repository.

        Objects without a commit are not findings: a repeated or interrupted batch leaves some.

        Raises:
            ArchiveUnavailable: The check itself failed.
        """
        answer = self._git.ask("fsck", "--strict", "--no-dangling", "--no-progress", patience=LONG)
        lines = f"{answer.out.decode('utf-8', 'replace')}\n{answer.complaint}".splitlines()
        findings = [line for line in lines if line.strip() and not line.startswith(("notice: ", "dangling "))]
        if answer.code != 0 and not findings:
            findings = [f"git fsck ended with {answer.code}"]
        with self._turn():  # no writer of this class is active, so an existing lock belongs to a dead one
            folder = self._git.folder
            left = [*folder.glob("*.lock"), *folder.glob("refs/**/*.lock")]
        return findings + [
            f"{path} blocks the archive: if no Git runs, remove this file"
            for path in left
            if path.name != TURN_FILE
        ]

    def tidy(self, now: int) -> bool:
        """Join small packs if there are over 50, or over 2,000 loose objects; return whether it did.

        Also remove temporary files of processes that died more than an hour before `now`. No object is
        dropped, so that concurrent writers are safe, and readers never wait.

        Raises:
            ArchiveUnavailable: Git failed; nothing is lost.
        """
        self._sweep(now)
        counted = self._git.run("count-objects", "-v").decode().splitlines()
        counts = dict(line.split(": ", 1) for line in counted)
        if int(counts["packs"]) <= PACKS_KEPT and int(counts["count"]) <= LOOSE_KEPT:
            return False
        # Geometric: packs of similar size are joined, so that the work is proportional to the additions.
        # Objects that no branch names yet, such as a batch in progress, are kept.
        self._git.run("repack", "--geometric=2", "-d", "-l", "-q", "-n", patience=LONG)
        return True

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other writer of this class is active; a turn ends with its process at the latest."""
        path = self._git.folder / TURN_FILE
        patience = self._git.timeout.total_seconds()
        lock = FileLock(path, timeout=patience, mode=0o600, poll_interval=0.005)
        try:
            lock.acquire()
        except Timeout:
            raise ArchiveUnavailable(
                f"another process has held {path} for {self._git.timeout.total_seconds():g} s",
                value=str(path),
                remedy="let only one process write the archive; the batch is retried",
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
        """Write the batch's objects and return its commit, which is not on the branch yet."""
        stream = commit.commit_stream(
            ref=f"refs/postroom/{uuid.uuid4().hex}",
            identity=self._identity,
            now=now,
            text=text,
            changes=changes,
            parent=parent,
        )
        answer = self._git.ask("fast-import", "--quiet", "--done", "--date-format=raw", stdin=stream)
        if answer.code != 0:
            self._discard(answer.complaint)
            raise self._git.failure("fast-import", answer)
        return answer.out.decode().strip()

    def _discard(self, complaint: str) -> None:
        """Remove the files that a failed import names: on a full disk they would keep it full."""
        for name in _OWN_LEFTOVER.findall(complaint):
            # The caller needs the import's error; `tidy` removes the rest later.
            with suppress(OSError):
                (self._git.folder / name).unlink()

    def _changes_something(self, parent: str | None, built: str, removed: Sequence[str]) -> bool:
        """Return whether the new tree differs from its parent's, and refuse a tree that lost a file."""
        if parent is None:
            return True
        changed = self._git.run("diff-tree", "-r", "-z", "--name-status", "--no-renames", parent, built)
        words = changed.decode("utf-8", "surrogateescape").split("\0")
        for status, path in zip(words[::2], words[1::2], strict=False):
            if status == "D" and path not in removed:
                raise InvalidPath(
                    f"the archive has {path!r}, which cannot be both a file and a folder",
                    value=path,
                    remedy="give the new file another name",
                )
        return bool(changed)

    def _move_branch(self, parent: str | None, built: str) -> bool:
        """Set the branch to `built` if it is still at `parent`; return False if another writer moved it."""
        answer = self._git.ask("update-ref", BRANCH, built, parent or UNBORN)
        if answer.code == 0:
            return True
        if self.tip() != parent:
            return False
        raise self._git.failure("update-ref", answer)

    def _list(self, tip: str, paths: Sequence[str], *, below: bool = False) -> list[_Entry]:
        """Return the files at `paths` in a commit, or with `below` also all files under them."""
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
        """Yield each entry's path and content, after one process has read them all and ended."""
        if not entries:
            return
        asked = "".join(f"{entry.blob}\n" for entry in entries).encode()
        replies = memoryview(self._git.run("cat-file", "--batch", stdin=asked))
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

    def _sweep(self, now: int) -> None:
        since = now - milliseconds(LEFTOVER_AFTER)
        for pattern in LEFTOVERS:
            for path in self._git.folder.glob(pattern):
                try:
                    if path.stat().st_mtime_ns // 1_000_000 < since:
                        path.unlink()
                # its process completed it in the meantime, or another tidy removed it
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise ArchiveUnavailable(
                        f"a leftover cannot be removed: {error}", value=str(path)
                    ) from error


def _is_made(folder: Path) -> bool:
    try:
        return (folder / "HEAD").exists()
    except OSError:  # an unreadable place; creating something there gives the reason
        return False


def _create(git: GitProgram) -> None:
    """Create the repository in a temporary folder and rename it; a second creator finds it complete."""
    folder = git.folder
    fresh = GitProgram(git.program, folder.with_name(f".{folder.name}-{uuid.uuid4().hex}"), git.timeout)
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.run("init", "--bare", "--quiet", "--template=", "--initial-branch=main")
        fresh.run("config", "gc.auto", "0")
        fresh.run("config", "core.logAllRefUpdates", "false")
        fresh.folder.rename(folder)
    except OSError as error:
        if not _is_made(folder):
            raise ArchiveUnavailable(
                f"cannot create a repository at {folder}: {error}",
                value=str(folder),
                remedy="give the server's user a writable folder that is empty or does not exist",
            ) from error
    finally:
        shutil.rmtree(fresh.folder, ignore_errors=True)


def _folder(prefix: str) -> list[str]:
    """Return the one folder to list; an empty list stands for the whole tree."""
    return [commit.checked_path(prefix.removesuffix("/"))] if prefix else []


def _entry(line: bytes) -> _Entry | None:
    """Read a line of `ls-tree -l`; return None for an entry that is not a regular file."""
    facts, _, path = line.partition(b"\t")
    if not facts.startswith(b"100"):
        return None
    _, _, blob, size = facts.split()
    if not size.isdigit():
        name = path.decode("utf-8", "replace")
        raise ArchiveUnavailable(
            f"{name!r} cannot be read: object {blob.decode()} is missing or damaged",
            value=name,
            remedy="move the repository away and run `postroom rebuild archive`",
        )
    return _Entry(path=path.decode("utf-8", "surrogateescape"), blob=blob.decode(), size=int(size))


def _groups(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Cut into groups of at most `limit` bytes and `GROUP_ITEMS` items; a larger item is a group itself."""
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
