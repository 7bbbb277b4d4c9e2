"""One opened database, and each view of it: mail, runs, chats."""

from collections.abc import Sequence
from pathlib import Path

from postroom.contracts.clock import Clock
from postroom.stores.chats.stores import ChatStores
from postroom.stores.identity import StoreIdentity, identity_of
from postroom.stores.mail.store import MailStore
from postroom.stores.outline import Outline
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import SqlStore


class Stores(MailStore):
    """One store as those see it who know one kind of tables only; by itself it is the port of mail."""

    def __init__(self, store: SqlStore, *, is_exclusive: bool) -> None:
        super().__init__(store)
        self.store = store
        self.is_exclusive = is_exclusive
        """Whether no other process writes to the same place."""
        self._runs = RunStores(store)
        self._chat = ChatStores(store, is_shared=not is_exclusive)

    @property
    def runs(self) -> RunStores:
        """Runs, in the same place."""
        return self._runs

    @property
    def chat(self) -> ChatStores:
        """What the chat gateway keeps, in the same place."""
        return self._chat

    @property
    def clock(self) -> Clock:
        """The clock to go by."""
        return self.store.clock

    @property
    def release(self) -> str:
        """The database and its release, as people name it."""
        return self.store.engine.release

    @property
    def checks_pages(self) -> bool:
        """Whether each page has a checksum, so that one that was damaged is refused when it is read."""
        return self.store.engine.checks_pages

    @property
    def grouping(self) -> tuple[int, int]:
        """How many commits were made, and how many changes they held."""
        return self.store.engine.grouping

    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        """Write a consistent copy while work goes on, and read it back unless the caller does.

        Raises:
            StoreError: the copy could not be written or does not read back; the target is as it was.
            StateError: the engine makes no copies.
        """
        await self.store.engine.back_up(target, is_read_back=is_read_back)

    async def check(self) -> list[str]:
        """Read the whole database and return what is wrong with it; empty when nothing is."""
        return await self.store.engine.check()

    async def indexes_that_lack_rows(self) -> list[str]:
        """Return the indexes that can be written again from their tables without losing anything."""
        return await self.store.engine.indexes_that_lack_rows()

    async def write_again(self, indexes: Sequence[str]) -> None:
        """Write these indexes again; other writers wait meanwhile.

        Raises:
            StoreCorrupt: something is wrong still; nothing was changed.
        """
        await self.store.engine.write_again(indexes)

    async def identity(self, slugs: Sequence[str] = ()) -> StoreIdentity:
        """Return the identity of the store, and which of the projects `slugs` it contains."""
        return await self.store.engine.read(lambda sql: identity_of(sql, slugs))

    async def identify(self, store_id: str) -> None:
        """Give the store its id, once; one that it has stays."""
        await self.store.engine.write(lambda sql: sql.run("store.identify", {"store_id": store_id}))

    async def outline(self) -> Outline:
        """Return the shape of the database without what is in it."""
        return await self.store.engine.outline()

    def close(self) -> None:
        """Finish what was handed in and close; harmless when done twice. Blocks."""
        self.store.close()
