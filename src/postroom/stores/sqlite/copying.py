"""Copies of the database: of one moment, whole or not there at all, made while others write.

<target>.partial ──written──▶ read back whole, where that is asked ──▶ <target>

Beside it lies <target>.partial.lock for so long, which tells whose it is: with a lock that nobody holds it
was left by a process that was killed, and goes with the next copy; without one it is a stranger's, and stays.
"""

import os
import sqlite3
import sys
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
"""What SQLite may lay beside a database of its own accord."""
_PAGES: Final = 128
"""Pages, half a megabyte with the usual size, after which a copy looks whether it is to stop."""
_STEPS: Final = 100_000
"""Instructions of SQLite after which a reading looks whether it is to stop; some milliseconds."""


def back_up(
    connection: sqlite3.Connection,
    target: Path,
    *,
    is_read_back: bool = False,
    is_kept: bool = True,
    rest: float = 0,
    stop: threading.Event | None = None,
) -> None:
    """Write a consistent copy of the database to `target`, readable by its owner alone, whole or not at all.

    The connection is in no transaction. With `is_read_back` every table and index of the copy is read before
    it appears. One that is not kept need not survive a power cut. After each piece others have the
    disk for `rest` times as long as it took. Once `stop` is set the copy ends soon.

    Raises:
        StoreError: the copy could not be written; what `target` was before, it is still.
        StoreCorrupt: the copy does not read back, as then the database does not.
        StoreUnavailable: it was told to stop.
        StateError: another copy is being written there.
        InvalidPath: somebody else's file lies where it would be written.
    """
    stop = stop or threading.Event()
    try:
        with _partial_of(target) as partial:
            partial.touch(mode=0o600)
            _copy(connection, partial, _Pace(stop, rest), is_kept=is_kept)
            if is_read_back:
                refuse_faults(partial, target, stop)
            partial.replace(target)
            sync_folder(target.parent)
    except StoreFull as error:  # the copy's disk, which may be another than the database's
        raise no_room(target, error.__cause__) from error
    except OSError as error:
        raise file_error(error, target) from error


@contextmanager
def _partial_of(target: Path) -> Iterator[Path]:
    """Give where a copy is written until it is whole; what is there of it afterwards is removed.

    Raises:
        StateError: another copy is being written there.
        InvalidPath: somebody else's file is there.
        OSError: the lock cannot be made.
    """
    from filelock import FileLock, Timeout  # loaded where copies are made

    partial = target.with_name(target.name + PARTIAL)
    held = partial.with_name(f"{partial.name}.lock")
    target.parent.stat()  # the lock would make a folder that is missing
    if not held.exists():
        _refuse_strangers(partial)
    held.touch(mode=0o600)  # the lock takes a folder that refuses files for one in which somebody has it
    lock = FileLock(held, mode=0o600, blocking=False, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise StateError(
            f"another process writes a backup to {target}", value=str(target), remedy="wait until it is done"
        ) from None
    try:
        remove_with_companions(partial)
        yield partial
    finally:
        remove_with_companions(partial)
        with suppress(
            OSError
        ):  # before it is released, so that nobody gets one without a name; Windows keeps it
            held.unlink(missing_ok=True)
        lock.release()


def _refuse_strangers(partial: Path) -> None:
    for one in (partial.with_name(partial.name + ending) for ending in ("", *COMPANIONS)):
        if one.exists():
            raise InvalidPath(
                f"{one} is in the way, which may not be ours: a backup is written there until it is whole",
                value=str(one),
                remedy="move it away, or name another file",
            )


def remove_with_companions(file: Path) -> None:
    """Remove a database and what SQLite left beside it; harmless when there is none.

    Raises:
        OSError: it cannot be removed.
    """
    for ending in ("", *COMPANIONS):
        file.with_name(file.name + ending).unlink(missing_ok=True)


def sync_folder(folder: Path, *, platform: str = sys.platform) -> None:
    """Have the names in a folder survive a power cut.

    Raises:
        OSError: the folder cannot be opened or synced.
    """
    if platform == "win32":  # a folder cannot be opened there, and a rename is durable without
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy(connection: sqlite3.Connection, target: Path, pace: "_Pace", *, is_kept: bool) -> None:
    copy = sqlite3.connect(target)
    if not is_kept:
        copy.execute("PRAGMA synchronous = OFF")
    try:
        with translated():
            # A copy in several steps begins anew whenever another connection has written in between, and
            # under steady writing it never ends. Within a read transaction there is nothing new to be seen.
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


class _Pace:
    """Keeps a copy from taking the disk from those who commit."""

    def __init__(self, stop: threading.Event, rest: float) -> None:
        self._stop, self._rest, self._began = stop, rest, time.monotonic()

    def keep(self, file: int) -> None:
        """Send a piece to the disk, so that no commit waits for more, and rest.

        Raises:
            StoreUnavailable: the copy is to stop.
        """
        if self._rest:
            os.fsync(file)
            self._stop.wait((time.monotonic() - self._began) * self._rest)
            self._began = time.monotonic()
        if self._stop.is_set():
            raise StoreUnavailable("the copy was broken off: the database is being closed")


def refuse_faults(file: Path, shown: Path | None = None, stop: threading.Event | None = None) -> None:
    """Read a whole copy, which nobody else writes, so that it is opened without a log or a lock.

    Raises:
        StoreCorrupt: it does not read back; `shown` is how the error names it.
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
            f"the copy {shown} does not read back as it should: {faults[0]}",
            value=str(shown),
            remedy="run `postroom doctor`: what is wrong with the copy is wrong with the database",
        )
