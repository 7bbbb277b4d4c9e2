"""Stores of runs in memory, based on SQLite; when they are closed, their contents are lost."""

from postroom.contracts.clock import Clock
from postroom.stores.runs.ports import RunStores
from postroom.stores.sqlite.store import SqliteStore


class MemoryRunStores(RunStores):
    """The stores of runs in a new in-memory database."""

    def __init__(self, clock: Clock | None = None) -> None:
        kept_sqlite_store = SqliteStore.in_memory(clock)
        super().__init__(kept_sqlite_store.store)
        self.chat = kept_sqlite_store.chat
        """The stores of the chat gateway in the same database."""
