"""The mail store in memory: everything is gone when the process ends."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from postroom.contracts.errors import StoreUnavailable
from postroom.contracts.store import MailReads, MailWrites
from postroom.stores.memory.reads import MemoryReads
from postroom.stores.memory.tables import Tables
from postroom.stores.memory.writes import MemoryWrites

T = TypeVar("T")


class MemoryStore:
    """Mail in this process's memory; the reference for what every store answers."""

    def __init__(self) -> None:
        self._tables = Tables()
        self._one_at_a_time = threading.Lock()
        self._closed = False

    async def read(self, look: Callable[[MailReads], T]) -> T:
        """Run `look` in one consistent view.

        Raises:
            StoreUnavailable: closed.
        """
        await asyncio.sleep(0)  # others run meanwhile, as they do while a store on disk works
        with self._one_at_a_time:
            self._refuse_when_closed()
            return look(MemoryReads(self._tables))

    async def write(self, change: Callable[[MailWrites], T]) -> T:
        """Run `change` whole or not at all, one after another.

        Raises:
            StoreUnavailable: closed.
        """
        await asyncio.sleep(0)  # as above
        with self._one_at_a_time:
            self._refuse_when_closed()
            return self._run(change)

    async def settle(self) -> None:
        """Nothing is left to do: a search here reads the messages themselves."""

    async def probe(self) -> None:
        """Write and read back one row."""

        def write_and_read(tx: MailWrites) -> int | None:
            self._tables.probes.put(1, 1)
            return self._tables.probes.get(1)

        await self.write(write_and_read)

    def close(self) -> None:
        """Take no more work; harmless when done twice."""
        self._closed = True

    def _run(self, change: Callable[[MailWrites], T]) -> T:
        journal = self._tables.journal
        try:
            done = change(MemoryWrites(self._tables))
        except BaseException:
            journal.undo()
            raise
        journal.keep()
        return done

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed", remedy="start the server again")
