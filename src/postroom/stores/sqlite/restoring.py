"""Replaces a database with a backup, which is verified first; the former database is kept.

FILE ──copy──▶ <database>.restoring ──check──▶ <database>
<database> ──▶ <database>.before-restore.<milliseconds>
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from postroom.contracts import progress
from postroom.contracts.errors import (
    InvalidArgument,
    InvalidPath,
    SchemaTooNew,
    StateError,
    StoreCorrupt,
    StoreError,
    StoreFull,
)
from postroom.stores.migrations import shipped_migrations
from postroom.stores.sqlite.connection import connect, file_error, refuse_no_file, translated
from postroom.stores.sqlite.copying import refuse_changed, remove_with_companions, sync_folder
from postroom.stores.sqlite.generations import forget_generation
from postroom.stores.sqlite.lock import OwnerLock
from postroom.stores.sqlite.migrate import applied_steps

_PIECE: Final = 4 * 1024 * 1024
_STEPS: Final = 100_000
"""Number of SQLite instructions between two progress reports."""
_COMPANIONS: Final = ("-wal", "-shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore, or of its dry run."""

    source: Path
    database: Path
    former: Path | None
    """The path of the former database, or None if there was none."""
    schema: int
    size: int
    done: bool

    def as_dict(self) -> dict[str, object]:
        """Return the result as JSON data."""
        return {
            "source": str(self.source),
            "database": str(self.database),
            "former": None if self.former is None else str(self.former),
            "schema": self.schema,
            "size": self.size,
            "done": self.done,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """The backup to restore, the database to replace, and the options of the restore."""

    source: Path
    database: Path
    force: bool = False
    dry_run: bool = False


def restore(wish: RestoreOptions, *, now: int) -> Restored:
    """Verify a backup, and replace the database with the backup.

    Raises:
        StoreHeld: A server, or another command, uses the database.
        StateError: A database already exists, and `force` is not set.
        StoreCorrupt: The backup is damaged, or is not a postroom database.
        SchemaTooNew: A newer release wrote the backup.
        InvalidArgument: The file is a live database, not a backup.
        StoreReadOnly: This user has no permission to read the backup or to write the database.
    """
    for path in (wish.source, wish.database):
        if not path.name:
            raise InvalidPath(f"{path} is not a file", value=str(path), remedy="give a file")
    refuse_no_file(wish.database)
    source = wish.source
    log = source.with_name(f"{source.name}-wal")
    with reading(source):
        is_live = log.exists() and log.stat().st_size > 0
    if is_live:
        raise InvalidArgument(
            f"{source} is not a complete backup: its newest changes are only in {log.name}",
            value=str(source),
            remedy="create a backup with `postroom backup`, and restore that backup",
        )
    with writing(wish.database):
        wish.database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock, file = OwnerLock(wish.database), wish.database.with_name(f"{wish.database.name}.lock")
    is_known = file.exists()
    lock.acquire(now=now, purpose="restore")
    try:
        if wish.database.exists() and not (wish.force or wish.dry_run):
            raise StateError(
                f"{wish.database} already exists",
                value=str(wish.database),
                remedy=(
                    "add --force to replace the database (the old file stays in the folder), or use --to "
                    "with another path"
                ),
            )
        return _restore(wish, now)
    finally:
        lock.release()
        if not is_known and not wish.database.exists():  # nothing was restored, so no file is left behind
            file.unlink(missing_ok=True)


def _restore(wish: RestoreOptions, now: int) -> Restored:
    fresh = wish.database.with_name(f"{wish.database.name}.restoring")
    try:
        size = _copy_backup(wish.source, fresh)
        with reading(wish.source):
            refuse_changed(fresh, wish.source)
        schema = checked_schema(fresh, wish.source)
        kept_as = wish.database.with_name(f"{wish.database.name}.before-restore.{now}")
        former = kept_as if wish.database.exists() else None
        if not wish.dry_run:
            if former is not None:
                _set_aside(wish.database, former)
            with writing(wish.database):
                forget_generation(wish.database)
                fresh.replace(wish.database)
                sync_folder(wish.database.parent)
    finally:
        remove_with_companions(fresh)
    return Restored(
        source=wish.source,
        database=wish.database,
        former=former,
        schema=schema,
        size=size,
        done=not wish.dry_run,
    )


def _copy_backup(source: Path, target: Path) -> int:
    """Copy a backup to the disk, readable only by its owner; return the number of bytes."""
    with reading(source):
        opened = source.open("rb")
    with opened, writing(target):
        total = os.fstat(opened.fileno()).st_size
        remove_with_companions(target)
        target.touch(mode=0o600)
        with target.open("wb") as written:
            while piece := opened.read(_PIECE):
                written.write(piece)
                progress.tell("copying the backup: bytes", written.tell(), total)
            written.flush()
            os.fsync(written.fileno())
    return total


def checked_schema(file: Path, shown: Path) -> int:
    """Read a whole database and return the number of its schema; error messages name the file as `shown`.

    Raises:
        StoreCorrupt: The file is damaged, or is not a postroom database.
        SchemaTooNew: A newer release wrote the file.
    """
    try:
        with translated():
            faults, applied = _read_whole(file)
    except StoreFull:  # the file is not the cause of this error
        raise
    except StoreError as error:
        raise _unfit(shown, error.message) from error
    if faults:
        raise _unfit(shown, f"the database is damaged: {faults[0]}")
    return known_schema(applied, shown)


def known_schema(applied: Mapping[int, str], shown: Path) -> int:
    """Return the number of the last applied schema step; `applied` contains the checksum of each step.

    Raises:
        StoreCorrupt: The steps are not those of postroom.
        SchemaTooNew: A newer release wrote the database.
    """
    by_version = {step.version: step.checksum for step in shipped_migrations("sqlite")}
    if applied and max(applied) > max(by_version):
        raise SchemaTooNew(
            f"{shown} has schema {max(applied)}, but this release supports up to {max(by_version)}",
            value=max(applied),
            remedy="restore it with the newer release that wrote it",
        )
    if not applied or any(by_version.get(version) != checksum for version, checksum in applied.items()):
        raise _unfit(shown, "this is not a postroom database")
    return max(applied)


def _read_whole(file: Path) -> tuple[list[str], dict[int, str]]:
    connection = connect(file)
    text = f"reading all {file.stat().st_size:,} bytes of the database"
    connection.set_progress_handler(lambda: progress.tell(text), _STEPS)
    try:
        faults = [row[0] for row in connection.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
        return faults, applied_steps(connection)
    finally:
        connection.close()


def _unfit(shown: Path, reason: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{shown} cannot be restored: {reason}",
        value=str(shown),
        remedy="restore an intact backup; nothing was changed",
    )


def _set_aside(database: Path, former: Path) -> None:
    """Keep the database and its log under a second name."""
    # Opening the database would consume the log, which may be the only evidence of damage. The log is moved
    # first, because SQLite would apply a log next to the new file to the new file.
    with writing(database):
        try:
            former.hardlink_to(database)
        except OSError:  # without hard links, no file has that name for a moment
            database.replace(former)
        for ending in _COMPANIONS:
            left = database.with_name(database.name + ending)
            if left.exists():
                left.replace(former.with_name(former.name + ending))
        sync_folder(database.parent)


@contextmanager
def reading(source: Path) -> Iterator[None]:
    """Convert file system errors while a file is read to errors of postroom."""
    try:
        yield
    except PermissionError as error:  # the error names the owner and the remedy
        raise file_error(error, source, is_read=True) from error
    except OSError as error:
        raise InvalidPath(f"{str(source)!r} cannot be read: {error.strerror}", value=str(source)) from error


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Convert file system errors while a file is written to errors of postroom."""
    try:
        yield
    except OSError as error:
        raise file_error(error, target) from error
