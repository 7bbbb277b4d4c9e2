"""Copies the database while other connections write to it.

A copy is consistent; it is either complete or does not exist.

    <target>.partial ──written──▶ verified, if requested ──▶ <target>

During the copy, `<target>.partial.lock` shows that a process is writing it. If no process holds the lock of a
partial copy, a killed process has left the copy, and the next copy deletes it. A partial copy without a lock
file belongs to another program, and is not touched.
"""

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from postroom.contracts import progress
from postroom.contracts.errors import InvalidPath, StateError, StoreCorrupt, StoreFull, StoreUnavailable
from postroom.stores.sqlite.connection import file_error, no_room, translated

PARTIAL: Final = ".partial"
COMPANIONS: Final = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite may create next to a database."""
_PAGES: Final = 256
"""Number of pages in a piece (half a megabyte at the usual page size). After each piece, a copy checks
whether to stop.
"""
_HEAD: Final = 100
"""Number of bytes read from the header of a SQLite database: page size at 16, number of pages at 28."""
_MAGIC: Final = b"SQLite format 3\0"
_STEPS: Final = 100_000
"""Number of SQLite instructions (a few milliseconds) after which a verification checks whether to stop."""


def back_up(
    connection: sqlite3.Connection,
    target: Path,
    *,
    is_read_back: bool = False,
    rest: float = 0,
    stop: threading.Event | None = None,
) -> None:
    """Write a consistent copy of the database to `target`, which only its owner can read.

    `target` appears complete or not at all. The connection must not be in a transaction. With `is_read_back`,
    every table and index of the copy is read before `target` appears. After each piece, the copy pauses for
    `rest` times the duration of the piece. When `stop` is set, the copy ends soon.

    Raises:
        StoreError: The copy could not be written, and an existing `target` is unchanged.
        StoreCorrupt: The copy is damaged, which means that the database is damaged, too.
        StoreUnavailable: The copy was stopped.
        StateError: Another copy is being written there.
        InvalidPath: The file of the partial copy belongs to another program.
    """
    stop = stop or threading.Event()
    try:
        with _partial_copy(target) as partial:
            partial.touch(mode=0o600)
            _copy(connection, partial, _Pace(stop, rest))
            if is_read_back:
                refuse_faults(partial, target, stop)
            partial.replace(target)
            sync_folder(target.parent)
    except StoreFull as error:  # this is the disk of the copy, which may be another one
        raise no_room(target, error.__cause__) from error
    except OSError as error:
        raise file_error(error, target) from error


@contextmanager
def _partial_copy(target: Path) -> Iterator[Path]:
    """Yield the path at which the copy is written until it is complete; delete the file afterwards.

    Raises:
        StateError: Another copy is being written there.
        InvalidPath: A file of another program exists there.
        OSError: The lock cannot be created.
    """
    from filelock import FileLock, Timeout  # only imported for copies

    partial = target.with_name(target.name + PARTIAL)
    held = partial.with_name(f"{partial.name}.lock")
    target.parent.stat()  # the lock would create a missing folder
    if not held.exists():
        for path in (partial.with_name(partial.name + ending) for ending in ("", *COMPANIONS)):
            if path.exists():
                raise InvalidPath(
                    f"{path} exists already, but a backup needs this name while it is being written",
                    value=str(path),
                    remedy="move the file away, or use another name for the backup",
                )
    held.touch(mode=0o600)  # for the lock, a folder that refuses new files looks like a held lock
    lock = FileLock(held, mode=0o600, blocking=False, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise StateError(
            f"another process is writing a backup to {target}",
            value=str(target),
            remedy="wait until that backup is complete",
        ) from None
    try:
        remove_with_companions(partial)
        yield partial
    finally:
        remove_with_companions(partial)
        # before the lock is released, so that nobody acquires a lock without a file name
        with suppress(OSError):
            held.unlink(missing_ok=True)
        lock.release()


def remove_with_companions(file: Path) -> None:
    """Delete a database and the files that SQLite keeps next to it; missing files are ignored.

    Raises:
        OSError: A file cannot be deleted.
    """
    for ending in ("", *COMPANIONS):
        file.with_name(file.name + ending).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the file names in a folder survive a power failure.

    Raises:
        OSError: The folder cannot be opened or synced.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy(connection: sqlite3.Connection, target: Path, pace: "_Pace") -> None:
    """Copy the database, and sync the copy to the disk."""
    copy = sqlite3.connect(target)
    copy.execute("PRAGMA synchronous = OFF")
    try:
        with translated():
            # A copy in several steps restarts whenever another connection has written meanwhile, and would
            # never end under constant writes. A read transaction sees no new writes.
            connection.execute("BEGIN")
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
            try:
                with target.open("rb") as file:

                    def went_on(_: int, left: int, pages: int) -> None:
                        progress.tell("copying the database: pages", pages - left, pages)
                        pace.keep(file.fileno())

                    connection.backup(copy, pages=_PAGES, progress=went_on)
            finally:
                connection.execute("ROLLBACK")
    finally:
        copy.close()
    sync_file(target)


class _Pace:
    """Slows down a copy, so that the copy does not delay commits."""

    def __init__(self, stop: threading.Event, rest: float) -> None:
        self._stop, self._rest, self._began = stop, rest, time.monotonic()

    def keep(self, file: int) -> None:
        """Sync a piece of a copy to the disk, and pause.

        Raises:
            StoreUnavailable: The copy must stop.
        """
        if self._rest:
            os.fsync(file)
            self._stop.wait((time.monotonic() - self._began) * self._rest)
            self._began = time.monotonic()
        if self._stop.is_set():
            raise StoreUnavailable("the copy was cancelled, because the database is closing")


def sync_file(file: Path) -> None:
    """Write the content of a file to the disk, so that it survives a power failure.

    Raises:
        OSError: The file cannot be opened or synced.
    """
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def refuse_cut_off(file: Path) -> None:
    """Check that the length of a database file equals the length in its header.

    Raises:
        StoreCorrupt: The file is not a SQLite database, or does not have its original length.
        OSError: The file cannot be read.
    """
    with file.open("rb") as opened:
        head, size = opened.read(_HEAD), os.fstat(opened.fileno()).st_size
    if len(head) < _HEAD or not head.startswith(_MAGIC):
        raise _corrupt_error(f"{file} is not a database", file)
    page = int.from_bytes(head[16:18], "big")
    expected = (65_536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    if size != expected:
        raise _corrupt_error(f"{file} has {size:,} bytes instead of {expected:,}", file)


def digest_file(backup: Path) -> Path:
    """Return the path of the file, next to a backup, that contains the SHA-256 of the backup."""
    return backup.with_name(f"{backup.name}.sha256")


def hash_file(file: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def name_with_digest(copy: Path, target: Path, digest: str) -> None:
    """Write the digest of a verified copy to the disk, and then move the copy to `target`.

    Raises:
        OSError: The digest or the name cannot be written.
    """
    beside = digest_file(target)
    beside.touch(mode=0o600)
    beside.write_text(f"{digest}  {target.name}\n", encoding="utf-8")
    sync_file(beside)
    copy.replace(target)
    sync_folder(target.parent)


def refuse_changed(file: Path, backup: Path) -> None:
    """Compare the SHA-256 of a file with the checksum file of a backup, if the checksum file exists.

    `file` is the backup or a copy of the backup.

    Raises:
        StoreCorrupt: The content of the file differs from the checksum of the backup.
        OSError: The digest or the file cannot be read.
    """
    try:
        text = digest_file(backup).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    if text.split(" ")[0] != hash_file(file):
        raise _corrupt_error(f"{backup} has changed since it was written: its SHA-256 differs", backup)


def _corrupt_error(reason: str, file: Path) -> StoreCorrupt:
    remedy = "restore another backup: `postroom backup list --check` shows which backups are intact"
    return StoreCorrupt(reason, value=str(file), remedy=remedy)


def refuse_faults(file: Path, shown: Path | None = None, stop: threading.Event | None = None) -> None:
    """Read every table and index of a complete copy to which no process writes.

    Raises:
        StoreCorrupt: The copy is damaged; `shown` is its name in the error.
    """
    shown, stop = shown or file, stop or threading.Event()

    def is_to_stop() -> bool:
        progress.tell(f"reading back {size:,} bytes")
        return stop.is_set()

    size = file.stat().st_size
    with translated():
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True)
        try:
            connection.set_progress_handler(is_to_stop, _STEPS)
            faults = [row[0] for row in connection.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
        finally:
            connection.close()
    if faults:
        raise StoreCorrupt(
            f"the copy {shown} is damaged: {faults[0]}",
            value=str(shown),
            remedy="run `postroom doctor`: the database itself is damaged",
        )
