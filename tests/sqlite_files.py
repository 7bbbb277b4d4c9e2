"""A store on a new SQLite file, made quickly: the schema is copied, for making it takes most of the time."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from postroom.contracts.clock import Clock
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock


def open_new(path: Path, clock: Clock) -> SqliteStore:
    """Open an empty store on a file that is not there yet; call it outside of the event loop."""
    path.write_bytes(with_the_newest_schema())
    return SqliteStore.open(path, clock=clock, purpose="test")


@cache
def with_the_newest_schema() -> bytes:
    """Return a database file with nothing in it but the newest schema."""
    with TemporaryDirectory(prefix="postroom-schema-") as folder:
        path = Path(folder, "postroom.db")
        SqliteStore.open(path, clock=ManualClock(), purpose="test").close()
        return path.read_bytes()
