"""Places in traces, over tables in memory."""

from collections.abc import Sequence

from postroom.contracts.errors import StoreError
from postroom.contracts.tracing import TRACEPARENT_LENGTH
from postroom.stores.memory.tables import Tables


class MemoryTraceReads:
    """Look-ups over the tables as they are."""

    _tables: Tables

    def traces(self, names: Sequence[str]) -> dict[str, str]:
        """Return what is kept under these names; a name without any is not there."""
        kept = {name: self._tables.waking.traces.get(name) for name in names}
        return {name: found for name, found in kept.items() if found is not None}


class MemoryTraceWrites(MemoryTraceReads):
    """Changes of the tables, undone when the transaction is."""

    def put_trace(self, name: str, traceparent: str) -> None:
        """Keep a place in a trace, or replace it."""
        if len(traceparent) != TRACEPARENT_LENGTH:
            raise StoreError("the store refused: no traceparent", value=name)
        self._tables.waking.traces.put(name, traceparent)
