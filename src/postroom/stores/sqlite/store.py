"""The store on one SQLite file, or in memory."""

from pathlib import Path

from postroom.contracts.clock import Clock, SystemClock
from postroom.stores.sqlite.engine import SqliteEngine
from postroom.stores.store import SqlStore
from postroom.stores.stores import Stores


class SqliteStore(Stores):
    """Everything in one file that this process alone owns, or in memory."""

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
        """Own the file, bring it to the newest schema and start the writer. Blocks.

        `log_reserve` bytes of the log are written beforehand, which makes commits faster.

        Raises:
            WrongStore: there is no database or an empty one, and not `may_begin`; or its log is damaged.
                Nothing was made or changed.
            StoreHeld: another process owns it.
            SchemaTooNew: a newer postroom wrote it.
            StoreReadOnly: it or its folder cannot be written.
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
        """Begin an empty store whose contents are gone with it."""
        return cls(SqliteEngine.in_memory(clock or SystemClock()))
