"""Opens connections to the database file, and converts the driver's errors to errors of postroom.

Only the writer may run checkpoints. If two connections run them, SQLite 3.7.0 to 3.51.2 can corrupt the WAL
file (https://sqlite.org/wal.html#walresetbug), and some machines have one of these versions. All other
connections set `wal_autocheckpoint = 0`. The writer runs checkpoints explicitly, after its callers have got
their results.
"""

import errno
import os
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from postroom.contracts.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    WrongStore,
)
from postroom.rights import denied
from postroom.stores.mail.search_index import indexed_text
from postroom.stores.sql_transaction import Dialect, Row, SqlTransaction, Statement, Values, statements

FIRST_SAFE_RELEASE = (3, 51, 3)
MOUNTS = Path("/proc/self/mountinfo")
"""The Linux file that lists mounts."""
_ESCAPED = {ord(sign): f"\\{ord(sign):03o}" for sign in " \t\n\\"}
"""The escape sequences of separators in the list of mounts."""
BUSY_TIMEOUT = timedelta(seconds=10)
PAGE_SIZE: Final = 2_048
"""The page size in bytes of a new database; an existing database keeps its page size.

A commit writes each changed page to the log as a whole, although often only a short row was added. With this
page size, a run writes 75 kB; with pages of 4,096 bytes, it would write 130 kB.
"""

_PIECE = 1 << 18

_READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a database file in WAL mode with full durability, and create a missing file.

    With `read_only`, the file must exist, and the connection never writes.

    Raises:
        sqlite3.Error: The file cannot be opened or is not a database.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'rw' if read_only else 'rwc'}",
        uri=True,
        timeout=BUSY_TIMEOUT.total_seconds(),
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        prepare(connection, read_only=read_only)
    except BaseException:
        connection.close()
        raise
    return connection


_OTHERS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
"""The kinds of things that a path can lead to instead of a regular file."""


def refuse_no_file(path: Path, what: str = "database") -> None:
    """Check that a path leads to a regular file or to nothing.

    Raises:
        StoreReadOnly: The path is a folder, a pipe, a socket or a device.
    """
    # SQLite's own error does not name the cause, and in some cases SQLite reports no error at all.
    try:
        mode = path.stat().st_mode
    except OSError:  # it is missing or unreadable, which the next attempt to open it reports
        return
    for is_it, kind in _OTHERS:
        if is_it(mode):
            elsewhere = ", or use another file with --database" if what == "database" else ""
            raise StoreReadOnly(
                f"{path} is {kind} instead of a {what}", value=str(path), remedy=f"move it away{elsewhere}"
            )


def refuse_no_folder(path: Path) -> None:
    """Check that a path leads to a folder or to nothing.

    Raises:
        StoreReadOnly: The path is a file, or cannot be examined.
    """
    try:
        is_other = path.exists() and not path.is_dir()
    except OSError as error:  # a parent folder is inaccessible
        raise file_error(error, path) from error
    if is_other:
        raise StoreReadOnly(
            f"{path} is a file instead of a folder", value=str(path), remedy="move the file to another folder"
        )


def refuse_shared(path: Path, *, mounts: Path = MOUNTS) -> None:
    """Check that a database file can be reached through only one folder.

    Through another folder, a second server would use a separate lock and log, and overwrite changes. Symbolic
    links, and hard links in the same folder, are allowed.

    Raises:
        WrongStore: The file has a hard link in another folder, or is itself a mount.
        StoreError: The file's folder, or the system's list of mounts, cannot be read.
    """
    try:
        if not path.exists():
            return
        value = path.stat()
        names = sum(entry.inode() == value.st_ino for entry in os.scandir(path.parent))
        text = mounts.read_text(encoding="utf-8", errors="surrogateescape") if mounts.exists() else ""
    except OSError as error:
        raise file_error(error, path) from error
    # The mount is checked first, because the name in its folder belongs to another file.
    if str(path).translate(_ESCAPED) in (line.split(" ")[4] for line in text.splitlines()):
        raise WrongStore(
            f"{path} is mounted without the folder that contains its lock and its log",
            value=str(path),
            remedy=f"mount the folder instead: {path.parent}",
        )
    if value.st_nlink > names:
        raise WrongStore(
            f"{path} has a hard link in another folder",
            value=str(path),
            remedy=f"stop the server, then run `cp {path} copy.db && mv copy.db {path}`",
        )


def connect_unshared(path: Path) -> sqlite3.Connection:
    """Open a database file to which no process writes, for reading; the connection needs no disk space.

    Raises:
        StoreFull: The log contains changes that are not in the file, and reading them needs space.
        sqlite3.Error: The file cannot be opened or is not a database.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise no_room(path, f"reading {log.name} needs free space on the disk")
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro&immutable=1",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA query_only = ON")
    return connection


def connect_beside(path: Path) -> sqlite3.Connection:
    """Open a database file that another process owns, for reading; the connection never runs a checkpoint.

    Raises:
        sqlite3.Error: The file cannot be opened or is not a database.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=BUSY_TIMEOUT.total_seconds(),
        isolation_level=None,
    )
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -16000")
    return connection


def add_functions(connection: sqlite3.Connection) -> None:
    """Add the SQL functions that the triggers and the statements of the schema call."""
    connection.create_function("indexed_text", 1, indexed_text, deterministic=True)


def prepare(connection: sqlite3.Connection, *, read_only: bool, platform: str = sys.platform) -> None:
    """Set the options of a connection, so that each commit is on the disk when it returns."""
    add_functions(connection)
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # On macOS fsync leaves data in the drive's cache (https://sqlite.org/pragma.html#pragma_fullfsync).
    if platform == "darwin":
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -16000")
    if read_only:
        connection.execute("PRAGMA query_only = ON")


def store_error(error: sqlite3.Error) -> StoreError:
    """Convert an error of the SQLite driver to an error of postroom."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    primary = code & 0xFF
    text = str(error)
    # Without space for the file that connections share, no connection can be opened.
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(f"the disk is full: {text}")
    if primary in _READ_ONLY:
        return StoreReadOnly(f"the database is not writable: {text}")
    if primary in _CORRUPT:
        return StoreCorrupt(f"the database is damaged: {text}")
    if isinstance(error, sqlite3.OperationalError):
        return StoreUnavailable(f"the database did not answer: {text}")
    return StoreError(f"the database reported an error: {text}")


def refuse_denied(path: Path) -> None:
    """Check that this process can write the database and the files next to it, without opening them.

    Raises:
        StoreReadOnly: A file is not writable; the error names the file's owner and the remedy.
    """
    # SQLite creates the files next to a database with the mode of the database, and leaves them if it fails.
    # Those files would lock out the next process that opens the database, even of the same user.
    wanted = os.R_OK | os.W_OK
    if (value := denied(path.parent, wanted | os.X_OK)) is not None:
        raise StoreReadOnly(
            f"{path} cannot be written: {value.why(path)}", value=str(path), remedy=value.remedy
        )
    beside = (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm")))
    blamed = [value for path in beside if path.exists() and (value := denied(path, wanted)) is not None]
    if blamed:
        raise StoreReadOnly(
            f"{path} cannot be written: {'; '.join(item.why(path) for item in blamed)}",
            value=str(path),
            remedy="; ".join(item.remedy for item in blamed),
        )


def file_error(error: OSError, path: Path, *, is_read: bool = False) -> StoreError:
    """Convert a file system error to an error of postroom that names the missing permission."""
    if error.errno in _NO_SPACE:
        return no_room(path, error)
    text = f"{path} cannot be {'read' if is_read else 'written'}"
    if isinstance(error, PermissionError):
        wanted = os.R_OK if is_read else os.R_OK | os.W_OK
        # The file that failed may be one next to it, such as its lock.
        for item in (path, Path(error.filename) if isinstance(error.filename, str) else path):
            if (value := denied(item, wanted)) is not None:
                return StoreReadOnly(f"{text}: {value.why(path)}", value=str(path), remedy=value.remedy)
    may = "read" if is_read else "write to"
    return StoreReadOnly(
        f"{text}: {error}",
        value=str(path),
        remedy=f"give the user of this process permission to {may} {_parent_folder(path)}",
    )


def _parent_folder(path: Path) -> Path:
    with suppress(OSError):
        return path if path.is_dir() else path.parent
    return path.parent


def take_room(folder: Path, size: int) -> None:
    """Check that `size` bytes fit on the disk of a folder, by writing and deleting them.

    Raises:
        StoreFull: The bytes do not fit.
        StoreReadOnly: The folder is not writable.
    """
    # Reading the free disk space is not enough, because users may have quotas.
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for left in range(size, 0, -_PIECE):
                # random bytes, because a compressing file system needs the full space for them
                file.write(os.urandom(min(left, _PIECE)))
    except OSError as error:
        raise file_error(error, folder) from error


def no_room(path: Path, reason: object) -> StoreFull:
    """Return the error for a file on a full disk."""
    return StoreFull(
        f"the disk is full: {path}: {reason}",
        value=str(path),
        remedy=f"free space on the disk of {_parent_folder(path)}, and try again",
    )


@contextmanager
def translated() -> Iterator[None]:
    """Convert errors of the SQLite driver to errors of postroom."""
    try:
        yield
    except sqlite3.Error as error:
        raise store_error(error) from error
    except StopIteration:
        # a future does not accept this exception, so its caller would wait forever
        raise RuntimeError("a function given to the store raised StopIteration") from None


def sqlite_release() -> tuple[str, bool]:
    """Return the version of SQLite, and whether this version is free of the WAL-reset bug."""
    return sqlite3.sqlite_version, sqlite3.sqlite_version_info >= FIRST_SAFE_RELEASE


_NONE: Final[Values] = {}


class SqliteTransaction(SqlTransaction):
    """Executes named SQL statements over one connection; the caller begins and ends the transaction."""

    dialect: Final[Dialect] = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.known = {}
        self.spent = {}
        self.instant = None
        self._execute = connection.execute
        self._execute_many = connection.executemany
        self._statements = statements("sqlite")

    @override
    def one(self, statement: str, values: Values = _NONE) -> Row | None:
        row: Row | None = self.run(statement, values).fetchone()
        return row

    @override
    def all(self, statement: str, values: Values = _NONE) -> list[Row]:
        return self.run(statement, values).fetchall()

    @override
    def ask(self, *looks: tuple[str, Values]) -> list[list[Row]]:
        rows = list[list[Row]]()
        for statement, values in looks:
            rows.append(self.run(statement, values).fetchall())
        return rows

    @override
    def run_many(self, statement: str, rows: Iterable[Values]) -> None:
        self.known.clear()
        value = self._statements[statement]
        self._execute_many(value.text, [_bound(value, values) for values in rows] if value.lists else rows)

    @override
    def changed(self, statement: str, values: Values = _NONE) -> int:
        return self.run(statement, values).rowcount

    @override
    def run(self, statement: str, values: Values = _NONE) -> sqlite3.Cursor:
        value = self._statements[statement]
        if self.known and not value.text.startswith("SELECT"):
            self.known.clear()
        if not value.lists:
            return self._execute(value.text, values)
        bound = dict(values)
        for name in value.lists:
            entries = values[name]
            if entries is None or len(entries) != 1:
                return self._execute(value.text, _bound(value, values))
            [bound[name]] = entries
        return self._execute(value.text_of_one, bound)

    @override
    def lock(self, *names: str) -> None:
        """Do nothing, because only one thread writes."""

    @override
    def wait_for_locks(self) -> None:
        """Do nothing, because there are no locks."""


def _bound(statement: Statement, values: Values) -> Values:
    """Return the values with lists as JSON arrays."""
    bound = dict[str, Any](values)
    for name in statement.lists:
        if bound[name] is not None:
            bound[name] = f"[{','.join(map(_json, bound[name]))}]"
    return bound


def _json(one: int | str) -> str:
    # `json.dumps` would be slower, because each call creates an encoder.
    return encode_basestring_ascii(one) if isinstance(one, str) else str(int(one))
