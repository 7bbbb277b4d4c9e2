"""The reference store: plain tables in memory, to be read beside the port and to test against."""

from postroom.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
