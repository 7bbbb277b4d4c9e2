"""One open database, with a separate view for mail, runs and chats."""

from collections.abc import Sequence
from pathlib import Path

from postroom.stores.chats.stores import ChatStores
from postroom.stores.mail.store import MailStore
from postroom.stores.outline import Outline, StoreIdentity, identity_of
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import SqlStore


class Stores(MailStore):
    """One store, with a separate view for each caller that uses only one kind of table.

    The object itself is the port of mail.
    """

    def __init__(self, store: SqlStore, *, is_exclusive: bool) -> None:
        super().__init__(store)
        self.store = store
        self.is_exclusive = is_exclusive
        """Whether no other process writes to the same database."""
        self.runs = RunStores(store)
        """The stores of runs, in the same database."""
        self.chat = ChatStores(store, is_shared=not is_exclusive)
        """The chat gateway's stores, in the same database."""
        self.clock = store.clock
        """The clock of the store."""

    @property
    def release(self) -> str:
        """The name and version of the database, for display."""
        return self.store.engine.release

    @property
    def checks_pages(self) -> bool:
        """Whether each page has a checksum, so that damaged pages are detected when they are read."""
        return self.store.engine.checks_pages

    @property
    def grouping(self) -> tuple[int, int]:
        """The number of commits, and the number of changes in all of them."""
        return self.store.engine.grouping

    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        """Write a consistent copy while work continues, and verify it unless the caller does so.

        Raises:
            StoreError: The copy could not be written or is damaged; the target is unchanged.
            StateError: The engine does not support copies.
        """
        await self.store.engine.back_up(target, is_read_back=is_read_back)

    async def check(self) -> list[str]:
        """Read the whole database and return its faults."""
        return await self.store.engine.check()

    async def indexes_that_lack_rows(self) -> list[str]:
        """Return the indexes that can be rebuilt from their tables without losing data."""
        return await self.store.engine.indexes_that_lack_rows()

    async def write_again(self, indexes: Sequence[str]) -> None:
        """Rebuild these indexes; other writers wait until the end.

        Raises:
            StoreCorrupt: A fault remains; nothing was changed.
        """
        await self.store.engine.write_again(indexes)

    async def identity(self, slugs: Sequence[str] = ()) -> StoreIdentity:
        """Return the identity of the store, and which of the projects `slugs` it contains."""
        return await self.store.engine.read(lambda sql: identity_of(sql, slugs))

    async def identify(self, store_id: str) -> None:
        """Assign an id to the store unless it already has one."""
        await self.store.engine.write(lambda sql: sql.run("store.identify", {"store_id": store_id}))

    async def outline(self) -> Outline:
        """Return the schema of the database without its data."""
        return await self.store.engine.outline()

    def close(self) -> None:
        """Finish submitted work and close the store; repeated calls have no effect. Blocks."""
        self.store.close()
