"""The store in one SQLite file, or in memory."""

from pathlib import Path

from postroom.contracts.clock import Clock, SystemClock
from postroom.stores.sqlite.engine import SqliteEngine
from postroom.stores.store import SqlStore
from postroom.stores.stores import Stores


class SqliteStore(Stores):
    """A store in one SQLite file that this process owns, or in memory."""

    def __init__(self, engine: SqliteEngine) -> None:
        super().__init__(SqlStore(engine), is_exclusive=True)
        self.path = engine.path

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        clock: Clock | None = None,
        purpose: str = "server",
        readers: int = 2,
        log_reserve: int = 0,
        may_begin: bool = True,
    ) -> "SqliteStore":
        """Lock a database file, upgrade its schema, and start the writer thread; the call blocks.

        The log of the database is extended to `log_reserve` bytes in advance, which makes commits faster.

        Raises:
            WrongStore: The database is missing or empty, and `may_begin` is False; or its log is damaged.
                The database is unchanged, and no file was created.
            StoreHeld: Another process owns the file.
            SchemaTooNew: A newer release wrote the database.
            StoreReadOnly: The file or its folder is not writable.
        """
        engine = SqliteEngine.open(
            Path(path),
            clock=clock or SystemClock(),
            purpose=purpose,
            readers=readers,
            log_reserve=log_reserve,
            may_begin=may_begin,
        )
        return cls(engine)

    @classmethod
    def in_memory(cls, clock: Clock | None = None) -> "SqliteStore":
        """Create an empty in-memory store, which is lost when the store is closed."""
        return cls(SqliteEngine.in_memory(clock or SystemClock()))
