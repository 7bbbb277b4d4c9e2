"""The reference stores: plain tables in memory, to be read beside the ports and to test against."""

from postroom.stores.memory.live import LocalLiveChannels
from postroom.stores.memory.registry import MemoryRegistryStore
from postroom.stores.memory.run_stores import MemoryRunStores
from postroom.stores.memory.store import MemoryStore

__all__ = ["LocalLiveChannels", "MemoryRegistryStore", "MemoryRunStores", "MemoryStore"]
