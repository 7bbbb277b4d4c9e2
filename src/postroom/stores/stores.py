"""One open database, with a separate view for mail, runs and chats."""

from collections.abc import Sequence
from pathlib import Path

from postroom.stores.chats.stores import ChatStores
from postroom.stores.mail.store import MailStore
from postroom.stores.outline import Outline, StoreIdentity, read_identity
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import SqlStore


class Stores(MailStore):
    """One open database, with separate views for mail, runs and chats."""

    def __init__(self, store: SqlStore, *, is_exclusive: bool) -> None:
        super().__init__(store)
        self.store = store
        self.is_exclusive = is_exclusive
        """Whether no other process writes to the same database."""
        self.runs = RunStores(store)
        """The stores of runs, in the same database."""
        self.chat = ChatStores(store, is_shared=not is_exclusive)
        """The stores of the chat gateway in the same database."""
        self.clock = store.clock
        """The clock of the store."""

    @property
    def release(self) -> str:
        """The product name and the version of the database server or library."""
        return self.store.engine.release

    @property
    def checks_pages(self) -> bool:
        """Whether each page of the database has a checksum."""
        return self.store.engine.checks_pages

    @property
    def grouping(self) -> tuple[int, int]:
        """The number of commits, and the number of committed changes."""
        return self.store.engine.grouping

    async def back_up(self, target: Path, *, is_read_back: bool = True) -> None:
        """Write a consistent copy of the database to `target` while work continues.

        With `is_read_back`, the copy is read and checked.

        Raises:
            StoreError: The copy could not be written or is damaged, and the target is unchanged.
            StateError: The engine does not support copies.
        """
        await self.store.engine.back_up(target, is_read_back=is_read_back)

    async def check(self) -> list[str]:
        """Read the whole database, and return the list of its problems."""
        return await self.store.engine.check()

    async def indexes_that_lack_rows(self) -> list[str]:
        """Return the names of the indexes that lack rows and can be rebuilt without losing data."""
        return await self.store.engine.indexes_that_lack_rows()

    async def write_again(self, indexes: Sequence[str]) -> None:
        """Rebuild the named indexes from their tables, while other writers wait.

        Raises:
            StoreCorrupt: A problem remains, and nothing was changed.
        """
        await self.store.engine.write_again(indexes)

    async def identity(self, slugs: Sequence[str] = ()) -> StoreIdentity:
        """Return the identity of the store, with the log positions of the projects `slugs`."""
        return await self.store.engine.read(lambda sql: read_identity(sql, slugs))

    async def identify(self, store_id: str) -> None:
        """Store an id of the database, unless the database already has an id."""
        await self.store.engine.write(lambda sql: sql.run("store.identify", {"store_id": store_id}))

    async def outline(self) -> Outline:
        """Return a description of the database without its data."""
        return await self.store.engine.outline()

    def close(self) -> None:
        """Finish submitted work and close the store; a second call has no effect.

        The call blocks until the work is done.
        """
        self.store.close()
