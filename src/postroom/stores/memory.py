"""Stores of runs in memory, based on SQLite; their contents are lost when they are closed."""

from postroom.contracts.clock import Clock
from postroom.stores.runs.ports import RunStores
from postroom.stores.sqlite.store import SqliteStore


class MemoryRunStores(RunStores):
    """The ports of runs over a new store in memory."""

    def __init__(self, clock: Clock | None = None) -> None:
        kept_sqlite_store = SqliteStore.in_memory(clock)
        super().__init__(kept_sqlite_store.store)
        self.chat = kept_sqlite_store.chat
        """The chat gateway's stores, in the same database."""
