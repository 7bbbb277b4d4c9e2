"""A store on a new SQLite file, made quickly: the schema is copied, for making it takes most of the time.

Its commits do not wait for the disk, on which they would else spend half of the time of most tests. Killed, a process
leaves what it committed; a power cut, which no test makes, would lose it.
"""

import sqlite3
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from postroom.contracts.clock import Clock
from postroom.stores.sqlite import SqliteStore, engine
from postroom.stores.sqlite.connection import add_functions, connect
from postroom.testing import ManualClock


def open_new(path: Path, clock: Clock) -> SqliteStore:
    """Open an empty store on a file that is not there yet; call it outside of the event loop."""
    path.write_bytes(with_the_newest_schema())
    with patch.object(engine, "connect", _without_waiting):
        return SqliteStore.open(path, clock=clock, purpose="test")


def _without_waiting(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    connection = connect(path, read_only=read_only)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


@cache
def with_the_newest_schema() -> bytes:
    """Return a database file with nothing in it but the newest schema."""
    with TemporaryDirectory(prefix="postroom-schema-") as folder:
        path = Path(folder, "postroom.db")
        SqliteStore.open(path, clock=ManualClock(), purpose="test").close()
        return path.read_bytes()


def assert_index_agrees(connection: sqlite3.Connection) -> None:
    """Compare the search index, word by word, with an index made from the messages."""
    add_functions(connection)
    columns = ("subject", "body_md", "sender_name", "topic")
    connection.execute(
        f"CREATE VIRTUAL TABLE temp.wanted_fts USING fts5 ({', '.join(columns)}, content = '',"
        " tokenize = 'unicode61 remove_diacritics 2')"
    )
    texts = ", ".join(f"indexed_text({column})" for column in columns)
    connection.execute(
        f"INSERT INTO temp.wanted_fts (rowid, {', '.join(columns)}) SELECT id, {texts} FROM messages"
        " WHERE id <= (SELECT indexed_to FROM search_index_progress)"
    )
    connection.execute("CREATE VIRTUAL TABLE temp.found USING fts5vocab (main, messages_fts, instance)")
    connection.execute("CREATE VIRTUAL TABLE temp.wanted USING fts5vocab (temp, wanted_fts, instance)")
    found, wanted = (
        set(connection.execute(f"SELECT term, doc, col, offset FROM temp.{table}"))
        for table in ("found", "wanted")
    )
    assert found == wanted
