"""Writes the log of the database beforehand, so that commits overwrite it instead of making it longer.

To lengthen a file costs a second journal entry of the file system with every fsync: measured, a durable
commit takes 0.10 ms on a log that is there and 0.19 ms on one that grows. The log shrinks to nothing when
the last connection closes, so this is done at each opening.
"""

import shutil
import sqlite3
from pathlib import Path

import structlog

_LOG = structlog.get_logger(__name__)


def reserve_log(connection: sqlite3.Connection, path: Path, size: int) -> None:
    """Make the log about `size` bytes long and leave it empty; harmless when it cannot be done.

    A disk without ten times the room keeps it for letters.

    The database keeps as many bytes as free pages, which the next messages fill.
    """
    if shutil.disk_usage(path.parent).free < 10 * size:
        return
    try:
        connection.execute("DROP TABLE IF EXISTS log_reserve")  # of a process that died here
        connection.execute("CREATE TABLE log_reserve (filling BLOB)")
        connection.execute("INSERT INTO log_reserve VALUES (zeroblob(?))", (size,))
        connection.execute("DROP TABLE log_reserve")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    except sqlite3.Error as error:
        # Commits are slower without it and as durable; a full disk is told to the first caller who writes.
        _LOG.warning("store.log_not_reserved", reason=str(error))
