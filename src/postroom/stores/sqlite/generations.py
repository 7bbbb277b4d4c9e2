"""Detects whether a database has lost commits, by comparing a number that is stored in two places.

The first commit after each checkpoint increases the number in the header of the database (`PRAGMA
user_version`). When this commit is on the disk, and before any caller gets its result, the number is also
written to `<database>.generation`. Until the next checkpoint, the commit itself is only in the log,
`<database>-wal`. Therefore a database that has lost its log, or was replaced by an older copy, has a smaller
number than the file next to it.

The file is not synced. After a power failure it may contain an earlier number, which does no harm.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

from postroom.contracts.errors import WrongStore
from postroom.log import get_logger

_LOG = get_logger(__name__)
_DIGITS: Final = 10
"""The fixed number of digits, with which the number can be overwritten in place."""


class Generations:
    """Detects whether a database has lost commits, by a generation number in the database and in a file.

    Only the writer's thread may use this object.
    """

    def __init__(self, database: Path) -> None:
        self._file = generation_file(database)
        self.is_due = True
        """Whether the next commit must increase the number."""
        self._raised: int | None = None

    def end(self) -> None:
        """Let the next commit increase the generation number, because a checkpoint has run."""
        self.is_due = True

    def begin(self, connection: sqlite3.Connection) -> None:
        """Increase the generation number within the transaction of `connection`."""
        self._raised = _number_in(connection) + 1
        connection.execute(f"PRAGMA user_version = {self._raised}")

    def keep(self) -> None:
        """Write the increased generation number to the file next to the database, after the commit.

        An error is logged, and the next commit increases the number again.
        """
        if self._raised is None:
            return
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, f"{self._raised:0{_DIGITS}}".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            _LOG.warning("store.generation_not_kept", file=str(self._file), reason=error.strerror)
        else:
            self.is_due = False


def generation_file(database: Path) -> Path:
    """Return the path of the file with the generation number of a database."""
    return database.with_name(f"{database.name}.generation")


def forget_generation(database: Path) -> None:
    """Delete the file with the generation number, so that any state of the database is accepted.

    Raises:
        OSError: The file cannot be deleted.
    """
    generation_file(database).unlink(missing_ok=True)


def refuse_lost_commits(connection: sqlite3.Connection, database: Path) -> None:
    """Check that a database has not lost commits.

    Raises:
        WrongStore: The number in the database is smaller than the number in the file next to it.
    """
    file = generation_file(database)
    try:
        kept_count = int(file.read_bytes())
    except (OSError, ValueError):  # the file is missing or damaged, so nothing is known
        return
    if _number_in(connection) < kept_count:
        raise WrongStore(
            f"{database} lacks committed changes: its log {database.name}-wal was lost, or the database "
            f"file is an older copy",
            value=str(database),
            remedy=(
                f"restore {database.name}-wal, if you have it; or {WrongStore.default_remedy}. A program "
                f"that embeds postroom can remove {file.name} to open the database as it is"
            ),
        )


def _number_in(connection: sqlite3.Connection) -> int:
    [[number]] = connection.execute("PRAGMA user_version")
    return int(number)
